//! The report of `tepui bench server` as a person reads it.

use std::fmt::Write as _;

use tepui_bench::report::{LatencyFigures, Report, RunReport};
use tepui_bench::tables::{self, Column, Line, short};

use super::server::LOAD;

const MICROS_PER_SECOND: f64 = 1e6;

/// A figure of the server, or a dash where nothing is known of its process.
fn known(line: &Line<'_>, name: &str, of: impl Fn(f64, &RunReport) -> String) -> String {
    match line.runs.first().and_then(|run| run.figure(name)) {
        Some(_) => {
            let middle = line.median(|run| run.figure(name).unwrap_or(0.0));
            line.runs.first().map_or_else(String::new, |run| of(middle, run))
        }
        None => "-".to_owned(),
    }
}

fn of_writes(line: &Line<'_>, of: fn(&LatencyFigures) -> f64) -> String {
    if line.runs.iter().all(|run| run.write_latency_micros.is_none()) {
        return "-".to_owned();
    }
    short(line.median(|run| run.write_latency_micros.as_ref().map_or(f64::NAN, of)))
}

fn of_reads(line: &Line<'_>, of: fn(&LatencyFigures) -> f64) -> String {
    if line.runs.iter().all(|run| run.reads == 0) {
        return "-".to_owned();
    }
    short(line.median(|run| of(&run.latency_micros)))
}

const COLUMNS: &[Column] = &[
    ("workload", |line| line.first(|r| r.workload.name.clone()).unwrap_or_default()),
    ("server", |line| line.first(|r| r.store.clone()).unwrap_or_default()),
    ("in flight", |line| line.first(|r| r.workload.in_flight.to_string()).unwrap_or_default()),
    ("target/s", |line| match line.first(|r| r.workload.rate).flatten() {
        Some(rate) => format!("{rate:.0}"),
        None => "-".to_owned(),
    }),
    ("ops/s", |line| format!("{:.0}", line.median(|r| r.ops_per_second))),
    ("rows/s", |line| format!("{:.0}", line.median(|r| r.rows_per_second))),
    ("read p50 us", |line| of_reads(line, |l| l.p50)),
    ("p95", |line| of_reads(line, |l| l.p95)),
    ("p99", |line| of_reads(line, |l| l.p99)),
    ("p99.9", |line| of_reads(line, |l| l.p99_9)),
    ("max", |line| of_reads(line, |l| l.max)),
    ("write p50 us", |line| of_writes(line, |l| l.p50)),
    ("p95", |line| of_writes(line, |l| l.p95)),
    ("p99", |line| of_writes(line, |l| l.p99)),
    ("p99.9", |line| of_writes(line, |l| l.p99_9)),
    ("max", |line| of_writes(line, |l| l.max)),
    ("write gap ms", |line| match line.first(|r| r.longest_write_gap_ms.is_some()) {
        Some(true) => short(line.median(|r| r.longest_write_gap_ms.unwrap_or(0.0))),
        _ => "-".to_owned(),
    }),
    ("refused", |line| format!("{:.0}", line.median(|r| r.figure("refused").unwrap_or(0.0)))),
    ("unsent", |line| format!("{:.0}", line.median(|r| r.unsent as f64))),
    ("given up", |line| format!("{:.0}", line.median(|r| r.given_up as f64))),
    ("server cpu us/op", |line| {
        known(line, "server_cpu_micros", |_, _| {
            short(
                line.median(|r| r.figure("server_cpu_micros").unwrap_or(0.0) / r.ops.max(1) as f64),
            )
        })
    }),
    ("cores", |line| {
        known(line, "server_cpu_micros", |_, _| {
            short(line.median(|r| {
                r.figure("server_cpu_micros").unwrap_or(0.0)
                    / (r.seconds.max(1e-9) * MICROS_PER_SECOND)
            }))
        })
    }),
    ("client cpu us/op", |line| short(line.median(|r| r.cpu_micros_per_op))),
    ("rss MiB", |line| {
        known(line, "server_rss_bytes", |bytes, _| format!("{:.0}", bytes / f64::from(1 << 20)))
    }),
    ("stolen %", tables::stolen_percent),
    ("spread", tables::spread),
];

/// Machine, rows, settings and the runs.
pub fn table(report: &Report) -> String {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let machine = &report.machine;
    let data = &report.dataset;
    let setting = |name: &str| report.settings.get(name).map_or("", String::as_str);
    let mut text = format!(
        "{} x {}, {:.0} MiB, Linux {}, disk {}\n{} rows: keys of {} bytes, {} columns of {}, {:.0} MiB in all\n\
         server {}; {} threads, {} connections\n",
        machine.cores,
        machine.cpu,
        mib(machine.memory_bytes),
        machine.kernel,
        machine.device.as_deref().unwrap_or("none with counters"),
        data.rows,
        data.key_bytes,
        data.columns,
        data.value_bytes,
        mib(report.data_bytes),
        setting("server"),
        setting("threads"),
        setting("connections"),
    );
    if let Some(load) = report.settings.get(LOAD) {
        let _ = writeln!(text, "load: {load}");
    }
    if report.runs.is_empty() {
        return text;
    }
    text.push_str(&tables::table_of(COLUMNS, &report.runs));
    let silent: f64 =
        report.runs.iter().filter_map(|run| run.figure("refused_without_retry_info")).sum();
    if silent > 0.0 {
        let _ = writeln!(text, "{silent:.0} refused requests did not say when to come back");
    }
    if report.runs.iter().any(|run| run.interrupted) {
        text.push_str("interrupted: the last run is cut short\n");
    }
    text
}
