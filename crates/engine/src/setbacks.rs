//! Why flushes and compactions fail, tablet by tablet, for as long as they do: what health tells, and refused writes.

use std::collections::{BTreeMap, BTreeSet};
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

impl Setbacks {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(Work, TabletId), Error>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn failed(&self, work: Work, tablet: TabletId, error: &Error) {
        self.lock().insert((work, tablet), error.clone());
    }

    pub(crate) fn done(&self, work: Work, tablet: TabletId) {
        self.lock().remove(&(work, tablet));
    }

    /// The tablet is no more.
    pub(crate) fn forget(&self, tablet: TabletId) {
        self.lock().retain(|(_, of), _| *of != tablet);
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
