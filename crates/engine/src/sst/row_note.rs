//! A note of the row that an open data block ends with, for a writer that would rather begin a block with it.

use super::index::BlockStats;
use crate::cell::KeyView;

/// The keys of a row, as long as it is small. Its values are in the block until it is taken back.
#[derive(Debug)]
pub(super) struct RowNote {
    keys: Vec<u8>,
    /// Bytes of key and value of each record.
    lens: Vec<(usize, usize)>,
    /// Bytes of all values.
    value_bytes: usize,
    /// The last key before the row, and the figures of its block up to there.
    last_key: Vec<u8>,
    stats: BlockStats,
    /// Whether all records of the row are here.
    kept: bool,
}

impl Default for RowNote {
    fn default() -> Self {
        Self {
            keys: Vec::new(),
            lens: Vec::new(),
            value_bytes: 0,
            last_key: Vec::new(),
            stats: BlockStats::NONE,
            kept: false,
        }
    }
}

impl RowNote {
    /// A row begins behind `last_key`, in a block that has counted `stats`.
    pub(super) fn begin(&mut self, last_key: &[u8], stats: BlockStats) {
        self.keys.clear();
        self.lens.clear();
        self.value_bytes = 0;
        self.last_key.clear();
        self.last_key.extend_from_slice(last_key);
        self.stats = stats;
        self.kept = true;
    }

    /// Adds a record, unless the row becomes larger than `bytes_max`: then it is not kept.
    pub(super) fn push(&mut self, key: KeyView<'_>, value_len: usize, bytes_max: usize) {
        if !self.kept {
            return;
        }
        let key = key.bytes();
        if self.keys.len() + key.len() + self.value_bytes + value_len > bytes_max {
            self.kept = false;
            return;
        }
        self.keys.extend_from_slice(key);
        self.lens.push((key.len(), value_len));
        self.value_bytes += value_len;
    }

    /// Whether every record of the row is here.
    pub(super) fn is_kept(&self) -> bool {
        self.kept && !self.lens.is_empty()
    }

    /// Bytes of the values of its records.
    pub(super) fn value_bytes(&self) -> usize {
        self.value_bytes
    }

    /// The last key before the row.
    pub(super) fn last_key_before(&self) -> &[u8] {
        &self.last_key
    }

    /// What the block had counted before the row.
    pub(super) fn stats_before(&self) -> BlockStats {
        self.stats
    }

    /// Keys and values, which lie one after the other in `values`.
    pub(super) fn records<'a>(
        &'a self,
        values: &'a [u8],
    ) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        self.lens.iter().scan((self.keys.as_slice(), values), |(keys, values), (key, value)| {
            let (key, other_keys) = keys.split_at_checked(*key)?;
            let (value, other_values) = values.split_at_checked(*value)?;
            (*keys, *values) = (other_keys, other_values);
            Some((key, value))
        })
    }
}
