//! IAM policies and permissions, on every kind of resource.

use admin::authorized_view::{AuthorizedView as Type, SubsetView};
use tepui_engine::io::Clock as _;
use tepui_server::api::{Expr, iam};

use super::*;

const VIEW: &str = "projects/p/instances/i/tables/t/authorizedViews/v";
const BUNDLE: &str = "projects/p/instances/i/tables/t/schemaBundles/b";
const BACKUP: &str = "projects/p/instances/i/clusters/c/backups/b";

/// The calls of both services, by the resource's name.
impl TestServer {
    fn is_instance(name: &str) -> bool {
        !name.contains("/tables/") && !name.contains("/clusters/")
    }

    async fn policy(&self, name: &str, version: i32) -> Result<iam::Policy, tonic::Status> {
        let options = Some(iam::GetPolicyOptions { requested_policy_version: version });
        let request = iam::GetIamPolicyRequest { resource: name.to_owned(), options };
        let policy = if Self::is_instance(name) {
            self.instances().get_iam_policy(request).await?
        } else {
            self.tables().get_iam_policy(request).await?
        };
        Ok(policy.into_inner())
    }

    async fn set_policy(
        &self,
        name: &str,
        policy: Option<iam::Policy>,
    ) -> Result<iam::Policy, tonic::Status> {
        let request =
            iam::SetIamPolicyRequest { resource: name.to_owned(), policy, update_mask: None };
        let policy = if Self::is_instance(name) {
            self.instances().set_iam_policy(request).await?
        } else {
            self.tables().set_iam_policy(request).await?
        };
        Ok(policy.into_inner())
    }

    async fn granted(&self, name: &str, asked: &[&str]) -> Result<Vec<String>, tonic::Status> {
        let permissions = asked.iter().map(|asked| (*asked).to_owned()).collect();
        let request = iam::TestIamPermissionsRequest { resource: name.to_owned(), permissions };
        let granted = if Self::is_instance(name) {
            self.instances().test_iam_permissions(request).await?
        } else {
            self.tables().test_iam_permissions(request).await?
        };
        Ok(granted.into_inner().permissions)
    }

    async fn with_table_and_view(env: &Env) -> Self {
        let server = start(env).await;
        server.create(&[]).await;
        server.make_view().await;
        server
    }

    /// Makes the backup or the schema bundle of this name.
    async fn make(&self, name: &str) {
        if name == BUNDLE {
            let schema = super::types::schema(&[]);
            return self.create_bundle(TABLE, "b", schema).await.unwrap();
        }
        let tomorrow = SystemClock::new().now_micros() / 1_000_000 + 24 * 60 * 60;
        let expire_time = Some(prost_types::Timestamp { seconds: tomorrow, nanos: 0 });
        let backup = admin::Backup {
            source_table: TABLE.to_owned(),
            expire_time,
            ..admin::Backup::default()
        };
        let request = admin::CreateBackupRequest {
            parent: "projects/p/instances/i/clusters/c".to_owned(),
            backup_id: "b".to_owned(),
            backup: Some(backup),
        };
        self.tables().create_backup(request).await.unwrap();
    }

    async fn make_view(&self) {
        let view = admin::AuthorizedView {
            authorized_view: Some(Type::SubsetView(SubsetView::default())),
            ..admin::AuthorizedView::default()
        };
        let request = admin::CreateAuthorizedViewRequest {
            parent: TABLE.to_owned(),
            authorized_view_id: "v".to_owned(),
            authorized_view: Some(view),
        };
        self.tables().create_authorized_view(request).await.unwrap();
    }
}

fn binding(role: &str, member: &str) -> iam::Binding {
    let (role, members) = (role.to_owned(), vec![member.to_owned()]);
    iam::Binding { role, members, condition: None }
}

fn policy(role: &str, member: &str) -> iam::Policy {
    iam::Policy { version: 1, bindings: vec![binding(role, member)], ..iam::Policy::default() }
}

#[tokio::test]
async fn policies_are_kept_for_each_resource_and_over_a_restart() {
    let env = memory();
    let server = TestServer::with_table_and_view(&env).await;
    let names = [INSTANCE, TABLE, VIEW];
    let mut kept = Vec::new();
    for (number, name) in names.into_iter().enumerate() {
        let empty = server.policy(name, 0).await.unwrap();
        assert_eq!((empty.version, empty.bindings.len()), (0, 0));
        assert_eq!(empty.etag.as_ref(), [0x00, 0x20, 0x01]);
        let given = policy("roles/viewer", &format!("user:{number}@example.com"));
        let given = iam::Policy { etag: empty.etag.clone(), ..given };
        let set = server.set_policy(name, Some(given.clone())).await.unwrap();
        assert_eq!(set.bindings, given.bindings);
        assert_eq!(server.policy(name, 1).await.unwrap(), set);
        let stale = server.set_policy(name, Some(given)).await.unwrap_err();
        assert_eq!(stale.code(), Code::Aborted, "{stale}");
        kept.push(set);
    }
    server.stop().await;
    let server = start(&env).await;
    for (name, policy) in names.into_iter().zip(kept) {
        assert_eq!(server.policy(name, 0).await.unwrap(), policy);
    }
    server.stop().await;
}

#[tokio::test]
async fn a_policy_goes_with_its_resource() {
    let server = TestServer::with_table_and_view(&memory()).await;
    for name in [TABLE, VIEW] {
        let given = Some(policy("roles/bigtable.reader", "domain:example.com"));
        server.set_policy(name, given).await.unwrap();
    }
    let delete_view = || admin::DeleteAuthorizedViewRequest {
        name: VIEW.to_owned(),
        ..admin::DeleteAuthorizedViewRequest::default()
    };
    server.tables().delete_authorized_view(delete_view()).await.unwrap();
    assert_eq!(server.policy(VIEW, 0).await.unwrap_err().code(), Code::NotFound);
    server.make_view().await;
    assert!(server.policy(VIEW, 0).await.unwrap().bindings.is_empty());

    let delete = || admin::DeleteTableRequest { name: TABLE.to_owned() };
    server.tables().delete_table(delete()).await.unwrap();
    assert_eq!(server.policy(TABLE, 0).await.unwrap_err().code(), Code::NotFound);
    let undelete = admin::UndeleteTableRequest { name: TABLE.to_owned() };
    server.tables().undelete_table(undelete).await.unwrap();
    assert_eq!(server.policy(TABLE, 0).await.unwrap().bindings.len(), 1);
    server.tables().delete_table(delete()).await.unwrap();
    server.create(&[]).await;
    assert!(server.policy(TABLE, 0).await.unwrap().bindings.is_empty(), "it is another table");
    server.stop().await;
}

#[tokio::test]
async fn a_backup_or_schema_bundle_made_again_does_not_inherit_a_policy() {
    let server = TestServer::with_table_and_view(&memory()).await;
    for (name, noun) in [(BACKUP, "backups"), (BUNDLE, "schemaBundles")] {
        let given = || Some(policy("roles/bigtable.reader", "domain:example.com"));
        let missing = server.set_policy(name, given()).await.unwrap_err();
        assert_eq!(missing.code(), Code::NotFound, "{missing}");
        server.make(name).await;
        let set = server.set_policy(name, given()).await.unwrap();
        assert_eq!(server.policy(name, 0).await.unwrap(), set);
        let asked = [format!("bigtable.{noun}.get"), format!("bigtable.{noun}.update")];
        let asked = asked.each_ref().map(String::as_str);
        assert_eq!(server.granted(name, &asked).await.unwrap(), asked);
        let name = name.to_owned();
        if noun == "backups" {
            let request = admin::DeleteBackupRequest { name: name.clone() };
            server.tables().delete_backup(request).await.unwrap();
        } else {
            let request =
                admin::DeleteSchemaBundleRequest { name: name.clone(), etag: String::new() };
            server.tables().delete_schema_bundle(request).await.unwrap();
        }
        assert_eq!(server.policy(&name, 0).await.unwrap_err().code(), Code::NotFound);
        server.make(&name).await;
        assert!(server.policy(&name, 0).await.unwrap().bindings.is_empty(), "{name}");
    }
    server.stop().await;
}

#[tokio::test]
async fn an_instance_that_nobody_created_has_a_policy_unless_instances_are_strict() {
    let server = start_with(&memory(), |config| config.strict_instances = true).await;
    let given = Some(policy("roles/viewer", "user:a@b.c"));
    let error = server.set_policy(INSTANCE, given).await.unwrap_err();
    assert_eq!(error.code(), Code::NotFound, "{error}");
    assert_eq!(server.policy(INSTANCE, 0).await.unwrap_err().code(), Code::NotFound);
    server.stop().await;
}

#[tokio::test]
async fn everybody_has_every_permission_until_there_is_authentication() {
    let server = TestServer::with_table_and_view(&memory()).await;
    let given = Some(policy("roles/bigtable.viewer", "user:somebody@example.com"));
    server.set_policy(TABLE, given).await.unwrap();
    for (name, asked) in [
        (INSTANCE, &["bigtable.clusters.create", "bigtable.tables.create"][..]),
        (TABLE, &["bigtable.tables.mutateRows", "bigtable.tables.readRows"]),
        (VIEW, &["bigtable.authorizedViews.get", "bigtable.authorizedViews.delete"]),
        (TABLE, &[]),
    ] {
        assert_eq!(server.granted(name, asked).await.unwrap(), asked, "{name}");
    }
    let missing = "projects/p/instances/i/tables/missing";
    let granted = server.granted(missing, &["bigtable.tables.get"]).await.unwrap();
    assert_eq!(granted, [""; 0], "of what is not there nobody has any");
    server.stop().await;
}

#[tokio::test]
async fn what_is_wrong_with_a_policy_or_permission_is_said_and_nothing_changes() {
    let server = TestServer::with_table_and_view(&memory()).await;
    let before =
        server.set_policy(TABLE, Some(policy("roles/viewer", "user:a@b.c"))).await.unwrap();
    let good = || policy("roles/bigtable.reader", "user:x@y.z");
    let condition =
        Expr { title: "t".to_owned(), expression: "true".to_owned(), ..Expr::default() };
    let conditional =
        iam::Binding { condition: Some(condition), ..binding("roles/viewer", "user:a@b.c") };
    let stale = iam::Policy { etag: Bytes::from_static(b"stale"), ..good() };
    let cases = [
        (TABLE, None, Code::InvalidArgument),
        (TABLE, Some(policy("roles/nonsense", "user:x@y.z")), Code::InvalidArgument),
        (TABLE, Some(policy("roles/viewer", "x@y.z")), Code::InvalidArgument),
        (TABLE, Some(policy("roles/viewer", "allUsers")), Code::InvalidArgument),
        (TABLE, Some(iam::Policy { version: 2, ..good() }), Code::InvalidArgument),
        (TABLE, Some(iam::Policy { bindings: vec![conditional], ..good() }), Code::InvalidArgument),
        (TABLE, Some(stale), Code::Aborted),
        ("projects/p/instances/i/tables/missing", Some(good()), Code::NotFound),
        ("projects/p/instances/i/tables/t/authorizedViews/missing", Some(good()), Code::NotFound),
        ("projects/p/instances/i/clusters/c/backups/missing", Some(good()), Code::NotFound),
        ("projects/p/instances/i/tables/t/other/x", Some(good()), Code::InvalidArgument),
        ("projects/p", Some(good()), Code::InvalidArgument),
        ("", Some(good()), Code::InvalidArgument),
    ];
    for (name, policy, code) in cases {
        let error = server.set_policy(name, policy).await.unwrap_err();
        assert_eq!(error.code(), code, "{name}: {error}");
    }
    let masked = iam::SetIamPolicyRequest {
        resource: TABLE.to_owned(),
        policy: Some(good()),
        update_mask: Some(prost_types::FieldMask { paths: vec!["audit_configs".to_owned()] }),
    };
    let error = server.tables().set_iam_policy(masked).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    assert_eq!(server.policy(TABLE, 3).await.unwrap(), before);

    for (name, version, code) in [
        (TABLE, 2, Code::InvalidArgument),
        (TABLE, -1, Code::InvalidArgument),
        ("projects/p/instances/i/tables/missing", 0, Code::NotFound),
        ("projects/p/instances/i/clusters/c/backups/missing", 0, Code::NotFound),
        ("nonsense", 0, Code::InvalidArgument),
    ] {
        assert_eq!(server.policy(name, version).await.unwrap_err().code(), code, "{name}");
    }
    let other_service = iam::GetIamPolicyRequest { resource: INSTANCE.to_owned(), options: None };
    let error = server.tables().get_iam_policy(other_service).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    assert!(error.message().contains("BigtableInstanceAdmin"), "{error}");

    let many = vec!["bigtable.tables.get"; 101];
    for asked in [
        &["bigtable.tables.*"][..],
        &["bigtable.tables.get", "bigtable.tables.nonsense"],
        &["storage.buckets.get"],
        &["bigtable.instances.get"],
        &many,
    ] {
        let error = server.granted(TABLE, asked).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{asked:?}");
    }
    server.stop().await;
}
