//! A service whose requests pass the gate, and whose answers have their charges with them.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use tonic::server::NamedService;

use super::Connection;
use super::charge::Charged;
use super::requests::{Gate, GatedBody, Hold};
use crate::call::Deadline;

/// A service behind a gate.
#[derive(Debug, Clone)]
pub struct Gated<S> {
    inner: S,
    gate: Arc<Gate>,
    message_bytes_max: u64,
}

impl<S> Gated<S> {
    /// Puts a service behind a gate, which refuses messages of more bytes than the service takes, or than fit.
    pub fn new(inner: S, gate: Arc<Gate>, message_bytes_max: usize) -> Self {
        Self { inner, gate, message_bytes_max: message_bytes_max as u64 }
    }
}

impl<S: NamedService> NamedService for Gated<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> tower_service::Service<http::Request<tonic::body::Body>> for Gated<S>
where
    S: tower_service::Service<
            http::Request<tonic::body::Body>,
            Response = http::Response<tonic::body::Body>,
        >,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Holding<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        let hold = Hold::default();
        let (mut head, body) = request.into_parts();
        head.extensions.insert(hold.clone());
        let connection = head.extensions.get::<Arc<Connection>>().cloned();
        let deadline = Deadline::of(&head.headers);
        if let Some(deadline) = deadline {
            head.extensions.insert(deadline);
        }
        let gate = (Arc::clone(&self.gate), self.message_bytes_max);
        let body = GatedBody::new(body, gate, hold.clone(), connection, deadline);
        let request = http::Request::from_parts(head, tonic::body::Body::new(body));
        Holding { inner: self.inner.call(request), _hold: hold }
    }
}

pin_project! {
    /// A call that holds its room until it has its answer.
    #[derive(Debug)]
    pub struct Holding<F> {
        #[pin]
        inner: F,
        _hold: Hold,
    }
}

impl<E, F> Future for Holding<F>
where
    F: Future<Output = Result<http::Response<tonic::body::Body>, E>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.project().inner.poll(context).map_ok(Charged::response)
    }
}
