//! What a fuzz target runs on entries of the catalog (see [`crate::fuzzing`]).

use prost::Message as _;
use tepui_bigtable::authorized_view::AuthorizedView;

use super::authorized_views::ViewRecord;
use super::record::TableRecord;
use super::{entry_of, families, resources, store};
use crate::bundles::{self, BundleRecord};

/// The key of an entry: of a resource whose kind has this number, of the table that the value names where none has it.
fn key(kind: u8, value: &[u8]) -> String {
    resources::key_of_kind(usize::from(kind), "a").unwrap_or_else(|| {
        let record = TableRecord::decode(value.get(1..).unwrap_or_default()).unwrap_or_default();
        format!("{}{}", store::PREFIX, record.name)
    })
}

/// Reads an entry, and makes of it what is made of it later.
pub(crate) fn entry(kind: u8, value: &[u8]) {
    let key = key(kind, value);
    if entry_of(&key, value).is_err() {
        return;
    }
    if let Ok(record) = TableRecord::decode_versioned(&key, value) {
        let written = record.encode_versioned();
        let again = TableRecord::decode_versioned(&key, &written).map(|it| it.encode_versioned());
        assert!(again.is_ok_and(|again| again == written), "what is written is read");
        let _ = families::schema(&record);
        let _ = record.change_stream_retention();
    }
    if let Ok(Some(view)) = resources::read::<ViewRecord>(&key, value) {
        let _ = AuthorizedView::compile(&view.value.subset());
    }
    if let Ok(Some(bundle)) = resources::read::<BundleRecord>(&key, value) {
        let _ = bundles::descriptors::link(&bundle.value.proto_descriptors);
    }
}

/// Whether that can be read.
#[cfg(test)]
pub(crate) fn is_good(kind: u8, value: &[u8]) -> bool {
    entry_of(&key(kind, value), value).is_ok()
}
