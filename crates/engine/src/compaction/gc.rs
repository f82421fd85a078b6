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
//!   hides some of them. Such a tombstone is newer than all that is in sight: before it was written
//!   the cell was collectable, and a rule promises only that cells it does not collect stay. So a count
//!   in sight is enough; hidden cells are not counted, as a read would not see them.
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
use crate::schema::GcRule;

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
        rule: Option<&GcRule>,
        timestamp: Timestamp,
        live: bool,
        in_snapshot: bool,
        now_micros: i64,
    ) -> Verdict {
        if !live {
            return Verdict::Keep;
        }
        let newer = self.newer;
        self.newer = newer.saturating_add(1);
        match rule.and_then(|rule| rule.collects_from(newer, timestamp)) {
            Some(from) if from <= now_micros && !in_snapshot => Verdict::Collect,
            Some(from) => Verdict::KeepUntil(from),
            None => Verdict::Keep,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_live_cells_count_as_versions() {
        let rule = GcRule::MaxVersions(1);
        let mut column = ColumnGc::default();
        assert_eq!(column.judge(Some(&rule), 9, false, false, 0), Verdict::Keep);
        assert_eq!(column.judge(Some(&rule), 8, true, false, 0), Verdict::Keep);
        assert_eq!(column.judge(Some(&rule), 7, true, false, 0), Verdict::Collect);
    }

    #[test]
    fn a_cell_in_a_snapshot_stays_and_counts() {
        let rule = GcRule::MaxVersions(1);
        let mut column = ColumnGc::default();
        assert_eq!(column.judge(Some(&rule), 9, true, true, 0), Verdict::Keep);
        assert_eq!(column.judge(Some(&rule), 8, true, true, 0), Verdict::KeepUntil(i64::MIN));
        assert_eq!(column.judge(Some(&rule), 7, true, false, 0), Verdict::Collect);
    }

    #[test]
    fn a_cell_that_time_alone_lets_go_stays_until_then() {
        let rule = GcRule::Intersection(vec![GcRule::MaxVersions(1), GcRule::MaxAge(5)]);
        let mut column = ColumnGc::default();
        assert_eq!(column.judge(Some(&rule), 9, true, false, 10), Verdict::Keep);
        assert_eq!(column.judge(Some(&rule), 8, true, false, 10), Verdict::KeepUntil(14));
        assert_eq!(column.judge(Some(&rule), 4, true, false, 10), Verdict::Collect);
    }

    #[test]
    fn without_a_rule_everything_stays() {
        let mut column = ColumnGc::default();
        for timestamp in (0..10).rev() {
            assert_eq!(column.judge(None, timestamp, true, false, i64::MAX), Verdict::Keep);
        }
    }
}
