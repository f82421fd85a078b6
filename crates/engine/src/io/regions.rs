//! Memory that lies in one piece for a device, too.
//!
//! Pages that follow each other in a buffer lie anywhere in the machine's memory, and a device is told of each piece by itself. A virtual
//! disk then copies page by page, and takes twice as long for forty kilobytes as for the same in one piece. So
//! buffers of several pages are cut from regions, each of which is one huge page where the system has one to give:
//!
//! ```text
//! region   ├─ buffer ─┤├─ buffer ──────────┤ free ├─ buffer ─┤ free         2 MiB: 512 units, a bit for each
//! ```
//!
//! A buffer takes the first gap that it fits in, so that a few regions serve all and stay in the processor's cache, from the region
//! that the thread was given on. Some regions that are wholly free are kept: to get one anew takes the system a
//! tenth of a millisecond.
//!
//! Buffers are lent: what stays for long (a block in the cache) is copied out of them, or it would keep a region that others wait for.

use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use super::aligned::PAGE_BYTES;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Buffers begin at multiples of this, and are as many of it as they need.
const UNIT_BYTES: usize = PAGE_BYTES;
/// Bytes of a region: a huge page of most systems. Where those are larger, buffers are in one piece as often as the system sees fit.
pub(super) const REGION_BYTES: usize = 2 << 20;
const UNITS: usize = REGION_BYTES / UNIT_BYTES;

/// Regions for each core, at most: a compaction there has windows of a dozen files and two buffers of what it writes, some 8 MiB, and
/// reads have the rest. Buffers beyond that are the heap's.
const REGIONS_PER_CORE: usize = 6;
/// Regions that are kept though nothing is in them, at most: more would only lie there between two compactions.
const KEPT_FREE_MAX: usize = 4;

static REGIONS: LazyLock<Regions> = LazyLock::new(|| {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Regions::new(cores.saturating_mul(REGIONS_PER_CORE), KEPT_FREE_MAX)
});

/// A buffer's memory, for as long as it lives; `None` where there is no room, and for sizes that are not lent.
pub(super) fn take(bytes: usize) -> Option<Piece> {
    REGIONS.take(bytes)
}

/// Whether these bytes begin in lent memory.
#[cfg(test)]
pub(crate) fn is_lent(bytes: &[u8]) -> bool {
    REGIONS.has(bytes.as_ptr() as usize)
}

/// Places for regions, each of which may have one.
struct Regions {
    places: Vec<Mutex<Place>>,
    /// Regions that nothing is in.
    free: AtomicUsize,
    kept_free_max: usize,
    threads: AtomicUsize,
}

#[derive(Default)]
struct Place {
    region: Option<Mapping>,
    used: Units,
}

impl Regions {
    fn new(regions_max: usize, kept_free_max: usize) -> Self {
        Self {
            places: std::iter::repeat_with(Mutex::default).take(regions_max).collect(),
            free: AtomicUsize::new(0),
            kept_free_max,
            threads: AtomicUsize::new(0),
        }
    }

    fn place(&self, at: usize) -> Option<MutexGuard<'_, Place>> {
        Some(self.places.get(at)?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The place where this thread looks first.
    fn home(&self) -> usize {
        thread_local!(static THREAD: Cell<Option<usize>> = const { Cell::new(None) });
        // None while the thread ends.
        let thread = THREAD.try_with(|thread| {
            let number =
                thread.get().unwrap_or_else(|| self.threads.fetch_add(1, Ordering::Relaxed));
            thread.set(Some(number));
            number
        });
        thread.unwrap_or(0) % self.places.len().max(1)
    }

    fn take(&'static self, bytes: usize) -> Option<Piece> {
        let units = bytes.div_ceil(UNIT_BYTES);
        if !(2..=UNITS).contains(&units) {
            return None;
        }
        let home = self.home();
        // Another region only where those that are there have no room.
        for may_map in [false, true] {
            for at in (home..self.places.len()).chain(0..home) {
                let mut place = self.place(at)?;
                if place.region.is_none() {
                    if !may_map {
                        continue;
                    }
                    place.region = Some(Mapping::new()?);
                    self.free.fetch_add(1, Ordering::Relaxed);
                }
                let Place { region: Some(region), used } = &mut *place else { continue };
                let was_free = used.is_none();
                let Some(first) = used.take(units) else { continue };
                if was_free {
                    self.free.fetch_sub(1, Ordering::Relaxed);
                }
                let ptr = region.unit(first);
                return Some(Piece { regions: self, ptr, at, first, units });
            }
        }
        None
    }

    fn give(&self, piece: &Piece) {
        let Some(mut place) = self.place(piece.at) else { return };
        place.used.give(piece.first, piece.units);
        if !place.used.is_none() {
            return;
        }
        if self.free.fetch_add(1, Ordering::Relaxed) < self.kept_free_max {
            return;
        }
        self.free.fetch_sub(1, Ordering::Relaxed);
        let region = place.region.take();
        // The system takes it back after the lock is free.
        drop(place);
        drop(region);
    }

    #[cfg(test)]
    fn has(&self, address: usize) -> bool {
        (0..self.places.len()).filter_map(|at| self.place(at)).any(|place| {
            let region = place.region.as_ref();
            region.is_some_and(|r| (address.wrapping_sub(r.0.as_ptr() as usize)) < REGION_BYTES)
        })
    }
}

/// Units in a row of one region, with one owner.
pub(super) struct Piece {
    regions: &'static Regions,
    ptr: NonNull<u8>,
    at: usize,
    first: usize,
    units: usize,
}

// SAFETY: plain memory, not tied to a thread.
unsafe impl Send for Piece {}

impl Piece {
    /// Its first byte, at a multiple of [`UNIT_BYTES`].
    pub(super) fn ptr(&self) -> NonNull<u8> {
        self.ptr
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.regions.give(self);
    }
}

/// Which units of a region are in use.
#[derive(Default)]
struct Units([u64; UNITS / 64]);

impl Units {
    fn is_none(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// Takes the first gap of so many, which is one at least; where it begins.
    fn take(&mut self, units: usize) -> Option<usize> {
        let mut gap = 0;
        for (word, used) in self.0.iter().enumerate() {
            let mut at = 0;
            while at < 64 {
                let rest = used >> at;
                let free = (rest.trailing_zeros() as usize).min(64 - at);
                gap += free;
                at += free;
                if gap >= units {
                    let first = word * 64 + at - gap;
                    self.mark(first, units, true);
                    return Some(first);
                }
                if at < 64 {
                    gap = 0;
                    at += (used >> at).trailing_ones() as usize;
                }
            }
        }
        None
    }

    fn give(&mut self, first: usize, units: usize) {
        self.mark(first, units, false);
    }

    fn mark(&mut self, first: usize, units: usize, in_use: bool) {
        for (word, bits) in self.0.iter_mut().enumerate() {
            let (start, end) = (word * 64, word * 64 + 64);
            let (from, to) = (first.max(start), (first + units).min(end));
            if from < to {
                let mask = (u64::MAX >> (64 - (to - from))) << (from - start);
                *bits = if in_use { *bits | mask } else { *bits & !mask };
            }
        }
    }
}

/// Memory of a region, from the system.
struct Mapping(NonNull<u8>);

// SAFETY: plain memory, not tied to a thread.
unsafe impl Send for Mapping {}

impl Mapping {
    /// `None` where the system has none.
    fn new() -> Option<Self> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // Twice as much has a whole region in it; the rest goes back.
        // SAFETY: anonymous memory at an address of the system's choice.
        let mapped = unsafe {
            mmap_anonymous(std::ptr::null_mut(), 2 * REGION_BYTES, protection, flags).ok()?
        };
        let before = mapped.cast::<u8>().align_offset(REGION_BYTES);
        // SAFETY: the region lies within what was mapped, and what is before and behind it belongs to nobody.
        unsafe {
            let region = mapped.cast::<u8>().add(before);
            if before > 0 {
                let _ = munmap(mapped, before);
            }
            let _ = munmap(region.add(REGION_BYTES).cast(), REGION_BYTES - before);
            // Hints: a system without the one or the other gives memory page by page, when it is written to.
            let _ = madvise(region.cast(), REGION_BYTES, Advice::LinuxHugepage);
            let _ = madvise(region.cast(), REGION_BYTES, Advice::LinuxPopulateWrite);
            NonNull::new(region).map(Self)
        }
    }

    fn unit(&self, unit: usize) -> NonNull<u8> {
        // SAFETY: units of a region are within it.
        unsafe { self.0.add(unit * UNIT_BYTES) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, and all buffers in it are gone.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), REGION_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn regions(regions_max: usize, kept_free_max: usize) -> &'static Regions {
        Box::leak(Box::new(Regions::new(regions_max, kept_free_max)))
    }

    fn mapped(regions: &Regions) -> usize {
        regions.places.iter().filter(|place| place.lock().unwrap().region.is_some()).count()
    }

    proptest! {
        #[test]
        fn units_in_use_never_overlap_and_the_first_gap_is_taken(
            steps in prop::collection::vec((1usize..=UNITS, any::<bool>(), any::<prop::sample::Index>()), 1..200),
        ) {
            let mut units = Units::default();
            let mut taken: BTreeMap<usize, usize> = BTreeMap::new();
            for (wanted, gives, which) in steps {
                if gives && !taken.is_empty() {
                    let first = *which.get(&taken.keys().copied().collect::<Vec<_>>());
                    units.give(first, taken.remove(&first).unwrap());
                }
                // Mostly small ones, so that there are many gaps.
                let wanted = if wanted % 3 == 0 { wanted } else { wanted % 40 + 1 };
                let ends = std::iter::once(0).chain(taken.iter().map(|(first, len)| first + len));
                let begins = taken.keys().copied().chain([UNITS]);
                let expected = ends.zip(begins).find(|(end, begin)| begin - end >= wanted);
                let first = units.take(wanted);
                prop_assert_eq!(first, expected.map(|(end, _)| end));
                if let Some(first) = first {
                    taken.insert(first, wanted);
                }
                prop_assert_eq!(units.is_none(), taken.is_empty());
                let in_use: u32 = units.0.iter().map(|word| word.count_ones()).sum();
                prop_assert_eq!(in_use as usize, taken.values().sum::<usize>());
            }
        }
    }

    #[test]
    fn buffers_lie_within_one_region_and_apart_from_each_other() {
        let regions = regions(3, 1);
        let mut pieces = Vec::new();
        for bytes in [UNIT_BYTES + 1, 40 << 10, 256 << 10, 1 << 20, REGION_BYTES, 12 << 10, 1 << 20]
        {
            let piece = regions.take(bytes).unwrap();
            let start = piece.ptr().as_ptr() as usize;
            assert_eq!(start % UNIT_BYTES, 0);
            assert_eq!(start / REGION_BYTES, (start + bytes - 1) / REGION_BYTES, "{bytes}");
            pieces.push((start..start + bytes, piece));
        }
        for (n, (range, _)) in pieces.iter().enumerate() {
            let others = pieces.iter().enumerate().filter(|(m, _)| *m != n);
            assert!(
                others.into_iter().all(|(_, (o, _))| o.end <= range.start || range.end <= o.start)
            );
        }
        assert_eq!(mapped(regions), 3);
    }

    #[test]
    fn no_more_regions_than_allowed_are_taken_and_few_free_ones_are_kept() {
        let regions = regions(3, 1);
        assert!(regions.take(UNIT_BYTES).is_none(), "a page is in one piece anyway");
        assert!(regions.take(REGION_BYTES + 1).is_none());
        let mut whole: Vec<_> = (0..3).map(|_| regions.take(REGION_BYTES).unwrap()).collect();
        assert!(regions.take(2 * UNIT_BYTES).is_none());
        assert_eq!(mapped(regions), 3);
        whole.pop();
        // What is there is used before anything is mapped or given back.
        let small = regions.take(2 * UNIT_BYTES).unwrap();
        assert_eq!(mapped(regions), 3);
        drop((whole, small));
        assert_eq!((mapped(regions), regions.free.load(Ordering::Relaxed)), (1, 1));
        drop(regions.take(2 * UNIT_BYTES));
        assert_eq!((mapped(regions), regions.free.load(Ordering::Relaxed)), (1, 1));
    }

    #[test]
    fn threads_have_regions_of_their_own_and_free_each_others_buffers() {
        let regions = regions(4, 4);
        let (give, taken) = std::sync::mpsc::channel::<(Piece, u8)>();
        let fill = |mark: u8, give: std::sync::mpsc::Sender<(Piece, u8)>| {
            for n in 0..2_000 {
                let bytes = UNIT_BYTES * (2 + n % 30);
                // Without room the heap's turn would come.
                let Some(piece) = regions.take(bytes) else { continue };
                // SAFETY: the piece has so many bytes, and nobody else has it.
                unsafe { piece.ptr().write_bytes(mark, bytes) };
                give.send((piece, mark)).unwrap();
            }
        };
        let mut seen = [0; 3];
        std::thread::scope(|threads| {
            let other = give.clone();
            threads.spawn(move || fill(1, other));
            threads.spawn(move || fill(2, give));
            for (piece, mark) in taken {
                // SAFETY: written by the sender.
                let bytes = unsafe {
                    std::slice::from_raw_parts(piece.ptr().as_ptr(), piece.units * UNIT_BYTES)
                };
                assert!(bytes.iter().all(|byte| *byte == mark));
                seen[usize::from(mark)] += 1;
            }
        });
        assert!(seen[1] > 0 && seen[2] > 0, "{seen:?}");
        assert_eq!(mapped(regions), regions.free.load(Ordering::Relaxed));
    }
}
