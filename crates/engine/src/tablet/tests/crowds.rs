//! Tablets that are flushed again and again with little in their memtables.

use std::sync::atomic::AtomicU64;

use super::*;
use crate::options::{CompactionStyle, CompressionPolicy};

const FLUSHES: u32 = 1000;

/// Row keys of which each flush has one: in order, or scattered.
fn in_order(n: u32) -> String {
    format!("row-{n:06}")
}

fn scattered(n: u32) -> String {
    format!("row-{:06}", n.wrapping_mul(2_654_435_761) % 1_000_000)
}

/// Flushes one row at a time, and compacts what is due each time.
fn flush_one_by_one(rig: &Rig, row: fn(u32) -> String, value: &[u8]) {
    for n in 0..FLUSHES {
        let mut one = batch(&row(n), &["a"]);
        if let Some(Mutation::Put { value: put, .. }) = one.mutations.first_mut() {
            *put = [value, &n.to_be_bytes()].concat().into();
        }
        block_on(rig.tablet.apply(one)).unwrap();
        block_on(rig.tablet.flush()).unwrap();
        while let Some(claim) = rig.tablet.claim_by_shape() {
            claim.run().unwrap();
        }
    }
}

/// How often what was flushed was written again.
fn written_again(rig: &Rig) -> f64 {
    let metrics = rig.engine.metrics();
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
    read(&metrics.compaction_write_bytes) / read(&metrics.flush_bytes)
}

fn tiered() -> EngineOptions {
    EngineOptions { compaction: CompactionStyle::Tiered, ..EngineOptions::default() }
}

#[test]
fn a_tablet_that_is_flushed_a_row_at_a_time_keeps_few_files_and_writes_them_few_times() {
    for options in [EngineOptions::default(), tiered()] {
        for row in [in_order, scattered] {
            let rig = rig_with(options.clone());
            flush_one_by_one(&rig, row, b"v");
            let (ssts, again) = (rig.tablet.version().sst_count(), written_again(&rig));
            assert!(ssts < 64, "{ssts}");
            assert!(again < 8.0, "{again}");
            assert!((0..FLUSHES).all(|n| rig.cells(&row(n)) == 1));
        }
    }
}

#[test]
fn large_values_that_are_flushed_one_at_a_time_come_to_lie_in_few_files() {
    for row in [in_order, scattered] {
        let rig = rig_with(EngineOptions {
            separate_values_bytes: 1024,
            compression: CompressionPolicy::None,
            ..EngineOptions::default()
        });
        flush_one_by_one(&rig, row, &[7; 1024]);
        let files = rig.tablet.hold().values.len();
        let moved = rig.engine.metrics().value_moved_bytes.load(Ordering::Relaxed);
        assert!(files < 100, "{files}");
        assert!(moved < 6 * 1024 * u64::from(FLUSHES), "{moved}");
        assert!((0..FLUSHES).all(|n| rig.cells(&row(n)) == 1));
    }
}
