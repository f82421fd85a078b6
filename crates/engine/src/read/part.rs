//! A row from several places: the cells that each has of it, joined.
//!
//! ```text
//! newer   a@9        b@7
//! older   a@9  a@4   b@8   c@2
//! joined  a@9  a@4   b@8   b@7   c@2      a@9 by its sequence; at most so many versions of each
//! ```
//!
//! Only what takes no merging is joined so: plain values. Each place may have left out what its own cells make superfluous:
//! a column's versions beyond those that are wanted, and cells beyond those that a row may have. What other places add
//! only makes more of it superfluous.
//!
//! A place that leaves something out has not looked at it, and it may be a tombstone. It hides nothing that is shown: it
//! sorts behind the last version that its place has, so that it reaches to no later timestamp, and all that is shown of the
//! column is as late at least; at the same timestamp its place has a newer record. Tombstones of a family and of a row sort
//! before all that they hide, and are looked at.

use std::cmp::Ordering;

use bytes::Bytes;

use crate::cell::{PinnedCell, PinnedRow, Seq};
use crate::read::Projection;

/// A row without its key, and what joining it with others takes.
#[derive(Debug, Default)]
pub(crate) struct RowPart {
    pub(crate) row: PinnedRow,
    /// The sequence of each cell.
    pub(crate) seqs: Vec<Seq>,
    /// Bytes that the cells count as.
    pub(crate) bytes: u64,
}

impl RowPart {
    /// What `projection` wants of the row that has the cells of both.
    pub(crate) fn join(self, other: Self, projection: &Projection) -> Self {
        if self.row.cells.is_empty() || other.row.cells.is_empty() {
            return if self.row.cells.is_empty() { other } else { self };
        }
        let PinnedRow { key, mut memories, cells: ours } = self.row;
        let before = memories.len();
        memories.extend(other.row.memories);
        let all = ours.len() + other.row.cells.len();
        let mut cells: Vec<PinnedCell> = Vec::with_capacity(all);
        let mut seqs = Vec::with_capacity(all);
        let mut ours = ours.into_iter().zip(self.seqs).peekable();
        let theirs = other.row.cells.into_iter().map(|cell| cell.behind(before));
        let mut theirs = theirs.zip(other.seqs).peekable();
        let mut versions = 0;
        while (cells.len() as u64) < u64::from(projection.cells_per_row_max) {
            let order = match (ours.peek(), theirs.peek()) {
                (Some((a, _)), Some((b, _))) => order(a, b, &memories),
                (Some(_), None) => Ordering::Less,
                (None, _) => Ordering::Greater,
            };
            let next = match order {
                Ordering::Less => ours.next(),
                Ordering::Greater => theirs.next(),
                // One cell: the newer record decides.
                Ordering::Equal => {
                    ours.next().into_iter().chain(theirs.next()).max_by_key(|(_, seq)| *seq)
                }
            };
            let Some((cell, seq)) = next else { break };
            let is_same_column = |last: &PinnedCell| by_column(last, &cell, &memories).is_eq();
            versions = if cells.last().is_some_and(is_same_column) { versions + 1 } else { 1 };
            if versions <= projection.versions_max {
                cells.push(cell);
                seqs.push(seq);
            }
        }
        let bytes = self.bytes.saturating_add(other.bytes);
        Self { row: PinnedRow { key, memories, cells }, seqs, bytes }
    }
}

/// The order of cells within a row.
fn order(a: &PinnedCell, b: &PinnedCell, memories: &[Bytes]) -> Ordering {
    by_column(a, b, memories).then_with(|| b.timestamp.cmp(&a.timestamp))
}

fn by_column(a: &PinnedCell, b: &PinnedCell, memories: &[Bytes]) -> Ordering {
    let qualifiers = || a.qualifier.of(memories).cmp(b.qualifier.of(memories));
    a.family.cmp(&b.family).then_with(qualifiers)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::cell::{FamilyId, Place, Row, Timestamp};

    type Key = (u32, u8, std::cmp::Reverse<Timestamp>);

    /// Of each cell the newest record, and of those what the projection wants.
    fn wanted(records: &BTreeMap<Key, Seq>, projection: &Projection) -> RowPart {
        let mut part = RowPart::default();
        let mut versions: BTreeMap<(u32, u8), u32> = BTreeMap::new();
        for ((family, qualifier, timestamp), seq) in records {
            let version = versions.entry((*family, *qualifier)).or_default();
            *version += 1;
            if *version > projection.versions_max
                || part.row.cells.len() as u64 >= u64::from(projection.cells_per_row_max)
            {
                continue;
            }
            let PinnedRow { memories, cells, .. } = &mut part.row;
            let mut pin = |bytes: Vec<u8>| {
                let place = Place::new(memories.len(), 0, bytes.len()).unwrap();
                memories.push(bytes.into());
                place
            };
            cells.push(PinnedCell {
                family: FamilyId(*family),
                qualifier: pin(vec![*qualifier]),
                timestamp: timestamp.0,
                value: pin(seq.to_string().into()),
            });
            part.seqs.push(*seq);
        }
        part
    }

    proptest! {
        #[test]
        fn parts_join_to_what_the_whole_row_shows(
            places in prop::collection::vec(
                prop::collection::vec((0u32..2, 0u8..3, 0i64..5), 0..12), 1..5,
            ),
            versions_max in 1u32..4,
            cells_per_row_max in prop_oneof![Just(u32::MAX), 1u32..8],
        ) {
            let projection = Projection { versions_max, cells_per_row_max, ..Projection::all() };
            let (mut all, mut joined, mut records) = (BTreeMap::new(), RowPart::default(), 0);
            for place in places {
                let mut here = BTreeMap::new();
                for (family, qualifier, timestamp) in place {
                    // Each another one, in no order.
                    records += 1;
                    let seq = records * 7_919 % 10_007;
                    let key = (family, qualifier, std::cmp::Reverse(timestamp));
                    for records in [&mut all, &mut here] {
                        let newest = records.entry(key).or_insert(seq);
                        *newest = seq.max(*newest);
                    }
                }
                joined = joined.join(wanted(&here, &projection), &projection);
            }
            let expected = wanted(&all, &projection);
            prop_assert_eq!(Row::from(joined.row), Row::from(expected.row));
            prop_assert_eq!(joined.seqs, expected.seqs);
        }
    }
}
