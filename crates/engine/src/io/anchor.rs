//! A directory that is reached by its descriptor, whatever becomes of its name.
//!
//! A server names thousands of files while it runs, and its directory may be moved meanwhile, or another be made or mounted where it was:
//! by name it would write half of its data there, and have removed the rest. So while a directory is locked, its files are opened
//! through the descriptor that the lock has:
//!
//! ```text
//! /data/sst/7.sst  ──►  /proc/self/fd/5/sst/7.sst       5: /data as it was locked
//! ```
//!
//! Messages tell the name. Where there is no such file system, names are taken as they are.

#![expect(clippy::disallowed_types, reason = "this is the file seam")]

use std::borrow::Cow;
use std::fs::{self, File};
use std::io;
use std::ops::Deref;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock, Weak};

/// A directory that is open.
#[derive(Debug)]
pub(super) struct Anchor {
    dir: File,
    name: PathBuf,
    /// How it is reached by its descriptor.
    through: PathBuf,
    /// Whether its names are counted: some file systems count none of a directory.
    counts_names: bool,
}

/// The directories whose files are reached so, each as long as somebody holds it.
#[derive(Debug, Default)]
pub(super) struct Anchored(RwLock<Vec<Weak<Anchor>>>);

/// Where a file is reached. Keeps the descriptor open.
#[derive(Debug)]
pub(super) struct At<'a> {
    path: Cow<'a, Path>,
    _anchor: Option<Arc<Anchor>>,
}

impl Anchor {
    /// Of a directory that is open; `None` where nothing can be reached through a descriptor.
    pub(super) fn new(name: &Path, dir: File) -> io::Result<Option<Arc<Self>>> {
        let through = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()));
        let place = |meta: fs::Metadata| (meta.dev(), meta.ino());
        let is_reached = fs::metadata(&through)
            .is_ok_and(|meta| dir.metadata().is_ok_and(|d| place(d) == place(meta)));
        let counts_names = dir.metadata()?.nlink() > 0;
        let name = name.to_owned();
        Ok(is_reached.then(|| Arc::new(Self { dir, name, through, counts_names })))
    }

    /// Where the file with this name is reached, if it is in the directory.
    pub(super) fn reaches(&self, path: &Path) -> Option<PathBuf> {
        path.strip_prefix(&self.name).ok().map(|rest| self.through.join(rest))
    }

    /// Whether no name leads to it any more: nothing can be made in it.
    pub(super) fn is_removed(&self) -> bool {
        self.counts_names && self.dir.metadata().is_ok_and(|meta| meta.nlink() == 0)
    }
}

impl Anchored {
    /// From now on, what is in this directory is reached by its descriptor.
    pub(super) fn add(&self, anchor: &Arc<Anchor>) {
        let mut anchors = self.0.write().unwrap_or_else(PoisonError::into_inner);
        anchors.retain(|known| known.strong_count() > 0);
        anchors.push(Arc::downgrade(anchor));
    }

    /// Where the file with this name is reached.
    pub(super) fn at<'a>(&self, path: &'a Path) -> At<'a> {
        let anchors = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let mut held = anchors.iter().filter_map(Weak::upgrade);
        let within = held.find_map(|anchor| Some((anchor.reaches(path)?, anchor)));
        match within {
            Some((through, anchor)) => At { path: Cow::Owned(through), _anchor: Some(anchor) },
            None => At { path: Cow::Borrowed(path), _anchor: None },
        }
    }
}

impl Deref for At<'_> {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.path
    }
}

impl AsRef<Path> for At<'_> {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}
