//! Files of the operating system.
//!
//! Guarantees: every error names the operation and the path; [`WritableFile::sync`] is `fdatasync`
//! (it also makes a grown length durable, since data that cannot be reached is not synced);
//! [`RandomFile::try_read_at`] answers from the page cache or not at all (`preadv2` with `RWF_NOWAIT`,
//! where platform and file system have it).

#![expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "this is the file seam")]

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use rustix::fs::{FallocateFlags, FlockOperation};
use rustix::io::Errno;

use super::{DirEntry, FileLock, Files, RandomFile, WritableFile};
use crate::error::{Error, ErrorKind, Result};

/// Reads longer than this are checked against the file's length before memory is taken for them, so
/// that a damaged length cannot ask for gigabytes. Smaller ones are not worth the system call.
const READ_UNCHECKED_BYTES_MAX: usize = 1 << 20;

/// The operating system's file system.
#[derive(Debug, Default)]
pub struct LocalFiles;

fn failed(what: &str, path: &Path, error: &std::io::Error) -> Error {
    Error::io(format_args!("{what} {}", path.display()), error)
}

impl Files for LocalFiles {
    fn create(&self, path: &Path) -> Result<Box<dyn WritableFile>> {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(path)
            .map_err(|e| failed("create", path, &e))?;
        Ok(Box::new(LocalWritable { file, path: path.to_owned(), len: 0 }))
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn RandomFile>> {
        let file = File::open(path).map_err(|e| failed("open", path, &e))?;
        Ok(Arc::new(LocalRandom { file, path: path.to_owned(), nowait: AtomicBool::new(true) }))
    }

    fn truncate(&self, path: &Path, len: u64) -> Result<()> {
        let file = OpenOptions::new()
            .write(true)
            .open(path)
            .map_err(|e| failed("open to truncate", path, &e))?;
        file.set_len(len).map_err(|e| failed("truncate", path, &e))?;
        file.sync_all().map_err(|e| failed("sync", path, &e))
    }

    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(dir).map_err(|e| failed("list", dir, &e))? {
            let entry = entry.map_err(|e| failed("list", dir, &e))?;
            // The engine's own names are ASCII: another name is a stranger's file.
            let Ok(name) = entry.file_name().into_string() else { continue };
            let meta = match entry.metadata() {
                Ok(meta) => meta,
                // Removed between the listing and the look at it.
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
                Err(e) => return Err(failed("stat", &entry.path(), &e)),
            };
            let is_dir = meta.is_dir();
            entries.push(DirEntry { name, len: if is_dir { 0 } else { meta.len() }, is_dir });
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        path.try_exists().map_err(|e| failed("stat", path, &e))
    }

    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        fs::create_dir_all(dir).map_err(|e| failed("create directory", dir, &e))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        fs::rename(from, to).map_err(|e| {
            Error::io(format_args!("rename {} to {}", from.display(), to.display()), &e)
        })
    }

    fn remove(&self, path: &Path) -> Result<()> {
        fs::remove_file(path).map_err(|e| failed("remove", path, &e))
    }

    fn remove_dir(&self, dir: &Path) -> Result<()> {
        fs::remove_dir(dir).map_err(|e| failed("remove directory", dir, &e))
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        // The parent of a relative one-part path is the empty path, which means "here".
        let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
        let handle = File::open(dir).map_err(|e| failed("open directory", dir, &e))?;
        handle.sync_all().map_err(|e| failed("sync directory", dir, &e))
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(|e| failed("open to lock", path, &e))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Box::new(LocalLock { _file: file })),
            Err(Errno::WOULDBLOCK) => Err(Error::new(
                ErrorKind::Locked,
                format!("{} is locked: another process uses this directory", path.display()),
            )),
            Err(errno) => Err(failed("lock", path, &errno.into())),
        }
    }
}

/// The lock goes with the descriptor.
#[derive(Debug)]
struct LocalLock {
    _file: File,
}

impl FileLock for LocalLock {}

#[derive(Debug)]
struct LocalWritable {
    file: File,
    path: PathBuf,
    len: u64,
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

    fn len(&self) -> u64 {
        self.len
    }

    #[cfg(target_os = "linux")]
    fn reserve(&mut self, len: u64) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        match rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, 0, len) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            Err(errno) => Err(failed("reserve space for", &self.path, &errno.into())),
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn reserve(&mut self, _len: u64) -> Result<()> {
        Ok(())
    }
}

#[derive(Debug)]
struct LocalRandom {
    file: File,
    path: PathBuf,
    /// Whether this file's file system may answer without blocking; false once it said that it cannot.
    nowait: AtomicBool,
}

impl LocalRandom {
    fn too_short(&self, offset: u64, len: usize) -> Error {
        Error::corruption(
            self.path.display(),
            offset,
            format_args!("the file ends before the {len} bytes that belong here"),
        )
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
        if len > READ_UNCHECKED_BYTES_MAX {
            let size = self.len()?;
            if offset.checked_add(len as u64).is_none_or(|end| end > size) {
                return Err(self.too_short(offset, len));
            }
        }
        let mut buffer = vec![0; len];
        match self.file.read_exact_at(&mut buffer, offset) {
            Ok(()) => Ok(Bytes::from(buffer)),
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => {
                Err(self.too_short(offset, len))
            }
            Err(e) => Err(Error::io(
                format_args!("read {} at offset {offset} ({len} bytes)", self.path.display()),
                &e,
            )),
        }
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
            Ok(n) if n == len => Some(Ok(Bytes::from(buffer))),
            // Part of it is in memory, or the file ends: the blocking read tells which.
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => None,
            Err(_) => {
                // Not supported, or a real error, which the blocking read meets again and reports.
                self.nowait.store(false, Ordering::Relaxed);
                None
            }
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn try_read_at(&self, _offset: u64, _len: usize) -> Option<Result<Bytes>> {
        let _ = self.nowait.load(Ordering::Relaxed);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_appended_is_read_back_at_any_offset() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let mut file = LocalFiles.create(&path).unwrap();
        file.reserve(1 << 20).unwrap();
        assert!(file.is_empty());
        file.append(b"hello ").unwrap();
        file.append(b"world").unwrap();
        file.sync().unwrap();
        assert_eq!(file.len(), 11);

        let file = LocalFiles.open(&path).unwrap();
        assert_eq!(file.path(), path);
        assert_eq!(file.len().unwrap(), 11, "reserved space does not count");
        assert_eq!(file.read_at(6, 5).unwrap(), "world");
        if let Some(read) = file.try_read_at(0, 5) {
            assert_eq!(read.unwrap(), "hello");
        }
        assert!(file.try_read_at(8, 5).is_none(), "a short read is no answer");
        assert_eq!(
            LocalFiles.list(dir.path()).unwrap(),
            [DirEntry { name: "a".into(), len: 11, is_dir: false }]
        );
    }

    #[test]
    fn a_read_past_the_end_is_corruption_that_names_file_and_offset() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("short");
        LocalFiles.create(&path).unwrap().append(b"abc").unwrap();
        let file = LocalFiles.open(&path).unwrap();
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
        let error = LocalFiles.open(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.message().starts_with("open ") && error.message().contains("missing"));
        LocalFiles.create(&path).unwrap();
        assert_eq!(LocalFiles.create(&path).unwrap_err().kind(), ErrorKind::AlreadyExists);
    }

    #[test]
    fn a_second_lock_is_refused_until_the_first_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("LOCK");
        let held = LocalFiles.lock(&path).unwrap();
        assert_eq!(LocalFiles.lock(&path).unwrap_err().kind(), ErrorKind::Locked);
        drop(held);
        LocalFiles.lock(&path).unwrap();
    }

    #[test]
    fn names_can_be_renamed_listed_truncated_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        LocalFiles.create_dir_all(&at("d/e")).unwrap();
        LocalFiles.create_dir_all(&at("d/e")).unwrap();
        LocalFiles.create(&at("d/b")).unwrap().append(b"12345").unwrap();
        LocalFiles.create(&at("d/a")).unwrap();
        LocalFiles.rename(&at("d/b"), &at("d/a")).unwrap();
        LocalFiles.truncate(&at("d/a"), 2).unwrap();
        LocalFiles.sync_dir(&at("d")).unwrap();
        let names = |entries: Vec<DirEntry>| {
            entries.into_iter().map(|e| (e.name, e.len, e.is_dir)).collect::<Vec<_>>()
        };
        assert_eq!(
            names(LocalFiles.list(&at("d")).unwrap()),
            [("a".to_owned(), 2, false), ("e".to_owned(), 0, true)]
        );
        LocalFiles.remove(&at("d/a")).unwrap();
        LocalFiles.remove_dir(&at("d/e")).unwrap();
        assert!(!LocalFiles.exists(&at("d/a")).unwrap());
        assert!(LocalFiles.remove_dir(&at("d/e")).is_err());
    }
}
