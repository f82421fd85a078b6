//! Reads single records of a complete record file, at offsets that somebody has kept.
//!
//! Guarantees: what is returned was verified against the file's number and its own offset; a length that is asked for
//! and is more than the file has is `Corruption`, before any memory is taken.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use super::{
    FILE_HEADER_BYTES, FORMAT_VERSION, FileHeader, Header, Magic, RECORD_HEADER_BYTES, digest,
};
use crate::error::{Error, Result};
use crate::io::RandomFile;

/// A record file that is complete.
#[derive(Debug, Clone)]
pub struct RecordFile {
    file: Arc<dyn RandomFile>,
    file_id: u64,
    len: u64,
}

impl RecordFile {
    /// Opens a file whose header must have this magic and number.
    pub fn open(file: Arc<dyn RandomFile>, magic: Magic, file_id: u64) -> Result<Self> {
        let len = file.len()?;
        let opened = Self { file, file_id, len };
        let bytes = opened.bytes(0, FILE_HEADER_BYTES)?;
        match FileHeader::decode(&bytes).filter(|header| header.magic == magic) {
            Some(header) if header.version != u64::from(FORMAT_VERSION) => {
                let version = header.version;
                Err(Error::newer_version(opened.file.path().display(), version, FORMAT_VERSION))
            }
            Some(header) if header.file_id == file_id => Ok(opened),
            Some(header) => Err(opened.corruption(
                0,
                format_args!(
                    "the header belongs to file {:016x}, the name to {file_id:016x}",
                    header.file_id
                ),
            )),
            None => Err(opened.corruption(0, "the file header is damaged")),
        }
    }

    /// Bytes of the file.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Never: a record file starts with its header.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Damage at `offset` of this file.
    pub fn corruption(&self, offset: u64, what: impl std::fmt::Display) -> Error {
        Error::corruption(self.file.path().display(), offset, what)
    }

    /// The payload of the record at `offset`, which takes `bytes` bytes with its header.
    pub fn record(&self, offset: u64, bytes: u64) -> Result<Bytes> {
        let record = self.bytes(offset, bytes)?;
        let header = Header::decode(&record, self.file_id, offset, self.len)
            .filter(|header| RECORD_HEADER_BYTES + header.length == bytes)
            .ok_or_else(|| self.corruption(offset, "a record's header is damaged"))?;
        let payload = record.slice(RECORD_HEADER_BYTES as usize..);
        if digest(self.file_id, offset, &payload) != header.digest {
            return Err(self.corruption(offset, "a record is damaged"));
        }
        Ok(payload)
    }

    fn bytes(&self, offset: u64, bytes: u64) -> Result<Bytes> {
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= self.len);
        match usize::try_from(bytes) {
            Ok(bytes) if fits => self.file.read_at(offset, bytes),
            _ => Err(self
                .corruption(offset, format_args!("the file ends before {bytes} bytes from here"))),
        }
    }
}
