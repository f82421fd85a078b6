//! A journal: a record file (see [`crate::log::record`]) whose records are synced one by one.
//!
//! ```text
//! | header | record | marker | record | marker | ...
//!                 ^ sync          ^ sync
//! ```
//!
//! One append is one record, and it is durable when the append returns. After its sync a *marker*, a record
//! without a payload, is written behind it, without a sync of its own. All that it says is in its
//! `durable`: the record before it was synced. So damage to that record is told from an append that a crash
//! cut short, even when no change follows for a year:
//!
//! ```text
//! what does not verify   behind it                 it is
//! record                 its marker, or more       damage: reading fails
//! record                 nothing that verifies     an append cut short; nobody was told of it: left out
//! marker                 the next record alone     see below: the marker is passed over, the record counts
//! marker                 nothing that verifies     left out, and nothing is lost with it
//! ```
//!
//! A marker is on disk for certain only with the record after it. Where that record verifies and the marker
//! does not, either a crash met the record's sync, and the disk had written its pages in another order, or
//! the record was answered and the marker was damaged later. In the first case the record may count, in the
//! second it must; the marker has nothing to say in either. So it counts.
//!
//! Who changes anything on the strength of what was read makes it durable first ([`Journal::settle`]): it
//! may be known to the page cache only.

use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::io::{Directory, Files, RandomFile};
use crate::log::record::{
    self, FILE_HEADER_BYTES, FORMAT_VERSION, FileHeader, RECORD_HEADER_BYTES, RecordReader,
    RecordWriter, Salvage, TailEnd,
};

pub use crate::log::record::{Magic, Record};

/// Bytes of a journal at most. A snapshot of a million SSTs takes about 100 MB; reading a journal takes
/// its size in memory, so a larger one is a mistake, such as a file of another kind.
pub const JOURNAL_BYTES_MAX: u64 = 1 << 30;

/// Space is reserved up to a multiple of so many bytes, the block of most file systems: a file has as much in any case, and a
/// dozen records ask once. More would be taken from the disk for each of thousands of tablets.
const RESERVE_STEP_BYTES: u64 = 4 << 10;

/// Behind the name of a file that is being written and not yet renamed.
pub(crate) const DRAFT_SUFFIX: &str = ".new";

/// How a journal ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tail {
    /// With its last record, or that record's marker.
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
    /// The records that verify, in order, without markers; none where the first one (or the header) was
    /// cut short.
    pub records: Vec<Record>,
    /// Bytes up to the end of the last valid record or marker.
    pub valid_len: u64,
    /// What follows them.
    pub tail: Tail,
}

/// A journal being written.
#[derive(Debug)]
pub struct Journal {
    writer: RecordWriter,
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
        let mut journal = Self::write_first(files, path, magic, id, first)?;
        sync_parent(files, path)?;
        journal.mark()?;
        Ok(journal)
    }

    /// The same, but the file has its name only once its first record is durable: whatever is found under that
    /// name is whole, or damaged. Takes the place of a file of that name. After a failure it may be there or not; what was
    /// written of it otherwise is removed, or is a file whose name ends in [`DRAFT_SUFFIX`].
    pub(crate) fn create_whole(
        files: &dyn Files,
        path: &Path,
        magic: Magic,
        id: u64,
        first: &[u8],
    ) -> Result<Self> {
        let dir = files.open_dir(path.parent().unwrap_or(Path::new("")))?;
        let draft = Self::draft(files, path, magic, id, first)?;
        let draft_path = draft.writer.path().to_owned();
        draft.publish(files, dir.as_ref(), path).inspect_err(|_| {
            // Where it was renamed there is none.
            let _ = files.remove(&draft_path);
        })
    }

    /// Writes such a file up to its name. Until it is [published](Self::publish) it does not count, and after a failure here
    /// it never will.
    pub(crate) fn draft(
        files: &dyn Files,
        path: &Path,
        magic: Magic,
        id: u64,
        first: &[u8],
    ) -> Result<Self> {
        let mut draft = path.to_owned().into_os_string();
        draft.push(DRAFT_SUFFIX);
        let draft = Path::new(&draft);
        if files.exists(draft)? {
            files.remove(draft)?;
        }
        Self::write_first(files, draft, magic, id, first).inspect_err(|_| {
            // On a full disk its room is wanted. Where it cannot be removed, the next start does.
            let _ = files.remove(draft);
        })
    }

    /// Gives a draft its name in its directory, durably. Takes no open file.
    pub(crate) fn publish(
        mut self,
        files: &dyn Files,
        dir: &dyn Directory,
        path: &Path,
    ) -> Result<Self> {
        files.rename(self.writer.path(), path)?;
        self.writer.renamed(path);
        dir.sync()?;
        self.mark()?;
        Ok(self)
    }

    /// Creates a file with its first record; its name is not durable yet.
    fn write_first(
        files: &dyn Files,
        path: &Path,
        magic: Magic,
        id: u64,
        first: &[u8],
    ) -> Result<Self> {
        check_payload(path, FILE_HEADER_BYTES, first)?;
        let writer = RecordWriter::create(files, path, magic, id)?;
        let mut journal = Self { writer };
        // Its marker, too: that is written when the file has its name, and counts.
        journal.keep_spare(first.len(), 0)?;
        journal.writer.append(first)?;
        journal.writer.sync()?;
        Ok(journal)
    }

    /// Appends a record; it is durable when this returns. After a failure the file must not be appended
    /// to again: what it holds is known only when it is read next.
    pub fn append_sync(&mut self, payload: &[u8]) -> Result<()> {
        check_payload(self.writer.path(), self.writer.len(), payload)?;
        self.writer.append(payload)?;
        self.writer.sync()?;
        self.mark()
    }

    /// Writes a marker behind what was just synced.
    fn mark(&mut self) -> Result<()> {
        self.writer.append(&[])?;
        self.writer.flush()
    }

    /// Sees that there is space for a record with a payload of `payload_len` bytes and its marker, and for `spare` bytes behind
    /// it, as far as the file system reserves any. `NoSpace` where there is none; nothing has changed then.
    pub(crate) fn keep_spare(&mut self, payload_len: usize, spare: u64) -> Result<()> {
        let wanted = self.writer.len_with(payload_len) + RECORD_HEADER_BYTES + spare;
        if wanted <= self.writer.reserved() {
            return Ok(());
        }
        // The spare once more, so that not every record asks.
        self.writer.reserve((wanted + spare).next_multiple_of(RESERVE_STEP_BYTES))
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.writer.len()
    }

    /// Reads all records. `id` is what the file must have; `None` takes its own word, for inspection.
    /// Changes nothing.
    pub fn read(files: &dyn Files, path: &Path, magic: Magic, id: Option<u64>) -> Result<Contents> {
        let file = files.open_left(path)?;
        let len = file.len()?;
        if len > JOURNAL_BYTES_MAX {
            let what = format_args!("{len} bytes are more than such a file may have");
            return Err(Error::corruption(path.display(), 0, what));
        }
        let header = file.read_at(0, len.min(FILE_HEADER_BYTES) as usize)?;
        // A header that does not verify is judged by the reader, with the id that it should have had.
        let id = match FileHeader::decode(&header) {
            Some(header) => checked_id(path, header, magic, id)?,
            None => id.ok_or_else(|| {
                Error::corruption(path.display(), 0, "the file header does not verify")
            })?,
        };
        let mut reader = RecordReader::open(Arc::clone(&file), magic, id, record::Tail::MayBeTorn)?;
        let mut records = Vec::new();
        while let Some(record) = reader.next_record()? {
            if !record.payload.is_empty() {
                records.push(record);
            }
        }
        // `next_record` returned `None`, so the reader knows where the file ended.
        let TailEnd { mut valid_len, torn_bytes } =
            reader.end().unwrap_or(TailEnd { valid_len: 0, torn_bytes: len });
        if torn_bytes > 0
            && !records.is_empty()
            && let Some(record) = behind_marker(file, magic, id, valid_len)?
        {
            valid_len = record_end(&record);
            let tail = if valid_len == len { Tail::Clean } else { Tail::Bad };
            records.push(record);
            return Ok(Contents { id, records, valid_len, tail });
        }
        // Some file systems keep the length but not the bytes of what was not synced.
        let unwritten = valid_len == 0 && torn_bytes == 0;
        let tail = if valid_len == len && !records.is_empty() {
            Tail::Clean
        } else if valid_len == len || unwritten || reader.cut_short()? {
            // A header alone, or nothing at all: the crash came before the first record.
            Tail::Short
        } else {
            Tail::Bad
        };
        Ok(Contents { id, records, valid_len, tail })
    }

    /// Cuts what does not verify off a file that was read, and makes the rest durable.
    pub fn settle(files: &dyn Files, path: &Path, contents: &Contents) -> Result<()> {
        files.truncate(path, contents.valid_len)
    }
}

fn record_end(record: &Record) -> u64 {
    record.offset + RECORD_HEADER_BYTES + record.payload.len() as u64
}

/// The record behind a marker at `at` that does not verify (see the file's head). No other record can have
/// its place: the one at `at` had no payload, and what was synced before it ended at `at`.
fn behind_marker(
    file: Arc<dyn RandomFile>,
    magic: Magic,
    id: u64,
    at: u64,
) -> Result<Option<Record>> {
    let mut salvage = Salvage::open(file, magic, id)?;
    while let Some(record) = salvage.next_record()? {
        if record.offset > at {
            let follows = record.offset == at + RECORD_HEADER_BYTES && record.durable == at;
            return Ok((follows && !record.payload.is_empty()).then_some(record));
        }
    }
    Ok(None)
}

/// Makes the name of `path` durable in the directory that holds it.
pub(super) fn sync_parent(files: &dyn Files, path: &Path) -> Result<()> {
    match path.parent() {
        Some(dir) if dir.as_os_str().is_empty() => files.sync_dir(Path::new(".")),
        Some(dir) => files.sync_dir(dir),
        None => Ok(()),
    }
}

fn refused(path: &Path, what: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("{}: {what}", path.display()))
}

/// Refuses a payload, before anything is written, that a reader would not take for one: an empty one is a
/// marker, and a file has a limit. (The framing refuses a record that is too large for itself.)
fn check_payload(path: &Path, offset: u64, payload: &[u8]) -> Result<()> {
    let marker_end =
        offset.saturating_add(payload.len() as u64).saturating_add(2 * RECORD_HEADER_BYTES);
    if payload.is_empty() || marker_end > JOURNAL_BYTES_MAX {
        let len = payload.len();
        return Err(refused(
            path,
            format_args!("record of {len} bytes: empty, or the file would exceed 1 GiB"),
        ));
    }
    Ok(())
}

/// The id in a header that verifies. `InvalidArgument` where a newer version wrote the file, and `Corruption` where it is
/// not the file that it should be: nothing of such a file may be cut.
fn checked_id(path: &Path, header: FileHeader, magic: Magic, id: Option<u64>) -> Result<u64> {
    let FileHeader { magic: found, version, file_id } = header;
    if found != magic {
        let (found, want) = (found.escape_ascii(), magic.escape_ascii());
        let what = format_args!("file of another kind: starts with {found}, not {want}");
        return Err(Error::corruption(path.display(), 0, what));
    }
    if version != u64::from(FORMAT_VERSION) {
        return Err(refused(
            path,
            format_args!(
                "format version {version} was written by a newer version; this one reads \
                 {FORMAT_VERSION}"
            ),
        ));
    }
    if id.is_some_and(|id| id != file_id) {
        // The header is whole, so this file was renamed or swapped; nothing in it can be trusted.
        let what = format_args!("holds file {file_id:016x}, which its name denies");
        return Err(Error::corruption(path.display(), 0, what));
    }
    Ok(file_id)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use xxhash_rust::xxh3::xxh3_64;

    use super::*;
    use crate::manifest::testing::{Crash, TestFiles};
    use crate::testing::hex;

    const MAGIC: Magic = *b"TESTJRNL";
    const MARKER: usize = RECORD_HEADER_BYTES as usize;

    /// Where the records `one`, `two2`, `three` end, in a file of those.
    const ENDS: [usize; 3] = [59, 59 + 24 + 28, 59 + 24 + 28 + 24 + 29];

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
        assert_eq!(offsets, [32, 32 + 27 + 24, 32 + 27 + 24 + 28 + 24]);
        let ends: Vec<usize> = contents.records.iter().map(|r| record_end(r) as usize).collect();
        assert_eq!(ends, ENDS);
        assert_eq!(image.len(), ENDS[2] + MARKER);
        assert_eq!((contents.valid_len, contents.tail), (image.len() as u64, Tail::Clean));
    }

    #[test]
    fn the_layout_is_the_documented_one() {
        let files = TestFiles::default();
        Journal::create(&files, path(), MAGIC, 0x0102_0304_0506_0708, b"payload").unwrap();
        let image = files.contents(path());
        assert_eq!(hex(&image), include_str!("testdata/journal.hex").trim());
        let first = record::first_image(MAGIC, 0x0102_0304_0506_0708, b"payload");
        assert_eq!(image[..image.len() - MARKER], first);
    }

    #[test]
    fn a_cut_anywhere_is_a_torn_tail_behind_the_whole_records() {
        let image = written(&[b"one", b"two2", b"three"]);
        for len in 0..image.len() {
            let contents = read(&image[..len]).unwrap();
            let whole = ENDS.iter().filter(|e| **e <= len).count();
            assert_eq!(contents.records.len(), whole, "cut to {len}");
            let clean = ENDS.iter().any(|end| len == *end || len == end + MARKER);
            assert_eq!(contents.tail, if clean { Tail::Clean } else { Tail::Short }, "at {len}");
            assert!(contents.valid_len <= len as u64);
            assert_eq!(
                contents.valid_len == len as u64,
                clean || [0, 32].contains(&len),
                "at {len}"
            );
        }
    }

    #[test]
    fn a_flip_anywhere_is_corruption_unless_it_is_in_the_last_marker() {
        let image = written(&[b"one", b"two2", b"three"]);
        for at in 0..image.len() {
            for bit in 0..8 {
                let mut flipped = image.clone();
                flipped[at] ^= 1 << bit;
                match read(&flipped) {
                    Err(error) => {
                        assert!(at < ENDS[2], "byte {at}: {error}");
                        assert_eq!(error.kind(), ErrorKind::Corruption);
                        assert!(error.message().starts_with("d/J: offset "), "{error}");
                    }
                    Ok(contents) => {
                        assert!(at >= ENDS[2], "byte {at} went unnoticed");
                        assert_eq!(payloads(&contents), [&b"one"[..], b"two2", b"three"]);
                        assert_eq!(contents.valid_len, ENDS[2] as u64);
                        assert_eq!(contents.tail, Tail::Bad);
                    }
                }
            }
        }
    }

    #[test]
    fn without_its_marker_a_flip_in_the_last_record_is_a_torn_append() {
        let mut image = written(&[b"one", b"two2", b"three"]);
        image.truncate(ENDS[2]);
        let last = ENDS[1] + MARKER;
        for at in 0..image.len() {
            let mut flipped = image.clone();
            flipped[at] ^= 0x10;
            match read(&flipped) {
                Ok(contents) if at >= last => {
                    assert_eq!(payloads(&contents), [&b"one"[..], b"two2"]);
                    assert_eq!(contents.valid_len, last as u64);
                    assert_ne!(contents.tail, Tail::Clean);
                }
                // The marker before the last record: nothing says whether it was synced.
                Ok(contents) => {
                    assert!((ENDS[1]..last).contains(&at), "byte {at} went unnoticed");
                    assert_eq!(payloads(&contents), [&b"one"[..], b"two2", b"three"]);
                    let valid = (contents.valid_len, contents.tail);
                    assert_eq!(valid, (image.len() as u64, Tail::Clean));
                }
                Err(error) => {
                    assert!(at < ENDS[1], "byte {at}: {error}");
                    assert_eq!(error.kind(), ErrorKind::Corruption);
                }
            }
        }
    }

    #[test]
    fn a_record_behind_a_lost_marker_survives_settling_and_what_is_torn_behind_it_is_cut() {
        let image = written(&[b"one", b"two2", b"three"]);
        for torn in 0..MARKER {
            let files = TestFiles::default();
            let mut lost = image[..ENDS[2] + torn].to_vec();
            lost[ENDS[1]..ENDS[1] + MARKER].fill(0);
            files.put(path(), &lost);
            for _ in 0..2 {
                let contents = Journal::read(&files, path(), MAGIC, Some(42)).unwrap();
                assert_eq!(payloads(&contents), [&b"one"[..], b"two2", b"three"]);
                Journal::settle(&files, path(), &contents).unwrap();
                assert_eq!(files.contents(path()).len(), ENDS[2]);
            }
        }
        // With the marker behind the record the one before it was durable, and is damaged.
        let mut damaged = image;
        damaged[ENDS[1]..ENDS[1] + MARKER].fill(0);
        assert_eq!(read(&damaged).unwrap_err().kind(), ErrorKind::Corruption);
    }

    #[test]
    fn a_record_is_synced_before_its_marker_is_written() {
        let files = TestFiles::default();
        let mut journal = Journal::create(&files, path(), MAGIC, 42, b"one").unwrap();
        for (i, end) in ENDS.into_iter().enumerate() {
            assert_eq!(files.crash(Crash::Forgets).contents(path()).len(), end);
            assert_eq!(files.contents(path()).len(), end + MARKER);
            if let Some(next) = [&b"two2"[..], b"three"].get(i) {
                journal.append_sync(next).unwrap();
            }
        }
    }

    #[test]
    fn a_tail_of_zeros_or_noise_is_torn() {
        let image = written(&[b"one"]);
        for tail in [vec![0; 5000], vec![0xA5; 27], image.clone()] {
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
        for error in [refused(*b"OTHERKND", Some(42)), refused(MAGIC, Some(43))] {
            // And not of a newer version.
            assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
        }
        assert_eq!(Journal::read(&files, path(), MAGIC, None).unwrap().id, 42);

        for (at, value) in [(8, 2), (15, 1)] {
            let mut image = files.contents(path());
            image[at] = value;
            let check = xxh3_64(&image[..24]).to_le_bytes();
            image[24..32].copy_from_slice(&check);
            let error = read(&image).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            assert!(error.message().contains("written by a newer version"), "{error}");
        }
    }

    #[test]
    fn a_header_that_does_not_verify_is_corruption_where_no_id_is_known() {
        let files = TestFiles::default();
        let mut image = written(&[b"one"]);
        image[3] ^= 1;
        files.put(path(), &image);
        let error = Journal::read(&files, path(), MAGIC, None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
    }

    #[test]
    fn empty_records_and_files_beyond_the_limit_are_refused() {
        let files = TestFiles::default();
        assert!(Journal::create(&files, path(), MAGIC, 1, b"").is_err());
        let mut journal = Journal::create(&files, path(), MAGIC, 1, b"x").unwrap();
        assert_eq!(journal.append_sync(b"").unwrap_err().kind(), ErrorKind::InvalidArgument);
        let (at, room) = (JOURNAL_BYTES_MAX - 100, 100 - 2 * RECORD_HEADER_BYTES);
        check_payload(path(), at, &vec![0; room as usize])
            .expect("the file is as long as it may be");
        let error = check_payload(path(), at, &vec![0; room as usize + 1]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
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
