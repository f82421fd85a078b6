use std::collections::BTreeMap;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::FutureExt as _;

use super::*;
use crate::db::SyncMode;
use crate::io::{CrashMode, Env, Fault, FaultOp, MemoryFiles, SeededRng};
use crate::log::record::FILE_HEADER_BYTES;
use crate::log::testing::{BusyClock, SyncGate, Watch, World, append, batch, dir, encoded_large};
use crate::log::worker::MARKER_AFTER_IDLE_MICROS;
use crate::relay;
use crate::testing::until;

mod held;
mod removal;

fn options(sync: SyncMode, segment_bytes: u64) -> LogOptions {
    LogOptions { sync, segment_bytes, lay_out_bytes: 0, ..LogOptions::default() }
}

/// Without zeros laid out, so that a file is no longer than what was written to it.
fn always() -> LogOptions {
    LogOptions { lay_out_bytes: 0, ..LogOptions::default() }
}

fn start(log: &Arc<LocalLog>) -> Arc<Watch> {
    let watch = Arc::new(Watch::default());
    log.start(Arc::clone(&watch) as Arc<dyn LogObserver>).unwrap();
    watch
}

fn file(id: u64) -> PathBuf {
    dir().join(segment_name(id))
}

fn until_the_thread_waits(log: &LocalLog) {
    until("the thread waits for a call", || lock(&log.shared.queue).awaited.is_some());
}

#[test]
fn what_was_appended_is_replayed_in_order_over_several_lives() {
    let world = World::new();
    for life in 0..3 {
        let opened = world.open(always()).unwrap();
        let expected: Vec<_> = (1..=life * 10).map(|n| (7, n, batch(n))).collect();
        assert_eq!(opened.records, expected);
        assert_eq!(opened.summary.records, life * 10);
        assert_eq!(opened.summary.max_seq, life * 10);
        assert_eq!(opened.summary.torn, None);
        let watch = start(&opened.log);
        for n in life * 10 + 1..=life * 10 + 10 {
            opened.log.append(append(7, n)).unwrap();
        }
        watch.wait(life * 10 + 10).unwrap();
        opened.log.close().unwrap();
        assert_eq!(opened.log.append(append(7, 99)).unwrap_err().kind(), ErrorKind::Closed);
    }
}

#[test]
fn what_is_queued_before_the_thread_is_called_is_one_group() {
    let world = World::new();
    let opened = world.open(always()).unwrap();
    let watch = start(&opened.log);
    for round in 0..10 {
        until_the_thread_waits(&opened.log);
        let groups = opened.log.figures().groups;
        for n in 1..=30 {
            let mut one = std::iter::once(append(1, round * 30 + n));
            assert_eq!(opened.log.append_all(&mut one, false).unwrap(), Owes::Call);
        }
        for _ in 1..=30 {
            opened.log.write_queued(false);
        }
        watch.wait(round * 30 + 30).unwrap();
        assert_eq!(opened.log.figures().groups - groups, 1);
    }
}

#[test]
fn a_thread_with_a_relay_calls_the_log_once_for_all_that_its_tasks_queue() {
    let world = World::new();
    let opened = world.open(always()).unwrap();
    let watch = start(&opened.log);
    let log: Arc<dyn CommitLog> = opened.log.clone();
    let mut relay = Box::pin(relay::serve());
    let mut turn = || assert!(relay.as_mut().now_or_never().is_none());
    turn();
    until_the_thread_waits(&opened.log);
    for n in 1..=30 {
        let mut one = std::iter::once(append(1, n));
        assert_eq!(log.append_all(&mut one, false).unwrap(), Owes::Call);
        relay::call(&log);
    }
    assert_eq!(lock(&opened.log.shared.queue).awaited, Some(1), "nobody has called it");
    turn();
    watch.wait(30).unwrap();
    assert_eq!(log.figures().groups, 1);
    // Without one it is called at once.
    drop(relay);
    until_the_thread_waits(&opened.log);
    log.append_all(&mut std::iter::once(append(1, 31)), false).unwrap();
    relay::call(&log);
    watch.wait(31).unwrap();
}

#[test]
fn what_queues_up_during_a_sync_shares_the_next_one() {
    let world = World::new();
    let opened = world.open(always()).unwrap();
    let watch = start(&opened.log);
    let gate = Arc::new(SyncGate::default());
    let _guard = gate.close(&world.files);
    let before = world.files.count(FaultOp::Sync);
    opened.log.append(append(1, 1)).unwrap();
    gate.wait_arrived(1);
    for n in 2..=1000 {
        opened.log.append(append(1, n)).unwrap();
    }
    assert_eq!(watch.published(), 0, "nothing is published before its sync returns");
    gate.open();
    watch.wait(1000).unwrap();
    assert_eq!(world.files.count(FaultOp::Sync) - before, 2);
}

#[test]
fn what_a_failed_sync_has_lost_is_not_taken_from_the_page_cache() {
    let world = World::new();
    let opened = world.open(always()).unwrap();
    let watch = start(&opened.log);
    for n in 1..=3 {
        opened.log.append(append(1, n)).unwrap();
    }
    watch.wait(3).unwrap();
    world.files.inject(Fault::new(FaultOp::Sync).sticky());
    opened.log.append(append(1, 4)).unwrap();
    watch.wait(4).unwrap_err();
    drop(opened);
    world.memory.lose_unsynced(&file(1)).unwrap();
    world.files.heal();

    // The next process, on the same machine.
    let opened = world.open(always()).unwrap();
    assert_eq!(opened.seqs(), [1, 2, 3]);
    let watch = start(&opened.log);
    opened.log.append(append(1, 5)).unwrap();
    watch.wait(5).unwrap();
    drop(opened);

    world.memory.crash(CrashMode::Strict, &SeededRng::new(1));
    assert_eq!(world.open(always()).unwrap().seqs(), [1, 2, 3, 5]);
}

#[test]
fn a_full_segment_is_synced_and_followed_and_all_of_them_replay() {
    let world = World::new();
    let opened = world.open(options(SyncMode::Never, 400)).unwrap();
    let watch = start(&opened.log);
    for n in 1..=40 {
        opened.log.append(append(n % 3, n)).unwrap();
    }
    watch.wait(40).unwrap();
    let segments = opened.log.segments();
    assert!(segments.len() > 5, "{segments:?}");
    let (active, sealed) = segments.split_last().unwrap();
    assert!(!active.sealed);
    let mut last_seqs: BTreeMap<u64, Seq> = BTreeMap::new();
    for segment in sealed {
        assert!(segment.sealed && segment.bytes <= 400);
        let contents = world.memory.contents(&file(segment.id)).unwrap();
        assert_eq!(contents.len() as u64, segment.bytes);
        for (tablet, seq) in &segment.tablets {
            assert!(last_seqs.insert(*tablet, *seq).is_none_or(|before| before < *seq));
        }
    }
    // Nothing was synced for its own sake, but whatever is sealed survives.
    world.memory.crash(CrashMode::Strict, &SeededRng::new(1));
    let again = World::on(world.memory.clone()).open(always()).unwrap();
    let survived = *last_seqs.values().max().unwrap();
    assert_eq!(again.seqs(), (1..=survived).collect::<Vec<_>>());
    let replayed: Vec<_> = again.log.segments().iter().map(|s| s.tablets.clone()).collect();
    assert_eq!(
        replayed[..sealed.len()],
        sealed.iter().map(|s| s.tablets.clone()).collect::<Vec<_>>()
    );
}

#[test]
fn a_batch_larger_than_a_segment_gets_one_of_its_own() {
    let world = World::new();
    let opened = world.open(options(SyncMode::Always, 10)).unwrap();
    let watch = start(&opened.log);
    for n in 1..=3 {
        opened.log.append(append(1, n)).unwrap();
    }
    watch.wait(3).unwrap();
    assert_eq!(opened.log.segments().len(), 3);
    opened.log.close().unwrap();
    assert_eq!(world.open(always()).unwrap().seqs(), [1, 2, 3]);
}

#[test]
fn rotation_on_request_makes_a_segment_removable() {
    let world = World::new();
    let opened = world.open(always()).unwrap();
    assert_eq!(opened.log.rotate().unwrap_err().kind(), ErrorKind::InvalidArgument);
    let watch = start(&opened.log);
    opened.log.rotate().unwrap();
    assert_eq!(opened.log.segments().len(), 1, "an empty segment is not worth a new one");
    opened.log.append(append(5, 1)).unwrap();
    opened.log.rotate().unwrap();
    opened.log.append(append(5, 2)).unwrap();
    watch.wait(2).unwrap();
    let segments = opened.log.segments();
    assert_eq!(segments.len(), 2);
    assert_eq!(segments[0].tablets, HashMap::from([(5, 1)]));
    let kind = |id| opened.log.remove_segment(id).unwrap_err().kind();
    assert_eq!(kind(segments[1].id), ErrorKind::InvalidArgument);
    assert_eq!(kind(99), ErrorKind::NotFound);
    opened.log.remove_segment(segments[0].id).unwrap();
    assert!(!world.memory.exists(&file(segments[0].id)).unwrap());
    opened.log.close().unwrap();
    assert_eq!(world.open(always()).unwrap().seqs(), [2], "a missing predecessor is no damage");
}

#[test]
fn lists_of_segments_share_what_they_list_and_stay_as_they_were() {
    let world = World::new();
    let opened = world.open(always()).unwrap();
    let watch = start(&opened.log);
    opened.log.append(append(5, 1)).unwrap();
    opened.log.rotate().unwrap();
    opened.log.append(append(5, 2)).unwrap();
    watch.wait(2).unwrap();
    let before = opened.log.segments();
    opened.log.append(append(5, 3)).unwrap();
    watch.wait(3).unwrap();
    let after = opened.log.segments();
    assert!(Arc::ptr_eq(&before[0], &after[0]));
    assert_eq!(before[1].tablets, HashMap::from([(5, 2)]));
    assert_eq!(after[1].tablets, HashMap::from([(5, 3)]));
    assert!(Arc::ptr_eq(&after[1], &opened.log.segments()[1]));
}

#[test]
fn an_idle_log_writes_one_marker_and_no_more() {
    let world = World::new();
    let opened = world.open(always()).unwrap();
    let watch = start(&opened.log);
    let len = || world.memory.contents(&file(1)).unwrap().len();
    let opening = len();
    world.clock.advance_micros(10 * MARKER_AFTER_IDLE_MICROS);
    opened.log.poke();
    opened.log.append(append(1, 1)).unwrap();
    watch.wait(1).unwrap();
    let with_batch = len();
    assert!(with_batch > opening);
    world.clock.advance_micros(MARKER_AFTER_IDLE_MICROS);
    until("a marker is written", || {
        opened.log.poke();
        len() != with_batch
    });
    let with_marker = len();
    assert_eq!(with_marker, with_batch + 24 + 1);
    world.clock.advance_micros(10 * MARKER_AFTER_IDLE_MICROS);
    opened.log.poke();
    opened.log.append(append(1, 2)).unwrap();
    watch.wait(2).unwrap();
    assert_eq!(len() - with_marker, with_batch - opening, "one marker for one idle time");

    // The marker vouches for the batch before it.
    let mut bytes = world.memory.contents(&file(1)).unwrap();
    bytes.truncate(with_marker);
    bytes[opening + 30] ^= 1;
    let damaged = World::on(MemoryFiles::new());
    damaged.memory.create_dir_all(dir()).unwrap();
    damaged.memory.put_contents(&file(1), bytes);
    assert_eq!(damaged.open(always()).err().unwrap().kind(), ErrorKind::Corruption);
}

#[test]
fn a_write_behind_a_sync_that_was_asked_for_is_not_synced_for_the_marker_that_was_due() {
    let world = World::new();
    let opened = world.open(options(SyncMode::Never, 1 << 20)).unwrap();
    let watch = start(&opened.log);
    opened.log.append(append(1, 1)).unwrap();
    watch.wait(1).unwrap();
    opened.log.sync(1).unwrap();
    until_the_thread_waits(&opened.log);
    // By its caller, while the thread sleeps until the marker is due.
    let owes = opened.log.append_all(&mut std::iter::once(append(1, 2)), true).unwrap();
    if owes != Owes::Nothing {
        opened.log.write_queued(true);
    }
    watch.wait(2).unwrap();
    let syncs = world.files.count(FaultOp::Sync);
    world.clock.advance_micros(2 * MARKER_AFTER_IDLE_MICROS);
    lock(&opened.log.shared.queue).awaited = None;
    opened.log.poke();
    until_the_thread_waits(&opened.log);
    assert_eq!(world.files.count(FaultOp::Sync), syncs);
}

#[test]
fn with_an_interval_a_write_is_published_at_once_and_synced_in_time() {
    let world = World::new();
    let opened = world.open(options(SyncMode::IntervalMs(50), 1 << 20)).unwrap();
    let watch = start(&opened.log);
    let before = world.files.count(FaultOp::Sync);
    opened.log.append(append(1, 1)).unwrap();
    watch.wait(1).unwrap();
    assert_eq!(world.files.count(FaultOp::Sync), before);
    world.clock.advance_micros(50_000);
    let until_syncs = |syncs| {
        until("the interval is over", || {
            opened.log.poke();
            world.files.count(FaultOp::Sync) >= syncs
        });
    };
    until_syncs(before + 1);
    // Under load, when the timer gets no turn.
    opened.log.append(append(1, 2)).unwrap();
    watch.wait(2).unwrap();
    assert_eq!(world.files.count(FaultOp::Sync), before + 1);
    world.clock.advance_micros(50_000);
    opened.log.append(append(1, 3)).unwrap();
    watch.wait(3).unwrap();
    until_syncs(before + 2);
}

#[test]
fn a_failed_write_or_sync_is_final() {
    for (op, kind, later) in [
        (FaultOp::Append, ErrorKind::Io, ErrorKind::ReadOnly),
        (FaultOp::Sync, ErrorKind::Io, ErrorKind::ReadOnly),
        (FaultOp::Append, ErrorKind::NoSpace, ErrorKind::ReadOnly),
    ] {
        let world = World::new();
        let opened = world.open(always()).unwrap();
        let watch = start(&opened.log);
        opened.log.append(append(1, 1)).unwrap();
        watch.wait(1).unwrap();
        world.files.inject(Fault::new(op).kind(kind));
        opened.log.append(append(1, 2)).unwrap();
        assert_eq!(watch.wait(2).unwrap_err().kind(), kind);
        let error = opened.log.append(append(1, 3)).unwrap_err();
        assert_eq!(error.kind(), later);
        assert!(error.message().contains("injected fault"), "{error}");
        assert_eq!(opened.log.rotate().unwrap_err().kind(), later);
        assert_eq!(opened.log.close().unwrap_err().kind(), later);
        assert_eq!(watch.published(), 1);
        let again = World::on(world.memory.clone()).open(always()).unwrap();
        assert_eq!(again.seqs()[0], 1, "what was published is there");
    }
}

/// Tries to write when it hears of a failure.
#[derive(Debug)]
struct Bystander {
    watch: Arc<Watch>,
    log: Weak<LocalLog>,
    could_write: AtomicBool,
}

impl LogObserver for Bystander {
    fn published(&self, through: Seq) {
        LogObserver::published(self.watch.as_ref(), through);
    }

    fn lacks_room(&self, _error: &Error) {}

    fn failed(&self, error: &Error) {
        let could_write = self.log.upgrade().is_some_and(|log| log.worker.try_lock().is_ok());
        self.could_write.store(could_write, Ordering::SeqCst);
        self.watch.failed(error);
    }
}

/// Looks for what is published among the segments, as readers of changes do.
#[derive(Debug, Default)]
struct Seeker {
    watch: Watch,
    log: OnceLock<Weak<LocalLog>>,
    missed: AtomicBool,
}

impl LogObserver for Seeker {
    fn published(&self, through: Seq) {
        let segments = self.log.get().and_then(Weak::upgrade).map(|log| log.segments());
        let last = segments.iter().flatten().map(|segment| segment.last_seq()).max();
        if last.is_some_and(|last| last < through) {
            self.missed.store(true, Ordering::SeqCst);
        }
        LogObserver::published(&self.watch, through);
    }

    fn lacks_room(&self, _error: &Error) {}

    fn failed(&self, error: &Error) {
        self.watch.failed(error);
    }
}

#[test]
fn what_is_published_is_in_the_list_of_segments() {
    for left in [None, Some(300)] {
        let world = World::new();
        world.files.set_quota_bytes(Some(1 << 20));
        let opened = world.open(options(SyncMode::Always, 200)).unwrap();
        let seeker = Arc::new(Seeker::default());
        seeker.log.set(Arc::downgrade(&opened.log)).unwrap();
        opened.log.start(Arc::clone(&seeker) as Arc<dyn LogObserver>).unwrap();
        world.files.set_quota_bytes(left);
        let owes = opened.log.append_all(&mut (1..=40).map(|n| append(7, n)), false).unwrap();
        if owes != Owes::Nothing {
            opened.log.write_queued(false);
        }
        if left.is_some() {
            until("the log lacks room", || opened.log.lacks_room());
            world.files.set_quota_bytes(None);
        }
        seeker.watch.wait(40).unwrap();
        assert!(!seeker.missed.load(Ordering::SeqCst), "{left:?}");
    }
}

#[test]
fn until_everybody_knows_of_a_failure_nobody_writes_behind_it() {
    // A segment that cannot be begun leaves one that could still be written to.
    for (sync, here) in
        [(SyncMode::Always, false), (SyncMode::Never, false), (SyncMode::Never, true)]
    {
        let world = World::new();
        let segment_bytes = if here { 1 << 20 } else { 100 };
        let opened = world.open(options(sync, segment_bytes)).unwrap();
        let watch = Arc::new(Watch::default());
        let bystander = Arc::new(Bystander {
            watch: Arc::clone(&watch),
            log: Arc::downgrade(&opened.log),
            could_write: true.into(),
        });
        opened.log.start(Arc::clone(&bystander) as Arc<dyn LogObserver>).unwrap();
        opened.log.append(append(1, 1)).unwrap();
        watch.wait(1).unwrap();
        let op = if here { FaultOp::Append } else { FaultOp::Create };
        world.files.inject(Fault::new(op));
        let owes = opened.log.append_all(&mut std::iter::once(append(1, 2)), here).unwrap();
        if owes != Owes::Nothing {
            opened.log.write_queued(here);
        }
        watch.wait(2).unwrap_err();
        assert!(!bystander.could_write.load(Ordering::SeqCst), "{sync:?}");
    }
}

#[test]
fn a_failed_rotation_is_final_too() {
    for op in [FaultOp::Create, FaultOp::SyncDir] {
        let world = World::new();
        let opened = world.open(options(SyncMode::Always, 100)).unwrap();
        let watch = start(&opened.log);
        opened.log.append(append(1, 1)).unwrap();
        watch.wait(1).unwrap();
        world.files.inject(Fault::new(op));
        opened.log.append(append(1, 2)).unwrap();
        assert!(watch.wait(2).is_err());
        assert_eq!(world.open(always()).unwrap().seqs(), [1]);
    }
}

#[test]
fn an_error_at_any_operation_of_opening_leaves_a_log_that_opens_later() {
    let world = World::new();
    let opened = world.open(options(SyncMode::Always, 200)).unwrap();
    let watch = start(&opened.log);
    for n in 1..=6 {
        opened.log.append(append(1, n)).unwrap();
    }
    watch.wait(6).unwrap();
    let image = world.memory.crashed_copy(CrashMode::Strict, &SeededRng::new(1));
    for nth in 1.. {
        let world = World::on(image.crashed_copy(CrashMode::Strict, &SeededRng::new(1)));
        world.files.inject(Fault::new(FaultOp::Any).nth(nth));
        let outcome = world.open(always()).map(|o| o.seqs());
        let failed = outcome.is_err();
        world.files.heal();
        world.memory.crash(CrashMode::Torn, &SeededRng::new(nth));
        assert_eq!(world.open(always()).unwrap().seqs(), [1, 2, 3, 4, 5, 6], "fault {nth}");
        if !failed && nth > 60 {
            break;
        }
    }
}

#[test]
fn after_any_crash_what_was_published_is_there_and_the_log_opens_again() {
    for seed in 0..120 {
        let world = World::new();
        let mut expected: Seq = 0;
        for life in 0..3 {
            let world = World::on(world.memory.clone());
            let opened = world.open(options(SyncMode::Always, 600)).unwrap();
            let seqs = opened.seqs();
            assert!(seqs.len() as u64 >= expected, "seed {seed}, life {life}");
            assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>());
            let first = seqs.len() as u64 + 1;
            let watch = start(&opened.log);
            for n in first..first + 12 {
                opened.log.append(append(1, n)).unwrap();
                if n == first + (seed + life) % 12 {
                    watch.wait(n).unwrap();
                }
            }
            // The crash comes while the log's thread is anywhere; what is published now is
            // promised, and so is what was replayed.
            expected = watch.published().max(first - 1);
            world.memory.crash(CrashMode::Torn, &SeededRng::new(seed * 10 + life));
        }
    }
}

/// A log of one crashed life: batches 1 to 3 in synced groups of their own, batch 4 written but not synced.
fn image_with_a_tail() -> (Vec<u8>, usize) {
    let world = World::new();
    let opened = world.open(always()).unwrap();
    let watch = start(&opened.log);
    for n in 1..=3 {
        opened.log.append(append(1, n)).unwrap();
        watch.wait(n).unwrap();
    }
    let promised = world.memory.contents(&file(1)).unwrap().len();
    let gate = Arc::new(SyncGate::default());
    let _guard = gate.close(&world.files);
    opened.log.append(append(1, 4)).unwrap();
    gate.wait_arrived(1);
    let bytes = world.memory.contents(&file(1)).unwrap();
    gate.open();
    (bytes, promised)
}

fn open_image(bytes: Vec<u8>) -> Result<Vec<Seq>> {
    let world = World::new();
    world.memory.create_dir_all(dir()).unwrap();
    world.memory.put_contents(&file(1), bytes);
    let opened = world.open(always())?;
    let seqs = opened.seqs();
    let torn = opened.summary.torn.clone();
    drop(opened);
    let again = world.open(always()).expect("a log that was opened opens again");
    assert_eq!(again.seqs(), seqs, "after {torn:?}");
    assert_eq!(again.summary.torn, None, "a torn tail is cut once");
    Ok(seqs)
}

#[test]
fn every_flipped_byte_is_refused_or_lies_in_the_tail_that_was_never_promised() {
    let (bytes, promised) = image_with_a_tail();
    assert_eq!(open_image(bytes.clone()).unwrap(), [1, 2, 3, 4]);
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x41;
        match open_image(damaged) {
            Ok(seqs) => {
                assert!(at >= promised, "byte {at}: {seqs:?}");
                assert_eq!(seqs, [1, 2, 3]);
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corruption);
                assert!(at < promised, "byte {at}: {error}");
                assert!(error.message().contains(&segment_name(1)), "{error}");
            }
        }
    }
}

#[test]
fn a_tail_cut_anywhere_keeps_every_whole_batch_before_the_cut() {
    let (bytes, promised) = image_with_a_tail();
    for at in 0..bytes.len() {
        let seqs = open_image(bytes[..at].to_vec()).unwrap();
        assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>());
        assert_eq!(seqs.len() >= 3, at >= promised);
    }
}

/// Two sealed segments and an active one, after a clean end.
fn three_segments() -> World {
    let world = World::new();
    let opened = world.open(always()).unwrap();
    start(&opened.log);
    for n in 1..=3 {
        opened.log.append(append(1, n)).unwrap();
        if n < 3 {
            opened.log.rotate().unwrap();
        }
    }
    opened.log.close().unwrap();
    world
}

#[test]
fn a_sealed_segment_that_is_cut_or_changed_anywhere_is_refused() {
    let world = three_segments();
    assert_eq!(world.open(always()).unwrap().seqs(), [1, 2, 3]);
    let bytes = world.memory.contents(&file(1)).unwrap();
    let damage = |change: Vec<u8>| {
        let copy = World::on(world.memory.crashed_copy(CrashMode::Strict, &SeededRng::new(1)));
        copy.memory.put_contents(&file(1), change);
        copy.open(always()).err()
    };
    assert!(damage(bytes.clone()).is_none());
    for at in 0..bytes.len() {
        let cut = damage(bytes[..at].to_vec()).expect("the successor knows the length");
        assert_eq!(cut.kind(), ErrorKind::Corruption, "cut at {at}");
        assert!(cut.message().contains("tepui repair"), "{cut}");
        let mut flipped = bytes.clone();
        flipped[at] ^= 4;
        assert_eq!(damage(flipped).expect("flipped").kind(), ErrorKind::Corruption, "flip {at}");
    }
}

#[test]
fn a_segment_whose_creation_a_crash_interrupted_is_removed() {
    let world = three_segments();
    let other = MemoryFiles::new();
    other.create_dir_all(dir()).unwrap();
    create_segment(&other, dir(), 4, Some(Predecessor { id: 3, bytes: 1 }), 0).unwrap();
    let bytes = other.contents(&file(4)).unwrap();
    assert_eq!(bytes.len() as u64, FILE_HEADER_BYTES + 24 + 17);
    for len in 0..bytes.len() {
        let copy = World::on(world.memory.crashed_copy(CrashMode::Strict, &SeededRng::new(1)));
        copy.memory.put_contents(&file(4), bytes[..len].to_vec());
        let opened = copy.open(always()).unwrap();
        assert_eq!(opened.seqs(), [1, 2, 3]);
        assert!(!copy.memory.exists(&file(4)).unwrap());
        assert_eq!(opened.log.segments().last().unwrap().id, 5);
    }
}

#[test]
fn files_of_others_in_the_directory_are_left_alone() {
    let world = three_segments();
    world.memory.put_contents(&dir().join("notes.txt"), b"mine".to_vec());
    assert_eq!(world.open(always()).unwrap().seqs(), [1, 2, 3]);
    assert_eq!(world.memory.contents(&dir().join("notes.txt")).unwrap(), b"mine");
}

#[test]
fn an_error_of_the_replayer_ends_the_opening_and_changes_nothing() {
    let world = three_segments();
    let before = world.memory.list(dir()).unwrap();
    let mut refuse = |_, seq, _| match seq {
        2 => Err(Error::new(ErrorKind::Overloaded, "enough")),
        _ => Ok(()),
    };
    let outcome = LocalLog::open(&world.env(), dir(), always(), &mut refuse, &mut |_| {});
    assert_eq!(outcome.err().unwrap().kind(), ErrorKind::Overloaded);
    assert_eq!(world.memory.list(dir()).unwrap(), before);
}

#[test]
fn progress_ends_with_all_bytes_done() {
    let world = three_segments();
    let mut last = None;
    let mut progress = |p| last = Some(p);
    LocalLog::open(&world.env(), dir(), always(), &mut |_, _, _| Ok(()), &mut progress).unwrap();
    let ReplayProgress { bytes_done, bytes_total } = last.unwrap();
    assert!(bytes_done == bytes_total && bytes_total > 0);
}

#[test]
fn the_log_works_on_real_files() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("log");
    let world = World::new();
    let env = Env { files: Arc::new(crate::io::LocalFiles::default()), ..world.env() };
    for life in 0..3 {
        let mut seqs = Vec::new();
        let mut on_record = |_, seq, _| {
            seqs.push(seq);
            Ok(())
        };
        let opened = LocalLog::open(&env, &dir, always(), &mut on_record, &mut |_| {});
        let log = Arc::new(opened.unwrap().0);
        assert_eq!(seqs, (1..=life * 5).collect::<Vec<_>>());
        let watch = start(&log);
        for n in life * 5 + 1..=life * 5 + 5 {
            log.append(append(1, n)).unwrap();
        }
        watch.wait(life * 5 + 5).unwrap();
    }
}

/// Batches on zeros that were laid out, each synced by itself.
fn on_zeros(world: &World, batches: u64) -> Arc<LocalLog> {
    let laid_out = LogOptions { lay_out_bytes: 4096, ..LogOptions::default() };
    let opened = world.open(laid_out).unwrap();
    let watch = start(&opened.log);
    for n in 1..=batches {
        opened.log.append(append(1, n)).unwrap();
        watch.wait(n).unwrap();
    }
    opened.log
}

#[test]
fn most_syncs_of_small_groups_find_the_file_as_long_as_it_was() {
    let world = World::new();
    let mut lengths = Vec::new();
    let laid_out = LogOptions { lay_out_bytes: 4096, ..LogOptions::default() };
    let opened = world.open(laid_out).unwrap();
    let watch = start(&opened.log);
    for n in 1..=200 {
        opened.log.append(append(1, n)).unwrap();
        watch.wait(n).unwrap();
        lengths.push(world.memory.contents(&file(1)).unwrap().len());
    }
    lengths.dedup();
    assert!((3..8).contains(&lengths.len()), "{lengths:?}");
    let figures = opened.log.figures();
    assert_eq!(figures.laid_out_bytes, 4096 * lengths.len() as u64);
    assert_eq!((figures.batches, figures.mutations, figures.groups), (200, 200, 200));
    // A large group goes to the end of the file as it is.
    let mut large = append(1, 201);
    large.batch = crate::log::encode_batch(1, &large_batch(100_000));
    large.batch.set_first_seq(201);
    opened.log.append(large).unwrap();
    watch.wait(201).unwrap();
    assert_eq!(opened.log.figures().laid_out_bytes, figures.laid_out_bytes);
    opened.log.close().unwrap();
    let segments = opened.log.segments();
    let len = world.memory.contents(&file(1)).unwrap().len() as u64;
    assert_eq!(len, segments.last().unwrap().bytes, "a sealed segment keeps no zeros");
    assert_eq!(world.open(always()).unwrap().seqs(), (1..=201).collect::<Vec<_>>());
}

fn large_batch(bytes: usize) -> RowBatch {
    let mut batch = batch(1);
    for mutation in &mut batch.mutations {
        if let crate::cell::Mutation::Put { value, .. } = mutation {
            *value = vec![1; bytes].into();
        }
    }
    batch
}

#[test]
fn a_crash_on_zeros_that_were_laid_out_keeps_every_synced_batch_and_is_no_damage() {
    for seed in 0..300 {
        let world = World::new();
        let batches = 1 + seed % 60;
        let log = on_zeros(&world, batches);
        // Some more whose sync does not return before the power is gone.
        let gate = Arc::new(SyncGate::default());
        let guard = gate.close(&world.files);
        log.append(append(1, batches + 1)).unwrap();
        gate.wait_arrived(1);
        let mode = if seed % 3 == 0 { CrashMode::Strict } else { CrashMode::Torn };
        let copy = World::on(world.memory.crashed_copy(mode, &SeededRng::new(seed)));
        gate.open();
        drop(guard);
        let opened = copy.open(always()).unwrap();
        let seqs = opened.seqs();
        assert!(seqs.len() as u64 >= batches, "seed {seed}: {} of {batches}", seqs.len());
        assert!(seqs.len() as u64 <= batches + 1);
        assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>());
        // What was torn is gone for good: the next life reads the same.
        drop(opened);
        assert_eq!(copy.open(always()).unwrap().seqs(), seqs);
    }
}

#[test]
fn damage_to_a_synced_batch_on_laid_out_zeros_is_refused() {
    let world = World::new();
    let log = on_zeros(&world, 30);
    let bytes = world.memory.contents(&file(1)).unwrap();
    let last = bytes.iter().rposition(|b| *b != 0).unwrap();
    drop(log);
    // The last batch has nothing behind it that vouches for it; all before it have.
    for at in 60..last - 120 {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        let copy = World::on(MemoryFiles::new());
        copy.memory.create_dir_all(dir()).unwrap();
        copy.memory.put_contents(&file(1), damaged);
        assert_eq!(copy.open(always()).err().unwrap().kind(), ErrorKind::Corruption, "byte {at}");
    }
}

#[test]
fn without_space_for_zeros_writes_go_on_as_long_as_they_fit() {
    let world = World::new();
    world.files.inject(Fault::new(FaultOp::LayOut).kind(ErrorKind::NoSpace).sticky());
    let log = on_zeros(&world, 20);
    log.close().unwrap();
    world.files.heal();
    assert_eq!(world.open(always()).unwrap().seqs(), (1..=20).collect::<Vec<_>>());
    // Any other failure is one of the log.
    let world = World::new();
    world.files.inject(Fault::new(FaultOp::LayOut));
    let opened = world.open(LogOptions::default()).unwrap();
    let watch = start(&opened.log);
    opened.log.append(append(1, 1)).unwrap();
    assert!(watch.wait(1).is_err());
    assert_eq!(opened.log.append(append(1, 2)).unwrap_err().kind(), ErrorKind::ReadOnly);
}

#[test]
fn a_group_is_written_though_writers_that_are_expected_do_not_come_where_processors_are_scarce() {
    let world = World::new();
    let env = Env { clock: Arc::new(BusyClock::default()), ..world.env() };
    let (log, _) =
        LocalLog::open(&env, dir(), always(), &mut |_, _, _| Ok(()), &mut |_| {}).unwrap();
    let log = Arc::new(log);
    let watch = start(&log);
    let mut last = 0;
    for _ in 0..20 {
        let many = last + 1..=last + 10;
        log.append_all(&mut many.map(|n| append(1, n)), false).unwrap();
        log.write_queued(false);
        watch.wait(last + 10).unwrap();
        for n in last + 11..=last + 13 {
            log.append(append(1, n)).unwrap();
            watch.wait(n).unwrap();
        }
        log.rotate().unwrap();
        last += 13;
    }
    log.close().unwrap();
}
