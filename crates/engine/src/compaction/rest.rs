//! How a compaction that nobody waits for gives way to reads: it works a little and rests for a multiple of that.
//!
//! ```text
//! reads of the device   |  | || | |  |   | | | |  || |                       |   |  |
//! the job               ███────────────────────███──────────────██████████████████───────
//!                         rests, as reads went on                nobody reads
//! ```
//!
//! A read takes the device for tens of microseconds, a compaction for as long as it lasts, with hundreds of kilobytes in flight.
//! Where processors are short the scheduler of the system knows who comes first; what lies in a device's queue
//! nobody puts in order again.

use std::time::Duration;

/// How long a job rests, as a multiple of the time that it worked. With 24, it has the device for a 25th of the time, and since
/// reads are fewer while it has it, less than one read in a hundred meets it: the 99th percentile is that of the reads
/// alone. More would keep the garbage for longer, and nobody would notice but at percentiles beyond.
const REST_PER_WORK: u64 = 24;

/// How long after a read of the device the next one is expected, in microseconds: a tenth of a second. A server that reads
/// less often than that has a device that is idle, and a shorter collection is worth more to it.
const READS_WITHIN_MICROS: u64 = 100_000;

/// The longest rest, in microseconds: a second. What takes longer to write than a 24th of it was held up by something else.
const REST_MAX_MICROS: u64 = 1_000_000;

/// Says when a job rests. Times are monotonic micros; reads are counted by whoever asks.
#[derive(Debug)]
pub(crate) struct Rests {
    worked_since: u64,
    reads: u64,
    read_at: Option<u64>,
}

impl Rests {
    /// A job that begins to work, after so many reads.
    pub(crate) fn new(now_micros: u64, reads: u64) -> Self {
        Self { worked_since: now_micros, reads, read_at: None }
    }

    /// How long to rest after what was done up to now, when there have been so many reads.
    pub(crate) fn due(&mut self, now_micros: u64, reads: u64) -> Option<Duration> {
        let worked = now_micros.saturating_sub(self.worked_since);
        if reads != self.reads {
            (self.reads, self.read_at) = (reads, Some(now_micros));
        }
        let reads_go_on =
            self.read_at.is_some_and(|at| now_micros.saturating_sub(at) <= READS_WITHIN_MICROS);
        let rest = worked.saturating_mul(REST_PER_WORK).min(REST_MAX_MICROS);
        (reads_go_on && rest > 0).then(|| Duration::from_micros(rest))
    }

    /// Work goes on, after a rest or without one.
    pub(crate) fn resume(&mut self, now_micros: u64) {
        self.worked_since = now_micros;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beside_reads_a_job_works_a_25th_of_the_time() {
        let (mut now, mut reads, mut worked) = (0, 0, 0);
        let mut rests = Rests::new(now, reads);
        while now < 10_000_000 {
            now += 2_000;
            worked += 2_000;
            reads += 1;
            if let Some(rest) = rests.due(now, reads) {
                now += u64::try_from(rest.as_micros()).unwrap();
                rests.resume(now);
            }
        }
        assert_eq!(worked / 1000, now / 1000 / 25);
    }

    #[test]
    fn without_reads_or_long_after_them_it_works_on() {
        let mut rests = Rests::new(0, 7);
        assert_eq!(rests.due(2_000, 7), None);
        rests.resume(2_000);
        let short = Duration::from_micros(1_000 * REST_PER_WORK);
        assert_eq!(rests.due(3_000, 8), Some(short));
        rests.resume(27_000);
        assert_eq!(rests.due(28_000, 8), Some(short));
        rests.resume(103_000);
        assert_eq!(rests.due(104_000, 8), None);
    }

    #[test]
    fn what_was_held_up_for_long_is_not_paid_back_in_full() {
        let mut rests = Rests::new(0, 0);
        assert_eq!(rests.due(30_000_000, 1), Some(Duration::from_micros(REST_MAX_MICROS)));
    }
}
