//! Tablets and backups that were given up and could not be removed: nothing names them any more. They are tried again until they are gone, and
//! by the next start: what keeps them is the file system, a right, or a want of open files or memory, none of which is for good.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::backup::BackupId;
use crate::core::Core;
use crate::db::Engine;
use crate::error::{Error, Result};
use crate::io::Files;
use crate::sst::FileId;
use crate::store::{REMOVAL_MICROS, REMOVAL_RETRY_MICROS, SstFile, SstStore};
use crate::tablet::TabletId;

/// What is yet to be removed.
#[derive(Debug, Default)]
pub(crate) struct Leftovers(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    tablets: BTreeMap<TabletId, Named>,
    backups: BTreeSet<BackupId>,
    /// When they are tried again (monotonic micros).
    retry_at_micros: u64,
    /// Those whose time it is, and that were not come to yet.
    due: Due,
}

type Due = (BTreeMap<TabletId, Named>, BTreeSet<BackupId>);

/// The files that a tablet's manifest names, each with its bytes. They are kept for as long as the manifest may be there: a start that finds
/// that one without its SSTs does not know which value files they named.
#[derive(Debug, Default)]
pub(crate) struct Named {
    ssts: BTreeMap<FileId, u64>,
    values: BTreeMap<FileId, u64>,
}

impl Named {
    /// Keeps these SSTs, and the value files that they name.
    pub(crate) fn keep<'a>(store: &SstStore, files: impl Iterator<Item = &'a SstFile>) -> Self {
        let mut named = Self::default();
        for sst in files {
            named.ssts.insert(sst.id(), sst.reader().map_or(0, |reader| reader.bytes()));
            for (file, bytes) in sst.value_files() {
                let of_all = named.values.entry(file.id()).or_default();
                *of_all = of_all.saturating_add(*bytes);
            }
        }
        store.values().keep(named.values.keys().copied());
        store.keep(named.ssts.keys().copied());
        named
    }

    fn release(self, store: &SstStore) {
        store.release(self.ssts);
        store.values().release(self.values);
    }
}

impl Leftovers {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A tablet's directory could not be removed.
    pub(crate) fn add_tablet(&self, core: &Core, id: TabletId, named: Named) {
        let mut state = self.lock();
        state.wait_if_first(core);
        state.tablets.insert(id, named);
    }

    /// A backup's list could not be removed.
    pub(crate) fn add_backup(&self, core: &Core, id: BackupId) {
        let mut state = self.lock();
        state.wait_if_first(core);
        state.backups.insert(id);
    }

    /// Has what was not come to tried next, before those that failed now. Whether there is any.
    fn put_back(&self, due: Due) -> bool {
        let is_any = !due.0.is_empty() || !due.1.is_empty();
        self.lock().due = due;
        is_any
    }

    /// What was not come to the last time, or all of them, if it is time to try again.
    fn take_due(&self, core: &Core) -> Due {
        let mut state = self.lock();
        let left = std::mem::take(&mut state.due);
        if !left.0.is_empty() || !left.1.is_empty() {
            return left;
        }
        if core.env.clock.monotonic_micros() < state.retry_at_micros {
            return Due::default();
        }
        (std::mem::take(&mut state.tablets), std::mem::take(&mut state.backups))
    }
}

impl State {
    /// The first has a while to wait, and the others with it.
    fn wait_if_first(&mut self, core: &Core) {
        if self.tablets.is_empty() && self.backups.is_empty() {
            let now = core.env.clock.monotonic_micros();
            self.retry_at_micros = now.saturating_add(REMOVAL_RETRY_MICROS);
        }
    }
}

/// Removes what there is of a tablet's directory, durably.
pub(crate) fn remove_tablet(core: &Core, id: TabletId) -> Result<()> {
    let (files, dir) = (core.env.files.as_ref(), core.layout.tablet(id));
    if files.exists(&dir)? {
        remove_tablet_dir(files, &dir)?;
    }
    core.sync_dir(&core.layout.tablets())
}

/// Removes a tablet's directory. A crash leaves it with its manifest, without, or not at all. All that can be goes, whatever is with it.
pub(crate) fn remove_tablet_dir(files: &dyn Files, dir: &Path) -> Result<()> {
    let mut removed = Ok(());
    for entry in files.list(dir)? {
        removed = removed.and(files.remove(&dir.join(&entry.name)));
    }
    removed.and_then(|()| files.remove_dir(dir))
}

/// What nothing names could not be removed by a start: no reason to refuse it, unless the engine has failed for that.
pub(crate) fn left_by_start(core: &Core, what: fmt::Arguments<'_>, error: Error) -> Result<()> {
    if core.check_healthy().is_err() {
        return Err(error);
    }
    tracing::warn!(%error, "cannot remove {what}, which nothing names; it is tried again");
    Ok(())
}

impl Engine {
    /// Tries again to remove what could not be, once it is time, for [`REMOVAL_MICROS`] and one at least. Says that it is to be called again, where
    /// it is only the caller's turn to do something else. Blocks.
    pub(crate) fn remove_leftovers(&self) -> Option<Duration> {
        let core = self.core();
        let begun = core.env.clock.monotonic_micros();
        let (mut tablets, mut backups) = self.leftovers().take_due(core);
        let mut is_over = false;
        while !is_over {
            if let Some((id, named)) = tablets.pop_first() {
                self.remove_leftover(id, named);
            } else if let Some(id) = backups.pop_first() {
                // Which notes it again.
                if let Err(error) = self.delete_backup(id) {
                    tracing::warn!(backup = id.0, %error, "cannot remove a backup; it is tried again");
                }
            } else {
                return None;
            }
            let took = core.env.clock.monotonic_micros().saturating_sub(begun);
            // One that is read-only removes nothing.
            is_over = took >= REMOVAL_MICROS || core.stopping() || core.check_healthy().is_err();
        }
        self.leftovers().put_back((tablets, backups)).then_some(Duration::ZERO)
    }

    fn remove_leftover(&self, id: TabletId, named: Named) {
        let core = self.core();
        if self.tablet(id).is_some() {
            // A new one has the number, and the directory.
            named.release(&core.store);
            return;
        }
        match remove_tablet(core, id) {
            Ok(()) => named.release(&core.store),
            Err(error) => {
                tracing::warn!(tablet = id.0, %error, "cannot remove a tablet; it is tried again");
                self.leftovers().add_tablet(core, id, named);
            }
        }
    }
}
