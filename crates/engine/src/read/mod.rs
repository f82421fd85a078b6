//! Reading: what a read asks for, and the machinery that answers it.
//!
//! ```text
//! memtables, SSTs        merge.rs             visible.rs               stream.rs
//! Box<dyn Cursor> ... ─► MergeCursor ──────► VisibleRow ───────────► RowStream ─► Row, Row, ...
//!                        one key order       snapshot, tombstones,    rows in order, loads blocks,
//!                                            merges, projection       bounds, marks of progress
//! ```
//!
//! * [`merge`] turns many ordered runs of records into one.
//! * `plan` joins a projection with the schema: which families and columns, and where to seek next.
//! * `visible` decides, record by record, what a snapshot sees of a row.
//! * `stream` has [`RowStream`], which drives them forward or backward and is the only part that awaits.
//! * `ready` has the rows of a stream that wait to be returned, and the values that they lack.
//! * `single` assembles rows that one block or memtable holds whole, with no merge: most of what is read.
//! * `part` joins what several places have of a row, where that takes no merging either.
//! * `range_tombstones` knows what the cell tombstones of a column hide, for reads and compactions alike.
//! * `aggregate` combines the operands of aggregate families, for reads and compactions alike.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, Deref};
use std::sync::Arc;

use bytes::Bytes;

use crate::cell::{FamilyId, Seq, TimestampRange, row_prefix};
use crate::manifest::Excised;

pub(crate) mod aggregate;
mod level;
pub mod merge;
mod part;
mod plan;
mod range_tombstones;
mod ready;
mod single;
mod stream;
#[cfg(test)]
pub(crate) mod testing;
mod visible;

pub(crate) use level::{LevelCursor, LevelFile, LevelOptions};
pub use merge::MergeCursor;
pub(crate) use part::RowPart;
pub(crate) use range_tombstones::RangeTombstones;
pub(crate) use single::{Assembler, Pins, RecordInRow};
pub use stream::{ReadSpec, RowStream};

/// A range of qualifiers within a family.
pub type QualifierRange = (Bound<Bytes>, Bound<Bytes>);

/// Ranges of qualifiers that are wanted of a family: sorted and disjoint; none means all. Whoever has a clone shares them, since some are
/// thousands, of each of which every scan that starts would make another.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Qualifiers(Option<Arc<[QualifierRange]>>);

impl Qualifiers {
    /// Every qualifier.
    pub const ALL: Self = Self(None);

    /// Whether a qualifier is among them.
    pub fn contains(&self, qualifier: &[u8]) -> bool {
        self.is_empty() || plan::in_ranges(self, qualifier)
    }
}

impl Deref for Qualifiers {
    type Target = [QualifierRange];

    fn deref(&self) -> &[QualifierRange] {
        self.0.as_deref().unwrap_or_default()
    }
}

impl FromIterator<QualifierRange> for Qualifiers {
    fn from_iter<I: IntoIterator<Item = QualifierRange>>(ranges: I) -> Self {
        let ranges: Arc<[QualifierRange]> = ranges.into_iter().collect();
        Self((!ranges.is_empty()).then_some(ranges))
    }
}

impl From<Vec<QualifierRange>> for Qualifiers {
    fn from(ranges: Vec<QualifierRange>) -> Self {
        ranges.into_iter().collect()
    }
}

/// The columns of one family that a read wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FamilyProjection {
    /// The family.
    pub family: FamilyId,
    /// Which qualifiers.
    pub qualifiers: Qualifiers,
}

/// What a read wants of each row. It is a promise of what the caller will not look at: the engine may
/// return no more than this, and rows left without cells are not returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Projection {
    /// Families by ascending id; `None` means all families of the schema but the server's own.
    pub families: Option<Vec<FamilyProjection>>,
    /// Timestamps.
    pub timestamps: TimestampRange,
    /// The newest this-many cells of each column, counted after `timestamps` is applied.
    pub versions_max: u32,
    /// The first this-many cells of each row, counted after all of the above.
    pub cells_per_row_max: u32,
    /// Whether values are looked at. Where they are not, they come empty and count for nothing, and those that lie outside of
    /// their SST are not read.
    pub values: bool,
}

impl Projection {
    /// The newest cell of each of these columns, named in any order. Such a read looks no further than it has to; see
    /// [`Tablet::read_row`](crate::tablet::Tablet::read_row).
    pub fn newest_of(columns: impl IntoIterator<Item = (FamilyId, Bytes)>) -> Self {
        let mut families: BTreeMap<FamilyId, BTreeSet<Bytes>> = BTreeMap::new();
        for (family, qualifier) in columns {
            families.entry(family).or_default().insert(qualifier);
        }
        let exactly = |q: Bytes| (Bound::Included(q.clone()), Bound::Included(q));
        let families = families.into_iter().map(|(family, qualifiers)| FamilyProjection {
            family,
            qualifiers: qualifiers.into_iter().map(exactly).collect(),
        });
        Self { families: Some(families.collect()), versions_max: 1, ..Self::all() }
    }

    /// Whether it wants some qualifiers of a family only.
    pub(crate) fn names_qualifiers(&self) -> bool {
        self.families.iter().flatten().any(|family| !family.qualifiers.is_empty())
    }

    /// Whether it names each column that it wants.
    pub(crate) fn names_columns(&self) -> bool {
        let named = |f: &FamilyProjection| {
            !f.qualifiers.is_empty() && f.qualifiers.iter().all(|range| named(range).is_some())
        };
        self.families.as_ref().is_some_and(|families| families.iter().all(named))
    }

    /// The columns that it names, in order.
    pub(crate) fn columns(&self) -> impl Iterator<Item = (FamilyId, &[u8])> {
        self.families
            .iter()
            .flatten()
            .flat_map(|f| f.qualifiers.iter().filter_map(|range| Some((f.family, named(range)?))))
    }

    /// Everything.
    pub fn all() -> Self {
        Self {
            families: None,
            timestamps: TimestampRange::ALL,
            versions_max: u32::MAX,
            cells_per_row_max: u32::MAX,
            values: true,
        }
    }
}

/// The only qualifier of a range that is no more than that.
fn named(range: &QualifierRange) -> Option<&[u8]> {
    match range {
        (Bound::Included(first), Bound::Included(last)) if first == last => Some(first),
        _ => None,
    }
}

impl Default for Projection {
    fn default() -> Self {
        Self::all()
    }
}

/// An excised range whose bounds are encoded, to be compared with the row prefixes of keys.
#[derive(Debug)]
pub(crate) struct EncodedExcised {
    start: Vec<u8>,
    /// Empty for no end.
    end: Vec<u8>,
    seq: Seq,
}

impl EncodedExcised {
    /// Encodes `excised`.
    pub(crate) fn new(excised: &Excised) -> Self {
        let end =
            if excised.range.end.is_empty() { Vec::new() } else { row_prefix(&excised.range.end) };
        Self { start: row_prefix(&excised.range.start), end, seq: excised.seq }
    }

    /// The sequence up to which records are hidden.
    pub(crate) fn seq(&self) -> Seq {
        self.seq
    }

    /// Whether the row with this prefix is in the range.
    pub(crate) fn covers(&self, prefix: &[u8]) -> bool {
        prefix >= self.start.as_slice() && (self.end.is_empty() || prefix < self.end.as_slice())
    }
}
