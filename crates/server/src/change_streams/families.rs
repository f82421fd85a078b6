//! How the families of a table are shown to its change streams: made once for all of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tepui_bigtable::changes::message::{Families, Former};
use tepui_bigtable::schema::TableSchema;
use tepui_engine::cell::{FamilyId, SEQ_MAX};

use crate::catalog::Entry;
use crate::catalog::record::{FamilyRecord, TableRecord};

/// The families of a table, those that it had included. The schema is what writes go by, and is changed a moment before the catalog
/// shows the record: what is in one of the two is or was there.
pub(super) fn families_of(record: &TableRecord, schema: &TableSchema) -> Families {
    let until = |family: &FamilyRecord, dropped_at| Former {
        id: FamilyId(family.id),
        name: family.name.clone(),
        created_at: family.created_at,
        dropped_at,
    };
    let former = record.former_families.iter().map(|family| until(family, family.dropped_at));
    let recorded = record.families.iter().map(|family| until(family, SEQ_MAX));
    Families::new(schema, former.chain(recorded))
}

/// The families of tables that have streams open. A table of two thousand families, present and former, takes some 300 KB, and may have
/// a stream for each of a thousand partitions.
#[derive(Debug)]
pub(super) struct SharedFamilies<T> {
    /// By the name of the table.
    known: Mutex<HashMap<String, Known<T>>>,
}

/// What was made for a table, for as long as a stream has it.
#[derive(Debug)]
struct Known<T> {
    /// Of which record and schema: kept, so that no other one has its place in memory.
    of: (Weak<Entry<T>>, Weak<TableSchema>),
    families: Weak<Families>,
}

impl<T> Default for SharedFamilies<T> {
    fn default() -> Self {
        Self { known: Mutex::default() }
    }
}

impl<T> SharedFamilies<T> {
    /// The families of a table as it is now.
    pub(super) fn of(&self, entry: &Arc<Entry<T>>, schema: &Arc<TableSchema>) -> Arc<Families> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = |known: &&Known<T>| {
            let (of_entry, of_schema) = &known.of;
            std::ptr::eq(of_entry.as_ptr(), Arc::as_ptr(entry))
                && std::ptr::eq(of_schema.as_ptr(), Arc::as_ptr(schema))
        };
        let found = known.get(&entry.record.name).filter(is_same);
        if let Some(families) = found.and_then(|known| known.families.upgrade()) {
            return families;
        }
        let families = Arc::new(families_of(&entry.record, schema));
        known.retain(|_, known| known.families.strong_count() > 0);
        let of = (Arc::downgrade(entry), Arc::downgrade(schema));
        let made = Known { of, families: Arc::downgrade(&families) };
        known.insert(entry.record.name.clone(), made);
        families
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_streams_of_a_table_share_its_families_until_it_changes() {
        let entry = |name: &str| {
            let record = TableRecord { name: name.to_owned(), ..TableRecord::default() };
            Entry::of_record(record, ())
        };
        let (table, changed, other) = (entry("t"), entry("t"), entry("u"));
        let (schema, new_schema) = (Arc::new(TableSchema::new()), Arc::new(TableSchema::new()));
        let shared = SharedFamilies::default();
        let first = shared.of(&table, &schema);
        let is_first = |families: Arc<Families>| Arc::ptr_eq(&first, &families);
        assert!(is_first(shared.of(&table, &schema)));
        assert!(!is_first(shared.of(&other, &schema)));
        assert!(!is_first(shared.of(&table, &new_schema)));
        assert!(!is_first(shared.of(&changed, &schema)));
        drop(shared.of(&other, &new_schema));
        assert!(shared.known.lock().unwrap().len() <= 2, "what nobody has is let go");
    }
}
