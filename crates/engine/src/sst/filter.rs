//! Filter partitions: cache-line-blocked Bloom filters with hybrid entries.
//!
//! ```text
//! kind u8 = 1 (blocked Bloom) | probes u8 | 0 u16 | lines u32 LE | lines x 64 bytes
//!
//! bit of an entry h:   line  = (h >> 32) * lines >> 32
//!                      bit i = top 9 bits of (low 32 bits of h) * 0x9E3779B9^(i+1), i < probes
//!                      bit b of a line is bit b % 8 of its byte b / 8
//! ```
//!
//! All bits of an entry lie in one line of 64 bytes, so a probe costs one cache miss. The price is a
//! false-positive rate of about 1.2 % at 10 bits per entry, where a plain Bloom filter would have 0.9 %.
//! The kind byte leaves room for others (binary fuse filters for the deep levels).
//!
//! # Entries
//!
//! ```text
//! row                     R = xxh3(row prefix)
//! family in the row       F = mix(R, 1, family)
//! column                  C = xxh3(qualifier raw, seed F)
//! row tombstone           mix(R, 2, 0)
//! family tombstone        mix(F, 3, 0)
//! ```
//!
//! Every record enters its row; every record but a row tombstone its family; every record with a qualifier,
//! column and cell tombstones included, its column. So each kind of read finds a tombstone that concerns it:
//!
//! ```text
//! read of a row        R
//! read of a family     F, or the row tombstone
//! read of a column     C, or the family tombstone, or the row tombstone
//! ```
//!
//! An SST whose properties count no row (family) tombstones is not probed for them. The filter is
//! partitioned by key, cut between columns: the row's entry and its tombstone are in the partition where
//! the row starts, the family's where the family starts, the column's where the column is. Each is found
//! by searching the filter index for the prefix itself, because separators equal no key and the first
//! separator greater than a prefix belongs to the partition of the first key with that prefix.

use bytes::Bytes;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::frame::mix64;
use super::key::Change;
use crate::cell::{FamilyId, KeyView, Kind};
use crate::codec::{Malformed, Parsed, Reader};

/// Bytes of a line: a cache line of the processors that matter.
const LINE_BYTES: usize = 64;
const HEADER_LEN: usize = 8;
const KIND_BLOCKED_BLOOM: u8 = 1;

/// Bits that one entry may set; more bits per key than 20 gain next to nothing.
const PROBES_MAX: u32 = 16;

const TAG_FAMILY: u64 = 1;
const TAG_ROW_TOMBSTONE: u64 = 2;
const TAG_FAMILY_TOMBSTONE: u64 = 3;

fn mix(hash: u64, tag: u64, value: u32) -> u64 {
    mix64(hash ^ mix64((tag << 32) | u64::from(value)))
}

/// The entry of a row, from its row prefix.
pub(super) fn row_entry(row_prefix: &[u8]) -> u64 {
    xxh3_64(row_prefix)
}

/// The entry of a family in a row, from the row's.
pub(super) fn family_entry(row: u64, family: FamilyId) -> u64 {
    mix(row, TAG_FAMILY, family.0)
}

/// The entry of a column, from its family's.
pub(super) fn column_entry(family: u64, qualifier: &[u8]) -> u64 {
    xxh3_64_with_seed(qualifier, family)
}

/// The entry of a row tombstone, from the row's.
pub(super) fn row_tombstone_entry(row: u64) -> u64 {
    mix(row, TAG_ROW_TOMBSTONE, 0)
}

/// The entry of a family tombstone, from the family's.
pub(super) fn family_tombstone_entry(family: u64) -> u64 {
    mix(family, TAG_FAMILY_TOMBSTONE, 0)
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

/// Turns a sequence of keys into their entries, each once where that is cheap to see.
#[derive(Debug, Default)]
pub(super) struct FilterEntries {
    row: u64,
    family: u64,
    row_tombstone: bool,
    family_tombstone: bool,
    qualifier: Vec<u8>,
}

impl FilterEntries {
    /// Calls `emit` with the entries of `key` that the keys before it have not given.
    pub(super) fn of(
        &mut self,
        change: Change,
        key: KeyView<'_>,
        mut emit: impl FnMut(Under, u64),
    ) {
        if change.row {
            self.row = row_entry(key.row_prefix());
            self.row_tombstone = false;
            emit(Under::Row, self.row);
        }
        if change.family {
            self.family = family_entry(self.row, key.family());
            self.family_tombstone = false;
        }
        match key.kind() {
            Kind::RowTombstone => {
                if !self.row_tombstone {
                    self.row_tombstone = true;
                    emit(Under::Row, row_tombstone_entry(self.row));
                }
                return;
            }
            Kind::FamilyTombstone if !self.family_tombstone => {
                self.family_tombstone = true;
                emit(Under::Family, family_tombstone_entry(self.family));
            }
            _ => {}
        }
        if change.family {
            emit(Under::Family, self.family);
        }
        if change.column && key.has_qualifier() {
            key.qualifier_into(&mut self.qualifier);
            emit(Under::Column, column_entry(self.family, &self.qualifier));
        }
    }
}

/// How many bits an entry sets: ln 2 of the bits it has.
fn probes_for(bits_per_key: u32) -> u32 {
    (bits_per_key * 69 / 100).clamp(1, PROBES_MAX)
}

/// The bits of an entry: its line's first byte, and the bits within the line one after the other.
fn place(hash: u64, lines: u64) -> (usize, u32) {
    ((((hash >> 32) * lines) >> 32) as usize * LINE_BYTES, hash as u32)
}

/// Moves on to an entry's next bit, 0 to 511.
fn next_bit(state: &mut u32) -> usize {
    *state = state.wrapping_mul(0x9E37_79B9);
    (*state >> 23) as usize
}

/// The filter partition of these entries.
pub(super) fn build_filter(entries: &[u64], bits_per_key: u32) -> Vec<u8> {
    let bits = entries.len() * bits_per_key as usize;
    let lines = bits.div_ceil(LINE_BYTES * 8).max(1);
    let probes = probes_for(bits_per_key);
    let mut out = Vec::with_capacity(HEADER_LEN + lines * LINE_BYTES);
    out.extend_from_slice(&[KIND_BLOCKED_BLOOM, probes as u8, 0, 0]);
    out.extend_from_slice(&(lines as u32).to_le_bytes());
    out.resize(HEADER_LEN + lines * LINE_BYTES, 0);
    for entry in entries {
        let (line, mut state) = place(*entry, lines as u64);
        for _ in 0..probes {
            let bit = next_bit(&mut state);
            if let Some(byte) = out.get_mut(HEADER_LEN + line + bit / 8) {
                *byte |= 1 << (bit % 8);
            }
        }
    }
    out
}

/// A parsed filter partition.
#[derive(Debug, Clone)]
pub(crate) struct FilterBlock {
    data: Bytes,
    lines: u64,
    probes: u8,
}

impl FilterBlock {
    /// Parses a block.
    pub(super) fn parse(data: Bytes) -> Parsed<Self> {
        let mut input = Reader::new(&data);
        if input.u8()? != KIND_BLOCKED_BLOOM {
            return Err(Malformed::whole("a filter of a kind that this build does not know"));
        }
        let probes = input.u8()?;
        let zero = input.fixed_u16()?;
        let lines = u64::from(input.fixed_u32()?);
        let len = HEADER_LEN as u64 + lines * LINE_BYTES as u64;
        let probes_ok = (1..=PROBES_MAX).contains(&u32::from(probes));
        if !probes_ok || zero != 0 || lines == 0 || len != data.len() as u64 {
            return Err(Malformed::whole("bad header of a filter"));
        }
        Ok(Self { data, lines, probes })
    }

    /// A filter that rules nothing out, for one that is damaged.
    pub(super) fn perhaps() -> Self {
        // A line that is not there is one that may contain anything.
        Self { data: Bytes::new(), lines: 1, probes: 1 }
    }

    /// Bytes in memory.
    pub(super) fn bytes(&self) -> usize {
        self.data.len()
    }

    /// Whether the entry may have been put in; never false for one that was.
    pub(super) fn may_contain(&self, entry: u64) -> bool {
        let (line, mut state) = place(entry, self.lines);
        let start = HEADER_LEN + line;
        let Some(line) = self.data.get(start..start + LINE_BYTES) else { return true };
        (0..self.probes).all(|_| {
            let bit = next_bit(&mut state);
            line.get(bit / 8).is_none_or(|byte| byte & (1 << (bit % 8)) != 0)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn false_positives_stay_below_their_bound() {
        for (bits, bound_percent) in [(10, 1.6), (16, 0.3), (6, 7.0)] {
            let entries: Vec<u64> = (0..20_000u64).map(mix64).collect();
            let filter = FilterBlock::parse(Bytes::from(build_filter(&entries, bits))).unwrap();
            assert!(entries.iter().all(|e| filter.may_contain(*e)));
            let wrong =
                (20_000..220_000u64).filter(|i| filter.may_contain(mix64(*i))).count() as f64;
            let percent = wrong / 200_000.0 * 100.0;
            assert!(percent < bound_percent, "{bits} bits: {percent} %");
        }
    }

    /// The test vector of docs/formats-sst.md.
    #[test]
    fn the_documented_entries_and_bits_are_what_is_computed() {
        let row = row_entry(b"ab\x00\x01");
        let family = family_entry(row, FamilyId(1));
        let column = column_entry(family, b"q");
        assert_eq!(
            [row, family, column, row_tombstone_entry(row), family_tombstone_entry(family)]
                .map(|e| format!("{e:016x}")),
            [
                "1d4fd0760be7105c",
                "b29b4feb19b0e47d",
                "ad3bdf1a464bdc06",
                "435b6ce7c6c34a73",
                "a2c30696e3f63e93"
            ]
            .map(str::to_owned)
        );
        let filter = build_filter(&[row, column], 10);
        let set: Vec<usize> =
            (0..512).filter(|b| filter[HEADER_LEN + b / 8] & (1 << (b % 8)) != 0).collect();
        assert_eq!(set, [56, 74, 120, 130, 163, 180, 199, 251, 322, 343, 400, 511]);
    }

    proptest! {
        #[test]
        fn random_filters_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), entry: u64) {
            if let Ok(filter) = FilterBlock::parse(Bytes::from(bytes.clone())) {
                filter.may_contain(entry);
            }
            let mut valid = build_filter(&[entry], 10);
            valid.truncate(bytes.len());
            if let Ok(filter) = FilterBlock::parse(Bytes::from(valid)) {
                prop_assert!(filter.may_contain(entry));
            }
        }
    }
}
