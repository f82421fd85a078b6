//! Who needs the files of a kind: those that are open, and those that backups keep.
//!
//! ```text
//! tablets' versions ─► open file ─┐
//! readers, jobs ─────► open file ─┼─► the file on disk stays
//! backups ───────────► kept  ─────┘
//! ```
//!
//! An open file is shared by everyone who opens it by its number: tablets that were restored from one backup name
//! the same files. What a backup keeps need not be open. A file goes when neither is left; whichever ends last
//! says so.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

use crate::sst::FileId;

/// The files of one kind that are needed. Lives under the lock of its store.
#[derive(Debug)]
pub(crate) struct Holdings<T> {
    open: HashMap<FileId, Weak<T>>,
    /// How many backups keep a file.
    kept: HashMap<FileId, u32>,
}

impl<T> Default for Holdings<T> {
    fn default() -> Self {
        Self { open: HashMap::new(), kept: HashMap::new() }
    }
}

impl<T> Holdings<T> {
    /// The file, if it is open.
    pub(crate) fn get(&self, id: FileId) -> Option<Arc<T>> {
        self.open.get(&id).and_then(Weak::upgrade)
    }

    /// Whether the file is open.
    pub(crate) fn is_open(&self, id: FileId) -> bool {
        self.open.contains_key(&id)
    }

    /// The file is open now.
    pub(crate) fn opened(&mut self, id: FileId, file: &Arc<T>) {
        self.open.insert(id, Arc::downgrade(file));
    }

    /// The last holder of an open file let go. Whether nobody has opened it anew and no backup keeps it.
    pub(crate) fn closed(&mut self, id: FileId, file: *const T) -> bool {
        if self.open.get(&id).is_none_or(|open| open.as_ptr() != file) {
            return false;
        }
        self.open.remove(&id);
        !self.kept.contains_key(&id)
    }

    /// A backup keeps the file.
    pub(crate) fn keep(&mut self, id: FileId) {
        *self.kept.entry(id).or_default() += 1;
    }

    /// A backup keeps the file no longer. Whether no other does and it is not open, either.
    pub(crate) fn release(&mut self, id: FileId) -> bool {
        let Some(count) = self.kept.get_mut(&id) else { return false };
        *count -= 1;
        if *count > 0 {
            return false;
        }
        self.kept.remove(&id);
        !self.open.contains_key(&id)
    }

    /// Whether a backup keeps the file.
    pub(crate) fn is_kept(&self, id: FileId) -> bool {
        self.kept.contains_key(&id)
    }

    /// Whether the file is open or kept.
    pub(crate) fn needs(&self, id: FileId) -> bool {
        self.is_open(id) || self.is_kept(id)
    }

    /// All files that are open or kept.
    pub(crate) fn needed(&self) -> HashSet<FileId> {
        self.open.keys().chain(self.kept.keys()).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_needed_until_its_last_holder_and_its_last_backup_are_gone() {
        let mut holdings = Holdings::default();
        let file = Arc::new(());
        holdings.opened(7, &file);
        holdings.keep(7);
        holdings.keep(7);
        assert!(!holdings.release(7));
        assert!(!holdings.closed(7, Arc::as_ptr(&file)), "a backup keeps it");
        assert!(holdings.is_kept(7) && holdings.needed().contains(&7));
        assert!(holdings.release(7));
        assert!(!holdings.release(7) && !holdings.is_kept(7) && holdings.needed().is_empty());
    }

    #[test]
    fn a_file_that_is_open_outlives_its_backup_and_one_opened_anew_its_old_holder() {
        let mut holdings = Holdings::default();
        let old = Arc::new(1);
        holdings.opened(7, &old);
        holdings.keep(7);
        assert!(!holdings.release(7), "it is open");
        assert_eq!(holdings.get(7).as_deref(), Some(&1));
        let new = Arc::new(2);
        holdings.opened(7, &new);
        assert!(!holdings.closed(7, Arc::as_ptr(&old)), "it is open anew");
        assert!(holdings.closed(7, Arc::as_ptr(&new)) && holdings.get(7).is_none());
    }
}
