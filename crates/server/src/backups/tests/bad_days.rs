//! Backups and restores that a crash, a client, a failing disk or a full one interrupts.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::FutureExt as _;
use tepui_engine::cell::RowRange;
use tepui_engine::db::Health;
use tepui_engine::error::ErrorKind;
use tepui_engine::io::CrashMode;

use super::*;
use crate::catalog::resources::Change;

/// A server that crashed while it made a backup and the next one, which has not taken that up yet; with the operation.
/// `before` sees the first.
fn interrupted(before: impl FnOnce(&Place)) -> (Place, Operation) {
    interrupted_over(before, Arc::new(ThreadSpawner))
}

/// The same whose next server has threads of this spawner.
fn interrupted_over(before: impl FnOnce(&Place), spawner: Arc<dyn Spawner>) -> (Place, Operation) {
    let disk = MemoryFiles::new();
    let faults = FaultFiles::new(Arc::new(disk.clone()));
    let place = with_table(Arc::new(faults.clone()));
    // The flush fails, so the engine ends, as far as the backup is concerned.
    faults.inject(Fault::new(FaultOp::Create).on_path(".sst").sticky());
    let started = place.backups.create(BACKUP, &place.asked(10 * HOUR)).unwrap();
    place.idle();
    assert!(!place.operations.get(&started.name).unwrap().done);
    before(&place);
    let crashed = disk.crashed_copy(CrashMode::Strict, &SeededRng::new(3));
    let clock = Arc::new(ManualClock::new(place.now() + HOUR));
    (open_over(Arc::new(crashed), clock, options_with(false), spawner), started)
}

/// The system's threads, where it has any for backups.
#[derive(Debug, Default)]
struct Scarce(AtomicBool);

impl Spawner for Scarce {
    fn spawn(
        &self,
        name: &str,
        work: Box<dyn FnOnce() + Send>,
    ) -> tepui_engine::Result<Box<dyn JoinHandle>> {
        if name != "tepui-backup" || self.0.load(Ordering::Relaxed) {
            return ThreadSpawner.spawn(name, work);
        }
        Err(tepui_engine::Error::new(ErrorKind::Exhausted, "no more threads"))
    }
}

#[test]
fn a_start_without_threads_to_spare_goes_on_with_what_was_interrupted_once_there_are_some() {
    let threads = Arc::new(Scarce::default());
    let (place, started) = interrupted_over(|_| {}, Arc::clone(&threads) as Arc<dyn Spawner>);
    place.backups.resume().unwrap();
    place.operations.abort_interrupted();
    place.backups.sweep();
    assert!(!place.operations.get(&started.name).unwrap().done);
    assert_eq!(place.backups.get(BACKUP).unwrap().state, i32::from(State::Creating));
    // A new one is refused, to be asked for again.
    let other = format!("{CLUSTER}/backups/other");
    let error = place.backups.create(&other, &place.asked(10 * HOUR)).unwrap_err();
    assert_eq!(error.kind(), Code::ResourceExhausted);
    assert!(error.retry_after().is_some() && place.backups.get(&other).is_err());
    threads.0.store(true, Ordering::Relaxed);
    place.backups.sweep();
    response(&place.wait(&started)).unwrap();
    assert_eq!(place.backups.get(BACKUP).unwrap().state, i32::from(State::Ready));
}

#[test]
fn a_backup_that_a_crash_interrupts_is_made_by_the_next_server() {
    let (place, started) = interrupted(|place| {
        assert_eq!(place.backups.get(BACKUP).unwrap().state, i32::from(State::Creating));
        let unready = place.backups.restore(OTHER, BACKUP).unwrap_err().kind();
        assert!(matches!(unready, Code::Unavailable | Code::FailedPrecondition), "{unready:?}");
    });
    place.backups.resume().unwrap();
    let done = place.wait(&started);
    response(&done).unwrap();
    assert_eq!(place.backups.get(BACKUP).unwrap().state, i32::from(State::Ready));
    response(&place.wait(&place.backups.restore(OTHER, BACKUP).unwrap())).unwrap();
    assert_eq!(place.value(OTHER).unwrap(), "first");
}

#[test]
fn a_backup_that_is_made_while_a_start_looks_for_those_that_nobody_makes_stays() {
    let (place, started) = interrupted(|_| {});
    let stored = place.backups.resources.get::<BackupRecord>(BACKUP).unwrap();
    // The start has seen that it is not made; then its thread makes it, and ends its operation.
    assert_eq!(stored.value.engine_id, None);
    place.backups.resume().unwrap();
    response(&place.wait(&started)).unwrap();
    place.backups.give_up(BACKUP, stored.value.incarnation);
    let place = place.restart();
    response(&place.wait(&place.backups.restore(OTHER, BACKUP).unwrap())).unwrap();
    assert_eq!(place.value(OTHER).unwrap(), "first");
}

#[test]
fn what_is_cancelled_in_the_midst_of_its_work_leaves_no_files_either() {
    let faults = FaultFiles::new(Arc::new(MemoryFiles::new()));
    let place = with_table(Arc::new(faults.clone()));
    place.make(BACKUP);
    let (backups, tablets) = (place.engine.backups().len(), place.engine.tablets().len());
    // Cancels all that is under way before a file of this directory is durable.
    let cancel_at = |directory: &'static str| {
        let operations = Arc::clone(&place.operations);
        let hook = move |path: &Path| {
            if path.to_string_lossy().contains(directory) {
                for (_, operation) in operations.list_where("", 0, |of| !of.done) {
                    operations.cancel(&operation.name).unwrap();
                }
            }
        };
        faults.before_sync(Some(Arc::new(hook)));
    };
    cancel_at("/backups/");
    let name = format!("{CLUSTER}/backups/new");
    let created = place.backups.create(&name, &place.asked(10 * HOUR)).unwrap();
    let cancelled = Err(i32::from(tonic::Code::Cancelled));
    assert_eq!(response(&place.wait(&created)), cancelled);
    assert_eq!(place.names(&listing(CLUSTER)).0, ["b"]);
    place.idle();
    assert_eq!(place.engine.backups().len(), backups);
    cancel_at("/tablets/");
    let restored = place.backups.restore(OTHER, BACKUP).unwrap();
    assert_eq!(response(&place.wait(&restored)), cancelled);
    assert_eq!(place.tables.get(OTHER).unwrap_err().kind(), Code::NotFound);
    assert_eq!(place.engine.tablets().len(), tablets);
    faults.before_sync(None);
    response(&place.wait(&place.backups.restore(OTHER, BACKUP).unwrap())).unwrap();
}

/// Deletes an instance as a client does.
fn delete_instance(
    instance: &str,
    backups: &Backups,
    tables: &Tables,
    operations: &Operations,
) -> Result<()> {
    let allowed = |change: &mut Change<'_>| operations.abort_within(change, instance);
    backups.instances.delete(instance, tables, allowed)
}

/// Has an instance deleted before a file of this directory is durable.
fn delete_instance_at(
    faults: &FaultFiles,
    place: &Place,
    instance: &'static str,
    directory: &'static str,
) {
    let (backups, tables) = (Arc::clone(&place.backups), Arc::clone(&place.tables));
    let operations = Arc::clone(&place.operations);
    let hook = move |path: &Path| {
        let is_there = backups.resources.get::<Instance>(instance).is_some();
        if is_there && path.to_string_lossy().contains(directory) {
            delete_instance(instance, &backups, &tables, &operations).unwrap();
        }
    };
    faults.before_sync(Some(Arc::new(hook)));
}

#[test]
fn a_restore_ends_with_its_instance_and_does_not_show_in_the_next_of_the_name() {
    let faults = FaultFiles::new(Arc::new(MemoryFiles::new()));
    let place = with_table(Arc::new(faults.clone()));
    place.make(BACKUP);
    let tablets = place.engine.tablets().len();
    let instance = names::instance_of(OTHER);
    let create = |place: &Place| {
        place.backups.resources.create(instance, Instance::default()).unwrap();
    };
    create(&place);
    // Before a file of the table is durable.
    delete_instance_at(&faults, &place, instance, "/tablets/");
    let restored = place.wait(&place.backups.restore(OTHER, BACKUP).unwrap());
    faults.before_sync(None);
    let aborted = Err(i32::from(tonic::Code::Aborted));
    assert_eq!(response(&restored), aborted);
    place.idle();
    assert_eq!(place.engine.tablets().len(), tablets);

    // And before a restart.
    create(&place);
    let begun = place.operations.start(OTHER, restored.metadata.unwrap()).unwrap();
    let operation = begun.operation().unwrap();
    begun.leave();
    delete_instance(instance, &place.backups, &place.tables, &place.operations).unwrap();
    let place = place.restart();
    place.backups.resume().unwrap();
    assert_eq!(response(&place.wait(&operation)), aborted);
    create(&place);
    assert!(place.tables.list(instance, None, 10).is_empty());
    response(&place.wait(&place.backups.restore(OTHER, BACKUP).unwrap())).unwrap();
}

#[test]
fn what_was_cancelled_before_a_crash_is_not_taken_up_by_the_next_server() {
    let (place, started) = interrupted(|_| {});
    place.operations.cancel(&started.name).unwrap();
    let metadata = admin::RestoreTableMetadata {
        name: OTHER.to_owned(),
        source_info: Some(admin::restore_table_metadata::SourceInfo::BackupInfo(
            admin::BackupInfo { backup: COPY.to_owned(), ..Default::default() },
        )),
        ..Default::default()
    };
    let any = crate::operations::any("google.bigtable.admin.v2.RestoreTableMetadata", &metadata);
    let restore = place.operations.start(OTHER, any).unwrap();
    let restored = restore.operation().unwrap();
    place.operations.cancel(&restored.name).unwrap();
    restore.leave();
    let copied = place.make(COPY);
    let place = place.restart();
    place.backups.resume().unwrap();
    for operation in [started, restored] {
        let done = place.wait(&operation);
        assert_eq!(response(&done), Err(i32::from(tonic::Code::Cancelled)));
    }
    assert_eq!(place.backups.get(BACKUP).unwrap_err().kind(), Code::NotFound);
    assert_eq!(place.backups.get(COPY).unwrap(), copied);
    assert!(place.tables.get(OTHER).is_err());
}

#[test]
fn a_restore_that_a_crash_interrupts_is_done_by_the_next_server_unless_its_table_is_there() {
    let place = place();
    place.make(BACKUP);
    let first = place.backups.restore(OTHER, BACKUP).unwrap();
    let metadata = place.wait(&first).metadata.unwrap();
    // As if the server had ended before: one of a table that another restore has made since, and one of a table that is not there.
    let again = place.operations.start(OTHER, metadata.clone()).unwrap();
    let again_name = again.name().to_owned();
    again.leave();
    let mut other: admin::RestoreTableMetadata =
        prost::Message::decode(metadata.value.as_slice()).unwrap();
    other.name = format!("{OTHER}-2");
    let any = crate::operations::any("google.bigtable.admin.v2.RestoreTableMetadata", &other);
    let second = place.operations.start(&other.name, any).unwrap();
    let second_name = second.name().to_owned();
    second.leave();
    let tablets = place.tables.get(OTHER).unwrap().record.tablets.clone();
    let place = place.restart();
    place.backups.resume().unwrap();
    let outcome = |name: String| response(&place.wait(&Operation { name, ..Operation::default() }));
    assert_eq!(outcome(again_name), Err(i32::from(tonic::Code::AlreadyExists)));
    outcome(second_name).unwrap();
    assert_eq!(place.tables.get(OTHER).unwrap().record.tablets, tablets, "it is there once");
    assert_eq!(place.value(&other.name).unwrap(), "first");
}

#[test]
fn a_restored_table_is_never_there_without_the_end_of_its_operation_and_does_not_come_back() {
    let disk = MemoryFiles::new();
    let faults = FaultFiles::new(Arc::new(disk.clone()));
    let place = with_table(Arc::new(faults.clone()));
    place.make(BACKUP);
    // What a crash leaves before each commit of the catalog; the end of the operation may be refused where the table was taken.
    let crashes = Arc::new(Mutex::new(Vec::new()));
    let crashed = Arc::clone(&crashes);
    let hook = move |path: &Path| {
        if path.to_string_lossy().contains("META-") {
            let left = disk.crashed_copy(CrashMode::Strict, &SeededRng::new(3));
            crashed.lock().unwrap().push(left);
        }
    };
    faults.before_sync(Some(Arc::new(hook)));
    let restored = place.backups.restore(OTHER, BACKUP).unwrap();
    place.idle();
    faults.before_sync(None);
    let now = place.now();
    for left in std::mem::take(&mut *crashes.lock().unwrap()) {
        let place = open(Arc::new(left), Arc::new(ManualClock::new(now + 1)));
        let left = place.operations.interrupted();
        assert!(place.tables.get(OTHER).is_err() || left.is_empty(), "{left:?}");
    }
    place.tables.delete(OTHER).unwrap();
    let place = place.restart();
    place.backups.resume().unwrap();
    place.idle();
    assert_eq!(place.tables.get(OTHER).unwrap_err().kind(), Code::NotFound);
    response(&place.operations.get(&restored.name).unwrap()).unwrap();
}

/// A restore into `OTHER` of the backup as it is, begun and not done, when its server ends.
fn restore_begun(place: &Place) -> Operation {
    let first = place.backups.restore(OTHER, BACKUP).unwrap();
    let metadata = place.wait(&first).metadata.unwrap();
    place.tables.delete(OTHER).unwrap();
    let again = place.operations.start(OTHER, metadata).unwrap();
    let operation = again.operation().unwrap();
    again.leave();
    operation
}

#[test]
fn a_restore_is_of_the_backup_that_it_was_asked_for_or_of_none() {
    let place = place();
    place.make(BACKUP);
    let begun = restore_begun(&place);
    place.backups.delete(BACKUP).unwrap();
    place.pass(HOUR);
    place.set("row", "second");
    place.make(BACKUP);
    let place = place.restart();
    place.backups.resume().unwrap();
    let done = place.wait(&begun);
    assert_eq!(response(&done), Err(i32::from(tonic::Code::NotFound)));
    assert!(place.tables.get(OTHER).is_err());
}

#[test]
fn a_restore_for_which_the_disk_is_full_is_done_by_the_next_server_and_never_said_to_have_failed() {
    let disk = MemoryFiles::new();
    let faults = FaultFiles::new(Arc::new(disk.clone()));
    let place = with_table(Arc::new(faults.clone()));
    place.make(BACKUP);
    let begun = restore_begun(&place);
    let place = place.restart();
    // The log fails, and does not wait.
    faults.reserve_nothing();
    faults.set_quota_bytes(Some(0));
    place.try_set("row", "second").unwrap_err();
    place.backups.resume().unwrap();
    place.idle();
    assert!(!place.operations.get(&begun.name).unwrap().done);
    let left = disk.crashed_copy(CrashMode::Strict, &SeededRng::new(3));
    let place = open(Arc::new(left), Arc::new(ManualClock::new(place.now() + 1)));
    place.backups.resume().unwrap();
    response(&place.wait(&begun)).unwrap();
    assert_eq!(place.value(OTHER).unwrap(), "first");
}

#[test]
fn a_backup_deleted_while_it_is_made_ends_its_operation_and_leaves_nothing() {
    let place = place();
    let metadata = admin::CreateBackupMetadata { name: BACKUP.to_owned(), ..Default::default() };
    let any = crate::operations::any("google.bigtable.admin.v2.CreateBackupMetadata", &metadata);
    let handle = place.operations.start(BACKUP, any).unwrap();
    let operation = handle.operation().unwrap();
    handle.leave();
    let place = place.restart();
    place.backups.resume().unwrap();
    let done = place.wait(&operation);
    assert_eq!(response(&done), Err(i32::from(tonic::Code::Cancelled)));
    assert!(place.engine.backups().is_empty());
    assert!(place.tables.get(TABLE).is_ok());
    assert_eq!(place.tablet(TABLE).range(), &RowRange::all());
}

#[test]
fn a_backup_of_which_the_disk_does_not_say_whether_it_is_named_keeps_its_files() {
    let disk = MemoryFiles::new();
    let faults = FaultFiles::new(Arc::new(disk.clone()));
    let place = with_table(Arc::new(faults.clone()));
    // The first commit is that of the entry and its operation, the second makes it READY.
    faults.inject(Fault::new(FaultOp::Sync).on_path("META-").nth(2));
    let started = place.backups.create(BACKUP, &place.asked(10 * HOUR)).unwrap();
    place.idle();
    assert!(!place.operations.get(&started.name).unwrap().done);
    // Nothing more is taken: what is durable is not known.
    let refused = place.backups.create(COPY, &place.asked(10 * HOUR)).unwrap_err();
    assert_eq!(refused.kind(), Code::Unavailable);
    assert!(refused.message().contains("catalog"), "{refused}");
    let place = place.restart();
    place.backups.resume().unwrap();
    response(&place.wait(&started)).unwrap();
    response(&place.wait(&place.backups.restore(OTHER, BACKUP).unwrap())).unwrap();
    assert_eq!(place.value(OTHER).unwrap(), "first");
}

#[test]
fn an_entry_that_nothing_makes_a_backup_of_any_more_goes_with_the_next_sweep() {
    let place = place();
    let [left, under_way] = ["left", "under-way"].map(|id| format!("{CLUSTER}/backups/{id}"));
    for name in [&left, &under_way] {
        place.backups.resources.create(name, BackupRecord::default()).unwrap();
    }
    let metadata = admin::CreateBackupMetadata { name: under_way.clone(), ..Default::default() };
    let any = crate::operations::any("google.bigtable.admin.v2.CreateBackupMetadata", &metadata);
    let handle = place.operations.start(&under_way, any).unwrap();
    place.backups.sweep();
    assert!(place.backups.resources.get::<BackupRecord>(&left).is_none());
    assert!(place.backups.resources.get::<BackupRecord>(&under_way).is_some());
    handle.finish(Err(Error::aborted("it failed, and its entry stayed"))).unwrap();
    place.backups.sweep();
    assert!(place.backups.resources.get::<BackupRecord>(&under_way).is_none());
}

#[test]
fn what_meets_the_failed_sync_of_a_directory_is_not_done_and_may_be_sent_again_after_a_restart() {
    // Of the tablets, the first is that of the new one's own directory.
    for (path, nth, creates) in [("backups", 1, false), ("tablets", 2, true)] {
        let faults = FaultFiles::new(Arc::new(MemoryFiles::new()));
        let place = with_table(Arc::new(faults.clone()));
        place.make(BACKUP);
        faults.inject(Fault::new(FaultOp::SyncDir).on_path(path).nth(nth));
        let error = if creates {
            let tablet = place.engine.create_tablet(RowRange::all());
            Error::from(tablet.unwrap_err())
        } else {
            let expiry = times::timestamp(place.now() + DAY);
            place.backups.copy(COPY, BACKUP, Some(&expiry)).unwrap_err()
        };
        assert_eq!(error.kind(), Code::Unavailable, "{path}: {error}");
        assert!(!error.is_in_doubt() && error.message().contains("read-only"), "{error}");
    }
}

#[test]
fn on_a_full_disk_backups_are_deleted_and_expire() {
    let disk = MemoryFiles::new();
    let faults = FaultFiles::new(Arc::new(disk.clone()));
    let clock = with_table(Arc::new(disk.clone())).clock;
    faults.set_quota_bytes(Some(1 << 20));
    let place = open(Arc::new(faults.clone()), clock);
    place.make(BACKUP);
    place.make(&format!("{CLUSTER}/backups/expires"));
    let place = place.restart();
    faults.set_quota_bytes(Some(0));
    let tablet = place.tablet(TABLE);
    let mut waits = Box::pin(tablet.apply(of_row("row", "second")));
    assert!((&mut waits).now_or_never().is_none());
    until("the log is held", || matches!(place.engine.health(), Health::Held { .. }));
    place.backups.delete(BACKUP).unwrap();
    place.pass(11 * HOUR);
    place.backups.sweep();
    assert!(place.names(&listing(CLUSTER)).0.is_empty());
    assert!(place.engine.backups().is_empty());
    let left = disk.crashed_copy(CrashMode::Strict, &SeededRng::new(3));
    let place = open(Arc::new(left), Arc::new(ManualClock::new(place.now() + 1)));
    assert!(place.names(&listing(CLUSTER)).0.is_empty());
    assert!(place.engine.backups().is_empty());
}

#[test]
fn a_copy_does_not_come_into_an_instance_that_is_deleted_meanwhile() {
    let faults = FaultFiles::new(Arc::new(MemoryFiles::new()));
    let place = with_table(Arc::new(faults.clone()));
    place.make(BACKUP);
    let (kept, instance) = (place.engine.backups().len(), names::instance_of(OTHER));
    let cluster = format!("{instance}/clusters/c");
    let create_time = Some(times::timestamp(place.now()));
    let created = Instance { create_time, ..Instance::default() };
    place.backups.resources.create(instance, created).unwrap();
    place.backups.resources.create(&cluster, admin::Cluster::default()).unwrap();
    delete_instance_at(&faults, &place, instance, "/backups/");
    let (name, expiry) = (format!("{cluster}/backups/copy"), times::timestamp(place.now() + DAY));
    let error = place.backups.copy(&name, BACKUP, Some(&expiry)).unwrap_err();
    faults.before_sync(None);
    assert_eq!(error.kind(), Code::Aborted);
    assert_eq!(place.backups.get(&name).unwrap_err().kind(), Code::NotFound);
    place.idle();
    assert_eq!(place.engine.backups().len(), kept);
}

#[test]
fn on_a_full_disk_an_instance_goes_whose_backup_was_being_made() {
    let disk = MemoryFiles::new();
    let faults = FaultFiles::new(Arc::new(disk.clone()));
    let clock = with_table(Arc::new(disk)).clock;
    faults.set_quota_bytes(Some(1 << 20));
    let place = open(Arc::new(faults.clone()), clock);
    place.set("row", "to be flushed");
    // The log meets the full disk while the backup's flush is under way.
    let instance = names::instance_of(TABLE);
    let (tablet, full, backups) = (place.tablet(TABLE), faults.clone(), Arc::clone(&place.backups));
    let hook = move |path: &Path| {
        if path.extension().is_some_and(|extension| extension == "sst") {
            backups.resources.create(instance, Instance::default()).unwrap();
            let append = Fault::new(FaultOp::Append).on_path("/log/");
            full.inject(append.kind(ErrorKind::NoSpace));
            pollster::block_on(tablet.apply(of_row("row", "second"))).unwrap_err();
            full.set_quota_bytes(Some(0));
        }
    };
    faults.before_sync(Some(Arc::new(hook)));
    let started = place.backups.create(BACKUP, &place.asked(10 * HOUR)).unwrap();
    place.idle();
    faults.before_sync(None);
    assert!(!place.operations.get(&started.name).unwrap().done);
    place.backups.delete(BACKUP).unwrap();
    delete_instance(instance, &place.backups, &place.tables, &place.operations).unwrap();
    assert!(place.tables.get(TABLE).is_err());
}

#[test]
fn a_backup_whose_flush_waits_for_room_on_the_disk_ends_when_it_is_cancelled_or_deleted() {
    let faults = FaultFiles::new(Arc::new(MemoryFiles::new()));
    let clock = with_table(Arc::new(faults.clone())).clock;
    let place = open_with(Arc::new(faults.clone()), clock, true);
    let full = Fault::new(FaultOp::Create).on_path(".sst").kind(ErrorKind::NoSpace).sticky();
    faults.inject(full);
    place.set("row", "to be flushed");
    let [one, two] = ["one", "two"].map(|id| format!("{CLUSTER}/backups/{id}"));
    let started =
        [&one, &two].map(|name| place.backups.create(name, &place.asked(10 * HOUR)).unwrap());
    place.operations.cancel(&started[0].name).unwrap();
    place.backups.delete(&two).unwrap();
    for operation in &started {
        assert_eq!(response(&place.wait(operation)), Err(i32::from(tonic::Code::Cancelled)));
    }
    place.idle();
    assert!(place.names(&listing(CLUSTER)).0.is_empty());
    faults.heal();
    // A flush that was under way when the disk was full still may fail behind that, and be put off by the time as it is then.
    until("the flush is tried again", || {
        place.pass(HOUR);
        place.engine.is_settled()
    });
    place.make(BACKUP);
    response(&place.wait(&place.backups.restore(OTHER, BACKUP).unwrap())).unwrap();
    assert_eq!(place.value(OTHER).unwrap(), "to be flushed");
}

fn add_family(record: &TableRecord, name: &str) -> Result<TableRecord> {
    let mut record = record.clone();
    crate::catalog::families::create(&mut record, name, admin::ColumnFamily::default())?;
    Ok(record)
}

#[test]
fn a_family_that_came_while_a_backup_waited_for_the_next_server_is_in_it_and_its_number_is_taken() {
    let (place, started) = interrupted(|_| {});
    place.tables.update(TABLE, |record| add_family(record, "new")).unwrap();
    place.backups.resume().unwrap();
    response(&place.wait(&started)).unwrap();
    response(&place.wait(&place.backups.restore(OTHER, BACKUP).unwrap())).unwrap();
    let entry = place.tables.update(OTHER, |record| add_family(record, "newer")).unwrap();
    let numbers: Vec<_> =
        ["cf", "new", "newer"].map(|name| entry.record.family(name).map(|family| family.id)).into();
    assert_eq!(numbers, [Some(1), Some(2), Some(3)]);
}

#[test]
fn a_backup_during_which_a_family_is_dropped_fails_and_leaves_nothing_and_the_next_one_is_made() {
    let faults = FaultFiles::new(Arc::new(MemoryFiles::new()));
    let place = with_table(Arc::new(faults.clone()));
    drop_family_at_flush(&place, &faults);
    let started = place.backups.create(BACKUP, &place.asked(10 * HOUR)).unwrap();
    let done = place.wait(&started);
    faults.before_sync(None);
    assert_eq!(response(&done), Err(i32::from(tonic::Code::Aborted)));
    let Some(operation::Result::Error(status)) = done.result else { panic!("no error") };
    assert!(status.message.contains("\"cf\" was dropped"), "{}", status.message);
    place.idle();
    assert_eq!(place.backups.get(BACKUP).unwrap_err().kind(), Code::NotFound);
    assert!(place.engine.backups().is_empty());
    place.make(BACKUP);
}

#[test]
fn a_backup_whose_table_is_replaced_while_its_list_is_written_fails_and_that_of_a_deleted_one_is_made()
 {
    for replaced in [false, true] {
        let faults = FaultFiles::new(Arc::new(MemoryFiles::new()));
        let place = with_table(Arc::new(faults.clone()));
        let (tables, is_over) = (Arc::clone(&place.tables), AtomicBool::new(false));
        let hook = move |path: &Path| {
            if path.starts_with("/data/backups") && !is_over.swap(true, Ordering::Relaxed) {
                // What the record says of when the backup was asked for is out of date.
                tables.update(TABLE, |record| add_family(record, "more")).unwrap();
                tables.delete(TABLE).unwrap();
                if replaced {
                    tables.create(TABLE, NewTable::default()).unwrap();
                }
            }
        };
        faults.before_sync(Some(Arc::new(hook)));
        let done = place.wait(&place.backups.create(BACKUP, &place.asked(10 * HOUR)).unwrap());
        faults.before_sync(None);
        place.idle();
        if replaced {
            assert_eq!(response(&done), Err(i32::from(tonic::Code::Aborted)));
            let Some(operation::Result::Error(status)) = done.result else { panic!("no error") };
            assert!(status.message.contains("was replaced"), "{}", status.message);
            assert_eq!(place.backups.get(BACKUP).unwrap_err().kind(), Code::NotFound);
            assert!(place.engine.backups().is_empty());
        } else {
            response(&done).unwrap();
            response(&place.wait(&place.backups.restore(OTHER, BACKUP).unwrap())).unwrap();
            assert_eq!(place.value(OTHER).unwrap(), "first");
            assert!(place.tables.get(OTHER).unwrap().record.family("more").is_some());
        }
    }
}

#[test]
fn a_backup_that_waits_for_the_next_server_fails_where_a_family_was_dropped_meanwhile() {
    let (place, started) = interrupted(|_| {});
    renew_family(&place.tables);
    place.backups.resume().unwrap();
    assert_eq!(response(&place.wait(&started)), Err(i32::from(tonic::Code::Aborted)));
    place.idle();
    assert_eq!(place.backups.get(BACKUP).unwrap_err().kind(), Code::NotFound);
    assert!(place.engine.backups().is_empty());
    let place = place.restart();
    place.backups.resume().unwrap();
    place.make(BACKUP);
}
