//! The work of long-running operations, each on a thread of its own; what an earlier server left waits here where the system has no thread
//! for it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tepui_bigtable::error::{Code, Error, Result};

use super::Backups;
use super::figures::Job;
use super::jobs::Place;
use crate::operations::Handle;

type Work = Box<dyn FnOnce(&Backups, &Handle) -> Result<prost_types::Any> + Send>;

/// The work of an operation.
pub(super) struct Task {
    handle: Handle,
    kind: Job,
    work: Work,
}

impl Task {
    pub(super) fn new(
        handle: Handle,
        kind: Job,
        work: impl FnOnce(&Backups, &Handle) -> Result<prost_types::Any> + Send + 'static,
    ) -> Self {
        Self { handle, kind, work: Box::new(work) }
    }

    /// Does the work, and ends the operation with what came of it. What fails because the server ends is left for the next one.
    fn run(self, backups: &Backups) {
        let Self { handle, kind, work } = self;
        let result = work(backups, &handle).or_else(|error| {
            // An engine that has failed is restarted, and goes on with what nobody has ended: its client is not told that it failed.
            if handle.check_cancelled().is_ok() {
                backups.check_writable()?;
            }
            Err(error)
        });
        let name = handle.name().to_owned();
        match result {
            Err(error) if error.kind() == Code::Unavailable => {
                tracing::warn!(name, %error, "an operation is left for the next start");
                handle.leave();
            }
            result => {
                if let Err(error) = &result {
                    tracing::warn!(name, %error, "an operation failed");
                    backups.count_failure(kind, error);
                }
                if let Err(error) = handle.finish(result) {
                    tracing::warn!(name, %error, "cannot keep the end of an operation");
                }
            }
        }
    }
}

/// Work that waits for a thread. What still does when the server ends is left for the next one.
#[derive(Default)]
pub(super) struct Waiting(Mutex<Vec<Task>>);

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, Vec<Task>> {
        lock(&self.0)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        for task in self.lock().drain(..) {
            task.handle.leave();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A task for which there is no thread now, and why.
type Refused = Box<(Error, Task)>;

impl Backups {
    /// Does the work of an operation. Where there is no thread for it, the operation ends as given up.
    pub(super) fn start(&self, place: Place, task: Task) -> Result<()> {
        self.try_start(place, task).map_err(|refused| refused.0)
    }

    /// The same for an operation that an earlier server left: where there is no thread for it, a [sweep](Self::sweep) tries again.
    pub(super) fn start_or_wait(self: &Arc<Self>, task: Task) {
        if let Err(refused) = self.try_start(self.take_place(), task) {
            let (error, task) = *refused;
            let name = task.handle.name();
            tracing::warn!(name, %error, "an interrupted operation waits for a thread");
            self.waiting.lock().push(task);
        }
    }

    /// Does what waits for a thread, as far as there are some.
    pub(super) fn start_waiting(self: &Arc<Self>) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        for task in waiting {
            self.start_or_wait(task);
        }
    }

    fn try_start(&self, place: Place, task: Task) -> Result<(), Refused> {
        if task.kind == Job::Automated {
            self.operations.nobody_asks_about(task.handle.name());
        }
        // The spawner keeps nothing of what it refuses; a thread takes it from here.
        let handed = Arc::new(Mutex::new(Some((place, task))));
        let taken = Arc::clone(&handed);
        let run = move || {
            let taken = lock(&taken).take();
            if let Some((place, task)) = taken {
                task.run(place.backups());
            }
        };
        let spawned = self.env.spawner.spawn("tepui-backup", Box::new(run));
        let Err(error) = spawned else { return Ok(()) };
        let left = lock(&handed).take();
        left.map_or(Ok(()), |(_, task)| Err(Box::new((error.into(), task))))
    }
}
