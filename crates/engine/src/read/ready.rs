//! Rows of a stream that were found and wait to be returned, in order, and the values that they lack still.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::cell::{PinnedRow, ReadRow};
use crate::error::Result;
use crate::values::{Elsewhere, FoundRow, ValuePointer, batch_len};

/// A value to fetch.
#[derive(Debug)]
struct Lacking {
    /// The number of its row.
    row: u64,
    place: Elsewhere,
}

/// Rows in the order in which they are returned, numbered through.
#[derive(Debug, Default)]
pub(super) struct ReadyRows {
    rows: VecDeque<ReadRow>,
    /// Rows that were returned: the number of the first.
    returned: u64,
    /// In the order of the rows.
    lacking: VecDeque<Lacking>,
    /// Bytes of the values to fetch.
    fetch_bytes: u64,
}

impl ReadyRows {
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Whether the last of them is a mark of progress, which is not to wait for more.
    pub(super) fn ends_in_mark(&self) -> bool {
        self.rows.back().is_some_and(ReadRow::is_mark)
    }

    /// Bytes of values to fetch.
    pub(super) fn fetch_bytes(&self) -> u64 {
        self.fetch_bytes
    }

    pub(super) fn push(&mut self, found: FoundRow) {
        self.rows.push_back(found.row);
        self.fetch(found.elsewhere);
    }

    /// Adds a row that is made in its place, if it is to be kept. Rows of scans are: to move what was just written costs as much
    /// as to make it.
    #[inline]
    pub(super) fn push_with(
        &mut self,
        make: impl FnOnce(&mut PinnedRow) -> Result<bool>,
    ) -> Result<bool> {
        self.rows.push_back(ReadRow::Pinned(PinnedRow::default()));
        let is_kept = match self.rows.back_mut() {
            Some(ReadRow::Pinned(row)) => make(row),
            _ => Ok(false),
        };
        if !matches!(is_kept, Ok(true)) {
            self.rows.pop_back();
        }
        is_kept
    }

    /// Says which values the last row lacks.
    #[inline]
    pub(super) fn fetch(&mut self, elsewhere: Vec<Elsewhere>) {
        for place in elsewhere {
            let row = self.returned + self.rows.len() as u64 - 1;
            self.fetch_bytes += u64::from(place.pointer.value_len);
            self.lacking.push_back(Lacking { row, place });
        }
    }

    /// The first row, if it has all its values.
    pub(super) fn pop(&mut self) -> Option<ReadRow> {
        if self.lacking.front().is_some_and(|first| first.row == self.returned) {
            return None;
        }
        let row = self.rows.pop_front()?;
        self.returned += 1;
        Some(row)
    }

    /// Which values to fetch next, in one batch.
    pub(super) fn next_batch(&self) -> Vec<ValuePointer> {
        let len = batch_len(self.lacking.iter().map(|lacking| &lacking.place.pointer));
        self.lacking.iter().take(len).map(|lacking| lacking.place.pointer).collect()
    }

    /// Takes the values of [`Self::next_batch`]. Where one could not be had, the rows before its own stay, and
    /// nothing else.
    pub(super) fn supply(&mut self, values: Vec<Result<Bytes>>) -> Result<()> {
        for value in values {
            let Some(Lacking { row, place }) = self.lacking.pop_front() else { return Ok(()) };
            let at = (row - self.returned) as usize;
            self.fetch_bytes -= u64::from(place.pointer.value_len);
            match value {
                Ok(value) => {
                    if let Some(row) = self.rows.get_mut(at) {
                        row.set_value(place.cell, value);
                    }
                }
                Err(error) => {
                    self.rows.truncate(at);
                    self.lacking.clear();
                    self.fetch_bytes = 0;
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}
