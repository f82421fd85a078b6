//! Requests that name what is not there, or are not well-formed: the code and the reason that each gets, and that
//! nothing has changed afterwards.

use tepui_engine::io::Clock as _;

use super::*;

const MADE: &str = "projects/p/instances/made";
const MISSING: &str = "projects/p/instances/missing";

/// What was asked for, how it was answered, and how it is to be refused: the code, and a part of the message.
type Case = (&'static str, Option<tonic::Status>, Code, &'static str);

fn case<T>(
    what: &'static str,
    answer: Result<tonic::Response<T>, tonic::Status>,
    code: Code,
    part: &'static str,
) -> Case {
    (what, answer.err(), code, part)
}

fn assert_refused(cases: Vec<Case>) {
    for (what, answer, code, part) in cases {
        let status = answer.unwrap_or_else(|| panic!("{what}: it was not refused"));
        assert_eq!(status.code(), code, "{what}: {status}");
        assert!(status.message().contains(part), "{what}: {part:?} is not in {status}");
    }
}

/// All that the API lists.
#[derive(Debug, PartialEq)]
struct Listed {
    instances: admin::ListInstancesResponse,
    clusters: admin::ListClustersResponse,
    profiles: admin::ListAppProfilesResponse,
    tables: admin::ListTablesResponse,
    backups: admin::ListBackupsResponse,
    operations: longrunning::ListOperationsResponse,
}

fn mask(path: &str) -> Option<prost_types::FieldMask> {
    Some(prost_types::FieldMask { paths: vec![path.to_owned()] })
}

impl TestServer {
    /// A server with an instance of two clusters, with a table and a backup of it in the first.
    async fn with_all_kinds() -> Self {
        let server = start(&memory()).await;
        server.create_two_clusters("made").await;
        server.create_table(MADE).await.unwrap();
        let tomorrow = SystemClock::new().now_micros() / 1_000_000 + 24 * 60 * 60;
        let backup = admin::Backup {
            source_table: format!("{MADE}/tables/t"),
            expire_time: Some(prost_types::Timestamp { seconds: tomorrow, nanos: 0 }),
            ..admin::Backup::default()
        };
        let request = admin::CreateBackupRequest {
            parent: format!("{MADE}/clusters/c1"),
            backup_id: "b".to_owned(),
            backup: Some(backup),
        };
        let name = server.tables().create_backup(request).await.unwrap().into_inner().name;
        let wait = longrunning::WaitOperationRequest { name, timeout: None };
        assert!(server.operations().wait_operation(wait).await.unwrap().into_inner().done);
        server
    }

    async fn listed(&self) -> Listed {
        let (mut instances, mut tables) = (self.instances(), self.tables());
        let parent = "projects/p".to_owned();
        let of_project = admin::ListInstancesRequest { parent, ..Default::default() };
        let parent = || "projects/p/instances/-".to_owned();
        let clusters = admin::ListClustersRequest { parent: parent(), ..Default::default() };
        let profiles = admin::ListAppProfilesRequest { parent: parent(), ..Default::default() };
        let (parent, view) = (MADE.to_owned(), admin::table::View::Full.into());
        let of_made = admin::ListTablesRequest { parent, view, ..Default::default() };
        let parent = format!("{MADE}/clusters/c1");
        let backups = admin::ListBackupsRequest { parent, ..Default::default() };
        let name = "operations".to_owned();
        let operations = longrunning::ListOperationsRequest { name, ..Default::default() };
        Listed {
            instances: instances.list_instances(of_project).await.unwrap().into_inner(),
            clusters: instances.list_clusters(clusters).await.unwrap().into_inner(),
            profiles: instances.list_app_profiles(profiles).await.unwrap().into_inner(),
            tables: tables.list_tables(of_made).await.unwrap().into_inner(),
            backups: tables.list_backups(backups).await.unwrap().into_inner(),
            operations: self.operations().list_operations(operations).await.unwrap().into_inner(),
        }
    }
}

#[tokio::test]
async fn what_is_wrong_with_a_request_about_instances_is_said_and_nothing_changes() {
    let server = TestServer::with_all_kinds().await;
    let before = server.listed().await;
    let mut client = server.instances();
    let (bad, missing, held) = (Code::InvalidArgument, Code::NotFound, Code::FailedPrecondition);
    let of_project = "parent must be of the form projects/{project}, got";
    let instance = "must be of the form projects/{project}/instances/{instance}, got";
    let cluster = "name must be of the form projects/{project}/instances/{instance}/clusters/";
    let profile = "name must be of the form projects/{project}/instances/{instance}/appProfiles/";
    let mut cases = Vec::new();

    for (what, parent) in [("no parent", ""), ("an instance", MADE), ("no project", "projects/")] {
        let request =
            admin::ListInstancesRequest { parent: parent.to_owned(), ..Default::default() };
        cases.push(case(what, client.list_instances(request).await, bad, of_project));
    }
    for (what, parent, code, part) in [
        ("clusters of nothing", "", bad, instance),
        ("clusters of a project", "projects/p", bad, instance),
        ("clusters of a cluster", "projects/p/instances/made/clusters/c1", bad, instance),
        (
            "clusters of a missing instance",
            MISSING,
            missing,
            "instance \"projects/p/instances/missing\"",
        ),
    ] {
        let request =
            admin::ListClustersRequest { parent: parent.to_owned(), ..Default::default() };
        cases.push(case(what, client.list_clusters(request).await, code, part));
    }
    let clusters = [
        ("a cluster without a name", "", bad, cluster),
        ("a cluster by an instance's name", MADE, bad, cluster),
        ("a missing cluster", "projects/p/instances/made/clusters/c9", missing, "cluster \""),
        ("a cluster of nobody", "projects/p/instances/missing/clusters/c1", missing, "cluster \""),
    ];
    for (what, name, code, part) in clusters {
        let name = name.to_owned();
        let get = admin::GetClusterRequest { name: name.clone() };
        cases.push(case(what, client.get_cluster(get).await, code, part));
        let delete = admin::DeleteClusterRequest { name };
        cases.push(case(what, client.delete_cluster(delete).await, code, part));
    }
    let delete = || admin::DeleteClusterRequest { name: format!("{MADE}/clusters/c1") };
    let routed = "app profile \"projects/p/instances/made/appProfiles/default\" routes to cluster";
    cases.push(case("a cluster in use", client.delete_cluster(delete()).await, held, routed));

    let part = "while backup \"projects/p/instances/made/clusters/c1/backups/b\" is in it";
    let named = |name: &str, display_name: &str| admin::Instance {
        name: name.to_owned(),
        display_name: display_name.to_owned(),
        ..Default::default()
    };
    let too_long = "x".repeat(129);
    for (what, request, code, part) in [
        ("an update without a name", named("", "new"), bad, instance),
        ("an update of a table", named("projects/p/instances/made/tables/t", "new"), bad, instance),
        ("an update of a missing instance", named(MISSING, "new"), missing, "instance \""),
        ("no display name", named(MADE, ""), bad, "instance.display_name must have 1 to 128"),
        ("a long display name", named(MADE, &too_long), bad, "characters, got 129"),
        (
            "an unknown type",
            admin::Instance { r#type: 77, ..named(MADE, "new") },
            bad,
            "instance.type: 77",
        ),
    ] {
        cases.push(case(what, client.update_instance(request).await, code, part));
    }
    for (what, name, code, part) in [
        ("deletion without a name", "", bad, instance),
        ("deletion of a project", "projects/p", bad, instance),
        ("deletion of a missing instance", MISSING, missing, "instance \""),
        ("deletion of an instance with a backup", MADE, held, part),
    ] {
        let request = admin::DeleteInstanceRequest { name: name.to_owned() };
        cases.push(case(what, client.delete_instance(request).await, code, part));
    }
    for (what, name, ignore_warnings, code, part) in [
        ("a profile without a name", "", true, bad, profile),
        ("a profile by an instance's name", MADE, true, bad, profile),
        (
            "a missing profile",
            "projects/p/instances/made/appProfiles/x",
            true,
            missing,
            "app profile \"",
        ),
        (
            "the default profile",
            "projects/p/instances/made/appProfiles/default",
            true,
            held,
            "cannot be deleted",
        ),
        (
            "a profile in use",
            "projects/p/instances/made/appProfiles/second",
            false,
            held,
            "ignore_warnings",
        ),
    ] {
        let request = admin::DeleteAppProfileRequest { name: name.to_owned(), ignore_warnings };
        cases.push(case(what, client.delete_app_profile(request).await, code, part));
    }
    assert_refused(cases);
    assert_eq!(server.listed().await, before);

    // Once no profile routes there, the backup alone holds the cluster.
    let routing = admin::app_profile::SingleClusterRouting {
        cluster_id: "c2".to_owned(),
        allow_transactional_writes: true,
    };
    let routing = admin::app_profile::RoutingPolicy::SingleClusterRouting(routing);
    let reroute = admin::UpdateAppProfileRequest {
        app_profile: Some(admin::AppProfile {
            name: format!("{MADE}/appProfiles/default"),
            routing_policy: Some(routing),
            ..Default::default()
        }),
        update_mask: mask("single_cluster_routing"),
        ignore_warnings: true,
    };
    client.update_app_profile(reroute).await.unwrap();
    let before = server.listed().await;
    let answer = client.delete_cluster(delete()).await;
    assert_refused(vec![case("a cluster with a backup", answer, held, part)]);
    assert_eq!(server.listed().await, before);
    let name = format!("{MADE}/clusters/c1/backups/b");
    server.tables().delete_backup(admin::DeleteBackupRequest { name }).await.unwrap();
    client.delete_cluster(delete()).await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn what_is_wrong_with_a_request_about_tables_is_said_and_nothing_changes() {
    let server = TestServer::with_all_kinds().await;
    let before = server.listed().await;
    let mut client = server.tables();
    let (bad, missing) = (Code::InvalidArgument, Code::NotFound);
    let shape = "name must be of the form projects/{project}/instances/{instance}/tables/{table}";
    let not_found = "table \"projects/p/instances/made/tables/x\" not found";
    let gone = "projects/p/instances/made/tables/x";
    let table = "projects/p/instances/made/tables/t";
    let names = [
        ("no name", "", bad, shape),
        ("an instance's name", MADE, bad, shape),
        ("a view's name", "projects/p/instances/made/tables/t/authorizedViews/v", bad, shape),
        ("a missing table", gone, missing, not_found),
    ];
    let mut cases = Vec::new();
    for (what, name, code, part) in names {
        let name = || name.to_owned();
        let token = admin::GenerateConsistencyTokenRequest { name: name() };
        cases.push(case(what, client.generate_consistency_token(token).await, code, part));
        let consistency_token = "0000000000000001-1".to_owned();
        let check = admin::CheckConsistencyRequest { name: name(), consistency_token, mode: None };
        cases.push(case(what, client.check_consistency(check).await, code, part));
        let target = Some(Target::DeleteAllDataFromTable(true));
        let drop_rows = admin::DropRowRangeRequest { name: name(), target };
        cases.push(case(what, client.drop_row_range(drop_rows).await, code, part));
        let update = admin::UpdateTableRequest {
            table: Some(admin::Table { name: name(), ..Default::default() }),
            update_mask: mask("deletion_protection"),
            ..Default::default()
        };
        cases.push(case(what, client.update_table(update).await, code, part));
        let delete = admin::DeleteTableRequest { name: name() };
        cases.push(case(what, client.delete_table(delete).await, code, part));
    }
    for (what, target, part) in [
        ("rows of no target", None, "one of row_key_prefix and delete_all_data_from_table"),
        ("rows of no prefix", Some(Target::RowKeyPrefix(Bytes::new())), "must be non-empty"),
    ] {
        let request = admin::DropRowRangeRequest { name: table.to_owned(), target };
        cases.push(case(what, client.drop_row_range(request).await, bad, part));
    }
    let update = |update_mask| admin::UpdateTableRequest {
        table: Some(admin::Table {
            name: table.to_owned(),
            deletion_protection: true,
            ..Default::default()
        }),
        update_mask,
        ..Default::default()
    };
    let no_table = admin::UpdateTableRequest { table: None, ..update(mask("deletion_protection")) };
    for (what, request, code, part) in [
        ("an update of no table", no_table, bad, "table must be set"),
        ("no mask", update(None), bad, "A non-empty 'update_mask'"),
        ("an empty mask", update(Some(prost_types::FieldMask::default())), bad, "A non-empty"),
        ("a mask that names nothing", update(mask("x")), bad, "\"x\" cannot be updated"),
        ("a mask that names the name", update(mask("name")), bad, "\"name\" cannot be updated"),
        (
            "a mask that names families",
            update(mask("column_families")),
            Code::Unimplemented,
            "use ModifyColumnFamilies",
        ),
    ] {
        cases.push(case(what, client.update_table(request).await, code, part));
    }
    for (what, name, code, part) in [
        ("undeletion without a name", "", bad, shape),
        ("undeletion of an instance", MADE, bad, shape),
        ("undeletion of nothing", gone, missing, "no deleted table"),
        ("undeletion of what is there", table, Code::AlreadyExists, "is not deleted"),
    ] {
        let request = admin::UndeleteTableRequest { name: name.to_owned() };
        cases.push(case(what, client.undelete_table(request).await, code, part));
    }
    let list = admin::ListTablesRequest { parent: MADE.to_owned(), ..Default::default() };
    let token =
        |token: &str| admin::ListTablesRequest { page_token: token.to_owned(), ..list.clone() };
    let parent =
        |parent: &str| admin::ListTablesRequest { parent: parent.to_owned(), ..list.clone() };
    let of_instance = "parent must be of the form projects/{project}/instances/{instance}, got";
    for (what, request, part) in [
        ("a token of nobody", token("x"), "bad page_token \"x\""),
        ("another instance's token", token("projects/p/instances/i/tables/t"), "bad page_token"),
        (
            "a negative page",
            admin::ListTablesRequest { page_size: -1, ..list.clone() },
            "page_size",
        ),
        (
            "an unknown view",
            admin::ListTablesRequest { view: 77, ..list.clone() },
            "unknown view 77",
        ),
        ("tables of nothing", parent(""), of_instance),
        ("tables of a project", parent("projects/p"), of_instance),
        ("tables of a table", parent(table), of_instance),
    ] {
        cases.push(case(what, client.list_tables(request).await, bad, part));
    }
    assert_refused(cases);
    assert_eq!(server.listed().await, before);
    server.stop().await;
}

#[tokio::test]
async fn what_is_wrong_with_a_request_about_rows_or_operations_is_said_and_nothing_changes() {
    let server = TestServer::with_all_kinds().await;
    let before = server.listed().await;
    let (bad, missing) = (Code::InvalidArgument, Code::NotFound);
    let table = "must be of the form projects/{project}/instances/{instance}/tables/{table}";
    let instance = "must be of the form projects/{project}/instances/{instance}, got";
    let mut cases = Vec::new();
    for (what, name, profile, code, part) in [
        ("samples without a name", "", "", bad, table),
        ("samples of an instance", MADE, "", bad, table),
        (
            "samples of a missing table",
            "projects/p/instances/made/tables/x",
            "",
            missing,
            "table \"",
        ),
        (
            "samples of a table of nobody",
            "projects/p/instances/missing/tables/t",
            "",
            missing,
            "table \"",
        ),
        (
            "samples by a missing profile",
            "projects/p/instances/made/tables/t",
            "x",
            missing,
            "app profile \"",
        ),
    ] {
        let (table_name, app_profile_id) = (name.to_owned(), profile.to_owned());
        let request = v2::SampleRowKeysRequest { table_name, app_profile_id, ..Default::default() };
        cases.push(case(what, server.data().sample_row_keys(request).await, code, part));
    }
    for (what, name, profile, code, part) in [
        ("warming without a name", "", "", bad, instance),
        ("warming a table", "projects/p/instances/made/tables/t", "", bad, instance),
        ("warming by a missing profile", MADE, "x", missing, "app profile \""),
    ] {
        let (name, app_profile_id) = (name.to_owned(), profile.to_owned());
        let request = v2::PingAndWarmRequest { name, app_profile_id };
        cases.push(case(what, server.data().ping_and_warm(request).await, code, part));
    }
    for (what, name) in [
        ("deletion of no operation", ""),
        ("deletion of a table as an operation", "projects/p/instances/made/tables/t"),
        ("deletion of a missing operation", "operations/projects/p/instances/made/operations/1"),
    ] {
        let request = longrunning::DeleteOperationRequest { name: name.to_owned() };
        let answer = server.operations().delete_operation(request).await;
        cases.push(case(what, answer, missing, "operation \""));
    }
    assert_refused(cases);
    assert_eq!(server.listed().await, before);
    server.stop().await;
}

#[tokio::test]
async fn a_strict_server_warms_only_instances_that_were_created() {
    let server = start_with(&memory(), |config| config.strict_instances = true).await;
    server.create_two_clusters("made").await;
    let ping = |name: &str| v2::PingAndWarmRequest { name: name.to_owned(), ..Default::default() };
    server.data().ping_and_warm(ping(MADE)).await.unwrap();
    let answer = server.data().ping_and_warm(ping(MISSING)).await;
    let part = "instance \"projects/p/instances/missing\" not found";
    assert_refused(vec![case("an instance of nobody", answer, Code::NotFound, part)]);
    server.stop().await;
}
