//! Reads over io_uring: a ring per thread that runs a single-threaded runtime and is attached.
//!
//! ```text
//!  thread with a runtime, attached                                 any other thread
//!  ───────────────────────────────                                 ────────────────
//!  tasks ── read_batch ──► Ring (this thread's, no lock) ◄─ turn ─ Driver        read_batch
//!    ▲                       │                                         ▲               │
//!    └──── wake ─────────────┤               eventfd, by the poll ─────┘               ▼
//!                            └── one system call for a few reads                PreadPool, started
//!                                                                               with its first read
//! ```
//!
//! Guarantees: results in the order of the requests, each with its own error; a read that fails is tried
//! once more ([`device`](super::device)); at most [`RING_READS_MAX`](ring::RING_READS_MAX) reads and
//! [`RING_BYTES_MAX`](ring::RING_BYTES_MAX) bytes of buffers per ring, and one large read, part by part, the rest in
//! order behind them (a read that waits costs its request, which its caller would hold anyway); a future may be dropped at any time;
//! a thread is detached only when the kernel has let go of all its buffers.
//!
//! A thread that does nothing else while it reads says so ([`IoEngine::attach_blocking`]) and needs none of
//! this: [`blocking`].
//!
//! Where the kernel is older than Linux 5.11, or a container or an operator forbids io_uring, everything goes to the
//! pool, and one line in the log says so. Files without a descriptor go there, too.

mod batch;
mod blocking;
mod driver;
mod ring;

use std::cell::RefCell;
use std::fmt;
use std::os::fd::AsFd as _;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::Waker;

use bytes::Bytes;
use futures::future::BoxFuture;
use io_uring::IoUring;
use rustix::event::{EventfdFlags, eventfd};
use tokio::runtime::{Handle, RuntimeFlavor};

use self::batch::Batch;
use self::driver::Driver;
use self::ring::Ring;
use super::{Attached, IoEngine, IoMetrics, PREAD_THREADS, PreadPool, ReadRequest, Spawner};
use crate::error::{Error, ErrorKind, Result};

/// The engine. One for the process; rings are set up by [`IoEngine::attach`].
pub struct UringIo {
    id: RingId,
    set_up: fn() -> std::io::Result<IoUring>,
    spawner: Arc<dyn Spawner>,
    metrics: Arc<IoMetrics>,
    pool: OnceLock<PreadPool>,
    /// Held by whoever starts the pool.
    starting: Mutex<()>,
    refusal_told: AtomicBool,
}

/// The engine's key among the rings of a thread: tests and benchmarks have several engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RingId(u64);

/// A ring and what its thread knows of it.
struct Local {
    id: RingId,
    state: RefCell<State>,
}

struct State {
    ring: Ring,
    /// Wakes the driver; taken by the first read of a turn.
    driver: Option<Waker>,
    /// An empty list, kept for its memory.
    spare: Vec<Waker>,
}

thread_local! {
    /// The rings of this thread: one, but for tests.
    static RINGS: RefCell<Vec<Rc<Local>>> = const { RefCell::new(Vec::new()) };
}

impl RingId {
    fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Works on this thread's ring, then wakes whom that has answered. `None` where there is none, or where
    /// it is being worked on (by a waker that reads).
    fn with<T>(self, work: impl FnOnce(&mut State) -> T) -> Option<T> {
        let local = RINGS
            .try_with(|rings| {
                rings.try_borrow().ok()?.iter().find(|local| local.id == self).cloned()
            })
            .ok()
            .flatten()?;
        let mut state = local.state.try_borrow_mut().ok()?;
        let result = work(&mut state);
        let spare = std::mem::take(&mut state.spare);
        let mut woken = state.ring.take_wakers(spare);
        // Wakers may run anything, this included.
        drop(state);
        for waker in woken.drain(..) {
            waker.wake();
        }
        if let Ok(mut state) = local.state.try_borrow_mut() {
            state.spare = woken;
        }
        Some(result)
    }

    /// A turn of the ring on behalf of its driver, who is to be woken by the next read. False where the ring
    /// is gone.
    fn drive(self, driver: &Waker) -> bool {
        self.with(|state| {
            match &mut state.driver {
                Some(waker) => waker.clone_from(driver),
                none => *none = Some(driver.clone()),
            }
            if state.ring.turn(None) {
                // After the other tasks, once more.
                driver.wake_by_ref();
            }
        })
        .is_some()
    }
}

impl UringIo {
    /// An engine without rings yet, whose reads are counted in `metrics`: those of the files that it reads.
    pub fn new(spawner: Arc<dyn Spawner>, metrics: Arc<IoMetrics>) -> Self {
        Self::with_set_up(spawner, metrics, ring::set_up)
    }

    fn with_set_up(
        spawner: Arc<dyn Spawner>,
        metrics: Arc<IoMetrics>,
        set_up: fn() -> std::io::Result<IoUring>,
    ) -> Self {
        Self {
            id: RingId::next(),
            set_up,
            spawner,
            metrics,
            pool: OnceLock::new(),
            starting: Mutex::default(),
            refusal_told: AtomicBool::new(false),
        }
    }

    /// Sends reads to the pool.
    fn read_in_pool(&self, requests: Vec<ReadRequest>) -> BoxFuture<'static, Vec<Result<Bytes>>> {
        match self.pool() {
            Ok(pool) => pool.read_batch(requests),
            Err(error) => {
                let results = requests.iter().map(|_| Err(error.clone())).collect();
                Box::pin(std::future::ready(results))
            }
        }
    }

    /// The pool, which the first read starts. Where it cannot be started the next read tries again.
    fn pool(&self) -> Result<&PreadPool> {
        if let Some(pool) = self.pool.get() {
            return Ok(pool);
        }
        let _starting = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = self.pool.get() {
            return Ok(pool);
        }
        let pool = PreadPool::new(self.spawner.as_ref(), PREAD_THREADS)?;
        Ok(self.pool.get_or_init(|| pool))
    }

    /// A ring for this thread. `None` where there can be none, which the log says once.
    fn new_ring(&self) -> Option<Ring> {
        match (self.set_up)() {
            Ok(uring) => Some(Ring::new(uring, Arc::clone(&self.metrics))),
            Err(error) => {
                self.refused(&error);
                None
            }
        }
    }

    fn refused(&self, error: &std::io::Error) {
        if !self.refusal_told.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                %error,
                "io_uring cannot be used here; reads go to a pool of threads instead, at more cost"
            );
        }
    }

    /// Refuses to attach a thread that is attached.
    fn require_detached(&self) -> Result<()> {
        if self.id.with(|_| ()).is_some() {
            return misplaced("the thread has a ring already");
        }
        if blocking::is_marked(self.id) {
            return misplaced("the thread is attached as one that blocks");
        }
        Ok(())
    }
}

impl IoEngine for UringIo {
    fn read_batch(&self, requests: Vec<ReadRequest>) -> BoxFuture<'static, Vec<Result<Bytes>>> {
        if requests.is_empty() {
            return Box::pin(std::future::ready(Vec::new()));
        }
        let mut requests = match blocking::read(self, requests) {
            Ok(results) => return Box::pin(std::future::ready(results)),
            Err(requests) => requests,
        };
        if requests.iter().all(|request| request.file.device().is_some()) {
            let pushed = self.id.with(|state| {
                if state.ring.is_broken() {
                    return None;
                }
                let batch = Batch::new(requests.len());
                let future = batch.future();
                state.ring.push(std::mem::take(&mut requests), &batch);
                state.ring.submit_early();
                if state.ring.wants_turn()
                    && let Some(driver) = state.driver.take()
                {
                    driver.wake();
                }
                Some(future)
            });
            if let Some(Some(future)) = pushed {
                return Box::pin(future);
            }
        }
        self.read_in_pool(requests)
    }

    fn attach(&self) -> Result<Attached> {
        match Handle::try_current() {
            Ok(handle) if handle.runtime_flavor() == RuntimeFlavor::CurrentThread => {}
            _ => return misplaced("a ring belongs to a single-threaded runtime, within it"),
        }
        self.require_detached()?;
        let id = self.id;
        let Some(mut ring) = self.new_ring() else { return Ok(Attached::nothing()) };
        let driver = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(std::io::Error::from)
            .and_then(|fd| {
                ring.listen(fd.as_fd())?;
                Driver::new(id, fd)
            });
        let driver = match driver {
            Ok(driver) => driver,
            Err(error) => {
                self.refused(&error);
                return Ok(Attached::nothing());
            }
        };
        let state = State { ring, driver: None, spare: Vec::new() };
        let local = Rc::new(Local { id, state: RefCell::new(state) });
        RINGS.with(|rings| rings.borrow_mut().push(local));
        Handle::current().spawn(driver);
        Ok(Attached::new(move || detach(id)))
    }

    fn attach_blocking(&self) -> Result<Attached> {
        self.require_detached()?;
        Ok(blocking::mark(self.id))
    }
}

fn misplaced<T>(what: &str) -> Result<T> {
    Err(Error::new(ErrorKind::InvalidArgument, what))
}

/// Ends the ring of this thread.
fn detach(id: RingId) {
    let local = RINGS.try_with(|rings| {
        let mut rings = rings.try_borrow_mut().ok()?;
        let at = rings.iter().position(|local| local.id == id)?;
        Some(rings.swap_remove(at))
    });
    // A thread that ends drops its rings, which has the same effect.
    let Ok(Some(local)) = local else { return };
    let (woken, driver) = {
        let mut state = local.state.borrow_mut();
        state.ring.close();
        (state.ring.take_wakers(Vec::new()), state.driver.take())
    };
    for waker in woken.into_iter().chain(driver) {
        waker.wake();
    }
}

impl fmt::Debug for UringIo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pool = self.pool.get().is_some();
        f.debug_struct("UringIo").field("id", &self.id).field("pool", &pool).finish()
    }
}

#[cfg(test)]
mod blocking_tests;
#[cfg(test)]
mod tests;
