//! Versions: the set of live SSTs of a tablet at one moment.
//!
//! A version never changes. Readers hold one as long as they read; an edit makes the next one, which
//! shares the SSTs that stay.
//!
//! ```text
//! level 0    [newest] [...] [oldest]         any rows; newest first by greatest sequence
//! level 1    [a..f] [g..k] [m..t]            sorted; what they show does not overlap
//! ...
//! level 6    [a..b] [c..d] [d1..e] ...
//! ```
//!
//! Invariants, checked by every [`Version::apply`], of what the edit changes; an edit that would break one is refused and
//! changes nothing:
//!
//! * No row of a file is live twice, and a file is live in one level only. Every SST can show some row, and
//!   shows none outside the tablet's range.
//! * SSTs of a level below 0 show disjoint spans of rows (the rows of the file that are visible); no row is
//!   in two of them.
//! * The flushed sequence never decreases.

use std::cmp::Ordering;
use std::sync::Arc;

use bytes::Bytes;

use super::edit::{Excised, LEVELS, SstRef, VersionEdit};
use crate::cell::{RowRange, Seq};
use crate::error::{Error, ErrorKind, Result};
use crate::sst::FileId;

/// The live SSTs of a tablet, immutable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    range: RowRange,
    levels: [Vec<Arc<SstRef>>; LEVELS],
    excised: Vec<Excised>,
    flushed_seq: Seq,
    last_seq: Seq,
}

fn refuse(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument, what.into())
}

fn refuse_sst(sst: &SstRef, what: &str) -> Error {
    refuse(format!("SST {:016x}: {what}", sst.id))
}

/// The order of SSTs of one level: by age in level 0, else by row.
fn in_level(a: &SstRef, b: &SstRef) -> Ordering {
    if a.level == 0 {
        (b.max_seq, b.id).cmp(&(a.max_seq, a.id))
    } else {
        a.first_visible().cmp(b.first_visible())
    }
}

/// Puts SSTs, which are in order, among those of their level, each behind its equals. Each of both is moved once.
fn insert_all(ssts: &mut Vec<Arc<SstRef>>, added: &[Arc<SstRef>]) {
    let mut all = Vec::with_capacity(ssts.len() + added.len());
    let mut rest = std::mem::take(ssts).into_iter();
    for sst in added {
        let before = rest.as_slice().partition_point(|other| in_level(other, sst).is_le());
        all.extend(rest.by_ref().take(before));
        all.push(Arc::clone(sst));
    }
    all.extend(rest);
    *ssts = all;
}

impl Version {
    /// The version of a tablet that holds nothing.
    pub fn empty(range: RowRange) -> Self {
        Self { range, levels: Default::default(), excised: Vec::new(), flushed_seq: 0, last_seq: 0 }
    }

    /// The tablet's rows.
    pub fn range(&self) -> &RowRange {
        &self.range
    }

    /// All levels: level 0 newest first, the others by row.
    pub fn levels(&self) -> &[Vec<Arc<SstRef>>; LEVELS] {
        &self.levels
    }

    /// The SSTs of one level; none for a level that does not exist.
    pub fn level(&self, level: usize) -> &[Arc<SstRef>] {
        self.levels.get(level).map_or(&[], Vec::as_slice)
    }

    /// Dropped ranges.
    pub fn excised(&self) -> &[Excised] {
        &self.excised
    }

    /// Log records of the tablet with sequences up to this one need no replay; 0 before the first flush.
    pub fn flushed_seq(&self) -> Seq {
        self.flushed_seq
    }

    /// The greatest sequence known to have been used.
    pub fn last_seq(&self) -> Seq {
        self.last_seq
    }

    /// The version after `edit`. `InvalidArgument` where the edit does not fit this version.
    pub fn apply(&self, edit: &VersionEdit) -> Result<Self> {
        let mut next = self.clone();
        next.change(edit)?;
        Ok(next)
    }

    /// Makes it the version after `edit`. Where the edit does not fit, it is no version any more.
    pub(super) fn change(&mut self, edit: &VersionEdit) -> Result<()> {
        self.remove(&edit.remove)?;
        if let Some(range) = &edit.range {
            self.set_range(range)?;
        }
        self.add(&edit.add)?;
        self.change_excised(edit)?;
        if let Some(seq) = edit.flushed_seq {
            if seq < self.flushed_seq {
                let old = self.flushed_seq;
                return Err(refuse(format!("flushed sequence would fall from {old} to {seq}")));
            }
            self.flushed_seq = seq;
        }
        let added = edit.add.iter().map(|sst| sst.max_seq).max().unwrap_or(0);
        let told = edit.last_seq.unwrap_or(0).max(edit.flushed_seq.unwrap_or(0));
        self.last_seq = self.last_seq.max(added).max(told);
        Ok(())
    }

    /// Removes all references to these files. Each is to be there, and named once.
    fn remove(&mut self, remove: &[(u8, FileId)]) -> Result<()> {
        let mut remove = remove.to_vec();
        remove.sort_unstable();
        for remove in remove.chunk_by(|a, b| a.0 == b.0) {
            let Some((level, _)) = remove.first() else { continue };
            let ssts = self.levels.get_mut(usize::from(*level));
            let ssts = ssts.ok_or_else(|| refuse(format!("there is no level {level}")))?;
            let is_named = |sst: &mut Arc<SstRef>| remove.binary_search(&(*level, sst.id)).is_ok();
            let mut gone: Vec<FileId> = ssts.extract_if(.., is_named).map(|sst| sst.id).collect();
            gone.sort_unstable();
            gone.dedup();
            let mut gone = gone.into_iter();
            if let Some((_, id)) = remove.iter().find(|(_, id)| gone.next() != Some(*id)) {
                return Err(refuse(format!("SST {id:016x} to remove is not in level {level}")));
            }
        }
        Ok(())
    }

    /// Narrows what the SSTs show. A wider range does not make them show more: the rows were another
    /// tablet's, and only an edit that says so brings them in.
    fn set_range(&mut self, range: &RowRange) -> Result<()> {
        if range.is_empty() {
            return Err(refuse("the tablet's range would be empty"));
        }
        self.range = range.clone();
        for sst in self.levels.iter_mut().flatten() {
            if !range.contains_range(&sst.visible) {
                let visible = sst.visible.intersect(range);
                *sst = Arc::new(SstRef { visible, ..sst.as_ref().clone() });
            }
        }
        self.ssts().try_for_each(|sst| self.check_shows(sst))
    }

    /// Adds SSTs, each at its place. What was there before fits together: only what is new is checked.
    fn add(&mut self, ssts: &[SstRef]) -> Result<()> {
        let mut added: Vec<Arc<SstRef>> = Vec::with_capacity(ssts.len());
        for sst in ssts {
            let visible = sst.visible.intersect(&self.range);
            if sst.min_seq > sst.max_seq {
                return Err(refuse_sst(sst, "its least sequence exceeds its greatest"));
            }
            let sst = Arc::new(SstRef { visible, ..sst.clone() });
            self.check_shows(&sst)?;
            added.push(sst);
        }
        // Most edits have them in order: a snapshot puts each behind those before it.
        added.sort_by(|a, b| a.level.cmp(&b.level).then_with(|| in_level(a, b)));
        for added in added.chunk_by(|a, b| a.level == b.level) {
            let Some(sst) = added.first() else { continue };
            let ssts = self.levels.get_mut(usize::from(sst.level));
            insert_all(ssts.ok_or_else(|| refuse_sst(sst, "there is no such level"))?, added);
        }
        self.check_live_once(&added)?;
        added.iter().filter(|sst| sst.level > 0).try_for_each(|sst| self.check_neighbours(sst))
    }

    fn check_shows(&self, sst: &SstRef) -> Result<()> {
        if sst.overlaps(&self.range) {
            Ok(())
        } else {
            Err(refuse_sst(sst, "it would show no row"))
        }
    }

    /// A file may be live more than once, with visible ranges on both sides of dropped rows; but no row of it twice, and in
    /// one level only, since an edit that removes it names level and file.
    fn check_live_once(&self, added: &[Arc<SstRef>]) -> Result<()> {
        let mut ids: Vec<FileId> = added.iter().map(|sst| sst.id).collect();
        ids.sort_unstable();
        if ids.is_empty() {
            return Ok(());
        }
        let is_added = |sst: &&Arc<SstRef>| ids.binary_search(&sst.id).is_ok();
        let mut shown: Vec<&Arc<SstRef>> = self.ssts().filter(is_added).collect();
        // Pieces of a file that share rows are not the only ones, but those next to each other do.
        let place = |sst: &&Arc<SstRef>| (sst.id, sst.level);
        shown.sort_by(|a, b| {
            place(a).cmp(&place(b)).then_with(|| a.first_visible().cmp(b.first_visible()))
        });
        for pair in shown.windows(2) {
            let [a, b] = pair else { continue };
            if a.id == b.id && (a.level != b.level || !a.ends_before(b.first_visible())) {
                return Err(refuse_sst(b, "it would be live twice"));
            }
        }
        Ok(())
    }

    /// Whether an SST of a level below 0 shares no rows with those beside it, and so with none of its level.
    fn check_neighbours(&self, sst: &SstRef) -> Result<()> {
        let ssts = self.level(usize::from(sst.level));
        let at = ssts.partition_point(|other| in_level(other, sst).is_lt());
        let from = at.saturating_sub(1);
        for pair in ssts.get(from..).unwrap_or_default().windows(2).take(at + 1 - from) {
            let [a, b] = pair else { continue };
            if !a.ends_before(b.first_visible()) {
                let (a, b, level) = (a.id, b.id, sst.level);
                return Err(refuse(format!(
                    "SSTs {a:016x} and {b:016x} of level {level} would overlap"
                )));
            }
        }
        Ok(())
    }

    fn change_excised(&mut self, edit: &VersionEdit) -> Result<()> {
        for excised in &edit.remove_excised {
            let place = self.excised.iter().position(|e| e == excised);
            let place = place.ok_or_else(|| refuse("dropped range to remove is not there"))?;
            self.excised.remove(place);
        }
        for excised in &edit.add_excised {
            if excised.range.is_empty() {
                return Err(refuse("dropped range is empty"));
            }
            if !self.excised.contains(excised) {
                self.excised.push(excised.clone());
            }
        }
        Ok(())
    }

    /// The edit that makes this version of an empty one.
    pub fn snapshot(&self) -> VersionEdit {
        VersionEdit {
            range: Some(self.range.clone()),
            add: self.levels.iter().flatten().map(|sst| sst.as_ref().clone()).collect(),
            remove: Vec::new(),
            flushed_seq: Some(self.flushed_seq),
            add_excised: self.excised.clone(),
            remove_excised: Vec::new(),
            last_seq: Some(self.last_seq),
            tablet: None,
        }
    }

    /// The SSTs of a level that can show rows of `range`, in the order of the level.
    pub fn overlapping<'a>(
        &'a self,
        level: usize,
        range: &'a RowRange,
    ) -> impl Iterator<Item = &'a Arc<SstRef>> + 'a {
        let ssts = self.level(level);
        // Below level 0 the answer is one run of the level; in level 0 every SST is looked at.
        let sorted = level > 0;
        let skip =
            if sorted { ssts.partition_point(|sst| sst.ends_before(&range.start)) } else { 0 };
        ssts.iter()
            .skip(skip)
            .take_while(move |sst| {
                !sorted || range.end.is_empty() || *sst.first_visible() < range.end
            })
            .filter(move |sst| sst.overlaps(range))
    }

    /// The SSTs that can hold something of a row, in the order in which a read looks at them: level 0 from
    /// the newest, then at most one per level.
    pub fn ssts_for_row<'a>(&'a self, row: &'a [u8]) -> impl Iterator<Item = &'a Arc<SstRef>> + 'a {
        let deeper = (1..LEVELS).filter_map(move |level| {
            let ssts = self.level(level);
            ssts.get(ssts.partition_point(|sst| sst.ends_before(row)))
        });
        self.level(0).iter().chain(deeper).filter(move |sst| sst.may_contain(row))
    }

    /// The last sequence at which `row` was dropped with a range, if it was.
    pub fn excised_seq(&self, row: &[u8]) -> Option<Seq> {
        self.excised.iter().filter(|e| e.range.contains(row)).map(|e| e.seq).max()
    }

    /// The SSTs that are live, level by level.
    pub fn ssts(&self) -> impl Iterator<Item = &Arc<SstRef>> {
        self.levels.iter().flatten()
    }

    /// Whether it has this SST just so, at its place in the order of its level.
    pub fn has(&self, sst: &SstRef) -> bool {
        let ssts = self.level(usize::from(sst.level));
        let at = ssts.partition_point(|other| in_level(other, sst).is_lt());
        let mut equals = ssts.iter().skip(at).take_while(|other| in_level(other, sst).is_eq());
        equals.any(|other| other.as_ref() == sst)
    }

    /// Number of live SSTs.
    pub fn sst_count(&self) -> u64 {
        self.levels.iter().map(|ssts| ssts.len() as u64).sum()
    }

    /// Bytes of the SSTs of a level.
    pub fn level_bytes(&self, level: usize) -> u64 {
        self.level(level).iter().fold(0, |sum, sst| sum.saturating_add(sst.bytes))
    }

    /// Bytes of all SSTs.
    pub fn total_bytes(&self) -> u64 {
        self.ssts().fold(0, |sum, sst| sum.saturating_add(sst.bytes))
    }

    /// The greatest row that any SST can hold, or `None` without SSTs. May lie outside of the range.
    pub fn last_row(&self) -> Option<&Bytes> {
        self.ssts().map(|sst| &sst.last_row).max()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub fn sst(id: u64, level: u8, first: &str, last: &str) -> SstRef {
        SstRef {
            id,
            level,
            visible: RowRange::all(),
            bytes: 100 + id,
            first_row: Bytes::copy_from_slice(first.as_bytes()),
            last_row: Bytes::copy_from_slice(last.as_bytes()),
            min_seq: id,
            max_seq: id + 5,
            entries: 10,
        }
    }

    fn range(start: &str, end: &str) -> RowRange {
        RowRange::new(start.as_bytes().to_vec(), end.as_bytes().to_vec())
    }

    fn adding(ssts: &[SstRef]) -> VersionEdit {
        VersionEdit { add: ssts.to_vec(), ..VersionEdit::default() }
    }

    fn built(ssts: &[SstRef]) -> Version {
        Version::empty(RowRange::all()).apply(&adding(ssts)).unwrap()
    }

    fn ids<'a>(ssts: impl IntoIterator<Item = &'a Arc<SstRef>>) -> Vec<u64> {
        ssts.into_iter().map(|sst| sst.id).collect()
    }

    #[test]
    fn level_zero_is_newest_first_and_the_others_are_by_row() {
        let v = built(&[
            sst(3, 0, "a", "z"),
            sst(9, 0, "c", "d"),
            sst(5, 0, "a", "b"),
            sst(4, 2, "m", "p"),
            sst(6, 2, "a", "c"),
        ]);
        assert_eq!(ids(v.level(0)), [9, 5, 3]);
        assert_eq!(ids(v.level(2)), [6, 4]);
        assert_eq!((v.sst_count(), v.level_bytes(2), v.total_bytes()), (5, 210, 527));
        assert_eq!(v.last_seq(), 14, "the clock starts above every record");
        assert_eq!(ids(v.level(7)), [0; 0]);
    }

    #[test]
    fn a_version_has_an_sst_as_long_as_it_shows_the_same_rows_on_the_same_level() {
        let cut =
            |level, start, end| SstRef { visible: range(start, end), ..sst(1, level, "a", "z") };
        for level in [0, 1] {
            let pieces = [cut(level, "", "c"), cut(level, "d", "f"), cut(level, "g", "")];
            let v = built(&pieces);
            assert!(pieces.iter().all(|piece| v.has(piece)));
            assert!(!v.has(&cut(level, "d", "e")) && !v.has(&cut(level + 1, "d", "f")));
            for twice in [cut(level, "e", "f"), cut(level, "b", "d"), cut(level, "", "")] {
                let error = v.apply(&adding(&[twice])).unwrap_err();
                assert!(error.message().contains("live twice"), "{error}");
            }
            v.apply(&adding(&[cut(level, "c", "d")])).unwrap();
        }
    }

    #[test]
    fn a_million_ssts_are_put_in_front_of_a_million() {
        let [first, second] = [sst(1, 1, "a", "a"), sst(2, 1, "b", "b")].map(Arc::new);
        let mut ssts = vec![second; 1_000_000];
        insert_all(&mut ssts, &vec![first; 1_000_000]);
        let runs = ssts.chunk_by(|a, b| a.id == b.id).map(|run| (run[0].id, run.len()));
        assert_eq!(runs.collect::<Vec<_>>(), [(1, 1_000_000), (2, 1_000_000)]);
    }

    #[test]
    fn edits_that_do_not_fit_are_refused() {
        let v = built(&[sst(1, 1, "a", "f"), sst(2, 1, "h", "k"), sst(3, 0, "a", "z")]);
        let v = v.apply(&VersionEdit { flushed_seq: Some(50), ..Default::default() }).unwrap();
        let gone = Excised { range: RowRange::all(), seq: 1 };
        let bad = [
            ("overlap", adding(&[sst(4, 1, "f", "g")])),
            ("overlap", adding(&[sst(4, 1, "b", "c")])),
            ("overlap", adding(&[sst(4, 1, "", "zz")])),
            ("live twice", adding(&[sst(3, 2, "a", "b")])),
            ("no such level", adding(&[sst(4, 7, "a", "b")])),
            ("show no row", adding(&[sst(4, 3, "b", "a")])),
            ("sequence", adding(&[SstRef { min_seq: 99, ..sst(4, 3, "a", "b") }])),
            ("not in level 1", VersionEdit { remove: vec![(1, 2), (1, 4)], ..Default::default() }),
            ("not in level 1", VersionEdit { remove: vec![(1, 2), (1, 2)], ..Default::default() }),
            ("not in level 2", VersionEdit { remove: vec![(2, 1)], ..Default::default() }),
            ("no level 9", VersionEdit { remove: vec![(9, 1)], ..Default::default() }),
            ("fall", VersionEdit { flushed_seq: Some(49), ..Default::default() }),
            ("not there", VersionEdit { remove_excised: vec![gone], ..Default::default() }),
            ("show no row", VersionEdit { range: Some(range("l", "")), ..Default::default() }),
            ("empty", VersionEdit { range: Some(range("l", "l")), ..Default::default() }),
        ];
        for (what, edit) in bad {
            let error = v.apply(&edit).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.message().contains(what), "{what}: {error}");
        }
    }

    #[test]
    fn one_edit_moves_an_sst_down() {
        let v = built(&[sst(1, 0, "a", "f")]);
        let edit = VersionEdit { remove: vec![(0, 1)], ..adding(&[sst(1, 3, "a", "f")]) };
        let v = v.apply(&edit).unwrap();
        assert_eq!((ids(v.level(0)), ids(v.level(3))), (vec![], vec![1]));
    }

    #[test]
    fn spans_count_only_what_is_visible() {
        // The second file begins before the first in rows, and after it in what it shows.
        let mut upper = sst(2, 1, "a", "z");
        upper.visible = range("m", "");
        let v = built(&[upper, sst(1, 1, "b", "k")]);
        assert_eq!(ids(v.level(1)), [1, 2]);
        assert_eq!(ids(v.ssts_for_row(b"c")), [1]);
        assert_eq!(ids(v.ssts_for_row(b"m")), [2]);
        assert_eq!(ids(v.ssts_for_row(b"l")), [0; 0]);
    }

    #[test]
    fn a_narrower_range_hides_rows_for_good() {
        let v = built(&[sst(1, 1, "a", "z"), sst(2, 0, "b", "q")]);
        let narrow =
            v.apply(&VersionEdit { range: Some(range("c", "m")), ..Default::default() }).unwrap();
        assert!(narrow.ssts().all(|sst| sst.visible == range("c", "m")));
        let edit = VersionEdit { range: Some(RowRange::all()), ..Default::default() };
        let wide = narrow.apply(&edit).unwrap();
        assert_eq!(ids(wide.ssts_for_row(b"p")), [0; 0]);
        assert_eq!(ids(wide.ssts_for_row(b"d")), [2, 1]);
    }

    #[test]
    fn dropped_ranges_answer_by_row() {
        let excised = |start, end, seq| Excised { range: range(start, end), seq };
        let edit = VersionEdit {
            add_excised: vec![excised("a", "m", 5), excised("c", "d", 9), excised("a", "m", 5)],
            ..Default::default()
        };
        let v = Version::empty(RowRange::all()).apply(&edit).unwrap();
        assert_eq!(v.excised().len(), 2);
        assert_eq!(
            [v.excised_seq(b"b"), v.excised_seq(b"c"), v.excised_seq(b"m")],
            [Some(5), Some(9), None]
        );
        let edit = VersionEdit { remove_excised: vec![excised("c", "d", 9)], ..Default::default() };
        assert_eq!(v.apply(&edit).unwrap().excised_seq(b"c"), Some(5));
    }

    fn name() -> impl Strategy<Value = String> {
        "[a-e]{0,2}"
    }

    proptest! {
        #[test]
        fn queries_agree_with_looking_at_every_sst(
            tablet in (name(), name()),
            ssts in proptest::collection::vec((0u8..3, name(), name(), name(), name()), 0..25),
            probes in proptest::collection::vec((name(), name()), 1..10),
        ) {
            prop_assume!(!range(&tablet.0, &tablet.1).is_empty());
            let mut v = Version::empty(range(&tablet.0, &tablet.1));
            let mut taken: Vec<SstRef> = Vec::new();
            for (i, (level, first, last, start, end)) in ssts.iter().enumerate() {
                let mut new = sst(i as u64, *level, first, last);
                new.visible = range(start, end);
                // What fits is decided here row by row, over all rows that the names can make.
                let shown = |s: &SstRef| -> Vec<String> {
                    all_names()
                        .filter(|n| s.may_contain(n.as_bytes()) && v.range().contains(n.as_bytes()))
                        .collect()
                };
                let rows = shown(&new);
                let clash = taken.iter().any(|t| {
                    *level > 0 && t.level == *level && shown(t).iter().any(|r| rows.contains(r))
                });
                // Spans begin and end with names, so two of them meet in a name if at all.
                let applied = v.apply(&adding(std::slice::from_ref(&new)));
                prop_assert_eq!(applied.is_ok(), !clash && !rows.is_empty(), "{:?}", new);
                if let Ok(next) = applied {
                    new.visible = new.visible.intersect(v.range());
                    taken.push(new);
                    v = next;
                }
            }
            prop_assert_eq!(v.sst_count() as usize, taken.len());
            prop_assert_eq!(&Version::empty(RowRange::all()).apply(&v.snapshot()).unwrap(), &v);
            for (a, b) in &probes {
                let mut want: Vec<u64> =
                    taken.iter().filter(|s| s.may_contain(a.as_bytes())).map(|s| s.id).collect();
                let mut got = ids(v.ssts_for_row(a.as_bytes()));
                want.sort_unstable();
                got.sort_unstable();
                prop_assert_eq!(got, want);

                let probe = range(a, b);
                for level in 0..3 {
                    let mut want: Vec<u64> = taken
                        .iter()
                        .filter(|s| usize::from(s.level) == level && s.overlaps(&probe))
                        .map(|s| s.id)
                        .collect();
                    let mut got = ids(v.overlapping(level, &probe));
                    want.sort_unstable();
                    got.sort_unstable();
                    prop_assert_eq!(got, want);
                }
            }
        }
    }

    /// An SST as it is drawn: id, level, rows, and what is visible of them where that is not all.
    type Drawn = (u64, u8, String, String, Option<(String, String)>);

    /// An edit of a version by its draws: files that it removes by their places, what it adds, and the rows.
    fn drawn_edit(
        v: &Version,
        remove: &[usize],
        add: &[Drawn],
        rows: Option<&(String, String)>,
    ) -> VersionEdit {
        let there: Vec<(u8, u64)> =
            v.ssts().map(|sst| (sst.level, sst.id)).chain([(1, 99)]).collect();
        let add = add.iter().map(|(id, level, a, b, visible)| SstRef {
            visible: visible.as_ref().map_or_else(RowRange::all, |(start, end)| range(start, end)),
            ..sst(*id, *level, a.min(b), a.max(b))
        });
        VersionEdit {
            remove: remove.iter().map(|at| there[at % there.len()]).collect(),
            add: add.collect(),
            range: rows.map(|(start, end)| range(start, end)),
            ..VersionEdit::default()
        }
    }

    /// What would be live after an edit, looked at as a whole; `None` where that is no version.
    fn plainly(v: &Version, edit: &VersionEdit) -> Option<Vec<SstRef>> {
        let mut ssts: Vec<SstRef> = v.ssts().map(|sst| sst.as_ref().clone()).collect();
        for (level, id) in &edit.remove {
            let before = ssts.len();
            ssts.retain(|sst| (sst.level, sst.id) != (*level, *id));
            if ssts.len() == before {
                return None;
            }
        }
        let rows = edit.range.as_ref().unwrap_or(v.range());
        ssts.extend(edit.add.iter().cloned());
        for sst in &mut ssts {
            sst.visible = sst.visible.intersect(rows);
        }
        let mut fits = !rows.is_empty() && ssts.iter().all(|sst| sst.overlaps(rows));
        for (at, a) in ssts.iter().enumerate() {
            for b in &ssts[at + 1..] {
                let overlap = a.span().overlaps(&b.span());
                fits &= a.id != b.id || (a.level == b.level && !overlap);
                fits &= a.level == 0 || a.level != b.level || !overlap;
            }
        }
        // Those of one file keep their order.
        ssts.sort_by(|a, b| a.level.cmp(&b.level).then_with(|| in_level(a, b)));
        fits.then_some(ssts)
    }

    fn drawn() -> impl Strategy<Value = Drawn> {
        let visible = proptest::option::weighted(0.3, (name(), name()));
        (0u64..12, 0u8..3, name(), name(), visible)
    }

    proptest! {
        #[test]
        fn an_edit_fits_where_all_that_is_live_after_it_fits(
            edits in proptest::collection::vec((
                proptest::collection::vec(0usize..9, 0..3),
                proptest::collection::vec(drawn(), 0..3),
                proptest::option::weighted(0.1, (name(), name())),
            ), 1..20),
        ) {
            let mut v = Version::empty(RowRange::all());
            for (remove, add, rows) in &edits {
                let edit = drawn_edit(&v, remove, add, rows.as_ref());
                let next = v.apply(&edit);
                let want = plainly(&v, &edit);
                let got = next.as_ref().ok().map(|next| {
                    next.ssts().map(|sst| sst.as_ref().clone()).collect::<Vec<_>>()
                });
                prop_assert_eq!(got, want, "{:?} of {:?}", edit, v);
                v = next.unwrap_or(v);
            }
        }
    }

    /// Every name of up to two letters.
    fn all_names() -> impl Iterator<Item = String> {
        let one = ('a'..='e').map(String::from);
        let two = ('a'..='e').flat_map(|a| ('a'..='e').map(move |b| format!("{a}{b}")));
        std::iter::once(String::new()).chain(one).chain(two)
    }
}
