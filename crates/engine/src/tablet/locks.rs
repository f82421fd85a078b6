//! Row locks: every write takes the lock of its row, so that a read-modify-write excludes all others of
//! the row between its read and its place in the log. Locks are striped: rows share a fixed number of
//! mutexes by hash. A holder never takes a second lock, so stripes cannot deadlock.

use std::sync::Arc;

use tokio::sync::{Mutex, OwnedMutexGuard};
use xxhash_rust::xxh3::xxh3_64;

/// Stripes per tablet. Fewer make unrelated rows wait for each other across a read-modify-write's disk
/// read; more only cost memory (about 40 bytes each).
const ROW_LOCK_STRIPES: usize = 1024;

/// The lock table of one tablet.
#[derive(Debug)]
pub(crate) struct RowLocks {
    stripes: Vec<Arc<Mutex<()>>>,
}

/// Excludes every other write of its row while it lives.
#[derive(Debug)]
pub struct RowLock {
    _guard: OwnedMutexGuard<()>,
}

impl RowLocks {
    pub(crate) fn new() -> Self {
        Self { stripes: (0..ROW_LOCK_STRIPES).map(|_| Arc::new(Mutex::new(()))).collect() }
    }

    /// Waits for the row's turn; first come, first served.
    pub(crate) async fn lock(&self, row: &[u8]) -> RowLock {
        let stripe = xxh3_64(row) as usize % ROW_LOCK_STRIPES;
        let mutex = self.stripes.get(stripe).expect("the remainder is below the count");
        RowLock { _guard: Arc::clone(mutex).lock_owned().await }
    }

    /// Waits until nobody holds a row's lock, and excludes all writes while the locks live. Taken in
    /// order, so two that take all of them do not wait for each other in a circle.
    pub(crate) async fn lock_all(&self) -> Vec<RowLock> {
        let mut locks = Vec::with_capacity(self.stripes.len());
        for mutex in &self.stripes {
            locks.push(RowLock { _guard: Arc::clone(mutex).lock_owned().await });
        }
        locks
    }
}
