//! Tools for a directory that no server uses: checking it, repairing it, and looking into its files.
//!
//! * [`check`](check()): reads every byte, verifies every checksum and invariant, changes nothing.
//! * [`repair`](repair()): keeps what verifies, sets the rest aside in `lost/`, says what was lost.
//! * [`inspect`]: what is in a single file; also of a directory in use.
//!
//! The engine's own opening cannot be used for any of these: it cuts torn tails and removes files that no
//! manifest names, and here nothing may be changed that was not looked at first.

mod changes;
mod check;
mod check_log;
pub(crate) mod fuzzing;
pub mod inspect;
mod journals;
mod overlay;
mod repair;
mod repair_backups;
mod repair_journals;
mod repair_ssts;
mod salvaged_version;
mod values;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use crate::backup::BackupId;
use crate::error::{Error, ErrorKind, Result};
use crate::io::{Env, FileLock, Files};
use crate::layout::{BACKUP_PREFIX, Layout, parse_number};
use crate::tablet::TabletId;

pub(crate) use check::of_start;
pub use check::{CheckReport, check};
pub use repair::{Holder, LostRows, RepairOptions, RepairReport, repair};

/// Bytes of the block cache of an offline reader, which reads past it: the least that makes one.
const CACHE_BYTES: u64 = 1 << 20;

/// Something to tell about one file.
#[derive(Debug, Clone)]
pub struct Finding {
    /// The file or directory.
    pub file: PathBuf,
    /// What is the matter; the message names the file, and the offset where there is one.
    pub error: Error,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl Finding {
    fn new(file: &Path, error: Error) -> Self {
        let error = if error.message().contains(&*file.to_string_lossy()) {
            error
        } else {
            error.context(file.display())
        };
        Self { file: file.to_path_buf(), error }
    }

    /// Whether a newer version wrote it.
    pub fn is_of_newer_version(&self) -> bool {
        self.error.kind() == ErrorKind::InvalidArgument
    }

    fn damage(file: &Path, what: impl fmt::Display) -> Self {
        let message = format!("{}: {what}", file.display());
        Self { file: file.to_path_buf(), error: Error::new(ErrorKind::Corruption, message) }
    }
}

/// A table of the catalog.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableTablets {
    /// Its name.
    pub table: String,
    /// Its tablets, in the order of their rows.
    pub tablets: Vec<TabletId>,
}

/// A backup of the catalog.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableBackup {
    /// Its name.
    pub name: String,
    /// The engine's backup.
    pub id: BackupId,
}

/// What an entry of the meta store describes, as far as it names something that lies in the directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CatalogEntry {
    /// A table.
    Table(TableTablets),
    /// A backup.
    Backup(TableBackup),
}

/// Reads an entry of the meta store: what it describes; `None` for an entry that names nothing in the directory. What
/// entries say is known above the engine.
pub type CatalogReader<'a> = &'a dyn Fn(&str, &[u8]) -> Result<Option<CatalogEntry>>;

/// Hears of bytes done and bytes in all.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// The keys and values of a meta store.
type Meta = BTreeMap<String, Bytes>;

/// What is in `dir`, which must look like a data directory, and its lock. `changes`: whether it is to be changed. Who only reads
/// may be allowed no more, or the file system: the lock file is not written to, nor made where there is none. Who has removed that of a
/// server that runs meets the lock of the directory.
fn open_dir(env: &Env, dir: &Path, changes: bool) -> Result<(Layout, Option<Box<dyn FileLock>>)> {
    let layout = Layout::new(dir);
    let files = env.files.as_ref();
    let parts = [layout.identity(), layout.meta(), layout.tablets(), layout.log(), layout.ssts()];
    let mut found = false;
    for part in parts {
        found |= files.exists(&part)?;
    }
    if !found {
        let text = format!("{}: not a tepui data directory", dir.display());
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    let path = layout.lock();
    let lock = if changes {
        files.lock(&path).map(Some)
    } else if files.exists(&path)? {
        files.lock_to_read(&path).map(Some)
    } else {
        files.lock_dir_to_read(dir)
    };
    let lock = lock.map_err(|error| match error.kind() {
        ErrorKind::Locked => Error::new(
            ErrorKind::Locked,
            format!("{} is in use by a tepui server: stop it first", dir.display()),
        ),
        _ => error,
    })?;
    Ok((layout, lock))
}

/// The names and lengths of the files in a directory; none where it does not exist.
fn list_files(files: &dyn Files, dir: &Path) -> Result<Vec<(String, u64)>> {
    if !files.exists(dir)? {
        return Ok(Vec::new());
    }
    let entries = files.list(dir)?.into_iter();
    Ok(entries.filter(|entry| !entry.is_dir).map(|entry| (entry.name, entry.len)).collect())
}

/// The SSTs in the directory: their numbers and bytes.
fn list_ssts(files: &dyn Files, layout: &Layout) -> Result<BTreeMap<u64, u64>> {
    let names = list_files(files, &layout.ssts())?.into_iter();
    Ok(names.filter_map(|(name, len)| Some((parse_number(&name, "", ".sst")?, len))).collect())
}

/// The backups that have a list.
fn list_backups(files: &dyn Files, layout: &Layout) -> Result<Vec<BackupId>> {
    let names = list_files(files, &layout.backups())?.into_iter();
    Ok(names.filter_map(|(name, _)| parse_number(&name, BACKUP_PREFIX, "").map(BackupId)).collect())
}

/// The tablets that have a directory.
fn list_tablets(files: &dyn Files, layout: &Layout) -> Result<Vec<TabletId>> {
    if !files.exists(&layout.tablets())? {
        return Ok(Vec::new());
    }
    let entries = files.list(&layout.tablets())?.into_iter().filter(|entry| entry.is_dir);
    Ok(entries.filter_map(|entry| parse_number(&entry.name, "", "").map(TabletId)).collect())
}
