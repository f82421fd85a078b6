//! What the log's tests share: an environment in memory, batches that are easy to tell apart, and an
//! observer that can be waited for.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use bytes::Bytes;

use super::gather::SCARCE_MICROS;
use super::{
    Append, EncodedBatch, LocalLog, LogObserver, LogOptions, ReplaySummary, encode_batch, lock,
};
use crate::cell::{FamilyId, Mutation, RowBatch, Seq};
use crate::error::{Error, Result};
use crate::io::{
    Clock, Env, FaultFiles, InlineIo, ManualClock, MemoryFiles, SeededRng, ThreadSpawner,
};

pub(super) fn dir() -> &'static Path {
    Path::new("log")
}

/// A disk with faults over memory, and a clock that stands still.
pub(super) struct World {
    pub(super) memory: MemoryFiles,
    pub(super) files: FaultFiles,
    pub(super) clock: ManualClock,
}

impl World {
    pub(super) fn new() -> Self {
        Self::on(MemoryFiles::new())
    }

    pub(super) fn on(memory: MemoryFiles) -> Self {
        let files = FaultFiles::new(Arc::new(memory.clone()));
        Self { memory, files, clock: ManualClock::new(1_700_000_000_000_000) }
    }

    pub(super) fn env(&self) -> Env {
        Env {
            files: Arc::new(self.files.clone()),
            io: Arc::new(InlineIo),
            clock: Arc::new(self.clock.clone()),
            rng: Arc::new(SeededRng::new(1)),
            spawner: Arc::new(ThreadSpawner),
        }
    }

    /// Opens the log and returns what its replay found.
    pub(super) fn open(&self, options: LogOptions) -> Result<Opened> {
        let mut records = Vec::new();
        let mut on_record = |tablet, seq, batch| {
            records.push((tablet, seq, batch));
            Ok(())
        };
        let (log, summary) =
            LocalLog::open(&self.env(), dir(), options, &mut on_record, &mut |_| {})?;
        Ok(Opened { log: Arc::new(log), summary, records })
    }
}

/// A clock by which everything takes a while.
#[derive(Debug, Default)]
pub(super) struct BusyClock(AtomicU64);

impl Clock for BusyClock {
    fn now_micros(&self) -> i64 {
        1_700_000_000_000_000
    }

    fn monotonic_micros(&self) -> u64 {
        self.0.fetch_add(2 * SCARCE_MICROS, Ordering::Relaxed)
    }
}

pub(super) struct Opened {
    pub(super) log: Arc<LocalLog>,
    pub(super) summary: ReplaySummary,
    pub(super) records: Vec<(u64, Seq, RowBatch)>,
}

impl Opened {
    pub(super) fn seqs(&self) -> Vec<Seq> {
        self.records.iter().map(|(_, seq, _)| *seq).collect()
    }
}

/// A batch of one put whose row says `n`.
pub(super) fn batch(n: u64) -> RowBatch {
    let put = Mutation::Put {
        family: FamilyId(1),
        qualifier: Bytes::from_static(b"q"),
        timestamp: 1,
        value: Bytes::from(format!("value {n}")),
    };
    RowBatch { row: Bytes::from(format!("row {n}")), mutations: vec![put] }
}

pub(super) fn encoded(tablet: u64, n: u64) -> EncodedBatch {
    encode_batch(tablet, &batch(n))
}

/// [`batch`] `n` with a value of so many bytes.
pub(super) fn encoded_large(n: u64, bytes: usize) -> EncodedBatch {
    let mut batch = batch(n);
    let Some(Mutation::Put { value, .. }) = batch.mutations.first_mut() else { unreachable!() };
    *value = vec![7; bytes].into();
    encode_batch(1, &batch)
}

/// [`batch`] `n` at sequence `n`.
pub(super) fn append(tablet: u64, n: u64) -> Append {
    let mut batch = encoded(tablet, n);
    batch.set_first_seq(n);
    Append { batch, mutations: 1, last_seq: n, permit: None }
}

#[derive(Debug, Default)]
pub(super) struct Watch {
    state: Mutex<(Seq, Option<Error>)>,
    changed: Condvar,
}

impl Watch {
    /// Waits until `through` is published, or the log has failed.
    pub(super) fn wait(&self, through: Seq) -> Result<()> {
        let mut state = lock(&self.state);
        while state.0 < through {
            if let Some(error) = &state.1 {
                return Err(error.clone());
            }
            state = self.changed.wait(state).unwrap();
        }
        Ok(())
    }

    pub(super) fn published(&self) -> Seq {
        lock(&self.state).0
    }
}

impl LogObserver for Watch {
    fn published(&self, through: Seq) {
        lock(&self.state).0 = through;
        self.changed.notify_all();
    }

    fn lacks_room(&self, _error: &Error) {}

    fn failed(&self, error: &Error) {
        lock(&self.state).1 = Some(error.clone());
        self.changed.notify_all();
    }
}

/// Holds every sync back until it is opened.
#[derive(Debug, Default)]
pub(super) struct SyncGate {
    state: Mutex<(bool, u64)>,
    changed: Condvar,
}

impl SyncGate {
    /// Opens again when the guard is dropped, so that a test that fails does not hang in a join.
    pub(super) fn close(self: &Arc<Self>, files: &FaultFiles) -> OpenOnDrop {
        let gate = Arc::clone(self);
        files.before_sync(Some(Arc::new(move |_: &Path| {
            let mut state = lock(&gate.state);
            state.1 += 1;
            gate.changed.notify_all();
            while !state.0 {
                state = gate.changed.wait(state).unwrap();
            }
        })));
        OpenOnDrop(Arc::clone(self))
    }

    /// Waits until `n` syncs have come to the gate.
    pub(super) fn wait_arrived(&self, n: u64) {
        let mut state = lock(&self.state);
        while state.1 < n {
            state = self.changed.wait(state).unwrap();
        }
    }

    pub(super) fn open(&self) {
        lock(&self.state).0 = true;
        self.changed.notify_all();
    }
}

#[must_use]
pub(super) struct OpenOnDrop(Arc<SyncGate>);

impl Drop for OpenOnDrop {
    fn drop(&mut self) {
        self.0.open();
    }
}
