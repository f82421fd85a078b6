//! Measurements of the format's hot paths, printed and never judged: they say nothing on a busy machine.
//!
//! ```text
//! cargo test --release -p tepui-engine sst::measure -- --ignored --nocapture --test-threads 1
//! ```

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use super::data::DataBlock;
use super::data_builder::DataBlockBuilder;
use super::filter::{Ask, FilterBlock, FilterForm, row_entry};
use super::index::{IndexBlock, Level};
use super::{
    Compression, FilterKind, PARTITION_UNLIMITED, SstOptions, SstReader, SstSummary, SstWriter,
};
use crate::cache::QuickBlockCache;
use crate::cell::{FamilyId, KeyView, Kind, encode_key, row_prefix};
use crate::io::{Clock, Files, MemoryFiles, SystemClock};
use crate::random::mix64;

/// Nanoseconds of one call, over `rounds` of them.
pub(super) fn nanos(what: &str, rounds: usize, mut call: impl FnMut(usize)) {
    let clock = SystemClock::new();
    // The best of five: what others do on the machine only adds.
    let best = (0..5)
        .map(|_| {
            let start = clock.monotonic_micros();
            for i in 0..rounds {
                call(i);
            }
            (clock.monotonic_micros() - start) as f64 * 1000.0 / rounds as f64
        })
        .fold(f64::MAX, f64::min);
    eprintln!("{what:<60} {best:8.1} ns");
}

/// A row of 50 bytes without anything in common with others, in the order of `i` by its hash.
pub(super) fn random_row(i: u64) -> Vec<u8> {
    const DIGITS: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";
    (0..50u64)
        .map(|at| DIGITS[(mix64(i.wrapping_mul(64) + at / 8) >> (at % 8 * 8)) as usize % 32])
        .collect()
}

/// Bytes that do not compress.
pub(super) fn noise(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (mix64(seed ^ mix64(i / 8)) >> (i % 8 * 8)) as u8).collect()
}

/// The key of a value in one of the columns that the rows here have.
fn field_key(row: &[u8], column: usize, time: i64, seq: u64) -> Vec<u8> {
    let mut key = Vec::new();
    let qualifier = format!("field{column}");
    encode_key(row, FamilyId(1), Some(qualifier.as_bytes()), time, seq, Kind::Value, &mut key);
    key
}

fn block(rows: &[Vec<u8>], columns: usize, value_len: usize) -> DataBlock {
    let mut builder = DataBlockBuilder::new();
    for (i, row) in rows.iter().enumerate() {
        for column in 0..columns {
            let time = 1_700_000_000_000_000 + mix64(i as u64) as i64 % 600_000_000;
            let key = field_key(row, column, time, 1 << 60);
            builder.add(KeyView::parse(&key).unwrap(), &noise(i as u64, value_len));
        }
    }
    DataBlock::parse(Bytes::from(builder.finished())).unwrap()
}

#[test]
#[ignore = "prints figures"]
fn searching_a_data_block() {
    for (count, columns, value_len) in [(12, 1, 256), (1, 10, 256), (2, 10, 256), (46, 1, 256)] {
        let mut rows: Vec<_> = (0..count).map(random_row).collect();
        rows.sort();
        let block = block(&rows, columns, value_len);
        let prefixes: Vec<_> = rows.iter().map(|r| row_prefix(r)).collect();
        let name = format!("{count} rows x {columns}");
        nanos(&format!("find_row, {name}"), 200_000, |i| {
            black_box(block.find_row(&prefixes[i % prefixes.len()]).unwrap());
        });
        nanos(&format!("seek to a row, {name}"), 200_000, |i| {
            black_box(block.seek(&prefixes[i % prefixes.len()]).unwrap());
        });
        nanos(&format!("find_row and walk the row, {name}"), 200_000, |i| {
            let mut next = block.find_row(&prefixes[i % prefixes.len()]).unwrap();
            for _ in 1..columns {
                next = block.after(&next.unwrap()).unwrap();
            }
            black_box(next);
        });
    }
}

/// Rows of 306 bytes and of ten columns, in order; `text` for values that compress.
fn rows(count: u64, columns: usize, text: bool) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut names: Vec<_> = (0..count).map(random_row).collect();
    names.sort();
    let words =
        ["city", "score", "user", "profile", "visited", "since", "blue", "mountain", "rain"];
    let mut all = Vec::new();
    for (i, row) in names.iter().enumerate() {
        let time = 1_700_000_000_000_000 + (mix64(i as u64) % 600_000_000) as i64;
        let seq = ((time as u64 / 1000) << 20) + (mix64(i as u64) & 0xFF);
        for column in 0..columns {
            let key = field_key(row, column, time, seq);
            let at = (i * columns + column) as u64;
            let value = if text {
                let mut value = Vec::new();
                for word in 0.. {
                    let pick = mix64(at * 1000 + word);
                    value.extend_from_slice(words[pick as usize % words.len()].as_bytes());
                    value.extend_from_slice(format!(" {} ", pick % 1000).as_bytes());
                    if value.len() >= 256 {
                        break;
                    }
                }
                value.truncate(256);
                value
            } else {
                noise(at, 256)
            };
            all.push((key, value));
        }
    }
    all
}

fn write(files: &MemoryFiles, records: &[(Vec<u8>, Vec<u8>)], options: SstOptions) -> SstSummary {
    let path = Path::new("/measure.sst");
    let file = files.create(path).unwrap();
    let mut writer = SstWriter::new(file, path, 7, options, 0);
    for (key, value) in records {
        writer.add(KeyView::parse(key).unwrap(), value).unwrap();
    }
    writer.finish().unwrap()
}

#[test]
#[ignore = "prints figures"]
fn writing_files_and_what_they_take() {
    let clock = SystemClock::new();
    for (name, count, columns, text) in [
        ("random, 1 column", 200_000, 1, false),
        ("random, 10 columns", 20_000, 10, false),
        ("text, 1 column", 200_000, 1, true),
    ] {
        let records = rows(count, columns, text);
        let raw: usize =
            count as usize * 50 + records.iter().map(|(_, value)| value.len()).sum::<usize>();
        for (compression, filter_kind) in [
            (Compression::None, FilterKind::Bloom),
            (Compression::Lz4, FilterKind::Bloom),
            (Compression::Lz4, FilterKind::Fuse8),
            (Compression::ZstdDict(1), FilterKind::Fuse8),
        ] {
            let options = SstOptions { filter_kind, compression, ..SstOptions::default() };
            let files = MemoryFiles::new();
            let start = clock.monotonic_micros();
            let summary = write(&files, &records, options);
            let micros = clock.monotonic_micros() - start;
            let properties = &summary.properties;
            let per_gb = |bytes: u64| bytes as f64 / raw as f64 * 1e3;
            eprintln!(
                "{name:<20} {compression:?} {filter_kind:?}: {:.0} MB/s; file {:.3} of raw, padding {:.3}; \
                 {:.1} rows a block; index {:.2} MB/GB, {:.1} B a block; filter {:.2} MB/GB, {:.2} bits a row",
                raw as f64 / micros as f64,
                summary.bytes as f64 / raw as f64,
                properties.padding_bytes as f64 / raw as f64,
                properties.rows as f64 / properties.data_blocks as f64,
                per_gb(properties.index_bytes),
                properties.index_bytes as f64 / properties.data_blocks as f64,
                per_gb(properties.filter.bytes),
                properties.filter.bytes as f64 * 8.0 / properties.rows as f64,
            );
        }
    }
}

#[test]
#[ignore = "prints figures"]
fn searching_an_index_and_a_filter() {
    let records = rows(200_000, 1, false);
    let prefixes: Vec<_> =
        records.iter().map(|(key, _)| KeyView::parse(key).unwrap().row_prefix().to_vec()).collect();
    // Few enough to stay in the processor's cache, which is not what is measured.
    let few: Vec<_> = prefixes.iter().step_by(199).collect();
    let pick = |i: usize| few[mix64(i as u64) as usize % few.len()];
    for bytes in [4096, PARTITION_UNLIMITED] {
        let files = MemoryFiles::new();
        let options = SstOptions {
            index_partition_bytes: bytes,
            filter_partition_bytes: bytes,
            filter_kind: FilterKind::Fuse8,
            ..SstOptions::default()
        };
        write(&files, &records, options);
        let cache = Arc::new(QuickBlockCache::new(1 << 30));
        let reader = SstReader::open(&files, Path::new("/measure.sst"), 7, cache).unwrap();
        let (top, filters) = (reader.top(), reader.filters().unwrap());
        let handle = reader.top_entry(top.len() / 2).unwrap().handle;
        let block = reader.read_block(handle, super::block::BlockKind::Index).unwrap();
        let partition: &IndexBlock = block.index().unwrap();
        for (name, index, level) in [
            ("top", top, Level::Top),
            ("filter index", filters, Level::Filter),
            ("partition", partition, Level::Partition),
        ] {
            let name = format!("find in {name} of {} ({level:?})", index.len());
            nanos(&name, 500_000, |i| {
                black_box(index.find(pick(i), false).unwrap());
            });
        }
        nanos("entry of a partition", 500_000, |i| {
            black_box(partition.entry(i % partition.len(), u64::MAX).unwrap());
        });
        nanos("handle of a partition", 500_000, |i| {
            black_box(partition.handle(i % partition.len(), u64::MAX).unwrap());
        });
        nanos("hash and nothing", 500_000, |i| {
            black_box(row_entry(pick(i)));
        });
    }
    for (kind, count) in [
        (FilterKind::Bloom, 3_000),
        (FilterKind::Fuse8, 3_000),
        (FilterKind::Fuse16, 1_500),
        (FilterKind::Fuse8, 200_000),
    ] {
        let entries: Vec<u64> = (0..count).map(mix64).collect();
        let form = FilterForm { kind, bits_per_key: 10, partition_bytes: PARTITION_UNLIMITED };
        let name = format!("{kind:?} of {count}");
        nanos(&format!("build {name}, all entries"), (600_000 / count) as usize, |_| {
            black_box(form.build(&mut entries.clone(), &[], &[]));
        });
        let block = form.build(&mut entries.clone(), &[], &[]);
        eprintln!("{name}: {:.2} bits an entry", block.len() as f64 * 8.0 / count as f64);
        let filter = FilterBlock::parse(Bytes::from(block)).unwrap();
        nanos(&format!("ask {name}, present"), 500_000, |i| {
            black_box(filter.may_contain(&Ask::Row(entries[i % entries.len()])));
        });
        nanos(&format!("ask {name}, absent"), 500_000, |i| {
            black_box(filter.may_contain(&Ask::Row(mix64(!(i as u64)))));
        });
        let wrong = (0..1_000_000u64).filter(|i| filter.may_contain(&Ask::Row(mix64(!i)))).count();
        eprintln!("{name}: {wrong} false of a million");
    }
}
