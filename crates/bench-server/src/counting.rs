//! An allocator that counts, for each thread apart: how often memory is asked for is a figure of a request, and
//! clients in the same process must not be in it.
//!
//! Each thread has a slot of a table without locks; a thread that ends leaves its slot, so that what it did stays
//! counted. `realloc` counts too: it is one more call, and often a copy.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

/// Threads that are told apart; further ones share the last slot, which belongs to nobody.
const SLOTS: usize = 512;

struct Slot {
    thread: AtomicI32,
    count: AtomicU64,
}

static TABLE: [Slot; SLOTS] =
    [const { Slot { thread: AtomicI32::new(0), count: AtomicU64::new(0) } }; SLOTS];
static NEXT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// One more than the thread's slot; 0 before its first allocation. Has no destructor, so that it may be used
    /// within the allocator.
    static SLOT: Cell<usize> = const { Cell::new(0) };
}

/// jemalloc, as the server has it, and counts.
pub struct Counting(tikv_jemallocator::Jemalloc);

impl Counting {
    /// The allocator.
    pub const fn new() -> Self {
        Self(tikv_jemallocator::Jemalloc)
    }
}

impl Default for Counting {
    fn default() -> Self {
        Self::new()
    }
}

fn count() {
    // A thread that is ending has no slot any more; what it still does is not counted.
    let _ = SLOT.try_with(|slot| {
        let mut at = slot.get();
        if at == 0 {
            at = NEXT.fetch_add(1, Ordering::Relaxed).min(SLOTS - 1) + 1;
            slot.set(at);
            if let Some(own) = TABLE.get(at - 1).filter(|_| at < SLOTS) {
                own.thread
                    .store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Relaxed);
            }
        }
        if let Some(own) = TABLE.get(at - 1) {
            own.count.fetch_add(1, Ordering::Relaxed);
        }
    });
}

// SAFETY: every call goes to jemalloc with the same arguments; counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps to the contract of `GlobalAlloc`, which is that of the callee.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { self.0.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { self.0.realloc(pointer, layout, new_size) }
    }
}

/// Allocations of a thread so far. 0 where [`Counting`] is not the program's allocator.
pub fn of_thread(thread: i32) -> u64 {
    TABLE
        .iter()
        .filter(|slot| slot.thread.load(Ordering::Relaxed) == thread)
        .map(|slot| slot.count.load(Ordering::Relaxed))
        .sum()
}
