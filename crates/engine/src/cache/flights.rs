//! Loads under way, so that a block which many reads miss at once is read from the device once.
//!
//! ```text
//! read 1 misses block b ─► leads: registers b ─► submits its batch ─┐
//! read 2 misses block b ─► finds b here, joins ─────────────────────┤ the load, which any of them carries on
//! read 3 misses block b ─► finds b here, joins ─────────────────────┘      │
//!                                              fills the cache ─► leaves here ─► same result for all, errors too
//! ```
//!
//! Blocks that were read together in vain have no result: each is read by itself then, by a load that all join who waited for it.
//!
//! The load belongs to whoever waits for it: where the read that began it is cancelled, or just not polled any
//! more, the others carry it on; where all are gone, it is dropped with what it holds, and its blocks are free
//! to be led anew. A read submits everything that it leads before it waits for anything, and no load waits
//! for another, so two reads may wait for each other's blocks.
//!
//! What was read is decoded by whoever came for it, without the load's lock: others who come meanwhile wait as for the device, and their
//! threads go on with something else. Who decodes and panics lets the others read for themselves.
//!
//! Most loads are waited for by the read that leads them and nobody else. Such a one is polled with that
//! read's own waker, and costs one allocation; with the second who waits comes a [`Fan`], which wakes them all.
//!
//! Only reads that await join. A thread that blocks might wait for a task of its own runtime, for ever.
//!
//! Entries here are reads under way: whatever bounds those bounds them.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker, ready};

use quick_cache::DefaultHashBuilder;

use crate::error::Result;
use crate::sst::{Block, Departure, FileId};

/// Parts of the table with a lock each, so that cores rarely meet; one is held for a lookup.
const SHARDS: usize = 16;

/// What leaves of a 64-bit hash the number of a shard.
const SHARD_SHIFT: u32 = 64 - SHARDS.ilog2();

/// File and offset.
pub(crate) type Key = (FileId, u64);

/// What a load gives: a result for each block that it leads; none for those that were read together in vain.
pub(crate) enum Loaded {
    One(Result<Arc<Block>>),
    Many(Vec<Option<Result<Arc<Block>>>>),
}

/// One block of a load.
struct Flight {
    load: Weak<Load>,
    /// Its place among the load's results.
    at: usize,
}

type Shard = HashMap<Key, Flight, DefaultHashBuilder>;

/// The loads of one cache.
#[derive(Default)]
pub struct Flights {
    shards: [Mutex<Shard>; SHARDS],
}

/// A load. Lives as long as anyone waits for it.
pub(crate) struct Load {
    state: Mutex<State>,
}

struct State {
    stage: Stage,
    /// Who waits, as long as it is one.
    first: Option<(u32, Waker)>,
    /// Who waits, once they are more.
    fan: Option<Arc<Fan>>,
    /// Tickets given out.
    tickets: u32,
}

enum Stage {
    /// Its blocks are registered; its reads are not submitted yet.
    Boarding,
    Flying(Departure),
    /// What was read is there, and a thread decodes it.
    Landing,
    Landed(Loaded),
}

/// A load that this thread decodes. Its end is the load's: by a panic, with nothing.
struct Landing<'a> {
    load: &'a Arc<Load>,
    departure: Departure,
    loaded: Loaded,
}

/// Wakes all who wait for a load.
#[derive(Default)]
struct Fan {
    wakers: Mutex<BTreeMap<u32, Waker>>,
}

/// A load that is being put together. Dropped before it departs, it answers nobody, and those who joined read for
/// themselves.
pub(crate) struct Leader {
    load: Arc<Load>,
    ended: bool,
}

/// Waits for one block of a load. Nothing where the load was never sent off, or a read of several blocks failed: then
/// the block is to be read by itself.
#[must_use = "a load goes on only while somebody waits for it"]
pub(crate) struct Awaiting {
    load: Arc<Load>,
    at: usize,
    ticket: Option<u32>,
    /// Where it waits, with others.
    fan: Option<Arc<Fan>>,
}

/// The data under these locks is valid at every step, so a panic elsewhere does not spoil it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Flights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flights").field("blocks", &self.len()).finish()
    }
}

impl Flights {
    /// Blocks that are being loaded.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).len()).sum()
    }

    fn shard_of(&self, (file, offset): Key) -> MutexGuard<'_, Shard> {
        // Offsets are multiples of a sector, so their low bits tell nothing; the product's high bits do.
        let mixed = (file ^ offset.rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        lock(self.shards.get((mixed >> SHARD_SHIFT) as usize).unwrap_or(&self.shards[0]))
    }

    /// Registers a block as the one at place `at` of this leader's load; the load that brings it already, where
    /// one does.
    pub(crate) fn board(&self, key: Key, leader: &Leader, at: usize) -> Option<Awaiting> {
        let flight = || Flight { load: Arc::downgrade(&leader.load), at };
        match self.shard_of(key).entry(key) {
            Entry::Vacant(free) => {
                free.insert(flight());
            }
            Entry::Occupied(mut taken) => {
                let Flight { load, at } = taken.get();
                if let Some(load) = load.upgrade() {
                    return Some(Awaiting { load, at: *at, ticket: None, fan: None });
                }
                // Everyone gave it up this very moment.
                taken.insert(flight());
            }
        }
        None
    }

    /// Takes a block out that this load brought, or will not bring. Another may bring it by now.
    pub(crate) fn leave(&self, key: Key, load: *const Load) {
        if let Entry::Occupied(flight) = self.shard_of(key).entry(key)
            && flight.get().load.as_ptr() == load
        {
            flight.remove();
        }
    }
}

impl Loaded {
    /// No result for any block.
    fn nothing() -> Self {
        Self::Many(Vec::new())
    }

    /// The result at this place.
    fn at(&self, at: usize) -> Option<Result<Arc<Block>>> {
        match self {
            Self::One(result) => Some(result.clone()),
            Self::Many(results) => results.get(at).cloned().flatten(),
        }
    }
}

impl Leader {
    /// Begins a load.
    pub(crate) fn new() -> Self {
        let state = State { stage: Stage::Boarding, first: None, fan: None, tickets: 0 };
        Self { load: Arc::new(Load { state: Mutex::new(state) }), ended: false }
    }

    /// The load, as the table knows it.
    pub(crate) fn load(&self) -> *const Load {
        Arc::as_ptr(&self.load)
    }

    /// Waits for the block at this place.
    pub(crate) fn awaiting(&self, at: usize) -> Awaiting {
        Awaiting { load: Arc::clone(&self.load), at, ticket: None, fan: None }
    }

    /// Sends the load off: its reads are submitted. It goes on as long as anyone waits for it.
    pub(crate) fn depart(self, departure: Departure) {
        self.end(Stage::Flying(departure));
    }

    /// Ends the load with what has turned up elsewhere; its blocks have left the table.
    pub(crate) fn land(self, loaded: Loaded) {
        self.end(Stage::Landed(loaded));
    }

    fn end(mut self, stage: Stage) {
        self.ended = true;
        self.load.advance(stage);
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        if !self.ended {
            self.load.advance(Stage::Landed(Loaded::nothing()));
        }
    }
}

impl Load {
    /// Goes to the next stage, and wakes those who have waited for it.
    fn advance(&self, stage: Stage) {
        let mut state = lock(&self.state);
        state.stage = stage;
        let (first, fan) = (state.first.take(), state.fan.clone());
        drop(state);
        if let Some((_, waker)) = first {
            waker.wake();
        }
        if let Some(fan) = fan {
            fan.wake();
        }
    }
}

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        // The cache has its blocks now: who comes from here on finds them there.
        self.departure.leave(Arc::as_ptr(self.load));
        let loaded = std::mem::replace(&mut self.loaded, Loaded::nothing());
        self.load.advance(Stage::Landed(loaded));
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let this: *const Self = self;
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Stage::Flying(departure) = &state.stage {
            departure.leave(this);
        }
    }
}

impl State {
    /// Takes note of who waits. What wakes all of them, where they are several.
    fn register(&mut self, ticket: u32, waker: &Waker) -> Option<Arc<Fan>> {
        if self.fan.is_none() {
            match &mut self.first {
                Some((first, known)) if *first == ticket => {
                    known.clone_from(waker);
                    return None;
                }
                Some(_) => {}
                none => {
                    *none = Some((ticket, waker.clone()));
                    return None;
                }
            }
        }
        let fan = self.fan.get_or_insert_default();
        let mut wakers = lock(&fan.wakers);
        wakers.extend(self.first.take());
        wakers.insert(ticket, waker.clone());
        drop(wakers);
        Some(Arc::clone(fan))
    }
}

impl Wake for Fan {
    fn wake(self: Arc<Self>) {
        // Who is woken and waits on registers again.
        let wakers = std::mem::take(&mut *lock(&self.wakers));
        for waker in wakers.into_values() {
            waker.wake();
        }
    }
}

impl Future for Awaiting {
    type Output = Option<Result<Arc<Block>>>;

    /// Carries the load on. Whoever else does that now is waited for only while it looks whether the reads are done.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { load, at, ticket: noted, fan: waits_at } = self.get_mut();
        let mut state = lock(&load.state);
        if let Stage::Landed(loaded) = &state.stage {
            *noted = None;
            return Poll::Ready(loaded.at(*at));
        }
        let ticket = *noted.get_or_insert(state.tickets);
        state.tickets = state.tickets.max(ticket.wrapping_add(1));
        let everyone = state.register(ticket, cx.waker());
        let Stage::Flying(departure) = &mut state.stage else { return Poll::Pending };
        let reads = ready!(match everyone {
            Some(fan) => {
                let waker = Waker::from(Arc::clone(waits_at.get_or_insert(fan)));
                departure.poll(&mut Context::from_waker(&waker))
            }
            None => departure.poll(cx),
        });
        *noted = None;
        // Itself: where somebody else waits too, the fan has both.
        let alone = state.first.take();
        let Stage::Flying(departure) = std::mem::replace(&mut state.stage, Stage::Landing) else {
            unreachable!("its reads were polled under the same lock")
        };
        drop(state);
        drop(alone);
        let mut landing = Landing { load, departure, loaded: Loaded::nothing() };
        landing.loaded = landing.departure.decode(reads);
        let result = landing.loaded.at(*at);
        drop(landing);
        Poll::Ready(result)
    }
}

impl Drop for Awaiting {
    /// A device may stand still for long, while its clients give up and try again: whoever went is not to be kept, with all that its task
    /// has.
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let mut state = lock(&self.load.state);
        let first = state.first.take_if(|(first, _)| *first == ticket);
        let fan = self.fan.take().or_else(|| state.fan.clone());
        drop(state);
        let among_others = fan.and_then(|fan| lock(&fan.wakers).remove(&ticket));
        // Their tasks may go with them, and wait for a load as well.
        drop((first, among_others));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A task that counts how often it is woken.
    #[derive(Default)]
    struct Task(AtomicUsize);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn poll(awaiting: &mut Awaiting, task: &Arc<Task>) -> bool {
        let waker = Waker::from(Arc::clone(task));
        Pin::new(awaiting).poll(&mut Context::from_waker(&waker)).is_ready()
    }

    #[test]
    fn who_gives_up_is_not_kept_and_those_who_wait_on_are_woken() {
        for gives_up in 0..3 {
            let leader = Leader::new();
            let tasks: [Arc<Task>; 3] = Default::default();
            let mut waiting: Vec<_> = tasks.iter().map(|_| leader.awaiting(0)).collect();
            for (awaiting, task) in waiting.iter_mut().zip(&tasks) {
                assert!(!poll(awaiting, task));
            }
            drop(waiting.remove(gives_up));
            assert_eq!(Arc::strong_count(&tasks[gives_up]), 1, "nothing keeps it");
            leader.land(Loaded::Many(Vec::new()));
            let woken = tasks.each_ref().map(|task| task.0.load(Ordering::Relaxed));
            let expected = [0, 1, 2].map(|task| usize::from(task != gives_up));
            assert_eq!(woken, expected);
        }
    }
}
