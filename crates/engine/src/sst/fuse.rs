//! Binary fuse filters: a fingerprint of 8 or 16 bits for every entry in 1.1 to 1.3 slots.
//!
//! ```text
//! slots       segments + 3 segments of 2^bits slots each
//! h           mix64(entry + seed)
//! places      one in each of four neighbouring segments:
//!             p0 = h * (segments << bits) >> 64
//!             pi = (p0 + (i << bits)) ^ (s & (2^bits - 1)),   s = h >> 18, h, h >> 36 for i = 1, 2, 3
//! contained   fingerprint(h) = slot[p0] ^ slot[p1] ^ slot[p2] ^ slot[p3]
//! ```
//!
//! After Graf and Lemire, "Binary Fuse Filters: Fast and Smaller Than Xor Filters" (2022). False positives:
//! 1/256 with 8 bits, 1/65536 with 16, whatever the entries; a blocked Bloom filter of the same memory has
//! three times as many. The price is that it is built from all entries at once and that a build can fail and
//! start over with another seed, so flushes, which must be fast, use Bloom.
//!
//! Four places and not three: partitions of a page hold about 3,000 entries, where three need 1.28 slots an
//! entry and four 1.24 (at 200,000 entries 1.15 and 1.09); the fourth access is to memory just as near.
//!
//! Building is peeling: a place that only one entry has is that entry's own; take the entry away, and other
//! places become someone's own; when all are taken, give the slots their values in the opposite order.

use std::ptr::without_provenance;

use crate::random::mix64;
use crate::touch::fetch_at;

/// Places of an entry.
const PLACES: u32 = 4;

/// Builds that are tried, each with a seed of its own. One succeeds at seven of ten at the sizes that are
/// tried first, and larger ones are tried where they are allowed; 64 failures in a row do not happen.
const ATTEMPTS_MAX: u8 = 64;

/// Attempts between which the filter grows by a thirty-second, where it may.
const ATTEMPTS_BEFORE_GROWTH: u8 = 3;

/// Bits of what [`spot`] packs: an address, a seed ([`ATTEMPTS_MAX`]), and the segments of a filter that fills a page.
const SPOT_ADDRESS_BITS: u32 = 48;
const SPOT_SEED_BITS: u32 = 6;
const SPOT_SEGMENTS_BITS: u32 = 5;

/// Bits of a segment of such a filter.
const SPOT_SEGMENT_BITS: u8 = 7;

/// Bits of the largest segment: a place within it comes from 18 bits of the hash.
pub(super) const SEGMENT_BITS_MAX: u8 = 18;

/// How many slots there are, and how they are divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    /// Slots of a segment, as a power of two.
    pub(super) bits: u8,
    /// Segments in which a first place can lie.
    pub(super) segments: u32,
}

impl Shape {
    /// The shape that is tried first for this many entries. The figures are measured: the smallest with
    /// which most seeds succeed.
    pub(super) fn for_entries(entries: usize) -> Self {
        let log = f64::from(u32::try_from(entries.max(2)).unwrap_or(u32::MAX)).log2();
        let bits = match entries {
            0..64 => 3,
            64..256 => 4,
            256..600 => 5,
            600..1_800 => 6,
            1_800..10_000 => 7,
            10_000..40_000 => 8,
            40_000..150_000 => 9,
            150_000..600_000 => 11,
            _ => 12,
        };
        // Above the points (30, 1.6), (400, 1.4), (3000, 1.24), (20000, 1.165), (220000, 1.09).
        let factor = if log < 11.5 { 0.86 + 4.5 / log } else { 0.945 + 3.4 / log.max(1.0) };
        let slots = (entries as f64 * factor.clamp(1.1, 1.7)) as u64;
        let segments = (slots.div_ceil(1 << bits)).saturating_sub(u64::from(PLACES) - 1).max(1);
        Self { bits, segments: u32::try_from(segments).unwrap_or(u32::MAX) }
    }

    /// Slots of all segments.
    pub(super) fn slots(self) -> u64 {
        (u64::from(self.segments) + u64::from(PLACES) - 1) << self.bits
    }

    /// The places of a hash: less than [`Self::slots`].
    #[inline]
    fn places(self, hash: u64) -> [usize; PLACES as usize] {
        let firsts = u64::from(self.segments) << self.bits;
        let first = ((u128::from(hash) * u128::from(firsts)) >> 64) as u64;
        let (segment, mask) = (1u64 << self.bits, (1u64 << self.bits) - 1);
        [
            first as usize,
            ((first + segment) ^ (hash >> 18 & mask)) as usize,
            ((first + 2 * segment) ^ (hash & mask)) as usize,
            ((first + 3 * segment) ^ (hash >> 36 & mask)) as usize,
        ]
    }

    fn grown(self) -> Self {
        Self { bits: self.bits, segments: self.segments.saturating_add(1 + self.segments / 32) }
    }
}

/// The hash of an entry under seed number `seed`.
#[inline]
fn hash(entry: u64, seed: u8) -> u64 {
    mix64(entry.wrapping_add(u64::from(seed).wrapping_mul(0x9E37_79B9_7F4A_7C15)))
}

#[inline]
fn fingerprint(hash: u64) -> u16 {
    (hash ^ (hash >> 32)) as u16
}

/// Bytes of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Width {
    One,
    Two,
}

impl Width {
    /// In bytes.
    pub(super) fn bytes(self) -> usize {
        match self {
            Self::One => 1,
            Self::Two => 2,
        }
    }
}

/// A filter that was built.
#[derive(Debug)]
pub(super) struct Fuse {
    pub(super) shape: Shape,
    pub(super) seed: u8,
    /// The slots, little-endian.
    pub(super) slots: Vec<u8>,
}

/// Where the slots of a filter of a page lie, with its shape and seed, in one number: enough to know of each entry which bytes will be looked at.
/// 0 for other filters.
///
/// ```text
/// | 0 | segments: 5 bits | seed: 6 | address: 48 |
/// ```
pub(super) fn spot(slots: &[u8], width: Width, shape: Shape, seed: u8) -> u64 {
    let (address, segments) = (slots.as_ptr().addr() as u64, u64::from(shape.segments));
    let fits = width == Width::One
        && shape.bits == SPOT_SEGMENT_BITS
        && segments < 1 << SPOT_SEGMENTS_BITS
        && seed < ATTEMPTS_MAX
        && address < 1 << SPOT_ADDRESS_BITS;
    let shape = segments << SPOT_SEED_BITS | u64::from(seed);
    if fits { shape << SPOT_ADDRESS_BITS | address } else { 0 }
}

/// Where these bytes are, by what [`spot`] gave.
#[inline]
fn spotted(spot: u64, entry: u64) -> impl Iterator<Item = usize> {
    let address = (spot & ((1 << SPOT_ADDRESS_BITS) - 1)) as usize;
    let packed = spot >> SPOT_ADDRESS_BITS;
    let seed = (packed & ((1 << SPOT_SEED_BITS) - 1)) as u8;
    let segments = (packed >> SPOT_SEED_BITS) as u32;
    let shape = Shape { bits: SPOT_SEGMENT_BITS, segments };
    shape.places(hash(entry, seed)).into_iter().map(move |place| address.wrapping_add(place))
}

/// Begins to fetch what [`contains`] will look at, of a filter that may be gone.
#[inline]
pub(crate) fn fetch_spotted(spot: u64, entry: u64) {
    if spot != 0 {
        spotted(spot, entry).for_each(|at| fetch_at(without_provenance(at)));
    }
}

/// Whether `entry` may be among those that `slots` were built from; never false for one that was.
#[inline]
pub(super) fn contains(slots: &[u8], width: Width, shape: Shape, seed: u8, entry: u64) -> bool {
    let hash = hash(entry, seed);
    let mut value = fingerprint(hash);
    for place in shape.places(hash) {
        value ^= match width {
            Width::One => slots.get(place).copied().map_or(0, u16::from),
            Width::Two => slots
                .get(place * 2..)
                .and_then(|s| s.first_chunk::<2>())
                .map_or(0, |s| u16::from_le_bytes(*s)),
        };
    }
    match width {
        Width::One => value as u8 == 0,
        Width::Two => value == 0,
    }
}

/// Builds a filter of at most `slots_max` slots; `None` where no seed does. The order of the entries may
/// change, and entries that are there twice are taken out.
pub(super) fn build(entries: &mut Vec<u64>, width: Width, slots_max: u64) -> Option<Fuse> {
    let mut shape = Shape::for_entries(entries.len());
    let mut peeling = Peeling::default();
    for seed in 0..ATTEMPTS_MAX {
        if shape.slots() > slots_max {
            return None;
        }
        if peeling.peel(entries, shape, seed) {
            return Some(Fuse { shape, seed, slots: peeling.assign(shape, width) });
        }
        if seed == 0 {
            // Two equal entries can never be told apart, and are the one failure that no seed mends.
            entries.sort_unstable();
            entries.dedup();
        }
        if seed % ATTEMPTS_BEFORE_GROWTH == ATTEMPTS_BEFORE_GROWTH - 1 {
            let grown = shape.grown();
            shape = if grown.slots() <= slots_max { grown } else { shape };
        }
    }
    None
}

/// The state of a build.
#[derive(Debug, Default)]
struct Peeling {
    /// For each slot, how many of the entries left have it as a place, and the exclusive or of their hashes.
    left: Vec<(u64, u32)>,
    /// Slots that one entry is left in.
    single: Vec<u32>,
    /// The hashes that were taken away, each with its own slot.
    taken: Vec<(u64, u32)>,
}

impl Peeling {
    /// Whether every entry gets a slot of its own.
    fn peel(&mut self, entries: &[u64], shape: Shape, seed: u8) -> bool {
        let Ok(slots) = u32::try_from(shape.slots()) else { return false };
        self.left.clear();
        self.left.resize(slots as usize, (0, 0));
        self.single.clear();
        self.taken.clear();
        for entry in entries {
            let hash = hash(*entry, seed);
            for place in shape.places(hash) {
                if let Some((xor, count)) = self.left.get_mut(place) {
                    *xor ^= hash;
                    *count += 1;
                }
            }
        }
        let single = self.left.iter().zip(0..).filter(|((_, count), _)| *count == 1);
        self.single.extend(single.map(|(_, slot)| slot));
        while let Some(slot) = self.single.pop() {
            let Some((hash, 1)) = self.left.get(slot as usize).copied() else { continue };
            self.taken.push((hash, slot));
            for place in shape.places(hash) {
                if let Some((xor, count)) = self.left.get_mut(place) {
                    *xor ^= hash;
                    *count -= 1;
                    if *count == 1 {
                        self.single.push(place as u32);
                    }
                }
            }
        }
        self.taken.len() == entries.len()
    }

    /// The slots, so that every entry's places give its fingerprint. Whoever was taken away last depends on
    /// nobody's slot but its own.
    fn assign(&mut self, shape: Shape, width: Width) -> Vec<u8> {
        let mut values = vec![0u16; self.left.len()];
        for (hash, slot) in self.taken.iter().rev() {
            let mut value = fingerprint(*hash);
            for place in shape.places(*hash) {
                value ^= values.get(place).copied().unwrap_or(0);
            }
            if let Some(own) = values.get_mut(*slot as usize) {
                *own = value;
            }
        }
        match width {
            Width::One => values.iter().map(|v| *v as u8).collect(),
            Width::Two => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entries(count: u64, salt: u64) -> Vec<u64> {
        (0..count).map(|i| mix64(i ^ mix64(salt))).collect()
    }

    #[test]
    fn every_size_builds_within_its_memory_and_knows_its_entries() {
        for count in [0, 1, 2, 3, 10, 31, 64, 100, 300, 999, 3_000, 10_000, 40_000, 200_000] {
            for (salt, width) in [(1, Width::One), (2, Width::Two)] {
                let mut all = entries(count, salt);
                let fuse = build(&mut all, width, u64::MAX).unwrap();
                assert_eq!(fuse.slots.len() as u64, fuse.shape.slots() * width.bytes() as u64);
                let known = |e: &u64| contains(&fuse.slots, width, fuse.shape, fuse.seed, *e);
                assert!(all.iter().all(known), "{count}");
                // Small ones have at least four segments of eight slots.
                assert!(fuse.shape.slots() <= 32 + count * 17 / 10, "{count}: {:?}", fuse.shape);
                if count >= 3_000 {
                    assert!(fuse.shape.slots() < count * 131 / 100, "{count}: {:?}", fuse.shape);
                }
            }
        }
    }

    #[test]
    fn of_a_filter_of_a_page_it_is_known_beforehand_what_is_looked_at() {
        let mut all = entries(2_800, 7);
        let Fuse { shape, seed, slots } = build(&mut all, Width::One, 4_096).unwrap();
        let spot = spot(&slots, Width::One, shape, seed);
        assert_ne!(spot, 0);
        for entry in &all {
            let looked_at = shape.places(hash(*entry, seed)).map(|at| &raw const slots[at]);
            assert!(spotted(spot, *entry).eq(looked_at.map(|at| at.addr())));
        }
        // What has no room is not known.
        assert_eq!(super::spot(&slots, Width::Two, shape, seed), 0);
        let larger = build(&mut entries(20_000, 7), Width::One, u64::MAX).unwrap();
        assert_eq!(super::spot(&larger.slots, Width::One, larger.shape, larger.seed), 0);
    }

    #[test]
    fn false_positives_are_one_in_256_and_one_in_65536() {
        for (width, per_million) in [(Width::One, 5_000), (Width::Two, 40)] {
            let mut all = entries(3_000, 3);
            let fuse = build(&mut all, width, u64::MAX).unwrap();
            let wrong = entries(1_000_000, 4)
                .iter()
                .filter(|e| contains(&fuse.slots, width, fuse.shape, fuse.seed, **e))
                .count();
            assert!(wrong < per_million, "{width:?}: {wrong} of a million");
        }
    }

    #[test]
    fn equal_entries_are_taken_once_and_too_little_room_is_refused() {
        let mut twice = [entries(500, 5), entries(500, 5)].concat();
        let fuse = build(&mut twice, Width::One, u64::MAX).unwrap();
        assert_eq!(twice.len(), 500);
        assert!(
            entries(500, 5)
                .iter()
                .all(|e| { contains(&fuse.slots, Width::One, fuse.shape, fuse.seed, *e) })
        );
        assert!(build(&mut entries(500, 6), Width::One, 500).is_none());
    }

    proptest! {
        #[test]
        fn places_are_always_within_the_slots(hash: u64, bits in 0..=SEGMENT_BITS_MAX, segments in 1u32..5000) {
            let shape = Shape { bits, segments };
            for place in shape.places(hash) {
                prop_assert!((place as u64) < shape.slots());
            }
        }

        #[test]
        fn what_was_put_in_is_found(all in prop::collection::vec(any::<u64>(), 0..400)) {
            let mut left = all.clone();
            let fuse = build(&mut left, Width::One, u64::MAX).unwrap();
            for entry in all {
                prop_assert!(contains(&fuse.slots, Width::One, fuse.shape, fuse.seed, entry));
            }
        }
    }
}
