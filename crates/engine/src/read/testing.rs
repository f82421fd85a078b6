//! For tests: a cursor over a vector, and reading to the end without a runtime.

pub(crate) mod model;
pub(crate) mod script;

use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;

use crate::cell::{KeyView, Row};
use crate::cursor::{Cursor, Entry, Step};
use crate::error::Result;
use crate::io::{IoEngine, ReadRequest};
use crate::read::{ReadSpec, RowStream};
use crate::sst::{Block, BlockRequest};

/// Encoded key and value.
pub(crate) type Record = (Vec<u8>, Bytes);

/// A record's place; `None` before the first.
#[derive(Debug)]
struct Landing(Option<usize>);

/// A sorted run in memory. With `blocking` every other operation is blocked first, wanting nothing.
#[derive(Debug)]
pub(crate) struct VecCursor {
    records: Arc<Vec<Record>>,
    at: Option<usize>,
    blocking: bool,
    operations: u64,
    /// It is blocked, and will land there from `at`.
    landing: Option<Landing>,
}

impl VecCursor {
    pub(crate) fn new(mut records: Vec<Record>, blocking: bool) -> Self {
        records.sort();
        Self::shared(Arc::new(records), blocking)
    }

    /// Over records that are sorted.
    pub(crate) fn shared(records: Arc<Vec<Record>>, blocking: bool) -> Self {
        Self { records, at: None, blocking, operations: 0, landing: None }
    }

    fn land(&mut self, at: Option<usize>) -> Step {
        assert!(self.landing.is_none(), "moved while blocked");
        self.operations += 1;
        if self.blocking && self.operations % 2 == 1 {
            self.landing = Some(Landing(at));
            return Step::Blocked;
        }
        self.at = at;
        Step::Ready
    }

    fn key(&self, at: usize) -> KeyView<'_> {
        KeyView::parse(&self.records[at].0).unwrap()
    }
}

impl Cursor for VecCursor {
    fn seek(&mut self, target: &[u8]) -> Result<Step> {
        self.landing = None;
        let at = self.records.partition_point(|(key, _)| key.as_slice() < target);
        Ok(self.land(Some(at)))
    }

    fn next(&mut self) -> Result<Step> {
        let at = self.at.expect("a cursor is moved on only from a record");
        assert!(at < self.records.len(), "moved on past the end");
        Ok(self.land(Some(at + 1)))
    }

    fn seek_row_before(&mut self, bound: &[u8]) -> Result<Step> {
        self.landing = None;
        let end = if bound.is_empty() {
            self.records.len()
        } else {
            self.records.partition_point(|(key, _)| key.as_slice() < bound)
        };
        let at = end.checked_sub(1).map(|last| {
            let row = self.key(last).row_prefix();
            self.records.partition_point(|(key, _)| key.as_slice() < row)
        });
        Ok(self.land(at))
    }

    fn entry(&self) -> Option<Entry<'_>> {
        if self.landing.is_some() {
            return None;
        }
        let (key, value) = self.records.get(self.at?)?;
        Some(Entry { key: KeyView::parse(key).unwrap(), value })
    }

    fn value_bytes(&self) -> Bytes {
        self.records[self.at.unwrap()].1.clone()
    }

    fn has_left_row(&self) -> bool {
        let (Some(Landing(Some(to))), Some(from)) = (&self.landing, self.at) else { return false };
        let is_on_record = from < self.records.len();
        let other_row = || {
            *to == self.records.len() || self.key(*to).row_prefix() != self.key(from).row_prefix()
        };
        is_on_record && *to > from && other_row()
    }

    fn wanted(&self, _out: &mut Vec<BlockRequest>) {
        assert!(self.landing.is_some(), "asked for its wants while not blocked");
    }

    fn supply(&mut self, _request: &BlockRequest, _block: &Arc<Block>) {}

    fn resume(&mut self) -> Result<Step> {
        let Landing(at) = self.landing.take().expect("resumed while not blocked");
        self.at = at;
        Ok(Step::Ready)
    }
}

/// Reads nothing: cursors over vectors ask for nothing.
#[derive(Debug)]
pub(crate) struct NoIo;

impl IoEngine for NoIo {
    fn read_batch(&self, _requests: Vec<ReadRequest>) -> BoxFuture<'static, Vec<Result<Bytes>>> {
        futures::future::ready(Vec::new()).boxed()
    }
}

/// Runs as cursors, newest first.
pub(crate) fn cursors(runs: &[Arc<Vec<Record>>], blocking: bool) -> Vec<Box<dyn Cursor>> {
    runs.iter()
        .map(|run| Box::new(VecCursor::shared(Arc::clone(run), blocking)) as Box<dyn Cursor>)
        .collect()
}

/// The rows of a read that must finish without awaiting, marks of progress left out.
pub(crate) fn read(runs: &[Arc<Vec<Record>>], spec: &ReadSpec, blocking: bool) -> Result<Vec<Row>> {
    let mut stream =
        RowStream::new(cursors(runs, blocking), spec.clone(), Arc::new(NoIo), Box::new(()));
    let mut rows = Vec::new();
    while let Some(row) = stream.next().now_or_never().expect("nothing to wait for")? {
        if !row.cells.is_empty() {
            rows.push(row);
        }
    }
    Ok(rows)
}
