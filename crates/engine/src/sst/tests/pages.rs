//! Where blocks and partitions lie in a file, and how much they take of it.

use super::*;

/// Values that do not compress.
pub(super) fn noise_rows(count: usize, columns: usize, value_len: usize) -> Vec<Sample> {
    let mut all: Vec<_> = (0..count)
        .flat_map(|row| {
            let key = String::from_utf8(measure::random_row(row as u64)).unwrap();
            (0..columns).map(move |column| {
                let value: Vec<u8> = (0..value_len as u64)
                    .map(|i| {
                        crate::random::mix64((row * 16 + column) as u64 ^ crate::random::mix64(i))
                            as u8
                    })
                    .collect();
                cell(&key, 1, &format!("field{column}"), 1000 * row as i64, &value)
            })
        })
        .collect();
    all.sort_by(|a, b| a.key.cmp(&b.key));
    all
}

/// The data blocks of a file: first byte, bytes, records.
fn blocks(reader: &SstReader) -> Vec<(u64, u64, u64)> {
    let mut out = Vec::new();
    let mut add = |piece: Piece<'_>| {
        if let Piece::Block(block) = piece {
            out.push((block.offset, block.bytes, block.records));
        }
        Ok(())
    };
    reader.walk(false, &mut add).unwrap();
    out
}

fn pages((offset, bytes, _): (u64, u64, u64)) -> u64 {
    (offset + bytes).div_ceil(PAGE_BYTES as u64) - offset / PAGE_BYTES as u64
}

#[test]
fn incompressible_rows_fill_a_page_and_never_cross_into_another() {
    for compression in [Compression::None, Compression::Lz4, Compression::Zstd(1)] {
        let reader = written(
            &noise_rows(5_000, 1, 256),
            SstOptions { compression, ..SstOptions::default() },
        );
        let blocks = blocks(&reader);
        assert!(blocks.iter().all(|b| b.1 <= 4096 && pages(*b) == 1), "{compression:?}");
        // All but the last are full: 12 rows of 306 bytes.
        assert!(blocks[..blocks.len() - 1].iter().all(|b| b.2 == 12 && b.0 % 4096 == 0));
        let raw = 5_000 * 306;
        assert!(reader.bytes() < raw * 114 / 100, "{} for {raw}", reader.bytes());
        reader.verify(&mut |_| ()).unwrap();
    }
}

#[test]
fn rows_of_several_columns_are_not_divided_between_blocks_where_they_need_not_be() {
    let records = noise_rows(500, 10, 256);
    let reader = written(&records, SstOptions::default());
    assert!(blocks(&reader).iter().all(|b| b.2 == 10), "a row of 2.7 KB each");
    // Where zeros would cost a third, blocks cross pages instead.
    assert!(reader.properties().padding_bytes < 3 * 4096, "those before partitions");
    assert_eq!(scan(&reader, without_cache()).unwrap(), records);
    let reader = written(&noise_rows(500, 4, 100), SstOptions::default());
    assert!(blocks(&reader).iter().all(|b| b.2 % 4 == 0));
    reader.verify(&mut |_| ()).unwrap();
}

#[test]
fn a_row_that_moves_into_the_next_block_makes_none_larger_than_a_page() {
    let noise = |seed: u64, len: u64| -> Vec<u8> {
        (0..len).map(|i| crate::random::mix64(seed ^ crate::random::mix64(i)) as u8).collect()
    };
    // The second row begins in a block that is half full, and its next cell does not fit beside what it has there.
    let cells = |lens: &[(&str, &str, u64)]| -> Vec<Sample> {
        let cell = |(at, (row, column, len)): (usize, &(&str, &str, u64))| {
            super::cell(row, 1, column, 1000, &noise(at as u64, *len))
        };
        lens.iter().enumerate().map(cell).collect()
    };
    let records = [
        cells(&[("a", "a", 2_200), ("b", "a", 1_600), ("b", "b", 3_200), ("c", "a", 10)]),
        cells(&[("a", "a", 2_200), ("b", "a", 10), ("b", "b", 100_000), ("b", "c", 10)]),
        cells(&[("a", "a", 2_200), ("b", "a", 1_000), ("b", "b", 800), ("b", "c", 2_230)]),
    ];
    for records in &records {
        let options = SstOptions { compression: Compression::None, ..SstOptions::default() };
        let reader = written(records, options);
        let blocks = blocks(&reader);
        assert!(blocks.iter().all(|b| b.1 <= 4096 || b.2 == 1), "{blocks:?}");
        assert_eq!(scan(&reader, without_cache()).unwrap(), *records);
        reader.verify(&mut |_| ()).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn no_block_of_what_does_not_compress_passes_its_page_but_for_one_record(
        rows in proptest::collection::vec(proptest::collection::vec(1u64..3_500, 1..5), 1..40),
    ) {
        let mut records = Vec::new();
        for (row, lens) in rows.iter().enumerate() {
            for (column, len) in lens.iter().enumerate() {
                let seed = (row * 16 + column) as u64;
                let value: Vec<u8> =
                    (0..*len).map(|i| crate::random::mix64(seed ^ crate::random::mix64(i)) as u8).collect();
                records.push(cell(&format!("{row:04}"), 1, &format!("{column}"), 1000, &value));
            }
        }
        let options = SstOptions { compression: Compression::None, ..SstOptions::default() };
        let reader = written(&records, options);
        let blocks = blocks(&reader);
        prop_assert!(blocks.iter().all(|b| b.1 <= 4096 || b.2 == 1), "{:?}", blocks);
        prop_assert_eq!(scan(&reader, without_cache()).unwrap(), records);
        reader.verify(&mut |_| ()).unwrap();
    }
}

#[test]
fn compressible_blocks_fill_a_page_without_wasting_space() {
    for (compression, mean_min) in [(Compression::Lz4, 3_300), (Compression::Zstd(1), 3_300)] {
        let reader =
            written(&many_rows(60_000), SstOptions { compression, ..SstOptions::default() });
        let blocks = blocks(&reader);
        let bytes: u64 = blocks.iter().map(|b| b.1).sum();
        let mean = bytes / blocks.len() as u64;
        assert!((mean_min..=4096).contains(&mean), "{compression:?}: {mean}");
        let crossing = blocks.iter().filter(|b| pages(**b) > 1).count();
        assert!(crossing * 10 < blocks.len(), "{compression:?}: {crossing} of {}", blocks.len());
        let padding = reader.properties().padding_bytes;
        assert!(padding * 8 < bytes, "{compression:?}: {padding} of {bytes}");
    }
}

#[test]
fn partitions_take_one_page_and_do_not_cross_into_another() {
    for (columns, filter_kind) in [(1, FilterKind::Bloom), (3, FilterKind::Fuse8)] {
        let options = SstOptions { filter_kind, ..SstOptions::default() };
        let reader = written(&noise_rows(40_000 / columns, columns, 60), options);
        let mut partitions = Vec::new();
        let mut add = |piece: Piece<'_>| {
            match piece {
                Piece::Partition(p) => partitions.push((p.offset, p.bytes, 0)),
                Piece::Filter(offset, bytes) => partitions.push((offset, bytes, 0)),
                _ => {}
            }
            Ok(())
        };
        reader.walk(false, &mut add).unwrap();
        assert!(partitions.len() > 6, "{}", partitions.len());
        assert!(partitions.iter().all(|p| pages(*p) == 1), "{partitions:?}");
        reader.verify(&mut |_| ()).unwrap();
    }
}

#[test]
fn an_index_entry_of_random_rows_takes_at_most_sixteen_bytes() {
    let reader = written(&noise_rows(60_000, 1, 256), SstOptions::default());
    let properties = reader.properties();
    let per_block = properties.index_bytes as f64 / properties.data_blocks as f64;
    assert!(per_block <= 16.0, "{per_block}");
}

#[test]
fn rows_of_the_same_columns_cost_one_filter_entry_each() {
    let records = noise_rows(2_000, 10, 20);
    for kind in [FilterKind::Bloom, FilterKind::Fuse8, FilterKind::Fuse16] {
        let options = SstOptions { filter_kind: kind, ..SstOptions::default() };
        let reader = written(&records, options);
        let filter = reader.properties().filter;
        assert_eq!((filter.entries, filter.common_partitions), (2_000, filter.partitions));
        assert_eq!(filter.kinds, 1 << (kind as u64 + 1));
        reader.verify(&mut |_| ()).unwrap();
        // A column that no row has is denied; so is a family.
        let absent = |probe: RowProbe<'_>| is_absent(&reader, &probe);
        let row = records[0].view().row();
        assert!(absent(RowProbe::columns(&row, [(FamilyId(1), &b"field99"[..])])));
        assert!(absent(RowProbe::families(&row, [FamilyId(2)])));
        assert!(!absent(RowProbe::columns(&row, [(FamilyId(1), &b"field9"[..])])));
    }
}

#[test]
fn rows_of_different_columns_have_entries_for_everything() {
    let records: Vec<_> = (0..2_000u64)
        .map(|i| {
            let column = format!("column-{}", crate::random::mix64(i) % 50);
            cell(&format!("row-{i:08}"), 1, &column, 5, b"v")
        })
        .collect();
    let reader = written(&records, SstOptions::default());
    let filter = reader.properties().filter;
    assert_eq!((filter.entries, filter.common_partitions), (6_000, 0));
    let wrong = (0..2_000u64)
        .filter(|i| {
            let column = format!("column-{}", (crate::random::mix64(*i) + 1) % 50).into_bytes();
            let row = format!("row-{i:08}");
            let probe = RowProbe::columns(row.as_bytes(), [(FamilyId(1), column.as_slice())]);
            !is_absent(&reader, &probe)
        })
        .count();
    assert!(wrong < 50, "{wrong}");
}

#[test]
fn one_partition_per_file_can_be_had() {
    let options = SstOptions {
        index_partition_bytes: PARTITION_UNLIMITED,
        filter_partition_bytes: PARTITION_UNLIMITED,
        filter_kind: FilterKind::Fuse8,
        ..SstOptions::default()
    };
    let reader = written(&noise_rows(30_000, 1, 100), options);
    assert_eq!(reader.top().len(), 1);
    assert_eq!(reader.filters().unwrap().len(), 1);
    reader.verify(&mut |_| ()).unwrap();
}

#[test]
fn zeros_between_blocks_are_checked() {
    let files = TestFiles::default();
    write(&files, &noise_rows(100, 1, 256), SstOptions::default());
    let mut bytes = files.contents(&path());
    assert_eq!(bytes[4095], 0);
    bytes[4095] = 1;
    files.put(&path(), bytes);
    let error = open(&files, 1 << 20).unwrap().verify(&mut |_| ()).unwrap_err();
    assert!(error.message().contains("the padding between two blocks is not zero"), "{error}");
}

#[test]
fn blocks_in_memory_do_not_keep_whole_units_of_a_device_for_less() {
    // Rows of which one fits into a unit, which is larger by more than an eighth, and rows that fill units.
    // All are read one by one: a cache of twice the rows would read their neighbours with them, and keep copies.
    for (rows, value_len, shares) in [(200, 2_200, false), (5_000, 256, true)] {
        let records = noise_rows(rows, 1, value_len);
        let buffers = Arc::new(());
        let files = TestFiles::of_a_device(Arc::clone(&buffers));
        write(&files, &records, SstOptions::default());
        let reader = open(&files, if shares { 5 << 19 } else { 64 << 20 }).unwrap();
        // The test's, the files' and the open file's.
        let held = |count: usize| count - 3;
        assert_eq!(held(Arc::strong_count(&buffers)), 0, "what stays with an open file");
        for record in &records {
            look_up(&reader, &RowProbe::row(&record.view().row())).unwrap();
        }
        let held = held(Arc::strong_count(&buffers));
        let blocks = blocks(&reader).len();
        assert!(if shares { held > blocks / 2 } else { held == 0 }, "{held} of {blocks}");
    }
}

/// Blocks of four pages of a file that is read past the page cache.
#[cfg(target_os = "linux")]
#[test]
fn blocks_of_several_pages_do_not_keep_the_memory_that_they_were_read_into() {
    use crate::io::{IoMode, LocalFiles, is_lent};

    let dir = crate::testing::disk_dir();
    let path = dir.path().join("42.sst");
    let files = LocalFiles::new(IoMode::Direct);
    let options =
        SstOptions { block_bytes: 16 << 10, read_bytes: 16 << 10, ..SstOptions::default() };
    let mut writer = SstWriter::new(files.create(&path).unwrap(), &path, ID, options, 1234);
    let records = noise_rows(200, 40, 256);
    for record in &records {
        writer.add(record.view(), &record.value).unwrap();
    }
    writer.finish().unwrap();
    // One of twice the rows would read their neighbours with them, and keep copies in any case.
    let cache = Arc::new(QuickBlockCache::new(3 << 20));
    let reader = SstReader::open(&files, &path, ID, Arc::clone(&cache) as _).unwrap();
    let blocks = blocks(&reader);
    let device = reader.file().device().unwrap();
    if device.memory_align == 1 {
        return crate::testing::skip("this file system has no direct reads");
    }
    // Memory is lent for them, and they nearly fill what they are read into.
    for (offset, len, _) in blocks.iter().rev().skip(1) {
        let span = device.span(*offset, offset + len);
        assert!(device.lends(&span) && span.end - span.start <= len + len / 8);
    }
    for record in records.iter().step_by(40) {
        look_up(&reader, &RowProbe::row(&record.view().row())).unwrap();
    }
    let cached: Vec<_> = blocks.iter().filter_map(|block| cache.peek(ID, block.0)).collect();
    assert!(cached.len() > 100, "{}", cached.len());
    assert!(cached.iter().all(|block| !is_lent(&block.lease())));
}
