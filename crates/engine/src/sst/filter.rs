//! Filter partitions: what they answer, and their form on disk.
//!
//! ```text
//! kind u8 | parameter u8 | segment bits u8 | families u8 | columns u8 | 0 u8 x3 | size u32 LE
//! | families x u32 LE | columns x u32 LE | body
//!
//! kind 1   cache-line-blocked Bloom    parameter: probes; size: lines; body: lines x 64 bytes
//! kind 2   binary fuse, 8 bits         parameter: number of the seed; size: segments; body: slots x 1 byte
//! kind 3   binary fuse, 16 bits        the same, slots x 2 bytes LE (see `fuse.rs`)
//!
//! Bloom, bit of an entry h:   line  = (h >> 32) * lines >> 32
//!                             bit i = top 9 bits of (low 32 bits of h) * 0x9E3779B9^(i+1), i < probes
//!                             bit b of a line is bit b % 8 of its byte b / 8
//! ```
//!
//! All bits of a Bloom entry lie in one line of 64 bytes, so a probe costs one cache miss. The price is a
//! false-positive rate of about 1.2 % at 10 bits per entry, where a plain Bloom filter would have 0.9 %.
//!
//! # Entries
//!
//! ```text
//! row                     R = xxh3(row prefix)
//! family in the row       mix(R, 1, family)
//! column                  mix64(R ^ id),  id = xxh3(qualifier raw, seed mix(0, 4, family))
//! row tombstone           mix(R, 2, 0)
//! family tombstone        mix(R, 3, family)
//! ```
//!
//! Every record enters its row; every record but a row tombstone its family; every record with a qualifier,
//! column and cell tombstones included, its column. So each kind of read finds a tombstone that concerns it:
//!
//! ```text
//! read of a row        the row
//! read of a family     the family, or the row tombstone
//! read of a column     the column, or the family tombstone, or the row tombstone
//! ```
//!
//! An SST whose properties count no row (family) tombstones is not probed for them. The filter is
//! partitioned by key, cut between columns: the row's entry and its tombstone are in the partition where
//! the row starts, the family's where the family starts, the column's where the column is. Each is found
//! by searching the filter index for the prefix itself, because separators equal no key and the first
//! separator greater than a prefix belongs to the partition of the first key with that prefix.
//!
//! # Common columns
//!
//! Where all rows of a partition are whole and have the same few columns, as tables usually do, the entries
//! of families and columns say nothing that the rows' do not. Such a partition has entries for rows and
//! tombstones only, and two sorted lists: the families, and of each column the high half of its id. "Is the
//! column there?" is then "is it in the list, and is the row there?". A partition with `columns` = 0 has
//! entries for everything. For rows of ten columns that is an eleventh of the memory.

use bytes::Bytes;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::FilterKind;
use super::frame::TRAILER_LEN;
use super::fuse::{self, SEGMENT_BITS_MAX, Shape, Width};
use super::key::Change;
use crate::cell::{FamilyId, KeyView, Kind};
use crate::codec::{Malformed, Parsed, Reader};
use crate::random::mix64;

/// Bytes of a line: a cache line of the processors that matter.
const LINE_BYTES: usize = 64;
const HEADER_LEN: usize = 12;
const KIND_BLOCKED_BLOOM: u8 = 1;
const KIND_FUSE8: u8 = 2;
const KIND_FUSE16: u8 = 3;

/// Bits that one entry may set; more bits per key than 20 gain next to nothing.
const PROBES_MAX: u32 = 16;

/// Common columns of a partition at most: more would cost a search and bytes of the page, and tables with
/// more columns than that are rarely full.
pub(super) const COMMON_COLUMNS_MAX: usize = 64;

const TAG_FAMILY: u64 = 1;
const TAG_ROW_TOMBSTONE: u64 = 2;
const TAG_FAMILY_TOMBSTONE: u64 = 3;
const TAG_COLUMN: u64 = 4;

fn mix(hash: u64, tag: u64, value: u32) -> u64 {
    mix64(hash ^ mix64((tag << 32) | u64::from(value)))
}

/// The entry of a row, from its row prefix.
pub(super) fn row_entry(row_prefix: &[u8]) -> u64 {
    xxh3_64(row_prefix)
}

/// What stands for a column in every row: worked out once per read, whatever the rows and SSTs.
pub(super) fn column_id(family: FamilyId, qualifier: &[u8]) -> u64 {
    xxh3_64_with_seed(qualifier, mix(0, TAG_COLUMN, family.0))
}

/// The entry of a row tombstone, from the row's.
pub(super) fn row_tombstone_entry(row: u64) -> u64 {
    mix(row, TAG_ROW_TOMBSTONE, 0)
}

/// The entry of a family tombstone, from the row's.
pub(super) fn family_tombstone_entry(row: u64, family: FamilyId) -> u64 {
    mix(row, TAG_FAMILY_TOMBSTONE, family.0)
}

/// What a filter is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ask {
    /// Anything of the row, by its entry.
    Row(u64),
    /// Anything of the family in the row, but a row tombstone.
    Family { row: u64, family: FamilyId },
    /// Anything of the column in the row, but tombstones of its family and row; by its id.
    Column { row: u64, column: u64 },
    /// A row or family tombstone, by its entry.
    Tombstone(u64),
}

impl Ask {
    /// The entry that stands for it where a filter has entries for everything.
    #[inline]
    pub(super) fn entry(self) -> u64 {
        match self {
            Self::Row(entry) | Self::Tombstone(entry) => entry,
            Self::Family { row, family } => mix(row, TAG_FAMILY, family.0),
            Self::Column { row, column } => mix64(row ^ column),
        }
    }
}

/// Of a column's id, what a list of common columns keeps: two of 64 are alike once in two million lists, and
/// then only a read is not saved.
pub(super) fn listed(column: u64) -> u32 {
    (column >> 32) as u32
}

/// Which prefix of a key leads to the partition that holds an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Under {
    /// The row prefix.
    Row,
    /// Row prefix and family.
    Family,
    /// The column prefix.
    Column,
}

/// Turns a sequence of keys into what can be asked of them, each once where that is cheap to see.
#[derive(Debug, Default)]
pub(super) struct FilterEntries {
    row: u64,
    row_tombstone: bool,
    family_tombstone: bool,
    qualifier: Vec<u8>,
}

impl FilterEntries {
    /// Calls `emit` with the questions that `key` answers and the keys before it have not.
    pub(super) fn of(
        &mut self,
        change: Change,
        key: KeyView<'_>,
        mut emit: impl FnMut(Under, Ask),
    ) {
        if change.row {
            self.row = row_entry(key.row_prefix());
            self.row_tombstone = false;
            emit(Under::Row, Ask::Row(self.row));
        }
        let (row, family) = (self.row, key.family());
        if change.family {
            self.family_tombstone = false;
        }
        match key.kind() {
            Kind::RowTombstone => {
                if !self.row_tombstone {
                    self.row_tombstone = true;
                    emit(Under::Row, Ask::Tombstone(row_tombstone_entry(row)));
                }
                return;
            }
            Kind::FamilyTombstone if !self.family_tombstone => {
                self.family_tombstone = true;
                emit(Under::Family, Ask::Tombstone(family_tombstone_entry(row, family)));
            }
            _ => {}
        }
        if change.family {
            emit(Under::Family, Ask::Family { row, family });
        }
        if change.column && key.has_qualifier() {
            key.qualifier_into(&mut self.qualifier);
            let column = column_id(family, &self.qualifier);
            emit(Under::Column, Ask::Column { row, column });
        }
    }
}

/// How many bits an entry sets: ln 2 of the bits it has.
fn probes_for(bits_per_key: u32) -> u32 {
    (bits_per_key.saturating_mul(69) / 100).clamp(1, PROBES_MAX)
}

/// The bits of an entry: its line's first byte, and the bits within the line one after the other.
#[inline]
fn place(hash: u64, lines: u64) -> (usize, u32) {
    ((((hash >> 32) * lines) >> 32) as usize * LINE_BYTES, hash as u32)
}

/// Moves on to an entry's next bit, 0 to 511.
#[inline]
fn next_bit(state: &mut u32) -> usize {
    *state = state.wrapping_mul(0x9E37_79B9);
    (*state >> 23) as usize
}

/// How filter partitions are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FilterForm {
    pub(super) kind: FilterKind,
    /// Of a Bloom filter, also of one that stands in where a fuse filter cannot be built.
    pub(super) bits_per_key: u32,
    /// Bytes of a partition on disk at most, trailer included, if it can be.
    pub(super) partition_bytes: usize,
}

/// Partitions from this size on are not limited: the sizes of what a file can hold stay far below.
const UNLIMITED_BYTES: usize = 1 << 40;

impl FilterForm {
    /// Bytes of the body of a partition with so many listed families and columns.
    fn body_bytes(self, listed: usize) -> usize {
        let besides = HEADER_LEN + TRAILER_LEN + 4 * listed;
        self.partition_bytes.min(UNLIMITED_BYTES).saturating_sub(besides)
    }

    /// Entries that a partition with so many listed families and columns has room for; at least one.
    pub(super) fn entries_max(self, listed: usize) -> usize {
        let bytes = self.body_bytes(listed);
        let width = match self.kind {
            FilterKind::Bloom => {
                let bits = (bytes / LINE_BYTES).max(1) * LINE_BYTES * 8;
                return (bits / self.bits_per_key.max(1) as usize).max(1);
            }
            FilterKind::Fuse8 => Width::One,
            FilterKind::Fuse16 => Width::Two,
        };
        let slots = bytes / width.bytes();
        if self.partition_bytes >= UNLIMITED_BYTES {
            return slots;
        }
        // The largest count whose first shape fits: sizes grow with counts but for steps of a segment.
        let fits = |entries: usize| Shape::for_entries(entries).slots() <= slots as u64;
        let (mut low, mut high) = (1, slots.max(1));
        while low < high {
            let middle = high - (high - low) / 2;
            if fits(middle) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        low
    }

    /// Bits that an entry takes, roughly.
    pub(super) fn bits_per_entry(self) -> u64 {
        match self.kind {
            FilterKind::Bloom => u64::from(self.bits_per_key),
            FilterKind::Fuse8 => 10,
            FilterKind::Fuse16 => 20,
        }
    }

    /// The filter partition of these entries, with lists of common families and columns (both sorted) or
    /// without. A partition whose fuse filter cannot be built is a Bloom filter.
    pub(super) fn build(
        self,
        entries: &mut Vec<u64>,
        families: &[u32],
        columns: &[u32],
    ) -> Vec<u8> {
        let width = match self.kind {
            FilterKind::Bloom => None,
            FilterKind::Fuse8 => Some(Width::One),
            FilterKind::Fuse16 => Some(Width::Two),
        };
        let fuse = width.and_then(|width| {
            // An entry more than the room is for is not worth another kind; a segment more is.
            let room = (self.body_bytes(families.len() + columns.len()) / width.bytes()) as u64;
            let room = room.max(Shape::for_entries(1).slots());
            fuse::build(entries, width, room).map(|fuse| (width, fuse))
        });
        let Some((width, fuse)) = fuse else {
            return build_bloom(entries, self.bits_per_key, families, columns);
        };
        let kind = match width {
            Width::One => KIND_FUSE8,
            Width::Two => KIND_FUSE16,
        };
        let Shape { bits, segments } = fuse.shape;
        let mut out = header([kind, fuse.seed, bits], segments, families, columns);
        out.extend_from_slice(&fuse.slots);
        out
    }
}

fn header(first: [u8; 3], size: u32, families: &[u32], columns: &[u32]) -> Vec<u8> {
    let mut out = first.to_vec();
    out.extend_from_slice(&[families.len() as u8, columns.len() as u8, 0, 0, 0]);
    out.extend_from_slice(&size.to_le_bytes());
    for listed in families.iter().chain(columns) {
        out.extend_from_slice(&listed.to_le_bytes());
    }
    out
}

fn build_bloom(entries: &[u64], bits_per_key: u32, families: &[u32], columns: &[u32]) -> Vec<u8> {
    let bits = entries.len() * bits_per_key as usize;
    let lines = bits.div_ceil(LINE_BYTES * 8).max(1);
    let probes = probes_for(bits_per_key);
    let mut out = header([KIND_BLOCKED_BLOOM, probes as u8, 0], lines as u32, families, columns);
    let body_at = out.len();
    out.resize(body_at + lines * LINE_BYTES, 0);
    for entry in entries {
        let (line, mut state) = place(*entry, lines as u64);
        for _ in 0..probes {
            let bit = next_bit(&mut state);
            if let Some(byte) = out.get_mut(body_at + line + bit / 8) {
                *byte |= 1 << (bit % 8);
            }
        }
    }
    out
}

/// The body of a partition, read in place.
#[derive(Debug, Clone, Copy)]
enum Body {
    Bloom { lines: u32, probes: u8 },
    Fuse { width: Width, shape: Shape, seed: u8 },
}

/// A parsed filter partition.
#[derive(Debug, Clone)]
pub(crate) struct FilterBlock {
    data: Bytes,
    body: Body,
    body_at: u16,
    families: u8,
    columns: u8,
}

impl FilterBlock {
    /// Parses a block.
    pub(super) fn parse(data: Bytes) -> Parsed<Self> {
        let mut input = Reader::new(&data);
        let [kind, parameter, bits] = [input.u8()?, input.u8()?, input.u8()?];
        let [families, columns] = [input.u8()?, input.u8()?];
        let zero = u32::from(input.u8()?) | u32::from(input.fixed_u16()?);
        let size = input.fixed_u32()?;
        let (body, len) = match kind {
            KIND_BLOCKED_BLOOM => {
                let probes_ok = (1..=PROBES_MAX).contains(&u32::from(parameter)) && bits == 0;
                let lines = if probes_ok { size } else { 0 };
                let body = Body::Bloom { lines, probes: parameter };
                (body, u64::from(lines) * LINE_BYTES as u64)
            }
            KIND_FUSE8 | KIND_FUSE16 => {
                let width = if kind == KIND_FUSE8 { Width::One } else { Width::Two };
                let shape = Shape { bits: bits.min(SEGMENT_BITS_MAX), segments: size };
                let sound = bits <= SEGMENT_BITS_MAX && size > 0;
                let len = if sound { shape.slots() * width.bytes() as u64 } else { 0 };
                (Body::Fuse { width, shape, seed: parameter }, len)
            }
            _ => {
                return Err(Malformed::whole("a filter of a kind that this build does not know"));
            }
        };
        let body_at = HEADER_LEN + 4 * (usize::from(families) + usize::from(columns));
        let lists_ok = (columns == 0) == (families == 0)
            && usize::from(families) <= COMMON_COLUMNS_MAX
            && usize::from(columns) <= COMMON_COLUMNS_MAX;
        if zero != 0 || len == 0 || !lists_ok || body_at as u64 + len != data.len() as u64 {
            return Err(Malformed::whole("bad header of a filter"));
        }
        let block = Self { data, body, body_at: body_at as u16, families, columns };
        let ascend = |list: &[[u8; 4]]| {
            list.is_sorted_by(|a, b| u32::from_le_bytes(*a) < u32::from_le_bytes(*b))
        };
        if !ascend(block.family_list()) || !ascend(block.column_list()) {
            return Err(Malformed::whole("the lists of a filter are out of order"));
        }
        Ok(block)
    }

    /// A filter that rules nothing out, for one that is damaged.
    pub(super) fn perhaps() -> Self {
        // A line that is not there is one that may contain anything.
        let body = Body::Bloom { lines: 1, probes: 1 };
        Self { data: Bytes::new(), body, body_at: 0, families: 0, columns: 0 }
    }

    /// Bytes in memory.
    pub(super) fn bytes(&self) -> usize {
        self.data.len()
    }

    /// The kind byte.
    pub(super) fn kind(&self) -> u8 {
        match self.body {
            Body::Bloom { .. } => KIND_BLOCKED_BLOOM,
            Body::Fuse { width: Width::One, .. } => KIND_FUSE8,
            Body::Fuse { width: Width::Two, .. } => KIND_FUSE16,
        }
    }

    /// Whether it has lists of common families and columns.
    pub(super) fn has_common_columns(&self) -> bool {
        self.columns > 0
    }

    fn family_list(&self) -> &[[u8; 4]] {
        let end = HEADER_LEN + 4 * usize::from(self.families);
        self.data.get(HEADER_LEN..end).unwrap_or_default().as_chunks().0
    }

    fn column_list(&self) -> &[[u8; 4]] {
        let start = HEADER_LEN + 4 * usize::from(self.families);
        self.data.get(start..usize::from(self.body_at)).unwrap_or_default().as_chunks().0
    }

    /// Whether what is asked for may be there; never false for what is.
    #[inline]
    pub(super) fn may_contain(&self, ask: &Ask) -> bool {
        if !self.has_common_columns() {
            return self.may_have(ask.entry());
        }
        let has = |list: &[[u8; 4]], id: u32| {
            list.binary_search_by_key(&id, |listed| u32::from_le_bytes(*listed)).is_ok()
        };
        match *ask {
            Ask::Row(entry) | Ask::Tombstone(entry) => self.may_have(entry),
            Ask::Family { row, family } => has(self.family_list(), family.0) && self.may_have(row),
            Ask::Column { row, column } => {
                has(self.column_list(), listed(column)) && self.may_have(row)
            }
        }
    }

    fn body(&self) -> &[u8] {
        self.data.get(usize::from(self.body_at)..).unwrap_or_default()
    }

    /// See [`fuse::spot`].
    pub(super) fn spot(&self) -> u64 {
        match self.body {
            Body::Bloom { .. } => 0,
            Body::Fuse { width, shape, seed } => fuse::spot(self.body(), width, shape, seed),
        }
    }

    /// Whether the entry may have been put in.
    #[inline]
    fn may_have(&self, entry: u64) -> bool {
        let body = self.body();
        match self.body {
            Body::Bloom { lines, probes } => {
                let (start, mut state) = place(entry, u64::from(lines));
                let line = body.get(start..).and_then(|b| b.first_chunk::<LINE_BYTES>());
                let Some(line) = line else { return true };
                (0..probes).all(|_| {
                    let bit = next_bit(&mut state);
                    line.get(bit / 8).is_none_or(|byte| byte & (1 << (bit % 8)) != 0)
                })
            }
            Body::Fuse { width, shape, seed } => fuse::contains(body, width, shape, seed, entry),
        }
    }
}

#[cfg(test)]
mod tests;
