//! The order and the pages of `ListBackups`.
//!
//! A page token holds where its page ended: the last backup's fields that backups are ordered by. So backups that
//! come and go between two pages move nothing: each of the others is listed once.

use std::cmp::Ordering;

use tepui_bigtable::error::{Error, Result};
use xxhash_rust::xxh3::xxh3_64;

use super::filter::Field;
use crate::api::admin::Backup;
use crate::limits::{BACKUP_ORDER_FIELDS_MAX, BACKUP_PAGE_TOKEN_CHARS_MAX};
use crate::page_tokens;

/// An order of backups: fields, and whether each descends. Backups that are equal by them are ordered by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order(Vec<(Field, bool)>);

impl Order {
    /// Reads `order_by`: `field [asc|desc], ...`; without one the newest come first.
    pub fn parse(text: &str) -> Result<Self> {
        let bad = |what: String| Error::invalid_argument(format!("order_by: {what}"));
        if text.trim().is_empty() {
            return Ok(Self(vec![(Field::StartTime, true)]));
        }
        let mut fields = Vec::new();
        for part in text.split(',') {
            let mut words = part.split_whitespace();
            let name = words.next().unwrap_or_default();
            let field = Field::parse(name)
                .ok_or_else(|| bad(format!("{name:?} is no field that backups are ordered by")))?;
            let descends = match words.next() {
                None => false,
                Some(word) if word.eq_ignore_ascii_case("asc") => false,
                Some(word) if word.eq_ignore_ascii_case("desc") => true,
                Some(word) => return Err(bad(format!("{word:?} is neither asc nor desc"))),
            };
            if let Some(word) = words.next() {
                return Err(bad(format!("{word:?} is not expected there")));
            }
            if fields.len() >= BACKUP_ORDER_FIELDS_MAX {
                return Err(bad(format!("it has more than {BACKUP_ORDER_FIELDS_MAX} fields")));
            }
            fields.push((field, descends));
        }
        Ok(Self(fields))
    }

    /// Which of two backups comes first.
    pub fn compare(&self, a: &Backup, b: &Backup) -> Ordering {
        let by_fields = self.0.iter().map(|(field, descends)| {
            let ordering = field.compare(a, b);
            if *descends { ordering.reverse() } else { ordering }
        });
        by_fields.fold(Ordering::Equal, Ordering::then).then_with(|| a.name.cmp(&b.name))
    }
}

/// Where a page ended.
#[derive(Clone, PartialEq, prost::Message)]
struct Place {
    /// Of the request but for its page, so that a token is not taken for another's.
    #[prost(fixed64, tag = "1")]
    request: u64,
    /// The last backup, as far as it is ordered by.
    #[prost(message, optional, tag = "2")]
    last: Option<Backup>,
}

/// What of a request must be the same for all of its pages.
pub fn request_hash(parent: &str, filter: &str, order_by: &str) -> u64 {
    xxh3_64([parent, filter, order_by].join("\0").as_bytes())
}

/// The token for what comes behind a backup.
pub fn token(request: u64, last: &Backup) -> String {
    let ordered_by = Backup {
        name: last.name.clone(),
        source_table: last.source_table.clone(),
        state: last.state,
        start_time: last.start_time,
        end_time: last.end_time,
        expire_time: last.expire_time,
        size_bytes: last.size_bytes,
        ..Backup::default()
    };
    page_tokens::encode(&Place { request, last: Some(ordered_by) })
}

/// The backup that a token stands behind; `None` for no token.
pub fn last_of(request: u64, token: &str) -> Result<Option<Backup>> {
    if token.is_empty() {
        return Ok(None);
    }
    let bad =
        || Error::invalid_argument("page_token is not one of this parent, filter and order_by");
    let place: Place = page_tokens::decode(token, BACKUP_PAGE_TOKEN_CHARS_MAX).ok_or_else(bad)?;
    if place.request != request {
        return Err(bad());
    }
    place.last.map(Some).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn backup(name: &str, size_bytes: i64, start: i64) -> Backup {
        let start_time = Some(prost_types::Timestamp { seconds: start, nanos: 0 });
        Backup { name: name.to_owned(), size_bytes, start_time, ..Backup::default() }
    }

    fn sorted(order_by: &str) -> Vec<String> {
        let order = Order::parse(order_by).unwrap();
        let mut all = vec![backup("b", 1, 10), backup("a", 1, 30), backup("c", 5, 20)];
        all.sort_by(|a, b| order.compare(a, b));
        all.into_iter().map(|backup| backup.name).collect()
    }

    #[test]
    fn backups_are_ordered_as_asked_and_the_newest_first_without_a_wish() {
        for (order_by, names) in [
            ("", ["a", "c", "b"]),
            ("name", ["a", "b", "c"]),
            (" name   desc ", ["c", "b", "a"]),
            ("start_time", ["b", "c", "a"]),
            ("size_bytes", ["a", "b", "c"]),
            ("size_bytes desc, start_time asc", ["c", "b", "a"]),
        ] {
            assert_eq!(sorted(order_by), names, "{order_by}");
        }
        let many = vec!["name"; BACKUP_ORDER_FIELDS_MAX + 1].join(",");
        for bad in ["color", "name up", "name desc desc", ",", "name,", &many] {
            let error = Order::parse(bad).unwrap_err();
            assert!(error.message().starts_with("order_by: "), "{bad}: {error}");
        }
    }

    #[test]
    fn a_token_is_good_for_its_request_alone() {
        let request = request_hash("parent", "name:x", "");
        let last = backup("n", 3, 4);
        let token = token(request, &last);
        assert_eq!(last_of(request, &token).unwrap(), Some(last));
        assert_eq!(last_of(request, "").unwrap(), None);
        assert!(last_of(request_hash("parent", "name:y", ""), &token).is_err());
        let long = "00".repeat(BACKUP_PAGE_TOKEN_CHARS_MAX);
        for bad in ["x", "zz", "0", &token[2..], &long, "projects/p", "\u{e9}\u{e9}"] {
            assert!(last_of(request, bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_token_is_read_or_refused(text in "\\PC{0,60}", bytes: Vec<u8>, request: u64) {
            let _ = (last_of(request, &text), last_of(request, &page_tokens::hex(&bytes)));
        }
    }
}
