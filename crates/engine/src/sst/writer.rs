//! Writing an SST: records in, a file out.
//!
//! Data blocks are written as they fill; index and filter partitions are kept, and four bytes for each row (2 % of the
//! data), and written after them, so that data blocks lie one after the other and a scan reads ahead in straight lines.
//!
//! ```text
//! add ─► data block ─ full ─► [first 1 MiB: kept, to train a dictionary] ─► frame ─► place ─► buffer ─► file
//!    └─► filter builder ─ full ─► filter partition ─► kept
//!                            block's separator ─► index partition ─ full ─► kept
//! ```
//!
//! A block ends when the next record arrives that does not fit, because only then is the separator known.
//!
//! # One page per read
//!
//! A frame that crosses a page boundary without need costs every uncached read of it a second page. So a block
//! is cut where its *frame* is expected to fill a page, and frames are placed by pages:
//!
//! ```text
//! cut      at `read_bytes` over the ratio to which the last blocks were compressed. Blocks that do not
//!          compress are stored as they are; then the size is exact, and a frame never passes its page
//! row      a block is rather cut before a row than in it, if it is half full there and the next can hold the row up to
//!          here: the rest of a row is another read
//! place    | frame ......... 000 | frame ........ 00 | frame ...
//!          page                  page                page
//!          zeros up to the next page where that saves a page and is at most an eighth of the frame
//! ```

use std::mem;
use std::path::{Path, PathBuf};

use super::data_builder::DataBlockBuilder;
use super::filter::FilterForm;
use super::filter_builder::{FilterBuilder, FilterPartition, FinishedFilter};
use super::footer::{FOOTER_LEN, Footer, Handle};
use super::frame::{Framer, Method, TRAILER_LEN, WORTH_RATIO, seal_plain};
use super::index::{BlockStats, IndexEntry, Level};
use super::index_builder::IndexBuilder;
use super::key::{Change, separator};
use super::properties::{FilterFigures, PropertiesBuilder, SstProperties};
use super::row_note::RowNote;
use super::{BLOCK_BYTES_MAX, Compression, FileId, PAGE_BYTES, SstOptions};
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

/// Of a frame, what its padding may cost at most: 1 / 8. It is paid in space and write bandwidth by every
/// frame, half of it on average, and saved in reads: with a sixteenth, blocks of four or five records, whose
/// last does not fit by a fifth of a page, would cross pages; with a quarter, a file could be a quarter zeros.
const PADDING_SHARE: usize = 8;

/// Of a full block, what must be left for it to be cut before a row that it began: 1 / 2. With more, rows of
/// half a page would be divided; with less, there would be blocks of a quarter of a page.
const ROW_CUT_SHARE: usize = 2;

/// Compressed frames are aimed at this part of a page, 15 / 16, as blocks differ in how they compress: most
/// of those that are a little larger than expected still fit.
const RATIO_MARGIN: f64 = 15.0 / 16.0;

/// How much of the ratio is that of the last block: a quarter. More would follow every odd block, less would
/// take long to follow a change of the data.
const RATIO_GAIN: f64 = 0.25;

/// The smallest ratio that is believed, so that a run of zeros does not decide about what follows it.
const RATIO_MIN: f64 = 1.0 / 64.0;

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

/// A finished index partition, and its entry in the top level.
struct Partition {
    block: Vec<u8>,
    separator: Vec<u8>,
    stats: BlockStats,
    data_end: u64,
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
    /// A data block on its way to be compressed.
    block: Vec<u8>,
    data_stats: BlockStats,
    data_blocks: u64,
    /// Blocks kept for training; `None` when there is nothing (more) to train.
    training: Option<Vec<Waiting>>,
    training_bytes: usize,
    /// Bytes of a frame over those of its block, of late.
    ratio: f64,
    /// Bytes at which a data block is full.
    block_limit: usize,
    /// The row that the open data block ends with, so that it can go to the next block.
    row: RowNote,
    partition: IndexBuilder,
    partitions: Vec<Partition>,
    partition_bytes: u64,
    filter: Option<FilterBuilder>,
    properties: PropertiesBuilder,
    /// Zeros between frames.
    padding_bytes: u64,
    last_key: Vec<u8>,
    last_row_len: usize,
    dictionary: Option<Vec<u8>>,
}

impl std::fmt::Debug for SstWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SstWriter").field("id", &self.id).field("path", &self.path).finish()
    }
}

/// Whether a record can be in a block, and its value, without the key, in a frame of a value file.
pub(crate) fn fits_a_block(key: KeyView<'_>, value: &[u8]) -> bool {
    // Twice the key: its qualifier may stand in the dictionary besides.
    key.bytes().len() * 2 + value.len() + 1024 <= BLOCK_BYTES_MAX
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
            block: Vec::new(),
            data_stats: BlockStats::NONE,
            data_blocks: 0,
            training: trains.then(Vec::new),
            training_bytes: 0,
            ratio: 1.0,
            block_limit: Self::block_limit(&options, 1.0),
            row: RowNote::default(),
            partition: IndexBuilder::new(Level::Partition),
            partitions: Vec::new(),
            partition_bytes: 0,
            filter: (options.filter_bits_per_key > 0).then(|| {
                FilterBuilder::new(FilterForm {
                    kind: options.filter_kind,
                    bits_per_key: options.filter_bits_per_key,
                    partition_bytes: options.filter_partition_bytes,
                })
            }),
            padding_bytes: 0,
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
        if !fits_a_block(key, value) {
            return Err(self.refuse("a record is larger than a block may be"));
        }
        let change = Change::between(&self.last_key, self.last_row_len, key);
        if !self.data.is_empty() && self.is_full_with(key, value) {
            self.cut_block(change, key, value)?;
        }
        if let Some(filter) = &mut self.filter {
            filter.add(change, &self.last_key, key);
        }
        self.properties.add(change, key, value);
        if change.row {
            self.row.begin(&self.last_key, self.data_stats);
        }
        // A row that is larger than a block is divided in any case.
        self.row.push(key, value.len(), self.block_limit);
        self.add_to_block(key, value);
        self.last_key.clear();
        self.last_key.extend_from_slice(key.bytes());
        self.last_row_len = key.row_len();
        Ok(())
    }

    fn add_to_block(&mut self, key: KeyView<'_>, value: &[u8]) {
        self.data_stats.add(key);
        self.data.add(key, value);
    }

    /// Bytes at which a data block is full: where its frame is expected to fill `read_bytes`.
    fn block_limit(options: &SstOptions, ratio: f64) -> usize {
        let frame = options.read_bytes.saturating_sub(TRAILER_LEN).max(1);
        let limit = if ratio < WORTH_RATIO {
            (frame as f64 * RATIO_MARGIN / ratio) as usize
        } else {
            // It will be stored as it is, and to the byte.
            frame
        };
        limit.max(frame).min(options.block_bytes)
    }

    /// A block of `bytes` became a frame of `frame` bytes.
    fn learn_ratio(&mut self, frame: usize, bytes: usize) {
        let this = (frame as f64 / bytes.max(1) as f64).clamp(RATIO_MIN, 1.0);
        self.ratio += (this - self.ratio) * RATIO_GAIN;
        self.block_limit = Self::block_limit(&self.options, self.ratio);
    }

    fn is_full_with(&mut self, key: KeyView<'_>, value: &[u8]) -> bool {
        let limit = self.block_limit;
        self.data.len_with_at_most(key, value) > limit && self.data.len_with(key, value) > limit
    }

    /// Makes room for a record: ends the open data block before it, or before the row that it goes on with. Where what there
    /// is of that row leaves no room for it in the next block, that ends too.
    fn cut_block(&mut self, change: Change, key: KeyView<'_>, value: &[u8]) -> Result<()> {
        let least = self.block_limit / ROW_CUT_SHARE;
        let before_row = self.data.len_before_row().is_some_and(|len| len >= least);
        // A row that no block holds up to here is divided in any case.
        let holds = self.row.is_kept() && self.row.value_bytes() + value.len() <= self.block_limit;
        if change.row || !before_row || !holds {
            let separator = separator(&self.last_key, Some(key.bytes()));
            return self.end_block(separator);
        }
        let values = self.data.take_back_row();
        let row = mem::take(&mut self.row);
        self.data_stats = row.stats_before();
        let first = row.records(&values).next().map(|(key, _)| key).unwrap_or_default();
        self.end_block(separator(row.last_key_before(), Some(first)))?;
        let mut last: &[u8] = &[];
        for (bytes, value) in row.records(&values) {
            let key = KeyView::parse(bytes)
                .map_err(|e| Error::new(ErrorKind::InvalidArgument, e.message().to_owned()))?;
            // What the block that ended was compressed to may have lowered the limit.
            if !self.data.is_empty() && self.is_full_with(key, value) {
                self.end_block(separator(last, Some(bytes)))?;
            }
            self.add_to_block(key, value);
            last = bytes;
        }
        if self.is_full_with(key, value) {
            self.end_block(separator(&self.last_key, Some(key.bytes())))?;
        }
        // It stays kept, but begins its block, so that it is not taken back again.
        self.row = row;
        Ok(())
    }

    fn refuse(&self, what: &str) -> Error {
        Error::new(ErrorKind::InvalidArgument, format!("{}: {what}", self.path.display()))
    }

    /// Bytes that the file would have if it were finished now, roughly; blocks that wait for a dictionary
    /// count uncompressed.
    pub fn estimated_bytes(&self) -> u64 {
        let index = self.partition_bytes + self.partition.len() as u64;
        let filter = self.filter.as_ref().map_or(0, FilterBuilder::estimated_bytes);
        let open = if self.data.is_empty() { 0 } else { self.data.len() };
        let waiting = self.training_bytes + open;
        self.offset() + waiting as u64 + index + filter + FOOTER_LEN as u64
    }

    /// The file offset of the next byte.
    fn offset(&self) -> u64 {
        self.flushed + self.buffer.len() as u64
    }

    /// Ends the open data block; `separator` lies between its last key and the next.
    fn end_block(&mut self, separator: Vec<u8>) -> Result<()> {
        let stats = mem::replace(&mut self.data_stats, BlockStats::NONE);
        self.data_blocks += 1;
        if self.framer.data_method() == Method::None {
            return self.write_plain(&separator, stats);
        }
        if self.training.is_none() {
            let mut block = mem::take(&mut self.block);
            block.clear();
            self.data.finish(&mut block);
            let result = self.write_data(&block, &separator, stats);
            // One huge block must not keep its memory for the rest of the file.
            block.shrink_to(2 * WRITE_BUFFER_BYTES);
            self.block = block;
            return result;
        }
        let mut block = Vec::new();
        self.data.finish(&mut block);
        self.training_bytes += block.len();
        // Only to learn how large frames become: with a dictionary, a little smaller.
        let packed = self.framer.pack(&block, self.framer.data_method());
        self.learn_ratio(packed.frame_len(), block.len());
        if let Some(waiting) = &mut self.training {
            waiting.push(Waiting { block, separator, stats });
        }
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

    /// Writes the open data block as it is, from where it was built.
    fn write_plain(&mut self, separator: &[u8], stats: BlockStats) -> Result<()> {
        let len = self.data.len();
        self.learn_ratio(len + TRAILER_LEN, len);
        let len = len + TRAILER_LEN;
        self.pad(len, len / PADDING_SHARE);
        let (offset, start) = (self.offset(), self.buffer.len());
        self.data.finish(&mut self.buffer);
        seal_plain(&mut self.buffer, start, self.id, offset);
        self.wrote_data(Handle { offset, len: len as u32 }, separator, stats)
    }

    fn write_data(&mut self, block: &[u8], separator: &[u8], stats: BlockStats) -> Result<()> {
        let packed = self.framer.pack(block, self.framer.data_method());
        let len = packed.frame_len();
        self.learn_ratio(len, block.len());
        self.pad(len, len / PADDING_SHARE);
        let offset = self.offset();
        self.framer.put(block, packed, self.id, offset, &mut self.buffer);
        self.wrote_data(Handle { offset, len: len as u32 }, separator, stats)
    }

    /// A data block lies in the buffer: into the index with it.
    fn wrote_data(&mut self, handle: Handle, separator: &[u8], stats: BlockStats) -> Result<()> {
        self.flush_full_buffer()?;
        let entry = IndexEntry { handle, stats, data_end: handle.end() };
        self.partition.add(separator, &entry);
        let room = self.options.index_partition_bytes.saturating_sub(TRAILER_LEN);
        if !self.partition.fits(room)
            && let Some(end) = self.partition.end_of_full()
        {
            let next = self.partition.take_back(end);
            self.end_partition();
            for (separator, entry) in next {
                self.partition.add(&separator, &entry);
            }
        }
        Ok(())
    }

    fn end_partition(&mut self) {
        let partition = mem::replace(&mut self.partition, IndexBuilder::new(Level::Partition));
        let block = partition.finish();
        let (stats, data_end, separator) = partition.summary();
        self.partition_bytes += (block.len() + TRAILER_LEN) as u64;
        let separator = separator.to_vec();
        self.partitions.push(Partition { block, separator, stats, data_end });
    }

    /// Writes zeros up to the next page, if a frame of `len` bytes would otherwise touch a page more than it
    /// needs, and if that are at most `bytes_max`.
    fn pad(&mut self, len: usize, bytes_max: usize) {
        let within = (self.offset() % PAGE_BYTES as u64) as usize;
        let padding = PAGE_BYTES - within;
        if within == 0 || padding > bytes_max {
            return;
        }
        if (within + len).div_ceil(PAGE_BYTES) > len.div_ceil(PAGE_BYTES) {
            self.buffer.resize(self.buffer.len() + padding, 0);
            self.padding_bytes += padding as u64;
        }
    }

    /// Writes the frame of a block that is not compressed: one that is read far more often than it is
    /// written, or is not compressible.
    fn write(&mut self, block: &[u8]) -> Result<Handle> {
        let offset = self.offset();
        let packed = self.framer.pack(block, Method::None);
        self.framer.put(block, packed, self.id, offset, &mut self.buffer);
        self.flush_full_buffer()?;
        Ok(Handle { offset, len: packed.frame_len() as u32 })
    }

    /// The same for a partition, which may not cross pages without need: there are few of them, and they are
    /// nearly as large as a page, so it costs little.
    fn write_partition(&mut self, block: &[u8]) -> Result<Handle> {
        self.pad(block.len() + TRAILER_LEN, PAGE_BYTES);
        self.write(block)
    }

    fn flush_full_buffer(&mut self) -> Result<()> {
        if self.buffer.len() >= WRITE_BUFFER_BYTES { self.flush_buffer() } else { Ok(()) }
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
            self.end_block(separator(&self.last_key, None))?;
        }
        self.end_training()?;
        if !self.partition.is_empty() {
            self.end_partition();
        }
        let mut index_bytes = 0;
        let mut top = IndexBuilder::new(Level::Top);
        for Partition { block, separator, stats, data_end } in mem::take(&mut self.partitions) {
            let handle = self.write_partition(&block)?;
            index_bytes += u64::from(handle.len);
            top.add(&separator, &IndexEntry { handle, stats, data_end });
        }
        let mut filters = IndexBuilder::new(Level::Filter);
        let mut written = FilterFigures::default();
        let filter = self.filter.take().map(|filter| filter.finish(&self.last_key));
        let has_filter = filter.is_some();
        if let Some(FinishedFilter { partitions, coarse, entries, common_partitions }) = filter {
            (written.entries, written.common_partitions) = (entries, common_partitions);
            for FilterPartition { separator, block } in partitions {
                written.partitions += 1;
                written.kinds |= 1 << block.first().copied().unwrap_or(0).min(63);
                let handle = self.write_partition(&block)?;
                written.bytes += u64::from(handle.len);
                let data_end = handle.end();
                filters.add(&separator, &IndexEntry { handle, stats: BlockStats::NONE, data_end });
            }
            // One partition by itself is asked by whoever comes.
            let worth = written.partitions > 1;
            if let Some(coarse) = worth.then(|| coarse.finish(self.offset())).flatten() {
                let handle = self.write(&coarse)?;
                (written.coarse_offset, written.coarse_bytes) =
                    (handle.offset, u64::from(handle.len));
                written.bytes += written.coarse_bytes;
            }
        }
        let dictionary = match self.dictionary.take() {
            Some(dictionary) => Some(self.write(&dictionary)?),
            None => None,
        };
        let top_index = self.write(&top.finish())?;
        let filter_index = if has_filter { Some(self.write(&filters.finish())?) } else { None };
        index_bytes += u64::from(top_index.len);
        written.bytes += filter_index.map_or(0, |h| u64::from(h.len));
        let last_row = match KeyView::from_parts(&self.last_key, self.last_row_len) {
            Ok(key) => key.row(),
            Err(_) => Vec::new(),
        };
        let counted = mem::replace(&mut self.properties, PropertiesBuilder::new(0));
        let mut properties = counted.finish(last_row, self.data_blocks);
        properties.index_bytes = index_bytes;
        properties.padding_bytes = self.padding_bytes;
        properties.filter = written;
        let mut encoded = Vec::new();
        properties.encode(&mut encoded);
        let properties_handle = self.write(&encoded)?;
        let footer = Footer { properties: properties_handle, top_index, filter_index, dictionary };
        let offset = self.offset();
        footer.encode(self.id, offset, &mut self.buffer);
        self.flush_buffer()?;
        self.file.sync()?;
        Ok(SstSummary { id: self.id, bytes: self.flushed, properties })
    }
}
