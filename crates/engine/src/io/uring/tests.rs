//! The engine as its callers meet it: right bytes in the right order, whatever becomes of the futures,
//! the runtime, the kernel and the device.

use std::path::Path;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;

use futures::FutureExt as _;
use futures::future::join_all;
use proptest::prelude::*;
use rustix::io::Errno;
use tokio::runtime::Runtime;

use super::ring::{KERNEL_READS_LOW, RING_BYTES_MAX, RING_READS_MAX, SUBMIT_EARLY_READS};
use super::*;
use crate::io::{
    Env, Fault, FaultFiles, FaultOp, Files, InlineIo, IoMode, JoinHandle, LocalFiles, RandomFile,
    Spawner, ThreadSpawner,
};
use crate::testing::{disk_dir, skip};

pub(super) const FILE_BYTES: usize = 3 << 20;
/// Of a read of which a ring takes few.
const LARGE_BYTES: usize = 1 << 20;

/// A file on a disk, not a multiple of any sector, and engines that read it.
pub(super) struct Rig {
    pub(super) dir: tempfile::TempDir,
    pub(super) data: Vec<u8>,
    pub(super) files: LocalFiles,
    pub(super) file: Arc<dyn RandomFile>,
    pub(super) io: Arc<UringIo>,
}

impl Rig {
    pub(super) fn new(mode: IoMode) -> Self {
        let dir = disk_dir();
        let path = dir.path().join("f");
        let data: Vec<u8> =
            (0..FILE_BYTES + 777).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let files = LocalFiles::new(mode);
        let mut file = files.create(&path).unwrap();
        file.append(&data).unwrap();
        file.sync().unwrap();
        let io = Arc::new(UringIo::new(Arc::new(ThreadSpawner), files.metrics().unwrap()));
        Self { file: files.open_immutable(&path).unwrap(), dir, data, files, io }
    }

    pub(super) fn request(&self, offset: usize, len: usize) -> ReadRequest {
        ReadRequest { file: Arc::clone(&self.file), offset: offset as u64, len }
    }

    /// `n` reads through files that can be made to fail.
    pub(super) fn through_faults(&self, n: usize) -> (FaultFiles, Vec<ReadRequest>) {
        let faults = FaultFiles::new(Arc::new(LocalFiles::new(IoMode::Direct)));
        let file = faults.open_immutable(&self.dir.path().join("f")).unwrap();
        // Long enough that half of what is read around them is not all of them.
        let requests = self.requests(n).into_iter().map(|r| ReadRequest {
            file: Arc::clone(&file),
            offset: r.offset.min((FILE_BYTES - 3_000) as u64),
            len: 3_000,
        });
        let requests = requests.collect();
        (faults, requests)
    }

    /// `n` reads of different places and lengths, aligned and not, the file's end among them.
    pub(super) fn requests(&self, n: usize) -> Vec<ReadRequest> {
        (0..n)
            .map(|i| {
                let len = 1 + i * 37 % 9_000;
                let last = self.data.len() - len;
                self.request(if i % 10 == 9 { last } else { i * 7_919 % last }, len)
            })
            .collect()
    }

    pub(super) fn check(&self, requests: &[ReadRequest], results: &[Result<Bytes>]) {
        assert_eq!(requests.len(), results.len());
        for (request, result) in requests.iter().zip(results) {
            let (start, end) = (request.offset as usize, request.offset as usize + request.len);
            assert_eq!(result.as_ref().unwrap(), &self.data[start..end], "{start}..{end}");
        }
    }

    pub(super) async fn read(&self, n: usize) {
        let requests = self.requests(n);
        self.check(&requests, &self.io.read_batch(requests.clone()).await);
    }

    pub(super) fn figures(&self) -> crate::io::IoFigures {
        self.files.metrics().unwrap().figures()
    }
}

pub(super) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Runs a test within an attached runtime; not where there is no ring.
fn attached<F: Future<Output = ()>>(mode: IoMode, test: impl Fn(Arc<Rig>) -> F) {
    let rig = Arc::new(Rig::new(mode));
    runtime().block_on(async {
        let attached = rig.io.attach().unwrap();
        if !attached.is_attached() {
            return skip("no io_uring here");
        }
        test(Arc::clone(&rig)).await;
    });
}

#[test]
fn results_come_in_order_with_unaligned_tails_and_errors_in_their_place() {
    for mode in [IoMode::Direct, IoMode::Buffered] {
        attached(mode, |rig| async move {
            assert!(rig.io.read_batch(Vec::new()).await.is_empty());
            rig.read(1).await;
            rig.read(200).await;
            let mut requests = rig.requests(20);
            requests[7].offset = rig.data.len() as u64 - 3;
            requests[7].len = 4;
            requests[8].len = 0;
            requests[9].offset = u64::MAX;
            requests[10].len = 1 << 40;
            let results = rig.io.read_batch(requests.clone()).await;
            for (i, (request, result)) in requests.iter().zip(&results).enumerate() {
                if [7, 9, 10].contains(&i) {
                    let error = result.as_ref().unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Corruption);
                    let offset = format!("offset {}", request.offset);
                    assert!(error.message().contains(&offset), "{error}");
                } else {
                    rig.check(std::slice::from_ref(request), std::slice::from_ref(result));
                }
            }
            assert!(rig.figures().ring_reads >= 217, "{:?}", rig.figures());
            assert_eq!(rig.figures().cached_reads, 0);
        });
    }
}

#[test]
fn more_reads_than_the_ring_takes_wait_their_turn() {
    attached(IoMode::Direct, |rig| async move {
        let many = RING_READS_MAX * 3 + 17;
        tokio::join!(rig.read(many), rig.read(5), rig.read(many));
        // And more bytes than it takes.
        let len = 2 << 20;
        let requests: Vec<_> =
            (0..RING_BYTES_MAX / len * 3).map(|i| rig.request(i * 4096, len)).collect();
        rig.check(&requests, &rig.io.read_batch(requests.clone()).await);
    });
}

#[test]
fn dropped_futures_leave_nothing_behind_and_hurt_nobody() {
    attached(IoMode::Direct, |rig| async move {
        for round in 0..50 {
            let mut dropped: Vec<_> = (0..8).map(|_| rig.io.read_batch(rig.requests(60))).collect();
            let kept = rig.io.read_batch(rig.requests(40));
            // Some before the kernel has them, some with reads in flight, some half answered.
            drop(dropped.split_off(round % 8));
            tokio::task::yield_now().await;
            if round % 3 == 0 {
                rig.read(1).await;
            }
            drop(dropped);
            rig.check(&rig.requests(40), &kept.await);
        }
        // A read that comes after all of them: the ring is empty then.
        rig.read(300).await;
        let idle = || rig.io.id.with(|state| state.ring.in_flight() == 0).unwrap();
        while !idle() {
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn reads_that_are_given_up_leave_the_queue_of_a_device_that_stands_still() {
    attached(IoMode::Direct, |rig| async move {
        // Nothing ends before this thread takes a turn.
        let kept = rig.io.read_batch(rig.requests(RING_READS_MAX + 1));
        let queue = || rig.io.id.with(|state| state.ring.waiting()).unwrap();
        for _ in 0..20 * RING_READS_MAX {
            drop(rig.io.read_batch(rig.requests(1)));
            assert!(queue() <= 2 * RING_READS_MAX, "{}", queue());
        }
        rig.check(&rig.requests(RING_READS_MAX + 1), &kept.await);
    });
}

#[test]
fn a_large_read_that_is_given_up_keeps_no_smaller_one_from_its_room() {
    attached(IoMode::Direct, |rig| async move {
        let many = RING_BYTES_MAX / LARGE_BYTES - 1;
        let large = |n| (0..n).map(|i| rig.request(i * 4096, LARGE_BYTES)).collect::<Vec<_>>();
        let kept = rig.io.read_batch(large(many));
        let half = rig.io.read_batch(vec![rig.request(0, LARGE_BYTES / 2)]);
        let in_flight = || rig.io.id.with(|state| state.ring.in_flight()).unwrap();
        assert_eq!(in_flight(), many + 1);
        drop(rig.io.read_batch(large(1)));
        let small = rig.io.read_batch(rig.requests(1));
        assert_eq!(in_flight(), many + 2);
        rig.check(&rig.requests(1), &small.await);
        rig.check(&large(many), &kept.await);
        drop(half);
    });
}

#[test]
fn small_reads_do_not_wait_behind_large_ones_which_go_one_by_one() {
    attached(IoMode::Direct, |rig| async move {
        let many = 2 * RING_BYTES_MAX / FILE_BYTES;
        let large: Vec<_> = (0..many).map(|i| rig.request(i, FILE_BYTES)).collect();
        let kept = rig.io.read_batch(large.clone());
        let small = rig.io.read_batch(rig.requests(3));
        let in_flight = || rig.io.id.with(|state| state.ring.in_flight()).unwrap();
        assert_eq!(in_flight(), 1 + 3);
        rig.check(&rig.requests(3), &small.await);
        rig.check(&large, &kept.await);
    });
}

#[test]
fn of_a_large_read_that_is_given_up_the_rest_is_not_read() {
    attached(IoMode::Direct, |rig| async move {
        let large = || vec![rig.request(0, FILE_BYTES)];
        let before = rig.figures().reads;
        let given_up = rig.io.read_batch(large());
        let kept = rig.io.read_batch(large());
        drop(given_up);
        rig.check(&large(), &kept.await);
        assert_eq!(rig.figures().reads - before, 1);
    });
}

#[test]
fn the_reads_of_a_turn_share_system_calls() {
    attached(IoMode::Direct, |rig| async move {
        rig.read(1).await;
        // The first go alone, then four by four; of those that are left, the driver submits one.
        let reads = KERNEL_READS_LOW + 8 * SUBMIT_EARLY_READS + 1;
        let before = rig.figures().ring_enters;
        let tasks: Vec<_> = (0..reads)
            .map(|i| {
                let rig = Arc::clone(&rig);
                async move {
                    let read = rig.io.read_batch(vec![rig.request(i * 4096, 4096)]);
                    // None is known to have ended before the driver has had its turn.
                    let enters = rig.figures().ring_enters;
                    (enters, read.await)
                }
            })
            .map(|task| Handle::current().spawn(task))
            .collect();
        // One turn of the runtime: the tasks push, the driver submits.
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        assert!(!rig.io.id.with(|own| own.ring.has_unsubmitted()).unwrap());
        let mut calls = 0;
        for task in tasks {
            let (enters, results) = task.await.unwrap();
            assert!(results[0].is_ok());
            calls = enters - before;
        }
        assert_eq!(calls, KERNEL_READS_LOW as u64 + 8);
    });
}

#[test]
fn the_device_is_at_work_before_the_tasks_of_a_turn_are_through() {
    attached(IoMode::Direct, |rig| async move {
        rig.read(1).await;
        let unsubmitted = || rig.io.id.with(|state| state.ring.has_unsubmitted()).unwrap();
        let mut reads = Vec::new();
        for i in 1..=KERNEL_READS_LOW {
            reads.push(rig.io.read_batch(vec![rig.request(i * 4096, 4096)]));
            assert!(!unsubmitted(), "the device has little to do, and waits for read {i}");
        }
        for i in 1..=3 * SUBMIT_EARLY_READS {
            reads.push(rig.io.read_batch(vec![rig.request(i * 4096, 4096)]));
            assert_eq!(unsubmitted(), !i.is_multiple_of(SUBMIT_EARLY_READS), "{i}");
        }
        assert!(join_all(reads).await.iter().all(|results| results[0].is_ok()));
    });
}

#[test]
fn a_runtime_that_ends_waits_for_its_reads_and_refuses_what_it_had_not_begun() {
    let rig = Rig::new(IoMode::Direct);
    let many = RING_READS_MAX + 40;
    let mut pending = None;
    runtime().block_on(async {
        let _attached = rig.io.attach().unwrap();
        pending = Some(rig.io.read_batch(rig.requests(many)));
    });
    let results = pollster::block_on(pending.unwrap());
    let requests = rig.requests(many);
    let closed = |r: &Result<Bytes>| matches!(r, Err(e) if e.kind() == ErrorKind::Closed);
    let begun: Vec<_> = (0..many).filter(|i| !closed(&results[*i])).collect();
    assert!(begun.len() >= RING_READS_MAX, "{}", begun.len());
    for i in begun {
        rig.check(&requests[i..=i], &results[i..=i]);
    }
    // The same thread, a new runtime.
    runtime().block_on(async {
        let _attached = rig.io.attach().unwrap();
        rig.read(10).await;
    });
}

#[test]
fn a_thread_that_ends_attached_waits_for_its_reads() {
    let rig = Arc::new(Rig::new(IoMode::Direct));
    let (sender, receiver) = mpsc::channel();
    let inner = Arc::clone(&rig);
    let work = move || {
        runtime().block_on(async {
            std::mem::forget(inner.io.attach().unwrap());
            sender.send(inner.io.read_batch(inner.requests(30))).unwrap();
            drop(inner.io.read_batch(inner.requests(30)));
        });
    };
    ThreadSpawner.spawn("ends", Box::new(work)).unwrap().join();
    rig.check(&rig.requests(30), &pollster::block_on(receiver.recv().unwrap()));
}

#[test]
fn several_runtimes_have_a_ring_each_and_futures_may_be_awaited_elsewhere() {
    let rig = Arc::new(Rig::new(IoMode::Direct));
    let (sender, receiver) = mpsc::channel();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let (rig, sender) = (Arc::clone(&rig), sender.clone());
            let work = move || {
                runtime().block_on(async {
                    let _attached = rig.io.attach().unwrap();
                    for _ in 0..20 {
                        rig.read(50).await;
                    }
                    sender.send(rig.io.read_batch(rig.requests(20))).unwrap();
                    rig.read(5).await;
                });
            };
            ThreadSpawner.spawn("reader", Box::new(work)).unwrap()
        })
        .collect();
    for _ in 0..4 {
        rig.check(&rig.requests(20), &pollster::block_on(receiver.recv().unwrap()));
    }
    for thread in threads {
        thread.join();
    }
}

#[test]
fn a_thread_without_a_ring_reads_by_the_pool() {
    let rig = Rig::new(IoMode::Direct);
    pollster::block_on(rig.read(100));
    assert_eq!((rig.figures().reads, rig.figures().ring_reads), (100, 0));
}

/// The system's threads, of which it grants the second to the fourth.
#[derive(Debug, Default)]
struct ShortOfThreads {
    asked: AtomicU64,
}

impl Spawner for ShortOfThreads {
    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> Result<Box<dyn JoinHandle>> {
        assert!(name.starts_with("tepui-read-"), "{name}");
        match self.asked.fetch_add(1, Ordering::Relaxed) {
            1..4 => ThreadSpawner.spawn(name, work),
            _ => Err(Error::new(ErrorKind::Io, "no more threads")),
        }
    }
}

#[test]
fn a_pool_that_could_not_be_started_is_started_by_a_later_read_with_the_threads_there_are() {
    let mut rig = Rig::new(IoMode::Direct);
    let spawner = Arc::new(ShortOfThreads::default());
    rig.io = Arc::new(UringIo::new(Arc::clone(&spawner) as _, rig.files.metrics().unwrap()));
    let refused = pollster::block_on(rig.io.read_batch(rig.requests(3)));
    assert!(refused.iter().all(|read| read.as_ref().unwrap_err().kind() == ErrorKind::Io));
    pollster::block_on(rig.read(100));
    pollster::block_on(rig.read(100));
    let asked = spawner.asked.load(Ordering::Relaxed);
    assert_eq!(asked, 5, "one in vain, three that are there, and one more in vain");
}

#[test]
fn only_a_single_threaded_runtime_is_attached_and_once() {
    let rig = Rig::new(IoMode::Direct);
    let refused = |result: Result<Attached>| {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidArgument);
    };
    refused(rig.io.attach());
    runtime().block_on(async {
        let first = rig.io.attach().unwrap();
        if first.is_attached() {
            refused(rig.io.attach());
        }
        drop(first);
        drop(rig.io.attach().unwrap());
        // Another engine has rings of its own.
        let other = Rig::new(IoMode::Direct);
        let _first = rig.io.attach().unwrap();
        let _second = other.io.attach().unwrap();
        tokio::join!(rig.read(10), other.read(10));
    });
}

/// Counts what is logged.
struct Told(Arc<AtomicUsize>);

impl tracing::Subscriber for Told {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// How often the log says that io_uring is forbidden while so many threads attach to one engine.
fn told_of_a_refusal(threads: usize) -> usize {
    let metrics = LocalFiles::new(IoMode::Direct).metrics().unwrap();
    let forbidden: fn() -> std::io::Result<IoUring> = || Err(Errno::PERM.into());
    let io = Arc::new(UringIo::with_set_up(Arc::new(ThreadSpawner), metrics, forbidden));
    let told = Arc::new(AtomicUsize::new(0));
    let threads = (0..threads).map(|_| {
        let (io, told) = (Arc::clone(&io), Arc::clone(&told));
        let attach = move || {
            tracing::subscriber::with_default(Told(told), || {
                runtime().block_on(async { drop(io.attach().unwrap()) });
                drop(io.attach_blocking().unwrap());
            });
        };
        ThreadSpawner.spawn("attaches", Box::new(attach)).unwrap()
    });
    let threads: Vec<_> = threads.collect();
    for thread in threads {
        thread.join();
    }
    told.load(Ordering::Relaxed)
}

#[test]
fn where_io_uring_is_forbidden_the_log_says_so_once_however_many_threads_attach() {
    // While another test's thread is the first to say it, to nobody, what is said here may be lost; once it was heard, nothing is.
    let is_heard = (0..100).any(|_| {
        let told = told_of_a_refusal(1);
        assert!(told <= 1, "{told}");
        told == 1
    });
    assert!(is_heard);
    assert_eq!(told_of_a_refusal(4), 1);
}

#[test]
fn where_io_uring_is_forbidden_or_too_old_everything_goes_to_the_pool() {
    let refusals: [fn() -> std::io::Result<IoUring>; 4] = [
        || Err(Errno::PERM.into()),
        || Err(Errno::NOSYS.into()),
        || Err(Errno::NOMEM.into()),
        // A kernel that sets rings up and cannot read on them.
        || ring::with_feature(IoUring::new(1)?, |_| false),
    ];
    for set_up in refusals {
        let mut rig = Rig::new(IoMode::Direct);
        let metrics = rig.files.metrics().unwrap();
        rig.io = Arc::new(UringIo::with_set_up(Arc::new(ThreadSpawner), metrics, set_up));
        runtime().block_on(async {
            assert!(!rig.io.attach().unwrap().is_attached());
            assert!(!rig.io.attach().unwrap().is_attached());
            rig.read(50).await;
        });
        assert!(rig.io.refusal_told.load(Ordering::Relaxed));
        assert_eq!((rig.figures().reads, rig.figures().ring_reads), (50, 0));
    }
}

#[test]
fn a_ring_that_stops_working_refuses_what_it_has_and_later_reads_go_to_the_pool() {
    attached(IoMode::Direct, |rig| async move {
        let future = rig.io.read_batch(rig.requests(RING_READS_MAX + 10));
        rig.io.id.with(|state| state.ring.fail(Errno::BADF)).unwrap();
        for result in future.await {
            let error = result.unwrap_err();
            assert!(error.kind() == ErrorKind::Io && error.message().contains("io_uring"));
        }
        let before = rig.figures().ring_reads;
        rig.read(20).await;
        assert_eq!(rig.figures().ring_reads, before);
    });
    // With reads that the kernel has: they are answered too, now or as they had been.
    attached(IoMode::Direct, |rig| async move {
        let requests = rig.requests(RING_READS_MAX);
        let future = rig.io.read_batch(requests.clone());
        tokio::task::yield_now().await;
        rig.io.id.with(|state| state.ring.fail(Errno::BADF)).unwrap();
        for (i, result) in future.await.iter().enumerate() {
            if result.is_ok() {
                rig.check(&requests[i..=i], std::slice::from_ref(result));
            }
        }
    });
}

#[test]
fn files_without_a_descriptor_are_read_too() {
    attached(IoMode::Direct, |rig| async move {
        let memory = crate::io::MemoryFiles::new();
        memory.put_contents(Path::new("m"), b"memory".to_vec());
        let file = memory.open(Path::new("m")).unwrap();
        let mut requests = rig.requests(2);
        requests.push(ReadRequest { file, offset: 2, len: 3 });
        let results = rig.io.read_batch(requests.clone()).await;
        rig.check(&requests[..2], &results[..2]);
        assert_eq!(results[2].as_ref().unwrap(), "mor");
    });
}

#[test]
fn a_read_that_the_device_refuses_is_tried_once_more_and_then_reported() {
    attached(IoMode::Direct, |rig| async move {
        let (faults, requests) = rig.through_faults(20);
        let path = rig.dir.path().join("f");
        for fault in [Fault::new(FaultOp::Read), Fault::new(FaultOp::Read).short()] {
            let before = rig.figures();
            faults.inject(fault.clone().nth(7));
            rig.check(&requests, &rig.io.read_batch(requests.clone()).await);
            assert_eq!(rig.figures().retries, before.retries + 1);

            faults.inject(fault.sticky());
            for (request, result) in requests.iter().zip(rig.io.read_batch(requests.clone()).await)
            {
                let error = result.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Io);
                let place = format!("{} at offset {}", path.display(), request.offset);
                assert!(error.message().contains(&place), "{error}");
            }
            faults.heal();
            let after = rig.figures();
            assert_eq!(after.retries, before.retries + 21);
            assert_eq!(after.failures, before.failures + 20);
            rig.check(&requests, &rig.io.read_batch(requests.clone()).await);
        }
    });
}

#[test]
fn a_batch_stays_pending_until_its_runtime_turns() {
    attached(IoMode::Direct, |rig| async move {
        let mut future = rig.io.read_batch(rig.requests(3));
        assert!((&mut future).now_or_never().is_none());
        rig.check(&rig.requests(3), &future.await);
        // Many tasks that each read one after the other, with timers between.
        join_all((0..20).map(|i| {
            let rig = Arc::clone(&rig);
            async move {
                for _ in 0..10 {
                    rig.read(1 + i % 3).await;
                    tokio::time::timeout(std::time::Duration::from_mins(1), rig.read(1))
                        .await
                        .unwrap();
                }
            }
        }))
        .await;
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn every_way_of_reading_gives_the_same_bytes(
        spans in prop::collection::vec((0..FILE_BYTES + 2_000, 0..70_000usize), 1..60),
    ) {
        let rig = Rig::new(IoMode::Direct);
        let buffered = LocalFiles::new(IoMode::Buffered)
            .open_immutable(&rig.dir.path().join("f"))
            .unwrap();
        let inline: Arc<dyn IoEngine> = Arc::new(InlineIo);
        let ring: Arc<dyn IoEngine> = Arc::clone(&rig.io) as _;
        let mut answers = Vec::new();
        for file in [&rig.file, &buffered] {
            let requests: Vec<_> = spans
                .iter()
                .map(|(offset, len)| ReadRequest {
                    file: Arc::clone(file),
                    offset: *offset as u64,
                    len: *len,
                })
                .collect();
            answers.push(pollster::block_on(inline.read_batch(requests.clone())));
            answers.push(pollster::block_on(ring.read_batch(requests.clone())));
            answers.push(runtime().block_on(async {
                let _attached = rig.io.attach().unwrap();
                ring.read_batch(requests.clone()).await
            }));
            let _attached = rig.io.attach_blocking().unwrap();
            answers.push(ring.read_batch(requests.clone()).now_or_never().unwrap());
            answers.push(
                requests
                    .iter()
                    .flat_map(|r| ring.read_batch(vec![r.clone()]).now_or_never().unwrap())
                    .collect(),
            );
        }
        for (i, (offset, len)) in spans.iter().enumerate() {
            for answer in &answers {
                match rig.data.get(*offset..offset + len) {
                    Some(expected) => prop_assert_eq!(answer[i].as_ref().unwrap(), expected),
                    // A read of nothing reads nothing, wherever.
                    None if *len == 0 => prop_assert!(answer[i].as_ref().unwrap().is_empty()),
                    None => {
                        prop_assert_eq!(answer[i].as_ref().unwrap_err().kind(), ErrorKind::Corruption);
                    }
                }
            }
        }
    }
}

#[test]
fn the_local_environment_reads_what_it_wrote_in_both_modes() {
    for mode in [IoMode::Direct, IoMode::Buffered] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let env = Env::local(mode).unwrap();
        let mut file = env.files.create(&path).unwrap();
        file.append(&[5; 6_000]).unwrap();
        // Not synced yet: direct reads see it all the same.
        let request = ReadRequest {
            file: env.files.open_immutable(&path).unwrap(),
            offset: 4_000,
            len: 2_000,
        };
        let results = pollster::block_on(env.io.read_batch(vec![request]));
        assert_eq!(results[0].as_ref().unwrap(), &vec![5; 2_000]);
        assert_eq!(env.files.metrics().unwrap().figures().reads, 1);
    }
}
