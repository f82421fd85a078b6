//! Aggregate families, schema bundles, and the small print of calls, as clients see them.

use self::location::params_of;
use prost_types::field_descriptor_proto::{Label, Type as FieldType};
use prost_types::{
    DescriptorProto, FieldDescriptorProto, FieldMask, FileDescriptorProto, FileDescriptorSet,
    SourceCodeInfo, source_code_info::Location,
};
use tepui_server::api::session::{ClientConfiguration, GetClientConfigurationRequest};
use tepui_server::limits::{RESOURCE_NAME_CHARS_MAX, SCHEMA_BUNDLE_BYTES_MAX, TABLE_ID_CHARS_MAX};

use super::*;

const BUNDLE: &str = "projects/p/instances/i/tables/t/schemaBundles/b";

/// A schema of one message with these fields, by ascending number.
pub(super) fn schema(fields: &[(&str, FieldType)]) -> Bytes {
    let field = |(number, (name, kind)): (i32, &(&str, FieldType))| FieldDescriptorProto {
        name: Some((*name).to_owned()),
        number: Some(number),
        label: Some(Label::Optional.into()),
        r#type: Some((*kind).into()),
        ..Default::default()
    };
    let message = DescriptorProto {
        name: Some("M".to_owned()),
        field: (1..).zip(fields).map(field).collect(),
        ..Default::default()
    };
    let file = FileDescriptorProto {
        name: Some("m.proto".to_owned()),
        message_type: vec![message],
        ..Default::default()
    };
    FileDescriptorSet { file: vec![file] }.encode_to_vec().into()
}

pub(super) fn bundle(name: &str, etag: &str, proto_descriptors: Bytes) -> admin::SchemaBundle {
    admin::SchemaBundle {
        name: name.to_owned(),
        etag: etag.to_owned(),
        r#type: Some(admin::schema_bundle::Type::ProtoSchema(admin::ProtoSchema {
            proto_descriptors,
        })),
    }
}

impl TestServer {
    pub(super) async fn create_bundle(
        &self,
        parent: &str,
        id: &str,
        schema: Bytes,
    ) -> Result<(), Code> {
        let request = admin::CreateSchemaBundleRequest {
            parent: parent.to_owned(),
            schema_bundle_id: id.to_owned(),
            schema_bundle: Some(bundle("", "", schema)),
        };
        let done = self.tables().create_schema_bundle(request).await;
        done.map(|done| assert!(done.into_inner().done)).map_err(|status| status.code())
    }

    pub(super) async fn update_bundle(
        &self,
        bundle: admin::SchemaBundle,
        paths: &[&str],
        ignore_warnings: bool,
    ) -> Result<(), Code> {
        let paths = paths.iter().map(|path| (*path).to_owned()).collect();
        let request = admin::UpdateSchemaBundleRequest {
            schema_bundle: Some(bundle),
            update_mask: Some(FieldMask { paths }),
            ignore_warnings,
        };
        let done = self.tables().update_schema_bundle(request).await;
        done.map(|_| ()).map_err(|status| status.code())
    }

    async fn bundles(&self, parent: &str) -> Result<Vec<admin::SchemaBundle>, Code> {
        let mut request =
            admin::ListSchemaBundlesRequest { parent: parent.to_owned(), ..Default::default() };
        request.page_size = 1;
        let mut all = Vec::new();
        loop {
            let page = self.tables().list_schema_bundles(request.clone()).await;
            let page = page.map_err(|status| status.code())?.into_inner();
            all.extend(page.schema_bundles);
            request.page_token = page.next_page_token;
            if request.page_token.is_empty() {
                return Ok(all);
            }
        }
    }

    /// An instance with the clusters `c1`, in zone `za`, and `c2`, in zone `zb`, to which its app profile `second` routes.
    pub(super) async fn create_two_clusters(&self, id: &str) {
        let cluster = |zone: &str| admin::Cluster {
            location: format!("projects/p/locations/{zone}"),
            serve_nodes: 1,
            ..Default::default()
        };
        let request = admin::CreateInstanceRequest {
            parent: "projects/p".to_owned(),
            instance_id: id.to_owned(),
            instance: Some(admin::Instance { display_name: id.to_owned(), ..Default::default() }),
            clusters: [("c1".to_owned(), cluster("za")), ("c2".to_owned(), cluster("zb"))].into(),
        };
        self.instances().create_instance(request).await.unwrap();
        let routing = admin::app_profile::SingleClusterRouting {
            cluster_id: "c2".to_owned(),
            ..Default::default()
        };
        let routing = admin::app_profile::RoutingPolicy::SingleClusterRouting(routing);
        let profile = admin::AppProfile { routing_policy: Some(routing), ..Default::default() };
        self.create_profile(&format!("projects/p/instances/{id}"), "second", profile).await;
    }

    async fn bundle(&self, name: &str) -> Result<admin::SchemaBundle, Code> {
        let request = admin::GetSchemaBundleRequest { name: name.to_owned() };
        let found = self.tables().get_schema_bundle(request).await;
        found.map(tonic::Response::into_inner).map_err(|status| status.code())
    }
}

#[tokio::test]
async fn schema_bundles_live_with_their_table_over_restarts() {
    let env = memory();
    let server = start(&env).await;
    server.create(&[]).await;
    let old = schema(&[("a", FieldType::String)]);
    server.create_bundle(TABLE, "b", old.clone()).await.unwrap();
    server.create_bundle(TABLE, "a", old).await.unwrap();
    let names: Vec<_> = server.bundles(TABLE).await.unwrap().into_iter().map(|b| b.name).collect();
    assert_eq!(names, [BUNDLE.replace("/b", "/a"), BUNDLE.to_owned()]);
    let first = server.bundle(BUNDLE).await.unwrap();
    let more = schema(&[("a", FieldType::String), ("b", FieldType::Int64)]);
    let update = bundle(BUNDLE, &first.etag, more);
    server.update_bundle(update, &["proto_schema"], false).await.unwrap();
    let second = server.bundle(BUNDLE).await.unwrap();
    assert_ne!(second.etag, first.etag);
    server.stop().await;

    let server = start(&env).await;
    assert_eq!(server.bundle(BUNDLE).await.unwrap(), second);
    let name = TABLE.to_owned();
    server.tables().delete_table(admin::DeleteTableRequest { name: name.clone() }).await.unwrap();
    assert_eq!(server.bundle(BUNDLE).await.unwrap_err(), Code::NotFound);
    server.tables().undelete_table(admin::UndeleteTableRequest { name }).await.unwrap();
    assert_eq!(server.bundle(BUNDLE).await.unwrap(), second);
    let delete = |etag: &str| {
        let (name, etag) = (BUNDLE.to_owned(), etag.to_owned());
        admin::DeleteSchemaBundleRequest { name, etag }
    };
    let stale = server.tables().delete_schema_bundle(delete(&first.etag)).await.unwrap_err();
    assert_eq!(stale.code(), Code::Aborted);
    server.tables().delete_schema_bundle(delete(&second.etag)).await.unwrap();
    assert_eq!(server.bundles(TABLE).await.unwrap().len(), 1);
    server.stop().await;
}

#[tokio::test]
async fn answers_with_the_largest_schema_bundle_are_ones_that_clients_take() {
    let server = start(&memory()).await;
    // With the longest name that there may be.
    let id = "b".repeat(TABLE_ID_CHARS_MAX);
    let others = "projects//instances/i/tables/t/schemaBundles/".len() + id.len();
    let instance = format!("projects/{}/instances/i", "p".repeat(RESOURCE_NAME_CHARS_MAX - others));
    let table = server.create_table(&instance).await.unwrap().name;
    let name = format!("{table}/schemaBundles/{id}");
    assert_eq!(name.len(), RESOURCE_NAME_CHARS_MAX);
    let commented = |bytes: usize| -> Bytes {
        let comment = Location { leading_comments: Some("x".repeat(bytes)), ..Default::default() };
        let file = FileDescriptorProto {
            name: Some("m.proto".to_owned()),
            source_code_info: Some(SourceCodeInfo { location: vec![comment] }),
            ..Default::default()
        };
        FileDescriptorSet { file: vec![file] }.encode_to_vec().into()
    };
    let around = commented(SCHEMA_BUNDLE_BYTES_MAX).len() - SCHEMA_BUNDLE_BYTES_MAX;
    let largest = || commented(SCHEMA_BUNDLE_BYTES_MAX - around);
    assert_eq!(largest().len(), SCHEMA_BUNDLE_BYTES_MAX);

    let larger = || commented(SCHEMA_BUNDLE_BYTES_MAX - around + 1);
    assert_eq!(server.create_bundle(&table, &id, larger()).await, Err(Code::InvalidArgument));
    server.create_bundle(&table, &id, largest()).await.unwrap();
    server.update_bundle(bundle(&name, "", largest()), &["proto_schema"], false).await.unwrap();
    let refused = server.update_bundle(bundle(&name, "", larger()), &["proto_schema"], true).await;
    assert_eq!(refused, Err(Code::InvalidArgument));
    let request = admin::GetSchemaBundleRequest { name: name.clone() };
    assert_eq!(server.tables().get_schema_bundle(request).await.unwrap().into_inner().name, name);
    assert_eq!(server.bundles(&table).await.unwrap().len(), 1);
    let list =
        longrunning::ListOperationsRequest { name: "operations".to_owned(), ..Default::default() };
    let listed = server.operations().list_operations(list).await.unwrap().into_inner();
    assert!(!listed.operations.is_empty());
    server.stop().await;
}

#[tokio::test]
async fn bad_requests_for_schema_bundles_have_documented_codes_and_change_nothing() {
    let server = start(&memory()).await;
    server.create(&[]).await;
    let good = || schema(&[("a", FieldType::String)]);
    server.create_bundle(TABLE, "b", good()).await.unwrap();
    let before = server.bundle(BUNDLE).await.unwrap();
    let missing = format!("{INSTANCE}/tables/missing");
    for (parent, id, schema, code) in [
        ("x", "c", good(), Code::InvalidArgument),
        (TABLE, "", good(), Code::InvalidArgument),
        (TABLE, "a/b", good(), Code::InvalidArgument),
        (TABLE, "c", Bytes::new(), Code::InvalidArgument),
        (TABLE, "c", Bytes::from_static(b"\xff\xff"), Code::InvalidArgument),
        // A file that imports itself: linked as it is, it would take the whole server with it.
        (TABLE, "c", Bytes::from_static(b"\n\x08\n\x01a\x1a\x01aP\0"), Code::InvalidArgument),
        (missing.as_str(), "c", good(), Code::NotFound),
        (TABLE, "b", good(), Code::AlreadyExists),
    ] {
        assert_eq!(server.create_bundle(parent, id, schema).await, Err(code), "{parent} {id}");
    }
    let other = || schema(&[("a", FieldType::Int64)]);
    let unset = admin::SchemaBundle { name: BUNDLE.to_owned(), ..Default::default() };
    for (update, paths, code) in [
        (bundle("x", "", good()), &["proto_schema"][..], Code::InvalidArgument),
        (bundle(TABLE, "", good()), &["proto_schema"], Code::InvalidArgument),
        (unset, &["proto_schema"], Code::InvalidArgument),
        (bundle(BUNDLE, "", good()), &["name"], Code::InvalidArgument),
        (bundle(BUNDLE, "", Bytes::from_static(b"\xff")), &["proto_schema"], Code::InvalidArgument),
        (bundle(&BUNDLE.replace("/b", "/z"), "", good()), &["proto_schema"], Code::NotFound),
        (bundle(&BUNDLE.replace("/t/", "/z/"), "", good()), &["proto_schema"], Code::NotFound),
        (bundle(BUNDLE, "0000", good()), &["proto_schema"], Code::Aborted),
        (bundle(BUNDLE, "", other()), &["proto_schema"], Code::FailedPrecondition),
    ] {
        let name = update.name.clone();
        assert_eq!(server.update_bundle(update, paths, false).await, Err(code), "{name} {paths:?}");
    }
    let without = admin::UpdateSchemaBundleRequest::default();
    let status = server.tables().update_schema_bundle(without).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(server.bundle("x").await.unwrap_err(), Code::InvalidArgument);
    assert_eq!(server.bundles("x").await.unwrap_err(), Code::InvalidArgument);
    assert_eq!(server.bundles(&missing).await.unwrap_err(), Code::NotFound);
    for bad in [("page_size", -1, ""), ("token", 0, "x"), ("token", 0, TABLE)] {
        let request = admin::ListSchemaBundlesRequest {
            parent: TABLE.to_owned(),
            page_size: bad.1,
            page_token: bad.2.to_owned(),
        };
        let status = server.tables().list_schema_bundles(request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{bad:?}");
    }
    assert_eq!(server.bundles(TABLE).await.unwrap(), [before]);
    // What is not compatible is let through where the client says so.
    server.update_bundle(bundle(BUNDLE, "", other()), &["proto_schema"], true).await.unwrap();
    server.stop().await;
}

/// Response parameters out of headers.
mod location {
    use prost::Message as _;
    use tepui_server::api::v2::ResponseParams;
    use tepui_server::call::LOCATION_HEADER;

    pub fn params_of(headers: &tonic::metadata::MetadataMap) -> (String, String) {
        let bytes = headers.get_bin(LOCATION_HEADER).unwrap().to_bytes().unwrap();
        let params = ResponseParams::decode(bytes).unwrap();
        (params.cluster_id().to_owned(), params.zone_id().to_owned())
    }
}

#[tokio::test]
async fn every_answer_of_the_data_api_says_which_cluster_gave_it() {
    let server = start(&memory()).await;
    let read = |table: &str, profile: &str| v2::ReadRowsRequest {
        table_name: table.to_owned(),
        app_profile_id: profile.to_owned(),
        ..Default::default()
    };
    let status = server.data().read_rows(read(TABLE, "")).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
    assert_eq!(params_of(status.metadata()), ("tepui".to_owned(), "local".to_owned()));
    assert!(status.metadata().get("server-timing").is_some());
    server.create(&[]).await;
    let answer = server.data().read_rows(read(TABLE, "")).await.unwrap();
    assert_eq!(params_of(answer.metadata()).0, "tepui");

    // An instance that was created has clusters of its own, of which a profile may choose one.
    server.create_two_clusters("made").await;
    let table = "projects/p/instances/made/tables/t";
    for (profile, want) in [("", ("c1", "za")), ("second", ("c2", "zb"))] {
        let status = server.data().read_rows(read(table, profile)).await.unwrap_err();
        assert_eq!(params_of(status.metadata()), (want.0.to_owned(), want.1.to_owned()));
    }
    server.stop().await;
}

#[tokio::test]
async fn sessions_are_off_and_unserved_calls_are_refused_by_name() {
    let server = start_with(&memory(), |config| config.strict_instances = true).await;
    server.create_two_clusters("made").await;
    let mut client = tonic::client::Grpc::new(server.channel.clone());
    for (instance, profile, code) in [
        ("projects/p/instances/made", "", Code::Ok),
        ("projects/p/instances/made", "second", Code::Ok),
        ("projects/p/instances/made", "third", Code::NotFound),
        ("projects/p/instances/missing", "", Code::NotFound),
        ("made", "", Code::InvalidArgument),
    ] {
        client.ready().await.unwrap();
        let codec =
            tonic_prost::ProstCodec::<GetClientConfigurationRequest, ClientConfiguration>::default(
            );
        let (instance_name, app_profile_id) = (instance.to_owned(), profile.to_owned());
        let request = GetClientConfigurationRequest { instance_name, app_profile_id };
        let path = "/google.bigtable.v2.Bigtable/GetClientConfiguration".parse().unwrap();
        match client.unary(tonic::Request::new(request), path, codec).await {
            Ok(answer) => {
                assert_eq!(code, Code::Ok, "{instance} {profile}");
                assert_eq!(answer.into_inner(), ClientConfiguration::without_sessions());
            }
            Err(status) => assert_eq!(status.code(), code, "{instance} {profile}"),
        }
    }
    for (path, name) in [
        ("/google.bigtable.v2.Bigtable/OpenTable", "Bigtable.OpenTable"),
        ("/google.bigtable.v2.Bigtable/OpenAuthorizedView", "Bigtable.OpenAuthorizedView"),
        ("/google.bigtable.v2.Bigtable/OpenMaterializedView", "Bigtable.OpenMaterializedView"),
    ] {
        client.ready().await.unwrap();
        let codec = tonic_prost::ProstCodec::<(), ()>::default();
        let requests = tonic::Request::new(futures::stream::pending::<()>());
        let opened = client.streaming(requests, path.parse().unwrap(), codec).await;
        let status = opened.err().unwrap();
        assert_eq!(status.code(), Code::Unimplemented);
        assert_eq!(status.message(), format!("{name} is not supported yet"));
    }
    for rpc in ["GetMemoryLayer", "ListMemoryLayers", "UpdateMemoryLayer"] {
        client.ready().await.unwrap();
        let codec = tonic_prost::ProstCodec::<(), ()>::default();
        let path = format!("/google.bigtable.admin.v2.BigtableInstanceAdmin/{rpc}");
        let answer = client.unary(tonic::Request::new(()), path.parse().unwrap(), codec).await;
        let status = answer.unwrap_err();
        assert_eq!(status.code(), Code::Unimplemented);
        assert_eq!(status.message(), format!("BigtableInstanceAdmin.{rpc} is not supported yet"));
    }
    server.stop().await;
}

#[tokio::test]
async fn aggregate_families_are_shown_in_full_and_refuse_plain_cells() {
    use admin::r#type::{Aggregate, Kind, aggregate};
    let server = start(&memory()).await;
    server.create(&[]).await;
    let hll = Aggregate {
        aggregator: Some(aggregate::Aggregator::HllppUniqueCount(
            aggregate::HyperLogLogPlusPlusUniqueCount {},
        )),
        ..Default::default()
    };
    let value_type = Some(admin::Type { kind: Some(Kind::AggregateType(Box::new(hll))) });
    let request = |id: &str, value_type| admin::ModifyColumnFamiliesRequest {
        name: TABLE.to_owned(),
        modifications: vec![Modification {
            id: id.to_owned(),
            r#mod: Some(Mod::Create(admin::ColumnFamily { value_type, ..Default::default() })),
            ..Default::default()
        }],
        ..Default::default()
    };
    let table = server.tables().modify_column_families(request("users", value_type)).await.unwrap();
    let shown = table.into_inner().column_families.remove("users").unwrap().value_type.unwrap();
    let Some(Kind::AggregateType(shown)) = shown.kind else { panic!("an aggregate") };
    assert!(matches!(shown.state_type.unwrap().kind, Some(Kind::BytesType(_))));

    let incomplete = Some(admin::Type { kind: Some(Kind::AggregateType(Box::default())) });
    let refused = server.tables().modify_column_families(request("bad", incomplete)).await;
    assert_eq!(refused.unwrap_err().code(), Code::InvalidArgument);
    let mutate = v2::MutateRowRequest {
        table_name: TABLE.to_owned(),
        row_key: Bytes::from_static(b"r"),
        mutations: vec![set_cell("users", b"v")],
        ..Default::default()
    };
    let status = server.data().mutate_row(mutate).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("use AddToCell or MergeToCell"), "{status}");
    assert!(server.rows().await.unwrap().is_empty());
    server.stop().await;
}

#[tokio::test]
#[expect(deprecated, reason = "it is what older clients send")]
async fn the_deprecated_encoding_of_strings_comes_back_as_the_one_that_replaced_it() {
    use admin::r#type::string::encoding::{Encoding, Utf8Bytes, Utf8Raw};
    use admin::r#type::{Array, Kind, Map, Struct, r#struct};
    let server = start(&memory()).await;
    let raw = || Encoding::Utf8Raw(Utf8Raw {});
    let utf8 = || Encoding::Utf8Bytes(Utf8Bytes {});
    let string = |encoding: Encoding| {
        let encoding = Some(admin::r#type::string::Encoding { encoding: Some(encoding) });
        admin::Type { kind: Some(Kind::StringType(admin::r#type::String { encoding })) }
    };
    let fields = |encoding: Encoding| {
        let field_name = "user".to_owned();
        vec![r#struct::Field { field_name, r#type: Some(string(encoding)) }]
    };
    let row_key_schema = |encoding: Encoding| {
        let singleton = r#struct::encoding::Encoding::Singleton(r#struct::encoding::Singleton {});
        let encoding_of = Some(r#struct::Encoding { encoding: Some(singleton) });
        Struct { fields: fields(encoding), encoding: encoding_of }
    };
    let nested = |encoding: Encoding| {
        let kind = Kind::StructType(Struct { fields: fields(encoding), encoding: None });
        let element_type = Some(Box::new(admin::Type { kind: Some(kind) }));
        let kind = Kind::ArrayType(Box::new(Array { element_type }));
        let value_type = Some(Box::new(admin::Type { kind: Some(kind) }));
        let key_type = Some(Box::new(string(encoding)));
        admin::Type { kind: Some(Kind::MapType(Box::new(Map { key_type, value_type }))) }
    };
    let family =
        |of: admin::Type| admin::ColumnFamily { value_type: Some(of), ..Default::default() };
    let request = admin::CreateTableRequest {
        parent: INSTANCE.to_owned(),
        table_id: "t".to_owned(),
        table: Some(admin::Table {
            column_families: [("nested".to_owned(), family(nested(raw())))].into(),
            row_key_schema: Some(row_key_schema(raw())),
            ..Default::default()
        }),
        ..Default::default()
    };
    server.tables().create_table(request).await.unwrap();
    let modification = Modification {
        id: "added".to_owned(),
        update_mask: None,
        r#mod: Some(Mod::Create(family(string(raw())))),
    };
    let request = admin::ModifyColumnFamiliesRequest {
        name: TABLE.to_owned(),
        modifications: vec![modification],
        ..Default::default()
    };
    server.tables().modify_column_families(request).await.unwrap();
    // The same schema is no change of it, whichever way it is spelled.
    for encoding in [raw(), utf8()] {
        let request = admin::UpdateTableRequest {
            table: Some(admin::Table {
                name: TABLE.to_owned(),
                row_key_schema: Some(row_key_schema(encoding)),
                ..Default::default()
            }),
            update_mask: Some(FieldMask { paths: vec!["row_key_schema".to_owned()] }),
            ..Default::default()
        };
        server.tables().update_table(request).await.unwrap();
    }
    let get = admin::GetTableRequest { name: TABLE.to_owned(), ..Default::default() };
    let table = server.tables().get_table(get).await.unwrap().into_inner();
    assert_eq!(table.row_key_schema, Some(row_key_schema(utf8())));
    assert_eq!(table.column_families["nested"].value_type, Some(nested(utf8())));
    assert_eq!(table.column_families["added"].value_type, Some(string(utf8())));
    server.stop().await;
}
