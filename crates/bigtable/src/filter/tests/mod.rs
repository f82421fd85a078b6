//! Tests of row filters, and the short names that they write filters with.

mod evaluation;
mod model;
mod projection;
mod validity;

use bytes::Bytes;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
use prost::Message;
use tepui_engine::cell::{Cell, FamilyId, PinnedRow, Row};
use tepui_engine::io::Rng;

use super::wire::{Condition, Filters, Kind, RowFilter, ValueBitmask};
use super::{Filter, FilteredCell, Passed};
use crate::error::{Error, Result};
use crate::in_place::pinned;

/// Always the same number.
#[derive(Debug)]
struct Fixed(u64);

impl Rng for Fixed {
    fn next_u64(&self) -> u64 {
        self.0
    }
}

/// The families of every test's table; ids are neither dense nor in the order of the names.
static FAMILIES: [(FamilyId, &str); 3] =
    [(FamilyId(1), "f"), (FamilyId(3), "g"), (FamilyId(7), "fam")];

fn names() -> Vec<(FamilyId, &'static str)> {
    FAMILIES.to_vec()
}

fn compile(filter: &RowFilter) -> Result<Filter> {
    Filter::decode(&filter.encode_to_vec())
}

fn apply(filter: &RowFilter, row: &Row) -> Vec<FilteredCell> {
    let filter = compile(filter).unwrap();
    let cells = filter.apply(row.clone(), &names(), &Fixed(0)).unwrap();
    assert_eq!(apply_in_place(&filter, row), cells);
    cells
}

/// The same of a row in place.
fn apply_in_place(filter: &Filter, row: &Row) -> Vec<FilteredCell> {
    let PinnedRow { key, memories, cells } = pinned(row);
    let (passed, _) =
        filter.apply_counting(&key, cells, &memories[..], &names(), &Fixed(0)).unwrap();
    let (cells, labels): (Vec<_>, Vec<_>) = match passed {
        Passed::Plain(cells) => cells.into_iter().map(|cell| (cell, Vec::new())).unzip(),
        Passed::Labelled(cells) => cells.into_iter().map(|c| (c.cell, c.labels)).unzip(),
    };
    let row = Row::from(PinnedRow { key, memories, cells });
    row.cells.into_iter().zip(labels).map(|(cell, labels)| FilteredCell { cell, labels }).collect()
}

/// A row of cells written `family:qualifier@timestamp=value`, in the engine's order.
fn row(key: &str, cells: &[&str]) -> Row {
    let cell = |text: &&str| {
        let (column, rest) = text.split_once('@').unwrap();
        let (family, qualifier) = column.split_once(':').unwrap();
        let (timestamp, value) = rest.split_once('=').unwrap();
        Cell {
            family: FAMILIES.iter().find(|(_, name)| *name == family).unwrap().0,
            qualifier: Bytes::copy_from_slice(qualifier.as_bytes()),
            timestamp: timestamp.parse().unwrap(),
            value: Bytes::copy_from_slice(value.as_bytes()),
        }
    };
    Row { key: Bytes::copy_from_slice(key.as_bytes()), cells: cells.iter().map(cell).collect() }
}

/// The cells as [`row`] writes them, with `#label` where they have one.
fn written(cells: &[FilteredCell]) -> Vec<String> {
    let write = |cell: &FilteredCell| {
        let family = FAMILIES.iter().find(|(id, _)| *id == cell.cell.family).unwrap().1;
        let qualifier = cell.cell.qualifier.escape_ascii();
        let value = cell.cell.value.escape_ascii();
        let labels: Vec<String> = cell.labels.iter().map(|label| format!("#{label}")).collect();
        let labels = labels.concat();
        format!("{family}:{qualifier}@{}={value}{labels}", cell.cell.timestamp)
    };
    cells.iter().map(write).collect()
}

fn of(kind: Kind) -> RowFilter {
    RowFilter::of(kind)
}

fn chain(filters: &[RowFilter]) -> RowFilter {
    of(Kind::Chain(Filters { filters: filters.to_vec() }))
}

fn interleave(filters: &[RowFilter]) -> RowFilter {
    of(Kind::Interleave(Filters { filters: filters.to_vec() }))
}

fn condition(
    predicate: RowFilter,
    on_true: Option<RowFilter>,
    on_false: Option<RowFilter>,
) -> RowFilter {
    of(Kind::Condition(Box::new(Condition {
        predicate_filter: Some(Box::new(predicate)),
        true_filter: on_true.map(Box::new),
        false_filter: on_false.map(Box::new),
    })))
}

fn pass() -> RowFilter {
    of(Kind::PassAllFilter(true))
}

fn block() -> RowFilter {
    of(Kind::BlockAllFilter(true))
}

fn sink() -> RowFilter {
    of(Kind::Sink(true))
}

fn label(label: &str) -> RowFilter {
    of(Kind::ApplyLabelTransformer(label.into()))
}

fn strip() -> RowFilter {
    of(Kind::StripValueTransformer(true))
}

fn key(pattern: &str) -> RowFilter {
    of(Kind::RowKeyRegexFilter(Bytes::copy_from_slice(pattern.as_bytes())))
}

fn family(pattern: &str) -> RowFilter {
    of(Kind::FamilyNameRegexFilter(pattern.into()))
}

fn qualifier(pattern: &str) -> RowFilter {
    of(Kind::ColumnQualifierRegexFilter(Bytes::copy_from_slice(pattern.as_bytes())))
}

fn value(pattern: &str) -> RowFilter {
    of(Kind::ValueRegexFilter(Bytes::copy_from_slice(pattern.as_bytes())))
}

fn mask(mask: &[u8]) -> RowFilter {
    of(Kind::ValueBitmaskFilter(ValueBitmask { mask: Bytes::copy_from_slice(mask) }))
}

fn sample(probability: f64) -> RowFilter {
    of(Kind::RowSampleFilter(probability))
}

fn times(start: i64, end: i64) -> RowFilter {
    of(Kind::TimestampRangeFilter(v2::TimestampRange {
        start_timestamp_micros: start,
        end_timestamp_micros: end,
    }))
}

fn row_offset(count: i32) -> RowFilter {
    of(Kind::CellsPerRowOffsetFilter(count))
}

fn row_limit(count: i32) -> RowFilter {
    of(Kind::CellsPerRowLimitFilter(count))
}

fn column_limit(count: i32) -> RowFilter {
    of(Kind::CellsPerColumnLimitFilter(count))
}

/// Bounds written `[a` and `(a`, `b]` and `b)`; empty for none.
fn columns(family: &str, start: &str, end: &str) -> RowFilter {
    use v2::column_range::{EndQualifier, StartQualifier};
    of(Kind::ColumnRangeFilter(v2::ColumnRange {
        family_name: family.into(),
        start_qualifier: match start.split_at_checked(1) {
            Some(("[", start)) => Some(StartQualifier::StartQualifierClosed(bytes(start))),
            Some((_, start)) => Some(StartQualifier::StartQualifierOpen(bytes(start))),
            None => None,
        },
        end_qualifier: match end.len().checked_sub(1).map(|at| end.split_at(at)) {
            Some((end, "]")) => Some(EndQualifier::EndQualifierClosed(bytes(end))),
            Some((end, _)) => Some(EndQualifier::EndQualifierOpen(bytes(end))),
            None => None,
        },
    }))
}

/// Bounds as in [`columns`].
fn values(start: &str, end: &str) -> RowFilter {
    use v2::value_range::{EndValue, StartValue};
    of(Kind::ValueRangeFilter(v2::ValueRange {
        start_value: match start.split_at_checked(1) {
            Some(("[", start)) => Some(StartValue::StartValueClosed(bytes(start))),
            Some((_, start)) => Some(StartValue::StartValueOpen(bytes(start))),
            None => None,
        },
        end_value: match end.len().checked_sub(1).map(|at| end.split_at(at)) {
            Some((end, "]")) => Some(EndValue::EndValueClosed(bytes(end))),
            Some((end, _)) => Some(EndValue::EndValueOpen(bytes(end))),
            None => None,
        },
    }))
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn refusal(filter: &RowFilter) -> Error {
    compile(filter).unwrap_err()
}
