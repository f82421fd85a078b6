//! Some of this machine's cores for some of what runs: a server and its clients apart, as if each had a machine of its own, or
//! no more of them than a figure is about.

use std::ops::Range;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::error::{Error, Result};
use crate::workload::Workload;

/// The cores of a thread, which has all of them again when this is dropped.
#[derive(Debug)]
pub struct Cores {
    all: CpuSet,
    numbers: Vec<usize>,
}

impl Cores {
    /// Those of this thread.
    pub fn of_this_thread() -> Result<Self> {
        let all = sched_getaffinity(None).map_err(failed)?;
        let numbers = (0..CpuSet::MAX_CPU).filter(|core| all.is_set(*core)).collect();
        Ok(Self { all, numbers })
    }

    /// Those of thread `index` of the ones that carry out a workload: one, as a server's threads have it, where the workload has as many
    /// threads as there are cores and several operations under way on each. A store that has a thread for each operation has
    /// as many of them on each core.
    pub fn of_worker(index: usize, workload: &Workload) -> Result<Self> {
        let cores = Self::of_this_thread()?;
        if workload.threads == cores.count() && workload.in_flight > workload.threads {
            let place = index % workload.threads;
            cores.choose(place..place + 1)?;
        }
        Ok(cores)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.numbers.len()
    }

    /// From now on this thread has these of them, by their places, and so have the threads and programs that it starts.
    pub fn choose(&self, places: Range<usize>) -> Result<()> {
        let mut set = CpuSet::new();
        self.numbers.iter().take(places.end).skip(places.start).for_each(|core| set.set(*core));
        sched_setaffinity(None, &set).map_err(failed)
    }
}

impl Drop for Cores {
    fn drop(&mut self) {
        // They were this thread's before, and the kernel takes what it gave.
        let _ = sched_setaffinity(None, &self.all);
    }
}

fn failed(error: rustix::io::Errno) -> Error {
    Error::failed(format!("cores to run on: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_have_a_core_each_where_there_are_as_many_cores_and_more_operations() {
        use crate::workload::OpKind;
        let all = Cores::of_this_thread().unwrap().numbers.clone();
        let seen = |index: usize, threads: usize, in_flight: usize| {
            let workload = Workload { threads, in_flight, ..Workload::of("w", OpKind::Get) };
            let work = || {
                let _core = Cores::of_worker(index, &workload).unwrap();
                Cores::of_this_thread().unwrap().numbers.clone()
            };
            std::thread::scope(|scope| scope.spawn(work).join().unwrap())
        };
        let count = all.len();
        for index in 0..2 * count {
            assert_eq!(seen(index, count, 2 * count), all[index % count..=index % count]);
        }
        assert_eq!(seen(0, count, count), all);
        assert_eq!(seen(0, count + 1, 4 * count), all);
    }

    #[test]
    fn what_is_started_has_the_cores_that_were_chosen_and_then_all_again() {
        let work = || {
            let started = || {
                std::thread::scope(|scope| {
                    scope.spawn(Cores::of_this_thread).join().unwrap().unwrap()
                })
            };
            let cores = Cores::of_this_thread().unwrap();
            let all = cores.numbers.clone();
            let half = all.len() / 2;
            cores.choose(half..all.len()).unwrap();
            assert_eq!(started().numbers, all[half..]);
            cores.choose(0..half.max(1)).unwrap();
            assert_eq!(started().numbers, all[..half.max(1)]);
            // None at all is refused, and changes nothing.
            cores.choose(0..0).unwrap_err();
            assert_eq!(started().count(), half.max(1));
            drop(cores);
            assert_eq!(started().numbers, all);
        };
        std::thread::scope(|scope| scope.spawn(work).join().unwrap());
    }
}
