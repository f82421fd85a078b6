//! What fuzz targets run on the log (see [`crate::fuzzing`]): any bytes may be refused, what was synced is read.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::batch::{LogRecord, decode_record, encode_batch_of, encode_marker, encode_opening};
use super::present::{self, Present};
use super::record::{FILE_HEADER_BYTES, Magic, Record, RecordReader, RecordWriter, Salvage, Tail};
use super::repair;
use super::segment::{MAGIC, Predecessor, create_segment};
use super::{LocalLog, LogOptions};
use crate::cell::{RowBatch, Seq, TIMESTAMP_OF_WRITE};
use crate::error::{ErrorKind, Result};
use crate::fuzzing::history::{History, IN_MEMORY, Left, Written, copy};
use crate::io::{Env, Files, InlineIo, ManualClock, MemoryFiles, SeededRng, ThreadSpawner};

const DIR: &str = "/log";

/// A batch as a replay hands it over.
type Replayed = (u64, Seq, RowBatch);

/// The payload of a record: what can be decoded has this one encoding.
pub(crate) fn record(data: &[u8]) {
    let Ok(record) = decode_record(Bytes::copy_from_slice(data)) else { return };
    let encoded = match record {
        LogRecord::Batch { tablet, first_seq, source, batch } => {
            let mut encoded = encode_batch_of(source, tablet, &batch);
            encoded.set_first_seq(first_seq);
            // A record may have it as the time of its write.
            encoded.set_time(TIMESTAMP_OF_WRITE);
            encoded.bytes().to_vec()
        }
        LogRecord::Marker => encode_marker().to_vec(),
        LogRecord::Opening { previous, previous_bytes } => encode_opening(previous, previous_bytes),
    };
    assert_eq!(encoded, data, "a record has one encoding");
}

/// A log of as many segments as a history has files, and the list of them, of which one is damaged: opened, and repaired and opened.
/// And a list of which each record is of the history.
pub(crate) fn history(data: &[u8]) {
    let history = History::parse(data);
    let (files, segments) = written(&history);
    let list = Path::new(DIR).join(present::NAME);
    let paths: Vec<&Path> =
        segments.iter().map(|segment| segment.path.as_path()).chain([list.as_path()]).collect();
    let list_before = files.contents(&list).expect(IN_MEMORY);
    history.damage(&files, &paths);
    let is_listed = files.contents(&list).expect(IN_MEMORY) == list_before;
    let left: Vec<Left<'_>> = segments.iter().map(|segment| segment.left(&files)).collect();
    if left.iter().any(|left| left.is_forged) {
        // No more than that nothing panics.
        let _ = opened(&copy(&files, Path::new(DIR)));
        let _ = repair::repair(&files, Path::new(DIR), &mut Vec::new());
        return;
    }
    for (segment, left) in segments.iter().zip(&left) {
        check_records(&files, segment, MAGIC, left);
    }
    let opened = opened(&copy(&files, Path::new(DIR)));
    match (expected(&left), opened, is_listed) {
        (Some(expected), Ok(opened), _) => assert_eq!(opened, expected, "what is left is replayed"),
        (None, Ok(_), _) => panic!("a log is opened that is damaged"),
        (Some(_), Err(error), true) => panic!("a log is not opened: {error}"),
        (Some(_), Err(_), false) | (None, Err(_), _) => {}
    }
    check_repair(&files, &segments, &left);
    lists(&history);
}

/// A log as production writes it: each segment but the last is sealed, and each is listed.
fn written(history: &History<'_>) -> (MemoryFiles, Vec<Written>) {
    let (files, dir) = (MemoryFiles::new(), Path::new(DIR));
    files.create_dir_all(dir).expect(IN_MEMORY);
    let mut list: Option<Present> = None;
    let mut segments: Vec<Written> = Vec::new();
    for (at, steps) in history.files.iter().enumerate() {
        let id = at as u64 + 1;
        let before = segments.last();
        let before = before.map(|segment| Predecessor { id: segment.id, bytes: segment.len() });
        let mut writer = create_segment(&files, dir, id, before, 0).expect(IN_MEMORY);
        match &mut list {
            Some(list) => list.add(&files, dir, id).expect(IN_MEMORY),
            None => {
                list = Some(Present::begin(&files, dir, BTreeSet::from([id])).expect(IN_MEMORY));
            }
        }
        let (previous, bytes) = before.map_or((0, 0), |before| (before.id, before.bytes));
        let payload = Bytes::from(encode_opening(previous, bytes));
        let opening = Record { offset: FILE_HEADER_BYTES, durable: 0, payload };
        segments.push(Written::write(&files, &mut writer, vec![opening], steps));
        if id < history.files.len() as u64 {
            writer.sync().expect(IN_MEMORY);
        }
    }
    (files, segments)
}

/// Opens the log; what is replayed. Opened once more, it is the same.
fn opened(files: &MemoryFiles) -> Result<Vec<Replayed>> {
    let env = Env {
        files: Arc::new(files.clone()),
        io: Arc::new(InlineIo),
        clock: Arc::new(ManualClock::new(0)),
        rng: Arc::new(SeededRng::new(1)),
        spawner: Arc::new(ThreadSpawner),
    };
    let open = || -> Result<Vec<Replayed>> {
        let mut replayed = Vec::new();
        let mut on_record = |tablet, first_seq, batch| {
            replayed.push((tablet, first_seq, batch));
            Ok(())
        };
        let options = LogOptions { lay_out_bytes: 0, ..LogOptions::default() };
        LocalLog::open(&env, Path::new(DIR), options, &mut on_record, &mut |_| {})?;
        Ok(replayed)
    };
    let replayed = open()?;
    assert_eq!(open()?, replayed, "a log that was opened opens again");
    Ok(replayed)
}

/// What is replayed of a log whose list is whole; `None` where it does not open.
fn expected(left: &[Left<'_>]) -> Option<Vec<Replayed>> {
    let (last, sealed) = left.split_last()?;
    let mut replayed = Vec::new();
    for (segment, is_last) in sealed.iter().map(|segment| (segment, false)).chain([(last, true)]) {
        let is_damaged = if is_last { segment.is_damaged } else { segment.is_changed };
        // The list says that it had an opening.
        let (_, rest) = segment.records.split_first().filter(|_| !is_damaged)?;
        for record in rest {
            match decode_record(record.payload.clone()) {
                Ok(LogRecord::Batch { tablet, first_seq, batch, .. }) => {
                    replayed.push((tablet, first_seq, batch));
                }
                Ok(LogRecord::Marker) => {}
                Ok(LogRecord::Opening { .. }) | Err(_) => return None,
            }
        }
    }
    Some(replayed)
}

/// Repairs the log, and opens it: each batch that is whole is there.
fn check_repair(files: &MemoryFiles, segments: &[Written], left: &[Left<'_>]) {
    let dir = Path::new(DIR);
    let decoded = |record: &Record| decode_record(record.payload.clone());
    // Nobody writes a second opening, nor repairs what a newer version wrote.
    let is_repaired = segments.iter().all(|segment| {
        segment.records.iter().skip(1).all(|record| match decoded(record) {
            Ok(LogRecord::Opening { .. }) => false,
            Ok(_) => true,
            Err(error) => error.kind() == ErrorKind::Corruption,
        })
    });
    let _ = (repair::lost(files, dir), repair::last_rows(files, dir));
    let repaired = repair::repair(files, dir, &mut Vec::new());
    if !is_repaired {
        return;
    }
    let opened = repaired.and_then(|()| present::rewrite(files, dir)).and_then(|()| opened(files));
    let opened = opened.expect("a log that was repaired opens");
    let whole = left.iter().flat_map(|left| left.whole.iter().copied());
    let batches = whole.filter_map(|record| match decoded(record) {
        Ok(LogRecord::Batch { tablet, first_seq, batch, .. }) => Some((tablet, first_seq, batch)),
        _ => None,
    });
    assert_eq!(opened, batches.collect::<Vec<_>>(), "a repair keeps each batch that is whole");
}

/// Reads a record file in each way.
pub(crate) fn check_records(files: &MemoryFiles, file: &Written, magic: Magic, left: &Left<'_>) {
    let open = || files.open(&file.path).expect(IN_MEMORY);
    for tail in [Tail::MayBeTorn, Tail::Sealed] {
        let read = RecordReader::open(open(), magic, file.id, tail).and_then(|mut reader| {
            let mut records = Vec::new();
            while let Some(record) = reader.next_record()? {
                records.push(record);
            }
            Ok((records, reader.end()))
        });
        let is_damaged = match tail {
            Tail::MayBeTorn => left.is_damaged,
            Tail::Sealed => !left.is_clean || left.lost == 0,
        };
        match read {
            Ok((records, Some(end))) => {
                assert!(!is_damaged, "damage goes unnoticed in a file of {tail:?}");
                assert_eq!(records, left.records, "what is before the damage is read");
                assert_eq!((end.valid_len, end.torn_bytes == 0), (left.lost, left.is_clean));
            }
            Ok((_, None)) => panic!("a reader does not know where it ended"),
            Err(error) => {
                assert!(is_damaged, "{error}, in a file of {tail:?}");
                assert_eq!(error.kind(), ErrorKind::Corruption);
            }
        }
    }
    let mut salvage = Salvage::open(open(), magic, file.id).expect("its version is this one");
    for record in &left.whole {
        let salvaged = salvage.next_record().expect(IN_MEMORY);
        assert_eq!(salvaged.as_ref(), Some(*record), "each record that is whole is salvaged");
    }
    let more = salvage.next_record().expect(IN_MEMORY);
    assert_eq!(more, None, "no other record is salvaged");
}

/// A list of segments whose records are those of the first file of a history.
fn lists(history: &History<'_>) {
    let (files, dir) = (MemoryFiles::new(), Path::new(DIR));
    files.create_dir_all(dir).expect(IN_MEMORY);
    let path: PathBuf = dir.join(present::NAME);
    let writer = RecordWriter::create(&files, &path, present::MAGIC, present::FILE_ID);
    let steps = history.files.first().map_or(&[][..], Vec::as_slice);
    let written = Written::write(&files, &mut writer.expect(IN_MEMORY), Vec::new(), steps);
    history.damage(&files, &[&path]);
    let left = written.left(&files);
    if left.is_forged {
        return;
    }
    check_records(&files, &written, present::MAGIC, &left);
    let lists = left.records.iter().map(|record| &record.payload).filter(|list| !list.is_empty());
    let decoded: Option<Vec<BTreeSet<u64>>> = lists
        .map(|list| {
            let ids = present::decode(list).ok()?;
            assert_eq!(present::encode(&ids), &list[..], "a list has one encoding");
            Some(ids)
        })
        .collect();
    let last = decoded.filter(|_| !left.is_damaged).and_then(|lists| lists.last().cloned());
    let is_dropped = files.contents(&path).expect(IN_MEMORY).is_empty();
    match present::listed(&files, dir) {
        Ok(listed) => assert_eq!(listed, last, "the last list counts"),
        Err(error) => {
            assert!(last.is_none() && !is_dropped, "{error}");
            // What verifies and is no list is a newer version's.
            let is_damage = error.kind() == ErrorKind::Corruption;
            assert!(is_damage || error.kind() == ErrorKind::InvalidArgument, "{error}");
            let has_none = left.records.iter().all(|record| record.payload.is_empty());
            assert!(!is_damage || left.is_damaged || has_none, "{error}");
        }
    }
}

/// How many batches are replayed of a log as of [`history`]; `None` where it does not open.
#[cfg(test)]
pub(crate) fn replayed(data: &[u8]) -> Option<usize> {
    let history = History::parse(data);
    let (files, segments) = written(&history);
    let paths: Vec<&Path> = segments.iter().map(|segment| segment.path.as_path()).collect();
    history.damage(&files, &paths);
    opened(&files).ok().map(|batches| batches.len())
}
