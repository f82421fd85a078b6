//! Where an answer is between two messages, and what it holds of the budget.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tepui_bigtable::read_rows::ReadRows;
use tokio::sync::{Notify, oneshot};

use super::Connection;
use crate::limits::CLOSE_STALLED_AFTER;

/// Where an answer is between two messages. It lives as long as the last of its bytes is with the transport.
#[derive(Debug)]
pub(super) struct Slot {
    id: u64,
    pub(super) connection: Arc<Connection>,
    /// Units that its messages have of the budget, and their bytes.
    pub(super) units: AtomicUsize,
    pub(super) bytes: AtomicU64,
    /// When the transport last had a message, in microseconds of the monotonic clock.
    pub(super) since: AtomicU64,
    /// Told when it has sent all.
    sent: Notify,
    pub(super) state: Mutex<Parked>,
}

#[derive(Debug, Default)]
pub(super) struct Parked {
    /// Whether it waits for its client.
    pub(super) waits: bool,
    /// The read, while it waits; other answers hold nothing that they could let go of.
    pub(super) rows: Option<ReadRows>,
    pub(super) suspended: bool,
    /// What it waits for itself.
    pub(super) wants: Option<Wants>,
}

/// An answer that waits for room on its connection.
#[derive(Debug)]
pub(super) struct Wants {
    pub(super) units: usize,
    /// When [`Streams::relieve`](super::Streams::relieve) saw it first.
    pub(super) since: Option<u64>,
    /// Tells it to wait no longer.
    pub(super) refuse: oneshot::Sender<()>,
}

impl Slot {
    /// The slot of a new answer on this connection.
    pub(super) fn new(connection: &Arc<Connection>) -> Arc<Self> {
        let id = connection.answers_begun.fetch_add(1, Ordering::Relaxed);
        let slot = Arc::new(Self {
            id,
            connection: Arc::clone(connection),
            units: AtomicUsize::new(0),
            bytes: AtomicU64::new(0),
            since: AtomicU64::new(0),
            sent: Notify::new(),
            state: Mutex::default(),
        });
        lock(&connection.slots).insert(id, Arc::downgrade(&slot));
        slot
    }

    /// A charge has so many units.
    pub(super) fn took(&self, units: usize) {
        self.units.fetch_add(units, Ordering::Relaxed);
    }

    /// A charge that was for some bytes is for others.
    pub(super) fn holds(&self, before: u64, bytes: u64) {
        for counter in [&self.bytes, &self.connection.all_answer_bytes] {
            counter.fetch_add(bytes, Ordering::Relaxed);
            counter.fetch_sub(before, Ordering::Relaxed);
        }
    }

    /// A charge is gone.
    pub(super) fn gave_back(&self, units: usize, bytes: u64) {
        self.units.fetch_sub(units, Ordering::Relaxed);
        self.holds(bytes, 0);
        if bytes > 0 && self.bytes.load(Ordering::Relaxed) == 0 {
            self.sent.notify_one();
        }
    }

    /// Resolves when the transport has sent everything that there was.
    pub(super) async fn sent(&self) {
        while self.bytes.load(Ordering::Relaxed) > 0 {
            self.sent.notified().await;
        }
    }

    /// How long its client has left it, in microseconds.
    pub(super) fn left_for(&self, now: u64) -> u64 {
        now.saturating_sub(self.since.load(Ordering::Relaxed))
    }

    /// Whether its client has left a part of it unread for long. What it has for a message that is still to be made is none.
    pub(super) fn is_stuck(&self, now: u64) -> bool {
        self.bytes.load(Ordering::Relaxed) > 0 && self.left_for(now) >= micros(CLOSE_STALLED_AFTER)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        lock(&self.connection.slots).remove(&self.id);
    }
}

/// A time as the monotonic clock counts.
pub(super) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Locks; what a panic could leave behind is a read that ends with its stream.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
