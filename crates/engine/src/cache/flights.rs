//! Loads under way, so that a block which many reads miss at once is read from the device once.
//!
//! ```text
//! read 1 misses block b ─► leads: registers b ─► submits its batch ─┐
//! read 2 misses block b ─► finds b here, joins ─────────────────────┤ the load: a future that all of them poll
//! read 3 misses block b ─► finds b here, joins ─────────────────────┘      │
//!                                              fills the cache ─► leaves here ─► same result for all, errors too
//! ```
//!
//! The load is one shared future and belongs to whoever waits for it: where the read that began it is
//! cancelled, the others carry it on; where all are, it is dropped with what it holds, and its blocks are free
//! to be led anew. A read submits everything that it leads before it waits for anything, and no load waits
//! for another, so two reads may wait for each other's blocks.
//!
//! Only reads that await join. A thread that blocks might wait for a task of its own runtime, for ever.
//!
//! Entries here are reads under way: whatever bounds those bounds them.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};
use tokio::sync::oneshot;

use crate::error::Result;
use crate::sst::{Block, FileId};

/// Parts of the table with a lock each, so that cores rarely meet; one is held for a lookup.
const SHARDS: usize = 16;

/// What leaves of a 64-bit hash the number of a shard.
const SHARD_SHIFT: u32 = 64 - SHARDS.ilog2();

/// File and offset.
type Key = (FileId, u64);

/// What a load gives: a result for each block that it leads.
pub(crate) type Loaded = Arc<Vec<Result<Arc<Block>>>>;

/// A load under way.
pub(crate) type Load = Shared<BoxFuture<'static, Loaded>>;

/// What a load becomes once its reads are submitted; the landing goes with it.
pub(crate) type Departure = BoxFuture<'static, Vec<Result<Arc<Block>>>>;

/// One block of a load.
struct Flight {
    load: WeakShared<BoxFuture<'static, Loaded>>,
    /// Its place among the load's results.
    at: usize,
    /// The load's number.
    number: u64,
}

type Shard = HashMap<Key, Flight>;

/// The loads of one cache.
#[derive(Default)]
pub struct Flights {
    shards: [Mutex<Shard>; SHARDS],
    loads: AtomicU64,
}

impl fmt::Debug for Flights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flights").field("blocks", &self.len()).finish()
    }
}

/// What became of a wish to load a block.
pub(crate) enum Boarding {
    /// It is the caller's to read.
    Lead,
    /// Another load brings it, as its result at this place.
    Join(Load, usize),
}

/// A load that is being put together.
pub(crate) struct Leader {
    load: Load,
    start: oneshot::Sender<(Departure, Landing)>,
    landing: Landing,
}

/// Takes the blocks of a load out of the table when the load is over or given up.
pub(crate) struct Landing {
    flights: Arc<Flights>,
    number: u64,
    keys: Vec<Key>,
}

impl Flights {
    /// Blocks that are being loaded.
    pub(crate) fn len(&self) -> usize {
        let len = |shard: &Mutex<Shard>| shard.lock().unwrap_or_else(PoisonError::into_inner).len();
        self.shards.iter().map(len).sum()
    }

    fn shard_of(&self, (file, offset): Key) -> MutexGuard<'_, Shard> {
        // Offsets are multiples of a sector, so their low bits tell nothing; the product's high bits do.
        let mixed = (file ^ offset.rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let shard = self.shards.get((mixed >> SHARD_SHIFT) as usize).unwrap_or(&self.shards[0]);
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Leader {
    /// Begins a load.
    pub(crate) fn new(flights: &Arc<Flights>) -> Self {
        let (start, started) = oneshot::channel::<(Departure, Landing)>();
        let load = async move {
            match started.await {
                Ok((departure, landing)) => {
                    let results = departure.await;
                    // The cache has them now: who comes from here on finds them there.
                    drop(landing);
                    Arc::new(results)
                }
                // The leader went before it submitted: those who joined get no result, and say so.
                Err(_) => Loaded::default(),
            }
        };
        let number = flights.loads.fetch_add(1, Ordering::Relaxed);
        let landing = Landing { flights: Arc::clone(flights), number, keys: Vec::new() };
        Self { load: load.boxed().shared(), start, landing }
    }

    /// Takes the lead for the block at `offset` of `file`, as this load's result at place `at`, unless a load
    /// under way has it.
    pub(crate) fn board(&mut self, file: FileId, offset: u64, at: usize) -> Boarding {
        let key = (file, offset);
        let Landing { flights, number, keys } = &mut self.landing;
        let mut shard = flights.shard_of(key);
        if let Some(flight) = shard.get(&key)
            && let Some(load) = flight.load.upgrade()
        {
            return Boarding::Join(load, flight.at);
        }
        // None only of a load that is over: this one has not begun.
        if let Some(load) = self.load.downgrade() {
            shard.insert(key, Flight { load, at, number: *number });
            keys.push(key);
        }
        Boarding::Lead
    }

    /// Sends the load off: its reads are submitted. It goes on as long as anyone polls it.
    pub(crate) fn depart(self, departure: Departure) -> Load {
        // The receiver lives as long as the load, which is held here.
        let _ = self.start.send((departure, self.landing));
        self.load
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        for key in self.keys.drain(..) {
            let mut shard = self.flights.shard_of(key);
            // A load that was given up may have been followed by another of the same block.
            if shard.get(&key).is_some_and(|flight| flight.number == self.number) {
                shard.remove(&key);
            }
        }
    }
}
