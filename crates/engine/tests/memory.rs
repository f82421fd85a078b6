//! What parts of the engine take of memory, by an allocator that counts. In a process of its own: the allocator is
//! everybody's.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::executor::block_on;

use tepui_engine::cell::{FamilyId, Mutation, RowBatch, RowRange};
use tepui_engine::db::{Engine, EngineOptions};
use tepui_engine::io::{Env, InlineIo, IoMode, LocalFiles, SeededRng, SystemClock, ThreadSpawner};
use tepui_engine::options::CompressionPolicy;
use tepui_engine::read::Projection;
use tepui_engine::schema::{FamilyOptions, TabletSchema};
use tepui_engine::tablet::ReadView;

/// Bytes that are allocated now.
static LIVE: AtomicI64 = AtomicI64::new(0);

/// Bytes that were ever allocated.
static EVER: AtomicI64 = AtomicI64::new(0);

struct Counting;

// SAFETY: the system's allocator does the work; `realloc` is the default, which comes here.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size() as i64, Ordering::Relaxed);
        EVER.fetch_add(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Held by the test that counts.
static ALONE: Mutex<()> = Mutex::new(());

const ROWS: usize = 5500;

const CACHE_BYTES: u64 = 512 << 10;

fn row(i: usize) -> Bytes {
    Bytes::from(format!("row-{i:08}"))
}

fn env() -> Env {
    Env {
        files: Arc::new(LocalFiles::new(IoMode::Direct)),
        io: Arc::new(InlineIo),
        clock: Arc::new(SystemClock::default()),
        rng: Arc::new(SeededRng::new(1)),
        spawner: Arc::new(ThreadSpawner),
    }
}

fn schema() -> Arc<TabletSchema> {
    let families = [(FamilyId(1), FamilyOptions::default())].into();
    Arc::new(TabletSchema { families })
}

/// Bytes that are allocated once other threads have let go of what they worked with, of which nothing tells: the same after a while.
fn settled() -> i64 {
    loop {
        let live = LIVE.load(Ordering::Relaxed);
        #[expect(
            clippy::disallowed_methods,
            reason = "nothing tells when another thread has let go"
        )]
        std::thread::sleep(Duration::from_millis(20));
        if live == LIVE.load(Ordering::Relaxed) {
            return live;
        }
    }
}

/// Bytes that reading every row, twice in turn, leaves in memory, and how many the cache says that it holds.
fn taken(compression: CompressionPolicy) -> (f64, f64) {
    let dir = tempfile::tempdir().unwrap();
    let mut options = EngineOptions {
        background: false,
        block_cache_bytes: CACHE_BYTES,
        compression,
        ..EngineOptions::default()
    };
    // Also of compressed blocks: what is charged for each weighs most where they are small.
    options.sst.block_bytes = 4040;
    let engine = Engine::open(env(), Path::new(dir.path()), options).unwrap();
    let tablet = engine.create_tablet(RowRange::all()).unwrap();
    tablet.set_schema(schema());
    engine.start().unwrap();
    for i in 0..ROWS {
        let value = format!("{:0100}", i * i).into();
        let qualifier = Bytes::from_static(b"q");
        let put = Mutation::Put { family: FamilyId(1), qualifier, timestamp: 0, value };
        block_on(tablet.apply_when_room(RowBatch { row: row(i), mutations: vec![put] })).unwrap();
    }
    engine.compact_fully().unwrap();
    let read = |i: usize| {
        let projection = Projection::all();
        block_on(tablet.read_row(&row(i), &projection, ReadView::Durable)).unwrap().unwrap()
    };
    let before = settled();
    for i in 0..ROWS {
        assert_eq!(read(i), read(i), "found again, it has a slot");
    }
    let taken = settled() - before;
    let stats = engine.cache().stats();
    assert!(stats.data.evictions > 0 && stats.bytes > CACHE_BYTES / 10 * 9, "full: {stats:?}");
    (taken as f64, stats.bytes as f64)
}

#[test]
fn a_full_cache_takes_the_memory_that_it_says_it_does() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for compression in [CompressionPolicy::None, CompressionPolicy::Tiered] {
        let (taken, said) = taken(compression);
        assert!((taken / said - 1.0).abs() < 0.05, "{compression:?}: {taken} bytes, said {said}");
    }
}

#[test]
fn a_point_read_takes_the_key_of_its_row_once_however_many_columns_it_names() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let mut options = EngineOptions { background: false, ..EngineOptions::default() };
    // The wide row goes over several partitions, in which its columns are looked for.
    options.sst.filter_partition_bytes = 256;
    let engine = Engine::open(env(), Path::new(dir.path()), options).unwrap();
    let tablet = engine.create_tablet(RowRange::all()).unwrap();
    tablet.set_schema(schema());
    engine.start().unwrap();
    // Zeros take two bytes each in keys.
    let [narrow, wide] = [0, 1].map(|last| Bytes::from([vec![0; 4095], vec![last]].concat()));
    let column = |n: usize| Bytes::from(format!("c{n:05}"));
    for (row, columns) in [(&narrow, 1), (&wide, 1000_usize)] {
        let put = |n| Mutation::Put {
            family: FamilyId(1),
            qualifier: column(n * 10),
            timestamp: 0,
            value: Bytes::from_static(b"value"),
        };
        let mutations = (0..columns).map(put).collect();
        block_on(tablet.apply_when_room(RowBatch { row: row.clone(), mutations })).unwrap();
    }
    engine.compact_fully().unwrap();
    for (row, columns, found) in
        [(&narrow, 200, 1), (&narrow, 5000, 1), (&wide, 200, 20), (&wide, 5000, 500)]
    {
        let projection = Projection::newest_of((0..columns).map(|n| (FamilyId(1), column(n))));
        let read = || {
            let row = block_on(tablet.read_row(row, &projection, ReadView::Durable));
            assert_eq!(row.unwrap().unwrap().cells.len(), found);
        };
        read();
        let before = EVER.load(Ordering::Relaxed);
        read();
        let taken = EVER.load(Ordering::Relaxed) - before;
        assert!(taken < 512 << 10, "{taken} bytes for {found} of {columns} columns");
    }
}

#[test]
fn tablets_that_nobody_writes_to_take_a_few_kilobytes_each() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let options = EngineOptions { background: false, ..EngineOptions::default() };
    let engine = Engine::open(env(), Path::new(dir.path()), options).unwrap();
    let count = 30;
    let before = LIVE.load(Ordering::Relaxed);
    let tablets: Vec<_> =
        (0..count).map(|_| engine.create_tablet(RowRange::all()).unwrap()).collect();
    for tablet in &tablets {
        tablet.set_schema(schema());
    }
    let each = (LIVE.load(Ordering::Relaxed) - before) / count;
    assert!(each < 8 << 10, "{each} bytes");
    drop((tablets, engine));
}
