//! Which change files and horizons there are, so that one that is missing does not go unnoticed.
//!
//! ```text
//! LIST.chg.new    a record file with magic TEPUICHL and file id 1, of one record
//!
//! varint count | file ...         file:     segment u64 LE | first seq u64 LE | last seq u64 LE
//! varint count | horizon ...      horizon:  seq u64 LE | tablet u64 LE, 0 for all
//! ```
//!
//! It is written anew with each change: under another name, synced, and renamed. What comes is durable before it is listed, and what goes is not
//! listed any more before its name is removed. So of what it lists all is there, or a horizon tells of it, but for the damage that it is to
//! show; and what is there and not listed is new, or about to go. Where a full disk has no room for it, the file is cut to nothing: nobody waits
//! for a list, and without it nothing is found missing until the next is written.
//!
//! Its name ends as those of files that were never completed, and a start of a version that keeps no list removes such files. So
//! no list is older than what such a version did; the next start that keeps one writes it.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::NO_TABLET;
use super::file::ChangeFile;
use super::horizon::{self, horizon_name, horizon_name_of};
use crate::cell::Seq;
use crate::codec::{BytesReader, Unreadable, put_u64};
use crate::error::{Error, ErrorKind, Result};
use crate::io::Files;
use crate::log::record::{ADVICE, Magic, RecordReader, RecordWriter, Tail};

/// The file's name.
pub(crate) const NAME: &str = "LIST.chg.new";

/// The name under which it is written.
const DRAFT: &str = "LIST.new";

/// The magic of the list.
pub(crate) const MAGIC: Magic = *b"TEPUICHL";

pub(crate) const FILE_ID: u64 = 1;

/// Files that are listed at most, the newest: so many of a segment each are 256 GiB of log, and a list of them 96 KiB. With more, each file of
/// thousands that come and go would cost a longer one; with fewer, fewer would be missed.
pub(super) const FILES_MAX: usize = 4096;

/// What is listed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Listed {
    /// The segment, the first and the last sequence of each file.
    pub(super) files: Vec<(u64, Seq, Seq)>,
    /// Up to where changes of a tablet, or of all (`None`), are not here any more.
    pub(super) horizons: Vec<(Seq, Option<u64>)>,
}

impl Listed {
    /// The names of the files.
    pub(crate) fn names(&self) -> Vec<String> {
        let files = self.files.iter().map(|file| name_of(*file));
        files.chain(self.horizons.iter().map(|horizon| name_of_horizon(*horizon))).collect()
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_u64(&mut out, self.files.len() as u64);
        for (segment, first_seq, last_seq) in &self.files {
            for number in [segment, first_seq, last_seq] {
                out.extend_from_slice(&number.to_le_bytes());
            }
        }
        put_u64(&mut out, self.horizons.len() as u64);
        for (seq, tablet) in &self.horizons {
            out.extend_from_slice(&seq.to_le_bytes());
            out.extend_from_slice(&tablet.unwrap_or(NO_TABLET).to_le_bytes());
        }
        out
    }

    pub(crate) fn decode(payload: Bytes) -> Result<Self, Unreadable> {
        let mut input = BytesReader::new(payload);
        let mut listed = Self::default();
        // Counts are not trusted with memory: what they count takes bytes that must be there.
        for _ in 0..input.u64()? {
            listed.files.push((input.fixed_u64()?, input.fixed_u64()?, input.fixed_u64()?));
        }
        for _ in 0..input.u64()? {
            let (seq, tablet) = (input.fixed_u64()?, input.fixed_u64()?);
            listed.horizons.push((seq, (tablet != NO_TABLET).then_some(tablet)));
        }
        input.finish_known()?;
        Ok(listed)
    }
}

fn name_of((segment, first_seq, last_seq): (u64, Seq, Seq)) -> String {
    ChangeFile::name_of(segment, first_seq, last_seq)
}

fn name_of_horizon((seq, tablet): (Seq, Option<u64>)) -> String {
    tablet.map_or_else(|| horizon_name(seq), |tablet| horizon_name_of(tablet, seq))
}

/// The list that is being kept.
#[derive(Debug, Default)]
pub(super) struct List {
    /// What is on disk, where that is known.
    on_disk: Option<Vec<u8>>,
}

impl List {
    /// Makes this the list, durably; `sync` makes the names in `dir` so. Where there is no room for it, there is none. Blocks.
    pub(super) fn keep(
        &mut self,
        files: &dyn Files,
        dir: &Path,
        listed: &Listed,
        sync: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let payload = listed.encode();
        if self.on_disk.as_ref() == Some(&payload) {
            return Ok(());
        }
        self.on_disk = None;
        let path = dir.join(NAME);
        if *listed == Listed::default() && !files.exists(&path)? {
            // Most directories have no streams.
            return Ok(());
        }
        match write(files, dir, &payload, sync) {
            Ok(()) => {
                self.on_disk = Some(payload);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                if files.exists(&path)? {
                    // Which takes no room, and no name.
                    files.truncate(&path, 0)?;
                }
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

fn write(
    files: &dyn Files,
    dir: &Path,
    payload: &[u8],
    sync: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let draft = dir.join(DRAFT);
    if files.exists(&draft)? {
        files.remove(&draft)?;
    }
    let written = RecordWriter::create(files, &draft, MAGIC, FILE_ID).and_then(|mut writer| {
        writer.append(payload)?;
        writer.sync()
    });
    written.inspect_err(|_| {
        // On a full disk its room is wanted.
        let _ = files.remove(&draft);
    })?;
    files.rename(&draft, &dir.join(NAME))?;
    sync()
}

/// What is listed; `None` where there is no list. Blocks.
pub(crate) fn listed(files: &dyn Files, dir: &Path) -> Result<Option<Listed>> {
    let path = dir.join(NAME);
    if !files.exists(&path)? {
        return Ok(None);
    }
    let file = files.open_left(&path)?;
    if file.len()? == 0 {
        return Ok(None);
    }
    let mut reader = RecordReader::open(file, MAGIC, FILE_ID, Tail::Sealed)?;
    let record = reader.next_record()?;
    let record = record.ok_or_else(|| {
        let what = format_args!("the list of change files is empty; {ADVICE}");
        Error::corruption(path.display(), 0, what)
    })?;
    let offset = record.offset;
    let listed = Listed::decode(record.payload);
    Ok(Some(listed.map_err(|what| match what {
        Unreadable::Newer(_) => {
            Error::from(what).context(format_args!("{}: offset {offset}", path.display()))
        }
        Unreadable::Malformed(what) => {
            let what = format_args!("this is no list of change files: {what}; {ADVICE}");
            Error::corruption(path.display(), offset, what)
        }
    })?))
}

/// A file that is listed and not there, and that nothing tells of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Missing {
    /// Where it was.
    pub(crate) path: PathBuf,
    /// The last sequence of its changes, or the one up to which it said that there are none any more.
    pub(crate) seq: Seq,
    /// Whether it had changes.
    pub(crate) had_changes: bool,
}

impl Missing {
    /// What is wrong where it is missing.
    pub(crate) fn error(&self) -> Error {
        let what = if self.had_changes {
            "with changes that streams may still want"
        } else {
            "which told streams that changes are not kept any more"
        };
        let text = format!(
            "{}: this file is missing, {what}. Nothing was removed: restore the file, or run `tepui repair` on the directory, and streams \
             that were to read there are told so",
            self.path.display()
        );
        Error::new(ErrorKind::Corruption, text)
    }
}

/// What is missing in a directory of changes, which need not exist. Blocks.
pub(crate) fn missing(files: &dyn Files, dir: &Path) -> Result<Vec<Missing>> {
    let Some(listed) = listed(files, dir)? else { return Ok(Vec::new()) };
    // By segment: of two files of one the start keeps the larger, which has all, whichever is listed.
    let mut there = HashSet::new();
    let mut furthest: HashMap<Option<u64>, Seq> = HashMap::new();
    for entry in files.list(dir)? {
        if let Some((seq, tablet)) = horizon::parse(&entry.name) {
            let known = furthest.entry(tablet).or_default();
            *known = seq.max(*known);
        }
        there.extend(ChangeFile::of_entry(&entry.name, entry.len).map(|file| file.segment));
    }
    let told = |tablet: Option<u64>| {
        let of = |tablet| furthest.get(&tablet).copied().unwrap_or(0);
        of(tablet).max(of(None))
    };
    let mut missing = Vec::new();
    for file in &listed.files {
        let (segment, _, seq) = *file;
        if !there.contains(&segment) && seq > told(None) {
            missing.push(Missing { path: dir.join(name_of(*file)), seq, had_changes: true });
        }
    }
    for (seq, tablet) in &listed.horizons {
        if *seq > told(*tablet) {
            let path = dir.join(name_of_horizon((*seq, *tablet)));
            missing.push(Missing { path, seq: *seq, had_changes: false });
        }
    }
    Ok(missing)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::io::{FaultFiles, MemoryFiles};

    fn list() -> Listed {
        Listed { files: vec![(3, 10, 20), (5, 30, 40)], horizons: vec![(9, None), (12, Some(7))] }
    }

    fn directory() -> (MemoryFiles, &'static Path) {
        let (files, dir) = (MemoryFiles::new(), Path::new("/changes"));
        files.create_dir_all(dir).unwrap();
        for name in list().names() {
            files.put_contents(&dir.join(name), Vec::new());
        }
        (files, dir)
    }

    fn keep(list: &mut List, files: &dyn Files, dir: &Path, listed: &Listed) {
        list.keep(files, dir, listed, || files.sync_dir(dir)).unwrap();
    }

    #[test]
    fn a_list_comes_back_and_its_encoding_is_the_documented_one() {
        let listed =
            Listed { files: vec![(3, 10, 0x1_00)], horizons: vec![(9, None), (8, Some(7))] };
        let number = |n: u64| n.to_le_bytes();
        let want = [
            &[1][..],
            &[number(3), number(10), number(0x1_00)].concat(),
            &[2],
            &[number(9), number(0), number(8), number(7)].concat(),
        ];
        assert_eq!(listed.encode(), want.concat());
        assert_eq!(Listed::decode(listed.encode().into()), Ok(listed));
        for bad in [&[][..], &[1], &[0], &[0, 0, 0], &[0, 1, 1, 1]] {
            assert!(Listed::decode(Bytes::copy_from_slice(bad)).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn what_is_listed_is_missing_unless_a_horizon_tells_of_it() {
        let (files, dir) = directory();
        assert_eq!(missing(&files, dir).unwrap(), [], "there is no list");
        keep(&mut List::default(), &files, dir, &list());
        assert_eq!(missing(&files, dir).unwrap(), []);
        for (name, seq) in list().names().iter().zip([20, 40, 9, 12]) {
            let path = dir.join(name);
            files.remove(&path).unwrap();
            let had_changes = name.strip_suffix(".chg").is_some();
            let found = missing(&files, dir).unwrap();
            assert_eq!(found, [Missing { path: path.clone(), seq, had_changes }]);
            // A horizon of another tablet, or one that says less, does not.
            let others = [horizon_name(seq - 1), horizon_name_of(8, seq)];
            for other in &others {
                files.put_contents(&dir.join(other), Vec::new());
            }
            assert_eq!(missing(&files, dir).unwrap(), found);
            let told = dir.join(horizon_name(seq + 1));
            files.put_contents(&told, Vec::new());
            assert_eq!(missing(&files, dir).unwrap(), []);
            for path in others.iter().map(|name| dir.join(name)).chain([told]) {
                files.remove(&path).unwrap();
            }
            files.put_contents(&path, Vec::new());
        }
    }

    #[test]
    fn of_two_files_of_a_segment_either_may_be_listed() {
        let (files, dir) = directory();
        keep(&mut List::default(), &files, dir, &list());
        // The start keeps the larger one, with which the smaller goes.
        files.remove(&dir.join(name_of((5, 30, 40)))).unwrap();
        files.put_contents(&dir.join(name_of((5, 25, 40))), b"larger".to_vec());
        assert_eq!(missing(&files, dir).unwrap(), []);
    }

    #[test]
    fn a_full_disk_leaves_no_list_and_the_next_that_has_room_counts() {
        let (memory, dir) = directory();
        let files = FaultFiles::new(Arc::new(memory.clone()));
        let mut kept = List::default();
        keep(&mut kept, &files, dir, &list());
        files.set_quota_bytes(Some(0));
        let fewer = Listed { files: vec![(5, 30, 40)], ..list() };
        keep(&mut kept, &files, dir, &fewer);
        assert_eq!(listed(&files, dir).unwrap(), None);
        assert!(!memory.exists(&dir.join(DRAFT)).unwrap());
        files.set_quota_bytes(None);
        keep(&mut kept, &files, dir, &fewer);
        assert_eq!(listed(&files, dir).unwrap(), Some(fewer));
    }

    #[test]
    fn a_list_with_something_behind_it_is_a_newer_versions() {
        let (files, dir) = directory();
        let longer = [&list().encode()[..], &[0]].concat();
        write(&files, dir, &longer, || files.sync_dir(dir)).unwrap();
        let error = missing(&files, dir).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.message().contains("LIST.chg.new"), "{error}");
        assert!(error.message().contains("a newer version wrote it"), "{error}");
    }

    #[test]
    fn what_is_no_list_is_damage() {
        let (files, dir) = directory();
        keep(&mut List::default(), &files, dir, &list());
        let path = dir.join(NAME);
        let whole = files.contents(&path).unwrap();
        for at in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[at] ^= 4;
            for bad in [flipped, whole[..at].to_vec()] {
                if !bad.is_empty() {
                    files.put_contents(&path, bad);
                    let error = listed(&files, dir).unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Corruption, "byte {at}: {error}");
                    assert!(error.message().contains("`tepui repair"), "{error}");
                }
            }
        }
    }
}
