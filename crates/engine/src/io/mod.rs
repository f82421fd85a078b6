//! The seams through which the engine touches the outside: files, reads, time, chance, threads.
//!
//! Everything is injected through [`Env`], so that a test owns the disk (a file system in memory that
//! forgets what was not synced, faults at any operation), the clock and the threads. clippy bans the
//! std versions elsewhere.

mod aligned;
mod anchor;
mod clock;
mod device;
#[cfg(target_os = "linux")]
mod direct;
mod engine;
mod fault;
mod local;
mod memory;
mod metrics;
mod pieces;
#[cfg(target_os = "linux")]
mod regions;
mod spawn;
#[cfg(target_os = "linux")]
mod uring;

use std::fmt::{self, Debug};
use std::marker::PhantomData;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;

use crate::error::Result;

pub(crate) use aligned::OWNED_BYTES;
pub use clock::{ManualClock, SystemClock};
pub use device::{Attempt, DeviceFile};
pub use engine::{InlineIo, PreadPool};
pub use fault::{AppendHook, Fault, FaultFiles, FaultOp, FileHook};
pub use local::LocalFiles;
pub use memory::{CrashMode, MemoryFiles};
pub use metrics::{IoFigures, IoMetrics};
pub use pieces::Removed;
#[cfg(all(test, target_os = "linux"))]
pub(crate) use regions::is_lent;
pub use spawn::{SeededRng, SystemRng, ThreadSpawner};
#[cfg(target_os = "linux")]
pub use uring::UringIo;

/// Bytes of memory for buffers of reads and writes past the page cache that were taken from the system for good, or for large ones
/// in use.
pub fn buffer_bytes() -> u64 {
    #[cfg(target_os = "linux")]
    return regions::mapped_bytes();
    #[cfg(not(target_os = "linux"))]
    return 0;
}

/// Threads of a [`PreadPool`] on the real machine. More than cores, since they wait for the disk: this
/// many reads keep an SSD busy.
pub const PREAD_THREADS: usize = 32;

/// How files that change no more (SSTs) are written and read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum IoMode {
    /// Past the page cache: memory holds blocks once, in the block cache, where it is known what they are
    /// worth.
    Direct,
    /// Through the page cache: for machines whose memory is left to the system.
    #[default]
    Buffered,
}

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

impl Env {
    /// The operating system's files, clocks, chance and threads; reads over io_uring where the kernel has
    /// it and a runtime is [attached](IoEngine::attach), by a pool of threads elsewhere.
    pub fn local(mode: IoMode) -> Result<Self> {
        let env = Self::inline(mode);
        #[cfg(target_os = "linux")]
        let io = {
            let metrics = env.files.metrics().unwrap_or_default();
            Arc::new(UringIo::new(Arc::clone(&env.spawner), metrics))
        };
        #[cfg(not(target_os = "linux"))]
        let io = Arc::new(PreadPool::new(env.spawner.as_ref(), PREAD_THREADS)?);
        Ok(Self { io, ..env })
    }

    /// The same with reads on the calling thread, for tools that do one thing at a time.
    pub fn inline(mode: IoMode) -> Self {
        Self {
            files: Arc::new(LocalFiles::new(mode)),
            io: Arc::new(InlineIo),
            clock: Arc::new(SystemClock::new()),
            rng: Arc::new(SystemRng::new()),
            spawner: Arc::new(ThreadSpawner),
        }
    }
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

/// Space of a file system, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSpace {
    /// Free for more files.
    pub free: u64,
    /// In all.
    pub total: u64,
}

/// A file system. Paths are used as given. Creating, renaming and removing names is durable only after
/// [`Files::sync_dir`] of the parent; file contents only after [`WritableFile::sync`].
pub trait Files: Send + Sync + Debug {
    /// Creates a file for appending; fails with `AlreadyExists` where there is one.
    fn create(&self, path: &Path) -> Result<Box<dyn WritableFile>>;
    /// Creates a file that is read only once it is complete, and changes no more then (an SST): it may be written
    /// past the page cache. What was appended need not be in the file before [`WritableFile::sync`].
    fn create_immutable(&self, path: &Path) -> Result<Box<dyn WritableFile>> {
        self.create(path)
    }
    /// Opens a file for reading.
    fn open(&self, path: &Path) -> Result<Arc<dyn RandomFile>>;
    /// Opens a file that is complete and changes no more, to be read at random: it may be read past the
    /// page cache, and what that holds of it may be dropped.
    fn open_immutable(&self, path: &Path) -> Result<Arc<dyn RandomFile>> {
        self.open(path)
    }
    /// Opens a file that another process may have written last, to be read as the device has it: where a sync of that process
    /// failed, the page cache may show what the device does not have, and take it for written.
    fn open_left(&self, path: &Path) -> Result<Arc<dyn RandomFile>> {
        self.open_immutable(path)
    }
    /// The counters of its reads, where they are counted.
    fn metrics(&self) -> Option<Arc<IoMetrics>> {
        None
    }
    /// The space for files at `path`, which exists; `None` where it is not known.
    fn disk_space(&self, _path: &Path) -> Result<Option<DiskSpace>> {
        Ok(None)
    }
    /// Cuts a file to `len` bytes and syncs it.
    fn truncate(&self, path: &Path, len: u64) -> Result<()>;
    /// The entries of a directory, in name order.
    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>>;
    /// Whether something exists there.
    fn exists(&self, path: &Path) -> Result<bool>;
    /// Creates a directory and its parents; no error where it exists.
    fn create_dir_all(&self, dir: &Path) -> Result<()>;
    /// The same, where the directory itself, if it is not there, is made for its owner alone.
    fn create_private_dir(&self, dir: &Path) -> Result<()> {
        self.create_dir_all(dir)
    }
    /// Renames a file, replacing the target.
    fn rename(&self, from: &Path, to: &Path) -> Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> Result<()>;
    /// Removes a file that may be large and that nobody needs, whose space is to be [given back](Removed::give_back) once its directory is
    /// synced. Who has it open reads on.
    fn remove_large(&self, path: &Path) -> Result<Removed> {
        self.remove(path).map(|()| Removed::default())
    }
    /// Removes an empty directory.
    fn remove_dir(&self, dir: &Path) -> Result<()>;
    /// Opens a directory whose names are to be made durable: all that a later sync of them takes.
    fn open_dir(&self, dir: &Path) -> Result<Box<dyn Directory>>;
    /// Makes the names in a directory durable.
    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.open_dir(dir)?.sync()
    }
    /// Takes an exclusive advisory lock on a file, creating it, and on the directory that it is in; `Locked` where another
    /// holder has it. Held until the guard is dropped or the process ends; meanwhile names in that directory are those of the directory that
    /// was locked, wherever it is moved.
    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>>;
    /// Keeps those out who [lock](Self::lock) a file, which exists and need not be writable: for who only reads.
    fn lock_to_read(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        self.lock(path)
    }
    /// The same by the directory alone, where there is no such file; `None` where directories are not locked.
    fn lock_dir_to_read(&self, _dir: &Path) -> Result<Option<Box<dyn FileLock>>> {
        Ok(None)
    }
}

/// A directory that is open.
pub trait Directory: Send + Debug {
    /// Makes the names in it durable. Never `Exhausted`: what it lacked, it may have lost names for.
    fn sync(&self) -> Result<()>;
}

/// Keeps a lock on a file while it lives.
pub trait FileLock: Send + Sync + Debug {
    /// An error where what was locked is there no more.
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

/// A file being written from its beginning to its end.
pub trait WritableFile: Send + Debug {
    /// Appends all of `data`.
    fn append(&mut self, data: &[u8]) -> Result<()>;
    /// Has the device begin with what was appended, because a sync follows: one of megabytes would else begin with the first of them when
    /// the last is in the page cache. May do nothing.
    fn begin_sync(&mut self) -> Result<()> {
        Ok(())
    }
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
    /// Writes zeros behind what was appended, up to `len` bytes in all, for later appends to overwrite: the
    /// syncs of those then have no metadata to write. A reader finds the zeros; [`Self::len`] does not count
    /// them. May do nothing.
    fn lay_out(&mut self, _len: u64) -> Result<()> {
        Ok(())
    }
}

/// A file being read at offsets; shared between threads.
#[expect(clippy::len_without_is_empty, reason = "nobody asks a file being read for that")]
pub trait RandomFile: Send + Sync + Debug {
    /// Where it is, for error messages.
    fn path(&self) -> &Path;
    /// Bytes in the file.
    fn len(&self) -> Result<u64>;
    /// Reads exactly `len` bytes at `offset`; a shorter file is `Corruption`. Blocks. The bytes may lie in memory that
    /// is lent for reads, of which there is little: what stays for long is to be copied out of it.
    fn read_at(&self, offset: u64, len: usize) -> Result<Bytes>;
    /// The same if it can be done from memory without blocking; `None` where it cannot or cannot tell.
    fn try_read_at(&self, offset: u64, len: usize) -> Option<Result<Bytes>>;
    /// The file as a device sees it, for engines that carry out reads by themselves; `None` where only
    /// [`Self::read_at`] can read it.
    fn device(&self) -> Option<DeviceFile<'_>> {
        None
    }
    /// What the file makes of an answer of its device: every attempt that is read through
    /// [`Self::device`] passes here. For faults that a test injects.
    fn answer(&self, attempt: Attempt) -> Attempt {
        attempt
    }
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

/// Carries out block reads: a ring per core, or a pool of threads.
pub trait IoEngine: Send + Sync + Debug {
    /// Submits all reads at once, each as [`RandomFile::read_at`] does it; resolves when every one is done, with results in the same order. A read
    /// that the device refuses is tried once more before its error is given.
    fn read_batch(&self, requests: Vec<ReadRequest>) -> BoxFuture<'static, Vec<Result<Bytes>>>;

    /// To be called within a single-threaded runtime that will make reads, on its thread: engines that
    /// keep something per thread set it up, until the guard is dropped there. Optional; without it reads
    /// go another way. An engine that cannot has said so in the log, and the guard does nothing.
    fn attach(&self) -> Result<Attached> {
        Ok(Attached::nothing())
    }

    /// Says that this thread does nothing else while it waits for a read, until the guard is dropped there: for
    /// programs that embed the engine and have a thread for each read under way.
    ///
    /// ```text
    /// let _attached = env.io.attach_blocking()?;
    /// let row = pollster::block_on(tablet.read_row(key, &projection, ReadView::Durable))?;
    /// ```
    ///
    /// [`Self::read_batch`] then reads before it returns, and its future is ready: a single read costs what a
    /// `pread` costs, a batch waits for its reads together. On a thread whose tasks are to go on meanwhile, it
    /// would hold all of them up for as long as each read takes; such a thread [attaches](Self::attach) its
    /// runtime. A thread is attached in one way at a time.
    ///
    /// The guard does nothing with an engine that goes on to read its own way; its futures can be blocked on all
    /// the same.
    fn attach_blocking(&self) -> Result<Attached> {
        Ok(Attached::nothing())
    }
}

/// Keeps a thread [attached](IoEngine::attach). Stays on that thread.
#[must_use = "the thread is attached as long as the guard lives"]
pub struct Attached {
    detach: Option<Box<dyn FnOnce()>>,
    stays_on_its_thread: PhantomData<*const ()>,
}

impl Attached {
    /// A guard of nothing.
    pub fn nothing() -> Self {
        Self { detach: None, stays_on_its_thread: PhantomData }
    }

    /// A guard that runs `detach` at its end.
    pub fn new(detach: impl FnOnce() + 'static) -> Self {
        Self { detach: Some(Box::new(detach)), stays_on_its_thread: PhantomData }
    }

    /// Whether there is anything to detach.
    pub fn is_attached(&self) -> bool {
        self.detach.is_some()
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if let Some(detach) = self.detach.take() {
            detach();
        }
    }
}

impl Debug for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attached").field("attached", &self.is_attached()).finish()
    }
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

    /// The same for work that nobody waits for: where processors are short, it gives way to other threads.
    fn spawn_yielding(
        &self,
        name: &str,
        work: Box<dyn FnOnce() + Send>,
    ) -> Result<Box<dyn JoinHandle>> {
        self.spawn(name, work)
    }

    /// The same for one of the cores that share nothing, by its place among so many: where the process may use exactly as
    /// many processors, each core has one to itself. The scheduler wakes a thread where the device's interrupt came in, behind what runs there, and may let it wait
    /// for milliseconds while another processor has nothing to do.
    fn spawn_core(
        &self,
        name: &str,
        _place: (usize, usize),
        work: Box<dyn FnOnce() + Send>,
    ) -> Result<Box<dyn JoinHandle>> {
        self.spawn(name, work)
    }
}

/// A running thread.
pub trait JoinHandle: Send {
    /// Waits for its end.
    fn join(self: Box<Self>);
}
