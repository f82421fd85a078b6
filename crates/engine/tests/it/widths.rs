//! Rows of every width, among each other: those that lie whole in one block, those that fill groups of it, and
//! those that span blocks take different ways through a read and must come out alike.

use std::sync::Arc;

use bytes::Bytes;
use futures::executor::block_on;
use tepui_engine::cell::{FamilyId, Mutation, RowBatch, RowRange, TimestampRange};
use tepui_engine::db::{Engine, EngineOptions};
use tepui_engine::io::{FaultFiles, FaultOp, ManualClock, MemoryFiles};
use tepui_engine::limits::SCAN_PROGRESS_RECORDS;
use tepui_engine::read::{Projection, RowStream};
use tepui_engine::tablet::{ReadView, ScanOptions, Tablet};

use crate::harness::{Rig, START_MICROS, env, open_started, plain_schema, put, scan, tiny_options};

/// Cells of the rows, in turn: around a group's 32 records, and beyond a block.
const WIDTHS: [usize; 12] = [1, 33, 2, 64, 1, 1, 31, 32, 400, 1, 65, 120];

#[test]
fn rows_of_every_width_come_out_alike_of_point_reads_and_scans_both_ways() {
    for block_bytes in [512, 4096, 16 << 10] {
        let mut options = EngineOptions { target_file_bytes: 1 << 20, ..tiny_options() };
        options.sst.block_bytes = block_bytes;
        let rig = Rig::new(options, plain_schema(), 3);
        let rows: Vec<(String, usize)> =
            (0..240).map(|n| (format!("row-{n:03}"), WIDTHS[n % WIDTHS.len()])).collect();
        for (row, width) in &rows {
            let cells = (0..*width).map(|c| put(1, &format!("c{c:04}"), 1000, "value")).collect();
            rig.apply(row.as_bytes(), cells);
        }
        block_on(rig.tablet.flush()).unwrap();
        for settled in [false, true] {
            if settled {
                rig.engine.compact_fully().unwrap();
            }
            for (row, width) in &rows {
                let projection = Projection::all();
                let read = rig.tablet.read_row(row.as_bytes(), &projection, ReadView::Durable);
                let read = block_on(read).unwrap().unwrap();
                assert_eq!((read.cells.len(), read.key.as_ref()), (*width, row.as_bytes()));
            }
            for reverse in [false, true] {
                let mut scanned: Vec<(String, usize)> = rig
                    .scan(RowRange::all(), reverse, None)
                    .into_iter()
                    .map(|row| (String::from_utf8(row.key.to_vec()).unwrap(), row.cells.len()))
                    .collect();
                if reverse {
                    scanned.reverse();
                }
                assert_eq!(scanned, rows, "{block_bytes} reverse: {reverse}");
            }
        }
    }
}

/// A tablet whose files count reads, with a compacted row of many blocks and others around it; opened anew, so that
/// nothing is in memory.
fn wide(
    block_cache_bytes: u64,
    then: impl FnOnce(&Tablet),
) -> (FaultFiles, Arc<Engine>, Arc<Tablet>) {
    let files = FaultFiles::new(Arc::new(MemoryFiles::new()));
    let mut options = EngineOptions { target_file_bytes: 8 << 20, ..tiny_options() };
    options.sst.block_bytes = 1 << 10;
    options.sst.index_partition_bytes = 1 << 10;
    options.block_cache_bytes = block_cache_bytes;
    options.separate_values_bytes = 0;
    let clock = Arc::new(ManualClock::new(START_MICROS));
    let open =
        || open_started(env(Arc::new(files.clone()), Arc::clone(&clock), 1), options.clone());
    let (engine, tablet) = open();
    let apply = |row: &str, mutations| {
        let row = Bytes::copy_from_slice(row.as_bytes());
        block_on(tablet.apply(RowBatch { row, mutations })).unwrap();
    };
    for row in ["a", "wide", "z"] {
        let cells = if row == "wide" { WIDE_CELLS } else { 3 };
        apply(row, (0..cells).map(|n| put(1, &format!("q{n:05}"), 1, "a value, short")).collect());
    }
    engine.compact_fully().unwrap();
    then(&tablet);
    drop(engine);
    drop(tablet);
    let (engine, tablet) = open();
    (files, engine, tablet)
}

const WIDE_CELLS: usize = 5_000;

fn count_reads<T>(files: &FaultFiles, read: impl FnOnce() -> T) -> (T, u64) {
    let before = files.count(FaultOp::Read);
    let found = read();
    (found, files.count(FaultOp::Read) - before)
}

#[test]
fn a_named_column_of_a_wide_row_is_one_block() {
    // Too small for all blocks, so that none is read for its neighbour.
    let (files, _engine, tablet) = wide(64 << 10, |_| {});
    let one = |n: usize| {
        let qualifier = Bytes::from(format!("q{n:05}"));
        let projection = Projection::newest_of([(FamilyId(1), qualifier)]);
        let row = block_on(tablet.read_row(b"wide", &projection, ReadView::Durable));
        row.unwrap().map_or(0, |row| row.cells.len())
    };
    let (cells, reads) = count_reads(&files, || one(2_500));
    assert_eq!(cells, 1);
    // Its partitions of the filter and of the index, and its block.
    assert!(reads <= 3, "{reads} reads");
    let (cells, reads) = count_reads(&files, || one(2_700));
    assert_eq!(cells, 1);
    assert!(reads <= 2, "{reads} reads");
    assert_eq!(one(WIDE_CELLS), 0);
}

#[test]
fn what_a_deleted_row_was_is_not_read() {
    let (files, _engine, tablet) = wide(8 << 20, |tablet| {
        let mutations = vec![Mutation::DeleteRow, put(1, "later", 2, "yes")];
        block_on(tablet.apply(RowBatch { row: "wide".into(), mutations })).unwrap();
    });
    for flushed in [false, true] {
        if flushed {
            block_on(tablet.flush()).unwrap();
        }
        let read = || block_on(tablet.read_row(b"wide", &Projection::all(), ReadView::Durable));
        let (row, reads) = count_reads(&files, read);
        assert_eq!(row.unwrap().unwrap().cells.len(), 1);
        // Once the tombstone is in a file, that is read, and of the older one where the row begins.
        assert!(reads <= if flushed { 4 } else { 0 }, "flushed {flushed}: {reads} reads");
    }
}

#[test]
fn a_reverse_scan_reads_ahead_in_a_wide_row() {
    let reads = [false, true].map(|reverse| {
        let (files, _engine, tablet) = wide(8 << 20, |_| {});
        let read = || scan(&tablet, RowRange::all(), Projection::all(), reverse, None);
        let (rows, reads) = count_reads(&files, read);
        assert_eq!(rows.unwrap().iter().map(|row| row.cells.len()).sum::<usize>(), WIDE_CELLS + 6);
        reads
    });
    assert!(reads[1] <= reads[0] + reads[0] / 2 + 4, "forward and back: {reads:?}");
}

#[test]
fn cells_of_a_merged_row_do_not_each_keep_a_block() {
    let (_files, _engine, tablet) = wide(8 << 20, |tablet| {
        let mutations = vec![put(1, "q00000", 2, "newer")];
        block_on(tablet.apply(RowBatch { row: "wide".into(), mutations })).unwrap();
    });
    for values in [false, true] {
        let projection = Projection { values, ..Projection::all() };
        let row = block_on(tablet.read_row(b"wide", &projection, ReadView::Durable));
        let cells = row.unwrap().unwrap().cells;
        assert_eq!(cells.len(), WIDE_CELLS + 1);
        let kept = cells.iter().filter(|cell| !cell.qualifier.is_unique()).count();
        assert!(kept < 300, "{kept} of {}", cells.len());
        let kept = cells.iter().filter(|c| !c.value.is_empty() && !c.value.is_unique()).count();
        assert!(kept < 300, "{kept} of {}", cells.len());
    }
}

/// A tablet of so many rows, each of 400 cells in one block, and of one row with a newer cell.
fn rig_of_old_cells(rows: usize, newer: &str, value: &str) -> Rig {
    let mut options = EngineOptions { target_file_bytes: 64 << 20, ..tiny_options() };
    options.sst.block_bytes = 16 << 10;
    let rig = Rig::new(options, plain_schema(), 3);
    for row in 0..rows {
        let cells = (0..400).map(|c| put(1, &format!("c{c:04}"), 1000, "v")).collect();
        rig.apply(format!("row-{row:03}").as_bytes(), cells);
    }
    rig.apply(newer.as_bytes(), vec![put(1, "c", 9000, value)]);
    rig.engine.compact_fully().unwrap();
    rig
}

/// Scans for the newer cell.
fn scan_for_newer(rig: &Rig) -> RowStream {
    let timestamps = TimestampRange { start: 9000, end: 10_000 };
    let options = ScanOptions {
        range: RowRange::all(),
        projection: Projection { timestamps, ..Projection::all() },
        reverse: false,
        rows_hint: None,
        snapshot: None,
    };
    rig.tablet.scan(options).unwrap()
}

#[test]
fn progress_counts_all_cells_that_a_scan_passes_over() {
    let rows = 120;
    let rig = rig_of_old_cells(rows, "row-999", "found");
    let mut stream = scan_for_newer(&rig);
    let mut marks = 0;
    while block_on(stream.next()).unwrap().expect("the last row").cells.is_empty() {
        marks += 1;
    }
    let expected = rows * 400 / usize::try_from(SCAN_PROGRESS_RECORDS).unwrap();
    assert!((expected..=expected + 1).contains(&marks), "{marks} marks, not {expected}");
}

#[test]
fn a_reverse_scan_of_a_level_reads_no_more_than_one_forward() {
    // Files of a sublevel, in each row the tombstone of what an older file has, so that none takes the short cut.
    let row = |file: usize, row: usize| Bytes::from(format!("row-{file:02}-{row:02}"));
    let reads = [false, true].map(|reverse| {
        let files = FaultFiles::new(Arc::new(MemoryFiles::new()));
        let mut options = EngineOptions { target_file_bytes: 8 << 20, ..tiny_options() };
        options.sst.block_bytes = 1 << 10;
        options.block_cache_bytes = 16 << 10;
        options.separate_values_bytes = 0;
        options.l0_compaction_files = 100;
        let clock = Arc::new(ManualClock::new(START_MICROS));
        let open =
            || open_started(env(Arc::new(files.clone()), Arc::clone(&clock), 1), options.clone());
        let (engine, tablet) = open();
        let apply = |row, mutations| block_on(tablet.apply(RowBatch { row, mutations })).unwrap();
        for n in 0..1_000 {
            apply(row(n / 50, n % 50), vec![put(1, "deleted", 1, "")]);
        }
        block_on(tablet.flush()).unwrap();
        for n in 0..1_000 {
            let deleted = Mutation::DeleteCells {
                family: FamilyId(1),
                qualifier: "deleted".into(),
                timestamps: TimestampRange::ALL,
            };
            apply(row(n / 50, n % 50), vec![put(1, "q", 1, &"a value ".repeat(20)), deleted]);
            if n % 50 == 49 {
                block_on(tablet.flush()).unwrap();
            }
        }
        drop(engine);
        drop(tablet);
        let (_engine, tablet) = open();
        let read = || scan(&tablet, RowRange::all(), Projection::all(), reverse, None);
        let (rows, reads) = count_reads(&files, read);
        assert_eq!(rows.unwrap().len(), 1_000);
        reads
    });
    assert!(reads[1] <= reads[0] + reads[0] / 4, "forward and back: {reads:?}");
}

#[test]
fn a_row_that_waits_for_a_value_does_not_wait_for_many_rows_that_show_nothing() {
    let rows = 600;
    let rig = rig_of_old_cells(rows, "a", "a value that lies elsewhere");
    let blocks_read = || rig.engine.cache().sst_metrics().blocks_read.get();
    let before = blocks_read();
    let mut stream = scan_for_newer(&rig);
    let first = block_on(stream.next()).unwrap().unwrap();
    assert_eq!(&first.cells[0].value[..], b"a value that lies elsewhere");
    // As many as a mark of progress is for, and what is read ahead.
    let blocks = blocks_read() - before;
    assert!(blocks < rows as u64 / 2, "{blocks} blocks");
}
