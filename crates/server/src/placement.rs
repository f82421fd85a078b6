//! Which core a connection is served by: the one with the fewest. The kernel spreads connections over the listening
//! sockets by their addresses, as if dice were thrown, and a client has few: of four connections and two cores, all are at
//! one in an eighth of all cases, and in only three of eight each core has two. So the core that accepts a connection hands it on.
//!
//! ```text
//! kernel ──► core 0 accepts ──► fewest at core 1 ──(door)──► core 1 serves
//! ```

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::{Stream, StreamExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

/// Connections that are on their way to a core, at most; further ones stay with the core that accepted them.
const ARRIVING_MAX: usize = 256;

/// Where a core's connections come in.
#[derive(Debug)]
pub struct Door {
    cores: Arc<[Core]>,
    index: usize,
    arriving: mpsc::Receiver<(std::net::TcpStream, Seat)>,
}

#[derive(Debug)]
struct Core {
    connections: Arc<AtomicUsize>,
    door: mpsc::Sender<(std::net::TcpStream, Seat)>,
}

/// A connection's place at a core; given up when dropped.
#[derive(Debug)]
pub struct Seat(Arc<AtomicUsize>);

impl Core {
    fn seat(&self) -> Seat {
        self.connections.fetch_add(1, Ordering::Relaxed);
        Seat(Arc::clone(&self.connections))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Door {
    /// The doors of so many cores.
    pub fn all(count: usize) -> Vec<Self> {
        let (senders, receivers): (Vec<_>, Vec<_>) =
            (0..count).map(|_| mpsc::channel(ARRIVING_MAX)).unzip();
        let cores: Arc<[Core]> =
            senders.into_iter().map(|door| Core { connections: Arc::default(), door }).collect();
        let door = |(index, arriving)| Self { cores: Arc::clone(&cores), index, arriving };
        receivers.into_iter().enumerate().map(door).collect()
    }

    /// The connections that this core serves, of those that it accepts and those that others hand to it.
    pub fn connections(
        self,
        accepted: impl Stream<Item = io::Result<TcpStream>> + Unpin + Send + 'static,
    ) -> impl Stream<Item = io::Result<(TcpStream, Seat)>> + Unpin + Send {
        let Self { cores, index, mut arriving } = self;
        let accepted = accepted.filter_map(move |accepted| {
            let kept = match accepted {
                Ok(stream) => place(stream, &cores, index),
                Err(error) => Some(Err(error)),
            };
            futures::future::ready(kept)
        });
        let arriving = futures::stream::poll_fn(move |context| arriving.poll_recv(context));
        let arriving =
            arriving.map(|(stream, seat)| TcpStream::from_std(stream).map(|stream| (stream, seat)));
        futures::stream::select(accepted, arriving)
    }
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
fn place(stream: TcpStream, cores: &[Core], own: usize) -> Option<io::Result<(TcpStream, Seat)>> {
    let keep = |stream| cores.get(own).map(|core| Ok((stream, core.seat())));
    let index = emptiest(cores, own);
    let Some(core) = cores.get(index).filter(|_| index != own) else { return keep(stream) };
    // A core that has its hands full gets no more.
    let Ok(permit) = core.door.try_reserve() else { return keep(stream) };
    match stream.into_std() {
        Ok(stream) => {
            permit.send((stream, core.seat()));
            None
        }
        Err(error) => Some(Err(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    async fn pair(listener: &TcpListener) -> (TcpStream, TcpStream) {
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (client, listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn connections_go_to_the_core_that_has_the_fewest_wherever_they_are_accepted() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut doors = Door::all(3).into_iter();
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
        let mut doors = Door::all(2).into_iter();
        let (own, other) = (doors.next().unwrap(), doors.next().unwrap());
        let place = |stream| place(stream, &own.cores, 0);
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
}
