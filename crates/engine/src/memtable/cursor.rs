//! Ways over a memtable: a cursor over the records of a range of rows, never blocked, and a walk over one row.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;

use super::skiplist::{ListCursor, Record, RowPlace, SkipList};
use super::totals::Totals;
use crate::cell::{FamilyId, Kind, Place, RowRange, Seq, Timestamp, row_prefix};
use crate::cursor::{Cursor, Entry, Step};
use crate::error::Result;
use crate::read::{Pins, RecordInRow};
use crate::sst::{Block, BlockRequest, RowSink};

/// Bytes from which [`Cursor::value_bytes`] shares the memtable's memory instead of copying. A shared
/// value keeps the whole memtable alive for as long as a client takes to read it, so small ones, which
/// are copied in well under a microsecond, are not worth it.
pub const SHARED_VALUE_BYTES_MIN: usize = 4 << 10;

/// A cursor over the records of one memtable within a range of rows. It keeps the records alive.
#[derive(Debug, Clone)]
pub struct MemtableCursor {
    place: ListCursor,
    /// Row prefix of the first row in bounds; keys in bounds are not less.
    lower: Vec<u8>,
    /// Row prefix of the first row behind the bounds; keys in bounds are less. Empty: no end.
    upper: Vec<u8>,
    /// The row prefix that `seek_row_before` seeks, kept for its memory.
    row: Vec<u8>,
    has_cell_tombstones: bool,
    totals: Arc<Totals>,
}

impl MemtableCursor {
    pub(super) fn new(
        list: Arc<SkipList>,
        totals: Arc<Totals>,
        bounds: &RowRange,
        has_cell_tombstones: bool,
    ) -> Self {
        let upper = if bounds.end.is_empty() { Vec::new() } else { row_prefix(&bounds.end) };
        Self {
            place: ListCursor::new(list),
            lower: row_prefix(&bounds.start),
            upper,
            row: Vec::new(),
            has_cell_tombstones,
            totals,
        }
    }

    /// Leaves a record that lies behind the bounds.
    fn keep_in_bounds(&mut self) -> Step {
        let behind = |key: &[u8]| !self.upper.is_empty() && key >= self.upper.as_slice();
        if self.place.record().is_some_and(|r| behind(r.key.bytes())) {
            self.place.clear();
        }
        Step::Ready
    }
}

impl Cursor for MemtableCursor {
    fn seek(&mut self, target: &[u8]) -> Result<Step> {
        self.place.seek(target.max(&self.lower));
        Ok(self.keep_in_bounds())
    }

    fn next(&mut self) -> Result<Step> {
        self.place.advance();
        self.place.fetch_next();
        Ok(self.keep_in_bounds())
    }

    fn seek_row_before(&mut self, bound: &[u8]) -> Result<Step> {
        let bound = match (bound.is_empty(), self.upper.is_empty()) {
            (true, _) => self.upper.as_slice(),
            (false, true) => bound,
            (false, false) => bound.min(&self.upper),
        };
        self.place.seek_before(bound);
        match self.place.record() {
            Some(last) if last.key.bytes() >= self.lower.as_slice() => {
                self.row.clear();
                self.row.extend_from_slice(last.key.row_prefix());
                // Finds a record of that row, if not an even earlier one that was just inserted.
                self.place.seek(&self.row);
            }
            _ => self.place.clear(),
        }
        Ok(Step::Ready)
    }

    fn take_rows(&mut self, before: &[u8], sink: &mut dyn RowSink) -> Result<Step> {
        let has_cell_tombstones = self.has_cell_tombstones;
        while sink.room() > 0 {
            let is_passed = self.place.pass_row(|place| {
                let prefix = place.record().key.row_prefix();
                if !before.is_empty() && prefix >= before {
                    return Ok(None);
                }
                let mut row = MemtableRow::new(place, has_cell_tombstones);
                let is_taken = sink.take_in_memory(prefix, &mut row)?;
                Ok(is_taken.then_some(row.place))
            })?;
            if !is_passed {
                break;
            }
            let _ = self.keep_in_bounds();
        }
        Ok(Step::Ready)
    }

    fn show_row(&self, sink: &mut dyn RowSink) -> Result<bool> {
        let Some(place) = self.place.row() else { return Ok(false) };
        let prefix = place.record().key.row_prefix();
        sink.take_in_memory(prefix, &mut MemtableRow::new(place, self.has_cell_tombstones))
    }

    fn entry(&self) -> Option<Entry<'_>> {
        self.place.record().map(|r| Entry { key: r.key, value: r.value })
    }

    fn value_bytes(&self) -> Bytes {
        let Some(Record { value, .. }) = self.place.record() else { return Bytes::new() };
        if value.len() < SHARED_VALUE_BYTES_MIN {
            return Bytes::copy_from_slice(value);
        }
        self.place.shared_value().map_or_else(Bytes::new, Bytes::from_owner)
    }

    fn totals(&self) -> Option<&Arc<Totals>> {
        Some(&self.totals)
    }

    fn wanted(&self, _out: &mut Vec<BlockRequest>) {}

    fn supply(&mut self, _request: &BlockRequest, _block: &Arc<Block>) {}

    fn resume(&mut self) -> Result<Step> {
        Ok(Step::Ready)
    }
}

/// A row of a memtable, to be walked over on the spot: the record that it stands on, first that of the row.
#[derive(Debug)]
pub struct MemtableRow<'a> {
    place: RowPlace<'a>,
    record: Record<'a>,
    same_column: bool,
    /// The memtable has tombstones of cells, which may lie anywhere among the records of a column.
    has_cell_tombstones: bool,
}

impl<'a> MemtableRow<'a> {
    pub(super) fn new(place: RowPlace<'a>, has_cell_tombstones: bool) -> Self {
        Self { record: place.record(), place, same_column: false, has_cell_tombstones }
    }

    /// The sequence of the newest tombstone of the row that a snapshot at `seq` sees, where there is one. The row must not have been moved.
    pub(crate) fn tombstone(mut self, seq: Seq) -> Option<Seq> {
        loop {
            if self.record.key.kind() != Kind::RowTombstone {
                return None;
            }
            if self.record.key.seq() <= seq {
                return Some(self.record.key.seq());
            }
            if !self.advance() {
                return None;
            }
        }
    }

    /// Moves to the next record; `false` at the end of the row.
    pub(crate) fn advance(&mut self) -> bool {
        let column = self.record.key.column_prefix();
        let goes_on = self.place.advance();
        self.record = self.place.record();
        self.same_column = self.record.key.column_prefix() == column;
        goes_on
    }

    /// Moves to the first record of the next cell, or to a cells' tombstone before it; `false` at the end of the row.
    pub(crate) fn advance_cell(&mut self) -> bool {
        if self.has_cell_tombstones {
            return self.advance();
        }
        let column = self.record.key.column_prefix();
        let goes_on = self.advance_past(self.record.key.cell_prefix().len());
        self.same_column = self.record.key.column_prefix() == column;
        goes_on
    }

    /// Moves to the first record of the next column; `false` at the end of the row.
    pub(crate) fn advance_column(&mut self) -> bool {
        self.advance_past(self.record.key.column_prefix().len())
    }

    /// Moves to the first record of the next family; `false` at the end of the row.
    pub(crate) fn advance_family(&mut self) -> bool {
        self.advance_past(self.record.key.row_len() + size_of::<FamilyId>())
    }

    fn advance_past(&mut self, prefix_len: usize) -> bool {
        let goes_on = self.place.advance_past(prefix_len);
        self.record = self.place.record();
        self.same_column = false;
        goes_on
    }
}

impl RecordInRow for MemtableRow<'_> {
    fn family(&self) -> FamilyId {
        self.record.key.family()
    }

    fn kind(&self) -> Kind {
        self.record.key.kind()
    }

    fn seq(&self) -> Seq {
        self.record.key.seq()
    }

    fn timestamp(&self) -> Timestamp {
        self.record.key.timestamp()
    }

    fn qualifier(&self) -> Option<Cow<'_, [u8]>> {
        Some(self.record.key.qualifier())
    }

    fn value(&self) -> &[u8] {
        self.record.value
    }

    /// Copied.
    fn pin_qualifier(&self, pins: &mut Pins) -> Option<Place> {
        pins.copy(&self.record.key.qualifier())
    }

    /// Copied, or of larger ones a share.
    fn pin_value(&self, pins: &mut Pins) -> Option<Place> {
        let value = self.record.value;
        if value.len() < SHARED_VALUE_BYTES_MIN {
            return pins.copy(value);
        }
        pins.share(Bytes::from_owner(self.place.shared_value()))
    }

    fn is_of_same_column(&self) -> bool {
        self.same_column
    }
}
