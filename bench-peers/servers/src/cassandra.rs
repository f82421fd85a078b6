//! Cassandra: one node, driven by the driver `scylla` with prepared statements.

use std::fmt::Display;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use scylla::client::PoolSize;
use scylla::client::execution_profile::ExecutionProfile;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::deserialize::row::ColumnIterator;
use scylla::policies::load_balancing::DefaultPolicy;
use scylla::policies::retry::FallthroughRetryPolicy;
use scylla::response::query_result::QueryResult;
use scylla::statement::Consistency;
use scylla::statement::prepared::PreparedStatement;
use tepui_bench::check::{Expected, RowsCheck, ScanCheck};
use tepui_bench::child::{Child, free_ports};
use tepui_bench::counters::Process;
use tepui_bench::network::{self, runtime};
use tepui_bench::workload::Op;
use tepui_bench::{Dataset, Depth, Error, Figure, Found, Progress, Result, Run, Store, Ticket};

use crate::shape::{CONNECTIONS, IN_FLIGHT, THREADS};
use crate::{HEAP, Jvm, START_SECONDS, fill, write};

const TABLE: &str = "ycsb.usertable";
const CONFIG: &str = include_str!("../cassandra/cassandra.yaml");
const JVM_OPTIONS: &str = include_str!("../cassandra/jvm.options");
const LOGBACK: &str = include_str!("../cassandra/logback.xml");
/// What its agent's file is called: it measures objects for the limits of memtables.
const AGENT: &str = "jamm-";
/// A request that takes longer has failed: as long as the server itself gives it.
const REQUEST_MAX: Duration = Duration::from_mins(1);
/// The driver asks for the cluster's members so often by itself; there is one.
const REFRESH: Duration = Duration::from_hours(1);

fn failed(what: &'static str) -> impl Fn(&dyn Display) -> Error {
    move |error| Error::failed(format!("Cassandra, {what}: {error}"))
}

/// Cassandra, with a table for the rows of a data set.
pub struct Cassandra {
    name: String,
    address: SocketAddr,
    columns: Vec<String>,
    process: Process,
}

/// Starts a server over an empty directory and makes the table.
pub fn start(
    jvm: &Jvm,
    dir: &Path,
    dataset: &Dataset,
    progress: &Progress,
) -> Result<(Child, Cassandra)> {
    let [port, storage_port] = free_ports()?;
    let config = fill(
        CONFIG,
        &[
            ("data", &dir.display().to_string()),
            ("port", &port.to_string()),
            ("storage_port", &storage_port.to_string()),
        ],
    );
    let file = |name: &str| dir.join(name);
    write(&file("cassandra.yaml"), &config)?;
    write(&file("logback.xml"), LOGBACK)?;
    write(&file("jvm.options"), &fill(JVM_OPTIONS, &[("heap", HEAP)]))?;
    let property = |name: &str, value: &Path| format!("-D{name}={}", value.display());
    let mut command = Command::new("java");
    command
        .current_dir(dir)
        .arg(format!("@{}", file("jvm.options").display()))
        .arg(format!("-javaagent:{}", jvm.jar(AGENT)?))
        .arg(format!("-Dcassandra.config=file://{}", file("cassandra.yaml").display()))
        .arg(property("logback.configurationFile", &file("logback.xml")))
        .arg(property("cassandra.storagedir", dir))
        .arg(property("java.io.tmpdir", dir))
        .arg("-Dcassandra-foreground=yes")
        .arg("-cp")
        .arg(jvm.classpath())
        .arg("org.apache.cassandra.service.CassandraDaemon");
    let mut child = Child::start("Cassandra", &mut command, &file("server.log"))?;
    child.wait_for_port(port, START_SECONDS, progress)?;
    let server = Cassandra {
        name: format!("Cassandra {}", jvm.version()),
        address: SocketAddr::from(([127, 0, 0, 1], port)),
        columns: (0..dataset.columns).map(column).collect(),
        process: child.process(),
    };
    server.create_table()?;
    Ok((child, server))
}

fn column(column: u32) -> String {
    String::from_utf8_lossy(&Dataset::qualifier(column)).into_owned()
}

/// A session of a thread with its prepared statements.
struct Client {
    session: Session,
    get: PreparedStatement,
    scan: PreparedStatement,
    insert: PreparedStatement,
    /// By column.
    updates: Vec<PreparedStatement>,
}

impl Cassandra {
    async fn session(&self, connections: usize) -> Result<Session> {
        let profile = ExecutionProfile::builder()
            .consistency(Consistency::One)
            .request_timeout(Some(REQUEST_MAX))
            .retry_policy(Arc::new(FallthroughRetryPolicy::new()))
            // There is one node to send to.
            .load_balancing_policy(DefaultPolicy::builder().token_aware(false).build())
            .build();
        SessionBuilder::new()
            .known_node_addr(self.address)
            .default_execution_profile_handle(profile.into_handle())
            .pool_size(PoolSize::PerHost(
                NonZeroUsize::new(connections).unwrap_or(NonZeroUsize::MIN),
            ))
            .disallow_shard_aware_port(true)
            .fetch_schema_metadata(false)
            .cluster_metadata_refresh_interval(REFRESH)
            .build()
            .await
            .map_err(|error| failed("connecting")(&error))
    }

    fn create_table(&self) -> Result<()> {
        let columns: Vec<String> = self.columns.iter().map(|name| format!("{name} blob")).collect();
        let statements = [
            "CREATE KEYSPACE ycsb WITH replication = \
             {'class': 'SimpleStrategy', 'replication_factor': 1}"
                .to_owned(),
            // The values are incompressible.
            format!(
                "CREATE TABLE {TABLE} (key blob PRIMARY KEY, {}) \
                 WITH compression = {{'enabled': 'false'}}",
                columns.join(", ")
            ),
        ];
        runtime()?.block_on(async {
            let session = self.session(1).await?;
            for statement in statements {
                let made = session.query_unpaged(statement, ()).await;
                made.map_err(|error| failed("making the table")(&error))?;
            }
            Ok(())
        })
    }

    async fn connect(&self, connections: usize) -> Result<Client> {
        let session = self.session(connections).await?;
        let prepare = async |text: String| {
            let mut prepared = session
                .prepare(text)
                .await
                .map_err(|error| failed("preparing a statement")(&error))?;
            // The description of the columns is the same in every answer.
            prepared.set_use_cached_result_metadata(true);
            Ok::<_, Error>(prepared)
        };
        let names = self.columns.join(", ");
        let get = prepare(format!("SELECT key, {names} FROM {TABLE} WHERE key = ?")).await?;
        let scan = format!("SELECT key, {names} FROM {TABLE} WHERE token(key) >= token(?) LIMIT ?");
        let scan = prepare(scan).await?;
        let marks = vec!["?"; self.columns.len() + 1].join(", ");
        let insert =
            prepare(format!("INSERT INTO {TABLE} (key, {names}) VALUES ({marks})")).await?;
        let mut updates = Vec::new();
        for name in &self.columns {
            let update = format!("INSERT INTO {TABLE} (key, {name}) VALUES (?, ?)");
            updates.push(prepare(update).await?);
        }
        Ok(Client { session, get, scan, insert, updates })
    }

    /// A session for each thread: they share the connections evenly.
    fn crews(&self, threads: usize) -> Result<Vec<network::Crew<Arc<Client>>>> {
        network::crews(threads, threads, async || {
            Ok(Arc::new(self.connect(CONNECTIONS.div_ceil(threads.max(1))).await?))
        })
    }
}

impl Client {
    async fn get(&self, dataset: &Dataset, row: u64, depth: Depth) -> Result<Found> {
        let result = self.session.execute_unpaged(&self.get, (dataset.key(row),)).await;
        let result = result.map_err(|error| failed("a read")(&error))?;
        let rows = [row];
        let check = RowsCheck::new(dataset, Expected::Rows(&rows), 0..dataset.columns, depth);
        compare(check, result)
    }

    async fn scan(&self, known: &Dataset, row: u64, rows: u32, depth: Depth) -> Result<Found> {
        let values = (known.key(row), i32::try_from(rows).unwrap_or(i32::MAX));
        let result = self.session.execute_unpaged(&self.scan, values).await;
        let result = result.map_err(|error| failed("a scan")(&error))?;
        let expected = Expected::Scan(ScanCheck::new(known, row, false, depth));
        compare(RowsCheck::new(known, expected, 0..known.columns, depth), result)
    }

    async fn put(&self, dataset: &Dataset, row: u64) -> Result<Found> {
        let values = (0..dataset.columns).map(|column| dataset.value(row, column));
        let values: Vec<Vec<u8>> = std::iter::once(dataset.key(row)).chain(values).collect();
        let result = self.session.execute_unpaged(&self.insert, values).await;
        result.map_err(|error| failed("an insert")(&error))?;
        Ok(Found::default())
    }

    async fn update(&self, dataset: &Dataset, row: u64, column: u32) -> Result<Found> {
        let update = self
            .updates
            .get(column as usize)
            .ok_or_else(|| Error::failed(format!("Cassandra has no column {column}")))?;
        let values = (dataset.key(row), dataset.value(row, column));
        let result = self.session.execute_unpaged(update, values).await;
        result.map_err(|error| failed("an update")(&error))?;
        Ok(Found::default())
    }

    async fn carry_out(
        &self,
        dataset: &Dataset,
        known: &Dataset,
        ticket: &Ticket,
    ) -> Result<Found> {
        let depth = ticket.depth;
        match &ticket.op {
            Op::Get { row } | Op::GetFamily { row } | Op::GetRow { row } => {
                self.get(dataset, *row, depth).await
            }
            Op::Scan { row, rows, reverse: false } => self.scan(known, *row, *rows, depth).await,
            Op::Put { row } | Op::Insert { row } => self.put(dataset, *row).await,
            Op::Update { row, column } => self.update(dataset, *row, *column).await,
            Op::ReadUpdate { row, column } => {
                let found = self.get(dataset, *row, depth).await?;
                self.update(dataset, *row, *column).await?;
                Ok(found)
            }
            op => Err(op.unsupported("Cassandra")),
        }
    }
}

/// Compares rows of a key and its columns with what was written.
fn compare(mut check: RowsCheck<'_>, result: QueryResult) -> Result<Found> {
    let failed = failed("an answer");
    let result = result.into_rows_result().map_err(|error| failed(&error))?;
    let names: Vec<Vec<u8>> =
        result.column_specs().iter().skip(1).map(|spec| spec.name().as_bytes().to_vec()).collect();
    for row in result.rows::<ColumnIterator>().map_err(|error| failed(&error))? {
        let mut row = row.map_err(|error| failed(&error))?;
        let mut value = || {
            let column = row.next().transpose().map_err(|error| failed(&error))?;
            Ok::<_, Error>(column.and_then(|column| column.slice).map(|slice| slice.as_slice()))
        };
        check.begin(value()?.ok_or_else(|| Error::mismatch("Cassandra: a row without a key"))?)?;
        for name in &names {
            // A column without a value is one that is not there.
            if let Some(value) = value()? {
                check.qualifier(name)?;
                check.value(value)?;
            }
        }
        check.end()?;
    }
    Ok(check.found())
}

impl Store for Cassandra {
    fn name(&self) -> &str {
        &self.name
    }

    fn load(&self, dataset: &Dataset, progress: &Progress) -> Result<()> {
        let load = async |client: Arc<Client>, rows: Range<u64>| {
            for row in rows {
                client.put(dataset, row).await?;
            }
            Ok(())
        };
        // Rows of a batch would be of many partitions, which its guide advises against.
        network::load(self.crews(THREADS)?, dataset, 1, IN_FLIGHT, progress, load)
    }

    fn settle(&self, progress: &Progress) -> Result<()> {
        network::settle(Some(self.process), progress)
    }

    fn run(&self, run: &Run<'_>) -> Result<()> {
        let (dataset, known) = (run.dataset(), run.dataset().with_inserts());
        let crews = self.crews(run.workload().threads)?;
        network::run(run, crews, async |client: Arc<Client>, ticket: &Ticket| {
            client.carry_out(dataset, &known, ticket).await
        })
    }

    fn figures(&self) -> Vec<Figure> {
        network::process_figures(Some(self.process))
    }
}
