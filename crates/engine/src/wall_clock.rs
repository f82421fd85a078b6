//! The wall clock, as far as it is believed: what has expired by it is deleted for good.
//!
//! ```text
//! wall clock    ──────────────────┐ 2062: set wrong, or the machine slept
//! monotonic     ─────────────────────────────────►
//! expires by    ──────────────────► stands still ─► the wall clock, after CLOCK_DOUBT
//! ```
//!
//! It is doubted for a while where it is far ahead at a start, which the owner of the engine sees ([`WallClock::doubt`]), and where it
//! gains more than [`CLOCK_JUMP_MAX`] on the monotonic clock between two looks. Whoever asks looks, so that nobody sees a jump before
//! it is noticed.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::io::Clock;
use crate::limits::{CLOCK_DOUBT, CLOCK_JUMP_MAX};

/// By what things expire.
#[derive(Debug)]
pub(crate) struct WallClock {
    clock: Arc<dyn Clock>,
    seen: Mutex<Seen>,
}

/// At the last look.
#[derive(Debug)]
struct Seen {
    wall_micros: i64,
    monotonic_micros: u64,
    doubt: Option<Doubt>,
}

#[derive(Debug, Clone, Copy)]
struct Doubt {
    /// Monotonic micros.
    until_micros: u64,
    /// What the wall clock read when it was believed last.
    believed_micros: i64,
}

fn micros(length: Duration) -> u64 {
    u64::try_from(length.as_micros()).unwrap_or(u64::MAX)
}

impl WallClock {
    /// The clock as it is now is believed.
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        let (wall_micros, monotonic_micros) = (clock.now_micros(), clock.monotonic_micros());
        Self { clock, seen: Mutex::new(Seen { wall_micros, monotonic_micros, doubt: None }) }
    }

    /// Doubts it for `pause`: until then things expire as if it still read `believed_micros`.
    pub(crate) fn doubt(&self, believed_micros: i64, pause: Duration) {
        let until_micros = self.clock.monotonic_micros().saturating_add(micros(pause));
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.doubt = Some(Doubt { until_micros, believed_micros });
    }

    /// What it reads, unless it is doubted now.
    pub(crate) fn believed_micros(&self) -> Option<i64> {
        let (now, doubt) = self.look();
        doubt.is_none().then_some(now)
    }

    /// The time by which things expire: what it reads, unless it is doubted.
    pub(crate) fn expiry_micros(&self) -> i64 {
        let (now, doubt) = self.look();
        doubt.map_or(now, |doubt| doubt.believed_micros.min(now))
    }

    fn look(&self) -> (i64, Option<Doubt>) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let (wall, monotonic) = (self.clock.now_micros(), self.clock.monotonic_micros());
        let passed = monotonic.saturating_sub(seen.monotonic_micros);
        let expected = seen.wall_micros.saturating_add_unsigned(passed);
        (seen.wall_micros, seen.monotonic_micros) = (wall, monotonic);
        seen.doubt = seen.doubt.filter(|doubt| monotonic < doubt.until_micros);
        let gained = u64::try_from(wall.saturating_sub(expected)).unwrap_or(0);
        if gained > micros(CLOCK_JUMP_MAX) {
            // Of two jumps the first is the one before which it was right.
            let believed_micros =
                seen.doubt.map_or(expected, |of| of.believed_micros.min(expected));
            let until_micros = monotonic.saturating_add(micros(CLOCK_DOUBT));
            seen.doubt = Some(Doubt { until_micros, believed_micros });
            tracing::error!(
                "the clock has jumped ahead by {} hours: unless the machine slept for so long, it is wrong, and what it says has \
                 expired is deleted; backups, deleted tables, changes and cells wait for {} minutes",
                Duration::from_micros(gained).as_secs() / 3600,
                CLOCK_DOUBT.as_secs() / 60,
            );
        }
        (wall, seen.doubt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::ManualClock;

    const START: i64 = 1_767_225_600_000_000;
    const HOUR: i64 = 3_600_000_000;
    const YEAR: i64 = 365 * 24 * HOUR;

    fn started() -> (ManualClock, WallClock) {
        let clock = ManualClock::new(START);
        (clock.clone(), WallClock::new(Arc::new(clock)))
    }

    #[test]
    fn a_clock_that_goes_on_or_is_set_by_less_than_a_day_is_believed() {
        let (clock, wall) = started();
        let mut now = START;
        for (passes, set_by) in [(0, 0), (YEAR, 0), (HOUR, 24 * HOUR), (0, -YEAR), (HOUR, 1)] {
            clock.advance_micros(passes as u64);
            now += passes + set_by;
            clock.set_wall_micros(now);
            assert_eq!(wall.expiry_micros(), now);
            assert!(wall.believed_micros().is_some());
        }
    }

    #[test]
    fn after_a_jump_nothing_expires_for_an_hour_that_had_not_before() {
        let (clock, wall) = started();
        clock.advance_micros(5 * HOUR as u64);
        clock.set_wall_micros(START + 36 * YEAR);
        assert_eq!(wall.believed_micros(), None);
        assert_eq!(wall.expiry_micros(), START + 5 * HOUR, "what had passed by then has");
        clock.advance_micros(HOUR as u64 - 1);
        assert_eq!(wall.expiry_micros(), START + 5 * HOUR);
        clock.advance_micros(1);
        assert_eq!(wall.expiry_micros(), START + 36 * YEAR + HOUR);
        assert!(wall.believed_micros().is_some());
    }

    #[test]
    fn a_clock_that_jumps_again_is_doubted_anew_by_what_it_read_first() {
        let (clock, wall) = started();
        clock.set_wall_micros(START + 2 * YEAR);
        assert_eq!(wall.expiry_micros(), START);
        clock.advance_micros(HOUR as u64 / 2);
        clock.set_wall_micros(START + 9 * YEAR);
        assert_eq!(wall.expiry_micros(), START);
        clock.advance_micros(HOUR as u64 / 2);
        assert_eq!(wall.expiry_micros(), START);
        // Set right by somebody.
        clock.set_wall_micros(START + HOUR);
        assert_eq!(wall.expiry_micros(), START);
        clock.advance_micros(HOUR as u64 / 2);
        assert_eq!(wall.expiry_micros(), START + HOUR + HOUR / 2);
    }
}
