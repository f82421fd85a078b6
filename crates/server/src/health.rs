//! `grpc.health.v1.Health`: tonic's service, whose watches end with the server. A watch has no end of its own, and would be waited for
//! whenever the server stops.

use std::task::Poll;

use futures::stream::BoxStream;
use futures::{FutureExt as _, Stream, StreamExt as _};
use tonic::{Request, Response, Status};
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_health::server::{HealthReporter, HealthService};

use crate::runtime::{Signal, given};

/// The service.
#[derive(Debug)]
pub struct Watched {
    inner: HealthService,
    draining: Signal,
}

impl Watched {
    /// Says what the reporter was told. Watches end once `draining` is given.
    pub fn new(reporter: &HealthReporter, draining: Signal) -> Self {
        Self { inner: HealthService::from_health_reporter(reporter.clone()), draining }
    }
}

#[tonic::async_trait]
impl Health for Watched {
    type WatchStream = BoxStream<'static, Result<HealthCheckResponse, Status>>;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        self.inner.check(request).await
    }

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let told = self.inner.watch(request).await?.into_inner();
        Ok(Response::new(Box::pin(until(told, given(self.draining.clone())))))
    }
}

/// What a stream has until `end` resolves; what it had before that is not lost.
fn until<T>(
    stream: impl Stream<Item = T> + Send,
    end: impl Future<Output = ()> + Send,
) -> impl Stream<Item = T> + Send {
    let (mut stream, mut end) = (Box::pin(stream), Box::pin(end.fuse()));
    let mut is_over = false;
    futures::stream::poll_fn(move |context| {
        // The end is looked at first: all that was said before it is there by then.
        is_over = is_over || end.poll_unpin(context).is_ready();
        match stream.poll_next_unpin(context) {
            Poll::Pending if is_over => Poll::Ready(None),
            polled => polled,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_was_told_before_the_end_is_heard() {
        let (say, told) = futures::channel::mpsc::unbounded();
        let (end, ended) = futures::channel::oneshot::channel::<()>();
        let mut heard = Box::pin(until(told, ended.map(|_| ())));
        assert!(futures::poll!(heard.next()).is_pending());
        say.unbounded_send("going").unwrap();
        drop(end);
        assert_eq!((heard.next().await, heard.next().await), (Some("going"), None));
    }
}
