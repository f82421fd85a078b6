//! What changes from one key to the next, and the short separators between blocks.

use crate::cell::{KeyView, SUFFIX_LEN};

use crate::codec::common_prefix;

/// Which parts of a key differ from the key before it. A part that changes changes those after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Change {
    /// The row.
    pub(super) row: bool,
    /// The row or the family.
    pub(super) family: bool,
    /// The row, the family or the qualifier.
    pub(super) column: bool,
}

impl Change {
    /// From the encoded key `last` (empty for none), whose row prefix is `last_row_len` bytes, to `key`.
    pub(super) fn between(last: &[u8], last_row_len: usize, key: KeyView<'_>) -> Self {
        let family_range = last_row_len..last_row_len + 4;
        let row = last.is_empty() || last.get(..last_row_len) != Some(key.row_prefix());
        let family = row || last.get(family_range.clone()) != key.bytes().get(family_range.clone());
        let column = family
            || last.get(..last.len().saturating_sub(SUFFIX_LEN)) != Some(key.column_prefix());
        Self { row, family, column }
    }
}

/// A short string `s` with `last < s < next`, for keys `last < next`; without a `next`, one just past
/// `last`. It never equals a key: an index is searched for "the first separator *greater* than the target",
/// and a target that is a prefix of `next` is sent to the block of `next` at once.
///
/// ```text
/// last   a p p l e 00 01 ...           the shortest prefix of `next` that is greater than `last`
/// next   a p r i c o t 00 01 ...
/// s      a p r
/// ```
///
/// Keys are never prefixes of one another, so where the first difference is the last byte of `next`,
/// `last` with a zero byte after it lies between them.
pub(super) fn separator(last: &[u8], next: Option<&[u8]>) -> Vec<u8> {
    if let Some(next) = next {
        let shared = common_prefix(last, next);
        if shared + 1 < next.len() {
            return next.get(..=shared).unwrap_or_default().to_vec();
        }
    }
    let mut out = Vec::with_capacity(last.len() + 1);
    out.extend_from_slice(last);
    out.push(0);
    out
}

/// The row that a separator names, which may be a prefix of one: everything up to the terminator,
/// unescaped.
pub(super) fn separator_row(separator: &[u8]) -> Vec<u8> {
    let mut row = Vec::with_capacity(separator.len());
    let mut bytes = separator.iter();
    while let Some(byte) = bytes.next() {
        if *byte == 0 && bytes.next() != Some(&0xFF) {
            break;
        }
        row.push(*byte);
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::{FamilyId, Kind, encode_key};
    use proptest::prelude::*;

    fn key(row: &[u8], qualifier: &[u8], timestamp: i64, seq: u64) -> Vec<u8> {
        let mut out = Vec::new();
        encode_key(row, FamilyId(1), Some(qualifier), timestamp, seq, Kind::Value, &mut out);
        out
    }

    proptest! {
        #[test]
        fn separators_lie_strictly_between_their_keys(
            a in (prop::collection::vec(0u8..3, 0..4), prop::collection::vec(0u8..3, 0..3), 0i64..2, 0u64..3),
            b in (prop::collection::vec(0u8..3, 0..4), prop::collection::vec(0u8..3, 0..3), 0i64..2, 0u64..3),
        ) {
            let (x, y) = (key(&a.0, &a.1, a.2, a.3), key(&b.0, &b.1, b.2, b.3));
            prop_assume!(x != y);
            let (last, next) = if x < y { (x, y) } else { (y, x) };
            let s = separator(&last, Some(&next));
            prop_assert!(last < s && s < next);
            let rows = (
                KeyView::parse(&last).unwrap().row(),
                KeyView::parse(&next).unwrap().row(),
            );
            let row = separator_row(&s);
            prop_assert!(rows.0 <= row && row <= rows.1);
            prop_assert!(separator(&last, None) > last);
        }
    }
}
