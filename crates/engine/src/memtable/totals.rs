//! What the operands of a cell come to, as reads have found: a cell that is added to all the time has hundreds of thousands of them in a
//! memtable, and only those that came since have to be looked at by the next read.
//!
//! ```text
//! operands of a cell, newest first:   9  8  7  6 │ 5  4  3  2  1
//!                                                └─ a total: newest 5, oldest 1
//! ```
//!
//! A total holds because records of a memtable are added in the order of their sequences and never removed: between its newest and
//! its oldest operand nothing comes that was not there. What hides a part of them and was known to whoever added them up has ended
//! the total before that part; for what was not, whoever takes a total compares its oldest operand with what hides.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use super::arena::MemtableMemory;
use crate::cell::Seq;

/// Bytes of the totals of one memtable, at most, with the keys of their cells: some thousands of counters, or thirty sketches. Cells
/// that come later do without; there are few that are hot.
const BYTES_MAX: usize = 1 << 20;

/// What a total takes beside its key and its state, roughly.
const TOTAL_BYTES: usize = 128;

/// Words of bits for hashes: half a kilobyte, of which a hundred totals leave all but a fortieth unset.
const HASH_WORDS: usize = 64;

/// What some operands of a cell come to that follow one another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Total {
    pub(crate) newest: Seq,
    pub(crate) oldest: Seq,
    pub(crate) state: Bytes,
}

/// The totals of a memtable.
#[derive(Debug)]
pub struct Totals {
    /// Bytes of all, changed under the lock: 0 in most memtables, which have none.
    bytes: AtomicUsize,
    /// By the hash of a cell, a bit for whether it may have one: reads of others take no lock.
    hashes: [AtomicU64; HASH_WORDS],
    /// By the key of the cell, up to its sequence.
    kept: Mutex<HashMap<Box<[u8]>, Total>>,
    /// Where their bytes count, too.
    memory: MemtableMemory,
}

impl Totals {
    /// Bytes of all of them.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed) as u64
    }

    /// None yet; counted in `memory` as the memtable's records are.
    pub(super) fn counted(memory: MemtableMemory) -> Self {
        Self {
            bytes: AtomicUsize::new(0),
            hashes: [const { AtomicU64::new(0) }; HASH_WORDS],
            kept: Mutex::default(),
            memory,
        }
    }

    /// The total of a cell in which nothing is newer than `seq`.
    pub(crate) fn of(&self, cell: &[u8], seq: Seq) -> Option<Total> {
        let may_have = self.bytes() > 0 && {
            let (word, bit) = self.hash(cell);
            word.load(Ordering::Relaxed) & bit != 0
        };
        if !may_have {
            return None;
        }
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.get(cell).filter(|total| total.newest <= seq).cloned()
    }

    /// Keeps a total, where it is newer than the one before and there is room.
    pub(crate) fn put(&self, cell: &[u8], total: Total) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let before = kept.get(cell).map(|before| (before.newest, before.state.len()));
        if before.is_some_and(|(newest, _)| newest >= total.newest) {
            return;
        }
        let known = before.map_or(0, |(_, bytes)| cell.len() + bytes + TOTAL_BYTES);
        let held = self.bytes.load(Ordering::Relaxed);
        let bytes = held - known + cell.len() + total.state.len() + TOTAL_BYTES;
        if bytes > BYTES_MAX {
            return;
        }
        self.memory.hold(bytes);
        self.memory.let_go(held);
        kept.insert(cell.into(), total);
        let (word, bit) = self.hash(cell);
        word.fetch_or(bit, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    /// The word, and the bit in it, for a cell.
    fn hash(&self, cell: &[u8]) -> (&AtomicU64, u64) {
        let hash = xxh3_64(cell);
        let [first, ..] = &self.hashes;
        let word = usize::try_from(hash >> 6).unwrap_or(0) % HASH_WORDS;
        (self.hashes.get(word).unwrap_or(first), 1 << (hash % 64))
    }
}

impl Drop for Totals {
    fn drop(&mut self) {
        self.memory.let_go(*self.bytes.get_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn total(newest: Seq, state: usize) -> Total {
        Total { newest, oldest: 1, state: vec![0; state].into() }
    }

    #[test]
    fn a_total_is_for_those_who_see_all_of_it_and_gives_way_to_newer_ones() {
        let totals = Totals::counted(MemtableMemory::default());
        assert_eq!(totals.of(b"a", 9), None);
        totals.put(b"a", total(5, 8));
        assert_eq!(totals.of(b"a", 5), Some(total(5, 8)));
        assert_eq!((totals.of(b"a", 4), totals.of(b"b", 9)), (None, None));
        totals.put(b"a", total(3, 8));
        assert_eq!(totals.of(b"a", 9), Some(total(5, 8)));
        totals.put(b"a", total(7, 9));
        assert_eq!((totals.of(b"a", 9), totals.of(b"a", 6)), (Some(total(7, 9)), None));
    }

    #[test]
    fn there_are_as_many_totals_as_there_is_room_for() {
        let memory = MemtableMemory::default();
        let totals = Totals::counted(memory.clone());
        for cell in 0..100_u8 {
            totals.put(&[cell], total(1, 32 << 10));
        }
        let held = |cell: u8| totals.of(&[cell], 9).is_some();
        assert_eq!((0..100).filter(|cell| held(*cell)).count(), 31);
        // Those that are there may become newer, however often.
        for newest in 2..100 {
            totals.put(&[0], total(newest, 32 << 10));
            assert_eq!(totals.of(&[0], 200), Some(total(newest, 32 << 10)));
        }
        let bytes = memory.bytes();
        assert_eq!(totals.bytes(), bytes);
        assert!((31 * (32 << 10)..=BYTES_MAX as u64).contains(&bytes), "{bytes}");
        drop(totals);
        assert_eq!(memory.bytes(), 0);
    }
}
