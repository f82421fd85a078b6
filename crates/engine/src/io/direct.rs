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
//! A full buffer is written by a thread of the file's own, while the next one is filled; so whoever merges records waits
//! for the device only where that is slower, and hears of an error with the next buffer or with the sync. A file of less
//! than a buffer needs no thread.
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
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::WritableFile;
use super::aligned::{AlignedBuf, Haste};
use super::local::{failed, reserve};
use crate::error::{Error, ErrorKind, Result};

/// Bytes of one write. Smaller ones cost a hand-over to another thread each; larger ones only memory, of which every flush
/// and compaction has two.
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
    target: Arc<Target>,
    buf: AlignedBuf,
    /// Where the buffer belongs: all before it is in the file, or on its way.
    written: u64,
    /// Bytes of the buffer that the last sync has written.
    synced: usize,
    /// From the first full buffer on.
    behind: Option<WriteBehind>,
}

/// The file, as whoever writes to it needs it.
#[derive(Debug)]
struct Target {
    file: File,
    path: PathBuf,
    /// Bytes of a unit; 1 once the file is written through the page cache.
    align: AtomicUsize,
    refusal: Arc<Refusal>,
}

impl Target {
    /// Writes a buffer, which is made of whole units.
    fn write(&self, buf: &AlignedBuf, offset: u64) -> Result<()> {
        let mut done = 0;
        while let Some(rest) = buf.as_ref().get(done..).filter(|rest| !rest.is_empty()) {
            let align = self.align.load(Ordering::Relaxed);
            match rustix::io::pwrite(&self.file, rest, offset + done as u64) {
                // Whole units only: the next write has to begin with one.
                Ok(len) if len >= align => done += len - len % align,
                Ok(_) => {
                    let text = format!("write {}: the device took nothing", self.path.display());
                    return Err(Error::new(ErrorKind::Io, text));
                }
                Err(Errno::INTR) => {}
                Err(Errno::INVAL) if align > 1 => self.give_up_direct()?,
                Err(errno) => return Err(failed("write", &self.path, &errno.into())),
            }
        }
        Ok(())
    }

    /// Goes on through the page cache.
    fn give_up_direct(&self) -> Result<()> {
        self.refusal.tell(&self.path);
        self.align.store(1, Ordering::Relaxed);
        rustix::fs::fcntl_getfl(&self.file)
            .and_then(|flags| rustix::fs::fcntl_setfl(&self.file, flags - OFlags::DIRECT))
            .map_err(|errno| failed("write", &self.path, &errno.into()))
    }
}

/// A thread that writes one buffer while the next one is filled. It ends with this.
#[derive(Debug)]
struct WriteBehind {
    /// Until the end.
    full: Option<SyncSender<(AlignedBuf, u64)>>,
    written: Receiver<(AlignedBuf, Result<()>)>,
    /// A buffer is on its way.
    busy: bool,
    /// A buffer was not written: there is a gap in the file, which must never be synced.
    failed: Option<Error>,
    thread: Option<JoinHandle<()>>,
}

impl WriteBehind {
    fn start(target: Arc<Target>) -> Result<Self> {
        let (full, to_write) = sync_channel::<(AlignedBuf, u64)>(1);
        let (answer, written) = sync_channel(1);
        let work = move || {
            for (buf, offset) in to_write {
                let result = target.write(&buf, offset);
                if answer.send((buf, result)).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("tepui-write".to_owned())
            .spawn(work)
            .map_err(|e| Error::io("start a thread that writes", &e))?;
        Ok(Self { full: Some(full), written, busy: false, failed: None, thread: Some(thread) })
    }

    /// Waits for the buffer that is on its way, and gives it back; `None` for none.
    fn wait(&mut self) -> Result<Option<AlignedBuf>> {
        if std::mem::take(&mut self.busy) {
            match self.written.recv() {
                Ok((buf, Ok(()))) => return Ok(Some(buf)),
                Ok((_, Err(error))) => self.failed = Some(error),
                Err(_) => self.failed = Some(gone()),
            }
        }
        self.failed.clone().map_or(Ok(None), Err)
    }

    fn send(&mut self, buf: AlignedBuf, offset: u64) -> Result<()> {
        if self.full.as_ref().is_none_or(|full| full.send((buf, offset)).is_err()) {
            self.failed = Some(gone());
            return Err(gone());
        }
        self.busy = true;
        Ok(())
    }
}

fn gone() -> Error {
    Error::new(ErrorKind::Io, "the thread that writes the file has ended")
}

impl Drop for WriteBehind {
    fn drop(&mut self) {
        // Nothing is written any more once the file is closed.
        self.full = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl DirectWritable {
    /// Of an empty file that was opened for direct writes in units of `align`; `None` where no buffer can be aligned so.
    pub(super) fn new(
        file: File,
        path: &Path,
        align: usize,
        refusal: Arc<Refusal>,
    ) -> Option<Self> {
        let buf = AlignedBuf::new(WRITE_BYTES, align, Haste::MayWait)?;
        let align = AtomicUsize::new(align);
        let target = Arc::new(Target { file, path: path.to_owned(), align, refusal });
        Some(Self { target, buf, written: 0, synced: 0, behind: None })
    }

    /// Has the full buffer written, and goes on with the other one.
    fn turn(&mut self) -> Result<()> {
        let behind = match &mut self.behind {
            Some(behind) => behind,
            None => match WriteBehind::start(Arc::clone(&self.target)) {
                Ok(started) => self.behind.insert(started),
                // No thread is to be had: that is no reason for a flush to fail.
                Err(_) => return self.write_here(),
            },
        };
        let next = match behind.wait()? {
            Some(mut buf) => {
                buf.truncate(0);
                buf
            }
            None => {
                let align = self.target.align.load(Ordering::Relaxed);
                AlignedBuf::new(WRITE_BYTES, align, Haste::MayWait)
                    .ok_or_else(|| Error::new(ErrorKind::Io, "no memory is aligned so"))?
            }
        };
        let full = std::mem::replace(&mut self.buf, next);
        let (offset, len) = (self.written, full.filled() as u64);
        behind.send(full, offset)?;
        self.written += len;
        self.synced = 0;
        Ok(())
    }

    /// Writes the full buffer on this thread.
    fn write_here(&mut self) -> Result<()> {
        self.target.write(&self.buf, self.written)?;
        self.written += self.buf.filled() as u64;
        self.buf.truncate(0);
        self.synced = 0;
        Ok(())
    }
}

impl WritableFile for DirectWritable {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        let mut rest = data;
        while !rest.is_empty() {
            rest = self.buf.extend(rest);
            if self.buf.filled() == self.buf.capacity() {
                self.turn()?;
            }
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        if let Some(behind) = &mut self.behind {
            behind.wait()?;
        }
        let filled = self.buf.filled();
        if filled > self.synced {
            let align = self.target.align.load(Ordering::Relaxed);
            let padding = filled.next_multiple_of(align) - filled;
            self.buf.extend(ZEROS.get(..padding).unwrap_or(&ZEROS));
            let result = self.target.write(&self.buf, self.written);
            self.buf.truncate(filled);
            result?;
            let len = self.len();
            self.target.file.set_len(len).map_err(|e| failed("cut", &self.target.path, &e))?;
            self.synced = filled;
        }
        self.target.file.sync_data().map_err(|e| failed("sync", &self.target.path, &e))
    }

    fn len(&self) -> u64 {
        self.written + self.buf.filled() as u64
    }

    fn reserve(&mut self, len: u64) -> Result<()> {
        reserve(&self.target.file, &self.target.path, self.len(), len)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "this is the file seam")]

    use std::os::fd::OwnedFd;

    use super::*;
    use crate::testing::{disk_dir, skip};

    #[test]
    fn a_file_that_refuses_direct_writes_is_written_through_the_page_cache() {
        let dir = disk_dir();
        let path = dir.path().join("f");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::DIRECT;
        let Ok(fd) = rustix::fs::open(&path, flags, rustix::fs::Mode::RUSR) else {
            return skip("this file system has no direct writes");
        };
        // Units that are too small are refused for the same reason as all are where none are taken.
        let mut file = DirectWritable::new(File::from(fd), &path, 8, Arc::default()).unwrap();
        let data: Vec<u8> = (0..2_000_003u32).map(|i| (i % 241) as u8).collect();
        file.append(&data).unwrap();
        file.sync().unwrap();
        assert!(std::fs::read(&path).unwrap() == data);
        file.append(b"x").unwrap();
        file.sync().unwrap();
        assert_eq!(std::fs::read(&path).unwrap().len(), data.len() + 1);
        let target = &file.target;
        let told = target.refusal.0.load(Ordering::Relaxed);
        assert_eq!((target.align.load(Ordering::Relaxed), told), (1, true));
    }

    #[test]
    fn without_a_thread_a_full_buffer_is_written_by_whoever_fills_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let mut file =
            DirectWritable::new(File::create(&path).unwrap(), &path, 1, Arc::default()).unwrap();
        let data: Vec<u8> = (0..2 * WRITE_BYTES + 3).map(|i| (i % 239) as u8).collect();
        assert_eq!(file.buf.extend(&data).len(), WRITE_BYTES + 3);
        file.write_here().unwrap();
        // With one from here on.
        file.append(&data[WRITE_BYTES..]).unwrap();
        assert!(file.behind.is_some());
        file.sync().unwrap();
        assert!(std::fs::read(&path).unwrap() == data);
    }

    #[test]
    fn a_sync_that_fails_is_told_by_the_path_of_the_file() {
        // That of a pipe always fails, so one that is left out is seen here.
        let pipe = File::from(OwnedFd::from(std::io::pipe().unwrap().1));
        let path = Path::new("/data/of-a-pipe");
        let mut file = DirectWritable::new(pipe, path, 1, Arc::default()).unwrap();
        let error = file.sync().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.message().starts_with("sync /data/of-a-pipe: "), "{error}");
    }

    #[test]
    fn a_buffer_that_was_not_written_fails_all_that_comes_after_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, b"").unwrap();
        // Opened for reading: every write is refused.
        let file = File::open(&path).unwrap();
        let mut file = DirectWritable::new(file, &path, 1, Arc::default()).unwrap();
        let buffer = vec![7; WRITE_BYTES];
        file.append(&buffer).unwrap();
        for _ in 0..3 {
            let error = file.append(&buffer).and_then(|()| file.sync()).unwrap_err();
            assert!(error.message().contains("write") && error.message().contains("/f"), "{error}");
        }
        assert!(file.sync().is_err());
        drop(file);
        assert_eq!(std::fs::read(&path).unwrap(), b"");
    }
}
