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
//! A piece of text ends with a character, a little before 3 MiB.
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
//! Within a value Google's clients for Go and Java refuse the key, and that for Python needs it once it has seen a row:
//! [`LargeRows::SplitNamed`] is for it alone. Values are cut no sooner than a message's size demands.
//!
//! Guarantees: no message is larger than [`MESSAGE_BYTES_MAX`], and so none exceeds
//! [`limits::RESPONSE_BYTES_MAX`], except one of a single large row under [`LargeRows::Whole`]; large values are
//! slices of the memory they came in, and copied before the transport asks for them only where messages wait for long, or little else of that memory is sent
//! ([`Chunker::gather`]), or a message is one of a large row, which is put together aside.

use std::collections::VecDeque;

use bytes::Bytes;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;

use crate::filter::RowCell;
use crate::limits;
use crate::response::{Chunk, ReadRowsMessage};
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
pub(crate) const MESSAGE_BYTES_TARGET: usize = 1 << 20;

/// Bytes of a value in one chunk, at most: as many as leave a message below what clients accept. Smaller
/// would cut values that could travel whole, and not every client goes on in the middle of a value. A multiple of three: see [`piece_len`].
const VALUE_PIECE_BYTES_MAX: usize = 3 << 20;

/// Bytes at the end of a piece by which it is taken for text, or not. Those of other data are no text by chance; all of the piece would
/// hold the core for milliseconds.
const TEXT_LOOK_BYTES: usize = 1 << 10;

/// Ends of a piece of text that are tried, three bytes from each other, for one that is a character's too. Most texts need one or two.
/// Where all characters are of three bytes, it takes up to two others, such as ends of paragraphs: in 48 KiB are 16,000 characters, some
/// twenty pages. Fewer, and texts of long paragraphs are missed; more would find little else.
const TEXT_ENDS_MAX: usize = 16 << 10;

/// Bytes of a chunk beside its names and value, at most, and more than those of a label's: tags, lengths and a timestamp.
const FRAMING_BYTES_MAX: usize = 48;

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
    /// It spans messages, and each names it, also within a value.
    SplitNamed,
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
    messages: Messages,
}

/// Messages, of which the last is being filled.
#[derive(Debug)]
struct Messages {
    /// The oldest full one. It has a place of its own, since most answers are one message.
    next: Option<ReadRowsMessage>,
    /// Those behind it, oldest first.
    behind: VecDeque<ReadRowsMessage>,
    /// Bytes of all full ones.
    ready_bytes: usize,
    /// The one being filled.
    open: ReadRowsMessage,
    /// Bytes at which that is full.
    target_bytes: usize,
    /// Messages still to be sent before that doubles.
    until_larger: usize,
}

impl Chunker {
    /// A chunker for rows of a table with these families.
    pub fn new(families: FamilyNames, large_rows: LargeRows) -> Self {
        let messages = Messages {
            next: None,
            behind: VecDeque::new(),
            ready_bytes: 0,
            open: ReadRowsMessage::default(),
            target_bytes: FIRST_MESSAGE_BYTES,
            until_larger: MESSAGES_PER_SIZE,
        };
        Self { families, large_rows, messages }
    }

    /// The families that names are taken from.
    pub fn families(&self) -> &FamilyNames {
        &self.families
    }

    /// Adds a row. Cells come grouped by family and column. Returns how many cells are sent: a
    /// row without any is not. Cells of families that are unknown (dropped meanwhile) are left out.
    pub fn push_row<C: RowCell>(
        &mut self,
        key: &Bytes,
        mut cells: Vec<C>,
        memory: &C::Memory,
    ) -> usize {
        match self.bytes_at_most(key, &cells) {
            None => cells.retain(|cell| self.families.get(cell.family()).is_some()),
            // The first one is measured: a message of one row then has memory for it and no more.
            Some(_) if self.messages.open.is_empty() => {}
            Some(bytes) if self.messages.open.len() + bytes >= self.messages.target_bytes => {}
            Some(_) => {
                let Self { families, messages, .. } = self;
                chunks(families, key, &cells, memory, |chunk| messages.open.push(&chunk));
                return cells.len();
            }
        }
        self.push_measured(key, &cells, memory)
    }

    /// Bytes that a row takes in a message at most; `None` where a family is unknown.
    fn bytes_at_most<C: RowCell>(&self, key: &[u8], cells: &[C]) -> Option<usize> {
        let mut bytes = key.len();
        let mut family = None;
        for cell in cells {
            if family != Some(cell.family()) {
                family = Some(cell.family());
                bytes += self.families.get(cell.family())?.len();
            }
            let framing = FRAMING_BYTES_MAX * (1 + cell.labels().len());
            bytes += framing + cell.bytes() as usize;
        }
        Some(bytes)
    }

    /// Adds a row of families that are known, in a message of its own where that is begun has no room for it.
    fn push_measured<C: RowCell>(&mut self, key: &Bytes, cells: &[C], memory: &C::Memory) -> usize {
        let Self { families, large_rows, messages } = self;
        let (mut bytes, mut shared_bytes) = (0, 0);
        chunks(families, key, cells, memory, |chunk| {
            bytes += chunk.bytes_in_message();
            shared_bytes += chunk.shared_bytes();
        });
        if messages.open.len() + bytes > messages.target_bytes {
            messages.flush();
        }
        if bytes <= MESSAGE_BYTES_MAX || *large_rows == LargeRows::Whole {
            messages.open.reserve((bytes - shared_bytes).min(MESSAGE_BYTES_TARGET));
            chunks(families, key, cells, memory, |chunk| messages.open.push(&chunk));
        } else {
            let mut within_value = false;
            chunks(families, key, cells, memory, |mut chunk| {
                if messages.open.len() + chunk.bytes_in_message() > messages.target_bytes {
                    messages.flush();
                }
                let may_name = !within_value || *large_rows == LargeRows::SplitNamed;
                if messages.open.is_empty() && may_name {
                    chunk.row_key = key;
                }
                within_value = chunk.value_size > 0;
                messages.open.push(&chunk);
            });
        }
        if messages.open.len() >= messages.target_bytes {
            messages.flush();
        }
        cells.len()
    }

    /// Says that every row up to `key`, in the direction of the read, was looked at. Must come between
    /// rows, and be about a row after those that were added.
    pub fn push_scanned(&mut self, key: Bytes) {
        self.messages.flush();
        let message =
            v2::ReadRowsResponse { last_scanned_row_key: key, ..v2::ReadRowsResponse::default() };
        self.messages.make_ready(ReadRowsMessage::of(&message));
    }

    /// Ends the message being filled, if there is anything in it.
    pub fn flush(&mut self) {
        self.messages.flush();
    }

    /// Bytes of all messages that were not handed out. All that are ready but one are those of a single row that is larger
    /// than a message; the one being filled has less than a message's target.
    pub fn held_bytes(&self) -> usize {
        self.messages.ready_bytes + self.messages.open.len()
    }

    /// Moves the values that the messages hold slices of into the messages' own memory.
    pub fn gather(&mut self) {
        for message in self.sharing() {
            message.gather();
        }
    }

    /// The messages that hold slices of others' memory. Who puts something else in the place of one puts the same there in other memory.
    pub(crate) fn sharing(&mut self) -> impl Iterator<Item = &mut ReadRowsMessage> {
        let Messages { next, behind, open, .. } = &mut self.messages;
        let all = next.iter_mut().chain(behind).chain([open]);
        all.filter(|message| message.shared_bytes() > 0)
    }

    /// Whether nothing is left that was not handed out.
    pub fn is_empty(&self) -> bool {
        !self.has_ready() && self.messages.open.is_empty()
    }

    /// Whether there is a message that is full or was flushed.
    pub fn has_ready(&self) -> bool {
        self.messages.next.is_some()
    }

    /// The next message that is full or was flushed.
    pub fn pop(&mut self) -> Option<ReadRowsMessage> {
        let Messages { next, behind, ready_bytes, .. } = &mut self.messages;
        let message = std::mem::replace(next, behind.pop_front())?;
        *ready_bytes -= message.len();
        Some(message)
    }
}

/// Goes through the chunks of a row. Families are known.
fn chunks<'a, C: RowCell>(
    families: &'a FamilyNames,
    key: &'a [u8],
    cells: &'a [C],
    memory: &'a C::Memory,
    mut take: impl FnMut(Chunk<'a>),
) {
    let mut previous: Option<&C> = None;
    for (index, cell) in cells.iter().enumerate() {
        let same_family = previous.is_some_and(|other| other.family() == cell.family());
        let same_column = previous.is_some_and(|other| other.is_of_column_of(cell, memory));
        previous = Some(cell);
        let family = if same_family { None } else { families.get(cell.family()) };
        let mut chunk = Chunk {
            row_key: if index == 0 { key } else { &[] },
            family: family.map(AsRef::as_ref),
            qualifier: (!same_column).then(|| cell.qualifier(memory)),
            timestamp: cell.timestamp(),
            labels: cell.labels(),
            ..Chunk::default()
        };
        let whole = cell.value_len();
        let (value, start) = cell.value_memory(memory).unzip();
        let start = start.unwrap_or_default();
        let mut at = 0;
        while whole > VALUE_PIECE_BYTES_MAX
            && let Some(value_len) = piece_len(cell.value(memory).get(at..).unwrap_or_default())
        {
            take(Chunk {
                value,
                value_at: start + at,
                value_len,
                value_size: whole as i32, // Values are limited to 100 MiB.
                ..chunk
            });
            chunk = Chunk::default();
            at += value_len;
        }
        take(Chunk {
            value,
            value_at: start + at,
            value_len: whole - at,
            ends_row: index + 1 == cells.len(),
            ..chunk
        });
    }
}

/// Bytes of the next piece of what is left of a value; `None` where that is one piece.
///
/// Google's client for Node decodes each piece for itself and joins what that gives. So text is cut between two characters: the halves of
/// one would come out as others. And where it is told to give base64, each piece but the last has to be a multiple of three
/// bytes: text is cut so, too, where that can be, and all else at the limit, whatever stands there. A piece is text if its end is, but
/// for a character that it ends within. What is text at its end alone may be cut there as well.
fn piece_len(rest: &[u8]) -> Option<usize> {
    if rest.len() <= VALUE_PIECE_BYTES_MAX {
        return None;
    }
    let piece = rest.get(..VALUE_PIECE_BYTES_MAX)?;
    let begins_character = |byte: &u8| byte & 0b1100_0000 != 0b1000_0000;
    let look_at = piece.len() - TEXT_LOOK_BYTES;
    let last = piece.get(look_at..)?;
    // Of a character of text that begins before it, three bytes at most.
    let skipped = last.iter().take(3).take_while(|byte| !begins_character(byte)).count();
    match std::str::from_utf8(last.get(skipped..)?) {
        Err(error) if error.error_len().is_none() => {
            let end = look_at + skipped + error.valid_up_to();
            let thirds = (0..=end / 3).rev().map(|thirds| 3 * thirds);
            let is_end = |at: &usize| piece.get(*at).is_some_and(begins_character);
            Some(thirds.take(TEXT_ENDS_MAX).find(is_end).unwrap_or(end))
        }
        _ => Some(piece.len()),
    }
}

impl Messages {
    fn flush(&mut self) {
        if self.open.is_empty() {
            return;
        }
        self.until_larger -= 1;
        if self.until_larger == 0 {
            self.until_larger = MESSAGES_PER_SIZE;
            self.target_bytes = (self.target_bytes * 2).min(MESSAGE_BYTES_TARGET);
        }
        let message = std::mem::take(&mut self.open);
        self.make_ready(message);
    }

    fn make_ready(&mut self, message: ReadRowsMessage) {
        self.ready_bytes += message.len();
        if self.next.is_none() {
            self.next = Some(message);
        } else {
            self.behind.push_back(message);
        }
    }
}

#[cfg(test)]
#[path = "chunk_tests.rs"]
mod tests;
