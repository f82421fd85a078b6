//! A disk that takes flushes and compactions a few bytes at a time while writers go on: they are refused, memory stays within its
//! bounds, and nothing that was acknowledged is lost.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use futures::executor::block_on;

use tepui_engine::cell::RowBatch;
use tepui_engine::db::{Engine, EngineOptions, Health};
use tepui_engine::io::{
    CrashMode, Env, FaultFiles, Files, JoinHandle, ManualClock, MemoryFiles, Rng, SeededRng,
    Spawner, ThreadSpawner,
};
use tepui_engine::pressure::Behind;
use tepui_engine::read::Projection;
use tepui_engine::tablet::{ReadView, Tablet};
use tepui_engine::{ErrorKind, Result};

use crate::harness::{START_MICROS, env, open_started, put, tiny_options};

const WRITERS: u64 = 3;
/// Rows of each writer: all together a dozen memtables.
const ROWS: u64 = 250;
/// Words of a value, of 16 bytes each.
const VALUE_WORDS: usize = 62;
/// What the disk takes of SSTs for each write that is refused: of a memtable's flush each needs a hundred.
const BYTES_PER_REFUSAL: usize = 512;

fn options() -> EngineOptions {
    EngineOptions {
        background: true,
        memtable_bytes: 64 << 10,
        memtables_total_bytes: 512 << 10,
        log_queue_bytes: 64 << 10,
        log_segment_bytes: 64 << 10,
        target_file_bytes: 32 << 10,
        base_level_bytes: 64 << 10,
        separate_values_bytes: 0,
        ..tiny_options()
    }
}

/// What the disk takes now: an append waits until there is as much as it has.
#[derive(Default)]
struct Disk {
    /// None is a disk that takes everything.
    takes: Mutex<Option<usize>>,
    more: Condvar,
}

impl Disk {
    fn take(&self, bytes: usize) {
        let takes = self.takes.lock().unwrap();
        let short = |takes: &mut Option<usize>| takes.is_some_and(|takes| takes < bytes);
        let mut takes = self.more.wait_while(takes, short).unwrap();
        *takes = takes.map(|takes| takes - bytes);
    }

    fn gives(&self, bytes: usize) {
        let mut takes = self.takes.lock().unwrap();
        *takes = takes.map(|takes| takes + bytes);
        self.more.notify_all();
    }

    fn is_slow(&self, slow: bool) {
        *self.takes.lock().unwrap() = slow.then_some(0);
        self.more.notify_all();
    }
}

/// Threads that are told of where they panic.
#[derive(Debug, Default)]
struct Watched(Arc<Mutex<Vec<String>>>);

impl Spawner for Watched {
    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> Result<Box<dyn JoinHandle>> {
        let (panicked, own) = (Arc::clone(&self.0), name.to_owned());
        let watched = move || {
            if catch_unwind(AssertUnwindSafe(work)).is_err() {
                panicked.lock().unwrap().push(own);
            }
        };
        ThreadSpawner.spawn(name, Box::new(watched))
    }
}

fn open(environment: Env) -> (Arc<Engine>, Arc<Tablet>) {
    open_started(environment, options())
}

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::new(START_MICROS))
}

fn row(writer: u64, n: u64) -> String {
    format!("row-{n:04}-{writer}")
}

/// Values that hardly compress.
fn value(writer: u64, n: u64) -> String {
    let rng = SeededRng::new((writer << 32) + n);
    let words: Vec<_> = (0..VALUE_WORDS).map(|_| format!("{:016x}", rng.next_u64())).collect();
    words.concat()
}

fn read(tablet: &Tablet, writer: u64, n: u64) -> Option<String> {
    let key = row(writer, n);
    let projection = Projection::all();
    let read = tablet.read_row(key.as_bytes(), &projection, ReadView::Durable);
    let found = block_on(read).unwrap()?;
    Some(String::from_utf8(found.cells[0].value.to_vec()).unwrap())
}

fn assert_all_there(tablet: &Tablet) {
    for writer in 0..WRITERS {
        for n in 0..ROWS {
            assert!(read(tablet, writer, n) == Some(value(writer, n)), "{}", row(writer, n));
        }
    }
}

#[test]
fn beside_flushes_that_the_disk_takes_slowly_writers_are_refused_and_nothing_is_lost() {
    let files = MemoryFiles::new();
    let faults = FaultFiles::new(Arc::new(files.clone()));
    let disk = Arc::new(Disk::default());
    let own = Arc::clone(&disk);
    faults.before_append(Some(Arc::new(move |path: &Path, bytes| {
        if path.extension().is_some_and(|kind| kind == "sst") {
            own.take(bytes);
        }
    })));
    let panicked = Arc::new(Mutex::new(Vec::new()));
    let spawner = Arc::new(Watched(Arc::clone(&panicked)));
    let (engine, tablet) =
        open(Env { spawner, ..env(Arc::new(faults) as Arc<dyn Files>, clock(), 1) });
    disk.is_slow(true);
    let (refused, memory) = (AtomicU64::new(0), AtomicU64::new(0));
    let write = |writer: u64, n: u64| loop {
        let mutations = vec![put(1, "q", 1000, &value(writer, n))];
        let batch = RowBatch { row: row(writer, n).into_bytes().into(), mutations };
        let written = block_on(tablet.apply(batch));
        memory.fetch_max(engine.memory().memtables, Ordering::Relaxed);
        match written {
            Ok(_) => break,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Overloaded, "{error}");
                assert!(error.retry_after().is_some(), "{error}");
                refused.fetch_add(1, Ordering::Relaxed);
                disk.gives(BYTES_PER_REFUSAL);
            }
        }
    };
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (write, tablet) = (&write, &tablet);
            scope.spawn(move || {
                for n in 0..ROWS {
                    write(writer, n);
                    // Reads wait for no flush.
                    assert!(read(tablet, writer, n) == Some(value(writer, n)), "{writer} {n}");
                }
            });
        }
    });
    // The disk has had no more than what refusals let it have, and stands still again.
    let behind = [Behind::Memory, Behind::Memtables, Behind::LevelZero];
    let counted: u64 = behind.iter().map(|behind| engine.refusals().get(*behind)).sum();
    let refused = refused.into_inner();
    assert!(counted == refused && refused > 100, "{counted} of {refused} refusals");
    let of_flushes =
        engine.refusals().get(Behind::Memory) + engine.refusals().get(Behind::Memtables);
    assert!(of_flushes > 100, "{of_flushes}: memory waits for flushes");
    let (memory, most) = (memory.into_inner(), options().memtables_total_bytes);
    assert!(memory <= most, "{memory} bytes of memtables, {most} at most");
    assert_eq!(engine.health(), Health::Serving);
    let crashed = files.crashed_copy(CrashMode::Strict, &SeededRng::new(1));

    // It is fast again: what waited goes on by itself.
    disk.is_slow(false);
    block_on(tablet.flush()).unwrap();
    engine.compact_fully().unwrap();
    assert_eq!(engine.health(), Health::Serving);
    assert_all_there(&tablet);
    engine.close().unwrap();
    drop((engine, tablet));
    assert_eq!(*panicked.lock().unwrap(), Vec::<String>::new());

    // Had the power gone while the disk was slow, the log would have had what no flush had written.
    let (engine, tablet) = open(env(Arc::new(crashed) as Arc<dyn Files>, clock(), 2));
    assert_all_there(&tablet);
    engine.close().unwrap();
}
