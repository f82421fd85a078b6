//! Backups: what tablets were at a moment, as references to the files that they had then.
//!
//! ```text
//! tablets ──flush──► their versions ──► BACKUP-<n>: the SSTs of each, by level, with their visible rows; value files
//!                                           │ restore
//!                                           ▼
//!                                new tablets, whose manifests name the same files
//! ```
//!
//! No data is copied, whatever the size: files are immutable and have names that are never used again, and who else
//! names them does not matter to who reads them. A backup *keeps* the files that it names ([`crate::holdings`]):
//! compactions, dropped rows and dropped tablets give up their files, and they stay on disk while a backup keeps
//! them. What a backup keeps is not open, and takes no memory but its list; an opening reads
//! the versions of the newest.
//!
//! # Crashes
//!
//! A backup is one file, written under another name, synced and renamed: it is there as a whole or not at all. The catalog
//! names it afterwards; a backup that the catalog does not name is removed by
//! [`Engine::retain_backups`](crate::db::Engine::retain_backups) at the next start, as tablets are. An opening reads all backups
//! before it removes a file that nothing names. What a backup keeps whose list is damaged or cannot be read is not known: as long as its file is there,
//! an opening removes nothing of which the list may tell.
//!
//! | Noun | File |
//! |---|---|
//! | The list of a backup: encoding, writing, reading | `list.rs` |
//! | Making, copying, restoring and deleting backups | `engine.rs` |

mod engine;
mod list;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::sst::FileId;
use crate::store::SstStore;

pub use list::{BACKUP_MAGIC, BackupList};
pub(crate) use list::{read, write};

pub(crate) use engine::{Backups, is_draft};

/// A backup's number, unique within a server and never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackupId(pub u64);

/// A backup whose files are kept.
#[derive(Debug)]
pub struct Backup {
    id: BackupId,
    list: BackupList,
    store: Arc<SstStore>,
    /// Whether its files are to be let go with it: its list is gone from the disk.
    deleted: AtomicBool,
}

impl Backup {
    /// Keeps the files of `list`, which are there.
    pub(crate) fn keep(id: BackupId, list: BackupList, store: Arc<SstStore>) -> Arc<Self> {
        store.keep(list.ssts().into_keys());
        store.values().keep(list.values.keys().copied());
        Arc::new(Self { id, list, store, deleted: AtomicBool::new(false) })
    }

    /// Its number.
    pub fn id(&self) -> BackupId {
        self.id
    }

    /// What it names.
    pub fn list(&self) -> &BackupList {
        &self.list
    }

    /// Lets go of the files once nobody restores from it any more.
    pub(crate) fn delete(&self) {
        self.deleted.store(true, Ordering::Release);
    }
}

impl Drop for Backup {
    fn drop(&mut self) {
        if self.deleted.load(Ordering::Acquire) {
            let values: Vec<(FileId, u64)> =
                self.list.values.iter().map(|(id, bytes)| (*id, *bytes)).collect();
            self.store.release(self.list.ssts());
            self.store.values().release(values);
        }
    }
}
