//! A strict reader of `ReadRows` streams, written from the documentation of `CellChunk` as a client
//! would: it refuses anything that the documentation does not allow.

use bytes::Bytes;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::read_rows_response::CellChunk;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::read_rows_response::cell_chunk::RowStatus;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::request_stats::StatsView;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::{
    ReadIterationStats, ReadRowsResponse, RequestStats,
};
use prost::Message;

/// A cell as a client sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodedCell {
    pub family: String,
    pub qualifier: Vec<u8>,
    pub timestamp: i64,
    pub labels: Vec<String>,
    pub value: Vec<u8>,
}

/// A row as a client sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodedRow {
    pub key: Bytes,
    pub cells: Vec<DecodedCell>,
}

/// What a stream said.
#[derive(Debug, Default)]
pub struct Decoder {
    /// Committed rows.
    pub rows: Vec<DecodedRow>,
    /// Every `last_scanned_row_key`.
    pub scanned: Vec<Bytes>,
    /// The figures of the read, where they were sent.
    pub stats: Option<ReadIterationStats>,
    /// Whether rows come in descending order.
    pub reversed: bool,
    /// The greatest key seen in the order of the read.
    last_key: Option<Bytes>,
    /// The row that is not committed yet.
    row: Option<DecodedRow>,
    /// Length of the value whose pieces are under way.
    value_size: Option<usize>,
}

impl Decoder {
    pub fn new(reversed: bool) -> Self {
        Self { reversed, ..Self::default() }
    }

    /// Takes one message, in its frame.
    pub fn push(&mut self, frame: impl AsRef<[u8]>) -> Result<(), String> {
        let ([0, length @ ..], bytes) =
            frame.as_ref().split_first_chunk::<5>().ok_or("no frame")?
        else {
            return Err("a message that is flagged as compressed".into());
        };
        if u32::from_be_bytes(*length) as usize != bytes.len() {
            return Err("not as long as its frame says".into());
        }
        let response = ReadRowsResponse::decode(bytes).map_err(|e| e.to_string())?;
        if response.encode_to_vec() != bytes {
            return Err("not as protobuf writes it".into());
        }
        if self.stats.is_some() {
            return Err("a message after the figures".into());
        }
        if let Some(RequestStats { stats_view: Some(StatsView::FullReadStatsView(view)) }) =
            response.request_stats
        {
            self.stats = view.read_iteration_stats;
            return if self.row.is_none() { Ok(()) } else { Err("figures within a row".into()) };
        }
        if !response.last_scanned_row_key.is_empty() {
            if self.row.is_some() || !response.chunks.is_empty() {
                return Err("last_scanned_row_key within a row".into());
            }
            self.advance_to(&response.last_scanned_row_key)?;
            self.scanned.push(response.last_scanned_row_key.clone());
        } else if response.chunks.is_empty() {
            return Err("a message that says nothing".into());
        }
        response.chunks.iter().try_for_each(|chunk| self.chunk(chunk))
    }

    /// Ends the stream.
    pub fn finish(self) -> Result<Vec<DecodedRow>, String> {
        if self.row.is_some() { Err("the last row is not committed".into()) } else { Ok(self.rows) }
    }

    fn advance_to(&mut self, key: &Bytes) -> Result<(), String> {
        let in_order = self
            .last_key
            .as_ref()
            .is_none_or(|last| if self.reversed { key < last } else { key > last });
        if !in_order {
            return Err(format!("key {key:?} after {:?}", self.last_key));
        }
        self.last_key = Some(key.clone());
        Ok(())
    }

    fn chunk(&mut self, chunk: &CellChunk) -> Result<(), String> {
        if let Some(whole) = self.value_size {
            self.continue_value(chunk, whole)?;
        } else {
            self.start_cell(chunk)?;
        }
        match chunk.row_status {
            Some(RowStatus::CommitRow(true)) => {
                if self.value_size.is_some() {
                    return Err("commit_row within a value".into());
                }
                self.rows.extend(self.row.take());
            }
            Some(RowStatus::ResetRow(true)) => self.row = None,
            Some(_) => return Err("a row status that is false".into()),
            None => {}
        }
        Ok(())
    }

    fn start_cell(&mut self, chunk: &CellChunk) -> Result<(), String> {
        match (&self.row, chunk.row_key.is_empty()) {
            (None, true) => return Err("a row without a key".into()),
            (Some(row), false) if row.key != chunk.row_key => {
                return Err(format!("row {:?} within row {:?}", chunk.row_key, row.key));
            }
            (Some(_), _) => {}
            (None, false) => {
                self.advance_to(&chunk.row_key)?;
                self.row = Some(DecodedRow { key: chunk.row_key.clone(), cells: Vec::new() });
            }
        }
        let row = self.row.as_mut().ok_or("no row")?;
        let previous = row.cells.last();
        let family = match (&chunk.family_name, previous) {
            (Some(_), _) if chunk.qualifier.is_none() => {
                return Err("family without qualifier".into());
            }
            (Some(family), _) => family.clone(),
            (None, Some(previous)) => previous.family.clone(),
            (None, None) => return Err("first cell without family".into()),
        };
        let qualifier = match (&chunk.qualifier, previous) {
            (Some(qualifier), _) => qualifier.clone(),
            (None, Some(previous)) => previous.qualifier.clone(),
            (None, None) => return Err("first cell without qualifier".into()),
        };
        row.cells.push(DecodedCell {
            family,
            qualifier,
            timestamp: chunk.timestamp_micros,
            labels: chunk.labels.clone(),
            value: chunk.value.to_vec(),
        });
        self.piece_taken(chunk)
    }

    fn continue_value(&mut self, chunk: &CellChunk, whole: usize) -> Result<(), String> {
        let bare = CellChunk {
            value: chunk.value.clone(),
            value_size: chunk.value_size,
            row_status: chunk.row_status,
            ..CellChunk::default()
        };
        if *chunk != bare {
            return Err("a piece of a value with more than its value".into());
        }
        let cell = self.row.as_mut().and_then(|r| r.cells.last_mut()).ok_or("no cell")?;
        cell.value.extend_from_slice(&chunk.value);
        if chunk.value_size == 0 && cell.value.len() != whole {
            return Err(format!("value of {} bytes announced as {whole}", cell.value.len()));
        }
        self.piece_taken(chunk)
    }

    fn piece_taken(&mut self, chunk: &CellChunk) -> Result<(), String> {
        let size = usize::try_from(chunk.value_size).map_err(|e| e.to_string())?;
        if size > 0 && self.value_size.is_some_and(|whole| whole != size) {
            return Err("value_size changes within a value".into());
        }
        self.value_size = (size > 0).then_some(size);
        Ok(())
    }
}
