//! Cells that were written over and over at one timestamp, families of which nothing is wanted, and tombstones among them:
//! what is left out of a read is left out without a look at each record, and hides what it hides all the same.

use std::ops::Bound;

use futures::executor::block_on;
use tepui_engine::cell::{FamilyId, Mutation, RowRange, TimestampRange};
use tepui_engine::read::{FamilyProjection, Projection};
use tepui_engine::tablet::ReadView;

use crate::harness::{Rig, plain_schema, put, tiny_options};

/// More than any walk steps over before it searches, or gives up.
const OVERWRITES: usize = 300;

fn delete_until(timestamp: i64) -> Mutation {
    let timestamps = TimestampRange { start: 0, end: timestamp };
    Mutation::DeleteCells { family: FamilyId(1), qualifier: "a".into(), timestamps }
}

/// Timestamps of the cells of `row`, by a point read and by scans both ways.
fn read(rig: &Rig, projection: &Projection) -> Vec<i64> {
    let found = block_on(rig.tablet.read_row(b"row", projection, ReadView::Durable)).unwrap();
    let timestamps: Vec<i64> =
        found.iter().flat_map(|row| &row.cells).map(|c| c.timestamp).collect();
    if *projection == Projection::all() {
        for reverse in [false, true] {
            let rows = rig.scan(RowRange::all(), reverse, None);
            let scanned: Vec<i64> =
                rows.iter().flat_map(|r| &r.cells).map(|c| c.timestamp).collect();
            assert_eq!(scanned, timestamps, "reverse: {reverse}");
        }
    }
    timestamps
}

/// What is read of a history whose steps are flushed behind some of them, or not.
fn read_all_ways(steps: &[&dyn Fn(&Rig)], projection: &Projection, expected: &[i64]) {
    for flushes in 0..1 << steps.len() {
        let rig = Rig::new(tiny_options(), plain_schema(), 7);
        for (at, step) in steps.iter().enumerate() {
            step(&rig);
            if flushes & (1 << at) != 0 {
                block_on(rig.tablet.flush()).unwrap();
            }
        }
        assert_eq!(read(&rig, projection), expected, "flushed behind {flushes:b}");
        rig.engine.close().unwrap();
    }
}

#[test]
fn a_tombstone_among_the_older_records_of_a_cell_hides_what_is_older_still() {
    let old = |rig: &Rig| rig.apply(b"row", vec![put(1, "a", 500, "old")]);
    let delete = |rig: &Rig| rig.apply(b"row", vec![delete_until(1_001)]);
    let overwrite = |rig: &Rig| {
        for _ in 0..OVERWRITES {
            rig.apply(b"row", vec![put(1, "a", 1_000, "new"), put(1, "b", 7, "other")]);
        }
    };
    let steps: [&dyn Fn(&Rig); 3] = [&old, &delete, &overwrite];
    read_all_ways(&steps, &Projection::all(), &[1_000, 7]);
    let newest = Projection { versions_max: 1, ..Projection::all() };
    read_all_ways(&steps, &newest, &[1_000, 7]);
}

#[test]
fn cells_that_are_written_at_one_timestamp_over_and_over_show_once() {
    let old = |rig: &Rig| rig.apply(b"row", vec![put(1, "a", 500, "old"), put(1, "b", 6, "old")]);
    let overwrite = |rig: &Rig| {
        for _ in 0..OVERWRITES {
            rig.apply(b"row", vec![put(1, "a", 1_000, "new"), put(1, "b", 7, "other")]);
        }
    };
    let steps: [&dyn Fn(&Rig); 3] = [&old, &overwrite, &overwrite];
    read_all_ways(&steps, &Projection::all(), &[1_000, 500, 7, 6]);
    let late = TimestampRange { start: 7, end: 2_000 };
    read_all_ways(&steps, &Projection { timestamps: late, ..Projection::all() }, &[1_000, 500, 7]);
}

#[test]
fn families_that_are_not_wanted_are_left_out_whatever_they_hold() {
    let wide = |rig: &Rig| {
        let columns = (0..OVERWRITES).map(|n| put(2, &format!("column {n}"), 5, "x"));
        rig.apply(b"row", columns.collect());
        rig.apply(b"row", vec![Mutation::DeleteFamily { family: FamilyId(2) }]);
    };
    let wanted = |rig: &Rig| rig.apply(b"row", vec![put(1, "a", 1, "x"), put(3, "z", 3, "x")]);
    let steps: [&dyn Fn(&Rig); 3] = [&wanted, &wide, &wide];
    let of = |families: &[u32], qualifiers: &[(Bound<bytes::Bytes>, Bound<bytes::Bytes>)]| {
        let projection = |family: &u32| FamilyProjection {
            family: FamilyId(*family),
            qualifiers: qualifiers.iter().cloned().collect(),
        };
        Projection {
            families: Some(families.iter().map(projection).collect()),
            ..Projection::all()
        }
    };
    read_all_ways(&steps, &of(&[1], &[]), &[1]);
    read_all_ways(&steps, &of(&[3], &[]), &[3]);
    read_all_ways(&steps, &of(&[1, 3], &[]), &[1, 3]);
    let from_b = (Bound::Included("b".into()), Bound::Unbounded);
    read_all_ways(&steps, &of(&[1, 3], &[from_b]), &[3]);
}
