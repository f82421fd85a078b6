//! Services that pass no gate, since they are to answer when the memory for requests is full: health and reflection. Their requests are a name,
//! and nobody counts them; so they keep little, and what of it is not complete not for long.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::{BoxFuture, Either, Fuse};
use http::Uri;
use http_body::{Body, Frame, SizeHint};
use hyper::service::Service;
use tepui_bigtable::frame::{self, HEADER_BYTES};
use tokio::time::Sleep;
use tonic::Status;

use super::loose::Loose;
use super::{Arrived, Connection, Inbound};
use crate::grpc;
use crate::limits::{REFLECTION_QUIET_MAX, REQUEST_BODY_PAUSE};
use crate::runtime::{Signal, given};
use crate::status::from_error;

/// How the paths of services begin whose requests are streams: they have no end while their client asks more.
pub const STREAMS: &str = "/grpc.reflection.";

/// A service beside the gate.
#[derive(Debug, Clone)]
pub struct Ungated<S> {
    inner: S,
    draining: Signal,
}

impl<S> Ungated<S> {
    /// Serves it. Streams end once `draining` is given, or they were quiet for [`REFLECTION_QUIET_MAX`].
    pub fn new(inner: S, draining: Signal) -> Self {
        Self { inner, draining }
    }
}

impl<S, B, R> Service<http::Request<Arrived<B>>> for Ungated<S>
where
    B: Inbound,
    S: Service<
            http::Request<Arrived<TimelyBody<B>>>,
            Response = http::Response<R>,
            Error = Infallible,
        >,
    R: Default,
{
    type Response = S::Response;
    type Error = Infallible;
    type Future = Either<Ready<Result<S::Response, Infallible>>, S::Future>;

    fn call(&self, request: http::Request<Arrived<B>>) -> Self::Future {
        if let Some(refusal) = grpc::refusal(&request) {
            return Either::Left(ready(Ok(refusal)));
        }
        let (mut head, Arrived { body, connection }) = request.into_parts();
        let end = || given(self.draining.clone()).boxed().fuse();
        let end = head.uri.path().starts_with(STREAMS).then(end);
        head.headers = grpc::kept(head.headers, grpc::bytes_of(&head.uri));
        // A copy, which keeps nothing of what came with it.
        head.uri = head.uri.path().parse::<Uri>().unwrap_or_default();
        let body = TimelyBody::new(body, end, Arc::clone(&connection));
        let arrived = Arrived { body, connection };
        Either::Right(self.inner.call(http::Request::from_parts(head, arrived)))
    }
}

/// The body of a request of which nothing stays incomplete for longer than [`REQUEST_BODY_PAUSE`]: all of it, or of a stream a message
/// that has begun. A stream ends where it is quiet between two messages for [`REFLECTION_QUIET_MAX`].
pub struct TimelyBody<B> {
    inner: B,
    connection: Arc<Connection>,
    stream: Option<Stream>,
    /// What it counts as while nothing has come of it, or of a stream's next message no more than a part.
    head: Option<Loose>,
    has_begun: bool,
    /// Since something had to be waited for: the rest of what is not complete, or between messages for one that begins.
    pause: Option<Pin<Box<Sleep>>>,
}

/// A stream of messages.
struct Stream {
    place: Place,
    /// When it ends between two messages.
    end: Fuse<BoxFuture<'static, ()>>,
}

/// Where in a stream of messages the next byte belongs.
#[derive(Debug, Default)]
struct Place {
    /// What has come of a message's header.
    header: [u8; HEADER_BYTES],
    header_len: usize,
    /// Bytes of the message that have not come, once the header has.
    left: usize,
}

impl Place {
    fn is_between_messages(&self) -> bool {
        self.header_len == 0
    }

    /// Passes these bytes. Returns whether a message ended among them, or began with them.
    fn pass(&mut self, mut bytes: &[u8]) -> bool {
        let mut has_moved = self.is_between_messages() && !bytes.is_empty();
        while !bytes.is_empty() {
            let missing = HEADER_BYTES - self.header_len;
            let wanted = if missing > 0 { missing } else { self.left };
            let (part, rest) = bytes.split_at(wanted.min(bytes.len()));
            bytes = rest;
            if missing == 0 {
                self.left -= part.len();
            } else if self.add_to_header(part) {
                self.left = frame::message_bytes(self.header) as usize;
            }
            if self.header_len == HEADER_BYTES && self.left == 0 {
                self.header_len = 0;
                has_moved = true;
            }
        }
        has_moved
    }

    /// Takes a part of a header, which is no longer than what is missing. Returns whether that is all of it.
    fn add_to_header(&mut self, part: &[u8]) -> bool {
        let end = self.header_len + part.len();
        if let Some(to) = self.header.get_mut(self.header_len..end) {
            to.copy_from_slice(part);
        }
        self.header_len = end;
        end == HEADER_BYTES
    }
}

impl<B> TimelyBody<B> {
    /// A body that is one message, or with an `end` a stream of them.
    fn new(
        inner: B,
        end: Option<Fuse<BoxFuture<'static, ()>>>,
        connection: Arc<Connection>,
    ) -> Self {
        let stream = end.map(|end| Stream { place: Place::default(), end });
        Self { inner, connection, stream, head: None, has_begun: false, pause: None }
    }

    /// What comes where nothing has come.
    fn poll_end(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(Stream { place, end }) = &mut self.stream
            && place.is_between_messages()
        {
            let quiet = || Box::pin(tokio::time::sleep(REFLECTION_QUIET_MAX));
            if end.poll_unpin(context).is_pending() {
                ready!(self.pause.get_or_insert_with(quiet).as_mut().poll(context));
            }
            return Poll::Ready(None);
        }
        if self.head.is_none() && (self.stream.is_some() || !self.has_begun) {
            match self.connection.loose_head() {
                Ok(head) => self.head = Some(head),
                Err(error) => return Poll::Ready(Some(Err(from_error(&error)))),
            }
        }
        let pause = || Box::pin(tokio::time::sleep(REQUEST_BODY_PAUSE));
        ready!(self.pause.get_or_insert_with(pause).as_mut().poll(context));
        let what = "the rest of the request did not come";
        Poll::Ready(Some(Err(Status::deadline_exceeded(what))))
    }
}

impl<B: Inbound> Body for TimelyBody<B> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Poll::Ready(polled) = Pin::new(&mut self.inner).poll_frame(context) else {
            return self.poll_end(context);
        };
        if let Some(Ok(frame)) = &polled
            && let Some(bytes) = frame.data_ref()
        {
            self.has_begun = true;
            let stream = self.stream.as_mut();
            match stream.map(|stream| stream.place.pass(bytes)) {
                Some(true) => (self.pause, self.head) = (None, None),
                Some(false) => {}
                // Its end may come by itself, and is waited for.
                None => self.head = None,
            }
        }
        let told = |error: B::Error| Status::from_error(error.into());
        Poll::Ready(polled.map(|frame| frame.map_err(told)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::Streams;
    use crate::limits::HEADERS_KEPT_BYTES_MAX;
    use http_body_util::{BodyExt as _, StreamBody};
    use std::time::Duration;
    use tokio::sync::{mpsc, watch};
    use tokio::time::Instant;
    use tonic::Code;

    type Part = Result<Frame<Bytes>, Status>;

    /// A body whose parts are sent, and which is never said to be all, or a stream until the signal is given.
    fn sent(end: Option<Signal>) -> (mpsc::UnboundedSender<Part>, TimelyBody<impl Inbound>) {
        let (send, mut parts) = mpsc::unbounded_channel();
        let parts = futures::stream::poll_fn(move |context| parts.poll_recv(context));
        let end = end.map(|end| given(end).boxed().fuse());
        let connection = Arc::new(Streams::new(1 << 20)).connection();
        (send, TimelyBody::new(StreamBody::new(parts), end, connection))
    }

    fn part(bytes: &'static [u8]) -> Part {
        Ok(Frame::data(Bytes::from_static(bytes)))
    }

    /// Answers with what it knows of a request.
    struct Telling;

    impl<B> Service<http::Request<B>> for Telling {
        type Response = http::Response<String>;
        type Error = Infallible;
        type Future = Ready<Result<Self::Response, Infallible>>;

        fn call(&self, request: http::Request<B>) -> Self::Future {
            let told = format!("{} {:?}", request.uri(), request.headers());
            ready(Ok(http::Response::new(told)))
        }
    }

    #[tokio::test]
    async fn little_is_kept_of_what_comes_with_a_request() {
        let ungated = Ungated::new(Telling, watch::channel(false).1);
        let long = "x".repeat(HEADERS_KEPT_BYTES_MAX);
        for (path, value, kept) in [
            ("/a.B/C", "short", r#"/a.B/C {"content-type": "application/grpc", "name": "short"}"#),
            ("/a.B/C", &long, "/a.B/C {}"),
            (&format!("/a.B/C?{long}"), "short", "/a.B/C {}"),
        ] {
            let connection = Arc::new(Streams::new(1 << 20)).connection();
            let body = StreamBody::new(futures::stream::empty::<Part>());
            let request = http::Request::post(path)
                .header("content-type", "application/grpc")
                .header("name", value)
                .body(Arrived { body, connection });
            assert_eq!(ungated.call(request.unwrap()).await.unwrap().into_body(), kept);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_not_complete_in_time_is_ended_however_often_a_byte_of_it_comes() {
        for (is_stream, parts) in [
            (false, &[][..]),
            (false, &[b"\0\0\0\0\0" as &[u8]]),
            (false, &[b"\0", b"\0", b"\0", b"\0", b"\x02"]),
            (true, &[b"\0", b"\0", b"\0", b"\0", b"\x02"]),
            (true, &[b"\0\0\0\0\x01ab\0\0\0", b"\x02", b"a"]),
        ] {
            let (_drain, draining) = watch::channel(false);
            let (send, body) = sent(is_stream.then_some(draining));
            let began = Instant::now();
            let drip = async {
                for bytes in parts {
                    send.send(part(bytes)).unwrap();
                    tokio::time::sleep(REQUEST_BODY_PAUSE / 6).await;
                }
            };
            let (ended, ()) = tokio::join!(body.collect(), drip);
            assert_eq!(ended.unwrap_err().code(), Code::DeadlineExceeded);
            let late = began.elapsed().saturating_sub(REQUEST_BODY_PAUSE);
            assert!(late <= Duration::from_millis(1), "{parts:?}: {late:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_is_quiet_between_messages_ends_in_time() {
        for (parts, since) in [
            (&[][..], 0),
            // What has no byte is no message.
            (&[b"" as &[u8], b"", b""], 0),
            (&[b"", b"\0\0\0\0\0", b"", b""], 1),
            (&[b"", b"\0\0\0", b"\0\x02ab", b"\0\0\0\0\x01c"], 3),
        ] {
            let (_drain, draining) = watch::channel(false);
            let (send, mut body) = sent(Some(draining));
            let began = Instant::now();
            for bytes in parts {
                send.send(part(bytes)).unwrap();
                assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), bytes);
                let waits = tokio::time::timeout(REQUEST_BODY_PAUSE / 2, body.frame()).await;
                assert!(waits.is_err(), "{bytes:?}");
            }
            let end = tokio::time::timeout(2 * REFLECTION_QUIET_MAX, body.frame()).await;
            assert!(end.unwrap().is_none(), "an end and no failure");
            let due = since * REQUEST_BODY_PAUSE / 2 + REFLECTION_QUIET_MAX;
            let late = began.elapsed().checked_sub(due).unwrap();
            assert!(late <= Duration::from_millis(10), "{parts:?}: {late:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_may_be_quiet_between_messages_until_the_server_stops() {
        let (drain, draining) = watch::channel(false);
        let (send, mut body) = sent(Some(draining));
        for bytes in [b"\0\0\0\0\x02a" as &[u8], b"b\0\0\0\0", b"\0", b"\0\0\0\0\x01c"] {
            send.send(part(bytes)).unwrap();
            assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), bytes);
            let waits = tokio::time::timeout(REQUEST_BODY_PAUSE / 2, body.frame()).await;
            assert!(waits.is_err(), "{bytes:?}");
        }
        let waits = tokio::time::timeout(REFLECTION_QUIET_MAX * 5 / 6, body.frame()).await;
        assert!(waits.is_err(), "it goes on");
        send.send(part(b"\0\0\0\0\0")).unwrap();
        drain.send(true).unwrap();
        assert!(body.frame().await.unwrap().is_ok(), "what has come is not lost");
        assert!(body.frame().await.is_none());
    }
}
