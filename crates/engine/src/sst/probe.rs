//! Row probes: what a point read asks of filters, hashed once for all SSTs of the read.

use smallvec::SmallVec;

use super::filter::{column_id, row_entry, row_tombstone_entry};
use crate::cell::{FamilyId, row_prefix_parts};

/// Bytes of a row's prefix that need no memory of their own: most rows have shorter keys, and each read has one of these.
const ROW_PREFIX_BYTES: usize = 64;

/// Families that need no memory of their own: as many as take no more than a column does.
const FAMILIES_INLINE: usize = 8;

/// What a point read wants of one row. An SST whose filter says that it holds none of it, and no tombstone
/// that could hide any of it, is not read. The probe says when an SST can be skipped and narrows nothing else.
///
/// It has the row's key once, whatever it names: keys have up to 4 KiB, and a read may name many columns.
#[derive(Debug, Clone)]
pub struct RowProbe<'a> {
    pub(super) row_prefix: SmallVec<[u8; ROW_PREFIX_BYTES]>,
    pub(super) row_entry: u64,
    pub(super) row_tombstone_entry: u64,
    pub(super) wants: Wants<'a>,
}

#[derive(Debug, Clone)]
pub(super) enum Wants<'a> {
    Row,
    Families(SmallVec<[FamilyId; FAMILIES_INLINE]>),
    Columns(SmallVec<[ColumnWant<'a>; 1]>),
}

#[derive(Debug, Clone, Copy)]
pub(super) struct ColumnWant<'a> {
    pub(super) family: FamilyId,
    pub(super) qualifier: &'a [u8],
    /// The column's id.
    pub(super) column: u64,
}

impl<'a> RowProbe<'a> {
    /// The row's prefix.
    pub(crate) fn row_prefix(&self) -> &[u8] {
        &self.row_prefix
    }

    /// The family of each column that it names, in order; `None` where it names no columns.
    pub(crate) fn column_families(&self) -> Option<impl Iterator<Item = FamilyId> + '_> {
        match &self.wants {
            Wants::Columns(wants) => Some(wants.iter().map(|want| want.family)),
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
    pub fn families(row: &[u8], families: impl IntoIterator<Item = FamilyId>) -> Self {
        Self { wants: Wants::Families(families.into_iter().collect()), ..Self::row(row) }
    }

    /// These columns of the row.
    pub fn columns(row: &[u8], columns: impl IntoIterator<Item = (FamilyId, &'a [u8])>) -> Self {
        let want = |(family, qualifier)| {
            let column = column_id(family, qualifier);
            ColumnWant { family, qualifier, column }
        };
        Self { wants: Wants::Columns(columns.into_iter().map(want).collect()), ..Self::row(row) }
    }
}
