//! The end of an SST, which one read brings when the file is opened.
//!
//! ```text
//! data blocks │ index partitions │ filter partitions │ coarse filter │ dictionary │ top index │ filter index │ properties │ footer
//!                                    └ of a small file ┘ └──────────────────── stays while it is open ─────────────────────┘
//! ```

use bytes::Bytes;

use crate::error::Result;
use crate::io::RandomFile;

/// Bytes that are read at once. All that stays of a file of the default size with rows of 300 bytes is 60 KiB, a coarse filter of
/// 40 and a dictionary of 16 among it; and a device gives them in little more time than a page.
const TAIL_BYTES: u64 = 64 << 10;

/// What is known of a file from its end on; the rest is read when it is asked for.
pub(super) struct Tail<'f> {
    file: &'f dyn RandomFile,
    offset: u64,
    bytes: Bytes,
}

impl<'f> Tail<'f> {
    /// Reads the end of a file of `len` bytes, of which the last `least` must be there. Where the device does not give
    /// all of it, those are read alone, so that what is damaged fails only who needs it. Blocks.
    pub(super) fn read(file: &'f dyn RandomFile, len: u64, least: u64) -> Result<Self> {
        let read = |bytes: u64| {
            let offset = len.saturating_sub(bytes);
            let bytes = file.read_at(offset, (len - offset) as usize)?;
            Ok(Self { file, offset, bytes })
        };
        read(TAIL_BYTES.max(least)).or_else(|_| read(least))
    }

    /// Nothing of a file.
    pub(super) fn none(file: &'f dyn RandomFile) -> Self {
        Self { file, offset: u64::MAX, bytes: Bytes::new() }
    }

    /// `len` bytes from `offset` on. Blocks where they are not at hand.
    pub(super) fn read_at(&self, offset: u64, len: usize) -> Result<Bytes> {
        let at = offset.checked_sub(self.offset).and_then(|at| usize::try_from(at).ok());
        let range = at.and_then(|at| Some(at..at.checked_add(len)?));
        match range.filter(|range| range.end <= self.bytes.len()) {
            Some(range) => Ok(self.bytes.slice(range)),
            None => self.file.read_at(offset, len),
        }
    }
}
