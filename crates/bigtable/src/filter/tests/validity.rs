//! What is refused, with which code and words, and what is not.

use prost::Message;

use super::*;
use crate::error::Code;
use crate::filter::{FILTER_BYTES_MAX, wire};

#[test]
fn what_bigtable_documents_as_invalid_is_refused() {
    let unset = RowFilter { kind: None };
    let no_predicate = of(Kind::Condition(Box::default()));
    let cases = [
        (of(Kind::PassAllFilter(false)), "pass_all_filter must be true if set"),
        (of(Kind::BlockAllFilter(false)), "block_all_filter must be true if set"),
        (of(Kind::Sink(false)), "sink must be true if set"),
        (of(Kind::StripValueTransformer(false)), "strip_value_transformer must be true if set"),
        (chain(&[]), "Chain must contain at least two RowFilters"),
        (chain(&[pass()]), "Chain must contain at least two RowFilters"),
        (interleave(&[]), "Interleave must contain at least two RowFilters"),
        (interleave(&[pass()]), "Interleave must contain at least two RowFilters"),
        (no_predicate, "Error in field 'condition' : predicate_filter must be set"),
        (
            condition(sink(), None, None),
            "Error in field 'sink' : cannot be used within a condition",
        ),
        (
            condition(pass(), Some(chain(&[pass(), sink()])), None),
            "Error in field 'sink' : cannot be used within a condition",
        ),
        (
            condition(pass(), None, Some(interleave(&[unset, sink()]))),
            "Error in field 'sink' : cannot be used within a condition",
        ),
        (key(""), "Error in field 'row_key_regex_filter' : argument must not be empty"),
        (key("["), "Error in field 'row_key_regex_filter' : missing ]: ["),
        (family("("), "Error in field 'family_name_regex_filter' : missing ): ("),
        (family("f:"), "Error in field 'family_name_regex_filter' : argument must not contain ':'"),
        (
            qualifier("*"),
            "Error in field 'column_qualifier_regex_filter' : no argument for repetition operator: *",
        ),
        (value("(?=a)"), "Error in field 'value_regex_filter' : invalid perl operator: (?="),
        (
            columns("", "", ""),
            "Error in field 'column_range_filter' : family_name must not be empty",
        ),
        (
            columns("f", "[b", "a]"),
            "Error in field 'column_range_filter' : start_qualifier must not be after end_qualifier",
        ),
        (
            values("(b", "a)"),
            "Error in field 'value_range_filter' : start_value must not be after end_value",
        ),
        (
            times(2000, 1000),
            "Error in field 'timestamp_range_filter' : start 2000 must not be after end 1000",
        ),
        (mask(b""), "Error in field 'value_bitmask_filter' : mask must not be empty"),
        (sample(0.0), "row_sample_filter argument must be between 0.0 and 1.0"),
        (sample(1.0), "row_sample_filter argument must be between 0.0 and 1.0"),
        (sample(-0.5), "row_sample_filter argument must be between 0.0 and 1.0"),
        (sample(f64::NAN), "row_sample_filter argument must be between 0.0 and 1.0"),
        (row_offset(-1), "Error in field 'cells_per_row_offset_filter' : argument must be >= 0"),
        (row_limit(0), "Error in field 'cells_per_row_limit_filter' : argument must be > 0"),
        (row_limit(-1), "Error in field 'cells_per_row_limit_filter' : argument must be > 0"),
        (column_limit(0), "Error in field 'cells_per_column_limit_filter' : argument must be > 0"),
        (
            column_limit(i32::MIN),
            "Error in field 'cells_per_column_limit_filter' : argument must be > 0",
        ),
        (label(""), "apply_label_transformer must match RE2([a-z0-9\\-]+), but found \"\""),
        (label("A"), "apply_label_transformer must match RE2([a-z0-9\\-]+), but found \"A\""),
        (label("a_b"), "apply_label_transformer must match RE2([a-z0-9\\-]+), but found \"a_b\""),
        (
            label("0123456789abcdef"),
            "apply_label_transformer must be at most 15 characters, but found \"0123456789abcdef\"",
        ),
        (
            chain(&[label("a"), label("b")]),
            "Error in field 'apply_label_transformer' : a Chain may have no more than one \
             sub-filter which contains a label",
        ),
        (
            chain(&[interleave(&[label("a"), pass()]), chain(&[pass(), label("b")])]),
            "Error in field 'apply_label_transformer' : a Chain may have no more than one \
             sub-filter which contains a label",
        ),
        (
            chain(&[pass(), row_limit(0)]),
            "Error in field 'cells_per_row_limit_filter' : argument must be > 0",
        ),
    ];
    for (filter, want) in cases {
        let error = refusal(&filter);
        assert_eq!((error.kind(), error.message()), (Code::InvalidArgument, want), "{filter:?}");
    }
}

#[test]
fn what_it_does_not_forbid_is_accepted() {
    for filter in [
        RowFilter { kind: None },
        chain(&[RowFilter { kind: None }, pass()]),
        condition(pass(), None, None),
        chain(&[sink(), pass()]),
        interleave(&[label("a"), label("b")]),
        chain(&[interleave(&[label("a"), label("b")]), pass()]),
        label("0123456789-abcd"),
        family(""),
        qualifier(""),
        value(""),
        columns("f", "[a", "a]"),
        columns("f", "(a", "a)"),
        columns("no-such-family", "", ""),
        values("", ""),
        times(0, 0),
        times(1000, 1000),
        times(1, 2001),
        times(-1, 0),
        sample(f64::MIN_POSITIVE),
        row_offset(0),
        row_limit(i32::MAX),
    ] {
        assert!(compile(&filter).is_ok(), "{filter:?}");
    }
}

/// A filter of `levels` levels.
fn nested(levels: usize) -> RowFilter {
    (1..levels).fold(pass(), |inner, level| match level % 3 {
        0 => chain(&[pass(), inner]),
        1 => interleave(&[inner, block()]),
        _ => condition(pass(), Some(inner), None),
    })
}

#[test]
fn twenty_levels_are_allowed_and_no_more() {
    assert!(compile(&nested(20)).is_ok());
    assert!(Filter::compile(&wire::to_generated(&nested(20))).is_ok());
    for levels in [21, 30, 49] {
        let errors = [
            refusal(&nested(levels)),
            Filter::compile(&wire::to_generated(&nested(levels))).unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error, Error::invalid_argument("Row filter exceeds maximum depth of 20"));
        }
    }
}

#[test]
fn depth_beyond_the_decoders_own_limit_has_the_same_words() {
    // Each round wraps the bytes in a chain of one: field 1 of RowFilter, field 1 of Chain.
    let mut encoded = pass().encode_to_vec();
    for _ in 0..1000 {
        for _ in 0..2 {
            let mut outer = vec![0x0A];
            prost::encoding::encode_varint(encoded.len() as u64, &mut outer);
            outer.append(&mut encoded);
            encoded = outer;
        }
    }
    assert!(encoded.len() < FILTER_BYTES_MAX);
    let error = Filter::decode(&encoded).unwrap_err();
    assert_eq!(error, Error::invalid_argument("Row filter exceeds maximum depth of 20"));
}

#[test]
fn a_generated_filter_deeper_than_the_stack_is_refused() {
    use v2::row_filter::{Chain, Filter as Generated};
    let mut filter = v2::RowFilter::default();
    for _ in 0..100_000 {
        filter = v2::RowFilter { filter: Some(Generated::Chain(Chain { filters: vec![filter] })) };
    }
    let error = Filter::compile(&filter).unwrap_err();
    assert_eq!(error, Error::invalid_argument("Row filter exceeds maximum depth of 20"));
    // Dropping it takes as deep a stack: taken apart by hand.
    while let Some(Generated::Chain(Chain { mut filters })) = filter.filter.take() {
        filter = filters.pop().unwrap();
    }
}

#[test]
fn more_than_20_kib_are_refused() {
    let of_size = |bytes: usize| {
        // A tag and a three-byte length.
        let filter = value(&"x".repeat(bytes - 4));
        assert_eq!(filter.encoded_len(), bytes);
        filter
    };
    assert!(compile(&of_size(FILTER_BYTES_MAX)).is_ok());
    let want = Error::invalid_argument("Row filter exceeds maximum size of 20480 bytes");
    assert_eq!(refusal(&of_size(FILTER_BYTES_MAX + 1)), want);
    let generated = wire::to_generated(&of_size(FILTER_BYTES_MAX + 1));
    assert_eq!(Filter::compile(&generated).unwrap_err(), want);
}

#[test]
fn automata_of_one_filter_share_a_budget() {
    let hungry: Vec<RowFilter> = (0..500).map(|i| value(&format!(r"\pL{{900}}{i}"))).collect();
    let error = refusal(&interleave(&hungry));
    assert_eq!(error.kind(), Code::InvalidArgument);
    let want = "Error in field 'value_regex_filter' : pattern too large - compile failed";
    assert!(error.message().starts_with(want), "{error}");
}

#[test]
fn bytes_that_are_no_filter_are_refused() {
    for garbage in [&[0x0A][..], &[0xFF; 3], &[0x08, 0x01]] {
        let error = Filter::decode(garbage).unwrap_err();
        assert_eq!(error.kind(), Code::InvalidArgument, "{error}");
        assert!(error.message().starts_with("Row filter is malformed"), "{error}");
    }
}

#[test]
fn a_kind_that_is_not_known_is_refused_and_does_not_pass_everything() {
    // Tag 100, an empty message; alone and in a chain.
    let unknown = [0xA2, 0x06, 0x00];
    let chained = [&[0x0A, 0x0A, 0x0A, 0x03][..], &unknown, &[0x0A, 0x03, 0x88, 0x01, 0x01]];
    for encoded in [unknown.to_vec(), chained.concat()] {
        let error = Filter::decode(&encoded).unwrap_err();
        assert_eq!(error.kind(), Code::Unimplemented, "{error}");
    }
    assert!(Filter::decode(&[]).is_ok());
}

proptest::proptest! {
    #[test]
    fn any_bytes_are_a_filter_or_a_refusal(
        encoded in proptest::collection::vec(proptest::num::u8::ANY, 0..60),
    ) {
        if let Ok(filter) = Filter::decode(&encoded) {
            let row = row("r", &["f:a@1000=x"]);
            filter.apply(row, &names(), &Fixed(0)).unwrap();
            filter.projection(FAMILIES.to_vec(), None);
            filter.row_ranges();
        }
    }
}
