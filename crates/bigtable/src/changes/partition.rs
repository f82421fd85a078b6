//! Partitions of a change stream: row ranges `[start, end)` in the API's form, and tokens laid over one.

use bytes::Bytes;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::row_range::{EndKey, StartKey};
use tepui_engine::cell::{RowRange, Seq};

use super::token::Token;
use crate::error::{Error, Result};
use crate::limits;

/// Tokens of one request, at most: a merge of more partitions than a table has.
pub const TOKENS_MAX: usize = 10_000;

/// Their field.
const TOKENS_FIELD: &str = "continuation_tokens";

/// Refuses too many tokens.
pub fn check_token_count(count: usize) -> Result<()> {
    if count > TOKENS_MAX {
        return Err(Error::field(TOKENS_FIELD, format!("more than {TOKENS_MAX} tokens")));
    }
    Ok(())
}

/// The partition that covers these rows. Both keys are spelled out, empty ones too.
pub fn to_message(range: &RowRange) -> v2::StreamPartition {
    let row_range = v2::RowRange {
        start_key: Some(StartKey::StartKeyClosed(range.start.clone())),
        end_key: Some(EndKey::EndKeyOpen(range.end.clone())),
    };
    v2::StreamPartition { row_range: Some(row_range) }
}

/// The rows of a partition; `field` is the request's field, for the error.
pub fn from_message(field: &str, partition: Option<&v2::StreamPartition>) -> Result<RowRange> {
    let given = partition.and_then(|partition| partition.row_range.as_ref());
    let given = given.ok_or_else(|| Error::field(field, "row_range must be set"))?;
    let start = match &given.start_key {
        None => Bytes::new(),
        Some(StartKey::StartKeyClosed(key)) => key.clone(),
        Some(StartKey::StartKeyOpen(_)) => {
            return Err(Error::field(field, "a partition's start key is closed"));
        }
    };
    let end = match &given.end_key {
        None => Bytes::new(),
        Some(EndKey::EndKeyOpen(key)) => key.clone(),
        Some(EndKey::EndKeyClosed(_)) => {
            return Err(Error::field(field, "a partition's end key is open"));
        }
    };
    for key in [&start, &end] {
        if !key.is_empty() {
            limits::check_row_key(key).map_err(|e| Error::field(field, e.message()))?;
        }
    }
    let range = RowRange::new(start, end);
    if range.is_empty() {
        return Err(Error::field(field, "the row range is inverted or empty"));
    }
    Ok(range)
}

/// Parts of a partition, in row order and without gaps, and the position of each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Positions(Vec<(RowRange, Seq)>);

impl Positions {
    /// One position for all of a partition.
    pub fn one(range: RowRange, position: Seq) -> Self {
        Self(vec![(range, position)])
    }

    /// The positions of tokens whose partitions cover `range` exactly, each once.
    pub fn of_tokens(
        table: u64,
        range: &RowRange,
        tokens: &v2::StreamContinuationTokens,
    ) -> Result<Self> {
        if tokens.tokens.is_empty() {
            return Err(Error::field(TOKENS_FIELD, "must have a token"));
        }
        check_token_count(tokens.tokens.len())?;
        let mut parts = Vec::with_capacity(tokens.tokens.len());
        for token in &tokens.tokens {
            let part = from_message("continuation_tokens.partition", token.partition.as_ref())?;
            let position = Token::parse(&token.token)?.position_in(table, &part)?;
            parts.push((part, position));
        }
        parts.sort_by(|a, b| a.0.start.cmp(&b.0.start));
        let mut at = Some(&range.start);
        for (part, _) in &parts {
            if at != Some(&part.start) {
                at = None;
                break;
            }
            at = Some(&part.end);
        }
        // Only the last part can end where the partition does: an end without a key starts no other part.
        let is_first_end = parts.iter().filter(|(part, _)| part.end == range.end).count() == 1;
        if at != Some(&range.end) || !is_first_end {
            return Err(Error::field(
                TOKENS_FIELD,
                "the partitions of the tokens do not cover the request's partition exactly",
            ));
        }
        Ok(Self(parts))
    }

    /// The least of the positions: where to begin to read.
    pub fn least(&self) -> Seq {
        self.0.iter().map(|(_, position)| *position).min().unwrap_or(0)
    }

    /// Whether a change of this row comes after the row's position.
    pub fn is_after(&self, row: &[u8], seq: Seq) -> bool {
        let at = self.0.partition_point(|(part, _)| part.start.as_ref() <= row);
        let part = at.checked_sub(1).and_then(|at| self.0.get(at));
        part.is_some_and(|(part, position)| part.contains(row) && seq > *position)
    }

    /// The same of those rows that `range` has too, with one position for them: the least.
    pub fn within(&self, range: &RowRange) -> Option<(RowRange, Seq)> {
        let mut found: Option<(RowRange, Seq)> = None;
        for (part, position) in &self.0 {
            let part = part.intersect(range);
            if part.is_empty() {
                continue;
            }
            found = Some(match found {
                None => (part, *position),
                Some((before, least)) => {
                    (RowRange::new(before.start, part.end), least.min(*position))
                }
            });
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;

    fn range(start: &str, end: &str) -> RowRange {
        RowRange::new(start.to_owned(), end.to_owned())
    }

    /// Start, end, position.
    type Part = (&'static str, &'static str, Seq);

    fn tokens(parts: &[Part]) -> v2::StreamContinuationTokens {
        let token = |(start, end, position): &Part| v2::StreamContinuationToken {
            partition: Some(to_message(&range(start, end))),
            token: Token::new(7, &range(start, end), *position).to_string(),
        };
        v2::StreamContinuationTokens { tokens: parts.iter().map(token).collect() }
    }

    #[test]
    fn a_partition_survives_its_message_and_bad_ones_are_refused() {
        for range in [range("", ""), range("a", ""), range("", "b"), range("a", "b")] {
            assert_eq!(from_message("partition", Some(&to_message(&range))).unwrap(), range);
        }
        let with = |start_key, end_key| v2::StreamPartition {
            row_range: Some(v2::RowRange { start_key, end_key }),
        };
        let key = || Bytes::from_static(b"k");
        for bad in [
            None,
            Some(v2::StreamPartition { row_range: None }),
            Some(with(Some(StartKey::StartKeyOpen(key())), None)),
            Some(with(None, Some(EndKey::EndKeyClosed(key())))),
            Some(to_message(&range("b", "a"))),
            Some(to_message(&range("a", "a"))),
            Some(to_message(&range(&"x".repeat(5_000), ""))),
        ] {
            let error = from_message("partition", bad.as_ref()).unwrap_err();
            assert_eq!(error.kind(), Code::InvalidArgument, "{bad:?}");
            assert!(error.message().contains("'partition'"), "{error}");
        }
    }

    #[test]
    fn tokens_must_cover_the_partition_exactly() {
        let good: [(&[Part], RowRange); 4] = [
            (&[("", "", 5)], range("", "")),
            (&[("a", "c", 5)], range("a", "c")),
            (&[("c", "", 9), ("a", "c", 5)], range("a", "")),
            (&[("", "b", 9), ("c", "", 3), ("b", "c", 5)], range("", "")),
        ];
        for (parts, whole) in good {
            let found = Positions::of_tokens(7, &whole, &tokens(parts)).unwrap();
            assert_eq!(found.least(), parts.iter().map(|part| part.2).min().unwrap());
        }
        let bad: [(&[Part], RowRange); 8] = [
            (&[], range("", "")),
            (&[("a", "b", 5)], range("a", "c")),
            (&[("a", "c", 5)], range("a", "b")),
            (&[("a", "b", 5), ("c", "d", 5)], range("a", "d")),
            (&[("a", "c", 5), ("b", "d", 5)], range("a", "d")),
            (&[("a", "b", 5), ("a", "b", 5)], range("a", "b")),
            (&[("", "", 5), ("", "", 5)], range("", "")),
            (&[("a", "", 5), ("", "a", 5)], range("a", "")),
        ];
        for (parts, whole) in bad {
            let error = Positions::of_tokens(7, &whole, &tokens(parts)).unwrap_err();
            assert_eq!(error.kind(), Code::InvalidArgument, "{parts:?}");
        }
        let other_table = Positions::of_tokens(8, &range("", ""), &tokens(&[("", "", 5)]));
        assert_eq!(other_table.unwrap_err().kind(), Code::InvalidArgument);
    }

    #[test]
    fn each_row_has_the_position_of_its_part() {
        let whole = range("a", "");
        let parts = tokens(&[("a", "c", 5), ("c", "", 9)]);
        let positions = Positions::of_tokens(7, &whole, &parts).unwrap();
        for (row, seq, is_after) in
            [("a", 5, false), ("b", 6, true), ("c", 6, false), ("z", 10, true), ("A", 99, false)]
        {
            assert_eq!(positions.is_after(row.as_bytes(), seq), is_after, "{row} {seq}");
        }
        assert_eq!(positions.within(&range("b", "d")), Some((range("b", "d"), 5)));
        assert_eq!(positions.within(&range("d", "")), Some((range("d", ""), 9)));
        assert_eq!(positions.within(&range("", "a")), None);
    }
}
