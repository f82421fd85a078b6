//! What an import could not write, one JSON object a line, with the reason; and these lines read again, once what
//! was wrong is mended.
//!
//! ```text
//! {"file":"part-00000-of-00002.avro","record":17,"reason":"family cf2 does not exist","key":"row\\x00",
//!  "row":{"key":"cm93AA==","cells":[{"family":"cf2","qualifier":"cQ==","timestampMicros":1000,"value":"dg=="}]}}
//! ```
//!
//! Keys, qualifiers and values are base64. A record that was no row has `raw`, its text, in the place of `row`.

use std::io::{BufRead, Read as _};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{Bad, Record, Source};
use crate::error::{Error, Result};
use crate::row::{Cell, Row};

/// Longest line that is read, in bytes: a row of the largest size that a request takes, in base64.
const LINE_BYTES_MAX: u64 = 512 << 20;

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
    /// Of a row that was refused.
    pub fn of_row(file: &str, record: u64, reason: String, row: Row) -> Self {
        let cells = row.cells.into_iter().map(|cell| CellText {
            family: cell.family,
            qualifier: cell.qualifier,
            timestamp_micros: cell.timestamp_micros,
            value: cell.value,
        });
        Self {
            file: file.to_owned(),
            record,
            reason,
            key: row.key.escape_ascii().to_string(),
            row: Some(RowText { key: row.key, cells: cells.collect() }),
            raw: String::new(),
        }
    }

    /// Of a record that is no row.
    pub fn of_bad(file: &str, record: u64, bad: Bad) -> Self {
        let Bad { reason, raw } = bad;
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
            let line = Line::of_row("f.avro", record as u64, "no such family".to_owned(), row);
            text.extend(line.to_text().unwrap());
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

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut reader = Reader::new(&bytes[..]);
            while let Ok(Some(_)) = reader.next() {}
        }
    }
}
