//! Which value types are accepted, and what aggregates make of inputs and states.

use super::*;
use crate::error::Code;

fn typed(kind: Kind) -> admin::Type {
    admin::Type { kind: Some(kind) }
}

fn boxed(kind: Kind) -> Option<Box<admin::Type>> {
    Some(Box::new(typed(kind)))
}

fn aggregate(input: Option<Kind>, aggregator: Option<Aggregator>) -> admin::Type {
    let input_type = input.and_then(boxed);
    let aggregate = admin::r#type::Aggregate { input_type, state_type: None, aggregator };
    typed(Kind::AggregateType(Box::new(aggregate)))
}

fn sum() -> Option<Aggregator> {
    Some(Aggregator::Sum(aggregate::Sum {}))
}

fn hll() -> Option<Aggregator> {
    Some(Aggregator::HllppUniqueCount(aggregate::HyperLogLogPlusPlusUniqueCount {}))
}

fn int64(encoding: Option<int64::encoding::Encoding>) -> Kind {
    let encoding = encoding.map(|e| int64::Encoding { encoding: Some(e) });
    Kind::Int64Type(admin::r#type::Int64 { encoding })
}

fn string() -> Kind {
    Kind::StringType(admin::r#type::String { encoding: None })
}

fn structure(fields: usize, encoding: Option<r#struct::encoding::Encoding>) -> Kind {
    let field = r#struct::Field { field_name: "f".into(), r#type: Some(typed(string())) };
    let encoding = encoding.map(|e| r#struct::Encoding { encoding: Some(e) });
    Kind::StructType(admin::r#type::Struct { fields: vec![field; fields], encoding })
}

fn delimited(delimiter: &'static [u8]) -> Option<r#struct::encoding::Encoding> {
    Some(r#struct::encoding::Encoding::DelimitedBytes(r#struct::encoding::DelimitedBytes {
        delimiter: Bytes::from_static(delimiter),
    }))
}

#[test]
fn aggregates_are_recognized_and_shown_with_encodings_and_state() {
    for (aggregator, how) in [
        (sum(), Aggregate::Sum),
        (Some(Aggregator::Min(aggregate::Min {})), Aggregate::Min),
        (Some(Aggregator::Max(aggregate::Max {})), Aggregate::Max),
    ] {
        let found = check(Some(&aggregate(Some(int64(None)), aggregator))).unwrap().unwrap();
        assert_eq!(found, AggregateType::of_numbers(how));
        let shown = found.to_proto(Some(&typed(int64(None))));
        assert_eq!(check(Some(&shown)).unwrap(), Some(found));
        let Some(Kind::AggregateType(shown)) = shown.kind else { panic!("not an aggregate") };
        assert_eq!(shown.state_type, shown.input_type);
    }
    for (input, want) in [
        (Some(int64(None)), Input::Int64),
        (Some(string()), Input::String),
        (Some(bytes_type()), Input::Bytes),
        (None, Input::Raw),
    ] {
        let given = aggregate(input, hll());
        let found = check(Some(&given)).unwrap().unwrap();
        assert_eq!(found, AggregateType::unique_count(want));
        let shown = found.to_proto(input_of(Some(&given)));
        assert_eq!(check(Some(&shown)).unwrap(), Some(found));
        let Some(Kind::AggregateType(shown)) = shown.kind else { panic!("not an aggregate") };
        assert_eq!(shown.state_type, boxed(bytes_type()));
    }
}

#[test]
fn the_input_of_an_aggregate_is_shown_in_the_encoding_that_was_set() {
    let ordered = || int64(Some(int64::encoding::Encoding::OrderedCodeBytes(Default::default())));
    let utf8 = || Kind::StringType(admin::r#type::String { encoding: Some(super::utf8_bytes()) });
    for (set, shown) in
        [(ordered(), ordered()), (int64(None), int64_type()), (utf8(), utf8()), (string(), utf8())]
    {
        let mut given = aggregate(Some(set), hll());
        modernize(&mut given);
        let found = check(Some(&given)).unwrap().unwrap();
        let full = found.to_proto(input_of(Some(&given)));
        assert_eq!(input_of(Some(&full)), Some(&typed(shown)));
    }
}

#[test]
fn other_types_describe_values_and_change_nothing() {
    let ordered = int64::encoding::Encoding::OrderedCodeBytes(Default::default());
    let big_endian = int64::encoding::Encoding::BigEndianBytes(Default::default());
    let micros = timestamp::encoding::Encoding::UnixMicrosInt64(int64::Encoding {
        encoding: Some(big_endian),
    });
    for kind in [
        string(),
        bytes_type(),
        int64(None),
        int64(Some(ordered)),
        Kind::BoolType(admin::r#type::Bool {}),
        Kind::Float32Type(admin::r#type::Float32 {}),
        Kind::Float64Type(admin::r#type::Float64 {}),
        Kind::DateType(admin::r#type::Date {}),
        Kind::TimestampType(admin::r#type::Timestamp { encoding: None }),
        Kind::TimestampType(admin::r#type::Timestamp {
            encoding: Some(timestamp::Encoding { encoding: Some(micros) }),
        }),
        Kind::ArrayType(Box::new(admin::r#type::Array { element_type: boxed(string()) })),
        Kind::MapType(Box::new(admin::r#type::Map {
            key_type: boxed(string()),
            value_type: boxed(int64(None)),
        })),
        structure(2, None),
        structure(2, delimited(b"#")),
        structure(1, Some(r#struct::encoding::Encoding::Singleton(Default::default()))),
        structure(0, Some(r#struct::encoding::Encoding::OrderedCodeBytes(Default::default()))),
        Kind::ProtoType(admin::r#type::Proto {
            schema_bundle_id: "b".into(),
            message_name: "m".into(),
        }),
    ] {
        assert_eq!(check(Some(&typed(kind.clone()))).unwrap(), None, "{kind:?}");
    }
    assert_eq!(check(None).unwrap(), None);
    assert_eq!(check(Some(&admin::Type { kind: None })).unwrap(), None);
}

#[test]
fn types_that_nobody_could_follow_are_refused_by_name() {
    let ordered = || int64(Some(int64::encoding::Encoding::OrderedCodeBytes(Default::default())));
    let array = |element_type| Kind::ArrayType(Box::new(admin::r#type::Array { element_type }));
    let map = |key, value| {
        Kind::MapType(Box::new(admin::r#type::Map { key_type: key, value_type: value }))
    };
    let Some(Kind::AggregateType(whole)) = aggregate(Some(int64(None)), sum()).kind else {
        panic!("an aggregate")
    };
    let deep = (0..TYPE_DEPTH_MAX).fold(string(), |kind, _| map(boxed(string()), boxed(kind)));
    let proto = |schema_bundle_id: &str, message_name: &str| {
        Kind::ProtoType(admin::r#type::Proto {
            schema_bundle_id: schema_bundle_id.to_owned(),
            message_name: message_name.to_owned(),
        })
    };
    let singleton = Some(r#struct::encoding::Encoding::Singleton(Default::default()));
    let unset = Some(int64::Encoding { encoding: None });
    for (bad, part) in [
        (aggregate(None, sum()), "input_type must be set"),
        (aggregate(Some(int64(None)), None), "aggregator must be set"),
        (aggregate(Some(ordered()), sum()), "BigEndianBytes"),
        (aggregate(Some(string()), sum()), "Int64 alone"),
        (aggregate(Some(structure(1, None)), hll()), "Int64, String or Bytes"),
        (typed(array(None)), "value_type.array_type.element_type"),
        (typed(array(boxed(array(boxed(string()))))), "must not be arrays themselves"),
        (
            typed(array(boxed(map(boxed(string()), boxed(array(None)))))),
            "array_type.element_type.map_type.value_type.array_type.element_type",
        ),
        (typed(array(boxed(Kind::AggregateType(whole)))), "within another type"),
        (typed(map(boxed(string()), None)), "map_type.value_type"),
        (typed(map(boxed(array(boxed(string()))), boxed(string()))), "keys of a map"),
        (typed(structure(2, singleton)), "not 2"),
        (typed(structure(2, delimited(b""))), "has 0"),
        (typed(structure(2, delimited(&[1; 51]))), "has 51"),
        (typed(proto("", "m")), "schema_bundle_id"),
        (typed(proto("b", "")), "message_name"),
        (typed(Kind::Int64Type(admin::r#type::Int64 { encoding: unset })), "must choose one"),
        (typed(deep), "20 levels"),
    ] {
        let error = check(Some(&bad)).unwrap_err();
        assert_eq!(error.kind(), Code::InvalidArgument);
        assert!(error.message().contains(part), "{error} has no {part:?}");
    }
}

#[test]
fn inputs_are_of_the_familys_type_and_states_of_the_aggregates() {
    let inputs = [
        Value::IntValue(5),
        Value::StringValue("5".into()),
        Value::BytesValue(Bytes::from_static(b"5")),
        Value::RawValue(Bytes::from_static(b"5")),
        Value::BoolValue(true),
    ];
    for (i, input) in [Input::Int64, Input::String, Input::Bytes, Input::Raw].iter().enumerate() {
        let family = AggregateType::unique_count(*input);
        for (j, value) in inputs.iter().enumerate() {
            let operand = family.operand(Some(value));
            assert_eq!(operand.is_ok(), i == j, "{input:?} {value:?}");
            let Ok(operand) = operand else { continue };
            // What one family adds is a state that it merges.
            let merged = family.merged(Some(&Value::RawValue(operand.clone()))).unwrap();
            assert_eq!(merged, Some(operand.clone()));
            let as_bytes = family.merged(Some(&Value::BytesValue(operand.clone()))).unwrap();
            assert_eq!(as_bytes, Some(operand));
        }
        assert!(family.operand(None).is_err());
        assert_eq!(family.merged(None).unwrap(), None);
        let error = family.merged(Some(&Value::RawValue(Bytes::from_static(b"x")))).unwrap_err();
        assert!(error.message().contains("a ZetaSketch, but it is no sketch"), "{error}");
        assert!(family.merged(Some(&Value::IntValue(1))).is_err());
    }
    // A value is the same whether it is said to be text, bytes or nothing at all.
    let of = |input: Input, value: &Value| AggregateType::unique_count(input).operand(Some(value));
    let text = of(Input::String, &inputs[1]).unwrap();
    assert_eq!(of(Input::Bytes, &inputs[2]).unwrap(), text);
    assert_eq!(of(Input::Raw, &inputs[3]).unwrap(), text);

    let sum = AggregateType::of_numbers(Aggregate::Sum);
    let five = Bytes::copy_from_slice(&5_i64.to_be_bytes());
    assert_eq!(sum.operand(Some(&inputs[0])).unwrap(), five);
    assert_eq!(sum.merged(Some(&inputs[0])).unwrap(), Some(five.clone()));
    assert_eq!(sum.merged(Some(&Value::RawValue(five.clone()))).unwrap(), Some(five));
    for bad in &inputs[1..] {
        assert!(sum.operand(Some(bad)).is_err());
        assert_eq!(sum.merged(Some(bad)).unwrap_err().kind(), Code::InvalidArgument);
    }
}
