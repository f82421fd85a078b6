//! The seams through which the engine touches the outside: files, reads, time, chance, threads.
//!
//! Everything is injected through [`Env`], so that a test owns the disk (a file system in memory that
//! forgets what was not synced, faults at any operation), the clock and the threads. clippy bans the
//! std versions elsewhere.

mod clock;
mod engine;
mod fault;
mod local;
mod memory;
mod spawn;

use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;

use crate::error::Result;

pub use clock::{ManualClock, SystemClock};
pub use engine::{InlineIo, PREAD_QUEUE_READS_MAX, PreadPool};
pub use fault::{Fault, FaultFiles, FaultOp, SyncHook};
pub use local::LocalFiles;
pub use memory::{CrashMode, MemoryFiles};
pub use spawn::{SeededRng, SystemRng, ThreadSpawner};

/// All seams together. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Env {
    /// Files and directories.
    pub files: Arc<dyn Files>,
    /// Block reads.
    pub io: Arc<dyn IoEngine>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Chance.
    pub rng: Arc<dyn Rng>,
    /// Threads.
    pub spawner: Arc<dyn Spawner>,
}

/// One entry of a directory listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// The name within the directory.
    pub name: String,
    /// Bytes; 0 for a directory.
    pub len: u64,
    /// Whether it is a directory.
    pub is_dir: bool,
}

/// A file system. Paths are used as given. Creating, renaming and removing names is durable only after
/// [`Files::sync_dir`] of the parent; file contents only after [`WritableFile::sync`].
pub trait Files: Send + Sync + Debug {
    /// Creates a file for appending; fails with `AlreadyExists` where there is one.
    fn create(&self, path: &Path) -> Result<Box<dyn WritableFile>>;
    /// Opens a file for reading.
    fn open(&self, path: &Path) -> Result<Arc<dyn RandomFile>>;
    /// Cuts a file to `len` bytes and syncs it.
    fn truncate(&self, path: &Path, len: u64) -> Result<()>;
    /// The entries of a directory, in name order.
    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>>;
    /// Whether something exists there.
    fn exists(&self, path: &Path) -> Result<bool>;
    /// Creates a directory and its parents; no error where it exists.
    fn create_dir_all(&self, dir: &Path) -> Result<()>;
    /// Renames a file, replacing the target.
    fn rename(&self, from: &Path, to: &Path) -> Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> Result<()>;
    /// Removes an empty directory.
    fn remove_dir(&self, dir: &Path) -> Result<()>;
    /// Makes the names in a directory durable.
    fn sync_dir(&self, dir: &Path) -> Result<()>;
    /// Takes an exclusive advisory lock on a file, creating it; `Locked` where another holder has it.
    /// Held until the guard is dropped or the process ends.
    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>>;
}

/// Keeps a lock on a file while it lives.
pub trait FileLock: Send + Sync + Debug {}

/// A file being written from its beginning to its end.
pub trait WritableFile: Send + Debug {
    /// Appends all of `data`.
    fn append(&mut self, data: &[u8]) -> Result<()>;
    /// Makes what was appended durable (`fdatasync`).
    fn sync(&mut self) -> Result<()>;
    /// Bytes appended so far.
    fn len(&self) -> u64;
    /// Whether nothing was appended.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Reserves space for `len` bytes in all, without changing the length; a hint that may do nothing.
    fn reserve(&mut self, len: u64) -> Result<()>;
}

/// A file being read at offsets; shared between threads.
pub trait RandomFile: Send + Sync + Debug {
    /// Where it is, for error messages.
    fn path(&self) -> &Path;
    /// Bytes in the file.
    fn len(&self) -> Result<u64>;
    /// Reads exactly `len` bytes at `offset`; a shorter file is `Corruption`. Blocks.
    fn read_at(&self, offset: u64, len: usize) -> Result<Bytes>;
    /// The same if it can be done from memory without blocking; `None` where it cannot or cannot tell.
    fn try_read_at(&self, offset: u64, len: usize) -> Option<Result<Bytes>>;
}

/// One read for an [`IoEngine`].
#[derive(Debug, Clone)]
pub struct ReadRequest {
    /// From which file.
    pub file: Arc<dyn RandomFile>,
    /// From which byte.
    pub offset: u64,
    /// How many bytes.
    pub len: usize,
}

/// Carries out block reads. One implementation uses a pool of threads; a ring per core comes beside it.
pub trait IoEngine: Send + Sync + Debug {
    /// Submits all reads at once; resolves when every one is done, with results in the same order.
    fn read_batch(&self, requests: Vec<ReadRequest>) -> BoxFuture<'static, Vec<Result<Bytes>>>;
}

/// Time.
pub trait Clock: Send + Sync + Debug {
    /// Wall clock: microseconds since 1970.
    fn now_micros(&self) -> i64;
    /// Monotonic clock: microseconds since some fixed point.
    fn monotonic_micros(&self) -> u64;
}

/// Chance.
pub trait Rng: Send + Sync + Debug {
    /// A uniformly random number.
    fn next_u64(&self) -> u64;
}

/// Threads.
pub trait Spawner: Send + Sync + Debug {
    /// Runs `work` on a thread of its own; the name is at most 15 bytes, as Linux keeps it.
    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> Result<Box<dyn JoinHandle>>;
}

/// A running thread.
pub trait JoinHandle: Send {
    /// Waits for its end.
    fn join(self: Box<Self>);
}
