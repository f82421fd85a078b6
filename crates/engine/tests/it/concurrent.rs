//! Threads: writers, readers, flushes, compactions and dropped ranges at once, over memtables so small
//! that all of them meet; and a power cut in the middle.
//!
//! Every batch writes all columns of its row with the number of the batch, and a deleted row has none.
//! So a row that is read must have all of its columns, the newest cell of each with the same number: one
//! batch is seen whole, and never half of it. A row's numbers only grow, and so must what one reader sees
//! of it. Some writers rewrite one cell of each column again and again, the others add cells.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use futures::executor::block_on;

use tepui_engine::cell::{Mutation, Row, RowBatch, RowRange};
use tepui_engine::db::{EngineOptions, Health};
use tepui_engine::io::{CrashMode, Rng, SeededRng};
use tepui_engine::read::Projection;
use tepui_engine::tablet::{ReadView, Tablet};

use crate::harness::{Rig, plain_schema, put, scan, tiny_options};
use crate::until::until;

const WRITERS: u64 = 3;
const ROWS_PER_WRITER: u64 = 24;
const COLUMNS: u32 = 6;
/// Batches of each writer; about three seconds of a slow machine's time in all.
const BATCHES: u64 = 1_500;

fn options() -> EngineOptions {
    EngineOptions {
        background: true,
        memtable_bytes: 64 << 10,
        log_segment_bytes: 64 << 10,
        target_file_bytes: 8 << 10,
        base_level_bytes: 32 << 10,
        gc_interval_ms: 50,
        gc_idle_ms: 0,
        ..tiny_options()
    }
}

fn key(writer: u64, n: u64) -> String {
    format!("w{writer}-{n:02}")
}

/// The rows that are dropped again and again: of the last writer alone.
fn dropped_rows() -> RowRange {
    RowRange::prefix(format!("w{}-1", WRITERS - 1).as_bytes())
}

/// The number of the batch that a row shows; panics where it shows parts of two.
fn batch_of(row: &Row) -> u64 {
    let numbers: Vec<u64> = row
        .cells
        .chunk_by(|a, b| a.family == b.family && a.qualifier == b.qualifier)
        .map(|column| &column[0])
        .map(|cell| String::from_utf8(cell.value.to_vec()).unwrap().trim().parse().unwrap())
        .collect();
    assert_eq!(numbers.len(), COLUMNS as usize, "{:?}: {numbers:?}", row.key);
    assert!(numbers.iter().all(|n| *n == numbers[0]), "{:?}: {numbers:?}", row.key);
    numbers[0]
}

fn mutations(writer: u64, number: u64) -> Vec<Mutation> {
    let timestamp = if writer.is_multiple_of(2) { 1000 } else { 1000 * number as i64 };
    let cell = |c: u32| put(1 + c % 3, &format!("c{c}"), timestamp, &format!("{number:100}"));
    let mut mutations: Vec<Mutation> = (0..COLUMNS).map(cell).collect();
    if number.is_multiple_of(5) {
        mutations.insert(0, Mutation::DeleteRow);
    }
    mutations
}

/// The rows of a writer's next batch, which has this number, as its random numbers go.
fn rows_of(number: u64, rng: &SeededRng) -> Vec<u64> {
    let first = rng.next_u64() % ROWS_PER_WRITER;
    let together = if number.is_multiple_of(4) { 1 + first % 5 } else { 1 };
    (first..first + together).map(|n| n % ROWS_PER_WRITER).collect()
}

/// Whether the batch with this number deletes its rows.
fn deletes(number: u64) -> bool {
    number.is_multiple_of(17)
}

/// What is acknowledged of each row that was written.
type Acknowledged = HashMap<String, Last>;

/// The last batch of a row.
struct Last {
    number: u64,
    deletes: bool,
}

impl Last {
    /// The batch that the row shows.
    fn shown(&self) -> Option<u64> {
        (!self.deletes).then_some(self.number)
    }
}

fn write(tablet: &Tablet, writer: u64, stop: &AtomicBool, acknowledged: &[AtomicU64]) {
    let rng = SeededRng::new(writer);
    for number in 1..=BATCHES {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let rows = rows_of(number, &rng);
        let delete = deletes(number);
        let batch = |n| RowBatch {
            row: Bytes::from(key(writer, n)),
            mutations: if delete { vec![Mutation::DeleteRow] } else { mutations(writer, number) },
        };
        let written = match rows[..] {
            [row] => block_on(tablet.apply_when_room(batch(row))).map(|_| ()),
            _ => block_on(tablet.apply_rows_when_room(rows.iter().copied().map(batch).collect())),
        };
        if written.is_err() {
            // The power is off.
            return;
        }
        let shown = number * 2 + u64::from(delete);
        for n in rows {
            acknowledged[(writer * ROWS_PER_WRITER + n) as usize].store(shown, Ordering::Release);
        }
    }
}

fn read(tablet: &Tablet, reader: u64, stop: &AtomicBool) -> u64 {
    let rng = SeededRng::new(100 + reader);
    let mut seen: HashMap<Bytes, u64> = HashMap::new();
    let mut rows_read = 0;
    while !stop.load(Ordering::Relaxed) {
        let mut meet = |row: &Row| {
            let number = batch_of(row);
            let last = seen.insert(row.key.clone(), number).unwrap_or(0);
            assert!(last <= number, "{:?} went back from {last} to {number}", row.key);
        };
        let choice = rng.next_u64() % 4;
        let versions_max = if rng.next_u64().is_multiple_of(2) { 1 } else { u32::MAX };
        let projection = Projection { versions_max, ..Projection::all() };
        let writer = rng.next_u64() % WRITERS;
        if choice < 2 {
            let range = RowRange::prefix(format!("w{writer}").as_bytes());
            let reverse = choice == 1;
            let rows = scan(tablet, range, projection, reverse, None).unwrap();
            let sorted =
                rows.is_sorted_by(|a, b| if reverse { a.key > b.key } else { a.key < b.key });
            assert!(sorted, "each row once, in order");
            rows.iter().for_each(&mut meet);
            rows_read += rows.len() as u64;
        } else {
            let row = key(writer, rng.next_u64() % ROWS_PER_WRITER);
            let found = tablet.read_row(row.as_bytes(), &projection, ReadView::Durable);
            if let Some(row) = block_on(found).unwrap() {
                meet(&row);
                rows_read += 1;
            }
        }
    }
    rows_read
}

fn shake(rig: &Rig, stop: &AtomicBool, drops: bool) {
    let rng = SeededRng::new(7);
    while !stop.load(Ordering::Relaxed) {
        match rng.next_u64() % 4 {
            0 => drop(block_on(rig.tablet.flush())),
            1 => drop(rig.engine.compact_fully()),
            _ if drops => drop(block_on(rig.tablet.drop_rows(dropped_rows()))),
            _ => std::thread::yield_now(),
        }
        // Time is moved by hand: garbage is looked for, log segments are freed.
        rig.clock.advance_micros(20_000);
    }
}

fn acknowledged_rows(acknowledged: &[AtomicU64], skip: &RowRange) -> Acknowledged {
    let mut rows = Acknowledged::new();
    for (at, shown) in (0u64..).zip(acknowledged) {
        let row = key(at / ROWS_PER_WRITER, at % ROWS_PER_WRITER);
        if !skip.contains(row.as_bytes()) {
            let shown = shown.load(Ordering::Acquire);
            rows.insert(row, Last { number: shown / 2, deletes: shown == 0 || shown % 2 == 1 });
        }
    }
    rows
}

fn counters() -> Vec<AtomicU64> {
    (0..WRITERS * ROWS_PER_WRITER).map(|_| AtomicU64::new(0)).collect()
}

#[test]
fn readers_see_whole_batches_in_order_and_in_the_end_all_that_was_acknowledged() {
    let rig = Rig::new(options(), plain_schema(), 21);
    let acknowledged = counters();
    let stop = AtomicBool::new(false);
    let rows_read = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|reader| {
                scope.spawn({
                    let (tablet, stop) = (&rig.tablet, &stop);
                    move || read(tablet, reader, stop)
                })
            })
            .collect();
        let shaker = scope.spawn(|| shake(&rig, &stop, true));
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (tablet, stop, acknowledged) = (&rig.tablet, &stop, &acknowledged);
                scope.spawn(move || write(tablet, writer, stop, acknowledged))
            })
            .collect();
        let written = writers.into_iter().map(|thread| thread.join()).collect::<Vec<_>>();
        stop.store(true, Ordering::Relaxed);
        let read = readers.into_iter().map(|thread| thread.join()).collect::<Vec<_>>();
        shaker.join().unwrap();
        for result in written {
            result.unwrap();
        }
        read.into_iter().map(|result| result.unwrap()).sum::<u64>()
    });
    assert!(rows_read > 100, "{rows_read} rows read");
    assert_eq!(rig.engine.health(), Health::Serving);
    let counts = &rig.engine.metrics();
    assert!(counts.flushes.load(Ordering::Relaxed) > 5);
    assert!(counts.compactions.load(Ordering::Relaxed) > 2);
    let expected = acknowledged_rows(&acknowledged, &dropped_rows());
    check(&rig, &expected, |row, shown, want| assert_eq!(shown, want, "{row}"));
    rig.engine.close().unwrap();
    let files = Arc::clone(&rig.files);
    let rig = rig.reopen_on(files);
    check(&rig, &expected, |row, shown, want| assert_eq!(shown, want, "{row} after the restart"));
    rig.engine.close().unwrap();
}

fn check(rig: &Rig, expected: &Acknowledged, agree: impl Fn(&str, Option<u64>, Option<u64>)) {
    let rows = rig.scan(RowRange::all(), false, None);
    let shown: HashMap<&[u8], u64> = rows.iter().map(|r| (r.key.as_ref(), batch_of(r))).collect();
    for (row, last) in expected {
        agree(row, shown.get(row.as_bytes()).copied(), last.shown());
    }
}

#[test]
fn a_power_cut_among_running_threads_loses_nothing_that_was_acknowledged() {
    for seed in 0..4 {
        let rig = Rig::new(options(), plain_schema(), 30 + seed);
        let acknowledged = counters();
        let stop = AtomicBool::new(false);
        let (before, last, disk) = std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                let (tablet, stop, acknowledged) = (&rig.tablet, &stop, &acknowledged);
                scope.spawn(move || write(tablet, writer, stop, acknowledged));
            }
            scope.spawn(|| shake(&rig, &stop, true));
            // The moment: after so many rows were acknowledged in all.
            let moment = 200 + seed * 400;
            let total =
                || acknowledged.iter().map(|a| a.load(Ordering::Acquire) / 2).max().unwrap();
            until("so many are acknowledged", || total() >= moment.min(BATCHES - 1));
            let skip = dropped_rows();
            let before = acknowledged_rows(&acknowledged, &skip);
            let mode = if seed % 2 == 0 { CrashMode::Strict } else { CrashMode::Torn };
            let disk = rig.files.crashed_copy(mode, &SeededRng::new(seed));
            let written = acknowledged.chunks(ROWS_PER_WRITER as usize);
            let last =
                |rows: &[AtomicU64]| rows.iter().map(|a| a.load(Ordering::Acquire) / 2).max();
            // The one behind these was under way, perhaps.
            let last: Vec<u64> = written.map(|rows| last(rows).unwrap() + 1).collect();
            stop.store(true, Ordering::Relaxed);
            (before, last, disk)
        });
        rig.engine.close().unwrap();
        let rig = rig.reopen_on(Arc::new(disk));
        let rows = rig.scan(RowRange::all(), false, None);
        let shown: HashMap<&[u8], u64> =
            rows.iter().map(|row| (row.key.as_ref(), batch_of(row))).collect();
        for (row, Last { number, deletes }) in &before {
            // What came after the count and before the cut may be there; nothing older may.
            match shown.get(row.as_bytes()) {
                Some(shown) if *deletes => assert!(shown > number, "{row}: {shown} is back"),
                Some(shown) => assert!(shown >= number, "{row}: {shown} < {number}"),
                None if *deletes => {}
                // A later deletion, whose acknowledgement was under way.
                None => assert!(later_deletion(row, *number, &last), "{row}: {number} is lost"),
            }
        }
        rig.engine.close().unwrap();
    }
}

/// Whether the writer of `row` deletes it after batch `number` and up to its last.
fn later_deletion(row: &str, number: u64, last: &[u64]) -> bool {
    let (writer, n) = row.strip_prefix('w').unwrap().split_once('-').unwrap();
    let (writer, n): (u64, u64) = (writer.parse().unwrap(), n.parse().unwrap());
    let rng = SeededRng::new(writer);
    (1..=last[writer as usize]).any(|batch| {
        let rows = rows_of(batch, &rng);
        batch > number && deletes(batch) && rows.contains(&n)
    })
}
