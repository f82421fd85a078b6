//! Data blocks: building. The layout is drawn in `data.rs`.

use std::collections::HashMap;

use xxhash_rust::xxh3::xxh3_64;

use super::data::{
    FLAG_ORIGIN, FLAG_SAME_COLUMN, FLAG_SAME_FAMILY, FLAG_TIMESTAMP_MAX, HEADER_LEN, LAYOUT,
};
use crate::cell::{FamilyId, KeyView, SUFFIX_LEN, TIMESTAMP_MAX};
use crate::codec::{common_prefix, put_i64, put_u64, zigzag};

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
    /// Where the last row begins, if another one lies before it.
    row_mark: Option<RowMark>,
}

/// What the builder's buffers held when a row began.
#[derive(Debug, Clone, Copy)]
struct RowMark {
    groups: usize,
    group_count: usize,
    qualifiers: usize,
    qualifier_count: usize,
    values: usize,
    records: u32,
}

/// Bytes of an entry of the offset tables.
fn width(group_bytes: usize, qualifier_bytes: usize) -> usize {
    if u16::try_from(group_bytes.max(qualifier_bytes)).is_ok() { 2 } else { 4 }
}

/// Bytes of a varint.
fn varint_len(value: u64) -> usize {
    (u64::BITS - (value | 1).leading_zeros()).div_ceil(7) as usize
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
            row_mark: None,
        }
    }

    /// Whether nothing was added.
    pub(super) fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Bytes of the block if it were finished now.
    pub(super) fn len(&self) -> usize {
        let open = usize::from(self.open_records > 0);
        self.bytes_with(self.group_offsets.len() + open, self.open_len(0), 0)
    }

    /// Bytes of the block with so many groups, so many bytes more than the finished ones have in them, and
    /// so many bytes of a qualifier more, if any.
    fn bytes_with(&self, groups: usize, group_bytes: usize, qualifier: usize) -> usize {
        let group_bytes = self.groups.len() + group_bytes;
        let qualifier_bytes = self.qualifiers.len() + qualifier;
        let qualifiers = self.qualifier_ends.len() + usize::from(qualifier > 0);
        let tables = width(group_bytes, qualifier_bytes) * (groups + qualifiers);
        HEADER_LEN + tables + qualifier_bytes + group_bytes + self.values.len()
    }

    /// Bytes of the open group with so many records more, theirs not counted.
    fn open_len(&self, more: u32) -> usize {
        if self.open_records == 0 {
            return 0;
        }
        let tail = self.row.len() - self.shared();
        let numbers = [
            self.row.len() - tail,
            tail,
            (self.open_records + more) as usize,
            self.open_value_offset,
        ];
        numbers.map(|n| varint_len(n as u64)).iter().sum::<usize>() + tail + self.open.len()
    }

    /// Bytes that the open group's row shares with the first.
    fn shared(&self) -> usize {
        // The first group *is* the first row, so it shares nothing; later groups of that row share it all.
        if self.group_offsets.is_empty() { 0 } else { common_prefix(&self.row, &self.first_row) }
    }

    /// Bytes that the block has at most once a record is added.
    pub(super) fn len_with_at_most(&self, key: KeyView<'_>, value: &[u8]) -> usize {
        self.len() + key.bytes().len() + value.len() + RECORD_OVERHEAD_BYTES
    }

    /// Bytes that the block, which is not empty, would have with one more record: exactly, since a block
    /// that is stored as it is must not pass the end of its page by a byte.
    pub(super) fn len_with(&mut self, key: KeyView<'_>, value: &[u8]) -> usize {
        let row = key.row_prefix().get(..key.row_len() - 2).unwrap_or_default();
        let continues =
            self.open_records > 0 && self.open_records < GROUP_RECORDS_MAX && self.row == row;
        let column_end = key.bytes().len() - SUFFIX_LEN;
        let column = key.bytes().get(key.row_len() + 4..column_end).unwrap_or_default();
        let same_family = continues && self.last_family == key.family();
        let same_column = same_family && self.last_column == column;
        let (timestamp, seq) = if continues {
            (self.last_timestamp, self.last_seq)
        } else {
            (self.base_timestamp, self.base_seq)
        };
        let mut record = 1 + varint_len(value.len() as u64);
        record += varint_len(zigzag(key.seq().wrapping_sub(seq) as i64));
        if key.timestamp() != TIMESTAMP_MAX {
            record += varint_len(zigzag(key.timestamp().wrapping_sub(timestamp)));
        }
        if key.origin() != 0 {
            record += 2;
        }
        if !same_family {
            record += varint_len(u64::from(key.family().0));
        }
        let mut qualifier = 0;
        if !same_column {
            let number = if key.has_qualifier() {
                key.qualifier_into(&mut self.scratch);
                self.find_qualifier(xxh3_64(&self.scratch)).unwrap_or_else(|| {
                    // One byte at least, so that an empty one counts as one more too.
                    qualifier = self.scratch.len().max(1);
                    self.qualifier_ends.len() as u32
                }) + 1
            } else {
                0
            };
            record += varint_len(u64::from(number));
        }
        let groups = self.group_offsets.len() + 1;
        let bytes = if continues {
            self.bytes_with(groups, self.open_len(1) + record, qualifier)
        } else {
            let shared = common_prefix(row, &self.first_row);
            let numbers = [shared, row.len() - shared, 1, self.values.len()];
            let header = numbers.map(|n| varint_len(n as u64)).iter().sum::<usize>();
            let group = header + row.len() - shared + record;
            self.bytes_with(groups + 1, self.open_len(0) + group, qualifier)
        };
        bytes + value.len()
    }

    /// Takes the last row out again, which must have begun in this block and not be its first. Its values, one after
    /// the other.
    pub(super) fn take_back_row(&mut self) -> Vec<u8> {
        let Some(mark) = self.row_mark.take() else { return Vec::new() };
        self.open.clear();
        self.open_records = 0;
        self.groups.truncate(mark.groups);
        self.group_offsets.truncate(mark.group_count);
        self.qualifiers.truncate(mark.qualifiers);
        self.qualifier_ends.truncate(mark.qualifier_count);
        self.dictionary.retain(|_, place| (*place as usize) < mark.qualifier_count);
        self.records = mark.records;
        self.values.split_off(mark.values)
    }

    /// Bytes of the block without its last row; `None` where there is only one, or the last began in an
    /// earlier block.
    pub(super) fn len_before_row(&self) -> Option<usize> {
        let mark = self.row_mark.as_ref()?;
        let tables =
            width(mark.groups, mark.qualifiers) * (mark.group_count + mark.qualifier_count);
        Some(HEADER_LEN + tables + mark.qualifiers + mark.groups + mark.values)
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
            if !same_row && self.records > 0 {
                self.row_mark = Some(RowMark {
                    groups: self.groups.len(),
                    group_count: self.group_offsets.len(),
                    qualifiers: self.qualifiers.len(),
                    qualifier_count: self.qualifier_ends.len(),
                    values: self.values.len(),
                    records: self.records,
                });
            }
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
        if let Some(place) = self.find_qualifier(hash) {
            return place + 1;
        }
        let place = self.qualifier_ends.len() as u32;
        self.qualifiers.extend_from_slice(&self.scratch);
        self.qualifier_ends.push(self.qualifiers.len() as u32);
        self.dictionary.insert(hash, place);
        place + 1
    }

    /// The place of the qualifier in the scratch buffer, whose hash this is.
    fn find_qualifier(&self, hash: u64) -> Option<u32> {
        let place = *self.dictionary.get(&hash)?;
        (self.qualifier_at(place) == self.scratch).then_some(place)
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
        let shared = self.shared();
        self.group_offsets.push(self.groups.len() as u32);
        let tail = self.row.get(shared..).unwrap_or_default();
        put_u64(&mut self.groups, shared as u64);
        put_u64(&mut self.groups, tail.len() as u64);
        self.groups.extend_from_slice(tail);
        put_u64(&mut self.groups, u64::from(self.open_records));
        put_u64(&mut self.groups, self.open_value_offset as u64);
        self.groups.append(&mut self.open);
        self.open_records = 0;
    }

    /// Appends the block, of [`Self::len`] bytes, to `out`. The builder is empty again afterwards and keeps its
    /// buffers.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>) {
        self.close_group();
        let width = width(self.groups.len(), self.qualifiers.len());
        let tables = width * (self.group_offsets.len() + self.qualifier_ends.len());
        let values_at = HEADER_LEN + tables + self.qualifiers.len() + self.groups.len();
        out.reserve(values_at + self.values.len());
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
            if width == 2 {
                out.extend_from_slice(&(*offset as u16).to_le_bytes());
            } else {
                out.extend_from_slice(&offset.to_le_bytes());
            }
        }
        out.extend_from_slice(&self.qualifiers);
        out.extend_from_slice(&self.groups);
        out.extend_from_slice(&self.values);
        self.clear();
    }

    /// The same by itself.
    #[cfg(test)]
    pub(super) fn finished(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        self.finish(&mut out);
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
        self.row_mark = None;
        self.open_records = 0;
        self.records = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::{Kind, encode_key};
    use crate::sst::testing::samples;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn sizes_are_known_before_a_block_is_finished(records in samples(2..120)) {
            let mut builder = DataBlockBuilder::new();
            for (at, record) in records.iter().enumerate() {
                if at > 0 {
                    let (exact, most) = (
                        builder.len_with(record.view(), &record.value),
                        builder.len_with_at_most(record.view(), &record.value),
                    );
                    let mut whole = DataBlockBuilder::new();
                    for record in &records[..=at] {
                        whole.add(record.view(), &record.value);
                    }
                    prop_assert!(builder.len() < exact);
                    let len = whole.finished().len();
                    // An empty qualifier counts as one byte.
                    prop_assert!(len == exact || len + 1 == exact, "{} {}", len, exact);
                    prop_assert!(len <= most, "{} {}", len, most);
                }
                builder.add(record.view(), &record.value);
            }
            prop_assert_eq!(builder.len(), builder.finished().len());
        }

        #[test]
        fn a_row_that_is_taken_back_leaves_no_trace(records in samples(2..80)) {
            let last = records.last().unwrap().view().row_prefix().to_vec();
            let before = records.iter().filter(|r| r.view().row_prefix() != last);
            let mut want = DataBlockBuilder::new();
            for record in before {
                want.add(record.view(), &record.value);
            }
            let mut builder = DataBlockBuilder::new();
            for record in &records {
                builder.add(record.view(), &record.value);
            }
            prop_assert_eq!(builder.len_before_row().is_some(), !want.is_empty());
            if let Some(len) = builder.len_before_row() {
                prop_assert_eq!(len, want.len());
                let of_last = records.iter().filter(|r| r.view().row_prefix() == last);
                let values: Vec<u8> = of_last.flat_map(|r| r.value.clone()).collect();
                prop_assert_eq!(builder.take_back_row(), values);
                // And goes on as if nothing had been.
                for record in records.iter().filter(|r| r.view().row_prefix() == last) {
                    builder.add(record.view(), &record.value);
                    want.add(record.view(), &record.value);
                }
                prop_assert_eq!(builder.finished(), want.finished());
            }
        }
    }

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
        let hex = builder.finished().iter().fold(String::new(), |hex, b| hex + &format!("{b:02x}"));
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
