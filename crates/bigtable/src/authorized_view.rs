//! Authorized views: the part of a table that a request may touch.
//!
//! ```text
//! SubsetView ── compile ──► AuthorizedView ─┬─ narrow          rows of a read          what is outside is not read
//!   row prefixes                            ├─ columns         the engine's projection
//!   families: qualifiers, prefixes          ├─ check_filter    families that a filter asks for
//!                                           ├─ check_row ...   what is written         PERMISSION_DENIED outside
//!                                           └─ samples         row keys that divide it
//! ```
//!
//! A read gets what the view lets through, as if there were nothing else: its filter runs on that alone, and
//! the engine reads no more than that. A write that touches anything else is refused as a whole, before it is
//! looked at any further: who may not see a family is not told whether it exists. A mutation touches what it
//! could change, not what it finds. So `DeleteFromFamily` needs every qualifier of the family, and
//! `DeleteFromRow`, which takes in families that do not exist yet, is never within a view.

use std::collections::{BTreeMap, HashSet};
use std::ops::Bound;

use bytes::Bytes;
use googleapis_tonic_google_bigtable_admin_v2::google::bigtable::admin::v2::authorized_view::{
    FamilySubsets, SubsetView,
};
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::mutation::Mutation;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::value::Kind as ValueKind;
use prost::Message as _;
use tepui_engine::cell::RowRange;
use tepui_engine::read::{FamilyProjection, QualifierRange, Qualifiers};

use crate::error::{Error, Result, Shown, ShownBytes};
use crate::filter::Filter;
use crate::filter::range::{self, ByteRange};
use crate::limits;
use crate::rowset::{self, RowSpan, RowSpans};
use crate::schema::FamilyNames;

/// Bytes of an encoded `SubsetView`, at most. All views are in memory, thousands to a table; a view is gone
/// through on every request.
pub const SUBSET_VIEW_BYTES_MAX: usize = 64 << 10;

/// Row prefixes, families, qualifiers and prefixes of these of a view, together, at most, where a client sets them. Each has a place of 32 bytes in memory
/// and, compiled, of up to 200, whatever it has on the wire, where two suffice. So a view takes no more than a megabyte; with fewer, views that
/// somebody means, of thousands of columns each named, would be refused. One that was stored with more, which its bytes bound, stays as it is.
pub const SUBSET_VIEW_PARTS_MAX: usize = 4_096;

/// Bytes of a bound that is made for a view, beside those of its key: of two allocations, of which one counts who shares it.
const BOUND_BYTES: usize = 48;

/// A view, ready to be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthorizedView {
    /// The rows: sorted and disjoint.
    rows: Vec<RowRange>,
    /// By name: the qualifiers; `None` where there is none.
    families: BTreeMap<String, Option<Qualifiers>>,
    /// See [`Self::bytes`].
    bytes: usize,
}

impl AuthorizedView {
    /// Compiles a view; `INVALID_ARGUMENT` for keys, names and sizes that no table can have. Families need not exist.
    pub fn compile(subset: &SubsetView) -> Result<Self> {
        let bytes = subset.encoded_len();
        if bytes > SUBSET_VIEW_BYTES_MAX {
            return Err(Error::field(
                "subset_view",
                format!("has {bytes} bytes; limit {SUBSET_VIEW_BYTES_MAX}"),
            ));
        }
        for prefix in &subset.row_prefixes {
            // The empty prefix means all rows; otherwise a prefix is at most a key.
            if !prefix.is_empty() {
                limits::check_row_key(prefix)
                    .map_err(|error| Error::field("row_prefixes", error.message()))?;
            }
        }
        let mut families = BTreeMap::new();
        for (name, columns) in &subset.family_subsets {
            limits::check_family_name(name)?;
            families.insert(name.clone(), qualifiers(columns)?);
        }
        let rows = rows(&subset.row_prefixes);
        let of_rows: usize = rows.iter().map(row_range_bytes).sum();
        let of_families = families.iter().map(|(name, qualifiers)| {
            let ranges = qualifiers.iter().flat_map(|qualifiers| qualifiers.iter());
            size_of::<(String, Option<Qualifiers>)>()
                + name.len()
                + ranges.map(qualifier_range_bytes).sum::<usize>()
        });
        // What is shared with the stored view keeps that in memory.
        let bytes = bytes + size_of::<Self>() + of_rows + of_families.sum::<usize>();
        Ok(Self { rows, families, bytes })
    }

    /// Bytes that it takes, and that whatever was made of it may keep.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The names of the families that it lets through at least in part.
    pub fn families(&self) -> impl Iterator<Item = &str> {
        self.families.keys().map(String::as_str)
    }

    /// The parts of a read's rows that it lets through.
    pub(crate) fn narrow(&self, spans: &[RowSpan]) -> RowSpans {
        rowset::intersect(spans, &self.rows)
    }

    /// The columns that it lets through, of the families that there are; by ascending family.
    pub(crate) fn columns(&self, names: &FamilyNames) -> Vec<FamilyProjection> {
        let seen = names.iter().filter_map(|(family, name)| {
            let qualifiers = self.families.get(name)?.clone()?;
            Some(FamilyProjection { family, qualifiers })
        });
        seen.collect()
    }

    /// Refuses a filter that asks for families of which the view has none.
    pub(crate) fn check_filter(&self, filter: &Filter) -> Result<()> {
        let families: Vec<&str> = self.families().collect();
        if filter.asks_beyond(&families) {
            return Err(outside("the column family that the filter asks for is"));
        }
        Ok(())
    }

    /// Refuses a row outside.
    pub(crate) fn check_row(&self, row: &[u8]) -> Result<()> {
        let after = self.rows.partition_point(|range| range.start.as_ref() <= row);
        let range = after.checked_sub(1).and_then(|at| self.rows.get(at));
        if range.is_some_and(|range| range.contains(row)) {
            return Ok(());
        }
        Err(outside(&format!("row '{}' is", ShownBytes(row))))
    }

    /// Refuses a mutation that could change anything outside. One that is not well formed is left to be refused
    /// for that.
    pub(crate) fn check_mutation(&self, mutation: &v2::Mutation) -> Result<()> {
        match &mutation.mutation {
            None => Ok(()),
            Some(Mutation::SetCell(set)) => {
                self.check_column(&set.family_name, &set.column_qualifier)
            }
            Some(Mutation::AddToCell(add)) => {
                self.check_typed_column(&add.family_name, add.column_qualifier.as_ref())
            }
            Some(Mutation::MergeToCell(merge)) => {
                self.check_typed_column(&merge.family_name, merge.column_qualifier.as_ref())
            }
            Some(Mutation::DeleteFromColumn(delete)) => {
                self.check_column(&delete.family_name, &delete.column_qualifier)
            }
            Some(Mutation::DeleteFromFamily(delete)) => {
                if self.family(&delete.family_name)?.is_some_and(|seen| seen.is_empty()) {
                    return Ok(());
                }
                Err(outside(&format!(
                    "DeleteFromFamily of {}, of which only some columns are within, is",
                    Shown(&delete.family_name)
                )))
            }
            Some(Mutation::DeleteFromRow(_)) => {
                Err(outside("DeleteFromRow, which deletes from every column family, is"))
            }
        }
    }

    /// Refuses a column outside.
    pub(crate) fn check_column(&self, family: &str, qualifier: &[u8]) -> Result<()> {
        if self.family(family)?.is_some_and(|seen| seen.contains(qualifier)) {
            return Ok(());
        }
        Err(outside(&format!("column '{family}:{}' is", ShownBytes(qualifier))))
    }

    fn check_typed_column(&self, family: &str, qualifier: Option<&v2::Value>) -> Result<()> {
        match qualifier.and_then(|value| value.kind.as_ref()) {
            Some(ValueKind::RawValue(qualifier)) => self.check_column(family, qualifier),
            _ => self.family(family).map(|_| ()),
        }
    }

    fn family(&self, name: &str) -> Result<Option<&Qualifiers>> {
        let found = self.families.get(name).map(Option::as_ref);
        found.ok_or_else(|| outside(&format!("column family {} is", Shown(name))))
    }

    /// The last of its ranges that begins before this one ends: ranges are sorted and disjoint, so it reaches furthest into it.
    fn last_begun(&self, range: &RowRange) -> Option<&RowRange> {
        let begun = self.rows.partition_point(|own| range.end.is_empty() || own.start < range.end);
        begun.checked_sub(1).and_then(|at| self.rows.get(at))
    }

    /// Whether it has any of these rows.
    pub(crate) fn overlaps(&self, range: &RowRange) -> bool {
        self.last_begun(range).is_some_and(|own| own.overlaps(range))
    }

    /// The samples of a table that divide the view. A key beyond the view's rows, which may be a row's, is replaced by
    /// the end of those rows; offsets count the bytes of the parts that the view has rows in.
    pub(crate) fn samples(
        &self,
        samples: Vec<v2::SampleRowKeysResponse>,
    ) -> Vec<v2::SampleRowKeysResponse> {
        let mut kept: Vec<v2::SampleRowKeysResponse> = Vec::new();
        let (mut part_start, mut before) = (Bytes::new(), 0_i64);
        let mut bytes = 0_i64;
        for sample in samples {
            let part = RowRange::new(part_start, sample.row_key.clone());
            let last = self.last_begun(&part).map(|range| range.intersect(&part));
            if let Some(last) = last.filter(|both| !both.is_empty()) {
                bytes = bytes.saturating_add(sample.offset_bytes.saturating_sub(before));
                kept.push(v2::SampleRowKeysResponse { row_key: last.end, offset_bytes: bytes });
            }
            part_start = sample.row_key;
            before = sample.offset_bytes;
        }
        kept
    }
}

/// The error for something outside; `what` ends in a verb.
fn outside(what: &str) -> Error {
    Error::permission_denied(format!("Access denied: {what} outside the Authorized View"))
}

/// The rows that start with one of the prefixes.
fn rows(prefixes: &[Bytes]) -> Vec<RowRange> {
    let ranges = range::union(prefixes.iter().map(|prefix| ByteRange::prefix(prefix)).collect());
    ranges.into_iter().map(ByteRange::into_row_range).collect()
}

/// Refuses a definition that a client sends and that says something twice, to no purpose, or has more parts than [`SUBSET_VIEW_PARTS_MAX`], at a
/// cost in memory that its bytes do not tell: `INVALID_ARGUMENT`. What it has of the one `before` may stay.
pub fn check_parts(subset: &SubsetView, before: Option<&SubsetView>) -> Result<()> {
    fn parts(subset: &SubsetView) -> usize {
        let of_family = |columns: &FamilySubsets| {
            1 + columns.qualifiers.len() + columns.qualifier_prefixes.len()
        };
        subset.row_prefixes.len() + subset.family_subsets.values().map(of_family).sum::<usize>()
    }
    let count = parts(subset);
    if count > SUBSET_VIEW_PARTS_MAX && count > before.map_or(0, parts) {
        let what = format!(
            "has {count} row_prefixes, families, qualifiers and qualifier_prefixes; limit {SUBSET_VIEW_PARTS_MAX}: \
             divide it into several views, or name what they have in common by prefixes"
        );
        return Err(Error::field("subset_view", what));
    }
    if before.is_none_or(|before| before.row_prefixes != subset.row_prefixes) {
        check_distinct("row_prefixes", &subset.row_prefixes)?;
    }
    for (family, columns) in &subset.family_subsets {
        if before.and_then(|before| before.family_subsets.get(family)) == Some(columns) {
            continue;
        }
        let of = |field: &str| format!("family_subsets[{family:?}].{field}");
        check_distinct(&of("qualifiers"), &columns.qualifiers)?;
        check_distinct(&of("qualifier_prefixes"), &columns.qualifier_prefixes)?;
    }
    Ok(())
}

fn check_distinct(field: &str, all: &[Bytes]) -> Result<()> {
    let mut seen = HashSet::with_capacity(all.len());
    match all.iter().find(|one| !seen.insert(*one)) {
        None => Ok(()),
        Some(twice) => {
            Err(Error::field(field, format!("has '{}' more than once", ShownBytes(twice))))
        }
    }
}

/// Bytes of a range of rows, which is of a prefix.
fn row_range_bytes(range: &RowRange) -> usize {
    size_of::<RowRange>() + range.start.len() + range.end.len() + 2 * BOUND_BYTES
}

/// Bytes of a range of qualifiers. One of a single qualifier has that in common with the stored view.
fn qualifier_range_bytes(range: &QualifierRange) -> usize {
    let own = |bound: &Bound<Bytes>| match bound {
        Bound::Included(key) | Bound::Excluded(key) => key.len() + BOUND_BYTES,
        Bound::Unbounded => 0,
    };
    let is_one = matches!(range, (Bound::Included(start), Bound::Included(end)) if start == end);
    let keys = if is_one { 0 } else { own(&range.0) + own(&range.1) };
    size_of::<QualifierRange>() + keys
}

/// The qualifiers of a family that a view lets through; `None` for none.
fn qualifiers(columns: &FamilySubsets) -> Result<Option<Qualifiers>> {
    for qualifier in columns.qualifiers.iter().chain(&columns.qualifier_prefixes) {
        limits::check_qualifier(qualifier)?;
    }
    let exact = columns.qualifiers.iter().cloned().map(ByteRange::point);
    let open = columns.qualifier_prefixes.iter().map(|prefix| ByteRange::prefix(prefix));
    let list = range::union(exact.chain(open).collect());
    Ok(if range::is_all(&list) {
        Some(Qualifiers::ALL)
    } else if list.is_empty() {
        None
    } else {
        Some(list.into_iter().map(|range| (range.start, range.end)).collect())
    })
}

/// Refuses what a view does not let through. What is not even a row key is left to be refused for that.
pub(crate) fn check_write(
    view: Option<&AuthorizedView>,
    row: &[u8],
    mutations: &[v2::Mutation],
) -> Result<()> {
    let Some(view) = view else { return Ok(()) };
    limits::check_row_key(row)?;
    view.check_row(row)?;
    mutations.iter().try_for_each(|mutation| view.check_mutation(mutation))
}

#[cfg(test)]
#[path = "authorized_view_tests.rs"]
mod tests;
