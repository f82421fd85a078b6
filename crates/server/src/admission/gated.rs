//! A service whose requests pass the gate.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::uri::PathAndQuery;
use hyper::service::Service;
use pin_project_lite::pin_project;
use tonic::server::NamedService;
use tonic::{Code, Status};

use super::connection::Arrived;
use super::requests::{Gate, GatedBody, Hold, Inbound};
use crate::call::Deadline;
use crate::metrics::rpc::CoreRpcs;

/// A service behind a gate.
#[derive(Debug, Clone)]
pub struct Gated<S> {
    inner: S,
    gate: Arc<Gate>,
    message_bytes_max: u64,
    rpcs: Arc<CoreRpcs>,
}

impl<S> Gated<S> {
    /// Puts a service behind a gate, which refuses messages of more bytes than the service takes, or than fit. What ends
    /// before the service has begun it is counted into `rpcs`, which are the core's own: every request takes a reference.
    pub fn new(inner: S, gate: Arc<Gate>, message_bytes_max: usize, rpcs: Arc<CoreRpcs>) -> Self {
        Self { inner, gate, message_bytes_max: message_bytes_max as u64, rpcs }
    }
}

impl<S: NamedService> NamedService for Gated<S> {
    const NAME: &'static str = S::NAME;
}

impl<S, B, R> Service<http::Request<Arrived<B>>> for Gated<S>
where
    B: Inbound,
    S: Service<http::Request<GatedBody<B>>, Response = http::Response<R>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Holding<S::Future>;

    fn call(&self, request: http::Request<Arrived<B>>) -> Self::Future {
        let (head, Arrived { body, connection }) = request.into_parts();
        let deadline = Deadline::of(&head.headers);
        let hold = Hold::new(Some(Arc::clone(&self.gate)), connection, deadline);
        let gate = (Arc::clone(&self.gate), self.message_bytes_max);
        let body = GatedBody::new(body, gate, hold.clone());
        let early = Early {
            hold,
            path: head.uri.path_and_query().cloned(),
            rpcs: Arc::clone(&self.rpcs),
            // Where it is dropped before it has an answer.
            code: Code::Cancelled,
        };
        Holding { inner: self.inner.call(http::Request::from_parts(head, body)), early }
    }
}

/// Counts a request where it ends before it is begun.
#[derive(Debug)]
struct Early {
    hold: Hold,
    path: Option<PathAndQuery>,
    rpcs: Arc<CoreRpcs>,
    code: Code,
}

impl Drop for Early {
    fn drop(&mut self) {
        if let Some(path) = self.path.as_ref().filter(|_| !self.hold.has_begun()) {
            self.rpcs.ended_early(path.path(), self.code);
        }
    }
}

/// The code that an answer begins with, where that is its end.
fn code_of<R>(answer: &http::Response<R>) -> Code {
    let told = answer.headers().get(Status::GRPC_STATUS);
    told.map_or(Code::Unknown, |code| Code::from_bytes(code.as_bytes()))
}

pin_project! {
    /// A call that holds its room until it has its answer.
    #[derive(Debug)]
    pub struct Holding<F> {
        #[pin]
        inner: F,
        early: Early,
    }
}

impl<R, E, F> Future for Holding<F>
where
    F: Future<Output = Result<http::Response<R>, E>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let polled = this.inner.poll(context);
        if let Poll::Ready(Ok(answer)) = &polled {
            this.early.code = code_of(answer);
        }
        polled
    }
}
