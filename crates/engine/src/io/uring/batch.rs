//! The reads of one call: where their results gather, and the future that waits for the last of them.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;

use crate::error::{Error, ErrorKind, Result};

/// The results so far. Shared by the future, which may be anywhere, and the ring.
pub(super) struct Batch {
    state: Mutex<State>,
}

struct State {
    results: Vec<Option<Result<Bytes>>>,
    remaining: usize,
    waker: Option<Waker>,
    abandoned: bool,
}

/// Waits for a batch. Dropping it abandons the reads: those that the kernel has finish unseen, the others
/// are never made.
pub(super) struct BatchFuture {
    batch: Arc<Batch>,
}

/// What a read is answered whose runtime ended before it was made.
pub(super) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the runtime that this read was made on has ended")
}

impl Batch {
    /// A batch of `count` reads.
    pub(super) fn new(count: usize) -> Arc<Self> {
        let mut results = Vec::new();
        results.resize_with(count, || None);
        Arc::new(Self {
            state: Mutex::new(State { results, remaining: count, waker: None, abandoned: false }),
        })
    }

    /// The future of a batch.
    pub(super) fn future(self: &Arc<Self>) -> BatchFuture {
        BatchFuture { batch: Arc::clone(self) }
    }

    /// The data is valid at every step, so a panic elsewhere does not spoil it.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nobody waits any more.
    pub(super) fn is_abandoned(&self) -> bool {
        self.lock().abandoned
    }

    /// Puts a result into its place, once for each. With the last one, whoever is to be woken is returned,
    /// for the caller to wake when it holds nothing that the woken could need.
    #[must_use]
    pub(super) fn complete(&self, place: usize, result: Result<Bytes>) -> Option<Waker> {
        let mut state = self.lock();
        if let Some(slot) = state.results.get_mut(place)
            && slot.is_none()
        {
            *slot = Some(result);
            state.remaining -= 1;
        }
        if state.remaining == 0 { state.waker.take() } else { None }
    }
}

impl Future for BatchFuture {
    type Output = Vec<Result<Bytes>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.batch.lock();
        if state.remaining > 0 {
            match &mut state.waker {
                Some(waker) => waker.clone_from(cx.waker()),
                waker => *waker = Some(cx.waker().clone()),
            }
            return Poll::Pending;
        }
        let results = std::mem::take(&mut state.results);
        Poll::Ready(results.into_iter().map(|r| r.unwrap_or_else(|| Err(closed()))).collect())
    }
}

impl Drop for BatchFuture {
    fn drop(&mut self) {
        let mut state = self.batch.lock();
        state.abandoned = true;
        // What has arrived for nobody is freed now, not with the last read of the batch.
        let unseen = std::mem::take(&mut state.results);
        let waker = state.waker.take();
        drop(state);
        drop((unseen, waker));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    #[test]
    fn a_batch_is_ready_with_its_last_result_and_in_order() {
        let batch = Batch::new(3);
        let mut future = batch.future();
        assert!(batch.complete(2, Ok(Bytes::from_static(b"c"))).is_none());
        assert!((&mut future).now_or_never().is_none());
        assert!(batch.complete(0, Err(closed())).is_none());
        assert!(batch.complete(0, Ok(Bytes::new())).is_none(), "a second answer does not count");
        batch.complete(1, Ok(Bytes::from_static(b"b"))).unwrap().wake();
        let results = future.now_or_never().unwrap();
        assert!(results[0].is_err());
        assert_eq!(results[1].as_ref().unwrap(), "b");
        assert_eq!(results[2].as_ref().unwrap(), "c");
    }

    #[test]
    fn an_abandoned_batch_takes_late_results_and_forgets_them() {
        let batch = Batch::new(2);
        let future = batch.future();
        assert!(!batch.is_abandoned());
        let kept = Bytes::from(vec![1u8; 10]);
        assert!(batch.complete(0, Ok(kept.clone())).is_none());
        drop(future);
        assert!(batch.is_abandoned());
        assert!(kept.is_unique(), "results for nobody are freed at once");
        assert!(batch.complete(1, Ok(kept.clone())).is_none());
        assert!(kept.is_unique());
    }
}
