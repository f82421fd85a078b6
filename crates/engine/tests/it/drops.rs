//! Dropped ranges of rows against what runs at the same time.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt as _;
use futures::executor::block_on;
use tepui_engine::ErrorKind;
use tepui_engine::cell::{RowBatch, RowRange};
use tepui_engine::db::{Engine, EngineOptions, SyncMode};
use tepui_engine::io::{
    CrashMode, Fault, FaultFiles, FaultOp, Files, ManualClock, MemoryFiles, SeededRng,
    Spawner as _, ThreadSpawner,
};
use tepui_engine::read::Projection;
use tepui_engine::tablet::Tablet;

use crate::changes::{self, DAY, Kept, apply, batch};
use crate::harness::{Rig, START_MICROS, env, plain_schema, put, scan, tiny_options};

fn write(tablet: &Tablet, row: &'static str) {
    let mutations = vec![put(1, "q", 1000, "v")];
    block_on(tablet.apply(RowBatch { row: row.into(), mutations })).unwrap();
}

fn rows(tablet: &Tablet) -> Vec<String> {
    let rows = scan(tablet, RowRange::all(), Projection::all(), false, None).unwrap();
    rows.iter().map(|row| String::from_utf8(row.key.to_vec()).unwrap()).collect()
}

#[test]
fn a_drop_that_outlives_a_crash_leaves_no_earlier_write_of_another_table_behind() {
    let options = || EngineOptions { sync: SyncMode::Never, ..tiny_options() };
    let files = MemoryFiles::new();
    let open = |files: &MemoryFiles| {
        let clock = Arc::new(ManualClock::new(START_MICROS));
        let environment = env(Arc::new(files.clone()) as Arc<dyn Files>, clock, 3);
        Engine::open(environment, Path::new("/data"), options()).unwrap()
    };
    let engine = open(&files);
    let tablets = [(); 2].map(|()| engine.create_tablet(RowRange::all()).unwrap());
    for tablet in &tablets {
        tablet.set_schema(Arc::new(plain_schema()));
    }
    let [dropped, other] = &tablets;
    write(dropped, "dropped");
    write(other, "kept");
    assert!(block_on(dropped.drop_rows(RowRange::all())).unwrap());
    let engine = open(&files.crashed_copy(CrashMode::Strict, &SeededRng::new(1)));
    for (tablet, left) in [(dropped, &[][..]), (other, &["kept"])] {
        let tablet = engine.tablet(tablet.id()).unwrap();
        tablet.set_schema(Arc::new(plain_schema()));
        assert_eq!(rows(&tablet), left);
    }
}

#[test]
fn rows_are_dropped_first_of_all_where_only_change_files_know_what_the_log_had() {
    let disk = MemoryFiles::new();
    let open = || Kept::open(Arc::new(disk.clone()), changes::options()).unwrap();
    let kept = open();
    kept.tablet.keep_changes(Some(DAY));
    changes::fill(&kept, 60);
    kept.engine.close().unwrap();
    drop(kept);
    // What the last process has left of the log goes, and nothing new comes.
    let kept = open();
    kept.tablet.keep_changes(Some(DAY));
    kept.engine.run_background().unwrap();
    kept.engine.close().unwrap();
    drop(kept);
    let kept = open();
    assert_eq!(kept.engine.open_summary().replayed_records, 0);
    let other = Arc::clone(&kept.other);
    let (dropped, was_dropped) = channel();
    let drop_rows = move || dropped.send(block_on(other.drop_rows(RowRange::all()))).unwrap();
    let thread = ThreadSpawner.spawn("drops rows", Box::new(drop_rows)).unwrap();
    assert!(was_dropped.recv_timeout(Duration::from_mins(1)).unwrap().unwrap());
    thread.join();
    kept.engine.close().unwrap();
}

/// The drop has its sequence and writes its edit while another row is written and the memtable flushed.
#[test]
fn rows_dropped_while_their_memtable_is_flushed_stay_gone() {
    let files = FaultFiles::new(Arc::new(MemoryFiles::new()));
    let clock = Arc::new(ManualClock::new(START_MICROS));
    let environment = env(Arc::new(files.clone()) as Arc<dyn Files>, clock, 3);
    let engine = Engine::open(environment, Path::new("/data"), tiny_options()).unwrap();
    let tablet = engine.create_tablet(RowRange::all()).unwrap();
    tablet.set_schema(Arc::new(plain_schema()));
    engine.start().unwrap();
    write(&tablet, "dropped");

    let (edit_begins, edit_began) = channel();
    let (go_on, may_go_on) = channel();
    let (sst_written, sst_was_written) = channel();
    let hold = AtomicBool::new(true);
    let may_go_on = Mutex::new(may_go_on);
    files.before_sync(Some(Arc::new(move |path: &Path| {
        let name = path.to_string_lossy();
        if name.contains("MANIFEST") && hold.swap(false, Ordering::SeqCst) {
            edit_begins.send(()).unwrap();
            may_go_on.lock().unwrap().recv().unwrap();
        }
        if name.ends_with(".sst") {
            let _ = sst_written.send(());
        }
    })));
    std::thread::scope(|scope| {
        let dropping = scope.spawn(|| block_on(tablet.drop_rows(RowRange::prefix(b"dropped"))));
        edit_began.recv().unwrap();
        let writing = scope.spawn(|| write(&tablet, "kept"));
        let flushing = scope.spawn(|| block_on(tablet.flush()));
        // A flush that does not wait for the edit writes its file within this time; one that does
        // writes none, which only time can tell.
        let _ = sst_was_written.recv_timeout(Duration::from_millis(300));
        go_on.send(()).unwrap();
        dropping.join().unwrap().unwrap();
        writing.join().unwrap();
        flushing.join().unwrap().unwrap();
    });
    assert_eq!(rows(&tablet), ["kept"]);
    engine.compact_fully().unwrap();
    assert_eq!(rows(&tablet), ["kept"]);
}

/// A tablet of 400 rows in one file of the last level, or of level 0.
fn furnished(seed: u64, merged: bool) -> Rig {
    let options =
        EngineOptions { target_file_bytes: 1 << 20, base_level_bytes: 1 << 20, ..tiny_options() };
    let rig = Rig::new(options, plain_schema(), seed);
    for n in 0..400 {
        rig.apply(row(n).as_bytes(), vec![put(1, "q", 1000, "v")]);
    }
    block_on(rig.tablet.flush()).unwrap();
    if merged {
        rig.engine.compact_fully().unwrap();
    }
    rig.engine.run_background().unwrap();
    let level = if merged { 6 } else { 0 };
    assert_eq!(rig.tablet.stats().level_files[level], 1);
    rig
}

fn row(n: u32) -> String {
    format!("row-{n:04}")
}

fn drop_rows(rig: &Rig, rows: std::ops::Range<u32>) {
    block_on(rig.tablet.drop_rows(RowRange::new(row(rows.start), row(rows.end)))).unwrap();
}

fn idle_for_a_minute(rig: &Rig) {
    for _ in 0..6 {
        rig.clock.advance_micros(10_000_000);
        rig.engine.run_background().unwrap();
    }
}

/// Bytes of the SSTs on disk.
fn sst_bytes(rig: &Rig) -> u64 {
    let dir = Path::new("/data/sst");
    let files = rig.files.list(dir).unwrap();
    files.iter().map(|f| rig.files.contents(&dir.join(&f.name)).unwrap().len() as u64).sum()
}

#[test]
fn a_file_of_which_little_is_left_gives_its_space_back() {
    for merged in [true, false] {
        let rig = furnished(10, merged);
        let before = sst_bytes(&rig);
        // What is left lies on both sides.
        drop_rows(&rig, 20..380);
        idle_for_a_minute(&rig);
        let after = sst_bytes(&rig);
        assert!(after < before / 4, "{after} of {before} bytes are left, merged: {merged}");
        assert_eq!(rows(&rig.tablet), (0..20).chain(380..400).map(row).collect::<Vec<_>>());
    }
}

#[test]
fn a_file_of_which_most_is_left_stays_as_it_is() {
    let rig = furnished(11, true);
    let compactions = || rig.engine.metrics().compactions.load(Ordering::Relaxed);
    let before = compactions();
    drop_rows(&rig, 0..60);
    drop_rows(&rig, 340..400);
    (0..60).for_each(|_| idle_for_a_minute(&rig));
    assert_eq!(compactions() - before, 0, "in an hour");
    drop_rows(&rig, 60..300);
    (0..60).for_each(|_| idle_for_a_minute(&rig));
    assert_eq!(compactions() - before, 1, "once");
    assert_eq!(rows(&rig.tablet), (300..340).map(row).collect::<Vec<_>>());
}

#[test]
fn a_file_that_others_need_is_not_rewritten_for_its_space_until_they_are_gone() {
    let rig = furnished(12, true);
    let backup = block_on(rig.engine.create_backup(&[rig.tablet.id()])).unwrap().id();
    let restored = rig.engine.restore_backup(backup).unwrap().remove(0);
    restored.set_schema(Arc::new(plain_schema()));
    let before = sst_bytes(&rig);
    drop_rows(&rig, 0..380);
    idle_for_a_minute(&rig);
    assert_eq!(sst_bytes(&rig), before, "the backup needs it");
    rig.engine.delete_backup(backup).unwrap();
    idle_for_a_minute(&rig);
    assert_eq!(sst_bytes(&rig), before, "what was restored needs it");
    rig.engine.drop_tablet(restored.id()).unwrap();
    drop(restored);
    idle_for_a_minute(&rig);
    let after = sst_bytes(&rig);
    assert!(after < before / 4, "{after} of {before} bytes are left");
}

#[test]
fn a_file_cut_by_many_drops_is_rewritten_whole() {
    let options = EngineOptions { target_file_bytes: 1 << 20, ..tiny_options() };
    let rig = Rig::new(options, plain_schema(), 9);
    for n in 0..400 {
        rig.apply(row(n).as_bytes(), vec![put(1, "q", 1000, "v")]);
    }
    rig.engine.compact_fully().unwrap();
    for n in (0..400).step_by(2) {
        block_on(rig.tablet.drop_rows(RowRange::row(row(n).as_bytes()))).unwrap();
        rig.engine.run_background().unwrap();
    }
    let expected: Vec<String> = (0..400).filter(|n| n % 2 == 1).map(row).collect();
    assert_eq!(rows(&rig.tablet), expected);
    let stats = rig.tablet.stats();
    assert!(stats.sst_count < 100, "{} references are left", stats.sst_count);
}

/// A drop has a sequence, but is no part of the log, which is the history. The clock begins where it began before: sequences
/// that nothing on disk has come again after a crash.
#[test]
fn no_stream_is_given_the_place_of_a_drop_that_is_on_no_disk() {
    // The newest write is recent, or is not.
    for pause_micros in [0, 5_000_000] {
        let disk = MemoryFiles::new();
        let kept = Kept::open(Arc::new(disk.clone()), changes::options()).unwrap();
        kept.engine.close().unwrap();
        drop(kept);
        let faults = FaultFiles::new(Arc::new(disk.clone()));
        let kept = Kept::open(Arc::new(faults.clone()), changes::options()).unwrap();
        let last = apply(&kept.tablet, batch(1, 10)).unwrap();
        kept.clock.advance_micros(pause_micros);
        // The first edit begins a new manifest, for which there is no open file.
        let shortage = Fault::new(FaultOp::Create).on_path("MANIFEST").kind(ErrorKind::Exhausted);
        faults.inject(shortage.sticky());
        for _ in 0..10 {
            let error = block_on(kept.other.drop_rows(RowRange::all())).unwrap_err();
            assert!(error.kind() == ErrorKind::Exhausted && !error.is_in_doubt(), "{error:?}");
        }
        faults.heal();
        let mut reader = kept.tablet.changes_after(last.last_seq);
        assert_eq!(reader.read(1 << 20).unwrap(), Some(Vec::new()));
        let begun = block_on(kept.tablet.fence_changes()).unwrap();
        let crashed = disk.crashed_copy(CrashMode::Strict, &SeededRng::new(1));
        let kept = Kept::open(Arc::new(crashed), changes::options()).unwrap();
        let written = [apply(&kept.tablet, batch(2, 10)).unwrap()];
        for position in [begun, reader.position()] {
            assert_eq!(kept.read(position, 1 << 20).unwrap(), written);
        }
    }
}

#[test]
fn after_a_start_no_stream_is_given_a_place_that_goes_with_a_tablet() {
    let disk = MemoryFiles::new();
    let open = || Kept::open(Arc::new(disk.clone()), changes::options()).unwrap();
    let kept = open();
    apply(&kept.tablet, batch(1, 10)).unwrap();
    for _ in 0..50 {
        assert!(block_on(kept.other.drop_rows(RowRange::all())).unwrap());
    }
    kept.engine.close().unwrap();
    drop(kept);
    let kept = open();
    let begun = block_on(kept.tablet.fence_changes()).unwrap();
    kept.engine.drop_tablet(kept.other.id()).unwrap();
    kept.engine.close().unwrap();
    drop(kept);
    let kept = open();
    let change = apply(&kept.tablet, batch(2, 10)).unwrap();
    assert_eq!(kept.read(begun, 1 << 20).unwrap(), [change]);
}

#[test]
fn a_drop_wakes_no_reader_of_changes() {
    let disk = MemoryFiles::new();
    let kept = Kept::open(Arc::new(disk.clone()), changes::options()).unwrap();
    let begun = kept.tablet.keep_changes(Some(DAY));
    let first = apply(&kept.tablet, batch(1, 10)).unwrap();
    kept.engine.close().unwrap();
    drop(kept);
    // What was written before the start is on disk alone.
    let kept = Kept::open(Arc::new(disk), changes::options()).unwrap();
    let mut reader = kept.tablet.changes_after(begun);
    assert_eq!(reader.read(1 << 20).unwrap(), None);
    assert_eq!(reader.read_disk(1 << 20).unwrap(), [first]);
    assert_eq!(reader.read_disk(1 << 20).unwrap(), []);
    assert!(reader.ready().now_or_never().is_none());
    assert!(block_on(kept.other.drop_rows(RowRange::all())).unwrap());
    assert!(reader.ready().now_or_never().is_none(), "there is nothing to read");
    let second = apply(&kept.tablet, batch(2, 10)).unwrap();
    reader.ready().now_or_never().expect("a change is there").unwrap();
    let more = match reader.read(1 << 20).unwrap() {
        Some(more) => more,
        None => reader.read_disk(1 << 20).unwrap(),
    };
    assert_eq!(more, [second]);
    assert!(reader.ready().now_or_never().is_none());
}
