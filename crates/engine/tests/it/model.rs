//! Random histories against the naive model: with flushes, compactions, dropped ranges, clean restarts
//! and power cuts at any point, every acknowledged write is there and nothing else is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use futures::executor::block_on;
use proptest::prelude::*;

use tepui_engine::cell::{
    Cell, FamilyId, Mutation, Row, RowBatch, RowRange, TIMESTAMP_MAX, TimestampRange,
};
use tepui_engine::io::{CrashMode, SeededRng};
use tepui_engine::read::{FamilyProjection, Projection, Qualifiers};
use tepui_engine::tablet::{ReadView, Snapshot};

use crate::harness::{Model, Rig, SUMS, schema_with_sums, tiny_options};

/// One step of a history.
#[derive(Debug, Clone)]
pub enum Op {
    Apply(Vec<u8>, Vec<Mutation>),
    ApplyRows(BTreeMap<Vec<u8>, Vec<Mutation>>),
    Flush,
    Background,
    CompactFully,
    DropRows(RowRange),
    TakeSnapshot,
    CheckSnapshot,
    Reopen,
    Crash { torn: bool, seed: u64 },
    Check(RowRange),
}

pub fn row() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        8 => (0..12u8).prop_map(|n| format!("row-{n:02}").into_bytes()),
        1 => Just(vec![0]),
        1 => Just(vec![0, 0xFF]),
        1 => Just(b"row-05\0".to_vec()),
        1 => Just(vec![0xFF; 3]),
    ]
}

fn qualifier() -> impl Strategy<Value = Bytes> {
    prop_oneof![
        Just(Bytes::new()),
        Just(Bytes::from_static(b"a")),
        Just(Bytes::from_static(b"a\0")),
        Just(Bytes::from_static(b"b")),
        (0..30u8).prop_map(|n| Bytes::from(format!("wide-{n:02}"))),
    ]
}

/// A mutation under [`schema_with_sums`].
pub fn mutation() -> impl Strategy<Value = Mutation> {
    let plain = (1..=3u32).prop_map(FamilyId);
    let family = prop_oneof![6 => plain.clone(), 1 => Just(SUMS)];
    let timestamp = (0..6i64).prop_map(|t| t * 1000);
    let value = prop_oneof![
        6 => prop::collection::vec(any::<u8>(), 0..20),
        1 => prop::collection::vec(any::<u8>(), 200..600),
        // Around the size from which a memtable shares a value, and beyond.
        1 => (any::<u8>(), prop_oneof![4095..=4097usize, Just(15_000)])
            .prop_map(|(first, len)| (0..len).map(|at| first.wrapping_add((at % 251) as u8)).collect()),
    ]
    .prop_map(Bytes::from);
    let range = (0..6i64, 1..6i64, any::<bool>()).prop_map(|(start, len, open)| TimestampRange {
        start: start * 1000,
        end: if open { TIMESTAMP_MAX } else { (start + len) * 1000 },
    });
    prop_oneof![
        12 => (plain, qualifier(), timestamp.clone(), value).prop_map(
            |(family, qualifier, timestamp, value)| Mutation::Put {
                family, qualifier, timestamp, value
            }
        ),
        2 => (qualifier(), timestamp, any::<i64>()).prop_map(
            |(qualifier, timestamp, number)| Mutation::Merge {
                family: SUMS,
                qualifier,
                timestamp,
                operand: Bytes::copy_from_slice(&number.to_be_bytes()),
            }
        ),
        3 => (family.clone(), qualifier(), range).prop_map(
            |(family, qualifier, timestamps)| Mutation::DeleteCells {
                family, qualifier, timestamps
            }
        ),
        1 => family.prop_map(|family| Mutation::DeleteFamily { family }),
        1 => Just(Mutation::DeleteRow),
    ]
}

pub fn row_range() -> impl Strategy<Value = RowRange> {
    prop_oneof![
        1 => Just(RowRange::all()),
        3 => (row(), row()).prop_map(|(a, b)| {
            if a <= b { RowRange::new(a, b) } else { RowRange::new(b, a) }
        }),
        1 => row().prop_map(|start| RowRange::new(start, Bytes::new())),
        1 => row().prop_map(|row| RowRange::row(&row)),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        30 => (row(), prop::collection::vec(mutation(), 1..6)).prop_map(|(r, m)| Op::Apply(r, m)),
        6 => prop::collection::btree_map(row(), prop::collection::vec(mutation(), 1..4), 1..6)
            .prop_map(Op::ApplyRows),
        4 => Just(Op::Flush),
        3 => Just(Op::Background),
        1 => Just(Op::CompactFully),
        2 => row_range().prop_map(Op::DropRows),
        2 => Just(Op::TakeSnapshot),
        2 => Just(Op::CheckSnapshot),
        1 => Just(Op::Reopen),
        2 => (any::<bool>(), any::<u64>()).prop_map(|(torn, seed)| Op::Crash { torn, seed }),
        4 => row_range().prop_map(Op::Check),
    ]
}

pub struct History {
    pub rig: Rig,
    pub model: Model,
    /// Every row that was written, whatever became of it.
    written: BTreeSet<Vec<u8>>,
    snapshot: Option<(Snapshot, Model)>,
}

impl History {
    pub fn new(rig: Rig) -> Self {
        Self { rig, model: Model::default(), written: BTreeSet::new(), snapshot: None }
    }

    pub fn step(mut self, op: &Op) -> Self {
        match op {
            Op::Apply(row, mutations) => {
                self.written.insert(row.clone());
                self.rig.apply(row, mutations.clone());
                self.model.apply(row, mutations);
            }
            Op::ApplyRows(rows) => {
                let batches = rows.iter().map(|(row, mutations)| RowBatch {
                    row: Bytes::copy_from_slice(row),
                    mutations: mutations.clone(),
                });
                block_on(self.rig.tablet.apply_rows_when_room(batches.collect())).unwrap();
                for (row, mutations) in rows {
                    self.written.insert(row.clone());
                    self.model.apply(row, mutations);
                }
            }
            Op::Flush => block_on(self.rig.tablet.flush()).unwrap(),
            Op::Background => self.rig.engine.run_background().unwrap(),
            Op::CompactFully => self.rig.engine.compact_fully().unwrap(),
            Op::DropRows(range) => {
                block_on(self.rig.tablet.drop_rows(range.clone())).unwrap();
                self.model.drop_rows(range);
            }
            Op::TakeSnapshot => {
                self.snapshot = Some((self.rig.tablet.snapshot(), self.model.clone()));
            }
            Op::CheckSnapshot => {
                if let Some((snapshot, model)) = &self.snapshot {
                    let rows = self.rig.scan(RowRange::all(), false, Some(snapshot.clone()));
                    assert_eq!(rows, model.rows(&RowRange::all()), "at a snapshot");
                    for row in &rows {
                        let (all, at) = (Projection::all(), ReadView::At(snapshot));
                        let read = block_on(self.rig.tablet.read_row(&row.key, &all, at)).unwrap();
                        assert_eq!(read.as_ref(), Some(row), "at a snapshot");
                    }
                }
            }
            Op::Reopen => {
                self.snapshot = None;
                self.rig.engine.close().unwrap();
                let files = Arc::clone(&self.rig.files);
                self.rig = self.rig.reopen_on(files);
            }
            Op::Crash { torn, seed } => {
                self.snapshot = None;
                let mode = if *torn { CrashMode::Torn } else { CrashMode::Strict };
                let files = self.rig.files.crashed_copy(mode, &SeededRng::new(*seed));
                self.rig = self.rig.reopen_on(Arc::new(files));
            }
            Op::Check(range) => self.check(range),
        }
        self
    }

    pub fn check(&self, range: &RowRange) {
        let expected = self.model.rows(range);
        assert_eq!(self.rig.scan(range.clone(), false, None), expected, "forward over {range:?}");
        let mut backward = self.rig.scan(range.clone(), true, None);
        backward.reverse();
        assert_eq!(backward, expected, "backward over {range:?}");
        for row in &expected {
            assert_eq!(self.rig.get(&row.key), row.cells, "row {:?}", row.key);
            self.check_newest(row);
            self.check_limited(row);
        }
        for row in self.written.iter().filter(|row| range.contains(row)) {
            let is_there = expected.iter().any(|there| there.key == row);
            assert!(is_there || self.rig.get(row).is_empty(), "nothing of row {row:?} is left");
        }
        assert_eq!(self.rig.get(b"row-never"), Vec::new());
    }
}

impl History {
    /// Reads so many versions of each column, so many cells of the row, some timestamps, some families.
    fn check_limited(&self, row: &Row) {
        let families: BTreeSet<FamilyId> = row.cells.iter().map(|cell| cell.family).collect();
        for (versions_max, cells_per_row_max) in [(1, u32::MAX), (2, u32::MAX), (1, 2), (3, 4)] {
            for (timestamps, family) in [
                (TimestampRange::ALL, None),
                (TimestampRange { start: 1000, end: 3000 }, None),
                (TimestampRange::ALL, families.first().copied()),
            ] {
                let mut expected: Vec<Cell> = Vec::new();
                let mut versions = 0;
                for cell in row.cells.iter().filter(|c| timestamps.contains(c.timestamp)) {
                    let same = |c: &Cell| c.family == cell.family && c.qualifier == cell.qualifier;
                    versions = if expected.last().is_some_and(same) { versions + 1 } else { 1 };
                    if versions <= versions_max && family.is_none_or(|f| f == cell.family) {
                        expected.push(cell.clone());
                    }
                }
                expected.truncate(cells_per_row_max as usize);
                let qualifiers = Qualifiers::ALL;
                let families = family.map(|family| vec![FamilyProjection { family, qualifiers }]);
                let projection = Projection {
                    families,
                    timestamps,
                    versions_max,
                    cells_per_row_max,
                    ..Projection::all()
                };
                let read = |projection: &Projection| {
                    let read = self.rig.tablet.read_row(&row.key, projection, ReadView::Durable);
                    block_on(read).unwrap().map_or_else(Vec::new, |row| row.cells)
                };
                assert_eq!(read(&projection), expected, "row {:?} as {projection:?}", row.key);

                // Without values the same cells come.
                let without = read(&Projection { values: false, ..projection.clone() });
                let mut expected = expected;
                for cell in &mut expected {
                    cell.value = Bytes::new();
                }
                assert_eq!(without, expected, "row {:?} as {projection:?}, no values", row.key);
            }
        }
    }

    /// Reads the newest cells of the row's columns by their names: of all, and of each of the first few.
    fn check_newest(&self, row: &Row) {
        let mut newest: Vec<Cell> = Vec::new();
        for cell in &row.cells {
            let same = |c: &Cell| c.family == cell.family && c.qualifier == cell.qualifier;
            if !newest.last().is_some_and(same) {
                newest.push(cell.clone());
            }
        }
        for expected in std::iter::once(newest.as_slice()).chain(newest.chunks(1).take(4)) {
            let columns = expected.iter().map(|c| (c.family, c.qualifier.clone()));
            let projection = Projection::newest_of(columns);
            let read = self.rig.tablet.read_row(&row.key, &projection, ReadView::Durable);
            let cells = block_on(read).unwrap().map_or_else(Vec::new, |row| row.cells);
            assert_eq!(cells, expected, "newest cells of row {:?}", row.key);
        }
    }
}

fn cases() -> u32 {
    // TEPUI_MODEL_CASES raises the number for a soak.
    std::env::var("TEPUI_MODEL_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(64)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn random_histories_match_the_model(ops in prop::collection::vec(op(), 1..120), seed: u64) {
        let rig = Rig::new(tiny_options(), schema_with_sums(), seed % 1_000_000);
        let mut history = History::new(rig);
        for op in &ops {
            history = history.step(op);
        }
        history.check(&RowRange::all());
        history.rig.engine.close().unwrap();
    }
}
