//! The chunks of a `ReadRowsResponse` as they lie in its bytes.
//!
//! To make an object of each chunk first, with memory of its own for a qualifier and a name, costs a client as much
//! as finding the cells costs the server, on a machine that both share. The clients of other databases here
//! read what comes in its place, too.

use std::fmt::Display;

use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

use crate::error::{Error, Result};

/// Field of `google.bigtable.v2.ReadRowsResponse`.
const CHUNKS: u32 = 1;

/// Fields of its `CellChunk`.
mod field {
    pub(super) const ROW_KEY: u32 = 1;
    pub(super) const FAMILY_NAME: u32 = 2;
    pub(super) const QUALIFIER: u32 = 3;
    pub(super) const VALUE: u32 = 6;
    pub(super) const VALUE_SIZE: u32 = 7;
    pub(super) const RESET_ROW: u32 = 8;
    pub(super) const COMMIT_ROW: u32 = 9;
    /// The only field of the messages that a family's name and a qualifier are wrapped in.
    pub(super) const WRAPPED: u32 = 1;
}

/// What a chunk says; the rest of it is passed over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Chunk<'a> {
    /// Empty where it is that of the chunk before.
    pub row_key: &'a [u8],
    /// `None` where it is that of the chunk before.
    pub family: Option<&'a [u8]>,
    /// Likewise.
    pub qualifier: Option<&'a [u8]>,
    /// The value, or a piece of it.
    pub value: &'a [u8],
    /// Where more pieces follow: the length of all.
    pub value_size: u64,
    /// The row so far is void.
    pub resets: bool,
    /// The row is whole.
    pub commits: bool,
}

/// Shows the chunks of a response in turn.
pub fn each_chunk(response: &[u8], mut show: impl FnMut(&Chunk<'_>) -> Result<()>) -> Result<()> {
    let mut rest = response;
    while let Some(part) = next(&mut rest)? {
        if let (CHUNKS, Part::Bytes(chunk)) = part {
            show(&Chunk::parse(chunk)?)?;
        }
    }
    Ok(())
}

fn malformed(error: impl Display) -> Error {
    Error::failed(format!("a response of ReadRows is malformed: {error}"))
}

/// What a field holds, of those that are looked at.
enum Part<'a> {
    Bytes(&'a [u8]),
    Number(u64),
    Other,
}

/// The next field of a message, and what it holds; `None` at the end.
fn next<'a>(rest: &mut &'a [u8]) -> Result<Option<(u32, Part<'a>)>> {
    if rest.is_empty() {
        return Ok(None);
    }
    let (tag, wire_type) = decode_key(rest).map_err(malformed)?;
    let part = match wire_type {
        WireType::Varint => Part::Number(decode_varint(rest).map_err(malformed)?),
        WireType::LengthDelimited => {
            let len = decode_varint(rest).map_err(malformed)?;
            let parts = usize::try_from(len).ok().and_then(|len| rest.split_at_checked(len));
            let (bytes, behind) = parts.ok_or_else(|| malformed("it is cut off"))?;
            *rest = behind;
            Part::Bytes(bytes)
        }
        _ => {
            skip_field(wire_type, tag, rest, DecodeContext::default()).map_err(malformed)?;
            Part::Other
        }
    };
    Ok(Some((tag, part)))
}

impl<'a> Chunk<'a> {
    fn parse(mut rest: &'a [u8]) -> Result<Self> {
        let mut chunk = Self::default();
        while let Some(part) = next(&mut rest)? {
            match part {
                (field::ROW_KEY, Part::Bytes(key)) => chunk.row_key = key,
                (field::FAMILY_NAME, Part::Bytes(name)) => chunk.family = Some(wrapped(name)?),
                (field::QUALIFIER, Part::Bytes(name)) => chunk.qualifier = Some(wrapped(name)?),
                (field::VALUE, Part::Bytes(value)) => chunk.value = value,
                (field::VALUE_SIZE, Part::Number(size)) => chunk.value_size = size,
                (field::RESET_ROW, Part::Number(is_so)) => chunk.resets = is_so != 0,
                (field::COMMIT_ROW, Part::Number(is_so)) => chunk.commits = is_so != 0,
                _ => {}
            }
        }
        Ok(chunk)
    }
}

/// What a wrapper holds; nothing is said of what is empty.
fn wrapped(mut rest: &[u8]) -> Result<&[u8]> {
    let mut held: &[u8] = &[];
    while let Some(part) = next(&mut rest)? {
        if let (field::WRAPPED, Part::Bytes(bytes)) = part {
            held = bytes;
        }
    }
    Ok(held)
}

#[cfg(test)]
mod tests {
    use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
    use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::read_rows_response::CellChunk;
    use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::read_rows_response::cell_chunk::RowStatus;
    use prost::Message as _;

    use super::*;

    fn response() -> v2::ReadRowsResponse {
        let first = CellChunk {
            row_key: "row".into(),
            family_name: Some("cf".to_owned()),
            qualifier: Some(Vec::new()),
            timestamp_micros: -1,
            labels: vec!["label".to_owned()],
            value: vec![7; 300].into(),
            value_size: 1_000,
            ..CellChunk::default()
        };
        let reset = CellChunk { row_status: Some(RowStatus::ResetRow(true)), ..first.clone() };
        let last = CellChunk {
            qualifier: Some(b"q".to_vec()),
            row_status: Some(RowStatus::CommitRow(true)),
            ..CellChunk::default()
        };
        v2::ReadRowsResponse {
            chunks: vec![first, reset, last],
            last_scanned_row_key: "scanned".into(),
            ..v2::ReadRowsResponse::default()
        }
    }

    #[test]
    fn chunks_are_what_protobuf_says_they_are() {
        let response = response();
        let mut chunks = response.chunks.iter();
        each_chunk(&response.encode_to_vec(), |chunk| {
            let same = chunks.next().unwrap();
            let status = (chunk.resets, chunk.commits);
            assert_eq!(chunk.row_key, same.row_key);
            assert_eq!(chunk.family, same.family_name.as_ref().map(String::as_bytes));
            assert_eq!(chunk.qualifier, same.qualifier.as_deref());
            assert_eq!(chunk.value, same.value);
            assert_eq!(chunk.value_size, same.value_size as u64);
            assert_eq!(status.0, same.row_status == Some(RowStatus::ResetRow(true)));
            assert_eq!(status.1, same.row_status == Some(RowStatus::CommitRow(true)));
            Ok(())
        })
        .unwrap();
        assert!(chunks.next().is_none());
    }

    #[test]
    fn what_is_cut_off_or_changed_is_an_error_and_no_panic() {
        let encoded = response().encode_to_vec();
        for len in 0..encoded.len() {
            let cut = each_chunk(&encoded[..len], |_| Ok(()));
            let known = v2::ReadRowsResponse::decode(&encoded[..len]);
            assert_eq!(cut.is_ok(), known.is_ok(), "{len} bytes");
        }
        for at in 0..encoded.len() {
            let mut changed = encoded.clone();
            changed[at] ^= 0xFF;
            let _ = each_chunk(&changed, |_| Ok(()));
        }
    }
}
