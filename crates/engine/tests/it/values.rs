//! Values outside of SSTs: written once, read as if they were not, and their space given back when they are
//! overwritten, with a bounded amount of rewriting.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use bytes::Bytes;
use futures::executor::block_on;
use futures::future::BoxFuture;

use tepui_engine::ErrorKind;
use tepui_engine::aside::{self, Helper};
use tepui_engine::cell::{RowBatch, RowRange};
use tepui_engine::db::{Engine, EngineOptions};
use tepui_engine::io::{
    CrashMode, Fault, FaultFiles, FaultOp, FileHook, Files, ManualClock, MemoryFiles, SeededRng,
};
use tepui_engine::options::CompactionStyle;
use tepui_engine::read::Projection;
use tepui_engine::tablet::{ReadView, ScanOptions, Tablet, TabletId};

use crate::harness::{Rig, START_MICROS, env, open_started, plain_schema, put, scan, tiny_options};

/// Values of this size are separated; nothing else is.
const VALUE_BYTES: usize = 1000;

fn options() -> EngineOptions {
    EngineOptions {
        separate_values_bytes: VALUE_BYTES as u64,
        memtable_bytes: 64 << 10,
        target_file_bytes: 32 << 10,
        base_level_bytes: 1 << 20,
        ..tiny_options()
    }
}

/// A value that does not compress, different for each `seed`.
fn value(seed: u64) -> String {
    let mut x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut text = String::with_capacity(VALUE_BYTES);
    while text.len() < VALUE_BYTES {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        text.push(char::from(b'!' + (x % 90) as u8));
    }
    text
}

fn row(n: u64) -> String {
    format!("row-{n:05}")
}

/// Writes `rows` with values of `round`, and flushes.
fn write(rig: &Rig, rows: impl Iterator<Item = u64>, round: u64) {
    for n in rows {
        rig.apply(row(n).as_bytes(), vec![put(1, "q", 1000, &value(n + (round << 32)))]);
        if rig.tablet.stats().memtable_bytes > 100 << 10 {
            block_on(rig.tablet.flush()).unwrap();
        }
    }
    block_on(rig.tablet.flush()).unwrap();
}

/// The same into a tablet of any engine, down to the last level, with values of this seed.
fn write_down(engine: &Engine, tablet: &Tablet, rows: &mut dyn Iterator<Item = u64>, seed: u64) {
    for n in rows {
        let mutations = vec![put(1, "q", 1000, &value(n + seed))];
        let row = Bytes::from(row(n));
        block_on(tablet.apply_when_room(RowBatch { row, mutations })).unwrap();
    }
    block_on(tablet.flush()).unwrap();
    engine.compact_fully().unwrap();
}

fn value_paths(rig: &Rig) -> Vec<PathBuf> {
    let dir = Path::new("/data/values");
    rig.files.list(dir).unwrap().iter().map(|entry| dir.join(&entry.name)).collect()
}

fn written(rig: &Rig) -> u64 {
    rig.engine.metrics().value_write_bytes.load(Ordering::Relaxed)
}

#[test]
fn large_values_are_written_once_and_small_ones_stay_in_their_sst() {
    let rig = Rig::new(options(), plain_schema(), 1);
    for n in 0..100 {
        let small = "s".repeat(VALUE_BYTES - 1);
        rig.apply(row(n).as_bytes(), vec![put(1, "l", 1, &value(n)), put(1, "s", 1, &small)]);
    }
    block_on(rig.tablet.flush()).unwrap();
    let once = written(&rig);
    assert!((100_000..105_000).contains(&once), "{once} bytes for 100 values of 1000");
    rig.engine.compact_fully().unwrap();
    rig.engine.compact_fully().unwrap();
    assert_eq!(written(&rig), once, "a compaction carries pointers over");
    let stats = rig.tablet.stats();
    assert_eq!(stats.value_garbage_bytes, 0);
    for n in 0..100 {
        let cells = rig.get(row(n).as_bytes());
        assert_eq!(cells[0].value, value(n));
        assert_eq!(cells[1].value.len(), VALUE_BYTES - 1);
    }
}

#[test]
fn the_space_of_overwritten_values_is_given_back_with_bounded_rewriting() {
    const ROWS: u64 = 400;
    const ROUNDS: u64 = 12;
    let rig = Rig::new(options(), plain_schema(), 2);
    write(&rig, 0..ROWS, 0);
    let mut x = 1u64;
    for round in 1..=ROUNDS {
        // In random order, so that every file loses a little of its values with each.
        let rows = (0..ROWS).map(|_| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (x >> 33) % ROWS
        });
        let before = rig.engine.metrics().value_moved_bytes.load(Ordering::Relaxed);
        write(&rig, rows, round);
        rig.engine.run_background().unwrap();
        let stats = rig.tablet.stats();
        let live = ROWS * VALUE_BYTES as u64;
        assert!(stats.value_file_bytes < 5 * live / 2, "round {round}: {stats:?}");
        let moved = rig.engine.metrics().value_moved_bytes.load(Ordering::Relaxed) - before;
        assert!(moved <= 2 * live, "round {round} moved {moved} bytes for {live} written");
    }
    let flushed = (ROUNDS + 1) * ROWS * VALUE_BYTES as u64;
    let total = written(&rig);
    assert!(total < 5 * flushed / 2, "{total} bytes of value files for {flushed} bytes of values");
    assert!(total > flushed, "some values were moved");
    let on_disk: u64 =
        value_paths(&rig).iter().map(|p| rig.files.contents(p).unwrap().len() as u64).sum();
    let known = rig.tablet.stats();
    assert_eq!(on_disk, known.value_file_bytes + 48 * known.value_files, "no file is left over");
    assert_eq!(rig.scan(RowRange::all(), false, None).len() as u64, ROWS);
}

/// Level 0 may have as many bytes as four memtables, values included.
fn small_base(compaction: CompactionStyle) -> EngineOptions {
    let base_level_bytes = 4 * options().memtable_bytes;
    EngineOptions { compaction, base_level_bytes, l0_compaction_files: 4, ..options() }
}

#[test]
fn the_space_of_overwritten_values_is_given_back_where_few_bytes_of_ssts_name_many() {
    const ROWS: u64 = 2000;
    let live = ROWS * VALUE_BYTES as u64;
    let rig = Rig::new(small_base(CompactionStyle::Tiered), plain_schema(), 13);
    let mut x = 1u64;
    for round in 0..20 {
        let rows = (0..ROWS / 4).map(|_| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (x >> 33) % ROWS
        });
        write(&rig, rows, round);
        rig.engine.run_background().unwrap();
        let stats = rig.tablet.stats();
        assert!(stats.value_file_bytes < 5 * live / 2, "round {round}: {stats:?}");
    }
    let (flushed, total) = (20 * live / 4, written(&rig));
    assert!(total < 2 * flushed, "{total} bytes of value files for {flushed} bytes of values");
}

#[test]
fn the_space_of_values_that_are_rewritten_in_the_order_of_their_rows_is_given_back() {
    const ROWS: u64 = 2000;
    let live = ROWS * VALUE_BYTES as u64;
    for compaction in [CompactionStyle::Leveled, CompactionStyle::Tiered] {
        let rig = Rig::new(small_base(compaction), plain_schema(), 14);
        for round in 0..4 {
            write(&rig, 0..ROWS, round);
            rig.engine.run_background().unwrap();
            let stats = rig.tablet.stats();
            assert!(stats.value_file_bytes < 2 * live, "{compaction:?}, round {round}: {stats:?}");
        }
    }
}

#[test]
fn files_that_become_garbage_together_are_not_emptied_by_one_job() {
    // One job may move four files' worth.
    let budget = 4 * options().target_file_bytes;
    let rig = Rig::new(options(), plain_schema(), 3);
    write(&rig, 0..1000, 0);
    rig.engine.compact_fully().unwrap();
    let moved = || rig.engine.metrics().value_moved_bytes.load(Ordering::Relaxed);
    // All files are dense. Then three of five values of each go.
    write(&rig, (0..1000).filter(|n| n % 5 > 1), 1);
    rig.engine.compact_fully().unwrap();
    assert_eq!(moved(), 0, "that they are garbage shows only now");
    let before = moved();
    rig.engine.compact_fully().unwrap();
    let at_once = moved() - before;
    assert!(at_once > 0 && at_once <= budget + 2000, "{at_once} bytes at once");
    rig.engine.run_background().unwrap();
    let stats = rig.tablet.stats();
    assert!(moved() - before > at_once, "the rest is moved by further jobs");
    assert!(stats.value_garbage_bytes * 3 < stats.value_file_bytes, "{stats:?}");
    assert_eq!(rig.scan(RowRange::all(), false, None).len(), 1000);
}

#[test]
fn values_are_moved_at_leisure_while_others_read_the_device() {
    let options =
        EngineOptions { memtable_bytes: 4 << 20, target_file_bytes: 256 << 10, ..options() };
    let files = Arc::new(FaultFiles::new(Arc::new(MemoryFiles::new())));
    let clock = Arc::new(ManualClock::new(START_MICROS));
    let env = env(Arc::clone(&files) as Arc<dyn Files>, Arc::clone(&clock), 5);
    let engine = Engine::open(env, Path::new("/data"), options).unwrap();
    let tablet = engine.create_tablet(RowRange::all()).unwrap();
    tablet.set_schema(Arc::new(plain_schema()));
    engine.start().unwrap();
    let write = |rows: &mut dyn Iterator<Item = u64>, seed: u64| {
        write_down(&engine, &tablet, rows, seed);
    };
    let rested = || engine.metrics().compaction_rested_micros.load(Ordering::Relaxed);
    let moved = || engine.metrics().value_moved_bytes.load(Ordering::Relaxed);
    let move_values = |overwritten: &dyn Fn(&u64) -> bool, seed: u64, before_read: FileHook| {
        write(&mut (0..2000).filter(overwritten), seed);
        let (rested_before, moved_before) = (rested(), moved());
        files.before_read(Some(before_read));
        engine.run_background().unwrap();
        files.before_read(None);
        let moved = moved() - moved_before;
        assert!(moved > 300 << 10, "{moved} bytes: there are values to move");
        rested() - rested_before
    };
    write(&mut (0..2000), 0);
    // Whatever it reads takes a millisecond.
    let slowly = Arc::clone(&clock);
    let alone: FileHook = Arc::new(move |_| slowly.advance_micros(1000));
    assert_eq!(move_values(&|n| n % 5 > 1, 1 << 32, Arc::clone(&alone)), 0, "nobody else reads");
    // With each of these, somebody reads another row.
    let (reader, reads) = (Arc::clone(&tablet), AtomicU64::new(0));
    let reading = AtomicBool::new(false);
    let beside_reads = Arc::new(move |path: &Path| {
        alone(path);
        if path.starts_with("/data/values") && !reading.swap(true, Ordering::Relaxed) {
            let row = row(reads.fetch_add(1, Ordering::Relaxed) % 1000);
            let projection = Projection::all();
            let read = reader.read_row(row.as_bytes(), &projection, ReadView::Durable);
            assert!(block_on(read).unwrap().is_some());
            reading.store(false, Ordering::Relaxed);
        }
    });
    assert!(move_values(&|n| n % 5 < 4, 2 << 32, beside_reads) > 0, "it rests");
    let rows = scan(&tablet, RowRange::all(), Projection::all(), false, None).unwrap();
    assert_eq!(rows.len(), 2000);
}

#[test]
fn a_device_that_fails_for_a_while_keeps_the_space_of_values_for_no_longer() {
    let files = Arc::new(FaultFiles::new(Arc::new(MemoryFiles::new())));
    let clock = Arc::new(ManualClock::new(START_MICROS));
    let env = env(Arc::clone(&files) as Arc<dyn Files>, Arc::clone(&clock), 5);
    let (engine, tablet) = open_started(env, options());
    let write = |rows: &mut dyn Iterator<Item = u64>, seed: u64| {
        write_down(&engine, &tablet, rows, seed);
    };
    let garbage = || tablet.stats().value_garbage_bytes;
    write(&mut (0..400), 0);
    // What is written meanwhile has to be read back.
    for old in files.list(Path::new("/data/values")).unwrap() {
        files.inject(Fault::new(FaultOp::Read).on_path(old.name).kind(ErrorKind::Io).sticky());
    }
    write(&mut (0..400).filter(|n| n % 4 > 0), 1 << 32);
    engine.run_background().unwrap();
    let before = garbage();
    assert!(before > 200 << 10, "{before} bytes of garbage: there are values to move");
    files.heal();
    for _ in 0..12 {
        clock.advance_micros(10_000_000);
        engine.run_background().unwrap();
    }
    assert!(garbage() < before / 4, "{} of {before} bytes of garbage are left", garbage());
}

#[test]
fn deleted_rows_give_back_the_space_of_their_values() {
    let rig = Rig::new(options(), plain_schema(), 4);
    write(&rig, 0..200, 0);
    rig.engine.compact_fully().unwrap();
    assert!(!value_paths(&rig).is_empty());
    for n in 0..200 {
        rig.apply(row(n).as_bytes(), vec![tepui_engine::cell::Mutation::DeleteRow]);
    }
    block_on(rig.tablet.flush()).unwrap();
    rig.engine.compact_fully().unwrap();
    rig.engine.run_background().unwrap();
    assert_eq!(value_paths(&rig), Vec::<PathBuf>::new());
}

/// A minute in which background work is done as it comes due.
fn idle_for_a_minute(rig: &Rig) {
    for _ in 0..6 {
        rig.clock.advance_micros(10_000_000);
        rig.engine.run_background().unwrap();
    }
}

#[test]
fn rows_of_a_dropped_range_give_back_the_space_of_their_values() {
    let rig = Rig::new(options(), plain_schema(), 11);
    write(&rig, 0..200, 0);
    rig.engine.compact_fully().unwrap();
    let before = rig.tablet.stats().value_file_bytes;
    block_on(rig.tablet.drop_rows(RowRange::new(row(0), row(190)))).unwrap();
    idle_for_a_minute(&rig);
    let after = rig.tablet.stats().value_file_bytes;
    assert!(after < before / 4, "{after} of {before} bytes are left");
    let on_disk: u64 =
        value_paths(&rig).iter().map(|p| rig.files.contents(p).unwrap().len() as u64).sum();
    assert!(on_disk < before / 4, "{on_disk} of {before} bytes are on disk");
    for n in 190..200 {
        assert_eq!(rig.get(row(n).as_bytes())[0].value, value(n));
    }
}

#[test]
fn the_values_of_a_dropped_range_are_garbage_where_most_rows_stay() {
    let rig = Rig::new(options(), plain_schema(), 12);
    write(&rig, 0..200, 0);
    rig.engine.compact_fully().unwrap();
    block_on(rig.tablet.drop_rows(RowRange::new(row(50), row(110)))).unwrap();
    idle_for_a_minute(&rig);
    let stats = rig.tablet.stats();
    let counted = stats.value_file_bytes - stats.value_garbage_bytes;
    let live = 140 * VALUE_BYTES as u64;
    assert!((live..live + live / 8).contains(&counted), "{counted} for {live}: {stats:?}");
}

#[test]
fn a_snapshot_reads_values_whose_files_were_freed_meanwhile() {
    let rig = Rig::new(options(), plain_schema(), 5);
    write(&rig, 0..100, 0);
    rig.engine.compact_fully().unwrap();
    let old = value_paths(&rig);
    let snapshot = rig.tablet.snapshot();
    write(&rig, 0..100, 1);
    rig.engine.compact_fully().unwrap();
    rig.engine.run_background().unwrap();
    for reverse in [false, true] {
        let mut rows = rig.scan(RowRange::all(), reverse, Some(snapshot.clone()));
        if reverse {
            rows.reverse();
        }
        assert_eq!(rows.len(), 100);
        for (n, row) in (0..).zip(&rows) {
            assert_eq!(row.cells[0].value, value(n));
        }
    }
    let at = ReadView::At(&snapshot);
    let (key, all) = (row(7), Projection::all());
    let read = rig.tablet.read_row(key.as_bytes(), &all, at);
    assert_eq!(block_on(read).unwrap().unwrap().cells[0].value, value(7));
    assert!(old.iter().all(|path| value_paths(&rig).contains(path)), "held by the snapshot");
    drop(snapshot);
    rig.engine.run_background().unwrap();
    assert!(old.iter().all(|path| !value_paths(&rig).contains(path)), "and then removed");
    assert_eq!(rig.get(row(7).as_bytes())[0].value, value(7 + (1 << 32)));
}

#[test]
fn a_start_removes_value_files_that_nothing_names_and_no_others() {
    let rig = Rig::new(options(), plain_schema(), 6);
    write(&rig, 0..100, 0);
    let named = value_paths(&rig);
    // What a crash leaves of a job: a finished file, and a part of one.
    let stray = Path::new("/data/values/00000000000000aa.val");
    let part = Path::new("/data/values/00000000000000ab.val");
    rig.files.put_contents(stray, rig.files.contents(&named[0]).unwrap());
    rig.files.put_contents(part, b"part".to_vec());
    let files = rig.files.crashed_copy(CrashMode::Strict, &SeededRng::new(1));
    let rig = rig.reopen_on(Arc::new(files));
    assert_eq!(value_paths(&rig), named);
    assert_eq!(rig.engine.open_summary().orphans_removed, 2);
    assert_eq!(rig.scan(RowRange::all(), false, None).len(), 100);

    // An SST that cannot be opened may name any of them.
    let sst = rig.files.list(Path::new("/data/sst")).unwrap().remove(0).name;
    let sst = Path::new("/data/sst").join(sst);
    let mut bytes = rig.files.contents(&sst).unwrap();
    bytes.truncate(10);
    rig.files.put_contents(&sst, bytes);
    let files = Arc::clone(&rig.files);
    let rig = rig.reopen_on(files);
    assert_eq!(value_paths(&rig), named);
}

#[test]
fn a_damaged_value_fails_its_row_and_no_other_and_stops_no_compaction() {
    let rig = Rig::new(options(), plain_schema(), 7);
    write(&rig, 0..30, 0);
    let path = value_paths(&rig).remove(0);
    let mut bytes = rig.files.contents(&path).unwrap();
    // In the fifth value of the file.
    bytes[4 * (VALUE_BYTES + 9) + 100] ^= 1;
    rig.files.put_contents(&path, bytes);
    let read = |n: u64| {
        block_on(rig.tablet.read_row(row(n).as_bytes(), &Projection::all(), ReadView::Durable))
    };
    let check = || {
        for n in 0..30 {
            match read(n) {
                Ok(found) => {
                    assert_ne!(n, 4);
                    assert_eq!(found.unwrap().cells[0].value, value(n));
                }
                Err(error) => {
                    assert_eq!((n, error.kind()), (4, ErrorKind::Corruption));
                    let message = error.message();
                    let offset = (4 * (VALUE_BYTES + 9)).to_string();
                    let named = message.contains(path.to_str().unwrap());
                    assert!(named && message.contains(&offset), "{message}");
                }
            }
        }
        let error = scan(&rig.tablet, RowRange::all(), Projection::all(), false, None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corruption);
        let options = ScanOptions {
            range: RowRange::all(),
            projection: Projection::all(),
            reverse: false,
            rows_hint: None,
            snapshot: None,
        };
        let mut stream = rig.tablet.scan(options).unwrap();
        for n in 0..4 {
            assert_eq!(block_on(stream.next()).unwrap().unwrap().cells[0].value, value(n));
        }
        assert!(block_on(stream.next()).is_err());
        assert!(block_on(stream.next()).unwrap().is_none());
        // Who does not look at values is not told of damage in them.
        let keys = Projection { values: false, ..Projection::all() };
        let rows = scan(&rig.tablet, RowRange::all(), keys, true, None).unwrap();
        assert!(rows.len() == 30 && rows.iter().all(|row| row.cells[0].value.is_empty()));
    };
    check();
    // The file becomes sparse, its live values are to be moved, and one of them cannot.
    for round in 1..4 {
        write(&rig, 100..140, round);
        for n in 10..30 {
            rig.apply(row(n).as_bytes(), vec![put(1, "q", 1000, &value(n))]);
        }
        block_on(rig.tablet.flush()).unwrap();
        rig.engine.run_background().unwrap();
    }
    rig.engine.compact_fully().unwrap();
    for n in (0..30).filter(|n| *n != 4) {
        assert_eq!(read(n).unwrap().unwrap().cells[0].value, value(n));
    }
    assert_eq!(read(4).unwrap_err().kind(), ErrorKind::Corruption);
}

#[test]
fn values_come_back_into_their_ssts_when_separation_is_turned_off() {
    let mut rig = Rig::new(options(), plain_schema(), 8);
    write(&rig, 0..100, 0);
    rig.engine.close().unwrap();
    let files = Arc::clone(&rig.files);
    rig.options.separate_values_bytes = 0;
    let rig = rig.reopen_on(files);
    assert_eq!(rig.get(row(3).as_bytes())[0].value, value(3));
    // Overwriting most of them makes the files sparse; the others go home.
    write(&rig, (0..100).filter(|n| n % 10 > 0), 1);
    rig.engine.compact_fully().unwrap();
    rig.engine.run_background().unwrap();
    assert_eq!(value_paths(&rig), Vec::<PathBuf>::new());
    let rows = rig.scan(RowRange::all(), false, None);
    assert_eq!(rows.len(), 100);
    assert_eq!(rows[30].cells[0].value, value(30));
}

#[test]
fn rows_wider_than_a_batch_of_values_come_whole() {
    let rig = Rig::new(options(), plain_schema(), 9);
    let cells = |n: u64| (0..40).map(move |i| n * 100 + i);
    let large = |seed: u64| value(seed).repeat(60);
    for n in 0..3 {
        for i in cells(n) {
            rig.apply(row(n).as_bytes(), vec![put(1, &format!("q{i:04}"), 1, &large(i))]);
        }
    }
    block_on(rig.tablet.flush()).unwrap();
    let rows = rig.scan(RowRange::all(), false, None);
    for (n, found) in (0..3).zip(&rows) {
        assert_eq!(found.cells.len(), 40);
        for (cell, i) in found.cells.iter().zip(cells(n)) {
            assert!(cell.value == large(i), "{i} of row {n}");
        }
        assert_eq!(rig.get(row(n).as_bytes()), found.cells);
    }
}

/// Carries out what it is given at once, and counts it.
#[derive(Debug, Default)]
struct Counting(AtomicU64);

impl Helper for Counting {
    fn carry_out(&self, _: Option<TabletId>, work: Box<dyn FnOnce() + Send>) {
        self.0.fetch_add(1, Ordering::Relaxed);
        work();
    }

    fn patience(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}

#[test]
fn large_values_are_unpacked_by_the_threads_helper_and_damage_in_them_is_told() {
    let rig = Rig::new(options(), plain_schema(), 11);
    let large = |seed: u64| value(seed).repeat(600);
    for n in 0..3 {
        rig.apply(row(n).as_bytes(), vec![put(1, "l", 1, &large(n)), put(1, "s", 1, &value(n))]);
    }
    block_on(rig.tablet.flush()).unwrap();
    let helper = Arc::new(Counting::default());
    let _lent = aside::lend(Arc::clone(&helper) as Arc<dyn Helper>);
    let rows = rig.scan(RowRange::all(), false, None);
    assert_eq!(helper.0.load(Ordering::Relaxed), 3, "of six values, the large ones");
    for (n, found) in (0..).zip(&rows) {
        assert!(found.cells[0].value == large(n) && found.cells[1].value == value(n), "{n}");
        assert_eq!(rig.get(row(n).as_bytes()), found.cells);
    }
    assert_eq!(helper.0.load(Ordering::Relaxed), 6);
    let path = value_paths(&rig).remove(0);
    let mut bytes = rig.files.contents(&path).unwrap();
    // In the first one, which is packed into a few kilobytes.
    bytes[100] ^= 1;
    rig.files.put_contents(&path, bytes);
    let read = |n: u64| {
        let row = row(n);
        block_on(rig.tablet.read_row(row.as_bytes(), &Projection::all(), ReadView::Durable))
    };
    let error = read(0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption);
    assert!(error.message().contains(path.to_str().unwrap()), "{error}");
    assert!(read(1).unwrap().unwrap().cells[0].value == large(1));
}

/// Begins nothing.
#[derive(Default)]
struct Asleep(Mutex<Vec<Box<dyn FnOnce() + Send>>>);

impl Helper for Asleep {
    fn carry_out(&self, tablet: Option<TabletId>, work: Box<dyn FnOnce() + Send>) {
        assert!(tablet.is_some());
        self.0.lock().unwrap().push(work);
    }

    fn patience(&self) -> BoxFuture<'static, ()> {
        let mut waited = false;
        Box::pin(std::future::poll_fn(move |context| {
            context.waker().wake_by_ref();
            if std::mem::replace(&mut waited, true) { Poll::Ready(()) } else { Poll::Pending }
        }))
    }
}

#[test]
fn large_values_that_the_helper_does_not_come_to_are_read_all_the_same_after_one_wait() {
    let rig = Rig::new(options(), plain_schema(), 12);
    let large = |seed: u64| value(seed).repeat(600);
    let columns = || 0..6;
    for i in columns() {
        rig.apply(row(1).as_bytes(), vec![put(1, &format!("q{i}"), 1, &large(i))]);
    }
    block_on(rig.tablet.flush()).unwrap();
    let helper = Arc::new(Asleep::default());
    let _lent = aside::lend(Arc::clone(&helper) as Arc<dyn Helper>);
    let cells = rig.get(row(1).as_bytes());
    for (cell, i) in cells.iter().zip(columns()) {
        assert!(cell.value == large(i), "{i}");
    }
    assert_eq!(cells.len(), 6);
    // The two that are read at once are handed over at once; with the first nobody waits for others.
    assert_eq!(helper.0.lock().unwrap().len(), 2);
}

#[test]
fn a_value_that_a_scan_returns_keeps_no_others_in_memory() {
    let rig = Rig::new(options(), plain_schema(), 10);
    write(&rig, 0..50, 0);
    let rows = rig.scan(RowRange::all(), false, None);
    assert_eq!(rows.len(), 50);
    // They are read together.
    assert!(rows.iter().all(|row| row.cells[0].value.is_unique()));
}

#[test]
fn sampled_rows_divide_a_tablet_by_the_values_that_its_rows_have() {
    let rig = Rig::new(options(), plain_schema(), 10);
    write(&rig, 0..200, 0);
    rig.engine.compact_fully().unwrap();
    let samples = rig.tablet.sample_rows(50 << 10).unwrap();
    assert!((2..=4).contains(&samples.len()), "{samples:?}");
}
