//! The budget of requests: a message's bytes are taken from it before they are read.
//!
//! The first five bytes of a gRPC message say how long it is. Here they are read as they pass; the rest of the message
//! is not asked for until the budget has room for all of it. Meanwhile HTTP/2's windows hold the client back. Room
//! is held until the request is carried out, or its stream of answers ends; where that is left unread and others find no room,
//! its connection may be closed ([`Streams::relieve`](super::Streams::relieve)).
//!
//! What a client sends meanwhile, up to the window of its stream, is outside of the budget. So it is counted what that may be of all that wait, and there
//! is a bound: a line for large messages, one for small ones, and one for writes among these, each of a part of the room that it leads to. In each a
//! connection may have as much as it leaves to others: two that wait for much have a third each, ten an eleventh, and one that comes with its first
//! finds a place until all is taken (dynamic thresholds; Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998).
//!
//! So it is with the room itself, which a client on a slow line has for as long as its messages take to come: a connection may have [`ROOM_PER_FREE`]
//! times what it leaves free, or [`ROOM_OWN_PART`] of a part, or one message.
//!
//! ```text
//! room ─► more than the connection may have? ─► wait until anybody gives room back, one of the connection at a time ─┐
//!         └─────────────────────────────────► counted as the connection's ◄─────────────────────────────────────────┘
//!                                              └─► taken, or in line with all others
//! ```
//!
//! Small messages have a part of the budget of their own, so that they never wait behind large ones, and of that writes have a share at most, since they may wait for
//! the log for long. So has what messages of many small
//! parts are decoded into, which is known once they have come: who waits for that has the rest, and whoever has it waits for no room of requests. Large filters
//! have theirs there, too, once they are compiled.

mod body;

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use tepui_bigtable::error::Error;
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, timeout_at};
use tonic::Status;

use super::{Answer, Connection};
use crate::call::{Deadline, passed};
use crate::limits::{
    DECODED_FREE_BYTES, FILTER_FREE_BYTES, REQUEST_BODY_PAUSES, REQUEST_BYTES_MIN, REQUEST_WAIT,
    REQUESTS_WAITING_PER_CONNECTION_MAX, ROOM_OWN_PART, ROOM_PER_FREE, SMALL_REQUEST_BODY_PAUSES,
    SMALL_REQUEST_BYTES_MAX, WAITING_PART, WRITES_PART_OF_SMALL_REQUESTS,
};
use crate::runtime::Windows;
use crate::status::from_error;

pub use body::{GatedBody, Inbound};

/// Bytes of a unit of the budget.
const UNIT_BYTES: u64 = 256;

/// What a request takes beyond its message: its headers, its future, its answer.
const OVERHEAD_BYTES: u64 = 2 << 10;

/// When to try again where the budget is used up: the time of a large request.
const RETRY_AFTER: Duration = Duration::from_millis(500);

const NEVER_CLOSED: &str = "the budget is never closed";

/// The budget of requests.
#[derive(Debug)]
pub struct Gate {
    small: Arc<Pool>,
    /// What writes may have of it, each of which takes from both.
    small_writes: Arc<Pool>,
    large: Arc<Pool>,
    /// What messages are decoded into, beyond half of their bytes; where that is kept until the answer was taken, which may be long, and where not.
    lasting: Arc<Pool>,
    decoded: Arc<Pool>,
    message_bytes_max: u64,
    /// Bytes that a request may send while it waits for room.
    window_bytes: u64,
    /// What those that wait may send.
    lines: Lines,
    waiting: AtomicU64,
    refused: AtomicU64,
    too_large: AtomicU64,
    paused: AtomicU64,
}

/// A part of the budget.
#[derive(Debug)]
pub(super) struct Pool {
    free: Semaphore,
    units: u32,
    /// Given each time that room is given back, for requests whose connections may have no more; and how many of these there are.
    given_back: Notify,
    for_share: AtomicU64,
    /// Requests that had to wait for room so far.
    waits: AtomicU64,
    /// A request waited in vain since this was asked last.
    was_short: AtomicBool,
}

impl Pool {
    fn new(bytes: u64) -> Self {
        let units = units(bytes);
        Self {
            free: Semaphore::new(units as usize),
            units,
            given_back: Notify::new(),
            for_share: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            was_short: AtomicBool::new(false),
        }
    }

    fn try_take(self: &Arc<Self>, units: u32) -> Option<Taken> {
        self.free.try_acquire_many(units).ok()?.forget();
        Some(Taken { pool: Arc::clone(self), units })
    }

    /// Takes room in its turn.
    async fn take(self: &Arc<Self>, units: u32) -> Taken {
        self.free.acquire_many(units).await.expect(NEVER_CLOSED).forget();
        Taken { pool: Arc::clone(self), units }
    }

    /// Tells those that wait for their connection's share that there is more of it.
    fn tell(&self) {
        // Either whoever begins to wait sees what was given back, or is seen here: it looks in the other order.
        fence(Ordering::SeqCst);
        if self.for_share.load(Ordering::Relaxed) > 0 {
            self.given_back.notify_waiters();
        }
    }

    /// Whether a connection may have so many units beside what it has.
    fn allows(&self, units: u32, beside: u64) -> Result<(), Denied<'_>> {
        let all = u64::from(units) + beside;
        let left = (self.free.available_permits() as u64).saturating_sub(u64::from(units));
        let is_fair = beside == 0
            || all <= u64::from(self.units) / ROOM_OWN_PART
            || all <= left.saturating_mul(ROOM_PER_FREE);
        if is_fair {
            return Ok(());
        }
        let if_alone = u64::from(self.units).saturating_sub(all).saturating_mul(ROOM_PER_FREE);
        Err(if all <= if_alone { Denied::ForOthers(self) } else { Denied::Alone })
    }

    fn used_bytes(&self) -> u64 {
        u64::from(self.units).saturating_sub(self.free.available_permits() as u64) * UNIT_BYTES
    }

    /// All of it.
    pub(super) fn bytes(&self) -> u64 {
        u64::from(self.units) * UNIT_BYTES
    }

    /// Bytes of it that a request holds.
    pub(super) fn bytes_of(&self, Hold(held): &Hold) -> u64 {
        let rooms = held.rooms();
        let of_message =
            rooms.message.iter().flat_map(|room| room.of_share.iter().chain([&room.of_pool]));
        let rooms = of_message.chain(&rooms.decoded).chain(&rooms.filter);
        rooms.filter(|room| room.is_of(self)).map(Taken::bytes).sum()
    }

    /// How many have begun to wait for room so far.
    fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }

    /// Whether a request waited in vain for room since this was asked last: it was refused, or its client gave up.
    pub(super) fn was_short(&self) -> bool {
        self.was_short.swap(false, Ordering::Relaxed)
    }
}

/// Room that is taken, until it is dropped.
#[derive(Debug)]
struct Taken {
    pool: Arc<Pool>,
    units: u32,
}

impl Taken {
    fn is_of(&self, pool: &Pool) -> bool {
        std::ptr::eq(Arc::as_ptr(&self.pool), pool)
    }

    fn bytes(&self) -> u64 {
        u64::from(self.units) * UNIT_BYTES
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.pool.free.add_permits(self.units as usize);
        self.pool.tell();
    }
}

/// Figures of a [`Gate`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GateFigures {
    /// Bytes of requests that are read or carried out.
    pub bytes: u64,
    /// Requests that wait for room.
    pub waiting: u64,
    /// Requests that were refused because there was no room in time.
    pub refused: u64,
    /// Requests that were refused for their size.
    pub too_large: u64,
    /// Requests that were ended because the rest of them did not come, or too slowly for those that waited for its room.
    pub paused: u64,
}

fn units(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX).clamp(1, u32::MAX >> 4)
}

impl Gate {
    /// A budget of this many bytes; a quarter of it is for small messages. Beyond it there are so many for what messages are decoded
    /// into. A message may have at most `message_bytes_max` bytes, and at most what the rest of the budget holds.
    pub fn new(bytes: u64, decoded_bytes: u64, message_bytes_max: u64) -> Self {
        let pool = |bytes| Arc::new(Pool::new(bytes));
        let (small, large) = (pool(bytes / 4), pool(bytes - bytes / 4));
        let small_writes = pool(small.bytes() / WRITES_PART_OF_SMALL_REQUESTS);
        let largest = largest_message(large.bytes()).max(REQUEST_BYTES_MIN);
        Self {
            small,
            small_writes,
            large,
            lasting: pool(decoded_bytes / 2),
            decoded: pool(decoded_bytes / 2),
            message_bytes_max: largest.min(message_bytes_max),
            window_bytes: u64::from(Windows::within(bytes).stream_bytes),
            lines: Lines::default(),
            waiting: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            too_large: AtomicU64::new(0),
            paused: AtomicU64::new(0),
        }
    }

    /// Bytes of a message, at most.
    pub fn message_bytes_max(&self) -> u64 {
        self.message_bytes_max
    }

    /// Figures.
    pub fn figures(&self) -> GateFigures {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        GateFigures {
            bytes: self.parts().into_iter().map(|pool| pool.used_bytes()).sum(),
            waiting: get(&self.waiting),
            refused: get(&self.refused),
            too_large: get(&self.too_large),
            paused: get(&self.paused),
        }
    }

    /// Its parts.
    fn parts(&self) -> [&Pool; 4] {
        [&self.small, &self.large, &self.lasting, &self.decoded]
    }

    /// All that a request may have to wait for.
    pub(super) fn pools(&self) -> impl Iterator<Item = &Pool> {
        self.parts().into_iter().chain([&*self.small_writes])
    }

    /// What requests of a line take room of, and the share of it which they take room of before.
    fn pool(&self, line: Line) -> (&Arc<Pool>, Option<&Arc<Pool>>) {
        match line {
            Line::Small => (&self.small, None),
            Line::SmallWrites => (&self.small, Some(&self.small_writes)),
            Line::Large => (&self.large, None),
        }
    }

    /// How many have begun to wait for room in a line so far.
    fn waits(&self, line: Line) -> u64 {
        let (pool, share) = self.pool(line);
        pool.waits() + share.map_or(0, |share| share.waits())
    }

    /// Room for a message of this many bytes: at once, or what to wait for.
    fn room(
        self: &Arc<Self>,
        message_bytes: u64,
        is_write: bool,
        connection: Option<&Arc<Connection>>,
    ) -> Result<MessageRoom, Room> {
        let line = Line::of(message_bytes, is_write);
        let (pool, share) = self.pool(line);
        let units = units(held_bytes(message_bytes)).min(share.unwrap_or(pool).units);
        self.room_at_once(line, units, connection).ok_or_else(|| {
            let (gate, pool, share) = (Arc::clone(self), Arc::clone(pool), share.map(Arc::clone));
            let connection = connection.map(Arc::clone);
            Box::pin(async move {
                let of = connection.as_deref();
                let mine = of.map(|c| Waiting::new(&c.requests_waiting));
                let waiting = mine.as_ref().map_or(0, Waiting::count);
                if waiting > REQUESTS_WAITING_PER_CONNECTION_MAX {
                    return Err(gate.refuse());
                }
                let bytes = message_bytes.min(gate.window_bytes);
                let Some(_place) = gate.place(line, bytes, of) else {
                    return Err(gate.refuse());
                };
                let until = Instant::now() + REQUEST_WAIT;
                // Dropped behind the claim, in whatever way this ends without the room.
                let mut told = Telling(None);
                let claim = gate.claim_in_time(line, units, connection.as_ref(), until).await?;
                told.0 = Some(&pool);
                // Who waits for the share keeps nothing of what others take room of.
                let of_share = match &share {
                    Some(share) => Some(gate.wait(share, units, until).await?),
                    None => None,
                };
                let of_pool = gate.wait(&pool, units, until).await?;
                told.0 = None;
                Ok(MessageRoom { _claim: claim, of_share, of_pool })
            }) as Room
        })
    }

    /// Room of so many units where there is some, of which the connection may have as much, and for which no other request of it waits.
    fn room_at_once(
        &self,
        line: Line,
        units: u32,
        connection: Option<&Arc<Connection>>,
    ) -> Option<MessageRoom> {
        if let Some(connection) = connection
            && connection.requests_waiting.load(Ordering::Relaxed) > 0
            && connection.turns.of(line).try_lock().is_err()
        {
            return None;
        }
        // Other requests of the connection are on the same thread, and see nothing of a claim that is given up here.
        let claim = self.claim(line, units, connection).ok()?;
        let (of_share, of_pool) = self.take_at_once(line, units)?;
        Some(MessageRoom { _claim: claim, of_share, of_pool })
    }

    /// So many units of the share and of the part that a line leads to, where both have them.
    fn take_at_once(&self, line: Line, units: u32) -> Option<(Option<Taken>, Taken)> {
        let (pool, share) = self.pool(line);
        let of_share = match share {
            Some(share) => Some(share.try_take(units)?),
            None => None,
        };
        let of_pool = pool.try_take(units);
        if of_pool.is_none() && of_share.is_some() {
            drop(of_share);
            // Who waits to claim of the share waits there.
            pool.tell();
            return None;
        }
        Some((of_share, of_pool?))
    }

    /// Counts so many units as the connection's, if it may have them.
    fn claim(
        &self,
        line: Line,
        units: u32,
        connection: Option<&Arc<Connection>>,
    ) -> Result<Claim, Denied<'_>> {
        let mut claim = Claim { connection: None, line, units };
        let Some(connection) = connection else { return Ok(claim) };
        let (pool, share) = self.pool(line);
        let beside = |line: Line| connection.taken.of(line).load(Ordering::Relaxed);
        if let Some(share) = share {
            share.allows(units, beside(line))?;
        }
        pool.allows(units, beside(line.of_pool()))?;
        for taken in connection.taken_in(line) {
            taken.fetch_add(u64::from(units), Ordering::Relaxed);
        }
        claim.connection = Some(Arc::clone(connection));
        Ok(claim)
    }

    /// The same once the connection may have them, if that is by then.
    async fn claim_in_time(
        &self,
        line: Line,
        units: u32,
        connection: Option<&Arc<Connection>>,
        until: Instant,
    ) -> Result<Claim, Status> {
        let Some(of) = connection else { return Ok(Claim { connection: None, line, units }) };
        let (pool, _) = self.pool(line);
        let _waiting = Waiting::new(&self.waiting);
        let turn = timeout_at(until, of.turns.of(line).lock()).await;
        let _turn = turn.map_err(|_| self.refuse())?;
        let _for_share = Waiting::new(&pool.for_share);
        // What it lacks may change meanwhile; whom it waits for is told once.
        let (mut of_others, mut of_own): (Option<Wait<'_>>, bool) = (None, false);
        loop {
            let given_back = pool.given_back.notified();
            // See `Pool::tell`.
            fence(Ordering::SeqCst);
            let denied = match self.claim(line, units, connection) {
                Ok(claim) => {
                    if let Some(wait) = of_others {
                        wait.ends();
                    }
                    return Ok(claim);
                }
                Err(denied) => denied,
            };
            match denied {
                Denied::ForOthers(lacked) if of_others.is_none() => {
                    lacked.waits.fetch_add(1, Ordering::Relaxed);
                    of_others = Some(Wait { pool: lacked, is_in_vain: true });
                }
                Denied::Alone if !of_own => {
                    of.waits.of(line).fetch_add(1, Ordering::Relaxed);
                    of_own = true;
                }
                Denied::ForOthers(_) | Denied::Alone => {}
            }
            if timeout_at(until, given_back).await.is_ok() {
                continue;
            }
            return Err(match denied {
                Denied::ForOthers(_) => self.refuse(),
                Denied::Alone => {
                    // Nobody else lacks anything any more.
                    if let Some(wait) = of_others {
                        wait.ends();
                    }
                    self.refuse_share()
                }
            });
        }
    }

    /// A place in a line for a request that may send so many bytes while it waits, where its connection has less there than it leaves to others.
    fn place<'a>(
        &'a self,
        line: Line,
        bytes: u64,
        connection: Option<&'a Connection>,
    ) -> Option<Place<'a>> {
        let of_connection = connection.map(|connection| connection.lines.of(line));
        let mine = of_connection.map_or(0, |mine| mine.load(Ordering::Relaxed));
        let (pool, share) = self.pool(line);
        let bytes_max = (share.unwrap_or(pool).bytes() / WAITING_PART).max(self.window_bytes);
        let of_all = self.lines.of(line);
        let with_it = |all: u64| {
            let is_fair = mine + bytes <= bytes_max.saturating_sub(all);
            is_fair.then_some(all + bytes)
        };
        of_all.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with_it).ok()?;
        if let Some(mine) = of_connection {
            mine.fetch_add(bytes, Ordering::Relaxed);
        }
        Some(Place { of_all, of_connection, bytes })
    }

    /// The part beside those for messages that has room for what lasts or not, and how much of it so many bytes take.
    fn beside(&self, bytes: u64, lasts: bool) -> (&Arc<Pool>, u32) {
        let pool = if lasts { &self.lasting } else { &self.decoded };
        (pool, units(bytes).min(pool.units))
    }

    /// Takes room, for which it waits no longer than until then.
    async fn wait(&self, pool: &Arc<Pool>, units: u32, until: Instant) -> Result<Taken, Status> {
        if let Some(room) = pool.try_take(units) {
            return Ok(room);
        }
        self.wait_for(pool, pool.take(units), until).await
    }

    /// What comes of a wait for room of a part, which takes no longer than until then.
    async fn wait_for<T>(
        &self,
        pool: &Pool,
        room: impl Future<Output = T>,
        until: Instant,
    ) -> Result<T, Status> {
        let _waiting = Waiting::new(&self.waiting);
        pool.waits.fetch_add(1, Ordering::Relaxed);
        let mut wait = Wait { pool, is_in_vain: true };
        let room = timeout_at(until, room).await;
        wait.is_in_vain = room.is_err();
        room.map_err(|_| self.refuse())
    }

    fn refuse(&self) -> Status {
        self.refused.fetch_add(1, Ordering::Relaxed);
        from_error(&Error::overloaded(
            "the server is overloaded: its memory for requests is full",
            RETRY_AFTER,
        ))
    }

    fn refuse_share(&self) -> Status {
        self.refused.fetch_add(1, Ordering::Relaxed);
        from_error(&Error::overloaded(
            "the requests of this connection have as much of the server's memory as one connection may have; have fewer of them under way, or smaller ones",
            RETRY_AFTER,
        ))
    }

    fn refuse_size(&self, message_bytes: u64, limit: u64) -> Status {
        self.too_large.fetch_add(1, Ordering::Relaxed);
        from_error(&Error::invalid_argument(format!(
            "Request is too large: {message_bytes} bytes provided; limit {limit} bytes"
        )))
    }
}

/// What requests wait in for room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    /// For that of small messages.
    Small,
    /// For what writes may have of it.
    SmallWrites,
    /// For that of all others.
    Large,
}

impl Line {
    fn of(message_bytes: u64, is_write: bool) -> Self {
        match (message_bytes <= SMALL_REQUEST_BYTES_MAX, is_write) {
            (true, false) => Self::Small,
            (true, true) => Self::SmallWrites,
            (false, _) => Self::Large,
        }
    }

    /// The line of all that takes room of the same part.
    fn of_pool(self) -> Self {
        match self {
            Self::Small | Self::SmallWrites => Self::Small,
            Self::Large => Self::Large,
        }
    }

    /// How many of [`REQUEST_BODY_PAUSE`] a message of it may take while others wait.
    fn pauses(self) -> u64 {
        match self {
            Self::Small | Self::SmallWrites => SMALL_REQUEST_BODY_PAUSES,
            Self::Large => REQUEST_BODY_PAUSES,
        }
    }
}

/// Something for each line, as bytes that requests may send while they wait, of all of them or of a connection's.
#[derive(Debug, Default)]
pub(super) struct Lines<T = AtomicU64> {
    small: T,
    small_writes: T,
    large: T,
}

impl<T> Lines<T> {
    fn of(&self, line: Line) -> &T {
        match line {
            Line::Small => &self.small,
            Line::SmallWrites => &self.small_writes,
            Line::Large => &self.large,
        }
    }
}

/// That of a request in its line.
struct Place<'a> {
    of_all: &'a AtomicU64,
    of_connection: Option<&'a AtomicU64>,
    bytes: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        for count in self.of_connection.into_iter().chain([self.of_all]) {
            count.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

impl Connection {
    /// Where it is counted what it has of the parts that a line leads to.
    fn taken_in(&self, line: Line) -> impl Iterator<Item = &AtomicU64> {
        let of_share = (line != line.of_pool()).then(|| self.taken.of(line));
        of_share.into_iter().chain([self.taken.of(line.of_pool())])
    }
}

/// Units that count as a connection's.
#[derive(Debug)]
struct Claim {
    /// `None` where a request came by none.
    connection: Option<Arc<Connection>>,
    line: Line,
    units: u32,
}

impl Drop for Claim {
    fn drop(&mut self) {
        for taken in self.connection.iter().flat_map(|connection| connection.taken_in(self.line)) {
            taken.fetch_sub(u64::from(self.units), Ordering::Relaxed);
        }
    }
}

/// Why a connection may not have more of the room.
#[derive(Debug, Clone, Copy)]
enum Denied<'a> {
    /// Others have of this part what it could have.
    ForOthers(&'a Pool),
    /// It has as much as it may have with nobody beside it.
    Alone,
}

/// Tells those that wait for their connection's share when it is dropped.
struct Telling<'a>(Option<&'a Pool>);

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        if let Some(pool) = self.0 {
            pool.tell();
        }
    }
}

/// What a message takes of the budget: itself, and half as much for what it is decoded into.
fn held_bytes(message_bytes: u64) -> u64 {
    message_bytes.saturating_add(message_bytes / 2).saturating_add(OVERHEAD_BYTES)
}

/// The largest message that takes no more than this.
fn largest_message(held: u64) -> u64 {
    held.saturating_sub(OVERHEAD_BYTES) / 3 * 2
}

/// Tells the pool where a wait for room ends without it; what was kept for it of that is for others. It may be dropped long before its time: many a
/// client's deadline is shorter, and its reset is here no later than that passes.
struct Wait<'a> {
    pool: &'a Pool,
    is_in_vain: bool,
}

impl Wait<'_> {
    /// It was not in vain.
    fn ends(mut self) {
        self.is_in_vain = false;
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if self.is_in_vain {
            self.pool.was_short.store(true, Ordering::Relaxed);
            self.pool.tell();
        }
    }
}

type Room = BoxFuture<'static, Result<MessageRoom, Status>>;

/// Room for a message. What it was counted for goes first, so that who is told of the room finds its connection's share.
#[derive(Debug)]
struct MessageRoom {
    _claim: Claim,
    /// As much of the share as of the part, where it has one.
    of_share: Option<Taken>,
    of_pool: Taken,
}

struct Waiting<'a>(&'a AtomicU64);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicU64) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }

    /// How many wait, this one included.
    fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Room that a request holds, and where and until when it is waited for. Whoever keeps a clone keeps the room.
#[derive(Debug, Clone, Default)]
pub struct Hold(Arc<Held>);

#[derive(Debug, Default)]
struct Held {
    rooms: Mutex<Rooms>,
    /// Where it is waited for. `None` for a request that needs none.
    gate: Option<Arc<Gate>>,
    has_begun: AtomicBool,
    /// `None` for a request that came by none.
    connection: Option<Arc<Connection>>,
    deadline: Option<Deadline>,
}

/// What a request has of the parts of the budget.
#[derive(Debug, Default)]
struct Rooms {
    message: Option<MessageRoom>,
    decoded: Option<Taken>,
    filter: Option<Taken>,
}

impl Held {
    fn rooms(&self) -> MutexGuard<'_, Rooms> {
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hold {
    /// That of a request which has no room yet.
    pub fn new(
        gate: Option<Arc<Gate>>,
        connection: Arc<Connection>,
        deadline: Option<Deadline>,
    ) -> Self {
        let connection = Some(connection);
        Self(Arc::new(Held { gate, connection, deadline, ..Held::default() }))
    }

    /// Makes room for what the message is decoded into, of so many bytes, beyond half of its own, for which it has room already. What `lasts`
    /// until the answer was taken has a part of its own.
    ///
    /// # Errors
    ///
    /// RESOURCE_EXHAUSTED where there is none in time, DEADLINE_EXCEEDED where the client does not wait for so long.
    pub async fn make_room_to_decode(&self, bytes: u64, lasts: bool) -> Result<(), Status> {
        if self.has_room_to_decode(bytes, lasts) {
            return Ok(());
        }
        if let Some((gate, pool, units)) = self.beside_message(bytes, lasts) {
            let room = self.wait_beside(gate, pool, units).await?;
            self.0.rooms().decoded = Some(room);
        }
        Ok(())
    }

    /// The same, where there is such room at once.
    pub fn has_room_to_decode(&self, bytes: u64, lasts: bool) -> bool {
        let Some((_, pool, units)) = self.beside_message(bytes, lasts) else { return true };
        let room = pool.try_take(units);
        let has_room = room.is_some();
        self.0.rooms().decoded = room;
        has_room
    }

    /// The part that has room for what the message is decoded into, and how much of it that takes. `None` where it needs none.
    fn beside_message(&self, bytes: u64, lasts: bool) -> Option<(&Gate, &Arc<Pool>, u32)> {
        let gate = self.0.gate.as_ref().filter(|_| bytes > DECODED_FREE_BYTES)?;
        let half = self.room_bytes().saturating_sub(OVERHEAD_BYTES) / 3;
        let beyond = bytes.saturating_sub(half);
        let (pool, units) = gate.beside(beyond, lasts);
        (beyond > DECODED_FREE_BYTES).then_some((&**gate, pool, units))
    }

    /// What is compiled of the request and has a filter of so many bytes, where those have room beside it: in the same parts as what messages are
    /// decoded into. Where there is none, nothing is kept that nobody has counted: it is compiled again when there is.
    ///
    /// # Errors
    ///
    /// Those of `compile`; RESOURCE_EXHAUSTED where there is no room in time, DEADLINE_EXCEEDED where the client does not wait for so long.
    pub async fn in_room_for_filter<T>(
        &self,
        compile: impl Fn() -> Result<T, Error>,
        bytes: impl Fn(&T) -> usize,
        lasts: bool,
    ) -> Result<T, Status> {
        let compile = || compile().map_err(|error| from_error(&error));
        let bytes = {
            let compiled = compile()?;
            let bytes = bytes(&compiled) as u64;
            if self.has_room_for_filter(bytes, lasts) {
                return Ok(compiled);
            }
            bytes
        };
        if let Some(gate) = &self.0.gate {
            // Boxed, so that requests that need none stay small.
            let (pool, units) = self.beside_decoded(gate, bytes, lasts);
            let room = Box::pin(self.wait_beside(gate, pool, units)).await?;
            self.0.rooms().filter = Some(room);
        }
        compile()
    }

    /// Takes room for a filter, where there is some or it needs none.
    fn has_room_for_filter(&self, bytes: u64, lasts: bool) -> bool {
        let Some(gate) = self.0.gate.as_ref().filter(|_| bytes > FILTER_FREE_BYTES) else {
            return true;
        };
        let (pool, units) = self.beside_decoded(gate, bytes, lasts);
        let room = pool.try_take(units);
        let has_room = room.is_some();
        self.0.rooms().filter = room;
        has_room
    }

    /// The part that has room for a filter, and how much of it that takes: no more than the request leaves of it by itself, which would be
    /// waited for in vain.
    fn beside_decoded<'a>(&self, gate: &'a Gate, bytes: u64, lasts: bool) -> (&'a Arc<Pool>, u32) {
        let (pool, units) = gate.beside(bytes, lasts);
        let rooms = self.0.rooms();
        let mine = rooms.decoded.as_ref().filter(|room| room.is_of(pool));
        let left = pool.units.saturating_sub(mine.map_or(0, |room| room.units));
        (pool, units.min(left))
    }

    /// Waits for room beside that for messages.
    async fn wait_beside(
        &self,
        gate: &Gate,
        pool: &Arc<Pool>,
        units: u32,
    ) -> Result<Taken, Status> {
        let room = gate.wait(pool, units, Instant::now() + REQUEST_WAIT);
        match self.deadline() {
            Some(deadline) => tokio::select! {
                room = room => room,
                () = deadline.timer() => Err(passed()),
            },
            None => room.await,
        }
    }

    /// The connection that the request came by.
    pub fn connection(&self) -> Option<&Arc<Connection>> {
        self.0.connection.as_ref()
    }

    /// Whether an answer of one message, of so many bytes, is over as soon as that is made, and keeps nothing however long its client takes.
    pub fn is_over_at_once(&self, bytes: u64) -> bool {
        self.connection().is_none_or(|connection| connection.is_over_at_once(bytes))
    }

    /// Its answer, where it came by a connection.
    pub fn answer(&self) -> Option<Answer> {
        self.connection().map(|connection| connection.answer(self.clone()))
    }

    /// Refuses one whose answer may be large where its connection, or all of them, have left too much of such answers.
    pub fn check_answers(&self) -> Result<(), Error> {
        self.connection().map_or(Ok(()), |connection| connection.check_answers())
    }

    /// Until when its client waits.
    pub fn deadline(&self) -> Option<Deadline> {
        self.0.deadline
    }

    fn keep(&self, room: MessageRoom) {
        self.0.rooms().message = Some(room);
    }

    /// Gives back the room for what the message was decoded into, and for what was compiled of it.
    pub fn decoded_is_gone(&self) {
        let mut rooms = self.0.rooms();
        (rooms.decoded, rooms.filter) = (None, None);
    }

    /// Gives back all room: nothing is left of the request but its answer.
    pub fn is_gone(&self) {
        drop(std::mem::take(&mut *self.0.rooms()));
    }

    /// Bytes of the budget that the request holds for its message.
    pub fn room_bytes(&self) -> u64 {
        self.0.rooms().message.as_ref().map_or(0, |room| room.of_pool.bytes())
    }

    /// The same, and for what that was decoded into.
    pub fn request_bytes(&self) -> u64 {
        let rooms = self.0.rooms();
        let message = rooms.message.as_ref().map(|room| &room.of_pool);
        message.into_iter().chain(&rooms.decoded).map(Taken::bytes).sum()
    }

    /// One of so many bytes, of nobody else's budget.
    #[cfg(test)]
    pub(crate) fn of_bytes(bytes: u64) -> Self {
        let pool = Arc::new(Pool::new(bytes));
        let claim = Claim { connection: None, line: Line::Large, units: pool.units };
        let of_pool = pool.try_take(pool.units).expect("nobody else takes of it");
        let hold = Self::default();
        hold.keep(MessageRoom { _claim: claim, of_share: None, of_pool });
        hold
    }

    /// The request is carried out, and counted, from now on.
    pub fn begin(&self) {
        self.0.has_begun.store(true, Ordering::Relaxed);
    }

    /// Whether the request has come as far as that.
    pub(super) fn has_begun(&self) -> bool {
        self.0.has_begun.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests;
