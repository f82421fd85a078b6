//! Follows the chunks of a read and compares every row with what was written.

use bytes::Bytes;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::read_rows_response::CellChunk;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::read_rows_response::cell_chunk::RowStatus;

use super::ask::FAMILY;
use crate::check::ScanCheck;
use crate::dataset::{Dataset, Depth};
use crate::error::{Error, Result};
use crate::run::Found;

/// Which rows are to come.
#[derive(Debug)]
pub enum Expected<'a> {
    /// These, in any order.
    Rows(&'a [u64]),
    /// Those of a scan.
    Scan(ScanCheck<'a>),
    /// Every row of the data set, in any order.
    All,
}

/// A read under way.
#[derive(Debug)]
pub struct RowsCheck<'a> {
    dataset: &'a Dataset,
    expected: Expected<'a>,
    columns: std::ops::Range<u32>,
    depth: Depth,
    found: Found,
    /// The row that is arriving: its number where its values are compared, and whether one is.
    number: Option<u64>,
    arriving: bool,
    key: Bytes,
    /// Whether the cell that is arriving is of the family of the values.
    of_family: bool,
    column: u32,
    /// Columns and bytes of values of the row so far.
    columns_seen: u32,
    row_bytes: u64,
    last_qualifier: Vec<u8>,
    /// The pieces so far of a value that comes in several.
    pieces: Vec<u8>,
}

impl<'a> RowsCheck<'a> {
    /// Expects these columns of these rows.
    pub fn new(
        dataset: &'a Dataset,
        expected: Expected<'a>,
        columns: std::ops::Range<u32>,
        depth: Depth,
    ) -> Self {
        Self {
            dataset,
            expected,
            columns,
            depth,
            found: Found::default(),
            number: None,
            arriving: false,
            key: Bytes::new(),
            of_family: false,
            column: 0,
            columns_seen: 0,
            row_bytes: 0,
            last_qualifier: Vec::new(),
            pieces: Vec::new(),
        }
    }

    /// What has come so far.
    pub fn found(&self) -> Found {
        self.found
    }

    /// Takes the next chunk.
    pub fn chunk(&mut self, chunk: &CellChunk) -> Result<()> {
        // A message that goes on with a row may name it again.
        if !chunk.row_key.is_empty() && (!self.arriving || chunk.row_key != self.key) {
            self.begin(chunk.row_key.clone())?;
        }
        if let Some(family) = &chunk.family_name {
            self.of_family = family == FAMILY;
        }
        if let Some(qualifier) = &chunk.qualifier
            && self.of_family
        {
            self.qualifier(qualifier)?;
        }
        if chunk.value_size > 0 {
            self.pieces.extend_from_slice(&chunk.value);
        } else if self.pieces.is_empty() {
            self.value(&chunk.value)?;
        } else {
            let mut whole = std::mem::take(&mut self.pieces);
            whole.extend_from_slice(&chunk.value);
            self.value(&whole)?;
        }
        match chunk.row_status {
            Some(RowStatus::CommitRow(true)) => self.commit(),
            // What came of the row so far is void; it comes again.
            Some(RowStatus::ResetRow(true)) => {
                self.arriving = false;
                self.pieces.clear();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn begin(&mut self, key: Bytes) -> Result<()> {
        if self.arriving {
            return Err(Error::mismatch(format!("row {:?} was not ended", self.key)));
        }
        self.number = match &mut self.expected {
            Expected::Rows([only]) => Some(*only),
            Expected::Rows(_) | Expected::All => {
                Some(self.dataset.row_of(&key).ok_or_else(|| {
                    Error::mismatch(format!("a read shows a key that was not written: {key:?}"))
                })?)
            }
            Expected::Scan(check) => check.row(&key)?,
        };
        if let (Expected::Rows([only]), Depth::Full) = (&self.expected, self.depth)
            && key != self.dataset.key(*only)
        {
            return Err(Error::mismatch(format!("row {only} came back under the key {key:?}")));
        }
        self.arriving = true;
        self.key = key;
        self.of_family = false;
        self.columns_seen = 0;
        self.row_bytes = 0;
        self.last_qualifier.clear();
        Ok(())
    }

    fn qualifier(&mut self, qualifier: &[u8]) -> Result<()> {
        let column = std::str::from_utf8(qualifier)
            .ok()
            .and_then(|text| text.strip_prefix("field")?.parse().ok())
            .filter(|column| self.columns.contains(column));
        self.column = column.ok_or_else(|| {
            Error::mismatch(format!("{:?} has a cell {qualifier:?} too many", self.key))
        })?;
        // Columns come in order, so that none is there twice.
        if self.columns_seen > 0 && *qualifier <= *self.last_qualifier {
            return Err(Error::mismatch(format!("{:?}: cells are out of order", self.key)));
        }
        self.columns_seen += 1;
        self.last_qualifier.clear();
        self.last_qualifier.extend_from_slice(qualifier);
        Ok(())
    }

    fn value(&mut self, value: &[u8]) -> Result<()> {
        if !self.of_family {
            return Ok(());
        }
        match self.number {
            Some(row) => self.dataset.check(row, self.column, value, self.depth)?,
            None if value.len() != self.dataset.value_bytes => {
                return Err(Error::mismatch(format!(
                    "{:?} came back with a value of {} bytes",
                    self.key,
                    value.len()
                )));
            }
            None => {}
        }
        self.row_bytes += value.len() as u64;
        Ok(())
    }

    fn commit(&mut self) -> Result<()> {
        if self.columns_seen as usize != self.columns.len() {
            return Err(Error::mismatch(format!(
                "{:?} came back with {} columns of {}",
                self.key,
                self.columns_seen,
                self.columns.len()
            )));
        }
        self.arriving = false;
        self.found.rows += 1;
        self.found.value_bytes += self.row_bytes;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dataset() -> Dataset {
        Dataset { rows: 100, key_bytes: 24, columns: 2, value_bytes: 10, seed: 1 }
    }

    fn cell(row: u64, column: u32, named: bool) -> CellChunk {
        CellChunk {
            row_key: if column == 0 { dataset().key(row).into() } else { Bytes::new() },
            family_name: named.then(|| FAMILY.to_owned()),
            qualifier: Some(Dataset::qualifier(column)),
            value: dataset().value(row, column).into(),
            row_status: (column == 1).then_some(RowStatus::CommitRow(true)),
            ..Default::default()
        }
    }

    fn check(rows: &[u64], chunks: &[CellChunk]) -> Result<Found> {
        let dataset = dataset();
        let mut check = RowsCheck::new(&dataset, Expected::Rows(rows), 0..2, Depth::Full);
        chunks.iter().try_for_each(|chunk| check.chunk(chunk))?;
        Ok(check.found())
    }

    #[test]
    fn a_row_that_is_what_was_written_is_found() {
        let two = Found { rows: 2, value_bytes: 40 };
        let chunks = [cell(3, 0, true), cell(3, 1, false), cell(5, 0, true), cell(5, 1, false)];
        assert_eq!(check(&[5, 3], &chunks).unwrap(), two);
        // In pieces, with the key said again where a message begins, and after a reset.
        let whole = cell(3, 1, false);
        let first = CellChunk {
            row_key: dataset().key(3).into(),
            value: whole.value.slice(..4),
            value_size: 10,
            row_status: None,
            ..whole.clone()
        };
        let rest = CellChunk {
            qualifier: None,
            value: whole.value.slice(4..),
            row_status: Some(RowStatus::CommitRow(true)),
            ..Default::default()
        };
        let reset = CellChunk { row_status: Some(RowStatus::ResetRow(true)), ..cell(3, 0, true) };
        let chunks = [reset, cell(3, 0, true), first, rest];
        assert_eq!(check(&[3], &chunks).unwrap(), Found { rows: 1, value_bytes: 20 });
    }

    #[test]
    fn counters_beside_the_values_do_not_count() {
        let counter = CellChunk {
            family_name: Some("n".to_owned()),
            qualifier: Some(b"count".to_vec()),
            value: Bytes::from_static(&[0; 8]),
            row_status: Some(RowStatus::CommitRow(true)),
            ..Default::default()
        };
        let last = CellChunk { row_status: None, ..cell(3, 1, false) };
        let found = check(&[3], &[cell(3, 0, true), last, counter]).unwrap();
        assert_eq!(found, Found { rows: 1, value_bytes: 20 });
    }

    #[test]
    fn what_was_not_written_is_a_mismatch() {
        let (a, b) = (cell(3, 0, true), cell(3, 1, false));
        let wrong_value = CellChunk { value: Bytes::from_static(b"0123456789"), ..b.clone() };
        let wrong_column = CellChunk { qualifier: Some(b"field2".to_vec()), ..b.clone() };
        let twice = CellChunk { qualifier: Some(b"field0".to_vec()), ..b.clone() };
        let short = CellChunk { row_status: Some(RowStatus::CommitRow(true)), ..a.clone() };
        let stranger = CellChunk { row_key: Bytes::from_static(b"stranger"), ..a.clone() };
        for chunks in [
            vec![a.clone(), wrong_value],
            vec![a.clone(), wrong_column],
            vec![a.clone(), twice],
            vec![short],
            vec![stranger],
            vec![a.clone(), cell(5, 0, true)],
            vec![cell(5, 0, true)],
        ] {
            assert!(check(&[3], &chunks).is_err(), "{chunks:?}");
        }
        assert!(check(&[3, 5], &[CellChunk { row_key: b"x".to_vec().into(), ..a }]).is_err());
    }
}
