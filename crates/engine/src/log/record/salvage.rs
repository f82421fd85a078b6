//! Reads what can be read of a damaged record file, for the repair tool.
//!
//! Guarantees: every record that verifies is returned, in order of offset, whatever lies between; every
//! byte that belongs to none is in a damaged range, except zeros at the end of the file.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::reader::Window;
use super::{FILE_HEADER_BYTES, Magic, RECORD_HEADER_BYTES, Record};
use crate::error::{ErrorKind, Result};
use crate::io::RandomFile;

/// A damaged record file being read.
#[derive(Debug)]
pub struct Salvage {
    window: Window,
    at: u64,
    damaged: Vec<Range<u64>>,
    done: bool,
}

impl Salvage {
    /// Opens a file. `file_id` comes from its name, so that a damaged header loses nothing.
    pub fn open(file: Arc<dyn RandomFile>, magic: Magic, file_id: u64) -> Result<Self> {
        let mut window = Window::new(file, file_id)?;
        let whole = window.file_header(magic)? == Some(file_id);
        // Records are looked for from the first byte after the header even when the header is damaged:
        // it has a fixed size.
        let at = FILE_HEADER_BYTES.min(window.file_len);
        let mut salvage = Self { window, at, damaged: Vec::new(), done: false };
        if !whole {
            salvage.add_damage(0..at);
        }
        Ok(salvage)
    }

    /// The next record that verifies.
    pub fn next_record(&mut self) -> Result<Option<Record>> {
        if self.done {
            return Ok(None);
        }
        let from = self.at;
        match self.window.find(from)? {
            Some((offset, header)) => {
                self.add_damage(from..offset);
                self.at = offset + RECORD_HEADER_BYTES + header.length;
                self.window.record(offset)
            }
            None => {
                let left = self.window.bytes_before_zeros(from)?;
                self.add_damage(from..from + left);
                self.done = true;
                Ok(None)
            }
        }
    }

    /// `InvalidArgument` where a newer version wrote one of the records from here on, as `decode` says of its payload.
    pub fn check_versions<T>(mut self, decode: impl Fn(Bytes) -> Result<T>) -> Result<()> {
        while let Some(record) = self.next_record()? {
            if let Err(error) = decode(record.payload)
                && error.kind() == ErrorKind::InvalidArgument
            {
                let path = self.window.file.path().display();
                return Err(error.context(format_args!("{path}: offset {}", record.offset)));
            }
        }
        Ok(())
    }

    /// The byte ranges so far that belong to no record: ascending, disjoint, not adjacent.
    pub fn damaged(&self) -> &[Range<u64>] {
        &self.damaged
    }

    /// The offset after the last record that was returned.
    pub fn position(&self) -> u64 {
        self.at
    }

    fn add_damage(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        match self.damaged.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.damaged.push(range),
        }
    }
}
