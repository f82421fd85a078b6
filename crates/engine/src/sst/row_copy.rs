//! A copy of the row that an open data block ends with, for a writer that would rather begin a block with it.

use super::index::BlockStats;
use crate::cell::KeyView;

/// The records of a row, as long as it is small.
#[derive(Debug)]
pub(super) struct RowCopy {
    bytes: Vec<u8>,
    /// Bytes of key and value of each record.
    lens: Vec<(usize, usize)>,
    /// The last key before the row, and the figures of its block up to there.
    last_key: Vec<u8>,
    stats: BlockStats,
    /// Whether all records of the row are here.
    kept: bool,
}

impl Default for RowCopy {
    fn default() -> Self {
        Self {
            bytes: Vec::new(),
            lens: Vec::new(),
            last_key: Vec::new(),
            stats: BlockStats::NONE,
            kept: false,
        }
    }
}

impl RowCopy {
    /// A row begins behind `last_key`, in a block that has counted `stats`.
    pub(super) fn begin(&mut self, last_key: &[u8], stats: BlockStats) {
        self.bytes.clear();
        self.lens.clear();
        self.last_key.clear();
        self.last_key.extend_from_slice(last_key);
        self.stats = stats;
        self.kept = true;
    }

    /// Adds a record, unless the row becomes larger than `bytes_max`: then it is not kept.
    pub(super) fn push(&mut self, key: KeyView<'_>, value: &[u8], bytes_max: usize) {
        if !self.kept {
            return;
        }
        if self.bytes.len() + key.bytes().len() + value.len() > bytes_max {
            self.kept = false;
            return;
        }
        self.bytes.extend_from_slice(key.bytes());
        self.bytes.extend_from_slice(value);
        self.lens.push((key.bytes().len(), value.len()));
    }

    /// Whether every record of the row is here.
    pub(super) fn is_kept(&self) -> bool {
        self.kept && !self.lens.is_empty()
    }

    /// The last key before the row.
    pub(super) fn last_key_before(&self) -> &[u8] {
        &self.last_key
    }

    /// What the block had counted before the row.
    pub(super) fn stats_before(&self) -> BlockStats {
        self.stats
    }

    /// Keys and values.
    pub(super) fn records(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.lens.iter().scan(self.bytes.as_slice(), |rest, (key, value)| {
            let (key, after) = rest.split_at_checked(*key)?;
            let (value, after) = after.split_at_checked(*value)?;
            *rest = after;
            Some((key, value))
        })
    }
}
