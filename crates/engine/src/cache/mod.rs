//! Memory for blocks of SSTs: one budget of bytes, two priorities.
//!
//! ```text
//! one budget
//! ├── partitions   index and filter partitions, found by (SST, position) without a hash or a lock;
//! │                a clock among them; those of the upper levels pinned         directory.rs, pool.rs
//! └── data blocks  found by (file, offset); a policy that weighs frequency as well as recency,
//!     │            with what partitions leave of the budget                    blocks.rs, steps.rs
//!     └── again    asked for again, they are found by their position in the index partition     slots.rs
//! loads under way  the same block is read once, however many wait for it       flights.rs
//! ```
//!
//! Files are immutable and their numbers are never reused, so an entry is never stale. What a removed file
//! leaves of partitions goes at once, with its reader; what it leaves of data blocks ages out.
//!
//! What a compaction reads enters nowhere. What a scan reads enters on probation: its data blocks as the
//! policy has it, its index partitions among the data blocks, and in the directory only when they are asked for
//! again. So a scan that touches each block once pushes out neither the partitions nor the data blocks that
//! point reads come back to.

mod ahead;
mod blocks;
mod directory;
mod flights;
mod pool;
mod slots;
mod steps;

use std::fmt;
use std::sync::Arc;

use crate::sst::{Block, FileId, SstMetrics};

pub use ahead::Ahead;
pub use blocks::QuickBlockCache;
pub(crate) use blocks::TABLE_BYTES;
pub use directory::{Directory, PartitionId, Resident};
pub use flights::Flights;
pub(crate) use flights::{Awaiting, Leader, Load, Loaded};
pub use pool::{PartitionBytes, PartitionPool};
pub(crate) use slots::{ARC_BYTES, DataSlots, Residence, SLOT_BYTES};

/// The part of the budget that partitions may take, in percent. A partition serves a hundred data blocks, so
/// it is worth more than any of them; but a cache without data blocks would read the device for a row that was
/// read a moment ago. At 80 a cache too small for its partitions still keeps a fifth for such rows; one
/// that is large enough never comes to the limit, since partitions are about 2 % of the data.
pub const PARTITION_SHARE_PERCENT: u32 = 80;

/// The part of the budget that the coarse filters of open files may take, in percent. They halve the reads of absent rows where the
/// cache is smaller than the filters, for a sixth of their memory, and are there whether or not anybody asks for such rows; a
/// quarter is enough for some 300 times as much data as the cache has, and leaves the rest to what is asked for.
pub const COARSE_SHARE_PERCENT: u32 = 25;

/// The part of the budget below which the data blocks of open files are taken to fit all: the rest is for their fields, for index
/// and filter partitions, and for values that have files of their own.
const ROOM_FOR_ALL_DIVISOR: u64 = 2;

/// How a cache divides its budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheOptions {
    /// Bytes for partitions and data blocks together.
    pub capacity_bytes: u64,
    /// Percent of these that partitions may take; at most 100.
    pub partition_share_percent: u32,
    /// Percent of these that the coarse filters of open files may take; at most 100.
    pub coarse_share_percent: u32,
}

impl CacheOptions {
    /// With the default shares.
    pub fn new(capacity_bytes: u64) -> Self {
        Self {
            capacity_bytes,
            partition_share_percent: PARTITION_SHARE_PERCENT,
            coarse_share_percent: COARSE_SHARE_PERCENT,
        }
    }
}

/// One kind of block in a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KindStats {
    /// Lookups that found their block.
    pub hits: u64,
    /// Lookups that did not.
    pub misses: u64,
    /// Blocks that had to leave for others.
    pub evictions: u64,
    /// Bytes of those in memory. Partitions among the data blocks count as data.
    pub bytes: u64,
}

/// What a cache did and holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheStats {
    /// Lookups that found their block, of any kind.
    pub hits: u64,
    /// Lookups that did not.
    pub misses: u64,
    /// Bytes of the blocks in it.
    pub bytes: u64,
    /// Bytes that it may hold.
    pub capacity_bytes: u64,
    /// Data blocks in it.
    pub blocks: u64,
    /// Data blocks.
    pub data: KindStats,
    /// Index partitions.
    pub index: KindStats,
    /// Filter partitions.
    pub filter: KindStats,
    /// Bytes of index and filter partitions that are pinned.
    pub pinned_bytes: u64,
    /// Blocks that were had from a load which another read had under way.
    pub loads_shared: u64,
    /// What filters did.
    pub filters: FilterStats,
}

/// What filters did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FilterStats {
    /// SSTs that point reads met with the row between their first and last.
    pub lookups: u64,
    /// Of these: a filter was asked.
    pub probes: u64,
    /// Of the probes: it said no, and the SST was not read.
    pub negatives: u64,
    /// Of these: by the coarse filter, without a look at a partition.
    pub coarse_negatives: u64,
    /// Of the probes: it said perhaps.
    pub positives: u64,
    /// Of the positives: the row was not there.
    pub false_positives: u64,
}

impl FilterStats {
    /// The share of lookups that a filter served, 0 to 1; 1 without lookups.
    pub fn utilisation(&self) -> f64 {
        if self.lookups == 0 { 1.0 } else { self.probes as f64 / self.lookups as f64 }
    }
}

/// Keeps parsed blocks. Safe to use from any thread.
pub trait BlockCache: Send + Sync + fmt::Debug {
    /// The data block at `offset` of `file`, which counts as used.
    fn get(&self, file: FileId, offset: u64) -> Option<Arc<Block>>;
    /// A block of this place was found without the cache, in its slot: it counts as found and as used.
    fn found(&self, file: FileId, offset: u64, block: &Arc<Block>);
    /// A partition among the data blocks. It counts as used, and is counted as found or missed among its like.
    fn get_partition(&self, file: FileId, offset: u64) -> Option<Arc<Block>>;
    /// The same as `get` without counting as a use, for compactions and estimates: they must not decide what stays.
    fn peek(&self, file: FileId, offset: u64) -> Option<Arc<Block>>;
    /// Puts a data block in, or an index partition on probation, or a partition for which the others leave no room; another may have to go,
    /// and it may be this one.
    fn insert(&self, file: FileId, offset: u64, block: Arc<Block>);
    /// Takes a block out, if it is in.
    fn take(&self, file: FileId, offset: u64) -> Option<Arc<Block>>;
    /// A file is open, whose data blocks have so many bytes in memory.
    fn opened(&self, data_bytes: u64);
    /// It is closed.
    fn closed(&self, data_bytes: u64);
    /// Whether the data blocks of all open files fit, so that none that is brought in has to go for another.
    fn has_room_for_all(&self) -> bool;
    /// The memory of partitions.
    fn partitions(&self) -> &PartitionPool;
    /// Figures.
    fn stats(&self) -> CacheStats;
    /// How often something was not in it: the reads that went to the device, but for what was read past the cache.
    fn misses(&self) -> u64;
    /// The counters of the SSTs that use this cache.
    fn sst_metrics(&self) -> &SstMetrics;
    /// The loads under way.
    fn flights(&self) -> &Arc<Flights>;
    /// What scans have read ahead and not come to.
    fn ahead(&self) -> &Arc<Ahead>;
}
