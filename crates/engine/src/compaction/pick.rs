//! Picking: which SSTs to compact next. Pure functions of a version and its [`Shape`], so that tests can read
//! them.
//!
//! What may be picked is bounded by what runs already ([`Busy`]): a file in a running compaction is
//! busy, and a pick that needs a busy file is not made; nor is one whose outputs would lie in the rows of
//! another's outputs in the same level, but for level 0, whose files may overlap. Sharing no file is not enough for that:
//! the inputs of a compaction can have gaps, its outputs need not.
//!
//! ```text
//! L0            [e..f]             L0 -> L6 shares no file with the rewrite of L6, but would put
//! L6  [a .. c]          [k .. z]   [e..f] into the middle of its output [a .. z]
//! ```
//!
//! A pick has *every* file of its output level that lies in its span. With the above, no output ever
//! overlaps another file of its level.
//!
//! # Level 0
//!
//! A file of level 0 cannot go down before the older files that it shares rows with, nor those before the older
//! ones that they share rows with. So a pick is a *column*: a file and, under it, all that must go first.
//!
//! ```text
//! sublevel 2    [a..f] [g..m] [n..z]
//!          1    [a..f] [g...n] [o..z]      the column under [g..m]: itself, [g...n], and below that
//!          0    [a..f] [g..m] [n..z]       [g..m] and [n..z], which [g...n] lies over
//! ```
//!
//! Columns that share neither rows nor files go down side by side. Of those the one goes that drags along the
//! fewest bytes of the base level per byte of its own, which is a deep one: that is why it pays to wait for
//! several flushes. Shallow ones wait for it, unless level 0 holds too much. While what is older goes
//! down and level 0 still grows too deep, the newer files are merged *within* level 0.
//!
//! And while level 0 is far from full, only what is [worth](reads::is_worth) what it meets goes down: four flushes of a few rows
//! from everywhere would have all of the base level rewritten. Until then they are merged with each other, the newest with as many as it
//! pays to have in one:
//!
//! ```text
//! newest  1 1 5 17    the first two; once those come to about 3, the 5 with them, and the 17 with that in its turn
//! ```
//!
//! Small flushes are merged with each other also where they share no rows, once they are [many](super::shape).
//!
//! Of a tiered tablet, columns go down only while level 0 is heavy, all the way to the last level. Otherwise its *runs*,
//! flushes and what became of them, are merged with each other: of all runs that are next to each other in age those
//! that take the fewest bytes for each run that there is less afterwards, which are of like size:
//!
//! ```text
//! newest  1 1 1 1 1 | 7 8 40    the first five: 5 bytes for 4 runs less; with the 7, 12 for 5
//! ```

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;

use super::ages::ages;
use super::level_zero::LevelZero;
use super::reads;
use super::shape::{
    CROWD_AGES_MIN, LAST_LEVEL, Shape, is_over_something, level_bytes, level_files, sublevels_max,
};
use super::sublevels::{self, overlapping};
use crate::cell::{RowRange, Seq};
use crate::manifest::{SstRef, Version};
use crate::options::{CompactionStyle, EngineOptions, TIERED_RUNS_MAX};
use crate::sst::FileId;

/// Sublevels that a merge within level 0 makes one of, at least. Fewer would not make reads noticeably cheaper.
const WITHIN_L0_DEPTH_MIN: usize = 4;

/// Memtables that the files of one age may hold to be merged within level 0: larger ones were merged before, and the
/// same bytes would be written again and again.
const WITHIN_L0_MEMTABLES_MAX: u64 = 2;

/// Columns of level 0 that cannot go and of which parts are looked at: more would take thousands of files as many looks each.
const COLUMNS_REFUSED_MAX: usize = 8;

/// Files of a level that are looked at for one that drags along less with all that goes with it: each takes a look at the next level, and
/// where nothing is cut the first is the one.
const SIZE_TRIED_MAX: usize = 16;

/// Why a compaction was picked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// Too many L0 sublevels.
    L0,
    /// Too many L0 sublevels, and what they would be merged with is busy, or too much for what they have: merged with each other.
    WithinL0,
    /// Many small flushes: merged with each other.
    Crowd,
    /// A level over its target.
    Size,
    /// A file that dropped rows have cut into too many pieces.
    Tattered,
    /// Files of which dropped rows, or a compaction that failed or was stopped later on, have left little.
    Hollow,
    /// Tombstones that would take away much of what they lie over.
    Dense,
    /// Cells that garbage-collection rules let go.
    Collect,
    /// Files all of whose cells are garbage, which go without being read.
    Expired,
    /// Files that were written long ago.
    Old,
    /// Places that reads look into again and again; see [`super::reads`].
    Reads,
    /// Value files with much garbage; see [`super::reclaim`].
    Reclaim,
    /// Everything into the last level, as the operator asked.
    Full,
}

impl Reason {
    /// Whether nobody is better off the sooner it is done but for the space that it gives back.
    pub(crate) fn can_wait(self) -> bool {
        self == Self::Reclaim
    }
}

/// A compaction to run.
#[derive(Debug, Clone)]
pub(crate) struct Pick {
    pub(crate) reason: Reason,
    /// The files, newest level first.
    pub(crate) inputs: Vec<Arc<SstRef>>,
    pub(crate) output_level: u8,
    /// No level below the output has anything of these rows, so all tombstones may go; see [`super::beneath`] for others.
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

    /// Whether what it has of level 0 is worth what that is merged with.
    fn is_worth(&self) -> bool {
        let own = self.inputs.iter().filter(|file| file.level == 0).map(|file| file.bytes).sum();
        reads::is_worth(own, self.input_bytes())
    }

    /// The inputs to leave alone for a while after it failed, some at least. Of one that went further down than it must, by its own choice
    /// or because level 0 holds much, the lowest, so that the next stops above them: that may have room, or meet no damage.
    pub(crate) fn gives_up<'a>(
        &'a self,
        version: &Version,
        shape: &Shape,
    ) -> impl Iterator<Item = &'a Arc<SstRef>> {
        let is_deep = match self.reason {
            Reason::Size => self.inputs.iter().any(|file| file.level + 1 < self.output_level),
            Reason::L0 => {
                first_met(version, shape.at_rest.base_level, &self.span()) < self.output_level
            }
            _ => false,
        };
        let lowest = self.inputs.iter().map(|file| file.level).max();
        self.inputs.iter().filter(move |file| !is_deep || Some(file.level) == lowest)
    }

    /// Whether the one input can change its level without being rewritten. From level 0 not to the last one,
    /// whose files are compressed more tightly: nothing would rewrite it there. Nor without the other pieces of its file, which is live in
    /// one level only.
    pub(crate) fn is_move(&self, version: &Version) -> bool {
        let [only] = self.inputs.as_slice() else { return false };
        let moves = match self.reason {
            Reason::Size => only.level != self.output_level,
            Reason::L0 => self.output_level != LAST_LEVEL,
            _ => false,
        };
        moves && !(only.is_cut() && all_pieces(version, only).nth(1).is_some())
    }

    /// The inputs, to be asked of references in later versions.
    pub(crate) fn references(&self) -> References {
        let mut spans: HashMap<(u8, FileId), Vec<RowRange>> = HashMap::new();
        for input in &self.inputs {
            spans.entry((input.level, input.id)).or_default().push(input.span());
        }
        References(spans)
    }

    /// Bytes of all that is left of the files of which it rewrites something: they are given back when all of it is rewritten.
    pub(super) fn file_bytes(&self, version: &Version) -> u64 {
        let mut seen = HashSet::new();
        let files = self.inputs.iter().filter(|file| seen.insert(file.id));
        let left = |file: &Arc<SstRef>| {
            let pieces = all_pieces(version, file);
            if file.is_cut() { pieces.map(|piece| piece.bytes).sum() } else { file.bytes }
        };
        files.map(left).sum()
    }
}

/// What a compaction takes of files: of one that is cut, there may be other pieces, which it has not read.
#[derive(Debug)]
pub(crate) struct References(HashMap<(u8, FileId), Vec<RowRange>>);

impl References {
    /// Whether a reference is one of them, or what rows that were dropped since have left of one.
    pub(crate) fn have(&self, file: &SstRef) -> bool {
        let spans = self.0.get(&(file.level, file.id));
        spans.is_some_and(|spans| spans.iter().any(|span| file.overlaps(span)))
    }
}

/// What running compactions keep from others.
#[derive(Debug, Clone, Default)]
pub(crate) struct Busy {
    /// Files that they read, and files that are left alone for a while.
    pub(crate) files: HashSet<FileId>,
    /// Where they write: level and rows.
    pub(crate) outputs: Vec<(u8, RowRange)>,
    /// Bytes of a compaction of level 0, and of what others take along beyond the next level, at most: where the disk had no room for
    /// a larger one, or who asks has no time for it.
    pub(crate) level_zero_bytes_max: Option<u64>,
    /// Whether no file of level 0 goes down but for what level 0 holds: the disk had no room for that.
    pub(crate) no_extras: bool,
    /// The newest sequence of small flushes whose merge has failed, which is not tried again for a while.
    pub(crate) crowds_after: Seq,
}

impl Busy {
    fn allows(&self, bytes: u64) -> bool {
        self.level_zero_bytes_max.is_none_or(|max| bytes <= max)
    }

    fn has_any(&self, files: &[Arc<SstRef>]) -> bool {
        files.iter().any(|file| self.files.contains(&file.id))
    }

    fn keeps_from(&self, inputs: &[Arc<SstRef>], output_level: u8, span: &RowRange) -> bool {
        self.has_any(inputs)
            || self
                .outputs
                .iter()
                .any(|(level, rows)| *level == output_level && rows.overlaps(span))
    }
}

/// The least range that has both.
pub(super) fn hull(a: RowRange, b: &RowRange) -> RowRange {
    RowRange {
        start: a.start.min(b.start.clone()),
        end: match (a.end.is_empty(), b.end.is_empty()) {
            (true, _) | (_, true) => Bytes::new(),
            _ => a.end.max(b.end.clone()),
        },
    }
}

fn span_of(files: &[Arc<SstRef>]) -> Option<RowRange> {
    files.iter().map(|s| s.span()).reduce(|a, b| hull(a, &b))
}

/// Completes a pick of `upper` files into `output_level` with what overlaps there; `None` where a
/// needed file is busy.
pub(super) fn complete(
    version: &Version,
    reason: Reason,
    upper: Vec<Arc<SstRef>>,
    output_level: u8,
    busy: &Busy,
) -> Option<Pick> {
    let mut inputs = upper;
    let place = |file: &SstRef| (file.id, file.first_visible().clone());
    let of_output = inputs.iter().filter(|file| file.level == output_level);
    let mut taken: HashSet<_> = of_output.map(|file| place(file)).collect();
    // Of a file that is cut the pieces next to each other go together, so that the span may grow, by rows that nothing there shows.
    let span = span_of(&inputs)?;
    let met: Vec<_> = overlapping(level_files(version, output_level), &span).collect();
    for file in met {
        let pieces = pieces(version, file, output_level).iter();
        inputs.extend(pieces.filter(|piece| taken.insert(place(piece))).cloned());
    }
    let span = span_of(&inputs)?;
    if busy.keeps_from(&inputs, output_level, &span) {
        return None;
    }
    let bottommost = !is_over_something(version, output_level, &span);
    Some(Pick { reason, inputs, output_level, bottommost })
}

/// The most urgent compaction by shape.
pub(crate) fn pick_by_shape(
    version: &Version,
    shape: &Shape,
    options: &EngineOptions,
    busy: &Busy,
) -> Option<Pick> {
    let pick = match shape.style {
        CompactionStyle::Tiered => pick_tiered(version, shape, options, busy),
        CompactionStyle::Leveled => shape.scores.iter().find_map(|(_, level)| match level {
            0 => pick_l0(version, shape, Reason::L0, None, busy)
                .or_else(|| pick_within_l0(version, shape, options, busy)),
            _ => pick_from_level(version, shape, *level, busy),
        }),
    };
    let pick = pick.or_else(|| pick_crowd(shape, busy));
    if pick.is_some() {
        return pick;
    }
    let tattered = shape.tattered.iter().find_map(|file| {
        pick_file(version, shape, Reason::Tattered, file, file.level.max(1), busy)
    });
    tattered.or_else(|| {
        shape
            .dense
            .iter()
            .find_map(|file| pick_file(version, shape, Reason::Dense, file, file.level + 1, busy))
    })
}

/// The compaction of level 0 that is due and goes before what a thread is in the midst of, or could help with: where writers would be
/// refused for its depth first, a column that is as deep as any. Another one would put off the deepest, which may be what that is.
pub(crate) fn pick_level_zero(
    version: &Version,
    shape: &Shape,
    options: &EngineOptions,
    busy: &Busy,
) -> Option<Pick> {
    let deep = shape.sublevels.len() >= sublevels_max(options, shape.style);
    let heavy = shape.weight >= 1.0;
    let tiered = shape.style == CompactionStyle::Tiered;
    // What another style has left between goes down first.
    let is_over = (1..LAST_LEVEL).any(|level| !level_files(version, level).is_empty());
    let goes_down = if tiered { heavy && !is_over } else { heavy || deep };
    let depth_min =
        if !tiered && shape.is_deep_first() { shape.sublevels.len() } else { half(shape) };
    let passes = |pick: &Pick| !shape.has_time() || pick.is_worth();
    let column = || pick_column(version, shape, Reason::L0, None, depth_min, busy, &passes);
    let down = || if goes_down { column() } else { None };
    let across = || match shape.style {
        CompactionStyle::Tiered if deep => pick_runs(version, shape, busy),
        CompactionStyle::Tiered => None,
        CompactionStyle::Leveled => pick_within_l0(version, shape, options, busy),
    };
    down().or_else(|| across().filter(|pick| busy.allows(pick.input_bytes())))
}

/// One file of a level below 0 into `output_level`; of level 0, its column into the base level.
pub(crate) fn pick_file(
    version: &Version,
    shape: &Shape,
    reason: Reason,
    file: &Arc<SstRef>,
    output_level: u8,
    busy: &Busy,
) -> Option<Pick> {
    if file.level == 0 {
        if busy.no_extras {
            return None;
        }
        return pick_l0(version, shape, reason, Some(file.id), busy);
    }
    if busy.files.contains(&file.id) {
        return None;
    }
    complete(version, reason, pieces(version, file, output_level).to_vec(), output_level, busy)
}

/// The column of level 0 that drags along the fewest bytes per byte of its own, into the base level; of `seed`,
/// where that is given.
fn pick_l0(
    version: &Version,
    shape: &Shape,
    reason: Reason,
    seed: Option<FileId>,
    busy: &Busy,
) -> Option<Pick> {
    // Where writes are refused for what level 0 holds, shallow ones go, too: the deep one may be under way for long, or kept from going
    // down by damage or by a disk that has no room for it.
    let waits = reason == Reason::L0 && !shape.holds_too_much();
    let depth_min = if waits { half(shape) } else { 0 };
    let passes = |pick: &Pick| reason != Reason::L0 || !shape.has_time() || pick.is_worth();
    pick_column(version, shape, reason, seed, depth_min, busy, &passes)
}

/// Sublevels that a column has at least that goes down for the depth of level 0: where one corner is deep, the shallow ones can wait,
/// since they would drag along the most.
fn half(shape: &Shape) -> usize {
    shape.sublevels.len().div_ceil(2)
}

/// The same, of those that pass and have so many sublevels.
pub(super) fn pick_column(
    version: &Version,
    shape: &Shape,
    reason: Reason,
    seed: Option<FileId>,
    depth_min: usize,
    busy: &Busy,
    passes: &dyn Fn(&Pick) -> bool,
) -> Option<Pick> {
    let level_zero = LevelZero::new(version, shape);
    let files = level_zero.files();
    let mut best: Option<(f64, Pick)> = None;
    let mut seen: HashSet<usize> = HashSet::new();
    let mut refused = 0;
    for (at, file) in files.iter().enumerate() {
        // A column of one that was looked at is the same, or a part of it that is less deep. Where the whole could not go, a part
        // perhaps can.
        if seen.contains(&at) || busy.files.contains(&file.id) {
            continue;
        }
        if !seed.map_or_else(|| level_zero.is_uncovered(at), |seed| seed == file.id) {
            continue;
        }
        let column = level_zero.column(at);
        let upper: Vec<_> = column.iter().filter_map(|at| files.get(*at).cloned()).collect();
        let Some(span) = span_of(&upper) else { continue };
        if level_zero.depth(&column, &span) < depth_min {
            seen.extend(&column);
            continue;
        }
        let own: u64 = upper.iter().map(|file| file.bytes).sum();
        let most = shape.merge_bytes_max(own);
        let fits = |pick: &Pick| pick.input_bytes() <= most && busy.allows(pick.input_bytes());
        let base = shape.targets.base_level;
        let through = || pick_through(version, base, &upper, busy).filter(fits);
        // Where that is too large, or needs a file that is busy, the column stops above.
        let stopping = || {
            let level = first_met(version, shape.at_rest.base_level, &span);
            complete(version, reason, upper.clone(), level, busy)
        };
        let down = if reason == Reason::L0 { through() } else { None };
        let pick = down.or_else(stopping).map(|pick| deepen(version, shape, pick, busy));
        let pick = pick.filter(|pick| busy.allows(pick.input_bytes()) && passes(pick));
        if pick.is_some() || refused >= COLUMNS_REFUSED_MAX {
            seen.extend(&column);
        }
        let Some(pick) = pick else {
            refused += 1;
            continue;
        };
        let cost = pick.input_bytes() as f64 / own.max(1) as f64;
        if best.as_ref().is_none_or(|(least, _)| cost < *least) {
            best = Some((cost, pick));
        }
        // It drags along nothing: no other costs less.
        if cost <= 1.0 {
            break;
        }
    }
    best.map(|(_, pick)| pick)
}

/// Where a column of these rows comes to on its way to the base level: a level between that holds files comes first, or older
/// data would lie above newer.
fn first_met(version: &Version, base: u8, span: &RowRange) -> u8 {
    let holds = |level: &u8| overlapping(level_files(version, *level), span).next().is_some();
    (1..base).find(holds).unwrap_or(base)
}

/// A column of level 0 into the base level, with all that it meets on its way.
fn pick_through(version: &Version, base: u8, upper: &[Arc<SstRef>], busy: &Busy) -> Option<Pick> {
    let first = first_met(version, base, &span_of(upper)?);
    let pick = complete(version, Reason::L0, upper.to_vec(), first, busy)?;
    (first + 1..=base)
        .try_fold(pick, |pick, level| complete(version, Reason::L0, pick.inputs, level, busy))
}

/// The pick with what it meets in the levels below its output, and the deepest of these as its output, where that is
/// cheaper than to stop above: what does not fit there goes down again, with its share of what it meets.
///
/// Of `taken` bytes that come to where `target` should stay, over `met` in the next level, that share is
/// `1 - target / taken`. So to stop costs `taken + (1 - target / taken) (taken + met)`, and to go on `taken + met`.
fn deepen(version: &Version, shape: &Shape, mut pick: Pick, busy: &Busy) -> Pick {
    let goes_on = matches!(pick.reason, Reason::L0 | Reason::Size);
    while goes_on && pick.output_level < LAST_LEVEL && !pick.is_move(version) {
        let (inputs, output) = (pick.inputs.clone(), pick.output_level + 1);
        let Some(deeper) = complete(version, pick.reason, inputs, output, busy) else { break };
        let (taken, both) = (pick.input_bytes(), deeper.input_bytes());
        // Rows are spread as the next level has them.
        let part = both.saturating_sub(taken) as f64 / level_bytes(version, output).max(1) as f64;
        let target = shape.targets.at(pick.output_level) as f64 * part.min(1.0);
        let is_cheaper = target * (both as f64) < (taken as f64).powi(2);
        if !is_cheaper || both > shape.merge_bytes_max(taken) || !busy.allows(both) {
            break;
        }
        pick = deeper;
    }
    pick
}

/// The newest files of level 0 merged with each other: those that no running compaction has. They are next to
/// each other in age, so what they become has their place in it.
fn pick_within_l0(
    version: &Version,
    shape: &Shape,
    options: &EngineOptions,
    busy: &Busy,
) -> Option<Pick> {
    // What waits for a column that is busy, or has no room, may be large; what is small beside it waits with it, until level 0 is deep.
    let light = || pick_l0(version, shape, Reason::L0, None, &Busy::default()).is_none();
    if shape.has_time() && light() {
        return pick_newest_runs(version, shape, options, busy);
    }
    let deep = options.l0_compaction_files.max(options.l0_stop_files / 2);
    if shape.sublevels.len() < deep {
        return None;
    }
    let bytes_max = options.memtable_bytes.saturating_mul(WITHIN_L0_MEMTABLES_MAX);
    let files = level_files(version, 0);
    // With all of its files or not at all, and so the pieces of a file that dropped rows have cut.
    let is_small = |age: &[Arc<SstRef>]| age.iter().map(|f| f.bytes).sum::<u64>() <= bytes_max;
    let inputs = newest_free(files, busy, is_small);
    let few = sublevels::arrange(&inputs).len() < WITHIN_L0_DEPTH_MIN;
    if few { None } else { within_l0(Reason::WithinL0, inputs, busy) }
}

/// The newest ages of these files, up to the first that does not pass or of which a file is busy.
fn newest_free(
    files: &[Arc<SstRef>],
    busy: &Busy,
    passes: impl Fn(&[Arc<SstRef>]) -> bool,
) -> Vec<Arc<SstRef>> {
    let ages = ages(files).into_iter().filter_map(|age| files.get(age));
    ages.take_while(|age| passes(age) && !busy.has_any(age)).flatten().cloned().collect()
}

/// Small flushes, but for those from which on merges have failed.
fn pick_crowd(shape: &Shape, busy: &Busy) -> Option<Pick> {
    // Those that are newer than one which is left alone, for its damage perhaps, do without it: the ages of which all is newer, since what is
    // merged of a part of one would share rows with the rest of it.
    let is_newer = |age: &[Arc<SstRef>]| age.iter().all(|file| file.min_seq > busy.crowds_after);
    let inputs = newest_free(&shape.crowd, busy, is_newer);
    let are_many = ages(&inputs).len() >= CROWD_AGES_MIN || inputs.len() == shape.crowd.len();
    if are_many { within_l0(Reason::Crowd, inputs, busy) } else { None }
}

/// Ages of level 0 next to each other made one. Beside others of the same rows that become one: those are older, or newer, as a whole.
fn within_l0(reason: Reason, inputs: Vec<Arc<SstRef>>, busy: &Busy) -> Option<Pick> {
    if inputs.is_empty() || busy.has_any(&inputs) {
        return None;
    }
    Some(Pick { reason, inputs, output_level: 0, bottommost: false })
}

/// Of a tiered tablet: a column into the last level where level 0 is heavy, else runs that are merged with each other.
/// What another style has left between goes down before a column, which would be merged with it on its way; but after
/// runs are merged, since writers wait for those.
fn pick_tiered(
    version: &Version,
    shape: &Shape,
    options: &EngineOptions,
    busy: &Busy,
) -> Option<Pick> {
    let heavy = shape.weight >= 1.0;
    let deep = shape.sublevels.len() >= sublevels_max(options, shape.style);
    let column = || pick_l0(version, shape, Reason::L0, None, busy);
    let down = || if heavy { column() } else { None };
    let across = || if deep { pick_runs(version, shape, busy) } else { None };
    let is_left = |level: &u8| !level_files(version, *level).is_empty();
    // The deepest first: what lies above then finds nothing to be merged with but the last level.
    let between: Vec<u8> = (1..LAST_LEVEL).rev().filter(is_left).collect();
    if between.is_empty() {
        return down().or_else(across);
    }
    across()
        .or_else(|| between.iter().find_map(|level| pick_from_level(version, shape, *level, busy)))
        .or_else(down)
}

/// Ages of level 0 next to each other that share no rows, which are a flush or what became of one.
#[derive(Debug, Default)]
struct AgeRun {
    files: Vec<Arc<SstRef>>,
    /// Places that a read looks in: one, but where files of one age share rows.
    depth: usize,
}

/// Level 0 as runs, the newest first.
fn runs(level_zero: &LevelZero<'_>) -> Vec<AgeRun> {
    let mut runs: Vec<AgeRun> = Vec::new();
    // Where the last of them begins.
    let mut begin = 0;
    for age in level_zero.ages() {
        let Some(files) = level_zero.files().get(age.clone()) else { continue };
        let lies_under = |file: &Arc<SstRef>| {
            level_zero.meeting(&file.span()).any(|other| (begin..age.start).contains(&other))
        };
        if runs.is_empty() || files.iter().any(lies_under) {
            runs.push(AgeRun::default());
            begin = age.start;
        }
        if let Some(run) = runs.last_mut() {
            run.files.extend_from_slice(files);
            run.depth = run.depth.max(sublevels::arrange(files).len());
        }
    }
    runs
}

/// The runs next to each other in age that take the fewest bytes for each run less, where there are too many, with those counted as one that
/// others have: else what is left, which is the larger runs, would be merged beside each merge of small ones.
fn pick_runs(version: &Version, shape: &Shape, busy: &Busy) -> Option<Pick> {
    let runs = runs(&LevelZero::new(version, shape));
    let is_free = |run: &&AgeRun| !busy.has_any(&run.files);
    let groups = runs.chunk_by(|a, b| !is_free(&a) && !is_free(&b));
    let depths = groups.map(|group| match group {
        [run] if is_free(&run) => run.depth,
        _ => 1,
    });
    if depths.sum::<usize>() < TIERED_RUNS_MAX {
        return None;
    }
    let mut best: Option<(f64, std::ops::Range<usize>)> = None;
    for start in 0..runs.len() {
        let (mut bytes, mut depth) = (0, 0);
        for (more, run) in runs.iter().skip(start).take_while(is_free).enumerate() {
            bytes += run.files.iter().map(|file| file.bytes).sum::<u64>();
            depth += run.depth;
            let cost = bytes as f64 / depth.saturating_sub(1) as f64;
            if depth > 1 && best.as_ref().is_none_or(|(least, _)| cost < *least) {
                best = Some((cost, start..start + more + 1));
            }
        }
    }
    merge_runs(runs.get(best?.1)?, busy)
}

/// The newest runs of a level 0 that is due for its depth and has nothing that is worth to go down: two of them, and older ones where what
/// is newer was written again about as often by now as it takes to write them once.
///
/// Of `newer` bytes in flushes of `one`, which became `runs` beside the last of them, each is written about `(newer / one)^(1 / runs)` times:
/// of a thousand in two runs some thirty times, where flush after flush was merged with the newer run, and that now and then with the older.
fn pick_newest_runs(
    version: &Version,
    shape: &Shape,
    options: &EngineOptions,
    busy: &Busy,
) -> Option<Pick> {
    let runs = runs(&LevelZero::new(version, shape));
    let free = runs.iter().take_while(|run| !busy.has_any(&run.files)).count();
    // What others have becomes one.
    let others = usize::from(free < runs.len());
    let runs = runs.get(..free)?;
    let depth: usize = runs.iter().map(|run| run.depth).sum();
    if depth < 2 || depth + others < sublevels_max(options, shape.style) {
        return None;
    }
    let bytes_of =
        |run: &AgeRun| run.files.iter().map(|file| file.bytes).sum::<u64>().max(1) as f64;
    let one = runs.first().map(bytes_of)?;
    let (mut newer, mut merged) = (0.0, 2);
    for (at, run) in runs.iter().enumerate() {
        let bytes = bytes_of(run);
        if at > 1 {
            let written = newer * f64::powf(newer / one, 1.0 / (at - 1) as f64);
            if written >= 2.0 * bytes {
                merged = at + 1;
            }
        }
        newer += bytes;
    }
    merge_runs(runs.get(..merged.min(runs.len()))?, busy)
}

/// Runs next to each other made one.
fn merge_runs(runs: &[AgeRun], busy: &Busy) -> Option<Pick> {
    let inputs = runs.iter().flat_map(|run| run.files.clone()).collect();
    within_l0(Reason::WithinL0, inputs, busy)
}

/// The file of `level` that drags along the fewest bytes per byte of its own, with those beside it that drag
/// along nothing more; down as many levels as is cheaper than to stop.
fn pick_from_level(version: &Version, shape: &Shape, level: u8, busy: &Busy) -> Option<Pick> {
    let files = level_files(version, level);
    let mut candidates: Vec<(f64, u64, &[Arc<SstRef>])> = Vec::new();
    for pieces in files.chunk_by(|a, b| go_together(version, a, b, level + 1)) {
        if busy.has_any(pieces) {
            continue;
        }
        let Some(span) = span_of(pieces) else { continue };
        let own = pieces.iter().map(|piece| piece.bytes).sum();
        let met = overlapping(level_files(version, level + 1), &span).map(|file| file.bytes).sum();
        candidates.push((drags(met, own), own, pieces));
    }
    candidates.sort_by(|a, b| a.0.total_cmp(&b.0));
    // It is more where of what it meets other pieces go along.
    let mut best: Option<(f64, Pick)> = None;
    let mut tried = 0;
    for (at_least, own, pieces) in candidates {
        if best.as_ref().is_some_and(|(least, _)| *least <= at_least || tried >= SIZE_TRIED_MAX) {
            break;
        }
        let upper = pieces.to_vec();
        let Some(pick) = complete(version, Reason::Size, upper, level + 1, busy) else { continue };
        tried += 1;
        let cost = drags(pick.input_bytes().saturating_sub(own), own);
        if best.as_ref().is_none_or(|(least, _)| cost < *least) {
            best = Some((cost, pick));
        }
    }
    let (_, pick) = best?;
    Some(deepen(version, shape, widen(version, pick, level, busy), busy))
}

/// What a pick drags along per byte of its own.
fn drags(met: u64, own: u64) -> f64 {
    met as f64 / own.max(1) as f64
}

/// The pick with the files of `level` that lie in its rows.
fn widen(version: &Version, mut pick: Pick, level: u8, busy: &Busy) -> Pick {
    if pick.inputs.len() < 2 {
        // A move.
        return pick;
    }
    let span = pick.span();
    for file in overlapping(level_files(version, level), &span) {
        let taken = pick.inputs.iter().any(|input| Arc::ptr_eq(input, file));
        if !taken && span.contains_range(&file.span()) && !busy.files.contains(&file.id) {
            let at = pick.inputs.partition_point(|s| s.level <= level);
            pick.inputs.insert(at, Arc::clone(file));
        }
    }
    pick
}

/// Whether two references next to each other in their level are to one file, cut by dropped rows, and go to `output_level` together. Else one
/// of them is rewritten, and the file stays for the other: a table's rows may be dropped and all of them loaded again, and then
/// any number of files lies between the two.
fn go_together(version: &Version, a: &SstRef, b: &SstRef, output_level: u8) -> bool {
    a.id == b.id && {
        let hole = RowRange { start: a.span().end, end: b.first_visible().clone() };
        let met = overlapping(level_files(version, output_level), &hole);
        let between = met.filter(|file| hole.contains_range(&file.span())).map(|file| file.bytes);
        // No more than they have: what is dragged along stays in proportion.
        between.sum::<u64>() <= a.bytes.saturating_add(b.bytes)
    }
}

/// What goes to `output_level` with a file of a level below 0 that may be cut: its pieces next to this one, and this one.
pub(super) fn pieces<'a>(
    version: &'a Version,
    file: &SstRef,
    output_level: u8,
) -> &'a [Arc<SstRef>] {
    let files = level_files(version, file.level);
    let at = files.partition_point(|other| other.first_visible() < file.first_visible());
    let (before, after) = files.split_at(at);
    let is_piece = |other: &&Arc<SstRef>| other.id == file.id;
    let from = at - before.iter().rev().take_while(is_piece).count();
    let until = at + after.iter().take_while(is_piece).count();
    let same = files.get(from..until).unwrap_or_default();
    let mut together = same.chunk_by(|a, b| go_together(version, a, b, output_level));
    let has_it = |piece: &Arc<SstRef>| piece.first_visible() == file.first_visible();
    together.find(|pieces| pieces.iter().any(has_it)).unwrap_or_default()
}

/// All references to a file.
fn all_pieces<'a>(version: &'a Version, file: &SstRef) -> impl Iterator<Item = &'a Arc<SstRef>> {
    let id = file.id;
    level_files(version, file.level).iter().filter(move |other| other.id == id)
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
mod order;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod wide;
