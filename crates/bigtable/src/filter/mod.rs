//! Row filters. Placeholder until the real module is merged: every filter passes all cells.

use bytes::Bytes;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
use tepui_engine::cell::{Cell, FamilyId, Row, RowRange, Timestamp};
use tepui_engine::io::Rng;
use tepui_engine::read::Projection;

use crate::error::Result;

/// A cell that a filter let through.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "placeholder")]
pub struct FilteredCell {
    pub family: FamilyId,
    pub qualifier: Bytes,
    pub timestamp: Timestamp,
    pub value: Bytes,
    pub labels: Vec<String>,
}

impl From<Cell> for FilteredCell {
    fn from(cell: Cell) -> Self {
        let Cell { family, qualifier, timestamp, value } = cell;
        Self { family, qualifier, timestamp, value, labels: Vec::new() }
    }
}

/// The names of a table's families.
#[expect(missing_docs, reason = "placeholder")]
pub trait FamilyNames {
    fn family_name(&self, family: FamilyId) -> Option<&str>;
}

/// A request whose filter is kept as bytes.
#[derive(Debug, Clone, PartialEq, Default)]
#[expect(missing_docs, reason = "placeholder")]
pub struct WithFilter<M> {
    pub request: M,
    pub filter: Option<Bytes>,
}

/// A compiled filter.
#[derive(Debug, Clone)]
pub struct Filter;

#[expect(missing_docs, reason = "placeholder")]
impl Filter {
    pub fn compile(_filter: &v2::RowFilter) -> Result<Self> {
        Ok(Self)
    }
    pub fn decode(_encoded: &[u8]) -> Result<Self> {
        Ok(Self)
    }
    pub fn may_match(&self, _key: &[u8]) -> bool {
        true
    }
    pub fn row_ranges(&self) -> Option<Vec<RowRange>> {
        None
    }
    pub fn projection(&self, _families: &[(FamilyId, &str)]) -> Projection {
        Projection::all()
    }
    pub fn apply(
        &self,
        row: Row,
        _families: &dyn FamilyNames,
        _rng: &dyn Rng,
    ) -> Result<Vec<FilteredCell>> {
        Ok(row.cells.into_iter().map(FilteredCell::from).collect())
    }
}
