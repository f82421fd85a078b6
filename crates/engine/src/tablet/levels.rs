//! The SSTs of a version as reads want them: for a row, the files of each level that can hold it, with no hash
//! and few cache misses; for a scan, the files that it opens when it comes to them.
//!
//! ```text
//! a level, or a     ends   e0   e1   e2 ...   the first row after each file, ascending
//! sublevel of L0    heads  h0   h1   h2 ...   8 bytes of each, behind what all of them share: searched first
//! ```

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::view::OpenFiles;
use crate::cell::RowRange;
use crate::codec::common_prefix;
use crate::compaction::shape::Shape;
use crate::manifest::{SstRef, Version};
use crate::read::LevelFile;

static EVERYTHING: RowRange = RowRange { start: Bytes::new(), end: Bytes::new() };

/// Bytes of a head.
const HEAD_LEN: usize = 8;

/// Where the SSTs of a level end, for searching.
#[derive(Debug, Default)]
struct Fences {
    shared: usize,
    first: Bytes,
    /// Of all files but a last one without an end.
    heads: Vec<u64>,
}

/// One level, or one sublevel of level 0: files in row order.
#[derive(Debug)]
pub(super) struct LevelView {
    files: Arc<[LevelFile]>,
    fences: Fences,
    /// Rows and bytes of its files.
    pub(super) rows: u64,
    pub(super) bytes: u64,
}

/// The head of what follows the shared bytes; shorter strings sort before their continuations.
fn head(rest: &[u8]) -> u64 {
    let mut bytes = [0; HEAD_LEN];
    for (to, from) in bytes.iter_mut().zip(rest) {
        *to = *from;
    }
    u64::from_be_bytes(bytes)
}

impl Fences {
    fn new<'a>(spans: impl DoubleEndedIterator<Item = &'a RowRange> + Clone) -> Self {
        let ends = || spans.clone().map(|span| &span.end).filter(|end| !end.is_empty());
        let (Some(first), Some(last)) = (ends().next(), ends().next_back()) else {
            return Self::default();
        };
        // Ends ascend, so what the first and the last share, all share.
        let shared = common_prefix(first, last);
        let heads = ends().map(|end| head(end.get(shared..).unwrap_or_default())).collect();
        Self { shared, first: first.clone(), heads }
    }

    /// The first SST that ends after `row`; `span` gives that of each.
    fn find<'a>(&self, span: impl Fn(usize) -> &'a RowRange, row: &[u8]) -> usize {
        let prefix = self.first.get(..self.shared).unwrap_or_default();
        let start = row.get(..self.shared).unwrap_or(row);
        if start != prefix {
            return if start < prefix { 0 } else { self.heads.len() };
        }
        let wanted = head(row.get(self.shared..).unwrap_or_default());
        let start = self.heads.partition_point(|h| *h < wanted);
        if self.heads.get(start) != Some(&wanted) {
            return start;
        }
        // Equal heads do not tell.
        let (mut low, mut high) = (start, self.heads.partition_point(|h| *h <= wanted));
        while low < high {
            let middle = low + (high - low) / 2;
            if span(middle).end.as_ref() <= row {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }
}

impl LevelView {
    fn new(refs: &[Arc<SstRef>], open: &OpenFiles) -> Self {
        let here = refs.iter().filter_map(|sst| Some((sst, open.get(&sst.id)?)));
        let files: Arc<[LevelFile]> =
            here.map(|(sst, file)| LevelFile::new(Arc::clone(file), sst)).collect();
        let fences = Fences::new(files.iter().map(|file| &file.span));
        let rows = |file: &LevelFile| file.file.reader().map_or(0, |r| r.properties().rows);
        let rows = files.iter().map(rows).sum();
        Self { files, fences, rows, bytes: refs.iter().map(|sst| sst.bytes).sum() }
    }

    /// The files of the level.
    pub(super) fn files(&self) -> &Arc<[LevelFile]> {
        &self.files
    }

    /// The places of the files that may show something of `range`.
    pub(super) fn overlapping(&self, range: &RowRange) -> Range<usize> {
        let start = self.fences.find(|at| self.span(at), &range.start);
        let end = if range.end.is_empty() {
            self.files.len()
        } else {
            self.files.partition_point(|file| file.span.start < range.end)
        };
        start..end.max(start)
    }

    fn span(&self, at: usize) -> &RowRange {
        self.files.get(at).map_or(&EVERYTHING, |file| &file.span)
    }

    /// The place of the one file that may show something of `row`, if any.
    fn around(&self, row: &[u8]) -> usize {
        self.fences.find(|at| self.span(at), row)
    }
}

/// All levels of a version, newest first: the sublevels of level 0, then the levels below it.
#[derive(Debug, Default)]
pub(super) struct Levels {
    levels: Vec<LevelView>,
    /// Sublevels among them, the first ones.
    sublevels: usize,
    /// The place of the base level, into which level 0 is merged; `None` where it has no files.
    base: Option<usize>,
}

/// The place of an SST in [`Levels`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SstPlace {
    level: usize,
    at: usize,
}

impl Levels {
    /// The levels of `version`, by whose `shape` level 0 is arranged, and whose files are open in `files`.
    pub(super) fn new(shape: &Shape, version: &Version, files: &OpenFiles) -> Self {
        let sublevels = shape.sublevels.iter().rev();
        let mut levels: Vec<_> = sublevels.map(|refs| LevelView::new(refs, files)).collect();
        let (sublevels, mut base) = (levels.len(), None);
        for (level, refs) in (0..).zip(version.levels()).skip(1) {
            if refs.is_empty() {
                continue;
            }
            if level == shape.at_rest.base_level {
                base = Some(levels.len());
            }
            levels.push(LevelView::new(refs, files));
        }
        Self { levels, sublevels, base }
    }

    /// Whether a merge of level 0 takes along what is at this place.
    pub(super) fn is_merged(&self, place: SstPlace) -> bool {
        place.level < self.sublevels || Some(place.level) == self.base
    }

    /// Calls `each` for every SST that may show something of `row`, newest level first.
    pub(super) fn for_row(&self, row: &[u8], mut each: impl FnMut(SstPlace)) {
        for (level, view) in self.levels.iter().enumerate() {
            let at = view.around(row);
            if view.files.get(at).is_some_and(|file| file.span.contains(row)) {
                each(SstPlace { level, at });
            }
        }
    }

    /// The SST at a place.
    pub(super) fn get(&self, place: SstPlace) -> Option<&LevelFile> {
        self.levels.get(place.level)?.files.get(place.at)
    }

    /// All levels and sublevels, newest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &LevelView> {
        self.levels.iter()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_fences_find_the_first_end_after_a_row(
            shared in prop::collection::vec(0u8..3, 0..12),
            ends in prop::collection::btree_set(prop::collection::vec(0u8..3, 1..12), 0..30),
            open: bool,
            row in prop::collection::vec(0u8..3, 0..24),
        ) {
            let mut ends: Vec<Vec<u8>> =
                ends.into_iter().map(|e| [shared.clone(), e].concat()).collect();
            if open {
                ends.push(Vec::new());
            }
            let spans: Vec<RowRange> =
                ends.iter().map(|e| RowRange::new(Vec::new(), e.clone())).collect();
            let fences = Fences::new(spans.iter());
            let expected = ends
                .iter()
                .position(|e| e.is_empty() || *e > row)
                .unwrap_or(ends.len());
            prop_assert_eq!(fences.find(|at| &spans[at], &row), expected);
        }
    }
}
