//! How many bytes of rows a worker has in memory between its two threads. What is queued and under way is counted in pieces as
//! well, but one piece is anything from a few bytes to the largest row.

use std::pin::pin;
use std::sync::Arc;

use futures::future::{Either, select};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::error::{Error, Result};

/// Bytes of rows that a worker has queued and under way, at most, but for one larger piece alone. More are no faster: this is
/// several times what the counts of pieces come to where rows are small. Fewer would have rows of some MiB wait for one another.
pub const HELD_BYTES_MAX: u32 = 64 << 20;

/// The room that a worker has.
#[derive(Debug, Clone)]
pub struct Room(Arc<Semaphore>);

/// A piece's part of it, until it is dropped.
#[derive(Debug)]
pub struct Held {
    _permit: OwnedSemaphorePermit,
}

impl Room {
    /// All of it.
    pub fn new() -> Self {
        Self(Arc::new(Semaphore::new(HELD_BYTES_MAX as usize)))
    }

    /// Waits until a piece of so many bytes fits; one that is larger than all there is, until nothing else is held. Those that wait
    /// have their turns in order.
    async fn hold(&self, bytes: usize) -> Result<Held> {
        let part = u32::try_from(bytes).unwrap_or(u32::MAX).min(HELD_BYTES_MAX);
        let permit = Arc::clone(&self.0).acquire_many_owned(part).await;
        permit.map(|permit| Held { _permit: permit }).map_err(|e| Error::failed(e.to_string()))
    }

    /// The same for what goes into a queue, as long as somebody takes from that: `None` once nobody does. What lies in it then is never
    /// given back.
    pub async fn hold_for<T>(&self, bytes: usize, queue: &mpsc::Sender<T>) -> Option<Result<Held>> {
        match select(pin!(self.hold(bytes)), pin!(queue.closed())).await {
            Either::Left((held, _)) => Some(held),
            Either::Right(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn nobody_waits_for_what_lies_in_a_queue_that_nobody_takes_from() {
        let (queue, taker) = mpsc::channel::<Held>(1);
        let room = Room::new();
        let all = HELD_BYTES_MAX as usize;
        let _lost = room.hold(all).now_or_never().unwrap().unwrap();
        assert!(room.hold_for(1, &queue).now_or_never().is_none());
        drop(taker);
        assert!(room.hold_for(1, &queue).now_or_never().unwrap().is_none());
    }

    #[test]
    fn what_does_not_fit_waits_and_what_never_fits_goes_alone() {
        let room = Room::new();
        let hold = |bytes: usize| room.hold(bytes).now_or_never().map(Result::unwrap);
        let all = HELD_BYTES_MAX as usize;
        let first = hold(all / 2).unwrap();
        let second = hold(all / 2).unwrap();
        assert!(hold(1).is_none());
        drop(first);
        assert!(hold(all / 2 + 1).is_none());
        assert!(hold(usize::MAX).is_none());
        drop(second);
        let alone = hold(usize::MAX).unwrap();
        assert!(hold(1).is_none() && hold(0).is_some());
        drop(alone);
        assert!(hold(all).is_some());
    }
}
