//! Background jobs beside each other and beside dropped rows: the shape of the tree stays sound, jobs
//! come to an end, and an engine that is let go lets go of its directory.

use std::path::Path;
use std::sync::Arc;

use futures::executor::block_on;

use tepui_engine::ErrorKind;
use tepui_engine::cell::{FamilyId, RowRange};
use tepui_engine::db::{Engine, EngineOptions, Health};
use tepui_engine::io::{Files, ManualClock, MemoryFiles};
use tepui_engine::read::Projection;
use tepui_engine::schema::{FamilyOptions, GcRule, TabletSchema};
use tepui_engine::tablet::ScanOptions;

use crate::harness::{Rig, START_MICROS, env, plain_schema, put, tiny_options};

const MINUTE_MICROS: u64 = 60_000_000;

fn max_age(micros: i64) -> TabletSchema {
    let family =
        FamilyOptions { gc: Some(GcRule::MaxAge(micros)), aggregate: None, gc_since_micros: 0 };
    TabletSchema { families: [(FamilyId(1), family)].into() }
}

/// Compactions write one file each.
fn large_files() -> EngineOptions {
    EngineOptions { target_file_bytes: 1 << 20, base_level_bytes: 1 << 20, ..tiny_options() }
}

/// A rig whose last level has a file on both sides of another one: rows a to p in one, of which d to k
/// were dropped and e to h written anew, `cells` cells each.
fn straddled(schema: TabletSchema, cells: u32) -> Rig {
    let rig = Rig::new(large_files(), schema, 5);
    let write = |rows: &[u8]| {
        for row in rows {
            // The first row's cells are half an hour older than the others'.
            let timestamp = START_MICROS - if *row == b'a' { 30 * 60_000_000 } else { 0 };
            let cells = (0..cells).map(|n| put(1, &format!("q{n:02}"), timestamp, "v"));
            rig.apply(&[*row], cells.collect());
        }
        block_on(rig.tablet.flush()).unwrap();
    };
    write(b"abcdefghijklmnop");
    rig.engine.compact_fully().unwrap();
    block_on(rig.tablet.drop_rows(RowRange::new("d", "l"))).unwrap();
    write(b"eg");
    write(b"fh");
    rig.engine.run_background().unwrap();
    assert_eq!(rig.tablet.stats().level_files, [0, 0, 0, 0, 0, 0, 3]);
    rig
}

#[test]
fn a_file_on_both_sides_of_another_is_collected_in_place() {
    let rig = straddled(max_age(3_600_000_000), 1);
    rig.clock.advance_micros(31 * MINUTE_MICROS);
    rig.engine.run_background().unwrap();
    assert_eq!(rig.engine.health(), Health::Serving);
    let rows = rig.scan(RowRange::all(), false, None);
    let keys: Vec<u8> = rows.iter().map(|row| row.key[0]).collect();
    assert_eq!(keys, b"bcefghlmnop");
}

#[test]
fn a_scan_that_skips_ahead_passes_a_file_on_both_sides_of_another_once() {
    let rig = straddled(plain_schema(), 40);
    let projection = Projection { cells_per_row_max: 1, ..Projection::all() };
    let options = ScanOptions {
        range: RowRange::all(),
        projection,
        reverse: false,
        rows_hint: None,
        snapshot: None,
    };
    let mut stream = rig.tablet.scan(options).unwrap();
    let mut keys = Vec::new();
    // A scan that goes round in circles has an end here.
    for _ in 0..100 {
        let Some(row) = block_on(stream.next()).unwrap() else { break };
        if !row.cells.is_empty() {
            keys.push(row.key[0]);
        }
    }
    assert_eq!(keys, b"abcefghlmnop");
}

#[test]
fn steadily_expiring_cells_do_not_rewrite_a_small_tablet_for_ever() {
    let rig = Rig::new(tiny_options(), max_age(3_600_000_000), 6);
    for second in 0..600 {
        let timestamp = START_MICROS - 3_600_000_000 + second * 1_000_000;
        // Every file has cells of all ages.
        let row = (second * 7_919) % 600;
        rig.apply(format!("{row:03}").as_bytes(), vec![put(1, "q", timestamp, "v")]);
    }
    block_on(rig.tablet.flush()).unwrap();
    rig.engine.compact_fully().unwrap();
    let written = || {
        let bytes = &rig.engine.metrics().compaction_write_bytes;
        bytes.load(std::sync::atomic::Ordering::Relaxed)
    };
    let before = written();
    let size = rig.tablet.stats().sst_bytes;
    for _ in 0..60 {
        rig.clock.advance_micros(1_000_000);
        rig.engine.run_background().unwrap();
    }
    assert!(rig.scan(RowRange::all(), false, None).len() <= 600 - 25, "some were collected");
    let rewritten = written() - before;
    assert!(rewritten < 3 * size, "{rewritten} bytes rewritten in a minute, of {size}");
}

#[test]
fn an_engine_that_is_let_go_without_closing_lets_go_of_its_directory() {
    let files = Arc::new(MemoryFiles::new());
    let open = || {
        let clock = Arc::new(ManualClock::new(START_MICROS));
        let environment = env(Arc::clone(&files) as Arc<dyn Files>, clock, 1);
        let options = EngineOptions { background: true, ..tiny_options() };
        Engine::open(environment, Path::new("/data"), options)
    };
    let engine = open().unwrap();
    engine.start().unwrap();
    let tablet = engine.create_tablet(RowRange::all()).unwrap();
    tablet.set_schema(Arc::new(plain_schema()));
    drop(engine);
    // Whoever has a tablet may still write to the log.
    assert_eq!(open().err().map(|error| error.kind()), Some(ErrorKind::Locked));
    drop(tablet);
    // A thread in the middle of its work ends that first.
    for _ in 0..1_000_000 {
        match open() {
            Ok(_) => return,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Locked),
        }
        std::thread::yield_now();
    }
    panic!("the directory is still locked");
}
