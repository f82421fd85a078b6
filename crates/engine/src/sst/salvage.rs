//! What can still be read of an SST, piece by piece, for inspection and for repair.
//!
//! The walk goes through the file as its top-level index describes it. A piece that does not verify is
//! reported as lost, with the rows that it can have held, and the walk goes on behind it:
//!
//! ```text
//! | block | block | XXXXX | block | ...
//!    ..g     g..m   m..q     q..       rows of a lost block: from the separator before it to its own
//! ```
//!
//! Under an index partition that does not verify, blocks are looked for by their checksums, which say where they lie: each begins where
//! the one before it ends, or at a page. Rows of what is not found there are those of the whole partition.
//!
//! Guarantees: every record handed out verified, records ascend, and none lies behind the end of its partition.
//! A file whose footer, properties or top-level index is damaged does not open at all, and so is not walked.

use std::ops::Range;

use bytes::Bytes;
use serde::{Serialize, Serializer};

use super::PAGE_BYTES;
use super::block::BlockKind;
use super::footer::Handle;
use super::frame::frame_len;
use super::index::{IndexBlock, IndexEntry};
use super::key::separator_row;
use super::reader::SstReader;
use crate::cell::{KeyView, encode_suffix};
use crate::cursor::Entry;
use crate::error::{Error, ErrorKind, Result};

/// Bytes of a block that is found without an index, at most: four times what one has before compression, unless a larger record has it to
/// itself. Less would miss blocks; more takes longer where there are none, as it is looked for at each page.
const FOUND_FRAME_BYTES_MAX: u64 = 64 << 10;

/// Where the parts of an SST that exist once lie: (first byte, bytes).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SstPlaces {
    /// The properties.
    pub properties: (u64, u64),
    /// The top-level index.
    pub top_index: (u64, u64),
    /// The filter index.
    pub filter_index: Option<(u64, u64)>,
    /// The coarse filter.
    pub coarse_filter: Option<(u64, u64)>,
    /// The compression dictionary.
    pub dictionary: Option<(u64, u64)>,
}

/// An index partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PartitionInfo {
    /// Its first byte in the file.
    pub offset: u64,
    /// Its bytes in the file.
    pub bytes: u64,
    /// Data blocks under it.
    pub blocks: u64,
}

/// A data block, as its index entry describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BlockInfo {
    /// Its first byte in the file.
    pub offset: u64,
    /// Its bytes in the file.
    pub bytes: u64,
    /// Records in it.
    pub records: u64,
    /// Those that are tombstones.
    pub tombstones: u64,
    /// No row of it is less.
    #[serde(serialize_with = "row_as_text")]
    pub from_row: Bytes,
    /// No row of it is greater.
    #[serde(serialize_with = "row_as_text")]
    pub to_row: Bytes,
}

/// A piece that does not verify.
#[derive(Debug, Clone)]
pub struct Lost {
    /// Its first byte in the file.
    pub offset: u64,
    /// Bytes that cannot be read with it: for an index partition, its data blocks, unless all of them were found without it.
    pub bytes: u64,
    /// Records in it, as far as the index tells. 0 for a part of the filter, with which no record is lost, or of an index all of whose
    /// blocks were found.
    pub records: u64,
    /// No row in it is less.
    pub from_row: Bytes,
    /// No row in it is greater.
    pub to_row: Bytes,
    /// Why.
    pub error: Error,
}

impl Lost {
    /// Takes in what comes next in the order of rows.
    pub(crate) fn join(&mut self, next: Self) {
        let end = (self.offset + self.bytes).max(next.offset + next.bytes);
        self.offset = self.offset.min(next.offset);
        self.bytes = end - self.offset;
        self.records += next.records;
        self.to_row = next.to_row;
    }
}

/// A step of [`SstReader::walk`].
#[derive(Debug)]
pub enum Piece<'a> {
    /// An index partition; its blocks follow.
    Partition(PartitionInfo),
    /// A data block; its records follow.
    Block(BlockInfo),
    /// A record, with the offset of its block.
    Record(u64, Entry<'a>),
    /// A filter partition that verifies: its offset and bytes.
    Filter(u64, u64),
    /// Something that cannot be read.
    Lost(Lost),
}

fn row_as_text<S: Serializer>(row: &Bytes, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_str(&row.escape_ascii())
}

fn place(handle: Handle) -> (u64, u64) {
    (handle.offset, u64::from(handle.len))
}

/// Where the walk is.
struct Walk<'a> {
    reader: &'a SstReader,
    /// Whether data blocks are read, or only the index.
    records: bool,
    last_key: Vec<u8>,
    /// No row from here on is less.
    from_row: Bytes,
    on: &'a mut dyn FnMut(Piece<'_>) -> Result<()>,
}

impl SstReader {
    /// Where its single parts lie.
    pub fn places(&self) -> SstPlaces {
        let footer = self.footer();
        SstPlaces {
            properties: place(footer.properties),
            top_index: place(footer.top_index),
            filter_index: footer.filter_index.map(place),
            coarse_filter: self.coarse_handle().ok().flatten().map(place),
            dictionary: footer.dictionary.map(place),
        }
    }

    /// Calls `on` with every partition, block, record (where `records` is set) and filter partition, in file
    /// order within each kind. Reads past the cache; blocks. Only `on` and a damaged top level end it.
    pub fn walk(&self, records: bool, on: &mut dyn FnMut(Piece<'_>) -> Result<()>) -> Result<()> {
        let from_row = self.properties().first_row.clone();
        let mut walk = Walk { reader: self, records, last_key: Vec::new(), from_row, on };
        let mut data_start = 0;
        for at in 0..self.top().len() {
            let top = self.at_top(self.top_entry(at))?;
            let separator = self.at_top(self.top().separator(at))?;
            let last = at + 1 == self.top().len();
            walk.partition(&top, &separator, data_start, last)?;
            data_start = top.data_end;
        }
        if let Some(error) = self.filters_lost() {
            let handle = self.footer().filter_index.unwrap_or_default();
            walk.filter_lost(handle, error.clone())?;
        }
        let entry = |filters: &IndexBlock, at| filters.entry(at, self.blocks_end());
        for at in 0..self.filters().map_or(0, IndexBlock::len) {
            let found = self.filters().map(|filters| entry(filters, at)).transpose();
            let Some(IndexEntry { handle, .. }) = self.at_filters(found)? else { break };
            let (offset, bytes) = place(handle);
            match self.read_block(handle, BlockKind::Filter) {
                Ok(_) => (walk.on)(Piece::Filter(offset, bytes))?,
                Err(error) => walk.filter_lost(handle, error)?,
            }
        }
        if let Err(error) = self.read_coarse() {
            let handle = self.coarse_handle().ok().flatten();
            walk.filter_lost(handle.unwrap_or(self.footer().properties), error)?;
        }
        Ok(())
    }

    /// The frame that begins at `at`, if one verifies that ends before `end`.
    fn find_frame(&self, at: u64, end: u64) -> Result<Option<Handle>> {
        let bytes = self.read_raw(at, end.saturating_sub(at).min(FOUND_FRAME_BYTES_MAX))?;
        let len = frame_len(&bytes, self.id(), at);
        Ok(len.map(|len| Handle { offset: at, len: len as u32 }))
    }
}

impl Walk<'_> {
    /// A part of the filter cannot be read.
    fn filter_lost(&mut self, handle: Handle, error: Error) -> Result<()> {
        let (offset, bytes) = place(handle);
        let (from_row, to_row) = (Bytes::new(), Bytes::new());
        let lost = Lost { offset, bytes, records: 0, from_row, to_row, error };
        (self.on)(Piece::Lost(lost))
    }

    /// The greatest row before a separator.
    fn to_row(&self, separator: &[u8], last: bool) -> Bytes {
        if last {
            self.reader.properties().last_row.clone()
        } else {
            Bytes::from(separator_row(separator))
        }
    }

    fn partition(
        &mut self,
        top: &IndexEntry,
        separator: &[u8],
        data_start: u64,
        last: bool,
    ) -> Result<()> {
        let (offset, bytes) = place(top.handle);
        let to_row = self.to_row(separator, last);
        let blocks = match self.blocks(top.handle, last) {
            Ok(blocks) => blocks,
            Err(mut error) => {
                let data = data_start..top.data_end.min(self.reader.bytes());
                let mut read = 0;
                if self.records && error.kind() == ErrorKind::Corruption {
                    let searched = self.unindexed(data.clone(), separator, &mut read)?;
                    error = searched.err().unwrap_or(error);
                }
                let records = top.stats.records.saturating_sub(read);
                let lost = Lost {
                    offset: if records > 0 { data.start } else { offset },
                    bytes: if records > 0 { data.end.saturating_sub(data.start) } else { bytes },
                    records,
                    from_row: self.from_row.clone(),
                    to_row: to_row.clone(),
                    error,
                };
                self.from_row = self.from_row.clone().max(to_row);
                return (self.on)(Piece::Lost(lost));
            }
        };
        let count = blocks.len() as u64;
        (self.on)(Piece::Partition(PartitionInfo { offset, bytes, blocks: count }))?;
        for (entry, to_row, own) in blocks {
            self.block(&entry, to_row, own.as_slice().max(separator))?;
        }
        Ok(())
    }

    /// Hands out the records of data blocks in a part of the file of which no index tells, and counts them. The outer error is that of `on`,
    /// the inner one of the device.
    fn unindexed(&mut self, part: Range<u64>, end: &[u8], read: &mut u64) -> Result<Result<()>> {
        let mut at = part.start;
        while at < part.end {
            let records = match self.reader.find_frame(at, part.end) {
                Ok(Some(handle)) => {
                    at = handle.end();
                    self.records(handle, end, read)?
                }
                Ok(None) => {
                    at = at.saturating_add(1).next_multiple_of(PAGE_BYTES as u64);
                    Ok(())
                }
                Err(error) => Err(error),
            };
            match records {
                // What is damaged is not counted.
                Err(error) if error.kind() != ErrorKind::Corruption => return Ok(Err(error)),
                _ => {}
            }
        }
        Ok(Ok(()))
    }

    /// The entries of a partition, each with the greatest row that its block can hold, and its separator.
    fn blocks(&self, handle: Handle, last: bool) -> Result<Vec<(IndexEntry, Bytes, Vec<u8>)>> {
        let block = self.reader.read_block(handle, BlockKind::Index)?;
        let malformed = |_| self.reader.damaged(handle.offset, "an index partition is malformed");
        let index = block.index().map_err(malformed)?;
        (0..index.len())
            .map(|at| {
                let entry = self.reader.data_entry(index, at).map_err(malformed)?;
                let separator = index.separator(at).map_err(malformed)?;
                let to_row = self.to_row(&separator, last && at + 1 == index.len());
                Ok((entry, to_row, separator))
            })
            .collect()
    }

    /// Keys of the block are less than both its separator and that of its partition, of which `end` is the greater.
    fn block(&mut self, entry: &IndexEntry, to_row: Bytes, end: &[u8]) -> Result<()> {
        let (offset, bytes) = place(entry.handle);
        let info = BlockInfo {
            offset,
            bytes,
            records: entry.stats.records,
            tombstones: entry.stats.tombstones,
            from_row: self.from_row.clone(),
            to_row: to_row.clone(),
        };
        (self.on)(Piece::Block(info))?;
        if self.records {
            let mut read = 0;
            if let Err(error) = self.records(entry.handle, end, &mut read)? {
                // Not from the last row that was read: where keys do not ascend, lost ones may come before it.
                let from_row = self.from_row.clone();
                let records = entry.stats.records.saturating_sub(read);
                let to_row = to_row.clone();
                let lost = Lost { offset, bytes, records, from_row, to_row, error };
                (self.on)(Piece::Lost(lost))?;
            }
        }
        self.from_row = self.from_row.clone().max(to_row);
        Ok(())
    }

    /// Hands out the records of a block and counts them. The outer error is that of `on`, the inner one damage.
    fn records(&mut self, handle: Handle, end: &[u8], read: &mut u64) -> Result<Result<()>> {
        let reader = self.reader;
        let malformed = || reader.damaged(handle.offset, "a data block is malformed");
        let block = match reader.read_block(handle, BlockKind::Data) {
            Ok(block) => block,
            Err(error) => return Ok(Err(error)),
        };
        let Ok(data) = block.data() else { return Ok(Err(malformed())) };
        let Ok(first) = data.first() else { return Ok(Err(malformed())) };
        let mut next = Some(first);
        while let Some(record) = next {
            let mut bytes = Vec::with_capacity(self.last_key.len() + 32);
            data.push_row(&record, &mut bytes);
            if data.push_column(&record, &mut bytes).is_err() {
                return Ok(Err(malformed()));
            }
            encode_suffix(record.timestamp, record.seq, record.origin, record.kind, &mut bytes);
            let Ok(key) = KeyView::parse(&bytes) else { return Ok(Err(malformed())) };
            if bytes <= self.last_key {
                return Ok(Err(reader.damaged(handle.offset, "keys do not ascend")));
            }
            // Handed out, it would leave all blocks up to it without their records. It takes two separators to say so, since one
            // that is wrong by itself must not cost the records of its block.
            if *bytes >= *end {
                return Ok(Err(
                    reader.damaged(handle.offset, "a key does not belong into the block")
                ));
            }
            (self.on)(Piece::Record(handle.offset, Entry { key, value: data.value(&record) }))?;
            *read += 1;
            self.last_key = bytes;
            next = match data.after(&record) {
                Ok(next) => next,
                Err(_) => return Ok(Err(malformed())),
            };
        }
        Ok(Ok(()))
    }
}
