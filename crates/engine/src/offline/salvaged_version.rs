//! The version of a tablet of whose manifest edits are missing.
//!
//! An edit that can be read is true, whatever is missing before it: the files that it adds were live from then on, in that
//! level, and those that it removes were not. What a missing edit removed or moved is another matter: it is still live here,
//! in the place that it had, if a backup or another tablet keeps the file, or it is live elsewhere. Such a file is *stale*
//! where a later edit puts another into its rows and level. So:
//!
//! ```text
//! removal          takes every reference to the file, in whatever level
//! addition         takes the place of references to the same file that are there still
//!  to the last     what is stale goes, in these rows: data of the last level goes nowhere else, so what is left of it is in
//!  level           the new file. So does all else that the compaction which wrote the new file must have merged into it
//!  to another      what is stale stays, under the new file: it may have been moved down, and then nothing else has its rows
//! dropped rows     go from all files that are here; ranges that the edit forgets, too, where the edit is lost that dropped them
//! ```
//!
//! Levels other than 0 can then have files that overlap. In the end each file that lies over another of its level is *lifted*
//! above it, and with it what lies over the two:
//!
//! ```text
//! level 3                                 [h ... m]
//!       4   [h ... m]                    [f ....... p]      added later
//!       5   [f ....... p] + [a ... k]    [a ... k]          stale
//!       6   [a ............... z]        [a ............... z]
//! ```
//!
//! So for every row the order of its files stays that in which reads and compactions take them, and compactions, to which
//! levels above the base level are due, bring them down again. (Level 0 alone could hold all of them, but in the order of
//! their greatest sequences, which says nothing of files whose sequences interleave.) What is lifted from level 1 comes to
//! level 0: in a tablet of seven levels one above the other, and only there, the order may be lost.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};

use bytes::Bytes;

use crate::cell::RowRange;
use crate::compaction::job::cut;
use crate::compaction::shape::LAST_LEVEL;
use crate::error::Result;
use crate::manifest::{Excised, LEVELS, SstRef, Version, VersionEdit};
use crate::sst::FileId;

/// See the module.
#[derive(Debug)]
pub(super) struct SalvagedVersion {
    /// All but the SSTs: rows, dropped ranges, sequences.
    rest: Version,
    /// The SSTs, in the levels that the edits say, in the order in which they were added.
    ssts: Vec<SstRef>,
    /// Others that no edit has removed yet, whose files are not there: the edits that remove them tell what was merged.
    missing: Vec<SstRef>,
    /// Those of both that were here when an edit was lost, which may have removed, moved or cut them. Of what was added since,
    /// every edit is known.
    doubtful: HashSet<FileId>,
    /// An edit was lost before: the log may have to be replayed from where the one before it says.
    has_lost: bool,
}

impl SalvagedVersion {
    /// What a snapshot says. SSTs count while they are in `existing`: others were compacted away later.
    pub(super) fn new(snapshot: VersionEdit, existing: &HashSet<FileId>) -> Option<Self> {
        let rest = Version::empty(snapshot.range.clone()?);
        let (ssts, missing, doubtful) = (Vec::new(), Vec::new(), HashSet::new());
        let mut salvaged = Self { rest, ssts, missing, doubtful, has_lost: false };
        salvaged.apply(snapshot, existing).then_some(salvaged)
    }

    /// Takes note that an edit is lost before the next one.
    pub(super) fn lost_edit(&mut self) {
        self.has_lost = true;
        self.doubtful.extend(self.ssts.iter().chain(&self.missing).map(|sst| sst.id));
    }

    /// Takes in the next edit that can be read, as far as it fits; `false` where it cannot be used.
    pub(super) fn apply(&mut self, edit: VersionEdit, existing: &HashSet<FileId>) -> bool {
        let VersionEdit {
            range,
            add,
            remove,
            flushed_seq,
            add_excised,
            remove_excised,
            last_seq,
            // Whose it is was looked at before.
            tablet: _,
        } = edit;
        let drops_rows = last_seq.is_some();
        let flushed_seq = flushed_seq.map(|seq| seq.max(self.rest.flushed_seq()));
        let flushed = flushed_seq.unwrap_or(self.rest.flushed_seq());
        // Those that the edit forgets hid nothing in memory by then. Where the edit is lost that said so of the memory, the log has what they
        // hide; where it is the one that dropped the rows, it is said here for the first time.
        let mut dropped = add_excised.clone();
        let (mut forgotten, mut kept) = (Vec::new(), add_excised);
        for excised in remove_excised {
            let is_known = self.rest.excised().contains(&excised);
            let within = |wider: &Excised| wider.range.contains_range(&excised.range);
            let hides = self.has_lost && excised.seq > flushed && !kept.iter().any(within);
            match (is_known, hides) {
                (true, false) => forgotten.push(excised),
                (false, true) => {
                    dropped.push(excised.clone());
                    kept.push(excised);
                }
                (false, false) => dropped.push(excised),
                (true, true) => {}
            }
        }
        let of_rest = VersionEdit {
            range: range.clone(),
            flushed_seq,
            remove_excised: forgotten,
            last_seq: add.iter().map(|sst| sst.max_seq).chain(last_seq).max(),
            add_excised: kept,
            ..VersionEdit::default()
        };
        let Ok(rest) = self.rest.apply(&of_rest) else { return false };
        self.rest = rest;
        if let Some(range) = range {
            self.narrow(&range);
        }
        for excised in &dropped {
            self.take_out(&excised.range, |sst| sst.max_seq <= excised.seq);
        }
        let removed: HashSet<FileId> = remove.iter().map(|(_, id)| *id).collect();
        let is_removed = |sst: &mut SstRef| removed.contains(&sst.id);
        let mut gone: Vec<SstRef> = self.ssts.extract_if(.., is_removed).collect();
        gone.extend(self.missing.extract_if(.., is_removed));
        let (add, missing) = add
            .into_iter()
            .filter(|sst| sst.min_seq <= sst.max_seq)
            .map(|sst| SstRef { visible: sst.visible.intersect(self.rest.range()), ..sst })
            .filter(|sst| sst.overlaps(self.rest.range()))
            .partition::<Vec<_>, _>(|sst| existing.contains(&sst.id));
        self.take_out_stale(&add);
        // A compaction wrote these: what was moved, cut by rows that were dropped, or left by a compaction that goes on, is removed
        // by the edit, too.
        let is_new = |sst: &&SstRef| !removed.contains(&sst.id);
        let new: Vec<SstRef> = add.iter().filter(is_new).cloned().collect();
        let left: Vec<&SstRef> = add.iter().chain(&missing).filter(|sst| !is_new(sst)).collect();
        let wrote = new.iter().any(|sst| sst.level == LAST_LEVEL);
        // Of a part of a compaction of which all was deleted or had expired nothing is written.
        let of_last = remove.iter().any(|(level, _)| *level == LAST_LEVEL);
        let wrote_nothing = of_last && !drops_rows && new.is_empty() && !left.is_empty();
        if (wrote || wrote_nothing) && !missing.iter().any(|sst| is_new(&sst)) {
            let merged = gone.into_iter().flat_map(|old| without(old, &left)).collect::<Vec<_>>();
            self.take_out_merged(&new, &merged);
        }
        for sst in add.iter().chain(&missing) {
            self.doubtful.remove(&sst.id);
        }
        self.ssts.extend(add);
        self.missing.extend(missing);
        true
    }

    fn narrow(&mut self, range: &RowRange) {
        for ssts in [&mut self.ssts, &mut self.missing] {
            for sst in ssts.iter_mut() {
                sst.visible = sst.visible.intersect(range);
            }
            ssts.retain(|sst| sst.overlaps(range));
        }
    }

    /// Takes these rows out of the SSTs that `of` names.
    fn take_out(&mut self, rows: &RowRange, of: impl Fn(&SstRef) -> bool) {
        if self.ssts.iter().any(|sst| of(sst) && sst.span().overlaps(rows)) {
            let cut = |sst: SstRef| {
                if of(&sst) && sst.span().overlaps(rows) { cut(&sst, rows) } else { vec![sst] }
            };
            self.ssts = std::mem::take(&mut self.ssts).into_iter().flat_map(cut).collect();
        }
    }

    /// Takes out what cannot be live beside files that an edit adds.
    fn take_out_stale(&mut self, add: &[SstRef]) {
        for new in add {
            let span = new.span();
            self.ssts.retain(|old| {
                old.id != new.id || (old.level == new.level && !old.span().overlaps(&span))
            });
            if new.level == LAST_LEVEL {
                self.take_out(&span, |old| old.level == LAST_LEVEL);
            }
        }
    }

    /// Takes out what a compaction of `gone` into the last level must have merged into `new`, had it been there: of the last
    /// level all between its first row and its last, of level 0 what is older than its inputs in their rows. Only of what is
    /// doubtful, and by the rows of what is not: a lost edit may have cut that.
    fn take_out_merged(&mut self, new: &[SstRef], gone: &[SstRef]) {
        let doubtful = std::mem::take(&mut self.doubtful);
        let is_doubtful = |sst: &SstRef| doubtful.contains(&sst.id);
        let gone = || gone.iter().filter(|sst| !is_doubtful(sst));
        let spans = || new.iter().chain(gone()).map(SstRef::span);
        // Spans of SSTs have an end.
        if let (Some(start), Some(end)) =
            (spans().map(|span| span.start).min(), spans().map(|span| span.end).max())
        {
            let rows = RowRange { start, end };
            self.take_out(&rows, |old| is_doubtful(old) && old.level == LAST_LEVEL);
        }
        for taken in gone().filter(|sst| sst.level == 0) {
            let age = (taken.max_seq, taken.id);
            let is_older = |old: &SstRef| old.level == 0 && (old.max_seq, old.id) < age;
            self.take_out(&taken.span(), |old| is_doubtful(old) && is_older(old));
        }
        self.doubtful = doubtful;
    }

    /// The version. What it shows of a file that is cut has `bytes`, by which writes are refused and compactions picked: not the whole
    /// file's in each piece.
    pub(super) fn finish(mut self, bytes: impl Fn(&SstRef) -> u64) -> Result<Version> {
        for cut in self.ssts.iter_mut().filter(|sst| sst.is_cut()) {
            cut.bytes = cut.bytes.min(bytes(cut)).max(1);
        }
        let add = lifted(self.ssts);
        self.rest.apply(&VersionEdit { add, ..VersionEdit::default() })
    }
}

/// What an SST has shown that `left` of it do not.
fn without(old: SstRef, left: &[&SstRef]) -> Vec<SstRef> {
    left.iter().filter(|sst| sst.id == old.id).fold(vec![old.clone()], |parts, left| {
        parts.iter().flat_map(|part| cut(part, &left.span())).collect()
    })
}

/// The SSTs, given in the order in which they were added, in levels in which none of them overlap; see the module.
fn lifted(mut ssts: Vec<SstRef>) -> Vec<SstRef> {
    let mut added: HashMap<FileId, usize> = HashMap::new();
    for (at, sst) in ssts.iter().enumerate() {
        added.entry(sst.id).or_insert(at);
    }
    // What lies lowest comes first; all references to a file together, as they stay in one level.
    ssts.sort_by_key(|sst| (Reverse(sst.level), added.get(&sst.id).copied()));
    // Of each level but 0 the spans that are taken, by their starts.
    let mut levels: [BTreeMap<Bytes, Bytes>; LEVELS] = Default::default();
    for file in ssts.chunk_by_mut(|a, b| a.id == b.id) {
        let spans: Vec<RowRange> = file.iter().map(SstRef::span).collect();
        let over = |taken: &BTreeMap<Bytes, Bytes>| {
            // Spans of SSTs have an end.
            let last = |span: &RowRange| taken.range(..span.end.clone()).next_back();
            spans.iter().any(|span| last(span).is_some_and(|(_, end)| *end > span.start))
        };
        let highest = levels.iter().position(over);
        for (sst, span) in file.iter_mut().zip(&spans) {
            if let Some(below) = highest {
                sst.level = sst.level.min((below as u8).saturating_sub(1));
            }
            if sst.level > 0
                && let Some(taken) = levels.get_mut(usize::from(sst.level))
            {
                taken.insert(span.start.clone(), span.end.clone());
            }
        }
    }
    ssts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::manifest::Excised;

    fn sst(id: u64, level: u8, rows: (&'static str, &'static str), seqs: (u64, u64)) -> SstRef {
        SstRef {
            id,
            level,
            visible: RowRange::all(),
            bytes: 100,
            first_row: Bytes::from_static(rows.0.as_bytes()),
            last_row: Bytes::from_static(rows.1.as_bytes()),
            min_seq: seqs.0,
            max_seq: seqs.1,
            entries: 10,
        }
    }

    fn edit(remove: &[(u8, u64)], add: &[SstRef]) -> VersionEdit {
        VersionEdit { remove: remove.to_vec(), add: add.to_vec(), ..VersionEdit::default() }
    }

    /// Salvages the edits without those that are damaged. All but the last must fit as they are, one after the other.
    fn salvaged(edits: &[VersionEdit], damaged: &[usize], existing: &[u64]) -> Version {
        let range = Some(RowRange::all());
        let mut whole = Version::empty(RowRange::all());
        for edit in edits {
            whole = whole.apply(edit).unwrap();
        }
        let existing = existing.iter().copied().collect();
        let snapshot = VersionEdit { range, ..edits[0].clone() };
        let mut salvaged = SalvagedVersion::new(snapshot, &existing).unwrap();
        for (at, edit) in edits.iter().enumerate().skip(1) {
            if damaged.contains(&at) {
                salvaged.lost_edit();
            } else {
                assert!(salvaged.apply(edit.clone(), &existing), "edit {at}");
            }
        }
        salvaged.finish(|sst| sst.bytes).unwrap()
    }

    /// Level, file and what it shows, level by level.
    fn shown(version: &Version) -> Vec<(u8, u64, String)> {
        let text = |sst: &SstRef| {
            let span = sst.span();
            format!("{}..{}", span.start.escape_ascii(), span.end.escape_ascii())
        };
        version.ssts().map(|sst| (sst.level, sst.id, text(sst))).collect()
    }

    fn places(version: &Version, row: &str) -> Vec<(u8, u64)> {
        version.ssts_for_row(row.as_bytes()).map(|sst| (sst.level, sst.id)).collect()
    }

    #[test]
    fn files_that_a_backup_keeps_go_from_the_last_level_where_later_ones_have_their_rows() {
        let edits = [
            edit(&[], &[sst(1, 6, ("a", "k"), (1, 9)), sst(2, 6, ("l", "z"), (1, 9))]),
            edit(&[], &[sst(3, 0, ("b", "x"), (20, 29))]),
            edit(&[(0, 3), (6, 1), (6, 2)], &[sst(4, 6, ("a", "z"), (1, 29))]),
            edit(&[], &[sst(5, 0, ("c", "x"), (30, 39))]),
            edit(
                &[(0, 5), (6, 4)],
                &[sst(6, 6, ("d", "p"), (1, 39)), sst(7, 6, ("r", "v"), (1, 39))],
            ),
        ];
        let version = salvaged(&edits, &[2], &[1, 2, 3, 6, 7]);
        // What the compaction let go between its first row and its last is not there again; what nobody knows of stays.
        assert_eq!(
            shown(&version),
            [
                (0, 3, "b..c".to_owned()),
                (6, 1, "a..c".to_owned()),
                (6, 6, "d..p\\x00".to_owned()),
                (6, 7, "r..v\\x00".to_owned()),
                (6, 2, "x\\x00..z\\x00".to_owned()),
            ]
        );
    }

    #[test]
    fn what_a_compaction_has_not_come_to_stays_when_what_it_has_done_is_all_that_is_known_of_it() {
        let low = [sst(1, 6, ("a", "k"), (1, 9)), sst(2, 6, ("l", "z"), (1, 9))];
        let old = sst(8, 0, ("c", "s"), (10, 19));
        let new = sst(3, 0, ("a", "z"), (20, 29));
        let to = |end: &'static str| RowRange::new("", end);
        let left = |files: &[&SstRef], end| {
            files.iter().flat_map(|sst| cut(sst, &to(end))).collect::<Vec<_>>()
        };
        let mut second = left(&[&new, &low[1]], "n");
        second.push(sst(5, 6, ("g", "m"), (1, 29)));
        let mut first = left(&[&old, &new, &low[0]], "g");
        first.push(sst(4, 6, ("a", "f"), (1, 29)));
        let edits = [
            edit(&[], &[low[0].clone(), low[1].clone(), old.clone()]),
            edit(&[], &[sst(9, 0, ("x", "y"), (10, 19))]),
            edit(&[], std::slice::from_ref(&new)),
            edit(&[(0, 8), (0, 3), (6, 1)], &first),
        ];
        let version = salvaged(&edits, &[1], &[1, 2, 3, 4, 8]);
        assert_eq!(places(&version, "d"), [(6, 4)]);
        assert_eq!(places(&version, "h"), [(0, 3), (0, 8), (6, 1)]);
        assert_eq!(places(&version, "m"), [(0, 3), (0, 8), (6, 2)]);
        // The next part is known, too, and what it let go is not there any more.
        let edits = [
            edits[0].clone(),
            edits[1].clone(),
            edits[2].clone(),
            edits[3].clone(),
            edit(&[(0, 8), (0, 3), (6, 1), (6, 2)], &second),
        ];
        let version = salvaged(&edits, &[1], &[2, 3, 4, 5]);
        assert_eq!(places(&version, "d"), [(6, 4)]);
        assert_eq!(places(&version, "h"), [(6, 5)]);
        assert_eq!(places(&version, "p"), [(0, 3), (6, 2)]);
    }

    #[test]
    fn rows_of_which_a_part_of_a_compaction_has_left_nothing_do_not_come_back() {
        let low = [("a", "f"), ("g", "m"), ("n", "z")];
        let low: Vec<_> = (2..).zip(low).map(|(id, rows)| sst(id, 6, rows, (1, 19))).collect();
        let deletes = sst(5, 0, ("a", "z"), (20, 29));
        let left = |end: &'static str| cut(&deletes, &RowRange::new("", end));
        let mut first = left("g");
        first.push(sst(6, 6, ("a", "c"), (1, 9)));
        let edits = [
            edit(&[], &[sst(1, 6, ("a", "z"), (1, 9))]),
            // A backup keeps what this one replaces.
            edit(&[(6, 1)], &low),
            edit(&[], std::slice::from_ref(&deletes)),
            edit(&[(0, 5), (6, 2)], &first),
            edit(&[(0, 5), (6, 3)], &left("n")),
        ];
        let version = salvaged(&edits, &[1], &[1, 4, 5, 6]);
        assert_eq!(places(&version, "b"), [(6, 6)]);
        assert_eq!(places(&version, "h"), [], "all that was there is deleted");
        assert_eq!(places(&version, "p"), [(0, 5), (6, 1)], "what nobody knows of stays");
    }

    #[test]
    fn rows_that_were_written_where_a_lost_edit_had_dropped_others_stay() {
        let low = sst(1, 6, ("a", "z"), (1, 9));
        let dropped = Excised { range: RowRange::new("d", ""), seq: 10 };
        let edits = [
            edit(&[], std::slice::from_ref(&low)),
            edit(&[(6, 1)], &cut(&low, &dropped.range)),
            edit(&[], &[sst(5, 0, ("m", "p"), (20, 29))]),
            edit(&[(0, 5)], &[sst(6, 6, ("m", "p"), (20, 29))]),
            edit(&[], &[sst(7, 0, ("a", "c"), (30, 39))]),
            // Between these rows and the dropped ones there was nothing to merge.
            edit(&[(0, 7), (6, 1)], &[sst(8, 6, ("a", "c"), (1, 39))]),
        ];
        let left = [(6, 8, "a..c\\x00".to_owned()), (6, 6, "m..p\\x00".to_owned())];
        assert_eq!(shown(&salvaged(&edits, &[1], &[6, 8])), left);
        // A backup keeps the file that was cut.
        assert_eq!(shown(&salvaged(&edits, &[1], &[1, 6, 8])), left);
    }

    #[test]
    fn rows_that_were_dropped_with_nothing_in_memory_do_not_come_back_with_what_a_lost_edit_had_removed()
     {
        let dropped = Excised { range: RowRange::new("m", "p"), seq: 20 };
        let merged = sst(3, 6, ("a", "z"), (1, 19));
        let edits = [
            edit(&[], &[sst(1, 6, ("a", "z"), (1, 9)), sst(2, 0, ("a", "z"), (10, 19))]),
            edit(&[(6, 1), (0, 2)], std::slice::from_ref(&merged)),
            VersionEdit {
                add_excised: vec![dropped.clone()],
                last_seq: Some(20),
                ..edit(&[(6, 3)], &cut(&merged, &dropped.range))
            },
            VersionEdit {
                remove_excised: vec![dropped.clone()],
                flushed_seq: Some(39),
                ..edit(&[], &[sst(4, 0, ("n", "n"), (30, 39))])
            },
        ];
        let version = salvaged(&edits, &[1], &[1, 2, 3, 4]);
        assert_eq!(places(&version, "b"), [(0, 2), (6, 3)]);
        assert_eq!(places(&version, "m"), []);
        assert_eq!(places(&version, "n"), [(0, 4)], "written again");
        assert_eq!(version.excised(), []);
        // The next edit says it, too, where that of the drop is lost.
        let version = salvaged(&edits, &[1, 2], &[1, 2, 3, 4]);
        assert_eq!(places(&version, "b"), [(0, 2), (6, 1)]);
        assert_eq!(places(&version, "m"), []);
        assert_eq!(places(&version, "n"), [(0, 4)], "written again");
    }

    #[test]
    fn rows_that_were_dropped_stay_away_though_the_log_is_replayed_from_before_a_lost_flush() {
        let dropped = Excised { range: RowRange::new("m", "p"), seq: 20 };
        let edits = [
            edit(&[], &[]),
            VersionEdit { flushed_seq: Some(9), ..edit(&[], &[sst(1, 0, ("a", "z"), (1, 9))]) },
            VersionEdit {
                add_excised: vec![dropped.clone()],
                last_seq: Some(20),
                ..edit(&[], &[])
            },
            VersionEdit { remove_excised: vec![dropped.clone()], ..edit(&[], &[]) },
        ];
        for lost in [&[1][..], &[1, 2]] {
            let version = salvaged(&edits, lost, &[1]);
            assert_eq!(version.excised(), std::slice::from_ref(&dropped), "{lost:?}");
        }
        assert_eq!(salvaged(&edits, &[], &[1]).excised(), []);
    }

    #[test]
    fn a_file_whose_move_is_lost_lies_under_what_came_into_its_old_level_later() {
        let low = [sst(1, 6, ("a", "z"), (1, 9)), sst(2, 4, ("f", "p"), (10, 19))];
        let edits = [
            edit(&[], &low),
            edit(&[(4, 2)], &[sst(2, 5, ("f", "p"), (10, 19))]),
            edit(&[], &[sst(3, 0, ("a", "k"), (20, 29)), sst(8, 0, ("x", "z"), (20, 29))]),
            edit(&[(0, 3)], &[sst(4, 4, ("a", "k"), (20, 29))]),
            edit(&[(0, 8)], &[sst(8, 4, ("x", "z"), (20, 29))]),
            // Rows are dropped, and the file is cut in the level in which it was by then.
            VersionEdit {
                add_excised: vec![Excised { range: RowRange::new("g", "h"), seq: 30 }],
                ..edit(
                    &[(5, 2), (4, 4)],
                    &cut(&low[1], &RowRange::new("g", "h"))
                        .into_iter()
                        .map(|sst| SstRef { level: 5, ..sst })
                        .chain(cut(&sst(4, 4, ("a", "k"), (20, 29)), &RowRange::new("g", "h")))
                        .collect::<Vec<_>>(),
                )
            },
            edit(&[(4, 4), (5, 2)], &[sst(5, 5, ("a", "p"), (10, 29))]),
        ];
        let before = salvaged(&edits[..5], &[1], &[1, 2, 4, 8]);
        assert_eq!(places(&before, "g"), [(3, 4), (4, 2), (6, 1)]);
        assert_eq!(places(&before, "m"), [(4, 2), (6, 1)]);
        assert_eq!(places(&before, "y"), [(4, 8), (6, 1)]);
        let dropped = salvaged(&edits[..6], &[1], &[1, 2, 4, 8]);
        assert_eq!(places(&dropped, "f"), [(4, 4), (5, 2), (6, 1)]);
        assert_eq!(places(&dropped, "g"), [], "dropped, of what the edit did not name, too");
        assert_eq!(dropped.excised().len(), 1);
        let after = salvaged(&edits, &[1], &[1, 5, 8]);
        assert_eq!(places(&after, "g"), [(5, 5)]);
        assert_eq!(places(&after, "y"), [(4, 8), (6, 1)]);
    }

    #[test]
    fn what_is_left_of_a_cut_file_has_its_own_bytes() {
        let range = Some(RowRange::all());
        let add = [sst(1, 0, ("a", "z"), (1, 9)), sst(2, 0, ("a", "z"), (10, 19))];
        let snapshot = VersionEdit { range, ..edit(&[], &add) };
        let existing = HashSet::from([1, 2]);
        let mut salvaged = SalvagedVersion::new(snapshot, &existing).unwrap();
        // The edit lacks what it left of a file that was live elsewhere.
        let drops = VersionEdit {
            add_excised: vec![Excised { range: RowRange::new("c", "d"), seq: 9 }],
            last_seq: Some(9),
            ..VersionEdit::default()
        };
        assert!(salvaged.apply(drops, &existing));
        let version = salvaged.finish(|cut| if *cut.visible.start == *b"d" { 70 } else { 20 });
        let bytes: Vec<(u64, u64)> =
            version.unwrap().ssts().map(|sst| (sst.id, sst.bytes)).collect();
        assert_eq!(bytes, [(2, 100), (1, 20), (1, 70)]);
    }

    #[test]
    fn what_lies_over_a_file_that_is_lifted_is_lifted_with_it() {
        let edits = [
            edit(&[], &[sst(1, 6, ("a", "z"), (1, 9)), sst(2, 5, ("a", "k"), (10, 19))]),
            edit(&[(5, 2)], &[sst(3, 5, ("a", "k"), (1, 19))]),
            edit(&[(5, 3)], &[sst(4, 5, ("f", "p"), (1, 29))]),
            edit(&[], &[sst(5, 4, ("h", "m"), (30, 39)), sst(6, 4, ("x", "z"), (30, 39))]),
            edit(&[], &[sst(7, 0, ("a", "z"), (40, 49))]),
        ];
        let version = salvaged(&edits, &[1], &[1, 2, 4, 5, 6, 7]);
        assert_eq!(places(&version, "i"), [(0, 7), (3, 5), (4, 4), (5, 2), (6, 1)]);
        assert_eq!(places(&version, "m"), [(0, 7), (3, 5), (4, 4), (6, 1)]);
        assert_eq!(places(&version, "y"), [(0, 7), (4, 6), (6, 1)]);
    }

    proptest! {
        #[test]
        fn files_that_are_lifted_fit_and_keep_the_order_of_every_row(
            files in prop::collection::vec((1u8..7, 0u8..20, 0u8..8), 0..12),
        ) {
            let file = |(id, (level, first, len)): (usize, &(u8, u8, u8))| SstRef {
                first_row: Bytes::from(vec![*first]),
                last_row: Bytes::from(vec![first + len]),
                ..sst(id as u64, *level, ("", ""), (1, 9))
            };
            let ssts: Vec<SstRef> = files.iter().enumerate().map(file).collect();
            let out = lifted(ssts.clone());
            prop_assert_eq!(out.len(), ssts.len());
            let level = |id: u64| out.iter().find(|sst| sst.id == id).unwrap().level;
            for (at, old) in ssts.iter().enumerate() {
                prop_assert!(level(old.id) <= old.level);
                let shares = |new: &&SstRef| new.level == old.level && new.span().overlaps(&old.span());
                for new in ssts[at + 1..].iter().filter(shares) {
                    prop_assert!(level(new.id) < level(old.id) || level(old.id) == 0);
                }
                for low in ssts.iter().filter(|o| o.level > old.level && o.span().overlaps(&old.span())) {
                    prop_assert!(level(old.id) < level(low.id) || level(low.id) == 0);
                }
                let above = |o: &&SstRef| o.id != old.id && o.span().overlaps(&old.span());
                if !ssts.iter().any(|o| above(&o)) {
                    prop_assert_eq!(level(old.id), old.level, "nothing is lifted for nothing");
                }
            }
            Version::empty(RowRange::all()).apply(&edit(&[], &out)).unwrap();
        }
    }
}
