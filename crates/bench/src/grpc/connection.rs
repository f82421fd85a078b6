//! gRPC over one HTTP/2 connection: no balancing, no reconnects, no queue and no task between the caller and the stream, so that the
//! requests that a thread makes at one go leave in one write. A client that costs less leaves more of a shared machine to the
//! server under measurement.

use std::future::poll_fn;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use futures::FutureExt as _;
use h2::RecvStream;
use h2::client::{Builder, SendRequest};
use http::header::{CONTENT_TYPE, HeaderValue, TE};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Request, Uri};
use prost::Message;
use tonic::{Code, Status};

use crate::error::{Error, Result};

/// HTTP/2 windows, in bytes; small ones would measure the round trip.
const WINDOW_BYTES: u32 = 16 << 20;
/// Bytes before a message: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;
/// Largest message that is taken: servers keep responses under 4 MiB, single rows excepted.
const MESSAGE_BYTES_MAX: usize = 300 << 20;

/// A connection. Clones share it; it belongs to the runtime that it was opened on.
#[derive(Debug, Clone)]
pub struct Connection {
    sender: SendRequest<Bytes>,
    authority: Authority,
}

/// The messages of one answer as they come. Where it is dropped before its end, the call is cancelled.
#[derive(Debug)]
pub struct Answer {
    body: RecvStream,
    /// What has come of messages that begin in it.
    whole: Bytes,
    /// What has come of a message in several pieces, and behind it.
    pieces: BytesMut,
    /// The status came with the head: it is not in the trailers.
    status_has_come: bool,
}

/// A message with its prefix, as it is sent.
pub fn framed(message: &impl Message) -> Bytes {
    let len = message.encoded_len();
    let mut framed = BytesMut::with_capacity(PREFIX_BYTES + len);
    framed.put_u8(0);
    // A longer one is refused by the server, which says so.
    framed.put_u32(u32::try_from(len).unwrap_or(u32::MAX));
    message.encode_raw(&mut framed);
    framed.freeze()
}

fn broken(error: &dyn std::fmt::Display) -> Status {
    Status::unavailable(format!("connection: {error}"))
}

impl Connection {
    /// Calls a method by its path, such as `/google.bigtable.v2.Bigtable/ReadRows`; the error is what the server said in place of an
    /// answer, or what happened to the connection.
    pub async fn call(
        &mut self,
        method: &'static str,
        message: &impl Message,
    ) -> Result<Answer, Status> {
        self.send(method, framed(message)).await
    }

    /// Calls a method that answers with one message.
    pub async fn unary<M: Message + Default>(
        &mut self,
        method: &'static str,
        message: &impl Message,
    ) -> Result<M, Status> {
        let mut answer = self.call(method, message).await?;
        let first = answer.message().await?;
        let first = first.ok_or_else(|| Status::internal("an answer without a message"))?;
        if answer.message().await?.is_some() {
            return Err(Status::internal("an answer of more than one message"));
        }
        decode(first)
    }

    /// Calls a method with a message that is [framed] already.
    pub async fn send(&mut self, method: &'static str, framed: Bytes) -> Result<Answer, Status> {
        let mut uri = http::uri::Parts::default();
        uri.scheme = Some(Scheme::HTTP);
        uri.authority = Some(self.authority.clone());
        uri.path_and_query = Some(PathAndQuery::from_static(method));
        let uri = Uri::from_parts(uri).map_err(|error| broken(&error))?;
        let mut request = Request::new(());
        *request.method_mut() = http::Method::POST;
        *request.uri_mut() = uri;
        let headers = request.headers_mut();
        headers.insert(TE, HeaderValue::from_static("trailers"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        poll_fn(|context| self.sender.poll_ready(context)).await.map_err(|e| broken(&e))?;
        let (response, mut body) =
            self.sender.send_request(request, false).map_err(|e| broken(&e))?;
        body.send_data(framed, true).map_err(|e| broken(&e))?;
        let (head, body) = response.await.map_err(|e| broken(&e))?.into_parts();
        let status = Status::from_header_map(&head.headers);
        let status_has_come = status.is_some();
        match status {
            Some(status) if status.code() != Code::Ok => Err(status),
            None if head.status != http::StatusCode::OK => {
                Err(Status::unknown(format!("HTTP status {}", head.status)))
            }
            _ => Ok(Answer { body, whole: Bytes::new(), pieces: BytesMut::new(), status_has_come }),
        }
    }
}

/// A message of an answer.
pub fn decode<M: Message + Default>(message: Bytes) -> Result<M, Status> {
    M::decode(message).map_err(|error| Status::internal(format!("malformed answer: {error}")))
}

/// What the prefix says, with itself, where it has come.
fn framed_bytes(begun: &[u8]) -> Result<Option<usize>, Status> {
    let Some((prefix, _)) = begun.split_first_chunk::<PREFIX_BYTES>() else { return Ok(None) };
    let [compressed, len @ ..] = *prefix;
    let len = u32::from_be_bytes(len) as usize;
    if compressed != 0 {
        return Err(Status::internal("a compressed answer, which was not asked for"));
    }
    if len > MESSAGE_BYTES_MAX {
        return Err(Status::out_of_range(format!("an answer of {len} bytes")));
    }
    Ok(Some(PREFIX_BYTES + len))
}

impl Answer {
    /// The next message; `None` after the last one, where the server says that all went well.
    pub async fn message(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            if let Some(message) = self.next_that_has_come()? {
                return Ok(Some(message));
            }
            match self.body.data().await {
                Some(Ok(data)) => {
                    let release = self.body.flow_control().release_capacity(data.len());
                    release.map_err(|e| broken(&e))?;
                    self.take(data);
                }
                Some(Err(error)) => return Err(broken(&error)),
                None => return self.end().await.map(|()| None),
            }
        }
    }

    fn take(&mut self, data: Bytes) {
        if self.whole.is_empty() && self.pieces.is_empty() {
            self.whole = data;
        } else {
            self.pieces.extend_from_slice(&std::mem::take(&mut self.whole));
            self.pieces.extend_from_slice(&data);
        }
    }

    /// Most messages come in one piece, and are not copied.
    fn next_that_has_come(&mut self) -> Result<Option<Bytes>, Status> {
        let mut framed = if self.pieces.is_empty() {
            match framed_bytes(&self.whole)? {
                Some(len) if len <= self.whole.len() => self.whole.split_to(len),
                _ => return Ok(None),
            }
        } else {
            match framed_bytes(&self.pieces)? {
                Some(len) if len <= self.pieces.len() => self.pieces.split_to(len).freeze(),
                _ => return Ok(None),
            }
        };
        framed.advance(PREFIX_BYTES);
        Ok(Some(framed))
    }

    async fn end(&mut self) -> Result<(), Status> {
        if !self.whole.is_empty() || !self.pieces.is_empty() {
            return Err(Status::internal("an answer ends within a message"));
        }
        let trailers = self.body.trailers().await.map_err(|e| broken(&e))?;
        match trailers.as_ref().and_then(Status::from_header_map) {
            Some(status) if status.code() == Code::Ok => Ok(()),
            Some(status) => Err(status),
            None if self.status_has_come => Ok(()),
            None => Err(Status::unknown("an answer without a status")),
        }
    }
}

/// Where a server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// `HOST:PORT`.
    authority: Authority,
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
        let authority = authority.parse().map_err(|_| wrong("it must be HOST:PORT"))?;
        Ok(Self { authority })
    }

    /// Opens a connection, which is driven by the runtime that this is called on.
    pub async fn connect(&self) -> Result<Connection> {
        self.connect_with(WINDOW_BYTES, WINDOW_BYTES).await
    }

    /// The same with so many bytes under way in each answer, and in all of them together.
    pub async fn connect_with(&self, answer_bytes: u32, all_bytes: u32) -> Result<Connection> {
        let failed = |error: &dyn std::fmt::Display| {
            Error::failed(format!("cannot connect to {}: {error}", self.authority))
        };
        let address = self.authority.as_str();
        let stream = tokio::net::TcpStream::connect(address).await.map_err(|e| failed(&e))?;
        stream.set_nodelay(true).map_err(|e| failed(&e))?;
        let (sender, connection) = Builder::new()
            .initial_window_size(answer_bytes)
            .initial_connection_window_size(all_bytes)
            .enable_push(false)
            .handshake(stream)
            .await
            .map_err(|e| failed(&e))?;
        // What ends it shows as errors of the requests on it.
        let drive = connection.map(drop);
        #[expect(clippy::disallowed_methods, reason = "a client's runtime of one thread")]
        drop(tokio::spawn(drive));
        Ok(Connection { sender, authority: self.authority.clone() })
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.authority.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use http::{HeaderMap, Response};

    use super::*;
    use crate::network::runtime;

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

    fn status(code: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("grpc-status", code.parse().unwrap());
        headers.insert("grpc-message", "why".parse().unwrap());
        headers
    }

    /// What a server says to a call.
    #[derive(Default)]
    struct Script {
        http_status: http::StatusCode,
        head: HeaderMap,
        pieces: Vec<Bytes>,
        trailers: Option<HeaderMap>,
        /// In place of trailers.
        resets: bool,
    }

    /// The messages of an answer, to its end.
    async fn all(mut answer: Answer) -> Result<Vec<String>, Status> {
        let mut messages = Vec::new();
        while let Some(message) = answer.message().await? {
            messages.push(decode::<String>(message)?);
        }
        Ok(messages)
    }

    /// Calls a server that takes what it is sent and follows the script; the bytes that it was sent, and what it said.
    fn called(sent: &String, script: Script) -> (Bytes, Result<Vec<String>, Status>) {
        let (take, taken) = std::sync::mpsc::channel();
        let serve = async move |listener: tokio::net::TcpListener| {
            let (stream, _) = listener.accept().await.unwrap();
            let mut connection = h2::server::handshake(stream).await.unwrap();
            let (request, mut respond) = connection.accept().await.unwrap().unwrap();
            let answer = async move {
                let (head, mut body) = request.into_parts();
                assert_eq!(head.uri.path(), "/a.Service/Method");
                assert_eq!(head.headers["content-type"], "application/grpc");
                let mut all = BytesMut::new();
                while let Some(data) = body.data().await {
                    let data = data.unwrap();
                    body.flow_control().release_capacity(data.len()).unwrap();
                    all.extend_from_slice(&data);
                }
                take.send(all.freeze()).unwrap();
                let mut response = Response::new(());
                *response.status_mut() = script.http_status;
                *response.headers_mut() = script.head;
                let goes_on = script.trailers.is_some() || script.resets;
                let ends = script.pieces.is_empty() && !goes_on;
                let mut body = respond.send_response(response, ends).unwrap();
                let last = script.pieces.len();
                for (at, piece) in script.pieces.into_iter().enumerate() {
                    body.send_data(piece, at + 1 == last && !goes_on).unwrap();
                }
                if script.resets {
                    body.send_reset(h2::Reason::INTERNAL_ERROR);
                }
                if let Some(trailers) = script.trailers {
                    body.send_trailers(trailers).unwrap();
                }
            };
            // Until the client has gone.
            tokio::join!(answer, async { while connection.accept().await.is_some() {} });
        };
        let said = runtime().unwrap().block_on(async {
            let any = SocketAddr::from(([127, 0, 0, 1], 0));
            let listener = tokio::net::TcpListener::bind(any).await.unwrap();
            let endpoint = Endpoint::parse(&listener.local_addr().unwrap().to_string()).unwrap();
            let call = async {
                let mut connection = endpoint.connect().await.unwrap();
                all(connection.call("/a.Service/Method", sent).await?).await
            };
            tokio::join!(call, serve(listener)).0
        });
        (taken.recv().unwrap(), said)
    }

    #[test]
    fn messages_are_the_same_however_they_are_cut() {
        let long = "x".repeat(1_000);
        let messages = ["", "one", &long, "two"];
        let sent: Vec<u8> = messages.iter().flat_map(|m| framed(&(*m).to_owned())).collect();
        for piece in [1, 3, 7, 100, sent.len()] {
            let pieces = sent.chunks(piece).map(Bytes::copy_from_slice).collect();
            let script = Script { pieces, trailers: Some(status("0")), ..Script::default() };
            assert_eq!(called(&String::new(), script).1.unwrap(), messages, "pieces of {piece}");
        }
    }

    #[test]
    fn a_request_is_larger_than_a_window_of_the_server() {
        let large = "y".repeat(1 << 20);
        let script = Script { trailers: Some(status("0")), ..Script::default() };
        let (sent, said) = called(&large, script);
        assert!(sent == framed(&large), "{} bytes", sent.len());
        assert!(said.unwrap().is_empty());
    }

    #[test]
    fn an_answer_is_larger_than_the_windows_of_a_connection() {
        let large = "z".repeat(1 << 20);
        let pieces: Vec<_> = std::iter::repeat_n(framed(&large), 40).collect();
        let script = Script { pieces, trailers: Some(status("0")), ..Script::default() };
        let said = called(&String::new(), script).1.unwrap();
        assert!(said.len() == 40 && said.iter().all(|message| *message == large));
    }

    #[test]
    fn what_a_server_says_in_place_of_an_answer_or_behind_it_is_the_error() {
        let whole = framed(&"one".to_owned());
        let cut = whole.slice(..whole.len() - 1);
        let mut compressed = BytesMut::from(&whole[..]);
        compressed[0] = 1;
        let huge = Bytes::from_static(&[0, 0xFF, 0xFF, 0xFF, 0xFF]);
        let ok = || Some(status("0"));
        let said = Script::default;
        for (what, script, code) in [
            ("refused", Script { head: status("8"), ..said() }, Code::ResourceExhausted),
            (
                "refused late",
                Script { pieces: vec![whole.clone()], trailers: Some(status("8")), ..said() },
                Code::ResourceExhausted,
            ),
            ("no status", Script { pieces: vec![whole.clone()], ..said() }, Code::Unknown),
            ("cut off", Script { pieces: vec![cut], trailers: ok(), ..said() }, Code::Internal),
            (
                "compressed",
                Script { pieces: vec![compressed.freeze()], trailers: ok(), ..said() },
                Code::Internal,
            ),
            ("huge", Script { pieces: vec![huge], trailers: ok(), ..said() }, Code::OutOfRange),
            ("reset", Script { pieces: vec![whole], resets: true, ..said() }, Code::Unavailable),
            (
                "of a proxy",
                Script { http_status: http::StatusCode::BAD_GATEWAY, ..said() },
                Code::Unknown,
            ),
        ] {
            assert_eq!(called(&String::new(), script).1.unwrap_err().code(), code, "{what}");
        }
        let script = Script { head: status("0"), ..Script::default() };
        assert!(called(&String::new(), script).1.unwrap().is_empty());
    }
}
