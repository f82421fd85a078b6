//! The bars: a line each, and the same as JSON and as a table for `docs/benchmarks.md`.

use std::fmt::Write as _;

use serde::Serialize;

use tepui_bench::bars::number;
pub use tepui_bench::bars::{Bar, Line, Verdict};
use tepui_bench::counters::Machine;

use crate::sample::{Pick, Series};

/// Everything that a run of the program found.
#[derive(Debug, Serialize)]
pub struct Report {
    /// What it ran on.
    pub machine: Machine,
    /// What was compared, and its settings.
    pub settings: Vec<(String, String)>,
    /// The bars.
    pub lines: Vec<Line>,
    /// Every contest, with every round.
    pub series: Vec<Series>,
}

impl Report {
    /// Bars that are not met.
    pub fn short(&self) -> usize {
        self.lines.iter().filter(|line| line.verdict == Verdict::Short).count()
    }

    fn machine_line(&self) -> String {
        let m = &self.machine;
        format!(
            "{} x{}, {:.0} GiB, Linux {}, disk {}",
            m.cpu,
            m.cores,
            m.memory_bytes as f64 / f64::from(1 << 30),
            m.kernel,
            m.device.as_deref().unwrap_or("unknown"),
        )
    }

    /// Machine and settings, for a terminal.
    pub fn heading(&self) -> String {
        let mut text = format!("machine: {}\n", self.machine_line());
        for (what, how) in &self.settings {
            let _ = writeln!(text, "{what}: {how}");
        }
        text
    }

    /// The last line for a terminal.
    pub fn summary(&self) -> String {
        let judged = self.lines.iter().filter(|line| line.verdict != Verdict::Published).count();
        match self.short() {
            0 => format!("all {judged} bars are met"),
            short => format!("{short} of {judged} bars are short"),
        }
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
        let mut text = format!("Machine: {}.\n\n", self.machine_line());
        for (what, how) in &self.settings {
            let _ = writeln!(text, "- {what}: {how}");
        }
        text.push_str(
            "\n| what | figure (range over the rounds) | bar | |\n| --- | --- | --- | --- |\n",
        );
        for line in &self.lines {
            let cells = [&line.name, &line.figure_text(), &line.bar_text()].map(|c| escape(c));
            let _ = writeln!(text, "| {} | {} |", cells.join(" | "), line.verdict_text());
        }
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

/// A `|` would end a table's cell.
fn escape(text: &str) -> String {
    text.replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use tepui_bench::bars::Spread;

    use super::*;

    fn line(figure: f64, bar: Bar) -> Line {
        Line::new("group", "name", Spread::exact(figure), bar)
    }

    #[test]
    fn the_summary_counts_only_what_has_a_bar() {
        let machine = Machine::here(std::path::Path::new("."));
        let lines = vec![line(2.0, Bar::AtMost(1.0)), line(2.0, Bar::Published)];
        let report = Report { machine, settings: Vec::new(), lines, series: Vec::new() };
        assert_eq!(report.summary(), "1 of 1 bars are short");
        assert!(report.markdown().contains("| name | 2.00 | at most 1.00 | short |"));
    }
}
