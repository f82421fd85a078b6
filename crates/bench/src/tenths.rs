//! The first and the last tenth of a run's operations apart: whether a store becomes slower as it goes.
//!
//! Tenths are of the operations by their numbers, not of the time: what a stall keeps waiting counts where it was due,
//! and as often as in a driver that has nothing but a list of latencies.

use hdrhistogram::Histogram;

use crate::run::{LATENCY_NANOS_MAX, Latencies};
use crate::workload::Limit;

/// Into so many parts the operations are cut, of which the first and the last are kept.
const PARTS: u64 = 10;
/// Significant digits of their latencies: a figure is within 1 %, and a lane's histograms take 140 KB.
const DIGITS: u8 = 2;

/// Latencies of a tenth, in nanoseconds.
#[derive(Debug, Clone)]
pub struct Tenth {
    /// Of its reads.
    pub reads: Latencies,
    /// Of its writes.
    pub writes: Latencies,
}

impl Tenth {
    fn new() -> Self {
        let latencies = || {
            Histogram::new_with_bounds(1, LATENCY_NANOS_MAX, DIGITS)
                .expect("the bounds are constants")
        };
        Self { reads: latencies(), writes: latencies() }
    }

    fn add(&mut self, other: &Self) {
        // The bounds are the same, so nothing is lost.
        let _ = self.reads.add(&other.reads);
        let _ = self.writes.add(&other.writes);
    }
}

/// The first and the last tenth of a run.
#[derive(Debug, Clone)]
pub struct Tenths {
    /// Numbers below this one are of the first tenth.
    first_until: u64,
    /// Numbers from this one on are of the last.
    last_from: u64,
    /// The first tenth.
    pub first: Tenth,
    /// The last; empty where a run was stopped before it.
    pub last: Tenth,
}

impl Tenths {
    /// Of a run that has so many operations; none of one that has so many seconds, or fewer operations than tenths.
    pub(crate) fn of(limit: Limit) -> Option<Self> {
        let Limit::Ops(ops) = limit else { return None };
        let tenth = ops / PARTS;
        let cut = || Self {
            first_until: tenth,
            last_from: ops - tenth,
            first: Tenth::new(),
            last: Tenth::new(),
        };
        (tenth > 0).then(cut)
    }

    /// Operation `number` took so long.
    #[inline]
    pub(crate) fn record(&mut self, number: u64, is_write: bool, nanos: u64) {
        let tenth = if number < self.first_until {
            &mut self.first
        } else if number >= self.last_from {
            &mut self.last
        } else {
            return;
        };
        if is_write {
            tenth.writes.saturating_record(nanos);
        } else {
            tenth.reads.saturating_record(nanos);
        }
    }

    /// What another lane of the same run took.
    pub(crate) fn add(&mut self, other: &Self) {
        self.first.add(&other.first);
        self.last.add(&other.last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_count_in_their_tenth_whichever_lane_does_them() {
        let of = || Tenths::of(Limit::Ops(105)).unwrap();
        let (mut even, mut odd) = (of(), of());
        for number in 0..105 {
            let lane = if number % 2 == 0 { &mut even } else { &mut odd };
            lane.record(number, number % 5 == 0, 1000 + number);
        }
        even.add(&odd);
        let Tenths { first, last, .. } = even;
        assert_eq!((first.reads.len(), first.writes.len()), (8, 2));
        assert_eq!((last.reads.len(), last.writes.len()), (8, 2));
        assert!(first.reads.max() < 1020 && last.reads.min() > 1080);
    }

    #[test]
    fn a_run_without_a_number_of_operations_has_no_tenths() {
        assert!(Tenths::of(Limit::Seconds(10.0)).is_none());
        assert!(Tenths::of(Limit::Ops(9)).is_none());
    }
}
