//! From a row probe to questions for filter partitions, and back to one answer.
//!
//! The questions are worked out from the resident filter index alone, so that all partitions that a probe
//! needs are known, and can be loaded together, before any is looked at.

use super::filter::{Ask, family_tombstone_entry};
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
    /// Partition and question.
    asks: Vec<(usize, Ask)>,
    /// The partitions of `asks`, each once.
    pub(super) partitions: Vec<usize>,
}

impl<'a> Checks<'a> {
    pub(super) fn new(reader: &SstReader, filters: &'a IndexBlock) -> Self {
        Self {
            filters,
            row_tombstones: reader.properties().row_tombstones > 0,
            family_tombstones: reader.properties().family_tombstones > 0,
            row_partition: None,
            asks: Vec::new(),
            partitions: Vec::new(),
        }
    }

    fn partition_of(&self, prefix: &[u8]) -> Parsed<Option<usize>> {
        let at = self.filters.find(prefix, false)?;
        Ok((at < self.filters.len()).then_some(at))
    }

    fn add(&mut self, partition: Option<usize>, ask: Ask) {
        // Past the last partition: no key has the prefix, and the answer is no.
        let Some(partition) = partition else { return };
        self.asks.push((partition, ask));
        if !self.partitions.contains(&partition) {
            self.partitions.push(partition);
        }
    }

    pub(super) fn collect(&mut self, probe: &RowProbe) -> Parsed<()> {
        let row = probe.row_entry;
        self.row_partition = self.partition_of(&probe.row_prefix)?;
        if matches!(probe.wants, Wants::Row) {
            self.add(self.row_partition, Ask::Row(row));
            return Ok(());
        }
        if self.row_tombstones {
            self.add(self.row_partition, Ask::Tombstone(probe.row_tombstone_entry));
        }
        match &probe.wants {
            Wants::Row => {}
            Wants::Families(families) => {
                for want in families {
                    let family = want.family;
                    self.add(self.partition_of(&want.prefix)?, Ask::Family { row, family });
                }
            }
            Wants::Columns(columns) => {
                for want in columns {
                    let column = want.column;
                    self.add(self.partition_of(&want.prefix)?, Ask::Column { row, column });
                    if self.family_tombstones {
                        let partition = self.partition_of(&want.family.prefix)?;
                        let entry = family_tombstone_entry(row, want.family.family);
                        self.add(partition, Ask::Tombstone(entry));
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether anything that is asked for may be there. `ask` answers for the partitions that were collected.
    pub(super) fn evaluate(
        &self,
        probe: &RowProbe,
        ask: impl Fn(usize, &Ask) -> Option<Parsed<bool>>,
    ) -> Parsed<bool> {
        let missing = || Err(Malformed::whole("a filter partition was not loaded"));
        // Every entry implies the row's, so where the row's partition is at hand anyway, it may spare
        // asking for many columns, and it makes false positives rarer.
        if let Some(answer) = self.row_partition.and_then(|p| ask(p, &Ask::Row(probe.row_entry)))
            && !answer?
        {
            return Ok(false);
        }
        for (partition, question) in &self.asks {
            if ask(*partition, question).unwrap_or_else(missing)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
