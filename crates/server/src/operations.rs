//! Long-running operations. Everything that returns one here is finished by then, so an operation is a
//! record of what happened: kept in memory, a bounded number of them, forgotten at a restart.
//!
//! Names are `operations/<resource>/operations/<id>`, ids increasing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prost::Message;
use tepui_bigtable::error::{Error, Result};
use tepui_engine::io::Clock;

use crate::api::longrunning::Operation;
use crate::api::longrunning::operation;
use crate::limits::OPERATIONS_MAX;

/// The operations of one server.
#[derive(Debug)]
pub struct Operations {
    clock: Arc<dyn Clock>,
    done: Mutex<BTreeMap<u64, Operation>>,
}

impl Operations {
    /// None yet.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, done: Mutex::new(BTreeMap::new()) }
    }

    /// Records that something happened to `resource`: its metadata and its result, each with its type's
    /// full name.
    pub fn finished(
        &self,
        resource: &str,
        metadata: (&str, &impl Message),
        response: (&str, &impl Message),
    ) -> Operation {
        let mut done = self.lock();
        // The clock makes ids of one run differ from those of another; the last id keeps them rising.
        let last = done.last_key_value().map_or(0, |(id, _)| *id);
        let id = u64::try_from(self.clock.now_micros()).unwrap_or(0).max(last + 1);
        let operation = Operation {
            name: format!("operations/{resource}/operations/{id}"),
            metadata: Some(any(metadata.0, metadata.1)),
            done: true,
            result: Some(operation::Result::Response(any(response.0, response.1))),
        };
        done.insert(id, operation.clone());
        if done.len() > OPERATIONS_MAX {
            done.pop_first();
        }
        operation
    }

    /// The operation of a name.
    pub fn get(&self, name: &str) -> Result<Operation> {
        let found = id_of(name).and_then(|id| self.lock().get(&id).cloned());
        found.filter(|operation| operation.name == name).ok_or_else(|| missing(name))
    }

    /// Forgets an operation.
    pub fn delete(&self, name: &str) -> Result<()> {
        self.get(name)?;
        if let Some(id) = id_of(name) {
            self.lock().remove(&id);
        }
        Ok(())
    }

    /// Up to `limit` operations on resources whose names start with `prefix`, oldest first, those after
    /// the id `after` only; each with its id.
    pub fn list(&self, prefix: &str, after: u64, limit: usize) -> Vec<(u64, Operation)> {
        let done = self.lock();
        let later = done.range(after.saturating_add(1)..);
        let matching = later.filter(|(_, operation)| operation.name.starts_with(prefix));
        matching.take(limit).map(|(id, operation)| (*id, operation.clone())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Operation>> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn id_of(name: &str) -> Option<u64> {
    name.rsplit_once('/').and_then(|(_, id)| id.parse().ok())
}

fn missing(name: &str) -> Error {
    Error::not_found(format!("operation {name:?} not found"))
}

/// A message as `google.protobuf.Any`.
fn any(type_name: &str, message: &impl Message) -> prost_types::Any {
    prost_types::Any {
        type_url: format!("type.googleapis.com/{type_name}"),
        value: message.encode_to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tepui_engine::io::ManualClock;

    const RESOURCE: &str = "projects/p/instances/i/tables/t";

    fn operations() -> Operations {
        Operations::new(Arc::new(ManualClock::new(1_000)))
    }

    fn finish(operations: &Operations) -> Operation {
        operations.finished(RESOURCE, ("a.Metadata", &()), ("a.Response", &()))
    }

    #[test]
    fn a_finished_operation_is_done_and_found_by_name() {
        let operations = operations();
        let operation = finish(&operations);
        assert!(operation.done);
        assert_eq!(operations.get(&operation.name).unwrap(), operation);
        let Some(operation::Result::Response(any)) = operation.result else { panic!() };
        assert_eq!(any.type_url, "type.googleapis.com/a.Response");
        operations.delete(&operation.name).unwrap();
        assert!(operations.get(&operation.name).is_err());
        assert!(operations.delete(&operation.name).is_err());
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
    fn the_oldest_operation_is_forgotten_first() {
        let operations = operations();
        let first = finish(&operations);
        for _ in 0..OPERATIONS_MAX {
            finish(&operations);
        }
        assert!(operations.get(&first.name).is_err());
        assert_eq!(operations.list("", 0, usize::MAX).len(), OPERATIONS_MAX);
    }

    #[test]
    fn a_name_of_another_resource_with_the_same_id_is_not_found() {
        let operations = operations();
        let operation = finish(&operations);
        let other = operation.name.replace("/tables/t/", "/tables/u/");
        assert!(operations.get(&other).is_err());
    }
}
