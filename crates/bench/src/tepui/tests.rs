//! The engine under the workloads, on real files and few rows.

use std::time::Duration;

use super::*;
use crate::clock::Timer;
use crate::presets;
use crate::report::{measure, warm_up};
use crate::workload::{Distribution, Limit, OpKind, Verify, Workload};

fn dataset(columns: u32) -> Dataset {
    Dataset { rows: 2_000, key_bytes: 50, columns, value_bytes: 64, seed: 1 }
}

fn small(dir: &Path) -> TepuiOptions {
    let mut options = TepuiOptions::new(dir, 4 << 20);
    options.engine.memtable_bytes = 256 << 10;
    options
}

fn loaded(dir: &Path, dataset: &Dataset) -> Tepui {
    let progress = Progress::hidden();
    let store = Tepui::open(&small(dir), dataset).unwrap();
    store.load(dataset, &progress).unwrap();
    store.settle(&progress).unwrap();
    store
}

#[test]
fn every_workload_reads_back_what_was_loaded() {
    for columns in [1, 12] {
        let dataset = dataset(columns);
        let dir = tempfile::tempdir().unwrap();
        let store = loaded(dir.path(), &dataset);
        let workloads = presets::by_names(&["all".to_owned()], &dataset).unwrap();
        // On runtimes, and on threads that block.
        for (workload, in_flight) in
            workloads.iter().flat_map(|workload| [(workload.clone(), 6), (workload.clone(), 2)])
        {
            let limit = Limit::Ops(200);
            let workload =
                Workload { limit, threads: 2, in_flight, verify: Verify::All, ..workload };
            let report = measure(&store, &dataset, &workload, None, &Progress::hidden()).unwrap();
            assert_eq!(report.ops, 200, "{}", workload.name);
            assert_eq!(report.writes > 0, workload.writes(), "{}", workload.name);
            let nothing = workload.name == "get-absent" || report.reads == 0;
            assert_eq!(report.value_bytes_read == 0, nothing, "{}", workload.name);
        }
    }
}

#[test]
fn a_load_settles_into_the_tree_that_compactions_leave_and_is_merged_where_it_is_asked_for() {
    let dataset = dataset(1);
    let dir = tempfile::tempdir().unwrap();
    let mut options = small(dir.path());
    // None of level 0 is due.
    options.engine.l0_compaction_files = 100;
    let store = Tepui::open(&options, &dataset).unwrap();
    let progress = Progress::hidden();
    store.load(&dataset, &progress).unwrap();
    store.settle(&progress).unwrap();
    store.load_rows(&dataset, 0..100, &progress).unwrap();
    store.settle(&progress).unwrap();
    let levels = || store.tablet.stats().level_files;
    let (first, deeper) = (levels()[0], levels()[1..].iter().sum::<usize>());
    assert!(first >= 2 && deeper == 0, "{:?}", levels());
    store.merge().unwrap();
    assert_eq!(levels()[0], 0, "{:?}", levels());
    let workload = Workload {
        limit: Limit::Ops(500),
        verify: Verify::All,
        ..Workload::of("get", OpKind::Get)
    };
    measure(&store, &dataset, &workload, None, &progress).unwrap();
}

#[test]
fn filters_keep_out_absent_rows_and_families_that_a_row_lacks() {
    let dataset = dataset(3);
    let dir = tempfile::tempdir().unwrap();
    let store = loaded(dir.path(), &dataset);
    for kind in [OpKind::GetAbsentRow, OpKind::GetLackedFamily] {
        let workload = Workload { limit: Limit::Ops(1000), ..Workload::of("w", kind) };
        let run = measure(&store, &dataset, &workload, None, &Progress::hidden()).unwrap();
        assert_eq!((run.ops, run.value_bytes_read), (1000, 0), "{kind:?}");
        let figure = |name| run.figure(name).unwrap();
        let (asked, kept_out) = (figure("filter_lookups"), figure("filter_negatives"));
        assert!(asked >= 900.0 && kept_out > asked * 0.9, "{kind:?} {kept_out} of {asked}");
    }
}

#[test]
fn increments_of_one_row_are_all_counted_and_share_the_syncs_of_a_slow_disk() {
    let dataset = dataset(1);
    let dir = tempfile::tempdir().unwrap();
    let mut options = small(dir.path());
    options.engine.sync = SyncMode::Always;
    options.slow_sync = Some(Duration::from_millis(2));
    let store = Tepui::open(&options, &dataset).unwrap();
    let workload = Workload {
        distribution: Distribution::Single,
        limit: Limit::Ops(640),
        threads: 2,
        in_flight: 32,
        ..Workload::of("w", OpKind::Increment)
    };
    let report = measure(&store, &dataset, &workload, None, &Progress::hidden()).unwrap();
    assert_eq!(store.counter(&dataset, dataset.rows / 2).unwrap(), 640);
    let figure = |name: &str| report.figure(name).unwrap();
    assert!(figure("log_batches") >= 640.0 && figure("log_mutations") >= 640.0);
    assert!(figure("log_syncs") < 320.0, "{}", figure("log_syncs"));
    assert!(figure("log_bytes") / figure("log_mutations") < 200.0);
    // They are where no read of the rows meets them.
    store.close().unwrap();
    let store = loaded(dir.path(), &dataset);
    let all = Workload { limit: Limit::Ops(300), ..Workload::of("w", OpKind::GetRow) };
    measure(&store, &dataset, &all, None, &Progress::hidden()).unwrap();
    assert_eq!(store.counter(&dataset, dataset.rows / 2).unwrap(), 640);
}

#[test]
fn a_lost_row_and_a_row_too_many_end_the_run() {
    let all = dataset(1);
    let dir = tempfile::tempdir().unwrap();
    let half = Dataset { rows: 1_000, ..all };
    let store = loaded(dir.path(), &half);
    let workload = |kind| Workload { limit: Limit::Ops(500), ..Workload::of("w", kind) };
    let run = |dataset: &Dataset, kind| {
        measure(&store, dataset, &workload(kind), None, &Progress::hidden())
    };
    let error = run(&all, OpKind::Get).unwrap_err();
    assert_eq!(error.kind(), crate::ErrorKind::Mismatch, "{error}");
    let fewer = Dataset { rows: 500, ..all };
    assert_eq!(run(&fewer, OpKind::GetAbsent).unwrap_err().kind(), crate::ErrorKind::Mismatch);
    run(&half, OpKind::Get).unwrap();
}

#[test]
fn a_wrong_value_ends_the_run() {
    let dataset = dataset(1);
    let dir = tempfile::tempdir().unwrap();
    let store = loaded(dir.path(), &dataset);
    let mut batch = load::batch(&dataset, 7, 0..1);
    batch.row = dataset.key(8).into();
    pollster::block_on(store.tablet.apply(batch)).unwrap();
    for kind in [OpKind::Get, OpKind::Scan { rows: 100, reverse: true }] {
        let workload = Workload { verify: Verify::All, ..presets::every_row(&dataset, 1, 1) };
        let workload = Workload { mix: vec![crate::Share { kind, weight: 1 }], ..workload };
        let error = warm_up(&store, &dataset, &workload, &Progress::hidden()).unwrap_err();
        assert!(error.to_string().contains("row 8"), "{error}");
    }
}

#[test]
fn a_kept_load_is_not_made_again_and_its_cache_is_the_one_asked_for() {
    let dataset = dataset(1);
    let dir = tempfile::tempdir().unwrap();
    let progress = Progress::hidden();
    let kept = Kept::new(dir.path(), "tepui", &dataset, "");
    let options = TepuiOptions { dir: kept.data().to_owned(), ..small(dir.path()) };
    let first = Tepui::open_kept(&options, &dataset, &kept, &progress).unwrap();
    let before = first.tablet.stats();
    assert!(before.sst_count > 0 && before.records >= dataset.rows);
    first.close().unwrap();

    let mut other = options.clone();
    other.engine.block_cache_bytes = 1 << 20;
    let again = Tepui::open_kept(&other, &dataset, &kept, &progress).unwrap();
    assert_eq!(again.tablet.stats().sst_bytes, before.sst_bytes);
    let flushed = |f: &Figure| f.name == "flush_bytes" && f.value > 0.0;
    assert!(!again.figures().iter().any(flushed), "it was loaded anew");
    let capacity = again.figures().into_iter().find(|f| f.name == "cache_capacity_bytes").unwrap();
    assert!((capacity.value - f64::from(1 << 20)).abs() < 1.0);
}

#[test]
fn rows_spread_over_files_come_back_whole_and_wait_for_each_file_in_turn_without_prefetch() {
    let dataset = Dataset { rows: 200, ..dataset(8) };
    let workload = Workload {
        threads: 1,
        in_flight: 1,
        limit: Limit::Ops(20),
        verify: Verify::All,
        ..Workload::of("get", OpKind::Get)
    };
    let time = |one_by_one| {
        let dir = tempfile::tempdir().unwrap();
        let options = TepuiOptions {
            slow: Some(Slow { delay: Duration::from_millis(1), one_by_one }),
            // Nothing stays: every block of every file is read each time.
            ..TepuiOptions::new(&dir.path().join("d"), 1)
        };
        let store = load_spread(&options, &dataset, &Progress::hidden()).unwrap();
        assert_eq!(store.tablet.stats().sst_count, 8);
        let report = measure(&store, &dataset, &workload, None, &Progress::hidden()).unwrap();
        let reads = report.figure("io_reads").unwrap();
        let batches = report.figure("io_batches").unwrap();
        (reads, batches, report.latency_micros.p50)
    };
    let (reads, batches, together) = time(false);
    assert!(reads >= 8.0 * 20.0, "{reads}");
    assert!(batches < reads, "blocks of different files are asked for at once");
    // Eight reads of a millisecond each, whatever else the machine does.
    let (_, _, in_turn) = time(true);
    assert!(in_turn >= 8_000.0, "{in_turn} {together}");
}

#[test]
fn a_spread_that_does_not_fit_one_file_a_column_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let large = Dataset { rows: 10_000_000, columns: 1, value_bytes: 100, ..dataset(1) };
    let options = TepuiOptions::new(dir.path(), 1 << 20);
    assert!(load_spread(&options, &large, &Progress::hidden()).is_err());
}

#[test]
fn a_stopped_load_says_so_and_a_stopped_run_keeps_what_it_has() {
    let dataset = dataset(1);
    let dir = tempfile::tempdir().unwrap();
    let store = loaded(dir.path(), &dataset);
    let progress = Progress::hidden();
    let timer = Timer::start();
    let workload = Workload { limit: Limit::Seconds(3600.0), ..Workload::of("get", OpKind::Get) };
    let report = std::thread::scope(|scope| {
        let run = scope.spawn(|| measure(&store, &dataset, &workload, None, &progress));
        // The run is under way once it has read something.
        while store.engine.cache().stats().hits == 0 {
            std::thread::yield_now();
        }
        progress.stop();
        run.join().unwrap()
    });
    assert!(timer.seconds() < 600.0);
    assert!(report.is_ok_and(|r| r.interrupted && r.ops > 0));
    let error = store.load(&dataset, &progress).unwrap_err();
    assert_eq!(error.kind(), crate::ErrorKind::Interrupted);
}
