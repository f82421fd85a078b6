//! A file system that keeps every change in memory and leaves the one below it as it is: what a repair
//! would do is found out by doing it here.
//!
//! ```text
//! name ──► changed? ── gone ──────────► there is no such file
//!             │  └──── written ───────► in memory
//!             │  └──── moved, copied ─► below, under its old name
//!             │        or cut
//!             no ─────────────────────► below
//! ```
//!
//! What is written is held in memory until the overlay goes. Of what is moved, copied or cut nothing is: the files below do not
//! change meanwhile.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::io::{
    DirEntry, Directory, FileLock, Files, IoMetrics, MemoryFiles, RandomFile, WritableFile,
};

/// What became of a name.
#[derive(Debug, Clone)]
enum Place {
    Gone,
    Written,
    /// Below, under this name; where it was cut, up to this length.
    Below(PathBuf, Option<u64>),
}

/// The overlay.
#[derive(Debug)]
pub(super) struct OverlayFiles {
    below: Arc<dyn Files>,
    written: MemoryFiles,
    changed: Mutex<BTreeMap<PathBuf, Place>>,
}

impl OverlayFiles {
    pub(super) fn new(below: Arc<dyn Files>) -> Self {
        Self { below, written: MemoryFiles::new(), changed: Mutex::default() }
    }

    fn changed(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Place>> {
        // Each change is one insertion, so what a panic leaves is whole.
        self.changed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self, path: &Path) -> Option<Place> {
        self.changed().get(path).cloned()
    }

    fn set(&self, path: &Path, place: Place) {
        self.changed().insert(path.to_path_buf(), place);
    }

    /// Paths in memory must be absolute to have a root above them.
    fn inside(path: &Path) -> PathBuf {
        Path::new("/").join(path)
    }

    /// Opens a file, one below with `open`.
    fn open_with(
        &self,
        path: &Path,
        open: impl Fn(&Path) -> Result<Arc<dyn RandomFile>>,
    ) -> Result<Arc<dyn RandomFile>> {
        match self.place(path) {
            Some(Place::Gone) => Err(Self::missing("open", path)),
            Some(Place::Written) => self.written.open(&Self::inside(path)),
            Some(Place::Below(from, None)) => open(&from),
            Some(Place::Below(from, Some(len))) => Ok(Arc::new(Cut { file: open(&from)?, len })),
            None => open(path),
        }
    }

    /// Copies a file to a name that is free, without reading it; whether it could, as one that lies below.
    pub(super) fn copy_below(&self, from: &Path, to: &Path) -> Result<bool> {
        let place = match self.place(from) {
            Some(Place::Written) => return Ok(false),
            Some(below @ Place::Below(..)) => below,
            None if self.below.exists(from)? => Place::Below(from.to_path_buf(), None),
            Some(Place::Gone) | None => return Err(Self::missing("copy", from)),
        };
        self.set(to, place);
        Ok(true)
    }

    fn missing(what: &str, path: &Path) -> Error {
        let kind = std::io::ErrorKind::NotFound;
        Error::io(format_args!("{what} {}", path.display()), &kind.into())
    }
}

impl Files for OverlayFiles {
    fn create(&self, path: &Path) -> Result<Box<dyn WritableFile>> {
        if self.exists(path)? {
            let kind = std::io::ErrorKind::AlreadyExists;
            return Err(Error::io(format_args!("create {}", path.display()), &kind.into()));
        }
        let inside = Self::inside(path);
        if let Some(dir) = inside.parent() {
            self.written.create_dir_all(dir)?;
        }
        let file = self.written.create(&inside)?;
        self.set(path, Place::Written);
        Ok(file)
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn RandomFile>> {
        self.open_with(path, |path| self.below.open(path))
    }

    fn open_immutable(&self, path: &Path) -> Result<Arc<dyn RandomFile>> {
        self.open_with(path, |path| self.below.open_immutable(path))
    }

    fn open_left(&self, path: &Path) -> Result<Arc<dyn RandomFile>> {
        self.open_with(path, |path| self.below.open_left(path))
    }

    fn metrics(&self) -> Option<Arc<IoMetrics>> {
        self.below.metrics()
    }

    fn truncate(&self, path: &Path, len: u64) -> Result<()> {
        if matches!(self.place(path), Some(Place::Written)) {
            return self.written.truncate(&Self::inside(path), len);
        }
        let len = self.open(path)?.len()?.min(len);
        let from = match self.place(path) {
            Some(Place::Below(from, _)) => from,
            _ => path.to_path_buf(),
        };
        self.set(path, Place::Below(from, Some(len)));
        Ok(())
    }

    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>> {
        let inside = Self::inside(dir);
        let mut entries: BTreeMap<String, DirEntry> = BTreeMap::new();
        if self.below.exists(dir)? {
            entries.extend(self.below.list(dir)?.into_iter().map(|e| (e.name.clone(), e)));
        } else if !self.written.exists(&inside)? {
            return Err(Self::missing("list", dir));
        }
        if self.written.exists(&inside)? {
            let dirs = self.written.list(&inside)?.into_iter().filter(|e| e.is_dir);
            entries.extend(dirs.map(|e| (e.name.clone(), e)));
        }
        let changed = self.changed().clone();
        for (path, place) in changed.iter().filter(|(path, _)| path.parent() == Some(dir)) {
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            if matches!(place, Place::Gone) {
                entries.remove(name);
            } else {
                let len = self.open(path)?.len()?;
                let entry = DirEntry { name: name.to_owned(), len, is_dir: false };
                entries.insert(name.to_owned(), entry);
            }
        }
        Ok(entries.into_values().collect())
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        match self.place(path) {
            Some(Place::Gone) => Ok(false),
            Some(_) => Ok(true),
            None => Ok(self.written.exists(&Self::inside(path))? || self.below.exists(path)?),
        }
    }

    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        self.written.create_dir_all(&Self::inside(dir))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let place = match self.place(from) {
            Some(Place::Gone) => return Err(Self::missing("rename", from)),
            Some(Place::Written) => {
                let inside = Self::inside(to);
                if let Some(dir) = inside.parent() {
                    self.written.create_dir_all(dir)?;
                }
                self.written.rename(&Self::inside(from), &inside)?;
                Place::Written
            }
            Some(below @ Place::Below(..)) => below,
            None => Place::Below(from.to_path_buf(), None),
        };
        self.set(to, place);
        self.set(from, Place::Gone);
        Ok(())
    }

    fn remove(&self, path: &Path) -> Result<()> {
        if !self.exists(path)? {
            return Err(Self::missing("remove", path));
        }
        if matches!(self.place(path), Some(Place::Written)) {
            self.written.remove(&Self::inside(path))?;
        }
        self.set(path, Place::Gone);
        Ok(())
    }

    fn remove_dir(&self, dir: &Path) -> Result<()> {
        self.set(dir, Place::Gone);
        Ok(())
    }

    fn open_dir(&self, _dir: &Path) -> Result<Box<dyn Directory>> {
        Ok(Box::new(NothingToSync))
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        self.below.lock(path)
    }

    fn lock_to_read(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        self.below.lock_to_read(path)
    }
}

/// The beginning of a file.
#[derive(Debug)]
struct Cut {
    file: Arc<dyn RandomFile>,
    len: u64,
}

impl RandomFile for Cut {
    fn path(&self) -> &Path {
        self.file.path()
    }

    fn len(&self) -> Result<u64> {
        Ok(self.len)
    }

    fn read_at(&self, offset: u64, len: usize) -> Result<Bytes> {
        if offset.saturating_add(len as u64) > self.len {
            return Err(Error::corruption(self.path().display(), offset, "the file is shorter"));
        }
        self.file.read_at(offset, len)
    }

    fn try_read_at(&self, _offset: u64, _len: usize) -> Option<Result<Bytes>> {
        None
    }
}

/// A directory here: what is written in it is kept nowhere.
#[derive(Debug)]
struct NothingToSync;

impl Directory for NothingToSync {
    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::repair::Repair;
    use super::*;
    use crate::io::{Env, InlineIo, ManualClock, SeededRng, ThreadSpawner};
    use crate::layout::Layout;

    fn below() -> Arc<MemoryFiles> {
        let files = MemoryFiles::new();
        files.create_dir_all(Path::new("/d")).unwrap();
        for name in ["a", "b", "c"] {
            files.put_contents(&Path::new("/d").join(name), name.repeat(3).into_bytes());
        }
        Arc::new(files)
    }

    fn names(files: &dyn Files) -> Vec<(String, u64)> {
        files.list(Path::new("/d")).unwrap().into_iter().map(|e| (e.name, e.len)).collect()
    }

    #[test]
    fn changes_show_above_and_not_below() {
        let below = below();
        let before = names(below.as_ref());
        let files = OverlayFiles::new(Arc::clone(&below) as Arc<dyn Files>);
        let at = |name: &str| Path::new("/d").join(name);
        files.create_dir_all(&at("lost")).unwrap();
        files.remove(&at("a")).unwrap();
        files.rename(&at("b"), &at("lost/b")).unwrap();
        files.truncate(&at("c"), 1).unwrap();
        files.create(&at("new")).unwrap().append(b"12345").unwrap();
        files.rename(&at("new"), &at("newer")).unwrap();
        let shown = names(&files);
        let shown: Vec<(&str, u64)> = shown.iter().map(|(n, len)| (n.as_str(), *len)).collect();
        assert_eq!(shown, [("c", 1), ("lost", 0), ("newer", 5)]);
        assert_eq!(files.open(&at("lost/b")).unwrap().read_at(0, 3).unwrap(), "bbb");
        assert!(files.open(&at("a")).is_err() && files.open(&at("b")).is_err());
        assert!(files.create(&at("c")).is_err());
        files.create(&at("a")).unwrap().append(b"x").unwrap();
        assert_eq!(files.open(&at("a")).unwrap().read_at(0, 1).unwrap(), "x");
        assert_eq!(names(below.as_ref()), before);
    }

    #[test]
    fn of_what_is_set_aside_or_cut_a_dry_run_holds_nothing_in_memory() {
        let below = below();
        let overlay = Arc::new(OverlayFiles::new(Arc::clone(&below) as Arc<dyn Files>));
        let env = Env {
            files: Arc::clone(&overlay) as Arc<dyn Files>,
            io: Arc::new(InlineIo),
            clock: Arc::new(ManualClock::new(0)),
            rng: Arc::new(SeededRng::new(1)),
            spawner: Arc::new(ThreadSpawner),
        };
        let layout = Layout::new(Path::new("/d"));
        let mut repair = Repair::new(env, &layout, None, Some(Arc::clone(&overlay)));
        let at = |name: &str| Path::new("/d").join(name);
        repair.copy_aside(&at("a")).unwrap();
        overlay.truncate(&at("a"), 2).unwrap();
        repair.copy_aside(&at("a")).unwrap();
        overlay.remove(&at("a")).unwrap();
        for (name, bytes) in [("lost/a", "aaa"), ("lost/a.1", "aa")] {
            let file = overlay.open(&at(name)).unwrap();
            assert_eq!(file.len().unwrap(), bytes.len() as u64);
            assert_eq!(file.read_at(0, bytes.len()).unwrap(), bytes);
            assert!(file.read_at(1, bytes.len()).is_err(), "{name}");
        }
        let held = |dir: &str| {
            let entries = overlay.written.list(Path::new(dir)).unwrap_or_default();
            entries.iter().filter(|entry| !entry.is_dir).count()
        };
        assert_eq!(held("/d") + held("/d/lost"), 0);
        // What was written is copied as it is.
        overlay.create(&at("new")).unwrap().append(b"12345").unwrap();
        repair.copy_aside(&at("new")).unwrap();
        overlay.truncate(&at("new"), 1).unwrap();
        assert_eq!(overlay.open(&at("lost/new")).unwrap().read_at(0, 5).unwrap(), "12345");
    }
}
