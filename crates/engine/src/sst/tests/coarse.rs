//! The coarse filter of a file: what it spares, and that a damaged one costs nothing else.

use super::pages::noise_rows;
use super::salvage::walked;
use super::*;
use crate::error::ErrorKind;
use crate::io::{Fault, FaultFiles, FaultOp};

const ROWS: usize = 20_000;

/// Rows of 300 bytes, for which a coarse filter is worth its memory.
fn rows_of_300_bytes() -> (TestFiles, Vec<Sample>) {
    let (files, records) = (TestFiles::default(), noise_rows(ROWS, 1, 256));
    write(&files, &records, SstOptions::default());
    (files, records)
}

fn row_of(record: &Sample) -> Vec<u8> {
    record.view().row()
}

/// Rows that are not there, each beside one that is.
fn absent(record: &Sample) -> RowProbe<'static> {
    RowProbe::row(&[row_of(record).as_slice(), b"x"].concat())
}

fn is_there(reader: &Arc<SstReader>, probe: &RowProbe<'_>) -> bool {
    !matches!(look_up(reader, probe).unwrap(), PointStage::Absent)
}

#[test]
fn most_absent_rows_are_ruled_out_without_a_filter_partition() {
    let (files, records) = rows_of_300_bytes();
    let cache = Arc::new(QuickBlockCache::new(64 << 20));
    let reader = SstReader::open(&files, &path(), ID, cache.clone()).unwrap();
    let partitions = || {
        let filter = &cache.sst_metrics().filter;
        filter.hits.get() + filter.misses.get()
    };
    let asked = records.iter().filter(|record| {
        let before = partitions();
        assert!(!is_there(&reader, &absent(record)));
        partitions() > before
    });
    let asked = asked.count();
    assert!((ROWS * 45 / 100..ROWS * 50 / 100).contains(&asked), "{asked}");
    let metrics = cache.sst_metrics();
    // One lies behind the last partition.
    let spared = ROWS - asked - metrics.filter_coarse_negatives.get() as usize;
    assert!(spared <= 1, "{spared}");
    assert_eq!(metrics.filter_probes.get(), ROWS as u64);
    assert_eq!(metrics.point_lookups.get(), ROWS as u64);
    assert!(metrics.filter_negatives.get() > ROWS as u64 * 98 / 100);
    for record in records.iter().step_by(100) {
        assert!(is_there(&reader, &RowProbe::row(&row_of(record))));
    }
    reader.verify(&mut |_| ()).unwrap();
}

#[test]
fn it_takes_a_bit_and_a_half_for_a_row_of_the_memory_that_files_keep() {
    let (files, _) = rows_of_300_bytes();
    let reader = open(&files, 1 << 20).unwrap();
    let bytes = reader.properties().filter.coarse_bytes;
    assert!((ROWS as u64 * 3 / 16..ROWS as u64 * 4 / 16).contains(&bytes), "{bytes}");
    let one = SstOptions { filter_partition_bytes: PARTITION_UNLIMITED, ..SstOptions::default() };
    write(&files, &noise_rows(ROWS, 1, 256), one);
    let whole = open(&files, 1 << 20).unwrap();
    assert_eq!(whole.properties().filter.coarse_bytes, 0, "one partition is asked at once");
    assert!(reader.resident_bytes() > whole.resident_bytes() + bytes - 16, "{bytes}");
}

#[test]
fn a_damaged_one_is_named_and_fails_no_read() {
    let (files, records) = rows_of_300_bytes();
    let offset = open(&files, 1 << 20).unwrap().properties().filter.coarse_offset;
    let mut bytes = files.contents(&path());
    bytes[offset as usize + 100] ^= 4;
    files.put(&path(), bytes);
    let reader = open(&files, 1 << 20).unwrap();
    assert_eq!(reader.metrics().filter_damaged.get(), 1);
    for record in records.iter().step_by(50) {
        assert!(is_there(&reader, &RowProbe::row(&row_of(record))));
        assert!(!is_there(&reader, &absent(record)));
    }
    assert_eq!(reader.metrics().filter_coarse_negatives.get(), 0);
    let error = reader.verify(&mut |_| ()).unwrap_err();
    let place = format!("offset {offset}: checksum");
    assert!(error.message().contains(&place), "{error}");
    let (_, lost) = walked(&reader);
    let lost: Vec<_> = lost.iter().map(|piece| (piece.offset, piece.records)).collect();
    assert_eq!(lost, [(offset, 0)]);
}

#[test]
fn verify_notices_one_that_does_not_know_a_row() {
    let (files, _) = rows_of_300_bytes();
    let filter = open(&files, 1 << 20).unwrap().properties().filter;
    let empty = vec![0; filter.coarse_bytes as usize - frame::TRAILER_LEN];
    put_frame(&files, filter.coarse_offset, &empty);
    // Also where the cache has no room for it.
    for cache_bytes in [1 << 20, 1] {
        let error = open(&files, cache_bytes).unwrap().verify(&mut |_| ()).unwrap_err();
        assert!(error.message().contains("the coarse filter does not know a row"), "{error}");
    }
}

#[test]
fn one_that_the_device_cannot_read_fails_nothing_but_a_check() {
    let (files, records) = rows_of_300_bytes();
    let offset = open(&files, 1 << 20).unwrap().properties().filter.coarse_offset;
    let files = FaultFiles::new(Arc::new(files));
    files.inject(Fault::new(FaultOp::Read).at(offset).sticky());
    let cache = Arc::new(QuickBlockCache::new(1 << 20));
    let reader = SstReader::open(&files, &path(), ID, cache).unwrap();
    for record in records.iter().step_by(500) {
        assert!(is_there(&reader, &RowProbe::row(&row_of(record))));
        assert!(!is_there(&reader, &absent(record)));
    }
    assert_eq!(reader.verify(&mut |_| ()).unwrap_err().kind(), ErrorKind::Io);
}

#[test]
fn a_cache_that_is_too_small_for_it_reads_without() {
    let (files, records) = rows_of_300_bytes();
    let bytes = open(&files, 1 << 20).unwrap().properties().filter.coarse_bytes;
    let kept = open(&files, bytes * 5).unwrap().resident_bytes();
    let reader = open(&files, bytes * 3).unwrap();
    assert!(reader.resident_bytes() + bytes - 16 < kept, "{bytes} of {kept}");
    for record in records.iter().step_by(100) {
        assert!(is_there(&reader, &RowProbe::row(&row_of(record))));
        assert!(!is_there(&reader, &absent(record)));
    }
    reader.verify(&mut |_| ()).unwrap();
}
