//! A server as a store, whatever it speaks: threads with a runtime and connections each, and operations under way on
//! them. A protocol adds how to connect and how to carry out one operation; so servers that speak different
//! ones are driven by the same loops, and measured by the same clocks.
//!
//! ```text
//! crew = a thread's runtime with its connections
//! load: crews take batches of rows, so many under way at once
//! run:  each crew has a lane of the run (see drive)
//! ```

pub mod drive;
pub mod pacer;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::runtime::Runtime;

use crate::clock::pause;
use crate::counters::Process;
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::run::{Found, Run, Ticket};
use crate::store::Figure;

/// How long a server must have written nothing to count as settled, and how often that is looked at.
pub const QUIET_SECONDS: u32 = 3;
const QUIET_POLL: Duration = Duration::from_secs(1);

/// A thread's runtime with its connections.
#[derive(Debug)]
pub struct Crew<C> {
    // Dropped before the runtime that they belong to.
    clients: Vec<C>,
    runtime: Runtime,
}

/// A runtime of one thread.
pub fn runtime() -> Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::failed(format!("runtime: {error}")))
}

/// Part `index` of `whole` things that `parts` share; what does not divide goes to the first.
fn share(whole: usize, parts: usize, index: usize) -> usize {
    whole / parts.max(1) + usize::from(index < whole % parts.max(1))
}

/// Crews for so many threads, which share so many connections; each has one at least.
pub fn crews<C>(
    threads: usize,
    connections: usize,
    connect: impl AsyncFn() -> Result<C>,
) -> Result<Vec<Crew<C>>> {
    let threads = threads.max(1);
    let connections = connections.max(threads);
    (0..threads)
        .map(|index| {
            let runtime = runtime()?;
            let clients = runtime.block_on(async {
                let mut clients = Vec::new();
                for _ in 0..share(connections, threads, index) {
                    clients.push(connect().await?);
                }
                Ok::<_, Error>(clients)
            })?;
            Ok(Crew { clients, runtime })
        })
        .collect()
}

/// Runs `work` on a thread of its own for each crew; the first error wins.
fn on_threads<C: Send>(
    crews: Vec<Crew<C>>,
    work: impl Fn(usize, &Crew<C>) -> Result<()> + Sync,
) -> Result<()> {
    let work = &work;
    std::thread::scope(|scope| {
        let threads: Vec<_> = crews
            .into_iter()
            .enumerate()
            .map(|(index, crew)| scope.spawn(move || work(index, &crew)))
            .collect();
        // All of them are waited for, whatever the first one says.
        let ended: Vec<Result<()>> = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(Error::failed("a thread panicked"))))
            .collect();
        ended.into_iter().collect()
    })
}

/// Loads a data set: so many rows in a request, so many requests under way over all crews.
pub fn load<C: Clone + Send>(
    crews: Vec<Crew<C>>,
    dataset: &Dataset,
    batch_rows: u64,
    in_flight: usize,
    progress: &Progress,
    load: impl AsyncFn(C, Range<u64>) -> Result<()> + Sync,
) -> Result<()> {
    let bar = progress.bar("load", "rows", Some(dataset.rows));
    let threads = crews.len();
    let next = AtomicU64::new(0);
    let work = |index, crew: &Crew<C>| {
        let in_flight = share(in_flight.max(threads), threads, index);
        let one = async |client: C, rows: Range<u64>| {
            progress.check()?;
            let count = rows.end - rows.start;
            load(client, rows).await.map(|()| count)
        };
        crew.runtime.block_on(async {
            let mut clients = crew.clients.iter().cycle();
            let mut working = FuturesUnordered::new();
            loop {
                while working.len() < in_flight {
                    let from = next.fetch_add(batch_rows, Ordering::Relaxed);
                    let Some(client) = clients.next().filter(|_| from < dataset.rows) else {
                        break;
                    };
                    let to = from.saturating_add(batch_rows).min(dataset.rows);
                    working.push(one(client.clone(), from..to));
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
    on_threads(crews, work)
}

/// Carries out the operations of a run, a lane for each crew.
pub fn run<C: Clone + Send>(
    run: &Run<'_>,
    crews: Vec<Crew<C>>,
    carry_out: impl AsyncFn(C, &Ticket) -> Result<Found> + Sync,
) -> Result<()> {
    let threads = crews.len();
    on_threads(crews, |index, crew| {
        let in_flight = share(run.workload().in_flight, threads, index);
        let lane = run.lane(index, threads);
        let driven = drive::drive(lane, in_flight, &crew.clients, &carry_out);
        let result = crew.runtime.block_on(driven);
        if result.is_err() {
            run.abort();
        }
        result
    })
}

/// Waits until the server's process writes nothing more. A server of which nothing is known counts as settled.
pub fn settle(process: Option<Process>, progress: &Progress) -> Result<()> {
    let Some(process) = process else { return Ok(()) };
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

/// What the kernel says of the server's process, as far as it is known.
pub fn process_figures(process: Option<Process>) -> Vec<Figure> {
    let Some(process) = process else { return Vec::new() };
    let now = process.figures();
    vec![
        Figure::counter(SERVER_CPU_MICROS, (now.cpu_seconds * 1e6) as u64),
        Figure::counter("server_write_bytes", now.write_bytes),
        Figure::counter("server_read_bytes", now.read_bytes),
        Figure::gauge("server_rss_bytes", now.rss_bytes as f64),
        Figure::gauge("server_rss_peak_bytes", now.rss_peak_bytes as f64),
    ]
}

/// The figure of the server's processor time, in microseconds.
pub const SERVER_CPU_MICROS: &str = "server_cpu_micros";

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Mutex;

    use super::*;
    use crate::error::ErrorKind;
    use crate::workload::{Distribution, Limit, Op, OpKind, Workload};

    fn dataset() -> Dataset {
        Dataset { rows: 1003, key_bytes: 24, columns: 1, value_bytes: 10, seed: 1 }
    }

    fn crews_of(threads: usize) -> Vec<Crew<usize>> {
        crews(threads, 5, async || Ok(0)).unwrap()
    }

    #[test]
    fn a_load_gives_every_row_to_one_request() {
        for threads in [1, 2, 7] {
            let seen = Mutex::new(BTreeSet::new());
            let take = async |_: usize, rows: Range<u64>| {
                assert!(rows.end - rows.start <= 10);
                let mut seen = seen.lock().unwrap();
                assert!(rows.into_iter().all(|row| seen.insert(row)));
                Ok(())
            };
            load(crews_of(threads), &dataset(), 10, 16, &Progress::hidden(), take).unwrap();
            assert_eq!(seen.into_inner().unwrap().len(), 1003);
        }
    }

    #[test]
    fn a_load_that_fails_ends_with_its_error() {
        let fail = async |_: usize, rows: Range<u64>| {
            if rows.start == 500 { Err(Error::mismatch("row 500")) } else { Ok(()) }
        };
        let error = load(crews_of(2), &dataset(), 10, 4, &Progress::hidden(), fail).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch);
    }

    #[test]
    fn a_run_carries_out_every_operation_once_with_as_many_under_way_as_asked() {
        let workload = Workload {
            distribution: Distribution::Sequential,
            limit: Limit::Ops(1003),
            in_flight: 8,
            ..Workload::of("w", OpKind::GetFamily)
        };
        let (dataset, progress) = (dataset(), Progress::hidden());
        let measured = Run::new(&dataset, &workload, &progress).unwrap();
        let (seen, under_way) = (Mutex::new(BTreeSet::new()), Mutex::new((0, 0)));
        let carry_out = async |_: usize, ticket: &Ticket| {
            let Op::GetFamily { row } = ticket.op else { panic!("{ticket:?}") };
            assert!(seen.lock().unwrap().insert(row));
            {
                let mut under_way = under_way.lock().unwrap();
                under_way.0 += 1;
                under_way.1 = under_way.1.max(under_way.0);
            }
            tokio::task::yield_now().await;
            under_way.lock().unwrap().0 -= 1;
            Ok(Found { rows: 1, value_bytes: 10 })
        };
        run(&measured, crews_of(2), carry_out).unwrap();
        assert_eq!(measured.finish().ops, 1003);
        assert_eq!(seen.into_inner().unwrap().len(), 1003);
        let (left, most) = under_way.into_inner().unwrap();
        assert!(left == 0 && (4..=8).contains(&most), "{left} {most}");
    }
}
