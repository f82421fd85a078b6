//! What an engine does with backups: making, copying, restoring, deleting.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Backup, BackupId, BackupList, read, write};
use crate::db::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::figures::Shown;
use crate::io::Files;
use crate::layout::{BACKUP_PREFIX, Layout, parse_number};
use crate::leftovers::left_by_start;
use crate::manifest::journal::DRAFT_SUFFIX;
use crate::manifest::{Version, VersionEdit};
use crate::sst::FileId;
use crate::store::{SstFile, SstStore};
use crate::tablet::memory::TabletShare;
use crate::tablet::moments::{Held, Moment};
use crate::tablet::{Tablet, TabletId};

/// The backups of an engine.
#[derive(Debug, Default)]
pub(crate) struct Backups {
    by_id: Mutex<BTreeMap<BackupId, Arc<Backup>>>,
    /// Those whose lists were damaged at the start, or could not be read.
    damaged: Vec<BackupId>,
}

/// The lists of the backups on disk.
#[derive(Debug, Default)]
pub(crate) struct Lists {
    pub(crate) whole: BTreeMap<BackupId, BackupList>,
    /// Backups whose lists are damaged or cannot be read: nobody knows what only they keep.
    pub(crate) damaged: Vec<BackupId>,
    /// One of these could not be read: it may be whole.
    pub(crate) unread: bool,
    /// What a crash left of backups that were being written.
    pub(crate) drafts: Vec<PathBuf>,
}

impl Backups {
    /// All backups on disk, as lists: their files are not kept yet.
    pub(crate) fn read(files: &dyn Files, layout: &Layout) -> Result<Lists> {
        let mut lists = Lists::default();
        for entry in files.list(&layout.backups())? {
            if is_draft(&entry.name) {
                lists.drafts.push(layout.backups().join(&entry.name));
            } else if let Some(number) = parse_number(&entry.name, BACKUP_PREFIX, "") {
                let id = BackupId(number);
                match read(files, layout, id) {
                    Ok(list) => {
                        lists.whole.insert(id, list);
                    }
                    // No table needs it, so neither damage nor a bad sector keeps them from opening.
                    Err(error) if matches!(error.kind(), ErrorKind::Corruption | ErrorKind::Io) => {
                        tracing::error!(
                            %error,
                            "the list of a backup is damaged or cannot be read: files that nothing names are kept, until a start reads it or the backup is deleted"
                        );
                        lists.damaged.push(id);
                        lists.unread |= error.kind() == ErrorKind::Io;
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(lists)
    }

    /// Keeps the files of what was read; all, where a list could not be. An error where these cannot be listed.
    pub(crate) fn open(lists: Lists, store: &Arc<SstStore>) -> Result<Self> {
        if lists.unread {
            store.keep_all()?;
        }
        let keep = |(id, list)| (id, Backup::keep(id, list, Arc::clone(store)));
        let by_id = Mutex::new(lists.whole.into_iter().map(keep).collect());
        Ok(Self { by_id, damaged: lists.damaged })
    }

    /// `InvalidArgument` where a newer version wrote one of the newest files that they keep. Blocks.
    pub(crate) fn check_versions(&self, store: &SstStore) -> Result<()> {
        let (mut ssts, mut values) = (BTreeSet::new(), BTreeSet::new());
        for backup in self.lock().values() {
            let list = backup.list();
            ssts.extend(list.tablets.iter().flat_map(Version::ssts).map(|sst| sst.id));
            values.extend(list.values.keys().copied());
        }
        let newer = store.newer_version(&ssts).or_else(|| store.values().newer_version(&values));
        newer.map_or(Ok(()), Err)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<BackupId, Arc<Backup>>> {
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a name in the directory of backups is that of one that was being written.
pub(crate) fn is_draft(name: &str) -> bool {
    parse_number(name, BACKUP_PREFIX, DRAFT_SUFFIX).is_some()
}

/// Why no backup is made: a file cannot be opened.
fn not_made(error: &Error, what: &str, id: FileId) -> Error {
    let (kind, advice) = match error.kind() {
        ErrorKind::Corruption | ErrorKind::NotFound => {
            (ErrorKind::Corruption, "run `tepui repair` on the data directory")
        }
        // Not the kind of what passes by itself, such as too many open files: an SST is opened at a start and not again.
        _ => (ErrorKind::Io, "a restart of the server opens it again"),
    };
    let reason = error.message();
    let text = format!("no backup is made: {what} {id:016x} cannot be opened; {advice}: {reason}");
    Error::new(kind, text)
}

/// Checks that these files and the value files that they name are open.
fn check_open<'a>(files: impl Iterator<Item = &'a Arc<SstFile>>) -> Result<()> {
    for file in files {
        file.reader().map_err(|error| not_made(&error, "SST", file.id()))?;
        for (values, _) in file.value_files() {
            values.reader().map_err(|error| not_made(&error, "value file", values.id()))?;
        }
    }
    Ok(())
}

impl Engine {
    /// Makes a backup of these tablets, durably, as they are at one moment during the call: it holds every write to them that was acknowledged
    /// before the call, and of those that come later none without what was acknowledged before it began. Waits for one flush of each.
    /// Rows that are dropped meanwhile may be gone from it. `Corruption` where a file of theirs is damaged or missing, and `Io` where one cannot be opened for another
    /// reason: a backup of it would not be one. A backup that the catalog does not name is removed by [`Engine::retain_backups`] at the next start.
    pub async fn create_backup(&self, tablets: &[TabletId]) -> Result<Arc<Backup>> {
        self.core().check_writable()?;
        let missing =
            |id: TabletId| Error::new(ErrorKind::NotFound, format!("tablet {:016x} is gone", id.0));
        let mut found = Vec::with_capacity(tablets.len());
        for id in tablets {
            found.push(self.tablet(*id).ok_or_else(|| missing(*id))?);
        }
        // What would be in vain is not flushed for.
        for tablet in &found {
            check_open(tablet.hold().files.values())?;
        }
        let moments = Moment::in_files(&found).await?;
        let mut list = BackupList::default();
        for (id, moment) in tablets.iter().zip(&moments) {
            let Held { version, files } = moment.held().ok_or_else(|| missing(*id))?;
            check_open(files.values())?;
            for (values, bytes) in files.values().flat_map(|file| file.value_files()) {
                let named = list.values.entry(values.id()).or_default();
                *named = named.saturating_add(*bytes).min(values.frame_bytes());
            }
            // What is dropped is cut out of the SSTs; dropped ranges are for what is in memory.
            let edit =
                VersionEdit { add_excised: Vec::new(), flushed_seq: None, ..version.snapshot() };
            list.tablets.push(Version::empty(version.range().clone()).apply(&edit)?);
        }
        if let Some(at) = found.iter().position(|tablet| tablet.is_dropped()) {
            return Err(missing(tablets.get(at).copied().unwrap_or(TabletId(0))));
        }
        // Only now may the moments go: what they hold is kept.
        let kept = self.add_backup(list);
        drop(moments);
        kept
    }

    /// Makes another backup that names the same files, durably.
    pub fn copy_backup(&self, id: BackupId) -> Result<Arc<Backup>> {
        self.copy_from(self.require_backup(id)?.as_ref())
    }

    /// The same of a backup that is held, and may be deleted meanwhile.
    pub fn copy_from(&self, backup: &Backup) -> Result<Arc<Backup>> {
        self.core().check_writable()?;
        self.add_backup(backup.list().clone())
    }

    /// Keeps the files of a list, which are there, and writes it.
    fn add_backup(&self, list: BackupList) -> Result<Arc<Backup>> {
        let core = self.core();
        let _in_dir = core.in_dir()?;
        let id = BackupId(core.pipeline.hlc().reserve(1));
        let backup = Backup::keep(id, list, Arc::clone(&core.store));
        let written = write(core.env.files.as_ref(), &core.layout, id, backup.list());
        if let Err(error) = written {
            if error.kind() == ErrorKind::Io {
                // No sync proves any more that its list is not on disk: the files that it names stay until the next start.
                core.distrust(&core.layout.backups());
                core.fail(&error);
                return Err(core.failed().unwrap_or(error));
            }
            match self.remove_list_if_there(id) {
                Ok(()) => backup.delete(),
                Err(error) => tracing::warn!(
                    %error,
                    "cannot remove the list of a backup that failed: the files that it names stay until the next start"
                ),
            }
            return Err(error);
        }
        self.backups_map().lock().insert(id, Arc::clone(&backup));
        Ok(backup)
    }

    /// The backup, if there is one.
    pub fn backup(&self, id: BackupId) -> Option<Arc<Backup>> {
        self.backups_map().lock().get(&id).cloned()
    }

    /// All backups, by number.
    pub fn backups(&self) -> Vec<Arc<Backup>> {
        self.backups_map().lock().values().cloned().collect()
    }

    /// Bytes that backups alone keep, roughly: what would be free without them, once compactions are done with files that
    /// tables have, too. Of such an SST that is what no table shows, and of such a value file, which is not emptied of its
    /// garbage while a backup keeps it, the garbage, as far as the backup may name it. Looks at every list and every tablet.
    pub fn backup_held_bytes(&self) -> u64 {
        let (mut ssts, mut values) = (Shown::new(), Shown::new());
        for (holder, backup) in self.backups().iter().enumerate() {
            for sst in backup.list().tablets.iter().flat_map(Version::ssts) {
                ssts.note(holder, sst.id, sst.bytes);
            }
            for (id, bytes) in &backup.list().values {
                values.note(holder, *id, *bytes);
            }
        }
        let (mut live, mut garbage) = (Shown::new(), HashMap::new());
        for (holder, tablet) in self.tablets().iter().enumerate() {
            let view = tablet.hold();
            for sst in view.version.ssts() {
                live.note(holder, sst.id, sst.bytes);
            }
            garbage.extend(view.values.files.iter().map(|(id, file)| (*id, file.garbage_bytes())));
        }
        let ssts = ssts.iter().map(|(id, bytes)| bytes.saturating_sub(live.bytes(id)));
        let values =
            values.iter().map(|(id, bytes)| garbage.get(id).map_or(bytes, |it| bytes.min(*it)));
        ssts.chain(values).fold(0, u64::saturating_add)
    }

    fn require_backup(&self, id: BackupId) -> Result<Arc<Backup>> {
        self.backup(id)
            .ok_or_else(|| Error::new(ErrorKind::NotFound, format!("backup {:016x} is gone", id.0)))
    }

    /// Creates tablets that hold what a backup does, durably, in the order of their rows. They share its files, and those of
    /// whoever else names them, until a compaction rewrites them. Blocks. Tablets that the catalog does not name are
    /// removed by [`Engine::retain_tablets`] at the next start.
    pub fn restore_backup(&self, id: BackupId) -> Result<Vec<Arc<Tablet>>> {
        self.restore_from(self.require_backup(id)?.as_ref())
    }

    /// The same for a backup that is held, and may be deleted meanwhile. `Overloaded` as for [`Engine::create_tablets`].
    pub fn restore_from(&self, backup: &Backup) -> Result<Vec<Arc<Tablet>>> {
        let room = self.room_to_restore(backup)?;
        let versions = backup.list().tablets.iter();
        let beginning = |version: &Version| {
            (version.range().clone(), VersionEdit { range: None, ..version.snapshot() })
        };
        self.create_tablets_in(room, versions.map(beginning))
    }

    /// `Overloaded` where there is no room for the tablets of a backup now.
    pub fn check_room_to_restore(&self, backup: &Backup) -> Result<()> {
        self.room_to_restore(backup).map(drop)
    }

    fn room_to_restore(&self, backup: &Backup) -> Result<TabletShare> {
        self.room_for_tablets(backup.list().tablets.iter().map(Version::range))
    }

    /// Removes a backup, and the files that only it kept; where its list could not be read, the next start removes those. A restore from it
    /// under way goes on to its end. After an error it is there until it can be removed, which is tried again.
    pub fn delete_backup(&self, id: BackupId) -> Result<()> {
        let core = self.core();
        let backup = self.backup(id);
        if backup.is_none() && !self.backups_map().damaged.contains(&id) {
            return Ok(());
        }
        let removed = core.in_dir().and_then(|_in_dir| self.remove_list(id));
        removed.inspect_err(|_| self.leftovers().add_backup(core, id))?;
        let Some(backup) = backup else { return Ok(()) };
        backup.delete();
        self.backups_map().lock().remove(&id);
        drop(backup);
        core.bell.ring();
        Ok(())
    }

    /// Removes what there may be of the list of a backup that failed, durably.
    fn remove_list_if_there(&self, id: BackupId) -> Result<()> {
        let core = self.core();
        if core.env.files.exists(&core.layout.backup(id))? { self.remove_list(id) } else { Ok(()) }
    }

    /// Removes the list of a backup, if it is there; durably before any file goes: else the next start would find a list of files
    /// that are not there.
    fn remove_list(&self, id: BackupId) -> Result<()> {
        let core = self.core();
        let files = core.env.files.as_ref();
        let path = core.layout.backup(id);
        if files.exists(&path)? {
            files.remove(&path)?;
        }
        core.sync_dir(&core.layout.backups())
    }

    /// Removes every backup that is not listed. One that cannot be removed now is tried again; an error where the engine has failed for it.
    pub fn retain_backups(&self, keep: &[BackupId]) -> Result<()> {
        let keep: HashSet<BackupId> = keep.iter().copied().collect();
        let mut unnamed = self.backups();
        unnamed.retain(|backup| !keep.contains(&backup.id()));
        if !unnamed.is_empty() {
            tracing::warn!(
                backups = unnamed.len(),
                bytes = unnamed.iter().map(|backup| backup.list().bytes()).sum::<u64>(),
                "removing backups that the catalog does not have: a crash left them, or it forgot them"
            );
        }
        let damaged = self.backups_map().damaged.iter().copied().filter(|id| !keep.contains(id));
        for id in unnamed.into_iter().map(|backup| backup.id()).chain(damaged) {
            if let Err(error) = self.delete_backup(id) {
                left_by_start(self.core(), format_args!("backup {:016x}", id.0), error)?;
            }
        }
        Ok(())
    }
}
