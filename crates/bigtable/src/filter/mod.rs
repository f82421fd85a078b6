//! Row filters: every kind that Bigtable documents, compiled once per request and run on merged rows.
//!
//! ```text
//! request bytes ── wire ──► message ── compile ──► Filter ─┬─ row_ranges  which rows a scan can skip
//!                            (size, depth, validity)       ├─ projection  what the engine need not read
//!                                                          ├─ may_match   a row refused by its key alone
//!                                                          └─ apply       Row ─► cells with labels
//! ```
//!
//! What a projection promises, and the tests hold it to: `apply(row) == apply(projected row)`, for every
//! row, and a row of which the projection leaves nothing has no output. So nothing about rows that are
//! not read can be seen by a client.

mod compile;
mod eval;
mod node;
mod project;
pub(crate) mod range;
pub mod wire;

use std::collections::BTreeMap;

use bytes::Bytes;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
use prost::Message;
use tepui_engine::cell::{Cell, FamilyId, PinnedCell, Place, Row, RowRange, Timestamp};
use tepui_engine::io::Rng;
use tepui_engine::read::{FamilyProjection, Projection};

use crate::error::{Error, Result};
use crate::regex::Kept;
use node::{Node, Reach, Work};
use project::Wanted;

pub use compile::{FILTER_BYTES_MAX, FILTER_DEPTH_MAX, LABEL_CHARS_MAX};
pub use wire::WithFilter;

/// Steps that patterns take on the names of a view's families: a tenth of a second, and more than all patterns of a filter take on
/// the names of as many families as a table may have. What they do not suffice for is taken to ask beyond the view.
const VIEW_STEPS_MAX: u64 = 1 << 22;

/// A compiled row filter. Immutable; shared by all rows and threads of a request.
#[derive(Debug, Clone)]
pub struct Filter {
    root: Node,
    /// What can come out of a row, where that is the same for all keys.
    reach: Option<Reach>,
    /// Whether a cell can come out more than once.
    duplicates: bool,
    /// Whether cells can come out with labels.
    labels: bool,
    work: Work,
    patterns: Kept,
}

/// A cell that a filter let through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilteredCell<C = Cell> {
    /// The cell; its value is empty where the filter stripped it.
    pub cell: C,
    /// Its labels, at most one today.
    pub labels: Vec<String>,
}

/// A cell within a filter: one of the engine's, or that with labels. Most filters give none, and then cells stay where
/// they were read to.
pub trait RowCell: Clone {
    /// What the cells of a row lie in, where they do not have it themselves.
    type Memory: ?Sized;

    /// Its family.
    fn family(&self) -> FamilyId;
    /// Its qualifier.
    fn qualifier<'a>(&'a self, memory: &'a Self::Memory) -> &'a [u8];
    /// Whether it is of the same column as another. Qualifiers of neighbours often have the same length and differ
    /// in the last byte, which costs less to look at than a comparison.
    fn is_of_column_of(&self, other: &Self, memory: &Self::Memory) -> bool {
        let (a, b) = (self.qualifier(memory), other.qualifier(memory));
        self.family() == other.family() && a.len() == b.len() && a.last() == b.last() && a == b
    }

    /// Its timestamp in microseconds.
    fn timestamp(&self) -> Timestamp;
    /// What its value lies in, and where it begins there; `None` where there is no such memory.
    fn value_memory<'a>(&'a self, memory: &'a Self::Memory) -> Option<(&'a Bytes, usize)>;
    /// Its value; empty where the filter stripped it.
    fn value<'a>(&'a self, memory: &'a Self::Memory) -> &'a [u8] {
        let value = self
            .value_memory(memory)
            .and_then(|(memory, at)| memory.get(at..at + self.value_len()));
        value.unwrap_or_default()
    }
    /// Bytes of that.
    fn value_len(&self) -> usize;
    /// Strips it of its value.
    fn strip_value(&mut self);
    /// Bytes that the cell takes in a response, less framing.
    fn bytes(&self) -> u64;

    /// Its labels.
    fn labels(&self) -> &[String] {
        &[]
    }

    /// Adds a label, where it can have any.
    fn label(&mut self, _label: &str) {
        debug_assert!(false, "a filter with labels is given cells that can have them");
    }
}

impl RowCell for Cell {
    type Memory = ();

    fn family(&self) -> FamilyId {
        self.family
    }

    fn qualifier<'a>(&'a self, _memory: &'a ()) -> &'a [u8] {
        &self.qualifier
    }

    fn timestamp(&self) -> Timestamp {
        self.timestamp
    }

    fn value_memory<'a>(&'a self, _memory: &'a ()) -> Option<(&'a Bytes, usize)> {
        Some((&self.value, 0))
    }

    fn value_len(&self) -> usize {
        self.value.len()
    }

    fn strip_value(&mut self) {
        self.value = Bytes::new();
    }

    fn bytes(&self) -> u64 {
        (self.qualifier.len() + self.value.len()) as u64
    }
}

impl RowCell for PinnedCell {
    type Memory = [Bytes];

    fn family(&self) -> FamilyId {
        self.family
    }

    fn qualifier<'a>(&'a self, memory: &'a [Bytes]) -> &'a [u8] {
        self.qualifier.of(memory)
    }

    fn timestamp(&self) -> Timestamp {
        self.timestamp
    }

    fn value_memory<'a>(&'a self, memory: &'a [Bytes]) -> Option<(&'a Bytes, usize)> {
        Some((self.value.memory(memory)?, self.value.start()))
    }

    fn value_len(&self) -> usize {
        self.value.len()
    }

    fn strip_value(&mut self) {
        self.value = Place::default();
    }

    fn bytes(&self) -> u64 {
        (self.qualifier.len() + self.value.len()) as u64
    }
}

impl<C: RowCell> RowCell for FilteredCell<C> {
    type Memory = C::Memory;

    fn family(&self) -> FamilyId {
        self.cell.family()
    }

    fn qualifier<'a>(&'a self, memory: &'a C::Memory) -> &'a [u8] {
        self.cell.qualifier(memory)
    }

    fn timestamp(&self) -> Timestamp {
        self.cell.timestamp()
    }

    fn value_memory<'a>(&'a self, memory: &'a C::Memory) -> Option<(&'a Bytes, usize)> {
        self.cell.value_memory(memory)
    }

    fn value_len(&self) -> usize {
        self.cell.value_len()
    }

    fn strip_value(&mut self) {
        self.cell.strip_value();
    }

    fn bytes(&self) -> u64 {
        let labels: usize = self.labels.iter().map(String::len).sum();
        self.cell.bytes() + labels as u64
    }

    fn labels(&self) -> &[String] {
        &self.labels
    }

    fn label(&mut self, label: &str) {
        self.labels.push(label.to_owned());
    }
}

/// What came out of a filter.
#[derive(Debug)]
pub(crate) enum Passed<C> {
    /// Of a filter that gives no labels.
    Plain(Vec<C>),
    /// Of one that does.
    Labelled(Vec<FilteredCell<C>>),
}

impl<C> Passed<C> {
    /// Whether nothing came out.
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Plain(cells) => cells.is_empty(),
            Self::Labelled(cells) => cells.is_empty(),
        }
    }
}

impl<C> From<C> for FilteredCell<C> {
    fn from(cell: C) -> Self {
        Self { cell, labels: Vec::new() }
    }
}

/// The names of a table's families.
pub trait FamilyNames {
    /// The name of the family; `None` for one that the table does not have (any more).
    fn family_name(&self, family: FamilyId) -> Option<&str>;
}

impl<S: AsRef<str>> FamilyNames for BTreeMap<FamilyId, S> {
    fn family_name(&self, family: FamilyId) -> Option<&str> {
        self.get(&family).map(AsRef::as_ref)
    }
}

impl<S: AsRef<str>> FamilyNames for Vec<(FamilyId, S)> {
    fn family_name(&self, family: FamilyId) -> Option<&str> {
        self.iter().find(|(id, _)| *id == family).map(|(_, name)| name.as_ref())
    }
}

impl Filter {
    /// Compiles a filter in the generated types. They cannot say `value_bitmask_filter`: where the
    /// request's own bytes are at hand, [`Filter::decode`] is the one to use.
    ///
    /// Fails with INVALID_ARGUMENT for what Bigtable documents as invalid.
    pub fn compile(filter: &v2::RowFilter) -> Result<Self> {
        // Before anything walks the filter by recursion.
        check_generated_depth(filter)?;
        Self::decode(&filter.encode_to_vec())
    }

    /// Compiles an encoded filter, as [`WithFilter`] keeps it.
    ///
    /// Fails with INVALID_ARGUMENT for what Bigtable documents as invalid and for what is no filter, and
    /// with UNIMPLEMENTED for a kind of filter that is not known here.
    pub fn decode(encoded: &[u8]) -> Result<Self> {
        if encoded.len() > FILTER_BYTES_MAX {
            return Err(compile::too_large());
        }
        let filter = wire::RowFilter::decode(encoded).map_err(|error| {
            // The decoder's own limit on nested messages lies beyond the depth that is allowed.
            if error.to_string().contains("recursion limit") {
                compile::too_deep()
            } else {
                Error::invalid_argument(format!("Row filter is malformed: {error}"))
            }
        })?;
        let (root, patterns) = compile::compile(&filter)?;
        if has_unset(&filter) && filter.encoded_len() < encoded.len() {
            return Err(Error::unimplemented(
                "Row filter holds a kind of filter that is not known",
            ));
        }
        Ok(Self {
            reach: (!root.asks_key()).then(|| root.reach(&[], &mut { u64::MAX })),
            duplicates: root.duplicates(),
            labels: root.labels(),
            work: root.work(),
            patterns,
            root,
        })
    }

    /// The output of the filter for a row: its cells in the engine's order; copies of one cell stay
    /// together. `rng` decides what `row_sample_filter` keeps.
    ///
    /// Fails with FAILED_PRECONDITION where copies make the row larger than a read may return, or where they or the steps
    /// over them are more than the filter of one row is given.
    pub fn apply(
        &self,
        row: Row,
        families: &dyn FamilyNames,
        rng: &dyn Rng,
    ) -> Result<Vec<FilteredCell>> {
        let (cells, _) = self.apply_counting(&row.key, row.cells, &(), families, rng)?;
        Ok(match cells {
            Passed::Plain(cells) => cells.into_iter().map(FilteredCell::from).collect(),
            Passed::Labelled(cells) => cells,
        })
    }

    /// The same, with the number of cells that the steps of the filter went through, each counted for each step, and what counts
    /// among them.
    pub(crate) fn apply_counting<C: RowCell>(
        &self,
        key: &Bytes,
        cells: Vec<C>,
        memory: &C::Memory,
        families: &dyn FamilyNames,
        rng: &dyn Rng,
    ) -> Result<(Passed<C>, u64)> {
        let mut steps_left = eval::STEPS;
        if cells.is_empty() || !self.may_match_within(key, &mut steps_left) {
            return Ok((Passed::Plain(Vec::new()), eval::STEPS - steps_left));
        }
        if self.labels {
            let cells = cells.into_iter().map(FilteredCell::from).collect();
            let evaluation = eval::Evaluation::new(key, memory, families, rng, steps_left);
            let (cells, steps) = evaluation.run(self, cells)?;
            Ok((Passed::Labelled(cells), steps))
        } else {
            let evaluation = eval::Evaluation::new(key, memory, families, rng, steps_left);
            let (cells, steps) = evaluation.run(self, cells)?;
            Ok((Passed::Plain(cells), steps))
        }
    }

    /// Whether a row with this key can have any output. Costs no more than its patterns on the key, and
    /// nothing of the row need be read to ask.
    pub fn may_match(&self, key: &[u8]) -> bool {
        self.may_match_within(key, &mut { u64::MAX })
    }

    /// The same, with what it takes taken off the steps that are left; true where they do not suffice.
    pub(crate) fn may_match_within(&self, key: &[u8], steps_left: &mut u64) -> bool {
        let reach = self.reach.unwrap_or_else(|| self.root.reach(key, steps_left));
        reach.flow || reach.sink
    }

    /// Bytes of what it was compiled to, beyond its own message, and may build while it runs.
    pub fn compiled_bytes(&self) -> usize {
        self.patterns.bytes()
    }

    /// Lets go of what it has built while it ran, which it builds again.
    pub(crate) fn forget(&self) {
        self.patterns.forget();
    }

    /// Steps that a row of so many cells, with a key and cells of so many bytes, may take, before it is known what the filter drops. Each is
    /// the time in which a cell is gone through.
    pub(crate) fn steps(&self, cells: usize, key_bytes: usize, bytes: usize) -> u64 {
        self.work.steps(cells, key_bytes, bytes)
    }

    /// What the engine has to read for this filter, given the table's families by ascending id. The filter is
    /// meant to see the columns `within` alone, where they are given: the projection keeps no others.
    pub fn projection(
        &self,
        families: Vec<(FamilyId, &str)>,
        within: Option<&[FamilyProjection]>,
    ) -> Projection {
        project::projection(&self.root, families, within, (Wanted::Output, project::RANGES_MAX))
    }

    /// The same where all that matters is whether anything passes, which it does of a row if it does of the projected row.
    pub(crate) fn predicate_projection(
        &self,
        families: Vec<(FamilyId, &str)>,
        within: Option<&[FamilyProjection]>,
    ) -> Projection {
        let limits = (Wanted::Emptiness, project::RANGES_MAX);
        let projection = project::projection(&self.root, families, within, limits);
        Projection { values: projection.values && self.root.compares_values(), ..projection }
    }

    /// Whether it asks anywhere, by a pattern or a range of columns, for families none of which is among these.
    pub(crate) fn asks_beyond(&self, families: &[&str]) -> bool {
        self.root.asks_beyond(families, &mut { VIEW_STEPS_MAX })
    }

    /// The ranges outside of which no row can have an output: sorted and disjoint. `None` when the
    /// filter says nothing about keys; no range at all when no row can match.
    pub fn row_ranges(&self) -> Option<Vec<RowRange>> {
        project::row_ranges(&self.root)
    }
}

/// Whether a filter without a kind is anywhere within.
fn has_unset(filter: &wire::RowFilter) -> bool {
    filter.kind.is_none() || filter.children().into_iter().any(has_unset)
}

/// Checks the depth without recursion, since nothing bounds a message that was never decoded.
fn check_generated_depth(filter: &v2::RowFilter) -> Result<()> {
    use v2::row_filter::Filter as Kind;
    let mut pending = vec![(filter, 1)];
    while let Some((filter, level)) = pending.pop() {
        if level > FILTER_DEPTH_MAX {
            return Err(compile::too_deep());
        }
        match &filter.filter {
            Some(Kind::Chain(list)) => {
                pending.extend(list.filters.iter().map(|f| (f, level + 1)));
            }
            Some(Kind::Interleave(list)) => {
                pending.extend(list.filters.iter().map(|f| (f, level + 1)));
            }
            Some(Kind::Condition(condition)) => {
                let parts =
                    [&condition.predicate_filter, &condition.true_filter, &condition.false_filter];
                let parts = parts.into_iter().flatten();
                pending.extend(parts.map(|f| (&**f, level + 1)));
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
