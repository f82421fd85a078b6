//! HBase's `Result`, a row in protobuf, as its `ResultSerialization` writes it; and rows of Bigtable in it.
//!
//! Timestamps are milliseconds. A raw export holds delete markers too; what they hide within the row is left out,
//! as Google's importer does it. HBase's export in batches makes several records of a row, one behind the other; there a
//! marker stands before what it hides, and may be in an earlier record.

use std::collections::{HashMap, HashSet};

use bytes::{Buf as _, Bytes};
use prost::encoding::{DecodeContext, decode_key, skip_field};
use prost::{DecodeError, Message, decode_length_delimiter};

use super::read::RECORD_BYTES_MAX;
use crate::format::CELLS_MAX;
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

/// The field `cell` of a `Result`.
const CELL_TAG: u32 = 1;
/// Bytes of a row's delete markers at most, over all of its records, which are in memory while it is read: as many as one
/// record may have.
const MARKERS_BYTES_MAX: usize = RECORD_BYTES_MAX;
/// What one costs beside its names, about: its place in two tables.
const MARKER_BYTES: usize = 64;

const PUT: i32 = 4;
const DELETE: i32 = 8;
const DELETE_FAMILY_VERSION: i32 = 10;
const DELETE_COLUMN: i32 = 12;
const DELETE_FAMILY: i32 = 14;

/// A row as a `Result`, before which its length stands in a file.
pub fn of_row(row: &Row) -> impl Message {
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
    ResultProto { cell: cells, stale: Some(false), partial: Some(false) }
}

/// Makes rows of the records of a file, which are given in their order.
pub struct Decoder {
    /// The key of the last record's row.
    key: Vec<u8>,
    /// What the records of that row hide so far; none where one of them could not be read.
    hidden: Option<Hidden>,
}

impl Decoder {
    pub fn new() -> Self {
        Self { key: Vec::new(), hidden: Some(Hidden::default()) }
    }

    /// A record's key and value as a row, or a part of one; else what is wrong.
    pub fn decode(&mut self, key: &Bytes, value: Bytes) -> Result<Row, String> {
        let mut key = key.clone();
        if key.len() < 4 || key.get_u32() as usize != key.len() {
            return Err("a key of another length than it says".to_owned());
        }
        if self.key != key {
            // Copied: the record's is a part of its block, which it would keep.
            self.key = key.to_vec();
            self.hidden = Some(Hidden::default());
        }
        let hidden = self.hidden.take();
        let mut hidden =
            hidden.ok_or("an earlier record of this row is damaged, and may hide what is here")?;
        let cells = cells(value)?;
        let mut markers = cells.iter().filter(|cell| kind(cell) != PUT);
        markers.try_for_each(|marker| hidden.by(marker))?;
        let hidden = self.hidden.insert(hidden);
        let live = cells.into_iter().filter(|cell| kind(cell) == PUT && !hidden.has(cell));
        let cells = live.map(cell).collect::<Result<_, _>>()?;
        Ok(Row { key: copied(&key), cells })
    }
}

/// The cells of a record's value, which begins with its length.
fn cells(mut value: Bytes) -> Result<Vec<CellProto>, String> {
    let wrong = |error| format!("not a Result of HBase 0.96 or later: {error}");
    let length = decode_length_delimiter(&mut value).map_err(wrong)?;
    if length > value.len() {
        return Err("a value that is shorter than it says".to_owned());
    }
    value.truncate(length);
    if count(&value).map_err(wrong)? > CELLS_MAX {
        return Err(format!("a row of more than {CELLS_MAX} cells"));
    }
    Ok(ResultProto::decode(value).map_err(wrong)?.cell)
}

/// How many cells a `Result` has: one takes two bytes there, and a hundred times as many in memory.
fn count(mut result: &[u8]) -> Result<usize, DecodeError> {
    let mut cells = 0;
    while result.has_remaining() {
        let (tag, wire_type) = decode_key(&mut result)?;
        skip_field(wire_type, tag, &mut result, DecodeContext::default())?;
        cells += usize::from(tag == CELL_TAG);
    }
    Ok(cells)
}

fn cell(cell: CellProto) -> Result<Cell, String> {
    let family = String::from_utf8(cell.family.unwrap_or_default().to_vec())
        .map_err(|_| "a family's name is not UTF-8".to_owned())?;
    let millis = i64::try_from(cell.timestamp.unwrap_or_default()).ok();
    let timestamp_micros = millis.and_then(|millis| millis.checked_mul(1000));
    let timestamp_micros = timestamp_micros.ok_or("a timestamp beyond what Bigtable has")?;
    Ok(Cell {
        family,
        qualifier: copied(&cell.qualifier.unwrap_or_default()),
        timestamp_micros,
        value: copied(&cell.value.unwrap_or_default()),
    })
}

/// What is a part of its block, which it would keep: whoever counts a row's bytes does not count that.
fn copied(part: &Bytes) -> Bytes {
    Bytes::copy_from_slice(part)
}

/// A cell without a type is a put: HBase leaves out what is the default.
fn kind(cell: &CellProto) -> i32 {
    cell.cell_type.unwrap_or(PUT)
}

/// What the delete markers of a row hide: a row has many of them where it is deleted and written again all the time.
#[derive(Default)]
struct Hidden {
    families: HashMap<Vec<u8>, HiddenOfFamily>,
    /// Of all markers.
    bytes: usize,
}

#[derive(Default)]
struct HiddenOfFamily {
    all: Times,
    columns: HashMap<Vec<u8>, Times>,
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
    fn by(&mut self, marker: &CellProto) -> Result<(), String> {
        let kind = kind(marker);
        let time = marker.timestamp.unwrap_or_default();
        let family = marker.family.as_deref().unwrap_or_default();
        let qualifier = marker.qualifier.as_deref().unwrap_or_default();
        self.bytes += family.len() + qualifier.len() + MARKER_BYTES;
        if self.bytes > MARKERS_BYTES_MAX {
            return Err(format!("more than {MARKERS_BYTES_MAX} bytes of delete markers"));
        }
        let family = self.families.entry(family.to_vec()).or_default();
        let times = match kind {
            DELETE | DELETE_COLUMN => family.columns.entry(qualifier.to_vec()).or_default(),
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
        let family = self.families.get(put.family.as_deref().unwrap_or_default());
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

    /// Column and time in milliseconds of what is left of a record of the row `k`; else what is wrong.
    fn left_of(
        decoder: &mut Decoder,
        row: u8,
        cell: Vec<CellProto>,
    ) -> Result<Vec<(String, i64)>, String> {
        let value = ResultProto { cell, ..ResultProto::default() }.encode_length_delimited_to_vec();
        let row = decoder.decode(&Bytes::from(vec![0, 0, 0, 1, row]), value.into())?;
        let column =
            |cell: Cell| (cell.qualifier.escape_ascii().to_string(), cell.timestamp_micros / 1000);
        Ok(row.cells.into_iter().map(column).collect())
    }

    /// What is left of a row in one record.
    fn left(cell: Vec<CellProto>) -> Vec<(String, i64)> {
        left_of(&mut Decoder::new(), b'k', cell).unwrap()
    }

    #[test]
    fn markers_hide_what_comes_in_later_records_of_their_row_and_of_no_other() {
        let mut decoder = Decoder::new();
        let mut left = |row, cells| left_of(&mut decoder, row, cells).unwrap();
        let put = |column, time| cell(PUT, column, time);
        // As HBase cuts a row into batches: by their columns, and within one from the newest on.
        assert_eq!(left(b'k', vec![cell(DELETE_FAMILY, 0, 2), cell(DELETE_COLUMN, 1, 5)]), []);
        assert_eq!(left(b'k', vec![put(1, 5), put(1, 3), cell(DELETE, 2, 7)]), []);
        assert_eq!(
            left(b'k', vec![put(2, 7), put(2, 6), put(3, 2), put(3, 3)]),
            [("2".to_owned(), 6), ("3".to_owned(), 3)]
        );
        assert_eq!(left(b'l', vec![put(1, 5)]), [("1".to_owned(), 5)]);
        assert_eq!(left(b'k', vec![put(1, 5)]), [("1".to_owned(), 5)], "a row of its own");
    }

    #[test]
    fn what_a_damaged_record_may_hide_is_set_aside_with_it() {
        let mut decoder = Decoder::new();
        left_of(&mut decoder, b'k', vec![cell(DELETE_COLUMN, 1, 5), cell(99, 1, 5)]).unwrap_err();
        let error = left_of(&mut decoder, b'k', vec![cell(PUT, 1, 5)]).unwrap_err();
        assert!(error.contains("an earlier record of this row"), "{error}");
        left_of(&mut decoder, b'l', vec![cell(PUT, 1, 5)]).unwrap();
        // One whose markers are known keeps nothing else out.
        let late = cell(PUT, 1, u64::MAX);
        left_of(&mut decoder, b'm', vec![cell(DELETE_COLUMN, 1, 5), late]).unwrap_err();
        assert_eq!(left_of(&mut decoder, b'm', vec![cell(PUT, 1, 5)]), Ok(Vec::new()));
    }

    #[test]
    fn more_cells_or_markers_than_memory_is_for_are_refused() {
        // Cells without content, two bytes each.
        let mut value = Vec::new();
        prost::encode_length_delimiter(2 * (CELLS_MAX + 1), &mut value).unwrap();
        value.extend([0x0a, 0].repeat(CELLS_MAX + 1));
        let key = Bytes::from_static(b"\0\0\0\x01k");
        let error = Decoder::new().decode(&key, value.into()).unwrap_err();
        assert_eq!(error, "a row of more than 16777216 cells");
        let mut hidden = Hidden { bytes: MARKERS_BYTES_MAX - 100, ..Hidden::default() };
        hidden.by(&cell(DELETE, 1, 1)).unwrap();
        let error = hidden.by(&cell(DELETE, 1, 2)).unwrap_err();
        assert!(error.contains("delete markers"), "{error}");
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
