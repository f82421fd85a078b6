//! Repairing a directory: what verifies is kept, the rest is set aside in `lost/`, and what was lost is said.
//!
//! ```text
//! 1  IDENTITY    rewritten, where the rest is recognisable
//! 2  meta        every commit that can be read, as a new snapshot
//! 3  tablets     every edit that can be read and fits, as a new snapshot; a tablet without a readable
//!                snapshot is recreated empty where its neighbours tell its rows, or where it is asked for; else left or set
//!                aside
//! 4  backups     a list that cannot be read is set aside, and an empty one stands in its place
//! 5  SSTs        every record of readable blocks that has its value, in a new SST in the place of the old
//! 6  log         every batch that can be read; an empty log in the place of one that is gone
//!    changes     change files that verify; streams of changes are told of the others
//! 7  the rest    what nothing names: tablets, backups, SSTs, value files. A start would remove them, and whether
//!                a crash left them or a catalog forgot them cannot be told; so this is done even where there is
//!                no damage. Value files whose footer is damaged
//! ```
//!
//! Guarantees: nothing is deleted but the beginnings of files that an interrupted repair left. The original of every
//! file that is replaced is in `lost/` under the path that it had: an SST itself, moved there once nothing names it
//! any more; of others an exact copy, durable before the replacement counts. A read that the device refuses, or for which there is no
//! open file or memory, is no damage: it ends the repair, and nothing is given up for it. A repair that is interrupted can be run again, and is
//! to be before the next start. A dry run does all of it over an overlay in memory (`overlay.rs`), so it says what a
//! repair would say.
//!
//! What a repair cannot do: bring back what is not there. With a lost block, deletions may be lost too,
//! and what they hid comes back; the report says so.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::check::{OF_BAD_DEVICE, OF_OTHER_USER, check_locked, of_other_user, rows_text};
use super::overlay::OverlayFiles;
use super::repair_backups::Backups;
use super::repair_journals::Catalog;
use super::values::list_values;
use super::{CatalogReader, CheckReport, Finding, Progress, list_ssts, list_tablets, open_dir};
use crate::backup::BackupId;
use crate::error::{Error, ErrorKind, Result};
use crate::identity;
use crate::io::{Env, Files};
use crate::layout::Layout;
use crate::log;
use crate::manifest::Version;
use crate::sst::FileId;
use crate::tablet::TabletId;

/// Bytes copied at once when a file is set aside.
pub(super) const COPY_BYTES: usize = 1 << 20;

/// Names tried for a file in `lost/`. More repairs of one file than this are not a repair.
const LOST_NAMES_MAX: u32 = 1000;

/// How to repair.
#[derive(Debug, Clone, Copy, Default)]
pub struct RepairOptions {
    /// Change nothing; say what would be done. What would be written anew is held in memory meanwhile.
    pub dry_run: bool,
    /// Make lost tablets empty that lie side by side, too: where they met is not known, and is made up.
    pub empty_lost_tablets: bool,
}

/// Who names an SST.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    /// A tablet.
    Tablet(TabletId),
    /// A backup.
    Backup(BackupId),
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tablet(id) => write!(f, "tablet {:016x}", id.0),
            Self::Backup(id) => write!(f, "backup {:016x}", id.0),
        }
    }
}

/// Rows of which records were lost. Other records of these rows may still be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostRows {
    /// Who shows them; the first that was met, where several share the file.
    pub holder: Holder,
    /// The file that held them.
    pub file: PathBuf,
    /// The bytes of that file that cannot be read.
    pub bytes: Range<u64>,
    /// No lost row that anybody shows is less, unless the file's index is wrong.
    pub from_row: Bytes,
    /// Likewise, none is greater.
    pub to_row: Bytes,
    /// Records, at most: some may be of rows that nobody shows.
    pub records: u64,
}

impl fmt::Display for LostRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: bytes {} to {}: up to {} records of rows {} of {}",
            self.file.display(),
            self.bytes.start,
            self.bytes.end,
            self.records,
            rows_text(&self.from_row, &self.to_row),
            self.holder
        )
    }
}

/// What a repair did.
#[derive(Debug, Clone, Default)]
pub struct RepairReport {
    /// What was done, in order.
    pub actions: Vec<String>,
    /// Rows that were lost from SSTs.
    pub lost_rows: Vec<LostRows>,
    /// What else was lost, or may have been.
    pub lost: Vec<String>,
    /// Damaged files: where they were, and where they are now.
    pub set_aside: Vec<(PathBuf, PathBuf)>,
    /// What could not be repaired, and what to do about it.
    pub open: Vec<String>,
    /// Why it ended before its end, if it did: the other figures are of what it had done by then.
    pub stopped: Option<Error>,
    /// The check before.
    pub before: CheckReport,
    /// The check after.
    pub after: CheckReport,
}

impl RepairReport {
    /// Whether anything was done.
    pub fn has_changes(&self) -> bool {
        !self.actions.is_empty() || !self.set_aside.is_empty()
    }

    /// Whether the directory can be opened now.
    pub fn opens(&self) -> bool {
        self.stopped.is_none() && self.open.is_empty() && self.after.is_whole()
    }
}

/// A tablet's version as far as it is known; `None` where its rows are not.
pub(super) type Tablets = BTreeMap<TabletId, Option<Version>>;

/// A repair under way.
pub(super) struct Repair<'a> {
    pub(super) env: Env,
    pub(super) layout: &'a Layout,
    pub(super) catalog: Option<CatalogReader<'a>>,
    pub(super) report: RepairReport,
    /// The number of the next file that is written.
    pub(super) next_id: u64,
    /// Whether this repair may have lost the names of files: then what nothing names is told as lost.
    pub(super) forgot: bool,
    /// SSTs that it has written and nothing names yet.
    pub(super) unnamed: BTreeSet<FileId>,
    /// Whether lost tablets that lie side by side are made empty.
    pub(super) empties: bool,
    /// Whether it has begun to change what a start reads: with an error that may have been done all the same.
    touched: bool,
    /// The files of a dry run.
    overlay: Option<Arc<OverlayFiles>>,
}

/// Repairs the directory. Blocks. `Locked` while a server uses it; `InvalidArgument` where a file was written by
/// a newer version, which is no damage; `Io` or `Exhausted` where one cannot be read now. What stops it once it has changed something
/// is in its report. Until one has come to its end, the directory does not open.
pub fn repair(
    env: &Env,
    dir: &Path,
    catalog: Option<CatalogReader<'_>>,
    options: RepairOptions,
    progress: Progress<'_>,
) -> Result<RepairReport> {
    let (layout, _lock) = open_dir(env, dir, !options.dry_run).map_err(of_other_user)?;
    repair_locked(env, &layout, catalog, options, progress)
}

fn repair_locked(
    env: &Env,
    layout: &Layout,
    catalog: Option<CatalogReader<'_>>,
    options: RepairOptions,
    progress: Progress<'_>,
) -> Result<RepairReport> {
    let mut env = env.clone();
    let overlay = options.dry_run.then(|| Arc::new(OverlayFiles::new(Arc::clone(&env.files))));
    if let Some(overlay) = &overlay {
        env.files = Arc::clone(overlay) as Arc<dyn Files>;
    }
    let before = check_locked(&env, layout, catalog, progress).map_err(advised)?;
    if let Some(finding) = before.newer_version() {
        let text = format!("{finding}; nothing was changed");
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    if let Some(finding) = before.damage.iter().find(|finding| !is_damage(&finding.error)) {
        return Err(advised(finding.error.clone()));
    }
    let mut repair = Repair::new(env, layout, catalog, overlay);
    repair.report.before = before;
    repair.empties = options.empty_lost_tablets;
    repair.remove_unfinished_values()?;
    let left_in_log = repair.originals_in_log()?;
    let before = &repair.report.before;
    let is_wanted = !before.is_whole() || !before.unnamed.is_empty() || !left_in_log.is_empty();
    if is_wanted && let Err(error) = repair.run_to_its_end() {
        return stopped(repair.touched, repair.report, error);
    }
    let Repair { env, touched, mut report, .. } = repair;
    if report.before.is_whole() && !report.has_changes() {
        report.after = report.before.clone();
        return Ok(report);
    }
    match check_locked(&env, layout, catalog, progress) {
        Ok(after) => Ok(RepairReport { after, ..report }),
        Err(error) => stopped(touched, report, error),
    }
}

/// The end of a repair that an error stopped: what it has done is told all the same, as nobody finds it again.
fn stopped(touched: bool, report: RepairReport, error: Error) -> Result<RepairReport> {
    let error = advised(error);
    if touched || report.has_changes() {
        return Ok(RepairReport { stopped: Some(error), ..report });
    }
    Err(error)
}

/// Whether an error of reading says that bytes are gone. One of the device does not, nor does a want of open files, of memory or of the right
/// to read: the next read may bring them.
pub(super) fn is_damage(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corruption | ErrorKind::NotFound)
}

/// An error that ended the repair, with what to do.
fn advised(error: Error) -> Error {
    let then = match error.kind() {
        _ if error.is_denied() => {
            let text = format!(
                "{error}; this was not taken for damage, and nothing was given up for it. {OF_OTHER_USER}. Then run the repair again, \
                 to its end, before a server is started"
            );
            return Error::new(error.kind(), text);
        }
        ErrorKind::Io => format!("; {OF_BAD_DEVICE}"),
        ErrorKind::Exhausted => String::new(),
        _ => {
            let text =
                format!("{error}; run the repair again, to its end, before a server is started");
            return Error::new(error.kind(), text);
        }
    };
    let text = format!(
        "{error}; this was not taken for damage, and nothing was given up for it. Run the repair again, to its end, \
         before a server is started{then}"
    );
    Error::new(error.kind(), text)
}

impl<'a> Repair<'a> {
    pub(super) fn new(
        env: Env,
        layout: &'a Layout,
        catalog: Option<CatalogReader<'a>>,
        overlay: Option<Arc<OverlayFiles>>,
    ) -> Self {
        let (report, unnamed) = (RepairReport::default(), BTreeSet::new());
        let (next_id, forgot, empties, touched) = (0, false, false, false);
        Self { env, layout, catalog, report, next_id, forgot, unnamed, empties, touched, overlay }
    }
}

impl Repair<'_> {
    pub(super) fn files(&self) -> Arc<dyn Files> {
        Arc::clone(&self.env.files)
    }

    pub(super) fn did(&mut self, what: impl fmt::Display) {
        self.report.actions.push(what.to_string());
    }

    /// Comes before a change of what a start reads that nothing was set aside for: only its success is in the report.
    pub(super) fn touch(&mut self) {
        self.touched = true;
    }

    /// Says in the directory that a repair is under way, until one has repaired all: a start would remove what is yet to be set aside.
    fn run_to_its_end(&mut self) -> Result<()> {
        let (files, path) = (self.files(), self.layout.repair());
        let is_first = !files.exists(&path)?;
        if is_first {
            files.create(&path)?.sync()?;
            files.sync_dir(self.layout.root())?;
        }
        let unmark = || files.remove(&path).and_then(|()| files.sync_dir(self.layout.root()));
        if let Err(error) = self.run() {
            if is_first && !self.touched && !self.report.has_changes() {
                // What stays there keeps servers away for nothing, until the next repair.
                drop(unmark());
            }
            return Err(error);
        }
        // Else it was told what to do, and to run it again.
        if self.report.open.is_empty() { unmark() } else { Ok(()) }
    }

    fn run(&mut self) -> Result<()> {
        let files = self.files();
        self.identity()?;
        for dir in [
            self.layout.meta(),
            self.layout.log(),
            self.layout.changes(),
            self.layout.tablets(),
            self.layout.ssts(),
            self.layout.values(),
            self.layout.backups(),
        ] {
            files.create_dir_all(&dir)?;
        }
        let (tables, named) = match self.meta()? {
            Catalog::Known { tables, backups } => (Some(tables), Some(backups)),
            Catalog::Unknown => (None, None),
            // Without its catalog a server would take every tablet for one that no table has.
            Catalog::Lost => return Ok(()),
        };
        // An entry that cannot be read may name what nothing else does.
        let all_read = self.report.open.is_empty();
        let mut tablets = self.manifests(tables.as_deref(), all_read)?;
        let backups = self.backups(named.as_deref())?;
        if !self.report.before.is_whole() {
            self.number_from(&tablets, &backups)?;
            if let Some(tables) = &tables {
                self.recreate(tables, &mut tablets)?;
            }
            self.ssts(&tablets, &backups)?;
            self.log()?;
            self.changes()?;
        }
        self.log_originals_aside()?;
        let unknown = tablets.values().any(Option::is_none);
        if unknown {
            let text = "SSTs that no manifest names were left where they are: the tablets above \
                        may need them";
            self.report.open.push(text.to_owned());
            return Ok(());
        }
        if all_read {
            self.unnamed_tablets(tables.as_deref())?;
            self.unnamed_backups(named.as_deref())?;
        }
        self.unnamed_ssts()?;
        self.value_files()
    }

    fn identity(&mut self) -> Result<()> {
        let path = self.layout.identity();
        match identity::check(&self.env, self.layout) {
            Ok(()) => Ok(()),
            Err(error) if !is_damage(&error) => Err(error),
            Err(_) => {
                if self.env.files.exists(&path)? {
                    self.copy_aside(&path)?;
                }
                identity::write(&self.env, self.layout)?;
                self.did(format_args!("{}: written anew", path.display()));
                Ok(())
            }
        }
    }

    /// Numbers for new files lie beyond every number on disk.
    fn number_from(&mut self, tablets: &Tablets, backups: &Backups) -> Result<()> {
        let mut greatest = list_ssts(self.env.files.as_ref(), self.layout)?
            .last_key_value()
            .map_or(0, |(id, _)| *id);
        let values = list_values(self.env.files.as_ref(), self.layout)?;
        greatest = greatest.max(values.last_key_value().map_or(0, |(id, _)| *id));
        for (id, version) in tablets {
            greatest = greatest.max(id.0);
            if let Some(version) = version {
                let seqs = [version.last_seq(), version.flushed_seq()];
                greatest = seqs.into_iter().fold(greatest, u64::max);
                greatest = version.ssts().map(|s| s.id.max(s.max_seq)).fold(greatest, u64::max);
            }
        }
        for (id, list) in backups {
            greatest = greatest.max(id.0).max(list.greatest_number());
        }
        self.next_id = greatest.checked_add(1).ok_or_else(|| {
            let dir = self.layout.ssts();
            Error::corruption(dir.display(), 0, "the numbers of files are used up")
        })?;
        Ok(())
    }

    fn log(&mut self) -> Result<()> {
        let dir = self.layout.log();
        if !self.report.before.damage.iter().any(|finding| finding.file.starts_with(&dir)) {
            return Ok(());
        }
        let files = self.files();
        self.touch();
        self.tell_streams_of_the_log()?;
        let list = dir.join(log::present::NAME);
        if files.exists(&list)? {
            self.copy_aside(&list)?;
        }
        for (_, path) in log::present::missing_as_told(files.as_ref(), &dir)? {
            let path = path.display();
            self.report.lost.push(format!("{path}: the segment is missing: the writes in it"));
        }
        let mut segments = Vec::new();
        let mut repaired = log::repair::repair(files.as_ref(), &dir, &mut segments);
        for segment in segments {
            let file = segment.file.display();
            let damaged = || segment.damaged.iter().map(|r| format!("{} to {}", r.start, r.end));
            if !segment.damaged.is_empty() {
                let ranges = damaged().collect::<Vec<_>>().join(", ");
                self.report.lost.push(format!("{file}: bytes {ranges}: the writes in them"));
            }
            if segment.missing_bytes > 0 {
                let bytes = segment.missing_bytes;
                self.report.lost.push(format!("{file}: {bytes} bytes that are missing at its end"));
            }
            if let Some(aside) = &segment.set_aside {
                let kept = segment.batches_kept;
                self.did(format_args!("{file}: written anew with {kept} batches"));
                repaired = repaired.and(self.move_aside_from(aside, &segment.file));
            }
        }
        repaired?;
        if self.layout.first_segment(files.as_ref())?.is_none() {
            self.begin_log()?;
        }
        log::present::rewrite(files.as_ref(), &dir)
    }

    /// Moves originals of segments to `lost/` that an interrupted repair has left beside what it wrote anew.
    fn log_originals_aside(&mut self) -> Result<()> {
        for (path, was) in self.originals_in_log()? {
            self.move_aside_from(&path, &was)?;
        }
        Ok(())
    }

    /// Such originals, each with the name that it had.
    fn originals_in_log(&self) -> Result<Vec<(PathBuf, PathBuf)>> {
        let dir = self.layout.log();
        let names = super::list_files(self.env.files.as_ref(), &dir)?.into_iter();
        let original = |(name, _): (String, u64)| {
            let was = log::repair::original_of(&name)?;
            Some((dir.join(&name), dir.join(was)))
        };
        Ok(names.filter_map(original).collect())
    }

    /// What nothing names was set aside.
    pub(super) fn set_unnamed_aside(&mut self, what: impl fmt::Display) {
        if self.forgot {
            self.report.lost.push(what.to_string());
        } else {
            self.did(what);
        }
    }

    /// Tablets that no table has are set aside before a start removes them.
    fn unnamed_tablets(&mut self, tables: Option<&[super::TableTablets]>) -> Result<()> {
        let Some(tables) = tables else { return Ok(()) };
        let named: HashSet<TabletId> =
            tables.iter().flat_map(|table| table.tablets.iter().copied()).collect();
        for id in list_tablets(self.env.files.as_ref(), self.layout)? {
            if !named.contains(&id) {
                self.set_tablet_aside(id)?;
                self.set_unnamed_aside(format_args!(
                    "tablet {:016x}: no table of the catalog has it; its manifest and SSTs are in lost/",
                    id.0
                ));
            }
        }
        Ok(())
    }

    /// SSTs that no manifest or backup names are set aside before a start removes them.
    fn unnamed_ssts(&mut self) -> Result<()> {
        let mut named: BTreeSet<u64> = self.ssts_in_backups()?.into_iter().collect();
        for id in list_tablets(self.env.files.as_ref(), self.layout)? {
            if let Some(version) = self.version(id)? {
                named.extend(version.ssts().map(|sst| sst.id));
            }
        }
        for id in list_ssts(self.env.files.as_ref(), self.layout)?.into_keys() {
            if !named.contains(&id) {
                let path = self.layout.sst(id);
                self.move_aside(&path)?;
                self.set_unnamed_aside(format_args!(
                    "{}: nothing names it, and an SST does not say whose it is",
                    path.display()
                ));
            }
        }
        Ok(())
    }

    /// The names that a file may have in `lost/`, in the order in which they are given.
    fn lost_names(&self, path: &Path) -> impl Iterator<Item = PathBuf> + use<> {
        let inside = path.strip_prefix(self.layout.root()).unwrap_or(path);
        let target = self.layout.lost().join(inside);
        (0..LOST_NAMES_MAX).map(move |n| {
            let mut name = target.clone().into_os_string();
            if n > 0 {
                name.push(format!(".{n}"));
            }
            PathBuf::from(name)
        })
    }

    /// The copy of a file that an earlier run has made, where there is one that is still what the file is.
    fn copy_of(&self, path: &Path) -> Result<Option<PathBuf>> {
        let files = self.env.files.as_ref();
        for name in self.lost_names(path) {
            if !files.exists(&name)? {
                break;
            }
            // A copy that cannot be read is none.
            if is_copy(files, path, &name).unwrap_or(false) {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    /// Where in `lost/` a file belongs, durably, and under a name that is free.
    fn lost_name(&self, path: &Path) -> Result<PathBuf> {
        let files = self.env.files.as_ref();
        if let Some(dir) = self.lost_names(path).next().as_deref().and_then(Path::parent) {
            files.create_dir_all(dir)?;
            // From the inside out: a name is as durable as the directories that it stands in.
            for dir in dir.ancestors().take_while(|dir| dir.starts_with(self.layout.root())) {
                files.sync_dir(dir)?;
            }
        }
        for name in self.lost_names(path) {
            if !files.exists(&name)? {
                return Ok(name);
            }
        }
        let text = format!("{}: too many files of this name in it", self.layout.lost().display());
        Err(Error::new(ErrorKind::AlreadyExists, text))
    }

    /// Moves a file to `lost/`.
    pub(super) fn move_aside(&mut self, path: &Path) -> Result<()> {
        self.move_aside_from(path, path)
    }

    fn move_aside_from(&mut self, path: &Path, was: &Path) -> Result<()> {
        let target = self.lost_name(was)?;
        let files = self.env.files.as_ref();
        files.rename(path, &target)?;
        self.report.set_aside.push((was.to_path_buf(), target.clone()));
        for dir in [target.parent(), path.parent()].into_iter().flatten() {
            files.sync_dir(dir)?;
        }
        Ok(())
    }

    /// Copies a file to `lost/`, whole: its original keeps counting until a replacement does.
    pub(super) fn copy_aside(&mut self, path: &Path) -> Result<()> {
        let target = self.lost_name(path)?;
        if let Some(copy) = self.copy_of(path)? {
            self.report.set_aside.push((path.to_path_buf(), copy));
            return Ok(());
        }
        let files = self.env.files.as_ref();
        let mut partial = target.clone().into_os_string();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        if files.exists(&partial)? {
            files.remove(&partial)?;
        }
        // Under its name it is whole, whatever ends this before.
        self.copy(path, &partial).and_then(|()| files.rename(&partial, &target)).inspect_err(
            |_| {
                let _ = files.remove(&partial);
            },
        )?;
        if let Some(dir) = target.parent() {
            files.sync_dir(dir)?;
        }
        self.report.set_aside.push((path.to_path_buf(), target));
        Ok(())
    }

    /// Writes a copy of a file, durably but for its name. A dry run notes where its bytes are.
    fn copy(&self, from: &Path, to: &Path) -> Result<()> {
        match &self.overlay {
            Some(overlay) if overlay.copy_below(from, to)? => Ok(()),
            _ => copy(self.env.files.as_ref(), from, to),
        }
    }

    /// Removes a file of which there is a copy in `lost/`.
    pub(super) fn remove_copied(&self, path: &Path) -> Result<()> {
        let files = self.env.files.as_ref();
        files.remove(path)?;
        path.parent().map_or(Ok(()), |dir| files.sync_dir(dir))
    }

    /// A finding that stays, as text.
    pub(super) fn stays(&mut self, finding: &Finding, advice: &str) {
        self.report.open.push(format!("{finding}; {advice}"));
    }
}

/// Writes a copy of a file, durably but for its name.
fn copy(files: &dyn Files, from: &Path, to: &Path) -> Result<()> {
    let from = files.open(from)?;
    let len = from.len()?;
    let mut to = files.create(to)?;
    let mut at = 0;
    while at < len {
        let piece = (len - at).min(COPY_BYTES as u64) as usize;
        to.append(&from.read_at(at, piece)?)?;
        at += piece as u64;
    }
    to.sync()
}

/// Whether two files hold the same.
fn is_copy(files: &dyn Files, of: &Path, copy: &Path) -> Result<bool> {
    let (of, copy) = (files.open(of)?, files.open(copy)?);
    let len = of.len()?;
    let mut is_same = copy.len()? == len;
    let mut at = 0;
    while is_same && at < len {
        let piece = (len - at).min(COPY_BYTES as u64) as usize;
        is_same = of.read_at(at, piece)? == copy.read_at(at, piece)?;
        at += piece as u64;
    }
    Ok(is_same)
}
