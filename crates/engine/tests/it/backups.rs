//! Backups: what a table was stays readable whatever becomes of the table, through restarts and crashes and faults at
//! every step; and files go when nothing needs them any more.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use futures::executor::block_on;
use proptest::prelude::*;

use tepui_engine::backup::BackupId;
use tepui_engine::cell::{Mutation, RowBatch, RowRange};
use tepui_engine::db::{Engine, EngineOptions, Health};
use tepui_engine::io::{
    CrashMode, Fault, FaultFiles, FaultOp, Files, ManualClock, MemoryFiles, SeededRng,
};
use tepui_engine::read::Projection;
use tepui_engine::tablet::{Tablet, TabletId};
use tepui_engine::{Error, ErrorKind};

use crate::harness::{Model, START_MICROS, env, put, scan, schema_with_sums, tiny_options};
use crate::model::{mutation, row, row_range};

const DIR: &str = "/data";

fn open(files: Arc<dyn Files>, seed: u64) -> Arc<Engine> {
    let clock = Arc::new(ManualClock::new(START_MICROS));
    Engine::open(env(files, clock, seed), Path::new(DIR), tiny_options()).unwrap()
}

fn serve(engine: &Arc<Engine>) {
    for tablet in engine.tablets() {
        tablet.set_schema(Arc::new(schema_with_sums()));
    }
    engine.start().unwrap();
}

fn apply(tablet: &Tablet, row: &[u8], mutations: Vec<Mutation>) {
    block_on(tablet.apply(RowBatch { row: row.to_vec().into(), mutations })).unwrap();
}

fn assert_holds(tablet: &Tablet, model: &Model, what: &str) {
    let rows = scan(tablet, RowRange::all(), Projection::all(), false, None).unwrap();
    assert_eq!(rows, model.rows(tablet.range()), "{what}");
}

/// Names of the files that hold data.
fn data_files(files: &MemoryFiles) -> Vec<String> {
    let mut names = Vec::new();
    for dir in ["sst", "values"] {
        let dir = Path::new(DIR).join(dir);
        names.extend(files.list(&dir).unwrap().into_iter().map(|entry| entry.name));
    }
    names
}

/// What the catalog would know: tablets and backups by what they must hold.
#[derive(Default)]
struct Catalog {
    tablets: BTreeMap<TabletId, Model>,
    backups: BTreeMap<BackupId, Model>,
}

impl Catalog {
    /// What a server does before it serves.
    fn retain(&self, engine: &Arc<Engine>) {
        let tablets: Vec<_> = self.tablets.keys().copied().collect();
        let backups: Vec<_> = self.backups.keys().copied().collect();
        engine.retain_tablets(&tablets).unwrap();
        engine.retain_backups(&backups).unwrap();
        serve(engine);
    }

    fn check(&self, engine: &Engine) {
        for (id, model) in &self.tablets {
            assert_holds(&engine.tablet(*id).expect("the tablet is there"), model, "a tablet");
        }
        for (id, model) in &self.backups {
            assert_restores(engine, *id, model);
        }
    }
}

/// Restores a backup, compares, and drops what was restored.
fn assert_restores(engine: &Engine, id: BackupId, model: &Model) {
    for tablet in engine.restore_backup(id).unwrap() {
        tablet.set_schema(Arc::new(schema_with_sums()));
        assert_holds(&tablet, model, "restored");
        engine.drop_tablet(tablet.id()).unwrap();
    }
}

#[derive(Debug, Clone)]
enum Op {
    Apply(Vec<u8>, Vec<Mutation>),
    Flush,
    Background,
    CompactFully,
    DropRows(RowRange),
    Backup,
    Copy(prop::sample::Index),
    Restore(prop::sample::Index),
    DeleteBackup(prop::sample::Index),
    DropTablet(prop::sample::Index),
    Reopen,
    Crash { torn: bool, seed: u64 },
    Check,
}

/// Which tablet an operation is for, and the operation.
fn op() -> impl Strategy<Value = (prop::sample::Index, Op)> {
    let which = any::<prop::sample::Index>;
    let op = prop_oneof![
        24 => (row(), prop::collection::vec(mutation(), 1..6)).prop_map(|(r, m)| Op::Apply(r, m)),
        3 => Just(Op::Flush),
        4 => Just(Op::Background),
        2 => Just(Op::CompactFully),
        2 => row_range().prop_map(Op::DropRows),
        4 => Just(Op::Backup),
        1 => which().prop_map(Op::Copy),
        3 => which().prop_map(Op::Restore),
        2 => which().prop_map(Op::DeleteBackup),
        2 => which().prop_map(Op::DropTablet),
        1 => Just(Op::Reopen),
        2 => (any::<bool>(), any::<u64>()).prop_map(|(torn, seed)| Op::Crash { torn, seed }),
        3 => Just(Op::Check),
    ];
    (which(), op)
}

struct History {
    files: Arc<MemoryFiles>,
    engine: Arc<Engine>,
    catalog: Catalog,
    seed: u64,
}

impl History {
    fn new() -> Self {
        let files = Arc::new(MemoryFiles::new());
        let engine = open(Arc::clone(&files) as Arc<dyn Files>, 1);
        let mut history = Self { files, engine, catalog: Catalog::default(), seed: 1 };
        history.create();
        history
    }

    fn create(&mut self) {
        let tablet = self.engine.create_tablet(RowRange::all()).unwrap();
        self.catalog.tablets.insert(tablet.id(), Model::default());
        serve(&self.engine);
    }

    fn reopen_on(&mut self, files: Arc<MemoryFiles>) {
        self.seed += 1;
        self.engine = open(Arc::clone(&files) as Arc<dyn Files>, self.seed);
        self.files = files;
        self.catalog.retain(&self.engine);
    }

    fn backup(&self, which: prop::sample::Index) -> Option<BackupId> {
        let ids: Vec<_> = self.catalog.backups.keys().copied().collect();
        (!ids.is_empty()).then(|| *which.get(&ids))
    }

    fn step(&mut self, which: prop::sample::Index, op: &Op) {
        let ids: Vec<_> = self.catalog.tablets.keys().copied().collect();
        let id = *which.get(&ids);
        let tablet = self.engine.tablet(id).unwrap();
        let model = self.catalog.tablets.get_mut(&id).unwrap();
        match op {
            Op::Apply(row, mutations) => {
                apply(&tablet, row, mutations.clone());
                model.apply(row, mutations);
            }
            Op::Flush => block_on(tablet.flush()).unwrap(),
            Op::Background => self.engine.run_background().unwrap(),
            Op::CompactFully => self.engine.compact_fully().unwrap(),
            Op::DropRows(range) => {
                block_on(tablet.drop_rows(range.clone())).unwrap();
                model.drop_rows(range);
            }
            Op::Backup => {
                let backup = block_on(self.engine.create_backup(&[id])).unwrap();
                let model = model.clone();
                self.catalog.backups.insert(backup.id(), model);
            }
            Op::Copy(which) => {
                let Some(backup) = self.backup(*which) else { return };
                let copy = self.engine.copy_backup(backup).unwrap().id();
                let model = self.catalog.backups[&backup].clone();
                self.catalog.backups.insert(copy, model);
            }
            Op::Restore(which) => {
                let Some(backup) = self.backup(*which) else { return };
                let restored = self.engine.restore_backup(backup).unwrap();
                let model = self.catalog.backups[&backup].clone();
                self.catalog.tablets.insert(restored[0].id(), model);
                serve(&self.engine);
            }
            Op::DeleteBackup(which) => {
                let Some(backup) = self.backup(*which) else { return };
                self.engine.delete_backup(backup).unwrap();
                self.catalog.backups.remove(&backup);
            }
            Op::DropTablet(which) => {
                let id = *which.get(&ids);
                drop(tablet);
                self.engine.drop_tablet(id).unwrap();
                self.catalog.tablets.remove(&id);
                if self.catalog.tablets.is_empty() {
                    self.create();
                }
            }
            Op::Reopen => {
                drop(tablet);
                self.engine.close().unwrap();
                self.reopen_on(Arc::clone(&self.files));
            }
            Op::Crash { torn, seed } => {
                drop(tablet);
                let mode = if *torn { CrashMode::Torn } else { CrashMode::Strict };
                let files = self.files.crashed_copy(mode, &SeededRng::new(*seed));
                self.reopen_on(Arc::new(files));
            }
            Op::Check => self.catalog.check(&self.engine),
        }
    }
}

fn cases() -> u32 {
    // TEPUI_MODEL_CASES raises the number for a soak.
    std::env::var("TEPUI_MODEL_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(48)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn random_histories_of_tables_and_backups_match_the_model(
        ops in prop::collection::vec(op(), 1..100),
    ) {
        let mut history = History::new();
        for (which, op) in &ops {
            history.step(*which, op);
        }
        history.catalog.check(&history.engine);
        // And nothing is left of what is given up.
        let tablets: Vec<_> = history.catalog.tablets.keys().copied().collect();
        for id in tablets {
            history.engine.drop_tablet(id).unwrap();
        }
        history.engine.run_background().unwrap();
        for (id, model) in &history.catalog.backups {
            assert_restores(&history.engine, *id, model);
        }
        history.engine.retain_backups(&[]).unwrap();
        history.engine.run_background().unwrap();
        prop_assert_eq!(data_files(&history.files), Vec::<String>::new());
    }
}

/// Rows of a table that fill several levels.
const ROWS: usize = 200;

fn fill(tablet: &Tablet, model: &mut Model, round: usize) {
    for n in 0..ROWS {
        let row = format!("row-{n:04}").into_bytes();
        let mutations = vec![put(1, "q", 1000, &format!("value {round} of {n} which is long"))];
        apply(tablet, &row, mutations.clone());
        model.apply(&row, &mutations);
    }
}

/// An engine with one tablet of several levels and a backup of it.
fn furnished(files: Arc<dyn Files>) -> (Arc<Engine>, Arc<Tablet>, Model, BackupId) {
    let engine = open(files, 1);
    let tablet = engine.create_tablet(RowRange::all()).unwrap();
    serve(&engine);
    let mut model = Model::default();
    for round in 0..3 {
        fill(&tablet, &mut model, round);
        block_on(tablet.flush()).unwrap();
        engine.run_background().unwrap();
    }
    fill(&tablet, &mut model, 3);
    let backup = block_on(engine.create_backup(&[tablet.id()])).unwrap().id();
    (engine, tablet, model, backup)
}

#[test]
fn creating_and_restoring_write_no_data_and_the_restored_table_reads_while_the_original_is_rewritten()
 {
    let files = Arc::new(MemoryFiles::new());
    let (engine, tablet, model, first) = furnished(Arc::clone(&files) as Arc<dyn Files>);
    let before = data_files(&files);
    let backup = block_on(engine.create_backup(&[tablet.id()])).unwrap();
    assert_eq!(backup.list().bytes(), engine.backup(first).unwrap().list().bytes());
    let restored = engine.restore_backup(backup.id()).unwrap().remove(0);
    restored.set_schema(Arc::new(schema_with_sums()));
    assert_eq!(data_files(&files), before, "no data is written");
    let mut rewritten = Model::default();
    for round in 4..7 {
        fill(&tablet, &mut rewritten, round);
        engine.compact_fully().unwrap();
        assert_holds(&restored, &model, "while the original is rewritten");
    }
    assert_holds(&tablet, &rewritten, "the original");
    // The restored table is one of its own.
    apply(&restored, b"row-0001", vec![put(1, "q", 1000, "mine")]);
    assert_holds(&tablet, &rewritten, "the original after a write to the restored");
    let shared = data_files(&files);
    engine.drop_tablet(tablet.id()).unwrap();
    drop(tablet);
    engine.run_background().unwrap();
    assert!(data_files(&files).len() < shared.len(), "what only the original had goes");
    assert_eq!(restored.stats().records as usize, ROWS + 1);
    assert_restores(&engine, first, &model);
}

#[test]
fn files_of_a_backup_go_with_it_but_for_those_that_are_still_needed() {
    let files = Arc::new(MemoryFiles::new());
    let (engine, tablet, model, backup) = furnished(Arc::clone(&files) as Arc<dyn Files>);
    let copy = engine.copy_backup(backup).unwrap().id();
    block_on(tablet.drop_rows(RowRange::all())).unwrap();
    engine.run_background().unwrap();
    let kept = data_files(&files);
    assert!(kept.len() > 4, "{kept:?}");
    engine.delete_backup(backup).unwrap();
    engine.run_background().unwrap();
    assert_eq!(data_files(&files), kept, "the copy keeps them");
    let restored = engine.restore_backup(copy).unwrap().remove(0);
    restored.set_schema(Arc::new(schema_with_sums()));
    engine.delete_backup(copy).unwrap();
    engine.run_background().unwrap();
    assert_holds(&restored, &model, "restored from a backup that is gone");
    assert_eq!(engine.restore_backup(copy).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(engine.copy_backup(backup).unwrap_err().kind(), ErrorKind::NotFound);
    engine.drop_tablet(restored.id()).unwrap();
    drop(restored);
    engine.run_background().unwrap();
    assert_eq!(data_files(&files), Vec::<String>::new());
}

#[test]
fn a_backup_that_is_held_is_copied_though_it_is_deleted_meanwhile() {
    let files = Arc::new(MemoryFiles::new());
    let (engine, tablet, model, backup) = furnished(Arc::clone(&files) as Arc<dyn Files>);
    let held = engine.backup(backup).unwrap();
    engine.delete_backup(backup).unwrap();
    engine.drop_tablet(tablet.id()).unwrap();
    drop(tablet);
    engine.run_background().unwrap();
    let copy = engine.copy_from(&held).unwrap();
    assert_eq!(copy.list(), held.list());
    let copy = copy.id();
    drop(held);
    engine.run_background().unwrap();
    assert_restores(&engine, copy, &model);
    engine.close().unwrap();
    drop(engine);
    assert_restores(&open(files, 2), copy, &model);
}

#[test]
fn files_count_once_however_many_tables_have_them_and_into_however_many_parts_they_are_cut() {
    let (engine, tablet, _, backup) = furnished(Arc::new(MemoryFiles::new()));
    let alone = engine.file_figures();
    let stats = tablet.stats();
    let files: Vec<_> = stats.level_files.iter().map(|files| *files as u64).collect();
    assert_eq!((&alone.level_files, &alone.level_bytes), (&files, &stats.level_bytes));
    let values = (alone.value_files, alone.value_file_bytes, alone.value_garbage_bytes);
    let of_tablet = (stats.value_files, stats.value_file_bytes, stats.value_garbage_bytes);
    assert_eq!(values, of_tablet);
    assert!(alone.value_files > 0 && alone.level_files.iter().sum::<u64>() > 0);
    let restored = engine.restore_backup(backup).unwrap();
    assert_eq!(engine.file_figures(), alone);
    block_on(tablet.drop_rows(RowRange::new("row-0050", "row-0052"))).unwrap();
    let cut = tablet.stats();
    assert!(cut.sst_count > stats.sst_count, "a file stands in several parts");
    assert_eq!(engine.file_figures(), alone, "the restored table shows all of it");
    engine.drop_tablet(restored[0].id()).unwrap();
    drop(restored);
    let parts = engine.file_figures();
    assert_eq!((parts.level_files, parts.level_bytes), (alone.level_files, cut.level_bytes));
}

/// An engine with a table of large values.
fn with_values() -> (Arc<Engine>, Arc<Tablet>) {
    let options = EngineOptions { separate_values_bytes: 100, ..tiny_options() };
    let clock = Arc::new(ManualClock::new(START_MICROS));
    let environment = env(Arc::new(MemoryFiles::new()), clock, 1);
    let engine = Engine::open(environment, Path::new(DIR), options).unwrap();
    let tablet = engine.create_tablet(RowRange::all()).unwrap();
    serve(&engine);
    write_values(&tablet, 0..100, "a");
    (engine, tablet)
}

fn write_values(tablet: &Tablet, rows: impl Iterator<Item = usize>, text: &str) {
    for n in rows {
        let row = format!("row-{n:04}").into_bytes();
        apply(tablet, &row, vec![put(1, "q", 1000, &format!("{n} {}", text.repeat(300)))]);
    }
    block_on(tablet.flush()).unwrap();
}

#[test]
fn of_an_sst_that_a_table_has_too_a_backup_alone_keeps_what_the_table_shows_no_more() {
    let (engine, tablet) = with_values();
    let whole = block_on(engine.create_backup(&[tablet.id()])).unwrap();
    assert_eq!(engine.backup_held_bytes(), 0, "the table has all of it");
    block_on(tablet.drop_rows(RowRange::new("row-0020", "row-0040"))).unwrap();
    let shown = tablet.stats().sst_bytes;
    let bytes: u64 = whole.list().ssts().values().sum();
    assert!(shown < bytes);
    assert_eq!(engine.backup_held_bytes(), bytes - shown);

    let cut = block_on(engine.create_backup(&[tablet.id()])).unwrap();
    engine.delete_backup(whole.id()).unwrap();
    assert_eq!(engine.backup_held_bytes(), 0);
    let parts = cut.list().tablets[0].ssts().count();
    assert!(parts > cut.list().ssts().len(), "a file stands in several parts");
    engine.drop_tablet(tablet.id()).unwrap();
    assert_eq!(engine.backup_held_bytes(), cut.list().bytes());
}

#[test]
fn of_a_value_file_that_a_table_has_too_a_backup_alone_keeps_the_garbage() {
    let (engine, tablet) = with_values();
    let backup = block_on(engine.create_backup(&[tablet.id()])).unwrap();
    // Some of each file is live on.
    let most = || (0..100).filter(|n| n % 10 > 0);
    write_values(&tablet, most(), "b");
    engine.compact_fully().unwrap();
    engine.run_background().unwrap();
    let garbage = tablet.stats().value_garbage_bytes;
    let ssts: u64 = backup.list().ssts().values().sum();
    let named: u64 = backup.list().values.values().sum();
    assert!(garbage > named / 2 && garbage < named, "{garbage} of {named}");
    assert_eq!(engine.backup_held_bytes(), ssts + garbage);
    // Beyond what the backup names, the rest is the table's own.
    write_values(&tablet, most(), "c");
    engine.compact_fully().unwrap();
    assert_eq!(engine.backup_held_bytes(), ssts + garbage);
    engine.delete_backup(backup.id()).unwrap();
    assert_eq!(engine.backup_held_bytes(), 0);
}

#[test]
fn a_table_of_several_tablets_comes_back_with_its_ranges_in_order() {
    let files = Arc::new(MemoryFiles::new());
    let engine = open(Arc::clone(&files) as Arc<dyn Files>, 1);
    let ranges = [RowRange::new("", "row-0100"), RowRange::new("row-0100", "")];
    let tablets = ranges.clone().map(|range| engine.create_tablet(range).unwrap());
    serve(&engine);
    apply(&tablets[0], b"a", vec![put(1, "q", 1000, "first")]);
    apply(&tablets[1], b"z", vec![put(1, "q", 1000, "second")]);
    let ids = [tablets[0].id(), tablets[1].id()];
    let backup = block_on(engine.create_backup(&ids)).unwrap().id();
    let restored = engine.restore_backup(backup).unwrap();
    serve(&engine);
    let found: Vec<_> = restored.iter().map(|tablet| tablet.range().clone()).collect();
    assert_eq!(found, ranges);
    for (tablet, row) in restored.iter().zip(["a", "z"]) {
        let rows = scan(tablet, RowRange::all(), Projection::all(), false, None).unwrap();
        assert_eq!(rows[0].key, row);
    }
    engine.drop_tablet(ids[1]).unwrap();
    let error = block_on(engine.create_backup(&ids)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[test]
fn a_damaged_list_costs_its_backup_alone_and_no_file_until_the_backup_is_deleted() {
    let files = Arc::new(MemoryFiles::new());
    let (engine, tablet, model, id) = furnished(Arc::clone(&files) as Arc<dyn Files>);
    let other = engine.create_tablet(RowRange::all()).unwrap();
    apply(&other, b"row", vec![put(1, "q", 1000, "served")]);
    engine.drop_tablet(tablet.id()).unwrap();
    engine.close().unwrap();
    drop((engine, tablet));
    let dir = Path::new(DIR).join("backups");
    let path = dir.join(&files.list(&dir).unwrap()[0].name);
    let whole = files.contents(&path).unwrap();
    let data = data_files(&files);
    let mut lost = 0;
    for at in (0..whole.len()).step_by(7) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        files.put_contents(&path, damaged);
        let engine = open(Arc::clone(&files) as Arc<dyn Files>, 2);
        serve(&engine);
        // Of the marker behind the list, nothing is missed.
        lost += usize::from(engine.backups().is_empty());
        let rows = scan(
            &engine.tablet(other.id()).unwrap(),
            RowRange::all(),
            Projection::all(),
            false,
            None,
        );
        assert_eq!(rows.unwrap().len(), 1, "byte {at}");
        assert!(engine.create_tablet(RowRange::all()).unwrap().id().0 > id.0, "byte {at}");
        engine.retain_backups(&[id]).unwrap();
        engine.run_background().unwrap();
        engine.close().unwrap();
        let left = data_files(&files);
        assert!(data.iter().all(|file| left.contains(file)), "byte {at}");
    }
    assert!(lost > 5, "{lost}");

    // With its list again, it is as it was.
    files.put_contents(&path, whole.clone());
    let engine = open(Arc::clone(&files) as Arc<dyn Files>, 2);
    assert_restores(&engine, id, &model);
    engine.close().unwrap();
    drop(engine);

    // Deleted, or forgotten by the catalog, it goes with what only it kept.
    for deleted in [true, false] {
        let mut damaged = whole.clone();
        damaged[100] ^= 0x10;
        files.put_contents(&path, damaged);
        let engine = open(Arc::clone(&files) as Arc<dyn Files>, 2);
        if deleted {
            engine.delete_backup(id).unwrap();
        } else {
            engine.retain_backups(&[]).unwrap();
        }
        assert!(!files.exists(&path).unwrap());
        engine.close().unwrap();
    }
    drop(open(Arc::clone(&files) as Arc<dyn Files>, 2));
    let left = data_files(&files);
    assert!(data.iter().all(|file| !left.contains(file)), "{left:?}");
}

#[test]
fn a_list_that_cannot_be_read_costs_no_table_and_no_file_and_counts_again_once_it_can_be() {
    let disk = Arc::new(MemoryFiles::new());
    let (engine, tablet, model, id) = furnished(Arc::clone(&disk) as Arc<dyn Files>);
    let other = engine.create_tablet(RowRange::all()).unwrap();
    apply(&other, b"row", vec![put(1, "q", 1000, "served")]);
    engine.drop_tablet(tablet.id()).unwrap();
    engine.close().unwrap();
    drop((engine, tablet));
    let faults = FaultFiles::new(Arc::clone(&disk) as Arc<dyn Files>);
    let data = data_files(&disk);
    for op in [FaultOp::Open, FaultOp::Read] {
        faults.inject(Fault::new(op).on_path("BACKUP-").sticky());
        let engine = open(Arc::new(faults.clone()), 2);
        engine.retain_tablets(&[other.id()]).unwrap();
        engine.retain_backups(&[id]).unwrap();
        serve(&engine);
        assert!(engine.backups().is_empty());
        let other = engine.tablet(other.id()).unwrap();
        let rows = scan(&other, RowRange::all(), Projection::all(), false, None).unwrap();
        assert_eq!(rows.len(), 1, "{op:?}");
        engine.run_background().unwrap();
        engine.close().unwrap();
        let left = data_files(&disk);
        assert!(data.iter().all(|file| left.contains(file)), "{op:?}");
        faults.heal();
    }
    // What is likely to pass is no reason to do without a backup.
    faults.inject(Fault::new(FaultOp::Open).on_path("BACKUP-").kind(ErrorKind::Exhausted));
    let clock = Arc::new(ManualClock::new(START_MICROS));
    let refused =
        Engine::open(env(Arc::new(faults.clone()), clock, 2), Path::new(DIR), tiny_options());
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Exhausted);
    assert_restores(&open(Arc::new(faults), 2), id, &model);
}

#[test]
fn what_compactions_replace_while_a_list_cannot_be_read_is_there_once_it_can_be() {
    let disk = Arc::new(MemoryFiles::new());
    let (engine, tablet, model, id) = furnished(Arc::clone(&disk) as Arc<dyn Files>);
    engine.close().unwrap();
    let tablet = tablet.id();
    drop(engine);
    let faults = FaultFiles::new(Arc::clone(&disk) as Arc<dyn Files>);
    faults.inject(Fault::new(FaultOp::Open).on_path("BACKUP-").sticky());
    let engine = open(Arc::new(faults.clone()), 2);
    engine.retain_tablets(&[tablet]).unwrap();
    engine.retain_backups(&[id]).unwrap();
    serve(&engine);
    let before = data_files(&disk);
    apply(&engine.tablet(tablet).unwrap(), b"row", vec![put(1, "q", 1000, "since")]);
    engine.compact_fully().unwrap();
    engine.run_background().unwrap();
    let left = data_files(&disk);
    assert!(left.iter().any(|file| !before.contains(file)), "something was compacted");
    engine.close().unwrap();
    drop(engine);
    faults.heal();
    assert_restores(&open(Arc::new(faults), 2), id, &model);
}

#[test]
fn a_table_with_a_damaged_file_is_not_backed_up_and_the_error_names_it() {
    let files = Arc::new(MemoryFiles::new());
    let (engine, tablet, _, backup) = furnished(Arc::clone(&files) as Arc<dyn Files>);
    let id = tablet.id();
    engine.close().unwrap();
    drop((engine, tablet));
    let name = files.list(&Path::new(DIR).join("sst")).unwrap()[0].name.clone();
    files.put_contents(&Path::new(DIR).join("sst").join(&name), b"short".to_vec());
    let engine = open(Arc::clone(&files) as Arc<dyn Files>, 2);
    engine.retain_backups(&[backup]).unwrap();
    serve(&engine);
    apply(&engine.tablet(id).unwrap(), b"row", vec![put(1, "q", 1000, "in memory")]);
    let before = data_files(&files);
    let error = block_on(engine.create_backup(&[id])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption);
    assert!(error.message().contains(name.trim_end_matches(".sst")), "{error}");
    assert_eq!(engine.backups().len(), 1);
    assert_eq!(data_files(&files), before, "nothing is flushed in vain");
}

#[test]
fn a_table_of_which_a_file_is_missing_or_cannot_be_opened_is_not_backed_up_and_the_advice_helps() {
    for (dir, part, is_missing) in
        [("values", ".val", true), ("sst", ".sst", true), ("sst", ".sst", false)]
    {
        let disk = Arc::new(MemoryFiles::new());
        let (engine, tablet, _, backup) = furnished(Arc::clone(&disk) as Arc<dyn Files>);
        let id = tablet.id();
        engine.close().unwrap();
        drop((engine, tablet));
        let dir = Path::new(DIR).join(dir);
        let name = disk.list(&dir).unwrap()[0].name.clone();
        let faults = FaultFiles::new(Arc::clone(&disk) as Arc<dyn Files>);
        if is_missing {
            disk.remove(&dir.join(&name)).unwrap();
        } else {
            faults.inject(Fault::new(FaultOp::Open).on_path(&*name).kind(ErrorKind::Io));
        }
        let engine = open(Arc::new(faults), 2);
        engine.retain_backups(&[backup]).unwrap();
        serve(&engine);
        let error = block_on(engine.create_backup(&[id])).unwrap_err();
        let (kind, advice) = if is_missing {
            (ErrorKind::Corruption, "tepui repair")
        } else {
            (ErrorKind::Io, "restart")
        };
        assert_eq!(error.kind(), kind, "{error}");
        let message = error.message();
        assert!(
            message.contains(advice) && message.contains(name.trim_end_matches(part)),
            "{error}"
        );
        assert_eq!(engine.backups().len(), 1);
    }
}

#[test]
fn a_backup_that_the_disk_has_no_room_for_leaves_nothing_behind() {
    let disk = Arc::new(MemoryFiles::new());
    let faults = FaultFiles::new(Arc::clone(&disk) as Arc<dyn Files>);
    let (engine, _, model, first) = furnished(Arc::new(faults.clone()));
    let names = || disk.list(&Path::new(DIR).join("backups")).unwrap();
    let before = names();
    for op in [FaultOp::Append, FaultOp::Sync, FaultOp::Rename] {
        faults.inject(Fault::new(op).on_path("BACKUP-").kind(ErrorKind::NoSpace));
        assert_eq!(engine.copy_backup(first).unwrap_err().kind(), ErrorKind::NoSpace, "{op:?}");
        assert_eq!(names(), before, "{op:?}");
    }
    let copy = engine.copy_backup(first).unwrap().id();
    assert_restores(&engine, copy, &model);
}

#[test]
fn a_backup_that_the_disk_has_no_room_to_end_leaves_no_list_of_files_that_go() {
    let disk = Arc::new(MemoryFiles::new());
    let faults = FaultFiles::new(Arc::clone(&disk) as Arc<dyn Files>);
    let (engine, tablet, model, first) = furnished(Arc::new(faults.clone()));
    let names_on = |disk: &MemoryFiles| -> Vec<String> {
        let entries = disk.list(&Path::new(DIR).join("backups")).unwrap().into_iter();
        entries.map(|entry| entry.name).collect()
    };
    let names = || names_on(&disk);
    let before = names();
    // The mark behind a list that has its name already.
    let mark = || Fault::new(FaultOp::Append).on_path("BACKUP-").nth(2).kind(ErrorKind::NoSpace);
    faults.inject(mark());
    assert_eq!(engine.copy_backup(first).unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!(names(), before);
    // Nor does a crash bring it back.
    let crashed = disk.crashed_copy(CrashMode::Strict, &SeededRng::new(1));
    assert_eq!(names_on(&crashed), before);
    let copy = engine.copy_backup(first).unwrap().id();
    assert_restores(&engine, copy, &model);

    // One that stays since it cannot be removed keeps what it names.
    faults.inject(mark());
    // After that of its draft, which is not there any more.
    faults.inject(Fault::new(FaultOp::Remove).on_path("BACKUP-").nth(2).kind(ErrorKind::NoSpace));
    assert_eq!(
        block_on(engine.create_backup(&[tablet.id()])).unwrap_err().kind(),
        ErrorKind::NoSpace
    );
    let left: Vec<String> = names().into_iter().filter(|name| !before.contains(name)).collect();
    assert_eq!(left.len(), 2, "{left:?}");
    for backup in [first, copy] {
        engine.delete_backup(backup).unwrap();
    }
    engine.drop_tablet(tablet.id()).unwrap();
    engine.run_background().unwrap();
    assert!(!data_files(&disk).is_empty());
    let id = tablet.id();
    drop((engine, tablet));
    let engine = open(Arc::clone(&disk) as Arc<dyn Files>, 2);
    let [left] = engine.backups().try_into().unwrap();
    assert_restores(&engine, left.id(), &model);
    assert!(engine.tablet(id).is_none());
}

/// What a history with faults leaves acknowledged, and what failed of it.
fn faulty_history(
    engine: &Engine,
    tablet: &Tablet,
    model: &Model,
    first: BackupId,
) -> (Catalog, Vec<Error>) {
    let mut catalog = Catalog::default();
    let mut errors = Vec::new();
    catalog.backups.insert(first, model.clone());
    catalog.tablets.insert(tablet.id(), model.clone());
    match block_on(engine.create_backup(&[tablet.id()])) {
        Ok(backup) => drop(catalog.backups.insert(backup.id(), model.clone())),
        Err(error) => errors.push(error),
    }
    match engine.restore_backup(first) {
        Ok(restored) => {
            restored[0].set_schema(Arc::new(schema_with_sums()));
            catalog.tablets.insert(restored[0].id(), model.clone());
        }
        Err(error) => errors.push(error),
    }
    match engine.copy_backup(first) {
        Ok(copy) => drop(catalog.backups.insert(copy.id(), model.clone())),
        Err(error) => errors.push(error),
    }
    // The catalog forgets first.
    catalog.backups.remove(&first);
    errors.extend(engine.delete_backup(first).err());
    errors.extend(engine.compact_fully().err());
    catalog.tablets.remove(&tablet.id());
    errors.extend(engine.drop_tablet(tablet.id()).err());
    errors.extend(engine.run_background().err());
    (catalog, errors)
}

#[test]
fn whichever_operation_fails_what_was_answered_is_whole_after_a_crash() {
    let ops = [
        FaultOp::Create,
        FaultOp::Append,
        FaultOp::Sync,
        FaultOp::SyncDir,
        FaultOp::Rename,
        FaultOp::Remove,
    ];
    // One disk for all: each case works on a copy.
    let prepared = MemoryFiles::new();
    let (engine, tablet, model, first) = furnished(Arc::new(prepared.clone()));
    let id = tablet.id();
    engine.close().unwrap();
    drop((engine, tablet));
    let start = |faults: &FaultFiles| {
        let engine = open(Arc::new(faults.clone()), 2);
        serve(&engine);
        let tablet = engine.tablet(id).unwrap();
        (engine, tablet)
    };
    for op in ops {
        let disk = prepared.crashed_copy(CrashMode::Strict, &SeededRng::new(1));
        let faults = FaultFiles::new(Arc::new(disk.clone()));
        let (engine, tablet) = start(&faults);
        let before = faults.count(op);
        let (catalog, errors) = faulty_history(&engine, &tablet, &model, first);
        let count = faults.count(op) - before;
        assert!(errors.is_empty(), "no fault: {errors:?}");
        assert!(count > 0, "the history does no {op:?}");
        catalog.check(&engine);
        drop((engine, tablet));
        for nth in 1..=count {
            for sticky in [false, true] {
                let disk = prepared.crashed_copy(CrashMode::Strict, &SeededRng::new(nth));
                let faults = FaultFiles::new(Arc::new(disk.clone()));
                let (engine, tablet) = start(&faults);
                let fault = Fault::new(op).nth(nth).kind(ErrorKind::Io);
                let before = faults.count(op);
                faults.inject(if sticky { fault.sticky() } else { fault });
                let (catalog, errors) = faulty_history(&engine, &tablet, &model, first);
                let met = faults.count(op) - before >= nth;
                assert!(met, "{op:?} {nth} of {count} did not come: {errors:?}");
                let strict = disk.crashed_copy(CrashMode::Strict, &SeededRng::new(1));
                let torn = disk.crashed_copy(CrashMode::Torn, &SeededRng::new(nth));
                drop((engine, tablet));
                faults.heal();
                for files in [strict, torn] {
                    let engine = open(Arc::new(files), 3);
                    catalog.retain(&engine);
                    assert_eq!(engine.health(), Health::Serving);
                    catalog.check(&engine);
                }
            }
        }
    }
}

#[test]
fn what_a_backup_keeps_is_not_moved_about_and_goes_with_it() {
    let options = EngineOptions { separate_values_bytes: 100, ..tiny_options() };
    let files = Arc::new(MemoryFiles::new());
    let clock = Arc::new(ManualClock::new(START_MICROS));
    let environment = env(Arc::clone(&files) as Arc<dyn Files>, clock, 1);
    let engine = Engine::open(environment, Path::new(DIR), options).unwrap();
    let tablet = engine.create_tablet(RowRange::all()).unwrap();
    serve(&engine);
    let mut model = Model::default();
    let write = |rows: std::ops::Range<usize>, text: &str, model: &mut Model| {
        for n in rows {
            let row = format!("row-{n:04}").into_bytes();
            let mutations = vec![put(1, "q", 1000, &format!("{n} {}", text.repeat(300)))];
            apply(&tablet, &row, mutations.clone());
            model.apply(&row, &mutations);
        }
        block_on(tablet.flush()).unwrap();
    };
    write(0..100, "a", &mut model);
    let before = model.clone();
    let backup = block_on(engine.create_backup(&[tablet.id()])).unwrap();
    assert!(!backup.list().values.is_empty());
    // Most of the value file is garbage to the table now.
    write(0..90, "b", &mut model);
    engine.compact_fully().unwrap();
    engine.run_background().unwrap();
    assert_eq!(engine.metrics().value_moved_bytes.load(std::sync::atomic::Ordering::Relaxed), 0);
    assert_restores(&engine, backup.id(), &before);
    let id = backup.id();
    drop(backup);
    engine.delete_backup(id).unwrap();
    engine.compact_fully().unwrap();
    engine.run_background().unwrap();
    assert!(engine.metrics().value_moved_bytes.load(std::sync::atomic::Ordering::Relaxed) > 0);
    assert_holds(&tablet, &model, "the table");
}
