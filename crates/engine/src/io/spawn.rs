//! Threads and chance: the system's, and a random sequence that a seed repeats.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;

use super::{JoinHandle, Rng, Spawner};
use crate::error::{Error, ErrorKind, Result};

/// By how much the priority of threads that give way is lower than the process's. The scheduler of Linux divides a processor
/// between one of these and another by 1 to 9, so that what they do is slower where it is contended for, and never stands
/// still.
#[cfg(target_os = "linux")]
const NICE: i32 = 10;

/// The least priority there is.
#[cfg(target_os = "linux")]
const NICE_MAX: i32 = 19;

/// Lowers the priority of this thread. Where that is refused, its work is done at once like any other.
#[cfg(target_os = "linux")]
fn give_way() {
    use rustix::process::{getpriority_process, setpriority_process};
    // Said of the process, on Linux it is of the thread that says so.
    let nice = getpriority_process(None).unwrap_or(0);
    let _ = setpriority_process(None, (nice + NICE).min(NICE_MAX));
}

/// Elsewhere priorities are those of processes.
#[cfg(not(target_os = "linux"))]
fn give_way() {}

/// Keeping threads to processors. A thread starts with those of the one that starts it, so whoever is started by one that is kept to its
/// own gets those that it had before.
#[cfg(target_os = "linux")]
mod processors {
    use std::cell::Cell;

    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    thread_local! {
        /// Those that this thread had before it was kept to one of them.
        static BEFORE: Cell<Option<CpuSet>> = const { Cell::new(None) };
    }

    /// What is to be given to a thread that this one starts.
    pub(super) struct Given(Option<CpuSet>);

    pub(super) fn to_give() -> Given {
        Given(BEFORE.get())
    }

    impl Given {
        pub(super) fn take(self) {
            if let Some(all) = self.0 {
                let _ = sched_setaffinity(None, &all);
            }
        }
    }

    /// Keeps this thread to the processor at this place, where it may use exactly as many as there are places: with fewer
    /// places the others would be somebody else's, with more they would have to be shared. Where it is refused, the thread is like any other.
    pub(super) fn keep_to(place: usize, places: usize) {
        let Ok(all) = sched_getaffinity(None) else { return };
        if all.count() as usize != places {
            return;
        }
        let number = (0..CpuSet::MAX_CPU).filter(|number| all.is_set(*number)).nth(place);
        let Some(number) = number else { return };
        let mut own = CpuSet::new();
        own.set(number);
        if sched_setaffinity(None, &own).is_ok() {
            BEFORE.set(Some(all));
        }
    }
}

/// Elsewhere the system knows best.
#[cfg(not(target_os = "linux"))]
mod processors {
    pub(super) struct Given;

    pub(super) fn to_give() -> Given {
        Given
    }

    impl Given {
        pub(super) fn take(self) {}
    }

    pub(super) fn keep_to(_place: usize, _places: usize) {}
}

/// Threads of the operating system.
#[derive(Debug, Default)]
pub struct ThreadSpawner;

struct Thread(std::thread::JoinHandle<()>);

impl JoinHandle for Thread {
    fn join(self: Box<Self>) {
        // A thread that panicked has said so through the panic hook; whoever joins it learns of the
        // failure through the state that the thread shared, never through the join.
        let _ = self.0.join();
    }
}

/// Why there is no thread: of those that the user, the container or the machine may have, or of memory for its stack, there may soon be one.
fn refused(name: &str, error: &std::io::Error) -> Error {
    let what = format!("start thread {name}");
    match Errno::from_io_error(error) {
        Some(Errno::AGAIN | Errno::NOMEM) => {
            let advice = "raise the limit of threads (TasksMax, ulimit -u, pids.max)";
            Error::new(ErrorKind::Exhausted, format!("{what}: {error}: {advice}"))
        }
        _ => Error::io(what, error),
    }
}

impl Spawner for ThreadSpawner {
    #[expect(clippy::disallowed_types, reason = "this is the thread seam")]
    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> Result<Box<dyn JoinHandle>> {
        debug_assert!(name.len() <= 15, "Linux cuts thread names at 15 bytes");
        let given = processors::to_give();
        let work = move || {
            given.take();
            work();
        };
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(work)
            .map_err(|e| refused(name, &e))?;
        Ok(Box::new(Thread(thread)))
    }

    fn spawn_yielding(
        &self,
        name: &str,
        work: Box<dyn FnOnce() + Send>,
    ) -> Result<Box<dyn JoinHandle>> {
        let yielding = move || {
            give_way();
            work();
        };
        self.spawn(name, Box::new(yielding))
    }

    fn spawn_core(
        &self,
        name: &str,
        (place, places): (usize, usize),
        work: Box<dyn FnOnce() + Send>,
    ) -> Result<Box<dyn JoinHandle>> {
        let kept = move || {
            processors::keep_to(place, places);
            work();
        };
        self.spawn(name, Box::new(kept))
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): a counter stepped by an odd constant, then mixed. One atomic
/// add per number, so threads share a sequence without a lock.
#[derive(Debug)]
struct SplitMix(AtomicU64);

impl SplitMix {
    const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

    fn next(&self) -> u64 {
        let mut z = self.0.fetch_add(Self::STEP, Ordering::Relaxed).wrapping_add(Self::STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

/// Random numbers that differ from one process to the next. Not for secrets.
#[derive(Debug)]
pub struct SystemRng(SplitMix);

impl SystemRng {
    /// Seeded from the operating system, by way of the keys that the standard library draws for its
    /// hash tables.
    pub fn new() -> Self {
        Self(SplitMix(AtomicU64::new(RandomState::new().build_hasher().finish())))
    }
}

impl Default for SystemRng {
    fn default() -> Self {
        Self::new()
    }
}

impl Rng for SystemRng {
    fn next_u64(&self) -> u64 {
        self.0.next()
    }
}

/// Random numbers that a seed repeats.
#[derive(Debug)]
pub struct SeededRng(SplitMix);

impl SeededRng {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(SplitMix(AtomicU64::new(seed)))
    }
}

impl Rng for SeededRng {
    fn next_u64(&self) -> u64 {
        self.0.next()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_seed_repeats_its_sequence_and_another_seed_does_not() {
        let draw = |seed| {
            let rng = SeededRng::new(seed);
            (0..8).map(|_| rng.next_u64()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        // The published first outputs for seed 0.
        assert_eq!(draw(0)[..2], [0xE220_A839_7B1D_CDAF, 0x6E78_9E6A_A1B9_65F4]);
    }

    #[test]
    fn two_system_generators_differ() {
        assert_ne!(SystemRng::new().next_u64(), SystemRng::new().next_u64());
    }

    #[test]
    fn a_thread_that_is_refused_is_worth_another_try_later() {
        for errno in [Errno::AGAIN, Errno::NOMEM] {
            let error = refused("tepui-work", &errno.into());
            assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
            assert!(error.message().contains("ulimit -u"), "{error}");
        }
        assert_eq!(refused("tepui-work", &Errno::PERM.into()).kind(), ErrorKind::Io);
    }

    #[test]
    fn spawned_work_runs_under_its_name_and_join_waits_for_it() {
        let seen = Arc::new(std::sync::Mutex::new(None));
        let inner = Arc::clone(&seen);
        let work = move || {
            *inner.lock().unwrap() = std::thread::current().name().map(str::to_owned);
        };
        ThreadSpawner.spawn("tepui-test", Box::new(work)).unwrap().join();
        assert_eq!(seen.lock().unwrap().as_deref(), Some("tepui-test"));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn threads_that_give_way_have_a_lower_priority_and_no_other_thread_has() {
        let nice = || rustix::process::getpriority_process(None).unwrap();
        let seen = Arc::new(std::sync::Mutex::new(0));
        let inner = Arc::clone(&seen);
        let work = move || *inner.lock().unwrap() = nice();
        let before = nice();
        ThreadSpawner.spawn_yielding("tepui-low", Box::new(work)).unwrap().join();
        assert_eq!(*seen.lock().unwrap(), (before + NICE).min(NICE_MAX));
        assert_eq!(nice(), before);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn cores_have_a_processor_each_where_there_are_as_many_and_what_they_start_has_all() {
        use rustix::thread::{CpuSet, sched_getaffinity};
        fn numbers() -> Vec<usize> {
            let set = sched_getaffinity(None).unwrap();
            (0..CpuSet::MAX_CPU).filter(|number| set.is_set(*number)).collect()
        }
        fn of_core(place: usize, places: usize) -> [Vec<usize>; 2] {
            let (say, said) = std::sync::mpsc::channel();
            let work = move || {
                let own = numbers();
                let inner = say.clone();
                let work = move || inner.send(numbers()).unwrap();
                ThreadSpawner.spawn("tepui-inner", Box::new(work)).unwrap().join();
                say.send(own).unwrap();
            };
            let core = ThreadSpawner.spawn_core("tepui-core", (place, places), Box::new(work));
            core.unwrap().join();
            [said.recv().unwrap(), said.recv().unwrap()]
        }
        let all = numbers();
        for (place, number) in all.iter().enumerate() {
            assert_eq!(of_core(place, all.len()), [all.clone(), vec![*number]]);
        }
        assert_eq!(of_core(0, all.len() + 1), [all.clone(), all.clone()], "they share");
        assert_eq!(numbers(), all);
    }

    #[test]
    fn joining_a_thread_that_panicked_returns() {
        let work = || panic!("on purpose");
        ThreadSpawner.spawn("tepui-panic", Box::new(work)).unwrap().join();
    }
}
