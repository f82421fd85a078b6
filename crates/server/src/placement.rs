//! Which core a connection is served by: the one with the fewest. The kernel spreads connections over the listening
//! sockets by their addresses, as if dice were thrown, and a client has few: of four connections and two cores, all are at
//! one in an eighth of all cases, and in only three of eight each core has two. So the core that accepts a connection hands it on.
//!
//! ```text
//! kernel ──► core 0 accepts ──► fewest at core 1 ──(door)──► core 1 serves
//! ```
//!
//! There is a limit to the connections of all cores together. One beyond it is closed as it comes in, since each is a
//! descriptor and the engine needs descriptors, too ([`crate::open_files`]); clients try again by themselves. Where the
//! system has none for a connection, a core accepts none for a moment.

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::{Either, ready};
use futures::{Stream, StreamExt as _};
use rustix::io::Errno;
use tokio::net::TcpStream;
use tokio::sync::futures::OwnedNotified;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use crate::limits::{ACCEPT_PAUSE, PLACE_WANTED};

/// Connections that are on their way to a core, at most; further ones stay with the core that accepted them.
const ARRIVING_MAX: usize = 256;

/// Where a core's connections come in.
#[derive(Debug)]
pub struct Door {
    cores: Arc<[Core]>,
    connections: Arc<Connections>,
    index: usize,
    arriving: mpsc::Receiver<(std::net::TcpStream, Seat)>,
}

/// The connections of all cores.
#[derive(Debug)]
pub struct Connections {
    max: usize,
    open: AtomicUsize,
    /// Where connections that rest wait until their places are wanted.
    line: Arc<Notify>,
    /// When somebody found no room last.
    wanted: Mutex<Option<Instant>>,
    gave_way: AtomicU64,
    /// Those of them that have not left yet.
    leaving: AtomicUsize,
    refused: AtomicU64,
    not_accepted: AtomicU64,
    silent: AtomicU64,
}

/// See [`Connections::figures`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConnectionFigures {
    /// Connections that are open.
    pub open: u64,
    /// Connections that were closed as they came in, since there were too many.
    pub refused: u64,
    /// Connections that were closed to make room for these, since nothing was asked on them.
    pub gave_way: u64,
    /// Attempts to accept one for which the system had no descriptor or memory.
    pub not_accepted: u64,
    /// Connections that were closed since nobody began to speak HTTP/2 on them.
    pub silent: u64,
}

#[derive(Debug)]
struct Core {
    connections: Arc<AtomicUsize>,
    door: mpsc::Sender<(std::net::TcpStream, Seat)>,
}

/// A connection among those of all cores; no more when dropped.
#[derive(Debug)]
struct Ticket(Arc<Connections>);

/// A connection's place at a core; given up when dropped.
#[derive(Debug)]
pub struct Seat {
    at_core: Arc<AtomicUsize>,
    ticket: Ticket,
}

impl Connections {
    /// None yet, and so many at most.
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            max,
            open: AtomicUsize::new(0),
            line: Arc::default(),
            wanted: Mutex::new(None),
            gave_way: AtomicU64::new(0),
            leaving: AtomicUsize::new(0),
            refused: AtomicU64::new(0),
            not_accepted: AtomicU64::new(0),
            silent: AtomicU64::new(0),
        })
    }

    /// Connections that may be open at most.
    pub fn max(&self) -> usize {
        self.max
    }

    /// How many there are and were refused.
    pub fn figures(&self) -> ConnectionFigures {
        ConnectionFigures {
            open: self.open.load(Ordering::Relaxed) as u64,
            refused: self.refused.load(Ordering::Relaxed),
            gave_way: self.gave_way.load(Ordering::Relaxed),
            not_accepted: self.not_accepted.load(Ordering::Relaxed),
            silent: self.silent.load(Ordering::Relaxed),
        }
    }

    /// Takes one more in, where it may.
    fn admit(self: &Arc<Self>) -> Option<Ticket> {
        if self.open.fetch_add(1, Ordering::Relaxed) >= self.max {
            self.open.fetch_sub(1, Ordering::Relaxed);
            self.refused.fetch_add(1, Ordering::Relaxed);
            // It will try again.
            *self.wanted() = Some(Instant::now());
            self.line.notify_one();
            return None;
        }
        Some(Ticket(Arc::clone(self)))
    }

    /// A place at the end of the line of those that rest; resolves when it is at its head and somebody found no room.
    pub fn line(&self) -> OwnedNotified {
        Arc::clone(&self.line).notified_owned()
    }

    /// Has one that rests leave, where somebody found no room of late and there is none in sight.
    pub fn give_way(self: &Arc<Self>) -> Option<Leaving> {
        let was_wanted = self.wanted().is_some_and(|at| at.elapsed() < PLACE_WANTED);
        let leaving = self.leaving.load(Ordering::Relaxed);
        if !was_wanted || self.open.load(Ordering::Relaxed) < self.max + leaving {
            return None;
        }
        self.gave_way.fetch_add(1, Ordering::Relaxed);
        self.leaving.fetch_add(1, Ordering::Relaxed);
        Some(Leaving(Arc::clone(self)))
    }

    /// The lock is held for no more than a look.
    fn wanted(&self) -> MutexGuard<'_, Option<Instant>> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place that is never given back; `false` where there is none.
    #[cfg(test)]
    pub(crate) fn take_for_good(self: &Arc<Self>) -> bool {
        self.admit().map(std::mem::forget).is_some()
    }

    /// Gives such a place back.
    #[cfg(test)]
    pub(crate) fn give_back_one(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection that gives its place up, until it has left.
#[derive(Debug)]
pub struct Leaving(Arc<Connections>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.leaving.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Core {
    fn seat(&self, ticket: Ticket) -> Seat {
        self.connections.fetch_add(1, Ordering::Relaxed);
        Seat { at_core: Arc::clone(&self.connections), ticket }
    }
}

impl Seat {
    /// Counts that its connection is closed since nobody began to speak on it.
    pub fn count_silent(&self) {
        self.ticket.0.silent.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.at_core.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Door {
    /// The doors of so many cores, which let these connections in.
    pub fn all(count: usize, connections: &Arc<Connections>) -> Vec<Self> {
        let (senders, receivers): (Vec<_>, Vec<_>) =
            (0..count).map(|_| mpsc::channel(ARRIVING_MAX)).unzip();
        let cores: Arc<[Core]> =
            senders.into_iter().map(|door| Core { connections: Arc::default(), door }).collect();
        let door = |(index, arriving)| {
            let (cores, connections) = (Arc::clone(&cores), Arc::clone(connections));
            Self { cores, connections, index, arriving }
        };
        receivers.into_iter().enumerate().map(door).collect()
    }

    /// The connections of all cores.
    pub fn all_connections(&self) -> &Arc<Connections> {
        &self.connections
    }

    /// The connections that this core serves, of those that it accepts and those that others hand to it.
    pub fn connections(
        self,
        accepted: impl Stream<Item = io::Result<TcpStream>> + Unpin + Send + 'static,
    ) -> impl Stream<Item = io::Result<(TcpStream, Seat)>> + Unpin + Send {
        let Self { cores, connections, index, mut arriving } = self;
        let accepted = accepted.filter_map(move |accepted| match accepted {
            Ok(stream) => {
                // Closed here where there is no ticket for it.
                let placed =
                    connections.admit().and_then(|ticket| place(stream, ticket, &cores, index));
                Either::Left(ready(placed))
            }
            Err(error) if is_exhausted(&error) => {
                connections.not_accepted.fetch_add(1, Ordering::Relaxed);
                Either::Right(Box::pin(async {
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    None
                }))
            }
            Err(error) => Either::Left(ready(Some(Err(error)))),
        });
        let arriving = futures::stream::poll_fn(move |context| arriving.poll_recv(context));
        let arriving =
            arriving.map(|(stream, seat)| TcpStream::from_std(stream).map(|stream| (stream, seat)));
        futures::stream::select(accepted, arriving)
    }
}

/// Whether the system had no descriptor or memory for a connection, which then waits to be accepted still.
fn is_exhausted(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)
    )
}

/// The core with the fewest connections; `own` among equals.
fn emptiest(cores: &[Core], own: usize) -> usize {
    // One that stopped has none, and takes none.
    let connections = |index: &usize| match cores.get(*index) {
        Some(core) if !core.door.is_closed() => core.connections.load(Ordering::Relaxed),
        _ => usize::MAX,
    };
    let best = (0..cores.len()).min_by_key(connections).unwrap_or(own);
    if connections(&best) < connections(&own) { best } else { own }
}

/// Gives a connection to the core that is to have it; what that core `own` keeps comes back.
fn place(
    stream: TcpStream,
    ticket: Ticket,
    cores: &[Core],
    own: usize,
) -> Option<io::Result<(TcpStream, Seat)>> {
    let keep = |stream, ticket| cores.get(own).map(|core| Ok((stream, core.seat(ticket))));
    let index = emptiest(cores, own);
    let Some(core) = cores.get(index).filter(|_| index != own) else { return keep(stream, ticket) };
    // A core that has its hands full gets no more.
    let Ok(permit) = core.door.try_reserve() else { return keep(stream, ticket) };
    match stream.into_std() {
        Ok(stream) => {
            permit.send((stream, core.seat(ticket)));
            None
        }
        Err(error) => Some(Err(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    async fn pair(listener: &TcpListener) -> (TcpStream, TcpStream) {
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (client, listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn connections_go_to_the_core_that_has_the_fewest_wherever_they_are_accepted() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut doors = Door::all(3, &Connections::new(7)).into_iter();
        let (mut clients, mut accepted) = (Vec::new(), Vec::new());
        for _ in 0..7 {
            let (client, stream) = pair(&listener).await;
            clients.push(client);
            accepted.push(Ok(stream));
        }
        // One core accepts all of them.
        let mut cores: Vec<_> = [accepted, Vec::new(), Vec::new()]
            .into_iter()
            .map(|accepted| doors.next().unwrap().connections(futures::stream::iter(accepted)))
            .collect();
        let mut served = Vec::new();
        for (core, count) in cores.iter_mut().zip([3, 2, 2]) {
            for _ in 0..count {
                let (mut stream, seat) = core.next().await.unwrap().unwrap();
                stream.write_all(b"x").await.unwrap();
                served.push((stream, seat));
            }
        }
        for client in &mut clients {
            assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 1);
        }
    }

    #[tokio::test]
    async fn a_place_that_was_given_up_is_the_next_ones_and_a_core_that_stopped_gets_none() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connections = Connections::new(10);
        let mut doors = Door::all(2, &connections).into_iter();
        let (own, other) = (doors.next().unwrap(), doors.next().unwrap());
        let place = |stream| place(stream, connections.admit().unwrap(), &own.cores, 0);
        let (mut client, stream) = pair(&listener).await;
        let (mut kept, seat) = place(stream).unwrap().unwrap();
        client.write_all(b"x").await.unwrap();
        assert_eq!(kept.read(&mut [0; 8]).await.unwrap(), 1);
        assert!(place(pair(&listener).await.1).is_none());
        drop(seat);
        assert!(place(pair(&listener).await.1).is_some());
        drop(other);
        for _ in 0..3 {
            assert!(place(pair(&listener).await.1).is_some());
        }
    }

    #[tokio::test]
    async fn a_connection_too_many_is_closed_until_another_ends() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connections = Connections::new(2);
        let (send, accepted) = mpsc::unbounded_channel();
        let accepted = tokio_stream(accepted);
        let mut doors = Door::all(2, &connections).into_iter();
        let (own, other) = (doors.next().unwrap(), doors.next().unwrap());
        let mut own = own.connections(accepted);
        let mut other = other.connections(futures::stream::pending());
        let (_first, stream) = pair(&listener).await;
        send.send(Ok(stream)).unwrap();
        let kept = own.next().await.unwrap().unwrap();
        let (_second, stream) = pair(&listener).await;
        send.send(Ok(stream)).unwrap();
        let (mut third, stream) = pair(&listener).await;
        send.send(Ok(stream)).unwrap();
        assert!(own.next().now_or_never().is_none(), "one to the other core, one to nobody");
        let _handed_on = other.next().await.unwrap().unwrap();
        assert_eq!(third.read(&mut [0; 8]).await.unwrap(), 0, "closed");
        let figures = ConnectionFigures { open: 2, refused: 1, ..Default::default() };
        assert_eq!(connections.figures(), figures);
        drop(kept);
        let (mut fourth, stream) = pair(&listener).await;
        send.send(Ok(stream)).unwrap();
        let (mut served, _seat) = own.next().await.unwrap().unwrap();
        served.write_all(b"x").await.unwrap();
        assert_eq!(fourth.read(&mut [0; 8]).await.unwrap(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_core_for_which_there_is_no_descriptor_pauses_and_goes_on() {
        let connections = Connections::new(1);
        let door = Door::all(1, &connections).remove(0);
        let errors = [Errno::MFILE, Errno::NFILE, Errno::MFILE, Errno::CONNABORTED];
        let errors = errors.map(|errno| Err(io::Error::from(errno)));
        let mut accepted = door.connections(futures::stream::iter(errors));
        let began = tokio::time::Instant::now();
        let error = accepted.next().await.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted, "the first that ends anything");
        assert_eq!(began.elapsed(), 3 * ACCEPT_PAUSE);
        assert_eq!(connections.figures().not_accepted, 3);
    }

    fn tokio_stream<T>(mut receiver: mpsc::UnboundedReceiver<T>) -> impl Stream<Item = T> + Unpin {
        futures::stream::poll_fn(move |context| receiver.poll_recv(context))
    }
}
