//! Data blocks against the records that were put into them.

use super::super::data_builder::DataBlockBuilder;
use super::*;
use crate::cell::KeyView;
use crate::sst::testing::{Sample, keys_around, samples};
use proptest::prelude::*;

fn build(records: &[Sample]) -> DataBlock {
    let mut builder = DataBlockBuilder::new();
    for record in records {
        builder.add(record.view(), &record.value);
    }
    DataBlock::parse(Bytes::from(builder.finished())).unwrap()
}

fn key_of(block: &DataBlock, record: &Record) -> Vec<u8> {
    let mut key = Vec::new();
    block.push_row(record, &mut key);
    block.push_column(record, &mut key).unwrap();
    encode_suffix(record.timestamp, record.seq, record.origin, record.kind, &mut key);
    key
}

fn walk(block: &DataBlock) -> Vec<(Vec<u8>, Bytes)> {
    let mut out = Vec::new();
    let mut next = Some(block.first().unwrap());
    while let Some(record) = next {
        out.push((key_of(block, &record), block.value_bytes(&record)));
        next = block.after(&record).unwrap();
    }
    out
}

/// Decodes everything that can be reached; must not panic whatever the bytes are.
fn walk_anything(bytes: Vec<u8>, target: &[u8]) {
    let Ok(block) = DataBlock::parse(Bytes::from(bytes)) else { return };
    let mut key = Vec::new();
    let _ = block.last_row_before(target, &mut key);
    let _ = (block.seek(target), block.find_row(target));
    let mut next = block.first().ok();
    let mut steps = 0;
    while let Some(record) = next {
        block.push_row(&record, &mut key);
        let _ = block.push_column(&record, &mut key);
        let _ = (block.value(&record), block.value_bytes(&record));
        let _ = block.qualifier_bytes(&record);
        key.clear();
        steps += 1;
        next = if steps < 10_000 { block.after(&record).ok().flatten() } else { None };
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_block_returns_and_finds_what_was_added(
        records in samples(1..200),
        probes in prop::collection::vec(any::<prop::sample::Index>(), 8),
    ) {
        let block = build(&records);
        let expected: Vec<_> =
            records.iter().map(|r| (r.key.clone(), Bytes::from(r.value.clone()))).collect();
        prop_assert_eq!(&walk(&block), &expected);
        prop_assert_eq!(block.records() as usize, records.len());
        for probe in probes {
            for target in keys_around(&probe.get(&records).key) {
                let want = expected.iter().find(|(k, _)| *k >= target).map(|(k, _)| k.clone());
                let got = block.seek(&target).unwrap().map(|r| key_of(&block, &r));
                prop_assert_eq!(got, want, "target {:?}", target);
            }
            for row in keys_around(&probe.get(&records).key) {
                let is_row = |k: &&Vec<u8>| KeyView::parse(k).unwrap().row_prefix() == row;
                let want = expected.iter().map(|(k, _)| k).find(is_row).cloned();
                let got = block.find_row(&row).unwrap().map(|r| key_of(&block, &r));
                prop_assert_eq!(got, want, "row {:?}", row);
            }
            let bound = probe.get(&records).view().row_prefix().to_vec();
            let want = records
                .iter()
                .map(|r| r.view().row_prefix().to_vec())
                .rfind(|row| *row < bound);
            let mut row = Vec::new();
            let found = block.last_row_before(&bound, &mut row).unwrap();
            prop_assert_eq!(found.then_some(row), want);
        }
    }

    #[test]
    fn damaged_blocks_never_panic(
        records in samples(1..60),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut builder = DataBlockBuilder::new();
        for record in &records {
            builder.add(record.view(), &record.value);
        }
        let mut bytes = builder.finished();
        for (at, byte) in flips {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        walk_anything(bytes, &records[records.len() / 2].key);
    }

    #[test]
    fn random_blocks_never_panic(tail in prop::collection::vec(any::<u8>(), 0..300)) {
        walk_anything(tail.clone(), b"target");
        let mut bytes = vec![LAYOUT, 2, 0, 0];
        bytes.extend_from_slice(&[2, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0]);
        bytes.extend_from_slice(&((tail.len() / 2) as u32).to_le_bytes());
        bytes.extend_from_slice(&tail);
        walk_anything(bytes, b"target");
    }
}
