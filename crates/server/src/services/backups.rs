//! The RPCs of `google.bigtable.admin.v2.BigtableTableAdmin` on backups.

use std::sync::Arc;

use tepui_bigtable::error::Result as TepuiResult;
use tonic::{Response, Status};

use super::{TableAdminService, blocking, blocking_alone, blocking_asked, invalid};
use crate::api::admin;
use crate::api::admin::restore_table_request::Source;
use crate::api::longrunning::Operation;
use crate::backups::Listing;
use crate::grpc::Request;
use crate::limits::{OPERATION_ANSWER_WAIT, PAGE_SIZE_DEFAULT};
use crate::names;
use crate::status::from_error;

fn check(result: TepuiResult<()>) -> Result<(), Status> {
    result.map_err(|error| from_error(&error))
}

#[expect(clippy::unused_async, reason = "the generated dispatch awaits every RPC")]
impl TableAdminService {
    pub(super) async fn on_create_backup(
        &self,
        request: Request<admin::CreateBackupRequest>,
    ) -> Result<Response<Operation>, Status> {
        let request = request.into_inner();
        let name = names::new_backup(&request.parent, &request.backup_id);
        let name = name.map_err(|error| from_error(&error))?;
        let asked = request.backup.ok_or_else(|| invalid("backup must be set"))?;
        check(names::check_table("backup.source_table", &asked.source_table))?;
        let instance = names::instance_of(&request.parent);
        if names::instance_of(&asked.source_table) != instance {
            return Err(invalid(format!(
                "backup.source_table {:?} is not in the instance of {:?}",
                asked.source_table, request.parent
            )));
        }
        let backups = Arc::clone(&self.backups);
        let started = blocking(move || backups.create(&name, &asked));
        self.soon(started.await?).await
    }

    pub(super) async fn on_get_backup(
        &self,
        request: Request<admin::GetBackupRequest>,
    ) -> Result<Response<admin::Backup>, Status> {
        let name = request.into_inner().name;
        check(names::check_backup("name", &name))?;
        self.backups.get(&name).map(Response::new).map_err(|error| from_error(&error))
    }

    pub(super) async fn on_list_backups(
        &self,
        request: Request<admin::ListBackupsRequest>,
    ) -> Result<Response<admin::ListBackupsResponse>, Status> {
        let request = request.into_inner();
        check(names::check_cluster("parent", &request.parent))?;
        // As documented for this RPC, less than one is the largest, too.
        let limit = match usize::try_from(request.page_size) {
            Ok(0) | Err(_) => PAGE_SIZE_DEFAULT,
            Ok(size) => size.min(PAGE_SIZE_DEFAULT),
        };
        let backups = Arc::clone(&self.backups);
        let turn = Arc::clone(&backups.listings).acquire_owned().await;
        let turn = turn.expect("turns are never closed");
        // It has the room for its answer by now, and waits for no change.
        let (backups, next_page_token) = blocking_alone(move || {
            // As long as the thread works, whether anybody waits for it or not.
            let _turn = turn;
            backups.check_listed(&request.parent)?;
            backups.list(&Listing {
                parent: &request.parent,
                filter: &request.filter,
                order_by: &request.order_by,
                page_token: &request.page_token,
                limit,
            })
        })
        .await?;
        Ok(Response::new(admin::ListBackupsResponse { backups, next_page_token }))
    }

    pub(super) async fn on_update_backup(
        &self,
        request: Request<admin::UpdateBackupRequest>,
    ) -> Result<Response<admin::Backup>, Status> {
        let request = request.into_inner();
        let asked = request.backup.ok_or_else(|| invalid("backup must be set"))?;
        check(names::check_backup("backup.name", &asked.name))?;
        let paths = request.update_mask.map(|mask| mask.paths).unwrap_or_default();
        let backups = Arc::clone(&self.backups);
        blocking(move || backups.update(&asked, &paths)).await.map(Response::new)
    }

    pub(super) async fn on_delete_backup(
        &self,
        request: Request<admin::DeleteBackupRequest>,
    ) -> Result<Response<()>, Status> {
        let name = request.into_inner().name;
        check(names::check_backup("name", &name))?;
        let backups = Arc::clone(&self.backups);
        let deleted = blocking_asked(move |asked| backups.delete_where(&name, || asked.check()));
        deleted.await.map(Response::new)
    }

    pub(super) async fn on_copy_backup(
        &self,
        request: Request<admin::CopyBackupRequest>,
    ) -> Result<Response<Operation>, Status> {
        let request = request.into_inner();
        let name = names::new_backup(&request.parent, &request.backup_id);
        let name = name.map_err(|error| from_error(&error))?;
        check(names::check_backup("source_backup", &request.source_backup))?;
        let backups = Arc::clone(&self.backups);
        let copied = blocking(move || {
            backups.copy(&name, &request.source_backup, request.expire_time.as_ref())
        });
        copied.await.map(Response::new)
    }

    pub(super) async fn on_restore_table(
        &self,
        request: Request<admin::RestoreTableRequest>,
    ) -> Result<Response<Operation>, Status> {
        let request = request.into_inner();
        let table = names::new_table(&request.parent, &request.table_id);
        let table = table.map_err(|error| from_error(&error))?;
        let Some(Source::Backup(backup)) = request.source else {
            return Err(invalid("backup must be set"));
        };
        check(names::check_backup("backup", &backup))?;
        check(self.instances.check(&request.parent))?;
        let (backups, instances) = (Arc::clone(&self.backups), self.instances.clone());
        let (instance, created) = (request.parent.clone(), instances.created(&request.parent));
        let allowed = move || instances.check_same(&instance, created);
        let started = blocking(move || backups.restore_where(&table, &backup, allowed));
        self.soon(started.await?).await
    }

    /// The operation once it is done, if that is soon: it then needs no asking again.
    async fn soon(&self, started: Operation) -> Result<Response<Operation>, Status> {
        let done = self.operations.wait(&started.name);
        let Ok(done) = tokio::time::timeout(OPERATION_ANSWER_WAIT, done).await else {
            return Ok(Response::new(started));
        };
        self.operations.nobody_asks_about(&started.name);
        done.map(Response::new).map_err(|error| from_error(&error))
    }
}
