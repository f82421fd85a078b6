//! Counters of the commit log: how much it wrote for how many mutations, and how many of them shared a sync.

use std::sync::atomic::{AtomicU64, Ordering};

use super::pipeline::BULK_BYTES_MIN;

/// Upper ends of the buckets of how long syncs took, in microseconds, at most 2.5 times apart: from memory that calls itself a
/// disk to a disk that is about to fail.
pub const SYNC_BUCKETS_MICROS: [u64; 15] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 5_000_000,
];

/// Bytes of a group from which on the time that it takes beyond that says something of what more of them would.
const BULK_GROUP_BYTES_MIN: u64 = 512 << 10;
/// Bytes a second at which a group counts at most, so that one in memory that takes no time is soon forgotten.
const BULK_RATE_MAX: u64 = 1 << 30;

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
    /// Bytes a second of recent large groups, beyond a small one's time; 0 before the first.
    bulk_rate: AtomicU64,
    /// Microseconds of recent small groups; 0 before the first.
    small_micros: AtomicU64,
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

    /// A group of so many bytes took so long: without bulk, as long as a sync. One that took long after others that did not counts little.
    pub(super) fn took(&self, bytes: u64, micros: u64) {
        if bytes > 0 && bytes < BULK_BYTES_MIN {
            follow(&self.small_micros, micros);
        } else if bytes >= BULK_GROUP_BYTES_MIN {
            let beyond = micros.saturating_sub(self.small_micros.load(Ordering::Relaxed)).max(1);
            let rate = bytes.saturating_mul(1_000_000) / beyond;
            follow(&self.bulk_rate, rate.min(BULK_RATE_MAX));
        }
    }

    /// Bytes that a large group takes so long for, and two small ones' time: where syncs are slow, large groups have to be worth them. `None`
    /// before there was a group of either kind: where nobody has written little yet, nobody waits.
    pub(super) fn bulk_in(&self, micros: u64) -> Option<u64> {
        let known = |of: &AtomicU64| Some(of.load(Ordering::Relaxed)).filter(|value| *value > 0);
        let (rate, small) = (known(&self.bulk_rate)?, known(&self.small_micros)?);
        let micros = micros.saturating_add(small.saturating_mul(2));
        Some(rate.saturating_mul(micros) / 1_000_000)
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

/// Follows a figure, an eighth of the way at a time.
fn follow(figure: &AtomicU64, now: u64) {
    let known = match figure.load(Ordering::Relaxed) {
        0 => now,
        known => known,
    };
    figure.store((known.saturating_mul(7) / 8 + now / 8).max(1), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What groups say of a disk whose syncs take `sync` microseconds, beside `rate` bytes in each, where half of what is let in is one
    /// group, and a small one follows each.
    fn bulk_on_a_disk(metrics: &LogMetrics, sync: u64, rate: u64) -> u64 {
        let mut room = 8 << 20;
        for _ in 0..200 {
            metrics.took(1_000, sync);
            let group = room / 2;
            metrics.took(group, sync + group / rate);
            room = metrics.bulk_in(8_000).unwrap().clamp(1 << 20, 8 << 20);
        }
        room
    }

    #[test]
    fn bulk_is_measured_beyond_the_time_of_a_sync() {
        let metrics = LogMetrics::default();
        metrics.took(8 << 20, 50_000);
        assert_eq!(metrics.bulk_in(8_000), None, "nobody writes little");
        // A quick disk of 200 MB/s: 8 ms, and two syncs.
        let room = bulk_on_a_disk(&metrics, 300, 200);
        assert!((1_650_000..1_800_000).contains(&room), "{room}");
        // 5 ms for a sync, and 500 MB/s beyond: groups of 2 MiB would take most of their time for the sync.
        let room = bulk_on_a_disk(&metrics, 5_000, 500);
        assert_eq!(room, 8 << 20);
        let room = bulk_on_a_disk(&metrics, 5_000, 100);
        assert!((1_700_000..1_900_000).contains(&room), "{room}");
        // It does not fall by itself.
        assert!(bulk_on_a_disk(&metrics, 2_000, 300) > 3_400_000);
    }

    #[test]
    fn one_group_that_took_long_or_no_time_changes_little() {
        let metrics = LogMetrics::default();
        let room = bulk_on_a_disk(&metrics, 300, 200);
        metrics.took(1 << 20, 60_000_000);
        assert!(metrics.bulk_in(8_000).unwrap() > room * 6 / 7);
        bulk_on_a_disk(&metrics, 300, 200);
        metrics.took(1 << 20, 0);
        assert!(metrics.bulk_in(8_000).unwrap() < room * 2);
    }

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
