//! The log's thread: group commit.
//!
//! ```text
//! append ──► queue ──(all of it)──► write ──► sync ──► observer: published
//!              ▲                      while this group is written and synced,
//!              └───────────────────── the next one gathers
//! ```
//!
//! Guarantees: a group is everything that was queued when the thread came free and, where that pays, was back from
//! the last group within a moment ([`super::gather`]); so a lone commit waits for nothing and a thousand waiting ones
//! share a sync; segments are synced before they are followed;
//! the first failed write or sync ends the thread, and nothing is reported as published after it. A segment for which the
//! system has no open file, memory or space left is no such failure: nothing is in it yet, and all before it is synced. Nor is
//! space that a segment lacks for what comes next: that is reserved before it is written, where the file system can. What is
//! queued is held, and the step tried again until it succeeds or the log is to be closed.
//!
//! A commit that is alone, where the log does not sync each group, is written by its caller ([`write_here`]): to wake the
//! thread and be woken by it takes several times as long as the write. Everything else is the thread's: syncs, new
//! segments, timers, and groups of many or of large batches.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::batch::encode_marker;
use super::gather::{Gather, SCARCE_MICROS, SCARCE_WAIT_MICROS};
use super::metrics::{Group, LogMetrics};
use super::present::Present;
use super::record::{RECORD_HEADER_BYTES, RecordWriter};
use super::segment::{Predecessor, create_segment, free_bytes, perhaps_of_a_sync, segment_name};
use super::{Append, LogObserver, LogOptions, Mark, SegmentInfo, add_mark, closed, lock, poisoned};
use crate::cell::Seq;
use crate::db::SyncMode;
use crate::error::{Error, ErrorKind, Result};
use crate::io::{Clock, Files};

/// Idleness after which a marker is written. Sooner, and a trickle of writes doubles its records;
/// later, and damage to the last group before an idle time is longer taken for a torn tail.
pub(super) const MARKER_AFTER_IDLE_MICROS: u64 = 1_000_000;

/// Groups of up to so many bytes have zeros laid out for them. For larger ones to write everything twice would
/// cost more than the journal does.
const LAY_OUT_GROUP_BYTES_MAX: u64 = 32 << 10;

/// Reserved space that a sealed segment may keep. Less is not worth a system call.
const SEALED_SLACK_BYTES: u64 = 1 << 20;

/// Space that a segment gets at a time which has used up its own, or had none. Less is many system calls; more, and the last of a disk
/// is a segment's that has no use for it.
const ROOM_STEP_BYTES: u64 = 1 << 20;

/// A marker with its header. Space for one is kept behind each batch.
const MARKER_BYTES: u64 = RECORD_HEADER_BYTES + 1;

/// Bytes of batches that a caller writes itself, at most: some ten microseconds of its thread.
const HERE_BYTES_MAX: u64 = 64 << 10;

/// Pause before what the system has nothing left for is tried again: at first, and at most after twice as long each time. A try
/// costs a few system calls; a longer pause keeps commits waiting that could go on.
const HOLD_PAUSE: Duration = Duration::from_millis(10);
const HOLD_PAUSE_MAX: Duration = Duration::from_secs(1);

/// How long what is queued is held before health checks are told: a shorter want is over before anybody looks. Of a full disk they
/// are told at once: writes are refused meanwhile.
const HOLD_TOLD: Duration = Duration::from_secs(1);

/// How long one write or sync is under way before health checks are told. Disks of clouds stand still for a second or two now and then;
/// after ten most clients have given up.
const STALL_TOLD: Duration = Duration::from_secs(10);

/// What the log's thread and its callers share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) files: Arc<dyn Files>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) dir: PathBuf,
    pub(super) options: LogOptions,
    pub(super) queue: Mutex<Queue>,
    /// Tells the thread that the queue has changed.
    pub(super) wake: Condvar,
    /// Tells callers that a rotation or a sync is done, or the thread is.
    pub(super) turned: Condvar,
    /// Every batch up to this sequence is durable.
    pub(super) synced: AtomicU64,
    /// By ascending id; the last is the one being written.
    pub(super) segments: Mutex<Vec<Arc<SegmentInfo>>>,
    /// Their list on disk. Not locked within `segments`.
    pub(super) present: Mutex<Present>,
    /// When who writes began with what is under way (monotonic micros); 0 where nothing is.
    pub(super) busy_since: AtomicU64,
    /// What is queued is held for want of space.
    pub(super) lacks_room: AtomicBool,
    pub(super) metrics: LogMetrics,
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) entries: Vec<Append>,
    /// The thread sleeps, wants to be called when so many are queued, and was not called yet.
    pub(super) awaited: Option<usize>,
    /// A deadline has come up that the thread does not know of.
    look_again: bool,
    pub(super) closing: bool,
    /// The log is about to be closed: nothing is held any more.
    pub(super) hurried: bool,
    /// Why what is queued is held, where it has been for [`HOLD_TOLD`].
    pub(super) held: Option<String>,
    pub(super) rotations_asked: u64,
    pub(super) rotations_done: u64,
    /// Somebody waits until everything up to here, which is in the log, is synced; 0 for nobody.
    pub(super) sync_asked: Seq,
    pub(super) failed: Option<Error>,
}

impl Queue {
    /// What is queued; `spare` becomes the next buffer.
    fn take(&mut self, spare: &mut Vec<Append>) -> Vec<Append> {
        std::mem::replace(&mut self.entries, std::mem::take(spare))
    }

    /// Whether the thread sleeps until so much is queued as is, and nobody has called it. Awake, it looks at the queue by itself.
    pub(super) fn is_awaited(&self) -> bool {
        self.awaited.is_some_and(|count| self.entries.len() >= count)
    }

    /// Calls the thread, if it sleeps, nobody has, and enough is queued.
    pub(super) fn call(&mut self, wake: &Condvar) {
        if self.is_awaited() {
            self.awaited = None;
            wake.notify_one();
        }
    }

    /// Whether a caller waits for more than its batches.
    fn is_asked(&self) -> bool {
        self.sync_asked > 0 || self.rotations_asked > self.rotations_done
    }

    /// Whether nothing can be appended any more, and why.
    pub(super) fn check(&self) -> Result<()> {
        match &self.failed {
            Some(error) => Err(poisoned(error)),
            None if self.closing => Err(closed()),
            None => Ok(()),
        }
    }
}

/// What is to be done.
enum Work {
    /// Something is queued, or a rotation or a sync is asked for; or it was, and somebody else has seen to it.
    Group,
    Timer,
    Close,
}

impl Shared {
    /// The writer of a segment, as this log syncs.
    fn writer(&self, writer: RecordWriter) -> RecordWriter {
        if self.options.sync == SyncMode::Always { writer.syncs_soon() } else { writer }
    }

    /// The next thing to do; waits for it. An error when the log has failed elsewhere.
    fn next_work(&self, deadline_micros: Option<u64>, gather: &mut Gather) -> Result<Work> {
        let mut queue = lock(&self.queue);
        loop {
            queue.awaited = None;
            if let Some(error) = &queue.failed {
                return Err(error.clone());
            }
            let asked = queue.is_asked();
            if !queue.entries.is_empty() || asked {
                if !asked {
                    self.gather(queue, gather);
                }
                return Ok(Work::Group);
            }
            if queue.closing {
                return Ok(Work::Close);
            }
            if std::mem::take(&mut queue.look_again) {
                return Ok(Work::Group);
            }
            queue.awaited = Some(1);
            queue = match deadline_micros {
                None => self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let now = self.clock.monotonic_micros();
                    if now >= deadline {
                        queue.awaited = None;
                        return Ok(Work::Timer);
                    }
                    let pause = Duration::from_micros(deadline - now);
                    let waited = self.wake.wait_timeout(queue, pause);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Lets the group that is queued grow while that pays.
    fn gather(&self, mut queue: MutexGuard<'_, Queue>, gather: &mut Gather) {
        let now = self.clock.monotonic_micros();
        let queued = queue.entries.len();
        let Some(mut wait) = gather.begin(now, queued) else {
            if gather.gives_way(now, queued) {
                drop(queue);
                gather.gave_way(self.give_way(queued, gather.target()));
            }
            return;
        };
        loop {
            let (still, timed_out) = self.await_writers(queue, wait.target, wait.slice_micros);
            queue = still;
            if !timed_out {
                gather.reached();
                return;
            }
            if !gather.goes_on(&mut wait, queue.entries.len()) {
                return;
            }
        }
    }

    /// Lets others have the processor, and where that took as long as it does when somebody wants it, waits a moment until `target` are
    /// queued. Whether more are than the `queued` before.
    fn give_way(&self, queued: usize, target: usize) -> bool {
        let from = self.clock.monotonic_micros();
        std::thread::yield_now();
        let gone = self.clock.monotonic_micros().saturating_sub(from);
        let mut queue = lock(&self.queue);
        if gone >= SCARCE_MICROS {
            (queue, _) = self.await_writers(queue, target, SCARCE_WAIT_MICROS);
        }
        queue.entries.len() > queued
    }

    /// Waits until `target` writers are queued, the thread is asked for something else, or the time is over; whether it is.
    fn await_writers<'a>(
        &self,
        mut queue: MutexGuard<'a, Queue>,
        target: usize,
        micros: u64,
    ) -> (MutexGuard<'a, Queue>, bool) {
        queue.awaited = Some(target);
        let (mut queue, timeout) = self
            .wake
            .wait_timeout_while(queue, Duration::from_micros(micros), |queue| {
                let asked = queue.closing || queue.is_asked();
                queue.entries.len() < target && !asked
            })
            .unwrap_or_else(PoisonError::into_inner);
        queue.awaited = None;
        (queue, timeout.timed_out())
    }

    /// Waits for `pause` with what is queued, after `held` of that. False where the log is to be closed: nothing is waited for then.
    fn hold(
        &self,
        error: &Error,
        (held, pause): (Duration, Duration),
        observer: &dyn LogObserver,
    ) -> bool {
        self.metrics.held();
        if held.is_zero() {
            tracing::error!(%error, "the commit log cannot go on; writes wait until it can");
        }
        let is_full = error.kind() == ErrorKind::NoSpace;
        if is_full {
            let why = format!("the disk is full, and writes wait for room: {error}");
            lock(&self.queue).held = Some(why);
            if !self.lacks_room.swap(true, Ordering::SeqCst) {
                observer.lacks_room(error);
            }
        } else if held >= HOLD_TOLD {
            let why = format!("writes wait for a segment of the log: {error}");
            lock(&self.queue).held = Some(why);
        }
        let queue = lock(&self.queue);
        let (queue, _) = self
            .wake
            .wait_timeout_while(queue, pause, |queue| !queue.closing && !queue.hurried)
            .unwrap_or_else(PoisonError::into_inner);
        !queue.closing && !queue.hurried
    }

    /// Notes that writing begins, until what it returns is dropped.
    fn begin(&self) -> Busy<'_> {
        self.note_begun(self.clock.monotonic_micros());
        Busy(self)
    }

    fn note_begun(&self, now_micros: u64) {
        self.busy_since.store(now_micros.max(1), Ordering::Relaxed);
    }

    fn note_done(&self) {
        self.busy_since.store(0, Ordering::Relaxed);
    }

    /// Why writes wait, where they have for long.
    pub(super) fn held(&self) -> Option<String> {
        lock(&self.queue).held.clone().or_else(|| self.stalled())
    }

    fn stalled(&self) -> Option<String> {
        let since = self.busy_since.load(Ordering::Relaxed);
        let waited = self.clock.monotonic_micros().saturating_sub(since);
        let waited = Duration::from_micros(waited);
        if since == 0 || waited < STALL_TOLD {
            return None;
        }
        let (dir, seconds) = (self.dir.display(), waited.as_secs());
        Some(format!(
            "writes wait for the disk: a write or a sync in {dir} has taken {seconds} s so far"
        ))
    }

    /// Ends the log with an error, once: first nothing more is taken, then everybody is told. The log of the process comes last,
    /// since it may fail.
    fn fail(&self, error: &Error, observer: &dyn LogObserver) {
        let dropped = {
            let mut queue = lock(&self.queue);
            if queue.failed.is_some() {
                return;
            }
            queue.failed = Some(error.clone());
            std::mem::take(&mut queue.entries)
        };
        self.turned.notify_all();
        // Where it failed in a caller, the thread has nothing left to do.
        self.wake.notify_all();
        observer.failed(error);
        drop(dropped);
        tracing::error!(%error, "the commit log failed; writes are refused until a restart");
    }
}

/// While it is there, something is written.
struct Busy<'a>(&'a Shared);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.note_done();
    }
}

/// Who writes the log: the thread, or a caller in its place. Whoever has its lock takes entries from the queue and
/// writes them before the lock is released, so that they are written in order.
pub(super) struct Worker {
    pub(super) shared: Arc<Shared>,
    pub(super) writer: RecordWriter,
    state: State,
    /// The next buffer of the queue.
    spare: Vec<Append>,
}

#[derive(Default)]
struct State {
    /// Whether the segment holds a batch; one that does not is not worth rotating.
    has_batch: bool,
    /// The last sequence in the log.
    written: Seq,
    /// What somebody waited for, to be synced, when the group began.
    sync_asked: Seq,
    /// When the oldest batch that is not synced was written.
    dirty_since: Option<u64>,
    /// When the last sync ended after which no marker was written.
    unmarked_since: Option<u64>,
    /// Last sequences by tablet that the shared segment list does not know yet.
    touched: HashMap<u64, Seq>,
    /// The batch with which the group began in this segment, likewise.
    begun: Option<Mark>,
}

/// Turns a panic of who writes the log into a failure of the log: without it commits would wait forever.
struct OnPanic<'a>(&'a Shared, &'a dyn LogObserver);

impl Drop for OnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(&panicked(), self.1);
        }
    }
}

/// The log's thread: runs until the log is closed or fails.
pub(super) fn run(worker: &Mutex<Worker>, shared: &Shared, observer: &dyn LogObserver) {
    let _guard = OnPanic(shared, observer);
    if let Err(error) = serve(worker, shared, observer) {
        shared.fail(&error, observer);
    }
}

/// The worker, unless who had it panicked: what that took from the queue is lost, and nothing may be written behind it.
fn alive(worker: &Mutex<Worker>) -> Result<MutexGuard<'_, Worker>> {
    worker.lock().map_err(|_| panicked())
}

fn panicked() -> Error {
    Error::new(ErrorKind::ReadOnly, "the log's writer panicked")
}

fn serve(worker: &Mutex<Worker>, shared: &Shared, observer: &dyn LogObserver) -> Result<()> {
    let mut gather = Gather::default();
    loop {
        let deadline = alive(worker)?.deadline();
        let work = shared.next_work(deadline, &mut gather)?;
        let is_last = matches!(work, Work::Close);
        let mut worker = alive(worker)?;
        let _busy = shared.begin();
        let done = match work {
            Work::Group => worker.work_off(observer, &mut gather),
            Work::Timer => worker.on_timer(),
            Work::Close => worker.finish(),
        };
        // Before the lock is released: else a caller could write in its place, behind what has failed, and publish that.
        done.inspect_err(|error| shared.fail(error, observer))?;
        if is_last {
            return Ok(());
        }
    }
}

/// Writes what is queued, in the place of the thread where that is at work already or there is too much to do.
pub(super) fn write_here(worker: &Mutex<Worker>, shared: &Shared, observer: &dyn LogObserver) {
    let _guard = OnPanic(shared, observer);
    let done = match worker.try_lock() {
        Ok(mut worker) => {
            let _busy = shared.begin();
            worker.write_little(observer).inspect_err(|error| shared.fail(error, observer))
        }
        // Whoever holds it looks at the queue again; the thread always does.
        Err(_) => Ok(false),
    };
    if matches!(done, Ok(false)) {
        shared.wake.notify_one();
    }
}

impl Worker {
    pub(super) fn new(shared: Arc<Shared>, writer: RecordWriter) -> Self {
        let written = shared.synced.load(Ordering::Relaxed);
        let state = State { written, ..State::default() };
        let writer = shared.writer(writer);
        Self { shared, writer, state, spare: Vec::new() }
    }

    /// Writes what is queued and does what is due.
    fn work_off(&mut self, observer: &dyn LogObserver, gather: &mut Gather) -> Result<()> {
        let (entries, rotations_asked) = {
            let mut queue = lock(&self.shared.queue);
            let rotate = queue.rotations_asked > queue.rotations_done;
            self.state.sync_asked = queue.sync_asked;
            let entries = queue.take(&mut self.spare);
            (entries, rotate.then_some(queue.rotations_asked))
        };
        let began = self.shared.clock.monotonic_micros();
        let bytes = self.write_group(&entries, observer)?;
        let now = self.shared.clock.monotonic_micros();
        let took = now.saturating_sub(began);
        self.shared.metrics.took(bytes, took);
        if !entries.is_empty() && self.shared.options.sync == SyncMode::Always {
            // Without a sync there is nothing to share.
            let queued = lock(&self.shared.queue).entries.len();
            gather.answered(now, took, entries.len(), queued);
        }
        self.publish(entries, observer);
        self.sync_if_due()?;
        if let Some(asked) = rotations_asked {
            if self.state.has_batch {
                self.rotate(observer)?;
            }
            lock(&self.shared.queue).rotations_done = asked;
            self.shared.turned.notify_all();
        }
        Ok(())
    }

    /// Tells of what is durable before the rest of its group is written, once the list of segments has it, in which readers of changes
    /// look for what is published.
    fn publish_written(&mut self, observer: &dyn LogObserver) {
        self.report(false);
        observer.published(self.state.written);
    }

    /// Tells that entries are as durable as they will be.
    fn publish(&mut self, mut entries: Vec<Append>, observer: &dyn LogObserver) {
        // Whoever is told so sees a log that is done with it.
        self.shared.note_done();
        if let Some(last) = entries.last() {
            observer.published(last.last_seq);
        }
        // Gives the permits back: after the group is published, not before.
        entries.clear();
        self.spare = entries;
    }

    /// Writes what is queued, if it is so little that a caller's thread can. Whether nothing is left.
    fn write_little(&mut self, observer: &dyn LogObserver) -> Result<bool> {
        let entries = {
            let mut queue = lock(&self.shared.queue);
            let bytes = queue.entries.iter().map(|entry| entry.batch.bytes().len() as u64);
            let bytes = bytes.fold(0, |sum, bytes| sum + RECORD_HEADER_BYTES + bytes);
            let end = self.writer.len() + bytes;
            let full = end > self.shared.options.segment_bytes
                || end + MARKER_BYTES > self.writer.reserved();
            if queue.failed.is_some() || queue.is_asked() || full || bytes > HERE_BYTES_MAX {
                return Ok(false);
            }
            queue.take(&mut self.spare)
        };
        let known = self.deadline().unwrap_or(u64::MAX);
        self.write_group(&entries, observer)?;
        self.publish(entries, observer);
        // The thread sleeps until the deadline that it knew of.
        let look_again = self.deadline().is_some_and(|deadline| deadline < known);
        let mut queue = lock(&self.shared.queue);
        queue.look_again |= look_again;
        Ok(queue.entries.is_empty() && !look_again)
    }

    /// When there is something to do without being asked.
    fn deadline(&self) -> Option<u64> {
        if let Some(since) = self.state.dirty_since {
            return match self.shared.options.sync {
                SyncMode::IntervalMs(ms) => Some(since.saturating_add(ms.saturating_mul(1_000))),
                SyncMode::Always | SyncMode::Never => None,
            };
        }
        Some(self.state.unmarked_since?.saturating_add(MARKER_AFTER_IDLE_MICROS))
    }

    /// Writes entries, as durable as they are to be; their bytes.
    fn write_group(&mut self, entries: &[Append], observer: &dyn LogObserver) -> Result<u64> {
        if entries.is_empty() {
            return Ok(0);
        }
        let mut group = Group::default();
        for entry in entries {
            let bytes = entry.batch.bytes();
            let full = self.writer.len_with(bytes.len()) > self.shared.options.segment_bytes;
            if full && self.state.has_batch {
                self.rotate(observer)?;
            }
            self.make_room(bytes.len(), observer)?;
            let offset = self.writer.append(bytes)?;
            let first_seq = entry.last_seq - u64::from(entry.mutations.max(1) - 1);
            self.state.begun.get_or_insert(Mark { first_seq, offset });
            group.batches += 1;
            group.mutations += u64::from(entry.mutations);
            group.bytes += RECORD_HEADER_BYTES + bytes.len() as u64;
            self.state.has_batch = true;
            self.state.written = entry.last_seq;
            if self.state.dirty_since.is_none() {
                self.state.dirty_since = Some(self.shared.clock.monotonic_micros());
            }
            let last = self.state.touched.entry(entry.batch.tablet()).or_default();
            *last = entry.last_seq.max(*last);
        }
        match self.shared.options.sync {
            SyncMode::Always => {
                self.sync()?;
                // After the sync: a shortage is passed over there, and it may be that of records which were written before.
                self.lay_out(group.bytes)?;
            }
            SyncMode::Never | SyncMode::IntervalMs(_) => self.writer.flush()?,
        }
        self.shared.metrics.group(group);
        self.report(false);
        Ok(group.bytes)
    }

    /// Sees to it that most syncs of small groups find the file as long as it was.
    fn lay_out(&mut self, group_bytes: u64) -> Result<()> {
        let len = self.writer.len();
        let options = &self.shared.options;
        let to = (len + options.lay_out_bytes).min(options.segment_bytes);
        if group_bytes > LAY_OUT_GROUP_BYTES_MAX || len <= self.writer.laid_out() || to <= len {
            return Ok(());
        }
        self.shared.metrics.laid_out(to - len);
        self.writer.lay_out(to)
    }

    /// Under load the timer never gets its turn, and what is due is done between two groups; so is what is asked for.
    fn sync_if_due(&mut self) -> Result<()> {
        if self.state.sync_asked > self.shared.synced.load(Ordering::Relaxed) {
            return self.sync();
        }
        let Some(deadline) = self.state.dirty_since.and_then(|_| self.deadline()) else {
            return Ok(());
        };
        if self.shared.clock.monotonic_micros() >= deadline { self.sync() } else { Ok(()) }
    }

    fn sync(&mut self) -> Result<()> {
        self.sync_file()?;
        if self.state.dirty_since.take().is_some() {
            self.state.unmarked_since = Some(self.shared.clock.monotonic_micros());
        }
        Ok(())
    }

    fn sync_file(&mut self) -> Result<()> {
        let clock = &self.shared.clock;
        let began = clock.monotonic_micros();
        self.shared.note_begun(began);
        self.writer.sync()?;
        self.shared.metrics.sync(clock.monotonic_micros().saturating_sub(began));
        self.shared.synced.store(self.state.written, Ordering::Release);
        // Where each group is synced, what is published is: nobody asks for that meanwhile, and the lock is left to commits.
        if self.state.sync_asked > 0 || self.shared.options.sync != SyncMode::Always {
            self.tell_synced();
        }
        Ok(())
    }

    /// Wakes who waits for a sync, where this was it: also those who asked while it was under way.
    fn tell_synced(&self) {
        let mut queue = lock(&self.shared.queue);
        if (1..=self.state.written).contains(&queue.sync_asked) {
            queue.sync_asked = 0;
            drop(queue);
            self.shared.turned.notify_all();
        }
    }

    fn on_timer(&mut self) -> Result<()> {
        if self.state.dirty_since.is_none() {
            return self.mark();
        }
        // It may have been for a marker, behind which something was written meanwhile.
        self.sync_if_due()
    }

    /// Writes a marker behind what was synced, if there is space for it: it is worth no wait.
    fn mark(&mut self) -> Result<()> {
        self.state.unmarked_since = None;
        match self.reserve(self.writer.len() + MARKER_BYTES) {
            Err(error) if error.kind() == ErrorKind::NoSpace => return Ok(()),
            reserved => reserved?,
        }
        self.writer.append(&encode_marker())?;
        self.writer.flush()
    }

    /// Sees that the segment has space for so many bytes in all; `NoSpace` where the disk has none.
    fn reserve(&mut self, wanted: u64) -> Result<()> {
        let reserved = self.writer.reserved();
        if wanted <= reserved {
            return Ok(());
        }
        let ahead = wanted.next_multiple_of(ROOM_STEP_BYTES);
        let ahead = ahead.min(self.shared.options.segment_bytes).max(wanted);
        // What a reservation got before it failed it keeps, and others need it: one that must fail is not tried.
        let Shared { files, dir, .. } = self.shared.as_ref();
        let free = free_bytes(files.as_ref(), dir);
        let from = reserved.max(self.writer.len());
        let fits = |to: u64| free.is_none_or(|free| free >= to.saturating_sub(from));
        if !fits(wanted) {
            let (path, more) = (self.writer.path().display(), wanted.saturating_sub(from));
            let text =
                format!("{path} needs {more} bytes more, and {} are free", free.unwrap_or(0));
            return Err(Error::new(ErrorKind::NoSpace, text));
        }
        match self.writer.reserve(if fits(ahead) { ahead } else { wanted }) {
            // The last of the disk is less than a step.
            Err(error) if error.kind() == ErrorKind::NoSpace => self.writer.reserve(wanted),
            reserved => reserved,
        }
    }

    /// Sees that the segment has space for a record with a payload of `payload_len` bytes and a marker behind it, and waits until the
    /// disk has some.
    fn make_room(&mut self, payload_len: usize, observer: &dyn LogObserver) -> Result<()> {
        let wanted = |log: &Self| log.writer.len_with(payload_len) + MARKER_BYTES;
        match self.reserve(wanted(self)) {
            Err(error) if error.kind() == ErrorKind::NoSpace => {}
            reserved => return reserved,
        }
        // What is there does not wait for space with what comes, nor who waits for it.
        if self.writer.len() > self.writer.durable() {
            self.sync()?;
        }
        if self.state.unmarked_since.is_some() {
            self.mark()?;
        }
        self.publish_written(observer);
        self.patiently(observer, |log| log.reserve(wanted(log)))
    }

    /// Tells the shared list of segments what was written.
    fn report(&mut self, sealed: bool) {
        let mut segments = lock(&self.shared.segments);
        // Who has asked for the segments keeps what it was given, and shares with others those that are sealed.
        let Some(active) = segments.last_mut().map(Arc::make_mut) else { return };
        active.bytes = self.writer.len();
        active.sealed = sealed;
        if let Some(begun) = self.state.begun.take() {
            add_mark(&mut active.marks, begun.first_seq, begun.offset);
        }
        for (tablet, seq) in self.state.touched.drain() {
            let last = active.tablets.entry(tablet).or_default();
            *last = seq.max(*last);
        }
    }

    /// Completes the segment: everything is durable.
    fn complete(&mut self) -> Result<()> {
        if self.writer.len() > self.writer.durable() {
            self.sync_file()?;
        }
        self.state.dirty_since = None;
        self.state.unmarked_since = None;
        Ok(())
    }

    /// Gives back the zeros and the space that a complete segment does not need.
    fn trim(&mut self) -> Result<()> {
        let len = self.writer.len();
        let slack = len + SEALED_SLACK_BYTES <= self.shared.options.segment_bytes;
        if slack || self.writer.laid_out() > len {
            self.shared.files.truncate(self.writer.path(), len)?;
        }
        Ok(())
    }

    fn rotate(&mut self, observer: &dyn LogObserver) -> Result<()> {
        self.shared.note_begun(self.shared.clock.monotonic_micros());
        // Not patiently: after a write or a sync that failed, for want of memory too, nobody knows what is in the file.
        self.complete()?;
        self.publish_written(observer);
        self.patiently(observer, |log| log.trim().map_err(perhaps_of_a_sync))?;
        let previous = Predecessor { id: self.writer.file_id(), bytes: self.writer.len() };
        let id = previous.id + 1;
        let writer = self.patiently(observer, |log| log.begin_segment(id, previous))?;
        // By itself: a segment that may be listed is not begun anew.
        self.patiently(observer, |log| log.list_segment(id))?;
        self.report(true);
        let bytes = writer.len();
        self.writer = self.shared.writer(writer);
        self.state.has_batch = false;
        self.shared.metrics.segment();
        lock(&self.shared.segments).push(Arc::new(SegmentInfo::new(id, bytes)));
        Ok(())
    }

    /// Takes a step again until it no longer meets too many open files, no memory, or a full disk. It must leave nothing where it does.
    fn patiently<T>(
        &mut self,
        observer: &dyn LogObserver,
        mut step: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let (mut held, mut pause) = (Duration::ZERO, HOLD_PAUSE);
        let mut goes_on = true;
        loop {
            let error = match step(self) {
                Err(error) if error.may_pass() => error,
                done => {
                    self.shared.lacks_room.store(false, Ordering::SeqCst);
                    if !held.is_zero() && done.is_ok() {
                        lock(&self.shared.queue).held = None;
                        self.shared.note_begun(self.shared.clock.monotonic_micros());
                        tracing::info!("the commit log goes on, after {} ms", held.as_millis());
                    }
                    return done;
                }
            };
            if !goes_on {
                return Err(error);
            }
            // Once more in any case: what ends the server has closed its connections.
            goes_on = self.shared.hold(&error, (held, pause), observer);
            held += pause;
            pause = (pause * 2).min(HOLD_PAUSE_MAX);
        }
    }

    /// Creates the segment after one that is sealed. Nothing of the group under way is in it: what a failure that passes leaves of it
    /// goes.
    fn begin_segment(&self, id: u64, previous: Predecessor) -> Result<RecordWriter> {
        let Shared { files, dir, options, .. } = self.shared.as_ref();
        // What the last try has left: a segment without an opening that another follows would be taken for damage.
        let path = dir.join(segment_name(id));
        if files.exists(&path)? {
            files.remove(&path)?;
        }
        create_segment(files.as_ref(), dir, id, Some(previous), options.segment_bytes)
    }

    fn list_segment(&self, id: u64) -> Result<()> {
        let Shared { files, dir, present, .. } = self.shared.as_ref();
        lock(present).add(files.as_ref(), dir, id)
    }

    /// Ends the log in good order. The marker vouches for the last group, as after an idle time.
    pub(super) fn finish(&mut self) -> Result<()> {
        if self.state.has_batch {
            self.sync_file()?;
            self.mark()?;
        }
        self.complete()?;
        self.trim()?;
        self.report(false);
        Ok(())
    }
}
