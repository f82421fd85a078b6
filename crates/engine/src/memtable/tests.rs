//! The memtable against a BTreeMap, against threads, and at the edges of its chunks.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use proptest::prelude::*;

use super::arena::{CHUNK_BYTES_FIRST, CHUNK_BYTES_MAX, OWN_CHUNK_BYTES};
use super::*;
use crate::cell::{FAMILY_NONE, TIMESTAMP_MAX, encode_key, row_prefix};
use crate::cursor::{Cursor, Step};
use crate::read::RecordInRow;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn put_key(row: &[u8], family: u32, qualifier: &[u8], timestamp: i64, seq: Seq) -> Vec<u8> {
    let mut key = Vec::new();
    encode_key(row, FamilyId(family), Some(qualifier), timestamp, seq, Kind::Value, &mut key);
    key
}

/// One way or the other.
fn insert(table: &Memtable, key: &[u8], value: &[u8]) -> bool {
    let parsed = KeyView::parse(key).unwrap();
    if value.len().is_multiple_of(2) {
        return table.insert(parsed, value);
    }
    let copied = CopiedValue::new(key.len(), value);
    table.writer().insert_copied(parsed, copied)
}

fn current(cursor: &MemtableCursor) -> Option<(Vec<u8>, Vec<u8>)> {
    cursor.entry().map(|e| {
        assert_eq!(KeyView::parse(e.key.bytes()).unwrap(), e.key);
        assert_eq!(cursor.value_bytes(), e.value);
        (e.key.bytes().to_vec(), e.value.to_vec())
    })
}

fn owned((key, value): (&Vec<u8>, &Vec<u8>)) -> (Vec<u8>, Vec<u8>) {
    (key.clone(), value.clone())
}

fn ready(step: crate::error::Result<Step>) {
    assert_eq!(step.unwrap(), Step::Ready);
}

/// Few distinct bytes, zeros and 0xFF among them, so that rows collide and escapes matter.
fn text() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(prop_oneof![Just(0u8), Just(1), Just(b'a'), Just(0xFF)], 0..4)
}

fn record() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    let kind = prop_oneof![
        6 => Just(Kind::Value), 1 => Just(Kind::Merge), 1 => Just(Kind::RowTombstone),
        1 => Just(Kind::FamilyTombstone), 1 => Just(Kind::ColumnTombstone),
    ];
    let value_len = prop_oneof![8 => 0usize..40, 1 => 4000usize..9000, 1 => 60_000usize..70_000];
    (text(), 1u32..3, text(), 0i64..4, 0u64..50, kind, value_len).prop_map(
        |(row, family, qualifier, timestamp, seq, kind, value_len)| {
            let (family, qualifier, timestamp) = match kind {
                Kind::RowTombstone => (FAMILY_NONE, None, TIMESTAMP_MAX),
                Kind::FamilyTombstone => (FamilyId(family), None, TIMESTAMP_MAX),
                Kind::ColumnTombstone => (FamilyId(family), Some(qualifier), TIMESTAMP_MAX),
                _ => (FamilyId(family), Some(qualifier), timestamp),
            };
            let mut key = Vec::new();
            encode_key(&row, family, qualifier.as_deref(), timestamp, seq, kind, &mut key);
            (key, vec![seq as u8; value_len])
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn cursors_agree_with_a_btreemap(
        seed in any::<u64>(),
        records in proptest::collection::vec(record(), 0..120),
        sort_first in any::<bool>(),
        (start, end) in (text(), text()),
        targets in proptest::collection::vec(text(), 1..12),
    ) {
        let table = Memtable::new(seed);
        let mut records = records;
        if sort_first {
            records.sort();
        }
        let mut model = Model::new();
        for (at, (key, value)) in records.iter().enumerate() {
            if at % 7 == 0 {
                let places = targets.iter().chain(records.iter().map(|(key, _)| key));
                table.fetch_rows(places.map(Vec::as_slice));
            }
            let fresh = !model.contains_key(key);
            prop_assert_eq!(insert(&table, key, value), fresh);
            model.entry(key.clone()).or_insert_with(|| value.clone());
        }
        prop_assert_eq!(table.len(), model.len() as u64);

        let bounds = RowRange::new(start, end);
        let within: Model = model
            .iter()
            .filter(|(key, _)| bounds.contains(&KeyView::parse(key).unwrap().row()))
            .map(owned)
            .collect();
        let mut cursor = table.cursor(bounds);
        prop_assert!(cursor.entry().is_none(), "on no record before the first seek");

        ready(cursor.seek(b""));
        for pair in &within {
            prop_assert_eq!(current(&cursor), Some(owned(pair)));
            ready(cursor.next());
        }
        prop_assert!(cursor.entry().is_none());
        ready(cursor.next());
        prop_assert!(cursor.entry().is_none(), "past the end it stays");

        let probes = targets.iter().map(|t| row_prefix(t)).chain(within.keys().cloned());
        for target in probes.chain([vec![], vec![0xFF; 9]]) {
            ready(cursor.seek(&target));
            prop_assert_eq!(current(&cursor), within.range(target.clone()..).next().map(owned));
        }

        for bound in targets.iter().map(|t| row_prefix(t)).chain([vec![], vec![0xFF; 9]]) {
            let last = if bound.is_empty() {
                within.keys().next_back()
            } else {
                within.range(..bound.clone()).next_back().map(|(key, _)| key)
            };
            let want = last.and_then(|key| {
                let prefix = KeyView::parse(key).unwrap().row_prefix().to_vec();
                within.range(prefix..).next().map(owned)
            });
            ready(cursor.seek_row_before(&bound));
            prop_assert_eq!(current(&cursor), want);
        }

        // All rows, from the last to the first.
        let mut rows: Vec<Vec<u8>> =
            within.keys().map(|k| KeyView::parse(k).unwrap().row_prefix().to_vec()).collect();
        rows.dedup();
        let mut bound = Vec::new();
        while let Some(row) = rows.pop() {
            ready(cursor.seek_row_before(&bound));
            prop_assert_eq!(cursor.entry().unwrap().key.row_prefix(), &row[..]);
            bound = row;
        }
        if !bound.is_empty() {
            ready(cursor.seek_row_before(&bound));
        }
        prop_assert!(bound.is_empty() || cursor.entry().is_none());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Whatever order a row's records came in, and wherever the walk leaves a column.
    #[test]
    fn a_walk_over_a_row_shows_its_records_and_leaves_columns_out(
        seed in any::<u64>(),
        records in proptest::collection::vec((0u8..3, 0u8..4, 0i64..30, 0u64..20), 1..200),
        order in 0..3,
        leave in proptest::collection::vec(0usize..4, 1..9),
    ) {
        let table = Memtable::new(seed);
        let mut records = records;
        match order {
            0 => {}
            1 => records.sort_by_key(|(.., timestamp, seq)| (*timestamp, *seq)),
            _ => records.sort_by_key(|(.., timestamp, seq)| Reverse((*timestamp, *seq))),
        }
        let mut model = Model::new();
        for (row, qualifier, timestamp, seq) in records {
            // Two families, of few columns.
            let family = 1 + u32::from(qualifier % 2);
            let key = put_key(&[b'a', row], family, &[b'q', qualifier], timestamp, seq);
            insert(&table, &key, &key);
            model.insert(key.clone(), key);
        }
        for row in 0..3 {
            let prefix = row_prefix(&[b'a', row]);
            let expected: Vec<_> = model.keys().filter(|key| key.starts_with(&prefix)).collect();
            let mut at = 0;
            let mut walk = table.row(&prefix);
            prop_assert_eq!(walk.is_some(), !expected.is_empty());
            for leave in leave.iter().cycle() {
                let (Some(row), Some(key)) = (&mut walk, expected.get(at)) else { break };
                let key = KeyView::parse(key).unwrap();
                prop_assert_eq!(row.value(), key.bytes());
                prop_assert_eq!(row.seq(), key.seq());
                let column = key.column_prefix().len();
                // To the next record, cell, column, family.
                let shared = [usize::MAX, column + 8, column, key.row_len() + 4][*leave];
                let shared = key.bytes().get(..shared).unwrap_or(key.bytes());
                let next = (at..expected.len()).find(|at| !expected[*at].starts_with(shared));
                at = next.unwrap_or(expected.len());
                let goes_on = match leave {
                    0 => row.advance(),
                    1 => row.advance_cell(),
                    2 => row.advance_column(),
                    _ => row.advance_family(),
                };
                prop_assert_eq!(goes_on, at < expected.len());
                if goes_on {
                    let column = &key.bytes()[..column];
                    prop_assert_eq!(row.is_of_same_column(), expected[at].starts_with(column));
                }
            }
            prop_assert!(at >= expected.len());
        }
    }
}

#[test]
fn an_empty_memtable_shows_nothing_and_is_small() {
    let table = Memtable::new(1);
    assert!(table.is_empty() && table.seq_range().is_none() && table.families().is_empty());
    assert!(table.allocated_bytes() <= 200, "{} bytes", table.allocated_bytes());
    let mut cursor = table.cursor(RowRange::all());
    ready(cursor.seek(b""));
    assert!(cursor.entry().is_none() && cursor.value_bytes().is_empty());
    ready(cursor.seek_row_before(b""));
    assert!(cursor.entry().is_none());
}

#[test]
fn a_key_is_kept_as_it_was_first_inserted() {
    let table = Memtable::new(1);
    let key = put_key(b"r", 1, b"q", 5, 9);
    assert!(insert(&table, &key, b"first"));
    let bytes = table.allocated_bytes();
    for _ in 0..10_000 {
        assert!(!insert(&table, &key, b"second"));
    }
    assert_eq!((table.len(), table.allocated_bytes()), (1, bytes));
    assert_eq!(table.families()[0].entries, 1);
    let mut cursor = table.cursor(RowRange::all());
    ready(cursor.seek(b""));
    assert_eq!(current(&cursor), Some((key, b"first".to_vec())));
}

#[test]
fn figures_count_families_tombstones_and_sequences() {
    let table = Memtable::new(1);
    let mut writer = table.writer();
    let mut add = |family, qualifier: Option<&[u8]>, timestamp, seq, kind| {
        let mut key = Vec::new();
        encode_key(b"r", FamilyId(family), qualifier, timestamp, seq, kind, &mut key);
        assert!(writer.insert(KeyView::parse(&key).unwrap(), b""));
    };
    add(7, Some(b"q"), 50, 10, Kind::Value);
    add(7, Some(b"q"), 30, 4, Kind::Merge);
    add(7, Some(b"q"), 1, 5, Kind::CellTombstone);
    add(3, None, TIMESTAMP_MAX, 8, Kind::FamilyTombstone);
    add(0, None, TIMESTAMP_MAX, 9, Kind::RowTombstone);
    add(3, Some(b"q"), 20, 11, Kind::Value);
    drop(writer);
    assert_eq!((table.len(), table.tombstones(), table.seq_range()), (6, 3, Some((4, 11))));
    let stats = |family, entries, tombstones, timestamp_min| FamilyStats {
        family: FamilyId(family),
        entries,
        tombstones,
        timestamp_min,
    };
    assert_eq!(
        table.families(),
        [stats(0, 1, 1, None), stats(3, 2, 1, Some(20)), stats(7, 3, 1, Some(30))]
    );
}

#[test]
fn memory_is_accounted_within_a_chunk_of_what_is_stored() {
    let table = Memtable::new(3);
    let mut stored = 0;
    for i in 0..20_000u64 {
        let key = put_key(format!("row{:08}", i * 7919 % 20_000).as_bytes(), 1, b"q", 1, i);
        insert(&table, &key, &[1; 100]);
        stored += key.len() as u64 + 100;
    }
    let allocated = table.allocated_bytes();
    assert!(allocated > stored, "{allocated} bytes hold {stored}");
    // Header, a third more than one link, alignment: under 40 bytes per record.
    let most = stored + 20_000 * 40 + CHUNK_BYTES_MAX as u64;
    assert!(allocated < most, "{allocated} bytes hold {stored}");
}

#[test]
fn values_of_every_size_around_the_boundaries_come_back_whole() {
    let table = Memtable::new(5);
    let edges = [SHARED_VALUE_BYTES_MIN, CHUNK_BYTES_FIRST, OWN_CHUNK_BYTES, CHUNK_BYTES_MAX];
    let sizes: Vec<usize> =
        edges.iter().flat_map(|e| (e - 60..e + 3).step_by(7).chain([e - 1, *e])).collect();
    for (i, size) in sizes.iter().enumerate() {
        let key = put_key(format!("{i:04}").as_bytes(), 1, b"q", 1, i as u64);
        insert(&table, &key, &vec![i as u8; *size]);
    }
    insert(&table, &put_key(b"huge", 1, b"q", 1, 1), &vec![0xAB; 20 << 20]);
    let mut cursor = table.cursor(RowRange::all());
    ready(cursor.seek(b""));
    for (i, size) in sizes.iter().enumerate() {
        let value = cursor.value_bytes();
        assert!(value.len() == *size && value.iter().all(|b| *b == i as u8), "record {i}");
        ready(cursor.next());
    }
    assert_eq!(cursor.value_bytes(), vec![0xAB; 20 << 20]);
}

#[test]
fn seeks_that_go_on_from_one_another_find_what_a_fresh_one_does_beside_insertions() {
    let table = Memtable::new(11);
    let key = |n: u64| put_key(&n.to_be_bytes(), 1, b"q", 1, n + 1);
    let mut model = Model::new();
    let mut cursor = table.cursor(RowRange::all());
    let (mut random, mut at) = (1_u64, 0_u64);
    for round in 0..60_000 {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let chance = random >> 33;
        let new = key((chance * 7919) % 1_000_000);
        insert(&table, &new, b"");
        model.insert(new, Vec::new());
        // Mostly on, by strides of every length; now and then back, or past the end.
        at = match round % 23 {
            0 => chance % 1_100_000,
            _ if at > 1_000_000 => 0,
            _ => at + (chance >> 3) % (1 << (chance % 18)),
        };
        let target = key(at);
        ready(cursor.seek(&target));
        let want = model.range(target..).next().map(|(key, _)| key.as_slice());
        assert_eq!(cursor.entry().map(|entry| entry.key.bytes()), want, "round {round}");
        if chance % 5 == 0 {
            ready(cursor.next());
        }
    }
}

#[test]
fn large_values_share_memory_and_outlive_table_and_cursor() {
    let table = Memtable::new(5);
    insert(&table, &put_key(b"a", 1, b"q", 1, 1), &[1; SHARED_VALUE_BYTES_MIN - 1]);
    insert(&table, &put_key(b"b", 1, b"q", 1, 1), &[2; SHARED_VALUE_BYTES_MIN]);
    let mut cursor = table.cursor(RowRange::all());
    ready(cursor.seek(b""));
    let small = cursor.value_bytes();
    assert_ne!(small.as_ptr(), cursor.entry().unwrap().value.as_ptr());
    ready(cursor.next());
    let large: Bytes = cursor.value_bytes();
    assert_eq!(large.as_ptr(), cursor.entry().unwrap().value.as_ptr());
    drop((cursor, table));
    assert!(small.iter().all(|b| *b == 1));
    assert!(large.slice(100..).iter().all(|b| *b == 2));
}

#[test]
fn a_cursor_outlives_its_table() {
    let table = Memtable::new(5);
    for i in 0..1000u64 {
        insert(&table, &put_key(&i.to_be_bytes(), 1, b"q", 1, i), b"v");
    }
    let mut cursor = table.cursor(RowRange::all());
    drop(table);
    ready(cursor.seek(b""));
    let mut seen = 0;
    while cursor.entry().is_some() {
        seen += 1;
        ready(cursor.next());
    }
    assert_eq!(seen, 1000);
}

/// The record of number `n`: row and value say the same number, so a torn record shows.
fn numbered(n: u64) -> (Vec<u8>, Vec<u8>) {
    // An odd multiplier permutes the numbers: insertions fall everywhere.
    let row = n.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes();
    let len = if n.is_multiple_of(97) { 5000 } else { 8 + (n % 60) as usize };
    let value = row.iter().copied().cycle().take(len).collect();
    (put_key(&row, 1, b"q", 1, n + 1), value)
}

#[test]
fn readers_beside_a_writer_see_sorted_whole_records_and_all_finished_ones() {
    const RECORDS: u64 = 30_000;
    let table = Memtable::new(11);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for reader in 0..3u64 {
            let (table, done) = (&table, &done);
            scope.spawn(move || {
                let mut cursor = table.cursor(RowRange::all());
                let mut rounds = 0u64;
                loop {
                    let last_round = done.load(Ordering::Acquire);
                    let finished = table.len();
                    let mut seen = 0u64;
                    let mut previous = Vec::new();
                    ready(cursor.seek(b""));
                    while let Some(entry) = cursor.entry() {
                        let row = entry.key.row();
                        assert!(previous.as_slice() < entry.key.bytes(), "sorted");
                        assert!(entry.value.iter().eq(row.iter().cycle().take(entry.value.len())));
                        assert!(entry.value.len() >= 8);
                        previous = entry.key.bytes().to_vec();
                        seen += 1;
                        ready(cursor.next());
                    }
                    assert!(seen >= finished, "{seen} of {finished}");
                    // A finished record is found by a seek, and is the last row before its successor.
                    if finished > 0 {
                        let (key, value) = numbered((rounds * 7919 + reader) % finished);
                        ready(cursor.seek(&key));
                        assert_eq!(current(&cursor), Some((key.clone(), value)));
                        let mut bound = KeyView::parse(&key).unwrap().row();
                        bound.push(0);
                        ready(cursor.seek_row_before(&row_prefix(&bound)));
                        assert_eq!(cursor.entry().unwrap().key.bytes(), key);
                    }
                    rounds += 1;
                    if last_round {
                        assert_eq!(seen, RECORDS);
                        break;
                    }
                }
            });
        }
        for n in 0..RECORDS {
            let (key, value) = numbered(n);
            assert!(insert(&table, &key, &value));
        }
        done.store(true, Ordering::Release);
    });
}

/// Rows that begin one another, some of them empty, and of zeros.
fn short_row(number: u8) -> Vec<u8> {
    vec![number / 8 % 7; usize::from(number % 8)]
}

/// Sequence of the record that a row begins with.
fn begins_with(table: &Memtable, row: &[u8]) -> Option<Seq> {
    table.row(&row_prefix(row)).map(|record| record.seq())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// In memtables so large that they remember where rows begin, and forget it as they grow.
    #[test]
    fn a_row_begins_with_its_first_record_whatever_is_inserted_before_it(
        seed: u64,
        records in proptest::collection::vec((0u8..200, 0u8..3, 0i64..30), 1..1500),
        value_len in prop::sample::select(vec![100usize, 2500]),
    ) {
        let table = Memtable::new(seed);
        let mut model: BTreeMap<Vec<u8>, BTreeMap<Vec<u8>, Seq>> = BTreeMap::new();
        let first = |records: &BTreeMap<Vec<u8>, Seq>| *records.values().next().unwrap();
        for (seq, (number, qualifier, timestamp)) in (1..).zip(&records) {
            let row = short_row(*number);
            let key = put_key(&row, 1, &[*qualifier], *timestamp, seq);
            let remembers_rows = table.list.hints_bytes() > 0;
            prop_assert!(insert(&table, &key, &vec![0; value_len]));
            let records = model.entry(row.clone()).or_default();
            records.insert(key, seq);
            prop_assert_eq!(begins_with(&table, &row), Some(first(records)));
            if remembers_rows && first(records) == seq && value_len == 100 {
                prop_assert!(table.list.remembers(&row_prefix(&row)));
            }
        }
        for row in (0..200).map(short_row) {
            prop_assert_eq!(begins_with(&table, &row), model.get(&row).map(first));
        }
    }
}

#[test]
fn readers_beside_a_writer_find_no_row_to_begin_after_a_finished_insertion() {
    const ROWS: u64 = 50;
    const ROUNDS: u64 = 400;
    let table = Memtable::new(17);
    // Per row, the last sequence whose insertion is over; it has as many records as rounds.
    let finished: Vec<AtomicU64> = (0..ROWS).map(|_| AtomicU64::new(0)).collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut last_round = false;
                while !last_round {
                    last_round = done.load(Ordering::Acquire);
                    for (row, finished) in (0..ROWS).zip(&finished) {
                        let finished = finished.load(Ordering::Acquire);
                        let prefix = row_prefix(&row.to_be_bytes());
                        let mut record = table.row(&prefix);
                        let begins = record.as_ref().map_or(0, |record| record.seq());
                        assert!(begins >= finished, "row {row}: {begins}, after {finished}");
                        let mut records = u64::from(record.is_some());
                        while record.as_mut().is_some_and(MemtableRow::advance) {
                            records += 1;
                        }
                        assert!(records >= finished / ROWS, "row {row}: {records} records");
                    }
                }
            });
        }
        for seq in 1..=ROWS * ROUNDS {
            let row = seq % ROWS;
            // Each comes before those of its row before it.
            assert!(insert(&table, &put_key(&row.to_be_bytes(), 1, b"q", 1, seq), &[0; 200]));
            finished[row as usize].store(seq, Ordering::Release);
        }
        done.store(true, Ordering::Release);
    });
    assert!(table.allocated_bytes() > 4 << 20, "it has grown");
}

#[test]
fn what_is_remembered_of_rows_is_a_thirtieth_of_a_memtable_and_nothing_of_a_small_one() {
    let table = Memtable::new(19);
    let mut remembered = 0;
    for n in 0..50_000 {
        let key = numbered(n).0;
        assert!(insert(&table, &key, &[0; 600]));
        let hints = table.list.hints_bytes();
        assert!(hints <= table.allocated_bytes() / 30, "{hints} of {}", table.allocated_bytes());
        let is_remembered = table.list.remembers(KeyView::parse(&key).unwrap().row_prefix());
        remembered += u64::from(is_remembered);
        assert!(n >= 100 || hints == 0, "small");
    }
    assert!(table.list.hints_bytes() > 500_000, "it has grown");
    // All but those before the first table, and those with which each began.
    assert!(remembered > 49_500, "{remembered} rows");
}

#[test]
fn writers_on_several_threads_take_turns() {
    const EACH: u64 = 3000;
    let table = Memtable::new(13);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let table = &table;
            scope.spawn(move || {
                for n in 0..EACH {
                    let (key, value) = numbered(n * 4 + thread);
                    assert!(insert(table, &key, &value));
                }
            });
        }
    });
    assert_eq!((table.len(), table.seq_range()), (4 * EACH, Some((1, 4 * EACH))));
    let mut cursor = table.cursor(RowRange::all());
    for n in 0..4 * EACH {
        let (key, value) = numbered(n);
        ready(cursor.seek(&key));
        assert_eq!(current(&cursor), Some((key, value)));
    }
}
