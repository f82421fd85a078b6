//! What an import could not write, one JSON object a line, with the reason; and these lines read again, once what
//! was wrong is mended.
//!
//! ```text
//! {"file":"part-00000-of-00002.avro","record":17,"reason":"family cf2 does not exist","key":"row\\x00",
//!  "row":{"key":"cm93AA==","cells":[{"family":"cf2","qualifier":"cQ==","timestampMicros":1000,"value":"dg=="}]}}
//! ```
//!
//! Keys, qualifiers and values are base64. A record that was no row has `raw`, its text, in the place of `row`. A row of more
//! than [`CELLS_BYTES_MAX`] is several lines, each with some of its cells, and read again as several rows of its key.

use std::io::{BufRead, Read as _};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{Bad, Record, Source};
use crate::error::{Error, Result};
use crate::row::{Cell, Row};

/// Longest line that is read, in bytes: far more than the longest that is written, as earlier versions wrote longer ones.
const LINE_BYTES_MAX: u64 = 512 << 20;
/// Bytes of text that the cells of a line have together, unless it is one alone: about what a request takes. Fewer would repeat the
/// key and the reason for little; more are held in memory at once when they are read.
const CELLS_BYTES_MAX: usize = 4 << 20;
/// The most that one cell's text may take, and four times a row's key: twice what the largest has that a table takes. No
/// larger one can be imported, whatever is mended, and so it is not kept.
const CELL_BYTES_MAX: usize = 256 << 20;
/// Text of a record that is kept where it is no row, of a reason, and of a key for a person to read. JSON makes six bytes of
/// one at most.
const RAW_BYTES_MAX: usize = 32 << 20;
/// See [`RAW_BYTES_MAX`].
const REASON_BYTES_MAX: usize = 64 << 10;
/// See [`RAW_BYTES_MAX`].
const KEY_SHOWN_BYTES_MAX: usize = 4 << 10;
/// A cell's names and numbers in a line, in bytes.
const CELL_OVERHEAD_BYTES: usize = 128;

const _: () = assert!(
    2 * CELL_BYTES_MAX as u64 <= LINE_BYTES_MAX
        && CELLS_BYTES_MAX + 6 * (RAW_BYTES_MAX + REASON_BYTES_MAX) < CELL_BYTES_MAX,
    "each line that is written can be read"
);

/// A line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// The file that the record is in, and its number there, from 0.
    file: String,
    record: u64,
    reason: String,
    /// The key as a person reads it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    key: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    row: Option<RowText>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    raw: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct RowText {
    #[serde(with = "crate::base64")]
    key: Bytes,
    cells: Vec<CellText>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CellText {
    family: String,
    #[serde(with = "crate::base64")]
    qualifier: Bytes,
    timestamp_micros: i64,
    #[serde(with = "crate::base64")]
    value: Bytes,
}

impl Line {
    /// Of a row that was refused: several lines where one would be too long.
    pub fn of_row(file: &str, record: u64, reason: &str, row: Row) -> Vec<Self> {
        let shown = row.key.get(..KEY_SHOWN_BYTES_MAX).unwrap_or(&row.key);
        let shown = shown.escape_ascii().to_string();
        let line = |row: Option<RowText>| Self {
            file: file.to_owned(),
            record,
            reason: cut(reason.to_owned(), REASON_BYTES_MAX),
            key: shown.clone(),
            row,
            raw: String::new(),
        };
        let key_bytes = row.key.len().saturating_mul(2);
        if key_bytes > CELL_BYTES_MAX / 2 {
            return vec![line(None)];
        }
        // A key that no table takes is not repeated for less than itself.
        let part_bytes = CELLS_BYTES_MAX.max(key_bytes);
        let mut lines: Vec<Self> = Vec::new();
        let (mut bytes, mut lost) = (0, 0_u64);
        for cell in row.cells {
            let cell_bytes = text_bytes_max(&cell);
            if cell_bytes > CELL_BYTES_MAX - key_bytes {
                lost += 1;
                continue;
            }
            let cell = CellText {
                family: cell.family,
                qualifier: cell.qualifier,
                timestamp_micros: cell.timestamp_micros,
                value: cell.value,
            };
            match lines.last_mut().and_then(|line| line.row.as_mut()) {
                Some(last) if bytes + cell_bytes <= part_bytes => {
                    bytes += cell_bytes;
                    last.cells.push(cell);
                }
                _ => {
                    bytes = cell_bytes;
                    lines.push(line(Some(RowText { key: row.key.clone(), cells: vec![cell] })));
                }
            }
        }
        if lost > 0 || lines.is_empty() {
            let line = line(None);
            let reason = format!("{}; {lost} cells are too large to be kept here", line.reason);
            lines.push(Self { reason, ..line });
        }
        lines
    }

    /// Of a record that is no row.
    pub fn of_bad(file: &str, record: u64, bad: Bad) -> Self {
        let reason = cut(bad.reason, REASON_BYTES_MAX);
        let raw = cut(bad.raw, RAW_BYTES_MAX);
        Self { file: file.to_owned(), record, reason, key: String::new(), row: None, raw }
    }

    /// The record's number in its file.
    pub fn record(&self) -> u64 {
        self.record
    }

    /// The line, with its end.
    pub fn to_text(&self) -> Result<Vec<u8>> {
        let mut text =
            serde_json::to_vec(self).map_err(|error| Error::failed(format!("JSON: {error}")))?;
        text.push(b'\n');
        Ok(text)
    }
}

/// The most that a cell takes of a line: JSON makes six bytes of one in a name at most, base64 four of three.
fn text_bytes_max(cell: &Cell) -> usize {
    let base64 = |bytes: &Bytes| bytes.len().div_ceil(3) * 4;
    6 * cell.family.len() + base64(&cell.qualifier) + base64(&cell.value) + CELL_OVERHEAD_BYTES
}

/// A text's first bytes, which say so where there are more.
fn cut(mut text: String, bytes_max: usize) -> String {
    if text.len() > bytes_max {
        text.truncate(text.floor_char_boundary(bytes_max));
        text.push_str("...");
    }
    text
}

/// Reads lines.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    line: u64,
}

impl<R: BufRead> Reader<R> {
    /// Reads from the start.
    pub fn new(input: R) -> Self {
        Self { input, line: 0 }
    }
}

impl<R: BufRead> Source for Reader<R> {
    fn next(&mut self) -> Result<Option<Record>> {
        let mut line = Vec::new();
        self.line += 1;
        let read = self.input.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
        let count = read.map_err(|error| Error::failed(error.to_string()))?;
        if count == 0 {
            return Ok(None);
        }
        if count as u64 == LINE_BYTES_MAX {
            return Err(Error::failed(format!("line {} is too long", self.line)));
        }
        if line.trim_ascii().is_empty() {
            return Ok(Some(Record::Empty));
        }
        let bad = |reason: String| {
            let raw = String::from_utf8_lossy(line.trim_ascii_end()).into_owned();
            Ok(Some(Record::Bad(Bad { reason: format!("line {}: {reason}", self.line), raw })))
        };
        let row = match serde_json::from_slice::<Line>(&line) {
            Ok(Line { row: Some(row), .. }) => row,
            Ok(Line { reason, .. }) => return bad(format!("no row: {reason}")),
            Err(error) => return bad(error.to_string()),
        };
        let cells = row.cells.into_iter().map(|cell| Cell {
            family: cell.family,
            qualifier: cell.qualifier,
            timestamp_micros: cell.timestamp_micros,
            value: cell.value,
        });
        Ok(Some(Record::Row(Row { key: row.key, cells: cells.collect() })))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::golden::golden_rows;
    use super::*;

    #[test]
    fn rows_set_aside_are_read_again_as_they_were() {
        let mut text = Vec::new();
        for (record, row) in golden_rows().into_iter().enumerate() {
            for line in Line::of_row("f.avro", record as u64, "no such family", row) {
                text.extend(line.to_text().unwrap());
            }
        }
        let bad = Bad { reason: "short".to_owned(), raw: "a,b".to_owned() };
        text.extend(Line::of_bad("f.csv", 9, bad).to_text().unwrap());
        text.extend_from_slice(b"\n{}\n");
        let mut reader = Reader::new(&text[..]);
        for row in golden_rows() {
            assert_eq!(reader.next().unwrap(), Some(Record::Row(row)));
        }
        let record = reader.next().unwrap();
        assert!(matches!(&record, Some(Record::Bad(bad)) if bad.reason == "line 4: no row: short"));
        assert_eq!(reader.next().unwrap(), Some(Record::Empty));
        assert!(matches!(reader.next().unwrap(), Some(Record::Bad(_))));
        assert_eq!(reader.next().unwrap(), None);
    }

    #[test]
    fn a_large_row_is_several_lines_that_are_read_as_its_parts() {
        let cell = |n: u8| Cell {
            family: "f".to_owned(),
            qualifier: vec![n].into(),
            timestamp_micros: 1000,
            value: vec![n; 1 << 20].into(),
        };
        let row = |cells: std::ops::Range<u8>| Row {
            key: Bytes::from_static(b"k"),
            cells: cells.map(cell).collect(),
        };
        let lines = Line::of_row("f.avro", 7, "no such family", row(0..7));
        let texts: Vec<Vec<u8>> = lines.iter().map(|line| line.to_text().unwrap()).collect();
        assert!(texts.iter().all(|text| text.len() < CELLS_BYTES_MAX + 1000));
        let text = texts.concat();
        let mut reader = Reader::new(&text[..]);
        for part in [0..2, 2..4, 4..6, 6..7] {
            assert_eq!(reader.next().unwrap(), Some(Record::Row(row(part))));
        }
        assert_eq!(reader.next().unwrap(), None);
        // One cell is not divided.
        let large = Cell { value: vec![0; 5 << 20].into(), ..cell(0) };
        let row = Row { key: Bytes::from_static(b"k"), cells: vec![cell(1), large, cell(2)] };
        assert_eq!(Line::of_row("f.avro", 7, "why", row).len(), 3);
    }

    #[test]
    fn what_no_table_takes_is_named_and_not_kept() {
        let family = "\u{1}".repeat(CELL_BYTES_MAX / 6);
        let cell = |family: &str| Cell {
            family: family.to_owned(),
            qualifier: Bytes::new(),
            timestamp_micros: 0,
            value: Bytes::new(),
        };
        let row = Row { key: Bytes::from_static(b"k"), cells: vec![cell(&family), cell("f")] };
        let lines = Line::of_row("f.avro", 7, &family, row);
        let [kept, lost] = &lines[..] else { panic!("{} lines", lines.len()) };
        assert_eq!(kept.row.as_ref().unwrap().cells.len(), 1);
        assert!(
            lost.row.is_none() && lost.reason.ends_with("1 cells are too large to be kept here")
        );
        let key = vec![b'k'; CELL_BYTES_MAX / 4 + 1];
        let lines = Line::of_row("f.avro", 7, "why", Row { key: key.into(), cells: Vec::new() });
        assert_eq!((lines.len(), lines[0].key.len()), (1, KEY_SHOWN_BYTES_MAX));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut reader = Reader::new(&bytes[..]);
            while let Ok(Some(_)) = reader.next() {}
        }
    }
}
