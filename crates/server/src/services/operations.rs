//! `google.longrunning.Operations` over the finished operations of [`crate::operations`].

use std::sync::Arc;

use tonic::{Request, Response, Status};

use super::{invalid, page_size, unsupported};
use crate::api::longrunning::{
    CancelOperationRequest, DeleteOperationRequest, GetOperationRequest, ListOperationsRequest,
    ListOperationsResponse, Operation, WaitOperationRequest,
};
use crate::metrics::rpc::Recorder;
use crate::operations::Operations;
use crate::status::from_error;

/// The service.
#[derive(Debug, Clone)]
pub struct OperationsService {
    operations: Arc<Operations>,
    pub(super) recorder: Recorder,
}

#[expect(clippy::unused_async, reason = "the generated dispatch awaits every RPC")]
impl OperationsService {
    /// Serves these operations.
    pub fn new(operations: Arc<Operations>, recorder: Recorder) -> Self {
        Self { operations, recorder }
    }

    fn find(&self, name: &str) -> Result<Operation, Status> {
        self.operations.get(name).map_err(|error| from_error(&error))
    }

    pub(super) async fn on_list_operations(
        &self,
        request: Request<ListOperationsRequest>,
    ) -> Result<Response<ListOperationsResponse>, Status> {
        let request = request.into_inner();
        if !request.filter.is_empty() {
            return Err(unsupported("ListOperations with a filter"));
        }
        let size = page_size(request.page_size).map_err(|error| from_error(&error))?;
        let after = match request.page_token.as_str() {
            "" => 0,
            token => token.parse().map_err(|_| invalid(format!("bad page_token {token:?}")))?,
        };
        // One more than asked for tells whether there is a next page.
        let mut page = self.operations.list(&request.name, after, size.saturating_add(1));
        let has_more = page.len() > size;
        page.truncate(size);
        let last = page.last().map(|(id, _)| id.to_string());
        Ok(Response::new(ListOperationsResponse {
            operations: page.into_iter().map(|(_, operation)| operation).collect(),
            next_page_token: last.filter(|_| has_more).unwrap_or_default(),
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
        let deleted = self.operations.delete(&request.get_ref().name);
        deleted.map(Response::new).map_err(|error| from_error(&error))
    }

    /// There is nothing to cancel in an operation that is done, which is no error.
    pub(super) async fn on_cancel_operation(
        &self,
        request: Request<CancelOperationRequest>,
    ) -> Result<Response<()>, Status> {
        self.find(&request.get_ref().name).map(|_| Response::new(()))
    }

    /// All operations are done, so nobody waits.
    pub(super) async fn on_wait_operation(
        &self,
        request: Request<WaitOperationRequest>,
    ) -> Result<Response<Operation>, Status> {
        self.find(&request.get_ref().name).map(Response::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tepui_engine::io::ManualClock;

    fn service() -> OperationsService {
        let operations = Operations::new(Arc::new(ManualClock::new(1)));
        for _ in 0..3 {
            operations.finished("projects/p/instances/i", ("M", &()), ("R", &()));
        }
        let clock = Arc::new(ManualClock::new(0));
        OperationsService::new(Arc::new(operations), Recorder::new(Arc::default(), clock))
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
    async fn bad_tokens_filters_and_names_have_their_codes() {
        let service = service();
        let bad_token = ListOperationsRequest { page_token: "x".into(), ..Default::default() };
        let filter = ListOperationsRequest { filter: "done=true".into(), ..Default::default() };
        for (request, code) in
            [(bad_token, tonic::Code::InvalidArgument), (filter, tonic::Code::Unimplemented)]
        {
            let status = service.on_list_operations(Request::new(request)).await.unwrap_err();
            assert_eq!(status.code(), code);
        }
        let name = "operations/none/operations/1".to_owned();
        let wait = WaitOperationRequest { name, timeout: None };
        let status = service.on_wait_operation(Request::new(wait)).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::NotFound);
    }
}
