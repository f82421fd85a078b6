//! Garbage collection as a user notices it: cells that a rule lets go are gone soon on an idle tablet,
//! and nothing else is.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tepui_engine::cell::{FamilyId, Mutation, RowRange, TimestampRange};
use tepui_engine::db::EngineOptions;
use tepui_engine::options::CompressionPolicy;
use tepui_engine::schema::{Aggregate, Combine, Combined, FamilyOptions, GcRule, TabletSchema};

use crate::harness::{Rig, START_MICROS, put, tiny_options};

fn schema(gc: GcRule) -> TabletSchema {
    let family = FamilyOptions { gc: Some(gc), aggregate: None, gc_since_micros: 0 };
    TabletSchema { families: [(FamilyId(1), family)].into() }
}

fn timestamps(rig: &Rig, row: &[u8]) -> Vec<i64> {
    rig.get(row).iter().map(|cell| cell.timestamp).collect()
}

fn idle_for_a_minute(rig: &Rig) {
    for _ in 0..6 {
        rig.clock.advance_micros(10_000_000);
        rig.engine.run_background().unwrap();
    }
}

#[test]
fn versions_beyond_the_maximum_go_within_a_minute_of_idleness() {
    let rig = Rig::new(tiny_options(), schema(GcRule::MaxVersions(2)), 1);
    for timestamp in 1..=5 {
        rig.apply(b"r", vec![put(1, "q", timestamp * 1000, "v")]);
        futures::executor::block_on(rig.tablet.flush()).unwrap();
    }
    assert_eq!(timestamps(&rig, b"r"), [5000, 4000, 3000, 2000, 1000]);
    idle_for_a_minute(&rig);
    assert_eq!(timestamps(&rig, b"r"), [5000, 4000]);
}

#[test]
fn versions_in_memory_alone_are_collected_too() {
    let rig = Rig::new(tiny_options(), schema(GcRule::MaxVersions(1)), 1);
    for timestamp in 1..=3 {
        rig.apply(b"r", vec![put(1, "q", timestamp * 1000, "v")]);
    }
    idle_for_a_minute(&rig);
    assert_eq!(timestamps(&rig, b"r"), [3000]);
}

#[test]
fn cells_that_are_not_old_yet_are_not_flushed_at_each_pause_of_their_writer() {
    let rig = Rig::new(tiny_options(), schema(GcRule::MaxAge(3_600_000_000)), 1);
    let flushes = || rig.engine.metrics().flushes.load(Ordering::Relaxed);
    for minute in 0..10 {
        rig.apply(b"r", vec![put(1, "q", START_MICROS + minute * 60_000_000, "v")]);
        idle_for_a_minute(&rig);
    }
    assert_eq!(flushes(), 0);
    rig.clock.advance_micros(3_600_000_000);
    idle_for_a_minute(&rig);
    assert_eq!((flushes(), timestamps(&rig, b"r")), (1, vec![]));
}

#[test]
fn a_small_tablet_is_not_rewritten_for_versions_at_each_pause_of_its_writer() {
    let options = EngineOptions {
        compression: CompressionPolicy::None,
        background: false,
        ..EngineOptions::default()
    };
    let rig = Rig::new(options, schema(GcRule::MaxVersions(1)), 1);
    let value = "v".repeat(4096);
    for row in 0..2048 {
        rig.apply(format!("{row:04}").as_bytes(), vec![put(1, "q", 1000, &value)]);
    }
    futures::executor::block_on(rig.tablet.flush()).unwrap();
    rig.engine.compact_fully().unwrap();
    let written = || rig.engine.metrics().compaction_write_bytes.load(Ordering::Relaxed);
    let before = written();
    for pause in 1..=30 {
        for row in ["0000", "2047"] {
            rig.apply(row.as_bytes(), vec![put(1, "q", 1000 + pause, "v")]);
        }
        for _ in 0..2 {
            rig.clock.advance_micros(10_000_000);
            rig.engine.run_background().unwrap();
        }
    }
    let whole = (written() - before) / (2048 * 4096);
    assert!((5..=20).contains(&whole), "{whole}");
    idle_for_a_minute(&rig);
    assert_eq!(timestamps(&rig, b"2047"), [1030]);
}

#[test]
fn an_old_version_under_a_new_one_in_memory_goes_by_a_rule_of_both() {
    const HOUR: i64 = 3_600_000_000;
    let rules = vec![GcRule::MaxVersions(1), GcRule::MaxAge(HOUR)];
    let rig = Rig::new(tiny_options(), schema(GcRule::Intersection(rules)), 1);
    rig.apply(b"r", vec![put(1, "q", START_MICROS, "old")]);
    futures::executor::block_on(rig.tablet.flush()).unwrap();
    rig.clock.advance_micros(2 * HOUR as u64);
    rig.apply(b"r", vec![put(1, "q", START_MICROS + 2 * HOUR, "new")]);
    idle_for_a_minute(&rig);
    assert_eq!(timestamps(&rig, b"r"), [START_MICROS + 2 * HOUR]);
}

fn delete(timestamps: std::ops::Range<i64>) -> Mutation {
    let timestamps = TimestampRange { start: timestamps.start, end: timestamps.end };
    Mutation::DeleteCells { family: FamilyId(1), qualifier: "q".into(), timestamps }
}

#[test]
fn a_version_that_a_deletion_has_left_alone_stays_though_it_comes_to_its_age() {
    const HOUR: i64 = 3_600_000_000;
    for in_memory in [true, false] {
        let rules = vec![GcRule::MaxVersions(1), GcRule::MaxAge(HOUR)];
        let rig = Rig::new(tiny_options(), schema(GcRule::Intersection(rules)), 1);
        for timestamp in [START_MICROS, START_MICROS + 1000] {
            rig.apply(b"r", vec![put(1, "q", timestamp, "v")]);
        }
        futures::executor::block_on(rig.tablet.flush()).unwrap();
        rig.engine.compact_fully().unwrap();
        rig.clock.advance_micros(HOUR as u64 - 1_000_000);
        rig.apply(b"r", vec![delete(START_MICROS + 1000..START_MICROS + 2000)]);
        if !in_memory {
            futures::executor::block_on(rig.tablet.flush()).unwrap();
        }
        rig.clock.advance_micros(1_000_000);
        idle_for_a_minute(&rig);
        assert_eq!(timestamps(&rig, b"r"), [START_MICROS]);
        // What is written above it has it go all the same.
        rig.apply(b"r", vec![put(1, "q", START_MICROS + 5000, "v")]);
        idle_for_a_minute(&rig);
        assert_eq!(timestamps(&rig, b"r"), [START_MICROS + 5000]);
    }
}

#[test]
fn a_version_that_a_deletion_has_left_alone_stays_when_versions_are_counted_from_then_on() {
    let rig = Rig::new(tiny_options(), schema(GcRule::MaxVersions(9)), 1);
    for timestamp in [1000, 2000, 3000] {
        rig.apply(b"r", vec![put(1, "q", timestamp, "v")]);
    }
    futures::executor::block_on(rig.tablet.flush()).unwrap();
    rig.engine.compact_fully().unwrap();
    rig.apply(b"r", vec![delete(2000..i64::MAX)]);
    let gc_since_micros = rig.engine.newest_micros() + 1000;
    let gc = Some(GcRule::MaxVersions(1));
    let family = FamilyOptions { gc, gc_since_micros, ..FamilyOptions::default() };
    let changed = TabletSchema { families: [(FamilyId(1), family)].into() };
    rig.tablet.set_schema(Arc::new(changed));
    idle_for_a_minute(&rig);
    assert_eq!(timestamps(&rig, b"r"), [1000]);
    for timestamp in [2000, 3000] {
        rig.apply(b"r", vec![put(1, "q", timestamp, "v")]);
    }
    idle_for_a_minute(&rig);
    assert_eq!(timestamps(&rig, b"r"), [3000]);
}

#[test]
fn a_version_stays_whose_newer_one_was_collected_by_an_earlier_rule() {
    let rig = Rig::new(tiny_options(), schema(GcRule::MaxAge(10 * DAY_MICROS)), 1);
    let (newer, older) = (START_MICROS, START_MICROS - DAY_MICROS);
    rig.apply(b"r", vec![put(1, "q", newer, "v"), put(1, "q", older, "v")]);
    futures::executor::block_on(rig.tablet.flush()).unwrap();
    rig.engine.compact_fully().unwrap();
    rig.clock.advance_micros(10 * DAY_MICROS as u64 + 1_000_000);
    // The flush collects it, and with it what lies below.
    rig.apply(b"r", vec![put(1, "q", newer, "v")]);
    futures::executor::block_on(rig.tablet.flush()).unwrap();
    assert_eq!(timestamps(&rig, b"r"), [older]);
    let gc_since_micros = rig.engine.newest_micros() + 1000;
    let gc = Some(GcRule::MaxVersions(1));
    let family = FamilyOptions { gc, gc_since_micros, ..FamilyOptions::default() };
    rig.tablet.set_schema(Arc::new(TabletSchema { families: [(FamilyId(1), family)].into() }));
    // At once, so that the tablet is not idle, and files are rewritten by themselves.
    rig.engine.run_background().unwrap();
    assert_eq!(timestamps(&rig, b"r"), [older]);
    idle_for_a_minute(&rig);
    assert_eq!(timestamps(&rig, b"r"), [older]);
}

#[test]
fn cells_older_than_the_maximum_age_go_while_a_tablet_is_written_to_slowly() {
    let rig = Rig::new(tiny_options(), schema(GcRule::MaxAge(3_600_000_000)), 1);
    rig.apply(b"r", vec![put(1, "q", START_MICROS, "v")]);
    for minute in 1..=72 {
        rig.clock.advance_micros(60_000_000);
        rig.apply(b"s", vec![put(1, "q", START_MICROS + minute * 60_000_000, "v")]);
        // At once, so that the tablet is never idle.
        rig.engine.run_background().unwrap();
    }
    assert_eq!(timestamps(&rig, b"r"), Vec::<i64>::new());
    assert!(timestamps(&rig, b"s").len() >= 60, "what is younger stays");
    assert_eq!(rig.engine.metrics().flushes.load(Ordering::Relaxed), 1);
}

#[test]
fn no_cell_expires_by_a_clock_that_is_doubted_until_the_doubt_is_over() {
    const HOUR: Duration = Duration::from_hours(1);
    let rig = Rig::new(tiny_options(), schema(GcRule::MaxAge(3_600_000_000)), 1);
    rig.apply(b"r", vec![put(1, "q", START_MICROS, "v")]);
    rig.apply(b"s", vec![put(1, "q", START_MICROS - 7_200_000_000, "v")]);
    rig.clock.advance_micros(60 * 24 * 3_600_000_000);
    let files = Arc::clone(&rig.files);
    let rig = rig.reopen_on(files);
    rig.engine.doubt_clock(HOUR);
    futures::executor::block_on(rig.tablet.flush()).unwrap();
    idle_for_a_minute(&rig);
    rig.engine.compact_fully().unwrap();
    idle_for_a_minute(&rig);
    assert_eq!(timestamps(&rig, b"r"), [START_MICROS]);
    assert!(timestamps(&rig, b"s").is_empty(), "it had expired before the clock was doubted");
    rig.clock.advance_micros(3_600_000_000);
    idle_for_a_minute(&rig);
    assert!(timestamps(&rig, b"r").is_empty());
}

#[test]
fn no_cell_expires_by_a_running_clock_that_jumps_ahead_until_an_hour_later() {
    let rig = Rig::new(tiny_options(), schema(GcRule::MaxAge(3_600_000_000)), 1);
    rig.apply(b"r", vec![put(1, "q", START_MICROS, "v")]);
    rig.clock.set_wall_micros(START_MICROS + 36 * 365 * 24 * 3_600_000_000);
    idle_for_a_minute(&rig);
    rig.engine.compact_fully().unwrap();
    assert_eq!(timestamps(&rig, b"r"), [START_MICROS]);
    rig.clock.advance_micros(3_600_000_000);
    idle_for_a_minute(&rig);
    assert!(timestamps(&rig, b"r").is_empty());
}

#[test]
fn cells_older_than_the_maximum_age_go_without_any_write() {
    let rig = Rig::new(tiny_options(), schema(GcRule::MaxAge(3_600_000_000)), 1);
    rig.apply(
        b"r",
        vec![
            put(1, "q", START_MICROS, "young"),
            put(1, "q", START_MICROS - 1_800_000_000, "older"),
        ],
    );
    idle_for_a_minute(&rig);
    assert_eq!(timestamps(&rig, b"r").len(), 2, "nothing is old enough");
    rig.clock.advance_micros(1_800_000_000);
    idle_for_a_minute(&rig);
    assert_eq!(timestamps(&rig, b"r"), [START_MICROS]);
    rig.clock.advance_micros(3_600_000_000);
    idle_for_a_minute(&rig);
    assert_eq!(timestamps(&rig, b"r"), Vec::<i64>::new());
    assert_eq!(rig.tablet.stats().sst_count, 0, "an empty file is not kept");
}

#[test]
fn an_intersection_keeps_what_one_of_its_rules_keeps() {
    let rule = GcRule::Intersection(vec![GcRule::MaxVersions(1), GcRule::MaxAge(3_600_000_000)]);
    let rig = Rig::new(tiny_options(), schema(rule), 1);
    let old = START_MICROS - 7_200_000_000;
    rig.apply(
        b"many-but-young",
        vec![put(1, "q", START_MICROS, "a"), put(1, "q", START_MICROS - 1000, "b")],
    );
    rig.apply(b"old-but-only", vec![put(1, "q", old, "a")]);
    rig.apply(b"old-and-second", vec![put(1, "q", START_MICROS, "a"), put(1, "q", old, "b")]);
    idle_for_a_minute(&rig);
    assert_eq!(timestamps(&rig, b"many-but-young").len(), 2);
    assert_eq!(timestamps(&rig, b"old-but-only").len(), 1);
    assert_eq!(timestamps(&rig, b"old-and-second"), [START_MICROS]);
}

const DAY_MICROS: i64 = 86_400_000_000;

/// All but the newest cell of a column go once they are this many days old.
fn old_versions(days: i64) -> GcRule {
    GcRule::Intersection(vec![GcRule::MaxVersions(1), GcRule::MaxAge(days * DAY_MICROS)])
}

/// A row whose column has two versions that are young, and one whose column has a single old one: together they have what the
/// rule asks for, and neither does.
fn write_versions_and_age(rig: &Rig) {
    rig.apply(
        b"counter",
        vec![put(1, "q", START_MICROS, "a"), put(1, "q", START_MICROS - 1000, "b")],
    );
    rig.apply(b"setting", vec![put(1, "q", START_MICROS - 2 * DAY_MICROS, "a")]);
}

fn compactions(rig: &Rig) -> u64 {
    rig.engine.metrics().compactions.load(Ordering::Relaxed)
}

#[test]
fn a_file_in_which_no_cell_may_go_is_not_rewritten_again_and_again() {
    let rig = Rig::new(tiny_options(), schema(old_versions(1)), 1);
    write_versions_and_age(&rig);
    (0..3).for_each(|_| idle_for_a_minute(&rig));
    let before = compactions(&rig);
    (0..60).for_each(|_| idle_for_a_minute(&rig));
    assert_eq!(compactions(&rig) - before, 0, "in an hour");
    assert_eq!(timestamps(&rig, b"counter").len(), 2);
    assert_eq!(timestamps(&rig, b"setting").len(), 1);
}

#[test]
fn files_that_were_merged_and_divided_are_not_rewritten_in_vain_either() {
    let rig = Rig::new(tiny_options(), schema(old_versions(1)), 1);
    for round in 0..4 {
        for n in 0..100 {
            let key = format!("row-{n:03}");
            rig.apply(key.as_bytes(), vec![put(1, "q", START_MICROS - round * 1000, "some value")]);
            rig.apply(key.as_bytes(), vec![put(1, "old", START_MICROS - 2 * DAY_MICROS, "v")]);
        }
        futures::executor::block_on(rig.tablet.flush()).unwrap();
        rig.engine.run_background().unwrap();
    }
    (0..3).for_each(|_| idle_for_a_minute(&rig));
    assert!(rig.tablet.stats().sst_count > 4, "{:?}", rig.tablet.stats());
    let before = compactions(&rig);
    (0..60).for_each(|_| idle_for_a_minute(&rig));
    assert_eq!(compactions(&rig) - before, 0, "in an hour");
}

#[test]
fn what_becomes_due_after_a_long_time_goes_within_a_minute() {
    let rig = Rig::new(tiny_options(), schema(old_versions(1)), 1);
    write_versions_and_age(&rig);
    (0..30).for_each(|_| idle_for_a_minute(&rig));
    rig.clock.advance_micros(23 * 3_600_000_000);
    idle_for_a_minute(&rig);
    assert_eq!(timestamps(&rig, b"counter").len(), 2, "half an hour is left");
    rig.clock.advance_micros(1_800_000_000);
    idle_for_a_minute(&rig);
    assert_eq!(timestamps(&rig, b"counter"), [START_MICROS]);
    assert_eq!(timestamps(&rig, b"setting").len(), 1);
}

#[test]
fn what_was_found_by_one_rule_keeps_nothing_from_the_next() {
    let rig = Rig::new(tiny_options(), schema(old_versions(1)), 1);
    write_versions_and_age(&rig);
    (0..30).for_each(|_| idle_for_a_minute(&rig));
    assert_eq!(timestamps(&rig, b"counter").len(), 2);
    rig.tablet.set_schema(Arc::new(schema(old_versions(0))));
    idle_for_a_minute(&rig);
    assert_eq!(timestamps(&rig, b"counter"), [START_MICROS]);
}

#[test]
fn a_change_of_one_family_has_no_file_rewritten_for_what_others_have_in_it() {
    let rig = Rig::new(tiny_options(), schema(old_versions(1)), 1);
    write_versions_and_age(&rig);
    (0..3).for_each(|_| idle_for_a_minute(&rig));
    let before = compactions(&rig);
    let mut changed = rig.schema.clone();
    for gc in [None, Some(GcRule::MaxVersions(1))] {
        let family = FamilyOptions { gc, ..FamilyOptions::default() };
        changed.families.insert(FamilyId(2), family);
        rig.tablet.set_schema(Arc::new(changed.clone()));
        (0..3).for_each(|_| idle_for_a_minute(&rig));
    }
    changed.families.remove(&FamilyId(2));
    rig.tablet.set_schema(Arc::new(changed));
    (0..3).for_each(|_| idle_for_a_minute(&rig));
    assert_eq!(compactions(&rig), before);
    assert_eq!(timestamps(&rig, b"counter").len(), 2);
}

#[test]
fn a_dropped_family_disappears_at_once_and_its_bytes_follow() {
    let rig = Rig::new(tiny_options(), crate::harness::plain_schema(), 1);
    for n in 0..200 {
        rig.apply(
            format!("row-{n:03}").as_bytes(),
            vec![put(1, "q", 1000, "keep"), put(2, "q", 1000, "drop")],
        );
    }
    rig.engine.compact_fully().unwrap();
    let before = rig.tablet.stats().records;
    let mut schema = rig.schema.clone();
    schema.families.remove(&FamilyId(2));
    rig.tablet.set_schema(Arc::new(schema));
    let rows = rig.scan(RowRange::all(), false, None);
    assert!(rows.iter().all(|row| row.cells.len() == 1 && row.cells[0].family == FamilyId(1)));
    idle_for_a_minute(&rig);
    assert_eq!(rig.tablet.stats().records, before / 2);
}

/// The set of the bytes of all operands, which must not be empty.
#[derive(Debug)]
struct ByteSet(std::collections::BTreeSet<u8>);

#[derive(Debug)]
struct ByteSets;

impl Combine for ByteSets {
    fn name(&self) -> &'static str {
        "byte sets"
    }

    fn begin(&self, operand: &[u8]) -> Option<Box<dyn Combined>> {
        let set = ByteSet(operand.iter().copied().collect());
        (!operand.is_empty()).then(|| Box::new(set) as Box<dyn Combined>)
    }
}

impl Combined for ByteSet {
    fn add(&mut self, operand: &[u8]) -> bool {
        self.0.extend(operand);
        !operand.is_empty()
    }

    fn encode(&self) -> bytes::Bytes {
        self.0.iter().copied().collect()
    }
}

#[test]
fn opaque_states_combine_in_reads_and_compactions() {
    let family = FamilyOptions {
        gc: None,
        aggregate: Some(Aggregate::Opaque(&ByteSets)),
        gc_since_micros: 0,
    };
    let schema = TabletSchema { families: [(FamilyId(1), family)].into() };
    let rig = Rig::new(tiny_options(), schema, 1);
    for (n, operand) in ["b", "ca", "b", "d", "ad", "z", "bb"].into_iter().enumerate() {
        let merge = tepui_engine::cell::Mutation::Merge {
            family: FamilyId(1),
            qualifier: "set".into(),
            timestamp: 0,
            operand: operand.into(),
        };
        rig.apply(b"r", vec![merge]);
        if n % 2 == 0 {
            futures::executor::block_on(rig.tablet.flush()).unwrap();
        }
        if n == 4 {
            rig.engine.compact_fully().unwrap();
            assert_eq!(rig.tablet.stats().records, 1);
        }
    }
    assert_eq!(rig.get(b"r")[0].value.as_ref(), b"abcdz");
    rig.engine.compact_fully().unwrap();
    assert_eq!(rig.get(b"r")[0].value.as_ref(), b"abcdz");
}

/// The last byte of all operands, a thousand times where they were combined.
#[derive(Debug)]
struct Large(u8);

#[derive(Debug)]
struct Larges;

impl Combine for Larges {
    fn name(&self) -> &'static str {
        "large states"
    }

    fn begin(&self, operand: &[u8]) -> Option<Box<dyn Combined>> {
        Some(Box::new(Large(*operand.iter().max()?)))
    }
}

impl Combined for Large {
    fn add(&mut self, operand: &[u8]) -> bool {
        let greatest = operand.iter().max();
        self.0 = self.0.max(greatest.copied().unwrap_or_default());
        greatest.is_some()
    }

    fn encode(&self) -> bytes::Bytes {
        vec![self.0; 1000].into()
    }
}

#[test]
fn an_operand_that_meets_no_other_stays_as_small_as_it_came() {
    const CELLS: u64 = 200;
    let family =
        FamilyOptions { gc: None, aggregate: Some(Aggregate::Opaque(&Larges)), gc_since_micros: 0 };
    let schema = TabletSchema { families: [(FamilyId(1), family)].into() };
    let options = EngineOptions { compression: CompressionPolicy::None, ..tiny_options() };
    let rig = Rig::new(options, schema, 1);
    let add = |cells: u64, operand: &'static [u8]| {
        for n in 0..cells {
            let merge = tepui_engine::cell::Mutation::Merge {
                family: FamilyId(1),
                qualifier: format!("{n:04}").into(),
                timestamp: 0,
                operand: operand.into(),
            };
            rig.apply(b"r", vec![merge]);
        }
        futures::executor::block_on(rig.tablet.flush()).unwrap();
        rig.engine.compact_fully().unwrap();
    };
    add(CELLS, b"a");
    let alone = rig.tablet.stats().sst_bytes;
    assert!(alone < CELLS * 200, "{alone} bytes");
    add(10, b"b");
    let cells = rig.get(b"r");
    assert!(cells.iter().all(|cell| cell.value.len() == 1000));
    assert_eq!((cells[9].value[0], cells[10].value[0]), (b'b', b'a'));
    let some = rig.tablet.stats().sst_bytes - alone;
    assert!((10_000..20_000).contains(&some), "{some} bytes for those that were combined");
}

#[test]
fn aggregates_survive_flushes_and_compactions() {
    let family = FamilyOptions { gc: None, aggregate: Some(Aggregate::Sum), gc_since_micros: 0 };
    let schema = TabletSchema { families: [(FamilyId(1), family)].into() };
    let rig = Rig::new(tiny_options(), schema, 1);
    for n in 1..=10i64 {
        let operand = tepui_engine::cell::Mutation::Merge {
            family: FamilyId(1),
            qualifier: "sum".into(),
            timestamp: 0,
            operand: n.to_be_bytes().to_vec().into(),
        };
        rig.apply(b"r", vec![operand]);
        if n % 3 == 0 {
            futures::executor::block_on(rig.tablet.flush()).unwrap();
        }
        if n == 7 {
            rig.engine.compact_fully().unwrap();
        }
    }
    let expected = 55i64.to_be_bytes();
    assert_eq!(rig.get(b"r")[0].value.as_ref(), expected);
    rig.engine.compact_fully().unwrap();
    assert_eq!(rig.get(b"r")[0].value.as_ref(), expected);
}
