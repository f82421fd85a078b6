//! Reads rows of a range in order, and goes on behind the last one after an interruption.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::read_rows_response::CellChunk;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::read_rows_response::cell_chunk::RowStatus;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::row_range::{EndKey, StartKey};
use prost::Message as _;
use tonic::{Code, Status};

use crate::client::{Client, Patience, Stop, delay_of_call, words};
use crate::error::{Error, Result};
use crate::row::{Cell, Row};

/// How long a server may send nothing until it is asked again: Google's Java client waits as long. One that looks for
/// rows says how far it is.
const IDLE_MAX: Duration = Duration::from_mins(5);

/// Bytes of a family's name, at most: each cell is given its own, and a message may have a cell in two bytes. Bigtable's limit is
/// 64; one that is laxer is read as well.
const FAMILY_BYTES_MAX: usize = 1 << 10;

/// Puts the chunks of rows together.
#[derive(Debug, Default)]
struct Assembler {
    row: Option<Row>,
    family: String,
    qualifier: Bytes,
    timestamp_micros: i64,
    pieces: BytesMut,
    within_value: bool,
}

impl Assembler {
    /// Takes a chunk; the row that it completes.
    fn take(&mut self, chunk: CellChunk) -> Result<Option<Row>, &'static str> {
        if matches!(chunk.row_status, Some(RowStatus::ResetRow(true))) {
            *self = Self::default();
            return Ok(None);
        }
        let row = match &mut self.row {
            Some(row) => row,
            None if chunk.row_key.is_empty() => return Err("a row without a key"),
            None => self.row.insert(Row { key: chunk.row_key.clone(), cells: Vec::new() }),
        };
        if !chunk.row_key.is_empty() && chunk.row_key != row.key {
            return Err("a row that was not ended");
        }
        if !self.within_value {
            if let Some(family) = chunk.family_name {
                self.family = family;
                if chunk.qualifier.is_none() {
                    return Err("a family without a qualifier");
                }
                if self.family.len() > FAMILY_BYTES_MAX {
                    return Err("a family whose name is too long");
                }
            }
            if let Some(qualifier) = chunk.qualifier {
                self.qualifier = qualifier.into();
            }
            if self.family.is_empty() {
                return Err("a cell without a family");
            }
            self.timestamp_micros = chunk.timestamp_micros;
        }
        self.within_value = chunk.value_size > 0;
        if self.within_value {
            self.pieces.extend_from_slice(&chunk.value);
        } else {
            let value = if self.pieces.is_empty() {
                chunk.value
            } else {
                self.pieces.extend_from_slice(&chunk.value);
                self.pieces.split().freeze()
            };
            row.cells.push(Cell {
                family: self.family.clone(),
                qualifier: self.qualifier.clone(),
                timestamp_micros: self.timestamp_micros,
                value,
            });
        }
        if matches!(chunk.row_status, Some(RowStatus::CommitRow(true))) {
            if self.within_value {
                return Err("a row that ends within a value");
            }
            let row = self.row.take();
            *self = Self::default();
            return Ok(row);
        }
        Ok(None)
    }
}

/// Puts the chunks of what may be a message together, for fuzzing; up to the first that makes no row.
pub(crate) fn fuzz(data: &[u8]) {
    let Ok(message) = v2::ReadRowsResponse::decode(data) else { return };
    let mut assembler = Assembler::default();
    for chunk in message.chunks {
        match assembler.take(chunk) {
            Ok(None) => {}
            Ok(Some(row)) => assert!(!row.key.is_empty() && !row.cells.is_empty()),
            Err(_) => return,
        }
    }
}

/// A range of rows: from a key, before another; empty for no bound.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Range {
    /// The first key.
    #[serde(with = "crate::base64")]
    pub start: Bytes,
    /// The key behind the last one.
    #[serde(with = "crate::base64")]
    pub end: Bytes,
}

impl Range {
    /// The rows whose keys begin so.
    pub fn prefix(prefix: &[u8]) -> Self {
        let mut end = prefix.to_vec();
        while end.last() == Some(&0xff) {
            end.pop();
        }
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        Self { start: Bytes::copy_from_slice(prefix), end: end.into() }
    }
}

/// Whether a refusal is of the caller, the table or the request, and any other range would be refused as well: not one for a
/// damaged row, or one that is too large for an answer.
fn concerns_every_range(code: Code) -> bool {
    matches!(
        code,
        Code::PermissionDenied
            | Code::Unauthenticated
            | Code::NotFound
            | Code::InvalidArgument
            | Code::Unimplemented
    )
}

/// A read under way.
pub struct Scan {
    client: Client,
    range: Range,
    filter: Option<v2::RowFilter>,
    /// The last row that was handed out, or that the server says it has looked at.
    last: Option<Bytes>,
    stream: Option<tonic::Streaming<v2::ReadRowsResponse>>,
    chunks: std::vec::IntoIter<CellChunk>,
    assembler: Assembler,
    patience: Patience,
    stop: Stop,
}

impl Scan {
    /// Reads a range; gives up when the server gives nothing for so long.
    pub fn new(
        client: Client,
        range: Range,
        filter: Option<v2::RowFilter>,
        retry_for: Duration,
        stop: Stop,
    ) -> Self {
        Self {
            client,
            range,
            filter,
            last: None,
            stream: None,
            chunks: Vec::new().into_iter(),
            assembler: Assembler::default(),
            patience: Patience::new(retry_for, stop.clone()),
            stop,
        }
    }

    /// The next row; none at the end.
    pub async fn next(&mut self) -> Result<Option<Row>> {
        loop {
            for chunk in self.chunks.by_ref() {
                let row = self.assembler.take(chunk);
                let row =
                    row.map_err(|why| Error::failed(format!("ReadRows: the server sent {why}")))?;
                if let Some(row) = row {
                    self.last = Some(row.key.clone());
                    self.patience.succeeded();
                    return Ok(Some(row));
                }
            }
            match self.more_unless_stopped().await {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                Err(status) if self.patience.calls_again(&status) => {
                    self.stream = None;
                    self.chunks = Vec::new().into_iter();
                    self.assembler = Assembler::default();
                    let said = delay_of_call(&status);
                    self.patience.wait(said, &words("ReadRows", &status)).await?;
                }
                Err(status) => return Err(self.refused(&status)),
            }
        }
    }

    /// The error for a read that is refused for good.
    fn refused(&self, status: &Status) -> Error {
        let why = words("ReadRows", status);
        if concerns_every_range(status.code()) {
            return Error::failed(why);
        }
        Error::unreadable(match &self.last {
            Some(last) => format!("behind row {}: {why}", last.escape_ascii()),
            None => why,
        })
    }

    async fn more_unless_stopped(&mut self) -> Result<bool, Status> {
        let stop = self.stop.clone();
        stop.in_time(IDLE_MAX, self.more()).await
    }

    /// Fetches the next message; false at the end.
    async fn more(&mut self) -> Result<bool, Status> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            None => {
                let rows = match self.rest() {
                    Some(range) => v2::RowSet { row_ranges: vec![range], ..Default::default() },
                    None => return Ok(false),
                };
                let begun = self.client.read(Some(rows), self.filter.clone()).await?;
                self.stream.insert(begun)
            }
        };
        let Some(message) = stream.message().await? else {
            if self.assembler.row.is_some() {
                return Err(Status::unavailable("the answer ended within a row"));
            }
            return Ok(false);
        };
        if !message.last_scanned_row_key.is_empty() {
            self.last = Some(message.last_scanned_row_key);
            self.patience.succeeded();
        }
        self.chunks = message.chunks.into_iter();
        Ok(true)
    }

    /// What has not been read of the range; none where it is all read.
    fn rest(&self) -> Option<v2::RowRange> {
        let start_key = match &self.last {
            Some(last) => {
                let next = [last, &b"\0"[..]].concat();
                if !self.range.end.is_empty() && next.as_slice() >= self.range.end.as_ref() {
                    return None;
                }
                Some(StartKey::StartKeyOpen(last.clone()))
            }
            None if self.range.start.is_empty() => None,
            None => Some(StartKey::StartKeyClosed(self.range.start.clone())),
        };
        let end_key =
            (!self.range.end.is_empty()).then(|| EndKey::EndKeyOpen(self.range.end.clone()));
        Some(v2::RowRange { start_key, end_key })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn chunk(key: &str, column: Option<(&str, &str)>, value: &str, size: i32) -> CellChunk {
        CellChunk {
            row_key: Bytes::copy_from_slice(key.as_bytes()),
            family_name: column.map(|(family, _)| family.to_owned()),
            qualifier: column.map(|(_, q)| q.as_bytes().to_vec()),
            timestamp_micros: 1000,
            value: Bytes::copy_from_slice(value.as_bytes()),
            value_size: size,
            ..CellChunk::default()
        }
    }

    fn ended(mut chunk: CellChunk) -> CellChunk {
        chunk.row_status = Some(RowStatus::CommitRow(true));
        chunk
    }

    #[test]
    fn values_in_pieces_and_columns_that_go_on_make_rows() {
        let mut assembler = Assembler::default();
        let reset =
            CellChunk { row_status: Some(RowStatus::ResetRow(true)), ..CellChunk::default() };
        let mut rows = Vec::new();
        for chunk in [
            chunk("a", Some(("f", "q")), "void", 0),
            reset,
            chunk("a", Some(("f", "q")), "one ", 9),
            chunk("", None, "val", 9),
            chunk("", None, "ue", 0),
            ended(chunk("", None, "older", 0)),
            ended(chunk("b", Some(("g", "")), "", 0)),
        ] {
            rows.extend(assembler.take(chunk).unwrap());
        }
        let cells: Vec<Vec<_>> = rows
            .iter()
            .map(|row| {
                row.cells
                    .iter()
                    .map(|c| (c.family.as_str(), c.qualifier.as_ref(), c.value.as_ref()))
                    .collect()
            })
            .collect();
        assert_eq!(
            cells,
            [
                vec![("f", &b"q"[..], &b"one value"[..]), ("f", b"q", b"older")],
                vec![("g", b"", b"")]
            ]
        );
    }

    #[test]
    fn chunks_that_make_no_row_are_refused() {
        for chunks in [
            vec![chunk("", Some(("f", "q")), "v", 0)],
            vec![chunk("a", None, "v", 0)],
            vec![chunk("a", Some(("f", "q")), "v", 0), chunk("b", Some(("f", "q")), "v", 0)],
            vec![ended(chunk("a", Some(("f", "q")), "v", 5))],
            vec![chunk("a", Some(("f".repeat(FAMILY_BYTES_MAX + 1).as_str(), "q")), "v", 0)],
        ] {
            let mut assembler = Assembler::default();
            assert!(chunks.into_iter().any(|chunk| assembler.take(chunk).is_err()));
        }
    }

    proptest! {
        #[test]
        fn a_prefix_is_the_range_of_the_keys_that_begin_with_it(
            prefix in proptest::collection::vec(prop_oneof![Just(0u8), Just(0xfe), Just(0xff)], 0..4),
            key in proptest::collection::vec(prop_oneof![Just(0u8), Just(0xfe), Just(0xff)], 1..6),
        ) {
            let range = Range::prefix(&prefix);
            let within = key.as_slice() >= range.start.as_ref()
                && (range.end.is_empty() || key.as_slice() < range.end.as_ref());
            prop_assert_eq!(within, key.starts_with(&prefix));
        }
    }
}
