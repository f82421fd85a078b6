//! Clocks: the system's, and one that a test moves by hand.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::Clock;

/// The system's clocks.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock whose monotonic side counts from now.
    #[expect(clippy::disallowed_methods, reason = "this is the clock seam")]
    pub fn new() -> Self {
        Self { start: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the clock seam")]
    fn now_micros(&self) -> i64 {
        // A clock set before 1970 reads as 1970: timestamps below zero are refused everywhere.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
    }

    fn monotonic_micros(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

/// A clock that stands still until it is moved. Clones share their time.
#[derive(Debug, Clone)]
pub struct ManualClock {
    times: Arc<Times>,
}

#[derive(Debug)]
struct Times {
    wall: AtomicI64,
    monotonic: AtomicU64,
}

impl ManualClock {
    /// A clock that reads `wall_micros` since 1970, and 0 on its monotonic side.
    pub fn new(wall_micros: i64) -> Self {
        let times = Times { wall: AtomicI64::new(wall_micros), monotonic: AtomicU64::new(0) };
        Self { times: Arc::new(times) }
    }

    /// Lets time pass on both sides.
    pub fn advance_micros(&self, micros: u64) {
        self.times.wall.fetch_add(i64::try_from(micros).unwrap_or(i64::MAX), Ordering::SeqCst);
        self.times.monotonic.fetch_add(micros, Ordering::SeqCst);
    }

    /// Sets the wall clock, also backwards, as an operator or NTP would; the monotonic side stays.
    pub fn set_wall_micros(&self, micros: i64) {
        self.times.wall.store(micros, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now_micros(&self) -> i64 {
        self.times.wall.load(Ordering::SeqCst)
    }

    fn monotonic_micros(&self) -> u64 {
        self.times.monotonic.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manual_clock_moves_only_by_hand_and_clones_share_it() {
        let clock = ManualClock::new(1_000);
        let other = clock.clone();
        assert_eq!((clock.now_micros(), clock.monotonic_micros()), (1_000, 0));
        other.advance_micros(500);
        assert_eq!((clock.now_micros(), clock.monotonic_micros()), (1_500, 500));
        other.set_wall_micros(10);
        assert_eq!((clock.now_micros(), clock.monotonic_micros()), (10, 500));
    }

    #[test]
    fn system_clock_is_after_2020_and_its_monotonic_side_never_goes_back() {
        let clock = SystemClock::new();
        assert!(clock.now_micros() > 1_577_836_800_000_000);
        let first = clock.monotonic_micros();
        assert!(clock.monotonic_micros() >= first);
    }
}
