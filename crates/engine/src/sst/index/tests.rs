//! Index blocks against what was put into them, and against the documented bytes.

use super::super::index_builder::{HEADER_BYTES_MAX, IndexBuilder};
use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Every fifth block without cells; spans that need rounding and spans that do not.
fn stats(i: u64) -> BlockStats {
    let timestamps = match i % 5 {
        0 => (i64::MAX, i64::MIN),
        1 => (i as i64, i as i64),
        2 => (-1_000_003, 1_700_000_000_000_000 + i as i64),
        3 => (i64::MIN, 5),
        _ => (7, i64::MAX),
    };
    BlockStats {
        records: i,
        tombstones: i / 2,
        timestamp_min: timestamps.0,
        timestamp_max: timestamps.1,
    }
}

fn entry(i: u64) -> IndexEntry {
    IndexEntry { handle: Handle { offset: i * 100, len: 100 }, stats: stats(i), data_end: i * 7 }
}

/// The test vector of docs/formats-sst.md.
#[test]
fn the_documented_partition_is_what_is_built() {
    let mut builder = IndexBuilder::new(Level::Partition);
    for (separator, offset, len, figures) in
        [("row-a", 0, 4000, (12, 0, 1000, 1000)), ("row-bcdefg", 4096, 4010, (13, 1, 1000, 2000))]
    {
        let handle = Handle { offset, len };
        let (records, tombstones, timestamp_min, timestamp_max) = figures;
        let stats = BlockStats { records, tombstones, timestamp_min, timestamp_max };
        builder.add(separator.as_bytes(), &IndexEntry { handle, stats, data_end: handle.end() });
    }
    let hex = builder.finish().iter().fold(String::new(), |hex, b| hex + &format!("{b:02x}"));
    assert_eq!(
        hex,
        concat!(
            "0004040002000000",
            "726f772d",
            "0101",
            "0100",
            "0200",
            "01a01f",
            "010c",
            "0100",
            "00d00f",
            "01d00f",
            "02",
            "61000000",
            "62636465",
            "0005",
            "0000",
            "00000010",
            "000a",
            "0001",
            "0001",
            "00fa",
            "6667",
        )
    );
}

proptest! {
    #[test]
    fn a_search_finds_the_first_greater_separator(
        separators in prop::collection::btree_set(prop::collection::vec(0u8..3, 1..14), 1..60),
        prefix in prop::collection::vec(0u8..3, 0..3),
        target in prop::collection::vec(0u8..3, 0..14),
    ) {
        let separators: BTreeSet<Vec<u8>> =
            separators.iter().map(|s| [&prefix[..], s].concat()).collect();
        for level in [Level::Partition, Level::Top, Level::Filter] {
            let mut builder = IndexBuilder::new(level);
            for (i, separator) in separators.iter().enumerate() {
                builder.add(separator, &entry(i as u64));
            }
            // Taking an entry back leaves no trace.
            builder.add(b"\xFF\xFFlast", &entry(9999));
            builder.add(b"\xFF\xFFlast2", &entry(10_000));
            let taken = builder.take_back(separators.len());
            let last = (b"\xFF\xFFlast".to_vec(), entry(9999));
            prop_assert_eq!(taken, vec![last, (b"\xFF\xFFlast2".to_vec(), entry(10_000))]);
            let bytes = builder.finish();
            prop_assert!(builder.fits(bytes.len() + HEADER_BYTES_MAX));
            prop_assert!(!builder.fits(bytes.len() - 1) && bytes.len() <= builder.len() + 64);
            let block = IndexBlock::parse(Bytes::from(bytes), level).unwrap();
            let all: Vec<_> = separators.iter().collect();
            prop_assert_eq!(block.len(), all.len());
            for (i, separator) in all.iter().enumerate() {
                prop_assert_eq!(&&block.separator(i).unwrap(), separator);
                let got = block.entry(i, 1 << 40).unwrap();
                prop_assert_eq!(got.handle, entry(i as u64).handle);
                prop_assert_eq!(block.handle(i, 1 << 40).unwrap(), got.handle);
                if level != Level::Filter {
                    prop_assert!(got.stats.describes(&entry(i as u64).stats));
                }
                if level == Level::Top {
                    prop_assert_eq!(got.data_end, entry(i as u64).data_end);
                }
                for target in [&target, *separator] {
                    let order = separator.as_slice().cmp(target);
                    prop_assert_eq!(block.compare(i, target).unwrap(), order);
                    let begins = separator.starts_with(target);
                    prop_assert_eq!(block.begins_with(i, target).unwrap(), begins);
                }
                for end in 0..separator.len() {
                    prop_assert!(block.begins_with(i, &separator[..end]).unwrap());
                }
            }
            let greater = all.iter().position(|s| **s > target).unwrap_or(all.len());
            prop_assert_eq!(block.find(&target, false).unwrap(), greater);
            let not_less = all.iter().position(|s| **s >= target).unwrap_or(all.len());
            prop_assert_eq!(block.find(&target, true).unwrap(), not_less);
        }
    }

    #[test]
    fn damaged_index_blocks_never_panic(
        separators in prop::collection::btree_set(prop::collection::vec(0u8..3, 1..6), 0..20),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        tail in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let separators: BTreeSet<Vec<u8>> = separators;
        let mut builder = IndexBuilder::new(Level::Top);
        for (i, separator) in separators.iter().enumerate() {
            builder.add(separator, &entry(i as u64));
        }
        let mut bytes = builder.finish();
        bytes.extend_from_slice(&tail);
        for (at, byte) in flips {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(block) = IndexBlock::parse(Bytes::from(bytes), Level::Top) {
            let _ = block.find(b"\x01", false);
            for i in 0..block.len().min(100) {
                let _ = (block.separator(i), block.entry(i, 1 << 40));
            }
        }
    }
}
