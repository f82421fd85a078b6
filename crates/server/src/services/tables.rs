//! `google.bigtable.admin.v2.BigtableTableAdmin`: tables, their families, and consistency tokens.

use std::sync::Arc;

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use tepui_bigtable::error::{Error, Result as TepuiResult};
use tepui_bigtable::table::Table;
use tepui_engine::io::Clock;
use tonic::{Response, Status};

use super::changes::{Changes as _, finished};
use super::{Asked, Iam, Tables, blocking_asked, invalid, page, page_size, views};
use crate::api::admin;
use crate::api::admin::drop_row_range_request::Target;
use crate::api::admin::modify_column_families_request::modification::Mod;
use crate::api::admin::table::View;
use crate::api::longrunning::Operation;
use crate::api::spelled_out;
use crate::backups::Backups;
use crate::bundles::{Bundles, Linked};
use crate::catalog::authorized_views::AuthorizedViews;
use crate::catalog::record::{FamilyRecord, TableRecord};
use crate::catalog::{Entry, NewTable, families, settings};
use crate::grpc::Request;
use crate::instances::Instances;
use crate::limits::TABLET_DROPS_MAX;
use crate::metrics::rpc::Recorder;
use crate::names;
use crate::operations::Operations;
use crate::status::from_error;

const TABLE_TYPE: &str = "google.bigtable.admin.v2.Table";

/// What a table's `tiered_storage_config` asks for.
const TIERED: &str = "tiers of storage";

/// What the `keep_hot_duration` of its `automated_backup_policy` asks for.
const HOT: &str = "hot backups";

/// The service: tables, and what belongs to them. Cheap to clone: every core has one.
#[derive(Clone)]
pub struct TableAdminService {
    pub(crate) tables: Arc<Tables>,
    pub(crate) views: Arc<AuthorizedViews>,
    pub(crate) instances: Arc<Instances>,
    pub(crate) operations: Arc<Operations>,
    pub(crate) backups: Arc<Backups>,
    pub(crate) bundles: Bundles,
    pub(crate) iam: Iam,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) recorder: Recorder,
}

#[expect(clippy::unused_async, reason = "the generated dispatch awaits every RPC")]
impl TableAdminService {
    /// The entry of a table in an instance that is served: `NOT_FOUND` where there is none, or nobody created the instance and the server is strict.
    pub(super) fn served(&self, name: &str) -> TepuiResult<Arc<Entry<Table>>> {
        // Looked up first: it says what is wrong with a name.
        let entry = self.tables.get(name)?;
        self.instances.check(names::instance_of(name))?;
        Ok(entry)
    }

    /// A table as a view shows it.
    fn shown(&self, record: &TableRecord, view: View) -> spelled_out::Table {
        views::table(record, view, || self.instances.cluster_ids(names::instance_of(&record.name)))
    }

    pub(super) async fn on_create_table(
        &self,
        request: Request<spelled_out::CreateTableRequest>,
    ) -> Result<Response<spelled_out::Table>, Status> {
        let request = request.into_inner();
        let name = names::new_table(&request.parent, &request.table_id);
        let name = name.map_err(|error| from_error(&error))?;
        let new = NewTable {
            asked: request.table.unwrap_or_default(),
            splits: request.initial_splits.into_iter().map(|split| split.key).collect(),
        };
        let Self { tables, bundles, views, instances, .. } = self.clone();
        let created = instances.created(names::instance_of(&name));
        let entry = blocking_asked(move |asked| {
            let instance = names::instance_of(&name);
            let types = new.asked.families.clone();
            let is_tiered = new.asked.rest.tiered_storage_config.is_some();
            let policy = new.asked.automated_backup_policy.as_ref();
            let is_hot = policy.is_some_and(|policy| policy.keep_hot_duration.is_some());
            let check = || {
                instances.check_same(instance, created)?;
                // A table that is not there has no bundles.
                let none = TableRecord { name: name.clone(), ..TableRecord::default() };
                let linked = Linked::default();
                for (family, config) in &types {
                    bundles.check_named(&none, family, config.value_type.as_ref(), &linked)?;
                }
                if is_tiered {
                    instances.check_on_ssd(instance, TIERED)?;
                }
                if is_hot {
                    instances.check_on_ssd(instance, HOT)?;
                }
                Ok(())
            };
            check()?;
            // And again within a change, so that it is still so when the table is there.
            tables.create_where(&name, new, || {
                let change = views.resources().begin();
                // It may replace a deleted table of the name, for good.
                asked.check()?;
                check().map(|()| change)
            })
        })
        .await?;
        Ok(Response::new(self.shown(&entry.record, View::SchemaView)))
    }

    pub(super) async fn on_list_tables(
        &self,
        request: Request<admin::ListTablesRequest>,
    ) -> Result<Response<spelled_out::ListTablesResponse>, Status> {
        let request = request.into_inner();
        names::check_instance("parent", &request.parent).map_err(|error| from_error(&error))?;
        self.instances.check(&request.parent).map_err(|error| from_error(&error))?;
        let view = match view(request.view)? {
            View::Unspecified => View::NameOnly,
            view => view,
        };
        let size = page_size(request.page_size).map_err(|error| from_error(&error))?;
        // A token is the name of the last table of the page before.
        let after = Some(request.page_token.as_str()).filter(|token| !token.is_empty());
        if after.is_some_and(|token| !is_table_of(&request.parent, token)) {
            return Err(invalid(format!("bad page_token {:?}", request.page_token)));
        }
        // One more than asked for tells whether there is a next page.
        let found = self.tables.list(&request.parent, after, size.saturating_add(1));
        let shown = found.iter().map(|entry| self.shown(&entry.record, view));
        let (tables, has_more) = page(shown, size);
        let last = found.get(tables.len().saturating_sub(1)).filter(|_| has_more);
        let next_page_token = last.map(|entry| entry.record.name.clone()).unwrap_or_default();
        Ok(Response::new(spelled_out::ListTablesResponse { tables, next_page_token }))
    }

    pub(super) async fn on_get_table(
        &self,
        request: Request<admin::GetTableRequest>,
    ) -> Result<Response<spelled_out::Table>, Status> {
        let request = request.into_inner();
        let view = view(request.view)?;
        let entry = self.served(&request.name).map_err(|error| from_error(&error))?;
        Ok(Response::new(self.shown(&entry.record, view)))
    }

    pub(super) async fn on_update_table(
        &self,
        request: Request<spelled_out::UpdateTableRequest>,
    ) -> Result<Response<Operation>, Status> {
        let request = request.into_inner();
        let table = request.table.ok_or_else(|| invalid("table must be set"))?;
        let (mask, ignore_warnings) = (request.update_mask, request.ignore_warnings);
        let change = self.change(move |service, times| {
            let name = &table.rest.name;
            let now = service.served(name)?;
            let update = settings::Update::of(&now.record, &table, mask.as_ref(), ignore_warnings)?;
            let beside = service.operations.beside();
            let updated = service.tables.update_with(
                name,
                |record| {
                    let changed = update.apply(record)?;
                    let tiers = changed.tiered_storage_config;
                    if tiers.is_some() && tiers != record.tiered_storage_config {
                        service.instances.check_on_ssd(names::instance_of(name), TIERED)?;
                    }
                    let hot = |record: &TableRecord| {
                        record.automated_backup_policy.as_ref()?.keep_hot_duration
                    };
                    if hot(&changed).is_some() && hot(&changed) != hot(record) {
                        service.instances.check_on_ssd(names::instance_of(name), HOT)?;
                    }
                    Ok(changed)
                },
                |record, entry| {
                    let metadata = admin::UpdateTableMetadata {
                        name: name.clone(),
                        start_time: times.requested(),
                        end_time: times.now(),
                    };
                    let metadata = ("UpdateTableMetadata", &metadata);
                    let table = service.shown(record, View::SchemaView);
                    beside.commit(entry, finished(name, metadata, (TABLE_TYPE, &table)))
                },
            );
            updated.map(|(_, operation)| operation)
        });
        change.await
    }

    pub(super) async fn on_delete_table(
        &self,
        request: Request<admin::DeleteTableRequest>,
    ) -> Result<Response<()>, Status> {
        let name = request.into_inner().name;
        let service = self.clone();
        // Within a change, so that no view of the table is protected meanwhile.
        let deleted = blocking_asked(move |asked| {
            let Self { tables, views, .. } = &service;
            views.resources().change(|_| {
                let table = service.served(&name)?.record.incarnation;
                views.check_unprotected(&name, |_, of| of == table)?;
                tables.delete_where(&name, || asked.check())
            })
        });
        deleted.await.map(Response::new)
    }

    pub(super) async fn on_undelete_table(
        &self,
        request: Request<admin::UndeleteTableRequest>,
    ) -> Result<Response<Operation>, Status> {
        let name = request.into_inner().name;
        names::check_table("name", &name).map_err(|error| from_error(&error))?;
        self.instances.check(names::instance_of(&name)).map_err(|error| from_error(&error))?;
        let change = self.change(move |service, times| {
            let beside = service.operations.beside();
            let undeleted = service.tables.undelete(&name, |record, entry| {
                let metadata = admin::UndeleteTableMetadata {
                    name: name.clone(),
                    start_time: times.requested(),
                    end_time: times.now(),
                };
                let metadata = ("UndeleteTableMetadata", &metadata);
                let table = service.shown(record, View::SchemaView);
                beside.commit(entry, finished(&name, metadata, (TABLE_TYPE, &table)))
            });
            undeleted.map(|(_, operation)| operation)
        });
        change.await
    }

    /// `ignore_warnings` has nothing to ignore: no check here is a mere warning.
    pub(super) async fn on_modify_column_families(
        &self,
        request: Request<admin::ModifyColumnFamiliesRequest>,
    ) -> Result<Response<spelled_out::Table>, Status> {
        let request = request.into_inner();
        let service = self.clone();
        let work = move |asked: &Asked| {
            let Self { tables, bundles, views, .. } = &service;
            // Schemas may be large: they are linked before other changes are kept from going on.
            let types =
                request.modifications.iter().filter_map(|modification| match &modification.r#mod {
                    Some(Mod::Create(family) | Mod::Update(family)) => family.value_type.as_ref(),
                    _ => None,
                });
            let linked = bundles.link_named(&service.served(&request.name)?.record, types)?;
            let modify = |record: &TableRecord| {
                asked.check()?;
                modify(record, &request, bundles, &linked)
            };
            // Within a change, so that no schema goes meanwhile that a new type names.
            views.resources().change(|_| tables.update(&request.name, modify))
        };
        let entry = blocking_asked(work).await?;
        Ok(Response::new(self.shown(&entry.record, View::SchemaView)))
    }

    pub(super) async fn on_drop_row_range(
        &self,
        request: Request<admin::DropRowRangeRequest>,
    ) -> Result<Response<()>, Status> {
        let request = request.into_inner();
        let entry = self.served(&request.name).map_err(|error| from_error(&error))?;
        let table = &entry.table;
        let drops = match to_drop(request.target.as_ref())? {
            ToDrop::Nothing => Ok(Vec::new()),
            ToDrop::Prefix(prefix) => table.drops(Some(prefix)),
            ToDrop::All => table.drops(None),
        };
        // Each tablet has a manifest to sync. A client that goes away takes what has not begun with it.
        let drops = stream::iter(drops.map_err(|error| from_error(&error))?).map(Ok);
        let dropped = drops.try_for_each_concurrent(TABLET_DROPS_MAX, |drop| async move {
            if drop.may_be_at_once() {
                let at_once = drop.clone();
                let work = move |asked: &Asked| {
                    // Rows that its client has written since it gave up are not what it wanted to be gone.
                    pollster::block_on(at_once.at_once(|| asked.check().is_ok()))
                };
                if blocking_asked(work).await? {
                    return Ok(());
                }
            }
            drop.one_by_one().await.map_err(|error| from_error(&error))
        });
        dropped.await.map(Response::new)
    }

    pub(super) async fn on_generate_consistency_token(
        &self,
        request: Request<admin::GenerateConsistencyTokenRequest>,
    ) -> Result<Response<admin::GenerateConsistencyTokenResponse>, Status> {
        let entry = self.served(&request.get_ref().name).map_err(|error| from_error(&error))?;
        let consistency_token = token(&entry.record, self.clock.now_micros());
        Ok(Response::new(admin::GenerateConsistencyTokenResponse { consistency_token }))
    }

    /// There is one cluster, and its reads see every acknowledged write: a valid token is consistent.
    pub(super) async fn on_check_consistency(
        &self,
        request: Request<admin::CheckConsistencyRequest>,
    ) -> Result<Response<admin::CheckConsistencyResponse>, Status> {
        let request = request.get_ref();
        let entry = self.served(&request.name).map_err(|error| from_error(&error))?;
        let checked = check_token(&entry.record, &request.consistency_token);
        checked.map_err(|error| from_error(&error))?;
        Ok(Response::new(admin::CheckConsistencyResponse { consistent: true }))
    }
}

/// What a table's record is to be, with the schemas there that new types of its families name.
fn modify(
    record: &TableRecord,
    request: &admin::ModifyColumnFamiliesRequest,
    bundles: &Bundles,
    linked: &Linked,
) -> TepuiResult<TableRecord> {
    let changed = families::modify(record, &request.modifications)?;
    for family in &changed.families {
        let of = |family: &FamilyRecord| family.config.as_ref()?.value_type.clone();
        let value_type = of(family);
        let before = record.family(&family.name).filter(|before| before.id == family.id);
        if before.and_then(of) != value_type {
            bundles.check_named(record, &family.name, value_type.as_ref(), linked)?;
        }
    }
    Ok(changed)
}

fn view(number: i32) -> Result<View, Status> {
    View::try_from(number).map_err(|_| invalid(format!("unknown view {number}")))
}

fn is_table_of(parent: &str, name: &str) -> bool {
    names::split_table(name).is_some_and(|(instance, _)| instance == parent)
}

/// Rows to drop.
#[derive(Debug, PartialEq)]
enum ToDrop<'a> {
    Nothing,
    Prefix(&'a [u8]),
    All,
}

/// The rows that a request names. That not all are to be dropped is documented to do nothing.
fn to_drop(target: Option<&Target>) -> Result<ToDrop<'_>, Status> {
    match target {
        Some(Target::RowKeyPrefix(prefix)) if prefix.is_empty() => Err(invalid(
            "row_key_prefix must be non-empty; delete_all_data_from_table drops all rows",
        )),
        Some(Target::RowKeyPrefix(prefix)) => Ok(ToDrop::Prefix(prefix)),
        Some(Target::DeleteAllDataFromTable(true)) => Ok(ToDrop::All),
        Some(Target::DeleteAllDataFromTable(false)) => Ok(ToDrop::Nothing),
        None => Err(invalid("one of row_key_prefix and delete_all_data_from_table must be set")),
    }
}

/// A token says for which table it was made, and when: `INCARNATION-MICROSECONDS`, both in hexadecimal. The incarnation alone
/// makes it valid: clocks are set back.
fn token(record: &TableRecord, now_micros: i64) -> String {
    format!("{:016x}-{now_micros:x}", record.incarnation)
}

fn check_token(record: &TableRecord, given: &str) -> TepuiResult<()> {
    let of_this_table = given.split_once('-').is_some_and(|(incarnation, made)| {
        u64::from_str_radix(incarnation, 16) == Ok(record.incarnation)
            && i64::from_str_radix(made, 16).is_ok()
    });
    if of_this_table {
        return Ok(());
    }
    Err(Error::invalid_argument(format!(
        "consistency_token {given:?} is not valid for table {:?}",
        record.name
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropping_rows_needs_a_prefix_or_an_explicit_all() {
        let prefix = Target::RowKeyPrefix(bytes::Bytes::from_static(b"a"));
        assert_eq!(to_drop(Some(&prefix)).unwrap(), ToDrop::Prefix(b"a"));
        for (all, rows) in [(true, ToDrop::All), (false, ToDrop::Nothing)] {
            assert_eq!(to_drop(Some(&Target::DeleteAllDataFromTable(all))).unwrap(), rows);
        }
        for bad in [None, Some(Target::RowKeyPrefix(bytes::Bytes::new()))] {
            let status = to_drop(bad.as_ref()).unwrap_err();
            assert_eq!(status.code(), tonic::Code::InvalidArgument);
        }
    }

    #[test]
    fn a_token_is_good_for_its_table_alone() {
        let record =
            TableRecord { incarnation: u64::MAX, created_micros: 100, ..TableRecord::default() };
        let good = token(&record, 100);
        check_token(&record, &good).unwrap();
        check_token(&record, &token(&record, 99)).expect("the clock was set back meanwhile");
        let later = TableRecord { incarnation: 8, ..record.clone() };
        assert!(check_token(&later, &good).is_err());
        for bad in ["", "-", "x", "ffffffffffffffff-", "ffffffffffffffff-x", "7-100"] {
            assert!(check_token(&record, bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_unknown_view_is_refused() {
        assert_eq!(view(5).unwrap(), View::EncryptionView);
        assert_eq!(view(77).unwrap_err().code(), tonic::Code::InvalidArgument);
    }

    #[test]
    fn page_tokens_of_other_instances_are_told_apart() {
        let instance = "projects/p/instances/i";
        assert!(is_table_of(instance, "projects/p/instances/i/tables/t"));
        assert!(!is_table_of(instance, "projects/p/instances/j/tables/t"));
        assert!(!is_table_of(instance, "x"));
    }
}
