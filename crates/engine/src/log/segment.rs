//! Segments of the local log: their names, how one is started, and how one is read.
//!
//! ```text
//! <16 hex digits>.log   a record file with magic TEPUILOG, whose file id is the number in its name
//!
//! | header | opening: previous segment, its bytes | batch | batch | marker | batch | ...
//! ```
//!
//! A segment is sealed (completed and synced) before the next one's file is created. So only the last
//! can have a torn tail, and the *opening* of each says how long the one before it was: a sealed
//! segment that lost its end, even exactly between two records, does not go unnoticed. One that is missing as a whole
//! does not either ([`super::present`]).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::batch::{LogRecord, decode_record, encode_opening};
use super::record::{
    ADVICE, FILE_HEADER_BYTES, Magic, RECORD_HEADER_BYTES, Record, RecordReader, RecordWriter,
    Tail, TailEnd,
};
use crate::error::{Error, ErrorKind, Result};
use crate::io::{Files, RandomFile};

/// The magic of segments.
pub const MAGIC: Magic = *b"TEPUILOG";

/// The file name of a segment.
pub fn segment_name(id: u64) -> String {
    format!("{id:016x}.log")
}

/// The number of the segment with this file name, if it is one.
pub fn parse_segment_name(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".log")?;
    let id = u64::from_str_radix(digits, 16).ok()?;
    (segment_name(id) == name).then_some(id)
}

/// The numbers and lengths of the segments in a directory, ascending.
pub fn list_segments(files: &dyn Files, dir: &Path) -> Result<Vec<(u64, u64)>> {
    let mut segments: Vec<(u64, u64)> = files
        .list(dir)?
        .into_iter()
        .filter(|entry| !entry.is_dir)
        .filter_map(|entry| Some((parse_segment_name(&entry.name)?, entry.len)))
        .collect();
    segments.sort_unstable();
    Ok(segments)
}

/// The error of a step whose sync may be what failed: where that lacked space, another proves nothing.
pub(super) fn perhaps_of_a_sync(error: Error) -> Error {
    if error.kind() == ErrorKind::NoSpace { error.of_unknown_outcome() } else { error }
}

/// Free bytes of a directory's disk; `None` where nobody knows.
pub(super) fn free_bytes(files: &dyn Files, dir: &Path) -> Option<u64> {
    files.disk_space(dir).ok().flatten().map(|space| space.free)
}

/// Whether a segment of so many bytes without a readable opening was never begun: what is written behind that comes after it is durable.
pub(crate) fn was_never_begun(file_len: u64) -> bool {
    file_len <= opening_end()
}

/// Whether one of so many bytes may have an opening.
pub(crate) fn has_opening(file_len: u64) -> bool {
    file_len >= opening_end()
}

/// Where the opening ends.
fn opening_end() -> u64 {
    FILE_HEADER_BYTES + RECORD_HEADER_BYTES + encode_opening(0, 0).len() as u64
}

/// A segment and its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Predecessor {
    pub(super) id: u64,
    pub(super) bytes: u64,
}

/// Creates a segment: its header, opening and name are durable when this returns. It has space for `reserve_bytes`, or where the disk
/// lacks that, for none beyond the opening. Errors are [in doubt](Error::is_in_doubt) where the directory may not be synced again.
pub(super) fn create_segment(
    files: &dyn Files,
    dir: &Path,
    id: u64,
    previous: Option<Predecessor>,
    reserve_bytes: u64,
) -> Result<RecordWriter> {
    let path = dir.join(segment_name(id));
    let mut writer = RecordWriter::create(files, &path, MAGIC, id)?;
    let fits = free_bytes(files, dir).is_none_or(|free| free >= reserve_bytes);
    let reserved = if fits { writer.reserve(reserve_bytes) } else { Ok(()) };
    if reserved.is_err_and(|error| error.kind() == ErrorKind::NoSpace) {
        // What there was of it is the file's by now, and others need it.
        files.truncate(&path, 0)?;
    }
    let previous = previous.unwrap_or(Predecessor { id: 0, bytes: 0 });
    writer.append(&encode_opening(previous.id, previous.bytes))?;
    writer.sync()?;
    files.sync_dir(dir).map_err(perhaps_of_a_sync)?;
    Ok(writer)
}

/// A record of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentRecord {
    /// The offset of the record in the file.
    pub offset: u64,
    /// Bytes of the file that were known to be synced when it was written.
    pub durable: u64,
    /// What it says.
    pub record: LogRecord,
}

/// A segment being read.
#[derive(Debug)]
pub struct SegmentReader {
    path: PathBuf,
    reader: RecordReader,
}

impl SegmentReader {
    /// Opens segment `id` of a directory. One that may be torn, which an earlier process was writing, as the device has it.
    pub fn open(files: &dyn Files, dir: &Path, id: u64, tail: Tail) -> Result<Self> {
        let path = dir.join(segment_name(id));
        let file = match tail {
            Tail::Sealed => files.open(&path)?,
            Tail::MayBeTorn => files.open_left(&path)?,
        };
        Self::over(file, path, id, tail, u64::MAX)
    }

    /// Opens one of this process, taken to end at `end`, behind a record, if it does not end before.
    pub(crate) fn open_to(
        files: &dyn Files,
        dir: &Path,
        id: u64,
        tail: Tail,
        end: u64,
    ) -> Result<Self> {
        let path = dir.join(segment_name(id));
        Self::over(files.open(&path)?, path, id, tail, end)
    }

    fn over(
        file: Arc<dyn RandomFile>,
        path: PathBuf,
        id: u64,
        tail: Tail,
        end: u64,
    ) -> Result<Self> {
        let reader = RecordReader::open_to(file, MAGIC, id, tail, end)?;
        Ok(Self { path, reader })
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The next record; `None` at the end. Errors name the file and the offset.
    pub fn next_record(&mut self) -> Result<Option<SegmentRecord>> {
        let Some(record) = self.reader.next_record()? else { return Ok(None) };
        let (offset, durable) = (record.offset, record.durable);
        let record = decode_record(record.payload).map_err(|e| {
            let (file, what) = (self.path.display(), e.message());
            match e.kind() {
                // Of a newer version: not damage.
                ErrorKind::InvalidArgument => e.context(format_args!("{file}: offset {offset}")),
                _ => Error::corruption(file, offset, format_args!("{what}; {ADVICE}")),
            }
        })?;
        Ok(Some(SegmentRecord { offset, durable, record }))
    }

    /// The next record as it is stored; `None` at the end.
    pub(crate) fn next_stored(&mut self) -> Result<Option<Record>> {
        self.reader.next_record()
    }

    /// Goes on at `offset`, where a record starts.
    pub(crate) fn seek(&mut self, offset: u64) {
        self.reader.seek(offset);
    }

    /// Where the file ended, once [`Self::next_record`] has returned `None`.
    pub fn end(&self) -> Option<TailEnd> {
        self.reader.end()
    }

    /// The offset of the next record.
    pub fn position(&self) -> u64 {
        self.reader.position()
    }

    /// Bytes of the file when it was opened.
    pub fn file_len(&self) -> u64 {
        self.reader.file_len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_sort_as_numbers_do_and_strangers_are_left_alone() {
        assert_eq!(segment_name(0x1f), "000000000000001f.log");
        assert_eq!(parse_segment_name("000000000000001f.log"), Some(0x1f));
        for stranger in ["1f.log", "000000000000001F.log", "000000000000001f.log.old", "x.log", ""]
        {
            assert_eq!(parse_segment_name(stranger), None);
        }
    }
}
