//! Counters of the commit log: how much it wrote for how many mutations, and how many of them shared a sync.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters since the log was opened. Written by the log's thread once a group, so plain atomics do.
#[derive(Debug, Default)]
pub(super) struct LogMetrics {
    groups: AtomicU64,
    batches: AtomicU64,
    mutations: AtomicU64,
    bytes: AtomicU64,
    syncs: AtomicU64,
    sync_micros: AtomicU64,
    segments: AtomicU64,
    laid_out_bytes: AtomicU64,
}

/// The counters at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogFigures {
    /// Groups that were written.
    pub groups: u64,
    /// Batches in them: writes of one row each.
    pub batches: u64,
    /// Mutations in those.
    pub mutations: u64,
    /// Bytes that these batches took in the log, their framing included.
    pub bytes: u64,
    /// Syncs of segments, but for the one with which each begins.
    pub syncs: u64,
    /// Microseconds that those took together.
    pub sync_micros: u64,
    /// Segments that were begun.
    pub segments: u64,
    /// Zeros that were written ahead for small groups.
    pub laid_out_bytes: u64,
}

/// What a group came to.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Group {
    pub(super) batches: u64,
    pub(super) mutations: u64,
    pub(super) bytes: u64,
}

impl LogMetrics {
    pub(super) fn figures(&self) -> LogFigures {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LogFigures {
            groups: get(&self.groups),
            batches: get(&self.batches),
            mutations: get(&self.mutations),
            bytes: get(&self.bytes),
            syncs: get(&self.syncs),
            sync_micros: get(&self.sync_micros),
            segments: get(&self.segments),
            laid_out_bytes: get(&self.laid_out_bytes),
        }
    }

    pub(super) fn group(&self, group: Group) {
        self.groups.fetch_add(1, Ordering::Relaxed);
        self.batches.fetch_add(group.batches, Ordering::Relaxed);
        self.mutations.fetch_add(group.mutations, Ordering::Relaxed);
        self.bytes.fetch_add(group.bytes, Ordering::Relaxed);
    }

    pub(super) fn sync(&self, micros: u64) {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.sync_micros.fetch_add(micros, Ordering::Relaxed);
    }

    pub(super) fn laid_out(&self, bytes: u64) {
        self.laid_out_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn segment(&self) {
        self.segments.fetch_add(1, Ordering::Relaxed);
    }
}
