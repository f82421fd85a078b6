//! A buffer that a device can write to directly: it begins at a multiple of the device's alignment, is
//! never zeroed for nothing, and becomes [`Bytes`] without a copy.
//!
//! ```text
//! ├──────── filled ────────┼──────── spare (uninitialised) ────────┤
//! ptr (aligned)                                                    ptr + capacity
//! ```
//!
//! Memory of several pages is cut from [regions](super::regions), where it lies in one piece for the device as well.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rustix::io::Errno;

#[cfg(target_os = "linux")]
use super::regions::{self, Piece};

/// Pages of most systems.
pub(super) const PAGE_BYTES: usize = 4 << 10;
/// Bytes that [`bytes::Bytes`] takes besides a buffer's own where it owns one: the buffer's fields, and a count.
pub(crate) const OWNED_BYTES: usize = size_of::<AlignedBuf>() + size_of::<usize>();

/// Whether a thread may wait for memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Haste {
    /// It serves others as well.
    AtOnce,
    /// It blocks anyway.
    MayWait,
}

/// Memory with one owner.
enum Memory {
    Heap(NonNull<u8>, Layout),
    #[cfg(target_os = "linux")]
    Lent(Piece),
}

// SAFETY: plain memory, not tied to a thread.
unsafe impl Send for Memory {}

impl Memory {
    /// Lent memory, or else the heap's. `None` where none can be so large.
    fn take(bytes: usize, align: usize, haste: Haste) -> Option<Self> {
        #[cfg(target_os = "linux")]
        if lends(bytes, align)
            && let Some(piece) = regions::take(bytes, haste)
        {
            return Some(Self::Lent(piece));
        }
        // A page for the device, and not the halves of two.
        let align = if align > 1 && bytes >= PAGE_BYTES { align.max(PAGE_BYTES) } else { align };
        // An allocation of nothing is not allowed; one byte more costs nothing.
        let layout = Layout::from_size_align(bytes.max(1), align).ok()?;
        // SAFETY: the layout's size is not zero.
        let ptr = unsafe { alloc(layout) };
        let Some(ptr) = NonNull::new(ptr) else { handle_alloc_error(layout) };
        Some(Self::Heap(ptr, layout))
    }

    fn ptr(&self) -> NonNull<u8> {
        match self {
            Self::Heap(ptr, _) => *ptr,
            #[cfg(target_os = "linux")]
            Self::Lent(piece) => piece.ptr(),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        match self {
            // SAFETY: allocated in `take` with this layout, and this is its only owner.
            Self::Heap(ptr, layout) => unsafe { dealloc(ptr.as_ptr(), *layout) },
            #[cfg(target_os = "linux")]
            Self::Lent(_) => {}
        }
    }
}

/// Whether a buffer of so many bytes, for a device that wants memory aligned so, is in memory that is lent, if there is room.
#[cfg(target_os = "linux")]
pub(super) fn lends(bytes: usize, align: usize) -> bool {
    // The page cache copies whatever lies where.
    let from_device = align > 1 && align <= PAGE_BYTES;
    from_device && regions::lends(bytes)
}

/// The same: nothing is.
#[cfg(not(target_os = "linux"))]
pub(super) fn lends(_bytes: usize, _align: usize) -> bool {
    false
}

/// The buffer. Its bytes do not move while it lives, wherever the value itself moves to.
pub(super) struct AlignedBuf {
    memory: Memory,
    capacity: usize,
    filled: usize,
}

// SAFETY: the buffer owns its memory, and nothing in it is tied to a thread.
unsafe impl Send for AlignedBuf {}
// SAFETY: a shared reference allows only reads of what is filled.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// `capacity` bytes at a multiple of `align`, which must be a power of two. `None` where no buffer can
    /// be so large.
    pub(super) fn new(capacity: usize, align: usize, haste: Haste) -> Option<Self> {
        let memory = Memory::take(capacity, align, haste)?;
        Some(Self { memory, capacity, filled: 0 })
    }

    /// Bytes that are filled.
    pub(super) fn filled(&self) -> usize {
        self.filled
    }

    /// Bytes that fit.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Forgets what is filled beyond `len`.
    pub(super) fn truncate(&mut self, len: usize) {
        self.filled = self.filled.min(len);
    }

    /// Copies of `data` what still fits behind what is filled; the rest of it.
    pub(super) fn extend<'a>(&mut self, data: &'a [u8]) -> &'a [u8] {
        let room = (self.capacity() - self.filled).min(data.len());
        let (fits, rest) = data.split_at_checked(room).unwrap_or((data, &[]));
        // SAFETY: `fits` is no longer than the spare part, and lies elsewhere, since the buffer is borrowed alone.
        unsafe {
            self.spare_ptr().copy_from_nonoverlapping(fits.as_ptr(), fits.len());
            self.assume_filled(fits.len());
        }
        rest
    }

    /// Where the spare part begins, for a kernel that writes to it on its own. The pointer is valid for
    /// `capacity - filled` bytes as long as the buffer lives.
    pub(super) fn spare_ptr(&mut self) -> *mut u8 {
        // SAFETY: `filled` is at most the capacity, so the result lies within the allocation or at its end.
        unsafe { self.memory.ptr().as_ptr().add(self.filled) }
    }

    /// Counts `len` bytes of the spare part as filled.
    ///
    /// # Safety
    /// They must have been written.
    pub(super) unsafe fn assume_filled(&mut self, len: usize) {
        debug_assert!(len <= self.capacity() - self.filled);
        self.filled += len;
    }

    /// Reads up to `len` bytes at `offset` of a file into the spare part. Blocks.
    pub(super) fn pread(
        &mut self,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
    ) -> Result<usize, Errno> {
        let len = len.min(self.capacity() - self.filled);
        let start = self.spare_ptr().cast::<MaybeUninit<u8>>();
        // SAFETY: these bytes are within the allocation, and the exclusive borrow of the buffer lasts as
        // long as the slice; they may be uninitialised, as their type says.
        let spare = unsafe { std::slice::from_raw_parts_mut(start, len) };
        let (read, _) = rustix::io::pread(fd, spare, offset)?;
        let len = read.len();
        // SAFETY: the call says that it has initialised this many.
        unsafe { self.assume_filled(len) };
        Ok(len)
    }
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the first `filled` bytes are initialised and within the allocation.
        unsafe { std::slice::from_raw_parts(self.memory.ptr().as_ptr(), self.filled) }
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlignedBuf")
            .field("capacity", &self.capacity())
            .field("filled", &self.filled)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use std::io::Write as _;
    use std::os::fd::AsFd;

    #[test]
    fn a_buffer_begins_where_the_device_needs_it_and_impossible_ones_are_refused() {
        for align in [1, 4, 512, 4096] {
            let mut buf = AlignedBuf::new(8192, align, Haste::MayWait).unwrap();
            assert_eq!(buf.spare_ptr() as usize % align, 0);
            assert_eq!((buf.filled(), buf.capacity()), (0, 8192));
        }
        assert!(AlignedBuf::new(usize::MAX, 512, Haste::MayWait).is_none());
        assert!(AlignedBuf::new(16, 3, Haste::MayWait).is_none());
        assert!(AlignedBuf::new(0, 512, Haste::MayWait).unwrap().as_ref().is_empty());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn memory_is_lent_for_what_a_device_reads_in_several_pages() {
        use regions::REGION_BYTES;
        const PAGE: usize = PAGE_BYTES;
        for (bytes, align, lent) in [
            (PAGE, 512, false),
            (PAGE + 1, 512, true),
            (10 * PAGE, PAGE, true),
            (REGION_BYTES, 512, true),
            (REGION_BYTES + 1, 512, false),
            (10 * PAGE, 1, false),
            (10 * PAGE, 2 * PAGE, false),
        ] {
            assert_eq!(lends(bytes, align), lent, "{bytes} by {align}");
            let mut buf = AlignedBuf::new(bytes, align, Haste::MayWait).unwrap();
            assert_eq!(buf.capacity(), bytes);
            let at = buf.spare_ptr() as usize;
            // Where there is no room, other tests have it all: the heap serves, by the same alignment.
            assert!(lent || matches!(buf.memory, Memory::Heap(..)), "{bytes} by {align}");
            // In time there is some.
            let mut is_lent = std::iter::repeat_with(|| {
                std::thread::yield_now();
                let buf = AlignedBuf::new(bytes, align, Haste::MayWait).unwrap();
                matches!(buf.memory, Memory::Lent(_))
            });
            assert!(!lent || is_lent.by_ref().take(100_000).any(|is_lent| is_lent), "{bytes}");
            let page = if align > 1 && bytes >= PAGE { align.max(PAGE) } else { align };
            assert_eq!(at % page, 0, "{bytes} by {align}");
        }
    }

    #[test]
    fn reads_append_to_what_is_filled_and_stop_at_the_capacity() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"0123456789").unwrap();
        let mut buf = AlignedBuf::new(8, 512, Haste::MayWait).unwrap();
        assert_eq!(buf.pread(file.as_fd(), 0, 4), Ok(4));
        assert_eq!(buf.pread(file.as_fd(), 4, 100), Ok(4));
        assert_eq!(buf.pread(file.as_fd(), 8, 100), Ok(0));
        assert_eq!(buf.as_ref(), b"01234567");
        buf.truncate(3);
        assert_eq!(buf.pread(file.as_fd(), 9, 5), Ok(1));
        let bytes = Bytes::from_owner(buf).slice(1..);
        assert_eq!(bytes, "129");
    }
}
