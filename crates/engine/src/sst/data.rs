//! Data blocks: decoding and searching.
//!
//! ```text
//! header 40 B | group offsets | qualifier ends | qualifiers | groups | values
//!
//! header      layout u8 = 1 | width u8 (2 or 4) | 0 u16
//!             groups u32 | qualifiers u32 | bytes of qualifiers u32 | start of values u32 | records u32
//!             base timestamp i64 | base sequence u64                                      all LE
//! group offsets   `width` bytes each, from the first group; the binary search goes over these
//! qualifier ends  `width` bytes each: the dictionary; qualifier i is [end i-1, end i) of `qualifiers`, raw
//!
//! group       shared varint | tail len varint | tail | records varint | value offset varint | records
//!             A run of at most 32 records of one row. The row, escaped, without its terminator, is the first
//!             `shared` bytes of the *block's first row* and the tail, so that every group stands on its own
//!             and can be compared in place. A row of more than 32 records has several groups, which are also
//!             the restart points of a search within it.
//!
//! record      flags u8 | family varint* | qualifier varint* | timestamp varint* | seq varint | origin u16* | value len varint
//!             flags: bits 0-2 kind
//!                    bit 3 same column as the record before in the group (no family, no qualifier)
//!                    bit 4 same family (no family)
//!                    bit 5 origin follows (else 0)
//!                    bit 6 timestamp is TIMESTAMP_MAX (none follows), as tombstones without a range have
//!             qualifier: 0 none, else 1 + its place in the dictionary
//!             timestamp, seq: zigzag difference from the record before in the group, from the base in the first
//!
//! values      one after the other in record order; a group says where its first begins
//! ```
//!
//! Values lie at the tail so that a scan of keys does not pull them through the processor's cache, and they
//! and the qualifiers are raw, so both are handed out as slices of the block.
//!
//! Parsing checks the header only. The rest is checked as it is walked: a block whose bytes make no sense
//! gives `Malformed` at the place, never a panic.

use std::cmp::Ordering;

use bytes::Bytes;

use crate::cell::{
    FamilyId, Kind, Origin, Place, Seq, TIMESTAMP_MAX, Timestamp, encode_family, encode_qualifier,
    encode_suffix,
};
use crate::codec::{Malformed, Parsed, Reader, slice};

pub(super) const LAYOUT: u8 = 1;
pub(super) const HEADER_LEN: usize = 40;
pub(super) const FLAG_SAME_COLUMN: u8 = 1 << 3;
pub(super) const FLAG_SAME_FAMILY: u8 = 1 << 4;
pub(super) const FLAG_ORIGIN: u8 = 1 << 5;
pub(super) const FLAG_TIMESTAMP_MAX: u8 = 1 << 6;
const FLAG_RESERVED: u8 = 1 << 7;
const KIND_MASK: u8 = 0b111;

/// What ends a row in a key.
const ROW_END: [u8; 2] = [0x00, 0x01];

/// A parsed data block. Cheap: the tables are read in place.
#[derive(Debug, Clone)]
pub(crate) struct DataBlock {
    data: Bytes,
    width: usize,
    groups: usize,
    qualifiers: usize,
    records: u32,
    qualifiers_at: usize,
    groups_at: usize,
    values_at: usize,
    base_timestamp: i64,
    base_seq: u64,
    first_row_at: usize,
    first_row_len: usize,
}

/// What differs between a record and the one before it in the walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fresh {
    /// Another row, or the first record looked at.
    Row,
    /// The same row; perhaps another column.
    Column,
    /// The same column.
    Version,
}

/// One decoded record and where the next one begins.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record {
    pub(super) fresh: Fresh,
    pub(super) family: FamilyId,
    pub(super) timestamp: Timestamp,
    pub(super) seq: Seq,
    pub(super) origin: Origin,
    pub(super) kind: Kind,
    /// 0 none, else 1 + place in the dictionary.
    qualifier: usize,
    value_at: usize,
    value_len: usize,
    group: usize,
    /// Records of the group after this one.
    left: u64,
    /// Where the next record of the group begins.
    next_at: usize,
    row: RowRef,
}

/// A column as records name it.
#[derive(Debug, Clone, Copy)]
pub(super) struct ColumnRef {
    family: FamilyId,
    /// As in [`Record`].
    qualifier: usize,
}

/// A row as a group stores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RowRef {
    shared: usize,
    tail_at: usize,
    tail_len: usize,
}

impl Record {
    /// What a first record is decoded from.
    fn before_all() -> Self {
        Self {
            fresh: Fresh::Row,
            family: FamilyId(0),
            timestamp: 0,
            seq: 0,
            origin: 0,
            kind: Kind::Value,
            qualifier: 0,
            value_at: 0,
            value_len: 0,
            group: 0,
            left: 0,
            next_at: 0,
            row: RowRef { shared: 0, tail_at: 0, tail_len: 0 },
        }
    }

    /// Records of its group after it.
    pub(super) fn left(&self) -> usize {
        self.left as usize
    }

    /// The column that it is of.
    pub(super) fn column(&self) -> ColumnRef {
        ColumnRef { family: self.family, qualifier: self.qualifier }
    }

    /// The group that it is in.
    pub(super) fn group(&self) -> usize {
        self.group
    }

    /// Where its value is, if the block is memory number 0.
    #[inline]
    pub(super) fn value_place(&self) -> Option<Place> {
        Place::new(0, self.value_at, self.value_len)
    }
}

impl DataBlock {
    /// Parses a block.
    pub(super) fn parse(data: Bytes) -> Parsed<Self> {
        let mut input = Reader::new(&data);
        if input.u8()? != LAYOUT {
            return Err(Malformed::whole("unknown layout of a data block"));
        }
        let width = usize::from(input.u8()?);
        if (width != 2 && width != 4) || input.fixed_u16()? != 0 {
            return Err(Malformed::whole("bad header of a data block"));
        }
        let groups = input.fixed_u32()? as usize;
        let qualifiers = input.fixed_u32()? as usize;
        let qualifier_bytes = input.fixed_u32()? as usize;
        let values_at = input.fixed_u32()? as usize;
        let records = input.fixed_u32()?;
        let base_timestamp = input.fixed_u64()? as i64;
        let base_seq = input.fixed_u64()?;
        let qualifiers_at = HEADER_LEN as u64 + (groups as u64 + qualifiers as u64) * width as u64;
        let groups_at = qualifiers_at + qualifier_bytes as u64;
        if groups == 0 || groups_at > values_at as u64 || values_at > data.len() {
            return Err(Malformed::whole("the parts of a data block do not fit into it"));
        }
        let mut block = Self {
            width,
            groups,
            qualifiers,
            records,
            qualifiers_at: qualifiers_at as usize,
            groups_at: groups_at as usize,
            values_at,
            base_timestamp,
            base_seq,
            first_row_at: 0,
            first_row_len: 0,
            data,
        };
        let mut input = block.group_input(0)?;
        let row = block.row_ref(&mut input)?;
        if row.shared != 0 {
            return Err(Malformed::whole("the first row of a block shares bytes with nothing"));
        }
        block.first_row_at = row.tail_at;
        block.first_row_len = row.tail_len;
        Ok(block)
    }

    /// Records in the block.
    pub(super) fn records(&self) -> u32 {
        self.records
    }

    /// Bytes in memory.
    pub(super) fn bytes(&self) -> usize {
        self.data.len()
    }

    #[inline]
    fn table(&self, index: usize) -> Parsed<usize> {
        let mut input = Reader::at(&self.data, HEADER_LEN + index * self.width);
        if self.width == 2 {
            input.fixed_u16().map(usize::from)
        } else {
            input.fixed_u32().map(|v| v as usize)
        }
    }

    /// Everything before the values, from the start of group `index`.
    #[inline]
    fn group_input(&self, index: usize) -> Parsed<Reader<'_>> {
        let start = self.groups_at + self.table(index)?;
        Ok(Reader::at(self.data.get(..self.values_at).unwrap_or_default(), start))
    }

    #[inline]
    fn row_ref(&self, input: &mut Reader<'_>) -> Parsed<RowRef> {
        let shared = input.usize()?;
        let tail_len = input.usize()?;
        let tail_at = input.position();
        input.take(tail_len)?;
        if shared > self.first_row_len {
            return Err(Malformed::whole("a row shares more than the first row has"));
        }
        Ok(RowRef { shared, tail_at, tail_len })
    }

    /// The row of group `index`.
    #[inline]
    fn group_row(&self, index: usize) -> Parsed<RowRef> {
        self.row_ref(&mut self.group_input(index)?)
    }

    #[inline]
    fn range(&self, at: usize, len: usize) -> &[u8] {
        self.data.get(at..at + len).unwrap_or_default()
    }

    /// The first record of the block.
    pub(super) fn first(&self) -> Parsed<Record> {
        self.first_of_group(0)
    }

    pub(super) fn first_of_group(&self, group: usize) -> Parsed<Record> {
        let mut first = Record::before_all();
        self.go_to_group(group, &mut first)?;
        Ok(first)
    }

    /// Makes `record` the first of a group.
    #[inline]
    pub(super) fn go_to_group(&self, group: usize, record: &mut Record) -> Parsed<()> {
        let mut input = self.group_input(group)?;
        let row = self.row_ref(&mut input)?;
        self.first_behind(group, row, input, record)
    }

    /// Makes `next` the first record of the row after that of `record`, whichever of its row that is. False, and `next` is as
    /// it was, where the block ends with the row.
    #[inline]
    pub(super) fn first_of_next_row(&self, record: &Record, next: &mut Record) -> Parsed<bool> {
        for group in record.group + 1..self.groups {
            let mut input = self.group_input(group)?;
            let row = self.row_ref(&mut input)?;
            if !self.are_one_row(row, record.row) {
                self.first_behind(group, row, input, next)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Makes `record` the first of a group, of which `input` has read the row.
    #[inline]
    fn first_behind(
        &self,
        group: usize,
        row: RowRef,
        mut input: Reader<'_>,
        record: &mut Record,
    ) -> Parsed<()> {
        record.left = input.u64()?;
        record.value_at = self.values_at.saturating_add(input.usize()?);
        record.value_len = 0;
        record.next_at = input.position();
        record.timestamp = self.base_timestamp;
        record.seq = self.base_seq;
        record.group = group;
        record.row = row;
        self.decode(record, true)?;
        record.fresh = Fresh::Row;
        Ok(())
    }

    /// The record after `record`; `None` at the end of the block.
    #[inline]
    pub(super) fn after(&self, record: &Record) -> Parsed<Option<Record>> {
        if record.left > 0 {
            let mut next = *record;
            self.within_group(&mut next)?;
            return Ok(Some(next));
        }
        if record.group + 1 >= self.groups {
            return Ok(None);
        }
        let mut next = self.first_of_group(record.group + 1)?;
        if self.are_one_row(next.row, record.row) {
            next.fresh = Fresh::Column;
        }
        Ok(Some(next))
    }

    /// Goes on from a record, or from what comes before the first of its group, to the record that begins at its `next_at`.
    ///
    /// In place: a record is a hundred bytes, and to hand it from one to the next costs as much as to decode it.
    #[inline]
    fn decode(&self, record: &mut Record, first: bool) -> Parsed<()> {
        let left = record.left.checked_sub(1).ok_or(Malformed::whole("a group without records"))?;
        let mut input =
            Reader::at(self.data.get(..self.values_at).unwrap_or_default(), record.next_at);
        let flags = input.u8()?;
        let kind =
            Kind::from_u8(flags & KIND_MASK).ok_or(Malformed::whole("a record of no kind"))?;
        let continues = flags & (FLAG_SAME_COLUMN | FLAG_SAME_FAMILY) != 0;
        if flags & FLAG_RESERVED != 0 || (first && continues) {
            return Err(Malformed::whole("bad flags of a record"));
        }
        record.fresh = Fresh::Version;
        if flags & FLAG_SAME_COLUMN == 0 {
            record.fresh = Fresh::Column;
            if flags & FLAG_SAME_FAMILY == 0 {
                record.family = FamilyId(input.u32()?);
            }
            record.qualifier = input.usize()?;
            if record.qualifier > self.qualifiers {
                return Err(Malformed::whole("a record names a qualifier that is not there"));
            }
        }
        record.timestamp = if flags & FLAG_TIMESTAMP_MAX != 0 {
            TIMESTAMP_MAX
        } else {
            record.timestamp.wrapping_add(input.i64()?)
        };
        record.seq = record.seq.wrapping_add(input.i64()? as u64);
        record.origin = if flags & FLAG_ORIGIN != 0 { input.fixed_u16()? } else { 0 };
        let value_len = input.usize()?;
        // Saturating, so that a made-up length ends outside the block instead of wrapping around.
        let value_at = record.value_at.saturating_add(record.value_len);
        if value_at.saturating_add(value_len) > self.data.len() {
            return Err(Malformed::whole("a value reaches past the end of its block"));
        }
        (record.value_at, record.value_len) = (value_at, value_len);
        record.kind = kind;
        record.left = left;
        record.next_at = input.position();
        Ok(())
    }

    /// The value of a record.
    pub(super) fn value(&self, record: &Record) -> &[u8] {
        self.range(record.value_at, record.value_len)
    }

    /// The same, as a part of the block's memory.
    pub(super) fn value_bytes(&self, record: &Record) -> Bytes {
        slice(&self.data, record.value_at, record.value_len).unwrap_or_default()
    }

    /// The block's memory.
    pub(super) fn memory(&self) -> &Bytes {
        &self.data
    }

    /// Start and length of dictionary entry `index`.
    fn qualifier_range(&self, index: usize) -> Parsed<(usize, usize)> {
        let end = self.table(self.groups + index)?;
        let start = match index.checked_sub(1) {
            Some(before) => self.table(self.groups + before)?,
            None => 0,
        };
        let len =
            end.checked_sub(start).ok_or(Malformed::whole("the qualifiers are out of order"))?;
        if self.qualifiers_at + end > self.groups_at {
            return Err(Malformed::whole("a qualifier reaches past the dictionary"));
        }
        Ok((self.qualifiers_at + start, len))
    }

    /// The qualifier of this number: 0 none, else 1 + place in the dictionary.
    fn qualifier(&self, number: usize) -> Parsed<Option<&[u8]>> {
        let Some(index) = number.checked_sub(1) else { return Ok(None) };
        let (at, len) = self.qualifier_range(index)?;
        Ok(Some(self.range(at, len)))
    }

    /// Goes on to the next record of its group, of which `record` must not be the last.
    #[inline]
    pub(super) fn within_group(&self, record: &mut Record) -> Parsed<()> {
        self.decode(record, false)
    }

    /// What searches and walks look at: all but the values.
    #[inline]
    pub(super) fn searched(&self) -> &[u8] {
        self.data.get(..self.values_at).unwrap_or_default()
    }

    /// Groups in the block.
    pub(super) fn groups(&self) -> usize {
        self.groups
    }

    /// Whether two groups are of one row.
    pub(super) fn same_row(&self, a: usize, b: usize) -> Parsed<bool> {
        Ok(self.are_one_row(self.group_row(a)?, self.group_row(b)?))
    }

    /// Whether a group is of the row of `record`.
    #[inline]
    pub(super) fn is_of_row(&self, group: usize, record: &Record) -> Parsed<bool> {
        Ok(self.are_one_row(self.group_row(group)?, record.row))
    }

    /// Whether two references are to one row. They may differ: the block's first group shares nothing with the
    /// first row, being it, where later groups of that row share all of it.
    fn are_one_row(&self, a: RowRef, b: RowRef) -> bool {
        let (less, more) = if a.shared <= b.shared { (a, b) } else { (b, a) };
        let gap = more.shared - less.shared;
        let (less_tail, more_tail) =
            (self.range(less.tail_at, less.tail_len), self.range(more.tail_at, more.tail_len));
        match less_tail.split_at_checked(gap) {
            None => false,
            Some((start, rest)) => {
                rest == more_tail && start == self.range(self.first_row_at + less.shared, gap)
            }
        }
    }

    /// Whether two columns are one.
    pub(super) fn same_column(&self, a: ColumnRef, b: ColumnRef) -> Parsed<bool> {
        // The dictionary may hold a qualifier twice.
        Ok(a.family == b.family
            && (a.qualifier == b.qualifier
                || self.qualifier(a.qualifier)? == self.qualifier(b.qualifier)?))
    }

    /// The qualifier of a record, empty without one; `None` where it is malformed.
    #[inline]
    pub(super) fn qualifier_of(&self, record: &Record) -> Option<&[u8]> {
        self.qualifier(record.qualifier).ok().map(Option::unwrap_or_default)
    }

    /// The same, as a part of the block's memory; empty also where it is malformed.
    #[inline]
    pub(super) fn qualifier_bytes(&self, record: &Record) -> Bytes {
        let Some(index) = record.qualifier.checked_sub(1) else { return Bytes::new() };
        let range = self.qualifier_range(index);
        range.and_then(|(at, len)| slice(&self.data, at, len)).unwrap_or_default()
    }

    /// Where that is, if the block is memory number 0; `None` where it is malformed.
    #[inline]
    pub(super) fn qualifier_place(&self, record: &Record) -> Option<Place> {
        let Some(index) = record.qualifier.checked_sub(1) else { return Some(Place::default()) };
        self.qualifier_range(index).ok().and_then(|(at, len)| Place::new(0, at, len))
    }

    /// Appends the record's row prefix.
    pub(super) fn push_row(&self, record: &Record, key: &mut Vec<u8>) {
        key.extend_from_slice(self.range(self.first_row_at, record.row.shared));
        key.extend_from_slice(self.range(record.row.tail_at, record.row.tail_len));
        key.extend_from_slice(&ROW_END);
    }

    /// Appends family and column part, for a key that ends with its row prefix.
    pub(super) fn push_column(&self, record: &Record, key: &mut Vec<u8>) -> Parsed<()> {
        encode_family(record.family, key);
        encode_qualifier(self.qualifier(record.qualifier)?, key);
        Ok(())
    }

    /// The first record whose key is not less than `target`; `None` where all are less.
    pub(super) fn seek(&self, target: &[u8]) -> Parsed<Option<Record>> {
        let search = RowSearch::new(self, target);
        // The first group whose first key is greater than the target. Rows decide almost always; a record is
        // decoded only where the row is the target's and the target goes on behind it.
        let (mut low, mut high) = (0, self.groups);
        while low < high {
            let middle = low + (high - low) / 2;
            let greater = match self.compare_row(self.group_row(middle)?, &search) {
                RowOrder::Less => false,
                RowOrder::Greater | RowOrder::Same([]) => true,
                RowOrder::Same(rest) => {
                    let record = self.first_of_group(middle)?;
                    self.compare_column(&record, rest)? == Ordering::Greater
                }
            };
            if greater {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        let Some(group) = low.checked_sub(1) else { return self.first().map(Some) };
        match self.compare_row(self.group_row(group)?, &search) {
            // The whole group lies before the target, which lies between it and the next.
            RowOrder::Less => {}
            RowOrder::Greater => return self.first_of_group(group).map(Some),
            RowOrder::Same(rest) => {
                let mut record = self.first_of_group(group)?;
                loop {
                    if self.compare_column(&record, rest)? != Ordering::Less {
                        record.fresh = Fresh::Row;
                        return Ok(Some(record));
                    }
                    if record.left == 0 {
                        break;
                    }
                    self.within_group(&mut record)?;
                }
            }
        }
        if low < self.groups { self.first_of_group(low).map(Some) } else { Ok(None) }
    }

    /// The first record that the block has of exactly this row, given by its row prefix; `None` where the
    /// block has none. The row may have begun in an earlier block.
    pub(super) fn find_row(&self, row_prefix: &[u8]) -> Parsed<Option<Record>> {
        let search = RowSearch::new(self, row_prefix);
        let (mut low, mut high) = (0, self.groups);
        let mut same = false;
        while low < high {
            let middle = low + (high - low) / 2;
            match self.compare_row(self.group_row(middle)?, &search) {
                RowOrder::Less => low = middle + 1,
                order => {
                    // Of several groups of the row the first is wanted, so the search goes on to the left;
                    // what it ends on is the last that was found not to be less.
                    same = matches!(order, RowOrder::Same([]));
                    high = middle;
                }
            }
        }
        if same { self.first_of_group(low).map(Some) } else { Ok(None) }
    }

    /// Appends the row prefix of the last row that is less than `bound`, itself a row prefix, or of the
    /// last row for an empty bound. False where there is none.
    pub(super) fn last_row_before(&self, bound: &[u8], out: &mut Vec<u8>) -> Parsed<bool> {
        let (mut low, mut high) = (0, self.groups);
        if bound.is_empty() {
            low = high;
        }
        let search = RowSearch::new(self, bound);
        while low < high {
            let middle = low + (high - low) / 2;
            let row = self.group_row(middle)?;
            if matches!(self.compare_row(row, &search), RowOrder::Less) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let Some(group) = low.checked_sub(1) else { return Ok(false) };
        self.push_row(&self.first_of_group(group)?, out);
        Ok(true)
    }

    /// Compares a row prefix with the start of the target, without building it.
    #[inline]
    fn compare_row<'t>(&self, row: RowRef, search: &RowSearch<'t>) -> RowOrder<'t> {
        if row.shared > search.agree {
            // It differs from the target where the first row does.
            return if search.first_is_less { RowOrder::Less } else { RowOrder::Greater };
        }
        let tail = self.range(row.tail_at, row.tail_len);
        let rest = search.target.get(row.shared..).unwrap_or_default();
        let Some(rest) = rest.strip_prefix(tail) else {
            // Where the target is the beginning of the row, the slice order says Greater, as it should.
            return if tail < rest { RowOrder::Less } else { RowOrder::Greater };
        };
        if let Some(rest) = rest.strip_prefix(&ROW_END) {
            return RowOrder::Same(rest);
        }
        if ROW_END.as_slice() < rest { RowOrder::Less } else { RowOrder::Greater }
    }

    /// Compares what follows the row prefix with the rest of a target.
    fn compare_column(&self, record: &Record, rest: &[u8]) -> Parsed<Ordering> {
        let mut pieces = Pieces { rest };
        if let Some(order) = pieces.piece(&record.family.0.to_be_bytes()) {
            return Ok(order);
        }
        let order = match self.qualifier(record.qualifier)? {
            None => pieces.piece(&[0x00, 0x00]),
            Some(raw) => pieces.escaped(raw).or_else(|| pieces.piece(&[0x00, 0x01])),
        };
        if let Some(order) = order {
            return Ok(order);
        }
        if pieces.rest.is_empty() {
            // The usual target, a prefix: no suffix needs to be made to see that the key is greater.
            return Ok(Ordering::Greater);
        }
        let mut suffix = Vec::with_capacity(crate::cell::SUFFIX_LEN);
        encode_suffix(record.timestamp, record.seq, record.origin, record.kind, &mut suffix);
        Ok(pieces.piece(&suffix).unwrap_or(if pieces.rest.is_empty() {
            Ordering::Equal
        } else {
            Ordering::Less
        }))
    }
}

/// A target prepared for comparing with many rows of one block.
struct RowSearch<'t> {
    target: &'t [u8],
    /// Leading bytes that the target shares with the block's first row.
    agree: usize,
    /// How the two differ behind them. A target that ends there is the lesser one.
    first_is_less: bool,
}

impl<'t> RowSearch<'t> {
    fn new(block: &DataBlock, target: &'t [u8]) -> Self {
        let first = block.range(block.first_row_at, block.first_row_len);
        let agree = crate::codec::common_prefix(first, target);
        let first_is_less = match (first.get(agree), target.get(agree)) {
            (Some(first), Some(target)) => first < target,
            _ => false,
        };
        Self { target, agree, first_is_less }
    }
}

/// How a record's row compares with a target; `Same` carries the target after the row prefix.
enum RowOrder<'t> {
    Less,
    Same(&'t [u8]),
    Greater,
}

/// Compares a key that comes in pieces with a target, front to back.
struct Pieces<'t> {
    rest: &'t [u8],
}

impl Pieces<'_> {
    /// `None` while the target goes on with the piece; else how key and target compare.
    fn piece(&mut self, piece: &[u8]) -> Option<Ordering> {
        if let Some(rest) = self.rest.strip_prefix(piece) {
            self.rest = rest;
            return None;
        }
        // Where the target is the beginning of the piece, the slice order says Greater, as it should.
        Some(piece.cmp(self.rest))
    }

    /// The same for a raw string that stands escaped in the key.
    fn escaped(&mut self, raw: &[u8]) -> Option<Ordering> {
        for (i, part) in raw.split(|b| *b == 0).enumerate() {
            if i > 0
                && let Some(order) = self.piece(&[0x00, 0xFF])
            {
                return Some(order);
            }
            if let Some(order) = self.piece(part) {
                return Some(order);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests;
