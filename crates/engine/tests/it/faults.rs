//! Every single operation on a file fails once, or from then on, in the middle of a history that writes, rotates the
//! log, drops rows, flushes, compacts and gives space back: nothing that was acknowledged is lost, nothing that was not is shown while the engine
//! lives, the engine says why it takes no writes, and the next start is whole.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::FutureExt as _;
use futures::executor::block_on;

use tepui_engine::ErrorKind;
use tepui_engine::cell::{RowBatch, RowRange};
use tepui_engine::db::{Engine, EngineOptions, Health, HeldBy};
use tepui_engine::io::{
    CrashMode, Fault, FaultFiles, FaultOp, Files, ManualClock, MemoryFiles, SeededRng,
};
use tepui_engine::read::Projection;
use tepui_engine::tablet::{ReadView, Tablet};

use crate::changes::{Kept, fill};
use crate::harness::{START_MICROS, env, open_started, put, tiny_options};
use crate::until::until;

/// Rows of a history.
const ROWS: usize = 24;
/// Its writes: those behind the first of each row overwrite two of three of the first rows.
const WRITES: usize = ROWS + ROWS / 2;
/// After so many the tablet is flushed, and compacted if that is due.
const FLUSH_EVERY: usize = 9;
/// Behind this write some rows are dropped. Some of them were overwritten before, others are after that.
const DROP_AFTER: usize = 30;
const DROPPED: Range<usize> = 8..16;
/// What a history does to files.
const OPS: [FaultOp; 10] = [
    FaultOp::Create,
    FaultOp::Append,
    FaultOp::Sync,
    FaultOp::SyncDir,
    FaultOp::Rename,
    FaultOp::Remove,
    FaultOp::Truncate,
    FaultOp::Reserve,
    FaultOp::LayOut,
    FaultOp::Read,
];

/// A segment takes a few writes.
fn options() -> EngineOptions {
    EngineOptions { log_segment_bytes: 500, ..tiny_options() }
}

fn open(files: Arc<dyn Files>) -> Place {
    let clock = Arc::new(ManualClock::new(START_MICROS));
    let (engine, tablet) = open_started(env(files, Arc::clone(&clock), 1), options());
    Place { clock, engine, tablet }
}

struct Place {
    clock: Arc<ManualClock>,
    engine: Arc<Engine>,
    tablet: Arc<Tablet>,
}

/// The row that a write is of.
fn row_of(n: usize) -> usize {
    match n.checked_sub(ROWS) {
        None => n,
        Some(again) if n < WRITES => again / 2 * 3 + 1 + again % 2,
        Some(_) => n,
    }
}

fn key(row: usize) -> Vec<u8> {
    format!("row-{row:03}").into_bytes()
}

fn text(n: usize) -> String {
    format!("value {n} {}", "x".repeat(60))
}

fn batch(n: usize) -> RowBatch {
    RowBatch { row: key(row_of(n)).into(), mutations: vec![put(1, "q", 1000, &text(n))] }
}

fn write(tablet: &Tablet, n: usize) -> tepui_engine::Result<u64> {
    block_on(tablet.apply(batch(n)))
}

/// The write as [`write`] has it; makes room, of which it tells the number of the write, where that waits since the disk is full.
fn write_and_make_room(
    place: &Place,
    n: usize,
    make_room: &mut dyn FnMut(usize),
) -> tepui_engine::Result<u64> {
    let mut write = Box::pin(place.tablet.apply(batch(n)));
    let mut done = None;
    until("a write is done", || {
        done = (&mut write).now_or_never();
        if done.is_none()
            && let Health::Held { by: HeldBy::Log, reason } = place.engine.health()
        {
            assert!(reason.contains("the disk is full"), "{reason}");
            make_room(n);
        }
        done.is_some()
    });
    done.unwrap()
}

fn read(tablet: &Tablet, row: usize) -> Option<String> {
    let projection = Projection::all();
    block_on(tablet.read_row(&key(row), &projection, ReadView::Durable))
        .unwrap()
        .map(|row| String::from_utf8(row.cells[0].value.to_vec()).unwrap())
}

/// What a history was answered.
struct Answers {
    written: Vec<tepui_engine::Result<u64>>,
    dropped: tepui_engine::Result<bool>,
}

/// Of each row what it has: the number of a write, or nothing. First what was acknowledged last, then what was refused since.
type Rows = [Vec<Option<usize>>; ROWS];

impl Answers {
    fn are_all_good(&self) -> bool {
        self.written.iter().all(Result::is_ok) && self.dropped.is_ok()
    }

    /// The rows once so many writes were answered.
    fn rows(&self, writes: usize) -> Rows {
        let mut rows: Rows = std::array::from_fn(|_| vec![None]);
        let note = |row: &mut Vec<_>, has, is_acknowledged| {
            if is_acknowledged {
                row.clear();
            }
            row.push(has);
        };
        for (n, written) in self.written.iter().enumerate().take(writes) {
            note(&mut rows[row_of(n)], Some(n), written.is_ok());
            if n == DROP_AFTER {
                rows[DROPPED].iter_mut().for_each(|row| note(row, None, self.dropped.is_ok()));
            }
        }
        rows
    }
}

/// While the engine lives, what was refused is not shown.
fn assert_shown(tablet: &Tablet, rows: &Rows, what: &str) {
    for (row, has) in rows.iter().enumerate() {
        assert_eq!(read(tablet, row), has[0].map(text), "{what}: row {row} of {has:?}");
    }
}

/// What was acknowledged is there, unless what was refused since is.
fn assert_kept(tablet: &Tablet, rows: &Rows, what: &str) {
    for (row, has) in rows.iter().enumerate() {
        let found = read(tablet, row);
        let is_known = has.iter().any(|has| has.map(text) == found);
        assert!(is_known, "{what}: row {row} has {found:?}, and may have {has:?}");
    }
}

/// Runs the history.
fn history(place: &Place, make_room: &mut dyn FnMut(usize)) -> Answers {
    let mut dropped = Ok(false);
    let written = (0..WRITES).map(|n| {
        let written = write_and_make_room(place, n, make_room);
        if n == DROP_AFTER {
            let range = RowRange::new(key(DROPPED.start), key(DROPPED.end));
            dropped = block_on(place.tablet.drop_rows(range));
        }
        if n % FLUSH_EVERY == FLUSH_EVERY - 1 {
            drop(block_on(place.tablet.flush()));
            drop(place.engine.run_background());
            // What was put off for a while is due: the log's old segments, the values of rows that are gone.
            place.clock.advance_micros(60_000_000);
            drop(place.engine.run_background());
        }
        written
    });
    Answers { written: written.collect(), dropped }
}

/// What came of a history with a fault.
struct Met {
    /// The operation that was to fail came.
    fault: bool,
    /// A write was refused.
    refusal: bool,
}

fn check(op: FaultOp, nth: u64, fault: Fault) -> Met {
    let what = format!("{fault:?}");
    let disk = MemoryFiles::new();
    let faults = FaultFiles::new(Arc::new(disk.clone()));
    let place = open(Arc::new(faults.clone()));
    let before = faults.count(op);
    faults.inject(fault);
    let mut make_room = |_| {
        assert!(what.contains("NoSpace"), "{what} is waited for");
        faults.heal();
    };
    let answers = history(&place, &mut make_room);
    let met = faults.count(op) - before >= nth;
    // The power goes; or the process ends in its own time.
    let strict = disk.crashed_copy(CrashMode::Strict, &SeededRng::new(1));
    let torn = disk.crashed_copy(CrashMode::Torn, &SeededRng::new(nth));
    if matches!(op, FaultOp::Read | FaultOp::Any) {
        faults.heal();
    }
    let rows = answers.rows(WRITES);
    assert_shown(&place.tablet, &rows, &what);
    let errors = answers.written.iter().filter_map(|written| written.as_ref().err());
    for error in errors.chain(answers.dropped.as_ref().err()) {
        let kind = error.kind();
        assert!(matches!(kind, ErrorKind::ReadOnly | ErrorKind::NoSpace), "{what}: {error:?}");
    }
    let first_refused = answers.written.iter().position(Result::is_err);
    if let Some(refused) = first_refused {
        // For good, with the reason.
        let mut later = answers.written.iter().skip(refused);
        assert!(later.all(Result::is_err), "{what}: a write after {refused}");
        let Health::ReadOnly(reason) = place.engine.health() else {
            panic!("{what}: a write was refused and the engine says that all is well")
        };
        assert!(reason.contains("injected fault"), "{what}: {reason}");
        assert!(reason.contains("/data"), "{what}: {reason} names the file");
    }
    let _ = place.engine.close();
    drop(place);
    faults.heal();
    for files in [strict, torn, disk] {
        let place = open(Arc::new(files));
        assert_eq!(place.engine.health(), Health::Serving);
        assert_kept(&place.tablet, &rows, &what);
        write(&place.tablet, WRITES).unwrap();
        assert_eq!(read(&place.tablet, row_of(WRITES)), Some(text(WRITES)));
    }
    Met { fault: met, refusal: first_refused.is_some() }
}

/// How often a history without faults does an operation, from after its opening on.
fn operations(op: FaultOp) -> u64 {
    let faults = FaultFiles::new(Arc::new(MemoryFiles::new()));
    let place = open(Arc::new(faults.clone()));
    let before = faults.count(op);
    let answers = history(&place, &mut |_| panic!("there is room"));
    let count = faults.count(op) - before;
    assert!(answers.are_all_good());
    let (metrics, stats) = (place.engine.metrics(), place.tablet.stats());
    let of_values = metrics.value_write_bytes.load(Ordering::Relaxed);
    assert!(stats.value_file_bytes < of_values, "space of values is given back: {stats:?}");
    assert_shown(&place.tablet, &answers.rows(WRITES), "no fault");
    place.engine.close().unwrap();
    count
}

#[test]
fn whichever_operation_fails_no_acknowledged_write_is_lost_and_the_reason_is_told() {
    let mut undone = Vec::new();
    for op in OPS {
        let count = operations(op);
        if count == 0 {
            undone.push(op);
        }
        let (mut tries, mut faults, mut refusals) = (0, 0, 0);
        // There are many reads.
        let step = if op == FaultOp::Read { (count as usize / 40).max(1) } else { 1 };
        for kind in [ErrorKind::Io, ErrorKind::NoSpace] {
            for nth in (1..=count).step_by(step) {
                for sticky in [false, true] {
                    let fault = Fault::new(op).nth(nth).kind(kind);
                    let met = check(op, nth, if sticky { fault.sticky() } else { fault });
                    tries += 1;
                    faults += u64::from(met.fault);
                    refusals += u64::from(met.refusal);
                    // It is read once more. What a flush has written and nobody can read is another matter.
                    assert!(op != FaultOp::Read || sticky || !met.refusal, "read {nth}");
                }
            }
        }
        assert_eq!(faults, tries, "{op:?}: faults that were met");
        match op {
            // Most of them are the log's or a manifest's.
            FaultOp::Append | FaultOp::Sync => assert!(refusals > count, "{op:?}: {refusals}"),
            // A hint: whoever cannot have space now is told when it is needed.
            FaultOp::Reserve => assert_eq!(refusals, 0, "{op:?}"),
            _ => {}
        }
    }
    assert_eq!(undone, [FaultOp::Rename], "what the history does not do");
}

#[test]
fn a_disk_that_is_gone_from_any_operation_on_has_all_that_was_acknowledged() {
    let count = operations(FaultOp::Any);
    let (mut tries, mut refusals) = (0, 0);
    for nth in (1..=count).step_by((count as usize / 100).max(1)) {
        let met = check(FaultOp::Any, nth, Fault::new(FaultOp::Any).nth(nth).sticky());
        assert!(met.fault, "operation {nth} of {count}");
        tries += 1;
        refusals += u64::from(met.refusal);
    }
    assert!(refusals > tries / 2, "{refusals} of {tries}");
}

#[test]
fn a_disk_that_is_full_at_any_byte_is_waited_for_and_keeps_what_was_acknowledged() {
    let mut waits = 0;
    for quota in (0..14_000).step_by(97) {
        let disk = MemoryFiles::new();
        let faults = FaultFiles::new(Arc::new(disk.clone()));
        faults.set_quota_bytes(Some(1 << 20));
        let place = open(Arc::new(faults.clone()));
        faults.set_quota_bytes(Some(quota));
        let mut crashed = None;
        let mut make_room = |waiting| {
            let copy = || disk.crashed_copy(CrashMode::Strict, &SeededRng::new(1));
            crashed.get_or_insert_with(|| (waiting, copy()));
            faults.heal();
        };
        let answers = history(&place, &mut make_room);
        assert!(answers.written.iter().all(Result::is_ok), "{quota}: {:?}", answers.written);
        if let Err(refused) = &answers.dropped {
            assert_eq!(refused.kind(), ErrorKind::NoSpace, "{quota}: {refused}");
        }
        waits += u64::from(crashed.is_some());
        faults.heal();
        place.engine.close().unwrap();
        drop(place);
        let what = format!("{quota} bytes");
        if let Some((waiting, files)) = crashed {
            let place = open(Arc::new(files));
            let mut rows = answers.rows(waiting);
            rows[row_of(waiting)].push(Some(waiting));
            assert_kept(&place.tablet, &rows, &what);
            write(&place.tablet, WRITES).unwrap();
        }
        let place = open(Arc::new(disk));
        assert_shown(&place.tablet, &answers.rows(WRITES), &what);
        write(&place.tablet, WRITES).unwrap();
    }
    assert!(waits > 50, "{waits}");
}

#[test]
fn a_disk_that_is_full_where_none_can_be_reserved_keeps_what_was_acknowledged() {
    let mut refused = 0;
    for quota in (0..14_000).step_by(97) {
        let disk = MemoryFiles::new();
        let faults = FaultFiles::new(Arc::new(disk.clone()));
        faults.reserve_nothing();
        // Nor does anybody say how much is left, as under a quota.
        faults.set_free_bytes(Some(u64::MAX));
        let place = open(Arc::new(faults.clone()));
        faults.set_quota_bytes(Some(quota));
        let answers = history(&place, &mut |_| faults.heal());
        if let Some(error) = answers.written.iter().find_map(|written| written.as_ref().err()) {
            refused += 1;
            assert_eq!(error.kind(), ErrorKind::ReadOnly, "{quota}: {error}");
            let health = place.engine.health();
            assert!(matches!(health, Health::ReadOnly(reason) if reason.contains("no space")));
        }
        let _ = place.engine.close();
        drop(place);
        faults.heal();
        let place = open(Arc::new(disk));
        assert_kept(&place.tablet, &answers.rows(WRITES), &format!("{quota} bytes"));
        write(&place.tablet, WRITES).unwrap();
    }
    assert!(refused > 50, "{refused}");
}

/// Something that syncs a directory; it calls the other just before.
type Act = fn(&Kept, &dyn Fn());

#[test]
fn a_directory_whose_sync_has_failed_once_is_not_trusted_before_a_restart() {
    let acts: [(&str, u64, Act); 8] = [
        ("/sst", 1, compact),
        ("/values", 1, compact),
        ("/changes", 1, |kept, begin| {
            begin();
            fill(kept, 60);
        }),
        ("/changes", 1, |kept, begin| {
            fill(kept, 60);
            kept.clock.advance_micros(86_000 * 1_000_000);
            kept.engine.run_background().unwrap();
            begin();
            kept.clock.advance_micros(1_100 * 1_000_000);
            drop(kept.engine.run_background());
        }),
        // The first is of the new tablet's own directory.
        ("/tablets", 2, |kept, begin| {
            begin();
            kept.engine.create_tablet(RowRange::all()).unwrap_err();
        }),
        ("/tablets", 1, |kept, begin| {
            begin();
            kept.engine.drop_tablet(kept.other.id()).unwrap_err();
        }),
        ("/backups", 1, |kept, begin| {
            begin();
            block_on(kept.engine.create_backup(&[kept.tablet.id()])).unwrap_err();
        }),
        ("/backups", 1, |kept, begin| {
            let backup = block_on(kept.engine.create_backup(&[kept.tablet.id()])).unwrap();
            begin();
            kept.engine.delete_backup(backup.id()).unwrap_err();
        }),
    ];
    for (at, (dir, nth, act)) in acts.into_iter().enumerate() {
        for kind in [ErrorKind::Io, ErrorKind::NoSpace, ErrorKind::Exhausted] {
            let faults = FaultFiles::new(Arc::new(MemoryFiles::new()));
            let log_segment_bytes = 2_000;
            let within = EngineOptions { log_segment_bytes, separate_values_bytes: 0, ..options() };
            let kept = Kept::open(Arc::new(faults.clone()), within.clone()).unwrap();
            for n in 0..20 {
                write(&kept.tablet, n).unwrap();
                if n % 10 == 9 {
                    block_on(kept.tablet.flush()).unwrap();
                }
            }
            kept.engine.close().unwrap();
            drop(kept);
            // Now a compaction has values to separate.
            let outside = EngineOptions { separate_values_bytes: 12, ..within };
            let kept = Kept::open(Arc::new(faults.clone()), outside).unwrap();
            act(&kept, &|| {
                // A sync that lacks something may have lost names; what it needs open is what may be lacking for a while.
                let passes = kind == ErrorKind::Exhausted;
                let op = if passes { FaultOp::OpenDir } else { FaultOp::SyncDir };
                faults.inject(Fault::new(op).on_path(dir).nth(nth).kind(kind));
            });
            let case = format!("{at}: {dir}, {kind:?}");
            let left = faults.count(FaultOp::SyncDir);
            match kept.engine.health() {
                Health::ReadOnly(reason) => {
                    assert!(
                        kind != ErrorKind::Exhausted && reason.contains(dir),
                        "{case}: {reason}"
                    );
                    // Nothing is built on the next sync, which succeeds.
                    let refused = kept.engine.compact_fully().unwrap_err();
                    assert_eq!(refused.kind(), ErrorKind::ReadOnly, "{case}");
                    assert_eq!(faults.count(FaultOp::SyncDir), left, "{case}");
                    // Nor by the housekeeper, once it tries again; it has no other directory to sync than that of changes.
                    if dir == "/changes" {
                        kept.clock.advance_micros(100 * 1_000_000);
                        drop(kept.engine.run_background());
                        assert_eq!(faults.count(FaultOp::SyncDir), left, "{case}");
                    }
                }
                health => {
                    // A backup's list takes room itself, and is synced as it is written.
                    let passes =
                        kind == ErrorKind::Exhausted || (at, kind) == (6, ErrorKind::NoSpace);
                    assert!(passes && health == Health::Serving, "{case}: {health:?}");
                }
            }
        }
    }
}

fn compact(kept: &Kept, begin: &dyn Fn()) {
    begin();
    kept.engine.compact_fully().unwrap_err();
}
