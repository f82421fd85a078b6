//! What all tablets of an engine share: the seams, the commit pipeline, the open SSTs, the engine's
//! health, and the bell that wakes background work.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use crate::changes::ChangeLog;
use crate::compaction::pace::{Pace, Urgency};
use crate::compaction::parts::Offers;
use crate::compaction::space::Space;
use crate::db::Engine;
use crate::db::{Health, HeldBy};
use crate::dir_syncs::DirSyncs;
use crate::error::{Error, ErrorKind, Result};
use crate::io::{Env, FileLock, Removed};
use crate::layout::Layout;
use crate::log::CommitPipeline;
use crate::memtable::{Memtable, MemtableMemory};
use crate::options::EngineOptions;
use crate::pressure::{Behind, Pressure, Refusals};
use crate::setbacks::{Said, Setbacks};
use crate::store::SstStore;
use crate::tablet::LockedRows;
use crate::tablet::memory::TabletMemory;
use crate::wall_clock::WallClock;

/// What a change of the catalog hears that needs room while writes wait for it.
const REMOVALS_ALONE: &str = "until there is room on the disk the catalog takes removals alone";

/// Shared by the tablets of one engine.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) env: Env,
    pub(crate) layout: Layout,
    pub(crate) options: EngineOptions,
    pub(crate) pipeline: CommitPipeline,
    pub(crate) store: Arc<SstStore>,
    pub(crate) changes: ChangeLog,
    pub(crate) bell: Arc<Bell>,
    /// Rung when a flush or compaction made room for writers, when a tablet is dropped, and when the
    /// engine fails or closes.
    pub(crate) room: Notify,
    /// Background threads run: a flush is theirs to do.
    pub(crate) background: AtomicBool,
    pub(crate) metrics: EngineMetrics,
    /// For large rows that writes read first.
    pub(crate) locked_rows: LockedRows,
    /// What compactions may write.
    pub(crate) space: Arc<Space>,
    /// Whose tablets a thread in a long compaction looks after; set where there are background threads.
    pub(crate) engine: OnceLock<Weak<Engine>>,
    /// Compactions whose parts any compaction thread may do.
    pub(crate) offers: Offers,
    /// The tablets of which garbage of value files was claimed last, and that of SSTs.
    pub(crate) reclaimed_last: AtomicU64,
    pub(crate) collected_last: AtomicU64,
    /// Whether the last garbage that was claimed was of value files.
    pub(crate) has_reclaimed: AtomicBool,
    /// The last compaction that nobody waited for was one that reads had paid for.
    pub(crate) has_merged_for_reads: AtomicBool,
    /// Flushes, but for small ones, and parts of compactions that threads are in the middle of; a thread that is lent is in two.
    pub(crate) merges: AtomicU64,
    pace: Pace,
    /// Of all tablets, whatever still holds them.
    pub(crate) memtables: MemtableMemory,
    /// What tablets take by being there.
    pub(crate) tablet_memory: Arc<TabletMemory>,
    /// Bytes of row keys that are about to be in them.
    pub(crate) keys_held: AtomicU64,
    /// Writes that were refused because background work is behind.
    pub(crate) refusals: Refusals,
    /// Why flushes and compactions fail.
    pub(crate) setbacks: Setbacks,
    pub(crate) said_of_flushes: Said,
    pub(crate) said_of_compactions: Said,
    /// Of rows that are not collected.
    pub(crate) said_of_rows: Said,
    /// Bytes of memtables at which the housekeeper is to look which of them has to go.
    look_at_bytes: AtomicU64,
    /// Segments of the log that could not be removed, and when to try again (monotonic micros).
    pub(crate) unremoved: Mutex<HashMap<u64, u64>>,
    stopping: AtomicBool,
    failure: Mutex<Option<Error>>,
    dir_syncs: DirSyncs,
    /// By what cells and changes expire.
    pub(crate) wall_clock: WallClock,
    /// Of the directory, until it is let go, which waits for whoever reads this: see [`Core::in_dir`]. Last, so that whoever may still write there has
    /// ended before it is another's.
    lock: RwLock<Option<Box<dyn FileLock>>>,
}

/// Counters since the engine was opened. Bytes are bytes on disk.
#[derive(Debug, Default)]
pub struct EngineMetrics {
    /// Bytes that flushes wrote.
    pub flush_bytes: AtomicU64,
    /// Bytes that compactions read.
    pub compaction_read_bytes: AtomicU64,
    /// Bytes that compactions wrote.
    pub compaction_write_bytes: AtomicU64,
    /// Bytes of value files that flushes and compactions wrote.
    pub value_write_bytes: AtomicU64,
    /// Bytes in value files whose values compactions moved into others, to free the files: those with much garbage, and small ones.
    pub value_moved_bytes: AtomicU64,
    /// Flushes done.
    pub flushes: AtomicU64,
    /// Flushes that failed and are tried again: for want of room, open files or memory, or since a new file did not read back.
    pub flush_retries: AtomicU64,
    /// Compactions done.
    pub compactions: AtomicU64,
    /// Places that reads looked into and a merge of level 0 would have spared.
    pub looks: AtomicU64,
    /// Of the compactions, merges that reads had paid for.
    pub compactions_for_reads: AtomicU64,
    /// Compactions that were put off, or ended before their time, since the disk had no room.
    pub compactions_put_off: AtomicU64,
    /// Compactions that failed since a file is damaged; they are tried again now and then.
    pub compactions_damaged: AtomicU64,
    /// Compactions that failed for anything else but want of room, open files or memory.
    pub compactions_failed: AtomicU64,
    /// Microseconds for which compactions that free value files rested beside reads of the device.
    pub compaction_rested_micros: AtomicU64,
    /// Cells that garbage collection dropped, or deleted.
    pub cells_collected: AtomicU64,
    /// Rows that a collector read under their locks, to delete cells of them that rules let go.
    pub collector_rows: AtomicU64,
}

impl EngineMetrics {
    pub(crate) fn add(counter: &AtomicU64, amount: u64) {
        counter.fetch_add(amount, Ordering::Relaxed);
    }
}

impl Core {
    pub(crate) fn new(
        env: Env,
        layout: Layout,
        options: EngineOptions,
        pipeline: CommitPipeline,
        store: Arc<SstStore>,
        changes: ChangeLog,
        memtables: MemtableMemory,
    ) -> Self {
        let look_at_bytes = options.flush_from_bytes();
        let locked_rows = LockedRows::new(options.memtables_total_bytes);
        let wall_clock = WallClock::new(Arc::clone(&env.clock));
        let space = Space::new(&env, layout.ssts(), &options);
        let tablet_memory = TabletMemory::new(options.tablets_bytes_max);
        Self {
            env,
            layout,
            pace: Pace::new(options.background_bytes_per_second),
            space,
            engine: OnceLock::new(),
            offers: Offers::default(),
            reclaimed_last: AtomicU64::new(0),
            collected_last: AtomicU64::new(0),
            has_reclaimed: AtomicBool::new(false),
            has_merged_for_reads: AtomicBool::new(false),
            merges: AtomicU64::new(0),
            options,
            pipeline,
            store,
            changes,
            bell: Arc::default(),
            room: Notify::new(),
            background: AtomicBool::new(false),
            metrics: EngineMetrics::default(),
            locked_rows,
            memtables,
            tablet_memory,
            keys_held: AtomicU64::new(0),
            refusals: Refusals::default(),
            setbacks: Setbacks::default(),
            said_of_flushes: Said::default(),
            said_of_compactions: Said::default(),
            said_of_rows: Said::default(),
            look_at_bytes: AtomicU64::new(look_at_bytes),
            unremoved: Mutex::default(),
            stopping: AtomicBool::new(false),
            failure: Mutex::new(None),
            dir_syncs: DirSyncs::default(),
            wall_clock,
            lock: RwLock::default(),
        }
    }

    /// The same, which keeps the lock of its directory.
    pub(crate) fn holding(self, lock: Box<dyn FileLock>) -> Self {
        Self { lock: RwLock::new(Some(lock)), ..self }
    }

    /// Whether the directory is there still: without it nothing that is written will be found again.
    pub(crate) fn check_lock(&self) {
        let lock = self.lock.read().unwrap_or_else(PoisonError::into_inner);
        let checked = lock.as_ref().map_or(Ok(()), |lock| lock.check());
        drop(lock);
        if let Err(error) = checked {
            self.fail(&error);
        }
    }

    /// For whoever, on a thread that is not the engine's, makes or removes files there: it is not another process's before what this
    /// returns is dropped. `Closed` where it may be already. Not to be asked for twice by one thread.
    pub(crate) fn in_dir(&self) -> Result<RwLockReadGuard<'_, Option<Box<dyn FileLock>>>> {
        let lock = self.lock.read().unwrap_or_else(PoisonError::into_inner);
        if lock.is_some() { Ok(lock) } else { Err(closed()) }
    }

    /// Lets the directory go, once all are done who change it.
    pub(crate) fn unlock(&self) {
        drop(self.lock.write().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// The time by which cells expire: what the wall clock reads, unless it is doubted.
    pub(crate) fn expiry_micros(&self) -> i64 {
        self.wall_clock.expiry_micros()
    }

    /// An empty memtable.
    pub(crate) fn new_memtable(&self) -> Arc<Memtable> {
        Memtable::counted(self.env.rng.next_u64(), self.memtables.clone())
    }

    /// The pressure that all tablets share: the memory of memtables, and the log's queue.
    pub(crate) fn pressure(&self) -> Pressure {
        let queue = self.pipeline.queued_bytes() as f64;
        let limit = self.options.log_queue_bytes as f64;
        self.pressure_of_memory().or(Pressure::of(Behind::Log, queue, limit))
    }

    /// That of the memory of memtables.
    pub(crate) fn pressure_of_memory(&self) -> Pressure {
        self.pressure_of_memory_beside(self.keys_held.load(Ordering::Relaxed))
    }

    /// The same where so many bytes of keys are about to be in them.
    pub(crate) fn pressure_of_memory_beside(&self, keys: u64) -> Pressure {
        let memory = self.memtables.bytes().saturating_add(keys) as f64;
        Pressure::of(Behind::Memory, memory, self.options.memtables_total_bytes as f64)
    }

    /// Wakes the housekeeper where memtables have grown so much that one may have to go.
    pub(crate) fn look_at_memory(&self) {
        let look_at = self.look_at_bytes.load(Ordering::Relaxed);
        if self.memtables.bytes() > look_at {
            // Whoever swaps first rings; the housekeeper says when it is to be woken again.
            let swap = self.look_at_bytes.compare_exchange(
                look_at,
                u64::MAX,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            if swap.is_ok() {
                self.bell.ring();
            }
        }
    }

    /// The housekeeper looks now, and again when memtables have grown by a thirty-second of what they may
    /// have: often enough not to be late, and not for every write.
    pub(crate) fn looking_at_memory(&self) {
        let next = self.memtables.bytes().saturating_add(self.options.memtables_total_bytes / 32);
        self.look_at_bytes.store(next.max(self.options.flush_from_bytes()), Ordering::Relaxed);
    }

    /// Makes the engine read-only for good: a write, sync or manifest edit failed, and what is on disk
    /// is no longer known. The first failure stays.
    pub(crate) fn fail(&self, error: &Error) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = failure.is_none() && error.kind() != ErrorKind::Closed;
        if is_first {
            *failure = Some(error.clone());
        }
        drop(failure);
        self.room.notify_waiters();
        // Last, since it may fail.
        if is_first {
            tracing::error!(%error, "the engine is read-only from now on; restart it once the cause is removed");
        }
    }

    /// Makes the names in a directory durable: whoever syncs one while the engine is open does it here. A failure makes the engine
    /// read-only, unless the directory could not be opened for want of a descriptor or memory. A second sync would succeed and prove nothing, of nobody's names in that directory: it is
    /// refused, to jobs that were under way too.
    pub(crate) fn sync_dir(&self, dir: &Path) -> Result<()> {
        let may_pass = |error: &Error| error.kind() == ErrorKind::Exhausted;
        let sync = || {
            self.env.files.sync_dir(dir).inspect_err(|error| {
                if !may_pass(error) {
                    self.fail(error);
                }
            })
        };
        self.dir_syncs.sync(dir, sync, may_pass)
    }

    /// After a sync of a directory that failed elsewhere: no other of it proves anything.
    pub(crate) fn distrust(&self, dir: &Path) {
        self.dir_syncs.distrust(dir);
    }

    /// Gives the space of a file back whose name was removed from a directory. Where the directory cannot be synced, which makes the
    /// engine read-only, the file may come back with a crash, and so goes as it is.
    pub(crate) fn give_back(&self, removed: Removed, dir: &Path) {
        if removed.is_large() && self.sync_dir(dir).is_ok() {
            removed.give_back();
        }
    }

    /// Bytes per second at which files that nobody needs are removed, 0 for at once: where space is what others wait for, or are about
    /// to, that is worth more than the quiet of the disk.
    pub(crate) fn removal_pace(&self) -> u64 {
        let wants_space = self.why_no_room().is_some() || self.space.is_tight();
        if wants_space { 0 } else { self.options.delete_bytes_per_second }
    }

    /// Removes files that nobody needs, as [`SstStore::remove_doomed`] does.
    pub(crate) fn remove_doomed(&self, bytes_per_second: u64) -> Option<Duration> {
        self.store.remove_doomed(bytes_per_second, &|removed, dir| self.give_back(removed, dir))
    }

    /// An error if writes are not taken.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.stopping() {
            return Err(closed());
        }
        self.check_healthy()
    }

    /// An error if a failure, of the log too, has made the engine read-only: no job begins, and no edit.
    pub(crate) fn check_healthy(&self) -> Result<()> {
        self.failed().map_or(Ok(()), Err)
    }

    /// Why writes are not taken until a restart, if it is so: `ReadOnly`.
    pub(crate) fn failed(&self) -> Option<Error> {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        // Of a full disk, too: room alone does not help any more.
        let told = failure.as_ref().map(|error| {
            let text = format!("the server is read-only until it is restarted: {error}");
            Error::new(ErrorKind::ReadOnly, text)
        });
        drop(failure);
        told.or_else(|| self.pipeline.failed())
    }

    /// Whether that is since the disk was full: what makes room helps the restart.
    pub(crate) fn failed_for_room(&self) -> bool {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        let kind = failure.as_ref().map(Error::kind);
        drop(failure);
        let kind = match kind {
            // Somebody else has met what the log failed by.
            None | Some(ErrorKind::ReadOnly) => self.pipeline.failed_by(),
            kind => kind,
        };
        kind == Some(ErrorKind::NoSpace)
    }

    /// Whether the log takes writes.
    pub(crate) fn health(&self) -> Health {
        if let Some(error) = self.failed() {
            return Health::ReadOnly(error.message().to_owned());
        }
        let held = |reason| Health::Held { by: HeldBy::Log, reason };
        self.pipeline.log().held().map_or(Health::Serving, held)
    }

    /// Whether the log waits for space on the disk: writes would wait with it.
    pub(crate) fn lacks_room(&self) -> bool {
        self.pipeline.log().lacks_room()
    }

    /// Why the disk has too little room for what is new, if writes are held up for that: the log waits for it, or memory is full and a
    /// flush does not find it. An error of kind `NoSpace`, of what may be tried again.
    pub(crate) fn why_no_room(&self) -> Option<Error> {
        if self.lacks_room() {
            let why = self.pipeline.log().held().unwrap_or_else(|| "the disk is full".to_owned());
            return Some(Error::new(ErrorKind::NoSpace, format!("{REMOVALS_ALONE}: {why}")));
        }
        let engine = self.engine.get()?.upgrade()?;
        let mut failing = self.setbacks.tablets().into_iter().filter_map(|id| engine.tablet(id));
        let error = failing.find_map(|tablet| tablet.lacks_room_to_flush())?;
        Some(error.context(format_args!("{REMOVALS_ALONE}: memory is full, and a flush fails")))
    }

    /// Waits until background work may write so many bytes more, or until `stop` says so.
    pub(crate) fn keep_pace(&self, bytes: u64, urgency: Urgency, stop: &dyn Fn() -> bool) {
        loop {
            let seen = self.bell.count();
            let now = self.env.clock.monotonic_micros();
            let Some(wait) = self.pace.take(bytes, urgency, now) else { return };
            if stop() {
                return;
            }
            self.bell.wait(seen, wait);
        }
    }

    pub(crate) fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.bell.ring();
        self.room.notify_waiters();
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the server is shutting down")
}

/// Wakes background threads. A ring is never lost: a thread that was busy sees the new count.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    rings: Mutex<u64>,
    rung: Condvar,
}

impl Bell {
    pub(crate) fn ring(&self) {
        *self.rings.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.rung.notify_all();
    }

    /// How often it rang so far.
    pub(crate) fn count(&self) -> u64 {
        *self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it has rung more than `seen` times or `limit` has passed; whether it has rung.
    pub(crate) fn wait(&self, seen: u64, limit: Duration) -> bool {
        let rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        let (rings, _) = self
            .rung
            .wait_timeout_while(rings, limit, |rings| *rings <= seen)
            .unwrap_or_else(PoisonError::into_inner);
        *rings > seen
    }
}
