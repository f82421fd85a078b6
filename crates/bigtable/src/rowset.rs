//! Row sets of the API, normalized: what a read walks through.
//!
//! A request names single rows and ranges in any order, overlapping or not, with open and closed
//! bounds. A read answers each row once and in order, so the set becomes a list of spans that are
//! disjoint and ascend. Single rows stay single rows, since the engine has a faster way to read them.

use bytes::Bytes;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::row_range::{EndKey, StartKey};
use smallvec::{SmallVec, smallvec};
use tepui_engine::cell::RowRange;

use crate::error::{Error, Result};
use crate::limits;

/// One part of a normalized row set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RowSpan {
    /// One row.
    Row(Bytes),
    /// A range that is not empty.
    Range(RowRange),
}

/// Spans that are disjoint and ascend. Most reads are of one.
pub type RowSpans = SmallVec<[RowSpan; 1]>;

impl RowSpan {
    fn start(&self) -> &Bytes {
        match self {
            Self::Row(row) => row,
            Self::Range(range) => &range.start,
        }
    }
}

/// The spans of a row set, disjoint and ascending. No set, and a set without rows and ranges, mean
/// every row; a set of empty ranges alone means none.
pub fn normalize(rows: Option<&v2::RowSet>) -> Result<RowSpans> {
    let Some(rows) = rows.filter(|r| !(r.row_keys.is_empty() && r.row_ranges.is_empty())) else {
        return Ok(smallvec![RowSpan::Range(RowRange::all())]);
    };
    let mut spans = RowSpans::with_capacity(rows.row_keys.len() + rows.row_ranges.len());
    for (index, row) in rows.row_keys.iter().enumerate() {
        limits::check_row_key(row).map_err(|e| in_element("row_keys", index, e.message()))?;
        spans.push(RowSpan::Row(row.clone()));
    }
    for (index, range) in rows.row_ranges.iter().enumerate() {
        let range = row_range(range).map_err(|e| in_element("row_ranges", index, &e))?;
        if is_one_row(&range) {
            spans.push(RowSpan::Row(range.start));
        } else if !range.is_empty() {
            spans.push(RowSpan::Range(range));
        }
    }
    if spans.len() < 2 {
        return Ok(spans);
    }
    // A range goes before a row of the same start, so that it swallows the row.
    spans.sort_unstable_by(|a, b| {
        a.start()
            .cmp(b.start())
            .then(matches!(a, RowSpan::Row(_)).cmp(&matches!(b, RowSpan::Row(_))))
    });
    spans.dedup_by(|next, last| absorb(last, next));
    Ok(spans)
}

/// The parts of spans that lie in some of the ranges; both are disjoint and ascend, and so does what
/// is returned.
pub fn intersect(spans: &[RowSpan], ranges: &[RowRange]) -> RowSpans {
    let mut parts = RowSpans::with_capacity(spans.len());
    // Those that do not end before the span in hand: what does, ends before all that follow.
    let mut left = ranges;
    for span in spans {
        let is_before = |range: &RowRange| !range.end.is_empty() && range.end <= *span.start();
        // Of many spans, most lie where the one before does; of one, the place may be anywhere.
        if left.first().is_some_and(is_before) {
            let before = left.partition_point(is_before);
            left = left.get(before..).unwrap_or_default();
        }
        let mut ranges = left.iter();
        match span {
            RowSpan::Row(row) => {
                if ranges.next().is_some_and(|range| range.contains(row)) {
                    parts.push(RowSpan::Row(row.clone()));
                }
            }
            RowSpan::Range(own) => parts.extend(
                ranges
                    .take_while(|range| own.end.is_empty() || range.start < own.end)
                    .map(|range| range.intersect(own))
                    .filter(|part| !part.is_empty())
                    .map(RowSpan::Range),
            ),
        }
    }
    parts
}

/// Makes `last` cover `next`, which does not start before it, where the two can be one span.
fn absorb(last: &mut RowSpan, next: &RowSpan) -> bool {
    match (last, next) {
        (RowSpan::Row(last), RowSpan::Row(next)) => last == next,
        (RowSpan::Row(_), RowSpan::Range(_)) => false,
        (RowSpan::Range(last), RowSpan::Row(next)) => last.contains(next),
        (RowSpan::Range(last), RowSpan::Range(next)) => {
            if last.end.is_empty() {
                return true;
            }
            if next.start > last.end {
                return false;
            }
            if next.end.is_empty() || next.end > last.end {
                last.end = next.end.clone();
            }
            true
        }
    }
}

fn in_element(list: &str, index: usize, what: &str) -> Error {
    Error::invalid_argument(format!(
        "Error in field 'rows' : Error in field '{list}' list : Error in element #{index} : {what}"
    ))
}

/// The range `[start, end)` of a range of the API; an empty key at either end means no bound there.
pub(crate) fn row_range(range: &v2::RowRange) -> Result<RowRange, String> {
    let (start_name, start) = match &range.start_key {
        None => ("start_key", &Bytes::new()),
        Some(StartKey::StartKeyClosed(key)) => ("start_key_closed", key),
        Some(StartKey::StartKeyOpen(key)) => ("start_key_open", key),
    };
    let (end_name, end) = match &range.end_key {
        None => ("end_key", &Bytes::new()),
        Some(EndKey::EndKeyOpen(key)) => ("end_key_open", key),
        Some(EndKey::EndKeyClosed(key)) => ("end_key_closed", key),
    };
    if !end.is_empty() && start > end {
        return Err(format!("{start_name} must be less than {end_name}"));
    }
    let start = match &range.start_key {
        Some(StartKey::StartKeyOpen(key)) if !key.is_empty() => successor(key),
        _ => start.clone(),
    };
    let end = match &range.end_key {
        Some(EndKey::EndKeyClosed(key)) if !key.is_empty() => successor(key),
        _ => end.clone(),
    };
    Ok(RowRange { start, end })
}

/// Whether the range is `[row, successor(row))`, as some clients ask for a single row. The empty key is
/// no row.
fn is_one_row(range: &RowRange) -> bool {
    !range.start.is_empty() && range.end.strip_suffix(&[0]) == Some(range.start.as_ref())
}

/// The first key after `key`.
fn successor(key: &[u8]) -> Bytes {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    next.into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::error::Code;

    fn key(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    fn range(start_key: Option<StartKey>, end_key: Option<EndKey>) -> v2::RowRange {
        v2::RowRange { start_key, end_key }
    }

    fn set(keys: &[&'static str], ranges: &[v2::RowRange]) -> v2::RowSet {
        v2::RowSet {
            row_keys: keys.iter().copied().map(key).collect(),
            row_ranges: ranges.to_vec(),
        }
    }

    fn span(start: &'static str, end: &'static str) -> RowSpan {
        RowSpan::Range(RowRange::new(key(start), key(end)))
    }

    #[test]
    fn no_set_and_an_empty_set_mean_every_row() {
        let all = Ok(smallvec![RowSpan::Range(RowRange::all())]);
        assert_eq!(normalize(None), all);
        assert_eq!(normalize(Some(&v2::RowSet::default())), all);
        assert_eq!(normalize(Some(&set(&[], &[range(None, None)]))), all);
    }

    #[test]
    fn rows_and_ranges_are_sorted_merged_and_deduplicated() {
        let given = set(
            &["m", "b", "z", "m", "d"],
            &[
                range(Some(StartKey::StartKeyClosed(key("c"))), Some(EndKey::EndKeyOpen(key("f")))),
                range(Some(StartKey::StartKeyClosed(key("a"))), Some(EndKey::EndKeyOpen(key("c")))),
                range(Some(StartKey::StartKeyOpen(key("p"))), Some(EndKey::EndKeyClosed(key("q")))),
            ],
        );
        assert_eq!(
            normalize(Some(&given)),
            Ok(smallvec![
                span("a", "f"),
                RowSpan::Row(key("m")),
                span("p\0", "q\0"),
                RowSpan::Row(key("z")),
            ])
        );
    }

    #[test]
    fn empty_bounds_are_no_bounds() {
        let given = [
            range(Some(StartKey::StartKeyOpen(key(""))), Some(EndKey::EndKeyOpen(key("")))),
            range(Some(StartKey::StartKeyClosed(key(""))), Some(EndKey::EndKeyClosed(key("")))),
        ];
        for range in given {
            let normal = normalize(Some(&set(&[], &[range])));
            assert_eq!(normal, Ok(smallvec![RowSpan::Range(RowRange::all())]));
        }
    }

    #[test]
    fn a_range_of_no_rows_is_no_span_and_does_not_mean_all() {
        let nothing =
            range(Some(StartKey::StartKeyClosed(key("a"))), Some(EndKey::EndKeyOpen(key("a"))));
        assert_eq!(normalize(Some(&set(&[], &[nothing]))), Ok(smallvec![]));
        let one =
            range(Some(StartKey::StartKeyClosed(key("a"))), Some(EndKey::EndKeyClosed(key("a"))));
        assert_eq!(normalize(Some(&set(&[], &[one]))), Ok(smallvec![RowSpan::Row(key("a"))]));
    }

    #[test]
    fn bad_sets_are_refused_with_the_element_named() {
        let inverted =
            range(Some(StartKey::StartKeyClosed(key("b"))), Some(EndKey::EndKeyOpen(key("a"))));
        let inverted_open =
            range(Some(StartKey::StartKeyOpen(key("b"))), Some(EndKey::EndKeyClosed(key("a"))));
        let long = v2::RowSet { row_keys: vec![vec![1; 4_097].into()], row_ranges: vec![] };
        let cases = [
            (set(&["a", ""], &[]), "Error in element #1 : Row keys must be non-empty"),
            (long, "limit 4096 bytes"),
            (
                set(&[], &[range(None, None), inverted]),
                "Error in element #1 : start_key_closed must be less than end_key_open",
            ),
            (
                set(&[], &[inverted_open]),
                "Error in element #0 : start_key_open must be less than end_key_closed",
            ),
        ];
        for (given, text) in cases {
            let error = normalize(Some(&given)).unwrap_err();
            assert_eq!(error.kind(), Code::InvalidArgument);
            assert!(error.message().contains(text), "{error}");
        }
    }

    /// Keys over a tiny alphabet with the bytes that make trouble at bounds.
    fn any_key() -> impl Strategy<Value = Bytes> {
        prop::collection::vec(prop::sample::select(vec![0_u8, 1, b'a', 0xFF]), 1..3)
            .prop_map(Bytes::from)
    }

    fn any_range() -> impl Strategy<Value = v2::RowRange> {
        let start = prop::option::of((any::<bool>(), any_key()));
        let end = prop::option::of((any::<bool>(), any_key()));
        (start, end).prop_map(|(start, end)| {
            let (start, end) = match (start, end) {
                (Some(s), Some(e)) if s.1 > e.1 => (Some(e), Some(s)),
                other => other,
            };
            range(
                start.map(|(open, key)| {
                    if open { StartKey::StartKeyOpen(key) } else { StartKey::StartKeyClosed(key) }
                }),
                end.map(
                    |(open, key)| {
                        if open { EndKey::EndKeyOpen(key) } else { EndKey::EndKeyClosed(key) }
                    },
                ),
            )
        })
    }

    /// Whether the set names the row, by the words of the API's documentation.
    fn names(set: &v2::RowSet, row: &Bytes) -> bool {
        let in_range = |range: &v2::RowRange| {
            (match &range.start_key {
                None => true,
                Some(StartKey::StartKeyClosed(key)) => row >= key,
                Some(StartKey::StartKeyOpen(key)) => row > key,
            }) && (match &range.end_key {
                None => true,
                Some(EndKey::EndKeyClosed(key)) => row <= key,
                Some(EndKey::EndKeyOpen(key)) => row < key,
            })
        };
        set.row_keys.is_empty() && set.row_ranges.is_empty()
            || set.row_keys.contains(row)
            || set.row_ranges.iter().any(in_range)
    }

    fn covers(span: &RowSpan, row: &Bytes) -> bool {
        match span {
            RowSpan::Row(key) => key == row,
            RowSpan::Range(range) => range.contains(row),
        }
    }

    proptest! {
        #[test]
        fn normalized_spans_cover_exactly_the_named_rows_once_and_in_order(
            row_keys in prop::collection::vec(any_key(), 0..4),
            row_ranges in prop::collection::vec(any_range(), 0..4),
            rows in prop::collection::vec(
                prop::collection::vec(prop::sample::select(vec![0_u8, 1, b'a', 0xFF]), 1..4)
                    .prop_map(Bytes::from),
                40,
            ),
        ) {
            let set = v2::RowSet { row_keys, row_ranges };
            let spans = normalize(Some(&set)).unwrap();
            for row in rows.iter().chain(&set.row_keys) {
                let covered = spans.iter().filter(|s| covers(s, row)).count();
                prop_assert_eq!(covered, usize::from(names(&set, row)), "{:?} in {:?}", row, &spans);
            }
            for pair in spans.windows(2) {
                prop_assert!(pair[0].start() < pair[1].start());
                if let RowSpan::Range(range) = &pair[0] {
                    prop_assert!(!range.end.is_empty() && range.end <= *pair[1].start());
                }
            }
        }

        #[test]
        fn an_intersection_covers_what_both_cover(
            row_keys in prop::collection::vec(any_key(), 0..4),
            row_ranges in prop::collection::vec(any_range(), 1..4),
            others in prop::collection::vec(any_range(), 1..20),
            rows in prop::collection::vec(any_key(), 40),
        ) {
            let spans = normalize(Some(&v2::RowSet { row_keys, row_ranges })).unwrap();
            let other = v2::RowSet { row_keys: vec![], row_ranges: others };
            let ranges: Vec<RowRange> = normalize(Some(&other))
                .unwrap()
                .into_iter()
                .map(|span| match span {
                    RowSpan::Row(row) => RowRange::row(&row),
                    RowSpan::Range(range) => range,
                })
                .collect();
            let parts = intersect(&spans, &ranges);
            for row in &rows {
                let both = spans.iter().any(|s| covers(s, row)) && ranges.iter().any(|r| r.contains(row));
                let covered = parts.iter().filter(|s| covers(s, row)).count();
                prop_assert_eq!(covered, usize::from(both), "{:?} in {:?}", row, &parts);
            }
            for pair in parts.windows(2) {
                prop_assert!(pair[0].start() < pair[1].start());
            }
        }
    }
}
