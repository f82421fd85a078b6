//! HBase: a master, a region server and ZooKeeper in one process, driven over its own RPC by a client that does no more
//! than operations need: one region, whose name is asked for once.
//!
//! * [`rpc`]: a connection with many calls under way. * [`messages`], [`cells`]: what goes over it.

mod cells;
mod messages;
mod rpc;

use std::net::SocketAddr;
use std::ops::Range;
use std::path::Path;
use std::process::Command;

use bytes::Bytes;
use tepui_bench::check::{Expected, RowsCheck, ScanCheck};
use tepui_bench::child::{Child, free_ports};
use tepui_bench::counters::Process;
use tepui_bench::network::{self, runtime};
use tepui_bench::workload::Op;
use tepui_bench::{Dataset, Depth, Error, Figure, Found, Progress, Result, Run, Store, Ticket};

use self::cells::Cells;
use self::messages as pb;
use self::rpc::Connection;
use crate::shape::{CONNECTIONS, LOAD_IN_FLIGHT, THREADS};
use crate::{HEAP, Jvm, START_SECONDS, fill, write};

const FAMILY: &[u8] = b"cf";
const TABLE: &str = "usertable";
/// Where the table of tables is: one region, by a name that is always the same.
const META: &[u8] = b"hbase:meta,,1";
const SITE: &str = include_str!("../../hbase/hbase-site.xml");
const LOG: &str = include_str!("../../hbase/log4j.properties");
const JVM_OPTIONS: &str = include_str!("../../hbase/jvm.options");
/// Rows of a request while loading: what its own client's buffer of 2 MB holds, by order of magnitude.
const LOAD_ROWS: u64 = 200;

/// HBase, with a table for the rows of a data set.
pub struct HBase {
    name: String,
    address: SocketAddr,
    region: Bytes,
    process: Process,
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// Starts a server over an empty directory and makes the table.
pub fn start(jvm: &Jvm, dir: &Path, progress: &Progress) -> Result<(Child, HBase)> {
    let [port, master_port, zookeeper_port] = free_ports()?;
    let data = dir.display().to_string();
    let site = fill(
        SITE,
        &[
            ("data", &data),
            ("port", &port.to_string()),
            ("master_port", &master_port.to_string()),
            ("zookeeper_port", &zookeeper_port.to_string()),
        ],
    );
    let (conf, options) = (dir.join("conf"), dir.join("jvm.options"));
    write(&conf.join("hbase-site.xml"), &site)?;
    write(&conf.join("log4j.properties"), LOG)?;
    write(&options, &fill(JVM_OPTIONS, &[("heap", HEAP)]))?;
    let mut command = Command::new("java");
    command
        .current_dir(dir)
        .arg(format!("@{}", options.display()))
        .arg("-cp")
        .arg(format!("{}:{}", conf.display(), jvm.classpath()))
        .args(["org.apache.hadoop.hbase.master.HMaster", "start"]);
    let mut child = Child::start("HBase", &mut command, &dir.join("server.log"))?;
    child.wait_for_port(port, START_SECONDS, progress)?;
    let runtime = runtime()?;
    // The master takes the table once it has come up; then the region server opens its region.
    child.wait_for("looks at its master", START_SECONDS, progress, || {
        Ok(runtime.block_on(create_table(loopback(master_port))).unwrap_or(false).then_some(()))
    })?;
    let region = child.wait_for("looks at its table", START_SECONDS, progress, || {
        Ok(runtime.block_on(region(loopback(port))).unwrap_or(None))
    })?;
    let name = format!("HBase {}", jvm.version());
    let process = child.process();
    Ok((child, HBase { name, address: loopback(port), region, process }))
}

/// Whether the table is made.
async fn create_table(master: SocketAddr) -> Result<bool> {
    let attribute = |name: &str, value: &str| pb::BytesPair {
        first: name.as_bytes().to_vec(),
        second: value.as_bytes().to_vec(),
    };
    let family = pb::FamilySchema {
        name: FAMILY.to_vec(),
        attributes: vec![
            attribute("VERSIONS", "1"),
            // Rows of a block by an index, not from its start on: what its guide advises for point reads.
            attribute("DATA_BLOCK_ENCODING", "ROW_INDEX_V1"),
        ],
    };
    let name = pb::TableName { namespace: b"default".to_vec(), name: TABLE.as_bytes().to_vec() };
    let request = pb::CreateTableRequest {
        table: pb::TableSchema { name: Some(name), families: vec![family] },
    };
    let master = Connection::open(master, "MasterService").await?;
    match master.call::<pb::CreateTableResponse>("CreateTable", &request).await? {
        Ok(_) => Ok(true),
        Err(thrown) => Ok(thrown.contains("TableExistsException")),
    }
}

/// The name of the table's region, once it is open.
async fn region(server: SocketAddr) -> Result<Option<Bytes>> {
    let server = Connection::open(server, "ClientService").await?;
    let scan = pb::Scan { start_row: format!("{TABLE},,").into_bytes(), ..pb::Scan::default() };
    let meta = pb::Region { kind: pb::REGION_NAME, name: Bytes::from_static(META) };
    let request = scan_request(meta, scan, 1);
    let Ok((rows, block)) = server.call::<pb::ScanResponse>("Scan", &request).await? else {
        return Ok(None);
    };
    let mut cells = Cells(&block);
    let mut open = None;
    for _ in 0..rows.cells_of_rows.iter().sum::<u32>() {
        let cell = cells.next()?;
        if (cell.qualifier, cell.value) == (b"state", b"OPEN") {
            open = Some(Bytes::copy_from_slice(cell.row));
        }
    }
    Ok(open.filter(|row| row.starts_with(format!("{TABLE},,").as_bytes())))
}

/// Opens a scanner, reads so many rows and closes it, in one call.
fn scan_request(region: pb::Region, scan: pb::Scan, rows: u32) -> pb::ScanRequest {
    pb::ScanRequest {
        region: Some(region),
        scan: Some(scan),
        rows: Some(rows),
        close: Some(true),
        limit_rows: Some(rows),
    }
}

/// What operations ask for.
struct Asks<'a> {
    region: &'a Bytes,
    dataset: &'a Dataset,
    /// With the rows that a run may insert.
    known: Dataset,
}

fn thrown(what: &str) -> impl Fn(String) -> Error {
    move |thrown| Error::failed(format!("HBase, {what}: {thrown}"))
}

impl Asks<'_> {
    fn region(&self) -> pb::Region {
        pb::Region { kind: pb::REGION_NAME, name: self.region.clone() }
    }

    fn columns() -> Vec<pb::Column> {
        vec![pb::Column { family: FAMILY.to_vec() }]
    }

    fn put(&self, row: u64, columns: Range<u32>) -> pb::Mutation {
        let value = |column| pb::QualifierValue {
            qualifier: Dataset::qualifier(column),
            value: self.dataset.value(row, column),
        };
        pb::Mutation {
            row: self.dataset.key(row),
            kind: Some(pb::PUT),
            columns: vec![pb::ColumnValues {
                family: FAMILY.to_vec(),
                values: columns.map(value).collect(),
            }],
            durability: Some(pb::FSYNC_WAL),
        }
    }

    async fn get(&self, server: &Connection, row: u64, depth: Depth) -> Result<Found> {
        let request = pb::GetRequest {
            region: self.region(),
            get: pb::Get { row: self.dataset.key(row), columns: Self::columns() },
        };
        let answer = server.call::<pb::GetResponse>("Get", &request).await?;
        let (response, block) = answer.map_err(thrown("Get"))?;
        let rows = [row];
        let check =
            RowsCheck::new(self.dataset, Expected::Rows(&rows), 0..self.dataset.columns, depth);
        let cells = response.row.map_or(0, |row| u32::try_from(row.cells).unwrap_or(0));
        compare(check, &[cells], &block)
    }

    async fn scan(
        &self,
        server: &Connection,
        row: u64,
        rows: u32,
        reverse: bool,
        depth: Depth,
    ) -> Result<Found> {
        let scan = pb::Scan {
            columns: Self::columns(),
            start_row: self.dataset.key(row),
            reversed: reverse,
        };
        let request = scan_request(self.region(), scan, rows);
        let answer = server.call::<pb::ScanResponse>("Scan", &request).await?;
        let (response, block) = answer.map_err(thrown("Scan"))?;
        let expected = Expected::Scan(ScanCheck::new(&self.known, row, reverse, depth));
        let check = RowsCheck::new(&self.known, expected, 0..self.dataset.columns, depth);
        compare(check, &response.cells_of_rows, &block)
    }

    async fn mutate(&self, server: &Connection, row: u64, columns: Range<u32>) -> Result<()> {
        let request = pb::MutateRequest { region: self.region(), mutation: self.put(row, columns) };
        let answer = server.call::<pb::MutateResponse>("Mutate", &request).await?;
        answer.map_err(thrown("Mutate")).map(drop)
    }

    async fn load(&self, server: &Connection, rows: Range<u64>) -> Result<()> {
        let action = |(index, row)| pb::Action {
            index: Some(index),
            mutation: Some(self.put(row, 0..self.dataset.columns)),
        };
        let actions = (0..).zip(rows).map(action).collect();
        let request =
            pb::MultiRequest { regions: vec![pb::RegionAction { region: self.region(), actions }] };
        let answer = server.call::<pb::MultiResponse>("Multi", &request).await?;
        let (response, _) = answer.map_err(thrown("Multi"))?;
        for region in response.regions {
            let of_actions = region.actions.into_iter().find_map(|action| action.exception);
            if let Some(exception) = region.exception.or(of_actions) {
                return Err(thrown("Multi")(exception.name));
            }
        }
        Ok(())
    }

    async fn carry_out(&self, server: &Connection, ticket: &Ticket) -> Result<Found> {
        let all = 0..self.dataset.columns;
        match &ticket.op {
            Op::Get { row } | Op::GetFamily { row } | Op::GetRow { row } => {
                self.get(server, *row, ticket.depth).await
            }
            Op::Scan { row, rows, reverse } => {
                self.scan(server, *row, *rows, *reverse, ticket.depth).await
            }
            Op::Put { row } | Op::Insert { row } => {
                self.mutate(server, *row, all).await.map(|()| Found::default())
            }
            Op::Update { row, column } => {
                self.mutate(server, *row, *column..column + 1).await.map(|()| Found::default())
            }
            Op::ReadUpdate { row, column } => {
                let found = self.get(server, *row, ticket.depth).await?;
                self.mutate(server, *row, *column..column + 1).await.map(|()| found)
            }
            op => Err(op.unsupported("HBase")),
        }
    }
}

/// Compares rows that came as cells with what was written.
fn compare(mut check: RowsCheck<'_>, cells_of_rows: &[u32], block: &[u8]) -> Result<Found> {
    let mut cells = Cells(block);
    for count in cells_of_rows.iter().filter(|count| **count > 0) {
        for at in 0..*count {
            let cell = cells.next()?;
            if at == 0 {
                check.begin(cell.row)?;
            } else if !check.is_at(cell.row) {
                return Err(Error::mismatch("HBase mixes the cells of two rows"));
            }
            check.qualifier(cell.qualifier)?;
            check.value(cell.value)?;
        }
        check.end()?;
    }
    Ok(check.found())
}

impl HBase {
    fn asks<'a>(&'a self, dataset: &'a Dataset) -> Asks<'a> {
        Asks { region: &self.region, dataset, known: dataset.with_inserts() }
    }

    fn crews(&self, threads: usize) -> Result<Vec<network::Crew<Connection>>> {
        network::crews(threads, CONNECTIONS, async || {
            Connection::open(self.address, "ClientService").await
        })
    }
}

impl Store for HBase {
    fn name(&self) -> &str {
        &self.name
    }

    fn load(&self, dataset: &Dataset, progress: &Progress) -> Result<()> {
        let asks = self.asks(dataset);
        let load = async |server: Connection, rows: Range<u64>| asks.load(&server, rows).await;
        network::load(self.crews(THREADS)?, dataset, LOAD_ROWS, LOAD_IN_FLIGHT, progress, load)
    }

    fn settle(&self, progress: &Progress) -> Result<()> {
        network::settle(Some(self.process), progress)
    }

    fn run(&self, run: &Run<'_>) -> Result<()> {
        let asks = self.asks(run.dataset());
        let crews = self.crews(run.workload().threads)?;
        network::run(run, crews, async |server: Connection, ticket: &Ticket| {
            asks.carry_out(&server, ticket).await
        })
    }

    fn figures(&self) -> Vec<Figure> {
        network::process_figures(Some(self.process))
    }
}
