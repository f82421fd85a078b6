//! The task that drives a ring within its runtime.
//!
//! It is woken by the first read of a turn of the runtime that is pushed and not submitted at once
//! ([`SUBMIT_EARLY_READS`](super::ring::SUBMIT_EARLY_READS), [`KERNEL_READS_LOW`](super::ring::KERNEL_READS_LOW)). The
//! run queue being first in, first out, it runs after the tasks that were ready then, and submits what they pushed
//! and did not submit themselves. After that it is woken by the runtime's poll when the ring has completions.

use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::RingId;

/// The task.
pub(super) struct Driver {
    id: RingId,
    /// The eventfd that the ring signals.
    completions: AsyncFd<OwnedFd>,
}

impl Driver {
    /// A driver of the ring of this thread, which is to signal this eventfd; within a runtime.
    pub(super) fn new(id: RingId, fd: OwnedFd) -> std::io::Result<Self> {
        // SAFETY: the descriptor is owned by the `AsyncFd`, which nothing here takes it out of, so that it is
        // open and the same file until it is deregistered.
        let completions = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE)? };
        Ok(Self { id, completions })
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let id = self.id;
        // The ring is gone once the thread is detached.
        if !id.drive(cx.waker()) {
            return Poll::Ready(());
        }
        // Readiness is told on each change only: cleared before the completions are taken, none is missed.
        loop {
            match self.completions.poll_read_ready(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(mut ready)) => ready.clear_ready(),
                // The runtime is ending.
                Poll::Ready(Err(_)) => return Poll::Ready(()),
            }
            if !id.drive(cx.waker()) {
                return Poll::Ready(());
            }
        }
    }
}
