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
//! either empty or not needed. The marker, an empty record, tells a list that was damaged since from one that a crash cut short. A log of a version that kept no list has none, and gets one with the next start.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::record::{Magic, RecordReader, RecordWriter, Tail};
use super::segment::{list_segments, perhaps_of_a_sync, segment_name, was_never_begun};
use crate::error::{Error, ErrorKind, Result};
use crate::io::Files;

/// The file's name.
pub const NAME: &str = "SEGMENTS";

/// The name under which it is written anew.
const DRAFT: &str = "SEGMENTS.new";

pub(crate) const MAGIC: Magic = *b"TEPUISGS";
pub(crate) const FILE_ID: u64 = 1;

/// Space that the file has from the beginning, and bytes from which on it is written anew: segments are removed where a disk is full, too.
const FILE_BYTES: u64 = 64 << 10;

/// The list that is being kept.
#[derive(Debug)]
pub(super) struct Present {
    ids: BTreeSet<u64>,
    /// `None` after a failure: it is written anew.
    writer: Option<RecordWriter>,
}

impl Present {
    /// Begins a list, durably.
    pub(super) fn begin(files: &dyn Files, dir: &Path, ids: BTreeSet<u64>) -> Result<Self> {
        let writer = Some(write_anew(files, dir, &ids)?);
        Ok(Self { ids, writer })
    }

    /// A segment is there, and nothing is in it yet.
    pub(super) fn add(&mut self, files: &dyn Files, dir: &Path, id: u64) -> Result<()> {
        let ids = self.ids.iter().copied().chain([id]).collect();
        self.change(files, dir, ids)
    }

    /// A segment is about to be removed.
    pub(super) fn remove(&mut self, files: &dyn Files, dir: &Path, id: u64) -> Result<()> {
        let ids = self.ids.iter().copied().filter(|present| *present != id).collect();
        self.change(files, dir, ids)
    }

    fn change(&mut self, files: &dyn Files, dir: &Path, ids: BTreeSet<u64>) -> Result<()> {
        if ids == self.ids && self.writer.is_some() {
            return Ok(());
        }
        let payload = encode(&ids);
        let writer = match self.writer.take() {
            Some(mut writer) if writer.len_with(payload.len()) <= FILE_BYTES => {
                write_list(&mut writer, &payload)?;
                writer
            }
            _ => write_anew(files, dir, &ids)?,
        };
        (self.ids, self.writer) = (ids, Some(writer));
        Ok(())
    }
}

/// Writes a list, durably.
fn write_list(writer: &mut RecordWriter, payload: &[u8]) -> Result<()> {
    writer.append(payload)?;
    writer.sync().map_err(perhaps_of_a_sync)?;
    writer.append(&[])?;
    writer.flush()
}

/// Writes a list in the place of what there is, durably.
fn write_anew(files: &dyn Files, dir: &Path, ids: &BTreeSet<u64>) -> Result<RecordWriter> {
    let draft = dir.join(DRAFT);
    if files.exists(&draft)? {
        files.remove(&draft)?;
    }
    let mut writer = RecordWriter::create(files, &draft, MAGIC, FILE_ID)?;
    // Without it, a list that finds no space is one that cannot be changed for now.
    let _ = writer.reserve(FILE_BYTES);
    write_list(&mut writer, &encode(ids))?;
    let path = dir.join(NAME);
    files.rename(&draft, &path)?;
    writer.renamed(&path);
    files.sync_dir(dir).map_err(perhaps_of_a_sync)?;
    Ok(writer)
}

/// Lists the segments that are there, after a repair.
pub(crate) fn rewrite(files: &dyn Files, dir: &Path) -> Result<()> {
    let ids = list_segments(files, dir)?.into_iter().map(|(id, _)| id).collect();
    write_anew(files, dir, &ids).map(drop)
}

/// What is listed; `None` where there is no list, or where a version that keeps none has written to the log since.
pub(crate) fn listed(files: &dyn Files, dir: &Path) -> Result<Option<BTreeSet<u64>>> {
    let path = dir.join(NAME);
    if !files.exists(&path)? {
        return Ok(None);
    }
    let mut reader = RecordReader::open(files.open_left(&path)?, MAGIC, FILE_ID, Tail::MayBeTorn)?;
    let mut ids = None;
    while let Some(record) = reader.next_record()? {
        if record.payload.is_empty() {
            continue;
        }
        let found = decode(&record.payload);
        ids = Some(found.ok_or_else(|| {
            Error::corruption(path.display(), record.offset, "this is no list of segments")
        })?);
    }
    let Some(ids) = ids else {
        // It was complete before it had this name.
        return Err(Error::corruption(path.display(), 0, "the list of segments is empty"));
    };
    let newest = ids.last().copied().unwrap_or(0);
    let is_behind = list_segments(files, dir)?
        .into_iter()
        .any(|(id, bytes)| id > newest && !was_never_begun(bytes));
    Ok((!is_behind).then_some(ids))
}

/// The segments that are listed and not there: their numbers, and what their files were.
pub(crate) fn missing(files: &dyn Files, dir: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let Some(mut ids) = listed(files, dir)? else { return Ok(Vec::new()) };
    for (id, _) in list_segments(files, dir)? {
        ids.remove(&id);
    }
    Ok(ids.into_iter().map(|id| (id, dir.join(segment_name(id)))).collect())
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

fn encode(ids: &BTreeSet<u64>) -> Vec<u8> {
    ids.iter().flat_map(|id| id.to_le_bytes()).collect()
}

/// The numbers of a list, which ascend.
pub(crate) fn decode(payload: &[u8]) -> Option<BTreeSet<u64>> {
    let (ids, rest) = payload.as_chunks::<8>();
    let ids: Vec<u64> = ids.iter().map(|id| u64::from_le_bytes(*id)).collect();
    (rest.is_empty() && ids.is_sorted_by(|a, b| a < b)).then(|| ids.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::MemoryFiles;

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
        assert_eq!(missing(&files, dir).unwrap().len(), 1, "it is empty");
        files.put_contents(&dir.join(segment_name(10_000)), vec![1; 1_000]);
        assert_eq!(missing(&files, dir).unwrap(), []);
    }

    #[test]
    fn what_is_no_list_is_damage() {
        assert_eq!(decode(&[]), Some(BTreeSet::new()));
        for bad in [&[1; 7][..], &[1; 16], &encode(&[2].into())[1..]] {
            assert_eq!(decode(bad), None, "{bad:?}");
        }
        let (files, dir) = (MemoryFiles::new(), Path::new("/log"));
        files.create_dir_all(dir).unwrap();
        drop(Present::begin(&files, dir, [3].into()).unwrap());
        let path = dir.join(NAME);
        let whole = files.contents(&path).unwrap();
        // Behind it is the marker.
        for len in 0..whole.len() - 24 {
            files.put_contents(&path, whole[..len].to_vec());
            assert_eq!(listed(&files, dir).unwrap_err().kind(), ErrorKind::Corruption, "{len}");
        }
    }
}
