//! Garbage collection as a user notices it: cells that a rule lets go are gone soon on an idle tablet,
//! and nothing else is.

use tepui_engine::cell::{FamilyId, RowRange};
use tepui_engine::schema::{Aggregate, Combine, Combined, FamilyOptions, GcRule, TabletSchema};

use crate::harness::{Rig, START_MICROS, put, tiny_options};

fn schema(gc: GcRule) -> TabletSchema {
    let family = FamilyOptions { gc: Some(gc), aggregate: None };
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
    rig.tablet.set_schema(std::sync::Arc::new(schema));
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
    let family = FamilyOptions { gc: None, aggregate: Some(Aggregate::Opaque(&ByteSets)) };
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

#[test]
fn aggregates_survive_flushes_and_compactions() {
    let family = FamilyOptions { gc: None, aggregate: Some(Aggregate::Sum) };
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
