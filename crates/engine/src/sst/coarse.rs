//! The coarse filter: a bit or so for each row, in memory as long as the file is open.
//!
//! ```text
//! row of the read ─► coarse filter ─ no (53 % of the absent rows) ──────────────────► not in the file
//!                     resident        └ perhaps ─► filter partition ─ no (255 of 256) ─► not in the file
//!                                                  from the cache     └ perhaps ─► index ...
//! ```
//!
//! Filter partitions of 10 bits a row are read from the device where the cache is smaller than all of them. A
//! filter of 1.56 bits a row with one probe rules out 53 % of the absent rows, and so as many of those reads, for a
//! sixth of the memory: much more than a cache of that size does for partitions that are all asked alike.
//!
//! ```text
//! size u8 x n                 bits 8 n
//! bit of the row entry R      (R >> 32) * 8 n >> 32, of the byte bit / 8 its bit bit % 8
//! ```

use bytes::Bytes;

use super::footer::Handle;
use super::frame::TRAILER_LEN;
use crate::codec::{Malformed, Parsed};

/// Bits for a row, in sixteenths: 1.56 bits let 47 % of the absent rows through. Each bit more is worth more here than in a
/// cache of partitions, up to some three; with these, all that stays in memory is 0.95 MB for a GB of rows of 300 bytes, and it
/// is to be 1 MB at most.
const SIXTEENTHS_PER_ROW: u64 = 25;

/// Bytes of the file for one of the coarse filter, at least: rows shorter than 200 bytes have fewer bits,
/// so that they take 1 MiB a GiB at most.
const FILE_BYTES_PER_BYTE: u64 = 1024;

/// A coarse filter that has less than this share of its bits, 1 / 2, is left out: it would rule out a quarter of the
/// absent rows.
const WORTH_SHARE: u64 = 2;

/// Rows of a file that has one, at most: their hashes, 4 MiB then, are kept until the file is complete. A file of 64 MiB
/// has 670,000 of the shortest rows for which it is worth it; larger ones are of level 0, whose filters stay in memory.
const ROWS_MAX: usize = 1 << 20;

/// The rows of a file that is written.
#[derive(Debug)]
pub(super) struct CoarseBuilder {
    /// The high half of each row's entry; `None` where there will be no filter.
    rows: Option<Vec<u32>>,
}

impl CoarseBuilder {
    /// Of no rows yet.
    pub(super) fn new() -> Self {
        Self { rows: Some(Vec::new()) }
    }

    /// Adds a row by its entry.
    pub(super) fn add(&mut self, row_entry: u64) {
        if let Some(rows) = &mut self.rows {
            if rows.len() < ROWS_MAX {
                rows.push(high(row_entry));
            } else {
                self.rows = None;
            }
        }
    }

    /// The filter for a file of so many bytes; `None` where it is not worth its memory.
    pub(super) fn finish(self, file_bytes: u64) -> Option<Vec<u8>> {
        let rows = self.rows?;
        let mut filter = vec![0; filter_bytes(rows.len(), file_bytes)];
        for row in rows {
            let (byte, bit) = place(row, filter.len());
            if let Some(byte) = filter.get_mut(byte) {
                *byte |= bit;
            }
        }
        (!filter.is_empty()).then_some(filter)
    }
}

/// Bytes of the filter for so many rows in a file of so many bytes; 0 where it is not worth it.
fn filter_bytes(rows: usize, file_bytes: u64) -> usize {
    let wanted = (rows as u64 * SIXTEENTHS_PER_ROW).div_ceil(16 * 8);
    let bytes = wanted.min(file_bytes / FILE_BYTES_PER_BYTE);
    if bytes * WORTH_SHARE < wanted { 0 } else { bytes as usize }
}

/// The coarse filter of an open file.
#[derive(Debug)]
pub(super) struct CoarseFilter {
    bits: Bytes,
}

impl CoarseFilter {
    /// Bytes of the one at a handle.
    pub(super) fn bytes_in(handle: Handle) -> usize {
        (handle.len as usize).saturating_sub(TRAILER_LEN)
    }

    /// The filter that the frame at a handle holds.
    pub(super) fn new(bits: Bytes, handle: Handle) -> Parsed<Self> {
        if bits.len() != Self::bytes_in(handle) {
            return Err(Malformed::whole("a coarse filter is compressed"));
        }
        Ok(Self { bits })
    }

    /// Whether the file may have anything of the row.
    #[inline]
    pub(super) fn may_contain(&self, row_entry: u64) -> bool {
        let (byte, bit) = place(high(row_entry), self.bits.len());
        // Without bits it has nothing to say.
        self.bits.get(byte).is_none_or(|byte| byte & bit != 0)
    }

    /// Its size.
    pub(super) fn bytes(&self) -> usize {
        self.bits.len()
    }
}

fn high(row_entry: u64) -> u32 {
    (row_entry >> 32) as u32
}

/// Byte and bit of a row in a filter of `bytes`.
#[inline]
fn place(row: u32, bytes: usize) -> (usize, u8) {
    let bit = (u64::from(row) * (bytes as u64 * 8)) >> 32;
    ((bit / 8) as usize, 1 << (bit % 8))
}

#[cfg(test)]
mod tests {
    use super::super::filter::row_entry;
    use super::*;

    fn rows(from: usize, count: usize) -> impl Iterator<Item = u64> {
        (from..from + count).map(|row| row_entry(format!("row-{row:09}\0\u{1}").as_bytes()))
    }

    fn filter(count: usize, file_bytes: u64) -> Option<CoarseFilter> {
        let mut builder = CoarseBuilder::new();
        rows(0, count).for_each(|row| builder.add(row));
        builder.finish(file_bytes).map(|bits| {
            let handle = Handle { offset: 0, len: (bits.len() + TRAILER_LEN) as u32 };
            CoarseFilter::new(Bytes::from(bits), handle).unwrap()
        })
    }

    #[test]
    fn it_knows_all_its_rows_and_less_than_half_of_the_others() {
        let filter = filter(100_000, 30 << 20).unwrap();
        assert!(rows(0, 100_000).all(|row| filter.may_contain(row)));
        let others = rows(1_000_000, 100_000).filter(|row| filter.may_contain(*row)).count();
        assert!((46_000..49_000).contains(&others), "{others}");
        assert_eq!(filter.bytes(), (100_000 * 25_usize).div_ceil(128));
    }

    #[test]
    fn short_rows_get_fewer_bits_and_the_shortest_none() {
        let full = (100_000 * 25_u64).div_ceil(128);
        assert_eq!(filter(100_000, full * 1024 * 3 / 4).unwrap().bytes() as u64, full * 3 / 4);
        assert!(filter(100_000, full * 1024 / 2 - 1024).is_none());
        assert!(filter(0, 30 << 20).is_none());
    }

    #[test]
    fn more_rows_than_are_kept_have_none() {
        assert!(filter(ROWS_MAX, 2 << 30).is_some());
        assert!(filter(ROWS_MAX + 1, 2 << 30).is_none());
    }
}
