//! The open value files of an engine, and who names them. A file that nothing live names any more is removed when
//! its last reader lets go, by the housekeeping thread, like SSTs.
//!
//! *Naming* is what keeps a file: each SST that is open and has an owner names the value files that its properties
//! list, and so does a job that reads through them, so that its outputs find them still there.
//!
//! An SST that cannot be opened does not tell what it names. While there is one, what nothing else names stays, but for what
//! a failed job has written itself, and no file counts as sparse.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::{ValuePointer, ValueReader};
use crate::error::{Error, ErrorKind, Result};
use crate::holdings::Holdings;
use crate::io::Env;
use crate::layout::Layout;
use crate::limits::VERSIONS_READ_MAX;
use crate::sst::FileId;
use crate::store::Removable;

/// Percent of a value file that must be live for its values to stay where they are. With 50, a value is moved
/// once for each halving of what it was written with, which doubles the writes of a table that is overwritten
/// steadily, and garbage takes half of the space at worst, a third on average. More would write more for less
/// space.
const LIVE_PERCENT_MIN: u64 = 50;

/// The part of a target size that a small value file has at most: a quarter. Each file is open while it is named; with a quarter there are
/// four times as many as full ones would be, and of a file that is as large nobody gains by moving its values.
const SMALL_PART: u64 = 4;

/// How much larger at least the values that are moved together with those of a small file are than that, where one file is made of them. With 4, a value of 8 KiB that was
/// flushed alone is moved six times until it lies among 16 MiB of others; with less it would be more often, and with more, more small files would be left.
const SMALL_GROWTH: u64 = 4;

/// How long a value file that could not be opened is left alone, in microseconds: reads fail meanwhile. Each try costs a
/// system call or two, or, on a bad disk, seconds of a reader's thread; a longer pause keeps values away that are there again.
const REOPEN_WAIT_MICROS: u64 = 1_000_000;

/// How long no values are moved out of a file after one of them could not be read, in microseconds; twice as long after each further
/// time, up to a day: nobody waits for the room, and a try writes SSTs anew.
const MOVE_AGAIN_MICROS: u64 = 60_000_000;
const MOVE_AGAIN_MICROS_MAX: u64 = 24 * 3_600 * 1_000_000;

/// When none are moved any more.
const FOR_GOOD: u64 = u64::MAX;

/// The value files of a view, by number.
pub(crate) type ValueFiles = HashMap<FileId, Arc<ValueFile>>;

/// Opens value files and hands over those that nobody needs, to be removed.
#[derive(Debug)]
pub(crate) struct ValueStore {
    env: Env,
    layout: Layout,
    holdings: Mutex<Holdings<ValueFile>>,
    /// SSTs that could not be opened and are not gone.
    unreadable_ssts: AtomicU64,
    /// Files, each with its bytes, that would have been removed but for these SSTs. Locked after `holdings`.
    withheld: Mutex<Vec<(FileId, u64)>>,
    /// Shared with the SSTs.
    removable: Arc<Mutex<Removable>>,
}

/// Stands for an SST that cannot be opened, while it is there.
#[derive(Debug)]
pub(crate) struct UnknownNames(Arc<ValueStore>);

/// A value file.
#[derive(Debug)]
pub(crate) struct ValueFile {
    id: FileId,
    /// A file that cannot be opened fails every read of its values and leaves all others alone.
    reader: OnceLock<ValueReader>,
    /// Why it could not be opened.
    unopened: Mutex<Option<Unopened>>,
    store: Arc<ValueStore>,
    /// Who names it.
    names: AtomicU64,
    /// Bytes that SSTs name in it; more than it has while an SST that is replaced and the one in its place both name a value: as long as a
    /// compaction goes on, and where it has rewritten a piece of an SST that dropped rows have cut, until the last piece is rewritten.
    live_bytes: AtomicU64,
    /// Until when its values are not moved, since one could not be read (monotonic micros): [`FOR_GOOD`] where it is damaged.
    stuck_until: AtomicU64,
    /// How long that was last.
    stuck_for: AtomicU64,
    /// A backup keeps it: what is moved out of it frees nothing.
    kept: AtomicBool,
    /// What a failed job has written: no SST that counts names it.
    discarded: AtomicBool,
}

/// What a job may move of values, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MoveBudget {
    /// As many as pays; one file may be more.
    wanted: u64,
    /// As many as the disk has room for.
    max: u64,
    /// What a small file has at most.
    small: u64,
    /// How many times the largest small file all that are moved have at least.
    growth: u64,
}

impl MoveBudget {
    /// That of a job in so many parts, each of which writes files of its own, of so many bytes.
    pub(crate) fn new(target_file_bytes: u64, parts: usize, wanted: u64, max: u64) -> Self {
        let growth = SMALL_GROWTH.saturating_mul(parts as u64);
        Self { wanted, max, small: target_file_bytes / SMALL_PART, growth }
    }
}

/// Why a file could not be opened, and when to try again (monotonic micros).
#[derive(Debug)]
struct Unopened {
    error: Error,
    again_at_micros: u64,
}

/// Names value files while it lives, without naming bytes of them.
#[derive(Debug)]
pub(crate) struct NamedValues(ValueFiles);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ValueStore {
    pub(crate) fn new(env: Env, layout: Layout, removable: Arc<Mutex<Removable>>) -> Arc<Self> {
        Arc::new(Self {
            env,
            layout,
            holdings: Mutex::default(),
            unreadable_ssts: AtomicU64::new(0),
            withheld: Mutex::default(),
            removable,
        })
    }

    /// An SST could not be opened: what it names is not known until what is returned is dropped with it.
    pub(crate) fn unknown_names(self: &Arc<Self>) -> UnknownNames {
        self.unreadable_ssts.fetch_add(1, Ordering::AcqRel);
        UnknownNames(Arc::clone(self))
    }

    /// Whether all names of value files are known: every SST could be opened.
    pub(crate) fn all_known(&self) -> bool {
        self.unreadable_ssts.load(Ordering::Acquire) == 0
    }

    /// Nothing that is known names the file, which is not open: it goes, or waits for the SSTs that may name it.
    fn let_go(&self, id: FileId, bytes: u64) {
        // Under its lock: the last of these SSTs takes what waits only after it is gone itself.
        let mut withheld = lock(&self.withheld);
        if self.all_known() {
            lock(&self.removable).push(self.layout.value(id), bytes);
        } else {
            withheld.push((id, bytes));
        }
    }

    /// These files are of a job that failed: nothing names them for good. Those that an SST of the job has open go with it.
    pub(crate) fn discard(&self, ids: &[FileId]) {
        // As in `keep`.
        let mut open = Vec::new();
        let holdings = lock(&self.holdings);
        for id in ids {
            match holdings.get(*id) {
                Some(file) => {
                    file.discarded.store(true, Ordering::Release);
                    open.push(file);
                }
                None => lock(&self.removable).push(self.layout.value(*id), 0),
            }
        }
        drop(holdings);
    }

    /// The file, opened where it was not. Damage is logged here and kept for the readers to meet; after any other error it
    /// is opened again when it is used.
    pub(crate) fn open(self: &Arc<Self>, id: FileId) -> Arc<ValueFile> {
        let known = lock(&self.holdings).get(id);
        if let Some(file) = known {
            return file;
        }
        // Read without the lock, which those who let go of files take.
        let (reader, unopened) = (OnceLock::new(), Mutex::default());
        match self.read(id) {
            Ok(opened) => drop(reader.set(opened)),
            Err(error) => {
                let path = self.layout.value(id);
                // A start that may not read its files says so once.
                if !error.is_denied() {
                    tracing::error!(file = %path.display(), %error, "value file cannot be opened; its values fail");
                }
                *lock(&unopened) = Some(self.unopened(error));
            }
        }
        let file = Arc::new(ValueFile {
            id,
            reader,
            unopened,
            store: Arc::clone(self),
            names: AtomicU64::new(0),
            live_bytes: AtomicU64::new(0),
            stuck_until: AtomicU64::new(0),
            stuck_for: AtomicU64::new(0),
            kept: AtomicBool::new(false),
            discarded: AtomicBool::new(false),
        });
        let mut holdings = lock(&self.holdings);
        if let Some(first) = holdings.get(id) {
            // What was read in vain goes after the lock.
            drop(holdings);
            return first;
        }
        file.kept.store(holdings.is_kept(id), Ordering::Relaxed);
        holdings.opened(id, &file);
        drop(holdings);
        file
    }

    fn read(&self, id: FileId) -> Result<ValueReader> {
        let reader = ValueReader::open(self.env.files.as_ref(), &self.layout.value(id), id)?;
        if let Err(error) = reader.verify_footer() {
            tracing::error!(%error, "a value file is damaged; what verifies of it is served");
        }
        Ok(reader)
    }

    /// That a newer version wrote one of the newest of these files, if so. One that cannot be read is not judged. Blocks.
    pub(crate) fn newer_version(&self, ids: &BTreeSet<FileId>) -> Option<Error> {
        let files = self.env.files.as_ref();
        let newest = ids.iter().rev().take(VERSIONS_READ_MAX);
        let read = |id: &FileId| ValueReader::open(files, &self.layout.value(*id), *id).err();
        newest.filter_map(read).find(|error| error.kind() == ErrorKind::InvalidArgument)
    }

    fn unopened(&self, error: Error) -> Unopened {
        let now = self.env.clock.monotonic_micros();
        Unopened { error, again_at_micros: now.saturating_add(REOPEN_WAIT_MICROS) }
    }

    /// Keeps files for a backup, whether they are open or not.
    pub(crate) fn keep(&self, ids: impl IntoIterator<Item = FileId>) {
        // Whoever lets go of a file last takes the lock: these go after it.
        let mut open = Vec::new();
        let mut holdings = lock(&self.holdings);
        for id in ids {
            holdings.keep(id);
            if let Some(file) = holdings.get(id) {
                file.kept.store(true, Ordering::Relaxed);
                open.push(file);
            }
        }
        drop(holdings);
    }

    /// A backup keeps these files no longer, each with its bytes.
    pub(crate) fn release(&self, files: impl IntoIterator<Item = (FileId, u64)>) {
        // As in `keep`.
        let mut open = Vec::new();
        let mut holdings = lock(&self.holdings);
        for (id, bytes) in files {
            if holdings.release(id) {
                self.let_go(id, bytes);
            }
            if let Some(file) = holdings.get(id) {
                file.kept.store(holdings.is_kept(id), Ordering::Relaxed);
                open.push(file);
            }
        }
        drop(holdings);
    }

    /// The files in the directory that are neither open nor kept: what a crash left of jobs. Called once all SSTs are
    /// open and name theirs; there are none where one could not be opened.
    pub(crate) fn orphans(&self) -> Result<Vec<PathBuf>> {
        if !self.all_known() {
            tracing::warn!(
                "value files that nothing names are kept: an SST that cannot be opened may name them"
            );
            return Ok(Vec::new());
        }
        let named = lock(&self.holdings).needed();
        let there = self.layout.values_there(self.env.files.as_ref())?;
        let orphans = there.into_iter().filter(|id| !named.contains(id));
        Ok(orphans.map(|id| self.layout.value(id)).collect())
    }
}

impl ValueFile {
    pub(crate) fn id(&self) -> FileId {
        self.id
    }

    /// The reader, or why it cannot be opened. Damage stays; after any other error (too many open files, a file that was
    /// moved away) the file is opened again here, now and then, which blocks.
    pub(crate) fn reader(&self) -> Result<&ValueReader> {
        if let Some(reader) = self.reader.get() {
            return Ok(reader);
        }
        let mut unopened = lock(&self.unopened);
        if let Some(known) = unopened.as_ref() {
            let now = self.store.env.clock.monotonic_micros();
            if known.error.kind() == ErrorKind::Corruption || now < known.again_at_micros {
                return Err(known.error.clone().of_needed_file());
            }
        }
        match self.store.read(self.id) {
            Ok(reader) => {
                if unopened.take().is_some() {
                    let file = self.store.layout.value(self.id);
                    tracing::info!(file = %file.display(), "a value file can be opened again");
                }
                Ok(self.reader.get_or_init(|| reader))
            }
            Err(error) => {
                *unopened = Some(self.store.unopened(error.clone()));
                Err(error.of_needed_file())
            }
        }
    }

    /// Why it is not open, if it is not.
    pub(crate) fn open_error(&self) -> Option<Error> {
        lock(&self.unopened).as_ref().map(|unopened| unopened.error.clone())
    }

    /// Bytes of its frames; 0 where it cannot be opened.
    pub(crate) fn frame_bytes(&self) -> u64 {
        self.reader.get().map_or(0, ValueReader::frame_bytes)
    }

    /// Bytes that nothing names.
    pub(crate) fn garbage_bytes(&self) -> u64 {
        // Each figure is asked for once: the file may be opened at any moment.
        self.frame_bytes().saturating_sub(self.live_bytes.load(Ordering::Relaxed))
    }

    /// Whether little of it is live, and moving its values frees it.
    pub(crate) fn is_sparse(&self) -> bool {
        self.may_be_emptied()
            && is_sparse(self.live_bytes.load(Ordering::Relaxed), self.frame_bytes())
    }

    /// Whether its values can be moved, and that would free it.
    fn may_be_emptied(&self) -> bool {
        !self.is_stuck() && !self.is_kept() && self.store.all_known()
    }

    /// Whether a backup keeps it.
    pub(crate) fn is_kept(&self) -> bool {
        self.kept.load(Ordering::Relaxed)
    }

    /// A value of it cannot be read: the others stay where they are, too, for a while, or for good where it is damaged.
    pub(crate) fn sticks(&self, error: &Error) {
        let now = self.store.env.clock.monotonic_micros();
        if error.kind() == ErrorKind::Corruption {
            if self.stuck_until.swap(FOR_GOOD, Ordering::Relaxed) != FOR_GOOD {
                tracing::error!(%error, "a value is damaged; its file stays as it is");
            }
        } else if self.stuck_until.load(Ordering::Relaxed) <= now {
            let longer = self.stuck_for.load(Ordering::Relaxed).saturating_mul(2);
            let wait = longer.clamp(MOVE_AGAIN_MICROS, MOVE_AGAIN_MICROS_MAX);
            self.stuck_for.store(wait, Ordering::Relaxed);
            self.stuck_until.fetch_max(now.saturating_add(wait), Ordering::Relaxed);
            tracing::error!(%error, seconds = wait / 1_000_000, "a value cannot be moved; that is tried again later");
        }
    }

    fn is_stuck(&self) -> bool {
        let until = self.stuck_until.load(Ordering::Relaxed);
        // Most were never.
        until > 0 && self.store.env.clock.monotonic_micros() < until
    }

    /// An SST that names `bytes` of it is open, or a job reads through it.
    pub(crate) fn name(&self, bytes: u64) {
        self.names.fetch_add(1, Ordering::AcqRel);
        self.live_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The SST has no owner any more; or the job is over.
    pub(crate) fn unname(&self, bytes: u64) {
        self.live_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.names.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for ValueFile {
    fn drop(&mut self) {
        let gone = lock(&self.store.holdings).closed(self.id, self);
        if !gone || self.names.load(Ordering::Acquire) > 0 {
            return;
        }
        if self.discarded.load(Ordering::Acquire) {
            let path = self.store.layout.value(self.id);
            lock(&self.store.removable).push(path, self.frame_bytes());
        } else {
            self.store.let_go(self.id, self.frame_bytes());
        }
    }
}

impl Drop for UnknownNames {
    /// The SST is gone, and with the last one the doubt: what nobody has opened or kept since goes.
    fn drop(&mut self) {
        let store = &self.0;
        let holdings = lock(&store.holdings);
        let mut withheld = lock(&store.withheld);
        if store.unreadable_ssts.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        for (id, bytes) in withheld.drain(..).filter(|(id, _)| !holdings.needs(*id)) {
            lock(&store.removable).push(store.layout.value(id), bytes);
        }
    }
}

impl NamedValues {
    pub(crate) fn new(files: ValueFiles) -> Self {
        for file in files.values() {
            file.name(0);
        }
        Self(files)
    }

    /// No files.
    pub(crate) fn none() -> Self {
        Self(ValueFiles::new())
    }

    /// The file that the pointer leads to.
    pub(crate) fn get(&self, id: FileId) -> Option<&Arc<ValueFile>> {
        self.0.get(&id)
    }

    /// Those of the files whose values a job should move that finds `named` bytes in them: sparse ones, from that of
    /// which the least is live on, and then small ones; up to `budget.wanted` bytes to move, but one sparse one at least where `budget.max`
    /// has room for it.
    pub(crate) fn to_move(
        &self,
        named: &BTreeMap<FileId, u64>,
        budget: MoveBudget,
    ) -> HashMap<FileId, u64> {
        // Their figures change meanwhile, and an order must not.
        let figures = |file: &Arc<ValueFile>| {
            let named = named.get(&file.id).copied().filter(|bytes| *bytes > 0)?;
            let (live, bytes) = (file.live_bytes.load(Ordering::Relaxed), file.frame_bytes());
            // Without bytes it is not open, and nothing can be moved out of it.
            (bytes > 0 && file.may_be_emptied()).then_some((live, bytes, file.id, named))
        };
        let movable = self.0.values().filter_map(figures);
        let (mut sparse, mut others): (Vec<_>, Vec<_>) =
            movable.partition(|(live, bytes, ..)| is_sparse(*live, *bytes));
        // By the share that is live, without dividing.
        let share = |a: &(u64, u64, FileId, u64), b: &(u64, u64, FileId, u64)| {
            let cross = |live: u64, other_bytes: u64| u128::from(live) * u128::from(other_bytes);
            cross(a.0, b.1).cmp(&cross(b.0, a.1)).then(a.2.cmp(&b.2))
        };
        sparse.sort_by(share);
        let mut moved = 0u64;
        let mut chosen = HashMap::new();
        for (.., id, named) in sparse {
            let with = moved.saturating_add(named);
            if with > budget.max {
                continue;
            }
            if with > budget.wanted && !chosen.is_empty() {
                break;
            }
            moved = with;
            chosen.insert(id, named);
        }
        // The small ones: as many, the smallest first, as come to a multiple of the largest of them.
        others.retain(|(_, bytes, ..)| *bytes <= budget.small);
        others.sort_by_key(|(_, bytes, id, _)| (*bytes, *id));
        let (mut with, mut count) = (0u64, 0);
        for (at, (_, bytes, _, named)) in others.iter().enumerate() {
            with = with.saturating_add(*named);
            if moved.saturating_add(with) > budget.wanted.min(budget.max) {
                break;
            }
            if with >= bytes.saturating_mul(budget.growth) {
                count = at + 1;
            }
        }
        chosen.extend(others.into_iter().take(count).map(|(.., id, named)| (id, named)));
        chosen
    }
}

impl Drop for NamedValues {
    fn drop(&mut self) {
        for file in self.0.values() {
            file.unname(0);
        }
    }
}

/// Whether so little is live of so many bytes that it is moved.
fn is_sparse(live: u64, bytes: u64) -> bool {
    live.saturating_mul(100) < bytes.saturating_mul(LIVE_PERCENT_MIN)
}

/// The error of a pointer to a file that no SST of the view names.
pub(super) fn unknown(pointer: &ValuePointer) -> Error {
    let what =
        format!("a value lies in value file {:016x}, which its SST does not name", pointer.file);
    Error::new(ErrorKind::Corruption, what)
}
