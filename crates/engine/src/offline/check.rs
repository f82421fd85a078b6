//! Checking a directory: every checksum, every invariant, and what the files say of each other.
//!
//! ```text
//! IDENTITY ─ format
//! meta ───── records, revisions; each table's tablets exist, and each backup
//! tablets ── edits, levels ──┬► SSTs: there, whole, and as the manifest says ──► value files: every value
//! backups ── lists ──────────┘
//! log ────── records, openings, sequences ascend
//! ```
//!
//! Nothing is changed on disk, and damage does not end the check: all of it is listed. What is not damage
//! but worth knowing (a torn tail of the last log segment, files that nothing names) is a note.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::journals::{self, Read};
use super::repair::is_damage;
use super::values::{LostValues, ValueReaders, list_unfinished_values, list_values};
use super::{
    CACHE_BYTES, CatalogEntry, CatalogReader, Finding, Meta, Progress, check_log, list_backups,
    list_files, list_ssts, list_tablets, open_dir,
};
use crate::backup::{self, BackupId, BackupList};
use crate::cache::{BlockCache, QuickBlockCache};
use crate::catalog_store::untiled;
use crate::cell::RowRange;
use crate::error::{ErrorKind, Result};
use crate::identity;
use crate::io::{Env, Files};
use crate::layout::Layout;
use crate::log::segment::list_segments;
use crate::manifest::{SstRef, Version};
use crate::sst::{FileId, Piece, SstReader};
use crate::tablet::TabletId;
use crate::values::ValueReader;

/// What a check found.
#[derive(Debug, Clone, Default)]
pub struct CheckReport {
    /// What is not as it was written, or contradicts something else; and what a newer version wrote.
    pub damage: Vec<Finding>,
    /// What is in order but worth knowing.
    pub notes: Vec<Finding>,
    /// What nothing names, files and directories of tablets: a start removes it, and a repair sets it aside.
    pub unnamed: Vec<PathBuf>,
    /// Bytes that were read.
    pub bytes: u64,
    /// Tables in the catalog; 0 where it was not looked into.
    pub tables: u64,
    /// Tablets.
    pub tablets: u64,
    /// Backups.
    pub backups: u64,
    /// SSTs that a manifest or a backup names.
    pub ssts: u64,
    /// Records in them.
    pub sst_records: u64,
    /// Value files that an SST names.
    pub value_files: u64,
    /// Segments of the log.
    pub log_segments: u64,
    /// Batches in them.
    pub log_batches: u64,
    /// Change files.
    pub change_files: u64,
}

impl CheckReport {
    /// Whether there is no damage.
    pub fn is_whole(&self) -> bool {
        self.damage.is_empty()
    }

    /// What a newer version wrote, which is no damage and must be left alone: the first such finding.
    pub fn newer_version(&self) -> Option<&Finding> {
        self.damage.iter().find(|finding| finding.is_of_newer_version())
    }
}

impl fmt::Display for CheckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.damage.len() {
            0 => "no damage".to_owned(),
            _ if self.newer_version().is_some() => "OF A NEWER VERSION".to_owned(),
            n => format!("DAMAGED: {n} findings"),
        };
        write!(
            f,
            "{verdict}; {} bytes: {} tables, {} tablets, {} backups, {} SSTs with {} records, {} value files, {} log \
             segments with {} batches, {} change files",
            self.bytes,
            self.tables,
            self.tablets,
            self.backups,
            self.ssts,
            self.sst_records,
            self.value_files,
            self.log_segments,
            self.log_batches,
            self.change_files
        )
    }
}

/// Checks the directory and changes nothing in it. Blocks. `Locked` while a server uses it. Errors are those
/// of a check that could not be made, as for want of open files, or of the right to read; damage is in the report.
pub fn check(
    env: &Env,
    dir: &Path,
    catalog: Option<CatalogReader<'_>>,
    progress: Progress<'_>,
) -> Result<CheckReport> {
    let checked = open_dir(env, dir, false)
        .and_then(|(layout, _lock)| check_locked(env, &layout, catalog, progress));
    let report = checked.map_err(of_other_user)?;
    let is_unread =
        |error: &crate::Error| error.kind() == ErrorKind::Exhausted || error.is_denied();
    let (unread, damage): (Vec<_>, Vec<_>) =
        report.damage.iter().partition(|found| is_unread(&found.error));
    match unread.first() {
        None => Ok(report),
        Some(first) => Err(unchecked(first, &damage)),
    }
}

/// The error of a check that could not read a file for what has nothing to do with that; with what it found besides.
fn unchecked(unread: &Finding, damage: &[&Finding]) -> crate::Error {
    let found = match damage {
        [] => "nothing that was read is damaged".to_owned(),
        [first, ..] => format!("{} damaged places were found, the first: {first}", damage.len()),
    };
    let then = if unread.error.is_denied() {
        OF_OTHER_USER
    } else {
        "All data files are held open at once: check again with room for them"
    };
    let text = format!(
        "{unread}; this was not taken for damage, and not everything was checked; {found}. {then}"
    );
    crate::Error::new(unread.error.kind(), text)
}

/// What to do where the user of the command may not read, or change, a file.
pub(super) const OF_OTHER_USER: &str = "This user may not: change the owner of the directory's files (chown -R), or run the command as the user that they belong to";

/// An error that ended a check or kept a repair from its begin, with what to do.
pub(super) fn of_other_user(error: crate::Error) -> crate::Error {
    if !error.is_denied() {
        return error;
    }
    crate::Error::new(error.kind(), format!("{error}. {OF_OTHER_USER}"))
}

/// What to do where the device cannot read a file.
pub(super) const OF_BAD_DEVICE: &str = "where the file stays as it is, copy the directory to another device with a tool that goes on behind what cannot be read (ddrescue), and repair the copy";

/// An error that refused a start, with what to do.
pub(crate) fn of_start(error: crate::Error) -> crate::Error {
    if !error.is_of_device() {
        return of_other_user(error);
    }
    let text = format!("{error}; this was not taken for damage. Start again; {OF_BAD_DEVICE}");
    crate::Error::new(error.kind(), text)
}

/// The same where the directory is locked already.
pub(super) fn check_locked(
    env: &Env,
    layout: &Layout,
    catalog: Option<CatalogReader<'_>>,
    progress: Progress<'_>,
) -> Result<CheckReport> {
    let files = env.files.as_ref();
    let mut check = Check {
        files,
        layout,
        report: CheckReport::default(),
        done: 0,
        total: total_bytes(files, layout)?,
        progress,
        // Readers past the cache share an empty one.
        cache: Arc::new(QuickBlockCache::new(CACHE_BYTES)),
        ssts: list_ssts(files, layout)?,
        verified: HashMap::new(),
        values: ValueReaders::new(files, layout),
        names_lost: false,
    };
    if let Some(unfinished) = layout.unfinished_repair(files)? {
        check.damage(&layout.repair(), unfinished);
    }
    if let Err(error) = identity::check(env, layout) {
        check.damage(&layout.identity(), error);
    }
    let meta = check.meta()?;
    let tablets = check.tablets()?;
    let backups = check.backups()?;
    if let (Some(catalog), Some(meta)) = (catalog, &meta) {
        check.catalog(catalog, meta, &tablets, &backups);
    }
    check.unnamed_ssts();
    check.value_files()?;
    let Check { mut report, done, total, progress, .. } = check;
    let log = layout.log();
    report.damage.extend(layout.lost_log(files)?.map(|error| Finding::new(&log, error)));
    check_log::check(files, &log, &mut report, &mut |bytes| progress(done + bytes, total))?;
    let done = done + list_files(files, &log)?.iter().map(|(_, len)| len).sum::<u64>();
    super::changes::check(files, layout, &mut report, &mut |bytes| progress(done + bytes, total))?;
    progress(total, total);
    report.bytes = total;
    Ok(report)
}

fn total_bytes(files: &dyn Files, layout: &Layout) -> Result<u64> {
    let mut dirs = vec![
        layout.meta(),
        layout.ssts(),
        layout.values(),
        layout.log(),
        layout.changes(),
        layout.backups(),
    ];
    dirs.extend(list_tablets(files, layout)?.into_iter().map(|id| layout.tablet(id)));
    let mut total = 0;
    for dir in dirs {
        total += list_files(files, &dir)?.iter().map(|(_, len)| len).sum::<u64>();
    }
    Ok(total)
}

struct Check<'a> {
    files: &'a dyn Files,
    layout: &'a Layout,
    report: CheckReport,
    done: u64,
    total: u64,
    progress: Progress<'a>,
    cache: Arc<dyn BlockCache>,
    /// SSTs in the directory and their bytes.
    ssts: BTreeMap<FileId, u64>,
    /// SSTs that were verified already, with their reader where they opened.
    verified: HashMap<FileId, Option<Arc<SstReader>>>,
    values: ValueReaders<'a>,
    /// A manifest or a backup's list cannot be read: nobody knows what only that names.
    names_lost: bool,
}

impl Check<'_> {
    fn damage(&mut self, file: &Path, error: crate::Error) {
        self.report.damage.push(Finding::new(file, error));
    }

    /// Damage of a journal in `dir`, behind which a newer version may have written.
    fn damage_of_journal(
        &mut self,
        dir: &Path,
        error: crate::Error,
        check_versions: fn(&dyn Files, &Path) -> Result<()>,
    ) {
        let newer_told = error.kind() == ErrorKind::InvalidArgument;
        self.damage(dir, error);
        // What else keeps it from being looked at is told, where it matters, by who repairs it.
        let newer = check_versions(self.files, dir).err();
        let newer = newer.filter(|e| !newer_told && e.kind() == ErrorKind::InvalidArgument);
        self.report.damage.extend(newer.map(|error| Finding::new(dir, error)));
    }

    fn wrong(&mut self, file: &Path, what: impl fmt::Display) {
        self.report.damage.push(Finding::damage(file, what));
    }

    fn note(&mut self, file: &Path, what: impl fmt::Display) {
        self.report.notes.push(Finding::damage(file, what));
    }

    fn unnamed(&mut self, file: &Path, what: &str) {
        self.note(file, format_args!("{what}; a start removes it, and a repair sets it aside"));
        self.report.unnamed.push(file.to_path_buf());
    }

    fn advance(&mut self, bytes: u64) {
        self.done += bytes;
        (self.progress)(self.done, self.total);
    }

    fn advance_dir(&mut self, dir: &Path) -> Result<()> {
        let bytes = list_files(self.files, dir)?.iter().map(|(_, len)| len).sum();
        self.advance(bytes);
        Ok(())
    }

    fn torn<T>(&mut self, read: &Read<T>) {
        if read.torn {
            self.note(&read.path, "ends with a write that was cut short; a start cuts it off");
        }
    }

    /// The meta store; `None` where it cannot be read.
    fn meta(&mut self) -> Result<Option<Meta>> {
        let dir = self.layout.meta();
        let read = journals::read_meta(self.files, &dir);
        self.advance_dir(&dir)?;
        match read {
            Ok(Some(read)) => {
                self.torn(&read);
                Ok(Some(read.state))
            }
            Ok(None) => match self.layout.first_data(self.files)? {
                None => {
                    self.note(&dir, "the first start was not finished: there is no catalog yet");
                    Ok(Some(Meta::new()))
                }
                Some(data) => {
                    let what = format!("the catalog is missing, but there is {}", data.display());
                    self.wrong(&dir, what);
                    Ok(None)
                }
            },
            Err(error) => {
                self.damage_of_journal(&dir, error, journals::check_meta_versions);
                Ok(None)
            }
        }
    }

    /// All manifests and the SSTs that they name. Tells which tablets are there, whole or not, and their rows where that can be read.
    fn tablets(&mut self) -> Result<HashMap<TabletId, Option<RowRange>>> {
        let mut there = HashMap::new();
        for id in list_tablets(self.files, self.layout)? {
            let dir = self.layout.tablet(id);
            let read = journals::read_manifest(self.files, self.layout, id);
            self.advance_dir(&dir)?;
            match read {
                Ok(Some(read)) => {
                    there.insert(id, Some(read.state.range().clone()));
                    self.torn(&read);
                    self.report.tablets += 1;
                    self.version(&read.path, &read.state);
                }
                Ok(None) => {
                    let what = "has no manifest, as a tablet whose creation or removal was cut \
                                short; a start removes it if no table has it";
                    self.note(&dir, what);
                }
                Err(error) => {
                    there.insert(id, None);
                    self.names_lost = true;
                    self.damage_of_journal(&dir, error, journals::check_manifest_versions);
                }
            }
        }
        Ok(there)
    }

    /// All backups and the SSTs that they name. Tells which are there, whole or not.
    fn backups(&mut self) -> Result<HashSet<BackupId>> {
        let dir = self.layout.backups();
        for (name, _) in list_files(self.files, &dir)? {
            if backup::is_draft(&name) {
                self.note(&dir.join(name), "a backup that was being written; a start removes it");
            }
        }
        let mut there = HashSet::new();
        for id in list_backups(self.files, self.layout)? {
            there.insert(id);
            let path = self.layout.backup(id);
            match backup::read(self.files, self.layout, id) {
                Ok(list) => {
                    self.report.backups += 1;
                    for version in &list.tablets {
                        self.version(&path, version);
                    }
                    self.named_values(&path, &list);
                }
                Err(error) => {
                    self.names_lost = true;
                    self.damage(&path, error);
                }
            }
        }
        self.advance_dir(&dir)?;
        Ok(there)
    }

    /// A backup lists every value file that its SSTs name: nothing else keeps them.
    fn named_values(&mut self, path: &Path, list: &BackupList) {
        let ssts = list.ssts();
        let readers = ssts.keys().filter_map(|id| self.verified.get(id)?.as_ref());
        let named: BTreeSet<FileId> =
            readers.flat_map(|reader| reader.properties().value_files.keys().copied()).collect();
        for id in named.into_iter().filter(|id| !list.values.contains_key(id)) {
            let values = self.layout.value(id);
            let what = format!("does not list {}, which its SSTs name", values.display());
            self.wrong(path, what);
        }
    }

    fn version(&mut self, manifest: &Path, version: &Version) {
        for sst in version.ssts() {
            let reader = match self.verified.get(&sst.id) {
                Some(reader) => reader.clone(),
                None => {
                    let reader = self.sst(manifest, sst);
                    self.verified.insert(sst.id, reader.clone());
                    reader
                }
            };
            if let Some(reader) = reader {
                for what in differences(sst, &reader) {
                    let path = self.layout.sst(sst.id);
                    self.wrong(manifest, format_args!("says of {}: {what}", path.display()));
                }
            }
        }
    }

    fn sst(&mut self, manifest: &Path, sst: &SstRef) -> Option<Arc<SstReader>> {
        let path = self.layout.sst(sst.id);
        self.report.ssts += 1;
        if !self.ssts.contains_key(&sst.id) {
            let rows = rows_text(&sst.first_row, &sst.last_row);
            let by = manifest.display();
            self.wrong(&path, format_args!("the file is missing; {by} names it for rows {rows}"));
            return None;
        }
        let before = self.done;
        let opened = SstReader::open(self.files, &path, sst.id, Arc::clone(&self.cache));
        let reader = match opened {
            Ok(reader) => Some(reader),
            Err(error) => {
                self.damage(&path, error);
                None
            }
        };
        if let Some(reader) = &reader {
            self.report.sst_records += reader.properties().entries;
            let (progress, total) = (&mut self.progress, self.total);
            let mut done = self.done;
            let verified = reader.verify(&mut |bytes| {
                done += bytes;
                progress(done, total);
            });
            if let Err(error) = verified {
                self.damage_of_sst(&path, reader, error);
            }
            match self.values.lost_to(reader) {
                Ok(lost) => self.lost_values(&path, lost),
                Err(error) => self.damage(&path, error),
            }
        }
        self.done = before;
        self.advance(self.ssts.get(&sst.id).copied().unwrap_or(0));
        reader
    }

    /// Values that pointers of the SST do not lead to.
    fn lost_values(&mut self, sst: &Path, lost: BTreeMap<FileId, LostValues>) {
        for (id, lost) in lost {
            let path = self.values.path(id);
            if !is_damage(&lost.error) {
                self.damage(&path, lost.error);
                continue;
            }
            let rows = rows_text(&lost.from_row, &lost.to_row);
            let what = format!(
                "{} values of rows {rows} in {} cannot be read; the first: {}",
                lost.values,
                sst.display(),
                lost.error.message()
            );
            self.wrong(&path, what);
        }
    }

    /// The value files themselves: those that an SST names are there and end as they should. Their values were read
    /// with the SSTs.
    fn value_files(&mut self) -> Result<()> {
        let there = list_values(self.files, self.layout)?;
        let readers = self.verified.values().flatten();
        let named: BTreeSet<FileId> =
            readers.flat_map(|reader| reader.properties().value_files.keys().copied()).collect();
        // What an SST that cannot be read names is not known.
        let all_known = !self.names_lost && self.verified.values().all(Option::is_some);
        self.report.value_files = named.len() as u64;
        for (id, bytes) in &there {
            let path = self.layout.value(*id);
            if named.contains(id) {
                let opened = ValueReader::open(self.files, &path, *id);
                if let Err(error) = opened.and_then(|reader| reader.verify_footer()) {
                    self.damage(&path, error);
                }
            } else if all_known {
                self.unnamed(&path, "no SST names this value file");
            }
            self.advance(*bytes);
        }
        for id in named.iter().filter(|id| !there.contains_key(id)) {
            self.wrong(&self.layout.value(*id), "the file is missing; an SST names it");
        }
        for path in list_unfinished_values(self.files, self.layout)? {
            self.note(&path, "an interrupted repair left this; the next repair removes it");
        }
        Ok(())
    }

    /// Verification stops at the first damage; a walk finds every piece that is.
    fn damage_of_sst(&mut self, path: &Path, reader: &SstReader, first: crate::Error) {
        let mut lost = Vec::new();
        let walked = reader.walk(true, &mut |piece| {
            if let Piece::Lost(piece) = piece {
                lost.push(piece.error);
            }
            Ok(())
        });
        let told = |lost: &[crate::Error]| lost.iter().any(|e| e.message() == first.message());
        if !told(&lost) {
            lost.insert(0, first.clone());
        }
        lost.extend(walked.err());
        for error in lost {
            self.damage(path, error);
        }
    }

    /// Every tablet and backup of the catalog must be there; others are removed by a start.
    fn catalog(
        &mut self,
        read: CatalogReader<'_>,
        meta: &Meta,
        tablets: &HashMap<TabletId, Option<RowRange>>,
        backups: &HashSet<BackupId>,
    ) {
        let dir = self.layout.meta();
        let mut named = HashSet::new();
        let mut named_backups = HashSet::new();
        let mut all_read = true;
        for (key, value) in meta {
            match read(key, value) {
                Ok(Some(CatalogEntry::Backup(named))) => {
                    named_backups.insert(named.id);
                    if !backups.contains(&named.id) {
                        let path = self.layout.backup(named.id);
                        self.wrong(&path, format_args!("the list of {} is missing", named.name));
                    }
                }
                Ok(Some(CatalogEntry::Table(table))) => {
                    self.report.tables += 1;
                    let ranges = table.tablets.iter().map(|id| {
                        tablets.get(id).and_then(|range| range.clone()).map(|range| (range, *id))
                    });
                    // Where one of them is not known, that is what is said of it.
                    if let Some(ranges) = ranges.collect()
                        && let Some((id, what)) = untiled(ranges)
                    {
                        self.wrong(
                            &self.layout.tablet(id),
                            format_args!("{what} of {}", table.table),
                        );
                    }
                    for id in table.tablets {
                        named.insert(id);
                        if !tablets.contains_key(&id) {
                            let dir = self.layout.tablet(id);
                            let table = &table.table;
                            self.wrong(&dir, format_args!("tablet of {table} is missing"));
                        }
                    }
                }
                Ok(None) => {}
                Err(error) => {
                    all_read = false;
                    self.damage(&dir, error);
                }
            }
        }
        if !all_read {
            // What the others name is not known.
            return;
        }
        let mut unnamed: Vec<TabletId> =
            tablets.keys().filter(|id| !named.contains(id)).copied().collect();
        unnamed.sort_unstable();
        for id in unnamed {
            self.unnamed(&self.layout.tablet(id), "no table has this tablet");
        }
        let mut unnamed: Vec<BackupId> = backups.difference(&named_backups).copied().collect();
        unnamed.sort_unstable();
        for id in unnamed {
            self.unnamed(&self.layout.backup(id), "the catalog has no such backup");
        }
    }

    fn unnamed_ssts(&mut self) {
        let unnamed: Vec<(FileId, u64)> = self
            .ssts
            .iter()
            .filter(|(id, _)| !self.verified.contains_key(id))
            .map(|(id, bytes)| (*id, *bytes))
            .collect();
        for (id, bytes) in unnamed {
            let path = self.layout.sst(id);
            if self.names_lost {
                let what =
                    "no manifest or backup that can be read names this SST; one that cannot may";
                self.note(&path, what);
            } else {
                self.unnamed(&path, "no manifest or backup names this SST");
            }
            self.advance(bytes);
        }
    }
}

/// Rows as text, for people.
pub(super) fn rows_text(from: &[u8], to: &[u8]) -> String {
    format!("\"{}\" to \"{}\"", from.escape_ascii(), to.escape_ascii())
}

/// Where a manifest and the SST itself do not agree.
pub(super) fn differences(sst: &SstRef, reader: &SstReader) -> Vec<String> {
    let found = reader.properties();
    let mut out = Vec::new();
    if sst.first_row != found.first_row || sst.last_row != found.last_row {
        let (said, is) = (
            rows_text(&sst.first_row, &sst.last_row),
            rows_text(&found.first_row, &found.last_row),
        );
        out.push(format!("rows {said}, but it holds {is}"));
    }
    // What dropped rows, or a compaction, left of a file has bytes by estimate.
    let file = RowRange::new(sst.first_row.clone(), RowRange::row(&sst.last_row).end);
    let cut = !sst.visible.contains_range(&file);
    let bytes = if cut { sst.bytes.max(reader.bytes()) } else { sst.bytes };
    let numbers = [
        ("bytes", bytes, reader.bytes()),
        ("records", sst.entries, found.entries),
        ("as least sequence", sst.min_seq, found.seq_min),
        ("as greatest sequence", sst.max_seq, found.seq_max),
    ];
    let wrong = numbers.into_iter().filter(|(_, said, is)| said != is);
    out.extend(wrong.map(|(what, said, is)| format!("{said} {what}, but it has {is}")));
    out
}

/// The segments of the log, where there is a log.
pub(super) fn segments(files: &dyn Files, dir: &Path) -> Result<Vec<(u64, u64)>> {
    if files.exists(dir)? { list_segments(files, dir) } else { Ok(Vec::new()) }
}
