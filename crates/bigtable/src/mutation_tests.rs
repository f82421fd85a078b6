//! Tests of the compiler of mutations: what becomes of good ones, and the code and text for bad ones.

use proptest::prelude::*;
use tepui_engine::schema::Aggregate;
use v2::mutation::{DeleteFromFamily, DeleteFromRow};

use super::*;
use crate::error::Code;
use crate::schema::FamilySchema;

const PLAIN: FamilyId = FamilyId(1);
const SUM: FamilyId = FamilyId(2);

fn schema() -> TableSchema {
    let mut schema = TableSchema::new();
    let id = schema.allocate_family_id();
    schema.families.insert("f".into(), FamilySchema::new(id));
    let id = schema.allocate_family_id();
    let family = FamilySchema {
        aggregate: Some(AggregateType::of_numbers(Aggregate::Sum)),
        ..FamilySchema::new(id)
    };
    schema.families.insert("sum".into(), family);
    schema
}

fn mutation(mutation: ProtoMutation) -> v2::Mutation {
    v2::Mutation { mutation: Some(mutation) }
}

fn set(family: &str, timestamp_micros: i64) -> v2::Mutation {
    mutation(ProtoMutation::SetCell(SetCell {
        family_name: family.into(),
        column_qualifier: Bytes::from_static(b"q"),
        timestamp_micros,
        value: Bytes::from_static(b"v"),
    }))
}

fn delete(family: &str, range: Option<(i64, i64)>) -> v2::Mutation {
    mutation(ProtoMutation::DeleteFromColumn(DeleteFromColumn {
        family_name: family.into(),
        column_qualifier: Bytes::from_static(b"q"),
        time_range: range.map(|(start_timestamp_micros, end_timestamp_micros)| {
            v2::TimestampRange { start_timestamp_micros, end_timestamp_micros }
        }),
    }))
}

fn delete_family(family: &str) -> v2::Mutation {
    mutation(ProtoMutation::DeleteFromFamily(DeleteFromFamily { family_name: family.into() }))
}

fn value(kind: ValueKind) -> Option<v2::Value> {
    Some(v2::Value { r#type: None, kind: Some(kind) })
}

fn raw(bytes: &'static [u8]) -> Option<v2::Value> {
    value(ValueKind::RawValue(Bytes::from_static(bytes)))
}

fn at(timestamp: i64) -> Option<v2::Value> {
    value(ValueKind::RawTimestampMicros(timestamp))
}

fn add(family: &str, input: Option<v2::Value>) -> AddToCell {
    AddToCell {
        family_name: family.into(),
        column_qualifier: raw(b"q"),
        timestamp: at(5_000),
        input,
    }
}

fn merge(family: &str, input: Option<v2::Value>) -> MergeToCell {
    MergeToCell {
        family_name: family.into(),
        column_qualifier: raw(b"q"),
        timestamp: at(5_000),
        input,
    }
}

fn compile_one(mutation: v2::Mutation) -> Result<Vec<Mutation>> {
    compile(&schema(), &Bytes::from_static(b"row"), &[mutation]).map(|b| b.mutations)
}

fn refused(given: v2::Mutation) -> (Code, String) {
    let error = compile_one(given).unwrap_err();
    let text = error.message().strip_prefix("Error in Mutation list : Error in element #0 : ");
    (error.kind(), text.expect("errors say which mutation they are about").to_owned())
}

#[test]
fn set_cell_keeps_given_time_and_leaves_server_time_to_the_write() {
    for (given, stored) in [(0, 0), (7_000, 7_000), (-1, TIMESTAMP_OF_WRITE)] {
        assert_eq!(
            compile_one(set("f", given)),
            Ok(vec![Mutation::Put {
                family: PLAIN,
                qualifier: Bytes::from_static(b"q"),
                timestamp: stored,
                value: Bytes::from_static(b"v"),
            }])
        );
    }
}

#[test]
fn values_share_the_requests_memory() {
    let value = Bytes::from(vec![7; 1 << 16]);
    let given = mutation(ProtoMutation::SetCell(SetCell {
        family_name: "f".into(),
        value: value.clone(),
        ..SetCell::default()
    }));
    match compile_one(given).unwrap().as_slice() {
        [Mutation::Put { value: stored, .. }] => assert_eq!(stored.as_ptr(), value.as_ptr()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn deletes_compile_to_their_ranges() {
    let cells = |start, end| {
        Ok(vec![Mutation::DeleteCells {
            family: PLAIN,
            qualifier: Bytes::from_static(b"q"),
            timestamps: TimestampRange { start, end },
        }])
    };
    assert_eq!(compile_one(delete("f", None)), cells(i64::MIN, TIMESTAMP_MAX));
    assert_eq!(compile_one(delete("f", Some((0, 0)))), cells(0, TIMESTAMP_MAX));
    assert_eq!(compile_one(delete("f", Some((2_000, 0)))), cells(2_000, TIMESTAMP_MAX));
    assert_eq!(compile_one(delete("f", Some((0, 3_000)))), cells(0, 3_000));
    assert_eq!(compile_one(delete("f", Some((2_000, 3_000)))), cells(2_000, 3_000));
    assert_eq!(compile_one(delete_family("sum")), Ok(vec![Mutation::DeleteFamily { family: SUM }]));
    assert_eq!(
        compile_one(mutation(ProtoMutation::DeleteFromRow(DeleteFromRow {}))),
        Ok(vec![Mutation::DeleteRow])
    );
}

#[test]
fn aggregate_inputs_become_big_endian_operands() {
    let operand = |n: i64| {
        Ok(vec![Mutation::Merge {
            family: SUM,
            qualifier: Bytes::from_static(b"q"),
            timestamp: 5_000,
            operand: Bytes::copy_from_slice(&n.to_be_bytes()),
        }])
    };
    let add = |input| compile_one(mutation(ProtoMutation::AddToCell(add("sum", input))));
    let merge = |input| compile_one(mutation(ProtoMutation::MergeToCell(merge("sum", input))));
    assert_eq!(add(value(ValueKind::IntValue(-3))), operand(-3));
    assert_eq!(merge(raw(b"\0\0\0\0\0\0\x01\0")), operand(256));
    assert_eq!(merge(value(ValueKind::IntValue(9))), operand(9));
    assert_eq!(merge(None), Ok(vec![]), "merging NULL has no effect");
    assert_eq!(merge(Some(v2::Value { r#type: None, kind: None })), Ok(vec![]));
}

#[test]
fn bad_mutations_are_refused_with_code_and_text() {
    let long = |len| Bytes::from(vec![b'x'; len]);
    let set_with = |qualifier, value| {
        mutation(ProtoMutation::SetCell(SetCell {
            family_name: "f".into(),
            column_qualifier: qualifier,
            timestamp_micros: 0,
            value,
        }))
    };
    let int = || value(ValueKind::IntValue(1));
    let add_cell = |add| mutation(ProtoMutation::AddToCell(add));
    let merge_cell = |merge| mutation(ProtoMutation::MergeToCell(merge));
    let good = || add("sum", int());
    use Code::{InvalidArgument, NotFound};
    let cases = [
        (v2::Mutation { mutation: None }, InvalidArgument, "No mutation type set"),
        (set("nope", 0), NotFound, "Requested column family not found: unknown family \"nope\""),
        (set("", 0), InvalidArgument, "Column family names must be non-empty"),
        (
            set("f", 1_234),
            InvalidArgument,
            "Timestamp granularity mismatch. Expected a multiple of 1000 (millisecond granularity), \
             but got 1234.",
        ),
        (set("f", -2), InvalidArgument, "Invalid timestamp: must not be negative, but got -2"),
        (set("f", i64::MIN), InvalidArgument, "Invalid timestamp"),
        (set("f", i64::MAX), InvalidArgument, "Timestamp granularity mismatch"),
        (set("sum", 0), InvalidArgument, "SetCell is not allowed on aggregate"),
        (set_with(long(16_385), long(0)), InvalidArgument, "Column qualifier is too large"),
        (set_with(long(0), long(104_857_601)), InvalidArgument, "Cell value is too large"),
        (delete("nope", None), NotFound, "Requested column family not found"),
        (delete("f", Some((3_000, 2_000))), InvalidArgument, "Error in field 'time_range' : "),
        (delete("f", Some((3_000, 3_000))), InvalidArgument, "Error in field 'time_range' : "),
        (delete("f", Some((-1_000, 0))), InvalidArgument, "Invalid timestamp"),
        (delete("f", Some((0, -1_000))), InvalidArgument, "Invalid timestamp"),
        (delete("f", Some((1, 0))), InvalidArgument, "Timestamp granularity mismatch"),
        (delete("f", Some((0, 1_001))), InvalidArgument, "Timestamp granularity mismatch"),
        (delete_family("nope"), NotFound, "Requested column family not found"),
        (
            add_cell(add("f", int())),
            InvalidArgument,
            "AddToCell is not allowed on column family \"f\"",
        ),
        (add_cell(add("nope", int())), NotFound, "Requested column family not found"),
        (add_cell(add("sum", None)), InvalidArgument, "Error in field 'input' : "),
        (add_cell(add("sum", raw(b"12345678"))), InvalidArgument, "Error in field 'input' : "),
        (
            add_cell(AddToCell { column_qualifier: None, ..good() }),
            InvalidArgument,
            "Error in field 'column_qualifier' : ",
        ),
        (
            add_cell(AddToCell { column_qualifier: at(1_000), ..good() }),
            InvalidArgument,
            "Error in field 'column_qualifier' : ",
        ),
        (
            add_cell(AddToCell { timestamp: None, ..good() }),
            InvalidArgument,
            "Error in field 'timestamp' : ",
        ),
        (add_cell(AddToCell { timestamp: at(-1), ..good() }), InvalidArgument, "Invalid timestamp"),
        (merge_cell(merge("f", raw(b"12345678"))), InvalidArgument, "MergeToCell is not allowed"),
        (
            merge_cell(merge("sum", raw(b"1234567"))),
            InvalidArgument,
            "Error in field 'input' : the state of an int64 aggregate is 8 bytes, but got 7",
        ),
        (
            merge_cell(merge("sum", value(ValueKind::BoolValue(true)))),
            InvalidArgument,
            "Error in field 'input' : must be a raw_value",
        ),
    ];
    for (given, code, text) in cases {
        let (got, message) = refused(given.clone());
        assert!(message.starts_with(text), "{message:?} for {given:?}");
        assert_eq!(got, code, "{message}");
    }
}

#[test]
fn a_bad_mutation_is_named_by_its_place() {
    let list = [set("f", 0), set("f", 0), set("f", 5)];
    let error = compile(&schema(), &Bytes::from_static(b"r"), &list).unwrap_err();
    assert!(error.message().contains("Error in element #2 : Timestamp granularity"), "{error}");
}

#[test]
fn rows_and_counts_are_limited() {
    let compile = |row: Vec<u8>, count| {
        compile(&schema(), &Bytes::from(row), &vec![set("f", 0); count])
            .map(|b| b.mutations.len())
            .map_err(|e| (e.kind(), e.message().to_owned()))
    };
    let invalid = |text: &str| Err((Code::InvalidArgument, text.to_owned()));
    assert_eq!(compile(vec![1; 4_096], 1), Ok(1));
    assert_eq!(
        compile(vec![1; 4_097], 1),
        invalid("Row key is too large: 4097 bytes provided; limit 4096 bytes (4 KiB)")
    );
    assert_eq!(compile(vec![], 1), invalid("Row keys must be non-empty"));
    assert_eq!(compile(vec![1], 0), invalid("No mutations provided"));
    assert_eq!(compile(vec![1], 100_000), Ok(100_000));
    assert_eq!(
        compile(vec![1], 100_001),
        invalid("Too many mutations: 100001 provided; limit 100000")
    );
}

#[test]
fn a_batch_is_limited_to_what_one_request_may_hold() {
    // Three values that share memory: no more than the limit of one value is really there.
    let value = Bytes::from(vec![0; limits::VALUE_BYTES_MAX]);
    let big = mutation(ProtoMutation::SetCell(SetCell {
        family_name: "f".into(),
        value,
        ..SetCell::default()
    }));
    let row = Bytes::from_static(b"r");
    compile(&schema(), &row, &vec![big.clone(); 2]).unwrap();
    let error = compile(&schema(), &row, &vec![big; 3]).unwrap_err();
    assert!(error.message().contains("limit 268435456 bytes"), "{error}");
}

proptest! {
    #[test]
    fn every_timestamp_is_stored_as_given_or_refused(timestamp in any::<i64>()) {
        match compile_one(set("f", timestamp)) {
            Ok(list) => {
                prop_assert!(timestamp == -1 || (timestamp >= 0 && timestamp % 1_000 == 0));
                let stored = match list.as_slice() {
                    [Mutation::Put { timestamp, .. }] => *timestamp,
                    other => panic!("{other:?}"),
                };
                prop_assert!(stored == timestamp || timestamp == -1);
                prop_assert!(stored % 1_000 == 0 && stored < TIMESTAMP_MAX);
            }
            Err(_) => prop_assert!(timestamp < -1 || timestamp % 1_000 != 0),
        }
    }

    #[test]
    fn truncation_goes_down_to_whole_milliseconds(micros in -10_000_i64..i64::MAX) {
        let cut = truncate_to_granularity(micros);
        prop_assert!(cut <= micros && micros - cut < 1_000 && cut.rem_euclid(1_000) == 0);
    }
}
