use std::sync::atomic::AtomicBool;

use futures::FutureExt;
use futures::future::join_all;

use super::*;
use crate::db::SyncMode;
use crate::error::ErrorKind;
use crate::io::{CrashMode, Fault, FaultOp, Rng, SeededRng};
use crate::log::LogOptions;
use crate::log::testing::{SyncGate, World, encoded, encoded_large};
use crate::testing::until;

fn pipeline(world: &World) -> CommitPipeline {
    pipeline_with(world, SyncMode::Always)
}

fn pipeline_with(world: &World, sync: SyncMode) -> CommitPipeline {
    let options = LogOptions { sync, segment_bytes: 1 << 20, ..LogOptions::default() };
    let opened = world.open(options).unwrap();
    let hlc = Hlc::new(Arc::new(world.clock.clone()), opened.summary.max_seq);
    CommitPipeline::new(opened.log, hlc, opened.summary.max_seq).unwrap()
}

async fn begin(pipeline: &CommitPipeline, n: u64, seqs: u32) -> Commit {
    let batch = encoded(1, n);
    let permit = pipeline.admit(batch.len()).await.unwrap();
    pipeline.begin(batch, seqs, permit).unwrap()
}

/// The answer of a commit that somebody waits for, and that is not there yet.
fn awaited(commit: Commit) -> CommitDone {
    let mut done = commit.applied();
    assert!((&mut done).now_or_never().is_none());
    done
}

#[tokio::test]
async fn a_commit_is_visible_when_it_is_answered() {
    let world = World::new();
    let pipeline = pipeline(&world);
    let first = begin(&pipeline, 1, 3).await;
    assert_eq!(first.last_seq(), first.first_seq() + 2);
    let last = first.last_seq();
    assert_eq!(first.applied().await.unwrap(), last);
    assert_eq!(pipeline.visible(), last);
    let second = begin(&pipeline, 2, 1).await;
    assert_eq!(second.first_seq(), last + 1);
    pipeline.wait_visible(last).await.unwrap();
    assert!(pipeline.wait_visible(second.last_seq()).now_or_never().is_none());
    drop(second);
}

#[tokio::test]
async fn nothing_is_visible_before_its_sync_returns() {
    let world = World::new();
    let pipeline = pipeline(&world);
    let floor = pipeline.visible();
    let gate = Arc::new(SyncGate::default());
    let _guard = gate.close(&world.files);
    let done = awaited(begin(&pipeline, 1, 1).await);
    gate.wait_arrived(1);
    assert_eq!(pipeline.visible(), floor);
    gate.open();
    let seq = done.await.unwrap();
    assert_eq!(pipeline.visible(), seq);
}

#[tokio::test]
async fn commits_that_wait_together_share_a_sync_and_become_visible_in_order() {
    let world = World::new();
    let pipeline = pipeline(&world);
    let gate = Arc::new(SyncGate::default());
    let _guard = gate.close(&world.files);
    let before = world.files.count(FaultOp::Sync);
    let first = awaited(begin(&pipeline, 0, 1).await);
    gate.wait_arrived(1);
    let mut waiting = Vec::new();
    for n in 1..500 {
        waiting.push(begin(&pipeline, n, 2).await.applied());
    }
    gate.open();
    let mut last = first.await.unwrap();
    for done in waiting {
        let seq = done.await.unwrap();
        assert!(seq == last + 2 && pipeline.visible() >= seq);
        last = seq;
    }
    assert_eq!(world.files.count(FaultOp::Sync) - before, 2);
}

#[tokio::test]
async fn a_later_commit_waits_for_an_earlier_one_that_is_not_applied() {
    let world = World::new();
    let pipeline = pipeline(&world);
    let slow = begin(&pipeline, 1, 1).await;
    let fast = begin(&pipeline, 2, 1).await;
    let (slow_seq, fast_seq) = (slow.last_seq(), fast.last_seq());
    let mut fast = fast.applied();
    // Sealing the segment waits until both are durable.
    pipeline.log().rotate().unwrap();
    assert!((&mut fast).now_or_never().is_none());
    assert!(pipeline.visible() < slow_seq);
    let slow = slow.applied();
    assert_eq!((slow.await.unwrap(), fast.await.unwrap()), (slow_seq, fast_seq));
    assert_eq!(pipeline.visible(), fast_seq);
}

#[tokio::test]
async fn a_dropped_commit_or_answer_wedges_nobody() {
    let world = World::new();
    let pipeline = pipeline(&world);
    drop(begin(&pipeline, 1, 1).await);
    drop(begin(&pipeline, 2, 1).await.applied());
    let seq = begin(&pipeline, 3, 1).await.applied().await.unwrap();
    assert_eq!(pipeline.visible(), seq);
}

#[tokio::test]
async fn where_no_sync_is_due_a_lone_commit_is_written_by_who_waits_for_it() {
    let world = World::new();
    let pipeline = pipeline_with(&world, SyncMode::Never);
    let mut at_once = 0;
    for n in 1..=100 {
        let mut done = begin(&pipeline, n, 1).await.applied();
        let seq = match (&mut done).now_or_never() {
            Some(seq) => {
                at_once += 1;
                seq.unwrap()
            }
            None => done.await.unwrap(),
        };
        assert_eq!(pipeline.visible(), seq);
    }
    // The thread, asleep, would not be there in time for most of them; now and then it is at work when one comes.
    assert!(at_once >= 80, "{at_once} at the first look");
    pipeline.close().unwrap();
    assert_eq!(world.open(LogOptions::default()).unwrap().records.len(), 100);
}

#[tokio::test]
async fn what_a_lone_commit_leaves_undone_is_the_threads() {
    let world = World::new();
    let pipeline = pipeline_with(&world, SyncMode::Never);
    // Nobody looks at the answer, or takes it.
    let nobody = begin(&pipeline, 1, 1).await.applied();
    drop(nobody);
    pipeline.wait_visible(pipeline.last_begun().unwrap()).await.unwrap();
    drop(begin(&pipeline, 2, 1).await);
    pipeline.wait_visible(pipeline.last_begun().unwrap()).await.unwrap();
    // Who comes later does not wait for the first to be looked at.
    let first = begin(&pipeline, 3, 1).await.applied();
    let second = begin(&pipeline, 4, 1).await.applied();
    let seq = second.await.unwrap();
    assert!(first.await.unwrap() < seq);
    // More than a caller's thread is to write, and a segment that is full.
    let large = encoded_large(5, 400 << 10);
    for _ in 0..3 {
        let permit = pipeline.admit(large.len()).await.unwrap();
        pipeline.begin(large.clone(), 1, permit).unwrap().applied().await.unwrap();
    }
    pipeline.close().unwrap();
    let replayed = world.open(LogOptions::default()).unwrap();
    assert_eq!(replayed.records.len(), 7);
    // Two that were written, and the one that the second opening began.
    assert_eq!(replayed.log.segments().len(), 3);
}

#[tokio::test]
async fn an_interval_also_runs_from_a_commit_that_its_caller_wrote() {
    let world = World::new();
    let opened = world.open(LogOptions { sync: SyncMode::IntervalMs(50), ..LogOptions::default() });
    let log = opened.unwrap().log;
    let hlc = Hlc::new(Arc::new(world.clock.clone()), 0);
    let pipeline = CommitPipeline::new(Arc::clone(&log) as Arc<dyn CommitLog>, hlc, 0).unwrap();
    for n in 1..=3 {
        let before = world.files.count(FaultOp::Sync);
        begin(&pipeline, n, 1).await.applied().await.unwrap();
        assert_eq!(world.files.count(FaultOp::Sync), before);
        world.clock.advance_micros(50_000);
        until("the interval is over", || {
            log.poke();
            world.files.count(FaultOp::Sync) > before
        });
    }
}

#[tokio::test]
async fn whoever_asks_has_what_is_visible_synced_and_once_is_enough() {
    for (sync, syncs) in
        [(SyncMode::Always, 0), (SyncMode::IntervalMs(60_000), 1), (SyncMode::Never, 1)]
    {
        let world = World::new();
        let pipeline = pipeline_with(&world, sync);
        let seq = begin(&pipeline, 1, 1).await.applied().await.unwrap();
        let before = world.files.count(FaultOp::Sync);
        pipeline.log().sync(seq).unwrap();
        pipeline.log().sync(seq).unwrap();
        assert_eq!(world.files.count(FaultOp::Sync) - before, syncs, "{sync:?}");
        let crashed = world.memory.crashed_copy(CrashMode::Strict, &SeededRng::new(1));
        assert_eq!(World::on(crashed).open(LogOptions::default()).unwrap().summary.max_seq, seq);
        let last = begin(&pipeline, 2, 1).await.applied().await.unwrap();
        pipeline.close().unwrap();
        pipeline.log().sync(last).unwrap();
    }
}

#[tokio::test]
async fn a_sync_that_fails_for_one_who_asked_is_final_and_he_is_told() {
    let world = World::new();
    let pipeline = pipeline_with(&world, SyncMode::Never);
    let good = begin(&pipeline, 1, 1).await.applied().await.unwrap();
    pipeline.log().sync(good).unwrap();
    let seq = begin(&pipeline, 2, 1).await.applied().await.unwrap();
    world.files.inject(Fault::new(FaultOp::Sync));
    for _ in 0..2 {
        assert_eq!(pipeline.log().sync(seq).unwrap_err().kind(), ErrorKind::ReadOnly);
    }
    // Everybody else is told too.
    pipeline.wait_visible(seq + 1).await.unwrap_err();
    pipeline.log().sync(good).unwrap();
}

#[tokio::test]
async fn a_write_that_fails_in_a_callers_thread_ends_the_log() {
    let world = World::new();
    let pipeline = pipeline_with(&world, SyncMode::Never);
    let good = begin(&pipeline, 1, 1).await.applied().await.unwrap();
    world.files.inject(Fault::new(FaultOp::Append));
    let error = begin(&pipeline, 2, 1).await.applied().await.unwrap_err();
    assert!(error.kind() == ErrorKind::ReadOnly && error.is_in_doubt(), "{error:?}");
    assert!(error.message().contains("injected fault"), "{error}");
    assert_eq!(pipeline.visible(), good);
    assert!(pipeline.failed().is_some_and(|error| error.message().contains("injected")));
    let refused = pipeline.admit(10).await.unwrap_err();
    assert!(refused.kind() == ErrorKind::ReadOnly && !refused.is_in_doubt(), "{refused:?}");
    assert_eq!(pipeline.close().unwrap_err().kind(), ErrorKind::ReadOnly);
}

#[tokio::test]
async fn a_reserved_sequence_takes_its_turn() {
    let world = World::new();
    let pipeline = pipeline(&world);
    let alone = pipeline.reserve_seq();
    assert_eq!(pipeline.visible(), alone);
    assert_eq!(pipeline.recorded(), 0, "the log does not have it");
    let before = begin(&pipeline, 1, 1).await;
    let reserved = pipeline.reserve_seq();
    let after = begin(&pipeline, 2, 1).await;
    assert!(before.last_seq() < reserved && reserved < after.first_seq());
    let mut waiting = Box::pin(pipeline.wait_visible(reserved));
    assert!((&mut waiting).now_or_never().is_none());
    let mut reader = Box::pin(pipeline.wait_recorded(alone));
    assert!((&mut reader).now_or_never().is_none());
    let (before, waited) = futures::future::join(before.applied(), waiting).await;
    waited.unwrap();
    assert!(pipeline.visible() >= reserved);
    reader.await.unwrap();
    assert_eq!(pipeline.recorded(), before.unwrap());
    let after = after.applied().await.unwrap();
    assert_eq!(pipeline.recorded(), after);
}

#[tokio::test]
async fn who_waits_no_more_is_forgotten_while_the_log_stands_still() {
    let world = World::new();
    let pipeline = pipeline(&world);
    let gate = Arc::new(SyncGate::default());
    let _guard = gate.close(&world.files);
    let commit = begin(&pipeline, 1, 1).await;
    let seq = commit.last_seq();
    let done = awaited(commit);
    gate.wait_arrived(1);
    let mut staying = Vec::new();
    for n in 0..10_000 {
        let mut reader = Box::pin(pipeline.wait_recorded(seq));
        assert!((&mut reader).now_or_never().is_none());
        let mut other = Box::pin(pipeline.wait_visible(seq));
        assert!((&mut other).now_or_never().is_none());
        if n % 1_000 == 0 {
            staying.push(reader);
        }
    }
    {
        let state = lock(&pipeline.shared.state);
        for waiters in [&state.readers, &state.waiters] {
            let waiting = &waiters.0[&seq];
            assert!(waiting.capacity() <= 64, "{} of {}", waiting.len(), waiting.capacity());
        }
    }
    gate.open();
    assert_eq!(done.await.unwrap(), seq);
    for answer in join_all(staying).await {
        answer.unwrap();
    }
}

#[tokio::test]
async fn after_a_failed_sync_nothing_is_acknowledged_again() {
    let world = World::new();
    let pipeline = pipeline(&world);
    let good = begin(&pipeline, 1, 1).await.applied().await.unwrap();
    let gate = Arc::new(SyncGate::default());
    let _guard = gate.close(&world.files);
    let syncing = begin(&pipeline, 2, 1).await;
    let unapplied = begin(&pipeline, 3, 1).await;
    let waiter = pipeline.wait_visible(unapplied.last_seq());
    let syncing = awaited(syncing);
    gate.wait_arrived(1);
    let queued = begin(&pipeline, 4, 1).await.applied();
    world.files.inject(Fault::new(FaultOp::Sync));
    gate.open();
    for error in [syncing.await, queued.await] {
        let error = error.unwrap_err();
        assert!(error.kind() == ErrorKind::ReadOnly && error.is_in_doubt(), "{error:?}");
        assert!(error.message().contains("injected fault"), "{error}");
    }
    let waiter = waiter.await.unwrap_err();
    assert!(waiter.kind() == ErrorKind::ReadOnly && !waiter.is_in_doubt(), "{waiter:?}");
    let unapplied = unapplied.applied().await.unwrap_err();
    assert!(unapplied.kind() == ErrorKind::ReadOnly && unapplied.is_in_doubt(), "{unapplied:?}");
    assert_eq!(pipeline.visible(), good);
    assert!(pipeline.failed().is_some_and(|error| error.message().contains("injected")));
    assert_eq!(pipeline.admit(10).await.unwrap_err().kind(), ErrorKind::ReadOnly);
    let reserved = pipeline.reserve_seq();
    assert_eq!(pipeline.visible(), good);
    assert!(pipeline.wait_visible(reserved).await.is_err());
    pipeline.wait_visible(good).await.unwrap();
    // Whoever has read the memtable cannot tell what was visible from what has failed.
    assert_eq!(pipeline.last_begun().unwrap_err().kind(), ErrorKind::ReadOnly);
}

#[tokio::test]
async fn a_log_that_met_a_full_disk_says_that_a_restart_is_needed_to_everybody() {
    let world = World::new();
    let pipeline = pipeline(&world);
    let permit = pipeline.admit(10).await.unwrap();
    world.files.set_quota_bytes(Some(20));
    let error = begin(&pipeline, 1, 1).await.applied().await.unwrap_err();
    assert!(error.kind() == ErrorKind::ReadOnly && error.is_in_doubt(), "{error:?}");
    let late = pipeline.begin(encoded(1, 2), 1, permit).unwrap_err();
    assert!(late.kind() == ErrorKind::ReadOnly && !late.is_in_doubt(), "{late:?}");
}

#[tokio::test]
async fn who_has_something_else_to_do_does_not_wait_for_room_with_the_log() {
    let world = World::new();
    // A segment, and the list of segments.
    world.files.set_quota_bytes(Some((1 << 20) + (64 << 10)));
    let pipeline = pipeline(&world);
    begin(&pipeline, 1, 1).await.applied().await.unwrap();
    world.files.set_quota_bytes(Some(0));
    // Its log has room for some.
    let mut n = 1;
    let held = loop {
        n += 1;
        let permit = pipeline.admit(300 << 10).await.unwrap();
        let commit = pipeline.begin(encoded_large(n, 300 << 10), 1, permit).unwrap();
        let seq = commit.last_seq();
        let done = commit.applied();
        // One that waits when the log comes to that, and one that comes later.
        let waited = pipeline.wait_visible_unless_full(seq).await;
        let Err(error) = waited else { continue };
        assert!(error.kind() == ErrorKind::NoSpace && !error.is_in_doubt(), "{error:?}");
        assert!(pipeline.log().lacks_room());
        let later = pipeline.wait_visible_unless_full(seq).await.unwrap_err();
        assert!(later.message().contains("the disk is full"), "{later}");
        break (seq, done);
    };
    let (seq, done) = held;
    let mut patient = Box::pin(pipeline.wait_visible(seq));
    assert!((&mut patient).now_or_never().is_none());
    world.files.set_quota_bytes(None);
    patient.await.unwrap();
    done.await.unwrap();
    pipeline.wait_visible_unless_full(seq).await.unwrap();
}

#[tokio::test]
async fn the_queue_is_bounded_and_a_larger_batch_is_admitted_alone() {
    let world = World::new();
    let pipeline = pipeline(&world);
    let huge = pipeline.admit(usize::MAX).await.unwrap();
    let mut next = Box::pin(pipeline.admit(1));
    assert!((&mut next).now_or_never().is_none());
    drop(huge);
    let small = next.await.unwrap();
    let mut huge = Box::pin(pipeline.admit(LOG_QUEUE_BYTES_MAX as usize));
    assert!((&mut huge).now_or_never().is_none());
    drop(small);
    let huge = huge.await.unwrap();
    // A permit comes back when its batch is published.
    let done = pipeline.begin(encoded(1, 1), 1, huge).unwrap().applied();
    done.await.unwrap();
    pipeline.admit(LOG_QUEUE_BYTES_MAX as usize).await.unwrap();
}

#[tokio::test]
async fn a_small_write_does_not_wait_for_bulk_that_waits() {
    let world = World::new();
    let pipeline = pipeline(&world);
    let bulk = pipeline.admit(BULK_QUEUE_BYTES_MAX as usize).await.unwrap();
    let mut more = Box::pin(pipeline.admit(BULK_BYTES_MIN as usize));
    assert!((&mut more).now_or_never().is_none());
    pipeline.admit(1_000).now_or_never().expect("at once").unwrap();
    assert!(pipeline.queued_bytes() > u64::from(BULK_QUEUE_BYTES_MAX), "who waits counts too");
    drop(bulk);
    more.await.unwrap();
}

#[test]
fn the_slower_the_log_is_the_less_bulk_is_queued() {
    let most = u64::from(BULK_QUEUE_BYTES_MAX);
    // Writes of so many bytes that pass the gate together.
    let pass = |bytes, room| most / u64::from(bulk_share(bytes, room));
    assert_eq!(pass(64 << 10, None), 128);
    assert_eq!(pass(64 << 10, Some(u64::MAX)), 128);
    assert_eq!(pass(64 << 10, Some(2 << 20)), 32);
    assert_eq!(pass(64 << 10, Some(1)), 16);
    // A row that is larger than all that passes is alone.
    for bytes in [4 << 20, 100 << 20, u64::MAX] {
        assert_eq!(pass(bytes, Some(2 << 20)), 1);
    }
}

#[tokio::test]
async fn bulk_behind_a_slow_group_passes_the_gate_in_smaller_parts() {
    let world = World::new();
    let clock = world.clock.clone();
    let is_large = Arc::new(AtomicBool::new(false));
    let pipeline = pipeline(&world);
    // Syncs that take a millisecond for what they write, and a tenth of a second for a megabyte.
    let large_ones = Arc::clone(&is_large);
    world.files.before_sync(Some(Arc::new(move |_| {
        let is_large = large_ones.load(Ordering::Relaxed);
        clock.advance_micros(if is_large { 100_000 } else { 1_000 });
    })));
    begin(&pipeline, 0, 1).await.applied().await.unwrap();
    let large = encoded_large(1, 1 << 20);
    is_large.store(true, Ordering::Relaxed);
    let permit = pipeline.admit(large.len()).await.unwrap();
    pipeline.begin(large, 1, permit).unwrap().applied().await.unwrap();
    let held = pipeline.admit(BULK_QUEUE_BYTES_MIN as usize).await.unwrap();
    assert!(pipeline.admit(BULK_BYTES_MIN as usize).now_or_never().is_none());
    pipeline.admit(1_000).now_or_never().expect("at once").unwrap();
    drop(held);
}

#[tokio::test]
async fn close_drains_the_queue_and_then_refuses() {
    let world = World::new();
    let pipeline = pipeline(&world);
    let permit = pipeline.admit(1).await.unwrap();
    let mut waiting = Vec::new();
    for n in 0..50 {
        waiting.push(begin(&pipeline, n, 1).await.applied());
    }
    let unapplied = begin(&pipeline, 50, 1).await;
    pipeline.close().unwrap();
    for done in join_all(waiting).await {
        done.unwrap();
    }
    unapplied.applied().await.unwrap();
    assert_eq!(pipeline.admit(1).await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(pipeline.begin(encoded(1, 1), 1, permit).unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(world.open(LogOptions::default()).unwrap().records.len(), 51);
}

#[test]
fn concurrent_commits_lose_nothing_and_visible_never_passes_what_a_crash_leaves() {
    let world = World::new();
    let pipeline = Arc::new(pipeline(&world));
    let runtime = || tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut images = Vec::new();
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4_u64)
            .map(|thread| {
                let pipeline = Arc::clone(&pipeline);
                scope.spawn(move || {
                    runtime().block_on(async {
                        for i in 0..50 {
                            let batch = encoded(thread, thread * 1_000 + i);
                            let permit = pipeline.admit(batch.len()).await.unwrap();
                            let commit = pipeline.begin(batch, 1, permit).unwrap();
                            commit.applied().await.unwrap();
                        }
                    });
                })
            })
            .collect();
        while !writers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            let visible = pipeline.visible();
            let rng = SeededRng::new(images.len() as u64);
            images.push((visible, world.memory.crashed_copy(CrashMode::Strict, &rng)));
            std::thread::yield_now();
            if images.len() > 200 {
                break;
            }
        }
    });
    let all = World::on(world.memory.crashed_copy(CrashMode::Strict, &SeededRng::new(0)));
    let all = all.open(LogOptions::default()).unwrap().seqs();
    assert_eq!(all.len(), 200);
    assert!(all.is_sorted(), "the order of the log is the order of the sequences");
    let floor = images[0].0;
    for (visible, image) in images.into_iter().step_by(7) {
        let replayed = World::on(image).open(LogOptions::default()).unwrap().seqs();
        assert!(all.starts_with(&replayed));
        let seen = all.iter().filter(|seq| **seq <= visible).count();
        assert!(replayed.len() >= seen, "visible {visible} from {floor}");
    }
}

/// What one thread does to the pipeline, drawn from a seed: commits of several mutations, reserved
/// sequences, dropped commits, answers that come late. Then the power goes.
#[tokio::test]
async fn after_a_torn_crash_every_answered_commit_is_replayed_whole() {
    for seed in 0..60 {
        let world = World::new();
        let pipeline = pipeline(&world);
        let rng = SeededRng::new(seed);
        let mut waiting = Vec::new();
        let mut begun = Vec::new();
        let mut answered = Vec::new();
        for n in 0..40 {
            match rng.next_u64() % 8 {
                0 => drop(pipeline.reserve_seq()),
                1 => drop(begin(&pipeline, n, 1).await),
                2 => {
                    for done in waiting.drain(..) {
                        let done: CommitDone = done;
                        answered.push(done.await.unwrap());
                    }
                }
                _ => {
                    let commit = begin(&pipeline, n, 1 + (n % 3) as u32).await;
                    begun.push(commit.first_seq());
                    waiting.push(commit.applied());
                }
            }
        }
        let visible = pipeline.visible();
        world.memory.crash(CrashMode::Torn, &rng);
        let replayed = World::on(world.memory.clone()).open(LogOptions::default()).unwrap().seqs();
        assert!(replayed.is_sorted());
        for first in begun {
            assert!(first > visible || replayed.contains(&first), "seed {seed}: {first} is lost");
        }
        assert!(answered.iter().all(|last| *last <= visible));
    }
}
