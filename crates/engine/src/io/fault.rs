//! A file system that fails where a test tells it to, over any other.
//!
//! A [`Fault`] picks the n-th operation of a kind whose path contains a text, and the error that it
//! gets, once or from then on; or the byte of a file that no read gets. A byte quota makes the disk full; hooks run before every append, sync and
//! read of a file, to hold it back or slow it down. Everything else goes through, and is counted.
//!
//! A failing read is what the device answered to one attempt: whoever reads tries once more, so that a
//! single [`FaultOp::Read`] fault is a retry and a sticky one an error.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use rustix::io::Errno;

use super::device::{Attempt, DeviceFile, retry_once};
use super::{
    DirEntry, Directory, DiskSpace, FileLock, Files, IoMetrics, RandomFile, Removed, WritableFile,
};
use crate::error::{Error, ErrorKind, Result};

/// A kind of operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FaultOp {
    /// Every kind.
    Any,
    /// [`Files::create`] and [`Files::create_immutable`].
    Create,
    /// [`Files::open`] and its kin, and [`Files::lock_to_read`].
    Open,
    /// [`Files::truncate`].
    Truncate,
    /// [`Files::list`].
    List,
    /// [`Files::exists`].
    Exists,
    /// [`Files::create_dir_all`].
    CreateDir,
    /// [`Files::rename`]; the path is the source.
    Rename,
    /// [`Files::remove`] and [`Files::remove_large`].
    Remove,
    /// [`Files::remove_dir`].
    RemoveDir,
    /// [`Files::open_dir`], and [`Files::sync_dir`] with it.
    OpenDir,
    /// [`Directory::sync`], and [`Files::sync_dir`] with it.
    SyncDir,
    /// [`Files::lock`].
    Lock,
    /// [`WritableFile::append`]. Half of the data is written before the failure.
    Append,
    /// [`WritableFile::begin_sync`].
    BeginSync,
    /// [`WritableFile::sync`].
    Sync,
    /// [`WritableFile::reserve`].
    Reserve,
    /// [`WritableFile::lay_out`].
    LayOut,
    /// [`RandomFile::len`].
    Len,
    /// An attempt of [`RandomFile::read_at`], [`RandomFile::try_read_at`] or of a read through
    /// [`RandomFile::device`].
    Read,
}

/// A failure to come. Made by [`Fault::new`] and the methods that narrow it.
#[derive(Debug, Clone)]
pub struct Fault {
    op: FaultOp,
    path: String,
    nth: u64,
    kind: ErrorKind,
    denied: bool,
    sticky: bool,
    short: bool,
    at: Option<u64>,
}

impl Fault {
    /// The next operation of this kind fails with [`ErrorKind::Io`], once.
    pub fn new(op: FaultOp) -> Self {
        Self {
            op,
            path: String::new(),
            nth: 1,
            kind: ErrorKind::Io,
            denied: false,
            sticky: false,
            short: false,
            at: None,
        }
    }

    /// Only operations on paths that contain `part` count.
    pub fn on_path(mut self, part: impl Into<String>) -> Self {
        self.path = part.into();
        self
    }

    /// The `nth` operation from now fails; 1 is the next.
    pub fn nth(mut self, nth: u64) -> Self {
        self.nth = nth.max(1);
        self
    }

    /// The error's kind.
    pub fn kind(mut self, kind: ErrorKind) -> Self {
        self.kind = kind;
        self
    }

    /// The error is the one of a user who may not (EACCES).
    pub fn denied(mut self) -> Self {
        self.denied = true;
        self
    }

    /// Only reads that cover this byte count: with [`Self::sticky`], a bad sector. Not for files that are read through
    /// [`RandomFile::device`], whose attempts do not tell where they are.
    pub fn at(mut self, offset: u64) -> Self {
        self.at = Some(offset);
        self
    }

    /// A read brings half of what was asked, instead of an error.
    pub fn short(mut self) -> Self {
        self.short = true;
        self
    }

    /// Every later one fails, too.
    pub fn sticky(mut self) -> Self {
        self.sticky = true;
        self
    }
}

/// What runs before a file is read, or a file or a directory synced.
pub type FileHook = Arc<dyn Fn(&Path) + Send + Sync>;

/// What runs before so many bytes are appended to a file.
pub type AppendHook = Arc<dyn Fn(&Path, usize) + Send + Sync>;

/// The file system. Clones share their faults.
#[derive(Clone)]
pub struct FaultFiles {
    inner: Arc<dyn Files>,
    plan: Arc<Mutex<Plan>>,
    /// Of the files underneath where they count, else of reads that were tried again here.
    metrics: Arc<IoMetrics>,
}

#[derive(Default)]
struct Plan {
    faults: Vec<Fault>,
    counts: HashMap<FaultOp, u64>,
    quota_bytes: Option<u64>,
    /// Up to where the bytes of files were counted when they reserved them.
    reserved: HashMap<PathBuf, u64>,
    /// Reservations succeed and get nothing.
    reserves_nothing: bool,
    free_bytes: Option<u64>,
    before_append: Option<AppendHook>,
    before_sync: Option<FileHook>,
    before_read: Option<FileHook>,
}

/// The data under the lock is valid at every step, so a panic elsewhere does not spoil it.
fn lock(plan: &Mutex<Plan>) -> MutexGuard<'_, Plan> {
    plan.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Plan {
    /// The fault that this operation meets; `bytes` of the file, where it is a read that says which.
    fn next(&mut self, op: FaultOp, path: &Path, bytes: Option<Range<u64>>) -> Option<Fault> {
        *self.counts.entry(op).or_default() += 1;
        *self.counts.entry(FaultOp::Any).or_default() += 1;
        let text = path.to_string_lossy();
        let mut hit = None;
        self.faults.retain_mut(|fault| {
            if (fault.op != op && fault.op != FaultOp::Any) || !text.contains(&fault.path) {
                return true;
            }
            if fault.at.is_some_and(|at| !bytes.as_ref().is_some_and(|read| read.contains(&at))) {
                return true;
            }
            fault.nth = fault.nth.saturating_sub(1);
            if fault.nth > 0 {
                return true;
            }
            hit = Some(fault.clone());
            fault.sticky
        });
        hit
    }

    fn check(&mut self, op: FaultOp, path: &Path, bytes: Option<Range<u64>>) -> Result<()> {
        match self.next(op, path, bytes) {
            Some(fault) => {
                let text = path.to_string_lossy();
                let what = format!("{op:?} {text}: injected fault");
                if fault.denied {
                    return Err(Error::io(what, &Errno::ACCESS.into()));
                }
                if fault.kind == ErrorKind::Io {
                    return Err(Error::io(what, &Errno::IO.into()));
                }
                Err(Error::new(fault.kind, what))
            }
            None => Ok(()),
        }
    }
}

impl FaultFiles {
    /// `inner` with no faults yet.
    pub fn new(inner: Arc<dyn Files>) -> Self {
        let metrics = inner.metrics().unwrap_or_default();
        Self { inner, plan: Arc::default(), metrics }
    }

    /// Adds a failure.
    pub fn inject(&self, fault: Fault) {
        lock(&self.plan).faults.push(fault);
    }

    /// Forgets the failures that have not happened, and the quota.
    pub fn heal(&self) {
        let mut plan = lock(&self.plan);
        plan.faults.clear();
        plan.quota_bytes = None;
    }

    /// Lets this many bytes more be appended or reserved; then appends write what still fits and fail with
    /// [`ErrorKind::NoSpace`], as reservations do, which keep what they got. What a file reserved since there was a limit it may still append,
    /// and gives back when it is truncated or removed. So many bytes are free. `None` lifts the limit.
    pub fn set_quota_bytes(&self, quota: Option<u64>) {
        lock(&self.plan).quota_bytes = quota;
    }

    /// Has reservations succeed that get nothing, as on a file system that knows none.
    pub fn reserve_nothing(&self) {
        lock(&self.plan).reserves_nothing = true;
    }

    /// Gives back what a file has reserved beyond `len`.
    fn give_back(&self, path: &Path, len: u64) {
        let mut plan = lock(&self.plan);
        let Some(reserved) = plan.reserved.remove(path) else { return };
        let kept = reserved.min(len);
        if kept > 0 {
            plan.reserved.insert(path.to_owned(), kept);
        }
        if let Some(left) = &mut plan.quota_bytes {
            *left += reserved - kept;
        }
    }

    /// Says that so many bytes are free, whatever is written. `None` asks the files within.
    pub fn set_free_bytes(&self, free: Option<u64>) {
        lock(&self.plan).free_bytes = free;
    }

    /// Runs `hook` before every append to a file, on the thread that appends, with the bytes of it: to block it, or to be a device
    /// that takes only so many in a second.
    pub fn before_append(&self, hook: Option<AppendHook>) {
        lock(&self.plan).before_append = hook;
    }

    /// Runs `hook` before every sync of a file or a directory, on the thread that syncs: to block it, or to delay it.
    pub fn before_sync(&self, hook: Option<FileHook>) {
        lock(&self.plan).before_sync = hook;
    }

    /// Runs `hook` before every read of a file, on the thread that reads. Not for files that are read through
    /// [`RandomFile::device`].
    pub fn before_read(&self, hook: Option<FileHook>) {
        lock(&self.plan).before_read = hook;
    }

    /// How many operations of a kind there were, failed ones included.
    pub fn count(&self, op: FaultOp) -> u64 {
        lock(&self.plan).counts.get(&op).copied().unwrap_or(0)
    }

    fn tell_of_sync(&self, path: &Path) {
        let hook = lock(&self.plan).before_sync.clone();
        if let Some(hook) = hook {
            hook(path);
        }
    }

    fn check(&self, op: FaultOp, path: &Path) -> Result<()> {
        lock(&self.plan).check(op, path, None)
    }

    fn check_read(&self, path: &Path, offset: u64, len: usize) -> Result<()> {
        let bytes = offset..offset.saturating_add(len as u64);
        let checked = lock(&self.plan).check(FaultOp::Read, path, Some(bytes));
        checked.map_err(|e| e.context(format_args!("offset {offset} ({len} bytes)")))
    }
}

impl fmt::Debug for FaultFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultFiles").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl Files for FaultFiles {
    fn disk_space(&self, path: &Path) -> Result<Option<DiskSpace>> {
        let said = {
            let plan = lock(&self.plan);
            plan.free_bytes.or(plan.quota_bytes)
        };
        let space = |free| Ok(Some(DiskSpace { free, total: u64::MAX }));
        said.map_or_else(|| self.inner.disk_space(path), space)
    }

    fn create(&self, path: &Path) -> Result<Box<dyn WritableFile>> {
        self.check(FaultOp::Create, path)?;
        let inner = self.inner.create(path)?;
        Ok(FaultWritable::over(inner, path, self))
    }

    fn create_immutable(&self, path: &Path) -> Result<Box<dyn WritableFile>> {
        self.check(FaultOp::Create, path)?;
        let inner = self.inner.create_immutable(path)?;
        Ok(FaultWritable::over(inner, path, self))
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn RandomFile>> {
        self.check(FaultOp::Open, path)?;
        Ok(Arc::new(FaultRandom { inner: self.inner.open(path)?, files: self.clone() }))
    }

    fn open_immutable(&self, path: &Path) -> Result<Arc<dyn RandomFile>> {
        self.check(FaultOp::Open, path)?;
        Ok(Arc::new(FaultRandom { inner: self.inner.open_immutable(path)?, files: self.clone() }))
    }

    fn open_left(&self, path: &Path) -> Result<Arc<dyn RandomFile>> {
        self.check(FaultOp::Open, path)?;
        Ok(Arc::new(FaultRandom { inner: self.inner.open_left(path)?, files: self.clone() }))
    }

    fn metrics(&self) -> Option<Arc<IoMetrics>> {
        Some(Arc::clone(&self.metrics))
    }

    fn truncate(&self, path: &Path, len: u64) -> Result<()> {
        self.check(FaultOp::Truncate, path)?;
        self.inner.truncate(path, len)?;
        self.give_back(path, len);
        Ok(())
    }

    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>> {
        self.check(FaultOp::List, dir)?;
        self.inner.list(dir)
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        self.check(FaultOp::Exists, path)?;
        self.inner.exists(path)
    }

    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        self.check(FaultOp::CreateDir, dir)?;
        self.inner.create_dir_all(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.check(FaultOp::Rename, from)?;
        self.inner.rename(from, to)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.check(FaultOp::Remove, path)?;
        let len = if self.inner.exists(path)? { self.inner.open(path)?.len()? } else { 0 };
        self.inner.remove(path)?;
        self.give_back(path, len);
        Ok(())
    }

    fn remove_large(&self, path: &Path) -> Result<Removed> {
        self.check(FaultOp::Remove, path)?;
        self.inner.remove_large(path)
    }

    fn remove_dir(&self, dir: &Path) -> Result<()> {
        self.check(FaultOp::RemoveDir, dir)?;
        self.inner.remove_dir(dir)
    }

    fn open_dir(&self, dir: &Path) -> Result<Box<dyn Directory>> {
        self.check(FaultOp::OpenDir, dir)?;
        let inner = self.inner.open_dir(dir)?;
        Ok(Box::new(FaultDirectory { inner, path: dir.to_owned(), files: self.clone() }))
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        self.check(FaultOp::Lock, path)?;
        self.inner.lock(path)
    }

    fn lock_to_read(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        self.check(FaultOp::Open, path)?;
        self.inner.lock_to_read(path)
    }
}

#[derive(Debug)]
struct FaultDirectory {
    inner: Box<dyn Directory>,
    path: PathBuf,
    files: FaultFiles,
}

impl Directory for FaultDirectory {
    fn sync(&self) -> Result<()> {
        self.files.tell_of_sync(&self.path);
        self.files.check(FaultOp::SyncDir, &self.path)?;
        self.inner.sync()
    }
}

#[derive(Debug)]
struct FaultWritable {
    inner: Box<dyn WritableFile>,
    path: PathBuf,
    files: FaultFiles,
}

impl FaultWritable {
    fn over(
        inner: Box<dyn WritableFile>,
        path: &Path,
        files: &FaultFiles,
    ) -> Box<dyn WritableFile> {
        Box::new(Self { inner, path: path.to_owned(), files: files.clone() })
    }
}

impl WritableFile for FaultWritable {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        let hook = lock(&self.files.plan).before_append.clone();
        if let Some(hook) = hook {
            hook(&self.path, data.len());
        }
        if let Err(error) = self.files.check(FaultOp::Append, &self.path) {
            self.inner.append(data.get(..data.len() / 2).unwrap_or_default())?;
            return Err(error);
        }
        let room = {
            let mut plan = lock(&self.files.plan);
            let reserved = plan.reserved.get(&self.path).copied().unwrap_or(0);
            let reserved = reserved.saturating_sub(self.inner.len());
            match &mut plan.quota_bytes {
                None => data.len(),
                Some(left) => {
                    let room = reserved.saturating_add(*left);
                    let room = usize::try_from(room).unwrap_or(usize::MAX).min(data.len());
                    *left -= (room as u64).saturating_sub(reserved);
                    room
                }
            }
        };
        self.inner.append(data.get(..room).unwrap_or_default())?;
        if room < data.len() {
            let path = self.path.display();
            let text = format!("write {path}: no space left within the quota");
            return Err(Error::new(ErrorKind::NoSpace, text));
        }
        Ok(())
    }

    fn begin_sync(&mut self) -> Result<()> {
        self.files.check(FaultOp::BeginSync, &self.path)?;
        self.inner.begin_sync()
    }

    fn sync(&mut self) -> Result<()> {
        self.files.tell_of_sync(&self.path);
        self.files.check(FaultOp::Sync, &self.path)?;
        self.inner.sync()
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn reserve(&mut self, len: u64) -> Result<()> {
        self.files.check(FaultOp::Reserve, &self.path)?;
        let mut plan = lock(&self.files.plan);
        let plan = &mut *plan;
        if let Some(left) = plan.quota_bytes.as_mut().filter(|_| !plan.reserves_nothing) {
            let reserved = plan.reserved.entry(self.path.clone()).or_default();
            let from = self.inner.len().max(*reserved);
            let more = len.saturating_sub(from);
            let got = more.min(*left);
            *left -= got;
            *reserved = from + got;
            if got < more {
                let path = self.path.display();
                let text = format!("reserve space for {path}: no space left within the quota");
                return Err(Error::new(ErrorKind::NoSpace, text));
            }
        }
        self.inner.reserve(len)
    }

    fn lay_out(&mut self, len: u64) -> Result<()> {
        self.files.check(FaultOp::LayOut, &self.path)?;
        self.inner.lay_out(len)
    }
}

#[derive(Debug)]
struct FaultRandom {
    inner: Arc<dyn RandomFile>,
    files: FaultFiles,
}

impl RandomFile for FaultRandom {
    fn path(&self) -> &Path {
        self.inner.path()
    }

    fn len(&self) -> Result<u64> {
        self.files.check(FaultOp::Len, self.path())?;
        self.inner.len()
    }

    fn read_at(&self, offset: u64, len: usize) -> Result<Bytes> {
        if let Some(device) = self.inner.device() {
            return super::device::read_blocking(self, &device, offset, len);
        }
        let hook = lock(&self.files.plan).before_read.clone();
        if let Some(hook) = hook {
            hook(self.path());
        }
        retry_once(&self.files.metrics, || {
            self.files.check_read(self.path(), offset, len)?;
            self.inner.read_at(offset, len)
        })
    }

    fn try_read_at(&self, offset: u64, len: usize) -> Option<Result<Bytes>> {
        if lock(&self.files.plan).before_read.is_some() {
            // The hook may block.
            return None;
        }
        let checked =
            retry_once(&self.files.metrics, || self.files.check_read(self.path(), offset, len));
        if let Err(error) = checked {
            return Some(Err(error));
        }
        self.inner.try_read_at(offset, len)
    }

    fn device(&self) -> Option<DeviceFile<'_>> {
        self.inner.device()
    }

    fn answer(&self, attempt: Attempt) -> Attempt {
        let fault = lock(&self.files.plan).next(FaultOp::Read, self.path(), None);
        match (fault, attempt) {
            (Some(fault), Ok(read)) if fault.short => Ok(read / 2),
            (Some(_), _) => Err(Errno::IO),
            (None, attempt) => attempt,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::{IoMode, LocalFiles, MemoryFiles};

    #[test]
    fn a_bad_sector_fails_the_reads_that_cover_it_and_no_others() {
        let (_, files) = both();
        let mut file = files.create(Path::new("f")).unwrap();
        file.append(&[7; 100]).unwrap();
        let file = files.open(Path::new("f")).unwrap();
        files.inject(Fault::new(FaultOp::Any).at(50).sticky());
        for (offset, len, fails) in [(0, 50, false), (0, 51, true), (50, 1, true), (51, 9, false)] {
            assert_eq!(file.read_at(offset, len).is_err(), fails, "{len} at {offset}");
            assert_eq!(file.try_read_at(offset, len).unwrap().is_err(), fails);
        }
        assert_eq!(file.len().unwrap(), 100);
    }

    fn both() -> (MemoryFiles, FaultFiles) {
        let memory = MemoryFiles::new();
        let faulty = FaultFiles::new(Arc::new(memory.clone()));
        (memory, faulty)
    }

    #[test]
    fn the_nth_matching_operation_fails_once_and_others_pass() {
        let (_, files) = both();
        files.inject(Fault::new(FaultOp::Sync).on_path("log").nth(2));
        let mut log = files.create(Path::new("log-1")).unwrap();
        let mut other = files.create(Path::new("sst-1")).unwrap();
        log.sync().unwrap();
        other.sync().unwrap();
        assert_eq!(log.sync().unwrap_err().kind(), ErrorKind::Io);
        log.sync().unwrap();
        assert_eq!((files.count(FaultOp::Sync), files.count(FaultOp::Any)), (4, 6));
    }

    #[test]
    fn a_sticky_fault_stays_until_it_is_healed() {
        let (memory, files) = both();
        files.inject(Fault::new(FaultOp::Any).kind(ErrorKind::NoSpace).sticky());
        for _ in 0..2 {
            assert_eq!(files.create(Path::new("f")).unwrap_err().kind(), ErrorKind::NoSpace);
        }
        files.heal();
        files.create(Path::new("f")).unwrap();
        assert!(memory.exists(Path::new("f")).unwrap());
    }

    #[test]
    fn a_failed_append_has_written_a_part() {
        let (memory, files) = both();
        let mut file = files.create(Path::new("f")).unwrap();
        files.inject(Fault::new(FaultOp::Append));
        assert!(file.append(b"abcdef").is_err());
        assert_eq!(memory.contents(Path::new("f")).unwrap(), b"abc");
    }

    #[test]
    fn the_quota_fills_up_to_the_byte_and_then_there_is_no_space() {
        let (memory, files) = both();
        files.set_quota_bytes(Some(5));
        let mut file = files.create(Path::new("f")).unwrap();
        file.append(b"abc").unwrap();
        assert_eq!(file.append(b"defg").unwrap_err().kind(), ErrorKind::NoSpace);
        assert_eq!(file.append(b"h").unwrap_err().kind(), ErrorKind::NoSpace);
        assert_eq!(memory.contents(Path::new("f")).unwrap(), b"abcde");
        files.set_quota_bytes(None);
        file.append(b"h").unwrap();
    }

    #[test]
    fn what_a_file_has_reserved_within_the_quota_it_may_append() {
        let (_, files) = both();
        files.set_quota_bytes(Some(10));
        let mut file = files.create(Path::new("f")).unwrap();
        file.append(b"ab").unwrap();
        file.reserve(6).unwrap();
        file.reserve(5).unwrap();
        let mut other = files.create(Path::new("g")).unwrap();
        assert_eq!(other.append(b"12345").unwrap_err().kind(), ErrorKind::NoSpace);
        file.append(b"cdef").unwrap();
        assert_eq!(file.append(b"g").unwrap_err().kind(), ErrorKind::NoSpace);
    }

    #[test]
    fn a_reservation_that_fails_keeps_what_it_got_until_the_file_is_cut() {
        let (_, files) = both();
        files.set_quota_bytes(Some(10));
        let mut file = files.create(Path::new("f")).unwrap();
        assert_eq!(file.reserve(11).unwrap_err().kind(), ErrorKind::NoSpace);
        let mut other = files.create(Path::new("g")).unwrap();
        assert_eq!(other.append(b"1").unwrap_err().kind(), ErrorKind::NoSpace);
        files.truncate(Path::new("f"), 0).unwrap();
        other.append(b"12345").unwrap();
        file.append(b"12345").unwrap();
        assert_eq!(file.append(b"6").unwrap_err().kind(), ErrorKind::NoSpace);
    }

    #[test]
    fn the_hook_runs_before_each_sync_and_reads_can_fail() {
        let (_, files) = both();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let inner = Arc::clone(&seen);
        let hook = move |path: &Path| inner.lock().unwrap().push(path.to_owned());
        files.before_sync(Some(Arc::new(hook)));
        let mut file = files.create(Path::new("f")).unwrap();
        file.append(b"x").unwrap();
        file.sync().unwrap();
        assert_eq!(*seen.lock().unwrap(), [Path::new("f")]);
        let reader = files.open(Path::new("f")).unwrap();
        files.inject(Fault::new(FaultOp::Read).nth(2).sticky());
        reader.read_at(0, 1).unwrap();
        assert!(reader.try_read_at(0, 1).unwrap().is_err());
        assert!(reader.read_at(0, 1).is_err());
        files.heal();
        assert_eq!(reader.try_read_at(0, 1).unwrap().unwrap(), "x");
    }

    #[test]
    fn an_append_waits_for_its_hook_which_is_told_of_its_bytes() {
        let (memory, files) = both();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (log, disk) = (Arc::clone(&seen), memory.clone());
        let hook = move |path: &Path, bytes: usize| {
            log.lock().unwrap().push((bytes, disk.contents(path).unwrap().len()));
        };
        files.before_append(Some(Arc::new(hook)));
        let mut file = files.create(Path::new("f")).unwrap();
        file.append(b"abc").unwrap();
        file.append(b"de").unwrap();
        files.before_append(None);
        file.append(b"f").unwrap();
        assert_eq!(*seen.lock().unwrap(), [(3, 0), (2, 3)], "bytes, and those that were there");
        assert_eq!(memory.contents(Path::new("f")).unwrap(), b"abcdef");
    }

    #[test]
    fn one_failing_attempt_is_a_retry_and_two_are_an_error_with_file_and_offset() {
        let dir = crate::testing::disk_dir();
        let path = dir.path().join("f");
        let local = LocalFiles::new(IoMode::Direct);
        local.create(&path).unwrap().append(&[3; 5_000]).unwrap();
        let (memory, _) = both();
        memory.put_contents(&path, vec![3; 5_000]);
        let inners: [Arc<dyn Files>; 2] = [Arc::new(local), Arc::new(memory)];
        for inner in inners {
            let files = FaultFiles::new(inner);
            let file = files.open_immutable(&path).unwrap();
            for fault in [Fault::new(FaultOp::Read), Fault::new(FaultOp::Read).short()] {
                let before = files.metrics().unwrap().figures().retries;
                files.inject(fault.clone());
                assert_eq!(file.read_at(1_000, 3_000).unwrap(), vec![3; 3_000]);
                assert_eq!(files.metrics().unwrap().figures().retries, before + 1);
                files.inject(fault.sticky());
                let error = file.read_at(1_000, 3_000).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Io);
                let message = error.message();
                assert!(message.contains("/f") && message.contains("offset 1000"), "{message}");
                files.heal();
            }
            assert_eq!(files.metrics().unwrap().figures().failures, 2);
        }
    }
}
