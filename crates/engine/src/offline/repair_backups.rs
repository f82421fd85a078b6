//! Repairing backups: their lists, and SSTs that they name.
//!
//! A list that cannot be read is set aside, and an empty one stands in its place: the catalog names the backup, and nobody
//! else knows which files it had. Files that nothing else names are set aside as those of a lost manifest are.

use std::collections::BTreeMap;

use super::repair::{Repair, is_damage};
use super::repair_ssts::Fates;
use super::{CACHE_BYTES, TableBackup, list_backups};
use crate::backup::{self, BackupId, BackupList};
use crate::cache::{BlockCache, QuickBlockCache};
use crate::error::Result;
use crate::manifest::{Version, VersionEdit};
use crate::sst::{FileId, SstReader};

/// The lists of backups.
pub(super) type Backups = BTreeMap<BackupId, BackupList>;

impl Repair<'_> {
    /// Reads every list; those that are damaged, or named by the catalog and not there, are empty from now on.
    pub(super) fn backups(&mut self, named: Option<&[TableBackup]>) -> Result<Backups> {
        let files = self.files();
        let mut lists = Backups::new();
        for id in list_backups(files.as_ref(), self.layout)? {
            match backup::read(files.as_ref(), self.layout, id) {
                Ok(list) => {
                    lists.insert(id, list);
                }
                Err(error) if !is_damage(&error) => return Err(error),
                Err(_) => {
                    self.copy_aside(&self.layout.backup(id))?;
                    self.empty(id, &mut lists)?;
                }
            }
        }
        for TableBackup { id, .. } in named.unwrap_or_default() {
            if !lists.contains_key(id) {
                self.empty(*id, &mut lists)?;
            }
        }
        Ok(lists)
    }

    /// Backups that the catalog does not name are set aside before a start removes them.
    pub(super) fn unnamed_backups(&mut self, named: Option<&[TableBackup]>) -> Result<()> {
        let Some(named) = named else { return Ok(()) };
        for id in list_backups(self.env.files.as_ref(), self.layout)? {
            if !named.iter().any(|backup| backup.id == id) {
                self.move_aside(&self.layout.backup(id))?;
                self.set_unnamed_aside(format_args!(
                    "backup {:016x}: the catalog has no such backup; its list, and what only it keeps, are in lost/",
                    id.0
                ));
            }
        }
        Ok(())
    }

    fn empty(&mut self, id: BackupId, lists: &mut Backups) -> Result<()> {
        // First: after a failure the list may be there all the same, and the next run finds nothing to tell.
        self.report.lost.push(format!(
            "backup {:016x}: its list of files; it cannot be restored any more: delete it",
            id.0
        ));
        self.touch();
        backup::write(self.files().as_ref(), self.layout, id, &BackupList::default())?;
        lists.insert(id, BackupList::default());
        self.forgot = true;
        let path = self.layout.backup(id);
        self.did(format_args!("{}: replaced by an empty list", path.display()));
        Ok(())
    }

    /// Puts what came of the SSTs of backups into their lists.
    pub(super) fn ssts_of_backups(&mut self, lists: &Backups, fates: &mut Fates) -> Result<()> {
        for (id, list) in lists {
            let mut changed = false;
            let mut tablets = Vec::with_capacity(list.tablets.len());
            for version in &list.tablets {
                let edit = self.edit_of(version, fates)?;
                changed |= edit != VersionEdit::default();
                tablets.push(version.apply(&edit)?);
            }
            if changed {
                let values = self.values_of(&tablets)?;
                let path = self.layout.backup(*id);
                self.copy_aside(&path)?;
                let repaired = BackupList { tablets, values };
                let written = backup::write(self.files().as_ref(), self.layout, *id, &repaired);
                // After a failure the new list may be there all the same.
                let on_disk = backup::read(self.files().as_ref(), self.layout, *id);
                if !on_disk.is_ok_and(|on_disk| on_disk == *list) {
                    self.name(repaired.ssts().into_keys());
                }
                written?;
                self.did(format_args!("{}: names the SSTs that were kept", path.display()));
            }
        }
        Ok(())
    }

    /// The value files that the SSTs of versions name.
    fn values_of(&self, tablets: &[Version]) -> Result<BTreeMap<FileId, u64>> {
        let mut values: BTreeMap<FileId, u64> = BTreeMap::new();
        let list = BackupList { tablets: tablets.to_vec(), values: BTreeMap::new() };
        for id in list.ssts().into_keys() {
            let cache: std::sync::Arc<dyn BlockCache> =
                std::sync::Arc::new(QuickBlockCache::new(CACHE_BYTES));
            let path = self.layout.sst(id);
            let reader = SstReader::open(self.env.files.as_ref(), &path, id, cache)?;
            for (file, bytes) in &reader.properties().value_files {
                let named = values.entry(*file).or_default();
                *named = named.saturating_add(*bytes);
            }
        }
        Ok(values)
    }

    /// The SSTs that backups name, as they are on disk now.
    pub(super) fn ssts_in_backups(&self) -> Result<Vec<FileId>> {
        let files = self.env.files.as_ref();
        let mut ssts = Vec::new();
        for id in list_backups(files, self.layout)? {
            ssts.extend(backup::read(files, self.layout, id)?.ssts().into_keys());
        }
        Ok(ssts)
    }
}
