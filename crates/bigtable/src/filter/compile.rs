//! From a row filter's message to a [`Node`], refusing what Bigtable documents as invalid.
//!
//! The messages are Bigtable's where its clients or emulator show them, and in its manner elsewhere.
//! Where the documentation says nothing and Google's emulator accepts (timestamps that are no whole
//! milliseconds, an offset of 0, empty patterns other than the row key's), so does this; but for conditions without a predicate and ranges that
//! end before they start, which nobody means.

use std::ops::Bound;

use bytes::Bytes;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::{
    ColumnRange, TimestampRange as WireTimestamps, ValueRange, column_range, value_range,
};
use tepui_engine::cell::{TIMESTAMP_MAX, TimestampRange};

use super::node::Node;
use super::range::ByteRange;
use super::wire::{self, Kind};
use crate::error::{Error, Result, Shown};
use crate::regex::{Budget, Kept, Regex};

/// Levels of filters within filters, the outermost counted: Bigtable's documented limit.
pub const FILTER_DEPTH_MAX: usize = 20;

/// Bytes of an encoded filter: Bigtable's documented limit.
pub const FILTER_BYTES_MAX: usize = 20_480;

/// Characters of a label: Bigtable's documented limit.
pub const LABEL_CHARS_MAX: usize = 15;

/// The error for more than [`FILTER_BYTES_MAX`].
pub(super) fn too_large() -> Error {
    Error::invalid_argument(format!("Row filter exceeds maximum size of {FILTER_BYTES_MAX} bytes"))
}

/// The error for more than [`FILTER_DEPTH_MAX`].
pub(super) fn too_deep() -> Error {
    Error::invalid_argument(format!("Row filter exceeds maximum depth of {FILTER_DEPTH_MAX}"))
}

/// Compiles a filter whose size is checked already. Returns what its patterns keep, too.
pub(super) fn compile(filter: &wire::RowFilter) -> Result<(Node, Kept)> {
    let mut compiler = Compiler { budget: Budget::default() };
    let root = compiler.node(filter, 1, true)?;
    Ok((root, compiler.budget.kept()))
}

struct Compiler {
    budget: Budget,
}

impl Compiler {
    /// `level` counts from 1; `sink_allowed` is false within conditions.
    fn node(&mut self, filter: &wire::RowFilter, level: usize, sink_allowed: bool) -> Result<Node> {
        if level > FILTER_DEPTH_MAX {
            return Err(too_deep());
        }
        // Documented: the same as passing everything.
        let Some(kind) = &filter.kind else { return Ok(Node::PassAll) };
        Ok(match kind {
            Kind::Chain(list) => return self.chain(list, level, sink_allowed),
            Kind::Interleave(list) => {
                let branches = self.list("Interleave", list, level, sink_allowed)?;
                Node::Interleave { sinks: branches.iter().any(Node::sinks), branches }
            }
            Kind::Condition(condition) => {
                let predicate = condition
                    .predicate_filter
                    .as_ref()
                    .ok_or_else(|| Error::field("condition", "predicate_filter must be set"))?;
                Node::Condition {
                    predicate: Box::new(self.node(predicate, level + 1, false)?),
                    on_true: self.branch(condition.true_filter.as_deref(), level)?,
                    on_false: self.branch(condition.false_filter.as_deref(), level)?,
                }
            }
            Kind::Sink(set) => {
                must_be_true("sink", *set)?;
                if !sink_allowed {
                    return Err(Error::field("sink", "cannot be used within a condition"));
                }
                Node::Sink
            }
            Kind::PassAllFilter(set) => {
                must_be_true("pass_all_filter", *set)?;
                Node::PassAll
            }
            Kind::BlockAllFilter(set) => {
                must_be_true("block_all_filter", *set)?;
                Node::BlockAll
            }
            Kind::StripValueTransformer(set) => {
                must_be_true("strip_value_transformer", *set)?;
                Node::StripValue
            }
            Kind::RowKeyRegexFilter(pattern) => {
                if pattern.is_empty() {
                    return Err(Error::field("row_key_regex_filter", "argument must not be empty"));
                }
                Node::RowKeyRegex(self.regex("row_key_regex_filter", pattern)?)
            }
            Kind::FamilyNameRegexFilter(pattern) => {
                if pattern.contains(':') {
                    let what = "argument must not contain ':'";
                    return Err(Error::field("family_name_regex_filter", what));
                }
                Node::FamilyRegex(self.regex("family_name_regex_filter", pattern.as_bytes())?)
            }
            Kind::ColumnQualifierRegexFilter(pattern) => {
                Node::QualifierRegex(self.regex("column_qualifier_regex_filter", pattern)?)
            }
            Kind::ValueRegexFilter(pattern) => {
                Node::ValueRegex(self.regex("value_regex_filter", pattern)?)
            }
            Kind::RowSampleFilter(probability) => {
                if !(*probability > 0.0 && *probability < 1.0) {
                    return Err(Error::invalid_argument(
                        "row_sample_filter argument must be between 0.0 and 1.0",
                    ));
                }
                Node::RowSample(*probability)
            }
            Kind::ColumnRangeFilter(range) => column_range(range)?,
            Kind::TimestampRangeFilter(range) => timestamps(*range)?,
            Kind::ValueRangeFilter(range) => value_range(range)?,
            Kind::ValueBitmaskFilter(bitmask) => {
                if bitmask.mask.is_empty() {
                    return Err(Error::field("value_bitmask_filter", "mask must not be empty"));
                }
                Node::ValueBitmask(bitmask.mask.clone())
            }
            Kind::CellsPerRowOffsetFilter(count) => {
                let count = usize::try_from(*count).map_err(|_| {
                    Error::field("cells_per_row_offset_filter", "argument must be >= 0")
                })?;
                Node::RowOffset(count)
            }
            Kind::CellsPerRowLimitFilter(count) => {
                Node::RowLimit(positive("cells_per_row_limit_filter", *count)?)
            }
            Kind::CellsPerColumnLimitFilter(count) => {
                Node::ColumnLimit(positive("cells_per_column_limit_filter", *count)?)
            }
            Kind::ApplyLabelTransformer(label) => Node::Label(checked_label(label)?),
        })
    }

    fn list(
        &mut self,
        name: &str,
        list: &wire::Filters,
        level: usize,
        sink_allowed: bool,
    ) -> Result<Vec<Node>> {
        if list.filters.len() < 2 {
            let message = format!("{name} must contain at least two RowFilters");
            return Err(Error::invalid_argument(message));
        }
        list.filters.iter().map(|f| self.node(f, level + 1, sink_allowed)).collect()
    }

    fn chain(&mut self, list: &wire::Filters, level: usize, sink_allowed: bool) -> Result<Node> {
        let nodes = self.list("Chain", list, level, sink_allowed)?;
        if nodes.iter().filter(|node| node.labels()).count() > 1 {
            return Err(Error::field(
                "apply_label_transformer",
                "a Chain may have no more than one sub-filter which contains a label",
            ));
        }
        let mut steps = Vec::with_capacity(nodes.len());
        for node in nodes {
            match node {
                Node::Chain(inner) => steps.extend(inner),
                node => steps.push(node),
            }
        }
        Ok(Node::Chain(steps))
    }

    fn branch(
        &mut self,
        filter: Option<&wire::RowFilter>,
        level: usize,
    ) -> Result<Option<Box<Node>>> {
        filter.map(|filter| Ok(Box::new(self.node(filter, level + 1, false)?))).transpose()
    }

    fn regex(&mut self, field: &str, pattern: &[u8]) -> Result<Regex> {
        Regex::compile(pattern, &mut self.budget).map_err(|error| Error::field(field, error))
    }
}

fn must_be_true(field: &str, set: bool) -> Result<()> {
    if set { Ok(()) } else { Err(Error::invalid_argument(format!("{field} must be true if set"))) }
}

fn positive(field: &str, count: i32) -> Result<usize> {
    usize::try_from(count)
        .ok()
        .filter(|count| *count > 0)
        .ok_or_else(|| Error::field(field, "argument must be > 0"))
}

fn checked_label(label: &str) -> Result<String> {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    if label.is_empty() || !label.bytes().all(allowed) {
        return Err(Error::invalid_argument(format!(
            "apply_label_transformer must match RE2([a-z0-9\\-]+), but found {}",
            Shown(label)
        )));
    }
    if label.len() > LABEL_CHARS_MAX {
        return Err(Error::invalid_argument(format!(
            "apply_label_transformer must be at most {LABEL_CHARS_MAX} characters, but found {}",
            Shown(label)
        )));
    }
    Ok(label.into())
}

fn column_range(range: &ColumnRange) -> Result<Node> {
    use column_range::{EndQualifier, StartQualifier};
    const FIELD: &str = "column_range_filter";
    if range.family_name.is_empty() {
        return Err(Error::field(FIELD, "family_name must not be empty"));
    }
    let qualifiers = ByteRange {
        start: match &range.start_qualifier {
            Some(StartQualifier::StartQualifierClosed(start)) => closed_start(start),
            Some(StartQualifier::StartQualifierOpen(start)) => Bound::Excluded(start.clone()),
            None => Bound::Unbounded,
        },
        end: match &range.end_qualifier {
            Some(EndQualifier::EndQualifierClosed(end)) => Bound::Included(end.clone()),
            Some(EndQualifier::EndQualifierOpen(end)) => open_end(end),
            None => Bound::Unbounded,
        },
    };
    if qualifiers.is_inverted() {
        return Err(Error::field(FIELD, "start_qualifier must not be after end_qualifier"));
    }
    Ok(Node::ColumnRange { family: range.family_name.clone(), qualifiers })
}

fn value_range(range: &ValueRange) -> Result<Node> {
    use value_range::{EndValue, StartValue};
    let range = ByteRange {
        start: match &range.start_value {
            Some(StartValue::StartValueClosed(start)) => closed_start(start),
            Some(StartValue::StartValueOpen(start)) => Bound::Excluded(start.clone()),
            None => Bound::Unbounded,
        },
        end: match &range.end_value {
            Some(EndValue::EndValueClosed(end)) => Bound::Included(end.clone()),
            Some(EndValue::EndValueOpen(end)) => open_end(end),
            None => Bound::Unbounded,
        },
    };
    if range.is_inverted() {
        return Err(Error::field("value_range_filter", "start_value must not be after end_value"));
    }
    Ok(Node::ValueRange(range))
}

/// An inclusive start; the empty string starts everything.
fn closed_start(start: &Bytes) -> Bound<Bytes> {
    if start.is_empty() { Bound::Unbounded } else { Bound::Included(start.clone()) }
}

/// An exclusive end, taken as it stands: nothing sorts before the empty string.
fn open_end(end: &Bytes) -> Bound<Bytes> {
    Bound::Excluded(end.clone())
}

fn timestamps(range: WireTimestamps) -> Result<Node> {
    let (start, end) = (range.start_timestamp_micros, range.end_timestamp_micros);
    if end != 0 && start > end {
        return Err(Error::field(
            "timestamp_range_filter",
            format!("start {start} must not be after end {end}"),
        ));
    }
    Ok(Node::Timestamps(TimestampRange {
        // No cell has a negative timestamp, so a start of 0 leaves out nothing: said so, the read
        // below can tell that there is no lower bound.
        start: if start <= 0 { i64::MIN } else { start },
        end: if end == 0 { TIMESTAMP_MAX } else { end },
    }))
}
