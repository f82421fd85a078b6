//! The memory of index and filter partitions: which stay, and how much of the cache's budget is theirs.
//!
//! ```text
//! budget  |■■■■■ pinned ■■■■■|■■■ others, a clock ■■■|░░░ to the next step ░░░|        data blocks        |
//!         |--- at most half, and 5/8 of the share --|                          |
//!         |----------------- at most the partitions' share -------------------|-- the rest, at least --|
//! ```
//!
//! A partition is worth a hundred data blocks, since so many reads need it: it goes before any of them, up to
//! the share. What partitions do not use belongs to data blocks, whose capacity follows in steps (`steps.rs`).
//!
//! Within the share a clock decides (second chance). The ring holds the resident partitions of all SSTs that
//! are not pinned. When one more does not fit, the hand goes round: a partition that was used since it last
//! came by is spared once; one that was not is evicted. A partition enters unused, so that what is read
//! once leaves first.
//!
//! Pinned partitions, those of the upper levels, are outside the ring. A partition for which they leave no room, as they may once open
//! files keep more outside of the cache, is kept among the data blocks.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::CacheOptions;
use super::directory::{Directory, NOT_IN_RING, PartitionId};
use super::steps::DataShare;
use crate::sst::{Block, BlockKind, SstMetrics};

/// The part of the budget that pinned partitions may take. More would starve the partitions of the deep
/// levels, where most of the data and so most of the reads are.
const PINNED_DIVISOR: u64 = 2;

/// The part of the partitions' share that pinned ones may take: 5/8, which is half of the budget as long as the share is what it is by
/// default. More would leave the partitions of the deep levels nothing where the share is half of the budget or less.
const PINNED_OF_SHARE: (u64, u64) = (5, 8);

/// Entries that are spared for one that goes, at most: some ten microseconds, under the lock of all.
const SPARED_MAX: usize = 1 << 10;

/// The part of the budget from which on it is said that what open files keep outside of the cache takes it. Less is ordinary
/// where there is much data, beyond it data blocks have little left.
const HELD_TOLD_DIVISOR: u64 = 2;

/// What the partitions in memory amount to, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PartitionBytes {
    /// Index partitions, pinned ones included.
    pub index: u64,
    /// Filter partitions, pinned ones included.
    pub filter: u64,
    /// Of both: pinned.
    pub pinned: u64,
}

impl PartitionBytes {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.index + self.filter
    }

    fn of(&mut self, kind: BlockKind) -> &mut u64 {
        if kind == BlockKind::Filter { &mut self.filter } else { &mut self.index }
    }
}

/// Owns the memory of partitions. Filling and evicting take its lock; reading does not come here at all.
pub struct PartitionPool {
    /// Bytes that all partitions together may have.
    share_bytes: u64,
    /// Bytes that coarse filters may have.
    coarse_share_bytes: u64,
    ring: Mutex<Ring>,
    /// What data blocks have.
    rest: DataShare,
    metrics: Arc<SstMetrics>,
    /// Whether it was said that not all that should be pinned is.
    told: std::sync::Once,
    /// Whether it was said that little is left beside what open files keep.
    held_told: std::sync::Once,
}

#[derive(Debug, Default)]
struct Ring {
    entries: Vec<Entry>,
    hand: usize,
    bytes: PartitionBytes,
    /// Of the pinned files, as promised before their partitions are loaded.
    reserved_bytes: u64,
    /// What open files keep outside of the cache, and its budget has to pay for.
    held_bytes: u64,
    /// Of these: coarse filters.
    coarse_bytes: u64,
}

/// A resident partition.
#[derive(Debug)]
struct Entry {
    directory: Arc<Directory>,
    place: u32,
    kind: BlockKind,
    bytes: u64,
}

impl fmt::Debug for PartitionPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartitionPool")
            .field("share_bytes", &self.share_bytes)
            .field("bytes", &self.bytes())
            .finish()
    }
}

impl Ring {
    fn evictable_bytes(&self) -> u64 {
        self.bytes.total().saturating_sub(self.bytes.pinned)
    }

    /// Puts an entry behind all others.
    fn enter(&mut self, entry: Entry) {
        if let Some(slot) = entry.directory.slots().get(entry.place as usize) {
            slot.set_ring_at(self.entries.len() as u32);
        }
        self.entries.push(entry);
    }

    /// Takes the entry at `at` out; the last one comes into its place.
    fn leave(&mut self, at: usize) -> Option<Entry> {
        if at >= self.entries.len() {
            return None;
        }
        let entry = self.entries.swap_remove(at);
        if let Some(slot) = entry.directory.slots().get(entry.place as usize) {
            slot.set_ring_at(NOT_IN_RING);
        }
        if let Some(moved) = self.entries.get(at)
            && let Some(slot) = moved.directory.slots().get(moved.place as usize)
        {
            slot.set_ring_at(at as u32);
        }
        Some(entry)
    }

    /// Evicts one partition; `None` where there are none.
    fn evict(&mut self) -> Option<(BlockKind, Option<Arc<Block>>)> {
        // Every entry is spared once at most; readers could go on marking them for ever. And few at a time: a ring that was just filled is
        // marked all around.
        for _ in 0..=self.entries.len().min(SPARED_MAX) {
            if self.hand >= self.entries.len() {
                self.hand = 0;
            }
            let entry = self.entries.get(self.hand)?;
            let used =
                entry.directory.slots().get(entry.place as usize).is_some_and(|s| s.take_used());
            if !used {
                break;
            }
            self.hand += 1;
        }
        if self.hand >= self.entries.len() {
            self.hand = 0;
        }
        let entry = self.leave(self.hand)?;
        // The entry that came into its place is the newest, mostly: it has a round before it.
        self.hand += 1;
        *self.bytes.of(entry.kind) -= entry.bytes;
        let slot = entry.directory.slots().get(entry.place as usize);
        Some((entry.kind, slot.and_then(|s| s.put(None))))
    }
}

impl PartitionPool {
    /// Of a cache's budget, which `rest` divides.
    pub(super) fn new(options: &CacheOptions, metrics: Arc<SstMetrics>, rest: DataShare) -> Self {
        let budget = u128::from(rest.budget_bytes());
        let share = |percent: u32| (budget * u128::from(percent.min(100)) / 100) as u64;
        Self {
            share_bytes: share(options.partition_share_percent),
            coarse_share_bytes: share(options.coarse_share_percent),
            ring: Mutex::default(),
            rest,
            metrics,
            told: std::sync::Once::new(),
            held_told: std::sync::Once::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a partition that was read; others may have to go. One that is larger than what the share leaves
    /// beside the pinned is not kept here (false).
    pub fn insert(&self, directory: &Arc<Directory>, id: PartitionId, block: &Arc<Block>) -> bool {
        let place = directory.place(id);
        let Some(slot) = directory.slots().get(place) else { return false };
        let (kind, bytes) = (id.kind(), block.memory_bytes());
        let mut gone = Vec::new();
        let mut ring = self.lock();
        if !slot.is_empty() {
            return true;
        }
        let pinned = directory.is_pinned();
        if pinned {
            ring.bytes.pinned += bytes;
        }
        // What is promised beyond what would be promised now waits until it is there.
        let promised = ring.reserved_bytes.min(self.pinned_bytes_max(&ring));
        let pinned_bytes = promised.max(ring.bytes.pinned);
        let room = self.share(&ring).saturating_sub(pinned_bytes);
        let entering = if pinned { 0 } else { bytes };
        if entering > room {
            return false;
        }
        while ring.evictable_bytes() + entering > room {
            let Some((kind, block)) = ring.evict() else { break };
            self.metrics.kind(kind).evictions.increment();
            gone.push(block);
        }
        if !pinned {
            let directory = Arc::clone(directory);
            ring.enter(Entry { directory, place: place as u32, kind, bytes });
        }
        *ring.bytes.of(kind) += bytes;
        // Data blocks give way before the partition counts as there.
        drop(slot.put(Some(Arc::clone(block))));
        self.settle(ring);
        drop(gone);
        true
    }

    /// Promises room for all partitions of an SST, `bytes` in all, and keeps from then on whatever enters its
    /// directory. False where the pinned would outgrow their part of the budget: the SST's partitions then
    /// come and go like others.
    pub fn pin(&self, directory: &Arc<Directory>, bytes: u64) -> bool {
        let mut ring = self.lock();
        if directory.is_pinned() {
            return true;
        }
        let limit = self.pinned_bytes_max(&ring);
        if ring.reserved_bytes.saturating_add(bytes) > limit {
            drop(ring);
            self.told.call_once(|| {
                tracing::warn!(
                    limit_bytes = limit,
                    "the block cache is too small to keep index and filters of all upper levels in memory; \
                     some are read when needed"
                );
            });
            return false;
        }
        directory.pin(bytes);
        ring.reserved_bytes += bytes;
        for slot in directory.slots() {
            if let Some(entry) = ring.leave(slot.ring_at() as usize) {
                ring.bytes.pinned += entry.bytes;
            }
        }
        true
    }

    /// Lets the partitions of an SST that was pinned come and go like others.
    pub fn unpin(&self, directory: &Arc<Directory>) {
        let mut ring = self.lock();
        if !directory.is_pinned() {
            return;
        }
        ring.reserved_bytes = ring.reserved_bytes.saturating_sub(directory.unpin());
        for (place, kind, bytes) in directory.resident() {
            ring.bytes.pinned = ring.bytes.pinned.saturating_sub(bytes);
            ring.enter(Entry {
                directory: Arc::clone(directory),
                place: place as u32,
                kind,
                bytes,
            });
        }
    }

    /// Empties the directory of an SST that is closed.
    pub fn forget(&self, directory: &Arc<Directory>) {
        let mut gone = Vec::new();
        let mut ring = self.lock();
        let pinned = directory.is_pinned();
        if pinned {
            ring.reserved_bytes = ring.reserved_bytes.saturating_sub(directory.unpin());
        }
        for (place, kind, bytes) in directory.resident() {
            let Some(slot) = directory.slots().get(place) else { continue };
            if pinned {
                ring.bytes.pinned = ring.bytes.pinned.saturating_sub(bytes);
            } else {
                ring.leave(slot.ring_at() as usize);
            }
            let of_kind = ring.bytes.of(kind);
            *of_kind = of_kind.saturating_sub(bytes);
            gone.push(slot.put(None));
        }
        self.settle(ring);
        drop(gone);
    }

    /// Has the budget pay for what an open file keeps outside of the cache for as long as it is open, in bytes.
    pub fn hold(&self, bytes: u64) {
        let mut ring = self.lock();
        ring.held_bytes += bytes;
        let held_bytes = ring.held_bytes;
        self.settle(ring);
        if held_bytes > self.rest.budget_bytes() / HELD_TOLD_DIVISOR {
            self.held_told.call_once(|| {
                tracing::warn!(
                    cache_bytes = self.rest.budget_bytes(),
                    held_bytes,
                    "the top-level indexes, dictionaries and coarse filters of open files take more than half of the block cache; \
                     so much data needs more memory"
                );
            });
        }
    }

    /// The same for a file's coarse filter; false where those of open files have their share.
    pub fn hold_coarse(&self, bytes: u64) -> bool {
        let mut ring = self.lock();
        let coarse_bytes = ring.coarse_bytes.saturating_add(bytes);
        if coarse_bytes > self.coarse_share_bytes {
            return false;
        }
        ring.coarse_bytes = coarse_bytes;
        drop(ring);
        self.hold(bytes);
        true
    }

    /// It is not kept any longer.
    pub fn release_coarse(&self, bytes: u64) {
        let mut ring = self.lock();
        ring.coarse_bytes = ring.coarse_bytes.saturating_sub(bytes);
        drop(ring);
        self.release(bytes);
    }

    /// The file is closed.
    pub fn release(&self, bytes: u64) {
        let mut ring = self.lock();
        ring.held_bytes = ring.held_bytes.saturating_sub(bytes);
        self.settle(ring);
    }

    /// Bytes that stay as long as files are open: their top-level indexes, dictionaries and coarse filters.
    pub fn held_bytes(&self) -> u64 {
        self.lock().held_bytes
    }

    /// Figures.
    pub fn bytes(&self) -> PartitionBytes {
        self.lock().bytes
    }

    /// Partitions in memory that may be evicted.
    pub fn evictable(&self) -> usize {
        self.lock().entries.len()
    }

    /// Bytes that all partitions together may have now.
    fn share(&self, ring: &Ring) -> u64 {
        self.share_bytes.min(self.rest.others_bytes_max().saturating_sub(ring.held_bytes))
    }

    /// Bytes of them that pinned ones may have now.
    fn pinned_bytes_max(&self, ring: &Ring) -> u64 {
        let (part, of) = PINNED_OF_SHARE;
        (self.rest.budget_bytes() / PINNED_DIVISOR).min(self.share(ring) / of * part)
    }

    /// Lets go of the ring and tells data blocks what is left to them.
    fn settle(&self, ring: MutexGuard<'_, Ring>) {
        self.rest.note(ring.bytes.total() + ring.held_bytes);
        drop(ring);
        self.rest.follow();
    }
}

#[cfg(test)]
mod tests;
