//! The engine: a directory, its log, its tablets and its background work.
//!
//! Opening goes in this order: lock the directory, check its format, open the meta store, every
//! tablet's manifest and every backup, make sure that every tablet of the catalog is there, put the clock beyond every
//! sequence on disk, replay the log into memtables, remove files that neither a manifest nor a backup names. Nothing
//! is removed by a start that fails: a lost catalog or manifest costs nothing else. Then the owner
//! gives each tablet its schema and calls [`Engine::start`].

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use crate::background;
use crate::backup::Backups;
use crate::cache::{BlockCache, QuickBlockCache};
use crate::catalog_store::{CatalogStore, check_catalog};
use crate::cell::{RowRange, SEQ_MAX, Seq};
use crate::changes::{ChangeFigures, ChangeLog, commit_micros};
use crate::core::{Core, EngineMetrics};
use crate::error::{Error, ErrorKind, Result};
use crate::identity;
use crate::io::{Clock, Env, Files, IoFigures, JoinHandle};
use crate::layout::{Layout, parse_number};
use crate::leftovers::{Leftovers, Named, left_by_start, remove_tablet, remove_tablet_dir};
use crate::log::{CommitPipeline, Hlc, LocalLog, LogFigures, LogOptions, ReplayProgress};
use crate::manifest::{
    LocalMetaStore, META_BYTES_MAX, META_RESERVE_BYTES, MetaStore, TabletManifest, VersionEdit,
};
use crate::memtable::MemtableMemory;
use crate::offline::{CatalogReader, of_start};
use crate::sst::IndexMemory;
use crate::store::{SstFile, SstStore};
use crate::tablet::memory::TabletShare;
use crate::tablet::{Replay, Tablet, TabletId, TabletStats};

use crate::options::JOB_BYTES;
use crate::pressure::{Pressure, Refusals};

pub use crate::options::{
    CompactionStyle, CompressionPolicy, EngineOptions, FilterPolicy, SEPARATE_VALUES_BYTES,
    SyncMode, TIERED_RUNS_MAX, TIERED_SPACE_PERCENT,
};

/// Bytes of log from which a replay reports its progress: below, it is over in an instant.
const REPLAY_TOLD_BYTES: u64 = 32 << 20;

/// Sequences, which number files too, that a start wants to be left: they last for decades of a million writes a second. What is numbered
/// beyond is there by mistake, and nothing could be written behind it.
const SEQS_LEFT_MIN: u64 = 1 << 50;

/// Whether the engine takes writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// All is well.
    Serving,
    /// Writes wait or are refused, and go on by themselves once the system has what they take, as room on the disk.
    Held {
        /// What does not get on.
        by: HeldBy,
        /// Why.
        reason: String,
    },
    /// A failed write or sync made it read-only; the reason.
    ReadOnly(String),
}

impl Health {
    /// Whether nothing is new to somebody who knows `other`: a reason may have other figures each time.
    pub fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Held { by, .. }, Self::Held { by: other, .. }) => by == other,
            _ => self == other,
        }
    }
}

/// What does not get on, so that writes wait or are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldBy {
    /// The commit log has no next segment, or its disk is full.
    Log,
    /// A flush fails, and memory for writes is full.
    Flush,
    /// A table's compactions fail, and its level 0 is full.
    Compaction,
}

impl HeldBy {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Log, Self::Flush, Self::Compaction];

    /// A name for metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Flush => "flush_fails",
            Self::Compaction => "compaction_fails",
        }
    }
}

/// What opening found.
#[derive(Debug, Clone, Default)]
pub struct OpenSummary {
    /// Records that were replayed from the log.
    pub replayed_records: u64,
    /// Bytes of log that were read.
    pub replayed_bytes: u64,
    /// The torn tail that was cut from the log, as text, where there was one: a write that was under
    /// way when the machine stopped and that nobody was told had succeeded.
    pub torn_tail: Option<String>,
    /// Files that nothing named: removed, or to be removed later where that could not be.
    pub orphans_removed: u64,
    /// What the clock read when the newest sequence on disk was handed out; none where there is none.
    pub newest_micros: Option<i64>,
}

/// Bytes of an engine's memory, apart from its block cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EngineMemory {
    /// Memtables: those that take writes, that wait for their flush, and that were flushed and are still read.
    pub memtables: u64,
    /// Batches queued for the log, being synced, or waiting for either.
    pub log_queue: u64,
    /// The newest changes of tablets with a change stream.
    pub changes: u64,
    /// Flushes and parts of compactions that run, each at the most that it takes.
    pub jobs: u64,
}

/// The engine.
pub struct Engine {
    core: Arc<Core>,
    meta: Arc<LocalMetaStore>,
    cache: Arc<dyn BlockCache>,
    tablets: RwLock<BTreeMap<TabletId, Arc<Tablet>>>,
    backups: Backups,
    leftovers: Leftovers,
    threads: Mutex<Vec<Box<dyn JoinHandle>>>,
    summary: OpenSummary,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("root", &self.core.layout.root()).finish()
    }
}

impl Engine {
    /// Opens a directory, creating it if needed, and replays its log. Blocks. `Locked` where another
    /// process has it; `Corruption`, naming file and offset, where the log, a manifest or the meta store
    /// is damaged, and where the log or the meta store is missing beside data. A damaged SST does not keep the engine from opening: its rows fail when read.
    /// `InvalidArgument` where the options do not fit together, and where a newer version wrote a file.
    pub fn open(env: Env, dir: &Path, options: EngineOptions) -> Result<Arc<Self>> {
        Self::open_knowing(env, dir, options, None).map_err(of_start)
    }

    /// The same, where `catalog` tells which tablets the meta store names: `Corruption` too, with nothing removed, where
    /// one of them is not there.
    pub fn open_with_catalog(
        env: Env,
        dir: &Path,
        options: EngineOptions,
        catalog: CatalogReader<'_>,
    ) -> Result<Arc<Self>> {
        Self::open_knowing(env, dir, options, Some(catalog)).map_err(of_start)
    }

    fn open_knowing(
        env: Env,
        dir: &Path,
        options: EngineOptions,
        catalog: Option<CatalogReader<'_>>,
    ) -> Result<Arc<Self>> {
        options.validate()?;
        let layout = Layout::new(dir);
        let files = Arc::clone(&env.files);
        create_root(files.as_ref(), dir)?;
        let lock = files.lock(&layout.lock()).map_err(|error| match error.kind() {
            ErrorKind::Locked => Error::new(
                ErrorKind::Locked,
                format!(
                    "{} is in use by another tepui process; stop it, or use another directory",
                    dir.display()
                ),
            ),
            _ => error,
        })?;
        if let Some(unfinished) = layout.unfinished_repair(files.as_ref())? {
            return Err(unfinished);
        }
        identity::check_or_create(&env, &layout)?;
        for sub in [
            layout.meta(),
            layout.log(),
            layout.changes(),
            layout.tablets(),
            layout.ssts(),
            layout.values(),
            layout.backups(),
        ] {
            files.create_dir_all(&sub)?;
        }
        files.sync_dir(dir)?;
        let data = || layout.first_data(files.as_ref());
        let meta = LocalMetaStore::open_beside(Arc::clone(&files), &layout.meta(), &data)?;
        let meta = Arc::new(meta);
        if let Some(lost) = layout.lost_log(files.as_ref())? {
            return Err(lost);
        }
        let (manifests, unfinished) = open_manifests(&env, &layout)?;
        let mut backups = Backups::read(files.as_ref(), &layout)?;
        let lists_lost = match catalog {
            Some(catalog) => {
                check_catalog(meta.as_ref(), catalog, &manifests, &backups.whole, &layout)?
            }
            None => false,
        };
        let lists_lost = lists_lost || !backups.damaged.is_empty();
        // Sequences on disk are all in the past, or order would be lost: file and tablet numbers too.
        let mut floor = 0;
        let mut named = HashSet::new();
        for (id, manifest) in &manifests {
            let version = manifest.version();
            floor = floor.max(id.0).max(version.last_seq()).max(version.flushed_seq());
            for file in version.ssts() {
                floor = floor.max(file.id).max(file.max_seq);
                named.insert(file.id);
            }
        }
        for (id, list) in &backups.whole {
            floor = floor.max(id.0).max(list.greatest_number());
            named.extend(list.ssts().into_keys());
        }
        // A backup's number is greater than all in its list.
        floor = backups.damaged.iter().map(|id| id.0).fold(floor, u64::max);
        let ssts = layout.ssts_there(files.as_ref())?;
        let values = layout.values_there(files.as_ref())?;
        floor = ssts.iter().chain(&values).copied().fold(floor, u64::max);
        let is_last = |id: &&u64| **id == floor;
        let sst = ssts.iter().find(is_last).map(|id| layout.sst(*id));
        let value = values.iter().find(is_last).map(|id| layout.value(*id));
        let backup = backups.damaged.iter().find(|id| id.0 == floor).map(|id| layout.backup(*id));
        check_floor(floor, &sst.or(value).or(backup).unwrap_or_else(|| dir.to_owned()))?;
        let lacks = named.iter().filter(|id| !ssts.contains(id)).count();
        if lacks > 0 {
            // What names them may be older than the files: then the others are what came after it.
            tracing::warn!(
                missing = lacks,
                "manifests name SSTs that are missing: files that nothing names are kept meanwhile; `tepui repair` sets them aside"
            );
        }
        let keeps_unnamed = lists_lost || lacks > 0;

        // Some file systems do not say; then it is a number by itself.
        let disk_bytes = files.disk_space(layout.root()).ok().flatten().map(|space| space.total);
        let bytes_max = options.change_log_bytes_max_on(disk_bytes);
        let changes = ChangeLog::open(files.as_ref(), &layout.changes(), bytes_max)?;
        let (after_segment, last_kept) = changes.newest();
        floor = floor.max(last_kept);
        check_floor(floor, &layout.changes())?;

        let log_options = LogOptions {
            after_segment,
            durable_through: last_kept,
            sync: options.sync,
            segment_bytes: options.log_segment_bytes,
            ..LogOptions::default()
        };
        // One memtable's memory is kept for the next, which takes that first.
        let memtables = MemtableMemory::keeping(options.memtable_bytes);
        let mut replays: BTreeMap<TabletId, Replay> = manifests
            .iter()
            .map(|(id, manifest)| {
                let flushed_seq = manifest.version().flushed_seq();
                let seed = env.rng.next_u64();
                let memory = memtables.clone();
                (*id, Replay::new(flushed_seq, options.memtable_bytes, seed, memory))
            })
            .collect();
        let mut said = 0;
        let (log, replayed) = LocalLog::open(
            &env,
            &layout.log(),
            log_options,
            &mut |tablet, first_seq, batch| {
                match replays.get_mut(&TabletId(tablet)) {
                    Some(replay) => replay.add(first_seq, &batch),
                    // The tablet was dropped after the record was written.
                    None => Ok(()),
                }
            },
            &mut |progress| progress_of_replay(&mut said, progress),
        )?;
        let floor = floor.max(replayed.max_seq);
        let hlc = Hlc::new(Arc::clone(&env.clock), floor);
        let recorded = replayed.max_seq.max(last_kept);
        let gate_bytes = options.gate_bytes();
        let pipeline = CommitPipeline::with_queue(Arc::new(log), hlc, recorded, gate_bytes)?;
        let cache: Arc<dyn BlockCache> = Arc::new(QuickBlockCache::with_options(options.cache()));
        let store = SstStore::new(env.clone(), layout.clone(), Arc::clone(&cache));
        let drafts = std::mem::take(&mut backups.drafts);
        let backups = Backups::open(backups, &store)?;
        let core = Core::new(env, layout, options, pipeline, store, changes, memtables);
        let core = Arc::new(core.holding(lock));
        let tablets: BTreeMap<TabletId, Arc<Tablet>> = manifests
            .into_iter()
            .filter_map(|(id, manifest)| {
                let replay = replays.remove(&id)?;
                let share = core.tablet_memory.take(manifest.version().range());
                Some((id, Tablet::open(Arc::clone(&core), id, manifest, replay, share)))
            })
            .collect();
        let leftovers = Leftovers::default();
        let end = || {
            check_files(tablets.values())?;
            backups.check_versions(&core.store)?;
            core.changes.keep_list(&core)?;
            // A start that is refused has removed nothing: what nothing names may be all that is left of what is damaged.
            for id in unfinished {
                if let Err(error) = remove_tablet(&core, id) {
                    left_by_start(
                        &core,
                        format_args!("the directory of tablet {:016x}", id.0),
                        error,
                    )?;
                    leftovers.add_tablet(&core, id, Named::default());
                }
            }
            for draft in drafts {
                core.store.remove_unfinished(draft);
            }
            let mut orphans = Vec::new();
            if !keeps_unnamed {
                let unnamed = ssts.iter().filter(|id| !named.contains(id));
                orphans.extend(unnamed.map(|id| core.layout.sst(*id)));
                orphans.extend(core.store.values().orphans()?);
            }
            let removed = orphans.len() as u64;
            for path in orphans {
                core.store.remove_unfinished(path);
            }
            // Last of all.
            meta.begin()?;
            Ok(removed)
        };
        // The log's thread runs by now.
        let orphans_removed = end().inspect_err(|_: &Error| core.stop())?;
        let summary = OpenSummary {
            replayed_records: replayed.records,
            replayed_bytes: replayed.bytes,
            torn_tail: replayed.torn.map(|torn| {
                let (file, at) = (torn.file.display(), torn.offset);
                format!("{file}: {} bytes at offset {at}", torn.bytes)
            }),
            orphans_removed,
            newest_micros: (floor > 0).then(|| commit_micros(floor)),
        };
        Ok(Arc::new(Self {
            core,
            meta,
            cache,
            tablets: RwLock::new(tablets),
            backups,
            leftovers,
            threads: Mutex::default(),
            summary,
        }))
    }

    /// What opening found.
    pub fn open_summary(&self) -> &OpenSummary {
        &self.summary
    }

    /// The wall clock is doubted: for `pause` from now on no change file goes for its age, and no cell expires that had not by
    /// the newest write that opening found. Called before [`Engine::start`].
    pub fn doubt_clock(&self, pause: Duration) {
        if let Some(newest_micros) = self.summary.newest_micros {
            self.core.wall_clock.doubt(newest_micros, pause);
        }
    }

    /// Has all that is written from now on come after this sequence, which somebody was given before the start: what only the
    /// catalog or a client knows, opening does not find.
    pub fn begin_after(&self, seq: Seq) {
        self.core.pipeline.hlc().observe(seq);
    }

    /// The newest sequence that was handed out: all that is written from now on comes after it.
    pub fn newest_seq(&self) -> Seq {
        self.core.pipeline.hlc().current()
    }

    /// What the clock read when the newest sequence was handed out, in microseconds since 1970. Later than what it reads now where
    /// it has gone back.
    pub fn newest_micros(&self) -> i64 {
        commit_micros(self.newest_seq())
    }

    /// The time of the wall clock in microseconds since 1970, unless it is in doubt: for [`CLOCK_DOUBT`](crate::limits::CLOCK_DOUBT) after
    /// it has jumped ahead, and as long as [`Engine::doubt_clock`] says. What expires by it has to wait.
    pub fn believed_micros(&self) -> Option<i64> {
        self.core.wall_clock.believed_micros()
    }

    /// Starts flushes, compactions and garbage collection (unless the options say that the owner runs
    /// them). Every tablet must have its schema: a tablet without one is not compacted.
    pub fn start(self: &Arc<Self>) -> Result<()> {
        if self.core.options.background {
            let started = background::start(self)?;
            // Only now may writers wait for what the threads do.
            self.core.background.store(true, Ordering::Release);
            self.threads.lock().unwrap_or_else(PoisonError::into_inner).extend(started);
        }
        Ok(())
    }

    /// Creates an empty tablet, durably. A tablet that the catalog does not name is removed by
    /// [`Engine::retain_tablets`] at the next start. `Overloaded` as for [`Engine::create_tablets`].
    pub fn create_tablet(&self, range: RowRange) -> Result<Arc<Tablet>> {
        let share = self.room_for_tablets([&range].into_iter())?;
        self.create_tablet_with(range, &VersionEdit::default(), share)
    }

    /// Creates empty tablets, durably: all of them, or, after an error, none. `Overloaded`, before any is made, where tablets would take more
    /// memory than [`EngineOptions::tablets_bytes_max`].
    pub fn create_tablets(&self, ranges: Vec<RowRange>) -> Result<Vec<Arc<Tablet>>> {
        let room = self.room_for_tablets(ranges.iter())?;
        let empty = |range| (range, VersionEdit::default());
        self.create_tablets_in(room, ranges.into_iter().map(empty))
    }

    /// Memory for tablets that are to be made.
    pub(crate) fn room_for_tablets<'a>(
        &self,
        ranges: impl Iterator<Item = &'a RowRange>,
    ) -> Result<TabletShare> {
        self.core.tablet_memory.reserve(ranges)
    }

    /// Creates tablets, each with what it begins with, in the room for all of them.
    pub(crate) fn create_tablets_in(
        &self,
        mut room: TabletShare,
        new: impl Iterator<Item = (RowRange, VersionEdit)>,
    ) -> Result<Vec<Arc<Tablet>>> {
        let mut tablets: Vec<Arc<Tablet>> = Vec::new();
        for (range, initial) in new {
            let share = room.part(&range);
            match self.create_tablet_with(range, &initial, share) {
                Ok(tablet) => tablets.push(tablet),
                Err(error) => {
                    for tablet in tablets {
                        // What cannot be removed is tried again.
                        drop(self.drop_tablet(tablet.id()));
                    }
                    return Err(error);
                }
            }
        }
        Ok(tablets)
    }

    /// Creates a tablet, durably, that begins with `initial`: with SSTs that are there, and kept by somebody.
    fn create_tablet_with(
        &self,
        range: RowRange,
        initial: &VersionEdit,
        share: TabletShare,
    ) -> Result<Arc<Tablet>> {
        if range.is_empty() {
            return Err(Error::new(ErrorKind::InvalidArgument, "a tablet needs a row range"));
        }
        self.core.check_writable()?;
        let present = self.core.store.open_present(&initial.add)?;
        let created = self.create_tablet_of(range, initial, share);
        present.discard(&self.core.store);
        created
    }

    fn create_tablet_of(
        &self,
        range: RowRange,
        initial: &VersionEdit,
        share: TabletShare,
    ) -> Result<Arc<Tablet>> {
        let files = &self.core.env.files;
        let in_dir = self.core.in_dir()?;
        let (id, dir) = loop {
            let id = TabletId(self.core.pipeline.hlc().reserve(1));
            let dir = self.core.layout.tablet(id);
            // What a crash left of one, and could not be removed, has its number where the clock was set back.
            if !files.exists(&dir)? {
                break (id, dir);
            }
        };
        files.create_dir_all(&dir)?;
        let create = || {
            let manifest = TabletManifest::create(Arc::clone(files), &dir, id, range, initial)?;
            let synced = self.core.sync_dir(&self.core.layout.tablets());
            synced.map_err(|error| self.core.failed().unwrap_or(error))?;
            Ok(manifest)
        };
        let manifest = create().inspect_err(|_: &Error| {
            // Nobody knows of it. What cannot be removed now is by the next start.
            let _ = remove_tablet_dir(files.as_ref(), &dir);
        })?;
        drop(in_dir);
        let seed = self.core.env.rng.next_u64();
        let memory = self.core.memtables.clone();
        let replay = Replay::new(0, self.core.options.memtable_bytes, seed, memory);
        let tablet = Tablet::open(Arc::clone(&self.core), id, manifest, replay, share);
        self.write_tablets().insert(id, Arc::clone(&tablet));
        Ok(tablet)
    }

    /// The tablet, if there is one.
    pub fn tablet(&self, id: TabletId) -> Option<Arc<Tablet>> {
        self.tablets.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    /// All tablets, by number.
    pub fn tablets(&self) -> Vec<Arc<Tablet>> {
        self.tablets.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    pub(crate) fn tablet_count(&self) -> usize {
        self.tablets.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Removes a tablet and its data. Reads under way go on to their end, and keep what they read; who holds the tablet keeps nothing.
    /// After an error the tablet is gone, and its data is there until it can be removed, which is tried again.
    pub fn drop_tablet(&self, id: TabletId) -> Result<()> {
        let Some(tablet) = self.write_tablets().remove(&id) else { return Ok(()) };
        // Its SSTs are there until its manifest is gone for good: a start that finds that one without them does not know which value
        // files they named.
        let held = tablet.doom();
        let removed = self.core.in_dir().and_then(|_in_dir| remove_tablet(&self.core, id));
        if removed.is_err() {
            let named = Named::keep(&self.core.store, held.files.values().map(Arc::as_ref));
            self.leftovers.add_tablet(&self.core, id, named);
        }
        drop(held);
        // Only now is the memory of its memtables there.
        self.core.room.notify_waiters();
        removed
    }

    /// Removes every tablet that is not listed. One that cannot be removed now is tried again; an error where the engine has failed for it.
    pub fn retain_tablets(&self, keep: &[TabletId]) -> Result<()> {
        let keep: HashSet<TabletId> = keep.iter().copied().collect();
        let mut unnamed = self.tablets();
        unnamed.retain(|tablet| !keep.contains(&tablet.id()));
        if !unnamed.is_empty() {
            let of_tablet = |stats: TabletStats| stats.sst_bytes + stats.value_file_bytes;
            tracing::warn!(
                tablets = unnamed.len(),
                bytes = unnamed.iter().map(|tablet| of_tablet(tablet.stats())).sum::<u64>(),
                "removing tablets that no table has: a crash left them, or the catalog forgot them"
            );
        }
        for id in unnamed.into_iter().map(|tablet| tablet.id()) {
            if let Err(error) = self.drop_tablet(id) {
                left_by_start(&self.core, format_args!("tablet {:016x}", id.0), error)?;
            }
        }
        Ok(())
    }

    /// The durable key-value store for the catalog. A commit that fails on the disk makes the engine read-only.
    pub fn meta(&self) -> Arc<dyn MetaStore> {
        Arc::new(CatalogStore::new(Arc::clone(&self.core), Arc::clone(&self.meta)))
    }

    /// Bytes of the catalog, and from how many on what creates something there is refused.
    pub fn catalog_bytes(&self) -> (u64, u64) {
        (self.meta.bytes(), META_BYTES_MAX - META_RESERVE_BYTES)
    }

    /// Bytes of memory that tablets take by being there, roughly, those of deleted tables included; and from how many on no more are made.
    pub fn tablet_bytes(&self) -> (u64, u64) {
        let memory = &self.core.tablet_memory;
        (memory.bytes(), memory.bytes_max())
    }

    /// The clock that the engine was given.
    pub fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.core.env.clock)
    }

    /// The seams that the engine was given.
    pub fn env(&self) -> &Env {
        &self.core.env
    }

    /// Whether writes are taken.
    pub fn health(&self) -> Health {
        let health = self.core.health();
        if health != Health::Serving {
            return health;
        }
        let failing = self.core.setbacks.tablets();
        let mut tablets = failing.into_iter().filter_map(|id| self.tablet(id));
        tablets.find_map(|tablet| tablet.held()).unwrap_or(Health::Serving)
    }

    /// Counters of reads; `None` where the files do not count them.
    pub fn io_figures(&self) -> Option<IoFigures> {
        self.core.env.files.metrics().map(|metrics| metrics.figures())
    }

    /// Bytes of obsolete SSTs that are yet to be removed.
    pub fn obsolete_bytes(&self) -> u64 {
        self.core.store.removable_bytes()
    }

    /// Counters of background work.
    pub fn metrics(&self) -> &EngineMetrics {
        &self.core.metrics
    }

    /// Counters of the commit log.
    pub fn log_figures(&self) -> LogFigures {
        self.core.pipeline.log().figures()
    }

    /// Figures of what is kept for change streams.
    pub fn change_figures(&self) -> ChangeFigures {
        self.core.changes.figures()
    }

    /// Writes that were refused because background work is behind.
    pub fn refusals(&self) -> &Refusals {
        &self.core.refusals
    }

    /// The pressure that all tablets share; a [tablet](Tablet::pressure) may have more.
    pub fn pressure(&self) -> Pressure {
        self.core.pressure()
    }

    /// Whether writes are refused, or held up, for what old reads may hold: memory of memtables that were flushed, whatever else is
    /// further behind; and space of files that are obsolete, where the disk has none.
    pub fn lacks_what_reads_hold(&self) -> bool {
        self.core.pressure_of_memory().refused_share() > 0.0 || self.core.why_no_room().is_some()
    }

    /// Bytes of memory by what they are for, apart from the block cache.
    pub fn memory(&self) -> EngineMemory {
        EngineMemory {
            memtables: self.core.memtables.bytes() + self.core.memtables.spare_bytes(),
            log_queue: self.core.pipeline.queued_bytes(),
            changes: self.core.changes.tail_bytes(),
            jobs: self.core.merges.load(Ordering::Relaxed) * JOB_BYTES,
        }
    }

    /// The options that it was opened with.
    pub fn options(&self) -> &EngineOptions {
        &self.core.options
    }

    /// The segments of the commit log and their bytes.
    pub fn log_size(&self) -> (usize, u64) {
        let segments = self.core.pipeline.log().segments();
        (segments.len(), segments.iter().map(|s| s.bytes).sum())
    }

    /// The block cache.
    pub fn cache(&self) -> &Arc<dyn BlockCache> {
        &self.cache
    }

    /// Bytes of memory of the indexes and filters of all SSTs that stay as long as these are open, beside their partitions. A file that
    /// several tablets share counts once, and one that nobody names any more for as long as it is read.
    pub fn resident_index_bytes(&self) -> u64 {
        self.cache.partitions().held_bytes()
    }

    /// Memory for the indexes and filters of all SSTs. Looks at each of their partitions: for benchmarks and tests, and
    /// nothing that is asked often.
    pub fn index_memory(&self) -> IndexMemory {
        let mut sum = IndexMemory::default();
        for tablet in self.tablets() {
            sum.add(&tablet.index_memory());
        }
        sum
    }

    /// Flushes every tablet and merges it into its last level. Blocks, for as long as that takes.
    pub fn compact_fully(&self) -> Result<()> {
        for tablet in self.tablets() {
            pollster::block_on(tablet.flush())?;
            tablet.compact_fully()?;
        }
        Ok(())
    }

    /// Without background threads: does all flushes, compactions and collections that are due.
    pub fn run_background(&self) -> Result<()> {
        background::run_until_idle(self)
    }

    /// Whether no flush or compaction is due: a loaded engine has settled.
    pub fn is_settled(&self) -> bool {
        self.tablets().iter().all(|t| {
            !t.has_waiting() && t.compaction_score() < 1.0 && !t.must_reclaim() && !t.is_busy()
        })
    }

    /// Flushes every tablet, stops background work, closes the log and lets the directory go. Blocks. Later writes fail with
    /// `Closed`. What could not be flushed is in the log and replayed by the next open.
    pub fn close(&self) -> Result<()> {
        self.core.stop();
        // The flush that is joined may wait for the log.
        self.core.pipeline.log().hurry();
        let threads =
            std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            thread.join();
        }
        // What is in memory is in the log.
        let mut result = self.core.failed().map_or(Ok(()), Err);
        if self.core.health() == Health::Serving {
            for tablet in self.tablets() {
                tablet.rotate_now();
                result = result.and(tablet.flush_waiting());
            }
            while self.trim_log() {}
        }
        for tablet in self.tablets() {
            tablet.seal();
        }
        // Whoever is still at work may not write into a directory that is another process's.
        self.meta.close();
        result = result.and(self.core.pipeline.close());
        // When all else is safe: it may take long, and the next open removes what is left of them. Nobody is to be spared any more.
        while self.core.store.remove_doomed(0, &|removed, _| drop(removed)) == Some(Duration::ZERO)
        {
        }
        self.core.unlock();
        result
    }

    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    pub(crate) fn backups_map(&self) -> &Backups {
        &self.backups
    }

    pub(crate) fn leftovers(&self) -> &Leftovers {
        &self.leftovers
    }

    fn write_tablets(&self) -> std::sync::RwLockWriteGuard<'_, BTreeMap<TabletId, Arc<Tablet>>> {
        self.tablets.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Engine {
    /// Ends the background threads of an engine that was not closed; what is in memory is in the log.
    fn drop(&mut self) {
        self.core.stop();
    }
}

/// Whether something is left to number what will be written, behind a number that is found at `path`.
fn check_floor(floor: Seq, path: &Path) -> Result<()> {
    if floor <= SEQ_MAX - SEQS_LEFT_MIN {
        return Ok(());
    }
    let what = "a number in it, or in a name, leaves too few for what will be written: that is no file of this server, unless its clock was at the year 2527; move it away";
    Err(Error::corruption(path.display(), 0, what))
}

/// Creates the directory, for its owner alone, and what lies above it, durably: a name is only as durable as the directory
/// that it stands in.
fn create_root(files: &dyn Files, dir: &Path) -> Result<()> {
    let mut missing = Vec::new();
    for ancestor in dir.ancestors().filter(|a| !a.as_os_str().is_empty()) {
        if files.exists(ancestor)? {
            break;
        }
        missing.push(ancestor);
    }
    files.create_private_dir(dir)?;
    for created in missing {
        match created.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            Some(parent) => files.sync_dir(parent)?,
            None => files.sync_dir(Path::new("."))?,
        }
    }
    Ok(())
}

/// The manifests, and the tablets without one: their creation or removal was cut short, unless the catalog names them.
fn open_manifests(
    env: &Env,
    layout: &Layout,
) -> Result<(BTreeMap<TabletId, TabletManifest>, Vec<TabletId>)> {
    let (mut manifests, mut unfinished) = (BTreeMap::new(), Vec::new());
    for entry in env.files.list(&layout.tablets())? {
        let Some(number) = parse_number(&entry.name, "", "").filter(|_| entry.is_dir) else {
            continue;
        };
        let id = TabletId(number);
        match TabletManifest::open(Arc::clone(&env.files), &layout.tablet(id), id) {
            Ok((manifest, _)) => {
                manifests.insert(id, manifest);
            }
            Err(error) if error.kind() == ErrorKind::NotFound => unfinished.push(id),
            Err(error) => return Err(error),
        }
    }
    Ok((manifests, unfinished))
}

/// `InvalidArgument` where a newer version wrote an SST of these tablets, or a value file. To be served without it would be to miss its
/// rows, and to call for a repair. `Exhausted` where one was not opened for want of something that there may be again: an SST is opened at
/// a start and not again. So is one that this user may not read, of which value files are told as well: more than one is likely.
fn check_files<'a>(tablets: impl Iterator<Item = &'a Arc<Tablet>>) -> Result<()> {
    let mut denied = BTreeMap::new();
    for tablet in tablets {
        let files = &tablet.hold().files;
        if let Some(error) = files.values().find_map(|file| file.newer_version()) {
            return Err(error);
        }
        let not_opened = |file: &Arc<SstFile>| file.open_error().filter(Error::is_shortage);
        if let Some(error) = files.values().find_map(not_opened) {
            return Err(error.context(
                "an SST cannot be opened now; start again, with a higher limit of open files (LimitNOFILE, ulimit -n) if that is what it lacks",
            ));
        }
        // Tablets may share them.
        let unopened = files.values().flat_map(|file| file.unopened());
        denied.extend(unopened.filter(|(_, error)| error.is_denied()));
    }
    let count = denied.len();
    denied.pop_first().map_or(Ok(()), |(_, error)| {
        // What value files those name that cannot be read is not known.
        Err(error.context(format!("{count} data files at least cannot be opened, the first")))
    })
}

/// Tells of a long replay every tenth of it.
fn progress_of_replay(said: &mut u64, progress: ReplayProgress) {
    let tenths = progress.bytes_done.saturating_mul(10) / progress.bytes_total.max(1);
    if progress.bytes_total >= REPLAY_TOLD_BYTES && tenths > *said {
        *said = tenths;
        tracing::info!(
            "replaying the log: {} of {} bytes",
            progress.bytes_done,
            progress.bytes_total
        );
    }
}
