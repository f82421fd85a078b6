//! The memory of memtables: what counts, and which of them goes to be flushed.

use super::*;
use crate::background;

#[test]
fn memory_of_memtables_counts_until_the_last_reader_lets_go() {
    let rig = rig();
    block_on(rig.tablet.apply(batch("a", &["a"]))).unwrap();
    let view = rig.tablet.view.load_full();
    let held = view.active.allocated_bytes();
    block_on(rig.tablet.flush()).unwrap();
    let with_reader = rig.engine.memory().memtables;
    drop(view);
    assert_eq!(rig.engine.memory().memtables, with_reader - held);
}

#[test]
fn the_largest_memtable_goes_before_all_together_are_at_their_limit() {
    let (memtable_bytes, memtables_total_bytes) = (1 << 20, 1 << 20);
    let options = EngineOptions { memtable_bytes, memtables_total_bytes, ..Default::default() };
    let rig = rig_with(options);
    let other = rig.engine.create_tablet(RowRange::all()).unwrap();
    block_on(other.apply(batch("a", &["a"]))).unwrap();
    let mut rows = 0;
    while rig.engine.pressure().refused_share() <= 0.0 && rows < 100_000 {
        block_on(rig.tablet.apply(batch(&format!("row-{rows:06}"), &["a"]))).unwrap();
        rig.engine.bound_memory();
        if rig.tablet.has_waiting() {
            break;
        }
        rows += 1;
    }
    assert!(rig.tablet.has_waiting(), "it is flushed before anything is refused");
    assert!(!other.has_waiting(), "the small one stays");
}

/// An engine whose memtables may have 1 MiB, and so many tablets more.
fn rig_of_small_memory(tablets: usize) -> (Rig, Vec<Arc<Tablet>>) {
    let (memtable_bytes, memtables_total_bytes) = (1 << 20, 1 << 20);
    let options = EngineOptions { memtable_bytes, memtables_total_bytes, ..Default::default() };
    let rig = rig_with(options);
    let create = |_| {
        let tablet = rig.engine.create_tablet(RowRange::all()).unwrap();
        tablet.set_schema(rig.tablet.require_schema().unwrap());
        tablet
    };
    let tablets = (0..tablets).map(create).collect();
    (rig, tablets)
}

#[test]
fn empty_tables_take_no_memory_from_writes() {
    let (rig, tablets) = rig_of_small_memory(200);
    rig.tablet.core.background.store(true, Ordering::Release);
    block_on(rig.tablet.apply(batch("a", &["a"]))).expect("hundreds of tables are empty");
    assert!(rig.engine.pressure().headroom() > 0.8, "{:?}", rig.engine.pressure());
    drop(tablets);
}

#[test]
fn flushes_of_small_tables_give_back_what_their_rows_took() {
    let (rig, tablets) = rig_of_small_memory(100);
    let empty = rig.engine.memory().memtables;
    for tablet in &tablets {
        block_on(tablet.apply(batch("a", &["a"]))).unwrap();
    }
    assert!(rig.engine.pressure().refused_share() > 0.0);
    for tablet in &tablets {
        block_on(tablet.flush()).unwrap();
    }
    assert_eq!(rig.engine.memory().memtables, empty);
    assert!(rig.engine.pressure().headroom() > 0.8, "{:?}", rig.engine.pressure());
}

#[test]
fn as_many_small_memtables_go_at_once_as_bring_the_others_below_the_limit() {
    let (rig, tablets) = rig_of_small_memory(80);
    for tablet in &tablets {
        block_on(tablet.apply(batch("a", &["a"]))).unwrap();
    }
    let one = tablets[0].active_bytes();
    let flush_from = rig.engine.options().flush_from_bytes();
    assert!(80 * one > flush_from + 20 * one, "{one}");
    rig.engine.bound_memory();
    let waiting = tablets.iter().filter(|tablet| tablet.has_waiting()).count() as u64;
    assert_eq!(80 - waiting, flush_from / one, "no more of them than that takes");
    rig.engine.bound_memory();
    assert_eq!(tablets.iter().filter(|tablet| tablet.has_waiting()).count() as u64, waiting);
}

#[test]
fn of_equal_memtables_those_go_that_do_not_wait_already() {
    let (rig, tablets) = rig_of_small_memory(80);
    let write = |tablet: &Arc<Tablet>| {
        block_on(tablet.apply(batch("a", &["a"]))).unwrap();
    };
    let waiting = |tablet: &Arc<Tablet>| tablet.view.load().waiting.len();
    tablets.iter().for_each(write);
    let mut sent = 0;
    while sent < 80 {
        rig.engine.bound_memory();
        let now = tablets.iter().filter(|tablet| tablet.has_waiting()).count();
        assert!(now > sent, "{sent} and no more");
        sent = now;
        assert!(tablets.iter().all(|tablet| waiting(tablet) <= 1), "{sent} were sent");
        tablets.iter().filter(|t| t.active_bytes() == 0).for_each(write);
    }
    // All wait, and as much again takes writes: it goes when that is flushed.
    rig.engine.bound_memory();
    assert!(tablets.iter().all(|tablet| waiting(tablet) == 1));
    tablets[..40].iter().for_each(|tablet| tablet.flush_waiting().unwrap());
    rig.engine.bound_memory();
    assert!(tablets[..40].iter().any(|tablet| waiting(tablet) == 1));
    assert!(tablets[40..].iter().all(|tablet| waiting(tablet) == 1));
}

/// Fills the memtable of a tablet with some hundred KiB.
fn fill(tablet: &Tablet) {
    let bytes = tablet.active_bytes();
    for row in 0.. {
        if tablet.active_bytes() >= bytes + (200 << 10) {
            break;
        }
        block_on(tablet.apply(batch(&format!("row-{row:06}"), &["a"]))).unwrap();
    }
}

#[test]
fn a_tablet_that_has_grown_since_goes_though_a_small_memtable_waits() {
    let (rig, tablets) = rig_of_small_memory(40);
    for tablet in &tablets {
        block_on(tablet.apply(batch("a", &["a"]))).unwrap();
    }
    let hot = &tablets[39];
    hot.rotate_now();
    fill(hot);
    rig.engine.bound_memory();
    assert_eq!(hot.view.load().waiting.len(), 2);
    assert!(!tablets[..39].iter().any(|tablet| tablet.has_waiting()));
}

#[test]
fn what_is_large_or_has_waited_longest_is_flushed_before_thousands_of_small_memtables() {
    let (rig, tablets) = rig_of_small_memory(100);
    let order = || background::flush_order(rig.engine.tablets());
    for tablet in tablets.iter().rev() {
        block_on(tablet.apply(batch("a", &["a"]))).unwrap();
        tablet.rotate_now();
    }
    assert!(Arc::ptr_eq(&order()[0], &tablets[99]), "written first");
    assert_eq!(
        background::flush_round(&rig.engine, u64::MAX, &mut false).unwrap(),
        background::FLUSHES_PER_ROUND
    );
    let left = order();
    assert_eq!(left.len(), 100 - background::FLUSHES_PER_ROUND);
    // It has become large after the others were sent.
    fill(&tablets[99]);
    tablets[99].rotate_now();
    let now = order();
    assert_eq!(now.len(), left.len() + 1);
    assert!(Arc::ptr_eq(&now[1], &tablets[99]));
    while background::flush_round(&rig.engine, u64::MAX, &mut false).unwrap() > 0 {}
    assert!(order().is_empty());
}

#[test]
fn threads_for_small_memtables_leave_large_ones_and_what_is_being_flushed_to_others() {
    let (rig, tablets) = rig_of_small_memory(3);
    let [large, small, taken] = tablets.as_slice() else { panic!("three") };
    while large.active_bytes() <= background::SMALL_FLUSH_BYTES {
        fill(large);
    }
    for tablet in &tablets {
        block_on(tablet.apply(batch("a", &["a"]))).unwrap();
        tablet.rotate_now();
    }
    let is_taken = taken.flushing.lock().unwrap();
    let round = |bytes_max| {
        let mut is_busy = false;
        (background::flush_round(&rig.engine, bytes_max, &mut is_busy).unwrap(), is_busy)
    };
    assert_eq!(round(background::SMALL_FLUSH_BYTES), (1, true));
    drop(is_taken);
    let waits = [large, small, taken].map(|tablet| tablet.has_waiting());
    assert_eq!(waits, [true, false, true]);
    assert_eq!(round(background::SMALL_FLUSH_BYTES), (1, false));
    assert_eq!(round(u64::MAX), (1, false));
}

/// Writes a row of one value of so many bytes.
fn write_row(rig: &Rig, row: &str, value_bytes: usize) {
    let put = Mutation::Put {
        family: FamilyId(1),
        qualifier: Bytes::from_static(b"q"),
        timestamp: 1000,
        value: Bytes::from(vec![7; value_bytes]),
    };
    let row = Bytes::copy_from_slice(row.as_bytes());
    block_on(rig.tablet.apply(RowBatch { row, mutations: vec![put] })).unwrap();
    block_on(rig.tablet.flush()).unwrap();
}

#[test]
fn of_large_rows_that_are_locked_no_more_are_read_than_there_is_room_for() {
    let (rig, _) = rig_of_small_memory(0);
    for (row, value_bytes) in [("a", 300 << 10), ("b", 300 << 10), ("small", 1 << 10)] {
        write_row(&rig, row, value_bytes);
    }
    let projection = Projection::all();
    let read = |row: &'static str| rig.tablet.read_locked_row(row.as_bytes(), &projection);
    let (first, room) = block_on(read("a")).unwrap();
    assert_eq!(first.unwrap().bytes(), (300 << 10) + 1 + size_of::<crate::cell::Cell>() as u64);
    let mut second = pin!(read("b"));
    assert!(
        (&mut second).now_or_never().is_none(),
        "less than a quarter of a megabyte is room for one"
    );
    assert!(block_on(read("small")).unwrap().0.is_some(), "small ones do not wait");
    drop(room);
    let (second, _) = second.now_or_never().expect("there is room").unwrap();
    assert!(second.is_some());
}

#[test]
fn a_row_that_was_read_has_room_for_its_bytes_and_one_that_is_too_large_for_none() {
    let (memtable_bytes, memtables_total_bytes) = (1 << 20, 80 << 20);
    let rig =
        rig_with(EngineOptions { memtable_bytes, memtables_total_bytes, ..Default::default() });
    let rows = ["a", "b", "c"];
    for row in rows {
        write_row(&rig, row, 300 << 10);
    }
    let projection = Projection::all();
    let read = |row: &'static str| rig.tablet.read_locked_row(row.as_bytes(), &projection);
    // Of five megabytes each takes four until it is known how large it is.
    let rooms = rows.map(|row| read(row).now_or_never().expect("there is room").unwrap().1);
    drop(rooms);
    for column in 0..3 {
        let put = Mutation::Put {
            family: FamilyId(1),
            qualifier: Bytes::copy_from_slice(format!("q{column}").as_bytes()),
            timestamp: 1000,
            value: Bytes::from(vec![7; 90 << 20]),
        };
        let batch = RowBatch { row: Bytes::from_static(b"huge"), mutations: vec![put] };
        block_on(rig.tablet.apply(batch)).unwrap();
        block_on(rig.tablet.flush()).unwrap();
    }
    for _ in 0..2 {
        let error = read("huge").now_or_never().expect("there is room").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::RowTooLarge);
    }
}

#[test]
fn rows_that_are_less_large_do_not_wait_behind_the_largest() {
    let (rig, _) = rig_of_small_memory(0);
    write_row(&rig, "large", 5 << 20);
    write_row(&rig, "middling", 300 << 10);
    let projection = Projection::all();
    let read = |row: &'static str| rig.tablet.read_locked_row(row.as_bytes(), &projection);
    let (_, room) = block_on(read("large")).unwrap();
    let mut second = pin!(read("large"));
    assert!((&mut second).now_or_never().is_none());
    let middling = read("middling").now_or_never().expect("there is room");
    assert!(middling.unwrap().0.is_some());
    drop(room);
    assert!(second.now_or_never().expect("there is room").unwrap().0.is_some());
}

/// So many deletions of a row whose key of 4,096 bytes is twice as long in a memtable.
fn deletions_of_a_long_key(count: usize) -> RowBatch {
    RowBatch { row: Bytes::from(vec![0; 4_096]), mutations: vec![Mutation::DeleteRow; count] }
}

#[test]
fn a_batch_that_repeats_a_long_key_more_often_than_memory_bears_is_refused() {
    let rig = rig();
    let error = block_on(rig.tablet.apply(deletions_of_a_long_key(100_000))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("write fewer at a time"), "{error}");
    block_on(rig.tablet.apply(deletions_of_a_long_key(1_000))).unwrap();
}

#[test]
fn writes_that_were_let_in_together_do_not_fill_memory_with_their_keys() {
    let (rig, _) = rig_of_small_memory(0);
    rig.tablet.core.background.store(true, Ordering::Release);
    let lock = block_on(rig.tablet.lock_row(&[0; 4_096]));
    // Some 8 MB of keys each, where all memtables may have one.
    let writes = (0..10).map(|_| rig.tablet.apply(deletions_of_a_long_key(1_000)));
    let mut writes = futures::future::join_all(writes);
    assert!((&mut writes).now_or_never().is_none(), "its row is locked");
    drop(lock);
    let results = block_on(writes);
    let refused = |result: &Result<Seq>| {
        result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Overloaded)
    };
    assert_eq!(results.iter().filter(|result| refused(result)).count(), 9);
    assert!(results.first().unwrap().is_ok(), "the first has what room there is");
    assert!(rig.engine.memory().memtables < 20 << 20);
}
