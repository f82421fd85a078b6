//! Why flushes and compactions fail, tablet by tablet, for as long as they do: what health tells, and refused writes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{Error, ErrorKind};
use crate::pressure::Behind;
use crate::tablet::TabletId;

/// What makes room for writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Work {
    Flush,
    /// A compaction of level 0.
    LevelZero,
    /// One of what is below, whose files keep level 0 from going there for as long as it is not tried again.
    Below,
}

/// The last failure of each, until one is done.
#[derive(Debug, Default)]
pub(crate) struct Setbacks(Mutex<BTreeMap<(Work, TabletId), Error>>);

/// How long nothing more is said of what lacks room, open files or memory, in microseconds: there may be ten thousand tablets that meet
/// that, each of which tries again twice a minute, and the log may be on the same disk.
const SAID_EVERY_MICROS: u64 = 60 * 1_000_000;

/// What many tablets have to say at once.
#[derive(Debug, Default)]
pub(crate) struct Said {
    /// When the next may say it (monotonic micros).
    next_micros: AtomicU64,
    left_out: AtomicU64,
}

impl Said {
    /// Whether this failure is to be said, and how many were not since the last that was; of a shortage one a minute is.
    pub(crate) fn of(&self, error: &Error, now: u64) -> Option<u64> {
        if error.is_shortage() { self.of_many(now) } else { Some(self.left_out.swap(0, Relaxed)) }
    }

    /// The same of what there may be thousands of, whatever it is: one a minute is said.
    pub(crate) fn of_many(&self, now: u64) -> Option<u64> {
        let next = self.next_micros.load(Relaxed);
        let mine = now.saturating_add(SAID_EVERY_MICROS);
        let is_due =
            now >= next && self.next_micros.compare_exchange(next, mine, Relaxed, Relaxed).is_ok();
        if !is_due {
            self.left_out.fetch_add(1, Relaxed);
            return None;
        }
        Some(self.left_out.swap(0, Relaxed))
    }
}

impl Setbacks {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(Work, TabletId), Error>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn failed(&self, work: Work, tablet: TabletId, error: &Error) {
        self.lock().insert((work, tablet), error.clone());
    }

    pub(crate) fn done(&self, work: Work, tablet: TabletId) {
        if self.ends_shortage(work, tablet) {
            tracing::info!("flushes and compactions lack no room, open files or memory any more");
        }
    }

    /// Takes work for done; whether it was the last that lacked something. A damaged file goes on failing, and is no reason to
    /// keep the end of a shortage back.
    fn ends_shortage(&self, work: Work, tablet: TabletId) -> bool {
        let mut setbacks = self.lock();
        let ended = setbacks.remove(&(work, tablet));
        ended.is_some_and(|error| error.is_shortage()) && !setbacks.values().any(Error::is_shortage)
    }

    /// The tablet is no more.
    pub(crate) fn forget(&self, tablet: TabletId) {
        for work in [Work::Flush, Work::LevelZero, Work::Below] {
            self.done(work, tablet);
        }
    }

    /// The tablets that have one.
    pub(crate) fn tablets(&self) -> BTreeSet<TabletId> {
        self.lock().keys().map(|(_, tablet)| *tablet).collect()
    }

    /// Why the work fails that is to relieve a tablet of what is behind. Of the memory that all share, any tablet's flush is.
    pub(crate) fn of(&self, tablet: TabletId, behind: Behind) -> Option<Error> {
        match behind {
            Behind::Memory => {
                let setbacks = self.lock();
                let mut flushes = setbacks.iter().filter(|((work, _), _)| *work == Work::Flush);
                flushes.next().map(|(_, error)| error.clone())
            }
            Behind::Memtables => self.last(Work::Flush, tablet),
            Behind::LevelZero | Behind::Failing => self.last(Work::LevelZero, tablet),
            Behind::Log | Behind::Room => None,
        }
    }

    /// The last failure of a tablet's work, if none was done since.
    pub(crate) fn last(&self, work: Work, tablet: TabletId) -> Option<Error> {
        self.lock().get(&(work, tablet)).cloned()
    }

    /// Whether it is the machine that fails, or lacks something, and no file of one table: a file that cannot be read may lie on
    /// a bad sector, or be another user's, unless other tablets meet the like.
    pub(crate) fn is_of_machine(&self, error: &Error) -> bool {
        if error.kind() != ErrorKind::Io {
            return error.is_shortage();
        }
        let setbacks = self.lock();
        let failing = setbacks.iter().filter(|(_, error)| error.kind() == ErrorKind::Io);
        failing.map(|((_, tablet), _)| tablet).collect::<BTreeSet<_>>().len() > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_shortage_is_said_once_and_beside_damage() {
        let (setbacks, [one, other]) = (Setbacks::default(), [TabletId(1), TabletId(2)]);
        let full = Error::new(ErrorKind::NoSpace, "the disk is full");
        let damaged = Error::new(ErrorKind::Corruption, "damaged");
        let ends = |work, tablet| setbacks.ends_shortage(work, tablet);
        assert!(!ends(Work::Flush, one), "nothing was lacking");
        setbacks.failed(Work::Below, one, &damaged);
        setbacks.failed(Work::Flush, one, &full);
        setbacks.failed(Work::LevelZero, other, &full);
        assert!(!ends(Work::Flush, one), "another tablet's compaction lacks room still");
        assert!(ends(Work::LevelZero, other));
        assert!(!ends(Work::LevelZero, other), "it was said");
        assert!(!ends(Work::Below, one), "damage is no shortage");
    }

    #[test]
    fn of_many_failures_for_want_of_room_one_a_minute_is_said_and_all_others_are() {
        let said = Said::default();
        let full = Error::new(ErrorKind::NoSpace, "the disk is full");
        let damaged = Error::new(ErrorKind::Corruption, "damaged");
        assert_eq!(said.of(&full, 5), Some(0));
        assert_eq!((said.of(&full, 5), said.of(&full, SAID_EVERY_MICROS)), (None, None));
        assert_eq!(said.of(&full, SAID_EVERY_MICROS + 5), Some(2));
        assert_eq!((said.of(&damaged, 0), said.of(&damaged, 0)), (Some(0), Some(0)));
    }
}
