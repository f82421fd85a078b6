//! Requests whose mutations, or row keys and ranges, are counted before they are decoded.
//!
//! A mutation takes a few bytes on the wire and a few hundred in memory, a range of rows two and 80: a request of 256 MiB
//! could decode into many times its size before its limit on them is checked. [`Bounded`] counts as it comes across them, and keeps
//! nothing of what is beyond the limit. A few are decoded at once, and more by [`Bounded::checked`], once the server has
//! made room for [what they take](Bounded::decoded_bytes).

use bytes::{Buf, BufMut, Bytes};
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
use prost::encoding::{DecodeContext, WireType};
use prost::{DecodeError, Message};

use crate::changes::partition::{self, TOKENS_MAX};
use crate::error::{Error, Result};
use crate::filter::WithFilter;
use crate::limits;
use crate::parts::{self, Shape};

/// Bytes of a protobuf varint, at most.
const VARINT_BYTES_MAX: usize = 10;

/// Parts that are decoded as they come: of most requests all, which takes no memory of its own.
const DECODED_AT_ONCE_MAX: usize = 16;

/// A request in which something repeats.
pub trait Repeats: Message + Default {
    /// The fields that repeat, or within which others do. One that is to come once is merged where it comes again.
    const FIELDS: &'static [u32];
    /// What repeats within each of these.
    const WITHIN: Shape = parts::OF_MUTATION;
    /// How often either of them may come.
    const COUNT_MAX: usize = limits::MUTATIONS_MAX;
    /// Bytes that each of them takes at most in memory for as long as the request is carried out, beyond what it has on the wire.
    const PART_BYTES: usize = limits::MUTATION_BYTES;

    /// Refuses more than that.
    fn check_count(count: usize) -> Result<()> {
        limits::check_mutation_count_max(count)
    }
}

impl Repeats for WithFilter<v2::ReadRowsRequest> {
    const FIELDS: &'static [u32] = &[2];
    const WITHIN: Shape = Shape::Within(&[(1, &Shape::One), (2, &Shape::One)]);
    const COUNT_MAX: usize = limits::ROW_SET_MAX;
    const PART_BYTES: usize = limits::ROW_RANGE_BYTES;

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
    const WITHIN: Shape = Shape::Within(&[]);
    const COUNT_MAX: usize = limits::RULES_MAX;

    fn check_count(count: usize) -> Result<()> {
        limits::check_rule_count_max(count)
    }
}

impl Repeats for v2::ReadChangeStreamRequest {
    const FIELDS: &'static [u32] = &[6];
    const WITHIN: Shape = Shape::Within(&[(1, &Shape::One)]);
    const COUNT_MAX: usize = TOKENS_MAX;

    fn check_count(count: usize) -> Result<()> {
        partition::check_token_count(count)
    }
}

/// A request that was decoded so far; the same message on the wire as `M`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Bounded<M> {
    request: M,
    /// Fields of it that are to be decoded later, in the order in which they came.
    later: Vec<(u32, Bytes)>,
    /// Fields that repeat, and fields that repeat within these.
    count: usize,
    count_within: usize,
}

impl<M> Bounded<M> {
    /// What was decoded so far: all that does not repeat.
    pub fn unchecked(&self) -> &M {
        &self.request
    }

    /// How many parts it has.
    fn parts(&self) -> usize {
        self.count.max(self.count_within)
    }
}

impl<M: Repeats> Bounded<M> {
    /// Bytes that the request takes while it is carried out, beyond those of the message.
    pub fn decoded_bytes(&self) -> u64 {
        self.parts().min(M::COUNT_MAX) as u64 * M::PART_BYTES as u64
    }

    /// `INVALID_ARGUMENT` where there is more in the request than its limit allows.
    pub fn check(&self) -> Result<()> {
        M::check_count(self.parts())
    }

    /// The request; `INVALID_ARGUMENT` where there was more in it than its limit allows.
    pub fn checked(mut self) -> Result<M> {
        self.check()?;
        for (tag, part) in self.later {
            let merged = merge(&mut self.request, tag, part, DecodeContext::default());
            merged.map_err(|error| {
                Error::invalid_argument(format!("Error in the request: not a message: {error}"))
            })?;
        }
        Ok(self.request)
    }
}

/// Decodes a field of a message.
fn merge(
    message: &mut impl Message,
    tag: u32,
    part: Bytes,
    context: DecodeContext,
) -> std::result::Result<(), DecodeError> {
    let mut length = [0; VARINT_BYTES_MAX];
    let mut rest = length.as_mut_slice();
    prost::encoding::encode_varint(part.len() as u64, &mut rest);
    let unused = rest.len();
    let length = length.as_slice().take(VARINT_BYTES_MAX - unused);
    message.merge_field(tag, WireType::LengthDelimited, &mut length.chain(part), context)
}

impl<M: Repeats> Message for Bounded<M> {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        self.request.encode_raw(buf);
        for (tag, part) in &self.later {
            prost::encoding::bytes::encode(*tag, part, buf);
        }
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
        self.count_within += parts::count(&part, &M::WITHIN);
        if self.parts() > M::COUNT_MAX {
            self.later = Vec::new();
        } else if self.parts() > DECODED_AT_ONCE_MAX {
            self.later.push((tag, part));
        } else {
            merge(&mut self.request, tag, part, ctx)?;
        }
        Ok(())
    }

    fn encoded_len(&self) -> usize {
        let later = |(tag, part): &(u32, Bytes)| prost::encoding::bytes::encoded_len(*tag, part);
        self.request.encoded_len() + self.later.iter().map(later).sum::<usize>()
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
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
        assert!(bounded.request.mutations.len() + bounded.later.len() <= limits::MUTATIONS_MAX);
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
        assert!(bounded.later.is_empty(), "nothing is kept");
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
            assert!(bounded.request.request.rows.is_none() && bounded.later.is_empty());
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
        assert!(bounded.later.is_empty());
        bounded.checked().unwrap_err();
    }

    #[test]
    fn damage_within_a_part_is_an_error_whenever_it_is_decoded() {
        let mut bytes = write(3).encode_to_vec();
        bytes.truncate(bytes.len() - 1);
        assert!(BoundedWrite::decode(&*bytes).is_err());
        let mut bytes = write(2 * DECODED_AT_ONCE_MAX).encode_to_vec();
        // The last of them is as long as it says, and no mutation.
        prost::encoding::bytes::encode(3, &Bytes::from_static(b"\x0a\x05x"), &mut bytes);
        let error = BoundedWrite::decode(&*bytes).unwrap().checked().unwrap_err();
        assert_eq!(error.kind(), Code::InvalidArgument);
    }

    #[test]
    fn what_is_many_in_memory_is_not_decoded_before_it_is_checked() {
        let few = BoundedWrite::decode(&*write(3).encode_to_vec()).unwrap();
        assert_eq!((few.request.mutations.len(), few.decoded_bytes()), (3, 3 * 128));
        let many = BoundedWrite::decode(&*write(limits::MUTATIONS_MAX).encode_to_vec()).unwrap();
        assert!(many.request.mutations.len() <= DECODED_AT_ONCE_MAX);
        assert_eq!(many.decoded_bytes(), 128 * limits::MUTATIONS_MAX as u64);
        assert_eq!(BoundedWrite::decode(&*many.encode_to_vec()).unwrap(), many);
        let many = BoundedRead::decode(&*read(1_000, 0).encode_to_vec()).unwrap();
        assert!(many.request.request.rows.is_none());
        assert_eq!(many.decoded_bytes(), 64_000);
    }

    /// A mutation that adds a list of so many values to a cell.
    fn adds_list(values: usize) -> v2::Mutation {
        let kind = v2::value::Kind::ArrayValue(v2::ArrayValue {
            values: vec![v2::Value::default(); values],
        });
        let input = Some(v2::Value { kind: Some(kind), ..Default::default() });
        let add = v2::mutation::AddToCell { input, ..Default::default() };
        v2::Mutation { mutation: Some(v2::mutation::Mutation::AddToCell(add)) }
    }

    #[test]
    fn values_of_a_list_within_a_mutation_count_as_mutations_do() {
        let request = v2::MutateRowRequest { mutations: vec![adds_list(1_000)], ..write(0) };
        let bounded = BoundedWrite::decode(&*request.encode_to_vec()).unwrap();
        assert_eq!(bounded.checked().unwrap(), request);
        let mutations = vec![adds_list(limits::MUTATIONS_MAX)];
        let request = v2::MutateRowRequest { mutations, ..write(0) };
        let bounded = BoundedWrite::decode(&*request.encode_to_vec()).unwrap();
        assert!(bounded.request.mutations.is_empty() && bounded.later.is_empty());
        assert_eq!(bounded.checked().unwrap_err().kind(), Code::InvalidArgument);
    }

    #[test]
    fn tokens_of_a_change_stream_are_counted_before_they_are_decoded() {
        let request = |tokens: usize| {
            let tokens = vec![v2::StreamContinuationToken::default(); tokens];
            let tokens = v2::StreamContinuationTokens { tokens };
            let from = v2::read_change_stream_request::StartFrom::ContinuationTokens(tokens);
            v2::ReadChangeStreamRequest { start_from: Some(from), ..Default::default() }
        };
        let most = request(TOKENS_MAX);
        let bounded = Bounded::<v2::ReadChangeStreamRequest>::decode(&*most.encode_to_vec());
        assert_eq!(bounded.unwrap().checked().unwrap(), most);
        let more = request(TOKENS_MAX + 1).encode_to_vec();
        let bounded = Bounded::<v2::ReadChangeStreamRequest>::decode(&*more).unwrap();
        assert!(bounded.request.start_from.is_none() && bounded.later.is_empty());
        let error = bounded.checked().unwrap_err();
        assert_eq!(error.kind(), Code::InvalidArgument);
        assert!(error.message().contains("continuation_tokens"), "{error}");
    }
}
