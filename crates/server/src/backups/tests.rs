//! Backups over an engine in memory, with a clock that stands still until it is moved.

use std::path::Path;

use bytes::Bytes;
use tepui_bigtable::error::Code;
use tepui_engine::cell::{FamilyId, Mutation, RowBatch};
use tepui_engine::db::{EngineOptions, Health};
use tepui_engine::io::{
    Clock, Fault, FaultFiles, FaultOp, Files, InlineIo, JoinHandle, ManualClock, MemoryFiles,
    SeededRng, Spawner, ThreadSpawner,
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
use crate::catalog::styles::CompactionStyles;

mod bad_days;
mod policies;
#[path = "../../../engine/tests/support/until.rs"]
mod until;

use until::until;

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
    open_with(files, clock, false)
}

/// The same whose engine flushes by itself, where asked for.
fn open_with(files: Arc<dyn Files>, clock: Arc<ManualClock>, background: bool) -> Place {
    open_by(files, clock, options_with(background))
}

fn options_with(background: bool) -> EngineOptions {
    EngineOptions { background, ..EngineOptions::default() }
}

fn open_by(files: Arc<dyn Files>, clock: Arc<ManualClock>, options: EngineOptions) -> Place {
    open_over(files, clock, options, Arc::new(ThreadSpawner))
}

/// The same with threads of this spawner.
fn open_over(
    files: Arc<dyn Files>,
    clock: Arc<ManualClock>,
    options: EngineOptions,
    spawner: Arc<dyn Spawner>,
) -> Place {
    let env = Env {
        files: Arc::clone(&files),
        io: Arc::new(InlineIo),
        clock: Arc::<ManualClock>::clone(&clock),
        rng: Arc::new(SeededRng::new(clock.now_micros() as u64)),
        spawner,
    };
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

    fn set_whole_policy(&self, policy: Option<AutomatedBackupPolicy>) {
        self.set_policy_of(TABLE, policy);
    }

    fn set_policy_of(&self, table: &str, automated_backup_policy: Option<AutomatedBackupPolicy>) {
        let set =
            |record: &TableRecord| Ok(TableRecord { automated_backup_policy, ..record.clone() });
        self.tables.update(table, set).unwrap();
    }

    /// Waits for the threads that work for operations.
    fn idle(&self) {
        let jobs = &self.backups.jobs;
        until("all work is done", || jobs.load(std::sync::atomic::Ordering::Acquire) == 0);
    }

    /// Sweeps, and again when what that began is done.
    fn swept(&self) {
        self.backups.sweep();
        self.idle();
        self.backups.sweep();
    }

    fn restart(self) -> Self {
        let is_read_only = matches!(self.engine.health(), Health::ReadOnly(_));
        assert_eq!(self.engine.close().is_err(), is_read_only);
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

fn of_row(row: &str, value: &str) -> RowBatch {
    let put = Mutation::Put {
        family: FamilyId(1),
        qualifier: Bytes::from_static(b"q"),
        timestamp: 1_000,
        value: Bytes::copy_from_slice(value.as_bytes()),
    };
    RowBatch { row: Bytes::copy_from_slice(row.as_bytes()), mutations: vec![put] }
}

/// Drops the family of the table, and makes another one of its name, when the next flush has written its file.
fn drop_family_at_flush(place: &Place, faults: &FaultFiles) {
    let tables = Arc::clone(&place.tables);
    let hook = move |path: &Path| {
        if path.extension().is_some_and(|extension| extension == "sst") {
            renew_family(&tables);
        }
    };
    faults.before_sync(Some(Arc::new(hook)));
}

fn renew_family(tables: &Tables) {
    let renew = |record: &TableRecord| {
        let mut record = record.clone();
        record.families.retain(|family| family.name != "cf");
        crate::catalog::families::create(&mut record, "cf", admin::ColumnFamily::default())?;
        Ok(record)
    };
    tables.update(TABLE, renew).unwrap();
}

/// A number of days.
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
fn backups_of_a_cluster_that_its_instance_was_created_without_are_listed() {
    let place = place();
    place.make(BACKUP);
    place.backups.resources.create("projects/p/instances/i", Instance::default()).unwrap();
    place.backups.check_listed(CLUSTER).unwrap();
    assert_eq!(place.names(&listing(CLUSTER)).0, ["b"]);
    let not_found = |result: Result<()>| assert_eq!(result.unwrap_err().kind(), Code::NotFound);
    not_found(place.backups.check_listed("projects/p/instances/i/clusters/other"));
    // New ones do not come into it.
    not_found(place.backups.check_cluster(CLUSTER));
    place.backups.delete(BACKUP).unwrap();
    not_found(place.backups.check_listed(CLUSTER));
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
fn a_copy_goes_on_without_its_source() {
    let place = place();
    place.make(BACKUP);
    let source = place.backups.ready(BACKUP).unwrap();
    place.backups.delete(BACKUP).unwrap();
    let expiry = times::timestamp(place.now() + DAY);
    let copied = place.backups.copy_of(COPY, BACKUP, expiry, source).unwrap();
    response(&copied).unwrap();
    let place = place.restart();
    response(&place.wait(&place.backups.restore(OTHER, COPY).unwrap())).unwrap();
    assert_eq!(place.value(OTHER).unwrap(), "first");
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

#[test]
fn tables_and_restores_beyond_the_memory_for_tablets_are_refused_and_leave_nothing() {
    let files = Arc::new(MemoryFiles::new());
    let clock = Arc::new(ManualClock::new(1_767_225_600_000_000));
    // Ten tablets, of short keys.
    let options = || EngineOptions {
        background: false,
        tablets_bytes_max: 10 * 4200,
        ..EngineOptions::default()
    };
    let place = open_by(Arc::<MemoryFiles>::clone(&files), Arc::clone(&clock), options());
    let split = |name: &str, tablets: u8| {
        let splits = (1..tablets).map(|n| Bytes::copy_from_slice(&[n])).collect();
        place.tables.create(name, NewTable { splits, ..NewTable::default() })
    };
    split(TABLE, 4).unwrap();
    let (shown, name) = (place.asked(10 * HOUR), BACKUP);
    response(&place.wait(&place.backups.create(name, &shown).unwrap())).unwrap();
    let left = || {
        let entries = place.engine.meta().list("").unwrap();
        let entries: Vec<_> = entries.into_iter().map(|(key, _)| key).collect();
        let directories = files.list(Path::new("/data/tablets")).unwrap().len();
        (entries, place.engine.tablets().len(), directories, place.engine.tablet_bytes())
    };
    let refused = |error: Error| {
        assert_eq!(error.kind(), Code::ResourceExhausted, "{error}");
        assert!(error.message().contains("fewer splits, delete tables"), "{error}");
    };
    let before = left();
    refused(split(OTHER, 7).unwrap_err());
    assert_eq!(left(), before);
    // The tablets of one that is being made are taken by then.
    let others = format!("{OTHER}2");
    let splits = vec![Bytes::from("m")];
    let within = || {
        refused(split(&others, 5).unwrap_err());
        Ok(())
    };
    let new = NewTable { splits, ..NewTable::default() };
    place.tables.create_where(OTHER, new, within).unwrap();
    split(&others, 1).unwrap();
    let before = left();
    refused(place.backups.restore(&format!("{OTHER}3"), BACKUP).unwrap_err());
    assert_eq!(left(), before, "nor is there an operation");

    // A table that is deleted counts for as long as it can be undeleted.
    place.tables.delete(OTHER).unwrap();
    refused(place.backups.restore(&format!("{OTHER}3"), BACKUP).unwrap_err());
    clock.advance_micros(8 * DAY as u64);
    assert_eq!(place.tables.sweep(place.now()), 1);
    let restored = place.backups.restore(&format!("{OTHER}3"), BACKUP).unwrap();
    response(&place.wait(&restored)).unwrap();

    // What is there is opened whatever it takes.
    place.engine.close().unwrap();
    let less = EngineOptions { tablets_bytes_max: 4200, ..options() };
    let place = open_by(files, clock, less);
    assert_eq!(place.engine.tablets().len(), 9);
    assert_eq!(place.tables.all().len(), 3);
    refused(place.tables.create(OTHER, NewTable::default()).unwrap_err());
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
    let (catalog, options) = (&crate::catalog::entry_of, RepairOptions::default());
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
