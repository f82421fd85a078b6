//! What a repair makes of a manifest with a damaged edit: what the edits behind it say counts, whatever that edit did.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures::executor::block_on;
use tepui_engine::cell::{FamilyId, Mutation, RowBatch, RowRange};
use tepui_engine::db::{Engine, EngineOptions};
use tepui_engine::io::{Files, MemoryFiles};
use tepui_engine::manifest::{MetaChange, MetaExpect, VersionEdit, dump_manifest};
use tepui_engine::read::Projection;
use tepui_engine::tablet::{ReadView, Tablet, TabletId};

use crate::harness::{plain_schema, put, scan, tiny_options};
use crate::offline::{Rows, check, contents, dir, environment, files_in, flip, repair, row};

/// A table of one tablet that is being written, and what is in it.
struct Table {
    files: Arc<MemoryFiles>,
    options: EngineOptions,
    engine: Arc<Engine>,
    tablet: Arc<Tablet>,
    rows: Rows,
}

impl Table {
    fn new(options: EngineOptions) -> Self {
        let files = Arc::new(MemoryFiles::new());
        let engine = Engine::open(environment(&files), dir(), options.clone()).unwrap();
        let tablet = engine.create_tablet(RowRange::all()).unwrap();
        tablet.set_schema(Arc::new(plain_schema()));
        engine.start().unwrap();
        let table = Self { files, options, engine, tablet, rows: Rows::new() };
        table.commit("tables/t", table.tablet.id().0);
        table
    }

    fn commit(&self, key: &str, id: u64) {
        let value = Some(id.to_string().into());
        let change = MetaChange { key: key.to_owned(), expect: MetaExpect::Absent, value };
        self.engine.meta().commit(&[change]).unwrap();
    }

    fn apply(&self, row: &str, mutation: Mutation) {
        let row = Bytes::copy_from_slice(row.as_bytes());
        block_on(self.tablet.apply(RowBatch { row, mutations: vec![mutation] })).unwrap();
    }

    /// All at the same timestamp, so that the sequences alone tell which value counts.
    fn put(&mut self, rows: impl Iterator<Item = usize>, value: &str) {
        for n in rows {
            let value = format!("{value} of {n} {}", "x".repeat(40));
            self.apply(&row(n), put(1, "q", 1000, &value));
            self.rows.insert(row(n), value);
        }
    }

    fn delete(&mut self, rows: impl Iterator<Item = usize>) {
        for n in rows {
            self.apply(&row(n), Mutation::DeleteRow);
            self.rows.remove(&row(n));
        }
    }

    fn drop_rows(&mut self, from: usize, to: usize) {
        block_on(self.tablet.drop_rows(RowRange::new(row(from), row(to)))).unwrap();
        self.rows.retain(|key, _| !(row(from)..row(to)).contains(key));
    }

    fn flush(&self) {
        block_on(self.tablet.flush()).unwrap();
    }

    /// Ends the server: what is on disk.
    fn close(self) -> Closed {
        let Self { files, options, engine, tablet, rows } = self;
        let id = tablet.id();
        drop(tablet);
        engine.close().unwrap();
        Closed { files, options, id, rows }
    }
}

struct Closed {
    files: Arc<MemoryFiles>,
    options: EngineOptions,
    id: TabletId,
    rows: Rows,
}

impl Closed {
    fn manifest(&self) -> PathBuf {
        let manifests = files_in(&self.files, "tablets");
        assert_eq!(manifests.len(), 1, "no rotation");
        manifests[0].clone()
    }

    /// The edits of the manifest with their offsets.
    fn edits(&self) -> Vec<(u64, VersionEdit)> {
        let dump = dump_manifest(self.files.as_ref(), &self.manifest()).unwrap();
        dump.map(|edit| edit.unwrap()).collect()
    }

    /// The same directory with a damaged edit, repaired.
    fn repaired_without(&self, offset: u64, what: &str) -> Arc<MemoryFiles> {
        let files = Arc::new(MemoryFiles::new());
        for (path, bytes) in contents(&self.files) {
            files.create_dir_all(path.parent().unwrap()).unwrap();
            files.put_contents(&path, bytes);
        }
        flip(&files, &self.manifest(), offset as usize + 30);
        assert!(!check(&files).is_whole(), "{what}");
        let report = repair(&files, false);
        assert!(report.opens(), "{what}: {report:#?}");
        assert!(report.lost_rows.is_empty(), "{what}: {report:#?}");
        files
    }

    /// All that the table had is there and nothing else, for every kind of read, and stays so when it is compacted.
    fn assert_same(&self, files: &Arc<MemoryFiles>, what: &str) {
        let engine = Engine::open(environment(files), dir(), self.options.clone()).unwrap();
        let tablet = engine.tablet(self.id).unwrap();
        tablet.set_schema(Arc::new(plain_schema()));
        engine.start().unwrap();
        let newest = Projection::newest_of([(FamilyId(1), Bytes::from_static(b"q"))]);
        for moment in ["repaired", "settled", "compacted"] {
            match moment {
                "settled" => engine.run_background().unwrap(),
                "compacted" => engine.compact_fully().unwrap(),
                _ => {}
            }
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            let found = scan(&tablet, RowRange::all(), Projection::all(), false, None).unwrap();
            let found: Rows =
                found.into_iter().map(|r| (text(&r.key), text(&r.cells[0].value))).collect();
            let lacking: Vec<_> =
                self.rows.iter().filter(|(k, v)| found.get(*k) != Some(v)).collect();
            assert!(lacking.is_empty(), "{what}, {moment}: {lacking:#?}");
            let back: Vec<_> = found.keys().filter(|key| !self.rows.contains_key(*key)).collect();
            assert!(back.is_empty(), "{what}, {moment}: {back:?} came back");
            for (key, value) in &self.rows {
                let read = tablet.read_row(key.as_bytes(), &newest, ReadView::Durable);
                let read = block_on(read).unwrap().unwrap();
                assert_eq!(text(&read.cells[0].value), *value, "{what}, {moment}: {key}");
            }
        }
        drop(tablet);
        engine.close().unwrap();
        assert!(check(files).is_whole(), "{what}");
    }
}

#[test]
fn a_damaged_compaction_whose_outcome_was_compacted_costs_nothing_though_a_backup_keeps_its_inputs()
{
    for newer_in_backup in [false, true] {
        let options = EngineOptions { target_file_bytes: 8 << 10, ..tiny_options() };
        let mut table = Table::new(options);
        table.put(0..200, "first");
        table.flush();
        table.engine.compact_fully().unwrap();
        if newer_in_backup {
            table.put((0..200).step_by(3), "second");
            table.delete((1..200).step_by(9));
            table.flush();
        }
        let backup = block_on(table.engine.create_backup(&[table.tablet.id()])).unwrap().id();
        table.commit("backups/b", backup.0);
        let kept = table.rows.clone();
        table.put((0..200).step_by(5), "third");
        table.delete([0, 50, 199].into_iter());
        table.flush();
        table.engine.compact_fully().unwrap();
        table.put((2..198).step_by(11), "fourth");
        table.delete([1, 3, 60, 196, 198].into_iter());
        table.put([0, 199].into_iter(), "fourth");
        table.flush();
        table.engine.compact_fully().unwrap();
        table.put(100..110, "fifth");
        table.flush();
        table.delete([0, 199].into_iter());
        let closed = table.close();

        let what = format!("newer files in the backup: {newer_in_backup}");
        let edits = closed.edits();
        let compactions: Vec<u64> = edits
            .iter()
            .filter(|(_, e)| !e.remove.is_empty() && e.add.iter().any(|sst| sst.level == 6))
            .map(|(offset, _)| *offset)
            .collect();
        assert_eq!(compactions.len(), 3, "{what}");
        let files = closed.repaired_without(compactions[1], &what);
        let of_backup = |files: &Arc<MemoryFiles>| -> BTreeMap<_, _> {
            let engine = Engine::open(environment(files), dir(), closed.options.clone()).unwrap();
            let restored = engine.restore_backup(backup).unwrap().remove(0);
            restored.set_schema(Arc::new(plain_schema()));
            let rows = scan(&restored, RowRange::all(), Projection::all(), false, None).unwrap();
            engine.drop_tablet(restored.id()).unwrap();
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            rows.into_iter().map(|r| (text(&r.key), text(&r.cells[0].value))).collect()
        };
        assert_eq!(of_backup(&files), kept, "{what}");
        closed.assert_same(&files, &what);
    }
}

#[test]
fn rows_that_were_dropped_after_a_damaged_compaction_stay_away_though_a_backup_keeps_its_inputs() {
    let options = EngineOptions { target_file_bytes: 8 << 10, ..tiny_options() };
    let mut table = Table::new(options);
    table.put(0..100, "first");
    table.flush();
    table.put((0..100).step_by(3), "second");
    table.flush();
    let backup = block_on(table.engine.create_backup(&[table.tablet.id()])).unwrap().id();
    table.commit("backups/b", backup.0);
    table.engine.compact_fully().unwrap();
    // All is in files by now.
    table.drop_rows(40, 60);
    table.put([45, 99].into_iter(), "third");
    table.flush();
    let closed = table.close();
    let of_compaction =
        |edit: &VersionEdit| edit.last_seq.is_none() && edit.add.iter().any(|sst| sst.level == 6);
    let edits = closed.edits();
    let compactions: Vec<_> = edits.iter().filter(|(_, edit)| of_compaction(edit)).collect();
    let [(offset, _)] = compactions[..] else { panic!("{compactions:#?}") };
    let what = "a lost compaction";
    let files = closed.repaired_without(*offset, what);
    closed.assert_same(&files, what);
}

#[test]
fn rows_that_were_dropped_stay_away_though_the_log_gives_back_what_a_damaged_flush_had_written() {
    let mut table = Table::new(tiny_options());
    table.put(0..100, "first");
    table.flush();
    // All is in files by now, and the second forgets what the first said.
    table.drop_rows(40, 50);
    table.drop_rows(60, 70);
    let closed = table.close();
    let edits = closed.edits();
    let flushes: Vec<_> = edits.iter().filter(|(_, edit)| edit.flushed_seq.is_some()).collect();
    let [.., (offset, _)] = flushes[..] else { panic!("{flushes:#?}") };
    let what = "a lost flush";
    let files = closed.repaired_without(*offset, what);
    closed.assert_same(&files, what);
}

#[test]
fn a_damaged_edit_that_moved_a_file_costs_nothing() {
    let options = EngineOptions { separate_values_bytes: 1 << 20, ..tiny_options() };
    let mut table = Table::new(options);
    for round in 0..24 {
        // In order, as for files that need not be merged with others.
        table.put(round * 30..round * 30 + 30, "first");
        if round % 2 == 1 {
            table.put((0..round * 30).step_by(37), &format!("round {round}"));
            table.delete((round..round * 30).step_by(53));
        }
        if round % 8 == 6 {
            table.drop_rows(round * 20, round * 20 + 12);
        }
        table.flush();
        table.engine.run_background().unwrap();
    }
    table.put((0..700).step_by(41), "last");
    let closed = table.close();
    let edits = closed.edits();
    let moves: Vec<_> = edits
        .iter()
        .filter(|(_, edit)| {
            let moved = |sst: &tepui_engine::manifest::SstRef| {
                edit.remove.iter().any(|(level, id)| *id == sst.id && *level < sst.level)
            };
            !edit.add.is_empty() && edit.add.iter().all(moved)
        })
        .collect();
    assert!(moves.len() > 3, "{} moves of {} edits", moves.len(), edits.len());
    // Some of them: each is a whole directory that is repaired.
    for (offset, edit) in moves.iter().step_by(moves.len().div_ceil(6)) {
        let what = format!("offset {offset}: {edit:?}");
        let files = closed.repaired_without(*offset, &what);
        closed.assert_same(&files, &what);
    }
}
