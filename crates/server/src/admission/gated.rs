//! A service whose requests pass the gate.

use std::future::{Future, Ready, ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::Either;
use hyper::service::Service;
use pin_project_lite::pin_project;
use tonic::server::NamedService;
use tonic::{Code, Status};

use super::connection::Arrived;
use super::requests::{Gate, GatedBody, Hold, Inbound};
use crate::call::Deadline;
use crate::grpc;
use crate::metrics::rpc::{self, CoreRpcs};
use crate::status::panicked;

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
    R: Default,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Either<Ready<Result<S::Response, S::Error>>, Holding<S::Future>>;

    fn call(&self, request: http::Request<Arrived<B>>) -> Self::Future {
        if let Some(refusal) = grpc::refusal(&request) {
            return Either::Left(ready(Ok(refusal)));
        }
        let (head, Arrived { body, connection }) = request.into_parts();
        let deadline = Deadline::of(&head.headers);
        let hold = Hold::new(Some(Arc::clone(&self.gate)), connection, deadline);
        let gate = (Arc::clone(&self.gate), self.message_bytes_max);
        let rpc = rpc::at(head.uri.path());
        let body = GatedBody::new(body, gate, hold.clone());
        let body = if rpc.is_some_and(|(_, rpc)| rpc.writes) { body.of_write() } else { body };
        let early = Early {
            hold,
            // Not the path: with it would stay all that came with the request's headers.
            rpc: rpc.map(|(number, _)| number),
            rpcs: Arc::clone(&self.rpcs),
            // Where it is dropped before it has an answer.
            code: Code::Cancelled,
        };
        let inner = self.inner.call(http::Request::from_parts(head, body));
        Either::Right(Holding { inner, early })
    }
}

/// Counts a request where it ends before it is begun.
#[derive(Debug)]
struct Early {
    hold: Hold,
    /// `None` where none is served by its path.
    rpc: Option<usize>,
    rpcs: Arc<CoreRpcs>,
    code: Code,
}

impl Drop for Early {
    fn drop(&mut self) {
        if let Some(rpc) = self.rpc.filter(|_| !self.hold.has_begun()) {
            self.rpcs.ended_early(rpc, rpc::code_at_drop(self.code));
        }
    }
}

/// The code that an answer begins with, where that is its end.
fn code_of<R>(answer: &http::Response<R>) -> Code {
    let told = answer.headers().get(Status::GRPC_STATUS);
    told.map_or(Code::Unknown, |code| Code::from_bytes(code.as_bytes()))
}

pin_project! {
    /// A call that holds its room until it has its answer. A panic is an answer, too: the transport would reset the stream, which clients take for a
    /// cancellation of their own.
    #[derive(Debug)]
    pub struct Holding<F> {
        #[pin]
        inner: F,
        early: Early,
    }
}

impl<R: Default, E, F> Future for Holding<F>
where
    F: Future<Output = Result<http::Response<R>, E>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let polled = catch_unwind(AssertUnwindSafe(|| this.inner.poll(context)))
            .unwrap_or_else(|_| Poll::Ready(Ok(panicked().into_http())));
        if let Poll::Ready(Ok(answer)) = &polled {
            this.early.code = code_of(answer);
        }
        polled
    }
}
