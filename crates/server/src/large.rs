//! Requests so large that a core would be busy with one of them for longer than others are to wait: values of megabytes are copied into
//! the log's record and into a memtable in one piece. Each core has a second thread for them, which gives way to it. Their messages are put
//! together there ([`crate::collect`]), and the values that reads find are unpacked there, too, and put into their messages, as far as they are so
//! large ([`aside`]).
//!
//! ```text
//!  core ─── takes in and decodes the request (a bulk: takes it in) ── sends the answer
//!                                          └─► its helper ──┘
//!                                              carries it out, beside other large ones, when the cores have nothing better to do
//! ```

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use tepui_bigtable::activity::{self, Working};
use tepui_bigtable::error::{Error, Result};
use tepui_bigtable::turn;
use tepui_engine::aside;
use tepui_engine::io::{JoinHandle, Spawner};
use tepui_engine::relay;
use tepui_engine::tablet::TabletId;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tonic::Status;

use crate::admission::Hold;
use crate::grpc::Request;
use crate::limits::{HELPER_PATIENCE, HELPER_PATIENCES_MAX, LARGE_REQUEST_ROOM_BYTES};
use crate::runtime::{self, Alive};

/// A thread of a core beside its own, which ends when this is dropped, and what it carries out with it: one for large requests, and one for
/// what may take seconds, as filters of much work may. Nothing that others wait for is on the latter: neither permits nor locks.
#[derive(Debug)]
pub struct Helper {
    runtime: Handle,
    _stop: oneshot::Sender<()>,
}

impl Helper {
    /// Starts one, which tells which tablet it works for, and that it has ended. What it meets that is slow it leaves to `slow`.
    pub fn start(
        spawner: &dyn Spawner,
        name: &str,
        working: Arc<Working>,
        alive: Alive,
        slow: Option<&Self>,
    ) -> Result<(Self, Box<dyn JoinHandle>)> {
        let runtime = runtime::build_core().map_err(|error| {
            Error::internal(format!("cannot start a helper's runtime: {error}"))
        })?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let slow = slow.map(|slow| Slow(slow.runtime.clone()));
        let work = move || {
            // Told of when the runtime is gone, too.
            let (_alive, runtime) = (alive, runtime);
            let _lent = slow.map(|slow| aside::lend_slow(Arc::new(slow)));
            activity::publish(working);
            drop(runtime.spawn(relay::serve()));
            // Nothing is ever sent.
            let _ = runtime.block_on(stopped);
        };
        let thread = spawner.spawn_yielding(name, Box::new(work))?;
        Ok((Self { runtime: handle, _stop: stop }, thread))
    }
}

thread_local! {
    static OWN: RefCell<Option<Helper>> = const { RefCell::new(None) };
}

/// This thread has a helper until this is dropped.
#[derive(Debug)]
#[must_use]
pub struct Lent {
    _aside: aside::Lent,
    _aside_slow: aside::LentSlow,
    _slow: Helper,
}

/// Lends a helper to this thread, for [`carry_out`] and for [`aside::Aside::carry_out`], and one for what is slow.
pub fn lend(helper: Helper, slow: Helper) -> Lent {
    lend_for((helper, slow), HELPER_PATIENCE)
}

fn lend_for((helper, slow): (Helper, Helper), patience: Duration) -> Lent {
    let beside = Beside { runtime: helper.runtime.clone(), pieces: Arc::default(), patience };
    let beside_slow = Slow(slow.runtime.clone());
    OWN.with(|own| own.replace(Some(helper)));
    Lent {
        _aside: aside::lend(Arc::new(beside)),
        _aside_slow: aside::lend_slow(Arc::new(beside_slow)),
        _slow: slow,
    }
}

/// What helpers carry out in pieces, one among its large requests.
#[derive(Debug)]
struct Beside {
    runtime: Handle,
    /// Counts pieces twice: where they are begun, and where they are done.
    pieces: Arc<AtomicU64>,
    patience: Duration,
}

/// The helper for what is slow.
#[derive(Debug)]
struct Slow(Handle);

/// Carries out a piece on a helper.
fn carry_out_on(helper: &Handle, tablet: Option<TabletId>, work: Box<dyn FnOnce() + Send>) {
    drop(helper.spawn(async move {
        tablet.map_or_else(activity::rest, activity::turn_to);
        work();
    }));
}

impl aside::Helper for Beside {
    fn carry_out(&self, tablet: Option<TabletId>, work: Box<dyn FnOnce() + Send>) {
        let pieces = Arc::clone(&self.pieces);
        let counted = move || {
            pieces.fetch_add(1, Ordering::Relaxed);
            work();
            pieces.fetch_add(1, Ordering::Relaxed);
        };
        carry_out_on(&self.runtime, tablet, Box::new(counted));
    }

    /// Where pieces of others are begun and done meanwhile, work is behind them, and comes to its turn.
    fn patience(&self) -> BoxFuture<'static, ()> {
        let (pieces, patience) = (Arc::clone(&self.pieces), self.patience);
        Box::pin(async move {
            let mut before = pieces.load(Ordering::Relaxed);
            for _ in 0..HELPER_PATIENCES_MAX {
                tokio::time::sleep(patience).await;
                let now = pieces.load(Ordering::Relaxed);
                if now == std::mem::replace(&mut before, now) {
                    break;
                }
            }
        })
    }

    fn others_first(&self) -> BoxFuture<'static, ()> {
        Box::pin(turn::others_first())
    }
}

impl aside::SlowHelper for Slow {
    fn carry_out(&self, tablet: Option<TabletId>, work: Box<dyn FnOnce() + Send>) {
        carry_out_on(&self.0, tablet, work);
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        drop(OWN.with(RefCell::take));
    }
}

/// What a request holds of the budget, where it is a large one: in its message, or in what that was decoded into.
pub fn hold_of<T>(request: &Request<T>) -> Option<Hold> {
    hold_with(request.hold(), 0)
}

/// The same where it has found so many bytes that it is to copy.
pub fn hold_with(hold: &Hold, found_bytes: u64) -> Option<Hold> {
    let bytes = hold.request_bytes().saturating_add(found_bytes);
    (bytes >= LARGE_REQUEST_ROOM_BYTES).then(|| hold.clone())
}

/// Carries out a request, of which `work` makes the future, where it is to stay: a large one, which holds its room until nothing of it is
/// left, on this thread's helper. Whoever stops waiting ends it at the next step, as it ends any other.
pub async fn carry_out<F: Future<Output: Send> + Send + 'static>(
    large: Option<Hold>,
    work: impl FnOnce() -> F,
) -> Result<F::Output, Status> {
    let helper = || OWN.with(|own| own.borrow().as_ref().map(|helper| helper.runtime.clone()));
    let Some((hold, helper)) = large.and_then(|hold| Some((hold, helper()?))) else {
        return Ok(work().await);
    };
    let work = work();
    let done = helper.spawn(async move {
        let _hold = hold;
        work.await
    });
    let _end = End(done.abort_handle());
    // It panicked, which is on stderr, or the server ends.
    done.await
        .map_err(|_| Status::internal("the request failed unexpectedly; see the server's log"))
}

/// The same for work that others wait for, as it has a row's lock: what the helper has not begun in time is carried out here, and what nobody
/// waits for any more is gone at once.
pub async fn carry_out_in_time<F: Future<Output: Send> + Send + 'static>(
    large: Option<Hold>,
    work: impl FnOnce() -> F + Send + 'static,
) -> Result<F::Output, Status> {
    in_time(large, work, HELPER_PATIENCE).await
}

async fn in_time<F: Future<Output: Send> + Send + 'static>(
    large: Option<Hold>,
    work: impl FnOnce() -> F + Send + 'static,
    patience: Duration,
) -> Result<F::Output, Status> {
    if large.is_none() {
        return Ok(work().await);
    }
    let offered = Offered(Arc::new(Mutex::new(Some(work))));
    let slot = Arc::clone(&offered.0);
    let begin = move || async move {
        let work = lock(&slot).take();
        match work {
            Some(work) => Some(work().await),
            None => None,
        }
    };
    // Boxed, so that requests that are not large stay small.
    let mut beside = Box::pin(carry_out(large, begin));
    let done = match tokio::time::timeout(patience, &mut beside).await {
        Ok(done) => done,
        Err(_) => match offered.take() {
            Some(work) => return Ok(work().await),
            None => beside.await,
        },
    };
    done?.ok_or_else(|| Status::internal("the request's work was taken twice"))
}

/// Work, until somebody begins it.
struct Offered<W>(Arc<Mutex<Option<W>>>);

impl<W> Offered<W> {
    fn take(&self) -> Option<W> {
        lock(&self.0).take()
    }
}

impl<W> Drop for Offered<W> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

fn lock<W>(slot: &Mutex<W>) -> MutexGuard<'_, W> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

struct End(AbortHandle);

impl Drop for End {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use std::thread::{self, ThreadId};

    use tepui_engine::ErrorKind;
    use tepui_engine::aside::Aside;
    use tepui_engine::io::ThreadSpawner;
    use tokio::sync::{oneshot, watch};

    use super::*;
    use crate::admission::{Gate, Streams};

    fn request_of(bytes: u64) -> Request<()> {
        Request::holding((), Hold::of_bytes(bytes))
    }

    /// What `work` says of a request of so many bytes, on a thread with a helper.
    fn on_a_core<T: 'static>(work: impl AsyncFnOnce() -> T) -> T {
        on_a_core_working(Arc::default(), work)
    }

    /// The same, where the helper says what it works for.
    fn on_a_core_working<T: 'static>(working: Arc<Working>, work: impl AsyncFnOnce() -> T) -> T {
        let (one_ended, _) = watch::channel(false);
        let start = |slow: Option<&Helper>| {
            let (alive, _) = Alive::new(&one_ended);
            Helper::start(&ThreadSpawner, "helper", Arc::clone(&working), alive, slow).unwrap()
        };
        let (slow, slow_thread) = start(None);
        let (helper, thread) = start(Some(&slow));
        let lent = lend_for((helper, slow), Duration::from_mins(10));
        let said = runtime::build_core().unwrap().block_on(work());
        drop(lent);
        // Without its helpers' ends this would wait for ever.
        thread.join();
        slow_thread.join();
        said
    }

    async fn thread_of(bytes: u64) -> ThreadId {
        let large = hold_of(&request_of(bytes));
        carry_out(large, || async { thread::current().id() }).await.unwrap()
    }

    #[test]
    fn large_requests_are_carried_out_beside_the_core_and_others_on_it() {
        let threads = on_a_core(async || {
            [
                thread_of(LARGE_REQUEST_ROOM_BYTES).await,
                thread_of(LARGE_REQUEST_ROOM_BYTES / 2).await,
            ]
        });
        let here = thread::current().id();
        assert_ne!(threads[0], here);
        assert_eq!(threads[1], here);
        // A thread that has no helper does everything itself.
        let alone = runtime::build_core().unwrap().block_on(thread_of(LARGE_REQUEST_ROOM_BYTES));
        assert_eq!(alone, here);
    }

    #[tokio::test]
    async fn requests_of_many_small_parts_and_those_that_find_much_are_large_too() {
        let is_large = |hold: &Hold, found| hold_with(hold, found).is_some();
        let gate = Arc::new(Gate::new(4 << 20, 4 << 20, 4 << 20));
        let connection = Arc::new(Streams::new(1 << 20)).connection();
        let hold = Hold::new(Some(gate), connection, None);
        assert!(!is_large(&hold, LARGE_REQUEST_ROOM_BYTES - 1));
        assert!(is_large(&hold, LARGE_REQUEST_ROOM_BYTES));
        hold.make_room_to_decode(LARGE_REQUEST_ROOM_BYTES / 2, false).await.unwrap();
        assert!(!is_large(&hold, 0) && is_large(&hold, LARGE_REQUEST_ROOM_BYTES / 2));
        hold.make_room_to_decode(LARGE_REQUEST_ROOM_BYTES, false).await.unwrap();
        assert!(is_large(&hold, 0));
    }

    #[test]
    fn work_that_others_wait_for_is_taken_back_from_a_helper_that_does_not_begin_it() {
        let here = thread::current().id();
        on_a_core(async || {
            let (go_on, held) = std::sync::mpsc::channel::<()>();
            let large = || hold_of(&request_of(LARGE_REQUEST_ROOM_BYTES));
            let work = || async { thread::current().id() };
            let forever = Duration::from_hours(1);
            assert_ne!(in_time(large(), work, forever).await.unwrap(), here);
            assert_eq!(in_time(None, work, forever).await.unwrap(), here);
            // The helper is busy from here on.
            let mut busy = Box::pin(carry_out(large(), move || async move { held.recv() }));
            assert!(futures::poll!(&mut busy).is_pending());
            assert_eq!(in_time(large(), work, Duration::ZERO).await.unwrap(), here);
            // Who goes away leaves nothing that is kept by what the helper is at.
            let lock = Arc::new(());
            let kept = Arc::clone(&lock);
            let mut given_up = Box::pin(in_time(large(), || async { drop(kept) }, forever));
            assert!(futures::poll!(&mut given_up).is_pending());
            drop(given_up);
            assert_eq!(Arc::strong_count(&lock), 1);
            drop(go_on);
            busy.await.unwrap().unwrap_err();
        });
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_left_to_a_helper_waits_for_as_long_as_that_goes_on_and_no_longer_than_a_second()
     {
        let patience = Duration::from_millis(100);
        // Until when it goes on with others' pieces, and how long is waited.
        for (goes_on_ms, waits_ms) in [(0, 100), (350, 500), (60_000, 1_000)] {
            let pieces = Arc::<AtomicU64>::default();
            let runtime = Handle::current();
            let beside = Beside { runtime, pieces: Arc::clone(&pieces), patience };
            let goes_on = async {
                for _ in 0..goes_on_ms / 50 {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    pieces.fetch_add(1, Ordering::Relaxed);
                }
                std::future::pending::<()>().await;
            };
            let began = tokio::time::Instant::now();
            tokio::select! {
                () = aside::Helper::patience(&beside) => {}
                () = goes_on => {}
            }
            assert_eq!(began.elapsed(), Duration::from_millis(waits_ms), "{goes_on_ms} ms");
        }
    }

    #[test]
    fn large_values_of_reads_are_the_helpers_too() {
        let threads = on_a_core(async || {
            let aside = Aside::default();
            let beside = aside.carry_out(None, || thread::current().id()).await.unwrap();
            let failed = aside.carry_out(None, || -> () { panic!("of this value") }).await;
            assert_eq!(failed.unwrap_err().kind(), ErrorKind::Io);
            (beside, aside.carry_out(None, || thread::current().id()).await.unwrap())
        });
        assert_ne!(threads.0, thread::current().id());
        assert_eq!(threads.0, threads.1, "it goes on behind one that panicked");
    }

    #[test]
    fn a_core_and_its_large_requests_wait_for_nothing_that_is_slow() {
        on_a_core(async || {
            let (go_on, held) = std::sync::mpsc::channel::<()>();
            // Of a large request, which its helper carries out.
            let work =
                move || async move { aside::carry_out_slow(None, move || held.recv()).await };
            let slow = carry_out(hold_of(&request_of(LARGE_REQUEST_ROOM_BYTES)), work);
            let (go_on, meanwhile) = (go_on, async {
                let own = thread::current().id();
                assert_ne!(thread_of(LARGE_REQUEST_ROOM_BYTES).await, own);
                let beside = Aside::default().carry_out(None, || thread::current().id()).await;
                assert_ne!(beside.unwrap(), own);
            });
            let meanwhile = async {
                meanwhile.await;
                go_on.send(()).unwrap();
            };
            let (slow, ()) = tokio::join!(slow, meanwhile);
            slow.unwrap().unwrap().unwrap();
        });
    }

    #[test]
    fn large_values_count_for_the_tablet_whose_read_they_are_of() {
        let working = Arc::<Working>::default();
        let seen = Arc::clone(&working);
        let counted = on_a_core_working(working, async || {
            let aside = Aside::default();
            let mut counted = Vec::new();
            for tablet in [Some(TabletId(7)), None] {
                let seen = Arc::clone(&seen);
                counted.push(aside.carry_out(tablet, move || seen.on()).await.unwrap());
            }
            counted
        });
        assert_eq!(counted, [Some(TabletId(7)), None]);
    }

    #[test]
    fn a_large_request_whose_client_goes_away_ends_and_gives_its_room_back() {
        on_a_core(async || {
            let request = request_of(LARGE_REQUEST_ROOM_BYTES);
            let (begin, begun) = oneshot::channel();
            // Dropped with the work, and with nothing else.
            let (held, ended) = oneshot::channel::<()>();
            let work = || async move {
                let _ = begin.send(());
                std::future::pending::<()>().await;
                drop(held);
            };
            let mut call = Box::pin(carry_out(hold_of(&request), work));
            tokio::select! {
                _ = &mut call => panic!("it never ends"),
                begun = begun => begun.unwrap(),
            }
            drop((request, call));
            assert!(ended.await.is_err(), "nothing was sent");
        });
    }

    #[test]
    fn a_large_request_that_panics_fails_alone() {
        on_a_core(async || {
            let large = hold_of(&request_of(LARGE_REQUEST_ROOM_BYTES));
            let failed: Result<(), _> =
                carry_out(large, || async { panic!("of this request") }).await;
            let failed = failed.unwrap_err();
            assert_eq!(failed.code(), tonic::Code::Internal, "{failed:?}");
            assert_ne!(thread_of(LARGE_REQUEST_ROOM_BYTES).await, thread::current().id());
        });
    }
}
