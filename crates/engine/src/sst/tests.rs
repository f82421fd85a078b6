//! Whole files: written, read back, searched, damaged.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures::FutureExt;
use proptest::prelude::*;

use super::testing::{Sample, TestFiles, TestIo, is_absent, keys_around, look_up, samples};
use super::*;
use crate::cache::{BlockCache, QuickBlockCache};
use crate::cell::{
    FAMILY_NONE, FamilyId, KeyView, Kind, RowRange, TIMESTAMP_MAX, encode_key, row_prefix,
};
use crate::cursor::{Cursor, Step};
use crate::error::{ErrorKind, Result};
use crate::io::Files;
use crate::read::RecordInRow;

mod coarse;
mod pages;
mod salvage;

const ID: FileId = 42;

fn path() -> PathBuf {
    PathBuf::from("tablet/42.sst")
}

/// Small everything, so that a few records make many blocks and partitions.
fn tiny(compression: Compression) -> SstOptions {
    SstOptions {
        block_bytes: 200,
        read_bytes: 4096,
        filter_kind: FilterKind::Bloom,
        index_partition_bytes: 150,
        filter_partition_bytes: 64,
        filter_bits_per_key: 10,
        compression,
    }
}

fn any_options() -> impl Strategy<Value = SstOptions> {
    let compression = prop_oneof![
        Just(Compression::None),
        Just(Compression::Lz4),
        Just(Compression::Zstd(1)),
        Just(Compression::ZstdDict(3)),
    ];
    let kind =
        prop_oneof![Just(FilterKind::Bloom), Just(FilterKind::Fuse8), Just(FilterKind::Fuse16),];
    let block = (
        prop_oneof![Just(1usize), 60usize..600, Just(16384)],
        prop_oneof![Just(4096usize), 100usize..1000],
    );
    let partitions = prop_oneof![
        4 => (64usize..400, 100usize..400),
        1 => Just((4096, 4096)),
        1 => Just((PARTITION_UNLIMITED, PARTITION_UNLIMITED)),
    ];
    (compression, 0u32..12, kind, block, partitions).prop_map(
        |(compression, bits, filter_kind, block, partitions)| SstOptions {
            block_bytes: block.0,
            read_bytes: block.1,
            index_partition_bytes: partitions.0,
            filter_partition_bytes: partitions.1,
            filter_kind,
            filter_bits_per_key: bits,
            compression,
        },
    )
}

/// A table whose rows have nearly the same columns, with some cells missing, wide rows here and there, and
/// tombstones of every kind: what filters with common columns are made of, and what must not be.
fn table() -> impl Strategy<Value = Vec<Sample>> {
    let row = (0u8..20, 0u8..20, any::<u64>());
    (1u32..7, prop::collection::vec(row, 1..120)).prop_map(|(columns, rows)| {
        let mut all = Vec::new();
        for (at, (odd, gap, bits)) in rows.into_iter().enumerate() {
            let row = format!("row-{at:04}");
            let mut add = |family, qualifier: Option<&str>, timestamp, kind| {
                let mut key = Vec::new();
                let qualifier = qualifier.map(str::as_bytes);
                encode_key(row.as_bytes(), family, qualifier, timestamp, 9, kind, &mut key);
                all.push(Sample { key, value: vec![0; (bits % 30) as usize] });
            };
            match odd {
                0 => add(FAMILY_NONE, None, TIMESTAMP_MAX, Kind::RowTombstone),
                1 => add(FamilyId(5), None, TIMESTAMP_MAX, Kind::FamilyTombstone),
                2 => add(FamilyId(1), Some("c0"), TIMESTAMP_MAX, Kind::ColumnTombstone),
                3 if bits % 8 == 0 => (0..150).for_each(|i| {
                    add(FamilyId(1), Some(&format!("wide-{i:03}")), 5, Kind::Value);
                }),
                _ => {}
            }
            for column in 0..columns {
                if odd > 5 || gap > 2 || bits >> column & 1 == 0 {
                    add(FamilyId(1 + column % 2), Some(&format!("c{column}")), 5, Kind::Value);
                }
            }
        }
        all.sort_by(|a, b| a.key.cmp(&b.key));
        all.dedup_by(|a, b| a.key == b.key);
        all
    })
}

fn cell(row: &str, family: u32, qualifier: &str, timestamp: i64, value: &[u8]) -> Sample {
    let mut key = Vec::new();
    let qualifier = Some(qualifier.as_bytes());
    encode_key(row.as_bytes(), FamilyId(family), qualifier, timestamp, 9, Kind::Value, &mut key);
    Sample { key, value: value.to_vec() }
}

fn write(files: &TestFiles, records: &[Sample], options: SstOptions) -> SstSummary {
    let file = files.create(&path()).unwrap();
    let mut writer = SstWriter::new(file, &path(), ID, options, 1234);
    for record in records {
        writer.add(record.view(), &record.value).unwrap();
    }
    writer.finish().unwrap()
}

/// Puts other data of the same length into a frame, under a checksum that holds.
fn put_frame(files: &TestFiles, offset: u64, data: &[u8]) {
    let mut frame = Vec::new();
    let method = frame::Method::None;
    frame::Framer::new(Compression::None).frame(data, method, ID, offset, &mut frame);
    let (mut bytes, start) = (files.contents(&path()), offset as usize);
    bytes[start..start + frame.len()].copy_from_slice(&frame);
    files.put(&path(), bytes);
}

fn open(files: &TestFiles, cache_bytes: u64) -> Result<Arc<SstReader>> {
    SstReader::open(files, &path(), ID, Arc::new(QuickBlockCache::new(cache_bytes)))
}

fn written(records: &[Sample], options: SstOptions) -> Arc<SstReader> {
    let files = TestFiles::default();
    write(&files, records, options);
    open(&files, 1 << 20).unwrap()
}

/// Loads what the cursor wants until it is ready.
fn settle(cursor: &mut SstCursor, mut step: Step) -> Result<()> {
    let mut rounds = 0;
    while step == Step::Blocked {
        let mut requests = Vec::new();
        cursor.wanted(&mut requests);
        assert!(!requests.is_empty() || cursor.has_left_row(), "blocked on nothing");
        let io = TestIo::default();
        let blocks = if rounds % 2 == 0 {
            load_blocks(&io, requests.clone()).now_or_never().unwrap()
        } else {
            load_blocks_blocking(requests.clone())
        };
        for (request, block) in requests.iter().zip(blocks) {
            cursor.supply(request, &block?);
        }
        step = cursor.resume()?;
        rounds += 1;
        assert!(rounds < 50, "the cursor makes no progress");
    }
    Ok(())
}

fn seek(cursor: &mut SstCursor, target: &[u8]) -> Result<()> {
    let step = cursor.seek(target)?;
    settle(cursor, step)
}

fn next(cursor: &mut SstCursor) -> Result<()> {
    let step = cursor.next()?;
    settle(cursor, step)
}

fn seek_row_before(cursor: &mut SstCursor, bound: &[u8]) -> Result<()> {
    let step = cursor.seek_row_before(bound)?;
    settle(cursor, step)
}

/// The record under the cursor, its shared forms checked against its plain ones.
fn current(cursor: &SstCursor) -> Option<Sample> {
    let entry = cursor.entry()?;
    let parsed = KeyView::parse(entry.key.bytes()).unwrap();
    assert_eq!(parsed, entry.key);
    assert_eq!(cursor.value_bytes(), entry.value);
    assert_eq!(cursor.qualifier_bytes(), &parsed.qualifier()[..]);
    Some(Sample { key: entry.key.bytes().to_vec(), value: entry.value.to_vec() })
}

fn scan(reader: &Arc<SstReader>, options: CursorOptions) -> Result<Vec<Sample>> {
    let mut cursor = reader.cursor(options);
    seek(&mut cursor, b"")?;
    let mut out = Vec::new();
    while let Some(record) = current(&cursor) {
        out.push(record);
        next(&mut cursor)?;
    }
    Ok(out)
}

fn without_cache() -> CursorOptions {
    CursorOptions { fill_cache: false, ..CursorOptions::default() }
}

#[test]
fn of_keys_that_have_kilobytes_alike_little_stays_in_memory() {
    let alike = "q".repeat(16_380);
    // Each row divided among blocks, and long columns, of which a hundred each have the same kilobytes.
    let rows: Vec<_> = (0..120)
        .map(|at| cell(&format!("{:03}", at / 3), 1, &format!("{alike}{}", at % 3), 5, b"v"))
        .collect();
    let columns: Vec<_> = (0..300)
        .map(|at| cell("row", 1, &format!("{}{alike}{at:03}", at / 100), 5, b"v"))
        .collect();
    for records in [&rows, &columns] {
        let files = TestFiles::default();
        write(&files, records, SstOptions::default());
        let reader = open(&files, 8 << 20).unwrap();
        assert!(reader.properties().data_blocks as usize > records.len() / 2);
        let keys: usize = records.iter().map(|record| record.key.len()).sum();
        let resident = reader.resident_bytes() as usize;
        assert!(resident < keys / 20, "{resident} of {keys} bytes of keys");
        for at in 0..reader.top().len() {
            let len = reader.top_entry(at).unwrap().handle.len;
            assert!(len < 160 << 10, "a partition of {len} bytes");
        }
        assert_eq!(&scan(&reader, CursorOptions::default()).unwrap(), records);
        let mut cursor = reader.cursor(CursorOptions::default());
        for record in records.iter().rev().step_by(7) {
            seek(&mut cursor, &record.key).unwrap();
            assert_eq!(current(&cursor).as_ref(), Some(record));
        }
        reader.verify(&mut |_| ()).unwrap();
    }
}

/// The record where a model says a seek lands.
fn model_seek<'a>(records: &'a [Sample], target: &[u8]) -> Option<&'a Sample> {
    records.iter().find(|r| r.key.as_slice() >= target)
}

fn model_row_before<'a>(records: &'a [Sample], bound: &[u8]) -> Option<&'a Sample> {
    let before = |r: &&Sample| bound.is_empty() || r.view().row_prefix() < bound;
    let row = records.iter().rev().find(before)?.view().row_prefix();
    records.iter().find(|r| r.view().row_prefix() == row)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_file_returns_what_was_written_and_is_found_sound(
        records in samples(0..250),
        options in any_options(),
        fill_cache: bool,
    ) {
        let files = TestFiles::default();
        let summary = write(&files, &records, options);
        let reader = open(&files, 1 << 20).unwrap();
        assert_eq!(&summary.properties, reader.properties());
        assert_eq!(summary.bytes, reader.bytes());
        assert_eq!(summary.bytes, files.contents(&path()).len() as u64);
        let cursor = CursorOptions { fill_cache, ..CursorOptions::default() };
        assert_eq!(&scan(&reader, cursor).unwrap(), &records);
        let mut bytes = 0;
        reader.verify(&mut |n| bytes += n).unwrap();
        assert_eq!(bytes, reader.blocks_end());

        let properties = reader.properties();
        let of = |kind: Kind| records.iter().filter(|r| r.view().kind() == kind).count() as u64;
        assert_eq!(properties.entries, records.len() as u64);
        assert_eq!(properties.row_tombstones, of(Kind::RowTombstone));
        assert_eq!(properties.family_tombstones, of(Kind::FamilyTombstone));
        assert_eq!(properties.column_tombstones, of(Kind::ColumnTombstone));
        assert_eq!(properties.cell_tombstones, of(Kind::CellTombstone));
        let is_wide = |r: &&Sample| {
            r.view().kind() == Kind::CellTombstone
                && r.value != r.view().timestamp().to_be_bytes()
        };
        let wide = records.iter().filter(is_wide).map(|r| r.view().seq()).min();
        assert_eq!(properties.deletion_seq_min, wide.unwrap_or(u64::MAX));
        assert_eq!(properties.cells + properties.tombstones(), properties.entries);
        let rows: std::collections::BTreeSet<_> = records.iter().map(|r| r.view().row()).collect();
        assert_eq!(properties.rows, rows.len() as u64);
        assert_eq!(&properties.first_row, rows.first().unwrap_or(&Vec::new()));
        assert_eq!(&properties.last_row, rows.last().unwrap_or(&Vec::new()));
        let seqs = records.iter().map(|r| r.view().seq());
        assert_eq!(properties.seq_min, seqs.clone().min().unwrap_or(0));
        assert_eq!(properties.seq_max, seqs.max().unwrap_or(0));
        for (id, family) in &properties.families {
            let own: Vec<_> = records.iter().map(Sample::view).filter(|k| k.family() == *id).collect();
            let cells: Vec<_> = own.iter().filter(|k| !k.kind().is_tombstone()).collect();
            assert_eq!(family.entries, own.len() as u64);
            assert_eq!(family.cells, cells.len() as u64);
            let timestamps = cells.iter().map(|k| k.timestamp());
            assert_eq!(family.timestamp_min, timestamps.clone().min().unwrap_or(0));
            assert_eq!(family.timestamp_max, timestamps.max().unwrap_or(0));
            let versions = cells
                .iter()
                .map(|k| cells.iter().filter(|o| o.column_prefix() == k.column_prefix()).count())
                .max();
            assert_eq!(family.column_versions_max, versions.unwrap_or(0) as u64);
        }
        assert!(!properties.families.contains_key(&FAMILY_NONE));
    }

    #[test]
    fn seeks_land_where_the_model_says(
        records in samples(1..200),
        options in any_options(),
        probes in prop::collection::vec(any::<prop::sample::Index>(), 6),
        fill_cache: bool,
        cache_bytes in prop_oneof![Just(1u64), Just(1 << 20)],
    ) {
        let files = TestFiles::default();
        write(&files, &records, options);
        let reader = open(&files, cache_bytes).unwrap();
        let mut cursor =
            reader.cursor(CursorOptions { fill_cache, ..CursorOptions::default() });
        for probe in probes {
            let near = probe.get(&records);
            for target in keys_around(&near.key) {
                seek(&mut cursor, &target).unwrap();
                assert_eq!(current(&cursor).as_ref(), model_seek(&records, &target));
                if cursor.entry().is_some() {
                    let at = records.iter().position(|r| r.key >= target).unwrap();
                    next(&mut cursor).unwrap();
                    assert_eq!(current(&cursor).as_ref(), records.get(at + 1));
                }
            }
            let row = near.view().row();
            for bound in [row_prefix(&row), row_prefix(&[&row[..], b"\0"].concat()), Vec::new()] {
                seek_row_before(&mut cursor, &bound).unwrap();
                assert_eq!(current(&cursor).as_ref(), model_row_before(&records, &bound));
            }
        }
    }

    #[test]
    fn a_cursor_that_goes_back_can_go_on_in_the_row_and_behind_it(
        records in samples(1..200),
        options in any_options(),
        moves in prop::collection::vec(
            prop::collection::vec(prop::option::of(any::<(u64, u64)>()), 0..8),
            1..12,
        ),
        cache_bytes in prop_oneof![Just(1u64), Just(1 << 20)],
    ) {
        let files = TestFiles::default();
        write(&files, &records, options);
        let reader = open(&files, cache_bytes).unwrap();
        let mut cursor = reader.cursor(CursorOptions::default());
        let mut bound = Vec::new();
        for moves in moves {
            seek_row_before(&mut cursor, &bound).unwrap();
            let Some(first) = model_row_before(&records, &bound) else {
                prop_assert_eq!(current(&cursor), None);
                break;
            };
            let row = first.view().row_prefix();
            let mut at = records.iter().position(|r| r == first).unwrap();
            let end = at + records[at..].iter().take_while(|r| r.view().row_prefix() == row).count();
            for sought in moves {
                let shown = current(&cursor);
                prop_assert_eq!(shown.as_ref(), records.get(at));
                let Some(here) = records.get(at) else { break };
                // Somewhere in the row, perhaps behind its last record.
                let target = sought.filter(|_| at < end).and_then(|(which, around)| {
                    let near = &records[at + which as usize % (end - at)].key;
                    let mut targets = keys_around(near);
                    targets.retain(|t| t.starts_with(row) && *t > here.key);
                    targets.get(around as usize % targets.len().max(1)).cloned()
                });
                let step = if let Some(target) = target {
                    at = records.iter().position(|r| r.key >= target).unwrap_or(records.len());
                    cursor.seek(&target).unwrap()
                } else {
                    at += 1;
                    cursor.next().unwrap()
                };
                if step == Step::Blocked && cursor.has_left_row() {
                    let next = records.get(at).map(|r| r.view().row_prefix().to_vec());
                    prop_assert!(next.as_deref() != Some(here.view().row_prefix()));
                }
                settle(&mut cursor, step).unwrap();
            }
            bound = row.to_vec();
        }
    }

    #[test]
    fn nothing_outside_the_bounds_is_shown(
        records in samples(1..150),
        options in any_options(),
        ends in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
        open_end: bool,
    ) {
        let reader = written(&records, options);
        let start = ends.0.get(&records).view().row();
        let end = if open_end { Vec::new() } else { ends.1.get(&records).view().row() };
        let bounds = RowRange::new(start.clone(), end.clone());
        let inside: Vec<_> =
            records.iter().filter(|r| bounds.contains(&r.view().row())).cloned().collect();
        let options = CursorOptions { bounds, ..CursorOptions::default() };
        assert_eq!(&scan(&reader, options.clone()).unwrap(), &inside);
        let mut cursor = reader.cursor(options);
        for record in &records {
            let bound = record.view().row_prefix();
            seek_row_before(&mut cursor, bound).unwrap();
            assert_eq!(current(&cursor).as_ref(), model_row_before(&inside, bound));
            seek(&mut cursor, bound).unwrap();
            assert_eq!(current(&cursor).as_ref(), model_seek(&inside, bound));
        }
        seek_row_before(&mut cursor, b"").unwrap();
        assert_eq!(current(&cursor).as_ref(), model_row_before(&inside, b""));
    }

    #[test]
    fn a_filter_never_denies_what_is_there(
        records in prop_oneof![samples(1..200), table()],
        options in any_options(),
    ) {
        let reader = written(&records, options);
        reader.verify(&mut |_| ()).unwrap();
        for record in &records {
            let key = record.view();
            let row = key.row();
            let expected: Vec<_> = records
                .iter()
                .filter(|r| r.view().row_prefix() == key.row_prefix())
                .map(|r| (r.view().timestamp(), r.view().seq(), r.view().qualifier().into_owned(), r.value.clone()))
                .collect();
            let ask = |probe: RowProbe<'_>| match look_up(&reader, &probe).unwrap() {
                PointStage::Found(found) => {
                    let mut seen = Vec::new();
                    let row = found.row(&reader).unwrap();
                    row.walk(|r| {
                        let (qualifier, value) = (r.qualifier().unwrap().into_owned(), r.value().to_vec());
                        seen.push((r.timestamp(), r.seq(), qualifier, value));
                        true
                    })
                    .unwrap();
                    assert_eq!(seen, expected);
                }
                stage => assert!(matches!(stage, PointStage::Wide), "{stage:?}"),
            };
            ask(RowProbe::row(&row));
            // A row tombstone must be found by whoever asks for anything of the row, a family tombstone
            // by whoever asks for a column of the family.
            let family = if key.kind() == Kind::RowTombstone { FamilyId(77) } else { key.family() };
            ask(RowProbe::families(&row, [FamilyId(99), family]));
            let qualifier = if key.has_qualifier() { key.qualifier().into_owned() } else { b"other".to_vec() };
            let columns = [(FamilyId(99), &b"no"[..]), (family, &qualifier)];
            ask(RowProbe::columns(&row, columns));
        }
    }

    #[test]
    fn a_flipped_bit_is_an_error_or_changes_nothing(
        records in samples(1..120),
        options in any_options(),
        bits in prop::collection::vec(any::<prop::sample::Index>(), 40),
    ) {
        let files = TestFiles::default();
        write(&files, &records, options);
        let sound = files.contents(&path());
        for bit in bits {
            let bit = bit.index(sound.len() * 8);
            let mut damaged = sound.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            files.put(&path(), damaged);
            match open(&files, 1 << 20) {
                Err(error) => assert_eq!(error.kind(), ErrorKind::Corruption),
                Ok(reader) => {
                    // Where it can be divided is known, whatever is damaged of it.
                    let rows = reader.index_rows().unwrap();
                    assert!(rows.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1));
                    assert_eq!(rows.last().map_or(0, |(_, end)| *end), reader.data_bytes());
                    match scan(&reader, CursorOptions::default()) {
                        Ok(read) => assert_eq!(&read, &records),
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::Corruption);
                            assert!(error.message().contains("42.sst: offset "));
                        }
                    }
                    // No byte is without a checksum.
                    let error = reader.verify(&mut |_| ()).unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Corruption);
                }
            }
        }
    }

    #[test]
    fn a_truncated_or_foreign_file_does_not_open(
        records in samples(0..40),
        options in any_options(),
        cut in any::<prop::sample::Index>(),
        noise in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        let files = TestFiles::default();
        write(&files, &records, options);
        let sound = files.contents(&path());
        files.put(&path(), sound[..cut.index(sound.len())].to_vec());
        assert_eq!(open(&files, 1 << 20).unwrap_err().kind(), ErrorKind::Corruption);
        files.put(&path(), [&sound[..], &noise[..1.min(noise.len())]].concat());
        assert_eq!(open(&files, 1 << 20).is_ok(), noise.is_empty());
        files.put(&path(), noise);
        assert_eq!(open(&files, 1 << 20).unwrap_err().kind(), ErrorKind::Corruption);
        files.put(&path(), sound);
        let cache: Arc<dyn BlockCache> = Arc::new(QuickBlockCache::new(1 << 20));
        let other = SstReader::open(&files, &path(), ID + 1, cache);
        assert_eq!(other.unwrap_err().kind(), ErrorKind::Corruption);
    }

    #[test]
    fn index_rows_and_offsets_ascend_and_divide_the_file(
        records in samples(1..200),
        options in any_options(),
    ) {
        let reader = written(&records, options);
        let rows = reader.index_rows().unwrap();
        assert!(rows.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1));
        assert!(rows.last().unwrap().0 >= records.last().unwrap().view().row());
        let offsets: Vec<_> = records.iter().map(|r| reader.approximate_offset(&r.key)).collect();
        assert!(offsets.is_sorted());
        assert_eq!(reader.approximate_offset(b""), 0);
        assert_eq!(reader.approximate_offset(&[0xFF; 40]), rows.last().unwrap().1);
        // With every partition in the cache the offsets are those of blocks.
        scan(&reader, CursorOptions::default()).unwrap();
        for (coarse, record) in offsets.iter().zip(&records) {
            assert!(*coarse <= reader.approximate_offset(&record.key));
        }
    }
}

#[test]
fn keys_that_do_not_ascend_are_refused_and_the_writer_goes_on() {
    let files = TestFiles::default();
    let file = files.create(&path()).unwrap();
    let mut writer = SstWriter::new(file, &path(), ID, SstOptions::default(), 0);
    let (a, b) = (cell("a", 1, "q", 5, b"1"), cell("b", 1, "q", 5, b"2"));
    writer.add(b.view(), &b.value).unwrap();
    for wrong in [&a, &b] {
        let error = writer.add(wrong.view(), &wrong.value).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
    writer.finish().unwrap();
    let reader = open(&files, 1 << 20).unwrap();
    assert_eq!(scan(&reader, without_cache()).unwrap(), [b]);
}

#[test]
fn a_huge_value_makes_a_block_of_its_own_and_is_handed_out_without_a_copy() {
    for compression in [Compression::None, Compression::Lz4, Compression::ZstdDict(1)] {
        let huge: Vec<u8> = (0..20 << 20).map(|i: u32| (i % 251) as u8).collect();
        let records = [
            cell("a", 1, "q", 5, b"small"),
            cell("b", 1, "q", 5, &huge),
            cell("c", 1, "q", 5, b"small"),
        ];
        let reader = written(&records, SstOptions { compression, ..SstOptions::default() });
        assert_eq!(reader.properties().data_blocks, 3);
        let mut cursor = reader.cursor(CursorOptions::default());
        seek(&mut cursor, &row_prefix(b"b")).unwrap();
        let value = cursor.value_bytes();
        assert_eq!(value, huge);
        assert_eq!(value.as_ptr(), cursor.entry().unwrap().value.as_ptr());
        next(&mut cursor).unwrap();
        assert_eq!(current(&cursor).as_ref(), Some(&records[2]));
        assert_eq!(value, huge, "the value outlives the cursor's block");
        reader.verify(&mut |_| ()).unwrap();
    }
}

#[test]
fn a_record_larger_than_a_block_is_refused() {
    let files = TestFiles::default();
    let file = files.create(&path()).unwrap();
    let mut writer = SstWriter::new(file, &path(), ID, SstOptions::default(), 0);
    let record = cell("a", 1, "q", 5, b"");
    let error = writer.add(record.view(), &vec![0; BLOCK_BYTES_MAX]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

/// Rows that look like each other but are not compressible to nothing.
fn many_rows(count: usize) -> Vec<Sample> {
    let text = |i: usize| {
        let x = crate::random::mix64(i as u64);
        format!("{{\"user\":{},\"city\":\"city-{}\",\"score\":{}}}", x % 100_000, x % 97, x >> 40)
    };
    (0..count)
        .map(|i| cell(&format!("row-{i:08}"), 1 + (i % 2) as u32, "profile", 5, text(i).as_bytes()))
        .collect()
}

#[test]
fn a_dictionary_is_trained_and_makes_small_blocks_smaller() {
    let records = many_rows(30_000);
    let options =
        |compression| SstOptions { block_bytes: 2 << 10, compression, ..SstOptions::default() };
    let plain = written(&records, options(Compression::Zstd(3)));
    let trained = written(&records, options(Compression::ZstdDict(3)));
    assert!(trained.footer().dictionary.is_some());
    assert!(trained.bytes() < plain.bytes() * 95 / 100, "{} {}", trained.bytes(), plain.bytes());
    assert_eq!(scan(&trained, without_cache()).unwrap(), records);
    trained.verify(&mut |_| ()).unwrap();
}

#[test]
fn an_estimate_is_near_the_file_that_results() {
    let files = TestFiles::default();
    let file = files.create(&path()).unwrap();
    let mut writer = SstWriter::new(file, &path(), ID, SstOptions::default(), 0);
    for record in many_rows(20_000) {
        writer.add(record.view(), &record.value).unwrap();
    }
    let estimate = writer.estimated_bytes();
    let bytes = writer.finish().unwrap().bytes;
    assert!(estimate.abs_diff(bytes) < bytes / 10, "{estimate} {bytes}");
}

#[test]
fn most_absent_rows_and_columns_cost_no_data_block() {
    let records = many_rows(5_000);
    let files = TestFiles::default();
    write(&files, &records, SstOptions::default());
    let cache = Arc::new(QuickBlockCache::new(64 << 20));
    let reader = SstReader::open(&files, &path(), ID, cache.clone()).unwrap();
    let negatives = || cache.sst_metrics().filter_negatives.get();
    let absent = |probe: RowProbe<'_>| {
        let before = negatives();
        let _ = look_up(&reader, &probe).unwrap();
        negatives() > before
    };
    let count = 5_000;
    let row = |i: usize| format!("row-{i:08}");
    let other_rows =
        (0..count).filter(|i| absent(RowProbe::row(format!("row-{i:08}x").as_bytes()))).count();
    let families = (0..count)
        .filter(|i| absent(RowProbe::families(row(*i).as_bytes(), [FamilyId(3)])))
        .count();
    let columns = (0..count)
        .filter(|i| {
            let column = (FamilyId(1 + (i % 2) as u32), &b"profil"[..]);
            absent(RowProbe::columns(row(*i).as_bytes(), [column]))
        })
        .count();
    for skipped in [other_rows, families, columns] {
        // 1.6 % at most come through.
        assert!(skipped > count * 984 / 1000, "{other_rows} {families} {columns}");
    }
    let metrics = cache.sst_metrics();
    assert_eq!(metrics.filter_probes.get(), 3 * count as u64);
    assert_eq!(metrics.point_lookups.get(), 3 * count as u64);
    assert_eq!(metrics.filter_false_positives.get(), (count - other_rows) as u64);
}

#[test]
fn a_column_tombstone_and_a_row_tombstone_are_found_by_a_read_of_the_column() {
    let mut key = Vec::new();
    encode_key(b"a", FAMILY_NONE, None, TIMESTAMP_MAX, 3, Kind::RowTombstone, &mut key);
    let row_tombstone = Sample { key, value: Vec::new() };
    let mut key = Vec::new();
    let column = Some(&b"q"[..]);
    encode_key(b"b", FamilyId(1), column, TIMESTAMP_MAX, 3, Kind::ColumnTombstone, &mut key);
    let column_tombstone = Sample { key, value: Vec::new() };
    let reader = written(&[row_tombstone, column_tombstone], SstOptions::default());
    for row in [b"a", b"b"] {
        let probe = RowProbe::columns(row, [(FamilyId(1), &b"q"[..])]);
        assert!(!is_absent(&reader, &probe));
    }
}

#[test]
fn a_cached_seek_is_ready_at_once_and_reads_nothing() {
    let records = many_rows(5_000);
    let reader = written(&records, SstOptions::default());
    scan(&reader, CursorOptions::default()).unwrap();
    let read = reader.metrics().blocks_read.get();
    let mut cursor = reader.cursor(CursorOptions::default());
    for record in records.iter().step_by(7) {
        assert_eq!(cursor.seek(&record.key).unwrap(), Step::Ready);
        assert_eq!(current(&cursor).as_ref(), Some(record));
    }
    assert_eq!(reader.metrics().blocks_read.get(), read);
}

#[test]
fn a_scan_reads_ahead_and_joins_neighbours_into_one_read() {
    let records = many_rows(50_000);
    let options = SstOptions {
        compression: Compression::None,
        index_partition_bytes: 1 << 20,
        ..SstOptions::default()
    };
    let reader = written(&records, options);
    let blocks = reader.properties().data_blocks as usize;
    let mut cursor = reader.cursor(without_cache());
    let (mut rounds, mut seen) = (0, 0);
    let mut step = cursor.seek(b"").unwrap();
    loop {
        while step == Step::Blocked {
            let mut requests = Vec::new();
            cursor.wanted(&mut requests);
            rounds += usize::from(!requests.is_empty());
            let io = TestIo::default();
            let loaded = load_blocks(&io, requests.clone()).now_or_never().unwrap();
            assert!(io.reads.load(Ordering::Relaxed) <= 2, "neighbours are read together");
            for (request, block) in requests.iter().zip(loaded) {
                cursor.supply(request, &block.unwrap());
            }
            step = cursor.resume().unwrap();
        }
        let Some(record) = current(&cursor) else { break };
        assert_eq!(record, records[seen]);
        seen += 1;
        step = cursor.next().unwrap();
    }
    assert_eq!(seen, records.len());
    assert!(blocks > 150 && rounds < 15, "{blocks} blocks in {rounds} rounds");
}

#[test]
fn a_scan_of_known_length_reads_no_pages_beyond_it_for_what_pads_them() {
    // A row a page, of nine tenths of it.
    let value = [7; PAGE_BYTES * 9 / 10];
    let row = |i: usize| cell(&format!("row-{i:08}"), 1, "q", 5, &value);
    let records: Vec<_> = (0..100).map(row).collect();
    let options = SstOptions { compression: Compression::None, ..SstOptions::default() };
    let reader = written(&records, options);
    for backward in [false, true] {
        let options =
            CursorOptions { expected_bytes: 20 * PAGE_BYTES as u64, ..CursorOptions::default() };
        let mut cursor = reader.cursor(options);
        let target = &records[50].key;
        let mut step =
            if backward { cursor.seek_row_before(target) } else { cursor.seek(target) }.unwrap();
        let mut loaded = 0;
        while step == Step::Blocked {
            let mut requests = Vec::new();
            cursor.wanted(&mut requests);
            let blocks = load_blocks(&TestIo::default(), requests.clone()).now_or_never().unwrap();
            for (request, block) in requests.iter().zip(blocks) {
                cursor.supply(request, &block.unwrap());
            }
            loaded += requests.iter().filter(|r| r.partition.is_none()).count();
            step = cursor.resume().unwrap();
        }
        assert!(cursor.entry().is_some());
        assert_eq!(loaded, 21, "the first, and twenty pages");
    }
}

/// A file of so many rows, each of which fills a page.
fn row_a_page(rows: usize) -> (Vec<Sample>, Arc<SstReader>) {
    let value = [7; PAGE_BYTES * 9 / 10];
    let row = |i: usize| cell(&format!("row-{i:08}"), 1, "q", 5, &value);
    let records: Vec<_> = (0..rows).map(row).collect();
    let options = SstOptions {
        compression: Compression::None,
        index_partition_bytes: 1 << 20,
        ..SstOptions::default()
    };
    let reader = written(&records, options);
    (records, reader)
}

#[test]
fn a_short_range_of_which_all_is_wanted_is_asked_for_at_once() {
    let (_, reader) = row_a_page(400);
    let rounds = |rows: usize, wants_all: bool, backward: bool| {
        let at = |row: usize| format!("row-{row:08}");
        let bounds = RowRange::new(at(100), at(100 + rows));
        let mut cursor = reader.cursor(CursorOptions {
            bounds,
            wants_all,
            fill_cache: false,
            ..Default::default()
        });
        let (mut rounds, mut blocks, mut shown) = (0, 0, 0);
        let mut step = if backward { cursor.seek_row_before(b"") } else { cursor.seek(b"") };
        loop {
            while step.as_ref().unwrap() == &Step::Blocked {
                let mut requests = Vec::new();
                cursor.wanted(&mut requests);
                let of_data = requests.iter().filter(|request| request.partition.is_none()).count();
                rounds += usize::from(of_data > 0);
                blocks += of_data;
                for (request, block) in requests.iter().zip(load_blocks_blocking(requests.clone()))
                {
                    cursor.supply(request, &block.unwrap());
                }
                step = cursor.resume();
            }
            let Some(record) = current(&cursor) else { break };
            shown += 1;
            let row = record.view().row_prefix().to_vec();
            step = if backward { cursor.seek_row_before(&row) } else { cursor.next() };
        }
        assert_eq!(shown, rows);
        (rounds, blocks)
    };
    for backward in [false, true] {
        let (at_once, blocks) = rounds(10, true, backward);
        assert_eq!(at_once, 1, "backward: {backward}");
        assert!((10..=12).contains(&blocks), "{blocks} blocks");
        assert!(rounds(10, false, backward).0 > 1);
        // Of what is more it is not known that it is wanted.
        assert!(rounds(100, true, backward).0 > 2);
    }
}

#[test]
fn a_scan_waits_for_no_index_partition_by_itself_but_the_first() {
    let records = many_rows(50_000);
    let files = TestFiles::default();
    let options = SstOptions {
        compression: Compression::None,
        index_partition_bytes: 1024,
        ..SstOptions::default()
    };
    write(&files, &records, options);
    for (backward, fill_cache) in [(false, false), (false, true), (true, false), (true, true)] {
        let cache = Arc::new(QuickBlockCache::new(64 << 20));
        let reader = SstReader::open(&files, &path(), ID, cache).unwrap();
        let partitions = reader.top().len();
        assert!(partitions > 5, "{partitions}");
        let mut cursor = reader.cursor(CursorOptions { fill_cache, ..Default::default() });
        let (mut of_index, mut alone, mut rounds) = (Vec::new(), 0, 0);
        let mut step = if backward { cursor.seek_row_before(b"") } else { cursor.seek(b"") };
        loop {
            while step.as_ref().unwrap() == &Step::Blocked {
                let mut requests = Vec::new();
                cursor.wanted(&mut requests);
                let index = requests.iter().filter(|request| request.partition.is_some());
                of_index.extend(index.clone().map(|request| request.handle.offset));
                alone += usize::from(index.count() == requests.len() && !requests.is_empty());
                rounds += usize::from(!requests.is_empty());
                for (request, block) in requests.iter().zip(load_blocks_blocking(requests.clone()))
                {
                    cursor.supply(request, &block.unwrap());
                }
                step = cursor.resume();
            }
            let Some(record) = current(&cursor) else { break };
            let row = record.view().row_prefix().to_vec();
            step = if backward { cursor.seek_row_before(&row) } else { cursor.next() };
        }
        let read = of_index.len();
        of_index.sort_unstable();
        of_index.dedup();
        assert_eq!((read, of_index.len()), (partitions, partitions), "each is read once");
        assert_eq!(alone, 1, "backward: {backward}; in {rounds} rounds");
    }
}

#[test]
fn what_many_cursors_read_ahead_together_has_a_bound() {
    let (_, reader) = row_a_page(1_500);
    let ahead = Arc::clone(reader.cache().ahead());
    let mut cursors: Vec<_> = (0..100).map(|_| reader.cursor(without_cache())).collect();
    for cursor in &mut cursors {
        seek(cursor, b"").unwrap();
    }
    let mut most = 0;
    for _ in 0..600 {
        for cursor in &mut cursors {
            next(cursor).unwrap();
        }
        most = most.max(ahead.bytes());
    }
    // Alone, each would have a megabyte ahead.
    assert!((8 << 20..40 << 20).contains(&most), "{most} bytes");
    drop(cursors);
    assert_eq!(ahead.bytes(), 0);
    let mut alone = reader.cursor(without_cache());
    seek(&mut alone, b"").unwrap();
    for _ in 0..600 {
        next(&mut alone).unwrap();
    }
    assert!(ahead.bytes() > 500 << 10, "one by itself reads as far ahead as before");
}

#[test]
fn a_cursor_that_goes_back_keeps_what_it_read_ahead_each_way_and_no_more() {
    // Rows of a megabyte and a half, and of some blocks.
    for (rows, columns) in [(6, 1_500), (600, 15)] {
        let value = [7; 1_000];
        let column = |row: usize, column: usize| {
            cell(&format!("row-{row:04}"), 1, &format!("q{column:05}"), 5, &value)
        };
        let records: Vec<_> =
            (0..rows * columns).map(|at| column(at / columns, at % columns)).collect();
        let options = SstOptions {
            compression: Compression::None,
            index_partition_bytes: 1 << 20,
            ..SstOptions::default()
        };
        let files = TestFiles::default();
        write(&files, &records, options);
        let reader = open(&files, 1).unwrap();
        let mut cursor = reader.cursor(CursorOptions::default());
        let (mut bound, mut kept_max) = (Vec::new(), 0);
        for row in (0..rows).rev() {
            let mut step = cursor.seek_row_before(&bound).unwrap();
            for expected in &records[row * columns..][..columns] {
                settle(&mut cursor, step).unwrap();
                assert_eq!(current(&cursor).as_ref(), Some(expected));
                kept_max = kept_max.max(cursor.bytes_kept());
                bound = expected.view().row_prefix().to_vec();
                step = cursor.next().unwrap();
            }
        }
        let kept = 512 << 10..(2 << 20) + (64 << 10);
        assert!(kept.contains(&kept_max), "{kept_max} bytes for rows of {columns} columns");
        let read = reader.metrics().blocks_read.get() as f64;
        let blocks = reader.properties().data_blocks as f64;
        assert!(read < 1.1 * blocks, "{read} of {blocks} blocks");
    }
}

#[test]
fn the_same_block_is_loaded_once_however_often_it_is_asked_for() {
    let records = many_rows(100);
    let reader = written(&records, SstOptions::default());
    let mut requests = Vec::new();
    for _ in 0..3 {
        let mut cursor = reader.cursor(CursorOptions::default());
        assert_eq!(cursor.seek(b"").unwrap(), Step::Blocked);
        cursor.wanted(&mut requests);
    }
    assert_eq!(requests.len(), 3);
    assert_eq!(requests[0], requests[2]);
    let io = TestIo::default();
    let blocks = load_blocks(&io, requests.clone()).now_or_never().unwrap();
    assert_eq!(reader.metrics().blocks_read.get(), 1);
    let first = blocks[0].as_ref().unwrap();
    assert!(blocks.iter().all(|b| Arc::ptr_eq(b.as_ref().unwrap(), first)));
    assert!(Arc::ptr_eq(&requests[0].load_blocking().unwrap(), first), "it is in the cache");
}

#[test]
fn a_compaction_leaves_the_cache_alone() {
    let records = many_rows(2_000);
    let files = TestFiles::default();
    write(&files, &records, SstOptions::default());
    let cache = Arc::new(QuickBlockCache::new(64 << 20));
    let reader = SstReader::open(&files, Path::new(&path()), ID, cache.clone()).unwrap();
    assert_eq!(scan(&reader, without_cache()).unwrap(), records);
    assert_eq!(cache.stats().blocks, 0);
    assert_eq!(cache.stats().misses, 0);
}

#[test]
fn damage_in_one_block_leaves_the_others_readable() {
    let records = many_rows(2_000);
    let files = TestFiles::default();
    write(&files, &records, SstOptions::default());
    let mut bytes = files.contents(&path());
    bytes[10] ^= 1;
    files.put(&path(), bytes);
    let reader = open(&files, 1 << 20).unwrap();
    let mut cursor = reader.cursor(CursorOptions::default());
    let error = seek(&mut cursor, b"").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption);
    assert!(error.message().contains("42.sst: offset 0: checksum mismatch"), "{error}");
    assert!(cursor.entry().is_none());
    let last = records.last().unwrap();
    seek(&mut cursor, &last.key).unwrap();
    assert_eq!(current(&cursor).as_ref(), Some(last));
}

#[test]
fn a_value_shares_the_memory_of_its_block() {
    let reader = written(&many_rows(10), SstOptions::default());
    let mut cursor = reader.cursor(CursorOptions::default());
    seek(&mut cursor, b"").unwrap();
    let (value, qualifier): (Bytes, Bytes) = (cursor.value_bytes(), cursor.qualifier_bytes());
    assert_eq!(value.as_ptr(), cursor.entry().unwrap().value.as_ptr());
    assert_eq!(qualifier, &b"profile"[..]);
    assert_eq!(qualifier.as_ptr(), cursor.qualifier_bytes().as_ptr());
}

#[test]
fn a_read_of_many_columns_of_a_wide_row_finds_those_in_later_filter_partitions() {
    // One row over some thirty filter partitions, and a row on either side.
    let mut records = vec![cell("a", 1, "q", 5, b"")];
    records
        .extend((0..1500).map(|i| cell("wide", 1 + i / 750, &format!("column-{i:05}"), 5, b"v")));
    records.push(cell("z", 1, "q", 5, b""));
    let reader = written(&records, tiny(Compression::Lz4));
    assert!(reader.filters().unwrap().len() > 20);
    let perhaps = |columns: Vec<(FamilyId, Vec<u8>)>| {
        let columns = columns.iter().map(|(family, qualifier)| (*family, qualifier.as_slice()));
        let probe = RowProbe::columns(b"wide", columns);
        !is_absent(&reader, &probe)
    };
    let column = |i: u32, suffix: &str| {
        (FamilyId(1 + i / 750), format!("column-{i:05}{suffix}").into_bytes())
    };
    for i in 0..1500 {
        assert!(perhaps(vec![column(i, "")]), "column {i}");
        assert!(perhaps(vec![column(0, "no"), column(i, ""), column(1499, "no")]), "column {i}");
    }
    let wrong = (0..1500).filter(|i| perhaps(vec![column(*i, "no")])).count();
    assert!(wrong < 100, "{wrong} of 1500");
    // The second begins in a later partition than the row.
    for family in [1, 2] {
        let families = [FamilyId(9), FamilyId(family)];
        assert!(!is_absent(&reader, &RowProbe::families(b"wide", families)));
    }
}

#[test]
fn an_sst_without_records_is_sound_and_empty() {
    let reader = written(&[], SstOptions::default());
    assert_eq!(scan(&reader, CursorOptions::default()).unwrap(), []);
    let mut cursor = reader.cursor(CursorOptions::default());
    seek_row_before(&mut cursor, b"").unwrap();
    assert!(cursor.entry().is_none());
    assert_eq!(reader.index_rows().unwrap(), []);
    reader.verify(&mut |_| ()).unwrap();
}

#[test]
fn verify_notices_a_file_whose_figures_are_wrong() {
    // Two sound files with the same keys, one with the properties of a smaller one: every checksum holds.
    let files = TestFiles::default();
    let records = many_rows(50);
    write(&files, &records[..49], SstOptions::default());
    let other = open(&files, 1 << 20).unwrap();
    let mut properties = Vec::new();
    other.properties().encode(&mut properties);
    write(&files, &records, SstOptions::default());
    let reader = open(&files, 1 << 20).unwrap();
    let mut footer = *reader.footer();
    let offset = footer.properties.offset;
    let mut bytes = files.contents(&path())[..offset as usize].to_vec();
    frame::Framer::new(Compression::None).frame(
        &properties,
        frame::Method::None,
        ID,
        offset,
        &mut bytes,
    );
    footer.properties.len = (bytes.len() as u64 - offset) as u32;
    let footer_at = bytes.len() as u64;
    footer.encode(ID, footer_at, &mut bytes);
    files.put(&path(), bytes);
    let reader = open(&files, 1 << 20).unwrap();
    let error = reader.verify(&mut |_| ()).unwrap_err();
    assert!(error.message().ends_with("the properties are wrong"), "{error}");
}
