//! The RPCs on backups, over the network, with the generated client: a backup from its creation to a table restored in
//! another instance, and what is refused, with the code that the service documents and nothing changed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;
use std::sync::Arc;

use tepui_engine::io::{
    Clock as _, Env, InlineIo, MemoryFiles, SeededRng, SystemClock, ThreadSpawner,
};
use tepui_server::api::admin::bigtable_table_admin_client::BigtableTableAdminClient;
use tepui_server::api::admin::restore_table_request::Source;
use tepui_server::api::{admin, longrunning};
use tepui_server::config::Config;
use tepui_server::server::{self, Running};
use tonic::Code;
use tonic::transport::Channel;

const INSTANCE: &str = "projects/p/instances/i";
const TABLE: &str = "projects/p/instances/i/tables/t";
const CLUSTER: &str = "projects/p/instances/i/clusters/c";
const BACKUP: &str = "projects/p/instances/i/clusters/c/backups/b";

type Client = BigtableTableAdminClient<Channel>;
type Operations = longrunning::operations_client::OperationsClient<Channel>;

async fn start() -> (Running, Client, Operations) {
    let env = Env {
        files: Arc::new(MemoryFiles::new()),
        io: Arc::new(InlineIo),
        clock: Arc::new(SystemClock::new()),
        rng: Arc::new(SeededRng::new(1)),
        spawner: Arc::new(ThreadSpawner),
    };
    let config = Config {
        data: PathBuf::from("/tepui"),
        listen: "127.0.0.1:0".to_owned(),
        cores: 1,
        ..Config::default()
    };
    let starting = tokio::task::spawn_blocking(move || server::start(env, &config).unwrap());
    let running = starting.await.unwrap();
    let address = format!("http://{}", running.address());
    let channel = Channel::from_shared(address).unwrap().connect().await.unwrap();
    let (mut client, operations) = (Client::new(channel.clone()), Operations::new(channel));
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
    let all = client.list_backups(list("projects/p/instances/i/clusters/-")).await.unwrap();
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
        (create("projects/p/instances/i/clusters/-", "n", Some(asked())), bad),
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
