//! The frame of every block on disk: compression and checksum.
//!
//! ```text
//! payload | compression u8 | checksum u64 LE
//!
//! payload:     0 none                    the block itself
//!              1 LZ4 (block format)      u32 LE bytes of the block | compressed
//!              2 zstd                    u32 LE bytes of the block | compressed
//!              3 zstd, SST's dictionary  u32 LE bytes of the block | compressed
//! checksum:    xxh3-64 of payload and compression byte, seeded with mix(file id, offset of the frame)
//! ```
//!
//! The seed makes a block that was read from the wrong place, or from the wrong file, fail as surely as a
//! flipped bit does. The checksum is verified before anything is decompressed, so a decompressor sees only
//! bytes that a writer wrote.

use std::cell::RefCell;

use bytes::Bytes;
use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};
use zstd::bulk::Compressor as ZstdCompressor;
use zstd::dict::DecoderDictionary;
use zstd::zstd_safe::DCtx;

use super::{BLOCK_BYTES_MAX, Compression, FileId};
use crate::codec::{Malformed, Parsed, Reader};
use crate::random::mix64;

/// Bytes after the payload.
pub(crate) const TRAILER_LEN: usize = 1 + 8;

/// Bytes of the block's size before compressed bytes.
const SIZE_LEN: usize = 4;

/// Bytes that LZ4 makes of one, at most: a size beyond is none that a writer wrote. All of it would be zeroed before the first byte is
/// decompressed.
const LZ4_RATIO_MAX: usize = 255;

/// Bytes of the largest frame.
pub(crate) const FRAME_BYTES_MAX: usize = BLOCK_BYTES_MAX + SIZE_LEN + TRAILER_LEN;

/// Bytes of the compression buffer that stay allocated from block to block; a huge value's do not.
const SCRATCH_KEPT_BYTES: usize = 1 << 20;

/// Of a huge block, how many pieces of how many bytes are compressed first, 64 KiB in all. Less would tell less; more would take longer than it saves.
const SAMPLE_PIECES: usize = 4;
const SAMPLE_PIECE_BYTES: usize = 16 << 10;

/// A block that keeps more than this part of its size is stored as it is: see [`Framer::pack`].
pub(super) const WORTH_RATIO: f64 = 7.0 / 8.0;

/// How the payload is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Method {
    None = 0,
    Lz4 = 1,
    Zstd = 2,
    ZstdDict = 3,
}

/// The checksum of what a footer of `file` at `offset` has before it.
pub(crate) fn footer_checksum(covered: &[u8], file: FileId, offset: u64) -> u64 {
    xxh3_64_with_seed(covered, checksum_seed(file, offset))
}

/// Whether a footer that was found at `offset` of `file` is whole, and that file's: `stored_file` is whose it says it is.
pub(crate) fn verify_footer(
    covered: &[u8],
    checksum: u64,
    stored_file: FileId,
    file: FileId,
    offset: u64,
) -> Parsed<()> {
    if footer_checksum(covered, file, offset) == checksum {
        return Ok(());
    }
    Err(Malformed::whole(if stored_file == file {
        "footer checksum mismatch"
    } else {
        "the footer is that of another file, or damaged"
    }))
}

/// The version of a footer that says a newer one than `known`, found at `offset` of `file`; `None` of one that is damaged: a flipped
/// bit is no version. In every version a footer has as many bytes, and the last of them are
/// `file id u64 | version u32 | 0 u32 | checksum u64 | magic`, the checksum over all before it. The zeros are read with the version, so
/// that a later one may use them.
pub(crate) fn newer_version(
    footer: &[u8],
    magic: [u8; 8],
    known: u32,
    file: FileId,
    offset: u64,
) -> Option<u64> {
    let (covered, end) = footer.split_at_checked(footer.len().checked_sub(16)?)?;
    let mut end = Reader::new(end);
    let checksum = end.fixed_u64().ok()?;
    let mut last = Reader::at(covered, covered.len().checked_sub(16)?);
    let (stored_file, version) = (last.fixed_u64().ok()?, last.fixed_u64().ok()?);
    let whole = end.take(magic.len()).ok()? == magic.as_slice()
        && verify_footer(covered, checksum, stored_file, file, offset).is_ok();
    (whole && version > u64::from(known)).then_some(version)
}

/// The seed of the checksum of what lies at `offset` of file `file`.
pub(crate) fn checksum_seed(file: FileId, offset: u64) -> u64 {
    mix64(file.wrapping_add(0x9E37_79B9_7F4A_7C15) ^ mix64(!offset))
}

/// The bytes of the frame at the beginning of `bytes`, which lie at `offset` of `file`: the shortest whose checksum is right.
pub(super) fn frame_len(bytes: &[u8], file: FileId, offset: u64) -> Option<usize> {
    let mut checksum = Xxh3::with_seed(checksum_seed(file, offset));
    let mut summed = 0;
    for (at, trailer) in bytes.windows(TRAILER_LEN).enumerate() {
        let (method, stored) = trailer.split_first()?;
        // Most bytes are none that a method has; and zeros are what lies between frames.
        if *method > Method::ZstdDict as u8 || stored.iter().all(|byte| *byte == 0) {
            continue;
        }
        checksum.update(bytes.get(summed..=at)?);
        summed = at + 1;
        if checksum.digest().to_le_bytes() == stored {
            return Some(at + TRAILER_LEN);
        }
    }
    None
}

/// How a block is about to be stored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Packed {
    method: Method,
    len: usize,
}

impl Packed {
    /// Bytes of the frame.
    pub(crate) fn frame_len(self) -> usize {
        let size = if self.method == Method::None { 0 } else { SIZE_LEN };
        size + self.len + TRAILER_LEN
    }
}

/// A frame in its parts, one behind the other: head, payload, trailer.
#[derive(Debug)]
pub(crate) struct Apart<'a> {
    /// Of a compressed block.
    size: Option<[u8; SIZE_LEN]>,
    pub(crate) payload: &'a [u8],
    pub(crate) trailer: [u8; TRAILER_LEN],
}

impl Apart<'_> {
    /// What lies before the payload.
    pub(crate) fn head(&self) -> &[u8] {
        self.size.as_ref().map_or(&[], |size| size.as_slice())
    }
}

/// Pieces of a block, from its beginning to its end, that tell whether it shrinks.
fn sample_of(block: &[u8]) -> Vec<u8> {
    let apart = block.len().saturating_sub(SAMPLE_PIECE_BYTES) / (SAMPLE_PIECES - 1);
    let pieces = (0..SAMPLE_PIECES).filter_map(|at| {
        let start = at * apart;
        block.get(start..block.len().min(start + SAMPLE_PIECE_BYTES))
    });
    pieces.flatten().copied().collect()
}

/// Makes frames. Keeps its compression state between blocks.
pub(crate) struct Framer {
    compression: Compression,
    zstd: Option<ZstdCompressor<'static>>,
    dictionary: Option<ZstdCompressor<'static>>,
    scratch: Vec<u8>,
}

impl Framer {
    /// For the data blocks of one SST.
    pub(crate) fn new(compression: Compression) -> Self {
        let zstd = match compression {
            Compression::Zstd(level) | Compression::ZstdDict(level) => {
                ZstdCompressor::new(level).ok()
            }
            Compression::None | Compression::Lz4 => None,
        };
        Self { compression, zstd, dictionary: None, scratch: Vec::new() }
    }

    /// Uses `dictionary` from now on; false where zstd does not take it, and plain zstd stays.
    pub(super) fn set_dictionary(&mut self, dictionary: &[u8]) -> bool {
        if let Compression::ZstdDict(level) = self.compression {
            self.dictionary = ZstdCompressor::with_dictionary(level, dictionary).ok();
        }
        self.dictionary.is_some()
    }

    /// How data blocks are compressed.
    pub(crate) fn data_method(&self) -> Method {
        match self.compression {
            Compression::None => Method::None,
            Compression::Lz4 => Method::Lz4,
            Compression::Zstd(_) => Method::Zstd,
            Compression::ZstdDict(_) if self.dictionary.is_some() => Method::ZstdDict,
            Compression::ZstdDict(_) => Method::Zstd,
        }
    }

    /// Compresses `block`, so that its size is known before its place: [`Self::put`] takes it from here. A
    /// block that does not shrink by an eighth is stored as it is: less would not pay for decompressing it at
    /// every read.
    pub(crate) fn pack(&mut self, block: &[u8], method: Method) -> Packed {
        let worth = block.len().saturating_sub(block.len() / 8 + SIZE_LEN);
        match self.compress(block, method) {
            Some(len) if len <= worth => Packed { method, len },
            _ => Packed { method: Method::None, len: block.len() },
        }
    }

    /// The same of a block that may be huge: one of which a sample does not shrink is stored as it is, without memory for what comes
    /// of compressing all of it.
    pub(crate) fn pack_sampled(&mut self, block: &[u8], method: Method) -> Packed {
        let plain = Packed { method: Method::None, len: block.len() };
        if method == Method::None {
            return plain;
        }
        let sample = sample_of(block);
        if self.pack(&sample, method).method == Method::None {
            plain
        } else {
            self.pack(block, method)
        }
    }

    /// The frame of `block`, just packed, to lie at `offset` of `file`, in its parts.
    pub(crate) fn apart<'a>(
        &'a self,
        block: &'a [u8],
        packed: Packed,
        file: FileId,
        offset: u64,
    ) -> Apart<'a> {
        let is_plain = packed.method == Method::None;
        let size = (!is_plain).then(|| (block.len() as u32).to_le_bytes());
        let payload =
            if is_plain { block } else { self.scratch.get(..packed.len).unwrap_or_default() };
        let mut frame = Apart { size, payload, trailer: [0; TRAILER_LEN] };
        let method = [packed.method as u8];
        let mut checksum = Xxh3::with_seed(checksum_seed(file, offset));
        for covered in [frame.head(), payload, &method] {
            checksum.update(covered);
        }
        let (first, rest) = frame.trailer.split_at_mut(method.len());
        first.copy_from_slice(&method);
        rest.copy_from_slice(&checksum.digest().to_le_bytes());
        frame
    }

    /// Gives back what a huge block needed.
    pub(crate) fn trim(&mut self) {
        if self.scratch.capacity() > SCRATCH_KEPT_BYTES {
            self.scratch = Vec::new();
        }
    }

    /// Appends the frame of `block`, just packed, to lie at `offset` of `file`.
    pub(crate) fn put(
        &mut self,
        block: &[u8],
        packed: Packed,
        file: FileId,
        offset: u64,
        out: &mut Vec<u8>,
    ) {
        let start = out.len();
        if packed.method == Method::None {
            out.extend_from_slice(block);
        } else {
            out.extend_from_slice(&(block.len() as u32).to_le_bytes());
            out.extend_from_slice(self.scratch.get(..packed.len).unwrap_or_default());
        }
        seal(out, start, packed.method, file, offset);
        self.trim();
    }

    /// Both at once.
    #[cfg(test)]
    pub(super) fn frame(
        &mut self,
        block: &[u8],
        method: Method,
        file: FileId,
        offset: u64,
        out: &mut Vec<u8>,
    ) {
        let packed = self.pack(block, method);
        self.put(block, packed, file, offset, out);
    }

    /// Compresses into the scratch buffer; the length, or `None` where the block is to be stored as it is.
    fn compress(&mut self, block: &[u8], method: Method) -> Option<usize> {
        let scratch = &mut self.scratch;
        let zstd = match method {
            Method::None => return None,
            Method::Lz4 => {
                let needed = lz4_flex::block::get_maximum_output_size(block.len());
                if scratch.len() < needed {
                    scratch.resize(needed, 0);
                }
                return lz4_flex::block::compress_into(block, scratch).ok();
            }
            Method::Zstd => self.zstd.as_mut()?,
            Method::ZstdDict => self.dictionary.as_mut()?,
        };
        scratch.clear();
        scratch.reserve(zstd::zstd_safe::compress_bound(block.len()));
        zstd.compress_to_buffer(block, scratch).ok()
    }
}

/// Makes a frame of the payload that `out` has from `start` on, to lie at `offset` of `file`.
fn seal(out: &mut Vec<u8>, start: usize, method: Method, file: FileId, offset: u64) {
    out.push(method as u8);
    let covered = out.get(start..).unwrap_or_default();
    let checksum = xxh3_64_with_seed(covered, checksum_seed(file, offset));
    out.extend_from_slice(&checksum.to_le_bytes());
}

/// The same of a block that is stored as it is.
pub(super) fn seal_plain(out: &mut Vec<u8>, start: usize, file: FileId, offset: u64) {
    seal(out, start, Method::None, file, offset);
}

/// The block within a frame that was read from `offset` of `file`. Shares the frame's memory where the
/// block is stored as it is, unless `copy` is set (the frame is then a part of a larger buffer that a
/// cached block must not keep alive).
pub(crate) fn open_frame(
    frame: &Bytes,
    file: FileId,
    offset: u64,
    dictionary: Option<&DecoderDictionary<'static>>,
    copy: bool,
) -> Parsed<Bytes> {
    let short = Malformed::whole("a block is shorter than its trailer");
    let payload_len = frame.len().checked_sub(TRAILER_LEN).ok_or(short)?;
    let covered = frame.get(..=payload_len).ok_or(short)?;
    let stored = frame.get(payload_len + 1..).and_then(|b| b.try_into().ok()).ok_or(short)?;
    if xxh3_64_with_seed(covered, checksum_seed(file, offset)) != u64::from_le_bytes(stored) {
        return Err(Malformed::whole("checksum mismatch"));
    }
    let payload = frame.get(..payload_len).ok_or(short)?;
    let method = match covered.last() {
        Some(0) if copy => return Ok(Bytes::copy_from_slice(payload)),
        Some(0) => return Ok(frame.slice(..payload_len)),
        Some(1) => Method::Lz4,
        Some(2) => Method::Zstd,
        Some(3) => Method::ZstdDict,
        _ => return Err(Malformed::whole("unknown compression")),
    };
    let (size, compressed) = payload.split_first_chunk::<SIZE_LEN>().ok_or(short)?;
    let size = u32::from_le_bytes(*size) as usize;
    let claims_too_much =
        method == Method::Lz4 && size > compressed.len().saturating_mul(LZ4_RATIO_MAX);
    if size > BLOCK_BYTES_MAX || claims_too_much {
        return Err(Malformed::whole("a block is larger than blocks may be"));
    }
    decompress(compressed, size, method, dictionary).map(Bytes::from)
}

thread_local! {
    /// One zstd context per thread: making one costs more than decompressing a block.
    static ZSTD: RefCell<Option<DCtx<'static>>> = const { RefCell::new(None) };
}

fn decompress(
    compressed: &[u8],
    size: usize,
    method: Method,
    dictionary: Option<&DecoderDictionary<'static>>,
) -> Parsed<Vec<u8>> {
    let bad = Malformed::whole("a block does not decompress");
    if method == Method::Lz4 {
        let mut out = vec![0; size];
        let len = lz4_flex::block::decompress_into(compressed, &mut out).map_err(|_| bad)?;
        return if len == size { Ok(out) } else { Err(bad) };
    }
    let mut out = Vec::with_capacity(size);
    let len = ZSTD.with_borrow_mut(|context| {
        if context.is_none() {
            *context = DCtx::try_create();
        }
        let context = context.as_mut().ok_or(Malformed::whole("no memory for zstd"))?;
        if method == Method::ZstdDict {
            let dictionary = dictionary.ok_or(Malformed::whole("the SST has no dictionary"))?;
            context
                .decompress_using_ddict(&mut out, compressed, dictionary.as_ddict())
                .map_err(|_| bad)
        } else {
            context.decompress(&mut out, compressed).map_err(|_| bad)
        }
    })?;
    if len == size && out.len() == size { Ok(out) } else { Err(bad) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(compression: Compression, block: &[u8]) -> Bytes {
        let mut framer = Framer::new(compression);
        let mut out = Vec::new();
        framer.frame(block, framer.data_method(), 7, 4096, &mut out);
        Bytes::from(out)
    }

    #[test]
    fn a_block_opens_only_at_its_own_file_and_offset() {
        for compression in [Compression::None, Compression::Lz4, Compression::Zstd(3)] {
            let block = b"the same words again, the same words again, the same words".repeat(20);
            let frame = framed(compression, &block);
            assert_eq!(open_frame(&frame, 7, 4096, None, false).unwrap(), block);
            assert!(open_frame(&frame, 8, 4096, None, false).is_err(), "wrong file");
            assert!(open_frame(&frame, 7, 4097, None, false).is_err(), "wrong offset");
            assert!(open_frame(&frame.slice(1..), 7, 4096, None, false).is_err(), "cut");
            if compression != Compression::None {
                assert!(frame.len() < block.len() / 2, "{compression:?}");
            }
        }
    }

    #[test]
    fn a_block_that_does_not_shrink_is_stored_as_it_is() {
        let mut x = 1u64;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            x = mix64(x.wrapping_add(0x9E37_79B9_7F4A_7C15));
            x as u8
        })
        .take(4000)
        .collect();
        let frame = framed(Compression::Zstd(3), &noise);
        assert_eq!(frame.len(), noise.len() + TRAILER_LEN);
        assert_eq!(open_frame(&frame, 7, 4096, None, false).unwrap(), noise);
    }

    #[test]
    fn a_frame_with_a_lying_size_is_refused() {
        for (size, method) in [
            (u32::MAX, Method::Zstd),
            (u32::MAX, Method::Lz4),
            (BLOCK_BYTES_MAX as u32, Method::Lz4),
            (3 * 255 + 1, Method::Lz4),
        ] {
            let mut frame = size.to_le_bytes().to_vec();
            frame.extend_from_slice(b"xyz");
            seal(&mut frame, 0, method, 7, 0);
            assert_eq!(
                open_frame(&Bytes::from(frame), 7, 0, None, false),
                Err(Malformed::whole("a block is larger than blocks may be"))
            );
        }
    }

    #[test]
    fn a_block_that_lz4_makes_least_of_opens() {
        for len in [1 << 16, 1 << 20] {
            let block = vec![7; len];
            let frame = framed(Compression::Lz4, &block);
            assert!(frame.len() < len / 200);
            assert_eq!(open_frame(&frame, 7, 4096, None, false).unwrap(), block);
        }
    }
}
