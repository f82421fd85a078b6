//! What scans have read ahead and not come to yet, of all together.
//!
//! A scan holds what it was supplied with until it has passed it, since the cache may have let go of that by then. Each holds little
//! beside a cache; hundreds, whose clients are slow or whose turn on a core is long in coming, hold gigabytes. So they are counted,
//! and where they have more than their share, each reads ahead no further than its first step, until they have passed some of it.

use std::sync::atomic::{AtomicU64, Ordering};

/// The share of the cache's bytes that scans may have ahead together. Lower: fewer scans read ahead as far as pays. Higher: more beside
/// the cache that nobody set.
const CACHE_PART: u64 = 8;

/// What they may have in any case: as much as one scan reads ahead.
const SHARE_BYTES_MIN: u64 = 8 << 20;

/// Bytes that all scans have ahead.
#[derive(Debug)]
pub struct Ahead {
    bytes: AtomicU64,
    share_bytes: u64,
}

impl Ahead {
    /// Beside a cache of so many bytes.
    pub(super) fn new(cache_bytes: u64) -> Self {
        let share_bytes = (cache_bytes / CACHE_PART).max(SHARE_BYTES_MIN);
        Self { bytes: AtomicU64::new(0), share_bytes }
    }

    /// One has `now` bytes where it had `before`.
    pub(crate) fn change(&self, before: u64, now: u64) {
        if now >= before {
            self.bytes.fetch_add(now - before, Ordering::Relaxed);
        } else {
            self.bytes.fetch_sub(before - now, Ordering::Relaxed);
        }
    }

    /// Whether they have more than their share.
    pub(crate) fn is_over(&self) -> bool {
        self.bytes() > self.share_bytes
    }

    /// Bytes that they have, but for what is too little to be counted.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}
