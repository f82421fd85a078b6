//! Time as a benchmark needs it: monotonic nanoseconds, and processor time of the process.
//!
//! The engine's clock seam counts microseconds, and a cached read takes less than two.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Counts from its creation.
#[derive(Debug, Clone, Copy)]
pub struct Timer(Instant);

impl Timer {
    /// A timer that starts now.
    #[expect(clippy::disallowed_methods, reason = "a benchmark measures real time, in nanoseconds")]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Nanoseconds since its start.
    #[inline]
    pub fn nanos(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Seconds since its start.
    pub fn seconds(&self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }
}

/// Blocks the thread: for loops that look at a figure now and then.
#[expect(clippy::disallowed_methods, reason = "waits for real time to pass, outside of any engine")]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Processor time of the process so far, user and system, ended threads included.
pub fn cpu_nanos() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let (seconds, nanos) = (time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs());
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}
