//! Parts of one job, done by whichever compaction threads are free.
//!
//! ```text
//! thread A   claims a job, offers its parts ──► does part 0, hands it on ──► part 2 ──► waits for part 1, hands on both
//! thread B   idle ── sees the offer ──────────► does part 1 ────────────────────────────────┘
//! ```
//!
//! Whoever offers does parts itself until none is left that nobody has begun, so it depends on no one: without
//! another thread it does all of them, in order. What the parts came to is handed on in their order, each as soon as
//! those before it were. A part that another thread has begun is waited for, also where that thread panics. Once one part has
//! failed, those after it are not begun, or told to stop.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};

use crate::error::{Error, ErrorKind, Result};

/// What does a part: its number, and whether to stop.
type Work<T> = dyn Fn(usize, &dyn Fn() -> bool) -> Result<T> + Send + Sync;

/// The parts of one job.
pub(crate) struct Parts<T> {
    work: Box<Work<T>>,
    state: Mutex<State<T>>,
    ended: Condvar,
    /// Parts from this one on are to stop.
    stops_at: AtomicUsize,
}

#[derive(Debug)]
struct State<T> {
    /// The parts that nobody has begun.
    left: Range<usize>,
    running: usize,
    results: Vec<Option<Result<T>>>,
    /// Results that were handed on.
    taken: usize,
}

impl<T> State<T> {
    /// The next result in order, once it is there.
    fn take_next(&mut self) -> Option<Result<T>> {
        let result = self.results.get_mut(self.taken)?.take()?;
        self.taken += 1;
        Some(result)
    }
}

impl<T> std::fmt::Debug for Parts<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts").field("stops_at", &self.stops_at).finish_non_exhaustive()
    }
}

/// Something that a free thread can lend a hand with.
pub(crate) trait Shared: Send + Sync + std::fmt::Debug {
    /// Does one part that nobody has begun; false where there is none.
    fn help(&self) -> bool;
}

/// Jobs whose parts free threads may do.
#[derive(Debug, Default)]
pub(crate) struct Offers(Mutex<Vec<Weak<dyn Shared>>>);

impl Offers {
    /// Offers a job until it is let go.
    pub(crate) fn add(&self, job: &Arc<dyn Shared>) {
        let mut offers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        offers.retain(|offer| offer.strong_count() > 0);
        offers.push(Arc::downgrade(job));
    }

    /// Whether a job is offered.
    pub(crate) fn any(&self) -> bool {
        let offers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        offers.iter().any(|offer| offer.strong_count() > 0)
    }

    /// Does one part of the oldest job that has some left; false where there is none.
    pub(crate) fn help(&self) -> bool {
        let offers = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // One at a time: what the others hold, files and room on the disk, is theirs to let go meanwhile.
        offers.iter().any(|offer| offer.upgrade().is_some_and(|job| job.help()))
    }
}

impl<T: Send> Parts<T> {
    /// A job of `count` parts.
    pub(crate) fn new(
        count: usize,
        work: impl Fn(usize, &dyn Fn() -> bool) -> Result<T> + Send + Sync + 'static,
    ) -> Arc<Self> {
        let results = std::iter::repeat_with(|| None).take(count).collect();
        Arc::new(Self {
            work: Box::new(work),
            state: Mutex::new(State { left: 0..count, running: 0, results, taken: 0 }),
            ended: Condvar::new(),
            stops_at: AtomicUsize::new(usize::MAX),
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self) -> Option<Begun<'_, T>> {
        let mut state = self.lock();
        if self.stops(state.left.start) {
            return None;
        }
        let part = state.left.next()?;
        state.running += 1;
        Some(Begun { parts: self, part, result: None })
    }

    fn stops(&self, part: usize) -> bool {
        self.stops_at.load(Ordering::Acquire) <= part
    }

    fn do_one(&self) -> bool {
        let Some(mut begun) = self.begin() else { return false };
        begun.result = Some((self.work)(begun.part, &|| self.stops(begun.part)));
        true
    }

    /// What the next part in order came to: does what nobody else does until that is known. `None` after the last, and where
    /// the next was not begun since another has failed.
    pub(crate) fn next(&self) -> Option<Result<T>> {
        loop {
            if let Some(result) = self.lock().take_next() {
                return Some(result);
            }
            if self.do_one() {
                continue;
            }
            let mut state = self.lock();
            loop {
                let next = state.take_next();
                if next.is_some() || state.running == 0 {
                    return next;
                }
                state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Begins no more parts, tells the others to stop, and waits for them: what was not handed on, in order.
    pub(crate) fn stop(&self) -> Vec<Result<T>> {
        self.stops_at.store(0, Ordering::Release);
        let mut state = self.lock();
        while state.running > 0 {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        std::mem::take(&mut state.results).into_iter().flatten().collect()
    }
}

impl<T: Send> Shared for Parts<T> {
    fn help(&self) -> bool {
        self.do_one()
    }
}

/// A part that is being done. It ends when this is dropped, also by a panic.
struct Begun<'a, T: Send> {
    parts: &'a Parts<T>,
    part: usize,
    result: Option<Result<T>>,
}

impl<T: Send> Drop for Begun<'_, T> {
    fn drop(&mut self) {
        let result = self
            .result
            .take()
            .unwrap_or_else(|| Err(Error::new(ErrorKind::ReadOnly, "a part of a job panicked")));
        if result.is_err() {
            self.parts.stops_at.fetch_min(self.part, Ordering::AcqRel);
        }
        let mut state = self.parts.lock();
        state.running -= 1;
        if let Some(place) = state.results.get_mut(self.part) {
            *place = Some(result);
        }
        drop(state);
        self.parts.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::until;

    /// What is handed on, and what is left.
    fn all<T: Send>(parts: &Parts<T>) -> Vec<Result<T>> {
        let mut results: Vec<_> = std::iter::from_fn(|| parts.next()).collect();
        results.extend(parts.stop());
        results
    }

    #[test]
    fn alone_all_parts_are_done_in_order() {
        let parts = Parts::new(5, |part, _| Ok(part * 10));
        let results: Vec<usize> = all(&parts).into_iter().map(|r| r.unwrap()).collect();
        assert_eq!(results, [0, 10, 20, 30, 40]);
        assert!(!parts.help());
    }

    #[test]
    fn helpers_and_the_owner_do_each_part_once() {
        let counts: Arc<Vec<std::sync::atomic::AtomicUsize>> =
            Arc::new((0..100).map(|_| Default::default()).collect());
        let parts = Parts::new(100, {
            let counts = Arc::clone(&counts);
            move |part, _| Ok(counts[part].fetch_add(1, Ordering::Relaxed))
        });
        let offers = Offers::default();
        let shared: Arc<dyn Shared> = Arc::clone(&parts) as _;
        offers.add(&shared);
        let results = std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| while offers.help() {});
            }
            all(&parts)
        });
        assert_eq!(results.len(), 100);
        assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
        drop((shared, parts));
        assert!(!offers.help(), "a job that was let go is no longer offered");
    }

    #[test]
    fn who_helps_with_one_job_does_not_hold_another() {
        let other: Arc<Parts<()>> = Parts::new(1, |_, _| Ok(()));
        let watched = Arc::downgrade(&other);
        let owner = Mutex::new(Some(Arc::clone(&other)));
        let long = Parts::new(1, move |_, _| {
            // Meanwhile the other is done by its owner, who lets it go.
            let other = owner.lock().unwrap().take().unwrap();
            all(&other);
            drop(other);
            assert_eq!(watched.strong_count(), 0, "what it holds is gone");
            Ok(())
        });
        let offers = Offers::default();
        let jobs: [Arc<dyn Shared>; 2] = [Arc::clone(&long) as _, other];
        for job in &jobs {
            offers.add(job);
        }
        drop(jobs);
        assert!(offers.help());
        all(&long).remove(0).unwrap();
    }

    #[test]
    fn after_a_failure_no_part_is_begun_and_running_ones_are_told() {
        let parts: Arc<Parts<()>> = Parts::new(4, |part, stop| {
            assert!(!stop());
            if part == 1 { Err(Error::new(ErrorKind::Io, "as a test")) } else { Ok(()) }
        });
        let results = all(&parts);
        assert_eq!(results.len(), 2, "{results:?}");
        assert_eq!(results[1].as_ref().unwrap_err().kind(), ErrorKind::Io);
    }

    #[test]
    fn parts_before_the_one_that_fails_are_done_and_those_after_it_are_told_to_stop() {
        let (failed, fails) = std::sync::mpsc::channel();
        let fails = Mutex::new(Some(fails));
        let parts: Arc<Parts<usize>> = Parts::new(3, move |part, stop| {
            let error = || Err(Error::new(ErrorKind::Io, "as a test"));
            match part {
                // What it waits for is the end of the second.
                0 => fails.lock().unwrap().take().unwrap().recv().unwrap(),
                1 => return error(),
                _ => {}
            }
            if stop() { error() } else { Ok(part) }
        });
        let helper = Arc::clone(&parts);
        std::thread::scope(|scope| {
            let first = scope.spawn(|| helper.help());
            until("the helper has begun", || parts.lock().running > 0);
            assert!(parts.help());
            assert!(!parts.help(), "the third is not begun");
            failed.send(()).unwrap();
            assert!(first.join().unwrap());
        });
        assert_eq!(parts.next().unwrap().unwrap(), 0);
        assert_eq!(parts.next().unwrap().unwrap_err().kind(), ErrorKind::Io);
        assert!(parts.next().is_none());
    }

    #[test]
    fn a_part_whose_thread_panics_has_failed_and_is_not_waited_for() {
        let parts: Arc<Parts<()>> = Parts::new(3, |part, _| {
            assert_ne!(part, 0, "as a test");
            Ok(())
        });
        let helper = Arc::clone(&parts);
        std::thread::scope(|scope| {
            assert!(scope.spawn(move || helper.help()).join().is_err());
        });
        let results = all(&parts);
        assert_eq!(results.len(), 1);
        assert_eq!(results[0].as_ref().unwrap_err().kind(), ErrorKind::ReadOnly);
    }
}
