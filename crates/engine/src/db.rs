//! The engine: a directory, its log, its tablets and its background work. Placeholder for its public face.

use std::path::Path;
use std::sync::Arc;

use crate::cell::RowRange;
use crate::error::Result;
use crate::io::{Clock, Env};
use crate::tablet::{Tablet, TabletId};

/// When an acknowledged write is on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncMode {
    /// Before it is acknowledged.
    Always,
    /// At most this many milliseconds after.
    IntervalMs(u64),
    /// When the operating system likes.
    Never,
}

/// Options of an engine. Every field has a default with its reason.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// When the log is synced.
    pub sync: SyncMode,
    /// Bytes of a memtable before it is flushed.
    pub memtable_bytes: u64,
    /// Bytes of the block cache.
    pub block_cache_bytes: u64,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self { sync: SyncMode::Always, memtable_bytes: 64 << 20, block_cache_bytes: 1 << 30 }
    }
}

/// Whether the engine takes writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// All is well.
    Serving,
    /// A failed write or sync made it read-only; the reason.
    ReadOnly(String),
}

/// The engine.
#[derive(Debug)]
pub struct Engine;

impl Engine {
    /// Opens a directory, creating it if needed, and replays its log. Blocks. Background work starts
    /// with [`Engine::start`], after every tablet was given its schema.
    pub fn open(_env: Env, _dir: &Path, _options: EngineOptions) -> Result<Arc<Self>> {
        unreachable!()
    }
    /// Starts flushes, compactions and garbage collection.
    pub fn start(&self) -> Result<()> {
        Ok(())
    }
    /// Creates an empty tablet, durably. A tablet that the catalog does not name is removed by
    /// [`Engine::retain_tablets`] at the next start.
    pub fn create_tablet(&self, _range: RowRange) -> Result<Arc<Tablet>> {
        unreachable!()
    }
    /// The tablet, if there is one.
    pub fn tablet(&self, _id: TabletId) -> Option<Arc<Tablet>> {
        None
    }
    /// All tablets.
    pub fn tablets(&self) -> Vec<Arc<Tablet>> {
        Vec::new()
    }
    /// Removes a tablet and its data. Reads under way go on to their end.
    pub fn drop_tablet(&self, _id: TabletId) -> Result<()> {
        Ok(())
    }
    /// Removes every tablet that is not listed.
    pub fn retain_tablets(&self, _keep: &[TabletId]) -> Result<()> {
        Ok(())
    }
    /// The durable key-value store for the catalog.
    pub fn meta(&self) -> Arc<dyn crate::manifest::MetaStore> {
        unreachable!()
    }
    /// The clock that the engine was given.
    pub fn clock(&self) -> Arc<dyn Clock> {
        unreachable!()
    }
    /// Whether writes are taken.
    pub fn health(&self) -> Health {
        Health::Serving
    }
    /// Flushes every tablet, stops background work and closes the log. Blocks. Later calls fail with `Closed`.
    pub fn close(&self) -> Result<()> {
        Ok(())
    }
}
