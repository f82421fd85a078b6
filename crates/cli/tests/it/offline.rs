//! `tepui check`, `repair` and `inspect` as an operator meets them: what they print, and their exit codes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::executor::block_on;
use tepui_engine::cell::{FamilyId, Mutation, RowBatch, RowRange};
use tepui_engine::db::{Engine, EngineOptions};
use tepui_engine::io::{Env, IoMode};
use tepui_engine::manifest::{MetaChange, MetaExpect};
use tepui_engine::schema::{FamilyOptions, TabletSchema};
use tepui_server::catalog::record::TableRecord;

use crate::closed;

fn env() -> Env {
    Env::inline(IoMode::Buffered)
}

fn open(dir: &Path) -> Arc<Engine> {
    let options = EngineOptions { background: false, ..EngineOptions::default() };
    Engine::open(env(), dir, options).unwrap()
}

/// A directory with a table of one tablet and a thousand rows in one SST.
fn furnish(dir: &Path) {
    let engine = open(dir);
    let tablet = engine.create_tablet(RowRange::all()).unwrap();
    let families = [(FamilyId(1), FamilyOptions::default())].into_iter().collect();
    tablet.set_schema(Arc::new(TabletSchema { families }));
    let record = TableRecord {
        name: "projects/p/instances/i/tables/t".to_owned(),
        tablets: vec![tablet.id().0],
        ..TableRecord::default()
    };
    let change = MetaChange {
        key: format!("tables/{}", record.name),
        expect: MetaExpect::Absent,
        value: Some(record.encode_versioned().into()),
    };
    engine.meta().commit(&[change]).unwrap();
    for n in 0..1000 {
        let mutations = vec![Mutation::Put {
            family: FamilyId(1),
            qualifier: "q".into(),
            timestamp: 1000,
            value: format!("value {n} {}", "x".repeat(100)).into(),
        }];
        let row = format!("row-{n:04}").into();
        block_on(tablet.apply(RowBatch { row, mutations })).unwrap();
    }
    engine.close().unwrap();
}

fn tepui(arguments: &[&str]) -> (i32, String, String) {
    let done = crate::program().args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (done.status.code().unwrap(), text(done.stdout), text(done.stderr))
}

fn only(dir: &Path, suffix: &str) -> PathBuf {
    let mut found: Vec<PathBuf> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.retain(|path| path.to_str().unwrap().ends_with(suffix));
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_whole_directory_passes_and_a_damaged_one_is_named_repaired_and_passes() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path();
    let data = dir.to_str().unwrap();
    furnish(dir);
    let (code, out, err) = tepui(&["check", data]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(
        out.contains("no damage") && out.contains("1 tables, 1 tablets, 0 backups, 1 SSTs"),
        "{out}"
    );
    assert!(out.contains("1000 records"), "{out}");

    let sst = only(&dir.join("sst"), ".sst");
    flip(&sst, 100);
    let (code, out, err) = tepui(&["check", data]);
    assert_eq!(code, 1, "{out}{err}");
    assert!(out.contains(sst.to_str().unwrap()) && out.contains("offset 0"), "{out}");
    assert!(err.contains("tepui repair"), "{err}");

    let (code, out, err) = tepui(&["repair", data, "--dry-run"]);
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains("nothing was changed") && !dir.join("lost").exists(), "{out}");
    // A report that nobody reads on is told all the same.
    let mut unread = crate::tepui(dir, &["repair", data, "--dry-run"]);
    let unread = unread.stdout(closed()).output().unwrap();
    let told = String::from_utf8_lossy(&unread.stderr);
    assert!(unread.status.success() && told.contains("nothing was changed"), "{told}");
    assert_eq!(tepui(&["check", data]).0, 1);

    let (code, out, err) = tepui(&["repair", data]);
    assert_eq!(code, 0, "{out}{err}");
    for part in ["found", "repaired", "set aside", "lost", "row-0", "mind", "no damage"] {
        assert!(out.contains(part), "{part} in {out}");
    }
    assert!(dir.join("lost/sst").join(sst.file_name().unwrap()).exists());
    let (code, out, _) = tepui(&["check", data]);
    assert_eq!(code, 0, "{out}");
    let (code, out, _) = tepui(&["repair", data]);
    assert_eq!(code, 0);
    assert!(out.starts_with("nothing to repair"), "{out}");
    open(dir).close().unwrap();
}

#[test]
fn a_directory_in_use_and_a_strange_one_are_refused() {
    let temp = tempfile::tempdir().unwrap();
    let data = temp.path().to_str().unwrap();
    let (code, _, err) = tepui(&["check", data]);
    assert!(code == 1 && err.contains("not a tepui data directory"), "{err}");
    let engine = open(temp.path());
    for command in ["check", "repair"] {
        let (code, _, err) = tepui(&[command, data]);
        assert!(code == 1 && err.contains("in use") && err.contains("stop it"), "{err}");
    }
    engine.close().unwrap();
    assert_eq!(tepui(&["check", data]).0, 0);
}

#[test]
fn inspect_prints_for_people_and_lines_of_json_for_programs() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path();
    furnish(dir);
    let sst = only(&dir.join("sst"), ".sst");
    let sst = sst.to_str().unwrap();
    let (code, out, err) = tepui(&["inspect", "sst", sst]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("rows          1000") && out.contains("data block"), "{out}");
    let (code, out, _) = tepui(&["inspect", "sst", sst, "--records", "--json"]);
    assert_eq!(code, 0);
    let lines: Vec<serde_json::Value> =
        out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["type"], "sst");
    let records: Vec<_> = lines.iter().filter(|line| line["type"] == "record").collect();
    assert_eq!(records.len(), 1000);
    assert_eq!((&records[7]["row"], &records[7]["qualifier"]), (&"row-0007".into(), &"q".into()));

    let meta = std::fs::read_dir(dir.join("meta")).unwrap().next().unwrap().unwrap().path();
    let (code, out, err) = tepui(&["inspect", "manifest", meta.to_str().unwrap()]);
    assert!(code == 0 && out.contains("tables/projects/p/instances/i/tables/t"), "{out}{err}");
    let tablet = std::fs::read_dir(dir.join("tablets")).unwrap().next().unwrap().unwrap().path();
    let manifest = std::fs::read_dir(tablet).unwrap().next().unwrap().unwrap().path();
    let (code, out, err) = tepui(&["inspect", "manifest", manifest.to_str().unwrap()]);
    assert!(code == 0 && out.contains("add SST") && out.contains("version:"), "{out}{err}");

    for entry in std::fs::read_dir(dir.join("log")).unwrap() {
        let path = entry.unwrap().path();
        let (code, out, err) = tepui(&["inspect", "log", path.to_str().unwrap(), "--json"]);
        assert!(code == 0 && out.contains("\"type\":\"end\""), "{out}{err}");
    }
    let (code, _, err) = tepui(&["inspect", "log", manifest.to_str().unwrap()]);
    assert!(code == 1 && err.contains("not a log segment"), "{err}");
    flip(Path::new(sst), 100);
    let (code, out, err) = tepui(&["inspect", "sst", sst, "--records"]);
    assert!(code == 1 && out.contains("DAMAGED") && err.contains("damaged"), "{out}{err}");
}

#[test]
fn what_a_newer_version_wrote_is_no_damage_and_no_repair_is_advised() {
    let temp = tempfile::tempdir().unwrap();
    let (dir, data) = (temp.path(), temp.path().to_str().unwrap());
    furnish(dir);
    let engine = open(dir);
    let change = MetaChange {
        key: "resources/teapot/t".to_owned(),
        expect: MetaExpect::Absent,
        value: Some("of a kind that is not known yet".into()),
    };
    engine.meta().commit(&[change]).unwrap();
    engine.close().unwrap();
    drop(engine);
    let (code, out, err) = tepui(&["check", data]);
    assert_eq!(code, 1, "{out}{err}");
    assert!(out.contains("NEWER: ") && !out.contains("DAMAGE"), "{out}");
    assert!(err.contains("use that version") && !err.contains("tepui repair"), "{err}");
    let (code, out, err) = tepui(&["repair", data]);
    assert_eq!(code, 1, "{out}{err}");
    assert!(err.contains("nothing was changed") && !dir.join("lost").exists(), "{err}");
}
