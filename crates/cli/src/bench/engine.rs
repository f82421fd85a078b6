//! `tepui bench engine`: the storage engine in this process, without network and server, under one workload
//! after the other.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;
use tepui_bench::counters::{Device, Machine};
use tepui_bench::files::write;
use tepui_bench::kept::Kept;
use tepui_bench::output::show;
use tepui_bench::plot;
use tepui_bench::report::{self, Report, RunReport};
use tepui_bench::tables;
use tepui_bench::tepui::{IoMode, SyncMode, Tepui, TepuiOptions};
use tepui_bench::{
    Dataset, Limit, OpKind, Progress, Result, Share, Store as _, Workload, interrupt, presets,
};
use tepui_engine::db::{CompressionPolicy, SEPARATE_VALUES_BYTES};

use super::flags::{Rows, Runs, Usual};
use super::output;
use super::place::Place;

/// Seconds that a run warms up for where the cache does not hold all rows: it fills the cache's share for
/// index and filters, and more of its data blocks would only replace each other.
const WARM_UP_SECONDS: f64 = 2.0;
/// What a cache of `all` holds beyond the rows: their keys again in the index, filters, and blocks that are
/// about to go.
const CACHE_ALL_FACTOR: f64 = 2.0;
/// And in any case this much.
const CACHE_ALL_BYTES_MIN: u64 = 64 << 20;

/// Rows of which there are many in a gigabyte: what a lookup costs is measured, not the copying of values.
const USUAL: Usual = Usual { key_bytes: 50, columns: 1, value_bytes: 256 };

/// Options of `tepui bench engine`.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Keep the data in this directory, and use what it holds if that is the same [default: a directory
    /// under the current one, removed at the end]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    #[command(flatten)]
    rows: Rows,
    /// Bytes of the block cache (64MiB), a share of the data (1/60), or `all` for one that holds everything;
    /// several are measured in turn
    #[arg(long, default_value = "1/60", value_delimiter = ',', value_name = "SIZE")]
    cache: Vec<CacheSize>,
    #[command(flatten)]
    runs: Runs,
    /// Operations under way at once, over all threads
    #[arg(long, default_value_t = 32, value_name = "COUNT")]
    in_flight: usize,
    /// What to do; `--workload list` explains the names
    #[arg(long, default_value = "get", value_delimiter = ',', value_name = "NAME")]
    workload: Vec<String>,
    /// Whether the load and each workload that writes are followed by a flush and all compactions before the next
    /// workload begins. With `never` a load, the workloads and what they leave to be compacted run in one go, as in a program that
    /// has no pauses: the rows are loaded anew for each repetition, and not kept
    #[arg(long, value_enum, default_value_t = Settle::Always)]
    settle: Settle,
    /// Seconds of each run's workload before it counts [default: 2, or every row once where the cache holds
    /// them all; 0 with --settle never]
    #[arg(long, value_name = "SECONDS")]
    warm_up: Option<f64>,
    /// How blocks are read
    #[arg(long, value_enum, default_value_t = Io::Direct)]
    io: Io,
    /// Whether index and filters of an SST are cut into partitions or are one block each
    #[arg(long, value_enum, default_value_t = Switch::On)]
    partitions: Switch,
    /// When writes are synced; the load never is, unless with --settle never
    #[arg(long, value_enum, default_value_t = Sync::Never)]
    sync: Sync,
    /// Microseconds that each sync of a file takes longer, as on a slow disk
    #[arg(long, default_value_t = 0, value_name = "MICROS")]
    slow_sync: u64,
    /// How blocks are compressed; the values are random bytes
    #[arg(long, value_enum, default_value_t = Compression::None)]
    compression: Compression,
    /// Bytes from which a value lies outside of SSTs; 0 for none
    #[arg(long, default_value_t = SEPARATE_VALUES_BYTES, value_name = "BYTES")]
    separate_values: u64,
    /// Draw the latencies
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Io {
    /// Past the page cache
    Direct,
    /// Through the page cache
    Buffered,
}

impl From<Io> for IoMode {
    fn from(io: Io) -> Self {
        match io {
            Io::Direct => Self::Direct,
            Io::Buffered => Self::Buffered,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Sync {
    /// Before each write is answered
    Always,
    Never,
}

impl From<Sync> for SyncMode {
    fn from(sync: Sync) -> Self {
        match sync {
            Sync::Always => Self::Always,
            Sync::Never => Self::Never,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Compression {
    None,
    Lz4,
    /// LZ4 above the last level, zstd on it
    Tiered,
}

impl From<Compression> for CompressionPolicy {
    fn from(compression: Compression) -> Self {
        match compression {
            Compression::None => Self::None,
            Compression::Lz4 => Self::Lz4,
            Compression::Tiered => Self::Tiered,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Settle {
    /// What is measured pays for no earlier writes
    Always,
    /// It pays for all of them
    Never,
}

/// A size of the block cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CacheSize {
    Bytes(u64),
    /// So many parts of so many that make the data.
    Share(u32, u32),
    All,
}

impl FromStr for CacheSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no cache size: 64MiB, 1/60 and all are some");
        if text == "all" {
            return Ok(Self::All);
        }
        if let Some((part, whole)) = text.split_once('/') {
            let (part, whole) =
                (part.parse().map_err(|_| wrong())?, whole.parse().map_err(|_| wrong())?);
            return if part == 0 || whole == 0 {
                Err(wrong())
            } else {
                Ok(Self::Share(part, whole))
            };
        }
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let shift = match unit.trim() {
            "" | "B" => 0,
            "KiB" => 10,
            "MiB" => 20,
            "GiB" => 30,
            _ => return Err(wrong()),
        };
        let bytes = number.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift));
        bytes.filter(|bytes| *bytes > 0).map(Self::Bytes).ok_or_else(wrong)
    }
}

impl fmt::Display for CacheSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => {
                let unit = [(30, "GiB"), (20, "MiB"), (10, "KiB")]
                    .into_iter()
                    .find(|(shift, _)| bytes.trailing_zeros() >= *shift);
                match unit {
                    Some((shift, unit)) => write!(f, "{}{unit}", bytes >> shift),
                    None => write!(f, "{bytes}"),
                }
            }
            Self::Share(part, whole) => write!(f, "{part}/{whole}"),
            Self::All => f.write_str("all"),
        }
    }
}

impl CacheSize {
    fn bytes(self, data_bytes: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Share(part, whole) => {
                let bytes = u128::from(data_bytes) * u128::from(part) / u128::from(whole);
                u64::try_from(bytes).unwrap_or(u64::MAX).max(1)
            }
            Self::All => ((data_bytes as f64 * CACHE_ALL_FACTOR) as u64).max(CACHE_ALL_BYTES_MIN),
        }
    }
}

/// Runs the benchmark.
pub fn run(options: &Options) -> Result<()> {
    if options.workload.iter().any(|name| name == "list") {
        return presets::names()
            .try_for_each(|(name, meaning)| show(&format!("{name:18}{meaning}\n")));
    }
    let dataset = options.rows.dataset(USUAL);
    dataset.validate()?;
    let workloads = options.workloads(&dataset)?;
    output::check_writable(options.runs.json.as_ref(), &options.plot)?;
    let progress = Progress::visible();
    let stopped = progress.clone();
    interrupt::on_signal(move || stopped.stop())?;
    let place = Place::of(options.data.as_deref())?;
    let mut report = Report {
        machine: Machine::here(Path::new(".")),
        dataset,
        data_bytes: dataset.bytes(),
        settings: options.settings(),
        runs: Vec::new(),
    };
    let result = options.measure(place.dir(), &dataset, &workloads, &progress, &mut report);
    if report.runs.is_empty() {
        return result;
    }
    report.machine = Machine::here(place.dir());
    let (table, cache) = (tables::table(&report.runs), tables::cache_table(&report.runs));
    let text = format!("{}\n{table}\n{cache}", heading(&report));
    let published = output::publish(&report, options.runs.json.as_deref(), &text);
    let drawn = options.plot.as_ref().map_or(Ok(()), |file| {
        let curves = output::curves(&report.runs);
        write(file, &plot::latency_curves("Latency", &curves)?)
    });
    published.and(drawn).and(result)
}

impl Options {
    fn workloads(&self, dataset: &Dataset) -> Result<Vec<Workload>> {
        let mut workloads = presets::by_names(&self.workload, dataset)?;
        for (at, workload) in workloads.iter_mut().enumerate() {
            workload.in_flight = self.in_flight;
            self.runs.apply(workload, dataset, at)?;
        }
        self.runs.check(self.warm_up)?;
        if self.plot.is_some() {
            plot::check_lines(workloads.len() * self.cache.len())?;
        }
        Ok(workloads)
    }

    fn store(&self, kept: &Kept, cache: CacheSize, data_bytes: u64) -> TepuiOptions {
        let mut store = TepuiOptions::new(kept.data(), cache.bytes(data_bytes));
        store.io = self.io.into();
        store.engine.compression = self.compression.into();
        store.engine.sync = self.sync.into();
        store.slow_sync = Some(Duration::from_micros(self.slow_sync)).filter(|d| !d.is_zero());
        store.engine.separate_values_bytes = self.separate_values;
        if self.partitions == Switch::Off {
            store = store.unpartitioned();
        }
        store.name = match self.cache.as_slice() {
            [_] => "tepui".to_owned(),
            _ => format!("tepui, cache {cache}"),
        };
        store
    }

    fn measure(
        &self,
        dir: &Path,
        dataset: &Dataset,
        workloads: &[Workload],
        progress: &Progress,
        report: &mut Report,
    ) -> Result<()> {
        for round in 1..=self.runs.repeat {
            for cache in &self.cache {
                // The format does not depend on the cache: all of them read the same files.
                let format = self.store(&Kept::new(dir, "tepui", dataset, ""), *cache, 0).format();
                let kept = Kept::new(dir, "tepui", dataset, &format);
                let options = self.store(&kept, *cache, dataset.bytes());
                let store = match self.settle {
                    Settle::Always => Tepui::open_kept(&options, dataset, &kept, progress)?,
                    Settle::Never => Tepui::open_loaded(&options, dataset, &kept, progress)?,
                };
                let device = Device::of(dir);
                let holds_all = cache.bytes(dataset.bytes()) >= dataset.bytes();
                let warms_all =
                    holds_all && self.settle == Settle::Always && self.warm_up.is_none();
                // At first, and again after compactions: what they write is in no cache.
                let mut is_cold = true;
                for workload in workloads {
                    progress.check()?;
                    if warms_all && is_cold {
                        let all = presets::every_row(dataset, self.runs.threads, self.in_flight);
                        report::warm_up(&store, dataset, &all, progress)?;
                    }
                    let unsettles = workload.writes() && self.settle == Settle::Always;
                    is_cold = unsettles;
                    if unsettles {
                        kept.changing()?;
                    }
                    if let Some(seconds) = self.warm_up_seconds(holds_all) {
                        let warm = reads_only(workload, seconds);
                        report::warm_up(&store, dataset, &warm, progress)?;
                    }
                    let run =
                        report::measure(&store, dataset, workload, device.as_ref(), progress)?;
                    report.runs.push(RunReport { round, ..run });
                    progress.check()?;
                    if unsettles {
                        store.settle(progress)?;
                        kept.complete()?;
                    }
                }
                store.close()?;
            }
        }
        Ok(())
    }

    fn warm_up_seconds(&self, holds_all: bool) -> Option<f64> {
        let none = holds_all || self.settle == Settle::Never;
        let default = if none { 0.0 } else { WARM_UP_SECONDS };
        Some(self.warm_up.unwrap_or(default)).filter(|seconds| *seconds > 0.0)
    }

    fn settings(&self) -> BTreeMap<String, String> {
        let caches: Vec<String> = self.cache.iter().map(CacheSize::to_string).collect();
        let name = |value: &dyn fmt::Debug| format!("{value:?}").to_lowercase();
        [
            ("cache", caches.join(",")),
            ("io", name(&self.io)),
            ("partitions", name(&self.partitions)),
            ("compression", name(&self.compression)),
            ("sync", name(&self.sync)),
            ("slow_sync_micros", self.slow_sync.to_string()),
            ("settle", name(&self.settle)),
            ("command", std::env::args().skip(1).collect::<Vec<_>>().join(" ")),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
    }
}

/// The machine, the rows and the settings, in three lines.
fn heading(report: &Report) -> String {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let Machine { cpu, cores, kernel, device, memory_bytes } = &report.machine;
    let device = device.as_deref().unwrap_or("none with counters");
    let Dataset { rows, key_bytes, columns, value_bytes, .. } = report.dataset;
    let data = format!(
        "{rows} rows: keys of {key_bytes} bytes, {columns} columns of {value_bytes}, {:.0} MiB in all",
        mib(report.data_bytes)
    );
    let setting = |name| report.settings.get(name).map_or("", String::as_str);
    format!(
        "{cores} x {cpu}, {:.0} MiB, Linux {kernel}, disk {device}\n{data}\ncache {}, {} reads, partitions {}, compression {}",
        mib(*memory_bytes),
        setting("cache"),
        setting("io"),
        setting("partitions"),
        setting("compression"),
    )
}

/// The workload for so many seconds, without its writes: a warm-up must not change the shape of the tree.
fn reads_only(workload: &Workload, seconds: f64) -> Workload {
    let mut mix: Vec<Share> =
        workload.mix.iter().copied().filter(|share| !share.kind.writes()).collect();
    if mix.is_empty() {
        mix.push(Share { kind: OpKind::Get, weight: 1 });
    }
    Workload {
        name: format!("{}, warm up", workload.name),
        mix,
        limit: Limit::Seconds(seconds),
        ..workload.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Cli {
        #[command(flatten)]
        options: Options,
    }

    /// Runs workloads over rows that are kept in a directory.
    fn runs(dir: &Path, args: &[&str], progress: &Progress) -> Result<Vec<RunReport>> {
        use clap::Parser as _;
        let args = [&["engine", "--rows=1000"], args].concat();
        let options = Cli::try_parse_from(args).unwrap().options;
        let dataset = options.rows.dataset(USUAL);
        let workloads = options.workloads(&dataset)?;
        let mut report = Report {
            machine: Machine::here(dir),
            dataset,
            data_bytes: dataset.bytes(),
            settings: options.settings(),
            runs: Vec::new(),
        };
        options.measure(dir, &dataset, &workloads, progress, &mut report).map(|()| report.runs)
    }

    /// Runs one workload; the note beside its rows.
    fn measure(dir: &Path, workload: &str, progress: &Progress) -> Result<String> {
        let workload = format!("--workload={workload}");
        let args = ["--seconds=2", "--warm-up=0", &workload];
        runs(dir, &args, progress).map(|_| note(dir))
    }

    fn note(dir: &Path) -> String {
        std::fs::read_to_string(dir.join("tepui.json")).unwrap_or_default()
    }

    #[test]
    fn rows_are_not_kept_as_settled_where_writes_were_interrupted() {
        const COMPLETE: &str = "\"complete\": true";
        let dir = tempfile::tempdir().unwrap();
        let progress = Progress::hidden();
        assert!(measure(dir.path(), "put", &progress).unwrap().contains(COMPLETE));
        let result = std::thread::scope(|scope| {
            let run = scope.spawn(|| measure(dir.path(), "put", &progress));
            // Its rows are those of the run before, until it writes.
            while note(dir.path()).contains(COMPLETE) && !run.is_finished() {
                std::thread::yield_now();
            }
            progress.stop();
            run.join().unwrap()
        });
        assert!(result.is_err(), "it was not interrupted");
        assert!(!note(dir.path()).contains(COMPLETE));
        assert!(measure(dir.path(), "get", &Progress::hidden()).unwrap().contains(COMPLETE));
    }

    #[test]
    fn a_cache_of_everything_has_every_row_again_after_writes() {
        let dir = tempfile::tempdir().unwrap();
        let args = ["--workload=put,get,get", "--cache=all", "--ops=300"];
        let runs = runs(dir.path(), &args, &Progress::hidden()).unwrap();
        let misses: Vec<_> = runs.iter().map(|run| run.figure("data_misses")).collect();
        assert_eq!(misses[1..], [Some(0.0), Some(0.0)]);
    }

    #[test]
    fn the_round_in_the_middle_is_that_of_the_latencies_that_there_are() {
        let dir = tempfile::tempdir().unwrap();
        let args = ["--workload=put", "--ops=10"];
        let put = runs(dir.path(), &args, &Progress::hidden()).unwrap().remove(0);
        let rounds = [1.0, 3.0, 2.0].map(|micros| {
            let mut round = put.clone();
            round.write_latency_micros.as_mut().unwrap().p50 = micros;
            round.write_curve.iter_mut().for_each(|point| point.micros = micros);
            round
        });
        let curves = output::curves(&rounds);
        assert_eq!(curves.len(), 1);
        assert!(curves[0].points.iter().all(|point| point.micros.total_cmp(&2.0).is_eq()));
    }

    #[test]
    fn a_plot_of_too_many_lines_is_refused_before_anything_is_measured() {
        use clap::Parser as _;
        let workloads = |args: &[&str]| {
            let options = Cli::try_parse_from([&["engine"], args].concat()).unwrap().options;
            options.workloads(&options.rows.dataset(USUAL))
        };
        let all = ["--workload=all", "--cache=1/60,all"];
        let plotted = [&all[..], &["--plot=a.svg"]].concat();
        let error = workloads(&plotted).unwrap_err().to_string();
        assert!(error.contains("lines are too many"), "{error}");
        assert!(workloads(&all).is_ok());
        // What docs/benchmarks.md draws.
        assert!(
            workloads(&["--workload=get,scan-100,put", "--cache=1/60,all", "--plot=a"]).is_ok()
        );
    }

    #[test]
    fn cache_sizes_are_bytes_shares_or_all() {
        let bytes = |text: &str| text.parse::<CacheSize>().map(|size| size.bytes(6_000_000_000));
        assert_eq!(bytes("1/60"), Ok(100_000_000));
        assert_eq!(bytes("4096"), Ok(4096));
        assert_eq!(bytes("64MiB"), Ok(64 << 20));
        assert_eq!(bytes("1 GiB"), Ok(1 << 30));
        assert_eq!(bytes("all"), Ok(12_000_000_000));
        for wrong in ["", "0", "1/0", "0/5", "x", "1/x", "5MB", "-3", "99999999999GiB"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_warm_up_does_not_write() {
        let dataset = Dataset { rows: 10, key_bytes: 50, columns: 1, value_bytes: 1, seed: 1 };
        for workload in presets::by_names(&["all".to_owned()], &dataset).unwrap() {
            let warm = reads_only(&workload, 1.0);
            assert!(!warm.writes());
            assert!(warm.validate(&dataset).is_ok());
        }
    }
}
