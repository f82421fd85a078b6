//! A ring of one thread: reads that wait, reads that the kernel has, and the two queues between.
//!
//! ```text
//!            push                        enter                         reap
//! read_batch ───► queue ─┬─► slots ─► submission queue ─► kernel ─► completion queue ─► Batch
//!                        │   (own file, buffer, batch)                │
//!                        └─ beyond READS or BYTES in flight:          └─ short or failed: once more;
//!                           wait in order, without a buffer               large: the next part
//! ```
//!
//! Reads that the device takes several attempts for have a lane of their own, one at a time: none of the others waits behind
//! them, nor for the room of their buffers.
//!
//! Memory: the kernel writes to a buffer from submission to completion, whatever becomes of the future
//! that wanted it. So the slot owns the buffer and the file until the completion is reaped, and a ring
//! that is dropped first waits for every read that the kernel has.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use io_uring::{EnterFlags, IoUring, Parameters, opcode, types};
use rustix::io::Errno;

use super::batch::{Batch, closed};
use crate::error::{Error, Result};
use crate::io::aligned::Haste;
use crate::io::device::{Next, Read, is_large};
use crate::io::{IoMetrics, ReadRequest};

/// Whether the kernel is to signal nothing while a turn takes what is complete. It marks work that it puts off, and looks whether to signal,
/// without a barrier in between, which only x86's atomic instructions are by themselves: elsewhere the signal of a lone read could be lost,
/// and the mark not be seen yet by who looks for it instead. There the driver is woken once more for nothing.
const SIGNALS_REST: bool = cfg!(target_arch = "x86_64");

/// Reads that a ring gives the kernel at once. More than a fast device can overlap per core; what is beyond
/// waits here in order, where an abandoned read can still be spared.
pub(super) const RING_READS_MAX: usize = 256;

/// Bytes of buffers of reads that the kernel has, per ring: 32 reads of the largest read-ahead (1 MiB). A large read comes on top, with
/// the one buffer that it is wanted in.
pub(super) const RING_BYTES_MAX: usize = 32 << 20;

/// Unsubmitted reads that go to the kernel without waiting for the driver's turn. The tasks of a turn decode a
/// block each before they ask for the next, some microseconds, in which the device would run dry: with 16 reads in
/// flight on a ring, submitting once a turn costs a sixth of the reads per second. At 1 or 2 there are more system
/// calls and a microsecond more of processor for a read, and no more reads; at 8 reads start later for nothing.
pub(super) const SUBMIT_EARLY_READS: usize = 4;

/// While the kernel has fewer of the ring's reads than this, each goes to it at once. Completions come in bursts, and
/// after a burst the device has little left to do: with 16 reads in flight, waiting for three more costs a
/// fifteenth of the reads per second where a block takes 10 µs to decode. A ring of few reads needs no turn of its
/// driver to begin one.
pub(super) const KERNEL_READS_LOW: usize = 8;

/// Reads that wait at a ring before those that were given up are looked for, at least; then twice as many as were left, so that each read costs one look.
const LOOK_THROUGH_READS: usize = RING_READS_MAX;

/// Rounds of submitting and collecting in one turn of the driver. Reads that the page cache answers are
/// done at once and make room for those that wait, so that a long queue could hold the thread; after this many
/// the other tasks have their turn.
const TURN_ROUNDS_MAX: usize = 4;

/// A read on its way to a slot. It has no buffer yet, so that many may wait.
struct Waiting {
    request: ReadRequest,
    place: usize,
    batch: Arc<Batch>,
}

/// A read that the kernel has, or will have with the next submission.
struct InFlight {
    request: ReadRequest,
    read: Read,
    /// Bytes that were filled when the attempt under way began.
    before: usize,
    place: usize,
    batch: Arc<Batch>,
}

/// What a system call waits for.
#[derive(Debug, Clone, Copy)]
enum Wait {
    /// Nothing, and completions stay where they are.
    Submit,
    /// Nothing; completions that the kernel has put off for this thread are run.
    No,
    /// A completion, at most so long.
    First(Duration),
    /// Every read that the kernel has then.
    All,
    /// One of the reads that the kernel has already: nothing is submitted.
    Taken,
}

enum Slot {
    Busy(InFlight),
    /// The next free slot; `RING_READS_MAX` ends the list.
    Free(usize),
}

/// The ring. Used by the thread that made it, as its flags promise the kernel.
pub(super) struct Ring {
    uring: IoUring,
    slots: Vec<Slot>,
    free: usize,
    /// Slots whose submission the kernel has not taken yet, in the order of the submission queue.
    unsubmitted: VecDeque<usize>,
    in_flight: usize,
    /// Of the buffers of all but the large one.
    bytes_in_flight: usize,
    waiting: VecDeque<Waiting>,
    /// Large reads that wait, and whether there is one under way.
    large: VecDeque<Waiting>,
    has_large: bool,
    /// With so many of them, those that were given up are taken out.
    look_through_at: usize,
    /// Whoever is to be woken once the ring is not borrowed any more.
    wakers: Vec<Waker>,
    /// Completions taken from the queue and not handled yet: slot and result. Empty between calls, and kept
    /// for its memory.
    reaped: Vec<(usize, i32)>,
    /// Why the ring cannot be used any more.
    broken: Option<Errno>,
    metrics: Arc<IoMetrics>,
}

/// Sets a ring up. `Unsupported` where the kernel has rings, but not all that is asked of them here.
pub(super) fn set_up() -> std::io::Result<IoUring> {
    with_feature(build()?, Parameters::is_feature_ext_arg)
}

/// The ring, of a kernel that has the feature. Reads without a list of buffers, the signals of completions turned off and
/// on, and waiting for a limited time came with Linux 5.6, 5.8 and 5.11; only the last is told when a ring is set up. On a
/// ring of an older kernel every read would fail.
pub(super) fn with_feature(
    uring: IoUring,
    has: impl Fn(&Parameters) -> bool,
) -> std::io::Result<IoUring> {
    if has(uring.params()) {
        return Ok(uring);
    }
    let what = "the kernel's io_uring is that of a Linux before 5.11";
    Err(std::io::Error::new(std::io::ErrorKind::Unsupported, what))
}

/// A ring with what the kernel has: all work on the one thread and at the time of its choosing, else without.
fn build() -> std::io::Result<IoUring> {
    let entries = RING_READS_MAX as u32;
    let newest = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_coop_taskrun()
        .setup_taskrun_flag()
        .setup_submit_all()
        .build(entries);
    match newest {
        // Linux before 6.1 does not know one of these.
        Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
            match IoUring::builder().setup_coop_taskrun().setup_taskrun_flag().build(entries) {
                // Before 5.19.
                Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                    IoUring::new(entries)
                }
                other => other,
            }
        }
        other => other,
    }
}

fn errno_of(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}

impl Ring {
    pub(super) fn new(uring: IoUring, metrics: Arc<IoMetrics>) -> Self {
        let slots: Vec<Slot> = (1..=RING_READS_MAX).map(Slot::Free).collect();
        Self {
            uring,
            slots,
            free: 0,
            unsubmitted: VecDeque::with_capacity(RING_READS_MAX),
            in_flight: 0,
            bytes_in_flight: 0,
            waiting: VecDeque::new(),
            large: VecDeque::new(),
            has_large: false,
            look_through_at: LOOK_THROUGH_READS,
            wakers: Vec::new(),
            reaped: Vec::with_capacity(RING_READS_MAX),
            broken: None,
            metrics,
        }
    }

    /// Has an eventfd signalled when there are completions to come for. (The ring's own descriptor does not
    /// tell a poll of those that are put off for its thread.)
    pub(super) fn listen(&mut self, eventfd: BorrowedFd<'_>) -> std::io::Result<()> {
        self.uring.submitter().register_eventfd(eventfd.as_raw_fd())?;
        Ok(())
    }

    /// Whether new reads must go another way.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// Whether there are reads that the kernel does not have yet, but could have.
    #[cfg(test)]
    pub(super) fn has_unsubmitted(&self) -> bool {
        !self.unsubmitted.is_empty()
    }

    /// Whether the driver has something to do now: to submit, to wake tasks, or to take what the page cache answered
    /// within the submission. Of what the kernel has put off the signal is on its way.
    pub(super) fn wants_turn(&mut self) -> bool {
        !self.unsubmitted.is_empty()
            || !self.wakers.is_empty()
            || !self.uring.completion().is_empty()
    }

    /// Gives the kernel what is unsubmitted where that is worth a system call of its own
    /// ([`SUBMIT_EARLY_READS`], [`KERNEL_READS_LOW`]); what then fits no more waits for the driver.
    pub(super) fn submit_early(&mut self) {
        let unsubmitted = self.unsubmitted.len();
        let kernel_has = self.in_flight - unsubmitted;
        let worth_it = unsubmitted >= SUBMIT_EARLY_READS || kernel_has < KERNEL_READS_LOW;
        if unsubmitted > 0 && worth_it && !self.is_broken() {
            self.enter(Wait::Submit);
        }
    }

    /// Reads that the kernel has or is about to have.
    #[cfg(test)]
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Reads that wait for their turn.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len() + self.large.len()
    }

    /// Whom to wake now that the ring is not borrowed any more. `spare` is an empty list to go on with.
    pub(super) fn take_wakers(&mut self, spare: Vec<Waker>) -> Vec<Waker> {
        std::mem::replace(&mut self.wakers, spare)
    }

    /// Takes reads in: as many as fit go to the submission queue, the others wait. No system call.
    pub(super) fn push(&mut self, requests: Vec<ReadRequest>, batch: &Arc<Batch>) {
        for (place, request) in requests.into_iter().enumerate() {
            let lane = if is_large(request.len) { &mut self.large } else { &mut self.waiting };
            lane.push_back(Waiting { request, place, batch: Arc::clone(batch) });
        }
        self.start_waiting();
        if self.waiting.len() + self.large.len() >= self.look_through_at {
            // Those that were given up: of a device that stands still none gets its turn, while their clients try again.
            self.waiting.retain(|waiting| !waiting.batch.is_abandoned());
            self.large.retain(|waiting| !waiting.batch.is_abandoned());
            let left = self.waiting.len() + self.large.len();
            self.look_through_at = LOOK_THROUGH_READS.max(2 * left);
        }
    }

    fn complete(&mut self, batch: &Batch, place: usize, result: Result<Bytes>) {
        self.wakers.extend(batch.complete(place, result));
    }

    /// Whether there is room for a read that is not large.
    fn has_room(&self, bytes: usize) -> bool {
        self.in_flight < RING_READS_MAX
            && self.bytes_in_flight.saturating_add(bytes) <= RING_BYTES_MAX
    }

    /// The next read that there is room for.
    fn next_waiting(&mut self) -> Option<Waiting> {
        for lane in [&mut self.large, &mut self.waiting] {
            // Nobody waits any more: spare the device, and whoever has room where this one has none.
            while lane.pop_front_if(|next| next.batch.is_abandoned()).is_some() {}
        }
        let is_broken = self.broken.is_some();
        if is_broken || !self.has_large && self.in_flight < RING_READS_MAX {
            let large = self.large.pop_front();
            if large.is_some() {
                return large;
            }
        }
        let bytes = self.waiting.front()?.request.len;
        if is_broken || self.has_room(bytes) { self.waiting.pop_front() } else { None }
    }

    /// Starts reads that wait, in order, while there is room.
    fn start_waiting(&mut self) {
        while let Some(Waiting { request, place, batch }) = self.next_waiting() {
            if let Some(errno) = self.broken {
                self.complete(&batch, place, Err(broken(errno)));
                continue;
            }
            let planned = match request.file.device() {
                Some(device) => {
                    let ReadRequest { file, offset, len } = &request;
                    Read::new(file.as_ref(), &device, *offset, *len, Haste::AtOnce)
                }
                // Files that have no descriptor are not sent here.
                None => Err(closed()),
            };
            match planned {
                Ok(read) if read.is_complete() => self.complete(&batch, place, Ok(read.finish())),
                Ok(read) => self.start(InFlight { request, read, before: 0, place, batch }),
                Err(error) => self.complete(&batch, place, Err(error)),
            }
        }
    }

    /// Gives a read a slot and an entry of the submission queue.
    fn start(&mut self, read: InFlight) {
        let at = self.free;
        // `next_waiting` has seen a free slot: there are as many as reads in flight may be.
        let Some(Slot::Free(next)) = self.slots.get(at) else { return };
        self.free = *next;
        self.in_flight += 1;
        if is_large(read.request.len) {
            self.has_large = true;
        } else {
            self.bytes_in_flight += read.read.memory_bytes();
        }
        if let Some(slot) = self.slots.get_mut(at) {
            *slot = Slot::Busy(read);
        }
        self.attempt(at);
    }

    /// Queues an attempt of the read in slot `at`.
    fn attempt(&mut self, at: usize) {
        let Some(Slot::Busy(read)) = self.slots.get_mut(at) else { return };
        let Some(device) = read.request.file.device() else { return };
        read.before = read.read.filled();
        let (offset, len) = read.read.position();
        let target = read.read.target();
        let entry = opcode::Read::new(types::Fd(device.fd.as_raw_fd()), target, len as u32)
            .offset(offset)
            .build()
            .user_data(at as u64);
        // SAFETY: the buffer behind `target` has `len` bytes, and the descriptor is open; the slot owns
        // both, and gives them up only when the completion of this attempt was reaped (or, in `Drop`,
        // never, if that cannot be waited for).
        let pushed = unsafe { self.uring.submission().push(&entry) };
        // The queue has an entry per slot, and a slot has one attempt at a time.
        debug_assert!(pushed.is_ok(), "the submission queue is as long as there are slots");
        self.unsubmitted.push_back(at);
    }

    /// One turn: gives the kernel what is unsubmitted, takes what is complete, and starts what then fits;
    /// again while that brings more to do, but not for ever: true if something was left. With `wait`, waits at
    /// first for a completion, at most so long.
    #[must_use]
    pub(super) fn turn(&mut self, mut wait: Option<Duration>) -> bool {
        if self.is_broken() {
            return false;
        }
        for _ in 0..TURN_ROUNDS_MAX {
            // What is taken here must not wake the driver once more. What comes after the last look and
            // before the signals are on again is seen by the look after it: the kernel marks work before it
            // looks whether to signal, and the fence orders the two here.
            if SIGNALS_REST {
                self.uring.completion().disable_eventfd();
            }
            let stuck = self.round(wait.take());
            if SIGNALS_REST {
                self.uring.completion().enable_eventfd();
                fence(Ordering::SeqCst);
            }
            if self.is_broken() {
                return false;
            }
            let more = !self.unsubmitted.is_empty()
                || self.has_deferred_work()
                || !self.uring.completion().is_empty();
            if stuck || !more {
                return more;
            }
        }
        true
    }

    /// Carries out everything that was pushed before it returns, on a ring that nobody polls: each system call
    /// submits all that fits and waits for all of it. One is enough where nothing is tried again and nothing
    /// waits for room.
    pub(super) fn finish(&mut self) {
        let mut wait = Wait::All;
        while self.in_flight > 0 && !self.is_broken() {
            let asked = self.unsubmitted.len();
            self.enter(wait);
            let stuck = asked > 0 && self.unsubmitted.len() == asked;
            let kernel_has = self.in_flight - self.unsubmitted.len();
            wait = match wait {
                // The kernel is short of memory for more, until some of what it has is done.
                Wait::All if stuck && kernel_has > 0 => Wait::Taken,
                Wait::All if stuck => {
                    std::thread::yield_now();
                    Wait::All
                }
                _ => Wait::All,
            };
            self.reap();
        }
    }

    /// One system call, where there is a reason for it, and what came of it. True where the kernel took
    /// nothing of what it was given: it is short of memory, and others should run first.
    fn round(&mut self, wait: Option<Duration>) -> bool {
        let wait = wait.filter(|_| self.in_flight > 0);
        let asked = self.unsubmitted.len();
        let mut stuck = false;
        if asked > 0 || wait.is_some() || self.has_deferred_work() {
            self.enter(wait.map_or(Wait::No, Wait::First));
            stuck = asked > 0 && self.unsubmitted.len() == asked;
        }
        self.reap();
        stuck
    }

    /// Whether completions wait for this thread to come into the kernel.
    fn has_deferred_work(&mut self) -> bool {
        let queue = self.uring.submission();
        queue.taskrun() || queue.cq_overflow()
    }

    /// The system call: submits, and runs completions that the kernel has put off for this thread.
    fn enter(&mut self, wait: Wait) {
        let unsubmitted = self.unsubmitted.len() as u32;
        self.metrics.ring(0, 1);
        let events = EnterFlags::GETEVENTS;
        let (submit, completions, flags) = match wait {
            Wait::Submit => (unsubmitted, 0, EnterFlags::empty()),
            Wait::No => (unsubmitted, 0, events),
            Wait::First(limit) => {
                let limit = types::Timespec::from(limit);
                let args = types::SubmitArgs::new().timespec(&limit);
                let entered = self.uring.submitter().submit_with_args(1, &args);
                return self.entered(entered);
            }
            Wait::All => (unsubmitted, self.in_flight as u32, events),
            Wait::Taken => (0, 1, events),
        };
        // SAFETY: no argument is passed, and the entries to submit are valid by `attempt`.
        let entered = unsafe {
            self.uring.submitter().enter::<libc::sigset_t>(submit, completions, flags.bits(), None)
        };
        self.entered(entered);
    }

    /// What came of the system call.
    fn entered(&mut self, entered: std::io::Result<usize>) {
        match entered {
            Ok(taken) => {
                self.unsubmitted.drain(..taken.min(self.unsubmitted.len()));
            }
            Err(error) => match errno_of(&error) {
                // Submission had gone through when the wait ended this way; or nothing was done, and the
                // next turn does it.
                Errno::TIME | Errno::INTR => self.forget_submitted(),
                Errno::AGAIN | Errno::BUSY => self.forget_submitted(),
                errno => self.fail(errno),
            },
        }
    }

    /// Brings `unsubmitted` in line with what the kernel has left in the queue.
    fn forget_submitted(&mut self) {
        let left = self.uring.submission().len();
        let taken = self.unsubmitted.len().saturating_sub(left);
        self.unsubmitted.drain(..taken);
    }

    /// The ring does not work any more: everything is answered with an error. What the kernel has keeps its
    /// slot, and so its buffer.
    pub(super) fn fail(&mut self, errno: Errno) {
        tracing::error!(%errno, "io_uring stopped working; reads go to a pool of threads from now on");
        self.broken = Some(errno);
        self.forget_submitted();
        for at in std::mem::take(&mut self.unsubmitted) {
            if let Some(read) = self.free(at) {
                self.complete(&read.batch, read.place, Err(broken(errno)));
            }
        }
        for slot in &self.slots {
            if let Slot::Busy(read) = slot {
                self.wakers.extend(read.batch.complete(read.place, Err(broken(errno))));
            }
        }
        self.start_waiting();
    }

    /// Takes a read out of its slot.
    fn free(&mut self, at: usize) -> Option<InFlight> {
        let slot = self.slots.get_mut(at)?;
        if !matches!(slot, Slot::Busy(_)) {
            return None;
        }
        let Slot::Busy(read) = std::mem::replace(slot, Slot::Free(self.free)) else { return None };
        self.free = at;
        self.in_flight -= 1;
        if is_large(read.request.len) {
            self.has_large = false;
        } else {
            self.bytes_in_flight -= read.read.memory_bytes();
        }
        Some(read)
    }

    /// Takes completions, answers the reads that are done, and queues second attempts.
    fn reap(&mut self) {
        let mut done = 0;
        let mut reaped = std::mem::take(&mut self.reaped);
        reaped.extend(self.uring.completion().map(|e| (e.user_data() as usize, e.result())));
        for (at, result) in reaped.drain(..) {
            let Some(Slot::Busy(InFlight { request, read, before, batch, .. })) =
                self.slots.get_mut(at)
            else {
                continue;
            };
            let attempt = match usize::try_from(result) {
                Ok(len) => {
                    // SAFETY: the kernel has written this many bytes at the target of the attempt.
                    unsafe { read.assume_read(len) };
                    Ok(len)
                }
                Err(_) => Err(Errno::from_raw_os_error(-result)),
            };
            let file = request.file.as_ref();
            let next = read.advance(file, &self.metrics, *before, file.answer(attempt));
            // The rest of a large one that nobody waits for any more is not read: others wait for its lane.
            let is_left = is_large(request.len) && batch.is_abandoned();
            if matches!(next, Next::Again) && self.broken.is_none() && !is_left {
                self.attempt(at);
                continue;
            }
            done += 1;
            let Some(InFlight { read, place, batch, .. }) = self.free(at) else { continue };
            let result = match next {
                Next::Done => Ok(read.finish()),
                Next::Failed(error) => Err(error),
                // On a ring that broke, where the read has been answered, or for nobody.
                Next::Again => Err(closed()),
            };
            self.complete(&batch, place, result);
        }
        self.reaped = reaped;
        if done > 0 {
            self.metrics.ring(done, 0);
            self.start_waiting();
        }
    }

    /// Ends the ring: what waits is refused, what the kernel has is waited for and answered.
    pub(super) fn close(&mut self) {
        let all =
            std::mem::take(&mut self.waiting).into_iter().chain(std::mem::take(&mut self.large));
        for Waiting { place, batch, .. } in all {
            self.complete(&batch, place, Err(closed()));
        }
        /// How long to wait at a time; only so that a lost completion is noticed in the log.
        const PATIENCE: Duration = Duration::from_secs(10);
        while self.in_flight > 0 && self.broken.is_none() {
            let before = self.in_flight;
            let _ = self.turn(Some(PATIENCE));
            if self.in_flight == before {
                tracing::warn!(
                    reads = before,
                    "reads are slow to end; still waiting for the device"
                );
            }
        }
    }
}

/// What a read is answered that a ring cannot carry any more.
fn broken(errno: Errno) -> Error {
    Error::io("io_uring", &errno.into())
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.close();
        let wakers = self.take_wakers(Vec::new());
        for waker in wakers {
            waker.wake();
        }
        if self.in_flight > 0 {
            // Only after `fail`. The kernel may still write to these buffers, so they are never freed.
            std::mem::forget(std::mem::take(&mut self.slots));
        }
    }
}
