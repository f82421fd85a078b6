//! Which segments a log has, so that one that is missing does not go unnoticed.
//!
//! ```text
//! SEGMENTS     a record file with magic TEPUISGS and file id 1; each record lists all segments, and the last one counts
//!
//! | header | list | marker | list | marker | ...
//! ```
//!
//! A list is synced after a segment's file is, and before anything is written into that; and before the name of one that is not needed
//! any more is removed. So of what it names all is there, but for the damage that it is to show; and what is there and not named is
//! either empty or not needed. Where a full disk has no room for another list there is none: the file is cut to nothing, until the next
//! segment is begun. Only the log's thread, which begins segments, makes the file anew: nobody else syncs the directory.
//!
//! The marker, an empty record, tells a list that was damaged since from one that a crash cut short. A log of a version that kept no list
//! has none, and gets one with the next start.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::record::{ADVICE, Magic, RecordReader, RecordWriter, Salvage, Tail};
use super::repair::interrupted;
use super::segment::{has_opening, list_segments, perhaps_of_a_sync, segment_name};
use crate::codec::{Malformed, Unreadable};
use crate::error::{Error, ErrorKind, Result};
use crate::io::{Files, RandomFile};

/// The file's name.
pub const NAME: &str = "SEGMENTS";

/// The name under which it is written anew.
const DRAFT: &str = "SEGMENTS.new";

pub(crate) const MAGIC: Magic = *b"TEPUISGS";
pub(crate) const FILE_ID: u64 = 1;

/// Space that the file has from the beginning, and bytes from which on it is written anew with the next segment: others are removed where a
/// disk is full, too.
const FILE_BYTES: u64 = 64 << 10;

/// The list that is being kept.
#[derive(Debug)]
pub(super) struct Present {
    ids: BTreeSet<u64>,
    /// `None` after a failure: it is written anew.
    writer: Option<RecordWriter>,
    /// The file is empty, or not there.
    is_dropped: bool,
}

impl Present {
    /// Begins a list, durably.
    pub(super) fn begin(files: &dyn Files, dir: &Path, ids: BTreeSet<u64>) -> Result<Self> {
        let mut present = Self { ids: BTreeSet::new(), writer: None, is_dropped: false };
        present.rewrite(files, dir, ids)?;
        Ok(present)
    }

    /// A segment is there, and nothing is in it yet.
    pub(super) fn add(&mut self, files: &dyn Files, dir: &Path, id: u64) -> Result<()> {
        let ids = self.ids.iter().copied().chain([id]).collect();
        let fits = |writer: &RecordWriter| writer.len_with(encode(&ids).len()) <= FILE_BYTES;
        if self.writer.as_ref().is_some_and(fits) {
            let appended = self.append(ids);
            return appended.or_else(|error| self.drop_for_room(files, dir, error));
        }
        self.rewrite(files, dir, ids)
    }

    /// A segment is about to be removed.
    pub(super) fn remove(&mut self, files: &dyn Files, dir: &Path, id: u64) -> Result<()> {
        let ids = self.ids.iter().copied().filter(|present| *present != id).collect();
        self.append(ids).or_else(|error| {
            self.ids.remove(&id);
            // What is on disk may name it.
            self.drop_for_room(files, dir, error)
        })
    }

    /// Writes a list behind those that there are; an error too where there are none.
    fn append(&mut self, ids: BTreeSet<u64>) -> Result<()> {
        let writer = self.writer.take();
        let mut writer =
            writer.ok_or_else(|| Error::new(ErrorKind::NoSpace, "there is no list"))?;
        let payload = encode(&ids);
        self.ids = ids;
        self.writer = write_list(&mut writer, &payload)?.then_some(writer);
        Ok(())
    }

    /// Writes a list in the place of those that there are.
    fn rewrite(&mut self, files: &dyn Files, dir: &Path, ids: BTreeSet<u64>) -> Result<()> {
        self.writer = None;
        let written = write_anew(files, dir, &ids);
        self.ids = ids;
        match written {
            Ok(writer) => {
                (self.writer, self.is_dropped) = (writer, false);
                Ok(())
            }
            Err(error) => self.drop_for_room(files, dir, error),
        }
    }

    /// Goes on without a list, where room is all that it lacked.
    fn drop_for_room(&mut self, files: &dyn Files, dir: &Path, error: Error) -> Result<()> {
        let lacks_room = error.kind() == ErrorKind::NoSpace && !error.is_in_doubt();
        if lacks_room { self.drop_list(files, dir) } else { Err(error) }
    }

    fn drop_list(&mut self, files: &dyn Files, dir: &Path) -> Result<()> {
        let path = dir.join(NAME);
        if !self.is_dropped && files.exists(&path)? {
            // Which takes no room, and no name.
            files.truncate(&path, 0)?;
            tracing::warn!(
                file = %path.display(),
                "the list of the log's segments cannot be written: until the next one begins a segment that is lost is not noticed"
            );
        }
        (self.writer, self.is_dropped) = (None, true);
        Ok(())
    }
}

/// Writes a list, durably. Whether more can be written behind it.
fn write_list(writer: &mut RecordWriter, payload: &[u8]) -> Result<bool> {
    writer.append(payload)?;
    // Where this lacks room, nothing is in doubt: what is there of it is cut short.
    writer.flush()?;
    writer.sync().map_err(perhaps_of_a_sync)?;
    Ok(writer.append(&[]).and_then(|_| writer.flush()).is_ok())
}

/// Writes a list in the place of what there is, durably. What more is written behind it with, if it can be.
fn write_anew(files: &dyn Files, dir: &Path, ids: &BTreeSet<u64>) -> Result<Option<RecordWriter>> {
    let draft = dir.join(DRAFT);
    if files.exists(&draft)? {
        files.remove(&draft)?;
    }
    let mut writer = RecordWriter::create(files, &draft, MAGIC, FILE_ID)?;
    // Without it, a list that finds no space is one that cannot be changed for now.
    let _ = writer.reserve(FILE_BYTES);
    let goes_on = write_list(&mut writer, &encode(ids))?;
    let path = dir.join(NAME);
    files.rename(&draft, &path)?;
    writer.renamed(&path);
    files.sync_dir(dir).map_err(perhaps_of_a_sync)?;
    Ok(goes_on.then_some(writer))
}

/// Lists the segments that are there, after a repair.
pub(crate) fn rewrite(files: &dyn Files, dir: &Path) -> Result<()> {
    let ids = list_segments(files, dir)?.into_iter().map(|(id, _)| id).collect();
    write_anew(files, dir, &ids).map(drop)
}

/// What is listed; `None` where there is no list, or where a version that keeps none has begun a segment since, as it does with each start.
pub(crate) fn listed(files: &dyn Files, dir: &Path) -> Result<Option<BTreeSet<u64>>> {
    let path = dir.join(NAME);
    if !files.exists(&path)? {
        return Ok(None);
    }
    let file = files.open_left(&path)?;
    if file.len()? == 0 {
        return Ok(None);
    }
    let ids = match last_list(Arc::clone(&file)) {
        Err(damage) if damage.kind() == ErrorKind::Corruption => {
            // A newer version may have written what is behind it.
            Salvage::open(file, MAGIC, FILE_ID)?.check_versions(|list| Ok(decode(&list)?))?;
            return Err(damage);
        }
        ids => ids?,
    };
    let newest = ids.last().copied().unwrap_or(0);
    let is_behind =
        list_segments(files, dir)?.into_iter().any(|(id, bytes)| id > newest && has_opening(bytes));
    Ok((!is_behind).then_some(ids))
}

/// The list that counts of a file.
fn last_list(file: Arc<dyn RandomFile>) -> Result<BTreeSet<u64>> {
    let path = file.path().to_path_buf();
    let mut reader = RecordReader::open(file, MAGIC, FILE_ID, Tail::MayBeTorn)?;
    let mut ids = None;
    while let Some(record) = reader.next_record()? {
        if record.payload.is_empty() {
            continue;
        }
        let place = || format!("{}: offset {}", path.display(), record.offset);
        ids = Some(decode(&record.payload).map_err(|error| Error::from(error).context(place()))?);
    }
    ids.ok_or_else(|| {
        // It was complete before it had this name.
        let what = format_args!("the list of segments is empty; {ADVICE}");
        Error::corruption(path.display(), 0, what)
    })
}

/// The segments that are listed and not there: their numbers, and what their files were.
pub(crate) fn missing(files: &dyn Files, dir: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let Some(mut ids) = listed(files, dir)? else { return Ok(Vec::new()) };
    for (id, _) in list_segments(files, dir)? {
        ids.remove(&id);
    }
    // One that a repair was about to put back.
    if let Some(id) = interrupted(files, dir)? {
        ids.remove(&id);
    }
    Ok(ids.into_iter().map(|id| (id, dir.join(segment_name(id)))).collect())
}

/// The same, where nobody knows what was in a list that is damaged: nothing is missing by it. An error where it cannot be read now.
pub(crate) fn missing_as_told(files: &dyn Files, dir: &Path) -> Result<Vec<(u64, PathBuf)>> {
    match missing(files, dir) {
        Err(error) if error.kind() == ErrorKind::Corruption => Ok(Vec::new()),
        missing => missing,
    }
}

/// What is wrong where a segment is missing.
pub(crate) fn is_missing(path: &Path) -> Error {
    let text = format!(
        "{}: this segment of the log is missing, with writes that were acknowledged. Nothing was removed: restore the file, or run \
         `tepui repair` on the directory to go on without these writes",
        path.display()
    );
    Error::new(ErrorKind::Corruption, text)
}

pub(super) fn encode(ids: &BTreeSet<u64>) -> Vec<u8> {
    ids.iter().flat_map(|id| id.to_le_bytes()).collect()
}

/// The numbers of a list, which ascend. Nothing says where they end: what a newer version writes behind them makes it something else.
pub(crate) fn decode(payload: &[u8]) -> Result<BTreeSet<u64>, Unreadable> {
    let (ids, rest) = payload.as_chunks::<8>();
    let ids: Vec<u64> = ids.iter().map(|id| u64::from_le_bytes(*id)).collect();
    if !rest.is_empty() || !ids.is_sorted_by(|a, b| a < b) {
        return Err(Unreadable::Newer(Malformed::whole("not a list of segments")));
    }
    Ok(ids.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::io::{FaultFiles, MemoryFiles};

    #[test]
    fn the_last_list_counts_however_often_it_changes_or_fails_to() {
        let (files, dir) = (MemoryFiles::new(), Path::new("/log"));
        files.create_dir_all(dir).unwrap();
        assert_eq!(listed(&files, dir).unwrap(), None);
        let mut present = Present::begin(&files, dir, [3, 4].into()).unwrap();
        for id in 5..10_000 {
            present.add(&files, dir, id).unwrap();
            present.remove(&files, dir, id - 2).unwrap();
        }
        assert_eq!(listed(&files, dir).unwrap(), Some([9_998, 9_999].into()));
        let bytes = files.contents(&dir.join(NAME)).unwrap().len() as u64;
        assert!(bytes <= FILE_BYTES, "{bytes} bytes");
        // What is missing is told; a list that somebody has not kept any more says nothing.
        files.create(&dir.join(segment_name(9_998))).unwrap();
        let missing_now = missing(&files, dir).unwrap();
        assert_eq!(missing_now, [(9_999, dir.join(segment_name(9_999)))]);
        files.create(&dir.join(segment_name(10_000))).unwrap();
        assert_eq!(missing(&files, dir).unwrap().len(), 1, "it was not begun");
        files.put_contents(&dir.join(segment_name(10_000)), vec![1; 73]);
        assert_eq!(missing(&files, dir).unwrap(), []);
    }

    #[test]
    fn segments_are_removed_and_begun_without_a_list_where_it_has_no_room() {
        let memory = MemoryFiles::new();
        let files = FaultFiles::new(Arc::new(memory.clone()));
        let dir = Path::new("/log");
        files.create_dir_all(dir).unwrap();
        for id in 1..=3 {
            memory.put_contents(&dir.join(segment_name(id)), vec![1; 100]);
        }
        let mut present = Present::begin(&files, dir, [1, 2, 3].into()).unwrap();
        present.writer = None;
        files.set_quota_bytes(Some(0));
        present.remove(&files, dir, 1).unwrap();
        files.remove(&dir.join(segment_name(1))).unwrap();
        assert_eq!(listed(&files, dir).unwrap(), None);
        present.add(&files, dir, 4).unwrap();
        present.remove(&files, dir, 2).unwrap();
        assert_eq!(listed(&files, dir).unwrap(), None);
        files.set_quota_bytes(None);
        present.add(&files, dir, 5).unwrap();
        assert_eq!(listed(&files, dir).unwrap(), Some([3, 4, 5].into()));
    }

    #[test]
    fn what_is_no_list_is_damage() {
        let (files, dir) = (MemoryFiles::new(), Path::new("/log"));
        files.create_dir_all(dir).unwrap();
        drop(Present::begin(&files, dir, [3].into()).unwrap());
        let path = dir.join(NAME);
        let whole = files.contents(&path).unwrap();
        // Behind it is the marker.
        for len in 1..whole.len() - 24 {
            files.put_contents(&path, whole[..len].to_vec());
            let error = listed(&files, dir).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corruption, "{len}");
            assert!(error.message().contains("`tepui repair"), "{error}");
        }
    }

    #[test]
    fn a_list_with_something_behind_it_is_a_newer_versions_also_behind_damage() {
        assert_eq!(decode(&[]), Ok(BTreeSet::new()));
        for longer in [&[1; 7][..], &[1; 16], &encode(&[2].into())[1..]] {
            let error = decode(longer).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{longer:?}");
        }
        let (files, dir) = (MemoryFiles::new(), Path::new("/log"));
        files.create_dir_all(dir).unwrap();
        let path = dir.join(NAME);
        let mut writer = write_anew(&files, dir, &[3].into()).unwrap().unwrap();
        let first = writer.len();
        write_list(&mut writer, &[&encode(&[3, 4].into())[..], b"more"].concat()).unwrap();
        let whole = files.contents(&path).unwrap();
        let mut damaged = whole.clone();
        damaged[first as usize - 30] ^= 1;
        for bytes in [whole, damaged] {
            files.put_contents(&path, bytes);
            let error = missing_as_told(&files, dir).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            assert!(error.message().contains("a newer version wrote it"), "{error}");
            assert!(error.message().contains("SEGMENTS"), "{error}");
        }
    }
}
