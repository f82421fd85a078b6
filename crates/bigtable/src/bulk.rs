//! `MutateRows` requests whose entries are decoded once it is known that the request is let in: under a load that is too high most are
//! refused, and hundreds of mutations would be decoded for nothing.
//!
//! Of each entry the row is found as it comes. How many there may be is checked before ([`parts`](crate::parts)).

use std::ops::Range;

use bytes::{Buf, BufMut, Bytes};
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
use prost::encoding::{self, DecodeContext, WireType};
use prost::{DecodeError, Message};

use crate::error::{Error, Result};
use crate::origin::WithOrigins;

/// The field of a request that has its entries.
const ENTRIES: u32 = 2;
/// The field of an entry that has its row.
const ROW_KEY: u32 = 1;

/// A request as it came; the same message on the wire as `v2::MutateRowsRequest`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Bulk {
    /// All but its entries.
    head: v2::MutateRowsRequest,
    entries: Vec<Part>,
}

/// An entry, and where the row lies in it.
#[derive(Debug, Clone, PartialEq)]
struct Part {
    entry: Bytes,
    row: Range<usize>,
}

impl Bulk {
    /// The request without its entries.
    pub fn head(&self) -> &v2::MutateRowsRequest {
        &self.head
    }

    /// How many entries it has.
    pub fn entry_count(&self) -> usize {
        self.entries.len()
    }

    /// The rows of its entries, one for each; of an entry that is none, any.
    pub fn rows(&self) -> impl Iterator<Item = &[u8]> {
        self.entries.iter().map(|part| part.entry.get(part.row.clone()).unwrap_or_default())
    }

    /// The whole request; an error where an entry is none.
    pub fn decoded(self) -> Result<v2::MutateRowsRequest> {
        type Entry = WithOrigins<v2::mutate_rows_request::Entry>;
        let entry = |part: Part| Entry::decode(part.entry).map(|WithOrigins(entry)| entry);
        let entries = self.entries.into_iter().map(entry).collect::<Result<_, DecodeError>>();
        let entries = entries.map_err(|error| {
            Error::invalid_argument(format!("Error in field 'entries' : not a message: {error}"))
        })?;
        Ok(v2::MutateRowsRequest { entries, ..self.head })
    }
}

impl Message for Bulk {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        self.head.encode_raw(buf);
        for part in &self.entries {
            encoding::bytes::encode(ENTRIES, &part.entry, buf);
        }
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> std::result::Result<(), DecodeError> {
        if tag != ENTRIES {
            return self.head.merge_field(tag, wire_type, buf, ctx);
        }
        let mut entry = Bytes::new();
        encoding::bytes::merge(wire_type, &mut entry, buf, ctx)?;
        let row = row_of(&entry);
        self.entries.push(Part { entry, row });
        Ok(())
    }

    fn encoded_len(&self) -> usize {
        let entry = |part: &Part| encoding::bytes::encoded_len(ENTRIES, &part.entry);
        self.head.encoded_len() + self.entries.iter().map(entry).sum::<usize>()
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Where the row of an entry lies in it. What is no message is looked at as far as it is one; decoding it will fail.
fn row_of(entry: &[u8]) -> Range<usize> {
    let (mut rest, mut row) = (entry, 0..0);
    while rest.has_remaining() {
        let Ok((tag, wire_type)) = encoding::decode_key(&mut rest) else { break };
        let start = entry.len() - rest.remaining();
        let skipped = encoding::skip_field(wire_type, tag, &mut rest, DecodeContext::default());
        if skipped.is_err() {
            break;
        }
        if tag == ROW_KEY && wire_type == WireType::LengthDelimited {
            let end = entry.len() - rest.remaining();
            let mut field = entry.get(start..end).unwrap_or_default();
            // The length goes before; it was read to skip the field.
            let len = encoding::decode_varint(&mut field).unwrap_or_default() as usize;
            row = end.saturating_sub(len)..end;
        }
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;

    fn request(entries: usize, mutations: usize) -> v2::MutateRowsRequest {
        let entry = |n| v2::mutate_rows_request::Entry {
            row_key: format!("row{n}").into(),
            mutations: vec![v2::Mutation::default(); mutations],
            ..Default::default()
        };
        v2::MutateRowsRequest {
            table_name: "t".into(),
            app_profile_id: "p".into(),
            entries: (0..entries).map(entry).collect(),
            ..Default::default()
        }
    }

    fn bulk(request: &v2::MutateRowsRequest) -> Bulk {
        Bulk::decode(Bytes::from(request.encode_to_vec())).unwrap()
    }

    #[test]
    fn a_request_within_the_limit_is_decoded_unchanged_and_tells_its_rows_before() {
        for request in [request(0, 0), request(3, 2), request(100, 1_000)] {
            let bulk = bulk(&request);
            let rows: Vec<_> = request.entries.iter().map(|entry| entry.row_key.as_ref()).collect();
            assert_eq!(bulk.rows().collect::<Vec<_>>(), rows);
            assert_eq!((bulk.head().table_name.as_str(), bulk.entry_count()), ("t", rows.len()));
            assert_eq!(v2::MutateRowsRequest::decode(&*bulk.encode_to_vec()).unwrap(), request);
            assert_eq!(Bulk::decode(Bytes::from(bulk.encode_to_vec())).unwrap(), bulk);
            assert_eq!(bulk.decoded().unwrap(), request);
        }
    }

    #[test]
    fn an_entry_whose_row_comes_twice_has_the_last_one() {
        let mut entry = Vec::new();
        for row in ["first", "last"] {
            encoding::bytes::encode(ROW_KEY, &Bytes::from(row), &mut entry);
        }
        let mut message = Vec::new();
        encoding::bytes::encode(ENTRIES, &Bytes::from(entry), &mut message);
        let bulk = Bulk::decode(Bytes::from(message)).unwrap();
        assert_eq!(bulk.rows().collect::<Vec<_>>(), [b"last"]);
        assert_eq!(bulk.decoded().unwrap().entries[0].row_key, "last");
    }

    #[test]
    fn times_that_the_client_made_up_are_cut_in_every_entry() {
        let mut entry = Vec::new();
        encoding::bytes::encode(2, &crate::origin::generated(1_234_567), &mut entry);
        let mut message = Vec::new();
        for _ in 0..2 {
            encoding::bytes::encode(ENTRIES, &entry, &mut message);
        }
        let decoded = Bulk::decode(Bytes::from(message)).unwrap().decoded().unwrap();
        let times = |entry: &v2::mutate_rows_request::Entry| crate::origin::times(&entry.mutations);
        assert_eq!(decoded.entries.iter().map(times).collect::<Vec<_>>(), [[1_234_000]; 2]);
    }

    #[test]
    fn damage_within_an_entry_is_an_error() {
        // The entry is as long as it says, its last mutation is not.
        let mut entry = request(1, 3).entries[0].encode_to_vec();
        *entry.last_mut().unwrap() = 9;
        let mut message = Vec::new();
        encoding::bytes::encode(ENTRIES, &Bytes::from(entry), &mut message);
        let bulk = Bulk::decode(Bytes::from(message.clone())).unwrap();
        assert_eq!(bulk.decoded().unwrap_err().kind(), Code::InvalidArgument);
        message.pop();
        assert!(Bulk::decode(Bytes::from(message)).is_err());
    }
}
