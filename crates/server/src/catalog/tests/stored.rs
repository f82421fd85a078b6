//! Entries of the catalog as they are on disks: one of each kind, with all that it can have. They are read as what they were, and
//! written the same.

use std::fmt::Debug;
use std::sync::Arc;

use prost_types::{Any, Duration, Timestamp};
use tepui_engine::manifest::{MetaChange, MetaExpect, MetaStore as _};

use super::super::memory_meta::MemoryMeta;
use super::super::record::{FamilyRecord, TableRecord};
use super::super::resources::{Resource, Resources, key_of_kind};
use crate::api::admin::r#type::Kind;
use crate::api::instances::{Edition, Instance};
use crate::api::longrunning::{Operation, operation};
use crate::api::spelled_out::AutomatedBackupPolicy;
use crate::api::{Expr, admin, iam, rpc};
use crate::backups::record::BackupRecord;
use crate::bundles::BundleRecord;
use crate::catalog::authorized_views::ViewRecord;
use crate::iam::policies::PolicyRecord;
use crate::page_tokens::hex;

/// A line for each entry: its key and, in hexadecimal digits, its value.
const STORED: &str = include_str!("../testdata/entries.hex");

/// The same of earlier versions, where a field came since: such entries are read, and not written any more.
const EARLIER: &str = include_str!("../testdata/earlier.hex");

const TABLE: &str = "projects/p/instances/i/tables/t";

fn entries() -> impl Iterator<Item = (&'static str, &'static str)> {
    STORED.lines().map(|line| line.split_once(' ').unwrap())
}

/// The digits of the entry with this key.
fn digits(key: &str) -> &'static str {
    entries().find(|(of, _)| *of == key).unwrap_or_default().1
}

fn unhex(digits: &str) -> Vec<u8> {
    let pairs = digits.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

/// A resource that is made as `value` is the entry with this key, and the other way round.
fn assert_stored<R: Resource + PartialEq + Debug>(key: &str, value: R) {
    let name = key.splitn(3, '/').nth(2).unwrap();
    let meta = Arc::new(MemoryMeta::default());
    Resources::open(meta.clone()).unwrap().create(name, value.clone()).unwrap();
    let [(made, entry)] = meta.list("").unwrap().try_into().unwrap();
    assert_eq!((made.as_str(), hex(&entry.value).as_str()), (key, digits(key)));
    let meta = MemoryMeta::default();
    let stored = Some(unhex(digits(key)).into());
    let change = MetaChange { key: key.to_owned(), expect: MetaExpect::Absent, value: stored };
    meta.commit(&[change]).unwrap();
    let read = Resources::open(Arc::new(meta)).unwrap().get::<R>(name).unwrap();
    assert_eq!(read.value, value);
}

fn seconds(seconds: i64) -> Option<Duration> {
    Some(Duration { seconds, nanos: 5 })
}

fn time(seconds: i64) -> Option<Timestamp> {
    Some(Timestamp { seconds, nanos: 7 })
}

fn type_of(kind: Kind) -> admin::Type {
    admin::Type { kind: Some(kind) }
}

fn big_endian() -> admin::Type {
    use admin::r#type::int64::{Encoding, encoding};
    let encoding = encoding::Encoding::BigEndianBytes(encoding::BigEndianBytes::default());
    let encoding = Some(Encoding { encoding: Some(encoding) });
    type_of(Kind::Int64Type(admin::r#type::Int64 { encoding }))
}

fn utf8() -> admin::Type {
    use admin::r#type::string::{Encoding, encoding};
    let encoding = encoding::Encoding::Utf8Bytes(encoding::Utf8Bytes {});
    let encoding = Some(Encoding { encoding: Some(encoding) });
    type_of(Kind::StringType(admin::r#type::String { encoding }))
}

fn sum() -> admin::Type {
    use admin::r#type::aggregate::{Aggregator, Sum};
    let aggregate = admin::r#type::Aggregate {
        input_type: Some(Box::new(big_endian())),
        state_type: None,
        aggregator: Some(Aggregator::Sum(Sum {})),
    };
    type_of(Kind::AggregateType(Box::new(aggregate)))
}

/// Two versions, or those of a day and of the last seven among three.
fn rule() -> admin::GcRule {
    use admin::gc_rule::{Intersection, Rule, Union};
    let of = |rule| admin::GcRule { rule: Some(rule) };
    let age = |days: i64| of(Rule::MaxAge(Duration { seconds: days * 86_400, nanos: 0 }));
    let both = vec![age(7), of(Rule::MaxNumVersions(3))];
    let both = of(Rule::Intersection(Intersection { rules: both }));
    of(Rule::Union(Union { rules: vec![of(Rule::MaxNumVersions(2)), age(1), both] }))
}

fn row_key_schema() -> admin::r#type::Struct {
    use admin::r#type::r#struct::{Encoding, Field, encoding};
    let field = |name: &str, of| Field { field_name: name.to_owned(), r#type: Some(of) };
    let delimited = encoding::DelimitedBytes { delimiter: "#".into() };
    let encoding = encoding::Encoding::DelimitedBytes(delimited);
    admin::r#type::Struct {
        fields: vec![field("user", utf8()), field("", utf8())],
        encoding: Some(Encoding { encoding: Some(encoding) }),
    }
}

fn table() -> TableRecord {
    use admin::restore_info::SourceInfo;
    use admin::tiered_storage_rule::Rule;
    let restored = admin::BackupInfo {
        backup: "projects/p/instances/i/clusters/c/backups/b".to_owned(),
        start_time: time(11),
        end_time: time(12),
        source_table: "projects/p/instances/i/tables/source".to_owned(),
        source_backup: "projects/p/instances/i/clusters/d/backups/first".to_owned(),
    };
    let older = admin::TieredStorageRule {
        rule: Some(Rule::IncludeIfOlderThan(Duration { seconds: 31 * 86_400, nanos: 0 })),
    };
    TableRecord {
        name: TABLE.to_owned(),
        incarnation: 0x0102_0304_0506_0708,
        tablets: vec![3, 300],
        families: vec![
            FamilyRecord {
                name: "cf".to_owned(),
                id: 1,
                config: Some(admin::ColumnFamily {
                    gc_rule: Some(rule()),
                    value_type: Some(sum()),
                }),
                gc_since_micros: 9_000,
                created_at: 1 << 41,
                dropped_at: 0,
            },
            FamilyRecord { name: "plain".to_owned(), id: 200, ..FamilyRecord::default() },
        ],
        next_family_id: 201,
        deletion_protection: true,
        created_micros: 5_000_000,
        deleted_micros: Some(6_000_000),
        change_stream_config: Some(admin::ChangeStreamConfig { retention_period: seconds(86_400) }),
        automated_backup_policy: Some(AutomatedBackupPolicy {
            retention_period: seconds(7 * 86_400),
            frequency: seconds(86_400),
            locations: vec!["projects/p/locations/z".to_owned()],
            keep_hot_duration: seconds(3_600),
            disabled: true,
        }),
        tiered_storage_config: Some(admin::TieredStorageConfig { infrequent_access: Some(older) }),
        row_key_schema: Some(row_key_schema()),
        restore_info: Some(admin::RestoreInfo {
            source_type: admin::RestoreSourceType::Backup.into(),
            source_info: Some(SourceInfo::BackupInfo(restored)),
        }),
        change_stream_since: 1 << 40,
        former_families: vec![FamilyRecord {
            name: "old".to_owned(),
            id: 2,
            dropped_at: 1 << 42,
            ..FamilyRecord::default()
        }],
    }
}

#[test]
fn a_table_on_a_disk_is_read_as_it_was_written() {
    let key = format!("tables/{TABLE}");
    assert_eq!(hex(&table().encode_versioned()), digits(&key));
    assert_eq!(TableRecord::decode_versioned(&key, &unhex(digits(&key))).unwrap(), table());
}

#[test]
fn a_table_from_before_families_had_places_in_the_history_is_read() {
    let (key, digits) = EARLIER.trim_end().split_once(' ').unwrap();
    let mut expected = table();
    for family in expected.families.iter_mut().chain(&mut expected.former_families) {
        (family.created_at, family.dropped_at) = (0, 0);
    }
    assert_eq!(TableRecord::decode_versioned(key, &unhex(digits)).unwrap(), expected);
}

#[test]
fn an_instance_on_a_disk_is_read_as_it_was_written() {
    let instance = Instance {
        name: "projects/p/instances/i".to_owned(),
        display_name: "An instance".to_owned(),
        state: admin::instance::State::Ready.into(),
        r#type: admin::instance::Type::Development.into(),
        labels: [("team".to_owned(), "blue".to_owned())].into(),
        create_time: time(20),
        tags: [("tagKeys/1".to_owned(), "tagValues/2".to_owned())].into(),
        edition: Edition::EnterprisePlus.into(),
    };
    assert_stored("resources/instance/projects/p/instances/i", instance);
}

#[test]
fn a_cluster_on_a_disk_is_read_as_it_was_written() {
    use admin::cluster::{ClusterAutoscalingConfig, ClusterConfig, Config, EncryptionConfig};
    let limits = admin::AutoscalingLimits { min_serve_nodes: 1, max_serve_nodes: 9 };
    let targets = admin::AutoscalingTargets {
        cpu_utilization_percent: 60,
        storage_utilization_gib_per_node: 2_560,
    };
    let scaled = ClusterAutoscalingConfig {
        autoscaling_limits: Some(limits),
        autoscaling_targets: Some(targets),
    };
    let scaled = ClusterConfig { cluster_autoscaling_config: Some(scaled) };
    let cluster = admin::Cluster {
        name: "projects/p/instances/i/clusters/c".to_owned(),
        location: "projects/p/locations/z".to_owned(),
        state: admin::cluster::State::Ready.into(),
        serve_nodes: 3,
        node_scaling_factor: admin::cluster::NodeScalingFactor::NodeScalingFactor2x.into(),
        default_storage_type: admin::StorageType::Hdd.into(),
        encryption_config: Some(EncryptionConfig { kms_key_name: "key".to_owned() }),
        config: Some(Config::ClusterConfig(scaled)),
    };
    assert_stored("resources/cluster/projects/p/instances/i/clusters/c", cluster);
}

#[test]
fn app_profiles_on_a_disk_are_read_as_they_were_written() {
    use admin::app_profile::multi_cluster_routing_use_any::{Affinity, RowAffinity};
    use admin::app_profile::{
        Isolation, MultiClusterRoutingUseAny, Priority, RoutingPolicy, SingleClusterRouting,
        StandardIsolation,
    };
    let name = |id: &str| format!("projects/p/instances/i/appProfiles/{id}");
    let isolation = StandardIsolation { priority: Priority::Low.into() };
    let single =
        SingleClusterRouting { cluster_id: "c".to_owned(), allow_transactional_writes: true };
    let single = admin::AppProfile {
        name: name("single"),
        etag: "e".to_owned(),
        description: "For one cluster".to_owned(),
        routing_policy: Some(RoutingPolicy::SingleClusterRouting(single)),
        isolation: Some(Isolation::StandardIsolation(isolation)),
    };
    assert_stored(&format!("resources/app-profile/{}", name("single")), single);
    let any = MultiClusterRoutingUseAny {
        cluster_ids: vec!["c".to_owned(), "d".to_owned()],
        affinity: Some(Affinity::RowAffinity(RowAffinity {})),
    };
    let any = admin::AppProfile {
        name: name("any"),
        routing_policy: Some(RoutingPolicy::MultiClusterRoutingUseAny(any)),
        ..admin::AppProfile::default()
    };
    assert_stored(&format!("resources/app-profile/{}", name("any")), any);
}

#[test]
fn a_backup_on_a_disk_is_read_as_it_was_written() {
    let name = "projects/p/instances/i/clusters/c/backups/b".to_owned();
    let key = format!("resources/backup/{name}");
    let encryption = admin::EncryptionInfo {
        encryption_type: admin::encryption_info::EncryptionType::GoogleDefaultEncryption.into(),
        ..admin::EncryptionInfo::default()
    };
    let shown = admin::Backup {
        name,
        source_table: TABLE.to_owned(),
        source_backup: "projects/p/instances/i/clusters/d/backups/first".to_owned(),
        expire_time: time(1_000_000),
        start_time: time(30),
        end_time: time(31),
        size_bytes: 1 << 33,
        state: admin::backup::State::Ready.into(),
        encryption_info: Some(encryption),
        backup_type: admin::backup::BackupType::Hot.into(),
        hot_to_standard_time: time(900_000),
    };
    let named = TableRecord { name: "t".to_owned(), incarnation: 7, ..TableRecord::default() };
    let backup = BackupRecord {
        shown: Some(shown),
        table: prost::Message::encode_to_vec(&named).into(),
        engine_id: Some(0x1112_1314_1516_1718),
        incarnation: 0x2122_2324_2526_2728,
        automated: true,
    };
    assert_eq!(backup.table_incarnation(), Some(7));
    assert_stored(&key, backup);
}

#[test]
fn operations_on_a_disk_are_read_as_they_were_written() {
    let any = |of: &str| Any { type_url: format!("type.googleapis.com/{of}"), value: vec![8, 1] };
    let done = Operation {
        name: "operations/1".to_owned(),
        metadata: Some(any("Metadata")),
        done: true,
        result: Some(operation::Result::Response(any("Response"))),
    };
    assert_stored("resources/operation/operations/1", done);
    let status =
        rpc::Status { code: 9, message: "it has failed".to_owned(), details: vec![any("Detail")] };
    let failed = Operation {
        name: "operations/2".to_owned(),
        result: Some(operation::Result::Error(status)),
        ..Operation::default()
    };
    assert_stored("resources/operation/operations/2", failed);
}

#[test]
fn a_schema_bundle_on_a_disk_is_read_as_it_was_written() {
    let bundle = BundleRecord {
        table_incarnation: 0x0102_0304_0506_0708,
        proto_descriptors: vec![0x0a, 0x03, 0x0a, 0x01, b'f'].into(),
    };
    assert_stored(&format!("resources/schema_bundle/{TABLE}/schemaBundles/s"), bundle);
}

#[test]
fn an_authorized_view_on_a_disk_is_read_as_it_was_written() {
    use admin::authorized_view::{AuthorizedView, FamilySubsets, SubsetView};
    let subsets = FamilySubsets {
        qualifiers: vec!["q".into(), "r".into()],
        qualifier_prefixes: vec!["p".into()],
    };
    let subset = SubsetView {
        row_prefixes: vec!["user#".into(), "x".into()],
        family_subsets: [("cf".to_owned(), subsets)].into(),
    };
    let name = format!("{TABLE}/authorizedViews/v");
    let view = admin::AuthorizedView {
        name: name.clone(),
        etag: String::new(),
        deletion_protection: true,
        authorized_view: Some(AuthorizedView::SubsetView(subset)),
    };
    let record = ViewRecord { table: 0x0102_0304_0506_0708, view: Some(view) };
    assert_stored(&format!("resources/authorized-view/{name}"), record);
}

#[test]
fn a_policy_on_a_disk_is_read_as_it_was_written() {
    let condition = Expr {
        expression: "request.time < timestamp(\"2030-01-01T00:00:00Z\")".to_owned(),
        title: "for now".to_owned(),
        description: "until then".to_owned(),
        location: "somewhere".to_owned(),
    };
    let binding = iam::Binding {
        role: "roles/bigtable.reader".to_owned(),
        members: vec!["user:a@example.com".to_owned(), "allUsers".to_owned()],
        condition: Some(condition),
    };
    let policy = iam::Policy { version: 3, bindings: vec![binding], ..iam::Policy::default() };
    let record = PolicyRecord { table: 0x0102_0304_0506_0708, policy: Some(policy) };
    assert_stored(&format!("resources/iam-policy/{TABLE}"), record);
}

#[test]
fn there_is_an_entry_of_every_kind() {
    let kinds: Vec<_> = (0..).map_while(|kind| key_of_kind(kind, "")).collect();
    assert!(!kinds.is_empty());
    for kind in kinds {
        assert!(entries().any(|(key, _)| key.starts_with(&kind)), "none of {kind}");
    }
}
