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

use std::collections::BTreeMap;

use bytes::Bytes;
use googleapis_tonic_google_bigtable_admin_v2::google::bigtable::admin::v2::authorized_view::{
    FamilySubsets, SubsetView,
};
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::mutation::Mutation;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::value::Kind as ValueKind;
use prost::Message as _;
use tepui_engine::cell::RowRange;
use tepui_engine::read::FamilyProjection;

use crate::error::{Error, Result, Shown, ShownBytes};
use crate::filter::Filter;
use crate::filter::range::{self, ByteRange};
use crate::limits;
use crate::rowset::{self, RowSpan, RowSpans};
use crate::schema::FamilyNames;

/// Bytes of an encoded `SubsetView`, at most. All views are in memory, thousands to a table; a view is gone
/// through on every request.
pub const SUBSET_VIEW_BYTES_MAX: usize = 64 << 10;

/// A view, ready to be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthorizedView {
    /// The rows: sorted and disjoint.
    rows: Vec<RowRange>,
    /// By name: the qualifiers, a list of ranges.
    families: BTreeMap<String, Vec<ByteRange>>,
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
        Ok(Self { rows: rows(&subset.row_prefixes), families })
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
            let qualifiers = self.families.get(name).filter(|list| !list.is_empty())?;
            let qualifiers = if range::is_all(qualifiers) {
                Vec::new()
            } else {
                qualifiers.iter().map(|range| (range.start.clone(), range.end.clone())).collect()
            };
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
                if range::is_all(self.family(&delete.family_name)?) {
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
        if range::contains(self.family(family)?, qualifier) {
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

    fn family(&self, name: &str) -> Result<&[ByteRange]> {
        let found = self.families.get(name).map(Vec::as_slice);
        found.ok_or_else(|| outside(&format!("column family {} is", Shown(name))))
    }

    /// Whether it has any of these rows.
    pub(crate) fn overlaps(&self, range: &RowRange) -> bool {
        self.rows.iter().any(|own| own.overlaps(range))
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
            // Ranges are sorted and disjoint: the last that begins before the part ends reaches furthest into it.
            let begun =
                self.rows.partition_point(|range| part.end.is_empty() || range.start < part.end);
            let last = begun.checked_sub(1).and_then(|at| self.rows.get(at));
            let last = last.map(|range| range.intersect(&part));
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

/// The qualifiers of a family that a view lets through.
fn qualifiers(columns: &FamilySubsets) -> Result<Vec<ByteRange>> {
    for qualifier in columns.qualifiers.iter().chain(&columns.qualifier_prefixes) {
        limits::check_qualifier(qualifier)?;
    }
    let exact = columns.qualifiers.iter().cloned().map(ByteRange::point);
    let open = columns.qualifier_prefixes.iter().map(|prefix| ByteRange::prefix(prefix));
    Ok(range::union(exact.chain(open).collect()))
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
