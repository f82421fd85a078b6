//! The plan of a read: its projection joined with the schema, and the targets to seek to where the
//! projection leaves something out.
//!
//! Targets are made from what the key encoding (see [`crate::cell`]) promises: a terminator `00 01`
//! raised to `00 02` sorts after every key that continues the terminated string and before every key
//! of a longer one, since an escaped zero is `00 FF`.

use std::ops::Bound;

use crate::cell::{
    FamilyId, Kind, Origin, Seq, Timestamp, TimestampRange, encode_family, encode_qualifier,
    encode_suffix,
};
use crate::read::{Projection, QualifierRange, Qualifiers};
use crate::schema::{Aggregate, TabletSchema};

/// A family that is in the schema and in the projection.
#[derive(Debug)]
pub(super) struct FamilyPlan {
    pub(super) id: FamilyId,
    pub(super) aggregate: Option<Aggregate>,
    qualifiers: Qualifiers,
}

/// Where a qualifier stands in a family's projection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// It is wanted.
    Inside,
    /// It lies before this range and after the one before it.
    Before(usize),
    /// It lies after all ranges.
    After,
}

/// A read's projection, as the row assembly uses it.
#[derive(Debug)]
pub(super) struct Plan {
    /// By ascending id.
    pub(super) families: Vec<FamilyPlan>,
    pub(super) timestamps: TimestampRange,
    pub(super) versions_max: u32,
    pub(super) cells_per_row_max: u32,
    /// See [`Projection::values`].
    pub(super) values: bool,
}

impl Plan {
    /// Joins `projection` with `schema`.
    pub(super) fn new(projection: Projection, schema: &TabletSchema) -> Self {
        let mut families: Vec<FamilyPlan> = match projection.families {
            None => schema
                .families
                .iter()
                .filter(|(id, _)| !id.is_own())
                .map(|(id, options)| FamilyPlan {
                    id: *id,
                    aggregate: options.aggregate,
                    qualifiers: Qualifiers::ALL,
                })
                .collect(),
            Some(wanted) => wanted
                .into_iter()
                .filter_map(|wanted| {
                    let options = schema.family(wanted.family)?;
                    Some(FamilyPlan {
                        id: wanted.family,
                        aggregate: options.aggregate,
                        qualifiers: wanted.qualifiers,
                    })
                })
                .collect(),
        };
        families.sort_by_key(|f| f.id);
        Self {
            families,
            timestamps: projection.timestamps,
            versions_max: projection.versions_max,
            cells_per_row_max: projection.cells_per_row_max,
            values: projection.values,
        }
    }

    /// Whether no row can have a cell to show.
    pub(super) fn shows_nothing(&self) -> bool {
        self.families.is_empty() || self.versions_max == 0 || self.cells_per_row_max == 0
    }
}

impl FamilyPlan {
    /// Whether every qualifier is wanted.
    pub(super) fn wants_all(&self) -> bool {
        self.qualifiers.is_empty()
    }

    /// Where `qualifier` stands. For a family that does not want all.
    pub(super) fn place(&self, qualifier: &[u8]) -> Place {
        place(&self.qualifiers, qualifier)
    }

    /// Where the first qualifier after `qualifier` stands, as far as that is certain: `Inside` where
    /// some may still be wanted at once. For a family that does not want all.
    pub(super) fn place_after(&self, qualifier: &[u8]) -> Place {
        let is_last = |end: &Bound<bytes::Bytes>| match end {
            Bound::Included(end) => end.as_ref() == qualifier,
            // `qualifier` and a zero byte: nothing lies between the two.
            Bound::Excluded(end) => end.strip_suffix(&[0]) == Some(qualifier),
            Bound::Unbounded => false,
        };
        let at = self.qualifiers.partition_point(|(_, end)| match end {
            Bound::Included(end) | Bound::Excluded(end) => end.as_ref() < qualifier,
            Bound::Unbounded => false,
        });
        match self.qualifiers.get(at) {
            Some((_, end)) if is_last(end) => {
                if at + 1 < self.qualifiers.len() {
                    Place::Before(at + 1)
                } else {
                    Place::After
                }
            }
            _ => Place::Inside,
        }
    }

    /// Writes the first possible key of range `at` within the row of this prefix.
    pub(super) fn target_range(&self, row_prefix: &[u8], at: usize, out: &mut Vec<u8>) {
        target_family(row_prefix, self.id, out);
        match self.qualifiers.get(at).map(|(start, _)| start) {
            Some(Bound::Included(start)) => encode_qualifier(Some(start), out),
            Some(Bound::Excluded(start)) => {
                encode_qualifier(Some(start), out);
                raise(out);
            }
            Some(Bound::Unbounded) | None => {}
        }
    }

    /// Writes the first possible key of a column that is wanted, behind the tombstones of the family.
    pub(super) fn target_columns(&self, row_prefix: &[u8], out: &mut Vec<u8>) {
        self.target_range(row_prefix, 0, out);
        if !matches!(self.qualifiers.first(), Some((Bound::Included(_) | Bound::Excluded(_), _))) {
            encode_qualifier(Some(b""), out);
        }
    }
}

/// Where `qualifier` stands among sorted, disjoint ranges.
fn place(ranges: &[QualifierRange], qualifier: &[u8]) -> Place {
    let at = ranges.partition_point(|(_, end)| match end {
        Bound::Included(end) => end.as_ref() < qualifier,
        Bound::Excluded(end) => end.as_ref() <= qualifier,
        Bound::Unbounded => false,
    });
    let Some((start, _)) = ranges.get(at) else { return Place::After };
    let inside = match start {
        Bound::Included(start) => start.as_ref() <= qualifier,
        Bound::Excluded(start) => start.as_ref() < qualifier,
        Bound::Unbounded => true,
    };
    if inside { Place::Inside } else { Place::Before(at) }
}

/// Whether a qualifier is in one of these ranges, which are sorted and disjoint.
pub(super) fn in_ranges(ranges: &[QualifierRange], qualifier: &[u8]) -> bool {
    place(ranges, qualifier) == Place::Inside
}

/// Raises the last byte of an encoded prefix: it then sorts after all keys with the prefix.
fn raise(prefix: &mut [u8]) {
    if let Some(last) = prefix.last_mut() {
        *last = last.saturating_add(1);
    }
}

/// Writes the first possible key of a family within the row of this prefix.
pub(super) fn target_family(row_prefix: &[u8], family: FamilyId, out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(row_prefix);
    encode_family(family, out);
}

/// Writes a target after every key with this row or column prefix.
pub(super) fn target_after(prefix: &[u8], out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(prefix);
    raise(out);
}

/// Writes the first possible key of a column at `timestamp` with a sequence of at most `seq`.
pub(super) fn target_cell(column_prefix: &[u8], timestamp: Timestamp, seq: Seq, out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(column_prefix);
    // The least kind and, since origins descend, the greatest origin.
    encode_suffix(timestamp, seq, Origin::MAX, Kind::RowTombstone, out);
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::cell::{encode_key, row_prefix};

    fn family(ranges: &[(Bound<&'static str>, Bound<&'static str>)]) -> FamilyPlan {
        let bytes = |b: Bound<&'static str>| b.map(|s| Bytes::from_static(s.as_bytes()));
        FamilyPlan {
            id: FamilyId(1),
            aggregate: None,
            qualifiers: ranges.iter().map(|(a, b)| (bytes(*a), bytes(*b))).collect(),
        }
    }

    #[test]
    fn qualifiers_find_their_place_among_ranges() {
        use Bound::{Excluded, Included, Unbounded};
        let f = family(&[
            (Included("b"), Included("b")),
            (Excluded("d"), Excluded("f")),
            (Included("m"), Unbounded),
        ]);
        let places = [
            ("a", Place::Before(0)),
            ("b", Place::Inside),
            ("c", Place::Before(1)),
            ("d", Place::Before(1)),
            ("e", Place::Inside),
            ("f", Place::Before(2)),
            ("m", Place::Inside),
            ("z", Place::Inside),
        ];
        for (qualifier, place) in places {
            assert_eq!(f.place(qualifier.as_bytes()), place, "{qualifier}");
        }
        assert_eq!(family(&[(Unbounded, Included("b"))]).place(b"c"), Place::After);
    }

    #[test]
    fn a_range_that_ends_with_the_qualifier_is_left_at_once() {
        use Bound::{Excluded, Included};
        let f = family(&[(Included("b"), Included("b")), (Included("d"), Excluded("d\0"))]);
        assert_eq!(f.place_after(b"b"), Place::Before(1));
        assert_eq!(f.place_after(b"d"), Place::After);
        let f = family(&[(Included("b"), Included("c"))]);
        assert_eq!(f.place_after(b"b"), Place::Inside);
        assert_eq!(f.place_after(b"c"), Place::After);
        let f = family(&[(Included("b"), Excluded("c"))]);
        assert_eq!(f.place_after(b"b"), Place::Inside);
    }

    #[test]
    fn targets_sort_between_what_they_leave_and_what_they_keep() {
        let key = |row: &[u8], family, qualifier: &[u8], ts, seq| {
            let mut out = Vec::new();
            encode_key(row, FamilyId(family), Some(qualifier), ts, seq, Kind::Value, &mut out);
            out
        };
        let mut target = Vec::new();
        let row = row_prefix(b"r");

        target_after(&row, &mut target);
        assert!(key(b"r", u32::MAX, b"\xff", 0, 0) < target);
        assert!(target < key(b"r\0", 1, b"", i64::MAX, u64::MAX));

        let view = key(b"r", 1, b"q", 5, 9);
        let column = &view[..view.len() - crate::cell::SUFFIX_LEN];
        target_after(column, &mut target);
        assert!(key(b"r", 1, b"q", i64::MIN, 0) < target);
        assert!(target < key(b"r", 1, b"q\0", i64::MAX, u64::MAX));

        target_cell(column, 5, 9, &mut target);
        assert!(key(b"r", 1, b"q", 5, 10) < target);
        assert!(target <= key(b"r", 1, b"q", 5, 9));

        let f = family(&[(Bound::Excluded("q"), Bound::Unbounded)]);
        f.target_range(&row, 0, &mut target);
        assert!(key(b"r", 1, b"q", i64::MIN, 0) < target);
        assert!(target < key(b"r", 1, b"q\0", i64::MAX, u64::MAX));
    }
}
