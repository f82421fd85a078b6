//! Entry points for fuzz targets; not a stable API.
//!
//! Each function runs a decoder on any bytes. It may refuse them; it never panics, hangs, or takes more memory
//! than the input justifies. Random bytes do not pass a checksum, so where one stands before a decoder, the
//! function runs what is behind it on the bytes, too.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use crate::backup::BackupList;
use crate::cell::RowRange;
use crate::changes::file::{ChangeFile, OpenChangeFile};
use crate::changes::{horizon, present as changes_present};
use crate::error::Result;
use crate::io::{Files, MemoryFiles};
use crate::layout::{BACKUP_PREFIX, parse_number};
use crate::log::record::{Magic, Salvage, Tail, first_image};
use crate::log::segment::{MAGIC, SegmentReader, parse_segment_name, segment_name};
use crate::log::{decode_batch, decode_record, present, repair};
use crate::manifest::{
    LocalMetaStore, MetaRecord, TabletManifest, Version, VersionEdit, dump_manifest, dump_meta,
};
use crate::sst::Compression;
use crate::tablet::TabletId;
use crate::values::{ValueFileWriter, ValuePointer, ValueReader, ValueWindows, decode_footer};

/// The number of the files.
const ID: u64 = 1;
const DIR: &str = "/fuzz";
/// Whose manifest it is.
const TABLET: TabletId = TabletId(1);
const MANIFEST: (&str, Magic) = ("MANIFEST-0000000000000001", *b"TEPUIMAN");
const META: (&str, Magic) = ("META-0000000000000001", *b"TEPUIMTA");

/// A directory with one file.
fn disk(name: &str, bytes: Vec<u8>) -> (Arc<dyn Files>, PathBuf) {
    let files = MemoryFiles::new();
    // In memory, this does not fail; and if it did, the reader would say that there is no file.
    let _ = files.create_dir_all(Path::new(DIR));
    let path = Path::new(DIR).join(name);
    files.put_contents(&path, bytes);
    (Arc::new(files), path)
}

/// A segment of the commit log: its records, what can be salvaged of it, and its repair.
pub fn log_file(data: &[u8]) {
    // As it is; behind a valid header and record; and as the payload of a valid record.
    let behind = [&first_image(MAGIC, ID, b"\x02")[..], data].concat();
    for bytes in [data.to_vec(), behind, first_image(MAGIC, ID, data)] {
        read_log(bytes);
    }
    log_batch(data);
    // The list of segments beside it.
    let list = |data| first_image(present::MAGIC, present::FILE_ID, data);
    for bytes in [data.to_vec(), [&list(&ID.to_le_bytes())[..], data].concat(), list(data)] {
        let (files, _) = disk(present::NAME, bytes);
        let _ = present::missing(&*files, Path::new(DIR));
    }
}

fn read_log(bytes: Vec<u8>) {
    let (files, path) = disk(&segment_name(ID), bytes);
    for tail in [Tail::MayBeTorn, Tail::Sealed] {
        if let Ok(mut reader) = SegmentReader::open(&*files, Path::new(DIR), ID, tail) {
            while let Ok(Some(_)) = reader.next_record() {}
        }
    }
    if let Ok(mut salvage) = files.open(&path).and_then(|file| Salvage::open(file, MAGIC, ID)) {
        while let Ok(Some(_)) = salvage.next_record() {}
    }
    let _ = repair::repair(&*files, Path::new(DIR), &mut Vec::new());
}

/// A value file, and a pointer into one.
pub fn value_file(data: &[u8]) {
    decode_footer(data);
    let given = ValuePointer::decode(data).ok();
    let (files, path) = disk("1.val", data.to_vec());
    if let Ok(reader) = ValueReader::open(&*files, &path, ID) {
        for pointer in given.into_iter().chain([pointer_to_all(&reader)]) {
            let _ = reader.read(&pointer);
            let _ = ValueWindows::default().read(&reader, &ValuePointer { file: ID, ..pointer });
        }
    }
    let (files, path, added) = sealed_values(data);
    if let (Ok(added), Ok(reader)) = (added, ValueReader::open(&*files, &path, ID)) {
        let read = [reader.read(&added), ValueWindows::default().read(&reader, &added)];
        let is_same = |read: Result<Bytes>| read.is_ok_and(|value| value == data);
        assert!(read.into_iter().all(is_same), "what is written is read");
        let _ = given.map(|pointer| reader.read(&pointer));
    }
}

/// What leads to the value of a file of one.
fn pointer_to_all(reader: &ValueReader) -> ValuePointer {
    let (stored_len, value_len) = (reader.frame_bytes() as u32, reader.value_bytes() as u32);
    ValuePointer { file: ID, offset: 0, stored_len, value_len }
}

/// A value file of one value, and what leads to that.
fn sealed_values(data: &[u8]) -> (Arc<dyn Files>, PathBuf, Result<ValuePointer>) {
    let (files, _) = disk("0.val", Vec::new());
    let path = Path::new(DIR).join("2.val");
    let write = || {
        let mut writer = ValueFileWriter::new(files.create(&path)?, ID, Compression::Lz4);
        let pointer = writer.add(data)?;
        writer.finish().map(|_| pointer)
    };
    // In memory, this does not fail.
    let pointer = write();
    (files, path, pointer)
}

/// The payload of a record of the commit log.
pub fn log_batch(data: &[u8]) {
    let _ = decode_record(Bytes::copy_from_slice(data));
    let _ = decode_batch(Bytes::copy_from_slice(data));
}

/// A change file, and any record of one; and the list of them.
pub fn change_file(data: &[u8]) {
    crate::changes::file::fuzz(data);
    for bytes in
        [data.to_vec(), first_image(changes_present::MAGIC, changes_present::FILE_ID, data)]
    {
        let (files, _) = disk(changes_present::NAME, bytes);
        let _ = changes_present::missing(&*files, Path::new(DIR));
    }
    for (files, path) in [disk("1.chg", data.to_vec()), sealed_changes(data)] {
        if let Ok(opened) = OpenChangeFile::open(&*files, &path, ID) {
            for block in opened.blocks() {
                let _ = opened.changes(block);
            }
        }
    }
}

/// A change file whose checksums hold.
fn sealed_changes(data: &[u8]) -> (Arc<dyn Files>, PathBuf) {
    let (files, _) = disk("0.chg", Vec::new());
    let path = Path::new(DIR).join("2.chg");
    // In memory, this does not fail.
    let _ = crate::changes::file::write_fuzzed(&*files, &path, ID, data);
    (files, path)
}

/// A data block of an SST.
pub fn data_block(data: &[u8]) {
    crate::sst::fuzzing::data_block(data);
}

/// An index partition, a top-level index or a filter index of an SST.
pub fn index_block(data: &[u8]) {
    crate::sst::fuzzing::index_block(data);
}

/// A filter partition of an SST, and probes of it.
pub fn filter_block(data: &[u8]) {
    crate::sst::fuzzing::filter_block(data);
}

/// A whole SST: footer, properties, indexes, and every block that they lead to.
pub fn sst_file(data: &[u8]) {
    crate::sst::fuzzing::sst_file(data);
}

/// The names of files in a data directory, and its identity.
pub fn directory(data: &[u8]) {
    crate::identity::fuzz(data);
    let Ok(name) = std::str::from_utf8(data) else { return };
    let ends = ["", ".log", ".sst", ".val", ".chg", horizon::HORIZON];
    for name in ends.map(|end| format!("{name}{end}")) {
        horizon::fuzz(&name);
        assert!(parse_segment_name(&name).is_none_or(|id| segment_name(id) == name));
        let changes = ChangeFile::of_entry(&name, 0);
        assert!(changes.is_none_or(|file| file.name() == name));
        for (prefix, suffix) in [("", ""), ("", ".sst"), ("", ".val"), (BACKUP_PREFIX, "")] {
            let name = format!("{prefix}{name}");
            let written = |number: u64| format!("{prefix}{number:016x}{suffix}");
            let number = parse_number(&name, prefix, suffix);
            assert!(number.is_none_or(|number| written(number) == name), "it has one name");
        }
    }
}

/// A tablet's manifest, the meta store's journal, and the list of a backup.
pub fn manifest_file(data: &[u8]) {
    for (name, magic) in [MANIFEST, META] {
        let behind = [&first_image(magic, ID, data)[..], data].concat();
        for bytes in [data.to_vec(), first_image(magic, ID, data), behind] {
            let (files, path) = disk(name, bytes);
            if let Ok(edits) = dump_manifest(&*files, &path) {
                edits.for_each(drop);
            }
            let _ = dump_meta(&*files, &path);
            let _ = TabletManifest::open(Arc::clone(&files), Path::new(DIR), TABLET);
            let _ = LocalMetaStore::open(files, Path::new(DIR));
        }
    }
    if let Ok(edit) = VersionEdit::decode(Bytes::copy_from_slice(data)) {
        let range = edit.range.clone().unwrap_or_else(RowRange::all);
        let _ = Version::empty(range).apply(&edit);
    }
    let _ = MetaRecord::decode(Bytes::copy_from_slice(data));
    let _ = BackupList::decode(Bytes::copy_from_slice(data));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::strategy::ValueTree;

    use super::*;
    use crate::cell::{FamilyId, Mutation, RowBatch};
    use crate::log::encode_batch;
    use crate::log::record::RecordWriter;
    use crate::manifest::journal::Journal;
    use crate::sst::fuzzing::{
        blocks_open, opens, parses, sealed_opens, valid, valid_blocks, valid_thirds,
    };

    /// Cases for each target and way to make bytes.
    const CASES: u32 = 2_000;

    fn batch() -> Vec<u8> {
        let put = |n: u8| Mutation::Put {
            family: FamilyId(u32::from(n)),
            qualifier: Bytes::from(vec![n; 3]),
            timestamp: 5,
            value: Bytes::from(vec![n; 9]),
        };
        let mut mutations: Vec<_> = (0..5).map(put).collect();
        mutations.extend([Mutation::DeleteFamily { family: FamilyId(1) }, Mutation::DeleteRow]);
        encode_batch(2, &RowBatch { row: Bytes::from_static(b"row"), mutations }).bytes().to_vec()
    }

    fn log() -> Vec<u8> {
        let files = MemoryFiles::new();
        let path = Path::new("/log");
        let mut writer = RecordWriter::create(&files, path, MAGIC, ID).unwrap();
        for _ in 0..3 {
            writer.append(&batch()).unwrap();
            writer.sync().unwrap();
        }
        files.contents(path).unwrap()
    }

    fn edit() -> Vec<u8> {
        let mut out = Vec::new();
        let range = Some(RowRange::all());
        let tablet = Some(TABLET);
        VersionEdit { range, last_seq: Some(300), tablet, ..Default::default() }.encode(&mut out);
        out
    }

    fn manifest() -> Vec<u8> {
        let files = MemoryFiles::new();
        let path = Path::new("/M");
        let mut journal = Journal::create(&files, path, MANIFEST.1, ID, &edit()).unwrap();
        journal.append_sync(&edit()).unwrap();
        files.contents(path).unwrap()
    }

    /// A function and a valid encoding for it.
    type Target = (fn(&[u8]), Vec<u8>);

    fn value_pointer() -> Vec<u8> {
        let mut out = Vec::new();
        ValuePointer { file: ID, offset: 0, stored_len: 30, value_len: 21 }.encode(&mut out);
        out
    }

    fn values() -> Vec<u8> {
        let (files, path, _) = sealed_values(&[7; 500]);
        let file = files.open(&path).unwrap();
        file.read_at(0, file.len().unwrap() as usize).unwrap().to_vec()
    }

    /// The list of a backup of one tablet and one value file.
    fn backup() -> Vec<u8> {
        [&[1, edit().len() as u8][..], &edit(), &[1, 9, 100]].concat()
    }

    /// Inputs of a change file of a block of three batches.
    fn changes() -> [Vec<u8>; 3] {
        crate::changes::file::valid_inputs(&[batch(), batch(), batch()])
    }

    fn targets() -> Vec<Target> {
        let [data, index, filter, sst] = valid();
        let mut targets: Vec<Target> = vec![
            (directory, b"0000000000000abc".to_vec()),
            (directory, b"0000000000000001-0000000000000002-0000000000000003".to_vec()),
            (log_file, log()),
            (log_batch, batch()),
            (data_block, data),
            (index_block, index),
            (filter_block, filter),
            (sst_file, sst),
            (sst_file, valid_thirds()),
            (manifest_file, manifest()),
            (manifest_file, edit()),
            (manifest_file, backup()),
            (value_file, value_pointer()),
            (value_file, values()),
        ];
        targets.extend(changes().map(|input| (change_file as fn(&[u8]), input)));
        targets.extend(valid_blocks().into_iter().map(|input| (sst_file as fn(&[u8]), input)));
        targets
    }

    #[test]
    fn the_encodings_that_are_mutated_are_valid() {
        let [data, index, filter, sst] = valid();
        assert_eq!(parses([&data, &index, &filter]), [true; 3]);
        assert!(opens(&sst).0);
        assert!(decode_batch(Bytes::from(batch())).is_ok());
        let (files, _) = disk(&segment_name(ID), log());
        let mut reader = SegmentReader::open(&*files, Path::new(DIR), ID, Tail::Sealed).unwrap();
        for _ in 0..3 {
            assert!(reader.next_record().unwrap().is_some());
        }
        let (files, path) = disk(MANIFEST.0, manifest());
        assert_eq!(dump_manifest(&*files, &path).unwrap().flatten().count(), 2);
        assert!(TabletManifest::open(files, Path::new(DIR), TABLET).is_ok());
        assert!(VersionEdit::decode(Bytes::from(edit())).is_ok());
        // A record and a file made of an edit get past the checksums to it.
        let (files, _) = disk(MANIFEST.0, first_image(MANIFEST.1, ID, &edit()));
        assert!(TabletManifest::open(files, Path::new(DIR), TABLET).is_ok());
        assert!(sealed_opens(&valid_thirds()));
        for input in valid_blocks() {
            assert!(blocks_open(&input), "{:#b}", input[0]);
        }
        for input in changes() {
            let (files, path) = sealed_changes(&input);
            let opened = OpenChangeFile::open(&*files, &path, ID).unwrap();
            assert!(!opened.blocks().is_empty());
            for block in opened.blocks() {
                assert_eq!(opened.changes(block).unwrap().len(), 3);
            }
        }
        assert!(BackupList::decode(Bytes::from(backup())).is_ok());
        assert!(ValuePointer::decode(&value_pointer()).is_ok());
        let (files, path) = disk("1.val", values());
        let reader = ValueReader::open(&*files, &path, ID).unwrap();
        reader.verify_footer().unwrap();
        assert_eq!(reader.read(&pointer_to_all(&reader)).unwrap(), [7; 500][..]);
        // No properties, and indexes without entries: an SST of nothing passes through the seals.
        let mut thirds = [[0; 28]; 3];
        (thirds[1][0], thirds[2][0]) = (1, 2);
        (thirds[1][1], thirds[2][1]) = (4, 4);
        let empty = thirds.concat();
        assert!(opens(&empty).1);
    }

    #[test]
    fn no_target_panics_on_random_or_mutated_bytes() {
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let random = proptest::collection::vec(any::<u8>(), 0..400);
        let changes =
            proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3u8), 1..5);
        for (target, valid) in targets() {
            target(&valid);
            for _ in 0..CASES {
                target(&random.new_tree(&mut runner).unwrap().current());
                let mut bytes = valid.clone();
                for (at, value, how) in changes.new_tree(&mut runner).unwrap().current() {
                    let at = at.index(bytes.len());
                    match how {
                        0 => bytes[at] = value,
                        1 => bytes[at] ^= 1 << (value % 8),
                        _ if bytes.len() > 1 && value.is_multiple_of(4) => {
                            bytes.truncate(at.max(1));
                        }
                        _ => bytes.insert(at, value),
                    }
                }
                target(&bytes);
            }
        }
    }
}
