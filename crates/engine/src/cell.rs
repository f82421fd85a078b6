//! Cell keys: their order and their one encoding.
//!
//! A cell is (row, family, qualifier, timestamp) -> value, and every record carries the sequence of
//! the mutation that wrote it. Keys sort by row, family id and qualifier ascending, then by timestamp
//! and sequence descending, so the newest version of a column comes first. The encoding below is
//! memcomparable: comparing two encoded keys as bytes compares the cells. Memtables, index
//! separators, tablet bounds and merges all compare encoded keys and nothing else.
//!
//! ```text
//! row, escaped | 00 01 | family u32 BE | column part | !timestamp u64 BE | !seq u64 BE | !origin u16 BE | kind u8
//! |---- row prefix ---|                              |
//! |--------------- column prefix --------------------|------------------ suffix, 19 bytes ---------------------|
//!
//! column part:  00 00                      for row and family tombstones (no qualifier)
//!               qualifier, escaped | 00 01 for everything else
//! escaped:      each 00 becomes 00 FF
//! ```
//!
//! Two properties carry the rest of the engine:
//!
//! * No row prefix is a prefix of another row's, and `00 00 < 00 01 < 00 FF`; so prefixes sort as the
//!   rows and qualifiers do, and "the same row" is "the same leading `row_len` bytes".
//! * *Prefix tombstones sort before everything that they hide.* A row tombstone has family 0 (families
//!   are numbered from 1) and no qualifier; a family tombstone has no qualifier; a cell tombstone has
//!   the last timestamp of its range, and a column tombstone is a cell tombstone whose range has no end.
//!   One forward pass meets the tombstone first.

use std::borrow::Cow;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::error::{Error, ErrorKind, Result};

/// A mutation's place in the history of the whole server: a hybrid logical clock reading, 44 bits of
/// milliseconds since 1970 and 20 bits of counter. Unique and increasing per server.
pub type Seq = u64;

/// The last possible sequence: a read at it sees everything.
pub const SEQ_MAX: Seq = u64::MAX;

/// Bits of a [`Seq`] below the milliseconds.
pub const SEQ_COUNTER_BITS: u32 = 20;

/// The cluster that wrote a record; 0 until clusters replicate. Breaks ties between equal sequences.
pub type Origin = u16;

/// A column family's number: from 1, never reused within a table, so that a dropped and re-created
/// family does not see the cells of the old one. 0 is reserved for row tombstones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FamilyId(pub u32);

/// The pseudo-family of row tombstones.
pub const FAMILY_NONE: FamilyId = FamilyId(0);

/// Families from here on are the server's own: reads that name no families do not see them.
pub const FAMILY_OWN_MIN: FamilyId = FamilyId(u32::MAX - 15);

impl FamilyId {
    /// Whether only reads that name it see it.
    pub fn is_own(self) -> bool {
        self >= FAMILY_OWN_MIN
    }
}

/// Microseconds since 1970. Negative timestamps are refused above the engine.
pub type Timestamp = i64;

/// The timestamp of tombstones that cover all timestamps. Never a cell's own.
pub const TIMESTAMP_MAX: Timestamp = i64::MAX;

/// In a batch that is to be written, the timestamp of a [`Mutation::Put`] that is to have the time of its write: whole
/// milliseconds, which are filled in when the row is locked or shared, so that a write that begins when another is over is not older. Never a cell's own.
pub const TIMESTAMP_OF_WRITE: Timestamp = Timestamp::MIN;

/// Bytes of a key after its column prefix.
pub const SUFFIX_LEN: usize = 8 + 8 + 2 + 1;

const TERMINATOR: [u8; 2] = [0x00, 0x01];
const NO_QUALIFIER: [u8; 2] = [0x00, 0x00];

/// What a record says. The order of the numbers is the order of records that agree in all else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Hides every older cell of the row. Empty value.
    RowTombstone = 1,
    /// Hides every older cell of the family in the row. Empty value.
    FamilyTombstone = 2,
    /// Hides every older cell of the column. Empty value; timestamp is [`TIMESTAMP_MAX`].
    ColumnTombstone = 3,
    /// Hides the older cells of the column with timestamps in `[start, key timestamp]`; the value is
    /// `start` as i64 BE.
    CellTombstone = 4,
    /// An operand of the family's aggregate; the value is the operand.
    Merge = 5,
    /// A cell's value.
    Value = 6,
    /// A cell whose value lies in a value file; the value is a pointer to it ([`crate::values`]).
    ValueElsewhere = 7,
}

impl Kind {
    /// The kind with this number.
    pub fn from_u8(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::RowTombstone,
            2 => Self::FamilyTombstone,
            3 => Self::ColumnTombstone,
            4 => Self::CellTombstone,
            5 => Self::Merge,
            6 => Self::Value,
            7 => Self::ValueElsewhere,
            _ => return None,
        })
    }

    /// Whether the record hides others and shows nothing itself.
    pub fn is_tombstone(self) -> bool {
        self <= Self::CellTombstone
    }
}

/// Gives out `raw` with each 00 escaped to 00 FF, part by part.
fn escape(raw: &[u8], mut append: impl FnMut(&[u8])) {
    for (i, part) in raw.split(|b| *b == 0).enumerate() {
        if i > 0 {
            append(&[0x00, 0xFF]);
        }
        append(part);
    }
}

/// Gives out the row prefix of `row`, part by part: the escaped row and its terminator. Every key of the row starts
/// with it and no key of another row does.
pub fn row_prefix_parts(row: &[u8], mut append: impl FnMut(&[u8])) {
    escape(row, &mut append);
    append(&TERMINATOR);
}

/// Appends the row prefix of `row`.
pub fn encode_row(row: &[u8], out: &mut Vec<u8>) {
    row_prefix_parts(row, |part| out.extend_from_slice(part));
}

/// The row prefix of `row`.
pub fn row_prefix(row: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(row.len() + 2);
    encode_row(row, &mut out);
    out
}

/// Appends the family's bytes; after a row prefix this makes the prefix of the row's family.
pub fn encode_family(family: FamilyId, out: &mut Vec<u8>) {
    out.extend_from_slice(&family.0.to_be_bytes());
}

/// Appends the column part for `qualifier`, or for "no qualifier" (row and family tombstones).
pub fn encode_qualifier(qualifier: Option<&[u8]>, out: &mut Vec<u8>) {
    match qualifier {
        Some(qualifier) => {
            escape(qualifier, |part| out.extend_from_slice(part));
            out.extend_from_slice(&TERMINATOR);
        }
        None => out.extend_from_slice(&NO_QUALIFIER),
    }
}

/// Appends the 19-byte suffix.
pub fn encode_suffix(
    timestamp: Timestamp,
    seq: Seq,
    origin: Origin,
    kind: Kind,
    out: &mut Vec<u8>,
) {
    out.extend_from_slice(&(!order_timestamp(timestamp)).to_be_bytes());
    out.extend_from_slice(&(!seq).to_be_bytes());
    out.extend_from_slice(&(!origin).to_be_bytes());
    out.push(kind as u8);
}

fn order_timestamp(timestamp: Timestamp) -> u64 {
    (timestamp as u64) ^ (1 << 63)
}

/// Appends a whole key. `qualifier` is `None` exactly for row and family tombstones.
pub fn encode_key(
    row: &[u8],
    family: FamilyId,
    qualifier: Option<&[u8]>,
    timestamp: Timestamp,
    seq: Seq,
    kind: Kind,
    out: &mut Vec<u8>,
) {
    encode_row(row, out);
    encode_family(family, out);
    encode_qualifier(qualifier, out);
    encode_suffix(timestamp, seq, 0, kind, out);
}

/// Removes the escapes of a row prefix or qualifier part *without* its terminator. Borrow-free callers
/// reuse `out`, which is cleared first.
pub fn unescape_into(escaped: &[u8], out: &mut Vec<u8>) {
    out.clear();
    let mut rest = escaped;
    while let Some(zero) = rest.iter().position(|b| *b == 0) {
        out.extend_from_slice(rest.get(..=zero).unwrap_or_default());
        rest = rest.get(zero + 2..).unwrap_or_default();
    }
    out.extend_from_slice(rest);
}

/// The row of a row prefix, into `out` (cleared first).
pub fn row_of_prefix(prefix: &[u8], out: &mut Vec<u8>) {
    unescape_into(
        prefix.get(..prefix.len().saturating_sub(TERMINATOR.len())).unwrap_or_default(),
        out,
    );
}

/// An encoded key and where its prefixes end. Cheap to copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyView<'a> {
    bytes: &'a [u8],
    row_len: u32,
}

impl<'a> KeyView<'a> {
    /// A key known to be well formed, whose row prefix is `row_len` bytes (as a cursor knows that
    /// built it). Fails only where the lengths cannot be right.
    pub fn from_parts(bytes: &'a [u8], row_len: usize) -> Result<Self> {
        if row_len < 2 || bytes.len() < row_len + 4 + 2 + SUFFIX_LEN {
            return Err(Error::new(ErrorKind::Corruption, "cell key is too short"));
        }
        Ok(Self { bytes, row_len: row_len as u32 })
    }

    /// Parses an encoded key and checks its form.
    pub fn parse(bytes: &'a [u8]) -> Result<Self> {
        let bad = || Error::new(ErrorKind::Corruption, "malformed cell key");
        let row_len = terminated_len(bytes).ok_or_else(bad)?;
        let key = Self::from_parts(bytes, row_len)?;
        Kind::from_u8(*bytes.last().ok_or_else(bad)?).ok_or_else(bad)?;
        let column = key.column_part();
        let well_formed = column == NO_QUALIFIER || terminated_len(column) == Some(column.len());
        if well_formed { Ok(key) } else { Err(bad()) }
    }

    /// The encoded bytes.
    pub fn bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// Bytes of the row prefix, its terminator included.
    pub fn row_len(self) -> usize {
        self.row_len as usize
    }

    /// The row prefix: equal for keys of the same row and for no others.
    pub fn row_prefix(self) -> &'a [u8] {
        self.bytes.get(..self.row_len()).unwrap_or_default()
    }

    /// The column prefix: row, family and qualifier.
    pub fn column_prefix(self) -> &'a [u8] {
        self.bytes.get(..self.bytes.len() - SUFFIX_LEN).unwrap_or_default()
    }

    /// The key of the cell: the column and the timestamp, which its records share.
    pub fn cell_prefix(self) -> &'a [u8] {
        self.bytes.get(..self.bytes.len() - SUFFIX_LEN + size_of::<Timestamp>()).unwrap_or_default()
    }

    /// The row, unescaped, into `out` (cleared first).
    pub fn row_into(self, out: &mut Vec<u8>) {
        unescape_into(self.bytes.get(..self.row_len() - 2).unwrap_or_default(), out);
    }

    /// The row, unescaped.
    pub fn row(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.row_len());
        self.row_into(&mut out);
        out
    }

    /// The family id; [`FAMILY_NONE`] for a row tombstone.
    pub fn family(self) -> FamilyId {
        FamilyId(u32::from_be_bytes(self.array(self.row_len())))
    }

    fn column_part(self) -> &'a [u8] {
        self.bytes.get(self.row_len() + 4..self.bytes.len() - SUFFIX_LEN).unwrap_or_default()
    }

    /// Whether the key names a qualifier (row and family tombstones do not).
    pub fn has_qualifier(self) -> bool {
        self.column_part() != NO_QUALIFIER
    }

    /// The qualifier, unescaped, into `out` (cleared first). Empty without one.
    pub fn qualifier_into(self, out: &mut Vec<u8>) {
        let part = self.column_part();
        unescape_into(part.get(..part.len() - 2).unwrap_or_default(), out);
    }

    /// The qualifier, unescaped. Empty without one.
    pub fn qualifier(self) -> Cow<'a, [u8]> {
        let part = self.column_part();
        let escaped = part.get(..part.len() - 2).unwrap_or_default();
        if !escaped.contains(&0) {
            return Cow::Borrowed(escaped);
        }
        let mut out = Vec::with_capacity(escaped.len());
        unescape_into(escaped, &mut out);
        Cow::Owned(out)
    }

    fn array<const N: usize>(self, at: usize) -> [u8; N] {
        self.bytes.get(at..at + N).and_then(|b| b.try_into().ok()).unwrap_or([0; N])
    }

    /// The timestamp, in microseconds.
    pub fn timestamp(self) -> Timestamp {
        let ordered = !u64::from_be_bytes(self.array(self.bytes.len() - SUFFIX_LEN));
        (ordered ^ (1 << 63)) as i64
    }

    /// The sequence.
    pub fn seq(self) -> Seq {
        !u64::from_be_bytes(self.array(self.bytes.len() - SUFFIX_LEN + 8))
    }

    /// The cluster of origin.
    pub fn origin(self) -> Origin {
        !u16::from_be_bytes(self.array(self.bytes.len() - 3))
    }

    /// The kind. An unknown number reads as [`Kind::ValueElsewhere`], whose pointer leads nowhere then.
    pub fn kind(self) -> Kind {
        self.bytes.last().and_then(|b| Kind::from_u8(*b)).unwrap_or(Kind::ValueElsewhere)
    }
}

/// Length of the first escaped string of `bytes` with its terminator; `None` where there is none.
fn terminated_len(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        let zero = at + bytes.get(at..)?.iter().position(|b| *b == 0)?;
        match bytes.get(zero + 1)? {
            0x01 => return Some(zero + 2),
            0xFF => at = zero + 2,
            _ => return None,
        }
    }
}

/// A contiguous range of rows: `start` is in it; `end` is not, and an empty `end` means no end.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RowRange {
    /// First row of the range.
    pub start: Bytes,
    /// First row after the range; empty for none.
    pub end: Bytes,
}

impl RowRange {
    /// The range `[start, end)`; an empty `end` means no end.
    pub fn new(start: impl Into<Bytes>, end: impl Into<Bytes>) -> Self {
        Self { start: start.into(), end: end.into() }
    }

    /// Every row.
    pub fn all() -> Self {
        Self::new(Bytes::new(), Bytes::new())
    }

    /// The range of one row: its end is the row followed by a zero byte.
    pub fn row(row: &[u8]) -> Self {
        let mut end = Vec::with_capacity(row.len() + 1);
        end.extend_from_slice(row);
        end.push(0);
        Self::new(Bytes::copy_from_slice(row), end)
    }

    /// Whether it is one that [`Self::row`] makes.
    pub fn is_row(&self) -> bool {
        self.end.strip_suffix(&[0]) == Some(self.start.as_ref())
    }

    /// The rows that start with `prefix`.
    pub fn prefix(prefix: &[u8]) -> Self {
        let mut end = prefix.to_vec();
        while let Some(last) = end.pop() {
            if last < 0xFF {
                end.push(last + 1);
                break;
            }
        }
        Self::new(Bytes::copy_from_slice(prefix), end)
    }

    /// Whether no row can be in the range.
    pub fn is_empty(&self) -> bool {
        !self.end.is_empty() && self.start >= self.end
    }

    /// Whether `row` is in the range.
    pub fn contains(&self, row: &[u8]) -> bool {
        row >= self.start.as_ref() && (self.end.is_empty() || row < self.end.as_ref())
    }

    /// Whether every row of `other` is in this range.
    pub fn contains_range(&self, other: &Self) -> bool {
        self.start <= other.start
            && (self.end.is_empty() || (!other.end.is_empty() && other.end <= self.end))
    }

    /// The rows in both ranges; possibly empty.
    pub fn intersect(&self, other: &Self) -> Self {
        let start = self.start.clone().max(other.start.clone());
        let end = match (self.end.is_empty(), other.end.is_empty()) {
            (true, _) => other.end.clone(),
            (_, true) => self.end.clone(),
            _ => self.end.clone().min(other.end.clone()),
        };
        Self { start, end }
    }

    /// Whether some row may be in both ranges.
    pub fn overlaps(&self, other: &Self) -> bool {
        (self.end.is_empty() || other.start < self.end)
            && (other.end.is_empty() || self.start < other.end)
    }
}

/// Timestamps `[start, end)` in microseconds; `end` = [`TIMESTAMP_MAX`] means no end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TimestampRange {
    /// First timestamp of the range.
    pub start: Timestamp,
    /// First timestamp after the range; [`TIMESTAMP_MAX`] for none.
    pub end: Timestamp,
}

impl TimestampRange {
    /// Every timestamp.
    pub const ALL: Self = Self { start: i64::MIN, end: TIMESTAMP_MAX };

    /// Whether `timestamp` is in the range.
    pub fn contains(self, timestamp: Timestamp) -> bool {
        timestamp >= self.start && (self.end == TIMESTAMP_MAX || timestamp < self.end)
    }
}

/// One merged cell as a read returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    /// Its family.
    pub family: FamilyId,
    /// Its qualifier; shares memory with the block that it was read from.
    pub qualifier: Bytes,
    /// Its timestamp in microseconds.
    pub timestamp: Timestamp,
    /// Its value; shares memory with the block that it was read from.
    pub value: Bytes,
}

/// One merged row: cells by family id, qualifier, and timestamp descending.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The row key.
    pub key: Bytes,
    /// Its cells. A scan may return a row without cells: a mark of progress, see `read::RowStream`.
    pub cells: Vec<Cell>,
}

/// Pieces of memory that a row lies in: one, if all of it comes from one place.
pub type Memories = SmallVec<[Bytes; 1]>;

/// A row in the memory that it was read from: its cells say where, and of none of them a reference is counted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PinnedRow {
    /// The row key.
    pub key: Bytes,
    /// What the cells lie in.
    pub memories: Memories,
    /// Its cells, in the order of those of a [`Row`].
    pub cells: Vec<PinnedCell>,
}

/// A cell of a [`PinnedRow`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PinnedCell {
    /// Its family.
    pub family: FamilyId,
    /// Where its qualifier is.
    pub qualifier: Place,
    /// Its timestamp in microseconds.
    pub timestamp: Timestamp,
    /// Where its value is.
    pub value: Place,
}

/// Where bytes lie among [`Memories`]. The default is nowhere, with no bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Place {
    memory: u32,
    at: u32,
    len: u32,
}

impl Place {
    /// The place of `len` bytes from `at` on in memory number `memory`; `None` where no memory is so large.
    pub fn new(memory: usize, at: usize, len: usize) -> Option<Self> {
        let small = |number: usize| u32::try_from(number).ok();
        Some(Self { memory: small(memory)?, at: small(at)?, len: small(len)? })
    }

    /// How many bytes it has.
    pub fn len(self) -> usize {
        self.len as usize
    }

    /// Whether it has none.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Where it begins in its memory.
    pub fn start(self) -> usize {
        self.at as usize
    }

    /// The memory that it is in.
    pub fn memory(self, memories: &[Bytes]) -> Option<&Bytes> {
        memories.get(self.memory as usize)
    }

    /// What is there; nothing where there is no such place.
    #[inline]
    pub fn of(self, memories: &[Bytes]) -> &[u8] {
        let memory = self.memory(memories).map_or(&[][..], |memory| memory);
        memory.get(self.start()..self.start() + self.len()).unwrap_or_default()
    }

    /// The same, as a part of its memory.
    fn part_of(self, memories: &[Bytes]) -> Bytes {
        self.memory(memories).map_or_else(Bytes::new, |memory| memory.slice_ref(self.of(memories)))
    }

    /// The same place once there are so many memories before its own.
    fn behind(self, memories: usize) -> Self {
        Self { memory: self.memory.saturating_add(memories as u32), ..self }
    }
}

impl PinnedCell {
    /// The same cell once there are so many memories before its own.
    pub(crate) fn behind(self, memories: usize) -> Self {
        let (qualifier, value) = (self.qualifier.behind(memories), self.value.behind(memories));
        Self { qualifier, value, ..self }
    }
}

impl From<PinnedRow> for Row {
    fn from(row: PinnedRow) -> Self {
        let PinnedRow { key, memories, cells } = row;
        let cell = |PinnedCell { family, qualifier, timestamp, value }: PinnedCell| Cell {
            family,
            qualifier: qualifier.part_of(&memories),
            timestamp,
            value: value.part_of(&memories),
        };
        Self { key, cells: cells.into_iter().map(cell).collect() }
    }
}

/// A row as a read meets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadRow {
    /// As it lies in memory; it has cells.
    Pinned(PinnedRow),
    /// Of records that were merged, or a mark of progress without cells.
    Merged(Row),
}

impl ReadRow {
    /// The row key.
    pub fn key(&self) -> &Bytes {
        match self {
            Self::Pinned(row) => &row.key,
            Self::Merged(row) => &row.key,
        }
    }

    /// Whether it has no cells: a mark of progress.
    pub fn is_mark(&self) -> bool {
        match self {
            Self::Pinned(row) => row.cells.is_empty(),
            Self::Merged(row) => row.cells.is_empty(),
        }
    }

    /// Gives a cell its value.
    pub(crate) fn set_value(&mut self, cell: usize, value: Bytes) {
        match self {
            Self::Pinned(PinnedRow { memories, cells, .. }) => {
                let place = Place::new(memories.len(), 0, value.len());
                if let (Some(cell), Some(place)) = (cells.get_mut(cell), place) {
                    cell.value = place;
                    memories.push(value);
                }
            }
            Self::Merged(row) => {
                if let Some(cell) = row.cells.get_mut(cell) {
                    cell.value = value;
                }
            }
        }
    }

    /// Bytes of its cells, as much as they count as in a read.
    pub fn bytes(&self) -> u64 {
        let bytes =
            |cell: CellView<'_>| cell.qualifier.len() + cell.value.len() + size_of::<Cell>();
        self.cells().map(|cell| bytes(cell) as u64).sum()
    }

    /// Its cells, in order.
    pub fn cells(&self) -> impl Iterator<Item = CellView<'_>> {
        (0..).map_while(|at| self.cell(at))
    }

    fn cell(&self, at: usize) -> Option<CellView<'_>> {
        Some(match self {
            Self::Pinned(row) => {
                let PinnedCell { family, qualifier, timestamp, value } = *row.cells.get(at)?;
                let (qualifier, value) = (qualifier.of(&row.memories), value.of(&row.memories));
                CellView { family, qualifier, timestamp, value }
            }
            Self::Merged(row) => {
                let Cell { family, qualifier, timestamp, value } = row.cells.get(at)?;
                CellView { family: *family, qualifier, timestamp: *timestamp, value }
            }
        })
    }
}

/// A cell of a [`ReadRow`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CellView<'a> {
    /// Its family.
    pub family: FamilyId,
    /// Its qualifier.
    pub qualifier: &'a [u8],
    /// Its timestamp in microseconds.
    pub timestamp: Timestamp,
    /// Its value.
    pub value: &'a [u8],
}

impl From<ReadRow> for Row {
    fn from(row: ReadRow) -> Self {
        match row {
            ReadRow::Pinned(row) => row.into(),
            ReadRow::Merged(row) => row,
        }
    }
}

/// One change to a row. Timestamps are microseconds.
#[expect(missing_docs, reason = "the fields are the nouns of the data model, above")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mutation {
    /// Writes a cell.
    Put { family: FamilyId, qualifier: Bytes, timestamp: Timestamp, value: Bytes },
    /// Adds an operand to an aggregate cell.
    Merge { family: FamilyId, qualifier: Bytes, timestamp: Timestamp, operand: Bytes },
    /// Deletes the cells of a column with timestamps in a range.
    DeleteCells { family: FamilyId, qualifier: Bytes, timestamps: TimestampRange },
    /// Deletes the cells of a family in the row.
    DeleteFamily { family: FamilyId },
    /// Deletes the row.
    DeleteRow,
}

/// Mutations of one row, applied in order and atomically. Mutation `i` has sequence `first_seq + i`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowBatch {
    /// The row key.
    pub row: Bytes,
    /// What to do, in order.
    pub mutations: Vec<Mutation>,
}

impl RowBatch {
    /// Gives the cells with [`TIMESTAMP_OF_WRITE`] their time.
    pub(crate) fn set_time(&mut self, time: Timestamp) {
        for mutation in &mut self.mutations {
            if let Mutation::Put { timestamp, .. } = mutation
                && *timestamp == TIMESTAMP_OF_WRITE
            {
                *timestamp = time;
            }
        }
    }
}

impl Mutation {
    /// Appends the mutation's key, given its row prefix already in `out`, and returns its value.
    pub fn encode_after_row(&self, seq: Seq, out: &mut Vec<u8>) -> Cow<'_, [u8]> {
        let none = Cow::Borrowed(&[][..]);
        let (family, qualifier, timestamp, kind, value) = match self {
            Self::Put { family, qualifier, timestamp, value } => {
                (*family, Some(qualifier), *timestamp, Kind::Value, Cow::Borrowed(value.as_ref()))
            }
            Self::Merge { family, qualifier, timestamp, operand } => {
                (*family, Some(qualifier), *timestamp, Kind::Merge, Cow::Borrowed(operand.as_ref()))
            }
            Self::DeleteCells { family, qualifier, timestamps } => {
                if timestamps.start <= 0 && timestamps.end == TIMESTAMP_MAX {
                    (*family, Some(qualifier), TIMESTAMP_MAX, Kind::ColumnTombstone, none)
                } else {
                    let last = match timestamps.end {
                        TIMESTAMP_MAX => TIMESTAMP_MAX,
                        end => end.saturating_sub(1),
                    };
                    let start = Cow::Owned(timestamps.start.to_be_bytes().to_vec());
                    (*family, Some(qualifier), last, Kind::CellTombstone, start)
                }
            }
            Self::DeleteFamily { family } => {
                (*family, None, TIMESTAMP_MAX, Kind::FamilyTombstone, none)
            }
            Self::DeleteRow => (FAMILY_NONE, None, TIMESTAMP_MAX, Kind::RowTombstone, none),
        };
        encode_family(family, out);
        encode_qualifier(qualifier.map(|q| q.as_ref()), out);
        encode_suffix(timestamp, seq, 0, kind, out);
        value
    }
}
