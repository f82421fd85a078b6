//! Where rows begin, as far as is remembered: a search through a list of hundreds of thousands of records waits for memory ten
//! times, a look here once.
//!
//! ```text
//! hash of the row's prefix ──► slot ──► the row's first record, or that of another row, or nothing
//! ```
//!
//! A slot holds what was put into it last; who looks compares the row. The one writer puts every record that begins a row, so
//! whatever a slot says of a row is its first record: what came before it since then would have been put there. A table that
//! has become too small is followed by a larger one, which begins empty. Whoever still looks into the one before began to before any
//! insertion that it lacks was over.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use xxhash_rust::xxh3::xxh3_64;

/// Slots of the tables, one after the other (powers of two): of 4, 64 and 512 KiB. A larger one would take milliseconds to be made, for
/// which a writer would wait, and rows that are read often are found in this one, too.
const SLOTS: [usize; 3] = [1 << 9, 1 << 13, 1 << 16];

/// Bytes of records for a byte of hints, at least: 3 % are for them at most, and small memtables have none.
const RECORDS_PART: u64 = 32;

/// See the module.
#[derive(Debug)]
pub(super) struct Hints<T> {
    tables: [OnceLock<Box<[AtomicPtr<T>]>>; SLOTS.len()],
    /// Tables that there are; the last one counts.
    count: AtomicUsize,
}

impl<T> Default for Hints<T> {
    fn default() -> Self {
        Self { tables: Default::default(), count: AtomicUsize::new(0) }
    }
}

impl<T> Hints<T> {
    /// The first record of the row with this prefix, or one of another row, or null.
    pub(super) fn get(&self, row_prefix: &[u8]) -> *mut T {
        // Acquire, and Release below: who sees a record's address sees the record.
        self.slot(row_prefix).map_or(std::ptr::null_mut(), |slot| slot.load(Ordering::Acquire))
    }

    /// Remembers the first record of a row; for the one writer, which says of every such record.
    pub(super) fn put(&self, row_prefix: &[u8], first: *mut T) {
        if let Some(slot) = self.slot(row_prefix) {
            slot.store(first, Ordering::Release);
        }
    }

    /// Begins the next table where so many bytes of records are worth it; how many bytes it takes. For the one writer.
    pub(super) fn grow(&self, records_bytes: u64) -> usize {
        let count = self.count.load(Ordering::Relaxed);
        let (Some(slots), Some(table)) = (SLOTS.get(count), self.tables.get(count)) else {
            return 0;
        };
        let bytes = slots * size_of::<AtomicPtr<T>>();
        if records_bytes < bytes as u64 * RECORDS_PART {
            return 0;
        }
        table.get_or_init(|| std::iter::repeat_with(AtomicPtr::default).take(*slots).collect());
        self.count.store(count + 1, Ordering::Release);
        bytes
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> u64 {
        let slots: usize = self.tables.iter().filter_map(OnceLock::get).map(|t| t.len()).sum();
        (slots * size_of::<AtomicPtr<T>>()) as u64
    }

    fn slot(&self, row_prefix: &[u8]) -> Option<&AtomicPtr<T>> {
        let last = self.count.load(Ordering::Acquire).checked_sub(1)?;
        let table = self.tables.get(last)?.get()?;
        table.get(xxh3_64(row_prefix) as usize & (table.len() - 1))
    }
}
