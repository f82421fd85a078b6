//! What repeats in a request, counted in its message before that is decoded: of two bytes on the wire, decoding may make some hundreds in
//! memory, and a request of 256 MiB many times its size before its limits are checked.

use bytes::Buf as _;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
use prost::Message;
use prost::encoding::{self, DecodeContext, WireType};

use crate::bulk::Bulk;
use crate::changes::partition;
use crate::error::Result;
use crate::filter::WithFilter;
use crate::limits;
use crate::origin::WithOrigins;

/// What is counted of a message.
#[derive(Debug)]
pub enum Shape {
    /// It counts, and so does what is counted of these fields in it.
    One(&'static [(u32, &'static Shape)]),
    /// It counts, and so does each field with a length within it, however deep; what is no message, as far as it could be one.
    All,
    /// It does not count; what is counted of these fields in it does.
    Within(&'static [(u32, &'static Shape)]),
}

/// How deep messages may be nested: what is deeper cannot be decoded.
const DEPTH_MAX: u32 = 100;

/// One without parts of its own.
const SINGLE: Shape = Shape::One(&[]);

/// A mutation. One that is supported has nothing in it that repeats; but values may be lists, and their types trees.
const MUTATION: Shape = Shape::One(&[(5, &CHANGE), (6, &CHANGE)]);
/// Of `AddToCell` and `MergeToCell`, which have a column, a time and what is to be added.
const CHANGE: Shape = Shape::Within(&[(2, &VALUE), (3, &VALUE), (4, &VALUE)]);
/// An array, and a type.
const VALUE: Shape = Shape::Within(&[(4, &Shape::All), (7, &Shape::All)]);

/// A request in which something repeats, as its message tells.
pub trait Repeats: Message + Default {
    /// What of it counts.
    const SHAPE: Shape;
    /// Bytes that each part takes at most in memory for as long as the request is carried out, beyond what it has on the wire.
    const PART_BYTES: usize = limits::MUTATION_BYTES;
    /// Whether it keeps them until its answer was taken.
    const LASTS: bool = false;

    /// Refuses more parts than that.
    fn check_count(count: usize) -> Result<()> {
        limits::check_mutation_count_max(count)
    }

    /// Bytes that it takes while it is carried out, beyond those of its message; `INVALID_ARGUMENT` where there is more in it than its limit
    /// allows.
    fn decoded_bytes(message: &[u8]) -> Result<u64> {
        let parts = count(message, &Self::SHAPE);
        Self::check_count(parts)?;
        Ok((parts * Self::PART_BYTES) as u64)
    }
}

impl Repeats for WithFilter<v2::ReadRowsRequest> {
    /// Of its rows, keys and ranges.
    const SHAPE: Shape = Shape::Within(&[(2, &Shape::Within(&[(1, &SINGLE), (2, &SINGLE)]))]);
    const PART_BYTES: usize = limits::ROW_RANGE_BYTES;
    const LASTS: bool = true;

    fn check_count(count: usize) -> Result<()> {
        limits::check_row_set(count)
    }
}

impl Repeats for WithOrigins<v2::MutateRowRequest> {
    const SHAPE: Shape = Shape::Within(&[(3, &MUTATION)]);
}

impl Repeats for WithFilter<WithOrigins<v2::CheckAndMutateRowRequest>> {
    /// Each of its two lists may have as many as any. Which has more is found out when they are compiled.
    const SHAPE: Shape = Shape::Within(&[(4, &MUTATION), (5, &MUTATION)]);

    fn check_count(count: usize) -> Result<()> {
        limits::check_mutation_count_of_both(count)
    }
}

impl Repeats for v2::ReadModifyWriteRowRequest {
    const SHAPE: Shape = Shape::Within(&[(3, &SINGLE)]);

    fn check_count(count: usize) -> Result<()> {
        limits::check_rule_count_max(count)
    }
}

impl Repeats for v2::ReadChangeStreamRequest {
    /// Of its tokens.
    const SHAPE: Shape = Shape::Within(&[(6, &Shape::Within(&[(1, &SINGLE)]))]);

    fn check_count(count: usize) -> Result<()> {
        partition::check_token_count(count)
    }
}

impl Repeats for Bulk {
    /// The mutations of its entries.
    const SHAPE: Shape = Shape::Within(&[(2, &Shape::Within(&[(2, &MUTATION)]))]);

    /// Entries have the same limit as their mutations, and take as much.
    fn decoded_bytes(message: &[u8]) -> Result<u64> {
        let entries = count(message, &Shape::Within(&[(2, &SINGLE)]));
        let mutations = count(message, &Self::SHAPE);
        Self::check_count(entries.max(mutations))?;
        Ok(((entries + mutations) * Self::PART_BYTES) as u64)
    }
}

/// How much of a message has this shape. What is no message is looked at as far as it is one; decoding it will fail.
pub fn count(message: &[u8], shape: &Shape) -> usize {
    count_within(message, shape, DEPTH_MAX)
}

fn count_within(message: &[u8], shape: &Shape, depth: u32) -> usize {
    let Some(deeper) = depth.checked_sub(1) else { return 0 };
    let of = |named: &[(u32, &'static Shape)]| {
        let counted = |(tag, field): (u32, &[u8])| {
            let shape = named.iter().find(|(of, _)| *of == tag);
            shape.map_or(0, |(_, shape)| count_within(field, shape, deeper))
        };
        if named.is_empty() { 0 } else { fields(message).map(counted).sum() }
    };
    match shape {
        Shape::One(named) => 1 + of(named),
        Shape::Within(named) => of(named),
        Shape::All => {
            let counted = |(_, field): (u32, &[u8])| count_within(field, &Shape::All, deeper);
            1 + fields(message).map(counted).sum::<usize>()
        }
    }
}

/// The fields of a message that have a length, as far as it is one.
fn fields(message: &[u8]) -> impl Iterator<Item = (u32, &[u8])> {
    let mut rest = message;
    std::iter::from_fn(move || {
        while rest.has_remaining() {
            let (tag, wire_type) = encoding::decode_key(&mut rest).ok()?;
            if wire_type == WireType::LengthDelimited {
                let len = usize::try_from(encoding::decode_varint(&mut rest).ok()?).ok()?;
                let (field, behind) = rest.split_at_checked(len)?;
                rest = behind;
                return Some((tag, field));
            }
            encoding::skip_field(wire_type, tag, &mut rest, DecodeContext::default()).ok()?;
        }
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::changes::partition::TOKENS_MAX;
    use crate::error::{Code, Error};

    type Write = WithOrigins<v2::MutateRowRequest>;

    fn array(values: Vec<v2::Value>) -> v2::Value {
        let kind = v2::value::Kind::ArrayValue(v2::ArrayValue { values });
        v2::Value { kind: Some(kind), ..v2::Value::default() }
    }

    fn adds(input: v2::Value) -> v2::Mutation {
        let add = v2::mutation::AddToCell { input: Some(input), ..Default::default() };
        v2::Mutation { mutation: Some(v2::mutation::Mutation::AddToCell(add)) }
    }

    fn write(mutations: Vec<v2::Mutation>) -> v2::MutateRowRequest {
        v2::MutateRowRequest { mutations, ..Default::default() }
    }

    /// Bytes that a request takes; how it is refused.
    fn bytes<M: Repeats>(request: &impl Message) -> std::result::Result<u64, Error> {
        M::decoded_bytes(&request.encode_to_vec())
    }

    fn refused<M: Repeats>(request: &impl Message, says: &str) {
        let error = bytes::<M>(request).unwrap_err();
        assert_eq!(error.kind(), Code::InvalidArgument);
        assert!(error.message().contains(says), "{error}");
    }

    #[test]
    fn mutations_count_up_to_their_limit() {
        const MOST: usize = limits::MUTATIONS_MAX;
        let plain = |count| write(vec![v2::Mutation::default(); count]);
        for count in [0, 5, MOST] {
            assert_eq!(bytes::<Write>(&plain(count)).unwrap(), 128 * count as u64);
        }
        refused::<Write>(&plain(MOST + 1), "100001 provided; limit 100000");

        let conditional = |if_true: usize, if_false: usize| v2::CheckAndMutateRowRequest {
            true_mutations: vec![v2::Mutation::default(); if_true],
            false_mutations: vec![v2::Mutation::default(); if_false],
            ..Default::default()
        };
        type Conditional = WithFilter<WithOrigins<v2::CheckAndMutateRowRequest>>;
        bytes::<Conditional>(&conditional(MOST, MOST)).unwrap();
        let text = "200001 provided; limit 100000 in each of true_mutations and false_mutations";
        refused::<Conditional>(&conditional(MOST + 1, MOST), text);

        let entry = |mutations| v2::mutate_rows_request::Entry {
            mutations: vec![v2::Mutation::default(); mutations],
            ..Default::default()
        };
        let bulk = |entries, mutations| v2::MutateRowsRequest {
            entries: vec![entry(mutations); entries],
            ..Default::default()
        };
        assert_eq!(bytes::<Bulk>(&bulk(60_000, 1)).unwrap(), 120_000 * 128);
        refused::<Bulk>(&bulk(2, 60_000), "Too many mutations: 120000");
        refused::<Bulk>(&bulk(MOST + 1, 0), "Too many mutations");

        let rules = |count| v2::ReadModifyWriteRowRequest {
            rules: vec![v2::ReadModifyWriteRule::default(); count],
            ..Default::default()
        };
        bytes::<v2::ReadModifyWriteRowRequest>(&rules(limits::RULES_MAX)).unwrap();
        refused::<v2::ReadModifyWriteRowRequest>(&rules(limits::RULES_MAX + 1), "Too many rules");
    }

    #[test]
    fn row_keys_and_ranges_count_together_whether_they_come_at_once_or_not() {
        type Read = WithFilter<v2::ReadRowsRequest>;
        const MOST: usize = limits::ROW_SET_MAX;
        let read = |keys: usize, ranges: usize| {
            let row_keys = vec![b"k".to_vec().into(); keys];
            let row_ranges = vec![v2::RowRange::default(); ranges];
            let rows = Some(v2::RowSet { row_keys, row_ranges });
            v2::ReadRowsRequest { rows, ..Default::default() }
        };
        for (keys, ranges) in [(0, 0), (3, 2), (MOST, 0), (MOST / 2, MOST / 2)] {
            let bytes = bytes::<Read>(&read(keys, ranges)).unwrap();
            assert_eq!(bytes, 64 * (keys + ranges) as u64);
        }
        for (keys, ranges) in [(MOST + 1, 0), (0, MOST + 1), (MOST, 1)] {
            refused::<Read>(&read(keys, ranges), "divide them among several requests");
        }
        let part = read(MOST / 2, 0).encode_to_vec();
        Read::decoded_bytes(&part.repeat(2)).unwrap();
        Read::decoded_bytes(&part.repeat(3)).unwrap_err();
    }

    #[test]
    fn tokens_count_up_to_their_limit() {
        let request = |tokens: usize| {
            let tokens = vec![v2::StreamContinuationToken::default(); tokens];
            let tokens = v2::StreamContinuationTokens { tokens };
            let from = v2::read_change_stream_request::StartFrom::ContinuationTokens(tokens);
            v2::ReadChangeStreamRequest { start_from: Some(from), ..Default::default() }
        };
        bytes::<v2::ReadChangeStreamRequest>(&request(TOKENS_MAX)).unwrap();
        refused::<v2::ReadChangeStreamRequest>(&request(TOKENS_MAX + 1), "continuation_tokens");
    }

    #[test]
    fn mutations_that_are_supported_have_nothing_in_them_that_counts() {
        let value = v2::Value { kind: Some(v2::value::Kind::IntValue(7)), ..v2::Value::default() };
        let looks_like_one = b"\x2a\x02\x0a\x00".to_vec().into();
        let set = v2::mutation::SetCell { value: looks_like_one, ..Default::default() };
        let set = v2::Mutation { mutation: Some(v2::mutation::Mutation::SetCell(set)) };
        for mutation in [adds(value), set] {
            assert_eq!(bytes::<Write>(&write(vec![mutation])).unwrap(), 128);
        }
    }

    #[test]
    fn lists_and_types_within_a_mutation_count_as_mutations_however_deep() {
        let counted =
            |input: v2::Value| count(&write(vec![adds(input)]).encode_to_vec(), &Write::SHAPE);
        let list = array(vec![v2::Value::default(); 1_000]);
        assert!(counted(list.clone()) > 1_000);
        assert!(counted(array(vec![list; 10])) > 10_000);
        let fields = vec![v2::r#type::r#struct::Field::default(); 1_000];
        let of = v2::r#type::Struct { fields, ..Default::default() };
        let kind = Some(v2::r#type::Kind::StructType(of));
        let r#type = Some(v2::Type { kind });
        assert!(counted(v2::Value { r#type, ..Default::default() }) > 1_000);
        let many = array(vec![v2::Value::default(); limits::MUTATIONS_MAX]);
        refused::<Write>(&write(vec![adds(many.clone())]), "Too many mutations");
        let entry =
            v2::mutate_rows_request::Entry { mutations: vec![adds(many)], ..Default::default() };
        let bulk = v2::MutateRowsRequest { entries: vec![entry], ..Default::default() };
        refused::<Bulk>(&bulk, "Too many mutations");
    }

    #[test]
    fn what_is_no_message_or_too_deep_counts_as_far_as_it_goes() {
        let mut list = write(vec![adds(array(vec![v2::Value::default(); 100]))]).encode_to_vec();
        list.truncate(list.len() - 50);
        count(&list, &Write::SHAPE);
        let mut deep = Vec::new();
        for _ in 0..10_000 {
            let mut around = Vec::new();
            encoding::bytes::encode(1, &deep, &mut around);
            deep = around;
        }
        assert_eq!(count(&deep, &Shape::All), DEPTH_MAX as usize);
    }
}
