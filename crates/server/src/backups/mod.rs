//! Backups of tables: made, copied, restored, and deleted when they expire; and those that tables' policies ask for.
//!
//! ```text
//!            CreateBackup, a policy           the engine has made it
//! (nothing) ─────────────────────► CREATING ─────────────────────────► READY ───► (nothing)
//!                                      │                                   deleted, or expired
//!                                      └─► (nothing): the table is gone, or the backup was deleted
//! ```
//!
//! A backup is an entry of the catalog ([`record`]) that names a backup of the engine, which holds references to files
//! and copies none: so all of this takes as long as a flush of what is in memory, whatever the size. The entry comes
//! last and goes first; what the engine has and no entry names is removed at the next start.
//!
//! Work that a client waits for by a long-running operation is done on a thread of its own. It is written so that it can
//! begin anew: what the end of a server interrupts, the next one takes up ([`Backups::resume`]).
//!
//! | Noun | File |
//! |---|---|
//! | what the catalog keeps | `record.rs` |
//! | creating, copying and restoring | `jobs.rs` |
//! | the threads for that | `tasks.rs` |
//! | limits of times | `times.rs` |
//! | filters, orders and pages of lists | `filter.rs`, `page.rs` |
//! | what time does: expiry, hot to standard, policies | `sweep.rs` |
//! | how long tables rest whose automated backup failed | `rests.rs` |
//! | what metrics tell | `figures.rs` |

mod figures;
pub(crate) mod filter;
mod jobs;
pub(crate) mod page;
pub mod record;
mod rests;
mod sweep;
mod tasks;
#[cfg(test)]
mod tests;
pub(crate) mod times;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use tepui_bigtable::error::{Error, Result};
use tepui_engine::backup::{Backup, BackupId};
use tepui_engine::db::Engine;
use tepui_engine::io::Env;
use tokio::sync::Semaphore;

use crate::api::admin;
use crate::api::admin::backup::BackupType;
use crate::api::instances::Instance;
use crate::catalog::may_be_durable;
use crate::catalog::resources::Resources;
use crate::instances::Instances;
use crate::limits::BACKUP_LISTINGS_MAX;
use crate::names;
use crate::operations::Operations;
use crate::services::{self, Tables};
pub use figures::BackupFigures;
use figures::Figures;
use filter::Filter;
use page::Order;
use record::BackupRecord;
use rests::{Begun, Rests};
pub(crate) use sweep::check_policy_named;
use tasks::Waiting;

/// The backups of one server.
pub struct Backups {
    env: Env,
    engine: Arc<Engine>,
    tables: Arc<Tables>,
    instances: Arc<Instances>,
    resources: Arc<Resources>,
    operations: Arc<Operations>,
    /// Threads that work for operations.
    jobs: AtomicUsize,
    /// Turns of [`BACKUP_LISTINGS_MAX`].
    pub(crate) listings: Arc<Semaphore>,
    rests: Rests,
    begun: Begun,
    figures: Figures,
    waiting: Waiting,
}

impl std::fmt::Debug for Backups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Backups").finish_non_exhaustive()
    }
}

/// What is to be listed.
#[derive(Debug)]
pub struct Listing<'a> {
    /// The cluster; its id may be `-`, for all of the instance.
    pub parent: &'a str,
    /// As in the request.
    pub filter: &'a str,
    /// As in the request.
    pub order_by: &'a str,
    /// As in the request.
    pub page_token: &'a str,
    /// Backups on a page.
    pub limit: usize,
}

impl Backups {
    /// Those of the catalog. Removes what the engine has and the catalog does not name. Blocks.
    pub fn open(
        env: Env,
        engine: Arc<Engine>,
        tables: Arc<Tables>,
        instances: Arc<Instances>,
        resources: Arc<Resources>,
        operations: Arc<Operations>,
    ) -> Result<Self> {
        let all = resources.list::<BackupRecord>("", None, usize::MAX);
        let named: Vec<BackupId> =
            all.iter().filter_map(|(_, stored)| stored.value.made_id()).collect();
        engine.retain_backups(&named)?;
        let backups = Self {
            env,
            engine,
            tables,
            instances,
            resources,
            operations,
            jobs: AtomicUsize::new(0),
            listings: Arc::new(Semaphore::new(BACKUP_LISTINGS_MAX)),
            rests: Rests::default(),
            begun: Begun::default(),
            figures: Figures::default(),
            waiting: Waiting::default(),
        };
        for (name, stored) in &all {
            let made = stored.value.made_id();
            if made.is_some_and(|id| backups.whole(id).is_none()) {
                tracing::error!(
                    backup = name,
                    "the data directory has no list of this backup's files that can be read: it cannot be restored; start again with the list in its place, or delete the backup"
                );
            }
        }
        Ok(backups)
    }

    /// The backup of a name.
    pub fn get(&self, name: &str) -> Result<admin::Backup> {
        self.resources.find::<BackupRecord>(name).map(|stored| stored.value.told())
    }

    /// A page of backups, and the token for the next.
    pub fn list(&self, listing: &Listing<'_>) -> Result<(Vec<admin::Backup>, String)> {
        let Listing { parent, filter, order_by, page_token, limit } = *listing;
        let admitted = Filter::parse(filter)?;
        let order = Order::parse(order_by)?;
        let request = page::request_hash(parent, filter, order_by);
        let last = page::last_of(request, page_token)?;
        let prefix = match parent.strip_suffix("/-") {
            Some(all_clusters) => format!("{all_clusters}/"),
            None => backups_of(parent),
        };
        let all = self.resources.list::<BackupRecord>(&prefix, None, usize::MAX);
        let shown = all.into_iter().map(|(_, stored)| stored.value.shown());
        let mut found: Vec<_> = shown
            .filter(|backup| admitted.admits(backup))
            .filter(|backup| last.as_ref().is_none_or(|last| order.compare(last, backup).is_lt()))
            .collect();
        found.sort_by(|a, b| order.compare(a, b));
        let (page, has_more) = services::page(found.into_iter(), limit);
        let next = page.last().filter(|_| has_more).map(|last| page::token(request, last));
        Ok((page.into_iter().map(record::told).collect(), next.unwrap_or_default()))
    }

    /// Changes what the mask names of a backup. Blocks.
    pub fn update(&self, asked: &admin::Backup, paths: &[String]) -> Result<admin::Backup> {
        if paths.is_empty() {
            return Err(Error::invalid_argument("update_mask must name the fields to update"));
        }
        let now = self.env.clock.now_micros();
        let updated = self.resources.update::<BackupRecord>(&asked.name, |record| {
            let mut shown = record.shown();
            let made = shown.start_time.as_ref().map_or(now, times::micros);
            for path in paths {
                match path.as_str() {
                    "expire_time" => {
                        let is_copy = !shown.source_backup.is_empty();
                        let at = times::expiry(asked.expire_time.as_ref(), made, now, is_copy)?;
                        shown.expire_time = Some(at);
                    }
                    "hot_to_standard_time" => {
                        if let Some(at) = &asked.hot_to_standard_time {
                            times::check_hot_to_standard(at, kind_of(&shown), made)?;
                        }
                        shown.hot_to_standard_time = asked.hot_to_standard_time;
                    }
                    other => {
                        return Err(Error::invalid_argument(format!(
                            "update_mask: {other:?} cannot be updated; only expire_time and \
                             hot_to_standard_time can"
                        )));
                    }
                }
            }
            record.shown = Some(shown);
            Ok(())
        })?;
        Ok(updated.value.told())
    }

    /// Deletes a backup. Blocks.
    #[cfg(test)]
    pub fn delete(&self, name: &str) -> Result<()> {
        self.delete_where(name, || Ok(()))
    }

    /// Deletes a backup, finished or not, and its policy, where that is `allowed`. What is being restored or copied from it goes
    /// on. Blocks.
    pub fn delete_where(&self, name: &str, allowed: impl FnOnce() -> Result<()>) -> Result<()> {
        let record = self.resources.change(|change| {
            allowed()?;
            let record = change.find::<BackupRecord>(name)?.value.clone();
            change.delete_under(name);
            Ok(record)
        })?;
        if let Some(id) = record.made_id() {
            self.forget(id);
        }
        tracing::info!(backup = name, "backup deleted");
        Ok(())
    }

    /// Checks that there is such a cluster. Clusters of instances that nobody created are taken as they come, where such
    /// instances are.
    pub fn check_cluster(&self, name: &str) -> Result<()> {
        let instance = names::instance_of(name);
        self.instances.check(instance)?;
        if names::id_of(name) == "-" {
            return Err(Error::invalid_argument("parent must name one cluster"));
        }
        if self.resources.get::<Instance>(instance).is_some() {
            self.resources.find::<admin::Cluster>(name)?;
        }
        Ok(())
    }

    /// The same, for what was asked for when its instance was [created](Instances::created) at `created`: a backup does not come into an
    /// instance that was deleted meanwhile.
    fn check_cluster_still(
        &self,
        name: &str,
        created: Option<prost_types::Timestamp>,
    ) -> Result<()> {
        self.instances.check_same(names::instance_of(name), created)?;
        self.check_cluster(name)
    }

    /// The same as [`Self::check_cluster`] for a cluster whose backups are listed, which may be all clusters of an instance, or one in which
    /// backups were made before somebody created the instance, without it.
    pub fn check_listed(&self, parent: &str) -> Result<()> {
        if let Some(instance) = parent.strip_suffix("/clusters/-") {
            return self.instances.check(instance);
        }
        self.instances.check(names::instance_of(parent))?;
        let some = self.resources.list::<BackupRecord>(&backups_of(parent), None, 1);
        if some.is_empty() { self.check_cluster(parent) } else { Ok(()) }
    }

    /// The engine's backup, unless its list is lost: a repair leaves an empty one in its place, and no table is without a tablet.
    fn whole(&self, id: BackupId) -> Option<Arc<Backup>> {
        self.engine.backup(id).filter(|made| !made.list().tablets.is_empty())
    }

    /// Removes the engine's backup of an entry that is gone. One that cannot be removed now costs space until the engine can.
    fn forget(&self, id: BackupId) {
        if let Err(error) = self.engine.delete_backup(id) {
            tracing::warn!(backup = id.0, %error, "cannot remove a backup that nothing names");
        }
    }

    /// The same for an entry that could not be kept, unless it may be there all the same.
    fn forget_unless_durable(&self, id: BackupId, error: &Error) {
        if !may_be_durable(error) {
            self.forget(id);
        }
    }
}

/// What the names of a cluster's backups start with.
fn backups_of(cluster: &str) -> String {
    format!("{cluster}/backups/")
}

fn kind_of(backup: &admin::Backup) -> BackupType {
    BackupType::try_from(backup.backup_type).unwrap_or(BackupType::Standard)
}
