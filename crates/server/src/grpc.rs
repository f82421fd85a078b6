//! gRPC's form of calls over HTTP/2: one message comes in, and one or a stream of them goes out.
//!
//! ```text
//! request    headers  frame                                   end
//! answer     headers  frame  frame  ..                        trailers: grpc-status
//! refused    headers: grpc-status                             end
//! ```
//!
//! What is over HTTP/2 is here and nowhere else: a request is in as much memory as it takes, and a message is sent from the memory
//! that it was made in. `build.rs` generates the dispatch of each service, which is in terms of what is here.

use std::convert::Infallible;
use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt as _};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use http_body::{Body, Frame};
use hyper::service::Service;
use prost::Message;
use tepui_bigtable::error::{Error, Shown};
use tepui_bigtable::frame::Framed;
use tepui_bigtable::parts::{self, Repeats, Shape};
use tepui_engine::io::Clock;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::server::NamedService;
use tonic::{Response, Status};

use crate::admission::{self, GatedBody, Hold, Inbound};
use crate::call::Within;
use crate::collect;
use crate::large;
use crate::limits::{HEADERS_KEPT_BYTES_MAX, HEADERS_REUSED_MAX};
use crate::metrics::rpc::{Counted, Recorder};
use crate::status::from_error;

const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/grpc");

/// What follows it where it says how messages are made of bytes: as they are served.
const PROTO: &[u8] = b"+proto";

/// How a message is compressed, and how one may be.
const ENCODING: &str = "grpc-encoding";
const ACCEPT_ENCODING: &str = "grpc-accept-encoding";
const NOT_COMPRESSED: &str = "identity";

/// Headers that say what a client makes of an answer.
const LOOKED_AT_LATER: [&str; 3] = ["user-agent", "x-goog-api-client", "bigtable-features"];

/// Bytes of a field with a length, at least.
const FIELD_BYTES_MIN: usize = 2;

/// What goes out, once the headers are known.
pub type Answer = Result<http::Response<Reply>, Infallible>;

/// A request whose message has come.
#[derive(Debug)]
pub struct Request<M> {
    message: M,
    head: Head,
}

/// What came with the message of a request.
#[derive(Debug, Default)]
pub struct Head {
    /// Its headers.
    pub headers: HeaderMap,
    /// What else is known of it.
    pub extensions: http::Extensions,
    /// Its room, and where and until when it is waited for.
    pub hold: Hold,
}

impl<M> Request<M> {
    /// One that came by nothing and holds nothing.
    #[cfg(test)]
    pub(crate) fn new(message: M) -> Self {
        Self::holding(message, Hold::default())
    }

    /// One without headers that holds this.
    #[cfg(test)]
    pub(crate) fn holding(message: M, hold: Hold) -> Self {
        Self { message, head: Head { hold, ..Head::default() } }
    }

    /// What it holds.
    pub fn hold(&self) -> &Hold {
        &self.head.hold
    }

    /// What else is known of it.
    pub fn extensions(&self) -> &http::Extensions {
        &self.head.extensions
    }

    /// Its message.
    pub fn get_ref(&self) -> &M {
        &self.message
    }

    /// Its message alone.
    pub fn into_inner(self) -> M {
        self.message
    }

    /// What came with its message, and that.
    pub fn into_parts(self) -> (Head, M) {
        (self.head, self.message)
    }
}

impl Head {
    /// An answer to the request, whose headers are in the memory that those of the request were in, unless that is much: nobody
    /// counts it while the answer waits for its client.
    pub fn answer<T>(self, message: T) -> Response<T> {
        let mut headers = self.headers;
        headers.clear();
        if headers.capacity() > HEADERS_REUSED_MAX {
            headers = HeaderMap::new();
        }
        Response::from_parts(MetadataMap::from_headers(headers), message, http::Extensions::new())
    }
}

/// A message as it is sent.
#[derive(Debug)]
pub struct Piece {
    frame: Bytes,
    /// The stream is known to end behind it.
    is_last: bool,
}

/// Messages as they are sent.
pub type Frames = BoxStream<'static, Result<Piece, Status>>;

/// The messages of an answer, which are of this type.
pub struct Messages<M> {
    frames: Frames,
    of: PhantomData<fn(M)>,
}

impl<M: Framed + 'static> Messages<M> {
    /// Those of a stream, which has a place of its own from here on.
    pub fn new(messages: impl Stream<Item = Result<M, Status>> + Send + 'static) -> Self {
        Self::ending(messages.map(|message| message.map(|message| (message, false))))
    }

    /// The same, each with whether the stream ends behind it, at once when it is asked: such an answer is over when that
    /// message is made, and keeps nothing however long its client takes.
    pub fn ending(
        messages: impl Stream<Item = Result<(M, bool), Status>> + Send + 'static,
    ) -> Self {
        let piece = |(message, is_last): (M, bool)| Piece { frame: message.into_frame(), is_last };
        let frames = messages.map(move |message| message.map(piece));
        Self { frames: Box::pin(frames), of: PhantomData }
    }
}

/// Messages that are made already, as they are sent.
pub struct Made<M> {
    frames: Vec<Bytes>,
    bytes: u64,
    of: PhantomData<fn(M)>,
}

impl<M: Framed + 'static> Made<M> {
    /// These.
    pub fn new(messages: impl IntoIterator<Item = M>) -> Self {
        let frames: Vec<_> = messages.into_iter().map(M::into_frame).collect();
        let bytes = frames.iter().map(|frame| frame.len() as u64).sum();
        Self { frames, bytes, of: PhantomData }
    }

    /// Bytes of all of them.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether it is one, of which the transport has all once it has any.
    pub fn is_one(&self) -> bool {
        self.frames.len() <= 1
    }

    /// An answer of them, which keeps this until they were taken, and is with its client since the last was asked for.
    pub fn keep(
        self,
        mut answer: Option<admission::Answer>,
        clock: &Arc<dyn Clock>,
    ) -> Messages<M> {
        let (clock, mut left) = (Arc::clone(clock), self.bytes);
        let piece = move |frame: Bytes| {
            left = left.saturating_sub(frame.len() as u64);
            if let Some(answer) = &mut answer {
                answer.keep(left, 0);
                answer.park(None, clock.monotonic_micros());
            }
            Ok(Piece { frame, is_last: false })
        };
        let frames = Box::pin(futures::stream::iter(self.frames).map(piece));
        Messages { frames, of: PhantomData }
    }
}

impl<M> fmt::Debug for Made<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Made").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl<M> fmt::Debug for Messages<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Messages")
    }
}

/// An answer with messages of this type, as it is sent.
pub fn frames<M>(response: Response<Messages<M>>) -> Response<Frames> {
    response.map(|messages| messages.frames)
}

/// The RPCs of a service.
pub trait Rpcs: Send + Sync + 'static {
    /// The service's name in full.
    const NAME: &'static str;

    /// Carries out the RPC that a request's path names.
    fn carry_out<B: Inbound>(
        self: Arc<Self>,
        request: http::Request<GatedBody<B>>,
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

impl<S: Rpcs, B: Inbound> Service<http::Request<GatedBody<B>>> for Server<S> {
    type Response = http::Response<Reply>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Answer>;

    fn call(&self, request: http::Request<GatedBody<B>>) -> Self::Future {
        Arc::clone(&self.0).carry_out(request)
    }
}

/// The answer of HTTP to a request that is none of gRPC's, whatever its path: gRPC's own refusals look like successes to others.
pub fn refusal<B, R: Default>(request: &http::Request<B>) -> Option<http::Response<R>> {
    let mut refusal = http::Response::new(R::default());
    if request.method() != Method::POST {
        *refusal.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        refusal.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
    } else if !request.headers().get(header::CONTENT_TYPE).is_some_and(is_grpc) {
        *refusal.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    } else {
        return None;
    }
    Some(refusal)
}

/// Whether a content type is that of gRPC's requests.
fn is_grpc(content_type: &HeaderValue) -> bool {
    let parameters = content_type.as_bytes().strip_prefix(CONTENT_TYPE.as_bytes());
    parameters.is_some_and(|rest| {
        let rest = rest.strip_prefix(PROTO).unwrap_or(rest);
        rest.is_empty() || rest.starts_with(b";")
    })
}

/// The answer to a path that names no RPC.
pub fn no_rpc(path: &str) -> Answer {
    let what =
        format!("{path} is no RPC of this server; names are of the form /package.Service/Method");
    Ok(from_error(&Error::unimplemented(what)).into_http())
}

/// Takes in the message of a request, which may have so many fields with a length.
pub async fn receive<M: Message + Default + 'static>(
    request: http::Request<GatedBody<impl Inbound>>,
    fields_max: usize,
) -> Result<Request<M>, Status> {
    let (head, message) = received(request).await?;
    let work = move || {
        if message.len() / FIELD_BYTES_MIN > fields_max {
            // The message itself is none of its fields.
            check_fields(parts::count(&message, &Shape::All) - 1, fields_max)?;
        }
        decoded(message)
    };
    let message = beside(&head, work).await??;
    Ok(Request { message, head })
}

/// The same of one in which something repeats, for which there is room from then on.
pub async fn receive_parts<M: Repeats + 'static>(
    request: http::Request<GatedBody<impl Inbound>>,
) -> Result<Request<M>, Status> {
    let (head, message) = received(request).await?;
    let hold = head.hold.clone();
    let work = move || {
        let bytes = M::decoded_bytes(&message).map_err(|error| from_error(&error))?;
        if !hold.has_room_to_decode(bytes, M::LASTS) {
            return Ok(Parts::Waits(bytes, message));
        }
        decoded(message).map(Parts::Decoded)
    };
    let message = match beside(&head, work).await?? {
        Parts::Decoded(message) => message,
        Parts::Waits(bytes, message) => {
            head.hold.make_room_to_decode(bytes, M::LASTS).await?;
            beside(&head, move || decoded(message)).await??
        }
    };
    Ok(Request { message, head })
}

/// A message of which is known what it is decoded into.
enum Parts<M> {
    Decoded(M),
    /// There is no room for so many bytes yet.
    Waits(u64, Bytes),
}

/// Goes through a message: beside the core where it is large, since it may be of fields of two bytes each, which nothing else counts.
async fn beside<T: Send + 'static>(
    head: &Head,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Status> {
    large::carry_out(large::hold_with(&head.hold, 0), move || async move { work() }).await
}

async fn received(
    request: http::Request<GatedBody<impl Inbound>>,
) -> Result<(Head, Bytes), Status> {
    let beside = bytes_of(request.uri());
    let (mut head, body) = head_of(request);
    check_encoding(&head.headers)?;
    head.headers = kept(head.headers, beside);
    Ok((head, collect::message(body).await?))
}

fn decoded<M: Message + Default>(message: Bytes) -> Result<M, Status> {
    M::decode(message).map_err(|error| Status::internal(error.to_string()))
}

fn check_fields(fields: usize, fields_max: usize) -> Result<(), Status> {
    if fields <= fields_max {
        return Ok(());
    }
    let what = format!("Request has too many fields: {fields} provided; limit {fields_max}");
    Err(from_error(&Error::invalid_argument(what)))
}

/// Bytes of a request's path, and of what came with it.
pub(crate) fn bytes_of(uri: &Uri) -> usize {
    let authority = uri.authority().map_or(0, |authority| authority.as_str().len());
    authority + uri.path_and_query().map_or(0, |path| path.as_str().len())
}

/// What is kept of the headers of a request while it is carried out: all of them, or those that are looked at later. `beside` are
/// bytes that came with them and may be kept by any of them.
pub(crate) fn kept(headers: HeaderMap, beside: usize) -> HeaderMap {
    let bytes = |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len();
    if headers.len() <= HEADERS_REUSED_MAX
        && headers.iter().map(bytes).sum::<usize>() + beside <= HEADERS_KEPT_BYTES_MAX
    {
        return headers;
    }
    let mut kept = HeaderMap::new();
    for name in LOOKED_AT_LATER {
        let value = headers.get(name).filter(|value| value.len() <= HEADERS_KEPT_BYTES_MAX);
        // The bytes of one may be a part of those of all.
        if let Some(value) = value.and_then(|v| HeaderValue::from_bytes(v.as_bytes()).ok()) {
            kept.insert(name, value);
        }
    }
    kept
}

/// A request whose messages are not taken in.
pub fn unread(request: http::Request<GatedBody<impl Inbound>>) -> Request<()> {
    let (head, _) = head_of(request);
    Request { message: (), head }
}

fn head_of<B: Inbound>(request: http::Request<GatedBody<B>>) -> (Head, GatedBody<B>) {
    let (http::request::Parts { headers, extensions, .. }, body) = request.into_parts();
    (Head { headers, extensions, hold: body.hold().clone() }, body)
}

/// Whether messages come as they are: compressed ones are not served.
fn check_encoding(headers: &HeaderMap) -> Result<(), Status> {
    match headers.get(ENCODING) {
        Some(encoding) if encoding != NOT_COMPRESSED => {
            let encoding = String::from_utf8_lossy(encoding.as_bytes());
            let mut status = Status::unimplemented(format!(
                "messages compressed by {} are not supported; send them as they are",
                Shown(&encoding)
            ));
            let accepted = MetadataValue::from_static(NOT_COMPRESSED);
            status.metadata_mut().insert(ACCEPT_ENCODING, accepted);
            Err(status)
        }
        _ => Ok(()),
    }
}

/// The answer of an RPC with one message, which keeps the request's room until its client has taken it, if it is large.
#[derive(Debug)]
pub struct Unary<'a> {
    hold: Hold,
    recorder: &'a Recorder,
    /// That for it, where there was to be some before it was made.
    room: Option<admission::Answer>,
}

impl<'a> Unary<'a> {
    /// That of a request.
    pub fn new<B: Inbound>(request: &http::Request<GatedBody<B>>, recorder: &'a Recorder) -> Self {
        Self { hold: request.body().hold().clone(), recorder, room: None }
    }

    /// Refuses a call whose answer may be large where its connection has left too much of such answers unread.
    ///
    /// # Errors
    ///
    /// RESOURCE_EXHAUSTED.
    pub fn check(&self) -> Result<(), Status> {
        self.hold.check_answers().map_err(|error| from_error(&error))
    }

    /// Carries out a call whose answer may be large once there is room for it, so that nothing is made in vain.
    ///
    /// # Errors
    ///
    /// RESOURCE_EXHAUSTED where other answers of the connection are not read.
    pub async fn in_room<M: Message>(
        &mut self,
        call: impl Future<Output = Result<Response<M>, Status>>,
    ) -> Result<Response<M>, Status> {
        let Some(mut room) = self.hold.answer() else { return call.await };
        room.make_room().await.map_err(|error| from_error(&error))?;
        room.leave_turn();
        let response = call.await?;
        let bytes = response.get_ref().encoded_len() as u64;
        if !room.is_over_at_once(bytes) {
            room.cover(bytes).await.map_err(|error| from_error(&error))?;
            self.room = Some(room);
        }
        Ok(response)
    }

    /// The answer.
    pub fn answer<M: Framed>(self, answered: Result<Response<M>, Status>) -> Answer {
        let Self { hold, recorder, room } = self;
        answer(answered, |message| {
            let frame = message.into_frame();
            let bytes = frame.len() as u64;
            let kept = match room {
                Some(mut room) => {
                    room.park(None, recorder.now_micros());
                    Some(room)
                }
                None if hold.is_over_at_once(bytes) => None,
                None => hold.answer().map(|mut answer| {
                    answer.made(bytes, recorder.now_micros());
                    answer
                }),
            };
            match kept {
                Some(kept) => Reply::Kept(Some(frame), kept),
                None => Reply::Message(frame),
            }
        })
    }
}

/// The answer of an RPC with a stream of messages.
pub fn streaming(answered: Result<Response<Counted<Within<Frames>>>, Status>) -> Answer {
    answer(answered, Reply::Messages)
}

fn answer<T>(answered: Result<Response<T>, Status>, reply: impl FnOnce(T) -> Reply) -> Answer {
    Ok(match answered {
        Ok(response) => {
            let (metadata, body, _) = response.into_parts();
            let mut answer = http::Response::new(reply(body));
            *answer.headers_mut() = metadata.into_headers();
            answer.headers_mut().insert(header::CONTENT_TYPE, CONTENT_TYPE);
            answer
        }
        Err(status) => status.into_http(),
    })
}

/// The body of an answer: its messages, each a frame, and behind them how it ended.
#[derive(Default)]
pub enum Reply {
    /// One that is to be sent.
    Message(Bytes),
    /// The same, with what it keeps until it was sent.
    Kept(Option<Bytes>, admission::Answer),
    /// Those that are to be sent.
    Messages(Counted<Within<Frames>>),
    /// All was sent but that it is all.
    Sent,
    /// It is over.
    #[default]
    Over,
    /// What a service of tonic's has to send.
    Other(tonic::body::Body),
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").field("is_over", &self.is_end_stream()).finish_non_exhaustive()
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let message = match &mut *self {
            Self::Message(message) => {
                let message = std::mem::take(message);
                *self = Self::Sent;
                return Poll::Ready(Some(Ok(Frame::data(message))));
            }
            // Asked for what is behind it, it was sent.
            Self::Kept(message, _) => message.take().map(Ok),
            Self::Messages(messages) => {
                let piece = ready!(messages.poll_next_unpin(context));
                // The end of such a stream is there at once. Any other may have to wait for what is behind a message, and is asked for it
                // when its client has taken that.
                if matches!(&piece, Some(Ok(piece)) if piece.is_last)
                    && matches!(messages.poll_next_unpin(context), Poll::Ready(None))
                {
                    *self = Self::Sent;
                }
                piece.map(|piece| piece.map(|piece| piece.frame))
            }
            Self::Sent => None,
            Self::Over => return Poll::Ready(None),
            Self::Other(body) => return Pin::new(body).poll_frame(context),
        };
        if !matches!(message, Some(Ok(_))) {
            *self = Self::Over;
        }
        Poll::Ready(Some(match message {
            Some(Ok(message)) => Ok(Frame::data(message)),
            Some(Err(status)) => {
                let mut trailers = HeaderMap::new();
                status.add_header(&mut trailers).map(|()| Frame::trailers(trailers))
            }
            None => {
                let mut trailers = HeaderMap::with_capacity(1);
                trailers.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"));
                Ok(Frame::trailers(trailers))
            }
        }))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Over => true,
            Self::Other(body) => body.is_end_stream(),
            Self::Message(_) | Self::Kept(..) | Self::Messages(_) | Self::Sent => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::{Gate, Streams};
    use crate::api::iam::{Binding, Policy, SetIamPolicyRequest};
    use crate::api::v2::{MutateRowResponse, PingAndWarmRequest};
    use crate::call::Terms;
    use crate::metrics::{self, rpc::Recorder};
    use http_body_util::{BodyExt as _, StreamBody};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tepui_bigtable::frame::HEADER_BYTES;
    use tepui_engine::io::ManualClock;
    use tonic::Code;

    type Parts = Vec<Result<Frame<Bytes>, Status>>;

    fn request(parts: Parts) -> http::Request<GatedBody<impl Inbound>> {
        let body = StreamBody::new(futures::stream::iter(parts));
        let gate = Arc::new(Gate::new(1 << 20, 1 << 20, 1 << 20));
        http::Request::new(GatedBody::new(body, (gate, 1 << 20), Hold::default()))
    }

    /// An answer's stream of messages.
    async fn streamed<M: Framed + Send + 'static>(
        messages: Vec<Result<M, Status>>,
        head: Head,
    ) -> http::Response<Reply> {
        streamed_by(Messages::new(futures::stream::iter(messages)), head).await
    }

    async fn streamed_by<M: Framed + 'static>(
        messages: Messages<M>,
        head: Head,
    ) -> http::Response<Reply> {
        let call = std::future::ready(Ok(frames(head.answer(messages))));
        let terms = Terms::of(&Request::new(()));
        let recorder = Recorder::new(Arc::default(), Arc::new(ManualClock::new(1)));
        let answered = metrics::rpc::streaming(&recorder, 0, terms.streaming(call)).await;
        let Ok(answer) = streaming(answered);
        answer
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
            let got = receive::<PingAndWarmRequest>(request(parts), usize::MAX).await.unwrap();
            assert_eq!(got.into_inner(), sent, "{at:?}");
        }
    }

    #[tokio::test]
    async fn a_message_takes_no_more_memory_than_its_bytes() {
        let frame = PingAndWarmRequest { name: "n".repeat(100_000), ..Default::default() };
        let frame = frame.into_frame();
        for at in [&[][..], &[16_384, 32_768]] {
            let message = collect::message(request(cut(&frame, at)).into_body()).await.unwrap();
            let message = message.try_into_mut().unwrap();
            assert!(message.capacity() <= frame.len(), "{} of {}", message.capacity(), frame.len());
        }
    }

    #[tokio::test]
    async fn a_request_of_more_fields_than_its_service_takes_is_refused_before_it_is_decoded() {
        let sent = |bindings: usize| {
            let policy =
                Policy { bindings: vec![Binding::default(); bindings], ..Policy::default() };
            SetIamPolicyRequest { policy: Some(policy), ..Default::default() }
        };
        let received = |message: SetIamPolicyRequest| {
            receive::<SetIamPolicyRequest>(request(cut(&message.into_frame(), &[])), 1_001)
        };
        assert_eq!(received(sent(1_000)).await.unwrap().into_inner(), sent(1_000));
        let error = received(sent(1_001)).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.message().contains("1002 provided; limit 1001"), "{error}");
    }

    #[test]
    fn of_headers_that_are_many_or_long_only_what_is_looked_at_later_is_kept() {
        let few: HeaderMap = (0..10)
            .map(|n| (HeaderName::try_from(format!("name-{n}")).unwrap(), CONTENT_TYPE))
            .collect();
        assert_eq!(kept(few.clone(), 100), few);
        assert!(kept(few, HEADERS_KEPT_BYTES_MAX).is_empty(), "what came with them is much");
        let mut many = HeaderMap::new();
        for _ in 0..2_000 {
            many.append("age", HeaderValue::from_static(""));
        }
        let mut long = HeaderMap::new();
        long.insert("x-long", "x".repeat(2 * HEADERS_KEPT_BYTES_MAX).parse().unwrap());
        for mut headers in [many, long] {
            for name in LOOKED_AT_LATER {
                headers.insert(name, CONTENT_TYPE);
            }
            let kept = kept(headers, 0);
            assert_eq!(kept.len(), LOOKED_AT_LATER.len());
            assert!(LOOKED_AT_LATER.iter().all(|name| kept[*name] == CONTENT_TYPE));
        }
    }

    #[test]
    fn what_is_no_request_of_grpcs_is_answered_by_http() {
        let status = |method: &str, content_type: Option<&str>| {
            let mut request = http::Request::builder().method(method);
            if let Some(content_type) = content_type {
                request = request.header("content-type", content_type);
            }
            let refusal = refusal::<_, Reply>(&request.body(()).unwrap())?;
            assert!(refusal.body().is_end_stream());
            let allowed = refusal.headers().get("allow").map(|allowed| allowed.to_str().unwrap());
            assert_eq!(allowed, (refusal.status() == 405).then_some("POST"));
            Some(refusal.status().as_u16())
        };
        for served in ["", "+proto", ";charset=utf-8", "+proto; x=y"] {
            assert_eq!(status("POST", Some(&format!("application/grpc{served}"))), None);
        }
        for other in ["application/json", "application/grpc-web", "application/grpc+json", "x"] {
            assert_eq!(status("POST", Some(other)), Some(415), "{other}");
        }
        assert_eq!(status("POST", None), Some(415));
        for method in ["GET", "PUT", "OPTIONS"] {
            assert_eq!(status(method, Some("application/grpc")), Some(405), "{method}");
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
            (vec![data(b"\0\0\0\0\0a")], Code::InvalidArgument, "one message"),
            // A field that is longer than the message.
            (vec![data(b"\0\0\0\0\x02\x0a\x09")], Code::Internal, "decode"),
            (vec![data(b"\0\0\0\0\x02"), late], Code::DeadlineExceeded, "late"),
        ] {
            let error =
                receive::<PingAndWarmRequest>(request(parts), usize::MAX).await.unwrap_err();
            assert_eq!(error.code(), code, "{error}");
            assert!(error.message().contains(says), "{error}");
        }
        let mut compressed = request(vec![]);
        compressed.headers_mut().insert(ENCODING, HeaderValue::from_static("gzip"));
        let error = receive::<PingAndWarmRequest>(compressed, usize::MAX).await.unwrap_err();
        assert_eq!(error.code(), Code::Unimplemented);
        assert!(error.message().contains("gzip"), "{error}");
        assert_eq!(error.metadata().get(ACCEPT_ENCODING).unwrap(), "identity");
        let mut long = request(vec![]);
        long.headers_mut().insert(ENCODING, "x".repeat(50_000).parse().unwrap());
        let error = receive::<PingAndWarmRequest>(long, usize::MAX).await.unwrap_err();
        assert!(error.message().len() < 1_000, "clients take headers of a few kilobytes");
        let mut plain = request(vec![data(b"\0\0\0\0\0")]);
        plain.headers_mut().insert(ENCODING, HeaderValue::from_static("identity"));
        receive::<PingAndWarmRequest>(plain, usize::MAX).await.unwrap();
    }

    #[test]
    fn a_path_that_names_no_rpc_is_told_of_in_a_message_that_clients_take() {
        let told = |path: &str| {
            let Ok(answer) = no_rpc(path);
            let status = Status::from_header_map(answer.headers()).unwrap();
            assert_eq!(status.code(), Code::Unimplemented);
            status.message().to_owned()
        };
        assert!(told("/a.B/C").starts_with("/a.B/C is no RPC"), "{}", told("/a.B/C"));
        assert!(told(&"/x".repeat(30_000)).len() <= 1 << 10);
    }

    #[tokio::test]
    async fn a_stream_of_messages_that_panics_ends_with_an_internal_error() {
        let mut left = 1;
        let messages = futures::stream::poll_fn(move |_| {
            assert!(left > 0, "expected by the test");
            left -= 1;
            Poll::Ready(Some(Ok(MutateRowResponse {})))
        });
        let answer = streamed_by(Messages::new(messages), Head::default()).await;
        let answer = answer.into_body().collect().await.unwrap();
        assert_eq!(answer.trailers().unwrap()["grpc-status"], "13");
        assert_eq!(answer.to_bytes(), [0; HEADER_BYTES].as_slice());
    }

    #[tokio::test]
    async fn an_answer_is_its_messages_and_how_it_ended() {
        let message = PingAndWarmRequest { name: "n".to_owned(), ..Default::default() };
        let lost = Status::data_loss("a b");
        for (end, code, says) in [(None, "0", None), (Some(lost), "15", Some("a%20b"))] {
            let messages = [message.clone(), message.clone()].map(Ok).into_iter();
            let items: Vec<_> = messages.chain(end.map(Err)).collect();
            let answer = streamed(items, Head::default()).await;
            assert_eq!(answer.headers()["content-type"], "application/grpc");
            let answer = answer.into_body().collect().await.unwrap();
            let trailers = answer.trailers().unwrap();
            assert_eq!(trailers["grpc-status"], code);
            let told = trailers.get("grpc-message").map(|told| told.to_str().unwrap());
            assert_eq!(told, says);
            let frame = message.clone().into_frame();
            assert_eq!(answer.to_bytes(), [frame.clone(), frame].concat());
        }
        let mut response = Response::new(MutateRowResponse {});
        response.metadata_mut().insert("told", "x".parse().unwrap());
        let recorder = Recorder::new(Arc::default(), Arc::new(ManualClock::new(1)));
        let asked = request(vec![]);
        let Ok(answer) = Unary::new(&asked, &recorder).answer(Ok(response));
        assert_eq!(answer.headers()["told"], "x");
        assert!(!answer.body().is_end_stream());
        let answer = answer.into_body().collect().await.unwrap();
        assert_eq!(answer.trailers().unwrap()["grpc-status"], "0");
        assert_eq!(answer.to_bytes(), [0; HEADER_BYTES].as_slice());
        let refused = Err::<Response<MutateRowResponse>, _>(Status::not_found("no"));
        let Ok(refused) = Unary::new(&asked, &recorder).answer(refused);
        assert_eq!(refused.headers()["grpc-status"], "5");
        assert!(refused.into_body().is_end_stream());
    }

    #[tokio::test]
    async fn a_large_answer_keeps_its_room_until_it_was_taken_and_a_small_one_keeps_none() {
        let streams = Arc::new(Streams::new(8 << 20));
        let recorder = Recorder::new(Arc::default(), Arc::new(ManualClock::new(1)));
        for (bytes, waits_for_room) in
            [(100, true), (100, false), (1 << 20, true), (1 << 20, false)]
        {
            let hold = Hold::new(None, streams.connection(), None);
            let body = StreamBody::new(futures::stream::iter(Parts::new()));
            let gate = Arc::new(Gate::new(1 << 20, 1 << 20, 1 << 20));
            let body = GatedBody::new(body, (gate, 1 << 20), hold);
            let asked = http::Request::new(body);
            let mut unary = Unary::new(&asked, &recorder);
            let large = PingAndWarmRequest { name: "n".repeat(bytes), ..Default::default() };
            let frame = large.clone().into_frame();
            let mut answered = Ok(Response::new(large));
            if waits_for_room {
                answered = unary.in_room(std::future::ready(answered)).await;
            }
            let Ok(answer) = unary.answer(answered);
            // But for the frame's header, of what there is room for before.
            let is_kept = |held: u64| {
                let bytes = if bytes >= 1 << 20 { frame.len() as u64 } else { 0 };
                held <= bytes && held + HEADER_BYTES as u64 >= bytes
            };
            assert!(is_kept(streams.figures().bytes));
            assert_eq!(streams.figures().parked, u64::from(bytes >= 1 << 20), "it is seen");
            let mut body = answer.into_body();
            assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), frame);
            assert!(is_kept(streams.figures().bytes), "the transport has it");
            let end = body.frame().await.unwrap().unwrap().into_trailers().unwrap();
            assert_eq!(end["grpc-status"], "0");
            assert_eq!(streams.figures().bytes, 0);
        }
    }

    #[tokio::test]
    async fn messages_that_are_made_keep_their_room_until_the_last_of_them_was_asked_for() {
        let streams = Arc::new(Streams::new(8 << 20));
        let message = PingAndWarmRequest { name: "n".repeat(100_000), ..Default::default() };
        let made = Made::new(std::iter::repeat_n(message.clone(), 5));
        let mut answer = streams.answer(Hold::default());
        answer.made(made.bytes(), 1);
        let bytes = made.bytes();
        let clock = Arc::new(ManualClock::new(1));
        let made = made.keep(Some(answer), &(Arc::clone(&clock) as Arc<dyn Clock>));
        let mut body = streamed_by(made, Head::default()).await.into_body();
        for _ in 0..5 {
            // A client that takes one after the other may take long for all of them.
            clock.advance_micros(3_000_000);
            let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
            assert_eq!(frame, message.clone().into_frame());
            assert_eq!(streams.figures().bytes, bytes);
            assert_eq!(streams.stuck(clock.monotonic_micros() + 1_000_000), 0);
            assert_eq!(streams.stuck(clock.monotonic_micros() + 3_000_000), 1);
        }
        body.frame().await.unwrap().unwrap().into_trailers().unwrap();
        assert_eq!(streams.figures().bytes, 0);
    }

    #[tokio::test]
    async fn an_answer_is_over_with_its_last_message_and_is_not_asked_for_more_behind_another() {
        for last_is_known in [true, false] {
            let held = Arc::new(());
            let holds = Arc::clone(&held);
            let message = MutateRowResponse {};
            let messages = [(message, false), (message, last_is_known)].map(Ok);
            let messages = futures::stream::iter(messages).inspect(move |_| _ = &holds);
            let asked = Arc::new(AtomicUsize::new(0));
            let asks = Arc::clone(&asked);
            let mut messages = Box::pin(messages);
            let messages = futures::stream::poll_fn(move |context| {
                asks.fetch_add(1, Ordering::Relaxed);
                messages.poll_next_unpin(context)
            });
            let mut body =
                streamed_by(Messages::ending(messages), Head::default()).await.into_body();
            body.frame().await.unwrap().unwrap().into_data().unwrap();
            assert_eq!(asked.load(Ordering::Relaxed), 1, "what is behind it may have to wait");
            body.frame().await.unwrap().unwrap().into_data().unwrap();
            assert_eq!(Arc::strong_count(&held) == 1, last_is_known, "it keeps nothing");
            let trailers = body.frame().await.unwrap().unwrap().into_trailers().unwrap();
            assert_eq!(trailers["grpc-status"], "0");
            assert!(body.frame().await.is_none());
        }
    }

    #[tokio::test]
    async fn nothing_of_a_requests_headers_is_in_its_answer() {
        let mut sent = request(vec![Ok(Frame::data(Bytes::from_static(&[0; HEADER_BYTES])))]);
        for (name, value) in [("authorization", "secret"), ("content-type", "application/grpc")] {
            sent.headers_mut().append(name, value.parse().unwrap());
            sent.headers_mut().append(name, "another".parse().unwrap());
        }
        let request = receive::<MutateRowResponse>(sent, usize::MAX).await.unwrap();
        assert_eq!(request.head.headers["authorization"], "secret");
        let (head, message) = request.into_parts();
        let answer = streamed(vec![Ok(message)], head).await;
        let headers: Vec<_> =
            answer.headers().iter().map(|(name, value)| (name.as_str(), value)).collect();
        assert_eq!(headers, [("content-type", &CONTENT_TYPE)]);
    }
}
