//! Places for the data blocks that one index partition names, found by their position in it.
//!
//! ```text
//! index partition   entry 0   entry 1   entry 2   entry 3  ...
//!                      │         │         │         │
//! slots              [ B    |    -    |    B    |    - ]          a block that was asked for again, or empty
//!                      ▲ │
//!          vacated by  │ └──► block ── home ──► (these slots, 0)
//!          its eviction
//! ```
//!
//! Whoever has the partition finds its blocks by a pointer load: no hash, and no lock that other cores write to. The
//! hash table of [`QuickBlockCache`](super::QuickBlockCache) owns the blocks and decides which stay. A block gets its
//! slot when it is found there for the first time, so that what is read once costs no slot; and loses it as it is
//! evicted, so that a slot keeps no block beyond the budget.
//!
//! A use by a slot is told to the policy once an *epoch*: as long as a sixteenth of the blocks takes to be evicted.
//! The policy cannot tell more uses apart; and where nothing is evicted, it need not know.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use arc_swap::{ArcSwapOption, Guard};

use crate::sst::Block;

type Slot = ArcSwapOption<Block>;

/// Bytes of a slot.
pub(crate) const SLOT_BYTES: usize = size_of::<Slot>();

/// Bytes before what an [`Arc`] points to: its two counts.
pub(crate) const ARC_BYTES: usize = 2 * size_of::<usize>();

/// The slots of one index partition. Takes memory for them once a block enters; the partition is charged with it from the
/// start ([`DataSlots::bytes`]), since what a block is charged with must not change while it is in the cache.
pub(crate) struct DataSlots {
    slots: OnceLock<Box<[Slot]>>,
    len: usize,
}

/// Where a block stands beside the hash table, and when its use was last told.
#[derive(Debug, Default)]
pub(crate) struct Residence {
    home: Mutex<Home>,
    told: AtomicU32,
}

#[derive(Debug, Default)]
struct Home {
    slots: Weak<DataSlots>,
    at: usize,
}

impl fmt::Debug for DataSlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataSlots").field("len", &self.len).finish_non_exhaustive()
    }
}

impl DataSlots {
    /// Empty slots for the data blocks of a partition.
    pub(crate) fn new(len: usize) -> Arc<Self> {
        Arc::new(Self { slots: OnceLock::new(), len })
    }

    /// Bytes of memory that slots for so many data blocks take, all told.
    pub(crate) const fn bytes_of(len: usize) -> usize {
        ARC_BYTES + size_of::<Self>() + len * SLOT_BYTES
    }

    /// The same of these.
    pub(crate) fn bytes(&self) -> usize {
        Self::bytes_of(self.len)
    }

    /// The block in a slot. What is looked at in it is on its way into the processor's cache before the reference is counted: the
    /// processor waits for the line of the count, and begins nothing meanwhile.
    #[inline]
    pub(crate) fn get(&self, at: usize) -> Option<Arc<Block>> {
        let slot = self.slots.get()?.get(at)?.load();
        let block = slot.as_ref()?;
        block.fetch_fields();
        block.fetch_searched();
        Guard::into_inner(slot)
    }

    /// Begins to fetch the fields of the block in a slot into the processor's cache.
    #[inline]
    pub(crate) fn fetch(&self, at: usize) {
        let Some(slot) = self.slots.get().and_then(|slots| slots.get(at)) else { return };
        if let Some(block) = slot.load().as_ref() {
            block.fetch_fields();
        }
    }

    /// Puts a block into its slot, while `owned` says that the hash table has it.
    pub(crate) fn put(
        self: &Arc<Self>,
        at: usize,
        block: &Arc<Block>,
        owned: impl FnOnce() -> bool,
    ) {
        let slots = self
            .slots
            .get_or_init(|| std::iter::repeat_with(ArcSwapOption::empty).take(self.len).collect());
        let Some(slot) = slots.get(at) else { return };
        let mut home = block.residence().lock();
        // Of the same partition, loaded at another time.
        home.vacate(block);
        *home = Home { slots: Arc::downgrade(self), at };
        slot.store(Some(Arc::clone(block)));
        drop(home);
        // It may have been evicted before it had a home to leave.
        if !owned() {
            block.residence().leave(block);
        }
    }
}

impl Home {
    /// Takes the block out of its slot.
    fn vacate(&self, block: &Arc<Block>) {
        let slots = self.slots.upgrade();
        let slot = slots.as_ref().and_then(|slots| slots.slots.get()?.get(self.at));
        if let Some(slot) = slot {
            slot.compare_and_swap(block, None);
        }
    }
}

impl Residence {
    /// The data under this lock is valid at every step, so a panic elsewhere does not spoil it.
    fn lock(&self) -> MutexGuard<'_, Home> {
        self.home.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the block out of its slot, if it has one.
    pub(super) fn leave(&self, block: &Arc<Block>) {
        let mut home = self.lock();
        home.vacate(block);
        *home = Home::default();
    }

    /// Whether a use is to be told, in this epoch.
    #[inline]
    pub(super) fn is_news(&self, epoch: u32) -> bool {
        // A store only where it changes something: else all readers would pull the line back and forth.
        let news = self.told.load(Ordering::Relaxed) != epoch;
        if news {
            self.told.store(epoch, Ordering::Relaxed);
        }
        news
    }
}
