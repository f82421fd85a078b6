//! An accepted connection that the server can close from anywhere, and what its requests know of it.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use futures::FutureExt as _;
use futures::future::{BoxFuture, Fuse};
use futures::task::AtomicWaker;
use tepui_bigtable::error::Result;
use tepui_bigtable::turn::others_first;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, Semaphore};
use tokio::time::Sleep;

use super::loose::OwnLoose;
use super::requests::Lines;
use super::streams::Expected;
use super::{Answer, Hold, Streams};
use crate::gather::Gathered;
use crate::limits::{LINGER, PREFACE_BYTES, PREFACE_TIMEOUT};
use crate::placement::Seat;
use crate::runtime::{Signal, given};

/// A connection as its requests see it.
#[derive(Debug)]
pub struct Connection {
    /// What they are charged to.
    pub(super) streams: Arc<Streams>,
    /// Bytes of answers of it that were made, for which there was no room, and that its client has not taken; and how many there may be.
    pub(super) uncovered: AtomicU64,
    pub(super) share_bytes: u64,
    /// What its answers may still take of the budget.
    pub(super) answers: Arc<Semaphore>,
    /// What first messages of them may still take of what is kept for those.
    pub(super) kept: Arc<Semaphore>,
    /// What each of them is expected to begin with, and whose turn it is to try with less.
    pub(super) expected: Expected,
    pub(super) turn: Arc<Semaphore>,
    /// Its requests that wait for room.
    pub(super) requests_waiting: AtomicU64,
    /// Bytes that these may send meanwhile.
    pub(super) lines: Lines,
    /// What its requests have of the room for them, in units; and whose turn it is to wait until it may have more.
    pub(super) taken: Lines,
    pub(super) turns: Lines<Mutex<()>>,
    /// How many of them have waited so far since it has as much as it may have, whatever others have.
    pub(super) waits: Lines,
    /// Bytes that it has in memory without room for them ([`super::loose`]).
    pub(super) loose: OwnLoose,
    /// Requests that it has had, and those that are under way.
    requests: AtomicU64,
    under_way: AtomicU64,
    /// It has the watch of health that each may have.
    watches: AtomicBool,
    pub(super) closed: AtomicBool,
    reader: AtomicWaker,
}

impl Connection {
    /// A connection whose answers may take this many units of the budget, which are so many bytes, and so many of what is kept for first messages.
    pub(super) fn new(
        streams: Arc<Streams>,
        answer_units: u32,
        kept_units: u32,
        share_bytes: u64,
    ) -> Arc<Self> {
        streams.loose.connected();
        Arc::new(Self {
            uncovered: AtomicU64::new(0),
            share_bytes,
            streams,
            answers: Arc::new(Semaphore::new(answer_units as usize)),
            kept: Arc::new(Semaphore::new(kept_units as usize)),
            expected: Expected::first(share_bytes),
            turn: Arc::new(Semaphore::new(1)),
            requests_waiting: AtomicU64::new(0),
            lines: Lines::default(),
            taken: Lines::default(),
            turns: Lines::default(),
            waits: Lines::default(),
            loose: OwnLoose::default(),
            requests: AtomicU64::new(0),
            under_way: AtomicU64::new(0),
            watches: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            reader: AtomicWaker::new(),
        })
    }

    /// A request begins, which is under way until this is dropped.
    pub fn begin(self: &Arc<Self>) -> UnderWay {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.under_way.fetch_add(1, Ordering::Relaxed);
        UnderWay(Arc::clone(self))
    }

    /// Requests that it has had so far.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Whether none is under way, and it has had so many and no more.
    pub fn rests_since(&self, requests: u64) -> bool {
        self.under_way.load(Ordering::Relaxed) == 0 && self.requests() == requests
    }

    /// Takes the place of the watch that each connection may have; `false` where it has one.
    pub fn begin_watch(&self) -> bool {
        !self.watches.swap(true, Ordering::Relaxed)
    }

    /// Gives it back.
    pub fn end_watch(&self) {
        self.watches.store(false, Ordering::Relaxed);
    }

    /// An answer to a request of it that holds this.
    pub(super) fn answer(&self, hold: Hold) -> Answer {
        self.streams.answer(hold)
    }

    /// Refuses what may have a large answer while such answers, for which there was no room, are not taken.
    pub(super) fn check_answers(&self) -> Result<()> {
        if self.uncovered.load(Ordering::Relaxed) >= self.share_bytes {
            return Err(self.streams.refuse());
        }
        self.streams.check_uncovered()
    }

    /// Ends the connection and with it all its requests, whatever its client does.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.reader.wake();
    }
}

/// A request of a connection that is under way.
#[derive(Debug)]
pub struct UnderWay(Arc<Connection>);

impl UnderWay {
    /// Its connection.
    pub fn connection(&self) -> &Arc<Connection> {
        &self.0
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.streams.loose.disconnected();
    }
}

/// The body of a request, and the connection that it comes by.
#[derive(Debug)]
pub struct Arrived<B> {
    /// The body.
    pub body: B,
    /// The connection.
    pub connection: Arc<Connection>,
}

/// Bytes that a connection sends and receives before others of its core have their turn: some 50 microseconds. Without it a
/// client that sends or takes as fast as it can has the core for as long as it goes on.
const TURN_BYTES: usize = 128 << 10;

/// Bytes that are read at a time of what is of no interest.
const UNREAD_BYTES: usize = 4 << 10;

/// The two ends of a connection that was accepted.
pub struct Accepted {
    stream: Gathered<TcpStream>,
    connection: Arc<Connection>,
    /// Bytes of this turn.
    turn_bytes: usize,
    /// Between two turns.
    pause: Option<BoxFuture<'static, ()>>,
    /// Until all of it was read.
    preface: Option<Preface>,
    /// Since its end was sent: until when its peer's is waited for.
    linger: Option<Pin<Box<Sleep>>>,
    seat: Seat,
}

/// The preface of HTTP/2, while it is waited for.
struct Preface {
    bytes_left: usize,
    timeout: Pin<Box<Sleep>>,
    /// Given when nobody is served any more.
    stopping: Fuse<BoxFuture<'static, ()>>,
}

impl fmt::Debug for Accepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Accepted").field("connection", &self.connection).finish_non_exhaustive()
    }
}

impl Accepted {
    /// The connection behind a socket, which has a seat at its core; its answers are charged to `streams`. Where the preface of
    /// HTTP/2 has not come as a whole once `draining` is given, it ends: there is no request to be waited for.
    pub fn new(stream: TcpStream, seat: Seat, streams: &Arc<Streams>, draining: Signal) -> Self {
        let timeout = Box::pin(tokio::time::sleep(PREFACE_TIMEOUT));
        let stopping = given(draining).boxed().fuse();
        Self {
            stream: Gathered::new(stream),
            connection: streams.connection(),
            turn_bytes: 0,
            pause: None,
            preface: Some(Preface { bytes_left: PREFACE_BYTES, timeout, stopping }),
            linger: None,
            seat,
        }
    }

    /// It, as its requests see it.
    pub fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// So many bytes were read. An error where the preface is still to come and its time, or that of the server, is over.
    fn check_preface(&mut self, context: &mut Context<'_>, read: usize) -> io::Result<()> {
        let Some(preface) = &mut self.preface else { return Ok(()) };
        preface.bytes_left = preface.bytes_left.saturating_sub(read);
        if preface.bytes_left == 0 {
            self.preface = None;
        } else if preface.stopping.poll_unpin(context).is_ready() {
            let what = "the server stopped before the preface of HTTP/2 had come";
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, what));
        } else if preface.timeout.as_mut().poll(context).is_ready() {
            self.seat.count_silent();
            let what = "the preface of HTTP/2 did not come";
            return Err(io::Error::new(io::ErrorKind::TimedOut, what));
        }
        Ok(())
    }

    /// Ready when it is this connection's turn.
    fn poll_turn(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.turn_bytes >= TURN_BYTES {
            self.turn_bytes = 0;
            self.pause = Some(Box::pin(others_first()));
        }
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(context));
            self.pause = None;
        }
        Poll::Ready(())
    }

    /// Counts what was sent.
    fn sent(&mut self, polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = &polled {
            self.turn_bytes = self.turn_bytes.saturating_add(*bytes);
        }
        polled
    }

    /// Ready when the peer has ended the connection, or has had [`LINGER`] for it. What it sends meanwhile is of no interest.
    fn poll_peers_end(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let linger = self.linger.get_or_insert_with(|| Box::pin(tokio::time::sleep(LINGER)));
        if linger.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        loop {
            ready!(self.poll_turn(context));
            let mut unread = [0; UNREAD_BYTES];
            let mut unread = ReadBuf::new(&mut unread);
            let read = ready!(Pin::new(&mut self.stream).poll_read(context, &mut unread));
            let bytes = unread.filled().len();
            if read.is_err() || bytes == 0 {
                return Poll::Ready(());
            }
            self.turn_bytes = self.turn_bytes.saturating_add(bytes);
        }
    }

    fn check(&self) -> io::Result<()> {
        if self.connection.closed.load(Ordering::Acquire) {
            return Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "the client did not read its answers",
            ));
        }
        Ok(())
    }
}

impl AsyncRead for Accepted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // What is flushed waits for nobody's turn.
        self.stream.poll_due(context)?;
        let before = buffer.filled().len();
        let polled = match self.poll_turn(context) {
            Poll::Ready(()) => Pin::new(&mut self.stream).poll_read(context, buffer),
            Poll::Pending => Poll::Pending,
        };
        let bytes = buffer.filled().len().saturating_sub(before);
        self.turn_bytes = self.turn_bytes.saturating_add(bytes);
        self.check_preface(context, bytes)?;
        if polled.is_pending() {
            // Only who waits has to be woken; checked after that, so that a close in between is not missed.
            self.connection.reader.register(context.waker());
        }
        self.check()?;
        polled
    }
}

impl AsyncWrite for Accepted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        ready!(self.poll_turn(context));
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.sent(polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        ready!(self.poll_turn(context));
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.sent(polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check()?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = match &self.linger {
            None => Pin::new(&mut self.stream).poll_shutdown(context)?,
            Some(_) => Poll::Ready(()),
        };
        let polled = match polled {
            Poll::Ready(()) => self.poll_peers_end(context),
            Poll::Pending => Poll::Pending,
        };
        if polled.is_pending() {
            self.connection.reader.register(context.waker());
        }
        self.check()?;
        polled.map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::{Connections, Door};
    use futures::StreamExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::watch;
    use tokio::time::Instant;

    /// A client, its connection among others, and what stops the server.
    async fn accept(connections: &Arc<Connections>) -> (TcpStream, Accepted, watch::Sender<bool>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let accepting = futures::stream::iter([Ok(stream)]);
        let mut accepted = Door::all(1, connections).remove(0).connections(accepting);
        let (stream, seat) = accepted.next().await.unwrap().unwrap();
        let (drain, draining) = watch::channel(false);
        let streams = Arc::new(Streams::new(1 << 20));
        (client, Accepted::new(stream, seat, &streams, draining), drain)
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_does_not_send_all_of_the_preface_in_time_ends() {
        let connections = Connections::new(1);
        let (mut client, mut accepted, _drain) = accept(&connections).await;
        let began = Instant::now();
        client.write_all(&[0; PREFACE_BYTES - 1]).await.unwrap();
        let mut buffer = [0; PREFACE_BYTES];
        let error = accepted.read_exact(&mut buffer).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        // To the millisecond, in which tokio counts.
        assert_eq!(began.elapsed().as_secs(), PREFACE_TIMEOUT.as_secs());
        assert_eq!((connections.figures().open, connections.figures().silent), (1, 1));
        drop(accepted);
        assert_eq!(connections.figures().open, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_with_a_preface_may_be_silent() {
        let connections = Connections::new(1);
        let (mut client, mut accepted, drain) = accept(&connections).await;
        client.write_all(&[0; PREFACE_BYTES]).await.unwrap();
        let mut buffer = [0; PREFACE_BYTES];
        accepted.read_exact(&mut buffer).await.unwrap();
        let read = accepted.read(&mut buffer);
        assert!(tokio::time::timeout(10 * PREFACE_TIMEOUT, read).await.is_err(), "it goes on");
        assert_eq!(connections.figures().silent, 0);
        drain.send_replace(true);
        let read = accepted.read(&mut buffer);
        assert!(tokio::time::timeout(10 * PREFACE_TIMEOUT, read).await.is_err(), "HTTP/2 ends it");
    }

    #[tokio::test]
    async fn a_connection_on_which_nobody_speaks_ends_when_the_server_stops() {
        let connections = Connections::new(1);
        let (mut client, mut accepted, drain) = accept(&connections).await;
        // What came before is not lost.
        client.write_all(&[0; PREFACE_BYTES - 1]).await.unwrap();
        let mut buffer = [0; PREFACE_BYTES - 1];
        accepted.read_exact(&mut buffer).await.unwrap();
        drain.send(true).unwrap();
        let error = accepted.read(&mut buffer).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
        assert_eq!(connections.figures().silent, 0);
    }

    #[tokio::test]
    async fn what_was_sent_before_the_end_of_a_connection_comes_though_the_client_sends_meanwhile()
    {
        let (mut client, mut accepted, _drain) = accept(&Connections::new(1)).await;
        let sent = vec![7; 8 << 20];
        let send = async {
            accepted.write_all(&sent).await.unwrap();
            accepted.shutdown().await.unwrap();
            drop(accepted);
        };
        let take = async {
            let (mut part, mut taken) = (vec![0; 64 << 10], 0);
            loop {
                let bytes = client.read(&mut part).await.unwrap();
                taken += bytes;
                if bytes == 0 {
                    drop(client);
                    break taken;
                }
                client.write_all(&[1]).await.unwrap();
            }
        };
        let (taken, ()) = tokio::join!(take, send);
        assert_eq!(taken, sent.len());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_end_its_connection_is_not_waited_for_for_long() {
        let (mut client, mut accepted, _drain) = accept(&Connections::new(1)).await;
        let began = Instant::now();
        accepted.shutdown().await.unwrap();
        assert_eq!(began.elapsed().as_secs(), LINGER.as_secs());
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
        // One that does is waited for no longer.
        let (client, mut accepted, _drain) = accept(&Connections::new(1)).await;
        drop(client);
        let began = Instant::now();
        accepted.shutdown().await.unwrap();
        assert!(began.elapsed() < LINGER);
        // Nor is one whose connection is closed for another reason.
        let (_client, mut accepted, _drain) = accept(&Connections::new(1)).await;
        let connection = Arc::clone(accepted.connection());
        let close = async {
            tokio::task::yield_now().await;
            connection.close();
        };
        let (ended, ()) = tokio::join!(accepted.shutdown(), close);
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
    }

    #[tokio::test]
    async fn a_connection_that_is_closed_ends_a_read_that_waits() {
        let (_client, mut accepted, _drain) = accept(&Connections::new(1)).await;
        let connection = Arc::clone(accepted.connection());
        let mut buffer = [0; 8];
        let read = accepted.read(&mut buffer);
        let close = async {
            tokio::task::yield_now().await;
            connection.close();
        };
        let (read, ()) = tokio::join!(read, close);
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
    }
}
