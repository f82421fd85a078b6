//! Row locks: a read-modify-write has the lock of its row from its read to its place in the log, and excludes all other writes of
//! the row meanwhile. Writes that have read nothing share the lock: their order is that of the log, whichever it is, and of a hot row
//! none has to wait for another, which may be on a thread that is not running. Locks are striped: rows share a fixed number of
//! them by hash. A holder never waits for a second lock, so stripes cannot deadlock.
//!
//! A lock that is let go is free for who comes first, which may be a write that has not waited: it is on a thread that runs,
//! where the one that waits longest may have to be woken on another. Handed to that one instead, a lock held for microseconds is
//! taken for as long as a wake-up takes, and all read-modify-writes of a hot row queue for it. Who has waited for half a millisecond goes
//! before those that come, whether to have the lock or to share it (the rule of the lock's own mutex), so that none waits for good.

use std::sync::{Arc, OnceLock};

use async_lock::{
    RwLock, RwLockReadGuard, RwLockReadGuardArc, RwLockUpgradableReadGuardArc, RwLockWriteGuardArc,
};
use xxhash_rust::xxh3::xxh3_64;

/// Stripes per tablet. Fewer make unrelated rows wait for each other across a read-modify-write's disk
/// read; more only cost memory (about 64 bytes each).
const ROW_LOCK_STRIPES: usize = 1024;

/// How often all locks are tried for without waiting, once nobody holds one from before: each time there may be a new holder of seconds, for whom nobody else
/// is to wait. More would keep a drop from its end beside writers that never rest; with fewer it would wait for some of them with all others in hand.
const LOCK_ALL_TRIES: usize = 16;

/// The lock table of one tablet. Made with the first lock: thousands of tablets may be idle, or deleted and kept for a while.
#[derive(Debug, Default)]
pub(crate) struct RowLocks {
    stripes: OnceLock<Box<[Arc<RwLock<()>>]>>,
}

/// Excludes every other write of its row while it lives.
#[derive(Debug)]
pub struct RowLock {
    _guard: RwLockWriteGuardArc<()>,
}

/// Excludes every read-modify-write of its row while it lives.
#[derive(Debug)]
pub(super) struct RowShare {
    _guard: RwLockReadGuardArc<()>,
}

/// Shares of the locks of several rows, which are taken without waiting ([`RowLocks::try_share_beside`]).
#[derive(Debug, Default)]
pub(super) struct HeldShares<'a> {
    /// Of the guards, in their order; few enough to be looked through.
    stripes: Vec<usize>,
    guards: Vec<RwLockReadGuard<'a, ()>>,
}

impl RowLocks {
    fn stripes(&self) -> &[Arc<RwLock<()>>] {
        self.stripes.get_or_init(|| (0..ROW_LOCK_STRIPES).map(|_| Arc::default()).collect())
    }

    fn stripe(row: &[u8]) -> usize {
        xxh3_64(row) as usize % ROW_LOCK_STRIPES
    }

    fn lock_of(&self, stripe: usize) -> &Arc<RwLock<()>> {
        self.stripes().get(stripe).expect("the remainder is below the count")
    }

    /// Waits until the row is free.
    pub(super) async fn lock(&self, row: &[u8]) -> RowLock {
        RowLock { _guard: self.lock_of(Self::stripe(row)).write_arc().await }
    }

    /// Waits until no read-modify-write has the row.
    pub(super) async fn share(&self, row: &[u8]) -> RowShare {
        let lock = self.lock_of(Self::stripe(row));
        if let Some(guard) = lock.try_read_arc() {
            return RowShare { _guard: guard };
        }
        // In one line with those who want it for themselves: shares that wait apart have no turn while others take it again and again.
        let turn = lock.upgradable_read_arc().await;
        RowShare { _guard: RwLockUpgradableReadGuardArc::downgrade(turn) }
    }

    /// Takes a share of the lock of a row beside others, unless that would have to wait.
    pub(super) fn try_share_beside<'a>(&'a self, held: &mut HeldShares<'a>, row: &[u8]) -> bool {
        let stripe = Self::stripe(row);
        if held.stripes.contains(&stripe) {
            return true;
        }
        let Some(guard) = self.lock_of(stripe).try_read() else { return false };
        held.stripes.push(stripe);
        held.guards.push(guard);
        true
    }

    /// Waits until nobody holds a row's lock, and excludes all writes while the locks live. Taken in
    /// order, so two that take all of them do not wait for each other in a circle. Who holds one may do so for seconds: that is waited for
    /// with none of the others in hand, those that took one meanwhile included, as far as there is an end of them.
    pub(super) async fn lock_all(&self) -> Vec<RowLock> {
        for stripe in self.stripes() {
            drop(stripe.write_arc().await);
        }
        for _ in 0..LOCK_ALL_TRIES {
            match self.try_lock_all() {
                Ok(locks) => return locks,
                Err(held) => drop(held.write_arc().await),
            }
        }
        let mut locks = Vec::with_capacity(ROW_LOCK_STRIPES);
        for stripe in self.stripes() {
            locks.push(RowLock { _guard: stripe.write_arc().await });
        }
        locks
    }

    /// All of them, or the first that somebody holds.
    fn try_lock_all(&self) -> Result<Vec<RowLock>, &Arc<RwLock<()>>> {
        let lock = |stripe| match RwLock::try_write_arc(stripe) {
            Some(guard) => Ok(RowLock { _guard: guard }),
            None => Err(stripe),
        };
        self.stripes().iter().map(lock).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::FutureExt;
    use futures::executor::block_on;

    use super::*;
    use crate::io::{Clock as _, SystemClock};

    #[test]
    fn all_locks_exclude_rows_that_are_locked_for_the_first_time_after_them() {
        let locks = RowLocks::default();
        let all = block_on(locks.lock_all());
        let mut row = pin!(locks.lock(b"row"));
        assert!(row.as_mut().now_or_never().is_none());
        let mut share = pin!(locks.share(b"row"));
        assert!(share.as_mut().now_or_never().is_none());
        assert!(!locks.try_share_beside(&mut HeldShares::default(), b"row"));
        drop(all);
        assert!(row.now_or_never().is_some());
        assert!(share.now_or_never().is_some());
    }

    #[test]
    fn while_all_locks_wait_for_one_that_is_held_others_are_to_be_had() {
        let locks = RowLocks::default();
        let mut rows: Vec<_> = (0..8).map(|n| format!("row-{n}")).collect();
        rows.sort_by_key(|row| RowLocks::stripe(row.as_bytes()));
        let last = rows.pop().unwrap();
        let held = block_on(locks.lock(last.as_bytes()));
        let mut all = pin!(locks.lock_all());
        assert!(all.as_mut().now_or_never().is_none());
        for row in &rows {
            assert!(locks.lock(row.as_bytes()).now_or_never().is_some(), "{row}");
        }
        // Who takes one that was waited for already is waited for in the same way.
        let held_meanwhile = locks.lock(rows[3].as_bytes()).now_or_never().unwrap();
        drop(held);
        assert!(all.as_mut().now_or_never().is_none());
        for row in rows.iter().filter(|row| **row != rows[3]).chain([&last]) {
            assert!(locks.lock(row.as_bytes()).now_or_never().is_some(), "{row}");
        }
        drop(held_meanwhile);
        let all = all.now_or_never().unwrap();
        assert!(locks.lock(last.as_bytes()).now_or_never().is_none());
        drop(all);
    }

    #[test]
    fn who_waits_to_share_a_row_has_a_turn_among_those_who_take_it_again_and_again() {
        let locks = RowLocks::default();
        let mut own = block_on(locks.lock(b"row"));
        let mut share = pin!(locks.share(b"row"));
        let clock = SystemClock::new();
        loop {
            assert!(share.as_mut().now_or_never().is_none());
            drop(own);
            let Some(again) = locks.lock(b"row").now_or_never() else { break };
            own = again;
            assert!(clock.monotonic_micros() < 10_000_000, "it is passed for ever");
        }
        assert!(share.now_or_never().is_some());
    }

    #[test]
    fn who_shares_a_row_waits_for_whom_has_it_and_not_for_each_other() {
        let locks = RowLocks::default();
        let shares = [block_on(locks.share(b"row")), block_on(locks.share(b"row"))];
        let mut held = HeldShares::default();
        assert!(locks.try_share_beside(&mut held, b"row"));
        // Who wants it for itself is not passed by those that come after.
        let mut own = pin!(locks.lock(b"row"));
        assert!(own.as_mut().now_or_never().is_none());
        assert!(!locks.try_share_beside(&mut HeldShares::default(), b"row"));
        let mut late = pin!(locks.share(b"row"));
        assert!(late.as_mut().now_or_never().is_none());
        drop((shares, held));
        let own = own.now_or_never().expect("nobody shares it any more");
        assert!(late.as_mut().now_or_never().is_none());
        drop(own);
        assert!(late.now_or_never().is_some());
    }
}
