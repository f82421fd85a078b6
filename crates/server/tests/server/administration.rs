//! Administration beside a disk that fails or stands still, and what one resource says of another.

use std::sync::atomic::{AtomicU64, Ordering};

use prost_types::field_descriptor_proto::Type as FieldType;
use prost_types::{FileDescriptorProto, FileDescriptorSet};
use tepui_engine::io::{Clock, ManualClock};
use tepui_server::api::admin::authorized_view::{AuthorizedView as ViewType, SubsetView};
use tepui_server::api::admin::r#type::{Kind, Proto};

use super::types::{bundle, schema};
use super::*;

const DAY_MICROS: u64 = 24 * 3_600 * 1_000_000;

#[tokio::test]
async fn a_failed_commit_of_the_catalog_ends_all_writes_and_the_next_start_knows_what_it_left() {
    for keeps in [true, false] {
        let disk = MemoryFiles::new();
        let whole = Env { files: Arc::new(disk.clone()), ..memory() };
        let (env, faults) = with_faults(&whole);
        let server = start_with(&env, serve_metrics).await;
        server.create(&[]).await;
        server.set("kept", b"v").await.unwrap();
        faults.inject(Fault::new(FaultOp::Sync).on_path("META-"));
        let met = server.create_table("projects/p/instances/j").await.unwrap_err();
        assert_eq!(met.code(), Code::Unavailable, "{met}");
        assert!(met.message().contains("not known whether this was done"), "{met}");
        let refused = server.set("later", b"v").await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable, "{refused}");
        assert!(retry_delay(&refused).is_some(), "{refused:?}");
        let (status, reason) = scrape(&server, "/health").await;
        assert!(status.contains("503") && reason.contains("catalog"), "{status} {reason}");
        server.stop().await;

        // Without the power cut, what was written is there although its sync failed.
        let left =
            if keeps { disk } else { disk.crashed_copy(CrashMode::Strict, &SeededRng::new(1)) };
        let server = start(&Env { files: Arc::new(left), ..memory() }).await;
        assert_eq!(server.rows().await.unwrap().len(), 1);
        let table_name = "projects/p/instances/j/tables/t".to_owned();
        let request = v2::ReadRowsRequest { table_name, ..Default::default() };
        match server.data().read_rows(request).await {
            Ok(rows) => {
                assert!(keeps);
                assert!(rows.into_inner().message().await.unwrap().is_none());
            }
            Err(missing) => assert_eq!((missing.code(), keeps), (Code::NotFound, false)),
        }
        assert_eq!(server.running.engine().tablets().len(), if keeps { 2 } else { 1 });
        server.stop().await;
    }
}

/// What the admin API answers with an operation that is done, of a table, a view and a bundle.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Step {
    UpdateTable,
    UndeleteTable,
    CreateView,
    UpdateView,
    CreateBundle,
    UpdateBundle,
}

impl TestServer {
    /// What is there before a step.
    async fn prepare(&self, step: Step) {
        self.create(&[]).await;
        match step {
            Step::UpdateTable | Step::CreateView | Step::CreateBundle => {}
            Step::UndeleteTable => {
                let delete = admin::DeleteTableRequest { name: TABLE.to_owned() };
                self.tables().delete_table(delete).await.unwrap();
            }
            Step::UpdateView => drop(self.take(Step::CreateView).await.unwrap()),
            Step::UpdateBundle => drop(self.take(Step::CreateBundle).await.unwrap()),
        }
    }

    async fn take(&self, step: Step) -> Result<longrunning::Operation, tonic::Status> {
        let mut tables = self.tables();
        let mask = |path: &str| Some(prost_types::FieldMask { paths: vec![path.to_owned()] });
        let name = format!("{TABLE}/authorizedViews/v");
        let view = |row_prefixes: Vec<Bytes>| {
            let subset = SubsetView { row_prefixes, ..SubsetView::default() };
            let authorized_view = Some(ViewType::SubsetView(subset));
            Some(admin::AuthorizedView {
                name: name.clone(),
                authorized_view,
                ..Default::default()
            })
        };
        let proto = |fields: &[(&str, FieldType)]| {
            bundle(&format!("{TABLE}/schemaBundles/b"), "", schema(fields))
        };
        let (parent, name) = (TABLE.to_owned(), TABLE.to_owned());
        let done = match step {
            Step::UpdateTable => {
                let table = admin::Table { name, deletion_protection: true, ..Default::default() };
                let update_mask = mask("deletion_protection");
                let table = Some(table);
                let update = admin::UpdateTableRequest { table, update_mask, ..Default::default() };
                tables.update_table(update).await
            }
            Step::UndeleteTable => {
                tables.undelete_table(admin::UndeleteTableRequest { name }).await
            }
            Step::CreateView => {
                let authorized_view = view(vec![Bytes::from("a")]);
                let create = admin::CreateAuthorizedViewRequest {
                    parent,
                    authorized_view_id: "v".to_owned(),
                    authorized_view,
                };
                tables.create_authorized_view(create).await
            }
            Step::UpdateView => {
                let update = admin::UpdateAuthorizedViewRequest {
                    authorized_view: view(vec![Bytes::from("b")]),
                    update_mask: mask("subset_view"),
                    ignore_warnings: false,
                };
                tables.update_authorized_view(update).await
            }
            Step::CreateBundle => {
                let create = admin::CreateSchemaBundleRequest {
                    parent,
                    schema_bundle_id: "b".to_owned(),
                    schema_bundle: Some(proto(&[("a", FieldType::String)])),
                };
                tables.create_schema_bundle(create).await
            }
            Step::UpdateBundle => {
                let more = [("a", FieldType::String), ("b", FieldType::Int64)];
                let update = admin::UpdateSchemaBundleRequest {
                    schema_bundle: Some(proto(&more)),
                    update_mask: mask("proto_schema"),
                    ignore_warnings: false,
                };
                tables.update_schema_bundle(update).await
            }
        };
        done.map(tonic::Response::into_inner)
    }

    /// The table, its view and its bundle as they are shown, and the names of all operations.
    async fn seen(&self) -> (String, Vec<String>) {
        let mut tables = self.tables();
        let shown = |result: Result<String, tonic::Status>| result.unwrap_or_default();
        let table = admin::GetTableRequest { name: TABLE.to_owned(), ..Default::default() };
        let table = tables.get_table(table).await.map(|t| format!("{t:?}"));
        let name = format!("{TABLE}/authorizedViews/v");
        let view = admin::GetAuthorizedViewRequest { name, view: 0 };
        let view = tables.get_authorized_view(view).await.map(|v| format!("{:?}", v.into_inner()));
        let bundle = admin::GetSchemaBundleRequest { name: format!("{TABLE}/schemaBundles/b") };
        let bundle = tables.get_schema_bundle(bundle).await;
        let bundle = bundle.map(|b| format!("{:?}", b.into_inner()));
        let table = table.map(|text| text.contains("deletion_protection: true").to_string());
        let name = "operations".to_owned();
        let list = longrunning::ListOperationsRequest { name, ..Default::default() };
        let listed = self.operations().list_operations(list).await.unwrap().into_inner();
        let names = listed.operations.into_iter().map(|operation| operation.name).collect();
        ([table, view, bundle].map(shown).join("\n"), names)
    }
}

#[tokio::test]
async fn a_change_and_the_operation_that_tells_of_it_are_both_there_after_a_crash_or_neither_is() {
    for step in [
        Step::UpdateTable,
        Step::UndeleteTable,
        Step::CreateView,
        Step::UpdateView,
        Step::CreateBundle,
        Step::UpdateBundle,
    ] {
        for fails in [true, false] {
            let disk = MemoryFiles::new();
            let (env, faults) = with_faults(&Env { files: Arc::new(disk.clone()), ..memory() });
            let server = start(&env).await;
            server.prepare(step).await;
            let before = server.seen().await;
            // It is one commit: a second would fail.
            let nth = if fails { 1 } else { 2 };
            faults.inject(Fault::new(FaultOp::Sync).on_path("META-").nth(nth));
            let done = server.take(step).await;
            assert_eq!(done.is_err(), fails, "{step:?}: {done:?}");
            faults.heal();
            let after = server.seen().await;
            server.stop().await;

            let crashed = disk.crashed_copy(CrashMode::Strict, &SeededRng::new(1));
            let server = start(&Env { files: Arc::new(crashed), ..memory() }).await;
            let left = server.seen().await;
            if let Ok(operation) = done {
                assert!(before.0 != left.0 && left.1.contains(&operation.name), "{step:?}");
                assert_eq!(left, after, "{step:?}");
            } else {
                assert_eq!(left, before, "{step:?}");
            }
            server.stop().await;
        }
    }
}

#[tokio::test]
async fn a_sweep_that_stands_still_does_not_keep_the_server_from_draining() {
    let clock = Arc::new(ManualClock::new(1_767_225_600_000_000));
    let whole = Env { clock: Arc::<ManualClock>::clone(&clock), ..memory() };
    let server = start(&whole).await;
    server.create(&[]).await;
    let delete = admin::DeleteTableRequest { name: TABLE.to_owned() };
    server.tables().delete_table(delete).await.unwrap();
    server.stop().await;

    clock.advance_micros(8 * DAY_MICROS);
    let (env, faults) = with_faults(&whole);
    let (go, stands_still) = std::sync::mpsc::channel::<()>();
    let (reached, reaches) = std::sync::mpsc::channel::<()>();
    let (stands_still, reached) =
        (std::sync::Mutex::new(stands_still), std::sync::Mutex::new(reached));
    let has_begun = std::sync::atomic::AtomicBool::new(false);
    let hook = move |path: &std::path::Path| {
        // The first is that of the file which the start begins.
        if path.to_string_lossy().contains("META-")
            && has_begun.swap(true, std::sync::atomic::Ordering::SeqCst)
        {
            let _ = reached.lock().unwrap().send(());
            // Until the sender is gone.
            let _ = stands_still.lock().unwrap().recv();
        }
    };
    faults.before_sync(Some(Arc::new(hook)));
    let server = start(&env).await;
    // The first sweep begins with the server, and removes the table.
    tokio::task::spawn_blocking(move || reaches.recv().unwrap()).await.unwrap();
    let address = server.running.address();
    let TestServer { running, channel } = server;
    drop(channel);
    let stopping = tokio::task::spawn_blocking(move || running.stop());
    let closed = async {
        while TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    in_time("the listener closes", closed).await;
    drop(go);
    stopping.await.unwrap().unwrap();
}

/// The time, and how often the thread of the chores has asked for that which does not jump.
#[derive(Debug)]
struct ChoresClock {
    time: ManualClock,
    asked: AtomicU64,
}

impl Clock for ChoresClock {
    fn now_micros(&self) -> i64 {
        self.time.now_micros()
    }

    fn monotonic_micros(&self) -> u64 {
        if std::thread::current().name() == Some("tepui-chores") {
            self.asked.fetch_add(1, Ordering::Relaxed);
        }
        self.time.monotonic_micros()
    }
}

impl ChoresClock {
    fn new() -> (ManualClock, Arc<Self>, Env) {
        let time = ManualClock::new(1_767_225_600_000_000);
        let clock = Arc::new(Self { time: time.clone(), asked: AtomicU64::new(0) });
        let env = Env { clock: Arc::<Self>::clone(&clock), ..memory() };
        (time, clock, env)
    }

    /// A server that has begun its first sweep of tables; its end waits for that.
    async fn server_that_sweeps(&self, env: &Env, set: impl FnOnce(&mut Config)) -> TestServer {
        let before = self.asked.load(Ordering::Relaxed);
        let server = start_with(env, set).await;
        // The first sweep of tables asks once, and what is to be done four times a second asks each time. Both are due at the start: at the
        // third time of the one the other has had its turn.
        let sweep = async {
            while self.asked.load(Ordering::Relaxed) < before + 4 {
                tokio::task::yield_now().await;
            }
        };
        in_time("the first sweep", sweep).await;
        server
    }
}

#[tokio::test]
async fn a_start_that_is_told_to_keep_what_has_expired_lets_it_be_had_back() {
    for keeps in [true, false] {
        let (time, clock, env) = ChoresClock::new();
        let server = start(&env).await;
        server.create(&[]).await;
        server.set("r", b"v").await.unwrap();
        let name = TABLE.to_owned();
        server.tables().delete_table(admin::DeleteTableRequest { name }).await.unwrap();
        server.stop().await;

        time.advance_micros(8 * DAY_MICROS);
        let told = |keeps| move |config: &mut Config| config.keep_expired = keeps;
        let server = clock.server_that_sweeps(&env, told(keeps)).await;
        server.stop().await;

        let server = start_with(&env, told(true)).await;
        let name = TABLE.to_owned();
        let undeleted = server.tables().undelete_table(admin::UndeleteTableRequest { name }).await;
        if keeps {
            undeleted.unwrap();
            assert_eq!(server.rows().await.unwrap(), [row("r", b"v")]);
        } else {
            assert_eq!(undeleted.unwrap_err().code(), Code::NotFound);
        }
        server.stop().await;
    }
}

#[tokio::test]
async fn a_clock_that_was_wrong_at_one_start_costs_no_deleted_table() {
    let (time, clock, env) = ChoresClock::new();
    let server = start(&env).await;
    server.create(&[]).await;
    server.set("r", b"v").await.unwrap();
    let name = TABLE.to_owned();
    server.tables().delete_table(admin::DeleteTableRequest { name }).await.unwrap();
    server.stop().await;

    time.set_wall_micros(1_767_225_600_000_000 + 40 * DAY_MICROS as i64);
    let server = clock.server_that_sweeps(&env, |_| {}).await;
    server.stop().await;

    time.set_wall_micros(1_767_225_600_000_000 + DAY_MICROS as i64);
    let server = start(&env).await;
    let name = TABLE.to_owned();
    server.tables().undelete_table(admin::UndeleteTableRequest { name }).await.unwrap();
    assert_eq!(server.rows().await.unwrap(), [row("r", b"v")]);
    server.stop().await;
}

#[tokio::test]
async fn a_strict_server_serves_no_administration_of_tables_in_instances_that_nobody_created() {
    let env = memory();
    let server = start(&env).await;
    server.create(&[]).await;
    server.take(Step::CreateView).await.unwrap();
    server.take(Step::CreateBundle).await.unwrap();
    let before = server.seen().await;
    server.stop().await;

    let server = start_with(&env, |config| config.strict_instances = true).await;
    let (table, view) = (|| TABLE.to_owned(), || format!("{TABLE}/authorizedViews/v"));
    let bundle = || format!("{TABLE}/schemaBundles/b");
    let mut answers = Vec::new();
    for step in [
        Step::UpdateTable,
        Step::UndeleteTable,
        Step::CreateView,
        Step::UpdateView,
        Step::CreateBundle,
        Step::UpdateBundle,
    ] {
        answers.push((format!("{step:?}"), server.take(step).await.map(drop)));
    }
    let mut client = server.tables();
    macro_rules! ask {
        ($rpc:ident, $request:expr) => {
            answers.push((stringify!($rpc).to_owned(), client.$rpc($request).await.map(drop)));
        };
    }
    ask!(get_table, admin::GetTableRequest { name: table(), view: 0 });
    ask!(delete_table, admin::DeleteTableRequest { name: table() });
    let modification = Modification {
        id: "new".to_owned(),
        r#mod: Some(Mod::Create(admin::ColumnFamily::default())),
        ..Default::default()
    };
    let modifications = vec![modification];
    ask!(
        modify_column_families,
        admin::ModifyColumnFamiliesRequest { name: table(), modifications, ..Default::default() }
    );
    let target = Some(Target::DeleteAllDataFromTable(true));
    ask!(drop_row_range, admin::DropRowRangeRequest { name: table(), target });
    ask!(generate_consistency_token, admin::GenerateConsistencyTokenRequest { name: table() });
    ask!(check_consistency, admin::CheckConsistencyRequest { name: table(), ..Default::default() });
    ask!(get_authorized_view, admin::GetAuthorizedViewRequest { name: view(), view: 0 });
    ask!(
        list_authorized_views,
        admin::ListAuthorizedViewsRequest { parent: table(), ..Default::default() }
    );
    ask!(
        delete_authorized_view,
        admin::DeleteAuthorizedViewRequest { name: view(), ..Default::default() }
    );
    ask!(get_schema_bundle, admin::GetSchemaBundleRequest { name: bundle() });
    ask!(
        list_schema_bundles,
        admin::ListSchemaBundlesRequest { parent: table(), ..Default::default() }
    );
    ask!(
        delete_schema_bundle,
        admin::DeleteSchemaBundleRequest { name: bundle(), ..Default::default() }
    );
    for (what, answer) in answers {
        let status = answer.expect_err(&what);
        let told = (status.code(), status.message());
        assert_eq!(
            told,
            (Code::NotFound, "instance \"projects/p/instances/i\" not found"),
            "{what}"
        );
    }
    // What is wrong with a name is said first.
    let request = admin::GetTableRequest { name: "t".to_owned(), view: 0 };
    assert_eq!(client.get_table(request).await.unwrap_err().code(), Code::InvalidArgument);
    server.stop().await;

    let server = start(&env).await;
    assert_eq!(server.seen().await, before);
    server.stop().await;
}

#[tokio::test]
async fn what_means_nothing_in_a_request_is_not_in_its_operation() {
    let server = start(&memory()).await;
    server.create(&[]).await;
    let long = || "x".repeat((4 << 20) - 1_000);
    let mut request = super::instances::create_request("inst");
    request.clusters.values_mut().next().unwrap().name = long();
    let (mut instances, mut tables) = (server.instances(), server.tables());
    instances.create_instance(request).await.unwrap();
    let mask = |path: &str| Some(prost_types::FieldMask { paths: vec![path.to_owned()] });
    let name = "projects/p/instances/inst".to_owned();
    let instance = admin::Instance { name, display_name: long(), ..Default::default() };
    let request = admin::PartialUpdateInstanceRequest {
        instance: Some(instance),
        update_mask: mask("labels"),
    };
    instances.partial_update_instance(request).await.unwrap();
    let view = |name: String, row_prefix: String| {
        let subset = SubsetView { row_prefixes: vec![row_prefix.into()], ..SubsetView::default() };
        let authorized_view = Some(ViewType::SubsetView(subset));
        Some(admin::AuthorizedView { name, authorized_view, ..Default::default() })
    };
    let request = admin::CreateAuthorizedViewRequest {
        parent: TABLE.to_owned(),
        authorized_view_id: "v".to_owned(),
        authorized_view: view(long(), "a".to_owned()),
    };
    tables.create_authorized_view(request).await.unwrap();
    let request = admin::UpdateAuthorizedViewRequest {
        authorized_view: view(format!("{TABLE}/authorizedViews/v"), long()),
        update_mask: mask("deletion_protection"),
        ignore_warnings: false,
    };
    tables.update_authorized_view(request).await.unwrap();
    let name = "operations".to_owned();
    let list = longrunning::ListOperationsRequest { name, ..Default::default() };
    let listed = server.operations().list_operations(list).await.unwrap().into_inner();
    assert_eq!(listed.operations.len(), 4);
    assert!(listed.encoded_len() < 10_000, "{} bytes", listed.encoded_len());
    server.stop().await;
}

#[tokio::test]
async fn a_value_type_names_schemas_that_are_there() {
    let server = start(&memory()).await;
    let typed = |bundle: &str, message: &str| {
        let kind = Kind::ProtoType(Proto {
            schema_bundle_id: bundle.to_owned(),
            message_name: message.to_owned(),
        });
        let array =
            admin::r#type::Array { element_type: Some(Box::new(admin::Type { kind: Some(kind) })) };
        let value_type = Some(admin::Type { kind: Some(Kind::ArrayType(Box::new(array))) });
        admin::ColumnFamily { value_type, ..Default::default() }
    };
    let families = [("typed".to_owned(), typed("b", "M"))].into();
    let early = admin::CreateTableRequest {
        parent: INSTANCE.to_owned(),
        table_id: "t".to_owned(),
        table: Some(admin::Table { column_families: families, ..Default::default() }),
        ..Default::default()
    };
    let refused = server.tables().create_table(early).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    server.create(&[]).await;
    server.create_bundle(TABLE, "b", schema(&[("a", FieldType::String)])).await.unwrap();
    let modify = |id: &str, config, creates| {
        let id = id.to_owned();
        let (update_mask, r#mod) = if creates {
            (None, Mod::Create(config))
        } else {
            let paths = vec!["value_type".to_owned()];
            (Some(prost_types::FieldMask { paths }), Mod::Update(config))
        };
        let modification = Modification { id, update_mask, r#mod: Some(r#mod) };
        admin::ModifyColumnFamiliesRequest {
            name: TABLE.to_owned(),
            modifications: vec![modification],
            ..Default::default()
        }
    };
    for (request, code) in [
        (modify("new", typed("c", "M"), true), Code::FailedPrecondition),
        (modify("new", typed("b", "N"), true), Code::FailedPrecondition),
        (modify("new", typed("", "M"), true), Code::InvalidArgument),
        (modify("cf", typed("c", "M"), false), Code::FailedPrecondition),
    ] {
        let refused = server.tables().modify_column_families(request).await.unwrap_err();
        assert_eq!(refused.code(), code, "{refused}");
        assert!(refused.message().contains("column family"), "{refused}");
    }
    for request in [modify("new", typed("b", "M"), true), modify("cf", typed("b", "M"), false)] {
        server.tables().modify_column_families(request).await.unwrap();
    }
    let name = format!("{TABLE}/schemaBundles/b");
    let delete = || admin::DeleteSchemaBundleRequest { name: name.clone(), ..Default::default() };
    let refused = server.tables().delete_schema_bundle(delete()).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(refused.message().contains(&format!("of table {TABLE:?}")), "{refused}");
    // Without its message, which only who ignores warnings may take away.
    let without = FileDescriptorSet {
        file: vec![FileDescriptorProto { name: Some("m.proto".to_owned()), ..Default::default() }],
    };
    let without = || bundle(&name, "", without.encode_to_vec().into());
    let refused = server.update_bundle(without(), &["proto_schema"], false).await.unwrap_err();
    assert_eq!(refused, Code::FailedPrecondition);
    server.update_bundle(without(), &["proto_schema"], true).await.unwrap();
    // A type that is there is not asked about again.
    let request = modify("other", admin::ColumnFamily::default(), true);
    server.tables().modify_column_families(request).await.unwrap();
    for family in ["new", "cf"] {
        server.tables().delete_schema_bundle(delete()).await.unwrap_err();
        let request = modify(family, admin::ColumnFamily::default(), false);
        server.tables().modify_column_families(request).await.unwrap();
    }
    server.tables().delete_schema_bundle(delete()).await.unwrap();
    server.stop().await;
}
