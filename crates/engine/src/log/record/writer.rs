//! Writes a record file.
//!
//! Guarantees: records are buffered and reach the file in as few writes as possible; `durable` in a
//! record is never ahead of what a returned sync covered; after a failed write or sync every later call
//! fails with the same error, since nobody knows what the file holds then.

use std::path::{Path, PathBuf};

use super::{Header, Magic, RECORD_BYTES_MAX, RECORD_HEADER_BYTES, digest, encode_file_header};
use crate::error::{Error, ErrorKind, Result};
use crate::io::{Files, WritableFile};

/// Buffered bytes before they are written without being asked. Smaller means more system calls for a
/// large group, larger more memory that is held between groups.
const WRITE_BUFFER_BYTES: usize = 1 << 20;

/// Bytes of a large record that are written at a time where the device begins with them before their sync.
const AHEAD_BYTES: usize = 512 << 10;

/// A record file being written.
#[derive(Debug)]
pub struct RecordWriter {
    file: Box<dyn WritableFile>,
    path: PathBuf,
    file_id: u64,
    buffer: Vec<u8>,
    /// Bytes of the file, buffered ones included.
    len: u64,
    /// Bytes that a returned sync covered.
    durable: u64,
    /// Up to here the file has zeros for records to come.
    laid_out: u64,
    /// Up to here it has space, as far as its file system reserves any.
    reserved: u64,
    /// Each write is soon synced.
    syncs_soon: bool,
    failed: Option<Error>,
}

impl RecordWriter {
    /// Creates the file. Its header is buffered like a record. The name is durable only after the
    /// caller has synced the directory.
    pub fn create(files: &dyn Files, path: &Path, magic: Magic, file_id: u64) -> Result<Self> {
        let file = files.create(path)?;
        let buffer = encode_file_header(magic, file_id);
        let len = buffer.len() as u64;
        Ok(Self {
            file,
            path: path.to_owned(),
            file_id,
            buffer,
            len,
            durable: 0,
            laid_out: 0,
            reserved: 0,
            syncs_soon: false,
            failed: None,
        })
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file was renamed; errors name it by `path` from now on.
    pub fn renamed(&mut self, path: &Path) {
        path.clone_into(&mut self.path);
    }

    /// The id in its header.
    pub fn file_id(&self) -> u64 {
        self.file_id
    }

    /// Bytes of the file, including what is still buffered.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Never: a record file starts with its header.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of the file that are known to be synced.
    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// Bytes that the file has after a record with a payload of `payload_len` bytes is appended.
    pub fn len_with(&self, payload_len: usize) -> u64 {
        self.len + RECORD_HEADER_BYTES + payload_len as u64
    }

    /// Says that what is written from now on is soon synced: the device begins with large records meanwhile.
    pub fn syncs_soon(mut self) -> Self {
        self.syncs_soon = true;
        self
    }

    /// Sees that there is space for `len` bytes in all, as far as the file system reserves any. `NoSpace` where there is too little;
    /// nothing counts as changed then.
    pub fn reserve(&mut self, len: u64) -> Result<()> {
        if len > self.reserved {
            match self.file.reserve(len) {
                Err(error) if error.kind() == ErrorKind::NoSpace => return Err(error),
                // It may get it the next time.
                Err(error) if error.kind() == ErrorKind::Exhausted => {}
                // Where a file system refuses it otherwise, a write that lacks space says so.
                Ok(()) | Err(_) => self.reserved = len,
            }
        }
        Ok(())
    }

    /// Bytes for which it has space, as far as is known.
    pub fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Bytes up to which the file was laid out with zeros; records may have come to lie on them since.
    pub fn laid_out(&self) -> u64 {
        self.laid_out
    }

    /// Writes what is buffered, and zeros behind it for records to come, up to `len` bytes in all: a sync of
    /// those has no new length to write. Without space for them none are written, and a record that needs
    /// it says so in its turn.
    pub fn lay_out(&mut self, len: u64) -> Result<()> {
        self.flush()?;
        match self.file.lay_out(len) {
            Err(error) if error.kind() == ErrorKind::NoSpace => {}
            laid_out => self.note(laid_out)?,
        }
        // Also without space: to try again for each record would be in vain.
        self.laid_out = self.laid_out.max(len);
        Ok(())
    }

    /// Appends a record and returns its offset. It may stay in the buffer until [`Self::flush`].
    pub fn append(&mut self, payload: &[u8]) -> Result<u64> {
        self.check()?;
        let length = payload.len() as u64;
        if length > RECORD_BYTES_MAX {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("a record of {length} bytes is over the limit of {RECORD_BYTES_MAX} bytes"),
            ));
        }
        let offset = self.len;
        let header =
            Header { length, durable: self.durable, digest: digest(self.file_id, offset, payload) };
        if self.buffer.len() + payload.len() > WRITE_BUFFER_BYTES {
            self.flush()?;
        }
        self.buffer.extend_from_slice(&header.encode(self.file_id, offset));
        if payload.len() > WRITE_BUFFER_BYTES {
            // Too large to be worth a copy.
            self.flush()?;
            let piece_bytes = if self.syncs_soon { AHEAD_BYTES } else { payload.len() };
            for piece in payload.chunks(piece_bytes) {
                let written = self.file.append(piece);
                self.note(written)?;
                self.begin_sync()?;
            }
        } else {
            self.buffer.extend_from_slice(payload);
        }
        self.len = header.end(offset);
        Ok(offset)
    }

    /// Writes what is buffered to the file.
    pub fn flush(&mut self) -> Result<()> {
        self.check()?;
        if !self.buffer.is_empty() {
            let written = self.file.append(&self.buffer);
            self.note(written)?;
            let is_large = self.buffer.len() >= AHEAD_BYTES;
            self.buffer.clear();
            if is_large {
                self.begin_sync()?;
            }
        }
        Ok(())
    }

    /// Has the device begin with what was written, where that is soon synced.
    fn begin_sync(&mut self) -> Result<()> {
        if !self.syncs_soon {
            return Ok(());
        }
        let begun = self.file.begin_sync();
        self.note(begun)
    }

    /// Writes and makes everything appended so far durable.
    pub fn sync(&mut self) -> Result<()> {
        self.flush()?;
        let synced = self.file.sync();
        self.note(synced)?;
        self.durable = self.len;
        Ok(())
    }

    fn check(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    fn note(&mut self, result: Result<()>) -> Result<()> {
        result.inspect_err(|error| self.failed = Some(error.clone()))
    }
}
