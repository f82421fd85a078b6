//! What a connection has in memory that no budget has room for: requests of which no more than the head has come, and small answers that were
//! over when they were made and that the transport still has. Each is a few kilobytes, but a connection has a thousand, and there are many.
//!
//! So they are counted: of each connection what is beyond [`LOOSE_OWN_BYTES`] of either, which are its own. While all answers of that kind are more than
//! may be ([`LOOSE_PART`]), connections that have a part in it have theirs charged to the budget of answers however small they are; while all such heads
//! are, connections with a part in those are refused requests whose message does not come with the head.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tepui_bigtable::error::{Error, Result};

use super::Connection;
use crate::limits::{
    ENDS_AT_ONCE_BYTES, LOOSE_OWN_BYTES, LOOSE_PART, LOOSE_RETRY, REQUEST_HEAD_BYTES,
    STREAMS_PER_CONNECTION_MAX, UNCOUNTED_BYTES_MAX, UNPACED_CONNECTION_BYTES_MAX,
};

/// That of all connections.
#[derive(Debug)]
pub(super) struct AllLoose {
    answers: Sum,
    heads: Sum,
    connections: AtomicU64,
    /// Bytes of an answer that are not counted, at most. Read for every answer, and written when a connection comes or goes.
    uncounted_bytes_max: AtomicU64,
}

/// That of a connection.
#[derive(Debug, Default)]
pub(super) struct OwnLoose {
    /// Bytes of answers that the transport has without having been asked when they were sent.
    pub(super) answers: AtomicU64,
    /// Bytes of requests that are only a head.
    heads: AtomicU64,
}

/// Bytes of all connections beyond what is their own, and how many there may be.
#[derive(Debug)]
struct Sum {
    bytes: Apart,
    bytes_max: u64,
}

/// A count on cache lines of its own: what lies beside it is read for every answer.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Apart(AtomicU64);

/// Which of the two.
#[derive(Debug, Clone, Copy)]
enum Of {
    Answers,
    Heads,
}

impl Sum {
    fn new(bytes_max: u64) -> Self {
        Self { bytes: Apart::default(), bytes_max }
    }

    /// Counts so many bytes of a connection.
    fn add(&self, own: &AtomicU64, bytes: u64) {
        let before = own.fetch_add(bytes, Ordering::Relaxed);
        let more = beyond(before + bytes) - beyond(before);
        if more > 0 {
            self.bytes.0.fetch_add(more, Ordering::Relaxed);
        }
    }

    fn subtract(&self, own: &AtomicU64, bytes: u64) {
        let before = own.fetch_sub(bytes, Ordering::Relaxed);
        let less = beyond(before) - beyond(before - bytes);
        if less > 0 {
            self.bytes.0.fetch_sub(less, Ordering::Relaxed);
        }
    }

    /// Whether there is too much, of which a connection that has `own` has a part.
    fn is_too_much_with(&self, own: &AtomicU64) -> bool {
        beyond(own.load(Ordering::Relaxed)) > 0
            && self.bytes.0.load(Ordering::Relaxed) > self.bytes_max
    }
}

/// Bytes that are not the connection's own.
fn beyond(bytes: u64) -> u64 {
    bytes.saturating_sub(LOOSE_OWN_BYTES)
}

impl AllLoose {
    /// Beside a budget of answers of so many bytes.
    pub(super) fn beside(answers_bytes: u64) -> Self {
        let part = answers_bytes / LOOSE_PART;
        Self {
            answers: Sum::new(part),
            heads: Sum::new(part),
            connections: AtomicU64::new(0),
            uncounted_bytes_max: AtomicU64::new(UNCOUNTED_BYTES_MAX),
        }
    }

    /// There is a connection more.
    pub(super) fn connected(&self) {
        let connections = self.connections.fetch_add(1, Ordering::Relaxed) + 1;
        self.share_among(connections);
    }

    /// There is one less.
    pub(super) fn disconnected(&self) {
        let connections = self.connections.fetch_sub(1, Ordering::Relaxed) - 1;
        self.share_among(connections);
    }

    /// What is not counted is bounded by how many there may be of it.
    fn share_among(&self, connections: u64) {
        let answers = connections.max(1) * u64::from(STREAMS_PER_CONNECTION_MAX);
        let each = (self.answers.bytes_max / answers).min(UNCOUNTED_BYTES_MAX);
        self.uncounted_bytes_max.store(each, Ordering::Relaxed);
    }
}

/// Bytes that are counted for a connection, until it is dropped.
#[derive(Debug)]
pub(super) struct Loose {
    connection: Arc<Connection>,
    of: Of,
    bytes: u64,
}

impl Loose {
    fn new(connection: Arc<Connection>, of: Of, bytes: u64) -> Self {
        let (sum, own) = connection.loose_of(of);
        sum.add(own, bytes);
        Self { connection, of, bytes }
    }
}

impl Drop for Loose {
    fn drop(&mut self) {
        let (sum, own) = self.connection.loose_of(self.of);
        sum.subtract(own, self.bytes);
    }
}

impl Connection {
    fn loose_of(&self, of: Of) -> (&Sum, &AtomicU64) {
        let all = &self.streams.loose;
        match of {
            Of::Answers => (&all.answers, &self.loose.answers),
            Of::Heads => (&all.heads, &self.loose.heads),
        }
    }

    fn has_too_much(&self, of: Of) -> bool {
        let (sum, own) = self.loose_of(of);
        sum.is_too_much_with(own)
    }

    /// Counts so many bytes of an answer.
    pub(super) fn loose_answer(self: &Arc<Self>, bytes: u64) -> Loose {
        Loose::new(Arc::clone(self), Of::Answers, bytes)
    }

    /// Counts a request of which no more than the head has come.
    pub(super) fn loose_head(self: &Arc<Self>) -> Result<Loose> {
        let head = Loose::new(Arc::clone(self), Of::Heads, REQUEST_HEAD_BYTES);
        if self.has_too_much(Of::Heads) {
            let what = "too many requests are begun whose messages do not come";
            return Err(Error::overloaded(what, LOOSE_RETRY));
        }
        Ok(head)
    }

    /// Bytes of an answer that are not counted, at most.
    pub(super) fn uncounted_bytes_max(&self) -> u64 {
        self.streams.loose.uncounted_bytes_max.load(Ordering::Relaxed)
    }

    /// Whether the transport has so much of it, or has too much of all with a part of this one's, that it is to be asked when each frame
    /// was sent.
    pub(super) fn leaves_too_much(&self) -> bool {
        self.loose.answers.load(Ordering::Relaxed) > UNPACED_CONNECTION_BYTES_MAX
            || self.has_too_much(Of::Answers)
    }

    /// Whether an answer that is one message of so many bytes is over as soon as that is made: who makes it says so, and it is let go of
    /// before the message is handed on ([`crate::grpc`]). Any other holds its room until its client takes it, and has to be parked.
    pub(super) fn is_over_at_once(&self, bytes: u64) -> bool {
        bytes < ENDS_AT_ONCE_BYTES && !self.leaves_too_much()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Streams;
    use super::*;

    const SMALL: u64 = 100;

    /// Connections beside a budget of answers of so many bytes, and what is counted of them beyond their own.
    fn connections(answers_bytes: u64, count: usize) -> (Arc<Streams>, Vec<Arc<Connection>>) {
        let streams = Arc::new(Streams::new(answers_bytes));
        let connections = (0..count).map(|_| streams.connection()).collect();
        (streams, connections)
    }

    fn counted(streams: &Streams) -> u64 {
        let all = &streams.loose;
        all.answers.bytes.0.load(Ordering::Relaxed) + all.heads.bytes.0.load(Ordering::Relaxed)
    }

    #[test]
    fn small_answers_are_charged_once_connections_have_left_too_many_unread() {
        let bytes_max = 4 * LOOSE_OWN_BYTES;
        let (streams, connections) = connections(bytes_max * LOOSE_PART, 4);
        let each = 2 * LOOSE_OWN_BYTES;
        let mut left: Vec<_> = connections.iter().map(|of| of.loose_answer(each)).collect();
        assert_eq!(counted(&streams), bytes_max);
        assert!(connections.iter().all(|of| of.is_over_at_once(SMALL)), "as much as there may be");
        left.push(connections[0].loose_answer(1));
        assert!(connections.iter().all(|of| !of.is_over_at_once(SMALL)));
        let others = streams.connection();
        let _own = others.loose_answer(LOOSE_OWN_BYTES);
        assert!(others.is_over_at_once(SMALL), "who has no part in it is served as before");
        left.pop();
        assert!(connections.iter().all(|of| of.is_over_at_once(SMALL)));
        drop(left);
        assert_eq!(counted(&streams), 0);
    }

    #[test]
    fn a_connection_of_which_the_transport_has_much_has_its_answers_charged_whatever_others_have() {
        let (_streams, connections) = connections(1 << 30, 1);
        let left = connections[0].loose_answer(UNPACED_CONNECTION_BYTES_MAX + 1);
        assert!(!connections[0].is_over_at_once(SMALL));
        drop(left);
        assert!(connections[0].is_over_at_once(SMALL));
        assert!(!connections[0].is_over_at_once(ENDS_AT_ONCE_BYTES));
    }

    #[test]
    fn requests_without_a_message_are_refused_where_there_are_too_many() {
        let bytes_max = 10 * REQUEST_HEAD_BYTES;
        let (streams, connections) = connections(bytes_max * LOOSE_PART, 1);
        let heads = std::iter::repeat_with(|| connections[0].loose_head()).take(10_000);
        let heads: Vec<_> = heads.take_while(Result::is_ok).collect();
        let bytes = heads.len() as u64 * REQUEST_HEAD_BYTES;
        let all = bytes_max + LOOSE_OWN_BYTES;
        assert!((all - REQUEST_HEAD_BYTES..=all).contains(&bytes), "{bytes} of {all}");
        assert!(streams.connection().loose_head().is_ok(), "others have their own");
        assert!(connections[0].is_over_at_once(SMALL), "answers are another matter");
        drop(heads);
        assert!(connections[0].loose_head().is_ok());
        assert_eq!(counted(&streams), 0);
    }

    #[test]
    fn less_of_an_answer_is_not_counted_the_more_connections_there_are() {
        let (streams, mut connections) = connections(1 << 28, 1);
        assert_eq!(connections[0].uncounted_bytes_max(), UNCOUNTED_BYTES_MAX);
        connections.extend((0..999).map(|_| streams.connection()));
        let each = connections[0].uncounted_bytes_max();
        let streams_max = 1_000 * u64::from(STREAMS_PER_CONNECTION_MAX);
        assert!((1..=(1 << 28) / LOOSE_PART / streams_max).contains(&each), "{each}");
        connections.truncate(1);
        assert_eq!(connections[0].uncounted_bytes_max(), UNCOUNTED_BYTES_MAX);
    }
}
