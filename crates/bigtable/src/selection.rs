//! What a request wants of each row: its filter, or everything. The one place where rows of the engine
//! meet filters.

use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
use tepui_engine::cell::{FamilyId, Row};
use tepui_engine::io::Rng;
use tepui_engine::read::Projection;

use crate::error::Result;
use crate::filter::{Filter, FilteredCell};
use crate::schema::FamilyNames;

/// A compiled filter, or none, with what it lets the engine leave out.
pub struct Selection {
    filter: Option<Filter>,
    projection: Projection,
}

impl Selection {
    /// Compiles the filter of a read; without one, every cell is wanted.
    pub fn of_read(filter: Option<&v2::RowFilter>, families: &FamilyNames) -> Result<Self> {
        let Some(filter) = filter else {
            return Ok(Self { filter: None, projection: Projection::all() });
        };
        let filter = Filter::compile(filter)?;
        let families: Vec<(FamilyId, &str)> = families.iter().collect();
        let projection = filter.projection(&families);
        Ok(Self { filter: Some(filter), projection })
    }

    /// Compiles the filter of a predicate, of which only matters whether any cell passes; without
    /// one, whether the row has any cell.
    pub fn of_predicate(filter: Option<&v2::RowFilter>, families: &FamilyNames) -> Result<Self> {
        let mut selection = Self::of_read(filter, families)?;
        if selection.filter.is_none() {
            selection.projection.cells_per_row_max = 1;
        }
        Ok(selection)
    }

    /// What the engine is asked for.
    pub fn projection(&self) -> &Projection {
        &self.projection
    }

    /// The cells of a row that are wanted.
    pub fn apply(&self, row: Row, families: &FamilyNames, rng: &dyn Rng) -> Vec<FilteredCell> {
        match &self.filter {
            Some(filter) => filter.apply(row, families, rng),
            None => row
                .cells
                .into_iter()
                .map(|cell| FilteredCell {
                    family: cell.family,
                    qualifier: cell.qualifier,
                    timestamp: cell.timestamp,
                    value: cell.value,
                    labels: Default::default(),
                })
                .collect(),
        }
    }
}
