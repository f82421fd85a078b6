//! A device that takes its time: for benchmarks of how many reads one after the other a row costs.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use tepui_engine::Result;
use tepui_engine::io::{
    Attached, Attempt, DeviceFile, DirEntry, Directory, FileLock, Files, IoEngine, IoMetrics,
    RandomFile, ReadRequest, Removed, WritableFile,
};

/// How slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slow {
    /// What each read takes longer.
    pub delay: Duration,
    /// The reads of a batch are made one after the other, as if nobody had known of the second before the
    /// first was there. Otherwise they wait together.
    pub one_by_one: bool,
}

/// Delays the reads of another I/O engine. Its futures need a tokio runtime with time, so no thread blocks for
/// it.
pub(super) struct SlowIo {
    inner: Arc<dyn IoEngine>,
    slow: Slow,
}

impl SlowIo {
    pub(super) fn new(inner: Arc<dyn IoEngine>, slow: Slow) -> Self {
        Self { inner, slow }
    }
}

impl fmt::Debug for SlowIo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlowIo").field("slow", &self.slow).finish_non_exhaustive()
    }
}

impl IoEngine for SlowIo {
    fn read_batch(&self, requests: Vec<ReadRequest>) -> BoxFuture<'static, Vec<Result<Bytes>>> {
        let (inner, slow) = (Arc::clone(&self.inner), self.slow);
        Box::pin(async move {
            if !slow.one_by_one {
                tokio::time::sleep(slow.delay).await;
                return inner.read_batch(requests).await;
            }
            let mut results = Vec::with_capacity(requests.len());
            for request in requests {
                tokio::time::sleep(slow.delay).await;
                results.extend(inner.read_batch(vec![request]).await);
            }
            results
        })
    }

    fn attach(&self) -> Result<Attached> {
        self.inner.attach()
    }
}

/// Files that never answer from the page cache, so that every read goes through the I/O engine.
#[derive(Debug)]
pub(super) struct SlowFiles(Arc<dyn Files>);

impl SlowFiles {
    pub(super) fn new(inner: Arc<dyn Files>) -> Self {
        Self(inner)
    }
}

impl Files for SlowFiles {
    fn create(&self, path: &Path) -> Result<Box<dyn WritableFile>> {
        self.0.create(path)
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn RandomFile>> {
        Ok(Arc::new(SlowFile(self.0.open(path)?)))
    }

    fn open_immutable(&self, path: &Path) -> Result<Arc<dyn RandomFile>> {
        Ok(Arc::new(SlowFile(self.0.open_immutable(path)?)))
    }

    fn metrics(&self) -> Option<Arc<IoMetrics>> {
        self.0.metrics()
    }

    fn truncate(&self, path: &Path, len: u64) -> Result<()> {
        self.0.truncate(path, len)
    }

    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>> {
        self.0.list(dir)
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        self.0.exists(path)
    }

    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        self.0.create_dir_all(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.0.rename(from, to)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.0.remove(path)
    }

    fn remove_large(&self, path: &Path) -> Result<Removed> {
        self.0.remove_large(path)
    }

    fn remove_dir(&self, dir: &Path) -> Result<()> {
        self.0.remove_dir(dir)
    }

    fn open_dir(&self, dir: &Path) -> Result<Box<dyn Directory>> {
        self.0.open_dir(dir)
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        self.0.lock(path)
    }
}

#[derive(Debug)]
struct SlowFile(Arc<dyn RandomFile>);

impl RandomFile for SlowFile {
    fn path(&self) -> &Path {
        self.0.path()
    }

    fn len(&self) -> Result<u64> {
        self.0.len()
    }

    fn read_at(&self, offset: u64, len: usize) -> Result<Bytes> {
        self.0.read_at(offset, len)
    }

    fn try_read_at(&self, _offset: u64, _len: usize) -> Option<Result<Bytes>> {
        None
    }

    fn device(&self) -> Option<DeviceFile<'_>> {
        self.0.device()
    }

    fn answer(&self, attempt: Attempt) -> Attempt {
        self.0.answer(attempt)
    }
}
