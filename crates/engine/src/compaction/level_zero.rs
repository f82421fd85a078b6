//! Level 0 as picks look at it: its files by age and by rows at once, so that what a pick asks of one file costs no
//! look at all the others. Of a table that is written in order level 0 has thousands of files, and every one of them may be
//! where a column begins.
//!
//! A file is named by its *place*: its number in level 0, newest first.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use super::ages::ages;
use super::pick::hull;
use super::shape::{Shape, level_files};
use super::sublevels::{Run, overlapping};
use crate::cell::RowRange;
use crate::manifest::{SstRef, Version};

/// See the module.
#[derive(Debug)]
pub(super) struct LevelZero<'a> {
    files: &'a [Arc<SstRef>],
    sublevels: &'a [Run],
    ages: Vec<Range<usize>>,
}

impl<'a> LevelZero<'a> {
    /// Level 0 of a version and its shape.
    pub(super) fn new(version: &'a Version, shape: &'a Shape) -> Self {
        let files = level_files(version, 0);
        Self { files, sublevels: &shape.sublevels, ages: ages(files) }
    }

    /// Its files, newest first.
    pub(super) fn files(&self) -> &'a [Arc<SstRef>] {
        self.files
    }

    /// Its [ages](super::ages), newest first.
    pub(super) fn ages(&self) -> &[Range<usize>] {
        &self.ages
    }

    /// The files that can show rows of `span`.
    pub(super) fn meeting<'b>(&'b self, span: &'b RowRange) -> impl Iterator<Item = usize> + 'b {
        let runs = self.sublevels.iter();
        runs.flat_map(|run| overlapping(run, span)).filter_map(|file| self.place(file))
    }

    /// Whether no newer file shares rows with this one.
    pub(super) fn is_uncovered(&self, at: usize) -> bool {
        self.span(at).is_some_and(|span| !self.meeting(&span).any(|other| other < at))
    }

    /// The file at `seed` and all that has to go down with it, then what lies on top of these within their rows. Of what
    /// shares rows within one age nothing tells which is older: it goes down together.
    pub(super) fn column(&self, seed: usize) -> BTreeSet<usize> {
        let mut taken = BTreeSet::new();
        let Some(mut rows) = self.span(seed) else { return taken };
        // Nothing newer than this age has to go.
        let age = self.age_of(seed);
        let mut newest = seed;
        let mut fresh = BTreeSet::from([seed]);
        // Rows in which nobody has looked yet for what goes since it is older.
        let mut unseen = vec![rows.clone()];
        while !fresh.is_empty() {
            taken.extend(&fresh);
            let mut next = BTreeSet::new();
            for rows in &unseen {
                next.extend(self.meeting(rows).filter(|at| *at >= newest));
            }
            for at in fresh {
                next.extend(self.pieces(at));
                if age.contains(&at)
                    && let Some(span) = self.span(at)
                {
                    next.extend(self.meeting(&span).filter(|other| age.contains(other)));
                }
            }
            next.retain(|at| !taken.contains(at));
            let spans = next.iter().filter_map(|at| self.span(*at));
            let wider = spans.fold(rows.clone(), |rows, span| hull(rows, &span));
            let newer = next.first().map_or(newest, |first| newest.min(*first));
            unseen = if newer < newest { vec![wider.clone()] } else { gained(&rows, &wider) };
            (rows, newest, fresh) = (wider, newer, next);
        }
        let mut above: Vec<usize> = self.meeting(&rows).filter(|at| *at < newest).collect();
        above.sort_unstable();
        for at in above.into_iter().rev() {
            let Some(span) = self.span(at) else { continue };
            let is_over_others = || {
                let mut between =
                    self.meeting(&span).filter(|other| (at + 1..newest).contains(other));
                between.any(|other| !taken.contains(&other))
            };
            if rows.contains_range(&span) && self.pieces(at).len() == 1 && !is_over_others() {
                taken.insert(at);
            }
        }
        taken
    }

    /// Sublevels that have a file of a column with these rows.
    pub(super) fn depth(&self, column: &BTreeSet<usize>, rows: &RowRange) -> usize {
        let has = |file: &Arc<SstRef>| self.place(file).is_some_and(|at| column.contains(&at));
        self.sublevels.iter().filter(|run| overlapping(run, rows).any(has)).count()
    }

    fn span(&self, at: usize) -> Option<RowRange> {
        self.files.get(at).map(|file| file.span())
    }

    fn age_of(&self, at: usize) -> Range<usize> {
        let age = self.ages.partition_point(|age| age.end <= at);
        self.ages.get(age).cloned().unwrap_or(at..at + 1)
    }

    /// All references to the file, which are next to each other: the pieces that dropped rows have left of it.
    fn pieces(&self, at: usize) -> Range<usize> {
        self.files.get(at).map_or(0..0, |file| self.pieces_of(file))
    }

    fn pieces_of(&self, file: &SstRef) -> Range<usize> {
        let order = |file: &SstRef| (file.max_seq, file.id);
        let start = self.files.partition_point(|other| order(other) > order(file));
        start..self.files.partition_point(|other| order(other) >= order(file))
    }

    fn place(&self, file: &SstRef) -> Option<usize> {
        let is_it = |at: &usize| {
            self.files.get(*at).is_some_and(|other| other.first_visible() == file.first_visible())
        };
        self.pieces_of(file).find(is_it)
    }
}

/// The rows of `wider`, which has all of `rows`, that are not in it. Spans of SSTs have an end.
fn gained(rows: &RowRange, wider: &RowRange) -> Vec<RowRange> {
    let mut gained = Vec::new();
    if wider.start < rows.start {
        gained.push(RowRange::new(wider.start.clone(), rows.start.clone()));
    }
    if rows.end < wider.end {
        gained.push(RowRange::new(rows.end.clone(), wider.end.clone()));
    }
    gained
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use crate::compaction::shape::Contents;
    use crate::manifest::VersionEdit;
    use crate::options::{CompactionStyle, EngineOptions};
    use crate::sst::FileId;

    /// The same column by looks at every file, again and again until nothing is added.
    fn plain_column(files: &[Arc<SstRef>], seed: usize) -> BTreeSet<usize> {
        let spans: Vec<RowRange> = files.iter().map(|file| file.span()).collect();
        let ages = ages(files);
        let mut rows = spans[seed].clone();
        let mut taken = BTreeSet::from([seed]);
        let mut newest = seed;
        loop {
            let before = taken.len();
            let ids: HashSet<FileId> = taken.iter().map(|at| files[*at].id).collect();
            for at in 0..files.len() {
                let age = ages.iter().find(|age| age.contains(&at)).unwrap();
                let beside =
                    age.clone().any(|o| taken.contains(&o) && spans[o].overlaps(&spans[at]));
                let under = at >= newest && spans[at].overlaps(&rows);
                if under || beside || ids.contains(&files[at].id) {
                    taken.insert(at);
                    newest = newest.min(at);
                    rows = hull(rows, &spans[at]);
                }
            }
            if taken.len() == before {
                break;
            }
        }
        for at in (0..newest).rev() {
            let over_others = (at + 1..newest)
                .any(|older| !taken.contains(&older) && spans[older].overlaps(&spans[at]));
            let whole = files.iter().filter(|other| other.id == files[at].id).count() == 1;
            if rows.contains_range(&spans[at]) && whole && !over_others {
                taken.insert(at);
            }
        }
        taken
    }

    /// First row, length, least sequence and how many follow it, and where rows were dropped from it.
    type Drawn = (u8, u8, u64, u64, Option<(u8, u8)>);

    fn file() -> impl Strategy<Value = Drawn> {
        (0u8..40, 0u8..12, 0u64..60, 0u64..8, prop::option::of((0u8..40, 1u8..4)))
    }

    fn level_zero(files: &[Drawn]) -> Version {
        let mut version = Version::empty(RowRange::all());
        for (id, (first, len, seq, more, dropped)) in files.iter().enumerate() {
            let rows = (vec![*first].into(), vec![first + len].into());
            let (min_seq, max_seq) = (*seq, seq + more);
            let whole = SstRef { min_seq, max_seq, ..SstRef::of_test(id as u64, 0, rows, 1) };
            let add = match dropped {
                Some((at, len)) => {
                    let dropped = RowRange::new(vec![*at], vec![at + len]);
                    crate::compaction::job::cut(&whole, &dropped)
                }
                None => vec![whole],
            };
            version = version.apply(&VersionEdit { add, ..VersionEdit::default() }).unwrap();
        }
        version
    }

    proptest! {
        #[test]
        fn a_column_is_what_looking_at_every_file_finds(
            files in prop::collection::vec(file(), 1..30),
        ) {
            let version = level_zero(&files);
            let options = EngineOptions::default();
            let contents = |_: &SstRef| Contents::default();
            let shape = Shape::new(&version, &options, CompactionStyle::Leveled, &contents);
            let level_zero = LevelZero::new(&version, &shape);
            let spans: Vec<RowRange> = version.level(0).iter().map(|file| file.span()).collect();
            for (at, span) in spans.iter().enumerate() {
                let column = level_zero.column(at);
                prop_assert_eq!(&column, &plain_column(version.level(0), at), "of {}", at);
                let uncovered = !spans[..at].iter().any(|newer| newer.overlaps(span));
                prop_assert_eq!(level_zero.is_uncovered(at), uncovered);
                let rows = column.iter().map(|at| spans[*at].clone());
                let rows = rows.reduce(|rows, span| hull(rows, &span)).unwrap();
                let taken = |file: &Arc<SstRef>| {
                    column.iter().any(|at| Arc::ptr_eq(file, &version.level(0)[*at]))
                };
                let depth = shape.sublevels.iter().filter(|run| run.iter().any(taken)).count();
                prop_assert_eq!(level_zero.depth(&column, &rows), depth);
            }
        }
    }
}
