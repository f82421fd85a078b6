//! What only the engine itself can arrange: moments between two steps of a job, a write or a drop.

use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures::FutureExt;
use futures::executor::block_on;

use crate::pressure::Behind;

use super::*;
use crate::cell::{FamilyId, Mutation, RowBatch, TimestampRange};
use crate::compaction::pick;
use crate::db::{Engine, EngineOptions, Health, TIERED_RUNS_MAX};
use crate::error::ErrorKind;
use crate::io::{
    Clock, Env, Fault, FaultFiles, FaultOp, Files, InlineIo, IoEngine, LocalFiles, ManualClock,
    MemoryFiles, SeededRng, ThreadSpawner,
};
use crate::log::{Source, encode_batch};
use crate::read::Projection;
use crate::schema::FamilyOptions;
use crate::sst::BLOCK_BYTES_MAX;
use crate::sst::testing::TestIo;
use crate::testing::until;

mod collector;
mod compaction;
mod crowds;
mod held;
mod many;
mod memory;
mod pinned;
mod reads;
mod wide;

/// The wall clock of tests starts here: 2026-01-01.
const START_MICROS: i64 = 1_767_225_600_000_000;

struct Rig {
    files: Arc<MemoryFiles>,
    engine: Arc<Engine>,
    tablet: Arc<Tablet>,
}

fn rig() -> Rig {
    rig_with(EngineOptions {
        memtables_waiting_max: 1,
        l0_compaction_files: 2,
        ..EngineOptions::default()
    })
}

fn rig_with(options: EngineOptions) -> Rig {
    rig_on(options, Arc::new(ManualClock::new(START_MICROS)))
}

fn rig_on(options: EngineOptions, clock: Arc<dyn Clock>) -> Rig {
    let files = Arc::new(MemoryFiles::new());
    rig_over(options, clock, Arc::clone(&files), files)
}

/// Over `seen`, which are `files` with something in between.
fn rig_over(
    options: EngineOptions,
    clock: Arc<dyn Clock>,
    files: Arc<MemoryFiles>,
    seen: Arc<dyn Files>,
) -> Rig {
    rig_in(options, files, env(seen, Arc::new(InlineIo), clock))
}

fn env(files: Arc<dyn Files>, io: Arc<dyn IoEngine>, clock: Arc<dyn Clock>) -> Env {
    Env { files, io, clock, rng: Arc::new(SeededRng::new(1)), spawner: Arc::new(ThreadSpawner) }
}

fn rig_in(options: EngineOptions, files: Arc<MemoryFiles>, env: Env) -> Rig {
    let options = EngineOptions { background: false, ..options };
    let engine = Engine::open(env, Path::new("/data"), options).unwrap();
    let tablet = engine.create_tablet(RowRange::all()).unwrap();
    let families = [(FamilyId(1), FamilyOptions::default())].into();
    tablet.set_schema(Arc::new(TabletSchema { families }));
    Rig { files, engine, tablet }
}

fn batch(row: &str, columns: &[&str]) -> RowBatch {
    let put = |column: &&str| Mutation::Put {
        family: FamilyId(1),
        qualifier: Bytes::copy_from_slice(column.as_bytes()),
        timestamp: 1000,
        value: Bytes::from_static(b"v"),
    };
    RowBatch {
        row: Bytes::copy_from_slice(row.as_bytes()),
        mutations: columns.iter().map(put).collect(),
    }
}

impl Rig {
    fn write(&self, rows: &[&str]) {
        for row in rows {
            block_on(self.tablet.apply(batch(row, &["a", "b"]))).unwrap();
        }
        block_on(self.tablet.flush()).unwrap();
    }

    fn cells(&self, row: &str) -> usize {
        let projection = Projection::all();
        let read = self.tablet.read_row(row.as_bytes(), &projection, ReadView::Durable);
        block_on(read).unwrap().map_or(0, |row| row.cells.len())
    }

    fn claim_fully(&self) -> compact::Claim {
        let picks = self.tablet.picks();
        let busy = Default::default();
        let pick = pick::pick_full(&self.tablet.version(), &busy).unwrap();
        self.tablet.claim(picks, pick)
    }

    fn ssts(&self) -> usize {
        self.files.list(Path::new("/data/sst")).unwrap().len()
    }
}

#[test]
fn a_read_of_old_timestamps_passes_over_what_is_newer_without_reading_it() {
    const VERSIONS: i64 = 4000;
    let noise = SeededRng::new(7);
    let rig = rig();
    let put = |version: i64| Mutation::Put {
        family: FamilyId(1),
        qualifier: Bytes::from_static(b"q"),
        timestamp: version * 1000,
        value: (0..100).map(|_| crate::io::Rng::next_u64(&noise) as u8).collect(),
    };
    let all: Vec<Mutation> = (0..VERSIONS).map(put).collect();
    block_on(rig.tablet.apply(RowBatch { row: Bytes::from_static(b"row"), mutations: all }))
        .unwrap();
    block_on(rig.tablet.flush()).unwrap();
    let read = |start: i64, end: i64| {
        let timestamps = TimestampRange { start: start * 1000, end: end * 1000 };
        let projection = Projection { timestamps, ..Projection::all() };
        let read = rig.engine.cache().sst_metrics().blocks_read.get();
        let row = block_on(rig.tablet.read_row(b"row", &projection, ReadView::Durable)).unwrap();
        let times: Vec<_> = row.unwrap().cells.iter().map(|cell| cell.timestamp / 1000).collect();
        (times, rig.engine.cache().sst_metrics().blocks_read.get() - read)
    };
    let (times, blocks) = read(10, 15);
    assert_eq!(times, [14, 13, 12, 11, 10]);
    assert!(blocks <= 12, "{blocks} blocks");
    let (times, blocks) = read(10, VERSIONS);
    assert!(times.len() == 3990 && blocks > 80, "{blocks} blocks");
}

#[test]
fn a_dropped_row_is_gone_as_a_whole_while_earlier_writes_wait_for_the_disk() {
    let rig = rig();
    rig.write(&["r"]);
    block_on(rig.tablet.apply(batch("r", &["a"]))).unwrap();
    // A write that began and is not applied holds back what is visible.
    let pipeline = &rig.tablet.core.pipeline;
    let encoded = encode_batch(rig.tablet.id().0 + 1, &batch("x", &["a"]));
    let permit = block_on(pipeline.admit(encoded.len())).unwrap();
    let slow = pipeline.begin(encoded, 1, permit).unwrap();
    let mut dropping = pin!(rig.tablet.drop_rows(RowRange::all()));
    assert!(dropping.as_mut().now_or_never().is_none(), "earlier writes are not durable yet");
    assert!([0, 2].contains(&rig.cells("r")), "{} of the row's 2 cells", rig.cells("r"));
    drop(slow);
    block_on(dropping).unwrap();
    assert_eq!(rig.cells("r"), 0);
}

#[test]
fn dropped_ranges_are_remembered_once_where_one_lies_in_another() {
    let rig = rig();
    let write = |rows: &[&str]| {
        for row in rows {
            block_on(rig.tablet.apply(batch(row, &["a"]))).unwrap();
        }
    };
    let remembered = || rig.tablet.version().excised().len();
    write(&["a", "b"]);
    block_on(rig.tablet.drop_rows(RowRange::new("a", "b"))).unwrap();
    write(&["a"]);
    let before = rig.tablet.snapshot();
    for _ in 0..100 {
        block_on(rig.tablet.drop_rows(RowRange::new("a", "b"))).unwrap();
    }
    assert_eq!(remembered(), 1);
    assert_eq!((rig.cells("a"), rig.cells("b")), (0, 1));
    block_on(rig.tablet.drop_rows(RowRange::new("b", "c"))).unwrap();
    assert_eq!(remembered(), 2, "neither lies in the other");
    block_on(rig.tablet.drop_rows(RowRange::all())).unwrap();
    assert_eq!(remembered(), 1);
    write(&["b"]);
    assert_eq!((rig.cells("a"), rig.cells("b")), (0, 1));
    // Who has begun to read before sees what there was.
    let rows = |snapshot| {
        let scan = ScanOptions {
            range: RowRange::all(),
            projection: Projection::all(),
            reverse: false,
            rows_hint: None,
            snapshot: Some(snapshot),
        };
        let mut stream = rig.tablet.scan(scan).unwrap();
        std::iter::from_fn(|| block_on(stream.next()).unwrap()).map(|row| row.key).collect()
    };
    let seen: Vec<Bytes> = rows(before);
    assert_eq!(seen, ["a", "b"]);
    block_on(rig.tablet.flush()).unwrap();
    assert_eq!((rig.cells("a"), rig.cells("b"), remembered()), (0, 1, 0));
}

#[test]
fn a_tablet_that_drops_many_ranges_flushes_and_forgets_them() {
    let rig = rig();
    let row = |n: usize| format!("row-{n:04}");
    let mut most = 0;
    for n in 0..1000 {
        block_on(rig.tablet.apply(batch(&row(n), &["a"]))).unwrap();
        let kept = format!("{}-kept", row(n));
        block_on(rig.tablet.apply(batch(&kept, &["a"]))).unwrap();
        block_on(rig.tablet.drop_rows(RowRange::prefix(kept.as_bytes()))).unwrap();
        block_on(rig.tablet.apply(batch(&kept, &["a"]))).unwrap();
        most = most.max(rig.tablet.version().excised().len());
        // What the thread does that flushes; now and then it is late.
        if n % 3 == 0 {
            rig.tablet.flush_waiting().unwrap();
        }
    }
    assert!((64..80).contains(&most), "{most}");
    assert!(rig.tablet.version().level(0).len() < 20);
    for n in 0..1000 {
        let cells = (rig.cells(&row(n)), rig.cells(&format!("{}-kept", row(n))));
        assert_eq!(cells, (1, 1), "{n}");
    }
}

#[test]
fn a_flush_forgets_drops_that_came_after_all_that_is_in_memory() {
    let rig = rig();
    block_on(rig.tablet.apply(batch("a", &["a"]))).unwrap();
    block_on(rig.tablet.apply(batch("b", &["a"]))).unwrap();
    rig.tablet.rotate_now();
    block_on(rig.tablet.apply(batch("a", &["a"]))).unwrap();
    block_on(rig.tablet.drop_rows(RowRange::new("a", "b"))).unwrap();
    rig.tablet.flush_waiting().unwrap();
    assert_eq!(rig.tablet.version().excised().len(), 1, "the other memtable has such a row");
    assert_eq!((rig.cells("a"), rig.cells("b")), (0, 1));
    block_on(rig.tablet.flush()).unwrap();
    assert_eq!(rig.tablet.version().excised(), []);
    assert_eq!((rig.cells("a"), rig.cells("b")), (0, 1));
}

#[test]
fn a_drop_with_nothing_in_memory_is_in_the_manifest_until_the_next_edit_and_reads_pass_over_it() {
    let rig = rig();
    let drop_row = |row: &str| {
        block_on(rig.tablet.drop_rows(RowRange::prefix(row.as_bytes()))).unwrap();
        let view = rig.tablet.view.load();
        (view.version.excised().len(), view.excised().len())
    };
    let remembered = || rig.tablet.version().excised().len();
    rig.write(&["a", "b", "c"]);
    assert_eq!(["b", "x", "b", "y"].map(drop_row), [(1, 0); 4]);
    assert_eq!((rig.cells("a"), rig.cells("b"), rig.cells("c")), (2, 0, 2));
    // What is written later is newer.
    block_on(rig.tablet.apply(batch("b", &["a"]))).unwrap();
    assert_eq!(drop_row("c"), (1, 1), "by now there is something in memory that is older");
    assert_eq!((rig.cells("a"), rig.cells("b"), rig.cells("c")), (2, 1, 0));
    block_on(rig.tablet.flush()).unwrap();
    assert_eq!(remembered(), 0);
    assert_eq!(drop_row("a"), (1, 0));
    rig.engine.compact_fully().unwrap();
    assert_eq!(remembered(), 0);
    assert_eq!((rig.cells("a"), rig.cells("b"), rig.cells("c")), (0, 1, 0));
}

#[test]
fn rows_are_not_dropped_in_the_middle_of_a_read_modify_write() {
    let rig = rig();
    rig.write(&["r"]);
    let lock = block_on(rig.tablet.lock_row(b"r"));
    let mut dropping = pin!(rig.tablet.drop_rows(RowRange::all()));
    assert!(dropping.as_mut().now_or_never().is_none(), "the row is locked");
    assert_eq!(rig.cells("r"), 2);
    block_on(rig.tablet.apply_locked(lock, batch("r", &["c"]))).unwrap();
    block_on(dropping).unwrap();
    assert_eq!(rig.cells("r"), 0);
}

#[test]
fn rows_are_not_dropped_past_a_history_that_began_while_locks_were_waited_for() {
    let rig = rig();
    rig.write(&["r"]);
    let lock = block_on(rig.tablet.lock_row(b"r"));
    let mut dropping = pin!(rig.tablet.drop_rows(RowRange::all()));
    assert!(dropping.as_mut().now_or_never().is_none(), "the row is locked");
    rig.tablet.keep_changes(Some(std::time::Duration::from_hours(24)));
    drop(lock);
    assert!(!block_on(dropping).unwrap(), "the history would not have it");
    assert_eq!(rig.cells("r"), 2);
}

#[test]
fn rows_written_after_their_drop_was_given_up_stay() {
    let rig = rig();
    let lock = block_on(rig.tablet.lock_row(b"r"));
    let wanted = std::cell::Cell::new(true);
    let mut dropping = pin!(rig.tablet.drop_rows_while(RowRange::all(), || wanted.get()));
    assert!(dropping.as_mut().now_or_never().is_none(), "the row is locked");
    wanted.set(false);
    rig.write(&["s"]);
    drop(lock);
    assert_eq!(block_on(dropping).unwrap_err().kind(), ErrorKind::Cancelled);
    assert_eq!(rig.cells("s"), 2);
}

#[test]
fn rows_written_together_do_not_wait_for_one_in_the_middle_of_a_read_modify_write() {
    let rig = rig();
    let lock = block_on(rig.tablet.lock_row(b"r"));
    let rows = ["a", "r", "z"].map(|row| batch(row, &["a", "b"]));
    let mut writing = pin!(rig.tablet.apply_rows(rows.into()));
    assert!(writing.as_mut().now_or_never().is_none(), "a row is locked");
    let pipeline = &rig.tablet.core.pipeline;
    block_on(pipeline.wait_visible(pipeline.last_begun().unwrap())).unwrap();
    assert_eq!(["a", "r", "z"].map(|row| rig.cells(row)), [2, 0, 2]);
    block_on(rig.tablet.apply_locked(lock, batch("r", &["c"]))).unwrap();
    block_on(writing).unwrap();
    assert_eq!(rig.cells("r"), 3);
    // Nobody holds a lock any more.
    block_on(rig.tablet.drop_rows(RowRange::all())).unwrap();
    assert_eq!(["a", "r", "z"].map(|row| rig.cells(row)), [0, 0, 0]);
}

#[test]
fn rows_written_together_are_refused_together() {
    let rig = rig();
    let empty = RowBatch { row: Bytes::from_static(b"z"), mutations: Vec::new() };
    let error = block_on(rig.tablet.apply_rows(vec![batch("a", &["a"]), empty])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert_eq!(rig.cells("a"), 0);
    block_on(rig.tablet.apply_rows(Vec::new())).unwrap();
}

#[test]
fn large_and_small_values_that_are_written_together_are_each_read_as_they_were() {
    let rig = rig();
    let sizes = [[200_000, 5, 65_536], [65_535, 0, 300_000], [1, 2, 3], [0, 100_000, 70_000]];
    let value = |row: usize, column: usize, size: usize| -> Vec<u8> {
        (0..size).map(|at| (at + 7 * row + 3 * column) as u8).collect()
    };
    let written = |row: usize| {
        let sizes = sizes[row].into_iter().enumerate();
        let put = |(column, size)| Mutation::Put {
            family: FamilyId(1),
            qualifier: Bytes::from(format!("{column}")),
            timestamp: 1000,
            value: value(row, column, size).into(),
        };
        // A deletion among them is no value.
        let gone = Mutation::DeleteFamily { family: FamilyId(1) };
        let mutations = std::iter::once(gone).chain(sizes.map(put)).collect();
        RowBatch { row: Bytes::from(format!("r{row}")), mutations }
    };
    block_on(rig.tablet.apply_rows((0..4).map(written).collect())).unwrap();
    let check = || {
        for (row, sizes) in sizes.iter().enumerate() {
            let name = format!("r{row}");
            let projection = Projection::all();
            let read = rig.tablet.read_row(name.as_bytes(), &projection, ReadView::Durable);
            let cells = block_on(read).unwrap().unwrap().cells;
            let read: Vec<_> = cells.iter().map(|cell| cell.value.to_vec()).collect();
            let expected = sizes.iter().enumerate().map(|(column, size)| value(row, column, *size));
            assert!(read.into_iter().eq(expected), "{name}");
        }
    };
    check();
    block_on(rig.tablet.flush()).unwrap();
    check();
}

#[test]
fn compactions_into_one_level_keep_out_of_each_others_gaps() {
    let rig = rig();
    rig.write(&["a", "d", "z"]);
    rig.engine.compact_fully().unwrap();
    block_on(rig.tablet.drop_rows(RowRange::new("c", "k"))).unwrap();
    let full = rig.claim_fully();
    rig.write(&["e", "f"]);
    rig.write(&["e", "f"]);
    if let Some(other) = rig.tablet.claim_by_shape() {
        other.run().unwrap();
    }
    full.run().unwrap();
    rig.engine.run_background().unwrap();
    assert_eq!(rig.engine.health(), Health::Serving);
    for row in ["a", "e", "f", "z"] {
        assert_eq!(rig.cells(row), 2, "{row}");
    }
    assert_eq!(rig.cells("d"), 0);
}

#[test]
fn rows_dropped_between_pick_and_run_do_not_count_as_a_failed_compaction() {
    let rig = rig();
    rig.write(&["a", "d"]);
    rig.write(&["b", "c"]);
    let claim = rig.tablet.claim_by_shape().unwrap();
    block_on(rig.tablet.drop_rows(RowRange::new("c", "e"))).unwrap();
    claim.run().unwrap();
    assert!(rig.tablet.jobs().failed_until.is_empty());
    assert_eq!((rig.cells("a"), rig.cells("c")), (2, 0));
}

#[test]
fn a_job_that_ends_after_its_tablet_was_dropped_leaves_no_file_and_a_healthy_engine() {
    let rig = rig();
    rig.write(&["a"]);
    rig.write(&["b"]);
    let file = rig.tablet.version().level(0)[0].id;
    // A job's output that comes too late.
    let layout = &rig.tablet.core.layout;
    let bytes = rig.files.contents(&layout.sst(file)).unwrap();
    rig.files.put_contents(&layout.sst(file + 1_000_000), bytes);
    let late = crate::manifest::SstRef {
        id: file + 1_000_000,
        ..rig.tablet.version().level(0)[0].as_ref().clone()
    };
    let late = rig.tablet.core.store.open_present(&[late]).unwrap();
    rig.engine.drop_tablet(rig.tablet.id()).unwrap();
    let edit = VersionEdit { last_seq: Some(1), ..VersionEdit::default() };
    let mut manifest = rig.tablet.lock_manifest();
    let error = rig.tablet.install(&mut manifest, edit, late, 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    drop(manifest);
    assert_eq!(rig.engine.health(), Health::Serving);
    let Rig { files, engine, tablet } = rig;
    drop(tablet);
    engine.run_background().unwrap();
    assert_eq!(files.list(Path::new("/data/sst")).unwrap(), []);
}

#[test]
fn a_tablet_is_not_dropped_in_the_middle_of_an_edit_of_its_manifest() {
    let rig = rig();
    rig.write(&["a"]);
    let manifest = rig.tablet.lock_manifest();
    std::thread::scope(|scope| {
        let dropper = scope.spawn(|| rig.engine.drop_tablet(rig.tablet.id()));
        until("the tablet is dropped", || rig.tablet.is_dropped());
        // The drop stands before the lock, so the directory is still there.
        for _ in 0..1000 {
            std::thread::yield_now();
        }
        assert!(!dropper.is_finished());
        assert_eq!(rig.ssts(), 1);
        drop(manifest);
        dropper.join().unwrap().unwrap();
    });
    assert!(rig.files.list(Path::new("/data/tablets")).unwrap().is_empty());
}

#[test]
fn writes_are_refused_with_a_hint_and_never_wait_where_flushes_are_behind() {
    let rig = rig();
    rig.tablet.core.background.store(true, Ordering::Release);
    for row in ["a", "b"] {
        block_on(rig.tablet.apply_when_room(batch(row, &["a"]))).unwrap();
        rig.tablet.rotate_now();
    }
    let pressure = rig.tablet.pressure();
    assert_eq!((pressure.behind, pressure.refused_share()), (Behind::Memtables, 1.0));
    let refused = rig.tablet.apply(batch("c", &["a"])).now_or_never().expect("no write waits");
    let refused = refused.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Overloaded, "{refused}");
    assert!(refused.retry_after().is_some());
    assert_eq!(rig.engine.refusals().get(Behind::Memtables), 1);
    rig.tablet.flush_waiting().unwrap();
    assert!(rig.tablet.pressure().refused_share() <= 0.0);
    block_on(rig.tablet.apply(batch("c", &["a"]))).unwrap();
}

#[test]
fn a_writer_that_waits_for_room_is_released_when_the_tablet_is_dropped() {
    let rig = rig();
    rig.tablet.core.background.store(true, Ordering::Release);
    for row in ["a", "b"] {
        block_on(rig.tablet.apply_when_room(batch(row, &["a"]))).unwrap();
        rig.tablet.rotate_now();
    }
    let mut waiting = pin!(rig.tablet.apply_when_room(batch("b", &["a"])));
    assert!(waiting.as_mut().now_or_never().is_none(), "there is no room");
    rig.engine.drop_tablet(rig.tablet.id()).unwrap();
    let answer = waiting.now_or_never().expect("there is nothing to wait for");
    assert_eq!(answer.unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn whoever_waits_for_a_flush_hears_of_the_engines_failure() {
    let rig = rig();
    rig.tablet.core.background.store(true, Ordering::Release);
    block_on(rig.tablet.apply(batch("a", &["a"]))).unwrap();
    let mut waiting = pin!(rig.tablet.flush());
    assert!(waiting.as_mut().now_or_never().is_none(), "no thread flushes");
    rig.tablet.core.fail(&Error::new(ErrorKind::Io, "another tablet's flush failed"));
    let answer = waiting.now_or_never().expect("nobody will flush it");
    assert_eq!(answer.unwrap_err().kind(), ErrorKind::ReadOnly);
}

#[test]
fn writes_are_refused_while_a_damaged_file_in_level_zero_keeps_compaction_from_making_room() {
    let rig = rig();
    for n in 0..rig.tablet.core.options.l0_stop_files {
        rig.write(&["row-00", &format!("row-{n:02}")]);
    }
    let file = rig.tablet.version().level(0)[0].id;
    let path = rig.tablet.core.layout.sst(file);
    let mut bytes = rig.files.contents(&path).unwrap();
    bytes[3] ^= 0x40;
    rig.files.put_contents(&path, bytes);
    rig.tablet.claim_by_shape().unwrap().run().unwrap_err();
    rig.tablet.core.background.store(true, Ordering::Release);
    let write = rig.tablet.apply(batch("more", &["a"])).boxed_local();
    let answer = std::thread::scope(|_| write.now_or_never());
    // The log's thread answers a write that was let in; one that is refused is answered at once.
    let refused = answer.expect("compaction makes no room while its file is damaged").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Overloaded, "{refused}");
    assert_eq!(rig.engine.refusals().get(Behind::Failing), 1);
}

#[test]
fn the_space_of_a_large_file_is_given_back_once_its_removal_is_durable() {
    for fails in [false, true] {
        let memory = Arc::new(MemoryFiles::new());
        let faults = Arc::new(FaultFiles::new(Arc::clone(&memory) as Arc<dyn Files>));
        let seen = Arc::clone(&faults) as Arc<dyn Files>;
        let clock = Arc::new(ManualClock::new(START_MICROS));
        let rig = rig_over(EngineOptions::default(), clock, memory, seen);
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("large");
        let mut file = LocalFiles::default().create(&path).unwrap();
        file.append(&vec![7; 5 << 20]).unwrap();
        drop(file);
        let removed = LocalFiles::default().remove_large(&path).unwrap();
        let (len, synced) = (removed.watch(), faults.count(FaultOp::SyncDir));
        if fails {
            faults.inject(Fault::new(FaultOp::SyncDir));
        }
        let core = &rig.tablet.core;
        core.give_back(removed, &core.layout.ssts());
        assert_eq!(faults.count(FaultOp::SyncDir), synced + 1);
        assert_eq!(len(), if fails { 5 << 20 } else { 0 });
        assert_eq!(
            core.check_writable().is_err(),
            fails,
            "its name may come back, and others' be lost"
        );
    }
}

#[test]
fn a_segment_of_the_log_that_cannot_be_removed_is_left_alone_for_a_minute() {
    let memory = Arc::new(MemoryFiles::new());
    let faults = Arc::new(FaultFiles::new(Arc::clone(&memory) as Arc<dyn Files>));
    let seen = Arc::clone(&faults) as Arc<dyn Files>;
    let clock = Arc::new(ManualClock::new(START_MICROS));
    let rig = rig_over(EngineOptions::default(), clock.clone(), memory, seen);
    let log = rig.engine.core().pipeline.log();
    for _ in 0..2 {
        block_on(rig.tablet.apply(batch("a", &["a"]))).unwrap();
        log.rotate().unwrap();
    }
    block_on(rig.tablet.flush()).unwrap();
    let [stuck, other] = [0, 1].map(|at| log.segments()[at].id);
    faults.inject(Fault::new(FaultOp::Remove).on_path(format!("{stuck:016x}")).sticky());
    let tries = || faults.count(FaultOp::Remove);
    let before = tries();
    assert!(rig.engine.trim_log(), "the other one goes");
    assert!(!log.segments().iter().any(|segment| segment.id == other));
    assert!(!rig.engine.trim_log());
    clock.advance_micros(60_000_000 - 1);
    assert!(!rig.engine.trim_log());
    assert_eq!(tries() - before, 2, "each once");
    faults.heal();
    clock.advance_micros(1);
    assert!(rig.engine.trim_log());
    assert!(!log.segments().iter().any(|segment| segment.id == stuck));
}

#[test]
fn outputs_that_the_manifest_refuses_are_removed() {
    let rig = rig();
    rig.write(&["a"]);
    let file = rig.tablet.version().level(0)[0].as_ref().clone();
    let layout = &rig.tablet.core.layout;
    let bytes = rig.files.contents(&layout.sst(file.id)).unwrap();
    let output = crate::manifest::SstRef { id: file.id + 1_000_000, ..file };
    rig.files.put_contents(&layout.sst(output.id), bytes);
    let outputs = rig.tablet.core.store.open_present(&[output]).unwrap();
    // An edit that does not fit is refused before anything is written.
    let edit = VersionEdit { remove: vec![(3, 7)], ..VersionEdit::default() };
    let mut manifest = rig.tablet.lock_manifest();
    rig.tablet.install(&mut manifest, edit, outputs, 0).unwrap_err();
    drop(manifest);
    rig.tablet.core.remove_doomed(0);
    assert_eq!(rig.ssts(), 1);
}

#[test]
fn a_panic_of_a_background_thread_makes_the_engine_read_only() {
    let rig = rig();
    let weak = Arc::downgrade(&rig.engine);
    let bell = Arc::clone(&rig.tablet.core.bell);
    let work = |_: &Engine| -> crate::background::Wait { panic!("as a test") };
    let thread = crate::io::Spawner::spawn(
        &ThreadSpawner,
        "panics",
        Box::new(move || crate::background::run(&weak, &bell, work)),
    );
    thread.unwrap().join();
    assert!(matches!(rig.engine.health(), Health::ReadOnly(_)));
}

#[test]
fn new_files_have_their_whole_index_and_filter_in_memory_and_let_them_go_on_the_last_level() {
    let rig = rig();
    let rows: Vec<String> = (0..200).map(|i| format!("row-{i:03}")).collect();
    rig.write(&rows.iter().map(String::as_str).collect::<Vec<_>>());
    let memory = rig.engine.index_memory();
    assert!(memory.partitions >= 2, "{memory:?}");
    assert_eq!(rig.engine.resident_index_bytes(), memory.resident_bytes);
    assert_eq!(memory.pinned_bytes, memory.partition_bytes_all);
    let misses = || {
        let stats = rig.engine.cache().stats();
        (stats.data.misses, stats.index.misses + stats.filter.misses)
    };
    let before = misses();
    assert_eq!(rig.cells("row-100"), 2);
    assert_eq!(misses(), (before.0 + 1, before.1), "the data block alone");

    rig.engine.compact_fully().unwrap();
    let memory = rig.engine.index_memory();
    assert_eq!((memory.pinned_bytes, memory.partition_bytes), (0, 0), "{memory:?}");
    assert_eq!(rig.engine.cache().stats().pinned_bytes, 0);
    assert_eq!(rig.cells("row-100"), 2);
}

#[test]
fn a_file_that_moves_down_by_an_edit_alone_is_no_longer_pinned() {
    let rig = rig();
    rig.write(&["a", "b"]);
    assert!(rig.engine.index_memory().pinned_bytes > 0);
    let mut pick = {
        let busy = Default::default();
        pick::pick_full(&rig.tablet.version(), &busy).unwrap()
    };
    pick.reason = pick::Reason::Size;
    rig.tablet.claim(rig.tablet.picks(), pick).run().unwrap();
    let memory = rig.engine.index_memory();
    assert_eq!(memory.pinned_bytes, 0, "{memory:?}");
}

#[test]
fn an_engine_whose_parts_outgrow_its_memory_does_not_start() {
    let options = EngineOptions { memory_bytes: 64 << 20, ..EngineOptions::default() };
    let env = Env {
        files: Arc::new(MemoryFiles::new()),
        io: Arc::new(InlineIo),
        clock: Arc::new(ManualClock::new(1)),
        rng: Arc::new(SeededRng::new(1)),
        spawner: Arc::new(ThreadSpawner),
    };
    let least = options.memory_bytes_min();
    let error = Engine::open(env, Path::new("/data"), options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains(&format!("at least {least} is needed")), "{error}");
}

#[test]
fn rows_dropped_before_a_job_began_do_not_cut_what_it_writes() {
    let rig = rig();
    let rows: Vec<String> = (0..200).map(|n| format!("r{n:03}")).collect();
    rig.write(&rows.iter().map(String::as_str).collect::<Vec<_>>());
    // Under load some job always runs, and none for long.
    let mut running = rig.tablet.begin_job();
    for row in rows.iter().step_by(2) {
        block_on(rig.tablet.drop_rows(RowRange::row(row.as_bytes()))).unwrap();
        assert_eq!(rig.tablet.jobs().drops.len(), 1, "those that no job needs any more are gone");
        running = rig.tablet.begin_job();
    }
    assert!(rig.tablet.version().ssts().count() > 64);
    rig.tablet.claim_by_shape().expect("the file is in too many pieces").run().unwrap();
    assert_eq!(rig.tablet.version().ssts().count(), 1);
    assert!(rig.tablet.claim_by_shape().is_none(), "once is enough");
    drop(running);
    assert_eq!((rig.cells("r000"), rig.cells("r001")), (0, 2));
}

#[test]
fn rows_dropped_while_a_job_ran_are_left_out_of_the_bytes_of_what_it_wrote() {
    let rig = rig();
    let rows: Vec<String> = (0..200).map(|n| format!("r{n:03}")).collect();
    rig.write(&rows.iter().map(String::as_str).collect::<Vec<_>>());
    let view = rig.tablet.hold();
    let file = view.version.ssts().next().unwrap().as_ref();
    let job = rig.tablet.begin_job();
    block_on(rig.tablet.drop_rows(RowRange::new("r000", "r190"))).unwrap();
    let opened = [Arc::clone(view.file(file.id).unwrap())];
    let cut = job.cut_by_drops(vec![file.clone()], &opened);
    assert_eq!(cut.len(), 1);
    assert!(cut[0].bytes < file.bytes / 4, "{} of {} bytes", cut[0].bytes, file.bytes);
}

#[test]
fn a_tiered_tablet_takes_writes_until_its_runs_are_due() {
    let rig = rig_with(EngineOptions {
        compaction: CompactionStyle::Tiered,
        l0_compaction_files: 1,
        l0_stop_files: 2,
        ..EngineOptions::default()
    });
    for _ in 1..TIERED_RUNS_MAX {
        rig.write(&["r"]);
    }
    assert!(rig.tablet.claim_by_shape().is_none(), "none is due");
    let pressure = rig.tablet.pressure();
    assert!(pressure.refused_share() < 0.01, "{pressure:?}");
}

#[test]
fn rows_that_wait_for_their_locks_hold_no_place_in_the_logs_queue() {
    let rig = rig();
    let lock = block_on(rig.tablet.lock_row(b"r"));
    let mut writing = pin!(rig.tablet.apply_rows(vec![batch("r", &["a"])]));
    assert!(writing.as_mut().now_or_never().is_none(), "the row is locked");
    let queued = rig.tablet.core.pipeline.queued_bytes();
    assert_eq!(queued, 0, "whoever has the lock may wait for the same place");
    drop(lock);
    block_on(writing).unwrap();
    assert_eq!(rig.cells("r"), 1);
}

#[test]
fn a_read_of_cached_files_is_done_when_it_is_first_asked_and_reads_nothing() {
    let io = Arc::new(TestIo::default());
    let memory = Arc::new(MemoryFiles::new());
    let files = Arc::new(FaultFiles::new(Arc::clone(&memory) as Arc<dyn Files>));
    // No read is done at once from memory, as those that bypass the page cache.
    files.before_read(Some(Arc::new(|_| {})));
    let clock = Arc::new(ManualClock::new(START_MICROS));
    let rig = rig_in(EngineOptions::default(), memory, env(files, io.clone(), clock));
    // Two files, with the row in both.
    for _ in 0..2 {
        rig.write(&["a", "b", "c"]);
    }
    assert_eq!(rig.tablet.version().level(0).len(), 2);
    let projection = Projection::all();
    let read = || rig.tablet.read_row(b"b", &projection, ReadView::Durable).now_or_never();
    read().unwrap().unwrap();
    let reads = || io.reads.load(Ordering::Relaxed);
    let before = reads();
    assert!(before > 0, "blocks come from the device first");
    let row = read().expect("nothing is waited for").unwrap().unwrap();
    assert_eq!((row.cells.len(), reads()), (2, before));
}

#[test]
fn a_batch_that_the_log_cannot_take_is_refused_and_harms_no_other() {
    let rig = rig();
    let put = |value: Bytes| {
        let (family, qualifier) = (FamilyId(1), Bytes::new());
        let mutations = vec![Mutation::Put { family, qualifier, timestamp: 0, value }];
        RowBatch { row: Bytes::from_static(b"r"), mutations }
    };
    let large = Bytes::from(vec![0; crate::log::record::RECORD_BYTES_MAX as usize]);
    let refused = block_on(rig.tablet.apply(put(large))).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
    block_on(rig.tablet.apply(put(Bytes::from_static(b"v")))).unwrap();
}

#[test]
fn a_flush_of_a_tablet_without_a_schema_says_so() {
    let rig = rig();
    let tablet = rig.engine.create_tablet(RowRange::all()).unwrap();
    let (family, qualifier, value) = (FamilyId(1), Bytes::new(), Bytes::new());
    let mutations = vec![Mutation::Put { family, qualifier, timestamp: 0, value }];
    block_on(tablet.apply(RowBatch { row: Bytes::from_static(b"r"), mutations })).unwrap();
    for background in [true, false] {
        rig.tablet.core.background.store(background, Ordering::Release);
        let flushed = tablet.flush().now_or_never().expect("nobody would end it");
        assert!(flushed.unwrap_err().message().contains("schema"), "{background}");
    }
}

#[test]
fn a_cell_that_no_file_could_take_is_refused_before_it_is_written() {
    let rig = rig();
    let put = |qualifier_len: usize, value_len: usize| Mutation::Put {
        family: FamilyId(1),
        qualifier: vec![b'q'; qualifier_len].into(),
        timestamp: 1000,
        value: vec![0; value_len].into(),
    };
    let encode = |mutations| {
        let batch = RowBatch { row: Bytes::from_static(b"r"), mutations };
        rig.tablet.encode(&batch, Source::User).map(|_| ()).map_err(|error| error.kind())
    };
    let most = BLOCK_BYTES_MAX - 2048;
    assert_eq!(encode(vec![put(1, most)]), Ok(()));
    assert_eq!(encode(vec![put(1, most / 2), put(2, most)]), Ok(()));
    assert_eq!(encode(vec![put(1, 1), put(1, most + 2048)]), Err(ErrorKind::InvalidArgument));
    // A file may have the key twice.
    assert_eq!(encode(vec![put(most / 2, 1)]), Ok(()));
    assert_eq!(encode(vec![put(most / 2 + 1024, 1)]), Err(ErrorKind::InvalidArgument));
    let batch =
        RowBatch { row: Bytes::from_static(b"r"), mutations: vec![put(1, BLOCK_BYTES_MAX)] };
    let error = block_on(rig.tablet.apply(batch)).unwrap_err();
    assert!(error.to_string().contains(&BLOCK_BYTES_MAX.to_string()), "{error}");
    block_on(rig.tablet.flush()).unwrap();
    assert_eq!((rig.ssts(), rig.engine.health()), (0, Health::Serving));
}
