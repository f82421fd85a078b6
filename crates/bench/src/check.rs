//! Follows a scan and compares it with what was loaded.

use crate::dataset::{Dataset, Depth};
use crate::error::{Error, Result};

/// What a scan has shown so far: rows must come in key order from the asked one on.
#[derive(Debug)]
pub struct ScanCheck<'a> {
    dataset: &'a Dataset,
    start: u64,
    reverse: bool,
    depth: Depth,
    last: Vec<u8>,
    rows: u64,
}

impl<'a> ScanCheck<'a> {
    /// A scan that starts with row `start`.
    pub fn new(dataset: &'a Dataset, start: u64, reverse: bool, depth: Depth) -> Self {
        Self { dataset, start, reverse, depth, last: Vec::new(), rows: 0 }
    }

    /// Takes the next row's key; the row's number where its values are to be compared.
    ///
    /// A quick check compares the first row alone: to find out which row a key belongs to costs as much as
    /// reading it from a cache.
    pub fn row(&mut self, key: &[u8]) -> Result<Option<u64>> {
        let first = self.rows == 0;
        self.rows += 1;
        if !first && self.depth == Depth::Quick {
            return Ok(None);
        }
        let row = self.dataset.row_of(key).ok_or_else(|| {
            Error::mismatch(format!("a scan shows a key that was not written: {key:?}"))
        })?;
        let in_order = match (first, self.reverse) {
            (true, _) => row == self.start,
            (false, false) => key > self.last.as_slice(),
            (false, true) => key < self.last.as_slice(),
        };
        if !in_order {
            return Err(Error::mismatch(format!(
                "a scan from row {} shows row {row} out of order",
                self.start
            )));
        }
        if self.depth == Depth::Full {
            self.last.clear();
            self.last.extend_from_slice(key);
        }
        Ok(Some(row))
    }

    /// Rows so far.
    pub fn rows(&self) -> u64 {
        self.rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_out_of_order_or_never_written_are_found() {
        let dataset = Dataset { rows: 100, key_bytes: 50, columns: 1, value_bytes: 10, seed: 1 };
        let mut sorted: Vec<u64> = (0..100).collect();
        sorted.sort_by_key(|row| dataset.key(*row));
        let (a, b, c) = (sorted[3], sorted[4], sorted[5]);
        let key = |row| dataset.key(row);
        let check = |reverse, depth| ScanCheck::new(&dataset, b, reverse, depth);

        let mut forward = check(false, Depth::Full);
        assert_eq!(forward.row(&key(b)).unwrap(), Some(b));
        assert_eq!(forward.row(&key(c)).unwrap(), Some(c));
        assert!(forward.row(&key(c)).is_err(), "the same row twice");
        let mut reverse = check(true, Depth::Full);
        reverse.row(&key(b)).unwrap();
        assert!(reverse.row(&key(c)).is_err());
        assert_eq!(check(true, Depth::Quick).row(&key(b)).unwrap(), Some(b));
        assert!(check(false, Depth::Quick).row(&key(a)).is_err(), "another first row");
        assert!(check(false, Depth::Quick).row(&key(100)).is_err(), "a row that was not written");
    }
}
