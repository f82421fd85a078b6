//! Syncs of directories: whoever asks while one is under way shares the next with all who ask meanwhile.
//!
//! ```text
//! a new file's name ──► asks ─┬─ none under way ──► syncs ──► done
//!                             └─ waits for the one under way, then one of those who wait syncs for all of them
//! ```
//!
//! After a sync that failed another would succeed and prove nothing: the directory is unsafe from then on.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::error::{Error, ErrorKind, Result};

/// Of all directories of an engine.
#[derive(Debug, Default)]
pub(crate) struct DirSyncs {
    dirs: Mutex<BTreeMap<PathBuf, Dir>>,
    ended: Condvar,
}

#[derive(Debug, Clone, Copy, Default)]
struct Dir {
    /// Syncs that began.
    begun: u64,
    /// The last of them that was done.
    done: u64,
    under_way: bool,
    /// One has failed.
    is_unsafe: bool,
    /// How often somebody has waited for another's.
    #[cfg(test)]
    waits: usize,
}

impl DirSyncs {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Dir>> {
        self.dirs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Trusts no sync of a directory any more.
    pub(crate) fn distrust(&self, dir: &Path) {
        self.lock().entry(dir.to_owned()).or_default().is_unsafe = true;
    }

    /// Returns once a sync that began after the call is done: that of the caller, by `sync`, or of another. The error of a sync that fails goes to
    /// who made it; the others hear `ReadOnly`, or, where `may_pass` says that it proves nothing about the directory, one of them tries again.
    pub(crate) fn sync(
        &self,
        dir: &Path,
        sync: impl FnOnce() -> Result<()>,
        may_pass: impl FnOnce(&Error) -> bool,
    ) -> Result<()> {
        let mut dirs = self.lock();
        let wanted = dirs.entry(dir.to_owned()).or_default().begun + 1;
        let begun = loop {
            let state = dirs.entry(dir.to_owned()).or_default();
            if state.is_unsafe {
                return Err(proves_nothing(dir));
            }
            if state.done >= wanted {
                return Ok(());
            }
            if !state.under_way {
                state.begun += 1;
                state.under_way = true;
                break state.begun;
            }
            #[cfg(test)]
            {
                state.waits += 1;
            }
            dirs = self.ended.wait(dirs).unwrap_or_else(PoisonError::into_inner);
        };
        let mut ending = Ending { syncs: self, dir, begun, is_done: false, is_unsafe: true };
        drop(dirs);
        let synced = sync();
        ending.is_done = synced.is_ok();
        ending.is_unsafe = synced.as_ref().is_err_and(|error| !may_pass(error));
        drop(ending);
        // Somebody may have told of a failure meanwhile that came before it.
        let is_unsafe = self.lock().get(dir).is_some_and(|state| state.is_unsafe);
        if is_unsafe { synced.and_then(|()| Err(proves_nothing(dir))) } else { synced }
    }
}

fn proves_nothing(dir: &Path) -> Error {
    let text = format!("{}: a sync has failed, and another proves nothing", dir.display());
    Error::new(ErrorKind::ReadOnly, text)
}

/// The end of a sync, whatever comes of it: what panicked proves nothing either.
struct Ending<'a> {
    syncs: &'a DirSyncs,
    dir: &'a Path,
    /// Which of the directory's syncs it is.
    begun: u64,
    is_done: bool,
    is_unsafe: bool,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let mut dirs = self.syncs.lock();
        if let Some(state) = dirs.get_mut(self.dir) {
            state.under_way = false;
            state.is_unsafe |= self.is_unsafe;
            if self.is_done {
                state.done = self.begun;
            }
        }
        drop(dirs);
        self.syncs.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc;
    use std::thread;

    use super::*;
    use crate::testing::until;

    const DIR: &str = "/data/sst";

    fn failed(kind: ErrorKind) -> Result<()> {
        Err(Error::new(kind, "failed"))
    }

    /// What `others` hear who ask while a sync is under way that ends so, and how many syncs there were.
    fn asked_meanwhile(first: Result<()>, others: usize) -> (Vec<Option<ErrorKind>>, u64) {
        let (syncs, made) = (DirSyncs::default(), AtomicU64::new(0));
        let dir = Path::new(DIR);
        let may_pass = |error: &Error| error.kind() == ErrorKind::Exhausted;
        let heard = thread::scope(|scope| {
            let (begins, begun) = mpsc::channel();
            let (end, may_end) = mpsc::channel();
            let one = move || {
                begins.send(()).unwrap();
                may_end.recv().unwrap();
                first
            };
            let (syncs, made) = (&syncs, &made);
            let one = scope.spawn(move || syncs.sync(dir, one, may_pass));
            begun.recv().unwrap();
            let ask = || {
                let sync = || {
                    made.fetch_add(1, Ordering::SeqCst);
                    Ok(())
                };
                syncs.sync(dir, sync, may_pass)
            };
            let asking: Vec<_> = (0..others).map(|_| scope.spawn(ask)).collect();
            let waits = || syncs.lock().get(dir).map_or(0, |state| state.waits);
            until("they wait", || waits() == others);
            assert_eq!(made.load(Ordering::SeqCst), 0, "one at a time");
            end.send(()).unwrap();
            drop(one.join().unwrap());
            let heard = asking.into_iter().map(|it| it.join().unwrap().err().map(|e| e.kind()));
            heard.collect()
        });
        (heard, made.into_inner())
    }

    #[test]
    fn who_asks_during_a_sync_waits_for_one_that_begins_after_it() {
        let (heard, made) = asked_meanwhile(Ok(()), 8);
        assert_eq!((heard, made), (vec![None; 8], 1), "the one that was under way is not theirs");
    }

    #[test]
    fn after_a_failed_sync_nobody_is_told_that_another_has_succeeded() {
        let (heard, made) = asked_meanwhile(failed(ErrorKind::Io), 8);
        assert_eq!((heard, made), (vec![Some(ErrorKind::ReadOnly); 8], 0));
    }

    #[test]
    fn a_sync_that_could_not_be_tried_is_tried_by_the_next() {
        let (heard, made) = asked_meanwhile(failed(ErrorKind::Exhausted), 8);
        assert_eq!((heard, made), (vec![None; 8], 1));
    }
}
