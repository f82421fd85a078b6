//! What messages take of the budget of answers, and how it goes with them.
//!
//! ```text
//! the answer's charge ──┬─ of the message that is handed over ─► its bytes in the transport ─► given back when sent
//! (a message, and what  └─ of those behind it, which stay
//! was made with it)
//! ```
//!
//! The transport asks for the next message while it still has the last one, or most of it. So a charge is not given back when
//! the next message is asked for: it belongs to the bytes that the transport has, and is gone when these are.

use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;
use tonic::Status;

use super::slot::{Slot, lock};

/// Bytes taken from the budget, for messages that there are.
#[derive(Debug)]
pub(super) struct Charge {
    of_connection: OwnedSemaphorePermit,
    of_all: OwnedSemaphorePermit,
    slot: Arc<Slot>,
    bytes: u64,
}

impl Charge {
    /// These units, for messages whose size is not known yet.
    pub(super) fn new(
        of_connection: OwnedSemaphorePermit,
        of_all: OwnedSemaphorePermit,
        slot: &Arc<Slot>,
    ) -> Self {
        slot.took(of_all.num_permits());
        Self { of_connection, of_all, slot: Arc::clone(slot), bytes: 0 }
    }

    /// What it has of the budget, in units.
    pub(super) fn units(&self) -> usize {
        self.of_all.num_permits()
    }

    /// Whether it is not of its connection's share, but of what that has beside it.
    pub(super) fn is_of_reserve(&self) -> bool {
        Arc::ptr_eq(self.of_connection.semaphore(), &self.slot.connection.reserve)
    }

    /// Bytes of the messages that it is for.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Says how many bytes the messages have.
    pub(super) fn count(&mut self, bytes: u64) {
        self.slot.holds(self.bytes, bytes);
        self.bytes = bytes;
    }

    /// Divides off the charge of so many bytes, with so many units as far as there are.
    pub(super) fn split(&mut self, bytes: u64, units: usize) -> Option<Self> {
        let units = units.min(self.units());
        let bytes = bytes.min(self.bytes);
        let of_connection = self.of_connection.split(units)?;
        let of_all = self.of_all.split(units)?;
        self.bytes -= bytes;
        Some(Self { of_connection, of_all, slot: Arc::clone(&self.slot), bytes })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.slot.gave_back(self.units(), self.bytes);
    }
}

/// The charges of messages on their way from an answer to the transport. In the extensions of the response.
#[derive(Debug, Clone, Default)]
pub struct Handed(Arc<Mutex<Vec<Charge>>>);

impl Handed {
    pub(super) fn push(&self, charge: Charge) {
        lock(&self.0).push(charge);
    }

    pub(super) fn take(&self) -> Vec<Charge> {
        mem::take(&mut *lock(&self.0))
    }
}

/// The body of an answer, whose bytes have their charges with them.
pub(super) struct Charged {
    inner: tonic::body::Body,
    handed: Handed,
}

impl Charged {
    /// The same response, where it is that of an [`Answer`](super::Answer).
    pub(super) fn response(
        mut response: http::Response<tonic::body::Body>,
    ) -> http::Response<tonic::body::Body> {
        match response.extensions_mut().remove::<Handed>() {
            None => response,
            Some(handed) => response.map(|inner| tonic::body::Body::new(Self { inner, handed })),
        }
    }
}

/// Bytes that give back what they took when the last of them was sent.
struct Sent {
    bytes: Bytes,
    _charges: Vec<Charge>,
}

impl AsRef<[u8]> for Sent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Body for Charged {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = ready!(Pin::new(&mut self.inner).poll_frame(context));
        Poll::Ready(polled.map(|frame| {
            frame.map(|frame| {
                frame.map_data(|bytes| match self.handed.take() {
                    none if none.is_empty() => bytes,
                    charges => Bytes::from_owner(Sent { bytes, _charges: charges }),
                })
            })
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
