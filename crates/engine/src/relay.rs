//! Wake-ups that are handed on together. To wake a task of another thread's runtime costs a system call, and the log's thread
//! has dozens of them after each group: a dozen microseconds in which it does not write the next one. A thread that
//! serves requests has one task that is woken in their place, once, and that wakes the others at home, where it costs next to nothing.
//!
//! ```text
//! log's thread: answer answer answer answer ──► the relays of two threads ──► each wakes its own
//! ```

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use futures::task::AtomicWaker;

thread_local! {
    /// That of this thread's runtime.
    static HERE: RefCell<Option<Arc<Relay>>> = const { RefCell::new(None) };
}

#[derive(Debug, Default)]
struct Relay {
    state: Mutex<State>,
    task: AtomicWaker,
}

#[derive(Debug, Default)]
struct State {
    /// Who is to be woken; at most one for each task of the thread that waits.
    woken: Vec<Waker>,
    /// Its thread serves no more.
    has_ended: bool,
}

impl Relay {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes those who are to be woken, from the relay's own thread.
    fn hand_on(&self) {
        let woken = std::mem::take(&mut self.state().woken);
        for waker in woken {
            waker.wake();
        }
    }
}

/// The relay of the thread that polls it: until it is dropped, tasks of this thread that wait for the commit log are woken
/// through it. To be spawned on the thread's own runtime; a thread with one must not block until a write is done.
pub async fn serve() {
    let serving = Serving(Arc::default());
    HERE.set(Some(Arc::clone(&serving.0)));
    let relay = &serving.0;
    poll_fn(|context| {
        relay.task.register(context.waker());
        relay.hand_on();
        Poll::<()>::Pending
    })
    .await;
}

struct Serving(Arc<Relay>);

impl Drop for Serving {
    fn drop(&mut self) {
        // A thread that ends has no such value any more.
        let _ = HERE.try_with(|here| here.borrow_mut().take_if(|here| Arc::ptr_eq(here, &self.0)));
        self.0.state().has_ended = true;
        self.0.hand_on();
    }
}

/// A waker that goes through a relay.
struct Relayed {
    relay: Arc<Relay>,
    waker: Waker,
}

impl Wake for Relayed {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let is_here = HERE.try_with(|here| {
            here.borrow().as_ref().is_some_and(|here| Arc::ptr_eq(here, &self.relay))
        });
        if is_here.unwrap_or(false) {
            return self.waker.wake_by_ref();
        }
        let mut state = self.relay.state();
        if state.has_ended {
            drop(state);
            return self.waker.wake_by_ref();
        }
        state.woken.push(self.waker.clone());
        let is_first = state.woken.len() == 1;
        drop(state);
        if is_first {
            self.relay.task.wake();
        }
    }
}

/// Polls a future that another thread wakes; through the relay of this thread, where it has one.
pub(crate) fn poll<F: Future + Unpin>(
    future: &mut F,
    context: &mut Context<'_>,
) -> Poll<F::Output> {
    let Some(relay) = HERE.with_borrow(Clone::clone) else {
        return Pin::new(future).poll(context);
    };
    let waker = Waker::from(Arc::new(Relayed { relay, waker: context.waker().clone() }));
    Pin::new(future).poll(&mut Context::from_waker(&waker))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::io::{Spawner as _, ThreadSpawner};
    use tokio::sync::oneshot;

    #[derive(Default)]
    struct Counter(AtomicUsize);

    impl Wake for Counter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn elsewhere(work: impl FnOnce() + Send + 'static) {
        ThreadSpawner.spawn("log", Box::new(work)).unwrap().join();
    }

    #[test]
    fn tasks_that_another_thread_wakes_are_woken_by_one_wake_up_of_their_own() {
        let (task, waiter) = (Arc::<Counter>::default(), Arc::<Counter>::default());
        let (task_waker, waiter_waker) = (Waker::from(task.clone()), Waker::from(waiter.clone()));
        let mut context = Context::from_waker(&task_waker);
        let mut serving = Box::pin(serve());
        assert!(serving.as_mut().poll(&mut context).is_pending());
        let (answers, mut waiting): (Vec<_>, Vec<_>) =
            (0..10).map(|_| oneshot::channel::<u32>()).unzip();
        for receiver in &mut waiting {
            let mut context = Context::from_waker(&waiter_waker);
            assert!(poll(receiver, &mut context).is_pending());
        }
        elsewhere(|| {
            for answer in answers {
                answer.send(7).unwrap();
            }
        });
        let woken = |counter: &Counter| counter.0.load(Ordering::SeqCst);
        assert_eq!((woken(&task), woken(&waiter)), (1, 0));
        assert!(serving.as_mut().poll(&mut context).is_pending());
        assert_eq!((woken(&task), woken(&waiter)), (1, 10));
        for receiver in &mut waiting {
            assert_eq!(receiver.try_recv(), Ok(7));
        }
    }

    #[test]
    fn who_waits_when_a_relay_ends_is_woken_all_the_same() {
        let waiter = Arc::<Counter>::default();
        let waker = Waker::from(waiter.clone());
        let mut serving = Box::pin(serve());
        let mut context = Context::from_waker(Waker::noop());
        assert!(serving.as_mut().poll(&mut context).is_pending());
        let (answers, mut waiting): (Vec<_>, Vec<_>) =
            (0..2).map(|_| oneshot::channel::<u32>()).unzip();
        for receiver in &mut waiting {
            assert!(poll(receiver, &mut Context::from_waker(&waker)).is_pending());
        }
        let mut answers = answers.into_iter();
        let first = answers.next().unwrap();
        elsewhere(|| first.send(1).unwrap());
        drop(serving);
        assert_eq!(waiter.0.load(Ordering::SeqCst), 1);
        answers.next().unwrap().send(2).unwrap();
        assert_eq!(waiter.0.load(Ordering::SeqCst), 2);
        // Without a relay there is nothing in between.
        let (answer, mut waiting) = oneshot::channel::<u32>();
        assert!(poll(&mut waiting, &mut Context::from_waker(&waker)).is_pending());
        answer.send(3).unwrap();
        assert_eq!(waiter.0.load(Ordering::SeqCst), 3);
    }
}
