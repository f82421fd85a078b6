//! Fetching memory into the processor's cache before it is searched.
//!
//! A search touches a few lines of a block, each known only when the one before it has come: some 100 ns apiece
//! from memory. Asked for all at once, they come together.

use std::ptr::without_provenance;
use std::sync::atomic::{AtomicU64, Ordering};

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

/// Where bytes lie that will be looked at, noted beside the reference that leads to them: they then come from memory together
/// with what is on the way there, and not after it.
///
/// Read without a lock, so it may tell of bytes that are gone: good for fetching memory, and for nothing else.
#[derive(Debug, Default)]
pub(crate) struct Whereabouts(AtomicU64);

impl Whereabouts {
    /// Bits of an address; above them is the number of lines.
    const ADDRESS_BITS: u32 = 56;

    /// Notes where these bytes lie. Nothing is noted where they are more than [`FETCHED_BYTES_MAX`]: a search looks at few of so many.
    pub(crate) fn note(&self, bytes: &[u8]) {
        let address = bytes.as_ptr().addr();
        let lines = (address % LINE_BYTES + bytes.len()).div_ceil(LINE_BYTES) as u64;
        let is_noted =
            address >> Self::ADDRESS_BITS == 0 && (1..=FETCHED_BYTES_MAX).contains(&bytes.len());
        let noted = if is_noted { lines << Self::ADDRESS_BITS | address as u64 } else { 0 };
        self.0.store(noted, Ordering::Relaxed);
    }

    /// Keeps a number of somebody else's making in its place, who tells them apart.
    pub(crate) fn set(&self, number: u64) {
        self.0.store(number, Ordering::Relaxed);
    }

    /// That number.
    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// An address in each of the lines that they take up.
    #[inline]
    fn lines(&self) -> impl Iterator<Item = usize> {
        let noted = self.0.load(Ordering::Relaxed);
        let address = (noted & ((1 << Self::ADDRESS_BITS) - 1)) as usize;
        (0..(noted >> Self::ADDRESS_BITS) as usize).map(move |line| address + line * LINE_BYTES)
    }

    /// Begins to fetch them.
    #[inline]
    pub(crate) fn fetch(&self) {
        self.lines().for_each(|line| fetch_at(without_provenance(line)));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_are_the_lines_of_all_bytes_and_no_others() {
        let memory = [0; FETCHED_BYTES_MAX + 2 * LINE_BYTES];
        let whereabouts = Whereabouts::default();
        for start in 0..2 * LINE_BYTES {
            for len in [0, 1, 63, 64, 65, 1000, FETCHED_BYTES_MAX] {
                let bytes = &memory[start..start + len];
                whereabouts.note(bytes);
                let mut lines: Vec<_> =
                    bytes.iter().map(|b| std::ptr::from_ref(b).addr() / LINE_BYTES).collect();
                lines.dedup();
                let noted: Vec<_> = whereabouts.lines().map(|line| line / LINE_BYTES).collect();
                assert_eq!(noted, lines, "{len} bytes from {start} on");
            }
        }
        whereabouts.note(&memory[..=FETCHED_BYTES_MAX]);
        assert_eq!(whereabouts.lines().count(), 0, "of so many a search looks at few");
    }
}
