//! Index blocks: partitions, the top-level index, and the filter index, all of one layout.
//!
//! ```text
//! level u8 | 0 u8 | 0 u16 | entries u32 LE | offset of each entry u32 LE ... | entries
//!
//! entry   shared varint | tail len varint | tail | offset varint | len varint
//!         | records varint | tombstones varint | min timestamp varint | max timestamp varint   levels 0 and 1
//!         | end of data varint                                                                  level 1
//!
//! level   0 partition      entries name data blocks
//!         1 top level      entries name partitions; their figures are those of all blocks under them
//!         2 filter index   entries name filter partitions
//! ```
//!
//! An entry's separator is the first `shared` bytes of the block's first separator and the tail; so a binary
//! search compares entries in place. It lies strictly between the last key that the entry covers and the
//! first that it does not, and equals no key (see `key.rs`). Min and max timestamp (zigzag)
//! are those of cells; a block of tombstones alone has min > max.

use std::cmp::Ordering;

use bytes::Bytes;

use super::footer::Handle;
use crate::cell::KeyView;
use crate::codec::{Malformed, Parsed, Reader, common_prefix, put_i64, put_u64};

const HEADER_LEN: usize = 8;

/// What the entries of an index block name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Level {
    Partition = 0,
    Top = 1,
    Filter = 2,
}

/// Figures of a block, or of all blocks under an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockStats {
    pub(super) records: u64,
    pub(super) tombstones: u64,
    /// Of cells, in microseconds; `min > max` without cells.
    pub(super) timestamp_min: i64,
    pub(super) timestamp_max: i64,
}

impl BlockStats {
    /// Of nothing.
    pub(super) const NONE: Self =
        Self { records: 0, tombstones: 0, timestamp_min: i64::MAX, timestamp_max: i64::MIN };

    /// Counts a record.
    pub(super) fn add(&mut self, key: KeyView<'_>) {
        self.records += 1;
        if key.kind().is_tombstone() {
            self.tombstones += 1;
        } else {
            self.timestamp_min = self.timestamp_min.min(key.timestamp());
            self.timestamp_max = self.timestamp_max.max(key.timestamp());
        }
    }

    /// Counts what another has counted.
    pub(super) fn merge(&mut self, other: &Self) {
        self.records += other.records;
        self.tombstones += other.tombstones;
        self.timestamp_min = self.timestamp_min.min(other.timestamp_min);
        self.timestamp_max = self.timestamp_max.max(other.timestamp_max);
    }
}

/// One entry without its separator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct IndexEntry {
    pub(super) handle: Handle,
    pub(super) stats: BlockStats,
    /// The first byte after the entry's last data block. For a partition's entries, the handle's end.
    pub(super) data_end: u64,
}

/// Collects entries, in order, into an index block.
#[derive(Debug)]
pub(super) struct IndexBuilder {
    level: Level,
    first: Vec<u8>,
    offsets: Vec<u32>,
    entries: Vec<u8>,
    /// Of all entries.
    stats: BlockStats,
    data_end: u64,
    last: Vec<u8>,
}

impl IndexBuilder {
    /// An empty block.
    pub(super) fn new(level: Level) -> Self {
        Self {
            level,
            first: Vec::new(),
            offsets: Vec::new(),
            entries: Vec::new(),
            stats: BlockStats::NONE,
            data_end: 0,
            last: Vec::new(),
        }
    }

    /// Adds an entry.
    pub(super) fn add(&mut self, separator: &[u8], entry: &IndexEntry) {
        let shared = if self.offsets.is_empty() {
            self.first = separator.to_vec();
            0
        } else {
            common_prefix(separator, &self.first)
        };
        self.offsets.push(self.entries.len() as u32);
        let out = &mut self.entries;
        let tail = separator.get(shared..).unwrap_or_default();
        put_u64(out, shared as u64);
        put_u64(out, tail.len() as u64);
        out.extend_from_slice(tail);
        put_u64(out, entry.handle.offset);
        put_u64(out, u64::from(entry.handle.len));
        if self.level != Level::Filter {
            put_u64(out, entry.stats.records);
            put_u64(out, entry.stats.tombstones);
            put_i64(out, entry.stats.timestamp_min);
            put_i64(out, entry.stats.timestamp_max);
        }
        if self.level == Level::Top {
            put_u64(out, entry.data_end);
        }
        self.stats.merge(&entry.stats);
        self.data_end = entry.data_end;
        self.last.clear();
        self.last.extend_from_slice(separator);
    }

    /// Bytes of the block as it is.
    pub(super) fn len(&self) -> usize {
        HEADER_LEN + self.offsets.len() * 4 + self.entries.len()
    }

    /// Whether there are no entries.
    pub(super) fn is_empty(&self) -> bool {
        self.offsets.is_empty()
    }

    /// Figures of all entries, the end of their data, and the last separator.
    pub(super) fn summary(&self) -> (BlockStats, u64, &[u8]) {
        (self.stats, self.data_end, &self.last)
    }

    /// The block.
    pub(super) fn finish(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.len());
        out.extend_from_slice(&[self.level as u8, 0, 0, 0]);
        out.extend_from_slice(&(self.offsets.len() as u32).to_le_bytes());
        for offset in &self.offsets {
            out.extend_from_slice(&offset.to_le_bytes());
        }
        out.extend_from_slice(&self.entries);
        out
    }
}

/// A parsed index block.
#[derive(Debug, Clone)]
pub(crate) struct IndexBlock {
    data: Bytes,
    level: Level,
    count: usize,
    entries_at: usize,
    first_at: usize,
    first_len: usize,
}

impl IndexBlock {
    /// Parses a block that must be of `level`.
    pub(super) fn parse(data: Bytes, level: Level) -> Parsed<Self> {
        let mut input = Reader::new(&data);
        if input.fixed_u32()? != u32::from(level as u8) {
            return Err(Malformed::whole("not an index block of the level that belongs here"));
        }
        let count = input.fixed_u32()? as usize;
        let entries_at = HEADER_LEN as u64 + count as u64 * 4;
        if entries_at > data.len() as u64 {
            return Err(Malformed::whole("an index block is shorter than its table"));
        }
        let entries_at = entries_at as usize;
        let mut block = Self { data, level, count, entries_at, first_at: 0, first_len: 0 };
        if count > 0 {
            let mut input = block.input(0)?;
            if input.u64()? != 0 {
                return Err(Malformed::whole("the first separator shares bytes with nothing"));
            }
            let len = input.usize()?;
            let at = input.position();
            input.take(len)?;
            (block.first_at, block.first_len) = (at, len);
        }
        Ok(block)
    }

    /// Entries.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Bytes in memory.
    pub(super) fn bytes(&self) -> usize {
        self.data.len()
    }

    fn input(&self, index: usize) -> Parsed<Reader<'_>> {
        let offset = Reader::at(&self.data, HEADER_LEN + index * 4).fixed_u32()? as usize;
        Ok(Reader::at(&self.data, self.entries_at + offset))
    }

    fn first(&self) -> &[u8] {
        self.data.get(self.first_at..self.first_at + self.first_len).unwrap_or_default()
    }

    /// The two parts of a separator, and the input after it.
    fn parts(&self, index: usize) -> Parsed<(&[u8], &[u8], Reader<'_>)> {
        if index >= self.count {
            return Err(Malformed::whole("an index entry that is not there"));
        }
        let mut input = self.input(index)?;
        let shared = input.usize()?;
        let tail_len = input.usize()?;
        let tail = input.take(tail_len)?;
        let head = self.first().get(..shared);
        let head = head.ok_or(Malformed::whole("a separator shares more than the first has"))?;
        Ok((head, tail, input))
    }

    /// The separator of an entry.
    pub(super) fn separator(&self, index: usize) -> Parsed<Vec<u8>> {
        let (head, tail, _) = self.parts(index)?;
        Ok([head, tail].concat())
    }

    /// How the separator of an entry compares with a key.
    pub(super) fn compare(&self, index: usize, target: &[u8]) -> Parsed<Ordering> {
        let (head, tail, _) = self.parts(index)?;
        let (start, rest) = target.split_at(head.len().min(target.len()));
        Ok(head.cmp(start).then_with(|| tail.cmp(rest)))
    }

    /// The first entry whose separator is greater than `target` (or, for `or_equal`, not less):
    /// the entry count where there is none.
    pub(super) fn find(&self, target: &[u8], or_equal: bool) -> Parsed<usize> {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            let before = match self.compare(middle, target)? {
                Ordering::Less => true,
                Ordering::Equal => !or_equal,
                Ordering::Greater => false,
            };
            if before {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }

    /// An entry, whose block must end at or before file offset `end`.
    pub(super) fn entry(&self, index: usize, end: u64) -> Parsed<IndexEntry> {
        let (_, _, mut input) = self.parts(index)?;
        let handle = Handle::checked(input.u64()?, input.u64()?, end)?;
        let mut stats = BlockStats::NONE;
        if self.level != Level::Filter {
            stats.records = input.u64()?;
            stats.tombstones = input.u64()?;
            stats.timestamp_min = input.i64()?;
            stats.timestamp_max = input.i64()?;
        }
        let data_end = if self.level == Level::Top { input.u64()? } else { handle.end() };
        if data_end > end {
            return Err(Malformed::whole("an index entry points outside the file"));
        }
        Ok(IndexEntry { handle, stats, data_end })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn entry(i: u64) -> IndexEntry {
        IndexEntry {
            handle: Handle { offset: i * 100, len: 100 },
            stats: BlockStats {
                records: i,
                tombstones: i / 2,
                timestamp_min: i64::MAX,
                timestamp_max: i64::MIN,
            },
            data_end: i * 7,
        }
    }

    proptest! {
        #[test]
        fn a_search_finds_the_first_greater_separator(
            separators in prop::collection::btree_set(prop::collection::vec(0u8..3, 1..6), 1..40),
            target in prop::collection::vec(0u8..3, 0..7),
        ) {
            for level in [Level::Partition, Level::Top, Level::Filter] {
                let mut builder = IndexBuilder::new(level);
                for (i, separator) in separators.iter().enumerate() {
                    builder.add(separator, &entry(i as u64));
                }
                let block = IndexBlock::parse(Bytes::from(builder.finish()), level).unwrap();
                let all: Vec<_> = separators.iter().collect();
                prop_assert_eq!(block.len(), all.len());
                for (i, separator) in all.iter().enumerate() {
                    prop_assert_eq!(&&block.separator(i).unwrap(), separator);
                    let got = block.entry(i, 1 << 40).unwrap();
                    prop_assert_eq!(got.handle, entry(i as u64).handle);
                    if level == Level::Top {
                        prop_assert_eq!(got, entry(i as u64));
                    }
                }
                let greater = all.iter().position(|s| **s > target).unwrap_or(all.len());
                prop_assert_eq!(block.find(&target, false).unwrap(), greater);
                let not_less = all.iter().position(|s| **s >= target).unwrap_or(all.len());
                prop_assert_eq!(block.find(&target, true).unwrap(), not_less);
            }
        }

        #[test]
        fn damaged_index_blocks_never_panic(
            separators in prop::collection::btree_set(prop::collection::vec(0u8..3, 1..6), 0..20),
            flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
            tail in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let separators: BTreeSet<Vec<u8>> = separators;
            let mut builder = IndexBuilder::new(Level::Top);
            for (i, separator) in separators.iter().enumerate() {
                builder.add(separator, &entry(i as u64));
            }
            let mut bytes = builder.finish();
            bytes.extend_from_slice(&tail);
            for (at, byte) in flips {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if let Ok(block) = IndexBlock::parse(Bytes::from(bytes), Level::Top) {
                let _ = block.find(b"\x01", false);
                for i in 0..block.len().min(100) {
                    let _ = (block.separator(i), block.entry(i, 1 << 40));
                }
            }
        }
    }
}
