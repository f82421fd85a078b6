//! gRPC's form of calls over HTTP/2: one message comes in, and one or a stream of them goes out.
//!
//! ```text
//! request    headers  frame                                   end
//! answer     headers  frame  frame  ..                        trailers: grpc-status
//! refused    headers: grpc-status                             end
//! ```
//!
//! The library that the transport is of (tonic) has a server for this too, which takes every message through a buffer that
//! begins with 8 KiB and grows by doubling, on both ways. Here a request is in as much memory as it takes, and
//! a message is sent from the memory that it was made in. `build.rs` generates the dispatch of each service, which is in terms of what is
//! here.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderValue, header};
use http_body::{Body, Frame};
use pin_project_lite::pin_project;
use prost::Message;
use tepui_bigtable::frame::{Framed, Incoming};
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::server::NamedService;
use tonic::{Response, Status};

const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/grpc");

/// How a message is compressed, and how one may be.
const ENCODING: &str = "grpc-encoding";
const ACCEPT_ENCODING: &str = "grpc-accept-encoding";
const NOT_COMPRESSED: &str = "identity";

/// What comes in. Its length is bounded by the gate ([`crate::admission`]).
pub trait RequestBody: Body<Data = Bytes, Error = Status> + Send + 'static {}

impl<B: Body<Data = Bytes, Error = Status> + Send + 'static> RequestBody for B {}

/// What goes out, once the headers are known.
pub type Answer = Result<http::Response<tonic::body::Body>, Infallible>;

/// The RPCs of a service.
pub trait Rpcs: Send + Sync + 'static {
    /// The service's name in full.
    const NAME: &'static str;

    /// Carries out the RPC that a request's path names.
    fn carry_out<B: RequestBody>(
        self: Arc<Self>,
        request: http::Request<B>,
    ) -> BoxFuture<'static, Answer>;
}

/// Serves a service. Cheap to clone: every connection has one.
#[derive(Debug)]
pub struct Server<S>(Arc<S>);

impl<S> Server<S> {
    /// Serves it.
    pub fn new(service: S) -> Self {
        Self(Arc::new(service))
    }
}

impl<S> Clone for Server<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: Rpcs> NamedService for Server<S> {
    const NAME: &'static str = S::NAME;
}

impl<S: Rpcs, B: RequestBody> tower_service::Service<http::Request<B>> for Server<S> {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Answer>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        Arc::clone(&self.0).carry_out(request)
    }
}

/// The answer to a path that names no RPC.
pub fn no_rpc(path: &str) -> Answer {
    let what =
        format!("{path} is no RPC of this server; names are of the form /package.Service/Method");
    Ok(Status::unimplemented(what).into_http())
}

/// Takes in the message of a request.
pub async fn receive<M: Message + Default>(
    request: http::Request<impl RequestBody>,
) -> Result<tonic::Request<M>, Status> {
    let (head, body) = request.into_parts();
    check_encoding(&head.headers)?;
    let message = whole(body).await?;
    let message = M::decode(message).map_err(|error| Status::internal(error.to_string()))?;
    let metadata = MetadataMap::from_headers(head.headers);
    Ok(tonic::Request::from_parts(metadata, head.extensions, message))
}

/// A request whose messages are not taken in.
pub fn unread<B>(request: http::Request<B>) -> tonic::Request<()> {
    let (head, _) = request.into_parts();
    tonic::Request::from_parts(MetadataMap::from_headers(head.headers), head.extensions, ())
}

/// Whether messages come as they are: compressed ones are not served.
fn check_encoding(headers: &HeaderMap) -> Result<(), Status> {
    match headers.get(ENCODING) {
        Some(encoding) if encoding != NOT_COMPRESSED => {
            let mut status = Status::unimplemented(format!(
                "messages compressed by {encoding:?} are not supported; send them as they are"
            ));
            let accepted = MetadataValue::from_static(NOT_COMPRESSED);
            status.metadata_mut().insert(ACCEPT_ENCODING, accepted);
            Err(status)
        }
        _ => Ok(()),
    }
}

/// The message of a body, once the client has said that this is all.
async fn whole(body: impl RequestBody) -> Result<Bytes, Status> {
    let mut body = pin!(body);
    let mut incoming = Incoming::default();
    while let Some(part) = poll_fn(|context| body.as_mut().poll_frame(context)).await {
        // What may come behind a message is of no interest.
        if let Ok(part) = part?.into_data() {
            incoming.push(&part);
        }
    }
    incoming.message().map_err(Status::internal)
}

/// The answer of an RPC with one message.
pub fn unary<M: Framed + Send + 'static>(answered: Result<Response<M>, Status>) -> Answer {
    streaming(
        answered.map(|response| {
            response.map(|message| futures::stream::iter([Ok::<_, Status>(message)]))
        }),
    )
}

/// The answer of an RPC with a stream of messages.
pub fn streaming<S, M>(answered: Result<Response<S>, Status>) -> Answer
where
    S: futures::Stream<Item = Result<M, Status>> + Send + 'static,
    M: Framed + 'static,
{
    Ok(match answered {
        Ok(response) => {
            let (metadata, messages, _) = response.into_parts();
            let frames = Frames { messages, are_over: false };
            let mut answer = http::Response::new(tonic::body::Body::new(frames));
            *answer.headers_mut() = metadata.into_headers();
            answer.headers_mut().insert(header::CONTENT_TYPE, CONTENT_TYPE);
            answer
        }
        Err(status) => status.into_http(),
    })
}

pin_project! {
    /// Messages, each a frame, and behind them how it ended.
    struct Frames<S> {
        #[pin]
        messages: S,
        are_over: bool,
    }
}

impl<S, M> Body for Frames<S>
where
    S: futures::Stream<Item = Result<M, Status>>,
    M: Framed,
{
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.project();
        if *this.are_over {
            return Poll::Ready(None);
        }
        Poll::Ready(Some(match ready!(this.messages.poll_next(context)) {
            Some(Ok(message)) => Ok(Frame::data(message.into_frame())),
            Some(Err(status)) => {
                *this.are_over = true;
                let mut trailers = HeaderMap::new();
                status.add_header(&mut trailers).map(|()| Frame::trailers(trailers))
            }
            None => {
                *this.are_over = true;
                let mut trailers = HeaderMap::with_capacity(1);
                trailers.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"));
                Ok(Frame::trailers(trailers))
            }
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.are_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::v2::{MutateRowResponse, PingAndWarmRequest};
    use http_body_util::{BodyExt as _, StreamBody};
    use tepui_bigtable::frame::HEADER_BYTES;
    use tonic::Code;

    type Parts = Vec<Result<Frame<Bytes>, Status>>;

    fn request(parts: Parts) -> http::Request<impl RequestBody> {
        http::Request::new(StreamBody::new(futures::stream::iter(parts)))
    }

    fn cut(frame: &Bytes, at: &[usize]) -> Parts {
        let ends = at.iter().copied().chain([frame.len()]);
        let mut begin = 0;
        let mut parts = Parts::new();
        for end in ends {
            parts.push(Ok(Frame::data(frame.slice(begin..end))));
            begin = end;
        }
        parts
    }

    #[tokio::test]
    async fn a_message_is_the_same_wherever_its_frame_was_cut() {
        let name = "projects/p/instances/i".to_owned();
        let sent = PingAndWarmRequest { name, app_profile_id: "x".repeat(1_000) };
        let frame = sent.clone().into_frame();
        for at in [&[][..], &[1], &[5], &[4, 5, 6], &[0, 1, 2, 3, 4, 900], &[frame.len()]] {
            let mut parts = cut(&frame, at);
            parts.push(Ok(Frame::trailers(HeaderMap::new())));
            let got = receive::<PingAndWarmRequest>(request(parts)).await.unwrap();
            assert_eq!(got.into_inner(), sent, "{at:?}");
        }
    }

    #[tokio::test]
    async fn a_message_takes_no_more_memory_than_its_bytes() {
        let frame = PingAndWarmRequest { name: "n".repeat(100_000), ..Default::default() };
        let frame = frame.into_frame();
        for at in [&[][..], &[16_384, 32_768]] {
            let message = whole(request(cut(&frame, at)).into_body()).await.unwrap();
            let message = message.try_into_mut().unwrap();
            assert!(message.capacity() <= frame.len(), "{} of {}", message.capacity(), frame.len());
        }
    }

    #[tokio::test]
    async fn what_is_no_message_is_refused_with_what_is_wrong_with_it() {
        let late = Err(Status::deadline_exceeded("late"));
        let data = |bytes: &'static [u8]| Ok(Frame::data(Bytes::from_static(bytes)));
        for (parts, code, says) in [
            (vec![], Code::Internal, "has no message"),
            (vec![data(b"\0\0\0")], Code::Internal, "ends within its message"),
            (vec![data(b"\0\0\0\0\x02"), data(b"a")], Code::Internal, "ends within its message"),
            (vec![data(b"\x01\0\0\0\x01a")], Code::Internal, "flagged as compressed"),
            (vec![data(b"\x07\0\0\0\0")], Code::Internal, "the flag 7"),
            (vec![data(b"\0\0\0\0\0a")], Code::Internal, "more than a message"),
            // A field that is longer than the message.
            (vec![data(b"\0\0\0\0\x02\x0a\x09")], Code::Internal, "decode"),
            (vec![data(b"\0\0\0\0\x02"), late], Code::DeadlineExceeded, "late"),
        ] {
            let error = receive::<PingAndWarmRequest>(request(parts)).await.unwrap_err();
            assert_eq!(error.code(), code, "{error}");
            assert!(error.message().contains(says), "{error}");
        }
        let mut compressed = request(vec![]);
        compressed.headers_mut().insert(ENCODING, HeaderValue::from_static("gzip"));
        let error = receive::<PingAndWarmRequest>(compressed).await.unwrap_err();
        assert_eq!(error.code(), Code::Unimplemented);
        assert!(error.message().contains("gzip"), "{error}");
        assert_eq!(error.metadata().get(ACCEPT_ENCODING).unwrap(), "identity");
        let mut plain = request(vec![data(b"\0\0\0\0\0")]);
        plain.headers_mut().insert(ENCODING, HeaderValue::from_static("identity"));
        receive::<PingAndWarmRequest>(plain).await.unwrap();
    }

    #[tokio::test]
    async fn an_answer_is_its_messages_and_how_it_ended() {
        let message = PingAndWarmRequest { name: "n".to_owned(), ..Default::default() };
        let lost = Status::data_loss("a b");
        for (end, code, says) in [(None, "0", None), (Some(lost), "15", Some("a%20b"))] {
            let messages = [message.clone(), message.clone()].map(Ok).into_iter();
            let items: Vec<_> = messages.chain(end.map(Err)).collect();
            let mut response = Response::new(futures::stream::iter(items));
            response.metadata_mut().insert("told", "x".parse().unwrap());
            let Ok(answer) = streaming(Ok(response));
            assert_eq!(answer.headers()["told"], "x");
            assert_eq!(answer.headers()["content-type"], "application/grpc");
            let answer = answer.into_body().collect().await.unwrap();
            let trailers = answer.trailers().unwrap();
            assert_eq!(trailers["grpc-status"], code);
            let told = trailers.get("grpc-message").map(|told| told.to_str().unwrap());
            assert_eq!(told, says);
            let frame = message.clone().into_frame();
            assert_eq!(answer.to_bytes(), [frame.clone(), frame].concat());
        }
        let Ok(answer) = unary(Ok(Response::new(MutateRowResponse {})));
        let answer = answer.into_body().collect().await.unwrap();
        assert_eq!(answer.trailers().unwrap()["grpc-status"], "0");
        assert_eq!(answer.to_bytes(), [0; HEADER_BYTES].as_slice());
        let Ok(refused) = unary(Err::<Response<MutateRowResponse>, _>(Status::not_found("no")));
        assert_eq!(refused.headers()["grpc-status"], "5");
        assert!(refused.into_body().is_end_stream());
    }
}
