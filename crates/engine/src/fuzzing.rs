//! Entry points for fuzz targets; not a stable API.
//!
//! Each function runs a decoder on any bytes. It may refuse them; it never panics, hangs, or takes more memory
//! than the input justifies. Random bytes do not pass a checksum, so where one stands before a decoder, the
//! function runs what is behind it on the bytes, too. What is written of the bytes is read again as far as it is not damaged ([`history`]),
//! and what is decoded is encoded again: to the same bytes, but where a decoder takes several for one value.

pub(crate) mod history;

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
use crate::log::{self, decode_batch, present, repair};
use crate::manifest::{
    LocalMetaStore, TabletManifest, Version, VersionEdit, dump_manifest, dump_meta,
};
use crate::offline;
use crate::sst::Compression;
use crate::tablet::TabletId;
use crate::values::{
    ValueFileWriter, ValuePointer, ValueReader, ValueWindows, fuzz_footer, with_any_footer,
};

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

/// A segment of the commit log: its records, what can be salvaged of it, and its repair. And a log of several: what is replayed of it, and
/// of what a repair makes of it.
pub fn log_file(data: &[u8]) {
    // As it is; behind a valid header and record; and as what is written.
    let behind = [&first_image(MAGIC, ID, b"\x02")[..], data].concat();
    for bytes in [data.to_vec(), behind] {
        read_log(bytes);
    }
    // The list of segments beside it.
    let list = first_image(present::MAGIC, present::FILE_ID, &ID.to_le_bytes());
    for bytes in [data.to_vec(), [&list, data].concat()] {
        let (files, _) = disk(present::NAME, bytes);
        let _ = present::missing(&*files, Path::new(DIR));
    }
    log::fuzzing::history(data);
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
    fuzz_footer(data);
    let given = ValuePointer::decode(data).ok();
    if let Some(pointer) = given {
        let mut encoded = Vec::new();
        pointer.encode(&mut encoded);
        assert_eq!(encoded, data, "a pointer has one encoding");
    }
    let number = |at| data.get(at..).and_then(|data| data.first_chunk()).copied();
    let numbers = [0, 8].map(|at| number(at).map_or(0, u64::from_le_bytes));
    for bytes in [data.to_vec(), with_any_footer(data, numbers, ID)] {
        let (files, path) = disk("1.val", bytes);
        let Ok(reader) = ValueReader::open(&*files, &path, ID) else { continue };
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
    let _ = decode_batch(Bytes::copy_from_slice(data));
    log::fuzzing::record(data);
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

/// A tablet's manifest, the meta store's journal, and the list of a backup. And series of such manifests and journals: what is opened, and
/// written on.
pub fn manifest_file(data: &[u8]) {
    for (name, magic) in [MANIFEST, META] {
        let behind = [&first_image(magic, ID, data)[..], data].concat();
        for bytes in [data.to_vec(), behind] {
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
        let mut encoded = Vec::new();
        edit.encode(&mut encoded);
        assert_eq!(encoded, data, "an edit has one encoding");
        let range = edit.range.clone().unwrap_or_else(RowRange::all);
        let _ = Version::empty(range).apply(&edit);
    }
    // A version of a list may be made by several edits.
    if let Ok(list) = BackupList::decode(Bytes::copy_from_slice(data)) {
        let mut encoded = Vec::new();
        list.encode(&mut encoded);
        let decoded = BackupList::decode(encoded.into()).expect("a list that was encoded");
        assert_eq!(decoded, list);
    }
    offline::fuzzing::meta_record(data);
    offline::fuzzing::manifest_history(data, TABLET);
    offline::fuzzing::meta_history(data);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::strategy::ValueTree;

    use super::history::{damage, how, input};
    use super::*;
    use crate::cell::{FamilyId, Mutation, RowBatch};
    use crate::io::{IoMode, LocalFiles};
    use crate::log::encode_batch;
    use crate::log::record::RecordWriter;
    use crate::manifest::journal::Journal;
    use crate::manifest::{
        Excised, MetaChange, MetaExpect, SstRef, encode_meta_commit, encode_meta_snapshot,
    };
    use crate::sst::fuzzing::{
        blocks_open, misled_opens, opens, parses, sealed_opens, valid, valid_blocks, valid_misled,
        valid_thirds,
    };

    /// Cases for each target and way to make bytes.
    const CASES: u32 = 2_000;

    /// Of those that write histories, which take milliseconds each.
    const HISTORY_CASES: u32 = 200;

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

    const NO_DAMAGE: [u8; 2] = [0, 0];

    /// A log of two segments, with batches, markers and syncs.
    fn log_history(damage: [u8; 2], place: u16) -> Vec<u8> {
        let batch = batch();
        let records: [(u8, &[u8]); 7] = [
            (0, &batch),
            (how::SYNC, &batch),
            (0, b"\x02"),
            (how::NEXT_FILE, &batch),
            (how::SYNC, &batch),
            (0, &batch),
            (0, b"\x02"),
        ];
        input(damage, place, &records)
    }

    /// Lists of segments, each with its marker.
    fn lists(damage: [u8; 2], place: u16) -> Vec<u8> {
        let list = |ids: &[u64]| ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<_>>();
        let [first, second] = [list(&[1]), list(&[1, 2])];
        let records: [(u8, &[u8]); 4] =
            [(how::SYNC, &first), (0, b""), (how::SYNC, &second), (0, b"")];
        input(damage, place, &records)
    }

    fn encoded(edit: &VersionEdit) -> Vec<u8> {
        let mut out = Vec::new();
        edit.encode(&mut out);
        out
    }

    /// Two manifests: the first grows, and the second begins with what came of it.
    fn manifest_history(damage: [u8; 2], place: u16) -> Vec<u8> {
        let row = |n: u8| Bytes::from(vec![n]);
        let sst = |id, level, [first, last]: [u8; 2]| {
            SstRef::of_test(id, level, (row(first), row(last)), 100)
        };
        let snapshot = VersionEdit {
            range: Some(RowRange::all()),
            tablet: Some(TABLET),
            add: vec![sst(1, 1, *b"af")],
            ..Default::default()
        };
        let excised = Excised { range: RowRange::new(row(b'b'), row(b'c')), seq: 3 };
        let edits = [
            VersionEdit {
                add: vec![sst(2, 0, *b"af")],
                flushed_seq: Some(2),
                ..Default::default()
            },
            VersionEdit { add_excised: vec![excised.clone()], ..Default::default() },
            VersionEdit { remove_excised: vec![excised], ..Default::default() },
            VersionEdit {
                remove: vec![(0, 2)],
                add: vec![sst(4, 1, *b"gm")],
                range: Some(RowRange::new(row(b'c'), Vec::new())),
                ..Default::default()
            },
        ];
        let version = [&snapshot]
            .into_iter()
            .chain(&edits)
            .fold(Version::empty(RowRange::all()), |version, edit| version.apply(edit).unwrap());
        let mut payloads: Vec<(u8, Vec<u8>)> = vec![(how::SYNC, encoded(&snapshot))];
        for edit in &edits {
            payloads.extend([(0, Vec::new()), (how::SYNC, encoded(edit))]);
        }
        payloads.push((how::NEXT_FILE | how::SYNC, encoded(&version.snapshot())));
        payloads.extend([(0, Vec::new()), (how::SYNC, encoded(&edits[0])), (0, Vec::new())]);
        let records: Vec<(u8, &[u8])> =
            payloads.iter().map(|(how, payload)| (*how, payload.as_slice())).collect();
        input(damage, place, &records)
    }

    fn meta_records() -> [Vec<u8>; 3] {
        let value = Bytes::from_static(b"value");
        let change =
            |key: &str, value| MetaChange { key: key.to_owned(), expect: MetaExpect::Any, value };
        [
            encode_meta_snapshot(7, [("a", 3, &value), ("b", 7, &value)].into_iter()),
            encode_meta_commit(8, &[change("a", None), change("c", Some(value.clone()))]),
            encode_meta_commit(9, &[change("b", Some(value))]),
        ]
    }

    /// Two files of a meta store; the commits are in the second.
    fn meta_history(damage: [u8; 2], place: u16) -> Vec<u8> {
        let [snapshot, first, second] = meta_records();
        let records: [(u8, &[u8]); 7] = [
            (how::SYNC, &snapshot),
            (how::NEXT_FILE | how::SYNC, &snapshot),
            (0, b""),
            (how::SYNC, &first),
            (0, b""),
            (how::SYNC, &second),
            (0, b""),
        ];
        input(damage, place, &records)
    }

    /// A history of two files, but of lists one, and its target.
    type History = (&'static str, fn(&[u8]), fn([u8; 2], u16) -> Vec<u8>);
    const HISTORIES: [History; 4] = [
        ("log_file", log_file, log_history),
        ("log_file", log_file, lists),
        ("manifest_file", manifest_file, manifest_history),
        ("manifest_file", manifest_file, meta_history),
    ];

    /// A target's name, its function and a valid encoding for it.
    type Target = (&'static str, fn(&[u8]), Vec<u8>);

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
            ("directory", directory, b"0000000000000abc".to_vec()),
            (
                "directory",
                directory,
                b"0000000000000001-0000000000000002-0000000000000003".to_vec(),
            ),
            ("log_file", log_file, log()),
            ("log_batch", log_batch, batch()),
            ("data_block", data_block, data),
            ("index_block", index_block, index),
            ("filter_block", filter_block, filter),
            ("sst_file", sst_file, sst),
            ("sst_file", sst_file, valid_thirds()),
            ("sst_file", sst_file, valid_misled()),
            ("manifest_file", manifest_file, manifest()),
            ("manifest_file", manifest_file, edit()),
            ("manifest_file", manifest_file, backup()),
            ("value_file", value_file, value_pointer()),
            ("value_file", value_file, values()),
        ];
        targets
            .extend(HISTORIES.map(|(name, target, history)| (name, target, history(NO_DAMAGE, 0))));
        let valid = meta_records();
        targets.extend(valid.map(|input| ("manifest_file", manifest_file as fn(&[u8]), input)));
        targets.extend(changes().map(|input| ("change_file", change_file as fn(&[u8]), input)));
        let blocks = valid_blocks().into_iter();
        targets.extend(blocks.map(|input| ("sst_file", sst_file as fn(&[u8]), input)));
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
        assert!(sealed_opens(&valid_thirds()) && misled_opens(&valid_misled()));
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
        for (name, target, valid) in targets() {
            target(&valid);
            let writes = HISTORIES.iter().any(|(history, ..)| *history == name);
            for _ in 0..if writes { HISTORY_CASES } else { CASES } {
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

    #[test]
    fn what_a_history_writes_is_opened_and_its_damage_is_told() {
        let batches = |damage, place| log::fuzzing::replayed(&log_history(damage, place));
        assert_eq!(batches(NO_DAMAGE, 0), Some(5));
        // A sealed segment; of the last one its opening, what was synced, and what was not.
        assert_eq!(batches([damage::FLIP, 0], 100), None);
        assert_eq!(batches([damage::FLIP, 1], 40), None);
        assert_eq!(batches([damage::FLIP, 1], 100), None);
        let opening_end = 73;
        let synced_end = opening_end + 2 * (24 + batch().len() as u16);
        assert_eq!(batches([damage::FLIP, 1], synced_end + 5), Some(4));
        assert_eq!(batches([damage::CUT, 1], synced_end + 5), Some(4));
        assert_eq!(batches([damage::ZERO, 1], opening_end), Some(2));

        let ids = |damage, place| {
            let version = offline::fuzzing::version(&manifest_history(damage, place), TABLET)?;
            Some(version.ssts().map(|sst| sst.id).collect::<Vec<_>>())
        };
        assert_eq!(ids(NO_DAMAGE, 0), Some(vec![2, 1, 4]));
        // Where the second was never whole, the first counts.
        assert_eq!(ids([damage::CUT, 1], 40), Some(vec![1, 4]));
        assert_eq!(ids([damage::FLIP, 1], 40), None);
        let revision = |damage, place| offline::fuzzing::revision(&meta_history(damage, place));
        assert_eq!(revision(NO_DAMAGE, 0), Some(9));
        assert_eq!(revision([damage::CUT, 1], 40), Some(7));
        assert_eq!(revision([damage::FLIP, 1], 40), None);
    }

    #[test]
    fn whatever_is_damaged_what_was_synced_and_is_whole_is_read() {
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let damage = any::<([u8; 2], u16)>();
        for (_, target, history) in HISTORIES {
            for _ in 0..HISTORY_CASES {
                let (damage, place) = damage.new_tree(&mut runner).unwrap().current();
                target(&history(damage, place));
            }
        }
    }

    /// `scripts/fuzz.sh` runs it.
    #[test]
    #[ignore = "it writes the seeds of the fuzz targets"]
    fn the_valid_encodings_are_written_as_seeds() {
        let Some(dir) = std::env::var_os("TEPUI_FUZZ_SEEDS") else { return };
        let files = LocalFiles::new(IoMode::Buffered);
        for (at, (target, _, valid)) in targets().into_iter().enumerate() {
            let dir = Path::new(&dir).join(target);
            files.create_dir_all(&dir).unwrap();
            let path = dir.join(format!("seed-{at:02}"));
            let _ = files.remove(&path);
            files.create(&path).unwrap().append(&valid).unwrap();
        }
    }
}
