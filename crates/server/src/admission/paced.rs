//! Bodies of answers that go to the transport as their clients take them.
//!
//! The transport (hyper, over h2) asks a body for data, and once the client has room for a byte of it takes all of it and asks for the
//! next at once. An answer of one message would be over with all of it in memory, and give back what that took of the
//! budget. So what is behind a large frame, be it the end, is not to be had before the last byte of the frame is with the socket.
//! Small frames are large when there are enough of them, and all are where the transport has much of small ones of a connection.
//!
//! ```text
//! poll ─► large frame ─► with the transport ─► sent, or its stream reset: dropped ─► poll ─► next frame
//!                        poll ─► pending                                      wakes
//! ```

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures::task::AtomicWaker;
use http_body::{Body, Frame, SizeHint};

use super::UnderWay;
use super::loose::Loose;
use crate::limits::UNPACED_BYTES_MAX;

/// A body whose next frame comes when the last ones, if these are large, were sent.
#[derive(Debug)]
pub struct Paced<B> {
    inner: B,
    request: UnderWay,
    /// Bytes of the frames since the last of which it is known that it was sent.
    unpaced_bytes: usize,
    /// Of these, since the last that the connection counts.
    uncounted_bytes: u64,
    /// Since the first large frame.
    transit: Option<Arc<Transit>>,
}

impl<B> Paced<B> {
    /// Paces this body of an answer to a request.
    pub fn new(inner: B, request: UnderWay) -> Self {
        Self { inner, request, unpaced_bytes: 0, uncounted_bytes: 0, transit: None }
    }

    /// The same bytes; where they are many with those before them, or with those of the connection's other answers, it is known when they are gone.
    fn send(&mut self, bytes: Bytes) -> Bytes {
        self.unpaced_bytes = self.unpaced_bytes.saturating_add(bytes.len());
        self.uncounted_bytes = self.uncounted_bytes.saturating_add(bytes.len() as u64);
        let connection = self.request.connection();
        if self.unpaced_bytes > UNPACED_BYTES_MAX || connection.leaves_too_much() {
            // What was before it will have gone, too.
            (self.unpaced_bytes, self.uncounted_bytes) = (0, 0);
            let transit = Arc::clone(self.transit.get_or_insert_default());
            transit.is_under_way.store(true, Ordering::Relaxed);
            return Bytes::from_owner(Sending { bytes, transit });
        }
        if self.uncounted_bytes <= connection.uncounted_bytes_max() {
            return bytes;
        }
        let loose = connection.loose_answer(std::mem::take(&mut self.uncounted_bytes));
        Bytes::from_owner(Counted { bytes, _loose: loose })
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Paced<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if let Some(transit) = &self.transit {
            ready!(transit.poll_over(context));
        }
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(context));
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(|bytes| self.send(bytes)))))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// Whether the transport has a large frame of a body, of which there is one at a time.
#[derive(Debug, Default)]
struct Transit {
    is_under_way: AtomicBool,
    body: AtomicWaker,
}

impl Transit {
    fn poll_over(&self, context: &Context<'_>) -> Poll<()> {
        if self.is_under_way.load(Ordering::Acquire) {
            self.body.register(context.waker());
            // It may have been sent in between.
            if self.is_under_way.load(Ordering::Acquire) {
                return Poll::Pending;
            }
        }
        Poll::Ready(())
    }
}

/// What the transport has of a large frame. It cuts pieces off without letting go of the rest.
struct Sending {
    bytes: Bytes,
    transit: Arc<Transit>,
}

impl AsRef<[u8]> for Sending {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        drop(std::mem::take(&mut self.bytes));
        self.transit.is_under_way.store(false, Ordering::Release);
        self.transit.body.wake();
    }
}

/// What the transport has of a frame that is counted, with those before it.
struct Counted {
    bytes: Bytes,
    _loose: Loose,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Connection, Streams};
    use super::*;
    use crate::limits::{LOOSE_OWN_BYTES, LOOSE_PART, UNPACED_CONNECTION_BYTES_MAX};
    use bytes::Buf as _;
    use futures::FutureExt as _;
    use http_body_util::BodyExt as _;
    use std::convert::Infallible;

    fn body(
        frames: &[usize],
    ) -> Paced<impl Body<Data = Bytes, Error = Infallible> + Unpin + use<>> {
        body_on(&Arc::new(Streams::new(1 << 20)).connection(), frames)
    }

    fn body_on(
        connection: &Arc<Connection>,
        frames: &[usize],
    ) -> Paced<impl Body<Data = Bytes, Error = Infallible> + Unpin + use<>> {
        let frames: Vec<_> =
            frames.iter().map(|bytes| Ok(Frame::data(Bytes::from(vec![1; *bytes])))).collect();
        let frames = http_body_util::StreamBody::new(futures::stream::iter(frames));
        Paced::new(frames, connection.begin())
    }

    /// The data that comes next.
    fn next(
        body: &mut Paced<impl Body<Data = Bytes, Error = Infallible> + Unpin>,
    ) -> Poll<Option<Bytes>> {
        let frame = body.frame().now_or_never();
        frame.map_or(Poll::Pending, |frame| {
            Poll::Ready(frame.map(|frame| frame.unwrap().into_data().unwrap()))
        })
    }

    /// The same, which is to be had now.
    fn ready(body: &mut Paced<impl Body<Data = Bytes, Error = Infallible> + Unpin>) -> Bytes {
        match next(body) {
            Poll::Ready(Some(bytes)) => bytes,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn what_comes_behind_a_large_frame_waits_until_the_last_of_it_is_sent() {
        let large = UNPACED_BYTES_MAX + 1;
        let mut body = body(&[large, large, 5]);
        let mut first = ready(&mut body);
        assert!(next(&mut body).is_pending(), "the first is with the transport");
        // The transport writes a piece after the other.
        drop(first.split_to(1_000));
        first.advance(large - 1_001);
        assert!(next(&mut body).is_pending(), "a byte is left");
        // Whoever waits is woken.
        let (second, ()) = futures::join!(body.frame(), async { drop(first) });
        let second = second.unwrap().unwrap().into_data().unwrap();
        assert_eq!(second, vec![1; large]);
        assert!(next(&mut body).is_pending(), "the second is with the transport");
        drop(second);
        assert_eq!(ready(&mut body).len(), 5);
        assert_eq!(next(&mut body), Poll::Ready(None));
    }

    #[tokio::test]
    async fn an_answer_whose_only_frame_is_large_is_over_when_that_was_sent() {
        let mut body = body(&[UNPACED_BYTES_MAX + 1]);
        let frame = ready(&mut body);
        assert!(next(&mut body).is_pending());
        drop(frame);
        assert_eq!(next(&mut body), Poll::Ready(None));
    }

    #[tokio::test]
    async fn small_frames_wait_for_nothing_until_they_are_many() {
        let mut body = body(&[5, UNPACED_BYTES_MAX - 5, 1, 7]);
        let [_first, _second, third] = [ready(&mut body), ready(&mut body), ready(&mut body)];
        assert_eq!(third.len(), 1);
        assert!(next(&mut body).is_pending(), "together they are large");
        drop(third);
        // They are sent in order: what was before the third has gone too.
        let fourth = ready(&mut body);
        assert_eq!(fourth.len(), 7);
        assert_eq!(next(&mut body), Poll::Ready(None), "while the transport has the last of it");
    }

    #[tokio::test]
    async fn small_frames_are_waited_for_where_all_connections_have_left_too_much() {
        let streams = Arc::new(Streams::new(LOOSE_PART << 20));
        let [this, other, quiet] = [(); 3].map(|()| streams.connection());
        let answer = || body_on(&this, &[1_000, 5]);
        let _own = this.loose_answer(LOOSE_OWN_BYTES + 1);
        let mut body = answer();
        let _first = ready(&mut body);
        assert_eq!(ready(&mut body).len(), 5, "there is room");
        let left = other.loose_answer(2 << 20);
        let mut body = answer();
        let first = ready(&mut body);
        assert!(next(&mut body).is_pending(), "its room is kept meanwhile");
        drop(first);
        assert_eq!(ready(&mut body).len(), 5);
        let mut body = body_on(&quiet, &[1_000, 5]);
        let _first = ready(&mut body);
        assert_eq!(ready(&mut body).len(), 5, "it has no part in it");
        drop(left);
        let mut body = answer();
        let _first = ready(&mut body);
        assert_eq!(ready(&mut body).len(), 5);
    }

    #[tokio::test]
    async fn every_frame_of_a_connection_that_takes_little_of_many_answers_is_waited_for() {
        let connection = Arc::new(Streams::new(1 << 24)).connection();
        let answer = || body_on(&connection, &[1_000, 90_000, 5]);
        let mut left = Vec::new();
        let (mut waits, first) = loop {
            let mut body = answer();
            let first = ready(&mut body);
            match next(&mut body) {
                Poll::Ready(Some(second)) if left.len() < 100 => left.push([first, second]),
                _ => break (body, first),
            }
        };
        let bytes = left.len() as u64 * 91_000;
        assert!(bytes > UNPACED_CONNECTION_BYTES_MAX, "{bytes} are left");
        assert!(bytes <= UNPACED_CONNECTION_BYTES_MAX + 91_000, "{bytes} are left");
        // It goes on when its own frames are taken, and any other answer does as before when the rest is.
        drop(first);
        let second = ready(&mut waits);
        assert!(next(&mut waits).is_pending());
        drop(second);
        assert_eq!(ready(&mut waits).len(), 5);
        drop(left);
        assert_eq!(connection.loose.answers.load(Ordering::Relaxed), 0);
        let mut body = answer();
        let _left = [ready(&mut body), ready(&mut body), ready(&mut body)];
        assert_eq!(next(&mut body), Poll::Ready(None));
    }
}
