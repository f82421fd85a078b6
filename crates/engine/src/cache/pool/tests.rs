use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;

use super::*;
use crate::cache::steps::{STEPS, STEPS_MIN, Steps};
use crate::sst::testing::filter_block;

const BUDGET: u64 = 100_000;

fn steps() -> Steps {
    Steps::new(BUDGET, 1, 4096)
}

/// A pool, and what data blocks were told last.
fn pool(share_percent: u32) -> (PartitionPool, Arc<AtomicU64>) {
    let told = Arc::new(AtomicU64::new(steps().bytes(STEPS)));
    let tell = Arc::clone(&told);
    let resize = Box::new(move |bytes| tell.store(bytes, Ordering::Relaxed));
    let metrics = Arc::new(SstMetrics::default());
    let rest = DataShare::new(BUDGET, steps(), resize);
    let options =
        CacheOptions { partition_share_percent: share_percent, ..CacheOptions::new(BUDGET) };
    (PartitionPool::new(&options, metrics, rest), told)
}

#[test]
fn coarse_filters_have_a_share_of_the_budget_and_what_is_given_back_can_be_had_again() {
    let (pool, told) = pool(50);
    let before = told.load(Ordering::Relaxed);
    assert!(pool.hold_coarse(BUDGET / 8) && pool.hold_coarse(BUDGET / 8));
    assert!(!pool.hold_coarse(1), "a quarter");
    assert!(told.load(Ordering::Relaxed) < before, "data blocks have less");
    pool.release_coarse(BUDGET / 8);
    assert!(!pool.hold_coarse(BUDGET / 8 + 1));
    assert!(pool.hold_coarse(BUDGET / 8));
    pool.release_coarse(BUDGET / 8);
    pool.release_coarse(BUDGET / 8);
    assert_eq!(told.load(Ordering::Relaxed), before);
}

/// Bytes that each block of these tests is charged with.
fn block() -> (Arc<Block>, u64) {
    let block = Arc::new(filter_block(600));
    let bytes = block.memory_bytes();
    assert!((900..1200).contains(&bytes), "{bytes}");
    (block, bytes)
}

fn resident(directory: &Directory) -> Vec<usize> {
    directory.resident().into_iter().map(|(place, _, _)| place).collect()
}

#[test]
fn what_is_used_between_two_rounds_of_the_clock_stays_and_what_was_read_once_leaves() {
    let (pool, _) = pool(50);
    let (block, bytes) = block();
    let fits = (BUDGET / 2 / bytes) as usize;
    let hot = Directory::new(10, 0);
    let cold = Directory::new(0, 10_000);
    for at in 0..10 {
        pool.insert(&hot, PartitionId::Index(at), &block);
    }
    for at in 0..10_000 {
        pool.insert(&cold, PartitionId::Filter(at), &block);
        if at % (fits / 2) == 0 {
            assert!((0..10).all(|at| hot.index(at).is_some()), "{at}");
        }
        assert!(pool.bytes().total() <= BUDGET / 2);
    }
    assert_eq!(resident(&hot).len(), 10);
    assert_eq!(pool.metrics.index.evictions.get(), 0);
    assert_eq!(pool.metrics.filter.evictions.get() as usize, 10_010 - fits);
    // Unused from here on, they go too.
    for at in 0..2 * fits {
        pool.insert(&cold, PartitionId::Filter(at), &block);
    }
    assert_eq!(resident(&hot), Vec::<usize>::new());
}

#[test]
fn pinned_partitions_stay_however_many_others_come() {
    let (pool, _) = pool(50);
    let (block, bytes) = block();
    let upper = Directory::new(5, 5);
    assert!(pool.pin(&upper, 10 * bytes));
    for at in 0..5 {
        pool.insert(&upper, PartitionId::Index(at), &block);
        pool.insert(&upper, PartitionId::Filter(at), &block);
    }
    let others = Directory::new(0, 1000);
    for at in 0..1000 {
        pool.insert(&others, PartitionId::Filter(at), &block);
    }
    assert_eq!(resident(&upper).len(), 10);
    let sum = pool.bytes();
    assert_eq!(sum.pinned, 10 * bytes);
    assert!(sum.total() <= BUDGET / 2 && sum.total() > BUDGET / 2 - bytes, "{sum:?}");

    pool.unpin(&upper);
    for at in 0..1000 {
        pool.insert(&others, PartitionId::Filter(at), &block);
    }
    assert_eq!(pool.bytes().pinned, 0);
    assert!(resident(&upper).is_empty(), "they went when nobody used them");
}

#[test]
fn pinning_stops_at_half_the_budget() {
    let (pool, _) = pool(80);
    let first = Directory::new(1, 0);
    let second = Directory::new(1, 0);
    assert!(pool.pin(&first, BUDGET / 2));
    assert!(!pool.pin(&second, 1));
    assert!(!second.is_pinned());
    pool.forget(&first);
    assert!(pool.pin(&second, 1), "the room came back");
}

#[test]
fn other_partitions_are_kept_however_much_is_promised_to_pinned_ones() {
    let (block, _) = block();
    let others = || (Directory::new(0, 1), PartitionId::Filter(0));
    // A share of half the budget, of which the pinned would have all.
    let (half, _) = pool(50);
    let pins = |pool: &PartitionPool| pool.pin(&Directory::new(1, 0), BUDGET / 50);
    let granted = (0..50).take_while(|_| pins(&half)).count();
    assert!((14..=16).contains(&granted), "{granted} of 50");
    let (directory, id) = others();
    assert!(half.insert(&directory, id, &block));
    // A share that becomes as small once there are more files.
    let (shrunk, _) = pool(80);
    assert!(shrunk.pin(&Directory::new(1, 0), BUDGET / 2));
    shrunk.hold(BUDGET / 100 * 45);
    let (directory, id) = others();
    assert!(shrunk.insert(&directory, id, &block));
    // But not beyond it, where the pinned are there.
    let (full, _) = pool(50);
    let pinned = Directory::new(0, 100);
    assert!(full.pin(&pinned, 0));
    for at in 0..100 {
        assert!(full.insert(&pinned, PartitionId::Filter(at), &block));
    }
    let (directory, id) = others();
    assert!(!full.insert(&directory, id, &block));
}

#[test]
fn a_closed_file_gives_its_bytes_back_at_once() {
    let (pool, told) = pool(80);
    let (block, bytes) = block();
    let directories: Vec<_> = (0..2).map(|_| Directory::new(0, 30)).collect();
    for directory in &directories {
        for at in 0..30 {
            assert!(pool.insert(directory, PartitionId::Filter(at), &block));
        }
    }
    let given = told.load(Ordering::Relaxed);
    assert!(given <= BUDGET - 60 * bytes, "data blocks gave way: {given}");
    pool.forget(&directories[0]);
    assert_eq!(pool.bytes().total(), 30 * bytes);
    assert_eq!(pool.evictable(), 30);
    assert!(told.load(Ordering::Relaxed) > given + 25 * bytes, "and have the room again");
    assert_eq!(Arc::strong_count(&directories[0]), 1, "nothing keeps the directory");
    assert_eq!(Arc::strong_count(&block), 31);
}

#[test]
fn a_partition_larger_than_the_share_is_not_kept() {
    let (pool, _) = pool(0);
    let (block, _) = block();
    let directory = Directory::new(1, 1);
    assert!(!pool.insert(&directory, PartitionId::Filter(0), &block));
    assert!(directory.filter(0, 0).is_none());
    assert_eq!(pool.bytes().total(), 0);
}

#[test]
fn positions_that_are_not_there_hold_nothing() {
    let (pool, _) = pool(80);
    let (block, _) = block();
    let directory = Directory::new(2, 1);
    // Never a filter partition's slot.
    assert!(!pool.insert(&directory, PartitionId::Index(2), &block));
    assert!(!pool.insert(&directory, PartitionId::Filter(1), &block));
    assert!(!pool.insert(&directory, PartitionId::Filter(usize::MAX), &block));
    assert!(directory.index(2).is_none());
    assert!(resident(&directory).is_empty());
}

#[derive(Debug, Clone)]
enum Op {
    Insert(usize, usize, usize),
    Use(usize, usize),
    Pin(usize),
    Unpin(usize),
    Forget(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0usize..3, 0usize..12, 1usize..9000).prop_map(|(d, at, n)| Op::Insert(d, at, n)),
        4 => (0usize..3, 0usize..12).prop_map(|(d, at)| Op::Use(d, at)),
        1 => (0usize..3).prop_map(Op::Pin),
        1 => (0usize..3).prop_map(Op::Unpin),
        1 => (0usize..3).prop_map(Op::Forget),
    ]
}

proptest! {
    #[test]
    fn the_sums_are_always_those_of_what_is_there(ops in prop::collection::vec(op(), 1..200)) {
        let (pool, told) = pool(50);
        let directories: Vec<_> = (0..3).map(|_| Directory::new(6, 6)).collect();
        let id = |at: usize| if at < 6 { PartitionId::Index(at) } else { PartitionId::Filter(at - 6) };
        let reserved = BUDGET / 10;
        for op in ops {
            match op {
                Op::Insert(d, at, bytes) => {
                    pool.insert(&directories[d], id(at), &Arc::new(filter_block(bytes)));
                }
                Op::Use(d, at) => drop(match id(at) {
                    PartitionId::Index(at) => directories[d].index(at),
                    PartitionId::Filter(at) => directories[d].filter(at, 0),
                }),
                Op::Pin(d) => prop_assert!(pool.pin(&directories[d], reserved)),
                Op::Unpin(d) => pool.unpin(&directories[d]),
                Op::Forget(d) => pool.forget(&directories[d]),
            }
            let mut expected = PartitionBytes::default();
            for directory in &directories {
                for (_, kind, bytes) in directory.resident() {
                    *expected.of(kind) += bytes;
                    expected.pinned += if directory.is_pinned() { bytes } else { 0 };
                }
            }
            prop_assert_eq!(pool.bytes(), expected);
            let ring = pool.lock();
            let pinned = directories.iter().filter(|d| d.is_pinned()).count() as u64;
            prop_assert_eq!(ring.reserved_bytes, pinned * reserved);
            for (at, entry) in ring.entries.iter().enumerate() {
                let slot = &entry.directory.slots()[entry.place as usize];
                prop_assert_eq!(slot.ring_at(), at as u32);
                prop_assert!(!entry.directory.is_pinned() && !slot.is_empty());
            }
            let evictable: u64 = ring.entries.iter().map(|e| e.bytes).sum();
            prop_assert_eq!(evictable, ring.evictable_bytes());
            let given = told.load(Ordering::Relaxed);
            let within = given + expected.total() <= BUDGET || given == steps().bytes(STEPS_MIN);
            prop_assert!(within, "{} {:?}", given, expected);
        }
    }
}

#[test]
fn what_open_files_keep_is_paid_for_by_data_blocks_first_and_then_by_partitions() {
    let (pool, told) = pool(50);
    let (block, bytes) = block();
    let all = told.load(Ordering::Relaxed);
    pool.hold(BUDGET / 4);
    assert!(told.load(Ordering::Relaxed) <= BUDGET - BUDGET / 4);
    pool.hold(BUDGET / 2);
    let directory = Directory::new(0, 1_000);
    for at in 0..1_000 {
        pool.insert(&directory, PartitionId::Filter(at), &block);
    }
    let total = pool.bytes().total();
    assert!(total >= bytes && total + BUDGET / 4 * 3 <= BUDGET - steps().bytes(STEPS_MIN));
    assert_eq!(told.load(Ordering::Relaxed), steps().bytes(STEPS_MIN));
    pool.release(BUDGET / 4 * 3);
    pool.forget(&directory);
    assert_eq!(told.load(Ordering::Relaxed), all);
}
