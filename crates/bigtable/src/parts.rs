//! What repeats in a message, counted before it is decoded: of two bytes on the wire, decoding may make some hundreds in memory.

use bytes::Buf as _;
use prost::encoding::{self, DecodeContext, WireType};

/// What is counted of a message.
#[derive(Debug)]
pub enum Shape {
    /// It counts, and nothing of what is in it.
    One,
    /// It counts, and so does each field with a length within it, however deep; what is no message, as far as it could be one.
    All,
    /// It does not count; of what is in it these fields are looked at.
    Within(&'static [(u32, &'static Shape)]),
}

/// How deep messages may be nested: what is deeper cannot be decoded.
const DEPTH_MAX: u32 = 100;

/// What a mutation may have many of. It has none where it is one that is supported: values of any other kind may be lists, and types of
/// them may be trees.
pub const OF_MUTATION: Shape = Shape::Within(&[(5, &OF_CHANGE), (6, &OF_CHANGE)]);
/// Of `AddToCell` and `MergeToCell`, which have a column, a time and what is to be added.
const OF_CHANGE: Shape = Shape::Within(&[(2, &OF_VALUE), (3, &OF_VALUE), (4, &OF_VALUE)]);
/// An array, and a type.
const OF_VALUE: Shape = Shape::Within(&[(4, &Shape::All), (7, &Shape::All)]);

/// How much of a message has this shape. What is no message is looked at as far as it is one; decoding it will fail.
pub fn count(message: &[u8], shape: &Shape) -> usize {
    count_within(message, shape, DEPTH_MAX)
}

fn count_within(message: &[u8], shape: &Shape, depth: u32) -> usize {
    let Some(deeper) = depth.checked_sub(1) else { return 0 };
    let own = usize::from(!matches!(shape, Shape::Within(_)));
    let within = |(tag, field): (u32, &[u8])| match shape {
        Shape::One => 0,
        Shape::All => count_within(field, &Shape::All, deeper),
        Shape::Within(fields) => fields
            .iter()
            .filter(|(of, _)| *of == tag)
            .map(|(_, shape)| count_within(field, shape, deeper))
            .sum(),
    };
    if matches!(shape, Shape::One) { own } else { own + fields(message).map(within).sum::<usize>() }
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
    use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
    use prost::Message as _;

    use super::*;

    fn array(values: Vec<v2::Value>) -> v2::Value {
        let kind = v2::value::Kind::ArrayValue(v2::ArrayValue { values });
        v2::Value { kind: Some(kind), ..v2::Value::default() }
    }

    fn added(input: v2::Value) -> Vec<u8> {
        let add = v2::mutation::AddToCell { input: Some(input), ..Default::default() };
        v2::Mutation { mutation: Some(v2::mutation::Mutation::AddToCell(add)) }.encode_to_vec()
    }

    #[test]
    fn mutations_that_are_supported_have_nothing_that_counts() {
        let input = v2::Value { kind: Some(v2::value::Kind::IntValue(7)), ..v2::Value::default() };
        assert_eq!(count(&added(input), &OF_MUTATION), 0);
        let set = v2::mutation::SetCell {
            value: b"\x2a\x02\x0a\x00".to_vec().into(),
            ..Default::default()
        };
        let set = v2::Mutation { mutation: Some(v2::mutation::Mutation::SetCell(set)) };
        assert_eq!(count(&set.encode_to_vec(), &OF_MUTATION), 0);
    }

    #[test]
    fn lists_and_types_within_a_mutation_count_however_deep() {
        let list = array(vec![v2::Value::default(); 1_000]);
        assert!(count(&added(list.clone()), &OF_MUTATION) >= 1_000);
        assert!(count(&added(array(vec![list; 10])), &OF_MUTATION) >= 10_000);
        let fields = vec![v2::r#type::r#struct::Field::default(); 1_000];
        let kind =
            v2::r#type::Kind::StructType(v2::r#type::Struct { fields, ..Default::default() });
        let typed = v2::Value { r#type: Some(v2::Type { kind: Some(kind) }), ..Default::default() };
        assert!(count(&added(typed), &OF_MUTATION) >= 1_000);
    }

    #[test]
    fn what_is_no_message_or_too_deep_counts_as_far_as_it_goes() {
        let mut list = added(array(vec![v2::Value::default(); 100]));
        list.truncate(list.len() - 50);
        count(&list, &OF_MUTATION);
        let mut deep = Vec::new();
        for _ in 0..10_000 {
            let mut around = Vec::new();
            encoding::bytes::encode(1, &deep, &mut around);
            deep = around;
        }
        assert_eq!(count(&deep, &Shape::All), DEPTH_MAX as usize);
    }
}
