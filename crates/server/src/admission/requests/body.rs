//! The body of a request: what passes the gate of it, what waits there, and for how long its client may take.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tepui_bigtable::frame::{self, HEADER_BYTES};
use tokio::time::{Instant, Sleep};
use tonic::Status;

use super::super::loose::Loose;
use super::{Gate, Hold, Line, Room};
use crate::call::passed;
use crate::limits::{REQUEST_BODY_PAUSE, REQUEST_HEAD_PAUSE};
use crate::status::from_error;

/// The body of a request as the transport has it.
pub trait Inbound:
    Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Unpin + Send + 'static
{
}

impl<B> Inbound for B where
    B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
        + Unpin
        + Send
        + 'static
{
}

/// The body of a request, which is one message.
pub struct GatedBody<B> {
    inner: B,
    gate: Arc<Gate>,
    /// Bytes of the message, at most.
    message_bytes_max: u64,
    is_write: bool,
    hold: Hold,
    /// What has come of the header.
    header: [u8; HEADER_BYTES],
    header_len: usize,
    /// Bytes of the message that have not come, once the header has.
    left: u64,
    /// A part that came and waits for room.
    parked: Option<(Bytes, Room)>,
    /// What it counts as while nothing has come of its message.
    head: Option<Loose>,
    /// Ends the request where the rest of it does not come.
    pause: Option<Pin<Box<Sleep>>>,
    /// How much of the rest comes.
    lap: Option<Lap>,
    /// Ends the request when its client waits no longer; set once it had to wait.
    timer: Option<Pin<Box<Sleep>>>,
}

/// The rest of a message since a while.
#[derive(Debug)]
struct Lap {
    began: Instant,
    /// Bytes that have come since.
    bytes: u64,
    /// Requests that had to wait for room like its own before.
    waits: u64,
}

impl<B: Inbound> GatedBody<B> {
    /// The body of a request to a service that takes messages of so many bytes, as far as the gate does.
    pub(crate) fn new(inner: B, (gate, message_bytes_max): (Arc<Gate>, u64), hold: Hold) -> Self {
        let header = [0; HEADER_BYTES];
        Self {
            message_bytes_max: message_bytes_max.min(gate.message_bytes_max),
            inner,
            gate,
            is_write: false,
            hold,
            header,
            header_len: 0,
            left: 0,
            parked: None,
            head: None,
            pause: None,
            lap: None,
            timer: None,
        }
    }

    /// That of a request that writes rows.
    pub(crate) fn of_write(self) -> Self {
        Self { is_write: true, ..self }
    }

    /// What its request holds.
    pub fn hold(&self) -> &Hold {
        &self.hold
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
        let message_bytes = u64::from(frame::message_bytes(self.header));
        if message_bytes > self.message_bytes_max {
            return Err(self.gate.refuse_size(message_bytes, self.message_bytes_max));
        }
        let rest = rest.len() as u64;
        if rest > message_bytes {
            return Err(more_than_one());
        }
        self.left = message_bytes - rest;
        match self.gate.room(message_bytes, self.is_write, self.hold.connection()) {
            Ok(room) => {
                self.hold.keep(room);
                Ok(Some(part))
            }
            Err(room) => {
                self.parked = Some((part, room));
                Ok(None)
            }
        }
    }

    /// Whether the client has kept its message, the rest of it, or its end, for too long. Each request that is served is one message, so
    /// that nobody has a reason to keep it once its head has come, which holds a stream and a task.
    fn has_paused(&mut self, context: &mut Context<'_>) -> bool {
        let wait = if self.header_len == 0 { REQUEST_HEAD_PAUSE } else { REQUEST_BODY_PAUSE };
        let pause = self.pause.get_or_insert_with(|| Box::pin(tokio::time::sleep(wait)));
        pause.as_mut().poll(context).is_ready()
    }

    /// Counts it among the requests that are only a head, if it is one and has to wait. An error where there are too many.
    fn count_head(&mut self) -> Result<(), Status> {
        if self.header_len == 0
            && self.head.is_none()
            && let Some(connection) = self.hold.connection()
        {
            let head = connection.loose_head().map_err(|error| from_error(&error))?;
            self.head = Some(head);
        }
        Ok(())
    }

    /// Whether the rest of a message, of which so many bytes came now, comes so slowly that others are to have its room, for which
    /// some have waited meanwhile.
    fn is_too_slow(&mut self, bytes: usize) -> bool {
        if self.left == 0 {
            return false;
        }
        let message_bytes = u64::from(frame::message_bytes(self.header));
        let line = Line::of(message_bytes, self.is_write);
        // Those of its own connection too, for which it may be in the way where nobody else lacks anything.
        let own = self.hold.connection().map_or(0, |of| of.waits.of(line).load(Ordering::Relaxed));
        let waits = self.gate.waits(line).wrapping_add(own);
        let now = Instant::now();
        let lap = self.lap.get_or_insert(Lap { began: now, bytes: 0, waits });
        lap.bytes = lap.bytes.saturating_add(bytes as u64);
        if now.duration_since(lap.began) < REQUEST_BODY_PAUSE {
            return false;
        }
        let is_slow = lap.bytes < message_bytes / line.pauses();
        let is_in_the_way = lap.waits != waits;
        self.lap = Some(Lap { began: now, bytes: 0, waits });
        is_slow && is_in_the_way
    }

    /// Ends the request for its client, with what it did.
    fn give_up(&self, what: &'static str) -> Status {
        self.gate.paused.fetch_add(1, Ordering::Relaxed);
        Status::deadline_exceeded(what)
    }

    /// Whether the client waits no longer for a request that waits itself: for room, or for the client.
    fn is_past_deadline(&mut self, context: &mut Context<'_>) -> bool {
        let Some(deadline) = self.hold.deadline() else { return false };
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
                return Poll::Ready(Some(room.map(|room| {
                    self.hold.keep(room);
                    Frame::data(part)
                })));
            }
            let frame = match Pin::new(&mut self.inner).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => frame,
                Poll::Ready(Some(Err(error))) => {
                    return Poll::Ready(Some(Err(Status::from_error(error.into()))));
                }
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending if self.has_paused(context) => {
                    let status =
                        self.give_up("the request's message, or the rest of it, did not come");
                    return Poll::Ready(Some(Err(status)));
                }
                Poll::Pending => match self.count_head() {
                    Ok(()) => return Poll::Pending,
                    Err(status) => return Poll::Ready(Some(Err(status))),
                },
            };
            self.pause = None;
            self.head = None;
            let part = match frame.into_data() {
                Ok(part) => part,
                Err(other) => return Poll::Ready(Some(Ok(other))),
            };
            if self.is_too_slow(part.len()) {
                let what =
                    "the rest of the request came too slowly, while others waited for its room";
                return Poll::Ready(Some(Err(self.give_up(what))));
            }
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

impl<B: Inbound> Body for GatedBody<B> {
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
