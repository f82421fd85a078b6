//! I/O engines: who carries out block reads.
//!
//! [`PreadPool`] spreads a batch over a few threads that block in `pread`; its futures need no
//! particular runtime. [`InlineIo`] reads on the calling thread, for tests and offline tools.
//!
//! ```text
//! read_batch ──► gate (PREAD_QUEUE_READS_MAX) ──► queue ──► worker 1..n ──► slot i of the batch
//!                                                                              last one done ──► future
//! ```

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures::future::BoxFuture;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::{IoEngine, JoinHandle, PREAD_THREADS, ReadRequest, Spawner};
use crate::error::{Error, ErrorKind, Result};

/// Reads queued or under way in a [`PreadPool`]. Fewer would idle a fast device (a good NVMe drive
/// wants some hundreds in flight); more would only queue here what had better wait in its own request.
/// A batch that is larger by itself is let in when it is alone.
pub const PREAD_QUEUE_READS_MAX: u32 = 4096;

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
    gate: Arc<Semaphore>,
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
    closing: bool,
}

struct Read {
    request: ReadRequest,
    slot: usize,
    batch: Arc<Mutex<Batch>>,
}

struct Batch {
    results: Vec<Result<Bytes>>,
    remaining: usize,
    done: Option<oneshot::Sender<Vec<Result<Bytes>>>>,
    _permit: OwnedSemaphorePermit,
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
        let gate = Arc::new(Semaphore::new(PREAD_QUEUE_READS_MAX as usize));
        Ok(Self { shared, gate, threads: Mutex::new(started) })
    }
}

impl Shared {
    fn submit(
        &self,
        requests: Vec<ReadRequest>,
        permit: OwnedSemaphorePermit,
    ) -> oneshot::Receiver<Vec<Result<Bytes>>> {
        let (done, receiver) = oneshot::channel();
        let batch = Arc::new(Mutex::new(Batch {
            results: (0..requests.len()).map(|_| Err(closed())).collect(),
            remaining: requests.len(),
            done: Some(done),
            _permit: permit,
        }));
        let reads = requests.len();
        let mut queue = lock(&self.queue);
        queue.reads.extend(requests.into_iter().enumerate().map(|(slot, request)| Read {
            request,
            slot,
            batch: Arc::clone(&batch),
        }));
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
            if let Some(Read { request, slot, batch }) = queue.reads.pop_front() {
                drop(queue);
                // Nobody waits any more when the future was dropped: spare the device.
                let wanted = lock(&batch).done.as_ref().is_some_and(|done| !done.is_closed());
                let result = if wanted {
                    request.file.read_at(request.offset, request.len)
                } else {
                    Err(closed())
                };
                Batch::finish(&batch, slot, result);
                queue = lock(&self.queue);
            } else if queue.closing {
                return;
            } else {
                queue = self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

impl Batch {
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
        let permits = u32::try_from(count).unwrap_or(u32::MAX).min(PREAD_QUEUE_READS_MAX);
        let shared = Arc::clone(&self.shared);
        let results = move |received: Result<Vec<Result<Bytes>>, oneshot::error::RecvError>| {
            received.unwrap_or_else(|_| (0..count).map(|_| Err(closed())).collect())
        };
        // The usual case goes to the threads at once; only a full queue defers it to the first poll.
        match Arc::clone(&self.gate).try_acquire_many_owned(permits) {
            Ok(permit) => {
                let receiver = shared.submit(requests, permit);
                Box::pin(async move { results(receiver.await) })
            }
            Err(_) => {
                let gate = Arc::clone(&self.gate);
                Box::pin(async move {
                    match gate.acquire_many_owned(permits).await {
                        Ok(permit) => results(shared.submit(requests, permit).await),
                        Err(_) => (0..count).map(|_| Err(closed())).collect(),
                    }
                })
            }
        }
    }
}

impl Drop for PreadPool {
    fn drop(&mut self) {
        self.gate.close();
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

    use super::*;
    use crate::io::{Files, MemoryFiles, RandomFile, ThreadSpawner};

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
    async fn batches_larger_than_the_queue_get_through_and_others_wait_behind_them() {
        let file = file_of(256);
        let pool = PreadPool::new(&ThreadSpawner, 2).unwrap();
        let many = PREAD_QUEUE_READS_MAX as usize + 17;
        let (a, b, c) = futures::join!(
            pool.read_batch(requests(&file, many)),
            pool.read_batch(requests(&file, 10)),
            pool.read_batch(requests(&file, many)),
        );
        assert_eq!((a.len(), b.len(), c.len()), (many, 10, many));
        check(&a);
        check(&b);
        check(&c);
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
            drop(pool.read_batch(requests(&file, PREAD_QUEUE_READS_MAX as usize)));
        }
        check(&pool.read_batch(requests(&file, 20)).await);
    }
}
