//! An open SST: its resident parts, and the way to its blocks.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Once};

use bytes::Bytes;
use zstd::dict::DecoderDictionary;

use super::block::{Block, BlockKind, BlockRequest, Fill};
use super::coarse::CoarseFilter;
use super::cursor::{CursorOptions, SstCursor};
use super::footer::{FOOTER_LEN, Footer, Handle};
use super::frame::open_frame;
use super::index::{IndexBlock, IndexEntry, Level};
use super::key::separator_row;
use super::metrics::SstMetrics;
use super::properties::SstProperties;
use super::tail::Tail;
use super::{FORMAT_VERSION, FileId};
use crate::cache::{BlockCache, Directory, PartitionId, Resident};
use crate::codec::{Malformed, Parsed};
use crate::error::{Error, ErrorKind, Result};
use crate::io::{Files, RandomFile};
use crate::values::ValueFile;

/// Index partitions from which their boundaries divide a file finely enough: each covers one to two
/// megabytes of data.
const INDEX_ROWS_PARTITIONS_MIN: usize = 16;

/// Rows that divide a file, each with the bytes of data blocks before it.
type IndexRows = Vec<(Vec<u8>, u64)>;

/// Value files, each with the bytes that an SST names there.
type ValueNames = BTreeMap<FileId, u64>;

/// Bytes that an open SST keeps for each value file that it names: with inserts alone, those of the last level name nearly every one.
const VALUE_NAME_BYTES: usize = size_of::<(Arc<ValueFile>, u64)>();

/// An open SST. Shared between threads; the file stays open while anything refers to it, so it may be
/// removed from its directory meanwhile.
pub struct SstReader {
    id: FileId,
    path: PathBuf,
    file: Arc<dyn RandomFile>,
    bytes: u64,
    footer: Footer,
    properties: SstProperties,
    /// How many value files it names.
    value_files: usize,
    /// Bytes that it names in them.
    value_file_bytes: u64,
    top: IndexBlock,
    filters: Option<IndexBlock>,
    /// Why it has no filter index in memory although there is one in the file.
    filters_lost: Option<Box<Error>>,
    coarse: Option<CoarseFilter>,
    dictionary: Option<DecoderDictionary<'static>>,
    cache: Arc<dyn BlockCache>,
    pub(super) directory: Arc<Directory>,
    /// Bytes promised for its partitions while they are pinned; 0 until that was reckoned.
    pub(super) reserved_bytes: AtomicU64,
    /// Whether it was said that a filter is damaged.
    filter_told: Once,
}

impl fmt::Debug for SstReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SstReader").field("id", &self.id).field("path", &self.path).finish()
    }
}

impl SstReader {
    /// Opens a file: verifies and keeps its footer, properties, dictionary and top-level indexes, and its coarse filter. Blocks.
    /// A file that is not an SST, is damaged, was cut short, or is another file than `id`, is `Corruption`; one that a newer
    /// version wrote is `InvalidArgument`. One whose filters alone cannot be read is open without.
    pub fn open(
        files: &dyn Files,
        path: &Path,
        id: FileId,
        cache: Arc<dyn BlockCache>,
    ) -> Result<Arc<Self>> {
        let (mut reader, names) = Self::open_apart(files, path, id, cache, false)?;
        reader.properties.value_files = names;
        Ok(Arc::new(reader))
    }

    /// The same, and the value files that it names, which are not in its properties then: whoever opens them keeps them. With `pins`, what
    /// [`Self::pin`] does as well, by the same read where the file is small.
    pub(crate) fn open_with(
        files: &dyn Files,
        path: &Path,
        id: FileId,
        cache: Arc<dyn BlockCache>,
        pins: bool,
    ) -> Result<(Arc<Self>, ValueNames)> {
        let (reader, names) = Self::open_apart(files, path, id, cache, pins)?;
        Ok((Arc::new(reader), names))
    }

    /// That a newer version wrote a file, if so. One that cannot be read is not judged. Blocks.
    pub(crate) fn newer_version(files: &dyn Files, path: &Path, id: FileId) -> Option<Error> {
        let file = files.open_immutable(path).ok()?;
        let at = file.len().ok()?.checked_sub(FOOTER_LEN as u64)?;
        let version = Footer::newer_version(&file.read_at(at, FOOTER_LEN).ok()?, id, at)?;
        Some(Error::newer_version(path.display(), version, FORMAT_VERSION))
    }

    fn open_apart(
        files: &dyn Files,
        path: &Path,
        id: FileId,
        cache: Arc<dyn BlockCache>,
        pins: bool,
    ) -> Result<(Self, ValueNames)> {
        let file = files.open_immutable(path)?;
        let bytes = file.len()?;
        let damaged = |offset: u64, m: Malformed| Error::corruption(path.display(), offset, m.what);
        let footer_at = bytes
            .checked_sub(FOOTER_LEN as u64)
            .ok_or_else(|| damaged(0, Malformed::whole("too short to be an SST")))?;
        let end = Arc::clone(&file);
        let tail = Tail::read(end.as_ref(), bytes, FOOTER_LEN as u64)?;
        let footer = tail.read_at(footer_at, FOOTER_LEN)?;
        if let Some(version) = Footer::newer_version(&footer, id, footer_at) {
            return Err(Error::newer_version(path.display(), version, FORMAT_VERSION));
        }
        let footer = Footer::decode(&footer, id, footer_at).map_err(|m| damaged(footer_at, m))?;
        let block = |handle: Handle| -> Result<Bytes> {
            let frame = tail.read_at(handle.offset, handle.len as usize)?;
            // What stays for as long as the file is open must not keep all that was read with it.
            open_frame(&frame, id, handle.offset, None, true).map_err(|m| damaged(handle.offset, m))
        };
        let index = |handle: Handle, level| {
            IndexBlock::parse(block(handle)?, level).map_err(|m| damaged(handle.offset, m))
        };
        let mut properties = SstProperties::decode(&block(footer.properties)?)
            .map_err(|m| damaged(footer.properties.offset, m))?;
        let names = std::mem::take(&mut properties.value_files);
        let top = index(footer.top_index, Level::Top)?;
        // It holds no data: reads go on without.
        let filters = footer.filter_index.map(|h| index(h, Level::Filter)).transpose();
        let (filters, filters_lost) =
            filters.map_or_else(|e| (None, Some(Box::new(e))), |f| (f, None));
        let dictionary = match footer.dictionary {
            None => None,
            Some(handle) => Some(DecoderDictionary::try_copy(&block(handle)?).map_err(|_| {
                damaged(handle.offset, Malformed::whole("zstd refuses the dictionary"))
            })?),
        };
        let directory = Directory::new(top.len(), filters.as_ref().map_or(0, IndexBlock::len));
        let mut reader = Self {
            id,
            path: path.to_owned(),
            file,
            bytes,
            footer,
            properties,
            value_files: names.len(),
            value_file_bytes: names.values().fold(0, |sum, bytes| sum.saturating_add(*bytes)),
            top,
            filters,
            filters_lost,
            coarse: None,
            dictionary,
            cache,
            directory,
            reserved_bytes: AtomicU64::new(0),
            filter_told: Once::new(),
        };
        reader.cache.partitions().hold(reader.own_bytes());
        reader.cache.opened(reader.data_memory_bytes());
        if let Some(error) = reader.filters_lost() {
            reader.filter_is_damaged(error);
        }
        reader.coarse = reader.open_coarse(&tail);
        if pins {
            reader.pin_from(&tail);
        }
        Ok((reader, names))
    }

    /// Its coarse filter; none where the cache has no room for it, or where it cannot be read, which costs reads and no data.
    fn open_coarse(&self, tail: &Tail<'_>) -> Option<CoarseFilter> {
        let told = |error: Error| {
            self.metrics().filter_damaged.increment();
            tracing::error!(%error, "a coarse filter cannot be read; reads go on without");
        };
        let handle = self.coarse_handle().map_err(told).ok().flatten()?;
        let bytes = CoarseFilter::bytes_in(handle) as u64;
        if !self.cache.partitions().hold_coarse(bytes) {
            return None;
        }
        let read = self.coarse_from(tail).map_err(told).ok().flatten();
        if read.is_none() {
            self.cache.partitions().release_coarse(bytes);
        }
        read
    }

    /// Where its coarse filter is, if it has one.
    pub(super) fn coarse_handle(&self) -> Result<Option<Handle>> {
        let handle = self.properties.filter.coarse(self.blocks_end());
        handle.map_err(|m| self.damaged(self.footer.properties.offset, m.what))
    }

    /// Reads its coarse filter, if it has one. Blocks.
    pub(super) fn read_coarse(&self) -> Result<Option<CoarseFilter>> {
        self.coarse_from(&Tail::none(self.file.as_ref()))
    }

    fn coarse_from(&self, tail: &Tail<'_>) -> Result<Option<CoarseFilter>> {
        let Some(handle) = self.coarse_handle()? else { return Ok(None) };
        let frame = tail.read_at(handle.offset, handle.len as usize)?;
        open_frame(&frame, self.id, handle.offset, None, true)
            .and_then(|bits| CoarseFilter::new(bits, handle))
            .map(Some)
            .map_err(|m| self.damaged(handle.offset, m.what))
    }

    /// Its number.
    pub fn id(&self) -> FileId {
        self.id
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What it holds.
    pub fn properties(&self) -> &SstProperties {
        &self.properties
    }

    /// Bytes that it names in value files.
    pub(crate) fn value_file_bytes(&self) -> u64 {
        self.value_file_bytes
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of memory that the open file keeps outside the block cache: its top-level index, its filter index,
    /// its coarse filter, its dictionary, a slot for each partition, and the value files that it names. Looks at none of them: their sizes are known.
    pub fn resident_bytes(&self) -> u64 {
        self.own_bytes() + self.coarse_bytes()
    }

    fn coarse_bytes(&self) -> u64 {
        self.coarse.as_ref().map_or(0, CoarseFilter::bytes) as u64
    }

    /// The same without its coarse filter.
    fn own_bytes(&self) -> u64 {
        let filters = self.filters.as_ref().map_or(0, IndexBlock::bytes);
        // Not only the text: zstd makes tables of it, which take more.
        let dictionary = self.dictionary.as_ref().map_or(0, |d| d.as_ddict().sizeof());
        let slots = self.directory.slot_bytes();
        let names = self.value_files.saturating_mul(VALUE_NAME_BYTES);
        (self.top.bytes() + filters + dictionary + names + size_of::<Self>()) as u64 + slots
    }

    /// Bytes that its data blocks take in memory, at most: all that is in them, uncompressed.
    fn data_memory_bytes(&self) -> u64 {
        self.properties.key_bytes.saturating_add(self.properties.value_bytes)
    }

    /// A cursor over the file. Does no I/O.
    pub fn cursor(self: &Arc<Self>, options: CursorOptions) -> SstCursor {
        SstCursor::new(Arc::clone(self), options)
    }

    /// The bytes of data blocks before `key` (an encoded key or prefix), to within an index partition,
    /// or to within a block where the partition is cached. No I/O.
    pub fn approximate_offset(&self, key: &[u8]) -> u64 {
        self.approximate_offset_checked(key).unwrap_or(0)
    }

    fn approximate_offset_checked(&self, key: &[u8]) -> Parsed<u64> {
        let at = self.top.find(key, false)?;
        let before = match at.checked_sub(1) {
            Some(before) => self.top_entry(before)?.data_end,
            None => 0,
        };
        if at == self.top.len() {
            return Ok(before);
        }
        let Some(block) = self.directory.peek(PartitionId::Index(at)) else { return Ok(before) };
        let index = block.index()?;
        let at = index.find(key, false)?.min(index.len().saturating_sub(1));
        Ok(self.data_entry(index, at)?.handle.offset)
    }

    /// Where the data block that has `key` (an encoded key or prefix), or would have it, begins and ends among the bytes of
    /// all of them; past the last block both are [`Self::data_bytes`]. Reads an index partition that is not cached (blocking).
    pub fn block_around(self: &Arc<Self>, key: &[u8]) -> Result<Range<u64>> {
        let at = self.at_top(self.top.find(key, false))?;
        if at == self.top.len() {
            return Ok(self.data_bytes()..self.data_bytes());
        }
        let handle = self.at_top(self.top_entry(at))?.handle;
        let request = self.request_partition(PartitionId::Index(at), handle, Fill::Nothing);
        let block = request.load_blocking()?;
        let here = |m: Malformed| self.damaged(handle.offset, m.what);
        let index = block.index().map_err(here)?;
        let at = index.find(key, false).map_err(here)?.min(index.len().saturating_sub(1));
        let entry = self.data_entry(index, at).map_err(here)?;
        Ok(entry.handle.offset..entry.data_end)
    }

    /// Bytes of all data blocks.
    pub fn data_bytes(&self) -> u64 {
        let last = self.top.len().checked_sub(1).map(|last| self.top_entry(last));
        last.and_then(Result::ok).map_or(0, |last| last.data_end)
    }

    /// Rows that divide the file, ascending, each with the bytes of data blocks before it: those between
    /// index partitions where there are many, without I/O; those between data blocks where there are few,
    /// which reads (blocking) the partitions that are not cached. Of one that cannot be read its end alone: whoever reads its rows is told
    /// of the damage. A row may be the beginning of one that is there, and need not be in the file.
    pub fn index_rows(self: &Arc<Self>) -> Result<IndexRows> {
        let mut out = IndexRows::new();
        let mut add = |row: Vec<u8>, data_end: u64| match out.last_mut() {
            // One row over several blocks: all of it lies before what follows.
            Some((last, end)) if *last == row => *end = data_end,
            _ => out.push((row, data_end)),
        };
        let coarse = self.top.len() >= INDEX_ROWS_PARTITIONS_MIN;
        for top_at in 0..self.top.len() {
            let entry = self.at_top(self.top_entry(top_at))?;
            let within = if coarse { None } else { self.partition_rows(top_at, entry.handle)? };
            match within {
                Some(rows) => {
                    for (row, data_end) in rows {
                        add(row, data_end);
                    }
                }
                None => {
                    let separator = self.at_top(self.top.separator(top_at))?;
                    add(separator_row(&separator), entry.data_end);
                }
            }
        }
        Ok(out)
    }

    /// The rows between the data blocks of an index partition, each with the bytes up to it; `None` of one that cannot be read.
    fn partition_rows(self: &Arc<Self>, at: usize, handle: Handle) -> Result<Option<IndexRows>> {
        let request = self.request_partition(PartitionId::Index(at), handle, Fill::Nothing);
        let rows = request.load_blocking().and_then(|block| {
            let here = |m: Malformed| self.damaged(handle.offset, m.what);
            let index = block.index().map_err(here)?;
            let row = |at| {
                let entry = self.data_entry(index, at).map_err(here)?;
                Ok((separator_row(&index.separator(at).map_err(here)?), entry.data_end))
            };
            (0..index.len()).map(row).collect()
        });
        match rows {
            Ok(rows) => Ok(Some(rows)),
            Err(error) if matches!(error.kind(), ErrorKind::Corruption | ErrorKind::Io) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn top(&self) -> &IndexBlock {
        &self.top
    }

    pub(super) fn filters(&self) -> Option<&IndexBlock> {
        self.filters.as_ref()
    }

    pub(super) fn coarse(&self) -> Option<&CoarseFilter> {
        self.coarse.as_ref()
    }

    pub(super) fn footer(&self) -> &Footer {
        &self.footer
    }

    pub(super) fn file(&self) -> &Arc<dyn RandomFile> {
        &self.file
    }

    pub(super) fn metrics(&self) -> &SstMetrics {
        self.cache.sst_metrics()
    }

    /// Blocks end where the footer begins.
    pub(super) fn blocks_end(&self) -> u64 {
        self.bytes - FOOTER_LEN as u64
    }

    pub(super) fn top_entry(&self, at: usize) -> Parsed<IndexEntry> {
        self.top.entry(at, self.blocks_end())
    }

    pub(super) fn data_entry(&self, partition: &IndexBlock, at: usize) -> Parsed<IndexEntry> {
        partition.entry(at, self.blocks_end())
    }

    /// Damage at `offset` of the file.
    pub(super) fn damaged(&self, offset: u64, what: &str) -> Error {
        Error::corruption(self.path.display(), offset, what)
    }

    /// Why the file is read without the filters that it has, if it is.
    pub(super) fn filters_lost(&self) -> Option<&Error> {
        self.filters_lost.as_deref()
    }

    /// Damage found in the top-level index.
    pub(super) fn at_top<T>(&self, parsed: Parsed<T>) -> Result<T> {
        parsed.map_err(|m| self.damaged(self.footer.top_index.offset, m.what))
    }

    /// Damage found in the filter index.
    pub(super) fn at_filters<T>(&self, parsed: Parsed<T>) -> Result<T> {
        let offset = self.footer.filter_index.unwrap_or_default().offset;
        parsed.map_err(|m| self.damaged(offset, m.what))
    }

    pub(super) fn request_data(self: &Arc<Self>, handle: Handle, fill: Fill) -> BlockRequest {
        BlockRequest { reader: Arc::clone(self), handle, partition: None, fill, ahead: false }
    }

    pub(super) fn request_partition(
        self: &Arc<Self>,
        id: PartitionId,
        handle: Handle,
        fill: Fill,
    ) -> BlockRequest {
        BlockRequest { reader: Arc::clone(self), handle, partition: Some(id), fill, ahead: false }
    }

    // What is in memory. Looking counts as a use and as a hit or a miss.

    /// The index partition at entry `at` of the top-level index.
    #[inline]
    pub(super) fn index_slot(&self, at: usize) -> Option<Resident> {
        let found = self.directory.index(at).or_else(|| self.among_data(PartitionId::Index(at)));
        let counted = &self.metrics().index;
        if found.is_some() { &counted.hits } else { &counted.misses }.increment();
        found
    }

    /// The filter partition at entry `at` of the filter index, which will be asked for `entry`.
    #[inline]
    pub(super) fn filter_slot(&self, at: usize, entry: u64) -> Option<Resident> {
        let found = self.directory.filter(at, entry);
        let found = found.or_else(|| self.among_data(PartitionId::Filter(at)));
        let counted = &self.metrics().filter;
        if found.is_some() { &counted.hits } else { &counted.misses }.increment();
        found
    }

    /// The data block that entry `at` of an index partition names, at this handle; `in_slot` is what [`Block::in_slot`] says
    /// of it.
    pub(super) fn data_block(
        &self,
        partition: &Block,
        at: usize,
        handle: Handle,
        in_slot: Option<Arc<Block>>,
    ) -> Option<Arc<Block>> {
        if let Some(block) = &in_slot {
            self.cache.found(self.id, handle.offset, block);
            return in_slot;
        }
        let block = self.cache.get(self.id, handle.offset)?;
        if let Some(slots) = partition.data_slots() {
            let owned = || self.cache.peek(self.id, handle.offset);
            slots.put(at, &block, || owned().is_some_and(|owned| Arc::ptr_eq(&owned, &block)));
        }
        Some(block)
    }

    /// A partition among the data blocks, where a scan has left it, or others have left it no room: it is asked for again, so now it enters
    /// the directory if it can.
    #[cold]
    fn among_data(&self, id: PartitionId) -> Option<Resident> {
        let handle = match id {
            PartitionId::Index(at) => self.top.handle(at, self.blocks_end()),
            PartitionId::Filter(at) => self.filters.as_ref()?.handle(at, self.blocks_end()),
        };
        let handle = handle.ok()?;
        let block = self.cache.get_partition(self.id, handle.offset)?;
        if self.cache.partitions().insert(&self.directory, id, &block) {
            self.cache.take(self.id, handle.offset);
        }
        Some(Resident::from(block))
    }

    /// The same as a look that counts for nothing.
    pub(super) fn peek(
        &self,
        partition: Option<PartitionId>,
        handle: Handle,
    ) -> Option<Arc<Block>> {
        let resident = partition.and_then(|id| self.directory.peek(id));
        match resident {
            Some(resident) => Some(resident.to_arc()),
            None => self.cache.peek(self.id, handle.offset),
        }
    }

    /// Puts a block that was loaded where it belongs.
    pub(super) fn fill(
        &self,
        partition: Option<PartitionId>,
        handle: Handle,
        fill: Fill,
        block: &Arc<Block>,
    ) {
        if fill == Fill::Nothing {
            return;
        }
        let stays = partition.filter(|_| fill == Fill::Keep || self.directory.is_pinned());
        let enter = |id| self.cache.partitions().insert(&self.directory, id, block);
        if !stays.is_some_and(enter) {
            self.cache.insert(self.id, handle.offset, Arc::clone(block));
        }
    }

    pub(super) fn cache(&self) -> &Arc<dyn BlockCache> {
        &self.cache
    }

    /// A filter partition, or the index of all, cannot be used. It holds no data: reads go on without, and it is said once.
    pub(super) fn filter_is_damaged(&self, error: &Error) {
        self.metrics().filter_damaged.increment();
        self.filter_told.call_once(|| {
            tracing::error!(%error, "a filter is damaged; reads of its rows look at the data instead");
        });
    }

    /// Verifies, decompresses and parses what was read at a handle. `shared`: `frame` is part of a larger
    /// buffer, which the block must not keep alive.
    pub(super) fn decode_block(
        &self,
        handle: Handle,
        kind: BlockKind,
        frame: &Bytes,
        shared: bool,
    ) -> Result<Block> {
        self.metrics().blocks_read.increment();
        open_frame(frame, self.id, handle.offset, self.dictionary.as_ref(), shared)
            .and_then(|bytes| Block::parse(kind, bytes))
            .map_err(|m| self.damaged(handle.offset, m.what))
    }

    /// What the file has from `at` on. Past the cache; blocks.
    pub(super) fn read_raw(&self, at: u64, bytes: u64) -> Result<Bytes> {
        self.file.read_at(at, bytes as usize)
    }

    /// Reads a block past the cache. Blocks.
    pub(super) fn read_block(&self, handle: Handle, kind: BlockKind) -> Result<Block> {
        let frame = self.file.read_at(handle.offset, handle.len as usize)?;
        if frame.len() != handle.len as usize {
            return Err(Error::new(ErrorKind::Io, "a read came back short"));
        }
        self.decode_block(handle, kind, &frame, false)
    }
}

impl Drop for SstReader {
    /// The partitions of a closed file leave memory at once.
    fn drop(&mut self) {
        self.cache.partitions().forget(&self.directory);
        if self.coarse.is_some() {
            self.cache.partitions().release_coarse(self.coarse_bytes());
        }
        self.cache.partitions().release(self.own_bytes());
        self.cache.closed(self.data_memory_bytes());
    }
}
