//! Writing an SST: records in, a file out.
//!
//! Data blocks are written as they fill; index and filter partitions are kept (2 % of the data) and written
//! after them, so that data blocks lie one after the other and a scan reads ahead in straight lines.
//!
//! ```text
//! add ─► data block ─ full ─► [first 1 MiB: kept, to train a dictionary] ─► frame ─► buffer ─► file
//!    └─► filter entries ─ full, at a change of column ─► filter partition ─► kept
//!                            block's separator ─► index partition ─ full ─► kept
//! ```
//!
//! A block ends when the next record arrives that does not fit, because only then is the separator known.

use std::mem;
use std::path::{Path, PathBuf};

use super::data_builder::DataBlockBuilder;
use super::filter::{FilterEntries, build_filter};
use super::footer::{FOOTER_LEN, Footer, Handle};
use super::frame::{Framer, Method};
use super::index::{BlockStats, IndexBuilder, IndexEntry, Level};
use super::key::{Change, separator};
use super::properties::{PropertiesBuilder, SstProperties};
use super::{BLOCK_BYTES_MAX, Compression, FileId, SstOptions};
use crate::cell::KeyView;
use crate::error::{Error, ErrorKind, Result};
use crate::io::WritableFile;

/// Bytes handed to the file at once. Smaller would make a system call per block; larger only uses memory.
const WRITE_BUFFER_BYTES: usize = 256 << 10;

/// Bytes of data blocks from which a dictionary is trained: zstd advises a hundred times the dictionary at
/// most, and the gain is flat well before.
const TRAINING_BYTES: usize = 1 << 20;

/// Bytes of a dictionary. It is resident with the SST; beyond 16 KiB it gains little for blocks of 16 KiB.
const DICTIONARY_BYTES: usize = 16 << 10;

/// Bytes of one block that training looks at, so that one huge value does not become the dictionary.
const SAMPLE_BYTES_MAX: usize = 64 << 10;

/// Bytes of an index entry besides its separator, at most.
const INDEX_ENTRY_OVERHEAD_BYTES: usize = 64;

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SstSummary {
    /// The file's number.
    pub id: FileId,
    /// Bytes of the file.
    pub bytes: u64,
    /// What it holds.
    pub properties: SstProperties,
}

/// A finished data block that waits for the dictionary.
struct Waiting {
    block: Vec<u8>,
    separator: Vec<u8>,
    stats: BlockStats,
}

/// Writes one SST, from its first key to its last. Dropped unfinished, it leaves a file without a footer,
/// which no reader opens.
pub struct SstWriter {
    file: Box<dyn WritableFile>,
    path: PathBuf,
    id: FileId,
    options: SstOptions,
    framer: Framer,
    /// Written but not yet handed to the file.
    buffer: Vec<u8>,
    /// Bytes handed to the file.
    flushed: u64,
    data: DataBlockBuilder,
    data_stats: BlockStats,
    data_blocks: u64,
    /// Blocks kept for training; `None` when there is nothing (more) to train.
    training: Option<Vec<Waiting>>,
    training_bytes: usize,
    partition: IndexBuilder,
    partitions: Vec<IndexBuilder>,
    filter_entries: FilterEntries,
    filter: Vec<u64>,
    filters: Vec<(Vec<u8>, Vec<u8>)>,
    filter_bytes: u64,
    properties: PropertiesBuilder,
    last_key: Vec<u8>,
    last_row_len: usize,
    dictionary: Option<Vec<u8>>,
}

impl std::fmt::Debug for SstWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SstWriter").field("id", &self.id).field("path", &self.path).finish()
    }
}

impl SstWriter {
    /// Writes to `file`, which is empty; `path` is for error messages. `created_micros` goes into the
    /// properties.
    pub fn new(
        file: Box<dyn WritableFile>,
        path: &Path,
        id: FileId,
        options: SstOptions,
        created_micros: i64,
    ) -> Self {
        let trains = matches!(options.compression, Compression::ZstdDict(_));
        Self {
            file,
            path: path.to_owned(),
            id,
            options,
            framer: Framer::new(options.compression),
            buffer: Vec::with_capacity(WRITE_BUFFER_BYTES + options.block_bytes),
            flushed: 0,
            data: DataBlockBuilder::new(),
            data_stats: BlockStats::NONE,
            data_blocks: 0,
            training: trains.then(Vec::new),
            training_bytes: 0,
            partition: IndexBuilder::new(Level::Partition),
            partitions: Vec::new(),
            filter_entries: FilterEntries::default(),
            filter: Vec::new(),
            filters: Vec::new(),
            filter_bytes: 0,
            properties: PropertiesBuilder::new(created_micros),
            last_key: Vec::new(),
            last_row_len: 0,
            dictionary: None,
        }
    }

    /// Adds a record. Keys must ascend strictly, and a record must fit into a block
    /// ([`BLOCK_BYTES_MAX`]); else `InvalidArgument`, and the writer goes on as if it had not been called.
    pub fn add(&mut self, key: KeyView<'_>, value: &[u8]) -> Result<()> {
        if !self.last_key.is_empty() && key.bytes() <= self.last_key.as_slice() {
            return Err(self.refuse("keys do not ascend"));
        }
        // Twice the key: its qualifier may stand in the dictionary besides.
        if key.bytes().len() * 2 + value.len() + 1024 > BLOCK_BYTES_MAX {
            return Err(self.refuse("a record is larger than a block may be"));
        }
        let change = Change::between(&self.last_key, self.last_row_len, key);
        if !self.data.is_empty() && self.data.len_with(key, value) > self.options.block_bytes {
            self.end_block(Some(key.bytes()))?;
        }
        if self.options.filter_bits_per_key > 0 {
            if change.column && self.filter.len() >= self.filter_entries_max() {
                self.end_filter(Some(key.bytes()));
            }
            let filter = &mut self.filter;
            self.filter_entries.of(change, key, |_, entry| filter.push(entry));
        }
        self.properties.add(change, key, value.len());
        self.data_stats.add(key);
        self.data.add(key, value);
        self.last_key.clear();
        self.last_key.extend_from_slice(key.bytes());
        self.last_row_len = key.row_len();
        Ok(())
    }

    fn refuse(&self, what: &str) -> Error {
        Error::new(ErrorKind::InvalidArgument, format!("{}: {what}", self.path.display()))
    }

    /// Bytes that the file would have if it were finished now, roughly; blocks that wait for a dictionary
    /// count uncompressed.
    pub fn estimated_bytes(&self) -> u64 {
        let index: usize = self.partitions.iter().map(IndexBuilder::len).sum();
        let filter = self.filter.len() as u64 * u64::from(self.options.filter_bits_per_key) / 8;
        let open = if self.data.is_empty() { 0 } else { self.data.len() };
        let waiting = self.training_bytes + open + index + self.partition.len();
        self.offset() + waiting as u64 + self.filter_bytes + filter + FOOTER_LEN as u64
    }

    /// Entries after which a filter partition is full.
    fn filter_entries_max(&self) -> usize {
        let bits = self.options.filter_partition_bytes * 8;
        (bits / self.options.filter_bits_per_key.max(1) as usize).max(1)
    }

    /// The file offset of the next byte.
    fn offset(&self) -> u64 {
        self.flushed + self.buffer.len() as u64
    }

    /// Ends the open data block; `next` is the key that follows.
    fn end_block(&mut self, next: Option<&[u8]>) -> Result<()> {
        let block = self.data.finish();
        let separator = separator(&self.last_key, next);
        let stats = mem::replace(&mut self.data_stats, BlockStats::NONE);
        self.data_blocks += 1;
        let Some(waiting) = &mut self.training else {
            return self.write_data(&block, &separator, stats);
        };
        self.training_bytes += block.len();
        waiting.push(Waiting { block, separator, stats });
        if self.training_bytes >= TRAINING_BYTES { self.end_training() } else { Ok(()) }
    }

    /// Trains the dictionary from the blocks kept so far and writes them. Where zstd cannot make a
    /// dictionary (too little data, or all of it alike), plain zstd is used.
    fn end_training(&mut self) -> Result<()> {
        let Some(waiting) = self.training.take() else { return Ok(()) };
        self.training_bytes = 0;
        let samples: Vec<&[u8]> =
            waiting.iter().map(|w| w.block.get(..SAMPLE_BYTES_MAX).unwrap_or(&w.block)).collect();
        self.dictionary = zstd::dict::from_samples(&samples, DICTIONARY_BYTES)
            .ok()
            .filter(|dictionary| self.framer.set_dictionary(dictionary));
        for w in waiting {
            self.write_data(&w.block, &w.separator, w.stats)?;
        }
        Ok(())
    }

    fn write_data(&mut self, block: &[u8], separator: &[u8], stats: BlockStats) -> Result<()> {
        let handle = self.write(block, self.framer.data_method())?;
        let full = self.partition.len() + separator.len() + INDEX_ENTRY_OVERHEAD_BYTES
            > self.options.index_partition_bytes;
        if full && !self.partition.is_empty() {
            let next = IndexBuilder::new(Level::Partition);
            self.partitions.push(mem::replace(&mut self.partition, next));
        }
        self.partition.add(separator, &IndexEntry { handle, stats, data_end: handle.end() });
        Ok(())
    }

    /// Ends the open filter partition; `next` is the key that follows.
    fn end_filter(&mut self, next: Option<&[u8]>) {
        if self.filter.is_empty() {
            return;
        }
        let block = build_filter(&self.filter, self.options.filter_bits_per_key);
        self.filter_bytes += block.len() as u64;
        self.filters.push((separator(&self.last_key, next), block));
        self.filter.clear();
    }

    /// Writes a frame.
    fn write(&mut self, block: &[u8], method: Method) -> Result<Handle> {
        let offset = self.offset();
        let start = self.buffer.len();
        self.framer.frame(block, method, self.id, offset, &mut self.buffer);
        let len = (self.buffer.len() - start) as u32;
        if self.buffer.len() >= WRITE_BUFFER_BYTES {
            self.flush_buffer()?;
        }
        Ok(Handle { offset, len })
    }

    fn flush_buffer(&mut self) -> Result<()> {
        self.file.append(&self.buffer)?;
        self.flushed += self.buffer.len() as u64;
        self.buffer.clear();
        // One huge block must not keep its memory for the rest of the file.
        self.buffer.shrink_to(2 * WRITE_BUFFER_BYTES);
        Ok(())
    }

    /// Writes everything that is left and syncs the file; its name is durable once the directory is
    /// synced, which is the caller's. A file without records is valid too.
    pub fn finish(mut self) -> Result<SstSummary> {
        if !self.data.is_empty() {
            self.end_block(None)?;
        }
        self.end_training()?;
        self.end_filter(None);
        if !self.partition.is_empty() {
            let next = IndexBuilder::new(Level::Partition);
            self.partitions.push(mem::replace(&mut self.partition, next));
        }

        let mut top = IndexBuilder::new(Level::Top);
        for partition in mem::take(&mut self.partitions) {
            let (stats, data_end, last) = partition.summary();
            let last = last.to_vec();
            let handle = self.write(&partition.finish(), self.framer.index_method())?;
            top.add(&last, &IndexEntry { handle, stats, data_end });
        }
        let mut filters = IndexBuilder::new(Level::Filter);
        for (separator, block) in mem::take(&mut self.filters) {
            let handle = self.write(&block, Method::None)?;
            let data_end = handle.end();
            filters.add(&separator, &IndexEntry { handle, stats: BlockStats::NONE, data_end });
        }
        let dictionary = match self.dictionary.take() {
            Some(dictionary) => Some(self.write(&dictionary, Method::None)?),
            None => None,
        };
        let index_method = self.framer.index_method();
        let top_index = self.write(&top.finish(), index_method)?;
        let filter_index = if self.options.filter_bits_per_key > 0 {
            Some(self.write(&filters.finish(), index_method)?)
        } else {
            None
        };
        let last_row = match KeyView::from_parts(&self.last_key, self.last_row_len) {
            Ok(key) => key.row(),
            Err(_) => Vec::new(),
        };
        let counted = mem::replace(&mut self.properties, PropertiesBuilder::new(0));
        let properties = counted.finish(last_row, self.data_blocks);
        let mut encoded = Vec::new();
        properties.encode(&mut encoded);
        let properties_handle = self.write(&encoded, Method::None)?;
        let footer = Footer { properties: properties_handle, top_index, filter_index, dictionary };
        let offset = self.offset();
        footer.encode(self.id, offset, &mut self.buffer);
        self.flush_buffer()?;
        self.file.sync()?;
        Ok(SstSummary { id: self.id, bytes: self.flushed, properties })
    }
}
