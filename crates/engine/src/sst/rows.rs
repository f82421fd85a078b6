//! Rows that lie whole in one block, handed over one by one without building a key for each record: what most
//! of a scan meets once a tablet has settled, and what a point read finds.

use std::cmp::Ordering;

use bytes::Bytes;

use super::block::Block;
use super::cursor::{Pending, SstCursor};
use super::data::{DataBlock, Fresh, Record};
use super::reader::SstReader;
use crate::cell::{FamilyId, Kind, Seq, Timestamp};
use crate::codec::{Malformed, Parsed};
use crate::cursor::Step;
use crate::error::Result;

/// Takes rows from a cursor.
pub trait RowSink {
    /// Takes the row with this prefix. False: it does not, for the row takes merging; nothing of it was kept.
    fn take(&mut self, row_prefix: &[u8], row: &RowInBlock<'_>) -> Result<bool>;
    /// Whether it has enough for now.
    fn is_full(&self) -> bool;
}

/// A row that lies whole in one block.
#[derive(Debug)]
pub struct RowInBlock<'a> {
    reader: &'a SstReader,
    offset: u64,
    data: &'a DataBlock,
    first: &'a Record,
}

/// One record of a [`RowInBlock`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowRecord<'a> {
    data: &'a DataBlock,
    record: &'a Record,
    /// Of the same column as the record before.
    pub(crate) same_column: bool,
}

impl<'a> RowInBlock<'a> {
    /// The row that begins with record `first` of the block at `offset` of the file.
    pub(super) fn new(
        reader: &'a SstReader,
        offset: u64,
        block: &'a Block,
        first: &'a Record,
    ) -> Result<Self> {
        let data = block.data().map_err(|m| reader.damaged(offset, m.what))?;
        Ok(Self { reader, offset, data, first })
    }

    /// Shows the records of the row in order until `each` says that it has seen enough.
    pub(crate) fn walk(&self, mut each: impl FnMut(RowRecord<'_>) -> bool) -> Result<()> {
        let damaged = |m: Malformed| self.reader.damaged(self.offset, m.what);
        let data = self.data;
        let mut record = *self.first;
        let mut same_column = false;
        while each(RowRecord { data, record: &record, same_column }) {
            let Some(next) = data.after(&record).map_err(damaged)? else { break };
            if next.fresh == Fresh::Row {
                break;
            }
            same_column = next.fresh == Fresh::Version
                || data.same_column(&record, &next).map_err(damaged)?;
            record = next;
        }
        Ok(())
    }
}

impl RowRecord<'_> {
    pub(crate) fn family(&self) -> FamilyId {
        self.record.family
    }

    pub(crate) fn kind(&self) -> Kind {
        self.record.kind
    }

    pub(crate) fn seq(&self) -> Seq {
        self.record.seq
    }

    pub(crate) fn timestamp(&self) -> Timestamp {
        self.record.timestamp
    }

    /// Shares the block's memory.
    pub(crate) fn qualifier(&self) -> Bytes {
        self.data.qualifier_bytes(self.record)
    }

    /// Shares the block's memory.
    pub(crate) fn value(&self) -> Bytes {
        self.data.value_bytes(self.record)
    }
}

impl SstCursor {
    /// Hands over the rows of the block from the one under the cursor on; see
    /// [`Cursor::take_rows`](crate::cursor::Cursor::take_rows).
    pub(super) fn take_rows_of_block(
        &mut self,
        before: &[u8],
        sink: &mut dyn RowSink,
    ) -> Result<Step> {
        let (Some(mut first), Some(held)) = (self.record, self.data.clone()) else {
            return Ok(Step::Ready);
        };
        let data = self.in_data(held.block.data())?;
        let mut moved = false;
        loop {
            let row = self.key.get(..self.row_len).unwrap_or_default();
            if sink.is_full() || (!before.is_empty() && row >= before) {
                break;
            }
            let next = self.in_data(data.row_after(&first))?;
            if next.is_none() && self.row_goes_on(row)? {
                break;
            }
            let here = RowInBlock::new(&self.reader, held.handle.offset, &held.block, &first)?;
            if !sink.take(row, &here)? {
                break;
            }
            let Some(next) = next else {
                self.part_at += 1;
                return self.start(Pending::Walk);
            };
            moved = true;
            first = next;
            self.key.clear();
            data.push_row(&first, &mut self.key);
            self.row_len = self.key.len();
            if !self.end.is_empty() && self.key >= self.end {
                self.record = None;
                return Ok(Step::Ready);
            }
        }
        if moved {
            first.fresh = Fresh::Row;
            let landed = self.land(first);
            if landed.is_err() {
                self.record = None;
            }
            landed?;
        }
        Ok(Step::Ready)
    }

    /// Hands over the row under the cursor and those before it in the block; see
    /// [`Cursor::take_rows_back`](crate::cursor::Cursor::take_rows_back).
    pub(super) fn take_rows_of_block_back(
        &mut self,
        after: &[u8],
        sink: &mut dyn RowSink,
    ) -> Result<()> {
        let (Some(mut first), Some(held)) = (self.record, self.data.clone()) else {
            return Ok(());
        };
        let data = self.in_data(held.block.data())?;
        let mut row = self.key.get(..self.row_len).unwrap_or_default().to_vec();
        let ends_here =
            self.in_data(data.row_after(&first))?.is_some() || !self.row_goes_on(&row)?;
        if !ends_here {
            return Ok(());
        }
        // The row under the cursor begins here, since the cursor was sent to its beginning.
        let mut begins_here = true;
        while begins_here
            && !sink.is_full()
            && (after.is_empty() || row.as_slice() > after)
            && row >= self.start
        {
            let here = RowInBlock::new(&self.reader, held.handle.offset, &held.block, &first)?;
            if !sink.take(&row, &here)? {
                break;
            }
            let Some(previous) = self.in_data(data.row_before(&first))? else { break };
            first = previous;
            row.clear();
            data.push_row(&first, &mut row);
            begins_here = !data.is_first(&first) || !self.row_began_before(&row)?;
        }
        Ok(())
    }

    /// Whether the row, whose record is the last of the block at the place, may go on in the next.
    fn row_goes_on(&self, row: &[u8]) -> Result<bool> {
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
    /// The first record of the row after that of `record`; `None` where the block has no further row.
    fn row_after(&self, record: &Record) -> Parsed<Option<Record>> {
        let mut group = record.group() + 1;
        while group < self.groups() {
            if !self.same_row(record.group(), group)? {
                return self.first_of_group(group).map(Some);
            }
            group += 1;
        }
        Ok(None)
    }

    /// The first record that the block has of the row before that of `record`, which is the first of its own.
    fn row_before(&self, record: &Record) -> Parsed<Option<Record>> {
        let Some(last) = record.group().checked_sub(1) else { return Ok(None) };
        let mut group = last;
        while let Some(before) = group.checked_sub(1) {
            if !self.same_row(before, last)? {
                break;
            }
            group = before;
        }
        self.first_of_group(group).map(Some)
    }

    /// Whether the block begins with this record.
    fn is_first(&self, record: &Record) -> bool {
        record.group() == 0
    }
}
