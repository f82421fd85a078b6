//! Filter partitions: what they may never deny, and how often they are wrong.

use super::*;
use proptest::prelude::*;

#[test]
fn false_positives_stay_below_their_bound() {
    for (bits, bound_percent) in [(10, 1.6), (16, 0.3), (6, 7.0)] {
        let entries: Vec<u64> = (0..20_000u64).map(mix64).collect();
        let filter = FilterBlock::parse(Bytes::from(bloom(&entries, bits))).unwrap();
        let contains = |entry| filter.may_contain(&Ask::Row(entry));
        assert!(entries.iter().all(|e| contains(*e)));
        let wrong = (20_000..220_000u64).filter(|i| contains(mix64(*i))).count() as f64;
        let percent = wrong / 200_000.0 * 100.0;
        assert!(percent < bound_percent, "{bits} bits: {percent} %");
    }
}

fn bloom(entries: &[u64], bits_per_key: u32) -> Vec<u8> {
    build_bloom(entries, bits_per_key, &[], &[])
}

fn form(kind: FilterKind, partition_bytes: usize) -> FilterForm {
    FilterForm { kind, bits_per_key: 10, partition_bytes }
}

#[test]
fn a_full_partition_takes_at_most_a_page_and_nearly_all_of_it() {
    for kind in [FilterKind::Bloom, FilterKind::Fuse8, FilterKind::Fuse16] {
        for lists in [0, 1, COMMON_COLUMNS_MAX as u32] {
            let form = form(kind, 4096);
            let list: Vec<u32> = (0..lists).collect();
            let count = form.entries_max(2 * lists as usize);
            let mut entries: Vec<u64> = (0..count as u64).map(mix64).collect();
            let block = form.build(&mut entries, &list, &list);
            let len = block.len() + TRAILER_LEN;
            assert!((3600..=4096).contains(&len), "{kind:?} {lists}: {len}");
            let filter = FilterBlock::parse(Bytes::from(block)).unwrap();
            assert!(entries.iter().all(|e| filter.may_contain(&Ask::Row(*e))));
            assert_eq!(filter.kind(), kind as u8 + 1, "no other kind stands in");
        }
    }
}

#[test]
fn a_partition_too_small_for_a_fuse_filter_is_a_bloom_filter() {
    let mut entries: Vec<u64> = (0..100).map(mix64).collect();
    let block = form(FilterKind::Fuse8, 64).build(&mut entries, &[], &[]);
    let filter = FilterBlock::parse(Bytes::from(block)).unwrap();
    assert_eq!(filter.kind(), KIND_BLOCKED_BLOOM);
    assert!(entries.iter().all(|e| filter.may_contain(&Ask::Row(*e))));
}

#[test]
fn listed_columns_answer_for_every_row_that_is_there() {
    let rows: Vec<u64> = (0..100).map(mix64).collect();
    let ids = [column_id(FamilyId(1), b"a"), column_id(FamilyId(1), b"b")];
    let mut columns = ids.map(listed);
    columns.sort_unstable();
    for kind in [FilterKind::Bloom, FilterKind::Fuse8, FilterKind::Fuse16] {
        let block = form(kind, 4096).build(&mut rows.clone(), &[1], &columns);
        let filter = FilterBlock::parse(Bytes::from(block)).unwrap();
        let family = |row, family| filter.may_contain(&Ask::Family { row, family });
        let column = |row, column| filter.may_contain(&Ask::Column { row, column });
        for row in &rows {
            assert!(filter.may_contain(&Ask::Row(*row)) && family(*row, FamilyId(1)));
            assert!(column(*row, ids[0]) && column(*row, ids[1]));
            assert!(!family(*row, FamilyId(2)));
            assert!(!column(*row, column_id(FamilyId(1), b"c")));
            assert!(!column(*row, column_id(FamilyId(2), b"a")));
        }
        let absent = (1000..2000).map(mix64).filter(|row| column(*row, ids[0])).count();
        assert!(absent < 40, "{kind:?}: {absent}");
    }
}

/// The test vector of docs/formats-sst.md.
#[test]
fn the_documented_entries_and_bits_are_what_is_computed() {
    let row = row_entry(b"ab\x00\x01");
    let family = FamilyId(1);
    let column = column_id(family, b"q");
    let entries = [
        row,
        Ask::Family { row, family }.entry(),
        column,
        Ask::Column { row, column }.entry(),
        row_tombstone_entry(row),
        family_tombstone_entry(row, family),
    ];
    assert_eq!(
        entries.map(|e| format!("{e:016x}")),
        [
            "1d4fd0760be7105c",
            "b29b4feb19b0e47d",
            "50482f53770c0ff9",
            "ccd3df0385b3de8d",
            "435b6ce7c6c34a73",
            "96bc7c1913bbb47a",
        ]
        .map(str::to_owned)
    );
    let filter = bloom(&[row, entries[3]], 10);
    let set: Vec<usize> =
        (0..512).filter(|b| filter[HEADER_LEN + b / 8] & (1 << (b % 8)) != 0).collect();
    assert_eq!(set, [32, 56, 122, 130, 242, 251, 256, 285, 343, 378, 400, 511]);
}

fn ask_everything(filter: &FilterBlock, entry: u64) {
    let family = FamilyId(entry as u32);
    for ask in [
        Ask::Row(entry),
        Ask::Tombstone(entry),
        Ask::Family { row: entry, family },
        Ask::Column { row: entry, column: entry },
    ] {
        let _ = filter.may_contain(&ask);
    }
}

proptest! {
    #[test]
    fn random_filters_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), entry: u64) {
        if let Ok(filter) = FilterBlock::parse(Bytes::from(bytes.clone())) {
            ask_everything(&filter, entry);
        }
        for kind in [FilterKind::Bloom, FilterKind::Fuse8, FilterKind::Fuse16] {
            let valid = form(kind, 4096).build(&mut vec![entry], &[7], &[9, 10]);
            let mut damaged = valid.clone();
            damaged.truncate(bytes.len());
            for (at, byte) in bytes.iter().enumerate().take(24).step_by(5) {
                if let Some(slot) = damaged.get_mut(at) {
                    *slot = *byte;
                }
            }
            if let Ok(filter) = FilterBlock::parse(Bytes::from(damaged)) {
                ask_everything(&filter, entry);
            }
            let filter = FilterBlock::parse(Bytes::from(valid)).unwrap();
            prop_assert!(filter.may_contain(&Ask::Row(entry)));
        }
    }
}
