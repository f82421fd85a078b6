//! One HTTP/2 connection as a gRPC channel: no balancing, no reconnects, no queue between the caller and the
//! stream. A client that costs less leaves more of a shared machine to the server under measurement.

use std::task::{Context, Poll};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::transport::Uri;

use crate::error::{Error, Result};

/// HTTP/2 windows, in bytes; small ones would measure the round trip.
const WINDOW_BYTES: u32 = 16 << 20;

/// A connection. Clones share it; it belongs to the runtime that it was opened on.
#[derive(Debug, Clone)]
pub struct Connection {
    sender: SendRequest<Body>,
}

/// Where a server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// `HOST:PORT`.
    authority: String,
    origin: Uri,
}

impl Endpoint {
    /// Reads `HOST:PORT`, with or without `http://`.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = |why: &str| Error::failed(format!("endpoint {text:?}: {why}"));
        if text.starts_with("https://") {
            return Err(wrong("only plaintext endpoints can be measured"));
        }
        let authority = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
        let port = authority.rsplit_once(':').map(|(host, port)| (host, port.parse::<u16>()));
        if !matches!(port, Some((host, Ok(1..))) if !host.is_empty()) {
            return Err(wrong("it must be HOST:PORT"));
        }
        let origin: Uri =
            format!("http://{authority}").parse().map_err(|_| wrong("it must be HOST:PORT"))?;
        Ok(Self { authority: authority.to_owned(), origin })
    }

    /// For the clients of the API.
    pub fn origin(&self) -> Uri {
        self.origin.clone()
    }

    /// Opens a connection, which is driven by the runtime that this is called on.
    pub async fn connect(&self) -> Result<Connection> {
        let failed = |error: &dyn std::fmt::Display| {
            Error::failed(format!("cannot connect to {}: {error}", self.authority))
        };
        let stream =
            tokio::net::TcpStream::connect(&self.authority).await.map_err(|e| failed(&e))?;
        stream.set_nodelay(true).map_err(|e| failed(&e))?;
        let (sender, connection) = Builder::new(TokioExecutor::new())
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|e| failed(&e))?;
        // What ends it shows as errors of the requests on it.
        let drive = connection.map(drop);
        #[expect(clippy::disallowed_methods, reason = "a client's runtime of one thread")]
        drop(tokio::spawn(drive));
        Ok(Connection { sender })
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.authority)
    }
}

impl Service<http::Request<Body>> for Connection {
    type Response = http::Response<Incoming>;
    type Error = hyper::Error;
    type Future = BoxFuture<'static, Result<Self::Response, hyper::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.sender.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.sender.send_request(request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_hosts_with_ports() {
        for good in ["localhost:8086", "http://127.0.0.1:1", "[::1]:8086", "http://h:80/"] {
            assert!(Endpoint::parse(good).is_ok(), "{good}");
        }
        for (bad, word) in [
            ("", "HOST:PORT"),
            ("localhost", "HOST:PORT"),
            (":80", "HOST:PORT"),
            ("h:0", "HOST:PORT"),
            ("h:http", "HOST:PORT"),
            ("a b:1", "HOST:PORT"),
            ("https://h:1", "plaintext"),
        ] {
            let error = Endpoint::parse(bad).unwrap_err().to_string();
            assert!(error.contains(word), "{bad}: {error}");
        }
    }
}
