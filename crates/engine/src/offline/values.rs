//! Value files in checks and repairs: whether every pointer of an SST leads to a value.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use bytes::Bytes;

use super::list_files;
use crate::cell::Kind;
use crate::cursor::Entry;
use crate::error::{Error, ErrorKind, Result};
use crate::io::Files;
use crate::layout::{Layout, parse_number};
use crate::sst::{FileId, Lost, Piece, SstReader};
use crate::values::{ValuePointer, ValueReader, ValueWindows};

/// Reads what pointers lead to.
pub(super) struct ValueReaders<'a> {
    files: &'a dyn Files,
    layout: &'a Layout,
    open: HashMap<FileId, Result<ValueReader>>,
    windows: ValueWindows,
}

/// What is lost of one value file, as far as one SST names it.
#[derive(Debug)]
pub(super) struct LostValues {
    pub(super) values: u64,
    pub(super) from_row: Bytes,
    pub(super) to_row: Bytes,
    /// Of the first.
    pub(super) error: Error,
}

impl<'a> ValueReaders<'a> {
    pub(super) fn new(files: &'a dyn Files, layout: &'a Layout) -> Self {
        Self { files, layout, open: HashMap::new(), windows: ValueWindows::default() }
    }

    /// Where the value file is.
    pub(super) fn path(&self, id: FileId) -> PathBuf {
        self.layout.value(id)
    }

    /// The lost value of a record; `None` where it has its value. A pointer that is malformed is lost with the SST
    /// as its file.
    pub(super) fn lost(&mut self, entry: &Entry<'_>) -> Option<(FileId, Lost)> {
        if entry.key.kind() != Kind::ValueElsewhere {
            return None;
        }
        let (file, offset, bytes, error) = match ValuePointer::decode(entry.value) {
            Err(m) => (0, 0, 0, Error::new(ErrorKind::Corruption, m.what)),
            Ok(pointer) => {
                let error = self.read(&pointer).err()?;
                (pointer.file, pointer.offset, u64::from(pointer.stored_len), error)
            }
        };
        let row = Bytes::from(entry.key.row());
        Some((file, Lost { offset, bytes, records: 1, from_row: row.clone(), to_row: row, error }))
    }

    /// Whether anything of a value file that was asked for can be read.
    pub(super) fn opens(&self, id: FileId) -> bool {
        self.open.get(&id).is_none_or(Result::is_ok)
    }

    fn read(&mut self, pointer: &ValuePointer) -> Result<()> {
        let path = self.layout.value(pointer.file);
        let open = || ValueReader::open(self.files, &path, pointer.file);
        let opened = self.open.entry(pointer.file).or_insert_with(open);
        let reader = opened.as_ref().map_err(Error::clone)?;
        self.windows.read(reader, pointer).map(drop)
    }

    /// What is lost to an SST, by value file.
    pub(super) fn lost_to(&mut self, sst: &SstReader) -> Result<BTreeMap<FileId, LostValues>> {
        let mut lost: BTreeMap<FileId, LostValues> = BTreeMap::new();
        if sst.properties().value_files.is_empty() {
            return Ok(lost);
        }
        sst.walk(true, &mut |piece| {
            let Piece::Record(_, entry) = piece else { return Ok(()) };
            if let Some((file, Lost { from_row, to_row, error, .. })) = self.lost(&entry) {
                let first = || LostValues { values: 0, from_row, to_row: Bytes::new(), error };
                let known = lost.entry(file).or_insert_with(first);
                known.values += 1;
                known.to_row = to_row;
            }
            Ok(())
        })?;
        Ok(lost)
    }
}

/// The value files in the directory: their numbers and bytes.
pub(super) fn list_values(files: &dyn Files, layout: &Layout) -> Result<BTreeMap<FileId, u64>> {
    let names = list_files(files, &layout.values())?.into_iter();
    Ok(names.filter_map(|(name, len)| Some((parse_number(&name, "", ".val")?, len))).collect())
}

/// The end of the name of a value file that a repair writes anew. It is none that a start looks at.
const UNFINISHED: &str = ".new";

/// Where a value file is written anew.
pub(super) fn unfinished_value(layout: &Layout, id: FileId) -> PathBuf {
    layout.values().join(format!("{id:016x}{UNFINISHED}"))
}

/// What repairs that were interrupted left of value files that they wrote anew.
pub(super) fn list_unfinished_values(files: &dyn Files, layout: &Layout) -> Result<Vec<PathBuf>> {
    let names = list_files(files, &layout.values())?.into_iter();
    let ids = names.filter_map(|(name, _)| parse_number(&name, "", UNFINISHED));
    Ok(ids.map(|id| unfinished_value(layout, id)).collect())
}
