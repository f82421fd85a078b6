//! Waits for a moment to the microsecond. tokio's own timers round up to the next millisecond, which in an open
//! loop would be part of every latency.

use std::os::fd::OwnedFd;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::unix::AsyncFd;

use crate::error::{Error, Result};

/// A timer of the kernel on a runtime.
#[derive(Debug)]
pub struct Pacer {
    timer: AsyncFd<OwnedFd>,
    /// What it is set to, in the caller's time; 0 where it is not.
    set_for_nanos: u64,
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::failed(format!("timer: {error}"))
}

impl Pacer {
    /// A timer on the runtime that this is called on.
    pub fn new() -> Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags).map_err(failed)?;
        // SAFETY: the descriptor is owned by the `AsyncFd`, which nothing here takes it out of, so that it is
        // open and the same file until it is deregistered.
        let timer = unsafe { AsyncFd::register(timer) }.map_err(failed)?;
        Ok(Self { timer, set_for_nanos: 0 })
    }

    /// Resolves at `at_nanos` of a clock that shows `now_nanos`. May be dropped and called again.
    pub async fn until(&mut self, at_nanos: u64, now_nanos: u64) -> Result<()> {
        if at_nanos <= now_nanos {
            return Ok(());
        }
        if self.set_for_nanos != at_nanos {
            let wait = at_nanos - now_nanos;
            let value = Timespec {
                tv_sec: i64::try_from(wait / 1_000_000_000).unwrap_or(i64::MAX),
                tv_nsec: (wait % 1_000_000_000) as i64,
            };
            let once =
                Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
            timerfd_settime(self.timer.get_ref(), TimerfdTimerFlags::empty(), &once)
                .map_err(failed)?;
            self.set_for_nanos = at_nanos;
        }
        loop {
            let mut ready = self.timer.readable().await.map_err(failed)?;
            let mut count = [0; 8];
            match rustix::io::read(self.timer.get_ref(), &mut count) {
                Ok(_) => {
                    self.set_for_nanos = 0;
                    return Ok(());
                }
                // It was set anew since it had been readable.
                Err(rustix::io::Errno::AGAIN) => ready.clear_ready(),
                Err(error) => return Err(failed(error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timer;

    #[test]
    fn it_does_not_resolve_early_even_after_it_was_set_anew() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut pacer = Pacer::new().unwrap();
            let timer = Timer::start();
            for wait in [0, 300_000, 1_500_000] {
                let start = timer.nanos();
                pacer.until(start + wait, start).await.unwrap();
                assert!(timer.nanos() >= start + wait);
            }
            let start = timer.nanos();
            let first = pacer.until(start + 100_000, start);
            drop(futures::future::select(std::pin::pin!(first), futures::future::ready(())));
            pacer.until(start + 2_000_000, start).await.unwrap();
            assert!(timer.nanos() >= start + 2_000_000);
        });
    }
}
