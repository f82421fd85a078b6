//! Every peer does every operation, with every byte compared. Small data: the shapes are what matters.

use std::path::Path;

use tepui_bench::{
    Dataset, Distribution, Limit, OpKind, Progress, Run, Share, Store, Verify, Workload,
};

use crate::fjall::Fjall;
use crate::rocks::{
    Columns, Filter, How, Layout, Rocks, ScanReadahead, Settings, Waiting, Writing,
};

/// Enough for several blocks and a partition; few enough to read in no time.
const ROWS: u64 = 2000;
const CACHE_BYTES: usize = 1 << 20;

fn dataset(columns: u32) -> Dataset {
    Dataset { rows: ROWS, key_bytes: 50, columns, value_bytes: 100, seed: 3 }
}

/// Reads do not need direct I/O to be right, and the directory of a test may not have it.
fn settings() -> Settings {
    Settings { direct: false, ..Settings::best() }
}

fn kinds(columns: u32) -> Vec<OpKind> {
    vec![
        OpKind::Get,
        OpKind::GetAbsent,
        OpKind::GetFamily,
        OpKind::GetRow,
        OpKind::GetColumns(columns.div_ceil(2)),
        OpKind::MultiGet(7),
        OpKind::Scan { rows: 20, reverse: false },
        OpKind::Scan { rows: 20, reverse: true },
    ]
}

fn read_all(store: &dyn Store, dataset: &Dataset, mix: Vec<Share>) {
    let workload = Workload {
        mix,
        distribution: Distribution::Uniform,
        threads: 2,
        in_flight: 8,
        limit: Limit::Ops(3000),
        verify: Verify::All,
        ..Workload::of("every operation", OpKind::Get)
    };
    let progress = Progress::hidden();
    let run = Run::new(dataset, &workload, &progress).unwrap();
    store.run(&run).unwrap();
    let measured = run.finish();
    assert_eq!(measured.ops, 3000);
    assert!(measured.rows_read > 3000, "scans and multi-gets read several rows each");
}

fn check(store: &dyn Store, dataset: &Dataset) {
    let mut mix: Vec<Share> =
        kinds(dataset.columns).into_iter().map(|kind| Share { kind, weight: 2 }).collect();
    read_all(store, dataset, mix.clone());
    mix.push(Share { kind: OpKind::Put, weight: 3 });
    read_all(store, dataset, mix);
    store.settle(&Progress::hidden()).unwrap();
    assert!(store.figures().iter().any(|f| f.name == "sst_bytes" && f.value > 0.0));
}

fn loaded(dir: &Path, settings: &Settings, dataset: &Dataset) -> Rocks {
    let loading = Rocks::create(dir, settings).unwrap();
    loading.load(dataset, &Progress::hidden()).unwrap();
    loading.settle(&Progress::hidden()).unwrap();
    drop(loading);
    Rocks::open(dir, settings, CACHE_BYTES).unwrap()
}

#[test]
fn rocksdb_gives_back_what_was_written_however_it_is_used() {
    for columns in [1, 10] {
        let dir = tempfile::tempdir().unwrap();
        let dataset = dataset(columns);
        let rocks = loaded(dir.path(), &settings(), &dataset);
        for waiting in [Waiting::Threads, Waiting::MultiGet] {
            for readahead in [ScanReadahead::Auto, ScanReadahead::Bytes(32 << 10)] {
                let how = How { waiting, readahead, sync: true, ..How::default() };
                check(&rocks.used(how), &dataset);
            }
        }
        check(&rocks.used(How { columns: Columns::Iterator, ..How::default() }), &dataset);
        assert!(rocks.version().starts_with(|c: char| c.is_ascii_digit()), "{}", rocks.version());
    }
}

#[test]
fn rocksdb_gives_back_what_was_written_whatever_its_settings() {
    let dataset = dataset(10);
    let best = settings();
    for settings in [
        Settings { partitioned: false, ..best },
        Settings { partitioned: false, with_file: true, ..best },
        Settings { filter: Filter::Bloom(10.0), hash_index: false, ..best },
        Settings { layout: Layout::Packed, ..best },
        Settings { lz4: true, aligned: false, interpolation: false, ..best },
    ] {
        let dir = tempfile::tempdir().unwrap();
        check(&loaded(dir.path(), &settings, &dataset), &dataset);
    }
}

#[cfg(feature = "newest")]
#[test]
fn the_newest_rocksdb_reads_asynchronously() {
    let dir = tempfile::tempdir().unwrap();
    let dataset = dataset(1);
    let settings = Settings { interpolation: true, hyper_clock: true, ..settings() };
    let rocks = loaded(dir.path(), &settings, &dataset);
    let how =
        How { waiting: Waiting::MultiGetAsync, readahead: ScanReadahead::Async, ..How::default() };
    check(&rocks.used(how), &dataset);
}

#[test]
fn rocksdb_says_how_large_its_index_and_filters_are() {
    let dir = tempfile::tempdir().unwrap();
    let rocks = loaded(dir.path(), &settings(), &dataset(1));
    for name in ["index_bytes", "filter_bytes"] {
        let found = rocks.figures().into_iter().find(|f| f.name == name).unwrap();
        assert!(found.value > 1000.0, "{name} {}", found.value);
    }
}

#[test]
fn rocksdb_writes_its_logs_again_in_place_where_writes_are_measured() {
    let dir = tempfile::tempdir().unwrap();
    let settings = Settings { direct: false, ..Settings::for_writes(Writing::default()) };
    let rocks = Rocks::open(dir.path(), &settings, CACHE_BYTES).unwrap();
    drop(rocks);
    // What it made of its settings, by its own log.
    let log = std::fs::read_to_string(dir.path().join("LOG")).unwrap();
    let line = log.lines().find_map(|l| l.split_once("Options.recycle_log_file_num:")).unwrap();
    assert_eq!(line.1.trim(), "4", "{log}");
}

#[test]
fn rocksdb_writes_no_more_than_its_rows_where_writes_are_measured() {
    let dir = tempfile::tempdir().unwrap();
    let settings = Settings { direct: false, ..Settings::for_writes(Writing::default()) };
    // Rows of a kilobyte, of which three would be all of a block that ends with its page.
    let dataset = Dataset { value_bytes: 974, ..dataset(1) };
    let rocks = Rocks::open(dir.path(), &settings, CACHE_BYTES).unwrap();
    rocks.load(&dataset, &Progress::hidden()).unwrap();
    rocks.flush().unwrap();
    rocks.rest(&Progress::hidden()).unwrap();
    let on_disk = rocks.figures().into_iter().find(|f| f.name == "sst_bytes").unwrap().value;
    let written = rocks.close_written_bytes().unwrap();
    let data = dataset.bytes() as f64;
    assert!(on_disk > data && on_disk < data * 1.1, "{on_disk} for {data}");
    // One flush, and nothing to compact.
    assert!((written - on_disk).abs() < 0.5, "{written} for {on_disk}");
}

#[test]
fn a_value_that_was_not_written_ends_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let rocks = loaded(dir.path(), &settings(), &dataset(1));
    let other = Dataset { value_bytes: 99, ..dataset(1) };
    let workload = Workload { limit: Limit::Ops(10), ..Workload::of("get", OpKind::Get) };
    let progress = Progress::hidden();
    let run = Run::new(&other, &workload, &progress).unwrap();
    assert!(rocks.run(&run).unwrap_err().to_string().contains("bytes where"));
}

#[test]
fn fjall_gives_back_what_was_written() {
    for columns in [1, 10] {
        let dir = tempfile::tempdir().unwrap();
        let dataset = dataset(columns);
        let fjall = Fjall::open(dir.path(), CACHE_BYTES as u64).unwrap();
        fjall.load(&dataset, &Progress::hidden()).unwrap();
        fjall.settle(&Progress::hidden()).unwrap();
        check(&fjall, &dataset);
    }
}
