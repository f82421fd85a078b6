//! Reading: what a read asks for. The merge, tombstones and row assembly live in the files beside.

use std::ops::Bound;

use bytes::Bytes;

use crate::cell::{FamilyId, TimestampRange};

/// A range of qualifiers within a family.
pub type QualifierRange = (Bound<Bytes>, Bound<Bytes>);

/// The columns of one family that a read wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FamilyProjection {
    /// The family.
    pub family: FamilyId,
    /// Which qualifiers: sorted, disjoint ranges. Empty means all.
    pub qualifiers: Vec<QualifierRange>,
}

/// What a read wants of each row. It is a promise of what the caller will not look at: the engine may
/// return no more than this, and rows left without cells are not returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Projection {
    /// Families by ascending id; `None` means all families of the schema.
    pub families: Option<Vec<FamilyProjection>>,
    /// Timestamps.
    pub timestamps: TimestampRange,
    /// The newest this-many cells of each column, counted after `timestamps` is applied.
    pub versions_max: u32,
    /// The first this-many cells of each row, counted after all of the above.
    pub cells_per_row_max: u32,
}

impl Projection {
    /// Everything.
    pub fn all() -> Self {
        Self {
            families: None,
            timestamps: TimestampRange::ALL,
            versions_max: u32::MAX,
            cells_per_row_max: u32::MAX,
        }
    }
}

impl Default for Projection {
    fn default() -> Self {
        Self::all()
    }
}

/// Rows of a tablet in order. Placeholder.
#[derive(Debug)]
pub struct RowStream;

impl RowStream {
    /// The next row; `None` at the end. A row without cells is a mark of progress: every row up to and
    /// including its key has been looked at (sent at most once every `limits::SCAN_PROGRESS_RECORDS`
    /// records that showed nothing). Rows come in ascending order, or descending for a reverse scan;
    /// cells within a row always ascend.
    pub async fn next(&mut self) -> crate::error::Result<Option<crate::cell::Row>> {
        Ok(None)
    }
}
