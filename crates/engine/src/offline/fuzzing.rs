//! What fuzz targets run on the journals of tablets and of the meta store (see [`crate::fuzzing`]): opening them, reading them as a check
//! does, and what a repair makes of them.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use super::Meta;
use super::journals::{read_manifest, read_meta, salvage_manifest, salvage_meta};
use crate::error::ErrorKind;
use crate::fuzzing::history::{History, IN_MEMORY, Left, Written, copy, end};
use crate::io::{Files, MemoryFiles};
use crate::layout::Layout;
use crate::log::fuzzing::check_records;
use crate::log::record::{RECORD_HEADER_BYTES, Record, RecordWriter};
use crate::manifest::journal::{Journal, Tail};
use crate::manifest::{
    LocalMetaStore, MANIFEST_SERIES, META_SERIES, MetaChange, MetaExpect, MetaRecord,
    MetaStore as _, Series, TabletManifest, VersionEdit, encode_meta_commit, encode_meta_snapshot,
};
use crate::tablet::TabletId;

/// Pieces into which dropped rows may cut the SSTs of a manifest that is salvaged. More, which no server makes, would only measure the allocator.
const PIECES_MAX: usize = 10_000;

/// The manifest of a tablet in as many files as a history has, of which one is damaged. Its SSTs exist whose numbers are even.
pub(crate) fn manifest_history(data: &[u8], tablet: TabletId) {
    let layout = Layout::new(Path::new("/fuzz"));
    let dir = layout.tablet(tablet);
    let Some(files) = damaged(data, &dir, MANIFEST_SERIES) else { return };
    let records = History::parse(data).files.into_iter().flatten();
    let decoded = |payload| VersionEdit::decode(Bytes::copy_from_slice(payload)).ok();
    let edits: Vec<VersionEdit> = records.filter_map(|step| decoded(step.payload)).collect();
    let existing: HashSet<u64> = edits
        .iter()
        .flat_map(|edit| &edit.add)
        .map(|sst| sst.id)
        .filter(|id| id % 2 == 0)
        .collect();
    let dropped = |edit: &VersionEdit| edit.add_excised.len() + edit.remove_excised.len();
    let pieces = edits.iter().map(|edit| edit.add.len()).sum::<usize>()
        * edits.iter().map(dropped).sum::<usize>();
    if pieces <= PIECES_MAX {
        let _ = salvage_manifest(&files, &layout, tablet, &existing);
    }
    let checked = read_manifest(&files, &layout, tablet);
    let files: Arc<dyn Files> = Arc::new(files);
    let open = || TabletManifest::open(Arc::clone(&files), &dir, tablet);
    let (mut manifest, version) = match (checked, open()) {
        (Ok(Some(checked)), Ok((manifest, version))) => {
            assert_eq!(checked.state, *version, "a check reads what is opened");
            (manifest, version)
        }
        (Err(_), Err(_)) => return,
        (checked, opened) => {
            panic!("a check finds {:?}, and opened is {opened:?}", checked.map(|_| ()))
        }
    };
    assert_eq!(open().expect("it was opened before").1, version);
    // Which begins the next file, with all of it.
    let edit = VersionEdit { last_seq: Some(version.last_seq()), ..VersionEdit::default() };
    assert_eq!(manifest.append(&edit).expect(IN_MEMORY), version);
    assert_eq!(open().expect("it was written").1, version, "a snapshot has all of a version");
}

/// The meta store in as many files as a history has, of which one is damaged.
pub(crate) fn meta_history(data: &[u8]) {
    let dir = Layout::new(Path::new("/fuzz")).meta();
    let Some(files) = damaged(data, &dir, META_SERIES) else { return };
    let _ = salvage_meta(&files, &dir);
    let checked = read_meta(&files, &dir);
    let files: Arc<dyn Files> = Arc::new(files);
    let open = || LocalMetaStore::open(Arc::clone(&files), &dir);
    let (store, mut state) = match (checked, open()) {
        (Ok(Some(checked)), Ok(store)) => {
            assert_eq!(state_of(&store), checked.state, "a check reads what is opened");
            (store, checked.state)
        }
        (Err(_), Err(_)) => return,
        (checked, opened) => {
            panic!("a check finds {:?}, and opened is {opened:?}", checked.map(|_| ()))
        }
    };
    let reopened = open().expect("it was opened before");
    assert_eq!((state_of(&reopened), reopened.revision()), (state_of(&store), store.revision()));
    drop(reopened);
    let (key, value) = ("key".to_owned(), Bytes::from_static(b"value"));
    let change =
        MetaChange { key: key.clone(), expect: MetaExpect::Any, value: Some(value.clone()) };
    // Refused where revisions are used up.
    let Ok(revision) = store.commit(&[change]) else { return };
    state.insert(key, value);
    let reopened = open().expect("it was written");
    assert_eq!((state_of(&reopened), reopened.revision()), (state, revision));
}

fn state_of(store: &LocalMetaStore) -> Meta {
    let entries = store.list("").expect(IN_MEMORY).into_iter();
    entries.map(|(key, entry)| (key, entry.value)).collect()
}

/// The files of a series as a history says, in which each that is read alone is what it must be; `None` where that is not known.
fn damaged(data: &[u8], dir: &Path, series: Series) -> Option<MemoryFiles> {
    let history = History::parse(data);
    let files = MemoryFiles::new();
    files.create_dir_all(dir).expect(IN_MEMORY);
    let mut written: Vec<Written> = Vec::new();
    for (at, steps) in history.files.iter().enumerate() {
        let id = at as u64 + 1;
        let path = series.path(dir, id);
        let mut writer = RecordWriter::create(&files, &path, series.magic, id).expect(IN_MEMORY);
        written.push(Written::write(&files, &mut writer, Vec::new(), steps));
    }
    let paths: Vec<&Path> = written.iter().map(|file| file.path.as_path()).collect();
    history.damage(&files, &paths);
    for file in &written {
        let left = file.left(&files);
        if left.is_forged {
            return None;
        }
        check_records(&files, file, series.magic, &left);
        check_journal(&files, file, series, &left);
    }
    Some(copy(&files, dir))
}

/// Reads a file as a journal: by the rules of record files, and without markers, of which the last does not count.
fn check_journal(files: &MemoryFiles, file: &Written, series: Series, left: &Left<'_>) {
    let mut expected: Vec<&Record> =
        left.records.iter().filter(|record| !record.payload.is_empty()).collect();
    let behind = left.whole.iter().copied().find(|record| record.offset > left.lost);
    let is_behind_marker = |record: &&Record| {
        record.offset == left.lost + RECORD_HEADER_BYTES
            && record.durable == left.lost
            && !record.payload.is_empty()
    };
    let behind = behind.filter(is_behind_marker).filter(|_| !left.is_clean && !expected.is_empty());
    expected.extend(behind);
    match Journal::read(files, &file.path, series.magic, Some(file.id)) {
        Ok(contents) => {
            assert!(!left.is_damaged, "damage goes unnoticed in a journal");
            let read: Vec<&Record> = contents.records.iter().collect();
            assert_eq!(read, expected, "each record counts that was synced");
            assert_eq!(contents.valid_len, behind.map_or(left.lost, end));
            let is_whole = !left.is_changed && !expected.is_empty();
            assert!(!is_whole || contents.tail == Tail::Clean, "nothing is cut of what is whole");
        }
        Err(error) => {
            assert!(left.is_damaged, "{error}, in a journal");
            assert_eq!(error.kind(), ErrorKind::Corruption);
        }
    }
}

/// A record of the meta store: what can be decoded has this one encoding.
pub(crate) fn meta_record(data: &[u8]) {
    let encoded = match MetaRecord::decode(Bytes::copy_from_slice(data)) {
        Ok(MetaRecord::Snapshot { revision, entries }) => {
            let entries = entries.iter().map(|(key, at, value)| (key.as_str(), *at, value));
            encode_meta_snapshot(revision, entries)
        }
        Ok(MetaRecord::Commit { revision, changes }) => {
            let change = |(key, value)| MetaChange { key, expect: MetaExpect::Any, value };
            let changes: Vec<MetaChange> = changes.into_iter().map(change).collect();
            encode_meta_commit(revision, &changes)
        }
        Err(_) => return,
    };
    assert_eq!(encoded, data, "a record of the meta store has one encoding");
}

/// The version of a tablet as of [`manifest_history`]; `None` where its manifest does not open.
#[cfg(test)]
pub(crate) fn version(data: &[u8], tablet: TabletId) -> Option<crate::manifest::Version> {
    let layout = Layout::new(Path::new("/fuzz"));
    let files = damaged(data, &layout.tablet(tablet), MANIFEST_SERIES)?;
    Some(read_manifest(&files, &layout, tablet).ok()??.state)
}

/// The revision of a meta store as of [`meta_history`]; `None` where it does not open.
#[cfg(test)]
pub(crate) fn revision(data: &[u8]) -> Option<u64> {
    let dir = Layout::new(Path::new("/fuzz")).meta();
    let files = damaged(data, &dir, META_SERIES)?;
    LocalMetaStore::open(Arc::new(files), &dir).ok().map(|store| store.revision())
}
