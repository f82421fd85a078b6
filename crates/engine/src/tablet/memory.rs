//! What the tablets of an engine take of memory by being there, counted in one place.
//!
//! ```text
//! create ─► reserve for all of them, or refuse ─► a share for each tablet ─┐
//! open, a start ──────────────────────────────► a share, whatever there is ─┴─► given back with the tablet
//! ```
//!
//! A share lives as long as its tablet: a dropped one that somebody still reads counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::cell::RowRange;
use crate::error::{Error, ErrorKind, Result};

/// Bytes of a tablet beside the keys of its range, as measured: its view, manifest and locks of its own, empty. The locks of its rows come with
/// its first write, and are not counted: there is no refusing that.
pub(crate) const TABLET_BYTES: u64 = 4 << 10;

/// Bytes of a tablet of this range. Each has both keys for itself, once it was opened by a start.
fn bytes_of(range: &RowRange) -> u64 {
    TABLET_BYTES + (range.start.len() + range.end.len()) as u64
}

/// The memory of all tablets.
#[derive(Debug)]
pub(crate) struct TabletMemory {
    bytes: AtomicU64,
    bytes_max: u64,
}

impl TabletMemory {
    /// None is taken; up to `bytes_max` may be by tablets that are made.
    pub(crate) fn new(bytes_max: u64) -> Arc<Self> {
        Arc::new(Self { bytes: AtomicU64::new(0), bytes_max })
    }

    /// Bytes that are taken.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Bytes that new tablets may bring it to.
    pub(crate) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// The share of a tablet that is there already, and so is opened however many there are.
    pub(crate) fn take(self: &Arc<Self>, range: &RowRange) -> TabletShare {
        let bytes = bytes_of(range);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        TabletShare { memory: Arc::clone(self), bytes }
    }

    /// The shares of tablets that are to be made, together; `Overloaded` where there is no room for all of them.
    pub(crate) fn reserve<'a>(
        self: &Arc<Self>,
        ranges: impl Iterator<Item = &'a RowRange>,
    ) -> Result<TabletShare> {
        let bytes = ranges.map(bytes_of).sum();
        let fits = |taken: u64| taken.checked_add(bytes).filter(|after| *after <= self.bytes_max);
        match self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            Ok(_) => Ok(TabletShare { memory: Arc::clone(self), bytes }),
            Err(taken) => {
                let (after, max) = (taken.saturating_add(bytes), self.bytes_max);
                let what = format!(
                    "the tablets of all tables would take {after} bytes of memory, limit {max}: make a table with fewer splits, \
                     delete tables (which count until they cannot be undeleted any more), or give the server more memory"
                );
                Err(Error::new(ErrorKind::Overloaded, what))
            }
        }
    }
}

/// What one tablet, or several that are to be made, take of it.
#[derive(Debug)]
pub(crate) struct TabletShare {
    memory: Arc<TabletMemory>,
    bytes: u64,
}

impl TabletShare {
    /// Divides the share of a tablet of this range off from one that was reserved for it and others.
    pub(crate) fn part(&mut self, range: &RowRange) -> Self {
        let bytes = bytes_of(range).min(self.bytes);
        self.bytes -= bytes;
        Self { memory: Arc::clone(&self.memory), bytes }
    }
}

impl Drop for TabletShare {
    fn drop(&mut self) {
        self.memory.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_that_are_made_at_once_do_not_both_have_the_room_that_is_left() {
        let memory = TabletMemory::new(5 * TABLET_BYTES);
        let three = [(); 3].map(|()| RowRange::all());
        let mut first = memory.reserve(three.iter()).unwrap();
        let error = memory.reserve(three.iter()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Overloaded);
        assert!(error.message().contains("fewer splits"), "{error}");
        assert_eq!(memory.bytes(), 3 * TABLET_BYTES, "the refused one takes nothing");
        // From a reservation to its tablets nothing is counted twice, nor is there a gap.
        let parts = [first.part(&three[0]), first.part(&three[1])];
        drop(first);
        assert_eq!(memory.bytes(), 2 * TABLET_BYTES);
        let second = memory.reserve(three.iter()).unwrap();
        drop((parts, second));
        assert_eq!(memory.bytes(), 0);
    }

    #[test]
    fn the_keys_of_a_range_count_and_what_is_there_already_is_never_refused() {
        let memory = TabletMemory::new(TABLET_BYTES);
        let long = RowRange::new(vec![b'a'; 4096], vec![b'b'; 4096]);
        memory.reserve([&long].into_iter()).unwrap_err();
        let there = [memory.take(&long), memory.take(&long)];
        assert_eq!(memory.bytes(), 2 * (TABLET_BYTES + 8192));
        memory.reserve([&RowRange::all()].into_iter()).unwrap_err();
        drop(there);
        memory.reserve([&RowRange::all()].into_iter()).unwrap();
    }
}
