//! Threads that block while they read: one read is a `pread` on the spot, a batch is one system call.
//!
//! ```text
//!                        ┌─ one ──────► pread, here ───────────────────────────┐
//!  read_batch on a ──────┤                                                     ├──► a future that is ready
//!  marked thread         ├─ several ──► this thread's own ring:                │
//!                        │              submit all and wait for all, at once ──┤
//!                        └─ no ring ──► PreadPool, waited for ─────────────────┘
//! ```
//!
//! A ring that a runtime polls costs a wake-up of the thread by an eventfd, an epoll and two more system calls
//! for each turn. That is shared by the reads of all tasks, and is much where there is only one. A thread that
//! has nothing else to do had better sleep in the read itself.
//!
//! The ring is set up by the first batch of several that the thread makes: most never need one. It is idle
//! between calls, so that nothing is in flight when the thread is detached.

use std::cell::RefCell;
use std::rc::Rc;

use bytes::Bytes;
use futures::FutureExt as _;

use super::batch::Batch;
use super::ring::Ring;
use super::{RingId, UringIo};
use crate::error::Result;
use crate::io::{Attached, ReadRequest};

thread_local! {
    /// The engines for which this thread blocks: one, but for tests.
    static MARKS: RefCell<Vec<Rc<Mark>>> = const { RefCell::new(Vec::new()) };
}

/// A thread's word that it blocks.
struct Mark {
    id: RingId,
    own: RefCell<Own>,
}

/// The ring for batches of several reads.
enum Own {
    NotNeededYet,
    Ring(Box<Ring>),
    /// It cannot be set up, or broke.
    None,
}

fn mark_of(id: RingId) -> Option<Rc<Mark>> {
    let find = |marks: &RefCell<Vec<Rc<Mark>>>| {
        marks.try_borrow().ok()?.iter().find(|mark| mark.id == id).cloned()
    };
    MARKS.try_with(find).ok().flatten()
}

/// Whether this thread blocks for the engine.
pub(super) fn is_marked(id: RingId) -> bool {
    mark_of(id).is_some()
}

/// Marks this thread until the guard is dropped.
pub(super) fn mark(id: RingId) -> Attached {
    let mark = Rc::new(Mark { id, own: RefCell::new(Own::NotNeededYet) });
    MARKS.with(|marks| marks.borrow_mut().push(mark));
    Attached::new(move || {
        let marks = MARKS.try_with(|marks| {
            let mut marks = marks.try_borrow_mut().ok()?;
            let at = marks.iter().position(|mark| mark.id == id)?;
            Some(marks.swap_remove(at))
        });
        // The ring closes here, with the list free again. A thread that ends drops its marks, to the same effect.
        drop(marks);
    })
}

/// Reads on this thread if it blocks for the engine; the requests back where it does not.
pub(super) fn read(
    io: &UringIo,
    requests: Vec<ReadRequest>,
) -> Result<Vec<Result<Bytes>>, Vec<ReadRequest>> {
    let Some(mark) = mark_of(io.id) else { return Err(requests) };
    if let [request] = requests.as_slice() {
        return Ok(vec![request.file.read_at(request.offset, request.len)]);
    }
    let requests = match read_on_ring(io, &mark, requests) {
        Ok(results) => return Ok(results),
        Err(requests) => requests,
    };
    Ok(pollster::block_on(io.read_in_pool(requests)))
}

/// Reads a batch on the ring of the thread; the requests back where that cannot.
fn read_on_ring(
    io: &UringIo,
    mark: &Mark,
    requests: Vec<ReadRequest>,
) -> Result<Vec<Result<Bytes>>, Vec<ReadRequest>> {
    if requests.iter().any(|request| request.file.device().is_none()) {
        return Err(requests);
    }
    let Ok(mut own) = mark.own.try_borrow_mut() else { return Err(requests) };
    if matches!(*own, Own::NotNeededYet) {
        *own = match io.new_ring() {
            Some(ring) => Own::Ring(Box::new(ring)),
            None => Own::None,
        };
    }
    let Own::Ring(ring) = &mut *own else { return Err(requests) };
    let batch = Batch::new(requests.len());
    let future = batch.future();
    ring.push(requests, &batch);
    ring.finish();
    if ring.is_broken() {
        // Dropping it keeps what the kernel may still write to.
        *own = Own::None;
    }
    // Every read has been answered, by the device or by the ring's end.
    Ok(future.now_or_never().unwrap_or_default())
}
