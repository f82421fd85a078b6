//! Picking: which SSTs to compact next. Pure functions of a version, so that tests can read them.
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
//! What may be picked is bounded by what runs already ([`Busy`]): a file in a running compaction is
//! busy, and a pick that needs a busy file is not made; nor is one whose outputs would lie in the rows of
//! another's outputs in the same level. Sharing no file is not enough for that: the inputs of a
//! compaction can have gaps, its outputs need not.
//!
//! ```text
//! L0            [e..f]             L0 -> L6 shares no file with the rewrite of L6, but would put
//! L6  [a .. c]          [k .. z]   [e..f] into the middle of its output [a .. z]
//! ```
//!
//! A pick has *every* file of its output level that lies in its span. With the above, no output ever
//! overlaps another file of its level.
//!
//! Picks for *garbage collection* come on top: a file that, by its properties, holds cells which its
//! families' rules let go is rewritten in place; and while a tablet is idle, files that overlap in rows
//! and hold a family whose rule counts versions are merged down, since only a merge sees the versions
//! side by side.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::cell::RowRange;
use crate::manifest::{LEVELS, SstRef, Version};
use crate::options::EngineOptions;
use crate::schema::TabletSchema;
use crate::sst::{FileId, SstProperties};

/// The deepest level.
pub(crate) const LAST_LEVEL: u8 = (LEVELS - 1) as u8;

/// Bytes of a tablet up to which one expired cell is reason enough to rewrite its file: a quarter of a
/// gigabyte is rewritten in seconds. More would wear the disk of a server that expires cells steadily.
const COLLECT_EAGER_BYTES: u64 = 256 << 20;

/// References to one file, with visible rows on either side of dropped ones, from which it is rewritten.
/// Each is part of every snapshot of the manifest and of every edit that cuts the file again, so a
/// thousand drops in one file would cost a million; fewer would rewrite it for every few drops.
const REFERENCES_MAX: usize = 64;

/// Why a compaction was picked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// Too many L0 files.
    L0,
    /// A level over its target.
    Size,
    /// A file that dropped rows have cut into too many pieces.
    Tattered,
    /// Cells that garbage-collection rules let go.
    Collect,
    /// Everything into the last level, as the operator asked.
    Full,
}

/// A compaction to run.
#[derive(Debug, Clone)]
pub(crate) struct Pick {
    pub(crate) reason: Reason,
    /// The files, newest level first.
    pub(crate) inputs: Vec<Arc<SstRef>>,
    pub(crate) output_level: u8,
    /// No older data of these rows exists outside the inputs, so tombstones may go.
    pub(crate) bottommost: bool,
}

impl Pick {
    /// The rows that it reads, and between which it writes.
    pub(crate) fn span(&self) -> RowRange {
        span_of(&self.inputs).expect("a pick has inputs")
    }

    pub(crate) fn input_bytes(&self) -> u64 {
        self.inputs.iter().map(|s| s.bytes).sum()
    }

    /// Whether the one input can change its level without being rewritten.
    pub(crate) fn is_move(&self) -> bool {
        match self.inputs.as_slice() {
            [only] => self.reason == Reason::Size && only.level != self.output_level,
            _ => false,
        }
    }
}

/// What running compactions keep from others.
#[derive(Debug, Clone, Default)]
pub(crate) struct Busy {
    /// Files that they read, and files that are left alone for a while.
    pub(crate) files: HashSet<FileId>,
    /// Where they write: level and rows.
    pub(crate) outputs: Vec<(u8, RowRange)>,
}

impl Busy {
    fn keeps_from(&self, inputs: &[Arc<SstRef>], output_level: u8, span: &RowRange) -> bool {
        inputs.iter().any(|s| self.files.contains(&s.id))
            || self
                .outputs
                .iter()
                .any(|(level, rows)| *level == output_level && rows.overlaps(span))
    }
}

/// Level targets of a tablet; see the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Targets {
    /// Where L0 goes.
    pub(crate) base_level: u8,
    /// Bytes by level; 0 above the base level.
    pub(crate) bytes: [u64; LEVELS],
}

pub(crate) fn targets(version: &Version, options: &EngineOptions) -> Targets {
    let mut bytes = [0; LEVELS];
    let largest = (1..=LAST_LEVEL).map(|l| level_bytes(version, l)).max().unwrap_or(0);
    let mut target = largest.max(options.base_level_bytes);
    let mut level = LAST_LEVEL;
    loop {
        if let Some(slot) = bytes.get_mut(usize::from(level)) {
            *slot = target;
        }
        if target <= options.base_level_bytes || level == 1 {
            return Targets { base_level: level, bytes };
        }
        target = (target / options.level_ratio.max(2)).max(1);
        level -= 1;
    }
}

fn level_files(version: &Version, level: u8) -> &[Arc<SstRef>] {
    version.levels().get(usize::from(level)).map_or(&[], |files| files)
}

fn level_bytes(version: &Version, level: u8) -> u64 {
    level_files(version, level).iter().map(|s| s.bytes).sum()
}

fn span_of(files: &[Arc<SstRef>]) -> Option<RowRange> {
    files.iter().map(|s| s.span()).reduce(|a, b| RowRange {
        start: a.start.min(b.start),
        end: match (a.end.is_empty(), b.end.is_empty()) {
            (true, _) | (_, true) => bytes::Bytes::new(),
            _ => a.end.max(b.end),
        },
    })
}

fn deepest_overlap(version: &Version, below: u8, range: &RowRange) -> bool {
    (below + 1..=LAST_LEVEL)
        .any(|l| level_files(version, l).iter().any(|s| s.span().overlaps(range)))
}

/// Completes a pick of `upper` files into `output_level` with what overlaps there; `None` where a
/// needed file is busy.
fn complete(
    version: &Version,
    reason: Reason,
    upper: Vec<Arc<SstRef>>,
    output_level: u8,
    busy: &Busy,
) -> Option<Pick> {
    let mut inputs = upper;
    // A file can stand in a level twice, with visible ranges on both sides of dropped rows. Both
    // references move together, so the span may grow until it covers what lies between them; also where
    // the file is rewritten in place.
    let span = loop {
        let span = span_of(&inputs)?;
        let before = inputs.len();
        for file in level_files(version, output_level) {
            let taken = inputs.iter().any(|s| s.level == output_level && s.id == file.id);
            if !taken && file.span().overlaps(&span) {
                inputs.extend(twins(version, file));
            }
        }
        if inputs.len() == before {
            break span;
        }
    };
    if busy.keeps_from(&inputs, output_level, &span) {
        return None;
    }
    let bottommost = !deepest_overlap(version, output_level, &span);
    Some(Pick { reason, inputs, output_level, bottommost })
}

/// The most urgent compaction by shape, and its score (1.0 is "at its target").
pub(crate) fn pick_by_size(
    version: &Version,
    options: &EngineOptions,
    busy: &Busy,
) -> Option<(f64, Pick)> {
    let targets = targets(version, options);
    let mut scores: Vec<(f64, u8)> = Vec::with_capacity(LEVELS);
    let l0 = level_files(version, 0);
    scores.push((l0.len() as f64 / options.l0_compaction_files.max(1) as f64, 0));
    for level in 1..LAST_LEVEL {
        let bytes = level_bytes(version, level);
        if bytes == 0 {
            continue;
        }
        let target = targets.bytes.get(usize::from(level)).copied().unwrap_or(0);
        // A level above the base level should be empty: whatever it holds is over its target.
        scores.push((bytes as f64 / target.max(1) as f64, level));
    }
    scores.sort_by(|a, b| b.0.total_cmp(&a.0));
    for (score, level) in scores {
        if score < 1.0 {
            break;
        }
        let pick = if level == 0 {
            pick_l0(version, Reason::L0, targets.base_level, busy)
        } else {
            pick_from_level(version, level, busy)
        };
        if let Some(pick) = pick {
            return Some((score, pick));
        }
    }
    pick_tattered(version, targets.base_level, busy).map(|pick| (1.0, pick))
}

/// A file with more than [`REFERENCES_MAX`] references, rewritten in its level (in L0: with the others,
/// into the base level).
fn pick_tattered(version: &Version, base_level: u8, busy: &Busy) -> Option<Pick> {
    for level in 0..=LAST_LEVEL {
        let mut counts: HashMap<FileId, usize> = HashMap::new();
        for file in level_files(version, level) {
            let count = counts.entry(file.id).or_default();
            *count += 1;
            if *count <= REFERENCES_MAX {
                continue;
            }
            let pick = match level {
                0 => pick_l0(version, Reason::Tattered, base_level, busy),
                _ => complete(version, Reason::Tattered, twins(version, file), level, busy),
            };
            if pick.is_some() {
                return pick;
            }
        }
    }
    None
}

/// All of L0 into the base level. Only one at a time: its files cover each other.
fn pick_l0(version: &Version, reason: Reason, base_level: u8, busy: &Busy) -> Option<Pick> {
    let files = level_files(version, 0).to_vec();
    if files.is_empty() {
        return None;
    }
    // A level between L0 and the base that still holds files (the options changed) comes first, or
    // older data would lie above newer.
    let span = span_of(&files)?;
    let output = (1..base_level)
        .find(|l| level_files(version, *l).iter().any(|s| s.span().overlaps(&span)))
        .unwrap_or(base_level);
    complete(version, reason, files, output, busy)
}

/// The file of `level` that drags along the fewest bytes per byte of its own.
fn pick_from_level(version: &Version, level: u8, busy: &Busy) -> Option<Pick> {
    let mut best: Option<(f64, Pick)> = None;
    for file in level_files(version, level) {
        if busy.files.contains(&file.id) {
            continue;
        }
        let twins = twins(version, file);
        let Some(pick) = complete(version, Reason::Size, twins, level + 1, busy) else { continue };
        let cost = pick.input_bytes() as f64 / file.bytes.max(1) as f64;
        if best.as_ref().is_none_or(|(least, _)| cost < *least) {
            best = Some((cost, pick));
        }
    }
    best.map(|(_, pick)| pick)
}

/// All references to the same file in its level.
fn twins(version: &Version, file: &Arc<SstRef>) -> Vec<Arc<SstRef>> {
    level_files(version, file.level).iter().filter(|s| s.id == file.id).cloned().collect()
}

/// A question of a file's properties.
pub(crate) type Question<'a> = &'a dyn Fn(&SstProperties) -> bool;

/// What decides whether a file may hold garbage.
pub(crate) struct CollectInputs<'a> {
    pub(crate) schema: &'a TabletSchema,
    pub(crate) now_micros: i64,
    /// No write came for `gc_idle_ms`: merging for versions alone is worth while.
    pub(crate) idle: bool,
    /// Bytes of the tablet's SSTs.
    pub(crate) tablet_bytes: u64,
    /// Files that a recent rewrite found nothing in.
    pub(crate) futile: &'a HashSet<FileId>,
    /// Asks a question of a file's properties; `false` where they cannot be read.
    pub(crate) properties: &'a dyn Fn(FileId, Question<'_>) -> bool,
}

/// A compaction that collects garbage; see the module.
pub(crate) fn pick_to_collect(
    version: &Version,
    options: &EngineOptions,
    busy: &Busy,
    inputs: &CollectInputs<'_>,
) -> Option<Pick> {
    if inputs.idle
        && let Some(pick) = merge_for_versions(version, options, busy, inputs)
    {
        return Some(pick);
    }
    for level in 1..=LAST_LEVEL {
        for file in level_files(version, level) {
            if busy.files.contains(&file.id) || inputs.futile.contains(&file.id) {
                continue;
            }
            if (inputs.properties)(file.id, &|p| may_collect(p, inputs))
                && let Some(pick) =
                    complete(version, Reason::Collect, twins(version, file), level, busy)
            {
                return Some(pick);
            }
        }
    }
    // L0 files overlap, so they are rewritten together, into the base level.
    let l0_garbage = level_files(version, 0).iter().any(|file| {
        !inputs.futile.contains(&file.id)
            && (inputs.properties)(file.id, &|p| may_collect(p, inputs))
    });
    if l0_garbage {
        return pick_l0(version, Reason::Collect, targets(version, options).base_level, busy);
    }
    None
}

fn merge_for_versions(
    version: &Version,
    options: &EngineOptions,
    busy: &Busy,
    inputs: &CollectInputs<'_>,
) -> Option<Pick> {
    let counts = |file: &SstRef| {
        (inputs.properties)(file.id, &|p| {
            p.families.keys().any(|id| {
                inputs
                    .schema
                    .family(*id)
                    .and_then(|f| f.gc.as_ref())
                    .is_some_and(|rule| rule.counts_versions())
            })
        })
    };
    let l0 = level_files(version, 0);
    let shadowed = |file: &Arc<SstRef>| {
        let span = file.span();
        deepest_overlap(version, file.level, &span)
            || (file.level == 0 && l0.iter().any(|o| o.id != file.id && o.span().overlaps(&span)))
    };
    if l0.iter().any(|file| counts(file) && shadowed(file)) {
        let base = targets(version, options).base_level;
        return pick_l0(version, Reason::Collect, base, busy);
    }
    for level in 1..LAST_LEVEL {
        for file in level_files(version, level) {
            if !busy.files.contains(&file.id)
                && shadowed(file)
                && counts(file)
                && let Some(pick) =
                    complete(version, Reason::Collect, twins(version, file), level + 1, busy)
            {
                return Some(pick);
            }
        }
    }
    None
}

/// Whether, by its properties, the file may hold enough cells that a rule lets go, or a dropped family.
/// In a small tablet one such cell is enough. In a large one, whose cells expire all the time, a file is
/// rewritten when the oldest tenth of its time span has expired: each is then rewritten about ten times
/// in the life of its cells, and not every few seconds.
fn may_collect(properties: &SstProperties, inputs: &CollectInputs<'_>) -> bool {
    properties.families.iter().any(|(id, family)| {
        if family.cells == 0 {
            return false;
        }
        let Some(options) = inputs.schema.family(*id) else { return true };
        let patience = if inputs.tablet_bytes <= COLLECT_EAGER_BYTES {
            0
        } else {
            family.timestamp_max.saturating_sub(family.timestamp_min) / 10
        };
        options.gc.as_ref().is_some_and(|rule| {
            rule.collects(
                u32::try_from(family.column_versions_max.saturating_sub(1)).unwrap_or(u32::MAX),
                family.timestamp_min.saturating_add(patience),
                inputs.now_micros,
            )
        })
    })
}

/// Everything into the last level.
pub(crate) fn pick_full(version: &Version, busy: &Busy) -> Option<Pick> {
    let upper = (0..LAST_LEVEL)
        .flat_map(|level| level_files(version, level).iter().cloned())
        .collect::<Vec<_>>();
    let files = if upper.is_empty() {
        level_files(version, LAST_LEVEL).to_vec()
    } else {
        let mut files = upper;
        files.extend(level_files(version, LAST_LEVEL).iter().cloned());
        files
    };
    let span = span_of(&files)?;
    if busy.keeps_from(&files, LAST_LEVEL, &span) {
        return None;
    }
    Some(Pick { reason: Reason::Full, inputs: files, output_level: LAST_LEVEL, bottommost: true })
}

#[cfg(test)]
mod tests;
