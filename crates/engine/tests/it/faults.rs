//! Every single operation on a file fails once, or from then on, in the middle of a history that writes, rotates the
//! log, flushes and compacts: nothing that was acknowledged is lost, nothing that was not is shown while the engine
//! lives, the engine says why it takes no writes, and the next start is whole.

use std::sync::Arc;

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

/// Writes of a history.
const WRITES: usize = 36;
/// After so many the tablet is flushed, and compacted if that is due.
const FLUSH_EVERY: usize = 9;
/// What a history does to files.
const OPS: [FaultOp; 9] = [
    FaultOp::Create,
    FaultOp::Append,
    FaultOp::Sync,
    FaultOp::SyncDir,
    FaultOp::Rename,
    FaultOp::Remove,
    FaultOp::Truncate,
    FaultOp::Reserve,
    FaultOp::LayOut,
];

/// A segment takes a few writes.
fn options() -> EngineOptions {
    EngineOptions { log_segment_bytes: 500, ..tiny_options() }
}

fn open(files: Arc<dyn Files>) -> (Arc<Engine>, Arc<Tablet>) {
    let clock = Arc::new(ManualClock::new(START_MICROS));
    open_started(env(files, clock, 1), options())
}

fn row(n: usize) -> String {
    format!("row-{n:03}")
}

fn text(n: usize) -> String {
    format!("value {n} {}", "x".repeat(60))
}

fn write(tablet: &Tablet, n: usize) -> tepui_engine::Result<u64> {
    let mutations = vec![put(1, "q", 1000, &text(n))];
    block_on(tablet.apply(RowBatch { row: row(n).into_bytes().into(), mutations }))
}

/// The write as [`write`] has it; makes room, of which it tells the number of the write, where that waits since the disk is full.
fn write_and_make_room(
    engine: &Engine,
    tablet: &Tablet,
    n: usize,
    make_room: &mut dyn FnMut(usize),
) -> tepui_engine::Result<u64> {
    let mutations = vec![put(1, "q", 1000, &text(n))];
    let mut write = Box::pin(tablet.apply(RowBatch { row: row(n).into_bytes().into(), mutations }));
    loop {
        if let Some(done) = (&mut write).now_or_never() {
            return done;
        }
        if let Health::Held { by: HeldBy::Log, reason } = engine.health() {
            assert!(reason.contains("the disk is full"), "{reason}");
            make_room(n);
        }
        std::thread::yield_now();
    }
}

fn read(tablet: &Tablet, n: usize) -> Option<String> {
    let projection = Projection::all();
    block_on(tablet.read_row(row(n).as_bytes(), &projection, ReadView::Durable))
        .unwrap()
        .map(|row| String::from_utf8(row.cells[0].value.to_vec()).unwrap())
}

/// Runs the history; which writes were acknowledged, and the errors of the others.
fn history(
    engine: &Engine,
    tablet: &Tablet,
    make_room: &mut dyn FnMut(usize),
) -> Vec<tepui_engine::Result<u64>> {
    (0..WRITES)
        .map(|n| {
            let written = write_and_make_room(engine, tablet, n, make_room);
            if n % FLUSH_EVERY == FLUSH_EVERY - 1 {
                drop(block_on(tablet.flush()));
                drop(engine.run_background());
            }
            written
        })
        .collect()
}

fn check(fault: &Fault, disk: &MemoryFiles, faults: &FaultFiles) -> bool {
    let what = format!("{fault:?}");
    let (engine, tablet) = open(Arc::new(faults.clone()));
    faults.inject(fault.clone());
    let mut make_room = |_| {
        assert!(what.contains("NoSpace"), "{what} is waited for");
        faults.heal();
    };
    let written = history(&engine, &tablet, &mut make_room);
    let mut first_refused = None;
    for (n, result) in written.iter().enumerate() {
        match result {
            Ok(_) => assert_eq!(read(&tablet, n), Some(text(n)), "{what}: write {n} is gone"),
            Err(error) => {
                assert!(
                    matches!(error.kind(), ErrorKind::ReadOnly | ErrorKind::NoSpace),
                    "{what}: write {n}: {error:?}"
                );
                assert_eq!(read(&tablet, n), None, "{what}: write {n} failed and is shown");
                first_refused = first_refused.or(Some(n));
            }
        }
    }
    if let Some(refused) = first_refused {
        // For good, with the reason.
        assert!(
            written.iter().skip(refused).all(Result::is_err),
            "{what}: a write after {refused}"
        );
        let Health::ReadOnly(reason) = engine.health() else {
            panic!("{what}: a write was refused and the engine says that all is well")
        };
        assert!(reason.contains("injected fault"), "{what}: {reason}");
        assert!(reason.contains("/data"), "{what}: {reason} names the file");
    }
    let acknowledged: Vec<usize> =
        written.iter().enumerate().filter(|(_, w)| w.is_ok()).map(|(n, _)| n).collect();
    // The power goes; or the process ends in its own time.
    let strict = disk.crashed_copy(CrashMode::Strict, &SeededRng::new(1));
    let torn = disk.crashed_copy(CrashMode::Torn, &SeededRng::new(acknowledged.len() as u64));
    let _ = engine.close();
    drop((engine, tablet));
    faults.heal();
    for files in [strict, torn, disk.clone()] {
        let (engine, tablet) = open(Arc::new(files));
        assert_eq!(engine.health(), Health::Serving);
        for n in &acknowledged {
            assert_eq!(read(&tablet, *n), Some(text(*n)), "{what}: write {n} is lost");
        }
        write(&tablet, WRITES).unwrap();
        assert_eq!(read(&tablet, WRITES), Some(text(WRITES)));
    }
    first_refused.is_some()
}

/// How often a history without faults does an operation, from after its opening on.
fn operations(op: FaultOp) -> u64 {
    let faults = FaultFiles::new(Arc::new(MemoryFiles::new()));
    let (engine, tablet) = open(Arc::new(faults.clone()));
    let before = faults.count(op);
    let written = history(&engine, &tablet, &mut |_| panic!("there is room"));
    assert!(written.iter().all(Result::is_ok));
    engine.close().unwrap();
    faults.count(op) - before
}

#[test]
fn whichever_operation_fails_no_acknowledged_write_is_lost_and_the_reason_is_told() {
    for op in OPS {
        let count = operations(op);
        let mut refusals = 0;
        for kind in [ErrorKind::Io, ErrorKind::NoSpace] {
            for nth in 1..=count {
                for sticky in [false, true] {
                    let disk = MemoryFiles::new();
                    let faults = FaultFiles::new(Arc::new(disk.clone()));
                    let fault = Fault::new(op).nth(nth).kind(kind);
                    let fault = if sticky { fault.sticky() } else { fault };
                    refusals += u64::from(check(&fault, &disk, &faults));
                }
            }
        }
        match op {
            // Most of them are the log's or a manifest's.
            FaultOp::Append | FaultOp::Sync => assert!(refusals > count, "{op:?}: {refusals}"),
            // A hint: whoever cannot have space now is told when it is needed.
            FaultOp::Reserve => assert_eq!(refusals, 0),
            _ => {}
        }
    }
}

#[test]
fn a_disk_that_is_full_at_any_byte_is_waited_for_and_keeps_what_was_acknowledged() {
    let mut waits = 0;
    for quota in (0..14_000).step_by(97) {
        let disk = MemoryFiles::new();
        let faults = FaultFiles::new(Arc::new(disk.clone()));
        faults.set_quota_bytes(Some(1 << 20));
        let (engine, tablet) = open(Arc::new(faults.clone()));
        faults.set_quota_bytes(Some(quota));
        let mut crashed = None;
        let mut make_room = |waiting| {
            let copy = || disk.crashed_copy(CrashMode::Strict, &SeededRng::new(1));
            crashed.get_or_insert_with(|| (waiting, copy()));
            faults.heal();
        };
        let written = history(&engine, &tablet, &mut make_room);
        assert!(written.iter().all(Result::is_ok), "{quota}: {written:?}");
        waits += u64::from(crashed.is_some());
        faults.heal();
        engine.close().unwrap();
        drop((engine, tablet));
        for (acknowledged, files) in crashed.into_iter().chain([(WRITES, disk)]) {
            let (_engine, tablet) = open(Arc::new(files));
            for n in 0..acknowledged {
                assert_eq!(read(&tablet, n), Some(text(n)), "{quota} bytes: write {n} is lost");
            }
            write(&tablet, WRITES).unwrap();
        }
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
        let (engine, tablet) = open(Arc::new(faults.clone()));
        faults.set_quota_bytes(Some(quota));
        let written = history(&engine, &tablet, &mut |_| faults.heal());
        refused += u64::from(written.iter().any(Result::is_err));
        if let Some(error) = written.iter().find_map(|w| w.as_ref().err()) {
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{quota}: {error}");
            assert!(matches!(engine.health(), Health::ReadOnly(r) if r.contains("no space")));
        }
        let _ = engine.close();
        drop((engine, tablet));
        faults.heal();
        let (_engine, tablet) = open(Arc::new(disk));
        for (n, written) in written.iter().enumerate() {
            if written.is_ok() {
                assert_eq!(read(&tablet, n), Some(text(n)), "{quota} bytes: write {n} is lost");
            }
        }
        write(&tablet, WRITES).unwrap();
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
                    let no_space = kind == ErrorKind::NoSpace;
                    let told = if no_space { kind } else { ErrorKind::ReadOnly };
                    assert_eq!(refused.kind(), told, "{case}");
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
