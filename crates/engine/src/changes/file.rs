//! Change files: the batches of a segment of the log that change streams still need, kept when the segment itself is
//! given back.
//!
//! ```text
//! <segment>-<first sequence>-<last sequence>.chg    a record file with magic TEPUICHG, whose file id is the segment
//!
//! | header | block | block | ... | index | end |
//!
//! block   01 | method u8 | raw bytes varint | batches, plain (0) or LZ4 (1)
//! index   02 | number of blocks varint | block ...
//!              block: tablet u64 LE | first seq u64 LE | last - first varint | offset varint | bytes varint
//! end     03 | offset of the index u64 LE | bytes of the index u64 LE
//!
//! batches: length varint, payload as in the log; all of one tablet, in the order of their sequences
//! ```
//!
//! The name says which sequences are in the file, so that a directory's listing is the whole index of its files; the
//! index at the end says where each tablet's are, so that a reader of one tablet reads nothing of the others. A file
//! is written under another name and renamed when it is complete and synced: one with this name is whole.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use bytes::Bytes;

use super::present::Listed;
use super::{Change, present};
use crate::cell::Seq;
use crate::codec::{BytesReader, Unreadable, put_bytes, put_u64};
use crate::error::{Error, ErrorKind, Result};
use crate::io::Files;
use crate::limits::VERSIONS_READ_MAX;
use crate::log::record::{
    Magic, RECORD_BYTES_MAX, RECORD_HEADER_BYTES, RecordFile, RecordWriter, Salvage,
};
use crate::log::{BatchHead, batch_head, decode_batch, lock};

/// The magic of change files.
pub const MAGIC: Magic = *b"TEPUICHG";

/// The end of the name of a file that is being written.
pub(super) const UNFINISHED: &str = ".chg.new";

/// Bytes of batches in a block, before compression. Smaller compresses less and makes the index longer; larger makes
/// a reader that resumes read more in vain.
const BLOCK_BYTES: usize = 64 << 10;

/// Bytes of blocks that are being filled, of all tablets together: the largest is written when there are more.
const OPEN_BLOCKS_BYTES_MAX: usize = 16 << 20;

/// Bytes of the payload of the record at the end.
const END_PAYLOAD_BYTES: usize = 1 + 8 + 8;

/// Bytes of the record at the end.
const END_BYTES: u64 = RECORD_HEADER_BYTES + END_PAYLOAD_BYTES as u64;

/// Blocks for which room is made before the first is decoded: a count is not believed further.
const BLOCKS_RESERVED_MAX: usize = 1024;

const BLOCK: u8 = 1;
const INDEX: u8 = 2;
const END: u8 = 3;

const PLAIN: u8 = 0;
const LZ4: u8 = 1;

/// Where a block is, and what is in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockPlace {
    /// The tablet of its batches.
    pub tablet: u64,
    /// The first sequence of the first batch.
    pub first_seq: Seq,
    /// The last sequence of the last batch.
    pub last_seq: Seq,
    /// Where its record starts.
    pub offset: u64,
    /// Bytes of the record.
    pub bytes: u64,
}

/// A change file by its name.
#[derive(Debug)]
pub struct ChangeFile {
    /// The segment of the log whose batches it has.
    pub segment: u64,
    /// The first sequence in it.
    pub first_seq: Seq,
    /// The last sequence in it.
    pub last_seq: Seq,
    /// Its bytes.
    pub bytes: u64,
    /// Its tablets, once somebody has looked.
    tablets: OnceLock<Arc<[u64]>>,
    /// When it was first seen to be of a time to come (monotonic micros).
    pub(super) ahead_since_micros: OnceLock<u64>,
}

/// The lists of tablets of all files. Of those with the same tablets, as most of a hundred thousand are, there is one list.
#[derive(Debug, Default)]
pub(super) struct TabletLists {
    lists: Mutex<HashSet<Arc<[u64]>>>,
}

impl TabletLists {
    /// The tablets of these blocks, in order.
    fn of(&self, blocks: &[BlockPlace]) -> Arc<[u64]> {
        let mut tablets: Vec<u64> = blocks.iter().map(|block| block.tablet).collect();
        tablets.sort_unstable();
        tablets.dedup();
        let mut lists = lock(&self.lists);
        if let Some(list) = lists.get(tablets.as_slice()) {
            return Arc::clone(list);
        }
        if lists.len() == lists.capacity() {
            // Before it grows.
            forget_unused(&mut lists);
        }
        let list: Arc<[u64]> = tablets.into();
        lists.insert(Arc::clone(&list));
        list
    }

    /// Lets go of those that no file has any more.
    pub(super) fn forget(&self) {
        forget_unused(&mut lock(&self.lists));
    }
}

fn forget_unused(lists: &mut HashSet<Arc<[u64]>>) {
    lists.retain(|list| Arc::strong_count(list) > 1);
}

impl ChangeFile {
    fn new(segment: u64, [first_seq, last_seq]: [Seq; 2], bytes: u64) -> Self {
        let (tablets, ahead_since_micros) = (OnceLock::new(), OnceLock::new());
        Self { segment, first_seq, last_seq, bytes, tablets, ahead_since_micros }
    }

    /// The file of a directory's entry, if it is one.
    pub fn of_entry(name: &str, bytes: u64) -> Option<Self> {
        let mut parts = name.strip_suffix(".chg")?.split('-');
        let mut number = || u64::from_str_radix(parts.next()?, 16).ok();
        let (segment, first_seq, last_seq) = (number()?, number()?, number()?);
        let file = Self::new(segment, [first_seq, last_seq], bytes);
        (file.name() == name && first_seq <= last_seq).then_some(file)
    }

    /// Its name.
    pub fn name(&self) -> String {
        Self::name_of(self.segment, self.first_seq, self.last_seq)
    }

    /// The name of the file of a segment, with these sequences.
    pub(super) fn name_of(segment: u64, first_seq: Seq, last_seq: Seq) -> String {
        format!("{segment:016x}-{first_seq:016x}-{last_seq:016x}.chg")
    }

    /// The tablets that it has batches of, where somebody has looked: [`Self::tablets`] does not block then.
    pub(super) fn known_tablets(&self) -> Option<&[u64]> {
        self.tablets.get().map(AsRef::as_ref)
    }

    /// The tablets that it has batches of. Blocks, for the first call.
    pub(super) fn tablets(
        &self,
        files: &dyn Files,
        dir: &Path,
        lists: &TabletLists,
    ) -> Result<&[u64]> {
        if self.known_tablets().is_none() {
            let opened = OpenChangeFile::open(files, &dir.join(self.name()), self.segment)?;
            // Whoever else has looked has found the same.
            let _ = self.tablets.set(lists.of(&opened.blocks));
        }
        Ok(self.known_tablets().unwrap_or_default())
    }
}

/// The last sequence of each tablet that a file has batches of; of one that cannot be read any more, that of the file for each of
/// `tablets`. Blocks.
pub(super) fn last_seqs(
    files: &dyn Files,
    dir: &Path,
    file: &ChangeFile,
    tablets: &[u64],
) -> Vec<(u64, Seq)> {
    match OpenChangeFile::open(files, &dir.join(file.name()), file.segment) {
        // In the order of their blocks: of several of a tablet, whoever takes the greatest has its last.
        Ok(opened) => opened.blocks.iter().map(|block| (block.tablet, block.last_seq)).collect(),
        Err(_) => tablets.iter().map(|tablet| (*tablet, file.last_seq)).collect(),
    }
}

/// `InvalidArgument` where a newer version wrote one of the newest of these, which ascend. One that cannot be read is not judged. Blocks.
pub(super) fn check_versions(files: &dyn Files, dir: &Path, found: &[ChangeFile]) -> Result<()> {
    for file in found.iter().rev().take(VERSIONS_READ_MAX) {
        let opened = files.open(&dir.join(file.name()));
        let read = opened.and_then(|opened| RecordFile::open(opened, MAGIC, file.segment));
        if let Err(error) = read
            && error.kind() == ErrorKind::InvalidArgument
        {
            return Err(error);
        }
    }
    Ok(())
}

/// The error where a newer version wrote a record of a damaged file, or one that is in it, as far as the file can be read. Blocks.
pub(crate) fn newer_record(files: &dyn Files, path: &Path, segment: u64) -> Option<Error> {
    let salvage = files.open(path).and_then(|file| Salvage::open(file, MAGIC, segment));
    let checked = salvage.and_then(|salvage| salvage.check_versions(check_version));
    checked.err().filter(|error| error.kind() == ErrorKind::InvalidArgument)
}

/// `InvalidArgument` for a record that a newer version wrote.
fn check_version(payload: Bytes) -> Result<()> {
    match payload.first() {
        Some(&INDEX) => parse_index(payload).map(drop)?,
        Some(&END) => parse_end(payload).map(drop)?,
        _ => {
            let errors = parse_block(payload)?.into_iter().map(|batch| decode_batch(batch).err());
            let newer = errors.flatten().find(|e| e.kind() == ErrorKind::InvalidArgument);
            newer.map_or(Ok(()), Err)?;
        }
    }
    Ok(())
}

/// A change file being read.
#[derive(Debug)]
pub struct OpenChangeFile {
    file: RecordFile,
    blocks: Vec<BlockPlace>,
}

impl OpenChangeFile {
    /// Opens a file and reads its index. Blocks.
    pub fn open(files: &dyn Files, path: &Path, segment: u64) -> Result<Self> {
        let file = RecordFile::open(files.open(path)?, MAGIC, segment)?;
        let at = file.len().saturating_sub(END_BYTES);
        let end = file.record(at, END_BYTES)?;
        let (offset, bytes) = parse_end(end).map_err(|e| in_record(&file, at, &e))?;
        let index = file.record(offset, bytes)?;
        let blocks = parse_index(index).map_err(|e| in_record(&file, offset, &e))?;
        Ok(Self { file, blocks })
    }

    /// The blocks, in the order of the file.
    pub fn blocks(&self) -> &[BlockPlace] {
        &self.blocks
    }

    /// The batches of a block. Blocks.
    pub fn changes(&self, place: &BlockPlace) -> Result<Vec<Change>> {
        let block = self.file.record(place.offset, place.bytes)?;
        let batches = parse_block(block).map_err(|e| in_record(&self.file, place.offset, &e))?;
        let mut changes = Vec::with_capacity(batches.len());
        for batch in batches {
            let (tablet, first_seq, source, batch) =
                decode_batch(batch).map_err(|e| match e.kind() {
                    // Of a newer version: not damage.
                    ErrorKind::InvalidArgument => e.context(self.file.path().display()),
                    _ => self.file.corruption(place.offset, e.message()),
                })?;
            let change = Change::new(first_seq, source, batch);
            let inside = first_seq >= place.first_seq && change.last_seq <= place.last_seq;
            if tablet != place.tablet || !inside {
                return Err(self
                    .file
                    .corruption(place.offset, "a batch is not what the index says"));
            }
            changes.push(change);
        }
        Ok(changes)
    }
}

fn in_record(file: &RecordFile, offset: u64, what: &Unreadable) -> Error {
    let path = file.path().display();
    Error::new(what.kind(), format!("{path}: offset {offset}: change record, {what}"))
}

/// Takes the kind of a record, which is to be this one.
fn expect_kind(input: &mut BytesReader, kind: u8) -> Result<(), Unreadable> {
    let other = input.malformed("a record of another kind than is to be here");
    match input.u8()? {
        found if found == kind => Ok(()),
        BLOCK | INDEX | END => Err(Unreadable::Malformed(other)),
        _ => Err(Unreadable::Newer(other)),
    }
}

fn parse_end(end: Bytes) -> Result<(u64, u64), Unreadable> {
    let mut input = BytesReader::new(end);
    expect_kind(&mut input, END)?;
    let end = (input.fixed_u64()?, input.fixed_u64()?);
    input.finish_known()?;
    Ok(end)
}

fn parse_index(index: Bytes) -> Result<Vec<BlockPlace>, Unreadable> {
    let mut input = BytesReader::new(index);
    expect_kind(&mut input, INDEX)?;
    let count = input.usize()?;
    let mut blocks = Vec::with_capacity(count.min(BLOCKS_RESERVED_MAX));
    for _ in 0..count {
        let (tablet, first_seq) = (input.fixed_u64()?, input.fixed_u64()?);
        let last_seq = first_seq.saturating_add(input.u64()?);
        let (offset, bytes) = (input.u64()?, input.u64()?);
        blocks.push(BlockPlace { tablet, first_seq, last_seq, offset, bytes });
    }
    input.finish_known()?;
    Ok(blocks)
}

/// The payloads of a block's batches.
fn parse_block(block: Bytes) -> Result<Vec<Bytes>, Unreadable> {
    let mut input = BytesReader::new(block);
    expect_kind(&mut input, BLOCK)?;
    let unknown = input.malformed("a block of an unknown compression");
    let method = input.u8()?;
    if !matches!(method, PLAIN | LZ4) {
        return Err(Unreadable::Newer(unknown));
    }
    let raw_bytes = input.usize()?;
    let stored = input.take(input.remaining())?;
    let raw = match method {
        PLAIN if raw_bytes == stored.len() => stored,
        // LZ4 makes at most 255 bytes of one: a length beyond is none that a writer wrote.
        LZ4 if raw_bytes <= stored.len().saturating_mul(255)
            && raw_bytes as u64 <= RECORD_BYTES_MAX =>
        {
            let mut raw = vec![0; raw_bytes];
            match lz4_flex::block::decompress_into(&stored, &mut raw) {
                Ok(len) if len == raw_bytes => Bytes::from(raw),
                _ => return Err(input.malformed("a block does not decompress").into()),
            }
        }
        _ => return Err(input.malformed("a block of a wrong length").into()),
    };
    // Of an earlier version: a large batch with smaller ones before it, each of which would keep all of it in memory.
    let is_large = raw.len() > 2 * BLOCK_BYTES;
    let mut input = BytesReader::new(raw);
    let mut batches = Vec::new();
    while !input.is_empty() {
        let batch = input.bytes()?;
        let copied = is_large && batch.len() < BLOCK_BYTES;
        batches.push(if copied { Bytes::copy_from_slice(&batch) } else { batch });
    }
    Ok(batches)
}

/// Decodes what could be any record of a change file, for fuzzing: errors are fine, panics are not.
pub(crate) fn fuzz(payload: &[u8]) {
    let payload = Bytes::copy_from_slice(payload);
    if let Ok(listed) = Listed::decode(payload.clone()) {
        assert_eq!(listed.encode(), payload, "a list of change files has one encoding");
    }
    let _ = parse_end(payload.clone());
    let _ = parse_index(payload.clone());
    for batch in parse_block(payload).unwrap_or_default() {
        let _ = decode_batch(batch);
    }
}

/// What the first byte of the input of [`write_fuzzed`] says.
mod choices {
    /// How many bytes of an index are behind it; of none where one is made that leads to the block.
    pub(super) const INDEX_BYTES: u8 = 0x7F;
    /// The input ends with the end; else one is made that leads to the index.
    pub(super) const END: u8 = 0x80;
}

/// Writes a file of one block, for fuzzing: its checksums hold, and the block, the index and the end are of the input, as its first byte
/// says.
pub(crate) fn write_fuzzed(
    files: &dyn Files,
    path: &Path,
    segment: u64,
    data: &[u8],
) -> Result<()> {
    let (how, rest) = data.split_first().unwrap_or((&0, &[]));
    let index_bytes = usize::from(how & choices::INDEX_BYTES);
    let (index, rest) = rest.split_at(index_bytes.min(rest.len()));
    let end = (how & choices::END != 0).then(|| rest.split_last_chunk::<END_PAYLOAD_BYTES>());
    let (block, end) = end.flatten().map_or((rest, None), |(block, end)| (block, Some(end)));
    let mut writer = RecordWriter::create(files, path, MAGIC, segment)?;
    let offset = writer.append(block)?;
    // It takes every batch of the tablet of the first one.
    let batches = parse_block(Bytes::copy_from_slice(block)).unwrap_or_default();
    let head = batches.first().and_then(|batch| batch_head(batch));
    let bytes = RECORD_HEADER_BYTES + block.len() as u64;
    let tablet = head.map_or(0, |head| head.tablet);
    let place = BlockPlace { tablet, first_seq: 0, last_seq: Seq::MAX, offset, bytes };
    let index = if index.is_empty() { encode_index(&[place]) } else { index.to_vec() };
    let offset = writer.append(&index)?;
    writer.append(&end.map_or_else(|| encode_end(offset, &index), |end| end.to_vec()))?;
    writer.sync()
}

/// Inputs of [`write_fuzzed`] that are files of a block of these batches: plain, compressed, and with an index and an end of their own.
#[cfg(test)]
pub(crate) fn valid_inputs(batches: &[Vec<u8>]) -> [Vec<u8>; 3] {
    let mut raw = Vec::new();
    for batch in batches {
        put_bytes(&mut raw, batch);
    }
    let mut plain = vec![BLOCK, PLAIN];
    put_u64(&mut plain, raw.len() as u64);
    plain.extend_from_slice(&raw);
    let packed = encode_block(raw);
    assert_eq!(packed[1], LZ4);
    let offset = crate::log::record::FILE_HEADER_BYTES;
    let bytes = RECORD_HEADER_BYTES + plain.len() as u64;
    let head = batch_head(&batches[0]).unwrap();
    let last_seq = batch_head(batches.last().unwrap()).unwrap().last_seq;
    let place =
        BlockPlace { tablet: head.tablet, first_seq: head.first_seq, last_seq, offset, bytes };
    let index = encode_index(&[place, place]);
    let end = encode_end(offset + bytes, &index);
    let how = choices::END | index.len() as u8;
    [
        [&[0][..], &plain].concat(),
        [&[0][..], &packed].concat(),
        [&[how][..], &index, &plain, &end].concat(),
    ]
}

/// The record of a block, compressed where that makes it smaller. A batch may have hundreds of megabytes: it is here twice,
/// and once when this returns.
fn encode_block(raw: Vec<u8>) -> Vec<u8> {
    let head = |method| {
        let mut head = vec![BLOCK, method];
        put_u64(&mut head, raw.len() as u64);
        head
    };
    let mut payload = head(LZ4);
    let start = payload.len();
    payload.resize(start + lz4_flex::block::get_maximum_output_size(raw.len()), 0);
    let room = payload.get_mut(start..).unwrap_or_default();
    match lz4_flex::block::compress_into(&raw, room) {
        Ok(packed) if packed < raw.len() => payload.truncate(start + packed),
        _ => {
            payload = head(PLAIN);
            payload.extend_from_slice(&raw);
        }
    }
    payload
}

/// The record of the index.
fn encode_index(blocks: &[BlockPlace]) -> Vec<u8> {
    let mut index = vec![INDEX];
    put_u64(&mut index, blocks.len() as u64);
    for block in blocks {
        index.extend_from_slice(&block.tablet.to_le_bytes());
        index.extend_from_slice(&block.first_seq.to_le_bytes());
        put_u64(&mut index, block.last_seq - block.first_seq);
        put_u64(&mut index, block.offset);
        put_u64(&mut index, block.bytes);
    }
    index
}

/// The record at the end of a file whose index is at `offset`.
fn encode_end(offset: u64, index: &[u8]) -> Vec<u8> {
    let mut end = vec![END];
    end.extend_from_slice(&offset.to_le_bytes());
    end.extend_from_slice(&(RECORD_HEADER_BYTES + index.len() as u64).to_le_bytes());
    end
}

/// A block being filled.
#[derive(Debug, Default)]
struct OpenBlock {
    raw: Vec<u8>,
    first_seq: Seq,
    last_seq: Seq,
}

/// A change file being written.
#[derive(Debug)]
pub(super) struct ChangeFileWriter {
    writer: RecordWriter,
    open: HashMap<u64, OpenBlock>,
    open_bytes: usize,
    blocks: Vec<BlockPlace>,
}

impl ChangeFileWriter {
    /// Begins the file of a segment under a name of its own.
    pub(super) fn create(files: &dyn Files, path: &Path, segment: u64) -> Result<Self> {
        let writer = RecordWriter::create(files, path, MAGIC, segment)?;
        Ok(Self { writer, open: HashMap::new(), open_bytes: 0, blocks: Vec::new() })
    }

    /// Adds a batch as it is in the log; those of a tablet come in the order of their sequences.
    pub(super) fn add(&mut self, head: BatchHead, payload: &[u8]) -> Result<()> {
        if payload.len() >= BLOCK_BYTES {
            // It has a block to itself: whoever wants those before it would have all of it in memory.
            self.write(head.tablet)?;
        }
        let block = self.open.entry(head.tablet).or_default();
        let before = block.raw.len();
        if before == 0 {
            block.first_seq = head.first_seq;
        }
        block.last_seq = head.last_seq;
        put_bytes(&mut block.raw, payload);
        self.open_bytes += block.raw.len() - before;
        if block.raw.len() >= BLOCK_BYTES {
            self.write(head.tablet)?;
        }
        if self.open_bytes > OPEN_BLOCKS_BYTES_MAX {
            let largest = self.open.iter().max_by_key(|(_, block)| block.raw.len());
            if let Some(tablet) = largest.map(|(tablet, _)| *tablet) {
                self.write(tablet)?;
            }
        }
        Ok(())
    }

    fn write(&mut self, tablet: u64) -> Result<()> {
        let Some(block) = self.open.remove(&tablet) else { return Ok(()) };
        self.open_bytes -= block.raw.len();
        let OpenBlock { raw, first_seq, last_seq } = block;
        let payload = encode_block(raw);
        let offset = self.writer.append(&payload)?;
        let bytes = RECORD_HEADER_BYTES + payload.len() as u64;
        self.blocks.push(BlockPlace { tablet, first_seq, last_seq, offset, bytes });
        Ok(())
    }

    /// Bytes that were written so far.
    pub(super) fn len(&self) -> u64 {
        self.writer.len()
    }

    /// Completes and syncs the file; `None` where nothing was added.
    pub(super) fn finish(mut self, lists: &TabletLists) -> Result<Option<ChangeFile>> {
        let mut rest: Vec<u64> = self.open.keys().copied().collect();
        rest.sort_unstable();
        for tablet in rest {
            self.write(tablet)?;
        }
        let first_seq = self.blocks.iter().map(|block| block.first_seq).min();
        let last_seq = self.blocks.iter().map(|block| block.last_seq).max();
        let (Some(first_seq), Some(last_seq)) = (first_seq, last_seq) else { return Ok(None) };
        let index = encode_index(&self.blocks);
        let offset = self.writer.append(&index)?;
        self.writer.append(&encode_end(offset, &index))?;
        self.writer.sync()?;
        let (segment, bytes) = (self.writer.file_id(), self.writer.len());
        let file = ChangeFile::new(segment, [first_seq, last_seq], bytes);
        let _ = file.tablets.set(lists.of(&self.blocks));
        Ok(Some(file))
    }
}

/// The change files of a directory by ascending segment, and the paths of what a start removes: those that were never
/// completed, and those of which there is a larger one of the same segment.
pub(crate) fn list(files: &dyn Files, dir: &Path) -> Result<(Vec<ChangeFile>, Vec<PathBuf>)> {
    let (mut found, mut unfinished) = (Vec::new(), Vec::new());
    let entries = match files.list(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error),
    };
    for entry in entries.into_iter().filter(|entry| !entry.is_dir) {
        if entry.name == present::NAME {
            continue;
        }
        if entry.name.ends_with(UNFINISHED) {
            unfinished.push(dir.join(&entry.name));
        } else if let Some(file) = ChangeFile::of_entry(&entry.name, entry.len) {
            found.push(file);
        }
    }
    found.sort_unstable_by_key(|file| (file.segment, std::cmp::Reverse(file.bytes)));
    // A file whose name's durability was in doubt may have been written again after the streams had changed: what is
    // in the smaller one is in the larger one.
    let mut last = None;
    found.retain(|file| {
        let is_first = last.replace(file.segment) != Some(file.segment);
        if !is_first {
            unfinished.push(dir.join(file.name()));
        }
        is_first
    });
    Ok((found, unfinished))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cell::{FamilyId, Mutation, RowBatch};
    use crate::io::{CrashMode, MemoryFiles, SeededRng};
    use crate::log::{Source, encode_batch_of};
    use crate::testing::{hex, unhex};

    fn source(i: u64) -> Source {
        if i.is_multiple_of(2) { Source::User } else { Source::GarbageCollection }
    }

    fn put(row: u64, bytes: usize) -> RowBatch {
        let value = Bytes::from(vec![row as u8; bytes]);
        let qualifier = Bytes::from_static(b"q");
        let put = Mutation::Put { family: FamilyId(1), qualifier, timestamp: 1, value };
        RowBatch { row: Bytes::from(row.to_be_bytes().to_vec()), mutations: vec![put.clone(), put] }
    }

    /// Batches of 3 tablets in turn, with two sequences each, from 100 on.
    fn write(files: &MemoryFiles, count: u64, bytes: usize) -> ChangeFile {
        files.create_dir_all(Path::new("/c")).unwrap();
        let path = Path::new("/c/new.chg.new");
        let mut writer = ChangeFileWriter::create(files, path, 7).unwrap();
        for i in 0..count {
            let mut batch = encode_batch_of(source(i), i % 3, &put(i, bytes));
            batch.set_first_seq(100 + 2 * i);
            writer.add(batch_head(batch.bytes()).unwrap(), batch.bytes()).unwrap();
        }
        let file = writer.finish(&TabletLists::default()).unwrap().unwrap();
        files.rename(path, &Path::new("/c").join(file.name())).unwrap();
        file
    }

    /// A batch that does not compress, since what a library makes of one that does may differ from version to version.
    fn noisy(tablet: u64, seq: Seq) -> (Change, Vec<u8>) {
        let noise = |from: u8| Bytes::from((from..from + 4).collect::<Vec<_>>());
        let timestamp = 0x1122_3344_5566_7788;
        let (family, qualifier) = (FamilyId(9), noise(0x20));
        let put = Mutation::Put { family, qualifier, timestamp, value: noise(0x30) };
        let batch = RowBatch { row: noise(0x10), mutations: vec![put, Mutation::DeleteRow] };
        let mut encoded = encode_batch_of(Source::User, tablet, &batch);
        encoded.set_first_seq(seq);
        (Change::new(seq, Source::User, batch), encoded.bytes().to_vec())
    }

    /// A file of two blocks: its header, then each record's header and payload.
    const STORED: &str = concat!(
        "54455055494348470100000000000000070000000000000061c42a3d3115b2e5",
        "300000009a8224310000000000000000dc5ca2499b5ca782",
        "01002d2c0108070605040302012827262524232221041011121302010904202122238877665544332211043031",
        "323305",
        "3000000010e3858600000000000000002abe94d2a0b96a5b",
        "01002d2c0118171615141312113837363534333231041011121302010904202122238877665544332211043031",
        "323305",
        "28000000a4e3827700000000000000009a3853bce81a792e",
        "02020807060504030201282726252423222101204818171615141312113837363534333231016848",
        "11000000baf8f0bc0000000000000000cba0500497f40957",
        "03b0000000000000004000000000000000",
    );

    /// A block of twelve batches, compressed: a batch, all but the end of the others as copies of it, and that end.
    const STORED_LZ4: &str = concat!(
        "01019c04",
        "ff1e",
        "2c0101000000000000000200000000000000041011121302010904202122238877665544332211043031323305",
        "2d00ffd8",
        "503031323305",
    );

    #[test]
    fn a_file_on_a_disk_is_read_as_it_was_written() {
        let batches = [
            noisy(0x0102_0304_0506_0708, 0x2122_2324_2526_2728),
            noisy(0x1112_1314_1516_1718, 0x3132_3334_3536_3738),
        ];
        let (files, path) = (MemoryFiles::new(), Path::new("/7.chg"));
        let mut writer = ChangeFileWriter::create(&files, path, 7).unwrap();
        for (_, batch) in &batches {
            writer.add(batch_head(batch).unwrap(), batch).unwrap();
        }
        let file = writer.finish(&TabletLists::default()).unwrap().unwrap();
        assert_eq!(file.name(), "0000000000000007-2122232425262728-3132333435363739.chg");
        assert_eq!(hex(&files.contents(path).unwrap()), STORED);
        let stored = MemoryFiles::new();
        stored.put_contents(path, unhex(STORED));
        let opened = OpenChangeFile::open(&stored, path, 7).unwrap();
        let read = opened.blocks().iter().map(|block| opened.changes(block).unwrap());
        let expected: Vec<_> = batches.into_iter().map(|(change, _)| vec![change]).collect();
        assert_eq!(read.collect::<Vec<_>>(), expected);

        let (_, batch) = noisy(1, 2);
        assert_eq!(parse_block(unhex(STORED_LZ4).into()).unwrap(), vec![batch; 12]);
    }

    #[test]
    fn each_tablets_batches_come_back_in_order_from_blocks_of_its_own() {
        for (count, bytes) in [(1, 10), (30, 10), (3000, 100), (9, 300_000)] {
            let files = MemoryFiles::new();
            let file = write(&files, count, bytes);
            assert_eq!((file.first_seq, file.last_seq), (100, 99 + 2 * count));
            let path = Path::new("/c").join(file.name());
            let opened = OpenChangeFile::open(&files, &path, 7).unwrap();
            for tablet in 0..3 {
                let of_tablet = opened.blocks().iter().filter(|block| block.tablet == tablet);
                let read: Vec<Change> =
                    of_tablet.flat_map(|block| opened.changes(block).unwrap()).collect();
                let expected: Vec<Change> = (0..count)
                    .filter(|i| i % 3 == tablet)
                    .map(|i| Change::new(100 + 2 * i, source(i), put(i, bytes)))
                    .collect();
                assert_eq!(read, expected);
            }
        }
    }

    #[test]
    fn files_of_the_same_tablets_share_their_list_and_what_no_file_has_goes() {
        let lists = TabletLists::default();
        let of = |tablets: &[u64]| {
            let block =
                |tablet| BlockPlace { tablet, first_seq: 1, last_seq: 1, offset: 0, bytes: 0 };
            lists.of(&tablets.iter().copied().map(block).collect::<Vec<_>>())
        };
        let list = of(&[3, 1, 3]);
        assert_eq!(*list, [1, 3]);
        assert!(Arc::ptr_eq(&list, &of(&[1, 3])));
        for tablet in 10..1_000 {
            of(&[tablet]);
        }
        assert!(lists.lists.lock().unwrap().len() < 10);
        assert!(Arc::ptr_eq(&list, &of(&[3, 1])));
    }

    #[test]
    fn who_wants_small_batches_has_no_large_one_in_memory() {
        let files = MemoryFiles::new();
        files.create_dir_all(Path::new("/c")).unwrap();
        let path = Path::new("/c/new.chg.new");
        let mut writer = ChangeFileWriter::create(&files, path, 7).unwrap();
        let mut raw = Vec::new();
        for (i, bytes) in [100, 100, 1 << 20, 100].into_iter().enumerate() {
            let i = i as u64;
            let mut batch = encode_batch_of(source(i), 1, &put(i, bytes));
            batch.set_first_seq(100 + 2 * i);
            writer.add(batch_head(batch.bytes()).unwrap(), batch.bytes()).unwrap();
            put_bytes(&mut raw, batch.bytes());
        }
        writer.finish(&TabletLists::default()).unwrap();
        let opened = OpenChangeFile::open(&files, path, 7).unwrap();
        let batches = opened.blocks().iter().map(|block| opened.changes(block).unwrap().len());
        assert_eq!(batches.collect::<Vec<_>>(), [2, 1, 1]);
        // As earlier versions wrote them.
        let batches = parse_block(Bytes::from(encode_block(raw))).unwrap();
        assert_eq!(batches.len(), 4);
        assert!(batches.iter().all(Bytes::is_unique), "none is a part of what the others are in");
    }

    #[test]
    fn a_file_that_a_start_finds_outlives_a_crash_though_its_process_did_not_sync_its_name() {
        let files = MemoryFiles::new();
        let file = write(&files, 5, 1);
        let dir = Path::new("/c");
        files.sync_dir(Path::new("/")).unwrap();
        let log = crate::changes::ChangeLog::open(&files, dir, 1 << 20).unwrap();
        assert_eq!(log.newest(), (file.segment, file.last_seq));
        let crashed = files.crashed_copy(CrashMode::Strict, &SeededRng::new(1));
        assert_eq!(list(&crashed, dir).unwrap().0.len(), 1);
    }

    #[test]
    fn the_name_says_what_is_in_the_file_and_strangers_are_left_alone() {
        let file = write(&MemoryFiles::new(), 5, 1);
        let name = file.name();
        assert_eq!(name, "0000000000000007-0000000000000064-000000000000006d.chg");
        let found = ChangeFile::of_entry(&name, 9).unwrap();
        assert_eq!((found.segment, found.first_seq, found.last_seq, found.bytes), (7, 100, 109, 9));
        for stranger in ["", "7-64-6d.chg", "x.chg", "0000000000000007.log", &format!("{name}.new")]
        {
            assert!(ChangeFile::of_entry(stranger, 1).is_none(), "{stranger}");
        }
    }

    #[test]
    fn a_flipped_bit_anywhere_is_corruption_and_no_panic() {
        let files = MemoryFiles::new();
        let file = write(&files, 12, 40);
        let path = Path::new("/c").join(file.name());
        let good = files.open(&path).unwrap().read_at(0, file.bytes as usize).unwrap();
        for at in 0..good.len() {
            let mut bytes = good.to_vec();
            bytes[at] ^= 0x10;
            let bad = MemoryFiles::new();
            bad.create_dir_all(Path::new("/c")).unwrap();
            bad.create(&path).unwrap().append(&bytes).unwrap();
            let read = OpenChangeFile::open(&bad, &path, 7).and_then(|opened| {
                opened
                    .blocks()
                    .iter()
                    .map(|block| opened.changes(block))
                    .collect::<Result<Vec<_>>>()
            });
            let kind = read.expect_err(&format!("byte {at}")).kind();
            assert!(
                matches!(kind, ErrorKind::Corruption | ErrorKind::InvalidArgument),
                "byte {at}"
            );
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            fuzz(&bytes);
            for kind in [BLOCK, INDEX, END] {
                let mut bytes = bytes.clone();
                bytes.insert(0, kind);
                fuzz(&bytes);
            }
        }
    }

    #[test]
    fn of_two_files_of_a_segment_the_larger_counts_and_the_other_is_to_go() {
        let files = MemoryFiles::new();
        let dir = Path::new("/changes");
        files.create_dir_all(dir).unwrap();
        let name = |segment, first_seq, last_seq| {
            ChangeFile::new(segment, [first_seq, last_seq], 0).name()
        };
        let sizes = [(name(1, 5, 9), 10), (name(2, 10, 19), 30), (name(2, 12, 19), 20)];
        for (name, bytes) in &sizes {
            files.put_contents(&dir.join(name), vec![0; *bytes]);
        }
        files.put_contents(&dir.join("0000000000000003.chg.new"), Vec::new());
        let (found, unfinished) = list(&files, dir).unwrap();
        let found: Vec<_> = found.iter().map(ChangeFile::name).collect();
        assert_eq!(found, [sizes[0].0.clone(), sizes[1].0.clone()]);
        assert_eq!(unfinished, [dir.join("0000000000000003.chg.new"), dir.join(&sizes[2].0)]);
    }
}
