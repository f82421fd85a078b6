//! Changes of the admin services: made off the cores' runtimes, and told as operations that are done.

use std::sync::Arc;

use prost::Message;
use tepui_bigtable::error::Result;
use tepui_engine::io::Clock;
use tonic::{Response, Status};

use super::{Asked, InstanceAdminService, TableAdminService, blocking_asked, timestamp};
use crate::api::longrunning::Operation;
use crate::catalog::resources::Change;
use crate::limits::TOLD_REQUEST_BYTES_MAX;
use crate::operations::{Finished, Operations};

/// A service whose changes are done when they are answered, so that their operations are finished ones.
pub(super) trait Changes: Clone + Send + Sync + 'static {
    fn clock(&self) -> &Arc<dyn Clock>;
    fn operations(&self) -> &Operations;

    /// Runs a change off the core's runtime, with the service and the time at which it was asked for.
    async fn change<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self, Times) -> Result<T> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let service = self.clone();
        let requested_micros = self.clock().now_micros();
        let clock = Arc::clone(self.clock());
        let work = move |asked: &Asked| {
            let asked = asked.clone();
            work(&service, Times { clock, requested_micros, asked })
        };
        blocking_asked(work).await.map(Response::new)
    }

    /// Makes a change of resources off the core's runtime, and its operation in the same commit.
    async fn operation(
        &self,
        work: impl FnOnce(&Self, &mut Change<'_>, &Times) -> Result<Finished> + Send + 'static,
    ) -> Result<Response<Operation>, Status> {
        let work = move |service: &Self, times: Times| {
            service.operations().change(|change| work(service, change, &times))
        };
        self.change(work).await
    }
}

/// The operation of a change that is made: its metadata, by the name of a type of the admin API, and its result, by that of any.
pub(super) fn finished(
    resource: &str,
    (metadata_type, metadata): (&str, &impl Message),
    response: (&str, &impl Message),
) -> Finished {
    let metadata_type = format!("google.bigtable.admin.v2.{metadata_type}");
    Finished::new(resource, (&metadata_type, metadata), response)
}

/// A request as its operation tells of it; nothing of one that is larger than there is any need for.
pub(super) fn told<M: Message>(request: M) -> Option<M> {
    (request.encoded_len() <= TOLD_REQUEST_BYTES_MAX).then_some(request)
}

impl Changes for InstanceAdminService {
    fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    fn operations(&self) -> &Operations {
        &self.operations
    }
}

impl Changes for TableAdminService {
    fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    fn operations(&self) -> &Operations {
        &self.operations
    }
}

/// When a change was asked for, and now.
pub(super) struct Times {
    clock: Arc<dyn Clock>,
    requested_micros: i64,
    asked: Asked,
}

impl Times {
    pub(super) fn requested(&self) -> Option<prost_types::Timestamp> {
        Some(timestamp(self.requested_micros))
    }

    pub(super) fn now(&self) -> Option<prost_types::Timestamp> {
        Some(timestamp(self.clock.now_micros()))
    }

    /// `CANCELLED` where nobody waits for the change any more: for deletions, once others are kept from theirs.
    pub(super) fn check_asked(&self) -> Result<()> {
        self.asked.check()
    }
}
