//! The tables' keys in the meta store: reading them all, and changing one atomically.

use std::sync::Arc;

use bytes::Bytes;
use tepui_bigtable::error::{Error, Result};
use tepui_engine::manifest::{MetaChange, MetaExpect, MetaStore};

use super::record::TableRecord;

/// Before the full name in every key of a table.
pub(super) const PREFIX: &str = "tables/";

/// Whether a commit that ended with this error may be found at the next start all the same ([`MetaStore::commit`]). What
/// its entries name must stay until then: that start removes what nothing names.
pub fn may_be_durable(error: &Error) -> bool {
    error.is_in_doubt()
}

/// Tables in a meta store.
#[derive(Debug, Clone)]
pub(super) struct Store {
    meta: Arc<dyn MetaStore>,
}

impl Store {
    pub fn new(meta: Arc<dyn MetaStore>) -> Self {
        Self { meta }
    }

    /// All tables, deleted ones too, with their revisions.
    pub fn load(&self) -> Result<Vec<(TableRecord, u64)>> {
        let entries = self.meta.list(PREFIX)?;
        let decode = |(key, entry): (String, tepui_engine::manifest::MetaEntry)| {
            Ok((TableRecord::decode_versioned(&key, &entry.value)?, entry.revision))
        };
        entries.into_iter().map(decode).collect()
    }

    /// Makes a change of a record, durably; returns its new revision.
    pub fn commit(&self, change: MetaChange) -> Result<u64> {
        let key = change.key.clone();
        let committed = self.meta.commit(&[change]);
        Ok(committed.map_err(|error| error.context(format!("catalog entry {key}")))?)
    }
}

/// Writes a record in place of the one with `revision` (`None`: where none is).
pub(super) fn put(record: &TableRecord, revision: Option<u64>) -> MetaChange {
    change(&record.name, Some(record.encode_versioned().into()), revision)
}

/// Removes the record with `revision`.
pub(super) fn removal(name: &str, revision: u64) -> MetaChange {
    change(name, None, Some(revision))
}

fn change(name: &str, value: Option<Bytes>, revision: Option<u64>) -> MetaChange {
    let expect = revision.map_or(MetaExpect::Absent, MetaExpect::Revision);
    MetaChange { key: format!("{PREFIX}{name}"), expect, value }
}
