//! What fuzz targets run on the formats of this folder (see [`crate::fuzzing`]). Nothing here may panic.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use zstd::dict::DecoderDictionary;

use super::block::load_blocks_blocking;
use super::cursor::CursorOptions;
use super::data::DataBlock;
use super::filter::{Ask, FilterBlock};
use super::footer::{FOOTER_LEN, Footer, Handle, MAGIC};
use super::frame::{Framer, Method, footer_checksum, open_frame, seal_plain};
use super::index::{BlockStats, IndexBlock, IndexEntry, Level};
use super::index_builder::IndexBuilder;
use super::key::{separator, separator_row};
use super::point::PointStage;
use super::probe::RowProbe;
use super::properties::SstProperties;
use super::reader::SstReader;
use super::{BLOCK_BYTES_MAX, Compression, FileId};
use crate::cache::QuickBlockCache;
use crate::cell::{FamilyId, KeyView, encode_suffix};
use crate::cursor::{Cursor, Step};
use crate::error::{Error, Result};
use crate::io::{Files, MemoryFiles};
use crate::read::RecordInRow;

/// The file's number, in the seed of every checksum.
const ID: FileId = 7;
const PATH: &str = "/fuzz.sst";

/// Steps of a walk, so that a few bytes that claim a billion records do not take minutes.
const STEPS_MAX: usize = 10_000;

const CACHE_BYTES: u64 = 1 << 20;

/// A data block: every record, and searches.
pub(crate) fn data_block(data: &[u8]) {
    let Ok(block) = DataBlock::parse(Bytes::copy_from_slice(data)) else { return };
    let mut keys = vec![Vec::new(), b"\x00\x01".to_vec(), b"row\x00\x01".to_vec()];
    let mut next = block.first().ok();
    for _ in 0..STEPS_MAX {
        let Some(record) = next else { break };
        let mut key = Vec::new();
        block.push_row(&record, &mut key);
        if block.push_column(&record, &mut key).is_ok() {
            encode_suffix(record.timestamp, record.seq, record.origin, record.kind, &mut key);
        }
        let memories = [block.memory().clone()];
        let (value, qualifier) = (block.value_bytes(&record), block.qualifier_bytes(&record));
        assert_eq!(block.value(&record), value);
        assert_eq!(record.value_place().map(|place| place.of(&memories)), Some(&value[..]));
        let place = block.qualifier_place(&record);
        assert_eq!(place.map(|place| place.of(&memories)), block.qualifier_of(&record));
        assert!(block.qualifier_of(&record).is_none_or(|same| same == qualifier));
        if keys.len() < 8 {
            keys.push(key);
        }
        next = block.after(&record).ok().flatten();
    }
    for key in keys {
        let _ = (block.seek(&key), block.find_row(&key));
        let _ = block.last_row_before(&key, &mut Vec::new());
    }
}

/// An index block of each level: every entry, and searches.
pub(crate) fn index_block(data: &[u8]) {
    for level in [Level::Partition, Level::Top, Level::Filter] {
        let Ok(block) = IndexBlock::parse(Bytes::copy_from_slice(data), level) else { continue };
        for at in 0..block.len().min(STEPS_MAX) {
            if let Ok(separator) = block.separator(at) {
                let _ = (block.find(&separator, false), block.find(&separator, true));
                let _ = separator_row(&separator);
            }
            for end in [0, data.len() as u64, u64::MAX] {
                let _ = block.entry(at, end);
            }
        }
        let _ = (block.find(b"", true), block.find(b"\xFF", false), block.separator(block.len()));
    }
}

/// A filter partition, and probes of it.
pub(crate) fn filter_block(data: &[u8]) {
    let Ok(block) = FilterBlock::parse(Bytes::copy_from_slice(data)) else { return };
    for entry in [0, 1, u64::MAX, 0x9E37_79B9_7F4A_7C15] {
        let (row, family) = (entry, FamilyId(entry as u32));
        for ask in [
            Ask::Row(entry),
            Ask::Tombstone(entry),
            Ask::Family { row, family },
            Ask::Column { row, column: entry },
        ] {
            let _ = block.may_contain(&ask);
        }
    }
}

/// A whole SST; and, since no bytes pass the checksums by chance, one whose properties and top-level indexes
/// are parts of the bytes under checksums that hold, and one whose blocks are.
pub(crate) fn sst_file(data: &[u8]) {
    read_file(data.to_vec());
    read_file(sealed(data));
    read_file(sealed_blocks(data));
    read_file(misled(data));
    footer(data);
    properties(data);
    // A frame: its compression is named by the last byte. The size before the compressed bytes is believed
    // up to a limit where zstd made them, which makes much of little; what is larger than the input justifies would only measure
    // the allocator.
    let size = data.first_chunk().map_or(0, |size| u32::from_le_bytes(*size));
    let is_believed = size as usize <= data.len().saturating_mul(256).min(BLOCK_BYTES_MAX);
    if is_believed || data.last() == Some(&(Method::Lz4 as u8)) {
        let checksum = footer_checksum(data, ID, 0).to_le_bytes();
        let frame = [data, &checksum].concat();
        let dictionary = data.get(data.len() / 2..).unwrap_or_default();
        let dictionary = DecoderDictionary::try_copy(dictionary).ok();
        let _ = open_frame(&Bytes::from(frame), ID, 0, dictionary.as_ref(), false);
    }
}

/// Properties: what is not known, or said in another way, is not encoded again.
fn properties(data: &[u8]) {
    let Ok(properties) = SstProperties::decode(data) else { return };
    let mut encoded = Vec::new();
    properties.encode(&mut encoded);
    assert_eq!(SstProperties::decode(&encoded), Ok(properties));
}

/// A footer of any bytes; and the same of this file and version, where they are not, under a checksum that holds.
fn footer(data: &[u8]) {
    let offset = 4096;
    let mut bytes = data.to_vec();
    bytes.resize(FOOTER_LEN, 0);
    let _ = Footer::decode(data, ID, offset);
    seal_footer(&mut bytes, offset);
    let _ = (Footer::decode(&bytes, ID, offset), Footer::newer_version(&bytes, ID, offset));
    let mut whole = Vec::new();
    let none = Handle::default();
    Footer { properties: none, top_index: none, filter_index: None, dictionary: None }
        .encode(ID, offset, &mut whole);
    for (to, from) in whole.iter_mut().zip(data).take(HANDLES_BYTES) {
        *to = *from;
    }
    seal_footer(&mut whole, offset);
    if let Ok(footer) = Footer::decode(&whole, ID, offset) {
        let mut encoded = Vec::new();
        footer.encode(ID, offset, &mut encoded);
        assert_eq!(encoded, whole, "a footer has one encoding");
    }
}

/// Bytes of the handles at the beginning of a footer.
const HANDLES_BYTES: usize = 4 * 16;

/// Gives the footer, to lie at `offset`, its checksum and magic.
fn seal_footer(footer: &mut [u8], offset: u64) {
    let Some((covered, end)) = footer.split_at_mut_checked(FOOTER_LEN - 16) else { return };
    let checksum = footer_checksum(covered, ID, offset).to_le_bytes();
    for (to, from) in end.iter_mut().zip(checksum.iter().chain(MAGIC)) {
        *to = *from;
    }
}

/// A file as of [`sealed`] whose footer has other handles than those of its frames: the first bytes of the input say where they differ.
fn misled(data: &[u8]) -> Vec<u8> {
    let (mask, data) = data.split_at(data.len().min(HANDLES_BYTES));
    let mut out = sealed(data);
    let offset = out.len() - FOOTER_LEN;
    let footer = out.get_mut(offset..).unwrap_or_default();
    for (to, from) in footer.iter_mut().zip(mask) {
        *to ^= *from;
    }
    seal_footer(footer, offset as u64);
    out
}

/// A file with a valid footer over three frames, which are the thirds of `data`.
fn sealed(data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let third = data.len() / 3;
    let (properties, rest) = data.split_at(third);
    let (top, filters) = rest.split_at(third.min(rest.len()));
    let parts = [properties, top, filters];
    let [properties, top_index, filter_index] = parts.map(|part| append(&mut out, part));
    let offset = out.len() as u64;
    let filter_index = Some(filter_index);
    Footer { properties, top_index, filter_index, dictionary: None }.encode(ID, offset, &mut out);
    out
}

/// What the first byte of the input says of a file of [`sealed_blocks`].
mod choices {
    /// How the data block is compressed: not, LZ4, zstd, or zstd with the dictionary.
    pub(super) const METHOD: u8 = 0b11;
    /// The input has a dictionary.
    pub(super) const DICTIONARY: u8 = 1 << 2;
    /// It has the partition; else one is made that leads to the data block.
    pub(super) const PARTITION: u8 = 1 << 3;
    /// It has the top-level index; else one is made that leads to the partition.
    pub(super) const TOP: u8 = 1 << 4;
    /// It has a filter partition.
    pub(super) const FILTER: u8 = 1 << 5;
}

/// A file of one data block and one partition under checksums that hold, of which each is a part of the input, as its first byte says; and
/// so is what the first entries of an index from the input lead to.
fn sealed_blocks(data: &[u8]) -> Vec<u8> {
    let (how, mut rest) = data.split_first().unwrap_or((&0, &[][..]));
    let mut part = |choice: u8| {
        let is_there = how & choice != 0;
        let (part, left) = rest.split_at(if is_there { rest.len() / 2 } else { 0 });
        rest = left;
        is_there.then_some(part)
    };
    let given =
        [choices::DICTIONARY, choices::PARTITION, choices::TOP, choices::FILTER].map(&mut part);
    let [dictionary, partition, top, filter] = given;
    let block = rest;
    let mut framer = Framer::new(match how & choices::METHOD {
        0 => Compression::None,
        1 => Compression::Lz4,
        2 => Compression::Zstd(1),
        _ => Compression::ZstdDict(1),
    });
    let dictionary = dictionary.filter(|dictionary| framer.set_dictionary(dictionary));
    let mut out = Vec::new();
    let packed = framer.pack(block, framer.data_method());
    framer.put(block, packed, ID, 0, &mut out);
    let (stats, separator) = figures(block);
    let handle = Handle { offset: 0, len: out.len() as u32 };
    let entry = IndexEntry { handle, stats, data_end: handle.end() };
    let index = |level, entry: &IndexEntry| {
        let mut index = IndexBuilder::new(level);
        index.add(&separator, entry);
        index.finish()
    };
    let partition = partition.map_or_else(|| index(Level::Partition, &entry), <[u8]>::to_vec);
    let entry = IndexEntry { handle: append(&mut out, &partition), ..entry };
    let filter = filter.map(|filter| {
        let handle = append(&mut out, filter);
        index(Level::Filter, &IndexEntry { handle, ..entry })
    });
    let top = top.map_or_else(|| index(Level::Top, &entry), <[u8]>::to_vec);
    seal_led_to(&mut out, &top);
    let dictionary = dictionary.map(|dictionary| append(&mut out, dictionary));
    let top_index = append(&mut out, &top);
    let filter_index = filter.map(|filter| append(&mut out, &filter));
    let properties = append(&mut out, &[]);
    let offset = out.len() as u64;
    Footer { properties, top_index, filter_index, dictionary }.encode(ID, offset, &mut out);
    out
}

/// Appends a block under a checksum that holds.
fn append(out: &mut Vec<u8>, block: &[u8]) -> Handle {
    let start = out.len();
    out.extend_from_slice(block);
    seal_plain(out, start, ID, start as u64);
    Handle { offset: start as u64, len: (out.len() - start) as u32 }
}

/// The figures of a data block as far as it can be read, and a separator behind its last key.
fn figures(block: &[u8]) -> (BlockStats, Vec<u8>) {
    let mut stats = BlockStats::NONE;
    let mut last = Vec::new();
    let parsed = DataBlock::parse(Bytes::copy_from_slice(block)).ok();
    let mut next = parsed.as_ref().and_then(|block| block.first().ok());
    while let (Some(block), Some(record)) = (&parsed, next) {
        let mut key = Vec::new();
        block.push_row(&record, &mut key);
        let _ = block.push_column(&record, &mut key);
        encode_suffix(record.timestamp, record.seq, record.origin, record.kind, &mut key);
        let Ok(view) = KeyView::parse(&key) else { break };
        stats.add(view);
        last = key;
        next = block.after(&record).ok().flatten().filter(|_| stats.records < STEPS_MAX as u64);
    }
    (stats, separator(&last, None))
}

/// Seals the partition that the first entry of a top-level index leads to, where that is in `out`, and the data block that the first of its
/// entries leads to.
fn seal_led_to(out: &mut [u8], top: &[u8]) {
    let mut index = top.to_vec();
    for level in [Level::Top, Level::Partition] {
        let first = IndexBlock::parse(Bytes::from(index), level)
            .and_then(|index| index.handle(0, out.len() as u64));
        let Ok(handle) = first else { return };
        let frame = out.get_mut(handle.offset as usize..handle.end() as usize);
        let Some((covered, checksum)) = frame.and_then(|frame| frame.split_last_chunk_mut()) else {
            return;
        };
        *checksum = footer_checksum(covered, ID, handle.offset).to_le_bytes();
        index = covered.split_last().map_or(&[][..], |(_, payload)| payload).to_vec();
    }
}

fn read_file(bytes: Vec<u8>) {
    let files = MemoryFiles::new();
    files.put_contents(Path::new(PATH), bytes);
    if let Ok(reader) = open(&files) {
        let _ = (reader.verify(&mut |_| {}), reader.index_rows(), reader.resident_bytes());
        let mut steps = 0;
        let _ = reader.walk(true, &mut |_| {
            steps += 1;
            if steps < STEPS_MAX { Ok(()) } else { Err(Error::corruption(PATH, 0, "too long")) }
        });
        let _ = reader.properties().tombstones();
        let _ = (reader.pin(), reader.index_memory(), reader.unpin());
        let _ = (reader.approximate_offset(b""), reader.approximate_offset(b"row\x00\x01"));
        let probes = [
            RowProbe::row(b"row"),
            RowProbe::families(b"row", [FamilyId(1)]),
            RowProbe::columns(b"row", [(FamilyId(1), &b"q"[..])]),
        ];
        let _ = walk(&reader, CursorOptions::default());
        for probe in probes {
            let _ = look_up(&reader, &probe);
        }
    }
}

fn open(files: &dyn Files) -> Result<Arc<SstReader>> {
    SstReader::open(files, Path::new(PATH), ID, Arc::new(QuickBlockCache::new(CACHE_BYTES)))
}

fn look_up(reader: &Arc<SstReader>, probe: &RowProbe<'_>) -> Result<()> {
    let mut stage = PointStage::Filter;
    let mut loaded = Vec::new();
    for _ in 0..STEPS_MAX {
        let mut wanted = Vec::new();
        stage.step(reader, probe, &loaded, &mut wanted)?;
        if wanted.is_empty() {
            break;
        }
        let blocks = load_blocks_blocking(wanted.clone());
        for (request, block) in wanted.into_iter().zip(blocks) {
            loaded.push((request, block?));
        }
    }
    let PointStage::Found(found) = stage else { return Ok(()) };
    let mut seen = 0;
    found.row(reader)?.walk(|record| {
        seen += record.qualifier().map_or(0, |q| q.len()) + record.value().len();
        seen < CACHE_BYTES as usize
    })
}

fn walk(reader: &Arc<SstReader>, options: CursorOptions) -> Result<()> {
    let mut cursor = reader.cursor(options);
    let mut step = cursor.seek(b"")?;
    for _ in 0..STEPS_MAX {
        if step == Step::Blocked {
            let mut wanted = Vec::new();
            cursor.wanted(&mut wanted);
            let blocks = load_blocks_blocking(wanted.clone());
            for (request, block) in wanted.iter().zip(blocks) {
                cursor.supply(request, &block?);
            }
            step = cursor.resume()?;
        } else if cursor.entry().is_some() {
            step = cursor.next()?;
        } else {
            break;
        }
    }
    cursor.seek_row_before(b"row\x00\x01").map(drop)
}

/// Whether any decoder finds what it expects: for the test that the targets reach them.
#[cfg(test)]
pub(crate) fn opens(bytes: &[u8]) -> (bool, bool) {
    let files = MemoryFiles::new();
    let accepts = |bytes: Vec<u8>| {
        files.put_contents(Path::new(PATH), bytes);
        open(&files).is_ok_and(|reader| walk(&reader, CursorOptions::default()).is_ok())
    };
    (accepts(bytes.to_vec()), accepts(sealed(bytes)))
}

/// Whether a file that is sealed from these bytes opens, with a coarse filter, whatever its blocks are.
#[cfg(test)]
pub(crate) fn sealed_opens(bytes: &[u8]) -> bool {
    let files = MemoryFiles::new();
    files.put_contents(Path::new(PATH), sealed(bytes));
    open(&files).is_ok_and(|reader| reader.coarse().is_some())
}

/// Whether all of a file of a data block and a partition opens: see [`sealed_blocks`].
#[cfg(test)]
pub(crate) fn blocks_open(bytes: &[u8]) -> bool {
    let files = MemoryFiles::new();
    files.put_contents(Path::new(PATH), sealed_blocks(bytes));
    open(&files).is_ok_and(|reader| {
        let read = walk(&reader, CursorOptions::default());
        let wrong = reader.verify(&mut |_| {}).unwrap_err();
        // The properties are none: all else is as it should be.
        read.is_ok() && wrong.message().ends_with("the properties are wrong")
    })
}

/// Inputs of [`sealed_blocks`] of one data block each: compressed in each way, with a dictionary and a partition of their own.
#[cfg(test)]
pub(crate) fn valid_blocks() -> Vec<Vec<u8>> {
    let [block, _, _, _] = valid();
    let mut inputs: Vec<_> =
        (0..=choices::METHOD).map(|how| [&[how][..], &block].concat()).collect();
    let dictionary = [&[choices::METHOD | choices::DICTIONARY][..], &block, &block];
    inputs.push(dictionary.concat());
    inputs
}

/// Valid encodings: a data block, an index block, a filter partition and a file.
#[cfg(test)]
pub(crate) fn valid() -> [Vec<u8>; 4] {
    use super::FilterKind;
    use super::data_builder::DataBlockBuilder;
    use super::filter::FilterForm;
    use super::{SstOptions, SstWriter};
    use crate::cell::{Kind, encode_key};

    let files = MemoryFiles::new();
    let file = files.create(Path::new(PATH)).unwrap();
    let options = SstOptions { block_bytes: 300, index_partition_bytes: 200, ..Default::default() };
    let mut writer = SstWriter::new(file, Path::new(PATH), ID, options, 0);
    let mut block = DataBlockBuilder::new();
    let mut index = IndexBuilder::new(Level::Top);
    for n in 0..60u64 {
        let (row, qualifier) = (format!("row{:02}", n / 3), format!("q{}", n % 3));
        let mut key = Vec::new();
        let family = FamilyId(1);
        encode_key(row.as_bytes(), family, Some(qualifier.as_bytes()), 9, n, Kind::Value, &mut key);
        let view = KeyView::parse(&key).unwrap();
        block.add(view, b"value");
        writer.add(view, b"value").unwrap();
        let mut stats = BlockStats::NONE;
        stats.add(view);
        let handle = Handle { offset: n * 100, len: 100 };
        index.add(&key, &IndexEntry { handle, stats, data_end: handle.end() });
    }
    writer.finish().unwrap();
    let file = files.contents(Path::new(PATH)).unwrap();
    let form = FilterForm { kind: FilterKind::Fuse8, bits_per_key: 10, partition_bytes: 4096 };
    let filter = form.build(&mut vec![1, 2, 3], &[1], &[2, 3]);
    [block.finished(), index.finish(), filter, file]
}

/// Bytes whose thirds are properties, a top-level index and a filter index: see [`sealed`].
#[cfg(test)]
pub(crate) fn valid_thirds() -> Vec<u8> {
    use super::frame::TRAILER_LEN;
    use crate::codec::{put_bytes, put_u64};

    let [_, top, _, _] = valid();
    let mut filters = top.clone();
    filters[0] = Level::Filter as u8;
    let mut properties = vec![6, 1, 9];
    // The frame of the top-level index is a coarse filter as well as any other.
    let frame = (top.len() + TRAILER_LEN) as u64;
    for tag in [25, 26] {
        let mut field = Vec::new();
        put_u64(&mut field, frame);
        put_u64(&mut properties, tag);
        put_bytes(&mut properties, &field);
    }
    // An unknown tag takes up the rest, with a length of two bytes.
    properties.push(99);
    let rest = top.len() - properties.len() - 2;
    put_u64(&mut properties, rest as u64);
    properties.resize(top.len(), 0);
    [properties, top, filters].concat()
}

/// Bytes of a file of [`misled`] whose footer is as it should be.
#[cfg(test)]
pub(crate) fn valid_misled() -> Vec<u8> {
    [&[0; HANDLES_BYTES][..], &valid_thirds()].concat()
}

/// Whether it opens, with a coarse filter; and does not where the top-level index is said to be elsewhere.
#[cfg(test)]
pub(crate) fn misled_opens(bytes: &[u8]) -> bool {
    let opens = |bytes: &[u8]| {
        let files = MemoryFiles::new();
        files.put_contents(Path::new(PATH), misled(bytes));
        open(&files).is_ok_and(|reader| reader.coarse().is_some())
    };
    let mut elsewhere = bytes.to_vec();
    elsewhere[16] ^= 1;
    opens(bytes) && !opens(&elsewhere)
}

/// Whether the block decoders take these.
#[cfg(test)]
pub(crate) fn parses([data, index, filter]: [&[u8]; 3]) -> [bool; 3] {
    let bytes = Bytes::copy_from_slice;
    [
        DataBlock::parse(bytes(data)).is_ok(),
        IndexBlock::parse(bytes(index), Level::Top).is_ok(),
        FilterBlock::parse(bytes(filter)).is_ok(),
    ]
}
