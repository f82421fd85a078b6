//! Writes that are refused for what a disk lacks: what is told of it, and that they go on by themselves.

use super::*;
use crate::db::HeldBy;
use crate::io::{Fault, FaultFiles, FaultOp};
use crate::manifest::{MetaChange, MetaExpect};
use crate::options::EngineOptions;
use crate::setbacks::Work;

/// Longer than a compaction or a flush that failed is left alone.
const A_MINUTE_MICROS: u64 = 60_000_000;

struct Held {
    rig: Rig,
    faults: FaultFiles,
    clock: Arc<ManualClock>,
}

/// A tablet whose level 0 is empty, and is due for compaction with two files.
fn empty() -> Held {
    Held::new(EngineOptions { l0_compaction_files: 2, ..EngineOptions::default() })
}

/// The same with a full level 0.
fn full() -> Held {
    let full = empty();
    full.fill();
    full
}

impl Held {
    fn new(options: EngineOptions) -> Self {
        let files = Arc::new(MemoryFiles::new());
        let faults = FaultFiles::new(Arc::clone(&files) as Arc<dyn Files>);
        let clock = Arc::new(ManualClock::new(START_MICROS));
        let rig = rig_over(options, Arc::clone(&clock) as _, files, Arc::new(faults.clone()));
        Self { rig, faults, clock }
    }

    fn fill(&self) {
        for n in 0..self.rig.tablet.core.options.l0_stop_files {
            self.rig.write(&["row-00", &format!("row-{n:02}")]);
        }
    }

    fn compact(&self) -> Result<()> {
        self.clock.advance_micros(A_MINUTE_MICROS);
        self.rig.tablet.claim_by_shape().expect("level 0 is full").run().map(drop)
    }

    /// Why a write is refused.
    fn refused(&self) -> Error {
        self.rig.tablet.core.background.store(true, Ordering::Release);
        let refused = self.rig.tablet.admit().unwrap_err();
        self.rig.tablet.core.background.store(false, Ordering::Release);
        assert_eq!(refused.kind(), ErrorKind::Overloaded, "{refused}");
        refused
    }

    /// By what writes are held, and why.
    fn held(&self) -> Option<(HeldBy, String)> {
        match self.rig.engine.health() {
            Health::Held { by, reason } => Some((by, reason)),
            _ => None,
        }
    }
}

/// What goes wrong with the disk.
type Wrong = fn(&Held);

#[test]
fn a_disk_that_is_full_or_fails_for_compactions_is_named_until_it_does_no_more() {
    let fail: [(&str, Wrong); 2] = [
        ("free", |held| held.faults.set_free_bytes(Some(1))),
        ("injected", |held| {
            let failing = Fault::new(FaultOp::Create).on_path("/data/sst");
            held.faults.inject(failing.kind(ErrorKind::Exhausted).sticky());
        }),
    ];
    for (reason, fail) in fail {
        let full = full();
        assert_eq!(full.held(), None, "compactions are behind, no more");
        fail(&full);
        for _ in 0..2 {
            let error = full.compact().unwrap_err();
            assert!(error.message().contains(reason), "{error}");
            let refused = full.refused();
            assert!(refused.message().contains(error.message()), "{refused}");
            let (by, told) = full.held().expect("no write is taken");
            assert!(by == HeldBy::Compaction && told.contains(error.message()), "{told}");
            // It is told while the next try is awaited, too.
            full.clock.advance_micros(A_MINUTE_MICROS);
            assert!(full.held().is_some());
            assert!(full.refused().message().contains(error.message()));
        }
        full.faults.heal();
        full.faults.set_free_bytes(None);
        full.compact().unwrap();
        assert_eq!(full.held(), None);
        full.rig.tablet.admit().unwrap();
    }
}

#[test]
fn a_damaged_file_is_the_trouble_of_its_table_alone() {
    let full = full();
    let file = full.rig.tablet.version().level(0)[0].id;
    let path = full.rig.tablet.core.layout.sst(file);
    let mut bytes = full.rig.files.contents(&path).unwrap();
    bytes[3] ^= 0x40;
    full.rig.files.put_contents(&path, bytes);
    let error = full.compact().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption);
    assert!(full.refused().message().contains(error.message()));
    assert_eq!(full.held(), None);
}

#[test]
fn a_file_that_one_table_cannot_read_is_its_trouble_and_many_tables_that_cannot_are_the_machines() {
    let full = full();
    let file = full.rig.tablet.version().level(0)[0].id;
    let path = full.rig.tablet.core.layout.sst(file);
    let bad_sector = Fault::new(FaultOp::Read).on_path(path.to_str().unwrap()).kind(ErrorKind::Io);
    full.faults.inject(bad_sector.sticky());
    let error = full.compact().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(full.refused().message().contains(error.message()));
    assert_eq!(full.held(), None);
    let other = full.rig.engine.create_tablet(RowRange::all()).unwrap();
    other.note_setback(Work::Below, &error);
    assert!(full.held().is_some());
}

#[test]
fn a_failure_below_level_0_is_over_with_the_next_compaction_there() {
    let held = empty();
    held.rig.write(&["a", "b"]);
    held.rig.engine.compact_fully().unwrap();
    let failing = Fault::new(FaultOp::Create).on_path("/data/sst").kind(ErrorKind::Exhausted);
    held.faults.inject(failing.sticky());
    held.rig.engine.compact_fully().unwrap_err();
    held.faults.heal();
    held.clock.advance_micros(A_MINUTE_MICROS);
    held.rig.engine.compact_fully().unwrap();
    held.fill();
    assert_eq!(held.held(), None, "behind, no more");
    let refused = held.refused();
    assert!(!refused.message().contains("injected"), "{refused}");
}

#[test]
fn a_failure_in_level_0_is_over_once_nothing_lies_there() {
    let full = full();
    full.faults.set_free_bytes(Some(1));
    full.compact().unwrap_err();
    assert!(full.held().is_some());
    full.faults.set_free_bytes(None);
    block_on(full.rig.tablet.drop_rows(RowRange::all())).unwrap();
    full.fill();
    assert_eq!(full.held(), None, "behind, no more");
    let refused = full.refused();
    assert!(!refused.message().contains("free"), "{refused}");
}

#[test]
fn a_directory_whose_sync_has_failed_is_not_synced_again() {
    let full = full();
    let core = &full.rig.tablet.core;
    let (ssts, values) = (core.layout.ssts(), core.layout.values());
    full.faults.inject(Fault::new(FaultOp::SyncDir).on_path("/data/sst").kind(ErrorKind::Io));
    assert_eq!(core.sync_dir(&ssts).unwrap_err().kind(), ErrorKind::Io);
    let syncs = full.faults.count(FaultOp::SyncDir);
    assert_eq!(core.sync_dir(&ssts).unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(full.faults.count(FaultOp::SyncDir), syncs);
    core.sync_dir(&values).unwrap();
}

#[test]
fn a_dropped_tablet_holds_nothing() {
    let full = full();
    full.faults.set_free_bytes(Some(1));
    full.compact().unwrap_err();
    assert!(full.held().is_some());
    full.rig.engine.drop_tablet(full.rig.tablet.id()).unwrap();
    assert_eq!(full.held(), None);
    assert!(full.rig.tablet.core.setbacks.tablets().is_empty());
    // Work that was under way fails a moment later.
    let error = Error::new(ErrorKind::NoSpace, "no space");
    full.rig.tablet.note_setback(Work::Flush, &error);
    assert!(full.rig.tablet.core.setbacks.tablets().is_empty());
}

#[test]
fn a_disk_without_room_for_flushes_is_named_once_memory_is_full() {
    let held = Held::new(EngineOptions { memtables_waiting_max: 1, ..EngineOptions::default() });
    let tablet = &held.rig.tablet;
    let no_room = Fault::new(FaultOp::Create).on_path("/data/sst").kind(ErrorKind::NoSpace);
    let keep = |key: &str, value: Option<&'static str>| {
        let value = value.map(|value| value.as_bytes().into());
        let change = MetaChange { key: key.into(), expect: MetaExpect::Any, value };
        held.rig.engine.meta().commit(&[change]).map_err(|error| error.kind())
    };
    // As background threads have it.
    tablet.core.engine.set(Arc::downgrade(&held.rig.engine)).unwrap();
    held.faults.inject(no_room.sticky());
    block_on(tablet.apply(batch("a", &["a"]))).unwrap();
    let error = block_on(tablet.flush()).unwrap_err();
    assert_eq!(held.held(), None, "there is memory for more");
    keep("entry", Some("x")).unwrap();
    block_on(tablet.apply(batch("b", &["a"]))).unwrap();
    tablet.rotate_now();
    let refused = held.refused();
    assert!(refused.message().contains(error.message()), "{refused}");
    let (by, told) = held.held().expect("no write is taken");
    assert!(by == HeldBy::Flush && told.contains(error.message()), "{told}");
    // The catalog takes removals alone, whatever room its own file has.
    assert_eq!(keep("entry", Some("y")), Err(ErrorKind::NoSpace));
    keep("entry", None).unwrap();

    held.faults.heal();
    block_on(tablet.flush()).unwrap();
    assert_eq!(held.held(), None);
    tablet.admit().unwrap();
    keep("entry", Some("y")).unwrap();
}

#[test]
fn a_flush_that_lacked_room_is_done_as_soon_as_there_is_some() {
    let Held { rig, faults, clock: _ } = empty();
    block_on(rig.tablet.apply(batch("a", &["a"]))).unwrap();
    rig.tablet.rotate_now();
    faults.set_quota_bytes(Some(0));
    let retries = || rig.tablet.core.metrics.flush_retries.load(Ordering::Relaxed);
    for _ in 0..3 {
        assert_eq!(rig.tablet.flush_when_due(u64::MAX).unwrap(), Some(false));
    }
    assert_eq!(retries(), 1, "it is left alone for a while");
    faults.set_quota_bytes(Some(64 << 20));
    let flushed = rig.tablet.flush_when_due(u64::MAX).unwrap();
    assert_eq!(flushed, Some(true), "though the clock stands still");
}

#[test]
fn who_waits_for_room_is_sent_away_where_the_disk_has_none_for_a_flush() {
    let held = Held::new(EngineOptions { memtables_waiting_max: 1, ..EngineOptions::default() });
    let tablet = &held.rig.tablet;
    let no_room = Fault::new(FaultOp::Create).on_path("/data/sst").kind(ErrorKind::NoSpace);
    held.faults.inject(no_room.sticky());
    block_on(tablet.apply(batch("a", &["a"]))).unwrap();
    tablet.rotate_now();
    block_on(tablet.apply(batch("b", &["a"]))).unwrap();
    tablet.rotate_now();
    let wait = || {
        tablet.core.background.store(true, Ordering::Release);
        let answer = tablet.apply_when_room(batch("c", &["a"])).now_or_never();
        tablet.core.background.store(false, Ordering::Release);
        answer
    };
    assert!(wait().is_none(), "a flush makes room");
    let error = block_on(tablet.flush()).unwrap_err();
    let refused = wait().expect("only an operator does").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Overloaded, "{refused}");
    assert!(refused.retry_after().is_some() && refused.message().contains(error.message()));
    held.faults.heal();
    block_on(tablet.flush()).unwrap();
    tablet.core.background.store(true, Ordering::Release);
    block_on(tablet.apply_when_room(batch("c", &["a"]))).unwrap();
}

#[test]
fn who_waits_for_memory_is_not_told_of_a_level_0_whose_compaction_fails() {
    let held = Held::new(EngineOptions {
        l0_compaction_files: 2,
        memtable_bytes: 1 << 20,
        memtables_total_bytes: 1 << 20,
        memtables_waiting_max: 8,
        ..EngineOptions::default()
    });
    for _ in 0..2 {
        held.rig.write(&["row"]);
    }
    held.faults.set_free_bytes(Some(1));
    held.compact().unwrap_err();
    held.faults.set_free_bytes(None);
    let tablet = &held.rig.tablet;
    assert!(tablet.level_zero_is_stuck(&tablet.view.load()));
    let value = vec![7; 2 << 20].into();
    let qualifier = Bytes::from_static(b"q");
    let put = Mutation::Put { family: FamilyId(1), qualifier, timestamp: 1000, value };
    let large = RowBatch { row: Bytes::from_static(b"large"), mutations: vec![put] };
    block_on(tablet.apply(large)).unwrap();
    assert_eq!(tablet.pressure().behind, Behind::Memory);
    tablet.core.background.store(true, Ordering::Release);
    let mut waits = pin!(tablet.apply_when_room(batch("row", &["a"])));
    assert!(waits.as_mut().now_or_never().is_none(), "a flush makes room");
    tablet.rotate_now();
    tablet.flush_waiting().unwrap();
    block_on(waits).unwrap();
}

#[test]
fn obsolete_files_go_at_once_while_the_disk_lacks_room() {
    let fail: [Wrong; 2] = [
        |held| held.faults.set_free_bytes(Some(1)),
        |held| {
            let no_room = Fault::new(FaultOp::Create).on_path("/data/sst");
            held.faults.inject(no_room.kind(ErrorKind::NoSpace).sticky());
            for row in ["a", "b"] {
                block_on(held.rig.tablet.apply(batch(row, &["a"]))).unwrap();
                held.rig.tablet.rotate_now();
            }
            held.rig.tablet.flush_waiting().unwrap_err();
        },
    ];
    for fail in fail {
        let held = Held::new(EngineOptions {
            delete_bytes_per_second: 1,
            memtables_waiting_max: 1,
            ..EngineOptions::default()
        });
        let Held { rig, .. } = &held;
        // As background threads have it.
        rig.tablet.core.engine.set(Arc::downgrade(&rig.engine)).unwrap();
        for row in ["a", "b", "c"] {
            rig.write(&[row]);
        }
        block_on(rig.tablet.drop_rows(RowRange::all())).unwrap();
        for _ in 0..2 {
            crate::background::keep_house(&rig.engine);
            assert_eq!(rig.ssts(), 2, "one in minutes");
        }
        fail(&held);
        crate::background::keep_house(&rig.engine);
        assert_eq!(rig.ssts(), 0);
    }
}
