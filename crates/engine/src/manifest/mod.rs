//! Durable metadata: which SSTs are live, and the catalog's small values.
//!
//! ```text
//! TabletManifest ── VersionEdit ── Version          LocalMetaStore ── keys, revisions
//!        └──────────────── RotatingJournal ────────────────┘    snapshot + changes, numbered files
//!                                 │
//!                              Journal                          checksummed records, each synced
//! ```
//!
//! Everything here is small and rarely written, so each change is one record and one sync, and the whole
//! state is in memory. The byte layouts are in `docs/formats-manifest.md`.

mod edit;
pub mod journal;
mod meta_record;
mod meta_store;
mod rotation;
mod tablet_manifest;
#[cfg(test)]
mod testing;
mod version;

use std::fmt::Debug;

use bytes::Bytes;

use crate::error::Result;

pub(crate) use meta_record::{
    encode_commit as encode_meta_commit, encode_snapshot as encode_meta_snapshot,
};
pub(crate) use meta_store::{META_BYTES_MAX, META_RESERVE_BYTES, SERIES as META_SERIES};
pub(crate) use rotation::{Series, wrote_nothing};
pub(crate) use tablet_manifest::{
    SERIES as MANIFEST_SERIES, encode_snapshot as encode_manifest_snapshot,
    replay as replay_manifest,
};

pub use edit::{Excised, LEVELS, SstRef, VersionEdit};
pub use meta_record::{MetaRecord, dump as dump_meta};
pub use meta_store::LocalMetaStore;
pub use tablet_manifest::{ManifestDump, TabletManifest, dump as dump_manifest};
pub use version::Version;

/// A value of a [`MetaStore`] and the revision at which it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetaEntry {
    /// The value.
    pub value: Bytes,
    /// Increases with every change of the store.
    pub revision: u64,
}

/// A condition on a key for [`MetaStore::commit`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetaExpect {
    /// Whatever is there.
    Any,
    /// Nothing is there.
    Absent,
    /// The entry has this revision.
    Revision(u64),
}

/// One change of a [`MetaStore::commit`]; `None` deletes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetaChange {
    /// The key.
    pub key: String,
    /// What must be there.
    pub expect: MetaExpect,
    /// What shall be there.
    pub value: Option<Bytes>,
}

/// A small durable store for the catalog: get, list, and an atomic compare-and-set of several keys.
/// Local now; etcd when there is a cluster.
pub trait MetaStore: Send + Sync + Debug {
    /// The entry of a key.
    fn get(&self, key: &str) -> Result<Option<MetaEntry>>;
    /// All entries whose keys start with `prefix`, in key order.
    fn list(&self, prefix: &str) -> Result<Vec<(String, MetaEntry)>>;
    /// Makes all changes or, where an expectation does not hold, none (`AlreadyExists`, or `NotFound`
    /// for a revision that is gone). Durable when it returns. Returns the new revision. After an error
    /// that is [in doubt](crate::Error::is_in_doubt) nobody knows whether the next start finds the changes or not; after any
    /// other nothing was changed.
    fn commit(&self, changes: &[MetaChange]) -> Result<u64>;
}
