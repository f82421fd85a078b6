//! The message of a request, put together from the parts in which it comes. A large one goes into memory that nobody has used yet, and
//! the system takes longer to provide it than others are to wait: half a millisecond for two megabytes, and ten times that on a virtual
//! machine whose host has to find it first. So its parts are copied by the core's helper ([`crate::large`]), while the core takes in the next.
//!
//! ```text
//! core    ── part ─ part ─ part ─┬─ part ─ part ─ part ─┬─ ..
//! helper                         └─► into the message   └─► into the message
//! ```

use std::future::poll_fn;
use std::pin::pin;

use bytes::Bytes;
use futures::future::{BoxFuture, Either, select};
use http_body::Body as _;
use tepui_bigtable::frame::Incoming;
use tepui_engine::aside::Aside;
use tonic::Status;

use crate::admission::{GatedBody, Hold, Inbound};
use crate::limits::{
    COLLECTED_BYTES, COLLECTED_PART_BYTES_MIN, COLLECTED_PARTS_MAX, LARGE_REQUEST_ROOM_BYTES,
};
use crate::status::from_error;

/// The message of a body, once the client has said that this is all.
pub async fn message(body: GatedBody<impl Inbound>) -> Result<Bytes, Status> {
    let hold = body.hold().clone();
    let aside = Aside::default();
    let mut body = pin!(body);
    let mut collected = Collected::new(&aside, &hold);
    loop {
        let part = poll_fn(|context| body.as_mut().poll_frame(context));
        let Some(part) = collected.beside(part).await? else {
            return collected.message().await;
        };
        // What may come behind a message is of no interest.
        if let Ok(part) = part?.into_data() {
            collected.push(part).await?;
        }
    }
}

/// What has come of a message.
struct Collected<'a> {
    incoming: Incoming,
    /// What the parts before are being put into.
    copying: Option<BoxFuture<'a, Result<Incoming, Status>>>,
    /// Parts that it has not been given yet.
    parts: Vec<Bytes>,
    bytes: usize,
    aside: &'a Aside,
    hold: &'a Hold,
}

impl<'a> Collected<'a> {
    fn new(aside: &'a Aside, hold: &'a Hold) -> Self {
        let (incoming, parts) = (Incoming::default(), Vec::new());
        Self { incoming, copying: None, parts, bytes: 0, aside, hold }
    }

    /// What a future comes to, while the helper is at work.
    async fn beside<T>(&mut self, next: impl Future<Output = T>) -> Result<T, Status> {
        let Some(copying) = &mut self.copying else { return Ok(next.await) };
        // The helper first: it is given its work by the first look at it.
        match select(copying, pin!(next)).await {
            Either::Left((incoming, next)) => {
                self.copying = None;
                self.incoming = incoming?;
                Ok(next.await)
            }
            Either::Right((next, _)) => Ok(next),
        }
    }

    /// Takes what comes next. As much as is to be copied at once waits until what came before is.
    async fn push(&mut self, part: Bytes) -> Result<(), Status> {
        // The part with the message's length has made room for all of it.
        if self.hold.room_bytes() < LARGE_REQUEST_ROOM_BYTES {
            self.incoming.push(&part);
            return Ok(());
        }
        self.bytes += part.len();
        // What it was read with may be much more, and is not counted.
        let is_small = part.len() < COLLECTED_PART_BYTES_MIN;
        self.parts.push(if is_small { Bytes::copy_from_slice(&part) } else { part });
        if self.bytes < COLLECTED_BYTES && self.parts.len() < COLLECTED_PARTS_MAX {
            return Ok(());
        }
        self.copied().await?;
        self.copy();
        Ok(())
    }

    /// Leaves what has come to the helper.
    fn copy(&mut self) {
        let (mut incoming, parts) =
            (std::mem::take(&mut self.incoming), std::mem::take(&mut self.parts));
        self.bytes = 0;
        // The room is taken for as long as there is something in it, though its client may be gone.
        let hold = self.hold.clone();
        let work = move || {
            for part in parts {
                incoming.push(&part);
            }
            (incoming, hold)
        };
        let aside = self.aside;
        self.copying = Some(Box::pin(async move {
            let copied = aside.carry_out(None, work).await;
            copied.map(|(incoming, _)| incoming).map_err(|error| from_error(&error.into()))
        }));
    }

    /// Waits for what was left to the helper.
    async fn copied(&mut self) -> Result<(), Status> {
        if let Some(copying) = self.copying.take() {
            self.incoming = copying.await?;
        }
        Ok(())
    }

    async fn message(mut self) -> Result<Bytes, Status> {
        self.copied().await?;
        if !self.parts.is_empty() {
            self.copy();
            self.copied().await?;
        }
        self.incoming.message().map_err(Status::internal)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex, mpsc};

    use futures::{FutureExt as _, Stream, StreamExt as _};
    use http_body::Frame;
    use http_body_util::StreamBody;
    use prost::Message as _;
    use tepui_bigtable::frame::Framed as _;
    use tepui_engine::aside::{self, Helper};
    use tepui_engine::tablet::TabletId;

    use super::*;
    use crate::admission::Gate;
    use crate::api::v2::PingAndWarmRequest;
    use crate::runtime;

    const PART_BYTES: usize = 16 << 10;
    /// Of a message that is put together in several pieces.
    const LARGE_BYTES: usize = 5 * COLLECTED_BYTES / 2;

    /// One that carries nothing out before it is told to.
    #[derive(Default)]
    struct Later(Mutex<Vec<Box<dyn FnOnce() + Send>>>);

    impl Helper for Later {
        fn carry_out(&self, _: Option<TabletId>, work: Box<dyn FnOnce() + Send>) {
            self.0.lock().unwrap().push(work);
        }

        fn patience(&self) -> BoxFuture<'static, ()> {
            Box::pin(std::future::pending())
        }
    }

    impl Later {
        fn carry_out_all(&self) -> usize {
            let works = std::mem::take(&mut *self.0.lock().unwrap());
            works.into_iter().map(|work| work()).count()
        }
    }

    fn sent(bytes: usize) -> PingAndWarmRequest {
        let app_profile_id = (0..bytes).map(|n| char::from(b'a' + (n % 23) as u8)).collect();
        PingAndWarmRequest { app_profile_id, ..PingAndWarmRequest::default() }
    }

    /// The message of a body of parts of so many bytes, what was taken of them, and what they pass.
    struct Coming {
        message: BoxFuture<'static, Result<Bytes, Status>>,
        taken: Arc<AtomicUsize>,
        gate: Arc<Gate>,
    }

    fn coming(message: PingAndWarmRequest, part_bytes: usize) -> Coming {
        coming_in(futures::stream::iter(cut(message, part_bytes)))
    }

    fn cut(message: PingAndWarmRequest, part_bytes: usize) -> Vec<Bytes> {
        let mut frame = message.into_frame();
        let mut parts = Vec::new();
        while !frame.is_empty() {
            parts.push(frame.split_to(part_bytes.min(frame.len())));
        }
        parts
    }

    fn coming_in(parts: impl Stream<Item = Bytes> + Send + Unpin + 'static) -> Coming {
        let taken = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&taken);
        let parts = parts.map(move |part| {
            count.fetch_add(part.len(), Ordering::Relaxed);
            Ok::<_, Status>(Frame::data(part))
        });
        let gate = Arc::new(Gate::new(64 << 20, 1 << 20, 64 << 20));
        let body =
            GatedBody::new(StreamBody::new(parts), (Arc::clone(&gate), 64 << 20), Hold::default());
        Coming { message: Box::pin(super::message(body)), taken, gate }
    }

    fn lent() -> (Arc<Later>, aside::Lent) {
        let later = Arc::new(Later::default());
        let lent = aside::lend(Arc::clone(&later) as Arc<dyn Helper>);
        (later, lent)
    }

    #[test]
    fn a_large_message_is_put_together_beside_its_core_which_keeps_two_pieces_of_it_at_most() {
        let (later, _lent) = lent();
        let Coming { mut message, taken, .. } = coming(sent(LARGE_BYTES), PART_BYTES);
        let mut pieces = 0;
        let got = loop {
            if let Some(got) = (&mut message).now_or_never() {
                break got.unwrap();
            }
            let ahead = taken.load(Ordering::Relaxed) - pieces * COLLECTED_BYTES;
            assert!(ahead <= 2 * COLLECTED_BYTES + PART_BYTES, "{ahead} bytes ahead of {pieces}");
            pieces += later.carry_out_all();
        };
        assert_eq!(PingAndWarmRequest::decode(got).unwrap(), sent(LARGE_BYTES));
        assert_eq!(pieces, 3);
    }

    #[test]
    fn a_large_message_comes_in_while_the_helper_is_at_work() {
        let runtime = runtime::build_core().unwrap();
        let _timers = runtime.enter();
        let (later, _lent) = lent();
        let (send, parts) = futures::channel::mpsc::unbounded();
        let Coming { mut message, taken, .. } = coming_in(parts);
        let mut come = 0;
        for part in cut(sent(LARGE_BYTES), PART_BYTES) {
            let pieces = come / COLLECTED_BYTES;
            come += part.len();
            send.unbounded_send(part).unwrap();
            assert!((&mut message).now_or_never().is_none());
            assert_eq!(taken.load(Ordering::Relaxed), come);
            // It is given what has come while more is to come, and is at it while more comes.
            if come % COLLECTED_BYTES == PART_BYTES {
                assert_eq!(later.carry_out_all(), usize::from(pieces > 0));
            }
        }
        drop(send);
        assert!((&mut message).now_or_never().is_none(), "the last piece is the helper's");
        assert_eq!(later.carry_out_all(), 1);
        let got = message.now_or_never().unwrap().unwrap();
        assert_eq!(PingAndWarmRequest::decode(got).unwrap(), sent(LARGE_BYTES));
    }

    #[test]
    fn many_small_parts_are_not_kept_until_they_are_many_bytes() {
        let (_later, _lent) = lent();
        let Coming { mut message, taken, .. } = coming(sent(LARGE_BYTES), 10);
        assert!((&mut message).now_or_never().is_none());
        assert!(taken.load(Ordering::Relaxed) <= 2 * COLLECTED_PARTS_MAX * 10);
    }

    #[test]
    fn a_small_message_is_put_together_where_it_comes_in() {
        let (_later, _lent) = lent();
        let got = coming(sent(1_000), 100).message.now_or_never().unwrap().unwrap();
        assert_eq!(PingAndWarmRequest::decode(got).unwrap(), sent(1_000));
    }

    #[test]
    fn a_large_message_whose_client_goes_away_leaves_nothing_to_a_helper_that_has_not_begun() {
        let (later, _lent) = lent();
        let Coming { mut message, gate, .. } = coming(sent(LARGE_BYTES), PART_BYTES);
        assert!((&mut message).now_or_never().is_none());
        assert!(gate.figures().bytes >= LARGE_BYTES as u64);
        drop(message);
        assert_eq!(gate.figures().bytes, 0);
        assert_eq!(later.carry_out_all(), 1, "of which nothing is left");
    }

    /// The memory of a part, which tells when it goes, and waits until it may.
    struct Slow {
        part: Bytes,
        goes: mpsc::Sender<()>,
        may_go: mpsc::Receiver<()>,
    }

    impl AsRef<[u8]> for Slow {
        fn as_ref(&self) -> &[u8] {
            &self.part
        }
    }

    impl Drop for Slow {
        fn drop(&mut self) {
            let _ = self.goes.send(());
            let _ = self.may_go.recv();
        }
    }

    #[test]
    fn a_large_message_whose_client_goes_away_keeps_its_room_while_the_helper_works_on_it() {
        let (later, _lent) = lent();
        let mut parts = cut(sent(LARGE_BYTES), PART_BYTES);
        let ((goes, went), (let_go, may_go)) = (mpsc::channel(), mpsc::channel());
        let last = COLLECTED_BYTES / PART_BYTES - 1;
        parts[last] = Bytes::from_owner(Slow { part: parts[last].clone(), goes, may_go });
        let Coming { mut message, gate, .. } = coming_in(futures::stream::iter(parts));
        assert!((&mut message).now_or_never().is_none());
        let held = Arc::clone(&gate);
        // What it waits for goes with this, whatever comes.
        std::thread::scope(move |scope| {
            let helper = scope.spawn(move || later.carry_out_all());
            went.recv().unwrap();
            drop(message);
            assert!(held.figures().bytes >= LARGE_BYTES as u64);
            let_go.send(()).unwrap();
            helper.join().unwrap();
        });
        assert_eq!(gate.figures().bytes, 0);
    }
}
