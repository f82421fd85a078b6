//! The pace of background writes: one bucket of tokens, a token a byte, for flushes and compactions together.
//!
//! ```text
//!              fills at the rate, up to BURST_MS of it
//!   full  ─┬─
//!          │   compactions below level 0 wait until there is this much: half
//!   half  ─┼─
//!          │   compactions of level 0 wait until there is something
//!   empty ─┼─
//!          │   flushes never wait, since writers wait for them; what they take too much is owed, and the
//!   owed  ─┴─  others wait for it
//! ```

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// What a full bucket holds, in milliseconds of the rate. Longer makes bursts that foreground reads notice;
/// shorter wakes the threads more often than needed.
const BURST_MS: u64 = 100;

/// Bytes that are asked for at once: a few writes' worth, so that asking costs nothing.
pub(crate) const STEP_BYTES: u64 = 256 << 10;

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// Writers wait for it.
    Flush,
    /// Writers will wait for it, should it fall behind.
    L0,
    /// All else.
    Rest,
}

/// The bucket.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Bytes per second; 0 for no limit.
    rate: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Millionths of a byte; negative when owed.
    tokens: i128,
    at_micros: u64,
}

impl Pace {
    /// A full bucket that fills with `rate` bytes per second; 0 for no limit.
    pub(crate) fn new(rate: u64) -> Self {
        let tokens = Self::full(rate);
        Self { rate, state: Mutex::new(State { tokens, at_micros: 0 }) }
    }

    fn full(rate: u64) -> i128 {
        i128::from(rate) * i128::from(BURST_MS) * 1000
    }

    /// Takes `bytes` at this time (monotonic micros), or says how long to wait before asking again.
    pub(crate) fn take(&self, bytes: u64, urgency: Urgency, now_micros: u64) -> Option<Duration> {
        if self.rate == 0 {
            return None;
        }
        let full = Self::full(self.rate);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = now_micros.saturating_sub(state.at_micros);
        state.at_micros = state.at_micros.max(now_micros);
        state.tokens = (state.tokens + i128::from(self.rate) * i128::from(passed)).min(full);
        let least = match urgency {
            Urgency::Flush => i128::MIN,
            Urgency::L0 => 1,
            Urgency::Rest => full / 2,
        };
        if state.tokens >= least {
            state.tokens -= i128::from(bytes) * 1_000_000;
            return None;
        }
        let lacking = (least - state.tokens) / i128::from(self.rate) + 1;
        Some(Duration::from_micros(u64::try_from(lacking).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn without_a_rate_nobody_waits() {
        let pace = Pace::new(0);
        assert_eq!(pace.take(u64::MAX, Urgency::Rest, 0), None);
        assert_eq!(pace.take(u64::MAX, Urgency::Rest, 0), None);
    }

    #[test]
    fn over_time_the_rate_is_kept() {
        let pace = Pace::new(10 * MIB);
        let (mut now, mut taken) = (0, 0);
        while now < 5_000_000 {
            match pace.take(STEP_BYTES, Urgency::Rest, now) {
                None => taken += STEP_BYTES,
                Some(wait) => now += u64::try_from(wait.as_micros()).unwrap(),
            }
        }
        assert!((49 * MIB..=52 * MIB).contains(&taken), "{taken}");
    }

    #[test]
    fn flushes_never_wait_and_the_others_wait_for_what_they_took() {
        let pace = Pace::new(MIB);
        assert_eq!(pace.take(10 * MIB, Urgency::Flush, 0), None);
        let wait = pace.take(1, Urgency::L0, 0).unwrap();
        assert!((9_900_000..=9_900_010).contains(&wait.as_micros()), "{wait:?}");
        let later = u64::try_from(wait.as_micros()).unwrap();
        assert!(pace.take(1, Urgency::Rest, later).is_some(), "level 0 comes first");
        assert_eq!(pace.take(1, Urgency::L0, later), None);
        assert_eq!(pace.take(1, Urgency::Rest, later + 100_000), None);
    }
}
