//! What becomes of a directory's name while a server works in it.

#![expect(clippy::disallowed_methods, reason = "what an operator does to a real directory")]

use std::fs;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use futures::executor::block_on;
use tepui_engine::cell::{RowBatch, RowRange};
use tepui_engine::db::{Engine, Health};
use tepui_engine::error::{ErrorKind, Result};
use tepui_engine::io::{LocalFiles, ManualClock};
use tepui_engine::offline;
use tepui_engine::read::Projection;
use tepui_engine::tablet::Tablet;

use crate::harness::{START_MICROS, env, plain_schema, put, scan, tiny_options};

const ROWS: usize = 200;

fn open(dir: &Path) -> Result<(Arc<Engine>, Arc<Tablet>)> {
    let clock = Arc::new(ManualClock::new(START_MICROS));
    let engine = Engine::open(env(Arc::new(LocalFiles::default()), clock, 1), dir, tiny_options())?;
    let tablet = match engine.tablets().first() {
        Some(tablet) => Arc::clone(tablet),
        None => engine.create_tablet(RowRange::all())?,
    };
    tablet.set_schema(Arc::new(plain_schema()));
    engine.start()?;
    Ok((engine, tablet))
}

/// Writes rows that begin with `name`, with flushes and compactions among them.
fn write(tablet: &Tablet, name: &str) {
    for n in 0..ROWS {
        let row = Bytes::from(format!("{name}-{n:04}"));
        let mutations = vec![put(1, "q", 1000, "a value that is kept elsewhere")];
        block_on(tablet.apply(RowBatch { row, mutations })).unwrap();
        if n % 40 == 39 {
            block_on(tablet.flush()).unwrap();
        }
    }
}

/// How many rows there are that begin with this.
fn rows(tablet: &Tablet, name: &str) -> usize {
    let range = RowRange::prefix(name.as_bytes());
    scan(tablet, range, Projection::all(), false, None).unwrap().len()
}

#[test]
fn a_server_stays_in_its_directory_when_that_is_moved_and_another_begins_where_it_was() {
    let above = tempfile::tempdir().unwrap();
    let (name, moved) = (above.path().join("prod"), above.path().join("prod.old"));
    let (engine, tablet) = open(&name).unwrap();
    write(&tablet, "before");
    fs::rename(&name, &moved).unwrap();
    let (other_engine, other) = open(&name).unwrap();
    write(&tablet, "after");
    write(&other, "other");
    engine.compact_fully().unwrap();
    assert_eq!(engine.health(), Health::Serving);
    engine.close().unwrap();
    other_engine.close().unwrap();
    drop((engine, tablet, other_engine, other));

    let (_engine, tablet) = open(&moved).unwrap();
    assert_eq!(["before", "after", "other"].map(|name| rows(&tablet, name)), [ROWS, ROWS, 0]);
    let (_engine, tablet) = open(&name).unwrap();
    assert_eq!(["before", "after", "other"].map(|name| rows(&tablet, name)), [0, 0, ROWS]);
}

#[test]
fn a_directory_is_locked_also_without_its_lock_file() {
    let above = tempfile::tempdir().unwrap();
    let dir = above.path().join("data");
    let (engine, tablet) = open(&dir).unwrap();
    fs::remove_file(dir.join("LOCK")).unwrap();
    let error = open(&dir).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Locked, "{error}");
    let reads = env(Arc::new(LocalFiles::default()), Arc::new(ManualClock::new(START_MICROS)), 1);
    let checked = offline::check(&reads, &dir, None, &mut |_, _| {});
    assert_eq!(checked.unwrap_err().kind(), ErrorKind::Locked);
    write(&tablet, "row");
    drop((engine, tablet));
    let (_engine, tablet) = open(&dir).unwrap();
    assert_eq!(rows(&tablet, "row"), ROWS);
}

#[test]
fn a_server_whose_directory_is_removed_is_read_only() {
    let above = tempfile::tempdir().unwrap();
    let dir = above.path().join("data");
    let (engine, tablet) = open(&dir).unwrap();
    fs::remove_dir_all(&dir).unwrap();
    engine.run_background().unwrap();
    let Health::ReadOnly(reason) = engine.health() else { panic!("{:?}", engine.health()) };
    assert!(reason.contains("was removed while it was in use"), "{reason}");
    let batch = RowBatch { row: Bytes::from_static(b"r"), mutations: vec![put(1, "q", 1, "v")] };
    block_on(tablet.apply(batch)).unwrap_err();
    assert!(!dir.exists(), "nothing is made anew there");
}
