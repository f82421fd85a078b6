//! Files of the operating system.
//!
//! Guarantees: every error names the operation and the path; [`WritableFile::sync`] is `fdatasync`
//! (it also makes a grown length durable, since data that cannot be reached is not synced);
//! [`RandomFile::try_read_at`] answers from the page cache or not at all (`preadv2` with `RWF_NOWAIT`,
//! where platform and file system have it).
//!
//! With [`IoMode::Direct`], files that change no more are written ([`Files::create_immutable`]) and read
//! ([`Files::open_immutable`]) past the page cache: what is worth memory is in the block cache, and would else be
//! there twice; and copying into the page cache costs several times the processor time of a direct write. All
//! others (logs, manifests, configuration) are read and written through it.
//!
//! The files of a directory that is locked are those of the one that was, whatever has its name by now ([`anchor`](super::anchor)).

#![expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "this is the file seam")]

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsFd;
#[cfg(target_os = "linux")]
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, FileExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use rustix::fs::{FallocateFlags, FlockOperation};
use rustix::io::Errno;

use super::anchor::{Anchor, Anchored, At};
use super::device::{DeviceFile, READ_UNCHECKED_BYTES_MAX, read_blocking};
#[cfg(target_os = "linux")]
use super::direct::{DirectWritable, Refusal};
use super::{
    DirEntry, Directory, DiskSpace, FileLock, Files, IoMetrics, IoMode, RandomFile, Removed,
    WritableFile,
};
use crate::error::{Error, ErrorKind, Result};

/// Alignment of direct reads where the kernel does not tell (before 6.1): the largest sector that disks
/// have, which every other divides.
#[cfg(target_os = "linux")]
const DIRECT_ALIGN_UNKNOWN: usize = 4096;

/// Largest alignment that is believed; a file system that asks for more is read through the page cache.
#[cfg(target_os = "linux")]
const DIRECT_ALIGN_MAX: u32 = 64 << 10;

/// What is told ahead ends with a whole page: half a page would be written twice.
#[cfg(target_os = "linux")]
const PAGE_BYTES: u64 = 4096;

/// Rights of a directory for its owner alone.
const PRIVATE_MODE: u32 = 0o700;

/// What is laid out ahead, piece by piece.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// The operating system's file system.
#[derive(Debug, Default)]
pub struct LocalFiles {
    mode: IoMode,
    metrics: Arc<IoMetrics>,
    /// The directory that is locked.
    anchored: Anchored,
    /// Whether it was said that direct reads are refused.
    refusal_told: AtomicBool,
    /// Whether direct reads are taken, once that is known.
    direct_reads: OnceLock<bool>,
    /// The same of direct writes.
    #[cfg(target_os = "linux")]
    write_refusal: Arc<Refusal>,
}

impl LocalFiles {
    /// Files whose immutable ones are written and read in this mode.
    pub fn new(mode: IoMode) -> Self {
        #[cfg(target_os = "linux")]
        if mode == IoMode::Direct {
            super::regions::prepare();
        }
        Self { mode, ..Self::default() }
    }

    /// Where the file with this name is reached.
    fn at<'a>(&self, path: &'a Path) -> At<'a> {
        self.anchored.at(path)
    }

    fn open_buffered(&self, path: &Path) -> Result<LocalRandom> {
        let file = File::open(self.at(path)).map_err(|e| failed("open", path, &e))?;
        Ok(LocalRandom {
            file,
            path: path.to_owned(),
            alignment: None,
            nowait: AtomicBool::new(true),
            metrics: Arc::clone(&self.metrics),
        })
    }

    /// A file to be read past the page cache; `None` where its file system refuses that.
    #[cfg(target_os = "linux")]
    fn open_direct(&self, path: &Path) -> Result<Option<LocalRandom>> {
        use rustix::fs::{Advice, Mode, OFlags};

        let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
        let file = match rustix::fs::open(&*self.at(path), flags, Mode::empty()) {
            Ok(fd) => File::from(fd),
            Err(Errno::INVAL) => return Ok(None),
            Err(errno) => return Err(failed("open", path, &errno.into())),
        };
        let Some(alignment) = alignment(&file) else { return Ok(None) };
        // What was written through the page cache a moment ago would stay there and be of no use. A hint:
        // pages that are still dirty stay, and reads are coherent with them.
        let _ = rustix::fs::fadvise(&file, 0, None, Advice::DontNeed);
        let file = LocalRandom {
            file,
            path: path.to_owned(),
            alignment: Some(alignment),
            nowait: AtomicBool::new(false),
            metrics: Arc::clone(&self.metrics),
        };
        Ok(if self.takes_direct_reads(&file, path)? { Some(file) } else { None })
    }

    /// Whether the file system takes such reads, where it does not say so: some refuse them only when the first is made. Tried once, with
    /// a byte that can be read through the page cache.
    #[cfg(target_os = "linux")]
    fn takes_direct_reads(&self, file: &LocalRandom, path: &Path) -> Result<bool> {
        if file.alignment.is_some_and(|align| align.is_told) {
            return Ok(true);
        }
        if let Some(known) = self.direct_reads.get() {
            return Ok(*known);
        }
        if file.len()? == 0 {
            return Ok(true);
        }
        let takes = match file.read_at(0, 1) {
            Ok(_) => true,
            // A shortage, or damage, says nothing of others.
            Err(error) if error.kind() == ErrorKind::Exhausted => return Ok(true),
            Err(_) if self.open_buffered(path)?.read_at(0, 1).is_err() => return Ok(true),
            Err(_) => false,
        };
        Ok(*self.direct_reads.get_or_init(|| takes))
    }

    /// A file to be written past the page cache; `None` where its file system refuses that.
    #[cfg(target_os = "linux")]
    fn create_direct(&self, path: &Path) -> Result<Option<DirectWritable>> {
        use rustix::fs::{Mode, OFlags};

        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::DIRECT | OFlags::CLOEXEC;
        let file = match rustix::fs::open(&*self.at(path), flags, Mode::from_raw_mode(0o666)) {
            Ok(fd) => File::from(fd),
            Err(Errno::INVAL) => {
                // Some file systems have made the name by then.
                if self.exists(path)? {
                    self.remove(path)?;
                }
                return Ok(None);
            }
            Err(errno) => return Err(failed("create", path, &errno.into())),
        };
        // Where direct I/O is refused only now, the first write is refused as well, and that is met.
        let align = alignment(&file).map_or(DIRECT_ALIGN_UNKNOWN, |align| align.memory);
        Ok(DirectWritable::new(file, path, align, Arc::clone(&self.write_refusal)))
    }

    #[cfg(not(target_os = "linux"))]
    fn open_direct(&self, _path: &Path) -> Result<Option<LocalRandom>> {
        Ok(None)
    }
}

/// What direct reads of a file must be aligned to.
#[derive(Debug, Clone, Copy)]
struct Alignment {
    offset: usize,
    memory: usize,
    /// The file system says so.
    is_told: bool,
}

/// Asks the kernel; `None` where the file cannot be read directly.
#[cfg(target_os = "linux")]
fn alignment(file: &File) -> Option<Alignment> {
    use rustix::fs::{AtFlags, StatxFlags};

    let unknown =
        Alignment { offset: DIRECT_ALIGN_UNKNOWN, memory: DIRECT_ALIGN_UNKNOWN, is_told: false };
    let Ok(stat) = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) else {
        return Some(unknown);
    };
    if StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::DIOALIGN) {
        let usable = |align: u32| align.is_power_of_two() && align <= DIRECT_ALIGN_MAX;
        let (offset, memory) = (stat.stx_dio_offset_align, stat.stx_dio_mem_align);
        // Memory as strictly as offsets, whatever the kernel says that it needs: a device of whole pages
        // (zram) takes every piece of a buffer for one, and writes past a buffer that begins within a page.
        let memory = memory.max(offset);
        // Zero means that the file system has no direct reads for this file.
        return (usable(offset) && usable(memory)).then_some(Alignment {
            offset: offset as usize,
            memory: memory as usize,
            is_told: true,
        });
    }
    Some(unknown)
}

pub(super) fn failed(what: &str, path: &Path, error: &std::io::Error) -> Error {
    Error::io(format_args!("{what} {}", path.display()), error)
}

impl Files for LocalFiles {
    fn disk_space(&self, path: &Path) -> Result<Option<DiskSpace>> {
        let stat = rustix::fs::statvfs(&*self.at(path))
            .map_err(|errno| failed("ask for the free space at", path, &errno.into()))?;
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        let space = DiskSpace { free: bytes(stat.f_bavail), total: bytes(stat.f_blocks) };
        // Some file systems count nothing.
        Ok((space.total > 0).then_some(space))
    }

    fn create(&self, path: &Path) -> Result<Box<dyn WritableFile>> {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(self.at(path))
            .map_err(|e| failed("create", path, &e))?;
        Ok(Box::new(LocalWritable::new(file, path)))
    }

    #[cfg(target_os = "linux")]
    fn create_immutable(&self, path: &Path) -> Result<Box<dyn WritableFile>> {
        if self.mode == IoMode::Direct {
            if let Some(file) = self.create_direct(path)? {
                return Ok(Box::new(file));
            }
            self.write_refusal.tell(path);
        }
        self.create(path)
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn RandomFile>> {
        Ok(Arc::new(self.open_buffered(path)?))
    }

    fn open_immutable(&self, path: &Path) -> Result<Arc<dyn RandomFile>> {
        if self.mode == IoMode::Direct {
            if let Some(file) = self.open_direct(path)? {
                return Ok(Arc::new(file));
            }
            if !self.refusal_told.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    file = %path.display(),
                    "the file system refuses direct reads; files there are read through the page cache"
                );
            }
        }
        self.open(path)
    }

    fn open_left(&self, path: &Path) -> Result<Arc<dyn RandomFile>> {
        // Whatever the mode.
        if let Some(file) = self.open_direct(path)? {
            return Ok(Arc::new(file));
        }
        let file = self.open_buffered(path)?;
        file.forget_pages();
        Ok(Arc::new(file))
    }

    fn metrics(&self) -> Option<Arc<IoMetrics>> {
        Some(Arc::clone(&self.metrics))
    }

    fn truncate(&self, path: &Path, len: u64) -> Result<()> {
        let file = OpenOptions::new()
            .write(true)
            .open(self.at(path))
            .map_err(|e| failed("open to truncate", path, &e))?;
        file.set_len(len).map_err(|e| failed("truncate", path, &e))?;
        file.sync_all().map_err(|e| failed("sync", path, &e))
    }

    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        let at = self.at(dir);
        for entry in fs::read_dir(&at).map_err(|e| failed("list", dir, &e))? {
            let entry = entry.map_err(|e| failed("list", dir, &e))?;
            // The engine's own names are ASCII: another name is a stranger's file.
            let Ok(name) = entry.file_name().into_string() else { continue };
            let meta = match entry.metadata() {
                Ok(meta) => meta,
                // Removed between the listing and the look at it.
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
                Err(e) => return Err(failed("stat", &dir.join(name), &e)),
            };
            let is_dir = meta.is_dir();
            entries.push(DirEntry { name, len: if is_dir { 0 } else { meta.len() }, is_dir });
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        self.at(path).try_exists().map_err(|e| failed("stat", path, &e))
    }

    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        fs::create_dir_all(self.at(dir)).map_err(|e| failed("create directory", dir, &e))
    }

    fn create_private_dir(&self, dir: &Path) -> Result<()> {
        if let Some(above) = dir.parent() {
            self.create_dir_all(above)?;
        }
        let at = self.at(dir);
        match fs::DirBuilder::new().mode(PRIVATE_MODE).create(&at) {
            Err(e) if !at.is_dir() => Err(failed("create directory", dir, &e)),
            _ => Ok(()),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        fs::rename(self.at(from), self.at(to)).map_err(|e| {
            Error::io(format_args!("rename {} to {}", from.display(), to.display()), &e)
        })
    }

    fn remove(&self, path: &Path) -> Result<()> {
        fs::remove_file(self.at(path)).map_err(|e| failed("remove", path, &e))
    }

    fn remove_large(&self, path: &Path) -> Result<Removed> {
        super::pieces::remove(&self.at(path)).map_err(|e| failed("remove", path, &e))
    }

    fn remove_dir(&self, dir: &Path) -> Result<()> {
        fs::remove_dir(self.at(dir)).map_err(|e| failed("remove directory", dir, &e))
    }

    fn open_dir(&self, dir: &Path) -> Result<Box<dyn Directory>> {
        let path = or_here(dir).to_owned();
        Ok(Box::new(LocalDirectory { file: open_dir(&self.at(dir), dir)?, path }))
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        let operation = FlockOperation::NonBlockingLockExclusive;
        self.lock_with(parent(path), Some((path, &options)), operation)
    }

    fn lock_to_read(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        // Shared: over NFS, an exclusive lock takes a file that is open for writing.
        let mut options = OpenOptions::new();
        options.read(true);
        let operation = FlockOperation::NonBlockingLockShared;
        self.lock_with(parent(path), Some((path, &options)), operation)
    }

    fn lock_dir_to_read(&self, dir: &Path) -> Result<Option<Box<dyn FileLock>>> {
        self.lock_with(dir, None, FlockOperation::NonBlockingLockShared).map(Some)
    }
}

/// The parent of a relative one-part path is the empty path, which means "here".
fn or_here(dir: &Path) -> &Path {
    if dir.as_os_str().is_empty() { Path::new(".") } else { dir }
}

/// Opens a directory that is reached at `at`.
fn open_dir(at: &Path, dir: &Path) -> Result<File> {
    File::open(or_here(at)).map_err(|e| failed("open directory", or_here(dir), &e))
}

/// The directory of a file.
fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

impl LocalFiles {
    /// Locks a file, where there is one, and the directory that it is in: the file alone could be removed, and made anew by who locks
    /// that one.
    fn lock_with(
        &self,
        dir: &Path,
        file: Option<(&Path, &OpenOptions)>,
        operation: FlockOperation,
    ) -> Result<Box<dyn FileLock>> {
        let anchor = Anchor::new(dir, open_dir(dir, dir)?);
        let anchor = anchor.map_err(|e| failed("open directory", dir, &e))?;
        let at = |path: &Path| {
            let through = anchor.as_ref().and_then(|anchor| anchor.reaches(path));
            through.unwrap_or_else(|| path.to_owned())
        };
        let open = |(path, options): (&Path, &OpenOptions)| {
            options.open(at(path)).map_err(|e| failed("open to lock", path, &e))
        };
        let opened_file = file.map(open).transpose()?;
        // Of its own: who reaches a file by the anchor keeps that open, and not the lock.
        let dir_file = open_dir(&at(dir), dir)?;
        let told = file.map_or(dir, |(path, _)| path);
        let of_file =
            opened_file.as_ref().map_or(Ok(()), |file| rustix::fs::flock(file, operation));
        let locked = of_file.and_then(|()| {
            match rustix::fs::flock(&dir_file, operation) {
                Err(Errno::WOULDBLOCK) => Err(Errno::WOULDBLOCK),
                // A file system, NFS for one, that locks no directories.
                _ => Ok(()),
            }
        });
        match locked {
            Ok(()) => {
                if let Some(anchor) = &anchor {
                    self.anchored.add(anchor);
                }
                let path = dir.to_owned();
                Ok(Box::new(LocalLock { _files: (opened_file, dir_file), anchor, path }))
            }
            Err(Errno::WOULDBLOCK) => Err(Error::new(
                ErrorKind::Locked,
                format!("{} is locked: another process uses this directory", told.display()),
            )),
            Err(errno) => Err(failed("lock", told, &errno.into())),
        }
    }
}

#[derive(Debug)]
struct LocalDirectory {
    file: File,
    path: PathBuf,
}

impl Directory for LocalDirectory {
    fn sync(&self) -> Result<()> {
        // What it lacked, it may have lost names for: that is no shortage which passes.
        self.file.sync_all().map_err(|e| {
            let error = failed("sync directory", &self.path, &e);
            Error::new(ErrorKind::Io, error.message())
        })
    }
}

/// The locks go with their descriptors.
#[derive(Debug)]
struct LocalLock {
    _files: (Option<File>, File),
    anchor: Option<Arc<Anchor>>,
    /// The directory.
    path: PathBuf,
}

impl FileLock for LocalLock {
    fn check(&self) -> Result<()> {
        if self.anchor.as_ref().is_some_and(|anchor| anchor.is_removed()) {
            let text = format!("{} was removed while it was in use", self.path.display());
            return Err(Error::new(ErrorKind::Io, text));
        }
        Ok(())
    }
}

/// Reserves space for the bytes `from` to `to` of a file, where its file system can. Only what it has not: XFS wants all of the range
/// to be free, whatever the file has of it.
#[cfg(target_os = "linux")]
pub(super) fn reserve(file: &File, path: &Path, from: u64, to: u64) -> Result<()> {
    if to <= from {
        return Ok(());
    }
    let allocate = || rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, from, to - from);
    match rustix::io::retry_on_intr(allocate) {
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        Err(errno) => Err(failed("reserve space for", path, &errno.into())),
    }
}

#[derive(Debug)]
struct LocalWritable {
    file: File,
    path: PathBuf,
    len: u64,
    /// Up to here the file has bytes that were appended, or zeros.
    laid_out: u64,
    /// Up to here the device has been told of what was appended.
    told: u64,
    /// Up to here it has space.
    #[cfg(target_os = "linux")]
    reserved: u64,
}

impl LocalWritable {
    /// Of an empty file.
    fn new(file: File, path: &Path) -> Self {
        Self {
            file,
            path: path.to_owned(),
            len: 0,
            laid_out: 0,
            told: 0,
            #[cfg(target_os = "linux")]
            reserved: 0,
        }
    }
}

impl WritableFile for LocalWritable {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        self.file.write_all(data).map_err(|e| failed("write", &self.path, &e))?;
        self.len += data.len() as u64;
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        self.file.sync_data().map_err(|e| failed("sync", &self.path, &e))
    }

    #[cfg(target_os = "linux")]
    fn begin_sync(&mut self) -> Result<()> {
        let to = self.len - self.len % PAGE_BYTES;
        if to <= self.told {
            return Ok(());
        }
        let (from, bytes) = (self.told as libc::off64_t, (to - self.told) as libc::off64_t);
        self.told = to;
        let (fd, flags) = (self.file.as_raw_fd(), libc::SYNC_FILE_RANGE_WRITE);
        // SAFETY: the descriptor is open, and no memory is involved.
        let begun = unsafe { libc::sync_file_range(fd, from, bytes, flags) };
        let error = if begun == 0 { return Ok(()) } else { std::io::Error::last_os_error() };
        match error.raw_os_error() {
            // What the disk says of these bytes may be told but once.
            Some(libc::EIO | libc::ENOSPC | libc::EDQUOT | libc::EROFS) => {
                Err(failed("write", &self.path, &error))
            }
            // A file system that knows no such thing.
            _ => Ok(()),
        }
    }

    fn len(&self) -> u64 {
        self.len
    }

    #[cfg(target_os = "linux")]
    fn reserve(&mut self, len: u64) -> Result<()> {
        reserve(&self.file, &self.path, self.reserved.max(self.len), len)?;
        self.reserved = self.reserved.max(len);
        Ok(())
    }

    #[cfg(not(target_os = "linux"))]
    fn reserve(&mut self, _len: u64) -> Result<()> {
        Ok(())
    }

    fn lay_out(&mut self, len: u64) -> Result<()> {
        let mut at = self.laid_out.max(self.len);
        while at < len {
            let piece = (len - at).min(ZEROS.len() as u64);
            let zeros = ZEROS.get(..piece as usize).unwrap_or_default();
            // Beside the position at which appends go on.
            self.file
                .write_all_at(zeros, at)
                .map_err(|e| failed("write zeros to", &self.path, &e))?;
            at += piece;
            self.laid_out = at;
        }
        Ok(())
    }
}

#[derive(Debug)]
struct LocalRandom {
    file: File,
    path: PathBuf,
    /// How reads must lie if the file is read past the page cache.
    alignment: Option<Alignment>,
    /// Whether this file's file system may answer without blocking; false once it said that it cannot.
    nowait: AtomicBool,
    metrics: Arc<IoMetrics>,
}

impl LocalRandom {
    /// Has reads come from the device, where the file system refuses to pass by the page cache. As far as that goes: a page that
    /// somebody has mapped stays.
    fn forget_pages(&self) {
        // What can still be written is; what a failed sync has lost counts as written, and goes.
        let _ = self.file.sync_data();
        #[cfg(target_os = "linux")]
        let _ = rustix::fs::fadvise(&self.file, 0, None, rustix::fs::Advice::DontNeed);
    }

    fn as_device(&self) -> DeviceFile<'_> {
        let Alignment { offset, memory, .. } =
            self.alignment.unwrap_or(Alignment { offset: 1, memory: 1, is_told: true });
        DeviceFile {
            fd: self.file.as_fd(),
            offset_align: offset,
            memory_align: memory,
            metrics: &self.metrics,
        }
    }
}

impl RandomFile for LocalRandom {
    fn path(&self) -> &Path {
        &self.path
    }

    fn len(&self) -> Result<u64> {
        Ok(self.file.metadata().map_err(|e| failed("stat", &self.path, &e))?.len())
    }

    fn read_at(&self, offset: u64, len: usize) -> Result<Bytes> {
        read_blocking(self, &self.as_device(), offset, len)
    }

    #[cfg(target_os = "linux")]
    fn try_read_at(&self, offset: u64, len: usize) -> Option<Result<Bytes>> {
        use rustix::io::ReadWriteFlags;

        if !self.nowait.load(Ordering::Relaxed) || len > READ_UNCHECKED_BYTES_MAX {
            return None;
        }
        let mut buffer = vec![0; len];
        let read = rustix::io::preadv2(
            &self.file,
            &mut [std::io::IoSliceMut::new(&mut buffer)],
            offset,
            ReadWriteFlags::NOWAIT,
        );
        match read {
            Ok(n) if n == len => {
                self.metrics.cached_read();
                Some(Ok(Bytes::from(buffer)))
            }
            // Not supported.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                self.nowait.store(false, Ordering::Relaxed);
                None
            }
            // Part of it is in memory, or the file ends, or an error that may pass: the blocking read tells which.
            Ok(_) | Err(_) => None,
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn try_read_at(&self, _offset: u64, _len: usize) -> Option<Result<Bytes>> {
        let _ = self.nowait.load(Ordering::Relaxed);
        None
    }

    fn device(&self) -> Option<DeviceFile<'_>> {
        Some(self.as_device())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;
    use crate::testing::{disk_dir, skip};

    #[test]
    fn what_is_appended_is_read_back_at_any_offset() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let mut file = LocalFiles::default().create(&path).unwrap();
        file.reserve(1 << 20).unwrap();
        assert!(file.is_empty());
        file.append(b"hello ").unwrap();
        file.append(b"world").unwrap();
        file.sync().unwrap();
        assert_eq!(file.len(), 11);

        let file = LocalFiles::default().open(&path).unwrap();
        assert_eq!(file.path(), path);
        assert_eq!(file.len().unwrap(), 11, "reserved space does not count");
        assert_eq!(file.read_at(6, 5).unwrap(), "world");
        if let Some(read) = file.try_read_at(0, 5) {
            assert_eq!(read.unwrap(), "hello");
        }
        assert!(file.try_read_at(8, 5).is_none(), "a short read is no answer");
        assert_eq!(
            LocalFiles::default().list(dir.path()).unwrap(),
            [DirEntry { name: "a".into(), len: 11, is_dir: false }]
        );
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_page_cache_is_asked_again_after_an_error_unless_it_cannot_be_asked_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        LocalFiles::default().create(&path).unwrap().append(b"hello").unwrap();
        let mut random = LocalFiles::default().open_buffered(&path).unwrap();
        let answers = random.try_read_at(0, 5).is_some();
        // No read of it goes well.
        let write_only = OpenOptions::new().write(true).open(&path).unwrap();
        let readable = std::mem::replace(&mut random.file, write_only);
        random.nowait.store(true, Ordering::Relaxed);
        assert!(random.try_read_at(0, 5).is_none());
        assert!(random.nowait.load(Ordering::Relaxed));
        random.file = readable;
        assert_eq!(random.try_read_at(0, 5).is_some(), answers);
        // Files of /proc have no such reads.
        let random = LocalFiles::default().open_buffered(Path::new("/proc/self/cmdline")).unwrap();
        assert!(random.try_read_at(0, 1).is_none());
        assert!(!random.nowait.load(Ordering::Relaxed));
    }

    #[test]
    fn appends_go_on_within_the_zeros_that_were_laid_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let mut file = LocalFiles::default().create(&path).unwrap();
        file.append(b"one").unwrap();
        file.lay_out(200_000).unwrap();
        file.append(b"two").unwrap();
        file.lay_out(100_000).unwrap();
        file.sync().unwrap();
        assert_eq!(file.len(), 6);
        let bytes = fs::read(&path).unwrap();
        assert_eq!(bytes.len(), 200_000);
        assert!(bytes.starts_with(b"onetwo") && bytes[6..].iter().all(|b| *b == 0));
        file.append(&vec![7; 200_000]).unwrap();
        assert_eq!(fs::read(&path).unwrap().len(), 200_006);
    }

    #[test]
    fn a_read_past_the_end_is_corruption_that_names_file_and_offset() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("short");
        LocalFiles::default().create(&path).unwrap().append(b"abc").unwrap();
        let file = LocalFiles::default().open(&path).unwrap();
        for (offset, len) in [(1, 3), (0, 1 << 30), (u64::MAX, 2 << 20)] {
            let error = file.read_at(offset, len).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corruption);
            assert!(error.message().contains("short") && error.message().contains("offset"));
        }
    }

    #[test]
    fn errors_name_the_operation_and_the_path() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("missing");
        let error = LocalFiles::default().open(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.message().starts_with("open ") && error.message().contains("missing"));
        LocalFiles::default().create(&path).unwrap();
        assert_eq!(
            LocalFiles::default().create(&path).unwrap_err().kind(),
            ErrorKind::AlreadyExists
        );
    }

    #[test]
    fn a_sync_that_fails_is_told_by_the_path_of_what_was_to_be_synced() {
        // That of a pipe always fails, so one that is left out is seen here; that of a file tells nobody whether it was made.
        let pipe = || File::from(OwnedFd::from(std::io::pipe().unwrap().1));
        let path = Path::new("/data/of-a-pipe");
        let error = LocalWritable::new(pipe(), path).sync().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.message().starts_with("sync /data/of-a-pipe: "), "{error}");
        let dir = LocalDirectory { file: pipe(), path: path.to_owned() };
        let error = dir.sync().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.message().starts_with("sync directory /data/of-a-pipe: "), "{error}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_file_is_not_cut_before_that_is_synced() {
        // What is in /proc can be cut, without effect, and not synced.
        let path = Path::new("/proc/self/comm");
        let cut = fs::OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(0));
        if cut.is_err() {
            return skip("this system has no file that can be cut and not synced");
        }
        let error = LocalFiles::default().truncate(path, 0).unwrap_err();
        assert!(error.message().starts_with("sync /proc/self/comm: "), "{error}");
    }

    #[test]
    fn who_only_reads_locks_a_file_that_may_not_be_written_and_keeps_writers_out() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("LOCK");
        let files = LocalFiles::default();
        assert_eq!(files.lock_to_read(&path).unwrap_err().kind(), ErrorKind::NotFound);
        let writing = files.lock(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
        assert_eq!(files.lock_to_read(&path).unwrap_err().kind(), ErrorKind::Locked);
        drop(writing);
        let reading = [files.lock_to_read(&path).unwrap(), files.lock_to_read(&path).unwrap()];
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(files.lock(&path).unwrap_err().kind(), ErrorKind::Locked);
        drop(reading);
        files.lock(&path).unwrap();
    }

    #[test]
    fn a_second_lock_is_refused_until_the_first_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("LOCK");
        let held = LocalFiles::default().lock(&path).unwrap();
        assert_eq!(LocalFiles::default().lock(&path).unwrap_err().kind(), ErrorKind::Locked);
        drop(held);
        LocalFiles::default().lock(&path).unwrap();
    }

    #[test]
    fn a_private_directory_is_for_its_owner_alone_where_it_is_new() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let files = LocalFiles::default();
        let mode = |name: &str| fs::metadata(at(name)).unwrap().permissions().mode() & 0o777;
        files.create_private_dir(&at("above/data")).unwrap();
        assert_eq!(mode("above/data"), 0o700);
        files.create_dir_all(&at("usual")).unwrap();
        assert_eq!(mode("above"), mode("usual"));
        // What the operator made stays as it is.
        fs::set_permissions(at("usual"), fs::Permissions::from_mode(0o750)).unwrap();
        files.create_private_dir(&at("usual")).unwrap();
        assert_eq!(mode("usual"), 0o750);
        files.create(&at("file")).unwrap();
        assert!(files.create_private_dir(&at("file")).is_err());
    }

    #[test]
    fn names_can_be_renamed_listed_truncated_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        LocalFiles::default().create_dir_all(&at("d/e")).unwrap();
        LocalFiles::default().create_dir_all(&at("d/e")).unwrap();
        LocalFiles::default().create(&at("d/b")).unwrap().append(b"12345").unwrap();
        LocalFiles::default().create(&at("d/a")).unwrap();
        LocalFiles::default().rename(&at("d/b"), &at("d/a")).unwrap();
        LocalFiles::default().truncate(&at("d/a"), 2).unwrap();
        LocalFiles::default().sync_dir(&at("d")).unwrap();
        let names = |entries: Vec<DirEntry>| {
            entries.into_iter().map(|e| (e.name, e.len, e.is_dir)).collect::<Vec<_>>()
        };
        assert_eq!(
            names(LocalFiles::default().list(&at("d")).unwrap()),
            [("a".to_owned(), 2, false), ("e".to_owned(), 0, true)]
        );
        LocalFiles::default().remove(&at("d/a")).unwrap();
        LocalFiles::default().remove_dir(&at("d/e")).unwrap();
        assert!(!LocalFiles::default().exists(&at("d/a")).unwrap());
        assert!(LocalFiles::default().remove_dir(&at("d/e")).is_err());
    }

    #[test]
    fn direct_reads_give_what_buffered_ones_give_up_to_the_last_byte() {
        let dir = disk_dir();
        let path = dir.path().join("sst");
        let data: Vec<u8> = (0..10_007u32).map(|i| (i % 253) as u8).collect();
        let mut file = LocalFiles::default().create(&path).unwrap();
        file.append(&data).unwrap();
        file.sync().unwrap();
        let files = LocalFiles::new(IoMode::Direct);
        let direct = files.open_immutable(&path).unwrap();
        if direct.device().unwrap().offset_align == 1 {
            skip("this file system has no direct reads");
        } else {
            assert!(direct.try_read_at(0, 16).is_none(), "no answer from the page cache");
        }
        for (offset, len) in [
            (0, 0),
            (0, 1),
            (0, 10_007),
            (511, 2),
            (512, 512),
            (9_999, 8),
            (10_006, 1),
            (10_007, 0),
        ] {
            let bytes = direct.read_at(offset as u64, len).unwrap();
            assert_eq!(bytes, data[offset..offset + len], "{len} at {offset}");
        }
        let error = direct.read_at(10_000, 8).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corruption);
        assert_eq!(direct.len().unwrap(), 10_007);
        assert_eq!(files.metrics().unwrap().figures().reads, 6);
    }

    #[test]
    fn a_file_system_without_direct_reads_is_read_through_the_page_cache() {
        // Files of /proc have no direct reads, on any kernel.
        let files = LocalFiles::new(IoMode::Direct);
        let file = files.open_immutable(Path::new("/proc/self/cmdline")).unwrap();
        assert_eq!(file.device().unwrap().offset_align, 1);
        assert!(files.refusal_told.load(Ordering::Relaxed));
        assert_eq!(file.read_at(0, 1).unwrap().len(), 1);
        assert!(
            files.open_immutable(Path::new("/proc/self/nothing")).unwrap_err().kind()
                == ErrorKind::NotFound
        );
        let left = files.open_left(Path::new("/proc/self/cmdline")).unwrap();
        assert_eq!(left.read_at(0, 1).unwrap(), file.read_at(0, 1).unwrap());
    }

    #[test]
    fn what_another_process_left_is_read_past_the_page_cache_in_any_mode() {
        let dir = disk_dir();
        let path = dir.path().join("journal");
        let mut file = LocalFiles::default().create(&path).unwrap();
        file.append(b"not synced").unwrap();
        let direct = |mode| {
            let left = LocalFiles::new(mode).open_left(&path).unwrap();
            assert_eq!(left.read_at(0, 10).unwrap(), "not synced");
            left.device().unwrap().offset_align
        };
        assert_eq!(direct(IoMode::Buffered), direct(IoMode::Direct));
    }

    #[test]
    fn what_is_written_directly_is_read_back_to_the_byte_however_it_was_appended() {
        let dir = disk_dir();
        let files = LocalFiles::new(IoMode::Direct);
        let data: Vec<u8> = (0..3_000_007u32).map(|i| (i % 251) as u8).collect();
        for (name, piece) in [("a", 1_000), ("b", 4096), ("c", 1 << 20), ("d", 3_000_007)] {
            let path = dir.path().join(name);
            let mut file = files.create_immutable(&path).unwrap();
            assert!(file.is_empty());
            for piece in data.chunks(piece) {
                file.append(piece).unwrap();
            }
            assert_eq!(file.len(), data.len() as u64);
            file.sync().unwrap();
            assert!(fs::read(&path).unwrap() == data, "{name}");
            // And on.
            file.append(b"more").unwrap();
            file.sync().unwrap();
            file.sync().unwrap();
            let read = fs::read(&path).unwrap();
            assert!(read.len() == data.len() + 4 && read.ends_with(b"more"), "{name}");
            assert!(read.starts_with(&data), "{name}");
            drop(file);
            let kind = files.create_immutable(&path).unwrap_err().kind();
            assert_eq!(kind, ErrorKind::AlreadyExists);
        }
        let empty = dir.path().join("empty");
        files.create_immutable(&empty).unwrap().sync().unwrap();
        assert_eq!(fs::read(&empty).unwrap(), b"");
    }

    #[test]
    fn only_immutable_files_are_read_directly() {
        let dir = disk_dir();
        let path = dir.path().join("log");
        LocalFiles::default().create(&path).unwrap().append(b"abc").unwrap();
        let file = LocalFiles::new(IoMode::Direct).open(&path).unwrap();
        assert_eq!(file.device().unwrap().offset_align, 1);
    }
}
