//! Row probes: what a point read asks of filters, hashed once for all SSTs of the read.

use smallvec::SmallVec;

use super::filter::{column_id, row_entry, row_tombstone_entry};
use crate::cell::{FamilyId, encode_family, encode_qualifier, row_prefix_parts};

/// Bytes of a row's prefix that need no memory of their own: most rows have shorter keys, and each read has one of these.
const ROW_PREFIX_BYTES: usize = 64;

/// What a point read wants of one row. An SST whose filter says that it holds none of it, and no tombstone
/// that could hide any of it, is not read. The probe says when an SST can be skipped and narrows nothing else.
#[derive(Debug, Clone)]
pub struct RowProbe {
    pub(super) row_prefix: SmallVec<[u8; ROW_PREFIX_BYTES]>,
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
    pub(super) family: FamilyId,
    /// Row prefix and family.
    pub(super) prefix: Vec<u8>,
}

#[derive(Debug, Clone)]
pub(super) struct ColumnWant {
    pub(super) family: FamilyWant,
    /// The column prefix.
    pub(super) prefix: Vec<u8>,
    /// The column's id.
    pub(super) column: u64,
}

impl RowProbe {
    /// The row's prefix.
    pub(crate) fn row_prefix(&self) -> &[u8] {
        &self.row_prefix
    }

    /// The family of each column that it names, in order; `None` where it names no columns.
    pub(crate) fn column_families(&self) -> Option<impl Iterator<Item = FamilyId> + '_> {
        match &self.wants {
            Wants::Columns(wants) => Some(wants.iter().map(|want| want.family.family)),
            Wants::Row | Wants::Families(_) => None,
        }
    }

    /// Anything of the row.
    pub fn row(row: &[u8]) -> Self {
        let mut prefix = SmallVec::new();
        row_prefix_parts(row, |part| prefix.extend_from_slice(part));
        let entry = row_entry(&prefix);
        Self {
            row_prefix: prefix,
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
            let column = column_id(*family, qualifier);
            let family = probe.family_want(*family);
            let mut prefix = family.prefix.clone();
            encode_qualifier(Some(qualifier), &mut prefix);
            ColumnWant { family, prefix, column }
        });
        probe.wants = Wants::Columns(wants.collect());
        probe
    }

    fn family_want(&self, family: FamilyId) -> FamilyWant {
        let mut prefix = self.row_prefix.to_vec();
        encode_family(family, &mut prefix);
        FamilyWant { family, prefix }
    }
}
