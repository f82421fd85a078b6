use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::FutureExt;

use crate::cache::{BlockCache, QuickBlockCache};
use crate::cell::{FamilyId, Kind, encode_key};
use crate::io::{FaultFiles, Files};
use crate::sst::frame::TRAILER_LEN;
use crate::sst::testing::{Sample, TestFiles, look_up_with};
use crate::sst::{
    BlockKind, BlockRequest, FileId, RowProbe, SstOptions, SstReader, SstWriter,
    load_blocks_blocking,
};

const ID: FileId = 7;
const PATH: &str = "7.sst";

fn write(files: &TestFiles) {
    let options = SstOptions {
        block_bytes: 500,
        index_partition_bytes: 300,
        filter_partition_bytes: 128,
        ..SstOptions::default()
    };
    let path = Path::new(PATH);
    let mut writer = SstWriter::new(files.create(path).unwrap(), path, ID, options, 0);
    for i in 0..500 {
        let mut key = Vec::new();
        let row = format!("row-{i:06}");
        encode_key(row.as_bytes(), FamilyId(1), Some(b"q"), 5, 9, Kind::Value, &mut key);
        let record = Sample { key, value: vec![1; 50] };
        writer.add(record.view(), &record.value).unwrap();
    }
    writer.finish().unwrap();
}

fn open(files: &TestFiles, cache: &Arc<QuickBlockCache>) -> Arc<SstReader> {
    SstReader::open(files, Path::new(PATH), ID, Arc::clone(cache) as Arc<dyn BlockCache>).unwrap()
}

/// The kinds of block that a point read has to load, but for those beside what it needs.
fn wanted(reader: &Arc<SstReader>, row: &str) -> Vec<BlockKind> {
    let probe = RowProbe::row(row.as_bytes());
    let mut kinds = Vec::new();
    let load = |wanted: Vec<BlockRequest>| {
        kinds.extend(wanted.iter().filter(|w| !w.is_ahead()).map(BlockRequest::kind));
        std::future::ready(load_blocks_blocking(wanted))
    };
    look_up_with(reader, &probe, load).now_or_never().unwrap().unwrap();
    kinds
}

#[test]
fn the_first_read_of_a_row_in_a_pinned_file_loads_its_data_block_alone() {
    let files = TestFiles::default();
    write(&files);
    let cache = Arc::new(QuickBlockCache::new(1 << 20));
    let plain = open(&files, &cache);
    let all = [BlockKind::Filter, BlockKind::Index, BlockKind::Data];
    assert_eq!(wanted(&plain, "row-000250"), all);
    drop(plain);

    let reader = open(&files, &cache);
    assert!(reader.pin().unwrap());
    assert_eq!(wanted(&reader, "row-000350"), [BlockKind::Data]);
    let memory = reader.index_memory();
    assert_eq!(memory.pinned_bytes, memory.partition_bytes_all);
    assert_eq!(cache.stats().pinned_bytes, memory.pinned_bytes);
    assert!(memory.partitions > 10);
    let read = cache.sst_metrics().blocks_read.get();
    assert!(reader.pin().unwrap(), "again is for nothing");
    assert_eq!(cache.sst_metrics().blocks_read.get(), read);
    drop(reader);
    assert_eq!(cache.stats().pinned_bytes, 0);
}

#[test]
fn one_read_opens_a_small_file_and_keeps_its_index_and_filter() {
    let files = TestFiles::default();
    write(&files);
    let files = FaultFiles::new(Arc::new(files));
    let reads = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&reads);
    files.before_read(Some(Arc::new(move |_| {
        seen.fetch_add(1, Ordering::Relaxed);
    })));
    let cache = Arc::new(QuickBlockCache::new(1 << 20)) as Arc<dyn BlockCache>;
    let reader = SstReader::open_with(&files, Path::new(PATH), ID, cache, true).unwrap().0;
    assert_eq!(reads.load(Ordering::Relaxed), 1);
    let memory = reader.index_memory();
    assert_eq!(memory.pinned_bytes, memory.partition_bytes_all);
}

#[test]
fn a_file_that_would_pin_more_than_half_the_cache_is_read_when_needed() {
    let files = TestFiles::default();
    write(&files);
    let cache = Arc::new(QuickBlockCache::new(8 << 10));
    let reader = open(&files, &cache);
    assert!(!reader.pin().unwrap());
    assert!(!reader.is_pinned());
    assert_eq!(cache.stats().bytes, 0);
    assert_eq!(wanted(&reader, "row-000250").len(), 3);
}

#[test]
fn an_unpinned_file_keeps_its_partitions_as_long_as_there_is_room() {
    let files = TestFiles::default();
    write(&files);
    let cache = Arc::new(QuickBlockCache::new(1 << 20));
    let reader = open(&files, &cache);
    reader.pin().unwrap();
    reader.unpin();
    assert_eq!(cache.stats().pinned_bytes, 0);
    assert_eq!(wanted(&reader, "row-000250"), [BlockKind::Data]);
    assert_eq!(cache.partitions().evictable() as u64, reader.index_memory().partitions);
}

#[test]
fn a_damaged_partition_does_not_keep_the_others_from_being_pinned() {
    let files = TestFiles::default();
    write(&files);
    let cache = Arc::new(QuickBlockCache::new(1 << 20));
    let at = open(&files, &cache).top_entry(3).unwrap().handle.offset;
    let mut bytes = files.contents(Path::new(PATH));
    bytes[at as usize] ^= 1;
    files.put(Path::new(PATH), bytes);
    let reader = open(&files, &cache);
    assert!(reader.pin().unwrap());
    let memory = reader.index_memory();
    assert_eq!(wanted(&reader, "row-000001"), [BlockKind::Data]);
    assert_eq!(wanted(&reader, "row-000499"), [BlockKind::Data]);
    assert!(memory.pinned_bytes > memory.partition_bytes_all * 9 / 10, "{memory:?}");
}

#[test]
fn the_room_that_is_promised_to_a_file_is_what_its_partitions_take_with_places_for_all_blocks() {
    let files = TestFiles::default();
    write(&files);
    let cache = Arc::new(QuickBlockCache::new(1 << 20));
    let reader = open(&files, &cache);
    let expected = reader.index_memory();
    assert_eq!(expected.partition_bytes, 0);
    assert!(reader.pin().unwrap());
    let promised = reader.reserved_bytes.load(Ordering::Relaxed);
    assert_eq!(promised, expected.partition_bytes_all);
    let loaded = reader.index_memory();
    assert_eq!(loaded.partition_bytes, loaded.partition_bytes_all);
    // On disk each has a trailer more.
    let trailers = loaded.partitions * TRAILER_LEN as u64;
    assert_eq!(promised - trailers, loaded.pinned_bytes);
    let slots = reader.properties().data_blocks * size_of::<usize>() as u64;
    let without = loaded.pinned_bytes - slots;
    assert!(without > loaded.partitions * 300, "{loaded:?}, {slots} of slots");
}
