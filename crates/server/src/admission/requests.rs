//! The budget of requests: a message's bytes are taken from it before they are read.
//!
//! The first five bytes of a gRPC message say how long it is. Here they are read as they pass; the rest of the message
//! is not asked for until the budget has room for all of it. Meanwhile HTTP/2's windows hold the client back. Room
//! is held until the request is carried out, or its stream of answers ends.
//!
//! Small messages have a part of the budget of their own, so that they never wait behind large ones.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http_body::{Body, Frame, SizeHint};
use tepui_bigtable::error::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;
use tonic::Status;

use super::Connection;
use crate::call::{Deadline, passed};
use crate::limits::{
    REQUEST_BODY_PAUSE, REQUEST_BYTES_MIN, REQUEST_WAIT, REQUESTS_WAITING_PER_CONNECTION_MAX,
    SMALL_REQUEST_BYTES_MAX,
};
use crate::status::from_error;

/// Bytes before a gRPC message: a flag and its length.
const HEADER_BYTES: usize = 5;

/// Bytes of a unit of the budget.
const UNIT_BYTES: u64 = 256;

/// What a request takes beyond its message: its headers, its future, its answer.
const OVERHEAD_BYTES: u64 = 2 << 10;

/// When to try again where the budget is used up: the time of a large request.
const RETRY_AFTER: Duration = Duration::from_millis(500);

/// The budget of requests.
#[derive(Debug)]
pub struct Gate {
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
    small_units: u32,
    large_units: u32,
    message_bytes_max: u64,
    waiting: AtomicU64,
    refused: AtomicU64,
    too_large: AtomicU64,
    paused: AtomicU64,
}

/// Figures of a [`Gate`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GateFigures {
    /// Bytes of requests that are read or carried out.
    pub bytes: u64,
    /// Requests that wait for room.
    pub waiting: u64,
    /// Requests that were refused because there was no room in time.
    pub refused: u64,
    /// Requests that were refused for their size.
    pub too_large: u64,
    /// Requests that were ended because the rest of them did not come.
    pub paused: u64,
}

fn units(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX).clamp(1, u32::MAX >> 4)
}

impl Gate {
    /// A budget of this many bytes; a quarter of it is for small messages. A message may have at most
    /// `message_bytes_max` bytes, and at most what the rest of the budget holds.
    pub fn new(bytes: u64, message_bytes_max: u64) -> Self {
        let small_units = units(bytes / 4);
        let large_units = units(bytes - bytes / 4);
        let held_max = u64::from(large_units) * UNIT_BYTES;
        let largest = largest_message(held_max).max(REQUEST_BYTES_MIN);
        Self {
            small: Arc::new(Semaphore::new(small_units as usize)),
            large: Arc::new(Semaphore::new(large_units as usize)),
            small_units,
            large_units,
            message_bytes_max: largest.min(message_bytes_max),
            waiting: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            too_large: AtomicU64::new(0),
            paused: AtomicU64::new(0),
        }
    }

    /// Bytes of a message, at most.
    pub fn message_bytes_max(&self) -> u64 {
        self.message_bytes_max
    }

    /// Figures.
    pub fn figures(&self) -> GateFigures {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let used = |pool: &Semaphore, all: u32| {
            u64::from(all).saturating_sub(pool.available_permits() as u64) * UNIT_BYTES
        };
        GateFigures {
            bytes: used(&self.small, self.small_units) + used(&self.large, self.large_units),
            waiting: get(&self.waiting),
            refused: get(&self.refused),
            too_large: get(&self.too_large),
            paused: get(&self.paused),
        }
    }

    fn pool(&self, message_bytes: u64) -> (&Arc<Semaphore>, u32) {
        let units = units(held_bytes(message_bytes));
        if message_bytes <= SMALL_REQUEST_BYTES_MAX {
            (&self.small, units.min(self.small_units))
        } else {
            (&self.large, units.min(self.large_units))
        }
    }

    /// Room for a message of this many bytes: at once, or what to wait for.
    fn room(
        self: &Arc<Self>,
        message_bytes: u64,
        connection: Option<&Arc<Connection>>,
    ) -> Result<OwnedSemaphorePermit, Room> {
        let (pool, units) = self.pool(message_bytes);
        if let Ok(permit) = Arc::clone(pool).try_acquire_many_owned(units) {
            return Ok(permit);
        }
        let (gate, pool) = (Arc::clone(self), Arc::clone(pool));
        let connection = connection.map(Arc::clone);
        Err(Box::pin(async move {
            let _waiting = Waiting::new(&gate.waiting);
            let mine = connection.as_ref().map(|c| Waiting::new(&c.requests_waiting));
            if mine.as_ref().is_some_and(|mine| mine.count() > REQUESTS_WAITING_PER_CONNECTION_MAX)
            {
                return Err(gate.refuse());
            }
            match tokio::time::timeout(REQUEST_WAIT, pool.acquire_many_owned(units)).await {
                Ok(permit) => Ok(permit.expect("the budget is never closed")),
                Err(_) => Err(gate.refuse()),
            }
        }))
    }

    fn refuse(&self) -> Status {
        self.refused.fetch_add(1, Ordering::Relaxed);
        from_error(&Error::overloaded(
            "the server is overloaded: its memory for requests is full",
            RETRY_AFTER,
        ))
    }

    fn refuse_size(&self, message_bytes: u64, limit: u64) -> Status {
        self.too_large.fetch_add(1, Ordering::Relaxed);
        from_error(&Error::invalid_argument(format!(
            "Request is too large: {message_bytes} bytes provided; limit {limit} bytes"
        )))
    }
}

/// What a message takes of the budget: itself, and half as much for what it is decoded into.
fn held_bytes(message_bytes: u64) -> u64 {
    message_bytes.saturating_add(message_bytes / 2).saturating_add(OVERHEAD_BYTES)
}

/// The largest message that takes no more than this.
fn largest_message(held: u64) -> u64 {
    held.saturating_sub(OVERHEAD_BYTES) / 3 * 2
}

type Room = BoxFuture<'static, Result<OwnedSemaphorePermit, Status>>;

struct Waiting<'a>(&'a AtomicU64);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicU64) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }

    /// How many wait, this one included.
    fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Room that a request holds; in its extensions. Whoever keeps a clone keeps the room.
#[derive(Debug, Clone, Default)]
pub struct Hold(Arc<Held>);

#[derive(Debug, Default)]
struct Held {
    room: Mutex<Option<OwnedSemaphorePermit>>,
    has_begun: AtomicBool,
}

impl Hold {
    fn keep(&self, permit: OwnedSemaphorePermit) {
        *self.0.room.lock().unwrap_or_else(PoisonError::into_inner) = Some(permit);
    }

    /// The request is carried out, and counted, from now on.
    pub fn begin<T>(request: &tonic::Request<T>) {
        if let Some(Self(held)) = request.extensions().get() {
            held.has_begun.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the request has come as far as that.
    pub(super) fn has_begun(&self) -> bool {
        self.0.has_begun.load(Ordering::Relaxed)
    }
}

/// The body of a request, which is one message.
pub(super) struct GatedBody {
    inner: tonic::body::Body,
    gate: Arc<Gate>,
    /// Bytes of the message, at most.
    message_bytes_max: u64,
    hold: Hold,
    connection: Option<Arc<Connection>>,
    /// What has come of the header.
    header: [u8; HEADER_BYTES],
    header_len: usize,
    /// Bytes of the message that have not come, once the header has.
    left: u64,
    /// A part that came and waits for room.
    parked: Option<(Bytes, Room)>,
    /// Ends the request where the rest of it does not come.
    pause: Option<Pin<Box<Sleep>>>,
    /// Until when the client waits.
    deadline: Option<Deadline>,
    /// Ends the request then; set once it had to wait.
    timer: Option<Pin<Box<Sleep>>>,
}

impl GatedBody {
    /// The body of a request to a service that takes messages of so many bytes, as far as the gate does.
    pub(super) fn new(
        inner: tonic::body::Body,
        (gate, message_bytes_max): (Arc<Gate>, u64),
        hold: Hold,
        connection: Option<Arc<Connection>>,
        deadline: Option<Deadline>,
    ) -> Self {
        let header = [0; HEADER_BYTES];
        Self {
            message_bytes_max: message_bytes_max.min(gate.message_bytes_max),
            inner,
            gate,
            hold,
            connection,
            header,
            header_len: 0,
            left: 0,
            parked: None,
            pause: None,
            deadline,
            timer: None,
        }
    }

    /// Looks at a part of the body as it passes. Gives it back, or parks it until there is room.
    fn pass(&mut self, part: Bytes) -> Result<Option<Bytes>, Status> {
        let missing = HEADER_BYTES - self.header_len;
        let (of_header, rest) = part.split_at(missing.min(part.len()));
        if let Some(to) = self.header.get_mut(self.header_len..self.header_len + of_header.len()) {
            to.copy_from_slice(of_header);
        }
        let is_complete = missing > 0 && of_header.len() == missing;
        self.header_len += of_header.len();
        if !is_complete {
            let excess = rest.len() as u64 > self.left;
            self.left = self.left.saturating_sub(rest.len() as u64);
            return if excess { Err(more_than_one()) } else { Ok(Some(part)) };
        }
        let [_, length @ ..] = self.header;
        let message_bytes = u64::from(u32::from_be_bytes(length));
        if message_bytes > self.message_bytes_max {
            return Err(self.gate.refuse_size(message_bytes, self.message_bytes_max));
        }
        let rest = rest.len() as u64;
        if rest > message_bytes {
            return Err(more_than_one());
        }
        self.left = message_bytes - rest;
        match self.gate.room(message_bytes, self.connection.as_ref()) {
            Ok(permit) => {
                self.hold.keep(permit);
                Ok(Some(part))
            }
            Err(room) => {
                self.parked = Some((part, room));
                Ok(None)
            }
        }
    }

    /// Whether the client has kept the rest of its message, or its end, for too long. Before it has begun one it keeps nothing
    /// of the server's.
    fn has_paused(&mut self, context: &mut Context<'_>) -> bool {
        if self.header_len == 0 {
            return false;
        }
        let pause =
            self.pause.get_or_insert_with(|| Box::pin(tokio::time::sleep(REQUEST_BODY_PAUSE)));
        pause.as_mut().poll(context).is_ready()
    }

    /// Whether the client waits no longer for a request that waits itself: for room, or for the client.
    fn is_past_deadline(&mut self, context: &mut Context<'_>) -> bool {
        let Some(deadline) = self.deadline else { return false };
        let timer = self.timer.get_or_insert_with(|| Box::pin(deadline.timer()));
        timer.as_mut().poll(context).is_ready()
    }

    /// The next part of the message, once there is room for all of it.
    fn poll_part(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        loop {
            if let Some((_, room)) = &mut self.parked {
                let room = ready!(room.as_mut().poll(context));
                let part = self.parked.take().map(|(part, _)| part).unwrap_or_default();
                return Poll::Ready(Some(room.map(|permit| {
                    self.hold.keep(permit);
                    Frame::data(part)
                })));
            }
            let frame = match Pin::new(&mut self.inner).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => frame,
                Poll::Ready(other) => return Poll::Ready(other),
                Poll::Pending if self.has_paused(context) => {
                    self.gate.paused.fetch_add(1, Ordering::Relaxed);
                    let status = Status::deadline_exceeded("the rest of the request did not come");
                    return Poll::Ready(Some(Err(status)));
                }
                Poll::Pending => return Poll::Pending,
            };
            self.pause = None;
            let part = match frame.into_data() {
                Ok(part) => part,
                Err(other) => return Poll::Ready(Some(Ok(other))),
            };
            match self.pass(part) {
                Ok(Some(part)) => return Poll::Ready(Some(Ok(Frame::data(part)))),
                Ok(None) => {}
                Err(status) => return Poll::Ready(Some(Err(status))),
            }
        }
    }
}

fn more_than_one() -> Status {
    Status::invalid_argument("a request is one message")
}

impl Body for GatedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = self.poll_part(context);
        if polled.is_pending() && self.is_past_deadline(context) {
            return Poll::Ready(Some(Err(passed())));
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.parked.is_none() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Gated;
    use super::*;
    use crate::call::Terms;
    use futures::FutureExt as _;
    use http_body_util::BodyExt as _;

    /// A body of these parts, behind the gate.
    fn body(gate: &Arc<Gate>, parts: Vec<Vec<u8>>) -> (GatedBody, Hold) {
        let frames = parts.into_iter().map(|part| Ok::<_, Status>(Frame::data(Bytes::from(part))));
        let inner =
            tonic::body::Body::new(http_body_util::StreamBody::new(futures::stream::iter(frames)));
        let hold = Hold::default();
        (GatedBody::new(inner, (Arc::clone(gate), u64::MAX), hold.clone(), None, None), hold)
    }

    fn message(bytes: usize) -> Vec<u8> {
        let mut message = vec![0];
        message.extend((bytes as u32).to_be_bytes());
        message.extend(std::iter::repeat_n(7, bytes));
        message
    }

    #[tokio::test]
    async fn a_message_passes_unchanged_however_it_is_divided_and_holds_its_room() {
        let gate = Arc::new(Gate::new(1 << 20, 1 << 20));
        let whole = message(1_000);
        for cut in [1, 3, 5, 6, 500, 1_005] {
            let parts = whole.chunks(cut).map(<[u8]>::to_vec).collect();
            let (body, hold) = body(&gate, parts);
            assert_eq!(body.collect().await.unwrap().to_bytes(), whole, "{cut}");
            assert!(gate.figures().bytes >= 1_500, "held while it is carried out");
            drop(hold);
            assert_eq!(gate.figures().bytes, 0);
        }
    }

    #[tokio::test]
    async fn the_rest_of_a_large_message_is_not_read_before_there_is_room() {
        let gate = Arc::new(Gate::new(4 << 20, 4 << 20));
        let large = || vec![message(1 << 20)];
        let (first, held) = body(&gate, large());
        first.collect().await.unwrap();
        let (mut second, _) = body(&gate, large());
        let mut waits = Box::pin(second.frame());
        let (third, _) = body(&gate, vec![message(1_000)]);
        assert!(waits.as_mut().now_or_never().is_none(), "there is room for one of the two");
        assert_eq!(gate.figures().waiting, 1);
        third.collect().await.expect("a small one does not wait behind large ones");
        drop(held);
        waits.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_finds_no_room_in_time_is_refused_with_a_hint() {
        let gate = Arc::new(Gate::new(2 << 20, 2 << 20));
        let (first, _held) = body(&gate, vec![message(900 << 10)]);
        first.collect().await.unwrap();
        let (second, _) = body(&gate, vec![message(900 << 10)]);
        let refused = second.collect().await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        assert!(!refused.details().is_empty());
        assert_eq!(gate.figures().refused, 1);
    }

    /// A service that reads the message and then works for this long.
    #[derive(Clone)]
    struct Working(Duration);

    impl tower_service::Service<http::Request<tonic::body::Body>> for Working {
        type Response = http::Response<tonic::body::Body>;
        type Error = Status;
        type Future = BoxFuture<'static, Result<Self::Response, Status>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
            let takes = self.0;
            Box::pin(async move {
                let (head, body) = request.into_parts();
                body.collect().await?;
                let metadata = tonic::metadata::MetadataMap::from_headers(head.headers);
                let request = tonic::Request::from_parts(metadata, head.extensions, ());
                let work = async {
                    tokio::time::sleep(takes).await;
                    Ok(tonic::Response::new(()))
                };
                let done = Terms::of(&request).unary(work).await;
                done.map(|_| http::Response::new(tonic::body::Body::empty()))
            })
        }
    }

    /// How a request ends whose client waits for so long, and sends half of a message at once and the rest `later`; and
    /// after how long.
    async fn ends(gate: &Arc<Gate>, timeout: &str, later: Duration) -> (tonic::Code, Duration) {
        let began = tokio::time::Instant::now();
        let whole = Bytes::from(message(900 << 10));
        let (first, rest) = (whole.slice(..1_000), whole.slice(1_000..));
        let first = futures::stream::iter([Ok::<_, Status>(Frame::data(first))]);
        let rest = futures::stream::once(async move {
            tokio::time::sleep(later).await;
            Ok(Frame::data(rest))
        });
        let parts = http_body_util::StreamBody::new(futures::StreamExt::chain(first, rest));
        let mut request = http::Request::new(tonic::body::Body::new(parts));
        request.headers_mut().insert("grpc-timeout", timeout.parse().unwrap());
        let mut service = Gated::new(
            Working(Duration::from_millis(50)),
            Arc::clone(gate),
            usize::MAX,
            Arc::default(),
        );
        let done = tower_service::Service::call(&mut service, request).await;
        (done.map_or_else(|status| status.code(), |_| tonic::Code::Ok), began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_counts_from_the_arrival_of_the_requests_head() {
        let gate = Arc::new(Gate::new(2 << 20, 2 << 20));
        let later = Duration::from_millis(80);
        let soon = |(code, took): (_, Duration)| (code, took.as_millis());
        let ended = soon(ends(&gate, "50m", later).await);
        assert!(
            ended.0 == tonic::Code::DeadlineExceeded && ended.1 < 55,
            "{ended:?}: in the midst"
        );
        let ended = soon(ends(&gate, "100m", later).await);
        assert!(ended.0 == tonic::Code::DeadlineExceeded && ended.1 < 105, "{ended:?}: at work");
        let ended = soon(ends(&gate, "200m", later).await);
        assert_eq!(ended.0, tonic::Code::Ok);

        let (first, _held) = body(&gate, vec![message(900 << 10)]);
        first.collect().await.unwrap();
        let ended = soon(ends(&gate, "100m", later).await);
        assert!(ended.0 == tonic::Code::DeadlineExceeded && ended.1 < 105, "{ended:?}: no room");
        assert_eq!(gate.figures().waiting, 0);
        let (code, took) = ends(&gate, "9S", later).await;
        assert_eq!(code, tonic::Code::ResourceExhausted, "after {took:?}");
    }

    /// A body of these bytes whose client never says that it is all.
    fn endless(gate: &Arc<Gate>, bytes: &[u8], deadline: Option<Deadline>) -> GatedBody {
        let part = Ok::<_, Status>(Frame::data(Bytes::copy_from_slice(bytes)));
        let part = futures::stream::iter((!bytes.is_empty()).then_some(part));
        let never = futures::StreamExt::chain(part, futures::stream::pending());
        let inner = tonic::body::Body::new(http_body_util::StreamBody::new(never));
        GatedBody::new(inner, (Arc::clone(gate), u64::MAX), Hold::default(), None, deadline)
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_keeps_the_rest_or_the_end_of_its_message_gives_its_room_back() {
        let gate = Arc::new(Gate::new(4 << 20, 4 << 20));
        let whole = message(2 << 20);
        for (n, bytes) in [&whole[..1000], &whole[..], &whole[..3]].into_iter().enumerate() {
            let ended = endless(&gate, bytes, None).collect().await.unwrap_err();
            assert_eq!(ended.code(), tonic::Code::DeadlineExceeded);
            assert_eq!((gate.figures().bytes, gate.figures().paused), (0, n as u64 + 1));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_ends_a_request_of_which_only_the_head_came() {
        let gate = Arc::new(Gate::new(4 << 20, 4 << 20));
        let timeout = [(http::HeaderName::from_static("grpc-timeout"), "70m".parse().unwrap())];
        let began = tokio::time::Instant::now();
        let ended = endless(&gate, &[], Deadline::of(&timeout.into_iter().collect()));
        let ended = ended.collect().await.unwrap_err();
        assert_eq!(ended.code(), tonic::Code::DeadlineExceeded);
        assert!(began.elapsed().as_millis() < 75, "{:?}", began.elapsed());
    }

    #[tokio::test]
    async fn what_is_too_large_or_more_than_a_message_is_refused_before_it_is_read() {
        let gate = Arc::new(Gate::new(1 << 20, 512 << 10));
        let (large, _) = body(&gate, vec![message(600 << 10)[..5].to_vec()]);
        let refused = large.collect().await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::InvalidArgument);
        assert!(refused.message().contains(&gate.message_bytes_max().to_string()), "{refused}");
        let two = [message(10), message(10)].concat();
        for parts in [vec![two.clone()], two.chunks(4).map(<[u8]>::to_vec).collect()] {
            let refused = body(&gate, parts).0.collect().await.unwrap_err();
            assert_eq!(refused.message(), "a request is one message");
        }
    }
}
