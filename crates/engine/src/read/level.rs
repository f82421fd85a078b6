//! A level below L0 as one cursor: its SSTs hold disjoint rows in order, so only the one that the cursor
//! stands in is open, and a scan of a level of a thousand files costs a merge one child, not a thousand.

use std::sync::Arc;

use bytes::Bytes;

use crate::cell::{RowRange, row_prefix};
use crate::cursor::{Cursor, Entry, Step};
use crate::error::Result;
use crate::sst::{Block, BlockRequest, CursorOptions, RowSink, SstCursor, SstReader};

/// One file of the level.
pub(crate) struct LevelFile {
    pub(crate) reader: Arc<SstReader>,
    /// The visible rows that the read wants.
    pub(crate) bounds: RowRange,
    first: Vec<u8>,
    last: Vec<u8>,
    /// Every key is less; empty for no end. A file that shows rows on both sides of dropped ones stands
    /// in its level twice: its last row is not the last that this reference shows.
    end: Vec<u8>,
}

impl LevelFile {
    /// A file with rows from `first_row` to `last_row`, of which those in `bounds` are read.
    pub(crate) fn new(
        reader: Arc<SstReader>,
        bounds: RowRange,
        first_row: &[u8],
        last_row: &[u8],
    ) -> Self {
        let first = row_prefix(first_row.max(bounds.start.as_ref()));
        let end = if bounds.end.is_empty() { Vec::new() } else { row_prefix(&bounds.end) };
        Self { reader, bounds, first, last: row_prefix(last_row), end }
    }

    /// Whether every key that the file shows is less than `target`.
    fn ends_before(&self, target: &[u8]) -> bool {
        let shown = !self.end.is_empty() && self.end.as_slice() <= target;
        shown || (self.last.as_slice() < target && !target.starts_with(&self.last))
    }
}

enum Direction {
    Forward,
    Backward(Vec<u8>),
}

/// Cursor over the files of one level.
pub(crate) struct LevelCursor {
    files: Vec<LevelFile>,
    at: usize,
    current: Option<SstCursor>,
    direction: Direction,
    fill_cache: bool,
}

impl LevelCursor {
    /// `files` in row order.
    pub(crate) fn new(files: Vec<LevelFile>, fill_cache: bool) -> Self {
        Self { files, at: 0, current: None, direction: Direction::Forward, fill_cache }
    }

    fn open(&mut self, at: usize) -> Option<&mut SstCursor> {
        if self.at != at || self.current.is_none() {
            let file = self.files.get(at)?;
            self.current = Some(file.reader.cursor(CursorOptions {
                bounds: file.bounds.clone(),
                expected_bytes: 0,
                fill_cache: self.fill_cache,
            }));
            self.at = at;
        }
        self.current.as_mut()
    }

    /// Moves on to the neighbouring file while the current one has nothing to show.
    fn settle(&mut self, mut step: Step) -> Result<Step> {
        loop {
            let Some(current) = &self.current else { return Ok(Step::Ready) };
            if step == Step::Blocked || current.entry().is_some() {
                return Ok(step);
            }
            step = match &self.direction {
                Direction::Forward => match self.open(self.at + 1) {
                    Some(next) => next.seek(&[])?,
                    None => return Ok(self.exhaust()),
                },
                Direction::Backward(bound) => {
                    let bound = bound.clone();
                    let Some(previous) = self.at.checked_sub(1) else {
                        return Ok(self.exhaust());
                    };
                    match self.open(previous) {
                        Some(cursor) => cursor.seek_row_before(&bound)?,
                        None => return Ok(self.exhaust()),
                    }
                }
            };
        }
    }

    fn exhaust(&mut self) -> Step {
        self.current = None;
        Step::Ready
    }
}

impl Cursor for LevelCursor {
    fn seek(&mut self, target: &[u8]) -> Result<Step> {
        self.direction = Direction::Forward;
        let at = self.files.partition_point(|file| file.ends_before(target));
        let Some(cursor) = self.open(at) else { return Ok(self.exhaust()) };
        let step = cursor.seek(target)?;
        self.settle(step)
    }

    fn next(&mut self) -> Result<Step> {
        self.direction = Direction::Forward;
        let Some(cursor) = self.current.as_mut() else { return Ok(Step::Ready) };
        let step = cursor.next()?;
        self.settle(step)
    }

    fn seek_row_before(&mut self, bound: &[u8]) -> Result<Step> {
        self.direction = Direction::Backward(bound.to_vec());
        let count = if bound.is_empty() {
            self.files.len()
        } else {
            self.files.partition_point(|file| file.first.as_slice() < bound)
        };
        let Some(at) = count.checked_sub(1) else { return Ok(self.exhaust()) };
        let Some(cursor) = self.open(at) else { return Ok(self.exhaust()) };
        let step = cursor.seek_row_before(bound)?;
        self.settle(step)
    }

    fn take_rows(&mut self, before: &[u8], sink: &mut dyn RowSink) -> Result<Step> {
        self.direction = Direction::Forward;
        let Some(cursor) = self.current.as_mut() else { return Ok(Step::Ready) };
        let step = cursor.take_rows(before, sink)?;
        self.settle(step)
    }

    fn take_rows_back(&mut self, after: &[u8], sink: &mut dyn RowSink) -> Result<()> {
        self.current.as_mut().map_or(Ok(()), |cursor| cursor.take_rows_back(after, sink))
    }

    fn entry(&self) -> Option<Entry<'_>> {
        self.current.as_ref()?.entry()
    }

    fn value_bytes(&self) -> Bytes {
        self.current.as_ref().map_or_else(Bytes::new, Cursor::value_bytes)
    }

    fn qualifier_bytes(&self) -> Bytes {
        self.current.as_ref().map_or_else(Bytes::new, Cursor::qualifier_bytes)
    }

    fn wanted(&self, out: &mut Vec<BlockRequest>) {
        if let Some(current) = &self.current {
            current.wanted(out);
        }
    }

    fn supply(&mut self, request: &BlockRequest, block: &Arc<Block>) {
        if let Some(current) = &mut self.current {
            current.supply(request, block);
        }
    }

    fn resume(&mut self) -> Result<Step> {
        let Some(cursor) = self.current.as_mut() else { return Ok(Step::Ready) };
        let step = cursor.resume()?;
        self.settle(step)
    }
}
