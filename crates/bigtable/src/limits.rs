//! Bigtable's documented limits on data requests, each with its unit and its reason, and the checks
//! that name the limit to whoever passed it. The limits of row filters stand with the filters, those
//! of schemas (apart from family names) with the catalog.
//!
//! The numbers are Bigtable's, not ours: a program that works here must work there.

use crate::error::{Error, Result};

/// Bytes of a row key, at most. Keys are repeated in every index; longer ones belong into values.
pub const ROW_KEY_BYTES_MAX: usize = 4 << 10;

/// Bytes of a column qualifier, at most.
pub const QUALIFIER_BYTES_MAX: usize = 16 << 10;

/// Bytes of the value of one cell, at most.
pub const VALUE_BYTES_MAX: usize = 100 << 20;

/// Characters of a column family's name, at most.
pub const FAMILY_NAME_CHARS_MAX: usize = 64;

/// Mutations of one request, at most; all entries of a `MutateRows` count together, each list of a `CheckAndMutateRow` by
/// itself, of which one is applied. It bounds the work done under one row lock and the records of one log batch.
pub const MUTATIONS_MAX: usize = 100_000;

/// Row keys and ranges of one `ReadRows`, at most. The service refuses row sets of more than a megabyte: with keys of
/// three bytes, two and one, as short as different ones can be, that is 223,000 rows, so a program that works there has
/// no more. Fewer would refuse such programs; more would only hold a core for longer, which sorts them in one go, and
/// hold more memory: a range takes two bytes on the wire, 80 when it is decoded and 64 in the sorted list, so this many
/// take 36 MB at most.
pub const ROW_SET_MAX: usize = 250_000;

/// Rules of one `ReadModifyWriteRow`, at most.
pub const RULES_MAX: usize = 100_000;

/// Bytes that a mutation, an entry of a `MutateRows` or a rule takes at most in memory, beyond its names and values, from when it is
/// compiled until it is durable.
pub const MUTATION_BYTES: usize = 128;

/// The same of a row key or a range of rows that is read.
pub const ROW_RANGE_BYTES: usize = 64;

/// Bytes of one request, at most. The transport refuses what is larger before it is decoded; what is
/// written to one row is counted here too, since one request is at most one batch per row.
pub const REQUEST_BYTES_MAX: usize = 256 << 20;

/// Bytes of one row that a read returns, at most.
pub const ROW_READ_BYTES_MAX: u64 = tepui_engine::limits::ROW_READ_BYTES_MAX;

/// Bytes of one response message that clients accept by default: gRPC's own limit, which clients in
/// emulator mode do not raise. Two answers may be larger: a row of `ReadRows` for clients that take it in one message
/// only, and that of `ReadModifyWriteRow`, which is one message by the API: Bigtable does not refuse it, and most of its
/// clients take up to 256 MiB.
pub const RESPONSE_BYTES_MAX: usize = 4 << 20;

/// Seconds of a duration of protobuf, at most: ten thousand years. A longer one has no text in JSON.
pub const DURATION_SECONDS_MAX: i64 = 315_576_000_000;

/// The granularity of cell timestamps, in microseconds: milliseconds, the only one that tables have here.
pub const TIMESTAMP_GRANULARITY_MICROS: i64 = 1_000;

/// Refuses an empty or overlong row key.
pub fn check_row_key(row: &[u8]) -> Result<()> {
    if row.is_empty() {
        return Err(Error::invalid_argument("Row keys must be non-empty"));
    }
    check_bytes("Row key", row.len(), ROW_KEY_BYTES_MAX, "4 KiB")
}

/// Refuses an overlong column qualifier. The empty one is as good as any.
pub fn check_qualifier(qualifier: &[u8]) -> Result<()> {
    check_bytes("Column qualifier", qualifier.len(), QUALIFIER_BYTES_MAX, "16 KiB")
}

/// Refuses an oversized cell value.
pub fn check_value_bytes(len: usize) -> Result<()> {
    check_bytes("Cell value", len, VALUE_BYTES_MAX, "100 MiB")
}

/// Refuses a request of too many bytes.
pub fn check_request_bytes(len: usize) -> Result<()> {
    check_bytes("Request", len, REQUEST_BYTES_MAX, "256 MiB")
}

/// Refuses a request without mutations, or with too many.
pub fn check_mutation_count(count: usize) -> Result<()> {
    if count == 0 {
        return Err(Error::invalid_argument("No mutations provided"));
    }
    check_mutation_count_max(count)
}

/// Refuses too many mutations.
pub fn check_mutation_count_max(count: usize) -> Result<()> {
    if count > MUTATIONS_MAX {
        return Err(Error::invalid_argument(format!(
            "Too many mutations: {count} provided; limit {MUTATIONS_MAX}"
        )));
    }
    Ok(())
}

/// Refuses more mutations than the two lists of a `CheckAndMutateRow` may have together.
pub fn check_mutation_count_of_both(count: usize) -> Result<()> {
    if count > 2 * MUTATIONS_MAX {
        return Err(Error::invalid_argument(format!(
            "Too many mutations: {count} provided; limit {MUTATIONS_MAX} in each of true_mutations \
             and false_mutations"
        )));
    }
    Ok(())
}

/// Refuses too many row keys and ranges.
pub fn check_row_set(count: usize) -> Result<()> {
    if count > ROW_SET_MAX {
        return Err(Error::invalid_argument(format!(
            "Too many row keys and row ranges: {count} provided; limit {ROW_SET_MAX}; \
             divide them among several requests"
        )));
    }
    Ok(())
}

/// Refuses a `ReadModifyWriteRow` without rules, or with too many.
pub fn check_rule_count(count: usize) -> Result<()> {
    if count == 0 {
        return Err(Error::invalid_argument("No rules provided"));
    }
    check_rule_count_max(count)
}

/// Refuses too many rules.
pub fn check_rule_count_max(count: usize) -> Result<()> {
    if count > RULES_MAX {
        return Err(Error::invalid_argument(format!(
            "Too many rules: {count} provided; limit {RULES_MAX}"
        )));
    }
    Ok(())
}

/// Refuses a family name that no family can have, so that a typing error is told from a missing family.
pub fn check_family_name(name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(Error::invalid_argument("Column family names must be non-empty"));
    }
    if name.len() > FAMILY_NAME_CHARS_MAX {
        return Err(Error::invalid_argument(format!(
            "Column family name is too long: {} characters provided; limit {FAMILY_NAME_CHARS_MAX}",
            name.chars().count()
        )));
    }
    if let Some(bad) = name.chars().find(|c| !is_family_name_char(*c)) {
        return Err(Error::invalid_argument(format!(
            "Invalid column family name {name:?}: {bad:?} is not one of [-_.a-zA-Z0-9]"
        )));
    }
    Ok(())
}

fn is_family_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
}

fn check_bytes(what: &str, len: usize, max: usize, max_in_words: &str) -> Result<()> {
    if len > max {
        return Err(Error::invalid_argument(format!(
            "{what} is too large: {len} bytes provided; limit {max} bytes ({max_in_words})"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;

    #[test]
    fn sizes_at_the_limit_pass_and_one_more_names_the_limit() {
        type Check = fn(usize) -> Result<()>;
        let cases: [(Check, usize, &str); 7] = [
            (|n| check_row_key(&vec![b'r'; n]), 4_096, "limit 4096 bytes (4 KiB)"),
            (|n| check_qualifier(&vec![b'q'; n]), 16_384, "limit 16384 bytes (16 KiB)"),
            (check_value_bytes, 104_857_600, "limit 104857600 bytes (100 MiB)"),
            (check_request_bytes, 268_435_456, "limit 268435456 bytes (256 MiB)"),
            (check_mutation_count, 100_000, "limit 100000"),
            (check_rule_count, 100_000, "limit 100000"),
            (check_row_set, 250_000, "limit 250000"),
        ];
        for (check, max, names) in cases {
            assert_eq!(check(max), Ok(()));
            let error = check(max + 1).unwrap_err();
            assert_eq!(error.kind(), Code::InvalidArgument);
            assert!(error.message().contains(names), "{error}");
        }
    }

    #[test]
    fn family_names_are_checked_by_length_and_characters() {
        check_family_name("a-Z_0.9").unwrap();
        check_family_name(&"f".repeat(64)).unwrap();
        for (bad, says) in [
            (String::new(), "non-empty"),
            ("f".repeat(65), "65 characters provided; limit 64"),
            ("fam:x".to_owned(), "':' is not one of"),
            ("fäm".to_owned(), "is not one of"),
        ] {
            let error = check_family_name(&bad).unwrap_err();
            assert_eq!(error.kind(), Code::InvalidArgument);
            assert!(error.message().contains(says), "{error}");
        }
    }

    #[test]
    fn empty_row_key_and_empty_lists_are_refused() {
        assert_eq!(check_row_key(b"").unwrap_err().message(), "Row keys must be non-empty");
        assert_eq!(check_mutation_count(0).unwrap_err().message(), "No mutations provided");
        assert_eq!(check_rule_count(0).unwrap_err().message(), "No rules provided");
    }
}
