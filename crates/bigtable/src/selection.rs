//! What a request wants of each row: its filter, or everything, of what its authorized view lets through. The one
//! place where rows of the engine meet filters.

use bytes::Bytes;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
use tepui_engine::aside::{carry_out_long, carry_out_slow};
use tepui_engine::cell::{FamilyId, PinnedRow, ReadRow, Row};
use tepui_engine::io::Rng;
use tepui_engine::read::{FamilyProjection, Projection, QualifierRange};
use tepui_engine::tablet::TabletId;

use crate::authorized_view::AuthorizedView;
use crate::error::Result;
use crate::filter::{self, Filter, Passed, RowCell};
use crate::rowset::{self, RowSpan, RowSpans};
use crate::schema::FamilyNames;

/// Bytes of a row from which on its filter takes long, whatever that and the number of cells: a pattern goes through a value at a
/// gigabyte a second or at less.
const FILTERED_ROW_BYTES: usize = 256 << 10;

/// Steps that a filter may take for a row from which on that is long: half a millisecond, which others would wait. Up to four steps a
/// cell, rows are long for their cells before.
const LONG_FILTER_STEPS: u64 = 16 << 10;

/// Steps from which on it is slow: a tenth of a second, which is as long as a core's helper is to be at it where others wait for that.
const SLOW_FILTER_STEPS: u64 = 4 << 20;

/// How long a row may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Others do not feel it.
    Short,
    /// Others would, but not for long.
    Long,
    /// Seconds, perhaps.
    Slow,
}

impl Pace {
    /// Carries out, beside its thread, work of this pace that is not short, of a request to `tablet`.
    pub(crate) async fn carry_out<T: Send + 'static>(
        self,
        tablet: Option<TabletId>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> tepui_engine::Result<T> {
        match self {
            Self::Slow => carry_out_slow(tablet, work).await,
            Self::Short | Self::Long => carry_out_long(tablet, work).await,
        }
    }
}

/// Steps that patterns take on the row keys of one request before anything is read: some 30 milliseconds, as it takes to sort as many row
/// keys as a request may have. They suffice for four patterns on each of these. What they do not suffice for is read, and the
/// filter asked again then.
const NARROW_STEPS_MAX: u64 = 1 << 20;

/// A request's filter as it arrived.
#[derive(Debug, Clone, Copy)]
pub enum FilterSource<'a> {
    /// A decoded message, or none.
    Message(Option<&'a v2::RowFilter>),
    /// The message's bytes, or none: they also hold filters that the generated types do not know.
    Encoded(Option<&'a [u8]>),
}

/// A compiled filter, or none, with what it lets the engine leave out. A view is all in the projection: the engine
/// returns nothing outside of it, so the filter sees nothing else.
pub struct Selection {
    filter: Option<Filter>,
    /// The columns that a view lets through; `None` without one.
    within: Option<Vec<FamilyProjection>>,
    projection: Projection,
    /// What is asked for of a row that is too large to be read with all that `projection` wants, where that is more than the filter needs.
    needed: Option<Projection>,
}

impl Selection {
    /// Compiles the filter of a read; without one, every cell is wanted. `PERMISSION_DENIED` where the filter asks
    /// for families outside of the view.
    pub fn of_read(
        source: FilterSource<'_>,
        families: &FamilyNames,
        view: Option<&AuthorizedView>,
    ) -> Result<Self> {
        Self::compiled(source, families, view, |filter, within| match filter {
            Some(filter) => filter.projection(families.iter().collect(), within),
            None => everything(within.map(<[_]>::to_vec)),
        })
    }

    fn compiled(
        source: FilterSource<'_>,
        families: &FamilyNames,
        view: Option<&AuthorizedView>,
        project: impl FnOnce(Option<&Filter>, Option<&[FamilyProjection]>) -> Projection,
    ) -> Result<Self> {
        let filter = match source {
            FilterSource::Message(filter) => filter.map(Filter::compile).transpose()?,
            FilterSource::Encoded(filter) => filter.map(Filter::decode).transpose()?,
        };
        if let (Some(filter), Some(view)) = (&filter, view) {
            view.check_filter(filter)?;
        }
        let within = view.map(|view| view.columns(families));
        let projection = project(filter.as_ref(), within.as_deref());
        Ok(Self { filter, within, projection, needed: None })
    }

    /// Every cell.
    pub(crate) fn everything() -> Self {
        Self { filter: None, within: None, projection: everything(None), needed: None }
    }

    /// Compiles the filter of a predicate, of which only matters whether any cell passes; without one, whether the row has any cell. Where
    /// one cell tells, no more are asked for: a row may have a hundred thousand, and is locked meanwhile. Nor are values that are not
    /// compared: they may be megabytes, and on disk.
    pub fn of_predicate(
        source: FilterSource<'_>,
        families: &FamilyNames,
        view: Option<&AuthorizedView>,
    ) -> Result<Self> {
        Self::compiled(source, families, view, |filter, within| match filter {
            Some(filter) => filter.predicate_projection(families.iter().collect(), within),
            None => {
                let all = everything(within.map(<[_]>::to_vec));
                Projection { cells_per_row_max: 1, values: false, ..all }
            }
        })
    }

    /// Asks the engine for every cell of the rows that are read, also for those that the filter is known
    /// to refuse; but for none outside of the view. Their values only where the filter has use for any: they are not counted.
    pub fn look_at_all_cells(&mut self) {
        let values = self.projection.values;
        let all = Projection { values, ..everything(self.within.clone()) };
        let needed = std::mem::replace(&mut self.projection, all);
        self.needed = (needed != self.projection).then_some(needed);
    }

    /// What is asked for of a row that is too large for [`Self::projection`], if that is less.
    pub(crate) fn needed(&self) -> Option<&Projection> {
        self.needed.as_ref()
    }

    /// Whether anything of a row with this key can be wanted.
    pub(crate) fn may_want(&self, key: &[u8]) -> bool {
        let mut steps_left = NARROW_STEPS_MAX;
        self.filter.as_ref().is_none_or(|filter| filter.may_match_within(key, &mut steps_left))
    }

    /// Bytes of what the filter was compiled to, and may build while it runs, and of the columns that the engine is asked for. A view is
    /// compiled once, and shared by all that read through it.
    pub(crate) fn filter_bytes(&self) -> usize {
        let compiled = self.filter.as_ref().map_or(0, Filter::compiled_bytes);
        compiled + self.column_bytes()
    }

    /// Bytes of the lists of columns, but for the ranges that the view has too.
    fn column_bytes(&self) -> usize {
        let within = self.within.as_deref().unwrap_or_default();
        let is_shared = |column: &FamilyProjection| {
            let at = within.binary_search_by_key(&column.family, |column| column.family);
            let of_view = at.ok().and_then(|at| within.get(at));
            of_view.is_some_and(|other| column.qualifiers.as_ptr() == other.qualifiers.as_ptr())
        };
        let projections = std::iter::once(&self.projection).chain(&self.needed);
        let asked: Vec<_> =
            projections.flat_map(|p| p.families.as_deref().unwrap_or_default()).collect();
        let own = asked.iter().filter(|column| !is_shared(column));
        let ranges: usize = own.map(|column| column.qualifiers.len()).sum();
        let columns = within.len() + asked.len();
        columns * size_of::<FamilyProjection>() + ranges * size_of::<QualifierRange>()
    }

    /// Lets go of what the filter has built while it ran.
    pub(crate) fn forget(&self) {
        if let Some(filter) = &self.filter {
            filter.forget();
        }
    }

    /// How long the filter may take for a row of so many cells, with a key and cells of so many bytes.
    pub(crate) fn pace(&self, cells: usize, key_bytes: usize, bytes: usize) -> Pace {
        let Some(filter) = &self.filter else { return Pace::Short };
        match filter.steps(cells, key_bytes, bytes) {
            SLOW_FILTER_STEPS.. => Pace::Slow,
            LONG_FILTER_STEPS.. => Pace::Long,
            _ if bytes >= FILTERED_ROW_BYTES => Pace::Long,
            _ => Pace::Short,
        }
    }

    /// The same of a row.
    pub(crate) fn pace_of(&self, row: &ReadRow) -> Pace {
        fn bytes<C: RowCell>(cells: &[C]) -> usize {
            cells.iter().map(|cell| cell.bytes() as usize).sum()
        }
        let (cells, bytes) = match row {
            ReadRow::Pinned(row) => (row.cells.len(), bytes(&row.cells)),
            ReadRow::Merged(row) => (row.cells.len(), bytes(&row.cells)),
        };
        self.pace(cells, row.key().len(), bytes)
    }

    /// What the engine is asked for.
    pub fn projection(&self) -> &Projection {
        &self.projection
    }

    /// Leaves out of a row set what the filter refuses by the row keys alone, so that it is not read.
    pub fn narrow(&self, spans: RowSpans) -> RowSpans {
        let Some(filter) = &self.filter else {
            return spans;
        };
        let mut spans = match filter.row_ranges() {
            Some(ranges) => rowset::intersect(&spans, &ranges),
            None => spans,
        };
        let mut steps_left = NARROW_STEPS_MAX;
        spans.retain(|span| match span {
            RowSpan::Row(row) if steps_left > 0 => filter.may_match_within(row, &mut steps_left),
            RowSpan::Row(_) | RowSpan::Range(_) => true,
        });
        spans
    }

    /// The cells of a row that are wanted, and how many cells the steps of the filter went through for them.
    pub(crate) fn apply<C: RowCell>(
        &self,
        key: &Bytes,
        cells: Vec<C>,
        memory: &C::Memory,
        families: &FamilyNames,
        rng: &dyn Rng,
    ) -> Result<(Passed<C>, u64)> {
        match &self.filter {
            Some(filter) => filter.apply_counting(key, cells, memory, families, rng),
            None => Ok((Passed::Plain(cells), 0)),
        }
    }

    /// Whether anything of a row is wanted.
    pub(crate) fn passes_any(
        &self,
        row: ReadRow,
        families: &FamilyNames,
        rng: &dyn Rng,
    ) -> Result<bool> {
        Ok(match row {
            ReadRow::Pinned(PinnedRow { key, memories, cells }) => {
                !self.apply(&key, cells, &memories, families, rng)?.0.is_empty()
            }
            ReadRow::Merged(Row { key, cells }) => {
                !self.apply(&key, cells, &(), families, rng)?.0.is_empty()
            }
        })
    }
}

/// Every cell of these columns; of all, without them.
fn everything(within: Option<Vec<FamilyProjection>>) -> Projection {
    Projection { families: within, ..Projection::all() }
}

impl filter::FamilyNames for FamilyNames {
    fn family_name(&self, family: FamilyId) -> Option<&str> {
        self.get(family).map(AsRef::as_ref)
    }
}

#[cfg(test)]
mod tests {
    use v2::row_filter::Filter as Kind;

    use super::*;

    #[test]
    fn row_keys_are_compared_with_patterns_for_so_long_and_the_others_are_read() {
        let key = |n: usize| Bytes::from(format!("row-{n:06}"));
        let spans = || (0..10_000).map(|n| RowSpan::Row(key(n))).collect::<RowSpans>();
        let patterns = |count: usize| {
            let of = |n| v2::RowFilter {
                filter: Some(Kind::RowKeyRegexFilter(format!("[a-z]*-{n:06}").into())),
            };
            let filters = (0..count).map(of).collect();
            v2::RowFilter { filter: Some(Kind::Interleave(v2::row_filter::Interleave { filters })) }
        };
        let narrowed = |count| {
            let filter = patterns(count);
            let source = FilterSource::Message(Some(&filter));
            let selection = Selection::of_read(source, &FamilyNames::default(), None).unwrap();
            selection.narrow(spans()).len()
        };
        assert_eq!(narrowed(100), 100);
        // Five times as many steps as there are: some four fifths are read.
        let left = narrowed(500);
        assert!((7_000..9_000).contains(&left), "{left}");
    }

    #[test]
    fn cells_are_counted_without_the_values_that_nobody_looks_at() {
        let values = |kind| {
            let filter = v2::RowFilter { filter: Some(kind) };
            let source = FilterSource::Message(Some(&filter));
            let mut selection = Selection::of_read(source, &FamilyNames::default(), None).unwrap();
            selection.look_at_all_cells();
            selection.projection.values
        };
        assert!(!values(Kind::StripValueTransformer(true)));
        assert!(values(Kind::PassAllFilter(true)));
    }

    #[test]
    fn a_pattern_of_keys_takes_no_longer_for_a_row_of_large_values_and_one_of_values_does() {
        let words: Vec<_> = (0..50).map(|n| format!("{:03}.*{n:03}", n * 7 % 1_000)).collect();
        let pattern: Bytes = words.join("|").into();
        let is_long = |kind| {
            let filter = v2::RowFilter { filter: Some(kind) };
            let source = FilterSource::Message(Some(&filter));
            let selection = Selection::of_read(source, &FamilyNames::default(), None).unwrap();
            selection.pace(1, 20, 100_000) != Pace::Short
        };
        assert!(!is_long(Kind::RowKeyRegexFilter(pattern.clone())));
        assert!(is_long(Kind::ValueRegexFilter(pattern)));
    }
}
