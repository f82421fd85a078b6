//! Loading under concurrency, and what loads leave in memory.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use futures::FutureExt;
use futures::future::{join, join_all};

use super::*;
use crate::cache::{BlockCache, Directory, QuickBlockCache};
use crate::cell::{FamilyId, Kind, encode_key};
use crate::cursor::{Cursor, Step};
use crate::io::{Files, InlineIo, PreadPool, Spawner, ThreadSpawner};
use crate::read::RecordInRow;
use crate::sst::point::PointStage;
use crate::sst::testing::{GateIo, Sample, TestFiles, TestIo, filter_block, look_up_with};
use crate::sst::{Compression, CursorOptions, FileId, RowProbe, SstCursor, SstOptions, SstWriter};

mod damage;
mod sharing;

const ID: FileId = 42;
const ROWS: usize = 400;

fn path() -> PathBuf {
    PathBuf::from("42.sst")
}

fn row(i: usize) -> String {
    format!("row-{i:06}")
}

/// One record for each row; a few rows to a block, a few blocks to a partition.
fn file_of(rows: usize) -> TestFiles {
    let files = TestFiles::default();
    files.cold.store(true, Ordering::Relaxed);
    let options = SstOptions {
        block_bytes: 500,
        index_partition_bytes: 300,
        filter_partition_bytes: 128,
        compression: Compression::None,
        ..SstOptions::default()
    };
    let mut writer = SstWriter::new(files.create(&path()).unwrap(), &path(), ID, options, 0);
    for i in 0..rows {
        let mut key = Vec::new();
        let qualifier = Some(&b"q"[..]);
        encode_key(row(i).as_bytes(), FamilyId(1), qualifier, 5, 9, Kind::Value, &mut key);
        let record = Sample { key, value: vec![i as u8; 50] };
        writer.add(record.view(), &record.value).unwrap();
    }
    writer.finish().unwrap();
    files
}

fn open(files: &dyn Files, cache: &Arc<QuickBlockCache>) -> Arc<SstReader> {
    let cache = Arc::clone(cache) as Arc<dyn BlockCache>;
    SstReader::open(files, Path::new(&path()), ID, cache).unwrap()
}

fn cache(bytes: u64) -> Arc<QuickBlockCache> {
    Arc::new(QuickBlockCache::new(bytes))
}

async fn settle(io: &dyn IoEngine, cursor: &mut SstCursor, mut step: Step) -> Result<()> {
    while step == Step::Blocked {
        let mut wanted = Vec::new();
        cursor.wanted(&mut wanted);
        let loaded = load_blocks(io, wanted.clone()).await;
        for (request, block) in wanted.iter().zip(loaded) {
            cursor.supply(request, &block?);
        }
        step = cursor.resume()?;
    }
    Ok(())
}

/// A point read; the value.
async fn get(reader: &Arc<SstReader>, io: &dyn IoEngine, row: &str) -> Result<Option<Vec<u8>>> {
    let probe = RowProbe::row(row.as_bytes());
    match look_up_with(reader, &probe, |wanted| load_blocks(io, wanted)).await? {
        PointStage::Found(found) => {
            let mut value = Vec::new();
            found.row(reader)?.walk(|record| {
                value = record.value().to_vec();
                true
            })?;
            Ok(Some(value))
        }
        PointStage::Absent => Ok(None),
        stage => panic!("a row of one record: {stage:?}"),
    }
}

/// A scan over everything; the rows.
async fn scan(reader: &Arc<SstReader>, io: &dyn IoEngine, fill_cache: bool) -> Result<usize> {
    let mut cursor = reader.cursor(CursorOptions { fill_cache, ..CursorOptions::default() });
    let step = cursor.seek(b"")?;
    settle(io, &mut cursor, step).await?;
    let mut rows = 0;
    while cursor.entry().is_some() {
        rows += 1;
        let step = cursor.next()?;
        settle(io, &mut cursor, step).await?;
    }
    Ok(rows)
}

fn now<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().expect("nothing to wait for")
}

#[test]
fn a_hundred_readers_of_one_cold_row_read_each_of_its_blocks_once() {
    let cache = cache(8 << 20);
    let reader = open(&file_of(ROWS), &cache);
    let io = GateIo::new();
    let row = row(123);
    let reads = join_all((0..100).map(|_| get(&reader, &io, &row)));
    let mut reads = Box::pin(reads);
    assert!((&mut reads).now_or_never().is_none());
    assert_eq!(io.reads().len(), 1, "the filter partition, so far");
    io.open();
    for value in now(reads) {
        assert_eq!(value.unwrap().unwrap(), vec![123; 50]);
    }
    assert_eq!(io.reads().len(), 3, "filter, index, data: {:?}", io.reads());
    assert_eq!(reader.metrics().blocks_read.get(), 2 + cache.stats().blocks);
    assert!(cache.stats().loads_shared >= 99);
    assert_eq!(cache.flights().len(), 0);
}

#[test]
fn where_all_blocks_fit_a_missing_one_comes_with_those_around_it_in_one_read() {
    let files = file_of(5_000);
    let reads_of = |cache_bytes| {
        let cache = cache(cache_bytes);
        let reader = open(&files, &cache);
        let io = GateIo::new();
        io.open();
        for i in 0..200 {
            assert_eq!(now(get(&reader, &io, &row(i))).unwrap().unwrap(), vec![i as u8; 50]);
        }
        let data_reads =
            io.reads().len() as u64 - cache.stats().index.misses - cache.stats().filter.misses;
        (data_reads, cache.stats().blocks)
    };
    // Some 400 kB of records.
    let (reads, blocks) = reads_of(8 << 20);
    assert!(blocks >= 20, "{blocks}");
    assert!(reads <= blocks / 5, "{reads} reads of {blocks} blocks");
    let (reads, blocks) = reads_of(600 << 10);
    assert_eq!(reads, blocks, "each by itself, where another may have to go for it");
}

#[test]
fn threads_that_read_the_same_cold_rows_read_each_block_once() {
    let cache = cache(8 << 20);
    let reader = open(&file_of(ROWS), &cache);
    let pool = Arc::new(PreadPool::new(&ThreadSpawner, 3).unwrap());
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let (reader, pool) = (Arc::clone(&reader), Arc::clone(&pool));
            let work = move || {
                for i in 0..ROWS {
                    let value = pollster::block_on(get(&reader, pool.as_ref(), &row(i)));
                    assert_eq!(value.unwrap().unwrap(), vec![i as u8; 50]);
                }
            };
            ThreadSpawner.spawn("reader", Box::new(work)).unwrap()
        })
        .collect();
    for thread in threads {
        thread.join();
    }
    let blocks = reader.properties().data_blocks + reader.index_memory().partitions;
    assert_eq!(reader.metrics().blocks_read.get(), blocks);
    assert_eq!(cache.flights().len(), 0);
}

#[test]
fn a_cancelled_read_does_not_take_those_with_it_who_joined() {
    let cache = cache(8 << 20);
    let reader = open(&file_of(ROWS), &cache);
    let io = GateIo::new();
    let row = row(7);
    let mut first = Box::pin(get(&reader, &io, &row));
    let mut second = Box::pin(get(&reader, &io, &row));
    assert!((&mut first).now_or_never().is_none());
    assert!((&mut second).now_or_never().is_none());
    drop(first);
    io.open();
    assert_eq!(now(second).unwrap().unwrap(), vec![7; 50]);
    assert_eq!(io.reads().len(), 3, "the read that was under way went on");
}

#[test]
fn a_load_that_everyone_gave_up_is_begun_anew() {
    let cache = cache(8 << 20);
    let reader = open(&file_of(ROWS), &cache);
    let io = GateIo::new();
    let row = row(7);
    let mut first = Box::pin(get(&reader, &io, &row));
    assert!((&mut first).now_or_never().is_none());
    assert_eq!(cache.flights().len(), 1);
    drop(first);
    assert_eq!(cache.flights().len(), 0, "nothing is left of it");
    io.open();
    assert_eq!(now(get(&reader, &io, &row)).unwrap().unwrap(), vec![7; 50]);
    assert_eq!(io.reads().len(), 4);
}

#[test]
fn a_failed_read_fails_those_who_waited_for_it_and_nobody_after() {
    let cache = cache(8 << 20);
    let reader = open(&file_of(ROWS), &cache);
    let io = GateIo::new();
    let row = row(7);
    io.fail.store(true, Ordering::Relaxed);
    let mut both = Box::pin(join(get(&reader, &io, &row), get(&reader, &io, &row)));
    assert!((&mut both).now_or_never().is_none());
    io.fail.store(false, Ordering::Relaxed);
    io.open();
    let (first, second) = now(both);
    for failed in [first, second] {
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::Io);
    }
    assert_eq!(cache.stats().bytes, 0);
    assert_eq!(now(get(&reader, &io, &row)).unwrap().unwrap(), vec![7; 50]);
}

#[test]
fn batches_that_wait_for_each_others_blocks_all_end_whichever_is_polled() {
    let reader = open(&file_of(10_000), &cache(8 << 20));
    let mut all = Vec::new();
    for i in 0..reader.top().len() {
        let handle = reader.top_entry(i).unwrap().handle;
        all.push(reader.request_partition(PartitionId::Index(i), handle, Fill::Keep));
    }
    assert!(all.len() > 6);
    let pick = |places: &[usize]| places.iter().map(|p| all[*p].clone()).collect::<Vec<_>>();
    let io = GateIo::new();
    let mut loads: Vec<_> = [pick(&[0, 2]), pick(&[2, 4, 0]), pick(&[4, 6, 0]), pick(&[6, 2])]
        .into_iter()
        .map(|wanted| Box::pin(load_blocks(&io, wanted)))
        .collect();
    let reads = io.reads();
    let ends = |read: &(u64, usize)| read.0 + read.1 as u64;
    assert!(reads.windows(2).all(|w| ends(&w[0]) <= w[1].0), "each once: {reads:?}");
    for place in [0, 2, 4, 6] {
        let handle = all[place].handle;
        assert!(reads.iter().any(|r| r.0 <= handle.offset && handle.end() <= ends(r)), "{reads:?}");
    }
    io.open();
    // The others are never polled: their blocks come all the same.
    let last = loads.pop().unwrap();
    assert!(now(last).iter().all(Result::is_ok));
    let third = loads.pop().unwrap();
    assert!(now(third).iter().all(Result::is_ok));
}

#[test]
fn the_rows_that_are_read_again_and_again_stay_in_memory_while_everything_is_scanned() {
    let rows = 20_000;
    let files = file_of(rows);
    let cache = cache(512 << 10);
    let reader = open(&files, &cache);
    let io = TestIo::default();
    let data = reader.index_memory().data_bytes;
    assert!(data > 1 << 20, "more than fits: {data}");
    let hot: Vec<String> = (0..100).map(|i| row(i * 199)).collect();
    let read_hot = || {
        for row in &hot {
            assert!(now(get(&reader, &io, row)).unwrap().is_some());
        }
    };
    for _ in 0..5 {
        read_hot();
    }
    let before = cache.stats();
    read_hot();
    let warm = cache.stats();
    assert_eq!(warm.misses, before.misses, "all of it is in memory");
    for _ in 0..2 {
        assert_eq!(now(scan(&reader, &io, true)).unwrap(), rows);
        let scanned = cache.stats();
        read_hot();
        let after = cache.stats();
        let missed = after.misses - scanned.misses;
        assert!(missed <= 6, "{missed} of 300 lookups missed: {after:#?}");
    }
}

#[test]
fn a_compaction_fills_neither_the_directory_nor_the_cache() {
    let cache = cache(8 << 20);
    let reader = open(&file_of(ROWS), &cache);
    assert_eq!(now(scan(&reader, &InlineIo, false)).unwrap(), ROWS);
    let stats = cache.stats();
    assert_eq!((stats.bytes, stats.hits, stats.misses), (0, 0, 0), "{stats:?}");
}

#[test]
fn a_partition_that_a_scan_read_enters_the_directory_when_it_is_asked_for_again() {
    let cache = cache(8 << 20);
    let reader = open(&file_of(ROWS), &cache);
    now(scan(&reader, &InlineIo, true)).unwrap();
    let stats = cache.stats();
    assert_eq!((stats.index.bytes, stats.filter.bytes), (0, 0), "{stats:?}");
    let read = reader.metrics().blocks_read.get();
    now(scan(&reader, &InlineIo, true)).unwrap();
    assert_eq!(reader.metrics().blocks_read.get(), read, "it was in memory");
    let stats = cache.stats();
    assert!(stats.index.bytes > 0, "{stats:?}");
    assert!(reader.top().len() > 1);
    assert_eq!(stats.index.misses, 1, "the others were read ahead");
}

#[test]
fn partitions_for_which_the_pinned_leave_no_room_are_in_memory_too() {
    let cache = cache(8 << 20);
    let reader = open(&file_of(ROWS), &cache);
    let pinned = Directory::new(0, 80);
    assert!(cache.partitions().pin(&pinned, 0));
    let block = Arc::new(filter_block(100 << 10));
    for at in 0..80 {
        assert!(cache.partitions().insert(&pinned, PartitionId::Filter(at), &block));
    }
    let io = GateIo::new();
    io.open();
    for _ in 0..3 {
        assert_eq!(now(get(&reader, &io, &row(7))).unwrap().unwrap(), vec![7; 50]);
        assert_eq!(io.reads().len(), 3, "filter, index and data, once: {:?}", io.reads());
    }
    let stats = cache.stats();
    assert_eq!((stats.index.hits, stats.filter.hits), (2, 2), "{stats:?}");
    assert!(reader.directory.peek(PartitionId::Index(0)).is_none());
    // With room again, they move to where they belong.
    cache.partitions().forget(&pinned);
    now(get(&reader, &io, &row(7))).unwrap().unwrap();
    assert_eq!(io.reads().len(), 3);
    assert!(reader.directory.peek(PartitionId::Index(0)).is_some());
    assert!(reader.directory.peek(PartitionId::Filter(0)).is_some());
}

#[test]
fn a_cache_smaller_than_a_block_serves_every_read_from_the_device() {
    for bytes in [0, 1, 100, 600] {
        let cache = cache(bytes);
        let reader = open(&file_of(ROWS), &cache);
        for _ in 0..2 {
            for i in (0..ROWS).step_by(7) {
                let value = now(get(&reader, &InlineIo, &row(i))).unwrap();
                assert_eq!(value.unwrap(), vec![i as u8; 50]);
            }
            assert_eq!(now(scan(&reader, &InlineIo, true)).unwrap(), ROWS);
        }
        assert!(cache.stats().bytes <= bytes, "{:?}", cache.stats());
    }
}

#[test]
fn a_cached_read_counts_a_hit_for_each_kind_of_block_and_an_uncached_one_a_miss() {
    let cache = cache(8 << 20);
    let reader = open(&file_of(ROWS), &cache);
    for round in 0..3 {
        now(get(&reader, &InlineIo, &row(5))).unwrap().unwrap();
        let stats = cache.stats();
        for kind in [stats.data, stats.index, stats.filter] {
            // The read that misses looks again once the block is there, and holds it then.
            assert_eq!((kind.hits, kind.misses), (round, 1), "{stats:?}");
        }
    }
    now(get(&reader, &InlineIo, "row-000005x")).unwrap();
    let filters = cache.stats().filters;
    assert_eq!(filters.lookups, 4);
    assert_eq!((filters.probes, filters.negatives, filters.positives), (4, 1, 3));
    assert!((filters.utilisation() - 1.0).abs() < f64::EPSILON);
}

#[test]
fn closing_a_file_takes_its_partitions_out_of_memory() {
    let cache = cache(8 << 20);
    let reader = open(&file_of(ROWS), &cache);
    for i in 0..ROWS {
        now(get(&reader, &InlineIo, &row(i))).unwrap().unwrap();
    }
    let memory = reader.index_memory();
    assert_eq!(memory.partition_bytes, memory.partition_bytes_all);
    let stats = cache.stats();
    assert_eq!(stats.index.bytes + stats.filter.bytes, memory.partition_bytes);
    drop(reader);
    let stats = cache.stats();
    assert_eq!(stats.index.bytes + stats.filter.bytes, 0);
}

/// Reads every row once.
fn read_all(reader: &Arc<SstReader>) {
    for i in 0..ROWS {
        let value = now(get(reader, &InlineIo, &row(i))).unwrap();
        assert_eq!(value.unwrap(), vec![i as u8; 50]);
    }
}

#[test]
fn blocks_that_are_asked_for_again_are_found_in_their_slots() {
    let cache = cache(8 << 20);
    let reader = open(&file_of(ROWS), &cache);
    read_all(&reader);
    read_all(&reader);
    // What the hash table does not have any more, a slot must not show: take one out behind its back.
    let partition = reader.index_slot(0).unwrap();
    let handle = reader.data_entry(partition.index().unwrap(), 0).unwrap().handle;
    let slots = Arc::clone(partition.data_slots().unwrap());
    let (slotted, owned) = (slots.get(0).unwrap(), cache.peek(ID, handle.offset).unwrap());
    assert!(Arc::ptr_eq(&slotted, &owned), "one block, not a copy");
    drop((slotted, owned));
    let taken = cache.take(ID, handle.offset).unwrap();
    assert!(slots.get(0).is_none(), "it left its slot with the cache");
    assert_eq!(Arc::strong_count(&taken), 1, "nothing else keeps it in memory");
}

#[test]
fn a_block_that_another_read_brought_too_leaves_its_slot_to_the_one_that_stays() {
    let cache = cache(8 << 20);
    let reader = open(&file_of(ROWS), &cache);
    read_all(&reader);
    read_all(&reader);
    let partition = reader.index_slot(0).unwrap();
    let handle = reader.data_entry(partition.index().unwrap(), 0).unwrap().handle;
    let first = cache.peek(ID, handle.offset).unwrap();
    let second = Arc::new(reader.read_block(handle, BlockKind::Data).unwrap());
    cache.insert(ID, handle.offset, Arc::clone(&second));
    assert_eq!(Arc::strong_count(&first), 1, "no slot keeps what the budget does not count");
    read_all(&reader);
    let found = partition.data_slots().unwrap().get(0).unwrap();
    assert!(Arc::ptr_eq(&found, &second));
}

#[test]
fn slots_keep_no_more_blocks_than_the_budget_while_reads_and_evictions_go_on() {
    let budget = 16 << 10;
    let cache = cache(budget);
    let reader = open(&file_of(ROWS), &cache);
    let read = |from: usize| {
        let reader = Arc::clone(&reader);
        let work = move || {
            for round in 0..20 {
                for i in 0..ROWS {
                    // Each row twice, so that blocks are found again before they are evicted.
                    let at = (from + round + i) % ROWS;
                    for _ in 0..2 {
                        // The other thread may be about to bring it.
                        let value = pollster::block_on(get(&reader, &InlineIo, &row(at))).unwrap();
                        assert_eq!(value.unwrap(), vec![at as u8; 50]);
                    }
                }
            }
        };
        ThreadSpawner.spawn("read", Box::new(work)).unwrap()
    };
    for thread in [read(0), read(ROWS / 2)] {
        thread.join();
    }
    let stats = cache.stats();
    assert!(stats.data.evictions > 100 && stats.data.hits > 100, "{stats:?}");
    assert!(stats.bytes <= budget, "{stats:?}");
    // What the slots hold, the hash table owns.
    for top_at in 0..reader.top().len() {
        let Some(partition) = reader.index_slot(top_at) else { continue };
        let index = partition.index().unwrap();
        for at in 0..index.len() {
            if let Some(block) = partition.data_slots().unwrap().get(at) {
                let handle = reader.data_entry(index, at).unwrap().handle;
                let owned = cache.peek(ID, handle.offset);
                assert!(owned.is_some_and(|owned| Arc::ptr_eq(&owned, &block)), "{top_at} {at}");
            }
        }
    }
}

#[test]
fn a_block_in_use_by_its_slot_alone_outlives_blocks_that_are_read_once() {
    let cache = cache(64 << 10);
    let reader = open(&file_of(ROWS), &cache);
    for _ in 0..2 {
        now(get(&reader, &InlineIo, &row(0))).unwrap().unwrap();
    }
    let partition = reader.index_slot(0).unwrap().to_arc();
    let handle = reader.data_entry(partition.index().unwrap(), 0).unwrap().handle;
    for i in 0..1000 {
        // Found in its slot each time; the policy hears of it once an epoch.
        assert!(
            reader.data_block(&partition, 0, handle, partition.in_slot(0)).is_some(),
            "evicted before block {i}"
        );
        cache.insert(7, i * 4096, Arc::new(crate::sst::testing::filter_block(4096)));
    }
    assert!(cache.stats().filter.evictions > 500, "{:?}", cache.stats());
}

#[test]
fn values_that_were_read_outlive_the_cache_and_the_file() {
    let cache = cache(8 << 20);
    let reader = open(&file_of(ROWS), &cache);
    read_all(&reader);
    let partition = reader.index_slot(0).unwrap().to_arc();
    let handle = reader.data_entry(partition.index().unwrap(), 0).unwrap().handle;
    let lease = reader.data_block(&partition, 0, handle, partition.in_slot(0)).unwrap().lease();
    let (copy, part) = (lease.to_vec(), lease.slice(40..));
    drop((lease, partition, reader, cache));
    assert_eq!(part, copy[40..]);
}
