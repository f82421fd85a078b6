//! The endpoint of metrics, plain HTTP/1.1 on an address of its own, on the thread of the chores:
//!
//! * `GET /metrics`: [`super::collect`].
//! * `GET /health`: 200 while reads and writes are taken, 503 with the reason where the server is read-only.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use http::{Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tepui_engine::db::Health;
use tokio::net::TcpStream;

use super::collect::{self, Sources};
use crate::limits::{METRICS_CONNECTIONS_MAX, METRICS_HEADERS_TIMEOUT};

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
    let mut connections = FuturesUnordered::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < METRICS_CONNECTIONS_MAX => {
                match accepted {
                    Ok((stream, _)) => connections.push(connection(stream, sources)),
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection for metrics");
                        // Out of descriptors, mostly: some are free in a moment, or in none.
                        tokio::time::sleep(METRICS_HEADERS_TIMEOUT).await;
                    }
                }
            }
            Some(()) = connections.next() => {}
        }
    }
}

async fn connection(stream: TcpStream, sources: &Sources) {
    let service =
        service_fn(|request| async move { Ok::<_, Infallible>(answer(&request, sources)) });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(METRICS_HEADERS_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = served.await {
        tracing::debug!(%error, "a connection for metrics ended");
    }
}

fn answer(request: &Request<Incoming>, sources: &Sources) -> Response<String> {
    if request.method() != Method::GET {
        return response(StatusCode::METHOD_NOT_ALLOWED, "text/plain", "GET only\n".to_owned());
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
            Health::ReadOnly(reason) | Health::Held(reason) => {
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
