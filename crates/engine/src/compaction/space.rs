//! Space for compactions: what one may write while the disk has to take the log as well.
//!
//! ```text
//! free on the disk   [ reserve: the log, flushes ][ promised to those that run ][ for one more ]
//! ```
//!
//! A compaction needs the space of its outputs before that of its inputs comes back. One that does not fit is put off: it would
//! fill the disk, the log would meet that, and the server would be read-only, after a restart once more.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};
use crate::io::{Clock, Env, Files};
use crate::options::EngineOptions;

/// Segments of the log that are kept free: the open one, the next, and as many while flushes give the oldest back.
const RESERVED_SEGMENTS: u64 = 4;

/// Bytes that are kept free for what flushes write, at most: 1 GiB, also where memory for more memtables is given. Flushes give
/// segments of the log back as they go, and on a small disk more would keep compactions from what they could do.
const RESERVED_MEMTABLES_BYTES_MAX: u64 = 1 << 30;

/// The part of the disk that is kept free, at most: a small one would be all reserve.
const RESERVED_PART: u64 = 8;

/// What is free where space is tight, as a multiple of what is kept: with as much again for outputs and for flushes while garbage is
/// collected.
const TIGHT_RESERVES: u64 = 4;

/// Bytes after which a job that runs looks again: others fill the disk too, and asking costs a system call.
pub(crate) const LOOK_EVERY_BYTES: u64 = 64 << 20;

/// How long after the last job that lacked room it is forgotten, in microseconds: twice as long as one is left alone that was put off. It may
/// not come again, since its files went another way or its table was dropped.
const LACKING_MICROS: u64 = 60 * 1_000_000;

/// The space of one data directory.
#[derive(Debug)]
pub(crate) struct Space {
    files: Arc<dyn Files>,
    clock: Arc<dyn Clock>,
    dir: PathBuf,
    reserve_bytes: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// To jobs that run, not yet written.
    promised_bytes: u64,
    /// What a job that was put off needs free, and when the last was (monotonic micros); others are put off without a word until there is
    /// as much, or none was for [`LACKING_MICROS`].
    lacking: Option<(u64, u64)>,
}

impl State {
    /// What a job needs free that was put off, if one was of late.
    fn lacking_bytes(&self, now: u64) -> Option<u64> {
        let (bytes, at) = self.lacking?;
        (now.saturating_sub(at) < LACKING_MICROS).then_some(bytes)
    }

    /// What has to be free for a job that may write so many bytes.
    fn needed(&self, bytes: u64, is_level_zero: bool, reserve: u64) -> u64 {
        let promised = if is_level_zero { 0 } else { self.promised_bytes };
        bytes.saturating_add(promised).saturating_add(reserve)
    }
}

impl Space {
    pub(crate) fn new(env: &Env, dir: PathBuf, options: &EngineOptions) -> Arc<Self> {
        let log = options.log_segment_bytes.saturating_mul(RESERVED_SEGMENTS);
        let memtables = options.memtables_total_bytes.min(RESERVED_MEMTABLES_BYTES_MAX);
        let reserve_bytes = memtables.saturating_add(log);
        let (files, clock) = (Arc::clone(&env.files), Arc::clone(&env.clock));
        Arc::new(Self { files, clock, dir, reserve_bytes, state: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Free bytes, and how many of them are kept; `None` where nobody knows.
    fn free_and_reserve(&self) -> Option<(u64, u64)> {
        let space = self.files.disk_space(&self.dir).unwrap_or_else(|error| {
            tracing::debug!(%error, "cannot ask for the free space");
            None
        })?;
        Some((space.free, self.reserve_bytes.min(space.total / RESERVED_PART)))
    }

    /// Room for a job that may write so many bytes; `NoSpace`, [put off](Error::is_put_off), where it must wait. Jobs of level 0, for which writers wait, do not
    /// heed what is promised to others: those look again as they go on.
    pub(crate) fn promise(self: &Arc<Self>, bytes: u64, is_level_zero: bool) -> Result<Promise> {
        let known = self.free_and_reserve();
        let free = known.map(|(free, _)| free);
        let mut state = self.lock();
        let needed = |reserve| state.needed(bytes, is_level_zero, reserve);
        if let Some((free, reserve)) = known
            && free < needed(reserve)
        {
            let needed = needed(reserve);
            return Err(self.lacking(&mut state, (free, reserve), needed));
        }
        let lacking = state.lacking_bytes(self.clock.monotonic_micros());
        if lacking.is_some_and(|lacking| free.is_none_or(|free| free >= lacking)) {
            state.lacking = None;
            tracing::info!("there is room for compactions again");
        }
        state.promised_bytes = state.promised_bytes.saturating_add(bytes);
        Ok(Promise { space: Arc::clone(self), left: AtomicU64::new(bytes) })
    }

    /// Bytes that a job with so many would have room for beside them; without end where nobody knows.
    pub(crate) fn left_beside(&self, bytes: u64, is_level_zero: bool) -> u64 {
        let Some((free, reserve)) = self.free_and_reserve() else { return u64::MAX };
        free.saturating_sub(self.lock().needed(bytes, is_level_zero, reserve))
    }

    /// Whether garbage is better collected at once, as the disk fills.
    pub(crate) fn is_tight(&self) -> bool {
        let known = self.free_and_reserve();
        known.is_some_and(|(free, reserve)| free < reserve.saturating_mul(TIGHT_RESERVES))
    }

    /// `NoSpace`, [put off](Error::is_put_off), where a job that runs must stop, since what is kept for the log is all that is left.
    pub(crate) fn check(&self) -> Result<()> {
        match self.free_and_reserve() {
            Some((free, reserve)) if free < reserve => {
                Err(self.lacking(&mut self.lock(), (free, reserve), reserve))
            }
            _ => Ok(()),
        }
    }

    fn lacking(&self, state: &mut State, (free, reserve): (u64, u64), needed: u64) -> Error {
        let now = self.clock.monotonic_micros();
        let before = state.lacking_bytes(now);
        if before.is_none() {
            tracing::error!(
                free_bytes = free,
                needed_bytes = needed,
                reserve_bytes = reserve,
                "the disk has no room for a compaction; it is put off, and tried again every half a minute"
            );
        }
        state.lacking = Some((before.unwrap_or(needed).min(needed), now));
        let text = format!(
            "a compaction needs {needed} free bytes, {reserve} of them for the log and memtables, and {free} are free"
        );
        Error::put_off(text)
    }
}

/// Room that a job has; what it has not written is given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Promise {
    space: Arc<Space>,
    left: AtomicU64,
}

impl Promise {
    /// So many bytes were written: the file system counts them now.
    pub(crate) fn spend(&self, bytes: u64) {
        let before = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            Some(left.saturating_sub(bytes))
        });
        self.give_back(bytes.min(before.unwrap_or(0)));
    }

    fn give_back(&self, bytes: u64) {
        let mut state = self.space.lock();
        state.promised_bytes = state.promised_bytes.saturating_sub(bytes);
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.give_back(self.left.load(Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::io::{FaultFiles, InlineIo, ManualClock, MemoryFiles, SeededRng, ThreadSpawner};

    /// The space of a disk of which 100 bytes are kept.
    fn space() -> (Arc<Space>, FaultFiles, ManualClock) {
        let files = FaultFiles::new(Arc::new(MemoryFiles::new()));
        let clock = ManualClock::new(1);
        let env = Env {
            files: Arc::new(files.clone()),
            io: Arc::new(InlineIo),
            clock: Arc::new(clock.clone()),
            rng: Arc::new(SeededRng::new(1)),
            spawner: Arc::new(ThreadSpawner),
        };
        let options = EngineOptions {
            memtables_total_bytes: 60,
            log_segment_bytes: 10,
            ..EngineOptions::default()
        };
        (Space::new(&env, PathBuf::from("/"), &options), files, clock)
    }

    #[test]
    fn what_lacked_room_is_forgotten_when_it_does_not_come_again() {
        let (space, files, clock) = space();
        let lacking = || space.lock().lacking_bytes(clock.monotonic_micros());
        files.set_free_bytes(Some(300));
        assert!(space.promise(300, false).unwrap_err().is_put_off());
        clock.advance_micros(LACKING_MICROS - 1);
        assert_eq!(lacking(), Some(400));
        // Another is put off, which needs less.
        assert!(space.promise(250, false).unwrap_err().is_put_off());
        clock.advance_micros(LACKING_MICROS - 1);
        assert_eq!(lacking(), Some(350));
        clock.advance_micros(1);
        assert_eq!(lacking(), None);
        // The next one that lacks room is told of again, with what it needs.
        files.set_free_bytes(Some(99));
        assert!(space.check().unwrap_err().is_put_off());
        assert_eq!(lacking(), Some(100));
        files.set_free_bytes(Some(300));
        drop(space.promise(1, false).unwrap());
        assert_eq!(lacking(), None);
    }

    #[test]
    fn jobs_share_what_is_free_above_the_reserve() {
        let (space, files, _) = space();
        let refused = |bytes| space.promise(bytes, false).unwrap_err().kind() == ErrorKind::NoSpace;
        let unknown = space.promise(u64::MAX / 4, false).unwrap();
        drop(unknown);
        files.set_free_bytes(Some(300));
        let one = space.promise(150, false).unwrap();
        assert!(refused(51));
        drop(space.promise(150, true).unwrap());
        // It writes, and the file system has less.
        one.spend(100);
        files.set_free_bytes(Some(200));
        assert!(refused(51));
        let two = space.promise(50, false).unwrap();
        drop((one, two));
        assert!(refused(101));
        space.promise(100, false).unwrap();
        space.check().unwrap();
        files.set_free_bytes(Some(99));
        assert_eq!(space.check().unwrap_err().kind(), ErrorKind::NoSpace);
    }
}
