//! Row locks: every write takes the lock of its row, so that a read-modify-write excludes all others of
//! the row between its read and its place in the log. Locks are striped: rows share a fixed number of
//! mutexes by hash. A holder never waits for a second lock, so stripes cannot deadlock.
//!
//! A lock that is let go is free for who comes first, which may be a write that has not waited: it is on a thread that runs,
//! where the one that waits longest may have to be woken on another. Handed to that one instead, a lock held for microseconds is
//! taken for as long as a wake-up takes, and all writes of a hot row queue for it. Who has waited for half a millisecond goes
//! before those that come (the mutex's own rule), so that none waits for good.

use std::sync::{Arc, OnceLock};

use async_lock::{Mutex, MutexGuard, MutexGuardArc};
use xxhash_rust::xxh3::xxh3_64;

/// Stripes per tablet. Fewer make unrelated rows wait for each other across a read-modify-write's disk
/// read; more only cost memory (about 40 bytes each).
const ROW_LOCK_STRIPES: usize = 1024;

/// The lock table of one tablet. Made with the first lock: thousands of tablets may be idle, or deleted and kept for a while.
#[derive(Debug, Default)]
pub(crate) struct RowLocks {
    stripes: OnceLock<Box<[Arc<Mutex<()>>]>>,
}

/// Excludes every other write of its row while it lives.
#[derive(Debug)]
pub struct RowLock {
    _guard: MutexGuardArc<()>,
}

/// The locks of several rows, which are taken without waiting ([`RowLocks::try_lock_beside`]).
#[derive(Debug, Default)]
pub(crate) struct HeldLocks<'a> {
    /// Of the guards, in their order; few enough to be looked through.
    stripes: Vec<usize>,
    guards: Vec<MutexGuard<'a, ()>>,
}

impl RowLocks {
    fn stripes(&self) -> &[Arc<Mutex<()>>] {
        self.stripes.get_or_init(|| (0..ROW_LOCK_STRIPES).map(|_| Arc::default()).collect())
    }

    fn stripe(row: &[u8]) -> usize {
        xxh3_64(row) as usize % ROW_LOCK_STRIPES
    }

    /// Waits until the row is free.
    pub(crate) async fn lock(&self, row: &[u8]) -> RowLock {
        let stripe = Self::stripe(row);
        let mutex = self.stripes().get(stripe).expect("the remainder is below the count");
        RowLock { _guard: mutex.lock_arc().await }
    }

    /// Takes the lock of a row beside others, unless that would have to wait.
    pub(crate) fn try_lock_beside<'a>(&'a self, held: &mut HeldLocks<'a>, row: &[u8]) -> bool {
        let stripe = Self::stripe(row);
        if held.stripes.contains(&stripe) {
            return true;
        }
        let Some(Some(guard)) = self.stripes().get(stripe).map(|mutex| mutex.try_lock()) else {
            return false;
        };
        held.stripes.push(stripe);
        held.guards.push(guard);
        true
    }

    /// Waits until nobody holds a row's lock, and excludes all writes while the locks live. Taken in
    /// order, so two that take all of them do not wait for each other in a circle.
    pub(crate) async fn lock_all(&self) -> Vec<RowLock> {
        let mut locks = Vec::with_capacity(ROW_LOCK_STRIPES);
        for mutex in self.stripes() {
            locks.push(RowLock { _guard: mutex.lock_arc().await });
        }
        locks
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::FutureExt;
    use futures::executor::block_on;

    use super::*;

    #[test]
    fn all_locks_exclude_rows_that_are_locked_for_the_first_time_after_them() {
        let locks = RowLocks::default();
        let all = block_on(locks.lock_all());
        let mut row = pin!(locks.lock(b"row"));
        assert!(row.as_mut().now_or_never().is_none());
        assert!(!locks.try_lock_beside(&mut HeldLocks::default(), b"row"));
        drop(all);
        assert!(row.now_or_never().is_some());
    }
}
