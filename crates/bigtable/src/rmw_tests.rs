//! Tests of read-modify-write rules, as functions from a row to new cells.

use std::ops::Bound;

use proptest::prelude::*;
use tepui_engine::read::FamilyProjection;
use tepui_engine::schema::Aggregate;

use super::*;
use crate::error::Code;
use crate::schema::FamilySchema;
use crate::value_type::AggregateType;

const NOW: Timestamp = 1_700_000_000_123_456;
const NOW_MS: Timestamp = 1_700_000_000_123_000;
const F: FamilyId = FamilyId(1);
const G: FamilyId = FamilyId(2);

fn schema() -> TableSchema {
    let mut schema = TableSchema::new();
    for name in ["f", "g", "sum"] {
        let id = schema.allocate_family_id();
        let aggregate = (name == "sum").then_some(AggregateType::of_numbers(Aggregate::Sum));
        let family = FamilySchema { aggregate, ..FamilySchema::new(id) };
        schema.families.insert(name.into(), family);
    }
    schema
}

fn rule(family: &str, qualifier: &str, rule: ProtoRule) -> v2::ReadModifyWriteRule {
    v2::ReadModifyWriteRule {
        family_name: family.into(),
        column_qualifier: Bytes::from(qualifier.to_owned()),
        rule: Some(rule),
    }
}

fn append(family: &str, qualifier: &str, suffix: &str) -> v2::ReadModifyWriteRule {
    rule(family, qualifier, ProtoRule::AppendValue(Bytes::from(suffix.to_owned())))
}

fn increment(family: &str, qualifier: &str, amount: i64) -> v2::ReadModifyWriteRule {
    rule(family, qualifier, ProtoRule::IncrementAmount(amount))
}

fn cell(family: FamilyId, qualifier: &str, timestamp: i64, value: impl Into<Bytes>) -> Cell {
    Cell { family, qualifier: qualifier.to_owned().into(), timestamp, value: value.into() }
}

fn number(n: i64) -> Bytes {
    Bytes::copy_from_slice(&n.to_be_bytes())
}

fn row(cells: &[Cell]) -> Row {
    Row { key: "row".into(), cells: cells.to_vec() }
}

fn apply(rules: &[v2::ReadModifyWriteRule], row: Option<&Row>) -> Result<Vec<Cell>> {
    Rules::compile(&schema(), rules)?.apply(row, NOW)
}

#[test]
fn missing_cells_count_as_empty_and_zero() {
    assert_eq!(
        apply(&[append("g", "s", "abc"), increment("f", "n", -7)], None),
        Ok(vec![cell(F, "n", NOW_MS, number(-7)), cell(G, "s", NOW_MS, "abc")])
    );
}

#[test]
fn rules_see_what_the_rules_before_them_made_of_their_column() {
    let before = row(&[cell(F, "n", 1_000, number(40)), cell(F, "s", 1_000, "x")]);
    let rules = [
        increment("f", "n", 1),
        append("f", "s", "y"),
        increment("f", "n", 1),
        append("f", "s", "z"),
        append("f", "s", ""),
    ];
    assert_eq!(
        apply(&rules, Some(&before)),
        Ok(vec![cell(F, "n", NOW_MS, number(42)), cell(F, "s", NOW_MS, "xyz")])
    );
}

#[test]
fn other_cells_of_the_row_are_not_touched() {
    let before =
        row(&[cell(F, "a", 1_000, "a"), cell(F, "c", 1_000, "c"), cell(G, "b", 1_000, "b")]);
    assert_eq!(apply(&[append("f", "b", "x")], Some(&before)), Ok(vec![cell(F, "b", NOW_MS, "x")]));
}

#[test]
fn the_new_cell_is_never_older_than_the_old_one() {
    let future = NOW_MS + 5_000_000;
    let before = row(&[cell(F, "n", future, number(1))]);
    assert_eq!(
        apply(&[increment("f", "n", 1)], Some(&before)),
        Ok(vec![cell(F, "n", future, number(2))])
    );
}

#[test]
fn increments_wrap() {
    let before = row(&[cell(F, "n", 0, number(i64::MAX))]);
    assert_eq!(
        apply(&[increment("f", "n", 1)], Some(&before)),
        Ok(vec![cell(F, "n", NOW_MS, number(i64::MIN))])
    );
}

#[test]
fn eight_appended_bytes_are_a_number() {
    let rules = [append("f", "n", "\0\0\0\0\0\0\u{1}\0"), increment("f", "n", 1)];
    assert_eq!(apply(&rules, None), Ok(vec![cell(F, "n", NOW_MS, number(257))]));
}

#[test]
fn incrementing_anything_but_eight_bytes_fails_the_whole_request() {
    for value in ["", "1234567", "123456789"] {
        let before = row(&[cell(F, "n", 0, value)]);
        let error =
            apply(&[append("f", "s", "x"), increment("f", "n", 1)], Some(&before)).unwrap_err();
        assert_eq!(error.kind(), Code::FailedPrecondition);
        assert!(error.message().contains("element #1 : Cannot increment"), "{error}");
    }
}

#[test]
fn bad_rules_are_refused_with_code_and_text() {
    let cases = [
        (vec![], Code::InvalidArgument, "No rules provided"),
        (
            vec![append("nope", "q", "")],
            Code::NotFound,
            "element #0 : Requested column family not found",
        ),
        (vec![append("sum", "q", "")], Code::InvalidArgument, "not allowed on aggregate"),
        (
            vec![append("f", &"q".repeat(16_385), "")],
            Code::InvalidArgument,
            "Column qualifier is too",
        ),
        (
            vec![v2::ReadModifyWriteRule { rule: None, ..append("f", "q", "") }],
            Code::InvalidArgument,
            "No rule type set",
        ),
        (vec![increment("f", "n", 1); 100_001], Code::InvalidArgument, "limit 100000"),
    ];
    for (rules, code, text) in cases {
        let error = apply(&rules, None).unwrap_err();
        assert_eq!(error.kind(), code);
        assert!(error.message().contains(text), "{error}");
    }
}

#[test]
fn a_value_may_not_grow_over_its_limit() {
    let before = row(&[cell(F, "s", 0, vec![0; limits::VALUE_BYTES_MAX - 1])]);
    assert!(apply(&[append("f", "s", "x")], Some(&before)).is_ok());
    let error = apply(&[append("f", "s", "xy")], Some(&before)).unwrap_err();
    assert_eq!(error.kind(), Code::InvalidArgument);
    assert!(error.message().contains("Cell value is too large"), "{error}");
}

#[test]
fn only_the_newest_cells_of_the_named_columns_are_read() {
    let rules =
        [append("g", "b", ""), append("f", "z", ""), append("f", "a", ""), append("g", "b", "")];
    let projection = Rules::compile(&schema(), &rules).unwrap().projection();
    let exactly = |q: &'static str| (Bound::Included(q.into()), Bound::Included(q.into()));
    assert_eq!(
        projection.families,
        Some(vec![
            FamilyProjection { family: F, qualifiers: vec![exactly("a"), exactly("z")].into() },
            FamilyProjection { family: G, qualifiers: vec![exactly("b")].into() },
        ])
    );
    assert_eq!(projection.versions_max, 1);
}

#[test]
fn the_response_groups_cells_by_family_and_column() {
    let cells = vec![cell(F, "a", 1_000, "1"), cell(F, "b", 1_000, "2"), cell(G, "a", 1_000, "3")];
    let shown = response(&"row".into(), cells, &schema().names());
    assert_eq!(shown.key, "row");
    let flat: Vec<_> = shown
        .families
        .iter()
        .flat_map(|f| {
            f.columns.iter().map(|c| (f.name.as_str(), &c.qualifier[..], &c.cells[0].value[..]))
        })
        .collect();
    assert_eq!(
        flat,
        [("f", &b"a"[..], &b"1"[..]), ("f", &b"b"[..], &b"2"[..]), ("g", &b"a"[..], &b"3"[..])]
    );
    assert_eq!(shown.families.len(), 2);
}

proptest! {
    /// Applying rules one request at a time, each seeing the row that the last one left, ends in the
    /// same cells as applying them in one request.
    #[test]
    fn one_request_equals_a_request_per_rule(
        rules in prop::collection::vec((0..2_usize, 0..3_usize, any::<i64>(), any::<bool>()), 1..12),
    ) {
        let rules: Vec<_> = rules
            .into_iter()
            .map(|(family, qualifier, amount, appends)| {
                let (family, qualifier) = (["f", "g"][family], ["n", "o", "s"][qualifier]);
                if appends && qualifier == "s" {
                    append(family, qualifier, &amount.to_string())
                } else if qualifier == "s" {
                    append(family, qualifier, "")
                } else {
                    increment(family, qualifier, amount)
                }
            })
            .collect();
        let mut left: BTreeMap<(FamilyId, Bytes), Cell> = BTreeMap::new();
        for rule in &rules {
            let row = row(&left.values().cloned().collect::<Vec<_>>());
            for cell in apply(std::slice::from_ref(rule), Some(&row)).unwrap() {
                left.insert((cell.family, cell.qualifier.clone()), cell);
            }
        }
        let at_once = apply(&rules, None).unwrap();
        prop_assert_eq!(at_once, left.into_values().collect::<Vec<_>>());
    }
}
