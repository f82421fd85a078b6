//! Answers that clients have not read: their bytes, bounded, and reads that wait for their client, put aside.
//!
//! The transport asks a stream for a message when the client has room for it, or soon will have, and keeps the message until the
//! client has taken it. So the message that is made and one or two before it are in memory, with those that were made together
//! with it, and what the read itself holds: the memtables and files of its moment, blocks, rows read ahead.
//!
//! ```text
//! make_room ─► the message is made ─► cover ─► hand_over ─► with the transport ─► sent
//! as much as the last one took        as much as there is                         given back
//! ```
//!
//! Messages are charged to the budget and to their connection from before they are made until the transport has sent them
//! ([`super::charge`]). A read that is not asked for [`STALLED_AFTER`](crate::limits::STALLED_AFTER) is suspended: it keeps its
//! place and nothing else.
//!
//! An answer that finds no room waits until its own client has taken what it was sent, and only then for others: who waits in line
//! holds nothing, and is waited for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tepui_bigtable::error::{Error, Result};
use tepui_bigtable::read_rows::ReadRows;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::Connection;
use super::charge::{Charge, Handed};
use super::slot::{Slot, Wants, lock, micros};
use crate::limits::{ANSWERS_PER_CONNECTION_PART, CLOSE_STALLED_AFTER, STALLED_AFTER};

/// Bytes of a unit of the budget: what it is counted in.
const UNIT_BYTES: u64 = 1 << 10;

/// Bytes that are taken for a message before its size is known, at least: that of a first message.
const MESSAGE_BYTES_MIN: u64 = 64 << 10;

/// Units that a connection has beside its share, for first messages: a small read is answered while large ones hold the share. One that
/// turns out large keeps what it took while it waits for the share, so that few can be made that way: four. With one, a single
/// large read that waits would hold up the small ones; many would be as much memory as the share itself.
pub(super) const RESERVE_UNITS: usize = 4 * (MESSAGE_BYTES_MIN / UNIT_BYTES) as usize;

/// When to try again where a connection's answers leave no room: the client has to read them first.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The budget of answers.
#[derive(Debug)]
pub struct Streams {
    units: Arc<Semaphore>,
    units_max: u32,
    /// Answers that wait for the budget.
    waiting: AtomicU64,
    /// Bytes of messages that were made and not taken.
    bytes: Arc<AtomicU64>,
    connections: Mutex<Vec<Weak<Connection>>>,
    suspended: AtomicU64,
    refused: AtomicU64,
    closed: AtomicU64,
}

/// Figures of [`Streams`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamFigures {
    /// Bytes of messages that were made and not taken.
    pub bytes: u64,
    /// Answers that wait for the budget.
    pub waiting: u64,
    /// Answers that wait for their client.
    pub parked: u64,
    /// Reads that were suspended so far.
    pub suspended: u64,
    /// Answers that were ended so far because the client did not read others of its connection.
    pub refused: u64,
    /// Connections that were closed so far because their clients did not read.
    pub closed: u64,
}

impl Streams {
    /// A budget of this many bytes.
    pub fn new(bytes: u64) -> Self {
        let units_max =
            u32::try_from(bytes / UNIT_BYTES).unwrap_or(u32::MAX >> 4).clamp(1, u32::MAX >> 4);
        Self {
            units: Arc::new(Semaphore::new(units_max as usize)),
            units_max,
            waiting: AtomicU64::new(0),
            bytes: Arc::default(),
            connections: Mutex::default(),
            suspended: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            closed: AtomicU64::new(0),
        }
    }

    /// Units that one connection may have.
    fn share(&self) -> u32 {
        (self.units_max / ANSWERS_PER_CONNECTION_PART).max(1)
    }

    /// A new connection.
    pub(super) fn connection(&self) -> Arc<Connection> {
        let connection = Connection::new(self.share(), Arc::clone(&self.bytes));
        lock(&self.connections).push(Arc::downgrade(&connection));
        connection
    }

    /// An answer to a request on this connection; a request that came without one counts as alone on its own.
    pub fn answer(self: &Arc<Self>, connection: Option<Arc<Connection>>) -> Answer {
        let connection = connection.unwrap_or_else(|| self.connection());
        let slot = Slot::new(&connection);
        let handed = Handed::default();
        let streams = Arc::clone(self);
        Answer { streams, slot, charge: None, reserved: None, handed, last_bytes: 0 }
    }

    /// Figures.
    pub fn figures(&self) -> StreamFigures {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let connections = self.connections();
        let slots = connections.iter().flat_map(|connection| slots(connection));
        StreamFigures {
            bytes: get(&self.bytes),
            waiting: get(&self.waiting),
            parked: slots.filter(|slot| lock(&slot.state).waits).count() as u64,
            suspended: get(&self.suspended),
            refused: get(&self.refused),
            closed: get(&self.closed),
        }
    }

    /// The connections that there are; forgets the others.
    fn connections(&self) -> Vec<Arc<Connection>> {
        let mut all = lock(&self.connections);
        all.retain(|connection| connection.strong_count() > 0);
        all.iter().filter_map(Weak::upgrade).collect()
    }

    /// Suspends the reads whose clients have stalled. Refuses the answers that wait for room on a connection whose client has left
    /// others unread there for long: what the transport has of those cannot be taken back, and the client may wait for
    /// the one before it reads the others. Where answers wait for the budget, closes the connection that holds most of it with
    /// messages that its client does not take; one in each call, since others may go on by that. `now` is the
    /// monotonic clock, in microseconds.
    ///
    /// Where the memory of memtables is `short`, it suspends all reads that are between two messages: an old read
    /// keeps memtables that were flushed long ago, and a slow one would keep them from writers.
    pub fn relieve(&self, now: u64, short: bool) {
        let mut most: Option<(u64, Arc<Connection>)> = None;
        for connection in self.connections() {
            let slots = slots(&connection);
            let (mut units, mut bytes) = (0, 0);
            for slot in &slots {
                if short || slot.left_for(now) >= micros(STALLED_AFTER) {
                    self.suspend(slot);
                }
                if slot.is_stuck(now) {
                    units += slot.units.load(Ordering::Relaxed);
                    bytes += slot.bytes.load(Ordering::Relaxed);
                }
            }
            let free = (self.share() as usize).saturating_sub(units);
            for slot in &slots {
                self.refuse(slot, free, now);
            }
            if bytes > most.as_ref().map_or(0, |(bytes, _)| *bytes) {
                most = Some((bytes, connection));
            }
        }
        if self.waiting.load(Ordering::Relaxed) > 0
            && self.units.available_permits() < self.share() as usize
            && let Some((bytes, connection)) = most
        {
            tracing::warn!(bytes, "closed a connection whose client does not read its answers");
            self.closed.fetch_add(1, Ordering::Relaxed);
            connection.close();
        }
    }

    fn suspend(&self, slot: &Slot) {
        let mut parked = lock(&slot.state);
        if parked.waits
            && !parked.suspended
            && let Some(rows) = &mut parked.rows
        {
            rows.suspend();
            parked.suspended = true;
            self.suspended.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Refuses an answer that has waited for long and for more than is `free` as long as nothing is read of those that are stuck.
    fn refuse(&self, slot: &Slot, free: usize, now: u64) {
        let mut parked = lock(&slot.state);
        let Some(wants) = &mut parked.wants else { return };
        let waited = now.saturating_sub(*wants.since.get_or_insert(now));
        if wants.units > free
            && waited >= micros(CLOSE_STALLED_AFTER)
            && let Some(wants) = parked.wants.take()
            && wants.refuse.send(()).is_ok()
        {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The answers of a connection.
fn slots(connection: &Connection) -> Vec<Arc<Slot>> {
    lock(&connection.slots).values().filter_map(Weak::upgrade).collect()
}

/// The messages of one answer.
#[derive(Debug)]
pub struct Answer {
    streams: Arc<Streams>,
    slot: Arc<Slot>,
    /// For the message that is made, and those behind it.
    charge: Option<Charge>,
    /// What a first message that is made and waits for its charge keeps of the reserve.
    reserved: Option<Charge>,
    handed: Handed,
    last_bytes: u64,
}

impl Answer {
    /// Bytes that an answer has room for from its beginning.
    pub const BYTES_MIN: u64 = MESSAGE_BYTES_MIN;

    /// What is to be among the extensions of the response: by it the transport's bytes have their charges with them.
    pub fn handed(&self) -> Handed {
        self.handed.clone()
    }

    /// The transport asks for a message: waits for room, unless it is one that was made with the last and has its room.
    pub async fn make_room(&mut self) -> Result<()> {
        if self.charge.is_none() {
            let units = self.units(self.last_bytes.max(MESSAGE_BYTES_MIN));
            self.charge(units).await?;
        }
        lock(&self.slot.state).waits = false;
        Ok(())
    }

    /// Charges what there is now, the messages behind the next one included, if there is room for it at once.
    pub fn covers(&mut self, bytes: u64) -> bool {
        self.last_bytes = bytes;
        let units = self.units(bytes);
        if self.charge.as_ref().is_none_or(|charge| charge.units() < units) {
            // Given back first: who held some of the share and waited for more would wait for others who do the same.
            self.reserved = self.charge.take().filter(Charge::is_of_reserve);
            self.charge = self.try_charge(&self.slot.connection.answers, units);
        }
        self.count(bytes);
        self.charge.is_some()
    }

    /// The same; waits for room.
    pub async fn cover(&mut self, bytes: u64) -> Result<()> {
        if !self.covers(bytes) {
            self.charge(self.units(bytes)).await?;
            self.count(bytes);
        }
        self.reserved = None;
        Ok(())
    }

    /// Whether there is room that no message has taken with it.
    pub fn has_room(&self) -> bool {
        self.charge.is_some()
    }

    /// There is no next message yet: gives back what was taken for it.
    pub fn taken(&mut self) {
        self.charge = None;
        lock(&self.slot.state).waits = false;
    }

    /// Gives a message of so many bytes to the transport, with its charge. `now` is the monotonic clock, in microseconds.
    pub fn hand_over(&mut self, bytes: u64, now: u64) {
        self.slot.since.store(now, Ordering::Relaxed);
        self.reserved = None;
        let Some(mut charge) = self.charge.take() else { return };
        // What is larger than the share has all of it until the last of it is sent.
        let behind = self.units(charge.bytes().saturating_sub(bytes));
        let beyond = charge.units().saturating_sub(behind);
        if let Some(sent) = charge.split(bytes, beyond.min(self.units(bytes))) {
            self.handed.push(sent);
        }
        if charge.bytes() > 0 {
            drop(charge.split(0, charge.units().saturating_sub(behind)));
            self.charge = Some(charge);
        }
    }

    /// Units of a message of so many bytes. One that is larger than what a connection may have takes all of that.
    fn units(&self, bytes: u64) -> usize {
        let share = self.streams.share() as usize;
        usize::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(usize::MAX).min(share)
    }

    fn try_charge(&self, of: &Arc<Semaphore>, units: usize) -> Option<Charge> {
        let units = u32::try_from(units).ok()?;
        let mine = Arc::clone(of).try_acquire_many_owned(units).ok()?;
        let all = Arc::clone(&self.streams.units).try_acquire_many_owned(units).ok()?;
        Some(Charge::new(mine, all, &self.slot))
    }

    async fn charge(&mut self, units: usize) -> Result<()> {
        let connection = &self.slot.connection;
        let is_first = self.last_bytes == 0;
        let mut charge = self.try_charge(&connection.answers, units);
        if charge.is_none() && is_first {
            charge = self.try_charge(&connection.reserve, units);
        }
        if charge.is_none() {
            self.slot.sent().await;
            let _waiting = Waiting::new(&self.streams.waiting);
            let mine = self.of_connection(units, is_first).await?;
            let all = Arc::clone(&self.streams.units);
            let all = all.acquire_many_owned(units as u32).await;
            let all = all.expect("the budgets are never closed");
            charge = Some(Charge::new(mine, all, &self.slot));
        }
        self.charge = charge;
        Ok(())
    }

    /// Waits for units of its connection's share, the first message also for those of the reserve; until it is refused.
    async fn of_connection(&self, units: usize, is_first: bool) -> Result<OwnedSemaphorePermit> {
        let connection = &self.slot.connection;
        let (refuse, refused) = oneshot::channel();
        lock(&self.slot.state).wants = Some(Wants { units, since: None, refuse });
        let acquire = |of: &Arc<Semaphore>| Arc::clone(of).acquire_many_owned(units as u32);
        let permit = tokio::select! {
            biased;
            permit = acquire(&connection.answers) => permit,
            permit = acquire(&connection.reserve), if is_first => permit,
            Ok(()) = refused => {
                return Err(Error::overloaded(
                    "the client does not read other answers of this connection, which hold its memory for answers;                      read them, or use another connection",
                    RETRY_AFTER,
                ));
            }
        };
        lock(&self.slot.state).wants = None;
        Ok(permit.expect("the budgets are never closed"))
    }

    /// Counts what is held for the figures.
    fn count(&mut self, bytes: u64) {
        if let Some(charge) = &mut self.charge {
            charge.count(bytes);
        }
    }

    /// Whether messages of so many bytes take no more than any answer does from its beginning.
    pub fn is_small(bytes: u64) -> bool {
        bytes <= MESSAGE_BYTES_MIN
    }

    /// The last message is with the client from now on. A read is put aside until its client asks for more.
    pub fn park(&mut self, rows: Option<ReadRows>) {
        let mut parked = lock(&self.slot.state);
        (parked.waits, parked.rows, parked.suspended) = (true, rows, false);
    }

    /// Takes the read back.
    pub fn unpark(&mut self) -> Option<ReadRows> {
        lock(&self.slot.state).rows.take()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        // What the transport has of it may stay for long; the read does not.
        let mut parked = lock(&self.slot.state);
        (parked.waits, parked.wants) = (false, None);
        let rows = parked.rows.take();
        drop(parked);
        drop(rows);
    }
}

/// Counts an answer while it waits.
struct Waiting<'a>(&'a AtomicU64);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicU64) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    #[tokio::test]
    async fn one_connection_holds_a_part_of_the_budget_and_others_go_on() {
        let streams = Arc::new(Streams::new(1 << 20));
        let greedy = streams.connection();
        let mut held = Vec::new();
        loop {
            let mut answer = streams.answer(Some(Arc::clone(&greedy)));
            if answer.make_room().now_or_never().is_none() {
                break;
            }
            answer.cover(64 << 10).await.unwrap();
            held.push(answer);
        }
        let share = (1 << 20) / ANSWERS_PER_CONNECTION_PART as usize / (64 << 10);
        assert_eq!(held.len(), share + 4, "its share and the reserve");
        assert_eq!(streams.figures().bytes, held.len() as u64 * (64 << 10));
        let mut other = streams.answer(None);
        assert!(other.make_room().now_or_never().is_some());
        // The client took one message: the next of the same connection goes on.
        held.pop();
        let mut answer = streams.answer(Some(greedy));
        assert!(answer.make_room().now_or_never().is_some());
        drop((held, answer, other));
        assert_eq!(streams.figures(), StreamFigures::default());
    }

    #[tokio::test]
    async fn a_message_larger_than_the_budget_still_has_its_turn() {
        let streams = Arc::new(Streams::new(256 << 10));
        let mut answer = streams.answer(None);
        answer.make_room().await.unwrap();
        answer.cover(100 << 20).await.unwrap();
        answer.taken();
        assert!(answer.make_room().now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_message_that_turns_out_large_is_charged_for_what_it_is() {
        let streams = Arc::new(Streams::new(8 << 20));
        let connection = streams.connection();
        let mut first = streams.answer(Some(Arc::clone(&connection)));
        first.make_room().await.unwrap();
        first.cover(1 << 20).await.unwrap();
        let mut second = streams.answer(Some(connection));
        second.make_room().await.unwrap();
        assert!(second.cover(128 << 10).now_or_never().is_none(), "the connection has its part");
        let mut other = streams.answer(None);
        assert!(other.make_room().now_or_never().is_some());
        first.taken();
        assert!(second.make_room().now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_more_holds_nothing_meanwhile() {
        let streams = Arc::new(Streams::new(8 << 20));
        let connection = streams.connection();
        let mut answers: Vec<_> =
            (0..16).map(|_| streams.answer(Some(Arc::clone(&connection)))).collect();
        for answer in &mut answers {
            assert!(answer.make_room().now_or_never().is_some());
        }
        // All of the connection's part is held, and everybody needs more than the rest of it.
        let covered = answers.iter_mut().map(|answer| async move {
            answer.cover(600 << 10).await.unwrap();
            answer.taken();
        });
        let all = tokio::time::timeout(STALLED_AFTER, futures::future::join_all(covered)).await;
        assert!(all.is_ok(), "they wait for each other");
    }

    #[tokio::test]
    async fn any_answer_that_its_client_leaves_is_ended_where_others_wait_for_its_memory() {
        let streams = Arc::new(Streams::new(8 << 20));
        let mut left = Vec::new();
        for _ in 0..ANSWERS_PER_CONNECTION_PART {
            let mut answer = streams.answer(None);
            answer.make_room().await.unwrap();
            answer.cover(1 << 20).await.unwrap();
            answer.hand_over(1 << 20, 1_000);
            answer.park(None);
            left.push(answer);
        }
        assert_eq!(streams.figures().parked, u64::from(ANSWERS_PER_CONNECTION_PART));
        let late = 1_000 + CLOSE_STALLED_AFTER.as_micros() as u64;
        streams.relieve(late, false);
        assert_eq!(streams.figures().closed, 0, "nobody waits");
        let mut other = streams.answer(None);
        let mut waits = Box::pin(other.make_room());
        assert!(waits.as_mut().now_or_never().is_none());
        // One whose client has taken its message is left alone, and there is room.
        drop(left[0].handed.take());
        assert!(waits.as_mut().now_or_never().is_some());
        drop(waits);
        drop(other);
        left[0].cover(1 << 20).await.unwrap();
        let mut other = streams.answer(None);
        let mut waits = Box::pin(other.make_room());
        assert!(waits.as_mut().now_or_never().is_none());
        streams.relieve(late - 1, false);
        assert_eq!(streams.figures().closed, 0, "it is not long enough");
        streams.relieve(late, false);
        assert_eq!(streams.figures().closed, 1);
    }

    /// An answer of a connection that was handed to the transport and not sent.
    async fn unsent(streams: &Arc<Streams>, connection: &Arc<Connection>, bytes: u64) -> Answer {
        let mut answer = streams.answer(Some(Arc::clone(connection)));
        answer.make_room().await.unwrap();
        answer.cover(bytes).await.unwrap();
        answer.hand_over(bytes, 1_000);
        answer
    }

    #[tokio::test]
    async fn small_answers_go_on_beside_large_ones_that_hold_the_share_or_wait_for_it() {
        let streams = Arc::new(Streams::new(8 << 20));
        let connection = streams.connection();
        let _large = unsent(&streams, &connection, 1 << 20).await;
        let mut other = streams.answer(Some(Arc::clone(&connection)));
        other.make_room().await.unwrap();
        let mut waits = Box::pin(other.cover(1 << 20));
        assert!(waits.as_mut().now_or_never().is_none());
        let mut made = Vec::new();
        let large = |made: &mut Vec<Answer>| {
            let mut next = streams.answer(Some(Arc::clone(&connection)));
            let has_room = next.make_room().now_or_never().is_some();
            if has_room {
                assert!(!next.covers(1 << 20));
            }
            made.push(next);
            has_room
        };
        assert!(large(&mut made));
        let mut small = Vec::new();
        for _ in 0..40 {
            small.push(unsent(&streams, &connection, 100).now_or_never().expect("it is small"));
            if small.len() > 20 {
                small.remove(0);
            }
        }
        // Large ones that are made keep what they took: only so many get as far.
        small.clear();
        assert_eq!([(); 3].map(|()| large(&mut made)), [true, true, false]);
    }

    #[tokio::test]
    async fn an_answer_that_waits_for_others_that_its_client_leaves_is_refused_with_a_hint() {
        let streams = Arc::new(Streams::new(8 << 20));
        let connection = streams.connection();
        let large = unsent(&streams, &connection, 1 << 20).await;
        let mut other = streams.answer(Some(Arc::clone(&connection)));
        other.make_room().await.unwrap();
        let mut waits = Box::pin(other.cover(512 << 10));
        assert!(waits.as_mut().now_or_never().is_none());
        let long = CLOSE_STALLED_AFTER.as_micros() as u64;
        streams.relieve(1_000, false);
        streams.relieve(long, false);
        assert!(waits.as_mut().now_or_never().is_none(), "it is not long enough");
        streams.relieve(1_000 + long, false);
        let error = waits.await.unwrap_err();
        assert_eq!(error.kind(), tepui_bigtable::error::Code::ResourceExhausted);
        assert!(error.retry_after().is_some());
        assert_eq!((streams.figures().refused, streams.figures().closed), (1, 0));
        // One that waits for itself is left alone: its client is not waiting for it.
        let mut large = large;
        let mut waits = Box::pin(large.make_room());
        assert!(waits.as_mut().now_or_never().is_none());
        streams.relieve(1_000 + 9 * long, false);
        streams.relieve(1_000 + 11 * long, false);
        assert!(waits.as_mut().now_or_never().is_none());
        drop(waits);
        drop(large.handed.take());
        assert!(large.make_room().now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_message_is_charged_until_it_was_sent_though_the_next_was_asked_for() {
        let streams = Arc::new(Streams::new(64 << 20));
        let connection = streams.connection();
        // With as much behind it, which is the next message.
        let mut answer = streams.answer(Some(connection));
        answer.make_room().await.unwrap();
        answer.cover(2 << 20).await.unwrap();
        answer.hand_over(1 << 20, 1_000);
        let sent = answer.handed.take();
        assert_eq!(streams.figures().bytes, 2 << 20);
        answer.make_room().await.unwrap();
        answer.cover(1 << 20).await.unwrap();
        answer.hand_over(1 << 20, 1_000);
        assert_eq!(streams.figures().bytes, 2 << 20);
        drop(sent);
        assert_eq!(streams.figures().bytes, 1 << 20);
        // Also after the end of the answer.
        let handed = answer.handed();
        drop(answer);
        assert_eq!(streams.figures().bytes, 1 << 20);
        drop(handed);
        assert_eq!(streams.figures(), StreamFigures::default());
    }
}
