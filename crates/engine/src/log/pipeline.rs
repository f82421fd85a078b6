//! The commit pipeline: the order of commits, and when each becomes visible.
//!
//! A write passes through four states. Two of them are reached side by side:
//!
//! ```text
//!                         ┌─► in the memtable ──── Commit::applied ──┐
//! admit ──► begin ────────┤      (by the caller)                     ├──► visible ──► CommitDone
//! (queue    (sequence,    └─► in the log, durable ─ LogObserver ─────┘    in order
//!  bytes)    queue place)        (by the log's thread)
//!
//! in flight, by sequence:   [ 7 applied, durable | 8 applied | 9 durable | 10 ]
//!                                                ^
//!                                           visible = 7: 8 waits for its sync, 9 for 8 and its memtable
//! ```
//!
//! What is guaranteed:
//!
//! 1. *Log order is sequence order.* `begin` takes the sequences, writes them into the batch and queues it
//!    under one lock; so a replay meets the batches as history had them.
//! 2. *Visibility follows durability.* [`CommitPipeline::visible`] is at or above a batch's sequences only
//!    when the batch is as durable as the [`SyncMode`](crate::db::SyncMode) promises: a reader never sees
//!    what a crash could take back, and a caller is answered only after.
//! 3. *No gaps, no halves.* It rises in order, from the last sequence of one batch to the last of the
//!    next, and only over batches that are in their memtable. A reader that takes `visible` as its
//!    snapshot sees every batch up to it, whole, and nothing of the later ones.
//! 4. *A failure is final.* When a write or sync of the log fails, every commit that is not visible fails,
//!    `visible` stands still, and every later call fails with the reason. A commit that failed so *may*
//!    be found in the log after a restart: its error is [in doubt](Error::in_doubt). What never began was surely
//!    not done, and who waits for others' writes has none of its own that could be: their errors are not. Memtables keep
//!    what failed, so whoever has read them beyond `visible` fails too ([`CommitPipeline::last_begun`]).
//! 5. *Nobody can wedge it.* A [`Commit`] that is dropped counts as applied.
//!
//! The lock is held for a few dozen instructions at a time and never across I/O. Waiters are woken after
//! it is released.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Append, CommitLog, EncodedBatch, Hlc, LogObserver, Owes, closed, lock, poisoned};
use crate::cell::Seq;
use crate::changes::commit_micros;
use crate::error::{Error, ErrorKind, Result};
use crate::relay;

/// Bytes of batches queued or being synced. Smaller would stall bulk loads while a slow sync runs
/// (at 500 MB/s, 64 MiB are an eighth of a second); larger only lets more memory wait. A larger batch is
/// admitted when it is alone.
pub const LOG_QUEUE_BYTES_MAX: u32 = 64 << 20;

/// Bytes from which on batches that are queued together are bulk: they take their turns among each other, so that a small
/// write behind them waits for [some of it](BULK_QUEUE_MICROS) and not for the whole queue.
pub(super) const BULK_BYTES_MIN: u64 = 32 << 10;

/// Bytes of bulk that are queued or being synced, at most: more would be no faster.
const BULK_QUEUE_BYTES_MAX: u32 = 8 << 20;

/// And at least, however slow the log is: with fewer, each group would be a few writes of bulk, and syncs would be most of what it does.
const BULK_QUEUE_BYTES_MIN: u64 = 1 << 20;

/// Between them, what the log takes so long for, and the time of two syncs, as the groups before were: a small write waits for that much, or
/// for one larger row. Shorter, and the disk would be idle for a good part of the time, while writers hear of the last group and queue the
/// next.
const BULK_QUEUE_MICROS: u64 = 8_000;

/// What a batch counts for beyond its bytes: its places in the queues and its waiter. Keeps a flood of
/// tiny batches within the same memory.
const ENTRY_OVERHEAD_BYTES: u64 = 256;

/// A share of [`LOG_QUEUE_BYTES_MAX`], and for bulk of [`BULK_QUEUE_BYTES_MAX`]; given back when dropped.
#[derive(Debug)]
pub struct Permit {
    _queue: OwnedSemaphorePermit,
    _bulk: Option<OwnedSemaphorePermit>,
}

/// Gives every commit its place in history and its moment of becoming visible.
pub struct CommitPipeline {
    shared: Arc<Shared>,
    log: Arc<dyn CommitLog>,
}

/// What the pipeline shares with its commits and with the log's thread.
struct Shared {
    hlc: Hlc,
    /// Everything up to here is durable and in its memtable. Written under the lock.
    visible: AtomicU64,
    state: Mutex<State>,
    /// What ended the log. Set under the lock, so that whoever holds it knows that what is in flight did not fail yet.
    failed: OnceLock<Error>,
    gate: Arc<Semaphore>,
    /// Bytes that the gate lets in.
    gate_bytes: u32,
    /// Before it, for bulk.
    bulk_gate: Arc<Semaphore>,
    /// Bytes of batches that wait at the gates.
    waiting_bytes: AtomicU64,
}

/// Counts the bytes of a batch while it waits at the gate.
struct Waiting<'a>(&'a AtomicU64, u64);

impl<'a> Waiting<'a> {
    fn new(total: &'a AtomicU64, bytes: u64) -> Self {
        total.fetch_add(bytes, Ordering::Relaxed);
        Self(total, bytes)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct State {
    /// Commits that are not visible, in order of sequence.
    flying: VecDeque<Flying>,
    /// The ticket of the first of them; tickets count commits.
    first_ticket: u64,
    /// The log has published everything up to here.
    published: Seq,
    /// The last visible sequence that the log has.
    recorded: Seq,
    /// Who waits for `visible` to reach a sequence.
    waiters: Waiters,
    /// The same, of those who have something else to do where the log waits for space.
    busy_waiters: Waiters,
    /// The same for `recorded`.
    readers: Waiters,
    closed: bool,
}

type Waiter = relay::Receiver<Result<()>>;

/// Who waits for a sequence to be reached.
#[derive(Default)]
struct Waiters(BTreeMap<Seq, Vec<relay::Sender<Result<()>>>>);

impl Waiters {
    fn add(&mut self, seq: Seq) -> Waiter {
        let (sender, receiver) = relay::channel();
        let waiting = self.0.entry(seq).or_default();
        // While the log stands still those who wait come and go: a stream of changes waits anew after each of its heartbeats.
        if waiting.len() == waiting.capacity() {
            waiting.retain(relay::Sender::is_awaited);
            // All of them are looked at again when they are twice as many.
            waiting.reserve(waiting.len().max(1));
        }
        waiting.push(sender);
        receiver
    }

    fn answer(&mut self, reached: Seq, answers: &mut Answers) {
        while let Some(entry) = self.0.first_entry()
            && *entry.key() <= reached
        {
            answers.waiters.extend(entry.remove().into_iter().map(|sender| (sender, Ok(()))));
        }
    }

    fn fail(&mut self, error: &Error, answers: &mut Answers) {
        let waiters = std::mem::take(&mut self.0).into_values().flatten();
        answers.waiters.extend(waiters.map(|waiter| (waiter, Err(error.clone()))));
    }
}

struct Flying {
    last_seq: Seq,
    applied: bool,
    /// Whether there is a batch in the log to wait for.
    logged: bool,
    done: Option<relay::Sender<Result<Seq>>>,
}

/// Answers that are given after the lock is released.
#[derive(Default)]
struct Answers {
    commits: Vec<(relay::Sender<Result<Seq>>, Result<Seq>)>,
    waiters: Vec<(relay::Sender<Result<()>>, Result<()>)>,
}

impl Answers {
    fn send(self) {
        for (sender, answer) in self.commits {
            sender.send(answer);
        }
        for (sender, answer) in self.waiters {
            sender.send(answer);
        }
    }
}

impl Shared {
    /// What everybody hears, if the log has failed.
    fn check_failed(&self) -> Result<()> {
        self.failed.get().map_or(Ok(()), |error| Err(poisoned(error)))
    }

    /// An error where no commits are taken any more.
    fn check(&self, state: &State) -> Result<()> {
        self.check_failed()?;
        if state.closed { Err(closed()) } else { Ok(()) }
    }

    /// Changes the state, then raises `visible` as far as it goes, then answers.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut answers = Answers::default();
        let mut state = lock(&self.state);
        let result = change(&mut state);
        self.advance(&mut state, &mut answers);
        drop(state);
        answers.send();
        result
    }

    fn advance(&self, state: &mut State, answers: &mut Answers) {
        if self.failed.get().is_some() {
            return;
        }
        let mut visible = None;
        while let Some(first) = state.flying.front_mut() {
            if !first.applied || (first.logged && first.last_seq > state.published) {
                break;
            }
            visible = Some(first.last_seq);
            if first.logged {
                state.recorded = first.last_seq;
            }
            if let Some(done) = first.done.take() {
                answers.commits.push((done, Ok(first.last_seq)));
            }
            state.flying.pop_front();
            state.first_ticket += 1;
        }
        let Some(visible) = visible else { return };
        // Release: a reader that loads this sees the memtable inserts that it covers.
        self.visible.store(visible, Ordering::Release);
        state.waiters.answer(visible, answers);
        state.busy_waiters.answer(visible, answers);
        state.readers.answer(state.recorded, answers);
    }

    /// Lets nobody in any more.
    fn close_gates(&self) {
        self.gate.close();
        self.bulk_gate.close();
    }

    fn applied(&self, ticket: u64) {
        self.change(|state| {
            let at = ticket.checked_sub(state.first_ticket).and_then(|at| usize::try_from(at).ok());
            // After a failure there is nobody left to mark.
            if let Some(flying) = at.and_then(|at| state.flying.get_mut(at)) {
                flying.applied = true;
            }
        });
    }
}

impl LogObserver for Shared {
    fn published(&self, through: Seq) {
        self.change(|state| state.published = state.published.max(through));
    }

    fn lacks_room(&self, error: &Error) {
        let mut answers = Answers::default();
        lock(&self.state).busy_waiters.fail(&waits_for_room(error.message()), &mut answers);
        answers.send();
    }

    fn failed(&self, error: &Error) {
        let mut answers = Answers::default();
        let mut state = lock(&self.state);
        self.failed.get_or_init(|| error.clone());
        // Later tickets must not find a place: there is none after a failure.
        let flying = std::mem::take(&mut state.flying);
        let told = poisoned(error);
        state.waiters.fail(&told, &mut answers);
        state.busy_waiters.fail(&told, &mut answers);
        state.readers.fail(&told, &mut answers);
        drop(state);
        self.close_gates();
        let commits = flying.into_iter().filter_map(|flying| flying.done);
        answers.commits.extend(commits.map(|done| (done, Err(poisoned(error).in_doubt()))));
        answers.send();
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("visible", &self.visible).finish_non_exhaustive()
    }
}

impl CommitPipeline {
    /// Starts a log that was opened and replayed. The clock's floor is the greatest sequence ever used:
    /// all up to it is visible from the start. `recorded` is the greatest that the log has, or what was made of it.
    pub fn new(log: Arc<dyn CommitLog>, hlc: Hlc, recorded: Seq) -> Result<Self> {
        Self::with_queue(log, hlc, recorded, LOG_QUEUE_BYTES_MAX)
    }

    /// The same with another limit than [`LOG_QUEUE_BYTES_MAX`].
    pub fn with_queue(
        log: Arc<dyn CommitLog>,
        hlc: Hlc,
        recorded: Seq,
        gate_bytes: u32,
    ) -> Result<Self> {
        let floor = hlc.current();
        let shared = Arc::new(Shared {
            hlc,
            visible: AtomicU64::new(floor),
            state: Mutex::new(State { published: floor, recorded, ..State::default() }),
            failed: OnceLock::new(),
            gate: Arc::new(Semaphore::new(gate_bytes as usize)),
            gate_bytes,
            bulk_gate: Arc::new(Semaphore::new(BULK_QUEUE_BYTES_MAX as usize)),
            waiting_bytes: AtomicU64::new(0),
        });
        log.start(Arc::clone(&shared) as Arc<dyn LogObserver>)?;
        Ok(Self { shared, log })
    }

    /// Waits until a batch of this many encoded bytes may be queued.
    pub async fn admit(&self, bytes: usize) -> Result<Permit> {
        self.admit_all(1, bytes).await
    }

    /// Waits until so many batches of this many encoded bytes together may be queued.
    pub async fn admit_all(&self, batches: usize, bytes: usize) -> Result<Permit> {
        let overhead = ENTRY_OVERHEAD_BYTES.saturating_mul(batches as u64);
        let bytes = (bytes as u64).saturating_add(overhead);
        let share = |most: u32| u32::try_from(bytes).unwrap_or(u32::MAX).min(most);
        let bulk = (bytes >= BULK_BYTES_MIN)
            .then(|| bulk_share(bytes, self.log.bulk_in(BULK_QUEUE_MICROS)));
        let bulk = match bulk {
            Some(share) => Some(self.pass(&self.shared.bulk_gate, share, bytes).await?),
            None => None,
        };
        let share = share(self.shared.gate_bytes);
        Ok(Permit { _queue: self.pass(&self.shared.gate, share, bytes).await?, _bulk: bulk })
    }

    async fn pass(
        &self,
        gate: &Arc<Semaphore>,
        share: u32,
        bytes: u64,
    ) -> Result<OwnedSemaphorePermit> {
        if let Ok(permit) = Arc::clone(gate).try_acquire_many_owned(share) {
            return Ok(permit);
        }
        let _waiting = Waiting::new(&self.shared.waiting_bytes, bytes);
        // The gates close when the pipeline fails or is closed.
        let passed = Arc::clone(gate).acquire_many_owned(share).await;
        passed.map_err(|_| self.failed().unwrap_or_else(closed))
    }

    /// Bytes of batches that are queued, being synced, or waiting for [`Self::admit`].
    pub fn queued_bytes(&self) -> u64 {
        let free = self.shared.gate.available_permits() as u64;
        u64::from(self.shared.gate_bytes)
            .saturating_sub(free)
            .saturating_add(self.shared.waiting_bytes.load(Ordering::Relaxed))
    }

    /// Gives a batch of `seqs` mutations its sequences and its place in the log. Does not block; the
    /// caller holds the lock under which the memtable is written, puts the batch into it with the
    /// sequences of the [`Commit`], and then calls [`Commit::applied`].
    pub fn begin(&self, batch: EncodedBatch, seqs: u32, permit: Permit) -> Result<Commit> {
        self.begin_all(std::iter::once((batch, seqs)), seqs, permit)
    }

    /// The same for several batches, each with its number of mutations, which are `seqs` in all (none of them 0, where
    /// there are several): they follow each other in history, become visible together, and are one commit.
    pub fn begin_all(
        &self,
        batches: impl ExactSizeIterator<Item = (EncodedBatch, u32)>,
        seqs: u32,
        permit: Permit,
    ) -> Result<Commit> {
        let (done, receiver) = relay::channel();
        let mut state = lock(&self.shared.state);
        self.shared.check(&state)?;
        let first_seq = self.shared.hlc.reserve(seqs);
        let last_seq = first_seq + u64::from(seqs.max(1) - 1);
        // The permit goes with the last of them: all are in one group of the log.
        let (mut next, mut left, mut permit) = (first_seq, batches.len(), Some(permit));
        let mut appends = batches.map(|(mut batch, mutations)| {
            batch.set_first_seq(next);
            let last_seq = next + u64::from(mutations.max(1) - 1);
            next = last_seq + 1;
            left -= 1;
            let permit = if left == 0 { permit.take() } else { None };
            Append { batch, mutations, last_seq, permit }
        });
        let alone = state.flying.is_empty();
        let owes = self.log.append_all(&mut appends, alone)?;
        let ticket = state.first_ticket + state.flying.len() as u64;
        let flying = Flying { last_seq, applied: false, logged: true, done: Some(done) };
        state.flying.push_back(flying);
        drop(state);
        let owed = match owes {
            Owes::Nothing => None,
            Owes::Write => Some(Owed(Some(Arc::clone(&self.log)))),
            Owes::Call => {
                relay::call(&self.log);
                None
            }
        };
        let shared = Arc::clone(&self.shared);
        Ok(Commit { shared, ticket, first_seq, last_seq, receiver: Some(receiver), owed })
    }

    /// Reserves a sequence for an edit that takes place outside the log, such as dropping a range of
    /// rows: writes before it have smaller sequences, writes after it greater ones. It becomes visible
    /// in its turn; [`Self::wait_visible`] of it waits for every write that began before.
    pub fn reserve_seq(&self) -> Seq {
        self.shared.change(|state| {
            let last_seq = self.shared.hlc.reserve(1);
            if self.shared.failed.get().is_none() {
                let flying = Flying { last_seq, applied: true, logged: false, done: None };
                state.flying.push_back(flying);
            }
            last_seq
        })
    }

    /// The last visible sequence: what a reader takes as its snapshot.
    pub fn visible(&self) -> Seq {
        self.shared.visible.load(Ordering::Acquire)
    }

    /// The last visible sequence that the log has: where a reader of history stands that has all there is to see. One that was
    /// [reserved](Self::reserve_seq) outside of the log may be visible and on no disk, or go with its tablet, and come again.
    pub fn recorded(&self) -> Seq {
        lock(&self.shared.state).recorded
    }

    /// The last sequence of the writes that have begun: everything that a reader of memtables can have
    /// seen. Wait for it to be visible before an answer tells of such a read. An error once the log has failed: memtables
    /// keep the writes that failed with it, so that what was read may never become visible.
    pub fn last_begun(&self) -> Result<Seq> {
        let state = lock(&self.shared.state);
        self.shared.check_failed()?;
        Ok(state.flying.back().map_or_else(|| self.visible(), |flying| flying.last_seq))
    }

    /// When the first of the writes that have begun and are not visible was given its sequence, in microseconds since 1970, or
    /// somewhat before that; `None` where there are none. What begins later has a later one.
    pub fn first_begun_micros(&self) -> Option<i64> {
        let state = lock(&self.shared.state);
        // Its first sequence may be of the millisecond before.
        state.flying.front().map(|first| commit_micros(first.last_seq).saturating_sub(1_000))
    }

    /// The last sequence of the batches that the log was given, visible or not.
    pub fn last_given(&self) -> Result<Seq> {
        let state = lock(&self.shared.state);
        self.shared.check_failed()?;
        let last = state.flying.iter().rfind(|flying| flying.logged);
        Ok(last.map_or(state.recorded, |flying| flying.last_seq))
    }

    /// The clock, which also numbers files and tablets.
    pub fn hlc(&self) -> &Hlc {
        &self.shared.hlc
    }

    /// Waits until everything up to `seq`, a sequence that this pipeline handed out, is visible.
    pub fn wait_visible(&self, seq: Seq) -> impl Future<Output = Result<()>> + Send + use<> {
        let waiting = self.enqueue(seq, |state| Ok(&mut state.waiters));
        async { waited(waiting?).await }
    }

    /// The same, of who has something else to do; `NoSpace` where the log waits for space, or comes to.
    pub fn wait_visible_unless_full(
        &self,
        seq: Seq,
    ) -> impl Future<Output = Result<()>> + Send + use<> {
        let waiting = self.enqueue(seq, |state| {
            // Where it comes to that later, it looks for waiters after it has said so.
            if self.log.lacks_room() {
                return Err(waits_for_room(&self.log.held().unwrap_or_default()));
            }
            Ok(&mut state.busy_waiters)
        });
        async { waited(waiting?).await }
    }

    /// Waits until [`Self::recorded`] has reached `seq`.
    pub async fn wait_recorded(&self, seq: Seq) -> Result<()> {
        let receiver = {
            let mut state = lock(&self.shared.state);
            if state.recorded >= seq {
                return Ok(());
            }
            self.shared.check_failed()?;
            state.readers.add(seq)
        };
        receiver.await.unwrap_or_else(|| Err(closed()))
    }

    fn enqueue(
        &self,
        seq: Seq,
        list: impl FnOnce(&mut State) -> Result<&mut Waiters>,
    ) -> Result<Option<Waiter>> {
        if self.visible() >= seq {
            return Ok(None);
        }
        let mut state = lock(&self.shared.state);
        if self.visible() >= seq {
            return Ok(None);
        }
        self.shared.check_failed()?;
        Ok(Some(list(&mut state)?.add(seq)))
    }

    /// What ended the log, if something did: no more commits are taken.
    pub fn failed(&self) -> Option<Error> {
        self.shared.check_failed().err()
    }

    /// The kind of what the log has failed by.
    pub(crate) fn failed_by(&self) -> Option<ErrorKind> {
        self.shared.failed.get().map(Error::kind)
    }

    /// The log, for its segments.
    pub fn log(&self) -> &Arc<dyn CommitLog> {
        &self.log
    }

    /// Takes no more commits, writes and syncs what is queued and closes the log. Blocks. Commits that
    /// began before still become visible when they are applied.
    pub fn close(&self) -> Result<()> {
        lock(&self.shared.state).closed = true;
        self.shared.close_gates();
        self.log.close()
    }
}

/// The answer of a waiter; `None` has nothing to wait for.
async fn waited(waiter: Option<Waiter>) -> Result<()> {
    match waiter {
        None => Ok(()),
        Some(receiver) => receiver.await.unwrap_or_else(|| Err(closed())),
    }
}

/// What those hear who have something else to do than to wait for space with the log.
fn waits_for_room(why: &str) -> Error {
    Error::new(ErrorKind::NoSpace, format!("the commit log waits for room: {why}"))
}

/// What bulk of so many bytes takes of the [`BULK_QUEUE_BYTES_MAX`] of its gate, where the log takes no more than `room` in its time: then a
/// byte counts as several.
fn bulk_share(bytes: u64, room: Option<u64>) -> u32 {
    let most = u64::from(BULK_QUEUE_BYTES_MAX);
    let room = room.unwrap_or(most).clamp(BULK_QUEUE_BYTES_MIN, most);
    let share = bytes.min(room).saturating_mul(most) / room;
    u32::try_from(share).unwrap_or(BULK_QUEUE_BYTES_MAX)
}

impl Drop for CommitPipeline {
    /// The log may outlive it, with a write that nobody waits for; whoever has the directory next must not meet that.
    fn drop(&mut self) {
        // One that cannot be closed has said so.
        let _ = self.close();
    }
}

impl fmt::Debug for CommitPipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommitPipeline").field("log", &self.log).finish_non_exhaustive()
    }
}

/// A batch that has its place in history and is on its way to the memtable.
#[must_use = "apply the batch to the memtable, then call `applied`"]
pub struct Commit {
    shared: Arc<Shared>,
    ticket: u64,
    first_seq: Seq,
    last_seq: Seq,
    /// Until it is applied.
    receiver: Option<relay::Receiver<Result<Seq>>>,
    owed: Option<Owed>,
}

/// A batch that nobody has told the log's thread of, because who waits for it can write it sooner. Dropped, the
/// thread is told after all.
#[derive(Debug)]
struct Owed(Option<Arc<dyn CommitLog>>);

impl Owed {
    fn write(mut self) {
        if let Some(log) = self.0.take() {
            log.write_queued(true);
        }
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        if let Some(log) = self.0.take() {
            log.write_queued(false);
        }
    }
}

impl Commit {
    /// The sequence of the first mutation.
    pub fn first_seq(&self) -> Seq {
        self.first_seq
    }

    /// The sequence of the last mutation.
    pub fn last_seq(&self) -> Seq {
        self.last_seq
    }

    /// Says that the batch is in its memtable. The future resolves when it is visible.
    pub fn applied(mut self) -> CommitDone {
        let receiver = self.receiver.take();
        let receiver = receiver.expect("taken only here, and `applied` takes the commit");
        CommitDone { receiver, owed: self.owed.take() }
        // Dropping the commit marks it.
    }
}

impl Drop for Commit {
    fn drop(&mut self) {
        self.shared.applied(self.ticket);
    }
}

impl fmt::Debug for Commit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seqs = (self.first_seq, self.last_seq);
        f.debug_tuple("Commit").field(&seqs).finish()
    }
}

/// Resolves to the batch's last sequence when the batch is visible, or to the log's failure, which is
/// [in doubt](Error::in_doubt).
#[derive(Debug)]
#[must_use = "the write is acknowledged when this resolves"]
pub struct CommitDone {
    receiver: relay::Receiver<Result<Seq>>,
    /// Until it is first polled, which is to be soon, and without a lock that other writes need.
    owed: Option<Owed>,
}

impl Future for CommitDone {
    type Output = Result<Seq>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(owed) = self.owed.take() {
            owed.write();
        }
        let received = Pin::new(&mut self.receiver).poll(context);
        received.map(|answer| answer.unwrap_or_else(|| Err(closed().in_doubt())))
    }
}

#[cfg(test)]
mod tests;
