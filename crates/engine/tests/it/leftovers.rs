//! What nothing needs any more and cannot be removed: it keeps no server from starting, and goes once it can.

use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use futures::executor::block_on;

use tepui_engine::ErrorKind;
use tepui_engine::backup::BackupId;
use tepui_engine::cell::{RowBatch, RowRange};
use tepui_engine::db::{Engine, Health};
use tepui_engine::io::{Fault, FaultFiles, FaultOp, Files, ManualClock, MemoryFiles};
use tepui_engine::tablet::{Tablet, TabletId};

use crate::harness::{START_MICROS, env, open_started, plain_schema, put, tiny_options};

const DIR: &str = "/data";

/// How long what could not be removed is left alone.
const RETRY_MICROS: u64 = 60_000_000;

struct Rig {
    disk: Arc<MemoryFiles>,
    faults: Arc<FaultFiles>,
    clock: Arc<ManualClock>,
    engine: Arc<Engine>,
}

impl Rig {
    /// An engine over what is on the disk, with such faults, before it is started.
    fn open(disk: Arc<MemoryFiles>, faults: impl IntoIterator<Item = Fault>) -> Self {
        let files = Arc::new(FaultFiles::new(Arc::clone(&disk) as Arc<dyn Files>));
        for fault in faults {
            files.inject(fault);
        }
        let clock = Arc::new(ManualClock::new(START_MICROS));
        let environment = env(Arc::clone(&files) as Arc<dyn Files>, Arc::clone(&clock), 2);
        let engine = Engine::open(environment, Path::new(DIR), tiny_options()).unwrap();
        Self { disk, faults: files, clock, engine }
    }

    /// Does what a server does before it serves, for a catalog that has these.
    fn serve(&self, tablets: &[TabletId], backups: &[BackupId]) {
        self.engine.retain_tablets(tablets).unwrap();
        self.engine.retain_backups(backups).unwrap();
        for tablet in self.engine.tablets() {
            tablet.set_schema(Arc::new(plain_schema()));
        }
        self.engine.start().unwrap();
        assert_eq!(self.engine.health(), Health::Serving);
    }

    /// Names in a directory.
    fn names(&self, dir: &str) -> Vec<String> {
        let dir = Path::new(DIR).join(dir);
        self.disk.list(&dir).unwrap().into_iter().map(|entry| entry.name).collect()
    }

    /// What keeps things from being removed is no more, and the time to try again has come.
    fn heal(&self) {
        self.faults.heal();
        self.clock.advance_micros(RETRY_MICROS);
        self.engine.run_background().unwrap();
    }
}

fn fill(tablet: &Tablet) {
    for n in 0..20 {
        let value = format!("a value of {n} that is in a file of its own");
        let row = format!("row-{n:03}").into_bytes().into();
        let write = RowBatch { row, mutations: vec![put(1, "q", 1000, &value)] };
        block_on(tablet.apply(write)).unwrap();
    }
    block_on(tablet.flush()).unwrap();
}

/// A closed directory with two tablets and their rows, and a backup of the first.
fn two_tablets() -> (Arc<MemoryFiles>, [TabletId; 2], BackupId) {
    let disk = Arc::new(MemoryFiles::new());
    let clock = Arc::new(ManualClock::new(START_MICROS));
    let environment = env(Arc::clone(&disk) as Arc<dyn Files>, clock, 1);
    let (engine, first) = open_started(environment, tiny_options());
    let second = engine.create_tablet(RowRange::all()).unwrap();
    second.set_schema(Arc::new(plain_schema()));
    fill(&first);
    fill(&second);
    let backup = block_on(engine.create_backup(&[first.id()])).unwrap().id();
    engine.close().unwrap();
    (disk, [first.id(), second.id()], backup)
}

#[test]
fn a_tablet_that_no_table_has_and_that_cannot_be_removed_keeps_nobody_from_starting() {
    for op in [FaultOp::Remove, FaultOp::RemoveDir] {
        let (disk, [kept, gone], backup) = two_tablets();
        let name = format!("{:016x}", gone.0);
        let fault = Fault::new(op).on_path(format!("tablets/{name}")).sticky();
        let rig = Rig::open(Arc::clone(&disk), [fault.clone()]);
        rig.serve(&[kept], &[backup]);
        assert!(rig.names("tablets").contains(&name), "{op:?}");
        let ssts = rig.names("sst").len();
        drop(rig);
        // The next start meets the same.
        let rig = Rig::open(disk, [fault]);
        rig.serve(&[kept], &[backup]);
        rig.heal();
        assert_eq!(rig.names("tablets"), [format!("{:016x}", kept.0)], "{op:?}");
        assert!(rig.names("sst").len() < ssts, "{op:?}");
    }
}

#[test]
fn a_stray_file_in_the_directory_of_a_removed_tablet_keeps_nobody_from_starting() {
    let (disk, [kept, gone], backup) = two_tablets();
    let dir = Path::new(DIR).join(format!("tablets/{:016x}", gone.0));
    disk.create_dir_all(&dir.join("stray")).unwrap();
    // As a creation that was cut short leaves it.
    let unfinished = Path::new(DIR).join("tablets/00000000000000ff/stray");
    disk.create_dir_all(&unfinished).unwrap();
    for _ in 0..2 {
        Rig::open(Arc::clone(&disk), []).serve(&[kept], &[backup]);
    }
    let rig = Rig::open(disk, []);
    rig.serve(&[kept], &[backup]);
    rig.disk.remove_dir(&dir.join("stray")).unwrap();
    rig.disk.remove_dir(&unfinished).unwrap();
    rig.heal();
    assert_eq!(rig.names("tablets"), [format!("{:016x}", kept.0)]);
}

#[test]
fn a_backup_that_no_entry_names_and_that_cannot_be_removed_keeps_nobody_from_starting() {
    let (disk, [first, second], _) = two_tablets();
    let draft = "BACKUP-00000000000000aa.new";
    for name in [draft, "notes.new"] {
        disk.put_contents(&Path::new(DIR).join("backups").join(name), b"x".to_vec());
    }
    let rig = Rig::open(disk, [Fault::new(FaultOp::Remove).on_path("/backups/").sticky()]);
    rig.serve(&[first, second], &[]);
    assert_eq!(rig.names("backups").len(), 3);
    rig.heal();
    assert_eq!(rig.names("backups"), ["notes.new"], "somebody else's stays");
}

#[test]
fn a_change_file_that_counts_for_nothing_and_cannot_be_removed_keeps_nobody_from_starting() {
    let (disk, [first, second], backup) = two_tablets();
    let changes = Path::new(DIR).join("changes");
    let names = ["0000000000000001.chg.new", "0000000000000005.horizon"];
    for name in names.into_iter().chain(["0000000000000007.horizon"]) {
        disk.put_contents(&changes.join(name), Vec::new());
    }
    let fault = Fault::new(FaultOp::Remove).on_path("/changes/0").sticky();
    Rig::open(Arc::clone(&disk), [fault]).serve(&[first, second], &[backup]);
    assert!(names.iter().all(|name| disk.exists(&changes.join(name)).unwrap()));
    let rig = Rig::open(disk, []);
    assert!(!names.iter().any(|name| rig.names("changes").contains(&(*name).to_owned())));
}

#[test]
fn a_start_whose_engine_has_failed_over_a_removal_is_refused() {
    let (disk, [first, second], _) = two_tablets();
    let rig = Rig::open(Arc::clone(&disk), []);
    rig.faults.inject(Fault::new(FaultOp::SyncDir).on_path("/tablets"));
    assert_eq!(rig.engine.retain_tablets(&[first]).unwrap_err().kind(), ErrorKind::Io);
    drop(rig);
    let rig = Rig::open(disk, []);
    rig.engine.retain_tablets(&[first, second]).unwrap();
    rig.faults.inject(Fault::new(FaultOp::SyncDir).on_path("/backups"));
    assert_eq!(rig.engine.retain_backups(&[]).unwrap_err().kind(), ErrorKind::Io);
}

#[test]
fn what_a_deleted_table_had_goes_once_its_directory_can_be_removed() {
    for (op, path) in [
        (FaultOp::List, "/tablets/"),
        (FaultOp::Remove, "/tablets/"),
        (FaultOp::RemoveDir, "/tablets/"),
        (FaultOp::OpenDir, "/tablets"),
    ] {
        let (disk, [first, second], backup) = two_tablets();
        let rig = Rig::open(disk, []);
        rig.serve(&[first, second], &[backup]);
        rig.engine.delete_backup(backup).unwrap();
        for id in [first, second] {
            rig.faults.inject(Fault::new(op).on_path(path).kind(ErrorKind::Exhausted));
            rig.engine.drop_tablet(id).unwrap_err();
        }
        rig.engine.run_background().unwrap();
        let left = (rig.names("sst"), rig.names("values"));
        assert!(!left.0.is_empty() && !left.1.is_empty(), "{op:?}: as its manifest may be");
        // The first time it fails again.
        rig.faults.inject(Fault::new(op).on_path(path).kind(ErrorKind::Exhausted));
        rig.clock.advance_micros(RETRY_MICROS);
        rig.engine.run_background().unwrap();
        rig.heal();
        for dir in ["tablets", "sst", "values"] {
            assert_eq!(rig.names(dir), [""; 0], "{op:?}: {dir}");
        }
    }
}

#[test]
fn what_a_deleted_backup_kept_goes_once_its_list_can_be_removed() {
    for (op, path) in [(FaultOp::Remove, "/backups/"), (FaultOp::OpenDir, "/backups")] {
        let (disk, [first, second], backup) = two_tablets();
        let rig = Rig::open(disk, []);
        rig.serve(&[first, second], &[backup]);
        for id in [first, second] {
            rig.engine.drop_tablet(id).unwrap();
        }
        rig.faults.inject(Fault::new(op).on_path(path).kind(ErrorKind::Exhausted));
        rig.engine.delete_backup(backup).unwrap_err();
        rig.engine.run_background().unwrap();
        assert!(!rig.names("sst").is_empty(), "{op:?}: as its list may be");
        rig.heal();
        for dir in ["backups", "sst", "values"] {
            assert_eq!(rig.names(dir), [""; 0], "{op:?}: {dir}");
        }
    }
}

#[test]
fn an_engine_that_is_read_only_removes_nothing_that_was_left() {
    let (disk, [first, second], backup) = two_tablets();
    let rig = Rig::open(disk, []);
    rig.serve(&[first, second], &[backup]);
    rig.faults.inject(Fault::new(FaultOp::Remove).on_path("/backups/"));
    rig.engine.delete_backup(backup).unwrap_err();
    rig.faults.inject(Fault::new(FaultOp::SyncDir).on_path("/tablets"));
    rig.engine.drop_tablet(first).unwrap_err();
    let before = [rig.names("backups"), rig.names("tablets"), rig.names("sst")];
    rig.heal();
    assert_eq!([rig.names("backups"), rig.names("tablets"), rig.names("sst")], before);
}

#[test]
fn a_new_tablet_does_not_take_the_number_of_one_that_is_yet_to_be_removed() {
    let disk = Arc::new(MemoryFiles::new());
    let rig = Rig::open(Arc::clone(&disk), None);
    rig.serve(&[], &[]);
    let first = rig.engine.create_tablet(RowRange::new("", "m")).unwrap().id();
    rig.engine.close().unwrap();
    // What crashes leave of creations, with a clock that stands still.
    for n in 1..=8 {
        disk.create_dir_all(&Path::new(DIR).join(format!("tablets/{:016x}", first.0 + n))).unwrap();
    }
    let rig = Rig::open(Arc::clone(&disk), [Fault::new(FaultOp::RemoveDir).sticky()]);
    rig.serve(&[first], &[]);
    let new = rig.engine.create_tablet(RowRange::new("m", "")).unwrap().id();
    rig.heal();
    assert_eq!(rig.names("tablets"), [first, new].map(|id| format!("{:016x}", id.0)));
    rig.engine.close().unwrap();
    let rig = Rig::open(disk, None);
    rig.serve(&[first, new], &[]);
    assert!(rig.engine.tablet(new).is_some());
}

#[test]
fn leftovers_that_take_long_go_in_turns_and_one_that_stays_is_left_alone_for_a_while() {
    let (disk, [first, second], backup) = two_tablets();
    let of = |id: TabletId| format!("tablets/{:016x}", id.0);
    let fails = |id| Fault::new(FaultOp::Remove).on_path(of(id)).sticky();
    let rig = Rig::open(disk, [fails(first), fails(second)]);
    rig.serve(&[], &[backup]);
    rig.faults.heal();
    rig.faults.inject(fails(second));
    // Each of them takes longer than the housekeeper has.
    let clock = Arc::clone(&rig.clock);
    let slow = move |path: &Path| {
        if path.ends_with("tablets") {
            clock.advance_micros(RETRY_MICROS / 100);
        }
    };
    rig.faults.before_sync(Some(Arc::new(slow)));
    rig.clock.advance_micros(RETRY_MICROS);
    rig.engine.run_background().unwrap();
    assert_eq!(rig.names("tablets"), [format!("{:016x}", second.0)]);
    rig.faults.heal();
    rig.engine.run_background().unwrap();
    assert_eq!(rig.names("tablets").len(), 1, "it was tried a moment ago");
    rig.heal();
    assert!(rig.names("tablets").is_empty());
}

#[test]
fn a_directory_is_not_let_go_while_something_is_removed_from_it() {
    let (disk, [first, second], backup) = two_tablets();
    let rig = Rig::open(disk, []);
    rig.serve(&[first, second], &[backup]);
    let (begins, begun) = mpsc::channel();
    let (closes, closed) = mpsc::channel();
    let closed = Mutex::new(closed);
    rig.faults.before_sync(Some(Arc::new(move |path: &Path| {
        if path.ends_with("tablets") {
            begins.send(()).unwrap();
            let too_soon = closed.lock().unwrap().recv_timeout(Duration::from_millis(200));
            assert_eq!(too_soon, Err(mpsc::RecvTimeoutError::Timeout));
        }
    })));
    thread::scope(|scope| {
        let removal = scope.spawn(|| rig.engine.drop_tablet(first));
        begun.recv().unwrap();
        rig.engine.close().unwrap();
        let _ = closes.send(());
        removal.join().unwrap().unwrap();
    });
    assert_eq!(rig.names("tablets"), [format!("{:016x}", second.0)]);
}
