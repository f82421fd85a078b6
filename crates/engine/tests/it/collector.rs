//! Garbage collection where changes are kept: what rules let go is deleted by changes of its own source, so that whoever replays all
//! changes has what reads see; and no compaction takes anything away in silence.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures::executor::block_on;
use proptest::prelude::*;

use tepui_engine::cell::{FamilyId, Mutation, RowBatch, RowRange, Seq, TimestampRange};
use tepui_engine::changes::{Change, Source};
use tepui_engine::db::EngineOptions;
use tepui_engine::io::{CrashMode, Rng, SeededRng};
use tepui_engine::read::Projection;
use tepui_engine::schema::{Aggregate, FamilyOptions, GcRule, TabletSchema};
use tepui_engine::tablet::Tablet;

use crate::harness::{Model, Rig, START_MICROS, put, scan, tiny_options};

const DAY: Duration = Duration::from_hours(24);

const HOUR: i64 = 3_600_000_000;

fn schema(gc: GcRule) -> TabletSchema {
    let family = FamilyOptions { gc: Some(gc), aggregate: None, gc_since_micros: 0 };
    TabletSchema { families: [(FamilyId(1), family)].into() }
}

fn both(versions: u32, age: i64) -> Vec<GcRule> {
    vec![GcRule::MaxVersions(versions), GcRule::MaxAge(age)]
}

/// All changes after a position.
fn changes(tablet: &Arc<Tablet>, position: Seq) -> Vec<Change> {
    let mut reader = tablet.changes_after(position);
    let mut all = Vec::new();
    loop {
        let changes = match reader.read(10_000).unwrap() {
            Some(changes) => changes,
            None => reader.read_disk(10_000).unwrap(),
        };
        if changes.is_empty() {
            return all;
        }
        all.extend(changes);
    }
}

/// A tablet whose changes are kept, and what their replay makes.
struct Replayed {
    rig: Rig,
    begun: Seq,
    position: Seq,
    model: Model,
    /// Cells that garbage collection deleted.
    collected: usize,
}

impl Replayed {
    fn new(schema: TabletSchema, seed: u64) -> Self {
        Self::with(tiny_options(), schema, seed)
    }

    fn with(options: EngineOptions, schema: TabletSchema, seed: u64) -> Self {
        let rig = Rig::new(options, schema, seed);
        let begun = rig.tablet.keep_changes(Some(DAY));
        Self { rig, begun, position: begun, model: Model::default(), collected: 0 }
    }

    fn reopen(mut self, crash: Option<CrashMode>, seed: u64) -> Self {
        let files = match crash {
            Some(mode) => Arc::new(self.rig.files.crashed_copy(mode, &SeededRng::new(seed))),
            None => {
                self.rig.engine.close().unwrap();
                Arc::clone(&self.rig.files)
            }
        };
        self.rig = self.rig.reopen_on(files);
        self.rig.tablet.keep_changes(Some(DAY));
        self
    }

    fn set_rule(&mut self, rule: GcRule) {
        self.rig.schema = schema(rule);
        self.rig.tablet.set_schema(Arc::new(self.rig.schema.clone()));
    }

    fn now(&self) -> i64 {
        tepui_engine::io::Clock::now_micros(self.rig.clock.as_ref())
    }

    /// The replay of all changes from the first on, as a reader makes it that begins now.
    fn again(&self) -> Model {
        let mut again = Model::default();
        for change in changes(&self.rig.tablet, self.begun) {
            again.apply(&change.batch.row, &change.batch.mutations);
        }
        again
    }

    /// The cells of the replay that the rules let go at a time.
    fn garbage(&self, now: i64) -> Model {
        let mut newer: BTreeMap<(Vec<u8>, u32, Vec<u8>), u32> = BTreeMap::new();
        let mut garbage = Model::default();
        for ((row, family, qualifier, negated), value) in &self.model.cells {
            let count = newer.entry((row.clone(), *family, qualifier.clone())).or_default();
            let rule = self.rig.schema.families[&FamilyId(*family)].gc.as_ref();
            if rule.is_some_and(|rule| rule.collects(*count, -negated, now)) {
                let key = (row.clone(), *family, qualifier.clone(), *negated);
                garbage.cells.insert(key, value.clone());
            }
            *count += 1;
        }
        garbage
    }

    /// Replays what has come since: of garbage collection, every deletion deletes something, and nothing that the rules
    /// keep. What that leaves is what reads see.
    fn check(&mut self) {
        for change in changes(&self.rig.tablet, self.position) {
            self.position = change.last_seq;
            let RowBatch { row, mutations } = &change.batch;
            if change.source == Source::GarbageCollection {
                let garbage = self.garbage(self.now());
                for mutation in mutations {
                    let mut left = self.model.clone();
                    left.apply(row, std::slice::from_ref(mutation));
                    let gone: Vec<_> = self
                        .model
                        .cells
                        .keys()
                        .filter(|key| !left.cells.contains_key(key))
                        .collect();
                    assert!(!gone.is_empty(), "{mutation:?} deletes nothing of {row:?}");
                    for key in &gone {
                        assert!(garbage.cells.contains_key(key), "{mutation:?} deletes {key:?}");
                    }
                    self.collected += gone.len();
                    self.model = left;
                }
            } else {
                self.model.apply(row, mutations);
            }
        }
        let all = RowRange::all();
        assert_eq!(self.rig.scan(all.clone(), false, None), self.model.rows(&all));
    }

    /// Lets two minutes pass without writes. What might go a minute ago has gone.
    fn idle(&mut self) {
        for _ in 0..12 {
            self.rig.clock.advance_micros(10_000_000);
            self.rig.engine.run_background().unwrap();
            self.check();
        }
        assert_eq!(self.garbage(self.now() - 60_000_000), Model::default());
    }

    fn timestamps(&self, row: &[u8]) -> Vec<i64> {
        self.rig.get(row).iter().map(|cell| cell.timestamp).collect()
    }

    fn flush(&self) {
        block_on(self.rig.tablet.flush()).unwrap();
    }

    fn looked_at(&self) -> u64 {
        self.rig.engine.metrics().collector_rows.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Clone)]
enum Op {
    Apply(u8, Vec<Mutation>),
    Pass(u64),
    Flush,
    Background,
    CompactFully,
    Reopen,
    Crash(u64),
    Rule(GcRule),
    Check,
}

fn rule() -> impl Strategy<Value = GcRule> {
    let age = (1..40i64).prop_map(|minutes| minutes * 60_000_000);
    (0..4, 1..4u32, age).prop_map(|(kind, versions, age)| match kind {
        0 => GcRule::MaxVersions(versions),
        1 => GcRule::MaxAge(age),
        2 => GcRule::Union(both(versions, age)),
        _ => GcRule::Intersection(both(versions, age)),
    })
}

/// Within the hour before the test, and within the hour that it takes.
fn timestamp() -> impl Strategy<Value = i64> {
    (-60..60i64).prop_map(|minutes| START_MICROS + minutes * 60_000_000)
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let qualifier = (0..3u8).prop_map(|n| Bytes::from(vec![b'a' + n]));
    let value = (0..40usize).prop_map(|n| Bytes::from(vec![b'v'; n]));
    let family = FamilyId(1);
    prop_oneof![
        12 => (qualifier.clone(), timestamp(), value).prop_map(
            move |(qualifier, timestamp, value)| Mutation::Put { family, qualifier, timestamp, value }
        ),
        2 => (qualifier, timestamp(), timestamp()).prop_map(move |(qualifier, a, b)| {
            let timestamps = TimestampRange { start: a.min(b), end: a.max(b) + 1_000 };
            Mutation::DeleteCells { family, qualifier, timestamps }
        }),
        1 => Just(Mutation::DeleteFamily { family }),
        1 => Just(Mutation::DeleteRow),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        30 => (0..8u8, prop::collection::vec(mutation(), 1..6)).prop_map(|(row, m)| Op::Apply(row, m)),
        6 => (1..900u64).prop_map(Op::Pass),
        4 => Just(Op::Flush),
        8 => Just(Op::Background),
        2 => Just(Op::CompactFully),
        1 => Just(Op::Reopen),
        2 => any::<u64>().prop_map(Op::Crash),
        2 => rule().prop_map(Op::Rule),
        6 => Just(Op::Check),
    ]
}

fn run(first: GcRule, ops: &[Op], seed: u64) {
    let mut replayed = Replayed::new(schema(first), seed);
    for op in ops {
        match op {
            Op::Apply(row, mutations) => replayed.rig.apply(&[b'r', *row], mutations.clone()),
            Op::Pass(seconds) => replayed.rig.clock.advance_micros(seconds * 1_000_000),
            Op::Flush => replayed.flush(),
            Op::Background => {
                // By the rules and the clock of this moment.
                replayed.check();
                replayed.rig.engine.run_background().unwrap();
                replayed.check();
            }
            Op::CompactFully => replayed.rig.engine.compact_fully().unwrap(),
            Op::Reopen => replayed = replayed.reopen(None, 0),
            Op::Crash(seed) => {
                let mode = if seed % 2 == 0 { CrashMode::Torn } else { CrashMode::Strict };
                replayed = replayed.reopen(Some(mode), *seed);
            }
            Op::Rule(rule) => {
                replayed.check();
                replayed.set_rule(rule.clone());
            }
            Op::Check => replayed.check(),
        }
    }
    replayed.idle();
    assert_eq!(replayed.again(), replayed.model);
    replayed.rig.engine.close().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, max_shrink_iters: 1000, ..ProptestConfig::default() })]

    #[test]
    fn the_replay_of_all_changes_is_what_reads_see(
        rule in rule(),
        ops in prop::collection::vec(op(), 1..100),
        seed in 0..1_000u64,
    ) {
        run(rule, &ops, seed);
    }
}

#[test]
fn cells_that_grow_too_old_on_an_idle_tablet_are_deleted_and_their_space_is_given_back() {
    let mut replayed = Replayed::new(schema(GcRule::MaxAge(HOUR)), 1);
    for n in 0..300_i64 {
        let row = format!("row-{n:03}");
        let put = put(1, "q", START_MICROS - n * 20_000_000, "a value outside of the SST");
        replayed.rig.apply(row.as_bytes(), vec![put]);
    }
    replayed.idle();
    let left = replayed.model.cells.len();
    assert!((170..=180).contains(&left), "{left} are young enough");
    assert!(replayed.rig.tablet.stats().value_files > 0);
    replayed.rig.clock.advance_micros(2 * HOUR as u64);
    replayed.idle();
    assert_eq!((replayed.model.cells.len(), replayed.collected), (0, 300));
    assert_eq!(replayed.rig.tablet.stats().sst_count, 0);
    assert_eq!(replayed.rig.tablet.stats().value_files, 0);
}

#[test]
fn versions_in_different_files_are_deleted_once_the_tablet_is_idle() {
    let mut replayed = Replayed::new(schema(GcRule::MaxVersions(2)), 1);
    for timestamp in 1..=5 {
        replayed.rig.apply(b"r", vec![put(1, "q", timestamp * 1000, "v"), put(1, "p", 1000, "v")]);
        replayed.flush();
    }
    replayed.rig.engine.compact_fully().unwrap();
    assert_eq!(replayed.timestamps(b"r").len(), 6, "a compaction deletes nothing");
    replayed.idle();
    assert_eq!(replayed.timestamps(b"r"), [1000, 5000, 4000]);
    assert_eq!(replayed.collected, 3);
    assert_eq!(replayed.rig.tablet.stats().records, 3);
    let looked_at = replayed.looked_at();
    assert_eq!(looked_at, 1);
    replayed.idle();
    assert_eq!(replayed.looked_at(), looked_at, "what was looked at stays looked at");
}

#[test]
fn unions_and_intersections_delete_what_they_say() {
    for rule in [GcRule::Union(both(2, HOUR)), GcRule::Intersection(both(1, HOUR))] {
        let mut replayed = Replayed::new(schema(rule.clone()), 1);
        for age in [0, HOUR / 2, 2 * HOUR, 3 * HOUR] {
            replayed.rig.apply(b"r", vec![put(1, "q", START_MICROS - age, "v")]);
            replayed.flush();
        }
        replayed.idle();
        let expected = [START_MICROS, START_MICROS - HOUR / 2];
        assert_eq!(replayed.timestamps(b"r"), expected, "{rule:?}");
        replayed.rig.clock.advance_micros((HOUR * 3 / 4) as u64);
        replayed.idle();
        assert_eq!(replayed.timestamps(b"r"), [START_MICROS], "{rule:?}");
        replayed.rig.clock.advance_micros(HOUR as u64);
        replayed.idle();
        let is_gone = replayed.timestamps(b"r").is_empty();
        assert_eq!(is_gone, matches!(rule, GcRule::Union(_)), "{rule:?}");
    }
}

#[test]
fn a_rule_that_is_given_later_acts_on_what_is_there_and_one_that_is_taken_away_acts_no_more() {
    let mut replayed = Replayed::new(schema(GcRule::MaxVersions(9)), 1);
    for timestamp in 1..=5 {
        replayed.rig.apply(b"r", vec![put(1, "q", timestamp * 1000, "v")]);
    }
    replayed.idle();
    assert_eq!(replayed.collected, 0);
    replayed.set_rule(GcRule::MaxVersions(3));
    replayed.idle();
    assert_eq!(replayed.timestamps(b"r"), [5000, 4000, 3000]);
    replayed.set_rule(GcRule::Intersection(Vec::new()));
    for timestamp in 6..=9 {
        replayed.rig.apply(b"r", vec![put(1, "q", timestamp * 1000, "v")]);
    }
    replayed.idle();
    assert_eq!(replayed.timestamps(b"r").len(), 7);
}

#[test]
fn once_changes_are_not_kept_any_more_compactions_collect_as_elsewhere() {
    let replayed = Replayed::new(schema(GcRule::MaxVersions(1)), 1);
    for timestamp in 1..=5 {
        replayed.rig.apply(b"r", vec![put(1, "q", timestamp * 1000, "v")]);
    }
    replayed.flush();
    assert_eq!(replayed.timestamps(b"r").len(), 5, "nor does a flush delete");
    replayed.rig.tablet.keep_changes(None);
    replayed.rig.engine.compact_fully().unwrap();
    assert_eq!(replayed.timestamps(b"r"), [5000]);
    let logged = replayed.rig.engine.log_figures().batches;
    for _ in 0..6 {
        replayed.rig.clock.advance_micros(10_000_000);
        replayed.rig.engine.run_background().unwrap();
    }
    assert_eq!((replayed.looked_at(), replayed.rig.engine.log_figures().batches), (0, logged));
}

#[test]
fn a_row_with_thousands_of_columns_and_thousands_of_rows_are_collected_in_pieces() {
    let replayed = Replayed::new(schema(GcRule::MaxVersions(1)), 1);
    for timestamp in [1000, 2000] {
        let columns = |n: u32| put(1, &format!("c{n:05}"), timestamp, "v");
        replayed.rig.apply(b"wide", (0..2_500).map(columns).collect());
        for n in 0..600 {
            replayed.rig.apply(format!("row-{n:04}").as_bytes(), vec![put(1, "q", timestamp, "v")]);
        }
        replayed.flush();
    }
    // Within one call, however many pieces: the engine is idle when it returns.
    for _ in 0..3 {
        replayed.rig.clock.advance_micros(10_000_000);
        replayed.rig.engine.run_background().unwrap();
    }
    let changes = changes(&replayed.rig.tablet, replayed.begun);
    let collected = changes.iter().filter(|change| change.source == Source::GarbageCollection);
    let sizes: Vec<usize> = collected.map(|change| change.batch.mutations.len()).collect();
    assert_eq!((sizes.iter().sum::<usize>(), sizes.len()), (3_100, 603));
    let all = RowRange::all();
    assert_eq!(replayed.rig.scan(all.clone(), false, None), replayed.again().rows(&all));
    assert_eq!(replayed.again().cells.len(), 3_100);
}

#[test]
fn an_aggregate_cell_goes_as_a_whole_and_begins_anew() {
    let gc = Some(GcRule::MaxAge(HOUR));
    let family = FamilyOptions { gc, aggregate: Some(Aggregate::Sum), gc_since_micros: 0 };
    let schema = TabletSchema { families: [(FamilyId(1), family)].into() };
    let replayed = Replayed::new(schema, 1);
    let rig = &replayed.rig;
    let add = |timestamp: i64, operand: i64| {
        let merge = Mutation::Merge {
            family: FamilyId(1),
            qualifier: "sum".into(),
            timestamp,
            operand: operand.to_be_bytes().to_vec().into(),
        };
        rig.apply(b"r", vec![merge]);
        replayed.flush();
    };
    let old = START_MICROS - HOUR / 2;
    for n in 1..=4 {
        add(old, n);
        add(START_MICROS, 10 * n);
    }
    let sums = || -> Vec<i64> {
        let cells = rig.get(b"r");
        cells.iter().map(|c| i64::from_be_bytes(c.value.as_ref().try_into().unwrap())).collect()
    };
    assert_eq!(sums(), [100, 10]);
    rig.clock.advance_micros((HOUR / 2 + 60_000_000) as u64);
    for _ in 0..6 {
        rig.clock.advance_micros(10_000_000);
        rig.engine.run_background().unwrap();
        assert!([vec![100, 10], vec![100]].contains(&sums()), "{:?}", sums());
    }
    assert_eq!(sums(), [100]);
    add(old, 7);
    assert_eq!(sums(), [100, 7]);
    let collected = changes(&rig.tablet, replayed.position);
    let collected = collected.iter().filter(|c| c.source == Source::GarbageCollection);
    assert_eq!(collected.count(), 1);
}

#[test]
fn beside_writers_of_the_same_cells_every_change_is_in_the_order_of_reads() {
    const WRITERS: u64 = 3;
    /// Writers go on until so many cells were collected, or they have written so many batches each.
    const COLLECTED: u64 = 2_000;
    const BATCHES_MAX: u64 = 20_000;
    let options = EngineOptions {
        background: true,
        memtable_bytes: 64 << 10,
        target_file_bytes: 8 << 10,
        base_level_bytes: 32 << 10,
        gc_interval_ms: 50,
        gc_idle_ms: 0,
        ..tiny_options()
    };
    let rule = GcRule::Union(both(2, HOUR));
    let replayed = Replayed::with(options, schema(rule), 3);
    let rig = &replayed.rig;
    let collected = || rig.engine.metrics().cells_collected.load(Ordering::Relaxed);
    let write = |seed: u64| {
        let rng = SeededRng::new(seed);
        for n in 0..BATCHES_MAX {
            if collected() >= COLLECTED {
                return;
            }
            if n % 100 == seed {
                block_on(rig.tablet.flush()).unwrap();
                rig.clock.advance_micros(1_000_000);
            }
            let row = format!("row-{:02}", rng.next_u64() % 20);
            let column = if rng.next_u64().is_multiple_of(2) { "a" } else { "b" };
            // Few timestamps: a cell that was collected is written again.
            let timestamp = START_MICROS - (rng.next_u64() % 8) as i64 * HOUR / 4;
            let value = format!("{:100}", rng.next_u64());
            let mutations = match rng.next_u64() % 12 {
                0 => vec![Mutation::DeleteRow],
                1 => {
                    let timestamps = TimestampRange { start: timestamp, end: timestamp + 1_000 };
                    let (family, qualifier) = (FamilyId(1), Bytes::from(column));
                    vec![Mutation::DeleteCells { family, qualifier, timestamps }]
                }
                _ => vec![put(1, column, timestamp, &value), put(1, "c", timestamp, &value)],
            };
            rig.apply(row.as_bytes(), mutations);
        }
    };
    let write = &write;
    std::thread::scope(|threads| {
        for writer in 0..WRITERS {
            threads.spawn(move || write(writer));
        }
    });
    rig.engine.close().unwrap();
    // Nothing runs any more, so what is read and the end of the history are of one moment.
    let mut deleted = 0;
    let mut model = Model::default();
    for change in changes(&rig.tablet, replayed.position) {
        let before = model.cells.len();
        model.apply(&change.batch.row, &change.batch.mutations);
        if change.source == Source::GarbageCollection {
            assert!(model.cells.len() < before, "{change:?} deletes nothing");
            deleted += (before - model.cells.len()) as u64;
        }
    }
    assert!(deleted >= COLLECTED, "{deleted}");
    assert_eq!(deleted, collected());
    let rows = scan(&rig.tablet, RowRange::all(), Projection::all(), false, None).unwrap();
    assert_eq!(rows, model.rows(&RowRange::all()));
}
