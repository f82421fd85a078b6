//! Walking through an SST from one row to another, for compactions: every block once, in the order of the file.
//!
//! A walk is the simple sister of [`SstCursor`](super::SstCursor). It never blocks on others' blocks, puts nothing into
//! a cache and finds nothing there; it loads by itself, in *windows* of the file, and has the next window read while
//! the records of this one are merged. So a compaction waits for the device only where that is slower than merging.
//!
//! ```text
//! data blocks   | window: in memory | window: being read |        ...         | limit
//!                ▲ the walk                                                    └ last block with rows in bounds
//! index         | a chunk of partitions | ...
//! ```
//!
//! A block's bytes are a slice of its window, which lives as long as the last of them. Where a window cannot be read, or a chunk
//! of the index, that says nothing of any one block in it, nor whether the walk needs the one that is at fault: each is read by
//! itself.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;

use super::block::{Block, BlockKind, BlockRequest};
use super::cursor::build_key;
use super::data::{DataBlock, Fresh, Record};
use super::footer::Handle;
use super::reader::SstReader;
use crate::cache::PartitionId;
use crate::cell::{KeyView, RowRange, row_prefix};
use crate::codec::{Malformed, Parsed};
use crate::cursor::{Cursor, Entry, Step};
use crate::error::{Error, ErrorKind, Result};
use crate::io::{IoEngine, RandomFile, ReadRequest};

/// Bytes of the windows of one merge, two for each walk and those over value files: most of what a compaction may hold.
pub(crate) const WINDOWS_BYTES: u64 = 24 << 20;

/// Bytes of a window, at least, however many walks there are: smaller ones cost a wake-up each, and a device that writes
/// meanwhile takes nearly as long for them. Only a merge of many files by a lent thread, or one that moves values, comes to it.
const WINDOW_BYTES_MIN: u64 = 128 << 10;

/// Bytes of a window, at most: a device reads these at its full rate beside writes.
const WINDOW_BYTES_MAX: u64 = 2 << 20;

/// Bytes of a window of each of so many walks that are merged, of `bytes` for all: a power of two, since windows end at multiples of it.
pub(crate) fn window_bytes(walks: usize, bytes: u64) -> u64 {
    let each = bytes / 2 / (walks as u64).max(1);
    let power = 1 << each.max(1).ilog2();
    u64::clamp(power, WINDOW_BYTES_MIN, WINDOW_BYTES_MAX)
}

/// Bytes of index partitions that are read at once: those of some megabytes of data.
const INDEX_BYTES: u64 = 64 << 10;

/// A walk over one SST.
pub(crate) struct SstWalk {
    reader: Arc<SstReader>,
    /// Row prefixes of the bounds; an empty end for none.
    start: Vec<u8>,
    end: Vec<u8>,
    top_at: usize,
    part_at: usize,
    /// An index partition, and its place in the top-level index.
    partition: Option<(usize, Arc<Block>)>,
    /// Index partitions as they lie in the file, from this offset on.
    chunk: (u64, Bytes),
    windows: Windows,
    data: Option<(Handle, Block)>,
    record: Option<Record>,
    key: Vec<u8>,
    row_len: usize,
    column_len: usize,
}

/// Two pieces of the file, one after the other: one to take blocks from, and one that is being read.
struct Windows {
    file: Arc<dyn RandomFile>,
    io: Arc<dyn IoEngine>,
    offset: u64,
    bytes: Bytes,
    next: Option<Window>,
    /// Where the last window lies that could not be read.
    failed: Range<u64>,
    /// Nothing is read ahead from here on.
    limit: u64,
    /// Bytes of a window.
    window_bytes: u64,
}

/// A piece of the file that is being read.
struct Window {
    offset: u64,
    len: u64,
    reading: BoxFuture<'static, Vec<Result<Bytes>>>,
}

/// Bytes of a window from `offset` on, below `limit`. The first one ends where all others begin, at a multiple of their size, so that
/// none takes a unit of the device more than it has bytes for.
fn window_len(offset: u64, window_bytes: u64, limit: u64) -> Option<u64> {
    let whole = window_bytes - offset % window_bytes;
    limit.checked_sub(offset).filter(|len| *len > 0).map(|len| len.min(whole))
}

impl Windows {
    fn new(
        file: Arc<dyn RandomFile>,
        io: Arc<dyn IoEngine>,
        limit: u64,
        window_bytes: u64,
    ) -> Self {
        let (bytes, next, failed) = (Bytes::new(), None, 0..0);
        Self { file, io, offset: 0, bytes, next, failed, limit, window_bytes }
    }

    /// Where the window in memory ends.
    fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }

    fn begin(&self, offset: u64) -> Option<Window> {
        let len = window_len(offset, self.window_bytes, self.limit)?;
        let file = Arc::clone(&self.file);
        let request = ReadRequest { file, offset, len: len as usize };
        Some(Window { offset, len, reading: self.io.read_batch(vec![request]) })
    }

    /// Waits for the window that is being read, and begins the one behind it. `None` where it cannot be read.
    fn advance(&mut self) -> Option<()> {
        let Window { offset, len, reading } = self.next.take()?;
        let read = pollster::block_on(reading).pop().and_then(Result::ok);
        let Some(bytes) = read.filter(|bytes| bytes.len() as u64 == len) else {
            self.failed = offset..offset + len;
            return None;
        };
        (self.offset, self.bytes) = (offset, bytes);
        self.next = self.begin(self.end());
        Some(())
    }

    /// The bytes of a frame.
    fn frame(&mut self, handle: Handle) -> Result<Bytes> {
        let (start, end) = (handle.offset, handle.end());
        // What has failed is not read as a whole again for each frame: a bad sector may take seconds each time.
        let has_failed = start < self.failed.end && end > self.failed.start;
        let is_alone = has_failed || u64::from(handle.len) > self.window_bytes || end > self.limit;
        let read = if is_alone { None } else { self.frame_in_window(handle) };
        read.map_or_else(|| self.file.read_at(start, handle.len as usize), Ok)
    }

    /// The same of one that windows have; `None` where one of these cannot be read.
    fn frame_in_window(&mut self, handle: Handle) -> Option<Bytes> {
        let (start, end) = (handle.offset, handle.end());
        // Padding may lie between two frames, and with it the end of a window.
        let next_end = self.next.as_ref().map_or(0, |next| next.offset + next.len);
        if start >= self.end() && start < next_end {
            self.advance()?;
        } else if start < self.offset || start >= self.end() {
            self.next = self.begin(start);
            self.advance()?;
        }
        let from = (start - self.offset) as usize;
        if end <= self.end() {
            return Some(self.bytes.slice(from..from + handle.len as usize));
        }
        let mut frame = Vec::with_capacity(handle.len as usize);
        frame.extend_from_slice(self.bytes.get(from..).unwrap_or_default());
        self.advance()?;
        let rest = self.bytes.get(..(end - self.offset) as usize);
        frame.extend_from_slice(rest.unwrap_or_default());
        Some(Bytes::from(frame))
    }
}

impl SstWalk {
    /// A walk over the rows in `bounds`, before its first record, in windows of so many bytes.
    pub(crate) fn new(
        reader: Arc<SstReader>,
        io: Arc<dyn IoEngine>,
        bounds: &RowRange,
        window_bytes: u64,
    ) -> Result<Self> {
        let end = if bounds.end.is_empty() { Vec::new() } else { row_prefix(&bounds.end) };
        let top = reader.top();
        let last = top.len().saturating_sub(1);
        let last =
            if end.is_empty() { last } else { reader.at_top(top.find(&end, false))?.min(last) };
        let limit = match top.len() {
            0 => 0,
            _ => reader.at_top(reader.top_entry(last))?.data_end,
        };
        let windows = Windows::new(Arc::clone(reader.file()), io, limit, window_bytes);
        Ok(Self {
            start: row_prefix(&bounds.start),
            end,
            top_at: 0,
            part_at: 0,
            partition: None,
            chunk: (0, Bytes::new()),
            windows,
            data: None,
            record: None,
            key: Vec::new(),
            row_len: 0,
            column_len: 0,
            reader,
        })
    }

    fn seek_blocking(&mut self, target: &[u8]) -> Result<()> {
        self.record = None;
        let target = target.max(self.start.as_slice()).to_vec();
        if !self.end.is_empty() && target >= self.end {
            return Ok(());
        }
        self.top_at = self.reader.at_top(self.reader.top().find(&target, false))?;
        self.part_at = 0;
        if self.top_at < self.reader.top().len() {
            let partition = self.partition_here()?;
            let found = partition.index().and_then(|index| index.find(&target, false));
            self.part_at = self.in_partition(found)?;
            if self.load_data(&partition)? {
                let found = self.data().and_then(|data| data.seek(&target));
                if let Some(record) = self.in_data(found)? {
                    return self.land(record);
                }
                // The target lies between the last record of the block and the first of the next.
                self.part_at += 1;
            }
        }
        self.walk_on()
    }

    /// To the first record at or after the place.
    fn walk_on(&mut self) -> Result<()> {
        loop {
            if self.top_at >= self.reader.top().len() || self.is_past_end()? {
                return Ok(());
            }
            let partition = self.partition_here()?;
            if self.load_data(&partition)? {
                let first = self.in_data(self.data().and_then(DataBlock::first))?;
                return self.land(first);
            }
            self.top_at += 1;
            self.part_at = 0;
        }
    }

    /// Whether the partition at the place, of which nothing was looked at, lies past the bounds.
    fn is_past_end(&self) -> Result<bool> {
        match self.top_at.checked_sub(1) {
            Some(before) if self.part_at == 0 && !self.end.is_empty() => {
                let order = self.reader.top().compare(before, &self.end);
                Ok(self.reader.at_top(order)? != Ordering::Less)
            }
            _ => Ok(false),
        }
    }

    /// The index partition at the place.
    fn partition_here(&mut self) -> Result<Arc<Block>> {
        if let Some((at, block)) = &self.partition
            && *at == self.top_at
        {
            return Ok(Arc::clone(block));
        }
        let handle = self.reader.at_top(self.reader.top_entry(self.top_at))?.handle;
        let block = match self.reader.peek(Some(PartitionId::Index(self.top_at)), handle) {
            Some(block) => block,
            None => {
                let frame = self.index_frame(handle)?;
                Arc::new(self.reader.decode_block(handle, BlockKind::Index, &frame, false)?)
            }
        };
        self.partition = Some((self.top_at, Arc::clone(&block)));
        Ok(block)
    }

    /// The bytes of an index partition, with which those behind it are read.
    fn index_frame(&mut self, handle: Handle) -> Result<Bytes> {
        let within = |(offset, bytes): &(u64, Bytes)| {
            let start = usize::try_from(handle.offset.checked_sub(*offset)?).ok()?;
            let end = start.checked_add(handle.len as usize)?;
            (end <= bytes.len()).then(|| bytes.slice(start..end))
        };
        if let Some(frame) = within(&self.chunk) {
            return Ok(frame);
        }
        let last = self.reader.top().len().saturating_sub(1);
        let last_end = self.reader.at_top(self.reader.top_entry(last))?.handle.end();
        let end = last_end.min(handle.offset + INDEX_BYTES).max(handle.end());
        let len = (end - handle.offset) as usize;
        let file = self.reader.file();
        let joint = file.read_at(handle.offset, len).ok().filter(|bytes| bytes.len() == len);
        let read = joint.map_or_else(|| file.read_at(handle.offset, handle.len as usize), Ok);
        self.chunk = (handle.offset, read?);
        within(&self.chunk).ok_or_else(|| Error::new(ErrorKind::Io, "a read came back short"))
    }

    /// Loads the data block at the place; false where the partition ends before it.
    fn load_data(&mut self, partition: &Block) -> Result<bool> {
        let index = self.in_partition(partition.index())?;
        if self.part_at >= index.len() {
            return Ok(false);
        }
        let handle = self.in_partition(index.handle(self.part_at, self.reader.blocks_end()))?;
        let frame = self.windows.frame(handle)?;
        // Let go first, and with it perhaps its window.
        self.data = None;
        let block = self.reader.decode_block(handle, BlockKind::Data, &frame, false)?;
        self.data = Some((handle, block));
        Ok(true)
    }

    fn data(&self) -> Parsed<&DataBlock> {
        self.data.as_ref().ok_or(Malformed::whole("no block is held")).and_then(|(_, b)| b.data())
    }

    fn land(&mut self, record: Record) -> Result<()> {
        let data = self.data.as_ref().ok_or(Malformed::whole("no block is held"));
        let built = data.and_then(|(_, block)| block.data()).and_then(|data| {
            build_key(data, &record, &mut self.key, &mut self.row_len, &mut self.column_len)
        });
        self.in_data(built)?;
        let row = self.key.get(..self.row_len).unwrap_or_default();
        let is_past =
            record.fresh == Fresh::Row && !self.end.is_empty() && row >= self.end.as_slice();
        self.record = (!is_past).then_some(record);
        Ok(())
    }

    fn next_blocking(&mut self) -> Result<()> {
        let Some(record) = self.record.take() else { return Ok(()) };
        let after = self.data().and_then(|data| data.after(&record));
        match self.in_data(after)? {
            Some(next) => self.land(next),
            None => {
                self.part_at += 1;
                self.walk_on()
            }
        }
    }

    /// Damage found in the data block held.
    fn in_data<T>(&self, parsed: Parsed<T>) -> Result<T> {
        let offset = self.data.as_ref().map_or(0, |(handle, _)| handle.offset);
        parsed.map_err(|m| self.reader.damaged(offset, m.what))
    }

    /// Damage found in the index partition at the place.
    fn in_partition<T>(&self, parsed: Parsed<T>) -> Result<T> {
        let entry = self.reader.top_entry(self.top_at);
        let offset = entry.map_or(0, |entry| entry.handle.offset);
        parsed.map_err(|m| self.reader.damaged(offset, m.what))
    }

    fn held(&self) -> Option<(&DataBlock, &Record)> {
        Some((self.data().ok()?, self.record.as_ref()?))
    }
}

impl Cursor for SstWalk {
    fn seek(&mut self, target: &[u8]) -> Result<Step> {
        self.seek_blocking(target).map(|()| Step::Ready)
    }

    fn next(&mut self) -> Result<Step> {
        self.next_blocking().map(|()| Step::Ready)
    }

    fn seek_row_before(&mut self, _bound: &[u8]) -> Result<Step> {
        Err(Error::new(ErrorKind::InvalidArgument, "a walk goes forward only"))
    }

    fn entry(&self) -> Option<Entry<'_>> {
        let (data, record) = self.held()?;
        let key = KeyView::from_parts(&self.key, self.row_len).ok()?;
        Some(Entry { key, value: data.value(record) })
    }

    fn value_bytes(&self) -> Bytes {
        self.held().map(|(data, record)| data.value_bytes(record)).unwrap_or_default()
    }

    fn qualifier_bytes(&self) -> Bytes {
        self.held().map(|(data, record)| data.qualifier_bytes(record)).unwrap_or_default()
    }

    // It is never blocked.
    fn wanted(&self, _out: &mut Vec<BlockRequest>) {}

    fn supply(&mut self, _request: &BlockRequest, _block: &Arc<Block>) {}

    fn resume(&mut self) -> Result<Step> {
        Ok(Step::Ready)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;
    use crate::cache::QuickBlockCache;
    use crate::cell::{FamilyId, Kind, encode_key};
    use crate::io::{Fault, FaultFiles, FaultOp, Files, InlineIo, MemoryFiles};
    use crate::sst::testing::{Sample, samples};
    use crate::sst::{Compression, SstOptions, SstWriter};

    const ID: u64 = 7;
    /// Of a walk in these tests.
    const WINDOW_BYTES: u64 = 512 << 10;

    fn written(files: &dyn Files, records: &[Sample], options: SstOptions) -> Arc<SstReader> {
        let path = Path::new("sst");
        let file = files.create_immutable(path).unwrap();
        let mut writer = SstWriter::new(file, path, ID, options, 0);
        for record in records {
            writer.add(record.view(), &record.value).unwrap();
        }
        writer.finish().unwrap();
        SstReader::open(files, path, ID, Arc::new(QuickBlockCache::new(1 << 20))).unwrap()
    }

    fn walked(reader: &Arc<SstReader>, bounds: &RowRange, target: &[u8]) -> Result<Vec<Sample>> {
        let mut walk = SstWalk::new(Arc::clone(reader), Arc::new(InlineIo), bounds, WINDOW_BYTES)?;
        let mut step = walk.seek(target)?;
        let mut out = Vec::new();
        loop {
            assert_eq!(step, Step::Ready);
            let Some(entry) = walk.entry() else { return Ok(out) };
            assert_eq!(walk.value_bytes(), entry.value);
            assert_eq!(walk.qualifier_bytes(), &entry.key.qualifier()[..]);
            out.push(Sample { key: entry.key.bytes().to_vec(), value: entry.value.to_vec() });
            step = walk.next()?;
        }
    }

    /// Rows of a kilobyte, over several windows; one of them larger than a window.
    fn many() -> Vec<Sample> {
        let record = |row: u32| {
            let mut key = Vec::new();
            let name = format!("row-{row:06}");
            encode_key(name.as_bytes(), FamilyId(1), Some(b"q"), 5, 9, Kind::Value, &mut key);
            let len = if row == 1_500 { 2 * WINDOW_BYTES as usize } else { 1_000 };
            // Noise, which no compression makes smaller.
            let word = |at: u64| crate::random::mix64(u64::from(row) << 32 | at).to_le_bytes();
            let value = (0..len as u64 / 8).flat_map(word).collect();
            Sample { key, value }
        };
        (0..3_000).map(record).collect()
    }

    #[test]
    fn windows_end_at_multiples_of_their_size_or_where_nothing_more_is_wanted() {
        for (offset, limit, len) in [
            (0, 100, Some(8)),
            (8, 100, Some(8)),
            (7, 100, Some(1)),
            (13, 100, Some(3)),
            (96, 100, Some(4)),
            (13, 15, Some(2)),
            (100, 100, None),
            (101, 100, None),
        ] {
            assert_eq!(window_len(offset, 8, limit), len, "{offset} of {limit}");
        }
    }

    #[test]
    fn windows_are_as_large_as_the_memory_of_a_merge_allows() {
        let kib = |walks: usize| window_bytes(walks, WINDOWS_BYTES) >> 10;
        assert_eq!([1, 6, 7, 12, 13, 24, 48].map(kib), [2048, 2048, 1024, 1024, 512, 512, 256]);
        assert_eq!([0, 1_000].map(kib), [2048, 128]);
        for walks in 1..=48 {
            for bytes in [WINDOWS_BYTES, WINDOWS_BYTES / 2] {
                assert!(2 * window_bytes(walks, bytes) * walks as u64 <= bytes, "{walks}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_walk_shows_what_lies_in_its_bounds_from_its_target_on(
            records in samples(1..150),
            from in any::<prop::sample::Index>(),
            to in any::<prop::sample::Index>(),
            target in any::<prop::sample::Index>(),
            bounded in any::<(bool, bool)>(),
        ) {
            let block_bytes = 512;
            let options = SstOptions { block_bytes, read_bytes: 512, index_partition_bytes: 256, ..SstOptions::default() };
            let reader = written(&MemoryFiles::new(), &records, options);
            let row = |at: prop::sample::Index| Bytes::from(records[at.index(records.len())].view().row());
            let bounds = RowRange {
                start: if bounded.0 { row(from) } else { Bytes::new() },
                end: if bounded.1 { row(to) } else { Bytes::new() },
            };
            let target = &records[target.index(records.len())].key;
            for target in [&[][..], target.as_slice()] {
                let want: Vec<_> = records
                    .iter()
                    .filter(|r| r.key.as_slice() >= target && bounds.contains(&r.view().row()))
                    .cloned()
                    .collect();
                // An empty row as an end is none.
                prop_assert_eq!(walked(&reader, &bounds, target).unwrap(), want);
            }
        }
    }

    #[test]
    fn a_walk_over_many_windows_reads_the_file_once() {
        for compression in [Compression::None, Compression::Lz4] {
            let files = FaultFiles::new(Arc::new(MemoryFiles::new()));
            let records = many();
            let options = SstOptions { compression, ..SstOptions::default() };
            let reader = written(&files, &records, options);
            let before = files.count(FaultOp::Read);
            assert!(walked(&reader, &RowRange::all(), b"").unwrap() == records);
            let reads = files.count(FaultOp::Read) - before;
            let windows = reader.bytes() / WINDOW_BYTES;
            // And the index, and the large value by itself.
            assert!(
                (windows - 3..windows + 4).contains(&reads),
                "{reads} reads, {windows} windows"
            );

            let rows = 2_500..2_510;
            let bound = |row: u32| Bytes::from(format!("row-{row:06}"));
            let bounds = RowRange::new(bound(rows.start), bound(rows.end));
            let before = files.count(FaultOp::Read);
            let found = walked(&reader, &bounds, b"").unwrap();
            assert!(found == records[rows.start as usize..rows.end as usize]);
            assert!(files.count(FaultOp::Read) - before <= 3, "not the rest of the file");
        }
    }

    fn bad_byte(offset: u64) -> Fault {
        Fault::new(FaultOp::Read).at(offset).sticky()
    }

    /// How many records a walk shows from its beginning until it fails, if it does, and how it ends.
    fn until_error(walk: &mut SstWalk) -> (usize, Result<Step>) {
        let mut step = walk.seek(b"");
        let mut shown = 0;
        while matches!(step, Ok(Step::Ready)) && walk.entry().is_some() {
            shown += 1;
            step = walk.next();
        }
        (shown, step)
    }

    #[test]
    fn a_bad_sector_fails_the_block_that_lies_on_it_and_none_that_is_read_with_it() {
        let files = FaultFiles::new(Arc::new(MemoryFiles::new()));
        let records = many();
        let options = SstOptions { compression: Compression::None, ..SstOptions::default() };
        let reader = written(&files, &records, options);
        // In the middle of the second window.
        let bad = WINDOW_BYTES * 3 / 2;
        files.inject(bad_byte(bad));
        let io = Arc::new(InlineIo);
        let mut walk =
            SstWalk::new(Arc::clone(&reader), io, &RowRange::all(), WINDOW_BYTES).unwrap();
        let before = files.count(FaultOp::Read);
        let (shown, step) = until_error(&mut walk);
        assert_eq!(step.unwrap_err().kind(), ErrorKind::Io);
        assert!(shown > 650, "of which 500 lie in the first window: {shown}");
        // The window, and the block that is at fault, are tried twice.
        let reads = files.count(FaultOp::Read) - before;
        let blocks = (bad - WINDOW_BYTES) / 1_000;
        assert!(reads < blocks + 8, "the window that fails is not read again: {reads}");

        // Behind it all is there, by windows again.
        assert_eq!(walk.seek(&records[1_000].key).unwrap(), Step::Ready);
        for record in &records[1_000..] {
            assert_eq!(walk.entry().unwrap().key.bytes(), record.key.as_slice());
            assert_eq!(walk.next().unwrap(), Step::Ready);
        }
        // And what ends before it does not meet it.
        let bounds = RowRange::new(Bytes::new(), Bytes::from("row-000650"));
        assert!(walked(&reader, &bounds, b"").unwrap() == records[..650]);
    }

    #[test]
    fn a_bad_sector_fails_the_index_partition_that_lies_on_it_and_none_that_is_read_with_it() {
        let files = FaultFiles::new(Arc::new(MemoryFiles::new()));
        let records = many();
        let options = SstOptions { index_partition_bytes: 256, ..SstOptions::default() };
        let reader = written(&files, &records, options);
        let last = reader.at_top(reader.top_entry(reader.top().len() - 1)).unwrap().handle;
        let first = reader.at_top(reader.top_entry(0)).unwrap().handle;
        assert!(last.end() - first.offset < INDEX_BYTES, "one read would have them all");
        files.inject(bad_byte(last.offset));
        let bounds = RowRange::new(Bytes::new(), Bytes::from("row-002000"));
        assert!(walked(&reader, &bounds, b"").unwrap() == records[..2_000]);
        let error = walked(&reader, &RowRange::all(), b"").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
    }

    #[test]
    fn a_window_that_cannot_be_read_is_an_error_once_the_walk_comes_to_it() {
        let files = FaultFiles::new(Arc::new(MemoryFiles::new()));
        let reader = written(&files, &many(), SstOptions::default());
        files.inject(Fault::new(FaultOp::Read).nth(3).sticky());
        let mut walk =
            SstWalk::new(reader, Arc::new(InlineIo), &RowRange::all(), WINDOW_BYTES).unwrap();
        let (shown, step) = until_error(&mut walk);
        assert_eq!(step.unwrap_err().kind(), ErrorKind::Io);
        assert!(shown > 400, "what was read before is shown: {shown}");
        assert!(walk.entry().is_none());
    }
}
