//! Damage, full disks, failing syncs, two processes: nothing acknowledged is lost, nothing wrong is
//! served, and the error says what and where.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};

use bytes::Bytes;
use futures::FutureExt as _;
use futures::executor::block_on;
use proptest::prelude::*;

use tepui_engine::ErrorKind;
use tepui_engine::cell::{FamilyId, Mutation, RowBatch, RowRange, TimestampRange};
use tepui_engine::db::{CompressionPolicy, Engine, EngineOptions, Health, HeldBy, SyncMode};
use tepui_engine::io::{
    CrashMode, DirEntry, Directory, Fault, FaultFiles, FaultOp, FileLock, Files, ManualClock,
    MemoryFiles, RandomFile, SeededRng, WritableFile,
};
use tepui_engine::manifest::{MetaChange, MetaExpect, MetaStore};
use tepui_engine::offline::{CatalogEntry, TableTablets};
use tepui_engine::pressure::Behind;
use tepui_engine::read::Projection;
use tepui_engine::tablet::{ReadView, ScanOptions, Tablet, TabletId};

use crate::harness::{
    Model, Rig, START_MICROS, env, open_started, plain_schema, put, scan, tiny_options,
};
use crate::until::until;

fn batch(row: &str, value: &str) -> RowBatch {
    RowBatch { row: row.as_bytes().to_vec().into(), mutations: vec![put(1, "q", 1000, value)] }
}

/// A rig with rows in SSTs of several levels, in memory and in the log, and the model of it.
fn furnished() -> (Rig, Model) {
    let rig = Rig::new(tiny_options(), plain_schema(), 11);
    let mut model = Model::default();
    for round in 0..4 {
        for n in 0..60 {
            let row = format!("row-{n:03}");
            let mutations = vec![put(1, "q", 1000 + round, &format!("value {round} of {n}"))];
            rig.apply(row.as_bytes(), mutations.clone());
            model.apply(row.as_bytes(), &mutations);
        }
        if round < 3 {
            block_on(rig.tablet.flush()).unwrap();
        }
        if round == 1 {
            rig.engine.run_background().unwrap();
        }
    }
    (rig, model)
}

fn files_under(files: &MemoryFiles, dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in files.list(dir).unwrap() {
        let path = dir.join(&entry.name);
        if entry.is_dir { files_under(files, &path, out) } else { out.push(path) }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// Opening is refused, or a read fails, or all is as it was: never wrong data, never a lost row
    /// without an error. (A damaged end of the log may look like a write that was cut short; but all
    /// writes here were followed by others or are known to be durable.)
    #[test]
    fn a_flipped_bit_anywhere_is_never_served(which: prop::sample::Index, at: prop::sample::Index, bit in 0..8u8) {
        let (rig, model) = furnished();
        let mut paths = Vec::new();
        files_under(&rig.files, Path::new("/data"), &mut paths);
        paths.retain(|p| p.file_name() != Some("LOCK".as_ref()));
        rig.engine.close().unwrap();
        let mut paths = Vec::new();
        files_under(&rig.files, Path::new("/data"), &mut paths);
        paths.retain(|p| p.file_name() != Some("LOCK".as_ref()));
        let path = which.get(&paths).clone();
        let mut bytes = rig.files.contents(&path).unwrap();
        prop_assume!(!bytes.is_empty());
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        rig.files.put_contents(&path, bytes);

        let files = Arc::clone(&rig.files);
        let id = rig.tablet.id();
        drop(rig);
        let clock = Arc::new(ManualClock::new(START_MICROS));
        let environment = env(files as Arc<dyn Files>, clock, 5);
        let what = format!("{} byte {at} bit {bit}", path.display());
        match Engine::open(environment, Path::new("/data"), tiny_options()) {
            Err(error) => {
                prop_assert!(
                    matches!(error.kind(), ErrorKind::Corruption | ErrorKind::InvalidArgument),
                    "{what}: {error:?}"
                );
                prop_assert!(
                    error.message().contains(path.file_name().unwrap().to_str().unwrap()),
                    "{what}: the error names the file: {error}"
                );
            }
            Ok(engine) => {
                let tablet = engine.tablet(id).expect("the tablet");
                tablet.set_schema(Arc::new(plain_schema()));
                check_rows(&tablet, &model, &what)?;
            }
        }
    }
}

fn check_rows(tablet: &Tablet, model: &Model, what: &str) -> Result<(), TestCaseError> {
    for row in model.rows(&RowRange::all()) {
        match block_on(tablet.read_row(&row.key, &Projection::all(), ReadView::Durable)) {
            Ok(found) => prop_assert_eq!(found, Some(row), "{}", what),
            Err(error) => {
                prop_assert_eq!(error.kind(), ErrorKind::Corruption, "{}: {}", what, error);
                prop_assert!(error.message().contains("offset"), "{}: {}", what, error);
            }
        }
    }
    match scan(tablet, RowRange::all(), Projection::all(), false, None) {
        Ok(rows) => prop_assert_eq!(rows, model.rows(&RowRange::all()), "{}", what),
        Err(error) => prop_assert_eq!(error.kind(), ErrorKind::Corruption, "{}", what),
    }
    Ok(())
}

#[test]
fn damage_in_one_block_leaves_other_rows_readable() {
    let (rig, model) = furnished();
    rig.engine.compact_fully().unwrap();
    rig.engine.close().unwrap();
    let ssts = rig.files.list(Path::new("/data/sst")).unwrap();
    let path = Path::new("/data/sst").join(&ssts[0].name);
    let mut bytes = rig.files.contents(&path).unwrap();
    bytes[3] ^= 0x40;
    rig.files.put_contents(&path, bytes);
    let files = Arc::clone(&rig.files);
    let rig = rig.reopen_on(files);
    let mut failed = 0;
    let mut read = 0;
    for row in model.rows(&RowRange::all()) {
        match block_on(rig.tablet.read_row(&row.key, &Projection::all(), ReadView::Durable)) {
            Ok(found) => {
                assert_eq!(found, Some(row));
                read += 1;
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corruption);
                assert!(error.message().contains(&ssts[0].name), "{error}");
                failed += 1;
            }
        }
    }
    assert!(failed > 0, "the damaged block holds rows");
    assert!(read > 40, "the other blocks do not suffer: {read} rows read");
}

struct Faulty {
    faults: Arc<FaultFiles>,
    clock: Arc<ManualClock>,
    engine: Arc<Engine>,
    tablet: Arc<Tablet>,
}

fn faulty(disk: &Arc<MemoryFiles>) -> Faulty {
    faulty_with(disk, tiny_options())
}

fn faulty_with(disk: &Arc<MemoryFiles>, options: EngineOptions) -> Faulty {
    faulty_within(disk, options, None)
}

/// On a disk that has so many bytes left.
fn faulty_within(disk: &Arc<MemoryFiles>, options: EngineOptions, left: Option<u64>) -> Faulty {
    let faults = Arc::new(FaultFiles::new(Arc::clone(disk) as Arc<dyn Files>));
    faults.set_quota_bytes(left);
    let clock = Arc::new(ManualClock::new(START_MICROS));
    let environment =
        env(Arc::clone(&faults) as Arc<dyn Files>, Arc::<ManualClock>::clone(&clock), 1);
    let (engine, tablet) = open_started(environment, options);
    Faulty { faults, clock, engine, tablet }
}

fn value(tablet: &Tablet, row: &str) -> Option<String> {
    block_on(tablet.read_row(row.as_bytes(), &Projection::all(), ReadView::Durable))
        .unwrap()
        .map(|row| String::from_utf8(row.cells[0].value.to_vec()).unwrap())
}

#[test]
fn a_failed_sync_makes_the_engine_read_only_and_says_so() {
    let disk = Arc::new(MemoryFiles::new());
    let rig = faulty(&disk);
    block_on(rig.tablet.apply(batch("kept", "before"))).unwrap();
    rig.faults.inject(Fault::new(FaultOp::Sync).on_path(".log"));
    let error = block_on(rig.tablet.apply(batch("lost", "x"))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
    rig.faults.heal();
    // The disk is well again, but what the failed sync left on it is not known: no write is taken.
    let error = block_on(rig.tablet.apply(batch("later", "x"))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
    assert!(matches!(rig.engine.health(), Health::ReadOnly(reason) if !reason.is_empty()));
    assert_eq!(value(&rig.tablet, "kept").as_deref(), Some("before"));
    assert_eq!(value(&rig.tablet, "lost"), None, "what was not acknowledged is not shown");
    // Streams of changes go on with what there is.
    rig.clock.advance_micros(10_000_000);
    block_on(rig.tablet.fence_changes()).unwrap();
    drop(rig);
    let rig = faulty(&disk);
    block_on(rig.tablet.apply(batch("later", "after restart"))).unwrap();
    assert_eq!(value(&rig.tablet, "kept").as_deref(), Some("before"));
    assert_eq!(value(&rig.tablet, "later").as_deref(), Some("after restart"));
}

#[test]
fn a_stop_says_that_nothing_was_flushed_since_the_engine_was_read_only() {
    let disk = Arc::new(MemoryFiles::new());
    let rig = faulty(&disk);
    block_on(rig.tablet.apply(batch("kept", "in the log"))).unwrap();
    rig.faults.inject(Fault::new(FaultOp::Sync).on_path("META-"));
    let change = MetaChange { key: "a".into(), expect: MetaExpect::Any, value: None };
    let error = rig.engine.meta().commit(&[change]).unwrap_err();
    assert!(error.kind() == ErrorKind::ReadOnly && error.is_in_doubt(), "{error:?}");
    rig.faults.heal();
    assert_eq!(rig.engine.close().unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(disk.list(Path::new("/data/sst")).unwrap(), []);
    drop(rig);
    assert_eq!(value(&faulty(&disk).tablet, "kept").as_deref(), Some("in the log"));
}

#[test]
fn where_the_log_cannot_be_synced_no_file_has_what_it_may_lose() {
    let disk = Arc::new(MemoryFiles::new());
    let rig = faulty_with(&disk, EngineOptions { sync: SyncMode::Never, ..tiny_options() });
    block_on(rig.tablet.apply(batch("a", "1"))).unwrap();
    rig.faults.inject(Fault::new(FaultOp::Sync).on_path(".log"));
    let created = rig.faults.count(FaultOp::Create);
    assert_eq!(block_on(rig.tablet.flush()).unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(rig.faults.count(FaultOp::Create), created);
    assert!(matches!(rig.engine.health(), Health::ReadOnly(_)));
    rig.engine.close().unwrap_err();
}

/// Rows in an SST and in memory, of which none may be dropped after the log has failed.
#[test]
fn after_the_log_has_failed_no_rows_are_dropped_and_no_files_written() {
    for waits_for_locks in [false, true] {
        let disk = Arc::new(MemoryFiles::new());
        let rig = faulty(&disk);
        block_on(rig.tablet.apply(batch("on disk", "1"))).unwrap();
        block_on(rig.tablet.flush()).unwrap();
        block_on(rig.tablet.apply(batch("in memory", "2"))).unwrap();
        let lock = block_on(rig.tablet.lock_row(b"lost"));
        let mut waiting = Box::pin(rig.tablet.drop_rows(RowRange::all()));
        if waits_for_locks {
            assert!((&mut waiting).now_or_never().is_none(), "a row is locked");
        }
        rig.faults.inject(Fault::new(FaultOp::Sync).on_path(".log"));
        block_on(rig.tablet.apply_locked(lock, batch("lost", "x"))).unwrap_err();
        rig.faults.heal();
        let created = rig.faults.count(FaultOp::Create);
        let appended = rig.faults.count(FaultOp::Append);
        let error = block_on(waiting).unwrap_err();
        assert!(error.kind() == ErrorKind::ReadOnly && !error.is_in_doubt(), "{error:?}");
        assert_eq!(block_on(rig.tablet.flush()).unwrap_err().kind(), ErrorKind::ReadOnly);
        assert_eq!(rig.engine.compact_fully().unwrap_err().kind(), ErrorKind::ReadOnly);
        assert_eq!(rig.faults.count(FaultOp::Create), created);
        assert_eq!(rig.faults.count(FaultOp::Append), appended);
        let rows = |rig: &Faulty| ["on disk", "in memory"].map(|row| value(&rig.tablet, row));
        let kept = [Some("1".to_owned()), Some("2".to_owned())];
        assert_eq!(rows(&rig), kept);
        rig.engine.close().unwrap_err();
        drop(rig);
        assert_eq!(rows(&faulty(&disk)), kept);
    }
}

#[test]
fn a_drop_of_rows_whose_edit_fails_may_have_been_done_and_says_so() {
    for kind in [ErrorKind::Io, ErrorKind::NoSpace] {
        let disk = Arc::new(MemoryFiles::new());
        let rig = faulty(&disk);
        block_on(rig.tablet.apply(batch("a", "1"))).unwrap();
        block_on(rig.tablet.apply(batch("b", "1"))).unwrap();
        block_on(rig.tablet.flush()).unwrap();
        rig.faults.inject(Fault::new(FaultOp::Sync).on_path("MANIFEST").kind(kind));
        let error = block_on(rig.tablet.drop_rows(RowRange::all())).unwrap_err();
        assert!(error.kind() == ErrorKind::ReadOnly && error.is_in_doubt(), "{error:?}");
        assert!(error.message().contains("injected fault"), "{error}");
        // Nothing of the next one is begun.
        let error = block_on(rig.tablet.drop_rows(RowRange::all())).unwrap_err();
        assert!(error.kind() == ErrorKind::ReadOnly && !error.is_in_doubt(), "{error:?}");
        drop(rig);
        let rig = faulty(&disk);
        let left = ["a", "b"].map(|row| value(&rig.tablet, row).is_some());
        assert_eq!(left[0], left[1], "all or none");
    }
}

#[test]
fn where_flushes_fail_dropped_ranges_do_not_grow_without_an_end_and_go_on_afterwards() {
    let disk = Arc::new(MemoryFiles::new());
    let rig = faulty(&disk);
    let full = Fault::new(FaultOp::Create).on_path(".sst").kind(ErrorKind::Exhausted).sticky();
    rig.faults.inject(full);
    block_on(rig.tablet.apply(batch("kept", "1"))).unwrap();
    let drop_one = |n: u32| {
        let row = format!("{n:06}");
        block_on(rig.tablet.drop_rows(RowRange::row(row.as_bytes())))
    };
    // A memtable waits for its flush, and the next one has a row from before all drops.
    for n in 0..100 {
        drop_one(n).unwrap();
    }
    block_on(rig.tablet.apply(batch("later", "1"))).unwrap();
    let refused = (0..2_000).find_map(|n| drop_one(n).err()).expect("one is refused");
    assert_eq!(refused.kind(), ErrorKind::Overloaded);
    assert!(refused.retry_after().is_some() && refused.message().contains("flushes"), "{refused}");
    assert_eq!(value(&rig.tablet, "kept").as_deref(), Some("1"));
    // What makes them fewer is done.
    block_on(rig.tablet.drop_rows(RowRange::new("0", "1"))).unwrap();
    (0..2_000).find_map(|n| drop_one(n).err()).expect("one is refused again");
    rig.faults.heal();
    let goes_on = (0..4).any(|_| {
        rig.engine.run_background().unwrap();
        drop_one(5_000).is_ok()
    });
    assert!(goes_on, "without another write");
    assert_eq!(value(&rig.tablet, "later").as_deref(), Some("1"));
}

#[test]
fn a_drop_of_rows_that_finds_no_open_file_is_not_done_and_may_be_sent_again() {
    let disk = Arc::new(MemoryFiles::new());
    let rig = faulty(&disk);
    block_on(rig.tablet.apply(batch("a", "1"))).unwrap();
    block_on(rig.tablet.flush()).unwrap();
    rig.engine.close().unwrap();
    drop(rig);
    // Its first edit begins a new manifest.
    let rig = faulty(&disk);
    let shortage = Fault::new(FaultOp::Create).on_path("MANIFEST").kind(ErrorKind::Exhausted);
    rig.faults.inject(shortage);
    let error = block_on(rig.tablet.drop_rows(RowRange::all())).unwrap_err();
    assert!(error.kind() == ErrorKind::Exhausted && !error.is_in_doubt(), "{error:?}");
    assert_eq!(value(&rig.tablet, "a").as_deref(), Some("1"));
    assert!(block_on(rig.tablet.drop_rows(RowRange::all())).unwrap());
    assert_eq!(value(&rig.tablet, "a"), None);
}

#[test]
fn a_disk_that_others_fill_holds_the_write_that_met_it_refuses_others_and_goes_on_once_there_is_room()
 {
    let disk = Arc::new(MemoryFiles::new());
    let rig = faulty_within(&disk, tiny_options(), Some(ROOM_BYTES));
    block_on(rig.tablet.apply(batch("before", "1"))).unwrap();
    assert_eq!(catalog_commit(&rig.engine, "old", Some("there")), None);
    rig.faults.set_quota_bytes(Some(0));
    // The segment is full in the end, and the next has no room.
    let mut acknowledged = 0;
    let mut met = loop {
        let tablet = Arc::clone(&rig.tablet);
        let row = format!("row-{acknowledged:04}");
        let mut write = Box::pin(async move { tablet.apply(batch(&row, "in time")).await });
        let mut done = None;
        until("a write is done, or held", || {
            done = (&mut write).now_or_never();
            done.is_some() || rig.engine.health() != Health::Serving
        });
        let Some(done) = done else { break write };
        done.unwrap();
        acknowledged += 1;
    };
    let Health::Held { by: HeldBy::Log, reason } = rig.engine.health() else {
        panic!("{:?}", rig.engine.health())
    };
    assert!(reason.contains("the disk is full") && reason.contains(".log"), "{reason}");
    // What comes now has not begun, and is told why and when to come back; reads go on.
    let refused = block_on(rig.tablet.apply(batch("later", "no"))).unwrap_err();
    assert!(refused.kind() == ErrorKind::Overloaded && !refused.is_in_doubt(), "{refused:?}");
    assert!(refused.retry_after().is_some() && refused.message().contains("the disk is full"));
    assert_eq!(rig.engine.refusals().get(Behind::Room), 1);
    // Nor does it wait who waits for memory and compactions.
    let waits = rig.tablet.apply_when_room(batch("later", "no")).now_or_never();
    assert_eq!(waits.expect("nobody knows how long").unwrap_err().kind(), ErrorKind::Overloaded);
    assert_eq!(value(&rig.tablet, "before").as_deref(), Some("1"));
    assert_eq!(value(&rig.tablet, "row-0000").as_deref(), Some("in time"));
    assert!((&mut met).now_or_never().is_none());
    // A stream of changes goes on with what there is.
    rig.clock.advance_micros(10_000_000);
    let fence = rig.tablet.fence_changes().now_or_never().unwrap().unwrap();
    let drop_rows = rig.tablet.drop_rows(RowRange::all()).now_or_never().unwrap();
    assert_eq!(drop_rows.unwrap_err().kind(), ErrorKind::Overloaded);
    // So does the catalog with removals, whatever room its own file has yet.
    assert_eq!(catalog_commit(&rig.engine, "new", Some("x")), Some(ErrorKind::NoSpace));
    assert_eq!(catalog_commit(&rig.engine, "old", Some("changed")), Some(ErrorKind::NoSpace));
    assert_eq!(catalog_commit(&rig.engine, "old", None), None);

    rig.faults.set_quota_bytes(None);
    block_on(met).unwrap();
    until("the engine serves again", || rig.engine.health() == Health::Serving);
    block_on(rig.tablet.apply(batch("later", "yes"))).unwrap();
    assert_eq!(catalog_commit(&rig.engine, "new", Some("x")), None);
    assert!(block_on(rig.tablet.fence_changes()).unwrap() > fence);
    drop(rig);
    let rig = faulty(&disk);
    for row in (0..=acknowledged).map(|n| format!("row-{n:04}")) {
        assert_eq!(value(&rig.tablet, &row).as_deref(), Some("in time"), "{row}");
    }
    assert_eq!(value(&rig.tablet, "later").as_deref(), Some("yes"));
}

#[test]
fn a_full_disk_where_no_space_can_be_reserved_refuses_writes_keeps_reads_and_recovers_with_a_restart()
 {
    let disk = Arc::new(MemoryFiles::new());
    let rig = faulty(&disk);
    let mut acknowledged = Vec::new();
    rig.faults.reserve_nothing();
    rig.faults.set_free_bytes(Some(u64::MAX));
    rig.faults.set_quota_bytes(Some(10_000));
    let error = loop {
        let row = format!("row-{:04}", acknowledged.len());
        match block_on(rig.tablet.apply(batch(&row, &format!("value of {row}")))) {
            Ok(_) => acknowledged.push(row),
            Err(error) => break error,
        }
    };
    assert!(error.kind() == ErrorKind::ReadOnly && error.is_in_doubt(), "{error:?}");
    assert!(!acknowledged.is_empty());
    // Room alone does not help.
    rig.faults.heal();
    let later = block_on(rig.tablet.apply(batch("later", "1"))).unwrap_err();
    assert!(later.kind() == ErrorKind::ReadOnly && !later.is_in_doubt(), "{later:?}");
    for row in &acknowledged {
        assert_eq!(value(&rig.tablet, row), Some(format!("value of {row}")));
    }
    drop(rig);
    let rig = faulty(&disk);
    for row in &acknowledged {
        assert_eq!(value(&rig.tablet, row), Some(format!("value of {row}")), "after the restart");
    }
    block_on(rig.tablet.apply(batch("more", "room"))).unwrap();
    assert_eq!(value(&rig.tablet, "more").as_deref(), Some("room"));
}

/// What the log and the catalog reserve, and more.
const ROOM_BYTES: u64 = 4 << 20;

/// Writes an entry of the catalog, or removes it; the kind of error.
fn catalog_commit(engine: &Engine, key: &str, value: Option<&'static str>) -> Option<ErrorKind> {
    let value = value.map(|value| Bytes::from_static(value.as_bytes()));
    let change = MetaChange { key: key.into(), expect: MetaExpect::Any, value };
    engine.meta().commit(&[change]).err().map(|error| error.kind())
}

#[test]
fn a_read_only_engine_keeps_its_catalog_and_on_a_full_disk_lets_entries_go() {
    for full in [false, true] {
        let disk = Arc::new(MemoryFiles::new());
        assert_eq!(catalog_commit(&faulty(&disk).engine, "old", Some("there")), None);
        let refused = Some(ErrorKind::ReadOnly);
        // Nothing changes the catalog between the start and the failure.
        let rig = faulty_within(&disk, tiny_options(), full.then_some(ROOM_BYTES));
        if full {
            rig.faults.set_quota_bytes(Some(0));
            let no_room = Fault::new(FaultOp::Append).on_path("/log/").kind(ErrorKind::NoSpace);
            rig.faults.inject(no_room);
        } else {
            rig.faults.inject(Fault::new(FaultOp::Sync).on_path("/log/"));
        }
        while block_on(rig.tablet.apply(batch("row", "lost in the end"))).is_ok() {}
        if !full {
            rig.faults.heal();
        }
        assert!(matches!(rig.engine.health(), Health::ReadOnly(_)));
        assert_eq!(catalog_commit(&rig.engine, "new", Some("more")), refused);
        assert_eq!(catalog_commit(&rig.engine, "old", Some("changed")), refused);
        assert_eq!(catalog_commit(&rig.engine, "old", None), refused.filter(|_| !full));
        assert_eq!(rig.engine.meta().get("old").unwrap().is_none(), full);
        drop(rig);
        assert_eq!(faulty(&disk).engine.meta().get("old").unwrap().is_none(), full);
    }
}

#[test]
fn a_disk_that_others_fill_refuses_what_grows_the_catalog_and_leaves_the_server_writing() {
    const ENTRIES: usize = 200;
    let disk = Arc::new(MemoryFiles::new());
    let rig = faulty_within(&disk, tiny_options(), Some(ROOM_BYTES));
    let keys: Vec<String> = (0..ENTRIES).map(|n| format!("entry {n}")).collect();
    for key in &keys {
        assert_eq!(catalog_commit(&rig.engine, key, Some("there")), None);
    }
    rig.faults.set_quota_bytes(Some(0));
    let refused = (0..).find_map(|n| catalog_commit(&rig.engine, &format!("new {n}"), Some("x")));
    assert_eq!(refused, Some(ErrorKind::NoSpace));
    for key in &keys {
        assert_eq!(catalog_commit(&rig.engine, key, None), None, "{key}");
    }
    assert_eq!(catalog_commit(&rig.engine, "late", Some("x")), Some(ErrorKind::NoSpace));
    // The log has reserved its segment.
    block_on(rig.tablet.apply(batch("row", "value"))).unwrap();
    assert_eq!(rig.engine.health(), Health::Serving);
    rig.faults.set_quota_bytes(None);
    assert_eq!(catalog_commit(&rig.engine, "late", Some("x")), None);
    drop(rig);
    let meta = faulty(&disk).engine.meta();
    assert!(keys.iter().all(|key| meta.get(key).unwrap().is_none()));
    assert!(meta.get("late").unwrap().is_some());
}

#[test]
fn a_disk_that_others_fill_refuses_drops_of_rows_until_there_is_room_and_nothing_else() {
    let disk = Arc::new(MemoryFiles::new());
    let rig = faulty_within(&disk, tiny_options(), Some(ROOM_BYTES));
    block_on(rig.tablet.apply(batch("a", "1"))).unwrap();
    block_on(rig.tablet.flush()).unwrap();
    rig.faults.set_quota_bytes(Some(0));
    // The manifest goes on to the end of its last block.
    let other = || block_on(rig.tablet.drop_rows(RowRange::prefix(b"b")));
    let refused = (0..1000).find_map(|_| other().err()).unwrap();
    assert!(refused.kind() == ErrorKind::NoSpace && !refused.is_in_doubt(), "{refused:?}");
    assert!(refused.message().starts_with("the disk is full: "), "{refused}");
    block_on(rig.tablet.drop_rows(RowRange::all())).unwrap_err();
    assert_eq!(value(&rig.tablet, "a").as_deref(), Some("1"));
    assert_eq!(rig.engine.health(), Health::Serving);
    // The log has reserved its segment.
    block_on(rig.tablet.apply(batch("c", "2"))).unwrap();

    rig.faults.set_quota_bytes(None);
    assert!(block_on(rig.tablet.drop_rows(RowRange::prefix(b"a"))).unwrap());
    let rows = |rig: &Faulty| ["a", "c"].map(|row| value(&rig.tablet, row));
    let left = [None, Some("2".to_owned())];
    assert_eq!(rows(&rig), left);
    block_on(rig.tablet.flush()).unwrap();
    drop(rig);
    assert_eq!(rows(&faulty(&disk)), left);
}

#[test]
fn a_second_process_is_refused_by_name() {
    let disk = Arc::new(MemoryFiles::new());
    let rig = faulty(&disk);
    let clock = Arc::new(ManualClock::new(START_MICROS));
    let second = env(Arc::clone(&disk) as Arc<dyn Files>, clock, 2);
    let error = Engine::open(second, Path::new("/data"), tiny_options()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Locked);
    assert!(error.message().contains("/data"), "{error}");
    drop(rig);
}

#[test]
fn a_dropped_tablet_leaves_no_files() {
    let rig = Rig::new(tiny_options(), plain_schema(), 3);
    for n in 0..50 {
        let value = "v".repeat(n);
        rig.apply(format!("{n}").as_bytes(), vec![put(1, "q", 0, &value)]);
    }
    block_on(rig.tablet.flush()).unwrap();
    rig.apply(b"in memory", vec![put(1, "q", 0, "v")]);
    let Rig { files, engine, tablet, .. } = rig;
    assert_ne!(files.list(Path::new("/data/values")).unwrap(), []);
    assert!(engine.memory().memtables > 0);
    engine.drop_tablet(tablet.id()).unwrap();
    engine.run_background().unwrap();
    assert_eq!(files.list(Path::new("/data/sst")).unwrap(), []);
    assert_eq!(files.list(Path::new("/data/values")).unwrap(), []);
    assert_eq!(files.list(Path::new("/data/tablets")).unwrap(), []);
    assert_eq!(engine.memory().memtables, 0);
    // Whoever holds it still has nothing, and is told why.
    let stats = tablet.stats();
    assert_eq!((stats.records, stats.sst_count, stats.value_files), (0, 0, 0));
    let projection = Projection::all();
    for view in [ReadView::Durable, ReadView::Pending, ReadView::At(&tablet.snapshot())] {
        let read = block_on(tablet.read_row(b"in memory", &projection, view));
        assert_eq!(read.unwrap_err().kind(), ErrorKind::NotFound, "{view:?}");
    }
    let scanned = scan(&tablet, RowRange::all(), Projection::all(), false, None);
    assert_eq!(scanned.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(tablet.sample_rows(1).unwrap_err().kind(), ErrorKind::NotFound);
    let written = block_on(tablet.apply(batch("row", "value")));
    assert_eq!(written.unwrap_err().kind(), ErrorKind::NotFound);
    let dropped = block_on(tablet.drop_rows(RowRange::all()));
    assert_eq!(dropped.unwrap_err().kind(), ErrorKind::NotFound);
    block_on(tablet.flush()).unwrap();
}

#[test]
fn a_tablet_whose_manifest_cannot_be_removed_keeps_its_rows_with_their_large_values() {
    let disk = Arc::new(MemoryFiles::new());
    let rig = faulty_with(&disk, EngineOptions { separate_values_bytes: 10, ..tiny_options() });
    block_on(rig.tablet.apply(batch("row", &"v".repeat(100)))).unwrap();
    block_on(rig.tablet.flush()).unwrap();
    let of = |dir: &str| disk.list(Path::new(dir)).unwrap();
    let before = (of("/data/sst"), of("/data/values"));
    assert_eq!((before.0.len(), before.1.len()), (1, 1));
    rig.faults.inject(Fault::new(FaultOp::Remove).on_path("MANIFEST-"));
    rig.engine.drop_tablet(rig.tablet.id()).unwrap_err();
    rig.faults.heal();
    rig.engine.run_background().unwrap();
    assert_eq!((of("/data/sst"), of("/data/values")), before);
    drop(rig);
    let rig = faulty(&disk);
    assert_eq!(value(&rig.tablet, "row"), Some("v".repeat(100)));
}

#[test]
fn a_read_under_way_goes_on_to_its_end_when_its_tablet_is_dropped_and_then_its_files_go() {
    let rig = Rig::new(tiny_options(), plain_schema(), 3);
    for n in 0..50 {
        rig.apply(format!("{n:02}").as_bytes(), vec![put(1, "q", 0, &"v".repeat(n))]);
    }
    block_on(rig.tablet.flush()).unwrap();
    rig.apply(b"99", vec![put(1, "q", 0, "in memory")]);
    let options = ScanOptions {
        range: RowRange::all(),
        projection: Projection::all(),
        reverse: false,
        rows_hint: None,
        snapshot: None,
    };
    let mut stream = rig.tablet.scan(options).unwrap();
    assert!(block_on(stream.next()).unwrap().is_some());
    rig.engine.drop_tablet(rig.tablet.id()).unwrap();
    rig.engine.run_background().unwrap();
    let mut rows = 1;
    while let Some(row) = block_on(stream.next()).unwrap() {
        rows += usize::from(!row.cells.is_empty());
    }
    assert_eq!(rows, 51);
    drop(stream);
    rig.engine.run_background().unwrap();
    assert_eq!(rig.files.list(Path::new("/data/sst")).unwrap(), []);
    assert_eq!(rig.files.list(Path::new("/data/values")).unwrap(), []);
    assert_eq!(rig.engine.memory().memtables, 0);
}

#[test]
fn a_tablet_is_dropped_where_the_directory_of_an_open_file_cannot_be_removed() {
    let disk = Arc::new(MemoryFiles::new());
    let files = Arc::new(WatchedFiles::new(Arc::clone(&disk)));
    let clock = Arc::new(ManualClock::new(START_MICROS));
    let environment = env(Arc::clone(&files) as Arc<dyn Files>, clock, 1);
    let (engine, tablet) = open_started(environment, tiny_options());
    fill_and_flush(&engine, &tablet);
    engine.drop_tablet(tablet.id()).unwrap();
    engine.run_background().unwrap();
    for dir in ["tablets", "sst", "values"] {
        assert_eq!(disk.list(&Path::new("/data").join(dir)).unwrap(), [], "{dir}");
    }
}

#[test]
fn a_scan_that_ends_before_a_damaged_block_does_not_fail_for_having_read_ahead() {
    let mut options = tiny_options();
    options.compression = CompressionPolicy::None;
    options.separate_values_bytes = 0;
    options.sst.block_bytes = 1024;
    options.sst.index_partition_bytes = 4096;
    options.target_file_bytes = 1 << 20;
    let rig = Rig::new(options, plain_schema(), 3);
    for n in 0..200 {
        let value = "x".repeat(400);
        rig.apply(format!("row-{n:03}").as_bytes(), vec![put(1, "q", 1000, &value)]);
    }
    block_on(rig.tablet.flush()).unwrap();
    let sst = rig.files.list(Path::new("/data/sst")).unwrap().remove(0).name;
    let path = Path::new("/data/sst").join(sst);
    let mut bytes = rig.files.contents(&path).unwrap();
    bytes[40_000] ^= 0xFF;
    rig.files.put_contents(&path, bytes);
    let mut stream = rig
        .tablet
        .scan(ScanOptions {
            range: RowRange::all(),
            projection: Projection::all(),
            reverse: false,
            rows_hint: None,
            snapshot: None,
        })
        .unwrap();
    let mut rows = 0;
    let error = loop {
        match block_on(stream.next()) {
            Ok(row) => rows += usize::from(row.is_some_and(|row| !row.cells.is_empty())),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Corruption);
    let readable = |n: usize| {
        let row = format!("row-{n:03}");
        let projection = Projection::all();
        block_on(rig.tablet.read_row(row.as_bytes(), &projection, ReadView::Durable)).is_ok()
    };
    let first_damaged = (0..200).find(|n| !readable(*n)).unwrap();
    assert!(first_damaged > 20, "{first_damaged}");
    // That the last one before the damage is complete shows in the block behind it.
    assert!(rows + 1 >= first_damaged, "{rows} of {first_damaged} rows before the damage");
}

/// Rows that take the general way: with values of these lengths, and the tombstone of a column that an older file has of
/// each. They are flushed together; the name of their file.
fn flush_with_tombstones(rig: &Rig, rows: std::ops::Range<usize>, lens: &[usize]) -> String {
    let ssts = || rig.files.list(Path::new("/data/sst")).unwrap().into_iter().map(|e| e.name);
    if ssts().len() == 0 {
        for n in 0..200 {
            rig.apply(format!("row-{n:03}").as_bytes(), vec![put(1, "deleted", 1, "")]);
        }
        block_on(rig.tablet.flush()).unwrap();
    }
    let before: Vec<_> = ssts().collect();
    for n in rows {
        let delete = Mutation::DeleteCells {
            family: FamilyId(1),
            qualifier: "deleted".into(),
            timestamps: TimestampRange::ALL,
        };
        let cell = |(c, len): (usize, &usize)| put(1, &format!("q{c}"), 1000, &"x".repeat(*len));
        let cells = lens.iter().enumerate().map(cell);
        rig.apply(format!("row-{n:03}").as_bytes(), cells.chain([delete]).collect());
    }
    block_on(rig.tablet.flush()).unwrap();
    let mut new = ssts().filter(|name| !before.contains(name));
    new.next().expect("a file was written")
}

fn damage(files: &MemoryFiles, path: &Path, at: usize) {
    let mut bytes = files.contents(path).unwrap();
    bytes[at] ^= 0xFF;
    files.put_contents(path, bytes);
}

#[test]
fn a_scan_returns_every_row_before_a_damaged_block_and_none_that_goes_on_into_it() {
    let mut went_on = 0;
    // Some rows a block; half a block; and two blocks a row.
    for lens in [&[200][..], &[400; 4], &[900, 900]] {
        for damaged in [10_000, 20_000, 21_000, 22_000, 23_000, 24_000, 40_000] {
            let rig = Rig::new(of_many_blocks(0), plain_schema(), 3);
            let sst = flush_with_tombstones(&rig, 0..200, lens);
            damage(&rig.files, &Path::new("/data/sst").join(&sst), damaged);
            let is_readable = |n: usize, projection: &Projection| {
                let row = format!("row-{n:03}");
                let read = rig.tablet.read_row(row.as_bytes(), projection, ReadView::Durable);
                block_on(read).is_ok()
            };
            let all = Projection::all();
            let readable = (0..200).take_while(|n| is_readable(*n, &all)).count();
            assert!((5..180).contains(&readable), "{readable}");
            let (rows, error) = rows_from(&rig.tablet, 0, usize::MAX, &all);
            let error = error.expect("the block is damaged");
            assert_eq!(error.kind(), ErrorKind::Corruption);
            assert!(error.message().contains(&sst), "{error}");
            assert!(error.message().contains("offset"), "{error}");
            assert_eq!(rows, readable, "{lens:?}, damaged at {damaged}");
            let mut stream = rig.tablet.scan(ScanOptions {
                range: RowRange::all(),
                projection: Projection::all(),
                reverse: true,
                rows_hint: None,
                snapshot: None,
            });
            let stream = stream.as_mut().unwrap();
            let behind = (0..200).rev().take_while(|n| is_readable(*n, &all)).count();
            let returned = std::iter::from_fn(|| block_on(stream.next()).ok().flatten());
            assert_eq!(returned.filter(|row| !row.cells.is_empty()).count(), behind);
            let first = Projection::newest_of([(FamilyId(1), "q0".into())]);
            went_on += usize::from(is_readable(readable, &first));
        }
    }
    assert!(went_on > 3, "{went_on} rows with a cell before the block");
}

#[test]
fn a_scan_returns_every_row_before_a_file_of_the_level_that_cannot_be_opened() {
    let options = of_many_blocks(0);
    for (is_joined, is_missing) in [(false, true), (false, false), (true, true), (true, false)] {
        let rig = Rig::new(options.clone(), plain_schema(), 3);
        let ssts = if is_joined {
            let ssts = [0..20, 20..40, 40..60].map(|rows| {
                for n in rows {
                    rig.apply(format!("row-{n:03}").as_bytes(), vec![put(1, "q", 1000, "old")]);
                }
                block_on(rig.tablet.flush()).unwrap();
                rig.files.list(Path::new("/data/sst")).unwrap().pop().unwrap().name
            });
            // The last row of a file is in memory as well.
            rig.apply(b"row-019", vec![put(1, "q", 2000, "new")]);
            ssts
        } else {
            [0..20, 20..40, 40..60].map(|rows| flush_with_tombstones(&rig, rows, &[400]))
        };
        let Rig { files, engine, tablet, .. } = rig;
        drop((engine, tablet));
        let path = Path::new("/data/sst").join(&ssts[1]);
        if is_missing {
            files.remove(&path).unwrap();
        } else {
            let footer = files.contents(&path).unwrap().len() - 5;
            damage(&files, &path, footer);
        }
        let faulty = faulty_with(&files, options.clone());
        let (rows, error) = rows_from(&faulty.tablet, 0, usize::MAX, &Projection::all());
        let error = error.expect("a file cannot be opened");
        assert_eq!(error.kind(), ErrorKind::Corruption);
        assert!(error.message().contains(&ssts[1]), "{error}");
        assert_eq!(rows, 20, "joined: {is_joined}, missing: {is_missing}");
    }
}

/// Files of many blocks, and of many values, each joined into reads of up to a megabyte.
fn of_many_blocks(separate_values_bytes: u64) -> EngineOptions {
    let mut options = tiny_options();
    options.compression = CompressionPolicy::None;
    options.separate_values_bytes = separate_values_bytes;
    options.sst.block_bytes = 1024;
    options.sst.index_partition_bytes = 4096;
    options.target_file_bytes = 1 << 20;
    options
}

/// 200 rows of a column `a` and a column `b` in files, on a device that cannot read the byte at `offset` of the only file
/// of `dir`; and the name of that file.
fn with_a_bad_sector(options: EngineOptions, dir: &str, offset: u64) -> (Faulty, String) {
    let rig = Rig::new(options.clone(), plain_schema(), 3);
    for n in 0..200 {
        let value = "x".repeat(400);
        let mutations = ["a", "b"].map(|qualifier| put(1, qualifier, 1000, &value));
        rig.apply(format!("row-{n:03}").as_bytes(), mutations.into());
    }
    block_on(rig.tablet.flush()).unwrap();
    rig.engine.close().unwrap();
    let Rig { files, engine, tablet, .. } = rig;
    drop((engine, tablet));
    let name = files.list(&Path::new("/data").join(dir)).unwrap().remove(0).name;
    let faulty = faulty_with(&files, options);
    faulty.faults.inject(Fault::new(FaultOp::Read).on_path(&name).at(offset).sticky());
    (faulty, name)
}

#[test]
fn a_file_that_is_missing_is_damage_to_those_who_read_its_rows() {
    for dir in ["sst", "values"] {
        let options = EngineOptions { separate_values_bytes: 100, ..tiny_options() };
        let rig = Rig::new(options.clone(), plain_schema(), 3);
        rig.apply(b"row-000", vec![put(1, "a", 1000, &"x".repeat(400))]);
        block_on(rig.tablet.flush()).unwrap();
        rig.engine.close().unwrap();
        let Rig { files, engine, tablet, .. } = rig;
        drop((engine, tablet));
        let dir = Path::new("/data").join(dir);
        let name = files.list(&dir).unwrap().remove(0).name;
        files.remove(&dir.join(&name)).unwrap();
        let faulty = faulty_with(&files, options);
        let (rows, error) = rows_from(&faulty.tablet, 0, 1, &Projection::all());
        let error = error.unwrap();
        assert_eq!((rows, error.kind()), (0, ErrorKind::Corruption), "{error}");
        assert!(error.message().contains(&name), "{error}");
    }
}

/// The first `rows_max` rows from row `first` on, and the error that ended them, if one did.
fn rows_from(
    tablet: &Tablet,
    first: usize,
    rows_max: usize,
    projection: &Projection,
) -> (usize, Option<tepui_engine::Error>) {
    let start = format!("row-{first:03}").into_bytes().into();
    let mut stream = tablet
        .scan(ScanOptions {
            range: RowRange { start, ..RowRange::all() },
            projection: projection.clone(),
            reverse: false,
            rows_hint: (rows_max < usize::MAX).then_some(rows_max),
            snapshot: None,
        })
        .unwrap();
    let mut rows = 0;
    while rows < rows_max {
        match block_on(stream.next()) {
            Ok(Some(row)) => rows += usize::from(!row.cells.is_empty()),
            Ok(None) => break,
            Err(error) => return (rows, Some(error)),
        }
    }
    (rows, None)
}

/// The first row that cannot be read by itself.
fn first_unreadable(tablet: &Tablet) -> usize {
    let is_readable = |n: &usize| {
        let row = format!("row-{n:03}");
        let projection = Projection::all();
        block_on(tablet.read_row(row.as_bytes(), &projection, ReadView::Durable)).is_ok()
    };
    (0..200).find(|n| !is_readable(n)).unwrap()
}

#[test]
fn a_scan_gives_all_rows_before_a_block_that_cannot_be_read_and_then_says_where_it_is() {
    // Which of the reads ahead meets the sector depends on where it lies.
    for offset in [40_000, 90_000, 140_000] {
        let (faulty, sst) = with_a_bad_sector(of_many_blocks(0), "sst", offset);
        let damaged = first_unreadable(&faulty.tablet);
        assert!(damaged > 20, "{damaged}");
        let all = Projection::all();
        let (rows, error) = rows_from(&faulty.tablet, 0, usize::MAX, &all);
        // That the last one before the damage is complete shows in the block behind it.
        assert!(rows + 1 >= damaged, "{rows} of {damaged} rows before the damage");
        let error = error.unwrap();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.message().contains(&sst) && error.message().contains("offset"), "{error}");
        for first in 0..damaged - 1 {
            let (rows, error) = rows_from(&faulty.tablet, first, 1, &all);
            assert_eq!((rows, error.is_none()), (1, true), "row {first} of {damaged}: {error:?}");
        }
    }
}

#[test]
fn a_scan_gives_all_rows_before_a_value_that_cannot_be_read_and_then_says_where_it_is() {
    for offset in [20_000, 61_000] {
        let (faulty, values) = with_a_bad_sector(of_many_blocks(400), "values", offset);
        let damaged = first_unreadable(&faulty.tablet);
        assert!(damaged > 20, "{damaged}");
        let (rows, error) = rows_from(&faulty.tablet, 0, usize::MAX, &Projection::all());
        assert_eq!(rows, damaged);
        let error = error.unwrap();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.message().contains(&values) && error.message().contains("offset"), "{error}");
        let (rows, error) = rows_from(&faulty.tablet, damaged + 1, usize::MAX, &Projection::all());
        assert_eq!((rows, error.is_none()), (199 - damaged, true), "those behind it: {error:?}");
    }
}

#[test]
fn a_bad_sector_between_two_values_fails_neither() {
    let (faulty, _) = with_a_bad_sector(of_many_blocks(400), "values", 20_000);
    let rows_of = |qualifier: &'static str| {
        let columns = [(FamilyId(1), Bytes::from_static(qualifier.as_bytes()))];
        rows_from(&faulty.tablet, 0, usize::MAX, &Projection::newest_of(columns))
    };
    // The sector is in a value of one of the two columns, and in a gap of the other's.
    let mut ends = ["a", "b"].map(|qualifier| rows_of(qualifier).1.is_none());
    ends.sort_unstable();
    assert_eq!(ends, [false, true]);
}

#[test]
fn who_is_still_at_work_when_the_engine_closes_commits_nothing_to_a_catalog_that_is_anothers() {
    let (rig, _) = furnished();
    let meta = rig.engine.meta();
    let commit = |meta: &dyn MetaStore, value: &'static str| {
        let value = Some(Bytes::from_static(value.as_bytes()));
        meta.commit(&[MetaChange { key: "k".into(), expect: MetaExpect::Any, value }])
    };
    commit(meta.as_ref(), "first").unwrap();
    rig.engine.close().unwrap();
    assert_eq!(commit(meta.as_ref(), "late").unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(meta.get("k").unwrap().unwrap().value, "first");
    let files = Arc::clone(&rig.files);
    let rig = rig.reopen_on(files);
    assert_eq!(rig.engine.meta().get("k").unwrap().unwrap().value, "first");
    commit(rig.engine.meta().as_ref(), "second").unwrap();
}

#[test]
fn a_closed_engine_makes_and_removes_nothing_in_a_directory_that_may_be_anothers() {
    let (rig, _) = furnished();
    let backup = block_on(rig.engine.create_backup(&[rig.tablet.id()])).unwrap();
    rig.engine.close().unwrap();
    let before = contents(&rig.files);
    let engine = &rig.engine;
    let errors = [
        engine.create_tablet(RowRange::all()).unwrap_err(),
        engine.restore_backup(backup.id()).unwrap_err(),
        engine.copy_backup(backup.id()).unwrap_err(),
        engine.delete_backup(backup.id()).unwrap_err(),
        engine.drop_tablet(rig.tablet.id()).unwrap_err(),
    ];
    assert_eq!(errors.map(|error| error.kind()), [ErrorKind::Closed; 5]);
    assert_eq!(contents(&rig.files), before);
}

/// All files but the lock, with what is in them.
fn contents(files: &MemoryFiles) -> Vec<(PathBuf, Vec<u8>)> {
    let mut paths = Vec::new();
    files_under(files, Path::new("/data"), &mut paths);
    paths.retain(|path| path.file_name() != Some("LOCK".as_ref()));
    paths.into_iter().map(|path| (path.clone(), files.contents(&path).unwrap())).collect()
}

/// A directory with SSTs, value files, log and one tablet, as SIGKILL leaves it; the catalog names the tablet.
fn killed() -> (Arc<MemoryFiles>, TabletId) {
    let (rig, _) = furnished();
    let (files, id) = (Arc::clone(&rig.files), rig.tablet.id());
    let value = Some(Bytes::from(id.0.to_string()));
    let change = MetaChange { key: "tables/t".into(), expect: MetaExpect::Any, value };
    rig.engine.meta().commit(&[change]).unwrap();
    drop(rig);
    for part in ["sst", "values", "log"] {
        assert!(!files.list(&Path::new("/data").join(part)).unwrap().is_empty(), "{part}");
    }
    (files, id)
}

fn read_catalog(key: &str, value: &[u8]) -> tepui_engine::Result<Option<CatalogEntry>> {
    let Some(table) = key.strip_prefix("tables/") else { return Ok(None) };
    let id = std::str::from_utf8(value).unwrap().parse().unwrap();
    let table = TableTablets { table: table.to_owned(), tablets: vec![TabletId(id)] };
    Ok(Some(CatalogEntry::Table(table)))
}

/// Opens the directory as a server does, and as a user without a catalog does.
fn open_both_ways(files: &Arc<MemoryFiles>) -> [tepui_engine::Result<Arc<Engine>>; 2] {
    let environment = || {
        let clock = Arc::new(ManualClock::new(START_MICROS));
        env(Arc::clone(files) as Arc<dyn Files>, clock, 5)
    };
    let (dir, options) = (Path::new("/data"), tiny_options);
    let by_server = Engine::open_with_catalog(environment(), dir, options(), &read_catalog);
    [
        by_server.inspect(|engine| engine.close().unwrap()),
        Engine::open(environment(), dir, options()),
    ]
}

/// Both ways are refused with all of `told` in the error, and nothing is changed.
fn assert_refused(files: &Arc<MemoryFiles>, told: &[&str]) {
    let before = contents(files);
    for opened in open_both_ways(files) {
        let error = opened.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
        assert!(told.iter().all(|told| error.message().contains(told)), "{error}");
        assert!(contents(files) == before, "{error}: something was changed");
    }
}

#[test]
fn a_lost_catalog_is_not_taken_for_an_empty_one() {
    let meta = Path::new("/data/meta");
    let lose = |files: &MemoryFiles| {
        for entry in files.list(meta).unwrap() {
            files.remove(&meta.join(entry.name)).unwrap();
        }
    };
    let (files, _) = killed();
    lose(&files);
    assert_refused(&files, &["/data/meta", "the catalog is missing", "restore"]);

    // Whatever is left beside it.
    for kept in ["tablets", "sst", "values", "log"] {
        let (files, _) = killed();
        lose(&files);
        for (path, _) in contents(&files) {
            let part = path.strip_prefix("/data").unwrap().iter().next().unwrap();
            if part != "IDENTITY" && part != kept {
                files.remove(&path).unwrap();
            }
        }
        if kept != "tablets" {
            for entry in files.list(Path::new("/data/tablets")).unwrap() {
                files.remove_dir(&Path::new("/data/tablets").join(entry.name)).unwrap();
            }
        }
        assert_refused(&files, &["/data/meta", "the catalog is missing", kept]);
    }

    // Only bytes that a first start may leave are left of the first file, which holds everything until the second start.
    for len in [0, 20] {
        let (files, _) = killed();
        let path = meta.join(&files.list(meta).unwrap()[0].name);
        let mut bytes = files.contents(&path).unwrap();
        bytes.truncate(len);
        files.put_contents(&path, bytes);
        assert_refused(&files, &[path.to_str().unwrap(), "restore"]);
    }
}

#[test]
fn a_copy_that_has_only_files_of_data_is_not_taken_for_a_new_directory() {
    let (files, _) = killed();
    for (path, _) in contents(&files) {
        if !path.starts_with("/data/sst") {
            files.remove(&path).unwrap();
        }
    }
    for dir in ["log", "meta"] {
        files.remove_dir(&Path::new("/data").join(dir)).unwrap();
    }
    assert_refused(&files, &["/data/IDENTITY", "the file is missing"]);
}

#[test]
fn a_stray_file_at_the_end_of_all_numbers_keeps_a_server_from_starting_and_is_named() {
    for stray in [
        "sst/ffffffffffffffff.sst",
        "values/fffffffffffffffe.val",
        "backups/BACKUP-ffffffffffffffff",
    ] {
        let (files, _) = killed();
        files.put_contents(&Path::new("/data").join(stray), b"stray".to_vec());
        assert_refused(&files, &[stray, "move it away"]);
    }
    let (files, _) = killed();
    let stray = "changes/0000000000000001-0000000000000002-ffffffffffffffff.chg";
    files.put_contents(&Path::new("/data").join(stray), b"stray".to_vec());
    assert_refused(&files, &["changes", "move it away"]);
}

#[test]
fn a_lost_log_is_not_taken_for_an_empty_one() {
    for dir_too in [false, true] {
        let (files, _) = killed();
        let log = Path::new("/data/log");
        for entry in files.list(log).unwrap() {
            files.remove(&log.join(entry.name)).unwrap();
        }
        if dir_too {
            files.remove_dir(log).unwrap();
        }
        assert_refused(&files, &["/data/log", "the log is missing", "tepui repair"]);
    }
}

#[test]
fn a_manifest_that_lost_its_contents_costs_nothing_else() {
    let (whole, id) = killed();
    let path = Path::new("/data/tablets").join(format!("{:016x}", id.0));
    let path = path.join(&whole.list(&path).unwrap()[0].name);
    let image = whole.contents(&path).unwrap();
    for damaged in [vec![], image[..40].to_vec(), vec![0; image.len()]] {
        let (files, _) = killed();
        files.put_contents(&path, damaged);
        assert_refused(&files, &[path.to_str().unwrap(), "tepui repair"]);
    }
}

#[test]
fn a_tablet_of_the_catalog_without_a_manifest_keeps_a_server_from_starting() {
    for dir_too in [false, true] {
        let (files, id) = killed();
        let dir = Path::new("/data/tablets").join(format!("{:016x}", id.0));
        for entry in files.list(&dir).unwrap() {
            files.remove(&dir.join(entry.name)).unwrap();
        }
        if dir_too {
            files.remove_dir(&dir).unwrap();
        }
        let before = contents(&files);
        let clock = Arc::new(ManualClock::new(START_MICROS));
        let environment = env(Arc::clone(&files) as Arc<dyn Files>, clock, 5);
        let opened = Engine::open_with_catalog(
            environment,
            Path::new("/data"),
            tiny_options(),
            &read_catalog,
        );
        let error = opened.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
        for told in [dir.to_str().unwrap(), "MANIFEST", " t ", "tepui repair"] {
            assert!(error.message().contains(told), "{told} in {error}");
        }
        assert!(contents(&files) == before, "something was changed");
        assert_eq!(files.exists(&dir).unwrap(), !dir_too);
    }
}

/// What a power cut leaves before each sync of a file or directory whose path contains `path`, many times.
fn power_cuts(path: &'static str, cuts: u64, work: impl Fn(&Engine)) -> Vec<Arc<MemoryFiles>> {
    let disk = Arc::new(MemoryFiles::new());
    let faults = Arc::new(FaultFiles::new(Arc::clone(&disk) as Arc<dyn Files>));
    let found = Arc::new(Mutex::new(Vec::new()));
    let (kept, of) = (Arc::clone(&found), Arc::clone(&disk));
    faults.before_sync(Some(Arc::new(move |synced: &Path| {
        if synced.to_string_lossy().contains(path) {
            let mut kept = kept.lock().unwrap();
            kept.extend(
                (0..cuts)
                    .map(|seed| Arc::new(of.crashed_copy(CrashMode::Torn, &SeededRng::new(seed)))),
            );
        }
    })));
    let clock = Arc::new(ManualClock::new(START_MICROS));
    let environment = env(faults as Arc<dyn Files>, clock, 1);
    let engine = Engine::open(environment, Path::new("/data"), tiny_options()).unwrap();
    work(&engine);
    drop(engine);
    let found = std::mem::take(&mut *found.lock().unwrap());
    assert!(!found.is_empty(), "no sync of {path}");
    found
}

#[test]
fn a_power_cut_while_a_tablet_is_created_leaves_a_directory_that_opens() {
    let create = |engine: &Engine| drop(engine.create_tablet(RowRange::all()).unwrap());
    for files in power_cuts("MANIFEST", 500, create) {
        for opened in open_both_ways(&files) {
            assert!(opened.unwrap().tablets().is_empty(), "nobody was told of it");
        }
        assert_eq!(files.list(Path::new("/data/tablets")).unwrap(), []);
    }
}

/// What runs before a directory is opened to be synced.
type DirHook = Box<dyn Fn(&Path) + Send + Sync>;

/// Files that tell before a directory is opened to be synced, and of which one that is being written keeps its directory, as on NFS.
struct WatchedFiles {
    inner: Arc<MemoryFiles>,
    hook: Mutex<Option<DirHook>>,
    /// The directories of files that are being written.
    written: Mutex<Vec<Weak<PathBuf>>>,
}

impl WatchedFiles {
    fn new(inner: Arc<MemoryFiles>) -> Self {
        Self { inner, hook: Mutex::default(), written: Mutex::default() }
    }
}

/// One of them that is being written.
#[derive(Debug)]
struct WatchedWriter {
    inner: Box<dyn WritableFile>,
    _dir: Arc<PathBuf>,
}

impl WritableFile for WatchedWriter {
    fn append(&mut self, data: &[u8]) -> tepui_engine::Result<()> {
        self.inner.append(data)
    }

    fn sync(&mut self) -> tepui_engine::Result<()> {
        self.inner.sync()
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn reserve(&mut self, len: u64) -> tepui_engine::Result<()> {
        self.inner.reserve(len)
    }
}

impl std::fmt::Debug for WatchedFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WatchedFiles").finish_non_exhaustive()
    }
}

impl Files for WatchedFiles {
    fn create(&self, path: &Path) -> tepui_engine::Result<Box<dyn WritableFile>> {
        let dir = Arc::new(path.parent().unwrap().to_owned());
        let inner = self.inner.create(path)?;
        self.written.lock().unwrap().push(Arc::downgrade(&dir));
        Ok(Box::new(WatchedWriter { inner, _dir: dir }))
    }

    fn open(&self, path: &Path) -> tepui_engine::Result<Arc<dyn RandomFile>> {
        self.inner.open(path)
    }

    fn truncate(&self, path: &Path, len: u64) -> tepui_engine::Result<()> {
        self.inner.truncate(path, len)
    }

    fn list(&self, dir: &Path) -> tepui_engine::Result<Vec<DirEntry>> {
        self.inner.list(dir)
    }

    fn exists(&self, path: &Path) -> tepui_engine::Result<bool> {
        self.inner.exists(path)
    }

    fn create_dir_all(&self, dir: &Path) -> tepui_engine::Result<()> {
        self.inner.create_dir_all(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> tepui_engine::Result<()> {
        self.inner.rename(from, to)
    }

    fn remove(&self, path: &Path) -> tepui_engine::Result<()> {
        self.inner.remove(path)
    }

    fn remove_dir(&self, dir: &Path) -> tepui_engine::Result<()> {
        let written = self.written.lock().unwrap();
        if written.iter().filter_map(Weak::upgrade).any(|written| *written == dir) {
            let text = format!("{}: Directory not empty", dir.display());
            return Err(tepui_engine::Error::new(ErrorKind::Io, text));
        }
        self.inner.remove_dir(dir)
    }

    fn open_dir(&self, dir: &Path) -> tepui_engine::Result<Box<dyn Directory>> {
        let hook = self.hook.lock().unwrap().take_if(|_| dir.ends_with("tablets"));
        if let Some(hook) = hook {
            hook(dir);
        }
        self.inner.open_dir(dir)
    }

    fn lock(&self, path: &Path) -> tepui_engine::Result<Box<dyn FileLock>> {
        self.inner.lock(path)
    }
}

/// Opens what a crash has left of a dropped tablet, does what a server does before it serves, and has nothing left.
fn assert_goes_with_the_next_start(disk: &Arc<MemoryFiles>, what: &str) {
    let clock = Arc::new(ManualClock::new(START_MICROS));
    let environment = env(Arc::clone(disk) as Arc<dyn Files>, clock, 2);
    let engine = Engine::open(environment, Path::new("/data"), tiny_options()).unwrap();
    engine.retain_tablets(&[]).unwrap();
    engine.start().unwrap();
    engine.run_background().unwrap();
    for dir in ["tablets", "sst", "values"] {
        assert_eq!(disk.list(&Path::new("/data").join(dir)).unwrap(), [], "{what}");
    }
}

/// Fills the tablet's SSTs and value files.
fn fill_and_flush(engine: &Engine, tablet: &Tablet) {
    for n in 0..60 {
        let value = format!("a value of {n} that is in a file of its own");
        block_on(tablet.apply(batch(&format!("row-{n:03}"), &value))).unwrap();
    }
    block_on(tablet.flush()).unwrap();
    engine.run_background().unwrap();
}

#[test]
fn a_power_cut_while_a_tablet_is_dropped_leaves_nothing_for_longer_than_the_next_start() {
    let disk = Arc::new(MemoryFiles::new());
    let files = Arc::new(WatchedFiles::new(Arc::clone(&disk)));
    let clock = Arc::new(ManualClock::new(START_MICROS));
    let environment = env(Arc::clone(&files) as Arc<dyn Files>, clock, 1);
    let (engine, tablet) = open_started(environment, tiny_options());
    fill_and_flush(&engine, &tablet);
    let id = tablet.id();
    drop(tablet);
    let crashed = Arc::new(Mutex::new(Vec::new()));
    let (housekeeper, of, found) = (Arc::clone(&engine), Arc::clone(&disk), Arc::clone(&crashed));
    *files.hook.lock().unwrap() = Some(Box::new(move |_| {
        // It comes by just then.
        housekeeper.run_background().unwrap();
        let cut = |seed| Arc::new(of.crashed_copy(CrashMode::Torn, &SeededRng::new(seed)));
        found.lock().unwrap().extend((0..100).map(cut));
    }));
    engine.drop_tablet(id).unwrap();
    let crashed = std::mem::take(&mut *crashed.lock().unwrap());
    assert_eq!(crashed.len(), 100);
    for disk in &crashed {
        assert_goes_with_the_next_start(disk, "after a power cut");
    }
    engine.run_background().unwrap();
    assert_eq!(disk.list(Path::new("/data/sst")).unwrap(), []);
}

#[test]
fn a_tablet_whose_manifest_cannot_be_removed_leaves_nothing_for_longer_than_the_next_start() {
    for (op, path) in [
        (FaultOp::Remove, "MANIFEST"),
        (FaultOp::RemoveDir, "/data/tablets/"),
        (FaultOp::SyncDir, "/data/tablets"),
    ] {
        let disk = Arc::new(MemoryFiles::new());
        let Faulty { faults, engine, tablet, .. } = faulty(&disk);
        fill_and_flush(&engine, &tablet);
        let id = tablet.id();
        drop(tablet);
        let ssts = disk.list(Path::new("/data/sst")).unwrap();
        faults.inject(Fault::new(op).on_path(path));
        engine.drop_tablet(id).unwrap_err();
        assert!(engine.tablets().is_empty());
        engine.run_background().unwrap();
        assert_eq!(disk.list(Path::new("/data/sst")).unwrap(), ssts, "{op:?}");
        for seed in 0..30 {
            let crashed = disk.crashed_copy(CrashMode::Torn, &SeededRng::new(seed));
            assert_goes_with_the_next_start(&Arc::new(crashed), path);
        }
    }
}

#[test]
fn a_power_cut_in_the_first_start_leaves_a_directory_that_opens() {
    for files in power_cuts("", 50, |_| ()) {
        for opened in open_both_ways(&files) {
            opened.unwrap().close().unwrap();
        }
    }
}
