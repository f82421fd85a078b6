//! Requests whose mutations, or row keys and ranges, are counted while they are decoded.
//!
//! A mutation takes a few bytes on the wire and a few hundred in memory, a range of rows two and 80: a request of 256 MiB
//! could decode into many times its size before its limit on them is checked. [`Bounded`] counts as it decodes, keeps
//! nothing of what is beyond the limit, and [`Bounded::checked`] refuses the request.

use bytes::{Buf, BufMut, Bytes};
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
use prost::encoding::{DecodeContext, WireType};
use prost::{DecodeError, Message};

use crate::error::Result;
use crate::filter::WithFilter;
use crate::limits;

/// Bytes of a protobuf varint, at most.
const VARINT_BYTES_MAX: usize = 10;

/// A request in which something repeats.
pub trait Repeats: Message + Default {
    /// The fields that repeat, or within which others do. One that is to come once is merged where it comes again.
    const FIELDS: &'static [u32];
    /// The fields that repeat within each of these.
    const WITHIN: &'static [u32] = &[];
    /// How often all of them may come.
    const COUNT_MAX: usize = limits::MUTATIONS_MAX;

    /// Refuses more than that.
    fn check_count(count: usize) -> Result<()> {
        limits::check_mutation_count_max(count)
    }
}

impl Repeats for WithFilter<v2::ReadRowsRequest> {
    const FIELDS: &'static [u32] = &[2];
    const WITHIN: &'static [u32] = &[1, 2];
    const COUNT_MAX: usize = limits::ROW_SET_MAX;

    fn check_count(count: usize) -> Result<()> {
        limits::check_row_set(count)
    }
}

impl Repeats for v2::MutateRowRequest {
    const FIELDS: &'static [u32] = &[3];
}

impl Repeats for WithFilter<v2::CheckAndMutateRowRequest> {
    const FIELDS: &'static [u32] = &[4, 5];
    /// Each of its two lists may have as many as any. Which has more is found out when they are compiled.
    const COUNT_MAX: usize = 2 * limits::MUTATIONS_MAX;

    fn check_count(count: usize) -> Result<()> {
        limits::check_mutation_count_of_both(count)
    }
}

impl Repeats for v2::ReadModifyWriteRowRequest {
    const FIELDS: &'static [u32] = &[3];
}

/// A request that was decoded up to the limit; the same message on the wire as `M`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Bounded<M> {
    request: M,
    /// Fields that repeat, and fields that repeat within these.
    count: usize,
    count_within: usize,
}

impl<M> Bounded<M> {
    /// What was decoded, before it is known whether there was more.
    pub fn unchecked(&self) -> &M {
        &self.request
    }
}

impl<M: Repeats> Bounded<M> {
    /// The request; `INVALID_ARGUMENT` where there was more in it than its limit allows.
    pub fn checked(self) -> Result<M> {
        M::check_count(self.count.max(self.count_within))?;
        Ok(self.request)
    }
}

impl<M: Repeats> Message for Bounded<M> {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        self.request.encode_raw(buf);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> std::result::Result<(), DecodeError> {
        if !M::FIELDS.contains(&tag) || wire_type != WireType::LengthDelimited {
            return self.request.merge_field(tag, wire_type, buf, ctx);
        }
        let mut part = Bytes::new();
        prost::encoding::bytes::merge(wire_type, &mut part, buf, ctx.clone())?;
        self.count += 1;
        if !M::WITHIN.is_empty() {
            self.count_within += count_of(&part, M::WITHIN);
        }
        if self.count.max(self.count_within) > M::COUNT_MAX {
            return Ok(());
        }
        let mut length = [0; VARINT_BYTES_MAX];
        let mut rest = length.as_mut_slice();
        prost::encoding::encode_varint(part.len() as u64, &mut rest);
        let unused = rest.len();
        let length = length.as_slice().take(VARINT_BYTES_MAX - unused);
        self.request.merge_field(tag, wire_type, &mut length.chain(part), ctx)
    }

    fn encoded_len(&self) -> usize {
        self.request.encoded_len()
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

/// How often fields are in a message. What is no message counts as far as it is one; decoding it will fail.
fn count_of(message: &[u8], fields: &[u32]) -> usize {
    let mut rest = message;
    let mut count = 0;
    while rest.has_remaining() {
        let Ok((tag, wire_type)) = prost::encoding::decode_key(&mut rest) else { break };
        count += usize::from(fields.contains(&tag));
        let skipped =
            prost::encoding::skip_field(wire_type, tag, &mut rest, DecodeContext::default());
        if skipped.is_err() {
            break;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;

    fn write(mutations: usize) -> v2::MutateRowRequest {
        v2::MutateRowRequest {
            row_key: Bytes::from_static(b"r"),
            mutations: vec![v2::Mutation::default(); mutations],
            ..Default::default()
        }
    }

    type BoundedWrite = Bounded<v2::MutateRowRequest>;

    #[test]
    fn a_request_within_the_limit_is_decoded_unchanged() {
        for request in [write(0), write(5), write(limits::MUTATIONS_MAX)] {
            let bounded = BoundedWrite::decode(&*request.encode_to_vec());
            assert_eq!(bounded.unwrap().checked().unwrap(), request);
        }
    }

    #[test]
    fn what_is_beyond_the_limit_is_not_kept_and_the_request_is_refused() {
        let request = write(limits::MUTATIONS_MAX + 1);
        let bounded = BoundedWrite::decode(&*request.encode_to_vec()).unwrap();
        assert!(bounded.request.mutations.len() <= limits::MUTATIONS_MAX);
        let error = bounded.checked().unwrap_err();
        assert_eq!(error.kind(), Code::InvalidArgument);
        assert!(error.message().starts_with("Too many mutations"), "{error}");
    }

    #[test]
    fn each_list_of_a_check_and_mutate_row_may_have_as_many_mutations_as_any() {
        type Request = WithFilter<v2::CheckAndMutateRowRequest>;
        let most = limits::MUTATIONS_MAX;
        let request = |if_true: usize, if_false: usize| v2::CheckAndMutateRowRequest {
            row_key: Bytes::from_static(b"r"),
            true_mutations: vec![v2::Mutation::default(); if_true],
            false_mutations: vec![v2::Mutation::default(); if_false],
            ..Default::default()
        };
        let decode = |if_true, if_false| {
            Bounded::<Request>::decode(&*request(if_true, if_false).encode_to_vec()).unwrap()
        };
        assert_eq!(decode(most, most).checked().unwrap().request, request(most, most));
        let bounded = decode(most + 1, most);
        let kept = &bounded.request.request;
        assert!(kept.true_mutations.len() + kept.false_mutations.len() <= 2 * most);
        let error = bounded.checked().unwrap_err();
        assert_eq!(error.kind(), Code::InvalidArgument);
        let text = "200001 provided; limit 100000 in each of true_mutations and false_mutations";
        assert!(error.message().contains(text), "{error}");
    }

    fn read(row_keys: usize, row_ranges: usize) -> v2::ReadRowsRequest {
        let row_keys = vec![Bytes::from_static(b"k"); row_keys];
        let row_ranges = vec![v2::RowRange::default(); row_ranges];
        v2::ReadRowsRequest {
            table_name: "t".into(),
            rows: Some(v2::RowSet { row_keys, row_ranges }),
            rows_limit: 7,
            ..Default::default()
        }
    }

    type BoundedRead = Bounded<WithFilter<v2::ReadRowsRequest>>;

    #[test]
    fn row_keys_and_ranges_count_together() {
        let most = limits::ROW_SET_MAX;
        for (keys, ranges) in [(0, 0), (3, 2), (most, 0), (most / 2, most / 2)] {
            let request = read(keys, ranges);
            let bounded = BoundedRead::decode(&*request.encode_to_vec()).unwrap();
            assert!(bounded.checked().unwrap().request == request);
        }
        for (keys, ranges) in [(most + 1, 0), (0, most + 1), (most, 1), (0, 16 * most)] {
            let bounded = BoundedRead::decode(&*read(keys, ranges).encode_to_vec()).unwrap();
            assert!(bounded.request.request.rows.is_none(), "nothing is kept");
            let error = bounded.checked().unwrap_err();
            assert_eq!(error.kind(), Code::InvalidArgument);
            assert!(error.message().contains("divide them among several requests"), "{error}");
        }
    }

    #[test]
    fn the_parts_of_a_row_set_that_comes_more_than_once_count_together() {
        let part = read(limits::ROW_SET_MAX / 2, 0).encode_to_vec();
        let twice = BoundedRead::decode(&*part.repeat(2)).unwrap().checked().unwrap();
        assert_eq!(twice.request.rows.unwrap().row_keys.len(), limits::ROW_SET_MAX);
        let bounded = BoundedRead::decode(&*part.repeat(5)).unwrap();
        let kept = bounded.request.request.rows.as_ref().map_or(0, |rows| rows.row_keys.len());
        assert_eq!(kept, limits::ROW_SET_MAX);
        bounded.checked().unwrap_err();
    }

    #[test]
    fn damage_within_a_part_is_an_error_as_ever() {
        let mut bytes = write(3).encode_to_vec();
        bytes.truncate(bytes.len() - 1);
        assert!(BoundedWrite::decode(&*bytes).is_err());
    }
}
