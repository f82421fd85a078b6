//! Messages of a `ReadRows` stream in the form in which they are sent. A scan sends a chunk for each cell; to make a
//! message of objects first, and that into bytes, would cost as much as reading the cells.

use bytes::{BufMut, Bytes};
use prost::Message;
use prost::encoding::{WireType, encoded_len_varint};
use tepui_engine::memtable::SHARED_VALUE_BYTES_MIN;

use crate::frame::{self, Framed, HEADER_BYTES};

/// Fields of `google.bigtable.v2.ReadRowsResponse` and of its `CellChunk`.
mod field {
    pub(super) const CHUNKS: u32 = 1;
    pub(super) const ROW_KEY: u32 = 1;
    pub(super) const FAMILY_NAME: u32 = 2;
    pub(super) const QUALIFIER: u32 = 3;
    pub(super) const TIMESTAMP_MICROS: u32 = 4;
    pub(super) const LABELS: u32 = 5;
    pub(super) const VALUE: u32 = 6;
    pub(super) const VALUE_SIZE: u32 = 7;
    pub(super) const COMMIT_ROW: u32 = 9;
    /// The only field of the messages that a family's name and a qualifier are wrapped in.
    pub(super) const WRAPPED: u32 = 1;
}

/// A chunk of a `google.bigtable.v2.ReadRowsResponse`; what is `None`, empty, 0 or false is not sent.
#[derive(Debug, Clone, Copy, Default)]
pub struct Chunk<'a> {
    /// Where it differs from that of the chunk before.
    pub row_key: &'a [u8],
    /// Likewise.
    pub family: Option<&'a str>,
    /// Likewise.
    pub qualifier: Option<&'a [u8]>,
    /// In microseconds.
    pub timestamp: i64,
    /// What filters added.
    pub labels: &'a [String],
    /// The memory that the value is in.
    pub value: Option<&'a Bytes>,
    /// Where in it.
    pub value_at: usize,
    /// How long it is, or this piece of it.
    pub value_len: usize,
    /// Where more pieces follow: the length of all.
    pub value_size: i32,
    /// The row is whole.
    pub ends_row: bool,
}

/// Bytes of a field whose tag is one byte.
fn delimited(len: usize) -> usize {
    1 + encoded_len_varint(len as u64) + len
}

/// Bytes of what is not sent where it is empty.
fn delimited_if_any(len: usize) -> usize {
    if len == 0 { 0 } else { delimited(len) }
}

impl Chunk<'_> {
    fn encoded_len(&self) -> usize {
        let wrapped = |len: usize| delimited(delimited_if_any(len));
        let varint = |number: u64| if number == 0 { 0 } else { 1 + encoded_len_varint(number) };
        delimited_if_any(self.row_key.len())
            + self.family.map_or(0, |name| wrapped(name.len()))
            + self.qualifier.map_or(0, |qualifier| wrapped(qualifier.len()))
            + varint(self.timestamp as u64)
            + self.labels.iter().map(|label| delimited(label.len())).sum::<usize>()
            + delimited_if_any(self.value_len)
            + varint(self.value_size as u64)
            + if self.ends_row { 2 } else { 0 }
    }

    /// Bytes that it takes in a message.
    pub fn bytes_in_message(&self) -> usize {
        delimited(self.encoded_len())
    }

    /// Bytes of its value that stay where they are.
    pub fn shared_bytes(&self) -> usize {
        if self.value_len < SHARED_VALUE_BYTES_MIN { 0 } else { self.value_len }
    }
}

/// A `google.bigtable.v2.ReadRowsResponse` as it is sent; on the wire it is the same message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadRowsMessage {
    /// All of it but for what is shared, behind room for the header of its frame.
    own: Vec<u8>,
    /// Large values, each with the bytes of `own` that are sent before it.
    shared: Vec<(usize, Bytes)>,
    shared_bytes: usize,
}

impl ReadRowsMessage {
    /// The same as another message type says.
    pub fn of(message: &impl Message) -> Self {
        let mut of = Self::default();
        of.reserve(message.encoded_len());
        of.begin();
        message.encode_raw(&mut of.own);
        of
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.own.len() <= HEADER_BYTES
    }

    /// Bytes that are sent, without the header of the frame.
    pub fn len(&self) -> usize {
        self.own.len().saturating_sub(HEADER_BYTES) + self.shared_bytes
    }

    /// Takes memory for this many bytes more, without those of values that are shared.
    pub fn reserve(&mut self, bytes: usize) {
        let of_header = HEADER_BYTES.saturating_sub(self.own.len());
        self.own.reserve(of_header + bytes);
    }

    /// Leaves room for the header before anything is written.
    fn begin(&mut self) {
        self.own.resize(self.own.len().max(HEADER_BYTES), 0);
    }

    /// Bytes of values that are where they were.
    pub fn shared_bytes(&self) -> usize {
        self.shared_bytes
    }

    /// Moves what is shared to its place among the message's own bytes, as it is sent: all at once, in a piece of work as long as that
    /// is. A message that waits for long would keep all of the memory that slices are of, be it a read of many values or a memtable,
    /// which writers then lack.
    pub fn gather(&mut self) {
        // What is before the first of it is in its place.
        let Some((first, _)) = self.shared.first() else { return };
        let mut sent = *first;
        let behind_first = self.own.split_off(sent);
        self.own.reserve(behind_first.len() + self.shared_bytes);
        let mut rest = behind_first.as_slice();
        for (at, value) in self.shared.drain(..) {
            let (before, behind) = rest.split_at(at - sent);
            self.own.put_slice(before);
            self.own.put_slice(&value);
            (rest, sent) = (behind, at);
        }
        self.own.put_slice(rest);
        self.shared_bytes = 0;
    }

    /// Appends a chunk.
    pub fn push(&mut self, chunk: &Chunk<'_>) {
        self.begin();
        let len = chunk.encoded_len();
        let shared_bytes = chunk.shared_bytes();
        let start = self.own.len();
        // Room for all of it at once: each field by itself would ask whether there is some.
        self.own.resize(start + delimited(len) - shared_bytes, 0);
        let mut room = Room(self.own.get_mut(start..).unwrap_or_default());
        room.delimited(field::CHUNKS, len);
        if !chunk.row_key.is_empty() {
            room.bytes(field::ROW_KEY, chunk.row_key);
        }
        if let Some(name) = chunk.family {
            room.wrapped(field::FAMILY_NAME, name.as_bytes());
        }
        if let Some(qualifier) = chunk.qualifier {
            room.wrapped(field::QUALIFIER, qualifier);
        }
        if chunk.timestamp != 0 {
            room.varint(field::TIMESTAMP_MICROS, chunk.timestamp as u64);
        }
        for label in chunk.labels {
            room.bytes(field::LABELS, label.as_bytes());
        }
        let mut behind_value = None;
        if let Some(value) = chunk.value
            && chunk.value_len > 0
        {
            let place = chunk.value_at..chunk.value_at + chunk.value_len;
            if shared_bytes > 0 {
                room.delimited(field::VALUE, chunk.value_len);
                behind_value = Some((room.0.len(), value.slice(place)));
            } else {
                room.bytes(field::VALUE, value.get(place).unwrap_or_default());
            }
        }
        if chunk.value_size != 0 {
            room.varint(field::VALUE_SIZE, chunk.value_size as u64);
        }
        if chunk.ends_row {
            room.varint(field::COMMIT_ROW, 1);
        }
        debug_assert!(room.0.is_empty(), "a chunk is as long as was reckoned");
        if let Some((behind, value)) = behind_value {
            self.shared_bytes += value.len();
            self.shared.push((self.own.len() - behind, value));
        }
    }
}

/// What is left of the room for a chunk. Written byte by byte, since the encoders of prost cost a scan a twelfth more of the server here.
struct Room<'a>(&'a mut [u8]);

impl Room<'_> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        let room = std::mem::take(&mut self.0);
        debug_assert!(bytes.len() <= room.len(), "a chunk is as long as was reckoned");
        if let Some((here, behind)) = room.split_at_mut_checked(bytes.len()) {
            here.copy_from_slice(bytes);
            self.0 = behind;
        }
    }

    #[inline]
    fn tag(&mut self, tag: u32, wire_type: WireType) {
        const { assert!(field::COMMIT_ROW < 16) };
        self.put(&[(tag << 3) as u8 | wire_type as u8]);
    }

    #[inline]
    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.put(&[number as u8 | 0x80]);
            number >>= 7;
        }
        self.put(&[number as u8]);
    }

    #[inline]
    fn varint(&mut self, tag: u32, number: u64) {
        self.tag(tag, WireType::Varint);
        self.number(number);
    }

    /// The tag and length of a field.
    #[inline]
    fn delimited(&mut self, tag: u32, len: usize) {
        self.tag(tag, WireType::LengthDelimited);
        self.number(len as u64);
    }

    #[inline]
    fn bytes(&mut self, tag: u32, bytes: &[u8]) {
        self.delimited(tag, bytes.len());
        self.put(bytes);
    }

    #[inline]
    fn wrapped(&mut self, tag: u32, bytes: &[u8]) {
        self.delimited(tag, delimited_if_any(bytes.len()));
        if !bytes.is_empty() {
            self.bytes(field::WRAPPED, bytes);
        }
    }
}

impl Framed for ReadRowsMessage {
    fn into_frame(mut self) -> Bytes {
        self.begin();
        let header = frame::header(self.len());
        if let Some(room) = self.own.get_mut(..HEADER_BYTES) {
            room.copy_from_slice(&header);
        }
        self.gather();
        self.own.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;

    #[test]
    fn large_values_stay_where_they_are_and_small_ones_are_copied() {
        let value = Bytes::from((0..20_000).map(|i| i as u8).collect::<Vec<_>>());
        let mut message = ReadRowsMessage::default();
        let pieces = [(0, 3), (7, SHARED_VALUE_BYTES_MIN), (100, 10_000), (0, 0), (19_999, 1)];
        for (value_at, value_len) in pieces {
            let row_key = b"row";
            let value = Some(&value);
            message.push(&Chunk { row_key, value, value_at, value_len, ..Chunk::default() });
        }
        let at: Vec<_> = message.shared.iter().map(|(_, shared)| shared.as_ptr()).collect();
        assert_eq!(at, [value[7..].as_ptr(), value[100..].as_ptr()]);
        let bytes = message.len();
        let frame = message.into_frame();
        assert_eq!(frame.len(), HEADER_BYTES + bytes);
        let decoded = v2::ReadRowsResponse::decode(&frame[HEADER_BYTES..]).unwrap();
        let values: Vec<_> = decoded.chunks.iter().map(|chunk| chunk.value.clone()).collect();
        assert_eq!(values, pieces.map(|(at, len)| value.slice(at..at + len)));
        assert!(decoded.into_frame() == frame);
    }

    #[test]
    fn a_message_whose_values_were_gathered_keeps_no_others_memory_and_says_the_same() {
        let memory = Bytes::from((0..10_000).map(|i| i as u8).collect::<Vec<_>>());
        let values = [memory.clone(), memory.slice(1..9_000), memory.slice(..7), memory.slice(5..)];
        // Gathered before all, none, or some of the values came.
        for gathered_at in [&[][..], &[0], &[4], &[1, 1, 2], &[0, 1, 2, 3, 4]] {
            let mut message = ReadRowsMessage::default();
            for n in 0..=values.len() {
                for _ in gathered_at.iter().filter(|at| **at == n) {
                    message.gather();
                    assert_eq!(message.shared_bytes(), 0);
                    assert!(message.shared.is_empty());
                }
                if let Some(value) = values.get(n) {
                    let (row_key, value_len) = (b"r", value.len());
                    message.push(&Chunk {
                        row_key,
                        value: Some(value),
                        value_len,
                        ..Chunk::default()
                    });
                }
            }
            let bytes = message.len();
            let frame = message.into_frame();
            assert_eq!(frame.len(), HEADER_BYTES + bytes);
            let decoded = v2::ReadRowsResponse::decode(&frame[HEADER_BYTES..]).unwrap();
            let got: Vec<_> = decoded.chunks.iter().map(|chunk| chunk.value.clone()).collect();
            assert_eq!(got, values, "{gathered_at:?}");
        }
    }

    #[test]
    fn what_was_gathered_before_stays_where_it_is() {
        let value = Bytes::from(vec![7; 10_000]);
        let mut message = ReadRowsMessage::default();
        message.reserve(50_000);
        let mut places = Vec::new();
        for _ in 0..3 {
            let value_len = value.len();
            message.push(&Chunk {
                row_key: b"r",
                value: Some(&value),
                value_len,
                ..Chunk::default()
            });
            message.gather();
            places.push(message.own.as_ptr());
        }
        assert!(message.len() > 30_000);
        assert_eq!(places, [places[0]; 3]);
    }

    #[test]
    fn empty_names_and_extreme_numbers_are_written_as_protobuf_writes_them() {
        let labels = ["a".to_owned(), "b-".repeat(100)];
        let value = Bytes::from_static(b"v");
        for (family, qualifier, timestamp, value_size) in [
            (None, None, 0, 0),
            (Some(""), Some(&b""[..]), -1, -1),
            (Some("family"), Some(&b"q\0"[..]), i64::MIN, i32::MAX),
            (Some("f"), None, i64::MAX, i32::MIN),
        ] {
            let chunk = Chunk {
                row_key: b"r",
                family,
                qualifier,
                timestamp,
                labels: &labels,
                value: Some(&value),
                value_len: 1,
                value_size,
                ends_row: value_size == 0,
                ..Chunk::default()
            };
            let mut message = ReadRowsMessage::default();
            message.push(&chunk);
            assert_eq!(message.len(), chunk.bytes_in_message());
            let commit = v2::read_rows_response::cell_chunk::RowStatus::CommitRow(true);
            let same = v2::read_rows_response::CellChunk {
                row_key: "r".into(),
                family_name: family.map(str::to_owned),
                qualifier: qualifier.map(<[u8]>::to_vec),
                timestamp_micros: timestamp,
                labels: labels.to_vec(),
                value: value.clone(),
                value_size,
                row_status: chunk.ends_row.then_some(commit),
            };
            let chunks = vec![same];
            let want = v2::ReadRowsResponse { chunks, ..v2::ReadRowsResponse::default() };
            assert_eq!(message.into_frame(), want.into_frame());
        }
    }
}
