//! Where rows begin, as far as is remembered: a search through a list of hundreds of thousands of records waits for memory ten
//! times, a look here twice.
//!
//! ```text
//! hash of the row's prefix ──► slot ──► the row's first record, or seldom that of another row, or nothing
//! ```
//!
//! A slot holds what was put into it last, with as much of the hash as fits beside an address; who looks compares the row. The one
//! writer puts every record that begins a row, so whatever a slot says of a row is its first record: what came before it since
//! then would have been put there. A table that has become too small is followed by a larger one, which begins empty. It lacks
//! nothing that it knows, and the one before is not looked into any more: whoever does so still began to before the
//! insertions that are missing there were over.

use std::fmt;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use xxhash_rust::xxh3::xxh3_64;

/// Slots of the tables, one after the other (powers of two): of 4, 64 and 512 KiB. A larger one would take milliseconds to be made, for
/// which a writer would wait, and rows that are read often are found in this one, too.
const SLOTS: [usize; 3] = [1 << 9, 1 << 13, 1 << 16];

/// Bytes of records for a byte of a table, when it is begun: 3 % of a memtable are for all of them at most, and small ones have none.
/// The last comes at 20 MiB, well after memtables of 16 MiB are full and well before those of 64.
const RECORDS_PART: u64 = 40;

/// See the module.
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

impl<T> fmt::Debug for Hints<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Hints").field("count", &self.count).finish_non_exhaustive()
    }
}

impl<T> Hints<T> {
    /// Bits of an address that are 0, where a part of the hash is.
    const TAG_BITS: usize = align_of::<T>() - 1;

    /// The first record of the row with this prefix, or one of another row, or null.
    pub(super) fn get(&self, row_prefix: &[u8]) -> *mut T {
        let hash = xxh3_64(row_prefix);
        let Some(slot) = self.slot(hash) else { return ptr::null_mut() };
        // Acquire, and Release below: who sees a record's address sees the record.
        let held = slot.load(Ordering::Acquire);
        if held.addr() & Self::TAG_BITS == Self::tag(hash) {
            held.map_addr(|address| address & !Self::TAG_BITS)
        } else {
            ptr::null_mut()
        }
    }

    /// Remembers the first record of a row; for the one writer, which says of every such record.
    pub(super) fn put(&self, row_prefix: &[u8], first: *mut T) {
        let hash = xxh3_64(row_prefix);
        if let Some(slot) = self.slot(hash) {
            let held = first.map_addr(|address| address | Self::tag(hash));
            slot.store(held, Ordering::Release);
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

    fn slot(&self, hash: u64) -> Option<&AtomicPtr<T>> {
        let last = self.count.load(Ordering::Acquire).checked_sub(1)?;
        let table = self.tables.get(last)?.get()?;
        table.get(hash as usize & (table.len() - 1))
    }

    /// Of the hash, what no slot's number has.
    fn tag(hash: u64) -> usize {
        (hash >> 32) as usize & Self::TAG_BITS
    }
}
