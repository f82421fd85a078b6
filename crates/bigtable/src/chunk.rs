//! Rows cut into the messages of a `ReadRows` stream.
//!
//! Each cell is one chunk, or several where its value is large. A chunk says only what differs from
//! the chunk before it:
//!
//! ```text
//! chunk of                     row_key  family  qualifier  timestamp  labels  value        value_size
//! the row's first cell            x        x        x          x        x     all of it
//! another column, same family                       x          x        x     all of it
//! another version, same column                                 x        x     all of it
//! a large value: first piece   as above    ..       ..         x        x     1st 3 MiB    whole length
//!                middle pieces                                                next 3 MiB   whole length
//!                last piece                                                   the rest
//! ```
//!
//! The last chunk of a row carries `commit_row`. A key up to which nothing was found travels in a message
//! of its own, between rows.
//!
//! The API lets rows span messages, but the Go client refuses a message that ends within a row. So a row
//! that fits one message is never divided; for larger ones, [`LargeRows`] says what is done:
//!
//! ```text
//! rows    a a b  c (fits, but not behind b)  d (larger than a message)   e
//! Split  [a a b][c.........................][d1][d2][d3][d4             e]
//! Whole  [a a b][c.........................][d...........][e]
//! ```
//!
//! A message that goes on with a row at the start of a cell names the row again, which every client allows,
//! and which Google's Python client needs: it takes the first chunk of a message for the start of a row.
//! Within a value the protocol forbids the key, so values are cut no sooner than a message's size demands.
//!
//! Guarantees: no message is larger than [`MESSAGE_BYTES_MAX`], and so none exceeds
//! [`limits::RESPONSE_BYTES_MAX`], except one of a single large row under [`LargeRows::Whole`]; values are
//! slices of the memory they came in, never copies.

use std::collections::VecDeque;

use bytes::Bytes;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::read_rows_response::CellChunk;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::read_rows_response::cell_chunk::RowStatus;
use prost::Message;

use crate::filter::FilteredCell;
use crate::limits;
use crate::schema::FamilyNames;

/// Bytes at which the first message is sent: small, so that the client has the first rows early.
const FIRST_MESSAGE_BYTES: usize = 64 << 10;

/// Messages of one size before the size doubles. With fewer, half a megabyte would arrive in a handful of
/// messages: a client that fails after one would have little to resume from, and Google's Python tests
/// break such a read after its fifth. With more, a long scan would be slow to reach its stride.
const MESSAGES_PER_SIZE: usize = 4;

/// Bytes at which messages are sent once the stream is under way; it doubles from
/// [`FIRST_MESSAGE_BYTES`], every [`MESSAGES_PER_SIZE`] messages. Smaller costs a call and a wake-up per few
/// rows; larger costs memory per stream and delays the client, which decodes a message as a whole.
const MESSAGE_BYTES_TARGET: usize = 1 << 20;

/// Bytes of a value in one chunk, at most: as many as leave a message below what clients accept. Smaller
/// would cut values that could travel whole, and not every client goes on in the middle of a value.
const VALUE_PIECE_BYTES_MAX: usize = 3 << 20;

/// Bytes of a message, at most. Only a message of a single row is larger than
/// [`MESSAGE_BYTES_TARGET`]; as large as clients accept, since a row that does not fit has to be divided.
pub const MESSAGE_BYTES_MAX: usize = limits::RESPONSE_BYTES_MAX;

// A full piece of a value fits, with the longest row key and qualifier and plenty of room for a label.
const _: () = assert!(VALUE_PIECE_BYTES_MAX + (64 << 10) <= MESSAGE_BYTES_MAX);
const _: () = assert!(MESSAGE_BYTES_TARGET <= MESSAGE_BYTES_MAX);

/// What becomes of a row that is larger than a message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LargeRows {
    /// It spans messages.
    #[default]
    Split,
    /// It is one message, of up to [`limits::ROW_READ_BYTES_MAX`] and framing: for clients that take no
    /// other, which then have to accept messages of that size.
    Whole,
}

/// Collects rows and hands out messages. It holds at most the messages of one row and what is left
/// over from the rows before.
#[derive(Debug)]
pub struct Chunker {
    families: FamilyNames,
    large_rows: LargeRows,
    /// The row being added; empty between rows, and here only so that its memory is used again.
    row: RowChunks,
    /// Full messages, oldest first, each with its bytes.
    ready: VecDeque<(v2::ReadRowsResponse, usize)>,
    /// Bytes of all of these.
    ready_bytes: usize,
    /// The message being filled, and its encoded bytes so far.
    chunks: Vec<CellChunk>,
    chunks_bytes: usize,
    /// Bytes at which the message being filled is full.
    target_bytes: usize,
    /// Messages still to be sent before that doubles.
    until_larger: usize,
}

impl Chunker {
    /// A chunker for rows of a table with these families.
    pub fn new(families: FamilyNames, large_rows: LargeRows) -> Self {
        Self {
            families,
            large_rows,
            row: RowChunks::default(),
            ready: VecDeque::new(),
            ready_bytes: 0,
            chunks: Vec::new(),
            chunks_bytes: 0,
            target_bytes: FIRST_MESSAGE_BYTES,
            until_larger: MESSAGES_PER_SIZE,
        }
    }

    /// The families that names are taken from.
    pub fn families(&self) -> &FamilyNames {
        &self.families
    }

    /// Adds a row. Cells come grouped by family and column. Returns how many cells are sent: a
    /// row without any is not. Cells of families that are unknown (dropped meanwhile) are left out.
    pub fn push_row(&mut self, key: &Bytes, mut cells: Vec<FilteredCell>) -> usize {
        cells.retain(|cell| self.families.get(cell.family).is_some());
        let count = cells.len();
        self.row.chunks.reserve(count);
        let mut previous = None;
        for (index, cell) in cells.into_iter().enumerate() {
            let mut chunk = CellChunk {
                timestamp_micros: cell.timestamp,
                labels: cell.labels,
                ..CellChunk::default()
            };
            if index == 0 {
                chunk.row_key = key.clone();
            }
            let same_family = previous.as_ref().is_some_and(|(family, _)| *family == cell.family);
            if !same_family {
                chunk.family_name =
                    self.families.get(cell.family).map(|name| name.as_ref().to_owned());
            }
            let same_column =
                same_family && previous.as_ref().is_some_and(|(_, q)| *q == cell.qualifier);
            if !same_column {
                chunk.qualifier = Some(cell.qualifier.to_vec());
                previous = Some((cell.family, cell.qualifier));
            }
            self.row.push_cell(chunk, cell.value, index + 1 == count);
        }
        self.append_row(key);
        count
    }

    /// Moves the chunks of the row `key` into messages.
    fn append_row(&mut self, key: &Bytes) {
        let mut row = std::mem::take(&mut self.row);
        if self.chunks_bytes + row.bytes > self.target_bytes {
            self.flush();
        }
        if row.bytes <= MESSAGE_BYTES_MAX || self.large_rows == LargeRows::Whole {
            self.chunks_bytes += row.bytes;
            if self.chunks.is_empty() {
                // The first row of a message brings its memory along; of small reads there is no other.
                std::mem::swap(&mut self.chunks, &mut row.chunks);
            } else {
                self.chunks.append(&mut row.chunks);
            }
        } else {
            let mut within_value = false;
            for mut chunk in row.chunks.drain(..) {
                if self.chunks_bytes + bytes_in_message(&chunk) > self.target_bytes {
                    self.flush();
                }
                if self.chunks.is_empty() && !within_value {
                    chunk.row_key = key.clone();
                }
                within_value = chunk.value_size > 0;
                let bytes = bytes_in_message(&chunk);
                self.chunks_bytes += bytes;
                self.chunks.push(chunk);
            }
        }
        if self.chunks_bytes >= self.target_bytes {
            self.flush();
        }
        row.bytes = 0;
        self.row = row;
    }

    /// Says that every row up to `key`, in the direction of the read, was looked at. Must come between
    /// rows, and be about a row after those that were added.
    pub fn push_scanned(&mut self, key: Bytes) {
        self.flush();
        let message =
            v2::ReadRowsResponse { last_scanned_row_key: key, ..v2::ReadRowsResponse::default() };
        let bytes = message.encoded_len();
        self.make_ready(message, bytes);
    }

    /// Ends the message being filled, if there is anything in it.
    pub fn flush(&mut self) {
        if self.chunks.is_empty() {
            return;
        }
        let bytes = std::mem::take(&mut self.chunks_bytes);
        self.until_larger -= 1;
        if self.until_larger == 0 {
            self.until_larger = MESSAGES_PER_SIZE;
            self.target_bytes = (self.target_bytes * 2).min(MESSAGE_BYTES_TARGET);
        }
        let chunks = std::mem::take(&mut self.chunks);
        self.make_ready(v2::ReadRowsResponse { chunks, ..v2::ReadRowsResponse::default() }, bytes);
    }

    fn make_ready(&mut self, message: v2::ReadRowsResponse, bytes: usize) {
        self.ready_bytes += bytes;
        self.ready.push_back((message, bytes));
    }

    /// Bytes of the messages that are ready: all but one are those of a single row that is larger than a message.
    pub fn ready_bytes(&self) -> usize {
        self.ready_bytes
    }

    /// Whether nothing is left that was not handed out.
    pub fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.chunks.is_empty()
    }

    /// The next message that is full or was flushed.
    pub fn pop(&mut self) -> Option<v2::ReadRowsResponse> {
        let (message, bytes) = self.ready.pop_front()?;
        self.ready_bytes -= bytes;
        Some(message)
    }
}

/// The chunks of one row, and the bytes that they take in a message.
#[derive(Debug, Default)]
struct RowChunks {
    chunks: Vec<CellChunk>,
    bytes: usize,
}

impl RowChunks {
    /// Adds a cell: `first` is its first chunk without the value.
    fn push_cell(&mut self, first: CellChunk, value: Bytes, last_of_row: bool) {
        let whole = value.len() as i32; // Values are limited to 100 MiB.
        let mut chunk = first;
        let mut rest = value;
        while rest.len() > VALUE_PIECE_BYTES_MAX {
            chunk.value = rest.split_to(VALUE_PIECE_BYTES_MAX);
            chunk.value_size = whole;
            self.push(std::mem::take(&mut chunk));
        }
        chunk.value = rest;
        chunk.row_status = last_of_row.then_some(RowStatus::CommitRow(true));
        self.push(chunk);
    }

    fn push(&mut self, chunk: CellChunk) {
        self.bytes += bytes_in_message(&chunk);
        self.chunks.push(chunk);
    }
}

/// Bytes that a chunk takes in a message: itself, its length, and the field's tag of one byte.
fn bytes_in_message(chunk: &CellChunk) -> usize {
    let len = chunk.encoded_len();
    1 + prost::length_delimiter_len(len) + len
}

#[cfg(test)]
#[path = "chunk_tests.rs"]
mod tests;
