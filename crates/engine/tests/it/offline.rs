//! Checking and repairing a directory: damage in any file is found and named, a check changes nothing, and after
//! a repair the directory opens with every row that was not said to be lost.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::executor::block_on;
use proptest::prelude::*;

use tepui_engine::ErrorKind;
use tepui_engine::backup::BackupId;
use tepui_engine::cell::{RowBatch, RowRange};
use tepui_engine::db::Engine;
use tepui_engine::io::{
    CrashMode, Env, Fault, FaultFiles, FaultOp, Files, ManualClock, MemoryFiles, SeededRng,
};
use tepui_engine::manifest::{MetaChange, MetaExpect};
use tepui_engine::offline::{
    self, CatalogEntry, CheckReport, RepairOptions, RepairReport, TableBackup, TableTablets,
    inspect,
};
use tepui_engine::read::Projection;
use tepui_engine::tablet::{Tablet, TabletId};

use crate::harness::{START_MICROS, env, open_started, plain_schema, put, scan, tiny_options};

const ROWS: usize = 240;

pub fn dir() -> &'static Path {
    Path::new("/data")
}

pub fn row(n: usize) -> String {
    format!("row-{n:04}")
}

/// Rows and their newest value.
pub type Rows = BTreeMap<String, String>;

/// A closed directory with two tablets (split in the middle), SSTs of several levels, a log that holds what was
/// not flushed, and a table in the catalog: the entry `tables/t` lists the tablets' numbers.
pub struct Place {
    pub files: Arc<MemoryFiles>,
    pub tablets: [TabletId; 2],
    pub rows: Rows,
}

pub fn environment(files: &Arc<MemoryFiles>) -> Env {
    env(Arc::clone(files) as Arc<dyn Files>, Arc::new(ManualClock::new(START_MICROS)), 3)
}

pub fn read_catalog(key: &str, value: &[u8]) -> tepui_engine::Result<Option<CatalogEntry>> {
    let text = std::str::from_utf8(value).unwrap();
    if let Some(backup) = key.strip_prefix("backups/") {
        let (name, id) = (backup.to_owned(), BackupId(text.parse().unwrap()));
        return Ok(Some(CatalogEntry::Backup(TableBackup { name, id })));
    }
    let Some(table) = key.strip_prefix("tables/") else { return Ok(None) };
    let tablets = text.split(',').map(|id| TabletId(id.parse().unwrap())).collect();
    Ok(Some(CatalogEntry::Table(TableTablets { table: table.to_owned(), tablets })))
}

pub fn place() -> Place {
    let files = Arc::new(MemoryFiles::new());
    let engine = Engine::open(environment(&files), dir(), tiny_options()).unwrap();
    let split = row(ROWS / 2).into_bytes();
    let ranges = [RowRange::new("", split.clone()), RowRange::new(split, "")];
    let tablets = ranges.map(|range| engine.create_tablet(range).unwrap());
    let ids = [tablets[0].id(), tablets[1].id()];
    let value = format!("{},{}", ids[0].0, ids[1].0);
    let change = |key: &str, value: String| MetaChange {
        key: key.to_owned(),
        expect: MetaExpect::Any,
        value: Some(value.into()),
    };
    for n in 0..3 {
        engine.meta().commit(&[change("other", format!("{n}"))]).unwrap();
    }
    engine.meta().commit(&[change("tables/t", value)]).unwrap();
    engine.meta().commit(&[change("other", "last".to_owned())]).unwrap();
    let mut rows = Rows::new();
    for tablet in &tablets {
        tablet.set_schema(Arc::new(plain_schema()));
    }
    engine.start().unwrap();
    for round in 0..4 {
        for n in 0..ROWS {
            if round == 3 && n % 10 != 0 {
                continue;
            }
            let value = format!("value {round} of {n}");
            let tablet = &tablets[usize::from(n >= ROWS / 2)];
            let batch = RowBatch {
                row: row(n).into_bytes().into(),
                mutations: vec![put(1, "q", 1000, &value)],
            };
            block_on(tablet.apply(batch)).unwrap();
            rows.insert(row(n), value);
        }
        if round < 3 {
            for tablet in &tablets {
                block_on(tablet.flush()).unwrap();
            }
        }
        if round == 1 {
            engine.run_background().unwrap();
        }
    }
    // As after SIGKILL: the last round is in the log alone.
    drop(tablets);
    drop(engine);
    Place { files, tablets: ids, rows }
}

/// Whether a row of [`place`] had that value at any time.
fn was_written(row: &str, value: &str) -> bool {
    let n = (0..ROWS).find(|n| self::row(*n) == row);
    n.is_some_and(|n| {
        let rounds = if n % 10 == 0 { 4 } else { 3 };
        (0..rounds).any(|round| value == format!("value {round} of {n}"))
    })
}

/// The rows of [`place`] before its last write.
fn without_last_batch(rows: &Rows) -> Rows {
    let mut rows = rows.clone();
    let last = (0..ROWS).rfind(|n| n % 10 == 0).unwrap();
    rows.insert(row(last), format!("value 2 of {last}"));
    rows
}

pub fn contents(files: &MemoryFiles) -> BTreeMap<PathBuf, Vec<u8>> {
    fn walk(files: &MemoryFiles, dir: &Path, out: &mut BTreeMap<PathBuf, Vec<u8>>) {
        for entry in files.list(dir).unwrap() {
            let path = dir.join(&entry.name);
            if entry.is_dir {
                walk(files, &path, out);
            } else {
                out.insert(path.clone(), files.contents(&path).unwrap());
            }
        }
    }
    let mut out = BTreeMap::new();
    walk(files, dir(), &mut out);
    out
}

pub fn check(files: &Arc<MemoryFiles>) -> CheckReport {
    let before = contents(files);
    let mut last = (0, 0);
    let mut progress = |done, total| {
        assert!(done <= total, "{done} of {total}");
        last = (done, total);
    };
    let report =
        offline::check(&environment(files), dir(), Some(&read_catalog), &mut progress).unwrap();
    assert_eq!(last.0, last.1, "the progress ends at its end");
    assert_eq!(contents(files), before, "a check changes nothing");
    report
}

pub fn repair(files: &Arc<MemoryFiles>, dry_run: bool) -> RepairReport {
    let options = RepairOptions { dry_run, ..Default::default() };
    let catalog: offline::CatalogReader<'_> = &read_catalog;
    offline::repair(&environment(files), dir(), Some(catalog), options, &mut |_, _| {}).unwrap()
}

pub fn rows_of(files: &Arc<MemoryFiles>, tablets: [TabletId; 2]) -> Rows {
    let engine = Engine::open(environment(files), dir(), tiny_options()).unwrap();
    let mut rows = Rows::new();
    for id in tablets {
        let tablet = engine.tablet(id).expect("the tablet is there");
        tablet.set_schema(Arc::new(plain_schema()));
        for row in scan(&tablet, RowRange::all(), Projection::all(), false, None).unwrap() {
            let value = String::from_utf8(row.cells[0].value.to_vec()).unwrap();
            rows.insert(String::from_utf8(row.key.to_vec()).unwrap(), value);
        }
    }
    rows
}

pub fn flip(files: &MemoryFiles, path: &Path, at: usize) {
    let mut bytes = files.contents(path).unwrap();
    bytes[at] ^= 0x20;
    files.put_contents(path, bytes);
}

pub fn files_in(files: &MemoryFiles, part: &str) -> Vec<PathBuf> {
    let all = contents(files).into_keys();
    all.filter(|path| path.starts_with(dir().join(part))).collect()
}

/// The segments of the log, oldest first.
fn segments_in(files: &MemoryFiles) -> Vec<PathBuf> {
    let mut found = files_in(files, "log");
    found.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
    found
}

/// Damages a byte, checks that it is found under the file's name, that a dry run changes nothing and says what
/// the repair says, and repairs.
fn damage_and_repair(place: &Place, path: &Path, at: usize) -> RepairReport {
    let what = format!("{} byte {at}", path.display());
    let original = place.files.contents(path).unwrap();
    flip(&place.files, path, at);
    let damaged = place.files.contents(path).unwrap();
    let found = check(&place.files);
    assert!(!found.is_whole(), "{what}: not found");
    assert!(found.damage.iter().any(|f| f.to_string().contains(path.to_str().unwrap())), "{what}");

    let before = contents(&place.files);
    let dry = repair(&place.files, true);
    assert_eq!(contents(&place.files), before, "{what}: a dry run changes nothing");
    let wet = repair(&place.files, false);
    assert_eq!((dry.lost, dry.lost_rows), (wet.lost.clone(), wet.lost_rows.clone()), "{what}");
    assert!(wet.opens(), "{what}: {wet:#?}");
    assert!(check(&place.files).is_whole(), "{what}");
    let kept: Vec<Vec<u8>> =
        files_in(&place.files, "lost").iter().map(|p| place.files.contents(p).unwrap()).collect();
    assert!(kept.contains(&damaged), "{what}: the damaged original is set aside");
    assert_kept(&before, &[path.to_path_buf()], &place.files, &what);
    assert_ne!(original, damaged);
    wet
}

/// Every row that is not in a lost range is there with its newest value; others with some value, or not.
fn assert_rows(place: &Place, report: &RepairReport, what: &str) {
    let found = rows_of(&place.files, place.tablets);
    for (row, value) in &place.rows {
        let lost = report
            .lost_rows
            .iter()
            .any(|lost| *lost.from_row <= *row.as_bytes() && *row.as_bytes() <= *lost.to_row);
        if !lost {
            assert_eq!(found.get(row), Some(value), "{what}: {row} {:#?}", report.lost_rows);
        }
    }
    assert!(found.keys().all(|row| place.rows.contains_key(row)), "{what}: a row from nowhere");
}

#[test]
fn a_whole_directory_is_whole_and_a_repair_leaves_it_alone() {
    let place = place();
    let report = check(&place.files);
    assert!(report.is_whole(), "{:?}", report.damage);
    assert_eq!((report.tables, report.tablets), (1, 2));
    assert!(report.ssts > 4 && report.sst_records > 400 && report.log_batches >= 24, "{report}");
    let before = contents(&place.files);
    let report = repair(&place.files, false);
    assert!(report.opens() && report.actions.is_empty());
    assert_eq!(contents(&place.files), before);
    assert_eq!(rows_of(&place.files, place.tablets), place.rows);
}

#[test]
fn damage_anywhere_in_an_sst_costs_the_rows_that_are_listed_and_no_others() {
    for share in [0, 15, 40, 60, 75, 85, 92, 97, 99] {
        let place = place();
        let path = files_in(&place.files, "sst")
            .into_iter()
            .max_by_key(|path| place.files.contents(path).unwrap().len())
            .unwrap();
        let at = (place.files.contents(&path).unwrap().len() - 1) * share / 100;
        let report = damage_and_repair(&place, &path, at);
        assert_rows(&place, &report, &format!("at {share} %"));
        assert!(report.lost.is_empty());
    }
}

#[test]
fn a_damaged_block_loses_a_few_rows_of_its_sst_and_not_all() {
    let place = place();
    let path = files_in(&place.files, "sst")
        .into_iter()
        .max_by_key(|path| place.files.contents(path).unwrap().len())
        .unwrap();
    let report = damage_and_repair(&place, &path, 10);
    assert_eq!(report.lost_rows.len(), 1, "{:?}", report.lost_rows);
    let lost = &report.lost_rows[0];
    assert!(lost.records > 0 && lost.records < 20, "{lost}");
    assert_eq!(lost.bytes.start, 0);
    assert!(!files_in(&place.files, "sst").contains(&path), "the damaged file is not in use");
}

#[test]
fn damage_in_rows_that_were_dropped_costs_nothing() {
    let mut place = place();
    let engine = Engine::open(environment(&place.files), dir(), tiny_options()).unwrap();
    for tablet in engine.tablets() {
        tablet.set_schema(Arc::new(plain_schema()));
    }
    engine.compact_fully().unwrap();
    engine.run_background().unwrap();
    // Of each tablet the last row stays, in a file that has others still.
    for (tablet, last) in engine.tablets().iter().zip([ROWS / 2 - 1, ROWS - 1]) {
        let RowRange { start, .. } = tablet.range().clone();
        block_on(tablet.drop_rows(RowRange::new(start, row(last)))).unwrap();
    }
    engine.close().unwrap();
    place.rows.retain(|key, _| [row(ROWS / 2 - 1), row(ROWS - 1)].contains(key));
    let ssts = files_in(&place.files, "sst");
    assert_eq!(ssts.len(), 2);
    for path in ssts {
        let report = damage_and_repair(&place, &path, 10);
        assert!(report.lost_rows.is_empty(), "{:?}", report.lost_rows);
        assert_eq!(rows_of(&place.files, place.tablets), place.rows);
    }
}

#[test]
fn an_sst_that_is_missing_costs_its_rows() {
    let place = place();
    let path = files_in(&place.files, "sst").remove(0);
    place.files.remove(&path).unwrap();
    let found = check(&place.files);
    assert!(found.damage.iter().any(|f| f.file == path && f.to_string().contains("missing")));
    let report = repair(&place.files, false);
    assert!(report.opens(), "{report:#?}");
    assert_eq!(report.lost_rows.len(), 1);
    assert_rows(&place, &report, "a missing SST");
}

/// The value file with the most bytes, after all levels are merged. Its first value is garbage, its second is not.
pub fn largest_value_file(place: &Place) -> PathBuf {
    let engine = Engine::open(environment(&place.files), dir(), tiny_options()).unwrap();
    for tablet in engine.tablets() {
        tablet.set_schema(Arc::new(plain_schema()));
    }
    engine.compact_fully().unwrap();
    engine.run_background().unwrap();
    engine.close().unwrap();
    let len = |path: &PathBuf| place.files.contents(path).unwrap().len();
    files_in(&place.files, "values").into_iter().max_by_key(len).unwrap()
}

#[test]
fn a_damaged_value_costs_its_row_alone() {
    let place = place();
    let path = largest_value_file(&place);
    let second = "value 2 of 120".len() + 9;
    let report = damage_and_repair(&place, &path, second + 3);
    assert_eq!(report.lost_rows.len(), 1, "{:?}", report.lost_rows);
    let lost = &report.lost_rows[0];
    assert_eq!((lost.records, lost.bytes.start), (1, second as u64), "{lost}");
    assert_eq!(lost.file, path);
    assert_rows(&place, &report, "a damaged value");
    assert_eq!(rows_of(&place.files, place.tablets).len(), place.rows.len() - 1);
}

#[test]
fn a_damaged_footer_of_a_value_file_costs_nothing() {
    for from_end in [1, 20, 40] {
        let place = place();
        let path = largest_value_file(&place);
        let len = place.files.contents(&path).unwrap().len();
        let report = damage_and_repair(&place, &path, len - from_end);
        assert!(report.lost_rows.is_empty() && report.lost.is_empty(), "{report:?}");
        assert_eq!(rows_of(&place.files, place.tablets), place.rows);
    }
}

#[test]
fn what_an_interrupted_repair_had_begun_of_a_value_file_goes_with_the_next() {
    for mended in [false, true] {
        let place = place();
        let path = largest_value_file(&place);
        let whole = place.files.contents(&path).unwrap();
        flip(&place.files, &path, whole.len() - 20);
        let faulty = FaultFiles::new(Arc::clone(&place.files) as Arc<dyn Files>);
        faulty.inject(Fault::new(FaultOp::Rename).on_path(".new"));
        let mut environment = environment(&place.files);
        environment.files = Arc::new(faulty);
        let catalog: offline::CatalogReader<'_> = &read_catalog;
        let options = RepairOptions::default();
        let stopped = offline::repair(&environment, dir(), Some(catalog), options, &mut |_, _| {});
        assert!(stopped.unwrap().stopped.is_some());
        assert_no_start(&place.files);
        let begun = path.with_extension("new");
        assert!(place.files.contents(&begun).is_ok());
        if mended {
            // From a copy, say: there is nothing to repair any more.
            place.files.put_contents(&path, whole);
        }
        let noted = check(&place.files).notes.iter().any(|note| note.file == begun);
        assert!(noted, "a check tells of it");
        let values = files_in(&place.files, "values").len();
        let report = repair(&place.files, false);
        assert!(report.opens(), "{report:#?}");
        assert_eq!(files_in(&place.files, "values").len(), values - 1);
        assert!(place.files.contents(&begun).is_err());
        assert_eq!(rows_of(&place.files, place.tablets), place.rows);
    }
}

#[test]
fn a_value_file_that_is_missing_costs_the_rows_that_are_listed() {
    let place = place();
    let path = largest_value_file(&place);
    place.files.remove(&path).unwrap();
    let found = check(&place.files);
    assert!(found.damage.iter().any(|f| f.file == path && f.to_string().contains("missing")));
    let report = repair(&place.files, false);
    assert!(report.opens(), "{report:#?}");
    assert!(report.lost_rows.iter().all(|l| l.file == path));
    let values: u64 = report.lost_rows.iter().map(|l| l.records).sum();
    assert!(values > 5 && report.lost_rows.len() <= 2, "{:?}", report.lost_rows);
    assert_rows(&place, &report, "a missing value file");
}

/// A server with a table of one tablet.
fn table_in(files: &Arc<MemoryFiles>) -> (Arc<Engine>, Arc<Tablet>) {
    let (engine, tablet) = open_started(environment(files), tiny_options());
    let change = MetaChange {
        key: "tables/t".to_owned(),
        expect: MetaExpect::Absent,
        value: Some(tablet.id().0.to_string().into()),
    };
    engine.meta().commit(&[change]).unwrap();
    (engine, tablet)
}

#[test]
fn a_value_that_is_lost_does_not_bring_back_the_one_that_it_had_overwritten() {
    let row_with = |engine: &Engine, row: &str, mutations| {
        let row = row.as_bytes().to_vec().into();
        block_on(engine.tablets()[0].apply(RowBatch { row, mutations })).unwrap();
    };
    let cells = |engine: &Engine| -> Vec<String> {
        engine.tablets()[0].set_schema(Arc::new(plain_schema()));
        let rows = scan(&engine.tablets()[0], RowRange::all(), Projection::all(), false, None);
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let cells = rows.unwrap().into_iter().flat_map(|row| {
            let key = text(&row.key);
            row.cells.into_iter().map(move |cell| (key.clone(), cell))
        });
        cells
            .map(|(row, cell)| format!("{row}@{}: {}", cell.timestamp, text(&cell.value)))
            .collect()
    };
    for is_missing in [true, false] {
        let files = Arc::new(MemoryFiles::new());
        let (engine, tablet) = table_in(&files);
        for row in ["a", "b", "c"] {
            let older = put(1, "q", 500, "an older timestamp");
            row_with(&engine, row, vec![older, put(1, "q", 1000, "the first value")]);
        }
        block_on(tablet.flush()).unwrap();
        engine.compact_fully().unwrap();
        let before = files_in(&files, "values");
        row_with(&engine, "a", vec![put(1, "q", 1000, "the second value of a")]);
        row_with(&engine, "b", vec![put(1, "q", 1000, "the second value of b")]);
        block_on(tablet.flush()).unwrap();
        drop(tablet);
        engine.close().unwrap();
        drop(engine);
        let mut after = files_in(&files, "values");
        after.retain(|path| !before.contains(path));
        assert_eq!(after.len(), 1);
        let path = &after[0];
        if is_missing {
            files.remove(path).unwrap();
        } else {
            flip(&files, path, 3);
        }
        let report = repair(&files, false);
        assert!(report.opens(), "{report:#?}");
        let lost: u64 = report.lost_rows.iter().map(|lost| lost.records).sum();
        assert_eq!(lost, if is_missing { 2 } else { 1 }, "{report:#?}");
        assert!(check(&files).is_whole());
        let repaired = contents(&files);
        assert!(repair(&files, false).actions.is_empty(), "there is nothing left to repair");
        assert!(contents(&files) == repaired);
        let engine = Engine::open(environment(&files), dir(), tiny_options()).unwrap();
        let mut left = vec![
            "a@500: an older timestamp",
            "b@1000: the second value of b",
            "b@500: an older timestamp",
            "c@1000: the first value",
            "c@500: an older timestamp",
        ];
        if is_missing {
            left.remove(1);
        }
        assert_eq!(cells(&engine), left);
        engine.start().unwrap();
        engine.compact_fully().unwrap();
        assert_eq!(cells(&engine), left);
        row_with(&engine, "a", vec![put(1, "q", 1000, "the third value")]);
        left.insert(0, "a@1000: the third value");
        assert_eq!(cells(&engine), left);
        engine.close().unwrap();
    }
}

#[test]
fn lost_values_of_the_last_level_leave_nothing_that_scans_have_to_pass() {
    let files = Arc::new(MemoryFiles::new());
    let (engine, tablet) = table_in(&files);
    for row in ["a", "b", "c"] {
        let value = put(1, "q", 1000, "a value that is kept elsewhere");
        let row = row.as_bytes().to_vec().into();
        block_on(tablet.apply(RowBatch { row, mutations: vec![value] })).unwrap();
    }
    block_on(tablet.flush()).unwrap();
    engine.compact_fully().unwrap();
    drop(tablet);
    engine.close().unwrap();
    drop(engine);
    let values = files_in(&files, "values");
    assert!(!values.is_empty());
    for path in &values {
        files.remove(path).unwrap();
    }
    let report = repair(&files, false);
    assert!(report.opens(), "{report:#?}");
    assert_eq!(report.lost_rows.iter().map(|lost| lost.records).sum::<u64>(), 3);
    assert!(files_in(&files, "sst").is_empty(), "an SST of nothing but burials");
    assert!(check(&files).is_whole());
}

#[test]
fn values_that_lose_their_sst_are_set_aside_with_it() {
    let place = place();
    let before = files_in(&place.files, "values");
    for sst in files_in(&place.files, "sst") {
        place.files.remove(&sst).unwrap();
    }
    let report = repair(&place.files, false);
    assert!(report.opens(), "{report:#?}");
    assert_eq!(files_in(&place.files, "values"), Vec::<PathBuf>::new());
    assert_eq!(files_in(&place.files, "lost/values").len(), before.len());
}

#[test]
fn damage_in_the_log_costs_the_batches_in_it() {
    let place = place();
    let path = files_in(&place.files, "log")
        .into_iter()
        .find(|path| {
            let bytes = place.files.contents(path).unwrap();
            bytes.windows(14).any(|w| w == b"value 3 of 120")
        })
        .unwrap();
    let bytes = place.files.contents(&path).unwrap();
    let at = bytes.windows(14).position(|w| w == b"value 3 of 120").unwrap();
    let report = damage_and_repair(&place, &path, at);
    assert_eq!(report.lost.len(), 1, "{:?}", report.lost);
    assert!(report.lost[0].contains(path.to_str().unwrap()));
    let found = rows_of(&place.files, place.tablets);
    let differing: Vec<&String> =
        place.rows.iter().filter(|(k, v)| found.get(*k) != Some(*v)).map(|(k, _)| k).collect();
    assert_eq!(differing, [&row(120)]);
    assert_eq!(found[&row(120)], "value 2 of 120");
}

#[test]
fn a_log_that_is_gone_is_damage_and_costs_what_was_not_flushed() {
    for dir_too in [false, true] {
        let place = place();
        for path in files_in(&place.files, "log") {
            place.files.remove(&path).unwrap();
        }
        if dir_too {
            place.files.remove_dir(&dir().join("log")).unwrap();
        }
        let found = check(&place.files);
        let told: Vec<String> = found.damage.iter().map(ToString::to_string).collect();
        assert!(
            told.len() == 1 && told[0].starts_with("/data/log: the log is missing"),
            "{told:?}"
        );
        let dry = repair(&place.files, true);
        let report = repair(&place.files, false);
        assert_eq!(dry.lost, report.lost);
        assert!(report.opens() && check(&place.files).is_whole(), "{report:#?}");
        assert!(report.lost.iter().any(|lost| lost.contains("since the last flushes")));
        let rows = rows_of(&place.files, place.tablets);
        assert_eq!(rows.len(), ROWS);
        for (n, (row, value)) in rows.into_iter().enumerate() {
            assert_eq!(value, format!("value 2 of {n}"), "{row}");
        }
    }
}

#[test]
fn a_segment_that_lost_all_that_it_held_is_damage_and_is_not_taken_for_one_that_was_not_begun() {
    let place = place();
    let path = segments_in(&place.files).pop().unwrap();
    let bytes = place.files.contents(&path).unwrap().len();
    for (len, lost) in [(bytes, 0), (bytes, 0xa5), (74, 0)] {
        place.files.put_contents(&path, vec![lost; len]);
        let before = contents(&place.files);
        let opened = Engine::open(environment(&place.files), dir(), tiny_options());
        let error = opened.expect_err("what was acknowledged is gone").to_string();
        assert!(
            error.contains(path.to_str().unwrap()) && error.contains("tepui repair"),
            "{error}"
        );
        assert!(contents(&place.files) == before, "a start that is refused changes nothing");
        assert!(!check(&place.files).is_whole());
    }
    let report = repair(&place.files, false);
    assert!(report.opens() && check(&place.files).is_whole(), "{report:#?}");
    assert_eq!(rows_of(&place.files, place.tablets).len(), ROWS);

    // What a crash leaves of one that is being created.
    let next = dir().join("log/00ffffffffffffff.log");
    for len in [0, 10, 73] {
        let place = self::place();
        place.files.put_contents(&next, vec![0; len]);
        assert!(check(&place.files).is_whole(), "{len}");
        assert_eq!(rows_of(&place.files, place.tablets).len(), ROWS);
        assert!(!place.files.exists(&next).unwrap(), "{len}");
    }
}

#[test]
fn a_start_keeps_files_that_an_older_manifest_does_not_name_where_it_names_others_that_are_gone() {
    let place = place();
    let older = files_in(&place.files, "tablets");
    let older: Vec<_> = older.into_iter().map(|p| (place.files.contents(&p).unwrap(), p)).collect();
    let engine = Engine::open(environment(&place.files), dir(), tiny_options()).unwrap();
    for tablet in place.tablets.map(|id| engine.tablet(id).unwrap()) {
        tablet.set_schema(Arc::new(plain_schema()));
        block_on(tablet.flush()).unwrap();
    }
    engine.compact_fully().unwrap();
    engine.close().unwrap();
    drop(engine);
    for path in files_in(&place.files, "tablets") {
        place.files.remove(&path).unwrap();
    }
    for (bytes, path) in older {
        place.files.put_contents(&path, bytes);
    }
    let before = files_in(&place.files, "sst");
    let engine = Engine::open(environment(&place.files), dir(), tiny_options()).unwrap();
    assert_eq!(engine.open_summary().orphans_removed, 0);
    drop(engine);
    assert_eq!(files_in(&place.files, "sst"), before);
    repair(&place.files, false);
    assert_eq!(
        files_in(&place.files, "lost/sst").len(),
        before.len(),
        "and a repair sets them aside"
    );
}

#[test]
fn a_file_that_nothing_names_and_that_cannot_be_removed_keeps_nobody_from_starting() {
    let place = place();
    let sst = files_in(&place.files, "sst").pop().unwrap();
    let stray = dir().join("sst/00000000000000aa.sst");
    place.files.put_contents(&stray, place.files.contents(&sst).unwrap());
    let clock = Arc::new(ManualClock::new(START_MICROS));
    let faults = Arc::new(FaultFiles::new(Arc::clone(&place.files) as Arc<dyn Files>));
    faults.inject(Fault::new(FaultOp::Remove).on_path("00000000000000aa").sticky());
    let env = env(Arc::clone(&faults) as Arc<dyn Files>, Arc::clone(&clock), 3);
    let engine = Engine::open(env, dir(), tiny_options()).unwrap();
    assert!(place.files.contents(&stray).is_ok());
    faults.heal();
    clock.advance_micros(60_000_000);
    engine.run_background().unwrap();
    assert!(place.files.contents(&stray).is_err(), "it is removed later");
}

#[test]
fn a_start_that_is_refused_for_its_log_removes_no_file_that_nothing_names() {
    let place = place();
    let sst = files_in(&place.files, "sst").pop().unwrap();
    // As a flush leaves it that was killed before its edit.
    let stray = dir().join("sst/00000000000000aa.sst");
    place.files.put_contents(&stray, place.files.contents(&sst).unwrap());
    let found = files_in(&place.files, "log").into_iter().find_map(|path| {
        let bytes = place.files.contents(&path).unwrap();
        Some((bytes.windows(7).position(|w| w == b"value 3")?, path))
    });
    let (at, path) = found.unwrap();
    flip(&place.files, &path, at);
    let before = contents(&place.files);
    Engine::open(environment(&place.files), dir(), tiny_options()).unwrap_err();
    assert!(contents(&place.files) == before, "nothing was changed");
    flip(&place.files, &path, at);
    let engine = Engine::open(environment(&place.files), dir(), tiny_options()).unwrap();
    assert_eq!(engine.open_summary().orphans_removed, 1);
}

#[test]
fn a_segment_that_is_missing_is_found_whichever_it_is_and_given_up_by_a_repair_alone() {
    let all = segments_in(&place().files);
    assert!(all.len() > 1, "{all:?}");
    for path in &all {
        let place = place();
        place.files.remove(path).unwrap();
        let before = contents(&place.files);
        let opened = Engine::open(environment(&place.files), dir(), tiny_options());
        let error = opened.expect_err("what was acknowledged is gone").to_string();
        let name = path.to_str().unwrap();
        assert!(error.contains(name) && error.contains("tepui repair"), "{error}");
        assert!(contents(&place.files) == before, "a start that is refused changes nothing");
        let found = check(&place.files);
        assert!(found.damage.iter().any(|found| found.file == *path), "{:?}", found.damage);
        let dry = repair(&place.files, true);
        let report = repair(&place.files, false);
        assert_eq!(dry.lost, report.lost);
        assert!(report.lost.iter().any(|lost| lost.contains(name)), "{:?}", report.lost);
        assert!(report.opens() && check(&place.files).is_whole(), "{report:#?}");
        assert_kept(&before, &[dir().join("log/SEGMENTS")], &place.files, name);
        rows_of(&place.files, place.tablets);
    }
}

#[test]
fn a_log_that_a_repair_begins_anew_uses_no_number_of_a_segment_that_is_lost_again() {
    let place = place();
    let all = segments_in(&place.files);
    for path in &all {
        place.files.remove(path).unwrap();
    }
    let report = repair(&place.files, false);
    assert!(report.opens(), "{report:#?}");
    let begun = segments_in(&place.files);
    // Names are numbers of as many digits each.
    assert!(begun.len() == 1 && begun.first() > all.last(), "{begun:?} behind {all:?}");
    rows_of(&place.files, place.tablets);
}

#[test]
fn a_log_without_a_list_of_its_segments_gets_one_with_the_next_start() {
    let place = place();
    place.files.remove(&dir().join("log/SEGMENTS")).unwrap();
    assert!(check(&place.files).is_whole());
    assert_eq!(rows_of(&place.files, place.tablets).len(), ROWS);
    let newest = segments_in(&place.files).pop().unwrap();
    place.files.remove(&newest).unwrap();
    assert!(!check(&place.files).is_whole());
}

#[test]
fn a_list_that_another_version_has_not_kept_refuses_nothing() {
    let place = place();
    let list = dir().join("log/SEGMENTS");
    let open = || Engine::open(environment(&place.files), dir(), tiny_options()).unwrap();
    let engine = open();
    engine.close().unwrap();
    drop(engine);
    let kept = place.files.contents(&list).unwrap();
    // One that is started and stopped, with nothing in between.
    let engine = open();
    engine.close().unwrap();
    drop(engine);
    place.files.put_contents(&list, kept);
    assert!(check(&place.files).is_whole());
    open();
}

#[test]
fn a_torn_tail_of_the_log_is_a_note_and_nothing_to_repair() {
    let place = place();
    let path = segments_in(&place.files).pop().unwrap();
    let mut bytes = place.files.contents(&path).unwrap();
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    bytes.extend_from_slice(b"\x40\0\0\0torn");
    place.files.put_contents(&path, bytes);
    let report = check(&place.files);
    assert!(report.is_whole(), "{:?}", report.damage);
    assert!(report.notes.iter().any(|note| note.file == path), "{:?}", report.notes);
    assert!(repair(&place.files, false).actions.is_empty());
}

#[test]
fn damage_in_a_manifest_keeps_every_row_whose_sst_an_edit_still_names() {
    let whole = place();
    let manifest = files_in(&whole.files, "tablets").remove(0);
    let len = whole.files.contents(&manifest).unwrap().len();
    let mut rewritten = 0;
    for at in (0..len).step_by(61) {
        let place = place();
        flip(&place.files, &manifest, at);
        let found = check(&place.files);
        if found.is_whole() {
            continue; // The last marker, whose loss costs nothing.
        }
        // What nobody can read may name them.
        let removed = found.notes.iter().any(|note| note.error.message().contains("removes it"));
        assert!(found.unnamed.is_empty() && !removed, "byte {at}: {found}");
        flip(&place.files, &manifest, at);
        let report = damage_and_repair(&place, &manifest, at);
        assert!(!report.lost.is_empty());
        let found = rows_of(&place.files, place.tablets);
        // The other tablet lost nothing.
        let other = row(ROWS / 2);
        let of_other = |rows: &Rows| -> Vec<(String, String)> {
            rows.range(other.clone()..).map(|(k, v)| (k.clone(), v.clone())).collect()
        };
        assert_eq!(of_other(&found), of_other(&place.rows), "byte {at}");
        assert!(found.keys().all(|row| place.rows.contains_key(row)));
        rewritten += 1;
    }
    assert!(rewritten > 5);
}

#[test]
fn a_table_whose_tablets_leave_rows_out_is_damage_and_a_start_that_is_refused_removes_nothing() {
    let place = place();
    let engine = Engine::open(environment(&place.files), dir(), tiny_options()).unwrap();
    let second = place.tablets[1];
    let value = Some(second.0.to_string().into());
    let change = MetaChange { key: "tables/t".to_owned(), expect: MetaExpect::Any, value };
    engine.meta().commit(&[change]).unwrap();
    engine.close().unwrap();
    drop(engine);
    let found = check(&place.files);
    let split = row(ROWS / 2);
    let told = |text: &str| text.contains(&split) && text.contains("no tablet is before it");
    let [damage] = &found.damage[..] else { panic!("{found}") };
    assert!(told(damage.error.message()), "{}", damage.error);
    let before = contents(&place.files);
    let catalog: offline::CatalogReader<'_> = &read_catalog;
    let error =
        Engine::open_with_catalog(environment(&place.files), dir(), tiny_options(), catalog)
            .unwrap_err();
    assert!(error.kind() == ErrorKind::Corruption && told(error.message()), "{error}");
    assert!(contents(&place.files) == before, "nothing was changed");
}

#[test]
fn a_tablet_without_any_manifest_is_recreated_between_its_neighbours() {
    let place = place();
    let manifest = files_in(&place.files, "tablets").remove(0);
    // The snapshot is the first record.
    let report = damage_and_repair(&place, &manifest, 60);
    assert!(report.lost.iter().any(|lost| lost.contains("manifest")), "{:?}", report.lost);
    let found = rows_of(&place.files, place.tablets);
    assert!(found.len() >= ROWS / 2, "{}", found.len());
    // SSTs that nobody names any more are kept, and not left for a start to remove.
    let aside = files_in(&place.files, "lost/sst");
    assert!(!aside.is_empty());
}

#[test]
fn a_manifest_that_is_empty_or_gone_is_damage_and_the_ssts_of_its_tablet_are_kept() {
    type Lose = fn(&MemoryFiles, &Path);
    let ways: [(&str, Lose); 5] = [
        ("empty", |files, path| files.put_contents(path, Vec::new())),
        ("cut", |files, path| files.truncate(path, 40).unwrap()),
        ("zeros", |files, path| {
            let len = files.contents(path).unwrap().len();
            files.put_contents(path, vec![0; len]);
        }),
        ("gone", |files, path| files.remove(path).unwrap()),
        ("gone with its directory", |files, path| {
            files.remove(path).unwrap();
            files.remove_dir(path.parent().unwrap()).unwrap();
        }),
    ];
    for (what, lose) in ways {
        let place = place();
        let manifest = files_in(&place.files, "tablets").remove(0);
        lose(&place.files, &manifest);
        let dir_of_it = manifest.parent().unwrap().to_str().unwrap();
        let found = check(&place.files);
        assert!(found.damage.iter().any(|f| f.to_string().contains(dir_of_it)), "{what}: {found}");
        let before = contents(&place.files);
        let environment = environment(&place.files);
        let opened = Engine::open_with_catalog(environment, dir(), tiny_options(), &read_catalog);
        assert_eq!(opened.unwrap_err().kind(), ErrorKind::Corruption, "{what}");
        assert!(contents(&place.files) == before, "{what}: a refused start changes nothing");

        let names = |paths: Vec<PathBuf>| -> Vec<_> {
            paths.iter().map(|path| path.file_name().unwrap().to_owned()).collect()
        };
        let ssts = names(files_in(&place.files, "sst"));
        let report = repair(&place.files, false);
        assert!(report.opens(), "{what}: {report:#?}");
        let mut kept = names(files_in(&place.files, "sst"));
        let aside = names(files_in(&place.files, "lost/sst"));
        assert!(!kept.is_empty() && !aside.is_empty(), "{what}: {kept:?} {aside:?}");
        kept.extend(aside);
        kept.sort();
        assert_eq!(kept, ssts, "{what}");
        let rows = rows_of(&place.files, place.tablets);
        assert!(rows.len() >= ROWS / 2, "{what}: the log and the other tablet: {}", rows.len());
    }
}

#[test]
fn a_tablet_that_was_being_created_is_a_note_and_a_start_removes_it() {
    let place = place();
    let tablet = dir().join("tablets").join("00000000000000aa");
    let draft = tablet.join("MANIFEST-0000000000000001.new");
    place.files.create_dir_all(&tablet).unwrap();
    place.files.put_contents(&draft, vec![7; 60]);
    let report = check(&place.files);
    assert!(report.is_whole(), "{:?}", report.damage);
    assert!(report.notes.iter().any(|note| note.file == tablet), "{:?}", report.notes);
    assert_eq!(rows_of(&place.files, place.tablets), place.rows);
    assert!(!place.files.exists(&tablet).unwrap());
}

#[test]
fn two_lost_tablets_side_by_side_are_left_and_the_repair_says_what_to_do() {
    let place = place();
    for path in files_in(&place.files, "tablets") {
        flip(&place.files, &path, 60);
    }
    let ssts = files_in(&place.files, "sst");
    let report = repair(&place.files, false);
    assert!(!report.opens());
    assert_eq!(report.open.iter().filter(|text| text.contains("backup")).count(), 2);
    assert_eq!(files_in(&place.files, "sst"), ssts, "what may be needed is left");
}

#[test]
fn lost_tablets_side_by_side_are_made_empty_where_that_is_asked_for_and_keep_what_the_log_has() {
    for gone in [false, true] {
        let place = place();
        for path in files_in(&place.files, "tablets") {
            if gone {
                place.files.remove(&path).unwrap();
                place.files.remove_dir(path.parent().unwrap()).unwrap();
            } else {
                flip(&place.files, &path, 60);
            }
        }
        let ssts = files_in(&place.files, "sst");
        let environment = environment(&place.files);
        let repair = |dry_run| {
            let options = RepairOptions { dry_run, empty_lost_tablets: true };
            let catalog: offline::CatalogReader<'_> = &read_catalog;
            offline::repair(&environment, dir(), Some(catalog), options, &mut |_, _| {}).unwrap()
        };
        let (dry, report) = (repair(true), repair(false));
        assert!(report.opens() && check(&place.files).is_whole(), "{report:#?}");
        assert_eq!(dry.lost, report.lost);
        let told = |lost: &&String| lost.contains("of t: the manifest; all rows");
        assert_eq!(report.lost.iter().filter(told).count(), 1, "{:?}", report.lost);
        assert_eq!(files_in(&place.files, "lost/sst").len(), ssts.len());
        let found = rows_of(&place.files, place.tablets);
        let last: Vec<usize> = (0..ROWS).step_by(10).collect();
        let want: Rows = last.iter().map(|n| (row(*n), place.rows[&row(*n)].clone())).collect();
        assert!(want.iter().all(|(row, value)| found.get(row) == Some(value)), "{found:?}");
        assert!(found.keys().all(|row| place.rows.contains_key(row)));
        // Rows are asked of the tablet in whose range they are.
        let engine = Engine::open(self::environment(&place.files), dir(), tiny_options()).unwrap();
        let [first, second] = place.tablets.map(|id| engine.tablet(id).unwrap());
        assert_eq!(first.range().end, second.range().start);
        for n in last {
            let holder = if n < ROWS / 2 { &first } else { &second };
            assert!(holder.range().contains(row(n).as_bytes()), "{n}");
        }
    }
}

#[test]
fn damage_in_the_meta_store_keeps_whole_commits() {
    let whole = place();
    let path = files_in(&whole.files, "meta").remove(0);
    let bytes = whole.files.contents(&path).unwrap();
    // In the commit of a key that a later commit writes again.
    let at = bytes.windows(5).position(|w| w == b"other").unwrap();
    let report = damage_and_repair(&whole, &path, at);
    assert!(!report.lost.is_empty());
    assert_rows(&whole, &report, "meta");
    let engine = Engine::open(environment(&whole.files), dir(), tiny_options()).unwrap();
    assert_eq!(engine.meta().get("other").unwrap().unwrap().value, "last");
    assert!(engine.meta().get("tables/t").unwrap().is_some());
}

#[test]
fn a_table_whose_removal_the_catalog_lost_stays_removed_and_keeps_nothing_from_a_start() {
    let place = place();
    let engine = Engine::open(environment(&place.files), dir(), tiny_options()).unwrap();
    let ranges = [RowRange::new("", "m"), RowRange::new("m", "")];
    let tablets = ranges.map(|range| engine.create_tablet(range).unwrap().id());
    let commit = |key: &str, value: Option<String>| {
        let value = value.map(Into::into);
        let change = MetaChange { key: key.to_owned(), expect: MetaExpect::Any, value };
        engine.meta().commit(&[change]).unwrap();
    };
    commit("tables/unwanted", Some(format!("{},{}", tablets[0].0, tablets[1].0)));
    commit("tables/unwanted", None);
    for id in tablets {
        engine.drop_tablet(id).unwrap();
    }
    commit("other", Some("later".to_owned()));
    engine.close().unwrap();
    drop(engine);
    let path = files_in(&place.files, "meta").remove(0);
    let bytes = place.files.contents(&path).unwrap();
    let at = bytes.windows(15).rposition(|w| w == b"tables/unwanted").unwrap();
    let report = damage_and_repair(&place, &path, at);
    let told = |lost: &String| lost.contains("table unwanted") && lost.contains("removed");
    assert!(report.lost.iter().any(told), "{:?}", report.lost);
    let engine =
        Engine::open_with_catalog(environment(&place.files), dir(), tiny_options(), &read_catalog);
    let engine = engine.unwrap();
    assert!(engine.meta().get("tables/unwanted").unwrap().is_none());
    assert!(engine.meta().get("tables/t").unwrap().is_some());
    drop(engine);
    assert_eq!(rows_of(&place.files, place.tablets), place.rows);
}

#[test]
fn where_all_tablets_are_gone_a_damaged_catalog_takes_no_table_for_removed() {
    let place = place();
    let path = files_in(&place.files, "meta").remove(0);
    let bytes = place.files.contents(&path).unwrap();
    let at = bytes.windows(5).position(|w| w == b"other").unwrap();
    flip(&place.files, &path, at);
    for manifest in files_in(&place.files, "tablets") {
        place.files.remove(&manifest).unwrap();
        place.files.remove_dir(manifest.parent().unwrap()).unwrap();
    }
    place.files.remove_dir(&dir().join("tablets")).unwrap();
    // A start that is refused makes the directory, and nothing in it.
    Engine::open(environment(&place.files), dir(), tiny_options()).unwrap_err();
    let report = repair(&place.files, false);
    assert!(!report.opens());
    assert!(report.open.iter().any(|open| open.contains("tablet of t is lost")), "{report:#?}");
}

#[test]
fn a_table_that_the_catalog_has_behind_all_damage_is_not_taken_for_removed() {
    let place = place();
    let engine = Engine::open(environment(&place.files), dir(), tiny_options()).unwrap();
    let commit = |key: &str, value: String| {
        let value = Some(value.into());
        let change = MetaChange { key: key.to_owned(), expect: MetaExpect::Any, value };
        engine.meta().commit(&[change]).unwrap();
    };
    commit("other", "in between".to_owned());
    let tablet = engine.create_tablet(RowRange::all()).unwrap().id();
    commit("tables/wanted", tablet.0.to_string());
    engine.close().unwrap();
    drop(engine);
    let manifest = dir().join(format!("tablets/{:016x}", tablet.0));
    for entry in place.files.list(&manifest).unwrap() {
        place.files.remove(&manifest.join(entry.name)).unwrap();
    }
    place.files.remove_dir(&manifest).unwrap();
    let path = files_in(&place.files, "meta").remove(0);
    let bytes = place.files.contents(&path).unwrap();
    let at = bytes.windows(10).position(|w| w == b"in between").unwrap();
    flip(&place.files, &path, at);
    assert!(repair(&place.files, false).opens());
    let engine =
        Engine::open_with_catalog(environment(&place.files), dir(), tiny_options(), &read_catalog);
    let engine = engine.unwrap();
    assert!(engine.meta().get("tables/wanted").unwrap().is_some());
    assert!(engine.tablet(tablet).is_some());
}

#[test]
fn a_table_that_the_catalog_lost_is_set_aside_with_its_ssts() {
    let place = place();
    let path = files_in(&place.files, "meta").remove(0);
    let bytes = place.files.contents(&path).unwrap();
    let at = bytes.windows(8).position(|w| w == b"tables/t").unwrap();
    let ssts = files_in(&place.files, "sst").len();
    damage_and_repair(&place, &path, at);
    assert_eq!(files_in(&place.files, "sst").len(), 0);
    assert_eq!(files_in(&place.files, "lost/sst").len(), ssts);
    assert_eq!(files_in(&place.files, "lost/tablets").len(), 2);
}

#[test]
fn without_a_catalog_nothing_else_is_touched() {
    let place = place();
    let path = files_in(&place.files, "meta").remove(0);
    // The payload of the first record, the snapshot.
    flip(&place.files, &path, 56);
    let before = contents(&place.files);
    let report = repair(&place.files, false);
    assert!(!report.opens() && report.open[0].contains("backup"), "{:?}", report.open);
    assert_eq!(contents_but_repair(&place.files), before);
}

#[test]
fn a_catalog_that_is_gone_is_damage_and_nothing_else_is_touched() {
    // With everything beside it, and with SSTs alone.
    for ssts_alone in [false, true] {
        let place = place();
        for path in contents(&place.files).into_keys() {
            let kept = path == dir().join("IDENTITY")
                || path.starts_with(dir().join("sst"))
                || !(ssts_alone || path.starts_with(dir().join("meta")));
            if !kept {
                place.files.remove(&path).unwrap();
            }
        }
        if ssts_alone {
            for entry in place.files.list(&dir().join("tablets")).unwrap() {
                place.files.remove_dir(&dir().join("tablets").join(entry.name)).unwrap();
            }
        }
        let found = check(&place.files);
        let of_meta = |f: &&offline::Finding| f.to_string().contains("the catalog is missing");
        assert_eq!(found.damage.iter().filter(of_meta).count(), 1, "{:?}", found.damage);
        let before = contents(&place.files);
        let report = repair(&place.files, false);
        assert!(
            !report.opens() && report.open[0].contains("META-* of a copy"),
            "{:?}",
            report.open
        );
        let mut after = contents_but_repair(&place.files);
        after.remove(&dir().join("LOCK"));
        assert!(before.iter().filter(|(path, _)| !path.ends_with("LOCK")).eq(after.iter()));
    }
}

#[test]
fn a_missing_or_damaged_identity_is_rewritten() {
    let identity = dir().join("IDENTITY");
    let place = place();
    let report = damage_and_repair(&place, &identity, 3);
    assert_rows(&place, &report, "a damaged identity");
    place.files.remove(&identity).unwrap();
    assert!(check(&place.files).damage.iter().any(|f| f.file == identity));
    assert!(repair(&place.files, false).opens());
    assert_eq!(rows_of(&place.files, place.tablets), place.rows);
}

#[test]
fn a_directory_in_use_or_of_something_else_is_refused() {
    let place = place();
    let engine = Engine::open(environment(&place.files), dir(), tiny_options()).unwrap();
    let error =
        offline::check(&environment(&place.files), dir(), None, &mut |_, _| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Locked);
    assert!(error.message().contains("/data") && error.message().contains("stop"), "{error}");
    drop(engine);
    let other = Path::new("/elsewhere");
    let error =
        offline::check(&environment(&place.files), other, None, &mut |_, _| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn who_may_only_read_a_directory_can_check_it_and_ask_what_a_repair_would_do() {
    let place = place();
    flip(&place.files, &files_in(&place.files, "sst")[0], 10);
    let read_only = FaultFiles::new(Arc::clone(&place.files) as Arc<dyn Files>);
    for op in [
        FaultOp::Create,
        FaultOp::Truncate,
        FaultOp::CreateDir,
        FaultOp::Rename,
        FaultOp::Remove,
        FaultOp::RemoveDir,
        FaultOp::SyncDir,
        FaultOp::Lock,
    ] {
        read_only.inject(Fault::new(op).sticky());
    }
    let mut environment = environment(&place.files);
    environment.files = Arc::new(read_only);
    let found = offline::check(&environment, dir(), Some(&read_catalog), &mut |_, _| {}).unwrap();
    assert_eq!(found.damage.len(), check(&place.files).damage.len());
    let (catalog, options): (offline::CatalogReader<'_>, _) =
        (&read_catalog, RepairOptions { dry_run: true, ..Default::default() });
    let dry = offline::repair(&environment, dir(), Some(catalog), options, &mut |_, _| {}).unwrap();
    assert!(dry.opens(), "{dry:#?}");
    let options = RepairOptions::default();
    let error = offline::repair(&environment, dir(), Some(catalog), options, &mut |_, _| {});
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Io);
}

/// Asserts that damaged files and all manifests, lists of backups, SSTs and value files are still there, wherever, by content.
fn assert_kept(
    before: &BTreeMap<PathBuf, Vec<u8>>,
    damaged: &[PathBuf],
    files: &MemoryFiles,
    what: &str,
) {
    let after: Vec<Vec<u8>> = contents(files).into_values().collect();
    for (path, bytes) in before {
        let dirs = ["tablets", "sst", "values", "backups"];
        if damaged.contains(path) || dirs.iter().any(|part| path.starts_with(dir().join(part))) {
            assert!(after.contains(bytes), "{what}: {} is gone", path.display());
        }
    }
}

fn crashed(files: &MemoryFiles, mode: CrashMode, seed: u64) -> Arc<MemoryFiles> {
    Arc::new(files.crashed_copy(mode, &SeededRng::new(seed)))
}

/// A copy, with what is durable alone.
fn durable(place: &Place) -> Place {
    let Place { files, tablets, rows } = place;
    let files = crashed(files, CrashMode::Strict, 1);
    Place { files, tablets: *tablets, rows: rows.clone() }
}

/// A repair of this place is interrupted by each operation that can fail, and then by a crash or not. Neither a start nor the next
/// run of the repair loses what the first had yet to set aside.
fn assert_can_be_interrupted(place: &Place, changed: &[PathBuf]) {
    let damaged = durable(place);
    let before = contents(&damaged.files);
    assert!(before == contents(&place.files), "what is damaged is durable");
    let whole = durable(&damaged);
    let told = repair(&whole.files, false);
    assert!(told.opens(), "{told:#?}");
    let rows = rows_of(&whole.files, whole.tablets);

    let mut interrupted = 0;
    for op in [
        FaultOp::Create,
        FaultOp::CreateDir,
        FaultOp::Append,
        FaultOp::Truncate,
        FaultOp::Sync,
        FaultOp::SyncDir,
        FaultOp::Rename,
        FaultOp::Remove,
    ] {
        for nth in 1.. {
            let place = durable(&damaged);
            let faulty = FaultFiles::new(Arc::clone(&place.files) as Arc<dyn Files>);
            faulty.inject(Fault::new(op).nth(nth).sticky());
            let repaired = repair_over(&place, faulty.clone());
            let opens = repaired.as_ref().is_ok_and(RepairReport::opens);
            if faulty.count(op) < nth {
                assert!(opens, "{op:?}");
                break;
            }
            interrupted += usize::from(!opens);
            let first = repaired.map_or_else(|_| Vec::new(), |report| report.lost);
            let strict = crashed(&place.files, CrashMode::Strict, nth);
            let torn = crashed(&place.files, CrashMode::Torn, nth);
            for (how, files) in [("strict", strict), ("torn", torn), ("as it is", place.files)] {
                let what = format!("{op:?} {nth}, {how}");
                let environment = environment(&files);
                let options = tiny_options();
                // Refused, or it removes what nothing names.
                let started = Engine::open_with_catalog(environment, dir(), options, &read_catalog);
                started.map_or(Ok(()), |engine| engine.close()).unwrap();
                let report = repair(&files, false);
                assert!(report.opens(), "{what}: {report:#?}");
                assert_kept(&before, changed, &files, &what);
                assert_eq!(rows_of(&files, damaged.tablets), rows, "{what}");
                for lost in told.lost.iter().filter(|lost| {
                    lost.contains(": its list of files") || lost.contains(": the manifest;")
                }) {
                    assert!(first.contains(lost) || report.lost.contains(lost), "{what}: {lost}");
                }
            }
        }
    }
    assert!(interrupted > 10, "{interrupted}");
}

#[test]
fn an_interrupted_repair_can_be_run_again() {
    let place = durable(&place());
    flip(&place.files, &files_in(&place.files, "sst")[0], 10);
    let manifest = files_in(&place.files, "tablets").remove(1);
    flip(&place.files, &manifest, 60);
    assert_can_be_interrupted(&place, &[manifest]);
}

#[test]
fn an_interrupted_repair_of_a_tablet_that_is_gone_can_be_run_again() {
    let place = durable(&place());
    let manifest = files_in(&place.files, "tablets").remove(1);
    place.files.remove(&manifest).unwrap();
    place.files.remove_dir(manifest.parent().unwrap()).unwrap();
    place.files.sync_dir(&dir().join("tablets")).unwrap();
    assert_can_be_interrupted(&place, &[]);
}

#[test]
fn an_interrupted_repair_of_a_backup_that_is_gone_can_be_run_again() {
    let place = durable(&place_with_backup().0);
    place.files.remove(&files_in(&place.files, "backups")[0]).unwrap();
    place.files.sync_dir(&dir().join("backups")).unwrap();
    assert_can_be_interrupted(&place, &[]);
}

#[test]
fn what_an_interrupted_repair_left_of_the_log_is_set_aside_by_the_next() {
    let place = place();
    let segment = segments_in(&place.files).remove(0);
    flip(&place.files, &segment, 200);
    let original = place.files.contents(&segment).unwrap();
    let faulty = FaultFiles::new(Arc::clone(&place.files) as Arc<dyn Files>);
    faulty.inject(Fault::new(FaultOp::Rename).on_path(".log.damaged"));
    assert!(repair_over(&place, faulty).unwrap().stopped.is_some());
    let left_in_log = |files: &MemoryFiles| {
        files_in(files, "log").into_iter().find(|path| path.to_str().unwrap().contains(".damaged"))
    };
    assert!(left_in_log(&place.files).is_some());
    // As one of an earlier version that left it.
    let whole = durable(&place);
    whole.files.remove(&dir().join("REPAIR")).unwrap();
    for files in [&place.files, &whole.files] {
        let dry = repair(files, true);
        let report = repair(files, false);
        assert!(report.opens(), "{report:#?}");
        assert_eq!(dry.set_aside, report.set_aside);
        assert_eq!(left_in_log(files), None);
        let aside = dir().join("lost/log").join(segment.file_name().unwrap());
        assert!(files.contents(&aside).unwrap() == original);
        assert!(report.set_aside.contains(&(segment.clone(), aside)), "{:?}", report.set_aside);
        assert!(check(files).notes.is_empty(), "{:?}", check(files).notes);
        assert!(!repair(files, false).has_changes(), "and that is all");
    }
}

#[test]
fn a_repair_that_fails_before_it_has_changed_anything_keeps_no_server_away() {
    let place = place();
    flip(&place.files, &files_in(&place.files, "sst").remove(0), 100);
    let before = contents(&place.files);
    let faulty = FaultFiles::new(Arc::clone(&place.files) as Arc<dyn Files>);
    faulty.inject(Fault::new(FaultOp::Create).on_path(".sst").kind(ErrorKind::NoSpace));
    let mut environment = environment(&place.files);
    environment.files = Arc::new(faulty);
    let catalog: offline::CatalogReader<'_> = &read_catalog;
    let options = RepairOptions::default();
    let failed = offline::repair(&environment, dir(), Some(catalog), options, &mut |_, _| {});
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::NoSpace);
    assert!(contents(&place.files) == before);
}

#[test]
fn a_repair_that_finds_the_disk_full_leaves_nothing_half_written() {
    for (at, damaged) in [("/data/sst", "sst"), ("/data/lost", "meta")] {
        let place = place();
        let damaged = files_in(&place.files, damaged).remove(0);
        flip(&place.files, &damaged, 100);
        let before = contents(&place.files);
        let faulty = FaultFiles::new(Arc::clone(&place.files) as Arc<dyn Files>);
        faulty.inject(Fault::new(FaultOp::Append).on_path(at).kind(ErrorKind::NoSpace));
        let mut environment = environment(&place.files);
        environment.files = Arc::new(faulty);
        let catalog: offline::CatalogReader<'_> = &read_catalog;
        let options = RepairOptions::default();
        let repaired = offline::repair(&environment, dir(), Some(catalog), options, &mut |_, _| {});
        let stopped = repaired.map_or_else(Some, |report| report.stopped);
        assert_eq!(stopped.map(|error| error.kind()), Some(ErrorKind::NoSpace), "{at}");
        let after = contents(&place.files);
        let aside = after.iter().filter(|(path, _)| path.starts_with(dir().join("lost")));
        for (path, bytes) in aside {
            let whole = before.values().any(|original| original == bytes);
            assert!(whole, "{} is half a copy", path.display());
        }
        let ssts = |files: &BTreeMap<PathBuf, Vec<u8>>| {
            files.keys().filter(|path| path.starts_with(dir().join("sst"))).count()
        };
        assert_eq!(ssts(&after), ssts(&before), "{at}");
    }
}

/// Repairs over a file system that fails.
fn repair_over(place: &Place, faulty: FaultFiles) -> tepui_engine::Result<RepairReport> {
    let mut environment = environment(&place.files);
    environment.files = Arc::new(faulty);
    let catalog: offline::CatalogReader<'_> = &read_catalog;
    let options = RepairOptions::default();
    offline::repair(&environment, dir(), Some(catalog), options, &mut |_, _| {})
}

#[test]
fn a_repair_of_the_log_that_an_error_stops_says_what_it_had_found_lost() {
    let place = place();
    let [first, second, ..] = &segments_in(&place.files)[..] else { panic!("two segments") };
    let bytes = place.files.contents(first).unwrap();
    flip(&place.files, first, bytes.windows(6).position(|w| w == b"value ").unwrap());
    let faulty = FaultFiles::new(Arc::clone(&place.files) as Arc<dyn Files>);
    // Of the first nothing is found again.
    let name = format!("{}.repair", second.display());
    faulty.inject(Fault::new(FaultOp::Append).on_path(name).kind(ErrorKind::NoSpace));
    let report = repair_over(&place, faulty).unwrap();
    assert_eq!(report.stopped.unwrap().kind(), ErrorKind::NoSpace);
    let name = first.to_str().unwrap();
    assert!(report.lost.iter().any(|lost| lost.starts_with(name)), "{:?}", report.lost);
    assert!(report.set_aside.iter().any(|(was, _)| was == first), "{:?}", report.set_aside);
    let left = |path: &PathBuf| path.to_str().unwrap().contains(".repair");
    assert!(!files_in(&place.files, "log").iter().any(left), "on a full disk its room is wanted");
    assert!(repair(&place.files, false).opens());
}

#[test]
fn a_repair_of_a_catalog_or_a_manifest_that_an_error_stops_says_what_it_had_found_lost() {
    for part in ["meta", "tablets"] {
        let place = place();
        let path = files_in(&place.files, part).remove(0);
        let bytes = place.files.contents(&path).unwrap();
        // In its last record.
        flip(&place.files, &path, bytes.iter().rposition(|byte| *byte != 0).unwrap() - 40);
        let faulty = FaultFiles::new(Arc::clone(&place.files) as Arc<dyn Files>);
        // By then the new file counts.
        faulty.inject(Fault::new(FaultOp::Remove).on_path(format!("/data/{part}/")));
        let report = repair_over(&place, faulty).unwrap();
        assert!(report.stopped.is_some(), "{part}: {report:?}");
        let name = path.to_str().unwrap();
        assert!(report.lost.iter().any(|lost| lost.starts_with(name)), "{:?}", report.lost);
    }
}

#[test]
fn a_repair_that_cannot_read_the_list_of_segments_takes_it_for_no_other() {
    // Those before are of the check.
    for nth in 3..=5 {
        let place = place();
        let missing = segments_in(&place.files).remove(0);
        place.files.remove(&missing).unwrap();
        let faulty = FaultFiles::new(Arc::clone(&place.files) as Arc<dyn Files>);
        faulty.inject(Fault::new(FaultOp::Open).on_path("/data/log/SEGMENTS").nth(nth));
        let report = repair_over(&place, faulty).unwrap();
        assert_eq!(report.stopped.map(|error| error.kind()), Some(ErrorKind::Io), "open {nth}");
        let report = repair(&place.files, false);
        let name = missing.to_str().unwrap();
        assert!(report.lost.iter().any(|lost| lost.starts_with(name)), "{nth}: {:?}", report.lost);
    }
}

#[test]
fn a_start_that_is_refused_for_what_it_read_says_what_to_do() {
    let refused = |files: Arc<dyn Files>| {
        let environment = env(files, Arc::new(ManualClock::new(START_MICROS)), 3);
        Engine::open(environment, dir(), tiny_options()).unwrap_err().to_string()
    };
    for (name, bytes) in [
        ("IDENTITY", Some(vec![b'x'; 20])),
        ("IDENTITY", Some(vec![b'x'; 300])),
        ("IDENTITY", None),
        ("log/SEGMENTS", Some(vec![b'x'; 300])),
        ("changes/LIST.chg.new", Some(vec![b'x'; 300])),
    ] {
        let (place, path) = (place(), dir().join(name));
        match bytes {
            Some(bytes) => place.files.put_contents(&path, bytes),
            None => place.files.remove(&path).unwrap(),
        }
        let error = refused(Arc::clone(&place.files) as Arc<dyn Files>);
        assert!(error.contains(name) && error.contains("`tepui repair"), "{error}");
    }
    for part in ["tablets", "log", "meta"] {
        let place = place();
        let mut files = files_in(&place.files, part);
        files.retain(|path| !path.ends_with("SEGMENTS"));
        let name = files.pop().unwrap().to_str().unwrap().to_owned();
        let faulty = FaultFiles::new(Arc::clone(&place.files) as Arc<dyn Files>);
        faulty.inject(Fault::new(FaultOp::Read).on_path(&*name).sticky());
        let error = refused(Arc::new(faulty));
        assert!(error.contains(&name) && error.contains("ddrescue"), "{error}");
    }
}

#[test]
fn a_repair_that_finds_the_disk_full_goes_on_with_the_next_run_where_it_was() {
    let place = place();
    let ssts = files_in(&place.files, "sst");
    for path in &ssts {
        flip(&place.files, path, 10);
    }
    let before = contents(&place.files);
    let mut told = RepairReport::default();
    for run in 1.. {
        let faulty = FaultFiles::new(Arc::clone(&place.files) as Arc<dyn Files>);
        // Each run has room for one SST.
        let full = Fault::new(FaultOp::Create).on_path("/data/sst/").nth(2);
        faulty.inject(full.kind(ErrorKind::NoSpace));
        let report = repair_over(&place, faulty).unwrap();
        told.lost_rows.extend(report.lost_rows.clone());
        if report.opens() {
            break;
        }
        assert_eq!(report.stopped.unwrap().kind(), ErrorKind::NoSpace);
        assert!(run < ssts.len(), "run {run} of {} SSTs", ssts.len());
        assert_eq!(files_in(&place.files, "sst").len(), ssts.len() + run);
    }
    assert_kept(&before, &[], &place.files, "in the end");
    assert_rows(&place, &told, "a run for each SST");
}

#[test]
fn a_repair_that_stops_at_the_same_place_again_takes_no_more_of_the_disk() {
    let place = place();
    let path = largest_value_file(&place);
    flip(&place.files, &path, "value 2 of 120".len() + 12);
    let mut left = None;
    for run in 0..3 {
        let faulty = FaultFiles::new(Arc::clone(&place.files) as Arc<dyn Files>);
        let full = Fault::new(FaultOp::Create).on_path("MANIFEST");
        faulty.inject(full.kind(ErrorKind::NoSpace).sticky());
        let report = repair_over(&place, faulty).unwrap();
        assert_eq!(report.stopped.unwrap().kind(), ErrorKind::NoSpace);
        assert_eq!(files_in(&place.files, "lost/values").len(), 1, "run {run}");
        let now = contents(&place.files);
        assert!(left.is_none_or(|left| left == now), "run {run}");
        left = Some(now);
    }
    let report = repair(&place.files, false);
    assert!(report.opens(), "{report:#?}");
    assert_eq!(report.lost_rows.len(), 1, "{:?}", report.lost_rows);
    assert_eq!(files_in(&place.files, "lost/values").len(), 1);
}

#[test]
fn a_repair_believes_the_device_and_not_what_a_failed_sync_left_in_memory() {
    let place = place();
    let faults = FaultFiles::new(Arc::clone(&place.files) as Arc<dyn Files>);
    let mut environment = environment(&place.files);
    environment.files = Arc::new(faults.clone());
    let engine = Engine::open(environment, dir(), tiny_options()).unwrap();
    for tablet in engine.tablets() {
        tablet.set_schema(Arc::new(plain_schema()));
    }
    engine.start().unwrap();
    for tablet in engine.tablets() {
        block_on(tablet.flush()).unwrap();
    }
    // A compaction whose edit the device does not get, and the page cache shows.
    faults.inject(Fault::new(FaultOp::Sync).on_path("MANIFEST").kind(ErrorKind::Io).sticky());
    engine.compact_fully().unwrap_err();
    for path in files_in(&place.files, "tablets") {
        place.files.lose_unsynced(&path).unwrap();
    }
    drop(engine);
    let report = repair(&place.files, false);
    assert!(report.opens(), "{report:#?}");
    // What only the page cache had is gone with the machine.
    let restarted = place.files.crashed_copy(CrashMode::Strict, &SeededRng::new(1));
    assert_eq!(rows_of(&Arc::new(restarted), place.tablets), place.rows, "{report:#?}");
}

#[test]
fn what_a_catalog_forgot_in_an_interrupted_repair_is_set_aside_by_the_next() {
    for tablets_too in [false, true] {
        let place = place();
        let path = files_in(&place.files, "meta").remove(0);
        let bytes = place.files.contents(&path).unwrap();
        let at = bytes.windows(8).position(|w| w == b"tables/t").unwrap();
        flip(&place.files, &path, at);
        let before = contents(&place.files);
        let faulty = FaultFiles::new(Arc::clone(&place.files) as Arc<dyn Files>);
        let part = if tablets_too { "sst" } else { "tablets" };
        faulty.inject(Fault::new(FaultOp::Rename).on_path(part));
        let mut environment = environment(&place.files);
        environment.files = Arc::new(faulty);
        let catalog: offline::CatalogReader<'_> = &read_catalog;
        let options = RepairOptions::default();
        let stopped = offline::repair(&environment, dir(), Some(catalog), options, &mut |_, _| {});
        let stopped = stopped.unwrap();
        assert!(!stopped.opens() && stopped.stopped.unwrap().message().contains("to its end"));
        assert!(!stopped.lost.is_empty(), "what it had found is told once, and now");
        assert_no_start(&place.files);
        let found = check(&place.files);
        assert!(found.damage.len() == 1 && !found.unnamed.is_empty(), "{found}");

        let dry = repair(&place.files, true);
        let report = repair(&place.files, false);
        assert!(report.opens() && report.after.unnamed.is_empty(), "{report:#?}");
        assert_eq!(dry.set_aside, report.set_aside);
        rows_of_none(&place.files);
        assert_kept(&before, &[], &place.files, part);
        assert_eq!(files_in(&place.files, "lost/tablets").len(), 2);
    }
}

/// All files but the one that says that a repair has left something to be done.
fn contents_but_repair(files: &MemoryFiles) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = contents(files);
    assert!(all.remove(&dir().join("REPAIR")).is_some());
    all
}

/// A start would remove what an interrupted repair has yet to set aside.
fn assert_no_start(files: &Arc<MemoryFiles>) {
    let before = contents(files);
    let error = Engine::open(environment(files), dir(), tiny_options()).unwrap_err().to_string();
    assert!(error.contains("run `tepui repair` to its end"), "{error}");
    assert!(contents(files) == before, "nothing was changed");
}

/// Starts as a server does whose catalog has no table and no backup.
fn rows_of_none(files: &Arc<MemoryFiles>) {
    let engine = Engine::open(environment(files), dir(), tiny_options()).unwrap();
    engine.retain_tablets(&[]).unwrap();
    engine.retain_backups(&[]).unwrap();
    engine.close().unwrap();
}

#[test]
fn tables_and_backups_that_an_older_catalog_does_not_know_are_set_aside() {
    let (place, _) = place_with_backup();
    let engine = Engine::open(environment(&place.files), dir(), tiny_options()).unwrap();
    let older: Vec<MetaChange> = ["tables/t", "backups/b"]
        .map(|key| MetaChange { key: key.to_owned(), expect: MetaExpect::Any, value: None })
        .into();
    engine.meta().commit(&older).unwrap();
    engine.close().unwrap();
    let before = contents(&place.files);
    let found = check(&place.files);
    assert!(found.is_whole(), "{found}");
    let notes = found.notes.iter().filter(|note| found.unnamed.contains(&note.file));
    assert_eq!((notes.count(), found.unnamed.len()), (3, 3), "{:?}", found.notes);

    let report = repair(&place.files, false);
    assert!(report.opens() && report.lost.is_empty(), "{report:#?}");
    rows_of_none(&place.files);
    assert_kept(&before, &[], &place.files, "an older catalog");
    assert_eq!(files_in(&place.files, "lost/backups").len(), 1);
    assert_eq!(files_in(&place.files, "lost/tablets").len(), 2);
    assert!(!files_in(&place.files, "lost/sst").is_empty());
    assert!(!repair(&place.files, false).has_changes(), "and that is all");
}

#[test]
fn what_an_entry_that_cannot_be_read_may_name_is_left() {
    let place = place();
    flip(&place.files, &files_in(&place.files, "sst")[0], 10);
    let tablets = || place.files.list(&dir().join("tablets")).unwrap();
    let before = tablets();
    let unreadable = |key: &str, value: &[u8]| match key {
        "tables/t" => Err(tepui_engine::Error::new(ErrorKind::Corruption, "unreadable")),
        _ => read_catalog(key, value),
    };
    let options = RepairOptions::default();
    let report = offline::repair(
        &environment(&place.files),
        dir(),
        Some(&unreadable),
        options,
        &mut |_, _| {},
    )
    .unwrap();
    assert!(!report.opens());
    assert_eq!(tablets(), before);
    // The copy of the manifest that named the damaged SST.
    assert_eq!(files_in(&place.files, "lost/tablets").len(), 1);
}

#[test]
fn a_tablet_without_a_manifest_is_left_where_an_entry_that_cannot_be_read_may_name_it() {
    let place = place();
    flip(&place.files, &files_in(&place.files, "tablets")[0], 60);
    let before = contents(&place.files);
    let unreadable = |key: &str, value: &[u8]| match key {
        "tables/t" => Err(tepui_engine::Error::new(ErrorKind::Corruption, "unreadable")),
        _ => read_catalog(key, value),
    };
    let options = RepairOptions::default();
    let catalog: offline::CatalogReader<'_> = &unreadable;
    let report =
        offline::repair(&environment(&place.files), dir(), Some(catalog), options, &mut |_, _| {})
            .unwrap();
    assert!(!report.opens() && report.lost.is_empty(), "{report:#?}");
    let tablet = format!("{:016x}", place.tablets[0].0);
    assert!(report.open.iter().any(|open| open.contains(&tablet)), "{:?}", report.open);
    assert!(contents_but_repair(&place.files) == before, "all is where it was");
}

#[test]
fn what_the_device_does_not_read_is_not_taken_for_lost() {
    let repair_over = |place: &Place, fault: Option<Fault>| {
        let faulty = FaultFiles::new(Arc::clone(&place.files) as Arc<dyn Files>);
        if let Some(fault) = fault {
            faulty.inject(fault);
        }
        let mut environment = environment(&place.files);
        environment.files = Arc::new(faulty.clone());
        let catalog: offline::CatalogReader<'_> = &read_catalog;
        let options = RepairOptions::default();
        let repaired = offline::repair(&environment, dir(), Some(catalog), options, &mut |_, _| {});
        (repaired, faulty.count(FaultOp::Read))
    };
    let damaged = || {
        let place = place();
        let path = largest_value_file(&place);
        let len = place.files.contents(&path).unwrap().len();
        flip(&place.files, &path, len - 20);
        flip(&place.files, &path, 30);
        let sst = files_in(&place.files, "sst").remove(0);
        flip(&place.files, &sst, 10);
        flip(&place.files, &dir().join("IDENTITY"), 3);
        place
    };
    let whole = damaged();
    let (report, reads) = repair_over(&whole, None);
    assert!(report.unwrap().opens());
    let rows = rows_of(&whole.files, whole.tablets);

    for kind in [ErrorKind::Io, ErrorKind::Exhausted] {
        let mut during = 0;
        for nth in (1..reads).step_by((reads as usize / 40).max(1)) {
            let place = damaged();
            let before = contents(&place.files);
            let fault = Fault::new(FaultOp::Read).nth(nth).kind(kind).sticky();
            let (repaired, _) = repair_over(&place, Some(fault));
            match repaired {
                Ok(report) => assert!(!report.opens(), "{nth}: its last check was not read"),
                Err(error) => {
                    assert_eq!(error.kind(), kind, "{nth}: {error}");
                    let text = error.message();
                    assert!(text.contains("/data/") && text.contains("again"), "{nth}: {text}");
                }
            }
            during += usize::from(contents(&place.files) != before);
            assert_kept(&before, &[], &place.files, &format!("read {nth}"));
            // The device is well again, or there is room for one more file.
            let report = repair(&place.files, false);
            assert!(report.opens(), "{nth}: {report:#?}");
            assert_kept(&before, &[], &place.files, &format!("read {nth}, and again"));
            assert_eq!(rows_of(&place.files, place.tablets), rows, "{nth}");
        }
        assert!(during > 3, "{during} of them while the repair changed the directory");
    }
}

#[test]
fn a_check_that_lacks_open_files_says_so_and_names_no_damage() {
    for dir_of in ["/data/sst/", "/data/values/", "MANIFEST"] {
        let place = place();
        let faulty = FaultFiles::new(Arc::clone(&place.files) as Arc<dyn Files>);
        let lacking = Fault::new(FaultOp::Open).on_path(dir_of).kind(ErrorKind::Exhausted);
        faulty.inject(lacking.sticky());
        let mut environment = environment(&place.files);
        environment.files = Arc::new(faulty);
        let checked = offline::check(&environment, dir(), Some(&read_catalog), &mut |_, _| {});
        let error = checked.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Exhausted, "{dir_of}: {error}");
        assert!(error.message().contains("not everything was checked"), "{dir_of}: {error}");
        assert!(error.message().contains("nothing that was read is damaged"), "{dir_of}: {error}");
        assert!(check(&place.files).is_whole());
        // What is damaged is told all the same.
        flip(&place.files, &dir().join("IDENTITY"), 3);
        let checked = offline::check(&environment, dir(), Some(&read_catalog), &mut |_, _| {});
        let text = checked.unwrap_err().message().to_owned();
        assert!(text.contains("damaged places") && text.contains("IDENTITY"), "{dir_of}: {text}");
    }
}

#[test]
fn a_file_that_belongs_to_somebody_else_is_no_damage_and_the_owner_is_what_to_change() {
    for (op, path) in [
        (FaultOp::Open, "/data/sst/"),
        (FaultOp::Open, "/data/values/"),
        (FaultOp::Open, "MANIFEST"),
        (FaultOp::Open, "/data/meta/"),
        (FaultOp::Open, "/data/log/"),
        (FaultOp::Open, "IDENTITY"),
        (FaultOp::Any, "LOCK"),
    ] {
        let place = place();
        let before = contents(&place.files);
        let faulty = FaultFiles::new(Arc::clone(&place.files) as Arc<dyn Files>);
        faulty.inject(Fault::new(op).on_path(path).denied().sticky());
        let mut environment = environment(&place.files);
        environment.files = Arc::new(faulty);
        let checked = offline::check(&environment, dir(), Some(&read_catalog), &mut |_, _| {});
        let options = RepairOptions::default();
        let repaired =
            offline::repair(&environment, dir(), Some(&read_catalog), options, &mut |_, _| {});
        for error in [checked.unwrap_err(), repaired.unwrap_err()] {
            let text = error.message();
            assert!(text.contains("change the owner") && text.contains(path), "{path}: {text}");
            assert!(!text.contains("ddrescue") && !text.contains("open at once"), "{path}: {text}");
        }
        assert_eq!(contents(&place.files), before, "{path}");
    }
}

#[test]
fn inspection_shows_every_record_and_where_it_ends() {
    let place = place();
    let show = |path: &Path| -> (bool, String, Vec<serde_json::Value>) {
        let mut text = String::new();
        let mut values = Vec::new();
        let mut on = |line: inspect::Line| {
            text = format!("{text}{line}\n");
            values.push(serde_json::to_value(&line).unwrap());
            Ok(())
        };
        let files = place.files.as_ref();
        let whole = match path.parent().unwrap().file_name().unwrap().to_str().unwrap() {
            "sst" => inspect::sst(files, path, true, &mut on),
            "log" => inspect::log(files, path, &mut on),
            _ => inspect::manifest(files, path, &mut on),
        };
        (whole.unwrap(), text, values)
    };
    let of = |values: &[serde_json::Value], kind: &str| {
        values.iter().filter(|value| value["type"] == kind).count() as u64
    };
    for path in files_in(&place.files, "sst") {
        let (whole, text, values) = show(&path);
        assert!(whole);
        assert_eq!(of(&values, "record"), values[0]["entries"].as_u64().unwrap());
        assert_eq!(of(&values, "block"), values[0]["data_blocks"].as_u64().unwrap());
        assert!(of(&values, "filter") > 0);
        assert!(text.contains("\"row-0") && text.contains("Value"), "{text}");
    }
    let mut batches = 0;
    let (_, text, values) = show(&dir().join("log/SEGMENTS"));
    let segments = segments_in(&place.files);
    let newest = segments.last().unwrap().file_stem().unwrap().to_str().unwrap();
    assert!(of(&values, "segments") > 0 && text.contains(newest), "{text}");
    for path in segments {
        let (whole, _, values) = show(&path);
        assert!(whole);
        assert_eq!((of(&values, "opening"), of(&values, "end")), (1, 1));
        batches += of(&values, "batch");
    }
    assert_eq!(batches, check(&place.files).log_batches);
    let manifest = files_in(&place.files, "tablets").remove(0);
    let (whole, _, values) = show(&manifest);
    assert!(whole && of(&values, "edit") > 3);
    assert_eq!(of(&values, "version"), 1);
    let meta = files_in(&place.files, "meta").remove(0);
    let (whole, text, _) = show(&meta);
    assert!(whole && text.contains("set tables/t"), "{text}");

    // Damage is shown, and what lies behind it too.
    let edits = of(&values, "edit");
    let at = values.iter().filter(|v| v["type"] == "edit").nth(1).unwrap()["offset"].as_u64();
    flip(&place.files, &manifest, at.unwrap() as usize + 30);
    let (whole, text, values) = show(&manifest);
    assert!(!whole && text.contains("DAMAGED"));
    assert_eq!(of(&values, "edit"), edits - 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// A flipped bit costs nothing, or is found; and what is found is repaired, or the repair says that it
    /// is not. Nothing comes back that was never written.
    #[test]
    fn a_flipped_bit_anywhere_is_found_and_repaired(
        which: prop::sample::Index,
        at: prop::sample::Index,
        bit in 0..8u8,
    ) {
        let place = place();
        let paths: Vec<PathBuf> =
            contents(&place.files).into_keys().filter(|p| !p.ends_with("LOCK")).collect();
        let path = which.get(&paths);
        let mut bytes = place.files.contents(path).unwrap();
        prop_assume!(!bytes.is_empty());
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        place.files.put_contents(path, bytes);
        let what = format!("{} byte {at} bit {bit}", path.display());
        let found = check(&place.files);
        if found.is_whole() {
            let rows = rows_of(&place.files, place.tablets);
            // The last record of the log may look like a write that was cut short.
            let is_cut = path.starts_with("/data/log") && rows == without_last_batch(&place.rows);
            prop_assert!(rows == place.rows || is_cut, "{}", what);
            return Ok(());
        }
        let named = path.to_str().unwrap();
        prop_assert!(found.damage.iter().any(|f| f.to_string().contains(named)), "{}", what);
        let report = repair(&place.files, false);
        if !report.opens() {
            prop_assert!(!report.open.is_empty(), "{}: {:#?}", what, report);
            return Ok(());
        }
        if report.lost.iter().any(|lost| lost.contains("no table")) {
            return Ok(()); // The tablets are in `lost/`.
        }
        for (row, value) in rows_of(&place.files, place.tablets) {
            prop_assert!(was_written(&row, &value), "{}: {} has {}", what, row, value);
        }
        if report.lost.is_empty() {
            assert_rows(&place, &report, &what);
        }
    }
}

#[test]
fn files_cut_by_dropped_rows_are_whole() {
    let options = tepui_engine::db::EngineOptions { target_file_bytes: 1 << 20, ..tiny_options() };
    let rig = crate::harness::Rig::new(options, plain_schema(), 4);
    for n in 0..200 {
        rig.apply(row(n).as_bytes(), vec![put(1, "q", 1000, "v")]);
    }
    rig.engine.compact_fully().unwrap();
    for n in [50, 51, 120] {
        block_on(rig.tablet.drop_rows(RowRange::row(row(n).as_bytes()))).unwrap();
    }
    assert!(rig.tablet.stats().sst_count > 1, "the file stands in several parts");
    rig.engine.close().unwrap();
    let progress: &mut dyn FnMut(u64, u64) = &mut |_, _| {};
    // The rig keeps no catalog, so none is read.
    let report =
        offline::check(&environment(&rig.files), Path::new("/data"), None, progress).unwrap();
    assert!(report.is_whole(), "{report}");
}

/// Damages the first block of a file of 200 rows of which some were dropped, and repairs it.
fn repair_a_cut_file(dropped: &[usize]) {
    let options = tepui_engine::db::EngineOptions { target_file_bytes: 1 << 20, ..tiny_options() };
    let rig = crate::harness::Rig::new(options.clone(), plain_schema(), 4);
    for n in 0..200 {
        rig.apply(row(n).as_bytes(), vec![put(1, "q", 1000, "v")]);
    }
    rig.engine.compact_fully().unwrap();
    for n in dropped {
        block_on(rig.tablet.drop_rows(RowRange::row(row(*n).as_bytes()))).unwrap();
    }
    let before = rig.tablet.stats();
    rig.engine.close().unwrap();
    let (files, id) = (Arc::clone(&rig.files), rig.tablet.id());
    drop(rig);
    flip(&files, &files_in(&files, "sst")[0], 10);
    let repair_options = RepairOptions::default();
    let report =
        offline::repair(&environment(&files), dir(), None, repair_options, &mut |_, _| {}).unwrap();
    assert!(report.opens() && !report.lost_rows.is_empty(), "{report:#?}");
    let engine = Engine::open(environment(&files), dir(), options).unwrap();
    let after = engine.tablet(id).unwrap().stats();
    assert_eq!(after.sst_count, before.sst_count);
    if dropped != [0] {
        assert!(after.sst_bytes <= before.sst_bytes, "{} of {}", after.sst_bytes, before.sst_bytes);
    }
}

#[test]
fn after_a_repair_the_pieces_of_a_cut_file_have_no_more_bytes_than_before() {
    repair_a_cut_file(&[50, 51, 120]);
}

#[test]
fn a_file_whose_dropped_rows_are_all_lost_is_whole_after_its_repair() {
    repair_a_cut_file(&[0]);
}

#[test]
fn inspection_shows_where_a_value_lies_and_what_is_in_its_file() {
    let place = place();
    let path = largest_value_file(&place);
    let files: &dyn Files = place.files.as_ref();
    let mut lines = Vec::new();
    let mut take = |line: inspect::Line| {
        lines.push(line.to_string());
        Ok(())
    };
    assert!(inspect::value_file(files, &path, &mut take).unwrap());
    for sst in files_in(&place.files, "sst") {
        assert!(inspect::sst(files, &sst, true, &mut take).unwrap());
    }
    let id = path.file_stem().unwrap().to_str().unwrap();
    assert!(lines[0].starts_with(&format!("value file {id}, ")), "{}", lines[0]);
    assert!(lines.iter().any(|l| l.contains(&format!("\n  value file {id}: "))));
    assert!(lines.iter().any(|l| l.contains(&format!(" of value file {id}"))));
    flip(&place.files, &path, place.files.contents(&path).unwrap().len() - 1);
    assert!(!inspect::value_file(files, &path, &mut |_| Ok(())).unwrap());
}

/// A place with a backup of both tablets, whose rows were rewritten and compacted since: the backup keeps files that
/// no tablet names.
pub fn place_with_backup() -> (Place, BackupId) {
    let place = place();
    let engine = Engine::open(environment(&place.files), dir(), tiny_options()).unwrap();
    for tablet in engine.tablets() {
        tablet.set_schema(Arc::new(plain_schema()));
    }
    engine.start().unwrap();
    let backup = block_on(engine.create_backup(&place.tablets)).unwrap().id();
    let change = MetaChange {
        key: "backups/b".to_owned(),
        expect: MetaExpect::Absent,
        value: Some(backup.0.to_string().into()),
    };
    engine.meta().commit(&[change]).unwrap();
    for tablet in engine.tablets() {
        block_on(tablet.drop_rows(RowRange::all())).unwrap();
    }
    engine.run_background().unwrap();
    engine.close().unwrap();
    (place, backup)
}

/// Restores the backup in what is on disk: its rows.
fn restored(place: &Place, backup: BackupId) -> Rows {
    let engine = Engine::open(environment(&place.files), dir(), tiny_options()).unwrap();
    let mut rows = Rows::new();
    for tablet in engine.restore_backup(backup).unwrap() {
        tablet.set_schema(Arc::new(plain_schema()));
        for row in scan(&tablet, RowRange::all(), Projection::all(), false, None).unwrap() {
            let value = String::from_utf8(row.cells[0].value.to_vec()).unwrap();
            rows.insert(String::from_utf8(row.key.to_vec()).unwrap(), value);
        }
    }
    rows
}

#[test]
fn a_backup_is_checked_like_a_table_and_what_only_it_keeps_is_named() {
    let (place, backup) = place_with_backup();
    let report = check(&place.files);
    assert!(report.is_whole() && report.notes.is_empty(), "{report} {:?}", report.notes);
    assert_eq!((report.backups, report.tablets), (1, 2));
    assert!(report.ssts > 2 && report.sst_records > 200, "{report}");
    assert_eq!(restored(&place, backup), place.rows);

    let (place, _) = place_with_backup();
    let path = files_in(&place.files, "backups").remove(0);
    let mut text = String::new();
    let mut on = |line: inspect::Line| {
        text = format!("{text}{line}\n");
        Ok(())
    };
    assert!(inspect::manifest(place.files.as_ref(), &path, &mut on).unwrap());
    assert!(text.contains("backup of 2 tablets") && text.contains("value file"), "{text}");

    place.files.put_contents(&path.with_extension("new"), b"half".to_vec());
    place.files.remove(&path).unwrap();
    let report = check(&place.files);
    assert!(report.damage.iter().any(|f| f.to_string().contains("the list of b is missing")));
    assert!(report.notes.iter().any(|f| f.to_string().contains("was being written")));
}

#[test]
fn a_damaged_sst_of_a_backup_costs_the_rows_that_are_listed_and_no_others() {
    for share in [10, 50, 97] {
        let (place, backup) = place_with_backup();
        let path = files_in(&place.files, "sst")
            .into_iter()
            .max_by_key(|path| place.files.contents(path).unwrap().len())
            .unwrap();
        let at = (place.files.contents(&path).unwrap().len() - 1) * share / 100;
        let report = damage_and_repair(&place, &path, at);
        let found = restored(&place, backup);
        for (row, value) in &place.rows {
            let lost = report
                .lost_rows
                .iter()
                .any(|lost| *lost.from_row <= *row.as_bytes() && *row.as_bytes() <= *lost.to_row);
            if !lost {
                assert_eq!(found.get(row), Some(value), "{share} %: {row} {report:#?}");
            }
        }
        assert!(found.len() > place.rows.len() / 4, "{share} %: {} rows", found.len());
    }
}

#[test]
fn a_damaged_list_is_set_aside_with_what_only_it_named_and_the_rest_opens() {
    let (place, backup) = place_with_backup();
    let path = files_in(&place.files, "backups").remove(0);
    let kept = files_in(&place.files, "sst").len();
    let report = damage_and_repair(&place, &path, 100);
    assert!(report.lost.iter().any(|lost| lost.contains("cannot be restored")), "{report:#?}");
    assert_eq!(files_in(&place.files, "lost/sst").len(), kept);
    assert!(restored(&place, backup).is_empty());
    assert!(rows_of(&place.files, place.tablets).is_empty(), "they were dropped");
}

#[test]
fn a_list_under_the_name_of_another_costs_that_backup_and_is_not_taken_for_a_newer_version() {
    let (place, backup) = place_with_backup();
    let path = files_in(&place.files, "backups").remove(0);
    let list = place.files.contents(&path).unwrap();
    let other = path.with_file_name(format!("BACKUP-{:016x}", backup.0 + 1));
    assert_eq!(other.file_name().unwrap().len(), path.file_name().unwrap().len());
    place.files.put_contents(&other, list);
    let report = check(&place.files);
    assert!(report.newer_version().is_none(), "{report}");
    let told = |f: &offline::Finding| f.to_string().contains("which its name denies");
    assert!(report.damage.iter().any(|f| f.file == other && told(f)), "{:?}", report.damage);
    let engine = Engine::open(environment(&place.files), dir(), tiny_options()).unwrap();
    assert!(engine.backup(backup).is_some());
    drop(engine);
    assert_eq!(restored(&place, backup), place.rows);
    let report = repair(&place.files, false);
    assert!(report.opens() && check(&place.files).is_whole(), "{report:#?}");
    assert_eq!(restored(&place, backup), place.rows);
}

#[test]
fn a_manifest_in_the_directory_of_another_tablet_is_damage_and_its_own_tablet_loses_nothing() {
    let place = place();
    let manifests = files_in(&place.files, "tablets");
    let (other, of) = (&manifests[0], &manifests[1]);
    let misplaced = other.with_file_name(of.file_name().unwrap());
    place.files.remove(other).unwrap();
    place.files.put_contents(&misplaced, place.files.contents(of).unwrap());
    let [other, of] = place.tablets.map(|tablet| format!("{:016x}", tablet.0));
    let text = format!("it is the manifest of tablet {of}, in the directory of tablet {other};");

    let found = check(&place.files);
    let told = |text: &str| found.damage.iter().any(|f| f.to_string().contains(text));
    assert!(told(&text) && told(misplaced.to_str().unwrap()), "{:?}", found.damage);
    let before = contents(&place.files);
    let refused = Engine::open(environment(&place.files), dir(), tiny_options()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Corruption);
    assert!(refused.to_string().contains(&text), "{refused}");
    assert!(contents(&place.files) == before, "a refused start changes nothing");

    let report = repair(&place.files, false);
    assert!(report.opens(), "{report:#?}");
    let rows = rows_of(&place.files, place.tablets);
    let mut of_it = place.rows.range(row(ROWS / 2)..);
    assert!(of_it.all(|(row, value)| rows.get(row) == Some(value)), "{rows:?}");
    assert!(rows.iter().all(|(row, value)| place.rows.get(row) == Some(value)), "{rows:?}");
}

#[test]
fn a_manifest_that_is_another_file_is_damage_and_a_repair_mends_what_it_can() {
    for catalog in [false, true] {
        let place = place();
        let path = files_in(&place.files, if catalog { "meta" } else { "tablets" }).remove(0);
        let from = files_in(&place.files, if catalog { "tablets" } else { "meta" }).remove(0);
        place.files.put_contents(&path, place.files.contents(&from).unwrap());
        let report = check(&place.files);
        assert!(report.newer_version().is_none(), "{report}");
        let told = |f: &offline::Finding| f.to_string().contains("file of another kind");
        assert!(report.damage.iter().any(told), "{:?}", report.damage);
        assert!(Engine::open(environment(&place.files), dir(), tiny_options()).is_err());
        let report = repair(&place.files, false);
        // Without a catalog nothing is touched.
        assert_eq!(report.opens(), !catalog, "{report:#?}");
        assert_eq!(report.has_changes(), !catalog, "{report:#?}");
    }
}
