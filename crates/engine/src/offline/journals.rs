//! Reading the meta store and the manifests of tablets without changing anything, by the rules of their
//! opening; and by looser rules, for repair: everything that can still be read of a damaged one.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::salvaged_version::SalvagedVersion;
use super::{CACHE_BYTES, Meta};
use crate::cache::{BlockCache, QuickBlockCache};
use crate::error::{Error, ErrorKind, Result};
use crate::io::Files;
use crate::layout::Layout;
use crate::log::record::{FILE_HEADER_BYTES, Record, Salvage};
use crate::manifest::journal::{Contents, Journal, Tail};
use crate::manifest::{
    MANIFEST_SERIES, META_SERIES, MetaRecord, Series, SstRef, Version, VersionEdit, replay_manifest,
};
use crate::sst::SstReader;
use crate::tablet::{TabletId, whole_block_bytes};

/// A state that was read.
pub(super) struct Read<T> {
    /// The file that counts.
    pub(super) path: PathBuf,
    pub(super) state: T,
    /// Bytes behind the last record that are the rest of a write that was cut short.
    pub(super) torn: bool,
}

/// The newest file of a series that counts, as opening finds it.
enum Newest {
    /// No file at all.
    Nothing,
    /// Files, and none with a whole first record; the newest.
    Damaged(PathBuf),
    State(PathBuf, Contents),
}

/// The files of a series, oldest first.
pub(super) fn series_files(
    files: &dyn Files,
    dir: &Path,
    series: Series,
) -> Result<Vec<(u64, PathBuf)>> {
    let names = super::list_files(files, dir)?.into_iter();
    let mut found: Vec<(u64, PathBuf)> =
        names.filter_map(|(name, _)| Some((series.parse(&name)?, dir.join(name)))).collect();
    found.sort_unstable();
    Ok(found)
}

fn newest(files: &dyn Files, dir: &Path, series: Series) -> Result<Newest> {
    let mut newest = Newest::Nothing;
    for (id, path) in series_files(files, dir, series)?.into_iter().rev() {
        let contents = Journal::read(files, &path, series.magic, Some(id))?;
        if !contents.records.is_empty() {
            return Ok(Newest::State(path, contents));
        }
        if matches!(newest, Newest::Nothing) {
            newest = Newest::Damaged(path);
        }
    }
    Ok(newest)
}

fn at_record(path: &Path, offset: u64, error: Error) -> Error {
    match error.kind() {
        // Of a newer version: not damage.
        ErrorKind::InvalidArgument => error.context(path.display()),
        _ => Error::corruption(path.display(), offset, error.message()),
    }
}

/// The meta store; `None` where there is none yet, as before the end of the first start.
pub(super) fn read_meta(files: &dyn Files, dir: &Path) -> Result<Option<Read<Meta>>> {
    let (path, contents) = match newest(files, dir, META_SERIES)? {
        Newest::Nothing => return Ok(None),
        Newest::Damaged(path) => {
            let what = "the snapshot does not verify, and there is no other file of the store";
            return Err(Error::corruption(path.display(), FILE_HEADER_BYTES, what));
        }
        Newest::State(path, contents) => (path, contents),
    };
    let mut meta = Meta::new();
    let mut revision = None;
    for record in contents.records {
        let offset = record.offset;
        let decoded =
            MetaRecord::decode(record.payload).map_err(|e| at_record(&path, offset, e))?;
        let wrong = |what| Err(Error::corruption(path.display(), offset, what));
        match (&decoded, revision) {
            (MetaRecord::Snapshot { revision: new, entries }, None) => {
                if entries.iter().any(|(_, written, _)| written > new) {
                    return wrong("an entry is newer than its store");
                }
                revision = Some(*new);
            }
            (MetaRecord::Commit { revision: new, .. }, Some(old)) => {
                if old.checked_add(1) != Some(*new) {
                    return wrong("a revision does not follow the one before");
                }
                revision = Some(*new);
            }
            (MetaRecord::Snapshot { .. }, Some(_)) => {
                return wrong("a snapshot is not the first record");
            }
            (MetaRecord::Commit { .. }, None) => return wrong("the first record is no snapshot"),
        }
        apply_meta(&mut meta, decoded);
    }
    Ok(Some(Read { path, state: meta, torn: contents.tail != Tail::Clean }))
}

fn apply_meta(meta: &mut Meta, record: MetaRecord) {
    match record {
        MetaRecord::Snapshot { entries, .. } => {
            meta.extend(entries.into_iter().map(|(key, _, value)| (key, value)));
        }
        MetaRecord::Commit { changes, .. } => {
            for (key, value) in changes {
                match value {
                    Some(value) => meta.insert(key, value),
                    None => meta.remove(&key),
                };
            }
        }
    }
}

/// The version that the manifest of a tablet describes; `None` where there is no manifest, as of a tablet whose
/// creation or removal was cut short.
pub(super) fn read_manifest(
    files: &dyn Files,
    layout: &Layout,
    tablet: TabletId,
) -> Result<Option<Read<Version>>> {
    let (path, contents) = match newest(files, &layout.tablet(tablet), MANIFEST_SERIES)? {
        Newest::Nothing => return Ok(None),
        Newest::Damaged(path) => {
            let what = "the snapshot does not verify, and there is no other manifest";
            return Err(Error::corruption(path.display(), FILE_HEADER_BYTES, what));
        }
        Newest::State(path, contents) => (path, contents),
    };
    let state = replay_manifest(&path, contents.records, tablet)?;
    let torn = contents.tail != Tail::Clean;
    Ok(Some(Read { path, state, torn }))
}

/// What could be read of a damaged journal.
pub(super) struct Salvaged<T> {
    pub(super) path: PathBuf,
    pub(super) state: T,
    /// Bytes of the file that belong to no record that could be used.
    pub(super) damaged: Vec<std::ops::Range<u64>>,
}

/// All records of a file that verify, markers left out, and the byte ranges between them.
fn salvage(
    files: &dyn Files,
    path: &Path,
    series: Series,
    id: u64,
) -> Result<(Vec<Record>, Vec<std::ops::Range<u64>>)> {
    let mut salvage = Salvage::open(files.open_left(path)?, series.magic, id)?;
    let mut records = Vec::new();
    while let Some(record) = salvage.next_record()? {
        if !record.payload.is_empty() {
            records.push(record);
        }
    }
    Ok((records, salvage.damaged().to_vec()))
}

/// What a record says; `None` where it verifies and still cannot be decoded, so that it is as lost as one that does not. One that a newer
/// version wrote is not lost, and `InvalidArgument`.
fn readable<T>(path: &Path, record: &Record, decoded: Result<T>) -> Result<Option<T>> {
    match decoded {
        Ok(decoded) => Ok(Some(decoded)),
        Err(error) if error.kind() == ErrorKind::InvalidArgument => {
            Err(error.context(format_args!("{}: offset {}", path.display(), record.offset)))
        }
        Err(_) => Ok(None),
    }
}

/// `InvalidArgument` where a newer version wrote one of these files, or a record in them, also behind damage.
fn check_versions<T>(
    files: &dyn Files,
    dir: &Path,
    series: Series,
    decode: impl Fn(Bytes) -> Result<T>,
) -> Result<()> {
    // Markers are empty.
    let decode = |payload: Bytes| (!payload.is_empty()).then(|| decode(payload)).transpose();
    for (id, path) in series_files(files, dir, series)? {
        Salvage::open(files.open_left(&path)?, series.magic, id)?.check_versions(decode)?;
    }
    Ok(())
}

/// `InvalidArgument` where a newer version wrote something of a damaged meta store.
pub(super) fn check_meta_versions(files: &dyn Files, dir: &Path) -> Result<()> {
    check_versions(files, dir, META_SERIES, MetaRecord::decode)
}

/// The same of the manifest of a tablet, in its directory `dir`.
pub(super) fn check_manifest_versions(files: &dyn Files, dir: &Path) -> Result<()> {
    check_versions(files, dir, MANIFEST_SERIES, VersionEdit::decode)
}

fn unusable(record: &Record, damaged: &mut Vec<std::ops::Range<u64>>) {
    damaged.push(record.offset..record.offset + record.payload.len() as u64);
}

/// The newest meta store with a readable snapshot: that, and every commit that can be read. A commit holds
/// whole values, so each is true whatever was lost before it; what is lost are the keys that only damaged
/// commits changed. With it the keys that no lost commit can have changed since: what was set behind all damage.
/// `InvalidArgument` where a newer version wrote any of it.
pub(super) fn salvage_meta(
    files: &dyn Files,
    dir: &Path,
) -> Result<Option<(Salvaged<Meta>, HashSet<String>)>> {
    for (age, (id, path)) in series_files(files, dir, META_SERIES)?.into_iter().rev().enumerate() {
        let (records, mut damaged) = salvage(files, &path, META_SERIES, id)?;
        let mut state = Meta::new();
        let mut has_snapshot = false;
        let mut set_at = HashMap::new();
        for record in records {
            match readable(&path, &record, MetaRecord::decode(record.payload.clone()))? {
                Some(snapshot @ MetaRecord::Snapshot { .. })
                    if record.offset == FILE_HEADER_BYTES =>
                {
                    has_snapshot = true;
                    apply_meta(&mut state, snapshot);
                }
                Some(MetaRecord::Commit { revision, changes }) => {
                    let keys = changes.iter().map(|(key, _)| key.clone());
                    set_at.extend(keys.map(|key| (key, record.offset)));
                    apply_meta(&mut state, MetaRecord::Commit { revision, changes });
                }
                _ => unusable(&record, &mut damaged),
            }
        }
        if has_snapshot {
            // Without a range it is the end that is missing, or a newer file.
            let last = damaged.iter().map(|range| range.start).max().filter(|_| age == 0);
            set_at.retain(|_, at| last.is_some_and(|last| *at > last));
            let certain = set_at.into_keys().collect();
            return Ok(Some((Salvaged { path, state, damaged }, certain)));
        }
    }
    Ok(None)
}

/// The newest manifest with a readable snapshot: that, and every edit that can be read, as far as each fits; see
/// [`SalvagedVersion`]. A snapshot of another tablet is none. SSTs that an edit adds count while they are in `existing`: others were
/// compacted away later. `InvalidArgument` where a newer version wrote an edit.
pub(super) fn salvage_manifest(
    files: &dyn Files,
    layout: &Layout,
    tablet: TabletId,
    existing: &HashSet<u64>,
) -> Result<Option<Salvaged<Version>>> {
    let dir = layout.tablet(tablet);
    for (id, path) in series_files(files, &dir, MANIFEST_SERIES)?.into_iter().rev() {
        let (records, mut damaged) = salvage(files, &path, MANIFEST_SERIES, id)?;
        let mut version: Option<SalvagedVersion> = None;
        let gaps: Vec<u64> = damaged.iter().map(|range| range.start).collect();
        let mut gaps = gaps.into_iter().peekable();
        for record in records {
            while gaps.next_if(|start| *start < record.offset).is_some() {
                version.iter_mut().for_each(SalvagedVersion::lost_edit);
            }
            let decoded = VersionEdit::decode(record.payload.clone());
            let usable = match (readable(&path, &record, decoded)?, &mut version) {
                (Some(edit), Some(version)) => version.apply(edit, existing),
                (Some(snapshot), None)
                    if record.offset == FILE_HEADER_BYTES
                        && snapshot.tablet.is_none_or(|whose| whose == tablet) =>
                {
                    version = SalvagedVersion::new(snapshot, existing);
                    version.is_some()
                }
                _ => false,
            };
            if !usable {
                version.iter_mut().for_each(SalvagedVersion::lost_edit);
                unusable(&record, &mut damaged);
            }
        }
        if let Some(version) = version {
            let state = version.finish(|sst| visible_bytes(files, layout, sst))?;
            return Ok(Some(Salvaged { path, state, damaged }));
        }
    }
    Ok(None)
}

/// The bytes of what an SST shows that is cut: of the blocks that lie in it as a whole, where it can be read.
fn visible_bytes(files: &dyn Files, layout: &Layout, sst: &SstRef) -> u64 {
    let cache: Arc<dyn BlockCache> = Arc::new(QuickBlockCache::new(CACHE_BYTES));
    let opened = SstReader::open(files, &layout.sst(sst.id), sst.id, cache);
    opened.map_or(sst.bytes, |reader| whole_block_bytes(&reader, sst))
}
