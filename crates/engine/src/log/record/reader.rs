//! Reads a record file in order, and tells a torn tail from damage (see the module above).
//!
//! Guarantees: memory is bounded by one chunk and one record; no length is believed before its header
//! verified and the file was seen to be long enough; no input makes it panic.

use std::sync::Arc;

use bytes::Bytes;
use xxhash_rust::xxh3::Xxh3;

use super::{
    ADVICE, FILE_HEADER_BYTES, FORMAT_VERSION, FileHeader, Header, Magic, RECORD_HEADER_BYTES,
    Record, digest, digest_seed,
};
use crate::error::{Error, Result};
use crate::io::RandomFile;

/// Bytes read at once. Smaller costs system calls, larger memory.
const CHUNK_BYTES: u64 = 1 << 20;

/// Bytes of a payload that is copied out of its chunk, at most.
const COPIED_BYTES_MAX: u64 = 2 * CHUNK_BYTES;

/// What the reader knows about a file's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tail {
    /// The file was being written when its process may have ended: its tail may be torn.
    MayBeTorn,
    /// The file was completed and synced: every unreadable byte is damage.
    Sealed,
}

/// Where a file ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TailEnd {
    /// Bytes of the file up to the end of its last record; 0 if not even the header is whole. The owner
    /// cuts the file here.
    pub valid_len: u64,
    /// Bytes after it that are not zeros laid out ahead: 0 for a clean end.
    pub torn_bytes: u64,
}

/// Reads at any offset through one buffered chunk.
#[derive(Debug)]
pub(super) struct Window {
    pub(super) file: Arc<dyn RandomFile>,
    pub(super) file_id: u64,
    pub(super) file_len: u64,
    start: u64,
    chunk: Bytes,
}

impl Window {
    pub(super) fn new(file: Arc<dyn RandomFile>, file_id: u64) -> Result<Self> {
        let file_len = file.len()?;
        Ok(Self { file, file_id, file_len, start: 0, chunk: Bytes::new() })
    }

    pub(super) fn corruption(&self, offset: u64, what: impl std::fmt::Display) -> Error {
        Error::corruption(self.file.path().display(), offset, what)
    }

    /// `len` bytes at `offset`; fewer at the end of the file. `len` must be bounded by the caller.
    pub(super) fn bytes(&mut self, offset: u64, len: u64) -> Result<Bytes> {
        let len = len.min(self.file_len.saturating_sub(offset));
        let inside = |start: u64, chunk: &Bytes| {
            let at = usize::try_from(offset.checked_sub(start)?).ok()?;
            let end = at.checked_add(usize::try_from(len).ok()?)?;
            (end <= chunk.len()).then(|| chunk.slice(at..end))
        };
        if let Some(bytes) = inside(self.start, &self.chunk) {
            return Ok(bytes);
        }
        let want = len.max(CHUNK_BYTES).min(self.file_len.saturating_sub(offset));
        self.chunk = self.file.read_at(offset, want as usize)?;
        self.start = offset;
        inside(self.start, &self.chunk)
            .ok_or_else(|| self.corruption(offset, "a read returned fewer bytes than asked for"))
    }

    /// The record header at `offset`, if one verifies there. Its record may reach past the file's end.
    pub(super) fn header(&mut self, offset: u64) -> Result<Option<Header>> {
        let (file_id, file_len) = (self.file_id, self.file_len);
        let bytes = self.bytes(offset, RECORD_HEADER_BYTES)?;
        Ok(Header::decode(&bytes, file_id, offset, file_len))
    }

    /// The record at `offset`, if it verifies.
    pub(super) fn record(&mut self, offset: u64) -> Result<Option<Record>> {
        let Some(header) = self.header(offset)? else { return Ok(None) };
        if header.end(offset) > self.file_len {
            return Ok(None);
        }
        let payload = self.bytes(offset + RECORD_HEADER_BYTES, header.length)?;
        if digest(self.file_id, offset, &payload) != header.digest {
            return Ok(None);
        }
        // Some stay for as long as the process runs: a row key of a manifest would keep the whole chunk. One that is
        // larger has it to itself, and it is too large to be memory that is lent.
        let is_alone = payload.len() as u64 > COPIED_BYTES_MAX;
        let payload = if is_alone { payload } else { Bytes::copy_from_slice(&payload) };
        Ok(Some(Record { offset, durable: header.durable, payload }))
    }

    /// Whether the payload under `header` verifies, in pieces.
    fn payload_verifies(&mut self, offset: u64, header: Header) -> Result<bool> {
        let end = header.end(offset);
        if end > self.file_len {
            return Ok(false);
        }
        let mut hash = Xxh3::with_seed(digest_seed(self.file_id, offset));
        let mut at = offset + RECORD_HEADER_BYTES;
        while at < end {
            let piece = self.bytes(at, (end - at).min(CHUNK_BYTES))?;
            hash.update(&piece);
            at += piece.len() as u64;
        }
        Ok(hash.digest() == header.digest)
    }

    /// The first record at or after `offset` that verifies.
    pub(super) fn find(&mut self, mut offset: u64) -> Result<Option<(u64, Header)>> {
        while offset + RECORD_HEADER_BYTES <= self.file_len {
            match self.header(offset)? {
                Some(header) if self.payload_verifies(offset, header)? => {
                    return Ok(Some((offset, header)));
                }
                // The header can be believed: what is damaged is the payload, and what lies in it is
                // a user's data.
                Some(header) => offset = header.end(offset),
                None => offset += 1,
            }
        }
        Ok(None)
    }

    /// Whether some record after `offset` was written when `offset` was known to be synced.
    fn has_witness(&mut self, offset: u64) -> Result<bool> {
        let mut at = match self.header(offset)? {
            Some(header) => header.end(offset),
            None => offset + 1,
        };
        while let Some((found, header)) = self.find(at)? {
            if header.durable > offset {
                return Ok(true);
            }
            at = header.end(found);
        }
        Ok(false)
    }

    /// The bytes from `offset` on, without the zeros at their end.
    pub(super) fn bytes_before_zeros(&mut self, offset: u64) -> Result<u64> {
        let mut at = offset;
        let mut count = 0;
        while at < self.file_len {
            let piece = self.bytes(at, CHUNK_BYTES)?;
            if let Some(last) = piece.iter().rposition(|b| *b != 0) {
                count = at - offset + last as u64 + 1;
            }
            at += piece.len() as u64;
        }
        Ok(count)
    }

    /// The file's header: its id where it verifies. A newer version is an error.
    pub(super) fn file_header(&mut self, magic: Magic) -> Result<Option<u64>> {
        let bytes = self.bytes(0, FILE_HEADER_BYTES)?;
        match FileHeader::decode(&bytes).filter(|header| header.magic == magic) {
            Some(header) if header.version == u64::from(FORMAT_VERSION) => Ok(Some(header.file_id)),
            Some(FileHeader { version, .. }) => {
                Err(Error::newer_version(self.file.path().display(), version, FORMAT_VERSION))
            }
            None => Ok(None),
        }
    }
}

/// A record file being read.
#[derive(Debug)]
pub struct RecordReader {
    window: Window,
    tail: Tail,
    at: u64,
    end: Option<TailEnd>,
}

impl RecordReader {
    /// Opens a file whose header must have this magic and id. A header that does not verify is judged
    /// like a record: damage, or a tail torn at 0.
    pub fn open(file: Arc<dyn RandomFile>, magic: Magic, file_id: u64, tail: Tail) -> Result<Self> {
        Self::open_to(file, magic, file_id, tail, u64::MAX)
    }

    /// The same of a file that is taken to end at `end`, behind a record, if it does not end before.
    pub fn open_to(
        file: Arc<dyn RandomFile>,
        magic: Magic,
        file_id: u64,
        tail: Tail,
        end: u64,
    ) -> Result<Self> {
        let mut window = Window::new(file, file_id)?;
        window.file_len = window.file_len.min(end);
        let mut reader = Self { window, tail, at: FILE_HEADER_BYTES, end: None };
        match reader.window.file_header(magic)? {
            Some(id) if id == file_id => {}
            Some(id) => {
                let what = format_args!(
                    "the header belongs to file {id:016x}, the name to {file_id:016x}: was the file \
                     copied or renamed?"
                );
                return Err(reader.window.corruption(0, what));
            }
            None => reader.finish(0)?,
        }
        Ok(reader)
    }

    /// The next record; `None` at the end, of which [`Self::end`] then tells. Damage is `Corruption`
    /// with the file, the offset and what to do.
    pub fn next_record(&mut self) -> Result<Option<Record>> {
        if self.end.is_some() {
            return Ok(None);
        }
        match self.window.record(self.at)? {
            Some(record) => {
                self.at += RECORD_HEADER_BYTES + record.payload.len() as u64;
                Ok(Some(record))
            }
            None => self.finish(self.at).map(|()| None),
        }
    }

    /// Where the file ended, once [`Self::next_record`] has returned `None`.
    pub fn end(&self) -> Option<TailEnd> {
        self.end
    }

    /// Whether what follows the last record is the beginning of something that says it is longer than
    /// the file: the mark of a write that was cut, where other bytes are the mark of damage. False before
    /// the end was reached.
    pub fn cut_short(&mut self) -> Result<bool> {
        let Some(TailEnd { valid_len: at, .. }) = self.end else { return Ok(false) };
        let file_len = self.window.file_len;
        if at < FILE_HEADER_BYTES {
            return Ok(file_len < FILE_HEADER_BYTES);
        }
        if file_len.saturating_sub(at) < RECORD_HEADER_BYTES {
            return Ok(at < file_len);
        }
        Ok(self.window.header(at)?.is_some_and(|header| header.end(at) > file_len))
    }

    /// Goes on at `offset`, where a record starts, or where the last one ended.
    pub fn seek(&mut self, offset: u64) {
        self.at = offset.max(FILE_HEADER_BYTES);
    }

    /// The offset of the next record: how far the reader is.
    pub fn position(&self) -> u64 {
        self.at
    }

    /// Bytes of the file when it was opened.
    pub fn file_len(&self) -> u64 {
        self.window.file_len
    }

    /// No record verifies at `offset`: a clean end, a torn tail, or damage.
    fn finish(&mut self, offset: u64) -> Result<()> {
        let torn_bytes = self.window.bytes_before_zeros(offset)?;
        // A file without its header was complete once if it is sealed, however empty it is now.
        let headless = offset < FILE_HEADER_BYTES;
        let damaged = match self.tail {
            Tail::Sealed => torn_bytes > 0 || headless,
            Tail::MayBeTorn => torn_bytes > 0 && self.window.has_witness(offset)?,
        };
        if damaged {
            let what = if headless { "the file header is" } else { "a record is" };
            return Err(self.window.corruption(
                offset,
                format_args!("{what} damaged although it was synced to disk; {ADVICE}"),
            ));
        }
        self.end = Some(TailEnd { valid_len: offset, torn_bytes });
        Ok(())
    }
}
