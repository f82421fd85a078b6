//! Follows the chunks of a read and compares every row with what was written.

use super::ask::FAMILY;
use super::chunks::Chunk;
use crate::check::RowsCheck;
use crate::error::Result;
use crate::run::Found;

/// A read under way, in chunks.
#[derive(Debug)]
pub struct ChunkCheck<'a> {
    rows: RowsCheck<'a>,
    /// Whether the cell that is arriving is of the family of the values.
    of_family: bool,
    /// The pieces so far of a value that comes in several.
    pieces: Vec<u8>,
}

impl<'a> ChunkCheck<'a> {
    /// Puts chunks together for a check of rows.
    pub fn new(rows: RowsCheck<'a>) -> Self {
        Self { rows, of_family: false, pieces: Vec::new() }
    }

    /// What has come so far.
    pub fn found(&self) -> Found {
        self.rows.found()
    }

    /// Takes the next chunk.
    pub fn chunk(&mut self, chunk: &Chunk<'_>) -> Result<()> {
        // A message that goes on with a row may name it again.
        if !chunk.row_key.is_empty() && !self.rows.is_at(chunk.row_key) {
            self.rows.begin(chunk.row_key)?;
            self.of_family = false;
        }
        if let Some(family) = chunk.family {
            self.of_family = family == FAMILY.as_bytes();
        }
        if let Some(qualifier) = chunk.qualifier
            && self.of_family
        {
            self.rows.qualifier(qualifier)?;
        }
        if chunk.value_size > 0 {
            self.pieces.extend_from_slice(chunk.value);
        } else if self.pieces.is_empty() {
            self.value(chunk.value)?;
        } else {
            let mut whole = std::mem::take(&mut self.pieces);
            whole.extend_from_slice(chunk.value);
            self.value(&whole)?;
        }
        if chunk.commits {
            return self.rows.end();
        }
        if chunk.resets {
            // What came of the row so far is void; it comes again.
            self.rows.reset();
            self.pieces.clear();
        }
        Ok(())
    }

    fn value(&mut self, value: &[u8]) -> Result<()> {
        if self.of_family { self.rows.value(value) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
    use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::read_rows_response::CellChunk;
    use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::read_rows_response::cell_chunk::RowStatus;
    use prost::Message as _;

    use super::*;
    use crate::check::Expected;
    use crate::dataset::{Dataset, Depth};
    use crate::grpc::chunks::each_chunk;

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
        let check = RowsCheck::new(&dataset, Expected::Rows(rows), 0..2, Depth::Full);
        let mut check = ChunkCheck::new(check);
        let response = v2::ReadRowsResponse { chunks: chunks.to_vec(), ..Default::default() };
        each_chunk(&response.encode_to_vec(), |chunk| check.chunk(chunk))?;
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
