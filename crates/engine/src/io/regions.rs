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
//! A buffer takes the first gap that it fits in, so that a few regions serve all and stay in the processor's cache. The first regions
//! are there from the beginning and stay, for the reads of cores, each thread from one of its own on. Large buffers, which are mostly those
//! of compactions and of files that are written, are cut from others, that come for them and go when nothing is in them; a few are kept. To zero a new
//! one takes the system milliseconds at worst: a thread that serves others takes what is there.
//!
//! Buffers are lent: what outlives the read or the job that it is for (a block in the cache, a value on its way to a client) is
//! copied out of them, or it would keep room that others look for. Where there is none, the heap serves.

use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::aligned::{Haste, PAGE_BYTES};

/// Buffers begin at multiples of this, and are as many of it as they need.
const UNIT_BYTES: usize = PAGE_BYTES;
/// Bytes of a region: a huge page of most systems. Where those are larger, buffers are in one piece as often as the system sees fit.
pub(super) const REGION_BYTES: usize = 2 << 20;
const UNITS: usize = REGION_BYTES / UNIT_BYTES;

/// Regions for each core, at most: 32 MiB, which is what a compaction may hold.
const REGIONS_PER_CORE: usize = 16;
/// Regions that stay: one for each core, within these bounds. The reads that a device has at once fit into fewer.
const STAYING_MIN: usize = 4;
const STAYING_MAX: usize = 8;
/// Others that are kept though nothing is in them, at most: more would only lie there between two compactions.
const SPARE_MAX: usize = 4;

/// Bytes from which on a buffer is large.
const LARGE_FROM_BYTES: usize = 256 << 10;

static REGIONS: OnceLock<Regions> = OnceLock::new();

fn regions() -> &'static Regions {
    REGIONS.get_or_init(|| {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let regions = cores.saturating_mul(REGIONS_PER_CORE);
        Regions::new(regions, cores.clamp(STAYING_MIN, STAYING_MAX), SPARE_MAX)
    })
}

/// Takes the regions that stay from the system, before anything waits for them.
pub(super) fn prepare() {
    regions();
}

/// Whether buffers of so many bytes are lent: a page is in one piece anyway, and a region is the most.
pub(super) fn lends(bytes: usize) -> bool {
    (2..=UNITS).contains(&bytes.div_ceil(UNIT_BYTES))
}

/// A buffer's memory, for as long as it lives; `None` where there is no room, and for sizes that are not lent.
pub(super) fn take(bytes: usize, haste: Haste) -> Option<Piece> {
    regions().take(bytes, haste)
}

/// Bytes of all regions.
pub(super) fn mapped_bytes() -> u64 {
    let regions = REGIONS.get().map_or(0, |regions| regions.mapped.load(Ordering::Relaxed));
    (regions * REGION_BYTES) as u64
}

/// Whether these bytes begin in lent memory.
#[cfg(test)]
pub(crate) fn is_lent(bytes: &[u8]) -> bool {
    regions().has(bytes.as_ptr() as usize)
}

/// Places for regions, each of which may have one.
struct Regions {
    places: Vec<Place>,
    /// The first so many have one that stays.
    staying: usize,
    /// Places that have one, or are about to.
    mapped: AtomicUsize,
    /// Regions behind those that stay in which there is nothing.
    spare: AtomicUsize,
    spare_max: usize,
    threads: AtomicUsize,
}

/// A place. What threads look at is apart from that of its neighbours.
#[derive(Default)]
#[repr(align(64))]
struct Place {
    /// Whether it has a region, and how many units of that are free: so that nobody asks for the lock in vain.
    furnished: AtomicBool,
    free: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    region: Option<Mapping>,
    used: Units,
}

impl Place {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the region, unless it has one.
    fn furnish(&self, region: &mut Option<Mapping>) -> bool {
        let mut state = self.lock();
        if state.region.is_some() || region.is_none() {
            return false;
        }
        state.region = region.take();
        self.furnished.store(true, Ordering::Relaxed);
        self.free.store(UNITS, Ordering::Relaxed);
        true
    }
}

impl Regions {
    fn new(regions_max: usize, staying: usize, spare_max: usize) -> Self {
        let regions = Self {
            places: std::iter::repeat_with(Place::default).take(regions_max).collect(),
            staying,
            mapped: AtomicUsize::new(0),
            spare: AtomicUsize::new(0),
            spare_max,
            threads: AtomicUsize::new(0),
        };
        for place in regions.places.iter().take(staying) {
            place.furnish(&mut regions.map());
        }
        regions
    }

    /// The place where this thread looks first.
    fn home(&self) -> usize {
        thread_local!(static THREAD: Cell<Option<usize>> = const { Cell::new(None) });
        let number = |thread: &Cell<Option<usize>>| {
            let next = || self.threads.fetch_add(1, Ordering::Relaxed);
            let number = thread.get().unwrap_or_else(next);
            thread.set(Some(number));
            number
        };
        THREAD.try_with(number).unwrap_or(0) % self.staying.max(1)
    }

    fn take(&'static self, bytes: usize, haste: Haste) -> Option<Piece> {
        if !lends(bytes) {
            return None;
        }
        let units = bytes.div_ceil(UNIT_BYTES);
        let home = self.home();
        let staying = || (home..self.staying).chain(0..home).find_map(|at| self.cut(at, units));
        let others = || (self.staying..self.places.len()).find_map(|at| self.cut(at, units));
        if bytes < LARGE_FROM_BYTES {
            return staying().or_else(others);
        }
        let new = || if haste == Haste::MayWait { self.cut_new(units) } else { None };
        others().or_else(new).or_else(staying)
    }

    /// Takes so many units of the region at a place, if it has them in a row.
    fn cut(&'static self, at: usize, units: usize) -> Option<Piece> {
        let place = self.places.get(at)?;
        if place.free.load(Ordering::Relaxed) < units {
            return None;
        }
        let mut state = place.lock();
        let State { region, used } = &mut *state;
        let region = region.as_ref()?;
        let was_empty = used.is_none();
        let first = used.take(units)?;
        if was_empty && at >= self.staying {
            self.spare.fetch_sub(1, Ordering::Relaxed);
        }
        place.free.fetch_sub(units, Ordering::Relaxed);
        Some(Piece { regions: self, ptr: region.unit(first), at, first, units })
    }

    /// The same from a region that the system is asked for, while nobody is kept from a place.
    fn cut_new(&'static self, units: usize) -> Option<Piece> {
        let mut region = Some(self.map()?);
        let others = self.places.iter().enumerate().skip(self.staying);
        for (at, place) in others.filter(|(_, place)| !place.furnished.load(Ordering::Relaxed)) {
            // Counted before anybody can take from it.
            self.spare.fetch_add(1, Ordering::Relaxed);
            if place.furnish(&mut region) {
                // Others may have been faster and left no room.
                return self.cut(at, units);
            }
            self.spare.fetch_sub(1, Ordering::Relaxed);
        }
        drop(region);
        self.mapped.fetch_sub(1, Ordering::Relaxed);
        None
    }

    fn give(&self, piece: &Piece) {
        let Some(place) = self.places.get(piece.at) else { return };
        let mut state = place.lock();
        state.used.give(piece.first, piece.units);
        place.free.fetch_add(piece.units, Ordering::Relaxed);
        if piece.at < self.staying || !state.used.is_none() {
            return;
        }
        if self.spare.fetch_add(1, Ordering::Relaxed) < self.spare_max {
            return;
        }
        self.spare.fetch_sub(1, Ordering::Relaxed);
        let region = state.region.take();
        place.free.store(0, Ordering::Relaxed);
        place.furnished.store(false, Ordering::Relaxed);
        drop(state);
        // The system takes it back while nobody waits for the place.
        drop(region);
        self.mapped.fetch_sub(1, Ordering::Relaxed);
    }

    /// A region from the system, for one of the places that have none.
    fn map(&self) -> Option<Mapping> {
        let next = |mapped: usize| (mapped < self.places.len()).then_some(mapped + 1);
        self.mapped.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()?;
        let region = Mapping::new();
        if region.is_none() {
            self.mapped.fetch_sub(1, Ordering::Relaxed);
        }
        region
    }

    #[cfg(test)]
    fn has(&self, address: usize) -> bool {
        self.places.iter().any(|place| {
            let state = place.lock();
            let region = state.region.as_ref();
            region.is_some_and(|r| address.wrapping_sub(r.0.as_ptr() as usize) < REGION_BYTES)
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
        let before = (mapped as usize).next_multiple_of(REGION_BYTES) - mapped as usize;
        // SAFETY: the region lies within what was mapped, and what is before and behind it belongs to nobody.
        unsafe {
            let region = mapped.cast::<u8>().add(before);
            if before > 0 {
                let _ = munmap(mapped, before);
            }
            let _ = munmap(region.add(REGION_BYTES).cast(), REGION_BYTES - before);
            // Hints. A system without the second one gives a huge page at the first write, and one without huge pages page by page.
            let _ = madvise(region.cast(), REGION_BYTES, Advice::LinuxHugepage);
            if madvise(region.cast(), REGION_BYTES, Advice::LinuxPopulateWrite).is_err() {
                region.write_volatile(0);
            }
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

    use Haste::{AtOnce, MayWait};

    fn regions(regions_max: usize, staying: usize, spare_max: usize) -> &'static Regions {
        Box::leak(Box::new(Regions::new(regions_max, staying, spare_max)))
    }

    /// Regions that are there, of which as many are counted.
    fn mapped(regions: &Regions) -> usize {
        let mapped = regions.places.iter().filter(|place| place.lock().region.is_some()).count();
        assert_eq!(regions.mapped.load(Ordering::Relaxed), mapped);
        mapped
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
        let regions = regions(4, 1, 0);
        let mut pieces = Vec::new();
        for bytes in [UNIT_BYTES + 1, 40 << 10, 256 << 10, 1 << 20, REGION_BYTES, 12 << 10, 1 << 20]
        {
            let piece = regions.take(bytes, MayWait).unwrap();
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
        assert_eq!(mapped(regions), 4);
    }

    #[test]
    fn more_regions_come_for_large_buffers_as_many_as_allowed_and_few_are_kept() {
        let regions = regions(4, 1, 1);
        assert_eq!(mapped(regions), 1);
        assert!(regions.take(UNIT_BYTES, MayWait).is_none(), "a page is in one piece anyway");
        assert!(regions.take(REGION_BYTES + 1, MayWait).is_none());
        // Who waits leaves the one that stays to those who do not.
        let large: Vec<_> =
            (0..3).map(|_| regions.take(REGION_BYTES - UNIT_BYTES, MayWait).unwrap()).collect();
        assert_eq!(mapped(regions), 4);
        assert!(large.iter().all(|piece| piece.at > 0));
        let small = regions.take(2 * UNIT_BYTES, AtOnce).unwrap();
        assert_eq!(small.at, 0);
        let last = regions.take(REGION_BYTES - 2 * UNIT_BYTES, MayWait).unwrap();
        assert_eq!(last.at, 0);
        assert!(regions.take(2 * UNIT_BYTES, MayWait).is_none());
        drop((large, last));
        assert_eq!((mapped(regions), regions.spare.load(Ordering::Relaxed)), (2, 1));
        // It is used again.
        let again = regions.take(REGION_BYTES, MayWait).unwrap();
        assert_eq!((mapped(regions), regions.spare.load(Ordering::Relaxed)), (2, 0));
        drop((again, small));
        assert_eq!((mapped(regions), regions.spare.load(Ordering::Relaxed)), (2, 1));
    }

    #[test]
    fn threads_that_serve_others_take_what_is_there() {
        let regions = regions(3, 1, 0);
        let large = regions.take(REGION_BYTES, AtOnce).unwrap();
        assert_eq!(large.at, 0);
        assert!(regions.take(REGION_BYTES, AtOnce).is_none());
        assert!(regions.take(2 * UNIT_BYTES, MayWait).is_none(), "small ones bring none either");
        let other = regions.take(LARGE_FROM_BYTES, MayWait).unwrap();
        assert_eq!(regions.take(2 * UNIT_BYTES, AtOnce).unwrap().at, other.at);
        assert_eq!(mapped(regions), 2);
    }

    #[test]
    fn buffers_are_freed_by_other_threads_while_regions_come_and_go() {
        let regions = regions(4, 1, 0);
        // So few are on their way, each smaller than the larger half of what another one leaves of a region, that there
        // is room for a thread while the others wait.
        let (give, taken) = std::sync::mpsc::sync_channel::<(Piece, u8)>(2);
        let fill = |mark: u8, give: std::sync::mpsc::SyncSender<(Piece, u8)>| {
            for n in 0..2_000 {
                let bytes = UNIT_BYTES * (2 + n % 150);
                // Without room the heap's turn would come.
                let Some(piece) = regions.take(bytes, MayWait) else { continue };
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
        assert_eq!(mapped(regions), 1);
        let free: Vec<_> = regions.places.iter().map(|p| p.free.load(Ordering::Relaxed)).collect();
        assert_eq!(free, [UNITS, 0, 0, 0]);
    }
}
