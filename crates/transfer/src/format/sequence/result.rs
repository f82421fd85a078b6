//! HBase's `Result`, a row in protobuf, as its `ResultSerialization` writes it; and rows of Bigtable in it.
//!
//! Timestamps are milliseconds. A raw export holds delete markers too; what they hide within the row is left out,
//! as Google's importer does it.

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
    if let Some(cell) = markers.iter().find(|cell| {
        !matches!(kind(cell), DELETE | DELETE_FAMILY_VERSION | DELETE_COLUMN | DELETE_FAMILY)
    }) {
        return Err(format!("a cell of type {}", kind(cell)));
    }
    let live = puts.into_iter().filter(|cell| !markers.iter().any(|marker| hides(marker, cell)));
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

/// Whether a delete marker of the same row hides a put.
fn hides(marker: &CellProto, put: &CellProto) -> bool {
    if marker.family != put.family {
        return false;
    }
    let column = || marker.qualifier.as_deref().unwrap_or_default();
    let same_column = || column() == put.qualifier.as_deref().unwrap_or_default();
    match kind(marker) {
        DELETE_FAMILY => put.timestamp <= marker.timestamp,
        DELETE_FAMILY_VERSION => put.timestamp == marker.timestamp,
        DELETE_COLUMN => same_column() && put.timestamp <= marker.timestamp,
        DELETE => same_column() && put.timestamp == marker.timestamp,
        _ => false,
    }
}
