//! Instances, clusters and app profiles as clients use them: through operations, over restarts, and with tables.

use tepui_engine::io::Clock as _;
use tepui_server::api::instances::{Edition, Instance};
use tepui_server::api::spelled_out::{AutomatedBackupPolicy, Table, UpdateTableRequest};

use super::*;

const PARENT: &str = "projects/p";

fn cluster(zone: &str) -> admin::Cluster {
    admin::Cluster {
        location: format!("projects/p/locations/{zone}"),
        serve_nodes: 1,
        ..admin::Cluster::default()
    }
}

pub(super) fn create_request(id: &str) -> admin::CreateInstanceRequest {
    admin::CreateInstanceRequest {
        parent: PARENT.to_owned(),
        instance_id: id.to_owned(),
        instance: Some(admin::Instance { display_name: id.to_owned(), ..Default::default() }),
        clusters: [("c1".to_owned(), cluster("zone-a")), ("c2".to_owned(), cluster("zone-b"))]
            .into(),
    }
}

impl TestServer {
    pub(super) fn instances(&self) -> BigtableInstanceAdminClient<Channel> {
        BigtableInstanceAdminClient::new(self.channel.clone())
    }

    pub(super) fn operations(&self) -> longrunning::operations_client::OperationsClient<Channel> {
        longrunning::operations_client::OperationsClient::new(self.channel.clone())
    }

    pub(super) async fn create_table(&self, instance: &str) -> Result<admin::Table, tonic::Status> {
        let families = [("cf".to_owned(), admin::ColumnFamily::default())].into();
        let request = admin::CreateTableRequest {
            parent: instance.to_owned(),
            table_id: "t".to_owned(),
            table: Some(admin::Table { column_families: families, ..Default::default() }),
            ..Default::default()
        };
        self.tables().create_table(request).await.map(tonic::Response::into_inner)
    }

    /// Sets the policy by which a table is backed up. The generated client does not know all of it.
    async fn set_backup_policy(
        &self,
        table: &str,
        policy: AutomatedBackupPolicy,
    ) -> Result<Table, tonic::Status> {
        let table = admin::Table { name: table.to_owned(), ..Default::default() };
        let request = UpdateTableRequest {
            table: Some(Table { automated_backup_policy: Some(policy), ..table.into() }),
            update_mask: Some(prost_types::FieldMask {
                paths: vec!["automated_backup_policy".to_owned()],
            }),
            ..Default::default()
        };
        let mut client = tonic::client::Grpc::new(self.channel.clone());
        client.ready().await.unwrap();
        let codec =
            tonic_prost::ProstCodec::<UpdateTableRequest, longrunning::Operation>::default();
        let path = "/google.bigtable.admin.v2.BigtableTableAdmin/UpdateTable".parse().unwrap();
        let updated = client.unary(tonic::Request::new(request), path, codec).await?;
        Ok(unpack(response(updated.into_inner()), "Table"))
    }

    pub(super) async fn create_profile(
        &self,
        instance: &str,
        id: &str,
        profile: admin::AppProfile,
    ) {
        let request = admin::CreateAppProfileRequest {
            parent: instance.to_owned(),
            app_profile_id: id.to_owned(),
            app_profile: Some(profile),
            ..Default::default()
        };
        self.instances().create_app_profile(request).await.unwrap();
    }

    /// What a check-and-mutate of a row that has nothing answers.
    async fn check_and_mutate(&self, table: &str, profile: &str) -> Result<bool, tonic::Status> {
        let request = v2::CheckAndMutateRowRequest {
            table_name: table.to_owned(),
            app_profile_id: profile.to_owned(),
            row_key: Bytes::from_static(b"r"),
            false_mutations: vec![set_cell("cf", b"v")],
            ..Default::default()
        };
        let answer = self.data().check_and_mutate_row(request).await?;
        Ok(answer.into_inner().predicate_matched)
    }
}

fn unpack<M: prost::Message + Default>(any: Option<prost_types::Any>, name: &str) -> M {
    let any = any.unwrap();
    assert_eq!(any.type_url, format!("type.googleapis.com/google.bigtable.admin.v2.{name}"));
    M::decode(any.value.as_slice()).unwrap()
}

fn response(operation: longrunning::Operation) -> Option<prost_types::Any> {
    assert!(operation.done);
    match operation.result {
        Some(longrunning::operation::Result::Response(any)) => Some(any),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_instance_its_operation_and_its_tables_survive_a_restart_and_go_together() {
    let env = memory();
    let server = start(&env).await;
    let operation =
        server.instances().create_instance(create_request("inst")).await.unwrap().into_inner();
    let metadata: admin::CreateInstanceMetadata =
        unpack(operation.metadata.clone(), "CreateInstanceMetadata");
    assert_eq!(metadata.original_request.unwrap(), create_request("inst"));
    let created: Instance = unpack(response(operation.clone()), "Instance");
    assert_eq!((created.state, created.edition), (1, Edition::Enterprise.into()));
    let table = server.create_table(&created.name).await.unwrap().name;
    server.stop().await;

    let server = start(&env).await;
    let name = operation.name.clone();
    let get = longrunning::GetOperationRequest { name };
    let kept = server.operations().get_operation(get).await.unwrap().into_inner();
    assert_eq!(kept, operation);
    let get = || admin::GetInstanceRequest { name: created.name.clone() };
    let shown = server.instances().get_instance(get()).await.unwrap().into_inner();
    assert_eq!(shown.display_name, "inst");

    let protect = |deletion_protection| admin::UpdateTableRequest {
        table: Some(admin::Table {
            name: table.clone(),
            deletion_protection,
            ..Default::default()
        }),
        update_mask: Some(prost_types::FieldMask { paths: vec!["deletion_protection".to_owned()] }),
        ..Default::default()
    };
    server.tables().update_table(protect(true)).await.unwrap();
    let delete = || admin::DeleteInstanceRequest { name: created.name.clone() };
    let refused = server.instances().delete_instance(delete()).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    server.tables().update_table(protect(false)).await.unwrap();
    server.instances().delete_instance(delete()).await.unwrap();
    server.stop().await;

    let server = start(&env).await;
    let gone = server.instances().get_instance(get()).await.unwrap_err();
    assert_eq!(gone.code(), Code::NotFound);
    let undelete = admin::UndeleteTableRequest { name: table };
    assert_eq!(server.tables().undelete_table(undelete).await.unwrap_err().code(), Code::NotFound);
    let clusters = admin::ListClustersRequest {
        parent: "projects/p/instances/-".to_owned(),
        ..Default::default()
    };
    let clusters = server.instances().list_clusters(clusters).await.unwrap().into_inner();
    assert!(clusters.clusters.is_empty());
    server.stop().await;
}

#[tokio::test]
async fn transactions_need_a_profile_that_allows_them() {
    let server = start(&memory()).await;
    let implicit = server.create_table("projects/p/instances/nobodys").await.unwrap().name;
    assert!(!server.check_and_mutate(&implicit, "whatever").await.unwrap());

    server.instances().create_instance(create_request("inst")).await.unwrap();
    let instance = "projects/p/instances/inst";
    let table = server.create_table(instance).await.unwrap().name;
    let routing = admin::app_profile::MultiClusterRoutingUseAny::default();
    let routing = admin::app_profile::RoutingPolicy::MultiClusterRoutingUseAny(routing);
    let profile = admin::AppProfile { routing_policy: Some(routing), ..Default::default() };
    server.create_profile(instance, "any", profile).await;
    let refused = server.check_and_mutate(&table, "any").await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert_eq!(refused.message(), "Single-row transactions are not allowed by this app profile");
    let increment = v2::ReadModifyWriteRowRequest {
        table_name: table.clone(),
        app_profile_id: "any".to_owned(),
        row_key: Bytes::from_static(b"r"),
        rules: vec![v2::ReadModifyWriteRule {
            family_name: "cf".to_owned(),
            column_qualifier: Bytes::from_static(b"n"),
            rule: Some(v2::read_modify_write_rule::Rule::IncrementAmount(1)),
        }],
        ..Default::default()
    };
    let refused = server.data().read_modify_write_row(increment).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    let missing = server.check_and_mutate(&table, "nobodys").await.unwrap_err();
    assert_eq!(missing.code(), Code::NotFound);
    let read = v2::ReadRowsRequest { table_name: table.clone(), ..Default::default() };
    let mut rows = server.data().read_rows(read).await.unwrap().into_inner();
    assert!(rows.message().await.unwrap().is_none(), "nothing was written");
    assert!(!server.check_and_mutate(&table, "").await.unwrap());

    let page = |page_token: String| admin::ListAppProfilesRequest {
        parent: instance.to_owned(),
        page_size: 1,
        page_token,
    };
    let first = server.instances().list_app_profiles(page(String::new())).await.unwrap();
    let first = first.into_inner();
    let next = server.instances().list_app_profiles(page(first.next_page_token)).await.unwrap();
    let next = next.into_inner();
    assert_eq!(first.app_profiles[0].name, format!("{instance}/appProfiles/any"));
    assert_eq!(next.app_profiles[0].name, format!("{instance}/appProfiles/default"));
    assert_eq!(next.next_page_token, "");
    server.stop().await;
}

#[tokio::test]
async fn change_streams_need_a_profile_that_routes_to_one_cluster() {
    let server = start(&memory()).await;
    server.instances().create_instance(create_request("inst")).await.unwrap();
    let instance = "projects/p/instances/inst";
    let table = server.create_table(instance).await.unwrap().name;
    let retention_period = Some(prost_types::Duration { seconds: 86_400, nanos: 0 });
    let enable = admin::UpdateTableRequest {
        table: Some(admin::Table {
            name: table.clone(),
            change_stream_config: Some(admin::ChangeStreamConfig { retention_period }),
            ..Default::default()
        }),
        update_mask: Some(prost_types::FieldMask {
            paths: vec!["change_stream_config".to_owned()],
        }),
        ..Default::default()
    };
    server.tables().update_table(enable).await.unwrap();
    let any = || {
        let routing = admin::app_profile::MultiClusterRoutingUseAny::default();
        Some(admin::app_profile::RoutingPolicy::MultiClusterRoutingUseAny(routing))
    };
    let single = admin::app_profile::SingleClusterRouting {
        cluster_id: "c2".to_owned(),
        allow_transactional_writes: false,
    };
    let single = Some(admin::app_profile::RoutingPolicy::SingleClusterRouting(single));
    for (id, routing_policy) in [("any", any()), ("single", single)] {
        let profile = admin::AppProfile { routing_policy, ..Default::default() };
        server.create_profile(instance, id, profile).await;
    }
    let code = async |profile: &str| {
        let (table_name, app_profile_id) = (table.clone(), profile.to_owned());
        let listed =
            v2::GenerateInitialChangeStreamPartitionsRequest { table_name, app_profile_id };
        let (table_name, app_profile_id) = (table.clone(), profile.to_owned());
        let partition = Some(v2::StreamPartition { row_range: Some(v2::RowRange::default()) });
        let read = v2::ReadChangeStreamRequest {
            table_name,
            app_profile_id,
            partition,
            ..Default::default()
        };
        let mut data = server.data();
        let listed = data.generate_initial_change_stream_partitions(listed).await;
        let listed = listed.map_or_else(|status| status.code(), |_| Code::Ok);
        let read = data.read_change_stream(read).await;
        assert_eq!(read.map_or_else(|status| status.code(), |_| Code::Ok), listed);
        listed
    };
    assert_eq!(code("any").await, Code::FailedPrecondition);
    assert_eq!(code("missing").await, Code::NotFound);
    for profile in ["", "default", "single"] {
        assert_eq!(code(profile).await, Code::Ok, "{profile:?}");
    }
    let reroute = admin::UpdateAppProfileRequest {
        app_profile: Some(admin::AppProfile {
            name: format!("{instance}/appProfiles/default"),
            routing_policy: any(),
            ..Default::default()
        }),
        update_mask: Some(prost_types::FieldMask {
            paths: vec!["multi_cluster_routing_use_any".to_owned()],
        }),
        ignore_warnings: true,
    };
    server.instances().update_app_profile(reroute).await.unwrap();
    for profile in ["", "default"] {
        assert_eq!(code(profile).await, Code::FailedPrecondition, "{profile:?}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_strict_server_makes_tables_only_in_instances_that_were_created() {
    let server = start_with(&memory(), |config| config.strict_instances = true).await;
    let instance = "projects/p/instances/inst";
    let refused = server.create_table(instance).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (Code::NotFound, "instance \"projects/p/instances/inst\" not found")
    );
    let list = admin::ListTablesRequest { parent: instance.to_owned(), ..Default::default() };
    let listed = server.tables().list_tables(list.clone()).await.unwrap_err();
    assert_eq!(listed.code(), Code::NotFound);
    server.instances().create_instance(create_request("inst")).await.unwrap();
    server.create_table(instance).await.unwrap();
    let listed = server.tables().list_tables(list).await.unwrap().into_inner();
    assert_eq!(listed.tables.len(), 1);
    server.stop().await;
}

#[tokio::test]
async fn a_table_that_is_made_while_its_instance_goes_is_not_left_without_one() {
    let server = start_with(&memory(), |config| config.strict_instances = true).await;
    let instance = "projects/p/instances/inst";
    for round in 0..100 {
        server.instances().create_instance(create_request("inst")).await.unwrap();
        let parent = instance.to_owned();
        let list = admin::ListTablesRequest { parent, ..Default::default() };
        let listed = server.tables().list_tables(list).await.unwrap().into_inner();
        assert!(listed.tables.is_empty(), "round {round}");
        let mut instances = server.instances();
        let delete = admin::DeleteInstanceRequest { name: instance.to_owned() };
        let (created, deleted) =
            tokio::join!(server.create_table(instance), instances.delete_instance(delete));
        deleted.unwrap();
        assert!(created.is_ok() || created.is_err_and(|status| status.code() == Code::NotFound));
    }
    server.stop().await;
}

#[tokio::test]
async fn hot_backups_and_tiers_of_storage_are_refused_on_hard_disks() {
    let server = start(&memory()).await;
    let on_hdd = |zone: &str| admin::Cluster {
        default_storage_type: admin::StorageType::Hdd.into(),
        ..cluster(zone)
    };
    let request = admin::CreateInstanceRequest {
        clusters: [("c1".to_owned(), on_hdd("zone-a"))].into(),
        ..create_request("disks")
    };
    server.instances().create_instance(request).await.unwrap();
    server.instances().create_instance(create_request("flash")).await.unwrap();
    let days = |days: i64| prost_types::Duration { seconds: days * 86_400, nanos: 0 };
    let in_a_week = prost_types::Timestamp {
        seconds: SystemClock::new().now_micros() / 1_000_000 + days(7).seconds,
        nanos: 0,
    };
    let rule = admin::tiered_storage_rule::Rule::IncludeIfOlderThan(days(30));
    let infrequent_access = Some(admin::TieredStorageRule { rule: Some(rule) });
    let tiered_storage_config = Some(admin::TieredStorageConfig { infrequent_access });
    for (instance, code) in [("disks", Code::FailedPrecondition), ("flash", Code::Ok)] {
        let instance = format!("projects/p/instances/{instance}");
        let table = server.create_table(&instance).await.unwrap().name;
        let code_of =
            |answer: Result<(), tonic::Status>| answer.map_or_else(|s| s.code(), |()| Code::Ok);
        let update = admin::UpdateTableRequest {
            table: Some(admin::Table {
                name: table.clone(),
                tiered_storage_config,
                ..Default::default()
            }),
            update_mask: Some(prost_types::FieldMask {
                paths: vec!["tiered_storage_config".to_owned()],
            }),
            ..Default::default()
        };
        let updated = server.tables().update_table(update).await;
        assert_eq!(code_of(updated.map(drop)), code, "{instance}");
        let create = admin::CreateTableRequest {
            parent: instance.clone(),
            table_id: "tiered".to_owned(),
            table: Some(admin::Table { tiered_storage_config, ..Default::default() }),
            ..Default::default()
        };
        let created = server.tables().create_table(create).await;
        assert_eq!(code_of(created.map(drop)), code, "{instance}");
        let policy = AutomatedBackupPolicy {
            retention_period: Some(days(7)),
            keep_hot_duration: Some(days(1)),
            ..Default::default()
        };
        let set = server.set_backup_policy(&table, policy).await;
        assert_eq!(code_of(set.map(drop)), code, "{instance}");
        let backup = |backup_type: admin::backup::BackupType| admin::CreateBackupRequest {
            parent: format!("{instance}/clusters/c1"),
            backup_id: backup_type.as_str_name().to_lowercase(),
            backup: Some(admin::Backup {
                source_table: table.clone(),
                expire_time: Some(in_a_week),
                backup_type: backup_type.into(),
                ..Default::default()
            }),
        };
        let hot = server.tables().create_backup(backup(admin::backup::BackupType::Hot)).await;
        assert_eq!(code_of(hot.map(drop)), code, "{instance}");
        server.tables().create_backup(backup(admin::backup::BackupType::Standard)).await.unwrap();
    }
    server.stop().await;
}

#[tokio::test]
async fn a_tables_settings_survive_a_restart_and_each_cluster_has_a_state() {
    let env = memory();
    let server = start(&env).await;
    server.instances().create_instance(create_request("inst")).await.unwrap();
    let table = server.create_table("projects/p/instances/inst").await.unwrap().name;
    let retention_period = Some(prost_types::Duration { seconds: 86_400, nanos: 0 });
    let update = |path: &str| admin::UpdateTableRequest {
        table: Some(admin::Table {
            name: table.clone(),
            change_stream_config: Some(admin::ChangeStreamConfig { retention_period }),
            ..Default::default()
        }),
        update_mask: Some(prost_types::FieldMask { paths: vec![path.to_owned()] }),
        ..Default::default()
    };
    let operation = server.tables().update_table(update("change_stream_config")).await.unwrap();
    let shown: admin::Table = unpack(response(operation.into_inner()), "Table");
    assert_eq!(shown.change_stream_config.unwrap().retention_period, retention_period);
    let status = server.tables().update_table(update("granularity")).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    server.stop().await;

    let server = start(&env).await;
    let view = admin::table::View::Full.into();
    let get = admin::GetTableRequest { name: table.clone(), view };
    let shown = server.tables().get_table(get).await.unwrap().into_inner();
    assert_eq!(shown.change_stream_config.unwrap().retention_period, retention_period);
    let mut clusters: Vec<_> = shown.cluster_states.keys().cloned().collect();
    clusters.sort();
    assert_eq!(clusters, ["c1", "c2"]);
    let delete = admin::DeleteTableRequest { name: table };
    let status = server.tables().delete_table(delete).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    let snapshot = admin::SnapshotTableRequest::default();
    let status = server.tables().snapshot_table(snapshot).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
    assert_eq!(status.message(), "BigtableTableAdmin.SnapshotTable is withdrawn; use CreateBackup");
    server.stop().await;
}

#[tokio::test]
async fn automated_backups_are_disabled_by_their_policy() {
    let server = start(&memory()).await;
    let table = server.create_table("projects/p/instances/i").await.unwrap().name;
    let disabled = AutomatedBackupPolicy { disabled: true, ..Default::default() };
    let shown = server.set_backup_policy(&table, disabled).await.unwrap();
    assert!(shown.automated_backup_policy.unwrap().disabled);
    let frequency = Some(prost_types::Duration { seconds: 86_400, nanos: 0 });
    let enabled = AutomatedBackupPolicy { frequency, ..Default::default() };
    let status = server.set_backup_policy(&table, enabled).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("retention_period must be set"), "{status}");
    // So Google's Java client takes a policy away.
    let nothing = AutomatedBackupPolicy::default();
    let shown = server.set_backup_policy(&table, nothing).await.unwrap();
    assert_eq!(shown.automated_backup_policy, None);
    server.stop().await;
}

#[tokio::test]
async fn hot_tablets_are_asked_for_by_cluster_and_time() {
    let server = start(&memory()).await;
    server.instances().create_instance(create_request("inst")).await.unwrap();
    let cluster = "projects/p/instances/inst/clusters/c1";
    let request = |parent: &str| admin::ListHotTabletsRequest {
        parent: parent.to_owned(),
        ..Default::default()
    };
    for parent in [cluster, "projects/p/instances/nobodys/clusters/tepui"] {
        let listed = server.instances().list_hot_tablets(request(parent)).await.unwrap();
        assert_eq!(listed.into_inner(), admin::ListHotTabletsResponse::default());
    }
    let epoch = Some(prost_types::Timestamp::default());
    for (request, code) in [
        (request("projects/p/instances/inst"), Code::InvalidArgument),
        (request("projects/p/instances/inst/clusters/c9"), Code::NotFound),
        (request("projects/p/instances/nobodys/clusters/c1"), Code::NotFound),
        (
            admin::ListHotTabletsRequest { start_time: epoch, ..request(cluster) },
            Code::InvalidArgument,
        ),
        (admin::ListHotTabletsRequest { page_size: -1, ..request(cluster) }, Code::InvalidArgument),
        (
            admin::ListHotTabletsRequest { page_token: "x".to_owned(), ..request(cluster) },
            Code::InvalidArgument,
        ),
    ] {
        let status = server.instances().list_hot_tablets(request.clone()).await.unwrap_err();
        assert_eq!(status.code(), code, "{request:?}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_new_cluster_tells_of_the_large_values_of_tables_too() {
    let server = start(&memory()).await;
    server.instances().create_instance(create_request("large")).await.unwrap();
    let instance = format!("{PARENT}/instances/large");
    let table = server.create_table(&instance).await.unwrap().name;
    // Does not compress.
    let mut x = 1u32;
    let mut byte = || {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (x >> 24) as u8
    };
    let value: Vec<u8> = std::iter::repeat_with(&mut byte).take(100 << 10).collect();
    let request = v2::MutateRowRequest {
        table_name: table.clone(),
        row_key: Bytes::from_static(b"row"),
        mutations: vec![set_cell("cf", &value)],
        ..Default::default()
    };
    server.data().mutate_row(request).await.unwrap();
    server.running.engine().compact_fully().unwrap();
    let request = admin::CreateClusterRequest {
        parent: instance,
        cluster_id: "c3".to_owned(),
        cluster: Some(cluster("zone-c")),
    };
    let created = server.instances().create_cluster(request).await.unwrap().into_inner();
    let metadata: admin::CreateClusterMetadata = unpack(created.metadata, "CreateClusterMetadata");
    let bytes = metadata.tables[&table].estimated_size_bytes;
    assert!((100 << 10..110 << 10).contains(&bytes), "{bytes}");
    server.stop().await;
}
