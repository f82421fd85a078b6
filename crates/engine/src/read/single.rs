//! Rows that lie whole in one block of one SST, which is what most point reads and scans find: their cells in
//! one walk over the block, with no merge and no keys built. What a memtable has of a row is walked over in the same way, and
//! the parts that several places have of a row are joined.
//!
//! Only values are handled here. A tombstone, an operand of an aggregate, or a row beyond the size limit sends
//! the read to the general way, which knows all of that; the two agree on everything else.

use std::borrow::Cow;

use bytes::Bytes;

use crate::cell::{
    Cell, FAMILY_NONE, FamilyId, Kind, Memories, PinnedCell, PinnedRow, Place, Seq, Timestamp,
    unescape_into,
};
use crate::error::Result;
use crate::limits::SCAN_PROGRESS_RECORDS;
use crate::memtable::MemtableRow;
use crate::read::plan::in_ranges;
use crate::read::ready::ReadyRows;
use crate::read::{Projection, QualifierRange, RowPart};
use crate::schema::TabletSchema;
use crate::sst::{RowInBlock, RowSink};
use crate::values::{Elsewhere, ValuePointer};

/// Rows that are taken at once at most: some ten blocks of small rows, which wait in memory. More would gain
/// nothing, since what a turn costs is spread over enough of them; and a caller that stops early has had less
/// work done in vain.
pub(super) const ROWS_TAKEN_MAX: usize = 128;

/// Bytes of rows that are taken at once at most: of a memtable they are copies. As much as a message of a scan that is under way.
pub(super) const BYTES_TAKEN_MAX: u64 = 1 << 20;

/// Records of a row in a memtable that show nothing, all together, before it is left to the general way, which seeks past
/// them: more than a read that fits this one meets.
const IN_VAIN_MAX: usize = 256;

/// Records of a row in a memtable, all together, before it is left to the general way, which lets others of the thread have their turn:
/// about a millisecond of work. That way takes half as long again, since each cell has memory of its own.
const IN_ONE_GO_MAX: usize = SCAN_PROGRESS_RECORDS as usize;

/// Cells for which memory is taken at once, at most, since the row of a memtable before had so many.
const CELLS_HINT_MAX: usize = 32;

/// Bytes of a row that are copied into one piece of memory, at most, unless it is one value. Two pieces are held while one of them grows, and up
/// to half of one is of no use.
const PIECE_BYTES_MAX: usize = 64 << 10;

/// Bytes for which memory is taken at once, at least, if any is: a few small cells.
const PIECE_BYTES_MIN: usize = 256;

/// Assembles rows, one after the other.
#[derive(Debug)]
pub(crate) struct Assembler<'a> {
    snapshot: Seq,
    schema: &'a TabletSchema,
    projection: &'a Projection,
    row_bytes_max: u64,
    /// The family looked at last, and where to go from it where it is not wanted.
    family: FamilyId,
    left_out: Option<Onward>,
    /// The values of the last row that are to be fetched.
    elsewhere: Vec<Elsewhere>,
    /// Of its qualifiers, these; `None` for all.
    ranges: Option<&'a [QualifierRange]>,
    /// Bytes that the last row counts as, and the sequences of its cells where it is a part.
    bytes: u64,
    seqs: Vec<Seq>,
    /// Records of the last row of a memtable that were looked at.
    walked: usize,
    /// Cells of the last one, and bytes of it that were copied, which the next is taken to have as well.
    cells_hint: usize,
    copied_hint: usize,
}

impl<'a> Assembler<'a> {
    /// For what `projection` wants of what is visible at `snapshot`.
    pub(crate) fn new(
        snapshot: Seq,
        schema: &'a TabletSchema,
        projection: &'a Projection,
        row_bytes_max: u64,
    ) -> Self {
        Self {
            snapshot,
            schema,
            projection,
            row_bytes_max,
            family: FAMILY_NONE,
            left_out: Some(Onward::Record),
            ranges: None,
            elsewhere: Vec::new(),
            bytes: 0,
            seqs: Vec::new(),
            walked: 0,
            cells_hint: 0,
            copied_hint: 0,
        }
    }

    /// Which values of the last row are to be fetched.
    pub(crate) fn take_elsewhere(&mut self) -> Vec<Elsewhere> {
        std::mem::take(&mut self.elsewhere)
    }

    /// A row with its cells, perhaps none, and with no key, without the values that lie elsewhere; `None` where it takes the
    /// general way.
    pub(crate) fn row(&mut self, row: &RowInBlock<'_>) -> Result<Option<PinnedRow>> {
        let mut pinned = PinnedRow::default();
        Ok(self.row_into(row, &mut pinned, false)?.then_some(pinned))
    }

    /// The same, into its place; false where it takes the general way, and what is in its place is then of no use. `as_part`: with the
    /// sequences of the cells.
    #[inline]
    fn row_into(
        &mut self,
        row: &RowInBlock<'_>,
        pinned: &mut PinnedRow,
        as_part: bool,
    ) -> Result<bool> {
        let mut so_far = self.begin(pinned, row.records_hint(), as_part);
        let is_all = self.assemble(row, &mut so_far)?;
        (self.bytes, self.seqs) = (so_far.bytes, so_far.seqs);
        if !pinned.cells.is_empty() {
            pinned.memories.push(row.memory().clone());
        }
        Ok(is_all)
    }

    /// The same as one part of a row, to be joined with others; `None` also where values lie elsewhere.
    pub(crate) fn part(&mut self, row: &RowInBlock<'_>) -> Result<Option<RowPart>> {
        let mut pinned = PinnedRow::default();
        let is_all = self.row_into(row, &mut pinned, true)?;
        Ok(self.part_of(pinned, is_all))
    }

    /// The part that the last row is, if that is all of it.
    fn part_of(&mut self, row: PinnedRow, is_all: bool) -> Option<RowPart> {
        let seqs = std::mem::take(&mut self.seqs);
        (is_all && self.elsewhere.is_empty()).then_some(RowPart { row, seqs, bytes: self.bytes })
    }

    #[inline]
    fn assemble(&mut self, row: &RowInBlock<'_>, so_far: &mut SoFar<'_>) -> Result<bool> {
        let mut onward = Onward::Record;
        if self.wants_any() {
            row.walk(|record| {
                onward = self.take(so_far, record);
                !matches!(onward, Onward::Nowhere | Onward::General)
            })?;
        }
        Ok(!matches!(onward, Onward::General))
    }

    /// What a memtable has of a row, as [`Self::part`]; the row is left at the last record that was looked at.
    pub(crate) fn part_in_memory(&mut self, row: &mut MemtableRow<'_>) -> Option<RowPart> {
        let mut pinned = PinnedRow::default();
        let is_all = self.in_memory_into(row, &mut pinned, true);
        self.part_of(pinned, is_all)
    }

    /// The same as [`Self::row_into`].
    fn in_memory_into(
        &mut self,
        row: &mut MemtableRow<'_>,
        pinned: &mut PinnedRow,
        as_part: bool,
    ) -> bool {
        let mut so_far = self.begin(pinned, self.cells_hint, as_part);
        let is_all = self.assemble_in_memory(row, &mut so_far);
        self.copied_hint = so_far.pins.copied.len();
        so_far.pins.end_piece();
        (self.bytes, self.seqs) = (so_far.bytes, so_far.seqs);
        self.cells_hint = pinned.cells.len().min(CELLS_HINT_MAX);
        is_all
    }

    fn assemble_in_memory(&mut self, row: &mut MemtableRow<'_>, so_far: &mut SoFar<'_>) -> bool {
        let mut in_vain = 0;
        self.walked = 0;
        while self.wants_any() {
            let found = so_far.cells.len();
            let onward = self.take(so_far, row);
            self.walked += 1;
            in_vain += usize::from(so_far.cells.len() == found);
            let goes_on = match onward {
                Onward::General => return false,
                _ if in_vain > IN_VAIN_MAX || self.walked > IN_ONE_GO_MAX => return false,
                Onward::Nowhere => false,
                Onward::Record => row.advance(),
                Onward::Cell => row.advance_cell(),
                Onward::Column => row.advance_column(),
                Onward::Family => row.advance_family(),
            };
            if !goes_on {
                break;
            }
        }
        true
    }

    fn wants_any(&self) -> bool {
        self.projection.versions_max > 0 && self.projection.cells_per_row_max > 0
    }

    fn begin<'c>(
        &mut self,
        row: &'c mut PinnedRow,
        cells_expected: usize,
        as_part: bool,
    ) -> SoFar<'c> {
        self.elsewhere.clear();
        SoFar {
            pins: Pins {
                memories: &mut row.memories,
                copied: Vec::new(),
                number: 0,
                expected: self.copied_hint,
            },
            cells: &mut row.cells,
            seqs: Vec::new(),
            bytes: 0,
            cells_expected,
            as_part,
            column_wanted: false,
            versions: 0,
            last_timestamp: None,
        }
    }

    /// Takes in the next record of a row.
    #[inline(always)]
    fn take(&mut self, so_far: &mut SoFar<'_>, record: &impl RecordInRow) -> Onward {
        let projection = self.projection;
        let kind = record.kind();
        if kind == Kind::RowTombstone {
            return Onward::General;
        }
        let same_column = record.is_of_same_column();
        if !same_column && record.family() != self.family {
            self.enter_family(record.family());
        }
        if let Some(onward) = self.left_out {
            return onward;
        }
        if kind != Kind::Value && kind != Kind::ValueElsewhere {
            return Onward::General;
        }
        if !same_column {
            so_far.column_wanted = match self.ranges {
                None => true,
                // One that is malformed is for the general way to report.
                Some(ranges) => match record.qualifier() {
                    Some(qualifier) => in_ranges(ranges, &qualifier),
                    None => return Onward::General,
                },
            };
            so_far.versions = 0;
            so_far.last_timestamp = None;
        }
        if !so_far.column_wanted || so_far.versions >= projection.versions_max {
            return Onward::Column;
        }
        let timestamp = record.timestamp();
        if timestamp < projection.timestamps.start {
            return Onward::Column;
        }
        if record.seq() > self.snapshot {
            return Onward::Record;
        }
        // Of the records of one cell, the newest that is visible decides.
        if so_far.last_timestamp == Some(timestamp) || !projection.timestamps.contains(timestamp) {
            return Onward::Cell;
        }
        so_far.last_timestamp = Some(timestamp);
        let is_last = so_far.versions + 1 == projection.versions_max;
        let (cells, pins) = (&mut *so_far.cells, &mut so_far.pins);
        let qualifier = match cells.last() {
            Some(last) if so_far.versions > 0 => Some(last.qualifier),
            _ => record.pin_qualifier(pins),
        };
        let (value, value_len) = if kind == Kind::ValueElsewhere {
            // Likewise.
            let Ok(pointer) = ValuePointer::decode(record.value()) else { return Onward::General };
            if projection.values {
                self.elsewhere.push(Elsewhere { cell: cells.len(), pointer });
            }
            let fetched = if projection.values { pointer.value_len as usize } else { 0 };
            (Some(Place::default()), fetched)
        } else if projection.values {
            let value = record.pin_value(pins);
            (value, value.map_or(0, Place::len))
        } else {
            (Some(Place::default()), 0)
        };
        let (Some(qualifier), Some(value)) = (qualifier, value) else { return Onward::General };
        // What it would count as the general way.
        so_far.bytes += (qualifier.len() + value_len + size_of::<Cell>()) as u64;
        if so_far.bytes > self.row_bytes_max {
            return Onward::General;
        }
        if cells.is_empty() {
            cells.reserve_exact(so_far.cells_expected);
        }
        cells.push(PinnedCell { family: self.family, qualifier, timestamp, value });
        if so_far.as_part {
            so_far.seqs.push(record.seq());
        }
        so_far.versions += 1;
        if cells.len() as u64 >= u64::from(projection.cells_per_row_max) {
            return Onward::Nowhere;
        }
        if is_last { Onward::Column } else { Onward::Cell }
    }

    /// A row may have thousands of families, and is assembled in one go: each is searched for.
    fn enter_family(&mut self, family: FamilyId) {
        self.family = family;
        let known = self.schema.families.range(family..).next().map(|(id, _)| *id);
        let (named, next) = match &self.projection.families {
            // The server's own come behind all others.
            None => (None, known.filter(|id| !id.is_own())),
            Some(named) => {
                let next = named.get(named.partition_point(|f| f.family < family));
                (next.filter(|f| f.family == family), next.map(|f| f.family))
            }
        };
        self.left_out = match next {
            Some(next) if next == family && known == Some(family) => None,
            Some(_) => Some(Onward::Family),
            None => Some(Onward::Nowhere),
        };
        let qualifiers = named.map(|wanted| &*wanted.qualifiers);
        self.ranges = qualifiers.filter(|qualifiers| !qualifiers.is_empty());
    }
}

/// One record of a row, wherever it lies.
pub(crate) trait RecordInRow {
    /// Its family.
    fn family(&self) -> FamilyId;
    /// Its kind.
    fn kind(&self) -> Kind;
    /// Its sequence.
    fn seq(&self) -> Seq;
    /// Its timestamp, in microseconds.
    fn timestamp(&self) -> Timestamp;
    /// Its qualifier, unescaped; `None` where it is malformed.
    fn qualifier(&self) -> Option<Cow<'_, [u8]>>;
    /// Its value.
    fn value(&self) -> &[u8];
    /// Its qualifier where it can stay; `None` where there is no such place.
    fn pin_qualifier(&self, pins: &mut Pins<'_>) -> Option<Place>;
    /// The same of its value.
    fn pin_value(&self, pins: &mut Pins<'_>) -> Option<Place>;
    /// Whether the record before it in the walk is of the same column.
    fn is_of_same_column(&self) -> bool;
}

/// What the cells of a row are pinned in. A row that lies in a block is in memory number 0, which is added once the row is known to
/// have cells; of others, pieces are added as they come.
#[derive(Debug)]
pub(crate) struct Pins<'c> {
    memories: &'c mut Memories,
    /// The piece that copies go to, and its number.
    copied: Vec<u8>,
    number: usize,
    /// Bytes that it is taken to get.
    expected: usize,
}

impl Pins<'_> {
    /// Where a copy is.
    pub(crate) fn copy(&mut self, bytes: &[u8]) -> Option<Place> {
        if self.copied.len() + bytes.len() > PIECE_BYTES_MAX {
            self.end_piece();
        }
        if self.copied.is_empty() {
            if bytes.is_empty() {
                return Some(Place::default());
            }
            self.copied.reserve_exact(self.expected.max(PIECE_BYTES_MIN).max(bytes.len()));
            self.number = self.memories.len();
            self.memories.push(Bytes::new());
        }
        let at = self.copied.len();
        self.copied.extend_from_slice(bytes);
        Place::new(self.number, at, bytes.len())
    }

    /// Puts the piece among the memories.
    fn end_piece(&mut self) {
        let piece = std::mem::take(&mut self.copied);
        if !piece.is_empty()
            && let Some(memory) = self.memories.get_mut(self.number)
        {
            *memory = piece.into();
        }
    }

    /// Where memory of its own is.
    pub(crate) fn share(&mut self, bytes: Bytes) -> Option<Place> {
        let place = Place::new(self.memories.len(), 0, bytes.len());
        self.memories.push(bytes);
        place
    }
}

/// What of a row is assembled so far.
#[derive(Debug)]
struct SoFar<'c> {
    pins: Pins<'c>,
    cells: &'c mut Vec<PinnedCell>,
    /// The sequence of each, where it is to be joined.
    seqs: Vec<Seq>,
    /// Bytes that the cells count as.
    bytes: u64,
    cells_expected: usize,
    /// Whether it is to be joined with other parts, which takes sequences.
    as_part: bool,
    column_wanted: bool,
    /// Cells of the column so far.
    versions: u32,
    last_timestamp: Option<Timestamp>,
}

/// Where the walk over a row goes from a record. One that cannot leave out what is not wanted may show it.
#[derive(Debug, Clone, Copy)]
enum Onward {
    Record,
    /// Nothing more is wanted of the cell.
    Cell,
    /// Nothing more is wanted of the column.
    Column,
    /// Nothing is wanted of the family.
    Family,
    /// Nothing more is wanted.
    Nowhere,
    /// It takes the general way.
    General,
}

/// Assembles the rows that a cursor hands over.
#[derive(Debug)]
pub(super) struct RowTaker<'a> {
    pub(super) assembler: Assembler<'a>,
    /// Makes the rows' keys.
    pub(super) keys: &'a mut RowKeys,
    /// Those with cells.
    pub(super) rows: &'a mut ReadyRows,
    pub(super) rows_max: usize,
    /// Bytes of values to fetch with which it is full.
    pub(super) fetch_max: u64,
    /// Whether `last` is to be right whatever the row has.
    pub(super) keeps_last: bool,
    /// The prefix of the last row that was taken, or of the last without cells.
    pub(super) last: &'a mut Vec<u8>,
    /// Records of all rows that were taken, at least one each.
    pub(super) looked_at: u64,
    /// Records after which it has looked at enough, whatever it found.
    pub(super) look_at_max: u64,
    /// Bytes of the rows that wait.
    pub(super) bytes: u64,
}

impl RowTaker<'_> {
    /// Takes the row with this prefix, which `assemble` puts into its place. It says how many records it looked at, about, and
    /// how many bytes the row counts as; `None` where it takes the general way.
    #[inline]
    fn take_with(
        &mut self,
        row_prefix: &[u8],
        assemble: impl FnOnce(&mut Assembler<'_>, &mut PinnedRow) -> Result<Option<(usize, u64)>>,
    ) -> Result<bool> {
        let (assembler, keys, bytes) = (&mut self.assembler, &mut self.keys, &mut self.bytes);
        let mut taken = None;
        let is_kept = self.rows.push_with(|row| {
            taken = assemble(assembler, row)?;
            let Some((_, of_row)) = taken.filter(|_| !row.cells.is_empty()) else {
                return Ok(false);
            };
            row.key = keys.key(row_prefix);
            let to_fetch = assembler.elsewhere.iter().map(|e| u64::from(e.pointer.value_len));
            *bytes += of_row - to_fetch.sum::<u64>();
            Ok(true)
        })?;
        let Some((records, _)) = taken else { return Ok(false) };
        self.looked_at += records as u64;
        if self.keeps_last || !is_kept {
            self.last.clear();
            self.last.extend_from_slice(row_prefix);
        }
        if is_kept {
            self.rows.fetch(self.assembler.take_elsewhere());
        }
        Ok(true)
    }

    /// Takes a row that several places had parts of; see [`PartTaker`].
    pub(super) fn take_parts(&mut self, row_prefix: &[u8], joined: Joined) -> Result<()> {
        self.assembler.elsewhere.clear();
        let Joined { row, records } = joined;
        self.take_with(row_prefix, |_, pinned| {
            *pinned = row.row;
            Ok(Some((records, row.bytes)))
        })?;
        Ok(())
    }
}

impl RowSink for RowTaker<'_> {
    fn take(&mut self, row_prefix: &[u8], row: &RowInBlock<'_>) -> Result<bool> {
        self.take_with(row_prefix, |assembler, pinned| {
            let is_all = assembler.row_into(row, pinned, false)?;
            Ok(is_all.then_some((row.records_about(), assembler.bytes)))
        })
    }

    fn take_in_memory(&mut self, row_prefix: &[u8], row: &mut MemtableRow<'_>) -> Result<bool> {
        self.take_with(row_prefix, |assembler, pinned| {
            let is_all = assembler.in_memory_into(row, pinned, false);
            Ok(is_all.then_some((assembler.walked, assembler.bytes)))
        })
    }

    fn room(&self) -> usize {
        if self.rows.fetch_bytes() >= self.fetch_max
            || self.bytes >= BYTES_TAKEN_MAX
            || self.looked_at >= self.look_at_max
        {
            return 0;
        }
        self.rows_max.saturating_sub(self.rows.len())
    }
}

/// A row of several places, joined.
#[derive(Debug, Default)]
pub(super) struct Joined {
    row: RowPart,
    /// Records of all parts, about.
    records: usize,
}

/// Joins the parts of one row that several cursors show.
#[derive(Debug)]
pub(super) struct PartTaker<'a, 's> {
    assembler: &'a mut Assembler<'s>,
    joined: Joined,
}

impl<'a, 's> PartTaker<'a, 's> {
    pub(super) fn new(assembler: &'a mut Assembler<'s>) -> Self {
        Self { assembler, joined: Joined::default() }
    }

    pub(super) fn into_joined(self) -> Joined {
        self.joined
    }

    fn join(&mut self, part: Option<RowPart>, records: usize) -> bool {
        let Some(part) = part else { return false };
        let Joined { row, records: all } = std::mem::take(&mut self.joined);
        let row = row.join(part, self.assembler.projection);
        let fits = row.bytes <= self.assembler.row_bytes_max;
        self.joined = Joined { row, records: all + records };
        fits
    }
}

impl RowSink for PartTaker<'_, '_> {
    fn take(&mut self, _row_prefix: &[u8], row: &RowInBlock<'_>) -> Result<bool> {
        let part = self.assembler.part(row)?;
        Ok(self.join(part, row.records_about()))
    }

    fn take_in_memory(&mut self, _row_prefix: &[u8], row: &mut MemtableRow<'_>) -> Result<bool> {
        let part = self.assembler.part_in_memory(row);
        Ok(self.join(part, self.assembler.walked))
    }

    fn room(&self) -> usize {
        1
    }
}

/// Lets one row pass without a look at it.
#[derive(Debug, Default)]
pub(super) struct PassOne {
    has_passed: bool,
}

impl PassOne {
    /// Whether one has.
    pub(super) fn has_passed(&self) -> bool {
        self.has_passed
    }
}

impl RowSink for PassOne {
    fn take(&mut self, _row_prefix: &[u8], _row: &RowInBlock<'_>) -> Result<bool> {
        self.has_passed = true;
        Ok(true)
    }

    fn take_in_memory(&mut self, _row_prefix: &[u8], _row: &mut MemtableRow<'_>) -> Result<bool> {
        self.has_passed = true;
        Ok(true)
    }

    fn room(&self) -> usize {
        usize::from(!self.has_passed)
    }
}

/// Makes row keys, each in memory of its own: an allocation costs no more than a reference that is counted, and whoever
/// keeps a key keeps nothing else.
#[derive(Debug, Default)]
pub(super) struct RowKeys {
    scratch: Vec<u8>,
}

impl RowKeys {
    /// The row of a prefix.
    #[inline]
    pub(super) fn key(&mut self, prefix: &[u8]) -> Bytes {
        let escaped = prefix.get(..prefix.len().saturating_sub(2)).unwrap_or_default();
        if escaped.contains(&0) {
            unescape_into(escaped, &mut self.scratch);
            return Bytes::copy_from_slice(&self.scratch);
        }
        Bytes::copy_from_slice(escaped)
    }
}
