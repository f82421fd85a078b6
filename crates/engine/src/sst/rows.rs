//! Rows that lie whole in one block, handed over one by one without building a key for each record: what most
//! of a scan meets once a tablet has settled, and what a point read finds.

use std::borrow::Cow;
use std::cmp::Ordering;

use bytes::Bytes;

use super::block::Block;
use super::cursor::{Held, Pending, SstCursor};
use super::data::{DataBlock, Fresh, Record};
use super::reader::SstReader;
use crate::cell::{FamilyId, Kind, Place, Seq, Timestamp};
use crate::codec::{Malformed, Parsed};
use crate::cursor::Step;
use crate::error::Result;
use crate::memtable::MemtableRow;
use crate::read::{Pins, RecordInRow};

/// What [`RowInBlock::records_hint`] says at most, whatever a block claims: a group's worth.
const RECORDS_HINT_MAX: usize = 32;

/// Takes rows from a cursor.
pub trait RowSink {
    /// Takes the row with this prefix. False: it does not, for the row takes merging; nothing of it was kept.
    fn take(&mut self, row_prefix: &[u8], row: &RowInBlock<'_>) -> Result<bool>;
    /// The same of a row in a memtable, which is walked over.
    fn take_in_memory(&mut self, row_prefix: &[u8], row: &mut MemtableRow<'_>) -> Result<bool>;
    /// How many rows it wants still, before it has enough for now.
    fn room(&self) -> usize;
}

/// A row that lies whole in one block.
#[derive(Debug)]
pub struct RowInBlock<'a> {
    reader: &'a SstReader,
    offset: u64,
    data: &'a DataBlock,
    /// The block's memory; see [`Block::lease`].
    memory: &'a Bytes,
    first: &'a Record,
    /// The first group of the next row.
    end_group: usize,
}

/// One record of a [`RowInBlock`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowRecord<'a> {
    data: &'a DataBlock,
    record: &'a Record,
    /// Of the same column as the record before.
    same_column: bool,
}

impl<'a> RowInBlock<'a> {
    /// The row that begins with record `first` of the block at `offset` of the file. `memory` is a lease of the
    /// block's.
    pub(super) fn new(
        reader: &'a SstReader,
        offset: u64,
        block: &'a Block,
        memory: &'a Bytes,
        first: &'a Record,
    ) -> Result<Self> {
        let damaged = |m: Malformed| reader.damaged(offset, m.what);
        let data = block.data().map_err(damaged)?;
        let end_group = data.row_end(first.group()).map_err(damaged)?;
        Ok(Self { reader, offset, data, memory, first, end_group })
    }

    /// The block's memory: what the places of the row's records are in.
    pub(crate) fn memory(&self) -> &Bytes {
        self.memory
    }

    /// Records of the row, as far as they are known without looking: at least one.
    pub(crate) fn records_hint(&self) -> usize {
        (self.first.left() + 1).min(RECORDS_HINT_MAX)
    }

    /// Records of the row, about: whole groups count as full.
    pub(crate) fn records_about(&self) -> usize {
        let groups_behind = self.end_group.saturating_sub(self.first.group() + 1);
        self.records_hint() + groups_behind * RECORDS_HINT_MAX
    }

    /// Shows the records of the row in order until `each` says that it has seen enough.
    pub(crate) fn walk(&self, mut each: impl FnMut(&RowRecord<'_>) -> bool) -> Result<()> {
        let damaged = |m: Malformed| self.reader.damaged(self.offset, m.what);
        let data = self.data;
        let is_last = |record: &Record| record.left() == 0 && record.group() + 1 >= self.end_group;
        let first = RowRecord { data, record: self.first, same_column: false };
        if !each(&first) || is_last(self.first) {
            return Ok(());
        }
        let mut record = *self.first;
        loop {
            let before = record.column();
            if record.left() > 0 {
                data.within_group(&mut record).map_err(damaged)?;
            } else {
                data.go_to_group(record.group() + 1, &mut record).map_err(damaged)?;
            }
            let same_column = record.fresh == Fresh::Version
                || data.same_column(before, record.column()).map_err(damaged)?;
            let next = RowRecord { data, record: &record, same_column };
            if !each(&next) || is_last(&record) {
                return Ok(());
            }
        }
    }
}

impl RecordInRow for RowRecord<'_> {
    fn family(&self) -> FamilyId {
        self.record.family
    }

    fn kind(&self) -> Kind {
        self.record.kind
    }

    fn seq(&self) -> Seq {
        self.record.seq
    }

    fn timestamp(&self) -> Timestamp {
        self.record.timestamp
    }

    fn qualifier(&self) -> Option<Cow<'_, [u8]>> {
        self.data.qualifier_of(self.record).map(Cow::Borrowed)
    }

    fn value(&self) -> &[u8] {
        self.data.value(self.record)
    }

    fn pin_qualifier(&self, _pins: &mut Pins) -> Option<Place> {
        self.data.qualifier_place(self.record)
    }

    fn pin_value(&self, _pins: &mut Pins) -> Option<Place> {
        self.record.value_place()
    }

    fn is_of_same_column(&self) -> bool {
        self.same_column
    }
}

/// The block next to the one that a cursor holds.
struct Beside {
    top_at: usize,
    part_at: usize,
    /// Where it is in another partition.
    partition: Option<Held>,
    held: Held,
}

/// A data block that rows are taken from.
struct Source {
    held: Held,
    memory: Bytes,
    /// The block that comes after it, where it is wanted and in memory: found, and on its way into the
    /// processor's cache, before the rows of this one are taken.
    beside: Option<Beside>,
}

impl Source {
    /// The block held, of which about `rows` are to come, for a sink with room for `room`.
    fn new(
        cursor: &SstCursor,
        held: Held,
        backward: bool,
        rows: usize,
        room: usize,
    ) -> Result<Self> {
        let beside = if room > rows { cursor.beside(backward)? } else { None };
        Ok(Self { memory: held.block.lease(), held, beside })
    }
}

impl SstCursor {
    /// Hands over rows from the one under the cursor on; see
    /// [`Cursor::take_rows`](crate::cursor::Cursor::take_rows).
    pub(super) fn take_rows_forward(
        &mut self,
        before: &[u8],
        sink: &mut dyn RowSink,
    ) -> Result<Step> {
        let (Some(mut first), Some(held)) = (self.record, self.data.clone()) else {
            return Ok(Step::Ready);
        };
        // Neither is moved: the two change places.
        let mut other = first;
        let (mut first, mut next) = (&mut first, &mut other);
        let left = self.in_data(held.block.data())?.groups() - first.group();
        let mut source = Source::new(self, held, false, left, sink.room())?;
        let mut moved = false;
        loop {
            let data = self.in_data(source.held.block.data())?;
            let row = self.key.get(..self.row_len).unwrap_or_default();
            if sink.room() == 0 || (!before.is_empty() && row >= before) {
                break;
            }
            let is_followed = self.in_data(data.first_of_next_row(first, next))?;
            let end_group = if is_followed { next.group() } else { data.groups() };
            if !is_followed && self.row_goes_on(row)? {
                break;
            }
            let (reader, offset) = (self.reader.as_ref(), source.held.handle.offset);
            let memory = &source.memory;
            let here = RowInBlock { reader, offset, data, memory, first, end_group };
            if !sink.take(row, &here)? {
                break;
            }
            moved = true;
            if is_followed {
                std::mem::swap(&mut first, &mut next);
            } else {
                let Some(held) = self.step(&mut source, false)? else {
                    // Beyond the last block, or not in memory.
                    self.part_at += 1;
                    return self.start(Pending::Walk);
                };
                let data = self.in_data(held.block.data())?;
                self.in_data(data.go_to_group(0, first))?;
                let groups = data.groups();
                source = Source::new(self, held, false, groups, sink.room())?;
            }
            let data = self.in_data(source.held.block.data())?;
            self.key.clear();
            data.push_row(first, &mut self.key);
            self.row_len = self.key.len();
            if !self.end.is_empty() && self.key >= self.end {
                self.record = None;
                return Ok(Step::Ready);
            }
        }
        if moved {
            first.fresh = Fresh::Row;
            let landed = self.land(*first);
            if landed.is_err() {
                self.record = None;
            }
            landed?;
        }
        Ok(Step::Ready)
    }

    /// Shows the row under the cursor; see [`Cursor::show_row`](crate::cursor::Cursor::show_row).
    pub(super) fn show_row_here(&self, sink: &mut dyn RowSink) -> Result<bool> {
        let (Some(first), Some(held)) = (&self.record, &self.data) else { return Ok(false) };
        let data = self.in_data(held.block.data())?;
        let row = self.key.get(..self.row_len).unwrap_or_default();
        let end_group = self.in_data(data.row_end(first.group()))?;
        if end_group == data.groups() && self.row_goes_on(row)? {
            return Ok(false);
        }
        let (reader, offset) = (self.reader.as_ref(), held.handle.offset);
        let memory = &held.block.lease();
        sink.take(row, &RowInBlock { reader, offset, data, memory, first, end_group })
    }

    /// Hands over the row under the cursor and those before it; see
    /// [`Cursor::take_rows_back`](crate::cursor::Cursor::take_rows_back).
    pub(super) fn take_rows_backward(
        &mut self,
        after: &[u8],
        sink: &mut dyn RowSink,
    ) -> Result<()> {
        let (Some(mut first), Some(held)) = (self.record, self.data.clone()) else {
            return Ok(());
        };
        let mut row = self.key.get(..self.row_len).unwrap_or_default().to_vec();
        let data = self.in_data(held.block.data())?;
        let mut end_group = self.in_data(data.row_end(first.group()))?;
        if end_group == data.groups() && self.row_goes_on(&row)? {
            return Ok(());
        }
        let mut source = Source::new(self, held, true, first.group() + 1, sink.room())?;
        // The row under the cursor begins here, since the cursor was sent to its beginning. That the rows before
        // it end here shows in that: what comes behind each is the beginning of another.
        while sink.room() > 0
            && (after.is_empty() || row.as_slice() > after)
            && row.as_slice() >= self.start.as_slice()
        {
            let data = self.in_data(source.held.block.data())?;
            let (reader, offset) = (self.reader.as_ref(), source.held.handle.offset);
            let memory = &source.memory;
            let here = RowInBlock { reader, offset, data, memory, first: &first, end_group };
            if !sink.take(&row, &here)? {
                break;
            }
            end_group = first.group();
            if end_group == 0 {
                let Some(held) = self.step(&mut source, true)? else { break };
                end_group = self.in_data(held.block.data())?.groups();
                source = Source::new(self, held, true, end_group, sink.room())?;
            }
            let data = self.in_data(source.held.block.data())?;
            self.in_data(data.go_to_row_of(end_group.saturating_sub(1), &mut first))?;
            row.clear();
            data.push_row(&first, &mut row);
            if first.group() == 0 && self.row_began_before(&row)? {
                break;
            }
        }
        Ok(())
    }

    /// Moves the place to the block after `source`, or before it, and holds that, if it is in memory; else all
    /// stays as it is.
    fn step(&mut self, source: &mut Source, backward: bool) -> Result<Option<Held>> {
        let beside = match source.beside.take() {
            Some(beside) => Some(beside),
            None => self.beside(backward)?,
        };
        let Some(Beside { top_at, part_at, partition, held }) = beside else { return Ok(None) };
        (self.top_at, self.part_at) = (top_at, part_at);
        if let Some(partition) = partition {
            self.hold_partition(partition);
        }
        self.hold(held.clone());
        Ok(Some(held))
    }

    /// The block after the one at the place, or before it, if it is in memory; it counts as used.
    fn beside(&self, backward: bool) -> Result<Option<Beside>> {
        let Some(partition) = &self.partition else { return Ok(None) };
        let index = self.in_partition(partition.block.index())?;
        let at = if backward {
            self.part_at.checked_sub(1)
        } else {
            Some(self.part_at + 1).filter(|at| *at < index.len())
        };
        if let Some(at) = at {
            if let Some(slots) = partition.block.data_slots() {
                // The one after it is in the processor's cache when it is its turn.
                slots.fetch(if backward { at.wrapping_sub(1) } else { at + 1 });
            }
            return self.beside_at(self.top_at, at, partition, false);
        }
        let top_at = if backward {
            self.top_at.checked_sub(1)
        } else {
            Some(self.top_at + 1).filter(|at| *at < self.reader.top().len())
        };
        let Some(top_at) = top_at else { return Ok(None) };
        let handle = self.reader.top().handle(top_at, self.reader.blocks_end());
        let handle = self.reader.at_top(handle)?;
        let Some(block) = self.find_index(top_at, handle) else { return Ok(None) };
        let next = Held { handle, block };
        let last = next.block.index().map(|index| index.len().saturating_sub(1));
        let last = last.map_err(|m| self.reader.damaged(next.handle.offset, m.what))?;
        self.beside_at(top_at, if backward { last } else { 0 }, &next, true)
    }

    fn beside_at(
        &self,
        top_at: usize,
        part_at: usize,
        partition: &Held,
        is_other: bool,
    ) -> Result<Option<Beside>> {
        let handle =
            partition.block.index().and_then(|i| i.handle(part_at, self.reader.blocks_end()));
        let handle = handle.map_err(|m| self.reader.damaged(partition.handle.offset, m.what))?;
        let Some(block) = self.find_data(&partition.block, part_at, handle) else {
            return Ok(None);
        };
        let partition = is_other.then(|| partition.clone());
        Ok(Some(Beside { top_at, part_at, partition, held: Held { handle, block } }))
    }

    /// Whether the row, whose record is the last of the block at the place, may go on in the next.
    pub(super) fn row_goes_on(&self, row: &[u8]) -> Result<bool> {
        let Some(partition) = &self.partition else { return Ok(true) };
        // The separator lies behind all keys of the block: it begins with the row where more of it may follow.
        let index = self.in_partition(partition.block.index())?;
        let is_last_partition = self.top_at + 1 == self.reader.top().len();
        if is_last_partition && self.part_at + 1 == index.len() {
            return Ok(false);
        }
        self.in_partition(index.begins_with(self.part_at, row))
    }

    /// Whether the row, whose record is the first of the block at the place, may have begun in the one before.
    fn row_began_before(&self, row: &[u8]) -> Result<bool> {
        // The separator before the block begins with the row, and goes on, where some of it came before.
        let before = match (self.part_at.checked_sub(1), self.top_at.checked_sub(1)) {
            (Some(at), _) => {
                let Some(partition) = &self.partition else { return Ok(true) };
                self.in_partition(partition.block.index().and_then(|i| i.compare(at, row)))?
            }
            (None, Some(at)) => self.reader.at_top(self.reader.top().compare(at, row))?,
            (None, None) => return Ok(false),
        };
        Ok(before == Ordering::Greater)
    }
}

impl DataBlock {
    /// The first group after those of the row of group `group`.
    fn row_end(&self, group: usize) -> Parsed<usize> {
        let mut end = group + 1;
        while end < self.groups() && self.same_row(group, end)? {
            end += 1;
        }
        Ok(end)
    }

    /// Makes `first` the first record that the block has of the row of group `last`.
    fn go_to_row_of(&self, last: usize, first: &mut Record) -> Parsed<()> {
        self.go_to_group(last, first)?;
        while let Some(before) = first.group().checked_sub(1) {
            if !self.is_of_row(before, first)? {
                break;
            }
            self.go_to_group(before, first)?;
        }
        Ok(())
    }
}
