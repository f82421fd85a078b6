//! Row probes: what a point read asks of filters, hashed once for all SSTs of the read.

use super::filter::{
    column_entry, family_entry, family_tombstone_entry, row_entry, row_tombstone_entry,
};
use crate::cell::{FamilyId, encode_family, encode_qualifier, row_prefix};

/// What a point read wants of one row. An SST whose filter says that it holds none of it, and no tombstone
/// that could hide any of it, is not read.
///
/// A cursor with a probe may show any record of the row and of others besides: the probe says when an SST
/// can be skipped and narrows nothing else.
#[derive(Debug, Clone)]
pub struct RowProbe {
    pub(super) row: Vec<u8>,
    pub(super) row_prefix: Vec<u8>,
    /// After all keys of the row, before those of the next.
    pub(super) row_end: Vec<u8>,
    pub(super) row_entry: u64,
    pub(super) row_tombstone_entry: u64,
    pub(super) wants: Wants,
}

#[derive(Debug, Clone)]
pub(super) enum Wants {
    Row,
    Families(Vec<FamilyWant>),
    Columns(Vec<ColumnWant>),
}

#[derive(Debug, Clone)]
pub(super) struct FamilyWant {
    /// Row prefix and family.
    pub(super) prefix: Vec<u8>,
    pub(super) entry: u64,
    pub(super) tombstone_entry: u64,
}

#[derive(Debug, Clone)]
pub(super) struct ColumnWant {
    pub(super) family: FamilyWant,
    /// The column prefix.
    pub(super) prefix: Vec<u8>,
    pub(super) entry: u64,
}

impl RowProbe {
    /// The row's prefix.
    pub(crate) fn row_prefix(&self) -> &[u8] {
        &self.row_prefix
    }

    /// Anything of the row.
    pub fn row(row: &[u8]) -> Self {
        let prefix = row_prefix(row);
        let entry = row_entry(&prefix);
        let mut row_end = prefix.clone();
        if let Some(last) = row_end.last_mut() {
            // The terminator 00 01 raised to 00 02: see `read::plan`.
            *last += 1;
        }
        Self {
            row: row.to_vec(),
            row_prefix: prefix,
            row_end,
            row_entry: entry,
            row_tombstone_entry: row_tombstone_entry(entry),
            wants: Wants::Row,
        }
    }

    /// Anything of these families of the row. Without families, nothing: only a row tombstone counts.
    pub fn families(row: &[u8], families: &[FamilyId]) -> Self {
        let mut probe = Self::row(row);
        probe.wants = Wants::Families(families.iter().map(|f| probe.family_want(*f)).collect());
        probe
    }

    /// These columns of the row.
    pub fn columns(row: &[u8], columns: Vec<(FamilyId, Vec<u8>)>) -> Self {
        let mut probe = Self::row(row);
        let wants = columns.iter().map(|(family, qualifier)| {
            let family = probe.family_want(*family);
            let mut prefix = family.prefix.clone();
            encode_qualifier(Some(qualifier), &mut prefix);
            let entry = column_entry(family.entry, qualifier);
            ColumnWant { family, prefix, entry }
        });
        probe.wants = Wants::Columns(wants.collect());
        probe
    }

    fn family_want(&self, family: FamilyId) -> FamilyWant {
        let mut prefix = self.row_prefix.clone();
        encode_family(family, &mut prefix);
        let entry = family_entry(self.row_entry, family);
        FamilyWant { prefix, entry, tombstone_entry: family_tombstone_entry(entry) }
    }
}
