//! The lines and runs of a whole program, for a terminal, as JSON, and as tables for `docs/benchmarks.md`.

use std::fmt::Write as _;

use serde::Serialize;
use tepui_bench::bars::{Line, Verdict, number};
use tepui_bench::counters::Machine;
use tepui_bench::report::RunReport;

/// Everything that a run of the program found.
#[derive(Debug, Serialize)]
pub struct Report {
    /// What it ran on.
    pub machine: Machine,
    /// Its settings.
    pub settings: Vec<(String, String)>,
    /// The bars.
    pub lines: Vec<Line>,
    /// Every run.
    pub runs: Vec<RunReport>,
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
            let cells = [&line.name, &line.figure_text(), &line.bar_text()];
            let cells = cells.map(|cell| cell.replace('|', "\\|"));
            let _ = writeln!(text, "| {} | {} |", cells.join(" | "), line.verdict_text());
        }
        text.push_str(
            "\n| workload | server | per second | read p50 | p95 | p99 | write p50 | p99 |\n\
             | --- | --- | --- | --- | --- | --- | --- | --- |\n",
        );
        for run in &self.runs {
            let reads = &run.latency_micros;
            let writes = run.write_latency_micros.unwrap_or_default();
            let figures =
                [run.ops_per_second, reads.p50, reads.p95, reads.p99, writes.p50, writes.p99];
            let cells = figures.map(number).join(" | ");
            let _ = writeln!(text, "| {} | {} | {cells} |", run.workload.name, run.store);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use tepui_bench::bars::{Bar, Spread};

    use super::*;

    #[test]
    fn the_summary_counts_only_what_has_a_bar() {
        let line = |bar| Line::new("group", "a | b", Spread::exact(2.0), bar);
        let lines = vec![line(Bar::AtMost(1.0)), line(Bar::Published), line(Bar::AtLeast(1.0))];
        let machine = Machine::here(std::path::Path::new("."));
        let report = Report { machine, settings: Vec::new(), lines, runs: Vec::new() };
        assert_eq!(report.summary(), "1 of 2 bars are short");
        assert!(report.markdown().contains("| a \\| b | 2.00 | at most 1.00 | short |"));
    }
}
