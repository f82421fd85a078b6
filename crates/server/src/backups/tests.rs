//! Backups over an engine in memory, with a clock that stands still until it is moved.

use std::path::Path;

use bytes::Bytes;
use tepui_bigtable::error::Code;
use tepui_engine::cell::{FamilyId, Mutation, RowBatch, RowRange};
use tepui_engine::db::EngineOptions;
use tepui_engine::io::{
    Clock, CrashMode, Fault, FaultFiles, FaultOp, Files, InlineIo, ManualClock, MemoryFiles,
    SeededRng, ThreadSpawner,
};
use tepui_engine::offline::{RepairOptions, repair};
use tepui_engine::read::Projection;
use tepui_engine::tablet::ReadView;

use super::*;
use crate::api::admin::backup::State;
use crate::api::longrunning::Operation;
use crate::api::longrunning::operation;
use crate::api::spelled_out::AutomatedBackupPolicy;
use crate::catalog::NewTable;
use crate::catalog::host::EngineHost;
use crate::catalog::record::TableRecord;
use crate::catalog::resources::Change;
use crate::catalog::styles::CompactionStyles;

const TABLE: &str = "projects/p/instances/i/tables/t";
const OTHER: &str = "projects/p/instances/j/tables/other";
const CLUSTER: &str = "projects/p/instances/i/clusters/c";
const BACKUP: &str = "projects/p/instances/i/clusters/c/backups/b";
const COPY: &str = "projects/q/instances/k/clusters/d/backups/copy";
const HOUR: i64 = 3_600 * 1_000_000;
const DAY: i64 = 24 * HOUR;

/// What a server has, without its network.
struct Place {
    files: Arc<dyn Files>,
    clock: Arc<ManualClock>,
    engine: Arc<Engine>,
    tables: Arc<Tables>,
    operations: Arc<Operations>,
    backups: Arc<Backups>,
}

fn open(files: Arc<dyn Files>, clock: Arc<ManualClock>) -> Place {
    let env = Env {
        files: Arc::clone(&files),
        io: Arc::new(InlineIo),
        clock: Arc::<ManualClock>::clone(&clock),
        rng: Arc::new(SeededRng::new(clock.now_micros() as u64)),
        spawner: Arc::new(ThreadSpawner),
    };
    let options = EngineOptions { background: false, ..EngineOptions::default() };
    let engine = Engine::open(env.clone(), Path::new("/data"), options).unwrap();
    let resources = Arc::new(Resources::open(engine.meta()).unwrap());
    let operations = Arc::new(Operations::open(Arc::clone(&resources), engine.clock()));
    let host =
        EngineHost::new(Arc::clone(&engine), Arc::clone(&env.rng), CompactionStyles::default());
    let rng = Arc::clone(&env.rng);
    let tables = Arc::new(Tables::open(host, engine.meta(), engine.clock(), rng).unwrap());
    engine.retain_tablets(&tables.tablet_ids()).unwrap();
    let instances = Instances::new(Arc::clone(&resources), engine.clock(), false);
    let backups = Backups::open(
        env,
        Arc::clone(&engine),
        Arc::clone(&tables),
        Arc::new(instances),
        resources,
        Arc::clone(&operations),
    );
    let backups = Arc::new(backups.unwrap());
    engine.start().unwrap();
    Place { files, clock, engine, tables, operations, backups }
}

fn place() -> Place {
    with_table(Arc::new(MemoryFiles::new()))
}

fn with_table(files: Arc<dyn Files>) -> Place {
    let clock = Arc::new(ManualClock::new(1_767_225_600_000_000));
    let place = open(files, clock);
    let column_families = [("cf".to_owned(), admin::ColumnFamily::default())].into();
    let asked = admin::Table { column_families, ..admin::Table::default() };
    let asked = asked.into();
    place.tables.create(TABLE, NewTable { asked, ..NewTable::default() }).unwrap();
    place.set("row", "first");
    place
}

impl Place {
    fn now(&self) -> i64 {
        self.clock.now_micros()
    }

    fn pass(&self, micros: i64) {
        self.clock.advance_micros(u64::try_from(micros).unwrap());
    }

    fn tablet(&self, table: &str) -> Arc<tepui_engine::tablet::Tablet> {
        let entry = self.tables.get(table).unwrap();
        self.engine.tablet(entry.record.tablet_ids().next().unwrap()).unwrap()
    }

    fn set(&self, row: &str, value: &str) {
        self.try_set(row, value).unwrap();
    }

    fn try_set(&self, row: &str, value: &str) -> tepui_engine::Result<()> {
        pollster::block_on(self.tablet(TABLE).apply(of_row(row, value))).map(drop)
    }

    fn value(&self, table: &str) -> Option<Bytes> {
        let (tablet, all) = (self.tablet(table), Projection::all());
        let read = tablet.read_row(b"row", &all, ReadView::Durable);
        pollster::block_on(read).unwrap().map(|row| row.cells[0].value.clone())
    }

    fn wait(&self, operation: &Operation) -> Operation {
        let done = pollster::block_on(self.operations.wait(&operation.name)).unwrap();
        assert!(done.done);
        done
    }

    fn asked(&self, life: i64) -> admin::Backup {
        admin::Backup {
            source_table: TABLE.to_owned(),
            expire_time: Some(times::timestamp(self.now() + life)),
            ..admin::Backup::default()
        }
    }

    fn make(&self, name: &str) -> admin::Backup {
        let started = self.backups.create(name, &self.asked(10 * HOUR)).unwrap();
        response(&self.wait(&started)).unwrap();
        self.backups.get(name).unwrap()
    }

    /// Has the table backed up daily, for so many days; or not any more.
    fn set_policy(&self, days: Option<i64>) {
        let policy =
            |days| AutomatedBackupPolicy { retention_period: length(days), ..Default::default() };
        self.set_whole_policy(days.map(policy));
    }

    fn set_whole_policy(&self, automated_backup_policy: Option<AutomatedBackupPolicy>) {
        let set =
            |record: &TableRecord| Ok(TableRecord { automated_backup_policy, ..record.clone() });
        self.tables.update(TABLE, set).unwrap();
    }

    /// Waits for the threads that work for operations.
    fn idle(&self) {
        while self.backups.jobs.load(std::sync::atomic::Ordering::Acquire) > 0 {
            std::thread::yield_now();
        }
    }

    /// Sweeps, and again when what that began is done.
    fn swept(&self) {
        self.backups.sweep();
        self.idle();
        self.backups.sweep();
    }

    fn restart(self) -> Self {
        self.engine.close().unwrap();
        let Self { files, clock, .. } = self;
        clock.advance_micros(1);
        open(files, clock)
    }

    fn names(&self, listing: &Listing<'_>) -> (Vec<String>, String) {
        let (page, token) = self.backups.list(listing).unwrap();
        let id = |backup: admin::Backup| backup.name.rsplit('/').next().unwrap().to_owned();
        (page.into_iter().map(id).collect(), token)
    }
}

/// A number of days.
fn of_row(row: &str, value: &str) -> RowBatch {
    let put = Mutation::Put {
        family: FamilyId(1),
        qualifier: Bytes::from_static(b"q"),
        timestamp: 1_000,
        value: Bytes::copy_from_slice(value.as_bytes()),
    };
    RowBatch { row: Bytes::copy_from_slice(row.as_bytes()), mutations: vec![put] }
}

fn length(days: i64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds: days * 86_400, nanos: 0 })
}

fn response(done: &Operation) -> std::result::Result<prost_types::Any, i32> {
    match done.result.clone().unwrap() {
        operation::Result::Response(response) => Ok(response),
        operation::Result::Error(status) => Err(status.code),
    }
}

fn listing(parent: &str) -> Listing<'_> {
    Listing { parent, filter: "", order_by: "", page_token: "", limit: 100 }
}

#[test]
fn a_backup_outlives_its_table_and_comes_back_in_another_instance_after_a_restart() {
    let place = place();
    let backup = place.make(BACKUP);
    assert_eq!((backup.state, backup.backup_type), (State::Ready.into(), 1));
    assert!(backup.size_bytes > 0 && backup.end_time.is_some());
    place.set("row", "second");
    place.tables.delete(TABLE).unwrap();
    place.pass(8 * DAY);
    assert_eq!(place.tables.sweep(place.now()), 1);
    let place = place.restart();
    assert_eq!(place.backups.get(BACKUP).unwrap(), backup);
    let restored = place.wait(&place.backups.restore(OTHER, BACKUP).unwrap());
    response(&restored).unwrap();
    assert_eq!(place.value(OTHER).unwrap(), "first");
    let record = place.tables.get(OTHER).unwrap().record.clone();
    assert_eq!(record.families[0].name, "cf");
    let Some(admin::restore_info::SourceInfo::BackupInfo(info)) =
        record.restore_info.unwrap().source_info
    else {
        panic!("no backup")
    };
    assert_eq!((info.backup.as_str(), info.source_table.as_str()), (BACKUP, TABLE));
    let metadata: admin::RestoreTableMetadata =
        prost::Message::decode(restored.metadata.unwrap().value.as_slice()).unwrap();
    assert_eq!(metadata.progress.unwrap().progress_percent, 100);
    let optimized = place.operations.get(&metadata.optimize_table_operation_name).unwrap();
    assert!(optimized.done && optimized.name.contains(OTHER));
}

#[test]
fn a_copy_is_independent_and_is_not_copied_again() {
    let place = place();
    place.make(BACKUP);
    let expiry = times::timestamp(place.now() + DAY);
    let copied = place.backups.copy(COPY, BACKUP, Some(&expiry)).unwrap();
    assert!(copied.done);
    place.backups.delete(BACKUP).unwrap();
    let copy = place.backups.get(COPY).unwrap();
    assert_eq!((copy.source_backup.as_str(), copy.source_table.as_str()), (BACKUP, TABLE));
    let place = place.restart();
    response(&place.wait(&place.backups.restore(OTHER, COPY).unwrap())).unwrap();
    assert_eq!(place.value(OTHER).unwrap(), "first");
    let again = place.backups.copy(BACKUP, COPY, Some(&expiry)).unwrap_err();
    assert_eq!(again.kind(), Code::FailedPrecondition);
    let late = times::timestamp(place.now() + 31 * DAY);
    let error = place.backups.copy(BACKUP, COPY, Some(&late)).unwrap_err();
    assert_eq!(error.kind(), Code::InvalidArgument);
}

#[test]
fn backups_expire_and_hot_ones_become_standard_ones_in_time() {
    let place = place();
    let asked = admin::Backup {
        backup_type: BackupType::Hot.into(),
        hot_to_standard_time: Some(times::timestamp(place.now() + DAY)),
        ..place.asked(2 * DAY)
    };
    place.wait(&place.backups.create(BACKUP, &asked).unwrap());
    place.pass(DAY - 1);
    place.backups.sweep();
    assert_eq!(place.backups.get(BACKUP).unwrap().backup_type, i32::from(BackupType::Hot));
    place.pass(1);
    place.backups.sweep();
    let cooled = place.backups.get(BACKUP).unwrap();
    assert_eq!((cooled.backup_type, cooled.hot_to_standard_time), (1, None));
    place.pass(DAY - 1);
    place.backups.sweep();
    place.backups.get(BACKUP).unwrap();
    place.pass(1);
    place.backups.sweep();
    assert_eq!(place.backups.get(BACKUP).unwrap_err().kind(), Code::NotFound);
    assert!(place.engine.backups().is_empty());
}

#[test]
fn a_policy_makes_a_backup_a_day_and_lets_it_expire() {
    let place = place();
    place.backups.sweep();
    let made = |place: &Place| place.names(&listing("projects/p/instances/i/clusters/-")).0.len();
    assert_eq!(made(&place), 0);
    place.set_policy(Some(3));
    let mut counts = Vec::new();
    for _ in 0..5 {
        place.backups.sweep();
        place.backups.sweep();
        counts.push(made(&place));
        place.pass(DAY);
    }
    assert_eq!(counts, [1, 2, 3, 3, 3]);
}

#[test]
fn a_policy_that_is_disabled_makes_no_backups_and_is_no_reason_for_an_alert() {
    let place = place();
    let policy = |disabled| {
        let policy = AutomatedBackupPolicy { retention_period: length(7), ..Default::default() };
        Some(AutomatedBackupPolicy { disabled, ..policy })
    };
    let made = |place: &Place| place.names(&listing("projects/p/instances/i/clusters/-")).0.len();
    place.set_whole_policy(policy(true));
    place.pass(3 * DAY);
    place.swept();
    assert_eq!((made(&place), place.backups.figures().automated_age_micros), (0, 0));
    place.set_whole_policy(policy(false));
    place.swept();
    assert_eq!(made(&place), 1);
    place.set_whole_policy(policy(true));
    place.pass(2 * DAY);
    place.swept();
    assert_eq!((made(&place), place.backups.figures().automated_age_micros), (1, 0));
}

#[test]
fn automated_backups_are_hot_for_as_long_as_their_policy_says() {
    let place = place();
    place.set_whole_policy(Some(AutomatedBackupPolicy {
        retention_period: length(3),
        keep_hot_duration: length(1),
        ..Default::default()
    }));
    place.swept();
    let clusters = listing("projects/p/instances/i/clusters/-");
    let (made, _) = place.backups.list(&clusters).unwrap();
    assert_eq!(made[0].backup_type, i32::from(BackupType::Hot));
    assert_eq!(made[0].hot_to_standard_time, Some(times::timestamp(place.now() + DAY)));
    place.set_policy(None);
    place.pass(DAY);
    place.swept();
    let (cooled, _) = place.backups.list(&clusters).unwrap();
    assert_eq!(cooled[0].backup_type, i32::from(BackupType::Standard));
}

#[test]
fn a_clock_that_was_ahead_once_does_not_end_automated_backups() {
    let place = place();
    place.set_policy(Some(3));
    let right = place.now();
    place.pass(1_000 * DAY);
    place.swept();
    // Set right; the sequences of the engine go on from where they were.
    let place = Place { clock: Arc::new(ManualClock::new(right)), ..place };
    let place = place.restart();
    let made = |place: &Place| place.names(&listing("projects/p/instances/i/clusters/-")).0.len();
    assert_eq!(made(&place), 1);
    for want in [2, 2] {
        place.swept();
        assert_eq!(made(&place), want);
    }
    place.pass(DAY);
    place.swept();
    assert_eq!(made(&place), 3);
}

#[test]
fn a_clock_that_jumps_ahead_for_less_than_an_hour_costs_no_backup_and_makes_none() {
    let place = place();
    place.set_policy(Some(3));
    place.swept();
    place.make(BACKUP);
    let before = place.names(&listing("projects/p/instances/i/clusters/-")).0;
    let right = place.now();
    place.clock.set_wall_micros(right + 36 * 365 * DAY);
    place.pass(HOUR / 2);
    place.swept();
    assert_eq!(place.names(&listing("projects/p/instances/i/clusters/-")).0, before);
    // Set right. The hour goes on, and then what is due is done.
    place.clock.set_wall_micros(right + HOUR);
    place.pass(HOUR);
    place.swept();
    assert_eq!(place.names(&listing("projects/p/instances/i/clusters/-")).0, before);
    place.pass(10 * HOUR);
    place.swept();
    assert!(
        !place.names(&listing("projects/p/instances/i/clusters/-")).0.contains(&"b".to_owned())
    );
}

#[test]
fn a_clock_that_stays_ahead_is_believed_after_an_hour() {
    let place = place();
    place.make(BACKUP);
    place.clock.set_wall_micros(place.now() + 20 * DAY);
    place.backups.sweep();
    place.backups.get(BACKUP).unwrap();
    place.pass(HOUR);
    place.backups.sweep();
    assert_eq!(place.backups.get(BACKUP).unwrap_err().kind(), Code::NotFound);
}

#[test]
fn metrics_tell_how_many_backups_there_are_what_they_keep_how_old_they_are_and_what_failed() {
    let disk = MemoryFiles::new();
    let faults = FaultFiles::new(Arc::new(disk.clone()));
    let place = with_table(Arc::new(faults.clone()));
    place.swept();
    let none = place.backups.figures();
    assert_eq!(
        (none.ready, none.creating, none.held_bytes, none.automated_age_micros),
        (0, 0, 0, 0)
    );
    place.set_policy(Some(3));
    place.swept();
    place.make(BACKUP);
    place.pass(HOUR);
    place.swept();
    let kept = place.backups.figures();
    assert_eq!((kept.ready, kept.creating), (2, 0));
    assert_eq!(kept.held_bytes, 0, "the table has the same files");
    assert_eq!(kept.automated_age_micros, HOUR as u64);
    assert!(kept.failures.iter().all(|(_, count)| *count == 0));

    place.set_policy(None);
    place.tables.delete(TABLE).unwrap();
    place.pass(8 * DAY);
    place.tables.sweep(place.now());
    let expiry = times::timestamp(place.now() + DAY);
    place.backups.count();
    let alone = place.backups.figures();
    assert!(alone.held_bytes > 0);
    assert_eq!(alone.automated_age_micros, 0, "nobody asks for any");
    place.backups.copy(COPY, BACKUP, Some(&expiry)).unwrap();
    place.backups.count();
    assert_eq!(place.backups.figures().held_bytes, alone.held_bytes, "a file counts once");

    faults.inject(Fault::new(FaultOp::Create).on_path("tablets").sticky());
    let failed = place.wait(&place.backups.restore(OTHER, COPY).unwrap());
    response(&failed).unwrap_err();
    let failures: Vec<_> = place.backups.figures().failures.into();
    assert_eq!(failures, [("create", 0), ("automated", 0), ("restore", 1)]);
}

#[test]
fn an_update_changes_what_its_mask_names_within_the_limits() {
    let place = place();
    let before = place.make(BACKUP);
    place.pass(HOUR);
    let update = |asked: admin::Backup, paths: &[&str]| {
        let paths: Vec<String> = paths.iter().map(|path| (*path).to_owned()).collect();
        place.backups.update(&admin::Backup { name: BACKUP.to_owned(), ..asked }, &paths)
    };
    let until = |life: i64| admin::Backup {
        expire_time: Some(times::timestamp(place.now() + life)),
        source_table: "ignored".to_owned(),
        ..admin::Backup::default()
    };
    for (asked, paths) in [
        (until(20 * HOUR), &[][..]),
        (until(20 * HOUR), &["expire_time", "source_table"]),
        (until(20 * HOUR), &["name"]),
        (until(HOUR), &["expire_time"]),
        (until(90 * DAY), &["expire_time"]),
        (admin::Backup::default(), &["expire_time"]),
        // It is a standard one.
        (
            admin::Backup { hot_to_standard_time: Some(times::timestamp(i64::MAX)), ..until(0) },
            &["hot_to_standard_time"],
        ),
    ] {
        let error = update(asked, paths).unwrap_err();
        assert_eq!(error.kind(), Code::InvalidArgument, "{paths:?}");
        assert_eq!(place.backups.get(BACKUP).unwrap(), before, "{paths:?}");
    }
    let after = update(until(20 * HOUR), &["expire_time"]).unwrap();
    assert_eq!(after, admin::Backup { expire_time: until(20 * HOUR).expire_time, ..before });
    let missing = admin::Backup { name: COPY.to_owned(), ..until(20 * HOUR) };
    let error = place.backups.update(&missing, &["expire_time".to_owned()]).unwrap_err();
    assert_eq!(error.kind(), Code::NotFound);
}

#[test]
fn lists_are_filtered_ordered_and_paged_while_backups_come_and_go() {
    let place = place();
    let name = |id: &str| format!("{CLUSTER}/backups/{id}");
    for id in ["a", "b", "c", "d"] {
        place.make(&name(id));
        place.pass(HOUR);
    }
    let expiry = times::timestamp(place.now() + DAY);
    let elsewhere = "projects/p/instances/i/clusters/d/backups/e";
    place.backups.copy(elsewhere, &name("a"), Some(&expiry)).unwrap();
    assert_eq!(place.names(&listing(CLUSTER)).0, ["d", "c", "b", "a"]);
    let all = "projects/p/instances/i/clusters/-";
    assert_eq!(place.names(&listing(all)).0, ["e", "d", "c", "b", "a"]);
    assert!(place.names(&listing("projects/p/instances/j/clusters/-")).0.is_empty());
    let filtered = Listing { filter: "name:b OR name:\"c\"", order_by: "name", ..listing(CLUSTER) };
    // Every full name has a "b" in it.
    assert_eq!(place.names(&filtered).0, ["a", "b", "c", "d"]);
    let exact =
        Listing { filter: "name:\"b\" OR name:\"c\"", order_by: "name", ..listing(CLUSTER) };
    assert_eq!(place.names(&exact).0, ["b", "c"]);

    let by_two = Listing { order_by: "name", limit: 2, ..listing(CLUSTER) };
    let (first, token) = place.names(&by_two);
    assert_eq!(first, ["a", "b"]);
    place.backups.delete(&name("b")).unwrap();
    place.make(&name("aa"));
    let (second, end) = place.names(&Listing { page_token: &token, ..by_two });
    assert_eq!((second, end.as_str()), (vec!["c".to_owned(), "d".to_owned()], ""));
    let other = Listing { page_token: &token, ..listing(CLUSTER) };
    assert_eq!(place.backups.list(&other).unwrap_err().kind(), Code::InvalidArgument);
}

#[test]
fn what_cannot_be_done_is_refused_and_leaves_nothing() {
    let place = place();
    place.make(BACKUP);
    let name = format!("{CLUSTER}/backups/new");
    let expiry = times::timestamp(place.now() + DAY);
    let code = |result: Result<Operation>| result.unwrap_err().kind();
    let no_table = admin::Backup { source_table: format!("{TABLE}x"), ..place.asked(10 * HOUR) };
    assert_eq!(code(place.backups.create(&name, &no_table)), Code::NotFound);
    let short = place.asked(HOUR);
    assert_eq!(code(place.backups.create(&name, &short)), Code::InvalidArgument);
    let good = place.asked(10 * HOUR);
    assert_eq!(code(place.backups.create(BACKUP, &good)), Code::AlreadyExists);
    assert_eq!(code(place.backups.copy(BACKUP, BACKUP, Some(&expiry))), Code::AlreadyExists);
    assert_eq!(code(place.backups.copy(COPY, &name, Some(&expiry))), Code::NotFound);
    assert_eq!(code(place.backups.copy(COPY, BACKUP, None)), Code::InvalidArgument);
    assert_eq!(code(place.backups.restore(TABLE, BACKUP)), Code::AlreadyExists);
    assert_eq!(code(place.backups.restore(OTHER, &name)), Code::NotFound);
    assert_eq!(place.backups.delete(&name).unwrap_err().kind(), Code::NotFound);
    assert_eq!(place.names(&listing(CLUSTER)).0, ["b"]);
    assert_eq!(place.engine.backups().len(), 1);
    assert_eq!(place.engine.tablets().len(), 1);
    // All that was refused was refused before an operation began.
    assert_eq!(place.operations.list("", 0, 100).len(), 1);
}

/// A server that crashed while it made a backup and the next one, which has not taken that up yet; with the operation.
/// `before` sees the first.
fn interrupted(before: impl FnOnce(&Place)) -> (Place, Operation) {
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
    (open(Arc::new(crashed), clock), started)
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
                for (_, operation) in operations.list_where("", 0, 100, |of| !of.done) {
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
    let (backups, tables) = (Arc::clone(&place.backups), Arc::clone(&place.tables));
    let operations = Arc::clone(&place.operations);
    let hook = move |path: &Path| {
        let is_there = backups.resources.get::<Instance>(instance).is_some();
        if is_there && path.to_string_lossy().contains("/tablets/") {
            delete_instance(instance, &backups, &tables, &operations).unwrap();
        }
    };
    faults.before_sync(Some(Arc::new(hook)));
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
fn a_restore_that_a_crash_interrupts_is_done_once_by_the_next_server() {
    let place = place();
    place.make(BACKUP);
    let first = place.backups.restore(OTHER, BACKUP).unwrap();
    let metadata = place.wait(&first).metadata.unwrap();
    // As if the server had ended before the operation; and once more before the table.
    let again = place.operations.start(OTHER, metadata.clone()).unwrap();
    let name = again.name().to_owned();
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
    for name in [name, second_name] {
        let operation = Operation { name, ..Operation::default() };
        response(&place.wait(&operation)).unwrap();
    }
    assert_eq!(place.tables.get(OTHER).unwrap().record.tablets, tablets, "it is there once");
    assert_eq!(place.value(&other.name).unwrap(), "first");
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
    place.tablet(TABLE).range();
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
fn a_backup_whose_list_a_repair_has_emptied_says_what_is_lost_and_is_not_copied() {
    let disk = MemoryFiles::new();
    let place = with_table(Arc::new(disk.clone()));
    place.make(BACKUP);
    place.engine.close().unwrap();
    let Place { files, clock, engine, tables, operations, backups } = place;
    let env = engine.env().clone();
    drop((engine, tables, operations, backups));
    let directory = Path::new("/data/backups");
    let list = files.list(directory).unwrap().remove(0).name;
    disk.put_contents(&directory.join(list), b"damaged".to_vec());
    let (catalog, options) = (&crate::catalog::entry_of, RepairOptions { dry_run: false });
    let repaired =
        repair(&env, Path::new("/data"), Some(catalog), options, &mut |_, _| {}).unwrap();
    assert!(repaired.lost.iter().any(|lost| lost.contains("delete it")), "{:?}", repaired.lost);
    let place = open(files, clock);
    let expiry = times::timestamp(place.now() + DAY);
    for refused in
        [place.backups.restore(OTHER, BACKUP), place.backups.copy(COPY, BACKUP, Some(&expiry))]
    {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), Code::DataLoss);
        assert!(error.message().contains("lost its list of files"), "{error}");
    }
    place.backups.delete(BACKUP).unwrap();
    assert!(place.names(&listing(CLUSTER)).0.is_empty());
}

#[test]
fn automated_backups_wait_in_silence_for_others_and_fail_aloud_for_want_of_room() {
    let place = place();
    place.set_policy(Some(3));
    let automated = || place.backups.figures().failures[1];
    let jobs = &place.backups.jobs;
    jobs.store(crate::limits::BACKUP_JOBS_MAX, std::sync::atomic::Ordering::Release);
    place.backups.sweep();
    assert_eq!(automated(), ("automated", 0));
    jobs.store(0, std::sync::atomic::Ordering::Release);
    // All but fills the list of operations, none of which has ended.
    let empty = crate::operations::any("google.protobuf.Empty", &());
    let kept: Vec<_> = (0..crate::limits::OPERATIONS_MAX)
        .map_while(|_| place.operations.start("x", empty.clone()).ok())
        .collect();
    place.backups.sweep();
    assert_eq!(automated(), ("automated", 1));
    for handle in kept {
        handle.finish(Ok(empty.clone())).unwrap();
    }
    assert!(place.names(&listing("projects/p/instances/i/clusters/-")).0.is_empty());
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
    place.try_set("row", "second").unwrap_err();
    place.backups.create(COPY, &place.asked(10 * HOUR)).unwrap_err();
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
            full.set_quota_bytes(Some(0));
            pollster::block_on(tablet.apply(of_row("row", "second"))).unwrap_err();
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
fn a_family_that_came_while_a_backup_waited_for_the_next_server_is_in_it_and_its_number_is_taken() {
    let (place, started) = interrupted(|_| {});
    let add = |record: &TableRecord, name: &str| {
        let mut record = record.clone();
        crate::catalog::families::create(&mut record, name, admin::ColumnFamily::default())?;
        Ok(record)
    };
    place.tables.update(TABLE, |record| add(record, "new")).unwrap();
    place.backups.resume().unwrap();
    response(&place.wait(&started)).unwrap();
    response(&place.wait(&place.backups.restore(OTHER, BACKUP).unwrap())).unwrap();
    let entry = place.tables.update(OTHER, |record| add(record, "newer")).unwrap();
    let numbers: Vec<_> =
        ["cf", "new", "newer"].map(|name| entry.record.family(name).map(|family| family.id)).into();
    assert_eq!(numbers, [Some(1), Some(2), Some(3)]);
}
