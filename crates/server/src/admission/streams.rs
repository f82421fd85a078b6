//! Answers that clients have not read: their bytes, bounded, and reads that wait for their client, put aside.
//!
//! A body gives the transport its next message when the last one was sent ([`super::paced`]). So from one message to the
//! next, the first one is in memory, with those that were made together
//! with it, and what the read itself holds: the memtables and files of its moment, blocks, rows read ahead.
//!
//! ```text
//! make_room ─► the message is made ─► cover ─► with the transport ─► taken: make_room, or the end
//! as much as the last one took        as much as there is           given back, but for what is made already
//! ```
//!
//! Messages are charged to the budget and to their connection from before they are made until the last of them was
//! taken: to the connection up to all that it may have, to the budget up to [`LARGE_ANSWER_PART`] of it. A part of the budget is kept for first
//! messages that are small, of which each connection has a few: those whose clients do not read may have all the rest, and a read of a row is
//! answered all the same. A read that does not go on for [`STALLED_AFTER`](crate::limits::STALLED_AFTER), since its client does not ask for more or
//! there is no room for it, is suspended: it keeps its place and nothing else. Rows that lie read ahead are charged with the message that
//! they lie behind; who has to wait for room lets go of them at once.
//!
//! Who waits for room holds none, since others would wait for it in turn, but a row that turned out larger than was expected is there while it waits. So it is
//! expected what the connection's reads began with of late; where there is no room for that, one read of the
//! connection at a time goes on with little, and the next when the message of that one is covered, or long in coming.

use std::collections::{HashMap, HashSet};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures::future::{Either, select};
use tepui_bigtable::error::{Error, Result};
use tepui_bigtable::read_rows::ReadRows;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};

use super::loose::AllLoose;
use super::{Connection, Gate, Hold};
use crate::call::Deadline;
use crate::limits::{
    ANSWER_WAIT, ANSWERS_PER_CONNECTION_PART, CLOSE_STALLED_AFTER, CLOSE_STALLED_BYTES,
    FIRST_MESSAGE_TURN, FIRST_MESSAGE_TURN_BYTES, FIRST_MESSAGES_KEPT_CONNECTIONS,
    FIRST_MESSAGES_KEPT_PART, LARGE_ANSWER_PART, READ_AHEAD_PART, STALLED_AFTER,
    STALLED_REQUESTS_PART,
};

/// Bytes of a unit of the budget: what it is counted in.
const UNIT_BYTES: u64 = 1 << 10;

/// Bytes that are taken for a message before its size is known, at least: that of a first message.
const MESSAGE_BYTES_MIN: u64 = 64 << 10;

/// Reads of a new connection that make their first messages at a time, while nobody knows how large these are: each expects this part of what
/// the connection may have. As many as a read of several rows has under way; each message that is small lets twice as many.
const FIRST_MESSAGES_PART: u64 = 16;

/// When to try again where a connection's answers leave no room: the client has to read them first.
const RETRY_AFTER: Duration = Duration::from_secs(1);

const NEVER_CLOSED: &str = "the budgets are never closed";

/// The budget of answers.
#[derive(Debug)]
pub struct Streams {
    units: Arc<Semaphore>,
    units_max: u32,
    /// What is kept for first messages, and what of it a connection may have.
    kept: Arc<Semaphore>,
    kept_of_connection: u32,
    /// Answers that wait for the budget.
    waiting: AtomicU64,
    /// Bytes of messages that were made and not taken.
    bytes: Arc<AtomicU64>,
    /// Bytes of answers that were made for which there was no room.
    uncovered: AtomicU64,
    /// What connections have without room for it.
    pub(super) loose: AllLoose,
    /// Something was refused for them since this was asked last.
    was_short: AtomicBool,
    /// Answers that are parked, or were, or wait for room.
    parked: Arc<Mutex<HashMap<u64, Weak<Slot>>>>,
    next: AtomicU64,
    /// How often reads were asked to let go of what they hold.
    asked: AtomicU64,
    suspended: AtomicU64,
    refused: AtomicU64,
    closed: AtomicU64,
}

/// Where an answer is between two messages, or before its first.
#[derive(Debug)]
struct Slot {
    connection: Arc<Connection>,
    hold: Hold,
    state: Mutex<Parked>,
    /// The read is back from being suspended.
    is_back: Notify,
}

#[derive(Debug, Default)]
struct Parked {
    /// Whether it waits for its client.
    waits: bool,
    /// The read, while it waits for its client, and then for room; other answers hold nothing that they could let go of.
    rows: Option<ReadRows>,
    /// The read is being suspended, which may take as long as a row of hundreds of megabytes takes to copy: so it is taken out meanwhile, and
    /// who looks for it waits for it and not for this lock.
    is_lent: bool,
    /// When the last message was made, in microseconds of the monotonic clock.
    since: u64,
    /// Bytes of the messages that its client has not taken.
    bytes: u64,
    /// Of these, the ones behind the first, and rows read ahead.
    behind_bytes: u64,
    suspended: bool,
}

impl Slot {
    /// What was lent is suspended.
    fn give_back(&self, rows: ReadRows) {
        let mut parked = lock(&self.state);
        (parked.rows, parked.is_lent, parked.suspended) = (Some(rows), false, true);
        drop(parked);
        self.is_back.notify_one();
    }
}

impl Parked {
    /// The read, which is to be given back.
    fn lend(&mut self) -> Option<ReadRows> {
        let rows = self.rows.take();
        self.is_lent |= rows.is_some();
        rows
    }

    /// How long its client may take for the message that the transport has, in microseconds.
    fn patience(&self) -> u64 {
        let parts = self.bytes.saturating_sub(self.behind_bytes) / CLOSE_STALLED_BYTES;
        CLOSE_STALLED_AFTER.as_micros() as u64 * parts.max(1)
    }
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
    /// Answers that were refused so far because others of their connection were not read.
    pub refused: u64,
    /// Connections that were closed so far because their clients did not read.
    pub closed: u64,
}

impl Streams {
    /// A budget of this many bytes, of which it keeps [`FIRST_MESSAGES_KEPT_PART`] for first messages.
    pub fn within(bytes: u64) -> Self {
        Self::new(bytes - bytes / u64::from(FIRST_MESSAGES_KEPT_PART))
    }

    /// A budget of this many bytes beside what is kept for first messages.
    pub(crate) fn new(bytes: u64) -> Self {
        let units_max =
            u32::try_from(bytes / UNIT_BYTES).unwrap_or(u32::MAX >> 4).clamp(1, u32::MAX >> 4);
        let kept = units_max / (FIRST_MESSAGES_KEPT_PART - 1);
        let least = (MESSAGE_BYTES_MIN / UNIT_BYTES) as u32;
        Self {
            units: Arc::new(Semaphore::new(units_max as usize)),
            units_max,
            kept: Arc::new(Semaphore::new(kept as usize)),
            kept_of_connection: (kept / FIRST_MESSAGES_KEPT_CONNECTIONS).max(least),
            waiting: AtomicU64::new(0),
            bytes: Arc::default(),
            uncovered: AtomicU64::new(0),
            loose: AllLoose::beside(bytes),
            was_short: AtomicBool::new(false),
            parked: Arc::default(),
            next: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            suspended: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            closed: AtomicU64::new(0),
        }
    }

    /// A new connection.
    pub(crate) fn connection(self: &Arc<Self>) -> Arc<Connection> {
        let units = (self.units_max / ANSWERS_PER_CONNECTION_PART).max(1);
        let share_bytes = u64::from(units) * UNIT_BYTES;
        Connection::new(Arc::clone(self), units, self.kept_of_connection, share_bytes)
    }

    /// An answer to a request that holds this; one that came by no connection counts as alone on its own. It keeps the
    /// request's room, since it is made from parts of the request: keys, and a filter.
    pub fn answer(self: &Arc<Self>, hold: Hold) -> Answer {
        let connection = hold.connection().map_or_else(|| self.connection(), Arc::clone);
        Answer {
            streams: Arc::clone(self),
            connection,
            hold,
            asked: self.asked.load(Ordering::Relaxed),
            charge: None,
            turn: None,
            slot: None,
            last_bytes: 0,
            behind_bytes: 0,
            ahead_bytes: 0,
            uncovered_bytes: 0,
        }
    }

    /// Figures.
    pub fn figures(&self) -> StreamFigures {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        StreamFigures {
            bytes: get(&self.bytes),
            waiting: get(&self.waiting),
            parked: self.slots().iter().filter(|slot| lock(&slot.state).waits).count() as u64,
            suspended: get(&self.suspended),
            refused: get(&self.refused),
            closed: get(&self.closed),
        }
    }

    fn slots(&self) -> Vec<Arc<Slot>> {
        lock(&self.parked).values().filter_map(Weak::upgrade).collect()
    }

    /// Ends the reads whose deadline has passed: nobody asks for their next message, with which they would be told, while the transport has one that
    /// is not taken. Suspends those whose clients have stalled, and those that have waited as long for room. Where answers wait
    /// for the budget, closes the connection that holds most of it with messages that its client does not take. Where requests waited in vain for
    /// theirs at the `gate`, and the reads of connections with such answers keep [`STALLED_REQUESTS_PART`] of it, closes the one whose reads keep
    /// most: what waits for room behind those answers keeps it as well. One in each call, since others may go on by that. `now` is the
    /// monotonic clock, in microseconds.
    ///
    /// Where the memory of memtables is `short`, or the disk has no room, it suspends all reads that are between two messages, and asks the
    /// others to be before their next one ([`Answer::lets_go`]): an old read keeps memtables that were flushed long ago, and files that
    /// are obsolete, and a long one would keep them from writers.
    pub fn relieve(&self, now: u64, short: bool, gate: &Gate) {
        if short {
            // Before it looks for those that are between two messages, so that none is missed.
            self.asked.fetch_add(1, Ordering::SeqCst);
        }
        let slots = self.slots();
        let mut stuck: Vec<(&Slot, u64)> = Vec::new();
        for slot in &slots {
            let mut parked = lock(&slot.state);
            let waited = now.saturating_sub(parked.since);
            let stalled = waited >= STALLED_AFTER.as_micros() as u64;
            if parked.waits && waited >= parked.patience() {
                stuck.push((slot, parked.bytes));
            }
            if parked.rows.is_some() && slot.hold.deadline().is_some_and(Deadline::has_passed) {
                let ended = parked.rows.take();
                drop(parked);
                // Of what it was asked for keys are left, which it has.
                drop(ended);
                slot.hold.is_gone();
            } else if (stalled || short) && !parked.suspended {
                let lent = parked.lend();
                drop(parked);
                if let Some(mut rows) = lent {
                    rows.suspend();
                    slot.give_back(rows);
                    self.suspended.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        let share = (self.units_max / ANSWERS_PER_CONNECTION_PART) as usize;
        let is_short = self.was_short.swap(false, Ordering::Relaxed);
        if is_short
            || self.waiting.load(Ordering::Relaxed) > 0 && self.units.available_permits() < share
        {
            return self.close_one(stuck.into_iter());
        }
        let left: HashSet<_> =
            stuck.iter().map(|(slot, _)| Arc::as_ptr(&slot.connection)).collect();
        for pool in gate.pools().filter(|pool| pool.was_short()) {
            let kept = slots.iter().filter(|slot| left.contains(&Arc::as_ptr(&slot.connection)));
            let kept = kept.map(|slot| (slot.as_ref(), pool.bytes_of(&slot.hold)));
            let kept: Vec<_> = kept.collect();
            if kept.iter().map(|(_, bytes)| bytes).sum::<u64>()
                >= pool.bytes() / STALLED_REQUESTS_PART
            {
                return self.close_one(kept.into_iter());
            }
        }
    }

    /// Refuses what may have a large answer while those for which there was no room are as many as all that there is.
    pub(super) fn check_uncovered(&self) -> Result<()> {
        if self.uncovered.load(Ordering::Relaxed) < u64::from(self.units_max) * UNIT_BYTES {
            return Ok(());
        }
        self.was_short.store(true, Ordering::Relaxed);
        self.refused.fetch_add(1, Ordering::Relaxed);
        let what = "answers that clients do not read have all of the memory for answers";
        Err(Error::overloaded(what, RETRY_AFTER))
    }

    pub(super) fn refuse(&self) -> Error {
        self.refused.fetch_add(1, Ordering::Relaxed);
        let what = "other answers of this connection, which its client does not read, hold the memory that it may have; \
                    read them, or use another connection";
        Error::overloaded(what, RETRY_AFTER)
    }

    /// Answers whose clients do not go on by this time.
    #[cfg(test)]
    pub(crate) fn stuck(&self, now: u64) -> usize {
        let is_stuck = |slot: &Arc<Slot>| {
            let parked = lock(&slot.state);
            parked.waits && now.saturating_sub(parked.since) >= parked.patience()
        };
        self.slots().iter().filter(|slot| is_stuck(slot)).count()
    }

    /// Closes the connection whose answers hold most; each has its own.
    fn close_one<'a>(&self, holding: impl Iterator<Item = (&'a Slot, u64)>) {
        let mut held: HashMap<_, (u64, &Connection)> = HashMap::new();
        for (slot, bytes) in holding {
            let id = Arc::as_ptr(&slot.connection);
            held.entry(id).or_insert_with(|| (0, &slot.connection)).0 += bytes;
        }
        if let Some((bytes, connection)) = held.into_values().max_by_key(|(bytes, _)| *bytes) {
            tracing::warn!(bytes, "closed a connection whose client does not read its answers");
            self.closed.fetch_add(1, Ordering::Relaxed);
            connection.close();
        }
    }
}

/// Bytes that the first message of a read on a connection is expected to have.
#[derive(Debug)]
pub(super) struct Expected(AtomicU64);

impl Expected {
    /// Of a connection that may have so many bytes, before its first read.
    pub(super) fn first(share_bytes: u64) -> Self {
        Self(AtomicU64::new((share_bytes / FIRST_MESSAGES_PART).max(MESSAGE_BYTES_MIN)))
    }

    fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// How long one that is made in less room has the turn.
    fn turn(&self) -> Duration {
        let parts = self.bytes().div_ceil(FIRST_MESSAGE_TURN_BYTES).max(1);
        FIRST_MESSAGE_TURN.saturating_mul(u32::try_from(parts).unwrap_or(u32::MAX))
    }

    /// A read began with so many. A small one halves what is expected of the next.
    fn learn(&self, bytes: u64) {
        let before = self.bytes();
        let bytes = bytes.max(before / 2).max(MESSAGE_BYTES_MIN);
        if bytes != before {
            self.0.store(bytes, Ordering::Relaxed);
        }
    }
}

/// What is taken for some bytes. What of the connection is taken first.
#[derive(Debug, Clone, Copy)]
struct Units {
    of_connection: u32,
    of_all: u32,
}

/// Bytes taken from the budget, for the messages that there are.
#[derive(Debug)]
struct Charge {
    of_all: OwnedSemaphorePermit,
    of_connection: OwnedSemaphorePermit,
    total: Arc<AtomicU64>,
    bytes: u64,
}

impl Charge {
    fn has(&self, units: Units) -> bool {
        self.of_connection.num_permits() >= units.of_connection as usize
            && self.of_all.num_permits() >= units.of_all as usize
    }

    /// Gives back what it has beyond so many units.
    fn shrink(&mut self, units: Units) {
        let of_both =
            [(&mut self.of_all, units.of_all), (&mut self.of_connection, units.of_connection)];
        for (permit, units) in of_both {
            let beyond = permit.num_permits().saturating_sub(units as usize);
            if beyond > 0 {
                drop(permit.split(beyond));
            }
        }
    }

    /// Counts what it is for in the figures.
    fn count(&mut self, bytes: u64) {
        self.total.fetch_add(bytes, Ordering::Relaxed);
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = bytes;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Connection {
    /// Units of a message of so many bytes. One that is larger than what a connection may have takes all of that, and of the budget what it
    /// is, as far as others are left some.
    fn units(&self, bytes: u64) -> Units {
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX);
        let part = |part: u32| units.min((self.streams.units_max / part).max(1));
        Units { of_connection: part(ANSWERS_PER_CONNECTION_PART), of_all: part(LARGE_ANSWER_PART) }
    }

    fn charged(&self, of_connection: OwnedSemaphorePermit, of_all: OwnedSemaphorePermit) -> Charge {
        Charge { of_all, of_connection, total: Arc::clone(&self.streams.bytes), bytes: 0 }
    }

    fn try_charge(&self, units: Units) -> Option<Charge> {
        let mine = Arc::clone(&self.answers);
        let mine = mine.try_acquire_many_owned(units.of_connection).ok()?;
        let all = Arc::clone(&self.streams.units).try_acquire_many_owned(units.of_all).ok()?;
        Some(self.charged(mine, all))
    }

    /// Charges so many bytes instead of what was charged, if there is room for them at once.
    fn covers(&self, charge: &mut Option<Charge>, bytes: u64) -> bool {
        let (units, kept) = (self.units(bytes), self.units(bytes.max(MESSAGE_BYTES_MIN)));
        match charge {
            Some(charge) if charge.has(units) => charge.shrink(kept),
            _ => {
                // Given back first: who held some and waited for more would wait for others who do the same.
                *charge = None;
                *charge = self.try_charge(units);
            }
        }
        let Some(charge) = charge else { return false };
        charge.count(bytes);
        true
    }
}

/// What an answer has room for, while a thread that blocks makes what is to have it.
#[derive(Debug)]
pub struct Lent {
    connection: Arc<Connection>,
    charge: Option<Charge>,
}

impl Lent {
    /// As [`Answer::covers`].
    pub fn covers(&mut self, bytes: u64) -> bool {
        self.connection.covers(&mut self.charge, bytes)
    }
}

/// The messages of one answer.
#[derive(Debug)]
pub struct Answer {
    streams: Arc<Streams>,
    connection: Arc<Connection>,
    /// That of its request.
    hold: Hold,
    /// [`Streams::asked`], as far as its read has let go.
    asked: u64,
    /// For the message that the transport has, and those behind it.
    charge: Option<Charge>,
    /// Where its first message is being made in less room than it is expected to take.
    turn: Option<OwnedSemaphorePermit>,
    /// Since it was first parked, or waited for room.
    slot: Option<(u64, Arc<Slot>)>,
    last_bytes: u64,
    /// Bytes of the messages behind the one that the transport has, where the next of them is whole.
    behind_bytes: u64,
    /// Bytes of rows that lie read ahead, which are charged with the last message.
    ahead_bytes: u64,
    /// Bytes of an answer that is made, for which there was no room.
    uncovered_bytes: u64,
}

impl Answer {
    /// Bytes that an answer has room for from its beginning.
    pub const BYTES_MIN: u64 = MESSAGE_BYTES_MIN;

    /// The client took the last message; waits for room for the next, unless that is made already.
    ///
    /// # Errors
    ///
    /// RESOURCE_EXHAUSTED where other answers of its connection hold what that may have for [`ANSWER_WAIT`].
    pub async fn make_room(&mut self) -> Result<()> {
        if self.keep_behind() {
            return Ok(());
        }
        let ahead_bytes = std::mem::take(&mut self.ahead_bytes);
        self.taken();
        if self.last_bytes > 0 {
            let units = |bytes: u64| self.units(bytes.max(MESSAGE_BYTES_MIN));
            let all = units(self.last_bytes);
            let least = units(self.last_bytes.saturating_sub(ahead_bytes));
            self.charge = self.try_charge(all);
            if self.charge.is_some() {
                return Ok(());
            }
            if let Some(rows) = &mut lock(&self.slot().state).rows {
                rows.drop_ahead();
            }
            return self.charge(least).await;
        }
        if self.has_room() { Ok(()) } else { self.make_room_in_turn().await }
    }

    /// Takes room for a first message, unless it has some, if there is room at once.
    pub fn has_room(&mut self) -> bool {
        if self.charge.is_none() {
            let units = self.units(self.connection.expected.bytes());
            self.charge = self.try_charge(units).or_else(|| self.try_kept(units));
        }
        self.charge.is_some()
    }

    /// Room for a first message, for which there is none at once.
    async fn make_room_in_turn(&mut self) -> Result<()> {
        self.slot();
        let _waiting = Waiting::new(&self.streams.waiting);
        let mut deadline = Instant::now() + ANSWER_WAIT;
        let turn = {
            let mut turn = pin!(Arc::clone(&self.connection.turn).acquire_owned());
            loop {
                match timeout_at(deadline, turn.as_mut()).await {
                    Ok(turn) => break turn.expect(NEVER_CLOSED),
                    // The one whose turn it is waits for what all connections share, or those before this one took long.
                    Err(_) if self.connection_has_room() => deadline += ANSWER_WAIT,
                    Err(_) => return Err(self.refuse()),
                }
            }
        };
        // What is expected by now.
        let expected = self.connection.expected.bytes();
        self.charge = self.try_charge(self.units(expected));
        if self.charge.is_none() {
            // Kept while it waits, but not where all that is expected will be charged.
            let turn = (expected > MESSAGE_BYTES_MIN).then_some(turn);
            self.charge = Some(self.wait_to_begin(deadline).await?);
            self.turn = turn;
        }
        Ok(())
    }

    fn connection_has_room(&self) -> bool {
        let least = self.units(MESSAGE_BYTES_MIN).of_connection;
        self.connection.answers.available_permits() >= least as usize
    }

    /// Awaits the next message of a read, for which there is room; `None` is its end. Where the first is made in less room than
    /// it is expected to take, others have their turn when it is long in coming.
    pub async fn make<T>(
        &mut self,
        mut next: Pin<&mut impl Future<Output = Option<T>>>,
    ) -> Option<T> {
        let in_turn = if self.turn.is_some() {
            // Boxed, so that reads that find room stay small.
            let made = Box::pin(timeout(self.connection.expected.turn(), next.as_mut())).await;
            self.turn = self.turn.take().filter(|_| made.is_ok());
            made.ok()
        } else {
            None
        };
        let made = match in_turn {
            Some(made) => made,
            None => next.await,
        };
        if made.is_none() && self.last_bytes == 0 {
            self.connection.expected.learn(0);
        }
        made
    }

    /// Charges what there is now, the messages behind the next one included, if there is room for it at once.
    pub fn covers(&mut self, bytes: u64) -> bool {
        if self.last_bytes == 0 {
            self.connection.expected.learn(bytes);
        }
        self.last_bytes = bytes;
        let covers = self.connection.covers(&mut self.charge, bytes);
        if covers {
            self.turn = None;
        }
        covers
    }

    /// The next message is expected to take so many bytes, whatever the last one took. Nothing is, before the first.
    pub fn expects(&mut self, bytes: u64) {
        if self.last_bytes > 0 {
            self.last_bytes = bytes;
        }
    }

    /// What it has room for, for a thread that makes what is to have it; given back, or gone with that.
    pub fn lend(&mut self) -> Lent {
        Lent { connection: Arc::clone(&self.connection), charge: self.charge.take() }
    }

    /// Takes back what was lent.
    pub fn take_back(&mut self, lent: Lent) {
        self.charge = lent.charge;
    }

    /// The same; waits for room, as [`Self::make_room`] does.
    pub async fn cover(&mut self, bytes: u64) -> Result<()> {
        if !self.covers(bytes) {
            self.charge(self.units(bytes)).await?;
            self.covered(bytes);
        }
        Ok(())
    }

    /// Counts what is held for the figures, and lets others make theirs, if it is charged.
    fn covered(&mut self, bytes: u64) {
        if let Some(charge) = &mut self.charge {
            charge.count(bytes);
            self.turn = None;
        }
    }

    /// So many of the bytes that it covers are behind the message that the transport is given, and the next message, whole, is among
    /// them; so many more lie read ahead.
    pub fn keep(&mut self, behind_bytes: u64, ahead_bytes: u64) {
        (self.behind_bytes, self.ahead_bytes) = (behind_bytes, ahead_bytes);
    }

    /// Bytes that its read may read ahead.
    pub fn ahead_bytes_max(&self) -> u64 {
        self.connection.share_bytes / READ_AHEAD_PART
    }

    /// The client took the last message; gives back what that had, where the next one is made already.
    fn keep_behind(&mut self) -> bool {
        let behind_bytes = std::mem::take(&mut self.behind_bytes);
        let bytes = behind_bytes + self.ahead_bytes;
        let units = self.units(bytes);
        match &mut self.charge {
            Some(charge) if behind_bytes > 0 => charge.shrink(units),
            _ => return false,
        }
        self.covered(bytes);
        self.waits_no_more();
        true
    }

    /// The client took the last message, and there is no next one yet.
    pub fn taken(&mut self) {
        self.charge = None;
        self.turn = None;
        (self.behind_bytes, self.ahead_bytes) = (0, 0);
        self.waits_no_more();
    }

    fn waits_no_more(&self) {
        if let Some((_, slot)) = &self.slot {
            let mut parked = lock(&slot.state);
            (parked.waits, parked.bytes) = (false, 0);
        }
    }

    fn units(&self, bytes: u64) -> Units {
        self.connection.units(bytes)
    }

    fn charged(&self, of_connection: OwnedSemaphorePermit, of_all: OwnedSemaphorePermit) -> Charge {
        self.connection.charged(of_connection, of_all)
    }

    fn try_charge(&self, units: Units) -> Option<Charge> {
        self.connection.try_charge(units)
    }

    /// What is kept for first messages, if this one is expected to be among the smallest and its connection may have more.
    fn try_kept(&self, units: Units) -> Option<Charge> {
        let is_small = units.of_all <= self.units(MESSAGE_BYTES_MIN).of_all;
        if !is_small || !self.connection_has_room() {
            return None;
        }
        let mine = Arc::clone(&self.connection.kept).try_acquire_many_owned(units.of_all).ok()?;
        let all = Arc::clone(&self.streams.kept).try_acquire_many_owned(units.of_all).ok()?;
        Some(self.charged(mine, all))
    }

    async fn charge(&mut self, units: Units) -> Result<()> {
        self.charge = self.try_charge(units);
        if self.charge.is_none() {
            self.slot();
            let _waiting = Waiting::new(&self.streams.waiting);
            self.charge = Some(self.wait(units, Instant::now() + ANSWER_WAIT).await?);
        }
        Ok(())
    }

    /// Waits for room for a first message: in the budget, or in what is kept for those.
    async fn wait_to_begin(&self, deadline: Instant) -> Result<Charge> {
        let units = self.units(MESSAGE_BYTES_MIN);
        let mine = self.wait_for_connection(units, deadline).await?;
        let all = Arc::clone(&self.streams.units).acquire_many_owned(units.of_all);
        let kept = async {
            let mine = Arc::clone(&self.connection.kept).acquire_many_owned(units.of_all).await;
            let all = Arc::clone(&self.streams.kept).acquire_many_owned(units.of_all).await;
            (mine.expect(NEVER_CLOSED), all.expect(NEVER_CLOSED))
        };
        Ok(match select(pin!(all), pin!(kept)).await {
            Either::Left((all, _)) => self.charged(mine, all.expect(NEVER_CLOSED)),
            Either::Right(((mine, all), _)) => self.charged(mine, all),
        })
    }

    /// Waits for so many units; until the deadline for those of its connection.
    async fn wait(&self, units: Units, deadline: Instant) -> Result<Charge> {
        let mine = self.wait_for_connection(units, deadline).await?;
        let all = Arc::clone(&self.streams.units).acquire_many_owned(units.of_all).await;
        Ok(self.charged(mine, all.expect(NEVER_CLOSED)))
    }

    /// Waits for what they are of its connection.
    async fn wait_for_connection(
        &self,
        units: Units,
        deadline: Instant,
    ) -> Result<OwnedSemaphorePermit> {
        let mine = Arc::clone(&self.connection.answers).acquire_many_owned(units.of_connection);
        let mine = timeout_at(deadline, mine).await.map_err(|_| self.refuse())?;
        Ok(mine.expect(NEVER_CLOSED))
    }

    fn refuse(&self) -> Error {
        self.streams.refuse()
    }

    /// Whether it is over as soon as its only message, of so many bytes, is made, and holds no room any more.
    pub fn is_over_at_once(&self, bytes: u64) -> bool {
        self.connection.is_over_at_once(bytes)
    }

    /// Where it is seen by who relieves others; from the first call on.
    fn slot(&mut self) -> &Slot {
        let (streams, connection, hold) = (&self.streams, &self.connection, &self.hold);
        let (_, slot) = self.slot.get_or_insert_with(|| {
            let (connection, hold) = (Arc::clone(connection), hold.clone());
            let (state, is_back) = (Mutex::default(), Notify::new());
            let slot = Arc::new(Slot { connection, hold, state, is_back });
            let id = streams.next.fetch_add(1, Ordering::Relaxed);
            lock(&streams.parked).insert(id, Arc::downgrade(&slot));
            (id, slot)
        });
        slot
    }

    /// A message is with the client from now on. A read is put aside until its client asks for more.
    pub fn park(&mut self, rows: Option<ReadRows>, now: u64) {
        let bytes = self.charge.as_ref().map_or(self.uncovered_bytes, |charge| charge.bytes);
        let behind_bytes = self.behind_bytes + self.ahead_bytes;
        *lock(&self.slot().state) = Parked {
            waits: true,
            rows,
            is_lent: false,
            since: now,
            bytes,
            behind_bytes,
            suspended: false,
        };
    }

    /// Bytes that its request holds for its message.
    pub fn request_bytes(&self) -> u64 {
        self.hold.room_bytes()
    }

    /// Nothing is left of what the request's message was decoded into.
    pub fn request_is_carried_out(&self) {
        self.hold.decoded_is_gone();
    }

    /// Others of its connection need not wait for its first message, which may be long in coming.
    pub fn leave_turn(&mut self) {
        self.turn = None;
    }

    /// All of the answer is made, of so many bytes, and with its client from now on. It goes out whether there is room for it or not, since what
    /// was asked for is done: while there is too much of that, nothing more is begun ([`Hold::check_answers`]).
    pub fn made(&mut self, bytes: u64, now: u64) {
        self.request_is_carried_out();
        // No read begins with it.
        self.last_bytes = bytes;
        if !self.covers(bytes) {
            for count in [&self.connection.uncovered, &self.streams.uncovered, &self.streams.bytes]
            {
                count.fetch_add(bytes, Ordering::Relaxed);
            }
            self.uncovered_bytes = bytes;
        }
        self.park(None, now);
    }

    /// Takes the read back, when it is suspended if that is under way. `None` where its deadline has passed.
    pub async fn unpark(&mut self) -> Option<ReadRows> {
        let (_, slot) = self.slot.as_ref()?;
        loop {
            {
                let mut parked = lock(&slot.state);
                if !parked.is_lent {
                    if parked.suspended {
                        self.asked = self.streams.asked.load(Ordering::SeqCst);
                    }
                    return parked.rows.take();
                }
            }
            // Boxed, so that reads whose clients keep up stay small.
            Box::pin(slot.is_back.notified()).await;
        }
    }

    /// Suspends its read, which goes on, where that was asked of it since the last time.
    pub async fn lets_go(&mut self, rows: &mut ReadRows) -> Result<()> {
        let asked = self.streams.asked.load(Ordering::SeqCst);
        if std::mem::replace(&mut self.asked, asked) == asked {
            return Ok(());
        }
        self.streams.suspended.fetch_add(1, Ordering::Relaxed);
        rows.suspend_aside().await
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if self.uncovered_bytes > 0 {
            for count in [&self.connection.uncovered, &self.streams.uncovered, &self.streams.bytes]
            {
                count.fetch_sub(self.uncovered_bytes, Ordering::Relaxed);
            }
        }
        if let Some((id, _)) = &self.slot {
            lock(&self.streams.parked).remove(id);
        }
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

/// Locks; what a panic could leave behind is a read that ends with its stream.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
