//! Continuation tokens: a position in a partition of a table's change stream, as text that clients keep.
//!
//! ```text
//! hexadecimal of: version u8 = 1 | table u64 | partition u64 | position u64 | check u32     all big-endian
//!
//! partition  xxh3-64 of the length of the start key, u64 LE, and both keys
//! check      the low half of xxh3-64 of all before it
//! ```
//!
//! A token says for which life of a table and for which partition it was made: one that is offered with another would
//! leave changes out without a trace. It survives restarts, since positions do.

use std::fmt;

use tepui_engine::cell::{RowRange, Seq};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::error::{Error, Result};

const VERSION: u8 = 1;

/// Bytes of a token before they are text.
const TOKEN_BYTES: usize = 1 + 3 * 8 + 4;

/// A position in a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token {
    table: u64,
    partition: u64,
    position: Seq,
}

impl Token {
    /// The token of a table (a number that no other life of it has), a partition of it, and a position.
    pub fn new(table: u64, partition: &RowRange, position: Seq) -> Self {
        Self { table, partition: hash(partition), position }
    }

    /// Reads a token's text; `INVALID_ARGUMENT` where that is none.
    pub fn parse(text: &str) -> Result<Self> {
        let bad = || {
            Error::field(
                "continuation_tokens",
                "not a token that this server has made, or a damaged one",
            )
        };
        let text = text.as_bytes();
        if text.len() != 2 * TOKEN_BYTES {
            return Err(bad());
        }
        let mut bytes = [0; TOKEN_BYTES];
        for (byte, digits) in bytes.iter_mut().zip(text.chunks_exact(2)) {
            let mut value = 0;
            for digit in digits {
                let digit = match digit {
                    b'0'..=b'9' => digit - b'0',
                    b'a'..=b'f' => digit - b'a' + 10,
                    _ => return Err(bad()),
                };
                value = value * 16 + digit;
            }
            *byte = value;
        }
        let (covered, check) = bytes.split_last_chunk::<4>().ok_or_else(bad)?;
        let (version, numbers) = covered.split_first().ok_or_else(bad)?;
        if *version != VERSION || check_of(covered) != *check {
            return Err(bad());
        }
        let mut numbers = numbers.as_chunks::<8>().0.iter().map(|n| u64::from_be_bytes(*n));
        let mut next = || numbers.next().ok_or_else(bad);
        Ok(Self { table: next()?, partition: next()?, position: next()? })
    }

    /// The position, if the token is of this table and partition.
    pub fn position_in(self, table: u64, partition: &RowRange) -> Result<Seq> {
        if self.table != table {
            return Err(Error::field("continuation_tokens", "a token is of another table"));
        }
        if self.partition != hash(partition) {
            return Err(Error::field("continuation_tokens", "a token is of another partition"));
        }
        Ok(self.position)
    }
}

fn hash(partition: &RowRange) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(&(partition.start.len() as u64).to_le_bytes());
    hash.update(&partition.start);
    hash.update(&partition.end);
    hash.digest()
}

fn check_of(covered: &[u8]) -> [u8; 4] {
    (xxh3_64(covered) as u32).to_be_bytes()
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = vec![VERSION];
        for number in [self.table, self.partition, self.position] {
            bytes.extend_from_slice(&number.to_be_bytes());
        }
        let check = check_of(&bytes);
        bytes.extend_from_slice(&check);
        bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::error::Code;

    fn range(start: &[u8], end: &[u8]) -> RowRange {
        RowRange::new(start.to_vec(), end.to_vec())
    }

    proptest! {
        #[test]
        fn tokens_survive_the_round_trip_and_no_change_of_one_is_taken(
            table: u64, position: u64, start in "[a-c]{0,3}", end in "[a-c]{0,3}",
            at in any::<prop::sample::Index>(), to in "[0-9a-fg]",
        ) {
            let range = range(start.as_bytes(), end.as_bytes());
            let text = Token::new(table, &range, position).to_string();
            prop_assert_eq!(Token::parse(&text).unwrap().position_in(table, &range).unwrap(), position);
            let at = at.index(text.len());
            let mut changed = text.clone();
            changed.replace_range(at..=at, &to);
            prop_assert!(changed == text || Token::parse(&changed).is_err());
            prop_assert!(Token::parse(&text[..at]).is_err());
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC{0,80}", hex in "[0-9a-f]{58}") {
            let _ = Token::parse(&text);
            let _ = Token::parse(&hex);
        }
    }

    #[test]
    fn a_token_is_of_one_table_and_one_partition() {
        let token = Token::new(7, &range(b"a", b"b"), 42);
        assert_eq!(token.position_in(7, &range(b"a", b"b")).unwrap(), 42);
        for (table, range) in [
            (8, range(b"a", b"b")),
            (7, range(b"a", b"")),
            (7, range(b"", b"ab")),
            (7, range(b"ab", b"")),
        ] {
            assert_eq!(token.position_in(table, &range).unwrap_err().kind(), Code::InvalidArgument);
        }
    }

    #[test]
    fn the_text_of_a_token_stays_readable() {
        let text = "01000000000000000756d0d8b5d6a4dc7a000000000000002a00000000";
        assert_eq!(text.len(), 2 * TOKEN_BYTES);
        let made = Token::new(7, &range(b"a", b"b"), 42).to_string();
        assert!(
            made.starts_with("010000000000000007") && made.contains("000000000000002a"),
            "{made}"
        );
        assert_eq!(made.len(), text.len());
    }
}
