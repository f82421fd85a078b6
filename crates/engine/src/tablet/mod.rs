//! The tablet: a contiguous row range of one table, one LSM tree.
//!
//! ```text
//!           apply ──► row lock ──► [writer lock: sequence + log queue + memtable] ──► durable and visible
//!                                                     │ full
//!                                                     ▼
//!   view: active memtable │ waiting memtables ──flush──► L0 ──compaction──► L1 .. L6
//! ```
//!
//! Readers load the `View` and the visible sequence without a lock, and see that the view is
//! still the tablet's afterwards: it then holds every record up to that sequence, and no dropped row that
//! was written anew by then.
//!
//! Four locks, taken in this order where more than one is held: `flushing` (one flush at a time),
//! `manifest` (one edit at a time, held over its sync), `jobs` (who claims what is to be done), `writer` (one insert or change of
//! the view at a time, held for microseconds). No lock spans tablets.

mod collector;
mod compact;
mod deletions;
mod drop_rows;
mod dues;
mod failures;
mod flush;
mod levels;
mod locked_rows;
mod locks;
mod looks;
pub(crate) mod memory;
mod merge;
pub(crate) mod moments;
mod named;
mod newest;
mod point;
mod read;
mod reclaim;
mod replay;
#[cfg(test)]
mod tests;
mod view;
mod write;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwapOption;
use tokio::sync::Notify;

use crate::cell::{RowRange, Seq};
use crate::compaction::pick::Busy;
use crate::compaction::{CompactionStats, ages};
use crate::core::Core;
use crate::error::{Error, ErrorKind, Result};
use crate::manifest::{Excised, SstRef, TabletManifest, Version, VersionEdit, wrote_nothing};
use crate::memtable::Memtable;
use crate::options::CompactionStyle;
use crate::schema::TabletSchema;
use crate::setbacks::Work;
use crate::sst::{FileId, FilterComparison, IndexMemory};
use crate::store::{Outputs, SstFile};

pub(crate) use replay::Replay;

pub(crate) use collector::Look;

pub(crate) use compact::Claim;

pub(crate) use drop_rows::whole_block_bytes;
pub(crate) use locked_rows::LockedRows;
pub use locked_rows::RowRoom;
pub use locks::RowLock;
pub use read::{ReadView, ScanOptions, Snapshot};

use locks::RowLocks;
use looks::Looks;
use memory::TabletShare;
use view::{Current, View};

/// A tablet's number, unique within a server and never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TabletId(pub u64);

/// Figures of one tablet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TabletStats {
    /// Bytes of its SSTs on disk.
    pub sst_bytes: u64,
    /// Number of its SSTs.
    pub sst_count: u64,
    /// SSTs by level.
    pub level_files: Vec<usize>,
    /// Sublevels of level 0: what a read looks into before it comes to level 1. Writes are refused where there are
    /// [`l0_stop_files`](crate::options::EngineOptions::l0_stop_files), or as many bytes as it says.
    pub sublevels: usize,
    /// Bytes that compactions still have to read and write, roughly, until every level is within its target.
    pub compaction_debt_bytes: u64,
    /// Bytes of its SSTs by level.
    pub level_bytes: Vec<u64>,
    /// Bytes of memory in its memtables.
    pub memtable_bytes: u64,
    /// Records in its SSTs and memtables, those hidden by others included.
    pub records: u64,
    /// Value files that its SSTs name.
    pub value_files: u64,
    /// Bytes of these on disk.
    pub value_file_bytes: u64,
    /// Of these bytes, what no SST names any more.
    pub value_garbage_bytes: u64,
}

impl TabletStats {
    /// Bytes of its data on disk: of SSTs, and of value files as far as SSTs name them.
    pub fn stored_bytes(&self) -> u64 {
        let values = self.value_file_bytes.saturating_sub(self.value_garbage_bytes);
        self.sst_bytes.saturating_add(values)
    }
}

/// A tablet. All methods are safe to call from any thread.
#[derive(Debug)]
pub struct Tablet {
    id: TabletId,
    range: RowRange,
    core: Arc<Core>,
    view: Current,
    schema: ArcSwapOption<TabletSchema>,
    locks: RowLocks,
    writer: Mutex<Writer>,
    manifest: Mutex<TabletManifest>,
    flushing: Mutex<flush::Retry>,
    moments: moments::Moments,
    /// Flushes that lacked something, or did not read back, and are tried again.
    flush_retries: AtomicU64,
    picks: Mutex<Picks>,
    jobs: Mutex<Jobs>,
    last_write_micros: AtomicU64,
    looks: Looks,
    /// For how long its changes are kept, in microseconds; 0 where they are not. Written under the writer lock.
    changes_kept_micros: AtomicU64,
    /// Rung when a change was written that is kept, and when there are to be no more.
    changed: Notify,
    /// Rung when there are to be no more changes that are kept.
    changes_ended: Notify,
    dropped: AtomicBool,
    /// The engine is closed: no edit of the manifest is written any more. Set under the manifest's lock.
    sealed: AtomicBool,
    /// What it takes of the memory for tablets, for as long as anybody holds it.
    _share: TabletShare,
}

/// State of whoever inserts.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    /// The key under construction.
    key: Vec<u8>,
}

/// What those who pick compactions know. One picks at a time, and that takes a while where there are many files: who serves
/// requests asks [`Jobs`], which are locked for moments.
#[derive(Debug, Default)]
struct Picks {
    /// Files that garbage collection has written, and when (monotonic micros): it leaves them alone for a while.
    collected: HashMap<FileId, u64>,
    /// When garbage collection finds something in its files.
    dues: dues::KnownDues,
    /// Merges that reads pay for.
    for_reads: looks::ForReads,
    /// When to look for garbage next (monotonic micros).
    collect_at: u64,
    /// Until when no SST is worth its rewriting for the value files that it names, though there is enough garbage in these.
    nothing_to_reclaim: Option<reclaim::Nothing>,
    /// When a small tablet may be rewritten for versions again whatever comes of it (monotonic micros).
    eager_at: u64,
    /// When to look for files of which everything has expired (monotonic micros).
    expired_at: u64,
    /// What the collector has looked at.
    collector: collector::Progress,
    /// The version for which no compaction by shape was free, and how often what is busy had changed then: until
    /// either changes, there is none. Not where a failure was what kept one, which ends with time.
    nothing_free: Option<(Arc<Version>, u64)>,
}

/// What background jobs of the tablet know of each other. Locked after [`Picks`].
#[derive(Debug, Default)]
struct Jobs {
    /// What running compactions keep from others.
    busy: Busy,
    /// Flushes and compactions that run, each by how many drops of rows there had been when it began.
    running: Vec<u64>,
    /// How many wait for them, to merge everything.
    awaited: usize,
    /// The drops since the oldest of them began.
    drops: VecDeque<Excised>,
    /// Drops before these.
    drops_before: u64,
    /// Files whose compaction failed: when to try again (monotonic micros), and how long it was to that the last time that they
    /// were at fault.
    failed_until: HashMap<FileId, (u64, u64)>,
    /// Files below level 0 whose rewriting for what it frees has failed, which nobody waits for: when to try again (monotonic micros), and how long
    /// that is after the last time.
    failed_for_space: HashMap<FileId, (u64, u64)>,
    /// Bytes of a column of level 0 for which the disk had no room, and until when none as large is tried (monotonic micros).
    column_too_large: Option<(u64, u64)>,
    /// Until when nothing of level 0 is merged that nobody waits for, since the disk had no room for that (monotonic micros).
    extras_at: u64,
    /// Small flushes whose merge has failed.
    failed_crowd: Option<failures::FailedCrowd>,
    /// How often what is busy has changed.
    busy_changes: u64,
}

impl Jobs {
    /// Whether a job has any of these files.
    fn any_under_way(&self, files: &[Arc<SstRef>]) -> bool {
        files.iter().any(|file| self.busy.files.contains(&file.id))
    }
}

impl Tablet {
    /// A tablet over its open manifest and what the log gave back.
    pub(crate) fn open(
        core: Arc<Core>,
        id: TabletId,
        manifest: TabletManifest,
        replay: Replay,
        share: TabletShare,
    ) -> Arc<Self> {
        let (active, waiting) = replay.finish();
        let version = manifest.version();
        if let Some((first, second)) = ages::doubt(version.level(0)) {
            tracing::warn!(
                tablet = id.0,
                first = first.id,
                second = second.id,
                "two SSTs of level 0 share rows, and their sequences do not tell which is newer; until they are \
                 compacted, which they are together, reads of the newest cell may show an older one"
            );
        }
        let mut files = HashMap::new();
        for file in version.ssts() {
            files.entry(file.id).or_insert_with(|| core.store.open(file.id));
        }
        let options = &core.options;
        let style = options.compaction;
        let view = View::new(active, waiting, Arc::clone(&version), files, options, style, None);
        view.load_pinned(options);
        Arc::new(Self {
            id,
            range: version.range().clone(),
            core,
            view: Current::new(view),
            schema: ArcSwapOption::empty(),
            locks: RowLocks::default(),
            writer: Mutex::default(),
            manifest: Mutex::new(manifest),
            flushing: Mutex::default(),
            moments: moments::Moments::default(),
            flush_retries: AtomicU64::new(0),
            picks: Mutex::default(),
            jobs: Mutex::default(),
            last_write_micros: AtomicU64::new(0),
            looks: Looks::default(),
            changes_kept_micros: AtomicU64::new(0),
            changed: Notify::new(),
            changes_ended: Notify::new(),
            dropped: AtomicBool::new(false),
            sealed: AtomicBool::new(false),
            _share: share,
        })
    }

    /// Its number.
    pub fn id(&self) -> TabletId {
        self.id
    }

    /// Its rows.
    pub fn range(&self) -> &RowRange {
        &self.range
    }

    /// Sets the families; compaction starts to act by it. Dropped families disappear at once. Blocks while an edit of the manifest is written.
    pub fn set_schema(&self, schema: Arc<TabletSchema>) {
        // Whoever asked by the rules so far whether cells may go installs it first: nothing goes by them once this has returned.
        let manifest = self.lock_manifest();
        self.schema.store(Some(schema));
        drop(manifest);
        let mut picks = self.picks();
        (picks.collect_at, picks.expired_at, picks.eager_at) = (0, 0, 0);
        picks.nothing_to_reclaim = None;
        picks.collected.clear();
        picks.collector.begin_anew();
        drop(picks);
        self.core.bell.ring();
    }

    /// Sets how its files are arranged; what is there is rearranged as compactions come by. Lasts until the engine
    /// closes: whoever opens tablets says it again.
    pub fn set_compaction(&self, style: CompactionStyle) {
        let manifest = self.lock_manifest();
        let writer = self.lock_writer();
        let view = self.view.load();
        if view.shape.style == style {
            return;
        }
        let (active, waiting) = (Arc::clone(&view.active), view.waiting.clone());
        let (version, files) = (Arc::clone(&view.version), view.files.as_ref().clone());
        let options = &self.core.options;
        let next = View::new(active, waiting, version, files, options, style, Some(&view));
        next.keep_pinned(options);
        self.view.store(next);
        drop((view, writer, manifest));
        // What is due is another question now.
        self.picks().nothing_free = None;
        self.core.bell.ring();
    }

    /// How its files are arranged.
    pub fn compaction(&self) -> CompactionStyle {
        self.view.load().shape.style
    }

    /// Figures.
    pub fn stats(&self) -> TabletStats {
        let view = self.view.load();
        let memtable_records: u64 = view.memtables().map(|m| m.len()).sum();
        TabletStats {
            sst_bytes: view.version.ssts().map(|f| f.bytes).sum(),
            sst_count: view.version.ssts().count() as u64,
            level_files: view.version.levels().iter().map(Vec::len).collect(),
            sublevels: view.shape.sublevels.len(),
            compaction_debt_bytes: view.shape.debt_bytes,
            level_bytes: view
                .version
                .levels()
                .iter()
                .map(|files| files.iter().map(|f| f.bytes).sum())
                .collect(),
            memtable_bytes: view.memtable_bytes(),
            records: memtable_records + view.version.ssts().map(|f| f.entries).sum::<u64>(),
            value_files: view.values.files.len() as u64,
            value_file_bytes: view.values.files.values().map(|file| file.frame_bytes()).sum(),
            value_garbage_bytes: view.values.files.values().map(|file| file.garbage_bytes()).sum(),
        }
    }

    /// The filters of its SSTs in two ways, for benchmarks; damaged SSTs are left out. Blocks.
    pub fn compare_filters(&self) -> Result<FilterComparison> {
        let view = self.view.load_full();
        let readers = view.files.values().filter_map(|file| file.reader().ok().map(Arc::clone));
        FilterComparison::new(readers.collect())
    }

    /// Memory for the indexes and filters of its SSTs.
    pub fn index_memory(&self) -> IndexMemory {
        let mut sum = IndexMemory::default();
        for file in self.view.load().files.values() {
            if let Ok(reader) = file.reader() {
                sum.add(&reader.index_memory());
            }
        }
        sum
    }

    /// The log's records of this tablet up to here need no replay.
    pub(crate) fn flushed_seq(&self) -> Seq {
        self.view.load().version.flushed_seq()
    }

    /// Memtables and SSTs of now; none of the files goes while this is held.
    pub(crate) fn hold(&self) -> Arc<View> {
        self.view.load_full()
    }

    pub(crate) fn version(&self) -> Arc<Version> {
        Arc::clone(&self.view.load().version)
    }

    /// Ends the tablet: its SSTs go, and the memory of its memtables is given back, when the last reader lets go of them, and who has
    /// what this returns: all that it held. Whoever holds the tablet from then on holds nothing, and finds nothing in it.
    #[must_use = "its SSTs must be there for as long as its manifest is"]
    pub(crate) fn doom(&self) -> Arc<View> {
        self.dropped.store(true, Ordering::Release);
        // An edit that is being written ends first; later ones are refused. Else it would fail for its
        // directory is gone, or bring files that nobody dooms.
        let mut manifest = self.lock_manifest();
        let (options, style) = (&self.core.options, self.compaction());
        // One that counts for nothing, since nobody writes to it.
        let (active, version) = (Memtable::new(0), manifest.end());
        let nothing = View::new(active, Vec::new(), version, HashMap::new(), options, style, None);
        let held = {
            let _writer = self.lock_writer();
            let held = self.view.load_full();
            self.view.store(nothing);
            held
        };
        for file in held.files.values() {
            file.disown();
        }
        drop(manifest);
        self.core.room.notify_waiters();
        self.tell_changes_ended();
        self.core.changes.forget(self.id);
        self.core.setbacks.forget(self.id);
        held
    }

    /// The time by which its cells and changes expire, in microseconds since 1970: what the wall clock reads, unless that is in doubt.
    pub fn expiry_micros(&self) -> i64 {
        self.core.expiry_micros()
    }

    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    pub(crate) fn changes_kept_micros(&self) -> &AtomicU64 {
        &self.changes_kept_micros
    }

    pub(crate) fn changed(&self) -> &Notify {
        &self.changed
    }

    pub(crate) fn changes_ended(&self) -> &Notify {
        &self.changes_ended
    }

    pub(crate) fn tell_changes_ended(&self) {
        self.changed.notify_waiters();
        self.changes_ended.notify_waiters();
    }

    /// What is kept of its changes, and so how its garbage goes, has changed: none of it is taken for looked at.
    pub(crate) fn collect_anew(&self) {
        self.picks().collector.begin_anew();
    }

    /// Refuses further edits of the manifest: the directory is about to be somebody else's.
    pub(crate) fn seal(&self) {
        let _manifest = self.lock_manifest();
        self.sealed.store(true, Ordering::Release);
    }

    fn is_sealed(&self) -> bool {
        self.sealed.load(Ordering::Acquire)
    }

    /// Whether a flush or compaction of it runs.
    pub(crate) fn is_busy(&self) -> bool {
        !self.jobs().running.is_empty()
    }

    pub(crate) fn is_dropped(&self) -> bool {
        self.dropped.load(Ordering::Acquire)
    }

    /// `NotFound` for what was begun before the tablet was dropped. Who reads asks after it has the view, since that of a dropped one has
    /// nothing.
    pub(crate) fn check_kept(&self) -> Result<()> {
        if self.is_dropped() {
            let text = "its table was deleted meanwhile: the tablet was dropped";
            return Err(Error::new(ErrorKind::NotFound, text));
        }
        Ok(())
    }

    pub(crate) fn lock_writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The turn of whoever picks.
    fn picks(&self) -> MutexGuard<'_, Picks> {
        self.picks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn lock_manifest(&self) -> MutexGuard<'_, TabletManifest> {
        self.manifest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn require_schema(&self) -> Result<Arc<TabletSchema>> {
        self.schema.load_full().ok_or_else(Self::no_schema)
    }

    /// What flushes and compactions go by. Where changes are kept, cells that rules let go are the
    /// [collector](collector)'s to delete.
    fn compaction_schema(&self) -> Result<Arc<TabletSchema>> {
        Ok(self.for_compactions(&self.require_schema()?))
    }

    /// The same of a schema.
    fn for_compactions(&self, schema: &Arc<TabletSchema>) -> Arc<TabletSchema> {
        if self.changes_kept().is_some() && schema.has_user_rules() {
            Arc::new(schema.without_user_rules())
        } else {
            Arc::clone(schema)
        }
    }

    /// Whether the outputs of a flush or compaction that went by `schema` must not be installed: it has taken cells away, and they might
    /// have stayed by the rules that have been set since; or nothing tells of them, and changes are kept since. The caller holds the
    /// manifest's lock.
    fn lacks_what_is_kept(&self, schema: &TabletSchema, stats: &CompactionStats) -> bool {
        stats.collected + stats.buried > 0
            && self.compaction_schema().is_ok_and(|now| !schema.has_rules_of(&now))
    }

    fn no_schema() -> Error {
        Error::new(ErrorKind::ReadOnly, "the tablet was not given its schema yet")
    }

    /// Writes an edit and puts the version that it makes before the readers. `outputs` are the files that
    /// it adds; `flushed` memtables leave, and dropped ranges that hide nothing in those that stay. An edit whose outcome is not known is [in doubt](Error::in_doubt), makes the engine
    /// read-only, and leaves the files to the next start, which knows; where it was not written, they go.
    fn install(
        &self,
        manifest: &mut TabletManifest,
        mut edit: VersionEdit,
        outputs: Outputs,
        flushed: usize,
    ) -> Result<()> {
        let closed = || Error::new(ErrorKind::Closed, "the engine is closed");
        let open = if self.is_sealed() { Err(closed()) } else { Ok(()) };
        if let Err(error) = self.check_kept().and(open) {
            outputs.discard(&self.core.store);
            return Err(error);
        }
        self.forget_drops(&mut edit, &manifest.version(), flushed);
        let version = match manifest.append(&edit) {
            Ok(version) => version,
            Err(error) => {
                if !error.may_pass() {
                    self.core.fail(&error);
                }
                if !wrote_nothing(&error) {
                    return Err(error.in_doubt());
                }
                outputs.discard(&self.core.store);
                return Err(error);
            }
        };
        // All but the memtables changes under the manifest's lock alone: what takes long, for a tablet of many files,
        // is done before writers are held up.
        let view = self.view.load_full();
        let mut files = HashMap::with_capacity(view.files.len() + outputs.ssts.len());
        let mut known: HashMap<FileId, Arc<SstFile>> =
            view.files.iter().map(|(id, file)| (*id, Arc::clone(file))).collect();
        known.extend(outputs.ssts.into_iter().map(|file| (file.id(), file)));
        for file in version.ssts() {
            if let Some(open) = known.remove(&file.id) {
                files.insert(file.id, open);
            }
        }
        let (active, options, style) =
            (Arc::clone(&view.active), &self.core.options, view.shape.style);
        let has_level_zero = !version.level(0).is_empty();
        let next = View::new(active, Vec::new(), version, files, options, style, Some(&view));
        next.keep_pinned(options);
        {
            let _writer = self.lock_writer();
            let view = self.view.load();
            let waiting = view.waiting.get(flushed..).unwrap_or_default().to_vec();
            self.view.store(next.with_memtables(Arc::clone(&view.active), waiting));
        }
        if !has_level_zero {
            // What kept it from being emptied is over, whatever did it.
            self.core.setbacks.done(Work::LevelZero, self.id);
        }
        for gone in known.values() {
            gone.disown();
        }
        Ok(())
    }
}
