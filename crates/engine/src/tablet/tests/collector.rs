//! The collector between two of its steps, and jobs that run while changes begin to be kept.

use std::sync::mpsc::channel;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use super::super::collector::{SLICE_CELLS_MAX, Slice};
use super::*;
use crate::cell::TimestampRange;
use crate::changes::{Change, Source, position_before};
use crate::schema::GcRule;

const DAY: Duration = Duration::from_hours(24);

const HOUR_MICROS: i64 = 3_600_000_000;

/// A clock that does something when it is asked the next time.
#[derive(Debug)]
struct Hooked {
    clock: ManualClock,
    hook: Mutex<Option<Hook>>,
}

struct Hook(Box<dyn FnOnce() + Send>);

impl std::fmt::Debug for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hook")
    }
}

impl Clock for Hooked {
    fn now_micros(&self) -> i64 {
        let hook = self.hook.lock().unwrap().take();
        if let Some(hook) = hook {
            (hook.0)();
        }
        self.clock.now_micros()
    }

    fn monotonic_micros(&self) -> u64 {
        self.clock.monotonic_micros()
    }
}

/// A tablet with a rule, whose changes are not kept yet.
struct Ruled {
    rig: Rig,
    clock: Arc<Hooked>,
}

impl Ruled {
    fn new(rule: GcRule) -> Self {
        let files = Arc::new(MemoryFiles::new());
        Self::over(rule, Arc::clone(&files), files)
    }

    /// Over `seen`, which are `files` with something in between.
    fn over(rule: GcRule, files: Arc<MemoryFiles>, seen: Arc<dyn Files>) -> Self {
        let clock = ManualClock::new(START_MICROS);
        let clock = Arc::new(Hooked { clock, hook: Mutex::default() });
        let options = EngineOptions { memtables_waiting_max: 1, ..EngineOptions::default() };
        let rig = rig_over(options, Arc::clone(&clock) as Arc<dyn Clock>, files, seen);
        let family = FamilyOptions { gc: Some(rule), aggregate: None, gc_since_micros: 0 };
        rig.tablet.set_schema(Arc::new(TabletSchema { families: [(FamilyId(1), family)].into() }));
        Self { rig, clock }
    }

    fn kept(rule: GcRule) -> Self {
        let ruled = Self::new(rule);
        ruled.rig.tablet.keep_changes(Some(DAY));
        ruled
    }

    fn apply(&self, mutations: Vec<Mutation>) {
        let batch = RowBatch { row: Bytes::from_static(b"r"), mutations };
        block_on(self.rig.tablet.apply(batch)).unwrap();
    }

    fn put(&self, timestamps: &[i64]) {
        self.apply(timestamps.iter().map(|timestamp| put(*timestamp)).collect());
    }

    /// The timestamps of the row's cells.
    fn cells(&self) -> Vec<i64> {
        let all = Projection::all();
        let read = self.rig.tablet.read_row(b"r", &all, ReadView::Durable);
        let row = block_on(read).unwrap();
        row.map_or_else(Vec::new, |row| row.cells.iter().map(|cell| cell.timestamp).collect())
    }

    /// Collects the row, whether or not a file says that it has garbage.
    fn collect(&self) -> bool {
        let collected = block_on(self.rig.tablet.collect_row(Bytes::from_static(b"r"))).unwrap();
        let wait = |last| block_on(self.rig.tablet.core.pipeline.wait_visible(last)).unwrap();
        collected.map(|(last, _)| wait(last)).is_some()
    }

    /// What garbage collection has deleted: ranges of timestamps.
    fn deleted(&self) -> Vec<(i64, i64)> {
        let mut reader = self.rig.tablet.changes_after(position_before(START_MICROS));
        let changes = reader.read_disk(usize::MAX).unwrap();
        let ranges = |change: Change| {
            change.batch.mutations.into_iter().map(|mutation| match mutation {
                Mutation::DeleteCells { timestamps, .. } => (timestamps.start, timestamps.end),
                other => panic!("{other:?}"),
            })
        };
        let collected = changes.into_iter().filter(|c| c.source == Source::GarbageCollection);
        collected.flat_map(ranges).collect()
    }

    /// Damages the first block of the SST; where that is, and what it was.
    fn damage(&self) -> (std::path::PathBuf, Vec<u8>) {
        let tablet = &self.rig.tablet;
        let path = tablet.core.layout.sst(tablet.version().level(0)[0].id);
        let whole = self.rig.files.contents(&path).unwrap();
        let mut damaged = whole.clone();
        damaged[3] ^= 0x40;
        self.rig.files.put_contents(&path, damaged);
        (path, whole)
    }

    /// Begins to keep changes the next time that the clock is asked.
    fn keep_in_the_midst(&self) {
        self.in_the_midst(|tablet| {
            tablet.keep_changes(Some(DAY));
        });
    }

    /// Does something the next time that the clock is asked.
    fn in_the_midst(&self, change: impl FnOnce(&Tablet) + Send + 'static) {
        let tablet = Arc::downgrade(&self.rig.tablet);
        let hook = move || change(&tablet.upgrade().unwrap());
        *self.clock.hook.lock().unwrap() = Some(Hook(Box::new(hook)));
    }

    fn idle(&self) {
        for _ in 0..12 {
            self.clock.clock.advance_micros(10_000_000);
            self.rig.engine.run_background().unwrap();
        }
    }
}

fn put(timestamp: i64) -> Mutation {
    let (family, qualifier) = (FamilyId(1), Bytes::from_static(b"q"));
    Mutation::Put { family, qualifier, timestamp, value: Bytes::from_static(b"v") }
}

fn delete(start: i64, end: i64) -> Mutation {
    let (family, qualifier) = (FamilyId(1), Bytes::from_static(b"q"));
    Mutation::DeleteCells { family, qualifier, timestamps: TimestampRange { start, end } }
}

#[test]
fn a_row_of_any_size_is_collected_in_pieces() {
    let ruled = Ruled::kept(GcRule::MaxVersions(2));
    let column = |n: u32| Bytes::from(format!("{n:05}"));
    let put = |n, timestamp| {
        let (family, value) = (FamilyId(1), Bytes::from_static(b"v"));
        Mutation::Put { family, qualifier: column(n), timestamp, value }
    };
    // Of each column a version may go; of one, more than a piece has, and then some more.
    let versions = |n| if n == 5_000 { 25_000 } else { 3 };
    for n in 0..8_000 {
        ruled.apply((1..=versions(n)).map(|version| put(n, version * 1_000)).collect());
    }
    let slice = Slice { from: None, cells_max: SLICE_CELLS_MAX };
    let row = Bytes::from_static(b"r");
    let (_, next) = block_on(ruled.rig.tablet.collect_slice(&row, slice)).unwrap();
    assert_eq!(next.unwrap().from, Some((FamilyId(1), column(SLICE_CELLS_MAX / 3))));
    assert!(ruled.collect());
    let timestamps = ruled.cells();
    assert_eq!(timestamps.len(), 8_000 * 2);
    let newest = (0..8_000).flat_map(|n| [versions(n) * 1_000, versions(n) * 1_000 - 1_000]);
    assert!(newest.eq(timestamps));
    assert!(!ruled.collect(), "nothing is deleted twice");
}

#[test]
fn what_is_behind_a_piece_of_a_column_that_goes_is_deleted_with_it() {
    let ruled = Ruled::kept(GcRule::MaxVersions(2));
    for from in (0..3 * i64::from(SLICE_CELLS_MAX)).step_by(1_000) {
        ruled.put(&(from..from + 1_000).map(|n| n * 1_000).collect::<Vec<_>>());
    }
    assert!(ruled.collect());
    let newest = (3 * i64::from(SLICE_CELLS_MAX) - 1) * 1_000;
    let expected = (vec![newest, newest - 1_000], vec![(0, newest - 1_000)]);
    assert_eq!((ruled.cells(), ruled.deleted()), expected);
    assert!(!ruled.collect(), "nothing is deleted twice");
}

#[test]
fn a_column_of_which_all_stays_for_long_is_judged_in_pieces_that_do_not_grow() {
    // Where the newest that goes is at the end of a piece, in the midst of one and at the beginning of the next; and where none goes.
    for kept in [65, 66, 67, 100, 199, 200, 300] {
        let ruled = Ruled::kept(GcRule::MaxVersions(kept as u32));
        ruled.put(&(1..=200).map(|n| n * 1_000).collect::<Vec<_>>());
        // What deletes cells in the midst of it has its say in every piece.
        ruled.apply(vec![delete(150_000, 151_000)]);
        let slice = Slice { from: None, cells_max: 2 };
        let row = Bytes::from_static(b"r");
        let tablet = &ruled.rig.tablet;
        let (deleted, next) = block_on(tablet.collect_slice(&row, slice)).unwrap();
        let next = next.unwrap();
        assert_eq!((next.cells_max, deleted.is_some()), (2, kept < 199), "{kept}");
        assert_eq!(next.from, Some((FamilyId(1), Bytes::from_static(b"q\0"))), "{kept}");
        if let Some((last, _)) = deleted {
            block_on(tablet.core.pipeline.wait_visible(last)).unwrap();
        }
        let all = (1..=200).rev().filter(|n| *n != 150).map(|n| n * 1_000);
        assert!(all.take(kept).eq(ruled.cells()), "{kept}: {:?}", ruled.cells());
        assert!(!ruled.collect(), "nothing is deleted twice");
    }
}

#[test]
fn a_column_of_which_a_whole_slice_stays_is_collected() {
    let ruled = Ruled::kept(GcRule::MaxVersions(25_000));
    for from in (0..30).map(|n| n * 1_000) {
        ruled.put(&(from..from + 1_000).map(|n| n * 1_000).collect::<Vec<_>>());
    }
    assert!(ruled.collect());
    assert_eq!(ruled.cells().len(), 25_000);
    assert_eq!(ruled.cells().last(), Some(&5_000_000));
}

#[test]
fn what_was_written_since_a_file_was_walked_is_judged_as_it_is() {
    let ruled = Ruled::kept(GcRule::MaxVersions(1));
    ruled.put(&[1_000, 2_000]);
    block_on(ruled.rig.tablet.flush()).unwrap();
    // By the file, the older cell may go. It is the newest by now.
    ruled.apply(vec![delete(2_000, 3_000)]);
    assert!(!ruled.collect());
    assert_eq!(ruled.cells(), [1_000]);
    ruled.put(&[3_000, 4_000]);
    assert!(ruled.collect());
    assert_eq!((ruled.cells(), ruled.deleted()), (vec![4_000], vec![(1_000, 4_000)]));
    assert!(!ruled.collect(), "nothing is deleted twice");
}

#[test]
fn a_write_that_waits_for_its_sync_counts_and_comes_before_the_deletion() {
    let ruled = Ruled::kept(GcRule::MaxVersions(1));
    ruled.put(&[1_000]);
    // A write that began and is not applied holds back what is visible.
    let pipeline = &ruled.rig.tablet.core.pipeline;
    let encoded = encode_batch(ruled.rig.tablet.id().0 + 1, &batch("x", &["a"]));
    let permit = block_on(pipeline.admit(encoded.len())).unwrap();
    let slow = pipeline.begin(encoded, 1, permit).unwrap();
    let newer = RowBatch { row: Bytes::from_static(b"r"), mutations: vec![put(2_000)] };
    let mut writing = pin!(ruled.rig.tablet.apply(newer));
    assert!(writing.as_mut().now_or_never().is_none());
    let collected = block_on(ruled.rig.tablet.collect_row(Bytes::from_static(b"r"))).unwrap();
    let (last, _) = collected.expect("the older of the two may go");
    assert_eq!(ruled.cells(), [1_000], "neither is durable");
    drop(slow);
    assert!(block_on(writing).unwrap() < last);
    block_on(pipeline.wait_visible(last)).unwrap();
    assert_eq!((ruled.cells(), ruled.deleted()), (vec![2_000], vec![(1_000, 2_000)]));
}

#[test]
fn a_flush_that_was_under_way_when_changes_began_to_be_kept_takes_nothing_away() {
    let ruled = Ruled::new(GcRule::MaxVersions(1));
    ruled.put(&[1_000, 2_000, 3_000]);
    ruled.keep_in_the_midst();
    block_on(ruled.rig.tablet.flush()).unwrap();
    assert!(ruled.rig.tablet.changes_kept().is_some());
    assert_eq!(ruled.cells(), [3_000, 2_000, 1_000]);
    assert_eq!(ruled.rig.tablet.version().ssts().count(), 1);
    ruled.idle();
    assert_eq!((ruled.cells(), ruled.deleted()), (vec![3_000], vec![(1_000, 3_000)]));
    assert_eq!(ruled.rig.ssts(), 1, "what the flush had written first is gone");
}

#[test]
fn a_compaction_that_was_under_way_when_changes_began_to_be_kept_takes_nothing_away() {
    let ruled = Ruled::new(GcRule::MaxVersions(1));
    for timestamp in [1_000, 2_000] {
        ruled.put(&[timestamp]);
        block_on(ruled.rig.tablet.flush()).unwrap();
    }
    let claim = ruled.rig.claim_fully();
    ruled.keep_in_the_midst();
    claim.run().unwrap();
    assert!(ruled.rig.tablet.changes_kept().is_some());
    assert_eq!((ruled.cells(), ruled.deleted()), (vec![2_000, 1_000], vec![]));
    ruled.idle();
    assert_eq!((ruled.cells(), ruled.deleted()), (vec![2_000], vec![(1_000, 2_000)]));
    assert_eq!(ruled.rig.ssts(), 1);
}

#[test]
fn what_is_under_way_when_a_rule_is_relaxed_takes_nothing_away_by_the_old_one() {
    for flushes in [false, true] {
        let ruled = Ruled::new(GcRule::MaxVersions(1));
        ruled.put(&[1_000]);
        let relax = |tablet: &Tablet| {
            let family = FamilyOptions { gc: Some(GcRule::MaxVersions(2)), ..Default::default() };
            tablet.set_schema(Arc::new(TabletSchema { families: [(FamilyId(1), family)].into() }));
        };
        if flushes {
            ruled.put(&[2_000]);
            ruled.in_the_midst(relax);
            block_on(ruled.rig.tablet.flush()).unwrap();
        } else {
            block_on(ruled.rig.tablet.flush()).unwrap();
            ruled.put(&[2_000]);
            block_on(ruled.rig.tablet.flush()).unwrap();
            let claim = ruled.rig.claim_fully();
            ruled.in_the_midst(relax);
            claim.run().unwrap();
        }
        assert!(ruled.clock.hook.lock().unwrap().is_none());
        ruled.idle();
        assert_eq!(ruled.cells(), [2_000, 1_000]);
        ruled.put(&[3_000]);
        ruled.idle();
        assert_eq!(ruled.cells(), [3_000, 2_000]);
    }
}

#[test]
fn all_is_merged_though_a_rule_is_relaxed_meanwhile() {
    let ruled = Ruled::new(GcRule::MaxVersions(1));
    let tablet = &ruled.rig.tablet;
    for timestamp in [1_000, 2_000] {
        ruled.put(&[timestamp]);
        block_on(tablet.flush()).unwrap();
    }
    let allow = |versions| {
        move |tablet: &Tablet| {
            let gc = Some(GcRule::MaxVersions(versions));
            let family = FamilyOptions { gc, ..FamilyOptions::default() };
            tablet.set_schema(Arc::new(TabletSchema { families: [(FamilyId(1), family)].into() }));
        }
    };
    ruled.in_the_midst(allow(2));
    tablet.compact_fully().unwrap();
    let stats = tablet.stats();
    assert_eq!((stats.level_files[6], stats.sst_count), (1, 1));
    assert_eq!(ruled.cells(), [2_000, 1_000]);
    // What comes to nothing is no merge that reads have paid for.
    ruled.put(&[3_000]);
    block_on(tablet.flush()).unwrap();
    tablet.count_looks(64);
    ruled.in_the_midst(allow(3));
    assert!(!ruled.rig.claim_fully().run().unwrap());
    assert_eq!((tablet.looks(), ruled.cells().len()), (64, 3));
    assert!(ruled.rig.claim_fully().run().unwrap());
    assert_eq!((tablet.looks(), ruled.cells().len()), (0, 3));
}

#[test]
fn what_is_there_once_a_rule_was_relaxed_stays() {
    const ONE_VERSION: GcRule = GcRule::MaxVersions(1);
    type Job = fn(&Ruled);
    let flush: Job = |ruled| block_on(ruled.rig.tablet.flush()).unwrap();
    let flushed: Job = |ruled| {
        block_on(ruled.rig.tablet.flush()).unwrap();
        ruled.put(&[START_MICROS + 1_000]);
        block_on(ruled.rig.tablet.flush()).unwrap();
    };
    let merged: Job = |ruled| {
        ruled.rig.engine.compact_fully().unwrap();
        ruled.clock.clock.advance_micros(2 * HOUR_MICROS as u64);
    };
    let merge: Job = |ruled| {
        ruled.rig.claim_fully().run().unwrap();
    };
    let drop_expired: Job = |ruled| {
        ruled.rig.tablet.claim_expired().expect("all of it has expired").run().unwrap();
    };
    let jobs: [(_, Job, Job); 3] = [
        (ONE_VERSION, |ruled| ruled.put(&[START_MICROS + 1_000]), flush),
        (ONE_VERSION, flushed, merge),
        (GcRule::MaxAge(HOUR_MICROS), merged, drop_expired),
    ];
    for (rule, prepare, job) in jobs {
        let memory = Arc::new(MemoryFiles::new());
        let files = FaultFiles::new(Arc::clone(&memory) as Arc<dyn Files>);
        let ruled = Ruled::over(rule, memory, Arc::new(files.clone()));
        ruled.put(&[START_MICROS]);
        prepare(&ruled);
        let (edit_begins, edit_began) = channel();
        let (relaxed, was_relaxed) = channel();
        let was_relaxed = Mutex::new(was_relaxed);
        let is_first = AtomicBool::new(true);
        files.before_sync(Some(Arc::new(move |path: &Path| {
            if path.to_string_lossy().contains("MANIFEST") && is_first.swap(false, Ordering::SeqCst)
            {
                edit_begins.send(()).unwrap();
                // A change that does not wait for the edit is made within this time; one that does is not, which only time can tell.
                let _ = was_relaxed.lock().unwrap().recv_timeout(Duration::from_millis(300));
            }
        })));
        std::thread::scope(|scope| {
            let ruled = &ruled;
            let relaxing = scope.spawn(move || {
                edit_began.recv_timeout(Duration::from_mins(1)).expect("the job makes an edit");
                let families = [(FamilyId(1), FamilyOptions::default())].into();
                ruled.rig.tablet.set_schema(Arc::new(TabletSchema { families }));
                let cells = ruled.cells();
                let _ = relaxed.send(());
                cells
            });
            job(ruled);
            assert_eq!(relaxing.join().unwrap(), ruled.cells());
        });
    }
}

#[test]
fn a_file_that_was_to_go_as_a_whole_stays_when_changes_begin_to_be_kept() {
    let ruled = Ruled::new(GcRule::MaxAge(HOUR_MICROS));
    ruled.put(&[START_MICROS]);
    ruled.rig.engine.compact_fully().unwrap();
    block_on(ruled.rig.tablet.flush()).unwrap();
    ruled.rig.engine.compact_fully().unwrap();
    ruled.clock.clock.advance_micros(2 * HOUR_MICROS as u64);
    let claim = ruled.rig.tablet.claim_to_collect().expect("all of it has expired");
    ruled.rig.tablet.keep_changes(Some(DAY));
    claim.run().unwrap();
    assert_eq!(ruled.cells(), [START_MICROS]);
    ruled.idle();
    assert_eq!((ruled.cells().len(), ruled.deleted().len()), (0, 1));
    assert_eq!(ruled.rig.ssts(), 0, "what was deleted is merged away, and the deletion with it");
}

#[test]
fn nothing_is_deleted_while_writes_are_refused() {
    let ruled = Ruled::kept(GcRule::MaxVersions(1));
    ruled.put(&[1_000, 2_000]);
    block_on(ruled.rig.tablet.flush()).unwrap();
    ruled.put(&[3_000]);
    ruled.rig.tablet.rotate_now();
    assert!(ruled.rig.tablet.pressure().refused_share() > 0.0);
    assert!(ruled.rig.tablet.claim_to_look().is_none());
    ruled.rig.tablet.flush_waiting().unwrap();
    assert!(ruled.rig.tablet.claim_to_look().is_none(), "not at once");
    ruled.clock.clock.advance_micros(1_000_000);
    let look = ruled.rig.tablet.claim_to_look().expect("there is room again");
    assert!(ruled.rig.tablet.claim_to_look().is_none(), "one at a time");
    look.run().unwrap();
    assert_eq!(ruled.cells(), [3_000]);
}

#[test]
fn a_walk_lets_memtables_go_that_are_flushed_meanwhile() {
    let memory = Arc::new(MemoryFiles::new());
    let files = Arc::new(FaultFiles::new(Arc::clone(&memory) as Arc<dyn Files>));
    let seen = Arc::clone(&files) as Arc<dyn Files>;
    let ruled = Ruled::over(GcRule::MaxVersions(1), memory, seen);
    ruled.rig.tablet.keep_changes(Some(DAY));
    ruled.put(&[1_000, 2_000]);
    block_on(ruled.rig.tablet.flush()).unwrap();
    let (family, qualifier) = (FamilyId(1), Bytes::from_static(b"large"));
    let value = vec![7; 200 << 10].into();
    ruled.apply(vec![Mutation::Put { family, qualifier, timestamp: 1_000, value }]);
    let engine = &ruled.rig.engine;
    let before = engine.memory().memtables;
    let look = ruled.rig.tablet.claim_to_look().unwrap();
    let left = Arc::new(OnceLock::new());
    let (seen, begun) = (Arc::clone(&left), AtomicBool::new(false));
    let (of, tablet) = (Arc::downgrade(engine), Arc::downgrade(&ruled.rig.tablet));
    files.before_read(Some(Arc::new(move |_| {
        // The flush reads, too.
        if !begun.swap(true, Ordering::Relaxed) {
            block_on(tablet.upgrade().unwrap().flush()).unwrap();
            seen.set(of.upgrade().unwrap().memory().memtables).unwrap();
        }
    })));
    look.run().unwrap();
    files.before_read(None);
    let left = *left.get().expect("a walk reads its file");
    assert!(left < before / 2, "{left} bytes of memtables of {before}");
    assert_eq!(ruled.cells().len(), 2);
}

#[test]
fn a_walk_within_a_large_row_ends_when_the_tablet_is_dropped() {
    // No value of its own file.
    const CELL_BYTES: usize = 4 << 10;
    let memory = Arc::new(MemoryFiles::new());
    let files = Arc::new(FaultFiles::new(Arc::clone(&memory) as Arc<dyn Files>));
    let seen = Arc::clone(&files) as Arc<dyn Files>;
    let ruled = Ruled::over(GcRule::MaxVersions(1), memory, seen);
    ruled.rig.tablet.keep_changes(Some(DAY));
    let noise = SeededRng::new(7);
    let noise: Bytes = (0..1 << 20).map(|_| crate::io::Rng::next_u64(&noise) as u8).collect();
    for mebibyte in 0..40 {
        let put = |n: usize| {
            let (family, qualifier) = (FamilyId(1), Bytes::from_static(b"q"));
            let value = noise.slice(n * CELL_BYTES..(n + 1) * CELL_BYTES);
            let timestamp = (mebibyte * 256 + n as i64) * 1_000;
            Mutation::Put { family, qualifier, timestamp, value }
        };
        ruled.apply((0..256).map(put).collect());
    }
    block_on(ruled.rig.tablet.flush()).unwrap();
    let look = ruled.rig.tablet.claim_to_look().unwrap();
    let id = ruled.rig.tablet.id();
    let (engine, reads) = (Arc::downgrade(&ruled.rig.engine), Arc::new(AtomicU64::new(0)));
    let counted = Arc::clone(&reads);
    files.before_read(Some(Arc::new(move |_| {
        // In the midst of it: the index, and what is read ahead of the first records, come before.
        if counted.fetch_add(1, Ordering::Relaxed) == 5 {
            engine.upgrade().unwrap().drop_tablet(id).unwrap();
        }
    })));
    look.run().unwrap();
    files.before_read(None);
    let reads = reads.load(Ordering::Relaxed);
    assert!((6..12).contains(&reads), "{reads} reads of up to 2 MiB");
}

#[test]
fn a_file_whose_walk_fails_is_left_alone_for_longer_each_time() {
    let ruled = Ruled::kept(GcRule::MaxVersions(1));
    ruled.put(&[1_000, 2_000]);
    let tablet = &ruled.rig.tablet;
    block_on(tablet.flush()).unwrap();
    let (path, whole) = ruled.damage();
    let interval = ruled.rig.engine.options().gc_interval_ms * 1_000;
    let next_look = |wait: u64| {
        ruled.clock.clock.advance_micros(wait - 1);
        assert!(tablet.claim_to_look().is_none(), "{wait}");
        ruled.clock.clock.advance_micros(interval + 1);
        tablet.claim_to_look().expect("its time has come")
    };
    let mut look = tablet.claim_to_look().unwrap();
    for n in 0..4 {
        assert_eq!(look.run().unwrap_err().kind(), ErrorKind::Corruption);
        look = next_look(failures::FAILED_WAIT_MICROS << n);
    }
    ruled.rig.files.put_contents(&path, whole);
    look.run().unwrap();
    assert_eq!(ruled.cells(), [2_000]);
}

#[test]
fn what_was_walked_by_a_clock_that_was_ahead_is_walked_again_once_it_is_right() {
    let ruled = Ruled::kept(GcRule::MaxAge(HOUR_MICROS));
    let (tablet, clock) = (&ruled.rig.tablet, &ruled.clock.clock);
    ruled.put(&[START_MICROS]);
    block_on(tablet.flush()).unwrap();
    clock.set_wall_micros(START_MICROS + 20 * HOUR_MICROS);
    let begun = tablet.claim_to_look().expect("a cell is older than an hour by that clock");
    clock.set_wall_micros(START_MICROS);
    begun.run().unwrap();
    assert_eq!(ruled.cells(), [START_MICROS]);
    clock.advance_micros(HOUR_MICROS as u64 + 1_000);
    tablet.claim_to_look().expect("it is older than an hour").run().unwrap();
    assert!(ruled.cells().is_empty());
}

#[test]
fn a_walk_that_failed_by_a_clock_that_was_ahead_is_tried_again_once_it_is_right() {
    let ruled = Ruled::kept(GcRule::MaxVersions(1));
    let (tablet, clock) = (&ruled.rig.tablet, &ruled.clock.clock);
    ruled.put(&[1_000, 2_000]);
    block_on(tablet.flush()).unwrap();
    let (path, whole) = ruled.damage();
    clock.set_wall_micros(START_MICROS + 20 * HOUR_MICROS);
    let look = tablet.claim_to_look().unwrap();
    assert_eq!(look.run().unwrap_err().kind(), ErrorKind::Corruption);
    ruled.rig.files.put_contents(&path, whole);
    clock.set_wall_micros(START_MICROS);
    tablet.claim_to_look().expect("its time has not passed 20 hours ago").run().unwrap();
    assert_eq!(ruled.cells(), [2_000]);
}

#[test]
fn a_row_that_cannot_be_read_keeps_no_garbage_of_the_rows_behind_it() {
    for kind in [ErrorKind::Corruption, ErrorKind::Io] {
        let memory = Arc::new(MemoryFiles::new());
        let faults = Arc::new(FaultFiles::new(Arc::clone(&memory) as Arc<dyn Files>));
        let seen = Arc::clone(&faults) as Arc<dyn Files>;
        let ruled = Ruled::over(GcRule::MaxVersions(1), Arc::clone(&memory), seen);
        let tablet = &ruled.rig.tablet;
        tablet.keep_changes(Some(DAY));
        let apply = |row: &'static str, mutations: Vec<Mutation>| {
            let row = Bytes::from_static(row.as_bytes());
            block_on(tablet.apply(RowBatch { row, mutations })).unwrap();
        };
        apply("bad", vec![put(500)]);
        block_on(tablet.flush()).unwrap();
        let path = tablet.core.layout.sst(tablet.version().level(0)[0].id);
        for row in ["a", "bad", "z"] {
            apply(row, vec![put(1_000), put(2_000)]);
        }
        block_on(tablet.flush()).unwrap();
        let whole = memory.contents(&path).unwrap();
        if kind == ErrorKind::Corruption {
            let mut damaged = whole.clone();
            damaged[3] ^= 0x40;
            memory.put_contents(&path, damaged);
        } else {
            let name = path.to_str().unwrap();
            faults.inject(Fault::new(FaultOp::Read).on_path(name).sticky());
        }
        let cells = |row: &str| {
            let (all, row) = (Projection::all(), row.as_bytes().to_vec());
            let read = block_on(tablet.read_row(&row, &all, ReadView::Durable));
            read.map(|row| row.map_or(0, |row| row.cells.len())).map_err(|error| error.kind())
        };
        tablet.claim_to_look().expect("a file has two versions").run().unwrap();
        assert_eq!((cells("a"), cells("bad"), cells("z")), (Ok(1), Err(kind), Ok(1)));
        // Nobody takes it for collected.
        memory.put_contents(&path, whole);
        faults.heal();
        assert_eq!(cells("bad"), Ok(3));
        let interval = ruled.rig.engine.options().gc_interval_ms * 1_000;
        assert!(tablet.claim_to_look().is_none(), "it is left alone for a while");
        ruled.clock.clock.advance_micros(failures::FAILED_WAIT_MICROS + interval);
        tablet.claim_to_look().expect("its time has come").run().unwrap();
        assert_eq!(cells("bad"), Ok(1));
    }
}

#[test]
fn a_version_that_stays_since_newer_ones_were_deleted_goes_when_it_comes_to_its_age() {
    let either = vec![GcRule::MaxVersions(1), GcRule::MaxAge(HOUR_MICROS)];
    let ruled = Ruled::kept(GcRule::Union(either));
    ruled.put(&[START_MICROS, START_MICROS - HOUR_MICROS / 2]);
    block_on(ruled.rig.tablet.flush()).unwrap();
    // In memory, where a walk of the file does not see it.
    ruled.apply(vec![delete(START_MICROS, START_MICROS + 1_000)]);
    ruled.rig.tablet.claim_to_look().expect("the file has two versions").run().unwrap();
    assert_eq!(ruled.cells(), [START_MICROS - HOUR_MICROS / 2]);
    ruled.clock.clock.advance_micros(HOUR_MICROS as u64 / 2);
    assert!(ruled.rig.tablet.claim_to_look().is_none(), "nothing is older than an hour");
    ruled.clock.clock.advance_micros(ruled.rig.engine.options().gc_interval_ms * 1_000);
    ruled.rig.tablet.claim_to_look().expect("it is older now").run().unwrap();
    assert!(ruled.cells().is_empty());
}

#[test]
fn what_garbage_collection_leaves_keeps_no_read_from_seeking_past_versions() {
    let ruled = Ruled::new(GcRule::MaxVersions(1));
    let tablet = &ruled.rig.tablet;
    for timestamps in [&[1_000][..], &[1_000, 2_000]] {
        ruled.put(timestamps);
        block_on(tablet.flush()).unwrap();
    }
    let view = tablet.hold();
    let files = view.files.values().map(|file| file.reader().unwrap());
    assert_eq!(files.map(|file| file.properties().cell_tombstones).sum::<u64>(), 1, "a burial");
    assert!(!view.may_have_wide_tombstones());
    assert_eq!(ruled.cells(), [2_000]);
    ruled.apply(vec![delete(2_000, 3_000)]);
    block_on(tablet.flush()).unwrap();
    assert!(tablet.hold().may_have_wide_tombstones());
    assert!(ruled.cells().is_empty());
}

#[test]
fn a_look_by_rules_that_have_changed_meanwhile_does_not_count() {
    let ruled = Ruled::kept(GcRule::MaxVersions(2));
    ruled.put(&[1_000, 2_000, 3_000]);
    block_on(ruled.rig.tablet.flush()).unwrap();
    let look = ruled.rig.tablet.claim_to_look().unwrap();
    let family =
        FamilyOptions { gc: Some(GcRule::MaxVersions(1)), aggregate: None, gc_since_micros: 0 };
    let schema = TabletSchema { families: [(FamilyId(1), family)].into() };
    ruled.rig.tablet.set_schema(Arc::new(schema));
    look.run().unwrap();
    let again = ruled.rig.tablet.claim_to_look().expect("the file is looked at by the new rules");
    again.run().unwrap();
    assert_eq!(ruled.cells(), [3_000]);
    assert!(ruled.rig.tablet.claim_to_look().is_none(), "all was looked at");
}

#[test]
fn a_walk_in_which_a_stream_is_disabled_and_enabled_again_leaves_no_row_out() {
    for nth in 0_u64.. {
        let memory = Arc::new(MemoryFiles::new());
        let files = Arc::new(FaultFiles::new(Arc::clone(&memory) as Arc<dyn Files>));
        let seen = Arc::clone(&files) as Arc<dyn Files>;
        let ruled = Ruled::over(GcRule::MaxVersions(1), memory, seen);
        let tablet = &ruled.rig.tablet;
        tablet.keep_changes(Some(DAY));
        ruled.put(&[1_000, 2_000]);
        block_on(tablet.flush()).unwrap();
        let look = tablet.claim_to_look().unwrap();
        let (of, reads) = (Arc::downgrade(tablet), Arc::new(AtomicU64::new(0)));
        let counted = Arc::clone(&reads);
        files.before_read(Some(Arc::new(move |_| {
            if counted.fetch_add(1, Ordering::Relaxed) == nth {
                of.upgrade().unwrap().keep_changes(None);
            }
        })));
        look.run().unwrap();
        files.before_read(None);
        tablet.keep_changes(Some(DAY));
        if let Some(look) = tablet.claim_to_look() {
            look.run().unwrap();
        }
        assert_eq!(ruled.cells(), [2_000], "disabled before read {nth}");
        if reads.load(Ordering::Relaxed) <= nth {
            assert!(nth > 1, "the walk reads the file, and then the row");
            break;
        }
    }
}
