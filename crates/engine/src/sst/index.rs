//! Index blocks: partitions, the top-level index, and the filter index, all of one layout.
//!
//! ```text
//! level u8 | head bytes u8 (4 or 8) | common bytes u16 LE | entries u32 LE | common prefix
//! | columns: (width u8, 0 to 8 | base varint) each | timestamp shift u8    the shift on levels 0 and 1 only
//! | heads | values of each column | tails
//!
//! separator    common prefix | the first `head bytes` of what follows it, padded with zeros: the head | tail
//! columns      separator length behind the common prefix     all levels
//!              tail's first byte in `tails`
//!              handle offset | handle length
//!              records | tombstones | min timestamp | max timestamp   levels 0 and 1
//!              end of data                                            level 1
//! value        base + `width` bytes LE; a column whose values are all alike has width 0
//! timestamps   base (zigzag) + (value << shift), and for the max + 2^shift - 1; width at most 1.
//!              min's value > max's: none, as in a block of tombstones alone
//!
//! level   0 partition      entries name data blocks
//!         1 top level      entries name partitions; their figures are those of all blocks under them
//!         2 filter index   entries name filter partitions
//! ```
//!
//! A partition of 4 KiB blocks is searched once per point read, so its search reads nothing but the heads:
//! an array of big-endian numbers, a few cache lines in a row. Only entries whose head equals the target's
//! are compared in full. And there is an entry for every page of data, so it must be small: columns relative
//! to their smallest value take 13 bytes an entry where rows are random, where numbers of 8 bytes and offsets
//! of 4 took 45. That is also why timestamps are rounded outwards to 1/256 of the partition's span: they only
//! say which blocks need not be read.
//!
//! A separator lies strictly between the last key that the entry covers and the first that it does not, and
//! equals no key (see `key.rs`). `index_builder.rs` builds these blocks.

use std::cmp::Ordering;

use bytes::Bytes;

use super::footer::Handle;
use crate::cell::KeyView;
use crate::codec::{Malformed, Parsed, Reader, unzigzag};

/// Bytes before the common prefix.
pub(super) const HEADER_LEN: usize = 8;

/// Bits of a rounded timestamp. A column of two bytes would cost an eighth of the partition to skip
/// blocks a little better.
pub(super) const TIMESTAMP_BITS: u32 = 8;

/// Places of the columns.
pub(super) const SEPARATOR_LEN: usize = 0;
pub(super) const TAIL: usize = 1;
pub(super) const OFFSET: usize = 2;
pub(super) const LEN: usize = 3;
pub(super) const RECORDS: usize = 4;
pub(super) const TOMBSTONES: usize = 5;
pub(super) const TIMESTAMP_MIN: usize = 6;
pub(super) const TIMESTAMP_MAX: usize = 7;
pub(super) const DATA_END: usize = 8;
pub(super) const COLUMNS_MAX: usize = 9;

/// What the entries of an index block name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Level {
    Partition = 0,
    Top = 1,
    Filter = 2,
}

impl Level {
    /// Columns of a block of this level.
    pub(super) fn columns(self) -> usize {
        match self {
            Self::Partition => DATA_END,
            Self::Top => COLUMNS_MAX,
            Self::Filter => RECORDS,
        }
    }
}

/// Figures of a block, or of all blocks under an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockStats {
    pub(super) records: u64,
    pub(super) tombstones: u64,
    /// Of cells, in microseconds; `min > max` without cells. Read from an index they are rounded outwards.
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
        self.records = self.records.saturating_add(other.records);
        self.tombstones = self.tombstones.saturating_add(other.tombstones);
        self.timestamp_min = self.timestamp_min.min(other.timestamp_min);
        self.timestamp_max = self.timestamp_max.max(other.timestamp_max);
    }

    pub(super) fn has_cells(&self) -> bool {
        self.timestamp_min <= self.timestamp_max
    }

    /// Whether figures that an index gives are true of a block that has `found`: equal, but for the rounding
    /// of the timestamps.
    pub(super) fn describes(&self, found: &Self) -> bool {
        self.records == found.records
            && self.tombstones == found.tombstones
            && self.has_cells() == found.has_cells()
            && self.timestamp_min <= found.timestamp_min
            && self.timestamp_max >= found.timestamp_max
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

/// The first eight bytes as a number, padded with zeros.
#[inline]
pub(super) fn head_of(rest: &[u8]) -> u64 {
    if let Some(head) = rest.first_chunk::<8>() {
        return u64::from_be_bytes(*head);
    }
    let mut head = [0; 8];
    for (to, from) in head.iter_mut().zip(rest) {
        *to = *from;
    }
    u64::from_be_bytes(head)
}

/// Where the values of a column lie.
#[derive(Debug, Clone, Copy, Default)]
struct Column {
    base: u64,
    at: u32,
    width: u8,
}

/// A parsed index block. What each search looks at comes first: it is in one line then.
#[derive(Debug, Clone)]
#[repr(C)]
pub(crate) struct IndexBlock {
    data: Bytes,
    count: u32,
    heads_at: u32,
    tails_at: u32,
    common_len: u16,
    head: u8,
    level: Level,
    shift: u8,
    columns: [Column; COLUMNS_MAX],
}

impl IndexBlock {
    /// Parses a block that must be of `level`.
    pub(super) fn parse(data: Bytes, level: Level) -> Parsed<Self> {
        let mut input = Reader::new(&data);
        if input.u8()? != level as u8 {
            return Err(Malformed::whole("not an index block of the level that belongs here"));
        }
        let head = input.u8()?;
        if head != 4 && head != 8 {
            return Err(Malformed::whole("bad header of an index block"));
        }
        let common_len = input.fixed_u16()?;
        let count = input.fixed_u32()?;
        input.take(usize::from(common_len))?;
        let mut columns = [Column::default(); COLUMNS_MAX];
        for column in columns.iter_mut().take(level.columns()) {
            column.width = input.u8()?;
            column.base = input.u64()?;
            if column.width > 8 {
                return Err(Malformed::whole("an index column is wider than a number"));
            }
        }
        let shift = if level.columns() > TIMESTAMP_MIN { input.u8()? } else { 0 };
        let rounded = |at: usize| columns.get(at).is_some_and(|c| c.width <= 1);
        if u32::from(shift) > u64::BITS - TIMESTAMP_BITS
            || !rounded(TIMESTAMP_MIN)
            || !rounded(TIMESTAMP_MAX)
        {
            return Err(Malformed::whole("bad timestamps of an index block"));
        }
        // In 64 bits, which the sizes of made-up columns cannot overflow: 2^32 entries of 8 bytes each.
        let heads_at = input.position() as u64;
        let mut at = heads_at + u64::from(count) * u64::from(head);
        for column in columns.iter_mut().take(level.columns()) {
            column.at = u32::try_from(at).unwrap_or(u32::MAX);
            at += u64::from(count) * u64::from(column.width);
        }
        if at > data.len() as u64 || u32::try_from(data.len()).is_err() {
            return Err(Malformed::whole("an index block is shorter than its columns"));
        }
        let (heads_at, tails_at) = (heads_at as u32, at as u32);
        Ok(Self { data, count, heads_at, tails_at, common_len, head, level, shift, columns })
    }

    /// Entries.
    pub(super) fn len(&self) -> usize {
        self.count as usize
    }

    /// Bytes in memory.
    pub(super) fn bytes(&self) -> usize {
        self.data.len()
    }

    #[inline]
    fn common(&self) -> &[u8] {
        self.data.get(HEADER_LEN..HEADER_LEN + usize::from(self.common_len)).unwrap_or_default()
    }

    /// All up to the end of the heads, which is what every search looks at.
    #[inline]
    pub(super) fn searched(&self) -> &[u8] {
        let heads_len = self.len() * usize::from(self.head);
        self.data.get(..self.heads_at as usize + heads_len).unwrap_or_default()
    }

    #[inline]
    fn heads(&self) -> &[u8] {
        self.searched().get(self.heads_at as usize..).unwrap_or_default()
    }

    /// A value of a column, less its base.
    #[inline]
    fn raw(&self, column: usize, index: usize) -> Parsed<u64> {
        let column = self.columns.get(column).copied().unwrap_or_default();
        let width = usize::from(column.width);
        let start = column.at as usize + index * width;
        if index >= self.len() {
            return Err(Malformed::whole("an index entry that is not there"));
        }
        // Eight bytes at once where they are there: the rest belongs to what follows and is masked.
        if let Some(bytes) = self.data.get(start..).and_then(|b| b.first_chunk::<8>()) {
            let mask = if width == 8 { u64::MAX } else { (1 << (width * 8)) - 1 };
            return Ok(u64::from_le_bytes(*bytes) & mask);
        }
        let mut bytes = [0; 8];
        let stored = self.data.get(start..start + width).unwrap_or_default();
        for (to, from) in bytes.iter_mut().zip(stored) {
            *to = *from;
        }
        Ok(u64::from_le_bytes(bytes))
    }

    /// A value of a column.
    #[inline]
    fn value(&self, column: usize, index: usize) -> Parsed<u64> {
        let base = self.columns.get(column).map_or(0, |c| c.base);
        Ok(base.wrapping_add(self.raw(column, index)?))
    }

    /// What a separator has behind the common prefix: head and tail.
    fn parts(&self, index: usize) -> Parsed<(&[u8], &[u8])> {
        let outside = Malformed::whole("a separator reaches outside its block");
        let len = usize::try_from(self.value(SEPARATOR_LEN, index)?).map_err(|_| outside)?;
        let head = usize::from(self.head);
        let stored = self.heads().get(index * head..).ok_or(outside)?;
        let head_part = stored.get(..len.min(head)).ok_or(outside)?;
        let Some(tail_len) = len.checked_sub(head).filter(|len| *len > 0) else {
            return Ok((head_part, &[]));
        };
        let at = usize::try_from(self.value(TAIL, index)?).map_err(|_| outside)?;
        let tails = self.data.get(self.tails_at as usize..).unwrap_or_default();
        let tail = at.checked_add(tail_len).and_then(|end| tails.get(at..end)).ok_or(outside)?;
        Ok((head_part, tail))
    }

    /// The separator of an entry.
    pub(super) fn separator(&self, index: usize) -> Parsed<Vec<u8>> {
        let (head, tail) = self.parts(index)?;
        Ok([self.common(), head, tail].concat())
    }

    /// How the separator of an entry compares with a key.
    pub(super) fn compare(&self, index: usize, target: &[u8]) -> Parsed<Ordering> {
        let common = self.common();
        let Some(rest) = target.strip_prefix(common) else { return Ok(common.cmp(target)) };
        match self.compare_heads(index, rest) {
            Ordering::Equal => self.compare_rest(index, rest),
            order => Ok(order),
        }
    }

    /// Whether the separator of an entry begins with `prefix`.
    pub(super) fn begins_with(&self, index: usize, prefix: &[u8]) -> Parsed<bool> {
        let common = self.common();
        let Some(rest) = prefix.strip_prefix(common) else { return Ok(common.starts_with(prefix)) };
        let is_head_whole = rest.len() >= usize::from(self.head);
        if is_head_whole && self.compare_heads(index, rest) != Ordering::Equal {
            return Ok(false);
        }
        let (head, tail) = self.parts(index)?;
        Ok(match rest.strip_prefix(head) {
            Some(rest) => tail.starts_with(rest),
            None => head.starts_with(rest),
        })
    }

    /// How the head of a separator compares with what a key has behind the common prefix. Nearly all differ there, and the heads
    /// are in the processor's cache since they were searched; what else a separator has is in lines of its own.
    #[inline]
    fn compare_heads(&self, index: usize, rest: &[u8]) -> Ordering {
        let head = head_of(rest);
        let order = if self.head == 8 {
            let heads = self.heads().as_chunks::<8>().0;
            heads.get(index).map(|stored| u64::from_be_bytes(*stored).cmp(&head))
        } else {
            let heads = self.heads().as_chunks::<4>().0;
            heads.get(index).map(|stored| u32::from_be_bytes(*stored).cmp(&((head >> 32) as u32)))
        };
        order.unwrap_or(Ordering::Equal)
    }

    /// How a separator compares with a key, of both what is behind the common prefix.
    fn compare_rest(&self, index: usize, rest: &[u8]) -> Parsed<Ordering> {
        let (head, tail) = self.parts(index)?;
        let (start, end) = rest.split_at(head.len().min(rest.len()));
        Ok(head.cmp(start).then_with(|| tail.cmp(end)))
    }

    /// The first entry whose separator is greater than `target` (or, for `or_equal`, not less):
    /// the entry count where there is none.
    pub(super) fn find(&self, target: &[u8], or_equal: bool) -> Parsed<usize> {
        let common = self.common();
        let Some(rest) = target.strip_prefix(common) else {
            // All separators begin alike, so all lie on one side. A target that is the beginning of
            // theirs is less.
            return Ok(if target < common { 0 } else { self.len() });
        };
        let head = head_of(rest);
        if self.head == 8 {
            let heads = self.heads().as_chunks::<8>().0;
            self.find_head(heads, |h| u64::from_be_bytes(*h), head, rest, or_equal)
        } else {
            let heads = self.heads().as_chunks::<4>().0;
            self.find_head(heads, |h| u32::from_be_bytes(*h), (head >> 32) as u32, rest, or_equal)
        }
    }

    #[inline]
    fn find_head<C, H: Ord + Copy>(
        &self,
        heads: &[C],
        number: impl Fn(&C) -> H,
        head: H,
        rest: &[u8],
        or_equal: bool,
    ) -> Parsed<usize> {
        let mut low = heads.partition_point(|h| number(h) < head);
        if heads.get(low).is_none_or(|h| number(h) != head) {
            return Ok(low);
        }
        // Entries of the same head: one or two where keys are random, all of them within a wide row.
        let same = heads.get(low..).unwrap_or_default();
        let mut high = low + same.partition_point(|h| number(h) <= head);
        while low < high {
            let middle = low + (high - low) / 2;
            let before = match self.compare_rest(middle, rest)? {
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

    /// Where an entry's block lies, which must end at or before file offset `end`.
    #[inline]
    pub(super) fn handle(&self, index: usize, end: u64) -> Parsed<Handle> {
        Handle::checked(self.value(OFFSET, index)?, self.value(LEN, index)?, end)
    }

    /// An entry, whose block must end at or before file offset `end`.
    pub(super) fn entry(&self, index: usize, end: u64) -> Parsed<IndexEntry> {
        let handle = self.handle(index, end)?;
        let mut stats = BlockStats::NONE;
        if self.level != Level::Filter {
            stats.records = self.value(RECORDS, index)?;
            stats.tombstones = self.value(TOMBSTONES, index)?;
            (stats.timestamp_min, stats.timestamp_max) = self.timestamps(index)?;
        }
        let data_end =
            if self.level == Level::Top { self.value(DATA_END, index)? } else { handle.end() };
        if data_end > end {
            return Err(Malformed::whole("an index entry points outside the file"));
        }
        Ok(IndexEntry { handle, stats, data_end })
    }

    fn timestamps(&self, index: usize) -> Parsed<(i64, i64)> {
        let (min, max) = (self.raw(TIMESTAMP_MIN, index)?, self.raw(TIMESTAMP_MAX, index)?);
        if min > max {
            return Ok((BlockStats::NONE.timestamp_min, BlockStats::NONE.timestamp_max));
        }
        let base = |at: usize| unzigzag(self.columns.get(at).map_or(0, |c| c.base));
        let shift = u32::from(self.shift);
        let last = (1u64 << shift) - 1;
        Ok((
            base(TIMESTAMP_MIN).saturating_add_unsigned(min << shift),
            base(TIMESTAMP_MAX).saturating_add_unsigned((max << shift) | last),
        ))
    }
}

#[cfg(test)]
mod tests;
