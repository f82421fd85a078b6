//! A server of the Bigtable API as a store, whoever's server it is.
//!
//! * [`connection`]: HTTP/2 without what a client library adds to it.
//! * [`ask`], [`rows`]: what is asked, and whether the answer is what was written.
//! * [`client`], [`retry`]: requests, and servers that refuse them for a while.
//! * [`drive`], [`pacer`]: operations under way, in closed and open loops.

pub mod ask;
pub mod client;
pub mod connection;
pub mod drive;
pub mod pacer;
pub mod retry;
pub mod rows;

use std::sync::atomic::{AtomicU64, Ordering};

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::runtime::Runtime;

use self::ask::Asks;
use self::client::{Client, Failure};
use self::connection::Endpoint;
use self::drive::Worker;
use self::retry::Refusals;
use self::rows::{Expected, RowsCheck};
use crate::clock::pause;
use crate::counters::Process;
use crate::dataset::{Dataset, Depth};
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::run::Run;
use crate::store::{Figure, Store};

/// The instance of the benchmarks' tables.
pub const INSTANCE: &str = "projects/bench/instances/bench";
/// How long a server must have written nothing to count as settled, and how often that is looked at.
pub const QUIET_SECONDS: u32 = 3;
const QUIET_POLL: std::time::Duration = std::time::Duration::from_secs(1);
/// Connections at most: a port has no more of them.
pub const CONNECTIONS_MAX: usize = 10_000;
/// Bytes of one load request, roughly, where rows are large: Bigtable's limit is 256 MiB.
const LOAD_REQUEST_BYTES: u64 = 4 << 20;

/// How a server is spoken to.
#[derive(Debug, Clone)]
pub struct GrpcOptions {
    /// Its name in reports.
    pub name: String,
    /// Where it is.
    pub endpoint: Endpoint,
    /// The table.
    pub table: String,
    /// Connections of a run, over all threads.
    pub connections: usize,
    /// Threads that load.
    pub load_threads: usize,
    /// Rows of a request while loading.
    pub load_batch_rows: u64,
    /// Requests under way while loading.
    pub load_in_flight: usize,
    /// The server's process, where it runs on this machine.
    pub process: Option<Process>,
}

/// A server.
#[derive(Debug)]
pub struct Grpc {
    options: GrpcOptions,
    refusals: Refusals,
}

fn runtime() -> Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::failed(format!("runtime: {error}")))
}

/// Part `index` of `whole` things that `parts` share; what does not divide goes to the first.
fn share(whole: usize, parts: usize, index: usize) -> usize {
    whole / parts.max(1) + usize::from(index < whole % parts.max(1))
}

impl Grpc {
    /// A server that is not connected to yet.
    pub fn new(options: GrpcOptions) -> Result<Self> {
        let sound = [
            ("connections", options.connections as u64, CONNECTIONS_MAX as u64),
            ("rows of a request", options.load_batch_rows, 100_000),
            ("requests in flight while loading", options.load_in_flight as u64, 10_000),
        ];
        for (what, value, most) in sound {
            if !(1..=most).contains(&value) {
                return Err(Error::failed(format!("{value} {what}: from 1 to {most}")));
            }
        }
        Ok(Self { options, refusals: Refusals::default() })
    }

    fn table_name(&self) -> String {
        format!("{INSTANCE}/tables/{}", self.options.table)
    }

    async fn connect(&self) -> Result<Client> {
        let endpoint = &self.options.endpoint;
        Ok(Client::new(endpoint.connect().await?, endpoint.origin()))
    }

    /// Makes sure that the table is there.
    pub fn ensure_table(&self) -> Result<bool> {
        runtime()?.block_on(async {
            self.connect().await?.ensure_table(INSTANCE, &self.options.table).await
        })
    }

    /// Whether the table holds the data set, as far as a look at three of its rows shows. `Mismatch` where
    /// it holds something else under their keys.
    pub fn holds(&self, dataset: &Dataset) -> Result<bool> {
        let mut rows = vec![0, dataset.rows / 2, dataset.rows - 1];
        rows.dedup();
        let expected = Expected::Rows(&rows);
        let check = RowsCheck::new(dataset, expected, 0..dataset.columns, Depth::Full);
        let asks = Asks::new(&self.table_name(), dataset);
        let found =
            runtime()?.block_on(async { self.connect().await?.has(&asks, check, &rows).await });
        found.map_err(|e| e.context(format_args!("table {}", self.options.table)))
    }

    /// Reads the whole table in one scan and compares every byte; the rows.
    pub fn scan_everything(&self, dataset: &Dataset) -> Result<u64> {
        let check = RowsCheck::new(dataset, Expected::All, 0..dataset.columns, Depth::Full);
        let asks = Asks::new(&self.table_name(), dataset);
        let scanned = runtime()?.block_on(async {
            let mut client = self.connect().await.map_err(Failure::Failed)?;
            client.read(asks.everything(), check, &self.refusals).await
        });
        match scanned {
            Ok(found) => Ok(found.rows),
            Err(Failure::Failed(error)) => Err(error),
            Err(Failure::Refused(_)) => Err(Error::failed("the server refuses to be scanned")),
        }
    }

    /// A runtime and connections for each of so many threads.
    fn crews(&self, threads: usize) -> Result<Vec<(Runtime, Vec<Client>)>> {
        let connections = self.options.connections.max(threads);
        (0..threads)
            .map(|index| {
                let runtime = runtime()?;
                let clients = runtime.block_on(async {
                    let mut clients = Vec::new();
                    for _ in 0..share(connections, threads, index) {
                        clients.push(self.connect().await?);
                    }
                    Ok::<_, Error>(clients)
                })?;
                Ok((runtime, clients))
            })
            .collect()
    }

    /// Runs `work` on a thread of its own for each crew; the first error wins.
    fn on_threads<F>(crews: Vec<(Runtime, Vec<Client>)>, work: F) -> Result<()>
    where
        F: Fn(usize, Runtime, Vec<Client>) -> Result<()> + Sync,
    {
        let work = &work;
        std::thread::scope(|scope| {
            let threads: Vec<_> = crews
                .into_iter()
                .enumerate()
                .map(|(index, (runtime, clients))| {
                    scope.spawn(move || work(index, runtime, clients))
                })
                .collect();
            // All of them are waited for, whatever the first one says.
            let ended: Vec<Result<()>> = threads
                .into_iter()
                .map(|thread| {
                    thread.join().unwrap_or_else(|_| Err(Error::failed("a thread panicked")))
                })
                .collect();
            ended.into_iter().collect()
        })
    }
}

impl Store for Grpc {
    fn name(&self) -> &str {
        &self.options.name
    }

    fn load(&self, dataset: &Dataset, progress: &Progress) -> Result<()> {
        self.ensure_table()?;
        let asks = Asks::new(&self.table_name(), dataset);
        let rows_by_bytes = (LOAD_REQUEST_BYTES / dataset.row_bytes().max(1)).max(1);
        let batch = self.options.load_batch_rows.min(rows_by_bytes);
        let threads = self.options.load_threads.max(1);
        let bar = progress.bar("load", "rows", Some(dataset.rows));
        let next = AtomicU64::new(0);
        let work = |index, runtime: Runtime, clients: Vec<Client>| {
            let in_flight = share(self.options.load_in_flight.max(threads), threads, index);
            let one = |mut client: Client, from: u64| {
                let (asks, refusals) = (&asks, &self.refusals);
                async move {
                    let rows = from..from.saturating_add(batch).min(dataset.rows);
                    loop {
                        progress.check()?;
                        match client.load(asks.load(rows.clone()), refusals).await {
                            Ok(()) => return Ok(rows.end - rows.start),
                            Err(Failure::Failed(error)) => return Err(error),
                            Err(Failure::Refused(delay)) => tokio::time::sleep(delay).await,
                        }
                    }
                }
            };
            runtime.block_on(async {
                let mut clients = clients.iter().cycle();
                let mut working = FuturesUnordered::new();
                loop {
                    while working.len() < in_flight {
                        let from = next.fetch_add(batch, Ordering::Relaxed);
                        let Some(client) = clients.next().filter(|_| from < dataset.rows) else {
                            break;
                        };
                        working.push(one(client.clone(), from));
                    }
                    match working.next().await {
                        Some(Ok(rows)) => bar.add(rows),
                        Some(Err(error)) => {
                            // The other threads find nothing more to do.
                            next.store(dataset.rows, Ordering::Relaxed);
                            return Err(error);
                        }
                        None => return Ok(()),
                    }
                }
            })
        };
        Self::on_threads(self.crews(threads)?, work)
    }

    /// Waits until the server's process writes nothing more. A server of which nothing is known counts as
    /// settled.
    fn settle(&self, progress: &Progress) -> Result<()> {
        let Some(process) = self.options.process else { return Ok(()) };
        let bar = progress.bar("settle", "seconds", None);
        let mut last = process.figures().write_bytes;
        let mut quiet = 0;
        while quiet < QUIET_SECONDS {
            progress.check()?;
            pause(QUIET_POLL);
            bar.add(1);
            let now = process.figures().write_bytes;
            quiet = if now == last { quiet + 1 } else { 0 };
            last = now;
        }
        Ok(())
    }

    fn run(&self, run: &Run<'_>) -> Result<()> {
        let workload = run.workload();
        let asks = Asks::new(&self.table_name(), run.dataset());
        let work = |index, runtime: Runtime, clients: Vec<Client>| {
            let worker =
                Worker { clients, asks: &asks, dataset: run.dataset(), refusals: &self.refusals };
            let in_flight = share(workload.in_flight, workload.threads, index);
            let lane = run.lane(index, workload.threads);
            let result = runtime.block_on(worker.work(lane, in_flight));
            if result.is_err() {
                run.abort();
            }
            result
        };
        Self::on_threads(self.crews(workload.threads)?, work)
    }

    fn figures(&self) -> Vec<Figure> {
        let mut figures = vec![
            Figure::counter("refused", self.refusals.all()),
            Figure::counter("refused_without_retry_info", self.refusals.without_retry_info()),
            Figure::counter("refused_wait_micros", self.refusals.waited_micros()),
        ];
        if let Some(process) = self.options.process {
            let now = process.figures();
            figures.extend([
                Figure::counter("server_cpu_micros", (now.cpu_seconds * 1e6) as u64),
                Figure::counter("server_write_bytes", now.write_bytes),
                Figure::counter("server_read_bytes", now.read_bytes),
                Figure::gauge("server_rss_bytes", now.rss_bytes as f64),
                Figure::gauge("server_rss_peak_bytes", now.rss_peak_bytes as f64),
            ]);
        }
        figures
    }
}
