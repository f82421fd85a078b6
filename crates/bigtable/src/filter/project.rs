//! What a filter needs of a row: the projection that the engine reads by, and the ranges of row keys.
//!
//! A *need* P of a filter f is a selection of cells such that
//!
//! ```text
//! for every row R and every X with P(R) ⊆ X ⊆ R:   f(X) = f(R)
//! ```
//!
//! "Every X", and not just P(R) itself, is what lets needs be combined: the need of an interleave or a
//! condition is anything that covers the needs of its parts. It says too that a row of which P leaves
//! nothing has no output, since f of nothing is nothing.
//!
//! A chain is folded from its start. Filters that judge each cell on its own commute, so columns and
//! timestamps are narrowed whatever stands between them. Counting does not commute, and so
//!
//! * timestamps fold only until something counts (a column limit, then a timestamp range, is not a
//!   timestamp range, then a column limit); columns fold past column limits, which count within a column;
//! * a column limit becomes `versions_max` only while the need agrees with the chain on every cell of the
//!   columns that the chain keeps;
//! * offset and limit become `cells_per_row_max` only while the need is exactly what flows;
//! * after a limit or offset, an interleave, a condition or a sink, the rest of the chain is not looked at.
//!
//! Of a predicate only matters whether anything passes. Where the need of a chain is exactly what flows out of it, and that is
//! no row's rest behind an offset, its first cell tells, as would any other.
//!
//! Everything is a need of any filter. So where working out a narrower one takes too long ([`RANGES_MAX`]), what is left of
//! the filter needs everything.

use std::cell::Cell;

use tepui_engine::cell::{FamilyId, RowRange, TIMESTAMP_MAX, TimestampRange};
use tepui_engine::read::{FamilyProjection, Projection, Qualifiers};

use super::node::Node;
use super::range::{self, ByteRange};
use crate::regex::{Candidates, Regex};

/// Ranges of qualifiers that a projection names for one family at most. More cost the read more than
/// they save; beyond it one range around them all is read.
const QUALIFIER_RANGES_MAX: usize = 128;

/// Ranges of qualifiers that a projection is worked out from, at most, each counted as often as it is gone through: a range
/// for each family in each branch of a filter. A filter has room for thousands of branches with a hundred ranges each, a table
/// for a thousand families; these take some 20 ms. On a table of ten families, hundreds of branches with a hundred ranges each stay
/// below it, and thousands with a column each; of one family that is named first, all that a filter has room for.
pub(super) const RANGES_MAX: usize = 1 << 18;

/// Steps of a pattern, one for the name of a family at least, in the time in which a range is gone through, roughly.
const STEPS_A_RANGE: u64 = 4;

/// What is wanted of what a filter lets through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// All of it.
    Output,
    /// Whether there is any.
    Emptiness,
}

/// The projection for a whole filter, on rows that have no more than the columns `within`; `None` means all. It goes through no
/// more than `ranges_max` ranges.
pub(super) fn projection(
    root: &Node,
    mut families: Vec<(FamilyId, &str)>,
    within: Option<&[FamilyProjection]>,
    (wanted, ranges_max): (Wanted, usize),
) -> Projection {
    // Projections name families by ascending id, whatever order the caller has.
    families.sort_unstable();
    // The columns are what flows into the filter, and folding only ever narrows them.
    let columns = within.map(|within| within.iter().map(Column::of).collect());
    let ranges_left = Cell::new(ranges_max);
    let scope = Scope { families: &families, ranges_left: &ranges_left };
    let need = fold(root, &scope, Need { columns, ..Need::ALL }, wanted);
    let families = need.columns.map(|columns| {
        columns
            .into_iter()
            .map(|column| FamilyProjection {
                family: column.family,
                qualifiers: column.into_qualifiers(within),
            })
            .collect()
    });
    Projection {
        families,
        timestamps: need.timestamps,
        versions_max: need.versions,
        cells_per_row_max: need.row_cells,
        values: looks_at_values(root),
    }
}

/// Whether the filter looks at values, or passes them on: it does not where a chain strips them before anything that
/// could.
fn looks_at_values(root: &Node) -> bool {
    for step in root.steps() {
        match step {
            Node::StripValue => return false,
            Node::PassAll
            | Node::Label(_)
            | Node::RowKeyRegex(_)
            | Node::RowSample(_)
            | Node::FamilyRegex(_)
            | Node::QualifierRegex(_)
            | Node::ColumnRange { .. }
            | Node::Timestamps(_)
            | Node::RowOffset(_)
            | Node::RowLimit(_)
            | Node::ColumnLimit(_) => {}
            Node::BlockAll
            | Node::ValueRegex(_)
            | Node::ValueRange(_)
            | Node::ValueBitmask(_)
            | Node::Interleave { .. }
            | Node::Condition { .. }
            | Node::Sink
            | Node::Chain(_) => return true,
        }
    }
    true
}

/// Columns of one family: a list of ranges that is never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Column {
    family: FamilyId,
    qualifiers: Vec<ByteRange>,
}

impl Column {
    /// All of a family.
    fn all(family: FamilyId) -> Self {
        Self { family, qualifiers: vec![ByteRange::ALL] }
    }

    fn of(projection: &FamilyProjection) -> Self {
        let ranges = projection.qualifiers.iter();
        let ranges =
            ranges.map(|(start, end)| ByteRange { start: start.clone(), end: end.clone() });
        let qualifiers =
            if projection.qualifiers.is_empty() { vec![ByteRange::ALL] } else { ranges.collect() };
        Self { family: projection.family, qualifiers }
    }

    /// Its ranges as a projection has them: those of `within`, by ascending family, where they have stayed the same.
    fn into_qualifiers(self, within: Option<&[FamilyProjection]>) -> Qualifiers {
        if self.qualifiers == [ByteRange::ALL] {
            return Qualifiers::ALL;
        }
        let before = within.and_then(|within| {
            let at = within.binary_search_by_key(&self.family, |column| column.family).ok()?;
            within.get(at).map(|column| &column.qualifiers)
        });
        let is_same = |before: &&Qualifiers| {
            let mut pairs = before.iter().zip(&self.qualifiers);
            before.len() == self.qualifiers.len()
                && pairs.all(|((start, end), own)| (start, end) == (&own.start, &own.end))
        };
        match before.filter(is_same) {
            Some(before) => before.clone(),
            None => self.qualifiers.into_iter().map(|range| (range.start, range.end)).collect(),
        }
    }
}

/// Columns by ascending family; `None` means all.
type Columns = Option<Vec<Column>>;

fn ranges_of(columns: &Columns) -> usize {
    columns.iter().flatten().map(|column| column.qualifiers.len()).sum()
}

/// Whether each of them is named.
fn names_columns(columns: &Columns) -> bool {
    let is_named = |column: &Column| column.qualifiers.iter().all(ByteRange::is_point);
    columns.as_ref().is_some_and(|columns| columns.iter().all(is_named))
}

/// What a projection is worked out for.
struct Scope<'a> {
    /// By ascending id.
    families: &'a [(FamilyId, &'a str)],
    /// Ranges that may still be gone through.
    ranges_left: &'a Cell<usize>,
}

impl Scope<'_> {
    /// Whether so many ranges may be gone through. Where they may not, no more may.
    fn spend(&self, ranges: usize) -> bool {
        let left = self.ranges_left.get().checked_sub(ranges);
        self.ranges_left.set(left.unwrap_or(0));
        left.is_some()
    }

    /// The need of a filter.
    fn need(&self, node: &Node) -> Need {
        // Nothing would come of it.
        if self.ranges_left.get() == 0 {
            Need::ALL
        } else {
            fold(node, self, Need::ALL, Wanted::Output)
        }
    }

    /// A need that covers those of all these filters. Neighbours are covered first, then pairs of them, and so on: from the left, the
    /// ranges of the first would be gone through as often as there are others.
    fn need_of_all<'n>(&self, nodes: impl Iterator<Item = &'n Node>) -> Need {
        let mut covered: Vec<(u32, Need)> = Vec::new();
        for node in nodes {
            let (mut size, mut need) = (0, self.need(node));
            while let Some((_, earlier)) = covered.pop_if(|(other, _)| *other == size) {
                (size, need) = (size + 1, self.cover(earlier, need));
            }
            covered.push((size, need));
        }
        let rest = covered.into_iter().rev().map(|(_, need)| need);
        rest.reduce(|later, earlier| self.cover(earlier, later)).unwrap_or_else(Need::nothing)
    }

    /// A need that covers both.
    fn cover(&self, a: Need, b: Need) -> Need {
        if a.is_nothing() {
            return b;
        }
        if b.is_nothing() {
            return a;
        }
        if !self.spend(ranges_of(&a.columns) + ranges_of(&b.columns)) {
            return Need::ALL;
        }
        if a == b { a } else { a.cover(b) }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Need {
    columns: Columns,
    timestamps: TimestampRange,
    /// `u32::MAX`: all.
    versions: u32,
    /// `u32::MAX`: all.
    row_cells: u32,
}

impl Need {
    const ALL: Self = Self {
        columns: None,
        timestamps: TimestampRange::ALL,
        versions: u32::MAX,
        row_cells: u32::MAX,
    };

    /// No cells at all.
    fn nothing() -> Self {
        Self { columns: Some(Vec::new()), ..Self::ALL }
    }

    fn is_nothing(&self) -> bool {
        self.columns.as_ref().is_some_and(Vec::is_empty)
            || (self.timestamps.end != TIMESTAMP_MAX
                && self.timestamps.start >= self.timestamps.end)
    }

    /// A need that covers both, neither of which is nothing.
    fn cover(self, other: Self) -> Self {
        // The newest cells of one range of timestamps need not be the newest of a wider one.
        let same_times = self.timestamps == other.timestamps;
        Self {
            columns: union_columns(self.columns, other.columns),
            timestamps: TimestampRange {
                start: self.timestamps.start.min(other.timestamps.start),
                end: self.timestamps.end.max(other.timestamps.end),
            },
            versions: if same_times { self.versions.max(other.versions) } else { u32::MAX },
            row_cells: u32::MAX,
        }
    }
}

/// The need of a filter of cells that have exactly the columns of `input`, which is all else.
fn fold(node: &Node, scope: &Scope<'_>, input: Need, wanted: Wanted) -> Need {
    let mut fold = Fold::new(scope, input);
    let stopped = node.steps().iter().any(|step| fold.step(step) == Next::Stop);
    if !stopped && wanted == Wanted::Emptiness {
        fold.keep_any();
    }
    if fold.need.is_nothing() { Need::nothing() } else { fold.need }
}

#[derive(PartialEq, Eq)]
enum Next {
    Go,
    Stop,
}

/// A chain, as far as it is folded.
struct Fold<'a> {
    scope: &'a Scope<'a>,
    need: Need,
    /// The need keeps no column that the chain leaves out.
    columns_exact: bool,
    /// Within the columns that the chain keeps, the need keeps no cell that the chain leaves out.
    cells_exact: bool,
    /// A column limit was met.
    counted: bool,
    /// The sum of the row offsets met.
    offset: Option<usize>,
}

impl<'a> Fold<'a> {
    fn new(scope: &'a Scope<'a>, need: Need) -> Self {
        Self { scope, need, columns_exact: true, cells_exact: true, counted: false, offset: None }
    }

    fn exact(&self) -> bool {
        self.columns_exact && self.cells_exact
    }

    fn step(&mut self, node: &Node) -> Next {
        match node {
            // These keep or drop whole rows, or change no cell's place.
            Node::PassAll
            | Node::StripValue
            | Node::Label(_)
            | Node::RowKeyRegex(_)
            | Node::RowSample(_) => return Next::Go,
            Node::BlockAll => {
                // A sink would have ended the fold before.
                self.need = Need::nothing();
                return Next::Stop;
            }
            Node::RowOffset(count) if self.exact() => {
                self.offset = Some(self.offset.unwrap_or(0).saturating_add(*count));
                return Next::Go;
            }
            Node::RowLimit(count) if self.exact() => {
                let cells = self.offset.unwrap_or(0).saturating_add(*count);
                self.need.row_cells = u32::try_from(cells).unwrap_or(u32::MAX);
                return Next::Stop;
            }
            _ if self.offset.is_some() => return Next::Stop,
            _ => {}
        }
        match node {
            Node::FamilyRegex(regex) => match self.families_matching(regex) {
                Some(columns) => self.narrow(columns),
                None => self.columns_exact = false,
            },
            Node::QualifierRegex(regex) => {
                if let Some((ranges, exact)) = qualifier_ranges(regex) {
                    self.narrow_qualifiers(&ranges, exact);
                } else if !regex.matches_all() {
                    self.columns_exact = false;
                }
            }
            Node::ColumnRange { family, qualifiers } => {
                let id = self.scope.families.iter().find(|(_, name)| name == family);
                let columns = match id {
                    Some((family, _)) if !qualifiers.is_empty() => {
                        vec![Column { family: *family, qualifiers: vec![qualifiers.clone()] }]
                    }
                    _ => Vec::new(),
                };
                self.narrow(columns);
            }
            Node::Timestamps(range) => {
                if self.counted {
                    self.cells_exact = false;
                } else {
                    self.narrow_timestamps(*range);
                }
            }
            Node::ValueRegex(_) | Node::ValueRange(_) | Node::ValueBitmask(_) => {
                self.cells_exact = false;
            }
            Node::ColumnLimit(count) => {
                if self.cells_exact {
                    let count = u32::try_from(*count).unwrap_or(u32::MAX);
                    self.need.versions = self.need.versions.min(count);
                }
                self.counted = true;
            }
            Node::Interleave { branches, .. } => {
                self.compose_all(branches.iter());
                return Next::Stop;
            }
            Node::Condition { predicate, on_true, on_false } => {
                let branches = [on_true, on_false].into_iter().flatten();
                self.compose_all([predicate].into_iter().chain(branches).map(|node| &**node));
                return Next::Stop;
            }
            _ => return Next::Stop,
        }
        Next::Go
    }

    /// Keeps of a chain that was folded to its end what tells whether anything comes out of it.
    fn keep_any(&mut self) {
        if !self.exact() || self.offset.is_some() {
            return;
        }
        self.need.versions = 1;
        // One cell would do. But the newest of each column, where each is named, is sought in no older place than it has to be.
        if !names_columns(&self.need.columns) {
            self.need.row_cells = 1;
        }
    }

    /// Takes in what covers the needs of filters that the chain so far flows into.
    fn compose_all<'n>(&mut self, nodes: impl Iterator<Item = &'n Node>) {
        // No other families flow there.
        let columns = self.need.columns.as_ref();
        let flows = |family: &FamilyId| {
            columns.is_none_or(|kept| kept.binary_search_by_key(family, |c| c.family).is_ok())
        };
        let families = self.scope.families.iter().filter(|(family, _)| flows(family));
        let families: Vec<_> = families.copied().collect();
        let scope = Scope { families: &families, ranges_left: self.scope.ranges_left };
        let covered = scope.need_of_all(nodes);
        self.compose(covered);
    }

    /// Takes in the need of a filter that the chain so far flows into.
    fn compose(&mut self, next: Need) {
        // Its counts go with its columns.
        let next = if self.can_narrow(ranges_of(&next.columns)) { next } else { Need::ALL };
        if !self.counted {
            // Counts of the filter hold for the row itself where what flows into it is what the need
            // keeps of those columns, before any count.
            if self.cells_exact {
                self.need.versions = next.versions;
                if self.columns_exact {
                    self.need.row_cells = next.row_cells;
                }
            }
            self.narrow_timestamps(next.timestamps);
        }
        if let Some(columns) = next.columns {
            self.intersect(columns);
        }
    }

    /// Whether the columns may be compared with those of so many ranges.
    fn can_narrow(&self, ranges: usize) -> bool {
        self.scope.spend(ranges_of(&self.need.columns) + ranges)
    }

    /// Keeps these columns alone, which are all that the chain keeps.
    fn narrow(&mut self, columns: Vec<Column>) {
        if self.can_narrow(columns.len()) {
            self.intersect(columns);
        } else {
            self.columns_exact = false;
        }
    }

    fn intersect(&mut self, columns: Vec<Column>) {
        self.need.columns = Some(match self.need.columns.take() {
            None => columns,
            Some(mine) => intersect_columns(&mine, &columns),
        });
    }

    /// Keeps these ranges alone in each family; `exact` where they are all that the chain keeps.
    fn narrow_qualifiers(&mut self, ranges: &[ByteRange], exact: bool) {
        let columns = self.need.columns.as_ref().map_or(self.scope.families.len(), Vec::len);
        self.columns_exact &= exact;
        if !self.can_narrow(columns.saturating_mul(ranges.len())) {
            self.columns_exact = false;
            return;
        }
        let narrowed = match self.need.columns.take() {
            Some(columns) => columns
                .into_iter()
                .map(|Column { family, qualifiers }| Column {
                    family,
                    qualifiers: range::intersect(&qualifiers, ranges),
                })
                .collect(),
            None => self.in_each_family(ranges),
        };
        let kept = narrowed.into_iter().filter(|column| !column.qualifiers.is_empty());
        self.need.columns = Some(kept.collect());
    }

    fn narrow_timestamps(&mut self, range: TimestampRange) {
        let mine = &mut self.need.timestamps;
        mine.start = mine.start.max(range.start);
        mine.end = mine.end.min(range.end);
    }

    /// `None` where finding out takes too long.
    fn families_matching(&self, regex: &Regex) -> Option<Vec<Column>> {
        let ranges = self.scope.ranges_left.get();
        // The last range is not gone through before its last step.
        let mut steps_left = (ranges as u64 + 1) * STEPS_A_RANGE;
        let mut columns = Vec::new();
        for (family, name) in self.scope.families {
            match regex.is_match_within(name.as_bytes(), &mut steps_left) {
                Some(true) => columns.push(Column::all(*family)),
                Some(false) => {}
                None => {
                    self.scope.ranges_left.set(0);
                    return None;
                }
            }
        }
        let left = usize::try_from(steps_left / STEPS_A_RANGE).unwrap_or(usize::MAX);
        self.scope.ranges_left.set(left.min(ranges));
        Some(columns)
    }

    fn in_each_family(&self, ranges: &[ByteRange]) -> Vec<Column> {
        let families = self.scope.families.iter();
        families
            .map(|(family, _)| Column { family: *family, qualifiers: ranges.to_vec() })
            .collect()
    }
}

/// The ranges that a pattern's matches lie in, and whether everything in them matches. `None` when that
/// is no narrower than everything.
fn qualifier_ranges(regex: &Regex) -> Option<(Vec<ByteRange>, bool)> {
    let (list, exact) = pattern_ranges(regex)?;
    if list.len() <= QUALIFIER_RANGES_MAX {
        return Some((list, exact));
    }
    Some((range::hull(&list).into_iter().collect(), false))
}

fn pattern_ranges(regex: &Regex) -> Option<(Vec<ByteRange>, bool)> {
    if regex.matches_all() {
        return None;
    }
    let Candidates::Of { texts, prefixes, exact } = regex.candidates() else { return None };
    let points = texts.iter().cloned().map(ByteRange::point);
    let opens = prefixes.iter().map(|prefix| ByteRange::prefix(prefix));
    Some((range::union(points.chain(opens).collect()), *exact))
}

fn union_columns(a: Columns, b: Columns) -> Columns {
    let (a, b) = (a?, b?);
    let mut all = [a, b].concat();
    // Two sorted lists: they are merged.
    all.sort_by_key(|column| column.family);
    let mut columns: Vec<Column> = Vec::with_capacity(all.len());
    for column in all {
        match columns.last_mut() {
            Some(mine) if mine.family == column.family => {
                let ranges = std::mem::take(&mut mine.qualifiers);
                mine.qualifiers = capped(range::union([ranges, column.qualifiers].concat()));
            }
            _ => columns.push(column),
        }
    }
    Some(columns)
}

fn capped(list: Vec<ByteRange>) -> Vec<ByteRange> {
    if list.len() <= QUALIFIER_RANGES_MAX { list } else { range::hull(&list).into_iter().collect() }
}

fn intersect_columns(a: &[Column], b: &[Column]) -> Vec<Column> {
    // Both are sorted.
    let pairs = a.iter().filter_map(|x| {
        let at = b.binary_search_by_key(&x.family, |y| y.family).ok()?;
        Some((x, b.get(at)?))
    });
    pairs
        .map(|(x, y)| Column {
            family: x.family,
            qualifiers: range::intersect(&x.qualifiers, &y.qualifiers),
        })
        .filter(|column| !column.qualifiers.is_empty())
        .collect()
}

/// The ranges of row keys that a filter can have output for; see [`super::Filter::row_ranges`].
pub(super) fn row_ranges(root: &Node) -> Option<Vec<RowRange>> {
    Some(key_ranges(root)?.into_iter().map(ByteRange::into_row_range).collect())
}

fn key_ranges(node: &Node) -> Option<Vec<ByteRange>> {
    match node {
        Node::BlockAll => Some(Vec::new()),
        Node::RowKeyRegex(regex) => Some(pattern_ranges(regex)?.0),
        Node::Interleave { branches, .. } => {
            let mut all = Vec::new();
            for branch in branches {
                all.extend(key_ranges(branch)?);
            }
            Some(range::union(all))
        }
        Node::Chain(steps) => {
            let mut found: Option<Vec<ByteRange>> = None;
            for step in steps {
                if let Some(ranges) = key_ranges(step) {
                    found = Some(match found {
                        Some(earlier) => range::intersect(&earlier, &ranges),
                        None => ranges,
                    });
                }
                // What went into a sink is out, whatever follows.
                if step.sinks() {
                    break;
                }
            }
            found
        }
        Node::Condition { predicate, on_true, on_false } => {
            let of = |branch: &Option<Box<Node>>| match branch {
                Some(branch) => key_ranges(branch),
                None => Some(Vec::new()),
            };
            let on_false = of(on_false)?;
            let on_true = match (of(on_true), key_ranges(predicate)) {
                (Some(branch), Some(predicate)) => range::intersect(&branch, &predicate),
                (one, other) => one.or(other)?,
            };
            Some(range::union([on_true, on_false].concat()))
        }
        _ => None,
    }
}
