//! Reads of the newest cell of named columns end where the columns are found: older files are left alone where
//! nothing in them can be newer, and only there.

use futures::executor::block_on;
use tepui_engine::cell::{Cell, FamilyId, Mutation, TimestampRange};
use tepui_engine::db::EngineOptions;
use tepui_engine::read::Projection;
use tepui_engine::tablet::ReadView;

use crate::harness::{Rig, plain_schema, put, tiny_options};

/// A tablet whose index and filters are in memory.
fn rig() -> Rig {
    let options = EngineOptions { l0_compaction_files: 20, pinned_levels: 6, ..tiny_options() };
    Rig::new(options, plain_schema(), 5)
}

/// Writes columns of the row, each with its timestamp as its value, and flushes.
fn file(rig: &Rig, columns: &[&str], timestamp: i64) {
    write(rig, columns, timestamp);
    block_on(rig.tablet.flush()).unwrap();
}

fn write(rig: &Rig, columns: &[&str], timestamp: i64) {
    let value = timestamp.to_string();
    rig.apply(b"row", columns.iter().map(|c| put(1, c, timestamp, &value)).collect());
}

fn named(columns: &[&str]) -> Projection {
    Projection::newest_of(columns.iter().map(|c| (FamilyId(1), c.as_bytes().to_vec().into())))
}

/// The timestamps of the cells, and how many blocks were read to find them.
fn read(rig: &Rig, columns: &[&str]) -> (Vec<i64>, u64) {
    let blocks = || rig.engine.cache().sst_metrics().blocks_read.get();
    let before = blocks();
    let projection = named(columns);
    let row = block_on(rig.tablet.read_row(b"row", &projection, ReadView::Durable)).unwrap();
    let timestamp = |c: Cell| {
        assert_eq!(c.value, c.timestamp.to_string());
        c.timestamp
    };
    let found = row.map_or_else(Vec::new, |row| row.cells.into_iter().map(timestamp).collect());
    (found, blocks() - before)
}

/// The same of a row in these files, oldest first, none of which was read before.
fn read_first(
    files: &[(&[&str], i64)],
    memtable: &[(&[&str], i64)],
    columns: &[&str],
) -> (Vec<i64>, u64) {
    let rig = rig();
    for (columns, timestamp) in files {
        file(&rig, columns, *timestamp);
    }
    for (columns, timestamp) in memtable {
        write(&rig, columns, *timestamp);
    }
    read(&rig, columns)
}

const A: &[&str] = &["a"];
const C: &[&str] = &["c"];
const AB: &[&str] = &["a", "b"];
const AC: &[&str] = &["a", "c"];
const ABC: &[&str] = &["a", "b", "c"];

#[test]
fn a_row_just_written_is_read_without_a_file() {
    let found = |columns: &[&str]| read_first(&[(AB, 1000), (C, 1500)], &[(AB, 3000)], columns);
    assert_eq!(found(AB), (vec![3000, 3000], 0));
    // One that the memtable lacks has to be looked for, where the filters say that it may be.
    assert_eq!(found(ABC).0, vec![3000, 3000, 1500]);
}

#[test]
fn very_many_columns_that_are_named_are_found_and_spare_files_as_few_do() {
    let names: Vec<String> = (0..1000).map(|n| format!("c{n:04}")).collect();
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    let (first, rest) = all.split_at(400);
    assert_eq!(read_first(&[(&all, 1000)], &[(&all, 3000)], &all), (vec![3000; 1000], 0));
    let (found, _) = read_first(&[(rest, 1000), (first, 2000), (C, 3000)], &[], &all);
    assert_eq!(found, [vec![2000; 400], vec![1000; 600]].concat());
    assert_eq!(read_first(&[(C, 1000)], &[], &all).0, Vec::<i64>::new());
}

#[test]
fn a_row_in_several_files_is_read_from_the_youngest_where_that_has_all_of_it() {
    let found = |columns: &[&str]| read_first(&[(ABC, 1000), (AB, 2000), (AB, 3000)], &[], columns);
    assert_eq!(found(AB), (vec![3000, 3000], 1));
    assert_eq!(found(A), (vec![3000], 1));
    // The filters of the younger ones say that they do not have the third: all are read, at once.
    assert_eq!(found(AC), (vec![3000, 1000], 3));
    // The same timestamp again.
    assert_eq!(read_first(&[(AB, 3000), (AB, 3000)], &[], AB), (vec![3000, 3000], 1));
}

#[test]
fn older_files_that_hold_newer_cells_are_read() {
    let files: &[(&[&str], i64)] = &[(AB, 9000), (AB, 2000)];
    assert_eq!(read_first(files, &[], AB), (vec![9000, 9000], 2));
    // Of the two files, the one whose cells are all older than what the memtable has is left out.
    assert_eq!(read_first(files, &[(A, 3000)], A), (vec![9000], 1));
    assert_eq!(read_first(files, &[(A, 9500)], A), (vec![9500], 0));
}

#[test]
fn what_a_tombstone_hides_is_not_taken_for_found() {
    let rig = rig();
    file(&rig, &["a"], 1000);
    file(&rig, &["a"], 2000);
    let since_2000 = TimestampRange { start: 2000, end: 3000 };
    let delete = Mutation::DeleteCells {
        family: FamilyId(1),
        qualifier: "a".into(),
        timestamps: since_2000,
    };
    rig.apply(b"row", vec![delete]);
    assert_eq!(read(&rig, &["a"]).0, vec![1000]);
    block_on(rig.tablet.flush()).unwrap();
    assert_eq!(read(&rig, &["a"]).0, vec![1000]);
}

#[test]
fn a_file_whose_tombstone_hides_an_older_one_is_not_left_out() {
    let rig = rig();
    file(&rig, &["a"], 9000);
    rig.apply(b"row", vec![Mutation::DeleteRow]);
    block_on(rig.tablet.flush()).unwrap();
    write(&rig, &["a"], 1000);
    assert_eq!(read(&rig, &["a"]).0, vec![1000]);
    block_on(rig.tablet.flush()).unwrap();
    assert_eq!(read(&rig, &["a"]).0, vec![1000]);
}
