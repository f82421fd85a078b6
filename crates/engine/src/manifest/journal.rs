//! A journal: a file of checksummed records, each synced before its append returns.
//!
//! ```text
//! file:    header | record | record | ...
//! header:  magic 8 bytes | format version u32 | 0 u32 | file id u64 | xxh3 of the 24 bytes before, u64
//! record:  payload length u32 | header check u32 | payload check u64 | payload
//!
//! header check:   low 32 bits of xxh3 of (file id u64 | record offset u64 | payload length u32)
//! payload check:  xxh3 of the payload, seeded with xxh3 of (file id u64 | record offset u64)
//! ```
//!
//! Numbers are little-endian. Both checks cover the file's id and the record's offset, so a record that
//! was copied to another place does not verify there.
//!
//! Guarantees: one append is one record, and it is durable when the append returns. After its sync an
//! empty record, a *marker*, is written behind it, without a sync of its own. Hence a record that
//! is followed by a valid one was durable once: if it does not verify, the file was damaged, and reading
//! fails. A tail that does not verify and has nothing valid behind it is an append that a crash cut
//! short and nobody was told of: it is left out. Who changes anything on the strength of what was read
//! makes it durable first ([`Journal::settle`]): it may be known to the page cache only.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::codec::Reader;
use crate::error::{Error, ErrorKind, Result};
use crate::io::{Files, WritableFile};

/// Bytes of the file header.
pub const FILE_HEADER_BYTES: u64 = 32;

/// Bytes of a record before its payload.
pub const RECORD_HEADER_BYTES: u64 = 16;

/// Bytes of a journal at most. A snapshot of a million SSTs takes about 100 MB; reading a journal takes
/// its size in memory, so a larger one is a mistake, such as a file of another kind.
pub const JOURNAL_BYTES_MAX: u64 = 1 << 30;

/// The version of the framing that this code writes, and the only one that it reads.
const FORMAT_VERSION: u32 = 1;

/// A kind of journal: the first bytes of its files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Magic(pub [u8; 8]);

/// One record of a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Byte of the file where the record starts.
    pub offset: u64,
    /// What was appended.
    pub payload: Bytes,
}

/// How a journal ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tail {
    /// With its last record.
    Clean,
    /// With a record that is shorter than it says; or the file header is, or the file is all zeros.
    Short,
    /// With bytes that do not verify.
    Bad,
}

/// What a journal holds.
#[derive(Debug, Clone)]
pub struct Contents {
    /// The file's id.
    pub id: u64,
    /// The records that verify, in order; none where the first one (or the header) was cut short.
    pub records: Vec<Record>,
    /// Bytes up to the end of the last valid record.
    pub valid_len: u64,
    /// What follows them.
    pub tail: Tail,
}

/// A journal being written.
#[derive(Debug)]
pub struct Journal {
    file: Box<dyn WritableFile>,
    path: PathBuf,
    id: u64,
}

/// Seed of the payload check.
fn place_seed(id: u64, offset: u64) -> u64 {
    let mut place = [0; 16];
    fill(&mut place, id.to_le_bytes().into_iter().chain(offset.to_le_bytes()));
    xxh3_64(&place)
}

fn header_check(id: u64, offset: u64, len: u32) -> u32 {
    let mut place = [0; 20];
    let id_and_offset = id.to_le_bytes().into_iter().chain(offset.to_le_bytes());
    fill(&mut place, id_and_offset.chain(len.to_le_bytes()));
    xxh3_64(&place) as u32
}

fn fill(to: &mut [u8], from: impl Iterator<Item = u8>) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = from;
    }
}

fn encode_file_header(magic: Magic, id: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(FILE_HEADER_BYTES as usize);
    out.extend_from_slice(&magic.0);
    out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
    out.extend_from_slice(&0u32.to_le_bytes());
    out.extend_from_slice(&id.to_le_bytes());
    out.extend_from_slice(&xxh3_64(&out).to_le_bytes());
    out
}

fn encode_record(id: u64, offset: u64, payload: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let end = offset.saturating_add(RECORD_HEADER_BYTES).saturating_add(payload.len() as u64);
    if payload.is_empty() || end > JOURNAL_BYTES_MAX {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("record of {} bytes: empty, or the file would exceed 1 GiB", payload.len()),
        ));
    }
    put_record(id, offset, payload, out);
    Ok(())
}

fn put_record(id: u64, offset: u64, payload: &[u8], out: &mut Vec<u8>) {
    let len = payload.len() as u32;
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(&header_check(id, offset, len).to_le_bytes());
    out.extend_from_slice(&xxh3_64_with_seed(payload, place_seed(id, offset)).to_le_bytes());
    out.extend_from_slice(payload);
}

/// The bytes of a new journal whose first record is `first`.
pub fn new_image(magic: Magic, id: u64, first: &[u8]) -> Result<Vec<u8>> {
    let mut image = encode_file_header(magic, id);
    encode_record(id, FILE_HEADER_BYTES, first, &mut image)?;
    Ok(image)
}

/// The payload of the record at `offset`, or how it fails.
fn record_at(bytes: &Bytes, id: u64, offset: u64) -> std::result::Result<Bytes, Tail> {
    let start = offset as usize;
    let mut header = Reader::new(bytes.get(start..).unwrap_or_default());
    let (Ok(len), Ok(len_check), Ok(check)) =
        (header.fixed_u32(), header.fixed_u32(), header.fixed_u64())
    else {
        return Err(Tail::Short);
    };
    if len_check != header_check(id, offset, len) {
        return Err(Tail::Bad);
    }
    let body = start + RECORD_HEADER_BYTES as usize;
    if header.remaining() < len as usize {
        return Err(Tail::Short);
    }
    let payload = bytes.slice(body..body + len as usize);
    if xxh3_64_with_seed(&payload, place_seed(id, offset)) != check {
        return Err(Tail::Bad);
    }
    Ok(payload)
}

impl Journal {
    /// Creates a file with its first record, durably, its name included.
    pub fn create(
        files: &dyn Files,
        path: &Path,
        magic: Magic,
        id: u64,
        first: &[u8],
    ) -> Result<Self> {
        let image = new_image(magic, id, first)?;
        let mut file = files.create(path)?;
        file.append(&image)?;
        file.sync()?;
        sync_parent(files, path)?;
        let mut journal = Self { file, path: path.to_owned(), id };
        journal.mark()?;
        Ok(journal)
    }

    /// Appends a record; it is durable when this returns. After a failure the file must not be appended
    /// to again: what it holds is known only when it is read next.
    pub fn append_sync(&mut self, payload: &[u8]) -> Result<()> {
        let mut record = Vec::with_capacity(RECORD_HEADER_BYTES as usize + payload.len());
        encode_record(self.id, self.file.len(), payload, &mut record)
            .map_err(|e| e.context(self.path.display()))?;
        self.file.append(&record)?;
        self.file.sync()?;
        self.mark()
    }

    /// Appends an empty record, unsynced: it says that what is before it was synced, so that damage to
    /// the last record is told from a torn one even when no change follows.
    fn mark(&mut self) -> Result<()> {
        let mut marker = Vec::with_capacity(RECORD_HEADER_BYTES as usize);
        put_record(self.id, self.file.len(), &[], &mut marker);
        self.file.append(&marker)
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.file.len()
    }

    /// Reads all records. `id` is what the file must have; `None` takes its own word, for inspection.
    /// Changes nothing.
    pub fn read(files: &dyn Files, path: &Path, magic: Magic, id: Option<u64>) -> Result<Contents> {
        let file = files.open(path)?;
        let len = file.len()?;
        if len > JOURNAL_BYTES_MAX {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("{}: {len} bytes are more than such a file may have", path.display()),
            ));
        }
        let bytes = if len == 0 { Bytes::new() } else { file.read_at(0, len as usize)? };
        let header = read_file_header(&bytes, path, magic, id);
        let id = match (header, id) {
            (Ok(id), _) => id,
            // A torn header has nothing valid behind it; search with the id that it should have had.
            (Err(error), Some(id)) if error.kind() == ErrorKind::Corruption => {
                if next_valid(&bytes, id, FILE_HEADER_BYTES).is_some() {
                    return Err(error);
                }
                // Some file systems keep the length but not the bytes of what was not synced.
                let unwritten = len < FILE_HEADER_BYTES || bytes.iter().all(|b| *b == 0);
                let tail = if unwritten { Tail::Short } else { Tail::Bad };
                return Ok(Contents { id, records: Vec::new(), valid_len: 0, tail });
            }
            (Err(error), _) => return Err(error),
        };

        let mut records = Vec::new();
        let mut offset = FILE_HEADER_BYTES;
        let mut tail = Tail::Clean;
        while offset < len {
            match record_at(&bytes, id, offset) {
                Ok(payload) => {
                    let next = offset + RECORD_HEADER_BYTES + payload.len() as u64;
                    if !payload.is_empty() {
                        records.push(Record { offset, payload });
                    }
                    offset = next;
                }
                Err(how) => {
                    if let Some(valid) = next_valid(&bytes, id, offset + 1) {
                        return Err(damaged(path, offset, valid));
                    }
                    tail = how;
                    break;
                }
            }
        }
        if records.is_empty() && tail == Tail::Clean {
            // The header alone: the crash came between it and the first record.
            tail = Tail::Short;
        }
        Ok(Contents { id, records, valid_len: offset, tail })
    }

    /// Cuts what does not verify off a file that was read, and makes the rest durable.
    pub fn settle(files: &dyn Files, path: &Path, contents: &Contents) -> Result<()> {
        files.truncate(path, contents.valid_len)
    }
}

/// Makes the name of `path` durable in the directory that holds it.
pub(super) fn sync_parent(files: &dyn Files, path: &Path) -> Result<()> {
    match path.parent() {
        Some(dir) if dir.as_os_str().is_empty() => files.sync_dir(Path::new(".")),
        Some(dir) => files.sync_dir(dir),
        None => Ok(()),
    }
}

fn damaged(path: &Path, offset: u64, valid: u64) -> Error {
    Error::corruption(
        path.display(),
        offset,
        format!(
            "record does not verify, but a later one at offset {valid} does, so this is damage and \
             not a torn write; restore the file, or run `tepui repair` on the data directory to \
             keep what verifies"
        ),
    )
}

/// The first offset from `from` on at which a whole record verifies.
fn next_valid(bytes: &Bytes, id: u64, from: u64) -> Option<u64> {
    // The cheap header check comes first, so this is one short hash per byte of a damaged file.
    (from..bytes.len() as u64).find(|offset| record_at(bytes, id, *offset).is_ok())
}

/// The id in the file header. `Corruption` where it does not verify, `InvalidArgument` where it does but
/// cannot be read by this code.
fn read_file_header(bytes: &[u8], path: &Path, magic: Magic, id: Option<u64>) -> Result<u64> {
    let corrupt = |what: &str| Error::corruption(path.display(), 0, what);
    let mut reader = Reader::new(bytes);
    let mut fields = || {
        let found = reader.take(8)?;
        let version = reader.fixed_u32()?;
        let reserved = reader.fixed_u32()?;
        let id = reader.fixed_u64()?;
        Ok::<_, crate::codec::Malformed>((found, version, reserved, id, reader.fixed_u64()?))
    };
    let (found, version, reserved, found_id, check) =
        fields().map_err(|_| corrupt("file header is cut short"))?;
    if xxh3_64(bytes.get(..FILE_HEADER_BYTES as usize - 8).unwrap_or_default()) != check {
        return Err(corrupt("file header does not verify"));
    }
    let refuse = |what: String| {
        Error::new(ErrorKind::InvalidArgument, format!("{}: {what}", path.display()))
    };
    if found != magic.0 {
        let (found, want) = (found.escape_ascii(), magic.0.escape_ascii());
        return Err(refuse(format!("file of another kind: starts with {found}, not {want}")));
    }
    if version != FORMAT_VERSION || reserved != 0 {
        return Err(refuse(format!(
            "format version {version} was written by a newer version; this one reads {FORMAT_VERSION}"
        )));
    }
    if id.is_some_and(|id| id != found_id) {
        // The header is whole, so this file was renamed or swapped; nothing in it can be trusted.
        return Err(refuse(format!("holds file {found_id:016x}, which its name denies")));
    }
    Ok(found_id)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::manifest::testing::{TestFiles, hex};

    const MAGIC: Magic = Magic(*b"TESTJRNL");

    fn path() -> &'static Path {
        Path::new("d/J")
    }

    fn written(payloads: &[&[u8]]) -> Vec<u8> {
        let files = TestFiles::default();
        let (first, rest) = payloads.split_first().unwrap();
        let mut journal = Journal::create(&files, path(), MAGIC, 42, first).unwrap();
        for payload in rest {
            journal.append_sync(payload).unwrap();
        }
        let image = files.contents(path());
        assert_eq!(journal.bytes(), image.len() as u64);
        image
    }

    fn read(image: &[u8]) -> Result<Contents> {
        let files = TestFiles::default();
        files.put(path(), image);
        Journal::read(&files, path(), MAGIC, Some(42))
    }

    fn payloads(contents: &Contents) -> Vec<&[u8]> {
        contents.records.iter().map(|r| r.payload.as_ref()).collect()
    }

    #[test]
    fn records_come_back_in_order_with_their_offsets() {
        let image = written(&[b"one", b"two2", b"three"]);
        let contents = read(&image).unwrap();
        assert_eq!(payloads(&contents), [&b"one"[..], b"two2", b"three"]);
        let offsets: Vec<u64> = contents.records.iter().map(|r| r.offset).collect();
        assert_eq!(offsets, [32, 32 + 19, 32 + 19 + 20]);
        assert_eq!((contents.valid_len, contents.tail), (image.len() as u64, Tail::Clean));
    }

    #[test]
    fn the_layout_is_the_documented_one() {
        let image = new_image(MAGIC, 0x0102_0304_0506_0708, b"payload").unwrap();
        assert_eq!(hex(&image), include_str!("testdata/journal.hex").trim());
    }

    #[test]
    fn a_cut_anywhere_is_a_torn_tail_behind_the_whole_records() {
        let image = written(&[b"one", b"two2", b"three"]);
        let ends = [32 + 19, 32 + 19 + 20, image.len()];
        for len in 0..image.len() {
            let contents = read(&image[..len]).unwrap();
            let whole = ends.iter().filter(|e| **e <= len).count();
            assert_eq!(contents.records.len(), whole, "cut to {len}");
            let clean = whole > 0 && ends.contains(&len);
            assert_eq!(contents.tail, if clean { Tail::Clean } else { Tail::Short }, "at {len}");
        }
    }

    #[test]
    fn a_flip_anywhere_is_corruption_unless_it_is_in_the_last_record() {
        let image = written(&[b"one", b"two2", b"three"]);
        let last = 32 + 19 + 20;
        for at in 0..image.len() {
            for bit in 0..8 {
                let mut flipped = image.clone();
                flipped[at] ^= 1 << bit;
                match read(&flipped) {
                    Err(error) => {
                        assert!(at < last, "byte {at}: {error}");
                        assert_eq!(error.kind(), ErrorKind::Corruption);
                        assert!(error.message().starts_with("d/J: offset "), "{error}");
                    }
                    Ok(contents) => {
                        assert!(at >= last, "byte {at} went unnoticed");
                        assert_eq!(payloads(&contents), [&b"one"[..], b"two2"]);
                        assert_eq!(contents.valid_len, last as u64);
                        assert_ne!(contents.tail, Tail::Clean);
                    }
                }
            }
        }
    }

    #[test]
    fn a_tail_of_zeros_or_noise_is_torn() {
        let image = written(&[b"one"]);
        for tail in [vec![0; 5000], vec![0xA5; 17], image.clone()] {
            let contents = read(&[image.clone(), tail].concat()).unwrap();
            assert_eq!(payloads(&contents), [&b"one"[..]]);
            assert_eq!((contents.valid_len, contents.tail), (image.len() as u64, Tail::Bad));
        }
    }

    #[test]
    fn files_of_another_kind_id_or_version_are_refused_and_not_cut() {
        let files = TestFiles::default();
        Journal::create(&files, path(), MAGIC, 42, b"x").unwrap();
        let refused = |magic, id| Journal::read(&files, path(), magic, id).unwrap_err();
        for error in [refused(Magic(*b"OTHERKND"), Some(42)), refused(MAGIC, Some(43))] {
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        }
        assert_eq!(Journal::read(&files, path(), MAGIC, None).unwrap().id, 42);

        let mut image = files.contents(path());
        image[8] = 2;
        let check = xxh3_64(&image[..24]).to_le_bytes();
        image[24..32].copy_from_slice(&check);
        let error = read(&image).unwrap_err();
        assert!(error.message().contains("written by a newer version"), "{error}");
    }

    #[test]
    fn empty_records_and_files_beyond_the_limit_are_refused() {
        let files = TestFiles::default();
        assert!(Journal::create(&files, path(), MAGIC, 1, b"").is_err());
        let mut journal = Journal::create(&files, path(), MAGIC, 1, b"x").unwrap();
        assert_eq!(journal.append_sync(b"").unwrap_err().kind(), ErrorKind::InvalidArgument);
    }

    proptest! {
        #[test]
        fn random_files_never_panic(
            raw in proptest::collection::vec(any::<u8>(), 0..400),
            behind_a_header in any::<bool>(),
        ) {
            let mut image = if behind_a_header { written(&[b"first"]) } else { Vec::new() };
            let good = image.len();
            image.extend_from_slice(&raw);
            if let Ok(contents) = read(&image) {
                prop_assert_eq!(contents.records.len(), usize::from(good > 0));
            }
        }
    }
}
