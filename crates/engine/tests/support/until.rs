//! Waiting for what other threads do, in the tests of the engine and of what stands on it.

use std::time::{Duration, Instant};

/// What no test takes, however busy the machine is.
const WAIT_MAX: Duration = Duration::from_mins(1);

/// Returns once that is so. Panics with `what` was awaited where it is not so after a minute.
#[expect(
    clippy::disallowed_methods,
    reason = "a test that hangs does so by the time of whoever looks at it"
)]
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < WAIT_MAX, "awaited for {WAIT_MAX:?}: {what}");
        std::thread::yield_now();
    }
}
