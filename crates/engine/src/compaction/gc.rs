//! Garbage collection: which cells a compaction lets go by a family's rule, and why that is safe.
//!
//! A rule speaks of *live* cells: what a read at the latest sequence shows. A cell is a (column,
//! timestamp); it is live if its newest record is a value or an operand that nothing hides. The stream
//! offers the cells of a column by descending timestamp, and [`ColumnGc`] counts the live ones.
//!
//! # What may be concluded from a part of the data
//!
//! A compaction sees some runs, not all. What it does not see can be newer or older:
//!
//! * *Max age* looks at a cell's own timestamp alone, so it can collect anywhere.
//! * *Max versions* collects a cell that has `n` live newer cells in its column. Cells out of sight can
//!   only add newer cells, never take away from the `n` in sight, unless a tombstone out of sight
//!   hides some of them and not the cell itself: a deletion of single cells. Such a tombstone is newer than all that is
//!   in sight. Where the cell was collectable before it was written, a count in sight is enough, since a rule promises only that
//!   cells it does not collect stay. It was not where the rule asks for an age, too, and the cell came to that only afterwards, or
//!   where the rule itself is younger than the deletion. Then the cell may be the last one that is left of its column, and is not
//!   collected for its number of newer ones until the deletion is in sight ([`Times::deletions_micros`]). A cell out of sight that was
//!   collected is one that hides, too. By the rule that is in force, all that is older in its column was collectable with it; by
//!   one before, it was not ([`Times::burials_micros`]).
//!   Hidden cells are not counted, as a read would not see them.
//! * Unions and intersections combine these. No rule ever stops collecting a cell when the cell gets
//!   older or gets more newer neighbours, so a cell that was collected early is one that a compaction
//!   of everything would collect as well, and the cells that outlive a collection still count the
//!   newer ones that justified it: those are never collected before the ones below them.
//!
//! # What a collected cell leaves behind
//!
//! Dropping the newest record of a cell could uncover an older record of the same cell: an overwritten
//! value in a deeper level, or one that is kept for an open snapshot. The older value would come back
//! from the dead, with a timestamp as old as the collected one's, until a compaction found it. So a
//! collected cell is *buried*: its newest record becomes a cell tombstone that covers exactly its
//! timestamp, with its sequence. It hides what the record hid, it is smaller than the record, and it goes
//! the way of all tombstones, once nothing that it hides can be beneath and no snapshot is older than it. Where no cell
//! with its timestamp can be out of sight ([`super::Beneath`]: nothing lies beneath, or only what was written at
//! earlier times, as in a flush of rows that are written all the time), the tombstone is written only if the
//! stream keeps an older record of the cell for a snapshot.
//!
//! Writing the same cell again after that works as ever: the new record has a greater sequence. An operand
//! that arrives after its cell was collected starts from nothing, as though the collection had come just
//! before it; this also holds for an operand that is already written but in a newer run out of sight.
//!
//! # Snapshots
//!
//! An open snapshot that is not older than a cell's newest record sees the cell as it is: it is kept
//! whole. If all snapshots are older, they see only older records of the cell, which the stream keeps by
//! its own rules; burying the newest changes nothing for them, since the tombstone is as new as the
//! record was.

use std::collections::BTreeMap;

use crate::cell::{FamilyId, Timestamp};
use crate::schema::FamilyOptions;

/// After how long a cell is looked at again, at least, that may go unless a deletion out of sight has to do with it: a week, or the age of its
/// rule. Mostly a merge with that deletion comes before; a file that waits for it is rewritten no more often than for its cells
/// that come of age.
const COUNTED_AGAIN_MICROS_MIN: i64 = 7 * 24 * 60 * 60 * 1_000_000;

/// The times by which a compaction collects, in microseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// Now: what ages are measured by.
    pub now_micros: i64,
    /// From when on there may be deletions of single cells that are out of sight, and newer than what is in sight of their rows; `i64::MAX` where
    /// there are none. Those that come later than now do not count: what is collected now was collectable before them.
    pub deletions_micros: i64,
    /// From when on cells were written, at the earliest, that were collected since and buried out of sight, as above.
    pub burials_micros: i64,
}

impl Times {
    /// Of a compaction that sees all deletions there are.
    pub fn all_in_sight(now_micros: i64) -> Self {
        Self { now_micros, deletions_micros: i64::MAX, burials_micros: i64::MAX }
    }
}

/// What becomes of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It stays, for as long as no other cell is written.
    Keep,
    /// It stays until then, in microseconds since 1970: from there on the rule lets it go, whatever is written.
    KeepUntil(i64),
    /// The rule collects it.
    Collect,
}

/// From when on time alone lets cells of an SST go, by family: what its writer found, and so what looking at the file again
/// would find. Newer records elsewhere let more go, but only a merge with them does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Dues(BTreeMap<FamilyId, i64>);

impl Dues {
    /// A cell of the family is in the SST that stays until then, in microseconds since 1970.
    pub(crate) fn note(&mut self, family: FamilyId, due_micros: i64) {
        let due = self.0.entry(family).or_insert(due_micros);
        *due = due_micros.min(*due);
    }

    /// Nothing is known of the `changed` families any more, whose cells may go at any time; and those are left out that are there no more.
    pub(crate) fn forget(&mut self, changed: &[FamilyId], is_there: impl Fn(FamilyId) -> bool) {
        self.0.retain(|family, _| is_there(*family));
        self.0.extend(changed.iter().map(|family| (*family, i64::MIN)));
    }

    /// When the first cell of the family may go, in microseconds since 1970; `i64::MAX` for never.
    pub(crate) fn of(&self, family: FamilyId) -> i64 {
        self.0.get(&family).copied().unwrap_or(i64::MAX)
    }
}

/// Counts the live cells of a column, newest first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ColumnGc {
    newer: u32,
}

impl ColumnGc {
    /// Judges the column's next cell in order of descending timestamps. `live`: a read at the latest
    /// sequence shows it. `in_snapshot`: an open snapshot sees its newest record. A cell that is not live
    /// is left to the rules of hiding, and not counted.
    pub fn judge(
        &mut self,
        family: Option<&FamilyOptions>,
        timestamp: Timestamp,
        live: bool,
        in_snapshot: bool,
        times: Times,
    ) -> Verdict {
        if !live {
            return Verdict::Keep;
        }
        let newer = self.newer;
        self.newer = newer.saturating_add(1);
        let Some((family, rule)) = family.and_then(|f| f.gc.as_ref().map(|rule| (f, rule))) else {
            return Verdict::Keep;
        };
        let Some(from) = rule.collects_from(newer, timestamp) else { return Verdict::Keep };
        if from > times.now_micros || in_snapshot {
            return Verdict::KeepUntil(from);
        }
        let counted = from.max(family.gc_since_micros) <= times.deletions_micros
            && family.gc_since_micros <= times.burials_micros;
        if counted || rule.collects(0, timestamp, times.now_micros) {
            return Verdict::Collect;
        }
        let wait = rule.least_age().unwrap_or(0).max(COUNTED_AGAIN_MICROS_MIN);
        let again = times.now_micros.saturating_add(wait);
        let alone = rule.collects_from(0, timestamp).unwrap_or(i64::MAX);
        Verdict::KeepUntil(again.min(alone))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::GcRule;

    fn by(rule: GcRule) -> FamilyOptions {
        FamilyOptions { gc: Some(rule), ..FamilyOptions::default() }
    }

    #[test]
    fn only_live_cells_count_as_versions() {
        let family = by(GcRule::MaxVersions(1));
        let mut column = ColumnGc::default();
        let now = Times::all_in_sight(0);
        assert_eq!(column.judge(Some(&family), 9, false, false, now), Verdict::Keep);
        assert_eq!(column.judge(Some(&family), 8, true, false, now), Verdict::Keep);
        assert_eq!(column.judge(Some(&family), 7, true, false, now), Verdict::Collect);
    }

    #[test]
    fn a_cell_in_a_snapshot_stays_and_counts() {
        let family = by(GcRule::MaxVersions(1));
        let mut column = ColumnGc::default();
        let now = Times::all_in_sight(0);
        assert_eq!(column.judge(Some(&family), 9, true, true, now), Verdict::Keep);
        assert_eq!(column.judge(Some(&family), 8, true, true, now), Verdict::KeepUntil(i64::MIN));
        assert_eq!(column.judge(Some(&family), 7, true, false, now), Verdict::Collect);
    }

    #[test]
    fn a_cell_that_time_alone_lets_go_stays_until_then() {
        let family = by(GcRule::Intersection(vec![GcRule::MaxVersions(1), GcRule::MaxAge(5)]));
        let mut column = ColumnGc::default();
        let now = Times::all_in_sight(10);
        assert_eq!(column.judge(Some(&family), 9, true, false, now), Verdict::Keep);
        assert_eq!(column.judge(Some(&family), 8, true, false, now), Verdict::KeepUntil(14));
        assert_eq!(column.judge(Some(&family), 4, true, false, now), Verdict::Collect);
    }

    #[test]
    fn a_cell_that_a_deletion_out_of_sight_may_have_left_alone_is_not_collected_by_what_is_counted()
    {
        use GcRule::{Intersection, MaxAge, MaxVersions, Union};
        let again = 100 + COUNTED_AGAIN_MICROS_MIN;
        let second = |rule, gc_since_micros, deletions_micros| {
            let family = FamilyOptions { gc_since_micros, ..by(rule) };
            let times = Times { deletions_micros, ..Times::all_in_sight(100) };
            let mut column = ColumnGc::default();
            assert_ne!(column.judge(Some(&family), 90, true, false, times), Verdict::Collect);
            column.judge(Some(&family), 40, true, false, times)
        };
        let both = || Intersection(vec![MaxVersions(1), MaxAge(50)]);
        // It came to its age at 91.
        assert_eq!(second(both(), 0, 90), Verdict::KeepUntil(again));
        assert_eq!(second(both(), 0, 91), Verdict::Collect);
        assert_eq!(second(MaxVersions(1), 0, i64::MIN), Verdict::KeepUntil(again));
        assert_eq!(second(MaxVersions(1), 0, 0), Verdict::Collect);
        // The rule is younger than the deletion.
        assert_eq!(second(MaxVersions(1), 61, 60), Verdict::KeepUntil(again));
        assert_eq!(second(MaxVersions(1), 60, 60), Verdict::Collect);
        // For its age alone it goes whatever was deleted.
        let either = || Union(vec![MaxVersions(1), MaxAge(55)]);
        assert_eq!(second(either(), 61, 60), Verdict::Collect);
        let later = Union(vec![MaxVersions(1), MaxAge(70)]);
        assert_eq!(second(later, 61, 60), Verdict::KeepUntil(111));
    }

    #[test]
    fn a_cell_is_not_collected_for_newer_ones_that_may_be_buried_by_an_older_rule() {
        let second = |gc_since_micros| {
            let family = FamilyOptions { gc_since_micros, ..by(GcRule::MaxVersions(1)) };
            let times = Times { burials_micros: 60, ..Times::all_in_sight(100) };
            let mut column = ColumnGc::default();
            assert_eq!(column.judge(Some(&family), 90, true, false, times), Verdict::Keep);
            column.judge(Some(&family), 40, true, false, times)
        };
        assert_eq!(second(61), Verdict::KeepUntil(100 + COUNTED_AGAIN_MICROS_MIN));
        assert_eq!(second(60), Verdict::Collect);
        // What was collected by the rule that is in force took nothing from it, however late the cell came to its age.
        let both = GcRule::Intersection(vec![GcRule::MaxVersions(1), GcRule::MaxAge(50)]);
        let times = Times { burials_micros: 60, ..Times::all_in_sight(100) };
        let mut column = ColumnGc::default();
        assert_eq!(column.judge(Some(&by(both.clone())), 90, true, false, times), Verdict::Keep);
        assert_eq!(column.judge(Some(&by(both)), 40, true, false, times), Verdict::Collect);
    }

    #[test]
    fn without_a_rule_everything_stays() {
        let mut column = ColumnGc::default();
        for timestamp in (0..10).rev() {
            let end = Times::all_in_sight(i64::MAX);
            assert_eq!(column.judge(None, timestamp, true, false, end), Verdict::Keep);
        }
    }
}
