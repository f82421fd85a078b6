//! The endpoint of metrics, plain HTTP/1.1 on an address of its own, on the thread of the chores:
//!
//! * `GET /metrics`: [`super::collect`].
//! * `GET /health`: 200 while reads and writes are taken, 503 with the reason where the server is read-only.
//!
//! `HEAD` is answered as `GET` is, without the text. A connection has one answer, and a time for it.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use http::{Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tepui_engine::db::Health;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
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

/// The place that a connection has among those that are there.
#[derive(Debug, Default)]
struct Place {
    has_asked: AtomicBool,
    is_given_up: Notify,
}

/// Takes the place of the connection that has asked for nothing for longest, or else of the oldest: whoever comes last is answered, and a
/// check of health does not wait for those that only connect.
fn give_up_one(places: &mut Vec<Arc<Place>>) {
    let idle = places.iter().position(|place| !place.has_asked.load(Ordering::Relaxed));
    places.remove(idle.unwrap_or(0)).is_given_up.notify_one();
    tracing::debug!("a connection for metrics had to make room for another");
}

/// Answers what comes over the connections that are accepted, for ever.
async fn serve_each<S: AsyncRead + AsyncWrite + Unpin>(
    accept: impl AsyncFn() -> io::Result<S>,
    answer: impl Fn(&Request<Incoming>) -> Response<String>,
) {
    let mut connections = FuturesUnordered::new();
    // Oldest first.
    let mut places = Vec::new();
    let mut paused_until = Instant::now();
    loop {
        let accepted = async {
            tokio::time::sleep_until(paused_until).await;
            accept().await
        };
        tokio::select! {
            // First those that are there: one that has to make room is gone before another comes, and one whose request has come has asked.
            biased;
            Some(left) = connections.next() => places.retain(|place| !Arc::ptr_eq(place, &left)),
            accepted = accepted => match accepted {
                Ok(stream) => {
                    if places.len() >= METRICS_CONNECTIONS_MAX {
                        give_up_one(&mut places);
                    }
                    let place = Arc::new(Place::default());
                    places.push(Arc::clone(&place));
                    connections.push(serve_one(stream, &answer, place));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection for metrics");
                    // Out of descriptors, mostly: some are free in a moment, or in none.
                    paused_until = Instant::now() + METRICS_ACCEPT_PAUSE;
                }
            },
        }
    }
}

async fn serve_one(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    answer: impl Fn(&Request<Incoming>) -> Response<String>,
    place: Arc<Place>,
) -> Arc<Place> {
    let service = service_fn(async |request| {
        place.has_asked.store(true, Ordering::Relaxed);
        Ok::<_, Infallible>(answer(&request))
    });
    let served = hyper::server::conn::http1::Builder::new()
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        served = tokio::time::timeout(METRICS_TIMEOUT, served) => match served {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "a connection for metrics ended"),
            Err(_) => tracing::debug!("a connection for metrics took too long"),
        },
        () = place.is_given_up.notified() => {}
    }
    place
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
    async fn whoever_asks_last_is_answered_however_many_do_not_ask_or_read_their_answers() {
        for asks in [&b""[..], &ASK.repeat(20)] {
            let (mut others, mut accepted) = (Vec::new(), Vec::new());
            for _ in 0..3 * METRICS_CONNECTIONS_MAX {
                let (mut client, stream) = tokio::io::duplex(ROOM);
                // One request after the other, before any was answered.
                client.write_all(asks).await.unwrap();
                others.push(client);
                accepted.push(Ok(stream));
            }
            let (client, stream) = tokio::io::duplex(ROOM);
            accepted.push(Ok(stream));
            let took = serve_while(accepted, ask(client)).await;
            assert_eq!(took, Duration::ZERO, "after {} bytes of each", asks.len());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_scrape_under_way_does_not_make_room_for_those_who_do_not_ask() {
        let (mut scraper, stream) = tokio::io::duplex(ROOM);
        scraper.write_all(ASK).await.unwrap();
        let mut accepted = vec![Ok(stream)];
        let mut idle = Vec::new();
        for _ in 0..3 * METRICS_CONNECTIONS_MAX {
            let (client, stream) = tokio::io::duplex(ROOM);
            idle.push(client);
            accepted.push(Ok(stream));
        }
        let (last, stream) = tokio::io::duplex(ROOM);
        accepted.push(Ok(stream));
        let answer = serve_while(accepted, async {
            ask(last).await;
            let mut answer = String::new();
            scraper.read_to_string(&mut answer).await.unwrap();
            answer
        });
        assert_eq!(answer.await.lines().last().map(str::len), Some(64 << 10));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_its_answer_is_left_after_a_while() {
        let (mut client, stream) = tokio::io::duplex(ROOM);
        client.write_all(ASK).await.unwrap();
        let left = async {
            tokio::time::sleep(2 * METRICS_TIMEOUT).await;
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).await.unwrap();
            answer.len()
        };
        let taken = serve_while([Ok(stream)], left).await;
        assert!(taken <= ROOM, "{taken}");
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
