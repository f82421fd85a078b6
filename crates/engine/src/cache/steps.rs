//! How the capacity of data blocks follows what partitions leave of the budget: in steps, and so that nothing is
//! lost with a change of it.
//!
//! ```text
//! budget  |---- partitions ----|░░░|■ step ■|■ step ■|   ...   |■ step ■|      64 steps in all
//!                                  |------ capacity of data blocks -----|
//! ```
//!
//! The cache of data blocks remembers keys of blocks that it evicted: a block that comes back soon is worth more than
//! one that is read once. When its capacity changes, it multiplies how many keys it remembers by the ratio of the
//! two capacities, in floating point, and drops the fraction. Nothing brings that back, and compactions change the capacity
//! some thousand times a day: in a few days it would remember nothing, and be a cache of another policy.
//!
//! So there is a whole number of keys for each step, and a change that would lose one to the rounding of floating point
//! is not made: one to a few steps less is.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, TryLockError};

/// Steps that the budget has. More would change the capacity more often, and each change walks over all shards; fewer
/// leave more of the budget unused, half a step on average.
pub(super) const STEPS: u64 = 64;

/// Steps that data blocks keep whatever comes. A capacity of nothing remembers nothing, and goes on so; and
/// from each number of steps there is a way down to 3, but not always to 1 or 2.
pub(super) const STEPS_MIN: u64 = 3;

/// Bytes that a step in a shard is a multiple of, so that [`HOT_PART`] of it is a whole number.
const STEP_UNIT_BYTES: u64 = 32;

/// The part of a shard that blocks have which were asked for again. The cache's own default is 0.97; this is as
/// good, and a number that floating point has: the cache scales the bytes as it scales the keys.
pub(super) const HOT_PART: f64 = 31.0 / 32.0;

/// Keys that are remembered for each block that fits: the cache's own default.
pub(super) const REMEMBERED_PART: f64 = 1.0 / BLOCKS_PER_KEY as f64;
const BLOCKS_PER_KEY: u64 = 2;

/// Told the bytes that are left to data blocks.
pub(super) type Resize = Box<dyn Fn(u64) + Send + Sync>;

/// What a step of the capacity is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Steps {
    shards: u64,
    /// Bytes of a step in one shard.
    shard_bytes: u64,
    /// Keys that a shard remembers for each step.
    shard_keys: u64,
}

impl Steps {
    /// Of a budget that is divided among so many shards, whose blocks have about `block_bytes`.
    pub(super) fn new(budget_bytes: u64, shards: u64, block_bytes: u64) -> Self {
        let shard_bytes = budget_bytes / shards / STEPS / STEP_UNIT_BYTES * STEP_UNIT_BYTES;
        let shard_keys = shard_bytes.div_ceil(block_bytes * BLOCKS_PER_KEY).max(1);
        Self { shards, shard_bytes, shard_keys }
    }

    /// Bytes of so many steps.
    pub(super) fn bytes(&self, steps: u64) -> u64 {
        steps * self.shards * self.shard_bytes
    }

    /// Blocks of which the cache remembers as many keys as belong to the whole budget.
    pub(super) fn blocks(&self) -> u64 {
        STEPS * self.shards * self.shard_keys * BLOCKS_PER_KEY
    }

    /// Whether the cache, as it reckons, remembers the keys of `to` steps when it had those of `from` steps before.
    fn keeps(&self, from: u64, to: u64) -> bool {
        let ratio = to as f64 / from as f64;
        ((from * self.shard_keys) as f64 * ratio) as u64 == to * self.shard_keys
    }

    /// The most steps, up to `wanted`, that can be had from `from` without a loss.
    fn reach(&self, from: u64, wanted: u64) -> u64 {
        (1..=wanted).rev().find(|to| self.keeps(from, *to)).unwrap_or(wanted)
    }
}

/// What data blocks have of the budget.
pub(super) struct DataShare {
    budget_bytes: u64,
    steps: Steps,
    /// Steps that data blocks were given last. Locked while they are told, so that the last one told is right.
    given: Mutex<u64>,
    /// Bytes of what else the budget pays for.
    others_bytes: AtomicU64,
    resize: Resize,
}

impl DataShare {
    /// The whole budget, which data blocks have been given. `resize` is told what is left of it each time that changes.
    pub(super) fn new(budget_bytes: u64, steps: Steps, resize: Resize) -> Self {
        let (given, others_bytes) = (Mutex::new(STEPS), AtomicU64::new(0));
        Self { budget_bytes, steps, given, others_bytes, resize }
    }

    /// The whole budget.
    pub(super) fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    /// Bytes of it that all but data blocks may have at most, since these have the rest.
    pub(super) fn others_bytes_max(&self) -> u64 {
        self.budget_bytes - self.steps.bytes(STEPS_MIN)
    }

    /// Notes what all else amounts to that the budget pays for, partitions above all, for the next [`Self::follow`].
    pub(super) fn note(&self, others_bytes: u64) {
        self.others_bytes.store(others_bytes, Ordering::SeqCst);
    }

    /// Tells data blocks what is left to them, where that is another number of steps. Where another thread does that, which may take
    /// long since they evict what is too much, that one looks again.
    pub(super) fn follow(&self) {
        loop {
            let mut given = match self.given.try_lock() {
                Ok(given) => given,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            let others = self.others_bytes.load(Ordering::SeqCst);
            self.follow_to(&mut given, self.budget_bytes.saturating_sub(others));
            drop(given);
            if self.others_bytes.load(Ordering::SeqCst) == others {
                return;
            }
        }
    }

    fn follow_to(&self, given: &mut u64, left: u64) {
        let wanted = (left / self.steps.bytes(1).max(1)).clamp(STEPS_MIN, STEPS);
        // Shrink at once; grow by two steps at least, so that a total at a boundary does not resize for ever.
        if wanted >= *given && wanted < *given + 2 {
            return;
        }
        let to = self.steps.reach(*given, wanted);
        if to != *given {
            *given = to;
            (self.resize)(self.steps.bytes(to));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// A shard of the cache: how `quick_cache` reckons when its capacity changes.
    struct Shard {
        bytes: u64,
        hot_bytes: u64,
        keys: u64,
    }

    impl Shard {
        fn set_capacity(&mut self, bytes: u64) {
            let ratio = bytes as f64 / self.bytes as f64;
            let hot_ratio = self.hot_bytes as f64 / self.bytes as f64;
            self.bytes = bytes;
            self.hot_bytes = (bytes as f64 * hot_ratio) as u64;
            self.keys = (self.keys as f64 * ratio) as u64;
        }
    }

    #[test]
    fn after_a_year_of_compactions_the_cache_remembers_as_many_keys_as_at_first() {
        for (budget, shards) in
            [(100_000, 1), (8 << 20, 8), (256_000_000, 64), (1_000_012_345, 64), (16 << 30, 64)]
        {
            let steps = Steps::new(budget, shards, 4096);
            let bytes = steps.bytes(STEPS) / shards;
            let keys = (steps.blocks() as f64 / shards as f64 * REMEMBERED_PART) as u64;
            let hot_bytes = (bytes as f64 * HOT_PART) as u64;
            let shard = Arc::new(Mutex::new((Shard { bytes, hot_bytes, keys }, 0)));
            let resized = Arc::clone(&shard);
            let resize = move |bytes| {
                let mut shard = resized.lock().unwrap();
                shard.0.set_capacity(bytes / shards);
                shard.1 += 1;
            };
            let share = DataShare::new(budget, steps, Box::new(resize));
            let (mut partitions, mut x) = (0, budget);
            // A change of the partitions every few minutes: they come one by one, and go with a file.
            for _ in 0..200_000 {
                x = x.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
                let file = ((x >> 40) % 6 + 1) * budget / 64;
                let part = file / ((x >> 50) % 4 + 4);
                let comes = (x >> 60) < 14 && partitions + part <= budget / 5 * 4;
                partitions =
                    if comes { partitions + part } else { partitions.saturating_sub(file) };
                share.note(partitions);
                share.follow();
                let given = shard.lock().unwrap().0.bytes * shards;
                assert!(given + partitions <= budget, "{budget}: {given} and {partitions}");
                let unused = budget - partitions - given;
                assert!(unused <= steps.bytes(8), "{budget}: {unused} are nobody's");
            }
            let (shard, changes) = &*shard.lock().unwrap();
            assert!(*changes > 10_000, "{changes}");
            let part = shard.bytes as f64 / bytes as f64;
            assert_eq!(shard.keys, (keys as f64 * part).round() as u64, "{budget}");
            assert_eq!(shard.hot_bytes, (hot_bytes as f64 * part).round() as u64, "{budget}");
        }
    }

    #[test]
    fn from_each_number_of_steps_there_is_a_way_to_about_each_other() {
        let sizes = (1..1000).chain([4095, 4097, 65_537, 777_777, 1 << 24]);
        for shard_keys in sizes {
            let steps = Steps { shards: 1, shard_bytes: 1 << 20, shard_keys };
            for from in 1..=STEPS {
                for wanted in STEPS_MIN..=STEPS {
                    let to = steps.reach(from, wanted);
                    assert!(steps.keeps(from, to), "{shard_keys}: {from} to {wanted}");
                    assert!(to <= wanted && to + 4 >= wanted, "{from} to {wanted}: {to}");
                }
            }
        }
    }
}
