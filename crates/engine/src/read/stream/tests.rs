use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::aside::Helper;
use crate::cache::{BlockCache as _, QuickBlockCache};
use crate::cell::{
    FAMILY_OWN_MIN, FamilyId, Mutation, SEQ_MAX, TIMESTAMP_MAX, TimestampRange, row_prefix,
};
use crate::error::ErrorKind;
use crate::io::Files as _;
use crate::memtable::Memtable;
use crate::random::mix64;
use crate::read::testing::model::{
    Event, History, any_history, any_qualifier, any_range, any_timestamps, project, record, schema,
};
use crate::read::testing::{NoIo, Record, VecCursor, cursors, read};
use crate::read::{FamilyProjection, QualifierRange, Qualifiers};
use crate::schema::FamilyOptions;
use crate::sst::testing::{TestFiles, TestIo};
use crate::sst::{Compression, CursorOptions, SstOptions, SstReader, SstWriter};
use crate::tablet::TabletId;

fn spec(snapshot: Seq) -> ReadSpec {
    ReadSpec {
        snapshot,
        schema: schema(None),
        excised: Arc::from([]),
        range: RowRange::all(),
        projection: Projection::all(),
        reverse: false,
        rows_hint: None,
        row_bytes_max: u64::MAX,
        wide_tombstones: true,
    }
}

fn run(records: Vec<Record>) -> Arc<Vec<Record>> {
    let mut records = records;
    records.sort();
    Arc::new(records)
}

/// Deals the records of a history to runs; with a third number under 2 also to the next run.
fn deal(history: &History, hands: &[(u8, u8)]) -> Vec<Arc<Vec<Record>>> {
    let mut runs = vec![Vec::new(); 4];
    for (i, record) in history.records(|_| true).into_iter().enumerate() {
        let (hand, twice) = hands[i % hands.len()];
        let hand = hand as usize % runs.len();
        if twice < 2 {
            let next = (hand + 1) % runs.len();
            runs[next].push(record.clone());
        }
        runs[hand].push(record);
    }
    runs.into_iter().map(run).collect()
}

fn any_projection() -> impl Strategy<Value = Projection> {
    let qualifiers = prop_oneof![
        Just(Vec::new()),
        any_qualifier().prop_map(|q| vec![(Bound::Included(q.clone()), Bound::Included(q))]),
        any_qualifier().prop_map(|q| {
            let end = Bytes::from([q.as_ref(), b"\0"].concat());
            vec![(Bound::Included(q), Bound::Excluded(end))]
        }),
        any_qualifier().prop_map(|q| {
            vec![
                (Bound::Unbounded, Bound::Excluded(q.clone())),
                (Bound::Excluded(q), Bound::Unbounded),
            ]
        }),
        (any_qualifier(), any_qualifier()).prop_map(|(a, b)| {
            let (a, b) = (a.clone().min(b.clone()), a.max(b));
            let mut ranges: Vec<QualifierRange> =
                vec![(Bound::Included(a.clone()), Bound::Included(a.clone()))];
            if a < b {
                ranges.push((Bound::Included(b.clone()), Bound::Included(b)));
            }
            ranges
        }),
    ];
    let families = vec(qualifiers, 4).prop_flat_map(|qualifiers| {
        vec(any::<bool>(), 4).prop_map(move |wanted| {
            (1..)
                .zip(qualifiers.clone())
                .zip(wanted)
                .filter(|(_, wanted)| *wanted)
                .map(|((f, qualifiers), _)| FamilyProjection {
                    family: FamilyId(f),
                    qualifiers: qualifiers.into(),
                })
                .collect::<Vec<_>>()
        })
    });
    let limit = || prop_oneof![2 => Just(u32::MAX), 3 => 0..4_u32];
    let timestamps = prop_oneof![Just(TimestampRange::ALL), any_timestamps()];
    (prop::option::of(families), timestamps, limit(), limit()).prop_map(
        |(families, timestamps, versions_max, cells_per_row_max)| Projection {
            families,
            timestamps,
            versions_max,
            cells_per_row_max,
            values: true,
        },
    )
}

/// The history where of families only whole columns are deleted, and cells one at a time, as garbage collection does.
fn without_wide_tombstones(mut history: History) -> History {
    for event in &mut history.0 {
        let Event::Mutate(_, Mutation::DeleteCells { timestamps, .. }) = event else { continue };
        let TimestampRange { start, end } = timestamps;
        if *end != TIMESTAMP_MAX {
            *start = *end - 1;
        } else if *start > 0 {
            *end = *start + 1;
        }
    }
    history
}

proptest! {
    #[test]
    fn reads_show_what_the_history_says(
        history in any_history(),
        no_wide in any::<bool>(),
        hands in vec((any::<u8>(), 0..10_u8), 1..20),
        range in prop_oneof![Just(RowRange::all()), any_range()],
        projection in any_projection(),
        snapshot in any::<prop::sample::Index>(),
        blocking in any::<bool>(),
    ) {
        let history = if no_wide { without_wide_tombstones(history) } else { history };
        let runs = deal(&history, &hands);
        let snapshot = snapshot.index(history.0.len() + 1) as Seq;
        for snapshot in [snapshot, SEQ_MAX] {
            let mut spec = ReadSpec {
                excised: history.excised(),
                wide_tombstones: !no_wide,
                ..spec(snapshot)
            };
            let mut rows = history.rows(snapshot, &spec.schema);

            prop_assert_eq!(&read(&runs, &spec, blocking).unwrap(), &rows);
            for row in &rows {
                let point = ReadSpec { range: RowRange::row(&row.key), ..spec.clone() };
                prop_assert_eq!(&read(&runs, &point, blocking).unwrap(), std::slice::from_ref(row));
            }

            spec.range = range.clone();
            spec.projection = projection.clone();
            rows.retain(|row| range.contains(&row.key));
            let mut rows = project(rows, &projection);
            prop_assert_eq!(&read(&runs, &spec, blocking).unwrap(), &rows);
            spec.reverse = true;
            rows.reverse();
            prop_assert_eq!(&read(&runs, &spec, blocking).unwrap(), &rows);
        }
    }
}

/// Where a run of records lies.
#[derive(Debug, Clone, Copy)]
enum Place {
    Vector,
    Memtable,
    /// With blocks of so many bytes.
    Sst(usize),
}

fn any_place() -> impl Strategy<Value = Place> {
    let sst = prop_oneof![Just(32), Just(256), Just(4096)];
    prop_oneof![1 => Just(Place::Vector), 3 => Just(Place::Memtable), 3 => sst.prop_map(Place::Sst)]
}

fn cursor_at(place: Place, id: u64, run: &Arc<Vec<Record>>, range: &RowRange) -> Box<dyn Cursor> {
    let records = run.iter().map(|(key, value)| (KeyView::parse(key).unwrap(), value));
    match place {
        Place::Sst(block_bytes) if !run.is_empty() => {
            let (files, path) = (TestFiles::default(), Path::new("/1.sst"));
            let options =
                SstOptions { block_bytes, read_bytes: block_bytes, ..SstOptions::default() };
            let mut writer = SstWriter::new(files.create(path).unwrap(), path, id, options, 0);
            for (key, value) in records {
                writer.add(key, value).unwrap();
            }
            writer.finish().unwrap();
            let cache = Arc::new(QuickBlockCache::new(1 << 20));
            let reader = SstReader::open(&files, path, id, cache).unwrap();
            let bounds = range.clone();
            Box::new(reader.cursor(CursorOptions { bounds, ..CursorOptions::default() }))
        }
        Place::Memtable => {
            let memtable = Memtable::new(1);
            for (key, value) in records {
                memtable.insert(key, value);
            }
            Box::new(memtable.cursor(range.clone()))
        }
        _ => Box::new(VecCursor::shared(Arc::clone(run), false)),
    }
}

proptest! {
    #[test]
    fn rows_of_memtables_and_ssts_show_what_the_history_says(
        history in any_history(),
        no_wide in any::<bool>(),
        hands in vec((any::<u8>(), 0..10_u8), 1..20),
        places in vec(any_place(), 4),
        range in prop_oneof![Just(RowRange::all()), any_range()],
        projection in prop_oneof![Just(Projection::all()), any_projection()],
        snapshot in any::<prop::sample::Index>(),
        rows_hint in prop::option::of(1..4_usize),
        reverse in any::<bool>(),
    ) {
        let history = if no_wide { without_wide_tombstones(history) } else { history };
        let runs = deal(&history, &hands);
        let snapshot = snapshot.index(history.0.len() + 1) as Seq;
        let spec = ReadSpec {
            excised: history.excised(),
            range: range.clone(),
            projection: projection.clone(),
            rows_hint,
            reverse,
            wide_tombstones: !no_wide,
            ..spec(snapshot)
        };
        let mut rows = history.rows(snapshot, &spec.schema);
        rows.retain(|row| range.contains(&row.key));
        let mut rows = project(rows, &projection);
        if reverse {
            rows.reverse();
        }
        let places = places.iter().zip(1..).zip(&runs);
        let cursors = places.map(|((place, id), run)| cursor_at(*place, id, run, &range));
        let io = Arc::new(TestIo::default());
        let mut stream = RowStream::new(cursors.collect(), spec, io, Box::new(()));
        let mut found = Vec::new();
        while let Some(row) = stream.next().now_or_never().expect("files are in memory").unwrap() {
            found.push(row);
        }
        found.retain(|row| !row.cells.is_empty());
        prop_assert_eq!(found, rows);
    }
}

/// Mostly additions to few cells, of the families with aggregates.
fn any_addition() -> impl Strategy<Value = Event> {
    let qualifier = || prop::sample::select(vec![&b"p"[..], b"q"]).prop_map(Bytes::from_static);
    let merge = (2..=3_u32, qualifier(), 0..2_i64, any::<i8>());
    let merge = merge.prop_map(|(family, qualifier, timestamp, n)| Mutation::Merge {
        family: FamilyId(family),
        qualifier,
        timestamp,
        operand: Bytes::copy_from_slice(&i64::from(n).to_be_bytes()),
    });
    let delete = (2..=3_u32, qualifier(), any_timestamps());
    let delete = delete.prop_map(|(family, qualifier, timestamps)| Mutation::DeleteCells {
        family: FamilyId(family),
        qualifier,
        timestamps,
    });
    let mutate = |mutation| Event::Mutate(Bytes::from_static(b"a"), mutation);
    prop_oneof![
        30 => merge.prop_map(mutate),
        1 => delete.prop_map(mutate),
        1 => (2..=3_u32).prop_map(move |f| mutate(Mutation::DeleteFamily { family: FamilyId(f) })),
        1 => Just(mutate(Mutation::DeleteRow)),
        1 => any_range().prop_map(Event::Excise),
    ]
}

proptest! {
    #[test]
    fn operands_that_were_added_up_before_change_no_read(
        events in vec(any_addition(), 1..120),
        cut in any::<prop::sample::Index>(),
        mut reads in vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..12),
    ) {
        let history = History(events);
        let cut = cut.index(history.0.len() + 1) as Seq;
        let memtables = [Memtable::new(1), Memtable::new(2)];
        let mut written = 0;
        reads.sort_by_key(|(until, _)| until.index(history.0.len()));
        for (until, snapshot) in reads {
            let until = until.index(history.0.len()) as Seq + 1;
            for seq in written + 1..=until {
                for (key, value) in history.records(|of| of == seq) {
                    memtables[usize::from(seq > cut)].insert(KeyView::parse(&key).unwrap(), &value);
                }
            }
            written = written.max(until);
            let seen = History(history.0[..written as usize].to_vec());
            for snapshot in [snapshot.index(written as usize + 1) as Seq, SEQ_MAX] {
                let spec = ReadSpec { excised: seen.excised(), ..spec(snapshot) };
                let rows = seen.rows(snapshot, &spec.schema);
                let cursor = |memtable: &Arc<Memtable>| {
                    Box::new(memtable.cursor(RowRange::all())) as Box<dyn Cursor>
                };
                let cursors = memtables.iter().rev().map(cursor).collect();
                let mut stream = RowStream::new(cursors, spec, Arc::new(NoIo), Box::new(()));
                let mut found = Vec::new();
                while let Some(row) = stream.next().now_or_never().unwrap().unwrap() {
                    found.push(row);
                }
                found.retain(|row| !row.cells.is_empty());
                prop_assert_eq!(found, rows);
            }
        }
    }
}

fn put(row: &str, family: u32, qualifier: &str, timestamp: i64, value: &[u8], seq: Seq) -> Record {
    let put = Mutation::Put {
        family: FamilyId(family),
        qualifier: Bytes::copy_from_slice(qualifier.as_bytes()),
        timestamp,
        value: Bytes::copy_from_slice(value),
    };
    record(row.as_bytes(), &put, seq)
}

fn merge(row: &str, family: u32, operand: &[u8], seq: Seq) -> Record {
    let merge = Mutation::Merge {
        family: FamilyId(family),
        qualifier: Bytes::from_static(b"q"),
        timestamp: 1,
        operand: Bytes::copy_from_slice(operand),
    };
    record(row.as_bytes(), &merge, seq)
}

fn open(records: Vec<Record>, spec: ReadSpec) -> RowStream {
    RowStream::new(cursors(&[run(records)], false), spec, Arc::new(NoIo), Box::new(()))
}

fn step(stream: &mut RowStream) -> Result<Option<Row>> {
    stream.next().now_or_never().expect("nothing to wait for")
}

#[test]
fn the_stream_can_move_between_threads() {
    fn is_send<T: Send>(_: &T) {}
    let mut stream = open(Vec::new(), spec(SEQ_MAX));
    is_send(&stream);
    is_send(&stream.next());
}

#[test]
fn pins_live_as_long_as_the_stream() {
    let pin = Arc::new(());
    let stream = RowStream::new(Vec::new(), spec(1), Arc::new(NoIo), Box::new(Arc::clone(&pin)));
    assert_eq!(Arc::strong_count(&pin), 2);
    drop(stream);
    assert_eq!(Arc::strong_count(&pin), 1);
}

#[test]
fn an_excised_range_hides_its_own_sequence_and_no_newer_one() {
    let records = vec![put("a", 1, "q", 1, b"v", 5), put("b", 1, "q", 1, b"v", 6)];
    let excised = Arc::from([Excised { range: RowRange::all(), seq: 5 }]);
    let rows = read(&[run(records)], &ReadSpec { excised, ..spec(9) }, false).unwrap();
    assert_eq!(rows.iter().map(|r| r.key.as_ref()).collect::<Vec<_>>(), [b"b"]);
}

#[test]
fn a_malformed_operand_is_corruption_that_names_the_row_and_ends_the_stream() {
    let records = vec![
        put("a", 1, "q", 1, b"v", 1),
        merge("b", 2, b"short", 2),
        put("c", 1, "q", 1, b"v", 3),
    ];
    let mut stream = open(records, spec(SEQ_MAX));
    assert_eq!(step(&mut stream).unwrap().unwrap().key, "a");
    let error = step(&mut stream).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption);
    assert!(error.message().contains("row \"b\""), "{error}");
    assert!(step(&mut stream).unwrap().is_none());
}

#[test]
fn an_operand_over_a_malformed_base_is_corruption() {
    let records = vec![merge("b", 2, &[0; 8], 2), put("b", 2, "q", 1, b"short", 1)];
    assert_eq!(step(&mut open(records, spec(9))).unwrap_err().kind(), ErrorKind::Corruption);
}

#[test]
fn an_operand_in_a_family_without_aggregate_is_corruption() {
    let mut stream = open(vec![merge("b", 1, &[0; 8], 2)], spec(9));
    assert_eq!(step(&mut stream).unwrap_err().kind(), ErrorKind::Corruption);
}

#[test]
fn a_value_elsewhere_with_a_malformed_pointer_is_corruption() {
    let mut record = put("a", 1, "q", 1, b"v", 1);
    *record.0.last_mut().unwrap() = crate::cell::Kind::ValueElsewhere as u8;
    let error = step(&mut open(vec![record], spec(9))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption);
    assert!(error.message().contains("row \"a\""), "{error}");
}

#[test]
fn a_row_over_the_limit_is_refused_and_one_at_the_limit_is_not() {
    let records = || vec![put("a", 1, "q", 2, &[7; 100], 1), put("a", 1, "q", 1, &[7; 100], 2)];
    let cell = (size_of::<crate::cell::Cell>() + 101) as u64;
    let limit = |row_bytes_max| ReadSpec { row_bytes_max, ..spec(9) };
    assert!(step(&mut open(records(), limit(2 * cell))).unwrap().is_some());
    let error = step(&mut open(records(), limit(2 * cell - 1))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::RowTooLarge);
    assert!(error.message().contains(&(2 * cell - 1).to_string()), "{error}");
    assert_eq!(error.large_row(), Some(&b"a"[..]), "who reads on can leave it out");
}

#[test]
fn values_that_nobody_looks_at_count_for_nothing() {
    let records = vec![put("a", 1, "q", 2, &[7; 100], 1), put("a", 1, "q", 1, &[7; 100], 2)];
    let projection = Projection { values: false, ..Projection::all() };
    let cells = 2 * (size_of::<crate::cell::Cell>() + 1) as u64;
    let row_bytes_max = row_prefix(b"a").len() as u64 + cells;
    let row = step(&mut open(records, ReadSpec { projection, row_bytes_max, ..spec(9) }));
    let cells = row.unwrap().unwrap().cells;
    assert!(cells.len() == 2 && cells.iter().all(|cell| cell.value.is_empty()));
}

/// Rows without visible cells, each of `per_row` records, then a row with one.
fn hidden_rows(rows: u64, per_row: u64) -> Vec<Record> {
    let mut records = vec![put("z", 1, "q", 1, b"v", 1)];
    for row in 0..rows {
        for i in 0..per_row {
            // Family 2 is newer than the snapshot, so that every record is looked at.
            records.push(put(&format!("r{row:06}"), 2, &i.to_string(), 1, b"v", 100));
        }
    }
    records
}

#[test]
fn rows_without_cells_mark_progress_once_per_limit_of_records() {
    for reverse in [false, true] {
        let rows = 2 * SCAN_PROGRESS_RECORDS + 10;
        let mut stream = open(hidden_rows(rows, 1), ReadSpec { reverse, ..spec(9) });
        let mut marks = Vec::new();
        let mut found = Vec::new();
        while let Some(row) = step(&mut stream).unwrap() {
            if row.cells.is_empty() { marks.push(row.key) } else { found.push(row.key) }
        }
        assert_eq!(found, ["z"]);
        assert_eq!(marks.len(), 2, "{marks:?}");
        let expected =
            if reverse { rows - SCAN_PROGRESS_RECORDS } else { SCAN_PROGRESS_RECORDS - 1 };
        assert_eq!(marks[0], format!("r{expected:06}"));
    }
}

/// A stream over one memtable.
fn of_memtable(records: &[Record], spec: ReadSpec) -> (Arc<Memtable>, RowStream) {
    let memtable = Memtable::new(1);
    for (key, value) in records {
        memtable.insert(KeyView::parse(key).unwrap(), value);
    }
    let cursors: Vec<Box<dyn Cursor>> = vec![Box::new(memtable.cursor(RowRange::all()))];
    (memtable, RowStream::new(cursors, spec, Arc::new(NoIo), Box::new(())))
}

/// Of a thread that has other things to do.
#[derive(Default)]
struct Busy(AtomicU64);

impl Helper for Busy {
    fn carry_out(&self, _: Option<TabletId>, work: Box<dyn FnOnce() + Send>) {
        work();
    }

    fn patience(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }

    fn others_first(&self) -> BoxFuture<'static, ()> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Box::pin(std::future::ready(()))
    }
}

#[test]
fn others_of_the_thread_have_turns_within_a_long_row_and_none_for_short_ones() {
    const RECORDS: u64 = 20_000;
    let cell = |row: &str, n: u64| put(row, 1, &format!("{n:05}"), 1, b"v", 1);
    let long: Vec<_> = (0..RECORDS).map(|n| cell("a", n)).collect();
    let additions = (1..=RECORDS).map(|seq| merge("a", 2, &1_i64.to_be_bytes(), seq)).collect();
    let short = (0..RECORDS).map(|n| cell(&format!("{n:05}"), 0)).collect();
    let row = || RowRange::row(b"a");
    for (records, range, rows, cells, turns) in [
        (&long, RowRange::all(), 1, RECORDS as usize, 9),
        (&long, row(), 1, RECORDS as usize, 9),
        (&additions, row(), 1, 1, 9),
        (&short, RowRange::all(), RECORDS as usize, RECORDS as usize, 0),
    ] {
        let busy = Arc::new(Busy::default());
        let _lent = aside::lend(Arc::clone(&busy) as _);
        let spec = ReadSpec { range, wide_tombstones: false, ..spec(RECORDS) };
        let (_memtable, mut stream) = of_memtable(records, spec);
        let (mut found, mut seen) = (0, 0);
        while let Some(row) = step(&mut stream).unwrap() {
            found += 1;
            seen += row.cells.len();
        }
        assert_eq!((found, seen, busy.0.load(Ordering::Relaxed)), (rows, cells, turns));
    }
}

#[test]
fn others_of_the_thread_have_turns_among_many_small_rows_that_show_nothing() {
    const ROWS: u64 = 8_000;
    let name = |row: u64| format!("r{row:05}");
    let deleted = |row| record(name(row).as_bytes(), &Mutation::DeleteRow, 1);
    let deleted: Vec<_> = (0..ROWS).map(deleted).collect();
    let plain: Vec<_> = (0..ROWS).map(|row| put(&name(row), 1, "q", 1, b"v", 1)).collect();
    let everything = [Excised { range: RowRange::all(), seq: 2 }];
    let all = Projection::all();
    let other = Projection::newest_of([(FamilyId(1), Bytes::from_static(b"p"))]);
    // Back, each row is sought: a turn is of 120 rows then, as many as 2,048 records take.
    for (records, excised, projection, reverse, least) in [
        (&deleted, &[][..], &all, false, 3),
        (&deleted, &[], &all, true, 60),
        (&plain, &everything, &all, false, 3),
        (&plain, &everything, &all, true, 60),
        (&plain, &[], &other, false, 3),
        (&plain, &[], &other, true, 60),
    ] {
        let busy = Arc::new(Busy::default());
        let _lent = aside::lend(Arc::clone(&busy) as _);
        let projection = projection.clone();
        let spec = ReadSpec { excised: Arc::from(excised), projection, reverse, ..spec(9) };
        let (_memtable, mut stream) = of_memtable(records, spec);
        while let Some(mark) = step(&mut stream).unwrap() {
            assert!(mark.cells.is_empty(), "{mark:?}");
        }
        let turns = busy.0.load(Ordering::Relaxed);
        assert!((least..2 * least + 4).contains(&turns), "{turns} turns, back: {reverse}");
    }
}

#[test]
fn operands_are_looked_at_by_one_read_and_passed_over_by_those_after_it() {
    const RECORDS: u64 = 1_000;
    let additions =
        |from: u64| (from..from + RECORDS).map(|seq| merge("a", 2, &1_i64.to_be_bytes(), seq));
    let (memtable, _) = of_memtable(&additions(1).collect::<Vec<_>>(), spec(9));
    let read = |snapshot: Seq| {
        let spec = ReadSpec { wide_tombstones: false, ..spec(snapshot) };
        let cursors: Vec<Box<dyn Cursor>> = vec![Box::new(memtable.cursor(RowRange::all()))];
        let mut stream = RowStream::new(cursors, spec, Arc::new(NoIo), Box::new(()));
        let mut looked_at = 0;
        let row = loop {
            match stream.advance().unwrap() {
                Turn::Row(row) => break Row::from(row),
                Turn::Blocked | Turn::End => panic!("all is in memory"),
                Turn::Ready | Turn::Pause => {}
            }
            looked_at += stream.in_turn;
        };
        (row.cells[0].value.clone(), looked_at + stream.in_turn)
    };
    let sum = |sum: u64| Bytes::copy_from_slice(&sum.to_be_bytes());
    assert_eq!(read(RECORDS), (sum(RECORDS), RECORDS));
    for _ in 0..2 {
        assert_eq!(read(RECORDS), (sum(RECORDS), 1));
    }
    for (key, value) in additions(RECORDS + 1) {
        memtable.insert(KeyView::parse(&key).unwrap(), &value);
    }
    // Those who see less of them do without; those who see more look at what is new.
    assert_eq!(read(RECORDS - 1).0, sum(RECORDS - 1));
    let (found, looked_at) = read(RECORDS + 5);
    assert_eq!(found, sum(RECORDS + 5));
    assert!(looked_at < 30, "{looked_at}");
    assert_eq!(read(2 * RECORDS), (sum(2 * RECORDS), RECORDS - 4));
    assert_eq!(read(SEQ_MAX), (sum(2 * RECORDS), 1));
}

/// The cells of the row `a`, and how many records were looked at for them.
fn look_at_row(records: &[Record], projection: Projection) -> (usize, u64) {
    let spec = ReadSpec { projection, wide_tombstones: false, ..spec(SEQ_MAX) };
    let (_memtable, mut stream) = of_memtable(records, spec);
    let mut looked_at = 0;
    loop {
        let row = match stream.advance().unwrap() {
            Turn::Row(row) => Some(row),
            Turn::Ready => stream.ready.pop(),
            Turn::Blocked | Turn::End => panic!("all is in memory"),
            Turn::Pause => None,
        };
        looked_at += stream.in_turn;
        if let Some(row) = row {
            return (Row::from(row).cells.len(), looked_at);
        }
    }
}

#[test]
fn a_row_that_was_deleted_often_is_read_without_a_look_at_all_its_tombstones() {
    const DELETIONS: u64 = 1_000;
    let qualifier = || Bytes::from_static(b"q");
    let column = |family| Mutation::DeleteCells {
        family: FamilyId(family),
        qualifier: qualifier(),
        timestamps: TimestampRange::ALL,
    };
    let named = |qualifiers: Vec<QualifierRange>| Projection {
        families: Some(vec![FamilyProjection {
            family: FamilyId(1),
            qualifiers: qualifiers.into(),
        }]),
        ..Projection::all()
    };
    let one = (Bound::Included(qualifier()), Bound::Included(qualifier()));
    for deletion in [Mutation::DeleteRow, Mutation::DeleteFamily { family: FamilyId(1) }, column(1)]
    {
        let deletions = (1..=DELETIONS).map(|seq| record(b"a", &deletion, seq));
        let cells = [put("a", 1, "q", 1, b"v", DELETIONS + 1)];
        let records: Vec<_> = deletions.chain(cells).collect();
        for projection in [Projection::all(), named(Vec::new()), named(vec![one.clone()])] {
            let (cells, looked_at) = look_at_row(&records, projection);
            assert_eq!(cells, 1, "{deletion:?}");
            assert!(looked_at < 60, "{looked_at} records beside {deletion:?}");
        }
    }
}

#[test]
fn a_cell_that_was_overwritten_often_is_read_at_once_beside_deletions_of_other_rows() {
    const WRITES: u64 = 1_000;
    let writes = (1..=WRITES).map(|seq| put("a", 1, "q", 1, b"v", seq));
    let records: Vec<_> = writes.chain([record(b"b", &Mutation::DeleteRow, 1)]).collect();
    let (cells, looked_at) = look_at_row(&records, Projection::all());
    assert_eq!(cells, 1);
    assert!(looked_at < 60, "{looked_at} records");
}

#[test]
fn rows_of_memtables_without_cells_mark_progress_too() {
    let rows = 2 * SCAN_PROGRESS_RECORDS + 10;
    let (_, mut stream) = of_memtable(&hidden_rows(rows, 1), spec(9));
    let mut marks = Vec::new();
    let mut found = Vec::new();
    while let Some(row) = step(&mut stream).unwrap() {
        if row.cells.is_empty() { marks.push(row.key) } else { found.push(row.key) }
    }
    assert_eq!(found, ["z"]);
    assert_eq!(
        marks,
        [SCAN_PROGRESS_RECORDS, 2 * SCAN_PROGRESS_RECORDS].map(|rows| format!("r{:06}", rows - 1))
    );
}

#[test]
fn no_more_rows_are_taken_at_once_than_take_a_bounded_memory() {
    let value = vec![7; 2_000];
    let cells =
        |row: u32| (0..200).map(move |column: u32| (format!("r{row:02}"), column.to_string()));
    let cells = (0..50).flat_map(cells);
    let records: Vec<_> = cells.map(|(row, column)| put(&row, 1, &column, 1, &value, 1)).collect();
    let (_, mut stream) = of_memtable(&records, spec(9));
    let mut rows = 0;
    while let Some(row) = step(&mut stream).unwrap() {
        assert_eq!(row.cells.len(), 200);
        rows += 1;
        assert!(stream.ready.len() <= 2, "{} rows of 400 KB wait", stream.ready.len());
    }
    assert_eq!(rows, 50);
}

#[test]
fn what_comes_after_the_snapshot_changes_nothing_of_what_a_memtable_hands_over() {
    let spec = ReadSpec { wide_tombstones: false, ..spec(9) };
    let (memtable, mut stream) =
        of_memtable(&[put("a", 1, "q", 1, b"old", 1), put("b", 1, "q", 1, b"old", 2)], spec);
    for later in [
        record(b"a", &Mutation::DeleteRow, 10),
        put("a", 1, "q", 2, b"new", 11),
        put("b", 1, "a", 1, b"new", 12),
        put("b", 1, "q", 1, b"new", 13),
    ] {
        memtable.insert(KeyView::parse(&later.0).unwrap(), &later.1);
    }
    for row in ["a", "b"] {
        let found = step(&mut stream).unwrap().unwrap();
        let values: Vec<_> = found.cells.iter().map(|cell| cell.value.clone()).collect();
        assert_eq!((found.key, values), (Bytes::from(row), vec![Bytes::from("old")]));
    }
    assert!(step(&mut stream).unwrap().is_none());
}

#[test]
fn a_point_read_gives_no_marks() {
    let records: Vec<_> = hidden_rows(1, SCAN_PROGRESS_RECORDS + 1);
    let mut stream = open(records, ReadSpec { range: RowRange::row(b"r000000"), ..spec(9) });
    assert!(step(&mut stream).unwrap().is_none());
}

/// Counts the operations of a cursor.
struct Counting {
    inner: VecCursor,
    operations: Arc<std::sync::atomic::AtomicU64>,
}

impl Counting {
    fn count(&self) {
        self.operations.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}

impl Cursor for Counting {
    fn seek(&mut self, target: &[u8]) -> Result<Step> {
        self.count();
        self.inner.seek(target)
    }
    fn next(&mut self) -> Result<Step> {
        self.count();
        self.inner.next()
    }
    fn seek_row_before(&mut self, bound: &[u8]) -> Result<Step> {
        self.count();
        self.inner.seek_row_before(bound)
    }
    fn entry(&self) -> Option<crate::cursor::Entry<'_>> {
        self.inner.entry()
    }
    fn wanted(&self, out: &mut Vec<crate::sst::BlockRequest>) {
        self.inner.wanted(out);
    }
    fn supply(&mut self, request: &crate::sst::BlockRequest, block: &Arc<crate::sst::Block>) {
        self.inner.supply(request, block);
    }
    fn resume(&mut self) -> Result<Step> {
        self.inner.resume()
    }
}

/// Rows found and operations made by a whole read.
fn counted(runs: Vec<Vec<Record>>, spec: ReadSpec) -> (Vec<Row>, Vec<u64>) {
    let counts: Vec<Arc<std::sync::atomic::AtomicU64>> =
        runs.iter().map(|_| Arc::default()).collect();
    let cursors = runs
        .into_iter()
        .zip(&counts)
        .map(|(records, count)| {
            let inner = VecCursor::new(records, false);
            Box::new(Counting { inner, operations: Arc::clone(count) }) as Box<dyn Cursor>
        })
        .collect();
    let mut stream = RowStream::new(cursors, spec, Arc::new(NoIo), Box::new(()));
    let mut rows = Vec::new();
    while let Some(row) = step(&mut stream).unwrap() {
        rows.push(row);
    }
    let counts = counts.iter().map(|c| c.load(std::sync::atomic::Ordering::Relaxed)).collect();
    (rows, counts)
}

const MANY: u64 = 10_000;
const FEW: u64 = 100;

#[test]
fn versions_beyond_the_limit_are_sought_past() {
    let mut records: Vec<_> = (0..MANY).map(|i| put("a", 1, "q", i as i64, b"v", i)).collect();
    records.push(put("a", 1, "r", 1, b"v", 1));
    let projection = Projection { versions_max: 1, ..Projection::all() };
    let (rows, counts) = counted(vec![records], ReadSpec { projection, ..spec(SEQ_MAX) });
    assert_eq!(rows[0].cells.len(), 2);
    assert!(counts[0] < FEW, "{counts:?}");
}

#[test]
fn rewrites_of_a_cell_are_sought_past() {
    // Where there may be tombstones, each is looked at.
    let plain = |snapshot| ReadSpec { wide_tombstones: false, ..spec(snapshot) };
    let mut records: Vec<_> = (0..MANY).map(|i| put("a", 1, "q", 1, b"v", i)).collect();
    records.push(put("a", 1, "q", 0, b"v", 1));
    let (rows, counts) = counted(vec![records.clone()], plain(SEQ_MAX));
    assert_eq!(rows[0].cells.len(), 2);
    assert!(counts[0] < FEW, "{counts:?}");
    // Those newer than the snapshot as well as those older than what it sees.
    let (rows, counts) = counted(vec![records], plain(MANY / 2));
    assert_eq!(rows[0].cells.len(), 2);
    assert!(counts[0] < FEW, "{counts:?}");
}

#[test]
fn families_and_columns_outside_the_projection_are_sought_past() {
    let mut records: Vec<_> =
        (0..MANY).map(|i| put("a", 1, &format!("q{i:08}"), 1, b"v", i)).collect();
    records.push(put("a", 2, "q", 1, &[0; 8], 1));
    records.extend((0..MANY).map(|i| put("a", 3, &i.to_string(), 1, &[0; 8], i)));
    records.push(put("b", 2, "q", 1, &[0; 8], 1));
    let q = Bytes::from_static(b"q00000777");
    let families = vec![
        FamilyProjection {
            family: FamilyId(1),
            qualifiers: vec![(Bound::Included(q.clone()), Bound::Included(q))].into(),
        },
        FamilyProjection { family: FamilyId(2), qualifiers: Qualifiers::ALL },
    ];
    let projection = Projection { families: Some(families), ..Projection::all() };
    let (rows, counts) = counted(vec![records], ReadSpec { projection, ..spec(SEQ_MAX) });
    assert_eq!(rows.iter().map(|r| r.cells.len()).collect::<Vec<_>>(), [2, 1]);
    assert!(counts[0] < FEW, "{counts:?}");
}

#[test]
fn of_a_row_of_thousands_of_families_those_that_are_wanted_are_found() {
    // Looked for one by one, they would take minutes.
    const FAMILIES: u32 = 10_000;
    let is_known = |family: u32| !family.is_multiple_of(3);
    let own = FAMILY_OWN_MIN.0;
    let families = (1..=FAMILIES).filter(|f| is_known(*f)).chain([own]);
    let families = families.map(|f| (FamilyId(f), FamilyOptions::default())).collect();
    let schema = Arc::new(TabletSchema { families });
    let rows = ["a", "b"];
    let records = rows
        .iter()
        .flat_map(|row| (1..=FAMILIES).chain([own]).map(move |f| put(row, f, "q", 1, b"v", 1)));
    let records = run(records.collect());
    for named in [
        None,
        Some((FAMILIES / 2..=FAMILIES).step_by(2).collect()),
        Some((1..FAMILIES / 2).collect()),
        Some(vec![FAMILIES, own]),
        Some(vec![3, 5, 9999]),
    ] {
        let all = |f: &u32| FamilyProjection { family: FamilyId(*f), qualifiers: Qualifiers::ALL };
        let families: Option<Vec<_>> = named.as_ref().map(|named| named.iter().map(all).collect());
        let mut wanted = named.unwrap_or_else(|| (1..=FAMILIES).collect());
        wanted.retain(|family| is_known(*family) || *family == own);
        for reverse in [false, true] {
            let projection = Projection { families: families.clone(), ..Projection::all() };
            let spec = ReadSpec { schema: Arc::clone(&schema), projection, reverse, ..spec(9) };
            // Each row lies whole in one block.
            let cursor = cursor_at(Place::Sst(1 << 20), 1, &records, &RowRange::all());
            let io = Arc::new(TestIo::default());
            let mut stream = RowStream::new(vec![cursor], spec, io, Box::new(()));
            let mut found = Vec::new();
            while let Some(row) = step(&mut stream).unwrap() {
                found.push(row.cells.iter().map(|cell| cell.family.0).collect::<Vec<_>>());
            }
            assert!(found == [&*wanted, &wanted], "{} families, back: {reverse}", wanted.len());
        }
    }
}

#[test]
fn a_row_that_is_full_is_sought_past() {
    let mut records: Vec<_> = (0..MANY).map(|i| put("a", 1, &i.to_string(), 1, b"v", i)).collect();
    records.push(put("b", 1, "q", 1, b"v", 1));
    let projection = Projection { cells_per_row_max: 1, ..Projection::all() };
    let (rows, counts) = counted(vec![records], ReadSpec { projection, ..spec(SEQ_MAX) });
    assert_eq!(rows.len(), 2);
    assert!(counts[0] < FEW, "{counts:?}");
}

#[test]
fn a_point_read_of_one_column_ends_at_its_newest_cell() {
    let records = vec![
        put("a", 1, "q", 9, b"v", 2),
        put("a", 1, "q", 8, b"v", 1),
        put("a", 1, "r", 8, b"v", 1),
    ];
    let q = Bytes::from_static(b"q");
    let families = vec![FamilyProjection {
        family: FamilyId(1),
        qualifiers: vec![(Bound::Included(q.clone()), Bound::Included(q))].into(),
    }];
    let projection = Projection { families: Some(families), versions_max: 1, ..Projection::all() };
    let range = RowRange::row(b"a");
    let (rows, counts) = counted(vec![records], ReadSpec { range, projection, ..spec(SEQ_MAX) });
    assert_eq!(rows[0].cells.len(), 1);
    assert_eq!(counts, [1], "the seek, and nothing after it");
}

#[test]
fn a_reverse_scan_asks_only_the_runs_that_had_the_row() {
    let many = (0..FEW).map(|i| put(&format!("m{i:04}"), 1, "q", 1, b"v", i)).collect();
    let one = vec![put("a", 1, "q", 1, b"v", 1)];
    let (rows, counts) = counted(vec![many, one], ReadSpec { reverse: true, ..spec(SEQ_MAX) });
    assert_eq!(rows.len() as u64, FEW + 1);
    assert!(counts[1] <= 3, "{counts:?}");
}

#[test]
fn a_projection_of_nothing_reads_nothing() {
    for projection in [
        Projection { families: Some(Vec::new()), ..Projection::all() },
        Projection { versions_max: 0, ..Projection::all() },
        Projection { cells_per_row_max: 0, ..Projection::all() },
    ] {
        let records = vec![put("a", 1, "q", 9, b"v", 2)];
        let (rows, counts) = counted(vec![records], ReadSpec { projection, ..spec(SEQ_MAX) });
        assert!(rows.is_empty());
        assert_eq!(counts, [0]);
    }
}

#[test]
fn a_future_dropped_while_blocked_loses_nothing() {
    let history = History(
        (0..50)
            .map(|i| {
                let put = Mutation::Put {
                    family: FamilyId(1),
                    qualifier: Bytes::new(),
                    timestamp: 1,
                    value: Bytes::new(),
                };
                Event::Mutate(Bytes::from(format!("r{i:02}")), put)
            })
            .collect(),
    );
    let runs = [run(history.records(|_| true))];
    let cursors = cursors(&runs, true);
    let mut stream = RowStream::new(cursors, spec(SEQ_MAX), Arc::new(NoIo), Box::new(()));
    let mut rows = Vec::new();
    loop {
        // What a future does until it awaits, after which it is dropped.
        if !stream.blocked {
            match stream.advance().unwrap() {
                Turn::Blocked => stream.blocked = true,
                Turn::Row(row) => rows.push(Row::from(row)),
                Turn::Ready | Turn::Pause => {}
                Turn::End => break,
            }
        }
        match step(&mut stream).unwrap() {
            Some(row) => rows.push(row),
            None => break,
        }
    }
    assert_eq!(rows, history.rows(SEQ_MAX, &schema(None)));
}

/// Rows of some cells of a hundred bytes, each with a tombstone of a column, so that none takes the short cut.
fn rows_with_tombstones(rows: u64, cells: u64) -> Vec<Record> {
    let of_row = |n: u64| {
        let row = format!("row-{n:06}");
        let delete = Mutation::DeleteCells {
            family: FamilyId(1),
            qualifier: Bytes::from_static(b"a"),
            timestamps: TimestampRange::ALL,
        };
        let value: Vec<u8> = (0..13).flat_map(|at| mix64(n * 16 + at).to_le_bytes()).collect();
        let mut records = vec![record(row.as_bytes(), &delete, 2 * n + 1)];
        let cell = |c| put(&row, 1, &format!("c{c:04}"), 1, &value, 2 * n + 2);
        records.extend((0..cells).map(cell));
        records
    };
    (0..rows).flat_map(of_row).collect()
}

/// A file of these records whose blocks lie in `cache`.
fn file(id: u64, records: &[Record], cache: &Arc<QuickBlockCache>) -> Arc<SstReader> {
    let (files, path) = (TestFiles::default(), Path::new("/1.sst"));
    let options = SstOptions { compression: Compression::None, ..SstOptions::default() };
    let mut writer = SstWriter::new(files.create(path).unwrap(), path, id, options, 0);
    for (key, value) in records {
        writer.add(KeyView::parse(key).unwrap(), value).unwrap();
    }
    writer.finish().unwrap();
    SstReader::open(&files, path, id, Arc::clone(cache) as _).unwrap()
}

/// The rows of a scan of these files.
fn scanned(readers: &[Arc<SstReader>], spec: ReadSpec) -> Vec<Row> {
    let options = CursorOptions { beside: readers.len(), ..CursorOptions::default() };
    let cursor = |r: &Arc<SstReader>| Box::new(r.cursor(options.clone())) as Box<dyn Cursor>;
    let cursors = readers.iter().map(cursor).collect();
    let io = Arc::new(TestIo::default());
    let mut stream = RowStream::new(cursors, spec, io, Box::new(()));
    let mut rows = Vec::new();
    while let Some(row) = step(&mut stream).unwrap() {
        rows.push(row);
    }
    rows
}

#[test]
fn a_scan_reads_each_block_about_once_also_back_and_where_no_row_takes_the_short_cut() {
    for (cells, files) in [(1, 1), (5, 1), (30, 1), (90, 1), (1, 2), (5, 2)] {
        let records = rows_with_tombstones(18_000 / cells, cells);
        // Those of a row are dealt to the files in turn.
        let dealt = |at: usize| records.iter().skip(at).step_by(files).cloned().collect::<Vec<_>>();
        // Keeps none of them.
        let cache = Arc::new(QuickBlockCache::new(1));
        let readers: Vec<_> =
            (0..files).map(|at| file(at as u64 + 1, &dealt(at), &cache)).collect();
        let blocks: u64 = readers.iter().map(|r| r.properties().data_blocks).sum();
        assert!(blocks > 500, "{blocks} blocks");
        let [forward, back] = [false, true].map(|reverse| {
            let before = cache.sst_metrics().blocks_read.get();
            let mut rows = scanned(&readers, ReadSpec { reverse, ..spec(SEQ_MAX) });
            if reverse {
                rows.reverse();
            }
            let reads = cache.sst_metrics().blocks_read.get() - before;
            let reads = reads as f64 / blocks as f64;
            (rows, reads)
        });
        assert_eq!(forward.0.len() as u64, 18_000 / cells);
        assert!(forward.0 == back.0, "{cells} cells, {files} files");
        let (forward, back) = (forward.1, back.1);
        assert!(forward < 1.2 && back < 1.2, "{cells} cells, {files} files: {forward} {back}");
    }
}
