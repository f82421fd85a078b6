//! Calls between the log's thread and those that serve requests, handed on together. To wake a task of another thread's
//! runtime costs a system call, and the log's thread has dozens of them after each group: a dozen microseconds in which it
//! does not write the next one. A thread that serves requests has one task that is woken in their place, once, and that
//! wakes the others at home, where it costs next to nothing.
//!
//! ```text
//! log's thread: answer answer answer answer ──► the relays of two threads ──► each wakes its own
//! ```
//!
//! The other way, that task calls the log's thread when it sleeps and something is queued for it. It has its turn after
//! everything that was ready on its thread, so what all of that queues is one group.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use futures::task::AtomicWaker;

use crate::log::{CommitLog, lock};

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
    /// Who is to be woken; at most one for each answer that the thread waits for.
    woken: Vec<Waker>,
    /// Logs whose threads are to be called: one, but for tests.
    logs: Vec<Arc<dyn CommitLog>>,
    /// Its thread serves no more.
    has_ended: bool,
}

impl Relay {
    /// Calls and wakes who is to be called and woken, from the relay's own thread.
    fn hand_on(&self) {
        let (woken, logs) = {
            let mut state = lock(&self.state);
            (std::mem::take(&mut state.woken), std::mem::take(&mut state.logs))
        };
        for log in logs {
            log.write_queued(false);
        }
        for waker in woken {
            waker.wake();
        }
    }

    /// Changes what is to be done, and asks for a turn of the task if there was nothing. `false`: its thread serves no more.
    fn ask(&self, change: impl FnOnce(&mut State)) -> bool {
        let mut state = lock(&self.state);
        if state.has_ended {
            return false;
        }
        let was_idle = state.woken.is_empty() && state.logs.is_empty();
        change(&mut state);
        drop(state);
        if was_idle {
            self.task.wake();
        }
        true
    }

    /// Wakes a task of the relay's thread, from any.
    fn wake(self: &Arc<Self>, waker: Waker) {
        if here().is_some_and(|here| Arc::ptr_eq(&here, self)) {
            return waker.wake();
        }
        let mut waker = Some(waker);
        if !self.ask(|state| state.woken.extend(waker.take()))
            && let Some(waker) = waker
        {
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
        lock(&self.0.state).has_ended = true;
        self.0.hand_on();
    }
}

/// Calls a log's thread when everything that is ready on this thread has had its turn; at once, where this thread has no relay.
/// Called without the log's locks.
pub(crate) fn call(log: &Arc<dyn CommitLog>) {
    let is_asked = here().is_some_and(|relay| {
        relay.ask(|state| {
            let same = |other: &Arc<dyn CommitLog>| {
                std::ptr::addr_eq(&raw const **other, &raw const **log)
            };
            if !state.logs.iter().any(same) {
                state.logs.push(Arc::clone(log));
            }
        })
    });
    if !is_asked {
        log.write_queued(false);
    }
}

/// The relay of this thread.
fn here() -> Option<Arc<Relay>> {
    // A thread that ends has none any more.
    HERE.try_with(|here| here.borrow().clone()).ok().flatten()
}

/// A channel for one answer, whose receiver is woken through the relay of the thread that polls it, where it has one.
pub(crate) fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let slot = Arc::new(Mutex::new(Slot { answer: None, has_ended: false, waiter: None }));
    (Sender(Arc::clone(&slot)), Receiver(slot))
}

#[derive(Debug)]
struct Slot<T> {
    answer: Option<T>,
    /// There is an answer, or nobody is left to give one.
    has_ended: bool,
    waiter: Option<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    waker: Waker,
    relay: Option<Arc<Relay>>,
}

impl Waiter {
    fn wake(self) {
        match self.relay {
            Some(relay) => relay.wake(self.waker),
            None => self.waker.wake(),
        }
    }
}

/// Who gives the answer. Dropped, there is none.
#[derive(Debug)]
pub(crate) struct Sender<T>(Arc<Mutex<Slot<T>>>);

impl<T> Sender<T> {
    /// Whether somebody may still wait for it.
    pub(crate) fn is_awaited(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Gives it, also where nobody waits any more.
    pub(crate) fn send(self, answer: T) {
        lock(&self.0).answer = Some(answer);
        // Dropped, it wakes who waits.
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut slot = lock(&self.0);
        slot.has_ended = true;
        let waiter = slot.waiter.take();
        drop(slot);
        if let Some(waiter) = waiter {
            waiter.wake();
        }
    }
}

/// Resolves to the answer, or to `None` where none will be given.
#[derive(Debug)]
pub(crate) struct Receiver<T>(Arc<Mutex<Slot<T>>>);

impl<T> Drop for Receiver<T> {
    /// Who waited goes away: its task is not to be kept for as long as a disk that stands still keeps the sender.
    fn drop(&mut self) {
        let waiter = lock(&self.0).waiter.take();
        // Without the lock, since a task may go with it.
        drop(waiter);
    }
}

impl<T> Future for Receiver<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut slot = lock(&self.0);
        if slot.has_ended {
            return Poll::Ready(slot.answer.take());
        }
        slot.waiter = Some(Waiter { waker: context.waker().clone(), relay: here() });
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;
    use crate::io::{Spawner as _, ThreadSpawner};

    #[derive(Default)]
    struct Counter(AtomicUsize);

    impl Wake for Counter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn poll(receiver: &mut Receiver<u32>, waker: &Waker) -> Poll<Option<u32>> {
        Pin::new(receiver).poll(&mut Context::from_waker(waker))
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
        let (answers, mut waiting): (Vec<_>, Vec<_>) = (0..10).map(|_| channel::<u32>()).unzip();
        for receiver in &mut waiting {
            assert!(poll(receiver, &waiter_waker).is_pending());
        }
        elsewhere(|| {
            for answer in answers {
                answer.send(7);
            }
        });
        let woken = |counter: &Counter| counter.0.load(Ordering::SeqCst);
        assert_eq!((woken(&task), woken(&waiter)), (1, 0));
        assert!(serving.as_mut().poll(&mut context).is_pending());
        assert_eq!((woken(&task), woken(&waiter)), (1, 10));
        for receiver in &mut waiting {
            assert_eq!(poll(receiver, &waiter_waker), Poll::Ready(Some(7)));
        }
    }

    #[test]
    fn who_waits_when_a_relay_ends_is_woken_all_the_same() {
        let waiter = Arc::<Counter>::default();
        let waker = Waker::from(waiter.clone());
        let mut serving = Box::pin(serve());
        let mut context = Context::from_waker(Waker::noop());
        assert!(serving.as_mut().poll(&mut context).is_pending());
        let (answers, mut waiting): (Vec<_>, Vec<_>) = (0..2).map(|_| channel::<u32>()).unzip();
        for receiver in &mut waiting {
            assert!(poll(receiver, &waker).is_pending());
        }
        let mut answers = answers.into_iter();
        let first = answers.next().unwrap();
        elsewhere(|| first.send(1));
        drop(serving);
        assert_eq!(waiter.0.load(Ordering::SeqCst), 1);
        answers.next().unwrap().send(2);
        assert_eq!(waiter.0.load(Ordering::SeqCst), 2);
        // Without a relay there is nothing in between.
        let (answer, mut waiting) = channel::<u32>();
        assert!(poll(&mut waiting, &waker).is_pending());
        answer.send(3);
        assert_eq!(waiter.0.load(Ordering::SeqCst), 3);
    }

    #[test]
    fn who_waits_for_an_answer_that_nobody_gives_is_told() {
        let waiter = Arc::<Counter>::default();
        let waker = Waker::from(waiter.clone());
        let (answer, mut waiting) = channel::<u32>();
        assert!(poll(&mut waiting, &waker).is_pending());
        drop(answer);
        assert_eq!(waiter.0.load(Ordering::SeqCst), 1);
        assert_eq!(poll(&mut waiting, &waker), Poll::Ready(None));
        let (answer, waiting) = channel::<u32>();
        drop(waiting);
        answer.send(1);
    }

    #[test]
    fn who_gives_up_waiting_leaves_nothing_of_its_task_behind() {
        let waiter = Arc::<Counter>::default();
        let (answer, mut waiting) = channel::<u32>();
        assert!(poll(&mut waiting, &Waker::from(waiter.clone())).is_pending());
        assert_eq!(Arc::strong_count(&waiter), 2);
        drop(waiting);
        assert_eq!(Arc::strong_count(&waiter), 1);
        answer.send(1);
        assert_eq!(waiter.0.load(Ordering::SeqCst), 0);
    }
}
