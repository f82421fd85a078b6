//! The cell tombstones of one column, as its records pass by from the newest timestamp to the oldest.
//!
//! ```text
//! timestamps    9    8    7    6    5    4    3    2    1
//!               ├────────────────────────┤                      start 4, seq 7
//!               ├──────────────┤                                start 6, seq 9
//!                    ▲ here: below 9      ▲ here: below 7       what is hidden
//! ```
//!
//! A tombstone comes by at its last timestamp, so all that were met reach up to here, and where each ends is all that
//! is left to know. One that ends no earlier than another and hides no more is left out. So of those that are kept, whoever
//! ends first hides most, and the answer is the first of them, however many there are.

use std::collections::BTreeMap;

use crate::cell::{Seq, Timestamp};

/// What hides cells of a column at and behind the timestamp that its records have come to.
#[derive(Debug, Default)]
pub(crate) struct RangeTombstones {
    /// By start, its sequence. Both grow together.
    below: BTreeMap<Timestamp, Seq>,
}

impl RangeTombstones {
    /// For the next column.
    pub(crate) fn clear(&mut self) {
        self.below.clear();
    }

    /// The sequence below which records at `timestamp` are hidden; 0 where none are. Timestamps must not grow from one
    /// call to the next, in a column, of this or of [`Self::add`].
    #[inline]
    pub(crate) fn hidden_below(&mut self, timestamp: Timestamp) -> Seq {
        while let Some(first) = self.below.last_entry() {
            if *first.key() <= timestamp {
                return *first.get();
            }
            first.remove();
        }
        0
    }

    /// Adds one that hides what is below `seq` from `last` down to `start`. Gives the sequence of another that hides as much or
    /// more, where there is one.
    pub(crate) fn add(&mut self, start: Timestamp, last: Timestamp, seq: Seq) -> Option<Seq> {
        if self.hidden_below(last) >= seq {
            // Maybe not all the way down.
            let wider = self.below.range(..=start).next_back().map(|(_, wider)| *wider);
            if let Some(wider) = wider.filter(|wider| *wider >= seq) {
                return Some(wider);
            }
        }
        if start > last {
            return None;
        }
        while let Some((&end, &other)) = self.below.range(start..).next()
            && other <= seq
        {
            self.below.remove(&end);
        }
        self.below.insert(start, seq);
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn they_hide_what_each_of_them_hides(
            mut met in prop::collection::vec((0i64..12, 0i64..12, 1u64..12, any::<bool>()), 0..40),
        ) {
            // (last, start, seq): newest timestamps first, as records come.
            met.sort_by_key(|(last, _, seq, _)| std::cmp::Reverse((*last, *seq)));
            let mut ranges = RangeTombstones::default();
            let mut seen: Vec<(i64, i64, u64)> = Vec::new();
            for (last, start, seq, is_tombstone) in met {
                let before = seen.iter().filter(|(l, s, _)| *s <= last && last <= *l);
                let below = before.map(|(_, _, seq)| *seq).max().unwrap_or(0);
                prop_assert_eq!(ranges.hidden_below(last), below);
                if is_tombstone {
                    let as_much = |(l, s, q): &&(i64, i64, u64)| *s <= start && last <= *l && *q >= seq;
                    let covered = seen.iter().any(|of| start <= last && as_much(&of));
                    let said = ranges.add(start, last, seq);
                    if start <= last {
                        prop_assert_eq!(said.is_some(), covered);
                        prop_assert!(said.is_none_or(|by| by >= seq));
                    }
                    seen.push((last, start, seq));
                }
            }
        }
    }

    #[test]
    fn what_hides_no_more_than_another_takes_no_memory() {
        let mut ranges = RangeTombstones::default();
        // Cut off ever later: each hides less than the one before, in time, and more, in sequence.
        for n in (0..1_000).rev() {
            assert_eq!(ranges.add(n, i64::MAX, n as u64 + 1), None);
        }
        assert_eq!(ranges.below.len(), 1_000);
        assert_eq!(ranges.hidden_below(i64::MAX), 1_000);
        assert_eq!(ranges.hidden_below(499), 500);
        assert_eq!(ranges.below.len(), 500);
        // One that ends behind all of them and is newer.
        assert_eq!(ranges.add(-1, 499, 2_000), None);
        assert_eq!(ranges.below.len(), 1);
        assert_eq!(ranges.add(3, 400, 1_999), Some(2_000));
        assert_eq!(ranges.hidden_below(-1), 2_000);
        assert_eq!(ranges.hidden_below(-2), 0);
    }
}
