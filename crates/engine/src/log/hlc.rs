//! The hybrid logical clock that numbers mutations.
//!
//! ```text
//! | 44 bits: milliseconds since 1970 | 20 bits: counter |
//! ```
//!
//! Guarantees: every sequence is handed out once and is greater than all before it, whatever the wall
//! clock does: where it stands still, goes back or says what nobody believes, the counter runs on, if need be into milliseconds
//! that have not come yet. (After Kulkarni et al., "Logical Physical Clocks", 2014.)

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crate::cell::{SEQ_COUNTER_BITS, SEQ_MAX, Seq, Timestamp};
use crate::io::Clock;

/// How far the wall clock may have gone back behind the write before for the time of writes to stand still until it has caught up, in milliseconds.
/// Less, and a machine whose clock is set right by some seconds would hide new cells behind older ones. More, and one whose clock
/// was wrong by an hour would give all cells of the next hour one timestamp, of which each column keeps one cell.
const STANDS_STILL_MILLIS: i64 = 60_000;

/// The last time of the wall clock that is believed, in milliseconds: half of what a sequence can tell, the year 2248. One of a machine that has lost its
/// time may say anything, and what is numbered by it stays: at the end of what a sequence can tell, nothing could be written ever again.
const BELIEVED_MILLIS_MAX: u64 = SEQ_MAX >> (SEQ_COUNTER_BITS + 1);

/// The clock. All methods are safe to call from any thread.
#[derive(Debug)]
pub struct Hlc {
    clock: Arc<dyn Clock>,
    last: AtomicU64,
    /// What [`Self::time_of_write`] gave last, in milliseconds.
    written: AtomicI64,
}

impl Hlc {
    /// A clock that hands out sequences after `floor`: the greatest that was ever used.
    pub fn new(clock: Arc<dyn Clock>, floor: Seq) -> Self {
        let hlc = Self { clock, last: AtomicU64::new(floor), written: AtomicI64::new(0) };
        hlc.note(floor);
        hlc
    }

    /// Reserves `n` consecutive sequences (at least one) and returns the first. They end before
    /// [`SEQ_MAX`], which no mutation ever has.
    pub fn reserve(&self, n: u32) -> Seq {
        let now = u64::try_from(self.now_millis()).unwrap_or(0) << SEQ_COUNTER_BITS;
        let span = u64::from(n.max(1));
        let first = |last: Seq| last.saturating_add(1).max(now);
        // Acquire and release: who sees a sequence sees what its holder did before reserving it.
        let before = self.last.fetch_update(Ordering::AcqRel, Ordering::Acquire, |last| {
            first(last).checked_add(span - 1).filter(|end| *end < SEQ_MAX)
        });
        first(before.expect("44 bits of milliseconds last until the year 2527"))
    }

    /// The time for cells that are written now, in microseconds, whole milliseconds: that of the wall clock; where this went
    /// back by a minute at most, that of the write before. Asked with the row locked or shared, it is not before that of a
    /// write to the row that was over by then, unless the wall clock went back further.
    pub fn time_of_write(&self) -> Timestamp {
        let now = self.now_millis();
        let written = self.written.load(Ordering::Acquire);
        if written == now {
            // No core takes the other's line of memory for it.
            return now.saturating_mul(1_000);
        }
        let give = |written| if stands_still(now, written) { written } else { now };
        let before = self
            .written
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |written| Some(give(written)))
            .unwrap_or(now);
        give(before).saturating_mul(1_000)
    }

    /// What the wall clock says; that of the last sequence where nobody believes it.
    fn now_millis(&self) -> i64 {
        let millis = self.clock.now_micros().div_euclid(1_000);
        if millis > BELIEVED_MILLIS_MAX as i64 {
            return (self.current() >> SEQ_COUNTER_BITS) as i64;
        }
        millis
    }

    /// Takes note of a sequence that was used before a restart: cells may have its time, where that is near.
    fn note(&self, seq: Seq) {
        let millis = (seq >> SEQ_COUNTER_BITS) as i64;
        if stands_still(self.now_millis(), millis) {
            self.written.fetch_max(millis, Ordering::AcqRel);
        }
    }

    /// Takes note of a sequence from elsewhere: all that follow are greater. Whether a peer's sequence
    /// is plausible is the caller's to judge; one's own, found on disk, always counts.
    pub fn observe(&self, seq: Seq) {
        self.last.fetch_max(seq, Ordering::AcqRel);
        self.note(seq);
    }

    /// The last sequence handed out or observed.
    pub fn current(&self) -> Seq {
        self.last.load(Ordering::Acquire)
    }
}

/// Whether what is written at `now` has the time of what was written at `before`, in milliseconds.
fn stands_still(now: i64, before: i64) -> bool {
    (now..=now.saturating_add(STANDS_STILL_MILLIS)).contains(&before)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::ManualClock;

    fn at(millis: i64) -> (ManualClock, Hlc) {
        let clock = ManualClock::new(millis * 1_000);
        let hlc = Hlc::new(Arc::new(clock.clone()), 0);
        (clock, hlc)
    }

    #[test]
    fn sequences_carry_the_milliseconds_and_count_within_them() {
        let (clock, hlc) = at(1_700_000_000_000);
        let first = hlc.reserve(3);
        assert_eq!(first, 1_700_000_000_000 << SEQ_COUNTER_BITS);
        assert_eq!(hlc.reserve(1), first + 3);
        assert_eq!(hlc.current(), first + 3);
        clock.advance_micros(1_000);
        assert_eq!(hlc.reserve(1), 1_700_000_000_001 << SEQ_COUNTER_BITS);
    }

    #[test]
    fn sequences_grow_when_the_clock_goes_back_and_when_the_counter_overflows() {
        let (clock, hlc) = at(1_000);
        let a = hlc.reserve(1);
        clock.set_wall_micros(-5);
        assert_eq!(hlc.reserve(u32::MAX), a + 1);
        let after = hlc.reserve(1);
        assert_eq!(after, a + 1 + u64::from(u32::MAX));
        clock.set_wall_micros(1_001_000);
        assert_eq!(hlc.reserve(1), after + 1);
    }

    #[test]
    fn a_clock_that_nobody_believes_leaves_sequences_for_when_it_is_right() {
        let (clock, hlc) = at(1_700_000_000_000);
        let first = hlc.reserve(1);
        clock.set_wall_micros(i64::MAX);
        for n in 1..=3 {
            assert_eq!(hlc.reserve(u32::MAX), first + 1 + (n - 1) * u64::from(u32::MAX));
        }
        let since = (3 * u64::from(u32::MAX)) >> SEQ_COUNTER_BITS;
        assert_eq!(hlc.time_of_write() / 1_000, 1_700_000_000_000 + since as i64);
        clock.set_wall_micros(1_700_000_100_000_000);
        assert_eq!(hlc.reserve(1), 1_700_000_100_000 << SEQ_COUNTER_BITS);
    }

    #[test]
    fn the_time_of_writes_stands_still_while_a_clock_that_went_back_a_little_catches_up() {
        let (clock, hlc) = at(1_700_000_000_000);
        clock.advance_micros(999);
        assert_eq!(hlc.time_of_write(), 1_700_000_000_000_000, "whole milliseconds");
        hlc.reserve(1);
        clock.set_wall_micros(1_700_000_000_000_000 - 60_000_000);
        assert_eq!(hlc.time_of_write(), 1_700_000_000_000_000);
        clock.advance_micros(60_001_000);
        assert_eq!(hlc.time_of_write(), 1_700_000_000_001_000);
        clock.set_wall_micros(1_700_000_000_000_000 - 60_001_000);
        assert_eq!(hlc.time_of_write(), 1_699_999_939_999_000, "too far to stand still");
        clock.set_wall_micros(-5);
        assert_eq!(hlc.time_of_write(), -1_000);
    }

    #[test]
    fn what_was_written_by_a_clock_far_ahead_moves_no_time_when_the_clock_comes_near_it() {
        const HOUR: i64 = 3_600_000_000;
        let (clock, hlc) = at(1_700_000_000_000);
        hlc.reserve(1);
        let ahead = hlc.time_of_write();
        clock.set_wall_micros(ahead - HOUR);
        assert_eq!(hlc.time_of_write(), ahead - HOUR);
        clock.advance_micros(HOUR as u64 - 30_000_000);
        hlc.reserve(1);
        assert_eq!(hlc.time_of_write(), ahead - 30_000_000);
        // After a restart nobody knows which of the two the last sequence tells.
        let again = Hlc::new(Arc::new(clock), hlc.current());
        assert_eq!(again.time_of_write(), ahead);
    }

    #[test]
    fn the_floor_and_observed_sequences_are_passed() {
        let clock = ManualClock::new(1_000_000);
        let hlc = Hlc::new(Arc::new(clock), 5 << 40);
        assert_eq!(hlc.reserve(1), (5 << 40) + 1);
        hlc.observe(6 << 40);
        hlc.observe(3);
        assert_eq!(hlc.reserve(1), (6 << 40) + 1);
    }

    #[test]
    fn threads_never_get_the_same_sequence() {
        let (_, hlc) = at(1);
        let mut all: Vec<Seq> = std::thread::scope(|scope| {
            let draw = || (0..1_000).map(|_| hlc.reserve(2)).collect::<Vec<_>>();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(draw)).collect();
            threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
        });
        all.sort_unstable();
        assert!(all.windows(2).all(|w| w[1] - w[0] >= 2));
        assert_eq!(all.len(), 4_000);
    }
}
