//! `tepui bench server`: load on a server of the Bigtable API over gRPC, with YCSB's workloads, in closed and open
//! loops. The server is one that it starts for the purpose, or any that runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use tepui_bench::counters::{Device, Machine, Process};
use tepui_bench::files::write;
use tepui_bench::grpc::ask::Table;
use tepui_bench::grpc::connection::Endpoint;
use tepui_bench::grpc::retry::WhenRefused;
use tepui_bench::grpc::{Grpc, GrpcOptions, INSTANCE};
use tepui_bench::output::show;
use tepui_bench::plot;
use tepui_bench::report::{self, Report, RunReport};
use tepui_bench::{
    Dataset, Distribution, Error, Inserted, Limit, Progress, Result, Store as _, Workload,
    interrupt, ycsb,
};

use super::child::Server;
use super::flags::{Rows, Runs, Usual};
use super::place::Place;
use super::{output, server_table};

/// Points of a plot over time, roughly: enough to show a stall, few enough to be lines.
const PLOT_POINTS: f64 = 100.0;
/// The shortest interval of a plot, in seconds: below it the figures are of too few operations.
const PLOT_SECONDS_MIN: f64 = 0.1;
/// The interval where nobody knows how long a run takes.
const PLOT_SECONDS_OF_OPS: f64 = 1.0;
/// Operations of an open loop that may be under way where nobody says: what a server that falls behind for a
/// second at a high rate leaves waiting.
const IN_FLIGHT_OPEN: usize = 2048;
/// And of a closed loop.
const IN_FLIGHT_CLOSED: usize = 64;

/// What was loaded, among the settings of the report.
pub const LOAD: &str = "load";

/// YCSB's rows.
const USUAL: Usual = Usual { key_bytes: 24, columns: 10, value_bytes: 100 };

/// Options of `tepui bench server`.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// A server that runs, Tepui or not; the table is made where it is missing [default: one of this binary is
    /// started over a directory that is removed at the end]
    #[arg(long, value_name = "HOST:PORT", conflicts_with_all = ["data", "config"])]
    endpoint: Option<String>,
    /// The process of that server, where it runs on this machine: its processor time and memory are shown
    #[arg(long, value_name = "PID", requires = "endpoint")]
    pid: Option<u32>,
    /// The table
    #[arg(long, default_value = "usertable", value_name = "ID")]
    table: String,
    /// The instance of the table. It must exist where the server does not make instances by itself
    #[arg(long, default_value = INSTANCE, value_name = "projects/P/instances/I")]
    instance: String,
    /// The app profile that requests name [default: none, the instance's own]
    #[arg(long, value_name = "ID")]
    app_profile: Option<String>,
    /// The data directory of the server to start; kept
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// The configuration of the server to start; variables `TEPUI_...` do not count
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    rows: Rows,
    /// Whether to load the rows first: where the table lacks them, in any case, or not at all
    #[arg(long, value_enum, default_value_t = Load::Missing)]
    load: Load,
    /// Rows of a request while loading
    #[arg(long, default_value_t = 500, value_name = "COUNT")]
    load_batch: u64,
    /// Requests under way while loading
    #[arg(long, default_value_t = 16, value_name = "COUNT")]
    load_in_flight: usize,
    /// What to do, in turn; `none` only loads, `--workload list` explains the names
    #[arg(long, default_value = "a,b,c", value_delimiter = ',', value_name = "NAME")]
    workload: Vec<String>,
    /// Which rows, instead of what the workload says
    #[arg(long, value_enum, value_name = "NAME")]
    distribution: Option<Chosen>,
    /// The share of the rows that --distribution hot-set has, and their share of the operations [default: 0.2/0.8]
    #[arg(long, value_name = "ROWS/OPS")]
    hot_set: Option<HotSet>,
    /// Operations to begin a second, whether or not earlier ones have ended; their latencies count from when they
    /// were due. Several are measured in turn [default: one begins when another ends]
    #[arg(long, value_delimiter = ',', value_name = "PER SECOND")]
    rate: Vec<f64>,
    /// Operations under way at once, at most [default: 64, or 2048 with --rate]
    #[arg(long, value_name = "COUNT")]
    in_flight: Option<usize>,
    /// Connections
    #[arg(long, default_value_t = 8, value_name = "COUNT")]
    connections: usize,
    #[command(flatten)]
    runs: Runs,
    /// Seconds of each workload before it counts
    #[arg(long, default_value_t = 2.0, value_name = "SECONDS")]
    warm_up: f64,
    /// Draw throughput and latencies over time
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Draw the latencies by the share of operations that are at least as fast
    #[arg(long, value_name = "FILE.svg")]
    plot_latency: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Load {
    Missing,
    Always,
    Never,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Chosen {
    Uniform,
    Zipfian,
    Latest,
    HotSet,
    Single,
}

/// Shares of rows and of operations.
#[derive(Debug, Clone, Copy, PartialEq)]
struct HotSet {
    rows: f64,
    ops: f64,
}

impl std::str::FromStr for HotSet {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no hot set: 0.2/0.8 is one");
        let (rows, ops) = text.split_once('/').ok_or_else(wrong)?;
        let share = |part: &str| part.trim().parse().map_err(|_| wrong());
        Ok(Self { rows: share(rows)?, ops: share(ops)? })
    }
}

/// The server under measurement.
enum Target {
    /// Started for the purpose; its data goes with the place.
    Own(Server, Place),
    Running(Endpoint, Option<Process>),
}

/// Runs the benchmark.
pub fn run(options: &Options) -> Result<()> {
    if options.workload.iter().any(|name| name == "list") {
        let mut names = ycsb::names().chain([("none", "only loads")]);
        return names.try_for_each(|(name, about)| show(&format!("{name:15}{about}\n")));
    }
    let dataset = options.rows.dataset(USUAL);
    dataset.validate()?;
    let workloads = options.workloads(&dataset)?;
    let plots = options.plot.iter().chain(&options.plot_latency);
    output::check_writable(options.runs.json.as_ref(), plots)?;
    let progress = Progress::visible();
    let stopped = progress.clone();
    interrupt::on_signal(move || stopped.stop())?;
    let target = options.target()?;
    let grpc = Grpc::new(options.grpc(&target)?)?;
    let mut report = Report {
        machine: Machine::here(target.dir()),
        dataset,
        data_bytes: dataset.bytes(),
        settings: options.settings(&target),
        runs: Vec::new(),
    };
    let result = options.measure(&grpc, target.dir(), &dataset, &workloads, &progress, &mut report);
    // The server ends before its figures are shown: what its end has to say comes first.
    let stopped = target.stop();
    let nothing = result.is_err() && report.runs.is_empty() && !report.settings.contains_key(LOAD);
    let published = if nothing { Ok(()) } else { options.publish(&report) };
    published.and(result).and(stopped)
}

impl Options {
    /// Shows and writes what was measured. What becomes of one of these is nothing to the others.
    fn publish(&self, report: &Report) -> Result<()> {
        let json = self.runs.json.as_deref();
        let published = output::publish(report, json, &server_table::table(report));
        let over_time = self.plot.as_ref().map_or(Ok(()), |file| {
            write(file, &plot::over_time("Throughput and latency", &plots(&report.runs))?)
        });
        let latencies = self.plot_latency.as_ref().map_or(Ok(()), |file| {
            write(file, &plot::latency_curves("Latency", &output::curves(&report.runs))?)
        });
        published.and(over_time).and(latencies)
    }

    fn distribution(&self) -> Result<Option<Distribution>> {
        if self.hot_set.is_some() && self.distribution != Some(Chosen::HotSet) {
            return Err(Error::failed("--hot-set: it is of --distribution hot-set"));
        }
        Ok(self.distribution.map(|chosen| match chosen {
            Chosen::Uniform => Distribution::Uniform,
            Chosen::Zipfian => ycsb::ZIPFIAN,
            Chosen::Latest => Distribution::Latest,
            Chosen::HotSet => self
                .hot_set
                .map_or(ycsb::HOT_SET, |HotSet { rows, ops }| Distribution::HotSet { rows, ops }),
            Chosen::Single => Distribution::Single,
        }))
    }

    fn workloads(&self, dataset: &Dataset) -> Result<Vec<Workload>> {
        let rates: Vec<Option<f64>> = match self.rate.as_slice() {
            [] => vec![None],
            rates => rates.iter().copied().map(Some).collect(),
        };
        let in_flight = self.in_flight.unwrap_or(match self.rate.as_slice() {
            [] => IN_FLIGHT_CLOSED,
            _ => IN_FLIGHT_OPEN,
        });
        let distribution = self.distribution()?;
        let mut workloads = Vec::new();
        for name in self.workload.iter().filter(|name| *name != "none") {
            let preset = ycsb::by_name(name, distribution)?;
            for rate in &rates {
                let name = match rate {
                    Some(rate) if rates.len() > 1 => format!("{}, {rate}/s", preset.name),
                    _ => preset.name.clone(),
                };
                let mut workload = Workload { name, in_flight, rate: *rate, ..preset.clone() };
                self.runs.apply(&mut workload, dataset, workloads.len())?;
                workloads.push(workload);
            }
        }
        self.runs.check(Some(self.warm_up))?;
        if self.plot.is_some() || self.plot_latency.is_some() {
            if workloads.is_empty() {
                return Err(Error::failed("--plot: there is nothing to draw of a load alone"));
            }
            plot::check_lines(workloads.len())?;
        }
        Ok(workloads)
    }

    fn target(&self) -> Result<Target> {
        if let Some(endpoint) = &self.endpoint {
            let process = self.pid.map(Process);
            if let Some(process) = process {
                process.check().map_err(|error| error.context("--pid"))?;
            }
            return Ok(Target::Running(Endpoint::parse(endpoint)?, process));
        }
        let place = Place::of(self.data.as_deref())?;
        let server = Server::start(place.dir(), self.config.as_deref()).map_err(Error::failed)?;
        Ok(Target::Own(server, place))
    }

    fn grpc(&self, target: &Target) -> Result<GrpcOptions> {
        let (name, endpoint, process) = match target {
            Target::Own(server, _) => {
                ("tepui".to_owned(), Endpoint::parse(&server.endpoint)?, Some(server.process()))
            }
            Target::Running(endpoint, process) => {
                (endpoint.to_string(), endpoint.clone(), *process)
            }
        };
        Ok(GrpcOptions {
            name,
            endpoint,
            table: Table {
                instance: self.instance.clone(),
                id: self.table.clone(),
                app_profile: self.app_profile.clone().unwrap_or_default(),
            },
            connections: self.connections,
            load_threads: self.runs.threads,
            load_batch_rows: self.load_batch,
            load_in_flight: self.load_in_flight,
            when_refused: WhenRefused::Again,
            process,
        })
    }

    fn measure(
        &self,
        grpc: &Grpc,
        dir: &Path,
        dataset: &Dataset,
        workloads: &[Workload],
        progress: &Progress,
        report: &mut Report,
    ) -> Result<()> {
        let loaded = self.load_if_asked(grpc, dataset, progress)?;
        report.settings.extend(loaded);
        let device = Device::of(dir);
        let mut inserted = Inserted::default();
        for round in 1..=self.runs.repeat {
            for workload in workloads {
                progress.check()?;
                if self.warm_up > 0.0 {
                    let warm = Workload {
                        name: format!("{}, warm up", workload.name),
                        limit: Limit::Seconds(self.warm_up),
                        inserted,
                        ..workload.clone()
                    };
                    inserted = report::warm_up(grpc, dataset, &warm, progress)?.inserted;
                    progress.check()?;
                }
                // Another order in each round, and rows that no earlier round has inserted.
                let seed = workload.seed.wrapping_add(round as u64 - 1);
                let now = Workload { seed, inserted, ..workload.clone() };
                let interval = self.interval_seconds();
                let run = report::measure_over_time(
                    grpc,
                    dataset,
                    &now,
                    device.as_ref(),
                    interval,
                    progress,
                )?;
                inserted = run.inserted;
                report.runs.push(RunReport { round, workload: workload.clone(), ..run });
            }
        }
        progress.check()
    }

    /// Loads the rows where they are to be; what is to be said of it.
    fn load_if_asked(
        &self,
        grpc: &Grpc,
        dataset: &Dataset,
        progress: &Progress,
    ) -> Result<BTreeMap<String, String>> {
        if self.load != Load::Never {
            grpc.check_first_row(dataset, progress)?;
        }
        let made = grpc.ensure_table(progress)?;
        let wanted = match self.load {
            Load::Never => false,
            Load::Always => true,
            Load::Missing => made || !grpc.holds(dataset, progress)?,
        };
        if !wanted {
            return Ok(BTreeMap::new());
        }
        let timer = tepui_bench::clock::Timer::start();
        grpc.load(dataset, progress)?;
        progress.check()?;
        let (seconds, rows) = (timer.seconds(), dataset.rows);
        let rate = rows as f64 / seconds;
        grpc.settle(progress)?;
        let text = format!("{rows} rows in {seconds:.1} s, {rate:.0} rows/s");
        Ok([(LOAD.to_owned(), text)].into())
    }

    fn interval_seconds(&self) -> f64 {
        match self.runs.ops {
            Some(_) => PLOT_SECONDS_OF_OPS,
            None => (self.runs.seconds / PLOT_POINTS).max(PLOT_SECONDS_MIN),
        }
    }

    fn settings(&self, target: &Target) -> BTreeMap<String, String> {
        let server = match target {
            Target::Own(..) => "of this binary, on the same machine".to_owned(),
            Target::Running(endpoint, _) => format!("at {endpoint}"),
        };
        let command = std::env::args().skip(1).collect::<Vec<_>>().join(" ");
        [
            ("server", server),
            ("connections", self.connections.to_string()),
            ("threads", self.runs.threads.to_string()),
            ("command", command),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
    }
}

impl Target {
    /// Where its data is, as far as that is known.
    fn dir(&self) -> &Path {
        match self {
            Self::Own(_, place) => place.dir(),
            Self::Running(..) => Path::new("."),
        }
    }

    fn stop(self) -> Result<()> {
        match self {
            // The place goes after the server that uses it.
            Self::Own(server, _place) => server.stop().map_err(Error::failed),
            Self::Running(..) => Ok(()),
        }
    }
}

/// One line of the plot for each workload: its first round.
fn plots(runs: &[RunReport]) -> Vec<plot::Course> {
    runs.iter()
        .filter(|run| run.round == 1)
        .map(|run| plot::Course { label: run.workload.name.clone(), points: run.timeline.clone() })
        .collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        options: Options,
    }

    fn options(args: &[&str]) -> Options {
        Cli::try_parse_from([&["bench"], args].concat()).unwrap().options
    }

    #[test]
    fn every_workload_runs_at_every_rate() {
        let options = options(&["--workload=a,none,e", "--rate=100,200", "--distribution=hot-set"]);
        let workloads = options.workloads(&options.rows.dataset(USUAL)).unwrap();
        let named: Vec<_> = workloads.iter().map(|w| (w.name.as_str(), w.rate)).collect();
        let expected = [
            ("a, 100/s", Some(100.0)),
            ("a, 200/s", Some(200.0)),
            ("e, 100/s", Some(100.0)),
            ("e, 200/s", Some(200.0)),
        ];
        assert_eq!(named, expected);
        assert!(workloads.iter().all(|w| w.distribution == ycsb::HOT_SET && w.in_flight == 2048));
    }

    #[test]
    fn a_hot_set_is_two_shares() {
        assert_eq!("0.01/0.9".parse(), Ok(HotSet { rows: 0.01, ops: 0.9 }));
        for bad in ["", "0.2", "a/b", "0.2/"] {
            assert!(bad.parse::<HotSet>().is_err(), "{bad}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (args, word) in [
            (vec!["--rate=0"], "a second"),
            (vec!["--repeat=0"], "once"),
            (vec!["--warm-up=-1"], "seconds"),
            (vec!["--threads=65"], "in flight"),
            (vec!["--distribution=hot-set", "--hot-set=0/1"], "hot set"),
            (vec!["--hot-set=0.1/0.9"], "--distribution hot-set"),
            (vec!["--plot=a.svg", "--rate=1,2,3,4,5,6"], "18 lines"),
            (vec!["--plot-latency=a.svg", "--rate=1,2,3,4,5,6"], "18 lines"),
            (vec!["--plot=a.svg", "--workload=none"], "nothing to draw"),
        ] {
            let options = options(&args);
            let error = options.workloads(&options.rows.dataset(USUAL)).unwrap_err().to_string();
            assert!(error.contains(word), "{args:?}: {error}");
        }
    }
}
