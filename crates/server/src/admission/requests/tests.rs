//! Requests at the gate: what passes, what waits, what is refused, and who holds the room.

use std::task::{Context, Poll};

use super::super::{Arrived, Gated, Streams};
use super::*;
use crate::call::Terms;
use crate::grpc::Request;
use crate::limits::{CLOSE_STALLED_AFTER, REQUEST_BODY_PAUSE, REQUEST_HEAD_PAUSE};
use crate::metrics::rpc::{self, CoreRpcs};
use bytes::Bytes;
use futures::FutureExt as _;
use http_body::Frame;
use http_body_util::BodyExt as _;
use hyper::service::Service as _;

/// A body of these parts, behind the gate.
fn body(gate: &Arc<Gate>, parts: Vec<Vec<u8>>) -> (GatedBody<impl Inbound>, Hold) {
    let hold = Hold::default();
    (body_of(gate, parts, hold.clone()), hold)
}

/// The same for a request that holds this.
fn body_of(gate: &Arc<Gate>, parts: Vec<Vec<u8>>, hold: Hold) -> GatedBody<impl Inbound> {
    let frames = parts.into_iter().map(|part| Ok::<_, Status>(Frame::data(Bytes::from(part))));
    let inner = http_body_util::StreamBody::new(futures::stream::iter(frames));
    GatedBody::new(inner, (Arc::clone(gate), u64::MAX), hold)
}

/// What a message of so many bytes begins with.
fn head(bytes: usize) -> Vec<u8> {
    [&[0], &(bytes as u32).to_be_bytes()[..]].concat()
}

fn message(bytes: usize) -> Vec<u8> {
    let mut message = head(bytes);
    message.extend(std::iter::repeat_n(7, bytes));
    message
}

#[tokio::test]
async fn a_message_passes_unchanged_however_it_is_divided_and_holds_its_room() {
    let gate = Arc::new(Gate::new(1 << 20, 1 << 20, 1 << 20));
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
    let gate = Arc::new(Gate::new(4 << 20, 1 << 20, 4 << 20));
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
    let gate = Arc::new(Gate::new(2 << 20, 1 << 20, 2 << 20));
    let (first, _held) = body(&gate, vec![message(900 << 10)]);
    first.collect().await.unwrap();
    let (second, _) = body(&gate, vec![message(900 << 10)]);
    let refused = second.collect().await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
    assert!(!refused.details().is_empty());
    assert_eq!(gate.figures().refused, 1);
}

/// Those requests of a megabyte that wait for room, of so many that a connection begins: the others are refused at once, with a hint.
fn waits_on(
    gate: &Arc<Gate>,
    connection: &Arc<Connection>,
    count: usize,
) -> Vec<BoxFuture<'static, Result<(), Status>>> {
    let mut waits = Vec::new();
    for _ in 0..count {
        let hold = Hold::new(Some(Arc::clone(gate)), Arc::clone(connection), None);
        let body = body_of(gate, vec![message(1 << 20)], hold);
        let mut request = async { body.collect().await.map(drop) }.boxed();
        match request.as_mut().now_or_never() {
            None => waits.push(request),
            Some(ended) => {
                let refused = ended.unwrap_err();
                assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
                assert!(!refused.details().is_empty());
            }
        }
    }
    waits
}

#[tokio::test(start_paused = true)]
async fn what_all_connections_send_while_they_wait_is_bounded_and_shared_among_them() {
    // Of which large messages have 24 MiB, and those that wait for it may send an eighth, of 64 KiB each: 48 of them.
    let gate = Arc::new(Gate::new(32 << 20, 1 << 20, 32 << 20));
    let streams = Arc::new(Streams::new(64 << 20));
    let held = [admitted(&gate, 8 << 20).await, admitted(&gate, 7 << 20).await];
    let connections: Vec<_> = (0..100).map(|_| streams.connection()).collect();
    let mut waits: Vec<_> = connections.iter().map(|c| waits_on(&gate, c, 12)).collect();
    let counts: Vec<_> = waits.iter().map(Vec::len).filter(|count| *count > 0).collect();
    assert_eq!(counts, [12, 12, 12, 6, 3, 2, 1], "each has as many as it leaves to others");
    assert_eq!((gate.figures().waiting, gate.figures().refused), (48, 1_200 - 48));
    admitted(&gate, 1_000).await;
    // A place that is free is for who has less, and none are refused for large ones that wait where there is none.
    waits[0].pop();
    assert_eq!(waits_on(&gate, &connections[0], 1).len(), 0);
    waits.push(waits_on(&gate, &connections[50], 1));
    assert_eq!(waits[100].len(), 1);
    drop(held);
    for wait in waits.into_iter().flatten() {
        wait.await.expect("who waits has its turn");
    }
    assert_eq!((gate.figures().waiting, gate.figures().bytes), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn small_requests_wait_for_their_room_whatever_else_waits() {
    // Of which small messages have 8 MiB, and writes a half of that.
    let gate = Arc::new(Gate::new(32 << 20, 1 << 20, 32 << 20));
    let streams = Arc::new(Streams::new(64 << 20));
    let _held = [admitted(&gate, 8 << 20).await, admitted(&gate, 7 << 20).await];
    let _waits: Vec<_> = (0..10).map(|_| waits_on(&gate, &streams.connection(), 12)).collect();
    let small = |is_write| {
        let hold = Hold::new(Some(Arc::clone(&gate)), streams.connection(), None);
        let body = body_of(&gate, vec![message(64 << 10)], hold.clone());
        let body = if is_write { body.of_write() } else { body };
        async move { body.collect().await.map(|_| hold) }.boxed()
    };
    // Those that are let in, those that wait, and whether one more is refused.
    let begin = |is_write| {
        let (mut held, mut waits) = (Vec::new(), Vec::new());
        loop {
            let mut request = small(is_write);
            match request.as_mut().now_or_never() {
                Some(Ok(hold)) => held.push(hold),
                Some(Err(_)) => return (held, waits),
                None => waits.push(request),
            }
        }
    };
    let (writes, writes_wait) = begin(true);
    let (reads, reads_wait) = begin(false);
    assert!(writes.len() >= 40 && reads.len() >= 40, "{} {}", writes.len(), reads.len());
    assert_eq!((writes_wait.len(), reads_wait.len()), (8, 16), "an eighth of what they wait for");
}

/// A service that reads the message and then works for this long.
#[derive(Clone)]
struct Working(Duration);

impl<B: Inbound> hyper::service::Service<http::Request<GatedBody<B>>> for Working {
    type Response = http::Response<()>;
    type Error = Status;
    type Future = BoxFuture<'static, Result<Self::Response, Status>>;

    fn call(&self, request: http::Request<GatedBody<B>>) -> Self::Future {
        let takes = self.0;
        Box::pin(async move {
            let body = request.into_body();
            let request = Request::holding((), body.hold().clone());
            body.collect().await?;
            let work = async {
                tokio::time::sleep(takes).await;
                Ok(tonic::Response::new(()))
            };
            let done = Terms::of(&request).unary(work).await;
            done.map(|_| http::Response::new(()))
        })
    }
}

/// Such a service behind a gate.
fn working(gate: &Arc<Gate>) -> Gated<Working> {
    Gated::new(Working(Duration::from_millis(50)), Arc::clone(gate), usize::MAX, Arc::default())
}

fn grpc_request<B>(body: B) -> http::Request<B> {
    let request = http::Request::post("/").header("content-type", "application/grpc");
    request.body(body).unwrap()
}

/// The body of a request that must not be read.
fn unread() -> Arrived<impl Inbound> {
    let never = futures::stream::poll_fn(|_| -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        panic!("it is read")
    });
    let connection = Arc::new(Streams::new(1 << 20)).connection();
    Arrived { body: http_body_util::StreamBody::new(never), connection }
}

#[tokio::test]
async fn what_is_no_request_of_grpcs_is_refused_before_any_of_its_body_is_read() {
    let gate = Arc::new(Gate::new(1 << 20, 1 << 20, 1 << 20));
    let mut request = grpc_request(unread());
    *request.method_mut() = http::Method::GET;
    assert_eq!(working(&gate).call(request).await.unwrap().status(), 405);
    let mut request = grpc_request(unread());
    request.headers_mut().insert("content-type", "application/json".parse().unwrap());
    assert_eq!(working(&gate).call(request).await.unwrap().status(), 415);
}

/// A service that panics over each request.
#[derive(Clone)]
struct Panicking;

impl<B> hyper::service::Service<http::Request<B>> for Panicking {
    type Response = http::Response<()>;
    type Error = Status;
    type Future = BoxFuture<'static, Result<Self::Response, Status>>;

    fn call(&self, _: http::Request<B>) -> Self::Future {
        Box::pin(async { panic!("expected by the test") })
    }
}

#[test]
fn a_request_that_panics_before_it_is_begun_is_told_of_as_an_internal_error() {
    let gate = Arc::new(Gate::new(1 << 20, 1 << 20, 1 << 20));
    let rpcs = Arc::new(CoreRpcs::default());
    let path = "/google.bigtable.v2.Bigtable/MutateRow";
    let mut request = grpc_request(unread());
    *request.uri_mut() = path.parse().unwrap();
    let service = Gated::new(Panicking, gate, usize::MAX, Arc::clone(&rpcs));
    let answer = pollster::block_on(service.call(request)).unwrap();
    let told = Status::from_header_map(answer.headers()).unwrap();
    assert_eq!(told.code(), tonic::Code::Internal);
    let figures = rpc::sum(&[rpcs], rpc::at(path).unwrap().0);
    let by = |code: tonic::Code| figures.ended[code as usize];
    assert_eq!((by(tonic::Code::Internal), by(tonic::Code::Cancelled)), (1, 0));
}

/// Memory of which it is seen whether it is kept.
struct Came(Arc<String>);

impl AsRef<[u8]> for Came {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

#[tokio::test]
async fn a_request_that_waits_keeps_nothing_of_what_its_path_came_with() {
    let gate = Arc::new(Gate::new(1 << 20, 1 << 20, 1 << 20));
    let never = futures::stream::pending::<Result<Frame<Bytes>, Status>>();
    let body = http_body_util::StreamBody::new(never);
    let connection = Arc::new(Streams::new(1 << 20)).connection();
    let mut request = grpc_request(Arrived { body, connection });
    let came = Arc::new("/google.bigtable.v2.Bigtable/ReadRows".to_owned());
    let path = Bytes::from_owner(Came(Arc::clone(&came)));
    *request.uri_mut() = http::Uri::from_maybe_shared(path).unwrap();
    let mut waits = Box::pin(working(&gate).call(request));
    assert!(waits.as_mut().now_or_never().is_none());
    assert_eq!(Arc::strong_count(&came), 1);
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
    let connection = Arc::new(Streams::new(1 << 20)).connection();
    let mut request = grpc_request(Arrived { body: Box::pin(parts), connection });
    request.headers_mut().insert("grpc-timeout", timeout.parse().unwrap());
    let done = working(gate).call(request).await;
    (done.map_or_else(|status| status.code(), |_| tonic::Code::Ok), began.elapsed())
}

#[tokio::test(start_paused = true)]
async fn a_deadline_counts_from_the_arrival_of_the_requests_head() {
    let gate = Arc::new(Gate::new(2 << 20, 1 << 20, 2 << 20));
    let later = Duration::from_millis(80);
    let soon = |(code, took): (_, Duration)| (code, took.as_millis());
    let ended = soon(ends(&gate, "50m", later).await);
    assert!(ended.0 == tonic::Code::DeadlineExceeded && ended.1 < 55, "{ended:?}: in the midst");
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
fn endless(gate: &Arc<Gate>, bytes: &[u8], deadline: Option<Deadline>) -> GatedBody<impl Inbound> {
    let part = Ok::<_, Status>(Frame::data(Bytes::copy_from_slice(bytes)));
    let part = futures::stream::iter((!bytes.is_empty()).then_some(part));
    let never = futures::StreamExt::chain(part, futures::stream::pending());
    let inner = http_body_util::StreamBody::new(never);
    let hold = Hold::new(None, Arc::new(Streams::new(1 << 20)).connection(), deadline);
    GatedBody::new(inner, (Arc::clone(gate), u64::MAX), hold)
}

#[tokio::test(start_paused = true)]
async fn a_client_that_keeps_its_message_or_the_rest_or_the_end_of_it_is_not_waited_for() {
    let gate = Arc::new(Gate::new(4 << 20, 1 << 20, 4 << 20));
    let whole = message(2 << 20);
    for (n, bytes) in [1_000, whole.len(), 3, 0].into_iter().map(|len| &whole[..len]).enumerate() {
        let began = Instant::now();
        let ended = endless(&gate, bytes, None).collect().await.unwrap_err();
        assert_eq!(ended.code(), tonic::Code::DeadlineExceeded);
        let wait = if bytes.is_empty() { REQUEST_HEAD_PAUSE } else { REQUEST_BODY_PAUSE };
        assert!(began.elapsed() < 2 * wait, "{:?}", began.elapsed());
        assert_eq!((gate.figures().bytes, gate.figures().paused), (0, n as u64 + 1));
    }
}

/// How a message ends of which so many bytes come every nine seconds, up to a hundred times, and after how many of these.
async fn drips(
    gate: &Arc<Gate>,
    bytes: usize,
    drop_bytes: usize,
) -> (Result<(), tonic::Code>, u64) {
    drips_in(gate, Hold::default(), bytes, drop_bytes).await
}

async fn drips_in(
    gate: &Arc<Gate>,
    hold: Hold,
    bytes: usize,
    drop_bytes: usize,
) -> (Result<(), tonic::Code>, u64) {
    let whole = Bytes::from(message(bytes));
    let end = whole.len().min(1_000 + 100 * drop_bytes);
    let mut parts = vec![whole.slice(..1_000)];
    parts.extend(whole[1_000..end].chunks(drop_bytes).map(|part| whole.slice_ref(part)));
    parts.push(whole.slice(end..));
    let dripping = futures::stream::unfold(parts.into_iter(), |mut parts| async {
        tokio::time::sleep(Duration::from_secs(9)).await;
        parts.next().map(|part| (Ok::<_, Status>(Frame::data(part)), parts))
    });
    let body = http_body_util::StreamBody::new(Box::pin(dripping));
    let body = GatedBody::new(body, (Arc::clone(gate), u64::MAX), hold);
    let began = Instant::now();
    let ended = body.collect().await.map(drop).map_err(|status| status.code());
    (ended, began.elapsed().as_secs() / 9)
}

#[tokio::test(start_paused = true)]
async fn a_message_that_comes_drop_by_drop_is_ended_where_others_lack_its_room() {
    let gate = Arc::new(Gate::new(4 << 20, 1 << 20, 4 << 20));
    // Half of the part for large messages, of three MiB; with the one that drips, nine tenths.
    let _others = admitted(&gate, 900_000).await;
    assert_eq!(drips(&gate, 1_000_000, 1).await.0, Ok(()), "nobody needs the room");
    let more = async {
        loop {
            // There is room for it until the other has begun.
            drop(body(&gate, vec![message(900_000)]).0.collect().await);
            tokio::time::sleep(REQUEST_BODY_PAUSE).await;
        }
    };
    // It never ends.
    let dripping = drips(&gate, 1_000_000, 1);
    let (ended, drops) = tokio::select! { ended = dripping => ended, never = more => never };
    assert_eq!(ended, Err(tonic::Code::DeadlineExceeded));
    assert!(drops <= 4, "{drops}");
    assert_eq!(gate.figures().paused, 1);
}

#[tokio::test(start_paused = true)]
async fn a_small_message_has_twenty_seconds_where_others_lack_its_room() {
    // Of which small messages have one MiB: ten of the largest.
    let gate = Arc::new(Gate::new(4 << 20, 1 << 20, 4 << 20));
    let _others: Vec<_> =
        futures::future::join_all((0..9).map(|_| admitted(&gate, 64 << 10))).await;
    let (ended, _) = drips(&gate, 64 << 10, 2 << 10).await;
    assert_eq!(ended, Ok(()), "nobody needs the room");
    let more = async {
        loop {
            drop(body(&gate, vec![message(64 << 10)]).0.collect().await);
            tokio::time::sleep(REQUEST_BODY_PAUSE).await;
        }
    };
    let dripping = drips(&gate, 64 << 10, 2 << 10);
    let (ended, drops) = tokio::select! { ended = dripping => ended, never = more => never };
    assert_eq!(ended, Err(tonic::Code::DeadlineExceeded));
    assert!(drops <= 5, "a sixth of it has come: {drops}");
}

#[tokio::test(start_paused = true)]
async fn a_message_that_drips_is_ended_where_its_own_connection_lacks_its_room() {
    // Of which small messages have one MiB: ten of the largest.
    let gate = Arc::new(Gate::new(4 << 20, 1 << 20, 4 << 20));
    let streams = Arc::new(Streams::new(64 << 20));
    let mine = streams.connection();
    let _others: Vec<_> = (0..6).map(|_| has_begun(&gate, &mine, 64 << 10)).collect();
    let more = async {
        loop {
            drop(begins(&gate, &mine, 64 << 10).await);
            tokio::time::sleep(REQUEST_BODY_PAUSE).await;
        }
    };
    let hold = Hold::new(Some(Arc::clone(&gate)), Arc::clone(&mine), None);
    let dripping = drips_in(&gate, hold, 64 << 10, 2 << 10);
    let (ended, _) = tokio::select! { biased; ended = dripping => ended, never = more => never };
    assert_eq!(ended, Err(tonic::Code::DeadlineExceeded));
    assert_eq!(gate.waits(Line::Small), 0, "nobody else lacks anything");
}

/// A request of a connection that begins a message of so many bytes.
fn begins(
    gate: &Arc<Gate>,
    connection: &Arc<Connection>,
    bytes: usize,
) -> BoxFuture<'static, Result<Hold, Status>> {
    let hold = Hold::new(Some(Arc::clone(gate)), Arc::clone(connection), None);
    let mut body = body_of(gate, vec![head(bytes)], hold.clone());
    async move { body.frame().await.unwrap().map(|_| hold) }.boxed()
}

/// The same of one that has room at once.
fn has_begun(gate: &Arc<Gate>, connection: &Arc<Connection>, bytes: usize) -> Hold {
    begins(gate, connection, bytes).now_or_never().expect("there is room").unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_client_on_a_slow_line_leaves_room_to_others() {
    // Of which messages of more than 64 KiB have 12 MiB, and each of these takes 1.5.
    let gate = Arc::new(Gate::new(16 << 20, 1 << 20, 16 << 20));
    let streams = Arc::new(Streams::new(64 << 20));
    let (slow, other, third) = (streams.connection(), streams.connection(), streams.connection());
    let mut loads: Vec<_> = (0..5).map(|_| has_begun(&gate, &slow, 1 << 20)).collect();
    let mut waits = begins(&gate, &slow, 1 << 20);
    assert!(waits.as_mut().now_or_never().is_none(), "it would have three quarters with that");
    let small = has_begun(&gate, &slow, 1_000);
    let bulk = has_begun(&gate, &other, 1 << 20);
    assert_eq!((gate.figures().waiting, gate.figures().refused), (1, 0));
    // What others give back is for all.
    drop(bulk);
    assert!(waits.as_mut().now_or_never().is_none(), "it would still");
    loads.pop();
    loads.push(waits.await.unwrap());
    let refused = begins(&gate, &slow, 1 << 20).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
    assert!(!refused.details().is_empty());
    drop((loads, small));
    assert_eq!(gate.figures().bytes, 0);
    // The largest there may be.
    let largest = has_begun(&gate, &third, gate.message_bytes_max() as usize);
    assert!(begins(&gate, &other, 1 << 20).now_or_never().is_none(), "that has all of it");
    drop(largest);
    assert_eq!(gate.figures().bytes, 0);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_has_all_it_may_is_told_so_and_keeps_nobody_from_their_time() {
    let gate = Arc::new(Gate::new(16 << 20, 1 << 20, 16 << 20));
    let streams = Arc::new(Streams::new(64 << 20));
    let (slow, other) = (streams.connection(), streams.connection());
    let mut loads: Vec<_> = (0..5).map(|_| has_begun(&gate, &slow, 1 << 20)).collect();
    let refused = begins(&gate, &slow, 1 << 20).await.unwrap_err();
    assert!(refused.message().contains("this connection"), "{refused}");
    assert_eq!(gate.waits(Line::Large), 0);
    assert!(!gate.large.was_short(), "a quarter is free");
    // Where others have what it could have, that is a shortage.
    loads.truncate(3);
    let _theirs: Vec<_> = (0..3).map(|_| has_begun(&gate, &other, 1 << 20)).collect();
    let refused = begins(&gate, &slow, 1 << 20).await.unwrap_err();
    assert!(!refused.message().contains("this connection"), "{refused}");
    assert_eq!(gate.waits(Line::Large), 1);
    assert!(gate.large.was_short());
}

#[tokio::test(start_paused = true)]
async fn a_write_that_lacks_what_reads_have_is_in_want_of_their_part() {
    // Ten of the largest small messages.
    let gate = Arc::new(Gate::new(4 << 20, 1 << 20, 4 << 20));
    let streams = Arc::new(Streams::new(64 << 20));
    let (reads, writes) = (streams.connection(), streams.connection());
    let _reads: Vec<_> = (0..7).map(|_| has_begun(&gate, &reads, 64 << 10)).collect();
    let write = || {
        let hold = Hold::new(Some(Arc::clone(&gate)), Arc::clone(&writes), None);
        let mut body = body_of(&gate, vec![head(64 << 10)], hold.clone()).of_write();
        async move { body.frame().await.unwrap().map(|_| hold) }
    };
    let _written = [write().await.unwrap(), write().await.unwrap()];
    let (of_reads, of_share) = (gate.waits(Line::Small), gate.small_writes.waits());
    write().await.unwrap_err();
    assert_eq!(gate.waits(Line::Small) - of_reads, 1, "reads that drip are in its way");
    assert_eq!(gate.small_writes.waits(), of_share);
    assert!(gate.small.was_short());
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_its_connections_share_has_it_when_others_give_back_theirs() {
    let gate = Arc::new(Gate::new(16 << 20, 1 << 20, 16 << 20));
    let streams = Arc::new(Streams::new(64 << 20));
    let (first, second) = (streams.connection(), streams.connection());
    // Three of twelve MiB are free, and a fourth message would leave a half of that.
    let mut theirs: Vec<_> = (0..3).map(|_| has_begun(&gate, &first, 1 << 20)).collect();
    let _mine: Vec<_> = (0..3).map(|_| has_begun(&gate, &second, 1 << 20)).collect();
    let waits = begins(&gate, &second, 1 << 20);
    let gives_back = async {
        tokio::task::yield_now().await;
        assert_eq!(gate.figures().waiting, 1);
        theirs.pop();
    };
    let began = Instant::now();
    futures::join!(waits, gives_back).0.unwrap();
    assert_eq!(began.elapsed(), Duration::ZERO, "without a second look at the time");
}

#[tokio::test(start_paused = true)]
async fn what_comes_beside_a_stream_has_its_turn_where_others_take_all_that_is_free() {
    let gate = Arc::new(Gate::new(16 << 20, 1 << 20, 16 << 20));
    let streams = Arc::new(Streams::new(64 << 20));
    let mine = streams.connection();
    let _stream = has_begun(&gate, &mine, 10_000);
    let others: Vec<_> = (0..41)
        .map(|_| begins(&gate, &streams.connection(), 64 << 10).now_or_never().unwrap().unwrap())
        .collect();
    // From here on somebody always stands in line.
    let mut before = begins(&gate, &streams.connection(), 64 << 10);
    assert!(before.as_mut().now_or_never().is_none());
    let mut beside = begins(&gate, &mine, 10_000);
    assert!(beside.as_mut().now_or_never().is_none());
    let mut behind = begins(&gate, &streams.connection(), 64 << 10);
    assert!(behind.as_mut().now_or_never().is_none());
    let mut others = others.into_iter();
    drop(others.next());
    let _before = before.await.unwrap();
    let _beside = beside.await.expect("it comes before who came later");
    drop(others.next());
    behind.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_its_connections_share_goes_on_when_who_stands_in_line_gives_up() {
    let gate = Arc::new(Gate::new(16 << 20, 1 << 20, 16 << 20));
    let streams = Arc::new(Streams::new(64 << 20));
    let (mine, other) = (streams.connection(), streams.connection());
    let largest = gate.message_bytes_max() as usize;
    // All that is free is kept for the other's.
    let _held = has_begun(&gate, &mine, 1 << 20);
    let mut in_line = begins(&gate, &other, largest);
    assert!(in_line.as_mut().now_or_never().is_none());
    let mut waits = begins(&gate, &mine, 1 << 20);
    let woken = Arc::new(Woken(AtomicBool::new(false)));
    let waker = futures::task::waker(Arc::clone(&woken));
    assert!(waits.poll_unpin(&mut Context::from_waker(&waker)).is_pending());
    drop(in_line);
    assert!(woken.0.load(Ordering::Relaxed));
    assert!(waits.now_or_never().is_some_and(|begun| begun.is_ok()));
    // The one in line counts as the connection's, for as long as it stands there.
    let mut in_line = begins(&gate, &other, largest);
    assert!(in_line.as_mut().now_or_never().is_none());
    let mut waits = begins(&gate, &other, 1 << 20);
    assert!(waits.as_mut().now_or_never().is_none());
    drop(in_line);
    assert!(waits.now_or_never().is_some_and(|begun| begun.is_ok()));
}

/// Of so many choices the next one that looks like chance.
fn next(seed: &mut u64, choices: usize) -> usize {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) as usize % choices
}

#[tokio::test(start_paused = true)]
async fn in_whatever_order_requests_begin_and_end_or_are_given_up_none_sleeps_while_it_has_room() {
    for seed in 0..200 {
        let gate = Arc::new(Gate::new(16 << 20, 1 << 20, 16 << 20));
        let streams = Arc::new(Streams::new(64 << 20));
        let connections: Vec<_> = (0..4).map(|_| streams.connection()).collect();
        // Requests are looked at when they are woken, and else not.
        let mut waiting: Vec<BoxFuture<'static, Result<Hold, Status>>> = Vec::new();
        let mut woken: Vec<Arc<Woken>> = Vec::new();
        let mut held = Vec::new();
        let mut chance = seed;
        for _ in 0..200 {
            match next(&mut chance, 5) {
                0 if !held.is_empty() => drop(held.swap_remove(next(&mut chance, held.len()))),
                1 if !waiting.is_empty() => {
                    let given_up = next(&mut chance, waiting.len());
                    drop((waiting.remove(given_up), woken.remove(given_up)));
                }
                _ => {
                    let connection = &connections[next(&mut chance, connections.len())];
                    let bytes = [1 << 10, 60 << 10, 1 << 20, 3 << 20][next(&mut chance, 4)];
                    let hold = Hold::new(Some(Arc::clone(&gate)), Arc::clone(connection), None);
                    let body = body_of(&gate, vec![head(bytes)], hold.clone());
                    let is_write = next(&mut chance, 2) == 0;
                    let mut body = if is_write { body.of_write() } else { body };
                    let request = async move { body.frame().await.unwrap().map(|_| hold) };
                    waiting.push(tokio::task::unconstrained(request).boxed());
                    woken.push(Arc::new(Woken(AtomicBool::new(true))));
                }
            }
            look(&mut waiting, &mut woken, &mut held);
        }
        while !waiting.is_empty() {
            assert!(!held.is_empty(), "{seed}: {} wait for nobody", waiting.len());
            held.swap_remove(next(&mut chance, held.len()));
            look(&mut waiting, &mut woken, &mut held);
        }
        held.clear();
        assert_eq!((gate.figures().bytes, gate.figures().waiting), (0, 0));
        for connection in connections {
            for line in [Line::Small, Line::SmallWrites, Line::Large] {
                assert_eq!(connection.taken.of(line).load(Ordering::Relaxed), 0);
            }
        }
    }
}

/// Whether something was woken.
struct Woken(AtomicBool);

impl futures::task::ArcWake for Woken {
    fn wake_by_ref(woken: &Arc<Self>) {
        woken.0.store(true, Ordering::Relaxed);
    }
}

/// Looks at the requests that were woken until none is. Those that have their room hold it; those that are refused are over.
fn look(
    waiting: &mut Vec<BoxFuture<'static, Result<Hold, Status>>>,
    woken: &mut Vec<Arc<Woken>>,
    held: &mut Vec<Hold>,
) {
    while let Some(at) = woken.iter().position(|woken| woken.0.swap(false, Ordering::Relaxed)) {
        let waker = futures::task::waker(Arc::clone(&woken[at]));
        if let Poll::Ready(ended) = waiting[at].as_mut().poll(&mut Context::from_waker(&waker)) {
            drop((waiting.remove(at), woken.remove(at)));
            held.extend(ended);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_message_of_many_parts_is_decoded_into_has_its_room_or_is_refused() {
    let gate = Arc::new(Gate::new(4 << 20, 2 << 20, 4 << 20));
    let hold =
        || Hold::new(Some(Arc::clone(&gate)), Arc::new(Streams::new(1 << 20)).connection(), None);
    let first = admitted_on(&gate, 100_000, hold()).await;
    let message_bytes = gate.figures().bytes;
    first.make_room_to_decode(40_000, false).await.unwrap();
    assert_eq!(gate.figures().bytes, message_bytes, "half of the message is counted for it");
    first.make_room_to_decode(700_000, false).await.unwrap();
    let both_bytes = gate.figures().bytes;
    assert!(both_bytes >= message_bytes + 640_000, "{both_bytes}");
    let second = admitted_on(&gate, 1_000, hold()).await;
    second.make_room_to_decode(1_000, false).await.expect("a few parts need no room");
    let refused = second.make_room_to_decode(700_000, false).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
    assert!(!refused.details().is_empty());
    let waits = second.make_room_to_decode(700_000, false);
    let ends = async {
        tokio::task::yield_now().await;
        assert_eq!(gate.figures().waiting, 1);
        drop(first);
    };
    futures::join!(waits, ends).0.unwrap();
    // More than there is for anybody takes all of it.
    drop(second);
    let third = admitted_on(&gate, 1_000, hold()).await;
    third.make_room_to_decode(u64::MAX, false).await.unwrap();
    drop(third);
    assert_eq!(gate.figures().bytes, 0);
}

#[tokio::test(start_paused = true)]
async fn reads_that_keep_what_they_were_decoded_into_leave_room_for_writes() {
    let gate = Arc::new(Gate::new(4 << 20, 1 << 20, 4 << 20));
    let connection = Arc::new(Streams::new(1 << 20)).connection();
    let hold = |deadline| Hold::new(Some(Arc::clone(&gate)), Arc::clone(&connection), deadline);
    let reads = admitted_on(&gate, 1_000, hold(None)).await;
    reads.make_room_to_decode(u64::MAX, true).await.unwrap();
    let timeout = [(http::HeaderName::from_static("grpc-timeout"), "70m".parse().unwrap())];
    let hasty = admitted_on(&gate, 1_000, hold(Deadline::of(&timeout.into_iter().collect()))).await;
    let began = Instant::now();
    let late = hasty.make_room_to_decode(100_000, true).await.unwrap_err();
    assert_eq!(late.code(), tonic::Code::DeadlineExceeded);
    assert!(began.elapsed().as_millis() < 75, "{:?}", began.elapsed());
    hasty.make_room_to_decode(100_000, false).await.expect("writes have a part of their own");
}

#[tokio::test(start_paused = true)]
async fn a_filter_has_its_room_or_is_let_go_of_while_that_is_waited_for() {
    let gate = Arc::new(Gate::new(4 << 20, 2 << 20, 4 << 20));
    let connection = Arc::new(Streams::new(1 << 20)).connection();
    let hold = || Hold::new(Some(Arc::clone(&gate)), Arc::clone(&connection), None);
    let made = Arc::new(());
    let compile = || Ok(Arc::clone(&made));
    let compiled = async |hold: &Hold, bytes: usize, lasts| {
        hold.in_room_for_filter(compile, |_| bytes, lasts).await
    };
    let (first, second) = (hold(), hold());
    let kept = compiled(&first, 700_000, true).await.unwrap();
    assert!(gate.figures().bytes >= 700_000);
    let refused = compiled(&second, 700_000, true).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
    assert!(!refused.details().is_empty());
    compiled(&second, 50_000, true).await.expect("what most have needs no room");
    compiled(&second, 700_000, false).await.expect("those of writes have a part of their own");
    assert_eq!(Arc::strong_count(&made), 2);
    let waits = compiled(&second, 700_000, true);
    let ends = async {
        tokio::task::yield_now().await;
        assert_eq!((gate.figures().waiting, Arc::strong_count(&made)), (1, 2));
        drop((kept, first));
    };
    futures::join!(waits, ends).0.unwrap();
    drop(second);
    assert_eq!(gate.figures().bytes, 0);
}

#[tokio::test(start_paused = true)]
async fn a_filter_waits_for_no_room_that_its_own_request_has() {
    let gate = Arc::new(Gate::new(4 << 20, 2 << 20, 4 << 20));
    let connection = Arc::new(Streams::new(1 << 20)).connection();
    for lasts in [false, true] {
        let hold = Hold::new(Some(Arc::clone(&gate)), Arc::clone(&connection), None);
        hold.make_room_to_decode(u64::MAX, lasts).await.unwrap();
        let compiled = hold.in_room_for_filter(|| Ok(()), |()| 700_000, lasts).await;
        compiled.expect("all of the room is its own");
    }
    assert_eq!(gate.figures().bytes, 0);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_ends_a_request_of_which_only_the_head_came() {
    let gate = Arc::new(Gate::new(4 << 20, 1 << 20, 4 << 20));
    let timeout = [(http::HeaderName::from_static("grpc-timeout"), "70m".parse().unwrap())];
    let began = tokio::time::Instant::now();
    let ended = endless(&gate, &[], Deadline::of(&timeout.into_iter().collect()));
    let ended = ended.collect().await.unwrap_err();
    assert_eq!(ended.code(), tonic::Code::DeadlineExceeded);
    assert!(began.elapsed().as_millis() < 75, "{:?}", began.elapsed());
}

#[tokio::test]
async fn what_is_too_large_or_more_than_a_message_is_refused_before_it_is_read() {
    let gate = Arc::new(Gate::new(1 << 20, 1 << 20, 512 << 10));
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

/// The message of a request that has room from now on.
async fn admitted(gate: &Arc<Gate>, bytes: usize) -> Hold {
    admitted_on(gate, bytes, Hold::default()).await
}

/// The same of one that holds this.
async fn admitted_on(gate: &Arc<Gate>, bytes: usize, hold: Hold) -> Hold {
    body_of(gate, vec![message(bytes)], hold.clone()).collect().await.unwrap();
    hold
}

#[tokio::test(start_paused = true)]
async fn reads_that_their_client_leaves_are_ended_where_others_wait_in_vain_for_their_requests_room()
 {
    // Of which messages of more than 64 KiB have 12 MiB.
    let gate = Arc::new(Gate::new(16 << 20, 1 << 20, 16 << 20));
    let streams = Arc::new(Streams::new(64 << 20));
    let (left, other) = (streams.connection(), streams.connection());
    let mut reads = Vec::new();
    for connection in [&left, &left, &left, &other, &left, &left] {
        let hold = Hold::new(None, Arc::clone(connection), None);
        let mut read = streams.answer(admitted_on(&gate, 1 << 20, hold).await);
        read.make_room().await.unwrap();
        read.cover(64 << 10).await.unwrap();
        read.park(None, 0);
        reads.push((connection, read));
    }
    let late = CLOSE_STALLED_AFTER.as_micros() as u64;
    streams.relieve(late, false, &gate);
    assert_eq!(streams.figures().closed, 0, "nobody waits for it");
    let bulk = || async { body(&gate, vec![message(4 << 20)]).0.collect().await };
    let refused = bulk().await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
    streams.relieve(late - 1, false, &gate);
    assert_eq!(streams.figures().closed, 0, "it is not long enough");
    bulk().await.unwrap_err();
    streams.relieve(late, false, &gate);
    assert_eq!(streams.figures().closed, 1);
    let is_closed = |connection: &Arc<Connection>| connection.closed.load(Ordering::Relaxed);
    assert!(is_closed(&left) && !is_closed(&other), "the one with most of them");
    // Its reads go with it.
    reads.retain(|(connection, _)| !is_closed(connection));
    bulk().await.unwrap();
    // One that is left and holds little is not what the next one waits for.
    let at_work = [admitted(&gate, 3 << 20).await, admitted(&gate, 3 << 20).await];
    bulk().await.unwrap_err();
    streams.relieve(late, false, &gate);
    assert_eq!(streams.figures().closed, 1);
    drop((reads, at_work));
    assert_eq!(gate.figures().bytes, 0);
}

#[tokio::test(start_paused = true)]
async fn reads_that_wait_behind_those_that_their_client_leaves_keep_the_room_of_requests_too() {
    // Of which messages of more than 64 KiB have 12 MiB, and the answers of a connection 8.
    let gate = Arc::new(Gate::new(16 << 20, 1 << 20, 16 << 20));
    let streams = Arc::new(Streams::new(64 << 20));
    let connection = streams.connection();
    let read = || async {
        let hold = Hold::new(None, Arc::clone(&connection), None);
        streams.answer(admitted_on(&gate, 1 << 20, hold).await)
    };
    let (mut second, mut first) = (read().await, read().await);
    second.make_room().await.unwrap();
    second.cover(64 << 10).await.unwrap();
    second.taken();
    let (mut left, mut also_left) = (read().await, read().await);
    for read in [&mut left, &mut also_left] {
        read.make_room().await.unwrap();
        read.cover(4 << 20).await.unwrap();
        read.park(None, 0);
    }
    // One waits for its second message, one for its first. It takes all four to keep half of the room.
    let mut second = Box::pin(second.make_room());
    let mut first = Box::pin(first.make_room());
    assert!(second.as_mut().now_or_never().is_none() && first.as_mut().now_or_never().is_none());
    let late = CLOSE_STALLED_AFTER.as_micros() as u64;
    for (now, closed) in [(late - 1, 0), (late, 1)] {
        let refused = body(&gate, vec![message(4 << 20)]).0.collect().await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        streams.relieve(now, false, &gate);
        assert_eq!(streams.figures().closed, closed);
    }
    assert!(connection.closed.load(Ordering::Relaxed));
}

#[tokio::test(start_paused = true)]
async fn requests_that_their_clients_give_up_tell_of_the_want_of_room_too() {
    let gate = Arc::new(Gate::new(2 << 20, 1 << 20, 2 << 20));
    let streams = Arc::new(Streams::new(64 << 20));
    let late = CLOSE_STALLED_AFTER.as_micros() as u64;
    let mut read = streams.answer(admitted(&gate, 900 << 10).await);
    read.make_room().await.unwrap();
    read.cover(64 << 10).await.unwrap();
    read.park(None, 0);
    let ended = ends(&gate, "100m", Duration::ZERO).await;
    assert_eq!(ended.0, tonic::Code::DeadlineExceeded);
    streams.relieve(late, false, &gate);
    assert_eq!(streams.figures().closed, 1, "the deadline passed here");
    let (request, _) = body(&gate, vec![message(900 << 10)]);
    assert!(request.collect().now_or_never().is_none());
    streams.relieve(late, false, &gate);
    assert_eq!(streams.figures().closed, 2, "the client was the first to say so");
    // One that had its room in time tells nothing.
    let (request, _) = body(&gate, vec![message(900 << 10)]);
    let mut request = Box::pin(request.collect());
    assert!(request.as_mut().now_or_never().is_none());
    drop(read);
    request.await.unwrap();
    let mut read = streams.answer(admitted(&gate, 900 << 10).await);
    read.make_room().await.unwrap();
    read.cover(64 << 10).await.unwrap();
    read.park(None, 0);
    streams.relieve(late, false, &gate);
    assert_eq!(streams.figures().closed, 2);
}
