//! How often reads look into more than one place: what [merges for reads](crate::compaction::reads) go by.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// Looks that a thread keeps to itself before it tells a tablet: readers on all cores write to that line.
const TOLD_TOGETHER: u64 = 64;

/// What a look costs where blocks had to be loaded, in looks: 10 us of the processor and more of waiting, beside 1.6 us of one
/// in memory.
pub(super) const LOOKS_PER_LOAD: usize = 8;

thread_local! {
    /// Looks that this thread has told no tablet of. Those of all its tablets: the one that it tells gets those of others now
    /// and then, and others those of it.
    static UNTOLD: Cell<u64> = const { Cell::new(0) };
}

/// The looks of a tablet since its level 0 was merged.
#[derive(Debug, Default)]
pub(super) struct Looks(AtomicU64);

impl Looks {
    /// A read has looked into so many places that a merge would have spared it.
    pub(super) fn add(&self, more: usize) {
        if more == 0 {
            return;
        }
        UNTOLD.with(|untold| {
            let sum = untold.get() + more as u64;
            let is_told = sum >= TOLD_TOGETHER;
            untold.set(if is_told { 0 } else { sum });
            if is_told {
                self.0.fetch_add(sum, Ordering::Relaxed);
            }
        });
    }

    /// How many there were.
    pub(super) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Begins anew.
    pub(super) fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}
