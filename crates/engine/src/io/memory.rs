//! A file system in memory that forgets what was not synced.
//!
//! It keeps two truths: what a running process sees, and what a machine that loses its power would
//! find afterwards.
//!
//! ```text
//!                     seen by the process            found after a crash
//! file contents       bytes                          bytes[..synced], then chance (CrashMode), then the zeros that
//!                                                    were laid out before the last sync
//! names               names                          durable names, then chance over the changes
//!                                                    that no sync_dir has covered
//! ```
//!
//! * A file's bytes survive from [`WritableFile::sync`] on, its name from [`Files::sync_dir`] of its
//!   directory on, and a name below a directory only if the directory's own name does.
//! * A rename is atomic: after a crash either the old name is there or the new one.
//! * Changes of names in one directory reach the disk in the order in which they were made.
//! * A crash makes every handle and lock of before fail, so that a "process" that lives on in a test
//!   cannot write into the next life.
//! * What a failed sync has lost ([`MemoryFiles::lose_unsynced`]) is seen by whoever opens the file and by
//!   [`Files::open_left`] not, as the page cache and the device disagree after such a failure.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::{DirEntry, Directory, FileLock, Files, RandomFile, Rng, WritableFile};
use crate::error::{Error, ErrorKind, Result};

/// The unit in which a disk loses data: a page of the page cache.
const PAGE_BYTES: usize = 4096;

/// How much of what was not synced a crash takes away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CrashMode {
    /// All of it: the worst that POSIX allows.
    Strict,
    /// A random part of it: tails are cut at a byte or a page, or keep their length with pages of
    /// zeros or garbage in them; of each directory's changes a random number of the first ones stays.
    Torn,
}

/// The file system. Clones share it.
#[derive(Debug, Clone)]
pub struct MemoryFiles {
    disk: Arc<Mutex<Disk>>,
}

#[derive(Debug, Default)]
struct Disk {
    /// Counts crashes: a handle of an earlier life is dead.
    life: u64,
    names: BTreeMap<PathBuf, Node>,
    durable_names: BTreeMap<PathBuf, Node>,
    /// Changes from `durable_names` to `names`, oldest first.
    changes: Vec<Change>,
    locks: BTreeSet<PathBuf>,
}

#[derive(Debug, Clone)]
enum Node {
    Dir,
    File(Arc<Mutex<Contents>>),
}

#[derive(Debug, Default)]
struct Contents {
    /// What was appended, and zeros laid out behind it.
    bytes: Vec<u8>,
    /// Bytes that were appended.
    appended: usize,
    /// Of these, how many a sync has covered.
    synced: usize,
    /// The length of the file when it was synced.
    synced_len: usize,
    /// From here on the device does not have what the page cache shows, and will not be given it.
    lost_from: Option<usize>,
}

impl Contents {
    /// Bytes that are durable.
    fn durable(bytes: Vec<u8>) -> Self {
        let len = bytes.len();
        Self { bytes, appended: len, synced: len, synced_len: len, lost_from: None }
    }

    /// What the device has, at the length that the file has.
    fn on_device(&self) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        bytes.truncate(self.lost_from.unwrap_or(usize::MAX));
        bytes.resize(self.bytes.len(), 0);
        bytes
    }
}

#[derive(Debug, Clone)]
enum Change {
    Add(PathBuf, Node),
    Rename(PathBuf, PathBuf),
    Remove(PathBuf),
}

impl Change {
    fn touches(&self, dir: &Path) -> bool {
        match self {
            Self::Add(path, _) | Self::Remove(path) => parent(path) == dir,
            Self::Rename(from, to) => parent(from) == dir || parent(to) == dir,
        }
    }

    fn apply(self, names: &mut BTreeMap<PathBuf, Node>) {
        match self {
            Self::Add(path, node) => {
                names.insert(path, node);
            }
            Self::Rename(from, to) => {
                if let Some(node) = names.remove(&from) {
                    names.insert(to, node);
                }
            }
            Self::Remove(path) => {
                names.remove(&path);
            }
        }
    }
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

fn is_root(path: &Path) -> bool {
    path.parent().is_none()
}

/// The data under these locks is valid at every step, so a panic elsewhere does not spoil it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn failed(what: &str, path: &Path, kind: std::io::ErrorKind) -> Error {
    Error::io(format_args!("{what} {}", path.display()), &kind.into())
}

impl Disk {
    fn file(&self, what: &str, path: &Path) -> Result<&Arc<Mutex<Contents>>> {
        match self.names.get(path) {
            Some(Node::File(contents)) => Ok(contents),
            Some(Node::Dir) => Err(failed(what, path, std::io::ErrorKind::IsADirectory)),
            None => Err(failed(what, path, std::io::ErrorKind::NotFound)),
        }
    }

    fn is_dir(&self, path: &Path) -> bool {
        is_root(path) || matches!(self.names.get(path), Some(Node::Dir))
    }

    fn dir(&self, what: &str, path: &Path) -> Result<()> {
        if self.is_dir(path) {
            return Ok(());
        }
        let kind = match self.names.get(path) {
            Some(_) => std::io::ErrorKind::NotADirectory,
            None => std::io::ErrorKind::NotFound,
        };
        Err(failed(what, path, kind))
    }

    fn change(&mut self, change: Change) {
        change.clone().apply(&mut self.names);
        self.changes.push(change);
    }

    fn children<'a>(&'a self, dir: &'a Path) -> impl Iterator<Item = (&'a PathBuf, &'a Node)> {
        self.names.iter().filter(move |(path, _)| path.parent() == Some(dir))
    }

    /// The names that a crash leaves.
    fn names_after_crash(&self, mode: CrashMode, rng: &dyn Rng) -> BTreeMap<PathBuf, Node> {
        let mut names = self.durable_names.clone();
        if mode == CrashMode::Torn {
            // Each directory's journal reached the disk up to a point of its own. A change that
            // touches two directories is held back by the one that is further behind.
            let mut budget: BTreeMap<PathBuf, u64> = BTreeMap::new();
            for change in &self.changes {
                let dirs = match change {
                    Change::Add(path, _) | Change::Remove(path) => vec![parent(path)],
                    Change::Rename(from, to) => vec![parent(from), parent(to)],
                };
                let mut reached = true;
                for dir in &dirs {
                    let left = budget.entry(dir.to_path_buf()).or_insert_with(|| {
                        let pending = self.changes.iter().filter(|c| c.touches(dir)).count();
                        rng.next_u64() % (pending as u64 + 1)
                    });
                    reached &= *left > 0;
                }
                for dir in &dirs {
                    if let Some(left) = budget.get_mut(*dir) {
                        *left = if reached { left.saturating_sub(1) } else { 0 };
                    }
                }
                if reached {
                    change.clone().apply(&mut names);
                }
            }
        }
        // What hangs from a directory that is gone is gone. Parents sort before their children.
        let mut kept: BTreeMap<PathBuf, Node> = BTreeMap::new();
        for (path, node) in names {
            let dir = parent(&path);
            if is_root(dir) || matches!(kept.get(dir), Some(Node::Dir)) {
                kept.insert(path, node);
            }
        }
        kept
    }
}

/// The bytes that a crash leaves of a file.
fn bytes_after_crash(contents: &Contents, mode: CrashMode, rng: &dyn Rng) -> Vec<u8> {
    let mut bytes = bytes_of_appends_after_crash(contents, mode, rng);
    // What came to lie on zeros that are durable leaves those where it is lost.
    bytes.resize(bytes.len().max(contents.synced_len), 0);
    bytes
}

fn bytes_of_appends_after_crash(contents: &Contents, mode: CrashMode, rng: &dyn Rng) -> Vec<u8> {
    let appended = contents.bytes.get(..contents.appended).unwrap_or(&contents.bytes);
    let (synced, tail) = appended.split_at(contents.synced.min(appended.len()));
    let mut bytes = synced.to_vec();
    if mode == CrashMode::Strict || tail.is_empty() {
        return bytes;
    }
    let cut = (rng.next_u64() % (tail.len() as u64 + 1)) as usize;
    match rng.next_u64() % 5 {
        0 => {}
        1 => bytes.extend(tail.iter().take(cut)),
        2 => {
            let end = (synced.len() + cut) / PAGE_BYTES * PAGE_BYTES;
            bytes.extend(tail.iter().take(end.saturating_sub(synced.len())));
        }
        3 => bytes.extend(tail),
        _ => {
            // The length reached the disk; each page did, or did not, or came to be garbage.
            let mut fate = rng.next_u64() % 3;
            for (i, byte) in tail.iter().enumerate() {
                if (synced.len() + i).is_multiple_of(PAGE_BYTES) {
                    fate = rng.next_u64() % 3;
                }
                bytes.push(match fate {
                    0 => *byte,
                    1 => 0,
                    _ => rng.next_u64() as u8,
                });
            }
        }
    }
    bytes
}

impl MemoryFiles {
    /// An empty file system; the root and the current directory exist.
    pub fn new() -> Self {
        Self { disk: Arc::default() }
    }

    /// Takes the power away and gives it back: see the module and [`CrashMode`].
    pub fn crash(&self, mode: CrashMode, rng: &dyn Rng) {
        let mut disk = lock(&self.disk);
        let after = Self::disk_after_crash(&disk, mode, rng);
        *disk = after;
    }

    /// A second file system, as a crash at this moment would leave this one, which goes on unharmed.
    #[must_use]
    pub fn crashed_copy(&self, mode: CrashMode, rng: &dyn Rng) -> Self {
        let after = Self::disk_after_crash(&lock(&self.disk), mode, rng);
        Self { disk: Arc::new(Mutex::new(after)) }
    }

    fn disk_after_crash(disk: &Disk, mode: CrashMode, rng: &dyn Rng) -> Disk {
        let names: BTreeMap<PathBuf, Node> = disk
            .names_after_crash(mode, rng)
            .into_iter()
            .map(|(path, node)| {
                let node = match node {
                    Node::Dir => Node::Dir,
                    Node::File(contents) => {
                        let bytes = bytes_after_crash(&lock(&contents), mode, rng);
                        Node::File(Arc::new(Mutex::new(Contents::durable(bytes))))
                    }
                };
                (path, node)
            })
            .collect();
        Disk {
            life: disk.life + 1,
            durable_names: names.clone(),
            names,
            changes: Vec::new(),
            locks: BTreeSet::new(),
        }
    }

    /// What of a file is not synced is lost to the device: after a sync that failed, the page cache goes on to show
    /// it and takes it for written.
    pub fn lose_unsynced(&self, path: &Path) -> Result<()> {
        let disk = lock(&self.disk);
        let mut contents = lock(disk.file("lose", path)?);
        contents.lost_from = Some(contents.synced);
        Ok(())
    }

    /// The whole of a file. For tests that look behind a format.
    pub fn contents(&self, path: &Path) -> Result<Vec<u8>> {
        Ok(lock(lock(&self.disk).file("read", path)?).bytes.clone())
    }

    /// Replaces a file's contents, or makes the file, durably: how a test damages one.
    pub fn put_contents(&self, path: &Path, bytes: Vec<u8>) {
        let mut disk = lock(&self.disk);
        if let Some(Node::File(contents)) = disk.names.get(path) {
            *lock(contents) = Contents::durable(bytes);
            return;
        }
        let node = Node::File(Arc::new(Mutex::new(Contents::durable(bytes))));
        disk.names.insert(path.to_owned(), node.clone());
        disk.durable_names.insert(path.to_owned(), node);
    }

    fn open_to_read(&self, path: &Path, past_cache: bool) -> Result<Arc<dyn RandomFile>> {
        let disk = lock(&self.disk);
        let contents = disk.file("open", path)?;
        let handle = self.handle(&disk, path, contents);
        Ok(Arc::new(MemoryRandom { handle, past_cache }))
    }

    fn handle(&self, disk: &Disk, path: &Path, contents: &Arc<Mutex<Contents>>) -> Handle {
        Handle {
            disk: Arc::clone(&self.disk),
            life: disk.life,
            path: path.to_owned(),
            contents: Arc::clone(contents),
        }
    }
}

#[derive(Debug)]
struct MemoryDirectory {
    disk: Arc<Mutex<Disk>>,
    life: u64,
    path: PathBuf,
}

impl Directory for MemoryDirectory {
    fn sync(&self) -> Result<()> {
        let mut disk = lock(&self.disk);
        if disk.life != self.life {
            return Err(crashed("sync directory", &self.path));
        }
        disk.dir("sync directory", &self.path)?;
        let (now, later) = std::mem::take(&mut disk.changes)
            .into_iter()
            .partition(|change: &Change| change.touches(&self.path));
        disk.changes = later;
        for change in now {
            change.apply(&mut disk.durable_names);
        }
        Ok(())
    }
}

impl Default for MemoryFiles {
    fn default() -> Self {
        Self::new()
    }
}

impl Files for MemoryFiles {
    fn create(&self, path: &Path) -> Result<Box<dyn WritableFile>> {
        let mut disk = lock(&self.disk);
        disk.dir("create in", parent(path))?;
        if disk.names.contains_key(path) || is_root(path) {
            return Err(failed("create", path, std::io::ErrorKind::AlreadyExists));
        }
        let contents = Arc::<Mutex<Contents>>::default();
        disk.change(Change::Add(path.to_owned(), Node::File(Arc::clone(&contents))));
        Ok(Box::new(MemoryWritable { handle: self.handle(&disk, path, &contents) }))
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn RandomFile>> {
        self.open_to_read(path, false)
    }

    fn open_left(&self, path: &Path) -> Result<Arc<dyn RandomFile>> {
        self.open_to_read(path, true)
    }

    fn truncate(&self, path: &Path, len: u64) -> Result<()> {
        let disk = lock(&self.disk);
        let mut contents = lock(disk.file("truncate", path)?);
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let mut bytes = std::mem::take(&mut contents.bytes);
        bytes.resize(len, 0);
        let lost_from = contents.lost_from.filter(|from| *from < len);
        *contents = Contents { lost_from, ..Contents::durable(bytes) };
        contents.synced = contents.synced.min(lost_from.unwrap_or(len));
        Ok(())
    }

    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>> {
        let disk = lock(&self.disk);
        disk.dir("list", dir)?;
        let mut entries: Vec<DirEntry> = disk
            .children(dir)
            .filter_map(|(path, node)| {
                let name = path.file_name()?.to_str()?.to_owned();
                Some(match node {
                    Node::Dir => DirEntry { name, len: 0, is_dir: true },
                    Node::File(c) => {
                        DirEntry { name, len: lock(c).bytes.len() as u64, is_dir: false }
                    }
                })
            })
            .collect();
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        Ok(is_root(path) || lock(&self.disk).names.contains_key(path))
    }

    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        let mut disk = lock(&self.disk);
        let mut missing: Vec<&Path> = Vec::new();
        for ancestor in dir.ancestors() {
            if disk.is_dir(ancestor) {
                break;
            }
            if disk.names.contains_key(ancestor) {
                let kind = std::io::ErrorKind::NotADirectory;
                return Err(failed("create directory", ancestor, kind));
            }
            missing.push(ancestor);
        }
        for path in missing.into_iter().rev() {
            disk.change(Change::Add(path.to_owned(), Node::Dir));
        }
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let mut disk = lock(&self.disk);
        disk.file("rename", from)?;
        disk.dir("rename into", parent(to))?;
        if disk.is_dir(to) {
            return Err(failed("rename onto", to, std::io::ErrorKind::IsADirectory));
        }
        if from != to {
            disk.change(Change::Rename(from.to_owned(), to.to_owned()));
        }
        Ok(())
    }

    fn remove(&self, path: &Path) -> Result<()> {
        let mut disk = lock(&self.disk);
        disk.file("remove", path)?;
        disk.change(Change::Remove(path.to_owned()));
        Ok(())
    }

    fn remove_dir(&self, dir: &Path) -> Result<()> {
        let mut disk = lock(&self.disk);
        disk.dir("remove directory", dir)?;
        if is_root(dir) || disk.children(dir).next().is_some() {
            let kind = std::io::ErrorKind::DirectoryNotEmpty;
            return Err(failed("remove directory", dir, kind));
        }
        disk.change(Change::Remove(dir.to_owned()));
        Ok(())
    }

    fn open_dir(&self, dir: &Path) -> Result<Box<dyn Directory>> {
        let disk = lock(&self.disk);
        disk.dir("open directory", dir)?;
        let (path, life) = (dir.to_owned(), disk.life);
        Ok(Box::new(MemoryDirectory { disk: Arc::clone(&self.disk), life, path }))
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        let mut disk = lock(&self.disk);
        if !disk.names.contains_key(path) {
            disk.dir("create in", parent(path))?;
            disk.change(Change::Add(path.to_owned(), Node::File(Arc::default())));
        }
        if !disk.locks.insert(path.to_owned()) {
            return Err(Error::new(
                ErrorKind::Locked,
                format!("{} is locked: another process uses this directory", path.display()),
            ));
        }
        let (life, path, disk) = (disk.life, path.to_owned(), Arc::clone(&self.disk));
        Ok(Box::new(MemoryLock { disk, life, path }))
    }
}

#[derive(Debug)]
struct MemoryLock {
    disk: Arc<Mutex<Disk>>,
    life: u64,
    path: PathBuf,
}

impl FileLock for MemoryLock {}

impl Drop for MemoryLock {
    fn drop(&mut self) {
        let mut disk = lock(&self.disk);
        if disk.life == self.life {
            disk.locks.remove(&self.path);
        }
    }
}

fn crashed(what: &str, path: &Path) -> Error {
    Error::new(ErrorKind::Io, format!("{what} {}: the machine crashed", path.display()))
}

#[derive(Debug)]
struct Handle {
    disk: Arc<Mutex<Disk>>,
    life: u64,
    path: PathBuf,
    contents: Arc<Mutex<Contents>>,
}

impl Handle {
    /// The contents, unless the machine crashed since the file was opened.
    fn contents(&self, what: &str) -> Result<MutexGuard<'_, Contents>> {
        if lock(&self.disk).life != self.life {
            return Err(crashed(what, &self.path));
        }
        Ok(lock(&self.contents))
    }
}

#[derive(Debug)]
struct MemoryWritable {
    handle: Handle,
}

impl WritableFile for MemoryWritable {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        let mut contents = self.handle.contents("write")?;
        let at = contents.appended;
        let laid_out = contents.bytes.len().saturating_sub(at).min(data.len());
        let (over, beyond) = data.split_at(laid_out);
        if let Some(zeros) = contents.bytes.get_mut(at..at + laid_out) {
            zeros.copy_from_slice(over);
        }
        contents.bytes.extend_from_slice(beyond);
        contents.appended = at + data.len();
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        let mut contents = self.handle.contents("sync")?;
        contents.synced = contents.lost_from.unwrap_or(contents.appended);
        contents.synced_len = contents.bytes.len();
        Ok(())
    }

    fn len(&self) -> u64 {
        lock(&self.handle.contents).appended as u64
    }

    fn reserve(&mut self, _len: u64) -> Result<()> {
        self.handle.contents("reserve space for").map(|_| ())
    }

    fn lay_out(&mut self, len: u64) -> Result<()> {
        let mut contents = self.handle.contents("write zeros to")?;
        let len = usize::try_from(len).unwrap_or(usize::MAX).max(contents.bytes.len());
        contents.bytes.resize(len, 0);
        Ok(())
    }
}

#[derive(Debug)]
struct MemoryRandom {
    handle: Handle,
    /// Whether it reads what the device has, where the page cache has more.
    past_cache: bool,
}

impl RandomFile for MemoryRandom {
    fn path(&self) -> &Path {
        &self.handle.path
    }

    fn len(&self) -> Result<u64> {
        Ok(self.handle.contents("stat")?.bytes.len() as u64)
    }

    fn read_at(&self, offset: u64, len: usize) -> Result<Bytes> {
        let contents = self.handle.contents("read")?;
        let on_device =
            (self.past_cache && contents.lost_from.is_some()).then(|| contents.on_device());
        let bytes = on_device.as_ref().unwrap_or(&contents.bytes);
        usize::try_from(offset)
            .ok()
            .and_then(|start| bytes.get(start..start.checked_add(len)?))
            .map(Bytes::copy_from_slice)
            .ok_or_else(|| {
                Error::corruption(
                    self.handle.path.display(),
                    offset,
                    format_args!("the file ends before the {len} bytes that belong here"),
                )
            })
    }

    fn try_read_at(&self, offset: u64, len: usize) -> Option<Result<Bytes>> {
        Some(self.read_at(offset, len))
    }
}

#[cfg(test)]
mod tests;
