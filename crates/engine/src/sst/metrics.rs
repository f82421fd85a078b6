//! Counters that many cores increment at once.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Stripes of a counter. Fewer would make cores share cache lines; more would cost memory for nothing, as
/// a counter is read rarely and a server has few of them.
const STRIPES: usize = 16;

#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe(AtomicU64);

/// A counter whose increments from different threads do not contend.
#[derive(Debug, Default)]
pub struct Counter {
    stripes: [Stripe; STRIPES],
}

static NEXT_STRIPE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static STRIPE: Cell<usize> = Cell::new(NEXT_STRIPE.fetch_add(1, Ordering::Relaxed) % STRIPES);
}

impl Counter {
    /// Adds one.
    #[inline]
    pub fn increment(&self) {
        if let Some(stripe) = self.stripes.get(STRIPE.get()) {
            stripe.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The sum so far.
    pub fn get(&self) -> u64 {
        self.stripes.iter().map(|s| s.0.load(Ordering::Relaxed)).sum()
    }
}

/// What filters and blocks did since the process began; one set per block cache.
#[derive(Debug, Default)]
pub struct SstMetrics {
    /// Filters asked, once per read and SST.
    pub filter_probes: Counter,
    /// Of these: answers that saved reading the SST.
    pub filter_negatives: Counter,
    /// Of these: "perhaps", and then the first seek found no record of the row. A column that is missing
    /// from a row that is there is not counted, since only the caller sees it.
    pub filter_false_positives: Counter,
    /// Blocks read from files.
    pub blocks_read: Counter,
}
