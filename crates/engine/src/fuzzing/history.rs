//! Histories: inputs that say what is written to record files, and how one of them is damaged afterwards.
//!
//! A record's checksum covers its place in its file, so no bytes that were not made for it are a second record. The payloads are therefore
//! written as they are in production, and what must be read of them is known.
//!
//! ```text
//! input:   damage: kind u8, file u8, place u16 LE | record ...
//! record:  how u8 | length varint | payload          the last one may be shorter than it says
//!
//! how   bit 0: a sync follows   bit 1: it is the first of another file
//! kind  lowest two bits: 0 none, 1 a bit is flipped, 2 the file is cut, 3 bytes are zeros
//!       others: which bit; or eighths of the bytes, 0 for all that follow
//! ```

use std::path::{Path, PathBuf};

use bytes::Bytes;

use crate::codec::Reader;
use crate::io::{Files, MemoryFiles};
use crate::log::record::{
    FILE_HEADER_BYTES, RECORD_HEADER_BYTES, Record, RecordWriter, is_record_header,
};

/// What the byte before a record says.
pub(crate) mod how {
    pub(crate) const SYNC: u8 = 1;
    pub(crate) const NEXT_FILE: u8 = 2;
}

/// Kinds of damage.
pub(crate) mod damage {
    pub(crate) const FLIP: u8 = 1;
    pub(crate) const CUT: u8 = 2;
    pub(crate) const ZERO: u8 = 3;
    /// Bits of these.
    pub(super) const KIND: u8 = 3;
}

/// Files of a history at most. With fewer none is between others; with more a case takes longer, and finds the same.
const FILES_MAX: usize = 4;

/// A record to be written.
#[derive(Debug)]
pub(crate) struct Step<'a> {
    pub(crate) payload: &'a [u8],
    syncs: bool,
}

/// What an input says.
#[derive(Debug)]
pub(crate) struct History<'a> {
    /// The records of each file; of one at least.
    pub(crate) files: Vec<Vec<Step<'a>>>,
    kind: u8,
    file: u8,
    place: u16,
}

impl<'a> History<'a> {
    /// Every input says something.
    pub(crate) fn parse(data: &'a [u8]) -> Self {
        let mut input = Reader::new(data);
        let (kind, file) = (input.u8().unwrap_or(0), input.u8().unwrap_or(0));
        let place = input.fixed_u16().unwrap_or(0);
        let mut files = Vec::new();
        let mut steps = Vec::new();
        while let Ok(how) = input.u8() {
            let len = input.usize().unwrap_or(usize::MAX).min(input.remaining());
            let payload = input.take(len).unwrap_or_default();
            let has_next = !steps.is_empty() && files.len() + 1 < FILES_MAX;
            if how & how::NEXT_FILE != 0 && has_next {
                files.push(std::mem::take(&mut steps));
            }
            steps.push(Step { payload, syncs: how & how::SYNC != 0 });
        }
        files.push(steps);
        Self { files, kind, file, place }
    }

    /// Damages one of these files, as the input says.
    pub(crate) fn damage(&self, files: &MemoryFiles, paths: &[&Path]) {
        let Some(path) = paths.get(usize::from(self.file) % paths.len().max(1)) else { return };
        let mut bytes = contents(files, path);
        let at = usize::from(self.place) % bytes.len().max(1);
        let more = self.kind >> 2;
        match self.kind & damage::KIND {
            damage::FLIP => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << (more % 8);
                }
            }
            damage::CUT => bytes.truncate(at),
            damage::ZERO => {
                let len = if more == 0 { usize::MAX } else { 8 * usize::from(more) };
                for byte in bytes.iter_mut().skip(at).take(len) {
                    *byte = 0;
                }
            }
            _ => return,
        }
        files.put_contents(path, bytes);
    }
}

/// A file that was written.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) path: PathBuf,
    pub(crate) id: u64,
    pub(crate) records: Vec<Record>,
    image: Vec<u8>,
}

impl Written {
    /// Writes these records behind those that the writer has written.
    pub(crate) fn write(
        files: &MemoryFiles,
        writer: &mut RecordWriter,
        mut records: Vec<Record>,
        steps: &[Step<'_>],
    ) -> Self {
        for step in steps {
            let (durable, payload) = (writer.durable(), Bytes::copy_from_slice(step.payload));
            let offset = writer.append(step.payload).expect(IN_MEMORY);
            records.push(Record { offset, durable, payload });
            if step.syncs {
                writer.sync().expect(IN_MEMORY);
            }
        }
        // What was not synced is there, too, as far as it is not damaged.
        writer.flush().expect(IN_MEMORY);
        let (path, id) = (writer.path().to_owned(), writer.file_id());
        let image = contents(files, &path);
        Self { path, id, records, image }
    }

    /// Bytes that were written.
    pub(crate) fn len(&self) -> u64 {
        self.image.len() as u64
    }

    /// What of it must be read now.
    pub(crate) fn left(&self, files: &MemoryFiles) -> Left<'_> {
        let now = contents(files, &self.path);
        let same = |from: u64, to: u64| {
            let range = from as usize..to as usize;
            let there = now.get(range.clone());
            there.is_some() && there == self.image.get(range)
        };
        let is_whole = |record: &&Record| same(record.offset, end(record));
        let whole: Vec<&Record> = self.records.iter().filter(is_whole).collect();
        let has_header = same(0, FILE_HEADER_BYTES);
        let in_order = self.records.iter().zip(&whole).take_while(|(a, b)| a.offset == b.offset);
        let read = if has_header { in_order.count() } else { 0 };
        let lost = self.records.get(read).map_or(self.len(), |record| record.offset);
        let lost = if has_header { lost } else { 0 };
        let rest = now.get(lost as usize..).unwrap_or_default();
        let is_changed = now != self.image;
        let is_header = |at: usize| is_record_header(&now, self.id, at as u64);
        let is_start = |at: usize| {
            self.records.binary_search_by_key(&(at as u64), |record| record.offset).is_ok()
        };
        // Nobody looks for records in what is whole.
        let is_forged = is_changed && (0..now.len()).any(|at| is_header(at) && !is_start(at));
        Left {
            records: self.records.get(..read).unwrap_or_default(),
            lost,
            is_damaged: whole.iter().any(|record| record.offset > lost && record.durable > lost),
            is_clean: rest.iter().all(|byte| *byte == 0),
            is_changed,
            is_forged,
            whole,
        }
    }
}

/// What is left of a file, by the rules of [`crate::log::record`].
#[derive(Debug)]
pub(crate) struct Left<'a> {
    /// The records before the first that is damaged.
    pub(crate) records: &'a [Record],
    /// Where that is.
    pub(crate) lost: u64,
    /// A record behind it says that it was synced.
    pub(crate) is_damaged: bool,
    /// Only zeros follow.
    pub(crate) is_clean: bool,
    /// Something is not as it was written.
    pub(crate) is_changed: bool,
    /// All records that are whole.
    pub(crate) whole: Vec<&'a Record>,
    /// A payload has what would be a record's header in its place: a reader that looks for records in it, for the header before it is
    /// damaged, may take it for one.
    pub(crate) is_forged: bool,
}

/// The offset behind a record.
pub(crate) fn end(record: &Record) -> u64 {
    record.offset + RECORD_HEADER_BYTES + record.payload.len() as u64
}

/// The files of a directory, on another disk.
pub(crate) fn copy(files: &MemoryFiles, dir: &Path) -> MemoryFiles {
    let copy = MemoryFiles::new();
    copy.create_dir_all(dir).expect(IN_MEMORY);
    for entry in files.list(dir).expect(IN_MEMORY) {
        let path = dir.join(entry.name);
        copy.put_contents(&path, contents(files, &path));
    }
    copy
}

fn contents(files: &MemoryFiles, path: &Path) -> Vec<u8> {
    files.contents(path).expect(IN_MEMORY)
}

/// Why what is written, and read as it was, does not fail.
pub(crate) const IN_MEMORY: &str = "files in memory have room";

/// An input, and how it is damaged.
#[cfg(test)]
pub(crate) fn input(damage: [u8; 2], place: u16, records: &[(u8, &[u8])]) -> Vec<u8> {
    let mut out = damage.to_vec();
    out.extend_from_slice(&place.to_le_bytes());
    for (how, payload) in records {
        out.push(*how);
        crate::codec::put_bytes(&mut out, payload);
    }
    out
}
