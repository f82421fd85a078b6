//! Which tablet holds what: the tablets of a table in row order, and row sets laid over them.
//!
//! ```text
//! tablets:   [ "" ──────── "g" ) [ "g" ───────── "p" ) [ "p" ───────── no end )
//! spans:          b    [ e ──────────── k )         [ o ────── r )
//! pieces:         b    [ e─ g )[ g ──── k )         [ o p )[ p r )
//! ```

use bytes::Bytes;
use smallvec::SmallVec;
use tepui_engine::cell::RowRange;

use crate::error::{Error, Result};
use crate::rowset::RowSpan;

/// The tablets of a table: their ranges cover every row once. `T` is a handle of a tablet.
#[derive(Debug)]
pub struct TabletMap<T> {
    /// By range, ascending.
    tablets: Vec<(RowRange, T)>,
}

/// A part of a read that one tablet answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece<T> {
    /// One row.
    Row(T, Bytes),
    /// A range within the tablet's own.
    Range(T, RowRange),
}

/// The pieces of a read as a stack: the one that is answered next is the last. Most reads are of one.
pub type Pieces<T> = SmallVec<[Piece<T>; 1]>;

impl<T> TabletMap<T> {
    /// A map of tablets in any order. `INTERNAL` where their ranges leave a gap or overlap: rows would
    /// be lost or shown twice.
    pub fn new(mut tablets: Vec<(RowRange, T)>) -> Result<Self> {
        tablets.sort_by(|(a, _), (b, _)| a.start.cmp(&b.start));
        let mut covered = Some(Bytes::new());
        for (range, _) in &tablets {
            if covered.as_ref() != Some(&range.start) || range.is_empty() {
                return Err(Error::internal(format!(
                    "the tablets of the table do not meet at row {:?}",
                    range.start
                )));
            }
            covered = Some(range.end.clone()).filter(|end| !end.is_empty());
        }
        if tablets.is_empty() || covered.is_some() {
            return Err(Error::internal("the tablets of the table do not cover its last rows"));
        }
        Ok(Self { tablets })
    }

    /// The tablet that holds a row.
    pub fn get(&self, row: &[u8]) -> &T {
        let (_, tablet) = self
            .tablets
            .get(self.position(row))
            .expect("the ranges cover every row, so one of them starts at or before any row");
        tablet
    }

    /// All tablets with their ranges, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (&RowRange, &T)> {
        self.tablets.iter().map(|(range, tablet)| (range, tablet))
    }

    /// The tablets that hold rows of a range, ascending, each with its part of the range.
    pub fn overlapping(&self, range: &RowRange) -> impl Iterator<Item = (RowRange, &T)> {
        self.tablets
            .iter()
            .skip(self.position(&range.start))
            .map(|(own, tablet)| (own.intersect(range), tablet))
            .take_while(|(part, _)| !part.is_empty())
    }

    fn position(&self, row: &[u8]) -> usize {
        self.tablets.partition_point(|(range, _)| range.start.as_ref() <= row).saturating_sub(1)
    }
}

impl<T: Clone> TabletMap<T> {
    /// Spans that are disjoint and ascend, laid over the tablets: the pieces of a read, which answers them
    /// descending where `reverse`.
    pub fn lay_out(&self, spans: &[RowSpan], reverse: bool) -> Pieces<T> {
        let mut pieces = Pieces::with_capacity(spans.len());
        for span in spans {
            match span {
                RowSpan::Row(row) => {
                    pieces.push(Piece::Row(self.get(row).clone(), row.clone()));
                }
                RowSpan::Range(range) => pieces
                    .extend(self.overlapping(range).map(|(part, t)| Piece::Range(t.clone(), part))),
            }
        }
        if !reverse {
            pieces.reverse();
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::error::Code;

    fn range(start: &str, end: &str) -> RowRange {
        RowRange::new(start.to_owned(), end.to_owned())
    }

    fn map(splits: &[&str]) -> TabletMap<usize> {
        let mut bounds = vec![""];
        bounds.extend(splits);
        bounds.push("");
        let mut tablets: Vec<_> =
            bounds.windows(2).enumerate().map(|(i, b)| (range(b[0], b[1]), i)).collect();
        tablets.reverse();
        TabletMap::new(tablets).unwrap()
    }

    #[test]
    fn rows_belong_to_the_tablet_whose_range_they_are_in() {
        let map = map(&["g", "p"]);
        for (row, tablet) in [("\0", 0), ("f\u{ff}", 0), ("g", 1), ("o", 1), ("p", 2), ("zz", 2)] {
            assert_eq!(*map.get(row.as_bytes()), tablet, "{row}");
        }
    }

    #[test]
    fn spans_are_cut_at_tablet_bounds() {
        let map = map(&["g", "p"]);
        let spans = [
            RowSpan::Row("b".into()),
            RowSpan::Range(range("e", "k")),
            RowSpan::Range(range("o", "")),
        ];
        let mut pieces = vec![
            Piece::Row(0, "b".into()),
            Piece::Range(0, range("e", "g")),
            Piece::Range(1, range("g", "k")),
            Piece::Range(1, range("o", "p")),
            Piece::Range(2, range("p", "")),
        ];
        assert_eq!(map.lay_out(&spans, true).as_slice(), pieces);
        pieces.reverse();
        assert_eq!(map.lay_out(&spans, false).as_slice(), pieces);
    }

    #[test]
    fn ranges_that_leave_gaps_or_overlap_are_refused() {
        for bad in [
            vec![],
            vec![range("a", "")],
            vec![range("", "a")],
            vec![range("", "a"), range("b", "")],
            vec![range("", "b"), range("a", "")],
            vec![range("", ""), range("a", "")],
            vec![range("", ""), range("", "")],
        ] {
            let error = TabletMap::new(bad.into_iter().map(|r| (r, ())).collect()).unwrap_err();
            assert_eq!(error.kind(), Code::Internal);
        }
    }

    proptest! {
        #[test]
        fn pieces_of_a_range_are_the_range(
            splits in prop::collection::btree_set("[a-d]{1,2}", 0..6),
            start in "[a-d]{0,2}",
            end in "[a-d]{0,2}",
            rows in prop::collection::vec("[a-d]{1,3}", 20),
        ) {
            let map = map(&splits.iter().map(String::as_str).collect::<Vec<_>>());
            let whole = range(&start, &end);
            let parts: Vec<_> = map.overlapping(&whole).collect();
            for row in rows {
                let holders: Vec<_> =
                    parts.iter().filter(|(part, _)| part.contains(row.as_bytes())).collect();
                prop_assert_eq!(holders.len(), usize::from(whole.contains(row.as_bytes())));
                for (_, tablet) in holders {
                    prop_assert_eq!(*tablet, map.get(row.as_bytes()));
                }
            }
        }
    }
}
