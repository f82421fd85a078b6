//! Projections never change what a filter lets through, and are as narrow as they are meant to be.

use std::collections::HashMap;
use std::ops::{Bound, RangeBounds};

use proptest::prelude::*;
use tepui_engine::cell::{RowRange, TIMESTAMP_MAX, TimestampRange};
use tepui_engine::read::{FamilyProjection, Projection, QualifierRange};

use super::super::project::{self, Wanted};
use super::*;

/// What an engine returns under a projection, written from the projection's documentation.
fn projected(row: &Row, projection: &Projection) -> Row {
    let mut versions: HashMap<(FamilyId, Bytes), u32> = HashMap::new();
    let mut cells = Vec::new();
    for cell in &row.cells {
        let wanted = projection.families.as_ref().is_none_or(|families| {
            families.iter().any(|f| {
                f.family == cell.family
                    && (f.qualifiers.is_empty()
                        || f.qualifiers.iter().any(|range| range.contains(&cell.qualifier)))
            })
        });
        if !wanted || !projection.timestamps.contains(cell.timestamp) {
            continue;
        }
        let seen = versions.entry((cell.family, cell.qualifier.clone())).or_default();
        *seen += 1;
        if *seen <= projection.versions_max && cells.len() < projection.cells_per_row_max as usize {
            cells.push(cell.clone());
        }
    }
    Row { key: row.key.clone(), cells }
}

/// Columns of some families, as an authorized view has them.
fn some_columns() -> impl Strategy<Value = Vec<FamilyProjection>> {
    let point = |q: &'static str| {
        let q = Bytes::from(q);
        (Bound::Included(q.clone()), Bound::Included(q))
    };
    let prefix = (Bound::Included(Bytes::from("a")), Bound::Excluded(Bytes::from("b")));
    let choices = vec![
        None,
        Some(vec![]),
        Some(vec![point("")]),
        Some(vec![point("a"), point("b")]),
        Some(vec![prefix, (Bound::Included(Bytes::from("b")), Bound::Unbounded)]),
    ];
    let of_each = prop::collection::vec(prop::sample::select(choices), FAMILIES.len());
    of_each.prop_map(|choices| {
        let families = FAMILIES.iter().zip(choices);
        families
            .filter_map(|((family, _), qualifiers)| {
                Some(FamilyProjection { family: *family, qualifiers: qualifiers?.into() })
            })
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, max_local_rejects: 1 << 20, ..ProptestConfig::default() })]

    #[test]
    fn a_filter_cannot_tell_a_projected_row_from_the_row(
        (filter, compiled) in super::model::filters(),
        row in super::model::rows(),
        more in prop::collection::vec(any::<bool>(), 16),
        ranges_max in 0_usize..40,
    ) {
        let whole = compiled.apply(row.clone(), &names(), &Fixed(0)).unwrap();
        // Nor from one of a projection that was given up on the way.
        for projection in [
            compiled.projection(FAMILIES.to_vec(), None),
            project::projection(&compiled.root, FAMILIES.to_vec(), None, (Wanted::Output, ranges_max)),
        ] {
            let projected = projected(&row, &projection);
            let found = compiled.apply(projected.clone(), &names(), &Fixed(0)).unwrap();
            prop_assert_eq!(written(&found), written(&whole), "{:?} {:?}", filter, projection);

            // Nor from anything between the two.
            let between = row.cells.iter().zip(&more).filter(|(cell, more)| {
                **more || projected.cells.contains(cell)
            });
            let cells = between.map(|(cell, _)| cell.clone()).collect();
            let between = Row { key: row.key.clone(), cells };
            let found = compiled.apply(between, &names(), &Fixed(0)).unwrap();
            prop_assert_eq!(written(&found), written(&whole), "{:?} {:?}", filter, projection);
        }
    }

    #[test]
    fn within_some_columns_a_filter_sees_those_and_no_others(
        (filter, compiled) in super::model::filters(),
        row in super::model::rows(),
        within in some_columns(),
        ranges_max in 0_usize..40,
    ) {
        let is_within = |cell: &Cell| {
            let family = within.iter().find(|f| f.family == cell.family);
            family.is_some_and(|f| {
                f.qualifiers.is_empty()
                    || f.qualifiers.iter().any(|range| range.contains(&cell.qualifier))
            })
        };
        let cells = row.cells.iter().filter(|cell| is_within(cell)).cloned().collect();
        let visible = Row { key: row.key.clone(), cells };
        let expected = compiled.apply(visible, &names(), &Fixed(0)).unwrap();
        for projection in [
            compiled.projection(FAMILIES.to_vec(), Some(&within)),
            project::projection(&compiled.root, FAMILIES.to_vec(), Some(&within), (Wanted::Output, ranges_max)),
        ] {
            let projected = projected(&row, &projection);
            prop_assert!(projected.cells.iter().all(is_within), "{:?} {:?}", filter, projection);
            let found = compiled.apply(projected, &names(), &Fixed(0)).unwrap();
            prop_assert_eq!(written(&found), written(&expected), "{:?} {:?}", filter, projection);
        }
    }

    #[test]
    fn a_predicate_passes_of_its_projected_row_whenever_it_passes_of_the_row(
        (filter, compiled) in super::model::filters(),
        row in super::model::rows(),
        more in prop::collection::vec(any::<bool>(), 16),
        draw in any::<bool>(),
    ) {
        let rng = Fixed(if draw { 0 } else { 1 << 63 });
        let passes = |row| !compiled.apply(row, &names(), &rng).unwrap().is_empty();
        let projection = compiled.predicate_projection(FAMILIES.to_vec(), None);
        let mut projected = projected(&row, &projection);
        let between = row.cells.iter().zip(&more).filter(|(cell, more)| {
            **more || projected.cells.contains(cell)
        });
        let cells = between.map(|(cell, _)| cell.clone()).collect();
        let mut between = Row { key: row.key.clone(), cells };
        for cell in projected.cells.iter_mut().chain(&mut between.cells) {
            if !projection.values {
                cell.value = Bytes::new();
            }
        }
        let whole = passes(row);
        prop_assert_eq!(passes(projected), whole, "{:?} {:?}", filter, projection);
        prop_assert_eq!(passes(between), whole, "{:?} {:?}", filter, projection);
    }

    #[test]
    fn projections_are_in_the_form_that_the_engine_reads((_, compiled) in super::model::filters()) {
        let mut backwards = FAMILIES;
        backwards.reverse();
        let projection = compiled.projection(backwards.to_vec(), None);
        prop_assert_eq!(&projection, &compiled.projection(FAMILIES.to_vec(), None));
        for pair in projection.families.as_deref().unwrap_or_default().windows(2) {
            prop_assert!(pair[0].family < pair[1].family);
        }
        for family in projection.families.iter().flatten() {
            for (start, end) in family.qualifiers.iter() {
                if let (Bound::Included(start) | Bound::Excluded(start), Bound::Included(end) | Bound::Excluded(end)) = (start, end) {
                    prop_assert!(start <= end);
                }
            }
        }
    }
}

/// `count` interleaved patterns of qualifiers, each of which is nearly a hundred texts.
fn many_classes(count: usize) -> Filter {
    let classes = ["[!-~]", "[!-}]"].into_iter().cycle().take(count);
    compile(&interleave(&classes.map(qualifier).collect::<Vec<_>>())).unwrap()
}

#[test]
fn a_filter_that_takes_too_long_to_project_reads_everything() {
    let names: Vec<String> = (0..1_000).map(|n| format!("f{n}")).collect();
    let families: Vec<_> =
        names.iter().zip(1..).map(|(name, id)| (FamilyId(id), &**name)).collect();
    let few = many_classes(2).projection(families[..10].to_vec(), None);
    let ranges = few.families.iter().flatten().map(|family| family.qualifiers.len());
    assert_eq!(ranges.sum::<usize>(), 940);
    assert_eq!(many_classes(2_000).projection(families.clone(), None), Projection::all());
    // Of what a view has, everything.
    let within = only(&[(7, &[point("a")]), (9, &[])]);
    let projection = many_classes(2_000).projection(families, within.families.as_deref());
    assert_eq!(projection, within);
}

#[test]
fn many_columns_of_one_family_are_read_alone_however_many_families_there_are() {
    let names: Vec<String> = (0..1_000).map(|n| format!("f{n:03}")).collect();
    let families: Vec<_> =
        names.iter().zip(1..).map(|(name, id)| (FamilyId(id), &**name)).collect();
    let wanted: Vec<String> = (0..120).map(|n| format!("q{n:03}")).collect();
    let columns = interleave(&wanted.iter().map(|name| qualifier(name)).collect::<Vec<_>>());
    let points: Vec<_> = wanted.iter().map(|name| point(name)).collect();
    let filter = compile(&chain(&[family("f007"), columns.clone()])).unwrap();
    assert_eq!(filter.projection(families.clone(), None), only(&[(8, &points)]));
    // Of some families each, as clients write it that name columns one by one.
    let each = |name: &str| chain(&[family(name), columns.clone()]);
    let filter = compile(&interleave(&[each("f007"), each("f500"), each("f999")])).unwrap();
    let three = only(&[(8, &points), (501, &points), (1_000, &points)]);
    assert_eq!(filter.projection(families, None), three);
}

fn point(qualifier: &str) -> QualifierRange {
    (Bound::Included(bytes(qualifier)), Bound::Included(bytes(qualifier)))
}

fn half_open(start: &str, end: &str) -> QualifierRange {
    (Bound::Included(bytes(start)), Bound::Excluded(bytes(end)))
}

/// A projection of these families (by id) and qualifiers, and all else.
fn only(families: &[(u32, &[QualifierRange])]) -> Projection {
    let families = families.iter().map(|(id, qualifiers)| FamilyProjection {
        family: FamilyId(*id),
        qualifiers: qualifiers.iter().cloned().collect(),
    });
    Projection { families: Some(families.collect()), ..Projection::all() }
}

fn between(start: i64, end: i64) -> TimestampRange {
    TimestampRange { start, end }
}

#[test]
fn what_clients_ask_for_most_is_pushed_down() {
    let a = &[point("a")][..];
    let cases = [
        (pass(), Projection::all()),
        (block(), only(&[])),
        (family("f"), only(&[(1, &[])])),
        (family("f.*"), only(&[(1, &[]), (7, &[])])),
        (family("nope"), only(&[])),
        (qualifier("a"), only(&[(1, a), (3, a), (7, a)])),
        (qualifier(r"\C*"), Projection::all()),
        (chain(&[family("f"), qualifier("a")]), only(&[(1, a)])),
        (chain(&[qualifier("b|a"), family("g")]), only(&[(3, &[point("a"), point("b")])])),
        (chain(&[family("f"), qualifier("ab.*")]), only(&[(1, &[half_open("ab", "ac")])])),
        (columns("g", "[a", "c)"), only(&[(3, &[half_open("a", "c")])])),
        (columns("g", "", ""), only(&[(3, &[])])),
        (times(1000, 2000), Projection { timestamps: between(1000, 2000), ..Projection::all() }),
        (
            times(1000, 0),
            Projection { timestamps: between(1000, TIMESTAMP_MAX), ..Projection::all() },
        ),
        (times(0, 0), Projection::all()),
        (chain(&[times(1000, 2000), times(2000, 3000)]), only(&[])),
        (column_limit(1), Projection { versions_max: 1, ..Projection::all() }),
        (
            chain(&[column_limit(3), strip(), column_limit(2)]),
            Projection { versions_max: 2, values: false, ..Projection::all() },
        ),
        (chain(&[value("x"), strip()]), Projection::all()),
        (row_limit(5), Projection { cells_per_row_max: 5, ..Projection::all() }),
        (
            chain(&[family("f"), column_limit(1), row_offset(10), row_limit(5)]),
            Projection { versions_max: 1, cells_per_row_max: 15, ..only(&[(1, &[])]) },
        ),
        (
            chain(&[family("f"), qualifier("a"), column_limit(1), value("x")]),
            Projection { versions_max: 1, ..only(&[(1, a)]) },
        ),
        // A column with its newest version, as point reads of a column ask.
        (
            chain(&[columns("f", "[a", "a]"), times(1000, 9000), column_limit(1)]),
            Projection { timestamps: between(1000, 9000), versions_max: 1, ..only(&[(1, a)]) },
        ),
        // Several columns, as an interleave of chains.
        (
            interleave(&[
                chain(&[family("f"), qualifier("a")]),
                chain(&[family("g"), qualifier("b")]),
            ]),
            only(&[(1, a), (3, &[point("b")])]),
        ),
        (
            chain(&[
                interleave(&[
                    chain(&[family("f"), column_limit(1)]),
                    chain(&[family("g"), column_limit(3)]),
                ]),
                value("x"),
            ]),
            Projection { versions_max: 3, ..only(&[(1, &[]), (3, &[])]) },
        ),
        // What a check-and-mutate compares.
        (
            condition(
                chain(&[family("f"), qualifier("a"), value("x")]),
                Some(columns("g", "", "")),
                None,
            ),
            only(&[(1, a), (3, &[])]),
        ),
        (chain(&[family("f"), condition(qualifier("a"), Some(pass()), None)]), only(&[(1, &[])])),
    ];
    for (filter, want) in cases {
        assert_eq!(
            compile(&filter).unwrap().projection(FAMILIES.to_vec(), None),
            want,
            "{filter:?}"
        );
    }
}

#[test]
fn of_a_predicate_one_cell_is_read_where_it_tells() {
    let read = |filter: &RowFilter| {
        let filter = compile(filter).unwrap();
        Projection { values: true, ..filter.predicate_projection(FAMILIES.to_vec(), None) }
    };
    let one = |projection| Projection { versions_max: 1, cells_per_row_max: 1, ..projection };
    for (filter, of) in [
        (pass(), Projection::all()),
        (family("f"), only(&[(1, &[])])),
        (columns("g", "[a", "c)"), only(&[(3, &[half_open("a", "c")])])),
        (times(1000, 2000), Projection { timestamps: between(1000, 2000), ..Projection::all() }),
        (column_limit(5), Projection::all()),
        (chain(&[column_limit(5), family("f"), label("l"), strip()]), only(&[(1, &[])])),
        (chain(&[key("fam"), sample(0.5), pass()]), Projection::all()),
    ] {
        assert_eq!(read(&filter), one(of), "{filter:?}");
    }
    // Of columns that are named, the newest: it is known where no older place can have a newer one.
    for (filter, of) in [
        (chain(&[family("f"), qualifier("a")]), only(&[(1, &[point("a")])])),
        (chain(&[family("f"), qualifier("a|b")]), only(&[(1, &[point("a"), point("b")])])),
    ] {
        assert_eq!(read(&filter), Projection { versions_max: 1, ..of }, "{filter:?}");
    }
    // Which cells pass these, or whether those that come first do, the projection does not say.
    for filter in [
        value("x"),
        mask(b"x"),
        qualifier(".*a"),
        chain(&[value("x"), column_limit(1)]),
        chain(&[row_offset(2), pass()]),
        chain(&[row_limit(2), family("f")]),
        chain(&[column_limit(1), times(1000, 2000)]),
        chain(&[sink(), block()]),
        interleave(&[family("f"), chain(&[qualifier("a"), value("x")])]),
        condition(family("f"), Some(pass()), None),
    ] {
        let read = read(&filter);
        let whole = compile(&filter).unwrap().projection(FAMILIES.to_vec(), None);
        assert_eq!(read, Projection { values: true, ..whole }, "{filter:?}");
    }
}

#[test]
fn counts_are_not_pushed_past_what_they_do_not_see() {
    for filter in [
        chain(&[value("x"), column_limit(1)]),
        chain(&[qualifier(".*a"), row_limit(1)]),
        chain(&[row_offset(2), family("f"), row_limit(1)]),
        chain(&[interleave(&[pass(), pass()]), column_limit(1)]),
        interleave(&[row_limit(1), pass()]),
        condition(value("x"), Some(column_limit(1)), None),
    ] {
        assert_eq!(
            compile(&filter).unwrap().projection(FAMILIES.to_vec(), None),
            Projection::all(),
            "{filter:?}"
        );
    }
    // A column limit before a range of timestamps is kept, and the range is not pushed.
    let limited = chain(&[column_limit(1), times(1000, 2000), column_limit(1)]);
    let want = Projection { versions_max: 1, ..Projection::all() };
    assert_eq!(compile(&limited).unwrap().projection(FAMILIES.to_vec(), None), want);
    let limited = chain(&[
        column_limit(1),
        interleave(&[
            chain(&[times(1000, 2000), column_limit(5)]),
            chain(&[times(1000, 2000), family("f")]),
        ]),
    ]);
    let want = Projection { versions_max: 1, ..Projection::all() };
    assert_eq!(compile(&limited).unwrap().projection(FAMILIES.to_vec(), None), want);
    // Columns that are not all wanted would take the places of those that are.
    let inexact = chain(&[family("f"), qualifier("a.*"), row_limit(1)]);
    let want = only(&[(1, &[half_open("a", "b")])]);
    assert_eq!(compile(&inexact).unwrap().projection(FAMILIES.to_vec(), None), want);
    // Versions of different ranges of timestamps are not one count.
    let ranges = interleave(&[
        chain(&[times(1000, 2000), column_limit(1)]),
        chain(&[times(2000, 3000), column_limit(1)]),
    ]);
    let want = Projection { timestamps: between(1000, 3000), ..Projection::all() };
    assert_eq!(compile(&ranges).unwrap().projection(FAMILIES.to_vec(), None), want);
}

#[test]
fn many_qualifiers_become_few_ranges() {
    let many: Vec<RowFilter> = (0..300).map(|i| qualifier(&format!("q{i:03}"))).collect();
    let filter = compile(&chain(&[family("f"), interleave(&many)])).unwrap();
    let families = filter.projection(FAMILIES.to_vec(), None).families.unwrap();
    let [column] = families.as_slice() else { panic!("{families:?}") };
    assert!(column.qualifiers.len() <= 128, "{}", column.qualifiers.len());
    for i in 0..300 {
        let name = bytes(&format!("q{i:03}"));
        assert!(column.qualifiers.iter().any(|range| range.contains(&name)));
    }
    assert!(!column.qualifiers.iter().any(|range| range.contains(&bytes("p"))));
    assert!(!column.qualifiers.iter().any(|range| range.contains(&bytes("r"))));
}

#[test]
fn row_keys_narrow_the_scan() {
    let range = |start: &str, end: &str| RowRange::new(bytes(start), bytes(end));
    let prefix = range("user#", "user$");
    let cases = [
        (pass(), None),
        (key(".*x"), None),
        (key(r"user#\C*"), Some(vec![prefix.clone()])),
        (key("user#.*x"), Some(vec![prefix.clone()])),
        (key("b|a"), Some(vec![range("a", "a\0"), range("b", "b\0")])),
        (block(), Some(vec![])),
        (chain(&[family("f"), key("user#.*"), column_limit(1)]), Some(vec![prefix.clone()])),
        (chain(&[key("a.*"), key("b.*")]), Some(vec![])),
        (chain(&[sink(), key("a")]), None),
        (interleave(&[key("a"), key("b")]), Some(vec![range("a", "a\0"), range("b", "b\0")])),
        (interleave(&[key("a"), pass()]), None),
        (condition(key("a"), Some(pass()), None), Some(vec![range("a", "a\0")])),
        (
            condition(key("a"), Some(pass()), Some(key("b"))),
            Some(vec![range("a", "a\0"), range("b", "b\0")]),
        ),
        (condition(key("a"), None, Some(pass())), None),
    ];
    for (filter, want) in cases {
        assert_eq!(compile(&filter).unwrap().row_ranges(), want, "{filter:?}");
    }
}
