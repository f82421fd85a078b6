//! A row as files and the API have it in common, and what the API takes of one.

use bytes::Bytes;

/// Bigtable's limits on what one row may be written as; a row beyond them is set aside before it is sent.
pub const KEY_BYTES_MAX: usize = 4 << 10;
/// See [`KEY_BYTES_MAX`].
pub const QUALIFIER_BYTES_MAX: usize = 16 << 10;
/// See [`KEY_BYTES_MAX`].
pub const VALUE_BYTES_MAX: usize = 100 << 20;
/// Most mutations of one request, all rows together; a row of more cells goes in several.
pub const MUTATIONS_MAX: usize = 100_000;
/// What a cell costs beside its bytes: an estimate of tags, lengths and timestamp on the wire.
const CELL_OVERHEAD_BYTES: usize = 24;

/// The timestamp of a cell that is set aside since nobody has given it one.
pub const NO_TIME: i64 = -1;

/// One version of a column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    /// The family's name.
    pub family: String,
    /// The column's qualifier.
    pub qualifier: Bytes,
    /// Microseconds since 1970; Bigtable keeps whole milliseconds.
    pub timestamp_micros: i64,
    /// The value.
    pub value: Bytes,
}

/// A row, with its cells in the order of the file or of the table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Row {
    /// The row's key.
    pub key: Bytes,
    /// Its cells.
    pub cells: Vec<Cell>,
}

impl Cell {
    /// About how many bytes it takes in a request.
    pub fn wire_bytes(&self) -> usize {
        self.family.len() + self.qualifier.len() + self.value.len() + CELL_OVERHEAD_BYTES
    }
}

impl Row {
    /// About how many bytes it takes in a request or in memory.
    pub fn wire_bytes(&self) -> usize {
        self.key.len() + self.cells.iter().map(Cell::wire_bytes).sum::<usize>()
    }

    /// Why the API would not take this row, as far as that shows without asking it.
    pub fn fault(&self) -> Option<String> {
        if self.key.is_empty() {
            return Some("the row key is empty".to_owned());
        }
        if self.key.len() > KEY_BYTES_MAX {
            return Some(format!("a row key of {} bytes; limit {KEY_BYTES_MAX}", self.key.len()));
        }
        self.cells.iter().find_map(|cell| {
            let column = || format!("{}:{}", cell.family, cell.qualifier.escape_ascii());
            if cell.family.is_empty() {
                Some("a cell without a family".to_owned())
            } else if cell.qualifier.len() > QUALIFIER_BYTES_MAX {
                let bytes = cell.qualifier.len();
                Some(format!("a qualifier of {bytes} bytes; limit {QUALIFIER_BYTES_MAX}"))
            } else if cell.value.len() > VALUE_BYTES_MAX {
                let bytes = cell.value.len();
                Some(format!("{}: a value of {bytes} bytes; limit {VALUE_BYTES_MAX}", column()))
            } else if cell.timestamp_micros == NO_TIME {
                Some(format!("{}: a value without a timestamp", column()))
            } else if cell.timestamp_micros < 0 || cell.timestamp_micros % 1000 != 0 {
                let at = cell.timestamp_micros;
                Some(format!("{}: timestamp {at} is not a whole millisecond since 1970", column()))
            } else {
                None
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_bigtable_would_refuse_is_named() {
        let cell = Cell {
            family: "cf".to_owned(),
            qualifier: Bytes::from_static(b"q"),
            timestamp_micros: 1000,
            value: Bytes::from_static(b"v"),
        };
        let row = |key: &[u8], cell: &Cell| Row {
            key: Bytes::copy_from_slice(key),
            cells: vec![cell.clone()],
        };
        assert_eq!(row(b"k", &cell).fault(), None);
        for (row, word) in [
            (row(b"", &cell), "empty"),
            (row(&[b'k'; KEY_BYTES_MAX + 1], &cell), "4097"),
            (row(b"k", &Cell { family: String::new(), ..cell.clone() }), "without a family"),
            (row(b"k", &Cell { timestamp_micros: 1, ..cell.clone() }), "whole millisecond"),
            (row(b"k", &Cell { timestamp_micros: -1000, ..cell.clone() }), "whole millisecond"),
            (row(b"k", &Cell { timestamp_micros: NO_TIME, ..cell.clone() }), "without a timestamp"),
            (
                row(
                    b"k",
                    &Cell { qualifier: vec![0; QUALIFIER_BYTES_MAX + 1].into(), ..cell.clone() },
                ),
                "qualifier",
            ),
            (
                row(b"k", &Cell { value: vec![0; VALUE_BYTES_MAX + 1].into(), ..cell.clone() }),
                "value",
            ),
        ] {
            let fault = row.fault().unwrap();
            assert!(fault.contains(word), "{fault}");
        }
    }
}
