//! What the groups of bars share: sizes, rounds in turns, and the lines that they say.

use std::path::PathBuf;

use tepui_bench::bars::Line;
use tepui_bench::counters::Process;
use tepui_bench::grpc::ask::Table;
use tepui_bench::grpc::connection::Endpoint;
use tepui_bench::grpc::retry::WhenRefused;
use tepui_bench::grpc::{Grpc, GrpcOptions};
use tepui_bench::quiet::quietest;
use tepui_bench::report::{self, RunReport};
use tepui_bench::{Dataset, Inserted, Limit, Progress, Result, Workload, contest, output};

use crate::threads::Used;

/// Operations under way at once, as the bars say.
pub const IN_FLIGHT: usize = 64;
/// Threads of the clients: one for each core here.
pub const THREADS: usize = 2;
/// Connections: two for each core. A client keeps few; requests that share one share its system calls too.
pub const CONNECTIONS: usize = 4;
/// A warm-up takes this part of a measured run.
const WARM_UP_PART: f64 = 0.5;
/// What a cache of everything holds beyond the rows: index, filters, and blocks that are about to go.
const CACHE_ALL_FACTOR: u64 = 3;
const CACHE_ALL_BYTES_MIN: u64 = 256 << 20;

/// How large everything is.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Rows of the cached tables.
    pub rows: u64,
    /// Rows of the table that does not fit the cache.
    pub rows_large: u64,
    /// Rounds of a contest.
    pub rounds: usize,
    /// Seconds of a run.
    pub seconds: f64,
    /// Seconds of an overload.
    pub overload_seconds: f64,
}

/// What a group is given, and where it says its lines.
pub struct Bench {
    /// Where all data is.
    pub dir: PathBuf,
    /// How large everything is.
    pub sizes: Sizes,
    /// The binary of `tepui serve`, for servers in a process of their own.
    pub tepui: PathBuf,
    /// This program, which serves over a slow disk as a process of its own.
    pub own: PathBuf,
    /// Google's emulator, where it is to take part.
    pub emulator: Option<PathBuf>,
    /// For a person to see and to stop.
    pub progress: Progress,
    /// What was said.
    pub lines: Vec<Line>,
    /// Every run.
    pub runs: Vec<RunReport>,
}

/// One run of a server in this process.
#[derive(Debug, Clone)]
pub struct Sample {
    /// Its figures.
    pub run: RunReport,
    /// What the server's threads used for it.
    pub used: Used,
    /// What was inserted until its end, by earlier runs too.
    pub inserted_after: Inserted,
}

impl Sample {
    /// Operations a second.
    pub fn rate(&self) -> f64 {
        self.run.ops_per_second
    }

    /// The server's processor time of an operation, in microseconds.
    pub fn cpu_micros(&self) -> f64 {
        ratio(self.used.cpu_nanos, self.run.ops) / 1e3
    }

    /// The server's allocations of an operation.
    pub fn allocations(&self) -> f64 {
        ratio(self.used.allocations, self.run.ops)
    }

    /// Operations for each sync of the server's files.
    pub fn per_sync(&self) -> f64 {
        ratio(self.run.ops, self.used.syncs)
    }

    /// Syncs a second.
    pub fn sync_rate(&self) -> f64 {
        self.used.syncs as f64 / self.run.seconds
    }
}

/// How many of one kind there are for each of another. Not a number where one of the two is 0: a server that works uses all
/// that is counted here, so it was not counted.
fn ratio(of: u64, to: u64) -> f64 {
    if of == 0 || to == 0 { f64::NAN } else { of as f64 / to as f64 }
}

impl Bench {
    /// YCSB's rows: ten columns of 100 bytes.
    pub fn rows_of_ten(&self, rows: u64) -> Dataset {
        contest::rows_of_ten(rows)
    }

    /// Rows of one column of 1 KB.
    pub fn rows_of_one(&self, rows: u64) -> Dataset {
        Dataset { columns: 1, value_bytes: 1024, ..self.rows_of_ten(rows) }
    }

    /// A cache that holds a data set.
    pub fn cache_for(&self, dataset: &Dataset) -> u64 {
        (dataset.bytes() * CACHE_ALL_FACTOR).max(CACHE_ALL_BYTES_MIN)
    }

    /// A workload in the shape of the bars.
    pub fn workload(&self, like: Workload) -> Workload {
        Workload {
            threads: THREADS,
            in_flight: IN_FLIGHT,
            limit: Limit::Seconds(self.sizes.seconds),
            ..like
        }
    }

    /// Clients of a server.
    pub fn clients(&self, name: &str, endpoint: Endpoint, table: &str) -> Result<Grpc> {
        self.clients_of(name, endpoint, table, None)
    }

    /// Clients of a server in a process of its own, whose figures are those of its process.
    pub fn clients_of(
        &self,
        name: &str,
        endpoint: Endpoint,
        table: &str,
        process: Option<Process>,
    ) -> Result<Grpc> {
        Grpc::new(Self::options(name, endpoint, table, process))
    }

    /// How such clients speak to it.
    pub fn options(
        name: &str,
        endpoint: Endpoint,
        table: &str,
        process: Option<Process>,
    ) -> GrpcOptions {
        GrpcOptions {
            name: name.to_owned(),
            endpoint,
            table: Table::new(table),
            connections: CONNECTIONS,
            load_threads: THREADS,
            load_batch_rows: 200,
            load_in_flight: 16,
            when_refused: WhenRefused::Again,
            process,
        }
    }

    /// Warms up and measures, again where the host took much of it; `used` tells what the server has used so far.
    pub fn sample(
        &mut self,
        clients: &Grpc,
        used: &dyn Fn() -> Used,
        dataset: &Dataset,
        workload: &Workload,
    ) -> Result<Sample> {
        let mut inserted_after = workload.inserted;
        let quietest = quietest(
            &self.progress,
            |(run, _): &(RunReport, Used)| run.stolen_share,
            |again| {
                self.progress.check()?;
                let seed = workload.seed.wrapping_add(again);
                let mut workload = Workload { seed, inserted: inserted_after, ..workload.clone() };
                if let Limit::Seconds(seconds) = workload.limit {
                    let limit = Limit::Seconds(seconds * WARM_UP_PART);
                    let warm = Workload { limit, ..workload.clone() };
                    workload.inserted =
                        report::warm_up(clients, dataset, &warm, &self.progress)?.inserted;
                }
                let before = used();
                let run = report::measure(clients, dataset, &workload, None, &self.progress)?;
                let used = used() - before;
                self.progress.check()?;
                inserted_after = run.inserted;
                Ok((run, used))
            },
        );
        let (run, used) = quietest?;
        self.runs.push(run.clone());
        Ok(Sample { run, used, inserted_after })
    }

    /// Says a line.
    pub fn say(&mut self, line: Line) {
        output::say(&line.text());
        self.lines.push(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_counted_is_no_figure() {
        assert!((ratio(6, 4) - 1.5).abs() < 1e-9);
        for (of, to) in [(0, 4), (6, 0), (0, 0)] {
            assert!(ratio(of, to).is_nan(), "{of} {to}");
        }
    }
}
