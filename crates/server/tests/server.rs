//! The real server on a free port, over a file system in memory, spoken to by the generated clients.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use prost::Message as _;
use tepui_engine::db::Health;
use tepui_engine::io::{CrashMode, Fault, FaultFiles, FaultOp, Rng as _};
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

#[path = "../../bigtable/tests/support/device.rs"]
#[expect(dead_code, reason = "nobody here asks what it saw")]
mod device;

#[path = "server/administration.rs"]
mod administration;
#[path = "server/authorized_views.rs"]
mod authorized_views;
#[path = "server/change_stream_bounds.rs"]
mod change_stream_bounds;
#[path = "server/change_streams.rs"]
mod change_streams;
#[path = "server/damage.rs"]
mod damage;
#[path = "server/given_up.rs"]
mod given_up;
#[path = "server/iam.rs"]
mod iam;
#[path = "server/instances.rs"]
mod instances;
#[path = "server/pressure.rs"]
mod pressure;
#[path = "server/probes.rs"]
mod probes;
#[path = "server/refusals.rs"]
mod refusals;
#[path = "server/rows.rs"]
mod rows;
#[path = "server/tables.rs"]
mod tables;
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

/// An environment whose disk can be told to fail, and the disk.
fn with_faults(env: &Env) -> (Env, FaultFiles) {
    let faults = FaultFiles::new(Arc::clone(&env.files));
    (Env { files: Arc::new(faults.clone()), ..env.clone() }, faults)
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
        let is_read_only = matches!(running.engine().health(), Health::ReadOnly(_));
        let stopped = tokio::task::spawn_blocking(move || running.stop()).await.unwrap();
        assert_eq!(stopped.is_err(), is_read_only, "{stopped:?}");
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

/// When a refusal says to try again.
fn retry_delay(status: &tonic::Status) -> Option<prost_types::Duration> {
    let details = rpc::Status::decode(status.details()).ok()?.details;
    let info = details.iter().find(|d| d.type_url.ends_with("google.rpc.RetryInfo"))?;
    rpc::RetryInfo::decode(&info.value[..]).ok()?.retry_delay
}

/// What is served at a path of the endpoint of metrics: the status line, and the body.
async fn scrape(server: &TestServer, path: &str) -> (String, String) {
    ask_metrics(server, "GET", path).await
}

/// The same with another method.
async fn ask_metrics(server: &TestServer, method: &str, path: &str) -> (String, String) {
    let address = server.running.metrics_address().unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap().to_owned(), body.to_owned())
}

fn serve_metrics(config: &mut Config) {
    config.metrics_listen = Some(([127, 0, 0, 1], 0).into());
}

/// The sum of the samples of a name, with all labels or with those that it is followed by, in whole numbers. There must be one.
fn sample(metrics: &str, named: &str) -> u64 {
    let of_it = |line: &&str| {
        let rest = line.strip_prefix(named);
        rest.is_some_and(|rest| rest.starts_with([' ', '{']))
    };
    let values: Vec<_> = metrics.lines().filter(of_it).collect();
    assert!(!values.is_empty(), "no sample of {named} in {metrics}");
    let value = |line: &&str| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap() as u64;
    values.iter().map(value).sum()
}

/// What a future comes to, which the test would otherwise wait for without an end.
async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    let Ok(value) = tokio::time::timeout(std::time::Duration::from_mins(1), future).await else {
        panic!("a minute has gone by, and not yet: {what}");
    };
    value
}
