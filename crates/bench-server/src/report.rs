//! The lines and runs of a whole program, for a terminal, as JSON, and as tables for `docs/benchmarks.md`.

use std::fmt::Write as _;

use serde::Serialize;
use tepui_bench::bars::{Verdicts, number};
use tepui_bench::report::RunReport;

/// Everything that a run of the program found.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The bars, and what they were measured on.
    #[serde(flatten)]
    pub verdicts: Verdicts,
    /// Every run.
    pub runs: Vec<RunReport>,
}

impl Report {
    /// The tables of `docs/benchmarks.md`.
    pub fn markdown(&self) -> String {
        let mut text = self.verdicts.markdown();
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
    use tepui_bench::bars::{Bar, Line, Spread};
    use tepui_bench::counters::Machine;

    use super::*;

    #[test]
    fn the_summary_counts_only_what_has_a_bar() {
        let line = |bar| Line::new("group", "a | b", Spread::exact(2.0), bar);
        let lines = vec![line(Bar::AtMost(1.0)), line(Bar::Published), line(Bar::AtLeast(1.0))];
        let machine = Machine::here(std::path::Path::new("."));
        let verdicts = Verdicts { machine, settings: Vec::new(), lines };
        let report = Report { verdicts, runs: Vec::new() };
        assert_eq!(report.verdicts.summary(), "1 of 2 bars are short");
        assert!(report.markdown().contains("| a \\| b | 2.00 | at most 1.00 | short |"));
    }
}
