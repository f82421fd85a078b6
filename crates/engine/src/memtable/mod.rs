//! The memtable: a tablet's newest records in memory, sorted, until they are flushed to an SST.
//!
//! Guarantees:
//!
//! * Records are encoded cell keys (see [`crate::cell`]) and values; they are added, never changed and
//!   never removed. A key is there at most once: inserting it again (a log replayed twice) does nothing.
//! * Any number of cursors read while one writer inserts, without waiting for it. A cursor sees every
//!   record whose insertion was over before the cursor moved, perhaps later ones, and none in part.
//!   What a read may *show* is decided above, by sequence.
//! * Memory is given back as a whole, when the memtable, its cursors and the large values that were
//!   taken from it are gone.
//!
//! ```text
//! Memtable ── Mutex ── Inserter ──┐
//!     │                           ├──► SkipList ──► Arena (chunks)
//!     └── MemtableCursor, values ─┘
//! ```
//!
//! `skiplist.rs` and `arena.rs` hold the `unsafe` code; this file, the cursor and the hints are safe Rust.

mod arena;
mod cursor;
mod hints;
mod skiplist;
mod totals;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::cell::{FamilyId, KeyView, Kind, RowRange, SEQ_MAX, Seq, Timestamp};

pub use arena::MemtableMemory;
pub use cursor::{MemtableCursor, MemtableRow, SHARED_VALUE_BYTES_MIN};
use skiplist::{Inserter, NewValue, Placed, SkipList};
pub use totals::{Total, Totals};

/// A sorted set of records in memory.
#[derive(Debug)]
pub struct Memtable {
    list: Arc<SkipList>,
    tombstones: AtomicU64,
    has_cell_tombstones: AtomicBool,
    totals: Arc<Totals>,
    written: Written,
}

/// What changes with each record, in lines of its own: whoever reads on other cores needs but what is before it. Only the writer writes to the
/// figures.
#[derive(Debug)]
#[repr(align(128))]
struct Written {
    writer: Mutex<WriterState>,
    records: AtomicU64,
    /// [`SEQ_MAX`] until there is a record.
    seq_min: AtomicU64,
    seq_max: AtomicU64,
}

/// Figures of one family in a memtable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FamilyStats {
    /// The family; [`FAMILY_NONE`](crate::cell::FAMILY_NONE) counts row tombstones.
    pub family: FamilyId,
    /// Records, tombstones included.
    pub entries: u64,
    /// Tombstones among them.
    pub tombstones: u64,
    /// The least timestamp of its cells and merge operands, in microseconds; `None` without any.
    pub timestamp_min: Option<Timestamp>,
}

/// What only the writer touches.
#[derive(Debug)]
struct WriterState {
    inserter: Inserter,
    /// By family id.
    families: Vec<FamilyStats>,
    /// Where the newest record's family is: records come in runs of one family.
    family_hint: usize,
}

impl WriterState {
    fn family(&mut self, family: FamilyId) -> Option<&mut FamilyStats> {
        if self.families.get(self.family_hint).is_none_or(|f| f.family != family) {
            self.family_hint = match self.families.binary_search_by_key(&family, |f| f.family) {
                Ok(found) => found,
                Err(place) => {
                    let fresh =
                        FamilyStats { family, entries: 0, tombstones: 0, timestamp_min: None };
                    self.families.insert(place, fresh);
                    place
                }
            };
        }
        self.families.get_mut(self.family_hint)
    }
}

impl Memtable {
    /// An empty memtable; `seed` decides the shape of the skiplist, so that a test can repeat it.
    pub fn new(seed: u64) -> Arc<Self> {
        Self::counted(seed, MemtableMemory::default())
    }

    /// The same, counted in `memory` for as long as any of it is held.
    pub fn counted(seed: u64, memory: MemtableMemory) -> Arc<Self> {
        let totals = Arc::new(Totals::counted(memory.clone()));
        let (list, inserter) = SkipList::create(seed, memory);
        Arc::new(Self {
            list,
            tombstones: AtomicU64::new(0),
            has_cell_tombstones: AtomicBool::new(false),
            totals,
            written: Written {
                writer: Mutex::new(WriterState { inserter, families: Vec::new(), family_hint: 0 }),
                records: AtomicU64::new(0),
                seq_min: AtomicU64::new(SEQ_MAX),
                seq_max: AtomicU64::new(0),
            },
        })
    }

    fn lock(&self) -> MutexGuard<'_, WriterState> {
        // A panic while the mutex was held leaves at most a figure behind by one: the list is linked
        // from level 0 upwards and valid after each step.
        self.written.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the writer's place, waiting while another has it. For several insertions in a row; the
    /// other methods of the memtable that say so wait while it lives.
    pub fn writer(&self) -> MemtableWriter<'_> {
        MemtableWriter { table: self, state: self.lock() }
    }

    /// Inserts one record; see [`MemtableWriter::insert`].
    pub fn insert(&self, key: KeyView<'_>, value: &[u8]) -> bool {
        self.writer().insert(key, value)
    }

    /// Bytes of memory that the memtable holds, free space at its end included.
    pub fn allocated_bytes(&self) -> u64 {
        self.list.reserved_bytes()
    }

    /// The same, with what reads have left in it ([`Totals`]): what a flush gives back.
    pub fn held_bytes(&self) -> u64 {
        self.allocated_bytes() + self.totals.bytes()
    }

    /// Records.
    pub fn len(&self) -> u64 {
        self.written.records.load(Ordering::Acquire)
    }

    /// Whether there is no record.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tombstones of all kinds among the records.
    pub fn tombstones(&self) -> u64 {
        self.tombstones.load(Ordering::Relaxed)
    }

    /// Whether there is a tombstone of cells among them: only these lie among a column's cells.
    pub fn has_cell_tombstones(&self) -> bool {
        self.has_cell_tombstones.load(Ordering::Relaxed)
    }

    /// The least and the greatest sequence of the records; `None` without any.
    pub fn seq_range(&self) -> Option<(Seq, Seq)> {
        // `len` was raised after the bounds, so where it is not 0 they are set.
        let Written { seq_min, seq_max, .. } = &self.written;
        (!self.is_empty())
            .then(|| (seq_min.load(Ordering::Relaxed), seq_max.load(Ordering::Relaxed)))
    }

    /// Figures per family, by family id. Waits for the writer.
    pub fn families(&self) -> Vec<FamilyStats> {
        self.lock().families.clone()
    }

    /// Whether there is a record of the row with this prefix.
    pub fn has_row(&self, row_prefix: &[u8]) -> bool {
        self.row(row_prefix).is_some()
    }

    /// The row with this prefix; `None` where there is no record of it.
    pub fn row(&self, row_prefix: &[u8]) -> Option<MemtableRow<'_>> {
        let has_cell_tombstones = self.has_cell_tombstones();
        self.list.row(row_prefix).map(|place| MemtableRow::new(place, has_cell_tombstones))
    }

    /// Brings the places of rows into the processor's cache, given their prefixes, for insertions that follow.
    pub fn fetch_rows<'a>(&self, row_prefixes: impl Iterator<Item = &'a [u8]>) {
        self.list.fetch_paths(row_prefixes);
    }

    /// A cursor over the records of the rows in `bounds`, on no record yet. Columns of rows that it hands over whole are looked through for
    /// tombstones of cells where there are any by now.
    pub fn cursor(self: &Arc<Self>, bounds: RowRange) -> MemtableCursor {
        let (list, totals) = (Arc::clone(&self.list), Arc::clone(&self.totals));
        MemtableCursor::new(list, totals, &bounds, self.has_cell_tombstones())
    }
}

/// Bytes of a value from which on it is better [copied](CopiedValue) before the writer's place is taken: a megabyte takes half a
/// millisecond where nobody wants the processor, and whoever wants to write waits for it.
pub const COPIED_VALUE_BYTES_MIN: usize = arena::OWN_CHUNK_BYTES;

/// The copy of a large value that is to go into a memtable.
#[derive(Debug)]
pub struct CopiedValue(Placed);

impl CopiedValue {
    /// Copies a value, for a key of `key_len` bytes.
    pub fn new(key_len: usize, value: &[u8]) -> Self {
        Self(Placed::new(key_len, value))
    }
}

/// The writer's place in a memtable: at most one at a time.
#[derive(Debug)]
pub struct MemtableWriter<'a> {
    table: &'a Memtable,
    state: MutexGuard<'a, WriterState>,
}

impl MemtableWriter<'_> {
    /// Inserts a record. A key that is there already stays as it is, and the answer is `false`.
    ///
    /// # Panics
    /// Where the key exceeds 4 GiB; limits on rows and qualifiers keep it a hundred thousand times
    /// smaller.
    pub fn insert(&mut self, key: KeyView<'_>, value: &[u8]) -> bool {
        self.insert_new(key, NewValue::Bytes(value))
    }

    /// The same with a value that was copied before, for a key as long as this one.
    pub fn insert_copied(&mut self, key: KeyView<'_>, value: CopiedValue) -> bool {
        self.insert_new(key, NewValue::Placed(value.0))
    }

    fn insert_new(&mut self, key: KeyView<'_>, value: NewValue<'_>) -> bool {
        let (kind, seq, timestamp) = (key.kind(), key.seq(), key.timestamp());
        // Before the record can be seen: whoever sees it finds its sequence within the bounds.
        let Written { records, seq_min, seq_max, .. } = &self.table.written;
        seq_min.store(seq_min.load(Ordering::Relaxed).min(seq), Ordering::Relaxed);
        seq_max.store(seq_max.load(Ordering::Relaxed).max(seq), Ordering::Relaxed);
        if !self.state.inserter.insert(key, value) {
            return false;
        }
        if let Some(stats) = self.state.family(key.family()) {
            stats.entries += 1;
            if kind.is_tombstone() {
                stats.tombstones += 1;
            } else if matches!(kind, Kind::Value | Kind::Merge | Kind::ValueElsewhere) {
                stats.timestamp_min =
                    Some(stats.timestamp_min.map_or(timestamp, |min| min.min(timestamp)));
            }
        }
        if kind.is_tombstone() {
            self.table.tombstones.fetch_add(1, Ordering::Relaxed);
        }
        if kind == Kind::CellTombstone {
            self.table.has_cell_tombstones.store(true, Ordering::Relaxed);
        }
        records.store(records.load(Ordering::Relaxed) + 1, Ordering::Release);
        true
    }
}

#[cfg(test)]
mod tests;
