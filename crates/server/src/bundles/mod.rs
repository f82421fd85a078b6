//! Schema bundles: protobuf schemas that a table keeps for those who read its values.
//!
//! A bundle belongs to a table of one incarnation. It goes with the table: where a table is deleted, its bundles
//! are not found, and are there again if it is undeleted; a later table of the same name does not see them, and
//! replaces those that it makes itself. What nobody can see any more is removed within the hour.
//!
//! What the value type of a family names of a bundle stays: a bundle is not deleted while one does, and an update that takes
//! it away is one to be warned of.

pub(crate) mod descriptors;
mod imports;
mod named;
mod parse;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use prost_reflect::DescriptorPool;
use tepui_bigtable::error::{Error, Result};
use tepui_bigtable::value_type;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::api::admin;
use crate::api::admin::schema_bundle::Type;
use crate::catalog::record::TableRecord;
use crate::catalog::resources::{Change, Resource, Resources, Stored, missing};
use crate::limits::{
    SCHEMA_BUNDLE_BYTES_MAX, SCHEMA_BUNDLES_INSTANCE_BYTES_MAX, SCHEMA_BUNDLES_MAX,
    SCHEMA_BUNDLES_TABLE_BYTES_MAX,
};
use crate::names;
use named::Names;

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

/// The linked schema of a bundle that is there, which whoever asks cannot help.
fn link_stored(name: &str, stored: &BundleRecord) -> Result<DescriptorPool> {
    descriptors::link(&stored.proto_descriptors).map_err(|error| {
        Error::failed_precondition(format!(
            "the schema that bundle {name:?} has now cannot be linked: {}; an update with ignore_warnings replaces it",
            error.message()
        ))
    })
}

/// What a bundle is to have, checked.
#[derive(Debug)]
pub struct Schema {
    proto_descriptors: Bytes,
    /// Where it is to replace what there was, unless nobody wants to be warned.
    compared: Option<Compared>,
}

/// What comes of comparing a schema with the one that it is to replace.
#[derive(Debug)]
struct Compared {
    /// Of the bundle as it was then.
    digest: u64,
    /// What is lost that families may name.
    lost: Names,
    verdict: Result<()>,
}

/// What types name that the schemas of a table's bundles have: by the bundle's id, with the digest of what was linked.
#[derive(Debug, Default)]
pub struct Linked(BTreeMap<String, (u64, Names)>);

/// The schema bundles of all tables.
#[derive(Debug, Clone)]
pub struct Bundles {
    resources: Arc<Resources>,
    /// Held by whoever has schemas linked: the largest take some 200 MB, and two of them are compared.
    linking: Arc<Mutex<()>>,
    /// Taken by requests that are for nothing else before they begin, so that those that wait leave the threads for what blocks to others.
    turns: Arc<Semaphore>,
}

impl Bundles {
    /// Those among these resources.
    pub fn new(resources: Arc<Resources>) -> Self {
        Self { resources, linking: Arc::default(), turns: Arc::new(Semaphore::new(1)) }
    }

    /// A turn at having schemas checked, to be held until they are.
    pub async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        // It is never closed.
        Arc::clone(&self.turns).acquire_owned().await.ok()
    }

    // There is nothing in it that a panic could leave half done.
    fn linking(&self) -> MutexGuard<'_, ()> {
        self.linking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the bundles of tables that are gone for good: those of which `incarnation_of` gives another
    /// incarnation for the table's name, or none. Blocks.
    pub fn sweep(&self, incarnation_of: impl Fn(&str) -> Option<u64>) -> Result<()> {
        let is_gone = |name: &str, record: &BundleRecord| {
            let incarnation = split(name).and_then(|(table, _)| incarnation_of(table));
            incarnation != Some(record.table_incarnation)
        };
        let swept = self.resources.sweep(is_gone, |change, name| {
            change.delete_under(name);
            Ok(())
        });
        swept.map(drop)
    }

    /// The schema of a bundle as a client gives it; `INVALID_ARGUMENT` where it is none. A large one takes a while, so this is done before other
    /// changes are kept from going on.
    pub fn schema(&self, bundle: &admin::SchemaBundle) -> Result<Schema> {
        let proto_descriptors = descriptors_of(bundle)?;
        let _linking = self.linking();
        descriptors::link(&proto_descriptors)?;
        Ok(Schema { proto_descriptors, compared: None })
    }

    /// The same of one that is to replace what a table has, compared with that.
    pub fn compared(&self, table: &TableRecord, bundle: &admin::SchemaBundle) -> Result<Schema> {
        let proto_descriptors = descriptors_of(bundle)?;
        // Until both are dropped.
        let _linking = self.linking();
        let new = descriptors::link(&proto_descriptors)?;
        let name = &bundle.name;
        let before = self.resources.get::<BundleRecord>(name);
        let before = before.filter(|stored| is_of(stored, table));
        let before = before.ok_or_else(|| missing::<BundleRecord>(name))?;
        let old = link_stored(name, &before.value)?;
        let compared = Compared {
            digest: before.digest,
            lost: Names::lost(&old, &new),
            verdict: descriptors::check_compatible(&old, &new),
        };
        Ok(Schema { proto_descriptors, compared: Some(compared) })
    }

    /// Within a change: creates a bundle of a table.
    pub fn create(
        &self,
        change: &mut Change<'_>,
        table: &TableRecord,
        name: &str,
        schema: Schema,
    ) -> Result<admin::SchemaBundle> {
        let Schema { proto_descriptors, .. } = schema;
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
        let bytes = proto_descriptors.len();
        let table_incarnation = table.incarnation;
        change.create(name, BundleRecord { table_incarnation, proto_descriptors })?;
        self.check_room(table, name, bytes)?;
        change.find(name).map(|stored| shown(name, &stored))
    }

    /// Refuses a bundle of so many bytes where a table or an instance would have too many of them: all bundles are in
    /// memory, and in the catalog with all else that is created.
    fn check_room(&self, table: &TableRecord, name: &str, bytes: usize) -> Result<()> {
        let instance = names::instance_of(&table.name);
        let others = self.resources.list::<BundleRecord>(&format!("{instance}/"), None, usize::MAX);
        let others = others.iter().filter(|(other, _)| other != name);
        let (mut of_instance, mut of_table) = (bytes, bytes);
        for (other, stored) in others {
            let bytes = stored.value.proto_descriptors.len();
            of_instance += bytes;
            if is_of(stored, table) && split(other).is_some_and(|(of, _)| of == table.name) {
                of_table += bytes;
            }
        }
        for (of, bytes, bytes_max) in [
            (&*table.name, of_table, SCHEMA_BUNDLES_TABLE_BYTES_MAX),
            (instance, of_instance, SCHEMA_BUNDLES_INSTANCE_BYTES_MAX),
        ] {
            if bytes > bytes_max {
                return Err(Error::failed_precondition(format!(
                    "with this one the schema bundles of {of:?} would have {bytes} bytes; limit {bytes_max}: delete those that \
                     nobody needs, or leave out of the descriptors what is not read (source info, imports)"
                )));
            }
        }
        Ok(())
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

    /// Links the schemas that types name of a table's bundles, one after the other and each once, and looks what they have of what is named: a
    /// large one takes a while, so this is done before other changes are kept from going on. A bundle that is not there is left out.
    pub fn link_named<'t>(
        &self,
        table: &TableRecord,
        types: impl Iterator<Item = &'t admin::Type>,
    ) -> Result<Linked> {
        let mut of_bundles = BTreeMap::<_, Vec<_>>::new();
        for (bundle, named) in types.flat_map(|of| named::in_type(Some(of))) {
            of_bundles.entry(bundle).or_default().push(named);
        }
        let mut linked = Linked::default();
        for (bundle, named) in of_bundles {
            let Some(found) = self.named(table, bundle) else { continue };
            let _linking = self.linking();
            let pool = link_stored(bundle, &found.value)?;
            let names = Names::found(named, &pool);
            linked.0.insert(bundle.to_owned(), (found.digest, names));
        }
        Ok(linked)
    }

    fn named(&self, table: &TableRecord, bundle: &str) -> Option<Arc<Stored<BundleRecord>>> {
        let found = self.resources.get::<BundleRecord>(&format!("{}{bundle}", prefix(&table.name)));
        found.filter(|stored| is_of(stored, table))
    }

    /// Checks a family's value type, and that the schemas are there that it names: `FAILED_PRECONDITION` where a bundle is
    /// not, or what is named of it; `ABORTED` where one is another than was `linked`.
    pub fn check_named(
        &self,
        table: &TableRecord,
        family: &str,
        of_family: Option<&admin::Type>,
        linked: &Linked,
    ) -> Result<()> {
        value_type::check(of_family)
            .map_err(|error| error.context(format_args!("column family {family:?}")))?;
        for (bundle, schema) in named::in_type(of_family) {
            let missing = |what: String| {
                Error::failed_precondition(format!(
                    "column family {family:?}: value_type names schema bundle {bundle:?}, {what}"
                ))
            };
            let found = self.named(table, bundle).ok_or_else(|| {
                missing(
                    "which is not there: create it in the table first, then set the type"
                        .to_owned(),
                )
            })?;
            let of_now = linked.0.get(bundle).filter(|(digest, _)| *digest == found.digest);
            let Some((_, names)) = of_now else {
                return Err(changed_meanwhile(bundle));
            };
            if !names.has(&schema) {
                return Err(missing(format!("which has no {schema}")));
            }
        }
        Ok(())
    }

    /// Within a change: replaces a bundle's schema by one that is compatible and has what families name, as far as they were
    /// [compared](Self::compared); `ABORTED` where the etag is another, or the schema is not the one that it was compared with any more.
    pub fn update(
        &self,
        change: &mut Change<'_>,
        table: &TableRecord,
        name: &str,
        etag: &str,
        schema: Schema,
    ) -> Result<admin::SchemaBundle> {
        let before = expected(change, table, name, etag)?;
        let Schema { proto_descriptors, compared } = schema;
        if let Some(Compared { digest, lost, verdict }) = compared {
            if digest != before.digest {
                return Err(changed_meanwhile(name));
            }
            let mut of_families = named::by_families(table, names::id_of(name));
            if let Some((family, named)) = of_families.find(|(_, named)| lost.has(named)) {
                return Err(Error::failed_precondition(format!(
                    "the schema has no {named} any more, which the value type of column family {family:?} of table {:?} \
                     names: change the type first; ignore_warnings updates the schema all the same",
                    table.name
                )));
            }
            verdict?;
        }
        self.check_room(table, name, proto_descriptors.len())?;
        change.update::<BundleRecord>(name, |record| {
            record.proto_descriptors = proto_descriptors;
            Ok(())
        })?;
        change.find(name).map(|stored| shown(name, &stored))
    }

    /// Within a change: deletes a bundle of which no family names anything, and its policy; `ABORTED` where the etag is
    /// another.
    pub fn delete(
        &self,
        change: &mut Change<'_>,
        table: &TableRecord,
        name: &str,
        etag: &str,
    ) -> Result<()> {
        expected(change, table, name, etag)?;
        if let Some((family, named)) = named::by_families(table, names::id_of(name)).next() {
            return Err(Error::failed_precondition(format!(
                "schema bundle {name:?} cannot be deleted: the value type of column family {family:?} of table {:?} names its \
                 {named}; change the type or drop the family first",
                table.name
            )));
        }
        change.delete_under(name);
        Ok(())
    }
}

fn descriptors_of(bundle: &admin::SchemaBundle) -> Result<Bytes> {
    let Some(Type::ProtoSchema(schema)) = &bundle.r#type else {
        return Err(Error::field("schema_bundle", "proto_schema must be set"));
    };
    let bytes = schema.proto_descriptors.len();
    if bytes > SCHEMA_BUNDLE_BYTES_MAX {
        return Err(Error::field(
            "schema_bundle.proto_schema.proto_descriptors",
            format_args!(
                "has {bytes} bytes; limit {SCHEMA_BUNDLE_BYTES_MAX}: leave out what is not read (source info, imports)"
            ),
        ));
    }
    Ok(schema.proto_descriptors.clone())
}

fn changed_meanwhile(bundle: &str) -> Error {
    Error::aborted(format!("schema bundle {bundle:?} was changed at the same time; try again"))
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

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use prost_types::field_descriptor_proto::Type as FieldType;
    use prost_types::source_code_info::Location;
    use prost_types::{FileDescriptorProto, FileDescriptorSet, SourceCodeInfo};
    use tepui_bigtable::error::Code;

    use super::descriptors::tests::{field, with_fields};
    use super::*;
    use crate::api::admin::r#type;
    use crate::catalog::memory_meta::MemoryMeta;
    use crate::catalog::record::FamilyRecord;

    const TABLE: &str = "projects/p/instances/i/tables/t";
    const BUNDLE: &str = "projects/p/instances/i/tables/t/schemaBundles/b";

    fn bundles() -> Bundles {
        Bundles::new(Arc::new(Resources::open(Arc::<MemoryMeta>::default()).unwrap()))
    }

    fn table(incarnation: u64) -> TableRecord {
        TableRecord { name: TABLE.to_owned(), incarnation, ..TableRecord::default() }
    }

    fn bundle(descriptors: Vec<u8>) -> admin::SchemaBundle {
        let schema = admin::ProtoSchema { proto_descriptors: descriptors.into() };
        let r#type = Some(Type::ProtoSchema(schema));
        admin::SchemaBundle { r#type, ..admin::SchemaBundle::default() }
    }

    fn one(kind: FieldType) -> Vec<u8> {
        with_fields(vec![field("a", 1, kind)])
    }

    impl Bundles {
        fn make(
            &self,
            table: &TableRecord,
            name: &str,
            descriptors: Vec<u8>,
        ) -> Result<admin::SchemaBundle> {
            let schema = self.schema(&bundle(descriptors))?;
            self.resources.change(|change| self.create(change, table, name, schema))
        }

        fn replace(
            &self,
            table: &TableRecord,
            descriptors: Vec<u8>,
            etag: &str,
            warns: bool,
        ) -> Result<admin::SchemaBundle> {
            let bundle = admin::SchemaBundle { name: BUNDLE.to_owned(), ..bundle(descriptors) };
            let schema = if warns { self.compared(table, &bundle) } else { self.schema(&bundle) }?;
            self.resources.change(|change| self.update(change, table, BUNDLE, etag, schema))
        }

        fn remove(&self, table: &TableRecord, etag: &str) -> Result<()> {
            self.resources.change(|change| self.delete(change, table, BUNDLE, etag))
        }
    }

    #[test]
    fn an_update_wants_the_etag_that_it_gives_and_a_compatible_schema() {
        let bundles = bundles();
        let first = bundles.make(&table(1), BUNDLE, one(FieldType::String)).unwrap();
        assert_eq!(bundles.get(&table(1), BUNDLE).unwrap(), first, "its etag is told with it");
        let two =
            with_fields(vec![field("a", 1, FieldType::String), field("b", 2, FieldType::Bool)]);
        let error = bundles.replace(&table(1), two.clone(), "0123", true).unwrap_err();
        assert_eq!(error.kind(), Code::Aborted);
        let other = bundles.replace(&table(1), one(FieldType::Int64), &first.etag, true);
        assert_eq!(other.unwrap_err().kind(), Code::FailedPrecondition);
        assert_eq!(bundles.get(&table(1), BUNDLE).unwrap(), first);

        let second = bundles.replace(&table(1), two, &first.etag, true).unwrap();
        assert_ne!(second.etag, first.etag);
        let error = bundles.remove(&table(1), &first.etag).unwrap_err();
        assert_eq!(error.kind(), Code::Aborted);
        let forced = bundles.replace(&table(1), one(FieldType::Int64), "", false).unwrap();
        assert_eq!(bundles.list(&table(1), None, 9), [forced]);
        bundles.remove(&table(1), "").unwrap();
        assert_eq!(bundles.get(&table(1), BUNDLE).unwrap_err().kind(), Code::NotFound);
        assert_eq!(bundles.remove(&table(1), "").unwrap_err().kind(), Code::NotFound);
    }

    #[test]
    fn an_update_that_was_compared_with_another_schema_than_there_is_changes_nothing() {
        let bundles = bundles();
        bundles.make(&table(1), BUNDLE, one(FieldType::String)).unwrap();
        let fields = [field("a", 1, FieldType::String), field("b", 2, FieldType::Bool)];
        let more = bundle(with_fields(fields.to_vec()));
        let more = admin::SchemaBundle { name: BUNDLE.to_owned(), ..more };
        let compared = || bundles.compared(&table(1), &more).unwrap();
        let first = compared();
        let other = bundles.replace(&table(1), one(FieldType::Int64), "", false).unwrap();
        let update = |schema| {
            bundles.resources.change(|change| bundles.update(change, &table(1), BUNDLE, "", schema))
        };
        assert_eq!(update(first).unwrap_err().kind(), Code::Aborted);
        assert_eq!(update(compared()).unwrap_err().kind(), Code::FailedPrecondition);
        assert_eq!(bundles.get(&table(1), BUNDLE).unwrap(), other);
    }

    /// A table with a family whose values are lists of a type.
    fn with_family(kind: r#type::Kind) -> TableRecord {
        let element_type = Some(Box::new(admin::Type { kind: Some(kind) }));
        let list = r#type::Array { element_type };
        let value_type = Some(admin::Type { kind: Some(r#type::Kind::ArrayType(Box::new(list))) });
        let config = Some(admin::ColumnFamily { value_type, ..admin::ColumnFamily::default() });
        let family =
            FamilyRecord { name: "cf".to_owned(), id: 1, config, ..FamilyRecord::default() };
        TableRecord { families: vec![family], ..table(1) }
    }

    #[test]
    fn what_a_family_names_of_a_bundle_stays() {
        let bundles = bundles();
        let schema_bundle_id = || "b".to_owned();
        let message = r#type::Proto {
            schema_bundle_id: schema_bundle_id(),
            message_name: "test.M".to_owned(),
        };
        let of_enum =
            r#type::Enum { schema_bundle_id: schema_bundle_id(), enum_name: "test.E".to_owned() };
        let first = bundles.make(&table(1), BUNDLE, one(FieldType::String)).unwrap();
        let elsewhere = FileDescriptorSet {
            file: vec![FileDescriptorProto {
                name: Some("other.proto".to_owned()),
                ..Default::default()
            }],
        };
        let without = elsewhere.encode_to_vec();
        for (kind, what) in [
            (r#type::Kind::ProtoType(message), "message \"test.M\""),
            (r#type::Kind::EnumType(of_enum), "enum \"test.E\""),
        ] {
            let using = with_family(kind);
            let refused = [
                bundles.remove(&using, "").unwrap_err(),
                bundles.replace(&using, without.clone(), "", true).unwrap_err(),
            ];
            for error in refused {
                assert_eq!(error.kind(), Code::FailedPrecondition);
                let named = [TABLE, "\"cf\"", what];
                assert!(named.iter().all(|part| error.message().contains(part)), "{error}");
            }
        }
        assert_eq!(bundles.get(&table(1), BUNDLE).unwrap(), first);
        let other =
            r#type::Proto { schema_bundle_id: "c".to_owned(), message_name: "test.M".to_owned() };
        let of_another = with_family(r#type::Kind::ProtoType(other));
        bundles.replace(&of_another, without, "", false).unwrap();
        bundles.remove(&of_another, "").unwrap();
    }

    #[test]
    fn schemas_are_linked_once_before_types_are_checked_and_must_be_the_same_then() {
        let bundles = bundles();
        bundles.make(&table(1), BUNDLE, one(FieldType::String)).unwrap();
        let naming = |bundle: &str, message: &str| {
            let (schema_bundle_id, message_name) = (bundle.to_owned(), message.to_owned());
            let kind = r#type::Kind::ProtoType(r#type::Proto { schema_bundle_id, message_name });
            admin::Type { kind: Some(kind) }
        };
        let many = vec![naming("b", "test.M"); 1_000];
        let linked = bundles.link_named(&table(1), many.iter()).unwrap();
        assert_eq!(linked.0.keys().collect::<Vec<_>>(), ["b"]);
        let check = |named: &admin::Type| {
            let checked = bundles.check_named(&table(1), "cf", Some(named), &linked);
            checked.map_err(|error| error.kind())
        };
        check(&many[0]).unwrap();
        let refused = Err(Code::FailedPrecondition);
        assert_eq!(check(&naming("b", "test.N")), refused);
        assert_eq!(check(&naming("c", "test.M")), refused);
        bundles.replace(&table(1), one(FieldType::Int64), "", false).unwrap();
        assert_eq!(check(&many[0]), Err(Code::Aborted));
        assert!(bundles.link_named(&table(2), many.iter()).unwrap().0.is_empty());
    }

    #[tokio::test]
    async fn one_request_at_a_time_has_its_schema_checked() {
        let bundles = bundles();
        let others = bundles.clone();
        let first = bundles.turn().await;
        let mut second = std::pin::pin!(others.turn());
        assert!(futures::poll!(&mut second).is_pending());
        drop(first);
        assert!(second.await.is_some());
    }

    #[test]
    fn bundles_of_a_table_and_of_an_instance_have_a_bound_together() {
        let bundles = bundles();
        let large = |bytes: usize| {
            let comment =
                Location { leading_comments: Some("x".repeat(bytes)), ..Default::default() };
            let file = FileDescriptorProto {
                name: Some("large.proto".to_owned()),
                source_code_info: Some(SourceCodeInfo { location: vec![comment] }),
                ..Default::default()
            };
            FileDescriptorSet { file: vec![file] }.encode_to_vec()
        };
        let fits = SCHEMA_BUNDLE_BYTES_MAX - 1_000;
        let of_table = |n: usize| TableRecord { name: format!("{TABLE}{n}"), ..table(1) };
        let make = |table: usize, n: usize| {
            let table = of_table(table);
            let name = format!("{}/schemaBundles/b{n}", table.name);
            bundles.make(&table, &name, large(fits))
        };
        let refused = |result: Result<admin::SchemaBundle>, of: &str| {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), Code::FailedPrecondition);
            assert!(error.message().contains(&format!("schema bundles of {of:?}")), "{error}");
        };
        for table in 0..4 {
            for n in 0..4 {
                make(table, n).unwrap();
            }
        }
        refused(make(0, 4), &of_table(0).name);
        refused(make(4, 0), "projects/p/instances/i");
        // One in the place of another takes no more room.
        let (table, name) = (of_table(0), format!("{TABLE}0/schemaBundles/small"));
        let room = SCHEMA_BUNDLES_TABLE_BYTES_MAX - 4 * large(fits).len();
        bundles.make(&table, &name, large(room - 1_000)).unwrap();
        let again = |bytes: usize| {
            let bundle = admin::SchemaBundle { name: name.clone(), ..bundle(large(bytes)) };
            let schema = bundles.compared(&table, &bundle)?;
            bundles.resources.change(|change| bundles.update(change, &table, &name, "", schema))
        };
        again(room - 500).unwrap();
        refused(again(room), &table.name);
    }

    #[test]
    fn a_later_table_of_the_name_does_not_see_the_bundles_of_the_one_before() {
        let bundles = bundles();
        let make = |n| bundles.make(&table(n), BUNDLE, one(FieldType::String));
        make(1).unwrap();
        assert_eq!(make(1).unwrap_err().kind(), Code::AlreadyExists);
        assert_eq!(bundles.get(&table(2), BUNDLE).unwrap_err().kind(), Code::NotFound);
        assert!(bundles.list(&table(2), None, 9).is_empty());
        let update = bundles.replace(&table(2), one(FieldType::String), "", false);
        assert_eq!(update.unwrap_err().kind(), Code::NotFound);
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
