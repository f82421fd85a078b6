//! Tables over the wire: their lives, their families and their pages.

use super::*;

#[tokio::test]
async fn a_table_lives_through_deletion_and_return() {
    let server = start(&memory()).await;
    server.create(&[]).await;
    server.set("r", b"v").await.unwrap();
    let mut tables = server.tables();

    let protect = |deletion_protection| admin::UpdateTableRequest {
        table: Some(admin::Table {
            name: TABLE.to_owned(),
            deletion_protection,
            ..Default::default()
        }),
        update_mask: Some(prost_types::FieldMask { paths: vec!["deletion_protection".into()] }),
        ..Default::default()
    };
    let operation = tables.update_table(protect(true)).await.unwrap().into_inner();
    assert!(operation.done);
    let mut operations =
        longrunning::operations_client::OperationsClient::new(server.channel.clone());
    let get = longrunning::GetOperationRequest { name: operation.name.clone() };
    assert_eq!(operations.get_operation(get).await.unwrap().into_inner(), operation);

    let delete = || admin::DeleteTableRequest { name: TABLE.to_owned() };
    let status = tables.delete_table(delete()).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    tables.update_table(protect(false)).await.unwrap();
    tables.delete_table(delete()).await.unwrap();
    assert_eq!(server.rows().await.unwrap_err().code(), Code::NotFound);
    let undelete = admin::UndeleteTableRequest { name: TABLE.to_owned() };
    assert!(tables.undelete_table(undelete).await.unwrap().into_inner().done);
    assert_eq!(server.rows().await.unwrap(), [row("r", b"v")]);

    tables.delete_table(delete()).await.unwrap();
    server.create(&[]).await;
    assert_eq!(server.rows().await.unwrap(), []);
    server.stop().await;
}

#[tokio::test]
async fn a_family_created_anew_does_not_show_old_cells() {
    let server = start(&memory()).await;
    server.create(&[]).await;
    server.set("r", b"old").await.unwrap();
    let modification =
        |id: &str, m: Mod| Modification { id: id.to_owned(), update_mask: None, r#mod: Some(m) };
    let request = admin::ModifyColumnFamiliesRequest {
        name: TABLE.to_owned(),
        modifications: vec![
            modification("cf", Mod::Drop(true)),
            modification("cf", Mod::Create(admin::ColumnFamily::default())),
        ],
        ..Default::default()
    };
    let table = server.tables().modify_column_families(request).await.unwrap().into_inner();
    assert_eq!(table.granularity, 1);
    assert_eq!(server.rows().await.unwrap(), []);
    server.set("r", b"new").await.unwrap();
    assert_eq!(server.rows().await.unwrap(), [row("r", b"new")]);
    server.stop().await;
}

#[tokio::test]
async fn dropping_a_row_range_keeps_the_other_rows() {
    let server = start(&memory()).await;
    server.create(&["b"]).await;
    for key in ["a1", "a2", "b1"] {
        server.set(key, b"v").await.unwrap();
    }
    let drop = |target| admin::DropRowRangeRequest { name: TABLE.to_owned(), target: Some(target) };
    let prefix = Target::RowKeyPrefix(Bytes::from("a"));
    server.tables().drop_row_range(drop(prefix)).await.unwrap();
    assert_eq!(server.rows().await.unwrap(), [row("b1", b"v")]);
    let not_all = || drop(Target::DeleteAllDataFromTable(false));
    server.tables().drop_row_range(not_all()).await.unwrap();
    assert_eq!(server.rows().await.unwrap(), [row("b1", b"v")]);
    let elsewhere = admin::DropRowRangeRequest { name: format!("{TABLE}x"), ..not_all() };
    let missing = server.tables().drop_row_range(elsewhere).await.unwrap_err();
    assert_eq!(missing.code(), Code::NotFound);
    let all = Target::DeleteAllDataFromTable(true);
    server.tables().drop_row_range(drop(all)).await.unwrap();
    assert_eq!(server.rows().await.unwrap(), []);
    server.stop().await;
}

#[tokio::test]
async fn a_drop_that_waits_for_the_disk_does_not_hold_up_the_other_requests_of_its_core() {
    let (env, faults) = with_faults(&memory());
    let server = start_with(&env, |config| config.cores = 1).await;
    server.create(&["b", "c", "d", "e", "f"]).await;
    server.set("a", b"v").await.unwrap();
    let other = admin::CreateTableRequest {
        parent: INSTANCE.to_owned(),
        table_id: "u".to_owned(),
        ..Default::default()
    };
    server.tables().create_table(other).await.unwrap();

    let (answered, may_go_on) = std::sync::mpsc::channel::<()>();
    let (reached, mut reaches) = tokio::sync::mpsc::unbounded_channel();
    let may_go_on = std::sync::Mutex::new(may_go_on);
    let hook = move |path: &std::path::Path| {
        if path.to_string_lossy().contains("MANIFEST") {
            let _ = reached.send(());
            // Until the sender is gone. A core that stands still meanwhile is not to hang the test.
            let _ = may_go_on.lock().unwrap().recv_timeout(std::time::Duration::from_secs(5));
        }
    };
    faults.before_sync(Some(Arc::new(hook)));
    let mut tables = server.tables();
    let all = admin::DropRowRangeRequest {
        name: TABLE.to_owned(),
        target: Some(Target::DeleteAllDataFromTable(true)),
    };
    let mut dropping = Box::pin(tables.drop_row_range(all));
    let read = async {
        reaches.recv().await.unwrap();
        let table_name = format!("{INSTANCE}/tables/u");
        let request = v2::ReadRowsRequest { table_name, ..Default::default() };
        let mut rows = server.data().read_rows(request).await.unwrap().into_inner();
        assert!(rows.message().await.unwrap().is_none());
    };
    tokio::select! {
        biased;
        _ = &mut dropping => panic!("the drop was answered before the disk had it"),
        () = read => {}
    }
    drop(answered);
    dropping.await.unwrap();
    assert_eq!(server.rows().await.unwrap(), []);
    server.stop().await;
}

#[tokio::test]
async fn a_table_whose_client_has_gone_does_not_replace_the_deleted_one_of_its_name() {
    let (env, faults) = with_faults(&memory());
    let server = start_with(&env, serve_metrics).await;
    server.create(&[]).await;
    server.set("a", b"v").await.unwrap();
    let delete = admin::DeleteTableRequest { name: TABLE.to_owned() };
    server.tables().delete_table(delete).await.unwrap();
    let tablets = || server.running.engine().tablets().len();
    let before = tablets();

    let (go, stands_still) = std::sync::mpsc::channel::<()>();
    let (reached, mut reaches) = tokio::sync::mpsc::unbounded_channel();
    let stands_still = std::sync::Mutex::new(stands_still);
    let first = std::sync::Mutex::new(None);
    let hook = move |path: &std::path::Path| {
        if !path.to_string_lossy().contains("MANIFEST") {
            return;
        }
        let first = first.lock().unwrap().get_or_insert(path.to_owned()).clone();
        if *path != first {
            let _ = reached.send(());
            // Until the sender is gone.
            let _ = stands_still.lock().unwrap().recv();
        }
    };
    faults.before_sync(Some(Arc::new(hook)));
    tokio::select! {
        _ = server.create(&["m"]) => panic!("the table is there before its tablets"),
        _ = reaches.recv() => {}
    }
    assert_eq!(tablets(), before + 1, "it has begun");
    let is_known = async {
        loop {
            let (_, metrics) = scrape(&server, "/metrics").await;
            let of_it = |line: &&str| line.contains("CreateTable") && line.contains("Cancelled");
            if metrics.lines().any(|line| of_it(&line) && line.ends_with(" 1")) {
                return;
            }
        }
    };
    in_time("the server knows that the client has gone", is_known).await;
    drop(go);
    let is_over = async {
        while tablets() > before {
            let get = admin::GetTableRequest { name: TABLE.to_owned(), ..Default::default() };
            server.tables().get_table(get).await.expect_err("there is no such table");
        }
    };
    in_time("its tablets go", is_over).await;
    let undelete = admin::UndeleteTableRequest { name: TABLE.to_owned() };
    server.tables().undelete_table(undelete).await.unwrap();
    assert_eq!(server.rows().await.unwrap(), [row("a", b"v")]);
    server.stop().await;
}

#[tokio::test]
async fn listing_pages_and_consistency_tokens_work_over_the_wire() {
    let server = start(&memory()).await;
    server.create(&[]).await;
    let mut tables = server.tables();
    for table_id in ["u", "v"] {
        let request = admin::CreateTableRequest {
            parent: INSTANCE.to_owned(),
            table_id: table_id.to_owned(),
            ..Default::default()
        };
        tables.create_table(request).await.unwrap();
    }
    let list = |page_token: String| admin::ListTablesRequest {
        parent: INSTANCE.to_owned(),
        page_size: 2,
        page_token,
        view: 0,
    };
    let first = tables.list_tables(list(String::new())).await.unwrap().into_inner();
    assert_eq!(first.tables.len(), 2);
    let second = tables.list_tables(list(first.next_page_token)).await.unwrap().into_inner();
    assert_eq!(second.tables.len(), 1);
    assert_eq!(second.next_page_token, "");

    let generate = admin::GenerateConsistencyTokenRequest { name: TABLE.to_owned() };
    let token = tables.generate_consistency_token(generate).await.unwrap().into_inner();
    let check = |consistency_token: String| admin::CheckConsistencyRequest {
        name: TABLE.to_owned(),
        consistency_token,
        mode: None,
    };
    let checked = tables.check_consistency(check(token.consistency_token)).await.unwrap();
    assert!(checked.into_inner().consistent);
    let status = tables.check_consistency(check("x".to_owned())).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    server.stop().await;
}
