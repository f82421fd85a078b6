//! Value files: values one after the other, each a frame with a checksum.
//!
//! ```text
//! frame | frame | ... | footer, 48 bytes
//!
//! frame     as in SSTs: compression and checksum, which covers the file's number and the frame's offset
//! footer    values u64 LE | bytes of the values, before compression, u64 LE | file id u64 LE
//!           version u32 LE | reserved u32 LE, zero; read with the version
//!           checksum u64 LE     xxh3-64 of the bytes before it, seeded with mix(file id, offset of the footer)
//!           magic "TEPUIVAL"
//! ```
//!
//! Frames are found by the pointers of SSTs alone, which lead to the first and the last byte of each. The footer
//! says that the file was finished, and what is in it (zeros where a repair wrote it anew). No value needs it: a
//! file whose footer is damaged is read all the same. A later version keeps the footer's length, and its bytes from the file id on: so
//! a file of a later version is told from a damaged one, and left alone.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::ValuePointer;
use crate::codec::{Malformed, Parsed, Reader};
use crate::error::{Error, ErrorKind, Result};
use crate::io::{Files, RandomFile, WritableFile};
use crate::sst::frame::{
    Framer, Packed, footer_checksum, newer_version, open_frame, verify_footer,
};
use crate::sst::{Compression, FileId};

/// Bytes handed to the file at once, as for SSTs.
const WRITE_BUFFER_BYTES: usize = 256 << 10;

/// Bytes of a value from which it is handed to the file as it is, and not copied into the buffer: with less, some appends more for a copy that takes less
/// than the checksum; with more, a job has as much more memory, twice. So it is compressed only where a sample of it shrinks.
const HUGE_BYTES: usize = 1 << 20;

/// Bytes of the footer.
const FOOTER_LEN: usize = 3 * 8 + 4 + 4 + 8 + 8;

/// The last bytes of every value file.
const MAGIC: &[u8; 8] = b"TEPUIVAL";

/// The version of the format that is written and read.
const FORMAT_VERSION: u32 = 1;

/// What was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ValueFileSummary {
    /// The file's number.
    pub id: FileId,
    /// Bytes of the file.
    pub bytes: u64,
    /// Values in it.
    pub values: u64,
    /// Their bytes, before compression.
    pub value_bytes: u64,
}

/// Writes one value file. Dropped unfinished, it leaves a file without a footer.
pub struct ValueFileWriter {
    file: Box<dyn WritableFile>,
    id: FileId,
    framer: Framer,
    /// Written but not yet handed to the file.
    buffer: Vec<u8>,
    /// Bytes handed to the file.
    flushed: u64,
    values: u64,
    value_bytes: u64,
}

impl std::fmt::Debug for ValueFileWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ValueFileWriter").field("id", &self.id).finish_non_exhaustive()
    }
}

impl ValueFileWriter {
    /// Writes to `file`, which is empty. A dictionary is not used: values are compressed one by one.
    pub fn new(file: Box<dyn WritableFile>, id: FileId, compression: Compression) -> Self {
        Self {
            file,
            id,
            framer: Framer::new(compression),
            buffer: Vec::with_capacity(WRITE_BUFFER_BYTES),
            flushed: 0,
            values: 0,
            value_bytes: 0,
        }
    }

    /// Adds a value of [`BLOCK_BYTES_MAX`](crate::sst::BLOCK_BYTES_MAX) at most.
    pub fn add(&mut self, value: &[u8]) -> Result<ValuePointer> {
        let offset = self.bytes();
        let method = self.framer.data_method();
        let packed = if value.len() < HUGE_BYTES {
            let packed = self.framer.pack(value, method);
            self.framer.put(value, packed, self.id, offset, &mut self.buffer);
            packed
        } else {
            let packed = self.framer.pack_sampled(value, method);
            self.put_huge(value, packed, offset)?;
            packed
        };
        self.values += 1;
        self.value_bytes += value.len() as u64;
        let pointer = ValuePointer {
            file: self.id,
            offset,
            stored_len: packed.frame_len() as u32,
            value_len: value.len() as u32,
        };
        if self.buffer.len() >= WRITE_BUFFER_BYTES {
            self.write()?;
        }
        Ok(pointer)
    }

    /// Hands the frame of a value, just packed, to the file without a copy of it.
    fn put_huge(&mut self, value: &[u8], packed: Packed, offset: u64) -> Result<()> {
        let frame = self.framer.apart(value, packed, self.id, offset);
        self.buffer.extend_from_slice(frame.head());
        if !self.buffer.is_empty() {
            self.file.append(&self.buffer)?;
        }
        self.file.append(frame.payload)?;
        self.flushed += (self.buffer.len() + frame.payload.len()) as u64;
        self.buffer.clear();
        self.buffer.extend_from_slice(&frame.trailer);
        self.framer.trim();
        Ok(())
    }

    /// Bytes so far.
    pub fn bytes(&self) -> u64 {
        self.flushed + self.buffer.len() as u64
    }

    fn write(&mut self) -> Result<()> {
        self.file.append(&self.buffer)?;
        self.flushed += self.buffer.len() as u64;
        self.buffer.clear();
        // A huge value's buffer is not kept.
        self.buffer.shrink_to(2 * WRITE_BUFFER_BYTES);
        Ok(())
    }

    /// Ends the file and syncs it.
    pub fn finish(mut self) -> Result<ValueFileSummary> {
        let offset = self.bytes();
        Footer { values: self.values, value_bytes: self.value_bytes }.encode(
            self.id,
            offset,
            &mut self.buffer,
        );
        self.write()?;
        self.file.sync()?;
        Ok(ValueFileSummary {
            id: self.id,
            bytes: self.flushed,
            values: self.values,
            value_bytes: self.value_bytes,
        })
    }
}

/// What the footer says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Footer {
    values: u64,
    value_bytes: u64,
}

impl Footer {
    fn encode(self, file: FileId, offset: u64, out: &mut Vec<u8>) {
        let start = out.len();
        for number in [self.values, self.value_bytes, file] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        out.extend_from_slice(&0u32.to_le_bytes());
        let covered = out.get(start..).unwrap_or_default();
        let checksum = footer_checksum(covered, file, offset);
        out.extend_from_slice(&checksum.to_le_bytes());
        out.extend_from_slice(MAGIC);
    }

    fn decode(bytes: &[u8], file: FileId, offset: u64) -> Parsed<Self> {
        let mut input = Reader::new(bytes);
        let covered = input.take(FOOTER_LEN - 16)?;
        let checksum = input.fixed_u64()?;
        if input.take(MAGIC.len())? != MAGIC || !input.is_empty() {
            return Err(Malformed::whole("not a value file, or cut short: the magic is missing"));
        }
        let mut input = Reader::new(covered);
        let footer = Self { values: input.fixed_u64()?, value_bytes: input.fixed_u64()? };
        let stored_file = input.fixed_u64()?;
        let version = input.fixed_u64()?;
        verify_footer(covered, checksum, stored_file, file, offset)?;
        if version != u64::from(FORMAT_VERSION) {
            return Err(Malformed::whole(
                "the value file has a format version that this build does not know",
            ));
        }
        Ok(footer)
    }
}

/// Bytes of a footer for frames of `frame_bytes`, made without knowing what is in them.
pub(crate) fn blank_footer(file: FileId, frame_bytes: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(FOOTER_LEN);
    Footer { values: 0, value_bytes: 0 }.encode(file, frame_bytes, &mut out);
    out
}

/// Reads an arbitrary footer, for fuzzing: as it is, and the same under a checksum that holds.
pub(crate) fn fuzz_footer(bytes: &[u8]) {
    let (file, offset) = (7, 4096);
    let _ = Footer::decode(bytes, file, offset);
    let mut sealed = bytes.to_vec();
    sealed.resize(FOOTER_LEN - 16, 0);
    let checksum = footer_checksum(&sealed, file, offset);
    sealed.extend_from_slice(&checksum.to_le_bytes());
    sealed.extend_from_slice(MAGIC);
    let newer = newer_version(&sealed, *MAGIC, FORMAT_VERSION, file, offset);
    if let Ok(footer) = Footer::decode(&sealed, file, offset) {
        assert_eq!(newer, None, "a footer that is read is of this version");
        let mut encoded = Vec::new();
        footer.encode(file, offset, &mut encoded);
        assert_eq!(Footer::decode(&encoded, file, offset), Ok(footer));
    }
}

/// A file of these frames with a footer that says anything, under a checksum that holds, for fuzzing.
pub(crate) fn with_any_footer(
    frames: &[u8],
    [values, value_bytes]: [u64; 2],
    id: FileId,
) -> Vec<u8> {
    let mut out = frames.to_vec();
    Footer { values, value_bytes }.encode(id, frames.len() as u64, &mut out);
    out
}

/// An open value file. It stays open while anything refers to it.
#[derive(Debug)]
pub struct ValueReader {
    id: FileId,
    path: PathBuf,
    file: Arc<dyn RandomFile>,
    bytes: u64,
    /// Where the frames end, or can end at most.
    end: u64,
    /// Where it is damaged, how.
    footer: Result<Footer>,
}

impl ValueReader {
    /// Opens a file. Blocks. `InvalidArgument` where a newer version wrote it; of a damaged footer says
    /// [`Self::verify_footer`].
    pub fn open(files: &dyn Files, path: &Path, id: FileId) -> Result<Self> {
        let file = files.open_immutable(path)?;
        let bytes = file.len()?;
        let footer = Self::footer_of(file.as_ref(), path, id, bytes);
        if let Err(newer) = &footer
            && newer.kind() == ErrorKind::InvalidArgument
        {
            return Err(newer.clone());
        }
        // Without a footer its place is as good as any other for a frame.
        let end = if footer.is_ok() { bytes - FOOTER_LEN as u64 } else { bytes };
        Ok(Self { id, path: path.to_owned(), file, bytes, end, footer })
    }

    fn footer_of(file: &dyn RandomFile, path: &Path, id: FileId, bytes: u64) -> Result<Footer> {
        let damaged = |offset, what| Error::corruption(path.display(), offset, what);
        let at = bytes
            .checked_sub(FOOTER_LEN as u64)
            .ok_or_else(|| damaged(0, "too short to be a value file"))?;
        let footer = file.read_at(at, FOOTER_LEN)?;
        if let Some(version) = newer_version(&footer, *MAGIC, FORMAT_VERSION, id, at) {
            return Err(Error::newer_version(path.display(), version, FORMAT_VERSION));
        }
        Footer::decode(&footer, id, at).map_err(|m| damaged(at, m.what))
    }

    /// Whether the footer is as it was written: what is no value file, was cut short, or is another file than its
    /// number says, is `Corruption`.
    pub fn verify_footer(&self) -> Result<()> {
        self.footer.as_ref().map(|_| ()).map_err(Error::clone)
    }

    /// Its number.
    pub fn id(&self) -> FileId {
        self.id
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of its frames together.
    pub fn frame_bytes(&self) -> u64 {
        self.end
    }

    /// Values in it, garbage included; 0 where that is not known.
    pub fn values(&self) -> u64 {
        self.footer.as_ref().map_or(0, |footer| footer.values)
    }

    /// Their bytes, before compression; 0 where that is not known.
    pub fn value_bytes(&self) -> u64 {
        self.footer.as_ref().map_or(0, |footer| footer.value_bytes)
    }

    pub(crate) fn file(&self) -> &Arc<dyn RandomFile> {
        &self.file
    }

    /// Whether the pointer leads into the file: before anything is read or allocated by it.
    pub(crate) fn check(&self, pointer: &ValuePointer) -> Result<()> {
        if pointer.file == self.id && pointer.end() <= self.end {
            return Ok(());
        }
        Err(self.damaged(pointer, "a pointer leads outside of the value file"))
    }

    /// The value in a frame that was read; `copy` as in [`open_frame`].
    pub(crate) fn decode(
        &self,
        pointer: &ValuePointer,
        frame: &Bytes,
        copy: bool,
    ) -> Result<Bytes> {
        let value = open_frame(frame, self.id, pointer.offset, None, copy)
            .map_err(|m| self.damaged(pointer, m.what))?;
        if value.len() != pointer.value_len as usize {
            return Err(self.damaged(pointer, "a value has another length than its pointer says"));
        }
        Ok(value)
    }

    /// Reads one value. Blocks.
    pub fn read(&self, pointer: &ValuePointer) -> Result<Bytes> {
        self.check(pointer)?;
        let frame = self.file.read_at(pointer.offset, pointer.stored_len as usize)?;
        self.decode(pointer, &frame, false)
    }

    pub(crate) fn damaged(&self, pointer: &ValuePointer, what: &str) -> Error {
        Error::corruption(self.path.display(), pointer.offset, what)
    }
}

/// Bytes of the windows of a job over value files, at most. The values of files that have no window are read one by one, and so are those that
/// are larger than one.
const WINDOWS_BYTES: u64 = 4 << 20;

/// Bytes that a window reads at once, at most: with half of them garbage, still enough values for one read of the device.
const WINDOW_BYTES_MAX: u64 = 256 << 10;

/// Where there are many files, at least: a read of it still takes little longer than one of a single value.
const WINDOW_BYTES_MIN: u64 = 64 << 10;

/// Windows of a check, 16 MiB in all: nothing else is in memory beside it.
const CHECK_WINDOWS_MAX: usize = 64;

/// Bytes of the windows of a job that moves values out of so many files, at most.
pub(crate) fn value_windows_bytes(files: usize) -> u64 {
    (files as u64).saturating_mul(WINDOW_BYTES_MAX).min(WINDOWS_BYTES)
}

/// Reads the values of many files, of each in the order in which they lie, many with one read: for compactions and
/// checks. Blocks.
#[derive(Debug)]
pub(crate) struct ValueWindows {
    windows: HashMap<FileId, ValueWindow>,
    /// How many there may be.
    max: usize,
    /// Bytes of each.
    window_bytes: u64,
}

impl Default for ValueWindows {
    fn default() -> Self {
        Self { windows: HashMap::new(), max: CHECK_WINDOWS_MAX, window_bytes: WINDOW_BYTES_MAX }
    }
}

impl ValueWindows {
    /// Over so many files, of [`value_windows_bytes`].
    pub(crate) fn new(files: usize) -> Self {
        let each = WINDOWS_BYTES / (files as u64).max(1);
        let window_bytes = each.clamp(WINDOW_BYTES_MIN, WINDOW_BYTES_MAX);
        Self { windows: HashMap::new(), max: (WINDOWS_BYTES / window_bytes) as usize, window_bytes }
    }

    /// The value, which may share memory with others.
    pub(crate) fn read(&mut self, reader: &ValueReader, pointer: &ValuePointer) -> Result<Bytes> {
        let has_place = self.windows.len() < self.max || self.windows.contains_key(&pointer.file);
        if !has_place || u64::from(pointer.stored_len) > self.window_bytes {
            return reader.read(pointer);
        }
        let window = self.windows.entry(pointer.file).or_default();
        window.read(reader, pointer, self.window_bytes)
    }

    /// Forgets what it has read: values that are read again are read from the files.
    pub(crate) fn let_go(&mut self) {
        self.windows = HashMap::new();
    }

    #[cfg(test)]
    fn held_bytes(&self) -> u64 {
        self.windows.values().map(|window| window.bytes.len() as u64).sum()
    }
}

/// A piece of a file.
#[derive(Debug, Default)]
struct ValueWindow {
    offset: u64,
    bytes: Bytes,
}

impl ValueWindow {
    /// A value that fits in.
    fn read(
        &mut self,
        reader: &ValueReader,
        pointer: &ValuePointer,
        window_bytes: u64,
    ) -> Result<Bytes> {
        reader.check(pointer)?;
        let held = self.offset..self.offset + self.bytes.len() as u64;
        if !(held.start <= pointer.offset && pointer.end() <= held.end) {
            let end = reader.end.min(pointer.offset.saturating_add(window_bytes));
            let len = end.saturating_sub(pointer.offset) as usize;
            self.bytes = match reader.file.read_at(pointer.offset, len) {
                Ok(bytes) => bytes,
                // Perhaps only what follows cannot be read.
                Err(_) => reader.file.read_at(pointer.offset, pointer.stored_len as usize)?,
            };
            self.offset = pointer.offset;
        }
        let start = (pointer.offset - self.offset) as usize;
        let end = start + pointer.stored_len as usize;
        if end > self.bytes.len() {
            return Err(reader.damaged(pointer, "a read came back short"));
        }
        reader.decode(pointer, &self.bytes.slice(start..end), false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::MemoryFiles;

    const PATH: &str = "f";

    fn written(
        compression: Compression,
        values: &[Vec<u8>],
    ) -> (Arc<MemoryFiles>, Vec<ValuePointer>) {
        let files = Arc::new(MemoryFiles::new());
        let file = files.create(Path::new(PATH)).unwrap();
        let mut writer = ValueFileWriter::new(file, 7, compression);
        let pointers = values.iter().map(|value| writer.add(value).unwrap()).collect();
        let summary = writer.finish().unwrap();
        assert_eq!(summary.values, values.len() as u64);
        (files, pointers)
    }

    fn values() -> Vec<Vec<u8>> {
        (0..200usize).map(|i| format!("value {i} ").repeat(i).into_bytes()).collect()
    }

    #[test]
    fn every_value_reads_back_alone_and_in_a_row() {
        for compression in [Compression::None, Compression::Lz4] {
            let (files, pointers) = written(compression, &values());
            let reader = ValueReader::open(files.as_ref(), Path::new(PATH), 7).unwrap();
            assert_eq!(reader.values(), 200);
            assert_eq!(reader.bytes(), files.open(Path::new(PATH)).unwrap().len().unwrap());
            let mut windows = ValueWindows::default();
            for (pointer, value) in pointers.iter().zip(values()) {
                assert_eq!(reader.read(pointer).unwrap(), value);
                assert_eq!(windows.read(&reader, pointer).unwrap(), value);
            }
        }
    }

    #[test]
    fn values_larger_than_a_window_are_read_and_not_held() {
        let window = WINDOW_BYTES_MAX as usize;
        let values: Vec<Vec<u8>> = [10, window - 9, window, 4 * window, 10]
            .iter()
            .zip(1u8..)
            .map(|(len, byte)| vec![byte; *len])
            .collect();
        let (files, pointers) = written(Compression::None, &values);
        let reader = ValueReader::open(files.as_ref(), Path::new(PATH), 7).unwrap();
        let mut windows = ValueWindows::default();
        for (pointer, value) in pointers.iter().zip(values) {
            assert!(windows.read(&reader, pointer).unwrap() == value);
            let held = windows.held_bytes();
            assert!(
                held <= WINDOW_BYTES_MAX,
                "{held} bytes are held after a value of {}",
                value.len()
            );
        }
    }

    #[test]
    fn the_windows_of_a_job_have_what_is_counted_for_them_however_many_files_there_are() {
        let value = vec![7; 10_000];
        for (count, of_each) in [(1, 256 << 10), (16, 256 << 10), (17, 200 << 10), (100, 64 << 10)]
        {
            let files: Vec<_> = (0..count)
                .map(|id| {
                    let files = Arc::new(MemoryFiles::new());
                    let file = files.create(Path::new(PATH)).unwrap();
                    let mut writer = ValueFileWriter::new(file, id, Compression::None);
                    let pointers: Vec<_> = (0..40).map(|_| writer.add(&value).unwrap()).collect();
                    writer.finish().unwrap();
                    let reader = ValueReader::open(files.as_ref(), Path::new(PATH), id).unwrap();
                    (reader, pointers)
                })
                .collect();
            let mut windows = ValueWindows::new(files.len());
            for at in 0..40 {
                for (reader, pointers) in &files {
                    assert_eq!(windows.read(reader, &pointers[at]).unwrap(), value);
                    assert!(windows.held_bytes() <= value_windows_bytes(files.len()));
                }
                if at == 0 {
                    let least = count.min(WINDOWS_BYTES / of_each) * of_each;
                    assert!(windows.held_bytes() >= least, "{count} files");
                }
            }
            windows.let_go();
            assert_eq!(windows.held_bytes(), 0);
            assert_eq!(windows.read(&files[0].0, &files[0].1[9]).unwrap(), value);
        }
    }

    /// What was appended, and where it lay in memory.
    type Appends = std::sync::Mutex<Vec<(usize, Vec<u8>)>>;

    /// A file that tells what it was given.
    #[derive(Debug, Default)]
    struct Given(Arc<Appends>);

    impl WritableFile for Given {
        fn append(&mut self, data: &[u8]) -> Result<()> {
            self.0.lock().unwrap().push((data.as_ptr() as usize, data.to_vec()));
            Ok(())
        }

        fn sync(&mut self) -> Result<()> {
            Ok(())
        }

        fn len(&self) -> u64 {
            self.0.lock().unwrap().iter().map(|(_, data)| data.len() as u64).sum()
        }

        fn reserve(&mut self, _: u64) -> Result<()> {
            Ok(())
        }
    }

    fn noise(len: usize) -> Vec<u8> {
        let mut x = 1u64;
        std::iter::repeat_with(|| {
            x = crate::random::mix64(x.wrapping_add(0x9E37_79B9_7F4A_7C15));
            x as u8
        })
        .take(len)
        .collect()
    }

    #[test]
    fn a_huge_value_that_does_not_shrink_is_written_from_where_it_is() {
        let huge = noise(3 << 20);
        for compression in [Compression::None, Compression::Lz4] {
            let given = Given::default();
            let appends = Arc::clone(&given.0);
            let mut writer = ValueFileWriter::new(Box::new(given), 7, compression);
            writer.add(b"before").unwrap();
            let pointer = writer.add(&huge).unwrap();
            writer.add(b"behind").unwrap();
            assert!(writer.buffer.capacity() <= 2 * WRITE_BUFFER_BYTES);
            writer.finish().unwrap();
            let appends = appends.lock().unwrap();
            let in_place = appends
                .iter()
                .any(|(at, data)| *at == huge.as_ptr() as usize && data.len() == huge.len());
            assert!(in_place, "{compression:?}");
            assert_eq!(pointer.stored_len as usize, huge.len() + 9);
        }
    }

    #[test]
    fn huge_values_read_back_whether_they_shrink_or_not() {
        let half = [noise(1 << 20), vec![1; 2 << 20]].concat();
        let values = [b"a".to_vec(), noise(1 << 20), vec![9; 5 << 20], half, b"z".to_vec()];
        for compression in [Compression::None, Compression::Lz4] {
            let (files, pointers) = written(compression, &values);
            let reader = ValueReader::open(files.as_ref(), Path::new(PATH), 7).unwrap();
            for (pointer, value) in pointers.iter().zip(&values) {
                assert!(reader.read(pointer).unwrap() == value);
                let shrinks = compression != Compression::None && value.len() > 2 << 20;
                let stored = pointer.stored_len as usize;
                assert!(!shrinks || stored < value.len() / 2, "{stored} of {}", value.len());
            }
        }
    }

    #[test]
    fn a_pointer_that_leads_astray_is_corruption_and_names_file_and_offset() {
        let (files, pointers) = written(Compression::None, &values());
        let reader = ValueReader::open(files.as_ref(), Path::new(PATH), 7).unwrap();
        let good = pointers[150];
        for bad in [
            ValuePointer { offset: good.offset + 1, ..good },
            ValuePointer { offset: 1 << 40, ..good },
            ValuePointer { stored_len: good.stored_len - 1, ..good },
            ValuePointer { value_len: good.value_len + 1, ..good },
            ValuePointer { file: 8, ..good },
        ] {
            let error = reader.read(&bad).unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::Corruption);
            let message = error.message();
            assert!(
                message.contains(PATH) && message.contains(&bad.offset.to_string()),
                "{message}"
            );
        }
    }

    #[test]
    fn a_file_that_was_cut_short_or_is_another_says_so_and_whole_values_are_read() {
        let (files, pointers) = written(Compression::None, &values());
        let path = Path::new(PATH);
        let open = |id| ValueReader::open(files.as_ref(), path, id).unwrap();
        assert!(open(7).verify_footer().is_ok());
        assert!(open(8).verify_footer().is_err(), "another number");
        let len = files.open(path).unwrap().len().unwrap();
        files.truncate(path, len - 1).unwrap();
        assert!(open(7).verify_footer().is_err());
        assert_eq!(open(7).read(&pointers[199]).unwrap(), values()[199]);
        files.truncate(path, pointers[100].offset).unwrap();
        assert_eq!(open(7).read(&pointers[99]).unwrap(), values()[99]);
        assert_eq!(open(7).read(&pointers[100]).unwrap_err().kind(), crate::ErrorKind::Corruption);
        files.truncate(path, 10).unwrap();
        assert!(open(7).verify_footer().is_err());
    }

    #[test]
    fn the_footer_is_as_the_format_says() {
        let mut bytes = Vec::new();
        Footer { values: 3, value_bytes: 30_000 }.encode(7, 4096, &mut bytes);
        assert_eq!(bytes.len(), FOOTER_LEN);
        assert_eq!(bytes[..8], [3, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[24..28], [1, 0, 0, 0]);
        assert_eq!(&bytes[40..], b"TEPUIVAL");
        assert!(Footer::decode(&bytes, 7, 4096).is_ok());
        assert!(Footer::decode(&bytes, 7, 4097).is_err(), "another place");
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            assert!(Footer::decode(&flipped, 7, 4096).is_err(), "bit of byte {at}");
        }
    }
}
