//! Compactions in parts, of files that were cut by rows, of tombstones and of what has expired: whatever the shape
//! of the tree and whoever does the work, what is read is what was written, and what fails leaves nothing but what it has
//! done before.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::executor::block_on;
use proptest::prelude::*;

use tepui_engine::ErrorKind;
use tepui_engine::cell::{FamilyId, Mutation, RowBatch, RowRange};
use tepui_engine::db::{
    CompactionStyle, CompressionPolicy, Engine, EngineOptions, Health, TIERED_RUNS_MAX,
};
use tepui_engine::io::{
    CrashMode, Fault, FaultFiles, FaultOp, Files, ManualClock, MemoryFiles, SeededRng,
};
use tepui_engine::schema::{FamilyOptions, GcRule, TabletSchema};
use tepui_engine::tablet::Tablet;

use crate::harness::{Model, Rig, START_MICROS, env, plain_schema, put, scan, tiny_options};

const MINUTE_MICROS: u64 = 60_000_000;

/// Options under which a compaction of a hundred kilobytes has many parts, and a flush many files.
fn many_parts() -> EngineOptions {
    EngineOptions {
        target_file_bytes: 1 << 10,
        base_level_bytes: 8 << 10,
        memtable_bytes: 64 << 10,
        compression: CompressionPolicy::None,
        compaction_threads: 3,
        ..tiny_options()
    }
}

/// Files that have room for a thousand tombstones, and a level 0 that is not due.
fn larger_files() -> EngineOptions {
    EngineOptions { l0_compaction_files: 8, target_file_bytes: 64 << 10, ..many_parts() }
}

fn key(n: u32) -> Vec<u8> {
    format!("row-{n:05}").into_bytes()
}

fn fill(rig: &Rig, model: &mut Model, rows: impl Iterator<Item = u32>, round: i64) {
    for n in rows {
        let mutations = vec![
            put(1, "a", 1000 + round, &format!("value {round} of {n}")),
            put(2, "b", 1000, &"x".repeat(40)),
        ];
        rig.apply(&key(n), mutations.clone());
        model.apply(&key(n), &mutations);
    }
}

fn check(rig: &Rig, model: &Model) {
    assert!(rig.scan(RowRange::all(), false, None) == model.rows(&RowRange::all()), "a scan");
    let mut backwards = rig.scan(RowRange::all(), true, None);
    backwards.reverse();
    assert!(backwards == model.rows(&RowRange::all()), "a scan backwards");
    for n in (0..2000).step_by(97) {
        let row = key(n);
        let expected = model.rows(&RowRange::row(&row)).pop().map_or(Vec::new(), |row| row.cells);
        assert_eq!(rig.get(&row), expected, "row {n}");
    }
}

fn ssts(files: &MemoryFiles) -> BTreeSet<String> {
    files.list(Path::new("/data/sst")).unwrap().into_iter().map(|entry| entry.name).collect()
}

#[test]
fn flushes_and_compactions_in_parts_keep_every_row() {
    let mut rig = Rig::new(many_parts(), plain_schema(), 21);
    let mut model = Model::default();
    for round in 0..6 {
        // Every row, then every second one, then every third ...
        fill(&rig, &mut model, (0..2000).step_by(round as usize + 1), round);
        let range = RowRange::new(key(300 * round as u32), key(300 * round as u32 + 120));
        let snapshot = rig.tablet.snapshot();
        let before = model.clone();
        block_on(rig.tablet.drop_rows(range.clone())).unwrap();
        model.drop_rows(&range);
        rig.apply(&key(7 * round as u32), vec![Mutation::DeleteRow]);
        model.apply(&key(7 * round as u32), &[Mutation::DeleteRow]);
        block_on(rig.tablet.flush()).unwrap();
        check(&rig, &model);
        rig.engine.run_background().unwrap();
        check(&rig, &model);
        let then = rig.scan(RowRange::all(), false, Some(snapshot));
        assert!(then == before.rows(&RowRange::all()), "an open snapshot");
    }
    let files = rig.tablet.stats().level_files;
    assert!(files.iter().sum::<usize>() > 20, "{files:?}");
    let crashed = rig.files.crashed_copy(CrashMode::Torn, &SeededRng::new(5));
    rig = rig.reopen_on(Arc::new(crashed));
    check(&rig, &model);
    rig.engine.compact_fully().unwrap();
    check(&rig, &model);
}

#[test]
fn a_flush_beside_a_large_base_level_is_several_files_but_one_sublevel() {
    let options = EngineOptions { l0_compaction_files: 3, ..many_parts() };
    let rig = Rig::new(options, plain_schema(), 22);
    let mut model = Model::default();
    fill(&rig, &mut model, 0..400, 0);
    block_on(rig.tablet.flush()).unwrap();
    rig.engine.compact_fully().unwrap();
    // Within its target, the last level is what level 0 goes into.
    fill(&rig, &mut model, 0..400, 1);
    block_on(rig.tablet.flush()).unwrap();
    let stats = rig.tablet.stats();
    assert!(stats.level_files[0] > 1, "{stats:?}");
    assert_eq!(stats.sublevels, 1, "{stats:?}");
    check(&rig, &model);
}

#[test]
fn flushes_are_several_files_though_the_level_that_they_go_into_first_is_empty() {
    let options = EngineOptions { l0_compaction_files: 100, ..many_parts() };
    let rig = Rig::new(options, plain_schema(), 31);
    let mut model = Model::default();
    fill(&rig, &mut model, 0..1500, 0);
    block_on(rig.tablet.flush()).unwrap();
    rig.engine.compact_fully().unwrap();
    // As level 0 grows, what would hold less than it is passed, one level after the other.
    for flushes in 1..8 {
        let before = rig.tablet.stats().level_files[0];
        fill(&rig, &mut model, (0..1500).step_by(4), flushes);
        block_on(rig.tablet.flush()).unwrap();
        let stats = rig.tablet.stats();
        assert_eq!(stats.level_files[1..6].iter().sum::<usize>(), 0, "{stats:?}");
        assert!(stats.level_files[0] >= before + 4, "{before} before: {stats:?}");
        assert_eq!(stats.sublevels, flushes as usize, "{stats:?}");
    }
    check(&rig, &model);
}

#[test]
fn a_tiered_tablet_is_written_less_often_and_may_become_leveled_and_back() {
    let written = |style: CompactionStyle| {
        let options = EngineOptions { compaction: style, ..many_parts() };
        let mut rig = Rig::new(options, plain_schema(), 25);
        let mut model = Model::default();
        for round in 0..24 {
            // All rows at first; later a part of them anew, deletes and drops among them.
            let rows = if round == 0 { 0..800 } else { 0..(round % 7) * 40 + 40 };
            fill(&rig, &mut model, rows, i64::from(round));
            rig.apply(&key(round * 31), vec![Mutation::DeleteRow]);
            model.apply(&key(round * 31), &[Mutation::DeleteRow]);
            block_on(rig.tablet.flush()).unwrap();
            if round % 10 == 5 {
                let range = RowRange::new(key(round * 30), key(round * 30 + 20));
                block_on(rig.tablet.drop_rows(range.clone())).unwrap();
                model.drop_rows(&range);
            }
            rig.engine.run_background().unwrap();
            if round % 6 == 5 {
                check(&rig, &model);
            }
            assert!(rig.tablet.stats().sublevels <= TIERED_RUNS_MAX, "{:?}", rig.tablet.stats());
        }
        let written = rig.engine.metrics().compaction_write_bytes.load(Ordering::Relaxed);
        let stats = rig.tablet.stats();
        let between: usize = stats.level_files[1..6].iter().sum();
        // Its own garbage and what lies above the last level is bounded.
        assert!(style == CompactionStyle::Leveled || between == 0, "{stats:?}");
        let (upper, last) = (stats.level_bytes[0], stats.level_bytes[6]);
        assert!(style == CompactionStyle::Leveled || upper <= last, "{stats:?}");
        // The other way round from here on, also over a start.
        let other = match style {
            CompactionStyle::Leveled => CompactionStyle::Tiered,
            CompactionStyle::Tiered => CompactionStyle::Leveled,
        };
        rig.tablet.set_compaction(other);
        rig.engine.run_background().unwrap();
        check(&rig, &model);
        rig.engine.close().unwrap();
        rig.options.compaction = other;
        let files = Arc::clone(&rig.files);
        rig = rig.reopen_on(files);
        fill(&rig, &mut model, 0..300, 99);
        block_on(rig.tablet.flush()).unwrap();
        rig.engine.run_background().unwrap();
        check(&rig, &model);
        if other == CompactionStyle::Tiered {
            let stats = rig.tablet.stats();
            assert_eq!(stats.level_files[1..6].iter().sum::<usize>(), 0, "{stats:?}");
        }
        rig.engine.compact_fully().unwrap();
        check(&rig, &model);
        written
    };
    let (leveled, tiered) = (written(CompactionStyle::Leveled), written(CompactionStyle::Tiered));
    assert!(tiered < leveled, "{tiered} tiered, {leveled} leveled");
}

#[test]
fn a_failure_in_any_part_leaves_what_was_done_before_it_and_no_other_file() {
    let rig = Rig::new(many_parts(), plain_schema(), 23);
    let mut model = Model::default();
    for round in 0..3 {
        fill(&rig, &mut model, 0..1500, round);
        block_on(rig.tablet.flush()).unwrap();
    }
    rig.engine.close().unwrap();
    let id = rig.tablet.id();
    let original = Arc::clone(&rig.files);
    let before = ssts(&original);
    drop(rig);
    let (mut failed, mut done) = (0, 0);
    // Creations of outputs: of the first part, in the middle, of the last ones.
    for nth in [1, 2, 5, 20, 60, 100, 10_000] {
        let memory = Arc::new(original.crashed_copy(CrashMode::Strict, &SeededRng::new(1)));
        let files = Arc::new(FaultFiles::new(Arc::clone(&memory) as Arc<dyn Files>));
        let clock = Arc::new(ManualClock::new(START_MICROS));
        let open = || {
            let seen = Arc::clone(&files) as Arc<dyn Files>;
            let environment = env(seen, clock.clone(), 7);
            let engine = Engine::open(environment, Path::new("/data"), many_parts()).unwrap();
            let tablet = engine.tablet(id).unwrap();
            tablet.set_schema(Arc::new(plain_schema()));
            (engine, tablet)
        };
        let (mut engine, mut tablet) = open();
        let fault = Fault::new(FaultOp::Create).on_path(".sst").nth(nth);
        files.inject(fault.kind(ErrorKind::NoSpace));
        if let Err(error) = engine.compact_fully() {
            failed += 1;
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
            assert_eq!(engine.health(), Health::Serving);
            assert!(all_rows(&tablet) == model.rows(&RowRange::all()), "creation {nth}");
            let stats = tablet.stats();
            assert!(stats.level_files[6] >= done && stats.level_files[0] > 0, "{stats:?}");
            done = stats.level_files[6];
            engine.close().unwrap();
            drop(tablet);
            (engine, tablet) = open();
            assert_eq!(tablet.stats().level_files, stats.level_files, "creation {nth}");
            assert_eq!(ssts(&memory).len(), done + stats.level_files[0], "creation {nth}");
            assert!(done > 0 || ssts(&memory) == before, "creation {nth}");
        }
        assert_eq!(engine.health(), Health::Serving);
        assert!(all_rows(&tablet) == model.rows(&RowRange::all()), "creation {nth}");
        engine.compact_fully().unwrap();
        assert!(all_rows(&tablet) == model.rows(&RowRange::all()), "creation {nth}");
        assert_eq!(tablet.stats().level_files[0], 0, "creation {nth}");
    }
    assert!(done > 0);
    assert!((4..7).contains(&failed), "{failed} of the creations were there to fail");
}

fn all_rows(tablet: &Tablet) -> Vec<tepui_engine::cell::Row> {
    scan(tablet, RowRange::all(), tepui_engine::read::Projection::all(), false, None).unwrap()
}

#[test]
fn compactions_on_several_threads_at_once_keep_every_acknowledged_row() {
    let options = EngineOptions { background: true, memtable_bytes: 32 << 10, ..many_parts() };
    let rig = Rig::new(options, plain_schema(), 24);
    let mut model = Model::default();
    for round in 0..8 {
        fill(&rig, &mut model, (0..1500).step_by(1 + round as usize % 2), round);
    }
    check(&rig, &model);
    block_on(rig.tablet.flush()).unwrap();
    rig.engine.compact_fully().unwrap();
    check(&rig, &model);
    rig.engine.close().unwrap();
    let files = Arc::clone(&rig.files);
    let rig = rig.reopen_on(files);
    check(&rig, &model);
}

#[test]
fn after_most_rows_are_deleted_a_scan_looks_at_little_more_than_what_lives() {
    let rig = Rig::new(larger_files(), plain_schema(), 25);
    let mut model = Model::default();
    fill(&rig, &mut model, 0..2000, 0);
    block_on(rig.tablet.flush()).unwrap();
    rig.engine.compact_fully().unwrap();
    for n in 0..1800 {
        rig.apply(&key(n), vec![Mutation::DeleteRow]);
        model.apply(&key(n), &[Mutation::DeleteRow]);
    }
    assert!(rig.tablet.stats().records > 5000, "{:?}", rig.tablet.stats());
    // No further write comes. The memtable is flushed, and the tombstones are merged with what they hide.
    for _ in 0..6 {
        rig.clock.advance_micros(MINUTE_MICROS / 6);
        rig.engine.run_background().unwrap();
    }
    assert_eq!(rig.tablet.stats().records, 400, "{:?}", rig.tablet.stats());
    check(&rig, &model);
}

#[test]
fn a_run_of_tombstones_too_small_to_matter_for_space_goes_once_writes_pause() {
    let options = EngineOptions { memtable_bytes: 4 << 20, ..larger_files() };
    let rig = Rig::new(options, plain_schema(), 26);
    let mut model = Model::default();
    fill(&rig, &mut model, 0..6000, 0);
    block_on(rig.tablet.flush()).unwrap();
    rig.engine.compact_fully().unwrap();
    // One file of level 0 from the first row to the last, with a run of tombstones at its start.
    for n in 0..1100 {
        rig.apply(&key(n), vec![Mutation::DeleteRow]);
        model.apply(&key(n), &[Mutation::DeleteRow]);
    }
    fill(&rig, &mut model, [5999].into_iter(), 1);
    block_on(rig.tablet.flush()).unwrap();
    rig.engine.run_background().unwrap();
    rig.clock.advance_micros(MINUTE_MICROS);
    rig.engine.run_background().unwrap();
    let stats = rig.tablet.stats();
    // And the other version of the last row.
    assert_eq!(stats.records, 2 * 4900 + 1, "{stats:?}");
    check(&rig, &model);
}

#[test]
fn files_of_which_everything_has_expired_go_without_being_read() {
    let family = FamilyOptions {
        gc: Some(GcRule::MaxAge(3_600_000_000)),
        aggregate: None,
        gc_since_micros: 0,
    };
    let schema = TabletSchema { families: [(FamilyId(1), family)].into() };
    let rig = Rig::new(many_parts(), schema, 27);
    // Rows are written in the order of their time, as events are.
    for n in 0..1000u32 {
        let timestamp = START_MICROS - 3_000_000_000 + i64::from(n) * 3_000_000;
        rig.apply(&key(n), vec![put(1, "q", timestamp, &"v".repeat(50))]);
    }
    block_on(rig.tablet.flush()).unwrap();
    rig.engine.compact_fully().unwrap();
    let figures = || {
        let metrics = rig.engine.metrics();
        let read = metrics.compaction_read_bytes.load(Ordering::Relaxed);
        (read, metrics.cells_collected.load(Ordering::Relaxed))
    };
    let (read, collected) = figures();
    let before = rig.tablet.stats();
    // All but the newest seconds of it.
    rig.clock.advance_micros(3_590_000_000);
    rig.engine.run_background().unwrap();
    let after = rig.tablet.stats();
    let gone = before.records - after.records;
    assert!(gone >= 990, "{before:?} {after:?}");
    let (read, collected) = (figures().0 - read, figures().1 - collected);
    assert_eq!(collected, gone);
    assert!(read < before.sst_bytes / 10, "{read} bytes read of {}", before.sst_bytes);
    assert_eq!(rig.scan(RowRange::all(), false, None).len() as u64, after.records);
}

#[test]
fn old_files_are_written_anew_once() {
    let options = EngineOptions { rewrite_age_ms: 60_000, ..many_parts() };
    let rig = Rig::new(options, plain_schema(), 28);
    let mut model = Model::default();
    fill(&rig, &mut model, 0..200, 0);
    block_on(rig.tablet.flush()).unwrap();
    rig.engine.compact_fully().unwrap();
    let written = || rig.engine.metrics().compaction_write_bytes.load(Ordering::Relaxed);
    let before = written();
    rig.clock.advance_micros(MINUTE_MICROS / 2);
    rig.engine.run_background().unwrap();
    assert_eq!(written(), before);
    rig.clock.advance_micros(MINUTE_MICROS);
    rig.engine.run_background().unwrap();
    let once = written() - before;
    assert!(once > 0);
    rig.clock.advance_micros(MINUTE_MICROS / 2);
    rig.engine.run_background().unwrap();
    assert_eq!(written() - before, once);
    check(&rig, &model);
}

#[test]
fn what_compaction_owes_is_paid_when_the_tree_has_settled() {
    let rig = Rig::new(many_parts(), plain_schema(), 29);
    let mut model = Model::default();
    assert_eq!(rig.tablet.stats().compaction_debt_bytes, 0);
    for round in 0..6 {
        fill(&rig, &mut model, 0..1500, round);
        block_on(rig.tablet.flush()).unwrap();
    }
    assert!(rig.tablet.stats().compaction_debt_bytes > 0);
    assert!(!rig.engine.is_settled());
    rig.engine.run_background().unwrap();
    assert!(rig.engine.is_settled());
    // Level 0 may keep what does not make it due.
    let stats = rig.tablet.stats();
    assert!(stats.compaction_debt_bytes < stats.sst_bytes / 2, "{stats:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, max_shrink_iters: 100, ..ProptestConfig::default() })]

    /// A power cut while files of many parts come and go.
    #[test]
    fn a_power_cut_between_compactions_in_parts_loses_nothing(
        rounds in prop::collection::vec((0u32..1500, 1u32..800, any::<bool>(), any::<bool>()), 1..6),
        seed in any::<u64>(),
    ) {
        let mut rig = Rig::new(many_parts(), plain_schema(), 30);
        let mut model = Model::default();
        for (round, (start, count, torn, settle)) in rounds.into_iter().enumerate() {
            fill(&rig, &mut model, start..start + count, round as i64);
            let gone = RowRange::new(key(start + count / 3), key(start + count / 2));
            block_on(rig.tablet.drop_rows(gone.clone())).unwrap();
            model.drop_rows(&gone);
            block_on(rig.tablet.flush()).unwrap();
            if settle {
                rig.engine.run_background().unwrap();
            }
            let mode = if torn { CrashMode::Torn } else { CrashMode::Strict };
            let files = rig.files.crashed_copy(mode, &SeededRng::new(seed));
            rig = rig.reopen_on(Arc::new(files));
            prop_assert!(rig.scan(RowRange::all(), false, None) == model.rows(&RowRange::all()));
        }
        rig.engine.compact_fully().unwrap();
        prop_assert!(rig.scan(RowRange::all(), false, None) == model.rows(&RowRange::all()));
        let row = RowBatch { row: key(1).into(), mutations: vec![put(1, "a", 1, "after")] };
        block_on(rig.tablet.apply(row)).unwrap();
        prop_assert!(!rig.get(&key(1)).is_empty());
    }
}
