//! What each kind of filter lets through.

use super::*;
use crate::error::Code;

/// Two versions in two columns, other families, and values to tell them apart.
fn sample_row() -> Row {
    row(
        "row\n1",
        &["f:a@2000=v2", "f:a@1000=v1", "f:b@3000=w", "g:a@2000=", "g:b@1500=x\ny", "fam:a@1000=z"],
    )
}

#[test]
fn each_kind_lets_through_what_it_documents() {
    let all =
        ["f:a@2000=v2", "f:a@1000=v1", "f:b@3000=w", "g:a@2000=", "g:b@1500=x\\ny", "fam:a@1000=z"];
    let at = |indices: &[usize]| indices.iter().map(|i| all[*i].to_owned()).collect::<Vec<_>>();
    let everything = at(&[0, 1, 2, 3, 4, 5]);
    let cases: Vec<(RowFilter, Vec<String>)> = vec![
        (RowFilter { kind: None }, everything.clone()),
        (pass(), everything.clone()),
        (block(), at(&[])),
        (sink(), everything.clone()),
        // Rows.
        (key(r"row\C1"), everything.clone()),
        (key("row.1"), at(&[])),
        (key("row"), at(&[])),
        (sample(0.001), everything.clone()),
        // Families.
        (family("f"), at(&[0, 1, 2])),
        (family("f.*"), at(&[0, 1, 2, 5])),
        (family("F"), at(&[])),
        (family("g|fam"), at(&[3, 4, 5])),
        (family(""), at(&[])),
        // Qualifiers.
        (qualifier("a"), at(&[0, 1, 3, 5])),
        (qualifier("[b-z]"), at(&[2, 4])),
        (qualifier(""), at(&[])),
        (columns("f", "", ""), at(&[0, 1, 2])),
        (columns("f", "[a", "b)"), at(&[0, 1])),
        (columns("f", "(a", "b]"), at(&[2])),
        (columns("f", "[", "a]"), at(&[0, 1])),
        (columns("f", "[a", "a)"), at(&[])),
        (columns("f", "", ")"), at(&[])),
        (columns("nope", "", ""), at(&[])),
        // Timestamps.
        (times(0, 0), everything.clone()),
        (times(1500, 0), at(&[0, 2, 3, 4])),
        (times(0, 1500), at(&[1, 5])),
        (times(1000, 2000), at(&[1, 4, 5])),
        (times(2000, 2000), at(&[])),
        (times(1001, 1501), at(&[4])),
        // Values.
        (value("v."), at(&[0, 1])),
        (value("x.y"), at(&[])),
        (value(r"x\Cy"), at(&[4])),
        (value(""), at(&[3])),
        (value("|z"), at(&[3, 5])),
        (values("", ""), everything.clone()),
        (values("[v1", "w)"), at(&[0, 1])),
        (values("(v1", "w]"), at(&[0, 2])),
        (values("[", "v1]"), at(&[1, 3])),
        (values("(", "v1)"), at(&[])),
        (mask(b"v1"), at(&[1])),
        (mask(b"\x40\x30"), at(&[0, 1])),
        (mask(b"\x62"), at(&[2, 5])),
        (mask(b"\x08"), at(&[5])),
        (mask(b"\x80"), at(&[])),
        // Counts.
        (row_offset(0), everything.clone()),
        (row_offset(4), at(&[4, 5])),
        (row_offset(6), at(&[])),
        (row_offset(i32::MAX), at(&[])),
        (row_limit(1), at(&[0])),
        (row_limit(4), at(&[0, 1, 2, 3])),
        (row_limit(i32::MAX), everything.clone()),
        (column_limit(1), at(&[0, 2, 3, 4, 5])),
        (column_limit(2), everything.clone()),
        // Chains are sequences.
        (chain(&[row_offset(1), row_limit(2)]), at(&[1, 2])),
        (chain(&[row_limit(2), row_offset(1)]), at(&[1])),
        (chain(&[column_limit(1), times(0, 2000)]), at(&[4, 5])),
        (chain(&[times(0, 2000), column_limit(1)]), at(&[1, 4, 5])),
        (chain(&[chain(&[family("f"), qualifier("a")]), column_limit(1)]), at(&[0])),
        (chain(&[block(), pass()]), at(&[])),
        // Conditions.
        (condition(value("w"), Some(family("g")), Some(family("f"))), at(&[3, 4])),
        (condition(value("no"), Some(family("g")), Some(family("f"))), at(&[0, 1, 2])),
        (condition(value("w"), None, Some(pass())), at(&[])),
        (condition(value("no"), Some(pass()), None), at(&[])),
        (chain(&[family("g"), condition(value("w"), Some(pass()), None)]), at(&[])),
        (condition(block(), None, Some(pass())), everything.clone()),
        (condition(strip(), Some(pass()), None), everything.clone()),
        // Interleaves pool, sort and keep copies.
        (interleave(&[qualifier("b"), family("f")]), at(&[0, 1, 2, 2, 4])),
        (interleave(&[block(), value("z")]), at(&[5])),
        (interleave(&[block(), key("no")]), at(&[])),
        (chain(&[interleave(&[pass(), pass()]), row_limit(3)]), at(&[0, 0, 1])),
        (chain(&[interleave(&[pass(), pass()]), row_offset(11)]), at(&[5])),
        (chain(&[interleave(&[pass(), pass()]), column_limit(1)]), at(&[0, 2, 3, 4, 5])),
        (
            chain(&[family("f"), interleave(&[pass(), pass()]), column_limit(3)]),
            at(&[0, 0, 1, 2, 2]),
        ),
    ];
    for (filter, want) in cases {
        assert_eq!(written(&apply(&filter, &sample_row())), want, "{filter:?}");
    }
}

#[test]
fn stripping_keeps_cells_and_labels_name_paths() {
    let row = row("r", &["f:a@2000=x", "f:b@1000=y"]);
    assert_eq!(written(&apply(&strip(), &row)), ["f:a@2000=", "f:b@1000="]);
    assert_eq!(written(&apply(&label("l"), &row)), ["f:a@2000=x#l", "f:b@1000=y#l"]);
    assert_eq!(
        written(&apply(&chain(&[strip(), value("x")]), &row)),
        [""; 0],
        "what comes after sees the empty value"
    );
    let paths =
        interleave(&[chain(&[qualifier("a"), label("one")]), chain(&[label("two"), strip()])]);
    assert_eq!(written(&apply(&paths, &row)), ["f:a@2000=x#one", "f:a@2000=#two", "f:b@1000=#two"]);
}

#[test]
fn the_documented_interleave_pools_and_sorts() {
    let row = row("r", &["f:bar@10=x", "f:blah@11=z", "g:blah@5=x"]);
    let filter = interleave(&[pass(), chain(&[family("g"), label("again")])]);
    assert_eq!(
        written(&apply(&filter, &row)),
        ["f:bar@10=x", "f:blah@11=z", "g:blah@5=x", "g:blah@5=x#again"]
    );
}

#[test]
fn the_documented_sink_passes_by_the_rest_of_the_chain() {
    let row = row("r", &["f:A@1=w", "f:B@2=x", "g:B@4=z"]);
    let filter = chain(&[
        family("f"),
        interleave(&[pass(), chain(&[label("foo"), sink()])]),
        qualifier("B"),
    ]);
    assert_eq!(written(&apply(&filter, &row)), ["f:A@1=w#foo", "f:B@2=x", "f:B@2=x#foo"]);
    // A sink lets nothing flow on, and what it took is out even when all else is blocked.
    assert_eq!(written(&apply(&chain(&[family("g"), sink(), pass()]), &row)), ["g:B@4=z"]);
    let blocked = chain(&[interleave(&[sink(), pass()]), block()]);
    assert_eq!(written(&apply(&blocked, &row)).len(), 3);
    let keyed = chain(&[interleave(&[sink(), pass()]), key("other")]);
    assert_eq!(written(&apply(&keyed, &row)).len(), 3);
}

#[test]
fn sampling_keeps_rows_whose_draw_is_below_the_probability() {
    let row = row("r", &["f:a@1=x"]);
    let filter = compile(&sample(0.5)).unwrap();
    for (draw, kept) in [(0, true), (u64::MAX / 2, true), (1 << 63, false), (u64::MAX, false)] {
        let cells = filter.apply(row.clone(), &names(), &Fixed(draw)).unwrap();
        assert_eq!(!cells.is_empty(), kept, "{draw}");
    }
    let nearly = compile(&sample(1.0 - f64::EPSILON / 2.0)).unwrap();
    assert_eq!(nearly.apply(row, &names(), &Fixed(u64::MAX >> 1)).unwrap().len(), 1);
}

#[test]
fn binary_qualifiers_match_as_bytes() {
    let cell = Cell {
        family: FamilyId(1),
        qualifier: Bytes::from_static(&[0x80, 0x80]),
        timestamp: 1,
        value: Bytes::new(),
    };
    let row = Row { key: Bytes::from_static(b"\xFF"), cells: vec![cell] };
    for (pattern, matches) in [
        (&br"\x80\x80"[..], true),
        (br"\x80\x81", false),
        (br"\x80", false),
        (b"\x80+", true),
        (br"[\x7f\x80]{2}", true),
        (br"\C{2}", true),
        (b"..", true),
    ] {
        let filter = of(Kind::ColumnQualifierRegexFilter(Bytes::copy_from_slice(pattern)));
        assert_eq!(!apply(&filter, &row).is_empty(), matches, "{}", pattern.escape_ascii());
    }
}

#[test]
fn families_that_the_table_dropped_match_no_name() {
    let mut row = row("r", &["f:a@1=x"]);
    row.cells[0].family = FamilyId(99);
    assert!(apply(&family(".*"), &row).is_empty());
    assert_eq!(compile(&pass()).unwrap().apply(row, &names(), &Fixed(0)).unwrap().len(), 1);
}

#[test]
fn rows_without_cells_have_no_output() {
    let empty = row("r", &[]);
    for filter in
        [pass(), sink(), condition(block(), None, Some(pass())), interleave(&[pass(), sink()])]
    {
        assert!(apply(&filter, &empty).is_empty());
    }
}

#[test]
fn interleaves_that_multiply_a_row_are_stopped() {
    let doubling: Vec<RowFilter> = (0..200).map(|_| interleave(&[pass(), pass()])).collect();
    let bomb = compile(&chain(&doubling)).unwrap();
    let error = bomb.apply(row("r", &["f:a@1=x"]), &names(), &Fixed(0)).unwrap_err();
    assert_eq!(error.kind(), Code::FailedPrecondition);
    let want = "Error while reading row 'r' : the filter makes more than 2097152 cells of it";
    assert_eq!(error.message(), want);
    assert_eq!(error.large_row_key().map(AsRef::as_ref), Some(&b"r"[..]));
}

/// A row of so many cells, all alike.
fn row_of(cells: usize) -> Row {
    let row = row("r", &["f:a@1=x"]);
    Row { cells: vec![row.cells[0].clone(); cells], ..row }
}

fn outcome(filter: &RowFilter, row: Row) -> std::result::Result<usize, String> {
    match compile(filter).unwrap().apply(row, &names(), &Fixed(0)) {
        Ok(cells) => Ok(cells.len()),
        Err(error) => {
            assert_eq!(error.kind(), Code::FailedPrecondition);
            assert_eq!(error.large_row_key().map(AsRef::as_ref), Some(&b"r"[..]));
            Err(error.message().to_owned())
        }
    }
}

#[test]
fn copies_that_nested_filters_hold_at_once_are_counted() {
    for nest in [
        |inner: RowFilter| interleave(&[inner, value("other")]),
        |inner: RowFilter| condition(inner, Some(pass()), Some(pass())),
    ] {
        let nested = |levels| (0..levels).fold(value("other"), |inner, _| nest(inner));
        // Two million cells, and a copy for each level.
        let error = outcome(&nested(8), row_of(2 << 20)).unwrap_err();
        assert!(
            error.ends_with("the filter holds more than 6291456 cells of it at once"),
            "{error}"
        );
        assert!(outcome(&nested(2), row_of(1 << 20)).is_ok());
    }
    // What cannot come out needs no copy.
    let blocked = (0..17).fold(pass(), |inner, _| interleave(&[inner, block()]));
    assert_eq!(outcome(&blocked, row_of(1 << 20)), Ok(1 << 20));
}

#[test]
fn what_all_steps_go_through_is_counted() {
    // A million cells through dozens of steps, among them copies.
    let steps = |count| chain(&vec![interleave(&[value("x"), value("other")]); count]);
    assert_eq!(outcome(&steps(10), row_of(1 << 20)), Ok(1 << 20));
    let steps = |count| chain(&vec![pass(); count]);
    assert_eq!(outcome(&steps(100), row_of(1 << 20)), Ok(1 << 20));
    let error = outcome(&steps(200), row_of(1 << 20)).unwrap_err();
    let want = "the filter goes through more than 134217728 cells of it, step by step";
    assert!(error.ends_with(want), "{error}");
    // Values are gone through too.
    let mut large = row_of(1);
    large.cells[0].value = Bytes::from(vec![0; 100 << 20]);
    let patterns = |count| chain(&vec![value(r"\C*"); count]);
    assert_eq!(outcome(&patterns(100), large.clone()), Ok(1));
    assert!(outcome(&patterns(200), large).is_err());
}

/// The steps that a filter takes for a row.
fn steps(filter: &RowFilter, row: &Row) -> u64 {
    let (filter, families) = (compile(filter).unwrap(), names());
    filter.apply_counting(&row.key, row.cells.clone(), &(), &families, &Fixed(0)).unwrap().1
}

#[test]
fn long_qualifiers_that_are_compared_again_and_again_are_counted() {
    let row_of = |qualifier_bytes: usize| {
        let cell = |n: u8| Cell {
            qualifier: [vec![b'q'; qualifier_bytes], vec![n % 2]].concat().into(),
            ..row_of(1).cells[0].clone()
        };
        Row { cells: (0..100).map(cell).collect(), ..row_of(0) }
    };
    let (short, long) = (row_of(10), row_of(16_000));
    for filter in [column_limit(1_000), qualifier(r"\C*"), columns("f", "", "")] {
        let many = chain(&vec![filter; 1_000]);
        assert!(steps(&many, &long) > 100 * steps(&many, &short), "{many:?}");
    }
    let sorted = interleave(&vec![pass(); 10]);
    assert!(steps(&sorted, &long) > 50 * steps(&sorted, &short));
    // As often as it takes to read them, nobody looks.
    assert_eq!(steps(&column_limit(1), &long), 100);
    let error = outcome(&chain(&vec![interleave(&vec![pass(); 2]); 12]), long).unwrap_err();
    assert!(error.contains("the filter goes through more than"), "{error}");
    let short = outcome(&chain(&vec![interleave(&vec![pass(); 2]); 12]), short);
    assert_eq!(short, Ok(100 << 12));
}

#[test]
fn what_many_branches_let_through_takes_longer_to_sort() {
    let branches = |count| interleave(&vec![pass(); count]);
    // A copy, a step and the sorting for each cell that comes out.
    assert_eq!(steps(&branches(2), &row_of(1_000)), 2_000 + 1_000 + 2 * 2_000);
    assert_eq!(steps(&branches(64), &row_of(1_000)), 64_000 + 63_000 + 7 * 64_000);
}

#[test]
fn a_pattern_of_row_keys_counts_the_key_once() {
    let of_key = |bytes: usize, cells| Row { key: vec![b'k'; bytes].into(), ..row_of(cells) };
    let filter = chain(&vec![key(r"k*\C"); 10]);
    let (short, long) = (steps(&filter, &of_key(4, 1)), steps(&filter, &of_key(4_096, 1)));
    assert!(long >= short + 20 * 32, "{short} and {long}");
    assert_eq!(steps(&filter, &of_key(4_096, 1_001)), long + 10_000);
}

#[test]
fn values_that_are_compared_at_length_are_counted() {
    let mut row = row_of(10);
    for cell in &mut row.cells {
        cell.value = vec![b'v'; 10_000].into();
    }
    let long = "v".repeat(9_000);
    for filter in [values(&format!("[{long}"), ""), values("", &format!("{long})"))] {
        assert!(steps(&filter, &row) >= 10 * 9_000 / 128, "{filter:?}");
    }
    assert!(steps(&mask(&[1; 10_000]), &row) >= 10 * 10_000 / 32);
    for filter in [values("[v", ""), mask(&[1; 9_000])] {
        assert_eq!(steps(&filter, &row), 10, "{filter:?}");
    }
}

#[test]
fn a_pattern_whose_automaton_grows_with_a_value_counts_what_is_built() {
    let mut state = 1_u64;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    let noise: Vec<u8> = std::iter::repeat_with(next).take(1_000).collect();
    let mut row = row_of(1);
    row.cells[0].value = noise.into();
    assert!(steps(&value(r"\C*[\x00-\x7F]\C{500}"), &row) > 100_000);
    assert!(steps(&value(r"\C*foo\C*"), &row) < 100);
    assert_eq!(steps(&value("x+"), &row_of(1_000)), 1_000);
}

#[test]
fn a_key_that_one_of_many_patterns_accepts_is_not_compared_with_the_others() {
    let patterns: Vec<_> = (0..1_000).map(|n| key(&format!("k{n}?"))).collect();
    let asked = |filter: &RowFilter| {
        let mut steps_left = 1 << 20;
        assert!(compile(filter).unwrap().may_match_within(b"k", &mut steps_left));
        (1 << 20) - steps_left
    };
    assert_eq!(asked(&interleave(&patterns)), 1);
    // What another may sink has to be known.
    let sinking = [patterns, vec![chain(&[key("other"), sink()])]].concat();
    assert_eq!(asked(&interleave(&sinking)), 1_001);
    // Who must not look further lets it pass.
    let mut steps_left = 10;
    let others = interleave(&vec![key("other"); 100]);
    assert!(compile(&others).unwrap().may_match_within(b"k", &mut steps_left));
}

#[test]
fn copies_of_large_values_are_counted_by_their_bytes() {
    let mut large = row("r", &["f:a@1=x"]);
    large.cells[0].value = Bytes::from(vec![0; 90 << 20]);
    let twice = compile(&interleave(&[pass(), pass()])).unwrap();
    assert!(twice.apply(large.clone(), &names(), &Fixed(0)).is_ok());
    let thrice = compile(&interleave(&[pass(), pass(), sink()])).unwrap();
    let error = thrice.apply(large.clone(), &names(), &Fixed(0)).unwrap_err();
    assert_eq!(error.kind(), Code::FailedPrecondition);
    let stripped = compile(&chain(&[interleave(&[pass(), pass(), pass()]), strip()])).unwrap();
    assert_eq!(stripped.apply(large, &names(), &Fixed(0)).unwrap().len(), 3);
}

#[test]
fn generated_and_encoded_filters_agree() {
    let filter = chain(&[family("f.*"), condition(value("w"), Some(column_limit(1)), None)]);
    let generated = Filter::compile(&crate::filter::wire::to_generated(&filter)).unwrap();
    let cells = generated.apply(sample_row(), &names(), &Fixed(0)).unwrap();
    assert_eq!(cells, apply(&filter, &sample_row()));
    assert_eq!(cells.len(), 3);
}
