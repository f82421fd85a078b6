//! Follows rows as they are read and compares them with what was loaded.

use std::ops::Range;

use crate::dataset::{Dataset, Depth};
use crate::error::{Error, Result};
use crate::run::Found;

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

/// Which rows are to come.
#[derive(Debug)]
pub enum Expected<'a> {
    /// These, in any order, each as often as it is among them.
    Rows(&'a [u64]),
    /// Those of a scan.
    Scan(ScanCheck<'a>),
    /// Every row of the data set, by rising keys.
    All,
}

/// A read under way: for each row its key, for each of its columns the qualifier and the value, then its end.
#[derive(Debug)]
pub struct RowsCheck<'a> {
    dataset: &'a Dataset,
    expected: Expected<'a>,
    /// Of several rows those that are still to come, sorted.
    left: Vec<u64>,
    columns: Range<u32>,
    depth: Depth,
    found: Found,
    /// The row that is arriving: its number where its values are compared, and whether one is.
    number: Option<u64>,
    arriving: bool,
    key: Vec<u8>,
    /// The key of the row before, where keys must rise.
    last_key: Vec<u8>,
    column: u32,
    /// Columns and bytes of values of the row so far.
    columns_seen: u32,
    row_bytes: u64,
    last_qualifier: Vec<u8>,
}

impl<'a> RowsCheck<'a> {
    /// Expects these columns of these rows.
    pub fn new(
        dataset: &'a Dataset,
        expected: Expected<'a>,
        columns: Range<u32>,
        depth: Depth,
    ) -> Self {
        let mut left = match expected {
            Expected::Rows(several) if several.len() > 1 => several.to_vec(),
            _ => Vec::new(),
        };
        left.sort_unstable();
        Self {
            dataset,
            expected,
            left,
            columns,
            depth,
            found: Found::default(),
            number: None,
            arriving: false,
            key: Vec::new(),
            last_key: Vec::new(),
            column: 0,
            columns_seen: 0,
            row_bytes: 0,
            last_qualifier: Vec::new(),
        }
    }

    /// What has come so far.
    pub fn found(&self) -> Found {
        self.found
    }

    /// Whether a row with this key has begun and not ended.
    pub fn is_at(&self, key: &[u8]) -> bool {
        self.arriving && self.key == key
    }

    /// A row begins.
    pub fn begin(&mut self, key: &[u8]) -> Result<()> {
        if self.arriving {
            return Err(Error::mismatch(format!("row {} was not ended", self.key.escape_ascii())));
        }
        self.number = match &mut self.expected {
            Expected::Rows([only]) => Some(*only),
            Expected::Rows(_) => {
                let row = written(self.dataset, key)?;
                let at = self.left.binary_search(&row).map_err(|_| {
                    Error::mismatch(format!("a read shows row {row}, not asked for or once more"))
                })?;
                Some(self.left.remove(at))
            }
            Expected::All if self.found.rows > 0 && *key <= *self.last_key => {
                let key = key.escape_ascii();
                return Err(Error::mismatch(format!("a scan shows the key {key} out of order")));
            }
            Expected::All => Some(written(self.dataset, key)?),
            Expected::Scan(check) => check.row(key)?,
        };
        if let (Expected::Rows([only]), Depth::Full) = (&self.expected, self.depth)
            && *key != *self.dataset.key(*only)
        {
            let key = key.escape_ascii();
            return Err(Error::mismatch(format!("row {only} came back under the key {key}")));
        }
        self.arriving = true;
        self.key.clear();
        self.key.extend_from_slice(key);
        self.columns_seen = 0;
        self.row_bytes = 0;
        self.last_qualifier.clear();
        Ok(())
    }

    /// A column of the row.
    pub fn qualifier(&mut self, qualifier: &[u8]) -> Result<()> {
        let column = std::str::from_utf8(qualifier)
            .ok()
            .and_then(|text| text.strip_prefix("field")?.parse().ok())
            .filter(|column| self.columns.contains(column));
        self.column = column.ok_or_else(|| {
            let (key, cell) = (self.key.escape_ascii(), qualifier.escape_ascii());
            Error::mismatch(format!("{key} has a cell {cell} too many"))
        })?;
        // Columns come in order, so that none is there twice.
        if self.columns_seen > 0 && *qualifier <= *self.last_qualifier {
            let key = self.key.escape_ascii();
            return Err(Error::mismatch(format!("{key}: cells are out of order")));
        }
        self.columns_seen += 1;
        self.last_qualifier.clear();
        self.last_qualifier.extend_from_slice(qualifier);
        Ok(())
    }

    /// Its value.
    pub fn value(&mut self, value: &[u8]) -> Result<()> {
        match self.number {
            Some(row) => self.dataset.check(row, self.column, value, self.depth)?,
            None if value.len() != self.dataset.value_bytes => {
                return Err(Error::mismatch(format!(
                    "{} came back with a value of {} bytes",
                    self.key.escape_ascii(),
                    value.len()
                )));
            }
            None => {}
        }
        self.row_bytes += value.len() as u64;
        Ok(())
    }

    /// The row ends.
    pub fn end(&mut self) -> Result<()> {
        if !self.arriving || self.columns_seen as usize != self.columns.len() {
            return Err(Error::mismatch(format!(
                "{} came back with {} columns of {}",
                self.key.escape_ascii(),
                self.columns_seen,
                self.columns.len()
            )));
        }
        self.arriving = false;
        self.found.rows += 1;
        self.found.value_bytes += self.row_bytes;
        if matches!(self.expected, Expected::All) {
            std::mem::swap(&mut self.last_key, &mut self.key);
        }
        Ok(())
    }

    /// What came of the row is void; it comes again.
    pub fn reset(&mut self) {
        let again = self.number.filter(|_| self.arriving);
        if let (Some(row), Expected::Rows([_, _, ..])) = (again, &self.expected) {
            let at = self.left.partition_point(|other| *other < row);
            self.left.insert(at, row);
        }
        self.arriving = false;
    }
}

/// The row of a key.
fn written(dataset: &Dataset, key: &[u8]) -> Result<u64> {
    dataset.row_of(key).ok_or_else(|| {
        let key = key.escape_ascii();
        Error::mismatch(format!("a read shows a key that was not written: {key}"))
    })
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

    fn narrow() -> Dataset {
        Dataset { rows: 100, key_bytes: 24, columns: 2, value_bytes: 10, seed: 1 }
    }

    /// A row of two columns, as a client takes it apart.
    fn take(check: &mut RowsCheck<'_>, key: &[u8], cells: [(&[u8], &[u8]); 2]) -> Result<()> {
        check.begin(key)?;
        for (qualifier, value) in cells {
            check.qualifier(qualifier)?;
            check.value(value)?;
        }
        check.end()
    }

    #[test]
    fn rows_that_are_what_was_written_are_found() {
        let dataset = narrow();
        let mut check = RowsCheck::new(&dataset, Expected::Rows(&[5, 3]), 0..2, Depth::Full);
        for row in [3, 5] {
            let values = [dataset.value(row, 0), dataset.value(row, 1)];
            let cells = [(&b"field0"[..], &*values[0]), (&b"field1"[..], &*values[1])];
            take(&mut check, &dataset.key(row), cells).unwrap();
        }
        assert_eq!(check.found(), Found { rows: 2, value_bytes: 40 });
    }

    /// Rows in this order, as a client takes them apart.
    fn take_rows(check: &mut RowsCheck<'_>, rows: &[u64]) -> Result<()> {
        let dataset = narrow();
        rows.iter().try_for_each(|row| {
            let values = [dataset.value(*row, 0), dataset.value(*row, 1)];
            let cells = [(&b"field0"[..], &*values[0]), (&b"field1"[..], &*values[1])];
            take(check, &dataset.key(*row), cells)
        })
    }

    #[test]
    fn of_several_rows_each_comes_once_and_no_other_one_in_its_place() {
        let dataset = narrow();
        for depth in [Depth::Quick, Depth::Full] {
            let check = || RowsCheck::new(&dataset, Expected::Rows(&[5, 3, 9]), 0..2, depth);
            take_rows(&mut check(), &[3, 9, 5]).unwrap();
            for wrong in [[3, 3, 5], [3, 5, 4]] {
                assert!(take_rows(&mut check(), &wrong).is_err(), "{wrong:?}");
            }
            // What is reset comes again.
            let mut again = check();
            again.begin(&dataset.key(9)).unwrap();
            again.reset();
            take_rows(&mut again, &[9, 3, 5]).unwrap();
            assert!(take_rows(&mut again, &[9]).is_err());
        }
    }

    #[test]
    fn a_scan_of_all_rows_shows_their_keys_rising() {
        let dataset = narrow();
        let mut sorted: Vec<u64> = (0..100).collect();
        sorted.sort_by_key(|row| dataset.key(*row));
        let check = || RowsCheck::new(&dataset, Expected::All, 0..2, Depth::Full);
        take_rows(&mut check(), &sorted).unwrap();
        let (a, b) = (sorted[3], sorted[4]);
        for wrong in [[b, a], [a, a]] {
            assert!(take_rows(&mut check(), &wrong).is_err(), "{wrong:?}");
        }
        let mut again = check();
        take_rows(&mut again, &[a]).unwrap();
        again.begin(&dataset.key(b)).unwrap();
        again.reset();
        take_rows(&mut again, &[b]).unwrap();
    }

    #[test]
    fn rows_that_differ_from_what_was_written_are_a_mismatch() {
        let dataset = narrow();
        let key = dataset.key(3);
        let (a, b) = (dataset.value(3, 0), dataset.value(3, 1));
        let (first, second) = (&b"field0"[..], &b"field1"[..]);
        let ok: [(&[u8], &[u8]); 2] = [(first, &a), (second, &b)];
        let attempt = |expected, key: &[u8], cells| {
            let mut check = RowsCheck::new(&dataset, expected, 0..2, Depth::Full);
            take(&mut check, key, cells)
        };
        attempt(Expected::Rows(&[3]), &key, ok).unwrap();
        for cells in [
            [(first, &*a), (second, &a)],
            [(first, &a), (first, &a)],
            [(second, &b), (first, &a)],
            [(first, &a), (&b"field2"[..], &b)],
            [(first, &a), (second, &b[..9])],
        ] {
            assert!(attempt(Expected::Rows(&[3]), &key, cells).is_err(), "{cells:?}");
        }
        assert!(attempt(Expected::Rows(&[4]), &key, ok).is_err(), "the row of another key");
        assert!(attempt(Expected::All, b"stranger", ok).is_err());
        let mut check = RowsCheck::new(&dataset, Expected::Rows(&[3]), 0..2, Depth::Full);
        assert!(check.end().is_err(), "no row has begun");
        check.begin(&key).unwrap();
        assert!(check.begin(&key).is_err(), "the row before has not ended");
        assert!(check.end().is_err(), "a row without its columns");
    }
}
