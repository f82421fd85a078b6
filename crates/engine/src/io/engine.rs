//! I/O engines: who carries out block reads.
//!
//! [`PreadPool`] spreads a batch over a few threads that block in `pread`; its futures need no
//! particular runtime. [`InlineIo`] reads on the calling thread, for tests and offline tools.
//!
//! ```text
//! read_batch ─┬─► reads ─┬──► worker 1..n ──► slot i of the batch
//!             └─► large ─┘                    last one done ──► future
//!                     at most PREAD_LARGE_READS_MAX under way
//! ```
//!
//! A batch is queued when it is made, whether or not its future is ever polled: a reader that stands still keeps nobody else waiting. The queue has
//! no bound of its own, since each place in it is smaller than the future that waits for it, and requests bound those.
//!
//! Whichever came first goes first, but for large reads beyond those that may be under way: small ones pass them. A large read is made
//! in parts, and left between two of them when nobody waits for it any more.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures::future::BoxFuture;
use tokio::sync::oneshot;

use super::device::{is_large, read_blocking_while};
use super::{IoEngine, JoinHandle, PREAD_THREADS, ReadRequest, Spawner};
use crate::error::{Error, ErrorKind, Result};

/// Large reads under way in a [`PreadPool`], which all cores share. With one, a single value of 100 MiB on a slow disk keeps the others
/// waiting; each more has a buffer of as many bytes and a part of the device that small reads would have, and two in parts of 2 MiB
/// keep most devices busy.
const PREAD_LARGE_READS_MAX: usize = 2;

/// Reads on the calling thread, one after the other.
#[derive(Debug, Default)]
pub struct InlineIo;

impl IoEngine for InlineIo {
    fn read_batch(&self, requests: Vec<ReadRequest>) -> BoxFuture<'static, Vec<Result<Bytes>>> {
        let results = requests.iter().map(|r| r.file.read_at(r.offset, r.len)).collect();
        Box::pin(std::future::ready(results))
    }
}

/// A pool of threads that block in `pread`. Dropping it finishes what is queued and joins its threads.
pub struct PreadPool {
    shared: Arc<Shared>,
    /// In a mutex only because a handle may be sent between threads but not shared.
    threads: Mutex<Vec<Box<dyn JoinHandle>>>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
}

#[derive(Default)]
struct Queue {
    reads: VecDeque<Read>,
    /// Those that the device takes several attempts for.
    large: VecDeque<Read>,
    large_under_way: usize,
    /// How many of them may be.
    large_max: usize,
    /// Reads that have come so far.
    came: u64,
    closing: bool,
}

struct Read {
    request: ReadRequest,
    slot: usize,
    batch: Arc<Mutex<Batch>>,
    /// How many came before it.
    came: u64,
}

struct Batch {
    results: Vec<Result<Bytes>>,
    remaining: usize,
    done: Option<oneshot::Sender<Vec<Result<Bytes>>>>,
}

/// The data under these locks is valid at every step, so a panic elsewhere does not spoil it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the read pool is closed")
}

impl PreadPool {
    /// A pool of `threads` threads, at least one. More threads than the device has useful queue depth
    /// cost memory and context switches; fewer leave reads waiting that the device could serve. Where the system refuses
    /// some of them it does with the others, and the log says so; an error where it refuses all.
    pub fn new(spawner: &dyn Spawner, threads: usize) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let mut started = Vec::new();
        for i in 0..threads.max(1) {
            let shared = Arc::clone(&shared);
            match spawner.spawn(&format!("tepui-read-{i}"), Box::new(move || shared.work())) {
                Ok(thread) => started.push(thread),
                Err(error) if started.is_empty() => return Err(error),
                Err(error) => {
                    tracing::warn!(
                        %error,
                        "reads go to {} threads instead of {threads} until a restart, at less speed",
                        started.len(),
                    );
                    break;
                }
            }
        }
        // One thread at least is left for small reads, where there are several.
        lock(&shared.queue).large_max = (started.len() - 1).clamp(1, PREAD_LARGE_READS_MAX);
        Ok(Self { shared, threads: Mutex::new(started) })
    }
}

impl Shared {
    fn submit(&self, requests: Vec<ReadRequest>) -> oneshot::Receiver<Vec<Result<Bytes>>> {
        let (done, receiver) = oneshot::channel();
        let batch = Arc::new(Mutex::new(Batch {
            results: (0..requests.len()).map(|_| Err(closed())).collect(),
            remaining: requests.len(),
            done: Some(done),
        }));
        let reads = requests.len();
        let mut queue = lock(&self.queue);
        for (slot, request) in requests.into_iter().enumerate() {
            queue.push(request, slot, &batch);
        }
        drop(queue);
        // One each: threads that find nothing only keep the others from the queue. Each call is one of the system.
        if reads < PREAD_THREADS {
            for _ in 0..reads {
                self.wake.notify_one();
            }
        } else {
            self.wake.notify_all();
        }
        receiver
    }

    fn work(&self) {
        let mut queue = lock(&self.queue);
        loop {
            if let Some(read) = queue.next() {
                drop(queue);
                let was_large = is_large(read.request.len);
                read.carry_out();
                queue = lock(&self.queue);
                // Whoever ends one looks for the next here, so that nobody need be woken for it.
                queue.large_under_way -= usize::from(was_large);
            } else if queue.closing {
                // Large reads that are left are for those who carry others out.
                return;
            } else {
                queue = self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

impl Queue {
    fn push(&mut self, request: ReadRequest, slot: usize, batch: &Arc<Mutex<Batch>>) {
        let lane = if is_large(request.len) { &mut self.large } else { &mut self.reads };
        lane.push_back(Read { request, slot, batch: Arc::clone(batch), came: self.came });
        self.came += 1;
    }

    /// The next read that may begin.
    fn next(&mut self) -> Option<Read> {
        if self.large_under_way < self.large_max
            && let Some(large) = self.large.front()
            && self.reads.front().is_none_or(|read| large.came < read.came)
        {
            self.large_under_way += 1;
            return self.large.pop_front();
        }
        self.reads.pop_front()
    }
}

impl Read {
    /// Reads and answers, on this thread.
    fn carry_out(self) {
        let Self { request: ReadRequest { file, offset, len }, slot, batch, .. } = self;
        // Nobody waits any more when the future was dropped: spare the device.
        let is_wanted = || if Batch::is_wanted(&batch) { Ok(()) } else { Err(closed()) };
        let result = is_wanted().and_then(|()| match file.device() {
            Some(device) if is_large(len) => {
                read_blocking_while(file.as_ref(), &device, offset, len, is_wanted)
            }
            _ => file.read_at(offset, len),
        });
        Batch::finish(&batch, slot, result);
    }
}

impl Batch {
    /// Whether anybody waits for it.
    fn is_wanted(batch: &Mutex<Self>) -> bool {
        lock(batch).done.as_ref().is_some_and(|done| !done.is_closed())
    }

    fn finish(batch: &Mutex<Self>, slot: usize, result: Result<Bytes>) {
        let mut batch = lock(batch);
        if let Some(place) = batch.results.get_mut(slot) {
            *place = result;
        }
        batch.remaining -= 1;
        if batch.remaining == 0
            && let Some(done) = batch.done.take()
        {
            // An error means that the receiver is gone, and with it the interest.
            let _ = done.send(std::mem::take(&mut batch.results));
        }
    }
}

impl IoEngine for PreadPool {
    fn read_batch(&self, requests: Vec<ReadRequest>) -> BoxFuture<'static, Vec<Result<Bytes>>> {
        let count = requests.len();
        if count == 0 {
            return Box::pin(std::future::ready(Vec::new()));
        }
        let receiver = self.shared.submit(requests);
        Box::pin(async move {
            receiver.await.unwrap_or_else(|_| (0..count).map(|_| Err(closed())).collect())
        })
    }
}

impl Drop for PreadPool {
    fn drop(&mut self) {
        lock(&self.shared.queue).closing = true;
        self.shared.wake.notify_all();
        for thread in lock(&self.threads).drain(..) {
            thread.join();
        }
    }
}

impl fmt::Debug for PreadPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreadPool").field("threads", &lock(&self.threads).len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;
    use crate::io::device::ATTEMPT_BYTES_MAX;
    use crate::io::{Attempt, DeviceFile, Files, IoMode, LocalFiles};
    use crate::io::{MemoryFiles, RandomFile, ThreadSpawner};

    fn file_of(len: usize) -> Arc<dyn RandomFile> {
        let files = MemoryFiles::new();
        let data: Vec<u8> = (0..len).map(|i| i as u8).collect();
        files.create(Path::new("f")).unwrap().append(&data).unwrap();
        files.open(Path::new("f")).unwrap()
    }

    fn requests(file: &Arc<dyn RandomFile>, n: usize) -> Vec<ReadRequest> {
        (0..n)
            .map(|i| ReadRequest { file: Arc::clone(file), offset: (i % 250) as u64, len: 2 })
            .collect()
    }

    fn check(results: &[Result<Bytes>]) {
        for (i, result) in results.iter().enumerate() {
            let at = (i % 250) as u8;
            assert_eq!(result.as_ref().unwrap().as_ref(), [at, at + 1]);
        }
    }

    fn engines() -> Vec<Box<dyn IoEngine>> {
        vec![Box::new(InlineIo), Box::new(PreadPool::new(&ThreadSpawner, 3).unwrap())]
    }

    #[tokio::test]
    async fn results_come_in_the_order_of_the_requests_and_errors_stay_in_their_place() {
        let file = file_of(256);
        for engine in engines() {
            assert!(engine.read_batch(Vec::new()).await.is_empty());
            let mut batch = requests(&file, 100);
            check(&engine.read_batch(batch.clone()).await);
            batch[7].offset = 1_000;
            let results = engine.read_batch(batch).await;
            assert_eq!(results[7].as_ref().unwrap_err().kind(), ErrorKind::Corruption);
            check(&results[..7]);
            assert_eq!(results[8].as_ref().unwrap().as_ref(), [8, 9]);
        }
    }

    #[tokio::test]
    async fn batches_of_readers_that_stand_still_keep_nobody_waiting() {
        let file = file_of(256);
        let pool = PreadPool::new(&ThreadSpawner, 2).unwrap();
        let mut still: Vec<_> = (0..10).map(|_| pool.read_batch(requests(&file, 1_000))).collect();
        // They have been asked once.
        for batch in &mut still {
            let _ = futures::poll!(batch);
        }
        check(&pool.read_batch(requests(&file, 1_000)).await);
    }

    #[tokio::test]
    async fn dropping_the_pool_finishes_what_is_queued() {
        let file = file_of(256);
        let pool = PreadPool::new(&ThreadSpawner, 1).unwrap();
        let queued = pool.read_batch(requests(&file, 50));
        drop(pool);
        check(&queued.await);
    }

    #[tokio::test]
    async fn a_dropped_future_gives_its_place_back() {
        let file = file_of(256);
        let pool = PreadPool::new(&ThreadSpawner, 1).unwrap();
        for _ in 0..3 {
            drop(pool.read_batch(requests(&file, 4_096)));
        }
        check(&pool.read_batch(requests(&file, 20)).await);
    }

    /// Of a read in three parts.
    const LARGE_BYTES: usize = 2 * ATTEMPT_BYTES_MAX + 1;

    /// A file that tells of its reads as they begin, whose large ones wait until they are let go, and that gives an error where too many
    /// of these are under way.
    #[derive(Debug)]
    struct Slow {
        inner: Arc<dyn RandomFile>,
        began: mpsc::Sender<u64>,
        gate: Mutex<()>,
        under_way: AtomicUsize,
        large_max: usize,
    }

    impl Slow {
        fn new(inner: Arc<dyn RandomFile>, large_max: usize) -> (Arc<Self>, mpsc::Receiver<u64>) {
            let (began, told) = mpsc::channel();
            let (gate, under_way) = Default::default();
            (Arc::new(Self { inner, began, gate, under_way, large_max }), told)
        }

        fn request(self: &Arc<Self>, offset: u64, len: usize) -> ReadRequest {
            ReadRequest { file: Arc::clone(self) as _, offset, len }
        }
    }

    impl RandomFile for Slow {
        fn path(&self) -> &Path {
            self.inner.path()
        }

        fn len(&self) -> Result<u64> {
            self.inner.len()
        }

        fn read_at(&self, offset: u64, len: usize) -> Result<Bytes> {
            self.began.send(offset).unwrap();
            if !is_large(len) {
                return self.inner.read_at(offset, len);
            }
            let read = if self.under_way.fetch_add(1, Ordering::SeqCst) < self.large_max {
                drop(lock(&self.gate));
                self.inner.read_at(offset, len)
            } else {
                Err(Error::new(ErrorKind::Io, "too many large reads are under way"))
            };
            self.under_way.fetch_sub(1, Ordering::SeqCst);
            read
        }

        fn try_read_at(&self, _offset: u64, _len: usize) -> Option<Result<Bytes>> {
            None
        }

        fn device(&self) -> Option<DeviceFile<'_>> {
            self.inner.device()
        }

        fn answer(&self, attempt: Attempt) -> Attempt {
            self.began.send(0).unwrap();
            drop(lock(&self.gate));
            attempt
        }
    }

    #[test]
    fn small_reads_do_not_wait_behind_large_ones_of_which_few_go_at_a_time() {
        for (threads, large_max) in [(2, 1), (3, 2), (8, PREAD_LARGE_READS_MAX)] {
            let (slow, began) = Slow::new(file_of(LARGE_BYTES + 250), large_max);
            let pool = PreadPool::new(&ThreadSpawner, threads).unwrap();
            let held = lock(&slow.gate);
            let large = pool.read_batch((0..10).map(|i| slow.request(i, LARGE_BYTES)).collect());
            for _ in 0..large_max {
                assert!(began.recv().unwrap() < large_max as u64);
            }
            check(&pollster::block_on(pool.read_batch(requests(&slow.inner, 20))));
            assert!(began.try_recv().is_err(), "the others wait");
            drop(held);
            for (i, result) in pollster::block_on(large).into_iter().enumerate() {
                let bytes = result.unwrap();
                assert_eq!((bytes.len(), bytes[0]), (LARGE_BYTES, i as u8));
            }
        }
    }

    #[test]
    fn one_thread_takes_large_and_small_reads_in_the_order_in_which_they_came() {
        let (slow, began) = Slow::new(file_of(LARGE_BYTES + 250), 1);
        let pool = PreadPool::new(&ThreadSpawner, 1).unwrap();
        let held = lock(&slow.gate);
        let first = pool.read_batch(vec![slow.request(0, LARGE_BYTES)]);
        assert_eq!(began.recv(), Ok(0));
        let len = |i: u64| if i.is_multiple_of(2) { LARGE_BYTES } else { 2 };
        let others = pool.read_batch((1..7).map(|i| slow.request(i, len(i))).collect());
        drop(held);
        pollster::block_on(first);
        pollster::block_on(others);
        assert_eq!(began.try_iter().collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn of_a_large_read_that_is_given_up_the_other_parts_are_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let files = LocalFiles::new(IoMode::Buffered);
        files.create(&path).unwrap().append(&vec![7; LARGE_BYTES]).unwrap();
        let (slow, began) = Slow::new(files.open(&path).unwrap(), 1);
        let pool = PreadPool::new(&ThreadSpawner, 1).unwrap();
        let held = lock(&slow.gate);
        let given_up = pool.read_batch(vec![slow.request(0, LARGE_BYTES)]);
        assert_eq!(began.recv(), Ok(0));
        drop((given_up, held));
        // The thread comes to it once it is done with the other.
        let read = pollster::block_on(pool.read_batch(vec![slow.request(9, 2)])).remove(0);
        assert_eq!(read.unwrap(), [7, 7][..]);
        assert_eq!(began.try_iter().collect::<Vec<_>>(), [9]);
        assert_eq!(files.metrics().unwrap().figures().reads, 1, "it was not read to its end");
        let read =
            pollster::block_on(pool.read_batch(vec![slow.request(0, LARGE_BYTES)])).remove(0);
        assert_eq!(read.unwrap(), vec![7; LARGE_BYTES]);
        assert_eq!(began.try_iter().count(), 3, "in parts");
    }
}
