//! Where a job cuts its outputs. A file that ends where one of the next level ends will not drag along a
//! neighbour that it barely touches when it is compacted in turn.
//!
//! ```text
//! output       [.......|......]      cut at the boundary, the left file meets 1 and 2, the right one 3 and 4;
//! next level   [ 1 ][ 2 ][ 3 ][ 4 ]  cut anywhere between, both would meet 2 or 3 as well
//! ```
//!
//! A flush is cut so that parts of level 0 can go down side by side: into a few parts, at boundaries of what it will be merged
//! with. All flushes have to be cut at the same ones, or each part lies over two of the flush before, and what goes down together
//! (a column, see [`super::pick`]) is all of level 0:
//!
//! ```text
//! newest flush  [...][....][...]     [..][.....][...]
//!               [...][....][...]     [....][...][...]      at other boundaries each time, though the level has all of them
//!               [...][....][...]     [...][.....][..]
//! base level    [1][2][3][4][5][6]   [1][2][3][4][5][6]
//! ```

use std::collections::BTreeMap;

use bytes::Bytes;

use super::shape::{LAST_LEVEL, level_files, targets};
use crate::cell::row_prefix;
use crate::manifest::Version;
use crate::options::{CompactionStyle, EngineOptions};

/// Of the target, what a file must have for it to be cut at the first boundary that it comes to, in percent. The
/// further boundaries it has passed, the more are to come before the target is reached: it asks for more.
const BOUNDARY_PERCENT_MIN: u64 = 50;
const BOUNDARY_PERCENT_STEP: u64 = 5;
const BOUNDARY_PERCENT_MAX: u64 = 90;

/// Parts that a flush is cut into at most. Played through (`pick/simulation.rs`), the number does not change what
/// is written in all; it is for the time that a compaction of level 0 takes, which is the step in which writers
/// that wait for room are let in. More make files of a few megabytes.
const FLUSH_PARTS: usize = 8;

/// Bytes of a part of a flush at least, as a part of a memtable: an eighth of what it has where rows come from everywhere, so that
/// chance does not join two of them, and a mebibyte by default.
const FLUSH_PART_SHARE: u64 = 64;

/// Where outputs of one level are cut.
#[derive(Debug, Clone)]
pub(crate) struct CutRule {
    rows: Vec<Bytes>,
    /// Bytes from which a file is cut wherever it is.
    full: u64,
    /// Bytes of a file that is cut at every boundary; where `None`, the percents above count.
    least: Option<u64>,
}

impl CutRule {
    /// For outputs of `level` beside `version`.
    pub(crate) fn new(
        version: &Version,
        options: &EngineOptions,
        style: CompactionStyle,
        level: u8,
    ) -> Self {
        match level {
            0 if style == CompactionStyle::Tiered => Self {
                rows: starts(version, LAST_LEVEL).collect(),
                // Merges within level 0 make as much as the last level has.
                full: options.target_file_bytes,
                least: Some(options.memtable_bytes / FLUSH_PARTS as u64),
            },
            0 => Self {
                rows: parts_of_flushes(version, targets(version, options, style).base_level),
                full: u64::MAX,
                least: Some(options.memtable_bytes / FLUSH_PART_SHARE),
            },
            LAST_LEVEL => Self::by_size(options),
            _ => Self { rows: starts(version, level + 1).collect(), ..Self::by_size(options) },
        }
    }

    /// By size alone.
    fn by_size(options: &EngineOptions) -> Self {
        Self { rows: Vec::new(), full: options.target_file_bytes, least: None }
    }

    #[cfg(test)]
    pub(super) fn boundaries(&self) -> impl Iterator<Item = &[u8]> {
        self.rows.iter().map(|row| row.as_ref())
    }

    /// For one run of records in order.
    pub(crate) fn start(&self) -> Cutter {
        let boundaries = self.rows.iter().map(|row| row_prefix(row)).collect();
        Cutter { boundaries, at: 0, passed: 0, full: self.full, least: self.least }
    }
}

/// Where the files of a level begin.
fn starts(version: &Version, level: u8) -> impl Iterator<Item = Bytes> {
    level_files(version, level).iter().map(|file| file.first_visible().clone())
}

/// Where flushes of a leveled tablet are cut: into [`FLUSH_PARTS`] with about as many bytes below them, at boundaries that as few files
/// as can be lie across of what is above: so the parts of all flushes lie one over the other, also while the level below changes.
fn parts_of_flushes(version: &Version, base_level: u8) -> Vec<Bytes> {
    let level = divides_flushes(version, base_level);
    let files = level_files(version, level);
    if files.len() <= FLUSH_PARTS {
        return starts(version, level).collect();
    }
    let above = std::iter::once(0).chain(base_level..level);
    let spans = above.flat_map(|level| level_files(version, level)).map(|file| file.span());
    let (mut starts, mut ends): (Vec<_>, Vec<_>) = spans.map(|s| (s.start, s.end)).unzip();
    starts.sort_unstable();
    ends.sort_unstable();
    let across = |row: &Bytes| {
        let begun = starts.partition_point(|start| start < row);
        begun - ends.partition_point(|end| end <= row).min(begun)
    };
    let all: u128 = files.iter().map(|file| u128::from(file.bytes)).sum::<u128>().max(1);
    let count = FLUSH_PARTS as u128;
    // By the part that each would begin: what lies across, how far it is from where that part should begin, and the boundary.
    let mut best: BTreeMap<u128, (usize, u128, &Bytes)> = BTreeMap::new();
    let mut before = 0;
    for file in files {
        // In bytes, times the number of parts.
        let at = before * count;
        before += u128::from(file.bytes);
        let part = (at + all / 2) / all;
        if part == 0 || part >= count {
            continue;
        }
        let row = file.first_visible();
        let found = (across(row), at.abs_diff(part * all), row);
        let known = best.entry(part).or_insert(found);
        *known = found.min(*known);
    }
    best.into_values().map(|(.., row)| row.clone()).collect()
}

/// The level by whose files flushes are divided: the base level, or the first one below it where that has too few of them. It may be
/// empty, as level 0 goes on past what would hold less than itself, and what lies deeper is what level 0 is merged with then.
fn divides_flushes(version: &Version, base_level: u8) -> u8 {
    let files = |level: &u8| level_files(version, *level).len();
    let enough = (base_level..LAST_LEVEL).find(|level| files(level) >= FLUSH_PARTS);
    // The deepest of those with the most.
    enough.or_else(|| (base_level..=LAST_LEVEL).max_by_key(files)).unwrap_or(LAST_LEVEL)
}

/// Goes along with the rows of one run.
#[derive(Debug)]
pub(crate) struct Cutter {
    /// Encoded, ascending.
    boundaries: Vec<Vec<u8>>,
    /// The next one.
    at: usize,
    /// Those within the open file.
    passed: u64,
    full: u64,
    least: Option<u64>,
}

impl Cutter {
    /// Whether the open file, of `bytes` so far, ends before the row with this prefix. Rows ascend.
    pub(crate) fn cuts_before(&mut self, row_prefix: &[u8], bytes: u64) -> bool {
        let before = self.at;
        while self.boundaries.get(self.at).is_some_and(|b| b.as_slice() <= row_prefix) {
            self.at += 1;
        }
        let crossed = (self.at - before) as u64;
        let percent =
            (BOUNDARY_PERCENT_MIN + BOUNDARY_PERCENT_STEP * self.passed).min(BOUNDARY_PERCENT_MAX);
        let enough = self.least.unwrap_or(self.full / 100 * percent);
        let cut = bytes >= self.full || (crossed > 0 && bytes > 0 && bytes >= enough);
        self.passed = if cut || bytes == 0 { 0 } else { self.passed + crossed };
        cut
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::RowRange;
    use crate::io::{Rng, SeededRng};
    use crate::manifest::{SstRef, VersionEdit};

    /// Rows of a flush: few enough for chance to have its part.
    const ROWS: usize = 2000;

    struct Tree {
        version: Version,
        options: EngineOptions,
        rng: SeededRng,
        next_id: u64,
    }

    fn row(at: u64) -> Bytes {
        Bytes::from(format!("{at:08}"))
    }

    impl Tree {
        /// A last level of so many files, of random sizes.
        fn new(files: u64) -> Self {
            let options = EngineOptions { memtable_bytes: 64 << 20, ..EngineOptions::default() };
            let version = Version::empty(RowRange::all());
            let mut tree = Self { version, options, rng: SeededRng::new(7), next_id: 1 };
            let each = 100_000_000 / files;
            let level = (0..files).map(|n| {
                let bytes = (32 << 20) + tree.rng.next_u64() % (32 << 20);
                tree.file(6, n * each, n * each + each - 1, bytes)
            });
            let add = level.collect();
            tree.edit(VersionEdit { add, ..VersionEdit::default() });
            tree
        }

        fn file(&mut self, level: u8, first: u64, last: u64, bytes: u64) -> SstRef {
            self.next_id += 1;
            SstRef::of_test(self.next_id, level, (row(first), row(last)), bytes)
        }

        fn edit(&mut self, edit: VersionEdit) {
            self.version = self.version.apply(&edit).unwrap();
        }

        /// Flushes random rows from all over.
        fn flush(&mut self) {
            let rule = CutRule::new(&self.version, &self.options, CompactionStyle::Leveled, 0);
            let mut rows: Vec<u64> =
                std::iter::repeat_with(|| self.rng.next_u64() % 100_000_000).take(ROWS).collect();
            rows.sort_unstable();
            let each = self.options.memtable_bytes / ROWS as u64;
            let (mut cutter, mut parts, mut part) = (rule.start(), Vec::new(), Vec::new());
            for at in rows {
                if cutter.cuts_before(&row_prefix(&row(at)), each * part.len() as u64) {
                    parts.push(std::mem::take(&mut part));
                }
                part.push(at);
            }
            parts.push(part);
            let add = parts
                .iter()
                .map(|p| self.file(0, p[0], p[p.len() - 1], each * p.len() as u64))
                .collect();
            self.edit(VersionEdit { add, ..VersionEdit::default() });
        }

        /// The rows of what shares none with anything else in level 0.
        fn columns(&self) -> Vec<RowRange> {
            let mut spans: Vec<RowRange> = self.version.level(0).iter().map(|f| f.span()).collect();
            spans.sort_by(|a, b| a.start.cmp(&b.start));
            let mut columns: Vec<RowRange> = Vec::new();
            for span in spans {
                match columns.last_mut().filter(|column| column.overlaps(&span)) {
                    Some(column) => column.end = column.end.clone().max(span.end),
                    None => columns.push(span),
                }
            }
            columns
        }

        fn below(&self, column: &RowRange) -> usize {
            self.version.level(6).iter().filter(|file| file.overlaps(column)).count()
        }

        /// All of a column goes down: as many files as it met, a fourth larger.
        fn compact(&mut self, column: usize) {
            let columns = self.columns();
            let rows = &columns[column % columns.len()];
            let gone = [0, 6].map(|level| {
                let files = self.version.level(level).iter().filter(|file| file.overlaps(rows));
                files.cloned().collect::<Vec<_>>()
            });
            let remove = gone.iter().flatten().map(|file| (file.level, file.id)).collect();
            let add = gone[1]
                .iter()
                .map(|file| {
                    self.next_id += 1;
                    SstRef { id: self.next_id, bytes: file.bytes / 4 * 5, ..file.as_ref().clone() }
                })
                .collect();
            self.edit(VersionEdit { add, remove, ..VersionEdit::default() });
        }
    }

    #[test]
    fn flushes_of_random_rows_are_cut_alike_whatever_files_lie_below() {
        for files in [5, 8, 9, 20, 100, 500] {
            let mut tree = Tree::new(files);
            for _ in 0..24 {
                tree.flush();
            }
            let widths: Vec<usize> = tree.columns().iter().map(|c| tree.below(c)).collect();
            assert!((5..=8).contains(&widths.len()), "{files}: {widths:?}");
            let widest = *widths.iter().max().unwrap() as u64;
            assert!(widest <= files.div_ceil(8) * 2, "{files}: {widths:?}");
        }
    }

    #[test]
    fn flushes_are_cut_alike_while_what_lies_below_grows_unevenly() {
        let mut tree = Tree::new(100);
        for round in 0..30 {
            for _ in 0..4 {
                tree.flush();
            }
            let columns = tree.columns().len();
            assert!(columns >= 6, "{round}: {columns}");
            tree.compact(round * 3);
        }
    }
}
