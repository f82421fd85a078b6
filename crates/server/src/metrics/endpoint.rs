//! The endpoint of metrics, plain HTTP/1.1 on an address of its own, on the thread of the chores:
//!
//! * `GET /metrics`: [`super::collect`].
//! * `GET /health`: 200 while reads and writes are taken, 503 with the reason where the server is read-only.
//!
//! `HEAD` is answered as `GET` is, without the text. A connection has one answer, and a time for it.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use http::{Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tepui_engine::db::Health;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

use super::collect::{self, Sources};
use crate::limits::{METRICS_ACCEPT_PAUSE, METRICS_CONNECTIONS_MAX, METRICS_TIMEOUT};

/// What OpenMetrics calls its text.
const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Binds the endpoint.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Answers scrapes, until it is dropped. A failure to accept is logged, and the next is waited for.
pub async fn serve(listener: TcpListener, sources: &Sources) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "cannot serve metrics"),
    };
    let accept = async || Ok(listener.accept().await?.0);
    serve_each(accept, |request| answer(request, sources)).await;
}

/// Answers what comes over the connections that are accepted, for ever.
async fn serve_each<S: AsyncRead + AsyncWrite + Unpin>(
    accept: impl AsyncFn() -> io::Result<S>,
    answer: impl Fn(&Request<Incoming>) -> Response<String>,
) {
    let mut connections = FuturesUnordered::new();
    let mut paused_until = Instant::now();
    loop {
        let accepted = async {
            tokio::time::sleep_until(paused_until).await;
            accept().await
        };
        tokio::select! {
            accepted = accepted, if connections.len() < METRICS_CONNECTIONS_MAX => match accepted {
                Ok(stream) => connections.push(serve_one(stream, &answer)),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection for metrics");
                    // Out of descriptors, mostly: some are free in a moment, or in none.
                    paused_until = Instant::now() + METRICS_ACCEPT_PAUSE;
                }
            },
            Some(()) = connections.next() => {}
        }
    }
}

async fn serve_one(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    answer: impl Fn(&Request<Incoming>) -> Response<String>,
) {
    let service = service_fn(async |request| Ok::<_, Infallible>(answer(&request)));
    let served = hyper::server::conn::http1::Builder::new()
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(METRICS_TIMEOUT, served).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a connection for metrics ended"),
        Err(_) => tracing::debug!("a connection for metrics took too long"),
    }
}

fn answer(request: &Request<Incoming>, sources: &Sources) -> Response<String> {
    // Of an answer to HEAD no body is sent.
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let text = "GET and HEAD only\n".to_owned();
        let mut refusal = response(StatusCode::METHOD_NOT_ALLOWED, "text/plain", text);
        refusal.headers_mut().insert(header::ALLOW, header::HeaderValue::from_static("GET, HEAD"));
        return refusal;
    }
    match request.uri().path() {
        "/metrics" => match collect::text(sources) {
            Ok(text) => response(StatusCode::OK, METRICS_TYPE, text),
            Err(error) => {
                response(StatusCode::INTERNAL_SERVER_ERROR, "text/plain", format!("{error}\n"))
            }
        },
        "/health" => match sources.engine.health() {
            Health::Serving => response(StatusCode::OK, "text/plain", "serving\n".to_owned()),
            Health::ReadOnly(reason) | Health::Held { reason, .. } => {
                response(StatusCode::SERVICE_UNAVAILABLE, "text/plain", format!("{reason}\n"))
            }
        },
        _ => response(StatusCode::NOT_FOUND, "text/plain", "/metrics or /health\n".to_owned()),
    }
}

fn response(status: StatusCode, content_type: &'static str, text: String) -> Response<String> {
    let mut response = Response::new(text);
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, header::HeaderValue::from_static(content_type));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::collections::VecDeque;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

    /// Bytes on their way that a connection has room for: fewer than of an answer.
    const ROOM: usize = 4 << 10;

    const ASK: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";

    /// Serves these connections, with answers of 64 KiB, for as long as the clients take.
    async fn serve_while<T>(
        accepted: impl IntoIterator<Item = io::Result<DuplexStream>>,
        clients: impl Future<Output = T>,
    ) -> T {
        let accepted: RefCell<VecDeque<_>> = RefCell::new(accepted.into_iter().collect());
        let accept = async || {
            let next = accepted.borrow_mut().pop_front();
            match next {
                Some(accepted) => accepted,
                None => std::future::pending().await,
            }
        };
        let answer = |_: &_| response(StatusCode::OK, METRICS_TYPE, "x".repeat(64 << 10));
        tokio::select! {
            () = serve_each(accept, answer) => unreachable!("it serves for ever"),
            done = clients => done,
        }
    }

    /// Asks, and reads to the end of the connection; how long it took.
    async fn ask(mut client: DuplexStream) -> Duration {
        let began = Instant::now();
        client.write_all(ASK).await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn clients_that_do_not_read_their_answers_do_not_keep_others_out_for_good() {
        let (mut unread, mut accepted) = (Vec::new(), Vec::new());
        for _ in 0..METRICS_CONNECTIONS_MAX {
            let (mut client, stream) = tokio::io::duplex(ROOM);
            // One request after the other, before any was answered.
            client.write_all(&ASK.repeat(20)).await.unwrap();
            unread.push(client);
            accepted.push(Ok(stream));
        }
        let (client, stream) = tokio::io::duplex(ROOM);
        accepted.push(Ok(stream));
        let asked = tokio::time::timeout(10 * METRICS_TIMEOUT, ask(client));
        let took = serve_while(accepted, asked).await.expect("it has its turn");
        assert_eq!(took.as_secs(), METRICS_TIMEOUT.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn while_no_connection_can_be_accepted_those_that_are_there_are_answered() {
        let (first, stream_of_first) = tokio::io::duplex(ROOM);
        let (second, stream_of_second) = tokio::io::duplex(ROOM);
        let exhausted = io::Error::from(rustix::io::Errno::MFILE);
        let accepted = [Ok(stream_of_first), Err(exhausted), Ok(stream_of_second)];
        let asked = async { futures::join!(ask(first), ask(second)) };
        let (first, second) = serve_while(accepted, asked).await;
        assert_eq!(first, Duration::ZERO);
        assert_eq!(second.as_secs(), METRICS_ACCEPT_PAUSE.as_secs());
    }
}
