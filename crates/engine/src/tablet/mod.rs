//! The tablet: a contiguous row range of one table, one LSM tree. Placeholder for its public face.

use std::sync::Arc;

use bytes::Bytes;

use crate::cell::{Row, RowBatch, RowRange, Seq};
use crate::error::Result;
use crate::read::{Projection, RowStream};
use crate::schema::TabletSchema;

/// A tablet's number, unique within a server and never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TabletId(pub u64);

/// What a point read sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadView {
    /// What is durable: every acknowledged write, nothing else.
    Durable,
    /// Also writes that wait for their sync: for read-modify-writes, which hold the row's lock. Their
    /// answer must wait for [`Tablet::apply_locked`] or [`Tablet::wait_durable`].
    Pending,
}

/// What a scan asks for.
#[derive(Debug, Clone)]
pub struct ScanOptions {
    /// Rows; cut to the tablet's own range.
    pub range: RowRange,
    /// Columns and versions.
    pub projection: Projection,
    /// From the last row to the first.
    pub reverse: bool,
}

/// Excludes every other write of its row while it lives.
#[derive(Debug)]
pub struct RowLock;

/// Figures of one tablet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TabletStats {
    /// Bytes of its SSTs on disk.
    pub sst_bytes: u64,
    /// Number of its SSTs.
    pub sst_count: u64,
    /// Bytes of memory in its memtables.
    pub memtable_bytes: u64,
}

/// A tablet. All methods are safe to call from any thread.
#[derive(Debug)]
pub struct Tablet;

impl Tablet {
    /// Its number.
    pub fn id(&self) -> TabletId {
        TabletId(0)
    }
    /// Its rows.
    pub fn range(&self) -> &RowRange {
        unreachable!()
    }
    /// Sets the families; compaction starts to act by it. Dropped families disappear at once.
    pub fn set_schema(&self, _schema: Arc<TabletSchema>) {}
    /// Applies mutations to one row, in order and atomically; resolves when they are durable and visible.
    /// Takes and releases the row's lock.
    pub async fn apply(&self, _batch: RowBatch) -> Result<Seq> {
        Ok(0)
    }
    /// Waits for and takes the lock of a row.
    pub async fn lock_row(&self, _row: &[u8]) -> RowLock {
        RowLock
    }
    /// Applies to the row whose lock is given, and releases the lock as soon as the order of writes is
    /// fixed; resolves when they are durable and visible.
    pub async fn apply_locked(&self, _lock: RowLock, _batch: RowBatch) -> Result<Seq> {
        Ok(0)
    }
    /// Resolves when everything that a `ReadView::Pending` read has seen so far is durable. For a
    /// check-and-mutate that has nothing to write. Releases the lock first.
    pub async fn wait_durable(&self, _lock: RowLock) -> Result<()> {
        Ok(())
    }
    /// Reads one row; `None` where no cell of it matches.
    pub async fn read_row(
        &self,
        _row: &[u8],
        _projection: &Projection,
        _view: ReadView,
    ) -> Result<Option<Row>> {
        Ok(None)
    }
    /// Reads rows in order.
    pub fn scan(&self, _options: ScanOptions) -> Result<RowStream> {
        unreachable!()
    }
    /// Deletes all rows of a range that were written before now: one durable edit of the manifest.
    pub async fn drop_rows(&self, _range: RowRange) -> Result<()> {
        Ok(())
    }
    /// Rows that divide the tablet into parts of roughly `part_bytes` on disk, each with the bytes of
    /// the tablet up to it. Without the tablet's end.
    pub fn sample_rows(&self, _part_bytes: u64) -> Result<Vec<(Bytes, u64)>> {
        Ok(Vec::new())
    }
    /// Figures.
    pub fn stats(&self) -> TabletStats {
        TabletStats::default()
    }
    /// Moves everything in memory to an SST, and waits for it.
    pub async fn flush(&self) -> Result<()> {
        Ok(())
    }
}
