//! Schema bundles: protobuf schemas that a table keeps for those who read its values.
//!
//! A bundle belongs to a table of one incarnation. It goes with the table: where a table is deleted, its bundles
//! are not found, and are there again if it is undeleted; a later table of the same name does not see them, and
//! replaces those that it makes itself. What nobody can see any more is removed at the next start.

mod descriptors;
mod named;

use std::sync::Arc;

use bytes::Bytes;
use tepui_bigtable::error::{Error, Result};
use tepui_bigtable::value_type;

use crate::api::admin;
use crate::api::admin::schema_bundle::Type;
use crate::catalog::record::TableRecord;
use crate::catalog::resources::{Change, Resource, Resources, Stored, missing};
use crate::limits::SCHEMA_BUNDLES_MAX;
use named::Named;

/// Between a table's name and a bundle's id.
pub const COLLECTION: &str = "schemaBundles";

/// What is kept of a bundle.
#[derive(Clone, PartialEq, prost::Message)]
pub struct BundleRecord {
    /// The table's.
    #[prost(fixed64, tag = "1")]
    pub table_incarnation: u64,
    /// A serialized `FileDescriptorSet`, as the client gave it.
    #[prost(bytes = "bytes", tag = "2")]
    pub proto_descriptors: Bytes,
}

impl Resource for BundleRecord {
    const KIND: &'static str = "schema_bundle";
    const NOUN: &'static str = "schema bundle";
}

/// The schema bundles of all tables.
#[derive(Debug, Clone)]
pub struct Bundles {
    resources: Arc<Resources>,
}

impl Bundles {
    /// Those among these resources.
    pub fn new(resources: Arc<Resources>) -> Self {
        Self { resources }
    }

    /// Removes the bundles of tables that are gone for good: those of which `incarnation_of` gives another
    /// incarnation for the table's name, or none. Blocks.
    pub fn sweep(&self, incarnation_of: impl Fn(&str) -> Option<u64>) -> Result<()> {
        self.resources.change(|change| {
            for (name, stored) in self.resources.list::<BundleRecord>("", None, usize::MAX) {
                let incarnation = split(&name).and_then(|(table, _)| incarnation_of(table));
                if incarnation != Some(stored.value.table_incarnation) {
                    change.delete_under(&name);
                }
            }
            Ok(())
        })
    }

    /// Creates a bundle of a table. Blocks.
    pub fn create(
        &self,
        table: &TableRecord,
        name: &str,
        bundle: &admin::SchemaBundle,
    ) -> Result<admin::SchemaBundle> {
        let proto_descriptors = descriptors_of(bundle)?;
        descriptors::link(&proto_descriptors)?;
        self.resources.change(|change| {
            let prefix = prefix(&table.name);
            let siblings = self.resources.list::<BundleRecord>(&prefix, None, usize::MAX);
            let of_table = siblings.iter().filter(|(_, stored)| is_of(stored, table));
            if of_table.count() >= SCHEMA_BUNDLES_MAX {
                return Err(Error::failed_precondition(format!(
                    "table {:?} has {SCHEMA_BUNDLES_MAX} schema bundles, the most that one can have",
                    table.name
                )));
            }
            let before = change.get::<BundleRecord>(name);
            if before.is_some_and(|before| !is_of(&before, table)) {
                change.delete_under(name);
            }
            let table_incarnation = table.incarnation;
            change.create(name, BundleRecord { table_incarnation, proto_descriptors })
        })?;
        self.get(table, name)
    }

    /// The bundle of a name.
    pub fn get(&self, table: &TableRecord, name: &str) -> Result<admin::SchemaBundle> {
        let found = self.resources.get::<BundleRecord>(name);
        let found = found.filter(|stored| is_of(stored, table));
        found.map(|stored| shown(name, &stored)).ok_or_else(|| missing::<BundleRecord>(name))
    }

    /// Up to `limit` bundles of a table by name, those after the name `after` only.
    pub fn list(
        &self,
        table: &TableRecord,
        after: Option<&str>,
        limit: usize,
    ) -> Vec<admin::SchemaBundle> {
        let all = self.resources.list::<BundleRecord>(&prefix(&table.name), after, usize::MAX);
        let of_table = all.iter().filter(|(_, stored)| is_of(stored, table));
        of_table.take(limit).map(|(name, stored)| shown(name, stored)).collect()
    }

    /// Checks a family's value type, and that the schemas are there that it names: `FAILED_PRECONDITION` where a bundle is
    /// not, or what is named of it.
    pub fn check_named(
        &self,
        table: &TableRecord,
        family: &str,
        of_family: Option<&admin::Type>,
    ) -> Result<()> {
        value_type::check(of_family)
            .map_err(|error| error.context(format_args!("column family {family:?}")))?;
        for (bundle, schema) in named::in_type(of_family) {
            let missing = |what: String| {
                Error::failed_precondition(format!(
                    "column family {family:?}: value_type names schema bundle {bundle:?}, {what}"
                ))
            };
            let name = format!("{}{bundle}", prefix(&table.name));
            let found = self.resources.get::<BundleRecord>(&name);
            let found = found.filter(|stored| is_of(stored, table)).ok_or_else(|| {
                missing(
                    "which is not there: create it in the table first, then set the type"
                        .to_owned(),
                )
            })?;
            let pool = descriptors::link(&found.value.proto_descriptors)?;
            let is_there = match schema {
                Named::Message(name) => pool.get_message_by_name(name).is_some(),
                Named::Enum(name) => pool.get_enum_by_name(name).is_some(),
            };
            if !is_there {
                return Err(missing(format!("which has no {schema}")));
            }
        }
        Ok(())
    }

    /// Replaces a bundle's schema by one that is compatible, or by any where `ignore_warnings`; `ABORTED` where the
    /// etag is another. Blocks.
    pub fn update(
        &self,
        table: &TableRecord,
        bundle: &admin::SchemaBundle,
        ignore_warnings: bool,
    ) -> Result<admin::SchemaBundle> {
        let name = &bundle.name;
        let proto_descriptors = descriptors_of(bundle)?;
        let new = descriptors::link(&proto_descriptors)?;
        self.resources.change(|change| {
            let before = expected(change, table, name, &bundle.etag)?;
            if !ignore_warnings {
                let old = descriptors::link(&before.value.proto_descriptors)?;
                descriptors::check_compatible(&old, &new)?;
            }
            change.update::<BundleRecord>(name, |record| {
                record.proto_descriptors = proto_descriptors;
                Ok(())
            })
        })?;
        self.get(table, name)
    }

    /// Deletes a bundle, and its policy; `ABORTED` where the etag is another. Blocks.
    pub fn delete(&self, table: &TableRecord, name: &str, etag: &str) -> Result<()> {
        self.resources.change(|change| {
            expected(change, table, name, etag)?;
            change.delete_under(name);
            Ok(())
        })
    }
}

/// What is there, if it is what the client knows.
fn expected(
    change: &Change<'_>,
    table: &TableRecord,
    name: &str,
    etag: &str,
) -> Result<Arc<Stored<BundleRecord>>> {
    let stored = change.get::<BundleRecord>(name).filter(|stored| is_of(stored, table));
    let stored = stored.ok_or_else(|| missing::<BundleRecord>(name))?;
    if etag.is_empty() || etag == stored.etag() {
        return Ok(stored);
    }
    Err(Error::aborted(format!(
        "the etag {etag:?} is not that of schema bundle {name:?}, which has changed since; read it again"
    )))
}

fn is_of(stored: &Stored<BundleRecord>, table: &TableRecord) -> bool {
    stored.value.table_incarnation == table.incarnation
}

fn prefix(table: &str) -> String {
    format!("{table}/{COLLECTION}/")
}

/// The table of a bundle's name, and the bundle's id.
pub fn split(name: &str) -> Option<(&str, &str)> {
    let (table, id) = name.rsplit_once('/')?;
    Some((table.strip_suffix(COLLECTION)?.strip_suffix('/')?, id))
}

fn shown(name: &str, stored: &Stored<BundleRecord>) -> admin::SchemaBundle {
    let proto_descriptors = stored.value.proto_descriptors.clone();
    admin::SchemaBundle {
        name: name.to_owned(),
        etag: stored.etag(),
        r#type: Some(Type::ProtoSchema(admin::ProtoSchema { proto_descriptors })),
    }
}

fn descriptors_of(bundle: &admin::SchemaBundle) -> Result<Bytes> {
    match &bundle.r#type {
        Some(Type::ProtoSchema(schema)) => Ok(schema.proto_descriptors.clone()),
        None => Err(Error::field("schema_bundle", "proto_schema must be set")),
    }
}

#[cfg(test)]
mod tests {
    use prost_types::field_descriptor_proto::Type as FieldType;
    use tepui_bigtable::error::Code;

    use super::descriptors::tests::{field, with_fields};
    use super::*;
    use crate::catalog::memory_meta::MemoryMeta;

    const TABLE: &str = "projects/p/instances/i/tables/t";
    const BUNDLE: &str = "projects/p/instances/i/tables/t/schemaBundles/b";

    fn bundles() -> Bundles {
        Bundles::new(Arc::new(Resources::open(Arc::<MemoryMeta>::default()).unwrap()))
    }

    fn table(incarnation: u64) -> TableRecord {
        TableRecord { name: TABLE.to_owned(), incarnation, ..TableRecord::default() }
    }

    fn bundle(descriptors: Vec<u8>, etag: &str) -> admin::SchemaBundle {
        let schema = admin::ProtoSchema { proto_descriptors: descriptors.into() };
        admin::SchemaBundle {
            name: BUNDLE.to_owned(),
            etag: etag.to_owned(),
            r#type: Some(Type::ProtoSchema(schema)),
        }
    }

    fn one(kind: FieldType) -> Vec<u8> {
        with_fields(vec![field("a", 1, kind)])
    }

    #[test]
    fn an_update_wants_the_etag_that_it_gives_and_a_compatible_schema() {
        let bundles = bundles();
        let first = bundles.create(&table(1), BUNDLE, &bundle(one(FieldType::String), "")).unwrap();
        let two =
            with_fields(vec![field("a", 1, FieldType::String), field("b", 2, FieldType::Bool)]);
        let stale = bundle(two.clone(), "0123");
        let error = bundles.update(&table(1), &stale, false).unwrap_err();
        assert_eq!(error.kind(), Code::Aborted);
        let other = bundle(one(FieldType::Int64), &first.etag);
        let error = bundles.update(&table(1), &other, false).unwrap_err();
        assert_eq!(error.kind(), Code::FailedPrecondition);
        assert_eq!(bundles.get(&table(1), BUNDLE).unwrap(), first);

        let second = bundles.update(&table(1), &bundle(two, &first.etag), false).unwrap();
        assert_ne!(second.etag, first.etag);
        let error = bundles.delete(&table(1), BUNDLE, &first.etag).unwrap_err();
        assert_eq!(error.kind(), Code::Aborted);
        let forced = bundles.update(&table(1), &bundle(one(FieldType::Int64), ""), true).unwrap();
        assert_eq!(bundles.list(&table(1), None, 9), [forced]);
        bundles.delete(&table(1), BUNDLE, "").unwrap();
        assert_eq!(bundles.get(&table(1), BUNDLE).unwrap_err().kind(), Code::NotFound);
        assert_eq!(bundles.delete(&table(1), BUNDLE, "").unwrap_err().kind(), Code::NotFound);
    }

    #[test]
    fn a_later_table_of_the_name_does_not_see_the_bundles_of_the_one_before() {
        let bundles = bundles();
        let make = |n| bundles.create(&table(n), BUNDLE, &bundle(one(FieldType::String), ""));
        make(1).unwrap();
        assert_eq!(make(1).unwrap_err().kind(), Code::AlreadyExists);
        assert_eq!(bundles.get(&table(2), BUNDLE).unwrap_err().kind(), Code::NotFound);
        assert!(bundles.list(&table(2), None, 9).is_empty());
        let update = bundle(one(FieldType::String), "");
        assert_eq!(bundles.update(&table(2), &update, true).unwrap_err().kind(), Code::NotFound);
        make(2).unwrap();
        assert!(bundles.get(&table(1), BUNDLE).is_err());
        bundles.sweep(|table| (table == TABLE).then_some(2)).unwrap();
        bundles.get(&table(2), BUNDLE).unwrap();
        bundles.sweep(|_| None).unwrap();
        assert!(bundles.get(&table(2), BUNDLE).is_err());
    }

    #[test]
    fn names_split_into_table_and_id() {
        assert_eq!(split(BUNDLE), Some((TABLE, "b")));
        for bad in ["", "x", "t/schemaBundle/b", "tschemaBundles/b"] {
            assert_eq!(split(bad), None, "{bad}");
        }
    }
}
