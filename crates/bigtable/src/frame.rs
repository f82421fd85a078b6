//! Messages in the form in which gRPC sends them.
//!
//! ```text
//! compressed: u8 (none is) │ length: u32, big-endian │ message
//! ```

use std::fmt;
use std::marker::PhantomData;

use bytes::{BufMut, Bytes};
use prost::Message;

/// Bytes before a message.
pub const HEADER_BYTES: usize = 5;

/// A message that can be sent.
pub trait Framed {
    /// All of it, in memory of its own.
    fn into_frame(self) -> Bytes;
}

/// What stands before a message of so many bytes, of which a message has fewer than 4 GiB: rows and requests are
/// limited to a fraction of that.
pub(crate) fn header(message_bytes: usize) -> [u8; HEADER_BYTES] {
    let [a, b, c, d] = u32::try_from(message_bytes).unwrap_or(u32::MAX).to_be_bytes();
    [0, a, b, c, d]
}

/// A frame that comes in parts.
#[derive(Debug, Default)]
pub struct Incoming(Vec<u8>);

impl Incoming {
    /// Appends a part. The first that says how long the message is takes memory for all of it, so whoever gives the parts has
    /// looked at that before.
    pub fn push(&mut self, part: &[u8]) {
        let Self(frame) = self;
        let begin = if frame.is_empty() { part } else { frame.as_slice() };
        if let Some(bytes) = frame_bytes(begin) {
            frame.reserve_exact(bytes.saturating_sub(frame.len()));
        }
        frame.extend_from_slice(part);
    }

    /// The message, once all parts have come; or what is wrong.
    pub fn message(self) -> Result<Bytes, String> {
        let Self(frame) = self;
        let wrong = match (frame.first(), frame_bytes(&frame)) {
            (None, _) => "the request has no message",
            (Some(0), Some(bytes)) if bytes == frame.len() => {
                return Ok(Bytes::from(frame).slice(HEADER_BYTES..));
            }
            (Some(0), Some(bytes)) if bytes < frame.len() => "the request is more than a message",
            (Some(0), _) => "the request ends within its message",
            (Some(1), _) => {
                "the request's message is flagged as compressed, and no grpc-encoding says how"
            }
            (Some(flag), _) => {
                return Err(format!(
                    "the request's message has the flag {flag}; 0 and 1 are known"
                ));
            }
        };
        Err(wrong.to_owned())
    }
}

/// Bytes of the message behind a header.
pub fn message_bytes(header: [u8; HEADER_BYTES]) -> u32 {
    let [_, length @ ..] = header;
    u32::from_be_bytes(length)
}

/// Bytes of a frame that begins with these, once there are enough of them to tell.
fn frame_bytes(begin: &[u8]) -> Option<usize> {
    let header = begin.first_chunk::<HEADER_BYTES>()?;
    Some(HEADER_BYTES + message_bytes(*header) as usize)
}

impl<M: Message> Framed for M {
    fn into_frame(self) -> Bytes {
        let bytes = self.encoded_len();
        let mut frame = Vec::with_capacity(HEADER_BYTES + bytes);
        frame.put_slice(&header(bytes));
        self.encode_raw(&mut frame);
        frame.into()
    }
}

/// A message of this type as it is sent, made where its bytes may be copied: whoever sends it copies none.
pub struct Encoded<M> {
    frame: Bytes,
    of: PhantomData<fn(M)>,
}

impl<M: Message> Encoded<M> {
    /// That of a message.
    pub fn of(message: M) -> Self {
        Self { frame: message.into_frame(), of: PhantomData }
    }
}

impl<M> Framed for Encoded<M> {
    fn into_frame(self) -> Bytes {
        self.frame
    }
}

impl<M> fmt::Debug for Encoded<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encoded").field("bytes", &self.frame.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;

    #[test]
    fn a_message_stands_behind_its_length_in_no_more_memory_than_it_takes() {
        let entries = vec![v2::mutate_rows_response::Entry::default(); 100];
        let message = v2::MutateRowsResponse { entries, ..v2::MutateRowsResponse::default() };
        let bytes = message.encode_to_vec();
        let frame = message.into_frame();
        assert_eq!(frame[..HEADER_BYTES], [0, 0, 0, 0, bytes.len() as u8]);
        assert_eq!(frame[HEADER_BYTES..], bytes);
        assert_eq!(v2::MutateRowResponse {}.into_frame(), [0; HEADER_BYTES].as_slice());
        assert_eq!(header(0x0102_0304), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_message_that_was_encoded_is_sent_from_the_memory_that_it_was_encoded_in() {
        let message = v2::PingAndWarmRequest { name: "n".repeat(1_000), ..Default::default() };
        let encoded = Encoded::of(message.clone());
        let place = encoded.frame.as_ptr();
        let frame = encoded.into_frame();
        assert_eq!(frame.as_ptr(), place);
        assert_eq!(frame, message.into_frame());
    }
}
