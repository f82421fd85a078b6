//! Counters of the commit log: how much it wrote for how many mutations, and how many of them shared a sync.

use std::sync::atomic::{AtomicU64, Ordering};

/// Upper ends of the buckets of how long syncs took, in microseconds, at most 2.5 times apart: from memory that calls itself a
/// disk to a disk that is about to fail.
pub const SYNC_BUCKETS_MICROS: [u64; 15] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 5_000_000,
];

/// Counters since the log was opened. Written by the log's thread once a group, so plain atomics do.
#[derive(Debug, Default)]
pub(super) struct LogMetrics {
    groups: AtomicU64,
    batches: AtomicU64,
    mutations: AtomicU64,
    bytes: AtomicU64,
    /// By bucket; the last has no upper end.
    syncs: [AtomicU64; SYNC_BUCKETS_MICROS.len() + 1],
    sync_micros: AtomicU64,
    segments: AtomicU64,
    segment_retries: AtomicU64,
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
    /// Those syncs by how long they took; see [`SYNC_BUCKETS_MICROS`]. The last bucket has no upper end.
    pub sync_took: [u64; SYNC_BUCKETS_MICROS.len() + 1],
    /// Segments that were begun.
    pub segments: u64,
    /// Tries to begin one for which the system had no open file or memory left.
    pub segment_retries: u64,
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
        let sync_took = self.syncs.each_ref().map(get);
        LogFigures {
            groups: get(&self.groups),
            batches: get(&self.batches),
            mutations: get(&self.mutations),
            bytes: get(&self.bytes),
            syncs: sync_took.iter().sum(),
            sync_micros: get(&self.sync_micros),
            sync_took,
            segments: get(&self.segments),
            segment_retries: get(&self.segment_retries),
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
        let bucket = SYNC_BUCKETS_MICROS.partition_point(|end| *end < micros);
        if let Some(count) = self.syncs.get(bucket) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.sync_micros.fetch_add(micros, Ordering::Relaxed);
    }

    pub(super) fn laid_out(&self, bytes: u64) {
        self.laid_out_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn held(&self) {
        self.segment_retries.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn segment(&self) {
        self.segments.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syncs_are_counted_by_how_long_they_took() {
        let metrics = LogMetrics::default();
        for micros in [0, 50, 51, 5_000_001] {
            metrics.sync(micros);
        }
        let figures = metrics.figures();
        assert_eq!((figures.syncs, figures.sync_micros), (4, 5_000_102));
        assert_eq!(figures.sync_took[..2], [2, 1]);
        assert_eq!(figures.sync_took.last(), Some(&1));
    }
}
