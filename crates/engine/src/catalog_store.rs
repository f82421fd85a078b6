//! The meta store as an engine hands it out to the catalog: a commit that fails on the disk is a failed write like any
//! other, and makes the engine read-only. One that finds no space before anything of it is written is refused, and that is all.
//!
//! What such a commit left is not known until the next start. What is written until then would be written by what the
//! catalog was before: rows of a family that is gone by then, changes that a stream promises and that nobody keeps.
//!
//! An engine that is read-only takes no commits either: whoever looks at it wants to find what was there, and a sweep that
//! goes on would delete what nobody can replace by then. Where the disk is full there is one exception, since nothing is
//! wrong with what is on it: commits that only remove entries are taken, for backups and instances to go that room is made by.
//! These alone are taken, too, while writes are held up for want of room, though the catalog's own file may have some: what it names
//! would need more.
//!
//! And at a start: whether what the catalog names is there.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::backup::{BackupId, BackupList};
use crate::cell::RowRange;
use crate::core::Core;
use crate::error::{Error, ErrorKind, Result};
use crate::layout::Layout;
use crate::manifest::{LocalMetaStore, MetaChange, MetaEntry, MetaStore, TabletManifest};
use crate::offline::{CatalogEntry, CatalogReader};
use crate::tablet::TabletId;

/// The catalog's store of an engine.
#[derive(Debug)]
pub(crate) struct CatalogStore {
    core: Arc<Core>,
    meta: Arc<LocalMetaStore>,
}

impl CatalogStore {
    pub(crate) fn new(core: Arc<Core>, meta: Arc<LocalMetaStore>) -> Self {
        Self { core, meta }
    }
}

impl MetaStore for CatalogStore {
    fn get(&self, key: &str) -> Result<Option<MetaEntry>> {
        self.meta.get(key)
    }

    fn list(&self, prefix: &str) -> Result<Vec<(String, MetaEntry)>> {
        self.meta.list(prefix)
    }

    fn commit(&self, changes: &[MetaChange]) -> Result<u64> {
        let only_removes = changes.iter().all(|change| change.value.is_none());
        let refused = match self.core.failed() {
            Some(error) => Some(error).filter(|_| !only_removes || !self.core.failed_for_room()),
            None => self.core.why_no_room().filter(|_| !only_removes),
        };
        if let Some(error) = refused {
            return Err(error);
        }
        self.meta.commit(changes).map_err(|error| {
            if !error.is_in_doubt() {
                return error;
            }
            self.core.fail(&error.clone().context("the catalog cannot be written"));
            // As a write that meets the failure is answered.
            self.core.failed().map_or(error, Error::in_doubt)
        })
    }
}

/// Every tablet that the catalog names must have its manifest: without it the tablet's SSTs and log would be taken for
/// those of nobody. Whether a backup that it names has lost its list: nobody knows then what only that backup keeps.
pub(crate) fn check_catalog(
    meta: &LocalMetaStore,
    catalog: CatalogReader<'_>,
    manifests: &BTreeMap<TabletId, TabletManifest>,
    lists: &BTreeMap<BackupId, BackupList>,
    layout: &Layout,
) -> Result<bool> {
    let mut lists_lost = false;
    for (key, entry) in meta.list("")? {
        let read = catalog(&key, &entry.value);
        let named = read.map_err(|error| error.context(layout.meta().display()))?;
        let table = match named {
            Some(CatalogEntry::Table(table)) => table,
            Some(CatalogEntry::Backup(backup)) if !lists.contains_key(&backup.id) => {
                tracing::error!(
                    backup = backup.name,
                    list = %layout.backup(backup.id).display(),
                    "a backup has lost its list of files: files that nothing names are kept, until it is restored or the backup deleted"
                );
                lists_lost = true;
                continue;
            }
            _ => continue,
        };
        if let Some(id) = table.tablets.iter().find(|id| !manifests.contains_key(id)) {
            let (manifest, table) = (layout.tablet(*id).join("MANIFEST-*"), table.table);
            let message = format!(
                "{}: the manifest of a tablet of {table} is missing. Nothing was removed: run `tepui repair` on \
                 the data directory, also after the file was restored: a start removes what an older one does not \
                 name, and a repair sets it aside",
                manifest.display()
            );
            return Err(Error::new(ErrorKind::Corruption, message));
        }
        let range = |id: &TabletId| Some((manifests.get(id)?.version().range().clone(), *id));
        let ranges = table.tablets.iter().filter_map(range).collect();
        if let Some((id, what)) = untiled(ranges) {
            let (manifest, table) = (layout.tablet(id).join("MANIFEST-*"), table.table);
            let message = format!(
                "{}: {what} of {table}: a manifest or the catalog is that of another directory. Nothing was removed: put back what belongs to it",
                manifest.display()
            );
            return Err(Error::new(ErrorKind::Corruption, message));
        }
    }
    Ok(lists_lost)
}

/// Whether the tablets of a table leave rows out, or have some twice: one of those that are at fault, and what is wrong with it. A table with
/// none has lost what names them, which others say.
pub(crate) fn untiled(mut tablets: Vec<(RowRange, TabletId)>) -> Option<(TabletId, String)> {
    tablets.sort_by(|(a, _), (b, _)| a.start.cmp(&b.start));
    let mut before: Option<&(RowRange, TabletId)> = None;
    for tablet in &tablets {
        let (range, id) = tablet;
        let row = range.start.escape_ascii();
        match before {
            None if range.start.is_empty() => {}
            None => {
                return Some((*id, format!("begins at row \"{row}\", and no tablet is before it")));
            }
            Some((previous, _)) if previous.end == range.start && !range.start.is_empty() => {}
            Some((previous, other)) => {
                let (end, other) = (previous.end.escape_ascii(), other.0);
                let end = if previous.end.is_empty() {
                    "the last row".to_owned()
                } else {
                    format!("row \"{end}\"")
                };
                return Some((
                    *id,
                    format!(
                        "begins at row \"{row}\", and tablet {other:016x} before it ends at {end}"
                    ),
                ));
            }
        }
        before = Some(tablet);
    }
    let (last, id) = before?;
    let row = last.end.escape_ascii();
    (!last.end.is_empty())
        .then(|| (*id, format!("ends at row \"{row}\", and no tablet is behind it")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tablets_that_leave_rows_out_or_have_some_twice_are_named() {
        let of = |ranges: &[(&'static str, &'static str)]| {
            let tablets = ranges.iter().zip(1..);
            let tablets =
                tablets.map(|((start, end), id)| (RowRange::new(*start, *end), TabletId(id)));
            let mut tablets: Vec<_> = tablets.collect();
            tablets.reverse();
            untiled(tablets).map(|(id, what)| (id.0, what))
        };
        assert_eq!(of(&[("", "")]), None);
        assert_eq!(of(&[("", "g"), ("g", "k"), ("k", "")]), None);
        let (id, what) = of(&[("", "g"), ("h", "")]).unwrap();
        assert!(id == 2 && what.contains("\"h\"") && what.contains("\"g\""), "{what}");
        let faulty = [
            (&[("", "k"), ("g", "")][..], 2),
            (&[("", ""), ("", "")], 1),
            (&[("", ""), ("g", "")], 2),
            (&[("a", "")], 1),
            (&[("", "k")], 1),
        ];
        for (ranges, id) in faulty {
            assert_eq!(of(ranges).map(|(id, _)| id), Some(id), "{ranges:?}");
        }
    }
}
