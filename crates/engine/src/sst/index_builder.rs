//! Index blocks: building. The layout is drawn in `index.rs`.

use super::index::{
    BlockStats, COLUMNS_MAX, DATA_END, HEADER_LEN, IndexEntry, LEN, Level, OFFSET, RECORDS,
    SEPARATOR_LEN, TAIL, TIMESTAMP_BITS, TIMESTAMP_MAX, TIMESTAMP_MIN, TOMBSTONES, head_of,
};
use crate::codec::{common_prefix, put_u64, zigzag};

/// Bytes of the header at most, besides the common prefix.
pub(super) const HEADER_BYTES_MAX: usize = HEADER_LEN + COLUMNS_MAX * (1 + 10) + 1;

/// Bytes up to which a separator may be the last of a partition, whose entry in the top-level index has it: that is in memory for as long
/// as the file is open. A sixteenth of a page. Less would have partitions end elsewhere where keys are somewhat long.
const SHORT_BYTES: usize = 256;

/// Entries from which on a partition may end with a longer one: of keys that have kilobytes alike, a few percent stay in memory then. A
/// smaller number keeps more of them there, a larger one has reads of such rows read more of the index.
const LONG_FAN_OUT_MIN: usize = 32;

/// Bytes beyond which it may, however few they are: what is read at once for a row. It takes long separators that have little in common to
/// come to this, and between two of these is a short one.
const LONG_BYTES_MAX: usize = 128 << 10;

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

/// The lengths of all separators, kept as they come: whether a block is full is asked for every entry.
#[derive(Debug, Clone, Copy)]
struct Lengths {
    /// Bytes that all begin with. They ascend, so the first and the last decide.
    common: usize,
    /// Of what follows that.
    span: Span,
    /// Bytes behind the heads, by the two lengths of a head.
    tails: [usize; HEADS.len()],
}

/// Bytes that the head of a separator may have.
const HEADS: [usize; 2] = [4, 8];

impl Lengths {
    const NONE: Self = Self { common: 0, span: Span::EMPTY, tails: [0; HEADS.len()] };

    /// Adds a separator of `len` bytes, the common ones among them.
    fn add(&mut self, len: usize) {
        let len = len.saturating_sub(self.common);
        self.span.add(len as u64);
        for (tails, head) in self.tails.iter_mut().zip(HEADS) {
            *tails += len.saturating_sub(head);
        }
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
    lengths: Lengths,
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
            lengths: Lengths::NONE,
            spans: [Span::EMPTY; COLUMNS_MAX],
            stats: BlockStats::NONE,
            data_end: 0,
        }
    }

    /// Adds an entry.
    pub(super) fn add(&mut self, separator: &[u8], entry: &IndexEntry) {
        self.separators.extend_from_slice(separator);
        self.ends.push(self.separators.len());
        self.count_length(separator.len());
        self.entries.push(*entry);
        for (span, value) in self.spans.iter_mut().zip(values(entry)) {
            span.add(value);
        }
        self.stats.merge(&entry.stats);
        self.data_end = entry.data_end;
    }

    /// Where a block that its last entry does not fit into ends: before the entry at this place, which is the last one, mostly. Of long
    /// separators it goes on to one after which it can end, and does not end yet (`None`).
    pub(super) fn end_of_full(&self) -> Option<usize> {
        let last = self.ends.len().checked_sub(1).filter(|last| *last > 0)?;
        let len_before = |place: usize| self.separator(place.saturating_sub(1)).len();
        let len = len_before(last);
        if len <= SHORT_BYTES {
            return Some(last);
        }
        if last < LONG_FAN_OUT_MIN && self.fits(LONG_BYTES_MAX) {
            return None;
        }
        // Of the later half, so that each entry is taken back once, on average.
        let shortest = (last / 2 + 1..=last).rev().min_by_key(|place| len_before(*place))?;
        Some(if len_before(shortest) <= len / 2 { shortest } else { last })
    }

    /// Takes the entries from this place on back, with their separators.
    pub(super) fn take_back(&mut self, from: usize) -> Vec<(Vec<u8>, IndexEntry)> {
        let from = from.min(self.ends.len());
        let (ends, entries) = (self.ends.split_off(from), self.entries.split_off(from));
        let kept_bytes = self.ends.last().copied().unwrap_or(0);
        let mut start = kept_bytes;
        let mut taken = Vec::with_capacity(entries.len());
        for (end, entry) in ends.into_iter().zip(entries) {
            taken.push((self.separators.get(start..end).unwrap_or_default().to_vec(), entry));
            start = end;
        }
        self.separators.truncate(kept_bytes);
        self.count_lengths();
        self.spans = [Span::EMPTY; COLUMNS_MAX];
        self.stats = BlockStats::NONE;
        for entry in &self.entries {
            for (span, value) in self.spans.iter_mut().zip(values(entry)) {
                span.add(value);
            }
            self.stats.merge(&entry.stats);
        }
        self.data_end = self.entries.last().map_or(0, |e| e.data_end);
        taken
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

    /// Counts the last separator.
    fn count_length(&mut self, len: usize) {
        if self.common() == self.lengths.common && self.ends.len() > 1 {
            self.lengths.add(len);
        } else {
            // It has less in common with the others than they have among themselves.
            self.count_lengths();
        }
    }

    fn count_lengths(&mut self) {
        let mut lengths = Lengths { common: self.common(), ..Lengths::NONE };
        let mut start = 0;
        for end in &self.ends {
            lengths.add(end - start);
            start = *end;
        }
        self.lengths = lengths;
    }

    /// The smaller of the two layouts.
    fn best_layout(&self) -> Layout {
        let Lengths { common, span, tails } = self.lengths;
        let count = self.ends.len();
        let [short, long] = [0, 1].map(|at: usize| Layout {
            head: HEADS.get(at).copied().unwrap_or_default(),
            common,
            lens: span,
            tails: tails.get(at).copied().unwrap_or_default(),
        });
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
