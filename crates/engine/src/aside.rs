//! Work that takes a thread which serves requests so long that others would feel it, and that nothing but its own request waits
//! for: to unpack a value of megabytes, say. A thread may have a helper for it, another one that gives way to it.
//!
//! ```text
//! request: find ── read ──┐                    ┌── send
//!                         └─► helper: unpack ──┘
//! ```
//!
//! The work, and the memory that it is for, stays with who waits until the helper begins it. Who goes away takes it along, and who
//! has waited for as long as the helper's [patience](Helper::patience) carries it out, and some more of what its request has.
//! What takes long enough that others would feel it there, too, is for whichever helper comes to it first then. What may take seconds has a [helper of its own](SlowHelper), and is nobody else's to carry out: nothing that takes milliseconds waits
//! behind it, neither there nor here. A thread that is a helper itself may have that one, too.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use futures::future::{BoxFuture, Either, select};
use tokio::sync::oneshot;

use crate::error::{Error, ErrorKind, Result};
use crate::log::lock;
use crate::tablet::TabletId;

/// What carries out pieces of work one after the other, elsewhere. One that cannot any more drops them.
pub trait Helper: Send + Sync {
    /// Carries out a piece of work, of a request to this tablet, when it comes to it.
    fn carry_out(&self, tablet: Option<TabletId>, work: Box<dyn FnOnce() + Send>);

    /// Resolves when work that was just given to it has waited long enough: it may be at other work for long, or lack a processor.
    fn patience(&self) -> BoxFuture<'static, ()>;

    /// Resolves when what else is ready on the thread that it was lent to had its turn; at once where nothing else is.
    fn others_first(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// What carries out what may take seconds, one after the other.
pub trait SlowHelper: Send + Sync {
    /// Carries out a piece of work, of a request to this tablet, when it comes to it.
    fn carry_out(&self, tablet: Option<TabletId>, work: Box<dyn FnOnce() + Send>);
}

thread_local! {
    static OWN: RefCell<Option<Arc<dyn Helper>>> = const { RefCell::new(None) };
    static SLOW: RefCell<Option<Arc<dyn SlowHelper>>> = const { RefCell::new(None) };
}

/// This thread has a helper until this is dropped. One at a time.
#[derive(Debug)]
#[must_use]
pub struct Lent(());

/// Lends a helper to this thread, for [`Aside::carry_out`].
pub fn lend(helper: Arc<dyn Helper>) -> Lent {
    OWN.set(Some(helper));
    Lent(())
}

impl Drop for Lent {
    fn drop(&mut self) {
        OWN.set(None);
    }
}

/// This thread has a helper for what is slow until this is dropped. One at a time.
#[derive(Debug)]
#[must_use]
pub struct LentSlow(());

/// Lends a helper to this thread, for [`carry_out_slow`].
pub fn lend_slow(helper: Arc<dyn SlowHelper>) -> LentSlow {
    SLOW.set(Some(helper));
    LentSlow(())
}

impl Drop for LentSlow {
    fn drop(&mut self) {
        SLOW.set(None);
    }
}

/// Gives way to what else this thread has to do, where it has a helper. One that has none is a helper itself, which carries out what
/// may take long, or nobody's but its caller's.
pub(crate) async fn others_first() {
    let own = OWN.with_borrow(Option::clone);
    if let Some(helper) = own {
        helper.others_first().await;
    }
}

/// Work, until somebody begins it.
struct Waiting<F>(Arc<Mutex<Option<F>>>);

impl<F> Waiting<F> {
    fn take(&self) -> Option<F> {
        lock(&self.0).take()
    }

    /// Why nothing came of it: nobody has begun it, or who did has panicked.
    fn failed(&self) -> Error {
        match self.take() {
            Some(_) => Error::new(ErrorKind::Closed, "the server ends"),
            None => Error::new(
                ErrorKind::Io,
                "a part of the request's work failed unexpectedly; see the server's log",
            ),
        }
    }
}

impl<F> Drop for Waiting<F> {
    /// Who waited goes away: nobody wants it any more.
    fn drop(&mut self) {
        drop(self.take());
    }
}

/// Pieces of a request that its own thread carries out once the helper did not come to one of them, before it is asked again. Each may have
/// waited for a second, which a long read is not to do for every piece; nor is it to be that thread's to its end, when the helper has long caught up.
const PIECES_WHEN_LATE: u32 = 16;

/// What one request leaves to its thread's helper.
#[derive(Debug, Default)]
pub struct Aside {
    /// Pieces that the helper is not asked for, since it did not come to one.
    not_asked: AtomicU32,
}

impl Aside {
    /// What `work`, for a request to `tablet`, comes to: on this thread's helper, or here where it has none, or that does not come to it.
    pub async fn carry_out<T: Send + 'static, F: FnOnce() -> T + Send + 'static>(
        &self,
        tablet: Option<TabletId>,
        work: F,
    ) -> Result<T> {
        let Some(helper) = OWN.with_borrow(Option::clone) else { return Ok(work()) };
        let not_asked = self.not_asked.load(Ordering::Relaxed);
        if not_asked > 0 {
            // A request does one thing after the other.
            self.not_asked.store(not_asked - 1, Ordering::Relaxed);
            return Ok(work());
        }
        let (waiting, done, result) = offer(work);
        helper.carry_out(tablet, waiting.begin(done));
        let result = match select(result, helper.patience()).await {
            Either::Left((result, _)) => result,
            Either::Right(((), result)) => match waiting.take() {
                Some(work) => {
                    self.not_asked.store(PIECES_WHEN_LATE, Ordering::Relaxed);
                    return Ok(work());
                }
                None => result.await,
            },
        };
        result.map_err(|_| waiting.failed())
    }
}

/// What `work`, for a request to `tablet`, comes to, which may take a tenth of a second: on this thread's helper, or on the one [for what is
/// slow](carry_out_slow) where that comes to it before; here only where there is none.
pub async fn carry_out_long<T: Send + 'static, F: FnOnce() -> T + Send + 'static>(
    tablet: Option<TabletId>,
    work: F,
) -> Result<T> {
    let Some(helper) = OWN.with_borrow(Option::clone) else { return Ok(work()) };
    let (waiting, done, result) = offer(work);
    // Not kept: where the helper drops what it has, it is over at once.
    let offered = Arc::downgrade(&done);
    helper.carry_out(tablet, waiting.begin(done));
    let result = match select(result, helper.patience()).await {
        Either::Left((result, _)) => result,
        Either::Right(((), result)) => {
            if let (Some(slow), Some(done)) = (SLOW.with_borrow(Option::clone), offered.upgrade()) {
                slow.carry_out(tablet, waiting.begin(done));
            }
            result.await
        }
    };
    result.map_err(|_| waiting.failed())
}

/// What `work`, for a request to `tablet`, which may take seconds, comes to: on this thread's helper for such work, behind what others have
/// of it; on that for all else where there is none, and here only where there is neither.
pub async fn carry_out_slow<T: Send + 'static, F: FnOnce() -> T + Send + 'static>(
    tablet: Option<TabletId>,
    work: F,
) -> Result<T> {
    let (slow, own) = (SLOW.with_borrow(Option::clone), OWN.with_borrow(Option::clone));
    if slow.is_none() && own.is_none() {
        return Ok(work());
    }
    let (waiting, done, result) = offer(work);
    let begin = waiting.begin(done);
    match (slow, own) {
        (Some(helper), _) => helper.carry_out(tablet, begin),
        (None, Some(helper)) => helper.carry_out(tablet, begin),
        (None, None) => {}
    }
    result.await.map_err(|_| waiting.failed())
}

/// What takes the outcome of work: whoever begins it first.
type Done<T> = Arc<Mutex<Option<oneshot::Sender<T>>>>;

/// Work that others may begin until one of them does, what takes its outcome, and the outcome.
fn offer<T, F>(work: F) -> (Waiting<F>, Done<T>, oneshot::Receiver<T>) {
    let (done, result) = oneshot::channel();
    (Waiting(Arc::new(Mutex::new(Some(work)))), Arc::new(Mutex::new(Some(done))), result)
}

impl<F> Waiting<F> {
    /// What begins it, unless somebody has.
    fn begin<T: Send + 'static>(&self, done: Done<T>) -> Box<dyn FnOnce() + Send>
    where
        F: FnOnce() -> T + Send + 'static,
    {
        let slot = Arc::clone(&self.0);
        Box::new(move || {
            let Some(work) = lock(&slot).take() else { return };
            // Taken before, so that a panic tells of the end, though another could have begun it.
            let Some(done) = lock(&done).take() else { return };
            // Nobody may be left to take it.
            let _ = done.send(work());
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use futures::FutureExt as _;

    use super::*;

    /// One that carries nothing out before it is told to.
    #[derive(Default)]
    struct Later {
        work: Mutex<Vec<Box<dyn FnOnce() + Send>>>,
        is_impatient: AtomicBool,
    }

    impl Helper for Later {
        fn carry_out(&self, _: Option<TabletId>, work: Box<dyn FnOnce() + Send>) {
            self.work.lock().unwrap().push(work);
        }

        fn patience(&self) -> BoxFuture<'static, ()> {
            if self.is_impatient.load(Ordering::Relaxed) {
                Box::pin(std::future::ready(()))
            } else {
                Box::pin(std::future::pending())
            }
        }
    }

    impl Later {
        fn take(&self) -> Vec<Box<dyn FnOnce() + Send>> {
            std::mem::take(&mut self.work.lock().unwrap())
        }
    }

    async fn carry_out<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        Aside::default().carry_out(None, work).await
    }

    fn lent() -> (Arc<Later>, Lent) {
        let later = Arc::new(Later::default());
        let lent = lend(Arc::clone(&later) as Arc<dyn Helper>);
        (later, lent)
    }

    #[test]
    fn work_is_the_helpers_where_there_is_one() {
        assert_eq!(carry_out(|| 1).now_or_never().unwrap().unwrap(), 1);
        let (later, lent) = lent();
        let mut two = Box::pin(carry_out(|| 2));
        assert!((&mut two).now_or_never().is_none());
        for work in later.take() {
            work();
        }
        assert_eq!(two.now_or_never().unwrap().unwrap(), 2);
        drop(lent);
        assert_eq!(carry_out(|| 3).now_or_never().unwrap().unwrap(), 3);
    }

    #[test]
    fn who_goes_away_takes_its_work_along() {
        let (later, _lent) = lent();
        let memory = Arc::new(());
        let held = Arc::clone(&memory);
        let mut given_up = Box::pin(carry_out(move || panic!("nobody wants {held:?}")));
        assert!((&mut given_up).now_or_never().is_none());
        drop(given_up);
        assert_eq!(Arc::strong_count(&memory), 1, "though the helper has not come to it");
        for work in later.take() {
            work();
        }
    }

    #[test]
    fn work_that_the_helper_does_not_come_to_is_done_by_who_waits() {
        let (later, _lent) = lent();
        later.is_impatient.store(true, Ordering::Relaxed);
        let aside = Aside::default();
        let done_here = |n| {
            let done = aside.carry_out(None, move || n).now_or_never();
            assert_eq!(done.unwrap().unwrap(), n);
        };
        (0..=PIECES_WHEN_LATE).for_each(done_here);
        let handed_over = later.take();
        assert_eq!(handed_over.len(), 1, "the next ones are not even tried");
        for work in handed_over {
            work();
        }
        // It is asked again, and has caught up.
        later.is_impatient.store(false, Ordering::Relaxed);
        let mut asked = Box::pin(aside.carry_out(None, || 3));
        assert!((&mut asked).now_or_never().is_none());
        for work in later.take() {
            work();
        }
        assert_eq!(asked.now_or_never().unwrap().unwrap(), 3);
        // But for what may take seconds.
        let mut slow = Box::pin(carry_out_slow(None, || 4));
        assert!((&mut slow).now_or_never().is_none());
        for work in later.take() {
            work();
        }
        assert_eq!(slow.now_or_never().unwrap().unwrap(), 4);
    }

    /// One for what is slow.
    struct Slow(Arc<Later>);

    impl SlowHelper for Slow {
        fn carry_out(&self, tablet: Option<TabletId>, work: Box<dyn FnOnce() + Send>) {
            Helper::carry_out(&*self.0, tablet, work);
        }
    }

    fn lent_slow() -> (Arc<Later>, LentSlow) {
        let slow = Arc::new(Later::default());
        let lent = lend_slow(Arc::new(Slow(Arc::clone(&slow))));
        (slow, lent)
    }

    #[test]
    fn long_work_is_done_by_the_helper_that_comes_to_it_first() {
        let (later, _lent) = lent();
        let (slow, _lent_slow) = lent_slow();
        later.is_impatient.store(true, Ordering::Relaxed);
        for first in [&slow, &later] {
            let mut long = Box::pin(carry_out_long(None, || 5));
            assert!((&mut long).now_or_never().is_none(), "not here");
            for work in first.take() {
                work();
            }
            assert_eq!(long.now_or_never().unwrap().unwrap(), 5);
            // The other finds nothing to do.
            for work in slow.take().into_iter().chain(later.take()) {
                work();
            }
        }
    }

    #[test]
    fn long_work_that_nobody_can_begin_any_more_fails() {
        let (later, _lent) = lent();
        let (slow, _lent_slow) = lent_slow();
        later.is_impatient.store(true, Ordering::Relaxed);
        let mut long = Box::pin(carry_out_long(None, || 5));
        assert!((&mut long).now_or_never().is_none());
        drop((later.take(), slow.take()));
        assert_eq!(long.now_or_never().unwrap().unwrap_err().kind(), ErrorKind::Closed);
    }

    #[test]
    fn work_that_is_dropped_is_told_from_work_that_panicked() {
        let (later, _lent) = lent();
        let mut dropped = Box::pin(carry_out(|| 1));
        assert!((&mut dropped).now_or_never().is_none());
        drop(later.take());
        assert_eq!(dropped.now_or_never().unwrap().unwrap_err().kind(), ErrorKind::Closed);
        let mut panics = Box::pin(carry_out(|| -> () { panic!("of this value") }));
        assert!((&mut panics).now_or_never().is_none());
        for work in later.take() {
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_err();
        }
        assert_eq!(panics.now_or_never().unwrap().unwrap_err().kind(), ErrorKind::Io);
    }
}
