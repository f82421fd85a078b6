//! The operator's files: which ones an import names, and writing one so that it is there whole or not at all.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "files of an operator, outside of any engine"
)]

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::TryLockError;
use std::io::{BufRead, ErrorKind, Read, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::UNIX_EPOCH;

use rustix::io::Errno;

use crate::error::{Error, Result};

/// Most files of one import: a glob of the wrong directory is noticed before it is read.
pub const FILES_MAX: usize = 100_000;
/// What a file that is being written is called until it is whole.
pub const UNFINISHED_SUFFIX: &str = ".unfinished";

/// How often a lock's file may be gone between opening and locking it: who ends removes it, so that each further time is
/// another process that had it for a moment.
const LOCK_ATTEMPTS_MAX: u32 = 100;

/// Digits of a number in the name of one of several files.
const NUMBER_DIGITS: usize = 5;

/// An open file.
pub type File = std::fs::File;

fn failed(what: &str, path: &Path, error: &std::io::Error) -> Error {
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

/// The files that these names mean: files themselves, patterns (`dir/part-*.avro`), and directories; of what these have,
/// every file but the hidden and the unfinished is meant, and an export that is not whole is an error, as is a directory of
/// which no file is meant, and a name that is not UTF-8. Sorted, each once. What an import writes itself, `own`, is not
/// among them, and cannot be named.
pub fn expand(names: &[String], own: &[&Path]) -> Result<Vec<PathBuf>> {
    let (mut files, mut directories) = (Vec::new(), Vec::new());
    let is_own = |path: &Path| own.iter().any(|own| same(own, path));
    for name in names {
        let path = Path::new(name);
        let (before, directories_before) = (files.len(), directories.len());
        let mut add = |files: &mut Vec<PathBuf>, entry: PathBuf| {
            if is_file(&entry)? {
                files.push(entry);
            } else if entry.is_dir() && !is_hidden_at_its_end(&entry) {
                directories.push((name, entry));
            }
            check_count(files.len().max(directories.len()))
        };
        if path.is_dir() {
            for entry in std::fs::read_dir(path).map_err(|e| failed("read", path, &e))? {
                let entry = entry.map_err(|e| failed("read", path, &e))?.path();
                let hidden = entry.file_name().is_some_and(is_hidden);
                if !hidden && !is_unfinished(&entry) && !is_own(&entry) {
                    check_name(&entry)?;
                    add(&mut files, entry)?;
                }
            }
            check_whole(files.get(before..).unwrap_or_default())?;
        } else if path.exists() {
            if !is_file(path)? {
                // How long it is, and what its first bytes are, would have to be known before it is read, and again after an
                // interruption.
                return Err(Error::failed(format!(
                    "{name} is no regular file, but a pipe or a device: write what comes out of it to a file, and import that"
                )));
            }
            if is_own(path) {
                return Err(Error::failed(format!(
                    "{name} is where this import, or a dry run of it, keeps its progress or sets records aside: name \
                     another file for that with --state or --rejected, or rename this one"
                )));
            }
            if is_unfinished(path) {
                return Err(Error::failed(format!(
                    "{name} is what is there of an unfinished file"
                )));
            }
            files.push(path.to_owned());
        } else {
            let hidden = HiddenFrom::pattern(path);
            let found = glob::glob(name)
                .map_err(|error| Error::failed(format!("pattern {name:?}: {error}")))?;
            for entry in found {
                let entry = entry.map_err(|error| Error::failed(error.to_string()))?;
                if !hidden.has(&entry) && !is_unfinished(&entry) && !is_own(&entry) {
                    add(&mut files, entry)?;
                }
            }
            check_names(path, |entry| {
                !hidden.has(entry) && !is_unfinished(entry) && !is_own(entry)
            })?;
            check_whole(files.get(before..).unwrap_or_default())?;
        }
        // Of the files of a directory below, another name may be.
        if files.len() == before && directories.len() == directories_before {
            return Err(Error::failed(if path.is_dir() {
                format!(
                    "{name}: the directory has no file to import, hidden and unfinished ones apart"
                )
            } else {
                format!("{name}: no such file, and no file matches")
            }));
        }
    }
    check_directories(&directories, &files)?;
    if files.is_empty() {
        return Err(Error::failed(format!("{}: no file there", names.join(" "))));
    }
    files.sort();
    files.dedup();
    Ok(files)
}

/// An error for a path that is not UTF-8: what is kept of an import has its files' names as text.
pub fn check_name(path: &Path) -> Result<()> {
    if path.to_str().is_some() {
        return Ok(());
    }
    let name = path.as_os_str().as_encoded_bytes().escape_ascii();
    Err(Error::failed(format!("{name}: the name is not UTF-8: give it another one")))
}

/// The same for what a pattern reaches, which is left out of its findings without a word: as far as it is `meant`, and the pattern fits
/// it with a sign in the place of what is not UTF-8.
fn check_names(pattern: &Path, meant: impl Fn(&Path) -> bool) -> Result<()> {
    for part in pattern.ancestors() {
        let (Some(name), Some(above)) = (part.file_name(), part.parent()) else { continue };
        if !has_wildcards(name) {
            continue;
        }
        let is_any_level = name == "**";
        let needs_directory = is_any_level || part != pattern;
        let name = name.to_string_lossy();
        let fits = glob::Pattern::new(&name)
            .map_err(|error| Error::failed(format!("pattern {name:?}: {error}")))?;
        for directory in reached(if is_any_level { part } else { above })? {
            for found in names_in(&directory)? {
                let is_reached = |path: &Path| !needs_directory || path.is_dir();
                let path = directory.join(&found);
                if found.to_str().is_none()
                    && fits.matches(&found.to_string_lossy())
                    && is_reached(&path)
                    && meant(&path)
                {
                    check_name(&path)?;
                }
            }
        }
    }
    Ok(())
}

/// The directories that a pattern finds, each in its own place.
fn reached(pattern: &Path) -> Result<Vec<PathBuf>> {
    if !components(pattern).any(has_wildcards) {
        let is_here = pattern.as_os_str().is_empty();
        let directory = if is_here { Path::new(".") } else { pattern };
        return Ok(if directory.is_dir() { vec![directory.to_owned()] } else { Vec::new() });
    }
    // At any level is in the directory itself, too.
    let mut directories = match pattern.parent() {
        Some(above) if pattern.ends_with("**") => reached(above)?,
        _ => Vec::new(),
    };
    let failed = |error: &dyn std::fmt::Display| Error::failed(error.to_string());
    let pattern = pattern.to_string_lossy();
    for found in glob::glob(&pattern).map_err(|error| failed(&error))? {
        let found = found.map_err(|error| failed(&error))?;
        if found.is_dir() {
            directories.push(found);
        }
    }
    Ok(directories)
}

/// Whether a name is one that a pattern's findings have other names for.
fn has_wildcards(name: &OsStr) -> bool {
    name.as_encoded_bytes().iter().any(|byte| matches!(byte, b'*' | b'?' | b'['))
}

/// Whether a name that was found is a file's; an error where that cannot be told, as of a link to what is not there: left out
/// without a word, its rows would be missing.
fn is_file(path: &Path) -> Result<bool> {
    path.metadata().map(|found| found.is_file()).map_err(|error| failed("read", path, &error))
}

/// An error where a name finds a directory of which no file is meant: left out without a word, its rows would be missing. What is
/// empty, or the file system's own, has none.
fn check_directories(directories: &[(&String, PathBuf)], files: &[PathBuf]) -> Result<()> {
    if directories.is_empty() {
        return Ok(());
    }
    let plain = |path: &Path| components(path).collect::<PathBuf>();
    let files: Vec<PathBuf> = files.iter().map(|file| plain(file)).collect();
    let with_files: HashSet<&Path> = files.iter().flat_map(|file| file.ancestors()).collect();
    for (name, directory) in directories {
        if with_files.contains(plain(directory).as_path()) || has_nothing(directory)? {
            continue;
        }
        let without = directory.display();
        return Err(Error::failed(format!(
            "{name} has a directory, {without}, and what is in that is not imported with it: name the files too, or patterns such \
             as '{without}/*', or move the directory away"
        )));
    }
    Ok(())
}

fn has_nothing(directory: &Path) -> Result<bool> {
    if directory.file_name().is_some_and(|name| name == "lost+found") {
        return Ok(true);
    }
    let mut entries = std::fs::read_dir(directory).map_err(|e| failed("read", directory, &e))?;
    Ok(entries.next().is_none())
}

/// Whether a name is one that tools keep to themselves.
fn is_hidden(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.starts_with(b".") || name.starts_with(b"_")
}

/// The same for the last name of a path as it is written, which may be `.` or `..`.
fn is_hidden_at_its_end(path: &Path) -> bool {
    let name = path.as_os_str().as_encoded_bytes().rsplit(|byte| *byte == b'/').next();
    name.is_some_and(|name| name.starts_with(b".") || name.starts_with(b"_"))
}

fn is_unfinished(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().ends_with(UNFINISHED_SUFFIX.as_bytes())
}

/// What a pattern does not mean: what is hidden, unless it names that itself.
struct HiddenFrom {
    /// So many components it names as they are; none where it names what is hidden.
    named: Option<usize>,
}

/// The components of a path; that they begin here, a pattern's findings do not say.
fn components(path: &Path) -> impl Iterator<Item = &OsStr> {
    path.components().filter(|part| *part != Component::CurDir).map(Component::as_os_str)
}

impl HiddenFrom {
    fn pattern(pattern: &Path) -> Self {
        let named = components(pattern).take_while(|part| !has_wildcards(part)).count();
        let hides = !components(pattern).skip(named).any(is_hidden);
        Self { named: hides.then_some(named) }
    }

    fn has(&self, found: &Path) -> bool {
        self.named.is_some_and(|named| components(found).skip(named).any(is_hidden))
    }
}

/// An error where files are some of those of an export (`NAME-00001-of-00003.avro`), and others are not there: it was
/// interrupted, or not all of it was copied.
fn check_whole(files: &[PathBuf]) -> Result<()> {
    let mut looked = HashSet::new();
    for path in files {
        let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        let Some((before, count, behind)) = of_several(&name) else { continue };
        let directory = path.parent().map(Path::to_owned);
        if !looked.insert((directory, before.to_owned(), count, behind.to_owned())) {
            continue;
        }
        let mut others = (0..count)
            .map(|index| path.with_file_name(one_of_several(before, index, count, behind)));
        if let Some(missing) = others.find(|other| !other.exists()) {
            return Err(Error::failed(format!(
                "{} is not there, which is one of the {count} files with {}: finish the export or the copy, or name those \
                 files that are to be imported without it",
                missing.display(),
                path.display()
            )));
        }
    }
    Ok(())
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
fn of_several(name: &str) -> Option<(&str, usize, &str)> {
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

/// Whether two paths lead to one file that is there.
fn same(one: &Path, other: &Path) -> bool {
    // Most differ in their names already, which costs no look at the directory.
    one.file_name() == other.file_name()
        && std::fs::canonicalize(one)
            .is_ok_and(|one| std::fs::canonicalize(other).is_ok_and(|other| one == other))
}

fn check_count(files: usize) -> Result<()> {
    if files > FILES_MAX {
        return Err(Error::failed(format!("more than {FILES_MAX} files: name fewer at once")));
    }
    Ok(())
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
    /// Begins a file; what an earlier attempt left of it is overwritten.
    pub fn create(path: &Path) -> Result<(Self, File)> {
        let mut unfinished = path.as_os_str().to_owned();
        unfinished.push(UNFINISHED_SUFFIX);
        let unfinished = PathBuf::from(unfinished);
        let file = File::create(&unfinished).map_err(|e| failed("write", &unfinished, &e))?;
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
            // What cannot be removed is overwritten by the next attempt.
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
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;

    #[test]
    fn names_are_files_patterns_and_directories() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b.avro", "a.avro", ".hidden", "_SUCCESS", "c.avro.unfinished"] {
            std::fs::write(dir.path().join(name), "x").unwrap();
        }
        std::fs::create_dir(dir.path().join("_sub")).unwrap();
        let at = |name: &str| dir.path().join(name);
        let name = |name: &str| at(name).to_str().unwrap().to_owned();
        let both = vec![at("a.avro"), at("b.avro")];
        let whole = [dir.path().to_str().unwrap().to_owned()];
        assert_eq!(expand(&whole, &[]).unwrap(), both);
        assert_eq!(expand(&[name("*.avro"), name("a.avro")], &[]).unwrap(), both);
        for (wrong, why) in [
            ("nothing-*.avro", "no file matches"),
            ("missing.csv", "no file matches"),
            ("_sub", "the directory has no file to import"),
        ] {
            let error = expand(&[name(wrong)], &[]).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        let error = expand(&["/dev/null".to_owned()], &[]).unwrap_err().to_string();
        assert!(error.contains("no regular file"), "{error}");
        assert_eq!(expand(&[name("*")], &[]).unwrap(), both);
        assert_eq!(expand(&[name(".*")], &[]).unwrap(), [at(".hidden")]);
        assert_eq!(expand(&[name("_*"), name(".hidden")], &[]).unwrap().len(), 2);
        for wrong in ["*.unfinished", "c.avro.unfinished"] {
            assert!(expand(&[name(wrong)], &[]).is_err(), "{wrong}");
        }
        #[cfg(unix)]
        {
            // A link to what was not fetched, say: without its rows the import would not be whole.
            std::os::unix::fs::symlink(at("elsewhere"), at("d.avro")).unwrap();
            for names in [whole.to_vec(), vec![name("*.avro")]] {
                let error = expand(&names, &[]).unwrap_err().to_string();
                assert!(error.contains("d.avro"), "{error}");
            }
            std::fs::rename(at("d.avro"), at(".d.avro")).unwrap();
            assert_eq!(expand(&whole, &[]).unwrap(), both);
        }
        // Those of a job that has not ended.
        std::fs::create_dir_all(at("_temporary/0")).unwrap();
        std::fs::write(at("_temporary/0/d.avro"), "x").unwrap();
        assert_eq!(expand(&[name("**/*.avro")], &[]).unwrap(), both);
        assert_eq!(expand(&[name("_temporary/*/*")], &[]).unwrap().len(), 1);
    }

    #[test]
    fn a_directory_whose_files_are_not_named_is_not_left_out_without_a_word() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let name = |name: &str| at(name).to_str().unwrap().to_owned();
        std::fs::create_dir_all(at("2024/01")).unwrap();
        std::fs::create_dir(at(".git")).unwrap();
        for name in ["a.avro", "2024/b.avro", "2024/01/c.avro", ".git/x"] {
            std::fs::write(at(name), "x").unwrap();
        }
        for (names, without) in [("", "2024"), ("*", "2024"), ("2024", "01"), ("2024/*", "01")] {
            let error = expand(&[name(names)], &[]).unwrap_err().to_string();
            assert!(error.contains(&format!("{without}/*'")), "{error}");
        }
        for names in ["**/*", "**/*.avro"] {
            assert_eq!(expand(&[name(names)], &[]).unwrap().len(), 3, "{names}");
        }
        assert_eq!(expand(&[name("*.avro"), name("*/*.avro")], &[]).unwrap().len(), 2);
        // As the errors advise.
        let with = ["", "2024/*", "2024/01"].map(name);
        assert_eq!(expand(&with, &[]).unwrap().len(), 3);
        for nothing in ["2024/01/empty", "2024/01/lost+found/x"] {
            std::fs::create_dir_all(at(nothing)).unwrap();
        }
        assert_eq!(expand(&[name("2024/01")], &[]).unwrap().len(), 1);
        let error = expand(&[name("2024/01/lost+found")], &[]).unwrap_err().to_string();
        assert!(error.contains("no file there"), "{error}");
        std::fs::remove_file(at("a.avro")).unwrap();
        let with = ["", "2024/*", "2024/01"].map(name);
        assert_eq!(expand(&with, &[]).unwrap().len(), 2);
        let error = expand(&[name(".*")], &[]).unwrap_err().to_string();
        assert!(error.contains("no file matches"), "{error}");
        assert_eq!(expand(&[name("2024/01")], &[]).unwrap(), [at("2024/01/c.avro")]);
    }

    #[test]
    fn a_name_that_is_not_utf_8_is_not_left_out_without_a_word() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &[u8]| dir.path().join(OsStr::from_bytes(name));
        let name = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        std::fs::create_dir_all(at(b"in/sub")).unwrap();
        for name in [&b"in/a.csv"[..], b"in/sub/b.csv", b"in/caf\xe9.csv"] {
            std::fs::write(at(name), "x").unwrap();
        }
        let refused = |names: &[&str], what: &str| {
            let names: Vec<String> = names.iter().map(|names| name(names)).collect();
            let error = expand(&names, &[]).unwrap_err().to_string();
            assert!(error.contains(what) && error.contains("not UTF-8"), "{names:?}: {error}");
        };
        for names in ["in/*.csv", "*/c*.csv", "in/caf?.csv", "**/*", "in/**/*.csv"] {
            refused(&[names], "in/caf\\xe9.csv");
        }
        refused(&["in", "in/sub"], "in/caf\\xe9.csv");
        for names in ["in/a*.csv", "in/*/*.csv", "in/a.csv", "*/[!c]*.csv", "**/b.csv"] {
            assert_eq!(expand(&[name(names)], &[]).unwrap().len(), 1, "{names}");
        }
        for left_out in [&b"in/.caf\xe9.csv"[..], b"in/caf\xe9.csv.unfinished"] {
            std::fs::rename(at(b"in/caf\xe9.csv"), at(left_out)).unwrap();
            assert_eq!(expand(&["in", "in/sub"].map(&name), &[]).unwrap().len(), 2);
            std::fs::rename(at(left_out), at(b"in/caf\xe9.csv")).unwrap();
        }
        std::fs::remove_file(at(b"in/caf\xe9.csv")).unwrap();
        std::fs::rename(at(b"in/sub"), at(b"in/s\xfcb")).unwrap();
        for names in ["in", "in/*", "in/s*/b.csv", "**/b.csv", "in/**"] {
            refused(&[names], "in/s\\xfcb");
        }
        assert_eq!(expand(&[name("in/*.csv")], &[]).unwrap().len(), 1);
    }

    #[test]
    fn an_export_that_is_not_whole_is_imported_only_file_by_file() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let name = |name: &str| at(name).to_str().unwrap().to_owned();
        let whole =
            ["a-00000-of-00002.avro", "a-00001-of-00002.avro", "b-00007-of-x", "c-of-00002"];
        for name in whole.iter().chain(&["part-00000-of-00003", "part-00002-of-00003"]) {
            std::fs::write(at(name), "x").unwrap();
        }
        for names in [name(""), name("*"), name("part-*"), name("part-0000[2]*")] {
            let error = expand(&[names], &[]).unwrap_err().to_string();
            assert!(error.contains("part-00001-of-00003 is not there"), "{error}");
        }
        // What is picked of a whole one is what is wanted.
        assert_eq!(expand(&[name("a-00001*")], &[]).unwrap().len(), 1);
        assert_eq!(expand(&[name("part-00002-of-00003")], &[]).unwrap().len(), 1);
        std::fs::write(at("part-00001-of-00003"), "x").unwrap();
        assert_eq!(expand(&[name("")], &[]).unwrap().len(), 7);
    }

    #[test]
    fn what_an_import_writes_is_not_what_it_reads() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["a.csv", "t.import.json", "t.rejected.jsonl"] {
            std::fs::write(at(name), "x").unwrap();
        }
        // The same file by another name.
        let state = at(".sub/../t.import.json");
        std::fs::create_dir(at(".sub")).unwrap();
        let rejected = at("t.rejected.jsonl");
        let own = [state.as_path(), rejected.as_path()];
        let text = |path: PathBuf| path.to_str().unwrap().to_owned();
        for names in [text(dir.path().to_owned()), text(at("*.*"))] {
            assert_eq!(expand(&[names], &own).unwrap(), [at("a.csv")]);
        }
        let error = expand(&[text(rejected.clone())], &own).unwrap_err().to_string();
        assert!(error.contains("--rejected"), "{error}");
    }

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
