//! The memory of a memtable: chunks that grow, are carved from front to back, and are freed together.
//!
//! ```text
//! first   chunk 8 KiB      chunk 16 KiB            ...  chunks of 1 MiB          own chunk: one large record
//! +----+  +----+----+---+  +----+------+----+---+       +----+----+ - - +---+   +---------------------------+
//! | a  |  | b  | c  |   |  | d  | e    | f  |   |       | g  |    |     |   |   | h                         |
//! +----+  +----+----+---+  +----+------+----+---+       +----+----+ - - +---+   +---------------------------+
//!                    ^ too short for the next one: left unused           ^ Bump::next
//! ```
//!
//! The first chunk is as long as what is asked for first, the head of the list: every open tablet has a memtable, and thousands of
//! them may be empty. Chunks of the full size go from one memtable to the next. Guarantees: what [`Bump::alloc`] returns is aligned to [`ALIGN`], is its caller's alone, never moves
//! and stays valid until the [`Arena`] is dropped. Nothing is freed on its own, which is what lets
//! readers follow pointers without a lock or a count.
//!
//! One of the two files of the memtable that hold `unsafe` code; the other is `skiplist.rs`.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Alignment of every allocation, in bytes: that of a pointer.
pub(super) const ALIGN: usize = 8;

/// Bytes of the first chunk for records. Thousands of tablets may have a few small rows each, so it must be small; a smaller
/// one would only add a step or two to the doubling.
pub(super) const CHUNK_BYTES_FIRST: usize = 8 << 10;

/// Bytes of a chunk at most. Larger ones would leave more memory reserved and unused in a memtable that
/// has just grown; smaller ones would leave more unused tails per byte.
pub(super) const CHUNK_BYTES_MAX: usize = 1 << 20;

/// Bytes from which an allocation gets a chunk of its own, so that the unused tail of a full-sized
/// chunk stays under a sixteenth of it. Values as long as that are copied before their insertion.
pub(super) const OWN_CHUNK_BYTES: usize = CHUNK_BYTES_MAX / 16;

/// One allocation from the system.
#[derive(Debug)]
pub(super) struct Chunk {
    start: NonNull<u8>,
    layout: Layout,
}

impl Chunk {
    /// At least `bytes` (not 0), uninitialised.
    pub(super) fn new(bytes: usize) -> Self {
        assert!(bytes > 0, "a chunk has a size");
        let layout = Layout::from_size_align(bytes, ALIGN)
            .expect("the sum of slice lengths that exist in memory is far below isize::MAX");
        // SAFETY: the layout's size is not zero, as asserted above.
        let start = unsafe { alloc(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Self { start, layout }
    }

    /// Its first byte, aligned to [`ALIGN`].
    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

// SAFETY: plain memory with one owner, whichever thread that is in.
unsafe impl Send for Chunk {}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: the chunk came from `alloc` with this layout, and this is its only owner.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// The memory of all memtables that share it, those included that were flushed and that reads still hold. Chunks of those that
/// are gone are kept for the next ones: memory that the system has to give anew costs a page fault for every four rows of a
/// kilobyte, a fifth of what loading them costs in all.
#[derive(Debug, Clone, Default)]
pub struct MemtableMemory(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Bytes of memtables.
    bytes: AtomicU64,
    /// Chunks of full size that nobody has.
    spare: Mutex<Vec<Chunk>>,
    /// How many of those there may be.
    spare_max: usize,
}

impl MemtableMemory {
    /// Keeps up to `spare_bytes` of memory that memtables have given back.
    pub fn keeping(spare_bytes: u64) -> Self {
        let spare_max = usize::try_from(spare_bytes).unwrap_or(usize::MAX) / CHUNK_BYTES_MAX;
        Self(Arc::new(Shared { spare_max, ..Shared::default() }))
    }

    /// Bytes of memtables now.
    pub fn bytes(&self) -> u64 {
        self.0.bytes.load(Ordering::Relaxed)
    }

    /// Bytes that are kept for the next ones.
    pub fn spare_bytes(&self) -> u64 {
        (self.spare().len() * CHUNK_BYTES_MAX) as u64
    }

    /// Counts bytes that a memtable holds beside its records.
    pub(super) fn hold(&self, bytes: usize) {
        self.0.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// The same when they are gone.
    pub(super) fn let_go(&self, bytes: usize) {
        self.0.bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
    }

    fn spare(&self) -> MutexGuard<'_, Vec<Chunk>> {
        self.0.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, bytes: usize) -> Option<Chunk> {
        if bytes == CHUNK_BYTES_MAX { self.spare().pop() } else { None }
    }

    /// Takes back chunks; frees those that are not kept.
    fn give(&self, chunks: &mut Vec<Chunk>) {
        let mut spare = self.spare();
        let room = self.0.spare_max.saturating_sub(spare.len());
        let kept = chunks.extract_if(.., |chunk| chunk.layout.size() == CHUNK_BYTES_MAX);
        spare.extend(kept.take(room));
    }
}

/// Owns the chunks and frees them when it is dropped.
#[derive(Debug, Default)]
pub(super) struct Arena {
    chunks: Mutex<Vec<Chunk>>,
    reserved_bytes: AtomicU64,
    memory: MemtableMemory,
}

impl Arena {
    /// An empty arena whose chunks are counted in `memory` too.
    pub(super) fn counted(memory: MemtableMemory) -> Self {
        Self { chunks: Mutex::default(), reserved_bytes: AtomicU64::new(0), memory }
    }

    /// Bytes of all chunks, unused tails included, and of what else was counted.
    pub(super) fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes.load(Ordering::Relaxed)
    }

    /// Counts bytes of chunks, and of what lies elsewhere and is dropped with the arena.
    pub(super) fn count(&self, bytes: usize) {
        self.reserved_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.memory.0.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// A new chunk of at least `bytes` (not 0): its start and its size.
    fn add_chunk(&self, bytes: usize) -> (NonNull<u8>, usize) {
        (self.own(self.memory.take(bytes).unwrap_or_else(|| Chunk::new(bytes))), bytes)
    }

    /// Takes a chunk, which lives as long as the arena from now on; its start.
    fn own(&self, chunk: Chunk) -> NonNull<u8> {
        let (start, bytes) = (chunk.start, chunk.layout.size());
        self.chunks.lock().unwrap_or_else(PoisonError::into_inner).push(chunk);
        self.count(bytes);
        start
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // Whoever follows pointers into a chunk holds the arena alive (see `skiplist.rs`).
        self.memory.give(self.chunks.get_mut().unwrap_or_else(PoisonError::into_inner));
        self.memory.0.bytes.fetch_sub(*self.reserved_bytes.get_mut(), Ordering::Relaxed);
    }
}

/// Carves an arena. Each has chunks of its own, so two of them never hand out the same bytes.
#[derive(Debug)]
pub(super) struct Bump {
    arena: Arc<Arena>,
    /// First free byte of the current chunk, always aligned; meaningless while `free` is 0.
    next: NonNull<u8>,
    /// Bytes free from `next` on.
    free: usize,
    /// Size of the next ordinary chunk; 0 before the first, which is as long as it must be.
    chunk_bytes: usize,
}

// SAFETY: `next` points into memory that only this value hands out, kept alive by `arena`; nothing is
// bound to a thread.
unsafe impl Send for Bump {}

impl Bump {
    /// Starts carving.
    pub(super) fn new(arena: Arc<Arena>) -> Self {
        Self { arena, next: NonNull::dangling(), free: 0, chunk_bytes: 0 }
    }

    /// Has the arena keep a chunk that was filled elsewhere; its start.
    pub(super) fn own(&mut self, chunk: Chunk) -> NonNull<u8> {
        self.arena.own(chunk)
    }

    /// `len` fresh bytes, aligned to [`ALIGN`], uninitialised, valid until the arena is dropped.
    pub(super) fn alloc(&mut self, len: usize) -> NonNull<u8> {
        let len = len
            .max(1)
            .checked_next_multiple_of(ALIGN)
            .expect("the sum of slice lengths that exist in memory is far below usize::MAX");
        if len >= OWN_CHUNK_BYTES {
            return self.arena.add_chunk(len).0;
        }
        if len > self.free {
            // Early chunks can be smaller than what they must hold; sizes are multiples of ALIGN.
            let (start, size) = self.arena.add_chunk(self.chunk_bytes.max(len));
            self.chunk_bytes = (self.chunk_bytes * 2).clamp(CHUNK_BYTES_FIRST, CHUNK_BYTES_MAX);
            (self.next, self.free) = (start, size);
        }
        let taken = self.next;
        // SAFETY: `len <= free`, and `free` bytes from `next` on lie in one chunk; so the result is in
        // it or one past its end.
        self.next = unsafe { self.next.add(len) };
        self.free -= len;
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_are_aligned_disjoint_and_keep_what_was_written() {
        let arena = Arc::new(Arena::default());
        let mut bump = Bump::new(Arc::clone(&arena));
        // Around every boundary: chunk ends, the own-chunk size, the first chunk's size.
        let sizes =
            [1, 7, 8, 9, 4096, 5000, 8192, 8193, 65_528, 65_529, 65_536, 70_000, 3, 300_000];
        let mut spans = Vec::new();
        for (i, size) in sizes.iter().cycle().take(400).enumerate() {
            let start = bump.alloc(*size);
            assert_eq!(start.as_ptr() as usize % ALIGN, 0);
            // SAFETY: `size` fresh bytes were just handed out.
            unsafe { start.as_ptr().write_bytes(i as u8, *size) };
            spans.push((start, *size, i as u8));
        }
        for (start, size, fill) in &spans {
            // SAFETY: the span was handed out and written above, and the arena lives.
            let bytes = unsafe { std::slice::from_raw_parts(start.as_ptr(), *size) };
            assert!(bytes.iter().all(|b| b == fill), "a later allocation overwrote this one");
        }
    }

    #[test]
    fn chunks_double_up_to_their_limit_and_are_counted() {
        let arena = Arc::new(Arena::default());
        let mut bump = Bump::new(Arc::clone(&arena));
        assert_eq!(arena.reserved_bytes(), 0);
        bump.alloc(113);
        assert_eq!(arena.reserved_bytes(), 120, "the first is as long as what is asked for");
        bump.alloc(1);
        assert_eq!(arena.reserved_bytes(), 120 + CHUNK_BYTES_FIRST as u64);
        let mut used = 128u64;
        while arena.reserved_bytes() < 8 << 20 {
            let before = arena.reserved_bytes();
            bump.alloc(1000);
            used += 1000;
            assert!(arena.reserved_bytes() - before <= CHUNK_BYTES_MAX as u64);
        }
        assert!(used > (arena.reserved_bytes() - CHUNK_BYTES_MAX as u64) * 9 / 10);
    }

    #[test]
    fn the_memory_of_several_arenas_is_counted_until_each_is_dropped() {
        let memory = MemtableMemory::default();
        let one = Arc::new(Arena::counted(memory.clone()));
        let other = Arc::new(Arena::counted(memory.clone()));
        Bump::new(Arc::clone(&one)).alloc(1);
        Bump::new(Arc::clone(&other)).alloc(OWN_CHUNK_BYTES);
        assert_eq!(memory.bytes(), one.reserved_bytes() + other.reserved_bytes());
        drop(other);
        assert_eq!(memory.bytes(), one.reserved_bytes());
        drop(one);
        assert_eq!(memory.bytes(), 0);
    }

    #[test]
    fn memory_of_dropped_arenas_is_used_again_up_to_a_bound() {
        let memory = MemtableMemory::keeping(3 * CHUNK_BYTES_MAX as u64);
        let fill = |chunks: u64| {
            let arena = Arc::new(Arena::counted(memory.clone()));
            let mut bump = Bump::new(Arc::clone(&arena));
            while memory.bytes() < chunks * CHUNK_BYTES_MAX as u64 {
                // SAFETY: fresh bytes; those of an earlier arena that is still in use would be overwritten here.
                unsafe { bump.alloc(1000).as_ptr().write_bytes(7, 1000) };
            }
            arena
        };
        drop(fill(8));
        assert_eq!((memory.bytes(), memory.spare_bytes()), (0, 3 * CHUNK_BYTES_MAX as u64));
        let arena = fill(2);
        assert!(memory.spare_bytes() < 3 * CHUNK_BYTES_MAX as u64);
        let other = fill(9);
        assert_eq!(memory.spare_bytes(), 0);
        drop(arena);
        drop(other);
        assert_eq!((memory.bytes(), memory.spare_bytes()), (0, 3 * CHUNK_BYTES_MAX as u64));
    }

    #[test]
    fn a_large_allocation_leaves_the_current_chunk_in_use() {
        let arena = Arc::new(Arena::default());
        let mut bump = Bump::new(Arc::clone(&arena));
        bump.alloc(8);
        bump.alloc(8);
        let before = arena.reserved_bytes();
        bump.alloc(OWN_CHUNK_BYTES);
        assert_eq!(arena.reserved_bytes(), before + OWN_CHUNK_BYTES as u64);
        bump.alloc(8);
        assert_eq!(arena.reserved_bytes(), before + OWN_CHUNK_BYTES as u64);
    }
}
