//! Data blocks: building. The layout is drawn in `data.rs`.

use std::collections::HashMap;

use xxhash_rust::xxh3::xxh3_64;

use super::data::{
    FLAG_ORIGIN, FLAG_SAME_COLUMN, FLAG_SAME_FAMILY, FLAG_TIMESTAMP_MAX, HEADER_LEN, LAYOUT,
};
use crate::cell::{FamilyId, KeyView, SUFFIX_LEN, TIMESTAMP_MAX};
use crate::codec::{common_prefix, put_i64, put_u64};

/// Records of one group at most. A search decodes half a group on average, so fewer would search faster;
/// more would spend fewer bytes (about five a group) on the offset table and the row's place.
const GROUP_RECORDS_MAX: u32 = 32;

/// Bytes that a record can add to a block besides its key and value: an offset of a group and of a
/// qualifier, the group's header, and the record's lengths.
const RECORD_OVERHEAD_BYTES: usize = 40;

/// Bytes of the values' buffer that stay allocated from block to block.
const BUFFER_KEPT_BYTES: usize = 1 << 20;

/// Collects records, in key order, into a data block.
#[derive(Debug)]
pub(super) struct DataBlockBuilder {
    /// Finished groups.
    groups: Vec<u8>,
    group_offsets: Vec<u32>,
    /// Records of the open group, and how many.
    open: Vec<u8>,
    open_records: u32,
    open_value_offset: usize,
    first_row: Vec<u8>,
    /// The open group's row, escaped, without terminator.
    row: Vec<u8>,
    qualifiers: Vec<u8>,
    qualifier_ends: Vec<u32>,
    /// Hash of a qualifier to its place. Two qualifiers of one hash are two entries, and the second is
    /// simply not found again: the dictionary may hold duplicates.
    dictionary: HashMap<u64, u32>,
    values: Vec<u8>,
    records: u32,
    base_timestamp: i64,
    base_seq: u64,
    /// The last record: its family and column part, timestamp and sequence.
    last_family: FamilyId,
    last_column: Vec<u8>,
    last_timestamp: i64,
    last_seq: u64,
    scratch: Vec<u8>,
}

impl DataBlockBuilder {
    /// An empty block.
    pub(super) fn new() -> Self {
        Self {
            groups: Vec::new(),
            group_offsets: Vec::new(),
            open: Vec::new(),
            open_records: 0,
            open_value_offset: 0,
            first_row: Vec::new(),
            row: Vec::new(),
            qualifiers: Vec::new(),
            qualifier_ends: Vec::new(),
            dictionary: HashMap::new(),
            values: Vec::new(),
            records: 0,
            base_timestamp: 0,
            base_seq: 0,
            last_family: FamilyId(0),
            last_column: Vec::new(),
            last_timestamp: 0,
            last_seq: 0,
            scratch: Vec::new(),
        }
    }

    /// Whether nothing was added.
    pub(super) fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Bytes of the block as it is, to a few bytes.
    pub(super) fn len(&self) -> usize {
        HEADER_LEN
            + 4 * (self.group_offsets.len() + self.qualifier_ends.len())
            + self.qualifiers.len()
            + self.groups.len()
            + self.open.len()
            + self.values.len()
    }

    /// Bytes that the block has at most once a record is added.
    pub(super) fn len_with(&self, key: KeyView<'_>, value: &[u8]) -> usize {
        self.len() + key.bytes().len() + value.len() + RECORD_OVERHEAD_BYTES
    }

    /// Adds a record, whose key must be greater than the one before.
    pub(super) fn add(&mut self, key: KeyView<'_>, value: &[u8]) {
        let row = key.row_prefix().get(..key.row_len() - 2).unwrap_or_default();
        let same_row = self.open_records > 0 && self.row == row;
        if self.records == 0 {
            self.first_row.extend_from_slice(row);
            self.base_timestamp = key.timestamp();
            if self.base_timestamp == TIMESTAMP_MAX {
                // A tombstone's: nothing that follows is near it. The sequence's milliseconds are.
                self.base_timestamp = (key.seq() >> crate::cell::SEQ_COUNTER_BITS) as i64 * 1000;
            }
            self.base_seq = key.seq();
        }
        if !same_row || self.open_records >= GROUP_RECORDS_MAX {
            self.close_group();
            self.row.clear();
            self.row.extend_from_slice(row);
            self.open_value_offset = self.values.len();
            self.last_timestamp = self.base_timestamp;
            self.last_seq = self.base_seq;
        }
        self.add_record(key, value.len());
        self.values.extend_from_slice(value);
        self.open_records += 1;
        self.records += 1;
    }

    fn add_record(&mut self, key: KeyView<'_>, value_len: usize) {
        let first = self.open_records == 0;
        let column_end = key.bytes().len() - SUFFIX_LEN;
        let column = key.bytes().get(key.row_len() + 4..column_end).unwrap_or_default();
        let same_family = !first && self.last_family == key.family();
        let same_column = same_family && self.last_column == column;
        let timestamp = key.timestamp();
        let mut flags = key.kind() as u8;
        for (set, flag) in [
            (same_column, FLAG_SAME_COLUMN),
            (same_family, FLAG_SAME_FAMILY),
            (key.origin() != 0, FLAG_ORIGIN),
            (timestamp == TIMESTAMP_MAX, FLAG_TIMESTAMP_MAX),
        ] {
            if set {
                flags |= flag;
            }
        }
        self.open.push(flags);
        if !same_column {
            if !same_family {
                put_u64(&mut self.open, u64::from(key.family().0));
            }
            let qualifier = self.qualifier_number(key);
            put_u64(&mut self.open, u64::from(qualifier));
            self.last_family = key.family();
            self.last_column.clear();
            self.last_column.extend_from_slice(column);
        }
        if timestamp != TIMESTAMP_MAX {
            put_i64(&mut self.open, timestamp.wrapping_sub(self.last_timestamp));
        }
        // The difference is always from the record before, tombstones included, as the reader has it.
        self.last_timestamp = timestamp;
        put_i64(&mut self.open, key.seq().wrapping_sub(self.last_seq) as i64);
        self.last_seq = key.seq();
        if key.origin() != 0 {
            self.open.extend_from_slice(&key.origin().to_le_bytes());
        }
        put_u64(&mut self.open, value_len as u64);
    }

    /// 0 without a qualifier, else 1 + its place in the dictionary, where it is put if needed.
    fn qualifier_number(&mut self, key: KeyView<'_>) -> u32 {
        if !key.has_qualifier() {
            return 0;
        }
        key.qualifier_into(&mut self.scratch);
        let hash = xxh3_64(&self.scratch);
        if let Some(place) = self.dictionary.get(&hash)
            && self.qualifier_at(*place) == self.scratch
        {
            return place + 1;
        }
        let place = self.qualifier_ends.len() as u32;
        self.qualifiers.extend_from_slice(&self.scratch);
        self.qualifier_ends.push(self.qualifiers.len() as u32);
        self.dictionary.insert(hash, place);
        place + 1
    }

    fn qualifier_at(&self, place: u32) -> &[u8] {
        let end_of = |i: usize| self.qualifier_ends.get(i).copied().unwrap_or(0) as usize;
        let start = (place as usize).checked_sub(1).map_or(0, end_of);
        self.qualifiers.get(start..end_of(place as usize)).unwrap_or_default()
    }

    fn close_group(&mut self) {
        if self.open_records == 0 {
            return;
        }
        self.group_offsets.push(self.groups.len() as u32);
        // The first group *is* the first row, so it shares nothing; later groups of that row share it all.
        let shared = if self.group_offsets.len() == 1 {
            0
        } else {
            common_prefix(&self.row, &self.first_row)
        };
        let tail = self.row.get(shared..).unwrap_or_default();
        put_u64(&mut self.groups, shared as u64);
        put_u64(&mut self.groups, tail.len() as u64);
        self.groups.extend_from_slice(tail);
        put_u64(&mut self.groups, u64::from(self.open_records));
        put_u64(&mut self.groups, self.open_value_offset as u64);
        self.groups.append(&mut self.open);
        self.open_records = 0;
    }

    /// The block. The builder is empty again afterwards and keeps its buffers.
    pub(super) fn finish(&mut self) -> Vec<u8> {
        self.close_group();
        let narrow = u16::try_from(self.groups.len()).is_ok()
            && u16::try_from(self.qualifiers.len()).is_ok();
        let width: usize = if narrow { 2 } else { 4 };
        let tables = width * (self.group_offsets.len() + self.qualifier_ends.len());
        let values_at = HEADER_LEN + tables + self.qualifiers.len() + self.groups.len();
        let mut out = Vec::with_capacity(values_at + self.values.len());
        out.extend_from_slice(&[LAYOUT, width as u8, 0, 0]);
        for number in [
            self.group_offsets.len(),
            self.qualifier_ends.len(),
            self.qualifiers.len(),
            values_at,
            self.records as usize,
        ] {
            out.extend_from_slice(&(number as u32).to_le_bytes());
        }
        out.extend_from_slice(&self.base_timestamp.to_le_bytes());
        out.extend_from_slice(&self.base_seq.to_le_bytes());
        for offset in self.group_offsets.iter().chain(&self.qualifier_ends) {
            if narrow {
                out.extend_from_slice(&(*offset as u16).to_le_bytes());
            } else {
                out.extend_from_slice(&offset.to_le_bytes());
            }
        }
        out.extend_from_slice(&self.qualifiers);
        out.extend_from_slice(&self.groups);
        out.extend_from_slice(&self.values);
        self.clear();
        out
    }

    fn clear(&mut self) {
        for buffer in [
            &mut self.groups,
            &mut self.open,
            &mut self.first_row,
            &mut self.row,
            &mut self.qualifiers,
            &mut self.values,
            &mut self.last_column,
        ] {
            buffer.clear();
        }
        // One huge value must not keep its memory for the rest of the file.
        self.values.shrink_to(BUFFER_KEPT_BYTES);
        self.group_offsets.clear();
        self.qualifier_ends.clear();
        self.dictionary.clear();
        self.open_records = 0;
        self.records = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::{Kind, encode_key};

    /// The test vector of docs/formats-sst.md.
    #[test]
    fn the_documented_block_is_what_is_built() {
        let mut builder = DataBlockBuilder::new();
        for (row, qualifier, timestamp, seq, value) in
            [("ab", "q", 2000, 7, "v1"), ("ab", "q", 1000, 6, "v2"), ("ac", "q", 2000, 8, "x")]
        {
            let mut key = Vec::new();
            encode_key(
                row.as_bytes(),
                FamilyId(1),
                Some(qualifier.as_bytes()),
                timestamp,
                seq,
                Kind::Value,
                &mut key,
            );
            builder.add(KeyView::parse(&key).unwrap(), value.as_bytes());
        }
        let hex = builder.finish().iter().fold(String::new(), |hex, b| hex + &format!("{b:02x}"));
        assert_eq!(
            hex,
            concat!(
                "01020000",
                "02000000",
                "01000000",
                "01000000",
                "4b000000",
                "03000000",
                "d007000000000000",
                "0700000000000000",
                "0000",
                "1100",
                "0100",
                "71",
                "000261620200",
                "060101000002",
                "1ecf0f0102",
                "010163",
                "0104",
                "060101000201",
                "7631",
                "7632",
                "78",
            )
        );
    }
}
