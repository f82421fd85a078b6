//! Long-running operations, durably: an operation that a client was told of is there after a restart, with its outcome.
//!
//! ```text
//!         start                    finish
//! (none) ───────► running, kept ───────────► done, kept ───► forgotten: deleted, or the oldest of too many
//!                      │  ▲
//!       a crash, a stop│  │resume: by the part of the server that goes on with it
//!                      ▼  │
//!                  interrupted ───► ABORTED, kept: whom nobody resumed when the server starts to serve
//! ```
//!
//! The start and the end of an operation are commits of the catalog ([`Resources`]); what it tells of its progress in
//! between is in memory. Most operations are finished at once and are one commit ([`Operations::finished`]).
//!
//! Names are `operations/<resource>/operations/<id>`, ids increasing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prost::Message;
use prost_types::Any;
use tepui_bigtable::error::{Error, Result};
use tepui_engine::io::Clock;
use tokio::sync::watch;

use crate::api::longrunning::Operation;
use crate::api::longrunning::operation;
use crate::catalog::resources::Resources;
use crate::limits::OPERATIONS_MAX;
use crate::status;

/// The operations of one server.
#[derive(Debug)]
pub struct Operations {
    clock: Arc<dyn Clock>,
    resources: Arc<Resources>,
    state: Mutex<State>,
    /// Sent to whenever an operation ends or is deleted, for those who wait for one.
    ended: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct State {
    /// The highest id given out.
    last: u64,
    /// What operations under way told of themselves last, by id.
    running: BTreeMap<u64, Option<Any>>,
}

impl Operations {
    /// Those of the last server. What it had not finished waits to be resumed, until [`Self::abort_interrupted`].
    pub fn open(resources: Arc<Resources>, clock: Arc<dyn Clock>) -> Self {
        let all = resources.list::<Operation>("", None, usize::MAX);
        let last = all.iter().filter_map(|(key, _)| key.parse().ok()).max().unwrap_or(0);
        let state = Mutex::new(State { last, running: BTreeMap::new() });
        Self { clock, resources, state, ended: watch::Sender::new(()) }
    }

    /// Records that something happened to `resource`: its metadata and its result, each with its type's
    /// full name. Blocks.
    pub fn finished(
        &self,
        resource: &str,
        metadata: (&str, &impl Message),
        response: (&str, &impl Message),
    ) -> Result<Operation> {
        let operation = Operation {
            metadata: Some(any(metadata.0, metadata.1)),
            done: true,
            result: Some(operation::Result::Response(any(response.0, response.1))),
            ..Operation::default()
        };
        self.create(resource, operation).map(|(_, operation)| operation)
    }

    /// Starts an operation on `resource`, durably. Blocks.
    pub fn start(self: &Arc<Self>, resource: &str, metadata: Any) -> Result<Handle> {
        let operation = Operation { metadata: Some(metadata), ..Operation::default() };
        let (id, operation) = self.create(resource, operation)?;
        Ok(self.handle(id, operation.name))
    }

    /// Those that the last server had not finished and nobody has resumed.
    pub fn interrupted(&self) -> Vec<Operation> {
        let all = self.resources.list::<Operation>("", None, usize::MAX);
        let running = &self.lock().running;
        let left = all.into_iter().filter(|(key, stored)| {
            !stored.value.done && key.parse().is_ok_and(|id: u64| !running.contains_key(&id))
        });
        left.map(|(_, stored)| stored.value.clone()).collect()
    }

    /// Goes on with an interrupted operation.
    pub fn resume(self: &Arc<Self>, name: &str) -> Result<Handle> {
        let found = self.interrupted().into_iter().find(|operation| operation.name == name);
        match (found, id_of(name)) {
            (Some(operation), Some(id)) => Ok(self.handle(id, operation.name)),
            _ => Err(Error::failed_precondition(format!("operation {name:?} is not interrupted"))),
        }
    }

    /// Ends what is interrupted still as ABORTED. Blocks.
    pub fn abort_interrupted(&self) -> Result<()> {
        for operation in self.interrupted() {
            let name = &operation.name;
            tracing::warn!(name, "an operation was interrupted by the end of the last server");
            let error = Error::aborted("the server ended before the operation did; start it again");
            self.end(name, Err(error))?;
        }
        Ok(())
    }

    /// The operation of a name.
    pub fn get(&self, name: &str) -> Result<Operation> {
        let id = id_of(name).ok_or_else(|| missing(name))?;
        let stored = self.resources.get::<Operation>(&key(id));
        let stored = stored.filter(|stored| stored.value.name == name);
        stored.map(|stored| self.as_of_now(id, &stored.value)).ok_or_else(|| missing(name))
    }

    /// The operation of a name once it is done.
    pub async fn wait(&self, name: &str) -> Result<Operation> {
        let mut ended = self.ended.subscribe();
        loop {
            let operation = self.get(name)?;
            if operation.done || ended.changed().await.is_err() {
                return Ok(operation);
            }
        }
    }

    /// Forgets an operation that is done. Blocks.
    pub fn delete(&self, name: &str) -> Result<()> {
        let id = id_of(name).ok_or_else(|| missing(name))?;
        self.get(name)?;
        self.resources.delete::<Operation>(&key(id), |operation| {
            if operation.done {
                return Ok(());
            }
            Err(Error::failed_precondition(format!(
                "operation {name:?} is under way: it can be deleted once it is done"
            )))
        })
    }

    /// Up to `limit` operations on resources whose names start with `prefix`, oldest first, those after
    /// the id `after` only; each with its id.
    pub fn list(&self, prefix: &str, after: u64, limit: usize) -> Vec<(u64, Operation)> {
        let later = self.resources.list::<Operation>("", Some(&key(after)), usize::MAX);
        let matching =
            later.into_iter().filter(|(_, stored)| stored.value.name.starts_with(prefix));
        let with_id = matching.filter_map(|(key, stored)| Some((key.parse().ok()?, stored)));
        with_id.take(limit).map(|(id, stored)| (id, self.as_of_now(id, &stored.value))).collect()
    }

    /// Keeps a new operation, and forgets the oldest that are done where there are too many.
    fn create(&self, resource: &str, operation: Operation) -> Result<(u64, Operation)> {
        let id = {
            let mut state = self.lock();
            // The clock makes ids of one run differ from those of another; the last id keeps them rising.
            let now = u64::try_from(self.clock.now_micros()).unwrap_or(0);
            let id = now.max(state.last + 1);
            state.last = id;
            if !operation.done {
                state.running.insert(id, operation.metadata.clone());
            }
            id
        };
        let name = format!("operations/{resource}/operations/{id}");
        let operation = Operation { name, ..operation };
        let kept = self.resources.change(|change| {
            let all = self.resources.list::<Operation>("", None, usize::MAX);
            let too_many = (all.len() + 1).saturating_sub(OPERATIONS_MAX);
            let done = all.iter().filter(|(_, stored)| stored.value.done);
            for (key, _) in done.take(too_many) {
                change.delete::<Operation>(key)?;
            }
            change.create(&key(id), operation.clone())
        });
        if kept.is_err() {
            self.lock().running.remove(&id);
        }
        kept.map(|()| (id, operation))
    }

    /// Ends an operation, durably.
    fn end(&self, name: &str, result: Result<Any>) -> Result<Operation> {
        let id = id_of(name).ok_or_else(|| missing(name))?;
        let told = self.lock().running.get(&id).cloned().flatten();
        let ended = self.resources.update(&key(id), |operation: &mut Operation| {
            operation.metadata = told.or_else(|| operation.metadata.take());
            operation.done = true;
            operation.result = Some(match result {
                Ok(response) => operation::Result::Response(response),
                Err(error) => operation::Result::Error(status::of_entry(&error)),
            });
            Ok(())
        });
        self.lock().running.remove(&id);
        self.ended.send_replace(());
        ended.map(|stored| stored.value.clone())
    }

    fn handle(self: &Arc<Self>, id: u64, name: String) -> Handle {
        self.lock().running.entry(id).or_default();
        Handle { operations: Arc::clone(self), id, name, is_over: false }
    }

    /// The operation with what it told of itself last.
    fn as_of_now(&self, id: u64, stored: &Operation) -> Operation {
        let mut operation = stored.clone();
        if !operation.done
            && let Some(Some(metadata)) = self.lock().running.get(&id)
        {
            operation.metadata = Some(metadata.clone());
        }
        operation
    }

    // A panic under the lock leaves state that is whole: it is changed by single insertions and removals.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An operation under way. Whoever drops it unfinished gives it up, and it ends as ABORTED.
#[derive(Debug)]
pub struct Handle {
    operations: Arc<Operations>,
    id: u64,
    name: String,
    is_over: bool,
}

impl Handle {
    /// The operation's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The operation as a client sees it now.
    pub fn operation(&self) -> Result<Operation> {
        self.operations.get(&self.name)
    }

    /// Tells how far it is. Not kept over a restart.
    pub fn progress(&self, metadata: Any) {
        self.operations.lock().running.insert(self.id, Some(metadata));
    }

    /// Ends it, durably, with the metadata that was told last. Blocks.
    pub fn finish(mut self, result: Result<Any>) -> Result<Operation> {
        self.is_over = true;
        self.operations.end(&self.name, result)
    }

    /// Leaves it as a crash would: the next server resumes it, or ends it as ABORTED. For a part that stops with
    /// the server and goes on with it.
    pub fn leave(mut self) {
        self.is_over = true;
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let error = Error::aborted("the operation was given up; see the server's log");
        if let Err(error) = self.operations.end(&self.name, Err(error)) {
            tracing::warn!(name = self.name, %error, "cannot keep the end of an operation");
        }
    }
}

/// Ids sort as text.
fn key(id: u64) -> String {
    format!("{id:020}")
}

fn id_of(name: &str) -> Option<u64> {
    name.rsplit_once('/').and_then(|(_, id)| id.parse().ok())
}

fn missing(name: &str) -> Error {
    Error::not_found(format!("operation {name:?} not found"))
}

/// A message as `google.protobuf.Any`.
pub fn any(type_name: &str, message: &impl Message) -> Any {
    Any { type_url: format!("type.googleapis.com/{type_name}"), value: message.encode_to_vec() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tepui_bigtable::error::Code;

    use crate::catalog::memory_meta::MemoryMeta;
    use tepui_engine::io::ManualClock;

    const RESOURCE: &str = "projects/p/instances/i/tables/t";

    fn over(meta: &Arc<MemoryMeta>) -> Arc<Operations> {
        let resources = Resources::open(Arc::<MemoryMeta>::clone(meta)).unwrap();
        Arc::new(Operations::open(Arc::new(resources), Arc::new(ManualClock::new(1_000))))
    }

    fn operations() -> Arc<Operations> {
        over(&Arc::default())
    }

    fn finish(operations: &Operations) -> Operation {
        operations.finished(RESOURCE, ("a.Metadata", &()), ("a.Response", &())).unwrap()
    }

    fn told(text: &str) -> Any {
        Any { type_url: text.to_owned(), value: Vec::new() }
    }

    fn code_of(operation: Operation) -> i32 {
        match operation.result {
            Some(operation::Result::Error(status)) => status.code,
            other => panic!("no error: {other:?}"),
        }
    }

    #[test]
    fn a_finished_operation_is_done_and_found_by_name_after_a_restart_too() {
        let meta = Arc::default();
        let operation = finish(&over(&meta));
        assert!(operation.done);
        let operations = over(&meta);
        assert_eq!(operations.get(&operation.name).unwrap(), operation);
        assert_ne!(finish(&operations).name, operation.name);
        let Some(operation::Result::Response(any)) = operation.result else { panic!() };
        assert_eq!(any.type_url, "type.googleapis.com/a.Response");
        operations.delete(&operation.name).unwrap();
        assert!(operations.get(&operation.name).is_err());
        assert!(operations.delete(&operation.name).is_err());
    }

    #[test]
    fn an_operation_under_way_tells_its_progress_and_is_not_deleted() {
        let operations = operations();
        let handle = operations.start(RESOURCE, told("begun")).unwrap();
        handle.progress(told("half"));
        let seen = operations.get(handle.name()).unwrap();
        assert_eq!((seen.done, seen.metadata), (false, Some(told("half"))));
        assert_eq!(operations.list("", 0, 10)[0].1, handle.operation().unwrap());
        let error = operations.delete(handle.name()).unwrap_err();
        assert_eq!(error.kind(), Code::FailedPrecondition);
        let done = handle.finish(Ok(told("result"))).unwrap();
        assert_eq!(done.metadata, Some(told("half")));
        assert_eq!(done.result, Some(operation::Result::Response(told("result"))));
        assert_eq!(operations.get(&done.name).unwrap(), done);
        assert!(operations.interrupted().is_empty());
    }

    #[test]
    fn an_interrupted_operation_is_resumed_or_ends_as_aborted() {
        let meta = Arc::default();
        let first = over(&meta);
        let names = ["a", "b"].map(|text| {
            let handle = first.start(RESOURCE, told(text)).unwrap();
            let name = handle.name().to_owned();
            handle.leave();
            name
        });
        let second = over(&meta);
        let left: Vec<_> = second.interrupted().into_iter().map(|o| o.name).collect();
        assert_eq!(left, names);
        let resumed = second.resume(&names[0]).unwrap();
        assert!(second.resume(&names[0]).is_err(), "it is resumed already");
        second.abort_interrupted().unwrap();
        assert_eq!(code_of(second.get(&names[1]).unwrap()), i32::from(tonic::Code::Aborted));
        assert!(!resumed.operation().unwrap().done);
        resumed.finish(Ok(told("result"))).unwrap();
        let third = over(&meta);
        assert!(third.interrupted().is_empty());
        assert!(third.get(&names[0]).unwrap().done);
    }

    #[test]
    fn an_operation_that_is_given_up_ends_as_aborted() {
        let operations = operations();
        let handle = operations.start(RESOURCE, told("begun")).unwrap();
        let name = handle.name().to_owned();
        drop(handle);
        assert_eq!(code_of(operations.get(&name).unwrap()), i32::from(tonic::Code::Aborted));
    }

    #[tokio::test]
    async fn who_waits_is_told_of_the_end_and_of_nothing_before() {
        let operations = operations();
        let handle = operations.start(RESOURCE, told("begun")).unwrap();
        let other = operations.start(RESOURCE, told("other")).unwrap();
        let name = handle.name().to_owned();
        let mut waiting = std::pin::pin!(operations.wait(&name));
        assert!(futures::poll!(&mut waiting).is_pending());
        other.finish(Ok(told("result"))).unwrap();
        assert!(futures::poll!(&mut waiting).is_pending());
        let done = handle.finish(Err(Error::not_found("gone"))).unwrap();
        assert_eq!(waiting.await.unwrap(), done);
        assert_eq!(code_of(done), i32::from(tonic::Code::NotFound));
        assert_eq!(operations.wait("operations/x/1").await.unwrap_err().kind(), Code::NotFound);
    }

    #[test]
    fn ids_rise_while_the_clock_stands_still() {
        let operations = operations();
        let names: Vec<_> = (0..3).map(|_| finish(&operations).name).collect();
        let listed: Vec<_> = operations
            .list("operations/projects/p/", 0, 10)
            .into_iter()
            .map(|o| o.1.name)
            .collect();
        assert_eq!(listed, names);
        let (first, _) = operations.list("", 0, 1).remove(0);
        assert_eq!(operations.list("", first, 10).len(), 2);
        assert!(operations.list("operations/projects/q/", 0, 10).is_empty());
    }

    #[test]
    fn the_oldest_operation_that_is_done_is_forgotten_first() {
        let operations = operations();
        let running = operations.start(RESOURCE, told("begun")).unwrap();
        let first = finish(&operations);
        for _ in 0..OPERATIONS_MAX - 1 {
            finish(&operations);
        }
        assert!(operations.get(&first.name).is_err());
        assert!(!running.operation().unwrap().done);
        assert_eq!(operations.list("", 0, usize::MAX).len(), OPERATIONS_MAX);
    }

    #[test]
    fn a_name_of_another_resource_with_the_same_id_is_not_found() {
        let operations = operations();
        let operation = finish(&operations);
        let other = operation.name.replace("/tables/t/", "/tables/u/");
        assert!(operations.get(&other).is_err());
        assert!(operations.delete(&other).is_err());
    }

    #[test]
    fn an_operation_that_cannot_be_kept_is_not_started() {
        let meta: Arc<MemoryMeta> = Arc::default();
        let operations = over(&meta);
        meta.fails.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(operations.start(RESOURCE, told("begun")).is_err());
        assert!(operations.list("", 0, 10).is_empty());
    }
}
