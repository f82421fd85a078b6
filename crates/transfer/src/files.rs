//! The operator's files: writing one so that it is there whole or not at all, locks, and names.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "files of an operator, outside of any engine"
)]

use std::ffi::{OsStr, OsString};
use std::fs::TryLockError;
use std::io::{BufRead, ErrorKind, Read, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::UNIX_EPOCH;

use rustix::io::Errno;

use crate::error::{Error, Result};

/// What a file that is being written is called until it is whole.
pub const UNFINISHED_SUFFIX: &str = ".unfinished";

/// How often a lock's file may be gone between opening and locking it: who ends removes it, so that each further time is
/// another process that had it for a moment.
const LOCK_ATTEMPTS_MAX: u32 = 100;

/// Digits of a number in the name of one of several files.
const NUMBER_DIGITS: usize = 5;

/// An open file.
pub type File = std::fs::File;

/// What could not be done with a file, and why.
pub(crate) fn failed(what: &str, path: &Path, error: &std::io::Error) -> Error {
    Error::failed(format!("cannot {what} {}: {error}", path.display()))
}

/// What tells whether a file is still the one that was begun with.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Identity {
    /// Where it is.
    pub path: PathBuf,
    /// Its length.
    pub bytes: u64,
    /// When it was last changed, in nanoseconds since 1970.
    pub modified_nanos: u64,
}

impl Identity {
    /// Looks at a file.
    pub fn of(path: &Path) -> Result<Self> {
        let meta = std::fs::metadata(path).map_err(|e| failed("read", path, &e))?;
        let modified = meta.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let modified_nanos = modified.map_or(0, |since| since.as_nanos() as u64);
        Ok(Self { path: path.to_owned(), bytes: meta.len(), modified_nanos })
    }

    /// An error where the file is no longer this one.
    pub fn check(&self) -> Result<()> {
        if Self::of(&self.path)? == *self {
            return Ok(());
        }
        Err(Error::failed("the file was changed since the import was begun; --restart begins anew"))
    }
}

/// An error for a path that is not UTF-8: what is kept of an import has its files' names as text.
pub fn check_name(path: &Path) -> Result<()> {
    if path.to_str().is_some() {
        return Ok(());
    }
    let name = path.as_os_str().as_encoded_bytes().escape_ascii();
    Err(Error::failed(format!("{name}: the name is not UTF-8: give it another one")))
}

/// The name of one of the files of an export.
pub fn one_of_several(before: &str, index: usize, count: usize, behind: &str) -> String {
    format!("{before}-{index:0NUMBER_DIGITS$}-of-{count:0NUMBER_DIGITS$}{behind}")
}

/// Whether a name is such a one, whatever its numbers.
pub fn is_one_of_several(name: &OsStr, before: &str, behind: &str) -> bool {
    let numbers = name.as_encoded_bytes().strip_prefix(before.as_bytes());
    let numbers = numbers.and_then(|rest| rest.strip_suffix(behind.as_bytes()));
    let is_number =
        |digits: &[u8]| digits.len() == NUMBER_DIGITS && digits.iter().all(u8::is_ascii_digit);
    numbers.and_then(|rest| rest.strip_prefix(b"-")).is_some_and(|rest| {
        let split = rest.split_at_checked(NUMBER_DIGITS);
        split.is_some_and(|(index, rest)| {
            is_number(index) && rest.strip_prefix(b"-of-").is_some_and(is_number)
        })
    })
}

/// What stands before a file's number in such a name, of how many it is, and what stands behind that.
pub fn of_several(name: &str) -> Option<(&str, usize, &str)> {
    let (before, behind) = name.rsplit_once("-of-")?;
    let number = |digits: &str| {
        let digits = Some(digits).filter(|digits| digits.len() == NUMBER_DIGITS)?;
        digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse::<usize>().ok())?
    };
    let (before, index) = before.rsplit_once('-')?;
    let (count, behind) = behind.split_at_checked(NUMBER_DIGITS)?;
    let (index, count) = (number(index)?, number(count)?);
    (index < count).then_some((before, count, behind))
}

/// The names in a directory, in no order.
pub fn names_in(directory: &Path) -> Result<Vec<OsString>> {
    let entries = std::fs::read_dir(directory).map_err(|e| failed("read", directory, &e))?;
    let names = entries.map(|entry| entry.map(|entry| entry.file_name()));
    names.collect::<std::io::Result<_>>().map_err(|e| failed("read", directory, &e))
}

/// Opens a file to read it.
pub fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(|e| failed("read", path, &e))
}

/// Whether a regular file is there, or a link to one.
pub fn is_regular(path: &Path) -> bool {
    path.is_file()
}

/// Whether something is there.
pub fn exists(path: &Path) -> bool {
    path.exists()
}

/// A whole file as text, or none where there is no file.
pub fn read_text(path: &Path) -> Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("read", path, &error)),
    }
}

/// Removes a file; one that is not there is removed already.
pub fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("remove", path, &error)),
        _ => Ok(()),
    }
}

/// Gives a file another name, in place of what has that. Not durable before [`sync_parent`].
pub fn rename(from: &Path, to: &Path) -> Result<()> {
    std::fs::rename(from, to).map_err(|e| failed("write", to, &e))
}

/// Makes the directory that a file is to lie in, and those that it lies in, durably. Those that were made, the innermost first.
pub fn make_parent(path: &Path) -> Result<Vec<PathBuf>> {
    let Some(dir) = path.parent() else { return Ok(Vec::new()) };
    let above = dir.ancestors().take_while(|dir| !dir.as_os_str().is_empty());
    let missing: Vec<&Path> = above.take_while(|dir| !dir.exists()).collect();
    if missing.is_empty() {
        return Ok(Vec::new());
    }
    std::fs::create_dir_all(dir).map_err(|e| failed("create", dir, &e))?;
    missing.iter().try_for_each(|dir| sync_parent(dir))?;
    Ok(missing.into_iter().map(Path::to_path_buf).collect())
}

/// Keeps other processes away from a file, until it is dropped. What had to be made of directories for it goes then, too, where nothing has come
/// into it.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    made: Vec<PathBuf>,
    _file: File,
    missing: Option<String>,
}

impl Lock {
    /// Takes the lock of a file, which need not be there: a hidden one beside it, `.NAME.lock`. An error at once where
    /// somebody has it. What a process leaves that was killed is locked no longer. Where the file system has no locks,
    /// nobody is kept away; see [`Lock::missing`].
    pub fn take(of: &Path) -> Result<Self> {
        Self::take_by(of, File::try_lock)
    }

    /// Why nobody is kept away, in words for the operator; none where the lock is had.
    pub fn missing(&self) -> Option<&str> {
        self.missing.as_deref()
    }

    fn take_by(of: &Path, try_lock: impl Fn(&File) -> Result<(), TryLockError>) -> Result<Self> {
        let made = make_parent(of)?;
        let name = of.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        let path = of.with_file_name(format!(".{}.lock", name.trim_start_matches('.')));
        let taken = || {
            let path = path.display();
            Error::failed(format!("another process is running this: it has locked {path}"))
        };
        for _ in 0..LOCK_ATTEMPTS_MAX {
            let opened = File::options().create(true).write(true).truncate(false).open(&path);
            let file = opened.or_else(|error| match error.kind() {
                // Another user's, which is locked without a write.
                ErrorKind::PermissionDenied => File::open(&path).map_err(|_| error),
                _ => Err(error),
            });
            let file = file.map_err(|e| failed("write", &path, &e))?;
            match try_lock(&file) {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(taken()),
                Err(TryLockError::Error(error)) if has_no_locks(&error) => {
                    let missing = format!(
                        "cannot lock {}: {error}; nothing keeps a second run of this away",
                        path.display()
                    );
                    return Ok(Self { path, made, _file: file, missing: Some(missing) });
                }
                Err(TryLockError::Error(error)) => return Err(failed("lock", &path, &error)),
            }
            // Who had it may have removed it since it was opened here, and it may be there anew.
            let locked = file.metadata().map_err(|e| failed("read", &path, &e))?;
            match std::fs::metadata(&path) {
                Ok(there) if (there.dev(), there.ino()) == (locked.dev(), locked.ino()) => {
                    return Ok(Self { path, made, _file: file, missing: None });
                }
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(failed("read", &path, &error));
                }
                _ => {}
            }
        }
        Err(taken())
    }
}

/// Whether a file system says so that it has no locks: NFS without its daemon, Lustre without `flock`.
fn has_no_locks(error: &std::io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOLCK))
        || error.kind() == ErrorKind::Unsupported
}

impl Drop for Lock {
    fn drop(&mut self) {
        // One that stays is in nobody's way.
        drop(std::fs::remove_file(&self.path));
        // A directory with something in it is not removed, and nor are those around it.
        let _ = self.made.iter().try_for_each(std::fs::remove_dir);
    }
}

/// A file under a name of its own until [`Unfinished::finish`]; removed where that is never called.
#[derive(Debug)]
pub struct Unfinished {
    path: PathBuf,
    unfinished: PathBuf,
    finished: bool,
}

impl Unfinished {
    /// Begins a file; what an earlier attempt left of it is removed. In a directory where others write, too, somebody may have laid a link
    /// under its name, which anybody can guess: what that leads to stays as it is.
    pub fn create(path: &Path) -> Result<(Self, File)> {
        let mut unfinished = path.as_os_str().to_owned();
        unfinished.push(UNFINISHED_SUFFIX);
        let unfinished = PathBuf::from(unfinished);
        // What stays, and a link that was laid since then, is an error of what comes next.
        drop(std::fs::remove_file(&unfinished));
        let made = File::options().write(true).create_new(true).open(&unfinished);
        let file = made.map_err(|e| failed("write", &unfinished, &e))?;
        Ok((Self { path: path.to_owned(), unfinished, finished: false }, file))
    }

    /// Syncs the file and gives it its name; its bytes.
    pub fn finish(mut self, file: &File) -> Result<u64> {
        file.sync_all().map_err(|e| failed("write", &self.unfinished, &e))?;
        let bytes = file.metadata().map_err(|e| failed("write", &self.unfinished, &e))?.len();
        std::fs::rename(&self.unfinished, &self.path)
            .map_err(|e| failed("write", &self.path, &e))?;
        self.finished = true;
        sync_parent(&self.path)?;
        Ok(bytes)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.finished {
            // What cannot be removed now is by the next attempt.
            drop(std::fs::remove_file(&self.unfinished));
        }
    }
}

/// Makes durable which files the directory of this one has.
pub fn sync_parent(path: &Path) -> Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = File::open(dir).and_then(|dir| dir.sync_all());
    synced.map_err(|e| failed("sync", dir, &e))
}

/// Replaces a small file: after a crash it is the old one or the new one, whole.
pub fn replace(path: &Path, contents: &[u8]) -> Result<()> {
    let (unfinished, mut file) = Unfinished::create(path)?;
    file.write_all(contents).map_err(|e| failed("write", path, &e))?;
    unfinished.finish(&file).map(drop)
}

/// A file that lines are added to, and that is cut back to where an interrupted run had noted it.
#[derive(Debug)]
pub struct Appended {
    path: PathBuf,
    file: File,
    bytes: u64,
    /// Whether an addition failed: what there is of it would stand before the next.
    failed: bool,
}

impl Appended {
    /// Makes the file, durably; an error where there is one.
    pub fn create(path: &Path) -> Result<Self> {
        let made = File::options().create_new(true).append(true).open(path);
        let file = made.map_err(|e| failed("write", path, &e))?;
        sync_parent(path)?;
        Ok(Self { path: path.to_owned(), file, bytes: 0, failed: false })
    }

    /// Opens the file, and drops what is behind the first `bytes`. A file that is shorter was changed by somebody else.
    pub fn open(path: &Path, bytes: u64) -> Result<Self> {
        let opened = File::options().append(true).open(path);
        let file = opened.map_err(|e| failed("write", path, &e))?;
        let length = file.metadata().map_err(|e| failed("read", path, &e))?.len();
        if length < bytes {
            return Err(Error::failed(format!(
                "{} has {length} bytes and should have {bytes}: it was changed since",
                path.display()
            )));
        }
        file.set_len(bytes).map_err(|e| failed("write", path, &e))?;
        Ok(Self { path: path.to_owned(), file, bytes, failed: false })
    }

    /// Adds to it and syncs; its length then. After an error nothing more is added.
    pub fn append(&mut self, contents: &[u8]) -> Result<u64> {
        if std::mem::replace(&mut self.failed, true) {
            return Err(Error::failed(format!(
                "an earlier write to {} failed",
                self.path.display()
            )));
        }
        let written = self.file.write_all(contents).and_then(|()| self.file.sync_data());
        written.map_err(|e| failed("write", &self.path, &e))?;
        self.failed = false;
        self.bytes += contents.len() as u64;
        Ok(self.bytes)
    }
}

/// How far a file has been read, for whoever draws it.
#[derive(Debug, Clone, Default)]
pub struct Position(Arc<AtomicU64>);

impl Position {
    /// In bytes.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Says how far.
    pub fn set(&self, bytes: u64) {
        self.0.store(bytes, Ordering::Relaxed);
    }
}

/// A reader that counts.
#[derive(Debug)]
pub struct Counting<R> {
    inner: R,
    position: Position,
}

impl<R> Counting<R> {
    /// Counts what is read of `inner` into `position`.
    pub fn new(inner: R, position: Position) -> Self {
        Self { inner, position }
    }
}

impl<R: Read> Read for Counting<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.position.0.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

impl<R: BufRead> BufRead for Counting<R> {
    fn fill_buf(&mut self) -> std::io::Result<&[u8]> {
        self.inner.fill_buf()
    }

    fn consume(&mut self, count: usize) {
        self.inner.consume(count);
        self.position.0.fetch_add(count as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_its_name_only_when_it_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let (unfinished, _file) = Unfinished::create(&path).unwrap();
        assert!(!path.exists());
        drop(unfinished);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        replace(&path, b"first").unwrap();
        replace(&path, b"second").unwrap();
        assert_eq!(read_text(&path).unwrap().as_deref(), Some("second"));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_link_under_the_name_of_an_unfinished_file_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("out"), dir.path().join("other"));
        let unfinished = dir.path().join("out.unfinished");
        std::fs::write(&other, "of somebody else").unwrap();
        let new = dir.path().join("new");
        for target in [&other, &new] {
            std::os::unix::fs::symlink(target, &unfinished).unwrap();
            replace(&path, b"exported").unwrap();
            assert!(std::fs::symlink_metadata(&path).unwrap().is_file());
            assert_eq!(std::fs::read(&path).unwrap(), b"exported");
        }
        assert_eq!(std::fs::read(&other).unwrap(), b"of somebody else");
        assert!(!new.exists());
        // As one leaves it that was killed.
        std::fs::write(&unfinished, "half of a longer file").unwrap();
        replace(&path, b"again").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"again");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn lines_behind_what_was_noted_are_cut() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lines");
        assert_eq!(Appended::create(&path).unwrap().append(b"one\ntwo\n").unwrap(), 8);
        assert_eq!(Appended::open(&path, 4).unwrap().append(b"2\n").unwrap(), 6);
        assert_eq!(std::fs::read(&path).unwrap(), b"one\n2\n");
        assert!(Appended::open(&path, 7).unwrap_err().to_string().contains("changed since"));
        assert!(Appended::create(&path).is_err(), "what somebody else keeps there stays");
    }

    #[test]
    fn behind_an_addition_that_failed_nothing_is_added() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lines");
        let mut lines = Appended::create(&path).unwrap();
        lines.append(b"one\n").unwrap();
        // A descriptor that takes no writes fails as a full disk does.
        let good = std::mem::replace(&mut lines.file, open(&path).unwrap());
        assert!(lines.append(b"two\n").is_err());
        lines.file = good;
        let error = lines.append(b"three\n").unwrap_err().to_string();
        assert!(error.contains("an earlier write"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"one\n");
    }

    #[test]
    fn a_lock_is_had_by_one_and_is_gone_with_who_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/sub/.t.export.json");
        let first = Lock::take(&path).unwrap();
        let error = Lock::take(&path).unwrap_err().to_string();
        assert!(error.contains("another process is running this"), "{error}");
        drop(first);
        let second = Lock::take(&path).unwrap();
        // What came into the directories meanwhile keeps them.
        let kept = dir.path().join("new/kept");
        std::fs::write(&kept, "").unwrap();
        drop(second);
        assert!(kept.exists() && !path.parent().unwrap().exists());
        std::fs::create_dir(path.parent().unwrap()).unwrap();
        drop(Lock::take(&path).unwrap());
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 0);
        // As one leaves it that was killed.
        std::fs::write(path.with_file_name(".t.export.json.lock"), "").unwrap();
        Lock::take(&path).unwrap();
    }

    #[test]
    fn a_file_system_without_locks_is_told_of_and_does_not_end_the_run() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let fails = |errno: Errno| Lock::take_by(&path, |_| Err(TryLockError::Error(errno.into())));
        for errno in [Errno::NOLCK, Errno::NOSYS, Errno::OPNOTSUPP] {
            let lock = fails(errno).unwrap();
            assert!(lock.missing().unwrap().contains(".state.lock"), "{lock:?}");
        }
        assert!(fails(Errno::IO).unwrap_err().to_string().contains("cannot lock"));
        assert_eq!(Lock::take(&path).unwrap().missing(), None);
    }

    #[test]
    fn a_lock_whose_file_is_removed_again_and_again_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let removed = |_: &File| {
            std::fs::remove_file(dir.path().join(".state.lock")).unwrap();
            Ok(())
        };
        let error = Lock::take_by(&path, removed).unwrap_err().to_string();
        assert!(error.contains("another process is running this"), "{error}");
    }
}
