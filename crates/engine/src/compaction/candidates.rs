//! What the rules let go of one SST, and of one row: for tablets whose changes are kept.
//!
//! There compactions take no cell away for a rule. A collector walks the records of a file to find rows that have such
//! cells ([`Candidates`]), reads each of these rows under its lock and deletes what the rules let go of it
//! ([`garbage_of`]), so that the deletion has its place in history.
//!
//! A file is enough to find them by: no cell of it is hidden by another record of it, since what is hidden is left out when it is
//! written; and, as in [`gc`](super::gc), records elsewhere only add newer cells or hide some. So every cell that is
//! let go by what the file has was either deleted elsewhere or may go; or it stays since newer ones were deleted that the file counts, and is looked
//! at again when it comes to the age at which it may go with fewer of them. Versions of a column that lie in several files are found
//! once a compaction has merged them into one.

use crate::cell::{Cell, KeyView, Mutation, Row, Timestamp, TimestampRange};
use crate::schema::TabletSchema;

/// What timestamps of clients are whole multiples of, in microseconds: the service refuses to delete ranges that are
/// not, and what is deleted here is shown to clients.
const GRANULARITY_MICROS: i64 = 1_000;

/// Finds the cells of an SST, or of its part from some row on, that rules let go as far as the file tells.
#[derive(Debug)]
pub(crate) struct Candidates<'a> {
    schema: &'a TabletSchema,
    now_micros: i64,
    /// What might go by then was deleted.
    deleted_micros: Option<i64>,
    /// The column of the last cell, and what is newer than that cell in it.
    column: Vec<u8>,
    newer: u32,
    timestamp: Timestamp,
    due_micros: i64,
}

impl<'a> Candidates<'a> {
    /// By the rules of a schema, at this time. What these let go of the file at an earlier time, if at any, was deleted then.
    pub(crate) fn new(
        schema: &'a TabletSchema,
        now_micros: i64,
        deleted_micros: Option<i64>,
    ) -> Self {
        let (column, newer, timestamp, due_micros) = (Vec::new(), 0, 0, i64::MAX);
        Self { schema, now_micros, deleted_micros, column, newer, timestamp, due_micros }
    }

    /// Takes in the next record: whether it is of a cell that may go.
    pub(crate) fn take(&mut self, key: KeyView<'_>) -> bool {
        let Some(rule) = self.schema.user_rule(key.family()) else { return false };
        if key.kind().is_tombstone() {
            return false;
        }
        let timestamp = key.timestamp();
        if key.column_prefix() != self.column.as_slice() {
            self.column.clear();
            self.column.extend_from_slice(key.column_prefix());
            self.newer = 0;
        } else if timestamp == self.timestamp {
            return false;
        } else {
            self.newer = self.newer.saturating_add(1);
        }
        self.timestamp = timestamp;
        let next_after = |micros| rule.may_go_after(self.newer, timestamp, micros);
        self.due_micros = self.due_micros.min(next_after(self.now_micros).unwrap_or(i64::MAX));
        match self.deleted_micros {
            None => rule.collects(self.newer, timestamp, self.now_micros),
            Some(deleted) => next_after(deleted).is_some_and(|at| at <= self.now_micros),
        }
    }

    /// When the next of the cells that were taken in may go, without any other being written; or may have to, where newer ones were deleted.
    pub(crate) fn due_micros(&self) -> i64 {
        self.due_micros
    }
}

/// The newest cells of a column, all of which stay, where older ones are judged without them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Newer {
    /// How many there are.
    pub(crate) cells: u32,
    /// The timestamp of the last of them.
    pub(crate) last: Timestamp,
}

impl Newer {
    /// There are none.
    pub(crate) const NONE: Self = Self { cells: 0, last: Timestamp::MAX };
}

/// The deletions of what the rules let go of a row, one for each column, and the cells that they delete. `newer`: what its columns, which
/// is one where there are any, have besides.
pub(crate) fn garbage_of(
    row: &Row,
    newer: Newer,
    schema: &TabletSchema,
    now_micros: i64,
) -> (Vec<Mutation>, u64) {
    let mut cells = 0;
    let same_column = |a: &Cell, b: &Cell| a.family == b.family && a.qualifier == b.qualifier;
    let deletions = row.cells.chunk_by(same_column).filter_map(|column| {
        let newest = column.first()?;
        let rule = schema.user_rule(newest.family)?;
        // Whatever a rule says of a cell it says of the older ones of its column too.
        let stays =
            |(newer, cell): &(u32, &Cell)| !rule.collects(*newer, cell.timestamp, now_micros);
        let kept = (newer.cells..).zip(column).take_while(stays).count();
        let (kept, collected) = column.split_at_checked(kept)?;
        let (first, last) = (collected.first()?, collected.last()?);
        cells += collected.len() as u64;
        let over = first.timestamp.rem_euclid(GRANULARITY_MICROS);
        let end = first.timestamp.saturating_add(GRANULARITY_MICROS - over);
        // Not a cell that stays, whatever timestamps it was given.
        let end = end.min(kept.last().map_or(newer.last, |cell| cell.timestamp));
        let timestamps = TimestampRange { start: last.timestamp, end };
        let (family, qualifier) = (newest.family, newest.qualifier.clone());
        Some(Mutation::DeleteCells { family, qualifier, timestamps })
    });
    let deletions = deletions.collect();
    (deletions, cells)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::cell::{FAMILY_OWN_MIN, FamilyId, Kind, encode_key};
    use crate::schema::{FamilyOptions, GcRule};

    fn schema() -> TabletSchema {
        let family = |gc| FamilyOptions { gc: Some(gc), aggregate: None, gc_since_micros: 0 };
        let both = GcRule::Intersection(vec![GcRule::MaxVersions(1), GcRule::MaxAge(5_000)]);
        let families = [
            (FamilyId(1), family(GcRule::MaxVersions(2))),
            (FamilyId(2), family(GcRule::MaxAge(5_000))),
            (FamilyId(3), family(both)),
            (FamilyId(4), FamilyOptions::default()),
            (FAMILY_OWN_MIN, family(GcRule::MaxAge(1))),
        ];
        TabletSchema { families: families.into() }
    }

    fn row(cells: &[(u32, &'static str, i64)]) -> Row {
        let cell = |(family, qualifier, timestamp): &(u32, &'static str, i64)| Cell {
            family: FamilyId(*family),
            qualifier: Bytes::from_static(qualifier.as_bytes()),
            timestamp: *timestamp,
            value: Bytes::new(),
        };
        Row { key: Bytes::from_static(b"r"), cells: cells.iter().map(cell).collect() }
    }

    fn deletion(family: u32, qualifier: &'static str, start: i64, end: i64) -> Mutation {
        Mutation::DeleteCells {
            family: FamilyId(family),
            qualifier: Bytes::from_static(qualifier.as_bytes()),
            timestamps: TimestampRange { start, end },
        }
    }

    #[test]
    fn of_each_column_exactly_the_cells_that_its_rule_lets_go_are_deleted() {
        let row = row(&[
            (1, "a", 9_000),
            (1, "a", 8_000),
            (1, "a", 7_000),
            (1, "a", 2_000),
            (1, "b", 1_000),
            (2, "a", 9_000),
            (2, "a", 4_999),
            (2, "b", 5_000),
            (3, "a", 4_000),
            (3, "a", 3_000),
            (3, "b", 9_000),
            (3, "b", 8_000),
            (4, "a", 1_000),
        ]);
        let (deletions, cells) = garbage_of(&row, Newer::NONE, &schema(), 10_000);
        let expected = [
            deletion(1, "a", 2_000, 8_000),
            deletion(2, "a", 4_999, 5_000),
            deletion(3, "a", 3_000, 4_000),
        ];
        assert_eq!((&deletions[..], cells), (&expected[..], 4));
        assert_eq!(
            garbage_of(&row, Newer::NONE, &TabletSchema::default(), 10_000),
            (Vec::new(), 0)
        );
    }

    #[test]
    fn a_deletion_ends_at_a_whole_millisecond_unless_a_cell_that_stays_lies_before_it() {
        let cells = row(&[(1, "a", 7_003), (1, "a", 7_002), (1, "a", 7_001), (1, "b", 3_000)]);
        let (deletions, _) = garbage_of(&cells, Newer::NONE, &schema(), 10_000);
        assert_eq!(deletions, [deletion(1, "a", 7_001, 7_002)]);
        let (deletions, _) = garbage_of(&row(&[(2, "a", 4_001)]), Newer::NONE, &schema(), 10_000);
        assert_eq!(deletions, [deletion(2, "a", 4_001, 5_000)]);
    }

    #[test]
    fn cells_that_are_judged_apart_from_newer_ones_of_their_column_go_as_with_them() {
        let newer = |cells, last| Newer { cells, last };
        let rest = row(&[(1, "a", 7_002), (1, "a", 7_001)]);
        let (deletions, cells) = garbage_of(&rest, newer(2, 7_003), &schema(), 10_000);
        assert_eq!((deletions, cells), (vec![deletion(1, "a", 7_001, 7_003)], 2));
        let (deletions, cells) = garbage_of(&rest, newer(1, 9_000), &schema(), 10_000);
        assert_eq!((deletions, cells), (vec![deletion(1, "a", 7_001, 7_002)], 1));
    }

    #[test]
    fn a_file_tells_which_cells_may_go_and_when_the_next_may() {
        let schema = schema();
        let walk = |now_micros, deleted_micros| {
            let mut candidates = Candidates::new(&schema, now_micros, deleted_micros);
            let mut take = |family, qualifier: &str, timestamp, kind| {
                let mut key = Vec::new();
                let qualifier = Some(qualifier.as_bytes());
                encode_key(b"r", FamilyId(family), qualifier, timestamp, 1, kind, &mut key);
                candidates.take(KeyView::parse(&key).unwrap())
            };
            let found = [
                take(1, "a", 9_000, Kind::Value),
                take(1, "a", 8_000, Kind::CellTombstone),
                take(1, "a", 8_000, Kind::Merge),
                // The same cell.
                take(1, "a", 8_000, Kind::Value),
                take(1, "a", 7_000, Kind::ValueElsewhere),
                take(1, "b", 1_000, Kind::Value),
                take(2, "a", 8_500, Kind::Value),
                take(2, "b", 6_000, Kind::Value),
                take(2, "b", 1_000, Kind::Value),
                take(3, "a", 7_000, Kind::Value),
                take(3, "a", 5_500, Kind::Value),
                take(FAMILY_OWN_MIN.0, "a", 0, Kind::Value),
            ];
            let found = found.iter().enumerate().filter(|(_, found)| **found).map(|(at, _)| at);
            (found.collect::<Vec<_>>(), candidates.due_micros())
        };
        assert_eq!(walk(10_000, None), (vec![4, 8], 10_501));
        assert_eq!(walk(10_501, Some(10_000)), (vec![10], 11_001));
        assert_eq!(walk(99_000, Some(10_501)), (vec![6, 7], i64::MAX));
    }

    #[test]
    fn a_cell_that_may_go_for_its_newer_ones_or_its_age_is_looked_at_for_each() {
        let gc = Some(GcRule::Union(vec![GcRule::MaxVersions(1), GcRule::MaxAge(5_000)]));
        let family = FamilyOptions { gc, ..FamilyOptions::default() };
        let schema = TabletSchema { families: [(FamilyId(1), family)].into() };
        let walk = |now_micros, deleted_micros| {
            let mut candidates = Candidates::new(&schema, now_micros, deleted_micros);
            let mut take = |timestamp| {
                let mut key = Vec::new();
                encode_key(b"r", FamilyId(1), Some(b"q"), timestamp, 1, Kind::Value, &mut key);
                candidates.take(KeyView::parse(&key).unwrap())
            };
            ([9_000, 8_000].map(&mut take), candidates.due_micros())
        };
        assert_eq!(walk(10_000, None), ([false, true], 13_001));
        assert_eq!(walk(10_001, Some(10_000)), ([false, false], 13_001));
        assert_eq!(walk(13_001, Some(10_001)), ([false, true], 14_001));
        assert_eq!(walk(14_001, Some(13_001)), ([true, false], i64::MAX));
    }
}
