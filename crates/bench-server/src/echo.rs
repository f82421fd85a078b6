//! What gRPC costs without a database: a service of tonic's with one method that streams one message back, on the runtimes, sockets,
//! transport and limits of Tepui's server. Requests and responses are those of `ReadRows` of one row, byte for byte.

use std::future::{Future, Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tepui_bench::grpc::ask::FAMILY;
use tepui_bench::grpc::connection::Endpoint;
use tepui_bench::{Dataset, Error, Result};
use tepui_engine::io::{Env, IoMode, JoinHandle};
use tepui_server::admission::Streams;
use tepui_server::api::v2;
use tepui_server::api::v2::read_rows_response::CellChunk;
use tepui_server::api::v2::read_rows_response::cell_chunk::RowStatus;
use tepui_server::dispatch::Others;
use tepui_server::listener;
use tepui_server::placement::{Connections, Door};
use tepui_server::runtime::{self, Core, Windows};
use tokio::sync::watch;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::{Grpc, NamedService};
use tonic::service::Routes;
use tonic::{Request, Response, Status};

/// What the names of its threads start with.
pub const THREADS: &str = "echo-";

/// What requests and answers may take on their way, in bytes: more than the clients of a benchmark ask for.
const BUFFERS_BYTES: u64 = 1 << 30;

type Stream = futures::stream::Once<Ready<Result<v2::ReadRowsResponse, Status>>>;

/// Answers every request with the same message.
#[derive(Debug, Clone)]
struct Echo(Arc<v2::ReadRowsResponse>);

impl Service<Request<v2::ReadRowsRequest>> for Echo {
    type Response = Response<Stream>;
    type Error = Status;
    type Future = Ready<Result<Self::Response, Status>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<v2::ReadRowsRequest>) -> Self::Future {
        let message = v2::ReadRowsResponse::clone(&self.0);
        ready(Ok(Response::new(futures::stream::once(ready(Ok(message))))))
    }
}

impl NamedService for Echo {
    const NAME: &'static str = "google.bigtable.v2.Bigtable";
}

impl Service<http::Request<Body>> for Echo {
    type Response = http::Response<Body>;
    type Error = std::convert::Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let echo = self.clone();
        Box::pin(async move {
            let mut grpc = Grpc::new(tonic_prost::ProstCodec::default());
            Ok(grpc.server_streaming(echo, request).await)
        })
    }
}

/// The response to a read of one row.
pub fn message(dataset: &Dataset, row: u64) -> v2::ReadRowsResponse {
    let mut columns: Vec<(Vec<u8>, u32)> =
        (0..dataset.columns).map(|column| (Dataset::qualifier(column), column)).collect();
    columns.sort();
    let last = columns.len().saturating_sub(1);
    let chunk = |(at, (qualifier, column)): (usize, (Vec<u8>, u32))| CellChunk {
        row_key: if at == 0 { dataset.key(row).into() } else { bytes::Bytes::new() },
        family_name: (at == 0).then(|| FAMILY.to_owned()),
        qualifier: Some(qualifier),
        timestamp_micros: tepui_bench::dataset::TIMESTAMP_MICROS,
        value: dataset.value(row, column).into(),
        row_status: (at == last).then_some(RowStatus::CommitRow(true)),
        ..CellChunk::default()
    };
    let chunks = columns.into_iter().enumerate().map(chunk).collect();
    v2::ReadRowsResponse { chunks, ..Default::default() }
}

/// A server that is running; it ends when it is dropped.
pub struct EchoServer {
    address: std::net::SocketAddr,
    drain: watch::Sender<bool>,
    threads: Vec<Box<dyn JoinHandle>>,
}

impl EchoServer {
    /// Starts a server that answers with a message, on so many cores.
    pub fn start(message: v2::ReadRowsResponse, cores: usize) -> Result<Self> {
        let failed = |error| Error::failed(format!("echo server: {error}"));
        let env = Env::local(IoMode::Buffered)?;
        let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
        let listeners = listener::bind(any, cores).map_err(failed)?;
        let address = match listeners.first() {
            Some(first) => first.local_addr().map_err(failed)?,
            None => return Err(Error::failed("echo server: no core to listen on")),
        };
        let (drain, draining) = watch::channel(false);
        let echo = Echo(Arc::new(message));
        let mut threads = Vec::new();
        let doors = Door::all(listeners.len(), &Connections::new(usize::MAX));
        for (index, (listener, door)) in listeners.into_iter().zip(doors).enumerate() {
            let services = Others::new(Routes::new(echo.clone()));
            let (io, draining) = (Arc::clone(&env.io), draining.clone());
            let streams = Arc::new(Streams::within(BUFFERS_BYTES));
            let windows = Windows::within(BUFFERS_BYTES);
            let core = Core { services, streams, windows, door, working: Arc::default() };
            let runtime = runtime::build_core().map_err(failed)?;
            let work = move || core.run(runtime, listener, draining, io.as_ref());
            threads.push(env.spawner.spawn(&format!("{THREADS}{index}"), Box::new(work))?);
        }
        Ok(Self { address, drain, threads })
    }

    /// Where it listens.
    pub fn endpoint(&self) -> Result<Endpoint> {
        Endpoint::parse(&self.address.to_string())
    }
}

impl Drop for EchoServer {
    fn drop(&mut self) {
        // Nobody listening means that its threads are gone.
        let _ = self.drain.send(true);
        for thread in self.threads.drain(..) {
            thread.join();
        }
    }
}
