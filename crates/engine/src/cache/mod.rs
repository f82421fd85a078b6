//! The block cache: parsed blocks of all SSTs under one budget of bytes.
//!
//! Blocks are keyed by file and offset. Files are immutable and their numbers are never reused, so an entry
//! is never stale; what a removed file leaves behind ages out. Data blocks, index partitions and filter
//! partitions share the budget, under a policy that weighs frequency as well as recency: a partition serves
//! a hundred data blocks, is used so much more often than any of them, and stays without a priority of its
//! own; and a scan that touches each block once does not push out what point reads come back to.

use std::fmt;
use std::sync::Arc;

use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::sst::{Block, Counter, FileId, SstMetrics};

/// Bytes of a typical cached block, from which the number of entries is estimated.
const BLOCK_BYTES_TYPICAL: u64 = 12 << 10;

/// What a cache did and holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheStats {
    /// Lookups that found their block.
    pub hits: u64,
    /// Lookups that did not.
    pub misses: u64,
    /// Bytes of the blocks in it.
    pub bytes: u64,
    /// Bytes that it may hold.
    pub capacity_bytes: u64,
    /// Blocks in it.
    pub blocks: u64,
}

/// Keeps parsed blocks. Safe to use from any thread.
pub trait BlockCache: Send + Sync + fmt::Debug {
    /// The block at `offset` of `file`, which counts as used.
    fn get(&self, file: FileId, offset: u64) -> Option<Arc<Block>>;
    /// The same without counting as a use, for compactions and estimates: they must not decide what stays.
    fn peek(&self, file: FileId, offset: u64) -> Option<Arc<Block>>;
    /// Puts a block in; another may have to go, and it may be this one.
    fn insert(&self, file: FileId, offset: u64, block: Arc<Block>);
    /// Figures.
    fn stats(&self) -> CacheStats;
    /// The counters of the SSTs that use this cache.
    fn sst_metrics(&self) -> &SstMetrics;
}

#[derive(Debug, Clone, Copy)]
struct ByBytes;

type Key = (FileId, u64);

impl Weighter<Key, Arc<Block>> for ByBytes {
    fn weight(&self, _key: &Key, block: &Arc<Block>) -> u64 {
        block.memory_bytes()
    }
}

/// A sharded cache with a CLOCK-Pro-like policy (the crate quick_cache), charged by bytes.
pub struct QuickBlockCache {
    blocks: Cache<Key, Arc<Block>, ByBytes>,
    hits: Counter,
    misses: Counter,
    sst_metrics: SstMetrics,
}

impl QuickBlockCache {
    /// A cache of at most `capacity_bytes`. The budget is divided among shards, and a block larger than a
    /// shard's part is not kept; its readers hold it as long as they need it.
    pub fn new(capacity_bytes: u64) -> Self {
        let items = (capacity_bytes / BLOCK_BYTES_TYPICAL).max(1) as usize;
        Self {
            blocks: Cache::with_weighter(items, capacity_bytes, ByBytes),
            hits: Counter::default(),
            misses: Counter::default(),
            sst_metrics: SstMetrics::default(),
        }
    }
}

impl fmt::Debug for QuickBlockCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuickBlockCache").field("stats", &self.stats()).finish()
    }
}

impl BlockCache for QuickBlockCache {
    fn get(&self, file: FileId, offset: u64) -> Option<Arc<Block>> {
        let found = self.blocks.get(&(file, offset));
        let counter = if found.is_some() { &self.hits } else { &self.misses };
        counter.increment();
        found
    }

    fn peek(&self, file: FileId, offset: u64) -> Option<Arc<Block>> {
        self.blocks.peek(&(file, offset))
    }

    fn insert(&self, file: FileId, offset: u64, block: Arc<Block>) {
        self.blocks.insert((file, offset), block);
    }

    fn stats(&self) -> CacheStats {
        CacheStats {
            hits: self.hits.get(),
            misses: self.misses.get(),
            bytes: self.blocks.weight(),
            capacity_bytes: self.blocks.capacity(),
            blocks: self.blocks.len() as u64,
        }
    }

    fn sst_metrics(&self) -> &SstMetrics {
        &self.sst_metrics
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sst::testing::filter_block;

    #[test]
    fn a_cache_stays_within_its_bytes_and_counts_hits_and_misses() {
        let cache = QuickBlockCache::new(1 << 20);
        assert!(cache.get(1, 0).is_none());
        for i in 0..1000 {
            cache.insert(1, i, Arc::new(filter_block(4096)));
        }
        let stats = cache.stats();
        assert!(stats.bytes <= 1 << 20 && stats.bytes > 1 << 18, "{stats:?}");
        let there = (0..1000).filter(|i| cache.get(1, *i).is_some()).count() as u64;
        assert_eq!(there, stats.blocks);
        assert_eq!(cache.stats().hits, there);
        assert_eq!(cache.stats().misses, 1 + 1000 - there);
        assert!(cache.get(2, 999).is_none(), "the file is part of the key");
    }

    #[test]
    fn peeking_counts_as_no_use() {
        let cache = QuickBlockCache::new(1 << 20);
        cache.insert(1, 0, Arc::new(filter_block(64)));
        assert!(cache.peek(1, 0).is_some());
        assert!(cache.peek(1, 1).is_none());
        assert_eq!((cache.stats().hits, cache.stats().misses), (0, 0));
    }
}
