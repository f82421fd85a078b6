//! Files that cannot be opened, now or for a while: what is there stays, what is of no use goes, and what passes is not kept.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures::executor::block_on;

use tepui_engine::ErrorKind;
use tepui_engine::cell::{RowBatch, RowRange};
use tepui_engine::db::{Engine, EngineOptions, Health, HeldBy};
use tepui_engine::io::{Fault, FaultFiles, FaultOp, Files, ManualClock, MemoryFiles};
use tepui_engine::manifest::{MetaChange, MetaExpect};
use tepui_engine::offline::{CatalogEntry, TableBackup};
use tepui_engine::read::Projection;
use tepui_engine::tablet::{ReadView, Tablet};

use crate::harness::{START_MICROS, env, open_started, plain_schema, put, tiny_options};
use crate::until::until;

/// Values of this size are separated; nothing else is.
const VALUE_BYTES: usize = 1000;

/// Rows that the tests write: enough for several SSTs and value files.
const ROWS: u64 = 120;

struct Rig {
    disk: Arc<MemoryFiles>,
    faults: FaultFiles,
    clock: Arc<ManualClock>,
    engine: Arc<Engine>,
    tablet: Arc<Tablet>,
}

fn options() -> EngineOptions {
    EngineOptions {
        separate_values_bytes: VALUE_BYTES as u64,
        memtable_bytes: 1 << 20,
        log_segment_bytes: 1 << 20,
        target_file_bytes: 32 << 10,
        base_level_bytes: 1 << 20,
        ..tiny_options()
    }
}

/// Opens what is on `disk`; the first opening meets the faults.
fn open(disk: Arc<MemoryFiles>, met: &[Fault]) -> Rig {
    open_with(disk, met, options())
}

fn open_with(disk: Arc<MemoryFiles>, met: &[Fault], options: EngineOptions) -> Rig {
    let faults = FaultFiles::new(Arc::clone(&disk) as Arc<dyn Files>);
    for fault in met {
        faults.inject(fault.clone());
    }
    let clock = Arc::new(ManualClock::new(START_MICROS));
    let environment = env(Arc::new(faults.clone()), Arc::clone(&clock), 1);
    let (engine, tablet) = open_started(environment, options);
    Rig { disk, faults, clock, engine, tablet }
}

fn row(n: u64) -> String {
    format!("row-{n:05}")
}

/// Values that do not compress.
fn value(n: u64, round: u64, bytes: usize) -> String {
    let mut x = (n + (round << 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut text = String::with_capacity(bytes);
    while text.len() < bytes {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        text.push(char::from(b'!' + (x % 90) as u8));
    }
    text
}

impl Rig {
    /// Writes rows with a value that lies elsewhere and one that does not, without flushing them.
    fn write(&self, rows: impl Iterator<Item = u64>, round: u64) {
        for n in rows {
            let mutations = vec![
                put(1, "large", 1000, &value(n, round, VALUE_BYTES)),
                put(1, "small", 1000, &value(n, round, VALUE_BYTES - 100)),
            ];
            let batch = RowBatch { row: row(n).into_bytes().into(), mutations };
            block_on(self.tablet.apply(batch)).unwrap();
        }
    }

    /// The large value of a row.
    fn read(&self, n: u64) -> tepui_engine::Result<String> {
        let projection = Projection::all();
        let key = row(n);
        let read = self.tablet.read_row(key.as_bytes(), &projection, ReadView::Durable);
        let found = block_on(read)?.expect("the row is there");
        Ok(String::from_utf8(found.cells[0].value.to_vec()).unwrap())
    }

    fn assert_reads(&self, rows: impl Iterator<Item = u64>, round: u64) {
        for n in rows {
            assert_eq!(self.read(n).unwrap(), value(n, round, VALUE_BYTES), "{}", row(n));
        }
    }

    fn paths(&self, dir: &str) -> Vec<PathBuf> {
        let dir = Path::new("/data").join(dir);
        self.disk.list(&dir).unwrap().iter().map(|entry| dir.join(&entry.name)).collect()
    }

    /// There is no file of data but those that the tablet has.
    fn assert_no_other_files(&self, fault: &Fault) {
        let stats = self.tablet.stats();
        let left = self.paths("sst").len() + self.paths("values").len();
        assert_eq!(left as u64, stats.sst_count + stats.value_files, "{fault:?}");
    }
}

/// A disk with rows in several SSTs, of which some name values in the same file.
fn furnished() -> Arc<MemoryFiles> {
    let rig = open(Arc::default(), &[]);
    rig.write(0..ROWS, 0);
    rig.engine.compact_fully().unwrap();
    rig.engine.close().unwrap();
    assert!(rig.paths("sst").len() > 2 && rig.paths("values").len() > 2);
    rig.disk
}

fn unopened(path: &Path) -> Fault {
    Fault::new(FaultOp::Open).on_path(path.to_string_lossy())
}

/// An engine that cannot open the SST of the first rows, and how many rows that are.
fn without_first_sst() -> (Rig, u64) {
    let disk = furnished();
    let paths = open(Arc::clone(&disk), &[]).paths("sst");
    for path in paths {
        let rig = open(Arc::clone(&disk), &[unopened(&path).sticky()]);
        let lost = (0..ROWS).take_while(|n| rig.read(*n).is_err()).count() as u64;
        if lost > 0 {
            return (rig, lost);
        }
    }
    panic!("one of the SSTs has the first row")
}

#[test]
fn values_stay_that_an_sst_may_name_which_cannot_be_opened() {
    let (rig, lost) = without_first_sst();
    for round in 1..4 {
        rig.write(lost..ROWS, round);
        block_on(rig.tablet.flush()).unwrap();
        // What needs the SST fails.
        drop(rig.engine.run_background());
    }
    rig.assert_reads(lost..ROWS, 3);
    rig.engine.close().unwrap();
    // The cause is removed: the SST is there, and all that it names.
    let rig = open(rig.disk, &[]);
    rig.assert_reads(0..lost, 0);
    rig.assert_reads(lost..ROWS, 3);
    rig.engine.compact_fully().unwrap();
    rig.engine.compact_fully().unwrap();
    rig.engine.run_background().unwrap();
    let live = ROWS * VALUE_BYTES as u64;
    assert!(rig.tablet.stats().value_file_bytes < 5 * live / 2, "garbage goes again");
}

#[test]
fn values_go_once_the_sst_is_gone_that_could_not_be_opened() {
    let (rig, lost) = without_first_sst();
    let before = rig.paths("values").len();
    block_on(rig.tablet.drop_rows(RowRange::new(row(lost), row(ROWS)))).unwrap();
    rig.engine.run_background().unwrap();
    assert_eq!(rig.paths("values").len(), before, "the SST may name all of them");
    block_on(rig.tablet.drop_rows(RowRange::all())).unwrap();
    rig.engine.run_background().unwrap();
    assert!(rig.paths("sst").is_empty());
    assert!(rig.paths("values").len() < before, "what was known of is gone");
    rig.engine.close().unwrap();
    assert!(open(rig.disk, &[]).paths("values").is_empty());
}

#[test]
fn an_output_that_cannot_be_opened_leaves_no_file_of_its_job() {
    for (dir, fault) in unread() {
        let rig = open(Arc::default(), &[]);
        rig.write(0..ROWS, 0);
        rig.faults.inject(fault.clone());
        let error = block_on(rig.tablet.flush()).unwrap_err();
        assert!(error.message().contains(dir), "{error}");
        rig.assert_reads(0..ROWS, 0);
        drop(rig.engine.close());
        assert!(rig.paths("sst").is_empty() && rig.paths("values").is_empty(), "{fault:?}");
        let rig = open(rig.disk, &[]);
        rig.assert_reads(0..ROWS, 0);
    }
}

/// What keeps new files from being opened or, of the footer of a value file, from being read. And where they are.
fn unread() -> Vec<(&'static str, Fault)> {
    let open = ["/data/sst", "/data/values"].map(|dir| (dir, unopened(Path::new(dir)).sticky()));
    let footer = Fault::new(FaultOp::Read).on_path("/data/values").sticky();
    open.into_iter().chain([("/data/values", footer)]).collect()
}

#[test]
fn a_value_file_that_can_be_opened_again_is_read_again() {
    let disk = furnished();
    let path = open(Arc::clone(&disk), &[]).paths("values").remove(0);
    let rig = open(disk, &[unopened(&path)]);
    let failing: Vec<u64> = (0..ROWS).filter(|n| rig.read(*n).is_err()).collect();
    assert!(!failing.is_empty());
    rig.clock.advance_micros(1_000_000);
    rig.assert_reads(0..ROWS, 0);
}

#[test]
fn a_restore_that_cannot_open_a_file_now_fails_and_can_be_tried_again() {
    let rig = open(furnished(), &[]);
    let backup = block_on(rig.engine.create_backup(&[rig.tablet.id()])).unwrap().id();
    rig.engine.drop_tablet(rig.tablet.id()).unwrap();
    let Rig { tablet, engine, faults, .. } = rig;
    drop(tablet);
    engine.run_background().unwrap();
    faults.inject(Fault::new(FaultOp::Open).on_path("/data/sst").nth(2));
    engine.restore_backup(backup).unwrap_err();
    assert!(engine.tablets().is_empty(), "nothing is left of it");
    let restored = engine.restore_backup(backup).unwrap();
    restored[0].set_schema(Arc::new(plain_schema()));
    for n in 0..ROWS {
        let projection = Projection::all();
        let key = row(n);
        let read = restored[0].read_row(key.as_bytes(), &projection, ReadView::Durable);
        assert!(block_on(read).unwrap().is_some());
    }
}

#[test]
fn where_one_of_several_tablets_cannot_be_made_none_is_left() {
    let rig = open(Arc::default(), &[]);
    let ranges = || ["a", "b", "c"].map(|key| RowRange::new(key, format!("{key}~"))).to_vec();
    let (before, taken) = (rig.paths("tablets"), rig.engine.tablet_bytes());
    rig.faults
        .inject(Fault::new(FaultOp::Create).on_path("MANIFEST").kind(ErrorKind::NoSpace).nth(2));
    let error = rig.engine.create_tablets(ranges()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert_eq!(rig.paths("tablets"), before);
    assert_eq!((rig.engine.tablets().len(), rig.engine.tablet_bytes()), (1, taken));
    let made = rig.engine.create_tablets(ranges()).unwrap();
    let made: Vec<_> = made.iter().map(|tablet| tablet.range().clone()).collect();
    assert_eq!(made, ranges());
}

#[test]
fn after_a_manifest_failed_no_job_writes_files_that_nobody_will_name() {
    let rig = open(Arc::default(), &[]);
    rig.write(0..ROWS, 0);
    rig.faults.inject(Fault::new(FaultOp::Sync).on_path("MANIFEST"));
    block_on(rig.tablet.flush()).unwrap_err();
    let created = rig.faults.count(FaultOp::Create);
    for _ in 0..3 {
        let error = block_on(rig.tablet.flush()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
        drop(rig.engine.run_background());
    }
    assert_eq!(rig.faults.count(FaultOp::Create), created);
    rig.assert_reads(0..ROWS, 0);
    drop(rig.engine.close());
    open(rig.disk, &[]).assert_reads(0..ROWS, 0);
}

/// What may pass, at each place where a flush can meet it before its edit counts.
fn passing() -> Vec<Fault> {
    let places = [
        (FaultOp::Create, "/data/sst"),
        (FaultOp::Create, "/data/values"),
        (FaultOp::Open, "/data/sst"),
        (FaultOp::Open, "/data/values"),
        (FaultOp::OpenDir, "/data/sst"),
        (FaultOp::OpenDir, "/data/values"),
        (FaultOp::Create, "MANIFEST"),
        (FaultOp::OpenDir, "/data/tablets"),
    ];
    let exhausted = |(op, path)| Fault::new(op).on_path(path).kind(ErrorKind::Exhausted);
    let full = Fault::new(FaultOp::Append).on_path("/data/sst").kind(ErrorKind::NoSpace);
    places.into_iter().map(exhausted).chain([full]).collect()
}

#[test]
fn a_flush_that_meets_what_passes_leaves_nothing_and_is_done_later() {
    for fault in passing() {
        // The manifest of a tablet that was opened begins a new file with its first edit.
        let rig = open(furnished(), &[]);
        rig.write(0..ROWS, 1);
        rig.faults.inject(fault.clone());
        let error = block_on(rig.tablet.flush()).unwrap_err();
        assert!(error.message().contains("injected"), "{fault:?}: {error}");
        assert_eq!(rig.engine.health(), Health::Serving, "{fault:?}");
        rig.assert_reads(0..ROWS, 1);
        rig.write(0..1, 2);
        block_on(rig.tablet.flush()).unwrap();
        assert!(rig.tablet.stats().memtable_bytes < 100 << 10, "{fault:?}");
        rig.engine.run_background().unwrap();
        rig.assert_no_other_files(&fault);
        rig.engine.close().unwrap();
        let rig = open(rig.disk, &[]);
        rig.assert_reads(1..ROWS, 1);
        rig.assert_reads(0..1, 2);
    }
}

#[test]
fn what_a_failed_flush_has_written_and_could_not_remove_is_removed_later() {
    let rig = open(Arc::default(), &[]);
    rig.write(0..ROWS, 0);
    let full = Fault::new(FaultOp::Append).on_path("/data/sst").kind(ErrorKind::NoSpace);
    rig.faults.inject(full.clone());
    for dir in ["/data/sst", "/data/values"] {
        rig.faults.inject(Fault::new(FaultOp::Remove).on_path(dir).sticky());
    }
    block_on(rig.tablet.flush()).unwrap_err();
    assert!(!rig.paths("sst").is_empty() && !rig.paths("values").is_empty());
    assert!(rig.engine.obsolete_bytes() > 0);
    rig.faults.heal();
    rig.clock.advance_micros(60_000_000);
    rig.engine.run_background().unwrap();
    rig.assert_no_other_files(&full);
    assert_eq!(rig.engine.obsolete_bytes(), 0);
    rig.assert_reads(0..ROWS, 0);
}

#[test]
fn a_flush_whose_files_do_not_read_back_is_tried_again_until_three_in_a_row_have_not() {
    for (_, fault) in unread() {
        for failures in 1..=3 {
            let rig = open(Arc::default(), &[]);
            let fail = |failures| {
                rig.faults.inject(fault.clone());
                for _ in 0..failures {
                    block_on(rig.tablet.flush()).unwrap_err();
                }
                rig.faults.heal();
            };
            rig.write(0..ROWS, 0);
            fail(failures);
            if failures == 3 {
                let reason = match rig.engine.health() {
                    Health::ReadOnly(reason) => reason,
                    other => panic!("{other:?}"),
                };
                assert!(reason.contains("injected"), "{reason}");
                drop(rig.engine.close());
                open(rig.disk, &[]).assert_reads(0..ROWS, 0);
                continue;
            }
            assert_eq!(rig.engine.health(), Health::Serving, "{fault:?}, {failures}");
            rig.write(0..1, 1);
            block_on(rig.tablet.flush()).unwrap();
            // One that is done ends the row.
            rig.write(1..2, 1);
            fail(2);
            assert_eq!(rig.engine.health(), Health::Serving, "{fault:?}, {failures}");
            rig.engine.run_background().unwrap();
            rig.assert_no_other_files(&fault);
            rig.engine.close().unwrap();
            let rig = open(rig.disk, &[]);
            rig.assert_reads(0..2, 1);
            rig.assert_reads(2..ROWS, 0);
        }
    }
}

#[test]
fn a_flush_that_finds_no_open_file_anywhere_leaves_the_server_writing() {
    for op in [FaultOp::Create, FaultOp::Open, FaultOp::OpenDir, FaultOp::List] {
        let mut refused = 0;
        for nth in 1.. {
            let rig = open(furnished(), &[]);
            rig.write(0..ROWS, 1);
            let before = rig.faults.count(op);
            rig.faults.inject(Fault::new(op).nth(nth).kind(ErrorKind::Exhausted));
            let flushed = block_on(rig.tablet.flush());
            assert_eq!(rig.engine.health(), Health::Serving, "{op:?}, {nth}");
            if rig.faults.count(op) - before < nth {
                flushed.unwrap();
                break;
            }
            refused += usize::from(flushed.is_err());
            rig.faults.heal();
            block_on(rig.tablet.flush()).unwrap();
            rig.assert_reads(0..ROWS, 1);
        }
        assert!(refused > 0, "{op:?}");
    }
}

#[test]
fn a_flush_in_the_background_is_tried_again_until_it_is_done() {
    let options = EngineOptions { background: true, ..options() };
    let rig = open_with(Arc::default(), &[], options);
    rig.write(0..ROWS, 0);
    let shortage = Fault::new(FaultOp::Create).on_path("/data/sst").kind(ErrorKind::Exhausted);
    rig.faults.inject(shortage.sticky());
    std::thread::scope(|scope| {
        let flush = scope.spawn(|| block_on(rig.tablet.flush()));
        let retries = &rig.engine.metrics().flush_retries;
        until("the flush is to be tried again", || retries.load(Ordering::Relaxed) > 0);
        rig.write(0..1, 1);
        rig.faults.heal();
        // The time of the second try.
        rig.clock.advance_micros(1_000_000);
        flush.join().unwrap().unwrap();
    });
    assert_eq!(rig.engine.health(), Health::Serving);
    assert_eq!(rig.tablet.stats().sst_count, 1);
    rig.engine.close().unwrap();
    open(rig.disk, &[]).assert_reads(1..ROWS, 0);
}

#[test]
fn a_flush_that_meets_the_limit_while_the_log_is_held_is_tried_again_too() {
    let options = EngineOptions { log_segment_bytes: 16 << 10, ..options() };
    let rig = open_with(Arc::default(), &[], options);
    rig.write(0..3, 0);
    let shortage = |path| Fault::new(FaultOp::Create).on_path(path).kind(ErrorKind::Exhausted);
    rig.faults.inject(shortage("/data/sst"));
    block_on(rig.tablet.flush()).unwrap_err();
    rig.faults.inject(shortage(".log").sticky());
    std::thread::scope(|scope| {
        let writes = scope.spawn(|| rig.write(3..ROWS, 0));
        let held = || matches!(rig.engine.health(), Health::Held { by: HeldBy::Log, .. });
        until("the log is held", held);
        rig.faults.inject(shortage("/data/sst"));
        block_on(rig.tablet.flush()).unwrap_err();
        assert!(held());
        rig.faults.heal();
        writes.join().unwrap();
    });
    assert_eq!(rig.engine.health(), Health::Serving);
    block_on(rig.tablet.flush()).unwrap();
    rig.assert_reads(0..ROWS, 0);
}

#[test]
fn a_change_of_the_catalog_that_finds_no_open_file_or_no_space_is_refused_and_may_be_sent_again() {
    let fault = |op, kind| Fault::new(op).on_path("/data/meta").kind(kind);
    // The start does without the file, too.
    let rig = open(furnished(), &[fault(FaultOp::Create, ErrorKind::NoSpace)]);
    let value = Some(Bytes::from_static(b"value"));
    let change = [MetaChange { key: "key".into(), expect: MetaExpect::Any, value }];
    for (op, kind) in [
        (FaultOp::Create, ErrorKind::Exhausted),
        (FaultOp::OpenDir, ErrorKind::Exhausted),
        (FaultOp::Create, ErrorKind::NoSpace),
        (FaultOp::Append, ErrorKind::NoSpace),
        (FaultOp::Sync, ErrorKind::NoSpace),
    ] {
        rig.faults.inject(fault(op, kind));
        let error = rig.engine.meta().commit(&change).unwrap_err();
        assert!(error.kind() == kind && !error.is_in_doubt(), "{op:?}: {error}");
        assert_eq!(rig.engine.health(), Health::Serving);
        assert!(rig.engine.meta().get("key").unwrap().is_none());
    }
    rig.engine.meta().commit(&change).unwrap();
    rig.engine.close().unwrap();
    let rig = open(rig.disk, &[]);
    assert_eq!(rig.engine.meta().get("key").unwrap().unwrap().value, "value");
}

#[test]
fn files_stay_that_a_backup_may_keep_whose_list_is_lost() {
    let rig = open(furnished(), &[]);
    let id = block_on(rig.engine.create_backup(&[rig.tablet.id()])).unwrap().id();
    let made = Some(Bytes::from_static(b"a backup"));
    let change = MetaChange { key: "backups/b".into(), expect: MetaExpect::Any, value: made };
    rig.engine.meta().commit(&[change]).unwrap();
    rig.engine.drop_tablet(rig.tablet.id()).unwrap();
    rig.engine.close().unwrap();
    let path = rig.paths("backups").remove(0);
    let list = rig.disk.contents(&path).unwrap();
    rig.disk.remove(&path).unwrap();
    let named = TableBackup { name: "b".into(), id };
    let catalog = |_: &str, _: &[u8]| Ok(Some(CatalogEntry::Backup(named.clone())));
    let reopen = || {
        let files = Arc::clone(&rig.disk) as Arc<dyn Files>;
        let environment = env(files, Arc::clone(&rig.clock), 2);
        Engine::open_with_catalog(environment, Path::new("/data"), options(), &catalog).unwrap()
    };
    drop(reopen());
    rig.disk.put_contents(&path, list);
    let engine = reopen();
    let restored = engine.restore_backup(id).unwrap();
    restored[0].set_schema(Arc::new(plain_schema()));
    for n in 0..ROWS {
        let (key, projection) = (row(n), Projection::all());
        let read = restored[0].read_row(key.as_bytes(), &projection, ReadView::Durable);
        assert_eq!(block_on(read).unwrap().unwrap().cells[0].value, value(n, 0, VALUE_BYTES));
    }
}

#[test]
fn a_start_that_lacks_open_files_for_an_sst_is_refused_and_the_next_serves_all_rows() {
    let rig = open(Arc::new(MemoryFiles::new()), &[]);
    rig.write(0..ROWS, 0);
    block_on(rig.tablet.flush()).unwrap();
    rig.engine.close().unwrap();
    let Rig { disk, clock, engine, tablet, .. } = rig;
    drop((engine, tablet));
    let faults = FaultFiles::new(Arc::clone(&disk) as Arc<dyn Files>);
    let none_left = Fault::new(FaultOp::Open).on_path("/data/sst/").kind(ErrorKind::Exhausted);
    faults.inject(none_left);
    let environment = env(Arc::new(faults), clock, 2);
    let error = Engine::open(environment, Path::new("/data"), options()).map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    assert!(error.message().contains("LimitNOFILE"), "{error}");
    open(disk, &[]).assert_reads(0..ROWS, 0);
}

#[test]
fn a_start_that_may_not_read_data_files_is_refused_with_their_number_and_what_to_do() {
    let rig = open(Arc::new(MemoryFiles::new()), &[]);
    rig.write(0..ROWS, 0);
    block_on(rig.tablet.flush()).unwrap();
    let counts = ["sst", "values"].map(|dir| (dir, rig.paths(dir).len()));
    rig.engine.close().unwrap();
    let Rig { disk, clock, engine, tablet, .. } = rig;
    drop((engine, tablet));
    for (dir, count) in counts {
        assert!(count > 0);
        let faults = FaultFiles::new(Arc::clone(&disk) as Arc<dyn Files>);
        let path = format!("/data/{dir}/");
        faults.inject(Fault::new(FaultOp::Open).on_path(&path).denied().sticky());
        let environment = env(Arc::new(faults), Arc::clone(&clock), 2);
        let opened = Engine::open(environment, Path::new("/data"), options());
        let error = opened.map(|_| ()).unwrap_err();
        let text = error.message();
        assert!(
            text.starts_with(&format!("{count} data files at least cannot be opened")),
            "{text}"
        );
        assert!(text.contains(&path) && text.contains("change the owner"), "{text}");
    }
    open(disk, &[]).assert_reads(0..ROWS, 0);
}

#[test]
fn a_tablet_that_cannot_be_created_leaves_nothing_of_it() {
    let rig = open(Arc::new(MemoryFiles::new()), &[]);
    let dirs = || rig.disk.list(Path::new("/data/tablets")).unwrap();
    let before = dirs();
    let shortages = [
        Fault::new(FaultOp::Create).on_path("MANIFEST").kind(ErrorKind::Exhausted),
        Fault::new(FaultOp::OpenDir).on_path("tablets").kind(ErrorKind::Exhausted),
    ];
    for shortage in shortages {
        rig.faults.inject(shortage);
        let error = rig.engine.create_tablet(RowRange::all()).map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
        assert_eq!(dirs(), before);
    }
    let created = rig.engine.create_tablet(RowRange::all()).unwrap();
    assert_eq!(dirs().len(), before.len() + 1, "{:?}", created.id());
}
