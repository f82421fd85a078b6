//! The RPCs on backups, over the network, with the generated client: a backup from its creation to a table restored in
//! another instance, and what is refused, with the code that the service documents and nothing changed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};

use tepui_engine::io::{
    Clock as _, Env, InlineIo, JoinHandle, MemoryFiles, SeededRng, Spawner, SystemClock,
    ThreadSpawner,
};
use tepui_server::api::admin::bigtable_instance_admin_client::BigtableInstanceAdminClient;
use tepui_server::api::admin::bigtable_table_admin_client::BigtableTableAdminClient;
use tepui_server::api::admin::restore_table_request::Source;
use tepui_server::api::{admin, longrunning};
use tepui_server::config::Config;
use tepui_server::limits::OPERATIONS_MAX;
use tepui_server::server::{self, Running};
use tonic::Code;
use tonic::transport::Channel;

const INSTANCE: &str = "projects/p/instances/inst";
const TABLE: &str = "projects/p/instances/inst/tables/t";
const CLUSTER: &str = "projects/p/instances/inst/clusters/c";
const BACKUP: &str = "projects/p/instances/inst/clusters/c/backups/b";

type Client = BigtableTableAdminClient<Channel>;
type Instances = BigtableInstanceAdminClient<Channel>;
type Operations = longrunning::operations_client::OperationsClient<Channel>;

/// Threads, of which those that make and restore backups do not begin while they are held back.
#[derive(Debug, Default)]
struct Gate {
    is_held: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    fn hold(&self, is_held: bool) {
        *self.is_held.lock().unwrap() = is_held;
        self.changed.notify_all();
    }
}

#[derive(Debug)]
struct GatedSpawner(Arc<Gate>);

impl Spawner for GatedSpawner {
    fn spawn(
        &self,
        name: &str,
        work: Box<dyn FnOnce() + Send>,
    ) -> tepui_engine::Result<Box<dyn JoinHandle>> {
        if name != "tepui-backup" {
            return ThreadSpawner.spawn(name, work);
        }
        let gate = Arc::clone(&self.0);
        let waits = move || {
            let held = gate.is_held.lock().unwrap();
            drop(gate.changed.wait_while(held, |is_held| *is_held).unwrap());
            work();
        };
        ThreadSpawner.spawn(name, Box::new(waits))
    }
}

async fn create_instance(channel: Channel, instance_id: &str) {
    let request = admin::CreateInstanceRequest {
        parent: "projects/p".to_owned(),
        instance_id: instance_id.to_owned(),
        instance: Some(admin::Instance { display_name: "I".to_owned(), ..Default::default() }),
        clusters: [("c".to_owned(), cluster())].into(),
    };
    Instances::new(channel).create_instance(request).await.unwrap();
}

async fn start() -> (Running, Client, Operations) {
    start_with(Arc::default(), false).await
}

async fn start_with(gate: Arc<Gate>, strict_instances: bool) -> (Running, Client, Operations) {
    let env = Env {
        files: Arc::new(MemoryFiles::new()),
        io: Arc::new(InlineIo),
        clock: Arc::new(SystemClock::new()),
        rng: Arc::new(SeededRng::new(1)),
        spawner: Arc::new(GatedSpawner(gate)),
    };
    let config = Config {
        data: PathBuf::from("/tepui"),
        listen: "127.0.0.1:0".to_owned(),
        cores: 1,
        strict_instances,
        ..Config::default()
    };
    let starting = tokio::task::spawn_blocking(move || server::start(env, &config).unwrap());
    let running = starting.await.unwrap();
    let address = format!("http://{}", running.address());
    let channel = Channel::from_shared(address).unwrap().connect().await.unwrap();
    let (mut client, operations) = (Client::new(channel.clone()), Operations::new(channel.clone()));
    if strict_instances {
        for instance_id in ["inst", "other"] {
            create_instance(channel.clone(), instance_id).await;
        }
    }
    let table = admin::Table {
        column_families: [("cf".to_owned(), admin::ColumnFamily::default())].into(),
        ..admin::Table::default()
    };
    let request = admin::CreateTableRequest {
        parent: INSTANCE.to_owned(),
        table_id: "t".to_owned(),
        table: Some(table),
        initial_splits: Vec::new(),
    };
    client.create_table(request).await.unwrap();
    (running, client, operations)
}

fn cluster() -> admin::Cluster {
    let location = "projects/p/locations/zone-a".to_owned();
    admin::Cluster { location, serve_nodes: 1, ..Default::default() }
}

async fn stop(running: Running) {
    tokio::task::spawn_blocking(move || running.stop().unwrap()).await.unwrap();
}

fn in_hours(hours: u64) -> Option<prost_types::Timestamp> {
    let now = SystemClock::new().now_micros() / 1_000_000;
    let seconds = now + i64::try_from(hours * 3_600).unwrap();
    Some(prost_types::Timestamp { seconds, nanos: 0 })
}

fn asked() -> admin::Backup {
    admin::Backup {
        source_table: TABLE.to_owned(),
        expire_time: in_hours(12),
        ..admin::Backup::default()
    }
}

fn create(parent: &str, id: &str, backup: Option<admin::Backup>) -> admin::CreateBackupRequest {
    let (parent, backup_id) = (parent.to_owned(), id.to_owned());
    admin::CreateBackupRequest { parent, backup_id, backup }
}

fn copy(parent: &str, id: &str, source: &str, hours: u64) -> admin::CopyBackupRequest {
    admin::CopyBackupRequest {
        parent: parent.to_owned(),
        backup_id: id.to_owned(),
        source_backup: source.to_owned(),
        expire_time: in_hours(hours),
    }
}

fn restore(parent: &str, id: &str, backup: Option<&str>) -> admin::RestoreTableRequest {
    admin::RestoreTableRequest {
        parent: parent.to_owned(),
        table_id: id.to_owned(),
        source: backup.map(|backup| Source::Backup(backup.to_owned())),
    }
}

fn list(parent: &str) -> admin::ListBackupsRequest {
    admin::ListBackupsRequest { parent: parent.to_owned(), ..Default::default() }
}

#[tokio::test]
async fn a_backup_is_made_listed_copied_and_restored_in_another_instance() {
    let (running, mut client, mut operations) = start().await;
    let made = client.create_backup(create(CLUSTER, "b", Some(asked()))).await.unwrap();
    let wait = longrunning::WaitOperationRequest { name: made.into_inner().name, timeout: None };
    let made = operations.wait_operation(wait).await.unwrap().into_inner();
    assert!(made.done && made.name.starts_with(&format!("operations/{BACKUP}/operations/")));
    let get = admin::GetBackupRequest { name: BACKUP.to_owned() };
    let backup = client.get_backup(get).await.unwrap().into_inner();
    assert_eq!(backup.state, i32::from(admin::backup::State::Ready));
    let elsewhere = "projects/q/instances/k/clusters/d";
    let copied = client.copy_backup(copy(elsewhere, "copy", BACKUP, 24)).await.unwrap();
    assert!(copied.into_inner().done);
    let all = client.list_backups(list("projects/p/instances/inst/clusters/-")).await.unwrap();
    assert_eq!(all.into_inner().backups, [backup]);
    let source = format!("{elsewhere}/backups/copy");
    let restored = client.restore_table(restore("projects/q/instances/k", "r", Some(&source)));
    let name = restored.await.unwrap().into_inner().name;
    let wait = longrunning::WaitOperationRequest { name, timeout: None };
    let restored = operations.wait_operation(wait).await.unwrap().into_inner();
    assert!(matches!(restored.result, Some(longrunning::operation::Result::Response(_))));
    let get = admin::GetTableRequest {
        name: "projects/q/instances/k/tables/r".to_owned(),
        view: admin::table::View::SchemaView.into(),
    };
    let table = client.get_table(get).await.unwrap().into_inner();
    assert!(table.column_families.contains_key("cf") && table.restore_info.is_some());
    stop(running).await;
}

#[tokio::test]
async fn backups_that_were_done_when_they_were_answered_leave_room_for_the_next_and_a_restore() {
    let (running, mut client, mut operations) = start().await;
    let mut first = None;
    for n in 0..=OPERATIONS_MAX {
        let made = client.create_backup(create(CLUSTER, &format!("b{n}"), Some(asked()))).await;
        let made = made.unwrap_or_else(|status| panic!("{n}: {status}")).into_inner();
        let name = made.name.clone();
        first.get_or_insert(name.clone());
        if !made.done {
            // A slow machine: its client asks, and then it need not be kept, either.
            let wait = longrunning::WaitOperationRequest { name: name.clone(), timeout: None };
            operations.wait_operation(wait).await.unwrap();
            operations
                .delete_operation(longrunning::DeleteOperationRequest { name })
                .await
                .unwrap();
        }
    }
    let restored =
        client.restore_table(restore(INSTANCE, "r", Some(&format!("{CLUSTER}/backups/b0"))));
    let name = restored.await.unwrap().into_inner().name;
    let wait = longrunning::WaitOperationRequest { name, timeout: None };
    let restored = operations.wait_operation(wait).await.unwrap().into_inner();
    assert!(matches!(restored.result, Some(longrunning::operation::Result::Response(_))));
    let get = longrunning::GetOperationRequest { name: first.unwrap() };
    assert_eq!(operations.get_operation(get).await.unwrap_err().code(), Code::NotFound);
    stop(running).await;
}

#[tokio::test]
async fn what_is_wrong_is_refused_with_the_documented_code_and_changes_nothing() {
    let (running, mut client, mut operations) = start().await;
    let made = client.create_backup(create(CLUSTER, "b", Some(asked()))).await.unwrap();
    let wait = longrunning::WaitOperationRequest { name: made.into_inner().name, timeout: None };
    operations.wait_operation(wait).await.unwrap();
    let get = || admin::GetBackupRequest { name: BACKUP.to_owned() };
    let before = client.get_backup(get()).await.unwrap().into_inner();

    let long = "x".repeat(51);
    let with = |change: &dyn Fn(&mut admin::Backup)| {
        let mut backup = asked();
        change(&mut backup);
        Some(backup)
    };
    let bad = Code::InvalidArgument;
    for (request, code) in [
        (create("projects/p", "n", Some(asked())), bad),
        (create(INSTANCE, "n", Some(asked())), bad),
        (create("projects/p/instances/inst/clusters/-", "n", Some(asked())), bad),
        (create("projects/p/instances/j/clusters/c", "n", Some(asked())), bad),
        (create(CLUSTER, "", Some(asked())), bad),
        (create(CLUSTER, "-n", Some(asked())), bad),
        (create(CLUSTER, "a/b", Some(asked())), bad),
        (create(CLUSTER, &long, Some(asked())), bad),
        (create(CLUSTER, "n", None), bad),
        (create(CLUSTER, "n", with(&|b| b.source_table = "t".to_owned())), bad),
        (create(CLUSTER, "n", with(&|b| b.source_table = format!("{TABLE}x"))), Code::NotFound),
        (create(CLUSTER, "n", with(&|b| b.expire_time = None)), bad),
        (create(CLUSTER, "n", with(&|b| b.expire_time = in_hours(5))), bad),
        (create(CLUSTER, "n", with(&|b| b.expire_time = in_hours(91 * 24))), bad),
        (create(CLUSTER, "n", with(&|b| b.backup_type = 9)), bad),
        (create(CLUSTER, "n", with(&|b| b.hot_to_standard_time = in_hours(48))), bad),
        (create(CLUSTER, "b", Some(asked())), Code::AlreadyExists),
    ] {
        let status = client.create_backup(request.clone()).await.unwrap_err();
        assert_eq!(status.code(), code, "{request:?}: {status}");
    }
    let gone = format!("{BACKUP}x");
    for (request, code) in [
        (copy(INSTANCE, "n", BACKUP, 24), bad),
        (copy(CLUSTER, "", BACKUP, 24), bad),
        (copy(CLUSTER, "n", "b", 24), bad),
        (copy(CLUSTER, "n", BACKUP, 1), bad),
        (copy(CLUSTER, "n", BACKUP, 31 * 24), bad),
        (copy(CLUSTER, "n", &gone, 24), Code::NotFound),
        (copy(CLUSTER, "b", BACKUP, 24), Code::AlreadyExists),
    ] {
        let status = client.copy_backup(request.clone()).await.unwrap_err();
        assert_eq!(status.code(), code, "{request:?}: {status}");
    }
    for (request, code) in [
        (restore("projects/p", "n", Some(BACKUP)), bad),
        (restore(INSTANCE, "a b", Some(BACKUP)), bad),
        (restore(INSTANCE, "n", None), bad),
        (restore(INSTANCE, "n", Some("b")), bad),
        (restore(INSTANCE, "n", Some(&gone)), Code::NotFound),
        (restore(INSTANCE, "t", Some(BACKUP)), Code::AlreadyExists),
    ] {
        let status = client.restore_table(request.clone()).await.unwrap_err();
        assert_eq!(status.code(), code, "{request:?}: {status}");
    }
    let update = |name: &str, paths: &[&str]| {
        let paths = paths.iter().map(|path| (*path).to_owned()).collect();
        let backup = admin::Backup { name: name.to_owned(), expire_time: in_hours(20), ..asked() };
        let update_mask = Some(prost_types::FieldMask { paths });
        admin::UpdateBackupRequest { backup: Some(backup), update_mask }
    };
    for (request, code) in [
        (admin::UpdateBackupRequest::default(), bad),
        (update("b", &["expire_time"]), bad),
        (update(BACKUP, &[]), bad),
        (update(BACKUP, &["expire_time", "state"]), bad),
        (update(&gone, &["expire_time"]), Code::NotFound),
    ] {
        let status = client.update_backup(request.clone()).await.unwrap_err();
        assert_eq!(status.code(), code, "{request:?}: {status}");
    }
    let listed = |filter: &str, order_by: &str, page_token: &str| admin::ListBackupsRequest {
        filter: filter.to_owned(),
        order_by: order_by.to_owned(),
        page_token: page_token.to_owned(),
        ..list(CLUSTER)
    };
    for request in
        [list(INSTANCE), listed("color:red", "", ""), listed("", "size", ""), listed("", "", "zz")]
    {
        let status = client.list_backups(request.clone()).await.unwrap_err();
        assert_eq!(status.code(), bad, "{request:?}: {status}");
    }
    for (name, code) in [("b", bad), (gone.as_str(), Code::NotFound)] {
        let request = admin::GetBackupRequest { name: name.to_owned() };
        assert_eq!(client.get_backup(request).await.unwrap_err().code(), code, "{name}");
        let request = admin::DeleteBackupRequest { name: name.to_owned() };
        assert_eq!(client.delete_backup(request).await.unwrap_err().code(), code, "{name}");
    }
    let all = client.list_backups(list(CLUSTER)).await.unwrap().into_inner();
    assert_eq!(all.backups, [before]);
    let tables = admin::ListTablesRequest { parent: INSTANCE.to_owned(), ..Default::default() };
    assert_eq!(client.list_tables(tables).await.unwrap().into_inner().tables.len(), 1);
    let request = admin::DeleteBackupRequest { name: BACKUP.to_owned() };
    client.delete_backup(request).await.unwrap();
    assert_eq!(client.get_backup(get()).await.unwrap_err().code(), Code::NotFound);
    stop(running).await;
}

/// The code that an operation ends with.
async fn outcome(operations: &mut Operations, name: &str) -> Code {
    let wait = longrunning::WaitOperationRequest { name: name.to_owned(), timeout: None };
    let ended = operations.wait_operation(wait).await.unwrap().into_inner();
    assert!(ended.done);
    match ended.result.unwrap() {
        longrunning::operation::Result::Response(_) => Code::Ok,
        longrunning::operation::Result::Error(status) => Code::from_i32(status.code),
    }
}

async fn cancel(operations: &mut Operations, name: &str) -> Code {
    let request = longrunning::CancelOperationRequest { name: name.to_owned() };
    let answer = operations.cancel_operation(request).await;
    answer.map_or_else(|status| status.code(), |_| Code::Ok)
}

#[tokio::test]
async fn a_cancelled_backup_and_a_cancelled_restore_leave_nothing_and_others_are_as_they_were() {
    let gate = Arc::<Gate>::default();
    let (running, mut client, mut operations) = start_with(Arc::clone(&gate), false).await;
    let made = client.create_backup(create(CLUSTER, "b", Some(asked()))).await.unwrap();
    let made = made.into_inner().name;
    assert_eq!(outcome(&mut operations, &made).await, Code::Ok);
    gate.hold(true);
    let begun = client.create_backup(create(CLUSTER, "n", Some(asked()))).await.unwrap();
    let restored = client.restore_table(restore(INSTANCE, "r", Some(BACKUP))).await.unwrap();
    let begun = [begun.into_inner(), restored.into_inner()];
    for operation in &begun {
        assert_eq!(cancel(&mut operations, &operation.name).await, Code::Ok);
        let get = longrunning::GetOperationRequest { name: operation.name.clone() };
        let shown = operations.get_operation(get).await.unwrap().into_inner();
        assert_eq!(&shown, operation, "it is under way until it has ended");
    }
    gate.hold(false);
    for operation in &begun {
        assert_eq!(outcome(&mut operations, &operation.name).await, Code::Cancelled);
        assert_eq!(cancel(&mut operations, &operation.name).await, Code::Ok);
    }
    let all = client.list_backups(list(CLUSTER)).await.unwrap().into_inner();
    assert_eq!(all.backups.iter().map(|b| b.name.as_str()).collect::<Vec<_>>(), [BACKUP]);
    let tables = admin::ListTablesRequest { parent: INSTANCE.to_owned(), ..Default::default() };
    let tables = client.list_tables(tables).await.unwrap().into_inner().tables;
    assert_eq!(tables.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), [TABLE]);

    assert_eq!(cancel(&mut operations, &made).await, Code::Ok);
    assert_eq!(outcome(&mut operations, &made).await, Code::Ok);
    let unknown = format!("operations/{BACKUP}/operations/1");
    for name in ["", "b", unknown.as_str()] {
        assert_eq!(cancel(&mut operations, name).await, Code::NotFound, "{name:?}");
    }
    stop(running).await;
}

#[tokio::test]
async fn a_restore_goes_on_without_its_backup_and_not_without_its_instance() {
    // Where instances need not be created, its table could be made all the same.
    for is_strict in [true, false] {
        restores_go_on(is_strict).await;
    }
}

async fn restores_go_on(is_strict: bool) {
    let gate = Arc::<Gate>::default();
    let (running, mut client, mut operations) = start_with(Arc::clone(&gate), is_strict).await;
    let made = client.create_backup(create(CLUSTER, "b", Some(asked()))).await.unwrap();
    assert_eq!(outcome(&mut operations, &made.into_inner().name).await, Code::Ok);
    let other = "projects/p/instances/other";
    let address = format!("http://{}", running.address());
    let channel = Channel::from_shared(address).unwrap().connect().await.unwrap();
    if !is_strict {
        create_instance(channel.clone(), "other").await;
    }
    gate.hold(true);
    let here = client.restore_table(restore(INSTANCE, "r", Some(BACKUP))).await.unwrap();
    let there = client.restore_table(restore(other, "r", Some(BACKUP))).await.unwrap();
    let mut instances = Instances::new(channel);
    let delete = admin::DeleteInstanceRequest { name: other.to_owned() };
    instances.delete_instance(delete).await.unwrap();
    let delete = admin::DeleteBackupRequest { name: BACKUP.to_owned() };
    client.delete_backup(delete).await.unwrap();
    gate.hold(false);
    assert_eq!(outcome(&mut operations, &here.into_inner().name).await, Code::Ok);
    assert_eq!(outcome(&mut operations, &there.into_inner().name).await, Code::Aborted);
    for (instance, code) in [(INSTANCE, Code::Ok), (other, Code::NotFound)] {
        let name = format!("{instance}/tables/r");
        let get = admin::GetTableRequest { name, ..Default::default() };
        let found = client.get_table(get).await;
        assert_eq!(found.map_or_else(|status| status.code(), |_| Code::Ok), code, "{instance}");
    }
    stop(running).await;
}

#[tokio::test]
async fn a_strict_server_knows_the_instance_of_whom_all_backups_are_listed() {
    let (running, mut client, _) = start_with(Arc::default(), true).await;
    for (parent, code) in [
        ("projects/p/instances/inst/clusters/-", Code::Ok),
        ("projects/p/instances/none/clusters/-", Code::NotFound),
        ("projects/p/instances/none/clusters/c", Code::NotFound),
    ] {
        let listed = client.list_backups(list(parent)).await;
        assert_eq!(listed.map_or_else(|status| status.code(), |_| Code::Ok), code, "{parent}");
    }
    stop(running).await;
}
