//! Repairing the meta store and the manifests: a new file with a snapshot of what could be read, numbered above
//! the damaged one, which is in `lost/` by then.
//!
//! The new file counts once it is whole, by the rules of every opening (the newest whole file counts); until
//! then the damaged one refuses to open. So a repair that is interrupted leaves no state of its own.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::Path;

use bytes::Bytes;

use super::journals::{self, series_files};
use super::repair::{Repair, Tablets, is_damage};
use super::{CatalogEntry, Finding, TableBackup, TableTablets, list_ssts, list_tablets};
use crate::cell::RowRange;
use crate::error::{Error, Result};
use crate::log;
use crate::manifest::journal::Journal;
use crate::manifest::{
    MANIFEST_SERIES, META_SERIES, Series, TabletManifest, Version, VersionEdit,
    encode_manifest_snapshot, encode_meta_snapshot,
};
use crate::tablet::TabletId;

/// What is known of the catalog.
pub(super) enum Catalog {
    /// Its tables and its backups.
    Known {
        /// The tables.
        tables: Vec<TableTablets>,
        /// The backups.
        backups: Vec<TableBackup>,
    },
    /// The meta store is whole, but nobody said how to read it.
    Unknown,
    /// It cannot be read, and without it nothing else may be touched.
    Lost,
}

impl Repair<'_> {
    /// Repairs the meta store; tells what is known of the catalog in it.
    pub(super) fn meta(&mut self) -> Result<Catalog> {
        let files = self.files();
        let dir = self.layout.meta();
        let damage = match journals::read_meta(files.as_ref(), &dir) {
            Ok(Some(read)) => return self.tables(&read.state),
            Ok(None) if self.layout.first_data(files.as_ref())?.is_none() => {
                return self.tables(&super::Meta::new());
            }
            Ok(None) => Finding::damage(&dir, "the catalog is missing"),
            Err(error) if !is_damage(&error) => return Err(error),
            Err(error) => Finding::new(&dir, error),
        };
        let salvaged = journals::salvage_meta(files.as_ref(), &dir)?;
        let Some((mut salvaged, certain)) = salvaged else {
            let advice = "no snapshot of the catalog can be read, and without it nobody knows which \
                          tablet is whose. Nothing else was changed: put the file META-* of a copy of \
                          this directory in the place of this one, and run the repair again before a \
                          server is started. It moves to lost/ what the copy does not know of yet, \
                          which a start would delete";
            self.stays(&damage, advice);
            return Ok(Catalog::Lost);
        };
        // First: what a newer version wrote ends the repair.
        let removed = self.leave_removed(&mut salvaged.state, &certain)?;
        let catalog = self.tables(&salvaged.state)?;
        // Revisions are compared within one run of a server only: they may begin anew.
        let entries = salvaged.state.iter().map(|(key, value)| (key.as_str(), 1, value));
        let snapshot = encode_meta_snapshot(1, entries);
        let path = salvaged.path.display();
        let keys = salvaged.state.len();
        // First: after a failure the new file may be there all the same, and the next run finds nothing to tell.
        self.forgot = true;
        self.report.lost.push(format!(
            "{path}: {}: changes of the catalog (tables created, changed or deleted) that were in it",
            bytes_text(&salvaged.damaged)
        ));
        self.report.lost.extend(removed.into_iter().map(|table| {
            format!(
                "table {table}: taken for one that was removed, or replaced by a later one of its name: none of its tablets has a \
                 directory. What the catalog had of it is in lost/meta/"
            )
        }));
        self.replace_journal(&dir, META_SERIES, &snapshot)?;
        self.did(format_args!("{path}: replaced by what can be read of it, {keys} entries"));
        Ok(catalog)
    }

    /// Leaves tables out of what was read of a damaged catalog none of whose tablets has a directory; their names. Directories are there
    /// before a table is in the catalog, and go once it is out of it: the commit that took it out is what cannot be read. Not where nothing
    /// that is lost can have been that commit.
    fn leave_removed(
        &self,
        meta: &mut super::Meta,
        certain: &HashSet<String>,
    ) -> Result<Vec<String>> {
        let Some(read) = self.catalog else { return Ok(Vec::new()) };
        let there: HashSet<TabletId> =
            list_tablets(self.env.files.as_ref(), self.layout)?.into_iter().collect();
        if there.is_empty() {
            // All of them are lost, whichever were removed.
            return Ok(Vec::new());
        }
        let (mut keys, mut tables) = (HashSet::new(), Vec::new());
        for (key, value) in meta.iter().filter(|(key, _)| !certain.contains(*key)) {
            match read(key, value) {
                Ok(Some(CatalogEntry::Table(TableTablets { table, tablets })))
                    if !tablets.is_empty() && !tablets.iter().any(|id| there.contains(id)) =>
                {
                    keys.insert(key.clone());
                    tables.push(table);
                }
                Err(error) if !is_damage(&error) => return Err(error),
                _ => {}
            }
        }
        meta.retain(|key, _| !keys.contains(key));
        Ok(tables)
    }

    /// The tables in these entries. An entry that cannot be read is left: its table's tablets are not known.
    fn tables(&mut self, meta: &super::Meta) -> Result<Catalog> {
        let Some(read) = self.catalog else { return Ok(Catalog::Unknown) };
        let (mut tables, mut backups) = (Vec::new(), Vec::new());
        for (key, value) in meta {
            match read(key, value) {
                Ok(None) => {}
                Ok(Some(CatalogEntry::Table(table))) => tables.push(table),
                Ok(Some(CatalogEntry::Backup(backup))) => backups.push(backup),
                Err(error) if !is_damage(&error) => return Err(error),
                Err(error) => {
                    let finding = Finding::new(&self.layout.meta(), error);
                    self.stays(&finding, "restore the directory from a backup");
                }
            }
        }
        Ok(Catalog::Known { tables, backups })
    }

    /// Sets all files of a series aside and puts one with `snapshot` in their place.
    fn replace_journal(&mut self, dir: &Path, series: Series, snapshot: &[u8]) -> Result<()> {
        let files = self.files();
        let old = series_files(files.as_ref(), dir, series)?;
        let newest = old.last().map_or(0, |(id, _)| *id);
        let id = newest
            .checked_add(1)
            .ok_or_else(|| Error::corruption(dir.display(), 0, "the series has no numbers left"))?;
        for (_, path) in &old {
            self.copy_aside(path)?;
        }
        Journal::create(files.as_ref(), &series.path(dir, id), series.magic, id, snapshot)?;
        for (_, path) in &old {
            self.remove_copied(path)?;
        }
        Ok(())
    }

    /// The version of a tablet whose manifest is whole.
    pub(super) fn version(&self, id: TabletId) -> Result<Option<Version>> {
        let read = journals::read_manifest(self.env.files.as_ref(), self.layout, id)?;
        Ok(read.map(|read| read.state))
    }

    /// Repairs every manifest. A tablet without a readable snapshot is in the result without a version
    /// while a table has it, or may have it since not `all_read` is what the catalog says, and is set aside otherwise.
    pub(super) fn manifests(
        &mut self,
        tables: Option<&[TableTablets]>,
        all_read: bool,
    ) -> Result<Tablets> {
        let files = self.files();
        let mut tablets = Tablets::new();
        let existing: HashSet<u64> = list_ssts(files.as_ref(), self.layout)?.into_keys().collect();
        for id in list_tablets(files.as_ref(), self.layout)? {
            let dir = self.layout.tablet(id);
            match self.version(id) {
                Ok(Some(version)) => {
                    tablets.insert(id, Some(version));
                    continue;
                }
                Ok(None) => continue,
                Err(error) if !is_damage(&error) => return Err(error),
                Err(_) => {}
            }
            self.forgot = true;
            let salvaged = journals::salvage_manifest(files.as_ref(), self.layout, id, &existing)?;
            if let Some(salvaged) = salvaged {
                let snapshot = encode_manifest_snapshot(&salvaged.state, id);
                let path = salvaged.path.display();
                let ssts = salvaged.state.sst_count();
                // First, as of the catalog.
                self.report.lost.push(format!(
                    "{path}: {}: flushes, compactions and drops of tablet {:016x} that were in it; \
                     rows of that tablet may be missing, deleted ones may be back, and sums too large",
                    bytes_text(&salvaged.damaged),
                    id.0
                ));
                self.replace_journal(&dir, MANIFEST_SERIES, &snapshot)?;
                self.did(format_args!("{path}: replaced by what can be read of it, {ssts} SSTs"));
                tablets.insert(id, Some(salvaged.state));
            } else if tables.is_some_and(|t| t.iter().any(|t| t.tablets.contains(&id))) {
                tablets.insert(id, None);
            } else if !all_read {
                let finding = Finding::damage(&dir, "its manifest cannot be read");
                self.stays(&finding, "the table of the entry above may have it");
                tablets.insert(id, None);
            } else {
                self.report.lost.push(format!(
                    "tablet {:016x}: its manifest cannot be read, and no table has it",
                    id.0
                ));
                self.set_tablet_aside(id)?;
            }
        }
        Ok(tablets)
    }

    /// Recreates tablets of the catalog that are lost, empty, where the tablets beside them tell their rows. Of several side by side
    /// they tell those of all together: where it is asked for, each gets a part.
    pub(super) fn recreate(
        &mut self,
        tables: &[TableTablets],
        tablets: &mut Tablets,
    ) -> Result<()> {
        let mut last_rows = None;
        for table in tables {
            let is_lost = |id: &TabletId| !tablets.get(id).is_some_and(Option::is_some);
            let mut at = 0;
            let runs: Vec<(usize, Vec<TabletId>)> = table
                .tablets
                .chunk_by(|a, b| is_lost(a) == is_lost(b))
                .map(|run| {
                    at += run.len();
                    (at - run.len(), run.to_vec())
                })
                .filter(|(_, run)| run.first().is_some_and(is_lost))
                .collect();
            for (at, run) in runs {
                let rows = gap(table, at..at + run.len(), tablets);
                let rows = match rows {
                    Some(rows) if run.len() == 1 => Some(vec![rows]),
                    Some(rows) if self.empties => {
                        // The whole log is read for it, once.
                        let of_all = match &mut last_rows {
                            Some(of_all) => of_all,
                            none => none.insert(self.last_rows()?),
                        };
                        let last = run.iter().map(|id| of_all.get(&id.0).cloned());
                        parts(&rows, &last.collect::<Vec<_>>())
                    }
                    _ => None,
                };
                match rows {
                    Some(rows) => self.recreate_run(&table.table, &run, &rows, tablets)?,
                    None => self.leave_run(&table.table, &run, tablets),
                }
            }
        }
        Ok(())
    }

    fn recreate_run(
        &mut self,
        table: &str,
        run: &[TabletId],
        rows: &[RowRange],
        tablets: &mut Tablets,
    ) -> Result<()> {
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else { return Ok(()) };
        let ids: Vec<String> = run.iter().map(|id| format!("{:016x}", id.0)).collect();
        let whose = if run.len() == 1 { "its own" } else { "theirs" };
        self.report.lost.push(format!(
            "tablet {} of {table}: the manifest; all rows ({}) but those that are still in the log. Of these, older values and some that \
             were deleted may be back: the log lacks what was flushed. Which SSTs were {whose} cannot be told",
            ids.join(", "),
            super::check::rows_text(&first.start, &last.end)
        ));
        // Last: after a failure a manifest may be there all the same, and the next run finds nothing to tell.
        for (id, range) in run.iter().zip(rows) {
            let version = self.recreate_empty(*id, range)?;
            tablets.insert(*id, Some(version));
        }
        Ok(())
    }

    fn leave_run(&mut self, table: &str, run: &[TabletId], tablets: &mut Tablets) {
        for id in run {
            let dir = self.layout.tablet(*id);
            let finding = Finding::damage(&dir, format!("tablet of {table} is lost"));
            let advice = if self.empties {
                "the tablets that are left do not tell its rows: restore the directory from a backup"
            } else {
                "a tablet beside it is lost too, so its rows are not known: restore the directory from a backup, or run \
                 the repair with --empty-lost-tablets, which gives up the rows of both, but those that are still in the log"
            };
            self.stays(&finding, advice);
            tablets.insert(*id, None);
        }
    }

    fn last_rows(&self) -> Result<HashMap<u64, Bytes>> {
        log::repair::last_rows(self.env.files.as_ref(), &self.layout.log())
    }

    fn recreate_empty(&mut self, id: TabletId, range: &RowRange) -> Result<Version> {
        let files = self.files();
        let dir = self.layout.tablet(id);
        if files.exists(&dir)? {
            for (_, path) in series_files(files.as_ref(), &dir, MANIFEST_SERIES)? {
                self.move_aside(&path)?;
            }
        }
        // The clock of the next start must be beyond whatever the lost manifest knew.
        let last_seq = Some(self.next_id);
        let edit = VersionEdit { last_seq, ..VersionEdit::default() };
        self.touch();
        let manifest = TabletManifest::create(files.clone(), &dir, id, range.clone(), &edit)?;
        files.sync_dir(&self.layout.tablets())?;
        self.forgot = true;
        self.did(format_args!("{}: recreated empty", dir.display()));
        Ok(manifest.version().as_ref().clone())
    }

    /// Moves a tablet's manifest to `lost/`.
    pub(super) fn set_tablet_aside(&mut self, id: TabletId) -> Result<()> {
        let files = self.files();
        let dir = self.layout.tablet(id);
        for (name, _) in super::list_files(files.as_ref(), &dir)? {
            self.move_aside(&dir.join(name))?;
        }
        files.remove_dir(&dir)?;
        files.sync_dir(&self.layout.tablets())?;
        self.did(format_args!("{}: set aside", dir.display()));
        Ok(())
    }
}

/// The rows of these tablets of a table, from those beside them.
fn gap(table: &TableTablets, run: Range<usize>, tablets: &Tablets) -> Option<RowRange> {
    let range = |at: usize| -> Option<&RowRange> {
        Some(tablets.get(table.tablets.get(at)?)?.as_ref()?.range())
    };
    let start = match run.start.checked_sub(1) {
        Some(before) => {
            let end = range(before)?.end.clone();
            // A tablet to the end of all rows has none behind it.
            (!end.is_empty()).then_some(end)?
        }
        None => Bytes::new(),
    };
    let end = if run.end < table.tablets.len() {
        let start = range(run.end)?.start.clone();
        (!start.is_empty()).then_some(start)?
    } else {
        Bytes::new()
    };
    let range = RowRange { start, end };
    (!range.is_empty()).then_some(range)
}

/// Parts of `rows` for tablets side by side of which each has had rows up to these, if any: where one of them ended is not known, but not
/// before the row behind the last that it had, nor before the row behind its first possible one. There each ends, the last one where
/// all do. So no row that a tablet has had lies in the part of another.
fn parts(rows: &RowRange, last_rows: &[Option<Bytes>]) -> Option<Vec<RowRange>> {
    let (_, all_but_last) = last_rows.split_last()?;
    let mut parts = Vec::with_capacity(last_rows.len());
    let mut start = rows.start.clone();
    for last in all_but_last {
        let last = last.as_ref().map_or(&start, |last| last.max(&start));
        let end = Bytes::from([last, &[0][..]].concat());
        parts.push(RowRange { start: std::mem::replace(&mut start, end.clone()), end });
    }
    parts.push(RowRange { start, end: rows.end.clone() });
    parts.iter().all(|part| !part.is_empty()).then_some(parts)
}

fn bytes_text(ranges: &[std::ops::Range<u64>]) -> String {
    if ranges.is_empty() {
        return "an end that is missing".to_owned();
    }
    let text: Vec<String> = ranges.iter().map(|r| format!("{} to {}", r.start, r.end)).collect();
    format!("bytes {}", text.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_lost_tablet_are_known_from_both_neighbours_only() {
        let range = |start: &str, end: &str| {
            Some(Version::empty(RowRange::new(start.as_bytes().to_vec(), end.as_bytes().to_vec())))
        };
        let table =
            TableTablets { table: "t".to_owned(), tablets: [1, 2, 3].map(TabletId).to_vec() };
        let with =
            |ranges: [Option<Version>; 3]| -> Tablets { (1..).map(TabletId).zip(ranges).collect() };
        let one = with([range("", "g"), None, range("p", "")]);
        assert_eq!(gap(&table, 1..2, &one), Some(RowRange::new("g", "p")));
        let first = with([None, range("g", "p"), range("p", "")]);
        assert_eq!(gap(&table, 0..1, &first), Some(RowRange::new("", "g")));
        let last = with([range("", "g"), range("g", "p"), None]);
        assert_eq!(gap(&table, 2..3, &last), Some(RowRange::new("p", "")));
        let two = with([range("", "g"), None, None]);
        assert_eq!((gap(&table, 1..2, &two), gap(&table, 2..3, &two)), (None, None));
        assert_eq!(gap(&table, 1..3, &two), Some(RowRange::new("g", "")));
        let disordered = with([range("p", ""), None, range("", "g")]);
        assert_eq!(gap(&table, 1..2, &disordered), None);
    }

    #[test]
    fn parts_of_lost_tablets_have_the_rows_that_the_log_has_of_each() {
        let last = |row: &'static str| Some(Bytes::from(row));
        let range = |start: &'static str, end: &'static str| RowRange::new(start, end);
        assert_eq!(
            parts(&range("g", "p"), &[last("h"), None, last("k"), None]),
            Some(vec![
                range("g", "h\0"),
                range("h\0", "h\0\0"),
                range("h\0\0", "k\0"),
                range("k\0", "p")
            ])
        );
        assert_eq!(
            parts(&range("", ""), &[None, last("a")]),
            Some(vec![range("", "\0"), range("\0", "")])
        );
        // Rows that are not in the range: something else is wrong.
        assert_eq!(parts(&range("g", "p"), &[last("q"), None]), None);
        assert_eq!(parts(&range("g", "g\0"), &[None, None]), None, "there is one row");
    }
}
