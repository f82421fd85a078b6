//! A level below L0 as one cursor: its SSTs hold disjoint rows in order, so only the one that the cursor
//! stands in is open, and a scan of a level of a thousand files costs a merge one child, not a thousand.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use crate::cell::{RowRange, row_prefix};
use crate::cursor::{Cursor, Entry, Step};
use crate::error::Result;
use crate::manifest::SstRef;
use crate::sst::{Block, BlockRequest, CursorOptions, RowSink, SstCursor};
use crate::store::SstFile;

/// One file of a level.
#[derive(Debug)]
pub(crate) struct LevelFile {
    pub(crate) file: Arc<SstFile>,
    /// The rows that it can show.
    pub(crate) span: RowRange,
    first: Vec<u8>,
    last: Vec<u8>,
    /// Every key is less; empty for no end. A file that shows rows on both sides of dropped ones stands
    /// in its level twice: its last row is not the last that this reference shows.
    end: Vec<u8>,
}

impl LevelFile {
    /// The rows of an open file that `sst` shows.
    pub(crate) fn new(file: Arc<SstFile>, sst: &SstRef) -> Self {
        let span = sst.span();
        let first = row_prefix(&span.start);
        let end = if span.end.is_empty() { Vec::new() } else { row_prefix(&span.end) };
        Self { file, span, first, last: row_prefix(&sst.last_row), end }
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

/// How a level is read.
#[derive(Debug, Clone)]
pub(crate) struct LevelOptions {
    /// Of the level's files, which can hold any of the rows.
    pub(crate) files: Range<usize>,
    /// See [`CursorOptions`], whose bounds are those of a file within these.
    pub(crate) cursor: CursorOptions,
}

/// Cursor over the files of one level. A file is opened when the cursor comes to it.
pub(crate) struct LevelCursor {
    all: Arc<[LevelFile]>,
    options: LevelOptions,
    /// The place of the open file among all.
    at: usize,
    current: Option<SstCursor>,
    direction: Direction,
    /// The open file has nothing more, and the next was not opened yet: its rows are others than the one that the cursor was on.
    has_left_file: bool,
}

impl LevelCursor {
    /// `all` in row order.
    pub(crate) fn new(all: Arc<[LevelFile]>, options: LevelOptions) -> Self {
        let at = options.files.start;
        let direction = Direction::Forward;
        Self { all, options, at, current: None, direction, has_left_file: false }
    }

    /// The files that take part.
    fn files(&self) -> &[LevelFile] {
        self.all.get(self.options.files.clone()).unwrap_or_default()
    }

    /// Opens the file at a place among all; `None` where it does not take part.
    fn open(&mut self, at: usize) -> Result<Option<&mut SstCursor>> {
        if self.at != at || self.current.is_none() {
            let file = self.all.get(at).filter(|_| self.options.files.contains(&at));
            let Some(file) = file else { return Ok(None) };
            let mut options = self.options.cursor.clone();
            options.bounds = file.span.intersect(&options.bounds);
            self.current = Some(file.file.reader()?.cursor(options));
            self.at = at;
        }
        Ok(self.current.as_mut())
    }

    /// Moves on to the neighbouring file while the current one has nothing to show.
    fn settle(&mut self, mut step: Step) -> Result<Step> {
        loop {
            let Some(current) = &self.current else { return Ok(Step::Ready) };
            if step == Step::Blocked || current.entry().is_some() {
                return Ok(step);
            }
            step = match &self.direction {
                Direction::Forward => match self.open(self.at + 1)? {
                    Some(next) => next.seek(&[])?,
                    None => return Ok(self.exhaust()),
                },
                Direction::Backward(bound) => {
                    let bound = bound.clone();
                    let Some(previous) = self.at.checked_sub(1) else {
                        return Ok(self.exhaust());
                    };
                    match self.open(previous)? {
                        Some(cursor) => cursor.seek_row_before(&bound)?,
                        None => return Ok(self.exhaust()),
                    }
                }
            };
        }
    }

    /// The same after a move from a record, to a record of its row or to what comes next: stops at the end of the file.
    fn settle_in_file(&mut self, step: Step) -> Step {
        let is_over = self.current.as_ref().is_some_and(|current| current.entry().is_none());
        self.has_left_file = step == Step::Ready && is_over;
        if self.has_left_file { Step::Blocked } else { step }
    }

    fn exhaust(&mut self) -> Step {
        self.current = None;
        Step::Ready
    }
}

impl Cursor for LevelCursor {
    fn seek(&mut self, target: &[u8]) -> Result<Step> {
        self.direction = Direction::Forward;
        self.has_left_file = false;
        let in_row = self.entry().is_some_and(|e| target.starts_with(e.key.row_prefix()));
        let at = self.files().partition_point(|file| file.ends_before(target));
        let at = self.options.files.start + at;
        let Some(cursor) = self.open(at)? else { return Ok(self.exhaust()) };
        let step = cursor.seek(target)?;
        if in_row { Ok(self.settle_in_file(step)) } else { self.settle(step) }
    }

    fn next(&mut self) -> Result<Step> {
        self.direction = Direction::Forward;
        let Some(cursor) = self.current.as_mut() else { return Ok(Step::Ready) };
        let step = cursor.next()?;
        Ok(self.settle_in_file(step))
    }

    fn seek_row_before(&mut self, bound: &[u8]) -> Result<Step> {
        self.direction = Direction::Backward(bound.to_vec());
        self.has_left_file = false;
        let count = if bound.is_empty() {
            self.files().len()
        } else {
            self.files().partition_point(|file| file.first.as_slice() < bound)
        };
        let Some(at) = count.checked_sub(1) else { return Ok(self.exhaust()) };
        let at = self.options.files.start + at;
        let Some(cursor) = self.open(at)? else { return Ok(self.exhaust()) };
        let step = cursor.seek_row_before(bound)?;
        self.settle(step)
    }

    fn take_rows(&mut self, before: &[u8], sink: &mut dyn RowSink) -> Result<Step> {
        self.direction = Direction::Forward;
        let Some(cursor) = self.current.as_mut() else { return Ok(Step::Ready) };
        let step = cursor.take_rows(before, sink)?;
        self.settle(step)
    }

    fn show_row(&self, sink: &mut dyn RowSink) -> Result<bool> {
        self.current.as_ref().map_or(Ok(false), |cursor| cursor.show_row(sink))
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

    fn has_left_row(&self) -> bool {
        self.has_left_file || self.current.as_ref().is_some_and(Cursor::has_left_row)
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
        self.has_left_file = false;
        let Some(cursor) = self.current.as_mut() else { return Ok(Step::Ready) };
        let step = cursor.resume()?;
        self.settle(step)
    }
}
