//! `tepui bench load`: how fast rows go in and come back, and what they cost on disk and in memory.

use std::fmt;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use tepui_bench::clock::Timer;
use tepui_bench::counters::ProcessFigures;
use tepui_bench::grpc::ask::Table;
use tepui_bench::grpc::connection::Endpoint;
use tepui_bench::grpc::retry::WhenRefused;
use tepui_bench::grpc::{Grpc, GrpcOptions};
use tepui_bench::network::QUIET_SECONDS;
use tepui_bench::output::show;
use tepui_bench::{
    Dataset, Error, Limit, OpKind, Progress, Store as _, Verify, Workload, interrupt, report,
};

use super::child::Server;

/// Point reads under way at once.
const POINT_READS_IN_FLIGHT: usize = 64;
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
    /// Data directory of the server to start; it must not exist, and is removed at the end.
    #[arg(long, default_value = "tepui-bench-data")]
    data: PathBuf,
    /// Configuration file for the server to start; variables `TEPUI_...` do not count.
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
    let progress = if options.json { Progress::hidden() } else { Progress::visible() };
    let stopped = progress.clone();
    interrupt::on_signal(move || stopped.stop()).map_err(|error| error.to_string())?;
    // Two that begin together do not both have it, nor remove it.
    let at_data = |error| format!("{}: {error}", options.data.display());
    make_dir(&options.data).map_err(at_data)?;
    let measured = serve_and_measure(options, &progress);
    #[expect(clippy::disallowed_methods, reason = "removes what the benchmark made")]
    let removed = std::fs::remove_dir_all(&options.data);
    let report = measured?;
    removed.map_err(at_data)?;
    print(&report, options.json)
}

/// Makes a directory, which must not be there, for its owner alone, and those above it.
#[expect(clippy::disallowed_methods, reason = "makes a directory for the benchmark")]
fn make_dir(path: &Path) -> std::io::Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    std::fs::DirBuilder::new().mode(0o700).create(path)
}

fn serve_and_measure(options: &Options, progress: &Progress) -> Result<Report, String> {
    let server = Server::start(&options.data, options.config.as_deref())?;
    let measured = measure(options, &server, progress).map_err(|error| error.to_string());
    let stopped = server.stop();
    let report = measured?;
    stopped.map(|()| report)
}

fn measure(options: &Options, server: &Server, progress: &Progress) -> Result<Report, Error> {
    let dataset = Dataset {
        rows: options.rows,
        key_bytes: KEY_BYTES,
        columns: options.columns,
        value_bytes: options.column_bytes,
        seed: 0,
    };
    dataset.validate()?;
    let grpc = Grpc::new(GrpcOptions {
        name: "tepui".to_owned(),
        endpoint: Endpoint::parse(&server.endpoint)?,
        table: Table::new("usertable"),
        connections: options.connections,
        load_threads: 1,
        load_batch_rows: options.batch,
        load_in_flight: options.in_flight,
        when_refused: WhenRefused::Again,
        process: Some(server.process()),
    })?;
    let mut report = Report {
        rows: dataset.rows,
        data_bytes: dataset.rows * dataset.row_bytes(),
        ..Report::default()
    };

    let load = Timer::start();
    grpc.load(&dataset, progress)?;
    report.load_seconds = load.seconds();
    report.load_rows_per_second = dataset.rows as f64 / report.load_seconds;

    let settle = Timer::start();
    grpc.settle(progress)?;
    report.settle_seconds = (settle.seconds() - f64::from(QUIET_SECONDS)).max(0.0);
    report.disk_bytes = server.disk_bytes();
    report.disk_bytes_per_data_byte = report.disk_bytes as f64 / report.data_bytes as f64;
    let written = server.process().figures().write_bytes;
    report.write_amplification = written as f64 / report.data_bytes as f64;

    let scan = Timer::start();
    let found = grpc.scan_everything(&dataset, progress)?;
    if found != dataset.rows {
        let rows = dataset.rows;
        return Err(Error::mismatch(format!("{rows} rows were written and {found} came back")));
    }
    report.scan_seconds = scan.seconds();
    report.scan_rows_per_second = found as f64 / report.scan_seconds;

    report.point_reads = options.point_reads.min(dataset.rows);
    if report.point_reads > 0 {
        let reads = Workload {
            threads: 1,
            limit: Limit::Ops(report.point_reads),
            in_flight: POINT_READS_IN_FLIGHT,
            verify: Verify::All,
            ..Workload::of("point reads", OpKind::GetRow)
        };
        let run = report::measure(&grpc, &dataset, &reads, None, progress)?;
        report.point_reads_per_second = run.ops_per_second;
    }
    progress.check()?;
    let ProcessFigures { rss_peak_bytes, cpu_seconds, .. } = server.process().figures();
    report.rss_peak_bytes = rss_peak_bytes;
    report.server_cpu_seconds = cpu_seconds;
    Ok(report)
}

fn print(report: &Report, json: bool) -> Result<(), String> {
    let text = if json {
        serde_json::to_string_pretty(report).map_err(|e| e.to_string())? + "\n"
    } else {
        report.to_string()
    };
    show(&text).map_err(|error| error.to_string())
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
