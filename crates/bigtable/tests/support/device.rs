//! Files on a device that takes its time: nothing of them is in memory, and what is asked for comes later, to all who
//! asked meanwhile. It sees how much is asked for at once.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures::future::BoxFuture;
use tepui_engine::Result;
use tepui_engine::io::{
    DirEntry, Directory, FileLock, Files, InlineIo, IoEngine, MemoryFiles, RandomFile, ReadRequest,
    WritableFile,
};

/// The files, and the reads of them.
#[derive(Debug, Clone, Default)]
pub struct Device {
    files: MemoryFiles,
    seen: Arc<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    under_way_bytes: AtomicUsize,
    most_bytes: AtomicUsize,
    all_bytes: AtomicUsize,
    rounds: AtomicUsize,
}

impl Device {
    /// The most bytes that were asked for at once.
    pub fn most_bytes(&self) -> usize {
        self.seen.most_bytes.load(Ordering::Relaxed)
    }

    /// The bytes that were asked for in all.
    pub fn all_bytes(&self) -> usize {
        self.seen.all_bytes.load(Ordering::Relaxed)
    }

    /// How often it was asked while it had nothing to do.
    pub fn rounds(&self) -> usize {
        self.seen.rounds.load(Ordering::Relaxed)
    }

    /// Forgets what it saw.
    pub fn reset(&self) {
        self.seen.most_bytes.store(0, Ordering::Relaxed);
        self.seen.all_bytes.store(0, Ordering::Relaxed);
        self.seen.rounds.store(0, Ordering::Relaxed);
    }
}

impl IoEngine for Device {
    fn read_batch(&self, requests: Vec<ReadRequest>) -> BoxFuture<'static, Vec<Result<Bytes>>> {
        let seen = Arc::clone(&self.seen);
        let bytes: usize = requests.iter().map(|request| request.len).sum();
        let before = seen.under_way_bytes.fetch_add(bytes, Ordering::Relaxed);
        seen.most_bytes.fetch_max(before + bytes, Ordering::Relaxed);
        seen.all_bytes.fetch_add(bytes, Ordering::Relaxed);
        seen.rounds.fetch_add(usize::from(before == 0), Ordering::Relaxed);
        Box::pin(async move {
            tokio::task::yield_now().await;
            seen.under_way_bytes.fetch_sub(bytes, Ordering::Relaxed);
            InlineIo.read_batch(requests).await
        })
    }
}

impl Files for Device {
    fn create(&self, path: &Path) -> Result<Box<dyn WritableFile>> {
        self.files.create(path)
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn RandomFile>> {
        Ok(Arc::new(OnDevice(self.files.open(path)?)))
    }

    fn truncate(&self, path: &Path, len: u64) -> Result<()> {
        self.files.truncate(path, len)
    }

    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>> {
        self.files.list(dir)
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        self.files.exists(path)
    }

    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        self.files.create_dir_all(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.files.rename(from, to)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.files.remove(path)
    }

    fn remove_dir(&self, dir: &Path) -> Result<()> {
        self.files.remove_dir(dir)
    }

    fn open_dir(&self, dir: &Path) -> Result<Box<dyn Directory>> {
        self.files.open_dir(dir)
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        self.files.lock(path)
    }
}

#[derive(Debug)]
struct OnDevice(Arc<dyn RandomFile>);

impl RandomFile for OnDevice {
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
}
