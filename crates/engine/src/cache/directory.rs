//! The partition directory of one SST: a slot for each of its index and filter partitions, found by the
//! position that the resident top-level index or filter index gives.
//!
//! ```text
//! top-level index   0   1   2   3          filter index   0   1   2   3   4
//!                   │   │   │   │                         │   │   │   │   │
//! slots           [ B | - | B | B ]                     [ - | F | F | F | - ]       resident or empty
//!                     one array: index partitions, then filter partitions
//! ```
//!
//! So a resident partition costs a pointer load: no hash, no lock, no count of references that cores would
//! hand to each other. Reading never blocks and is safe against a concurrent eviction: a [`Resident`] keeps its
//! block alive. Only the [`PartitionPool`](super::PartitionPool) fills and clears slots, under its lock.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use arc_swap::{ArcSwapOption, Guard};

use crate::sst::{Block, BlockKind, fetch_spotted};
use crate::touch::Whereabouts;

/// `Slot::ring_at` of a partition that the pool's clock does not know: empty, or pinned.
pub(super) const NOT_IN_RING: u32 = u32::MAX;

/// A place for one partition.
#[derive(Debug)]
pub(super) struct Slot {
    block: ArcSwapOption<Block>,
    /// Set by readers, taken back by the clock as its hand passes: the second chance.
    used: AtomicBool,
    /// Where the partition stands in the pool's ring. Only used under the pool's lock.
    ring_at: AtomicU32,
    /// Where a search of the partition looks: of the index its heads, of a filter its [spot](Block::spot).
    searched: Whereabouts,
}

impl Default for Slot {
    fn default() -> Self {
        Self {
            block: ArcSwapOption::empty(),
            used: AtomicBool::new(false),
            ring_at: AtomicU32::new(NOT_IN_RING),
            searched: Whereabouts::default(),
        }
    }
}

impl Slot {
    pub(super) fn ring_at(&self) -> u32 {
        self.ring_at.load(Ordering::Relaxed)
    }

    pub(super) fn set_ring_at(&self, at: u32) {
        self.ring_at.store(at, Ordering::Relaxed);
    }

    /// Whether it was used since this was last asked.
    pub(super) fn take_used(&self) -> bool {
        self.used.load(Ordering::Relaxed) && self.used.swap(false, Ordering::Relaxed)
    }

    /// The partition, if it is in memory; it then counts as used.
    #[inline]
    fn get(&self) -> Option<Resident> {
        let found = Resident::new(self.block.load())?;
        found.fetch_fields();
        // A store only where it changes something: else all readers would pull the line back and forth.
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
        Some(found)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.block.load().is_none()
    }

    pub(super) fn put(&self, block: Option<Arc<Block>>) -> Option<Arc<Block>> {
        self.used.store(false, Ordering::Relaxed);
        match block.as_ref().map_or(0, |block| block.spot()) {
            0 => self.searched.note(block.as_ref().map_or(&[], |block| block.searched())),
            spot => self.searched.set(spot),
        }
        self.block.swap(block)
    }
}

/// A partition in memory. Holds it without a count that other threads write to; keep it for the moment of a
/// lookup, and take [`Resident::to_arc`] for longer, since a thread has only a few of these for free.
#[derive(Debug)]
pub struct Resident(Guard<Option<Arc<Block>>>);

impl Resident {
    fn new(guard: Guard<Option<Arc<Block>>>) -> Option<Self> {
        guard.is_some().then_some(Self(guard))
    }

    /// The block for as long as the caller likes.
    pub fn to_arc(&self) -> Arc<Block> {
        Arc::clone(self.shared())
    }

    fn shared(&self) -> &Arc<Block> {
        self.0.as_ref().expect("a resident partition is made of a full slot only")
    }
}

impl From<Arc<Block>> for Resident {
    fn from(block: Arc<Block>) -> Self {
        Self(Guard::from_inner(Some(block)))
    }
}

impl Deref for Resident {
    type Target = Block;

    fn deref(&self) -> &Block {
        self.shared()
    }
}

/// A partition of an SST by its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartitionId {
    /// The entry of the top-level index.
    Index(usize),
    /// The entry of the filter index.
    Filter(usize),
}

impl PartitionId {
    /// What kind of block it is.
    pub fn kind(self) -> BlockKind {
        match self {
            Self::Index(_) => BlockKind::Index,
            Self::Filter(_) => BlockKind::Filter,
        }
    }
}

/// The partitions of one SST that are in memory.
#[derive(Debug, Default)]
pub struct Directory {
    slots: Box<[Slot]>,
    /// Slots before those of filter partitions.
    index_len: usize,
    /// Whether its partitions stay whatever comes. Only written under the pool's lock.
    pinned: AtomicBool,
    /// What the pool has promised to keep of it while it is pinned, in bytes; read and written under the pool's lock.
    promised_bytes: AtomicU64,
}

impl Directory {
    /// Empty slots for an SST with so many partitions.
    pub fn new(index_partitions: usize, filter_partitions: usize) -> Arc<Self> {
        let slots = std::iter::repeat_with(Slot::default);
        let slots = slots.take(index_partitions + filter_partitions).collect();
        let (pinned, promised_bytes) = (AtomicBool::new(false), AtomicU64::new(0));
        Arc::new(Self { slots, index_len: index_partitions, pinned, promised_bytes })
    }

    /// The index partition, if it is in memory; it then counts as used.
    #[inline]
    pub fn index(&self, at: usize) -> Option<Resident> {
        let slot = self.slots.get(self.place(PartitionId::Index(at)))?;
        slot.searched.fetch();
        slot.get()
    }

    /// The filter partition, if it is in memory, which will be asked for this entry; it then counts as used.
    #[inline]
    pub fn filter(&self, at: usize, entry: u64) -> Option<Resident> {
        let slot = self.slots.get(self.place(PartitionId::Filter(at)))?;
        fetch_spotted(slot.searched.get(), entry);
        slot.get()
    }

    /// The same without counting as a use.
    pub fn peek(&self, id: PartitionId) -> Option<Resident> {
        Resident::new(self.slots.get(self.place(id))?.block.load())
    }

    /// Bytes of the partitions in memory. Looks at each slot.
    pub fn partition_bytes(&self) -> u64 {
        let blocks =
            self.slots.iter().filter_map(|s| s.block.load().as_ref().map(|b| b.memory_bytes()));
        blocks.sum()
    }

    /// Bytes of the slots themselves.
    pub fn slot_bytes(&self) -> u64 {
        size_of_val::<[Slot]>(&self.slots) as u64
    }

    /// Whether its partitions stay in memory.
    pub fn is_pinned(&self) -> bool {
        self.pinned.load(Ordering::Relaxed)
    }

    /// Pins it, with so many bytes promised.
    pub(super) fn pin(&self, promised_bytes: u64) {
        self.promised_bytes.store(promised_bytes, Ordering::Relaxed);
        self.pinned.store(true, Ordering::Relaxed);
    }

    /// Lets it go; returns what was promised.
    pub(super) fn unpin(&self) -> u64 {
        self.pinned.store(false, Ordering::Relaxed);
        self.promised_bytes.swap(0, Ordering::Relaxed)
    }

    /// Where its slot is among all.
    #[inline]
    pub(super) fn place(&self, id: PartitionId) -> usize {
        match id {
            PartitionId::Index(at) if at < self.index_len => at,
            PartitionId::Index(_) => usize::MAX,
            PartitionId::Filter(at) => self.index_len.saturating_add(at),
        }
    }

    /// Place, kind and bytes of what is in memory.
    pub(super) fn resident(&self) -> Vec<(usize, BlockKind, u64)> {
        let blocks = self.slots.iter().enumerate().filter_map(|(place, slot)| {
            let kind = if place < self.index_len { BlockKind::Index } else { BlockKind::Filter };
            slot.block.load().as_ref().map(|block| (place, kind, block.memory_bytes()))
        });
        blocks.collect()
    }

    pub(super) fn slots(&self) -> &[Slot] {
        &self.slots
    }
}
