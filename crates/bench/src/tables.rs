//! Reports as text: tables with a line for each workload and store.

use std::fmt::Write as _;

use crate::report::{RunReport, median};

/// A row of the table: the runs of one workload on one store.
#[derive(Debug)]
pub struct Line<'a> {
    /// Its repetitions.
    pub runs: Vec<&'a RunReport>,
}

/// A column of the table: its heading and how to write its figure.
pub type Column = (&'static str, fn(&Line<'_>) -> String);

impl Line<'_> {
    /// The median over the repetitions.
    pub fn median(&self, of: impl Fn(&RunReport) -> f64) -> f64 {
        median(self.runs.iter().map(|run| of(run)).collect())
    }

    /// Of the first repetition.
    pub fn first<T>(&self, of: impl Fn(&RunReport) -> T) -> Option<T> {
        self.runs.first().map(|run| of(run))
    }
}

/// Three digits that matter; a dash for what is not a number.
pub fn short(value: f64) -> String {
    if value.is_nan() {
        return "-".to_owned();
    }
    let decimals = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

/// What a line is of.
const NAMES: [Column; 3] = [
    ("workload", |line| line.first(|r| r.workload.name.clone()).unwrap_or_default()),
    ("store", |line| line.first(|r| r.store.clone()).unwrap_or_default()),
    ("threads", |line| {
        line.first(|r| {
            format!("{}x{}", r.workload.threads, r.workload.in_flight / r.workload.threads.max(1))
        })
        .unwrap_or_default()
    }),
];

const COLUMNS: &[Column] = &[
    NAMES[0],
    NAMES[1],
    NAMES[2],
    ("ops/s", |line| format!("{:.0}", line.median(|r| r.ops_per_second))),
    ("p50 us", |line| short(line.median(|r| r.latency().p50))),
    ("p90", |line| short(line.median(|r| r.latency().p90))),
    ("p99", |line| short(line.median(|r| r.latency().p99))),
    ("p99.9", |line| short(line.median(|r| r.latency().p99_9))),
    ("max", |line| short(line.median(|r| r.latency().max))),
    ("reads/op", |line| median_or_dash(line, short, |r| Some(r.disk?.reads_per_op))),
    ("bytes/op", |line| median_or_dash(line, whole, |r| Some(r.disk?.read_bytes_per_op))),
    ("io/op", |line| median_or_dash(line, short, |r| r.per_op("io_reads"))),
    ("log B/mut", |line| {
        median_or_dash(line, whole, |r| r.share("log_bytes", r.figure("log_mutations")?))
    }),
    ("cpu us/op", |line| short(line.median(|r| r.cpu_micros_per_op))),
    ("hit %", |line| hit_percent(line, percent, "cache_hits", "cache_misses")),
    ("rss MiB", |line| format!("{:.0}", line.median(|r| r.rss_bytes as f64 / f64::from(1 << 20)))),
    ("stolen %", stolen_percent),
    ("spread", spread),
];

const CACHE_COLUMNS: &[Column] = &[
    NAMES[0],
    NAMES[1],
    NAMES[2],
    ("data hit %", |line| hit_percent(line, fine_percent, "data_hits", "data_misses")),
    ("index hit %", |line| hit_percent(line, fine_percent, "index_hits", "index_misses")),
    ("filter hit %", |line| hit_percent(line, fine_percent, "filter_hits", "filter_misses")),
    ("SSTs/op", |line| median_or_dash(line, short, |r| r.per_op("filter_lookups"))),
    ("filtered %", |line| {
        median_or_dash(line, fine_percent, |r| {
            r.share("filter_probes", r.figure("filter_lookups")?)
        })
    }),
    ("kept out %", |line| {
        median_or_dash(line, fine_percent, |r| {
            r.share("filter_negatives", r.figure("filter_probes")?)
        })
    }),
    ("false %", |line| {
        median_or_dash(line, fine_percent, |r| {
            let wrong = r.figure("filter_false_positives")?;
            r.share("filter_false_positives", wrong + r.figure("filter_negatives")?)
        })
    }),
    ("cache MiB", |line| median_or_dash(line, mebibytes, |r| r.figure("cache_bytes"))),
    ("pinned MiB", |line| {
        median_or_dash(line, mebibytes, |r| r.figure("index_filter_pinned_bytes"))
    }),
];

fn whole(value: f64) -> String {
    format!("{value:.0}")
}

fn percent(share: f64) -> String {
    format!("{:.1}", 100.0 * share)
}

/// A share that may be far below a percent.
fn fine_percent(share: f64) -> String {
    short(100.0 * share)
}

fn mebibytes(bytes: f64) -> String {
    short(bytes / f64::from(1 << 20))
}

/// The share of lookups that found their block.
fn hit_percent(line: &Line<'_>, write: fn(f64) -> String, hits: &str, misses: &str) -> String {
    median_or_dash(line, write, |r| r.share(hits, r.figure(hits)? + r.figure(misses)?))
}

/// The median of a figure over the repetitions that have it; a dash where none has.
fn median_or_dash(
    line: &Line<'_>,
    write: fn(f64) -> String,
    of: impl Fn(&RunReport) -> Option<f64>,
) -> String {
    let figures: Vec<f64> = line.runs.iter().filter_map(|run| of(run)).collect();
    if figures.is_empty() { "-".to_owned() } else { write(median(figures)) }
}

/// What the host took of the processors.
pub fn stolen_percent(line: &Line<'_>) -> String {
    percent(line.median(|run| run.stolen_share))
}

/// The runs as a table, a line for each workload and store with the medians of its repetitions. `spread` is
/// the fastest repetition over the slowest.
pub fn table(runs: &[RunReport]) -> String {
    table_of(COLUMNS, runs)
}

/// What the cache and the filters did in the runs, in lines as those of [`table`].
pub fn cache_table(runs: &[RunReport]) -> String {
    table_of(CACHE_COLUMNS, runs)
}

/// The fastest repetition over the slowest; a dash where there is one.
pub fn spread(line: &Line<'_>) -> String {
    let least = line.runs.iter().map(|r| r.ops_per_second).fold(f64::INFINITY, f64::min);
    let most = line.runs.iter().map(|r| r.ops_per_second).fold(0.0, f64::max);
    if line.runs.len() < 2 { "-".to_owned() } else { format!("{:.2}", most / least) }
}

/// The runs as a table with columns of the caller's; the first three hold names, the others figures.
pub fn table_of(columns: &[Column], runs: &[RunReport]) -> String {
    let mut lines: Vec<Line<'_>> = Vec::new();
    for run in runs {
        let same = |line: &&mut Line<'_>| {
            line.runs.first().is_some_and(|r| r.store == run.store && r.workload == run.workload)
        };
        match lines.iter_mut().find(same) {
            Some(line) => line.runs.push(run),
            None => lines.push(Line { runs: vec![run] }),
        }
    }
    let mut cells: Vec<Vec<String>> =
        vec![columns.iter().map(|(heading, _)| (*heading).to_owned()).collect()];
    cells.extend(lines.iter().map(|line| columns.iter().map(|(_, of)| of(line)).collect()));
    let width = |at: usize| {
        cells
            .iter()
            .filter_map(|row| row.get(at))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let mut out = String::new();
    for row in &cells {
        let mut text = String::new();
        for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
            // Names to the left, figures to the right.
            let _ = match at {
                0 => write!(text, "{cell:width$}"),
                1 | 2 => write!(text, "  {cell:width$}"),
                _ => write!(text, "  {cell:>width$}"),
            };
        }
        out.push_str(text.trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::counters::Usage;
    use crate::run::{Measured, latencies};
    use crate::workload::{OpKind, Workload};

    fn run(name: &str, measured: &Measured, figures: &[(&str, f64)]) -> RunReport {
        let figures: BTreeMap<String, f64> =
            figures.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        RunReport::new("t", &Workload::of(name, OpKind::Get), measured, Usage::default(), figures)
    }

    #[test]
    fn the_table_has_a_line_for_each_workload_with_the_median_of_its_rounds() {
        let run = |name: &str, nanos: u64| {
            let mut reads = latencies();
            reads.record_n(nanos, 100).unwrap();
            let measured =
                Measured { ops: 100, rows_read: 100, seconds: 1.0, reads, ..Measured::nothing() };
            run(name, &measured, &[])
        };
        let runs = [run("a", 1000), run("b", 7000), run("a", 3000), run("a", 50_000)];
        let text = table(&runs);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines[1].starts_with("a ") && lines[1].contains(" 3.00 "), "{text}");
        assert!(lines[2].starts_with("b ") && lines[2].contains(" 7.00 "), "{text}");
    }

    #[test]
    fn what_cache_and_filters_did_is_told_by_kind() {
        let measured = Measured { ops: 100, seconds: 1.0, ..Measured::nothing() };
        let figures = [
            ("data_hits", 30.0),
            ("data_misses", 70.0),
            ("index_hits", 95.0),
            ("index_misses", 5.0),
            ("filter_lookups", 250.0),
            ("filter_probes", 200.0),
            ("filter_negatives", 98.0),
            ("filter_false_positives", 2.0),
            ("cache_bytes", 3_145_728.0),
        ];
        let text = cache_table(&[run("a", &measured, &figures), run("b", &measured, &[])]);
        let lines: Vec<Vec<&str>> = text.lines().map(|l| l.split_whitespace().collect()).collect();
        let expected =
            ["a", "t", "2x16", "30.0", "95.0", "-", "2.50", "80.0", "49.0", "2.00", "3.00", "-"];
        assert_eq!(lines[1], expected, "{text}");
        assert_eq!(lines[2][3..], ["-"; 9], "{text}");
    }
}
