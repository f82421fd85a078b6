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
//! equals no key (see `key.rs`).

use std::cmp::Ordering;

use bytes::Bytes;

use super::footer::Handle;
use crate::cell::KeyView;
use crate::codec::{Malformed, Parsed, Reader, common_prefix, put_u64, unzigzag, zigzag};

/// Bytes before the common prefix.
const HEADER_LEN: usize = 8;

/// Bits of a rounded timestamp. A column of two bytes would cost an eighth of the partition to skip
/// blocks a little better.
const TIMESTAMP_BITS: u32 = 8;

/// Places of the columns.
const SEPARATOR_LEN: usize = 0;
const TAIL: usize = 1;
const OFFSET: usize = 2;
const LEN: usize = 3;
const RECORDS: usize = 4;
const TOMBSTONES: usize = 5;
const TIMESTAMP_MIN: usize = 6;
const TIMESTAMP_MAX: usize = 7;
const DATA_END: usize = 8;
const COLUMNS_MAX: usize = 9;

/// Bytes of the header at most, besides the common prefix.
const HEADER_BYTES_MAX: usize = HEADER_LEN + COLUMNS_MAX * (1 + 10) + 1;

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
    fn columns(self) -> usize {
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

    fn has_cells(&self) -> bool {
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

/// The smallest and the largest value of a column.
#[derive(Debug, Clone, Copy)]
struct Span {
    min: u64,
    max: u64,
}

impl Span {
    const EMPTY: Self = Self { min: u64::MAX, max: 0 };

    fn add(&mut self, value: u64) {
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    fn base(self) -> u64 {
        if self.min > self.max { 0 } else { self.min }
    }

    /// Bytes that hold every value less the smallest.
    fn width(self) -> usize {
        let bits = u64::BITS - self.max.saturating_sub(self.min).leading_zeros();
        bits.div_ceil(8) as usize
    }
}

/// A way to lay out the separators.
#[derive(Debug, Clone, Copy)]
struct Layout {
    head: usize,
    common: usize,
    lens: Span,
    tails: usize,
}

impl Layout {
    /// Bytes of a tail offset.
    fn tail_width(self) -> usize {
        Span { min: 0, max: self.tails as u64 }.width()
    }

    /// Bytes of `count` separators.
    fn bytes(self, count: usize) -> usize {
        let entry = self.head + self.lens.width() + self.tail_width();
        self.common + count * entry + self.tails
    }
}

/// Collects entries, in order, into an index block.
#[derive(Debug)]
pub(super) struct IndexBuilder {
    level: Level,
    /// The separators one after the other, and where each ends.
    separators: Vec<u8>,
    ends: Vec<usize>,
    entries: Vec<IndexEntry>,
    /// Of the columns from `OFFSET` on, except the timestamps.
    spans: [Span; COLUMNS_MAX],
    /// Of all entries.
    stats: BlockStats,
    data_end: u64,
}

impl IndexBuilder {
    /// An empty block.
    pub(super) fn new(level: Level) -> Self {
        Self {
            level,
            separators: Vec::new(),
            ends: Vec::new(),
            entries: Vec::new(),
            spans: [Span::EMPTY; COLUMNS_MAX],
            stats: BlockStats::NONE,
            data_end: 0,
        }
    }

    /// Adds an entry.
    pub(super) fn add(&mut self, separator: &[u8], entry: &IndexEntry) {
        self.separators.extend_from_slice(separator);
        self.ends.push(self.separators.len());
        self.entries.push(*entry);
        for (span, value) in self.spans.iter_mut().zip(values(entry)) {
            span.add(value);
        }
        self.stats.merge(&entry.stats);
        self.data_end = entry.data_end;
    }

    /// Takes the last entry back, with its separator.
    pub(super) fn pop(&mut self) -> Option<(Vec<u8>, IndexEntry)> {
        let entry = self.entries.pop()?;
        self.ends.pop();
        let separator = self.separators.split_off(self.ends.last().copied().unwrap_or(0));
        self.spans = [Span::EMPTY; COLUMNS_MAX];
        self.stats = BlockStats::NONE;
        for entry in &self.entries {
            for (span, value) in self.spans.iter_mut().zip(values(entry)) {
                span.add(value);
            }
            self.stats.merge(&entry.stats);
        }
        self.data_end = self.entries.last().map_or(0, |e| e.data_end);
        Some((separator, entry))
    }

    fn separator(&self, index: usize) -> &[u8] {
        let start = index.checked_sub(1).and_then(|i| self.ends.get(i)).copied().unwrap_or(0);
        let end = self.ends.get(index).copied().unwrap_or(start);
        self.separators.get(start..end).unwrap_or_default()
    }

    /// Bytes that all separators begin with. They ascend, so the first and the last decide.
    fn common(&self) -> usize {
        let last = self.ends.len().saturating_sub(1);
        common_prefix(self.separator(0), self.separator(last)).min(usize::from(u16::MAX))
    }

    fn layout(&self, head: usize, common: usize) -> Layout {
        let mut layout = Layout { head, common, lens: Span::EMPTY, tails: 0 };
        let mut start = 0;
        for end in &self.ends {
            let len = end - start - common;
            start = *end;
            layout.lens.add(len as u64);
            layout.tails += len.saturating_sub(head);
        }
        layout
    }

    /// The smaller of the two layouts.
    fn best_layout(&self) -> Layout {
        let common = self.common();
        let (short, long) = (self.layout(4, common), self.layout(8, common));
        let count = self.ends.len();
        if long.bytes(count) < short.bytes(count) { long } else { short }
    }

    /// Bytes of the columns' values except those of the separators.
    fn values_bytes(&self) -> usize {
        let width = |column: usize| match column {
            TIMESTAMP_MIN | TIMESTAMP_MAX => 1,
            _ => self.spans.get(column).map_or(0, |s| s.width()),
        };
        self.entries.len() * (OFFSET..self.level.columns()).map(width).sum::<usize>()
    }

    /// Whether the block has at most `bytes` bytes.
    pub(super) fn fits(&self, bytes: usize) -> bool {
        let rest = HEADER_BYTES_MAX + self.values_bytes();
        // Nearly always far from full, and then no need to look at every separator.
        rest + self.separators.len() + self.ends.len() * (4 + 8 + 8) <= bytes
            || rest + self.best_layout().bytes(self.ends.len()) <= bytes
    }

    /// Bytes of the block as it is, or a few more.
    pub(super) fn len(&self) -> usize {
        HEADER_BYTES_MAX + self.values_bytes() + self.separators.len() + self.ends.len() * 6
    }

    /// Entries.
    pub(super) fn count(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are no entries.
    pub(super) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Figures of all entries, the end of their data, and the last separator.
    pub(super) fn summary(&self) -> (BlockStats, u64, &[u8]) {
        (self.stats, self.data_end, self.separator(self.ends.len().saturating_sub(1)))
    }

    /// The block.
    pub(super) fn finish(&self) -> Vec<u8> {
        let count = self.ends.len();
        let layout = self.best_layout();
        let mut out = Vec::with_capacity(self.len());
        out.extend_from_slice(&[self.level as u8, layout.head as u8]);
        out.extend_from_slice(&(layout.common as u16).to_le_bytes());
        out.extend_from_slice(&(count as u32).to_le_bytes());
        out.extend_from_slice(self.separator(0).get(..layout.common).unwrap_or_default());
        let (shift, base) = self.timestamp_scale();
        let mut spans = self.spans;
        let tails = Span { min: 0, max: layout.tails as u64 };
        for (column, span) in [
            (SEPARATOR_LEN, layout.lens),
            (TAIL, tails),
            (TIMESTAMP_MIN, Span::EMPTY),
            (TIMESTAMP_MAX, Span::EMPTY),
        ] {
            if let Some(slot) = spans.get_mut(column) {
                *slot = span;
            }
        }
        let codes: Vec<_> = self.entries.iter().map(|e| timestamp_codes(e, shift, base)).collect();
        for (min, max) in &codes {
            spans.get_mut(TIMESTAMP_MIN).into_iter().for_each(|s| s.add(*min));
            spans.get_mut(TIMESTAMP_MAX).into_iter().for_each(|s| s.add(*max));
        }
        let columns = self.level.columns();
        for (column, span) in spans.iter_mut().enumerate().take(columns) {
            if column == TIMESTAMP_MIN || column == TIMESTAMP_MAX {
                // Their codes count from 0, and their base is that of the timestamps.
                span.min = 0;
                out.push(span.width() as u8);
                put_u64(&mut out, zigzag(base));
            } else {
                out.push(span.width() as u8);
                put_u64(&mut out, span.base());
            }
        }
        if columns > TIMESTAMP_MIN {
            out.push(shift as u8);
        }
        let mut tails = Vec::with_capacity(layout.tails);
        let mut tail_offsets = Vec::with_capacity(count);
        for index in 0..count {
            let rest = self.separator(index).get(layout.common..).unwrap_or_default();
            let head = head_of(rest).to_be_bytes();
            out.extend_from_slice(head.get(..layout.head).unwrap_or_default());
            tail_offsets.push(tails.len() as u64);
            tails.extend_from_slice(rest.get(layout.head..).unwrap_or_default());
        }
        for (column, span) in spans.iter().enumerate().take(columns) {
            for (index, entry) in self.entries.iter().enumerate() {
                let value = match column {
                    SEPARATOR_LEN => (self.separator(index).len() - layout.common) as u64,
                    TAIL => tail_offsets.get(index).copied().unwrap_or(0),
                    TIMESTAMP_MIN => codes.get(index).map_or(0, |c| c.0),
                    TIMESTAMP_MAX => codes.get(index).map_or(0, |c| c.1),
                    _ => values(entry).get(column).copied().unwrap_or(0),
                };
                let bytes = value.wrapping_sub(span.base()).to_le_bytes();
                out.extend_from_slice(bytes.get(..span.width()).unwrap_or_default());
            }
        }
        out.extend_from_slice(&tails);
        out
    }

    /// By how many bits timestamps are rounded, and from where they are counted.
    fn timestamp_scale(&self) -> (u32, i64) {
        if !self.stats.has_cells() {
            return (0, 0);
        }
        let (min, max) = (self.stats.timestamp_min, self.stats.timestamp_max);
        let bits = u64::BITS - min.abs_diff(max).leading_zeros();
        (bits.saturating_sub(TIMESTAMP_BITS), min)
    }
}

/// The values of an entry's columns; those of the separator and the timestamps are worked out elsewhere.
fn values(entry: &IndexEntry) -> [u64; COLUMNS_MAX] {
    let mut values = [0; COLUMNS_MAX];
    for (column, value) in [
        (OFFSET, entry.handle.offset),
        (LEN, u64::from(entry.handle.len)),
        (RECORDS, entry.stats.records),
        (TOMBSTONES, entry.stats.tombstones),
        (DATA_END, entry.data_end),
    ] {
        if let Some(slot) = values.get_mut(column) {
            *slot = value;
        }
    }
    values
}

fn timestamp_codes(entry: &IndexEntry, shift: u32, base: i64) -> (u64, u64) {
    if !entry.stats.has_cells() {
        return (1, 0);
    }
    let code = |timestamp: i64| base.abs_diff(timestamp) >> shift;
    (code(entry.stats.timestamp_min), code(entry.stats.timestamp_max))
}

/// The first eight bytes as a number, padded with zeros.
#[inline]
fn head_of(rest: &[u8]) -> u64 {
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

/// A parsed index block.
#[derive(Debug, Clone)]
pub(crate) struct IndexBlock {
    data: Bytes,
    level: Level,
    head: u8,
    shift: u8,
    common_len: u16,
    count: u32,
    heads_at: u32,
    tails_at: u32,
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
        Ok(Self { data, level, head, shift, common_len, count, heads_at, tails_at, columns })
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

    #[inline]
    fn heads(&self) -> &[u8] {
        let start = self.heads_at as usize;
        self.data.get(start..start + self.len() * usize::from(self.head)).unwrap_or_default()
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
        match target.strip_prefix(self.common()) {
            Some(rest) => self.compare_rest(index, rest),
            None => Ok(self.common().cmp(target)),
        }
    }

    /// Whether the separator of an entry begins with `prefix`.
    pub(super) fn begins_with(&self, index: usize, prefix: &[u8]) -> Parsed<bool> {
        let common = self.common();
        let Some(rest) = prefix.strip_prefix(common) else { return Ok(common.starts_with(prefix)) };
        let (head, tail) = self.parts(index)?;
        Ok(match rest.strip_prefix(head) {
            Some(rest) => tail.starts_with(rest),
            None => head.starts_with(rest),
        })
    }

    /// The same behind the common prefix.
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
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// Every fifth block without cells; spans that need rounding and spans that do not.
    fn stats(i: u64) -> BlockStats {
        let timestamps = match i % 5 {
            0 => (i64::MAX, i64::MIN),
            1 => (i as i64, i as i64),
            2 => (-1_000_003, 1_700_000_000_000_000 + i as i64),
            3 => (i64::MIN, 5),
            _ => (7, i64::MAX),
        };
        BlockStats {
            records: i,
            tombstones: i / 2,
            timestamp_min: timestamps.0,
            timestamp_max: timestamps.1,
        }
    }

    fn entry(i: u64) -> IndexEntry {
        IndexEntry {
            handle: Handle { offset: i * 100, len: 100 },
            stats: stats(i),
            data_end: i * 7,
        }
    }

    /// The test vector of docs/formats-sst.md.
    #[test]
    fn the_documented_partition_is_what_is_built() {
        let mut builder = IndexBuilder::new(Level::Partition);
        for (separator, offset, len, figures) in [
            ("row-a", 0, 4000, (12, 0, 1000, 1000)),
            ("row-bcdefg", 4096, 4010, (13, 1, 1000, 2000)),
        ] {
            let handle = Handle { offset, len };
            let (records, tombstones, timestamp_min, timestamp_max) = figures;
            let stats = BlockStats { records, tombstones, timestamp_min, timestamp_max };
            builder
                .add(separator.as_bytes(), &IndexEntry { handle, stats, data_end: handle.end() });
        }
        let hex = builder.finish().iter().fold(String::new(), |hex, b| hex + &format!("{b:02x}"));
        assert_eq!(
            hex,
            concat!(
                "0004040002000000",
                "726f772d",
                "0101",
                "0100",
                "0200",
                "01a01f",
                "010c",
                "0100",
                "00d00f",
                "01d00f",
                "02",
                "61000000",
                "62636465",
                "0005",
                "0000",
                "00000010",
                "000a",
                "0001",
                "0001",
                "00fa",
                "6667",
            )
        );
    }

    proptest! {
        #[test]
        fn a_search_finds_the_first_greater_separator(
            separators in prop::collection::btree_set(prop::collection::vec(0u8..3, 1..14), 1..60),
            prefix in prop::collection::vec(0u8..3, 0..3),
            target in prop::collection::vec(0u8..3, 0..14),
        ) {
            let separators: BTreeSet<Vec<u8>> =
                separators.iter().map(|s| [&prefix[..], s].concat()).collect();
            for level in [Level::Partition, Level::Top, Level::Filter] {
                let mut builder = IndexBuilder::new(level);
                for (i, separator) in separators.iter().enumerate() {
                    builder.add(separator, &entry(i as u64));
                }
                // Taking an entry back leaves no trace.
                builder.add(b"\xFF\xFFlast", &entry(9999));
                prop_assert_eq!(builder.pop().unwrap(), (b"\xFF\xFFlast".to_vec(), entry(9999)));
                let bytes = builder.finish();
                prop_assert!(builder.fits(bytes.len() + HEADER_BYTES_MAX));
                prop_assert!(!builder.fits(bytes.len() - 1) && bytes.len() <= builder.len() + 64);
                let block = IndexBlock::parse(Bytes::from(bytes), level).unwrap();
                let all: Vec<_> = separators.iter().collect();
                prop_assert_eq!(block.len(), all.len());
                for (i, separator) in all.iter().enumerate() {
                    prop_assert_eq!(&&block.separator(i).unwrap(), separator);
                    let got = block.entry(i, 1 << 40).unwrap();
                    prop_assert_eq!(got.handle, entry(i as u64).handle);
                    prop_assert_eq!(block.handle(i, 1 << 40).unwrap(), got.handle);
                    if level != Level::Filter {
                        prop_assert!(got.stats.describes(&entry(i as u64).stats));
                    }
                    if level == Level::Top {
                        prop_assert_eq!(got.data_end, entry(i as u64).data_end);
                    }
                    for target in [&target, *separator] {
                        let order = separator.as_slice().cmp(target);
                        prop_assert_eq!(block.compare(i, target).unwrap(), order);
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
