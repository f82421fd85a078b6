//! Every RPC of the four services, in one table: `build.rs` includes this file and generates their dispatch from
//! it, and a test holds `docs/compatibility.md` to it. 84 RPCs of Bigtable and 5 of long-running operations.
//!
//! A supported RPC dispatches to the method `on_<rpc in snake case>` of its service; any other answers
//! UNIMPLEMENTED with its name, and one that Bigtable has withdrawn with what to call instead.

/// What is counted in the message of a request before it is decoded: many times its size could come of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// All fields that have a length.
    Fields,
    /// The parts that its type names (`tepui_bigtable::parts`).
    Parts,
    /// Nothing.
    Nothing,
}

/// What an answer of one message takes of the room for answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// It is small, or sees to that itself.
    Little,
    /// It may be large, and what is made of it goes out, unless its connection has left too much of that unread.
    Perhaps,
    /// It is waited for before the answer is made.
    Before,
}

/// One RPC.
#[derive(Debug, Clone, Copy)]
pub struct Rpc {
    /// Its name, for example `ReadRows`.
    pub name: &'static str,
    /// Request type, a path within `crate::api`.
    pub input: &'static str,
    /// Response type, a path within `crate::api`.
    pub output: &'static str,
    /// Whether the response is a stream.
    pub streams: bool,
    /// Whether the request is one too. None of these is served yet.
    pub takes_stream: bool,
    /// Whether it is served.
    pub supported: bool,
    /// Whether it writes rows, and so waits for the log, which may stand still.
    pub writes: bool,
    /// What is counted in its request before it is decoded.
    pub counted: Counted,
    /// What its answer takes.
    pub room: Room,
    /// For one that Bigtable itself has withdrawn: what to call instead.
    pub instead: Option<&'static str>,
}

/// One gRPC service.
#[derive(Debug, Clone, Copy)]
pub struct Service {
    /// The package of its proto.
    pub package: &'static str,
    /// Its name within the package.
    pub name: &'static str,
    /// The type that serves it, a path within the crate.
    pub served_by: &'static str,
    /// Its RPCs in the order of the proto.
    pub rpcs: &'static [Rpc],
}

const fn served(name: &'static str, input: &'static str, output: &'static str) -> Rpc {
    Rpc {
        name,
        input,
        output,
        streams: false,
        takes_stream: false,
        supported: true,
        writes: false,
        counted: Counted::Fields,
        room: Room::Perhaps,
        instead: None,
    }
}

const fn not_yet(name: &'static str, input: &'static str, output: &'static str) -> Rpc {
    Rpc { supported: false, ..served(name, input, output) }
}

/// One that writes rows.
const fn writing(rpc: Rpc) -> Rpc {
    Rpc { writes: true, ..rpc }
}

/// One whose request knows what may repeat in it.
const fn repeating(rpc: Rpc) -> Rpc {
    Rpc { counted: Counted::Parts, ..rpc }
}

/// One in whose request nothing repeats but what looks like fields.
const fn uncounted(rpc: Rpc) -> Rpc {
    Rpc { counted: Counted::Nothing, ..rpc }
}

/// One whose answer may be large, and is made once there is room for it.
const fn large(rpc: Rpc) -> Rpc {
    Rpc { room: Room::Before, ..rpc }
}

/// One whose answer is small.
const fn small(rpc: Rpc) -> Rpc {
    Rpc { room: Room::Little, ..rpc }
}

/// Not served by anybody any more: its answer names what to call instead.
const fn withdrawn(rpc: Rpc, instead: &'static str) -> Rpc {
    Rpc { instead: Some(instead), ..rpc }
}

/// One whose answer is a stream, which sees to the room of its messages.
const fn streaming(rpc: Rpc) -> Rpc {
    Rpc { streams: true, room: Room::Little, ..rpc }
}

/// An RPC whose messages the message crates do not know; it is refused before one is decoded.
const fn unknown(name: &'static str) -> Rpc {
    not_yet(name, "Empty", "Empty")
}

const fn session(name: &'static str) -> Rpc {
    Rpc { streams: true, takes_stream: true, ..unknown(name) }
}

/// The services.
pub const SERVICES: &[Service] = &[
    Service {
        package: "google.bigtable.v2",
        name: "Bigtable",
        served_by: "services::DataService",
        rpcs: DATA,
    },
    Service {
        package: "google.bigtable.admin.v2",
        name: "BigtableTableAdmin",
        served_by: "services::TableAdminService",
        rpcs: TABLES,
    },
    Service {
        package: "google.bigtable.admin.v2",
        name: "BigtableInstanceAdmin",
        served_by: "services::InstanceAdminService",
        rpcs: INSTANCES,
    },
    Service {
        package: "google.longrunning",
        name: "Operations",
        served_by: "services::OperationsService",
        rpcs: OPERATIONS,
    },
];

const DATA: &[Rpc] = &[
    streaming(repeating(served("ReadRows", "kept::ReadRowsRequest", "kept::ReadRowsResponse"))),
    streaming(served("SampleRowKeys", "kept::SampleRowKeysRequest", "v2::SampleRowKeysResponse")),
    writing(repeating(small(served(
        "MutateRow",
        "kept::MutateRowRequest",
        "v2::MutateRowResponse",
    )))),
    writing(streaming(repeating(served(
        "MutateRows",
        "kept::MutateRowsRequest",
        "v2::MutateRowsResponse",
    )))),
    writing(repeating(small(served(
        "CheckAndMutateRow",
        "kept::CheckAndMutateRowRequest",
        "v2::CheckAndMutateRowResponse",
    )))),
    small(served("PingAndWarm", "v2::PingAndWarmRequest", "v2::PingAndWarmResponse")),
    writing(repeating(served(
        "ReadModifyWriteRow",
        "v2::ReadModifyWriteRowRequest",
        "kept::ReadModifyWriteRowResponse",
    ))),
    streaming(served(
        "GenerateInitialChangeStreamPartitions",
        "v2::GenerateInitialChangeStreamPartitionsRequest",
        "v2::GenerateInitialChangeStreamPartitionsResponse",
    )),
    streaming(repeating(served(
        "ReadChangeStream",
        "v2::ReadChangeStreamRequest",
        "v2::ReadChangeStreamResponse",
    ))),
    not_yet("PrepareQuery", "v2::PrepareQueryRequest", "v2::PrepareQueryResponse"),
    streaming(not_yet("ExecuteQuery", "v2::ExecuteQueryRequest", "v2::ExecuteQueryResponse")),
    small(served(
        "GetClientConfiguration",
        "session::GetClientConfigurationRequest",
        "session::ClientConfiguration",
    )),
    session("OpenTable"),
    session("OpenAuthorizedView"),
    session("OpenMaterializedView"),
];

const TABLES: &[Rpc] = &[
    served("CreateTable", "spelled_out::CreateTableRequest", "spelled_out::Table"),
    withdrawn(
        not_yet(
            "CreateTableFromSnapshot",
            "admin::CreateTableFromSnapshotRequest",
            "longrunning::Operation",
        ),
        "RestoreTable",
    ),
    large(served("ListTables", "admin::ListTablesRequest", "spelled_out::ListTablesResponse")),
    served("GetTable", "admin::GetTableRequest", "spelled_out::Table"),
    served("UpdateTable", "spelled_out::UpdateTableRequest", "longrunning::Operation"),
    served("DeleteTable", "admin::DeleteTableRequest", "Empty"),
    served("UndeleteTable", "admin::UndeleteTableRequest", "longrunning::Operation"),
    served("CreateAuthorizedView", "admin::CreateAuthorizedViewRequest", "longrunning::Operation"),
    large(served(
        "ListAuthorizedViews",
        "admin::ListAuthorizedViewsRequest",
        "admin::ListAuthorizedViewsResponse",
    )),
    served("GetAuthorizedView", "admin::GetAuthorizedViewRequest", "admin::AuthorizedView"),
    served("UpdateAuthorizedView", "admin::UpdateAuthorizedViewRequest", "longrunning::Operation"),
    served("DeleteAuthorizedView", "admin::DeleteAuthorizedViewRequest", "Empty"),
    served("ModifyColumnFamilies", "admin::ModifyColumnFamiliesRequest", "spelled_out::Table"),
    served("DropRowRange", "admin::DropRowRangeRequest", "Empty"),
    served(
        "GenerateConsistencyToken",
        "admin::GenerateConsistencyTokenRequest",
        "admin::GenerateConsistencyTokenResponse",
    ),
    served("CheckConsistency", "admin::CheckConsistencyRequest", "admin::CheckConsistencyResponse"),
    withdrawn(
        not_yet("SnapshotTable", "admin::SnapshotTableRequest", "longrunning::Operation"),
        "CreateBackup",
    ),
    withdrawn(not_yet("GetSnapshot", "admin::GetSnapshotRequest", "admin::Snapshot"), "GetBackup"),
    withdrawn(
        not_yet("ListSnapshots", "admin::ListSnapshotsRequest", "admin::ListSnapshotsResponse"),
        "ListBackups",
    ),
    withdrawn(not_yet("DeleteSnapshot", "admin::DeleteSnapshotRequest", "Empty"), "DeleteBackup"),
    served("CreateBackup", "admin::CreateBackupRequest", "longrunning::Operation"),
    served("GetBackup", "admin::GetBackupRequest", "admin::Backup"),
    served("UpdateBackup", "admin::UpdateBackupRequest", "admin::Backup"),
    served("DeleteBackup", "admin::DeleteBackupRequest", "Empty"),
    large(served("ListBackups", "admin::ListBackupsRequest", "admin::ListBackupsResponse")),
    served("RestoreTable", "admin::RestoreTableRequest", "longrunning::Operation"),
    served("CopyBackup", "admin::CopyBackupRequest", "longrunning::Operation"),
    served("GetIamPolicy", "iam::GetIamPolicyRequest", "iam::Policy"),
    served("SetIamPolicy", "iam::SetIamPolicyRequest", "iam::Policy"),
    served(
        "TestIamPermissions",
        "iam::TestIamPermissionsRequest",
        "iam::TestIamPermissionsResponse",
    ),
    uncounted(served(
        "CreateSchemaBundle",
        "bundles::CreateSchemaBundleRequest",
        "longrunning::Operation",
    )),
    uncounted(served(
        "UpdateSchemaBundle",
        "bundles::UpdateSchemaBundleRequest",
        "longrunning::Operation",
    )),
    large(served("GetSchemaBundle", "admin::GetSchemaBundleRequest", "admin::SchemaBundle")),
    large(served(
        "ListSchemaBundles",
        "admin::ListSchemaBundlesRequest",
        "admin::ListSchemaBundlesResponse",
    )),
    served("DeleteSchemaBundle", "admin::DeleteSchemaBundleRequest", "Empty"),
];

const INSTANCES: &[Rpc] = &[
    served("CreateInstance", "instances::CreateInstanceRequest", "longrunning::Operation"),
    served("GetInstance", "admin::GetInstanceRequest", "instances::Instance"),
    large(served(
        "ListInstances",
        "admin::ListInstancesRequest",
        "instances::ListInstancesResponse",
    )),
    served("UpdateInstance", "instances::Instance", "instances::Instance"),
    served(
        "PartialUpdateInstance",
        "instances::PartialUpdateInstanceRequest",
        "longrunning::Operation",
    ),
    served("DeleteInstance", "admin::DeleteInstanceRequest", "Empty"),
    served("CreateCluster", "admin::CreateClusterRequest", "longrunning::Operation"),
    served("GetCluster", "admin::GetClusterRequest", "admin::Cluster"),
    large(served("ListClusters", "admin::ListClustersRequest", "admin::ListClustersResponse")),
    served("UpdateCluster", "admin::Cluster", "longrunning::Operation"),
    served("PartialUpdateCluster", "admin::PartialUpdateClusterRequest", "longrunning::Operation"),
    served("DeleteCluster", "admin::DeleteClusterRequest", "Empty"),
    served("CreateAppProfile", "admin::CreateAppProfileRequest", "admin::AppProfile"),
    served("GetAppProfile", "admin::GetAppProfileRequest", "admin::AppProfile"),
    large(served(
        "ListAppProfiles",
        "admin::ListAppProfilesRequest",
        "admin::ListAppProfilesResponse",
    )),
    served("UpdateAppProfile", "admin::UpdateAppProfileRequest", "longrunning::Operation"),
    served("DeleteAppProfile", "admin::DeleteAppProfileRequest", "Empty"),
    served("GetIamPolicy", "iam::GetIamPolicyRequest", "iam::Policy"),
    served("SetIamPolicy", "iam::SetIamPolicyRequest", "iam::Policy"),
    served(
        "TestIamPermissions",
        "iam::TestIamPermissionsRequest",
        "iam::TestIamPermissionsResponse",
    ),
    large(served(
        "ListHotTablets",
        "admin::ListHotTabletsRequest",
        "admin::ListHotTabletsResponse",
    )),
    not_yet("CreateLogicalView", "admin::CreateLogicalViewRequest", "longrunning::Operation"),
    not_yet("GetLogicalView", "admin::GetLogicalViewRequest", "admin::LogicalView"),
    not_yet(
        "ListLogicalViews",
        "admin::ListLogicalViewsRequest",
        "admin::ListLogicalViewsResponse",
    ),
    not_yet("UpdateLogicalView", "admin::UpdateLogicalViewRequest", "longrunning::Operation"),
    not_yet("DeleteLogicalView", "admin::DeleteLogicalViewRequest", "Empty"),
    not_yet(
        "CreateMaterializedView",
        "admin::CreateMaterializedViewRequest",
        "longrunning::Operation",
    ),
    not_yet("GetMaterializedView", "admin::GetMaterializedViewRequest", "admin::MaterializedView"),
    not_yet(
        "ListMaterializedViews",
        "admin::ListMaterializedViewsRequest",
        "admin::ListMaterializedViewsResponse",
    ),
    not_yet(
        "UpdateMaterializedView",
        "admin::UpdateMaterializedViewRequest",
        "longrunning::Operation",
    ),
    not_yet("DeleteMaterializedView", "admin::DeleteMaterializedViewRequest", "Empty"),
    unknown("GetMemoryLayer"),
    unknown("ListMemoryLayers"),
    unknown("UpdateMemoryLayer"),
];

const OPERATIONS: &[Rpc] = &[
    large(served(
        "ListOperations",
        "longrunning::ListOperationsRequest",
        "longrunning::ListOperationsResponse",
    )),
    served("GetOperation", "longrunning::GetOperationRequest", "longrunning::Operation"),
    served("DeleteOperation", "longrunning::DeleteOperationRequest", "Empty"),
    served("CancelOperation", "longrunning::CancelOperationRequest", "Empty"),
    served("WaitOperation", "longrunning::WaitOperationRequest", "longrunning::Operation"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_84_rpcs_of_bigtable_and_5_of_operations() {
        let count = |name: &str| SERVICES.iter().find(|s| s.name == name).unwrap().rpcs.len();
        let bigtable = ["Bigtable", "BigtableTableAdmin", "BigtableInstanceAdmin"].map(count);
        assert_eq!(bigtable.iter().sum::<usize>(), 84);
        assert_eq!(count("Operations"), 5);
    }

    #[test]
    fn the_page_of_rpcs_says_what_the_table_says() {
        let page = include_str!("../../../docs/compatibility.md");
        // Sections of other things come after those of the services.
        let sections: Vec<_> = page.split("\n## ").skip(1).take(SERVICES.len()).collect();
        assert_eq!(sections.len(), SERVICES.len());
        for (service, section) in SERVICES.iter().zip(sections) {
            let served = service.rpcs.iter().filter(|rpc| rpc.supported).count();
            let (package, name, all) = (service.package, service.name, service.rpcs.len());
            let title = format!("{package}.{name} ({served} of {all})\n");
            assert!(section.starts_with(&title), "{title}");
            let listed = section.lines().filter(|line| line.starts_with("| ")).skip(2);
            let expected = service.rpcs.iter().map(|rpc| {
                let served = match (rpc.supported, rpc.instead) {
                    (true, _) => "yes",
                    (false, Some(_)) => "withdrawn",
                    (false, None) => "not yet",
                };
                format!("| {} | {served} |", rpc.name)
            });
            // What other servers do stands in the columns behind.
            let (listed, expected): (Vec<_>, Vec<_>) = (listed.collect(), expected.collect());
            assert_eq!(listed.len(), expected.len(), "{title}");
            for (listed, expected) in listed.iter().zip(expected) {
                assert!(listed.starts_with(&expected), "{listed}, not {expected}");
            }
        }
    }
}
