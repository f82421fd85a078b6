//! Where a job cuts its outputs. A file that ends where one of the next level ends will not drag along a
//! neighbour that it barely touches when it is compacted in turn.
//!
//! ```text
//! output       [.......|......]      cut at the boundary, the left file meets 1 and 2, the right one 3 and 4;
//! next level   [ 1 ][ 2 ][ 3 ][ 4 ]  cut anywhere between, both would meet 2 or 3 as well
//! ```
//!
//! A flush is cut at boundaries of the level that it will be merged into, so that parts of level 0 can go
//! down side by side: the base level, or what is deeper where that has few files.

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
const FLUSH_PARTS: u64 = 8;

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
        let next = match level {
            0 => divides_flushes(version, targets(version, options, style).base_level),
            LAST_LEVEL => return Self::by_size(options),
            _ => level + 1,
        };
        let rows = level_files(version, next).iter().map(|f| f.first_visible().clone()).collect();
        if level > 0 {
            return Self { rows, ..Self::by_size(options) };
        }
        let least = options.memtable_bytes / FLUSH_PARTS;
        let full = match style {
            CompactionStyle::Leveled => u64::MAX,
            // Merges within level 0 make as much as the last level has.
            CompactionStyle::Tiered => options.target_file_bytes,
        };
        Self { rows, full, least: Some(least) }
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

/// The level at whose boundaries flushes are cut: the base level, or the first one below it where that has too few files to divide them.
/// It may be empty, as level 0 goes on past what would hold less than itself, and what lies deeper is what level 0 is merged with then.
fn divides_flushes(version: &Version, base_level: u8) -> u8 {
    let files = |level: &u8| level_files(version, *level).len();
    let enough = (base_level..LAST_LEVEL).find(|level| files(level) as u64 >= FLUSH_PARTS);
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
