//! Fetching memory into the processor's cache before it is searched.
//!
//! A search touches a few lines of a block, each known only when the one before it has come: some 100 ns apiece
//! from memory. Asked for all at once, they come together.

/// Bytes of a cache line of the processors that matter.
pub(crate) const LINE_BYTES: usize = 64;

/// Bytes of a block that are fetched at most: more lines than the processor has room to wait for gain nothing.
const FETCHED_BYTES_MAX: usize = 2 << 10;

/// Begins to fetch the beginning of `bytes`. A hint: where the processor has no such instruction, nothing happens.
#[inline]
pub(crate) fn fetch(bytes: &[u8]) {
    for line in bytes.get(..FETCHED_BYTES_MAX).unwrap_or(bytes).chunks(LINE_BYTES) {
        fetch_line(line);
    }
}

/// Begins to fetch a value, and the line before it, where its counts of references are.
#[inline]
pub(crate) fn fetch_value<T>(value: &T) {
    let start = std::ptr::from_ref(value).cast::<u8>();
    fetch_at(start.wrapping_sub(1));
    for at in (0..size_of::<T>()).step_by(LINE_BYTES) {
        fetch_at(start.wrapping_add(at));
    }
}

#[inline]
fn fetch_line(line: &[u8]) {
    fetch_at(line.as_ptr());
}

#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn fetch_at(at: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: the instruction reads nothing that a program could see and fails for no address.
    unsafe { _mm_prefetch(at.cast(), _MM_HINT_T0) }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub(crate) fn fetch_at(_at: *const u8) {}
