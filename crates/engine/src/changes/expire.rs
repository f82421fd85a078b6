//! Giving up change files: those whose time is over, wherever they are; then the oldest, where those that are left have too many
//! bytes.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::file::{ChangeFile, last_seqs};
use super::horizon::Horizons;
use super::{ChangeLog, GRACE_MICROS, commit_micros};
use crate::cell::Seq;
use crate::core::Core;
use crate::error::{Error, ErrorKind, Result};
use crate::limits::CLOCK_JUMP_MAX;
use crate::log::lock;

/// How often files are looked at whose retention period may be over, in microseconds.
const EXPIRE_EVERY_MICROS: u64 = 60 * 1_000_000;

/// Change files that are given up at once. A stream that is disabled may have thousands: the housekeeper, which has more to do,
/// raises the horizons of their tablets once for so many, and comes back for the next.
const GIVEN_UP_TOGETHER_MAX: usize = 32;

/// Change files that are opened at once to learn whose changes are in them. After a restart nobody has looked into any, and a week
/// may have thousands: a few dozen take milliseconds, and then the housekeeper turns to what else it has to do.
const LOOKED_INTO_TOGETHER_MAX: usize = 32;

/// How far the changes of a file may be ahead of the clock for it to be that of their time.
const CLOCK_JUMP_MAX_MICROS: i64 = CLOCK_JUMP_MAX.as_secs() as i64 * 1_000_000;

/// When files are looked at whose time may be over (monotonic micros).
#[derive(Debug, Default)]
pub(super) struct Expiry {
    /// Those whose retention period may be over.
    look_at: u64,
    /// Those over the limit, and those that the last look has left: not at once where it failed.
    not_before: u64,
    /// The last look may have left some: the next one goes on with them.
    more: bool,
    /// The segments of files that could not be read since a look last began anew: those that go on leave them closed, or would
    /// never come to what is behind many of them.
    unreadable: HashSet<u64>,
}

/// What a look has found, each the oldest first.
#[derive(Debug, Default)]
struct Found<'a> {
    /// Files that nobody may read any more.
    over: Vec<&'a Arc<ChangeFile>>,
    /// Files that somebody may still read.
    needed: Vec<&'a Arc<ChangeFile>>,
    /// There are files that nobody has looked into.
    unknown: bool,
    /// Why the look ended before it came to them, where it did.
    refused: Option<Error>,
}

impl ChangeLog {
    /// Gives up the files that no reader may read any more, some at a time: the store removes them. Older ones that somebody may
    /// still read stay before them, and go for want of room only when nothing is left that nobody may read.
    /// `retention` is that of a tablet, or the longest of all, in microseconds; 0 where no changes are kept. How long the
    /// next are to wait, where there are more: until those have gone at `bytes_per_second`; 0 does not wait, nor does what is over
    /// the limit of all. Blocks.
    pub(crate) fn expire(
        &self,
        core: &Core,
        bytes_per_second: u64,
        retention: &dyn Fn(Option<u64>) -> u64,
    ) -> Option<Duration> {
        let now = core.env.clock.monotonic_micros();
        let over = self.files().iter().map(|file| file.bytes).sum::<u64>() > self.bytes_max;
        let mut expiry = lock(&self.expiry);
        let due_at = if expiry.more && bytes_per_second == 0 {
            // They wait for the pace of before, and there is none now.
            now
        } else if over || expiry.more {
            expiry.not_before
        } else {
            expiry.look_at
        };
        if now < due_at {
            return expiry.more.then(|| Duration::from_micros(due_at - now));
        }
        let again_at = now.saturating_add(EXPIRE_EVERY_MICROS);
        if !expiry.more {
            expiry.unreadable.clear();
        }
        (expiry.look_at, expiry.not_before, expiry.more) = (again_at, again_at, false);
        let given_up = self.give_up(core, &mut expiry.unreadable, retention);
        let given_up = given_up.inspect_err(|error| {
            tracing::warn!(%error, "cannot remove old change files; they are tried again");
        });
        let (bytes, more) = given_up.ok()?;
        if bytes > 0 {
            self.lists.forget();
        }
        // What is over the limit does not wait: it would be more by then. The store removes it as fast as it must.
        let pace = if over { 0 } else { bytes_per_second };
        let takes = bytes.saturating_mul(1_000_000).checked_div(pace).unwrap_or(0);
        expiry.not_before = now.saturating_add(takes);
        expiry.more = more;
        more.then(|| Duration::from_micros(takes))
    }

    /// The bytes of the files that it gave up, and whether there may be more.
    fn give_up(
        &self,
        core: &Core,
        unreadable: &mut HashSet<u64>,
        retention: &dyn Fn(Option<u64>) -> u64,
    ) -> Result<(u64, bool)> {
        let files = core.env.files.as_ref();
        let forgotten = self.horizons.forget(|tablet| retention(Some(tablet)) > 0);
        if !forgotten.is_empty() {
            self.keep_list(core)?;
            Horizons::remove(files, &self.dir, &forgotten)?;
        }
        let known = self.files().clone();
        let all_bytes: u64 = known.iter().map(|file| file.bytes).sum();
        let Found { over: mut given_up, needed, unknown, refused } =
            self.look(core, &known, unreadable, retention);
        let mut bytes = all_bytes - given_up.iter().map(|file| file.bytes).sum::<u64>();
        let mut dropped_bytes = 0;
        // What nobody has looked into may be what nobody may read any more, and goes first then.
        let for_want_of_room = if unknown { Vec::new() } else { needed };
        for file in for_want_of_room {
            if bytes <= self.bytes_max || given_up.len() == GIVEN_UP_TOGETHER_MAX {
                break;
            }
            bytes -= file.bytes;
            dropped_bytes += file.bytes;
            given_up.push(file);
        }
        let more = given_up.len() == GIVEN_UP_TOGETHER_MAX || (unknown && refused.is_none());
        if let Some(error) = refused.filter(|_| given_up.is_empty()) {
            return Err(error);
        }
        let mut horizons: BTreeMap<Option<u64>, Seq> = BTreeMap::new();
        for file in &given_up {
            let losers = match file.known_tablets() {
                Some(tablets) if tablets.iter().all(|of| retention(Some(*of)) == 0) => Vec::new(),
                // Each as far as its own changes go: who has read those has lost nothing by what others have behind them.
                Some(tablets) => {
                    let lasts = last_seqs(files, &self.dir, file, tablets);
                    lasts.into_iter().map(|(tablet, last)| (Some(tablet), last)).collect()
                }
                None => vec![(None, file.last_seq)],
            };
            for (of, last) in losers.into_iter().filter(|(of, _)| retention(*of) > 0) {
                let horizon = horizons.entry(of).or_default();
                *horizon = last.max(*horizon);
            }
        }
        self.horizons.raise(files, &self.dir, &horizons, || core.sync_dir(&self.dir))?;
        let gone = self.unlist(core, &given_up.iter().map(|file| file.segment).collect())?;
        if dropped_bytes > 0 {
            self.dropped_bytes.fetch_add(dropped_bytes, Ordering::Relaxed);
            tracing::warn!(
                dropped_bytes,
                bytes = all_bytes,
                bytes_max = self.bytes_max,
                "change files have more than log.changes_bytes_max: the oldest changes are removed before their \
                 retention period is over, and streams that were to read them fail"
            );
        }
        // Where a crash brings a file back, before its removal is durable, it is given up again.
        for file in gone {
            core.store.remove_later(self.dir.join(file.name()), file.bytes);
        }
        Ok((all_bytes - bytes, more))
    }

    /// Sorts `known` files by whether somebody may still read what is in them, until there are enough that nobody may. Opens some
    /// whose tablets are not known; those that cannot be read are `unreadable` from then on.
    fn look<'a>(
        &self,
        core: &Core,
        known: &'a [Arc<ChangeFile>],
        unreadable: &mut HashSet<u64>,
        retention: &dyn Fn(Option<u64>) -> u64,
    ) -> Found<'a> {
        let now = core.wall_clock.believed_micros();
        let mut found = Found::default();
        let mut looks = LOOKED_INTO_TOGETHER_MAX;
        for file in known {
            if found.over.len() == GIVEN_UP_TOGETHER_MAX {
                break;
            }
            if file.known_tablets().is_none() && !unreadable.contains(&file.segment) {
                if looks == 0 {
                    found.unknown = true;
                    continue;
                }
                looks -= 1;
                match file.tablets(core.env.files.as_ref(), &self.dir, &self.lists) {
                    Ok(_) => {}
                    // It may be opened in a minute: until then nobody knows whose changes would be lost with it.
                    Err(error) if error.kind() == ErrorKind::Exhausted => {
                        looks = 0;
                        (found.unknown, found.refused) = (true, Some(error));
                        continue;
                    }
                    Err(_) => drop(unreadable.insert(file.segment)),
                }
            }
            let age = now.map_or(0, |now| age_micros(core, file, now));
            let may_read = |of: Option<u64>| {
                let kept = retention(of);
                kept > 0 && age <= kept.saturating_add(GRACE_MICROS)
            };
            let is_needed = match file.known_tablets() {
                Some(tablets) => tablets.iter().any(|of| may_read(Some(*of))),
                // Of one that cannot be read it may be anybody's. Were it to stay for good, so would its bytes.
                None => may_read(None),
            };
            let sorted = if is_needed { &mut found.needed } else { &mut found.over };
            sorted.push(file);
        }
        found
    }
}

/// How old the changes in a file are. Sequences never go back: where the clock was far ahead once, and was set right, what is written since
/// is of that time, and its age counts from when it was seen.
fn age_micros(core: &Core, file: &ChangeFile, now_micros: i64) -> u64 {
    let age = now_micros.saturating_sub(commit_micros(file.last_seq));
    if age.saturating_neg() <= CLOCK_JUMP_MAX_MICROS {
        return u64::try_from(age).unwrap_or(0);
    }
    let monotonic = core.env.clock.monotonic_micros();
    monotonic.saturating_sub(*file.ahead_since_micros.get_or_init(|| monotonic))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use bytes::Bytes;
    use futures::executor::block_on;

    use super::*;
    use crate::cell::{Mutation, RowBatch, RowRange};
    use crate::db::{Engine, EngineOptions};
    use crate::io::{
        Env, Fault, FaultFiles, FaultOp, Files, InlineIo, ManualClock, MemoryFiles, SeededRng,
        ThreadSpawner,
    };

    fn env(files: &MemoryFiles, clock: &ManualClock) -> Env {
        Env {
            files: Arc::new(files.clone()),
            io: Arc::new(InlineIo),
            clock: Arc::new(clock.clone()),
            rng: Arc::new(SeededRng::new(1)),
            spawner: Arc::new(ThreadSpawner),
        }
    }

    fn options() -> EngineOptions {
        EngineOptions { background: false, log_segment_bytes: 500, ..EngineOptions::default() }
    }

    const DAY: Duration = Duration::from_hours(24);

    /// An engine with a tablet that keeps its changes in more files than go together, but less than twice as many.
    fn filled(files: &MemoryFiles, clock: &ManualClock) -> Arc<Engine> {
        let engine = Engine::open(env(files, clock), Path::new("/data"), options()).unwrap();
        let tablet = engine.create_tablet(RowRange::all()).unwrap();
        tablet.set_schema(Arc::default());
        tablet.keep_changes(Some(DAY));
        for _ in 0..400 {
            let row = Bytes::from_static(b"row");
            let write = tablet.apply(RowBatch { row, mutations: vec![Mutation::DeleteRow] });
            block_on(write).unwrap();
        }
        block_on(tablet.flush()).unwrap();
        engine.run_background().unwrap();
        let kept = engine.change_figures().files;
        assert!((33..64).contains(&kept), "{kept}");
        engine
    }

    #[test]
    fn files_are_given_up_some_at_a_time_at_the_pace_of_removals() {
        let clock = ManualClock::new(1_767_225_600_000_000);
        let engine = filled(&MemoryFiles::new(), &clock);
        let figures = || engine.change_figures();
        let (files, bytes) = (figures().files, figures().file_bytes);

        engine.tablets()[0].keep_changes(None);
        clock.advance_micros(EXPIRE_EVERY_MICROS);
        let wait = engine.expire_changes(1_000).unwrap();
        assert_eq!(figures().files, files - 32);
        let given_up = bytes - figures().file_bytes;
        assert_eq!((engine.obsolete_bytes(), wait), (given_up, Duration::from_millis(given_up)));
        assert_eq!(engine.expire_changes(1_000), Some(wait), "not at once");
        assert_eq!(figures().files, files - 32);
        clock.advance_micros(given_up * 1_000);
        assert_eq!(engine.expire_changes(1_000), None);
        assert_eq!(figures().files, 0);
    }

    #[test]
    fn files_that_wait_for_the_pace_of_removals_go_at_once_when_there_is_none_any_more() {
        let clock = ManualClock::new(1_767_225_600_000_000);
        let engine = filled(&MemoryFiles::new(), &clock);
        engine.tablets()[0].keep_changes(None);
        clock.advance_micros(EXPIRE_EVERY_MICROS);
        let wait = engine.expire_changes(1_000).unwrap();
        assert_eq!(engine.expire_changes(1_000), Some(wait));
        // The disk is full by now.
        assert_eq!(engine.expire_changes(0), None);
        assert_eq!(engine.change_figures().files, 0);
    }

    #[test]
    fn changes_of_a_clock_that_was_years_ahead_go_in_their_time_once_it_is_right() {
        const START: i64 = 1_767_225_600_000_000;
        let day = DAY.as_micros() as u64;
        let clock = ManualClock::new(START);
        clock.set_wall_micros(START + 36 * 365 * day as i64);
        let engine = filled(&MemoryFiles::new(), &clock);
        let files = engine.change_figures().files;
        clock.set_wall_micros(START);
        clock.advance_micros(EXPIRE_EVERY_MICROS);
        assert_eq!(engine.expire_changes(0), None);
        clock.advance_micros(day);
        assert_eq!(engine.expire_changes(0), None);
        assert_eq!(engine.change_figures().files, files, "they are a day old");
        clock.advance_micros(GRACE_MICROS + EXPIRE_EVERY_MICROS);
        while engine.expire_changes(0).is_some() {}
        let figures = engine.change_figures();
        assert_eq!((figures.files, figures.dropped_bytes), (0, 0));
    }

    #[test]
    fn files_over_the_limit_of_all_do_not_wait_for_those_before_them_to_go() {
        let (files, clock) = (MemoryFiles::new(), ManualClock::new(1_767_225_600_000_000));
        filled(&files, &clock).close().unwrap();
        let options = EngineOptions { change_log_bytes_max: Some(1), ..options() };
        let engine = Engine::open(env(&files, &clock), Path::new("/data"), options).unwrap();
        engine.tablets()[0].keep_changes(Some(DAY));
        while let Some(wait) = engine.expire_changes(1_000) {
            assert_eq!(wait, Duration::ZERO);
        }
        assert_eq!(engine.change_figures().files, 0);
    }

    #[test]
    fn files_over_the_limit_that_cannot_be_opened_for_now_are_nobodys_loss() {
        let (files, clock) = (MemoryFiles::new(), ManualClock::new(1_767_225_600_000_000));
        filled(&files, &clock).close().unwrap();
        let faults = FaultFiles::new(Arc::new(files.clone()));
        let options = EngineOptions { change_log_bytes_max: Some(1), ..options() };
        let env = Env { files: Arc::new(faults.clone()), ..env(&files, &clock) };
        let engine = Engine::open(env, Path::new("/data"), options).unwrap();
        engine.tablets()[0].keep_changes(Some(DAY));
        let kept = engine.change_figures().files;
        let none_left = Fault::new(FaultOp::Open).on_path(".chg").kind(ErrorKind::Exhausted);
        faults.inject(none_left.sticky());
        assert_eq!(engine.expire_changes(0), None);
        faults.heal();
        assert_eq!(
            (engine.change_figures().files, engine.change_figures().dropped_bytes),
            (kept, 0)
        );
        clock.advance_micros(EXPIRE_EVERY_MICROS);
        while engine.expire_changes(0).is_some() {}
        assert!(engine.change_figures().files < kept);
    }

    #[test]
    fn a_look_opens_few_files_and_comes_to_what_is_behind_many_that_cannot_be_read() {
        let (files, clock) = (MemoryFiles::new(), ManualClock::new(1_767_225_600_000_000));
        filled(&files, &clock).close().unwrap();
        let faults = FaultFiles::new(Arc::new(files.clone()));
        let env = Env { files: Arc::new(faults.clone()), ..env(&files, &clock) };
        let engine = Engine::open(env, Path::new("/data"), options()).unwrap();
        // What cannot be read may be of this one, and the rest is nobody's.
        engine.create_tablet(RowRange::all()).unwrap().keep_changes(Some(DAY));
        let names = || -> Vec<String> {
            let entries = files.list(Path::new("/data/changes")).unwrap().into_iter();
            entries
                .map(|entry| entry.name)
                .filter(|name| name.strip_suffix(".chg").is_some())
                .collect()
        };
        let (last, damaged) =
            names().split_last().map(|(l, rest)| (l.clone(), rest.to_vec())).unwrap();
        assert!(damaged.len() > LOOKED_INTO_TOGETHER_MAX);
        for name in &damaged {
            faults.inject(Fault::new(FaultOp::Open).on_path(name.as_str()).sticky());
        }
        for _ in 0..2 {
            let (mut opened, mut looks) = (faults.count(FaultOp::Open), 0);
            while let Some(wait) = engine.expire_changes(0) {
                looks += 1;
                assert!(wait == Duration::ZERO && looks < 4);
                let before = std::mem::replace(&mut opened, faults.count(FaultOp::Open));
                assert!(opened - before <= LOOKED_INTO_TOGETHER_MAX as u64);
            }
            assert_eq!(engine.change_figures().files, damaged.len() as u64);
            clock.advance_micros(EXPIRE_EVERY_MICROS);
        }
        // One that can be read again is nobody's, either.
        faults.heal();
        while engine.expire_changes(0).is_some() {}
        assert_eq!(engine.change_figures().files, 0);
        engine.run_background().unwrap();
        assert!(!names().contains(&last));
    }
}
