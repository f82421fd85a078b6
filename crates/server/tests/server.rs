//! The real server on a free port, over a file system in memory, spoken to by the generated clients.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use prost::Message as _;
use tepui_engine::io::{CrashMode, Fault, FaultFiles, FaultOp};
use tepui_engine::io::{Env, InlineIo, MemoryFiles, SeededRng, SystemClock, ThreadSpawner};
use tepui_server::api::admin::bigtable_instance_admin_client::BigtableInstanceAdminClient;
use tepui_server::api::admin::bigtable_table_admin_client::BigtableTableAdminClient;
use tepui_server::api::admin::drop_row_range_request::Target;
use tepui_server::api::admin::modify_column_families_request::{Modification, modification::Mod};
use tepui_server::api::v2::bigtable_client::BigtableClient;
use tepui_server::api::v2::read_rows_response::cell_chunk::RowStatus;
use tepui_server::api::{admin, longrunning, rpc, v2};
use tepui_server::config::Config;
use tepui_server::server::{self, Running};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::Code;
use tonic::transport::Channel;

#[path = "server/administration.rs"]
mod administration;
#[path = "server/authorized_views.rs"]
mod authorized_views;
#[path = "server/change_streams.rs"]
mod change_streams;
#[path = "server/iam.rs"]
mod iam;
#[path = "server/instances.rs"]
mod instances;
#[path = "server/types.rs"]
mod types;

const INSTANCE: &str = "projects/p/instances/i";
const TABLE: &str = "projects/p/instances/i/tables/t";

/// A server that is running, and a connection to it.
struct TestServer {
    running: Running,
    channel: Channel,
}

fn memory() -> Env {
    Env {
        files: Arc::new(MemoryFiles::new()),
        io: Arc::new(InlineIo),
        clock: Arc::new(SystemClock::new()),
        rng: Arc::new(SeededRng::new(1)),
        spawner: Arc::new(ThreadSpawner),
    }
}

async fn start(env: &Env) -> TestServer {
    start_with(env, |_| {}).await
}

async fn start_with(env: &Env, change: impl FnOnce(&mut Config)) -> TestServer {
    let mut config = Config {
        data: PathBuf::from("/tepui"),
        listen: "127.0.0.1:0".to_owned(),
        cores: 2,
        ..Config::default()
    };
    change(&mut config);
    let env = env.clone();
    let starting = tokio::task::spawn_blocking(move || server::start(env, &config).unwrap());
    let running = starting.await.unwrap();
    let address = format!("http://{}", running.address());
    let channel = Channel::from_shared(address).unwrap().connect().await.unwrap();
    TestServer { running, channel }
}

impl TestServer {
    fn data(&self) -> BigtableClient<Channel> {
        BigtableClient::new(self.channel.clone())
    }

    fn tables(&self) -> BigtableTableAdminClient<Channel> {
        BigtableTableAdminClient::new(self.channel.clone())
    }

    async fn create(&self, splits: &[&'static str]) -> admin::Table {
        let request = admin::CreateTableRequest {
            parent: INSTANCE.to_owned(),
            table_id: "t".to_owned(),
            table: Some(admin::Table {
                column_families: [("cf".to_owned(), admin::ColumnFamily::default())].into(),
                ..Default::default()
            }),
            initial_splits: splits
                .iter()
                .map(|key| admin::create_table_request::Split { key: Bytes::from(*key) })
                .collect(),
        };
        self.tables().create_table(request).await.unwrap().into_inner()
    }

    async fn set(&self, row: &str, value: &[u8]) -> Result<(), tonic::Status> {
        let request = v2::MutateRowRequest {
            table_name: TABLE.to_owned(),
            row_key: Bytes::copy_from_slice(row.as_bytes()),
            mutations: vec![set_cell("cf", value)],
            ..Default::default()
        };
        self.data().mutate_row(request).await.map(|_| ())
    }

    /// All rows: keys and the values of their cells, which may come in several chunks.
    async fn rows(&self) -> Result<Vec<(String, Vec<Vec<u8>>)>, tonic::Status> {
        let request = v2::ReadRowsRequest { table_name: TABLE.to_owned(), ..Default::default() };
        let mut stream = self.data().read_rows(request).await?.into_inner();
        let (mut rows, mut row, mut value) = (Vec::new(), (String::new(), Vec::new()), Vec::new());
        while let Some(message) = stream.message().await? {
            for chunk in message.chunks {
                if !chunk.row_key.is_empty() {
                    row.0 = String::from_utf8(chunk.row_key.to_vec()).unwrap();
                }
                value.extend_from_slice(&chunk.value);
                if chunk.value_size == 0 {
                    row.1.push(std::mem::take(&mut value));
                }
                if matches!(chunk.row_status, Some(RowStatus::CommitRow(true))) {
                    rows.push(std::mem::take(&mut row));
                }
            }
        }
        Ok(rows)
    }

    async fn stop(self) {
        drop(self.channel);
        let running = self.running;
        tokio::task::spawn_blocking(move || running.stop().unwrap()).await.unwrap();
    }
}

fn set_cell(family: &str, value: &[u8]) -> v2::Mutation {
    let set = v2::mutation::SetCell {
        family_name: family.to_owned(),
        column_qualifier: Bytes::from_static(b"q"),
        timestamp_micros: 1_000,
        value: Bytes::copy_from_slice(value),
    };
    v2::Mutation { mutation: Some(v2::mutation::Mutation::SetCell(set)) }
}

fn row(key: &str, value: &[u8]) -> (String, Vec<Vec<u8>>) {
    (key.to_owned(), vec![value.to_vec()])
}

#[tokio::test]
async fn what_was_written_is_read_after_a_restart() {
    let env = memory();
    let server = start(&env).await;
    server.create(&["m"]).await;
    server.set("b", b"1").await.unwrap();
    server.set("x", b"2").await.unwrap();
    assert_eq!(server.rows().await.unwrap(), [row("b", b"1"), row("x", b"2")]);
    server.stop().await;

    let server = start(&env).await;
    assert_eq!(server.rows().await.unwrap(), [row("b", b"1"), row("x", b"2")]);
    let request = admin::GetTableRequest { name: TABLE.to_owned(), view: 0 };
    let table = server.tables().get_table(request).await.unwrap().into_inner();
    assert!(table.column_families.contains_key("cf"));
    server.stop().await;
}

#[tokio::test]
async fn values_larger_than_a_message_arrive_whole_at_a_client_with_default_limits() {
    let server = start(&memory()).await;
    server.create(&[]).await;
    let value: Vec<u8> = (0..20 << 20).map(|i| (i % 251) as u8).collect();
    server.set("big", &value).await.unwrap();
    assert_eq!(server.rows().await.unwrap(), [row("big", &value)]);
    server.stop().await;
}

#[tokio::test]
async fn a_bulk_write_answers_for_each_entry() {
    let server = start(&memory()).await;
    server.create(&[]).await;
    let entry = |row: &'static str, family: &str| v2::mutate_rows_request::Entry {
        row_key: Bytes::from(row),
        mutations: vec![set_cell(family, b"v")],
        ..Default::default()
    };
    let request = v2::MutateRowsRequest {
        table_name: TABLE.to_owned(),
        entries: vec![entry("a", "cf"), entry("b", "nope"), entry("c", "cf")],
        ..Default::default()
    };
    let mut stream = server.data().mutate_rows(request).await.unwrap().into_inner();
    let mut codes = Vec::new();
    while let Some(message) = stream.message().await.unwrap() {
        codes.extend(message.entries.into_iter().map(|e| (e.index, e.status.unwrap().code)));
    }
    assert_eq!(codes, [(0, 0), (1, Code::NotFound as i32), (2, 0)]);
    assert_eq!(server.rows().await.unwrap(), [row("a", b"v"), row("c", b"v")]);
    server.stop().await;
}

#[tokio::test]
async fn clients_that_go_by_it_are_told_their_rate_of_bulk_writes() {
    let server = start(&memory()).await;
    server.create(&["m"]).await;
    let told = async |features: Option<&'static str>| {
        let entry = v2::mutate_rows_request::Entry {
            row_key: Bytes::from_static(b"r"),
            mutations: vec![set_cell("cf", b"v")],
            ..Default::default()
        };
        let mut request = tonic::Request::new(v2::MutateRowsRequest {
            table_name: TABLE.to_owned(),
            entries: vec![entry],
            ..Default::default()
        });
        if let Some(features) = features {
            request.metadata_mut().insert("bigtable-features", features.parse().unwrap());
        }
        let mut answer = server.data().mutate_rows(request).await.unwrap().into_inner();
        let message = answer.message().await.unwrap().unwrap();
        assert_eq!(answer.message().await.unwrap(), None);
        message.rate_limit_info
    };
    // mutate_rows_rate_limit2, padded as most clients do; then reverse_scans.
    let info = told(Some("KAE=")).await.unwrap();
    assert!(info.factor > 1.0 && info.factor <= 1.3, "an idle server can take more: {info:?}");
    assert_eq!(info.period.unwrap().seconds, 10);
    assert_eq!(told(Some("CAE=")).await, None);
    assert_eq!(told(None).await, None);
    server.stop().await;
}

#[tokio::test]
async fn bad_requests_have_their_codes_and_leave_the_connection_usable() {
    let server = start(&memory()).await;
    let missing = server.set("r", b"v").await.unwrap_err();
    assert_eq!(missing.code(), Code::NotFound);
    assert_eq!(missing.message(), format!("table \"{TABLE}\" not found"));
    server.create(&[]).await;
    assert_eq!(server.set("", b"v").await.unwrap_err().code(), Code::InvalidArgument);
    let view = v2::ReadRowsRequest {
        materialized_view_name: format!("{INSTANCE}/materializedViews/v"),
        ..Default::default()
    };
    let status = server.data().read_rows(view).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
    assert!(status.message().starts_with("materialized_view_name"), "{status}");
    let query = v2::PrepareQueryRequest::default();
    let status = server.data().prepare_query(query).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
    assert_eq!(status.message(), "Bigtable.PrepareQuery is not supported yet");
    let mut instances = BigtableInstanceAdminClient::new(server.channel.clone());
    let request = admin::GetLogicalViewRequest::default();
    let status = instances.get_logical_view(request).await.unwrap_err();
    assert_eq!(status.message(), "BigtableInstanceAdmin.GetLogicalView is not supported yet");
    server.set("r", b"v").await.unwrap();
    assert_eq!(server.rows().await.unwrap(), [row("r", b"v")]);
    server.stop().await;
}

#[tokio::test]
async fn a_table_lives_through_deletion_and_return() {
    let server = start(&memory()).await;
    server.create(&[]).await;
    server.set("r", b"v").await.unwrap();
    let mut tables = server.tables();

    let protect = |deletion_protection| admin::UpdateTableRequest {
        table: Some(admin::Table {
            name: TABLE.to_owned(),
            deletion_protection,
            ..Default::default()
        }),
        update_mask: Some(prost_types::FieldMask { paths: vec!["deletion_protection".into()] }),
        ..Default::default()
    };
    let operation = tables.update_table(protect(true)).await.unwrap().into_inner();
    assert!(operation.done);
    let mut operations =
        longrunning::operations_client::OperationsClient::new(server.channel.clone());
    let get = longrunning::GetOperationRequest { name: operation.name.clone() };
    assert_eq!(operations.get_operation(get).await.unwrap().into_inner(), operation);

    let delete = || admin::DeleteTableRequest { name: TABLE.to_owned() };
    let status = tables.delete_table(delete()).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    tables.update_table(protect(false)).await.unwrap();
    tables.delete_table(delete()).await.unwrap();
    assert_eq!(server.rows().await.unwrap_err().code(), Code::NotFound);
    let undelete = admin::UndeleteTableRequest { name: TABLE.to_owned() };
    assert!(tables.undelete_table(undelete).await.unwrap().into_inner().done);
    assert_eq!(server.rows().await.unwrap(), [row("r", b"v")]);

    tables.delete_table(delete()).await.unwrap();
    server.create(&[]).await;
    assert_eq!(server.rows().await.unwrap(), []);
    server.stop().await;
}

#[tokio::test]
async fn a_family_created_anew_does_not_show_old_cells() {
    let server = start(&memory()).await;
    server.create(&[]).await;
    server.set("r", b"old").await.unwrap();
    let modification =
        |id: &str, m: Mod| Modification { id: id.to_owned(), update_mask: None, r#mod: Some(m) };
    let request = admin::ModifyColumnFamiliesRequest {
        name: TABLE.to_owned(),
        modifications: vec![
            modification("cf", Mod::Drop(true)),
            modification("cf", Mod::Create(admin::ColumnFamily::default())),
        ],
        ..Default::default()
    };
    let table = server.tables().modify_column_families(request).await.unwrap().into_inner();
    assert_eq!(table.granularity, 1);
    assert_eq!(server.rows().await.unwrap(), []);
    server.set("r", b"new").await.unwrap();
    assert_eq!(server.rows().await.unwrap(), [row("r", b"new")]);
    server.stop().await;
}

#[tokio::test]
async fn dropping_a_row_range_keeps_the_other_rows() {
    let server = start(&memory()).await;
    server.create(&["b"]).await;
    for key in ["a1", "a2", "b1"] {
        server.set(key, b"v").await.unwrap();
    }
    let drop = |target| admin::DropRowRangeRequest { name: TABLE.to_owned(), target: Some(target) };
    let prefix = Target::RowKeyPrefix(Bytes::from("a"));
    server.tables().drop_row_range(drop(prefix)).await.unwrap();
    assert_eq!(server.rows().await.unwrap(), [row("b1", b"v")]);
    let all = Target::DeleteAllDataFromTable(true);
    server.tables().drop_row_range(drop(all)).await.unwrap();
    assert_eq!(server.rows().await.unwrap(), []);
    server.stop().await;
}

#[tokio::test]
async fn listing_pages_and_consistency_tokens_work_over_the_wire() {
    let server = start(&memory()).await;
    server.create(&[]).await;
    let mut tables = server.tables();
    for table_id in ["u", "v"] {
        let request = admin::CreateTableRequest {
            parent: INSTANCE.to_owned(),
            table_id: table_id.to_owned(),
            ..Default::default()
        };
        tables.create_table(request).await.unwrap();
    }
    let list = |page_token: String| admin::ListTablesRequest {
        parent: INSTANCE.to_owned(),
        page_size: 2,
        page_token,
        view: 0,
    };
    let first = tables.list_tables(list(String::new())).await.unwrap().into_inner();
    assert_eq!(first.tables.len(), 2);
    let second = tables.list_tables(list(first.next_page_token)).await.unwrap().into_inner();
    assert_eq!(second.tables.len(), 1);
    assert_eq!(second.next_page_token, "");

    let generate = admin::GenerateConsistencyTokenRequest { name: TABLE.to_owned() };
    let token = tables.generate_consistency_token(generate).await.unwrap().into_inner();
    let check = |consistency_token: String| admin::CheckConsistencyRequest {
        name: TABLE.to_owned(),
        consistency_token,
        mode: None,
    };
    let checked = tables.check_consistency(check(token.consistency_token)).await.unwrap();
    assert!(checked.into_inner().consistent);
    let status = tables.check_consistency(check("x".to_owned())).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    server.stop().await;
}

#[tokio::test]
async fn the_go_client_gets_each_row_in_one_message_and_others_bounded_ones() {
    let server = start(&memory()).await;
    server.create(&[]).await;
    for (row, bytes) in [("a", 3 << 20), ("b", 5 << 20), ("c", 1)] {
        server.set(row, &vec![b'v'; bytes]).await.unwrap();
    }
    let address = format!("http://{}", server.running.address());
    let messages = async |agent: &'static str| {
        let channel = Channel::from_shared(address.clone()).unwrap().user_agent(agent).unwrap();
        let data = BigtableClient::new(channel.connect().await.unwrap());
        let request = v2::ReadRowsRequest { table_name: TABLE.to_owned(), ..Default::default() };
        let mut request = tonic::Request::new(request);
        request.metadata_mut().insert("bigtable-features", "qgEC".parse().unwrap());
        let mut data = data.max_decoding_message_size(64 << 20);
        let mut stream = data.read_rows(request).await.unwrap().into_inner();
        let (mut ends, mut largest) = (Vec::new(), 0);
        while let Some(message) = stream.message().await.unwrap() {
            ends.push(message.chunks.last().unwrap().row_status.is_some());
            largest = largest.max(message.encoded_len());
        }
        (ends, largest)
    };
    let (ends, largest) = messages("grpc-go/1.83.2").await;
    assert_eq!(ends, [true; 3]);
    assert!(largest > 5 << 20);
    let (ends, largest) = messages("grpc-python/1.75.0").await;
    assert!(ends[0] && ends.contains(&false));
    assert!(largest <= 4 << 20);
    server.stop().await;
}

#[tokio::test]
async fn health_says_serving_until_the_server_stops_and_a_ping_is_answered() {
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_client::HealthClient;
    const SERVING: i32 = 1;
    const NOT_SERVING: i32 = 2;
    let server = start(&memory()).await;
    let mut health = HealthClient::new(server.channel.clone());
    let check = |service: &str| HealthCheckRequest { service: service.to_owned() };
    for service in SERVICES.iter().map(|(name, _)| *name).chain([""]) {
        let answer = health.check(check(service)).await.unwrap();
        assert_eq!(answer.into_inner().status, SERVING, "{service}");
    }
    let unknown = health.check(check("google.bigtable.v2.Nobody")).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
    let ping = v2::PingAndWarmRequest { name: INSTANCE.to_owned(), ..Default::default() };
    server.data().ping_and_warm(ping).await.unwrap();

    // A watch is a request under way: it hears of the stop before its connection ends.
    let mut watch = health.watch(check("google.bigtable.v2.Bigtable")).await.unwrap().into_inner();
    assert_eq!(watch.message().await.unwrap().unwrap().status, SERVING);
    let heard = async move { watch.message().await.unwrap().unwrap().status };
    drop(health);
    let ((), status) = tokio::join!(server.stop(), heard);
    assert_eq!(status, NOT_SERVING);
}

/// Names of everything that is served besides reflection, each with one of its RPCs.
const SERVICES: [(&str, &str); 4] = [
    ("google.bigtable.admin.v2.BigtableInstanceAdmin", "CreateInstance"),
    ("google.bigtable.admin.v2.BigtableTableAdmin", "CreateTable"),
    ("google.bigtable.v2.Bigtable", "ReadRows"),
    ("google.longrunning.Operations", "GetOperation"),
];

#[tokio::test]
async fn reflection_lists_and_describes_the_services() {
    use tonic_reflection::pb::v1::ServerReflectionRequest;
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    let server = start(&memory()).await;
    let mut client = ServerReflectionClient::new(server.channel.clone());
    let mut requests = vec![MessageRequest::ListServices(String::new())];
    requests
        .extend(SERVICES.map(|(name, _)| MessageRequest::FileContainingSymbol(name.to_owned())));
    let requests = requests.into_iter().map(|message_request| ServerReflectionRequest {
        host: String::new(),
        message_request: Some(message_request),
    });
    let requests = futures::stream::iter(requests.collect::<Vec<_>>());
    let mut answers = client.server_reflection_info(requests).await.unwrap().into_inner();
    let mut answer = async || answers.message().await.unwrap().unwrap().message_response.unwrap();

    let MessageResponse::ListServicesResponse(listed) = answer().await else { panic!() };
    let listed: Vec<_> = listed.service.into_iter().map(|service| service.name).collect();
    for (name, _) in SERVICES {
        assert!(listed.iter().any(|listed| listed == name), "{name} is not among {listed:?}");
    }
    for (name, rpc) in SERVICES {
        let MessageResponse::FileDescriptorResponse(files) = answer().await else { panic!() };
        let described = files.file_descriptor_proto.iter().any(|file| {
            let file = prost_types::FileDescriptorProto::decode(file.as_slice()).unwrap();
            let package = file.package().to_owned();
            file.service.iter().any(|service| {
                format!("{package}.{}", service.name()) == name
                    && service.method.iter().any(|method| method.name() == rpc)
            })
        });
        assert!(described, "{name}");
    }
    drop((client, answers));
    server.stop().await;
}

async fn set_named<'a>(
    server: &TestServer,
    name: &'a str,
    value: &[u8],
) -> (&'a str, Result<(), tonic::Status>) {
    (name, server.set(name, value).await)
}

/// When a refusal says to try again.
fn retry_delay(status: &tonic::Status) -> Option<prost_types::Duration> {
    let details = rpc::Status::decode(status.details()).ok()?.details;
    let info = details.iter().find(|d| d.type_url.ends_with("google.rpc.RetryInfo"))?;
    rpc::RetryInfo::decode(&info.value[..]).ok()?.retry_delay
}

/// What is served at a path of the endpoint of metrics: the status line, and the body.
async fn scrape(server: &TestServer, path: &str) -> (String, String) {
    let address = server.running.metrics_address().unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap().to_owned(), body.to_owned())
}

fn serve_metrics(config: &mut Config) {
    config.metrics_listen = Some(([127, 0, 0, 1], 0).into());
}

/// The sum of the samples whose line starts so, in whole numbers.
fn sample(metrics: &str, start: &str) -> u64 {
    let values = metrics.lines().filter(|line| line.starts_with(start));
    values.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap() as u64).sum()
}

#[tokio::test]
async fn metrics_tell_what_a_server_did_and_every_name_is_documented() {
    let server = start_with(&memory(), serve_metrics).await;
    server.create(&[]).await;
    for n in 0..20 {
        server.set(&format!("r{n}"), b"v").await.unwrap();
    }
    assert_eq!(server.rows().await.unwrap().len(), 20);
    let missing = v2::MutateRowRequest {
        table_name: format!("{INSTANCE}/tables/none"),
        row_key: Bytes::from_static(b"r"),
        mutations: vec![set_cell("cf", b"v")],
        ..Default::default()
    };
    server.data().mutate_row(missing).await.unwrap_err();
    let (status, metrics) = scrape(&server, "/metrics").await;
    assert!(status.contains("200"), "{status}");
    let calls = "tepui_requests_total{service=\"Bigtable\",method=\"MutateRow\",code=";
    assert_eq!(sample(&metrics, &format!("{calls}\"Ok\"}}")), 20, "{metrics}");
    assert_eq!(sample(&metrics, &format!("{calls}\"NotFound\"}}")), 1);
    let took = "tepui_request_duration_seconds_count{service=\"Bigtable\",method=\"ReadRows\"}";
    assert_eq!(sample(&metrics, took), 1);
    assert_eq!(sample(&metrics, "tepui_records"), 20);
    assert!(sample(&metrics, "tepui_memory_bytes{part=\"memtables\"}") > 0);
    assert_eq!(sample(&metrics, "tepui_read_only"), 0);
    assert_eq!(sample(&metrics, "tepui_log_mutations_total"), 20);
    let groups = sample(&metrics, "tepui_log_groups_total");
    assert!((1..=20).contains(&groups), "{groups}");
    assert_eq!(sample(&metrics, "tepui_log_sync_duration_seconds_count"), groups);
    assert!(sample(&metrics, "tepui_log_written_bytes_total") > 20 * 10);
    assert!(metrics.ends_with("# EOF\n"));
    let documented = include_str!("../../../docs/operations.md");
    let names = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    for name in names.map(|line| line.split(' ').next().unwrap()) {
        assert!(documented.contains(&format!("`{name}`")), "{name} is not in docs/operations.md");
    }
    assert!(scrape(&server, "/health").await.0.contains("200"));
    assert!(scrape(&server, "/").await.0.contains("404"));
    server.stop().await;
}

#[tokio::test]
async fn metrics_tell_of_large_values_and_of_all_memory() {
    let server = start_with(&memory(), serve_metrics).await;
    server.create(&[]).await;
    let value = vec![5; 20 << 10];
    for _ in 0..2 {
        for n in 0..4 {
            server.set(&format!("r{n}"), &value).await.unwrap();
        }
        server.running.engine().compact_fully().unwrap();
    }
    let (_, metrics) = scrape(&server, "/metrics").await;
    let values = |state| sample(&metrics, &format!("tepui_value_bytes{{state=\"{state}\"}}"));
    assert!(sample(&metrics, "tepui_value_files") >= 1, "{metrics}");
    assert!(values("live") > 0);
    assert!(
        sample(&metrics, "tepui_value_written_bytes_total") >= values("live") + values("garbage")
    );
    let parts = sample(&metrics, "tepui_memory_bytes{");
    let resident = sample(&metrics, "tepui_resident_memory_bytes");
    // Nothing is resident that no part counts; parts may count memory that was not touched yet.
    assert!(resident > 0 && parts >= resident, "{parts} of {resident}");
    server.stop().await;
}

#[tokio::test]
async fn a_failed_sync_shows_with_its_reason_in_health_and_metrics() {
    let mut env = memory();
    let faults = FaultFiles::new(Arc::clone(&env.files));
    env.files = Arc::new(faults.clone());
    let server = start_with(&env, serve_metrics).await;
    server.create(&[]).await;
    server.set("kept", b"v").await.unwrap();
    faults.inject(Fault::new(FaultOp::Sync));
    server.set("lost", b"v").await.unwrap_err();
    let refused = server.set("later", b"v").await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert_eq!(server.rows().await.unwrap().len(), 1, "reads go on");
    let (status, reason) = scrape(&server, "/health").await;
    assert!(status.contains("503") && reason.contains("commit log failed"), "{status} {reason}");
    let (_, metrics) = scrape(&server, "/metrics").await;
    let line = metrics.lines().find(|line| line.starts_with("tepui_read_only{")).unwrap();
    assert!(line.contains("commit log failed") && line.ends_with(" 1"), "{line}");
    drop(server);
}

#[tokio::test]
async fn while_the_log_stands_still_writes_are_refused_with_a_hint_and_afterwards_taken() {
    let mut env = memory();
    let faults = FaultFiles::new(Arc::clone(&env.files));
    env.files = Arc::new(faults.clone());
    let queue_bytes = 64 << 10;
    let server = start_with(&env, |config| {
        serve_metrics(config);
        config.engine.log_queue_bytes = queue_bytes;
    })
    .await;
    server.create(&[]).await;
    let (go, stands_still) = std::sync::mpsc::channel::<()>();
    let stands_still = std::sync::Mutex::new(stands_still);
    let hook = move |_: &std::path::Path| {
        // Until the sender is gone.
        let _ = stands_still.lock().unwrap().recv();
    };
    faults.before_sync(Some(Arc::new(hook)));
    let value = [7_u8; 4 << 10];
    let names: Vec<String> = (0..200).map(|n| format!("r{n}")).collect();
    let mut writes: FuturesUnordered<_> =
        names.iter().map(|name| set_named(&server, name, &value)).collect();
    let mut refused = 0;
    // The queue takes some 16 of them; those wait, and all others are answered.
    while refused < 180 {
        let (_, result) = writes.next().await.unwrap();
        let status = result.expect_err("nothing is durable");
        assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
        let delay = retry_delay(&status).expect("a refusal says when to come back");
        assert!(delay.seconds > 0 || delay.nanos > 1_000_000);
        refused += 1;
    }
    let (_, metrics) = scrape(&server, "/metrics").await;
    assert!(sample(&metrics, "tepui_refused_total{reason=\"log_queue\"}") >= 180);
    assert!(sample(&metrics, "tepui_memory_bytes{part=\"log_queue\"}") <= 2 * queue_bytes);
    drop(go);
    let mut taken = 0;
    while let Some((name, result)) = writes.next().await {
        if let Err(status) = result {
            assert!(retry_delay(&status).is_some(), "{name}: {status}");
        } else {
            taken += 1;
        }
    }
    assert!(taken > 0, "what had its place in the queue was written");
    drop(writes);
    server.set("after", b"v").await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn a_request_that_memory_has_no_room_for_is_refused_by_its_size() {
    let server = start_with(&memory(), |config| {
        serve_metrics(config);
        config.budget.requests_bytes = 12 << 20;
    })
    .await;
    server.create(&[]).await;
    server.set("fits", &vec![1; 4 << 20]).await.unwrap();
    let refused = server.set("large", &vec![1; 8 << 20]).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    assert!(refused.message().contains("limit"), "{refused}");
    // Several at once take turns.
    let value = vec![2; 4 << 20];
    let names: Vec<String> = (0..6).map(|n| format!("r{n}")).collect();
    let writes = names.iter().map(|name| server.set(name, &value));
    for result in futures::future::join_all(writes).await {
        result.unwrap();
    }
    let (_, metrics) = scrape(&server, "/metrics").await;
    assert_eq!(sample(&metrics, "tepui_refused_total{reason=\"request_too_large\"}"), 1);
    assert_eq!(sample(&metrics, "tepui_memory_bytes{part=\"requests\"}"), 0);
    server.stop().await;
}

#[tokio::test]
async fn a_read_whose_client_stalls_lets_go_of_the_engine_and_goes_on_when_it_is_back() {
    let server = start_with(&memory(), serve_metrics).await;
    server.create(&["r3"]).await;
    let value = vec![3; 100 << 10];
    for n in 0..60 {
        server.set(&format!("r{n:02}"), &value).await.unwrap();
    }
    let request = v2::ReadRowsRequest { table_name: TABLE.to_owned(), ..Default::default() };
    let mut stream = server.data().read_rows(request).await.unwrap().into_inner();
    let first = stream.message().await.unwrap().unwrap();
    while sample(&scrape(&server, "/metrics").await.1, "tepui_reads_suspended_total") < 1 {
        tokio::task::yield_now().await;
    }
    let committed = |message: &v2::ReadRowsResponse| {
        let chunks = message.chunks.iter();
        chunks.filter(|c| matches!(c.row_status, Some(RowStatus::CommitRow(true)))).count()
    };
    let mut rows = committed(&first);
    while let Some(message) = stream.message().await.unwrap() {
        rows += committed(&message);
    }
    assert_eq!(rows, 60);
    let (_, metrics) = scrape(&server, "/metrics").await;
    assert_eq!(sample(&metrics, "tepui_reads_parked"), 0);
    assert_eq!(sample(&metrics, "tepui_memory_bytes{part=\"answers\"}"), 0);
    server.stop().await;
}

#[tokio::test]
async fn a_row_that_its_client_does_not_take_counts_as_all_that_is_held_of_it() {
    let server = start_with(&memory(), serve_metrics).await;
    server.create(&[]).await;
    let value = vec![5; 24 << 20];
    server.set("large", &value).await.unwrap();
    let request = v2::ReadRowsRequest { table_name: TABLE.to_owned(), ..Default::default() };
    let mut stream = server.data().read_rows(request).await.unwrap().into_inner();
    stream.message().await.unwrap().unwrap();
    // The engine has nothing more for it: the rest waits in memory, until the connection's windows are full.
    let stalled = async {
        loop {
            let (_, metrics) = scrape(&server, "/metrics").await;
            if sample(&metrics, "tepui_reads_suspended_total") == 1 {
                break sample(&metrics, "tepui_memory_bytes{part=\"answers\"}");
            }
            tokio::task::yield_now().await;
        }
    };
    let stalled = tokio::time::timeout(std::time::Duration::from_mins(1), stalled).await;
    let held = stalled.expect("a read that waits for its client is known to");
    assert!(held >= 10 << 20, "{held} bytes");
    let mut bytes = 0;
    while let Some(message) = stream.message().await.unwrap() {
        bytes += message.chunks.iter().map(|chunk| chunk.value.len()).sum::<usize>();
    }
    assert!(bytes > 20 << 20);
    server.stop().await;
}
