//! Tablets of as many SSTs as those of terabytes: where all of them are gone through for each of them, these tests take
//! minutes.

use std::time::Duration;

use super::view::View;
use super::*;
use crate::compaction::pick::{Busy, Pick};
use crate::manifest::SstRef;
use crate::schema::GcRule;

/// SSTs of a tablet of some 6 TB.
const FILES: u64 = 100_000;

/// So many SSTs of the last level: the only one that there is under other names, each with a row of its own.
fn many_of(only: &SstRef, files: u64) -> Vec<SstRef> {
    let named = |n: u64| SstRef {
        id: only.id + n,
        level: 6,
        first_row: Bytes::from(format!("{n:08}")),
        last_row: Bytes::from(format!("{n:08}")),
        ..only.clone()
    };
    (1..=files).map(named).collect()
}

impl Rig {
    /// Puts so many SSTs in the place of the only one that there is.
    fn multiply(&self, files: u64) {
        let view = self.tablet.view.load_full();
        let only = view.version.ssts().next().unwrap();
        let add = many_of(only, files);
        let remove = vec![(only.level, only.id)];
        let edit = VersionEdit { add, remove, ..VersionEdit::default() };
        let version = self.tablet.lock_manifest().append(&edit).unwrap();
        let open = view.file(only.id).unwrap();
        let open = version.ssts().map(|file| (file.id, Arc::clone(open))).collect();
        let options = &self.tablet.core.options;
        let (active, style) = (Arc::clone(&view.active), options.compaction);
        let view = View::new(active, Vec::new(), version, open, options, style, None);
        self.tablet.view.store(view);
    }

    /// The compaction of all SSTs.
    fn pick_full(&self) -> Pick {
        pick::pick_full(&self.tablet.version(), &Busy::default()).unwrap()
    }

    /// Cells may go as soon as they are old.
    fn expire(&self) {
        let family =
            FamilyOptions { gc: Some(GcRule::MaxAge(1)), aggregate: None, gc_since_micros: 0 };
        self.tablet.set_schema(Arc::new(TabletSchema { families: [(FamilyId(1), family)].into() }));
    }
}

#[test]
fn rows_of_a_hundred_thousand_ssts_are_dropped_by_one_edit() {
    let rig = rig();
    rig.write(&["r"]);
    rig.multiply(FILES);
    block_on(rig.tablet.drop_rows(RowRange::new("00000001", "00100000"))).unwrap();
    let version = rig.tablet.version();
    let left: Vec<_> = version.ssts().map(|file| file.first_visible().clone()).collect();
    assert_eq!(left, ["00100000"]);
}

#[test]
fn rows_that_are_dropped_meanwhile_are_cut_out_of_a_hundred_thousand_outputs() {
    let rig = rig();
    rig.write(&["r"]);
    let view = rig.tablet.hold();
    let only = view.version.ssts().next().unwrap();
    let job = rig.tablet.begin_job();
    for (start, end) in [("", "00000003"), ("00000002", "00000004"), ("00100000", "01")] {
        block_on(rig.tablet.drop_rows(RowRange::new(start, end))).unwrap();
    }
    let open = view.file(only.id).unwrap();
    let opened: Vec<_> = (0..FILES).map(|_| Arc::clone(open)).collect();
    let outputs = many_of(only, FILES);
    let left = job.cut_by_drops(outputs.clone(), &opened);
    assert_eq!(left, outputs[3..FILES as usize - 1]);
}

#[test]
fn a_compaction_finds_its_hundred_thousand_inputs_in_the_version() {
    let rig = rig();
    rig.write(&["r"]);
    rig.multiply(FILES);
    let pick = rig.pick_full();
    assert_eq!(pick.inputs.len() as u64, FILES);
    let claim = rig.tablet.claim(rig.tablet.picks(), pick);
    assert!(claim.inputs_unchanged(&rig.tablet.version()));
    block_on(rig.tablet.drop_rows(RowRange::row(b"00100000"))).unwrap();
    assert!(!claim.inputs_unchanged(&rig.tablet.version()));
}

#[test]
fn a_compaction_asks_each_of_its_hundred_thousand_inputs_for_its_values() {
    let rig = rig();
    rig.write(&["r"]);
    rig.multiply(FILES);
    let values = rig.tablet.value_inputs(&rig.tablet.hold(), &rig.pick_full(), 1, u64::MAX);
    assert!(values.to_move.is_empty());
}

#[test]
fn a_hundred_thousand_ssts_go_by_one_edit_when_all_in_them_has_expired() {
    let rig = rig();
    rig.write(&["r"]);
    rig.multiply(FILES);
    rig.expire();
    let claim = rig.tablet.claim_expired().expect("all has expired");
    assert_eq!(claim.pick.inputs.len() as u64, FILES);
    claim.run().unwrap();
    assert_eq!(rig.tablet.version().sst_count(), 0);
}

#[test]
fn the_collector_looks_at_each_of_thousands_of_ssts_once() {
    let rig = rig();
    rig.write(&["r"]);
    rig.multiply(3_000);
    rig.expire();
    rig.tablet.keep_changes(Some(Duration::from_hours(24)));
    let looks = std::iter::from_fn(|| rig.tablet.claim_to_look().map(|look| look.run().unwrap()));
    assert_eq!(looks.count(), 3_000);
    assert!(rig.tablet.claim_to_look().is_none());
}
