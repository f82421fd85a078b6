//! What reads must show, worked out in the most naive way: a history replayed into nested maps.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::cell::{
    Cell, FamilyId, Mutation, Row, RowRange, Seq, TIMESTAMP_MAX, Timestamp, TimestampRange,
    encode_row,
};
use crate::manifest::Excised;
use crate::read::Projection;
use crate::read::testing::Record;
use crate::schema::{Aggregate, FamilyOptions, GcRule, TabletSchema};

/// One event; its sequence is its place in the history, from 1.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    Mutate(Bytes, Mutation),
    Excise(RowRange),
}

/// A history of a tablet.
#[derive(Debug, Clone)]
pub(crate) struct History(pub(crate) Vec<Event>);

type Column = BTreeMap<Reverse<Timestamp>, Bytes>;
type State = BTreeMap<Bytes, BTreeMap<(FamilyId, Bytes), Column>>;

impl History {
    /// The newest sequence.
    pub(crate) fn last(&self) -> Seq {
        self.0.len() as Seq
    }

    pub(crate) fn events(&self) -> impl Iterator<Item = (Seq, &Event)> {
        (1..).zip(&self.0)
    }

    /// The records of the events with these sequences, in no order.
    pub(crate) fn records(&self, keep: impl Fn(Seq) -> bool) -> Vec<Record> {
        self.events()
            .filter(|(seq, _)| keep(*seq))
            .filter_map(|(seq, event)| match event {
                Event::Mutate(row, mutation) => Some(record(row, mutation, seq)),
                Event::Excise(_) => None,
            })
            .collect()
    }

    pub(crate) fn excised(&self) -> Arc<[Excised]> {
        self.events()
            .filter_map(|(seq, event)| match event {
                Event::Excise(range) => Some(Excised { range: range.clone(), seq }),
                Event::Mutate(..) => None,
            })
            .collect()
    }

    fn state(&self, snapshot: Seq, schema: &TabletSchema) -> State {
        let mut state = State::new();
        for (_, event) in self.events().take_while(|(seq, _)| *seq <= snapshot) {
            match event {
                Event::Excise(range) => state.retain(|row, _| !range.contains(row)),
                Event::Mutate(row, mutation) => {
                    mutate(state.entry(row.clone()).or_default(), mutation, schema);
                }
            }
        }
        state
    }

    /// The rows at a snapshot.
    pub(crate) fn rows(&self, snapshot: Seq, schema: &TabletSchema) -> Vec<Row> {
        self.state(snapshot, schema)
            .into_iter()
            .map(|(key, columns)| {
                let cells = columns
                    .into_iter()
                    .filter(|((family, _), _)| schema.family(*family).is_some())
                    .flat_map(|((family, qualifier), column)| {
                        column.into_iter().map(move |(Reverse(timestamp), value)| Cell {
                            family,
                            qualifier: qualifier.clone(),
                            timestamp,
                            value,
                        })
                    })
                    .collect();
                Row { key, cells }
            })
            .filter(|row| !row.cells.is_empty())
            .collect()
    }

    /// How many different timestamps newer than this one were ever written to the cell's column.
    pub(crate) fn ever_newer(&self, row: &Bytes, cell: &Cell) -> u32 {
        let mut newer: Vec<Timestamp> = self
            .0
            .iter()
            .filter_map(|event| match event {
                Event::Mutate(
                    r,
                    Mutation::Put { family, qualifier, timestamp, .. }
                    | Mutation::Merge { family, qualifier, timestamp, .. },
                ) if r == row
                    && *family == cell.family
                    && *qualifier == cell.qualifier
                    && *timestamp > cell.timestamp =>
                {
                    Some(*timestamp)
                }
                _ => None,
            })
            .collect();
        newer.sort_unstable();
        newer.dedup();
        newer.len() as u32
    }
}

/// The record that a mutation makes.
pub(crate) fn record(row: &[u8], mutation: &Mutation, seq: Seq) -> Record {
    let mut key = Vec::new();
    encode_row(row, &mut key);
    let value = mutation.encode_after_row(seq, &mut key);
    (key, Bytes::copy_from_slice(&value))
}

fn mutate(
    row: &mut BTreeMap<(FamilyId, Bytes), Column>,
    mutation: &Mutation,
    schema: &TabletSchema,
) {
    match mutation.clone() {
        Mutation::Put { family, qualifier, timestamp, value } => {
            row.entry((family, qualifier)).or_default().insert(Reverse(timestamp), value);
        }
        Mutation::Merge { family, qualifier, timestamp, operand } => {
            let number = |bytes: &Bytes| i64::from_be_bytes(bytes.as_ref().try_into().unwrap());
            let column = row.entry((family, qualifier)).or_default();
            let combined = match (column.get(&Reverse(timestamp)), schema.family(family)) {
                (Some(state), Some(options)) => {
                    let (a, b) = (number(state), number(&operand));
                    let sum = match options.aggregate.unwrap() {
                        Aggregate::Sum => a.wrapping_add(b),
                        Aggregate::Min => a.min(b),
                        Aggregate::Max => a.max(b),
                        Aggregate::Opaque(_) => unreachable!("no history has one"),
                    };
                    Bytes::copy_from_slice(&sum.to_be_bytes())
                }
                _ => operand,
            };
            column.insert(Reverse(timestamp), combined);
        }
        Mutation::DeleteCells { family, qualifier, timestamps } => {
            if let Some(column) = row.get_mut(&(family, qualifier)) {
                column.retain(|Reverse(timestamp), _| !timestamps.contains(*timestamp));
            }
        }
        Mutation::DeleteFamily { family } => row.retain(|(f, _), _| *f != family),
        Mutation::DeleteRow => row.clear(),
    }
}

/// What a projection leaves of rows.
pub(crate) fn project(rows: Vec<Row>, projection: &Projection) -> Vec<Row> {
    use std::ops::RangeBounds;
    let mut out = Vec::new();
    for row in rows {
        let mut cells: Vec<Cell> = Vec::new();
        for cell in row.cells {
            let wanted = projection.families.as_ref().is_none_or(|families| {
                families.iter().any(|f| {
                    f.family == cell.family
                        && (f.qualifiers.is_empty()
                            || f.qualifiers.iter().any(|r| r.contains(&cell.qualifier)))
                })
            });
            let same = |c: &&Cell| c.family == cell.family && c.qualifier == cell.qualifier;
            let versions = cells.iter().filter(same).count();
            if wanted
                && projection.timestamps.contains(cell.timestamp)
                && versions < projection.versions_max as usize
            {
                cells.push(cell);
            }
        }
        cells.truncate(projection.cells_per_row_max as usize);
        if !cells.is_empty() {
            out.push(Row { key: row.key, cells });
        }
    }
    out
}

/// Families 1 (plain), 2 (sum), 3 (max); the family 4 of histories is not in it.
pub(crate) fn schema(gc: Option<GcRule>) -> Arc<TabletSchema> {
    let family = |aggregate| FamilyOptions { gc: gc.clone(), aggregate, gc_since_micros: 0 };
    let families = [
        (FamilyId(1), family(None)),
        (FamilyId(2), family(Some(Aggregate::Sum))),
        (FamilyId(3), family(Some(Aggregate::Max))),
    ];
    Arc::new(TabletSchema { families: families.into() })
}

pub(crate) fn any_row() -> impl Strategy<Value = Bytes> {
    prop::sample::select(vec![&b""[..], b"a", b"a\0", b"a\0\xff", b"b"])
        .prop_map(Bytes::from_static)
}

pub(crate) fn any_qualifier() -> impl Strategy<Value = Bytes> {
    prop::sample::select(vec![&b""[..], b"p", b"p\0", b"q"]).prop_map(Bytes::from_static)
}

pub(crate) fn any_range() -> impl Strategy<Value = RowRange> {
    (any_row(), any_row()).prop_map(|(a, b)| RowRange::new(a, b))
}

pub(crate) fn any_timestamps() -> impl Strategy<Value = TimestampRange> {
    let end = prop_oneof![2 => Just(TIMESTAMP_MAX), 5 => 0..7_i64];
    (-1..6_i64, end).prop_map(|(start, end)| TimestampRange { start, end })
}

fn any_mutation() -> impl Strategy<Value = Mutation> {
    let column = || (1..=4_u32, any_qualifier(), 0..6_i64);
    prop_oneof![
        8 => (column(), any::<i8>()).prop_map(|((f, qualifier, timestamp), n)| Mutation::Put {
            family: FamilyId(f),
            qualifier,
            timestamp,
            value: Bytes::copy_from_slice(&i64::from(n).to_be_bytes()),
        }),
        6 => (column(), any::<i8>(), 2..=3_u32).prop_map(|((_, qualifier, timestamp), n, f)| {
            Mutation::Merge {
                family: FamilyId(f),
                qualifier,
                timestamp,
                operand: Bytes::copy_from_slice(&i64::from(n).to_be_bytes()),
            }
        }),
        3 => (column(), any_timestamps()).prop_map(|((f, qualifier, _), timestamps)| {
            Mutation::DeleteCells { family: FamilyId(f), qualifier, timestamps }
        }),
        1 => (1..=4_u32).prop_map(|f| Mutation::DeleteFamily { family: FamilyId(f) }),
        1 => Just(Mutation::DeleteRow),
    ]
}

pub(crate) fn any_history() -> impl Strategy<Value = History> {
    // One row gets most of the writes, so that cells are overwritten and deleted often.
    let row = || prop_oneof![2 => Just(Bytes::from_static(b"a")), 1 => any_row()];
    let event = prop_oneof![
        30 => (row(), any_mutation()).prop_map(|(row, mutation)| Event::Mutate(row, mutation)),
        1 => any_range().prop_map(Event::Excise),
    ];
    vec(event, 1..80).prop_map(History)
}
