//! One read of a file on a device, attempt by attempt: what must be read around what was asked, what an
//! attempt's answer means, and when the read has failed. Blocking reads and rings share it, so that there
//! is one place where it is decided what is tried again.
//!
//! ```text
//!             start             offset            offset + len                  end
//!   file  ────┼─────────────────┼─────────────────┼─────────────────────────────┼──────
//!             │◄──── skip ─────►│◄───── len ─────►│                             │
//!             │◄────────────────── span: whole units of `offset_align` ────────►│
//!   buffer    ├──────────── filled ───────┤
//! ```
//!
//! A read is done when `skip + len` bytes are filled: the file may end before the span does. An attempt
//! that fails with an error of the device, or brings less than the read still needs, is repeated once for
//! what is missing; the second such answer ends the read. Interruptions do not count.

use std::ops::Range;
use std::os::fd::BorrowedFd;

use bytes::{Buf as _, Bytes};
use rustix::io::Errno;

use super::aligned::{AlignedBuf, Haste, lends};
use super::{IoMetrics, RandomFile};
use crate::error::{Error, ErrorKind, Result};

/// Reads longer than this are checked against the file's length before memory is taken for them, so that
/// a damaged length cannot ask for gigabytes. Smaller ones are not worth the system call.
pub(super) const READ_UNCHECKED_BYTES_MAX: usize = 1 << 20;

/// Bytes of one attempt. Larger reads are made of several, one after the other, between which the device serves others: the largest
/// values have 100 MiB, a fifth of a second of a disk of 500 MB/s. Two of the largest read-aheads: a device is as fast with these.
pub(super) const ATTEMPT_BYTES_MAX: usize = 2 << 20;

/// Whether the device takes more than one attempt for a read of so many bytes: such reads have lanes of their own.
pub(super) fn is_large(len: usize) -> bool {
    len > ATTEMPT_BYTES_MAX
}

/// Interruptions (EINTR, EAGAIN) of one read, which are repeated without further ado. Signals are rare;
/// this many in one read are a device that will never answer.
const INTERRUPTIONS_MAX: u32 = 1_000;

/// A file as a device sees it.
#[derive(Debug, Clone, Copy)]
pub struct DeviceFile<'a> {
    /// The descriptor. It stays open as long as the [`RandomFile`] that showed it.
    pub fd: BorrowedFd<'a>,
    /// Reads begin at multiples of this and their lengths are multiples of it; a power of two, 1 where the
    /// page cache is read.
    pub offset_align: usize,
    /// Buffers begin at multiples of this in memory; a power of two.
    pub memory_align: usize,
    /// Where reads are counted.
    pub metrics: &'a IoMetrics,
}

impl DeviceFile<'_> {
    /// What the device reads for the bytes from `start` to `end`: whole units of `offset_align`. Both are below 2^63.
    pub(crate) fn span(&self, start: u64, end: u64) -> Range<u64> {
        let unit = self.offset_align as u64;
        start - start % unit..end.next_multiple_of(unit)
    }

    /// Whether a read of a [span](Self::span) is into memory that is lent: what stays of it is to be copied.
    pub(crate) fn lends(&self, span: &Range<u64>) -> bool {
        usize::try_from(span.end - span.start).is_ok_and(|bytes| lends(bytes, self.memory_align))
    }
}

/// What an attempt came back with: bytes read, or an error.
pub type Attempt = Result<usize, Errno>;

/// What is to be done after an attempt.
#[derive(Debug)]
pub(super) enum Next {
    /// The read is complete.
    Done,
    /// Another attempt at [`Read::position`].
    Again,
    /// The read has failed.
    Failed(Error),
}

/// A read under way. Owns the buffer that it fills.
#[derive(Debug)]
pub(super) struct Read {
    offset: u64,
    len: usize,
    skip: usize,
    offset_align: usize,
    buf: AlignedBuf,
    retried: bool,
    interruptions: u32,
}

/// Bytes of `file` that end too early.
pub(super) fn too_short(file: &dyn RandomFile, offset: u64, len: usize) -> Error {
    Error::corruption(
        file.path().display(),
        offset,
        format_args!("the file ends before the {len} bytes that belong here"),
    )
}

/// Whether an error is the device's, so that another try may go better. Others are the caller's or the
/// system's and come back the same.
fn of_the_device(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::IO
            | Errno::NODATA
            | Errno::TIMEDOUT
            | Errno::NOLINK
            | Errno::REMOTEIO
            | Errno::ILSEQ
            | Errno::NOMEM
    )
}

impl Read {
    /// Plans the read and takes its memory. A read that cannot be within the file is `Corruption`.
    pub(super) fn new(
        file: &dyn RandomFile,
        device: &DeviceFile<'_>,
        offset: u64,
        len: usize,
        haste: Haste,
    ) -> Result<Self> {
        let end = offset.checked_add(len as u64).filter(|end| i64::try_from(*end).is_ok());
        let Some(end) = end else { return Err(too_short(file, offset, len)) };
        if len > READ_UNCHECKED_BYTES_MAX && end > file.len()? {
            return Err(too_short(file, offset, len));
        }
        let span = device.span(offset, end);
        let skip = (offset - span.start) as usize;
        // Cannot overflow: the sum is at most `len` and two units.
        let buf = AlignedBuf::new((span.end - span.start) as usize, device.memory_align, haste)
            .ok_or_else(|| too_short(file, offset, len))?;
        let offset_align = device.offset_align;
        Ok(Self { offset, len, skip, offset_align, buf, retried: false, interruptions: 0 })
    }

    /// Bytes of memory that the read holds.
    pub(super) fn memory_bytes(&self) -> usize {
        self.buf.capacity()
    }

    /// Whether there is nothing to do.
    pub(super) fn is_complete(&self) -> bool {
        self.len == 0 || self.buf.filled() >= self.skip + self.len
    }

    /// From where and how many bytes the next attempt reads.
    pub(super) fn position(&self) -> (u64, usize) {
        let filled = self.buf.filled();
        let start = self.offset - self.skip as u64;
        (start + filled as u64, (self.buf.capacity() - filled).min(ATTEMPT_BYTES_MAX))
    }

    /// Where the next attempt writes to: valid for the length of [`Self::position`] while the read lives.
    #[cfg(target_os = "linux")]
    pub(super) fn target(&mut self) -> *mut u8 {
        self.buf.spare_ptr()
    }

    /// Takes note of `len` bytes that a kernel wrote at [`Self::target`].
    ///
    /// # Safety
    /// They must have been written.
    #[cfg(target_os = "linux")]
    pub(super) unsafe fn assume_read(&mut self, len: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.buf.assume_filled(len) }
    }

    /// Carries out an attempt on this thread.
    pub(super) fn attempt_blocking(&mut self, fd: BorrowedFd<'_>) -> Attempt {
        let (offset, len) = self.position();
        self.buf.pread(fd, offset, len)
    }

    /// Judges an attempt: `asked` is the length of [`Self::position`] before it, `filled` what was filled
    /// before it.
    fn judge(&mut self, before: usize, asked: usize, attempt: Attempt) -> Option<Errno> {
        match attempt {
            Ok(read) => {
                // Whoever reports fewer bytes than were written (a test's fault does) is believed.
                self.buf.truncate(before + read.min(asked));
                if self.is_complete() || read >= asked {
                    return None;
                }
                // The next attempt must begin at a whole unit.
                let filled = self.buf.filled();
                self.buf.truncate(filled - filled % self.offset_align);
                Some(Errno::IO)
            }
            Err(errno) => {
                self.buf.truncate(before);
                Some(errno)
            }
        }
    }

    /// Takes the answer of an attempt that began when `before` bytes were filled.
    pub(super) fn advance(
        &mut self,
        file: &dyn RandomFile,
        metrics: &IoMetrics,
        before: usize,
        attempt: Attempt,
    ) -> Next {
        let asked = (self.buf.capacity() - before).min(ATTEMPT_BYTES_MAX);
        let short = attempt.is_ok();
        let Some(errno) = self.judge(before, asked, attempt) else {
            if self.is_complete() {
                metrics.read(self.buf.filled());
                return Next::Done;
            }
            return Next::Again;
        };
        if matches!(errno, Errno::INTR | Errno::AGAIN) && self.interruptions < INTERRUPTIONS_MAX {
            self.interruptions += 1;
            return Next::Again;
        }
        if of_the_device(errno) && !self.retried {
            self.retried = true;
            metrics.retry();
            return Next::Again;
        }
        metrics.failure();
        Next::Failed(self.failed(file, short, errno))
    }

    fn failed(&self, file: &dyn RandomFile, short: bool, errno: Errno) -> Error {
        let (offset, len) = (self.offset, self.len);
        if short {
            // The end of the file, or a device that gives less than there is?
            match file.len() {
                Ok(size) if offset + len as u64 > size => return too_short(file, offset, len),
                Ok(_) => {
                    return Error::new(
                        ErrorKind::Io,
                        format!(
                            "read {} at offset {offset} ({len} bytes): the device answered short, twice",
                            file.path().display()
                        ),
                    );
                }
                Err(error) => return error,
            }
        }
        Error::io(
            format_args!("read {} at offset {offset} ({len} bytes)", file.path().display()),
            &errno.into(),
        )
    }

    /// Bytes filled so far; what [`Self::advance`] wants to know of the time before the attempt.
    pub(super) fn filled(&self) -> usize {
        self.buf.filled()
    }

    /// What was asked for, once complete. Shares the buffer.
    pub(super) fn finish(self) -> Bytes {
        if self.len == 0 {
            return Bytes::new();
        }
        // In place: a slice of the whole would count references for nothing.
        let mut bytes = Bytes::from_owner(self.buf);
        bytes.truncate(self.skip + self.len);
        bytes.advance(self.skip);
        bytes
    }
}

/// Carries out a read on this thread.
pub(super) fn read_blocking(
    file: &dyn RandomFile,
    device: &DeviceFile<'_>,
    offset: u64,
    len: usize,
) -> Result<Bytes> {
    read_blocking_while(file, device, offset, len, || Ok(()))
}

/// The same for as long as it is wanted, which is asked before each attempt but the first: an error ends the read.
pub(super) fn read_blocking_while(
    file: &dyn RandomFile,
    device: &DeviceFile<'_>,
    offset: u64,
    len: usize,
    is_wanted: impl Fn() -> Result<()>,
) -> Result<Bytes> {
    let mut read = Read::new(file, device, offset, len, Haste::MayWait)?;
    while !read.is_complete() {
        let before = read.filled();
        let attempt = file.answer(read.attempt_blocking(device.fd));
        match read.advance(file, device.metrics, before, attempt) {
            Next::Done => break,
            Next::Again => is_wanted()?,
            Next::Failed(error) => return Err(error),
        }
    }
    Ok(read.finish())
}

/// Repeats a whole read once after an I/O error: for files without a descriptor.
pub(super) fn retry_once<T>(metrics: &IoMetrics, mut read: impl FnMut() -> Result<T>) -> Result<T> {
    let io = |result: &Result<T>| matches!(result, Err(e) if e.kind() == ErrorKind::Io);
    let mut result = read();
    if io(&result) {
        metrics.retry();
        result = read();
        if io(&result) {
            metrics.failure();
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::io::{Files, MemoryFiles};
    use std::path::Path;
    use std::sync::Arc;

    /// A read of 100 bytes at 1,000 of a file of 4,000, in units of 512.
    struct Rig {
        file: Arc<dyn RandomFile>,
        metrics: IoMetrics,
    }

    impl Rig {
        fn new(len: usize) -> Self {
            let files = MemoryFiles::new();
            files.create(Path::new("f")).unwrap().append(&vec![7; len]).unwrap();
            Self { file: files.open(Path::new("f")).unwrap(), metrics: IoMetrics::default() }
        }

        fn read(&self, offset: u64, len: usize) -> Result<Read> {
            let null = tempfile::tempfile().unwrap();
            let device = DeviceFile {
                fd: null.as_fd(),
                offset_align: 512,
                memory_align: 512,
                metrics: &self.metrics,
            };
            Read::new(self.file.as_ref(), &device, offset, len, Haste::AtOnce)
        }

        /// The device writes `wrote` bytes and answers `attempt`.
        fn step(&self, read: &mut Read, wrote: &[u8], attempt: Attempt) -> Next {
            use std::io::Write as _;
            let before = read.filled();
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(wrote).unwrap();
            read.buf.pread(file.as_fd(), 0, wrote.len()).unwrap();
            read.advance(self.file.as_ref(), &self.metrics, before, attempt)
        }
    }

    fn error(next: Next) -> Error {
        match next {
            Next::Failed(error) => error,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_read_covers_whole_units_and_gives_back_what_was_asked() {
        let rig = Rig::new(4_000);
        let mut read = rig.read(1_000, 100).unwrap();
        assert_eq!(read.position(), (512, 1024));
        let data: Vec<u8> = (0..1024).map(|i| (i % 251) as u8).collect();
        assert!(matches!(rig.step(&mut read, &data, Ok(1024)), Next::Done));
        assert_eq!(read.finish(), data[488..588]);
        assert_eq!(rig.metrics.figures().read_bytes, 1024);
    }

    #[test]
    fn the_end_of_the_file_within_the_last_unit_is_no_short_answer() {
        let rig = Rig::new(4_000);
        let mut read = rig.read(3_900, 100).unwrap();
        assert_eq!(read.position(), (3_584, 512));
        assert!(matches!(rig.step(&mut read, &[1; 416], Ok(416)), Next::Done));
        assert_eq!((read.finish().len(), rig.metrics.figures().retries), (100, 0));
    }

    #[test]
    fn a_short_answer_is_completed_by_a_second_attempt_from_a_whole_unit() {
        let rig = Rig::new(4_000);
        let mut read = rig.read(0, 2_000).unwrap();
        assert!(matches!(rig.step(&mut read, &[1; 700], Ok(700)), Next::Again));
        assert_eq!(read.position(), (512, 1536));
        assert!(matches!(rig.step(&mut read, &[2; 1536], Ok(1536)), Next::Done));
        let bytes = read.finish();
        assert_eq!((bytes[511], bytes[512], bytes.len()), (1, 2, 2_000));
        assert_eq!(rig.metrics.figures().retries, 1);
    }

    #[test]
    fn a_second_short_answer_is_reported_with_file_and_offset() {
        let rig = Rig::new(4_000);
        let mut read = rig.read(1_024, 2_000).unwrap();
        assert!(matches!(rig.step(&mut read, &[1; 512], Ok(512)), Next::Again));
        let e = error(rig.step(&mut read, &[1; 512], Ok(512)));
        assert_eq!(e.kind(), ErrorKind::Io);
        assert!(e.message().contains("read f at offset 1024 (2000 bytes)"), "{e}");
        assert_eq!(rig.metrics.figures().failures, 1);
    }

    #[test]
    fn a_file_that_ends_too_early_is_corruption() {
        let rig = Rig::new(600);
        let mut read = rig.read(512, 100).unwrap();
        assert!(matches!(rig.step(&mut read, &[1; 88], Ok(88)), Next::Again));
        let e = error(rig.step(&mut read, &[1; 88], Ok(88)));
        assert_eq!(e.kind(), ErrorKind::Corruption);
        assert!(e.message().contains("offset 512"), "{e}");
    }

    #[test]
    fn a_device_error_is_tried_once_more_and_then_reported() {
        let rig = Rig::new(4_000);
        let mut read = rig.read(0, 100).unwrap();
        assert!(matches!(rig.step(&mut read, b"", Err(Errno::IO)), Next::Again));
        assert!(matches!(rig.step(&mut read, &[9; 512], Ok(512)), Next::Done));
        let mut read = rig.read(0, 100).unwrap();
        assert!(matches!(rig.step(&mut read, b"", Err(Errno::TIMEDOUT)), Next::Again));
        let e = error(rig.step(&mut read, b"", Err(Errno::IO)));
        assert!(e.kind() == ErrorKind::Io && e.message().contains("offset 0"), "{e}");
        assert_eq!((rig.metrics.figures().retries, rig.metrics.figures().failures), (2, 1));
    }

    #[test]
    fn errors_that_would_come_back_are_reported_at_once_and_interruptions_do_not_count() {
        let rig = Rig::new(4_000);
        let mut read = rig.read(0, 100).unwrap();
        for errno in [Errno::INTR, Errno::AGAIN, Errno::INTR] {
            assert!(matches!(rig.step(&mut read, b"", Err(errno)), Next::Again));
        }
        error(rig.step(&mut read, b"", Err(Errno::INVAL)));
        assert_eq!(rig.metrics.figures().retries, 0);
        let mut read = rig.read(0, 100).unwrap();
        for _ in 0..INTERRUPTIONS_MAX {
            assert!(matches!(rig.step(&mut read, b"", Err(Errno::INTR)), Next::Again));
        }
        error(rig.step(&mut read, b"", Err(Errno::INTR)));
    }

    #[test]
    fn reads_that_cannot_be_within_the_file_take_no_memory() {
        let rig = Rig::new(4_000);
        for (offset, len) in [(u64::MAX, 16), (i64::MAX as u64, 16), (0, 1 << 30), (5, usize::MAX)]
        {
            assert_eq!(rig.read(offset, len).unwrap_err().kind(), ErrorKind::Corruption);
        }
        assert!(rig.read(7, 0).unwrap().is_complete());
        assert!(rig.read(7, 0).unwrap().finish().is_empty());
    }

    #[test]
    fn a_read_without_a_descriptor_is_repeated_once_for_io_errors_only() {
        let metrics = IoMetrics::default();
        let run = |kind: ErrorKind, fails: usize| {
            let mut calls = 0;
            let result = retry_once(&metrics, || {
                calls += 1;
                if calls <= fails { Err(Error::new(kind, "x")) } else { Ok(calls) }
            });
            (result.ok(), calls)
        };
        assert_eq!(run(ErrorKind::Io, 1), (Some(2), 2));
        assert_eq!(run(ErrorKind::Io, 2), (None, 2));
        assert_eq!(run(ErrorKind::Corruption, 1), (None, 1));
    }
}
