//! The life of a connection: it is served until its client ends it, or the server stops, or its place is wanted for another while nobody
//! asks anything on it. Who comes where all places are taken is closed as it comes in ([`crate::placement`]), and tries again: meanwhile the
//! connection that rests longest says that it ends, which HTTP/2 has a frame for, so that no request is lost.
//!
//! ```text
//! served ─► nothing asked for REST ─► in line ─► somebody is refused ─► its end is said, and it is over
//!    ▲                                   │
//!    └───────── a request ───────────────┘
//! ```

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures::FutureExt as _;
use futures::future::{BoxFuture, Fuse};
use pin_project_lite::pin_project;
use tokio::sync::futures::OwnedNotified;
use tokio::time::{Instant, Sleep};

use crate::admission::Connection;
use crate::limits::REST;
use crate::placement::{Connections, Leaving};
use crate::runtime::{Signal, given};

/// A connection as the protocol has it.
pub trait Protocol: Future {
    /// Says that it ends, and has it end when the requests under way are done.
    fn end(self: Pin<&mut Self>);
}

pin_project! {
    /// A connection that is served.
    pub struct Serving<P> {
        #[pin]
        served: P,
        rest: Rest,
        stop: Fuse<BoxFuture<'static, ()>>,
        is_ending: bool,
    }
}

impl<P> fmt::Debug for Serving<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serving").field("is_ending", &self.is_ending).finish_non_exhaustive()
    }
}

impl<P> Serving<P> {
    /// Serves one among others, until it stops.
    pub fn new(
        served: P,
        connection: Arc<Connection>,
        others: Arc<Connections>,
        stop: Signal,
    ) -> Self {
        let stop = given(stop).boxed().fuse();
        Self { served, rest: Rest::new(connection, others), stop, is_ending: false }
    }
}

impl<P: Protocol> Future for Serving<P> {
    type Output = P::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<P::Output> {
        let mut this = self.project();
        if let Poll::Ready(ended) = this.served.as_mut().poll(context) {
            return Poll::Ready(ended);
        }
        if !*this.is_ending
            && (this.stop.poll_unpin(context).is_ready()
                || this.rest.poll_wanted(context).is_ready())
        {
            *this.is_ending = true;
            this.served.as_mut().end();
            return this.served.poll(context);
        }
        Poll::Pending
    }
}

/// Whether nobody asks anything on a connection, and for how long.
struct Rest {
    connection: Arc<Connection>,
    others: Arc<Connections>,
    /// When it is looked at next, and the requests that it had had when it was last.
    look: Pin<Box<Sleep>>,
    requests: u64,
    /// Its place in line, while it rests.
    in_line: Option<Pin<Box<OwnedNotified>>>,
    /// It gives its place up.
    leaving: Option<Leaving>,
}

impl Rest {
    fn new(connection: Arc<Connection>, others: Arc<Connections>) -> Self {
        let (look, requests) = (Box::pin(tokio::time::sleep(REST)), connection.requests());
        Self { connection, others, look, requests, in_line: None, leaving: None }
    }

    /// Ready when its place is wanted and it rests.
    fn poll_wanted(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            if let Some(in_line) = &mut self.in_line {
                if self.connection.rests_since(self.requests) {
                    ready!(in_line.as_mut().poll(context));
                    self.leaving = self.others.give_way();
                    if self.leaving.is_some() {
                        return Poll::Ready(());
                    }
                }
                (self.in_line, self.requests) = (None, self.connection.requests());
                self.look.as_mut().reset(Instant::now() + REST);
            }
            ready!(self.look.as_mut().poll(context));
            if self.connection.rests_since(self.requests) {
                self.in_line = Some(Box::pin(self.others.line()));
            } else {
                self.requests = self.connection.requests();
                self.look.as_mut().reset(Instant::now() + REST);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::Streams;
    use tokio::sync::watch;

    /// One that is over once it was told to end.
    struct Told(bool);

    impl Future for Told {
        type Output = ();

        fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
            if self.0 { Poll::Ready(()) } else { Poll::Pending }
        }
    }

    impl Protocol for Told {
        fn end(mut self: Pin<&mut Self>) {
            self.0 = true;
        }
    }

    struct Fixture {
        others: Arc<Connections>,
        streams: Arc<Streams>,
        stop: watch::Sender<bool>,
    }

    impl Fixture {
        /// So many places.
        fn new(places: usize) -> Self {
            let streams = Arc::new(Streams::new(1 << 20));
            Self { others: Connections::new(places), streams, stop: watch::channel(false).0 }
        }

        /// A connection, which takes a place.
        fn serve(&self) -> (Arc<Connection>, Pin<Box<Serving<Told>>>) {
            assert!(self.others.take_for_good());
            let connection = self.streams.connection();
            let others = Arc::clone(&self.others);
            let stop = self.stop.subscribe();
            let serving = Serving::new(Told(false), Arc::clone(&connection), others, stop);
            (connection, Box::pin(serving))
        }
    }

    async fn rest() {
        tokio::time::sleep(REST).await;
    }

    #[tokio::test(start_paused = true)]
    async fn who_rests_longest_gives_way_to_who_finds_no_place() {
        let fixture = Fixture::new(3);
        let (_, mut first) = fixture.serve();
        assert!(futures::poll!(&mut first).is_pending());
        tokio::time::sleep(REST / 2).await;
        let (_, mut second) = fixture.serve();
        let (used, mut third) = fixture.serve();
        assert!(futures::poll!(&mut second).is_pending());
        for _ in 0..3 {
            tokio::time::sleep(REST / 2).await;
            drop(used.begin());
            assert!(futures::poll!(&mut first).is_pending());
            assert!(futures::poll!(&mut second).is_pending());
            assert!(futures::poll!(&mut third).is_pending(), "there is room for all");
        }
        assert!(!fixture.others.take_for_good());
        assert!(futures::poll!(&mut second).is_pending());
        assert!(futures::poll!(&mut third).is_pending());
        assert!(futures::poll!(&mut first).is_ready());
        drop(first);
        assert!(!fixture.others.take_for_good());
        assert!(futures::poll!(&mut third).is_pending(), "it is used");
        assert!(futures::poll!(&mut second).is_ready());
        assert_eq!(fixture.others.figures().gave_way, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_with_a_request_under_way_or_since_keeps_its_place() {
        let fixture = Fixture::new(1);
        let (connection, mut serving) = fixture.serve();
        let under_way = connection.begin();
        for _ in 0..3 {
            rest().await;
            assert!(!fixture.others.take_for_good());
            assert!(futures::poll!(&mut serving).is_pending());
        }
        drop(under_way);
        assert!(futures::poll!(&mut serving).is_pending());
        drop(connection.begin());
        rest().await;
        assert!(!fixture.others.take_for_good());
        assert!(futures::poll!(&mut serving).is_pending(), "it had one since");
        rest().await;
        assert!(futures::poll!(&mut serving).is_pending(), "nobody has asked for long");
        rest().await;
        assert!(futures::poll!(&mut serving).is_pending());
        assert!(!fixture.others.take_for_good());
        assert!(futures::poll!(&mut serving).is_ready());
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_connections_end_than_places_are_wanted() {
        let fixture = Fixture::new(2);
        let [(_, mut first), (_, mut second)] = [(); 2].map(|()| fixture.serve());
        for _ in 0..2 {
            assert!(futures::poll!(&mut first).is_pending());
            assert!(futures::poll!(&mut second).is_pending());
            rest().await;
        }
        assert!(futures::poll!(&mut first).is_pending());
        assert!(futures::poll!(&mut second).is_pending());
        assert!(!fixture.others.take_for_good());
        assert!(futures::poll!(&mut first).is_ready());
        // Its place is not free yet.
        assert!(!fixture.others.take_for_good());
        assert!(futures::poll!(&mut second).is_pending());
        fixture.others.give_back_one();
        drop(first);
        assert!(fixture.others.take_for_good());
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_gives_way_where_there_is_room_again() {
        let fixture = Fixture::new(1);
        let (_, mut serving) = fixture.serve();
        assert!(!fixture.others.take_for_good());
        fixture.others.give_back_one();
        rest().await;
        assert!(futures::poll!(&mut serving).is_pending());
        rest().await;
        assert!(futures::poll!(&mut serving).is_pending());
    }

    #[tokio::test]
    async fn a_stop_ends_it() {
        let fixture = Fixture::new(1);
        let (_, mut serving) = fixture.serve();
        assert!(futures::poll!(&mut serving).is_pending());
        fixture.stop.send(true).unwrap();
        assert!(futures::poll!(&mut serving).is_ready());
    }
}
