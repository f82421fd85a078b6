//! From a row probe to questions for filter partitions, and back to one answer.
//!
//! The questions are worked out from the resident filter index alone, so that all partitions that a probe
//! needs are known, and can be loaded together, before any is looked at.

use std::cmp::Ordering;

use super::index::IndexBlock;
use super::probe::{RowProbe, Wants};
use super::reader::SstReader;
use crate::codec::{Malformed, Parsed};

/// What to ask of which filter partitions. The answers are joined by "or".
pub(super) struct Checks<'a> {
    filters: &'a IndexBlock,
    row_tombstones: bool,
    family_tombstones: bool,
    /// The partition where the row starts.
    row_partition: Option<usize>,
    /// Partition and entry.
    entries: Vec<(usize, u64)>,
    /// The partitions of `entries`, each once.
    pub(super) partitions: Vec<usize>,
}

impl<'a> Checks<'a> {
    pub(super) fn new(reader: &SstReader, filters: &'a IndexBlock) -> Self {
        Self {
            filters,
            row_tombstones: reader.properties().row_tombstones > 0,
            family_tombstones: reader.properties().family_tombstones > 0,
            row_partition: None,
            entries: Vec::new(),
            partitions: Vec::new(),
        }
    }

    fn partition_of(&self, prefix: &[u8]) -> Parsed<Option<usize>> {
        // All prefixes begin with the row's, so none belongs to an earlier partition than it, and most to the
        // same: one comparison tells, where a search for each column would cost more than its filter.
        if let Some(row) = self.row_partition
            && self.filters.compare(row, prefix)? == Ordering::Greater
        {
            return Ok(Some(row));
        }
        let at = self.filters.find(prefix, false)?;
        Ok((at < self.filters.len()).then_some(at))
    }

    fn add(&mut self, partition: Option<usize>, entry: u64) {
        // Past the last partition: no key has the prefix, and the answer is no.
        let Some(partition) = partition else { return };
        self.entries.push((partition, entry));
        if !self.partitions.contains(&partition) {
            self.partitions.push(partition);
        }
    }

    pub(super) fn collect(&mut self, probe: &RowProbe) -> Parsed<()> {
        self.row_partition = self.partition_of(&probe.row_prefix)?;
        if matches!(probe.wants, Wants::Row) {
            self.add(self.row_partition, probe.row_entry);
            return Ok(());
        }
        if self.row_tombstones {
            self.add(self.row_partition, probe.row_tombstone_entry);
        }
        match &probe.wants {
            Wants::Row => {}
            Wants::Families(families) => {
                for family in families {
                    self.add(self.partition_of(&family.prefix)?, family.entry);
                }
            }
            Wants::Columns(columns) => {
                for column in columns {
                    self.add(self.partition_of(&column.prefix)?, column.entry);
                    if self.family_tombstones {
                        let partition = self.partition_of(&column.family.prefix)?;
                        self.add(partition, column.family.tombstone_entry);
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether any of the entries may be there. `ask` answers for the partitions that were collected.
    pub(super) fn evaluate(
        &self,
        probe: &RowProbe,
        ask: impl Fn(usize, u64) -> Option<Parsed<bool>>,
    ) -> Parsed<bool> {
        let missing = || Err(Malformed::whole("a filter partition was not loaded"));
        // Every entry implies the row's, so where the row's partition is at hand anyway, it may spare
        // asking for many columns, and it makes false positives rarer.
        if let Some(answer) = self.row_partition.and_then(|p| ask(p, probe.row_entry))
            && !answer?
        {
            return Ok(false);
        }
        for (partition, entry) in &self.entries {
            if ask(*partition, *entry).unwrap_or_else(missing)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
