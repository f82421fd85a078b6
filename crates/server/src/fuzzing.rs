//! Entry points for fuzz targets; not a stable API. Each takes any bytes and must return.

use std::sync::LazyLock;

use http::header::{HeaderName, HeaderValue};
use prost_reflect::DescriptorPool;
use tepui_engine::tablet::TabletId;

use crate::api::admin::Backup;
use crate::backups::filter::Filter;
use crate::backups::page::{self, Order};
use crate::bundles::descriptors::{check_compatible, link};
use crate::call::Deadline;
use crate::hot_tablets::{Hot, HotTablets, Left};
use crate::page_tokens::hex;
use crate::services::operations::asked_done;

/// Some time: microseconds since 1970.
const NOW_MICROS: i64 = 1_700_000_000_000_000;

/// The schema that is changed where a corpus begins with it.
static REAL: LazyLock<Option<DescriptorPool>> =
    LazyLock::new(|| link(crate::server::DESCRIPTORS).ok());

/// Links the bytes as the descriptors of a schema bundle, and each half of them; and compares what can be linked.
pub fn schema_bundle(data: &[u8]) {
    let (first, second) = data.split_at(data.len() / 2);
    let [whole, first, second] = [data, first, second].map(|bytes| link(bytes).ok());
    if let Some(whole) = &whole {
        assert!(check_compatible(whole, whole).is_ok(), "who reads by a schema reads by it");
    }
    for (one, other) in [(&first, &second), (&whole, &REAL)] {
        if let (Some(one), Some(other)) = (one, other) {
            // An update that is refused is an answer, too.
            let _ = check_compatible(one, other);
            let _ = check_compatible(other, one);
        }
    }
}

/// An entry of the catalog, of the kind that the first byte says: as a start and `tepui check` read it.
pub fn catalog_entry(data: &[u8]) {
    if let Some((kind, value)) = data.split_first() {
        crate::catalog::fuzzing::entry(*kind, value);
    }
}

/// What administrators' requests have as text: page tokens, filters, orders; and the time that a call is given.
pub fn admin_text(data: &[u8]) {
    if let Ok(timeout) = HeaderValue::from_bytes(data) {
        let header = (HeaderName::from_static("grpc-timeout"), timeout);
        let _ = Deadline::of(&[header].into_iter().collect());
    }
    let text = std::str::from_utf8(data).unwrap_or_default();
    let listed = [hex(data), text.to_owned()].map(|end| after_token(&end));
    let _ = asked_done(text);
    let filter = Filter::parse(text);
    let order = Order::parse(text);
    let [one, other] = listed.map(Option::unwrap_or_default);
    if let Ok(filter) = filter {
        let _ = filter.admits(&one);
    }
    if let Ok(order) = order {
        let compared = order.compare(&one, &other);
        assert_eq!(compared, order.compare(&other, &one).reverse(), "it is an order");
    }
}

/// Reads page tokens of each kind that end so: a good one, what it stands for is not checked, begins them, since random
/// bytes are of no request. The backup that the one of backups stands behind.
fn after_token(end: &str) -> Option<Backup> {
    let request = page::request_hash("", "", "");
    let hot = Hot { tablet: TabletId(1), start_micros: 1, end_micros: 2, cpu_percent: 3.0 };
    let whole = Left::of("", None, None, "", NOW_MICROS);
    for begin in ["", &whole.map(|left| left.behind(&hot)).unwrap_or_default()] {
        if let Ok(left) = Left::of("", None, None, &format!("{begin}{end}"), NOW_MICROS) {
            let _ = left.list(&HotTablets::new(1, 1));
        }
    }
    let _ = page::last_of(request, end);
    let token = page::token(request, &Backup::default());
    page::last_of(request, &format!("{token}{end}")).ok().flatten()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message as _;

    use super::*;
    use crate::api::longrunning::Operation;
    use crate::backups::record::BackupRecord;
    use crate::catalog::record::{FamilyRecord, TableRecord};

    /// A value of each kind of entry, with the kind's number.
    fn entries() -> Vec<Vec<u8>> {
        let table = TableRecord {
            name: "projects/p/instances/i/tables/t".to_owned(),
            tablets: vec![1, 300],
            families: vec![FamilyRecord { name: "f".to_owned(), id: 1, ..FamilyRecord::default() }],
            ..TableRecord::default()
        };
        let shown = Backup { name: "b".to_owned(), ..Backup::default() };
        let backup = BackupRecord {
            shown: Some(shown),
            table: table.encode_to_vec().into(),
            engine_id: Some(7),
            ..BackupRecord::default()
        };
        let operation = Operation { name: "operations/1".to_owned(), ..Operation::default() };
        let of = |kind, message: Vec<u8>| [&[kind, 1][..], &message].concat();
        vec![
            [&[u8::MAX][..], &table.encode_versioned()].concat(),
            of(3, backup.encode_to_vec()),
            of(4, operation.encode_to_vec()),
        ]
    }

    #[test]
    fn what_is_changed_is_good_before() {
        assert!(REAL.is_some());
        let text = "size_bytes desc";
        assert!(Order::parse(text).is_ok() && after_token("").is_some());
        // The name of a backup, behind a good token.
        assert_eq!(after_token("12030a016e").unwrap().name, "n");
        for entry in entries() {
            assert!(crate::catalog::fuzzing::is_good(entry[0], &entry[1..]));
        }
    }

    #[test]
    fn a_field_of_a_real_schema_that_has_another_number_is_answered() {
        let mut data = crate::server::DESCRIPTORS.to_vec();
        schema_bundle(&data);
        let number = data.windows(4).position(|bytes| bytes == b"\x18\x01\x20\x01").unwrap();
        data[number + 1] = 99;
        assert!(link(&data).is_ok());
        schema_bundle(&data);
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(data in prop::collection::vec(any::<u8>(), 0..200)) {
            schema_bundle(&data);
            catalog_entry(&data);
            admin_text(&data);
        }

        #[test]
        fn any_text_is_answered(
            text in "((done|name|state|size_bytes|start_time|AND|OR|NOT|desc|[()<>=!:,\"0-9TZ.-]) ?){0,20}",
        ) {
            admin_text(text.as_bytes());
        }

        #[test]
        fn a_damaged_entry_is_answered(which: prop::sample::Index, at: prop::sample::Index, byte: u8) {
            let mut entry = which.get(&entries()).clone();
            let at = at.index(entry.len());
            entry[at] = byte;
            catalog_entry(&entry);
        }
    }
}
