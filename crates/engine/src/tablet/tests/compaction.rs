//! Compactions between their pick and their end, and beside one another.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, OnceLock};

use super::*;
use crate::compaction::cuts::CutRule;
use crate::compaction::job::{self, JobContext};
use crate::compaction::pace::STEP_BYTES;
use crate::compaction::separate::ValueInputs;
use crate::compaction::{Beneath, CompactionSpec};
use crate::cursor::Cursor;
use crate::io::{Fault, FaultFiles, FaultOp, Spawner as _};
use crate::options::CompressionPolicy;
use crate::schema::GcRule;
use crate::tablet::failures::FAILED_WAIT_MICROS;

impl Rig {
    fn delete(&self, row: &str) {
        let mutations = vec![Mutation::DeleteRow];
        let batch = RowBatch { row: Bytes::copy_from_slice(row.as_bytes()), mutations };
        block_on(self.tablet.apply(batch)).unwrap();
        block_on(self.tablet.flush()).unwrap();
    }

    fn write_noisy(&self, n: u32) {
        block_on(self.tablet.apply(noisy_row(n))).unwrap();
        block_on(self.tablet.flush()).unwrap();
    }

    /// Writes that are refused, of a thousand.
    fn refused(&self) -> u64 {
        (self.tablet.pressure().refused_share() * 1000.0) as u64
    }

    fn compact_what_is_due(&self) {
        while let Some(claim) = self.tablet.claim_by_shape() {
            claim.run().unwrap();
        }
    }

    fn rule(&self, rule: GcRule) {
        let family = FamilyOptions { gc: Some(rule), aggregate: None, gc_since_micros: 0 };
        let families = [(FamilyId(1), family)].into();
        self.tablet.set_schema(Arc::new(TabletSchema { families }));
    }

    /// Writes one column of row `r` at these times, one after the other, and flushes.
    fn write_versions(&self, timestamps: impl IntoIterator<Item = i64>) {
        for timestamp in timestamps {
            let value = Bytes::from(format!("written at {timestamp}"));
            let (family, qualifier) = (FamilyId(1), Bytes::from_static(b"q"));
            let put = Mutation::Put { family, qualifier, timestamp, value };
            let row = RowBatch { row: Bytes::from_static(b"r"), mutations: vec![put] };
            block_on(self.tablet.apply(row)).unwrap();
        }
        block_on(self.tablet.flush()).unwrap();
    }

    /// Cells and tombstones of the files of level 0, the newest last.
    fn of_level_zero(&self) -> Vec<(u64, u64)> {
        let view = self.tablet.view.load_full();
        let files = view.version.level(0).iter().rev();
        let properties = files.map(|file| view.properties(file).unwrap());
        properties.map(|p| (p.cells, p.tombstones())).collect()
    }

    /// Has the one file above the last level changed to another, as the pick of a level over its target would.
    pub(super) fn move_to(&self, output_level: u8, bottommost: bool) {
        let version = self.tablet.version();
        let inputs = version.ssts().filter(|file| file.level < 6).cloned().collect();
        let reason = pick::Reason::Size;
        let pick = pick::Pick { reason, inputs, output_level, bottommost };
        let claim = self.tablet.claim(self.tablet.picks(), pick);
        claim.run().unwrap();
    }
}

/// A rig on a disk whose free space can be set, and its clock.
fn rig_on_disk() -> (Rig, Arc<FaultFiles>, Arc<ManualClock>) {
    rig_on_disk_with(EngineOptions::default())
}

fn rig_on_disk_with(options: EngineOptions) -> (Rig, Arc<FaultFiles>, Arc<ManualClock>) {
    let memory = Arc::new(MemoryFiles::new());
    let files = Arc::new(FaultFiles::new(Arc::clone(&memory) as Arc<dyn Files>));
    // What files reserve is counted from here on.
    files.set_quota_bytes(Some(1 << 40));
    let clock = Arc::new(ManualClock::new(START_MICROS));
    let seen = Arc::clone(&files) as Arc<dyn Files>;
    let rig = rig_over(options, clock.clone(), memory, seen);
    (rig, files, clock)
}

/// Fills the disk, up to the last block of the tablet's manifest.
fn fill(rig: &Rig, files: &FaultFiles) {
    files.set_quota_bytes(Some(0));
    let rows = || RowRange::prefix(b"nobody has these");
    let refused = (0..1000).find_map(|_| block_on(rig.tablet.drop_rows(rows())).err());
    assert_eq!(refused.unwrap().kind(), ErrorKind::NoSpace);
}

#[test]
fn tombstones_with_nothing_below_do_not_move_to_the_last_level() {
    let rig = rig();
    rig.write(&["a"]);
    rig.engine.compact_fully().unwrap();
    rig.delete("b");
    block_on(rig.tablet.drop_rows(RowRange::new("a", "b"))).unwrap();
    rig.move_to(5, false);
    assert_eq!(rig.tablet.version().level(5).len(), 1, "moved");
    rig.move_to(6, true);
    assert_eq!(rig.tablet.version().sst_count(), 0, "nothing is left of it");
}

#[test]
fn versions_that_a_flush_collects_leave_tombstones_only_where_they_could_come_back() {
    let rig = rig();
    rig.rule(GcRule::MaxVersions(1));
    rig.write_versions([1_000]);
    rig.write_versions(2_000..2_100);
    assert_eq!(rig.of_level_zero(), [(1, 0), (1, 0)], "nothing beneath is as new as what went");
    assert_eq!(rig.cells("r"), 2, "one of each file");
    rig.write_versions([2_099, 1_000, 2_100, 2_101]);
    assert_eq!(rig.of_level_zero()[2], (1, 2), "2,100 needs none");
    assert_eq!(rig.cells("r"), 1, "neither 1,000 nor 2,099 came back");
    rig.engine.compact_fully().unwrap();
    assert_eq!(rig.cells("r"), 1);
}

#[test]
fn merges_within_level_zero_look_at_what_is_older_there() {
    let rig = rig();
    rig.rule(GcRule::MaxVersions(1));
    rig.write_versions([1_000]);
    rig.write_versions([1_000]);
    rig.write_versions([1_001]);
    let inputs: Vec<_> = rig.tablet.version().level(0)[..2].to_vec();
    let reason = pick::Reason::WithinL0;
    let pick = pick::Pick { reason, inputs, output_level: 0, bottommost: false };
    let claim = rig.tablet.claim(rig.tablet.picks(), pick);
    claim.run().unwrap();
    assert_eq!(rig.of_level_zero(), [(1, 0), (1, 1)], "the first one's would come back");
    assert_eq!(rig.cells("r"), 1);
}

#[test]
fn a_file_that_moves_to_the_last_level_without_tombstones_is_not_rewritten() {
    let rig = rig();
    rig.write(&["a"]);
    rig.move_to(5, false);
    let id = rig.tablet.version().level(5)[0].id;
    rig.move_to(6, true);
    assert_eq!(rig.tablet.version().level(6)[0].id, id);
}

#[test]
fn of_what_was_loaded_in_the_order_of_keys_the_last_level_compresses_what_can_be() {
    let load = |batch: &dyn Fn(u32) -> RowBatch| {
        let rig = rig();
        for row in 0..200 {
            block_on(rig.tablet.apply(batch(row))).unwrap();
        }
        block_on(rig.tablet.flush()).unwrap();
        rig.move_to(5, false);
        let before = rig.tablet.version().level(5)[0].clone();
        rig.move_to(6, true);
        (before, rig.tablet.version().level(6)[0].clone())
    };
    let (before, after) = load(&|row| noisy(&format!("row-{row:04}"), 1000));
    assert_eq!(before.id, after.id, "moved");
    let text = |row: u32| {
        let mut batch = batch(&format!("row-{row:04}"), &["a"]);
        let words: Vec<_> = (0..60).map(|n| format!("{{\"id\":{},", row * 1_000 + n * n)).collect();
        let value = words.concat().into();
        let (family, qualifier) = (FamilyId(1), Bytes::from_static(b"text"));
        batch.mutations.push(Mutation::Put { family, qualifier, timestamp: 1000, value });
        batch
    };
    let (before, after) = load(&text);
    assert!(after.bytes < before.bytes / 10 * 9, "{} bytes of {}", after.bytes, before.bytes);
}

#[test]
fn files_that_are_dropped_before_their_expiry_is_installed_fail_nothing() {
    let rig = rig();
    rig.write(&["a"]);
    rig.engine.compact_fully().unwrap();
    rig.write(&["x"]);
    rig.move_to(5, false);
    rig.rule(GcRule::MaxAge(1));
    let inputs: Vec<_> = rig.tablet.version().ssts().cloned().collect();
    assert_eq!(inputs.len(), 2);
    let (reason, output_level) = (pick::Reason::Expired, 6);
    let pick = pick::Pick { reason, inputs, output_level, bottommost: true };
    let claim = rig.tablet.claim(rig.tablet.picks(), pick);
    block_on(rig.tablet.drop_rows(RowRange::new("x", ""))).unwrap();
    claim.run().unwrap();
    assert!(rig.tablet.jobs().failed_until.is_empty());
    assert_eq!(rig.tablet.version().sst_count(), 0, "the other went");
}

#[test]
fn files_that_have_expired_go_before_compactions_that_are_due() {
    let rig = rig();
    rig.write(&["a"]);
    rig.engine.compact_fully().unwrap();
    rig.write(&["b"]);
    rig.write(&["b"]);
    assert!(rig.tablet.compaction_score() >= 1.0);
    rig.rule(GcRule::MaxAge(1));
    let tablets = rig.engine.tablets();
    let claim = crate::background::claim_next(rig.engine.core(), &tablets).unwrap();
    assert_eq!(claim.pick.reason, pick::Reason::Expired);
    claim.run().unwrap();
    let claim = crate::background::claim_next(rig.engine.core(), &tablets).unwrap();
    assert_eq!(claim.pick.reason, pick::Reason::L0, "and nothing else has");
}

/// A job with parts that somebody offers: it sees how many SSTs there are when it is first helped.
#[derive(Debug)]
struct Offered(Arc<Tablet>, Mutex<Option<u64>>);

impl crate::compaction::parts::Shared for Offered {
    fn help(&self) -> bool {
        self.1.lock().unwrap().get_or_insert(self.0.version().sst_count());
        false
    }
}

#[test]
fn files_that_have_expired_go_while_a_large_compaction_runs() {
    let expired = || {
        let rig = rig();
        rig.write(&["a"]);
        rig.engine.compact_fully().unwrap();
        rig.rule(GcRule::MaxAge(1));
        assert_eq!(rig.tablet.version().sst_count(), 1);
        rig
    };
    // By a thread that is free to help.
    let rig = expired();
    let job = Arc::new(Offered(Arc::clone(&rig.tablet), Mutex::default()));
    let shared: Arc<dyn crate::compaction::parts::Shared> = job.clone();
    rig.engine.core().offers.add(&shared);
    crate::background::compact(&rig.engine);
    assert_eq!(*job.1.lock().unwrap(), Some(0));
    // By one in the middle of it.
    let rig = expired();
    crate::background::relieve(&rig.engine, None, &mut || ());
    assert_eq!(rig.tablet.version().sst_count(), 0);
}

#[test]
fn a_compaction_lets_go_of_memory_before_its_thread_does_another() {
    let rig = rig();
    let let_go = std::cell::Cell::new(0);
    let relieve = || {
        let level_zero = rig.tablet.version().level(0).len();
        crate::background::relieve(&rig.engine, None, &mut || {
            let_go.set(let_go.get() + 1);
            assert_eq!(rig.tablet.version().level(0).len(), level_zero, "it comes first");
        });
        let_go.get()
    };
    rig.write(&["a"]);
    assert_eq!(relieve(), 0, "there is no other");
    rig.write(&["a"]);
    assert_eq!(relieve(), 1);
    assert_eq!(rig.tablet.version().level(0).len(), 0);
}

#[test]
fn files_that_go_because_they_have_expired_do_not_end_what_is_told_of_compactions_that_fail() {
    let rig = rig();
    rig.write(&["a"]);
    rig.engine.compact_fully().unwrap();
    rig.rule(GcRule::MaxAge(1));
    let full = Error::new(ErrorKind::NoSpace, "the disk is full");
    rig.tablet.note_setback(Work::Below, &full);
    rig.tablet.claim_expired().unwrap().run().unwrap();
    assert_eq!(rig.tablet.version().sst_count(), 0);
    let last = rig.tablet.core.setbacks.last(Work::Below, rig.tablet.id());
    assert_eq!(last.unwrap().message(), full.message());
}

/// Rows of 1.6 MB that do not compress, in a memtable.
fn write_noise(tablet: &Tablet) {
    for row in 0..400u32 {
        block_on(tablet.apply(noisy(&format!("row-{row:04}"), 4096))).unwrap();
    }
}

/// A row with a value of so many bytes that do not compress.
pub(super) fn noisy(row: &str, len: usize) -> RowBatch {
    let mut batch = batch(row, &["a"]);
    let mut noise = u64::from(batch.row[batch.row.len() - 1]);
    let bytes = std::iter::repeat_with(|| {
        noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (noise >> 56) as u8
    });
    batch.mutations.push(Mutation::Put {
        family: FamilyId(1),
        qualifier: Bytes::from_static(b"large"),
        timestamp: 1000,
        value: bytes.take(len).collect(),
    });
    batch
}

#[test]
fn writes_are_refused_for_the_bytes_of_level_zero_however_few_its_sublevels() {
    let rig = rig_with(of_small_levels(CompactionStyle::Leveled));
    let full = 2 * (2 + 8);
    for n in 0..full {
        // A memtable has some memory from the start.
        assert_eq!(rig.refused() > 0, n >= full / 2, "{n}: {:?}", rig.tablet.pressure());
        let before = rig.tablet.pressure();
        block_on(rig.tablet.apply(noisy_row(n))).unwrap();
        let written = rig.tablet.pressure();
        assert!(written.level > before.level, "what is not flushed yet counts");
        block_on(rig.tablet.flush()).unwrap();
        let flushed = rig.tablet.pressure();
        assert!(flushed.level < written.level + 0.01, "a step: {written:?} {flushed:?}");
    }
    assert_eq!(rig.tablet.stats().sublevels, 1);
    let pressure = rig.tablet.pressure();
    assert_eq!((pressure.behind, rig.refused()), (Behind::LevelZero, 1000), "{pressure:?}");
    // Nor does a refusal wait for those who look for a compaction, which takes a while.
    let picks = rig.tablet.picks();
    rig.tablet.core.background.store(true, Ordering::Release);
    assert_eq!(rig.tablet.admit().unwrap_err().kind(), ErrorKind::Overloaded);
    rig.tablet.core.background.store(false, Ordering::Release);
    drop(picks);
    rig.compact_what_is_due();
    assert_eq!(rig.refused(), 0, "{:?}", rig.tablet.pressure());
    assert_eq!(rig.cells("row-000"), 2);
}

#[test]
fn what_level_zero_holds_by_another_style_refuses_no_writer_but_what_comes_on_top_does() {
    let rig = rig_with(of_small_levels(CompactionStyle::Tiered));
    for n in 0..100 {
        rig.write_noisy(n);
    }
    rig.engine.compact_fully().unwrap();
    for n in 100..140 {
        rig.write_noisy(n);
    }
    assert_eq!(rig.refused(), 0, "{:?}", rig.tablet.pressure());
    rig.tablet.set_compaction(CompactionStyle::Leveled);
    assert_eq!(rig.refused(), 0, "{:?}", rig.tablet.pressure());
    for n in 140..170 {
        rig.write_noisy(n);
    }
    assert!(rig.refused() > 200, "{:?}", rig.tablet.pressure());
    rig.compact_what_is_due();
    for n in 200..220 {
        rig.write_noisy(n);
    }
    assert_eq!(rig.refused(), 1000, "as any table of its style: {:?}", rig.tablet.pressure());
}

/// Of a memtable and a base level that one [`noisy_row`] fills, and 8 sublevels; of memtables so many may wait that none is refused for them.
fn of_small_levels(compaction: CompactionStyle) -> EngineOptions {
    EngineOptions {
        compaction,
        memtable_bytes: NOISY_BYTES,
        base_level_bytes: NOISY_BYTES,
        l0_compaction_files: 4,
        l0_stop_files: 8,
        memtables_waiting_max: 100,
        separate_values_bytes: 0,
        ..EngineOptions::default()
    }
}

const NOISY_BYTES: u64 = 128 << 10;

/// The rows are in the order of their numbers: flushed one by one, they are one sublevel.
fn noisy_row(n: u32) -> RowBatch {
    noisy(&format!("row-{n:03}"), NOISY_BYTES as usize)
}

/// A tablet with value files of which less than half is live, over files whose reads can be watched, and its clock.
fn rig_with_sparse_values() -> (Rig, Arc<FaultFiles>, Arc<ManualClock>) {
    let memory = Arc::new(MemoryFiles::new());
    let files = Arc::new(FaultFiles::new(Arc::clone(&memory) as Arc<dyn Files>));
    let clock = Arc::new(ManualClock::new(START_MICROS));
    let options = EngineOptions {
        separate_values_bytes: 4096,
        target_file_bytes: 256 << 10,
        ..EngineOptions::default()
    };
    let seen = Arc::clone(&files) as Arc<dyn Files>;
    let rig = rig_over(options, clock.clone(), memory, seen);
    write_noise(&rig.tablet);
    block_on(rig.tablet.flush()).unwrap();
    for row in (0..400).filter(|row| row % 5 > 1) {
        let row = Bytes::from(format!("row-{row:04}"));
        let batch = RowBatch { row, mutations: vec![Mutation::DeleteRow] };
        block_on(rig.tablet.apply(batch)).unwrap();
    }
    block_on(rig.tablet.flush()).unwrap();
    rig.tablet.compact_fully().unwrap();
    assert!(rig.tablet.must_reclaim());
    (rig, files, clock)
}

#[test]
fn what_is_rewritten_for_its_garbage_and_fails_waits_ever_longer_and_level_zero_does_not() {
    let (rig, files, clock) = rig_with_sparse_values();
    let mut wait = FAILED_WAIT_MICROS;
    for _ in 0..3 {
        files.inject(Fault::new(FaultOp::Create).on_path(".sst"));
        rig.tablet.claim_to_reclaim().unwrap().run().unwrap_err();
        clock.advance_micros(wait - 1);
        assert!(rig.tablet.claim_to_reclaim().is_none());
        clock.advance_micros(1);
        wait *= 2;
    }
    files.inject(Fault::new(FaultOp::Create).on_path(".sst"));
    rig.tablet.claim_to_reclaim().unwrap().run().unwrap_err();
    while rig.tablet.compaction_score() < 1.0 {
        rig.write(&["row-0000", "row-0399"]);
    }
    rig.tablet.claim_by_shape().unwrap().run().unwrap();
}

/// Flips a bit in the first block of an SST.
fn damage(rig: &Rig, id: FileId) {
    let path = rig.tablet.core.layout.sst(id);
    let mut bytes = rig.files.contents(&path).unwrap();
    bytes[3] ^= 0x40;
    rig.files.put_contents(&path, bytes);
}

#[test]
fn a_damaged_file_of_level_zero_is_left_alone_for_ever_longer_and_what_was_with_it_is_not() {
    let options = EngineOptions { l0_compaction_files: 2, ..EngineOptions::default() };
    let (rig, _, clock) = rig_on_disk_with(options);
    rig.write(&["a"]);
    rig.write(&["a"]);
    let damaged = rig.tablet.version().level(0)[1].id;
    damage(&rig, damaged);
    let mut wait = FAILED_WAIT_MICROS;
    for _ in 0..7 {
        let claim = rig.tablet.claim_by_shape().unwrap();
        assert_eq!(claim.pick.inputs.len(), 2);
        assert_eq!(claim.run().unwrap_err().kind(), ErrorKind::Corruption);
        clock.advance_micros(wait - 1);
        assert!(rig.tablet.claim_by_shape().is_none());
        if wait > FAILED_WAIT_MICROS {
            let left_alone = rig.tablet.blocked(&rig.tablet.jobs()).files;
            assert_eq!(left_alone, [damaged].into());
        }
        clock.advance_micros(1);
        wait = (2 * wait).min(600_000_000);
    }
    assert_eq!(wait, 600_000_000, "writers may wait for it");
    let metrics = rig.engine.metrics();
    assert_eq!(metrics.compactions_damaged.load(Ordering::Relaxed), 7);
    assert_eq!(metrics.compactions_failed.load(Ordering::Relaxed), 0);
}

#[test]
fn a_file_that_was_cut_waits_no_longer_than_a_whole_one() {
    let (rig, files, clock) = rig_on_disk();
    rig.write(&["a", "b", "c", "d", "e"]);
    rig.engine.compact_fully().unwrap();
    for row in ["b", "d"] {
        block_on(rig.tablet.drop_rows(RowRange::row(row.as_bytes()))).unwrap();
    }
    let ids: Vec<_> = rig.tablet.version().level(6).iter().map(|file| file.id).collect();
    assert_eq!(ids, [ids[0]; 3], "one file in three pieces");
    files.inject(Fault::new(FaultOp::Read).on_path(".sst").sticky());
    for wait in [FAILED_WAIT_MICROS, 2 * FAILED_WAIT_MICROS] {
        rig.claim_fully().run().unwrap_err();
        let until = rig.tablet.jobs().failed_until[&ids[0]].0;
        assert_eq!(until - clock.monotonic_micros(), wait);
        clock.advance_micros(wait);
    }
}

#[test]
fn what_was_loaded_where_rows_were_dropped_is_not_rewritten_with_the_file_around_them() {
    let rig = rig();
    rig.write(&["a", "b", "m", "y", "z"]);
    rig.engine.compact_fully().unwrap();
    block_on(rig.tablet.drop_rows(RowRange::new("c", "x"))).unwrap();
    // Each time to the last level, with what it meets there.
    let merge = |row| {
        rig.write(&[row]);
        let (view, busy) = (rig.tablet.view.load_full(), Default::default());
        let file = &view.version.level(0)[0];
        let (version, shape) = (&view.version, &view.shape);
        let pick = pick::pick_file(version, shape, pick::Reason::Collect, file, 6, &busy).unwrap();
        rig.tablet.claim(rig.tablet.picks(), pick).run().unwrap();
        let version = rig.tablet.version();
        assert!(version.level(0).is_empty());
        version.level(6).iter().map(|file| file.id).collect::<Vec<_>>()
    };
    let around = rig.tablet.version().level(6)[0].id;
    let [left, loaded, right] = merge("m")[..] else { panic!("two pieces around one file") };
    assert_eq!((left, right), (around, around));
    let ids = merge("a");
    assert_eq!(ids[1..], [loaded, around], "{ids:?}");
    assert_ne!(ids[0], around);
    while rig.tablet.core.remove_doomed(0).is_some() {}
    assert_eq!(rig.ssts(), 3, "the file is there for the rows that it still shows");
    let ids = merge("z");
    assert_eq!((ids.len(), ids[1]), (3, loaded));
    assert!(!ids.contains(&around));
    for row in ["a", "b", "m", "y", "z"] {
        assert_eq!(rig.cells(row), 2, "{row}");
    }
}

#[test]
fn a_piece_that_a_compaction_over_its_rows_has_not_read_stays_as_it_is() {
    let rig = rig();
    rig.write(&["a", "b", "m", "y", "z"]);
    rig.engine.compact_fully().unwrap();
    // The same above, with one more column, and both cut.
    for row in ["a", "b", "m", "y", "z"] {
        block_on(rig.tablet.apply(batch(row, &["a", "b", "c"]))).unwrap();
    }
    block_on(rig.tablet.flush()).unwrap();
    rig.move_to(5, false);
    block_on(rig.tablet.drop_rows(RowRange::new("c", "x"))).unwrap();
    rig.write(&["m"]);
    let version = rig.tablet.version();
    let inputs = version.level(0).to_vec();
    let pick =
        pick::Pick { reason: pick::Reason::Size, inputs, output_level: 5, bottommost: false };
    rig.tablet.claim(rig.tablet.picks(), pick).run().unwrap();

    let (view, busy) = (rig.tablet.view.load_full(), Default::default());
    let [left, loaded, right] = view.version.level(5) else { panic!("two pieces around one file") };
    assert!(left.id == right.id && left.id != loaded.id);
    let (version, shape) = (&view.version, &view.shape);
    let pick = pick::pick_file(version, shape, pick::Reason::Collect, left, 6, &busy).unwrap();
    assert!(pick.span().contains_range(&right.span()) && !pick.inputs.contains(right));
    rig.tablet.claim(rig.tablet.picks(), pick).run().unwrap();
    let shown = ["a", "b", "m", "y", "z"].map(|row| rig.cells(row));
    assert_eq!(shown, [3, 3, 2, 3, 3]);
    assert_eq!(rig.tablet.version().level(5).len(), 2);
}

#[test]
fn files_of_a_failed_compaction_wait_the_longer_the_less_it_is_likely_to_pass() {
    let unwritten = |kind| Fault::new(FaultOp::Create).on_path(".sst").kind(kind).sticky();
    let unread = Fault::new(FaultOp::Read).on_path(".sst").sticky();
    for (fault, wait_max) in [
        // Damage.
        (None, 3_600_000_000),
        (Some(unread), 600_000_000),
        (Some(unwritten(ErrorKind::Io)), FAILED_WAIT_MICROS),
        (Some(unwritten(ErrorKind::NoSpace)), FAILED_WAIT_MICROS),
        (Some(unwritten(ErrorKind::Exhausted)), FAILED_WAIT_MICROS),
    ] {
        let (rig, files, clock) = rig_on_disk();
        rig.write(&["a"]);
        rig.engine.compact_fully().unwrap();
        let file = rig.tablet.version().level(6)[0].id;
        match &fault {
            Some(fault) => files.inject(fault.clone()),
            None => damage(&rig, file),
        }
        let mut wait = FAILED_WAIT_MICROS;
        for _ in 0..9 {
            rig.claim_fully().run().unwrap_err();
            let until = rig.tablet.jobs().failed_until[&file].0;
            assert_eq!(until - clock.monotonic_micros(), wait, "{fault:?}");
            clock.advance_micros(wait);
            wait = (2 * wait).min(wait_max);
        }
        assert_eq!(wait, wait_max);
    }
}

#[test]
fn what_ssts_name_is_not_gone_through_again_soon_where_nothing_came_of_it() {
    let (rig, files, clock) = rig_with_sparse_values();
    let gc_interval_micros = rig.engine.options().gc_interval_ms * 1000;
    // All that there is to do is under way, and then is not.
    let claims: Vec<_> = std::iter::from_fn(|| rig.tablet.claim_to_reclaim()).collect();
    drop(claims);
    assert!(!rig.tablet.must_reclaim());
    clock.advance_micros(1_000_000);
    assert!(rig.tablet.must_reclaim());
    // Nothing is under way, and nothing can be done.
    let ssts: Vec<FileId> = rig.tablet.version().ssts().map(|file| file.id).collect();
    let now = rig.tablet.core.env.clock.monotonic_micros();
    let failed = |until: u64| ssts.iter().map(move |id| (*id, (until, 0))).collect();
    rig.tablet.jobs().failed_until = failed(now + 10 * gc_interval_micros);
    assert!(!rig.tablet.must_reclaim());
    rig.tablet.jobs().failed_until.clear();
    clock.advance_micros(gc_interval_micros - 1);
    assert!(!rig.tablet.must_reclaim());
    clock.advance_micros(1);
    assert!(rig.tablet.must_reclaim());
    // Another schema is another question, and so is a disk that fills.
    let none = || {
        rig.tablet.jobs().failed_until = failed(u64::MAX);
        assert!(!rig.tablet.must_reclaim());
        rig.tablet.jobs().failed_until.clear();
        assert!(!rig.tablet.must_reclaim());
    };
    none();
    rig.tablet.set_schema(rig.tablet.schema.load_full().unwrap());
    assert!(rig.tablet.must_reclaim());
    none();
    files.set_free_bytes(Some(0));
    assert!(rig.tablet.must_reclaim());
}

#[test]
fn garbage_of_value_files_and_of_cells_goes_in_turn() {
    let (rig, _, _) = rig_with_sparse_values();
    let other = rig.engine.create_tablet(RowRange::all()).unwrap();
    other.set_schema(rig.tablet.schema.load_full().unwrap());
    let mut two = batch("a", &["a", "b"]);
    if let Some(Mutation::Put { timestamp, .. }) = two.mutations.first_mut() {
        *timestamp = START_MICROS;
    }
    block_on(other.apply(two)).unwrap();
    block_on(other.flush()).unwrap();
    other.compact_fully().unwrap();
    let family =
        FamilyOptions { gc: Some(GcRule::MaxAge(1_000_000)), aggregate: None, gc_since_micros: 0 };
    other.set_schema(Arc::new(TabletSchema { families: [(FamilyId(1), family)].into() }));
    let tablets = rig.engine.tablets();
    let next = || crate::background::claim_next(rig.engine.core(), &tablets).unwrap().pick.reason;
    use pick::Reason::{Collect, Reclaim};
    assert_eq!([next(), next(), next(), next()], [Reclaim, Collect, Reclaim, Collect]);
}

#[test]
fn garbage_of_many_tablets_goes_in_turn() {
    let rig = rig();
    let tablets = [(); 3].map(|()| rig.engine.create_tablet(RowRange::all()).unwrap());
    let last = AtomicU64::new(0);
    let next = |has: &dyn Fn(&Arc<Tablet>) -> bool| {
        let id = crate::background::after(&last, &tablets, |t| has(t).then_some(t.id()));
        id.and_then(|id| tablets.iter().position(|tablet| tablet.id() == id))
    };
    let all = [(); 4].map(|()| next(&|_| true));
    assert_eq!(all, [Some(0), Some(1), Some(2), Some(0)]);
    let second = tablets[1].id();
    assert_eq!([next(&|t| t.id() != second), next(&|_| false)], [Some(2), None]);
    assert_eq!(next(&|t| t.id() == second), Some(1));
}

#[test]
fn values_are_moved_at_leisure_beside_a_compaction_of_a_level_that_has_a_thread() {
    let (rig, files, clock) = rig_with_sparse_values();
    let core = Arc::clone(&rig.tablet.core);
    let other = rig.engine.create_tablet(RowRange::all()).unwrap();
    other.set_schema(rig.tablet.schema.load_full().unwrap());
    while other.compaction_score() < 1.0 {
        block_on(other.apply(batch("a", &["a"]))).unwrap();
        block_on(other.flush()).unwrap();
    }
    assert!(crate::background::is_behind(&rig.engine), "it waits for a thread");
    let running = other.claim_by_shape().unwrap();
    // Each read of a value takes a millisecond, and somebody else has one beside it.
    files.before_read(Some(Arc::new(move |path| {
        if path.starts_with("/data/values") {
            clock.advance_micros(1000);
            assert!(core.store.cache().get(FileId::MAX, 0).is_none());
        }
    })));
    rig.tablet.claim_to_reclaim().unwrap().run().unwrap();
    files.before_read(None);
    assert!(other.compaction_score() >= 1.0, "the other one is not over");
    drop(running);
    assert!(rig.engine.metrics().compaction_rested_micros.load(Ordering::Relaxed) > 0);
}

#[test]
fn values_are_not_moved_at_leisure_while_level_0_of_the_same_tablet_waits_for_their_files() {
    let (rig, files, clock) = rig_with_sparse_values();
    let core = Arc::clone(&rig.tablet.core);
    let claim = rig.tablet.claim_to_reclaim().unwrap();
    while rig.tablet.compaction_score() < 1.0 {
        for row in ["row-0000", "row-0399"] {
            block_on(rig.tablet.apply(batch(row, &["a"]))).unwrap();
        }
        block_on(rig.tablet.flush()).unwrap();
    }
    assert!(rig.tablet.claim_by_shape().is_none(), "it needs the same files");
    // Each read of a value takes a millisecond, and somebody else has one beside it.
    files.before_read(Some(Arc::new(move |path| {
        if path.starts_with("/data/values") {
            clock.advance_micros(1000);
            assert!(core.store.cache().get(FileId::MAX, 0).is_none());
        }
    })));
    claim.run().unwrap();
    files.before_read(None);
    assert_eq!(rig.engine.metrics().compaction_rested_micros.load(Ordering::Relaxed), 0);
}

#[test]
fn level_0_waits_for_the_files_of_a_compaction_that_is_done_with_some_of_its_rows_too() {
    let (rig, ..) = rig_with_sparse_values();
    let mut claim = rig.tablet.claim_to_reclaim().unwrap();
    assert!(!rig.tablet.is_kept_waiting_by(&claim.pick));
    while rig.tablet.compaction_score() < 1.0 {
        for row in ["row-0000", "row-0399"] {
            block_on(rig.tablet.apply(batch(row, &["a"]))).unwrap();
        }
        block_on(rig.tablet.flush()).unwrap();
    }
    assert!(rig.tablet.is_kept_waiting_by(&claim.pick));
    for end in ["row-0001", "row-0005"] {
        claim.go_on_after(&Bytes::from(end), &Mutex::default());
        assert!(rig.tablet.is_kept_waiting_by(&claim.pick), "{end}");
    }
    // What others write of the rows that are done is in the way.
    let level = claim.pick.output_level;
    let others = RowRange::new("row-0000", "row-0002");
    rig.tablet.jobs().busy.outputs.push((level, others.clone()));
    assert!(!rig.tablet.is_kept_waiting_by(&claim.pick));
    rig.tablet.jobs().busy.outputs.retain(|(_, rows)| *rows != others);
}

#[test]
fn values_are_not_moved_at_leisure_while_somebody_waits_to_merge_everything() {
    for awaited in [false, true] {
        let (rig, files, clock) = rig_with_sparse_values();
        let (core, tablet) = (Arc::clone(&rig.tablet.core), Arc::downgrade(&rig.tablet));
        let waits = Arc::new(Mutex::new(None));
        let (waiting, begun) = (Arc::clone(&waits), AtomicBool::new(false));
        // Each read of a value takes a millisecond, and somebody else has one beside it.
        files.before_read(Some(Arc::new(move |path| {
            if !path.starts_with("/data/values") {
                return;
            }
            clock.advance_micros(1000);
            assert!(core.store.cache().get(FileId::MAX, 0).is_none());
            if awaited && !begun.swap(true, Ordering::Relaxed) {
                let tablet = tablet.upgrade().unwrap();
                let merges = Arc::clone(&tablet);
                let merge = move || merges.compact_fully().unwrap();
                let thread = ThreadSpawner.spawn("merge", Box::new(merge)).unwrap();
                *waiting.lock().unwrap() = Some(thread);
                until("the merge waits", || tablet.jobs().awaited > 0);
            }
        })));
        rig.tablet.claim_to_reclaim().unwrap().run().unwrap();
        files.before_read(None);
        if let Some(thread) = waits.lock().unwrap().take() {
            thread.join();
        }
        let rested = rig.engine.metrics().compaction_rested_micros.load(Ordering::Relaxed);
        assert_eq!(rested == 0, awaited, "{rested} us of rest");
    }
}

#[test]
fn a_long_compaction_lends_its_thread_to_a_level_zero_that_is_due() {
    let rig = rig();
    rig.write(&["a"]);
    rig.write(&["a"]);
    // The other table writes enough for its compaction to look around.
    let large = rig.engine.create_tablet(RowRange::all()).unwrap();
    large.set_schema(rig.tablet.schema.load_full().unwrap());
    write_noise(&large);
    block_on(large.flush()).unwrap();
    crate::background::lend_threads(&rig.engine);
    assert_eq!(rig.tablet.version().level(0).len(), 2);
    large.compact_fully().unwrap();
    assert_eq!(rig.tablet.version().level(0).len(), 0, "compacted meanwhile");
}

#[test]
fn a_thread_that_is_lent_counts_with_the_memory_of_both_its_compactions() {
    let (rig, files, _) =
        rig_on_disk_with(EngineOptions { l0_compaction_files: 2, ..EngineOptions::default() });
    for _ in 0..2 {
        rig.write(&["a"]);
    }
    let large = rig.engine.create_tablet(RowRange::all()).unwrap();
    large.set_schema(rig.tablet.schema.load_full().unwrap());
    write_noise(&large);
    block_on(large.flush()).unwrap();
    assert_eq!(rig.engine.memory().jobs, 0);
    crate::background::lend_threads(&rig.engine);
    let most = Arc::new(AtomicU64::new(0));
    let (engine, seen) = (Arc::downgrade(&rig.engine), Arc::clone(&most));
    files.before_append(Some(Arc::new(move |_, _| {
        if let Some(engine) = engine.upgrade() {
            seen.fetch_max(engine.memory().jobs, Ordering::Relaxed);
        }
    })));
    large.compact_fully().unwrap();
    files.before_append(None);
    assert_eq!(most.load(Ordering::Relaxed), 2 * crate::options::JOB_BYTES);
    assert_eq!(rig.engine.memory().jobs, 0);
}

#[test]
fn a_thread_finishes_what_writers_wait_for_before_it_helps_tables_that_refuse_fewer() {
    let rig = rig();
    let half = rig.engine.options().l0_stop_files / 2;
    let small = |writes: usize| {
        let tablet = rig.engine.create_tablet(RowRange::all()).unwrap();
        tablet.set_schema(rig.tablet.schema.load_full().unwrap());
        for _ in 0..writes {
            block_on(tablet.apply(batch("a", &["q"]))).unwrap();
            block_on(tablet.flush()).unwrap();
        }
        tablet
    };
    let (due, fewer, more) = (small(2), small(half + 2), small(half + 8));
    // This one writes enough for its compaction to look around.
    write_noise(&rig.tablet);
    for _ in 0..half + 4 {
        rig.write(&["row-0000"]);
    }
    assert!(rig.tablet.pressure_of_level_zero().refused_share() > 0.0);
    crate::background::lend_threads(&rig.engine);
    let claim = rig.tablet.claim_by_shape().unwrap();
    assert_eq!(claim.pick.reason, pick::Reason::L0);
    claim.run().unwrap();
    let left = [&due, &fewer, &more].map(|tablet| tablet.version().level(0).len());
    assert_eq!(left, [2, half + 2, 0], "only the one that refuses more went first");
}

/// A rig on a disk, whose compactions have many parts, with two files of level 0 that have the same 400 rows.
fn rig_of_many_parts() -> (Rig, Arc<FaultFiles>) {
    let (rig, files, _) = rig_on_disk_with(EngineOptions {
        target_file_bytes: 16 << 10,
        l0_compaction_files: 2,
        compression: CompressionPolicy::None,
        ..EngineOptions::default()
    });
    for _ in 0..2 {
        write_noise(&rig.tablet);
        block_on(rig.tablet.flush()).unwrap();
    }
    (rig, files)
}

/// Has `look` called before every read of a file, but for those that it makes.
fn beside_reads(files: &FaultFiles, look: impl Fn() + Send + Sync + 'static) {
    let looking = AtomicBool::new(false);
    files.before_read(Some(Arc::new(move |_| {
        if !looking.swap(true, Ordering::Relaxed) {
            look();
            looking.store(false, Ordering::Relaxed);
        }
    })));
}

#[test]
fn a_job_looks_up_in_the_midst_of_a_large_row() {
    const CELL_BYTES: usize = 64 << 10;
    for separate_values_bytes in [0, 4096] {
        let rig = rig_with(EngineOptions { separate_values_bytes, ..EngineOptions::default() });
        let noise = noisy("r", 40 * CELL_BYTES);
        let Some(Mutation::Put { value, .. }) = noise.mutations.last() else { panic!() };
        for (n, value) in value.chunks(CELL_BYTES).enumerate() {
            let put = Mutation::Put {
                family: FamilyId(1),
                qualifier: Bytes::from(format!("{n:02}")),
                timestamp: 1000,
                value: Bytes::copy_from_slice(value),
            };
            let batch = RowBatch { row: Bytes::from_static(b"r"), mutations: vec![put] };
            block_on(rig.tablet.apply(batch)).unwrap();
        }
        let view = rig.tablet.view.load_full();
        // How often it looks up, and what it says that it has written, when it is told to stop for the last time.
        let run = |looks_max: u64| {
            let (looks, paced) = (Cell::new(0), Cell::new(0));
            let stop = || {
                looks.set(looks.get() + 1);
                looks.get() > looks_max
            };
            let pace = |bytes, _: &mut dyn FnMut()| paced.set(paced.get() + bytes);
            let values = ValueInputs::none();
            let context =
                JobContext { stop: &stop, pace: &pace, ..rig.tablet.job_context(&values) };
            let spec = CompactionSpec {
                schema: rig.tablet.require_schema().unwrap(),
                snapshots: Vec::new(),
                beneath: Beneath::NOTHING,
                excised: Arc::default(),
                times: rig.tablet.begin_collecting(),
            };
            let cuts = CutRule::new(&view.version, rig.engine.options(), view.shape.style, 6);
            let cursors: Vec<Box<dyn Cursor>> = vec![Box::new(view.active.cursor(RowRange::all()))];
            let output = job::run(&context, cursors, spec, 6, &cuts);
            if let Ok(output) = &output {
                job::discard(&context, output);
            }
            (output.map(|_| ()).map_err(|error| error.kind()), looks.get(), paced.get())
        };
        let (done, looks, paced) = run(u64::MAX);
        let steps = (40 * CELL_BYTES) as u64 / STEP_BYTES;
        assert_eq!(done, Ok(()));
        assert!((steps - 2..=steps + 2).contains(&looks), "{looks}");
        assert!(paced > (steps - 3) * STEP_BYTES, "{paced}");
        let (done, looks, paced) = run(3);
        assert_eq!((done, looks), (Err(ErrorKind::Closed), 4));
        assert!(paced <= 4 * STEP_BYTES, "{paced}");
        assert_eq!(rig.ssts(), 0);
    }
}

#[test]
fn a_large_compaction_puts_what_it_has_done_in_its_place_as_it_goes() {
    let (rig, files) = rig_of_many_parts();
    let rig = Arc::new(rig);
    let whole = rig.tablet.stats().level_bytes[0];
    let seen = Arc::new(Mutex::new(vec![whole]));
    let (inner, steps) = (Arc::downgrade(&rig), Arc::clone(&seen));
    beside_reads(&files, move || {
        let rig = inner.upgrade().unwrap();
        let bytes = rig.tablet.stats().level_bytes;
        let mut steps = steps.lock().unwrap();
        if bytes[0] == *steps.last().unwrap() {
            return;
        }
        // What is done is half of what went in, and the files that it came from are gone or cut.
        let done = whole - bytes[0];
        assert!((done / 3..=done / 3 * 2).contains(&bytes[6]), "{bytes:?} of {whole}");
        for n in (0..400).step_by(37) {
            assert_eq!(rig.cells(&format!("row-{n:04}")), 2, "row {n}");
        }
        steps.push(bytes[0]);
    });
    rig.engine.compact_fully().unwrap();
    files.before_read(None);
    let seen = seen.lock().unwrap();
    assert!(seen.len() > 6 && seen.is_sorted_by(|a, b| a > b), "{seen:?}");
    while rig.tablet.core.remove_doomed(0).is_some() {}
    let stats = rig.tablet.stats();
    assert_eq!((stats.level_files[0], rig.ssts()), (0, stats.level_files[6]));
}

#[test]
fn rows_that_are_dropped_between_two_parts_of_a_compaction_stay_away_and_no_others_do() {
    let (rig, files) = rig_of_many_parts();
    let rig = Arc::new(rig);
    let (inner, drops) = (Arc::downgrade(&rig), AtomicBool::new(true));
    beside_reads(&files, move || {
        let rig = inner.upgrade().unwrap();
        // Of rows that are done, of those that are being done, and the end, which has the last of each input.
        if rig.tablet.stats().level_files[6] > 20 && drops.swap(false, Ordering::Relaxed) {
            for range in [RowRange::new("row-0002", "row-0350"), RowRange::new("row-0390", "")] {
                block_on(rig.tablet.drop_rows(range)).unwrap();
            }
            rig.write(&["row-0100"]);
        }
    });
    rig.engine.compact_fully().unwrap();
    files.before_read(None);
    let there = |n: u32| n < 2 || n == 100 || (350..390).contains(&n);
    for n in 0..400 {
        assert_eq!(rig.cells(&format!("row-{n:04}")) > 0, there(n), "row {n}");
    }
}

#[test]
fn where_a_compaction_is_done_others_go_on_beside_it() {
    let (rig, files) = rig_of_many_parts();
    let rig = Arc::new(rig);
    let (inner, left) = (Arc::downgrade(&rig), Arc::new(Mutex::new(Vec::new())));
    let seen = Arc::clone(&left);
    beside_reads(&files, move || {
        let rig = inner.upgrade().unwrap();
        let under_way = rig.tablet.stats().level_files[6] > 0;
        let mut seen = seen.lock().unwrap();
        if !under_way || !seen.is_empty() {
            return;
        }
        let before = rig.tablet.stats().level_files[0];
        for row in ["row-0000", "row-0399"] {
            for _ in 0..2 {
                // As much as is worth the file that it meets.
                let mut batch = noisy(row, 4 << 10);
                if let Some(Mutation::Put { qualifier, .. }) = batch.mutations.last_mut() {
                    *qualifier = Bytes::from_static(b"more");
                }
                block_on(rig.tablet.apply(batch)).unwrap();
                block_on(rig.tablet.flush()).unwrap();
            }
            let claim = rig.tablet.claim_by_shape();
            seen.push(claim.is_some());
            if let Some(claim) = claim {
                claim.run().unwrap();
                assert_eq!(rig.tablet.stats().level_files[0], before);
            }
        }
    });
    rig.engine.compact_fully().unwrap();
    files.before_read(None);
    assert_eq!(
        *left.lock().unwrap(),
        [true, false],
        "the first rows are done, the last ones are not"
    );
    assert_eq!((rig.cells("row-0000"), rig.cells("row-0399")), (3, 3));
}

#[test]
fn a_compaction_keeps_no_memtable_in_memory_that_is_flushed_while_it_runs() {
    let (rig, files, _) = rig_on_disk();
    let rig = Arc::new(rig);
    rig.write(&["a"]);
    rig.write(&["b"]);
    for n in 0..1000 {
        block_on(rig.tablet.apply(batch(&format!("c{n}"), &["q"]))).unwrap();
    }
    let bytes = |rig: &Rig| rig.engine.core().memtables.bytes();
    let before = bytes(&rig);
    let (inner, left) = (Arc::downgrade(&rig), Arc::new(OnceLock::new()));
    let (seen, flushes) = (Arc::clone(&left), AtomicBool::new(false));
    files.before_read(Some(Arc::new(move |_| {
        if !flushes.swap(true, Ordering::Relaxed) {
            let rig = inner.upgrade().unwrap();
            block_on(rig.tablet.flush()).unwrap();
            seen.set(bytes(&rig)).unwrap();
        }
    })));
    rig.tablet.compact_fully().unwrap();
    files.before_read(None);
    let left = *left.get().expect("a compaction reads its inputs");
    assert!(left < before, "{left} bytes of memtables, {before} before the flush");
}

#[test]
fn a_compaction_for_which_the_disk_has_no_room_is_put_off_and_the_log_goes_on() {
    let (rig, files, _) = rig_on_disk();
    rig.write(&["a"]);
    rig.write(&["a"]);
    let options = rig.engine.options();
    let reserve = options.memtables_total_bytes + 4 * options.log_segment_bytes;
    files.set_free_bytes(Some(reserve));
    let error = rig.engine.compact_fully().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    rig.tablet.core.check_writable().unwrap();
    let put_off = &rig.engine.metrics().compactions_put_off;
    assert_eq!(put_off.load(Ordering::Relaxed), 1);
    rig.write(&["b"]);
    assert_eq!(rig.tablet.version().level(0).len(), 3);

    files.set_free_bytes(Some(reserve + (1 << 20)));
    rig.engine.compact_fully().unwrap();
    assert_eq!(rig.tablet.version().level(0).len(), 0);
    assert_eq!((rig.cells("a"), rig.cells("b")), (2, 2));
}

#[test]
fn values_are_moved_only_where_the_disk_has_room_for_them_too() {
    let (rig, files, clock) = rig_with_sparse_values();
    let options = rig.engine.options();
    let reserve = options.memtables_total_bytes + 4 * options.log_segment_bytes;
    let moved = || rig.engine.metrics().value_moved_bytes.load(Ordering::Relaxed);
    let before = moved();
    let room_for = |claim: &compact::Claim| {
        files.set_free_bytes(Some(reserve + claim.pick.input_bytes() + 4000));
    };
    let reclaim = rig.tablet.claim_to_reclaim().unwrap();
    room_for(&reclaim);
    assert_eq!(reclaim.run().unwrap_err().kind(), ErrorKind::NoSpace);
    // What is merged for other reasons leaves them where they are.
    clock.advance_micros(FAILED_WAIT_MICROS);
    for _ in 0..options.l0_compaction_files {
        rig.write(&["row-0100"]);
    }
    let column = rig.tablet.claim_by_shape().unwrap();
    assert_eq!(column.pick.reason, pick::Reason::L0);
    room_for(&column);
    column.run().unwrap();
    assert_eq!((moved(), rig.tablet.version().level(0).len()), (before, 0));

    files.set_free_bytes(None);
    rig.tablet.claim_to_reclaim().unwrap().run().unwrap();
    assert!(moved() > before);
}

#[test]
fn files_of_level_zero_are_merged_with_each_other_where_the_disk_has_no_room_for_their_column() {
    let (rig, files, clock) = rig_on_disk();
    write_noise(&rig.tablet);
    rig.engine.compact_fully().unwrap();
    let options = rig.engine.options();
    for _ in 0..=options.l0_stop_files / 2 {
        rig.write(&["row-0100"]);
    }
    let reserve = options.memtables_total_bytes + 4 * options.log_segment_bytes;
    files.set_free_bytes(Some(reserve + (512 << 10)));
    let column = rig.tablet.claim_by_shape().unwrap();
    assert_eq!(column.pick.reason, pick::Reason::L0);
    assert_eq!(column.run().unwrap_err().kind(), ErrorKind::NoSpace);
    let beside = rig.tablet.claim_by_shape().unwrap();
    assert_eq!(beside.pick.reason, pick::Reason::WithinL0);
    beside.run().unwrap();
    assert_eq!(rig.tablet.version().level(0).len(), 1);

    files.set_free_bytes(Some(reserve + (64 << 20)));
    clock.advance_micros(FAILED_WAIT_MICROS);
    for _ in 0..=options.l0_stop_files / 2 {
        rig.write(&["row-0100"]);
    }
    let column = rig.tablet.claim_by_shape().unwrap();
    assert_eq!(column.pick.reason, pick::Reason::L0);
    column.run().unwrap();
    assert_eq!(rig.tablet.version().level(0).len(), 0);
}

#[test]
fn level_zero_goes_down_though_the_disk_had_no_room_for_what_merges_it_for_its_garbage() {
    let (rig, files, clock) = rig_on_disk();
    let options = rig.engine.options();
    for _ in 0..options.l0_compaction_files {
        rig.write_versions([1]);
    }
    rig.rule(GcRule::MaxAge(1));
    let reserve = options.memtables_total_bytes + 4 * options.log_segment_bytes;
    files.set_free_bytes(Some(reserve));
    let garbage = rig.tablet.claim_to_collect().unwrap();
    assert_eq!(garbage.pick.reason, pick::Reason::Collect);
    assert_eq!(garbage.run().unwrap_err().kind(), ErrorKind::NoSpace);
    assert!(rig.tablet.setback(Behind::LevelZero).is_none(), "nobody who writes waits for it");
    rig.tablet.picks().collect_at = 0;
    assert!(rig.tablet.claim_to_collect().is_none(), "there is no more room than before");

    files.set_free_bytes(Some(reserve + (1 << 20)));
    let column = rig.tablet.claim_by_shape().unwrap();
    assert_eq!(column.pick.reason, pick::Reason::L0);
    drop(column);
    clock.advance_micros(FAILED_WAIT_MICROS);
    rig.tablet.picks().collect_at = 0;
    let garbage = rig.tablet.claim_to_collect().unwrap();
    assert_eq!(garbage.pick.reason, pick::Reason::Collect);
    garbage.run().unwrap();
    assert_eq!(rig.cells("r"), 0);
}

#[test]
fn a_compaction_that_failed_is_tried_again_in_time_though_nothing_is_written_or_flushed() {
    let (rig, files, clock) = rig_on_disk();
    while rig.tablet.compaction_score() < 1.0 {
        rig.write(&["a"]);
    }
    let tablets = rig.engine.tablets();
    files.inject(Fault::new(FaultOp::Create).on_path(".sst"));
    crate::background::claim_next(rig.engine.core(), &tablets).unwrap().run().unwrap_err();
    // What an idle thread asks every second.
    assert!(
        crate::background::claim_next(rig.engine.core(), &tablets).is_none(),
        "its files are left alone"
    );
    clock.advance_micros(FAILED_WAIT_MICROS - 1);
    assert!(crate::background::claim_next(rig.engine.core(), &tablets).is_none());
    clock.advance_micros(1);
    crate::background::claim_next(rig.engine.core(), &tablets)
        .expect("they are free again")
        .run()
        .unwrap();
    assert_eq!(rig.tablet.version().level(0).len(), 0);
}

#[test]
fn failures_are_forgotten_with_the_next_one_where_no_compaction_is_due() {
    let (rig, files, clock) = rig_on_disk();
    for row in ["a", "b", "c"] {
        rig.write(&[row]);
        files.inject(Fault::new(FaultOp::Create).on_path(".sst"));
        rig.engine.compact_fully().unwrap_err();
        let files = rig.tablet.version().sst_count() as usize;
        assert_eq!(rig.tablet.jobs().failed_until.len(), files, "{row}: none of earlier files");
        rig.engine.compact_fully().unwrap();
        clock.advance_micros(FAILED_WAIT_MICROS);
    }
}

#[test]
fn a_compaction_that_was_put_off_is_tried_again_in_time_though_nothing_is_written_or_flushed() {
    let (rig, files, clock) = rig_on_disk();
    while rig.tablet.compaction_score() < 1.0 {
        rig.write(&["a"]);
    }
    files.set_free_bytes(Some(0));
    // The column of level 0, then its files among each other.
    while let Some(claim) = rig.tablet.claim_by_shape() {
        assert_eq!(claim.run().unwrap_err().kind(), ErrorKind::NoSpace);
    }
    files.set_free_bytes(None);
    assert!(rig.tablet.claim_by_shape().is_none());
    clock.advance_micros(FAILED_WAIT_MICROS);
    rig.tablet.claim_by_shape().expect("there is room again").run().unwrap();
    assert_eq!(rig.tablet.version().level(0).len(), 0);
}

#[test]
fn edits_that_a_full_disk_has_no_room_for_are_made_once_it_has() {
    let (rig, files, clock) = rig_on_disk();
    rig.write(&["a"]);
    let file = rig.tablet.version().level(0)[0].id;
    let inputs: Vec<_> = rig.tablet.version().ssts().cloned().collect();
    let again = || {
        clock.advance_micros(FAILED_WAIT_MICROS);
        files.set_quota_bytes(Some(1 << 30));
        rig.tablet.core.check_writable().unwrap();
    };

    fill(&rig, &files);
    let pick =
        pick::Pick { reason: pick::Reason::Size, inputs, output_level: 5, bottommost: false };
    let moving = rig.tablet.claim(rig.tablet.picks(), pick);
    assert_eq!(moving.run().unwrap_err().kind(), ErrorKind::NoSpace);
    again();
    rig.move_to(5, false);
    assert_eq!(rig.tablet.version().level(5)[0].id, file);

    fill(&rig, &files);
    rig.rule(GcRule::MaxAge(1));
    let expired = rig.tablet.claim_expired().unwrap();
    assert_eq!(expired.run().unwrap_err().kind(), ErrorKind::NoSpace);
    assert!(rig.tablet.core.setbacks.tablets().is_empty(), "nobody waits for it");
    assert_eq!(rig.tablet.version().sst_count(), 1);
    again();
    rig.tablet.claim_expired().unwrap().run().unwrap();
    assert_eq!(rig.tablet.version().sst_count(), 0);
}

#[test]
fn a_flush_and_a_compaction_whose_edit_has_no_room_leave_nothing_and_are_done_once_it_has() {
    let (rig, files, clock) = rig_on_disk();
    rig.write(&["a"]);
    block_on(rig.tablet.apply(batch("b", &["a"]))).unwrap();
    // There is room for the files, and none for the edit.
    let full = || {
        fill(&rig, &files);
        files.set_quota_bytes(Some(1 << 30));
        let edit = Fault::new(FaultOp::Reserve).on_path("MANIFEST").kind(ErrorKind::NoSpace);
        files.inject(edit);
    };
    let ssts = rig.ssts();

    full();
    assert_eq!(block_on(rig.tablet.flush()).unwrap_err().kind(), ErrorKind::NoSpace);
    rig.tablet.core.check_writable().unwrap();
    rig.tablet.core.remove_doomed(0);
    assert_eq!((rig.ssts(), rig.cells("b")), (ssts, 1));
    block_on(rig.tablet.flush()).unwrap();

    full();
    let ssts = rig.ssts();
    assert_eq!(rig.claim_fully().run().unwrap_err().kind(), ErrorKind::NoSpace);
    rig.tablet.core.check_writable().unwrap();
    rig.tablet.core.remove_doomed(0);
    assert_eq!((rig.ssts(), rig.cells("a"), rig.cells("b")), (ssts, 2, 1));
    clock.advance_micros(FAILED_WAIT_MICROS);
    rig.engine.compact_fully().unwrap();
    rig.tablet.core.remove_doomed(0);
    assert_eq!((rig.ssts(), rig.cells("a"), rig.cells("b")), (1, 2, 1));
}

#[test]
fn an_edit_that_gives_space_back_needs_none() {
    let (rig, files, _) = rig_on_disk();
    rig.write(&["a"]);
    rig.move_to(5, false);
    rig.rule(GcRule::MaxAge(1));
    files.set_free_bytes(Some(0));
    rig.tablet.claim_expired().unwrap().run().unwrap();
    assert_eq!(rig.tablet.version().sst_count(), 0);
}
