//! Threads for what blocks: commits to the meta store, drops of rows, reads of old changes, sweeps. Each piece of work has a
//! thread of its own while there are no more than may be; then it waits for one.
//!
//! The first thread starts with the pool, and one of those that are idle stays, so that a pool that has started does its work whatever
//! the system has left later: where it refuses another thread, work waits for those there are. (tokio's own threads for this
//! leave when they are idle, and its `spawn_blocking` panics where the next is refused.)
//!
//! What waits for a lock has half of the threads at most: the rest is for work that none of it holds up.
//!
//! ```text
//!  run_in_turn ─► turn ─┐
//!  run ─────────────────┴► queue ──► a thread that is idle, or a new one ──► the result, to whoever waits
//!                                  (one that is idle stays, others leave after WORKER_IDLE)
//! ```

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tepui_bigtable::error::Result;
use tepui_engine::io::Spawner;
use tokio::sync::{Semaphore, oneshot};

use crate::limits::WORKER_IDLE;

/// A pool of such threads. Dropping it ends it, as [`Self::end`] does without waiting.
pub struct Workers {
    shared: Arc<Shared>,
    spawner: Arc<dyn Spawner>,
    name: &'static str,
    threads_max: usize,
    idle_max: Duration,
    /// Of work that takes turns, with itself or others, after it has begun.
    turns: Arc<Semaphore>,
}

type Work = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Rung for those who wait for work.
    bell: Condvar,
    /// Rung when a thread ends.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    /// Work that no thread has taken: no more than has turns, and what other limits bound.
    queue: VecDeque<Work>,
    threads: usize,
    /// Of these, those who wait for work.
    idle: usize,
    /// Whether the last thread that was asked for was refused.
    is_short: bool,
    is_ending: bool,
}

impl Workers {
    /// A pool of at most so many threads, of this name (15 bytes at most), the first of which starts now.
    pub fn start(
        spawner: Arc<dyn Spawner>,
        name: &'static str,
        threads_max: usize,
    ) -> Result<Self> {
        Self::with_idle(spawner, name, threads_max, WORKER_IDLE)
    }

    fn with_idle(
        spawner: Arc<dyn Spawner>,
        name: &'static str,
        threads_max: usize,
        idle_max: Duration,
    ) -> Result<Self> {
        let turns = Arc::new(Semaphore::new((threads_max / 2).max(1)));
        let workers = Self { shared: Arc::default(), spawner, name, threads_max, idle_max, turns };
        workers.spawn(&mut workers.shared.lock())?;
        Ok(workers)
    }

    /// Has work done, and resolves to its result: `None` where it panicked, which is on stderr, or the pool ended before it
    /// began. Whether anybody waits makes no difference to the work.
    pub fn run<T, F>(&self, work: F) -> impl Future<Output = Option<T>> + Send + use<T, F>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let (done, result) = oneshot::channel();
        self.submit(Box::new(move || {
            // Nobody waiting is no concern of the work.
            let _ = done.send(work());
        }));
        async { result.await.ok() }
    }

    fn submit(&self, work: Work) {
        let mut state = self.shared.lock();
        if state.is_ending {
            return;
        }
        state.queue.push_back(work);
        if state.queue.len() > state.idle && state.threads < self.threads_max {
            match self.spawn(&mut state) {
                Ok(()) => state.is_short = false,
                Err(error) if !state.is_short => {
                    state.is_short = true;
                    let (name, threads) = (self.name, state.threads);
                    tracing::warn!(
                        name, threads, %error,
                        "the system refuses a thread; what blocks waits for those there are"
                    );
                }
                Err(_) => {}
            }
        }
        self.shared.bell.notify_one();
    }

    fn spawn(&self, state: &mut State) -> Result<()> {
        let (shared, idle_max) = (Arc::clone(&self.shared), self.idle_max);
        // Not joined: work that is stuck must not keep the server from stopping.
        drop(self.spawner.spawn(self.name, Box::new(move || shared.work(idle_max)))?);
        state.threads += 1;
        Ok(())
    }

    /// Drops work that has not begun, takes no more, and waits for what has, but no longer than this.
    pub fn end(&self, wait: Duration) {
        let mut state = self.shared.lock();
        state.is_ending = true;
        let dropped = std::mem::take(&mut state.queue);
        self.shared.bell.notify_all();
        drop(state);
        drop(dropped);
        let ended = &self.shared.ended;
        drop(ended.wait_timeout_while(self.shared.lock(), wait, |state| state.threads > 0));
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.end(Duration::ZERO);
    }
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let threads = self.shared.lock().threads;
        f.debug_struct("Workers").field("name", &self.name).field("threads", &threads).finish()
    }
}

impl Shared {
    /// The state is valid at every step.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a thread does for all of its life.
    fn work(&self, idle_max: Duration) {
        let mut state = self.lock();
        loop {
            if let Some(work) = state.queue.pop_front() {
                drop(state);
                // Work that panics fails by itself; the panic is on stderr, and whoever waits learns of it.
                drop(catch_unwind(AssertUnwindSafe(work)));
                state = self.lock();
                continue;
            }
            if state.is_ending {
                break;
            }
            state.idle += 1;
            let woken = self.bell.wait_timeout(state, idle_max);
            let (back, waited) = woken.unwrap_or_else(PoisonError::into_inner);
            state = back;
            state.idle -= 1;
            // One that is idle stays: the system may have no other when there is work.
            if waited.timed_out() && state.queue.is_empty() && state.idle > 0 {
                break;
            }
        }
        state.threads -= 1;
        self.ended.notify_all();
    }
}

thread_local! {
    static OWN: RefCell<Option<Arc<Workers>>> = const { RefCell::new(None) };
}

/// What a thread serves has its work done by these workers until this is dropped.
#[derive(Debug)]
#[must_use]
pub struct Lent(());

/// Lends workers to this thread, for [`run`].
pub fn lend(workers: Arc<Workers>) -> Lent {
    OWN.with(|own| own.replace(Some(workers)));
    Lent(())
}

impl Drop for Lent {
    fn drop(&mut self) {
        drop(OWN.with(RefCell::take));
    }
}

fn own() -> Arc<Workers> {
    let own = OWN.with_borrow(Option::clone);
    own.expect("requests run on a core's thread, which has workers")
}

/// Has work done by the workers that were lent to this thread, as [`Workers::run`] does.
pub async fn run<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    own().run(work).await
}

/// The same for work that waits for what others do, as changes of the catalog do for each other. Who goes away while it is not its turn leaves nothing behind.
pub async fn run_in_turn<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let own = own();
    let turn = Arc::clone(&own.turns).acquire_owned().await.ok()?;
    let work = own.run(move || {
        let _turn = turn;
        work()
    });
    work.await
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use futures::FutureExt as _;
    use tepui_bigtable::error::Error;
    use tepui_engine::ErrorKind;
    use tepui_engine::io::{JoinHandle, ThreadSpawner};

    use super::*;

    /// The system's threads, as many as it has left; each tells of its end.
    #[derive(Debug)]
    struct Few {
        left: Mutex<usize>,
        ended: Mutex<mpsc::Sender<()>>,
    }

    fn few(left: usize) -> (Arc<Few>, mpsc::Receiver<()>) {
        let (ended, ends) = mpsc::channel();
        (Arc::new(Few { left: Mutex::new(left), ended: Mutex::new(ended) }), ends)
    }

    impl Spawner for Few {
        fn spawn(&self, name: &str, work: Work) -> tepui_engine::Result<Box<dyn JoinHandle>> {
            let mut left = self.left.lock().unwrap();
            if *left == 0 {
                return Err(tepui_engine::Error::new(ErrorKind::Io, "no more threads"));
            }
            *left -= 1;
            let ended = self.ended.lock().unwrap().clone();
            let tells = move || {
                work();
                let _ = ended.send(());
            };
            ThreadSpawner.spawn(name, Box::new(tells))
        }
    }

    const FOREVER: Duration = Duration::from_hours(1);

    #[tokio::test]
    async fn where_the_system_refuses_a_thread_work_waits_for_those_there_are() {
        let (spawner, _ends) = few(1);
        let workers = Workers::start(spawner, "tepui-work", 64).unwrap();
        let (go, may_go) = mpsc::channel::<()>();
        let first = workers.run(move || {
            let _ = may_go.recv();
            1
        });
        let second = workers.run(|| 2);
        drop(go);
        assert_eq!(tokio::join!(first, second), (Some(1), Some(2)));
    }

    #[test]
    fn a_pool_without_any_thread_does_not_start() {
        let refused: Result<Workers> = Workers::start(few(0).0, "tepui-work", 64);
        let error: Error = refused.unwrap_err();
        assert!(error.message().contains("no more threads"), "{error}");
    }

    #[tokio::test]
    async fn work_has_threads_of_its_own_up_to_the_limit() {
        let workers = Workers::start(few(9).0, "tepui-work", 2).unwrap();
        let (go, may_go) = mpsc::channel::<()>();
        let stuck = workers.run(move || may_go.recv());
        // The other thread does all that comes meanwhile.
        assert_eq!(workers.run(|| 1).await, Some(1));
        assert_eq!(workers.run(|| 2).await, Some(2));
        drop(go);
        assert!(stuck.await.is_some());
        assert!(workers.shared.lock().threads <= 2);
    }

    #[tokio::test]
    async fn what_takes_turns_leaves_threads_to_the_rest_and_nothing_behind_where_it_is_given_up() {
        let workers = Arc::new(Workers::start(few(9).0, "tepui-work", 4).unwrap());
        let _lent = lend(Arc::clone(&workers));
        let (go, may_go) = mpsc::channel::<()>();
        let may_go = Arc::new(Mutex::new(may_go));
        let stuck = || {
            let may_go = Arc::clone(&may_go);
            let work = run_in_turn(move || may_go.lock().unwrap().recv().is_err());
            let mut work = Box::pin(work);
            assert!((&mut work).now_or_never().is_none());
            work
        };
        let mut all: Vec<_> = std::iter::repeat_with(stuck).take(10).collect();
        assert_eq!(run(|| 1).await, Some(1));
        let last = all.pop();
        drop(all.split_off(2));
        assert!(workers.shared.lock().queue.is_empty());
        drop(go);
        for work in all.into_iter().chain(last) {
            assert_eq!(work.await, Some(true));
        }
    }

    #[tokio::test]
    async fn idle_threads_leave_and_one_stays() {
        let (spawner, ends) = few(9);
        let workers =
            Workers::with_idle(Arc::clone(&spawner) as _, "tepui-work", 3, Duration::ZERO);
        let workers = workers.unwrap();
        let meet = Arc::new(std::sync::Barrier::new(3));
        let all = std::array::from_fn::<_, 3, _>(|_| {
            let meet = Arc::clone(&meet);
            workers.run(move || meet.wait().is_leader())
        });
        let met = futures::future::join_all(all).await;
        assert_eq!(met.into_iter().filter(|leader| *leader == Some(true)).count(), 1);
        while workers.shared.lock().threads > 1 {
            ends.recv().unwrap();
        }
        *spawner.left.lock().unwrap() = 0;
        assert_eq!(workers.run(|| 4).await, Some(4));
    }

    #[tokio::test]
    async fn the_only_idle_thread_stays_while_the_others_are_busy() {
        let workers = Workers::with_idle(few(9).0, "tepui-work", 2, Duration::ZERO).unwrap();
        let (go, may_go) = mpsc::channel::<()>();
        let busy = workers.run(move || may_go.recv());
        assert_eq!(workers.run(|| 1).await, Some(1));
        // It is idle for too long at each look.
        for _ in 0..100_000 {
            assert_eq!(workers.shared.lock().threads, 2);
            std::thread::yield_now();
        }
        drop(go);
        assert!(busy.await.is_some());
    }

    #[tokio::test]
    async fn work_that_panics_fails_alone() {
        let workers = Workers::start(few(1).0, "tepui-work", 1).unwrap();
        assert_eq!(workers.run(|| -> u8 { panic!("of this work") }).await, None);
        assert_eq!(workers.run(|| 1).await, Some(1));
    }

    #[tokio::test]
    async fn the_end_waits_for_work_that_has_begun_and_drops_the_rest() {
        let (spawner, ends) = few(1);
        let workers = Workers::start(spawner, "tepui-work", 1).unwrap();
        let (begin, begun) = mpsc::channel();
        let (go, may_go) = mpsc::channel::<()>();
        let first = workers.run(move || {
            begin.send(()).unwrap();
            let _ = may_go.recv();
            1
        });
        begun.recv().unwrap();
        let second = workers.run(|| 2);
        workers.end(Duration::ZERO);
        assert_eq!(second.await, None);
        drop(go);
        workers.end(FOREVER);
        assert_eq!(first.now_or_never(), Some(Some(1)), "it is done");
        ends.recv().unwrap();
        assert_eq!(workers.run(|| 3).await, None, "none begins after the end");
    }
}
