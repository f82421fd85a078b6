//! `google.longrunning.Operations` over [`crate::operations`].

use std::sync::Arc;
use std::time::Duration;

use tepui_bigtable::error::{Error, Shown};
use tonic::{Response, Status};

use super::{blocking, invalid, page, page_size};
use crate::api::longrunning::{
    CancelOperationRequest, DeleteOperationRequest, GetOperationRequest, ListOperationsRequest,
    ListOperationsResponse, Operation, WaitOperationRequest,
};
use crate::grpc::Request;
use crate::limits::{OPERATION_WAIT_BYTES_MAX, OPERATION_WAIT_MAX};
use crate::metrics::rpc::Recorder;
use crate::operations::Operations;
use crate::runtime::{Signal, given};
use crate::status::from_error;

/// The service.
#[derive(Debug, Clone)]
pub struct OperationsService {
    operations: Arc<Operations>,
    /// Given when the server stops: nobody is to wait on then.
    draining: Signal,
    pub(super) recorder: Recorder,
}

#[expect(clippy::unused_async, reason = "the generated dispatch awaits every RPC")]
impl OperationsService {
    /// Serves these operations until `draining` is given; who waits for one is answered then.
    pub fn new(operations: Arc<Operations>, draining: Signal, recorder: Recorder) -> Self {
        Self { operations, draining, recorder }
    }

    fn find(&self, name: &str) -> Result<Operation, Status> {
        self.operations.get(name).map_err(|error| from_error(&error))
    }

    pub(super) async fn on_list_operations(
        &self,
        request: Request<ListOperationsRequest>,
    ) -> Result<Response<ListOperationsResponse>, Status> {
        let request = request.into_inner();
        let done = asked_done(&request.filter)?;
        let size = page_size(request.page_size).map_err(|error| from_error(&error))?;
        let after = match request.page_token.as_str() {
            "" => 0,
            token => {
                token.parse().map_err(|_| invalid(format!("bad page_token {}", Shown(token))))?
            }
        };
        let admits = |operation: &Operation| done.is_none_or(|done| operation.done == done);
        let found = self.operations.list_where(&request.name, after, admits);
        // Those that were looked at, of which the last may be on the next page.
        let mut ids = Vec::new();
        let found = found.map(|(id, operation)| {
            ids.push(id);
            operation
        });
        let (operations, has_more) = page(found, size);
        let last = ids.get(operations.len().saturating_sub(1)).filter(|_| has_more);
        Ok(Response::new(ListOperationsResponse {
            next_page_token: last.map(u64::to_string).unwrap_or_default(),
            operations,
            unreachable: Vec::new(),
        }))
    }

    pub(super) async fn on_get_operation(
        &self,
        request: Request<GetOperationRequest>,
    ) -> Result<Response<Operation>, Status> {
        self.find(&request.get_ref().name).map(Response::new)
    }

    pub(super) async fn on_delete_operation(
        &self,
        request: Request<DeleteOperationRequest>,
    ) -> Result<Response<()>, Status> {
        let operations = Arc::clone(&self.operations);
        let name = request.into_inner().name;
        blocking(move || operations.delete(&name)).await.map(Response::new)
    }

    /// Cancelling is a wish: what is done before the work comes to look at it stays done.
    pub(super) async fn on_cancel_operation(
        &self,
        request: Request<CancelOperationRequest>,
    ) -> Result<Response<()>, Status> {
        let operations = Arc::clone(&self.operations);
        let name = request.into_inner().name;
        blocking(move || operations.cancel(&name)).await.map(Response::new)
    }

    /// Answers when the operation is done, and at the latest when the client wants to be answered, or the server stops; at once where as many wait
    /// as may.
    pub(super) async fn on_wait_operation(
        &self,
        request: Request<WaitOperationRequest>,
    ) -> Result<Response<Operation>, Status> {
        let is_padded = request.hold().room_bytes() > OPERATION_WAIT_BYTES_MAX;
        let request = request.into_inner();
        let longest = request.timeout.map_or(Ok(OPERATION_WAIT_MAX), |timeout| {
            let timeout = Duration::try_from(timeout);
            timeout.map_err(|_| invalid("timeout must not be negative"))
        })?;
        let Some(_place) = self.operations.place_to_wait().filter(|_| !is_padded) else {
            return self.find(&request.name).map(Response::new);
        };
        let waiting = self.operations.wait(&request.name);
        let waiting = tokio::time::timeout(longest.min(OPERATION_WAIT_MAX), waiting);
        let done = tokio::select! {
            biased;
            waited = waiting => waited.ok(),
            () = given(self.draining.clone()) => None,
        };
        match done {
            Some(done) => done.map(Response::new).map_err(|error| from_error(&error)),
            None => self.find(&request.name).map(Response::new),
        }
    }
}

/// Whether a filter asks for operations that are done, or for those that are not; `None` for all. There are no other filters.
pub(crate) fn asked_done(filter: &str) -> Result<Option<bool>, Status> {
    if filter.trim().is_empty() {
        return Ok(None);
    }
    let compared = filter.split_once(['=', ':']);
    match compared.map(|(field, value)| (field.trim(), value.trim())) {
        Some(("done", "true")) => Ok(Some(true)),
        Some(("done", "false")) => Ok(Some(false)),
        _ => Err(from_error(&Error::unimplemented(format!(
            "ListOperations: the filter {} is not supported; done=true and done=false are",
            Shown(filter)
        )))),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use futures::FutureExt as _;
    use prost::Message as _;
    use tepui_engine::io::ManualClock;
    use tokio::sync::watch;

    use super::*;
    use crate::admission::Hold;
    use crate::catalog::memory_meta::MemoryMeta;
    use crate::catalog::resources::Resources;
    use crate::limits::OPERATION_WAITS_MAX;

    fn service() -> OperationsService {
        // Never given; one whose sender is gone would count as given.
        static RUNNING: LazyLock<watch::Sender<bool>> = LazyLock::new(|| watch::channel(false).0);
        service_until(RUNNING.subscribe())
    }

    fn service_until(draining: Signal) -> OperationsService {
        let resources = Resources::open(Arc::<MemoryMeta>::default()).unwrap();
        let operations = Operations::open(Arc::new(resources), Arc::new(ManualClock::new(1)));
        for _ in 0..3 {
            operations.finished("projects/p/instances/i", ("M", &()), ("R", &())).unwrap();
        }
        let clock = Arc::new(ManualClock::new(0));
        OperationsService::new(Arc::new(operations), draining, Recorder::new(Arc::default(), clock))
    }

    #[tokio::test]
    async fn listing_pages_through_all_operations() {
        let service = service();
        let mut token = String::new();
        let mut names = Vec::new();
        for _ in 0..2 {
            let request = ListOperationsRequest {
                page_size: 2,
                page_token: token.clone(),
                ..Default::default()
            };
            let page =
                service.on_list_operations(Request::new(request)).await.unwrap().into_inner();
            names.extend(page.operations.into_iter().map(|o| o.name));
            token = page.next_page_token;
        }
        assert_eq!(token, "");
        names.dedup();
        assert_eq!(names.len(), 3);
        for name in names {
            service.on_get_operation(Request::new(GetOperationRequest { name })).await.unwrap();
        }
    }

    #[tokio::test]
    async fn pages_of_large_operations_fit_into_a_message() {
        let service = service();
        let large = prost_types::Any { value: vec![7; 2 << 20], ..Default::default() };
        for _ in 0..3 {
            service
                .operations
                .finished("projects/p/instances/i", ("M", &()), ("R", &large))
                .unwrap();
        }
        let (mut page_token, mut count) = (String::new(), 0);
        loop {
            let request = ListOperationsRequest { page_token, ..Default::default() };
            let page =
                service.on_list_operations(Request::new(request)).await.unwrap().into_inner();
            assert!(page.encoded_len() < 4 << 20);
            count += page.operations.len();
            page_token = page.next_page_token;
            if page_token.is_empty() {
                break;
            }
        }
        assert_eq!(count, 6);
    }

    #[tokio::test]
    async fn a_filter_asks_for_operations_that_are_done_or_for_the_others() {
        let service = service();
        let any = prost_types::Any::default();
        let running = service.operations.start("projects/p/instances/i", any).unwrap();
        let listed = async |filter: &str, page_size: i32| {
            let request =
                ListOperationsRequest { filter: filter.into(), page_size, ..Default::default() };
            let page = service.on_list_operations(Request::new(request)).await.unwrap();
            let page = page.into_inner();
            let names: Vec<_> = page.operations.into_iter().map(|o| o.name).collect();
            (names, page.next_page_token)
        };
        for filter in ["done=false", "done = false", " done:false "] {
            let only = (vec![running.name().to_owned()], String::new());
            assert_eq!(listed(filter, 1).await, only, "{filter:?}");
        }
        for (filter, count) in [("done=true", 3), ("done:true", 3), ("", 4), (" ", 4)] {
            assert_eq!(listed(filter, 0).await.0.len(), count, "{filter:?}");
        }
    }

    #[tokio::test]
    async fn bad_tokens_filters_and_names_have_their_codes() {
        let service = service();
        let bad_token = ListOperationsRequest { page_token: "x".into(), ..Default::default() };
        let filter =
            |filter: &str| ListOperationsRequest { filter: filter.into(), ..Default::default() };
        for (request, code) in [
            (bad_token, tonic::Code::InvalidArgument),
            (filter("done"), tonic::Code::Unimplemented),
            (filter("done=maybe"), tonic::Code::Unimplemented),
            (filter("done=true AND done=false"), tonic::Code::Unimplemented),
            (filter("metadata.@type:Backup"), tonic::Code::Unimplemented),
        ] {
            let status = service.on_list_operations(Request::new(request)).await.unwrap_err();
            assert_eq!(status.code(), code);
        }
        let name = "operations/none/operations/1".to_owned();
        let wait = WaitOperationRequest { name, timeout: None };
        let status = service.on_wait_operation(Request::new(wait)).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::NotFound);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_ends_with_the_operation_or_at_the_clients_time() {
        let service = service();
        let any = prost_types::Any::default();
        let handle = service.operations.start("projects/p/instances/i", any.clone()).unwrap();
        let wait = |seconds| {
            let timeout = Some(prost_types::Duration { seconds, nanos: 0 });
            let name = handle.name().to_owned();
            service.on_wait_operation(Request::new(WaitOperationRequest { name, timeout }))
        };
        assert!(!wait(1).await.unwrap().into_inner().done);
        assert_eq!(wait(-1).await.unwrap_err().code(), tonic::Code::InvalidArgument);
        let waiting = wait(600);
        handle.finish(Ok(any)).unwrap();
        assert!(waiting.await.unwrap().into_inner().done);
    }

    #[tokio::test]
    async fn where_as_many_wait_as_may_another_is_answered_at_once() {
        let service = service();
        let handle =
            service.operations.start("projects/p/instances/i", prost_types::Any::default());
        let handle = handle.unwrap();
        let wait = || {
            let name = handle.name().to_owned();
            service.on_wait_operation(Request::new(WaitOperationRequest { name, timeout: None }))
        };
        let mut waiting: Vec<_> = (0..OPERATION_WAITS_MAX).map(|_| Box::pin(wait())).collect();
        for one in &mut waiting {
            assert!(futures::poll!(one).is_pending());
        }
        assert!(!wait().now_or_never().expect("at once").unwrap().into_inner().done);
        waiting.pop();
        assert!(wait().now_or_never().is_none());
        let wait = WaitOperationRequest { name: handle.name().to_owned(), timeout: None };
        let padded = Request::holding(wait, Hold::of_bytes(2 * OPERATION_WAIT_BYTES_MAX));
        service.on_wait_operation(padded).now_or_never().expect("at once").unwrap();
    }

    #[tokio::test]
    async fn waiting_ends_with_the_server_and_tells_how_the_operation_is() {
        let (drain, draining) = watch::channel(false);
        let service = service_until(draining);
        let handle =
            service.operations.start("projects/p/instances/i", prost_types::Any::default());
        let handle = handle.unwrap();
        let wait = WaitOperationRequest { name: handle.name().to_owned(), timeout: None };
        let mut waiting = Box::pin(service.on_wait_operation(Request::new(wait)));
        assert!(futures::poll!(&mut waiting).is_pending());
        drain.send(true).unwrap();
        let operation = waiting.now_or_never().expect("at once").unwrap().into_inner();
        assert_eq!((operation.name.as_str(), operation.done), (handle.name(), false));
    }
}
