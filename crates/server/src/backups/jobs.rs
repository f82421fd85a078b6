//! Creating, copying and restoring. What may take a while is done on a thread of its own, for a long-running operation
//! that outlives the server.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use prost::Message as _;
use tepui_bigtable::error::{Code, Error, Result};
use tepui_engine::backup::Backup;
use tepui_engine::db::Health;

use super::figures::{Job, is_failure};
use super::record::BackupRecord;
use super::tasks::Task;
use super::{Backups, kind_of, times};
use crate::api::admin;
use crate::api::admin::backup::{BackupType, State};
use crate::api::admin::encryption_info::EncryptionType;
use crate::api::admin::table::View;
use crate::api::longrunning::Operation;
use crate::catalog::may_be_durable;
use crate::catalog::record::TableRecord;
use crate::catalog::resources::Change;
use crate::limits::{BACKUP_JOB_RETRY, BACKUP_JOBS_MAX};
use crate::names;
use crate::operations::{Finished, Handle, any};
use crate::services::views;

const BACKUP_TYPE: &str = "google.bigtable.admin.v2.Backup";
const TABLE_TYPE: &str = "google.bigtable.admin.v2.Table";
const CREATE_TYPE: &str = "google.bigtable.admin.v2.CreateBackupMetadata";
const COPY_TYPE: &str = "google.bigtable.admin.v2.CopyBackupMetadata";
const RESTORE_TYPE: &str = "google.bigtable.admin.v2.RestoreTableMetadata";
const OPTIMIZE_TYPE: &str = "google.bigtable.admin.v2.OptimizeRestoredTableMetadata";
const EMPTY_TYPE: &str = "google.protobuf.Empty";

/// Percent of an operation that is done.
const DONE_PERCENT: i32 = 100;

/// Takes a place among the jobs while it lives.
pub(super) struct Place(Arc<Backups>);

impl Place {
    pub(super) fn backups(&self) -> &Backups {
        &self.0
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.jobs.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Backups {
    /// Starts a backup of a table as a client asks for it. Blocks.
    pub fn create(self: &Arc<Self>, name: &str, asked: &admin::Backup) -> Result<Operation> {
        let now = self.env.clock.now_micros();
        let expire_time = times::expiry(asked.expire_time.as_ref(), now, now, false)?;
        let kind = times::kind(asked, now)?;
        if kind == BackupType::Hot {
            self.instances.check_on_ssd(names::instance_of(name), "hot backups")?;
        }
        let shown = admin::Backup {
            source_table: asked.source_table.clone(),
            expire_time: Some(expire_time),
            backup_type: kind.into(),
            hot_to_standard_time: asked.hot_to_standard_time,
            ..admin::Backup::default()
        };
        self.begin(name, shown, None)
    }

    /// Starts a backup of a table, of which all is checked. An automated one has its `place` already.
    pub(super) fn begin(
        self: &Arc<Self>,
        name: &str,
        shown: admin::Backup,
        place: Option<Place>,
    ) -> Result<Operation> {
        self.check_writable()?;
        let created = self.instances.created(names::instance_of(name));
        let source_table = shown.source_table.clone();
        let table = self.tables.get(&source_table)?.record.clone();
        let automated = place.is_some();
        let place = place.map_or_else(|| self.place(), Ok)?;
        let start_time = Some(times::timestamp(self.env.clock.now_micros()));
        let shown = admin::Backup {
            name: name.to_owned(),
            start_time,
            state: State::Creating.into(),
            encryption_info: Some(encryption()),
            ..shown
        };
        let record = BackupRecord {
            shown: Some(shown),
            table: table.encode_to_vec().into(),
            engine_id: None,
            incarnation: self.env.rng.next_u64(),
            automated,
        };
        let (incarnation, job) = (record.incarnation, Job::of(&record));
        let metadata = admin::CreateBackupMetadata {
            name: name.to_owned(),
            source_table,
            start_time,
            end_time: None,
        };
        let handle = self.operations.start_with(name, any(CREATE_TYPE, &metadata), |change| {
            self.check_cluster_still(names::cluster_of(name), created)?;
            change.create(name, record)
        })?;
        let operation = handle.operation()?;
        let made = name.to_owned();
        let task = Task::new(handle, job, move |backups, handle| {
            backups.make_as(job, &made, incarnation, handle, metadata)
        });
        let started = self.start(place, task);
        if started.is_err() {
            self.give_up(name, incarnation);
        }
        started.map(|()| operation)
    }

    /// Makes a backup. The table of an automated one that fails rests before the next.
    fn make_as(
        &self,
        job: Job,
        name: &str,
        incarnation: u64,
        handle: &Handle,
        metadata: admin::CreateBackupMetadata,
    ) -> Result<prost_types::Any> {
        let table = metadata.source_table.clone();
        let made = self.make(name, incarnation, handle, metadata);
        match &made {
            _ if job != Job::Automated => {}
            Ok(_) => {
                self.rests.made(&table);
                // The last sweep saw it being made, and told the age of the one before, or of the table.
                self.count_entries();
            }
            Err(error) if error.kind() == Code::Cancelled => {}
            Err(error) => {
                self.begun.failed(names::cluster_of(name), &table);
                if is_failure(error) {
                    self.rests.failed(&table, self.env.clock.monotonic_micros());
                }
            }
        }
        made
    }

    /// Makes the engine's backup for an entry, and the entry READY.
    fn make(
        &self,
        name: &str,
        incarnation: u64,
        handle: &Handle,
        metadata: admin::CreateBackupMetadata,
    ) -> Result<prost_types::Any> {
        let gone = || Error::new(Code::Cancelled, format!("backup {name:?} was deleted meanwhile"));
        handle.check_cancelled().inspect_err(|_| self.give_up(name, incarnation))?;
        let of_this = || {
            let stored = self.resources.get::<BackupRecord>(name);
            stored.filter(|stored| stored.value.incarnation == incarnation).ok_or_else(gone)
        };
        let table = of_this()?.value.table()?;
        let tablets: Vec<_> = table.tablet_ids().collect();
        let unwanted = || handle.check_cancelled().and_then(|()| of_this().map(drop)).err();
        // A flush waits for as long as the disk is full, and holds nothing meanwhile that would have to be undone.
        let made = pollster::block_on(async {
            tokio::select! {
                biased;
                unwanted = self.resources.until(unwanted) => Err(unwanted),
                made = self.engine.create_backup(&tablets) => Ok(made),
            }
        });
        let made = match made.inspect_err(|_| self.give_up(name, incarnation))? {
            Ok(made) => made,
            Err(error) => {
                // An engine that has failed is restarted, and goes on with the backup.
                self.check_writable()?;
                let error = Error::from(error).context(format!("table {:?}", table.name));
                // Tablets that are gone are those of a table that is, too.
                let of_table = || self.as_it_is_now(&table).err();
                let is_gone = error.kind() == Code::NotFound;
                let error = is_gone.then(of_table).flatten().unwrap_or(error);
                if error.kind() != Code::Unavailable {
                    self.give_up(name, incarnation);
                }
                return Err(error);
            }
        };
        let table = match self.as_it_is_now(&table) {
            Ok(now) => now,
            Err(error) => {
                let id = made.id();
                drop(made);
                self.forget(id);
                self.give_up(name, incarnation);
                return Err(error);
            }
        };
        let end_time = Some(times::timestamp(self.env.clock.now_micros()));
        let ready = self.resources.update::<BackupRecord>(name, |record| {
            if record.incarnation != incarnation {
                return Err(gone());
            }
            handle.check_cancelled()?;
            let shown = record.shown();
            record.engine_id = Some(made.id().0);
            record.table = table.encode_to_vec().into();
            record.shown = Some(admin::Backup {
                state: State::Ready.into(),
                end_time,
                size_bytes: size_bytes(&made),
                ..shown
            });
            Ok(())
        });
        match ready {
            Ok(stored) => {
                let metadata = admin::CreateBackupMetadata { end_time, ..metadata };
                handle.progress(any(CREATE_TYPE, &metadata));
                tracing::info!(backup = name, table = table.name, "backup made");
                Ok(any(BACKUP_TYPE, &stored.value.shown()))
            }
            Err(error) => {
                let id = made.id();
                drop(made);
                self.forget_unless_durable(id, &error);
                // What may be durable shows after a restart, and what a read-only server leaves goes on then.
                let is_left = error.kind() == Code::Unavailable || self.check_writable().is_err();
                if !may_be_durable(&error) && !is_left {
                    self.give_up(name, incarnation);
                }
                Err(if error.kind() == Code::NotFound { gone() } else { error })
            }
        }
    }

    /// The record of a table of which a backup was made. Its families may be others by now than when the backup was asked for, which may
    /// have been by the last server: the backup holds cells of those, under numbers that no later family may have. `ABORTED` where
    /// that record does not tell them any more.
    fn as_it_is_now(&self, before: &TableRecord) -> Result<TableRecord> {
        let aborted = |what: String| {
            let text =
                format!("table {:?}: {what} while the backup was made; make it again", before.name);
            Err(Error::new(Code::Aborted, text))
        };
        let now = self.tables.kept(&before.name);
        let Some(now) = now.filter(|now| now.record.incarnation == before.incarnation) else {
            return aborted("it was replaced, or removed for good,".to_owned());
        };
        match dropped_family(before, &now.record) {
            Some(dropped) => aborted(format!("column family {dropped:?} was dropped")),
            None => Ok(now.record.clone()),
        }
    }

    /// Removes the entry of a backup that will not be made. One that has been made meanwhile stays.
    pub(super) fn give_up(&self, name: &str, incarnation: u64) {
        self.give_up_where(name, incarnation, || true);
    }

    /// The same if `is_over`, which is asked where no other change comes between.
    fn give_up_where(&self, name: &str, incarnation: u64, is_over: impl FnOnce() -> bool) {
        let removed = self.resources.change(|change| {
            let stored = change.get::<BackupRecord>(name);
            let is_unmade = |record: &BackupRecord| {
                record.incarnation == incarnation && record.engine_id.is_none()
            };
            if stored.is_some_and(|stored| is_unmade(&stored.value)) && is_over() {
                change.delete_under(name);
            }
            Ok(())
        });
        if let Err(error) = removed {
            tracing::warn!(backup = name, %error, "cannot remove the entry of a backup that failed");
        }
    }

    /// Copies a backup. Blocks; the operation is done.
    pub fn copy(
        &self,
        name: &str,
        source: &str,
        expire_time: Option<&prost_types::Timestamp>,
    ) -> Result<Operation> {
        self.check_writable()?;
        let now = self.env.clock.now_micros();
        let expire_time = times::expiry(expire_time, now, now, true)?;
        let original = self.ready(source)?;
        self.copy_of(name, source, expire_time, original)
    }

    /// Copies a backup that is held, whatever becomes of it meanwhile.
    pub(super) fn copy_of(
        &self,
        name: &str,
        source: &str,
        expire_time: prost_types::Timestamp,
        (record, original): (BackupRecord, Arc<Backup>),
    ) -> Result<Operation> {
        let shown = record.shown();
        if !shown.source_backup.is_empty() {
            return Err(Error::failed_precondition(format!(
                "backup {source:?} is a copy itself; copy {:?} instead",
                shown.source_backup
            )));
        }
        let created = self.instances.created(names::instance_of(name));
        self.check_cluster(names::cluster_of(name))?;
        if self.resources.get::<BackupRecord>(name).is_some() {
            return Err(Error::already_exists(format!("backup {name:?} already exists")));
        }
        let now = self.env.clock.now_micros();
        let copy = self.engine.copy_from(&original)?;
        let at = Some(times::timestamp(now));
        // A copy is a standard backup, whatever it was copied from.
        let shown = admin::Backup {
            name: name.to_owned(),
            source_backup: source.to_owned(),
            expire_time: Some(expire_time),
            start_time: at,
            end_time: at,
            size_bytes: size_bytes(&copy),
            backup_type: BackupType::Standard.into(),
            hot_to_standard_time: None,
            ..shown
        };
        let metadata = admin::CopyBackupMetadata {
            name: name.to_owned(),
            source_backup_info: Some(record.info()),
            progress: Some(progress(now, Some(self.env.clock.now_micros()))),
        };
        let entry = BackupRecord {
            shown: Some(shown.clone()),
            engine_id: Some(copy.id().0),
            incarnation: self.env.rng.next_u64(),
            automated: false,
            ..record
        };
        let copied = self.operations.change(|change| {
            self.check_cluster_still(names::cluster_of(name), created)?;
            change.create(name, entry)?;
            Ok(Finished::new(name, (COPY_TYPE, &metadata), (BACKUP_TYPE, &shown)))
        });
        let copied = copied.inspect_err(|error| self.forget_unless_durable(copy.id(), error))?;
        tracing::info!(backup = name, source, "backup copied");
        Ok(copied)
    }

    /// Starts to restore a backup as a new table. Blocks.
    #[cfg(test)]
    pub fn restore(self: &Arc<Self>, table: &str, backup: &str) -> Result<Operation> {
        self.restore_where(table, backup, || Ok(()))
    }

    /// The same where that is `allowed`, which is asked while no instance can be deleted; from then on such a deletion ends it.
    pub fn restore_where(
        self: &Arc<Self>,
        table: &str,
        backup: &str,
        allowed: impl FnOnce() -> Result<()>,
    ) -> Result<Operation> {
        self.check_writable()?;
        let source = self.ready(backup)?;
        if self.tables.get(table).is_ok() {
            return Err(Error::new(Code::AlreadyExists, format!("table {table:?} already exists")));
        }
        // Before there is an operation, which would only tell of it.
        self.engine.check_room_to_restore(&source.1)?;
        let place = self.place()?;
        let source_info = admin::restore_table_metadata::SourceInfo::BackupInfo(source.0.info());
        let metadata = admin::RestoreTableMetadata {
            name: table.to_owned(),
            source_type: admin::RestoreSourceType::Backup.into(),
            optimize_table_operation_name: String::new(),
            progress: Some(progress(self.env.clock.now_micros(), None)),
            source_info: Some(source_info),
        };
        let metadata_any = any(RESTORE_TYPE, &metadata);
        let handle = self.operations.start_with(table, metadata_any, |_| allowed())?;
        let operation = handle.operation()?;
        let task = Task::new(handle, Job::Restore, move |backups, handle| {
            backups.restore_now(handle, metadata, Some(source))
        });
        self.start(place, task)?;
        Ok(operation)
    }

    /// Creates the table of a restore from its `source`, which is kept until then even if it is deleted. One that is resumed has to find it
    /// first. The table and the end of the operation are one commit: one that is not done has made no table, and one that is done is not
    /// done again, whatever has become of the table since.
    fn restore_now(
        &self,
        handle: &Handle,
        metadata: admin::RestoreTableMetadata,
        source: Option<(BackupRecord, Arc<Backup>)>,
    ) -> Result<prost_types::Any> {
        let Some(admin::restore_table_metadata::SourceInfo::BackupInfo(info)) =
            metadata.source_info.clone()
        else {
            return Err(Error::internal("a restore without a backup"));
        };
        let source = source.map_or_else(|| self.ready_still(&info), Ok);
        let restore_info = admin::RestoreInfo {
            source_type: metadata.source_type,
            source_info: Some(admin::restore_info::SourceInfo::BackupInfo(info)),
        };
        let name = metadata.name.clone();
        let instance = names::instance_of(&name);
        // First of all: where the instance goes, the operation was told to end by that.
        handle.check_cancelled()?;
        self.instances.check(instance)?;
        let (record, backup) = source?;
        let kind = kind_of(&record.shown());
        // Within a change, so that the instance stays and nobody cancels until the table is there.
        let allowed = || {
            let change = self.resources.begin();
            handle.check_cancelled()?;
            self.instances.check(instance).map(|()| change)
        };
        let commit = |mut change: Change<'_>, record: &TableRecord, entry| {
            let response = self.end_restore(&mut change, handle, metadata, kind, record)?;
            Ok((change.commit(vec![entry])?, response))
        };
        let table = record.table()?;
        self.tables.restore(&name, table, restore_info, &backup, allowed, commit)
    }

    /// Within the change that makes the table of a restore: ends its operation; the operation's response.
    fn end_restore(
        &self,
        change: &mut Change<'_>,
        handle: &Handle,
        mut metadata: admin::RestoreTableMetadata,
        kind: BackupType,
        record: &TableRecord,
    ) -> Result<prost_types::Any> {
        let started =
            metadata.progress.and_then(|p| p.start_time).as_ref().map_or(0, times::micros);
        let finished = progress(started, Some(self.env.clock.now_micros()));
        // Nothing remains to be done to the table of a standard backup, either; but clients wait for
        // the operation that says so. On hard disks the service optimizes nothing, and names none.
        let instance = names::instance_of(&record.name);
        if kind == BackupType::Standard && !self.instances.is_on_hard_disks(instance) {
            let name = record.name.clone();
            let optimized = admin::OptimizeRestoredTableMetadata { name, progress: Some(finished) };
            let done = Finished::new(&record.name, (OPTIMIZE_TYPE, &optimized), (EMPTY_TYPE, &()));
            // The table is there without it, too.
            let name = self.operations.keep_done(change, done)?;
            metadata.optimize_table_operation_name = name.unwrap_or_default();
        }
        metadata.progress = Some(finished);
        let response = any(TABLE_TYPE, &views::table(record, View::SchemaView, Vec::new));
        handle.end_within(change, any(RESTORE_TYPE, &metadata), response.clone())?;
        Ok(response)
    }

    /// Goes on with what the end of the last server interrupted; where the system has no thread for it, once it has. Blocks for as long as
    /// that takes to begin.
    pub fn resume(self: &Arc<Self>) -> Result<()> {
        for operation in self.operations.interrupted() {
            let Some(metadata) = &operation.metadata else { continue };
            let kind = metadata.type_url.rsplit('/').next().unwrap_or_default();
            let damaged = |_| Error::data_loss(format!("operation {}: metadata", operation.name));
            if kind == CREATE_TYPE {
                let metadata = admin::CreateBackupMetadata::decode(metadata.value.as_slice())
                    .map_err(damaged)?;
                let stored = self.resources.get::<BackupRecord>(&metadata.name);
                let made =
                    stored.filter(|stored| stored.value.shown().start_time == metadata.start_time);
                let handle = self.operations.resume(&operation.name)?;
                match made {
                    // Made, and the server ended before the operation did.
                    Some(stored) if stored.value.engine_id.is_some() => {
                        let shown = stored.value.shown();
                        let end_time = shown.end_time;
                        let metadata = admin::CreateBackupMetadata { end_time, ..metadata };
                        handle.progress(any(CREATE_TYPE, &metadata));
                        if let Err(error) = handle.finish(Ok(any(BACKUP_TYPE, &shown))) {
                            // It is no reason not to start; the next start tries again.
                            let name = operation.name;
                            tracing::warn!(name, %error, "cannot keep the end of an operation");
                        }
                    }
                    stored => {
                        let stored = stored.as_ref().map(|stored| &stored.value);
                        let incarnation = stored.map_or(0, |record| record.incarnation);
                        let job = stored.map_or(Job::Create, Job::of);
                        self.start_or_wait(Task::new(handle, job, move |backups, handle| {
                            let name = metadata.name.clone();
                            backups.make_as(job, &name, incarnation, handle, metadata)
                        }));
                    }
                }
            } else if kind == RESTORE_TYPE {
                let metadata = admin::RestoreTableMetadata::decode(metadata.value.as_slice())
                    .map_err(damaged)?;
                let handle = self.operations.resume(&operation.name)?;
                self.start_or_wait(Task::new(handle, Job::Restore, move |backups, handle| {
                    backups.restore_now(handle, metadata, None)
                }));
            }
        }
        self.give_up_unmade();
        Ok(())
    }

    /// Removes entries of backups that are being made by no operation: the thread that was to make one ended without
    /// saying how, or there was no room to remove its entry.
    pub(super) fn give_up_unmade(&self) {
        let all = self.resources.list::<BackupRecord>("", None, usize::MAX);
        for (name, stored) in all.iter().filter(|(_, stored)| stored.value.engine_id.is_none()) {
            self.give_up_where(name, stored.value.incarnation, || {
                let of_it = self.operations.list(&format!("operations/{name}"), 0, usize::MAX);
                of_it.iter().all(|(_, operation)| operation.done)
            });
        }
    }

    /// A backup that can be restored and copied; its files are there for as long as it is held.
    pub(super) fn ready(&self, name: &str) -> Result<(BackupRecord, Arc<Backup>)> {
        let record = self.resources.find::<BackupRecord>(name)?.value.clone();
        let id = record.made_id().ok_or_else(|| {
            Error::failed_precondition(format!("backup {name:?} is still being created"))
        })?;
        if let Some(made) = self.whole(id) {
            return Ok((record, made));
        }
        // One that was deleted after the first look has lost nothing.
        let stays = self.resources.find::<BackupRecord>(name)?.value.made_id() == Some(id);
        Err(if stays {
            Error::data_loss(format!(
                "backup {name:?} has lost its list of files; see `tepui check`"
            ))
        } else {
            Error::not_found(format!("backup {name:?} was deleted, and made again since"))
        })
    }

    /// The same for the one that a restore was asked for, whatever has its name by now.
    fn ready_still(&self, info: &admin::BackupInfo) -> Result<(BackupRecord, Arc<Backup>)> {
        if self.resources.find::<BackupRecord>(&info.backup)?.value.info() == *info {
            return self.ready(&info.backup);
        }
        let text = format!(
            "backup {:?} was deleted before the restore was done, and another one has its name",
            info.backup
        );
        Err(Error::new(Code::NotFound, text))
    }

    /// An error where nothing is written before a restart.
    pub(super) fn check_writable(&self) -> Result<()> {
        match self.engine.health() {
            Health::Serving | Health::Held { .. } => Ok(()),
            Health::ReadOnly(reason) => Err(Error::unavailable(reason)),
        }
    }

    /// A place among the jobs, whether there is one or not.
    pub(super) fn take_place(self: &Arc<Self>) -> Place {
        self.jobs.fetch_add(1, Ordering::AcqRel);
        Place(Arc::clone(self))
    }

    /// A place among the jobs; `RESOURCE_EXHAUSTED` where there is none.
    pub(super) fn place(self: &Arc<Self>) -> Result<Place> {
        let place = self.take_place();
        if self.jobs.load(Ordering::Acquire) <= BACKUP_JOBS_MAX {
            return Ok(place);
        }
        Err(Error::overloaded(
            format!(
                "{BACKUP_JOBS_MAX} backups and restores are under way; try again when one of them is done"
            ),
            BACKUP_JOB_RETRY,
        ))
    }
}

/// The name of a family that a table had and has no more; another one may have its name by now.
fn dropped_family<'t>(before: &'t TableRecord, now: &TableRecord) -> Option<&'t str> {
    let is_there = |id| now.families.iter().any(|family| family.id == id);
    before.families.iter().find(|family| !is_there(family.id)).map(|family| family.name.as_str())
}

fn size_bytes(backup: &Backup) -> i64 {
    i64::try_from(backup.list().bytes()).unwrap_or(i64::MAX)
}

fn progress(start_micros: i64, end_micros: Option<i64>) -> admin::OperationProgress {
    admin::OperationProgress {
        progress_percent: if end_micros.is_some() { DONE_PERCENT } else { 0 },
        start_time: Some(times::timestamp(start_micros)),
        end_time: end_micros.map(times::timestamp),
    }
}

/// There are no keys of customers here: what encrypts the disk encrypts backups.
fn encryption() -> admin::EncryptionInfo {
    admin::EncryptionInfo {
        encryption_type: EncryptionType::GoogleDefaultEncryption.into(),
        ..admin::EncryptionInfo::default()
    }
}
