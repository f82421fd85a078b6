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
//! between is in memory. Most operations are finished at once, and are one commit with the change that they tell of
//! ([`Operations::change`], and [`Operations::beside`] for tables); so is the start of one with what it needs
//! ([`Operations::start_with`]), and the end of one with what it makes ([`Handle::end_within`]).
//!
//! A client may ask for the end of an operation under way ([`Operations::cancel`]), and so does who deletes the instance of whose tables it
//! makes one ([`Operations::abort_within`]). That is kept with it, as the result of an operation that is not done, and shown to nobody;
//! the work looks at it where it can still turn back ([`Handle::check_cancelled`]).
//!
//! One that was done when it was answered, or that the server began by itself, is forgotten when there are too many
//! ([`Operations::nobody_asks_about`]); one whose client has to ask for its end, not before [`OPERATION_KEPT`] after that. A start forgets
//! when they ended: those of the last server are like the others.
//!
//! Names are `operations/<resource>/operations/<id>`, ids increasing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prost::Message;
use prost_types::Any;
use tepui_bigtable::error::{Code, Error, Result};
use tepui_engine::io::Clock;
use tepui_engine::manifest::MetaChange;
use tokio::sync::{Semaphore, SemaphorePermit, watch};

use crate::api::longrunning::Operation;
use crate::api::longrunning::operation;
use crate::catalog::resources::{Change, Resources, Stored};
use crate::limits::{
    OPERATION_KEPT, OPERATION_WAITS_MAX, OPERATIONS_BYTES_MAX, OPERATIONS_MAX, OPERATIONS_RETRY,
};
use crate::status;

/// The operations of one server.
#[derive(Debug)]
pub struct Operations {
    clock: Arc<dyn Clock>,
    resources: Arc<Resources>,
    state: Mutex<State>,
    /// Sent to whenever an operation ends or is deleted, for those who wait for one.
    ended: watch::Sender<()>,
    /// Who may still wait for one on behalf of a client.
    waits: Semaphore,
}

#[derive(Debug, Default)]
struct State {
    /// The highest id given out.
    last: u64,
    /// What operations under way told of themselves last, by id.
    running: BTreeMap<u64, Option<Any>>,
    /// Those that ended and that the catalog had no room to keep as ended, by id: kept here until it has. It does not have those that
    /// failed.
    unwritten: BTreeMap<u64, Operation>,
    /// Of those under way, the ones about which nobody will ask.
    unasked: BTreeSet<u64>,
    /// When operations ended of which clients were told before: microseconds of the monotonic clock, by id. Those of the last
    /// [`OPERATION_KEPT`], roughly.
    ended: BTreeMap<u64, u64>,
}

impl State {
    /// An operation that was under way is so no more.
    fn is_over(&mut self, id: u64) {
        self.running.remove(&id);
        self.unasked.remove(&id);
    }
}

/// What the operation of a change that is made tells.
#[derive(Debug)]
pub struct Finished {
    resource: String,
    metadata: Any,
    response: Any,
}

impl Finished {
    /// Something happened to `resource`: its metadata and its result, each with its type's full name.
    pub fn new(
        resource: &str,
        metadata: (&str, &impl Message),
        response: (&str, &impl Message),
    ) -> Self {
        let (metadata, response) = (any(metadata.0, metadata.1), any(response.0, response.1));
        Self { resource: resource.to_owned(), metadata, response }
    }

    fn operation(self, id: u64) -> Operation {
        Operation {
            name: name(&self.resource, id),
            metadata: Some(self.metadata),
            done: true,
            result: Some(operation::Result::Response(self.response)),
        }
    }
}

impl Operations {
    /// Those of the last server. What it had not finished waits to be resumed, until [`Self::abort_interrupted`].
    pub fn open(resources: Arc<Resources>, clock: Arc<dyn Clock>) -> Self {
        let all = resources.list::<Operation>("", None, usize::MAX);
        let last = all.iter().filter_map(|(key, _)| key.parse().ok()).max().unwrap_or(0);
        let state = Mutex::new(State { last, ..State::default() });
        let (ended, waits) = (watch::Sender::new(()), Semaphore::new(OPERATION_WAITS_MAX));
        Self { clock, resources, state, ended, waits }
    }

    /// Records that something happened to `resource`: its metadata and its result, each with its type's
    /// full name. Blocks.
    #[cfg(test)]
    pub fn finished(
        &self,
        resource: &str,
        metadata: (&str, &impl Message),
        response: (&str, &impl Message),
    ) -> Result<Operation> {
        self.change(|_| Ok(Finished::new(resource, metadata, response)))
    }

    /// Makes a change, and records it as an operation that is done, in one commit. Blocks.
    pub fn change(
        &self,
        work: impl FnOnce(&mut Change<'_>) -> Result<Finished>,
    ) -> Result<Operation> {
        let mut change = self.resources.begin();
        let finished = work(&mut change)?;
        self.commit(change, finished, Vec::new()).map(|(_, operation)| operation)
    }

    /// Begins a change of what is kept beside the resources. No change of resources comes between this and its end. Blocks.
    pub fn beside(&self) -> Beside<'_> {
        Beside { operations: self, change: self.resources.begin() }
    }

    fn commit(
        &self,
        mut change: Change<'_>,
        finished: Finished,
        beside: Vec<MetaChange>,
    ) -> Result<(u64, Operation)> {
        let id = self.next_id();
        let operation = finished.operation(id);
        self.keep(&mut change, id, operation.clone())?;
        let revision = match change.try_commit(beside.clone()) {
            // The answer is all that anybody needs of the operation: what takes no more room is not refused for its sake, and nothing else is
            // forgotten for it. What takes a little more would be, here, from what is kept for deletions.
            Err(error) if lacks_room(&error) => {
                if !change.leave::<Operation>() || change.takes_room(&beside)? {
                    return Err(error);
                }
                change.try_commit(beside)?
            }
            made => made?,
        };
        Ok((revision, operation))
    }

    /// Within a change: keeps an operation that is done, and whose client has to ask for it by its name; `None` where there is no room for it.
    pub fn keep_done(&self, change: &mut Change<'_>, finished: Finished) -> Result<Option<String>> {
        let id = self.next_id();
        let operation = finished.operation(id);
        let name = operation.name.clone();
        self.will_be_asked_about(id);
        self.keep(change, id, operation)?;
        Ok(change.get::<Operation>(&key(id)).map(|_| name))
    }

    /// Starts an operation on `resource`, durably. Blocks.
    pub fn start(self: &Arc<Self>, resource: &str, metadata: Any) -> Result<Handle> {
        self.start_with(resource, metadata, |_| Ok(()))
    }

    /// Makes a change, and starts the operation on `resource` that goes on with it, in one commit. Blocks.
    pub fn start_with(
        self: &Arc<Self>,
        resource: &str,
        metadata: Any,
        work: impl FnOnce(&mut Change<'_>) -> Result<()>,
    ) -> Result<Handle> {
        let id = self.next_id();
        let name = name(resource, id);
        // Before it can be seen: one that is not under way would be taken for interrupted.
        self.lock().running.insert(id, Some(metadata.clone()));
        let operation =
            Operation { name: name.clone(), metadata: Some(metadata), ..Operation::default() };
        let kept = self.resources.change(|change| {
            work(change)?;
            self.keep(change, id, operation)
        });
        kept.inspect_err(|_| self.lock().is_over(id))?;
        Ok(self.handle(id, name))
    }

    /// Those that the last server had not finished and nobody has resumed.
    pub fn interrupted(&self) -> Vec<Operation> {
        let all = self.resources.list::<Operation>("", None, usize::MAX);
        let State { running, unwritten, .. } = &*self.lock();
        let left = all.into_iter().filter(|(key, stored)| {
            let is_left = |id: u64| !running.contains_key(&id) && !unwritten.contains_key(&id);
            !stored.value.done && key.parse().is_ok_and(is_left)
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

    /// Ends what is interrupted still as ABORTED; what cannot be kept of it for another reason than room waits for the next start. Blocks.
    pub fn abort_interrupted(&self) {
        for operation in self.interrupted() {
            let name = &operation.name;
            tracing::warn!(name, "an operation was interrupted by the end of the last server");
            let error = Error::aborted("the server ended before the operation did; start it again");
            if let Err(error) = self.end(name, Err(error)) {
                tracing::warn!(name, %error, "cannot keep the end of an operation");
            }
        }
    }

    /// The operation of a name.
    pub fn get(&self, name: &str) -> Result<Operation> {
        let id = id_of(name).ok_or_else(|| missing(name))?;
        let stored = || {
            let stored = self.resources.get::<Operation>(&key(id))?;
            Some(self.as_of_now(id, &stored.value))
        };
        // It goes from there to here, and back when there is room.
        let found = stored().or_else(|| self.kept_here(id)).or_else(stored);
        found.filter(|found| found.name == name).ok_or_else(|| missing(name))
    }

    /// A place among those that wait for operations on behalf of clients, if there is one.
    pub fn place_to_wait(&self) -> Option<SemaphorePermit<'_>> {
        self.waits.try_acquire().ok()
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

    /// Asks for the end of an operation under way, durably; one that is done stays as it is. Blocks.
    pub fn cancel(&self, name: &str) -> Result<()> {
        let id = id_of(name).ok_or_else(|| missing(name))?;
        if self.get(name)?.done {
            return Ok(());
        }
        let asked = self.resources.update(&key(id), |operation: &mut Operation| {
            if !operation.done {
                operation.result = Some(operation::Result::Error(status::of_entry(&cancelled())));
            }
            Ok(())
        });
        asked.map(drop)
    }

    /// Within a change: has the operations under way on tables of an instance, which goes with the change, end as ABORTED where their
    /// work can still turn back. Those on backups end without it, whose entries are gone before: they are left alone, so that the change is
    /// nothing but removals, which a full disk takes, unless a table is being restored.
    pub fn abort_within(&self, change: &mut Change<'_>, instance: &str) -> Result<()> {
        let below = format!("operations/{instance}/tables/");
        let under_way = self.list_where(&below, 0, |operation| !operation.done);
        let gone = Error::aborted(format!("{instance:?} was deleted while this was under way"));
        for (id, _) in under_way {
            change.update(&key(id), |operation: &mut Operation| {
                // What has made its table is done, though nobody was told yet.
                if !operation.done {
                    operation.result = Some(operation::Result::Error(status::of_entry(&gone)));
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Forgets an operation that is done. Blocks.
    pub fn delete(&self, name: &str) -> Result<()> {
        let id = id_of(name).ok_or_else(|| missing(name))?;
        let is_done = self.get(name)?.done;
        let mut was_here = None;
        let deleted = self.resources.change(|change| {
            if !is_done {
                return Err(Error::failed_precondition(format!(
                    "operation {name:?} is under way: it can be deleted once it is done"
                )));
            }
            was_here = self.lock().unwritten.remove(&id);
            let is_stored = change.get::<Operation>(&key(id)).is_some();
            if is_stored || was_here.is_none() {
                return change.delete::<Operation>(&key(id));
            }
            Ok(())
        });
        if deleted.is_err() {
            self.lock().unwritten.extend(was_here.map(|ended| (id, ended)));
        }
        deleted
    }

    /// Up to `limit` operations with this name or below it, oldest first, those after the id `after` only; each with its id.
    /// The empty name is above all.
    pub fn list(&self, name: &str, after: u64, limit: usize) -> Vec<(u64, Operation)> {
        self.list_where(name, after, |_| true).take(limit).collect()
    }

    /// The same of those that are admitted as they are shown, each when it is asked for: they may have megabytes.
    pub fn list_where(
        &self,
        name: &str,
        after: u64,
        admits: impl Fn(&Operation) -> bool,
    ) -> impl Iterator<Item = (u64, Operation)> {
        // First of all: what is written in between is in both.
        let here = self.lock().unwritten.clone().into_iter().filter(|(id, _)| *id > after);
        let mut all: BTreeMap<u64, Listed> =
            here.map(|(id, ended)| (id, Listed::Here(ended))).collect();
        let later = self.resources.list::<Operation>("", Some(&key(after)), usize::MAX);
        let stored = later.into_iter();
        all.extend(
            stored.filter_map(|(key, stored)| Some((key.parse().ok()?, Listed::Stored(stored)))),
        );
        let name = name.trim_end_matches('/');
        let is_below = move |found: &str| {
            let rest = found.strip_prefix(name);
            name.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let shown = all.into_iter().filter_map(move |(id, listed)| match listed {
            Listed::Stored(stored) if is_below(&stored.value.name) => {
                Some((id, self.as_of_now(id, &stored.value)))
            }
            Listed::Here(ended) if is_below(&ended.name) => Some((id, ended)),
            Listed::Stored(_) | Listed::Here(_) => None,
        });
        shown.filter(move |(_, operation)| admits(operation))
    }

    /// The clock makes ids of one run differ from those of another; the last id keeps them rising.
    fn next_id(&self) -> u64 {
        let now = u64::try_from(self.clock.now_micros()).unwrap_or(0);
        let mut state = self.lock();
        state.last = now.max(state.last + 1);
        state.last
    }

    /// Within a change: keeps a new operation, and forgets the oldest that are done where there are too many.
    /// `RESOURCE_EXHAUSTED` where clients may still ask about all of them.
    fn keep(&self, change: &mut Change<'_>, id: u64, operation: Operation) -> Result<()> {
        let all = self.resources.list::<Operation>("", None, usize::MAX);
        let sizes = all.iter().map(|(_, stored)| stored.value.encoded_len());
        let mut bytes = sizes.sum::<usize>() + operation.encoded_len();
        let mut count = all.len() + 1;
        let asked_about = self.asked_about();
        let may_go = all.iter().filter(|(key, stored)| {
            stored.value.done && key.parse().is_ok_and(|id: u64| !asked_about.contains(&id))
        });
        let is_full =
            |count: usize, bytes: usize| count > OPERATIONS_MAX || bytes > OPERATIONS_BYTES_MAX;
        for (key, stored) in may_go {
            if !is_full(count, bytes) {
                break;
            }
            change.delete::<Operation>(key)?;
            count -= 1;
            bytes -= stored.value.encoded_len();
        }
        if is_full(count, bytes) && operation.done {
            // Its answer is all that anybody needs: a change is not refused for its sake ([`Self::commit`]).
            return Ok(());
        }
        if is_full(count, bytes) {
            let what = format!(
                "there are {} operations that are under way or ended lately; delete some that are done, or try again later",
                count - 1
            );
            return Err(Error::overloaded(what, OPERATIONS_RETRY));
        }
        change.create(&key(id), operation)
    }

    /// Operations that ended a while ago at most, and after clients were told of them: they ask. And those whose end nobody can see yet.
    fn asked_about(&self) -> BTreeSet<u64> {
        let kept_micros = u64::try_from(OPERATION_KEPT.as_micros()).unwrap_or(u64::MAX);
        let from = self.clock.monotonic_micros().saturating_sub(kept_micros);
        let State { ended, running, .. } = &mut *self.lock();
        ended.retain(|_, at| *at >= from);
        ended.keys().chain(running.keys()).copied().collect()
    }

    /// An operation ends, of which clients were told before, unless nobody asks about it. To be called before it can be seen as done: one
    /// that nobody asks about may go at once.
    fn will_be_asked_about(&self, id: u64) {
        let mut state = self.lock();
        if !state.unasked.contains(&id) {
            state.ended.insert(id, self.clock.monotonic_micros());
        }
    }

    /// Nobody will ask about the end of an operation, which may be over: its client was answered with that, or it has none.
    pub fn nobody_asks_about(&self, name: &str) {
        let Some(id) = id_of(name) else { return };
        let mut state = self.lock();
        state.ended.remove(&id);
        if state.running.contains_key(&id) {
            state.unasked.insert(id);
        }
    }

    /// Ends an operation, durably.
    fn end(&self, name: &str, result: Result<Any>) -> Result<Operation> {
        let id = id_of(name).ok_or_else(|| missing(name))?;
        let stored = self.resources.get::<Operation>(&key(id));
        if let Some(done) = stored.filter(|stored| stored.value.done) {
            // Within the change that it made ([`Handle::end_within`]).
            self.lock().is_over(id);
            self.ended.send_replace(());
            return Ok(done.value.clone());
        }
        let told = self.lock().running.get(&id).cloned().flatten();
        self.will_be_asked_about(id);
        let mut done = None;
        let ended = self.resources.update(&key(id), |operation: &mut Operation| {
            operation.metadata = told.or_else(|| operation.metadata.take());
            operation.done = true;
            operation.result = Some(match result {
                Ok(response) => operation::Result::Response(response),
                Err(error) => operation::Result::Error(status::of_entry(&error)),
            });
            done = Some(operation.clone());
            Ok(())
        });
        let mut state = self.lock();
        state.is_over(id);
        // Of a server that is read-only the next start knows more: what is in doubt may be done.
        let kept_here = done.filter(|_| ended.as_ref().is_err_and(lacks_room));
        let has_failed =
            |ended: &Operation| matches!(ended.result, Some(operation::Result::Error(_)));
        let failed = kept_here.as_ref().is_some_and(has_failed);
        state.unwritten.extend(kept_here.map(|operation| (id, operation)));
        drop(state);
        // Clients are told that it has failed, and may have begun another: a start that takes it for interrupted must not find it. A removal
        // is what a full disk takes.
        let forgotten = self.resources.change(|change| {
            let stored = change.get::<Operation>(&key(id));
            // Whoever writes ends may have done so meanwhile.
            if failed && stored.is_some_and(|stored| !stored.value.done) {
                change.delete::<Operation>(&key(id))?;
            }
            Ok(())
        });
        if let Err(error) = forgotten {
            tracing::warn!(name, %error, "the next start takes an operation that has failed for interrupted");
        }
        self.ended.send_replace(());
        ended.map(|stored| stored.value.clone())
    }

    /// The one of this id that has ended and is kept nowhere else as ended.
    fn kept_here(&self, id: u64) -> Option<Operation> {
        self.lock().unwritten.get(&id).cloned()
    }

    /// Writes the ends of operations that could not be written when they came. Blocks.
    pub fn write_ends(&self) {
        let unwritten = self.lock().unwritten.clone();
        for (id, ended) in unwritten {
            let name = ended.name.clone();
            let written = self.resources.change(|change| {
                // One that was deleted meanwhile does not come back. Where that fails, the end is back here: it is written the next time.
                let is_here = self.kept_here(id).is_some();
                if is_here {
                    change.put(&key(id), ended);
                }
                Ok(is_here)
            });
            match written {
                Ok(true) => drop(self.lock().unwritten.remove(&id)),
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(name, %error, "cannot keep the end of an operation yet");
                    return;
                }
            }
        }
    }

    fn handle(self: &Arc<Self>, id: u64, name: String) -> Handle {
        self.lock().running.entry(id).or_default();
        Handle { operations: Arc::clone(self), id, name, is_over: false }
    }

    /// The operation with what it told of itself last.
    fn as_of_now(&self, id: u64, stored: &Operation) -> Operation {
        let state = self.lock();
        // One that ended with what it made is under way until that can be seen, too.
        if stored.done && !state.running.contains_key(&id) {
            return stored.clone();
        }
        if let Some(ended) = state.unwritten.get(&id) {
            return ended.clone();
        }
        let mut operation = Operation { result: None, done: false, ..stored.clone() };
        if let Some(Some(metadata)) = state.running.get(&id) {
            operation.metadata = Some(metadata.clone());
        }
        operation
    }

    // A panic under the lock leaves state that is whole: it is changed by single insertions and removals.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where an operation of a list is.
enum Listed {
    Stored(Arc<Stored<Operation>>),
    Here(Operation),
}

/// A change of what is kept beside the resources, and its operation: one commit. One that is dropped does nothing.
pub struct Beside<'a> {
    operations: &'a Operations,
    change: Change<'a>,
}

impl Beside<'_> {
    /// Commits an entry, and that this was done, as an operation; the revision of the commit with it. Blocks.
    pub fn commit(self, entry: MetaChange, finished: Finished) -> Result<(u64, Operation)> {
        self.operations.commit(self.change, finished, vec![entry])
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

    /// `CANCELLED` where a client asks for its end, and `ABORTED` where that goes in which it is to make something.
    pub fn check_cancelled(&self) -> Result<()> {
        let stored = self.operations.resources.get::<Operation>(&key(self.id));
        let aborted = i32::from(status::grpc_code(Code::Aborted));
        match stored.and_then(|stored| stored.value.result.clone()) {
            Some(operation::Result::Error(why)) if why.code == aborted => {
                Err(Error::aborted(why.message))
            }
            Some(_) => Err(cancelled()),
            None => Ok(()),
        }
    }

    /// Within a change: ends it with this, in one commit with what it makes, so that a start never finds the one without the other. Clients
    /// see the end once it is [finished](Self::finish), which has nothing left to write then.
    pub fn end_within(&self, change: &mut Change<'_>, metadata: Any, response: Any) -> Result<()> {
        self.operations.will_be_asked_about(self.id);
        let ended = change.update(&key(self.id), |operation: &mut Operation| {
            operation.metadata = Some(metadata);
            operation.done = true;
            operation.result = Some(operation::Result::Response(response));
            Ok(())
        });
        ended.map(drop)
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

/// Whether there was no room for a commit, which was not made.
fn lacks_room(error: &Error) -> bool {
    error.kind() == Code::ResourceExhausted && !error.is_in_doubt()
}

/// Ids sort as text.
fn key(id: u64) -> String {
    format!("{id:020}")
}

fn name(resource: &str, id: u64) -> String {
    format!("operations/{resource}/operations/{id}")
}

fn id_of(name: &str) -> Option<u64> {
    name.rsplit_once('/').and_then(|(_, id)| id.parse().ok())
}

fn missing(name: &str) -> Error {
    Error::not_found(format!("operation {name:?} not found"))
}

fn cancelled() -> Error {
    Error::new(Code::Cancelled, "the operation was cancelled")
}

/// A message as `google.protobuf.Any`.
pub fn any(type_name: &str, message: &impl Message) -> Any {
    Any { type_url: format!("type.googleapis.com/{type_name}"), value: message.encode_to_vec() }
}

#[cfg(test)]
mod tests;
