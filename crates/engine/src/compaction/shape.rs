//! The shape of a version: what its levels should hold, what they do hold, and which are due for a compaction.
//! Computed once when a version is installed, so that asking costs nothing.
//!
//! The tree is leveled with a *dynamic base level*: targets are derived from the last level upwards,
//! so that the last level always holds nine tenths of the data or more and space amplification stays
//! near 1.11 whatever the size. A small tablet has L0 and L6 only.
//!
//! ```text
//! last level holds 30 GiB, base 256 MiB, ratio 10:
//!   L6 30 GiB | L5 3 GiB | L4 300 MiB -> 256 MiB < 300 MiB, so one more: L3 30 MiB = base level
//! L0 compacts into the base level, skipping the levels above it.
//! ```
//!
//! While writers are ahead, level 0 holds more than the base level should. A column of it would be merged there, and nearly all of it
//! go down again. So the base level is the first one below which all should hold more than level 0 holds now; columns take along what
//! is above it, unless that is more than level 0 itself, which goes down before.
//!
//! ```text
//! the same with 4 GiB in L0:   L6 30 GiB | L5 3 GiB < 4 GiB = base level
//! ```
//!
//! # Tiered
//!
//! Of a [tiered](CompactionStyle::Tiered) tablet the base level is the last, and level 0 is due for one of two
//! reasons: it has many sublevels, which are then merged with each other, or it is large beside the last level, both with
//! the values that their files name elsewhere.
//!
//! # Crowds
//!
//! A tablet that is written to now and then has many small flushes: garbage is looked for where it is idle, and the log lets go of old
//! segments. Those of rows in order, or of single ones, share none, and so make neither sublevels nor weight, but each is a file that is
//! open, with its parts in memory. So where many such flushes are next to each other in age, they are merged within level 0:
//!
//! ```text
//! newest  1 1 1 1 1 1 7 ... 3 8 9    up to the last that is not larger than all that is newer, which is the 9:
//! ```
//!
//! what is written again comes to lie in a file of about twice its size, at least.
//!
//! # Tombstones
//!
//! What tombstones hide is garbage that a scan pays for, and they go only where they meet it. So a file above
//! the last level is *dense* when its tombstones are a quarter of what it lies over in the next level: those of rows and
//! families by the rows there, those of columns and cells by the cells. Merged, they take away at least about that part of what is rewritten.

use std::ops::Range;
use std::sync::Arc;

use super::ages::ages;
use super::sublevels::{self, Run, overlapping};
use crate::cell::RowRange;
use crate::manifest::{LEVELS, SstRef, Version};
use crate::options::{CompactionStyle, EngineOptions, TIERED_RUNS_MAX, TIERED_SPACE_PERCENT};
use crate::pressure::{Behind, Pressure};

/// The deepest level.
pub(crate) const LAST_LEVEL: u8 = (LEVELS - 1) as u8;

/// References to one file, with visible rows on either side of dropped ones, from which it is rewritten.
/// Each is part of every snapshot of the manifest and of every edit that cuts the file again, so a
/// thousand drops in one file would cost a million; fewer would rewrite it for every few drops.
pub(super) const REFERENCES_MAX: usize = 64;

/// Tombstones of a file below which it is never dense: a scan passes them in the time of a few reads.
const DENSE_TOMBSTONES_MIN: u64 = 64;

/// Of the rows and cells that a file's tombstones lie over, the part that makes it dense: a quarter. With less, more
/// than three live ones would be rewritten for each that goes; with more, scans would pass more dead ones
/// than live ones.
const DENSE_PART: f64 = 0.25;

/// Ages of level 0 that are a crowd, where each is small. More would be more files, for each idle tablet; fewer would write the same rows
/// again more often, where what is written is little in any case.
pub(super) const CROWD_AGES_MIN: usize = 32;

/// The part of a memtable, or of a target size, that a small age has at most: a sixteenth, which is half of what the many files have that a merge
/// within level 0 of a tiered tablet is cut into, at the least ([`CutRule`](super::cuts::CutRule)): they are no crowd again. Larger ones are few before
/// their bytes are due for the next level; with less, as many files as there are would be as small for good.
const CROWD_AGE_PART: u64 = 16;

/// Bytes of a merge that goes on to a level, over those that it has so far, where that is more than level 0 may hold: three times, so that
/// a load's column of all of level 0, over levels that hold about as much each, may go to the last one at once. Over two levels that
/// is up to nine times; what is merged is busy for as long, and level 0 has merges within itself meanwhile.
const DEEP_SHARE_MAX: u64 = 3;

/// What compaction wants to know of a file's contents; from its properties.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Contents {
    /// Distinct rows.
    pub(crate) rows: u64,
    /// Records that are no tombstones.
    pub(crate) cells: u64,
    /// Tombstones that hide a row, or all that it has of a family.
    pub(crate) row_tombstones: u64,
    /// Tombstones of columns and cells.
    pub(crate) cell_tombstones: u64,
    /// Bytes that it names in value files.
    pub(crate) value_bytes: u64,
}

/// Level targets of a tablet; see the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Targets {
    /// Where L0 goes.
    pub(crate) base_level: u8,
    /// Bytes by level; 0 above the base level.
    pub(crate) bytes: [u64; LEVELS],
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Shape {
    /// By which it was made.
    pub(crate) style: CompactionStyle,
    /// With what level 0 holds now.
    pub(crate) targets: Targets,
    /// With nothing in level 0: the same from one flush to the next.
    pub(crate) at_rest: Targets,
    /// Level 0, the oldest sublevel first.
    pub(crate) sublevels: Vec<Run>,
    /// See [`sublevels_stop`].
    pub(crate) sublevels_stop: usize,
    /// How heavy level 0 is; from 1.0 on it is due whatever its depth.
    pub(super) weight: f64,
    /// See [`Self::merge_bytes_max`].
    deep_bytes_max: u64,
    /// Bytes of level 0, with what it names in value files.
    pub(crate) level_zero_bytes: u64,
    /// Bytes that level 0 may hold, with the memtables that will be some of it, before any write is refused: what as many flushes bring
    /// as there are sublevels at which every write is, and twice what is left there at rest, so that as much again may come while that
    /// is merged down.
    unrefused_bytes: u64,
    /// Levels that are over their targets, the most urgent first; 1.0 is "at its target".
    pub(crate) scores: Vec<(f64, u8)>,
    /// Files with more tombstones than they should have; see the module.
    pub(crate) dense: Vec<Arc<SstRef>>,
    /// Files that dropped rows have cut into too many pieces.
    pub(crate) tattered: Vec<Arc<SstRef>>,
    /// Files of level 0, next to each other in age, that are to be merged for their number; see the module.
    pub(crate) crowd: Vec<Arc<SstRef>>,
    /// Bytes of SSTs that compactions have to read and write until every level is within its target, roughly. It is
    /// a continuous function of the sizes of the levels: it neither leaps when a threshold is crossed nor
    /// when a compaction begins.
    pub(crate) debt_bytes: u64,
}

impl Shape {
    /// The shape of a version; `contents` tells what is in a file.
    pub(crate) fn new(
        version: &Version,
        options: &EngineOptions,
        style: CompactionStyle,
        contents: &dyn Fn(&SstRef) -> Contents,
    ) -> Self {
        let at_rest = targets_over(0, version, options, style);
        let targets = targets(version, options, style);
        let sublevels = sublevels::arrange(version.level(0));
        let mut scores: Vec<(f64, u8)> = Vec::with_capacity(LEVELS);
        let depth = sublevels.len() as f64 / sublevels_max(options, style).max(1) as f64;
        let light = light(options, style, || bytes_with_values(version, LAST_LEVEL, contents));
        let level_zero_bytes = bytes_with_values(version, 0, contents);
        // Files that share no rows, of a table that is written in order, are one sublevel however many they are.
        let weight = level_zero_bytes as f64 / light.max(1) as f64;
        let sublevels_stop = sublevels_stop(options, style);
        let flushes = options.memtable_bytes.saturating_mul(sublevels_stop as u64);
        scores.push((depth.max(weight), 0));
        for level in 1..LAST_LEVEL {
            let bytes = level_bytes(version, level);
            if bytes > 0 {
                let of = |targets: &Targets| bytes as f64 / targets.at(level).max(1) as f64;
                let score = match style {
                    // Level 0 takes it along, where that is the larger one. What no tree would have there is due in any case.
                    CompactionStyle::Leveled if level < targets.base_level => {
                        let share = bytes as f64 / level_bytes(version, 0).max(1) as f64;
                        if level < at_rest.base_level {
                            of(&at_rest)
                        } else {
                            share * depth.max(weight)
                        }
                    }
                    CompactionStyle::Leveled => of(&targets),
                    // What another style has left is due, but writers wait for none of it.
                    CompactionStyle::Tiered => 1.0,
                };
                scores.push((score, level));
            }
        }
        scores.retain(|(score, _)| *score >= 1.0);
        scores.sort_by(|a, b| b.0.total_cmp(&a.0));
        Self {
            debt_bytes: debt(version, &at_rest, options, style),
            deep_bytes_max: options.memtable_bytes.saturating_mul(options.l0_stop_files as u64),
            level_zero_bytes,
            unrefused_bytes: light.saturating_mul(2).saturating_add(flushes),
            style,
            dense: dense(version, &targets, contents),
            tattered: tattered(version),
            crowd: crowd(version, options),
            targets,
            at_rest,
            sublevels,
            sublevels_stop,
            weight,
            scores,
        }
    }

    /// Bytes of a merge, at most, that takes along what it meets further down than it must go, where it has `own` so far: as much as
    /// the flushes of all sublevels bring, 3 GiB by default, since writers fill level 0 meanwhile, and with a gibibyte or more
    /// [`DEEP_SHARE_MAX`] times that.
    pub(super) fn merge_bytes_max(&self, own: u64) -> u64 {
        self.deep_bytes_max.max(own.saturating_mul(DEEP_SHARE_MAX))
    }

    /// Bytes that level 0 may hold, with the memtables that will be some of it, before any write is refused, where these were `before`
    /// until now. They fall no faster than what is there: level 0 may hold much that no writer brought too fast, from another style, or
    /// beside a last level whose rows were dropped, and writers may bring as much on top as where it is empty. Of a tablet that is
    /// opened only where every write would be refused: it may have been closed, or have crashed, while its writers were too fast.
    pub(crate) fn unrefused_bytes(&self, before: Option<u64>) -> u64 {
        let own = self.unrefused_bytes;
        let on_top = self.level_zero_bytes.saturating_add(own);
        match before {
            Some(before) => before.min(on_top).max(own),
            None if self.pressure_of_bytes().refused_share() >= 1.0 => on_top,
            None => own,
        }
    }

    /// The pressure of the bytes of level 0 without memtables, where no more is let in than it should hold.
    pub(super) fn pressure_of_bytes(&self) -> Pressure {
        let (bytes, unrefused) = (self.level_zero_bytes as f64, self.unrefused_bytes.max(1) as f64);
        Pressure::beyond(Behind::LevelZero, bytes, unrefused)
    }

    /// Whether it is for the depth of level 0 and not for its bytes that writes are refused first.
    pub(super) fn is_deep_first(&self) -> bool {
        let depth = self.sublevels.len() as f64 / self.sublevels_stop.max(1) as f64;
        depth >= self.pressure_of_bytes().level
    }

    /// Whether a level 0 that is due for its depth alone is far from what writers are refused for: it may grow until it is worth what it
    /// goes down on. One sublevel cannot be made less otherwise; nor does it grow by itself where files beside it are left alone.
    pub(super) fn has_time(&self) -> bool {
        let depth = self.sublevels.len();
        self.style == CompactionStyle::Leveled
            && self.weight < 1.0
            && depth > 1
            && depth.saturating_mul(2) <= self.sublevels_stop
    }

    /// Whether level 0 holds so much that some writes are refused, or would be had it not been let in.
    pub(super) fn holds_too_much(&self) -> bool {
        self.level_zero_bytes >= self.unrefused_bytes
    }

    /// How urgent its most urgent compaction is; below 1.0 none is due.
    pub(crate) fn score(&self) -> f64 {
        let due = !(self.dense.is_empty() && self.tattered.is_empty() && self.crowd.is_empty());
        let least = if due { 1.0 } else { 0.0 };
        self.scores.first().map_or(least, |(score, _)| *score)
    }
}

impl Targets {
    /// Whether the SSTs of a level have their whole index and filter in memory, where so many levels have: level 0 and those
    /// from the base level on. Never the last, which has most of the data.
    pub(crate) fn pins(&self, level: u8, pinned_levels: u32) -> bool {
        let above = match level {
            0 => Some(0),
            LAST_LEVEL => None,
            _ => level.checked_sub(self.base_level).map(|below| u32::from(below) + 1),
        };
        above.is_some_and(|above| above < pinned_levels)
    }

    /// Bytes that a level should hold at most.
    pub(crate) fn at(&self, level: u8) -> u64 {
        self.bytes.get(usize::from(level)).copied().unwrap_or(0)
    }
}

/// Sublevels of level 0 from which it is due.
pub(crate) fn sublevels_max(options: &EngineOptions, style: CompactionStyle) -> usize {
    match style {
        CompactionStyle::Leveled => options.l0_compaction_files,
        CompactionStyle::Tiered => TIERED_RUNS_MAX,
    }
}

/// Sublevels of level 0, with the memtables that will be some, at which every write is refused. A limit below what starts the work that
/// makes room would stop writers for good.
fn sublevels_stop(options: &EngineOptions, style: CompactionStyle) -> usize {
    options.l0_stop_files.max(2 * sublevels_max(options, style)).max(2)
}

/// What a level weighs. A file weighs what it names in value files, too: values that newer ones hide are found to be garbage only when
/// a compaction brings the two together, and the files of a table of large values are a two-hundredth of it.
fn bytes_with_values(version: &Version, level: u8, contents: &dyn Fn(&SstRef) -> Contents) -> u64 {
    let values = level_files(version, level).iter().map(|file| contents(file).value_bytes);
    values.fold(level_bytes(version, level), u64::saturating_add)
}

/// Bytes of level 0 that are left there, where the last level has so many.
fn light(options: &EngineOptions, style: CompactionStyle, last: impl FnOnce() -> u64) -> u64 {
    match style {
        CompactionStyle::Leveled => options.base_level_bytes,
        CompactionStyle::Tiered => {
            (last() / 100 * TIERED_SPACE_PERCENT).max(options.base_level_bytes)
        }
    }
}

pub(super) fn targets(
    version: &Version,
    options: &EngineOptions,
    style: CompactionStyle,
) -> Targets {
    targets_over(level_bytes(version, 0), version, options, style)
}

/// The targets where level 0 holds so many bytes.
fn targets_over(
    level_zero: u64,
    version: &Version,
    options: &EngineOptions,
    style: CompactionStyle,
) -> Targets {
    let base_bytes = options.base_level_bytes.max(level_zero);
    let mut bytes = [0; LEVELS];
    let largest = (1..=LAST_LEVEL).map(|l| level_bytes(version, l)).max().unwrap_or(0);
    let mut target = largest.max(options.base_level_bytes);
    let mut level = LAST_LEVEL;
    if style == CompactionStyle::Tiered {
        if let Some(slot) = bytes.last_mut() {
            *slot = target;
        }
        return Targets { base_level: LAST_LEVEL, bytes };
    }
    loop {
        if let Some(slot) = bytes.get_mut(usize::from(level)) {
            *slot = target;
        }
        if target <= base_bytes || level == 1 {
            return Targets { base_level: level, bytes };
        }
        target = (target / options.level_ratio.max(2)).max(1);
        level -= 1;
    }
}

pub(super) fn level_files(version: &Version, level: u8) -> &[Arc<SstRef>] {
    version.level(usize::from(level))
}

pub(super) fn level_bytes(version: &Version, level: u8) -> u64 {
    version.level_bytes(usize::from(level))
}

/// Whether a level below has something of these rows.
pub(super) fn is_over_something(version: &Version, level: u8, rows: &RowRange) -> bool {
    (level + 1..=LAST_LEVEL).any(|l| overlapping(level_files(version, l), rows).next().is_some())
}

fn debt(
    version: &Version,
    targets: &Targets,
    options: &EngineOptions,
    style: CompactionStyle,
) -> u64 {
    let at_rest = match style {
        CompactionStyle::Leveled => {
            options.memtable_bytes.saturating_mul(options.l0_compaction_files as u64)
        }
        CompactionStyle::Tiered => light(options, style, || level_bytes(version, LAST_LEVEL)),
    };
    let mut debt = 0.0;
    let mut above = level_bytes(version, 0);
    let mut excess = above.saturating_sub(at_rest) as f64;
    for level in 1..=LAST_LEVEL {
        let held = level_bytes(version, level) as f64;
        // A byte that moves down is merged with its share of the level that it comes to.
        let met = (held / above.max(1) as f64).min(options.level_ratio as f64);
        if level < targets.base_level && held == 0.0 {
            continue;
        }
        // What is more than a level should have goes past it, to the next.
        let target = targets.at(level) as f64;
        let written = if level == LAST_LEVEL { excess } else { excess.min(target) };
        debt += written * (1.0 + met);
        above = (held + excess) as u64;
        excess = (held + excess - target).max(0.0);
    }
    debt as u64
}

fn dense(
    version: &Version,
    targets: &Targets,
    contents: &dyn Fn(&SstRef) -> Contents,
) -> Vec<Arc<SstRef>> {
    let mut dense = Vec::new();
    for level in 0..LAST_LEVEL {
        let next = if level == 0 { targets.base_level } else { level + 1 };
        for file in level_files(version, level) {
            let own = contents(file);
            if own.row_tombstones.saturating_add(own.cell_tombstones) < DENSE_TOMBSTONES_MIN {
                continue;
            }
            let span = file.span();
            let (mut rows, mut cells) = (0_u64, 0_u64);
            for below in overlapping(level_files(version, next), &span) {
                let met = contents(below);
                rows = rows.saturating_add(met.rows);
                cells = cells.saturating_add(met.cells);
            }
            // Over nothing, it costs no more than itself to be rid of them.
            let (rows, cells) =
                if rows == 0 && cells == 0 { (own.rows, own.cells) } else { (rows, cells) };
            let part = |tombstones: u64, of: u64| tombstones as f64 / of.max(1) as f64;
            if part(own.row_tombstones, rows) + part(own.cell_tombstones, cells) >= DENSE_PART {
                dense.push(Arc::clone(file));
            }
        }
    }
    dense
}

fn tattered(version: &Version) -> Vec<Arc<SstRef>> {
    let mut tattered: Vec<Arc<SstRef>> = Vec::new();
    for level in 0..=LAST_LEVEL {
        let mut ids: Vec<_> = level_files(version, level).iter().map(|file| file.id).collect();
        ids.sort_unstable();
        for same in ids.chunk_by(|a, b| a == b).filter(|same| same.len() > REFERENCES_MAX) {
            let id = same.first();
            tattered.extend(
                level_files(version, level).iter().find(|file| Some(&file.id) == id).cloned(),
            );
        }
    }
    tattered
}

/// Of the newest crowd, what is to be merged.
fn crowd(version: &Version, options: &EngineOptions) -> Vec<Arc<SstRef>> {
    let files = level_files(version, 0);
    if files.len() < CROWD_AGES_MIN {
        return Vec::new();
    }
    let bytes_of = |age: &Range<usize>| -> u64 {
        files.get(age.clone()).into_iter().flatten().map(|file| file.bytes).sum()
    };
    let small = options.memtable_bytes.min(options.target_file_bytes) / CROWD_AGE_PART;
    let ages: Vec<(u64, Range<usize>)> =
        ages(files).into_iter().map(|age| (bytes_of(&age), age)).collect();
    let is_crowd = |run: &&[(u64, Range<usize>)]| {
        run.len() >= CROWD_AGES_MIN && run.iter().all(|(bytes, _)| *bytes <= small)
    };
    let mut runs = ages.chunk_by(|(a, _), (b, _)| (*a <= small) == (*b <= small));
    let Some(run) = runs.find(is_crowd) else { return Vec::new() };
    let (mut newer, mut last) = (0, 0);
    for (at, (bytes, _)) in run.iter().enumerate() {
        if *bytes <= newer {
            last = at;
        }
        newer += bytes;
    }
    let merged = run.iter().take(last + 1).filter_map(|(_, age)| files.get(age.clone()));
    merged.flatten().cloned().collect()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::manifest::VersionEdit;

    const MIB: u64 = 1 << 20;

    fn version(levels: &[(u8, u64)]) -> Version {
        let rows = (Bytes::from_static(b"a"), Bytes::from_static(b"z"));
        let file = |(id, (level, bytes)): (usize, &(u8, u64))| {
            SstRef::of_test(id as u64, *level, rows.clone(), *bytes)
        };
        let add = levels.iter().enumerate().map(file).collect();
        let edit = VersionEdit { add, ..VersionEdit::default() };
        Version::empty(RowRange::all()).apply(&edit).unwrap()
    }

    fn debt_of(levels: &[(u8, u64)]) -> u64 {
        let options = EngineOptions::default();
        let style = CompactionStyle::Leveled;
        Shape::new(&version(levels), &options, style, &|_| Contents::default()).debt_bytes
    }

    #[test]
    fn the_debt_of_a_tree_within_its_targets_is_nothing_and_it_grows_without_leaps() {
        assert_eq!(debt_of(&[]), 0);
        assert_eq!(debt_of(&[(0, 64 * MIB), (6, 200 * MIB)]), 0);
        // As level 0 grows by a memtable, the debt grows by that and what it meets below, no more.
        let mut before = 0;
        for flushes in 0..40u64 {
            let debt = debt_of(&[(0, flushes * 64 * MIB + 1), (5, 250 * MIB), (6, 2500 * MIB)]);
            assert!(debt >= before, "{flushes}");
            assert!(debt - before < 64 * MIB * 16, "{flushes}: {before} {debt}");
            before = debt;
        }
        assert!(before > 40 * 64 * MIB);
        // As the last level grows by a mebibyte, so that there is another level above it from one step to the next.
        let at = |last: u64| debt_of(&[(0, 3 << 30), (6, last * MIB)]);
        for last in 200..300u64 {
            assert!(at(last + 1).abs_diff(at(last)) < 64 * MIB, "{last}");
        }
    }
}
