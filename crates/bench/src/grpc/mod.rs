//! A server of the Bigtable API as a store, whoever's server it is.
//!
//! * [`connection`]: HTTP/2 without what a client library adds to it.
//! * [`ask`], [`rows`]: what is asked, and whether the answer is what was written.
//! * [`client`], [`retry`]: requests, and servers that refuse them for a while.
//! * [`worker`]: what an operation asks for; [`crate::network`] has many of them under way.

pub mod ask;
pub mod chunks;
pub mod client;
pub mod connection;
pub mod retry;
pub mod rows;
pub mod worker;

use std::ops::Range;
use std::pin::pin;

use futures::FutureExt as _;
use futures::future::select;

use self::ask::{Asks, Table};
use self::client::{Client, Failure};
use self::connection::Endpoint;
use self::retry::{Patience, Refusals, WhenRefused};
use self::rows::ChunkCheck;
use self::worker::Worker;
use crate::check::{Expected, RowsCheck};
use crate::child::LOOK;
use crate::counters::Process;
use crate::dataset::{Dataset, Depth};
use crate::error::{Error, Result};
use crate::network::{self, Crew, runtime};
use crate::progress::Progress;
use crate::run::{Run, Ticket};
use crate::store::{Figure, Store};

/// The instance of the benchmarks' tables, where no other one is named.
pub const INSTANCE: &str = "projects/bench/instances/bench";
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
    pub table: Table,
    /// Connections of a run, over all threads.
    pub connections: usize,
    /// Threads that load.
    pub load_threads: usize,
    /// Rows of a request while loading.
    pub load_batch_rows: u64,
    /// Requests under way while loading.
    pub load_in_flight: usize,
    /// What becomes of operations of a run that the server refuses. Those of a load are always made again.
    pub when_refused: WhenRefused,
    /// The server's process, where it runs on this machine.
    pub process: Option<Process>,
}

/// A server.
#[derive(Debug)]
pub struct Grpc {
    options: GrpcOptions,
    refusals: Refusals,
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

    async fn connect(&self) -> Result<Client> {
        Ok(Client::new(self.options.endpoint.connect().await?))
    }

    fn crews(&self, threads: usize) -> Result<Vec<Crew<Client>>> {
        network::crews(threads, self.options.connections, async || self.connect().await)
    }

    /// Makes sure that the table is there; whether it was made. `Interrupted`, here and below, soon after the wish to stop,
    /// also where the server does not answer.
    pub fn ensure_table(&self, progress: &Progress) -> Result<bool> {
        let table = &self.options.table;
        unless_stopped(progress, async { self.connect().await?.ensure_table(table).await })
    }

    /// Whether the table holds the data set, as far as a look at three of its rows shows. `Mismatch` where
    /// it holds something else under their keys.
    pub fn holds(&self, dataset: &Dataset, progress: &Progress) -> Result<bool> {
        let mut rows = vec![0, dataset.rows / 2, dataset.rows - 1];
        rows.dedup();
        let expected = Expected::Rows(&rows);
        let check = RowsCheck::new(dataset, expected, 0..dataset.columns, Depth::Full);
        let check = ChunkCheck::new(check);
        let asks = Asks::new(&self.options.table, dataset);
        let found = unless_stopped(progress, async {
            self.connect().await?.has(&asks, check, &rows).await
        });
        found.map_err(|e| self.of_table(e))
    }

    /// `Occupied` where the table's first row is none of the data set, nor one that runs may have inserted: families and
    /// rows would come among those of others.
    pub fn check_first_row(&self, dataset: &Dataset, progress: &Progress) -> Result<()> {
        let request = Asks::new(&self.options.table, dataset).first_key();
        let first =
            unless_stopped(progress, async { self.connect().await?.first_key(request).await });
        match first.map_err(|e| self.of_table(e))? {
            Some(key) if dataset.with_inserts().row_of(&key).is_none() => {
                let key = key.escape_ascii();
                Err(self.of_table(Error::occupied(format!("holds other rows: its first is {key}"))))
            }
            _ => Ok(()),
        }
    }

    fn of_table(&self, error: Error) -> Error {
        error.context(format_args!("table {}", self.options.table.id))
    }

    /// Reads the whole table in one scan and compares every byte; the rows.
    pub fn scan_everything(&self, dataset: &Dataset, progress: &Progress) -> Result<u64> {
        let check = RowsCheck::new(dataset, Expected::All, 0..dataset.columns, Depth::Full);
        let check = ChunkCheck::new(check);
        let asks = Asks::new(&self.options.table, dataset);
        let scan = async {
            let mut client = self.connect().await?;
            let scanned = client.read(asks.everything(), check, &self.refusals).await;
            Ok(scanned.map_err(Failure::into_error)?.rows)
        };
        unless_stopped(progress, scan)
    }
}

/// Carries out a task that a server may keep waiting; `Interrupted` soon after the wish to stop.
fn unless_stopped<T>(progress: &Progress, task: impl Future<Output = Result<T>>) -> Result<T> {
    runtime()?.block_on(or_stopped(progress, task))
}

async fn or_stopped<T>(progress: &Progress, task: impl Future<Output = Result<T>>) -> Result<T> {
    let stopped = async {
        while !progress.stopped() {
            tokio::time::sleep(LOOK).await;
        }
        Err(Error::interrupted())
    };
    let (task, stopped) = (pin!(task), pin!(stopped));
    select(stopped, task).await.factor_first().0
}

impl Store for Grpc {
    fn name(&self) -> &str {
        &self.options.name
    }

    fn load(&self, dataset: &Dataset, progress: &Progress) -> Result<()> {
        self.ensure_table(progress)?;
        let asks = Asks::new(&self.options.table, dataset);
        let rows_by_bytes = (LOAD_REQUEST_BYTES / dataset.row_bytes().max(1)).max(1);
        let batch = self.options.load_batch_rows.min(rows_by_bytes);
        let crews = self.crews(self.options.load_threads)?;
        let in_flight = self.options.load_in_flight;
        let patience = Patience::of_load();
        let one = async |mut client: Client, rows: Range<u64>| {
            let mut left: Vec<u64> = rows.collect();
            loop {
                let due = left.len();
                let request = client.load(&asks, &mut left, &self.refusals);
                let loaded = or_stopped(progress, async { Ok(request.await) }).await?;
                if loaded.is_ok() || left.len() < due {
                    patience.served();
                }
                match loaded {
                    Ok(()) => return Ok(()),
                    Err(Failure::Failed(error)) => return Err(error),
                    Err(Failure::Refused(refusal)) => {
                        let wait = tokio::time::sleep(patience.refused(&refusal)?);
                        or_stopped(progress, wait.map(Ok)).await?;
                    }
                }
                progress.check()?;
            }
        };
        network::load(crews, dataset, batch, in_flight, progress, one)
    }

    fn settle(&self, progress: &Progress) -> Result<()> {
        network::settle(self.options.process, progress)
    }

    fn run(&self, run: &Run<'_>) -> Result<()> {
        let asks = Asks::new(&self.options.table, run.dataset());
        let worker = Worker {
            asks: &asks,
            dataset: run.dataset(),
            known: run.dataset().with_inserts(),
            refusals: &self.refusals,
            when_refused: self.options.when_refused,
            patience: Patience::of_run(run.workload().limit),
        };
        let crews = self.crews(run.workload().threads)?;
        network::run(run, crews, async |client, ticket: &Ticket| {
            worker.carry_out(client, ticket).await
        })
    }

    fn figures(&self) -> Vec<Figure> {
        let mut figures = network::process_figures(self.options.process);
        figures.extend([
            Figure::counter("refused", self.refusals.all()),
            Figure::counter("refused_without_retry_info", self.refusals.without_retry_info()),
            Figure::counter("refused_wait_micros", self.refusals.waited_micros()),
        ]);
        figures
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::error::ErrorKind;

    /// What becomes of a task at a server that accepts a connection and does not answer, when it is asked to end.
    fn stopped_at_a_silent_server<T: Send>(
        task: impl FnOnce(&Grpc, &Dataset, &Progress) -> Result<T> + Send,
    ) -> ErrorKind {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = silent.local_addr().unwrap().to_string();
        let grpc = Grpc::new(GrpcOptions {
            name: "silent".to_owned(),
            endpoint: Endpoint::parse(&endpoint).unwrap(),
            table: Table::new("t"),
            connections: 1,
            load_threads: 1,
            load_batch_rows: 1,
            load_in_flight: 1,
            when_refused: WhenRefused::Again,
            process: None,
        });
        let dataset = Dataset { rows: 1, key_bytes: 20, columns: 1, value_bytes: 1, seed: 0 };
        let progress = Progress::hidden();
        std::thread::scope(|scope| {
            let task = scope.spawn(|| task(&grpc.unwrap(), &dataset, &progress).map(drop));
            // It has begun: there is a connection.
            let _connection = silent.accept().unwrap();
            progress.stop();
            task.join().unwrap().unwrap_err().kind()
        })
    }

    #[test]
    fn what_waits_for_a_server_that_does_not_answer_ends_when_it_is_asked_to() {
        let ends = [
            stopped_at_a_silent_server(|grpc, _, progress| grpc.ensure_table(progress)),
            stopped_at_a_silent_server(Grpc::holds),
            stopped_at_a_silent_server(Grpc::check_first_row),
            stopped_at_a_silent_server(Grpc::scan_everything),
            stopped_at_a_silent_server(Grpc::load),
        ];
        assert!(ends.iter().all(|end| *end == ErrorKind::Interrupted), "{ends:?}");
    }
}
