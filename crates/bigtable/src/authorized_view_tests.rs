use std::collections::HashMap;

use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::mutation::{
    AddToCell, DeleteFromColumn, DeleteFromFamily, DeleteFromRow, MergeToCell, SetCell,
};
use proptest::prelude::*;

use super::*;
use crate::error::Code;

/// A family with its qualifiers and the prefixes of its qualifiers.
type Columns<'a> = (&'a str, &'a [&'static str], &'a [&'static str]);

fn subset(prefixes: &[&'static str], families: &[Columns<'_>]) -> SubsetView {
    let bytes = |texts: &[&'static str]| texts.iter().copied().map(Bytes::from).collect();
    let families = families.iter().map(|(name, qualifiers, open)| {
        let (qualifiers, qualifier_prefixes) = (bytes(qualifiers), bytes(open));
        ((*name).to_owned(), FamilySubsets { qualifiers, qualifier_prefixes })
    });
    SubsetView { row_prefixes: bytes(prefixes), family_subsets: families.collect() }
}

fn view(prefixes: &[&'static str], families: &[Columns<'_>]) -> AuthorizedView {
    AuthorizedView::compile(&subset(prefixes, families)).unwrap()
}

fn set(family: &str, qualifier: &'static str) -> Mutation {
    let column_qualifier = Bytes::from(qualifier);
    Mutation::SetCell(SetCell {
        family_name: family.to_owned(),
        column_qualifier,
        ..SetCell::default()
    })
}

fn raw(qualifier: &'static str) -> Option<v2::Value> {
    let kind = Some(ValueKind::RawValue(Bytes::from(qualifier)));
    Some(v2::Value { kind, ..v2::Value::default() })
}

#[test]
fn a_row_is_within_where_it_starts_with_a_prefix() {
    let view = view(&["r1", "r11", "s\u{7f}"], &[]);
    for row in ["r1", "r11", "r1\0", "s\u{7f}x"] {
        view.check_row(row.as_bytes()).unwrap();
    }
    for row in ["r", "r2", "q", "s", "t"] {
        let error = view.check_row(row.as_bytes()).unwrap_err();
        assert_eq!(error.kind(), Code::PermissionDenied);
        assert!(error.message().ends_with("outside the Authorized View"), "{error}");
    }
}

#[test]
fn a_long_row_or_qualifier_outside_is_shown_by_its_start() {
    let view = view(&["r"], &[("some", &["q"], &[])]);
    // As long as a request: limits on keys and qualifiers are checked later.
    let long = Bytes::from(vec![0xFF; 16 << 20]);
    let set = SetCell {
        family_name: "some".to_owned(),
        column_qualifier: long.clone(),
        ..SetCell::default()
    };
    let set = v2::Mutation { mutation: Some(Mutation::SetCell(set)) };
    for error in [view.check_row(&long).unwrap_err(), view.check_mutation(&set).unwrap_err()] {
        assert_eq!(error.kind(), Code::PermissionDenied);
        assert!(error.message().contains(r"\xff... (16777216 bytes)' is outside"), "{error}");
        assert!(error.message().len() < 1_000);
    }
}

#[test]
fn the_empty_prefix_means_every_row_and_no_prefix_means_none() {
    for row in [&b"a"[..], &[0xFF, 0xFF]] {
        view(&["a", ""], &[]).check_row(row).unwrap();
        assert!(view(&[], &[("f", &[], &[""])]).check_row(row).is_err());
    }
}

#[test]
fn a_mutation_is_within_where_all_that_it_can_change_is() {
    let view = view(&[""], &[("all", &[], &[""]), ("some", &["q"], &["p#"]), ("none", &[], &[])]);
    let family =
        |name: &str| Mutation::DeleteFromFamily(DeleteFromFamily { family_name: name.to_owned() });
    let column = |family_name: &str, column_qualifier| {
        let family_name = family_name.to_owned();
        Mutation::DeleteFromColumn(DeleteFromColumn {
            family_name,
            column_qualifier,
            time_range: None,
        })
    };
    let add = |family: &str, column_qualifier| {
        let family_name = family.to_owned();
        Mutation::AddToCell(AddToCell { family_name, column_qualifier, ..AddToCell::default() })
    };
    let merge = |family: &str, column_qualifier| {
        let family_name = family.to_owned();
        Mutation::MergeToCell(MergeToCell {
            family_name,
            column_qualifier,
            ..MergeToCell::default()
        })
    };
    let within = [
        set("all", ""),
        set("all", "anything"),
        set("some", "q"),
        set("some", "p#"),
        set("some", "p#1"),
        column("some", Bytes::from("p#1")),
        add("all", raw("x")),
        merge("some", raw("q")),
        // Refused later, for what is wrong with them.
        add("all", None),
        family("all"),
    ];
    let outside = [
        set("some", ""),
        set("some", "q1"),
        set("some", "p"),
        set("none", "q"),
        set("missing", "q"),
        column("some", Bytes::from("x")),
        add("some", raw("x")),
        add("missing", None),
        merge("missing", raw("q")),
        family("some"),
        family("none"),
        family("missing"),
        Mutation::DeleteFromRow(DeleteFromRow {}),
    ];
    for mutation in within {
        let mutation = v2::Mutation { mutation: Some(mutation) };
        view.check_mutation(&mutation).unwrap();
    }
    view.check_mutation(&v2::Mutation::default()).unwrap();
    for mutation in outside {
        let mutation = v2::Mutation { mutation: Some(mutation) };
        let error = view.check_mutation(&mutation).unwrap_err();
        assert_eq!(error.kind(), Code::PermissionDenied, "{mutation:?}");
        assert!(error.message().contains("outside the Authorized View"), "{error}");
    }
}

#[test]
fn a_view_that_no_table_can_have_is_refused() {
    let long_row =
        SubsetView { row_prefixes: vec![vec![b'r'; 4_097].into()], ..Default::default() };
    let long_qualifier = FamilySubsets {
        qualifiers: vec![],
        qualifier_prefixes: vec![vec![b'q'; (16 << 10) + 1].into()],
    };
    let large =
        SubsetView { row_prefixes: vec![vec![b'r'; 4_000].into(); 17], ..Default::default() };
    let of_families = |families: HashMap<String, FamilySubsets>| SubsetView {
        family_subsets: families,
        ..SubsetView::default()
    };
    for (bad, text) in [
        (long_row, "row_prefixes"),
        (large, "subset_view"),
        (of_families([("f".to_owned(), long_qualifier)].into()), "qualifier"),
        (of_families([("a b".to_owned(), FamilySubsets::default())].into()), "a b"),
        (of_families([(String::new(), FamilySubsets::default())].into()), "non-empty"),
    ] {
        let error = AuthorizedView::compile(&bad).unwrap_err();
        assert_eq!(error.kind(), Code::InvalidArgument, "{error}");
        assert!(error.message().contains(text), "{error}");
    }
}

/// A definition with these row prefixes and, of `f`, these qualifiers and prefixes of them.
fn defined(
    prefixes: &[&'static str],
    qualifiers: &[&'static str],
    open: &[&'static str],
) -> SubsetView {
    subset(prefixes, &[("f", qualifiers, open)])
}

#[test]
fn what_a_new_definition_says_twice_is_refused_and_what_was_stored_stays() {
    for (twice, text) in [
        (defined(&["a", "b", "a"], &[], &[]), "'row_prefixes' : has 'a' more than once"),
        (defined(&["", ""], &[], &[]), "'row_prefixes' : has '' more than once"),
        (defined(&["a"], &["q", "q"], &[]), "'family_subsets[\"f\"].qualifiers' : has 'q'"),
        (defined(&["a"], &[], &["", "p", ""]), "'family_subsets[\"f\"].qualifier_prefixes'"),
    ] {
        let error = check_parts(&twice, None).unwrap_err();
        assert_eq!(error.kind(), Code::InvalidArgument);
        assert!(error.message().contains(text), "{error}");
        AuthorizedView::compile(&twice).unwrap();
        check_parts(&twice, Some(&twice)).unwrap();
    }
    check_parts(&defined(&["", "a"], &["q", ""], &["q", ""]), None).unwrap();
    // What an update leaves alone may be as it is; what it sets may not.
    let before = defined(&["a", "a"], &["q"], &[]);
    check_parts(&defined(&["a", "a"], &["q", "r"], &[]), Some(&before)).unwrap();
    let error = check_parts(&defined(&["a", "a"], &["r", "r"], &[]), Some(&before)).unwrap_err();
    assert!(error.message().contains("qualifiers"), "{error}");
}

#[test]
fn a_new_definition_has_a_limit_on_its_parts_and_one_that_was_stored_may_have_more() {
    let of = |count: usize| SubsetView {
        row_prefixes: (0..count).map(|i| Bytes::from(i.to_string())).collect(),
        ..SubsetView::default()
    };
    check_parts(&of(SUBSET_VIEW_PARTS_MAX), None).unwrap();
    let many = of(SUBSET_VIEW_PARTS_MAX + 2);
    let error = check_parts(&many, None).unwrap_err();
    assert_eq!(error.kind(), Code::InvalidArgument);
    assert!(error.message().contains("has 4098 row_prefixes"), "{error}");
    assert!(error.message().contains("limit 4096"), "{error}");
    AuthorizedView::compile(&many).unwrap();
    check_parts(&of(SUBSET_VIEW_PARTS_MAX + 1), Some(&many)).unwrap();
    check_parts(&of(SUBSET_VIEW_PARTS_MAX + 3), Some(&many)).unwrap_err();
}

#[test]
fn the_largest_view_that_is_taken_is_a_megabyte_at_most() {
    // As long as the definition may be, and as many.
    let long = |i: usize| Bytes::from(format!("{:012}", 2 * i + 1));
    let columns =
        FamilySubsets { qualifier_prefixes: (0..2_000).map(long).collect(), ..Default::default() };
    let view = SubsetView {
        row_prefixes: (0..2_000).map(long).collect(),
        family_subsets: [("f".to_owned(), columns)].into(),
    };
    check_parts(&view, None).unwrap();
    let bytes = AuthorizedView::compile(&view).unwrap().bytes();
    assert!((500_000..1 << 20).contains(&bytes), "{bytes}");
}

#[test]
fn columns_are_those_of_families_that_there_are() {
    let names = {
        let mut schema = crate::schema::TableSchema::new();
        for name in ["b", "a", "other"] {
            let id = schema.allocate_family_id();
            schema.families.insert(name.to_owned(), crate::schema::FamilySchema::new(id));
        }
        schema.names()
    };
    let view = view(
        &[""],
        &[("a", &["q"], &[]), ("b", &["x"], &[""]), ("missing", &["q"], &[]), ("other", &[], &[])],
    );
    let columns = view.columns(&names);
    let families: Vec<_> = columns.iter().map(|c| names.get(c.family).unwrap().as_ref()).collect();
    assert_eq!(families, ["b", "a"]);
    let counts: Vec<_> = columns.iter().map(|c| c.qualifiers.len()).collect();
    assert_eq!(counts, [0, 1], "every qualifier is an empty list");
}

#[test]
fn samples_divide_the_rows_of_the_view_and_name_no_others() {
    let table = [("r0", 10), ("r11", 30), ("r12", 60), ("r2", 100), ("", 150)];
    let samples = |prefixes: &[&'static str]| -> Vec<(String, i64)> {
        let of_table = table.iter().map(|(key, at)| v2::SampleRowKeysResponse {
            row_key: Bytes::from(*key),
            offset_bytes: *at,
        });
        let kept = view(prefixes, &[]).samples(of_table.collect());
        let text = |key: &Bytes| String::from_utf8(key.to_vec()).unwrap();
        kept.iter().map(|sample| (text(&sample.row_key), sample.offset_bytes)).collect()
    };
    let of = |expected: &[(&str, i64)]| -> Vec<(String, i64)> {
        expected.iter().map(|(key, at)| ((*key).to_owned(), *at)).collect()
    };
    assert_eq!(samples(&["r1"]), of(&[("r11", 20), ("r12", 50), ("r2", 90)]));
    assert_eq!(samples(&[""]), of(&table));
    assert_eq!(samples(&["a", "c", "z"]), of(&[("d", 10), ("{", 60)]));
    assert_eq!(samples(&["r11x"]), of(&[("r11y", 30)]));
    assert_eq!(samples(&[]), of(&[]));
}

proptest! {
    #[test]
    fn checks_agree_with_the_words_of_the_definition(
        prefixes in prop::collection::vec("[ab]{0,2}", 0..4),
        qualifiers in prop::collection::vec("[ab]{0,2}", 0..4),
        open in prop::collection::vec("[ab]{1,2}", 0..3),
        row in "[abc]{1,3}",
        qualifier in "[abc]{0,3}",
    ) {
        let bytes = |texts: &[String]| texts.iter().cloned().map(Bytes::from).collect();
        let columns =
            FamilySubsets { qualifiers: bytes(&qualifiers), qualifier_prefixes: bytes(&open) };
        let subset = SubsetView {
            row_prefixes: bytes(&prefixes),
            family_subsets: [("f".to_owned(), columns)].into(),
        };
        let view = AuthorizedView::compile(&subset).unwrap();
        let row_within = prefixes.iter().any(|prefix| row.starts_with(prefix));
        prop_assert_eq!(view.check_row(row.as_bytes()).is_ok(), row_within);
        let column_within = qualifiers.contains(&qualifier)
            || open.iter().any(|prefix| qualifier.starts_with(prefix));
        prop_assert_eq!(view.check_column("f", qualifier.as_bytes()).is_ok(), column_within);
        let spans = view.narrow(&[RowSpan::Row(Bytes::from(row))]);
        prop_assert_eq!(spans.len(), usize::from(row_within));
    }

    #[test]
    fn a_range_overlaps_where_one_of_the_views_ranges_does(
        prefixes in prop::collection::vec("[a-c]{0,3}", 0..6),
        start in "[a-d]{0,3}",
        end in "[a-d]{0,3}",
    ) {
        let row_prefixes = prefixes.into_iter().map(Bytes::from).collect();
        let subset = SubsetView { row_prefixes, ..SubsetView::default() };
        let view = AuthorizedView::compile(&subset).unwrap();
        let range = RowRange::new(start, end);
        prop_assert_eq!(view.overlaps(&range), view.rows.iter().any(|own| own.overlaps(&range)));
    }
}
