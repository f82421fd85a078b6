//! What a reader holds: memtables and SSTs of one moment, immutable as a set. Readers load it without a
//! lock and keep it alive; flushes and compactions put a new one in its place.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use arc_swap::{ArcSwap, Guard};

use super::levels::Levels;
use super::named::{NamedFiles, Names};
use crate::cell::Seq;
use crate::compaction::shape::{Contents, Shape};
use crate::error::{Error, ErrorKind, Result};
use crate::manifest::{Excised, SstRef, Version};
use crate::memtable::Memtable;
use crate::options::{CompactionStyle, EngineOptions};
use crate::sst::{FileId, SstProperties, SstReader};
use crate::store::SstFile;

/// The view of now, which its tablet's writer replaces.
#[derive(Debug)]
pub(super) struct Current {
    view: ArcSwap<View>,
    /// Odd while it is being replaced, and another even number afterwards.
    changes: AtomicU64,
}

impl Current {
    pub(super) fn new(view: View) -> Self {
        Self { view: ArcSwap::from_pointee(view), changes: AtomicU64::new(0) }
    }

    /// It, with no reference counted: readers on all cores do not write to one cache line.
    #[inline]
    pub(super) fn load(&self) -> Guard<Arc<View>> {
        self.view.load()
    }

    /// The same, to be held for longer.
    pub(super) fn load_full(&self) -> Arc<View> {
        self.view.load_full()
    }

    /// Puts another one in its place. One at a time: under the writer's lock.
    pub(super) fn store(&self, view: View) {
        let changes = self.changes.load(Ordering::Relaxed);
        self.changes.store(changes.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        self.view.store(Arc::new(view));
        self.changes.store(changes.wrapping_add(2), Ordering::Release);
    }

    /// The view at the moment at which `seq` was taken, which whoever made it visible has done with Release, and is taken with Acquire:
    /// what was written since the view was replaced is in it, or not up to that.
    #[inline]
    pub(super) fn load_with(&self, seq: impl Fn() -> Seq) -> (Guard<Arc<View>>, Seq) {
        let changes = self.changes.load(Ordering::Acquire);
        let (view, taken) = (self.view.load(), seq());
        // To load a view takes locked instructions, of which a cached read has few.
        if changes.is_multiple_of(2) && self.changes.load(Ordering::Relaxed) == changes {
            return (view, taken);
        }
        // Views change a few times a second at most.
        loop {
            let (view, taken) = (self.view.load(), seq());
            if Arc::ptr_eq(&view, &self.view.load()) {
                return (view, taken);
            }
        }
    }
}

/// The open files of a version.
pub(crate) type OpenFiles = HashMap<FileId, Arc<SstFile>>;

/// The open file of an SST, of those that are open.
pub(super) fn open_file(files: &OpenFiles, id: FileId) -> Result<&Arc<SstFile>> {
    files.get(&id).ok_or_else(|| {
        let text = format!("SST {id:016x} is in the manifest but not open");
        Error::new(ErrorKind::NotFound, text)
    })
}

/// Memtables and SSTs of a tablet at one moment.
#[derive(Debug)]
pub(crate) struct View {
    /// Takes writes.
    pub(crate) active: Arc<Memtable>,
    /// Wait for their flush, oldest first.
    pub(crate) waiting: Vec<Arc<Memtable>>,
    /// The live SSTs by level.
    pub(crate) version: Arc<Version>,
    /// The open file of every SST in `version`.
    pub(crate) files: Arc<OpenFiles>,
    /// The same, arranged for point reads.
    pub(super) levels: Arc<Levels>,
    /// What compaction thinks of the version.
    pub(crate) shape: Arc<Shape>,
    /// See [`Shape::unrefused_bytes`].
    pub(super) unrefused_bytes: u64,
    /// The value files that these name.
    pub(crate) values: NamedFiles,
    /// Whether an SST may have tombstones over cells of more than one timestamp.
    wide_tombstones: bool,
    /// See [`View::excised`].
    excised: Vec<Excised>,
}

/// Tells of dropped ranges whether they hide something in these memtables. What is written to those later is newer than ranges that
/// were dropped before.
pub(super) fn hides_in<'a>(
    memtables: impl IntoIterator<Item = &'a Arc<Memtable>>,
) -> impl Fn(&Excised) -> bool {
    let ranges = memtables.into_iter().filter_map(|memtable| memtable.seq_range());
    let oldest = ranges.map(|(first, _)| first).min();
    move |excised| oldest.is_some_and(|oldest| oldest <= excised.seq)
}

/// Those of a version that do.
fn excised_in<'a>(
    version: &Version,
    memtables: impl IntoIterator<Item = &'a Arc<Memtable>>,
) -> Vec<Excised> {
    let all = version.excised();
    if all.is_empty() {
        return Vec::new();
    }
    let hides = hides_in(memtables);
    all.iter().filter(|excised| hides(excised)).cloned().collect()
}

/// What is in the part of a file that a reference shows, where things lie evenly.
fn contents_of(reader: &SstReader, sst: &SstRef) -> Contents {
    let properties = reader.properties();
    let whole = reader.data_bytes().max(1);
    let part = |count: u64| {
        let shown = u128::from(count) * u128::from(sst.bytes.min(whole)) / u128::from(whole);
        u64::try_from(shown).unwrap_or(count)
    };
    Contents {
        rows: part(properties.rows),
        cells: part(properties.cells),
        row_tombstones: part(
            properties.row_tombstones.saturating_add(properties.family_tombstones),
        ),
        cell_tombstones: part(
            properties.column_tombstones.saturating_add(properties.cell_tombstones),
        ),
        value_bytes: part(reader.value_file_bytes()),
    }
}

/// What those of the open files name that `others` has not.
fn names_of<'a>(files: &'a OpenFiles, others: &'a OpenFiles) -> impl Iterator<Item = &'a Names> {
    let alone = files.iter().filter(|(id, _)| !others.contains_key(id));
    alone.map(|(_, file)| file.value_files())
}

impl View {
    /// A view of memtables and the files of a version, after another one where there was one.
    pub(super) fn new(
        active: Arc<Memtable>,
        waiting: Vec<Arc<Memtable>>,
        version: Arc<Version>,
        files: OpenFiles,
        options: &EngineOptions,
        style: CompactionStyle,
        before: Option<&Self>,
    ) -> Self {
        let contents = |sst: &SstRef| {
            let reader = files.get(&sst.id).and_then(|file| file.reader().ok());
            reader.map_or_else(Contents::default, |reader| contents_of(reader, sst))
        };
        let shape = Arc::new(Shape::new(&version, options, style, &contents));
        let unrefused_bytes = shape.unrefused_bytes(before.map(|before| before.unrefused_bytes));
        let levels = Arc::new(Levels::new(&shape, &version, &files));
        let values = match before {
            None => NamedFiles::default().after(names_of(&files, &OpenFiles::new()), []),
            Some(before) => before
                .values
                .after(names_of(&files, &before.files), names_of(&before.files, &files)),
        };
        // One that cannot be opened may have anything.
        let mut readers = files.values().map(|file| file.reader());
        let wide_tombstones =
            readers.any(|r| r.map_or(true, |r| r.properties().has_wide_tombstones()));
        let excised = excised_in(&version, waiting.iter().chain([&active]));
        Self {
            active,
            waiting,
            version,
            files: Arc::new(files),
            levels,
            shape,
            unrefused_bytes,
            values,
            wide_tombstones,
            excised,
        }
    }

    /// The same files under other memtables.
    pub(super) fn with_memtables(
        &self,
        active: Arc<Memtable>,
        waiting: Vec<Arc<Memtable>>,
    ) -> Self {
        Self {
            excised: excised_in(&self.version, waiting.iter().chain([&active])),
            active,
            waiting,
            version: Arc::clone(&self.version),
            files: Arc::clone(&self.files),
            levels: Arc::clone(&self.levels),
            shape: Arc::clone(&self.shape),
            unrefused_bytes: self.unrefused_bytes,
            values: self.values.clone(),
            wide_tombstones: self.wide_tombstones,
        }
    }

    /// Reads the indexes and filters of the upper levels, and keeps them. Blocks.
    pub(super) fn load_pinned(&self, options: &EngineOptions) {
        let pinned = |sst: &&Arc<SstRef>| self.shape.at_rest.pins(sst.level, options.pinned_levels);
        for sst in self.version.ssts().filter(pinned) {
            if let Some(file) = self.files.get(&sst.id) {
                file.pin();
            }
        }
    }

    /// Has the indexes and filters of the upper levels stay in memory, and the others come and go, now that the levels are
    /// as they are: a file may have moved down, and the base level with what the last one holds. Does no I/O.
    pub(super) fn keep_pinned(&self, options: &EngineOptions) {
        for sst in self.version.ssts() {
            if let Some(file) = self.files.get(&sst.id) {
                file.keep_pinned(self.shape.at_rest.pins(sst.level, options.pinned_levels));
            }
        }
    }

    /// Whether there may be tombstones over cells of more than one timestamp.
    pub(crate) fn may_have_wide_tombstones(&self) -> bool {
        self.wide_tombstones || self.memtables().any(|memtable| memtable.has_cell_tombstones())
    }

    /// The dropped ranges that hide something in memory. Those beside them in the version are for repairs: reads need not look at them.
    pub(crate) fn excised(&self) -> &[Excised] {
        &self.excised
    }

    /// All memtables, newest first.
    pub(crate) fn memtables(&self) -> impl Iterator<Item = &Arc<Memtable>> {
        std::iter::once(&self.active).chain(self.waiting.iter().rev())
    }

    /// The open file of an SST.
    pub(crate) fn file(&self, id: FileId) -> Result<&Arc<SstFile>> {
        open_file(&self.files, id)
    }

    /// What is known of an SST without reading it; `None` where it is not open.
    pub(super) fn properties(&self, sst: &SstRef) -> Option<&SstProperties> {
        self.files.get(&sst.id)?.reader().ok().map(|reader| reader.properties())
    }

    /// Bytes of memory in memtables.
    pub(crate) fn memtable_bytes(&self) -> u64 {
        self.memtables().map(|m| m.allocated_bytes()).sum()
    }
}
