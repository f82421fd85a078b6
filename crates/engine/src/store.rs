//! The SSTs of a directory as open files, and with them the value files that they name. A file is opened once, however many tablets
//! name it; each of them *owns* it. One that no version owns any more is removed when its last reader lets go and no
//! backup keeps it, by the housekeeping thread, so that no request pays for it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::cache::BlockCache;
use crate::error::{Error, ErrorKind, Result};
use crate::holdings::Holdings;
use crate::io::{Env, Removed};
use crate::layout::Layout;
use crate::limits::VERSIONS_READ_MAX;
use crate::manifest::SstRef;
use crate::sst::{FileId, SstReader};
use crate::values::{UnknownNames, ValueFile, ValueReader, ValueStore};

/// Opens SSTs and removes those that nobody needs.
#[derive(Debug)]
pub(crate) struct SstStore {
    env: Env,
    layout: Layout,
    cache: Arc<dyn BlockCache>,
    holdings: Mutex<Holdings<SstFile>>,
    removable: Arc<Mutex<Removable>>,
    values: Arc<ValueStore>,
}

/// Files that nobody needs any more, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Removable {
    files: VecDeque<(PathBuf, u64)>,
    bytes: u64,
    /// Until when (monotonic micros) what was removed last keeps the next from going.
    next_at_micros: u64,
    /// Those that could not be removed.
    failed: Vec<(PathBuf, u64)>,
    /// When these are tried again (monotonic micros).
    retry_at_micros: u64,
}

impl Removable {
    pub(crate) fn push(&mut self, path: PathBuf, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.files.push_back((path, bytes));
    }
}

/// Obsolete bytes above which files are removed without a pause: disks must not fill up for the sake of quiet.
const REMOVABLE_BYTES_MAX: u64 = 4 << 30;

/// For how long files are removed before the thread that does it turns to what else it is there for, in microseconds. A dropped
/// table may be many thousand files, which take minutes on some disks; writers and the end of the engine wait for that thread.
/// Much less, and it would look at all tablets again after every file.
pub(crate) const REMOVAL_MICROS: u64 = 50_000;

/// How far removal may be ahead of its pace, in microseconds. To wait for less than this, as after each small file, would cost
/// more than to remove it.
const REMOVAL_AHEAD_MICROS: u64 = 1_000;

/// How long a file that could not be removed is left alone, in microseconds: what keeps it is the file system or a right, and
/// neither changes at once.
pub(crate) const REMOVAL_RETRY_MICROS: u64 = 60 * 1_000_000;

/// One SST of a version.
#[derive(Debug)]
pub(crate) struct SstFile {
    id: FileId,
    /// A file whose footer, properties or top-level index is damaged fails every read of its rows and
    /// leaves the rest of the tablet alone.
    reader: Result<Arc<SstReader>>,
    /// The value files that it names, and the bytes of each; its [reader](SstReader::open_with) has charged them and does without.
    values: Box<[(Arc<ValueFile>, u64)]>,
    /// Where it cannot be opened: what it names is not known.
    _unknown: Option<UnknownNames>,
    store: Arc<SstStore>,
    /// Versions that name it, and jobs that have just written it. Changed under the store's lock.
    owners: AtomicU64,
}

/// What a job has written, open, until a version names it. Its SSTs have the job as their owner.
#[derive(Debug, Default)]
pub(crate) struct Outputs {
    pub(crate) ssts: Vec<Arc<SstFile>>,
    /// The value files that the job wrote.
    values: Vec<FileId>,
}

impl SstStore {
    pub(crate) fn new(env: Env, layout: Layout, cache: Arc<dyn BlockCache>) -> Arc<Self> {
        let removable: Arc<Mutex<Removable>> = Arc::default();
        let values = ValueStore::new(env.clone(), layout.clone(), Arc::clone(&removable));
        let holdings = Mutex::default();
        Arc::new(Self { env, layout, cache, holdings, removable, values })
    }

    pub(crate) fn cache(&self) -> &Arc<dyn BlockCache> {
        &self.cache
    }

    pub(crate) fn values(&self) -> &Arc<ValueStore> {
        &self.values
    }

    /// The SST for one more owner; opened where it was not. Damage is logged here and kept for the readers to meet.
    pub(crate) fn open(self: &Arc<Self>, id: FileId) -> Arc<SstFile> {
        self.open_with(id, false)
    }

    /// The same; with `pins`, one that is opened now has its index and filter read, and kept.
    fn open_with(self: &Arc<Self>, id: FileId, pins: bool) -> Arc<SstFile> {
        let known = self.owned(id, None);
        // Read without the lock, which those who let go of files take.
        known.unwrap_or_else(|| {
            let read = self.read(id, pins);
            self.owned(id, Some(&read)).unwrap_or(read)
        })
    }

    /// The file with one more owner: the one that is open or else `read`, which is from then on.
    fn owned(&self, id: FileId, read: Option<&Arc<SstFile>>) -> Option<Arc<SstFile>> {
        let mut holdings = self.lock();
        let open = holdings
            .get(id)
            .or_else(|| read.inspect(|file| holdings.opened(id, file)).map(Arc::clone))?;
        if open.owners.fetch_add(1, Ordering::AcqRel) == 0 {
            for (file, bytes) in &open.values {
                file.name(*bytes);
            }
        }
        Some(open)
    }

    fn read(self: &Arc<Self>, id: FileId, pins: bool) -> Arc<SstFile> {
        let path = self.layout.sst(id);
        let (files, cache) = (self.env.files.as_ref(), Arc::clone(&self.cache));
        let opened = SstReader::open_with(files, &path, id, cache, pins);
        // What lacks open files, memory or a right is told by whoever is refused for it, a start or a flush: there may be thousands of files.
        if let Err(error) = opened.as_ref()
            && !(error.is_shortage() || error.is_denied())
        {
            tracing::error!(file = %path.display(), %error, "SST cannot be opened; its rows fail");
        }
        let (reader, named) = match opened {
            Ok((reader, named)) => (Ok(reader), named),
            Err(error) => (Err(error), BTreeMap::new()),
        };
        let values = named.into_iter().map(|(id, bytes)| (self.values.open(id), bytes)).collect();
        let unknown = reader.is_err().then(|| self.values.unknown_names());
        let (store, owners) = (Arc::clone(self), AtomicU64::new(0));
        Arc::new(SstFile { id, reader, values, _unknown: unknown, store, owners })
    }

    /// Keeps files for a backup, whether they are open or not. They are there: the caller holds them open, or another
    /// backup keeps them.
    pub(crate) fn keep(&self, ssts: impl IntoIterator<Item = FileId>) {
        let mut holdings = self.lock();
        for id in ssts {
            holdings.keep(id);
        }
    }

    /// Keeps every SST and every value file that is there, as long as this runs: a backup whose list cannot be read now may need it.
    pub(crate) fn keep_all(&self) -> Result<()> {
        let files = self.env.files.as_ref();
        self.keep(self.layout.ssts_there(files)?);
        self.values.keep(self.layout.values_there(files)?);
        Ok(())
    }

    /// A backup keeps these files no longer, each with its bytes.
    pub(crate) fn release(&self, ssts: impl IntoIterator<Item = (FileId, u64)>) {
        let mut holdings = self.lock();
        let mut removable = self.removable.lock().unwrap_or_else(PoisonError::into_inner);
        for (id, bytes) in ssts {
            if holdings.release(id) {
                removable.push(self.layout.sst(id), bytes);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Holdings<SstFile>> {
        self.holdings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens what a job has written: SSTs, of which those of the levels that `pins` names have their index and filter kept, and
    /// the value files that they name. Outputs that cannot be read, or are damaged as far as opening them shows, are of no use: all
    /// of them go.
    pub(crate) fn open_outputs(
        self: &Arc<Self>,
        ssts: &[SstRef],
        values: &[FileId],
        pins: impl Fn(u8) -> bool,
    ) -> Result<Outputs> {
        let open = |file: &SstRef| self.open_with(file.id, pins(file.level));
        let ssts: Vec<_> = ssts.iter().map(open).collect();
        let outputs = Outputs { ssts, values: values.to_vec() };
        match outputs.open_error() {
            None => Ok(outputs),
            Some(error) => {
                outputs.discard(self);
                Err(error)
            }
        }
    }

    /// Opens SSTs that are there for a new tablet, which is to own them before they are let go. An error where one can be
    /// opened another time; the rows of one that is damaged or missing fail.
    pub(crate) fn open_present(self: &Arc<Self>, ssts: &[SstRef]) -> Result<Outputs> {
        let mut present = Outputs::default();
        for sst in ssts {
            let file = self.open(sst.id);
            let error = file.open_error();
            present.ssts.push(file);
            let lost = [ErrorKind::Corruption, ErrorKind::NotFound];
            if let Some(error) = error.filter(|error| !lost.contains(&error.kind())) {
                present.discard(self);
                return Err(error);
            }
        }
        Ok(present)
    }

    /// That a newer version wrote one of the newest of these SSTs, of those that are not open, if so. Blocks.
    pub(crate) fn newer_version(&self, ids: &BTreeSet<FileId>) -> Option<Error> {
        let is_closed = |id: &&FileId| !self.lock().is_open(**id);
        let mut newest = ids.iter().rev().filter(is_closed).take(VERSIONS_READ_MAX);
        let files = self.env.files.as_ref();
        newest.find_map(|id| SstReader::newer_version(files, &self.layout.sst(*id), *id))
    }

    /// Has a file removed that nobody needs, as [`Self::remove_doomed`] comes to it.
    pub(crate) fn remove_later(&self, path: PathBuf, bytes: u64) {
        self.removable.lock().unwrap_or_else(PoisonError::into_inner).push(path, bytes);
    }

    /// Removes a file of a job that has failed; one that cannot be removed now as [`Self::remove_doomed`] comes to it.
    pub(crate) fn remove_unfinished(&self, path: PathBuf) {
        let Err(error) = self.env.files.remove(&path) else { return };
        tracing::warn!(file = %path.display(), %error, "cannot remove an unfinished file now");
        if error.kind() != ErrorKind::NotFound {
            let file = self.env.files.open(&path);
            let bytes = file.and_then(|file| file.len()).unwrap_or(0);
            self.remove_later(path, bytes);
        }
    }

    /// Removes files that nobody needs, for [`REMOVAL_MICROS`] and one at least, and has their space given back; of those as many as
    /// `bytes_per_second` lets go now, 0 for any number. Says how long the next has to wait, if there is one: not at all where it is only
    /// the caller's turn to do something else. One that cannot be removed is tried again after a while.
    pub(crate) fn remove_doomed(
        &self,
        bytes_per_second: u64,
        give_back: &dyn Fn(Removed, &Path),
    ) -> Option<Duration> {
        let begun = self.env.clock.monotonic_micros();
        loop {
            let now = self.env.clock.monotonic_micros();
            let (path, bytes) = {
                let mut removable = self.removable.lock().unwrap_or_else(PoisonError::into_inner);
                if now >= removable.retry_at_micros {
                    for (path, bytes) in std::mem::take(&mut removable.failed) {
                        removable.push(path, bytes);
                    }
                }
                let paced = bytes_per_second > 0 && removable.bytes <= REMOVABLE_BYTES_MAX;
                let ahead = if paced { removable.next_at_micros.saturating_sub(now) } else { 0 };
                if !removable.files.is_empty() {
                    if ahead >= REMOVAL_AHEAD_MICROS {
                        return Some(Duration::from_micros(ahead));
                    }
                    if now.saturating_sub(begun) >= REMOVAL_MICROS {
                        return Some(Duration::ZERO);
                    }
                }
                let (path, bytes) = removable.files.pop_front()?;
                removable.bytes = removable.bytes.saturating_sub(bytes);
                let takes = bytes.saturating_mul(1_000_000).checked_div(bytes_per_second);
                let takes = ahead.saturating_add(takes.unwrap_or(0));
                removable.next_at_micros = now.saturating_add(takes);
                (path, bytes)
            };
            let error = match self.env.files.remove_large(&path) {
                Ok(removed) => {
                    give_back(removed, path.parent().unwrap_or(Path::new("")));
                    continue;
                }
                Err(error) => error,
            };
            tracing::warn!(file = %path.display(), %error, "cannot remove an obsolete file");
            if error.kind() != ErrorKind::NotFound {
                let mut removable = self.removable.lock().unwrap_or_else(PoisonError::into_inner);
                removable.failed.push((path, bytes));
                removable.retry_at_micros = now.saturating_add(REMOVAL_RETRY_MICROS);
            }
        }
    }

    /// Bytes of the files that are yet to be removed.
    pub(crate) fn removable_bytes(&self) -> u64 {
        let removable = self.removable.lock().unwrap_or_else(PoisonError::into_inner);
        removable.bytes + removable.failed.iter().map(|(_, bytes)| bytes).sum::<u64>()
    }
}

impl Outputs {
    /// Why one of them is not open or not whole, if one is not. A value file that the job did not write counts for nothing: it was there
    /// before, and its values fail as they did.
    fn open_error(&self) -> Option<Error> {
        let of_values = |file: &Arc<SstFile>| file.values_error(|id| self.values.contains(&id));
        self.ssts.iter().find_map(|file| file.open_error().or_else(|| of_values(file)))
    }

    /// No version names them, and none will: all of them go.
    pub(crate) fn discard(self, store: &SstStore) {
        store.values.discard(&self.values);
        for file in &self.ssts {
            file.disown();
        }
    }
}

impl SstFile {
    pub(crate) fn id(&self) -> FileId {
        self.id
    }

    /// The reader, or the damage that was met on opening.
    pub(crate) fn reader(&self) -> Result<&Arc<SstReader>> {
        self.reader.as_ref().map_err(|error| error.clone().of_needed_file())
    }

    /// Why it is not open, if it is not.
    pub(crate) fn open_error(&self) -> Option<Error> {
        self.reader.as_ref().err().cloned()
    }

    /// Why one of the value files that it names and that `which` selects, all just written, is not open or not whole, if one is
    /// not. Of an old one what verifies is served; a new one can be written again from what is there.
    fn values_error(&self, which: impl Fn(FileId) -> bool) -> Option<Error> {
        let mut selected = self.values.iter().filter(|(file, _)| which(file.id()));
        let is_whole = |file: &ValueFile| file.reader().and_then(ValueReader::verify_footer);
        selected.find_map(|(file, _)| file.open_error().or_else(|| is_whole(file).err()))
    }

    /// Which of it and the value files that it names are not open, and why.
    pub(crate) fn unopened(&self) -> impl Iterator<Item = (FileId, Error)> {
        let of_value = |file: &ValueFile| Some((file.id(), file.open_error()?));
        let of_values = self.values.iter().filter_map(move |(file, _)| of_value(file));
        self.open_error().map(|error| (self.id, error)).into_iter().chain(of_values)
    }

    /// That a newer version wrote it, or a value file that it names, if so.
    pub(crate) fn newer_version(&self) -> Option<Error> {
        let mut errors = self.unopened().map(|(_, error)| error);
        errors.find(|error| error.kind() == ErrorKind::InvalidArgument)
    }

    /// Reads its whole index and filter, and keeps them. Blocks.
    pub(crate) fn pin(&self) {
        if let Ok(reader) = &self.reader {
            reader.pin_or_tell();
        }
    }

    /// Whether its index and filter are to stay in memory from now on: what of them is there, and what reads bring, as far
    /// as the cache's budget goes. Does no I/O.
    pub(crate) fn keep_pinned(&self, pinned: bool) {
        let Ok(reader) = &self.reader else { return };
        match (pinned, reader.is_pinned()) {
            // Reads meet the damage that it may find.
            (true, false) => drop(reader.promise()),
            (false, true) => reader.unpin(),
            _ => {}
        }
    }

    /// The value files that it names, and the bytes that it names of each.
    pub(crate) fn value_files(&self) -> &[(Arc<ValueFile>, u64)] {
        &self.values
    }

    /// Whether the file stays when one tablet lets go of it: for a backup, or for another tablet that was restored from one.
    pub(crate) fn is_needed_elsewhere(&self) -> bool {
        let holdings = self.store.lock();
        holdings.is_kept(self.id) || self.owners.load(Ordering::Acquire) > 1
    }

    /// One owner less. After the last the file goes once nobody reads it and no backup keeps it, and with it the value
    /// files that it named last.
    pub(crate) fn disown(&self) {
        let _holdings = self.store.lock();
        if self.owners.fetch_sub(1, Ordering::AcqRel) == 1 {
            for (file, bytes) in &self.values {
                file.unname(*bytes);
            }
        }
    }
}

impl Drop for SstFile {
    fn drop(&mut self) {
        let gone = self.store.lock().closed(self.id, self);
        // An engine that ends lets go of files that its versions own.
        if gone && self.owners.load(Ordering::Acquire) == 0 {
            let bytes = self.reader.as_ref().map_or(0, |reader| reader.bytes());
            let mut removable = self.store.removable.lock().unwrap_or_else(PoisonError::into_inner);
            removable.push(self.store.layout.sst(self.id), bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::cache::{CacheOptions, QuickBlockCache};
    use crate::io::{Clock, Files, InlineIo, ManualClock, MemoryFiles, SeededRng, ThreadSpawner};

    use crate::cell::{FamilyId, KeyView, Kind, encode_key};
    use crate::sst::{SstOptions, SstWriter};
    use crate::values::ValuePointer;

    const MIB: u64 = 1 << 20;

    /// A clock on which each look takes a millisecond, as the removal of a file may that follows it.
    #[derive(Debug)]
    struct SlowDisk(ManualClock);

    impl Clock for SlowDisk {
        fn now_micros(&self) -> i64 {
            self.0.now_micros()
        }

        fn monotonic_micros(&self) -> u64 {
            self.0.advance_micros(1_000);
            self.0.monotonic_micros()
        }
    }

    /// A store with obsolete files of these sizes.
    fn store(sizes: &[u64]) -> (Arc<SstStore>, Arc<MemoryFiles>, ManualClock) {
        let clock = ManualClock::new(1);
        let (store, files) = store_by(Arc::new(clock.clone()), sizes);
        (store, files, clock)
    }

    fn store_by(clock: Arc<dyn Clock>, sizes: &[u64]) -> (Arc<SstStore>, Arc<MemoryFiles>) {
        let files = Arc::new(MemoryFiles::new());
        let env = Env {
            files: Arc::clone(&files) as Arc<dyn Files>,
            io: Arc::new(InlineIo),
            clock,
            rng: Arc::new(SeededRng::new(1)),
            spawner: Arc::new(ThreadSpawner),
        };
        let cache = CacheOptions { partition_share_percent: 0, ..CacheOptions::new(1) };
        let cache = Arc::new(QuickBlockCache::with_options(cache));
        let layout = Layout::new(Path::new("/data"));
        files.create_dir_all(&layout.ssts()).unwrap();
        let store = SstStore::new(env, layout, cache);
        for (id, bytes) in (1..).zip(sizes) {
            let path = store.layout.sst(id);
            drop(files.create(&path).unwrap());
            let mut removable = store.removable.lock().unwrap();
            removable.files.push_back((path, *bytes));
            removable.bytes += bytes;
        }
        (store, files)
    }

    fn left(files: &MemoryFiles) -> usize {
        files.list(Path::new("/data/sst")).unwrap().len()
    }

    #[test]
    fn obsolete_files_go_at_their_pace_and_all_at_once_without_one() {
        let (store, files, clock) = store(&[64 * MIB; 4]);
        let wait = store.remove_doomed(128 * MIB, &|_, _| {}).unwrap();
        assert_eq!((left(&files), wait), (3, Duration::from_millis(500)));
        assert_eq!(store.remove_doomed(128 * MIB, &|_, _| {}), Some(wait));
        assert_eq!((left(&files), store.removable_bytes()), (3, 3 * 64 * MIB));
        clock.advance_micros(500_000);
        store.remove_doomed(128 * MIB, &|_, _| {});
        assert_eq!(left(&files), 2);
        assert_eq!(store.remove_doomed(0, &|_, _| {}), None);
        assert_eq!((left(&files), store.removable_bytes()), (0, 0));
    }

    #[test]
    fn small_obsolete_files_go_many_at_a_time() {
        let (store, files, clock) = store(&vec![10_000; 5_000]);
        let mut waits = 0;
        // Each takes ten microseconds of it, so that a hundred of them are worth a wait.
        while let Some(wait) = store.remove_doomed(1_000_000_000, &|_, _| {}) {
            waits += 1;
            clock.advance_micros(u64::try_from(wait.as_micros()).unwrap());
        }
        assert_eq!((left(&files), waits), (0, 49));
        assert_eq!(clock.monotonic_micros(), 49_000, "at their pace all the same");
    }

    #[test]
    fn a_backlog_of_obsolete_files_is_not_kept_for_the_sake_of_quiet() {
        let (store, files, _clock) = store(&[1 << 30; 7]);
        store.remove_doomed(MIB, &|_, _| {});
        assert_eq!(left(&files), 4, "down to what may wait");
    }

    #[test]
    fn others_have_their_turn_while_a_large_table_is_removed() {
        let (store, files) = store_by(Arc::new(SlowDisk(ManualClock::new(1))), &[1 << 30; 1_000]);
        assert_eq!(
            store.remove_doomed(MIB, &|_, _| {}),
            Some(Duration::ZERO),
            "it is to be called again"
        );
        let some = REMOVAL_MICROS as usize / 1_000;
        assert!((1_000 - some..1_000).contains(&left(&files)), "{}", left(&files));
        while store.remove_doomed(MIB, &|_, _| {}) == Some(Duration::ZERO) {}
        assert_eq!(left(&files), 4, "down to what may wait");
        while store.remove_doomed(0, &|_, _| {}) == Some(Duration::ZERO) {}
        assert_eq!(left(&files), 0);
    }

    #[test]
    fn what_an_sst_names_is_kept_once_and_charged() {
        let (store, files, _) = store(&[]);
        let held = |names: u64| {
            let id = 1_000_000 + names;
            let path = store.layout.sst(id);
            let file = files.create(&path).unwrap();
            let mut writer = SstWriter::new(file, &path, id, SstOptions::default(), 0);
            let (mut key, mut value) = (Vec::new(), Vec::new());
            for at in 0..2_000u64 {
                let pointer = ValuePointer {
                    file: 1 + at % names,
                    offset: at * 5_000,
                    stored_len: 5_000,
                    value_len: 4_990,
                };
                key.clear();
                value.clear();
                let row = format!("{at:08}");
                let (family, kind) = (FamilyId(1), Kind::ValueElsewhere);
                encode_key(row.as_bytes(), family, Some(b"q"), 1, 1 + at, kind, &mut key);
                pointer.encode(&mut value);
                writer.add(KeyView::parse(&key).unwrap(), &value).unwrap();
            }
            writer.finish().unwrap();
            let file = store.open(id);
            let reader = file.reader().unwrap();
            assert_eq!(file.value_files().len() as u64, names);
            assert!(reader.properties().value_files.is_empty(), "not a second time");
            assert_eq!(reader.value_file_bytes(), 2_000 * 5_000);
            reader.resident_bytes()
        };
        let (few, many) = (held(1), held(2_000));
        // What its indexes take differs by little.
        assert!((many - few).abs_diff(1_999 * 16) < 4_000, "{few} and {many}");
    }
}
