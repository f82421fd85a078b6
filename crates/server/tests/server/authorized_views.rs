//! Authorized views: their life, their table's, and what a client gets through them.

use admin::authorized_view::{AuthorizedView as Type, FamilySubsets, ResponseView, SubsetView};

use super::*;

const VIEW: &str = "projects/p/instances/i/tables/t/authorizedViews/v";

/// Rows that start with `a`, and of the family `cf` the column `q`.
fn subset() -> SubsetView {
    let columns = FamilySubsets { qualifiers: vec![Bytes::from("q")], ..FamilySubsets::default() };
    SubsetView {
        row_prefixes: vec![Bytes::from("a")],
        family_subsets: [("cf".to_owned(), columns)].into(),
    }
}

fn view_of(subset: Option<SubsetView>, deletion_protection: bool) -> admin::AuthorizedView {
    admin::AuthorizedView {
        deletion_protection,
        authorized_view: subset.map(Type::SubsetView),
        ..admin::AuthorizedView::default()
    }
}

fn paths(paths: &[&str]) -> Option<prost_types::FieldMask> {
    let paths = paths.iter().map(|path| (*path).to_owned()).collect();
    Some(prost_types::FieldMask { paths })
}

/// The view in the response of an operation that is done.
fn result(operation: &longrunning::Operation) -> admin::AuthorizedView {
    assert!(operation.done);
    let Some(longrunning::operation::Result::Response(any)) = &operation.result else {
        panic!("{operation:?}");
    };
    assert_eq!(any.type_url, "type.googleapis.com/google.bigtable.admin.v2.AuthorizedView");
    admin::AuthorizedView::decode(&any.value[..]).unwrap()
}

impl TestServer {
    async fn create_view(
        &self,
        id: &str,
        view: Option<admin::AuthorizedView>,
    ) -> Result<admin::AuthorizedView, tonic::Status> {
        let request = admin::CreateAuthorizedViewRequest {
            parent: TABLE.to_owned(),
            authorized_view_id: id.to_owned(),
            authorized_view: view,
        };
        let operation = self.tables().create_authorized_view(request).await?.into_inner();
        Ok(result(&operation))
    }

    async fn get_view(&self, name: &str) -> Result<admin::AuthorizedView, tonic::Status> {
        let request = admin::GetAuthorizedViewRequest { name: name.to_owned(), view: 0 };
        Ok(self.tables().get_authorized_view(request).await?.into_inner())
    }

    async fn update_view(
        &self,
        view: admin::AuthorizedView,
        update_mask: Option<prost_types::FieldMask>,
    ) -> Result<admin::AuthorizedView, tonic::Status> {
        let request = admin::UpdateAuthorizedViewRequest {
            authorized_view: Some(view),
            update_mask,
            ignore_warnings: false,
        };
        Ok(result(&self.tables().update_authorized_view(request).await?.into_inner()))
    }

    async fn delete_view(&self, name: &str, etag: &str) -> Result<(), tonic::Status> {
        let request =
            admin::DeleteAuthorizedViewRequest { name: name.to_owned(), etag: etag.to_owned() };
        self.tables().delete_authorized_view(request).await.map(|_| ())
    }

    async fn list_views(&self, page_size: i32, page_token: &str) -> (Vec<String>, String) {
        let request = admin::ListAuthorizedViewsRequest {
            parent: TABLE.to_owned(),
            page_size,
            page_token: page_token.to_owned(),
            view: 0,
        };
        let page = self.tables().list_authorized_views(request).await.unwrap().into_inner();
        let id = |view: admin::AuthorizedView| {
            assert_eq!(
                view,
                admin::AuthorizedView { name: view.name.clone(), ..Default::default() }
            );
            view.name.rsplit_once('/').unwrap().1.to_owned()
        };
        (page.authorized_views.into_iter().map(id).collect(), page.next_page_token)
    }

    async fn delete_table(&self) -> Result<(), tonic::Status> {
        let request = admin::DeleteTableRequest { name: TABLE.to_owned() };
        self.tables().delete_table(request).await.map(|_| ())
    }
}

#[tokio::test]
async fn a_view_is_made_changed_and_deleted_and_outlives_a_restart() {
    let env = memory();
    let server = start(&env).await;
    server.create(&[]).await;
    let made = server.create_view("v", Some(view_of(Some(subset()), true))).await.unwrap();
    assert_eq!(made.name, VIEW);
    assert!(made.deletion_protection && !made.etag.is_empty());
    assert_eq!(made.authorized_view, Some(Type::SubsetView(subset())));
    server.stop().await;

    let server = start(&env).await;
    assert_eq!(server.get_view(VIEW).await.unwrap(), made);
    let basic =
        admin::GetAuthorizedViewRequest { name: VIEW.to_owned(), view: ResponseView::Basic.into() };
    let basic = server.tables().get_authorized_view(basic).await.unwrap().into_inner();
    assert_eq!(basic, admin::AuthorizedView { authorized_view: None, ..made.clone() });

    let error = server.delete_view(VIEW, "").await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
    let unprotected = admin::AuthorizedView { name: VIEW.to_owned(), ..Default::default() };
    let changed = server.update_view(unprotected, paths(&["deletion_protection"])).await.unwrap();
    assert!(!changed.deletion_protection);
    assert_ne!(changed.etag, made.etag);
    assert_eq!(changed.authorized_view, made.authorized_view, "not in the mask");

    let stale = server.delete_view(VIEW, &made.etag).await.unwrap_err();
    assert_eq!(stale.code(), Code::Aborted);
    server.delete_view(VIEW, &changed.etag).await.unwrap();
    assert_eq!(server.get_view(VIEW).await.unwrap_err().code(), Code::NotFound);
    server.stop().await;
}

#[tokio::test]
async fn views_are_listed_by_pages_in_name_order() {
    let server = start(&memory()).await;
    server.create(&[]).await;
    for id in ["c", "a", "b"] {
        server.create_view(id, Some(view_of(Some(subset()), false))).await.unwrap();
    }
    let (first, token) = server.list_views(2, "").await;
    assert_eq!(first, ["a", "b"]);
    let (rest, token) = server.list_views(2, &token).await;
    assert_eq!((rest, token.as_str()), (vec!["c".to_owned()], ""));
    let bad = [
        (TABLE, 0, "x", 0),
        (TABLE, 0, "projects/p/instances/i/tables/other/authorizedViews/v", 0),
        (TABLE, -1, "", 0),
        (TABLE, 0, "", 9),
        ("projects/p", 0, "", 0),
    ];
    for (parent, page_size, token, view) in bad {
        let (parent, page_token) = (parent.to_owned(), token.to_owned());
        let request = admin::ListAuthorizedViewsRequest { parent, page_size, page_token, view };
        let error = server.tables().list_authorized_views(request.clone()).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{request:?}");
    }
    server.stop().await;
}

#[tokio::test]
async fn what_is_wrong_with_a_view_is_said_and_nothing_changes() {
    let server = start(&memory()).await;
    server.create(&[]).await;
    let made = server.create_view("v", Some(view_of(Some(subset()), true))).await.unwrap();

    let unknown = SubsetView {
        family_subsets: [("nope".to_owned(), FamilySubsets::default())].into(),
        ..SubsetView::default()
    };
    let overlong =
        SubsetView { row_prefixes: vec![vec![b'r'; 5_000].into()], ..SubsetView::default() };
    let good = || view_of(Some(subset()), false);
    let creations = [
        ("v", Some(good()), Code::AlreadyExists, "already exists"),
        ("", Some(good()), Code::InvalidArgument, "authorized_view_id"),
        ("a/b", Some(good()), Code::InvalidArgument, "authorized_view_id"),
        ("w", None, Code::InvalidArgument, "authorized_view must be set"),
        ("w", Some(view_of(None, false)), Code::InvalidArgument, "subset_view must be set"),
        ("w", Some(view_of(Some(unknown.clone()), false)), Code::NotFound, "nope"),
        ("w", Some(view_of(Some(overlong.clone()), false)), Code::InvalidArgument, "row_prefixes"),
    ];
    for (id, view, code, text) in creations {
        let error = server.create_view(id, view).await.unwrap_err();
        assert_eq!(error.code(), code, "{error}");
        assert!(error.message().contains(text), "{error}");
    }
    for (parent, code) in [
        ("projects/p/instances/i/tables/missing", Code::NotFound),
        ("projects/p/instances/i", Code::InvalidArgument),
    ] {
        let request = admin::CreateAuthorizedViewRequest {
            parent: parent.to_owned(),
            authorized_view_id: "v".to_owned(),
            authorized_view: Some(good()),
        };
        let error = server.tables().create_authorized_view(request).await.unwrap_err();
        assert_eq!(error.code(), code, "{error}");
    }

    let named = |name: &str, subset: Option<SubsetView>| admin::AuthorizedView {
        name: name.to_owned(),
        ..view_of(subset, false)
    };
    let missing = format!("{TABLE}/authorizedViews/missing");
    let updates = [
        (named(TABLE, None), None, Code::InvalidArgument),
        (named(&missing, None), None, Code::NotFound),
        (named(VIEW, None), paths(&["subset_view"]), Code::InvalidArgument),
        (named(VIEW, Some(subset())), paths(&["name"]), Code::InvalidArgument),
        (named(VIEW, Some(unknown.clone())), paths(&["subset_view"]), Code::NotFound),
        (named(VIEW, Some(overlong)), None, Code::InvalidArgument),
        (
            admin::AuthorizedView { etag: "stale".to_owned(), ..named(VIEW, None) },
            paths(&["deletion_protection"]),
            Code::Aborted,
        ),
    ];
    for (view, mask, code) in updates {
        let error = server.update_view(view, mask).await.unwrap_err();
        assert_eq!(error.code(), code, "{error}");
    }
    let nothing = admin::UpdateAuthorizedViewRequest::default();
    let error = server.tables().update_authorized_view(nothing).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);

    for (name, code) in [
        (TABLE, Code::InvalidArgument),
        (missing.as_str(), Code::NotFound),
        ("projects/p/instances/i/tables/missing/authorizedViews/v", Code::NotFound),
    ] {
        assert_eq!(server.get_view(name).await.unwrap_err().code(), code, "{name}");
        assert_eq!(server.delete_view(name, "").await.unwrap_err().code(), code, "{name}");
    }
    let bad_view = admin::GetAuthorizedViewRequest { name: VIEW.to_owned(), view: 9 };
    let error = server.tables().get_authorized_view(bad_view).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);

    assert_eq!(server.get_view(VIEW).await.unwrap(), made);
    assert_eq!(server.list_views(0, "").await.0, ["v"]);

    let warned = admin::UpdateAuthorizedViewRequest {
        authorized_view: Some(named(VIEW, Some(unknown))),
        update_mask: paths(&["subset_view.family_subsets"]),
        ignore_warnings: true,
    };
    let done = server.tables().update_authorized_view(warned).await.unwrap().into_inner();
    let Some(Type::SubsetView(now)) = result(&done).authorized_view else { panic!() };
    assert!(now.family_subsets.contains_key("nope"));
    assert_eq!(now.row_prefixes, subset().row_prefixes, "not in the mask");
    server.stop().await;
}

#[tokio::test]
async fn views_go_and_come_back_with_their_table_and_a_new_table_has_none() {
    let server = start(&memory()).await;
    server.create(&[]).await;
    server.create_view("v", Some(view_of(Some(subset()), true))).await.unwrap();
    let error = server.delete_table().await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition);
    assert!(error.message().contains(VIEW), "{error}");
    let unprotected = admin::AuthorizedView { name: VIEW.to_owned(), ..Default::default() };
    server.update_view(unprotected, paths(&["deletion_protection"])).await.unwrap();

    server.delete_table().await.unwrap();
    assert_eq!(server.get_view(VIEW).await.unwrap_err().code(), Code::NotFound);
    let undelete = admin::UndeleteTableRequest { name: TABLE.to_owned() };
    server.tables().undelete_table(undelete).await.unwrap();
    server.get_view(VIEW).await.unwrap();

    server.delete_table().await.unwrap();
    server.create(&[]).await;
    assert_eq!(server.get_view(VIEW).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(server.list_views(0, "").await.0, [""; 0]);
    // The name is free, whatever the old table left.
    server.create_view("v", Some(view_of(Some(SubsetView::default()), false))).await.unwrap();
    server.stop().await;
}

/// A request of each RPC that goes through a view, for the row; what it answered.
async fn through(server: &TestServer, view: &str, row: &str, qualifier: &str) -> [Option<Code>; 6] {
    let (authorized_view_name, row_key) = (view.to_owned(), Bytes::from(row.to_owned()));
    let column_qualifier = Bytes::from(qualifier.to_owned());
    let set = v2::mutation::SetCell {
        family_name: "cf".to_owned(),
        column_qualifier: column_qualifier.clone(),
        timestamp_micros: 1_000,
        value: Bytes::from_static(b"through"),
    };
    let mutations = vec![v2::Mutation { mutation: Some(v2::mutation::Mutation::SetCell(set)) }];
    let mut data = server.data();
    let read = v2::ReadRowsRequest {
        authorized_view_name: authorized_view_name.clone(),
        ..Default::default()
    };
    let sample = v2::SampleRowKeysRequest {
        authorized_view_name: authorized_view_name.clone(),
        ..Default::default()
    };
    let mutate = v2::MutateRowRequest {
        authorized_view_name: authorized_view_name.clone(),
        row_key: row_key.clone(),
        mutations: mutations.clone(),
        ..Default::default()
    };
    let entry = v2::mutate_rows_request::Entry {
        row_key: row_key.clone(),
        mutations: mutations.clone(),
        idempotency: None,
    };
    let bulk = v2::MutateRowsRequest {
        authorized_view_name: authorized_view_name.clone(),
        entries: vec![entry],
        ..Default::default()
    };
    let check = v2::CheckAndMutateRowRequest {
        authorized_view_name: authorized_view_name.clone(),
        row_key: row_key.clone(),
        true_mutations: mutations,
        ..Default::default()
    };
    let rule = v2::ReadModifyWriteRule {
        family_name: "cf".to_owned(),
        column_qualifier,
        rule: Some(v2::read_modify_write_rule::Rule::AppendValue(Bytes::from_static(b"x"))),
    };
    let append = v2::ReadModifyWriteRowRequest {
        authorized_view_name,
        row_key,
        rules: vec![rule],
        ..Default::default()
    };
    let bulk = match data.mutate_rows(bulk).await {
        Err(status) => Some(status.code()),
        Ok(answer) => {
            let message = answer.into_inner().message().await.unwrap().unwrap();
            let status = message.entries.into_iter().next().unwrap().status.unwrap();
            Some(Code::from(status.code)).filter(|code| *code != Code::Ok)
        }
    };
    [
        data.read_rows(read).await.err().map(|status| status.code()),
        data.sample_row_keys(sample).await.err().map(|status| status.code()),
        data.mutate_row(mutate).await.err().map(|status| status.code()),
        bulk,
        data.check_and_mutate_row(check).await.err().map(|status| status.code()),
        data.read_modify_write_row(append).await.err().map(|status| status.code()),
    ]
}

#[tokio::test]
async fn requests_through_a_view_keep_within_it() {
    let server = start(&memory()).await;
    server.create(&["b"]).await;
    server.set("b", b"outside").await.unwrap();
    server.create_view("v", Some(view_of(Some(subset()), false))).await.unwrap();

    let denied = Some(Code::PermissionDenied);
    let writes_denied = [None, None, denied, denied, denied, denied];
    assert_eq!(through(&server, VIEW, "b", "q").await, writes_denied);
    assert_eq!(through(&server, VIEW, "a", "other").await, writes_denied);
    let before = server.rows().await.unwrap();
    assert_eq!(before, [("b".to_owned(), vec![b"outside".to_vec()])]);
    assert_eq!(through(&server, VIEW, "a", "q").await, [None; 6]);

    let read = v2::ReadRowsRequest { authorized_view_name: VIEW.to_owned(), ..Default::default() };
    let mut stream = server.data().read_rows(read).await.unwrap().into_inner();
    let mut keys = Vec::new();
    while let Some(message) = stream.message().await.unwrap() {
        keys.extend(message.chunks.into_iter().map(|chunk| chunk.row_key));
    }
    assert!(!keys.is_empty() && keys.iter().all(|key| key.is_empty() || key == "a"), "{keys:?}");
    let sample =
        v2::SampleRowKeysRequest { authorized_view_name: VIEW.to_owned(), ..Default::default() };
    let mut stream = server.data().sample_row_keys(sample).await.unwrap().into_inner();
    assert_eq!(stream.message().await.unwrap().unwrap().row_key, "b");
    assert_eq!(stream.message().await.unwrap(), None);

    let mut view = server.get_view(VIEW).await.unwrap();
    view.authorized_view = Some(Type::SubsetView(SubsetView::default()));
    server.update_view(view, paths(&["subset_view"])).await.unwrap();
    assert_eq!(through(&server, VIEW, "a", "q").await, writes_denied, "it lets nothing through");

    let cases = [
        ("projects/p/instances/i/tables/t/authorizedViews/missing", Code::NotFound),
        ("projects/p/instances/i/tables/missing/authorizedViews/v", Code::NotFound),
        ("v", Code::InvalidArgument),
        (TABLE, Code::InvalidArgument),
    ];
    for (name, code) in cases {
        assert_eq!(through(&server, name, "a", "q").await, [Some(code); 6], "{name}");
    }
    let both = v2::ReadRowsRequest {
        table_name: "projects/p/instances/i/tables/other".to_owned(),
        authorized_view_name: VIEW.to_owned(),
        ..Default::default()
    };
    let error = server.data().read_rows(both).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    server.stop().await;
}
