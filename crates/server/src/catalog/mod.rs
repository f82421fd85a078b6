//! The catalog: which tables there are, durably and atomically.
//!
//! Each table is one entry of the engine's meta store ([`record`]); whatever else the admin API creates is kept
//! beside them ([`resources`]). A change is made in three steps:
//! tablets are created where new ones are needed, the entry is committed, memory follows. An entry that belongs together
//! with resources, such as the operation that tells of it, is committed with them: the caller commits it then
//! ([`Catalog::update_with`]), and must keep other changes of resources out before it comes here. A crash before
//! the commit leaves tablets that no entry names, which the next start removes
//! (`Engine::retain_tablets`); a crash after it loses nothing.
//!
//! ```text
//!            create                 delete                      7 days, or a new table of the name
//! (nothing) ───────► live, served ─────────► deleted, kept ───────────────────────────────► (nothing)
//!                         ▲                      │
//!                         └──────── undelete ────┘
//! ```
//!
//! Requests look tables up in memory under a read lock that is held for the lookup alone. Changes exclude
//! each other, and block: they are made off the cores' runtimes.

pub mod authorized_views;
pub mod families;
pub(crate) mod fuzzing;
pub mod host;
#[cfg(test)]
pub(crate) mod memory_meta;
pub mod record;
pub mod resources;
pub mod settings;
mod store;
pub mod styles;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bytes::Bytes;
use tepui_bigtable::error::{Code, Error, Result};
use tepui_engine::ErrorKind;
use tepui_engine::backup::Backup;
use tepui_engine::cell::RowRange;
use tepui_engine::changes::{GRACE_MICROS, position_before};
use tepui_engine::io::{Clock, Rng};
use tepui_engine::manifest::{MetaChange, MetaStore};
use tepui_engine::offline::{CatalogEntry, TableBackup, TableTablets};
use tepui_engine::tablet::TabletId;

use crate::api::admin;
use crate::backups::record::BackupRecord;
use crate::limits::{INITIAL_SPLITS_MAX, UNDELETE_RETENTION};
use crate::names;
use host::Host;
use record::TableRecord;
use store::Store;
pub use store::may_be_durable;

/// What of the data directory an entry of the meta store names, for a start and for tools that work without a server; `None` for an
/// entry of a resource ([`resources`]) that names nothing there, which is checked too. `InvalidArgument` for one that a newer server
/// wrote, as whatever is neither a table's nor a resource's: what it names would be taken for that which nothing does.
pub fn entry_of(key: &str, value: &[u8]) -> tepui_engine::Result<Option<CatalogEntry>> {
    let damaged = |error: Error| {
        let kind = match error.kind() {
            Code::FailedPrecondition => ErrorKind::InvalidArgument,
            _ => ErrorKind::Corruption,
        };
        tepui_engine::Error::new(kind, error.message())
    };
    if resources::check_entry(key, value).map_err(damaged)? {
        let backup = resources::read::<BackupRecord>(key, value).map_err(damaged)?;
        let made = backup.and_then(|stored| {
            let name = stored.value.shown().name;
            stored.value.made_id().map(|id| CatalogEntry::Backup(TableBackup { name, id }))
        });
        return Ok(made);
    }
    if !key.starts_with(store::PREFIX) {
        return Err(damaged(record::newer(key, "entries of such a key are not known here")));
    }
    let record = TableRecord::decode_versioned(key, value).map_err(damaged)?;
    let tablets = record.tablet_ids().collect();
    Ok(Some(CatalogEntry::Table(TableTablets { table: record.name, tablets })))
}

/// A table as of its last change.
#[derive(Debug)]
pub struct Entry<T> {
    /// What is durable.
    pub record: TableRecord,
    /// The record's revision in the meta store.
    revision: u64,
    /// What serves requests; shared by all entries of one table's life.
    pub table: Arc<T>,
}

fn is_past_retention(record: &TableRecord, now: i64) -> bool {
    let retention = i64::try_from(UNDELETE_RETENTION.as_micros()).unwrap_or(i64::MAX);
    record.deleted_micros.is_some_and(|deleted| now.saturating_sub(deleted) >= retention)
}

#[cfg(test)]
impl<T> Entry<T> {
    /// Of a record that nothing stores.
    pub(crate) fn of_record(record: TableRecord, table: T) -> Arc<Self> {
        Arc::new(Self { record, revision: 0, table: Arc::new(table) })
    }
}

/// What a new table is to be.
#[derive(Debug, Default)]
pub struct NewTable {
    /// Its families and what else it is set to ([`settings`]), as the client asks for them.
    pub asked: crate::api::spelled_out::Table,
    /// Rows at which its tablets start, in any order.
    pub splits: Vec<Bytes>,
}

/// Tables in memory.
struct Tables<T> {
    /// Those that are served, by full name.
    live: BTreeMap<String, Arc<Entry<T>>>,
    /// Those that can be undeleted, by full name. Disjoint from `live`.
    deleted: BTreeMap<String, Arc<Entry<T>>>,
}

/// The catalog of one server.
pub struct Catalog<H: Host> {
    host: H,
    store: Store,
    clock: Arc<dyn Clock>,
    rng: Arc<dyn Rng>,
    tables: RwLock<Tables<H::Table>>,
    /// Held by the one change under way, over its durable part too.
    changing: Mutex<()>,
}

impl<H: Host> Catalog<H> {
    /// Reads the catalog and opens every table in it. Blocks.
    pub fn open(
        host: H,
        meta: Arc<dyn MetaStore>,
        clock: Arc<dyn Clock>,
        rng: Arc<dyn Rng>,
    ) -> Result<Self> {
        let store = Store::new(meta);
        let mut tables = Tables { live: BTreeMap::new(), deleted: BTreeMap::new() };
        for (record, revision) in store.load()? {
            let entry = open_entry(&host, record, revision)?;
            let state = match entry.record.deleted_micros {
                None => &mut tables.live,
                Some(_) => &mut tables.deleted,
            };
            state.insert(entry.record.name.clone(), Arc::new(entry));
        }
        Ok(Self { host, store, clock, rng, tables: RwLock::new(tables), changing: Mutex::new(()) })
    }

    /// The tablets of all tables, those of deleted ones included.
    pub fn tablet_ids(&self) -> Vec<TabletId> {
        let tables = self.read();
        let all = tables.live.values().chain(tables.deleted.values());
        all.flat_map(|entry| entry.record.tablet_ids()).collect()
    }

    /// The table of a name; `NOT_FOUND` where there is none.
    pub fn table(&self, name: &str) -> Result<Arc<H::Table>> {
        self.read().live.get(name).map(|e| Arc::clone(&e.table)).ok_or_else(|| missing(name))
    }

    /// The entry of a name; `NOT_FOUND` where there is none.
    pub fn get(&self, name: &str) -> Result<Arc<Entry<H::Table>>> {
        self.read().live.get(name).map(Arc::clone).ok_or_else(|| missing(name))
    }

    /// All tables that are served.
    pub fn all(&self) -> Vec<Arc<Entry<H::Table>>> {
        self.read().live.values().map(Arc::clone).collect()
    }

    /// The entry of a name, also of a deleted table that can be undeleted.
    pub fn kept(&self, name: &str) -> Option<Arc<Entry<H::Table>>> {
        let tables = self.read();
        tables.live.get(name).or_else(|| tables.deleted.get(name)).map(Arc::clone)
    }

    /// The incarnation of the table of a name, also of a deleted one that can be undeleted.
    pub fn incarnation(&self, name: &str) -> Option<u64> {
        self.kept(name).map(|entry| entry.record.incarnation)
    }

    /// Up to `limit` tables of an instance in name order, those after the name `after` only.
    pub fn list(
        &self,
        instance: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Vec<Arc<Entry<H::Table>>> {
        let prefix = format!("{instance}/tables/");
        let start = match after {
            Some(after) if after >= prefix.as_str() => Bound::Excluded(after),
            _ => Bound::Included(prefix.as_str()),
        };
        let tables = self.read();
        let from_start = tables.live.range::<str, _>((start, Bound::Unbounded));
        let of_instance = from_start.take_while(|(name, _)| name.starts_with(&prefix));
        of_instance.take(limit).map(|(_, entry)| Arc::clone(entry)).collect()
    }

    /// Creates a table. `RESOURCE_EXHAUSTED` where there is no room for its tablets. Blocks.
    pub fn create(&self, name: &str, new: NewTable) -> Result<Arc<Entry<H::Table>>> {
        self.create_where(name, new, || Ok(()))
    }

    /// Creates a table where that is allowed. What `allowed` returns is held until the table is there. Blocks.
    pub fn create_where<A>(
        &self,
        name: &str,
        new: NewTable,
        allowed: impl FnOnce() -> Result<A>,
    ) -> Result<Arc<Entry<H::Table>>> {
        let ranges = tablet_ranges(new.splits)?;
        let mut record = TableRecord {
            name: name.to_owned(),
            incarnation: self.rng.next_u64(),
            next_family_id: 1,
            created_micros: self.clock.now_micros(),
            ..TableRecord::default()
        };
        // A map on the wire has no order; names give the families theirs, and so the order of cells in a row.
        for (family, config) in &new.asked.families {
            families::create(&mut record, family, config.clone())?;
        }
        settings::set_new(&mut record, &new.asked)?;
        record = record.apart();
        self.check_free(name)?;
        // Before other changes are kept from going on: there may be many.
        let tablets = self.host.create_tablets(ranges)?;
        record.tablets = tablets.into_iter().map(|id| id.0).collect();
        let allowed = allowed().inspect_err(|_| self.drop_tablets(&record))?;
        let mut unnamed = None;
        let inserted = self.insert(record, &mut unnamed, |_, entry| self.alone(entry));
        drop(allowed);
        self.drop_unnamed(unnamed);
        inserted.map(|(entry, ())| entry)
    }

    /// Creates a table that holds what a backup does, with the schema of `from`. Blocks. What `allowed` returns is held until `commit`
    /// gets it, which makes the table durable as in [`Self::update_with`].
    pub fn restore<A, T>(
        &self,
        name: &str,
        from: TableRecord,
        restore_info: admin::RestoreInfo,
        backup: &Backup,
        allowed: impl FnOnce() -> Result<A>,
        commit: impl FnOnce(A, &TableRecord, MetaChange) -> Result<(u64, T)>,
    ) -> Result<T> {
        let from = from.modern();
        let mut record = TableRecord {
            name: name.to_owned(),
            incarnation: self.rng.next_u64(),
            families: families::without_positions(from.families),
            next_family_id: from.next_family_id,
            created_micros: self.clock.now_micros(),
            restore_info: Some(restore_info),
            row_key_schema: from.row_key_schema,
            ..TableRecord::default()
        };
        // Before other changes are kept from going on: many files may have to be opened.
        let tablets = self.host.restore_backup(backup)?;
        record.tablets = tablets.into_iter().map(|id| id.0).collect();
        let allowed = allowed().inspect_err(|_| self.drop_tablets(&record))?;
        let commit = |record: &TableRecord, entry| commit(allowed, record, entry);
        let mut unnamed = None;
        let inserted = self.insert(record, &mut unnamed, commit);
        self.drop_unnamed(unnamed);
        inserted.map(|(_, with_it)| with_it)
    }

    fn check_free(&self, name: &str) -> Result<()> {
        if self.read().live.contains_key(name) {
            let text = format!("table {name:?} already exists");
            return Err(Error::new(Code::AlreadyExists, text));
        }
        Ok(())
    }

    /// Makes a new table of a record whose tablets are there. What has tablets then that nothing names is left in `unnamed`: the table that it
    /// replaces, or, of a failure, the new one, unless it may be found at the next start that there was none.
    fn insert<T>(
        &self,
        record: TableRecord,
        unnamed: &mut Option<TableRecord>,
        commit: impl FnOnce(&TableRecord, MetaChange) -> Result<(u64, T)>,
    ) -> Result<(Arc<Entry<H::Table>>, T)> {
        let _changing = self.change();
        let name = record.name.clone();
        let replaced = self.read().deleted.get(&name).map(Arc::clone);
        let opened = self.check_free(&name).and_then(|()| {
            let mut entry = open_entry(&self.host, record.clone(), 0)?;
            let retention = record.change_stream_retention();
            if retention.is_some() {
                entry.record.change_stream_since = self.host.keep_changes(&entry.table, retention);
            }
            Ok(entry)
        });
        let mut entry = opened.inspect_err(|_| *unnamed = Some(record.clone()))?;
        let change = store::put(&entry.record, replaced.as_ref().map(|e| e.revision));
        let (revision, with_it) = commit(&entry.record, change).inspect_err(|error| {
            *unnamed = (!may_be_durable(error)).then_some(record);
        })?;
        entry.revision = revision;
        let entry = Arc::new(entry);
        {
            let mut tables = self.write();
            tables.deleted.remove(&name);
            tables.live.insert(name.clone(), Arc::clone(&entry));
        }
        if let Some(replaced) = replaced {
            tracing::warn!(
                table = name,
                "the deleted table of this name cannot be undeleted any more: a new one replaces it"
            );
            *unnamed = Some(replaced.record.clone());
        }
        tracing::info!(table = name, tablets = entry.record.tablets.len(), "table created");
        Ok((entry, with_it))
    }

    /// What the clock reads, or what it read when the newest sequence was handed out, where it has gone back: nothing that there is was
    /// written later.
    pub fn newest_micros(&self) -> i64 {
        self.clock.now_micros().max(self.host.newest_micros())
    }

    /// Changes a table's record by `change`, which sees the present one. Blocks.
    pub fn update(
        &self,
        name: &str,
        change: impl FnOnce(&TableRecord) -> Result<TableRecord>,
    ) -> Result<Arc<Entry<H::Table>>> {
        self.update_with(name, change, |_, entry| self.alone(entry)).map(|(entry, ())| entry)
    }

    /// The same with what `commit` makes durable together with the new record: it gets that and the change of its entry,
    /// and returns the revision of the commit. Blocks.
    pub fn update_with<T>(
        &self,
        name: &str,
        change: impl FnOnce(&TableRecord) -> Result<TableRecord>,
        commit: impl FnOnce(&TableRecord, MetaChange) -> Result<(u64, T)>,
    ) -> Result<(Arc<Entry<H::Table>>, T)> {
        let _changing = self.change();
        let old = self.get(name)?;
        let mut record = change(&old.record)?.apart();
        families::note_changed_rules(&old.record, &mut record, self.newest_micros());
        if old.record.change_stream_config.is_none() {
            // A stream that begins now begins behind all of them.
            record.families = families::without_positions(record.families);
        } else {
            families::note_positions(&old.record, &mut record, self.host.position());
        }
        let schema = Arc::new(families::schema(&record)?);
        let (before, after) =
            (old.record.change_stream_retention(), record.change_stream_retention());
        if before.is_none() && after.is_some() {
            // First of all: nothing that comes after what the record says may be missing.
            record.change_stream_since = self.host.keep_changes(&old.table, after);
            record.former_families.clear();
        } else if let Some(before) = before
            && after > Some(before)
        {
            // What was older than the period so far is gone, and a longer one does not bring it back. Who reads what stays for a
            // while behind it goes on.
            let before = i64::try_from(before.as_micros()).unwrap_or(i64::MAX);
            let before = before.saturating_add_unsigned(GRACE_MICROS);
            let now = self.host.expiry_micros(&old.table);
            let now = now.unwrap_or_else(|| self.clock.now_micros());
            let kept = position_before(now.saturating_sub(before));
            record.change_stream_since = record.change_stream_since.max(kept);
        }
        let stored = commit(&record, store::put(&record, Some(old.revision)));
        if before != after && stored.as_ref().is_err_and(|error| !may_be_durable(error)) {
            self.host.keep_changes(&old.table, before);
        }
        let (revision, with_it) = stored?;
        if record.families != old.record.families {
            self.host.set_schema(&old.table, schema);
        }
        let entry = Arc::new(Entry { record, revision, table: Arc::clone(&old.table) });
        self.write().live.insert(name.to_owned(), Arc::clone(&entry));
        if before != after {
            // Last of all: a stream that is ended by it finds the reason in the record.
            self.host.keep_changes(&old.table, after);
        }
        tracing::info!(table = name, "table changed");
        Ok((entry, with_it))
    }

    /// A commit of the change of an entry, and of nothing with it.
    fn alone(&self, entry: MetaChange) -> Result<(u64, ())> {
        Ok((self.store.commit(entry)?, ()))
    }

    /// Deletes a table. Blocks.
    #[cfg(test)]
    pub fn delete(&self, name: &str) -> Result<()> {
        self.delete_where(name, || Ok(()))
    }

    /// Deletes a table where that is `allowed`; it can be undeleted for [`UNDELETE_RETENTION`], and until it is swept. Blocks.
    pub fn delete_where(&self, name: &str, allowed: impl FnOnce() -> Result<()>) -> Result<()> {
        let _changing = self.change();
        allowed()?;
        let old = self.get(name)?;
        settings::check_deletable(&old.record)?;
        // A clock that is behind now would have it swept as soon as it is set right.
        let deleted_micros = Some(self.newest_micros());
        let deleted = TableRecord { deleted_micros, ..old.record.clone() };
        self.commit_state(&old, deleted, |_, entry| self.alone(entry))?;
        tracing::info!(table = name, "table deleted");
        Ok(())
    }

    /// Removes all tables of an instance for good, deleted ones too; none where one may not be deleted. `commit` makes the
    /// removal of their entries durable. Blocks.
    pub fn delete_instance(
        &self,
        instance: &str,
        commit: impl FnOnce(Vec<MetaChange>) -> Result<()>,
    ) -> Result<()> {
        let changing = self.change();
        let entries: Vec<_> = {
            let tables = self.read();
            let of_instance =
                |name: &str| names::split_table(name).is_some_and(|(of, _)| of == instance);
            let live = tables.live.values().filter(|e| of_instance(&e.record.name));
            for entry in live.clone() {
                settings::check_deletable(&entry.record).map_err(|error| {
                    error.context(format_args!("instance {instance:?} cannot be deleted"))
                })?;
            }
            let deleted = tables.deleted.values().filter(|e| of_instance(&e.record.name));
            live.chain(deleted).map(Arc::clone).collect()
        };
        let removals = entries.iter().map(|e| store::removal(&e.record.name, e.revision));
        commit(removals.collect())?;
        {
            let mut tables = self.write();
            for entry in &entries {
                tables.live.remove(&entry.record.name);
                tables.deleted.remove(&entry.record.name);
            }
        }
        drop(changing);
        for entry in entries {
            self.drop_tablets(&entry.record);
        }
        Ok(())
    }

    /// Brings a deleted table back, with what `commit` makes durable together with it, as in [`Self::update_with`];
    /// `NOT_FOUND` once it is swept or replaced. Blocks.
    pub fn undelete<T>(
        &self,
        name: &str,
        commit: impl FnOnce(&TableRecord, MetaChange) -> Result<(u64, T)>,
    ) -> Result<(Arc<Entry<H::Table>>, T)> {
        let _changing = self.change();
        if self.read().live.contains_key(name) {
            return Err(Error::new(
                Code::AlreadyExists,
                format!("table {name:?} exists and is not deleted"),
            ));
        }
        let old = self.read().deleted.get(name).map(Arc::clone);
        let old = old.ok_or_else(|| {
            Error::not_found(format!("no deleted table {name:?} found that can be undeleted"))
        })?;
        let restored = TableRecord { deleted_micros: None, ..old.record.clone() };
        let undeleted = self.commit_state(&old, restored, commit)?;
        tracing::info!(table = name, "table undeleted");
        Ok(undeleted)
    }

    /// Removes the tables that were deleted more than [`UNDELETE_RETENTION`] before `now`, in microseconds since 1970, with their data. Blocks.
    /// Returns how many; a table that cannot be removed now is tried again at the next sweep. Other changes have their turn after each
    /// table, while its tablets go: thousands may be due at once, and each commit waits for the disk.
    pub fn sweep(&self, now: i64) -> usize {
        let tables = self.read();
        let old: Vec<_> = tables
            .deleted
            .values()
            .filter(|entry| is_past_retention(&entry.record, now))
            .map(Arc::clone)
            .collect();
        drop(tables);
        let mut swept = 0;
        for entry in old {
            match self.sweep_one(&entry) {
                Ok(true) => {
                    self.drop_tablets(&entry.record);
                    swept += 1;
                }
                // Undeleted or replaced meanwhile.
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(table = entry.record.name, %error, "cannot remove a deleted table");
                    if error.kind() == Code::Unavailable {
                        // The server is read-only: it would be the same with the others.
                        break;
                    }
                }
            }
        }
        swept
    }

    /// Removes a deleted table from the catalog, unless it is not what it was; whether it did.
    fn sweep_one(&self, entry: &Entry<H::Table>) -> Result<bool> {
        let _changing = self.change();
        let name = &entry.record.name;
        let there = self.read().deleted.get(name).map(|there| there.revision);
        if there != Some(entry.revision) {
            return Ok(false);
        }
        self.store.commit(store::removal(name, entry.revision))?;
        self.write().deleted.remove(name);
        tracing::info!(table = name, "deleted table removed");
        Ok(true)
    }

    /// Commits a record that is deleted now and was not before, or the other way round.
    fn commit_state<T>(
        &self,
        old: &Entry<H::Table>,
        record: TableRecord,
        commit: impl FnOnce(&TableRecord, MetaChange) -> Result<(u64, T)>,
    ) -> Result<(Arc<Entry<H::Table>>, T)> {
        let (revision, with_it) = commit(&record, store::put(&record, Some(old.revision)))?;
        let name = record.name.clone();
        let is_deleted = record.deleted_micros.is_some();
        let entry = Arc::new(Entry { record, revision, table: Arc::clone(&old.table) });
        let mut guard = self.write();
        let tables = &mut *guard;
        let (from, to) = if is_deleted {
            (&mut tables.live, &mut tables.deleted)
        } else {
            (&mut tables.deleted, &mut tables.live)
        };
        from.remove(&name);
        to.insert(name, Arc::clone(&entry));
        Ok((entry, with_it))
    }

    fn drop_unnamed(&self, unnamed: Option<TableRecord>) {
        if let Some(record) = unnamed {
            self.drop_tablets(&record);
        }
    }

    /// Removes the tablets of a table that is in the catalog no more, which nobody else can reach: other changes go on meanwhile, since each
    /// tablet waits for the disk. One that cannot be removed now costs space until the engine can.
    fn drop_tablets(&self, record: &TableRecord) {
        for id in record.tablet_ids() {
            if let Err(error) = self.host.drop_tablet(id) {
                tracing::warn!(table = record.name, tablet = id.0, %error, "cannot drop a tablet");
            }
        }
    }

    // A panic under one of these locks leaves maps that are whole, since each is changed by single
    // insertions and removals; so poisoning is passed over.

    fn read(&self) -> RwLockReadGuard<'_, Tables<H::Table>> {
        self.tables.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Tables<H::Table>> {
        self.tables.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Puts a table over the tablets of a record.
fn open_entry<H: Host>(host: &H, record: TableRecord, revision: u64) -> Result<Entry<H::Table>> {
    let schema = Arc::new(families::schema(&record)?);
    let tablets: Vec<_> = record.tablet_ids().collect();
    let table = host.open_table(&record.name, &tablets, schema)?;
    if let retention @ Some(_) = record.change_stream_retention() {
        // Streams may begin there. Where the clock was set back, what is written would come before it.
        host.begin_after(record.last_position());
        host.keep_changes(&table, retention);
    }
    Ok(Entry { record, revision, table })
}

/// The ranges between splits, which are sorted here and may repeat. Tablets keep them, so they are copied: splits share the buffer
/// of the request.
fn tablet_ranges(mut splits: Vec<Bytes>) -> Result<Vec<RowRange>> {
    if splits.len() > INITIAL_SPLITS_MAX {
        return Err(Error::invalid_argument(format!(
            "too many initial_splits: {} provided; limit {INITIAL_SPLITS_MAX}",
            splits.len()
        )));
    }
    for (i, split) in splits.iter().enumerate() {
        tepui_bigtable::limits::check_row_key(split).map_err(|error| {
            Error::invalid_argument(format!("initial_splits[{i}].key: {}", error.message()))
        })?;
    }
    splits.sort_unstable();
    splits.dedup();
    let splits: Vec<_> = splits.iter().map(|split| Bytes::copy_from_slice(split)).collect();
    let starts = std::iter::once(Bytes::new()).chain(splits.iter().cloned());
    let ends = splits.iter().cloned().chain(std::iter::once(Bytes::new()));
    Ok(starts.zip(ends).map(|(start, end)| RowRange::new(start, end)).collect())
}

/// The error for a table that is not there: for a name that no table can have, what is wrong with it.
fn missing(name: &str) -> Error {
    match names::check_table("table name", name) {
        Ok(()) => Error::not_found(format!("table {name:?} not found")),
        Err(error) => error,
    }
}
