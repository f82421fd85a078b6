//! Tablets that are flushed again and again with little in their memtables.

use std::sync::atomic::AtomicU64;

use super::compaction::noisy;
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
        settle(rig);
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

/// Compacts what is due; how many compactions that took.
fn settle(rig: &Rig) -> usize {
    let claims = std::iter::from_fn(|| rig.tablet.claim_by_shape());
    claims.take(100).map(|claim| usize::from(claim.run().unwrap())).sum()
}

#[test]
fn flushes_that_are_cut_again_where_they_were_are_not_merged_for_their_number() {
    const PART: usize = 48 << 10;
    let rig = rig_with(EngineOptions {
        memtable_bytes: 256 << 10,
        target_file_bytes: 1 << 20,
        separate_values_bytes: 0,
        compression: CompressionPolicy::None,
        ..tiered()
    });
    let write = |n: usize| {
        block_on(rig.tablet.apply(noisy(&format!("row-{n:06}"), PART))).unwrap();
        block_on(rig.tablet.flush()).unwrap();
    };
    for n in 0..1000 {
        write(n);
        settle(&rig);
    }
    rig.engine.compact_fully().unwrap();
    assert!(rig.tablet.version().level(6).len() > 40);
    // One in the rows of each file of the last level, which merges are cut at.
    for n in (10..1000).step_by(22) {
        write(n);
    }
    assert!(settle(&rig) < 10);
}

#[test]
fn a_damaged_file_among_many_small_ones_keeps_no_newer_ones_from_being_merged() {
    let memory = Arc::new(MemoryFiles::new());
    let files = Arc::new(FaultFiles::new(Arc::clone(&memory) as Arc<dyn Files>));
    let clock = Arc::new(ManualClock::new(START_MICROS));
    let seen = Arc::clone(&files) as Arc<dyn Files>;
    let rig = rig_over(EngineOptions::default(), clock.clone(), memory, seen);
    let write = |rows: std::ops::Range<u32>| {
        for n in rows {
            block_on(rig.tablet.apply(batch(&in_order(n), &["a"]))).unwrap();
            block_on(rig.tablet.flush()).unwrap();
        }
    };
    write(0..40);
    let damaged = rig.tablet.version().level(0)[20].id;
    let path = format!("{damaged:016x}.sst");
    files.inject(Fault::new(FaultOp::Read).on_path(path.as_str()).sticky());
    let claim = rig.tablet.claim_by_shape().unwrap();
    assert_eq!((claim.pick.reason, claim.pick.inputs.len()), (pick::Reason::Crowd, 40));
    claim.run().unwrap_err();
    assert_eq!(rig.engine.health(), Health::Serving);
    assert!(rig.tablet.claim_by_shape().is_none());

    write(40..80);
    let claim = rig.tablet.claim_by_shape().unwrap();
    assert_eq!(claim.pick.inputs.len(), 40);
    claim.run().unwrap();
    assert_eq!(rig.tablet.version().sst_count(), 41);
    // Those that come while all fails again are merged without the first ones, too.
    write(80..90);
    clock.advance_micros(failures::FAILED_WAIT_MICROS);
    rig.tablet.claim_by_shape().unwrap().run().unwrap_err();
    write(90..120);
    assert_eq!(settle(&rig), 1);
    assert!(rig.tablet.version().sst_count() < 50);
    files.heal();
    clock.advance_micros(2 * failures::FAILED_WAIT_MICROS);
    settle(&rig);
    assert!(rig.tablet.version().sst_count() < 32);
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
        let files = rig.tablet.hold().values.files.len();
        let moved = rig.engine.metrics().value_moved_bytes.load(Ordering::Relaxed);
        assert!(files < 100, "{files}");
        assert!(moved < 6 * 1024 * u64::from(FLUSHES), "{moved}");
        assert!((0..FLUSHES).all(|n| rig.cells(&row(n)) == 1));
    }
}
