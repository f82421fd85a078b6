//! Writes that are gathered: what a connection sends in one go of its task leaves in one system call.
//!
//! HTTP/2's library writes out each message of more than a few hundred bytes by itself, and flushes behind it, so that
//! thirty answers that are ready at once are thirty system calls, of which each costs as much as the read that it
//! answers. Here a flush is put off until the task reads again, at the latest in its next turn, which it asks for at once; what else is
//! ready on the thread runs before, and adds its answers.
//!
//! ```text
//! task: write write flush write flush ─► pending │ others of the thread │ task: read ─► one send
//!         └──── gathered ────┘  └ wake me ───────────────────────────────────┘
//! ```

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes that are gathered at most; more leave at once. Four of HTTP/2's frames of the usual size, with their heads of nine bytes: copying them
/// costs some microseconds, and a system call for that much is worth its while.
const GATHERED_BYTES_MAX: usize = 4 * ((16 << 10) + 9);

/// Bytes that leave in one system call at most. A peer may ask for frames of megabytes, and the kernel copies them, and on loopback receives
/// them, before it returns: some 50 microseconds for this much.
const SENT_BYTES_MAX: usize = 128 << 10;

/// Slices of what leaves at once that are looked at: a frame is its head and its content.
const SENT_SLICES: usize = 4;

/// Empty buffers that a thread keeps, since only connections with something to send need one.
const SPARE_BUFFERS_MAX: usize = 16;

thread_local! {
    static SPARE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// A stream whose writes are gathered until its task, which must read from it in each of its turns, reads again.
#[derive(Debug)]
pub struct Gathered<S> {
    stream: S,
    /// What is to be sent, from `sent` on.
    buffer: Vec<u8>,
    sent: usize,
    /// A flush was asked for and put off.
    flush_is_due: bool,
}

impl<S> Gathered<S> {
    /// Gathers what is written to a stream.
    pub fn new(stream: S) -> Self {
        Self { stream, buffer: Vec::new(), sent: 0, flush_is_due: false }
    }

    /// Appends what fits, if all of it does.
    fn gather(&mut self, slices: &[io::IoSlice<'_>], bytes: usize) -> bool {
        if self.buffer.len() + bytes > GATHERED_BYTES_MAX {
            return false;
        }
        if self.buffer.capacity() == 0 {
            let spare = SPARE.with_borrow_mut(Vec::pop);
            self.buffer = spare.unwrap_or_else(|| Vec::with_capacity(GATHERED_BYTES_MAX));
        }
        for slice in slices {
            self.buffer.extend_from_slice(slice);
        }
        true
    }

    /// Keeps what the peer does not take in no more memory than it needs: it may wait for long.
    fn keep_little(&mut self) {
        let rest = self.buffer.get(self.sent..).unwrap_or_default();
        if 2 * rest.len() < self.buffer.capacity() {
            let rest = rest.to_vec();
            let is_due = self.flush_is_due;
            self.give_back();
            (self.buffer, self.flush_is_due) = (rest, is_due);
        }
    }

    /// Nothing is left to be sent.
    fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// All was sent: the buffer is for whoever needs one next.
    fn give_back(&mut self) {
        let mut buffer = std::mem::take(&mut self.buffer);
        self.sent = 0;
        self.flush_is_due = false;
        buffer.clear();
        SPARE.with_borrow_mut(|spare| {
            if spare.len() < SPARE_BUFFERS_MAX && buffer.capacity() >= GATHERED_BYTES_MAX {
                spare.push(buffer);
            }
        });
    }
}

impl<S: AsyncWrite + Unpin> Gathered<S> {
    /// Sends what was gathered, if a flush of it was put off. Where the peer takes no more, the task is woken when it does.
    pub fn poll_due(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match self.flush_is_due.then(|| self.poll_send(context)) {
            Some(Poll::Ready(sent)) => sent,
            Some(Poll::Pending) | None => Ok(()),
        }
    }

    /// Sends what was gathered.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest) = self.buffer.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match Pin::new(&mut self.stream).poll_write(context, rest)? {
                Poll::Ready(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(bytes) => self.sent += bytes,
                Poll::Pending => {
                    self.keep_little();
                    return Poll::Pending;
                }
            }
        }
        if !self.is_empty() {
            self.give_back();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Gathered<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_due(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Gathered<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let bytes = slices.iter().map(|slice| slice.len()).sum();
        if self.gather(slices, bytes) {
            return Poll::Ready(Ok(bytes));
        }
        ready!(self.poll_send(context))?;
        if self.gather(slices, bytes) {
            return Poll::Ready(Ok(bytes));
        }
        let mut left = SENT_BYTES_MAX;
        let mut some = [io::IoSlice::new(&[]); SENT_SLICES];
        for (some, slice) in some.iter_mut().zip(slices) {
            let first = slice.get(..left.min(slice.len())).unwrap_or_default();
            left -= first.len();
            *some = io::IoSlice::new(first);
        }
        Pin::new(&mut self.stream).poll_write_vectored(context, &some)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_empty() {
            return Pin::new(&mut self.stream).poll_flush(context);
        }
        if !std::mem::replace(&mut self.flush_is_due, true) {
            context.waker().wake_by_ref();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(context))?;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    /// A peer that notes each write, and takes so many bytes.
    #[derive(Default)]
    struct Peer {
        writes: Vec<Vec<u8>>,
        room: usize,
        closed: bool,
    }

    impl AsyncRead for Peer {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    impl AsyncWrite for Peer {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            if self.room == 0 {
                return Poll::Pending;
            }
            let taken = bytes.len().min(self.room);
            self.room -= taken;
            self.writes.push(bytes.iter().take(taken).copied().collect());
            Poll::Ready(Ok(taken))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.closed = true;
            Poll::Ready(Ok(()))
        }
    }

    fn gathered(room: usize) -> Gathered<Peer> {
        Gathered::new(Peer { room, ..Peer::default() })
    }

    /// A turn of a connection's task, which begins by reading.
    fn turn(gathered: &mut Gathered<Peer>) {
        let mut context = Context::from_waker(Waker::noop());
        let mut buffer = [0; 8];
        let read = Pin::new(gathered).poll_read(&mut context, &mut ReadBuf::new(&mut buffer));
        assert!(read.is_pending());
    }

    #[tokio::test]
    async fn what_is_written_and_flushed_in_one_turn_leaves_at_once_in_the_next() {
        let mut gathered = gathered(usize::MAX);
        for piece in ["one ", "two ", "three"] {
            gathered.write_all(piece.as_bytes()).await.unwrap();
            gathered.flush().await.unwrap();
        }
        assert!(gathered.stream.writes.is_empty());
        turn(&mut gathered);
        assert_eq!(gathered.stream.writes, [b"one two three"]);
        // Nothing flushed, nothing sent.
        gathered.write_all(b"four").await.unwrap();
        turn(&mut gathered);
        assert_eq!(gathered.stream.writes.len(), 1);
    }

    #[tokio::test]
    async fn a_task_that_flushed_gets_another_turn_by_itself() {
        let (client, server) = tokio::io::duplex(1 << 10);
        let (mut client, mut server) = (client, Gathered::new(server));
        let server = async move {
            server.write_all(b"hello").await.unwrap();
            server.flush().await.unwrap();
            // Nothing arrives: only the flush can wake it.
            server.read(&mut [0; 8]).await
        };
        let client = async move {
            let mut hello = [0; 5];
            client.read_exact(&mut hello).await.unwrap();
            hello
        };
        let both = async { tokio::join!(server, client) };
        let (read, hello) =
            tokio::time::timeout(std::time::Duration::from_secs(10), both).await.unwrap();
        assert_eq!(&hello, b"hello");
        assert_eq!(read.unwrap(), 0);
    }

    #[tokio::test]
    async fn bytes_stay_in_order_when_more_is_written_than_is_gathered_or_taken() {
        let mut gathered = gathered(0);
        let mut context = Context::from_waker(Waker::noop());
        let mut want = Vec::new();
        let mut refused = 0;
        for piece in 0..200_usize {
            let bytes = vec![piece as u8; [1, 5_000, 70_000, 300][piece % 4]];
            let mut rest = bytes.as_slice();
            while !rest.is_empty() {
                match Pin::new(&mut gathered).poll_write(&mut context, rest) {
                    Poll::Ready(written) => rest = &rest[written.unwrap()..],
                    Poll::Pending => {
                        refused += 1;
                        gathered.stream.room += 7_000;
                    }
                }
                assert!(gathered.buffer.len() <= GATHERED_BYTES_MAX);
            }
            want.extend_from_slice(&bytes);
        }
        assert!(refused > 0);
        gathered.stream.room = usize::MAX;
        gathered.shutdown().await.unwrap();
        assert!(gathered.stream.closed);
        assert!(gathered.stream.writes.concat() == want);
    }

    #[tokio::test]
    async fn four_frames_leave_together_and_a_large_one_in_parts() {
        let frame = |bytes: usize| vec![7; bytes + 9];
        let mut gathered = gathered(usize::MAX);
        for _ in 0..4 {
            gathered.write_all(&frame(16 << 10)).await.unwrap();
        }
        gathered.flush().await.unwrap();
        turn(&mut gathered);
        assert_eq!(gathered.stream.writes.len(), 1);
        gathered.write_all(&frame(1 << 20)).await.unwrap();
        gathered.flush().await.unwrap();
        turn(&mut gathered);
        let large = gathered.stream.writes.split_off(1);
        assert!(large.iter().all(|write| write.len() <= SENT_BYTES_MAX));
        assert_eq!(large.concat().len(), (1 << 20) + 9);
    }

    #[tokio::test]
    async fn what_the_peer_does_not_take_is_sent_when_it_does() {
        let mut gathered = gathered(3);
        gathered.write_all(b"hello").await.unwrap();
        gathered.flush().await.unwrap();
        turn(&mut gathered);
        assert_eq!(gathered.stream.writes, [b"hel"]);
        gathered.stream.room = 100;
        turn(&mut gathered);
        assert_eq!(gathered.stream.writes.concat(), b"hello");
        assert!(gathered.buffer.capacity() == 0, "an empty buffer is another connection's");
    }
}
