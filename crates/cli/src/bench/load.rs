//! `tepui bench load`: how fast rows go in and come back, and what they cost on disk and in memory.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use futures::StreamExt as _;
use indicatif::{ProgressBar, ProgressStyle};
use tepui_bench::Dataset;
use tepui_engine::io::{Clock, SystemClock};

use super::client::Client;
use super::server::{ProcessFigures, Server};

/// Bytes of a key: what YCSB's have.
const KEY_BYTES: usize = 24;

/// Options of `tepui bench load`.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Rows to load.
    #[arg(long, default_value_t = 10_000_000)]
    rows: u64,
    /// Columns of a row.
    #[arg(long, default_value_t = 10)]
    columns: u32,
    /// Bytes of a value.
    #[arg(long, default_value_t = 100)]
    column_bytes: usize,
    /// Rows in a MutateRows request.
    #[arg(long, default_value_t = 500)]
    batch: u64,
    /// Requests under way at once, spread over the connections.
    #[arg(long, default_value_t = 16)]
    in_flight: usize,
    /// Connections.
    #[arg(long, default_value_t = 4)]
    connections: usize,
    /// Rows to read back one by one in random order, after a scan of them all.
    #[arg(long, default_value_t = 200_000)]
    point_reads: u64,
    /// Data directory of the server to start; it must not exist.
    #[arg(long, default_value = "tepui-bench-data")]
    data: PathBuf,
    /// Configuration file for the server to start.
    #[arg(long)]
    config: Option<PathBuf>,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Default, serde::Serialize)]
struct Report {
    rows: u64,
    data_bytes: u64,
    load_seconds: f64,
    load_rows_per_second: f64,
    settle_seconds: f64,
    disk_bytes: u64,
    disk_bytes_per_data_byte: f64,
    write_amplification: f64,
    scan_seconds: f64,
    scan_rows_per_second: f64,
    point_reads: u64,
    point_reads_per_second: f64,
    rss_peak_bytes: u64,
    server_cpu_seconds: f64,
}

/// Runs the benchmark.
pub fn run(options: &Options) -> Result<(), String> {
    if options.data.exists() {
        return Err(format!(
            "{} exists: name a directory that does not, it is removed afterwards",
            options.data.display()
        ));
    }
    let server = Server::start(&options.data, options.config.as_deref())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| format!("runtime: {e}"))?;
    let result = runtime.block_on(measure(options, &server));
    // With it go the connections: the server need not wait for them.
    drop(runtime);
    let stopped = server.stop();
    #[expect(clippy::disallowed_methods, reason = "removes what the benchmark made")]
    let removed = std::fs::remove_dir_all(&options.data);
    let report = result?;
    stopped?;
    removed.map_err(|e| format!("{}: {e}", options.data.display()))?;
    print(&report, options.json)
}

async fn measure(options: &Options, server: &Server) -> Result<Report, String> {
    let clock = SystemClock::new();
    let dataset = Dataset {
        rows: options.rows,
        key_bytes: KEY_BYTES,
        columns: options.columns,
        value_bytes: options.column_bytes,
        seed: 0,
    };
    dataset.validate().map_err(|error| error.to_string())?;
    let mut clients = Vec::new();
    for _ in 0..options.connections.max(1) {
        clients.push(Client::connect(&server.endpoint, "usertable").await?);
    }
    let first = clients.first().ok_or("no connection")?;
    first.clone().create_table().await?;
    let mut report = Report {
        rows: dataset.rows,
        data_bytes: dataset.rows * dataset.row_bytes(),
        ..Report::default()
    };

    let bar = progress("load", dataset.rows, options.json);
    let start = clock.monotonic_micros();
    let batches = dataset.rows.div_ceil(options.batch.max(1));
    let mut requests = futures::stream::iter(0..batches)
        .map(|n| {
            let client = clients.get(n as usize % clients.len()).cloned();
            let from = n * options.batch;
            let to = (from + options.batch).min(dataset.rows);
            async move {
                let mut client = client.ok_or("no connection")?;
                client.write(dataset, from..to).await.map(|()| to - from)
            }
        })
        .buffer_unordered(options.in_flight.max(1));
    while let Some(written) = requests.next().await {
        bar.inc(written?);
    }
    drop(requests);
    bar.finish_and_clear();
    report.load_seconds = seconds(&clock, start);
    report.load_rows_per_second = dataset.rows as f64 / report.load_seconds;

    let settle = clock.monotonic_micros();
    wait_until_quiet(server).await;
    report.settle_seconds = (seconds(&clock, settle) - QUIET_SECONDS as f64).max(0.0);
    let loaded = server.figures();
    report.disk_bytes = server.disk_bytes();
    report.disk_bytes_per_data_byte = report.disk_bytes as f64 / report.data_bytes as f64;
    report.write_amplification = loaded.write_bytes as f64 / report.data_bytes as f64;

    let scan = clock.monotonic_micros();
    let found = first.clone().read(dataset, None).await?;
    if found != dataset.rows {
        return Err(format!("{} rows were written and {found} came back", dataset.rows));
    }
    report.scan_seconds = seconds(&clock, scan);
    report.scan_rows_per_second = found as f64 / report.scan_seconds;

    report.point_reads = options.point_reads.min(dataset.rows);
    let bar = progress("point reads", report.point_reads, options.json);
    let point = clock.monotonic_micros();
    let mut reads = futures::stream::iter(0..report.point_reads)
        .map(|n| {
            let client = clients.get(n as usize % clients.len()).cloned();
            // A stride that is coprime to most sizes visits distinct rows in a scattered order.
            let number = n.wrapping_mul(7_368_787) % dataset.rows;
            async move {
                let mut client = client.ok_or("no connection")?;
                client.read(dataset, Some(vec![dataset.key(number)])).await
            }
        })
        .buffer_unordered(64);
    while let Some(found) = reads.next().await {
        if found? != 1 {
            return Err("a row that was written did not come back".to_owned());
        }
        bar.inc(1);
    }
    drop(reads);
    bar.finish_and_clear();
    report.point_reads_per_second = report.point_reads as f64 / seconds(&clock, point);
    let ProcessFigures { rss_peak_bytes, cpu_seconds, .. } = server.figures();
    report.rss_peak_bytes = rss_peak_bytes;
    report.server_cpu_seconds = cpu_seconds;
    Ok(report)
}

fn seconds(clock: &SystemClock, since: u64) -> f64 {
    clock.monotonic_micros().saturating_sub(since) as f64 / 1e6
}

/// How long the server must write nothing to count as settled.
const QUIET_SECONDS: u64 = 3;

async fn wait_until_quiet(server: &Server) {
    let mut last = server.figures().write_bytes;
    let mut quiet = 0;
    while quiet < QUIET_SECONDS {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let now = server.figures().write_bytes;
        quiet = if now == last { quiet + 1 } else { 0 };
        last = now;
    }
}

fn progress(what: &str, total: u64, json: bool) -> ProgressBar {
    if json {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(
        "{msg:12} {bar:40} {pos}/{len} rows  {per_sec}  {elapsed} of {duration}",
    );
    let bar = ProgressBar::new(total).with_message(what.to_owned());
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

#[expect(clippy::print_stdout, reason = "the report is what the command is for")]
fn print(report: &Report, json: bool) -> Result<(), String> {
    if json {
        println!("{}", serde_json::to_string_pretty(report).map_err(|e| e.to_string())?);
    } else {
        print!("{report}");
    }
    Ok(())
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gib = |bytes: u64| format!("{:.2} GiB", bytes as f64 / f64::from(1u32 << 30));
        let rate =
            |per_second: f64, seconds: f64| format!("{per_second:.0} rows/s ({seconds:.1} s)");
        let disk = format!(
            "{}, {:.3} bytes per byte of data",
            gib(self.disk_bytes),
            self.disk_bytes_per_data_byte
        );
        let amplification =
            format!("{:.2} (log, flushes and compactions)", self.write_amplification);
        let lines = [
            ("rows", self.rows.to_string()),
            ("user data", gib(self.data_bytes)),
            ("load", rate(self.load_rows_per_second, self.load_seconds)),
            ("settled after", format!("{:.1} s more", self.settle_seconds)),
            ("on disk", disk),
            ("write amplification", amplification),
            ("scan, every value checked", rate(self.scan_rows_per_second, self.scan_seconds)),
            ("point reads, 64 in flight", format!("{:.0} /s", self.point_reads_per_second)),
            ("peak memory", gib(self.rss_peak_bytes)),
            ("server processor time", format!("{:.1} s", self.server_cpu_seconds)),
        ];
        for (name, value) in lines {
            writeln!(f, "{name:26}{value}")?;
        }
        Ok(())
    }
}
