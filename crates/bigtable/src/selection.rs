//! What a request wants of each row: its filter, or everything. The one place where rows of the engine
//! meet filters.

use std::sync::Arc;

use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
use tepui_engine::cell::{FamilyId, Row};
use tepui_engine::io::Rng;
use tepui_engine::read::Projection;

use crate::error::Result;
use crate::filter::{self, Filter, FilteredCell};
use crate::rowset::{self, RowSpan};
use crate::schema::FamilyNames;

/// A request's filter as it arrived.
#[derive(Debug, Clone, Copy)]
pub enum FilterSource<'a> {
    /// A decoded message, or none.
    Message(Option<&'a v2::RowFilter>),
    /// The message's bytes, or none: they also hold filters that the generated types do not know.
    Encoded(Option<&'a [u8]>),
}

/// A compiled filter, or none, with what it lets the engine leave out.
pub struct Selection {
    filter: Option<Filter>,
    projection: Arc<Projection>,
}

impl Selection {
    /// Compiles the filter of a read; without one, every cell is wanted.
    pub fn of_read(source: FilterSource<'_>, families: &FamilyNames) -> Result<Self> {
        let filter = match source {
            FilterSource::Message(filter) => filter.map(Filter::compile).transpose()?,
            FilterSource::Encoded(filter) => filter.map(Filter::decode).transpose()?,
        };
        let projection = filter
            .as_ref()
            .map_or_else(Projection::all, |filter| filter.projection(families.iter().collect()));
        Ok(Self { filter, projection: Arc::new(projection) })
    }

    /// Compiles the filter of a predicate, of which only matters whether any cell passes; without
    /// one, whether the row has any cell.
    pub fn of_predicate(source: FilterSource<'_>, families: &FamilyNames) -> Result<Self> {
        let mut selection = Self::of_read(source, families)?;
        if selection.filter.is_none() {
            selection.projection =
                Arc::new(Projection { cells_per_row_max: 1, ..Projection::all() });
        }
        Ok(selection)
    }

    /// Asks the engine for every cell of the rows that are read, also for those that the filter is known
    /// to refuse.
    pub fn look_at_all_cells(&mut self) {
        self.projection = Arc::new(Projection::all());
    }

    /// What the engine is asked for.
    pub fn projection(&self) -> &Arc<Projection> {
        &self.projection
    }

    /// Leaves out of a row set what the filter refuses by the row keys alone, so that it is not read.
    pub fn narrow(&self, spans: Vec<RowSpan>) -> Vec<RowSpan> {
        let Some(filter) = &self.filter else {
            return spans;
        };
        let mut spans = match filter.row_ranges() {
            Some(ranges) => rowset::intersect(&spans, &ranges),
            None => spans,
        };
        spans.retain(|span| match span {
            RowSpan::Row(row) => filter.may_match(row),
            RowSpan::Range(_) => true,
        });
        spans
    }

    /// The cells of a row that are wanted.
    pub fn apply(
        &self,
        row: Row,
        families: &FamilyNames,
        rng: &dyn Rng,
    ) -> Result<Vec<FilteredCell>> {
        match &self.filter {
            Some(filter) => filter.apply(row, families, rng),
            None => Ok(row.cells.into_iter().map(FilteredCell::from).collect()),
        }
    }
}

impl filter::FamilyNames for FamilyNames {
    fn family_name(&self, family: FamilyId) -> Option<&str> {
        self.get(family).map(AsRef::as_ref)
    }
}
