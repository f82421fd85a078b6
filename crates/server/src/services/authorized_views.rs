//! Authorized views of [`TableAdminService`]: creating, showing, changing and deleting them.
//!
//! A view is changed within a change of the resources, and a table is deleted within one too
//! ([`TableAdminService::on_delete_table`]): no view is created in a table on its way out, and a table whose view
//! was just protected stays.

use std::sync::Arc;

use tepui_bigtable::authorized_view::{AuthorizedView, check_parts};
use tepui_bigtable::error::{Error, Result as TepuiResult};
use tonic::{Response, Status};

use super::changes::{Changes as _, finished, told};
use super::tables::TableAdminService;
use super::{invalid, page, page_size};
use crate::api::admin;
use crate::api::admin::authorized_view::{AuthorizedView as Type, ResponseView, SubsetView};
use crate::api::longrunning::Operation;
use crate::catalog::authorized_views::{ViewRecord, find_within};
use crate::catalog::record::TableRecord;
use crate::catalog::resources::{Change, Stored};
use crate::grpc::Request;
use crate::limits::VIEWS_PER_TABLE_MAX;
use crate::names;
use crate::status::from_error;

const VIEW_TYPE: &str = "google.bigtable.admin.v2.AuthorizedView";

#[expect(clippy::unused_async, reason = "the generated dispatch awaits every RPC")]
impl TableAdminService {
    /// The name and the etag within the view that is given mean nothing yet.
    pub(super) async fn on_create_authorized_view(
        &self,
        request: Request<admin::CreateAuthorizedViewRequest>,
    ) -> Result<Response<Operation>, Status> {
        let request = request.into_inner();
        let change = self.operation(move |service, change, times| {
            let name = names::new_view(&request.parent, &request.authorized_view_id)?;
            let stored = service.create_view(change, &name, &request)?;
            let metadata = admin::CreateAuthorizedViewMetadata {
                original_request: told(request),
                request_time: times.requested(),
                finish_time: times.now(),
            };
            let metadata = ("CreateAuthorizedViewMetadata", &metadata);
            Ok(finished(&name, metadata, (VIEW_TYPE, &shown(&stored, ResponseView::Full))))
        });
        change.await
    }

    fn create_view(
        &self,
        change: &mut Change<'_>,
        name: &str,
        request: &admin::CreateAuthorizedViewRequest,
    ) -> TepuiResult<Arc<Stored<ViewRecord>>> {
        let given = request.authorized_view.clone();
        let given = given.ok_or_else(|| Error::invalid_argument("authorized_view must be set"))?;
        let Some(Type::SubsetView(subset)) = &given.authorized_view else {
            return Err(Error::invalid_argument("authorized_view.subset_view must be set"));
        };
        let compiled = AuthorizedView::compile(subset)?;
        check_parts(subset, None)?;
        let view = admin::AuthorizedView { name: name.to_owned(), etag: String::new(), ..given };
        let entry = self.served(&request.parent)?;
        let table = entry.record.incarnation;
        if find_within(change, name, table).is_ok() {
            return Err(Error::already_exists(format!("authorized view {name:?} already exists")));
        }
        check_families(&compiled, &entry.record)?;
        let views = self.views.list(&request.parent, table, None, usize::MAX);
        if views.len() >= VIEWS_PER_TABLE_MAX {
            return Err(Error::failed_precondition(format!(
                "table {:?} has {VIEWS_PER_TABLE_MAX} authorized views, the limit",
                request.parent
            )));
        }
        // What an earlier table of the name may have left.
        change.delete_under(name);
        change.put(name, ViewRecord { table, view: Some(view) });
        change.find(name)
    }

    /// The view of a name; `NOT_FOUND` without it or its table.
    fn find_view(&self, name: &str) -> TepuiResult<Arc<Stored<ViewRecord>>> {
        names::check_view("name", name)?;
        let (table, _) = names::split_view(name).unwrap_or_default();
        let entry = self.served(table)?;
        self.views.find(name, entry.record.incarnation)
    }

    /// Without a view of the response, everything is shown, as the service does: clients that do not ask for one read
    /// the definition.
    pub(super) async fn on_get_authorized_view(
        &self,
        request: Request<admin::GetAuthorizedViewRequest>,
    ) -> Result<Response<admin::AuthorizedView>, Status> {
        let request = request.get_ref();
        let view = response_view(request.view, ResponseView::Full)?;
        let stored = self.find_view(&request.name).map_err(|error| from_error(&error))?;
        Ok(Response::new(shown(&stored, view)))
    }

    pub(super) async fn on_list_authorized_views(
        &self,
        request: Request<admin::ListAuthorizedViewsRequest>,
    ) -> Result<Response<admin::ListAuthorizedViewsResponse>, Status> {
        let request = request.into_inner();
        let view = response_view(request.view, ResponseView::NameOnly)?;
        let size = page_size(request.page_size).map_err(|error| from_error(&error))?;
        let entry = self.served(&request.parent).map_err(|error| from_error(&error))?;
        // A token is the name of the last view of the page before.
        let after = Some(request.page_token.as_str()).filter(|token| !token.is_empty());
        let is_view_of = |token: &str| {
            names::split_view(token).is_some_and(|(table, _)| table == request.parent)
        };
        if after.is_some_and(|token| !is_view_of(token)) {
            return Err(invalid(format!("bad page_token {:?}", request.page_token)));
        }
        // One more than asked for tells whether there is a next page.
        let (table, limit) = (entry.record.incarnation, size.saturating_add(1));
        let found = self.views.list(&request.parent, table, after, limit);
        let shown = found.iter().map(|(_, stored)| shown(stored, view));
        let (authorized_views, has_more) = page(shown, size);
        let last = found.get(authorized_views.len().saturating_sub(1)).filter(|_| has_more);
        let next_page_token = last.map(|(name, _)| name.clone()).unwrap_or_default();
        Ok(Response::new(admin::ListAuthorizedViewsResponse { authorized_views, next_page_token }))
    }

    pub(super) async fn on_update_authorized_view(
        &self,
        request: Request<admin::UpdateAuthorizedViewRequest>,
    ) -> Result<Response<Operation>, Status> {
        let request = request.into_inner();
        let name = request.authorized_view.as_ref().map(|view| view.name.clone());
        let name = name.unwrap_or_default();
        let change = self.operation(move |service, change, times| {
            let given = request.authorized_view.as_ref();
            let given =
                given.ok_or_else(|| Error::invalid_argument("authorized_view must be set"))?;
            let stored = service.update_view(change, given, &request)?;
            let name = given.name.clone();
            let metadata = admin::UpdateAuthorizedViewMetadata {
                original_request: told(request),
                request_time: times.requested(),
                finish_time: times.now(),
            };
            let metadata = ("UpdateAuthorizedViewMetadata", &metadata);
            Ok(finished(&name, metadata, (VIEW_TYPE, &shown(&stored, ResponseView::Full))))
        });
        let changed = change.await;
        self.views.forget(&name);
        changed
    }

    /// With `ignore_warnings` a view may name families that the table does not have.
    fn update_view(
        &self,
        change: &mut Change<'_>,
        given: &admin::AuthorizedView,
        request: &admin::UpdateAuthorizedViewRequest,
    ) -> TepuiResult<Arc<Stored<ViewRecord>>> {
        let name = given.name.as_str();
        names::check_view("authorized_view.name", name)?;
        let fields = Fields::of(request.update_mask.as_ref(), given)?;
        let (table, _) = names::split_view(name).unwrap_or_default();
        let entry = self.served(table)?;
        let stored = find_within(change, name, entry.record.incarnation)?;
        check_etag(&given.etag, &stored)?;
        let mut record = stored.value.clone();
        let view = record.view.get_or_insert_default();
        if fields.deletion_protection {
            view.deletion_protection = given.deletion_protection;
        }
        if fields.row_prefixes || fields.family_subsets {
            let new = match &given.authorized_view {
                Some(Type::SubsetView(new)) => new.clone(),
                None => SubsetView::default(),
            };
            let mut subset = record.subset();
            if fields.row_prefixes {
                subset.row_prefixes = new.row_prefixes;
            }
            if fields.family_subsets {
                subset.family_subsets = new.family_subsets;
            }
            let compiled = AuthorizedView::compile(&subset)?;
            check_parts(&subset, Some(&record.subset()))?;
            if !request.ignore_warnings {
                check_families(&compiled, &entry.record)?;
            }
            let view = record.view.get_or_insert_default();
            view.authorized_view = Some(Type::SubsetView(subset));
        }
        change.put(name, record);
        change.find(name)
    }

    /// The view's policy goes with it.
    pub(super) async fn on_delete_authorized_view(
        &self,
        request: Request<admin::DeleteAuthorizedViewRequest>,
    ) -> Result<Response<()>, Status> {
        let request = request.into_inner();
        let name = request.name.clone();
        let deleted = self.change(move |service, times| {
            let name = request.name.as_str();
            names::check_view("name", name)?;
            service.views.resources().change(|change| {
                times.check_asked()?;
                let (table, _) = names::split_view(name).unwrap_or_default();
                let entry = service.served(table)?;
                let stored = find_within(change, name, entry.record.incarnation)?;
                check_etag(&request.etag, &stored)?;
                if stored.value.is_protected() {
                    return Err(Error::failed_precondition(format!(
                        "authorized view {name:?} is protected from deletion; update its deletion_protection first"
                    )));
                }
                change.delete_under(name);
                Ok(())
            })
        });
        let deleted = deleted.await;
        self.views.forget(&name);
        deleted
    }
}

/// Which fields an update is to change.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Fields {
    deletion_protection: bool,
    row_prefixes: bool,
    family_subsets: bool,
}

impl Fields {
    /// Those of the mask; without one, those that are set.
    fn of(
        mask: Option<&prost_types::FieldMask>,
        given: &admin::AuthorizedView,
    ) -> TepuiResult<Self> {
        let paths = mask.map_or(&[][..], |mask| &mask.paths);
        if paths.is_empty() {
            let has_subset = given.authorized_view.is_some();
            return Ok(Self {
                deletion_protection: given.deletion_protection,
                row_prefixes: has_subset,
                family_subsets: has_subset,
            });
        }
        let mut fields = Self::default();
        for path in paths {
            match path.as_str() {
                "*" => {
                    fields = Self {
                        deletion_protection: true,
                        row_prefixes: true,
                        family_subsets: true,
                    };
                }
                "deletion_protection" => fields.deletion_protection = true,
                "subset_view" => (fields.row_prefixes, fields.family_subsets) = (true, true),
                "subset_view.row_prefixes" => fields.row_prefixes = true,
                "subset_view.family_subsets" => fields.family_subsets = true,
                // It says which version is meant, and is checked; it is no field to set.
                "etag" => {}
                _ => {
                    return Err(Error::invalid_argument(format!(
                        "update_mask: {path:?} cannot be updated; deletion_protection and subset_view can"
                    )));
                }
            }
        }
        let needs_subset = fields.row_prefixes || fields.family_subsets;
        if needs_subset && given.authorized_view.is_none() {
            return Err(Error::invalid_argument(
                "update_mask names subset_view, which is not set in authorized_view",
            ));
        }
        Ok(fields)
    }
}

/// Refuses a view of families that the table does not have: nothing could ever be seen of them.
fn check_families(view: &AuthorizedView, table: &TableRecord) -> TepuiResult<()> {
    match view.families().find(|name| table.family(name).is_none()) {
        None => Ok(()),
        Some(name) => Err(Error::not_found(format!(
            "Requested column family not found: table {:?} has no column family {name:?}",
            table.name
        ))),
    }
}

/// An etag need not be given; one that is must be the present one.
fn check_etag(given: &str, stored: &Stored<ViewRecord>) -> TepuiResult<()> {
    let etag = stored.etag();
    if given.is_empty() || given == etag {
        return Ok(());
    }
    Err(Error::aborted(format!(
        "etag {given:?} is not that of the authorized view, which is {etag:?}; get the view and try again"
    )))
}

fn response_view(number: i32, unspecified: ResponseView) -> Result<ResponseView, Status> {
    match ResponseView::try_from(number) {
        Ok(ResponseView::Unspecified) => Ok(unspecified),
        Ok(view) => Ok(view),
        Err(_) => Err(invalid(format!("unknown view {number}"))),
    }
}

/// The parts of a view that are asked for.
fn shown(stored: &Stored<ViewRecord>, view: ResponseView) -> admin::AuthorizedView {
    let kept = stored.value.view.clone().unwrap_or_default();
    match view {
        ResponseView::NameOnly => {
            admin::AuthorizedView { name: kept.name, ..admin::AuthorizedView::default() }
        }
        ResponseView::Basic => {
            admin::AuthorizedView { etag: stored.etag(), authorized_view: None, ..kept }
        }
        ResponseView::Unspecified | ResponseView::Full => {
            admin::AuthorizedView { etag: stored.etag(), ..kept }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(paths: &[&str]) -> Option<prost_types::FieldMask> {
        let paths = paths.iter().map(|path| (*path).to_owned()).collect();
        Some(prost_types::FieldMask { paths })
    }

    #[test]
    fn an_update_changes_what_its_mask_names_or_without_one_what_is_set() {
        let empty = admin::AuthorizedView::default();
        let with_subset = admin::AuthorizedView {
            authorized_view: Some(Type::SubsetView(SubsetView::default())),
            ..empty.clone()
        };
        let protected = admin::AuthorizedView { deletion_protection: true, ..empty.clone() };
        let fields = |mask: Option<prost_types::FieldMask>, given: &admin::AuthorizedView| {
            Fields::of(mask.as_ref(), given)
                .map(|f| (f.deletion_protection, f.row_prefixes, f.family_subsets))
        };
        assert_eq!(fields(None, &empty), Ok((false, false, false)));
        assert_eq!(fields(None, &protected), Ok((true, false, false)));
        assert_eq!(fields(mask(&[]), &with_subset), Ok((false, true, true)));
        assert_eq!(fields(mask(&["deletion_protection"]), &with_subset), Ok((true, false, false)));
        assert_eq!(fields(mask(&["subset_view", "etag"]), &with_subset), Ok((false, true, true)));
        let rows = mask(&["subset_view.row_prefixes"]);
        assert_eq!(fields(rows.clone(), &with_subset), Ok((false, true, false)));
        assert_eq!(fields(mask(&["*"]), &with_subset), Ok((true, true, true)));
        for (mask, given) in [
            (rows, &empty),
            (mask(&["*"]), &protected),
            (mask(&["name"]), &with_subset),
            (mask(&["subset_view.nonsense"]), &with_subset),
            (mask(&["deletion_protection", ""]), &with_subset),
        ] {
            let code = fields(mask.clone(), given).unwrap_err().kind();
            assert_eq!(code, tepui_bigtable::Code::InvalidArgument, "{mask:?}");
        }
    }

    #[test]
    fn each_response_view_shows_its_fields() {
        let kept = admin::AuthorizedView {
            name: "v".to_owned(),
            deletion_protection: true,
            authorized_view: Some(Type::SubsetView(SubsetView::default())),
            ..admin::AuthorizedView::default()
        };
        let record = ViewRecord { table: 1, view: Some(kept) };
        let stored = Stored { value: record, revision: 7, digest: 8 };
        let name = shown(&stored, ResponseView::NameOnly);
        assert_eq!((name.name.as_str(), name.etag.as_str()), ("v", ""));
        assert!(!name.deletion_protection && name.authorized_view.is_none());
        let basic = shown(&stored, ResponseView::Basic);
        assert!(basic.etag == stored.etag() && basic.deletion_protection);
        assert!(basic.authorized_view.is_none());
        assert!(shown(&stored, ResponseView::Full).authorized_view.is_some());
        assert_eq!(response_view(0, ResponseView::Basic).unwrap(), ResponseView::Basic);
        assert!(response_view(9, ResponseView::Basic).is_err());
    }
}
