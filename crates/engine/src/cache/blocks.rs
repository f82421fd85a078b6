//! Data blocks in memory: the crate quick_cache, charged by bytes.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use quick_cache::sync::Cache;
use quick_cache::{DefaultHashBuilder, Lifecycle, Weighter};

use super::steps::{DataShare, HOT_PART, REMEMBERED_PART, STEPS, Steps};
use super::{
    Ahead, BlockCache, CacheOptions, CacheStats, FilterStats, Flights, KindStats, PartitionPool,
    ROOM_FOR_ALL_DIVISOR,
};
use crate::sst::{Block, Counter, FileId, KindMetrics, SstMetrics};

/// Bytes of a typical cached block, from which the number of entries, and so of shards and remembered keys, is
/// estimated: a page of the device and what it costs to keep.
const BLOCK_BYTES_TYPICAL: u64 = 4 << 10;

/// Bytes that the hash table takes for a block: its entry, and half of that of an evicted block whose key is remembered.
/// A mean: what doubles as it grows is half full, or full.
pub(crate) const TABLE_BYTES: usize = 112;

/// Bytes that a shard should have at least, so that a block of the usual sizes fits into it with others.
const SHARD_BYTES_MIN: u64 = 1 << 20;

/// Shards of a large cache; one is locked for a lookup. More than cores by far, so that they rarely meet.
const SHARDS_MAX: u64 = 64;

/// Epochs in which as many blocks are evicted as fit. More would tell the policy of uses that it does not tell
/// apart; fewer would let a block that is used all the time wait longer than it takes to be evicted.
const EPOCHS_PER_TURNOVER: u64 = 16;

#[derive(Debug, Clone, Copy)]
struct ByBytes;

type Key = (FileId, u64);

impl Weighter<Key, Arc<Block>> for ByBytes {
    fn weight(&self, _key: &Key, block: &Arc<Block>) -> u64 {
        block.memory_bytes()
    }
}

/// Counts evictions, and frees what was evicted after the shard's lock is let go.
#[derive(Debug, Clone)]
struct Evictions {
    metrics: Arc<SstMetrics>,
    epoch: Arc<Epoch>,
}

/// The time of the cache, which goes on as blocks are evicted.
#[derive(Debug)]
struct Epoch {
    now: AtomicU32,
    evicted: Apart,
    /// Blocks that are evicted in an epoch.
    blocks: u64,
}

/// Away from what is read with each hit.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Apart(AtomicU64);

impl Epoch {
    fn evicted(&self) {
        let evicted = self.evicted.0.fetch_add(1, Ordering::Relaxed) + 1;
        if evicted.is_multiple_of(self.blocks) {
            self.now.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What one insertion evicted: mostly one block.
#[derive(Debug, Default)]
struct Evicted {
    first: Option<Arc<Block>>,
    others: Vec<Arc<Block>>,
}

impl Lifecycle<Key, Arc<Block>> for Evictions {
    type RequestState = Evicted;

    fn on_evict(&self, state: &mut Evicted, _key: Key, block: Arc<Block>) {
        self.metrics.kind(block.kind()).evictions.increment();
        self.epoch.evicted();
        block.residence().leave(&block);
        if state.first.is_none() {
            state.first = Some(block);
        } else {
            state.others.push(block);
        }
    }
}

type Blocks = Cache<Key, Arc<Block>, ByBytes, DefaultHashBuilder, Evictions>;

/// A sharded cache with a CLOCK-Pro-like policy for data blocks, beside the pool of partitions.
pub struct QuickBlockCache {
    capacity_bytes: u64,
    blocks: Arc<Blocks>,
    partitions: PartitionPool,
    flights: Arc<Flights>,
    ahead: Arc<Ahead>,
    metrics: Arc<SstMetrics>,
    epoch: Arc<Epoch>,
    /// Bytes that the data blocks of open files would take.
    open_bytes: AtomicU64,
}

impl QuickBlockCache {
    /// A cache of at most `capacity_bytes`, with the default shares.
    pub fn new(capacity_bytes: u64) -> Self {
        Self::with_options(CacheOptions::new(capacity_bytes))
    }

    /// A cache. The budget of data blocks is divided among shards, and a block larger than a shard's part is
    /// not kept; its readers hold it as long as they need it.
    pub fn with_options(options: CacheOptions) -> Self {
        let capacity_bytes = options.capacity_bytes;
        let metrics = Arc::new(SstMetrics::default());
        let shards = (capacity_bytes / SHARD_BYTES_MIN).clamp(1, SHARDS_MAX).next_power_of_two();
        let steps = Steps::new(capacity_bytes, shards, BLOCK_BYTES_TYPICAL);
        let quick = quick_cache::OptionsBuilder::new()
            .estimated_items_capacity(steps.blocks() as usize)
            .weight_capacity(steps.bytes(STEPS))
            .hot_allocation(HOT_PART)
            .ghost_allocation(REMEMBERED_PART)
            .shards(shards as usize)
            .build()
            .expect("both capacities were given");
        let epoch = Arc::new(Epoch {
            now: AtomicU32::new(0),
            evicted: Apart::default(),
            blocks: (steps.blocks() / EPOCHS_PER_TURNOVER).max(1),
        });
        let blocks = Arc::new(Blocks::with_options(
            quick,
            ByBytes,
            DefaultHashBuilder::default(),
            Evictions { metrics: Arc::clone(&metrics), epoch: Arc::clone(&epoch) },
        ));
        let resized = Arc::clone(&blocks);
        let resize = Box::new(move |bytes| resized.set_capacity(bytes));
        let rest = DataShare::new(capacity_bytes, steps, resize);
        let partitions = PartitionPool::new(&options, Arc::clone(&metrics), rest);
        let (flights, open_bytes) = (Arc::default(), AtomicU64::new(0));
        let ahead = Arc::new(Ahead::new(capacity_bytes));
        Self { capacity_bytes, blocks, partitions, flights, ahead, metrics, epoch, open_bytes }
    }
}

impl fmt::Debug for QuickBlockCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuickBlockCache").field("stats", &self.stats()).finish()
    }
}

fn kind_stats(counted: &KindMetrics, bytes: u64) -> KindStats {
    let KindMetrics { hits, misses, evictions } = counted;
    KindStats { hits: hits.get(), misses: misses.get(), evictions: evictions.get(), bytes }
}

impl BlockCache for QuickBlockCache {
    fn get(&self, file: FileId, offset: u64) -> Option<Arc<Block>> {
        let found = self.blocks.get(&(file, offset));
        let counter: &Counter =
            if found.is_some() { &self.metrics.data.hits } else { &self.metrics.data.misses };
        counter.increment();
        found
    }

    fn found(&self, file: FileId, offset: u64, block: &Arc<Block>) {
        self.metrics.data.hits.increment();
        if block.residence().is_news(self.epoch.now.load(Ordering::Relaxed)) {
            drop(self.blocks.get(&(file, offset)));
        }
    }

    fn get_partition(&self, file: FileId, offset: u64) -> Option<Arc<Block>> {
        self.blocks.get(&(file, offset))
    }

    fn peek(&self, file: FileId, offset: u64) -> Option<Arc<Block>> {
        self.blocks.peek(&(file, offset))
    }

    fn insert(&self, file: FileId, offset: u64, block: Arc<Block>) {
        // What it replaces, where two reads brought it at once, must not stay in a slot.
        if let Some(other) = self.blocks.peek(&(file, offset)) {
            other.residence().leave(&other);
        }
        self.blocks.insert((file, offset), block);
    }

    fn take(&self, file: FileId, offset: u64) -> Option<Arc<Block>> {
        let (_, block) = self.blocks.remove(&(file, offset))?;
        block.residence().leave(&block);
        Some(block)
    }

    fn opened(&self, data_bytes: u64) {
        self.open_bytes.fetch_add(data_bytes, Ordering::Relaxed);
    }

    fn closed(&self, data_bytes: u64) {
        self.open_bytes.fetch_sub(data_bytes, Ordering::Relaxed);
    }

    fn has_room_for_all(&self) -> bool {
        self.open_bytes.load(Ordering::Relaxed) <= self.capacity_bytes / ROOM_FOR_ALL_DIVISOR
    }

    fn partitions(&self) -> &PartitionPool {
        &self.partitions
    }

    fn misses(&self) -> u64 {
        let m = &self.metrics;
        m.data.misses.get() + m.index.misses.get() + m.filter.misses.get()
    }

    fn stats(&self) -> CacheStats {
        let m = &self.metrics;
        let partitions = self.partitions.bytes();
        let data = kind_stats(&m.data, self.blocks.weight());
        let index = kind_stats(&m.index, partitions.index);
        let filter = kind_stats(&m.filter, partitions.filter);
        let (probes, negatives) = (m.filter_probes.get(), m.filter_negatives.get());
        CacheStats {
            hits: data.hits + index.hits + filter.hits,
            misses: self.misses(),
            bytes: data.bytes + partitions.total(),
            capacity_bytes: self.capacity_bytes,
            blocks: self.blocks.len() as u64,
            data,
            index,
            filter,
            pinned_bytes: partitions.pinned,
            loads_shared: m.loads_shared.get(),
            filters: FilterStats {
                lookups: m.point_lookups.get(),
                probes,
                negatives,
                coarse_negatives: m.filter_coarse_negatives.get(),
                positives: probes.saturating_sub(negatives),
                false_positives: m.filter_false_positives.get(),
            },
        }
    }

    fn sst_metrics(&self) -> &SstMetrics {
        &self.metrics
    }

    fn flights(&self) -> &Arc<Flights> {
        &self.flights
    }

    fn ahead(&self) -> &Arc<Ahead> {
        &self.ahead
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{Directory, PartitionId};
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

    #[test]
    fn data_blocks_have_what_partitions_leave_of_the_budget() {
        let capacity = 1 << 20;
        let cache = QuickBlockCache::new(capacity);
        for i in 0..1000 {
            cache.insert(1, i, Arc::new(filter_block(4096)));
        }
        let full = cache.stats().data.bytes;
        let directory = Directory::new(0, 100);
        for at in 0..100 {
            let block = Arc::new(filter_block(4096));
            cache.partitions().insert(&directory, PartitionId::Filter(at), &block);
            let stats = cache.stats();
            assert!(stats.bytes <= capacity, "{stats:?}");
        }
        let stats = cache.stats();
        assert!(stats.filter.bytes > 400 << 10, "{stats:?}");
        assert!(stats.data.bytes < full - (380 << 10), "{stats:?}");
        cache.partitions().forget(&directory);
        assert_eq!(cache.stats().filter.bytes, 0);
        for i in 0..1000 {
            cache.insert(2, i, Arc::new(filter_block(4096)));
        }
        assert!(cache.stats().data.bytes > full - (64 << 10), "{:?}", cache.stats());
    }

    #[test]
    fn a_block_that_comes_back_stays_however_often_partitions_have_come_and_gone() {
        let cache = QuickBlockCache::new(1 << 20);
        let block = Arc::new(filter_block(4096));
        let partition = Arc::new(filter_block(16 << 10));
        for round in 0..1000 {
            let directory = Directory::new(0, 40);
            for at in 0..=round % 40 {
                cache.partitions().insert(&directory, PartitionId::Filter(at), &partition);
            }
            cache.partitions().forget(&directory);
        }
        for i in 0..300 {
            cache.insert(1, i, Arc::clone(&block));
        }
        let back = (0..300).find(|i| cache.peek(1, *i).is_none()).unwrap();
        cache.insert(1, back, Arc::clone(&block));
        for i in 0..1000 {
            cache.insert(2, i, Arc::clone(&block));
        }
        assert!(cache.peek(2, 0).is_none(), "what is read once leaves");
        assert!(cache.peek(1, back).is_some(), "what was evicted and asked for again stays");
    }
    #[test]
    fn the_table_takes_what_blocks_are_charged_with_for_it() {
        let block = Arc::new(filter_block(4096));
        let each = |mib: u64| {
            let cache = QuickBlockCache::new(mib << 20);
            for i in 0..mib * 1024 {
                cache.insert(1, i, Arc::clone(&block));
            }
            let used = cache.blocks.memory_used();
            used.total() as u64 / cache.stats().blocks
        };
        let mean = (16..32).map(each).sum::<u64>() / 16;
        assert!((TABLE_BYTES / 4 * 3..=TABLE_BYTES).contains(&(mean as usize)), "{mean}");
    }
}
