//! A filter evaluator written from the documentation alone, with none of the evaluator's shortcuts, and
//! random filters and rows on which the two must agree.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

/// Patterns, and what they match.
pub(super) type Pattern = (&'static str, fn(&[u8]) -> bool);

pub(super) const PATTERNS: &[Pattern] = &[
    ("a", |t| t == b"a"),
    ("", |t| t.is_empty()),
    ("a|b|fam", |t| t == b"a" || t == b"b" || t == b"fam"),
    (r"a\C*", |t| t.starts_with(b"a")),
    ("a.*", |t| t.starts_with(b"a") && !t[1..].contains(&b'\n')),
    (".*b", |t| t.ends_with(b"b") && !t.contains(&b'\n')),
    (r"\C*", |_| true),
    (".", |t| t.len() == 1 && t != b"\n"),
    (r"\C+\n|\xFF", |t| (t.len() > 1 && t.ends_with(b"\n")) || t == b"\xFF"),
    ("f|g", |t| t == b"f" || t == b"g"),
    ("(?i)A|(?i)AB", |t| [&b"a"[..], b"A", b"ab", b"AB", b"Ab", b"aB"].contains(&t)),
    (r"[^\x00-\xFF]", |_| false),
];

fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let known = PATTERNS.iter().find(|(source, _)| source.as_bytes() == pattern);
    (known.expect("a pattern of the list").1)(text)
}

/// The flow out of `filter`; what sinks take goes to `out`.
pub(super) fn model(
    filter: &RowFilter,
    key: &[u8],
    input: Vec<FilteredCell>,
    draw: f64,
    out: &mut Vec<FilteredCell>,
) -> Vec<FilteredCell> {
    let keep = |test: &dyn Fn(&FilteredCell) -> bool| {
        input.iter().filter(|cell| test(cell)).cloned().collect::<Vec<_>>()
    };
    let name = |cell: &FilteredCell| {
        FAMILIES.iter().find(|(id, _)| *id == cell.cell.family).unwrap().1.to_owned()
    };
    let whole = |kept: bool| if kept { input.clone() } else { Vec::new() };
    let Some(kind) = &filter.kind else { return input };
    match kind {
        Kind::Chain(list) => {
            let mut flow = input;
            for filter in &list.filters {
                flow = model(filter, key, flow, draw, out);
            }
            flow
        }
        Kind::Interleave(list) => {
            let mut pool = Vec::new();
            for filter in &list.filters {
                pool.extend(model(filter, key, input.clone(), draw, out));
            }
            sorted(pool)
        }
        Kind::Condition(parts) => {
            let predicate = parts.predicate_filter.as_ref().unwrap();
            let found = model(predicate, key, input.clone(), draw, out);
            let branch = if found.is_empty() { &parts.false_filter } else { &parts.true_filter };
            match branch {
                Some(branch) => model(branch, key, input, draw, out),
                None => Vec::new(),
            }
        }
        Kind::Sink(_) => {
            out.extend(input);
            Vec::new()
        }
        Kind::PassAllFilter(_) => input,
        Kind::BlockAllFilter(_) => Vec::new(),
        Kind::RowKeyRegexFilter(pattern) => whole(matches(pattern, key)),
        Kind::RowSampleFilter(probability) => whole(draw < *probability),
        Kind::FamilyNameRegexFilter(pattern) => {
            keep(&|cell| matches(pattern.as_bytes(), name(cell).as_bytes()))
        }
        Kind::ColumnQualifierRegexFilter(pattern) => {
            keep(&|cell| matches(pattern, &cell.cell.qualifier))
        }
        Kind::ValueRegexFilter(pattern) => keep(&|cell| matches(pattern, &cell.cell.value)),
        Kind::ColumnRangeFilter(range) => {
            use v2::column_range::{EndQualifier, StartQualifier};
            keep(&|cell| {
                name(cell) == range.family_name
                    && match &range.start_qualifier {
                        Some(StartQualifier::StartQualifierClosed(s)) => cell.cell.qualifier >= *s,
                        Some(StartQualifier::StartQualifierOpen(s)) => cell.cell.qualifier > *s,
                        None => true,
                    }
                    && match &range.end_qualifier {
                        Some(EndQualifier::EndQualifierClosed(e)) => cell.cell.qualifier <= *e,
                        Some(EndQualifier::EndQualifierOpen(e)) => cell.cell.qualifier < *e,
                        None => true,
                    }
            })
        }
        Kind::ValueRangeFilter(range) => {
            use v2::value_range::{EndValue, StartValue};
            keep(&|cell| {
                (match &range.start_value {
                    Some(StartValue::StartValueClosed(s)) => cell.cell.value >= *s,
                    Some(StartValue::StartValueOpen(s)) => cell.cell.value > *s,
                    None => true,
                }) && match &range.end_value {
                    Some(EndValue::EndValueClosed(e)) => cell.cell.value <= *e,
                    Some(EndValue::EndValueOpen(e)) => cell.cell.value < *e,
                    None => true,
                }
            })
        }
        Kind::TimestampRangeFilter(range) => keep(&|cell| {
            cell.cell.timestamp >= range.start_timestamp_micros
                && (range.end_timestamp_micros == 0
                    || cell.cell.timestamp < range.end_timestamp_micros)
        }),
        Kind::ValueBitmaskFilter(bitmask) => keep(&|cell| {
            cell.cell.value.len() == bitmask.mask.len()
                && (0..cell.cell.value.len())
                    .all(|i| cell.cell.value[i] | bitmask.mask[i] == cell.cell.value[i])
        }),
        Kind::CellsPerRowOffsetFilter(count) => input.into_iter().skip(*count as usize).collect(),
        Kind::CellsPerRowLimitFilter(count) => input.into_iter().take(*count as usize).collect(),
        Kind::CellsPerColumnLimitFilter(count) => {
            let mut seen: HashMap<(FamilyId, Bytes), i32> = HashMap::new();
            let mut kept = Vec::new();
            for cell in input {
                let seen = seen.entry((cell.cell.family, cell.cell.qualifier.clone())).or_default();
                *seen += 1;
                if *seen <= *count {
                    kept.push(cell);
                }
            }
            kept
        }
        Kind::StripValueTransformer(_) => {
            let strip = |mut cell: FilteredCell| {
                cell.cell.value = Bytes::new();
                cell
            };
            input.into_iter().map(strip).collect()
        }
        Kind::ApplyLabelTransformer(label) => input
            .into_iter()
            .map(|cell| FilteredCell { labels: vec![label.clone()], ..cell })
            .collect(),
    }
}

fn sorted(mut cells: Vec<FilteredCell>) -> Vec<FilteredCell> {
    cells.sort_by_key(|c| {
        (c.cell.family, c.cell.qualifier.clone(), std::cmp::Reverse(c.cell.timestamp))
    });
    cells
}

/// The whole output of a filter for a row, by the model.
pub(super) fn model_output(filter: &RowFilter, row: &Row, draw: f64) -> Vec<FilteredCell> {
    let input = row.cells.iter().cloned().map(FilteredCell::from).collect();
    let mut out = Vec::new();
    let mut flow = model(filter, &row.key, input, draw, &mut out);
    flow.extend(out);
    sorted(flow)
}

const QUALIFIERS: &[&[u8]] = &[b"", b"a", b"a\n", b"ab", b"b", b"c\n", b"\xFF"];
const VALUES: &[&[u8]] = &[b"", b"a", b"ab", b"\x01", b"\x03", b"x\n"];
const MASKS: &[&[u8]] = &[b"\x01", b"\x02", b"aa"];
const KEYS: &[&[u8]] = &[b"a", b"ab", b"fam", b"k\n", b"\xFF"];

pub(super) fn rows() -> impl Strategy<Value = Row> {
    // Rows of many columns, and rows of few columns with many versions.
    prop_oneof![rows_of(&FAMILIES, QUALIFIERS), rows_of(&FAMILIES[..2], &QUALIFIERS[1..3])]
}

fn rows_of(
    families: &'static [(FamilyId, &'static str)],
    qualifiers: &'static [&'static [u8]],
) -> impl Strategy<Value = Row> {
    let family = prop::sample::select(families).prop_map(|(id, _)| id);
    let qualifier = prop::sample::select(qualifiers);
    let cell = ((family, qualifier, 1..6i64), prop::sample::select(VALUES));
    let cells = prop::collection::vec(cell, 1..16);
    (prop::sample::select(KEYS), cells).prop_map(|(key, cells)| {
        let mut cells: Vec<Cell> = cells
            .into_iter()
            .map(|((family, qualifier, timestamp), value)| Cell {
                family,
                qualifier: Bytes::from_static(qualifier),
                timestamp: timestamp * 1000,
                value: Bytes::from_static(value),
            })
            .collect();
        let place = |c: &Cell| (c.family, c.qualifier.clone(), std::cmp::Reverse(c.timestamp));
        cells.sort_by_key(place);
        cells.dedup_by_key(|c| place(c));
        Row { key: Bytes::from_static(key), cells }
    })
}

fn bounds() -> impl Strategy<Value = (String, String)> {
    let side = prop::option::of((any::<bool>(), prop::sample::select(&["", "a", "ab", "b"][..])));
    (side.clone(), side).prop_map(|(start, end)| {
        let start = start.map(|(closed, at)| format!("{}{at}", if closed { "[" } else { "(" }));
        let end = end.map(|(closed, at)| format!("{at}{}", if closed { "]" } else { ")" }));
        (start.unwrap_or_default(), end.unwrap_or_default())
    })
}

fn leaves(sinks: bool) -> impl Strategy<Value = RowFilter> {
    let pattern = prop::sample::select(PATTERNS).prop_map(|(source, _)| source);
    let keyed = pattern.clone().prop_filter("refused", |source| !source.is_empty());
    let names = prop::sample::select(&["f", "g", "fam", "none"][..]);
    prop_oneof![
        3 => pattern.clone().prop_map(family),
        3 => pattern.clone().prop_map(qualifier),
        3 => (names, bounds()).prop_map(|(name, (start, end))| columns(name, &start, &end)),
        3 => (0..6i64, 0..6i64).prop_map(|(start, end)| times(start * 1000, end * 1000)),
        3 => (1..4i32).prop_map(column_limit),
        2 => (1..6i32).prop_map(row_limit),
        2 => (0..5i32).prop_map(row_offset),
        1 => pattern.prop_map(value),
        1 => bounds().prop_map(|(start, end)| values(&start, &end)),
        1 => prop::sample::select(MASKS).prop_map(mask),
        1 => keyed.prop_map(key),
        1 => prop::sample::select(&[0.25, 0.75][..]).prop_map(sample),
        1 => Just(strip()),
        1 => Just(pass()),
        1 => Just(block()),
        1 => Just(RowFilter { kind: None }),
        1 => Just(label("l")),
        1 => Just(if sinks { sink() } else { pass() }),
    ]
}

/// Chains of what projections are made of: most of what clients send, and where order matters most.
fn narrow_chains() -> impl Strategy<Value = RowFilter> {
    let pattern = prop::sample::select(PATTERNS).prop_map(|(source, _)| source);
    let names = prop::sample::select(&["f", "g", "fam"][..]);
    let step = prop_oneof![
        2 => pattern.clone().prop_map(family),
        2 => pattern.clone().prop_map(qualifier),
        2 => (names, bounds()).prop_map(|(name, (start, end))| columns(name, &start, &end)),
        4 => (0..6i64, 0..6i64).prop_map(|(start, end)| times(start * 1000, end * 1000)),
        4 => (1..3i32).prop_map(column_limit),
        1 => (1..6i32).prop_map(row_limit),
        1 => (1..4i32).prop_map(row_offset),
        1 => pattern.prop_map(value),
    ];
    prop::collection::vec(step, 2..5).prop_map(|steps| chain(&steps))
}

fn trees(
    leaf: BoxedStrategy<RowFilter>,
    inside: Option<BoxedStrategy<RowFilter>>,
) -> BoxedStrategy<RowFilter> {
    leaf.prop_recursive(4, 24, 4, move |inner| {
        let list = prop::collection::vec(inner.clone(), 2..5);
        let part = inside.clone().unwrap_or_else(|| inner.boxed());
        let branch = prop::option::weighted(0.8, part.clone());
        prop_oneof![
            4 => list.clone().prop_map(|filters| chain(&filters)),
            2 => list.prop_map(|filters| interleave(&filters)),
            2 => (part, branch.clone(), branch).prop_map(|(p, t, f)| condition(p, t, f)),
        ]
    })
    .boxed()
}

/// Random filters, valid but for labels and inverted ranges.
fn any_filters() -> impl Strategy<Value = RowFilter> {
    let leaf = |sinks| prop_oneof![2 => leaves(sinks), 1 => narrow_chains()].boxed();
    let within_conditions = trees(leaf(false), None);
    trees(leaf(true), Some(within_conditions))
}

/// Random valid filters.
pub(super) fn filters() -> impl Strategy<Value = (RowFilter, Filter)> {
    any_filters().prop_filter_map("refused", |filter| {
        let compiled = compile(&filter).ok()?;
        Some((filter, compiled))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, max_local_rejects: 1 << 20, ..ProptestConfig::default() })]

    #[test]
    fn the_evaluator_agrees_with_the_model((filter, compiled) in filters(), row in rows(), draw in any::<bool>()) {
        let (random, draw) = if draw { (0, 0.0) } else { (1 << 63, 0.5) };
        let want = model_output(&filter, &row, draw);
        let found = compiled.apply(row.clone(), &names(), &Fixed(random)).unwrap();
        prop_assert_eq!(written(&found), written(&want));
        if !compiled.may_match(&row.key) {
            prop_assert!(want.is_empty());
        }
        if let Some(ranges) = compiled.row_ranges() {
            let inside = ranges.iter().any(|range| range.contains(&row.key));
            prop_assert!(inside || want.is_empty(), "{ranges:?} leave out {:?}", row.key);
            prop_assert!(ranges.iter().all(|range| !range.is_empty()));
            for pair in ranges.windows(2) {
                prop_assert!(!pair[0].end.is_empty() && pair[0].end <= pair[1].start);
            }
        }
    }
}
