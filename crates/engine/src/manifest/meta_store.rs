//! The local meta store: the catalog's keys and values, in memory and in a [rotating
//! journal](super::rotation).
//!
//! ```text
//! META-<16 hex>:  snapshot | commit | commit | ...           each a record (meta_record.rs)
//! ```
//!
//! Every commit raises the revision by one, and what it writes has that revision.
//!
//! Guarantees: readers see durable values only. A commit is in one record, so it is there after a crash
//! as a whole or not at all. A *failed* commit is one whose outcome is not known until the next start.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use bytes::Bytes;

use super::journal::{Record, sync_parent};
use super::meta_record::{self, MetaRecord};
use super::rotation::{Effect, Found, RotatingJournal, Series};
use super::{MetaChange, MetaEntry, MetaExpect, MetaStore};
use crate::error::{Error, ErrorKind, Result};
use crate::io::Files;

/// Bytes of a key at most. Keys are paths of names that Bigtable limits to some hundred bytes.
pub const META_KEY_BYTES_MAX: usize = 4 << 10;

/// Bytes of a value at most. The largest are table schemas; a hundred families with rules take 10 KB.
pub const META_VALUE_BYTES_MAX: usize = 16 << 20;

/// Bytes of all entries at most, each with [`META_ENTRY_OVERHEAD_BYTES`]: all of it is in memory and in every
/// snapshot, which must fit into one record of the journal ([`crate::log::record::RECORD_BYTES_MAX`]).
pub const META_BYTES_MAX: u64 = 256 << 20;

/// The part of [`META_BYTES_MAX`] that is kept for commits that wind something up ([`META_WIND_UP_BYTES_MAX`]): a table's state
/// when it is deleted, the end of an operation. More than a hundred of the largest, thousands of the usual ones; a larger part
/// would be taken from what people keep.
pub const META_RESERVE_BYTES: u64 = 8 << 20;

/// Bytes by which a commit may make the store larger and still use [`META_RESERVE_BYTES`], if it creates no entry: the result of
/// an operation, with a table's schema in it. A larger one would let a few changes use the reserve up.
pub const META_WIND_UP_BYTES_MAX: u64 = 64 << 10;

/// When to try again where the store is full: somebody has to delete something first.
pub const META_FULL_RETRY: Duration = Duration::from_secs(10);

/// Bytes of an entry at most besides its key and value, in a record: a revision and two lengths.
pub const META_ENTRY_OVERHEAD_BYTES: u64 = 16;

/// Bytes of commits at which the store is rewritten as a snapshot, if they exceed the snapshot too.
pub const META_ROTATE_BYTES: u64 = 1 << 20;

/// Bytes on the disk that are kept for commits that only remove entries, so that a full disk can be made room on: some
/// hundred of them. Each gives back more than it takes, so that the reserve is filled again; a smaller one could be used up by
/// backups that were all but empty.
pub const META_DISK_RESERVE_BYTES: u64 = 64 << 10;

pub(crate) const SERIES: Series = Series {
    name: "META-",
    magic: *b"TEPUIMTA",
    rotate_bytes: META_ROTATE_BYTES,
    reserve_bytes: META_DISK_RESERVE_BYTES,
};

type Entries = BTreeMap<String, MetaEntry>;

/// What is durable.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct State {
    entries: Entries,
    revision: u64,
    /// Bytes of all entries ([`entry_bytes`]).
    bytes: u64,
}

/// Looks for something that is made only once there is a store.
type Beside<'a> = &'a dyn Fn() -> Result<Option<PathBuf>>;

/// A [`MetaStore`] in a local directory.
#[derive(Debug)]
pub struct LocalMetaStore {
    /// Held through a commit: commits are one after the other, readers do not wait for their sync.
    journal: Mutex<RotatingJournal>,
    /// No commit is taken any more. Set under the journal's lock.
    closed: AtomicBool,
    state: RwLock<State>,
}

/// Bytes that an entry, or a change, takes in a record at most.
fn entry_bytes(key: &str, value: Option<&Bytes>) -> u64 {
    (key.len() + value.map_or(0, Bytes::len)) as u64 + META_ENTRY_OVERHEAD_BYTES
}

impl State {
    fn encode_snapshot(&self) -> Vec<u8> {
        let entries = self.entries.iter().map(|(k, e)| (k.as_str(), e.revision, &e.value));
        meta_record::encode_snapshot(self.revision, entries)
    }

    fn set(&mut self, key: &str, value: Option<&Bytes>, revision: u64) {
        let size = |value: &Bytes| entry_bytes(key, Some(value));
        let old = match value {
            Some(value) => {
                self.bytes += size(value);
                let entry = MetaEntry { value: value.clone(), revision };
                self.entries.insert(key.to_owned(), entry)
            }
            None => self.entries.remove(key),
        };
        self.bytes -= old.map_or(0, |entry| size(&entry.value));
    }

    fn install(&mut self, revision: u64, changes: &[MetaChange]) {
        for change in changes {
            self.set(&change.key, change.value.as_ref(), revision);
        }
        self.revision = revision;
    }

    /// What `bytes` will be after these changes, whose keys differ.
    fn bytes_after(&self, changes: &[MetaChange]) -> u64 {
        changes.iter().fold(self.bytes, |bytes, MetaChange { key, value, .. }| {
            let size = |value: &Bytes| entry_bytes(key, Some(value));
            let old = self.entries.get(key).map_or(0, |entry| size(&entry.value));
            bytes - old + value.as_ref().map_or(0, size)
        })
    }

    /// `Overloaded` where there is no room for these changes, whose keys differ. What makes the store no larger is always
    /// taken.
    fn check_room(&self, changes: &[MetaChange]) -> Result<()> {
        let after = self.bytes_after(changes);
        let creates =
            |change: &MetaChange| change.value.is_some() && !self.entries.contains_key(&change.key);
        let winds_up = after.saturating_sub(self.bytes) <= META_WIND_UP_BYTES_MAX
            && !changes.iter().any(creates);
        let bytes_max = if winds_up { META_BYTES_MAX } else { META_BYTES_MAX - META_RESERVE_BYTES };
        if after <= self.bytes || after <= bytes_max {
            return Ok(());
        }
        let what = format!(
            "the catalog is full: it would have {after} bytes, limit {bytes_max}; delete what nobody needs of what is kept there"
        );
        Err(Error::overloaded(what, META_FULL_RETRY))
    }

    /// The state that the records of the file at `path` make.
    fn read(path: &Path, records: Vec<Record>) -> Result<Self> {
        let mut state = Self::default();
        for (i, record) in records.into_iter().enumerate() {
            let offset = record.offset;
            MetaRecord::decode(record.payload)
                .and_then(|record| state.replay(record, i == 0))
                .map_err(|e| e.context(format!("{}: record at offset {offset}", path.display())))?;
        }
        Ok(state)
    }

    fn replay(&mut self, record: MetaRecord, first: bool) -> Result<()> {
        let corrupt = |what: &str| Err(Error::new(ErrorKind::Corruption, what));
        match record {
            MetaRecord::Snapshot { revision, entries } if first => {
                for (key, entry_revision, value) in entries {
                    if entry_revision > revision {
                        return corrupt("entry is newer than its store");
                    }
                    self.set(&key, Some(&value), entry_revision);
                }
                self.revision = revision;
            }
            MetaRecord::Commit { revision, changes } if !first => {
                if Some(revision) != self.revision.checked_add(1) {
                    return corrupt("revision does not follow the one before");
                }
                for (key, value) in changes {
                    self.set(&key, value.as_ref(), revision);
                }
                self.revision = revision;
            }
            MetaRecord::Snapshot { .. } => return corrupt("snapshot is not the first record"),
            MetaRecord::Commit { .. } => return corrupt("first record is not a snapshot"),
        }
        Ok(())
    }

    fn check(&self, change: &MetaChange) -> Result<()> {
        let key = &change.key;
        let found = self.entries.get(key).map(|entry| entry.revision);
        match (&change.expect, found) {
            (MetaExpect::Any, _) | (MetaExpect::Absent, None) => Ok(()),
            (MetaExpect::Revision(want), Some(found)) if *want == found => Ok(()),
            (MetaExpect::Absent, Some(found)) => Err(Error::new(
                ErrorKind::AlreadyExists,
                format!("{key} exists, at revision {found}"),
            )),
            (MetaExpect::Revision(want), Some(found)) => Err(Error::new(
                ErrorKind::NotFound,
                format!("revision {want} of {key} is gone; it is at revision {found}"),
            )),
            (MetaExpect::Revision(want), None) => Err(Error::new(
                ErrorKind::NotFound,
                format!("revision {want} of {key} is gone; there is no such key"),
            )),
        }
    }
}

fn check_limits(changes: &[MetaChange]) -> Result<()> {
    let refuse = |what: String| Err(Error::new(ErrorKind::InvalidArgument, what));
    let mut keys = HashSet::new();
    for change in changes {
        let value_len = change.value.as_ref().map_or(0, Bytes::len);
        if change.key.len() > META_KEY_BYTES_MAX || value_len > META_VALUE_BYTES_MAX {
            return refuse(format!(
                "key of {} bytes (limit {META_KEY_BYTES_MAX}) or value of {value_len} bytes (limit \
                 {META_VALUE_BYTES_MAX}) is too long",
                change.key.len()
            ));
        }
        if !keys.insert(change.key.as_str()) {
            return refuse(format!("{} is changed twice in one commit", change.key));
        }
    }
    let bytes: u64 = changes.iter().map(|c| entry_bytes(&c.key, c.value.as_ref())).sum();
    if bytes > META_BYTES_MAX {
        return refuse(format!("a commit of {bytes} bytes is over the limit of {META_BYTES_MAX}"));
    }
    Ok(())
}

impl LocalMetaStore {
    /// Opens the store in `dir`; where there is none, creates it and the directory, durably.
    pub fn open(files: Arc<dyn Files>, dir: &Path) -> Result<Self> {
        Self::open_beside(files, dir, &|| Ok(None))
    }

    /// The same beside `data`, which looks for a file or directory that was made when there was a store already. It is
    /// asked only where there is no store now: with something there the store is lost, and that is `Corruption`.
    pub(crate) fn open_beside(files: Arc<dyn Files>, dir: &Path, data: Beside<'_>) -> Result<Self> {
        Self::open_in(files, dir, data, SERIES)
    }

    fn open_in(
        files: Arc<dyn Files>,
        dir: &Path,
        data: Beside<'_>,
        series: Series,
    ) -> Result<Self> {
        files.create_dir_all(dir)?;
        let (mut journal, found) =
            RotatingJournal::open(Arc::clone(&files), dir, series, State::read)?;
        let state = match found {
            Found::State(state) => state,
            Found::Damaged(path) => {
                let what = "the snapshot does not verify, and there is no other file of the store; \
                            restore it, or run `tepui repair` on the data directory";
                return Err(Error::corruption(path.display(), 0, what));
            }
            Found::Nothing => {
                if let Some(data) = data()? {
                    return Err(missing(dir, &data));
                }
                // At once, not with the first commit: from now on a store that is not there is lost.
                let state = State::default();
                let snapshot = state.encode_snapshot();
                journal = RotatingJournal::create(Arc::clone(&files), dir, series, &snapshot)?;
                sync_parent(files.as_ref(), dir)?;
                state
            }
        };
        let closed = AtomicBool::new(false);
        Ok(Self { journal: Mutex::new(journal), closed, state: RwLock::new(state) })
    }

    fn state(&self) -> RwLockReadGuard<'_, State> {
        // Installing a commit does not panic halfway: it moves values that are already there.
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins the file that commits go to, beside the one that was opened: the first commit would, and finds no space for it
    /// on a disk that is full by then. Where there is none now, or no open file, commits try again.
    pub(crate) fn begin(&self) -> Result<()> {
        let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        let snapshot = self.state().encode_snapshot();
        match journal.begin(&snapshot) {
            Err(error) if error.may_pass() => {
                tracing::warn!(%error, "the catalog's next file cannot be begun: nothing of it can be changed until it can");
                Ok(())
            }
            begun => begun,
        }
    }

    /// Takes no more commits, once the one under way has ended; what is there can still be read.
    pub(crate) fn close(&self) {
        let _journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        self.closed.store(true, Ordering::Release);
    }

    /// Bytes of all entries, of the [`META_BYTES_MAX`] that they may have.
    pub fn bytes(&self) -> u64 {
        self.state().bytes
    }

    /// The revision of the newest commit; 0 before the first.
    pub fn revision(&self) -> u64 {
        self.state().revision
    }
}

fn missing(dir: &Path, data: &Path) -> Error {
    let (dir, data) = (dir.display(), data.display());
    let message = format!(
        "{dir}: the catalog is missing, but there is {data}. No data was changed: restore {dir} from a \
         backup, and then run `tepui repair` before a start, which removes what an older catalog does not name; \
         without a catalog nobody knows which tablet is whose"
    );
    Error::new(ErrorKind::Corruption, message)
}

impl MetaStore for LocalMetaStore {
    fn get(&self, key: &str) -> Result<Option<MetaEntry>> {
        Ok(self.state().entries.get(key).cloned())
    }

    fn list(&self, prefix: &str) -> Result<Vec<(String, MetaEntry)>> {
        let state = self.state();
        let from = state
            .entries
            .range::<str, _>((std::ops::Bound::Included(prefix), std::ops::Bound::Unbounded));
        Ok(from
            .take_while(|(key, _)| key.starts_with(prefix))
            .map(|(key, entry)| (key.clone(), entry.clone()))
            .collect())
    }

    fn commit(&self, changes: &[MetaChange]) -> Result<u64> {
        check_limits(changes)?;
        let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Closed, "the server is shutting down"));
        }
        // Only commits change the state, and this one holds the journal: what is read here stays true.
        let state = self.state();
        for change in changes {
            state.check(change)?;
        }
        if changes.is_empty() {
            return Ok(state.revision);
        }
        state.check_room(changes)?;
        let used_up = || Error::new(ErrorKind::InvalidArgument, "revisions are used up");
        let revision = state.revision.checked_add(1).ok_or_else(used_up)?;
        drop(state);

        let only_removes = changes.iter().all(|change| change.value.is_none());
        let effect = if only_removes { Effect::Frees } else { Effect::Takes };
        journal.append(&meta_record::encode_commit(revision, changes), effect, || {
            let mut next = self.state().clone();
            next.install(revision, changes);
            next.encode_snapshot()
        })?;
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        state.install(revision, changes);
        Ok(revision)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::meta_record::dump;
    use super::super::testing::{CRASHES, Crash, TestFiles};
    use super::*;
    use crate::io::{Fault, FaultFiles, FaultOp, MemoryFiles};
    use crate::log::record::{RECORD_BYTES_MAX, RECORD_HEADER_BYTES};

    fn dir() -> &'static Path {
        Path::new("data/meta")
    }

    fn small() -> Series {
        Series { rotate_bytes: 100, ..SERIES }
    }

    fn open(files: &TestFiles) -> Result<LocalMetaStore> {
        LocalMetaStore::open_in(Arc::new(files.clone()), dir(), &|| Ok(None), small())
    }

    fn put(key: &str, expect: MetaExpect, value: &str) -> MetaChange {
        let value = Some(Bytes::copy_from_slice(value.as_bytes()));
        MetaChange { key: key.into(), expect, value }
    }

    fn delete(key: &str, expect: MetaExpect) -> MetaChange {
        MetaChange { key: key.into(), expect, value: None }
    }

    fn all(store: &LocalMetaStore) -> (Vec<(String, MetaEntry)>, u64) {
        (store.list("").unwrap(), store.revision())
    }

    #[test]
    fn a_commit_whose_expectations_do_not_all_hold_changes_nothing() {
        let files = TestFiles::default();
        let store = open(&files).unwrap();
        assert_eq!(store.commit(&[put("a", MetaExpect::Absent, "1")]).unwrap(), 1);
        assert_eq!(store.commit(&[put("b", MetaExpect::Any, "2")]).unwrap(), 2);
        let before = all(&store);
        let conflicts = [
            (ErrorKind::AlreadyExists, put("a", MetaExpect::Absent, "x")),
            (ErrorKind::NotFound, put("a", MetaExpect::Revision(2), "x")),
            (ErrorKind::NotFound, put("c", MetaExpect::Revision(1), "x")),
            (ErrorKind::NotFound, delete("b", MetaExpect::Revision(1))),
        ];
        for (kind, conflict) in conflicts {
            let commit = [put("z", MetaExpect::Absent, "z"), conflict];
            assert_eq!(store.commit(&commit).unwrap_err().kind(), kind, "{commit:?}");
            assert_eq!(all(&store), before);
        }
        let swap = [put("a", MetaExpect::Revision(1), "3"), delete("b", MetaExpect::Revision(2))];
        assert_eq!(store.commit(&swap).unwrap(), 3);
        assert_eq!(store.get("a").unwrap().unwrap().revision, 3);
        assert_eq!(store.get("b").unwrap(), None);
        assert_eq!(store.commit(&[]).unwrap(), 3);
        // A key that was deleted and written again has a new revision.
        store.commit(&[put("b", MetaExpect::Absent, "2")]).unwrap();
        let stale = store.commit(&[delete("b", MetaExpect::Revision(2))]);
        assert_eq!(stale.unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn entries_come_though_no_further_file_can_be_opened() {
        let disk = MemoryFiles::new();
        let files = FaultFiles::new(Arc::new(disk.clone()));
        let open = |files| LocalMetaStore::open_in(files, dir(), &|| Ok(None), small()).unwrap();
        let store = open(Arc::new(files.clone()));
        for op in [FaultOp::Create, FaultOp::OpenDir, FaultOp::List] {
            files.inject(Fault::new(op).kind(ErrorKind::Exhausted).sticky());
            for n in 0..50 {
                store.commit(&[put(&format!("{op:?} {n}"), MetaExpect::Absent, "value")]).unwrap();
            }
            files.heal();
        }
        assert_eq!(all(&store).0.len(), 150);
        assert_eq!(all(&open(Arc::new(disk))), all(&store));
    }

    #[test]
    fn on_a_full_disk_entries_go_and_others_come_once_there_is_room() {
        let disk = MemoryFiles::new();
        let files = FaultFiles::new(Arc::new(disk.clone()));
        // What removed files give back is not counted.
        files.set_quota_bytes(Some(1 << 30));
        let open = |files| LocalMetaStore::open_in(files, dir(), &|| Ok(None), small()).unwrap();
        let store = open(Arc::new(files.clone()));
        let keys: Vec<String> = (0..100).map(|n| format!("key {n}")).collect();
        for key in &keys {
            store.commit(&[put(key, MetaExpect::Absent, "value")]).unwrap();
        }
        files.set_quota_bytes(Some(0));
        let more = |n: usize| store.commit(&[put(&format!("more {n}"), MetaExpect::Any, "")]);
        let full = (0..).find_map(|n| more(n).err()).unwrap();
        assert!(full.kind() == ErrorKind::NoSpace && !full.is_in_doubt(), "{full:?}");
        // They outgrow the file, and there is no room for the next.
        for key in &keys {
            store.commit(&[delete(key, MetaExpect::Any)]).unwrap();
        }
        let left = all(&store);
        assert_eq!(all(&open(Arc::new(disk))), left);
        assert_eq!(more(0).unwrap_err().kind(), ErrorKind::NoSpace);
        files.set_quota_bytes(None);
        more(0).unwrap();
    }

    #[test]
    fn on_a_full_disk_a_removal_beyond_the_reserve_is_refused_and_smaller_ones_are_taken() {
        let files = FaultFiles::new(Arc::new(MemoryFiles::new()));
        files.set_quota_bytes(Some(1 << 30));
        let store = LocalMetaStore::open(Arc::new(files.clone()), dir()).unwrap();
        let keys: Vec<String> = (0..2000).map(|n| format!("{n:0>90}")).collect();
        let puts: Vec<_> = keys.iter().map(|key| put(key, MetaExpect::Absent, "value")).collect();
        store.commit(&puts).unwrap();
        files.set_quota_bytes(Some(0));
        let before = all(&store);
        let deletes: Vec<_> = keys.iter().map(|key| delete(key, MetaExpect::Any)).collect();
        let full = store.commit(&deletes).unwrap_err();
        assert!(full.kind() == ErrorKind::NoSpace && !full.is_in_doubt(), "{full:?}");
        assert_eq!(all(&store), before);
        for some in deletes.chunks(100).take(4) {
            store.commit(some).unwrap();
        }
        // And when there is room again all at once.
        files.set_quota_bytes(None);
        store.commit(&deletes).unwrap();
        assert!(store.list("").unwrap().is_empty());
    }

    #[test]
    fn lists_are_by_prefix_and_in_order() {
        let store = open(&TestFiles::default()).unwrap();
        let keys = ["t/b", "t/a", "t", "t0", "u/a", "t/a/x", "é/1"];
        store.commit(&keys.map(|k| put(k, MetaExpect::Absent, k))).unwrap();
        let list = |prefix| -> Vec<String> {
            store.list(prefix).unwrap().into_iter().map(|(key, _)| key).collect()
        };
        assert_eq!(list("t/"), ["t/a", "t/a/x", "t/b"]);
        assert_eq!(list("t"), ["t", "t/a", "t/a/x", "t/b", "t0"]);
        assert_eq!(list("é"), ["é/1"]);
        assert_eq!((list("").len(), list("zz").len()), (7, 0));
    }

    #[test]
    fn limits_are_enforced_before_anything_is_written() {
        let store = open(&TestFiles::default()).unwrap();
        let key = "k".repeat(META_KEY_BYTES_MAX + 1);
        let value = "v".repeat(META_VALUE_BYTES_MAX + 1);
        let twice = [put("a", MetaExpect::Any, "1"), delete("a", MetaExpect::Any)];
        let bad = [
            vec![put(&key, MetaExpect::Any, "")],
            vec![put("a", MetaExpect::Any, &value)],
            twice.to_vec(),
        ];
        for commit in bad {
            assert_eq!(store.commit(&commit).unwrap_err().kind(), ErrorKind::InvalidArgument);
        }
        assert_eq!(all(&store), (vec![], 0));
        store.commit(&[put("a", MetaExpect::Any, "1")]).expect("a refused commit does not poison");
    }

    #[test]
    fn a_full_store_fits_into_one_record() {
        // A tag and a revision come on top.
        const { assert!(META_BYTES_MAX + 32 < RECORD_BYTES_MAX) };
        let mut state = State::default();
        let (long, value) = ("k".repeat(META_KEY_BYTES_MAX), vec![0; META_VALUE_BYTES_MAX]);
        state.set(&long, Some(&Bytes::from(value)), u64::MAX);
        state.set("", Some(&Bytes::new()), u64::MAX);
        state.revision = u64::MAX;
        let encoded = state.encode_snapshot().len() as u64;
        assert!(encoded <= state.bytes + 32, "{encoded}");
        state.set(&long, None, 0);
        assert_eq!(state.bytes, META_ENTRY_OVERHEAD_BYTES);
    }

    #[test]
    fn a_full_store_says_so_and_lets_go_of_things_and_winds_them_up() {
        let mut state = State::default();
        let entry = |bytes: u64| Some(Bytes::from(vec![0; bytes as usize]));
        let commit = |state: &mut State, key: &str, value: Option<Bytes>| {
            let changes = [MetaChange { key: key.into(), expect: MetaExpect::Any, value }];
            state.check_room(&changes).map(|()| state.install(1, &changes))
        };
        let large = entry(META_VALUE_BYTES_MAX as u64);
        let filled = (0..).find_map(|n| commit(&mut state, &n.to_string(), large.clone()).err());
        let error = filled.unwrap();
        assert_eq!(error.kind(), ErrorKind::Overloaded, "{error}");
        assert_eq!(error.retry_after(), Some(META_FULL_RETRY));
        let fits = |n: &u64| commit(&mut state, &format!("small {n}"), entry(1000)).is_ok();
        assert!((0..1_000_000).take_while(fits).count() > 1000);
        assert!(state.bytes <= META_BYTES_MAX - META_RESERVE_BYTES);

        // What is there may change a little, into the reserve, and go; nothing is created.
        let step = META_WIND_UP_BYTES_MAX;
        let far = entry(2 * META_WIND_UP_BYTES_MAX);
        assert!(commit(&mut state, "last", far).is_err());
        let mut ends = 0;
        while commit(&mut state, "0", entry(META_VALUE_BYTES_MAX as u64 + (ends + 1) * step))
            .is_ok()
        {
            ends += 1;
        }
        assert!(ends > 100, "{ends}");
        assert!(state.bytes <= META_BYTES_MAX);
        assert!(commit(&mut state, "new", entry(1)).is_err());
        assert!(commit(&mut state, "1", entry(1)).is_ok(), "smaller than it was");
        commit(&mut state, "2", None).unwrap();
        commit(&mut state, "new", entry(1)).unwrap();
    }

    #[test]
    fn concurrent_increments_by_revision_are_all_counted() {
        let store = open(&TestFiles::default()).unwrap();
        store.commit(&[put("n", MetaExpect::Absent, "0")]).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        loop {
                            let entry = store.get("n").unwrap().unwrap();
                            let n: u64 =
                                std::str::from_utf8(&entry.value).unwrap().parse().unwrap();
                            let expect = MetaExpect::Revision(entry.revision);
                            match store.commit(&[put("n", expect, &(n + 1).to_string())]) {
                                Ok(_) => break,
                                Err(e) => assert_eq!(e.kind(), ErrorKind::NotFound),
                            }
                        }
                    }
                });
            }
        });
        assert_eq!(store.get("n").unwrap().unwrap().value, "200");
        assert_eq!(store.revision(), 201);
    }

    fn history() -> Vec<Vec<MetaChange>> {
        (0..12)
            .map(|i| {
                vec![
                    put(&format!("k{}", i % 5), MetaExpect::Any, &"v".repeat(i)),
                    delete(&format!("k{}", (i + 2) % 5), MetaExpect::Any),
                ]
            })
            .collect()
    }

    #[test]
    fn a_fault_at_any_operation_leaves_the_state_before_or_after() {
        for fail_after in 0.. {
            let files = TestFiles::default();
            files.fail_after(fail_after);
            let mut allowed = vec![(vec![], 0)];
            let mut failed = false;
            match open(&files) {
                Err(_) => failed = true,
                Ok(store) => {
                    for changes in history() {
                        let model = all(&store);
                        match store.commit(&changes) {
                            Ok(_) => allowed = vec![all(&store)],
                            Err(error) if failed => {
                                assert_eq!(error.kind(), ErrorKind::ReadOnly);
                            }
                            Err(error) => {
                                assert_eq!(error.kind(), ErrorKind::Io);
                                assert_eq!(all(&store), model, "readers see durable values only");
                                failed = true;
                                allowed.push(after(model, &changes));
                            }
                        }
                    }
                }
            }
            for crash in CRASHES {
                let disk = files.crash(crash);
                let store = open(&disk).unwrap();
                let found = all(&store);
                assert!(allowed.contains(&found), "fault after {fail_after}, {crash:?}");
                assert_eq!(all(&open(&disk.crash(Crash::Forgets)).unwrap()), found);
                store.commit(&[put("again", MetaExpect::Absent, "")]).unwrap();
                assert_eq!(all(&open(&disk.crash(Crash::Forgets)).unwrap()), all(&store));
            }
            if !failed {
                assert!(fail_after > 30, "the faults met too few operations");
                break;
            }
        }
    }

    fn after(
        (entries, revision): (Vec<(String, MetaEntry)>, u64),
        changes: &[MetaChange],
    ) -> (Vec<(String, MetaEntry)>, u64) {
        let mut entries: Entries = entries.into_iter().collect();
        let revision = revision + 1;
        for change in changes {
            match &change.value {
                Some(v) => {
                    let entry = MetaEntry { value: v.clone(), revision };
                    entries.insert(change.key.clone(), entry);
                }
                None => {
                    entries.remove(&change.key);
                }
            }
        }
        (entries.into_iter().collect(), revision)
    }

    #[test]
    fn a_cut_or_a_flip_never_shows_another_state() {
        let files = TestFiles::default();
        let store = LocalMetaStore::open(Arc::new(files.clone()), dir()).unwrap();
        let path = dir().join(&files.names()[0]);
        // A state is there with its record; the marker behind that may be cut.
        let end = || files.contents(&path).len() - RECORD_HEADER_BYTES as usize;
        let mut states = vec![(end(), all(&store))];
        for changes in history().into_iter().take(5) {
            store.commit(&changes).unwrap();
            states.push((end(), all(&store)));
        }
        let image = files.contents(&path);
        let (last_end, last) = states[states.len() - 1].clone();
        let found = |image: &[u8]| {
            let disk = TestFiles::default();
            disk.put(&path, image);
            open(&disk).map(|store| all(&store))
        };
        for len in 0..=image.len() {
            let want = states.iter().rev().find(|(end, _)| *end <= len);
            match (found(&image[..len]), want) {
                (Ok(found), Some((_, want))) => assert_eq!(&found, want, "cut to {len}"),
                (Err(error), None) => assert_eq!(error.kind(), ErrorKind::Corruption, "{len}"),
                (found, want) => panic!("cut to {len}: {found:?}, not {want:?}"),
            }
        }
        for at in 0..image.len() {
            let mut flipped = image.clone();
            flipped[at] ^= 0x10;
            match found(&flipped) {
                Ok(state) => assert!(at >= last_end && state == last, "byte {at}"),
                Err(error) => {
                    assert!(at < last_end && error.kind() == ErrorKind::Corruption, "{error}");
                }
            }
        }
    }

    #[test]
    fn a_lost_snapshot_is_corruption_and_not_an_empty_store() {
        let files = TestFiles::default();
        // The first file, and one that a later start wrote.
        for value in ["1", "2"] {
            open(&files).unwrap().commit(&[put("a", MetaExpect::Any, value)]).unwrap();
            let path = dir().join(&files.names()[0]);
            let image = files.contents(&path);
            for damaged in [vec![], image[..20].to_vec(), vec![0; image.len()]] {
                files.put(&path, &damaged);
                assert_eq!(open(&files).unwrap_err().kind(), ErrorKind::Corruption);
            }
            files.put(&path, &image);
        }
    }

    #[test]
    fn beside_data_a_store_is_opened_and_never_created() {
        let files = TestFiles::default();
        let beside = |files: &TestFiles| {
            let data = || Ok(Some(PathBuf::from("data/sst/1.sst")));
            LocalMetaStore::open_beside(Arc::new(files.clone()), dir(), &data)
        };
        let error = beside(&files).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corruption);
        assert!(error.message().contains("data/meta: the catalog is missing"), "{error}");
        assert!(error.message().contains("data/sst/1.sst"), "{error}");
        assert!(files.names().is_empty());
        open(&files).unwrap().commit(&[put("a", MetaExpect::Any, "1")]).unwrap();
        assert!(beside(&files).unwrap().get("a").unwrap().is_some());
    }

    #[test]
    fn a_dump_shows_snapshot_and_commits() {
        let files = TestFiles::default();
        let store = LocalMetaStore::open(Arc::new(files.clone()), dir()).unwrap();
        store.commit(&[put("a", MetaExpect::Any, "1\0"), delete("b", MetaExpect::Any)]).unwrap();
        let (records, torn) = dump(&files, &dir().join(&files.names()[0])).unwrap();
        assert!(!torn);
        let json = serde_json::to_string(&records).unwrap();
        assert_eq!(
            json,
            r#"[[32,{"snapshot":{"revision":0,"entries":[]}}],"#.to_owned()
                + r#"[82,{"commit":{"revision":1,"changes":[["a","1\\x00"],["b",null]]}}]]"#
        );
    }

    #[test]
    fn the_encoding_is_the_documented_one() {
        let mut state = State::default();
        state.set("a", Some(&Bytes::from_static(b"xy")), 300);
        state.revision = 301;
        assert_eq!(state.encode_snapshot(), [1, 0xAD, 2, 1, b'a', 0xAC, 2, 2, b'x', b'y']);
        let commit = Bytes::from_static(&[2, 7, 1, b'a', 1, 1, b'x', 1, b'b', 0]);
        let changes =
            vec![("a".to_owned(), Some(Bytes::from_static(b"x"))), ("b".to_owned(), None)];
        assert_eq!(
            MetaRecord::decode(commit).unwrap(),
            MetaRecord::Commit { revision: 7, changes }
        );
    }

    proptest! {
        #[test]
        fn random_records_never_panic(raw in proptest::collection::vec(any::<u8>(), 0..100)) {
            if let Ok(record) = MetaRecord::decode(raw.into()) {
                let mut state = State::default();
                let _ = state.replay(record, true);
            }
        }
    }
}
