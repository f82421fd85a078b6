//! A core: one thread, one single-threaded runtime, one listening socket. A connection stays on the core
//! that it was given to ([`crate::placement`]), and so do its requests.

use std::convert::Infallible;
use std::net::TcpListener;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::StreamExt as _;
use hyper::body::Incoming;
use hyper::rt::Executor as _;
use hyper::server::conn::http2;
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use pin_project_lite::pin_project;
use tepui_bigtable::activity::{self, Working};
use tepui_engine::io::IoEngine;
use tepui_engine::relay;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tonic::transport::server::TcpIncoming;

use crate::admission::{Accepted, Arrived, Connection, Paced, Streams, UnderWay};
use crate::grpc::{Answer, Reply};
use crate::limits::{
    BAD_FRAMES_MAX, CONNECTION_WINDOW_BYTES, CONNECTION_WINDOW_BYTES_MIN, CONNECTION_WINDOW_PART,
    DRAIN, HEADERS_BYTES_MAX, KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT, RESET_STREAMS_MAX,
    STREAM_WINDOW_PART, STREAMS_PER_CONNECTION_MAX,
};
use crate::placement::Door;
use crate::serving::{Protocol, Serving};

/// Told once: true when it is time. A sender that is gone counts as told.
pub type Signal = watch::Receiver<bool>;

/// Resolves when the signal is given.
pub async fn given(mut signal: Signal) {
    // An error means that nobody is left to give the signal.
    let _ = signal.wait_for(|given| *given).await;
}

/// Held by a thread of the server: tells that the thread has ended, in whatever way.
#[derive(Debug)]
pub struct Alive {
    one_ended: watch::Sender<bool>,
    /// Nothing is ever sent.
    _own: mpsc::Sender<()>,
}

/// Whether a thread of the server has ended.
#[derive(Debug)]
pub struct Ended(mpsc::Receiver<()>);

impl Alive {
    /// For one of the threads, and for who waits for it; the signal is given when the first of them ends.
    pub fn new(one_ended: &watch::Sender<bool>) -> (Self, Ended) {
        let (own, ended) = mpsc::channel();
        (Self { one_ended: one_ended.clone(), _own: own }, Ended(ended))
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.one_ended.send_replace(true);
    }
}

impl Ended {
    /// Waits for the end, but no longer than this. Returns whether it is there.
    pub fn wait(&self, wait: Duration) -> bool {
        self.0.recv_timeout(wait) == Err(RecvTimeoutError::Disconnected)
    }
}

/// What a core serves.
#[derive(Debug)]
pub struct Core<S> {
    /// The services.
    pub services: S,
    /// The budget of answers, which its connections share.
    pub streams: Arc<Streams>,
    /// What its clients may send ahead.
    pub windows: Windows,
    /// Where its connections come in.
    pub door: Door,
    /// Where it tells which tablet it works for.
    pub working: Arc<Working>,
}

/// HTTP/2's windows: bytes that a client may send before they are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    /// On one stream.
    pub stream_bytes: u32,
    /// On one connection.
    pub connection_bytes: u32,
}

impl Windows {
    /// Windows that are small beside the budget of requests.
    pub fn within(requests_bytes: u64) -> Self {
        let part = u32::try_from(requests_bytes / CONNECTION_WINDOW_PART).unwrap_or(u32::MAX);
        let connection_bytes = part.clamp(CONNECTION_WINDOW_BYTES_MIN, CONNECTION_WINDOW_BYTES);
        Self { stream_bytes: connection_bytes / STREAM_WINDOW_PART, connection_bytes }
    }
}

/// Tasks that run between two looks for what has arrived. tokio's own 61, each a turn of a long read, would be several
/// milliseconds; a look takes a microsecond.
const EVENT_INTERVAL: u32 = 16;

/// A single-threaded runtime.
pub fn build() -> std::io::Result<Runtime> {
    builder().build()
}

/// The runtime of a core, which tells when its thread has nothing to do.
pub fn build_core() -> std::io::Result<Runtime> {
    builder().on_thread_park(activity::rest).build()
}

fn builder() -> Builder {
    let mut builder = Builder::new_current_thread();
    builder.event_interval(EVENT_INTERVAL).enable_all();
    builder
}

/// What serves the requests of a connection.
pub trait Serves:
    Service<
        http::Request<Arrived<Incoming>>,
        Response = http::Response<Reply>,
        Error = Infallible,
        Future: Send,
    > + Clone
    + Send
    + 'static
{
}

impl<S> Serves for S where
    S: Service<
            http::Request<Arrived<Incoming>>,
            Response = http::Response<Reply>,
            Error = Infallible,
            Future: Send,
        > + Clone
        + Send
        + 'static
{
}

/// The services, for the requests of one connection.
struct Front<S> {
    services: S,
    connection: Arc<Connection>,
}

impl<S: Serves> Service<http::Request<Incoming>> for Front<S> {
    type Response = http::Response<Paced<Reply>>;
    type Error = Infallible;
    type Future = Answering<S::Future>;

    fn call(&self, request: http::Request<Incoming>) -> Self::Future {
        let connection = Arc::clone(&self.connection);
        let request = request.map(|body| Arrived { body, connection });
        let begun = Some(self.connection.begin());
        Answering { answer: self.services.call(request), begun }
    }
}

pin_project! {
    /// A call whose answer goes out as its client takes it.
    struct Answering<F> {
        #[pin]
        answer: F,
        begun: Option<UnderWay>,
    }
}

impl<F: Future<Output = Answer>> Future for Answering<F> {
    type Output = Result<http::Response<Paced<Reply>>, Infallible>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let answer = ready!(this.answer.poll(context))?;
        let begun = this.begun.take().expect("a call is answered once");
        Poll::Ready(Ok(answer.map(|body| Paced::new(body, begun))))
    }
}

impl<S: Serves> Core<S> {
    /// Serves a core on its runtime, which is of [`build_core`], until `drain` is given and the requests under way are done, or
    /// [`DRAIN`] has passed. The reads of its requests are made by `io`, which may keep something for the core's thread.
    pub fn run(self, runtime: Runtime, listener: TcpListener, drain: Signal, io: &dyn IoEngine) {
        activity::publish(Arc::clone(&self.working));
        // Ends with the runtime.
        drop(runtime.spawn(relay::serve()));
        runtime.block_on(async {
            // Kept until the requests are done: then the reads that are left belong to nobody. A core that
            // cannot be attached reads by other means.
            let _attached = io.attach().inspect_err(|error| {
                tracing::warn!(%error, "a core reads without a ring of its own");
            });
            let deadline = async {
                given(drain.clone()).await;
                tokio::time::sleep(DRAIN).await;
            };
            tokio::select! {
                served = self.serve(listener, drain.clone()) => {
                    if let Err(error) = served {
                        tracing::error!(%error, "a core stopped serving");
                    }
                }
                () = deadline => tracing::warn!("requests under way were cut off at shutdown"),
            }
        });
        // Connections that are left are dropped without waiting for blocking work of their requests.
        runtime.shutdown_timeout(Duration::ZERO);
    }

    async fn serve(self, listener: TcpListener, drain: Signal) -> std::io::Result<()> {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let incoming = TcpIncoming::from(listener)
            .with_nodelay(Some(true))
            .with_keepalive(Some(KEEPALIVE_INTERVAL));
        let Core { services, streams, windows, door, .. } = self;
        let all = Arc::clone(door.all_connections());
        let mut incoming = door.connections(incoming).take_until(Box::pin(given(drain.clone())));
        let (tasks, transport) = (TokioExecutor::new(), transport(windows));
        // The core's own: each poll of a connection looks whether it was given.
        let (stop, stopping) = watch::channel(false);
        // Nothing is ever told but that all are over.
        let (any_is_served, is_served) = watch::channel(());
        while let Some(accepted) = incoming.next().await {
            let accepted = match accepted {
                Ok((stream, seat)) => {
                    end_when_full(&stream, KEEPALIVE_INTERVAL + KEEPALIVE_TIMEOUT);
                    Accepted::new(stream, seat, &streams, drain.clone())
                }
                Err(error) => {
                    tracing::debug!(%error, "a connection was not accepted");
                    continue;
                }
            };
            let connection = Arc::clone(accepted.connection());
            let front = Front { services: services.clone(), connection: Arc::clone(&connection) };
            let served = transport.serve_connection(TokioIo::new(accepted), front);
            let served = Serving::new(served, connection, Arc::clone(&all), stopping.clone());
            let is_served = is_served.clone();
            tasks.execute(async move {
                if let Err(error) = served.await {
                    tracing::debug!(%error, "a connection ended");
                }
                drop(is_served);
            });
        }
        // Nobody is to wait for an answer at a socket that nobody accepts from.
        drop((incoming, is_served));
        stop.send_replace(true);
        any_is_served.closed().await;
        Ok(())
    }
}

impl<S: Serves> Protocol for http2::Connection<TokioIo<Accepted>, Front<S>, TokioExecutor> {
    fn end(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

/// Has a connection end once its peer has taken nothing of what is sent for so long. Probes end one that is silent: where what was sent before lies in
/// their way, HTTP/2 waits for it for ever, with the message that it is in.
fn end_when_full(stream: &TcpStream, after: Duration) {
    let after_ms = u32::try_from(after.as_millis()).unwrap_or(u32::MAX);
    if let Err(error) = rustix::net::sockopt::set_tcp_user_timeout(stream, after_ms) {
        tracing::debug!(%error, "a connection may stay for long after its peer is gone");
    }
}

/// HTTP/2 as it is spoken on every connection.
fn transport(windows: Windows) -> http2::Builder<TokioExecutor> {
    let mut transport = http2::Builder::new(TokioExecutor::new());
    transport
        .timer(TokioTimer::new())
        .initial_stream_window_size(windows.stream_bytes)
        .initial_connection_window_size(windows.connection_bytes)
        .adaptive_window(false)
        .keep_alive_interval(Some(KEEPALIVE_INTERVAL))
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .max_header_list_size(HEADERS_BYTES_MAX)
        .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX)
        .max_pending_accept_reset_streams(Some(RESET_STREAMS_MAX))
        .max_local_error_reset_streams(Some(BAD_FRAMES_MAX))
        // No client of gRPC asks what time it is here.
        .auto_date_header(false);
    transport
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::Others;
    use crate::placement::Connections;
    use tepui_engine::io::{Env, IoMode, Spawner as _, ThreadSpawner};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tonic::service::Routes;
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_client::HealthClient;
    use tonic_health::pb::health_server::HealthServer;
    use tonic_health::server::{HealthReporter, HealthService};

    #[tokio::test]
    async fn cores_serve_until_they_are_told_to_drain() {
        let listeners = crate::listener::bind(([127, 0, 0, 1], 0).into(), 2).unwrap();
        let address = listeners[0].local_addr().unwrap();
        let health = HealthReporter::new();
        let env = Env::local(IoMode::Direct).unwrap();
        let (drain, draining) = watch::channel(false);
        let cores: Vec<_> = listeners
            .into_iter()
            .zip(Door::all(2, &Connections::new(100)))
            .map(|(listener, door)| {
                let service = HealthService::from_health_reporter(health.clone());
                let services = Others::new(Routes::new(HealthServer::new(service)));
                let drain = draining.clone();
                let io = Arc::clone(&env.io);
                let windows = Windows::within(1 << 20);
                let streams = Arc::new(Streams::new(1 << 20));
                let working = Arc::default();
                let core = Core { services, streams, windows, door, working };
                let runtime = build_core().unwrap();
                let work = move || core.run(runtime, listener, drain, io.as_ref());
                ThreadSpawner.spawn("core", Box::new(work)).unwrap()
            })
            .collect();
        let endpoint =
            tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap();
        // Several connections, so that both cores are likely to get one.
        for _ in 0..8 {
            let mut client = HealthClient::new(endpoint.connect().await.unwrap());
            let status = client.check(HealthCheckRequest::default()).await.unwrap();
            assert_eq!(status.into_inner().status, 1);
        }
        drain.send(true).unwrap();
        let joined = tokio::task::spawn_blocking(|| {
            for core in cores {
                core.join();
            }
        });
        joined.await.unwrap();
        assert!(endpoint.connect().await.is_err());
    }

    #[tokio::test]
    async fn a_connection_whose_peer_takes_nothing_that_is_sent_ends() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        end_when_full(&stream, Duration::from_millis(100));
        let lots = vec![0; 64 << 20];
        let error = stream.write_all(&lots).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut, "{error}");
        drop(peer);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_on_which_nobody_speaks_gives_its_place_to_one_on_which_somebody_does() {
        let listener = crate::listener::bind(([127, 0, 0, 1], 0).into(), 1).unwrap().remove(0);
        let address = listener.local_addr().unwrap();
        let connections = Connections::new(1);
        let service = HealthService::from_health_reporter(HealthReporter::new());
        let core = Core {
            services: Others::new(Routes::new(HealthServer::new(service))),
            streams: Arc::new(Streams::new(1 << 20)),
            windows: Windows::within(1 << 20),
            door: Door::all(1, &connections).remove(0),
            working: Arc::default(),
        };
        let speak = async {
            let mut silent = TcpStream::connect(address).await.unwrap();
            // Time stands still while there is something to do.
            while connections.figures().open == 0 {
                tokio::task::yield_now().await;
            }
            // Settings, which the server sends unasked, and then the end.
            let mut settings = Vec::new();
            let closed = silent.read_to_end(&mut settings);
            let closed = tokio::time::timeout(Duration::from_hours(1), closed).await;
            closed.expect("it is closed in time").unwrap();
            tokio::time::resume();
            let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}"));
            let mut client = HealthClient::new(endpoint.unwrap().connect().await.unwrap());
            client.check(HealthCheckRequest::default()).await.unwrap();
        };
        let (_drain, draining) = watch::channel(false);
        tokio::select! {
            () = speak => {}
            served = core.serve(listener, draining) => served.unwrap(),
        }
        let figures = connections.figures();
        assert_eq!((figures.silent, figures.refused), (1, 0));
    }

    #[test]
    fn windows_shrink_with_the_budget_and_keep_to_their_bounds() {
        let windows = |bytes| {
            let Windows { stream_bytes, connection_bytes } = Windows::within(bytes);
            (stream_bytes, connection_bytes)
        };
        assert_eq!(windows(0), (64 << 10, 1 << 20));
        assert_eq!(windows(64 << 20), (128 << 10, 2 << 20));
        assert_eq!(windows(u64::MAX), (1 << 20, CONNECTION_WINDOW_BYTES));
    }

    #[tokio::test]
    async fn a_signal_is_given_once_and_a_lost_sender_counts() {
        let (sender, signal) = watch::channel(false);
        sender.send(true).unwrap();
        given(signal.clone()).await;
        given(signal).await;
        let (sender, signal) = watch::channel(false);
        drop(sender);
        given(signal).await;
    }
}
