//! The bars: a line each, and the same as JSON and as a table for `docs/benchmarks.md`.

use std::fmt::Write as _;

use serde::Serialize;

pub use tepui_bench::bars::{Bar, Line};
use tepui_bench::bars::{Verdicts, escape, number};
use tepui_bench::quiet;

use crate::sample::{Pick, Series};

/// Everything that a run of the program found.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The bars, and what they were measured on.
    #[serde(flatten)]
    pub verdicts: Verdicts,
    /// Every contest, with every round.
    pub series: Vec<Series>,
}

impl Report {
    /// How many bars are short, and what the host took.
    pub fn summary(&self) -> String {
        let samples = self.series.iter().flat_map(|series| &series.samples);
        let shares = samples.map(|sample| sample.stolen_share);
        format!("{}\n{}", quiet::summary(shares), self.verdicts.summary())
    }

    /// Every contest, for a terminal: the medians over the rounds.
    pub fn table(&self) -> String {
        let mut text = format!(
            "{:<52} {:<34} {:>10} {:>9} {:>9} {:>7} {:>9} {:>8}\n",
            "workload", "store", "per second", "p50 us", "p99 us", "reads", "bytes", "CPU us"
        );
        for series in &self.series {
            let [rate, p50, p99, reads, bytes, cpu] = medians(series);
            let _ = writeln!(
                text,
                "{:<52} {:<34} {rate:>10} {p50:>9} {p99:>9} {reads:>7} {bytes:>9} {cpu:>8}",
                series.workload, series.store,
            );
        }
        text
    }

    /// The tables of `docs/benchmarks.md`.
    pub fn markdown(&self) -> String {
        let mut text = self.verdicts.markdown();
        text.push_str(
            "\n| workload | store | per second | p50 | p99 | disk reads | disk bytes | CPU |\n\
             | --- | --- | --- | --- | --- | --- | --- | --- |\n",
        );
        for series in &self.series {
            let [rate, p50, p99, reads, bytes, cpu] = medians(series);
            let _ = writeln!(
                text,
                "| {} | {} | {rate} | {p50} us | {p99} us | {reads} | {bytes} | {cpu} us |",
                escape(&series.workload),
                escape(&series.store),
            );
        }
        text
    }
}

/// Rate, p50, p99, reads, bytes and processor time of a contest, each the median over the rounds.
fn medians(series: &Series) -> [String; 6] {
    let picks: [Pick; 6] = [
        |s| s.per_second,
        |s| s.p50_us,
        |s| s.p99_us,
        |s| s.disk_reads,
        |s| s.disk_bytes,
        |s| s.cpu_us,
    ];
    picks.map(|pick| number(series.spread(pick).median))
}

#[cfg(test)]
mod tests {
    use tepui_bench::bars::Spread;
    use tepui_bench::counters::Machine;

    use super::*;

    fn line(figure: f64, bar: Bar) -> Line {
        Line::new("group", "name", Spread::exact(figure), bar)
    }

    #[test]
    fn the_summary_counts_only_what_has_a_bar() {
        let machine = Machine::here(std::path::Path::new("."));
        let lines = vec![line(2.0, Bar::AtMost(1.0)), line(2.0, Bar::Published)];
        let verdicts = Verdicts { machine, settings: Vec::new(), lines };
        let report = Report { verdicts, series: Vec::new() };
        assert_eq!(report.verdicts.summary(), "1 of 1 bars are short");
        assert!(report.markdown().contains("| name | 2.00 | at most 1.00 | short |"));
    }
}
