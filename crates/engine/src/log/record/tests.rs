use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::error::ErrorKind;
use crate::io::{Fault, FaultFiles, FaultOp, Files, MemoryFiles};

const MAGIC: Magic = *b"TESTFILE";
const ID: u64 = 0x1234;

fn path() -> &'static Path {
    Path::new("records")
}

/// A file with the payloads of each group, synced after each group but the last `unsynced` ones.
/// Returns the offsets of the records, too.
fn write(groups: &[&[&[u8]]], unsynced: usize) -> (MemoryFiles, Vec<u64>) {
    let files = MemoryFiles::new();
    let mut writer = RecordWriter::create(&files, path(), MAGIC, ID).unwrap();
    let mut offsets = Vec::new();
    for (i, group) in groups.iter().enumerate() {
        for payload in *group {
            offsets.push(writer.append(payload).unwrap());
        }
        if i + unsynced < groups.len() {
            writer.sync().unwrap();
        } else {
            writer.flush().unwrap();
        }
    }
    assert_eq!(files.contents(path()).unwrap().len() as u64, writer.len());
    (files, offsets)
}

#[test]
fn the_device_begins_with_large_records_where_a_sync_follows_and_what_it_says_of_them_is_final() {
    for (syncs_soon, begun) in [(false, 0), (true, 7)] {
        let memory = MemoryFiles::new();
        let files = FaultFiles::new(Arc::new(memory.clone()));
        let mut writer = RecordWriter::create(&files, path(), MAGIC, ID).unwrap();
        if syncs_soon {
            writer = writer.syncs_soon();
        }
        let large = vec![7; 3 << 20];
        writer.append(&large).unwrap();
        // Half a megabyte of small ones, in one write.
        for _ in 0..5 {
            writer.append(&vec![7; 110 << 10]).unwrap();
        }
        writer.append(b"small").unwrap();
        writer.sync().unwrap();
        writer.append(b"small").unwrap();
        writer.sync().unwrap();
        assert_eq!(files.count(FaultOp::BeginSync), begun);
        assert_eq!(memory.contents(path()).unwrap().len() as u64, writer.len());
        files.inject(Fault::new(FaultOp::BeginSync));
        assert_eq!(writer.append(&large).is_err(), syncs_soon);
        assert_eq!(writer.sync().is_err(), syncs_soon, "nobody knows what is in the file");
    }
}

#[test]
fn what_is_laid_out_behind_the_records_may_be_cut_off_while_they_are_read() {
    let large = vec![7; 700 << 10];
    let (files, _) = write(&[&[&large, &large, &large]], 0);
    let written = files.contents(path()).unwrap().len() as u64;
    for is_told in [true, false] {
        let laid_out = damaged(&files, |bytes| bytes.resize(bytes.len() + (1 << 20), 0));
        let file = laid_out.open(path()).unwrap();
        let end = if is_told { written } else { u64::MAX };
        let mut reader = RecordReader::open_to(file, MAGIC, ID, Tail::MayBeTorn, end).unwrap();
        laid_out.truncate(path(), written).unwrap();
        let read = (0..3).map(|_| reader.next_record().map(|record| record.is_some()));
        let read: crate::error::Result<Vec<bool>> = read.collect();
        assert_eq!(read.ok(), is_told.then(|| vec![true; 3]));
    }
}

type Outcome = crate::error::Result<(Vec<Vec<u8>>, TailEnd)>;

fn read(files: &MemoryFiles, tail: Tail) -> Outcome {
    let mut reader = RecordReader::open(files.open(path()).unwrap(), MAGIC, ID, tail)?;
    let mut payloads = Vec::new();
    while let Some(record) = reader.next_record()? {
        payloads.push(record.payload.to_vec());
    }
    Ok((payloads, reader.end().expect("next returned None")))
}

fn damaged(files: &MemoryFiles, change: impl FnOnce(&mut Vec<u8>)) -> MemoryFiles {
    let copy = MemoryFiles::new();
    let mut bytes = files.contents(path()).unwrap();
    change(&mut bytes);
    copy.put_contents(path(), bytes);
    copy
}

#[test]
fn a_record_keeps_nothing_of_the_file_in_memory() {
    let (files, _) = write(&[&[b"a row", b"another", b"a third"]], 0);
    let file = files.open(path()).unwrap();
    let mut reader = RecordReader::open(file, MAGIC, ID, Tail::Sealed).unwrap();
    let records: Vec<_> = std::iter::from_fn(|| reader.next_record().unwrap()).collect();
    assert_eq!(records.len(), 3);
    assert!(records.iter().all(|record| record.payload.is_unique()));
}

fn all(groups: &[&[&[u8]]]) -> Vec<Vec<u8>> {
    groups.concat().into_iter().map(<[u8]>::to_vec).collect()
}

#[test]
fn records_come_back_in_order_and_the_end_is_clean() {
    let groups: &[&[&[u8]]] = &[&[b"one", b""], &[b"three"]];
    let (files, offsets) = write(groups, 0);
    for tail in [Tail::MayBeTorn, Tail::Sealed] {
        let (payloads, end) = read(&files, tail).unwrap();
        assert_eq!(payloads, all(groups));
        assert_eq!(end, TailEnd { valid_len: offsets[2] + 24 + 5, torn_bytes: 0 });
    }
}

#[test]
fn the_bytes_of_a_file_are_what_the_format_says() {
    let (files, _) = write(&[&[b"abc"]], 0);
    let mut hex = String::new();
    for byte in files.contents(path()).unwrap() {
        write!(hex, "{byte:02x}").unwrap();
    }
    // magic, version, id, check | length, check, durable, digest, payload
    assert_eq!(hex, TEST_VECTOR);
}

/// Kept so that a change of the format cannot go unnoticed; also in docs/formats-log.md.
const TEST_VECTOR: &str = "5445535446494c450100000000000000341200000000000037e785044d2c2527\
    030000005aabed5c0000000000000000cbbc297c2f6c1fbe616263";

#[test]
fn records_larger_than_every_buffer_come_back() {
    let large = vec![7; 3 << 20];
    let middle = vec![8; (1 << 20) - 10];
    let groups: &[&[&[u8]]] = &[&[b"a", &large, b"b"], &[&middle, &middle, b"c"]];
    let (files, _) = write(groups, 0);
    assert_eq!(read(&files, Tail::Sealed).unwrap().0, all(groups));
    let (files, offsets) = write(groups, 1);
    // The scan for a witness steps over large payloads, too.
    let files = damaged(&files, |bytes| bytes[offsets[1] as usize + 5_000] ^= 1);
    assert_eq!(read(&files, Tail::MayBeTorn).unwrap_err().kind(), ErrorKind::Corruption);
}

#[test]
fn a_payload_over_the_limit_is_refused_and_the_writer_goes_on() {
    let files = MemoryFiles::new();
    let mut writer = RecordWriter::create(&files, path(), MAGIC, ID).unwrap();
    let large = vec![0; RECORD_BYTES_MAX as usize + 1];
    assert_eq!(writer.append(&large).unwrap_err().kind(), ErrorKind::InvalidArgument);
    writer.append(b"small").unwrap();
    writer.sync().unwrap();
    assert_eq!(read(&files, Tail::Sealed).unwrap().0, [b"small"]);
}

#[test]
fn zeros_laid_out_ahead_are_a_clean_end() {
    let (files, _) = write(&[&[b"one"]], 0);
    let files = damaged(&files, |bytes| bytes.resize(bytes.len() + 5_000, 0));
    for tail in [Tail::MayBeTorn, Tail::Sealed] {
        let (payloads, end) = read(&files, tail).unwrap();
        assert_eq!((payloads.len(), end.torn_bytes), (1, 0));
        assert_eq!(end.valid_len, 32 + 24 + 3);
    }
}

#[test]
fn a_wrong_magic_id_or_version_is_refused() {
    let (files, _) = write(&[&[b"one"]], 0);
    let open = |files: &MemoryFiles, magic, id| {
        RecordReader::open(files.open(path()).unwrap(), magic, id, Tail::Sealed).unwrap_err()
    };
    assert_eq!(open(&files, *b"OTHER...", ID).kind(), ErrorKind::Corruption);
    assert!(open(&files, MAGIC, ID + 1).message().contains("copied or renamed"));
    let newer = damaged(&files, |bytes| {
        bytes[8] = FORMAT_VERSION + 1;
        let check = xxh3_64(&bytes[..24]).to_le_bytes();
        bytes[24..32].copy_from_slice(&check);
    });
    assert_eq!(open(&newer, MAGIC, ID).kind(), ErrorKind::InvalidArgument);
}

/// The heart: for every byte of a file of three synced groups, one unsynced group in flight, each way
/// to damage it.
#[test]
fn every_flipped_byte_is_damage_where_it_was_promised_and_a_torn_tail_where_it_was_not() {
    let groups: &[&[&[u8]]] = &[&[b"a1", b"a2"], &[b"b1"], &[b"c1", b"c2", b"c3"]];
    let (files, offsets) = write(groups, 1);
    let promised = offsets[3]; // groups a and b; group c says so
    let len = files.contents(path()).unwrap().len();
    for at in 0..len {
        for change in [1_u8, 0x80, 0xFF] {
            let files = damaged(&files, |bytes| bytes[at] ^= change);
            let outcome = read(&files, Tail::MayBeTorn);
            if (at as u64) < promised {
                let error = outcome.expect_err("promised bytes are never cut");
                assert_eq!(error.kind(), ErrorKind::Corruption);
                let text = error.message();
                assert!(text.contains("records") && text.contains("offset"), "{text}");
                assert!(text.contains("tepui repair") || text.contains("renamed"), "{text}");
            } else {
                let (payloads, end) = outcome.unwrap();
                let hit = offsets.iter().rposition(|o| *o <= at as u64).unwrap();
                assert_eq!(payloads, all(groups)[..hit]);
                assert_eq!(end.valid_len, offsets[hit]);
                assert_eq!(end.torn_bytes, len as u64 - offsets[hit]);
            }
            assert_eq!(read(&files, Tail::Sealed).unwrap_err().kind(), ErrorKind::Corruption);
        }
    }
}

#[test]
fn a_file_cut_anywhere_yields_the_whole_records_before_the_cut() {
    let groups: &[&[&[u8]]] = &[&[b"a1"], &[b"b1", b"b2"]];
    let (files, offsets) = write(groups, 1);
    let len = files.contents(path()).unwrap().len();
    for at in 0..len {
        let files = damaged(&files, |bytes| bytes.truncate(at));
        let (payloads, end) = read(&files, Tail::MayBeTorn).unwrap();
        let whole = offsets[1..].iter().filter(|o| **o <= at as u64).count();
        assert_eq!(payloads, all(groups)[..whole]);
        assert!(end.valid_len <= at as u64);
        assert!(end.valid_len + end.torn_bytes <= at as u64);
    }
}

#[test]
fn promised_bytes_that_turned_to_zeros_are_damage_not_a_clean_end() {
    let (files, offsets) = write(&[&[b"a1"], &[b"b1"], &[b"c1"]], 1);
    let (from, to) = (offsets[1] as usize, offsets[2] as usize);
    let zeroed = damaged(&files, |bytes| bytes[from..to].fill(0));
    assert_eq!(read(&zeroed, Tail::MayBeTorn).unwrap_err().kind(), ErrorKind::Corruption);
}

#[test]
fn records_from_another_place_or_file_do_not_verify() {
    let (files, offsets) = write(&[&[b"same", b"same", b"same"]], 0);
    let [a, b, c] = [0, 1, 2].map(|i| offsets[i] as usize);
    let moved = damaged(&files, |bytes| {
        let first = bytes[a..b].to_vec();
        bytes[b..c].copy_from_slice(&first);
    });
    assert_eq!(read(&moved, Tail::Sealed).unwrap_err().kind(), ErrorKind::Corruption);
    assert_eq!(read(&moved, Tail::MayBeTorn).unwrap().0.len(), 1);
}

#[test]
fn a_record_stored_inside_a_payload_is_not_taken_for_a_witness() {
    // The bytes of a record that would verify at the offset where the payload puts it.
    let start = FILE_HEADER_BYTES + 2 * RECORD_HEADER_BYTES + 2;
    let forged = Header { length: 0, durable: start, digest: digest(ID, start, b"") };
    let forged = forged.encode(ID, start);
    let (files, offsets) = write(&[&[b"a1", &forged]], 1);
    assert_eq!(offsets[1] + RECORD_HEADER_BYTES, start);
    // The outer payload's digest breaks, its header holds.
    let files = damaged(&files, |bytes| bytes[offsets[1] as usize + 16] ^= 1);
    assert_eq!(read(&files, Tail::MayBeTorn).unwrap().0, [b"a1"]);
}

#[test]
fn after_a_failed_write_or_sync_the_writer_is_finished() {
    for op in [FaultOp::Append, FaultOp::Sync] {
        let files = FaultFiles::new(Arc::new(MemoryFiles::new()));
        let mut writer = RecordWriter::create(&files, path(), MAGIC, ID).unwrap();
        writer.append(b"a").unwrap();
        files.inject(Fault::new(op).kind(ErrorKind::NoSpace));
        assert_eq!(writer.sync().unwrap_err().kind(), ErrorKind::NoSpace);
        assert_eq!(writer.durable(), 0);
        assert_eq!(writer.append(b"b").unwrap_err().kind(), ErrorKind::NoSpace);
        assert_eq!(writer.flush().unwrap_err().kind(), ErrorKind::NoSpace);
        assert_eq!(writer.sync().unwrap_err().kind(), ErrorKind::NoSpace);
    }
}

#[test]
fn a_group_reaches_the_file_in_one_write() {
    let files = FaultFiles::new(Arc::new(MemoryFiles::new()));
    let mut writer = RecordWriter::create(&files, path(), MAGIC, ID).unwrap();
    for _ in 0..1_000 {
        writer.append(&[1; 100]).unwrap();
    }
    writer.sync().unwrap();
    assert_eq!((files.count(FaultOp::Append), files.count(FaultOp::Sync)), (1, 1));
}

fn salvage(files: &MemoryFiles) -> (Vec<Vec<u8>>, Vec<std::ops::Range<u64>>) {
    let mut salvage = Salvage::open(files.open(path()).unwrap(), MAGIC, ID).unwrap();
    let mut payloads = Vec::new();
    while let Some(record) = salvage.next_record().unwrap() {
        payloads.push(record.payload.to_vec());
    }
    (payloads, salvage.damaged().to_vec())
}

#[test]
fn salvage_keeps_every_record_but_the_damaged_one_and_says_where_that_was() {
    let groups: &[&[&[u8]]] = &[&[b"a1", b"a2"], &[b"b1"]];
    let (files, offsets) = write(groups, 0);
    let len = files.contents(path()).unwrap().len();
    assert_eq!(salvage(&files), (all(groups), vec![]));
    for at in 0..len {
        let files = damaged(&files, |bytes| bytes[at] ^= 0x10);
        let (payloads, lost) = salvage(&files);
        let mut expected = all(groups);
        let bounds = match offsets.iter().rposition(|o| *o <= at as u64) {
            None => 0..FILE_HEADER_BYTES,
            Some(i) => {
                expected.remove(i);
                offsets[i]..offsets.get(i + 1).copied().unwrap_or(len as u64)
            }
        };
        assert_eq!((payloads, lost), (expected, vec![bounds]));
    }
}

proptest! {
    #[test]
    fn no_bytes_make_a_reader_panic_or_invent_a_record(
        bytes in proptest::collection::vec(any::<u8>(), 0..600),
        with_header in any::<bool>(),
    ) {
        let mut file = if with_header { encode_file_header(MAGIC, ID) } else { Vec::new() };
        file.extend_from_slice(&bytes);
        let files = MemoryFiles::new();
        files.put_contents(path(), file);
        if let Ok((payloads, _)) = read(&files, Tail::MayBeTorn) {
            prop_assert!(payloads.is_empty());
        }
        let _ = read(&files, Tail::Sealed);
        prop_assert!(salvage(&files).0.is_empty());
    }

    #[test]
    fn random_damage_never_changes_a_record_and_loses_no_promised_one(
        groups in proptest::collection::vec(
            proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 1..4), 1..6),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        // Records are told apart by their payloads below.
        let mut groups = groups;
        for (number, payload) in groups.iter_mut().flatten().enumerate() {
            payload.push(number as u8);
        }
        let borrowed: Vec<Vec<&[u8]>> =
            groups.iter().map(|g| g.iter().map(Vec::as_slice).collect()).collect();
        let borrowed: Vec<&[&[u8]]> = borrowed.iter().map(Vec::as_slice).collect();
        let (files, offsets) = write(&borrowed, 1);
        let last_group = groups.last().map_or(0, Vec::len);
        let promised = offsets.len() - last_group;
        let all = all(&borrowed);
        let files = damaged(&files, |bytes| {
            for (index, value) in &damage {
                let at = index.index(bytes.len());
                bytes[at] = *value;
            }
            if let Some(index) = cut {
                // Only the unpromised tail is ever cut by a crash.
                let from = offsets.get(promised).copied().unwrap_or(0) as usize;
                bytes.truncate(from + index.index(bytes.len() - from + 1));
            }
        });
        if let Ok((payloads, _)) = read(&files, Tail::MayBeTorn) {
            prop_assert_eq!(&payloads[..], &all[..payloads.len()]);
            // Without a single readable record of the last group nothing witnesses the promise.
            let witness = salvage(&files).0.iter().any(|p| all[promised..].contains(p));
            prop_assert!(payloads.len() >= promised || !witness || groups.len() == 1);
        }
    }
}
