//! Row keys that divide a table into parts of similar size, with the bytes before each.
//!
//! ```text
//! tablets     [ ............ g )[ ............... p )[ ....... )
//! samples           c     g          j     m     p          ""
//! bytes before      60M   110M       170M  ...   ...        whole table
//! ```

use bytes::Bytes;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
use tepui_engine::cell::RowRange;
use v2::row_range::EndKey;

use crate::error::{Error, Result};
use crate::rowset;

/// Bytes on disk between two samples within a tablet. Callers read the parts in parallel: smaller
/// parts than this cost more to start than to read, larger ones leave workers idle at the end.
pub const SAMPLE_PART_BYTES: u64 = 64 << 20;

/// What is known of one tablet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TabletSample {
    /// The first row after the tablet; empty where it has no end.
    pub end: Bytes,
    /// Rows within the tablet, each with the tablet's bytes before it.
    pub rows: Vec<(Bytes, u64)>,
    /// The tablet's bytes.
    pub bytes: u64,
}

/// The samples of a table from those of its tablets, in row order. Keys and offsets ascend, and the
/// last sample is the empty key with the bytes of the whole table.
pub fn sample(tablets: impl IntoIterator<Item = TabletSample>) -> Vec<v2::SampleRowKeysResponse> {
    let mut samples: Vec<v2::SampleRowKeysResponse> = Vec::new();
    // Figures of a tablet are taken while it is written to, so they need not agree to the byte.
    let mut before: u64 = 0;
    for tablet in tablets {
        let tablet_end = before.saturating_add(tablet.bytes);
        let start = before;
        for (row, bytes) in tablet.rows {
            let in_order = samples.last().is_none_or(|last| row > last.row_key);
            if row.is_empty() || !in_order || (!tablet.end.is_empty() && row >= tablet.end) {
                continue;
            }
            before = start.saturating_add(bytes).clamp(before, tablet_end);
            samples.push(response(row, before));
        }
        before = tablet_end;
        if !tablet.end.is_empty() {
            samples.push(response(tablet.end, before));
        }
    }
    samples.push(response(Bytes::new(), before));
    samples
}

/// The part of `samples` that divides a range: those between its ends, and its end as the last, with the bytes
/// before the first sample that is not before it, or all where there is none. Offsets count from the last sample that is not behind the
/// range's start. A range without an end ends as the samples do.
pub fn within(
    samples: Vec<v2::SampleRowKeysResponse>,
    range: &v2::RowRange,
) -> Result<Vec<v2::SampleRowKeysResponse>> {
    let RowRange { start, .. } = rows_of(range)?;
    let end = match &range.end_key {
        Some(EndKey::EndKeyOpen(key) | EndKey::EndKeyClosed(key)) => key.clone(),
        None => Bytes::new(),
    };
    let mut divided = Vec::new();
    let (mut before, mut last) = (0_i64, 0_i64);
    for sample in samples {
        let ends_all = sample.row_key.is_empty();
        last = sample.offset_bytes;
        if !ends_all && sample.row_key <= start {
            before = last;
            continue;
        }
        if !end.is_empty() && (ends_all || sample.row_key >= end) {
            break;
        }
        let offset_bytes = last.saturating_sub(before);
        divided.push(v2::SampleRowKeysResponse { offset_bytes, ..sample });
    }
    if !end.is_empty() {
        let offset_bytes = last.saturating_sub(before);
        divided.push(v2::SampleRowKeysResponse { row_key: end, offset_bytes });
    }
    Ok(divided)
}

/// The rows of a range that a request names.
pub fn rows_of(range: &v2::RowRange) -> Result<RowRange> {
    rowset::row_range(range)
        .map_err(|what| Error::invalid_argument(format!("Error in field 'row_range' : {what}")))
}

fn response(row_key: Bytes, bytes: u64) -> v2::SampleRowKeysResponse {
    let offset_bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
    v2::SampleRowKeysResponse { row_key, offset_bytes }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use v2::row_range::StartKey;

    use super::*;

    fn tablet(end: &str, rows: &[(&str, u64)], bytes: u64) -> TabletSample {
        let rows = rows.iter().map(|(row, at)| (Bytes::from((*row).to_owned()), *at)).collect();
        TabletSample { end: Bytes::from(end.to_owned()), rows, bytes }
    }

    fn texts(samples: &[v2::SampleRowKeysResponse]) -> Vec<(&str, i64)> {
        samples.iter().map(|s| (std::str::from_utf8(&s.row_key).unwrap(), s.offset_bytes)).collect()
    }

    #[test]
    fn an_empty_table_has_its_end() {
        assert_eq!(texts(&sample([tablet("", &[], 0)])), [("", 0)]);
    }

    fn part(start: &'static str, end: Option<EndKey>) -> Vec<(String, i64)> {
        let all = sample([tablet("c", &[], 1), tablet("f", &[("e", 3)], 5), tablet("", &[], 9)]);
        part_of(all, start, end)
    }

    fn part_of(
        all: Vec<v2::SampleRowKeysResponse>,
        start: &'static str,
        end: Option<EndKey>,
    ) -> Vec<(String, i64)> {
        let start_key = Some(StartKey::StartKeyClosed(Bytes::from_static(start.as_bytes())));
        let range = v2::RowRange { start_key, end_key: end };
        let part = within(all, &range).unwrap();
        texts(&part).into_iter().map(|(key, bytes)| (key.to_owned(), bytes)).collect()
    }

    fn open(key: &'static str) -> Option<EndKey> {
        Some(EndKey::EndKeyOpen(Bytes::from_static(key.as_bytes())))
    }

    fn owned(part: &[(&str, i64)]) -> Vec<(String, i64)> {
        part.iter().map(|(key, bytes)| ((*key).to_owned(), *bytes)).collect()
    }

    #[test]
    fn a_range_is_divided_by_the_samples_within_it_and_counts_from_the_one_before_it() {
        assert_eq!(part("", None), owned(&[("c", 1), ("e", 4), ("f", 6), ("", 15)]));
        assert_eq!(part("c", open("f")), owned(&[("e", 3), ("f", 5)]));
        assert_eq!(part("c", open("d")), owned(&[("d", 3)]));
        assert_eq!(part("d", open("z")), owned(&[("e", 3), ("f", 5), ("z", 14)]));
        assert_eq!(part("x", None), owned(&[("", 9)]));
        let closed = Some(EndKey::EndKeyClosed(Bytes::from_static(b"e")));
        assert_eq!(part("a", closed), owned(&[("c", 1), ("e", 4)]));
    }

    #[test]
    fn a_range_ends_with_its_end_though_the_samples_of_a_view_end_before_it() {
        let view =
            || vec![response(Bytes::from_static(b"c"), 1), response(Bytes::from_static(b"e"), 4)];
        assert_eq!(part_of(view(), "b", open("z")), owned(&[("c", 1), ("e", 4), ("z", 4)]));
        assert_eq!(part_of(view(), "d", open("z")), owned(&[("e", 3), ("z", 3)]));
        assert_eq!(part_of(view(), "x", open("z")), owned(&[("z", 0)]));
    }

    #[test]
    fn a_range_that_ends_before_it_starts_is_refused() {
        let start_key = Some(StartKey::StartKeyClosed(Bytes::from_static(b"b")));
        let refused = within(sample([]), &v2::RowRange { start_key, end_key: open("a") });
        assert!(refused.unwrap_err().message().contains("row_range"));
    }

    #[test]
    fn offsets_add_up_over_tablets() {
        let samples = sample([
            tablet("g", &[("c", 60)], 110),
            tablet("p", &[], 0),
            tablet("", &[("q", 5), ("r", 9)], 20),
        ]);
        assert_eq!(
            texts(&samples),
            [("c", 60), ("g", 110), ("p", 110), ("q", 115), ("r", 119), ("", 130)]
        );
    }

    #[test]
    fn figures_that_disagree_still_ascend() {
        let samples = sample([tablet("g", &[("c", 80), ("b", 90), ("d", 70), ("h", 99)], 60)]);
        assert_eq!(texts(&samples)[..3], [("c", 60), ("d", 60), ("g", 60)]);
    }

    proptest! {
        #[test]
        fn keys_and_offsets_ascend_whatever_tablets_say(
            rows in prop::collection::vec(("[a-c]{0,2}", any::<u64>()), 0..8),
            bytes in any::<u64>(),
            more in any::<u64>(),
        ) {
            let rows: Vec<_> = rows.iter().map(|(row, at)| (row.as_str(), *at)).collect();
            let samples = sample([tablet("b", &rows, bytes), tablet("", &rows, more)]);
            for pair in samples.windows(2) {
                prop_assert!(pair[0].offset_bytes <= pair[1].offset_bytes);
                prop_assert!(pair[1].row_key.is_empty() || pair[0].row_key < pair[1].row_key);
            }
            prop_assert!(samples.last().is_some_and(|s| s.row_key.is_empty()));
        }
    }
}
