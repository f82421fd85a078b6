//! Writing a file past the page cache.
//!
//! A device takes whole units, from memory that is aligned as they are. So what is appended gathers in an aligned
//! buffer, which is written when it is full; a sync writes what is in it so far, with zeros up to the next unit,
//! and cuts the file to its length:
//!
//! ```text
//! file    ├──── written: whole buffers ────┤├───── what a sync has written ─────┤
//! buffer                                    ├── appended ────┤─ zeros ─┤
//!                                                            │         └ end of the unit, cut off again
//!                                                            └ length of the file
//! ```
//!
//! What a sync has written stays in the buffer and is written again with what follows: a file is synced once, at its
//! end.
//!
//! Where a write is refused for how it lies (a file system that takes the flag and cannot do it), the file goes on
//! through the page cache.

#![expect(clippy::disallowed_types, reason = "this is the file seam")]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::WritableFile;
use super::aligned::AlignedBuf;
use super::local::{failed, reserve};
use crate::error::{Error, ErrorKind, Result};

/// Bytes of one write. Smaller ones cost a wait for the device each (256 KiB: a tenth of a millisecond here); larger
/// ones only memory, of which every flush and compaction has one.
const WRITE_BYTES: usize = 1 << 20;

/// Zeros for the rest of a unit; no alignment that is believed is larger.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Whether it was said that a file system refuses direct writes.
#[derive(Debug, Default)]
pub(super) struct Refusal(AtomicBool);

impl Refusal {
    /// Says it, the first time.
    pub(super) fn tell(&self, path: &Path) {
        if !self.0.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                file = %path.display(),
                "the file system refuses direct writes; files there are written through the page cache"
            );
        }
    }
}

/// A file that is written past the page cache.
#[derive(Debug)]
pub(super) struct DirectWritable {
    file: File,
    path: PathBuf,
    /// Bytes of a unit; 1 once the file is written through the page cache.
    align: usize,
    buf: AlignedBuf,
    /// Where the buffer belongs: all before it is in the file.
    written: u64,
    /// Bytes of the buffer that the last sync has written.
    synced: usize,
    refusal: Arc<Refusal>,
}

impl DirectWritable {
    /// Of an empty file that was opened for direct writes in units of `align`; `None` where no buffer can be aligned so.
    pub(super) fn new(
        file: File,
        path: &Path,
        align: usize,
        refusal: Arc<Refusal>,
    ) -> Option<Self> {
        let buf = AlignedBuf::new(WRITE_BYTES, align)?;
        let path = path.to_owned();
        Some(Self { file, path, align, buf, written: 0, synced: 0, refusal })
    }

    /// Writes the buffer, which is made of whole units.
    fn write_buffer(&mut self) -> Result<()> {
        let mut done = 0;
        while let Some(rest) = self.buf.as_ref().get(done..).filter(|rest| !rest.is_empty()) {
            match rustix::io::pwrite(&self.file, rest, self.written + done as u64) {
                // Whole units only: the next write has to begin with one.
                Ok(len) if len >= self.align => done += len - len % self.align,
                Ok(_) => {
                    let text = format!("write {}: the device took nothing", self.path.display());
                    return Err(Error::new(ErrorKind::Io, text));
                }
                Err(Errno::INTR) => {}
                Err(Errno::INVAL) if self.align > 1 => self.give_up_direct()?,
                Err(errno) => return Err(failed("write", &self.path, &errno.into())),
            }
        }
        Ok(())
    }

    /// Goes on through the page cache.
    fn give_up_direct(&mut self) -> Result<()> {
        self.refusal.tell(&self.path);
        self.align = 1;
        rustix::fs::fcntl_getfl(&self.file)
            .and_then(|flags| rustix::fs::fcntl_setfl(&self.file, flags - OFlags::DIRECT))
            .map_err(|errno| failed("write", &self.path, &errno.into()))
    }
}

impl WritableFile for DirectWritable {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        let mut rest = data;
        while !rest.is_empty() {
            rest = self.buf.extend(rest);
            if self.buf.filled() == self.buf.capacity() {
                self.write_buffer()?;
                self.written += self.buf.filled() as u64;
                self.buf.truncate(0);
                self.synced = 0;
            }
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        let filled = self.buf.filled();
        if filled > self.synced {
            let padding = filled.next_multiple_of(self.align) - filled;
            self.buf.extend(ZEROS.get(..padding).unwrap_or(&ZEROS));
            let result = self.write_buffer();
            self.buf.truncate(filled);
            result?;
            let len = self.len();
            self.file.set_len(len).map_err(|e| failed("cut", &self.path, &e))?;
            self.synced = filled;
        }
        self.file.sync_data().map_err(|e| failed("sync", &self.path, &e))
    }

    fn len(&self) -> u64 {
        self.written + self.buf.filled() as u64
    }

    fn reserve(&mut self, len: u64) -> Result<()> {
        reserve(&self.file, &self.path, len)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "this is the file seam")]

    use super::*;

    #[test]
    fn a_file_that_refuses_direct_writes_is_written_through_the_page_cache() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::DIRECT;
        let Ok(fd) = rustix::fs::open(&path, flags, rustix::fs::Mode::RUSR) else { return };
        // Units that are too small are refused for the same reason as all are where none are taken.
        let mut file = DirectWritable::new(File::from(fd), &path, 8, Arc::default()).unwrap();
        let data: Vec<u8> = (0..2_000_003u32).map(|i| (i % 241) as u8).collect();
        file.append(&data).unwrap();
        file.sync().unwrap();
        assert!(std::fs::read(&path).unwrap() == data);
        file.append(b"x").unwrap();
        file.sync().unwrap();
        assert_eq!(std::fs::read(&path).unwrap().len(), data.len() + 1);
        assert_eq!((file.align, file.refusal.0.load(Ordering::Relaxed)), (1, true));
    }
}
