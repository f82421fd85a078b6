//! HBase's `Result`, a row in protobuf, as its `ResultSerialization` writes it; and rows of Bigtable in it.
//!
//! Timestamps are milliseconds. A raw export holds delete markers too; what they hide within the row is left out,
//! as Google's importer does it.

use std::collections::{HashMap, HashSet};

use bytes::{Buf as _, Bytes};
use prost::Message;

use crate::row::{Cell, Row};

#[derive(Clone, PartialEq, Message)]
struct ResultProto {
    #[prost(message, repeated, tag = "1")]
    cell: Vec<CellProto>,
    #[prost(bool, optional, tag = "4")]
    stale: Option<bool>,
    #[prost(bool, optional, tag = "5")]
    partial: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
struct CellProto {
    #[prost(bytes = "bytes", optional, tag = "1")]
    row: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "2")]
    family: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "3")]
    qualifier: Option<Bytes>,
    #[prost(uint64, optional, tag = "4")]
    timestamp: Option<u64>,
    #[prost(int32, optional, tag = "5")]
    cell_type: Option<i32>,
    #[prost(bytes = "bytes", optional, tag = "6")]
    value: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "7")]
    tags: Option<Bytes>,
}

const PUT: i32 = 4;
const DELETE: i32 = 8;
const DELETE_FAMILY_VERSION: i32 = 10;
const DELETE_COLUMN: i32 = 12;
const DELETE_FAMILY: i32 = 14;

/// A row as the bytes of a `Result`, without the length that stands before them in a file.
pub fn encode(row: &Row) -> Vec<u8> {
    let cell = |cell: &Cell| CellProto {
        row: Some(row.key.clone()),
        family: Some(Bytes::copy_from_slice(cell.family.as_bytes())),
        qualifier: Some(cell.qualifier.clone()),
        timestamp: Some((cell.timestamp_micros / 1000) as u64),
        cell_type: Some(PUT),
        value: Some(cell.value.clone()),
        tags: Some(Bytes::new()),
    };
    let cells = row.cells.iter().map(cell).collect();
    ResultProto { cell: cells, stale: Some(false), partial: Some(false) }.encode_to_vec()
}

/// A record's key and value as a row; else what is wrong.
pub fn decode(key: &Bytes, value: Bytes) -> Result<Row, String> {
    let mut key = key.clone();
    if key.len() < 4 || key.get_u32() as usize != key.len() {
        return Err("a key of another length than it says".to_owned());
    }
    let result = ResultProto::decode_length_delimited(value)
        .map_err(|error| format!("not a Result of HBase 0.96 or later: {error}"))?;
    let (markers, puts): (Vec<_>, Vec<_>) =
        result.cell.into_iter().partition(|cell| kind(cell) != PUT);
    let mut hidden = Hidden::default();
    markers.into_iter().try_for_each(|marker| hidden.by(marker))?;
    let live = puts.into_iter().filter(|cell| !hidden.has(cell));
    let cells = live
        .map(|cell| {
            let family = String::from_utf8(cell.family.unwrap_or_default().to_vec())
                .map_err(|_| "a family's name is not UTF-8".to_owned())?;
            let millis = i64::try_from(cell.timestamp.unwrap_or_default()).ok();
            let timestamp_micros = millis.and_then(|millis| millis.checked_mul(1000));
            let timestamp_micros =
                timestamp_micros.ok_or("a timestamp beyond what Bigtable has")?;
            Ok(Cell {
                family,
                qualifier: cell.qualifier.unwrap_or_default(),
                timestamp_micros,
                value: cell.value.unwrap_or_default(),
            })
        })
        .collect::<Result<Vec<_>, String>>()?;
    Ok(Row { key, cells })
}

/// A cell without a type is a put: HBase leaves out what is the default.
fn kind(cell: &CellProto) -> i32 {
    cell.cell_type.unwrap_or(PUT)
}

/// What the delete markers of a row hide: a row has many of them where it is deleted and written again all the time.
#[derive(Default)]
struct Hidden(HashMap<Bytes, HiddenOfFamily>);

#[derive(Default)]
struct HiddenOfFamily {
    all: Times,
    columns: HashMap<Bytes, Times>,
}

#[derive(Default)]
struct Times {
    /// All up to this one.
    until: Option<u64>,
    /// These.
    at: HashSet<u64>,
}

impl Times {
    fn have(&self, time: u64) -> bool {
        self.until.is_some_and(|until| time <= until) || self.at.contains(&time)
    }
}

impl Hidden {
    /// Takes a marker; else what is wrong with it.
    fn by(&mut self, marker: CellProto) -> Result<(), String> {
        let kind = kind(&marker);
        let time = marker.timestamp.unwrap_or_default();
        let family = self.0.entry(marker.family.unwrap_or_default()).or_default();
        let times = match kind {
            DELETE | DELETE_COLUMN => {
                family.columns.entry(marker.qualifier.unwrap_or_default()).or_default()
            }
            DELETE_FAMILY | DELETE_FAMILY_VERSION => &mut family.all,
            other => return Err(format!("a cell of type {other}")),
        };
        if matches!(kind, DELETE_FAMILY | DELETE_COLUMN) {
            times.until = times.until.max(Some(time));
        } else {
            times.at.insert(time);
        }
        Ok(())
    }

    fn has(&self, put: &CellProto) -> bool {
        let time = put.timestamp.unwrap_or_default();
        let family = self.0.get(put.family.as_deref().unwrap_or_default());
        family.is_some_and(|family| {
            let column = family.columns.get(put.qualifier.as_deref().unwrap_or_default());
            family.all.have(time) || column.is_some_and(|times| times.have(time))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(kind: i32, qualifier: u32, timestamp: u64) -> CellProto {
        CellProto {
            family: Some("f".into()),
            qualifier: Some(qualifier.to_string().into()),
            timestamp: Some(timestamp),
            cell_type: Some(kind),
            ..CellProto::default()
        }
    }

    /// Column and time in milliseconds of what is left of a row.
    fn left(cell: Vec<CellProto>) -> Vec<(String, i64)> {
        let row = ResultProto { cell, ..ResultProto::default() };
        let key = Bytes::from_static(b"\0\0\0\x01k");
        let row = decode(&key, row.encode_length_delimited_to_vec().into()).unwrap();
        let column =
            |cell: Cell| (cell.qualifier.escape_ascii().to_string(), cell.timestamp_micros / 1000);
        row.cells.into_iter().map(column).collect()
    }

    #[test]
    fn markers_hide_what_they_name() {
        let puts = [(1, 5), (1, 3), (1, 1), (2, 5), (2, 3)];
        for (kind, expected) in [
            (DELETE, &[(1, 5), (1, 1), (2, 5), (2, 3)][..]),
            (DELETE_COLUMN, &[(1, 5), (2, 5), (2, 3)]),
            (DELETE_FAMILY_VERSION, &[(1, 5), (1, 1), (2, 5)]),
            (DELETE_FAMILY, &[(1, 5), (2, 5)]),
        ] {
            let puts = puts.map(|(column, time)| cell(PUT, column, time));
            // An older one of the kind adds nothing where that is all up to a time.
            let markers = vec![cell(kind, 1, 3), cell(kind, 1, 0)];
            let expected = expected.iter().map(|(column, time)| (column.to_string(), *time));
            assert_eq!(left([markers, puts.to_vec()].concat()), expected.collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_row_of_as_many_markers_as_cells_takes_no_more_time_than_one_of_cells() {
        // Each beside each would be ten thousand million comparisons.
        const EACH: u64 = 100_000;
        let markers = (0..EACH).map(|time| cell(DELETE, 1, time * 2));
        let puts = (0..EACH).map(|time| cell(PUT, 1, time * 2 + time % 2));
        assert_eq!(left(markers.chain(puts).collect()).len() as u64, EACH / 2);
    }
}
