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
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

use super::arena::MemtableMemory;
use crate::cell::Seq;

/// Bytes of the totals of one memtable, at most, with the keys of their cells: some thousands of counters, or thirty sketches. Cells
/// that come later do without; there are few that are hot.
const BYTES_MAX: usize = 1 << 20;

/// What a total takes beside its key and its state, roughly.
const TOTAL_BYTES: usize = 128;

/// What some operands of a cell come to that follow one another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Total {
    pub(crate) newest: Seq,
    pub(crate) oldest: Seq,
    pub(crate) state: Bytes,
}

/// The totals of a memtable.
#[derive(Debug, Default)]
pub struct Totals {
    /// Whether there is one: most memtables have none, and no read of theirs takes the lock.
    any: AtomicBool,
    kept: Mutex<Kept>,
    /// Where their bytes count, too.
    memory: MemtableMemory,
}

#[derive(Debug, Default)]
struct Kept {
    bytes: usize,
    /// By the key of the cell, up to its sequence.
    totals: HashMap<Box<[u8]>, Total>,
}

impl Totals {
    /// None yet; counted in `memory` as the memtable's records are.
    pub(super) fn counted(memory: MemtableMemory) -> Self {
        Self { any: AtomicBool::default(), kept: Mutex::default(), memory }
    }

    /// The total of a cell in which nothing is newer than `seq`.
    pub(crate) fn of(&self, cell: &[u8], seq: Seq) -> Option<Total> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.totals.get(cell).filter(|total| total.newest <= seq).cloned()
    }

    /// Keeps a total, where it is newer than the one before and there is room.
    pub(crate) fn put(&self, cell: &[u8], total: Total) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let before = kept.totals.get(cell).map(|before| (before.newest, before.state.len()));
        if before.is_some_and(|(newest, _)| newest >= total.newest) {
            return;
        }
        let known = before.map_or(0, |(_, bytes)| cell.len() + bytes + TOTAL_BYTES);
        let bytes = kept.bytes - known + cell.len() + total.state.len() + TOTAL_BYTES;
        if bytes > BYTES_MAX {
            return;
        }
        self.memory.hold(bytes);
        self.memory.let_go(std::mem::replace(&mut kept.bytes, bytes));
        kept.totals.insert(cell.into(), total);
        self.any.store(true, Ordering::Release);
    }
}

impl Drop for Totals {
    fn drop(&mut self) {
        self.memory.let_go(self.kept.get_mut().unwrap_or_else(PoisonError::into_inner).bytes);
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
        let totals = Totals::default();
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
        assert!((31 * (32 << 10)..=BYTES_MAX as u64).contains(&bytes), "{bytes}");
        drop(totals);
        assert_eq!(memory.bytes(), 0);
    }
}
