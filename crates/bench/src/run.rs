//! A run under way: who does which operation, and how long each took.
//!
//! ```text
//! Run ──► Lane 0: operations 0, n, 2n ...      one lane a thread, n lanes
//!     ──► Lane 1: operations 1, n+1, 2n+1 ...  each with histograms of its own
//!     ◄── merged when a lane is dropped ──► Measured
//! ```
//!
//! In an open loop ([`Workload::rate`]) operation n is due n / rate after the start, and its latency counts from
//! then, whenever it was begun: where a store falls behind, the wait of the operations that it kept from being
//! sent is in the figures. (A loop that only counts from when it got to send would leave that out.)

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use hdrhistogram::Histogram;

use crate::clock::Timer;
use crate::dataset::{Dataset, Depth};
use crate::error::{Error, Result};
use crate::progress::{Bar, Progress};
use crate::tenths::Tenths;
use crate::timeline::{Interval, LaneTimeline, Timeline};
use crate::workload::{Inserted, Limit, Op, Ops, VERIFY_SAMPLE_OPS, Verify, Workload};

/// The longest latency that is told from longer ones, in nanoseconds: ten minutes.
pub(crate) const LATENCY_NANOS_MAX: u64 = 600_000_000_000;
/// Significant digits of a latency: 3 keep every figure within 0.1 % in some 200 KB a lane.
const LATENCY_DIGITS: u8 = 3;
/// A scan may end early where fewer rows are to be expected from its start on than these and twice as many as it asks for. How many
/// there are varies by the root of their number: beyond this, fewer than were asked for are there less than once in 10^24 scans.
const SCAN_END_ROWS: u64 = 64;
/// Operations between two moves of the progress bar.
const BAR_OPS: u64 = 256;

/// A histogram of nanoseconds.
pub type Latencies = Histogram<u64>;

/// An empty histogram of nanoseconds.
pub fn latencies() -> Latencies {
    Histogram::new_with_bounds(1, LATENCY_NANOS_MAX, LATENCY_DIGITS)
        .expect("the bounds are constants")
}

/// A run under way.
#[derive(Debug)]
pub struct Run<'a> {
    dataset: &'a Dataset,
    workload: &'a Workload,
    progress: &'a Progress,
    ops: Ops,
    timer: Timer,
    /// When the first lane began, in the timer's nanoseconds.
    started: OnceLock<u64>,
    bar: Bar,
    aborted: AtomicBool,
    timeline: Option<Timeline>,
    measured: Mutex<Measured>,
}

/// What a run came to.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Operations of all kinds.
    pub ops: u64,
    /// Rows that were read.
    pub rows_read: u64,
    /// Bytes of the values that were read.
    pub value_bytes_read: u64,
    /// Rows that were written.
    pub rows_written: u64,
    /// From the first operation's start to the last one's end; of a run by the clock at least its whole time, unless it was
    /// interrupted, so that a store which stops for good has the time in which it did nothing.
    pub seconds: f64,
    /// Latencies of reads, in nanoseconds.
    pub reads: Latencies,
    /// Latencies of writes, in nanoseconds.
    pub writes: Latencies,
    /// Operations of an open loop that were due and never begun, since too many others were under way.
    pub unsent: u64,
    /// Operations that were begun, and not waited for any longer after the run's time: they are in no latency.
    pub given_up: u64,
    /// Operations that the store refused and that were not made again: they are in no latency.
    pub refused: u64,
    /// Rows that were inserted, or given to inserts that did not end.
    pub inserts: u64,
    /// The same of all runs until then, for the next one to go on from.
    pub inserted: Inserted,
    /// The first and the last tenth of the operations, where their number was given.
    pub tenths: Option<Tenths>,
    /// What was done when, where that was asked for.
    pub timeline: Vec<Interval>,
    /// The longest time without the end of a write, start and end of the run included, where a timeline was asked
    /// for and there were writes.
    pub write_gap_nanos: Option<u64>,
    /// It was stopped before its limit.
    pub interrupted: bool,
}

impl Measured {
    /// Before the first operation.
    pub(crate) fn nothing() -> Self {
        Self {
            ops: 0,
            rows_read: 0,
            value_bytes_read: 0,
            rows_written: 0,
            seconds: 0.0,
            reads: latencies(),
            writes: latencies(),
            unsent: 0,
            given_up: 0,
            refused: 0,
            inserts: 0,
            inserted: Inserted::default(),
            tenths: None,
            timeline: Vec::new(),
            write_gap_nanos: None,
            interrupted: false,
        }
    }
}

/// An operation that was handed out.
#[derive(Debug)]
pub struct Ticket {
    /// What to do.
    pub op: Op,
    /// How far to compare what is read.
    pub depth: Depth,
    number: u64,
    start_nanos: u64,
}

impl Ticket {
    /// When the operation is due, in nanoseconds of the run: later than now in an open loop that is on time.
    pub fn due_nanos(&self) -> u64 {
        self.start_nanos
    }
}

/// What an operation found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Found {
    /// Rows.
    pub rows: u64,
    /// Bytes of their values.
    pub value_bytes: u64,
}

impl<'a> Run<'a> {
    /// A run that has not begun.
    pub fn new(
        dataset: &'a Dataset,
        workload: &'a Workload,
        progress: &'a Progress,
    ) -> Result<Self> {
        let total = match workload.limit {
            Limit::Ops(ops) => Some(ops),
            Limit::Seconds(_) => None,
        };
        Ok(Self {
            dataset,
            workload,
            progress,
            ops: Ops::new(dataset, workload)?,
            timer: Timer::start(),
            started: OnceLock::new(),
            bar: progress.bar(&workload.name, "operations", total),
            aborted: AtomicBool::new(false),
            timeline: None,
            measured: Mutex::new(Measured::nothing()),
        })
    }

    /// Also takes what was done in each interval of so many seconds.
    #[must_use]
    pub fn over_time(mut self, interval_seconds: f64) -> Self {
        self.timeline = Some(Timeline::new(interval_seconds));
        self
    }

    /// The rows.
    pub fn dataset(&self) -> &'a Dataset {
        self.dataset
    }

    /// What is run.
    pub fn workload(&self) -> &'a Workload {
        self.workload
    }

    /// Lane `index` of `lanes`: every operation is in exactly one of them. Call it on the lane's own thread,
    /// when that is ready to go.
    pub fn lane(&self, index: usize, lanes: usize) -> Lane<'_> {
        let started = *self.started.get_or_init(|| self.timer.nanos());
        let (end, deadline_nanos) = match self.workload.limit {
            Limit::Ops(ops) => (ops, u64::MAX),
            Limit::Seconds(seconds) => (u64::MAX, started.saturating_add((seconds * 1e9) as u64)),
        };
        Lane {
            run: self,
            next: index as u64,
            stride: lanes.max(1) as u64,
            end,
            deadline_nanos,
            first_nanos: started,
            last_nanos: started,
            ops: 0,
            found: Found::default(),
            written: 0,
            given_up: 0,
            refused: 0,
            interrupted: false,
            late_from: None,
            tenths: Tenths::of(self.workload.limit),
            timeline: self.timeline.as_ref().map(|timeline| timeline.lane(started)),
            reads: latencies(),
            writes: latencies(),
        }
    }

    /// Runs `work` on `threads` threads, each with a lane of its own. The first error ends the others.
    pub fn on_threads<F>(&self, threads: usize, work: F) -> Result<()>
    where
        F: Fn(usize, Lane<'_>) -> Result<()> + Sync,
    {
        let threads = threads.max(1);
        let work = |index: usize| {
            let result = work(index, self.lane(index, threads));
            if result.is_err() {
                self.abort();
            }
            result
        };
        let work = &work;
        std::thread::scope(|scope| {
            let others: Vec<_> =
                (1..threads).map(|index| scope.spawn(move || work(index))).collect();
            let first = work(0);
            others.into_iter().fold(first, |result, thread| {
                let ended =
                    thread.join().unwrap_or_else(|_| Err(Error::failed("a thread panicked")));
                result.and(ended)
            })
        })
    }

    /// Ends all lanes soon: one of them failed.
    pub fn abort(&self) {
        self.aborted.store(true, Ordering::Relaxed);
    }

    /// What it came to. All lanes are gone.
    pub fn finish(self) -> Measured {
        let mut measured = self.measured.into_inner().unwrap_or_else(PoisonError::into_inner);
        measured.inserted = self.ops.inserted_until_now();
        measured.inserts = measured.inserted.given.saturating_sub(self.workload.inserted.given);
        if let Limit::Seconds(seconds) = self.workload.limit
            && !measured.interrupted
        {
            measured.seconds = measured.seconds.max(seconds);
        }
        if let Some(timeline) = self.timeline {
            let started = self.started.get().copied().unwrap_or(0);
            let ended = started.saturating_add((measured.seconds * 1e9) as u64);
            if measured.rows_written > 0 {
                measured.write_gap_nanos = Some(timeline.write_gap_nanos(started, ended));
            }
            measured.timeline = timeline.into_intervals(measured.seconds);
        }
        measured
    }
}

/// One thread's share of a run.
#[derive(Debug)]
pub struct Lane<'a> {
    run: &'a Run<'a>,
    next: u64,
    stride: u64,
    end: u64,
    deadline_nanos: u64,
    first_nanos: u64,
    last_nanos: u64,
    ops: u64,
    found: Found,
    written: u64,
    given_up: u64,
    refused: u64,
    interrupted: bool,
    /// In an open loop: the number of the operation that was due next when time was up.
    late_from: Option<u64>,
    tenths: Option<Tenths>,
    timeline: Option<LaneTimeline<'a>>,
    reads: Latencies,
    writes: Latencies,
}

impl<'a> Lane<'a> {
    /// The rows.
    pub fn dataset(&self) -> &'a Dataset {
        self.run.dataset
    }

    /// Nanoseconds of the run now.
    pub fn now_nanos(&self) -> u64 {
        self.run.timer.nanos()
    }

    /// Whether the run was stopped, or its time is up: what is under way may be given up soon.
    pub fn is_over(&self) -> bool {
        self.run.progress.stopped()
            || self.run.aborted.load(Ordering::Relaxed)
            || self.run.timer.nanos() >= self.deadline_nanos
    }

    /// The next operation, whose time runs from when it is [due](Ticket::due_nanos): now, or in an open loop when
    /// its turn is. None when the run is over.
    #[inline]
    pub fn begin(&mut self) -> Option<Ticket> {
        if self.next >= self.end {
            return None;
        }
        if self.run.progress.stopped() || self.run.aborted.load(Ordering::Relaxed) {
            self.interrupted = true;
            return None;
        }
        let number = self.next;
        let now = self.run.timer.nanos();
        let start_nanos = match self.run.workload.rate {
            None => now,
            Some(rate) => self.first_nanos.saturating_add((number as f64 * 1e9 / rate) as u64),
        };
        if now >= self.deadline_nanos {
            if start_nanos < self.deadline_nanos {
                self.late_from = Some(number);
            }
            return None;
        }
        if start_nanos >= self.deadline_nanos {
            return None;
        }
        let op = self.run.ops.op(number);
        self.next = number.saturating_add(self.stride);
        let full =
            self.run.workload.verify == Verify::All || self.ops.is_multiple_of(VERIFY_SAMPLE_OPS);
        let depth = if full { Depth::Full } else { Depth::Quick };
        Some(Ticket { op, depth, number, start_nanos })
    }

    /// Reports an operation as done; the time now, in nanoseconds of the run. `Mismatch` where it found another
    /// number of rows than it must have.
    #[inline]
    pub fn end(&mut self, ticket: &Ticket, found: Found) -> Result<u64> {
        let now = self.run.timer.nanos();
        let nanos = now.saturating_sub(ticket.start_nanos);
        self.last_nanos = now;
        let is_write = ticket.op.writes();
        if is_write {
            self.writes.saturating_record(nanos);
            self.written += 1;
            if let Op::Insert { row } = ticket.op {
                self.run.ops.inserted(row);
            }
        } else {
            self.reads.saturating_record(nanos);
        }
        check_rows(self.run.dataset, &ticket.op, found.rows)?;
        if let Some(tenths) = &mut self.tenths {
            tenths.record(ticket.number, is_write, nanos);
        }
        if let Some(timeline) = &mut self.timeline {
            timeline.record(is_write, now, nanos);
        }
        self.found.rows += found.rows;
        self.found.value_bytes += found.value_bytes;
        self.ops += 1;
        if self.ops.is_multiple_of(BAR_OPS) {
            self.run.bar.add(BAR_OPS);
        }
        Ok(now)
    }

    /// Reports an operation that the store refused, and that is not made again.
    pub fn refuse(&mut self) {
        self.last_nanos = self.run.timer.nanos();
        self.refused += 1;
    }

    /// Reports operations that were begun and are not waited for any longer.
    pub fn give_up(&mut self, operations: u64) {
        // Until now nothing came of them, so until now the run went on.
        self.last_nanos = self.run.timer.nanos();
        self.given_up += operations;
    }
}

fn check_rows(dataset: &Dataset, op: &Op, rows: u64) -> Result<()> {
    let right = match op {
        Op::Get { .. }
        | Op::GetFamily { .. }
        | Op::GetRow { .. }
        | Op::GetColumns { .. }
        | Op::ReadUpdate { .. } => rows == 1,
        Op::GetAbsent { .. } | Op::GetAbsentRow { .. } | Op::GetLackedFamily { .. } => rows == 0,
        Op::MultiGet { rows: asked } => rows == asked.len() as u64,
        // Fewer where the table ends; the row that it starts from is always there.
        Op::Scan { row, rows: asked, reverse } => {
            let asked = u64::from(*asked);
            let near_end = || dataset.rows_from(*row, *reverse) < 2 * asked + SCAN_END_ROWS;
            rows == asked || ((1..asked).contains(&rows) && near_end())
        }
        Op::Put { .. } | Op::MultiPut { .. } | Op::Update { .. } | Op::Insert { .. } => true,
        Op::Increment { .. } => true,
    };
    if right { Ok(()) } else { Err(Error::mismatch(format!("{op:?} found {rows} rows"))) }
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        let started = self.run.started.get().copied().unwrap_or(0);
        let mut measured = self.run.measured.lock().unwrap_or_else(PoisonError::into_inner);
        measured.ops += self.ops;
        measured.rows_read += self.found.rows;
        measured.value_bytes_read += self.found.value_bytes;
        measured.rows_written += self.written;
        measured.given_up += self.given_up;
        measured.refused += self.refused;
        measured.interrupted |= self.interrupted;
        if let (Some(from), Some(rate)) = (self.late_from, self.run.workload.rate) {
            // Those of this lane's numbers that were due before the end.
            let due = self.deadline_nanos.saturating_sub(self.first_nanos) as f64 / 1e9 * rate;
            measured.unsent += (due as u64).saturating_sub(from).div_ceil(self.stride);
        }
        let seconds = self.last_nanos.saturating_sub(started) as f64 / 1e9;
        measured.seconds = measured.seconds.max(seconds);
        // The bounds are the same, so nothing is lost.
        let _ = measured.reads.add(&self.reads);
        let _ = measured.writes.add(&self.writes);
        if let Some(tenths) = self.tenths.take() {
            match &mut measured.tenths {
                Some(all) => all.add(&tenths),
                none => *none = Some(tenths),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::workload::{Distribution, OpKind, Share};

    fn dataset() -> Dataset {
        Dataset { rows: 1000, key_bytes: 50, columns: 1, value_bytes: 10, seed: 1 }
    }

    fn run_all(workload: &Workload, threads: usize) -> (BTreeSet<u64>, Measured) {
        let (dataset, progress) = (dataset(), Progress::hidden());
        let run = Run::new(&dataset, workload, &progress).unwrap();
        let seen = Mutex::new(BTreeSet::new());
        run.on_threads(threads, |_, mut lane| {
            while let Some(ticket) = lane.begin() {
                let Op::Get { row } = ticket.op else { panic!("{ticket:?}") };
                assert!(seen.lock().unwrap().insert(row), "row {row} twice");
                lane.end(&ticket, Found { rows: 1, value_bytes: 10 })?;
            }
            Ok(())
        })
        .unwrap();
        (seen.into_inner().unwrap(), run.finish())
    }

    #[test]
    fn any_number_of_threads_does_every_operation_once() {
        for threads in [1, 3, 8] {
            let workload = Workload {
                distribution: Distribution::Sequential,
                limit: Limit::Ops(1000),
                ..Workload::of("w", OpKind::Get)
            };
            let (seen, measured) = run_all(&workload, threads);
            assert_eq!(seen.len(), 1000);
            assert_eq!(
                (measured.ops, measured.reads.len(), measured.rows_read),
                (1000, 1000, 1000)
            );
            assert_eq!((measured.value_bytes_read, measured.writes.len()), (10_000, 0));
            assert!(measured.seconds > 0.0 && !measured.interrupted);
        }
    }

    #[test]
    fn the_first_error_ends_all_threads_and_is_the_result() {
        let (dataset, progress) = (dataset(), Progress::hidden());
        let workload = Workload { limit: Limit::Seconds(3600.0), ..Workload::of("w", OpKind::Get) };
        let run = Run::new(&dataset, &workload, &progress).unwrap();
        let result = run.on_threads(3, |index, mut lane| {
            while let Some(ticket) = lane.begin() {
                lane.end(&ticket, Found { rows: u64::from(index != 1), value_bytes: 0 })?;
            }
            Ok(())
        });
        assert_eq!(result.unwrap_err().kind(), crate::ErrorKind::Mismatch);
    }

    #[test]
    fn reads_and_writes_have_latencies_of_their_own() {
        let mix =
            vec![Share { kind: OpKind::Get, weight: 1 }, Share { kind: OpKind::Put, weight: 1 }];
        let workload = Workload { mix, limit: Limit::Ops(1000), ..Workload::of("w", OpKind::Get) };
        let (dataset, progress) = (dataset(), Progress::hidden());
        let run = Run::new(&dataset, &workload, &progress).unwrap();
        run.on_threads(1, |_, mut lane| {
            while let Some(ticket) = lane.begin() {
                let rows = u64::from(!matches!(ticket.op, Op::Put { .. }));
                lane.end(&ticket, Found { rows, value_bytes: 0 })?;
            }
            Ok(())
        })
        .unwrap();
        let measured = run.finish();
        assert!(measured.reads.len() > 400 && measured.writes.len() > 400);
        assert_eq!(measured.reads.len() + measured.writes.len(), 1000);
        assert_eq!(measured.rows_written, measured.writes.len());
    }

    #[test]
    fn an_open_loop_counts_from_when_an_operation_was_due_and_what_it_could_not_send() {
        let workload = Workload {
            rate: Some(1e6),
            limit: Limit::Seconds(0.02),
            ..Workload::of("w", OpKind::Get)
        };
        let (dataset, progress) = (dataset(), Progress::hidden());
        let run = Run::new(&dataset, &workload, &progress).unwrap().over_time(0.01);
        let mut lane = run.lane(0, 1);
        let (first, second) = (lane.begin().unwrap(), lane.begin().unwrap());
        assert_eq!(second.due_nanos() - first.due_nanos(), 1000);
        // The store keeps everything waiting: whatever the second one's own time was, it waited too.
        while lane.now_nanos() < first.due_nanos() + 15_000_000 {}
        for ticket in [first, second] {
            lane.end(&ticket, Found { rows: 1, value_bytes: 0 }).unwrap();
        }
        while !lane.is_over() {}
        assert!(lane.begin().is_none());
        drop(lane);
        let measured = run.finish();
        assert_eq!(measured.ops, 2);
        assert!(measured.reads.min() > 14_000_000, "{}", measured.reads.min());
        assert_eq!(measured.unsent, 20_000 - 2);
        let counts: Vec<u64> = measured.timeline.iter().map(|i| i.reads.len()).collect();
        assert_eq!(counts.iter().sum::<u64>(), 2, "{counts:?}");
        assert_eq!(measured.write_gap_nanos, None);
    }

    #[test]
    fn a_store_that_stops_for_good_has_the_rest_of_the_time_against_it() {
        let seconds = 0.05;
        let workload =
            Workload { limit: Limit::Seconds(seconds), ..Workload::of("w", OpKind::Put) };
        let (dataset, progress) = (dataset(), Progress::hidden());
        let run = Run::new(&dataset, &workload, &progress).unwrap().over_time(0.01);
        let mut lane = run.lane(0, 1);
        let ticket = lane.begin().unwrap();
        let ended = lane.end(&ticket, Found::default()).unwrap();
        let started = lane.first_nanos;
        while !lane.is_over() {}
        drop(lane);
        let measured = run.finish();
        assert!(measured.seconds >= seconds, "{}", measured.seconds);
        let gap = measured.write_gap_nanos.unwrap();
        assert!(gap >= 50_000_000 - (ended - started), "{gap}");
        assert_eq!((measured.ops, measured.given_up), (1, 0));
        assert_eq!(measured.timeline.len(), 5);
    }

    #[test]
    fn a_run_that_was_interrupted_ends_with_its_last_operation() {
        let workload = Workload { limit: Limit::Seconds(3600.0), ..Workload::of("w", OpKind::Put) };
        let (dataset, progress) = (dataset(), Progress::hidden());
        let run = Run::new(&dataset, &workload, &progress).unwrap();
        let mut lane = run.lane(0, 1);
        let ticket = lane.begin().unwrap();
        lane.end(&ticket, Found::default()).unwrap();
        progress.stop();
        assert!(lane.begin().is_none());
        drop(lane);
        let measured = run.finish();
        assert!(measured.interrupted && measured.seconds < 3600.0, "{}", measured.seconds);
    }

    #[test]
    fn a_read_with_another_number_of_rows_is_a_mismatch() {
        let rows = Box::from([1, 2, 3]);
        for (op, right, wrong) in [
            (Op::Get { row: 1 }, 1, 0),
            (Op::GetAbsent { row: 1 }, 0, 1),
            (Op::MultiGet { rows }, 3, 2),
            (Op::Scan { row: 1, rows: 1000, reverse: false }, 4, 0),
            (Op::Scan { row: 1, rows: 10, reverse: false }, 10, 11),
        ] {
            assert!(check_rows(&dataset(), &op, right).is_ok(), "{op:?}");
            assert!(check_rows(&dataset(), &op, wrong).is_err(), "{op:?}");
        }
    }

    #[test]
    fn a_scan_may_show_too_few_rows_only_near_the_end_of_its_direction() {
        let dataset = dataset();
        let mut sorted: Vec<u64> = (0..dataset.rows).collect();
        sorted.sort_by_key(|row| dataset.key(*row));
        let short = |at: usize, reverse| {
            let op = Op::Scan { row: sorted[at], rows: 100, reverse };
            check_rows(&dataset, &op, 50).is_ok()
        };
        assert!(!short(0, false) && !short(500, false) && short(950, false));
        assert!(!short(999, true) && !short(500, true) && short(49, true));
    }

    #[test]
    fn one_operation_in_many_is_compared_in_full_unless_all_are_to_be() {
        for (verify, full) in
            [(Verify::Sample, 1000_u64.div_ceil(VERIFY_SAMPLE_OPS)), (Verify::All, 1000)]
        {
            let workload =
                Workload { verify, limit: Limit::Ops(1000), ..Workload::of("w", OpKind::Get) };
            let (dataset, progress) = (dataset(), Progress::hidden());
            let run = Run::new(&dataset, &workload, &progress).unwrap();
            let mut lane = run.lane(0, 1);
            let mut count = 0;
            while let Some(ticket) = lane.begin() {
                count += u64::from(ticket.depth == Depth::Full);
                lane.end(&ticket, Found { rows: 1, value_bytes: 0 }).unwrap();
            }
            assert_eq!(count, full);
        }
    }
}
