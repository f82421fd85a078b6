//! Picks that give space back or freshen files, made when no level is over its target; on idle tablets too.
//!
//! * *Expired*: every cell of the file is one that its family's rule lets go, or of a dropped family, and nothing
//!   older lies below: the file goes by an edit alone. With something below, an older record of a cell would
//!   come back.
//! * *Hollow*: a file of which [dropped rows](crate::tablet), or a compaction that failed or was stopped later on, have left
//!   little is rewritten in place, so that it and the values that it names go, where that frees more than it writes. Not
//!   where a backup or another tablet needs the file.
//! * *Versions*: while a tablet is idle, files that overlap in rows and hold a family whose rule counts versions
//!   are merged down, since only a merge sees the versions side by side. These, deletions and runs of tombstones only where that is
//!   worth what it meets.
//! * *Garbage*: a file that, by its properties, holds cells which the rules let go is rewritten in place; where its writer
//!   has noted when the first of its cells may go, not before.
//! * *Deletions*: where a collector deletes such cells in place of compactions, deletions are merged down onto files that,
//!   by their properties, hold them, while the tablet is idle.
//! * *Runs of tombstones*: while a tablet is idle, they are merged down where there are too few of them to be
//!   [dense](super::shape): a scan that begins in one looks at all that it hides before it finds a row.
//! * *Old*: a file that was written longer ago than the options say is merged down, or rewritten in place where
//!   nothing lies below. So what no property tells of (an old tombstone over little) goes in the end, and
//!   every block is read, and its checksum proved, now and then.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::gc::Dues;
use super::pick::{Busy, Pick, Reason, pick_file};
use super::reads;
use super::shape::{LAST_LEVEL, Shape, is_over_something, level_files};
use super::sublevels::overlapping;
use crate::manifest::{SstRef, Version};
use crate::schema::{GcRule, TabletSchema};
use crate::sst::{FamilyProperties, FileId, SstProperties};

/// Bytes of a tablet up to which one expired cell is reason enough to rewrite its file: a quarter of a
/// gigabyte is rewritten in seconds. More would wear the disk of a server that expires cells steadily.
pub(crate) const COLLECT_EAGER_BYTES: u64 = 256 << 20;

/// Bytes a second that are written on average of a small tablet for its garbage, whatever comes of them: a writer that pauses again and
/// again, or cells that expire all the time, would have a tablet of a quarter of a gigabyte rewritten again and again. So that waits for
/// 17 minutes, and a tablet of a megabyte for four seconds.
const EAGER_BYTES_PER_SECOND: u64 = 256 << 10;

/// How long what a collection has written is left alone at least, in microseconds. Where cells expire all the time
/// there is always one more; a small tablet would be rewritten without a pause. Shorter wears the disk,
/// longer keeps garbage: with the interval of looking it must stay well under a minute.
const COLLECTED_WAIT_MICROS: u64 = 30_000_000;

/// The part of the age of its rule for which a cell may stay beyond it: a tenth. So much more is on disk at most for what rewrites
/// less, where cells come and expire evenly.
const PATIENCE: i64 = 10;

/// Columns of level 0 that are looked at for one that is worth it: more would take a tiered tablet's many files many looks each.
const LEVEL_ZERO_TRIED_MAX: usize = 8;

/// Tombstones in a row from which they are merged down on an idle tablet: a scan passes fewer in a millisecond.
const TOMBSTONE_RUN_MIN: u64 = 1000;

/// Of the data of a file, the part that dropped rows must hide for it to be rewritten for that: an eighth. What is hidden keeps
/// the values that it names, uncounted; less than an eighth of them is not worth looking at. A file of pointers, which
/// names many times its own bytes, is rewritten for this much: a larger part would keep more space from everybody, and a
/// smaller one rewrite it for every few rows that are dropped.
const HOLLOW_SHARE: u64 = 8;

/// What goes with a file.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Freed {
    /// Bytes of its data blocks.
    pub(crate) data_bytes: u64,
    /// Bytes of values that it names outside.
    pub(crate) value_bytes: u64,
}

/// A question of a file's properties.
pub(crate) type Question<'a> = &'a dyn Fn(&SstProperties) -> bool;

/// What decides whether a file may hold garbage.
pub(crate) struct CollectInputs<'a> {
    /// What compactions go by.
    pub(crate) schema: &'a TabletSchema,
    /// What a collector goes by in place of them: the schema with the rules that they do not apply.
    pub(crate) collector: Option<&'a TabletSchema>,
    pub(crate) now_micros: i64,
    /// No write came for `gc_idle_ms`: merging for versions alone is worth while.
    pub(crate) idle: bool,
    /// What was rewritten of a small tablet for little was so long ago.
    pub(crate) eager: bool,
    /// Bytes of the tablet's SSTs.
    pub(crate) tablet_bytes: u64,
    /// The disk fills: what gives space back is worth whatever it takes.
    pub(crate) tight: bool,
    /// Age at which a file is rewritten, in microseconds; 0 for never.
    pub(crate) rewrite_age_micros: i64,
    /// Files that were collected just now.
    pub(crate) resting: &'a HashSet<FileId>,
    /// When cells of files may go, where it is known.
    pub(crate) dues: &'a HashMap<FileId, Dues>,
    /// What goes with a file; nothing where others need it.
    pub(crate) freed: &'a dyn Fn(FileId) -> Freed,
    /// Asks a question of a file's properties; `false` where they cannot be read.
    pub(crate) properties: &'a dyn Fn(FileId, Question<'_>) -> bool,
}

/// A compaction that collects garbage; see the module.
pub(crate) fn pick_to_collect(
    version: &Version,
    shape: &Shape,
    busy: &Busy,
    inputs: &CollectInputs<'_>,
) -> Option<Pick> {
    let garbage = |file: &Arc<SstRef>| {
        !inputs.resting.contains(&file.id)
            && (inputs.properties)(file.id, &|p| may_collect(p, inputs.dues.get(&file.id), inputs))
    };
    let when_idle = |pick: &dyn Fn() -> Option<Pick>| if inputs.idle { pick() } else { None };
    pick_expired(version, busy, inputs.schema, inputs.now_micros, inputs.properties)
        .or_else(|| pick_hollow(version, shape, busy, inputs))
        .or_else(|| when_idle(&|| merge_for_versions(version, shape, busy, inputs)))
        .or_else(|| pick_where(version, shape, Reason::Collect, busy, &garbage, &|file| file.level))
        .or_else(|| when_idle(&|| merge_deletions(version, shape, busy, inputs)))
        .or_else(|| when_idle(&|| merge_runs_of_tombstones(version, shape, busy, inputs)))
        .or_else(|| pick_old(version, shape, busy, inputs))
}

/// The first file that is `wanted` and free, from the level below 0 on and in level 0 last: its files overlap, so
/// a column of them goes into the base level.
fn pick_where(
    version: &Version,
    shape: &Shape,
    reason: Reason,
    busy: &Busy,
    wanted: &dyn Fn(&Arc<SstRef>) -> bool,
    output_level: &dyn Fn(&SstRef) -> u8,
) -> Option<Pick> {
    picks_where(version, shape, reason, busy, wanted, output_level).next()
}

/// The same, and those after it.
fn picks_where(
    version: &Version,
    shape: &Shape,
    reason: Reason,
    busy: &Busy,
    wanted: &dyn Fn(&Arc<SstRef>) -> bool,
    output_level: &dyn Fn(&SstRef) -> u8,
) -> impl Iterator<Item = Pick> {
    (1..=LAST_LEVEL)
        .chain([0])
        .flat_map(|level| level_files(version, level))
        .filter(|file| !busy.files.contains(&file.id) && wanted(file))
        .filter_map(move |file| pick_file(version, shape, reason, file, output_level(file), busy))
}

/// Those that take a file a level down.
fn picks_down(
    version: &Version,
    shape: &Shape,
    reason: Reason,
    busy: &Busy,
    wanted: &dyn Fn(&Arc<SstRef>) -> bool,
) -> impl Iterator<Item = Pick> {
    picks_where(version, shape, reason, busy, wanted, &|file| file.level + 1)
}

/// Files that go without being read.
pub(crate) fn pick_expired(
    version: &Version,
    busy: &Busy,
    schema: &TabletSchema,
    now_micros: i64,
    properties: &dyn Fn(FileId, Question<'_>) -> bool,
) -> Option<Pick> {
    for level in 1..=LAST_LEVEL {
        let files = level_files(version, level);
        let is_over = |file: &SstRef| is_over_something(version, level, &file.span());
        // A file goes with all references to it.
        let cut = files.iter().filter(|file| file.is_cut() && is_over(file));
        let kept: HashSet<FileId> = cut.map(|file| file.id).collect();
        let expired = |file: &&Arc<SstRef>| {
            !busy.files.contains(&file.id)
                && !kept.contains(&file.id)
                && properties(file.id, &|p| is_expired(p, schema, now_micros))
                && !is_over(file)
        };
        let files: Vec<_> = files.iter().filter(expired).cloned().collect();
        if !files.is_empty() {
            let reason = Reason::Expired;
            return Some(Pick { reason, inputs: files, output_level: level, bottommost: true });
        }
    }
    None
}

/// Whether the rules let go of everything in the file. Tombstones may be in it: nothing lies below.
pub(crate) fn is_expired(properties: &SstProperties, schema: &TabletSchema, now: i64) -> bool {
    properties.cells > 0
        && properties.families.iter().all(|(id, family)| {
            let rule = match schema.family(*id) {
                None => return true,
                Some(options) => options.gc.as_ref(),
            };
            // Not one newer version is assumed.
            family.cells == 0 || rule.is_some_and(|r| r.collects(0, family.timestamp_max, now))
        })
}

/// Files that dropped rows have left little of, where rewriting all that is left writes less than it frees. So however many ranges are
/// dropped, no more is written for them than was in them, but for the blocks that they cut; and a file of level 0 that lies over much else
/// waits for a merge that comes by.
fn pick_hollow(
    version: &Version,
    shape: &Shape,
    busy: &Busy,
    inputs: &CollectInputs<'_>,
) -> Option<Pick> {
    // A file that is cut has several references, or one: what they show together is what is left of it.
    let mut left: HashMap<FileId, u64> = HashMap::new();
    for file in version.ssts().filter(|file| file.is_cut()) {
        let bytes = left.entry(file.id).or_default();
        *bytes = bytes.saturating_add(file.bytes);
    }
    let hollow: HashMap<FileId, u64> = left
        .into_iter()
        .filter_map(|(id, left)| Some((id, hidden_bytes((inputs.freed)(id), left)?)))
        .collect();
    let wanted = |file: &Arc<SstRef>| hollow.contains_key(&file.id);
    picks_where(version, shape, Reason::Hollow, busy, &wanted, &|file| file.level).find(|pick| {
        let files: HashSet<FileId> = pick.inputs.iter().map(|file| file.id).collect();
        let freed: u64 = files.iter().filter_map(|id| hollow.get(id)).sum();
        pick.file_bytes(version) < freed
    })
}

/// What a file of which `left` bytes of data are left would free, with the values that go with it; `None` where it is not hollow.
fn hidden_bytes(file: Freed, left: u64) -> Option<u64> {
    let data = file.data_bytes;
    let hidden = data.saturating_sub(left);
    if hidden == 0 || hidden < data / HOLLOW_SHARE {
        return None;
    }
    // Values lie behind the rows as evenly as anybody knows.
    let whole = u128::from(data) + u128::from(file.value_bytes);
    let freed = u128::from(hidden) * whole / u128::from(data);
    Some(u64::try_from(freed).unwrap_or(u64::MAX))
}

/// On an idle tablet: only a merge sees versions side by side.
fn merge_for_versions(
    version: &Version,
    shape: &Shape,
    busy: &Busy,
    inputs: &CollectInputs<'_>,
) -> Option<Pick> {
    let schema = inputs.collector.unwrap_or(inputs.schema);
    let counts = |file: &SstRef| {
        (inputs.properties)(file.id, &|p| {
            p.families.keys().any(|id| {
                schema
                    .family(*id)
                    .and_then(|f| f.gc.as_ref())
                    .is_some_and(|rule| rule.counts_versions())
            })
        })
    };
    let shadowed = |file: &Arc<SstRef>| {
        let span = file.span();
        let beside = |run| overlapping(run, &span).any(|other| other.id != file.id);
        is_over_something(version, file.level, &span)
            || (file.level == 0 && shape.sublevels.iter().any(|run| beside(run)))
    };
    let wanted = |file: &Arc<SstRef>| file.level < LAST_LEVEL && shadowed(file) && counts(file);
    // How many of the versions below go nobody knows before, but for no more of them than there are above.
    let small = inputs.tablet_bytes <= COLLECT_EAGER_BYTES;
    let in_any_case = if small && inputs.eager { u64::MAX } else { 0 };
    worth_it(picks_down(version, shape, Reason::Collect, busy, &wanted), in_any_case, inputs)
}

/// The first pick that is worth what it meets, which is rewritten with it: so much in any case, and more in proportion to what it
/// brings down, values outside included. Else a few rows over a large table would have all of it rewritten with every pause of its
/// writers; they wait for more of them, or for their age.
fn worth_it(
    picks: impl Iterator<Item = Pick>,
    in_any_case: u64,
    inputs: &CollectInputs<'_>,
) -> Option<Pick> {
    // Of level 0, which comes last, columns are much like each other, and each takes a look at all of its files.
    let is_of_level_zero = |pick: &Pick| pick.inputs.iter().any(|file| file.level == 0);
    let mut left = LEVEL_ZERO_TRIED_MAX;
    let mut picks = picks.take_while(|pick| {
        let goes_on = left > 0;
        left -= usize::from(goes_on && is_of_level_zero(pick));
        goes_on
    });
    picks.find(|pick| {
        let bytes = |file: &Arc<SstRef>| file.bytes + (inputs.freed)(file.id).value_bytes;
        let new = pick.inputs.iter().filter(|file| file.level < pick.output_level);
        let met = pick.input_bytes().saturating_sub(in_any_case);
        inputs.tight || reads::is_worth(new.map(bytes).sum(), met)
    })
}

/// On an idle tablet with a collector: what it deleted is in files still, and would be looked at again and again.
fn merge_deletions(
    version: &Version,
    shape: &Shape,
    busy: &Busy,
    inputs: &CollectInputs<'_>,
) -> Option<Pick> {
    let schema = inputs.collector?;
    let garbage = |file: &Arc<SstRef>| {
        (inputs.properties)(file.id, &|p| {
            may_delete(p, schema, inputs.tablet_bytes, inputs.now_micros)
        })
    };
    let over_garbage = |file: &Arc<SstRef>| {
        let span = file.span();
        (file.level + 1..=LAST_LEVEL)
            .any(|level| overlapping(level_files(version, level), &span).any(&garbage))
    };
    let wanted = |file: &Arc<SstRef>| {
        file.level < LAST_LEVEL
            && (inputs.properties)(file.id, &|p| p.tombstones() > 0)
            && over_garbage(file)
    };
    let picks = picks_down(version, shape, Reason::Collect, busy, &wanted);
    worth_it(picks, COLLECT_EAGER_BYTES, inputs)
}

/// On an idle tablet: nothing else brings the run down to what it hides.
fn merge_runs_of_tombstones(
    version: &Version,
    shape: &Shape,
    busy: &Busy,
    inputs: &CollectInputs<'_>,
) -> Option<Pick> {
    let has_run = |file: &Arc<SstRef>| {
        file.level < LAST_LEVEL
            && (inputs.properties)(file.id, &|p| p.tombstone_run_max >= TOMBSTONE_RUN_MIN)
    };
    let picks = picks_down(version, shape, Reason::Dense, busy, &has_run);
    worth_it(picks, COLLECT_EAGER_BYTES, inputs)
}

fn pick_old(
    version: &Version,
    shape: &Shape,
    busy: &Busy,
    inputs: &CollectInputs<'_>,
) -> Option<Pick> {
    if inputs.rewrite_age_micros <= 0 {
        return None;
    }
    let age = inputs.rewrite_age_micros;
    let is_old = |file: &Arc<SstRef>| {
        let before = inputs.now_micros.saturating_sub(age.saturating_add(grace(file.id, age)));
        (inputs.properties)(file.id, &|p| p.created_micros > 0 && p.created_micros < before)
    };
    pick_where(version, shape, Reason::Old, busy, &is_old, &|file| {
        let over = is_over_something(version, file.level, &file.span());
        if over { file.level + 1 } else { file.level }
    })
}

/// What a file may be older than `age`: up to a quarter, by its number, so that what was written in one night is not
/// rewritten in one night.
fn grace(id: FileId, age: i64) -> i64 {
    // The upper bits of Fibonacci hashing are well mixed.
    let hash = id.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56;
    age / 4 / 256 * i64::try_from(hash).unwrap_or(0)
}

/// Whether, by its properties and what its writer found, the file may hold enough cells that a rule lets go, or a
/// dropped family.
fn may_collect(
    properties: &SstProperties,
    dues: Option<&Dues>,
    inputs: &CollectInputs<'_>,
) -> bool {
    let CollectInputs { tablet_bytes, now_micros, .. } = *inputs;
    properties.families.iter().any(|(id, family)| match inputs.schema.family(*id) {
        None => family.cells > 0,
        Some(options) => options.gc.as_ref().is_some_and(|rule| {
            lets_go(rule, family, tablet_bytes, now_micros)
                && dues.is_none_or(|dues| {
                    dues.of(*id).saturating_add(patience(rule, family, tablet_bytes)) <= now_micros
                })
        }),
    })
}

/// The same for a collector, which goes by the rules of the table's families alone.
pub(crate) fn may_delete(
    properties: &SstProperties,
    schema: &TabletSchema,
    tablet_bytes: u64,
    now_micros: i64,
) -> bool {
    properties.families.iter().any(|(id, family)| {
        let rule = schema.user_rule(*id);
        rule.is_some_and(|rule| lets_go(rule, family, tablet_bytes, now_micros))
    })
}

/// In a small tablet one cell that may go is enough. In a large one, whose cells expire all the time, a file is
/// rewritten about ten times in the life of its cells, and not every few seconds; one of a short time goes as a whole.
fn lets_go(rule: &GcRule, family: &FamilyProperties, tablet_bytes: u64, now_micros: i64) -> bool {
    family.cells > 0
        && rule.collects(
            u32::try_from(family.column_versions_max.saturating_sub(1)).unwrap_or(u32::MAX),
            family.timestamp_min.saturating_add(patience(rule, family, tablet_bytes)),
            now_micros,
        )
}

/// For how long cells of a file are waited for that may go, so that more of them go at once, in microseconds: the
/// file's time span, after which all may go by an edit, but no more than a tenth of the rule's age. Timestamps are the clients', and one
/// in the far future, which marks something or was given in nanoseconds, must not keep all others of its file for ever.
pub(crate) fn patience(rule: &GcRule, family: &FamilyProperties, tablet_bytes: u64) -> i64 {
    if tablet_bytes <= COLLECT_EAGER_BYTES {
        return 0;
    }
    let span = family.timestamp_max.saturating_sub(family.timestamp_min);
    span.min(rule.least_age().unwrap_or(0).max(0) / PATIENCE)
}

/// How long it takes until so many bytes may be written of a small tablet for its garbage again, in microseconds.
pub(crate) fn eager_wait(bytes: u64) -> u64 {
    bytes.min(COLLECT_EAGER_BYTES).saturating_mul(1_000_000) / EAGER_BYTES_PER_SECOND
}

/// How long what was collected of a tablet is left alone, in microseconds: a small one for as long as all of it takes, but for a tenth of the least
/// age of its rules; a large one has [`patience`] with each file.
pub(crate) fn rest(schema: &TabletSchema, tablet_bytes: u64, tight: bool) -> u64 {
    if tight || tablet_bytes > COLLECT_EAGER_BYTES {
        return COLLECTED_WAIT_MICROS;
    }
    let least_age = |are_own: bool| {
        let families = schema.families.iter().filter(|(id, _)| id.is_own() == are_own);
        families.filter_map(|(_, family)| family.gc.as_ref()?.least_age()).min()
    };
    // The families of the server itself are in tables where they have no cells, too.
    let least = least_age(false).or_else(|| least_age(true)).unwrap_or(0) / PATIENCE;
    let most = u64::try_from(least).unwrap_or(0);
    eager_wait(tablet_bytes).min(most).max(COLLECTED_WAIT_MICROS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::{FAMILY_OWN_MIN, FamilyId};
    use crate::schema::FamilyOptions;

    const DAY_MICROS: i64 = 86_400_000_000;

    #[test]
    fn a_timestamp_in_the_far_future_does_not_keep_the_others_of_its_file() {
        let family = |timestamp_max| FamilyProperties {
            cells: 2,
            timestamp_min: 0,
            timestamp_max,
            column_versions_max: 1,
            ..FamilyProperties::default()
        };
        let rule = GcRule::Union(vec![GcRule::MaxVersions(3), GcRule::MaxAge(10 * DAY_MICROS)]);
        let large = COLLECT_EAGER_BYTES + 1;
        let lets_go = |family, days: i64| lets_go(&rule, &family, large, days * DAY_MICROS + 1);
        assert!(!lets_go(family(i64::MAX), 10));
        assert!(lets_go(family(i64::MAX), 11));
        assert!(!lets_go(family(5 * DAY_MICROS), 10));
        assert!(lets_go(family(5 * DAY_MICROS), 11));
        // A file of half a day waits until all of it has expired.
        assert_eq!(patience(&rule, &family(DAY_MICROS / 2), large), DAY_MICROS / 2);
        assert_eq!(patience(&rule, &family(i64::MAX), COLLECT_EAGER_BYTES), 0);
        assert_eq!(patience(&GcRule::MaxVersions(1), &family(i64::MAX), large), 0);
    }

    #[test]
    fn of_a_small_tablet_no_more_is_written_a_second_than_its_garbage_is_worth() {
        const SECOND_MICROS: i64 = 1_000_000;
        let schema = |rules: &[&GcRule]| TabletSchema {
            families: (0..)
                .map(FamilyId)
                .zip(rules.iter().map(|rule| FamilyOptions {
                    gc: Some((*rule).clone()),
                    aggregate: None,
                    gc_since_micros: 0,
                }))
                .collect(),
        };
        let seconds =
            |rules: &[&GcRule], bytes, tight| rest(&schema(rules), bytes, tight) / 1_000_000;
        let day = GcRule::MaxAge(DAY_MICROS);
        assert_eq!(seconds(&[&day], 1 << 20, false), 30);
        assert_eq!(seconds(&[&day], 200 << 20, false), 800);
        assert_eq!(seconds(&[&day], COLLECT_EAGER_BYTES, false), 1024);
        // But for what is to be gone soon, where the disk fills, and where files wait for more themselves.
        let hour = GcRule::MaxAge(3600 * SECOND_MICROS);
        let either = GcRule::Union(vec![day.clone(), hour.clone()]);
        let both = GcRule::Intersection(vec![day.clone(), hour.clone()]);
        assert_eq!(seconds(&[&day, &hour], 200 << 20, false), 360);
        assert_eq!(seconds(&[&either], 200 << 20, false), 360);
        assert_eq!(seconds(&[&both], 200 << 20, false), 800);
        assert_eq!(seconds(&[&day], 200 << 20, true), 30);
        assert_eq!(seconds(&[&day], COLLECT_EAGER_BYTES + 1, false), 30);
        assert_eq!(seconds(&[&GcRule::MaxVersions(1)], 200 << 20, false), 30);
        // Nor do the server's own families hurry those of its users.
        let mut with_own = schema(&[&day]);
        let own = schema(&[&hour]).families.into_values().map(|family| (FAMILY_OWN_MIN, family));
        with_own.families.extend(own);
        assert_eq!(rest(&with_own, 200 << 20, false), 800_000_000);
    }
}
