//! YCSB on several servers in turns: what is run, the lines that come of it, and the report of all runs.
//!
//! ```text
//! for each workload
//!     round 1:  A  B  C      every entrant once a round, so that what disturbs the machine disturbs all;
//!     round 2:  C  B  A      while one has its turn the others are held, where they are processes, or have settled; a
//!                            turn of which the host took much is had again
//!     lines:    A over B, A over C, round by round
//! ```

use std::fmt::Write as _;

use serde::Serialize;

use crate::bars::{Bar, Line, Spread, Verdicts, number};
use crate::child::Child;
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::files::Files;
use crate::network::SERVER_CPU_MICROS;
use crate::output;
use crate::progress::Progress;
use crate::quiet::{self, quietest};
use crate::report::{self, LatencyFigures, RunReport};
use crate::store::Store;
use crate::workload::{Distribution, Inserted, Limit, Workload};
use crate::ycsb;

/// Bytes of a key: what YCSB's have.
pub const KEY_BYTES: usize = 24;
/// A warm-up takes this part of a measured run.
const WARM_UP_PART: f64 = 0.5;
/// Our rate over a peer's, at least.
pub const RATE_MIN: f64 = 2.0;
/// Our p99 over a peer's, at most.
const P99_MAX: f64 = 1.0;

/// YCSB's rows: ten columns of 100 bytes.
pub fn rows_of_ten(rows: u64) -> Dataset {
    Dataset { rows, key_bytes: KEY_BYTES, columns: 10, value_bytes: 100, seed: 1 }
}

/// The workloads of a contest: YCSB A on a single row, then A, B, C, E and F as they are. (D is B on the latest rows.)
pub fn workloads() -> Result<Vec<Workload>> {
    let single = ycsb::by_name("a", Some(Distribution::Single))?;
    let mut all = vec![Workload { name: "YCSB A on one row".to_owned(), ..single }];
    for letter in ["a", "b", "c", "e", "f"] {
        let name = format!("YCSB {}", letter.to_uppercase());
        all.push(Workload { name, ..ycsb::by_name(letter, None)? });
    }
    Ok(all)
}

/// A server that takes part.
pub struct Entrant<'a> {
    store: &'a dyn Store,
    child: Option<&'a mut Child>,
    settle: Option<&'a dyn Fn() -> Result<()>>,
    /// What its runs have inserted.
    inserted: Inserted,
}

impl<'a> Entrant<'a> {
    /// A server that holds the rows; its process, where it has one of its own.
    pub fn new(store: &'a dyn Store, child: Option<&'a mut Child>) -> Self {
        Self { store, child, settle: None, inserted: Inserted::default() }
    }

    /// The same, where it cannot be held: after each of its turns this waits until it has nothing left to do.
    #[must_use]
    pub fn settled_by(self, settle: &'a dyn Fn() -> Result<()>) -> Self {
        Self { settle: Some(settle), ..self }
    }

    fn hold(&mut self) -> Result<()> {
        self.settle.map_or(Ok(()), |settle| settle())?;
        self.child.as_mut().map_or(Ok(()), |child| child.hold())
    }

    fn go_on(&mut self) -> Result<()> {
        self.child.as_mut().map_or(Ok(()), |child| child.go_on())
    }
}

/// What every entrant goes through.
pub struct Contest<'a> {
    /// The rows.
    pub dataset: &'a Dataset,
    /// Threads, operations in flight and time of a run.
    pub shape: Workload,
    /// Rounds of each workload.
    pub rounds: usize,
    /// For a person to see and to stop.
    pub progress: &'a Progress,
}

impl Contest<'_> {
    fn shaped(&self, workload: &Workload, seconds: f64) -> Workload {
        Workload {
            threads: self.shape.threads,
            in_flight: self.shape.in_flight,
            limit: Limit::Seconds(seconds),
            ..workload.clone()
        }
    }

    /// Runs every workload on every entrant for so long without measuring it: what a server gets used to by then, it has
    /// had the time for.
    pub fn warm_up_all(&self, entrants: &mut [Entrant<'_>], seconds: f64) -> Result<()> {
        for entrant in entrants {
            entrant.go_on()?;
            for workload in workloads()? {
                self.warm_up(entrant, &workload, seconds)?;
            }
            entrant.hold()?;
        }
        Ok(())
    }

    fn warm_up(&self, entrant: &mut Entrant<'_>, like: &Workload, seconds: f64) -> Result<()> {
        let workload = Workload { inserted: entrant.inserted, ..self.shaped(like, seconds) };
        let measured = report::warm_up(entrant.store, self.dataset, &workload, self.progress)?;
        entrant.inserted = measured.inserted;
        self.progress.check()
    }

    fn turn(
        &self,
        entrant: &mut Entrant<'_>,
        workload: &Workload,
        round: usize,
    ) -> Result<RunReport> {
        let seconds = match self.shape.limit {
            Limit::Seconds(seconds) => seconds,
            Limit::Ops(_) => return Err(Error::failed("a contest is run by the clock")),
        };
        let seed = workload.seed.wrapping_add(round as u64);
        let workload = Workload { seed, ..self.shaped(workload, seconds) };
        entrant.go_on()?;
        let quietest = quietest(
            self.progress,
            |run: &RunReport| run.stolen_share,
            |again| {
                let seed = workload.seed.wrapping_add(again);
                let workload = Workload { seed, ..workload.clone() };
                self.warm_up(entrant, &workload, seconds * WARM_UP_PART)?;
                let now = Workload { inserted: entrant.inserted, ..workload };
                let run = report::measure(entrant.store, self.dataset, &now, None, self.progress)?;
                entrant.inserted = run.inserted;
                Ok(run)
            },
        )?;
        let run = RunReport { round: round + 1, ..quietest };
        entrant.hold()?;
        self.progress.check()?;
        Ok(run)
    }

    /// All workloads on all entrants: says the lines of the first one over each of the others, and returns the runs.
    pub fn run(
        &self,
        group: &'static str,
        entrants: &mut [Entrant<'_>],
        say: &mut dyn FnMut(Line),
    ) -> Result<Vec<RunReport>> {
        let mut all = Vec::new();
        entrants.iter_mut().try_for_each(Entrant::hold)?;
        for workload in workloads()? {
            let mut runs: Vec<Vec<RunReport>> = vec![Vec::new(); entrants.len()];
            for round in 0..self.rounds {
                for (entrant, runs) in in_turn(entrants.iter_mut().zip(&mut runs), round) {
                    runs.push(self.turn(entrant, &workload, round)?);
                }
            }
            if let ([ours, peers @ ..], [_, entrants @ ..]) = (runs.as_slice(), &*entrants) {
                for (theirs, peer) in peers.iter().zip(entrants) {
                    let lines = lines(group, &workload.name, peer.store.name(), ours, theirs);
                    lines.into_iter().for_each(&mut *say);
                }
            }
            all.extend(runs.into_iter().flatten());
        }
        Ok(all)
    }
}

/// The longer one of two times; not a number where one of them is not.
pub fn slower(a: f64, b: f64) -> f64 {
    // `max` would take the other one.
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
}

/// The slower tail of reads and writes, in microseconds.
fn p99(run: &RunReport) -> f64 {
    let reads = run.latency_micros.p99;
    match run.write_latency_micros {
        Some(writes) => slower(reads, writes.p99),
        None => reads,
    }
}

/// The entrants of a round, in the order of their turns: back in every other one, so that none is always behind the same other.
pub fn in_turn<T>(entrants: impl Iterator<Item = T>, round: usize) -> Vec<T> {
    let mut turns: Vec<_> = entrants.collect();
    if round % 2 == 1 {
        turns.reverse();
    }
    turns
}

/// The lines of one workload: ours over a peer's, round by round.
fn lines(
    group: &'static str,
    workload: &str,
    peer: &str,
    ours: &[RunReport],
    theirs: &[RunReport],
) -> [Line; 2] {
    let over = |pick: fn(&RunReport) -> f64| {
        Spread::of(ours.iter().zip(theirs).map(|(a, b)| pick(a) / pick(b)))
    };
    let middle =
        |of: &[RunReport], pick: fn(&RunReport) -> f64| Spread::of(of.iter().map(pick)).median;
    let rate: fn(&RunReport) -> f64 = |run| run.ops_per_second;
    let mut rates =
        format!("{:.0} over {:.0} operations a second", middle(ours, rate), middle(theirs, rate));
    let cpu: fn(&RunReport) -> f64 =
        |run| run.figure(SERVER_CPU_MICROS).unwrap_or(f64::NAN) / run.ops.max(1) as f64;
    let used = [middle(ours, cpu), middle(theirs, cpu)];
    if let [ours, theirs] = used
        && ours.is_finite()
        && theirs.is_finite()
    {
        let _ = write!(rates, "; {ours:.0} over {theirs:.0} us of the server's processor each");
    }
    let tails = format!("{:.0} over {:.0} us", middle(ours, p99), middle(theirs, p99));
    // What a peer leaves out makes its own tail look better, not ours.
    let doubt = ours.iter().find_map(RunReport::left_out);
    let line = |what, figure, bar| {
        Line::new(group, format!("{workload} over {peer}: {what}"), figure, bar)
    };
    [
        line("rate", over(rate), Bar::AtLeast(RATE_MIN)).note(rates),
        line("p99", over(p99), Bar::AtMost(P99_MAX)).note(tails).unless(doubt),
    ]
}

/// Everything that a program found which measures servers.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The bars, and what they were measured on.
    #[serde(flatten)]
    pub verdicts: Verdicts,
    /// Every run.
    pub runs: Vec<RunReport>,
}

impl Report {
    /// How many bars are short, and what the host took.
    pub fn summary(&self) -> String {
        let shares = self.runs.iter().map(|run| run.stolen_share);
        format!("{}\n{}", quiet::summary(shares), self.verdicts.summary())
    }

    /// Shows what is to be shown and writes what there is, however the run ended; how many bars are short. An error where none was
    /// judged.
    pub fn end(mut self, measured: Result<()>, files: Files<'_>) -> Result<usize> {
        match &measured {
            Ok(()) => output::say(&self.summary()),
            Err(error) => self.verdicts.ended_early(error),
        }
        // A run that measured nothing leaves the files of another one alone.
        let nothing = measured.is_err() && self.verdicts.lines.is_empty() && self.runs.is_empty();
        let written = if nothing { Ok(()) } else { files.write(&self, &self.markdown()) };
        measured.and(written)?;
        if self.verdicts.judged() == 0 {
            return Err(Error::failed("no bar was judged"));
        }
        Ok(self.verdicts.short())
    }

    /// The tables of `docs/benchmarks.md`.
    pub fn markdown(&self) -> String {
        let mut text = self.verdicts.markdown();
        text.push_str(
            "\n| workload | server | per second | read p50 | p95 | p99 | write p50 | p99 |\n\
             | --- | --- | --- | --- | --- | --- | --- | --- |\n",
        );
        for run in &self.runs {
            let reads = &run.latency_micros;
            let writes = run.write_latency_micros.unwrap_or(LatencyFigures::NONE);
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
    use std::collections::BTreeMap;

    use super::*;
    use crate::bars::Verdict;
    use crate::counters::{Machine, Usage};
    use crate::run::Measured;
    use crate::workload::OpKind;

    fn run(rate: f64, read_p99: f64, write_p99: f64, cpu: Option<f64>) -> RunReport {
        let like = Workload::of("w", OpKind::Get);
        let tail = |p99| LatencyFigures { p99, ..LatencyFigures::NONE };
        RunReport {
            ops: 100,
            ops_per_second: rate,
            latency_micros: tail(read_p99),
            write_latency_micros: Some(tail(write_p99)),
            figures: cpu.map(|cpu| (SERVER_CPU_MICROS.to_owned(), cpu)).into_iter().collect(),
            ..RunReport::new("s", &like, &Measured::nothing(), Usage::default(), BTreeMap::new())
        }
    }

    #[test]
    fn a_contest_has_every_workload_of_the_bar() {
        let names: Vec<String> = workloads().unwrap().into_iter().map(|w| w.name).collect();
        let all = ["YCSB A on one row", "YCSB A", "YCSB B", "YCSB C", "YCSB E", "YCSB F"];
        assert_eq!(names, all);
    }

    #[test]
    fn ratios_are_taken_round_by_round_and_the_slower_tail_counts() {
        let ours = [run(300.0, 10.0, 40.0, Some(500.0)), run(100.0, 10.0, 20.0, Some(500.0))];
        let theirs = [run(100.0, 50.0, 10.0, Some(900.0)), run(50.0, 80.0, 10.0, Some(900.0))];
        let [rate, tail] = lines("g", "W", "P", &ours, &theirs);
        assert!((rate.figure.unwrap().median - 2.5).abs() < 1e-9);
        assert!((tail.figure.unwrap().median - 0.525).abs() < 1e-9);
        assert_eq!((rate.verdict, tail.verdict), (Verdict::Ok, Verdict::Ok));
        assert!(rate.note.contains("5 over 9 us"), "{}", rate.note);
        let [rate, tail] = lines("g", "W", "P", &theirs, &ours);
        assert_eq!((rate.verdict, tail.verdict), (Verdict::Short, Verdict::Short));
        let stopped = RunReport { given_up: 3, ..run(300.0, 1.0, 1.0, None) };
        let [_, tail] = lines("g", "W", "P", &[stopped], &theirs);
        assert_eq!(tail.verdict, Verdict::Short, "{}", tail.note);
        let without_reads = run(300.0, f64::NAN, 1.0, None);
        let [_, tail] = lines("g", "W", "P", &[without_reads], &theirs);
        assert_eq!(tail.verdict, Verdict::Short, "{}", tail.text());
        let silent = [run(1.0, 1.0, 1.0, None)];
        let [rate, _] = lines("g", "W", "P", &silent, &silent);
        assert!(!rate.note.contains("processor"), "{}", rate.note);
    }

    #[test]
    fn the_summary_counts_only_what_has_a_bar() {
        let line = |bar| Line::new("group", "a | b", Spread::exact(2.0), bar);
        let lines = vec![line(Bar::AtMost(1.0)), line(Bar::Published), line(Bar::AtLeast(1.0))];
        let machine = Machine::here(std::path::Path::new("."));
        let verdicts = Verdicts { machine, settings: Vec::new(), lines };
        let report = Report { verdicts, runs: Vec::new() };
        assert_eq!(report.verdicts.summary(), "1 of 2 bars are short");
        let mut some = report.verdicts.clone();
        let left_out = Line::missing("g", "the rest", Bar::Published, "no Go".to_owned());
        some.lines.push(left_out);
        assert_eq!(some.summary(), "1 of 2 bars are short; not measured: the rest");
        some.lines.retain(|line| line.bar == Bar::Published);
        assert_eq!(some.summary(), "no bar was judged; not measured: the rest");
        assert!(report.markdown().contains("| a \\| b | 2.00 | at most 1.00 | short |"));
    }
}
