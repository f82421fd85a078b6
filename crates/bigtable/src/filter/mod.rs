//! Row filters. Placeholder until the real module is merged: every filter passes all cells.

use bytes::Bytes;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
use tepui_engine::cell::{FamilyId, Row, Timestamp};
use tepui_engine::io::Rng;
use tepui_engine::read::Projection;

use crate::error::Result;
use crate::schema::FamilyNames;

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

/// A compiled filter.
#[derive(Debug)]
pub struct Filter;

#[expect(missing_docs, reason = "placeholder")]
impl Filter {
    pub fn compile(_filter: &v2::RowFilter) -> Result<Self> {
        Ok(Self)
    }
    pub fn projection(&self, _families: &[(FamilyId, &str)]) -> Projection {
        Projection::all()
    }
    pub fn apply(&self, row: Row, _families: &FamilyNames, _rng: &dyn Rng) -> Vec<FilteredCell> {
        row.cells
            .into_iter()
            .map(|c| FilteredCell {
                family: c.family,
                qualifier: c.qualifier,
                timestamp: c.timestamp,
                value: c.value,
                labels: Vec::new(),
            })
            .collect()
    }
}
