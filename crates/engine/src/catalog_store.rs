//! The meta store as an engine hands it out to the catalog: a commit that fails on the disk is a failed write like any
//! other, and makes the engine read-only.
//!
//! What such a commit left is not known until the next start. What is written until then would be written by what the
//! catalog was before: rows of a family that is gone by then, changes that a stream promises and that nobody keeps.
//!
//! An engine that is read-only takes no commits either: whoever looks at it wants to find what was there, and a sweep that
//! goes on would delete what nobody can replace by then. Where the disk is full there is one exception, since nothing is
//! wrong with what is on it: commits that only remove entries are taken, for backups and instances to go that room is made by.

use std::sync::Arc;

use crate::core::Core;
use crate::error::{ErrorKind, Result};
use crate::manifest::{LocalMetaStore, MetaChange, MetaEntry, MetaStore};

/// The catalog's store of an engine.
#[derive(Debug)]
pub(crate) struct CatalogStore {
    core: Arc<Core>,
    meta: Arc<LocalMetaStore>,
}

impl CatalogStore {
    pub(crate) fn new(core: Arc<Core>, meta: Arc<LocalMetaStore>) -> Self {
        Self { core, meta }
    }
}

impl MetaStore for CatalogStore {
    fn get(&self, key: &str) -> Result<Option<MetaEntry>> {
        self.meta.get(key)
    }

    fn list(&self, prefix: &str) -> Result<Vec<(String, MetaEntry)>> {
        self.meta.list(prefix)
    }

    fn commit(&self, changes: &[MetaChange]) -> Result<u64> {
        if let Some(failure) = self.core.failed() {
            let only_removes = changes.iter().all(|change| change.value.is_none());
            if failure.kind() != ErrorKind::NoSpace || !only_removes {
                return Err(failure);
            }
        }
        self.meta.commit(changes).inspect_err(|error| {
            if matches!(error.kind(), ErrorKind::Io | ErrorKind::NoSpace | ErrorKind::Corruption) {
                self.core.fail(&error.clone().context("the catalog cannot be written"));
            }
        })
    }
}
