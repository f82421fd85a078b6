//! Ranges of bytes, of qualifiers and of values, and lists of them.
//!
//! A list is sorted, and its ranges neither touch nor overlap: the form in which a projection names
//! qualifiers ([`tepui_engine::read::FamilyProjection`]), and in which an authorized view has them.

use std::cmp::Ordering;
use std::ops::Bound;

use bytes::Bytes;
use tepui_engine::cell::RowRange;

/// A range of byte strings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ByteRange {
    pub(crate) start: Bound<Bytes>,
    pub(crate) end: Bound<Bytes>,
}

impl ByteRange {
    /// Every byte string.
    pub(crate) const ALL: Self = Self { start: Bound::Unbounded, end: Bound::Unbounded };

    /// One byte string.
    pub(crate) fn point(bytes: Bytes) -> Self {
        Self { start: Bound::Included(bytes.clone()), end: Bound::Included(bytes) }
    }

    /// Whether it is no more than one byte string.
    pub(crate) fn is_point(&self) -> bool {
        matches!((&self.start, &self.end), (Bound::Included(start), Bound::Included(end)) if start == end)
    }

    /// The byte strings that start with `prefix`.
    pub(crate) fn prefix(prefix: &[u8]) -> Self {
        let RowRange { start, end } = RowRange::prefix(prefix);
        let end = if end.is_empty() { Bound::Unbounded } else { Bound::Excluded(end) };
        Self { start: Bound::Included(start), end }
    }

    /// The same range of row keys, with an inclusive start and an exclusive end: the least byte string after `k` is
    /// `k` and a zero byte.
    pub(crate) fn into_row_range(self) -> RowRange {
        let after = |key: &[u8]| Bytes::from([key, &[0]].concat());
        let start = match self.start {
            Bound::Included(start) => start,
            Bound::Excluded(start) => after(&start),
            Bound::Unbounded => Bytes::new(),
        };
        let end = match self.end {
            Bound::Excluded(end) => end,
            Bound::Included(end) => after(&end),
            Bound::Unbounded => Bytes::new(),
        };
        RowRange { start, end }
    }

    /// Bytes of the longer bound: no more of anything are compared with it.
    pub(crate) fn bound_len(&self) -> usize {
        let len = |bound: &Bound<Bytes>| match bound {
            Bound::Included(bytes) | Bound::Excluded(bytes) => bytes.len(),
            Bound::Unbounded => 0,
        };
        len(&self.start).max(len(&self.end))
    }

    pub(crate) fn contains(&self, bytes: &[u8]) -> bool {
        let after_start = match &self.start {
            Bound::Included(start) => bytes >= start.as_ref(),
            Bound::Excluded(start) => bytes > start.as_ref(),
            Bound::Unbounded => true,
        };
        after_start
            && match &self.end {
                Bound::Included(end) => bytes <= end.as_ref(),
                Bound::Excluded(end) => bytes < end.as_ref(),
                Bound::Unbounded => true,
            }
    }

    /// Whether the start is beyond the end, which no client means. A start at the end that one of the
    /// bounds leaves out is merely empty.
    pub(crate) fn is_inverted(&self) -> bool {
        use Bound::{Excluded, Included};
        match (&self.start, &self.end) {
            (Included(start) | Excluded(start), Included(end) | Excluded(end)) => start > end,
            _ => false,
        }
    }

    /// Whether no byte string can be in it.
    pub(crate) fn is_empty(&self) -> bool {
        use Bound::{Excluded, Included};
        match (&self.start, &self.end) {
            (Included(start), Included(end)) => start > end,
            (Included(start) | Excluded(start), Excluded(end))
            | (Excluded(start), Included(end)) => start >= end,
            _ => false,
        }
    }

    fn intersect(&self, other: &Self) -> Option<Self> {
        let start = if cmp_start(&self.start, &other.start).is_ge() { self } else { other };
        let end = if cmp_end(&self.end, &other.end).is_le() { self } else { other };
        let both = Self { start: start.start.clone(), end: end.end.clone() };
        (!both.is_empty()).then_some(both)
    }

    /// Whether `next`, which starts no earlier, starts before or right where this one ends.
    fn reaches(&self, next: &Self) -> bool {
        use Bound::{Excluded, Included, Unbounded};
        match (&self.end, &next.start) {
            (Unbounded, _) | (_, Unbounded) => true,
            (Excluded(end), Excluded(start)) => start < end,
            (Included(end) | Excluded(end), Included(start) | Excluded(start)) => start <= end,
        }
    }
}

fn cmp_start(a: &Bound<Bytes>, b: &Bound<Bytes>) -> Ordering {
    use Bound::{Excluded, Included, Unbounded};
    match (a, b) {
        (Unbounded, Unbounded) => Ordering::Equal,
        (Unbounded, _) => Ordering::Less,
        (_, Unbounded) => Ordering::Greater,
        (Included(a), Excluded(b)) => a.cmp(b).then(Ordering::Less),
        (Excluded(a), Included(b)) => a.cmp(b).then(Ordering::Greater),
        (Included(a), Included(b)) | (Excluded(a), Excluded(b)) => a.cmp(b),
    }
}

fn cmp_end(a: &Bound<Bytes>, b: &Bound<Bytes>) -> Ordering {
    use Bound::{Excluded, Included, Unbounded};
    match (a, b) {
        (Unbounded, Unbounded) => Ordering::Equal,
        (Unbounded, _) => Ordering::Greater,
        (_, Unbounded) => Ordering::Less,
        (Included(a), Excluded(b)) => a.cmp(b).then(Ordering::Greater),
        (Excluded(a), Included(b)) => a.cmp(b).then(Ordering::Less),
        (Included(a), Included(b)) | (Excluded(a), Excluded(b)) => a.cmp(b),
    }
}

/// The list of what is in any of `ranges`.
pub(crate) fn union(mut ranges: Vec<ByteRange>) -> Vec<ByteRange> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_by(|a, b| cmp_start(&a.start, &b.start));
    let mut list: Vec<ByteRange> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match list.last_mut() {
            Some(last) if last.reaches(&range) => {
                if cmp_end(&range.end, &last.end).is_gt() {
                    last.end = range.end;
                }
            }
            _ => list.push(range),
        }
    }
    list
}

/// The list of what is in both lists.
pub(crate) fn intersect(a: &[ByteRange], b: &[ByteRange]) -> Vec<ByteRange> {
    let (mut a, mut b) = (a.iter().peekable(), b.iter().peekable());
    let mut list = Vec::new();
    while let (Some(x), Some(y)) = (a.peek(), b.peek()) {
        list.extend(x.intersect(y));
        if cmp_end(&x.end, &y.end).is_lt() {
            a.next();
        } else {
            b.next();
        }
    }
    list
}

/// Whether the list holds every byte string.
pub(crate) fn is_all(list: &[ByteRange]) -> bool {
    let from_the_start = |range: &ByteRange| match &range.start {
        Bound::Included(start) => start.is_empty(),
        Bound::Excluded(_) => false,
        Bound::Unbounded => true,
    };
    matches!(list, [range] if range.end == Bound::Unbounded && from_the_start(range))
}

/// One range around the whole list.
pub(crate) fn hull(list: &[ByteRange]) -> Option<ByteRange> {
    let (first, last) = (list.first()?, list.last()?);
    Some(ByteRange { start: first.start.clone(), end: last.end.clone() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bound() -> impl Strategy<Value = Bound<Bytes>> {
        let bytes = "[ab]{0,2}".prop_map(Bytes::from);
        prop_oneof![
            bytes.clone().prop_map(Bound::Included),
            bytes.prop_map(Bound::Excluded),
            Just(Bound::Unbounded),
        ]
    }

    fn ranges() -> impl Strategy<Value = Vec<ByteRange>> {
        prop::collection::vec(
            (bound(), bound()).prop_map(|(start, end)| ByteRange { start, end }),
            0..5,
        )
    }

    fn in_any(list: &[ByteRange], text: &str) -> bool {
        list.iter().any(|range| range.contains(text.as_bytes()))
    }

    proptest! {
        #[test]
        fn lists_hold_what_their_ranges_hold(a in ranges(), b in ranges(), text in "[abc]{0,3}") {
            let (list_a, list_b) = (union(a.clone()), union(b.clone()));
            prop_assert_eq!(in_any(&list_a, &text), in_any(&a, &text));
            let both = intersect(&list_a, &list_b);
            prop_assert_eq!(in_any(&both, &text), in_any(&a, &text) && in_any(&b, &text));
            for list in [&list_a, &both] {
                for pair in list.windows(2) {
                    prop_assert!(!pair[0].reaches(&pair[1]), "{:?}", list);
                    prop_assert!(cmp_start(&pair[0].start, &pair[1].start).is_lt());
                }
                if in_any(list, &text) {
                    prop_assert!(hull(list).unwrap().contains(text.as_bytes()));
                }
            }
        }
    }

    #[test]
    fn prefix_ranges_hold_what_starts_so() {
        assert!(ByteRange::prefix(b"a\xFF").contains(b"a\xFF\xFF"));
        assert!(!ByteRange::prefix(b"a\xFF").contains(b"b"));
        assert!(ByteRange::prefix(b"\xFF").contains(b"\xFF\xFF"));
        assert_eq!(ByteRange::prefix(b"").end, Bound::Unbounded);
    }

    #[test]
    fn only_a_list_without_bounds_holds_everything() {
        assert!(is_all(&[ByteRange::ALL]) && is_all(&[ByteRange::prefix(b"")]));
        assert!(!is_all(&[]) && !is_all(&[ByteRange::prefix(b"\xFF")]));
        assert!(!is_all(&[ByteRange {
            start: Bound::Excluded(Bytes::new()),
            end: Bound::Unbounded
        }]));
    }

    #[test]
    fn equal_bounds_are_empty_and_not_inverted() {
        let at = |s: &'static str| Bytes::from_static(s.as_bytes());
        let open = ByteRange { start: Bound::Included(at("a")), end: Bound::Excluded(at("a")) };
        assert!(open.is_empty() && !open.is_inverted());
        let back = ByteRange { start: Bound::Included(at("b")), end: Bound::Included(at("a")) };
        assert!(back.is_empty() && back.is_inverted());
    }
}
