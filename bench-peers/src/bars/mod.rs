//! The bars, by what they need: each group opens its stores, runs them in turns and says its lines.
//!
//! ```text
//! round 1:  A  B  C      a contest: every entrant once a round, in turns, so that what disturbs the machine
//! round 2:  C  B  A      disturbs all, and none is always behind the same other; a ratio is taken round by round,
//! round 3:  A  B  C      a figure is the median of its rounds
//! ```

mod cached;
mod commit;
mod filters;
mod load;
mod memory;
mod partitions;
mod scans;
mod spread;
mod uncached;

use std::cell::Cell;
use std::cmp::Ordering;
use std::path::{Path, PathBuf};

use tepui_bench::contest::in_turn;
use tepui_bench::counters::Device;
use tepui_bench::kept::this_build;
use tepui_bench::quiet::quietest;
use tepui_bench::report::{measure, warm_up};
use tepui_bench::{
    Dataset, Distribution, ErrorKind, Limit, OpKind, Progress, Result, Store, Verify, Workload,
};

use crate::fio::Fio;
use crate::report::{Bar, Line};
use crate::rocks::{Columns, How, Rocks, ScanReadahead, Waiting};
use crate::sample::{Sample, Series};

/// Threads of the device's shape: one for each core here.
pub const THREADS: usize = 2;
/// Reads in flight of the device's shape.
pub const IN_FLIGHT: usize = 32;
/// The whole data in the cache, with room for what a cache needs beside it.
const WHOLE_CACHE_FACTOR: u64 = 2;
/// Less would not hold the top-level indexes of every store, whatever the data.
const WHOLE_CACHE_BYTES_MIN: u64 = 256 << 20;
/// Uncached reads reach the device at least so often: a cache of 1/60 answers far fewer than the rest.
const UNCACHED_READS_MIN: f64 = 0.8;
/// A warm-up takes this part of a measured run.
const WARM_UP_PART: f64 = 0.5;

/// How large everything is.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Rows of one column.
    pub rows: u64,
    /// Rows of ten columns.
    pub wide_rows: u64,
    /// Bytes of a key.
    pub key_bytes: usize,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Rounds of a contest.
    pub rounds: usize,
    /// Seconds of a run.
    pub seconds: f64,
    /// Other rows and other reads.
    pub seed: u64,
}

impl Sizes {
    /// Rows of one column.
    pub fn narrow(&self) -> Dataset {
        Dataset {
            rows: self.rows,
            key_bytes: self.key_bytes,
            columns: 1,
            value_bytes: self.value_bytes,
            seed: self.seed,
        }
    }

    /// Rows of ten columns.
    pub fn wide(&self) -> Dataset {
        Dataset { rows: self.wide_rows, columns: 10, ..self.narrow() }
    }
}

/// A cache that holds the whole data.
fn whole_cache(dataset: &Dataset) -> u64 {
    (dataset.bytes() * WHOLE_CACHE_FACTOR).max(WHOLE_CACHE_BYTES_MIN)
}

/// Who takes part in a contest.
#[derive(Clone, Copy)]
pub enum Entrant<'a> {
    /// A store with a workload.
    Store(&'a dyn Store, &'a Workload),
    /// The device, read like the workload would if it did nothing else, so many bytes at once.
    Device(&'a Fio, &'a Workload, u64),
}

/// What a group is given, and where it says its lines.
pub struct Bench {
    /// Where all data is.
    pub dir: PathBuf,
    /// How large everything is.
    pub sizes: Sizes,
    /// Whether fjall takes part.
    pub fjall: bool,
    /// For a person to see and to stop.
    pub progress: Progress,
    /// What was said.
    pub lines: Vec<Line>,
    /// All contests.
    pub series: Vec<Series>,
    /// Turns of contests so far.
    turns: Cell<u64>,
    /// What tells this build from others, whose Tepui is another.
    pub build: String,
    device: Option<Device>,
}

/// What a group belongs to, and a run of the program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suite {
    /// `make bench-read`.
    Read,
    /// `make bench-write`.
    Write,
}

/// A group: its name, what it measures, and how.
pub struct Group {
    /// Which suite it is in.
    pub suite: Suite,
    /// Its name on the command line and in reports.
    pub name: &'static str,
    /// What it measures.
    pub about: &'static str,
    run: fn(&mut Bench) -> Result<()>,
}

/// All groups, in the order of their bars.
pub const GROUPS: &[Group] = &[
    Group {
        suite: Suite::Read,
        name: "uncached",
        about: "point reads from the device, one column a row",
        run: uncached::run,
    },
    Group {
        suite: Suite::Read,
        name: "wide",
        about: "the same with ten columns a row",
        run: uncached::run_wide,
    },
    Group {
        suite: Suite::Read,
        name: "cached",
        about: "point reads from memory, and more reader threads",
        run: cached::run,
    },
    Group {
        suite: Suite::Read,
        name: "partitions",
        about: "index and filter in partitions or not: with a cache of 1/1500, and with everything cached",
        run: partitions::run,
    },
    Group {
        suite: Suite::Read,
        name: "filters",
        about: "what filters serve, and what asking them costs",
        run: filters::run,
    },
    Group {
        suite: Suite::Read,
        name: "spread",
        about: "a row spread over 8 SSTs, 1 ms a read",
        run: spread::run,
    },
    Group {
        suite: Suite::Read,
        name: "memory",
        about: "memory of index and filters",
        run: memory::run,
    },
    Group {
        suite: Suite::Read,
        name: "scans",
        about: "scans of 100 rows, cached and not, both ways",
        run: scans::run,
    },
    Group {
        suite: Suite::Write,
        name: "group-commit",
        about: "256 writers on a disk that syncs in 2 ms",
        run: commit::run_groups,
    },
    Group {
        suite: Suite::Write,
        name: "sync",
        about: "synced writes on this disk",
        run: commit::run_sync,
    },
    Group {
        suite: Suite::Write,
        name: "hot-row",
        about: "read-modify-writes of one row and of many, on a disk that syncs in 2 ms",
        run: commit::run_hot_row,
    },
    Group {
        suite: Suite::Write,
        name: "load",
        about: "rows in random order into an empty store, until it has settled",
        run: load::run,
    },
    Group {
        suite: Suite::Write,
        name: "deletes",
        about: "the first live row after nine tenths of them were deleted",
        run: load::run_deletes,
    },
];

impl Bench {
    /// A bench over data in `dir`, which exists.
    pub fn new(dir: &Path, sizes: Sizes, fjall: bool, progress: Progress) -> Result<Self> {
        Ok(Self {
            dir: dir.to_owned(),
            sizes,
            fjall,
            progress,
            lines: Vec::new(),
            series: Vec::new(),
            turns: Cell::new(0),
            build: this_build()?,
            device: Device::of(dir),
        })
    }

    /// Runs a group. What ends it early is a line that is short; only a person ends the program, by a signal or by the directory
    /// that was named.
    pub fn run(&mut self, group: &Group) -> Result<()> {
        println!("\n{}: {}", group.name, group.about);
        match (group.run)(self) {
            Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::Occupied) => Err(e),
            Err(e) => {
                let name = format!("{} ended early", group.name);
                self.say(Line::missing(group.name, name, Bar::AtMost(0.0), e.to_string()));
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Prints a line and keeps it.
    pub fn say(&mut self, line: Line) {
        println!("{}", line.text());
        self.lines.push(line);
    }

    /// A workload of one kind of operation, for the seconds of a run.
    pub fn workload(&self, name: &str, kind: OpKind, threads: usize, in_flight: usize) -> Workload {
        Workload {
            threads,
            in_flight,
            limit: Limit::Seconds(self.sizes.seconds),
            verify: Verify::Sample,
            ..Workload::of(name, kind)
        }
    }

    /// Brings a store to the state in which a workload keeps it.
    pub fn warm(&self, store: &dyn Store, dataset: &Dataset, workload: &Workload) -> Result<()> {
        let limit = Limit::Seconds(self.sizes.seconds * WARM_UP_PART);
        let warm = Workload { limit, ..workload.clone() };
        warm_up(store, dataset, &warm, &self.progress)?;
        self.rest(store, workload)
    }

    /// Reads every row once, and then some absent ones: whatever fits the cache is in it.
    pub fn warm_whole(&self, store: &dyn Store, dataset: &Dataset) -> Result<()> {
        let mut all = self.workload("warm", OpKind::Get, THREADS, THREADS);
        all.distribution = Distribution::Sequential;
        all.limit = Limit::Ops(dataset.rows);
        warm_up(store, dataset, &all, &self.progress)?;
        let absent = self.workload("warm", OpKind::GetAbsent, THREADS, THREADS);
        self.warm(store, dataset, &absent)
    }

    /// Runs the entrants in turns, as many rounds as asked for. Results in their order.
    pub fn contest(&mut self, dataset: &Dataset, entrants: &[Entrant<'_>]) -> Result<Vec<Series>> {
        let mut all: Vec<Series> = entrants
            .iter()
            .map(|entrant| {
                let (store, workload) = match entrant {
                    Entrant::Store(store, workload) => (store.name(), workload),
                    Entrant::Device(_, workload, _) => ("fio", workload),
                };
                let workload = format!(
                    "{}, {} threads, {} in flight",
                    workload.name, workload.threads, workload.in_flight
                );
                Series { store: store.to_owned(), workload, samples: Vec::new() }
            })
            .collect();
        for round in 0..self.sizes.rounds {
            for (entrant, series) in in_turn(entrants.iter().zip(&mut all), round) {
                let quietest = quietest(
                    &self.progress,
                    |sample: &Sample| sample.stolen_share,
                    |_| {
                        self.turns.set(self.turns.get() + 1);
                        self.one(dataset, entrant, self.turns.get())
                    },
                );
                series.samples.push(quietest?);
            }
        }
        self.series.extend(all.iter().cloned());
        Ok(all)
    }

    /// Waits for what a run of writes has left to do: it is the store's own, not the next one's.
    fn rest(&self, store: &dyn Store, workload: &Workload) -> Result<()> {
        if workload.writes() { store.rest(&self.progress) } else { Ok(()) }
    }

    /// A run of the turn of this number: of other rows than any turn before, since several entrants may be ways to use one store, whose
    /// cache then holds what another way has read.
    fn one(&self, dataset: &Dataset, entrant: &Entrant<'_>, turn: u64) -> Result<Sample> {
        match entrant {
            Entrant::Store(store, workload) => {
                let workload = Workload { seed: workload.seed + turn, ..(*workload).clone() };
                let run =
                    measure(*store, dataset, &workload, self.device.as_ref(), &self.progress)?;
                self.progress.check()?;
                self.rest(*store, &workload)?;
                Ok(Sample::of(&run))
            }
            Entrant::Device(fio, workload, bytes) => {
                let seconds = (self.sizes.seconds.ceil() as u64).max(1);
                fio.run(*bytes, (workload.threads, workload.in_flight), seconds, turn)
            }
        }
    }
}

/// RocksDB with a thread for each read, in every way to read a row.
fn thread_ways(rocks: &Rocks, dataset: &Dataset) -> Vec<Rocks> {
    let mut ways = vec![Columns::MultiGet];
    if dataset.columns > 1 {
        ways.push(Columns::Iterator);
    }
    ways.into_iter().map(|columns| rocks.used(How { columns, ..How::default() })).collect()
}

/// RocksDB in every way to have many reads under way that this build of it has.
fn waiting_ways(rocks: &Rocks, dataset: &Dataset) -> Vec<Rocks> {
    let mut batches = vec![Waiting::MultiGet];
    if cfg!(feature = "newest") {
        batches.push(Waiting::MultiGetAsync);
    }
    let batches = batches.into_iter().map(|waiting| rocks.used(How { waiting, ..How::default() }));
    thread_ways(rocks, dataset).into_iter().chain(batches).collect()
}

/// RocksDB in every way to read ahead; `bytes` are those of a whole scan.
fn readahead_ways(rocks: &Rocks, bytes: usize) -> Vec<Rocks> {
    let mut ways = vec![ScanReadahead::Auto, ScanReadahead::Bytes(bytes)];
    if cfg!(feature = "newest") {
        ways.push(ScanReadahead::Async);
    }
    ways.into_iter().map(|readahead| rocks.used(How { readahead, ..How::default() })).collect()
}

/// Series number `at` of a contest.
fn nth(series: &[Series], at: usize) -> Result<&Series> {
    series.get(at).ok_or_else(|| tepui_bench::Error::failed("a contest without this entrant"))
}

/// The rate over fjall's, without a bar, where it takes part.
fn fjall_line(
    bench: &mut Bench,
    group: &'static str,
    name: String,
    ours: &Series,
    fjall: Option<&Series>,
) {
    if let Some(fjall) = fjall {
        let rates = [ours, fjall].map(|series| series.spread(per_second).median);
        let note = format!("{:.0} beside {:.0} a second", rates[0], rates[1]);
        let line = Line::new(group, name, ours.over(fjall, per_second), Bar::Published);
        bench.say(line.note(note));
    }
}

fn per_second(sample: &Sample) -> f64 {
    sample.per_second
}

/// Reads that ought to miss the cache, of which most did not reach the device, say nothing: something else answered
/// them, as the page cache does under buffered reads.
fn not_the_device(series: &Series) -> Option<String> {
    let reads = series.spread(|s| s.disk_reads).median;
    // Without counters there is no number to compare with.
    match reads.partial_cmp(&UNCACHED_READS_MIN) {
        Some(Ordering::Greater | Ordering::Equal) => None,
        _ => Some(format!("{reads:.2} disk reads: the page cache answered, not the device")),
    }
}
