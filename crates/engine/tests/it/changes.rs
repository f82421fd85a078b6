//! The history of tablets with a change stream: every committed batch once, in order, from wherever a reader stands:
//! in memory, in the log, in change files; after restarts, crashes and failed operations.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::executor::block_on;
use proptest::prelude::*;

use tepui_engine::ErrorKind;
use tepui_engine::cell::{Mutation, RowBatch, RowRange, Seq, TIMESTAMP_OF_WRITE};
use tepui_engine::changes::{CHANGE_TAIL_BYTES_MAX, Change, Source};
use tepui_engine::db::{Engine, EngineOptions};
use tepui_engine::io::{
    CrashMode, Fault, FaultFiles, FaultOp, Files, ManualClock, MemoryFiles, SeededRng,
};
use tepui_engine::offline::{self, inspect};
use tepui_engine::read::Projection;
use tepui_engine::tablet::{ReadView, Tablet, TabletId};

use crate::harness::{START_MICROS, env, plain_schema, put, tiny_options};

pub(crate) const DAY: Duration = Duration::from_hours(24);

/// A segment takes a few writes.
pub(crate) fn options() -> EngineOptions {
    EngineOptions { log_segment_bytes: 2_000, ..tiny_options() }
}

/// Two tablets, of which the first keeps its changes.
pub(crate) struct Kept {
    pub(crate) engine: Arc<Engine>,
    pub(crate) tablet: Arc<Tablet>,
    pub(crate) other: Arc<Tablet>,
    pub(crate) clock: Arc<ManualClock>,
}

impl Kept {
    pub(crate) fn open(
        files: Arc<dyn Files>,
        options: EngineOptions,
    ) -> tepui_engine::Result<Self> {
        Self::open_at(files, options, Arc::new(ManualClock::new(START_MICROS)))
    }

    pub(crate) fn open_at(
        files: Arc<dyn Files>,
        options: EngineOptions,
        clock: Arc<ManualClock>,
    ) -> tepui_engine::Result<Self> {
        let env = env(files, Arc::clone(&clock), 1);
        let engine = Engine::open(env, Path::new("/data"), options)?;
        let mut tablets = engine.tablets();
        while tablets.len() < 2 {
            tablets.push(engine.create_tablet(RowRange::all())?);
        }
        for tablet in &tablets {
            tablet.set_schema(Arc::new(plain_schema()));
        }
        tablets[0].keep_changes(Some(DAY));
        engine.start()?;
        let (tablet, other) = (Arc::clone(&tablets[0]), Arc::clone(&tablets[1]));
        Ok(Self { engine, tablet, other, clock })
    }

    /// The changes after a position, in portions of about so many bytes.
    pub(crate) fn read(
        &self,
        position: Seq,
        bytes_max: usize,
    ) -> tepui_engine::Result<Vec<Change>> {
        read(&self.tablet, position, bytes_max)
    }
}

fn read(
    tablet: &Arc<Tablet>,
    position: Seq,
    bytes_max: usize,
) -> tepui_engine::Result<Vec<Change>> {
    let mut reader = tablet.changes_after(position);
    let mut all = Vec::new();
    loop {
        let changes = match reader.read(bytes_max)? {
            Some(changes) => changes,
            None => reader.read_disk(bytes_max)?,
        };
        if let Some(last) = changes.last() {
            assert!(reader.position() >= last.last_seq);
        } else if reader.ready().now_or_never().is_none() {
            return Ok(all);
        }
        all.extend(changes);
    }
}

pub(crate) fn batch(n: u64, bytes: usize) -> RowBatch {
    let mutations = vec![put(1, "q", 1000, &"v".repeat(bytes)), Mutation::DeleteRow];
    RowBatch { row: Bytes::from(format!("row-{n:05}")), mutations }
}

/// Applies a batch and says what a reader is to get for it.
pub(crate) fn apply(tablet: &Tablet, batch: RowBatch) -> tepui_engine::Result<Change> {
    let last_seq = block_on(tablet.apply(batch.clone()))?;
    let first_seq = last_seq + 1 - batch.mutations.len() as u64;
    Ok(Change { first_seq, last_seq, source: Source::User, batch })
}

#[derive(Debug, Clone)]
enum Op {
    Apply(u64, usize),
    ApplyOther(usize),
    /// More than the tail keeps.
    Overrun,
    Flush,
    FlushOther,
    Background,
    Reopen,
    Crash(u64),
    Read {
        from: prop::sample::Index,
        bytes_max: usize,
    },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        20 => (0..50u64, 0..400usize).prop_map(|(row, bytes)| Op::Apply(row, bytes)),
        10 => (0..2_000usize).prop_map(Op::ApplyOther),
        1 => Just(Op::Overrun),
        3 => Just(Op::Flush),
        3 => Just(Op::FlushOther),
        3 => Just(Op::Background),
        2 => Just(Op::Reopen),
        3 => any::<u64>().prop_map(Op::Crash),
        6 => (any::<prop::sample::Index>(), 1..5_000usize)
            .prop_map(|(from, bytes_max)| Op::Read { from, bytes_max }),
    ]
}

fn run(ops: &[Op]) {
    let mut files = MemoryFiles::new();
    let open = |files: &MemoryFiles| Kept::open(Arc::new(files.clone()), options()).unwrap();
    let mut kept = open(&files);
    let begun = kept.tablet.keep_changes(Some(DAY));
    let mut committed: Vec<Change> = Vec::new();
    for op in ops {
        match op {
            Op::Apply(row, bytes) => {
                committed.push(apply(&kept.tablet, batch(*row, *bytes)).unwrap());
            }
            Op::ApplyOther(bytes) => drop(apply(&kept.other, batch(1, *bytes)).unwrap()),
            Op::Overrun => {
                for n in 0..9 {
                    let bytes = CHANGE_TAIL_BYTES_MAX as usize / 8;
                    committed.push(apply(&kept.tablet, batch(n, bytes)).unwrap());
                }
            }
            Op::Flush => block_on(kept.tablet.flush()).unwrap(),
            Op::FlushOther => block_on(kept.other.flush()).unwrap(),
            Op::Background => kept.engine.run_background().unwrap(),
            Op::Reopen => {
                kept.engine.close().unwrap();
                kept = open(&files);
            }
            Op::Crash(seed) => {
                let mode = if seed % 2 == 0 { CrashMode::Torn } else { CrashMode::Strict };
                files = files.crashed_copy(mode, &SeededRng::new(*seed));
                kept = open(&files);
            }
            Op::Read { from, bytes_max } => {
                let at = from.index(committed.len() + 1);
                let position = at.checked_sub(1).map_or(begun, |at| committed[at].last_seq);
                assert_eq!(kept.read(position, *bytes_max).unwrap(), committed[at..]);
            }
        }
    }
    assert_eq!(kept.read(begun, 1 << 20).unwrap(), committed);
    assert_eq!(kept.other.changes_after(begun).read(1).unwrap_err().kind(), ErrorKind::Expired);
}

#[test]
fn the_time_of_a_write_is_the_same_in_memory_in_the_change_stream_and_after_a_crash() {
    let files = MemoryFiles::new();
    let kept = Kept::open(Arc::new(files.clone()), options()).unwrap();
    let begun = kept.tablet.keep_changes(Some(DAY));
    let lock = block_on(kept.tablet.lock_row(b"r"));
    let asked = ["a", "b"].map(|column| put(1, column, TIMESTAMP_OF_WRITE, "v"));
    let batch = RowBatch { row: Bytes::from_static(b"r"), mutations: asked.to_vec() };
    let mut write = Box::pin(kept.tablet.apply(batch));
    assert!((&mut write).now_or_never().is_none(), "it waits for the row");
    kept.clock.advance_micros(7_000);
    drop(lock);
    block_on(write).unwrap();
    let written = ["a", "b"].map(|column| put(1, column, START_MICROS + 7_000, "v")).to_vec();
    let cells = |kept: &Kept| {
        let row = block_on(kept.tablet.read_row(b"r", &Projection::all(), ReadView::Durable));
        let cells = row.unwrap().unwrap().cells.into_iter();
        cells.map(|cell| cell.timestamp).collect::<Vec<_>>()
    };
    let crashed = files.crashed_copy(CrashMode::Strict, &SeededRng::new(1));
    let again = Kept::open(Arc::new(crashed), options()).unwrap();
    for kept in [&kept, &again] {
        assert_eq!(cells(kept), [START_MICROS + 7_000; 2]);
        assert_eq!(kept.read(begun, 1 << 20).unwrap()[0].batch.mutations, written);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 500, ..ProptestConfig::default() })]

    #[test]
    fn every_committed_change_is_read_once_and_in_order_from_anywhere(ops in prop::collection::vec(op(), 1..100)) {
        run(&ops);
    }
}

#[test]
fn changes_move_from_the_log_into_files_that_hold_nothing_else() {
    let files = MemoryFiles::new();
    let kept = Kept::open(Arc::new(files.clone()), options()).unwrap();
    let begun = kept.tablet.keep_changes(Some(DAY));
    let mut committed = Vec::new();
    for n in 0..100 {
        committed.push(apply(&kept.tablet, batch(n, 100)).unwrap());
        apply(&kept.other, batch(n, 1_000)).unwrap();
    }
    let figures = kept.engine.change_figures();
    assert!(figures.files == 0 && figures.tail_bytes > 0);
    block_on(kept.tablet.flush()).unwrap();
    block_on(kept.other.flush()).unwrap();
    kept.engine.run_background().unwrap();
    let figures = kept.engine.change_figures();
    assert!(figures.files > 10, "{figures:?}");
    assert!(figures.file_bytes < 40_000, "the other tablet's values are not in them: {figures:?}");
    assert_eq!(kept.engine.log_size().0, 1);
    kept.engine.close().unwrap();
    drop(kept);
    let kept = Kept::open(Arc::new(files), options()).unwrap();
    let before = kept.read(begun, 300).unwrap();
    assert_eq!(before, committed);
    assert!(kept.engine.change_figures().files >= figures.files);
}

#[test]
fn whichever_operation_fails_every_acknowledged_change_is_there_after_the_next_start() {
    let ops = [
        FaultOp::Create,
        FaultOp::Append,
        FaultOp::Sync,
        FaultOp::SyncDir,
        FaultOp::Rename,
        FaultOp::Remove,
    ];
    let history = |kept: &Kept| {
        let mut acknowledged = Vec::new();
        for n in 0..24 {
            let written = apply(&kept.tablet, batch(n, 100));
            drop(apply(&kept.other, batch(n, 300)));
            let is_over = written.is_err();
            acknowledged.extend(written);
            if n % 8 == 7 {
                drop(block_on(kept.tablet.flush()));
                drop(block_on(kept.other.flush()));
                drop(kept.engine.run_background());
            }
            if is_over {
                break;
            }
        }
        acknowledged
    };
    for op in ops {
        let mut nth = 1;
        loop {
            let disk = MemoryFiles::new();
            let faults = FaultFiles::new(Arc::new(disk.clone()));
            let kept = Kept::open(Arc::new(faults.clone()), options()).unwrap();
            let begun = kept.tablet.keep_changes(Some(DAY));
            let before = faults.count(op);
            faults.inject(Fault::new(op).nth(nth));
            let acknowledged = history(&kept);
            let was_reached = faults.count(op) - before >= nth;
            let crashed = disk.crashed_copy(CrashMode::Strict, &SeededRng::new(nth));
            faults.heal();
            let _ = kept.engine.close();
            drop(kept);
            for files in [crashed, disk] {
                let kept = Kept::open(Arc::new(files), options()).unwrap();
                kept.engine.run_background().unwrap();
                let mut found = kept.read(begun, 500).unwrap();
                // A write that failed may be there all the same: its outcome was unknown.
                found.truncate(acknowledged.len());
                assert_eq!(found, acknowledged, "{op:?} {nth}");
            }
            if !was_reached {
                break;
            }
            nth += 1;
        }
        assert!(nth > 3, "{op:?}");
    }
}

#[test]
fn a_reader_waits_for_the_next_change_and_sees_it_only_when_it_is_durable() {
    let disk = MemoryFiles::new();
    let faults = FaultFiles::new(Arc::new(disk));
    let kept = Kept::open(Arc::new(faults.clone()), options()).unwrap();
    let begun = kept.tablet.keep_changes(Some(DAY));
    let mut reader = kept.tablet.changes_after(begun);
    assert_eq!(reader.read(1 << 20).unwrap(), Some(Vec::new()));
    {
        let mut ready = std::pin::pin!(reader.ready());
        assert!(ready.as_mut().now_or_never().is_none());
        apply(&kept.other, batch(1, 1)).unwrap();
        assert!(ready.as_mut().now_or_never().is_none(), "another tablet's changes wake nobody");
        apply(&kept.tablet, batch(1, 1)).unwrap();
        ready.as_mut().now_or_never().expect("a change is there").unwrap();
    }
    assert_eq!(reader.read(1 << 20).unwrap().unwrap().len(), 1);
    faults.inject(Fault::new(FaultOp::Sync).sticky());
    apply(&kept.tablet, batch(2, 1)).unwrap_err();
    assert_eq!(reader.read(1 << 20).unwrap(), Some(Vec::new()), "it may not survive a crash");
    block_on(reader.ready()).unwrap_err();
}

#[test]
fn a_reader_is_told_when_the_history_ends() {
    let kept = Kept::open(Arc::new(MemoryFiles::new()), options()).unwrap();
    let begun = kept.tablet.keep_changes(Some(DAY));
    let reader = kept.tablet.changes_after(begun);
    {
        let mut ready = std::pin::pin!(reader.ready());
        assert!(ready.as_mut().now_or_never().is_none());
        kept.tablet.keep_changes(None);
        let error = ready.as_mut().now_or_never().expect("it ends").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Expired);
    }
    // One that stands before what is in memory, and waits for what the log is to have.
    let begun = kept.tablet.keep_changes(Some(DAY));
    let reader = kept.tablet.changes_after(begun - 1);
    {
        let mut ready = std::pin::pin!(reader.ready());
        assert!(ready.as_mut().now_or_never().is_none());
        kept.tablet.keep_changes(None);
        let error = ready.as_mut().now_or_never().expect("it ends").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Expired);
    }
    let begun = kept.tablet.keep_changes(Some(DAY));
    let reader = kept.tablet.changes_after(begun);
    kept.engine.drop_tablet(kept.tablet.id()).unwrap();
    assert_eq!(block_on(reader.ready()).unwrap_err().kind(), ErrorKind::NotFound);
}

/// Writes, and lets the segments become files.
pub(crate) fn fill(kept: &Kept, count: u64) -> Vec<Change> {
    let changes = (0..count).map(|n| apply(&kept.tablet, batch(n, 100)).unwrap()).collect();
    block_on(kept.tablet.flush()).unwrap();
    kept.engine.run_background().unwrap();
    changes
}

/// Fills change files and closes; the position before the changes, and these.
fn filled(files: &MemoryFiles) -> (Seq, Vec<Change>) {
    let kept = Kept::open(Arc::new(files.clone()), options()).unwrap();
    let begun = kept.tablet.keep_changes(Some(DAY));
    let changes = fill(&kept, 100);
    kept.engine.close().unwrap();
    (begun, changes)
}

/// The names of the change files in a directory.
pub(crate) fn change_files(files: &MemoryFiles) -> Vec<String> {
    let entries = files.list(Path::new("/data/changes")).unwrap().into_iter();
    entries.map(|entry| entry.name).filter(|name| name.strip_suffix(".chg").is_some()).collect()
}

#[test]
fn files_go_when_their_time_is_over_and_old_positions_are_refused() {
    let files = MemoryFiles::new();
    let kept = Kept::open(Arc::new(files.clone()), options()).unwrap();
    let begun = kept.tablet.keep_changes(Some(DAY));
    fill(&kept, 60);
    assert!(kept.engine.change_figures().files > 3);
    kept.clock.advance_micros(86_000 * 1_000_000);
    let late = fill(&kept, 60);
    assert!(kept.read(begun, 100).is_ok(), "the day is not over");
    kept.clock.advance_micros(1_100 * 1_000_000);
    kept.engine.run_background().unwrap();
    assert_eq!(kept.read(begun, 100).unwrap_err().kind(), ErrorKind::Expired);
    assert_eq!(kept.read(late[0].last_seq, 100).unwrap(), late[1..]);
    let figures = kept.engine.change_figures();
    assert_eq!(figures.dropped_bytes, 0);
    // Nobody wants them any more.
    kept.tablet.keep_changes(None);
    kept.clock.advance_micros(61 * 1_000_000);
    kept.engine.run_background().unwrap();
    assert_eq!(kept.engine.change_figures().files, 0);
}

#[test]
fn a_read_only_engine_keeps_the_changes_whose_time_is_over() {
    let disk = MemoryFiles::new();
    let faults = FaultFiles::new(Arc::new(disk.clone()));
    let kept = Kept::open(Arc::new(faults.clone()), options()).unwrap();
    let begun = kept.tablet.keep_changes(Some(DAY));
    fill(&kept, 60);
    let files = change_files(&disk);
    assert!(files.len() > 3);
    faults.inject(Fault::new(FaultOp::Sync).on_path(".log"));
    apply(&kept.tablet, batch(60, 100)).unwrap_err();
    faults.heal();
    kept.clock.advance_micros(2 * 86_400 * 1_000_000);
    drop(kept.engine.run_background());
    assert_eq!(change_files(&disk), files);
    // Whoever had their time be over by mistake has them again.
    drop(kept);
    let kept = Kept::open(Arc::new(disk), options()).unwrap();
    assert!(kept.read(begun, 100).is_ok());
}

#[test]
fn too_many_bytes_of_history_lose_the_oldest_and_no_reader_misses_them_in_silence() {
    let files = MemoryFiles::new();
    let options = EngineOptions { change_log_bytes_max: Some(4_000), ..options() };
    let kept = Kept::open(Arc::new(files.clone()), options.clone()).unwrap();
    let begun = kept.tablet.keep_changes(Some(DAY));
    let changes = fill(&kept, 400);
    let figures = kept.engine.change_figures();
    assert!(figures.file_bytes <= 4_000 && figures.dropped_bytes > 0, "{figures:?}");
    kept.engine.close().unwrap();
    drop(kept);
    let crashed = files.crashed_copy(CrashMode::Strict, &SeededRng::new(3));
    for files in [files, crashed] {
        let kept = Kept::open(Arc::new(files), options.clone()).unwrap();
        assert_eq!(kept.read(begun, 100).unwrap_err().kind(), ErrorKind::Expired);
        assert_eq!(kept.read(changes[390].last_seq, 100).unwrap(), changes[391..]);
    }
}

#[test]
fn a_fence_is_durable_and_advances_with_the_clock() {
    let files = MemoryFiles::new();
    let kept = Kept::open(Arc::new(files.clone()), options()).unwrap();
    let begun = kept.tablet.keep_changes(Some(DAY));
    kept.clock.advance_micros(5_000_000);
    let fence = block_on(kept.tablet.fence_changes()).unwrap();
    assert!(fence > begun);
    assert_eq!(block_on(kept.tablet.fence_changes()).unwrap(), fence, "one is enough for a second");
    assert_eq!(kept.read(begun, 100).unwrap(), Vec::new());
    // The clock has gone back when the machine comes up again: later changes come after the fence all the same.
    let crashed = files.crashed_copy(CrashMode::Strict, &SeededRng::new(3));
    let kept = Kept::open(Arc::new(crashed), options()).unwrap();
    let change = apply(&kept.tablet, batch(1, 1)).unwrap();
    assert!(change.first_seq > fence);
    assert_eq!(kept.read(fence, 100).unwrap(), [change]);
}

#[test]
fn a_reader_that_stops_at_its_fence_keeps_no_other_reader_waiting() {
    let kept = Kept::open(Arc::new(MemoryFiles::new()), options()).unwrap();
    let begun = kept.tablet.keep_changes(Some(DAY));
    for round in 1..=20 {
        kept.clock.advance_micros(5_000_000);
        // Its client takes nothing more: it is looked at once, and not again.
        let mut stopped = Box::pin(kept.tablet.fence_changes());
        let first = (&mut stopped).now_or_never();
        kept.clock.advance_micros(5_000_000);
        assert!(block_on(kept.tablet.fence_changes()).unwrap() > begun, "round {round}");
        drop((first, stopped));
    }
}

#[test]
fn tablets_share_the_history_and_each_reads_its_own() {
    let kept = Kept::open(Arc::new(MemoryFiles::new()), options()).unwrap();
    let begun = kept.tablet.keep_changes(Some(DAY)).max(kept.other.keep_changes(Some(DAY)));
    let tablets = [&kept.tablet, &kept.other];
    let mut committed = [Vec::new(), Vec::new()];
    for n in 0..200 {
        let which = (n % 3 % 2) as usize;
        committed[which].push(apply(tablets[which], batch(n, 50)).unwrap());
        if n == 100 {
            // The second has its segments held by what the first has not flushed.
            block_on(kept.other.flush()).unwrap();
            kept.engine.run_background().unwrap();
        }
    }
    for tablet in tablets {
        block_on(tablet.flush()).unwrap();
    }
    kept.engine.run_background().unwrap();
    assert!(kept.engine.change_figures().files > 3);
    for (tablet, committed) in tablets.into_iter().zip(committed) {
        assert_eq!(read(tablet, begun, 777).unwrap(), committed);
    }
    assert!(kept.engine.tablet(TabletId(1)).is_none());
}

#[test]
fn a_damaged_change_file_is_found_and_after_its_repair_no_reader_misses_it_in_silence() {
    let files = MemoryFiles::new();
    let (begun, changes) = filled(&files);
    let dir = Path::new("/data/changes");
    let names = change_files(&files);
    let env = || env(Arc::new(files.clone()), Arc::new(ManualClock::new(START_MICROS)), 9);
    let check = || offline::check(&env(), Path::new("/data"), None, &mut |_, _| {}).unwrap();
    let report = check();
    assert!(report.is_whole() && report.change_files == names.len() as u64, "{report}");
    let mut rows = Vec::new();
    for name in &names {
        let mut on = |line| {
            if let inspect::Line::Batch { row, .. } = line {
                rows.push(row);
            }
            Ok(())
        };
        assert!(inspect::log(&files, &dir.join(name), &mut on).unwrap());
    }
    assert_eq!(rows.first().unwrap(), "row-00000");
    let second = dir.join(&names[1]);
    let mut bytes = files.contents(&second).unwrap();
    bytes[60] ^= 4;
    files.put_contents(&second, bytes);
    let report = check();
    assert_eq!(report.damage.len(), 1, "{report}");
    assert_eq!(report.damage[0].file, second);
    assert!(!inspect::log(&files, &second, &mut |_| Ok(())).unwrap());
    let kept = Kept::open(Arc::new(files.clone()), options()).unwrap();
    let error = kept.read(begun, 1 << 20).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption);
    assert!(error.message().contains(&names[1]), "{error}");
    kept.engine.close().unwrap();
    drop(kept);
    let options_of_repair = offline::RepairOptions::default();
    let report =
        offline::repair(&env(), Path::new("/data"), None, options_of_repair, &mut |_, _| {})
            .unwrap();
    assert!(
        report.opens() && report.lost.iter().any(|lost| lost.contains(&names[1])),
        "{report:?}"
    );
    let kept = Kept::open(Arc::new(files.clone()), options()).unwrap();
    assert_eq!(kept.read(begun, 1 << 20).unwrap_err().kind(), ErrorKind::Expired);
    assert_eq!(kept.read(changes[90].last_seq, 1 << 20).unwrap(), changes[91..]);
}

#[test]
fn a_missing_file_of_changes_is_found_and_after_its_repair_no_reader_misses_it_in_silence() {
    let files = MemoryFiles::new();
    let kept = Kept::open(Arc::new(files.clone()), options()).unwrap();
    let begun = kept.tablet.keep_changes(Some(DAY));
    fill(&kept, 100);
    kept.clock.advance_micros(2 * DAY.as_micros() as u64);
    kept.engine.run_background().unwrap();
    let (clock, late) = (Arc::clone(&kept.clock), fill(&kept, 100));
    kept.engine.close().unwrap();
    drop(kept);
    let dir = Path::new("/data/changes");
    let whole = || Arc::new(files.crashed_copy(CrashMode::Strict, &SeededRng::new(1)));
    let entries = files.list(dir).unwrap().into_iter().map(|entry| entry.name);
    let names: Vec<_> = entries.filter(|name| !name.contains("LIST")).collect();
    let horizons = names.iter().filter(|name| name.strip_suffix(".horizon").is_some()).count();
    assert!(horizons == 1 && names.len() > 5, "{names:?}");
    for name in names {
        let files = whole();
        let env = || env(Arc::clone(&files) as Arc<dyn Files>, Arc::clone(&clock), 9);
        let check = || offline::check(&env(), Path::new("/data"), None, &mut |_, _| {}).unwrap();
        assert!(check().is_whole());
        let path = dir.join(&name);
        files.remove(&path).unwrap();
        let report = check();
        assert!(report.damage.len() == 1 && report.damage[0].file == path, "{name}: {report}");
        let open = || Kept::open_at(Arc::clone(&files) as _, options(), Arc::clone(&clock));
        let left = || -> Vec<_> {
            files.list(dir).unwrap().into_iter().map(|entry| (entry.name, entry.len)).collect()
        };
        let before = left();
        let error = open().err().expect("changes that were acknowledged are gone").to_string();
        assert!(error.contains(&name) && error.contains("tepui repair"), "{error}");
        assert_eq!(left(), before, "a start that is refused changes nothing");
        let repair = |dry_run| {
            let options = offline::RepairOptions { dry_run, ..Default::default() };
            offline::repair(&env(), Path::new("/data"), None, options, &mut |_, _| {}).unwrap()
        };
        let (dry, report) = (repair(true), repair(false));
        assert!(report.opens() && dry.lost == report.lost, "{name}: {report:?}");
        let is_horizon = name.strip_suffix(".horizon").is_some();
        assert_eq!(report.lost.iter().any(|lost| lost.contains(&name)), !is_horizon, "{report:?}");
        // The last sequence in a file of changes.
        let last = name.strip_suffix(".chg").and_then(|name| name.split('-').nth(2));
        let last = last.map(|last| u64::from_str_radix(last, 16).unwrap());
        for _ in 0..2 {
            let kept = open().unwrap();
            let expired = |position| kept.read(position, 1 << 20).unwrap_err().kind();
            assert_eq!(expired(begun), ErrorKind::Expired, "{name}");
            match last {
                None => assert_eq!(kept.read(late[0].last_seq, 1 << 20).unwrap(), late[1..]),
                Some(last) => assert_eq!(expired(last - 1), ErrorKind::Expired, "{name}"),
            }
            if let Some(last) = last.filter(|last| *last > late[0].last_seq) {
                let behind = late.partition_point(|change| change.last_seq <= last);
                assert_eq!(kept.read(last, 1 << 20).unwrap(), late[behind..], "{name}");
            }
            kept.engine.close().unwrap();
            drop(kept);
            assert!(check().is_whole());
        }
    }
}

#[test]
fn a_directory_without_a_list_of_its_change_files_starts_and_gets_one() {
    let files = MemoryFiles::new();
    let (begun, changes) = filled(&files);
    let dir = Path::new("/data/changes");
    let names = change_files(&files);
    // A version that keeps no list takes it for a file that was never completed. What it does with the others is its own.
    files.remove(&dir.join("LIST.chg.new")).unwrap();
    files.remove(&dir.join(&names[0])).unwrap();
    let kept = Kept::open(Arc::new(files.clone()), options()).unwrap();
    assert!(kept.read(begun, 1 << 20).unwrap().len() < changes.len());
    kept.engine.close().unwrap();
    drop(kept);
    files.remove(&dir.join(&names[1])).unwrap();
    assert!(Kept::open(Arc::new(files), options()).is_err());
}

#[test]
fn a_damaged_list_of_change_files_is_set_aside_and_the_next_start_writes_it() {
    let files = MemoryFiles::new();
    let (begun, changes) = filled(&files);
    let list = Path::new("/data/changes/LIST.chg.new");
    let mut names = Vec::new();
    let mut on = |line| {
        if let inspect::Line::Changes { names: listed, .. } = line {
            names = listed;
        }
        Ok(())
    };
    assert!(inspect::log(&files, list, &mut on).unwrap());
    assert_eq!(names, change_files(&files));
    let mut bytes = files.contents(list).unwrap();
    bytes[60] ^= 4;
    files.put_contents(list, bytes);
    let env = || env(Arc::new(files.clone()), Arc::new(ManualClock::new(START_MICROS)), 9);
    let check = || offline::check(&env(), Path::new("/data"), None, &mut |_, _| {}).unwrap();
    assert_eq!(check().damage[0].file, list);
    assert!(Kept::open(Arc::new(files.clone()), options()).is_err());
    let options_of_repair = offline::RepairOptions::default();
    let report =
        offline::repair(&env(), Path::new("/data"), None, options_of_repair, &mut |_, _| {});
    assert!(report.unwrap().opens() && check().is_whole());
    let kept = Kept::open(Arc::new(files.clone()), options()).unwrap();
    assert_eq!(kept.read(begun, 1 << 20).unwrap(), changes);
    assert!(files.contents(list).is_ok());
}

#[test]
fn after_a_repair_of_the_log_no_reader_misses_in_silence_what_it_lost() {
    for (damaged, is_last) in [(70, false), (99, true)] {
        let files = MemoryFiles::new();
        let kept = Kept::open(Arc::new(files.clone()), options()).unwrap();
        let begun = kept.tablet.keep_changes(Some(DAY));
        let changes: Vec<Change> =
            (0..100).map(|n| apply(&kept.tablet, batch(n, 50)).unwrap()).collect();
        // As after SIGKILL.
        drop(kept);
        let log = Path::new("/data/log");
        let row = changes[damaged].batch.row.clone();
        let mut found = false;
        for entry in files.list(log).unwrap() {
            let path = log.join(entry.name);
            let mut bytes = files.contents(&path).unwrap();
            if let Some(at) = bytes.windows(row.len()).position(|bytes| bytes == row) {
                found = true;
                bytes[at] ^= 4;
                if is_last {
                    bytes.truncate(at);
                }
                files.put_contents(&path, bytes);
            }
        }
        assert!(found);
        if is_last {
            // Damage, for the log to be repaired at all.
            let first = files.list(log).unwrap().remove(0).name;
            let mut bytes = files.contents(&log.join(&first)).unwrap();
            bytes[60] ^= 4;
            files.put_contents(&log.join(&first), bytes);
        }
        let env = || env(Arc::new(files.clone()), Arc::new(ManualClock::new(START_MICROS)), 9);
        let options_of_repair = offline::RepairOptions::default();
        let report =
            offline::repair(&env(), Path::new("/data"), None, options_of_repair, &mut |_, _| {})
                .unwrap();
        assert!(report.opens() && !report.lost.is_empty(), "{report:#?}");

        let kept = Kept::open(Arc::new(files.clone()), options()).unwrap();
        let expired = |position| {
            assert_eq!(kept.read(position, 1 << 20).unwrap_err().kind(), ErrorKind::Expired);
        };
        expired(begun);
        expired(changes[damaged - 1].last_seq);
        if is_last {
            expired(changes[damaged].last_seq);
        } else {
            let rest = kept.read(changes[damaged].last_seq, 1 << 20).unwrap();
            assert_eq!(rest, changes[damaged + 1..]);
        }
        // What is written from now on is read by those who begin anew.
        let anew = kept.tablet.keep_changes(Some(DAY));
        let change = apply(&kept.tablet, batch(500, 50)).unwrap();
        assert_eq!(kept.read(anew, 1 << 20).unwrap(), [change]);
    }
}

#[test]
fn a_file_that_goes_while_somebody_looks_for_it_is_looked_for_again() {
    let disk = MemoryFiles::new();
    let kept = Kept::open(Arc::new(disk.clone()), options()).unwrap();
    let begun = kept.tablet.keep_changes(Some(DAY));
    let changes = fill(&kept, 60);
    kept.engine.close().unwrap();
    drop(kept);
    let faults = FaultFiles::new(Arc::new(disk));
    let kept = Kept::open(Arc::new(faults.clone()), options()).unwrap();
    // Opened to learn whose changes are in it, when it was just removed.
    faults.inject(Fault::new(FaultOp::Open).on_path(".chg").kind(ErrorKind::NotFound));
    assert_eq!(kept.read(begun, 1 << 20).unwrap(), changes);
}

#[test]
fn a_damaged_change_file_goes_in_its_time_and_does_not_keep_those_behind_it() {
    let files = MemoryFiles::new();
    let kept = Kept::open(Arc::new(files.clone()), options()).unwrap();
    let begun = kept.tablet.keep_changes(Some(DAY));
    fill(&kept, 100);
    kept.engine.close().unwrap();
    drop(kept);
    let dir = Path::new("/data/changes");
    let names = change_files(&files);
    let first = dir.join(&names[0]);
    let mut bytes = files.contents(&first).unwrap();
    // Of its index: nobody can tell whose changes are in it.
    *bytes.last_mut().unwrap() ^= 4;
    files.put_contents(&first, bytes);

    let kept = Kept::open(Arc::new(files.clone()), options()).unwrap();
    kept.engine.run_background().unwrap();
    let figures = kept.engine.change_figures();
    assert!(figures.files >= names.len() as u64, "the day is not over: {figures:?}");
    kept.clock.advance_micros(90_000 * 1_000_000);
    kept.engine.run_background().unwrap();
    assert_eq!(kept.engine.change_figures().files, 0);
    assert_eq!(kept.read(begun, 100).unwrap_err().kind(), ErrorKind::Expired);
}

#[test]
fn a_damaged_change_file_does_not_keep_the_others_from_their_limit() {
    let files = MemoryFiles::new();
    let kept = Kept::open(Arc::new(files.clone()), options()).unwrap();
    let begun = kept.tablet.keep_changes(Some(DAY));
    let changes = fill(&kept, 400);
    kept.engine.close().unwrap();
    drop(kept);
    let dir = Path::new("/data/changes");
    let first = dir.join(&files.list(dir).unwrap()[0].name);
    files.put_contents(&first, b"short".to_vec());
    let options = EngineOptions { change_log_bytes_max: Some(4_000), ..options() };
    let kept = Kept::open(Arc::new(files), options).unwrap();
    kept.engine.run_background().unwrap();
    let figures = kept.engine.change_figures();
    assert!(figures.file_bytes <= 4_000 && figures.files > 0, "{figures:?}");
    assert_eq!(kept.read(begun, 100).unwrap_err().kind(), ErrorKind::Expired);
    assert_eq!(kept.read(changes[390].last_seq, 100).unwrap(), changes[391..]);
}

#[test]
fn a_segment_whose_changes_cannot_be_kept_stays_and_is_not_tried_again_at_once() {
    let disk = MemoryFiles::new();
    let faults = FaultFiles::new(Arc::new(disk.clone()));
    let kept = Kept::open(Arc::new(faults.clone()), options()).unwrap();
    let begun = kept.tablet.keep_changes(Some(DAY));
    faults.inject(Fault::new(FaultOp::Sync).on_path(".chg").sticky());
    let changes = fill(&kept, 60);
    assert!(kept.engine.log_size().0 > 3);
    let opened = faults.count(FaultOp::Open);
    for _ in 0..5 {
        kept.engine.run_background().unwrap();
    }
    assert_eq!(faults.count(FaultOp::Open), opened, "no segment was read");
    faults.heal();
    kept.clock.advance_micros(31 * 1_000_000);
    kept.engine.run_background().unwrap();
    assert_eq!(kept.engine.log_size().0, 1);
    kept.engine.close().unwrap();
    drop(kept);
    let kept = Kept::open(Arc::new(disk), options()).unwrap();
    assert_eq!(kept.read(begun, 1 << 20).unwrap(), changes);
}

#[test]
fn a_segment_that_cannot_be_read_stays_and_the_others_become_files() {
    let faults = FaultFiles::new(Arc::new(MemoryFiles::new()));
    let kept = Kept::open(Arc::new(faults.clone()), options()).unwrap();
    let begun = kept.tablet.keep_changes(Some(DAY));
    faults.inject(Fault::new(FaultOp::Read).on_path("0000000000000002.log").sticky());
    let changes = fill(&kept, 60);
    assert_eq!(kept.engine.log_size().0, 2, "it, and the one that is being written");
    let opened = faults.count(FaultOp::Open);
    for _ in 0..5 {
        kept.engine.run_background().unwrap();
    }
    assert_eq!(faults.count(FaultOp::Open), opened, "it is not tried again at once");

    let mut reader = kept.tablet.changes_after(begun);
    let mut found = Vec::new();
    let error = loop {
        match reader.read_disk(1) {
            Ok(portion) => found.extend(portion),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    assert!(!found.is_empty() && found == changes[..found.len()]);
    // However large a portion is, the error comes by itself.
    let mut reader = kept.tablet.changes_after(begun);
    assert_eq!(reader.read_disk(1 << 20).unwrap(), found);
    assert_eq!(reader.read_disk(1 << 20).unwrap_err().kind(), ErrorKind::Io);
    let behind = kept.tablet.changes_after(changes[40].last_seq).read_disk(1 << 20).unwrap();
    assert_eq!(behind, changes[41..]);

    faults.heal();
    kept.clock.advance_micros(31 * 1_000_000);
    kept.engine.run_background().unwrap();
    assert_eq!(kept.engine.log_size().0, 1);
    assert_eq!(kept.tablet.changes_after(begun).read_disk(1 << 20).unwrap(), changes);
}

#[test]
fn a_change_file_that_cannot_be_removed_is_tried_again() {
    let faults = FaultFiles::new(Arc::new(MemoryFiles::new()));
    let kept = Kept::open(Arc::new(faults.clone()), options()).unwrap();
    fill(&kept, 60);
    let left = || {
        let entries = faults.list(Path::new("/data/changes")).unwrap();
        let is_change_file = |name: &str| Path::new(name).extension().is_some_and(|e| e == "chg");
        entries.iter().filter(|entry| is_change_file(&entry.name)).count()
    };
    assert!(left() > 3);
    kept.tablet.keep_changes(None);
    faults.inject(Fault::new(FaultOp::Remove).on_path(".chg"));
    kept.clock.advance_micros(61 * 1_000_000);
    for _ in 0..2 {
        kept.engine.run_background().unwrap();
        assert_eq!(left(), 1);
        assert!(kept.engine.obsolete_bytes() > 0, "it is not forgotten");
    }
    kept.clock.advance_micros(61 * 1_000_000);
    kept.engine.run_background().unwrap();
    assert_eq!((left(), kept.engine.obsolete_bytes()), (0, 0));
}
