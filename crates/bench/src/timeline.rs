//! What was done when: operations and latencies by intervals of a run, and the longest time without a write.
//!
//! ```text
//! lane 0  ├─ 0.1 s ─┼─ 0.1 s ─┤   each lane fills the interval that it is in, and hands it in when
//! lane 1  ├─ 0.1 s ─┼─ 0.1 s ─┤   the next one begins: one lock in an interval, not in an operation
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use hdrhistogram::Histogram;

use crate::run::Latencies;

/// Significant digits of an interval's latencies: two draw a line as well as three, in a tenth of the memory.
const DIGITS: u8 = 2;
/// The latencies of an interval that are told apart, in nanoseconds: a microsecond to a minute.
const NANOS_MIN: u64 = 1000;
const NANOS_MAX: u64 = 60_000_000_000;
/// Intervals of a run, at most; beyond them nothing is drawn. With two histograms each, 40 MB.
pub const INTERVALS_MAX: usize = 1000;

/// One interval of a run.
#[derive(Debug, Clone)]
pub struct Interval {
    /// When it began, in seconds of the run.
    pub from_seconds: f64,
    /// How long it was: the last one of a run may be cut short.
    pub seconds: f64,
    /// Latencies of the reads that ended in it, in nanoseconds.
    pub reads: Latencies,
    /// Of the writes.
    pub writes: Latencies,
}

fn latencies() -> Latencies {
    Histogram::new_with_bounds(NANOS_MIN, NANOS_MAX, DIGITS).expect("the bounds are constants")
}

/// All intervals of a run.
#[derive(Debug)]
pub(crate) struct Timeline {
    interval_nanos: u64,
    intervals: Mutex<Vec<Option<Interval>>>,
    /// When the last write ended, in nanoseconds of the run; 0 before the first.
    last_write_nanos: AtomicU64,
    longest_gap_nanos: AtomicU64,
}

impl Timeline {
    pub(crate) fn new(interval_seconds: f64) -> Self {
        Self {
            interval_nanos: ((interval_seconds * 1e9) as u64).max(1_000_000),
            intervals: Mutex::default(),
            last_write_nanos: AtomicU64::new(0),
            longest_gap_nanos: AtomicU64::new(0),
        }
    }

    /// A lane's share of a run that began at `started_nanos`.
    pub(crate) fn lane(&self, started_nanos: u64) -> LaneTimeline<'_> {
        LaneTimeline {
            timeline: self,
            started_nanos,
            at: 0,
            until_nanos: started_nanos.saturating_add(self.interval_nanos),
            reads: latencies(),
            writes: latencies(),
        }
    }

    fn add(&self, at: usize, reads: &Latencies, writes: &Latencies) {
        if at >= INTERVALS_MAX || (reads.is_empty() && writes.is_empty()) {
            return;
        }
        let mut intervals = self.intervals.lock().unwrap_or_else(PoisonError::into_inner);
        while intervals.len() <= at {
            intervals.push(None);
        }
        let Some(place) = intervals.get_mut(at) else { return };
        let seconds = self.interval_nanos as f64 / 1e9;
        let interval = place.get_or_insert_with(|| Interval {
            from_seconds: at as f64 * seconds,
            seconds,
            reads: latencies(),
            writes: latencies(),
        });
        // The bounds are the same, so nothing is lost.
        let _ = interval.reads.add(reads);
        let _ = interval.writes.add(writes);
    }

    fn write_ended(&self, now: u64, started: u64) {
        // Lanes may come here in another order than their writes ended: a gap is then taken as zero.
        let last = self.last_write_nanos.fetch_max(now, Ordering::Relaxed).max(started);
        self.longest_gap_nanos.fetch_max(now.saturating_sub(last), Ordering::Relaxed);
    }

    /// The longest time without the end of a write, of a run from `started` to `ended`.
    pub(crate) fn write_gap_nanos(&self, started: u64, ended: u64) -> u64 {
        let last = self.last_write_nanos.load(Ordering::Relaxed).max(started);
        self.longest_gap_nanos.load(Ordering::Relaxed).max(ended.saturating_sub(last))
    }

    /// The intervals of a run of so many seconds, those in which nothing ended included.
    pub(crate) fn into_intervals(self, seconds: f64) -> Vec<Interval> {
        let interval = self.interval_nanos as f64 / 1e9;
        let mut intervals = self.intervals.into_inner().unwrap_or_else(PoisonError::into_inner);
        let count = ((seconds / interval).ceil() as usize).clamp(intervals.len(), INTERVALS_MAX);
        intervals.resize_with(count, || None);
        (0u32..)
            .zip(intervals)
            .map(|(at, found)| {
                let from_seconds = f64::from(at) * interval;
                let mut one = found.unwrap_or_else(|| Interval {
                    from_seconds,
                    seconds: interval,
                    reads: latencies(),
                    writes: latencies(),
                });
                one.seconds = interval.min(seconds - from_seconds).max(0.0);
                one
            })
            .collect()
    }
}

/// A lane's share of a timeline.
#[derive(Debug)]
pub(crate) struct LaneTimeline<'a> {
    timeline: &'a Timeline,
    started_nanos: u64,
    /// The interval that is being filled, and when it ends.
    at: usize,
    until_nanos: u64,
    reads: Latencies,
    writes: Latencies,
}

impl LaneTimeline<'_> {
    /// An operation ended now that took so long. Calls come in the order of time.
    #[inline]
    pub(crate) fn record(&mut self, is_write: bool, now: u64, nanos: u64) {
        if now >= self.until_nanos {
            self.turn(now);
        }
        if is_write {
            self.writes.saturating_record(nanos);
            self.timeline.write_ended(now, self.started_nanos);
        } else {
            self.reads.saturating_record(nanos);
        }
    }

    fn turn(&mut self, now: u64) {
        self.hand_in();
        let interval = self.timeline.interval_nanos;
        let passed = now.saturating_sub(self.started_nanos) / interval;
        self.at = usize::try_from(passed).unwrap_or(usize::MAX);
        self.until_nanos =
            self.started_nanos.saturating_add(passed.saturating_add(1).saturating_mul(interval));
    }

    fn hand_in(&mut self) {
        self.timeline.add(self.at, &self.reads, &self.writes);
        self.reads.reset();
        self.writes.reset();
    }
}

impl Drop for LaneTimeline<'_> {
    fn drop(&mut self) {
        self.hand_in();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_fill_the_same_intervals_and_empty_ones_are_there() {
        let timeline = Timeline::new(0.1);
        let (ms, start) = (1_000_000, 7);
        for lane in 0..2 {
            let mut lane_timeline = timeline.lane(start);
            lane_timeline.record(false, start + 10 * ms, 5000);
            lane_timeline.record(true, start + 20 * ms + lane, 5000);
            lane_timeline.record(false, start + 310 * ms, 9000);
        }
        assert_eq!(timeline.write_gap_nanos(start, start + 400 * ms), 380 * ms - 1);
        let intervals = timeline.into_intervals(0.45);
        let counts: Vec<_> = intervals.iter().map(|i| (i.reads.len(), i.writes.len())).collect();
        assert_eq!(counts, [(2, 2), (0, 0), (0, 0), (2, 0), (0, 0)]);
        assert!((intervals[4].seconds - 0.05).abs() < 1e-9);
        assert!((intervals[3].from_seconds - 0.3).abs() < 1e-9);
    }

    #[test]
    fn the_longest_gap_counts_from_the_start_and_between_writes() {
        let timeline = Timeline::new(1.0);
        let mut lane = timeline.lane(100);
        for now in [130, 135, 180, 190] {
            lane.record(true, now, 1);
        }
        drop(lane);
        assert_eq!(timeline.write_gap_nanos(100, 200), 45);
        assert_eq!(timeline.write_gap_nanos(100, 300), 110);
    }

    #[test]
    fn a_run_beyond_the_last_interval_keeps_what_it_has() {
        let timeline = Timeline::new(0.001);
        let mut lane = timeline.lane(0);
        lane.record(false, 500_000, 1);
        lane.record(false, 10_000_000_000, 1);
        drop(lane);
        assert_eq!(timeline.into_intervals(10.0).len(), INTERVALS_MAX);
    }
}
