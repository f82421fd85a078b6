//! Counters that many cores increment at once, and what SSTs and their cache count with them.
//!
//! ```text
//! counter:  stripe 0 │ stripe 1 │ ... │ stripe 62 │ stripe 63        128 bytes each
//!           thread a   thread b         thread c    all other threads
//! ```
//!
//! A thread leases a stripe, the same in every counter, and is then the only one that writes it: an increment
//! is a load and a store of a line that no other core has, not a locked instruction. A point read counts half
//! a dozen things, so this is a part of what it costs. Threads beyond the leases share the last stripe, with
//! atomic additions. A lease ends with its thread; the lock over the leases orders the last store of one owner
//! before the first load of the next.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Stripes of a counter. Fewer would make cores share cache lines, each of which has one thread that reads; more would cost memory for
/// nothing: they are 8 KiB a counter, of which a server has some dozens.
const STRIPES: usize = 64;

/// The stripe of all threads that came too late for one of their own.
const SHARED: usize = STRIPES - 1;

/// One bit for each stripe that is leased.
static LEASES: Mutex<u64> = Mutex::new(0);

#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe(AtomicU64);

/// A counter whose increments from different threads do not contend.
#[derive(Debug)]
pub struct Counter {
    stripes: [Stripe; STRIPES],
}

impl Default for Counter {
    fn default() -> Self {
        Self { stripes: std::array::from_fn(|_| Stripe::default()) }
    }
}

/// A thread's hold on a stripe.
struct Lease(Cell<usize>);

impl Lease {
    fn take() -> Self {
        let mut leases = LEASES.lock().unwrap_or_else(PoisonError::into_inner);
        let free = (0..SHARED).find(|at| *leases & (1 << at) == 0);
        if let Some(at) = free {
            *leases |= 1 << at;
        }
        Self(Cell::new(free.unwrap_or(SHARED)))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let at = self.0.replace(SHARED);
        if at != SHARED {
            *LEASES.lock().unwrap_or_else(PoisonError::into_inner) &= !(1 << at);
        }
    }
}

thread_local! {
    static LEASE: Lease = Lease::take();
}

impl Counter {
    /// Adds one.
    #[inline]
    pub fn increment(&self) {
        self.add(1);
    }

    /// Adds `amount`.
    #[inline]
    pub fn add(&self, amount: u64) {
        // A thread that is ending may count in its destructors, after its lease has ended.
        let at = LEASE.try_with(|lease| lease.0.get()).unwrap_or(SHARED);
        let Some(Stripe(stripe)) = self.stripes.get(at) else { return };
        if at == SHARED {
            stripe.fetch_add(amount, Ordering::Relaxed);
        } else {
            let now = stripe.load(Ordering::Relaxed);
            stripe.store(now.wrapping_add(amount), Ordering::Relaxed);
        }
    }

    /// The sum so far.
    pub fn get(&self) -> u64 {
        self.stripes.iter().fold(0, |sum, s| sum.wrapping_add(s.0.load(Ordering::Relaxed)))
    }
}

/// What became of the lookups of one kind of block.
#[derive(Debug, Default)]
pub struct KindMetrics {
    /// Lookups that found the block in memory.
    pub hits: Counter,
    /// Lookups that did not.
    pub misses: Counter,
    /// Blocks that had to leave for others. Those of removed files are not counted.
    pub evictions: Counter,
}

/// What filters and blocks did since the process began; one set per block cache.
#[derive(Debug, Default)]
pub struct SstMetrics {
    /// Lookups of data blocks.
    pub data: KindMetrics,
    /// Lookups of index partitions.
    pub index: KindMetrics,
    /// Lookups of filter partitions.
    pub filter: KindMetrics,
    /// SSTs met by point reads: the row is within the SST's first and last. Together with `filter_probes` the
    /// utilisation of filters: the share of these that a filter could serve.
    pub point_lookups: Counter,
    /// Filters asked, once per read and SST.
    pub filter_probes: Counter,
    /// Of these: answers that saved reading the SST.
    pub filter_negatives: Counter,
    /// Of these: answers that the coarse filter gave, which needs no partition.
    pub filter_coarse_negatives: Counter,
    /// Of these: "perhaps", and then the first seek found no record of the row. A column that is missing
    /// from a row that is there is not counted, since only the caller sees it.
    pub filter_false_positives: Counter,
    /// Parts of filters that are damaged, and coarse filters that could not be read: the reads went on without.
    pub filter_damaged: Counter,
    /// Blocks read from files.
    pub blocks_read: Counter,
    /// Blocks that a read got from a load which another had under way.
    pub loads_shared: Counter,
}

impl SstMetrics {
    /// The counters of one kind of block.
    pub fn kind(&self, kind: super::BlockKind) -> &KindMetrics {
        match kind {
            super::BlockKind::Data | super::BlockKind::Value => &self.data,
            super::BlockKind::Index => &self.index,
            super::BlockKind::Filter => &self.filter,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::{Spawner, ThreadSpawner};
    use std::sync::Arc;

    #[test]
    fn nothing_is_lost_when_more_threads_count_than_there_are_stripes() {
        let counter = Arc::new(Counter::default());
        for _ in 0..3 {
            let threads: Vec<_> = (0..STRIPES * 2)
                .map(|_| {
                    let counter = Arc::clone(&counter);
                    let count = move || (0..1000).for_each(|_| counter.increment());
                    ThreadSpawner.spawn("count", Box::new(count)).unwrap()
                })
                .collect();
            for thread in threads {
                thread.join();
            }
        }
        counter.add(5);
        assert_eq!(counter.get(), 3 * STRIPES as u64 * 2 * 1000 + 5);
    }
}
