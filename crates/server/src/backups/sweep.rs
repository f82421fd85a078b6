//! What time does to backups: they expire, hot ones become standard ones, and tables' policies ask for new ones.

use std::collections::HashMap;
use std::sync::Arc;

use tepui_bigtable::error::{Code, Error, Result};

use super::figures::Job;
use super::record::BackupRecord;
use super::{Backups, kind_of, times};
use crate::api::admin;
use crate::api::admin::backup::BackupType;
use crate::catalog::record::TableRecord;
use crate::catalog::resources::Stored;
use crate::limits::{
    AUTOMATED_BACKUP_FREQUENCY, BACKUP_LIFE_MAX, CLUSTER_ID_CHARS_MAX, RESOURCE_NAME_CHARS_MAX,
};
use crate::names;

impl Backups {
    /// Deletes what has expired, turns hot backups into standard ones whose time it is, and starts the backups that are due by
    /// policies; writes the ends of operations that could not be written, and goes on with those that wait for a thread. Blocks. What cannot be done now is tried again at the next sweep, and while the clock is in doubt nothing is done.
    pub fn sweep(self: &Arc<Self>) {
        self.operations.write_ends();
        self.start_waiting();
        let Some(now) = self.engine.believed_micros() else {
            self.count();
            return;
        };
        self.give_up_unmade();
        let all = self.resources.list::<BackupRecord>("", None, usize::MAX);
        for (name, stored) in &all {
            let Some(shown) = &stored.value.shown else { continue };
            let is_past = |at: &Option<prost_types::Timestamp>| {
                at.as_ref().is_some_and(|at| times::micros(at) <= now)
            };
            let done = if is_past(&shown.expire_time) {
                self.expire(name, now)
            } else if kind_of(shown) == BackupType::Hot && is_past(&shown.hot_to_standard_time) {
                self.cool(name, now)
            } else {
                Ok(())
            };
            if let Err(error) = done {
                tracing::warn!(backup = name, %error, "cannot do what is due to a backup");
                if error.kind() == Code::Unavailable {
                    // The server is read-only: it would be the same with the others.
                    break;
                }
            }
        }
        let made = Automated::among(&all, now);
        let has_policy = |table: &str| {
            self.tables.get(table).is_ok_and(|entry| entry.record.backup_policy().is_some())
        };
        self.rests.retain(has_policy);
        self.begun.retain(has_policy);
        let monotonic = self.env.clock.monotonic_micros();
        for entry in self.tables.all() {
            if self.rests.has(&entry.record.name, monotonic) {
                continue;
            }
            let error = match self.back_up_by_policy(&entry.record, now, &made) {
                Ok(true) => continue,
                // Enough are under way; the others have their turn at the next sweep.
                Ok(false) => break,
                Err(error) => error,
            };
            let table = &entry.record.name;
            tracing::warn!(table, %error, "cannot make the automated backup that is due");
            self.count_failure(Job::Automated, &error);
            if matches!(error.kind(), Code::ResourceExhausted | Code::Unavailable) {
                // The catalog is full, or the list of operations, or the server is read-only: it would be the same with the others.
                break;
            }
        }
        self.count();
    }

    /// Deletes a backup if it has expired: its time may have been changed since it was looked at.
    fn expire(&self, name: &str, now: i64) -> Result<()> {
        let expired = self.resources.change(|change| {
            let Some(stored) = change.get::<BackupRecord>(name) else { return Ok(None) };
            let expire_time = stored.value.shown().expire_time;
            if expire_time.is_none_or(|at| times::micros(&at) > now) {
                return Ok(None);
            }
            change.delete_under(name);
            Ok(Some(stored.value.clone()))
        })?;
        if let Some(record) = expired {
            if let Some(id) = record.made_id() {
                self.forget(id);
            }
            tracing::info!(backup = name, "backup expired and deleted");
        }
        Ok(())
    }

    /// Turns a hot backup into a standard one if it is time: that may have been changed since it was looked at.
    fn cool(&self, name: &str, now: i64) -> Result<()> {
        let is_cooled = self.resources.change(|change| {
            let Some(stored) = change.get::<BackupRecord>(name) else { return Ok(false) };
            let shown = stored.value.shown();
            let at = shown.hot_to_standard_time;
            let is_due = at.is_some_and(|at| times::micros(&at) <= now);
            if !is_due || kind_of(&shown) != BackupType::Hot {
                return Ok(false);
            }
            change.update::<BackupRecord>(name, |record| {
                record.shown = Some(admin::Backup {
                    backup_type: BackupType::Standard.into(),
                    hot_to_standard_time: None,
                    ..shown
                });
                Ok(())
            })?;
            Ok(true)
        })?;
        if is_cooled {
            tracing::info!(backup = name, "hot backup turned into a standard one");
        }
        Ok(())
    }

    /// Starts the backup of a table that its policy asks for now, in each cluster of its instance. `false` where one has to wait
    /// for others that are under way.
    fn back_up_by_policy(
        self: &Arc<Self>,
        table: &TableRecord,
        now: i64,
        made: &Automated<'_>,
    ) -> Result<bool> {
        let Some(policy) = table.backup_policy() else { return Ok(true) };
        let micros = |length: Option<prost_types::Duration>| {
            let length = length.and_then(|length| std::time::Duration::try_from(length).ok());
            length.map(times::length_micros)
        };
        let frequency = micros(policy.frequency)
            .unwrap_or_else(|| times::length_micros(AUTOMATED_BACKUP_FREQUENCY));
        let retention = micros(policy.retention_period)
            .unwrap_or(i64::MAX)
            .min(times::length_micros(BACKUP_LIFE_MAX));
        let hot_until =
            micros(policy.keep_hot_duration).map(|hot| times::timestamp(now.saturating_add(hot)));
        let kind = if hot_until.is_some() { BackupType::Hot } else { BackupType::Standard };
        let Some((instance, _)) = names::split_table(&table.name) else { return Ok(true) };
        if self.instances.check(instance).is_err() {
            // It is not served, either.
            return Ok(true);
        }
        for cluster in self.instances.cluster_ids(instance) {
            let cluster = format!("{instance}/clusters/{cluster}");
            let began = self.begun.distance(&cluster, &table.name, table.incarnation, now);
            if made.is_near(&cluster, table, frequency) || is_within(began, frequency) {
                continue;
            }
            let name = names::new_backup(&cluster, &automated_id(table, now))?;
            let shown = admin::Backup {
                source_table: table.name.clone(),
                expire_time: Some(times::timestamp(now.saturating_add(retention))),
                backup_type: kind.into(),
                hot_to_standard_time: hot_until,
                ..admin::Backup::default()
            };
            let Ok(place) = self.place() else { return Ok(false) };
            self.begun.began(&cluster, &table.name, table.incarnation, now);
            self.begin(&name, shown, Some(place))
                .inspect_err(|_| self.begun.failed(&cluster, &table.name))?;
        }
        Ok(true)
    }
}

/// How far from now automated backups were made: in microseconds, of the nearest in a cluster of a table's incarnation.
///
/// One may have been made in what is the future now, by a clock that was ahead and was set right since: it counts by its
/// distance, so that a table does not go without backups until the clock is there again.
struct Automated<'a>(HashMap<(&'a str, u64), u64>);

impl<'a> Automated<'a> {
    fn among(all: &'a [(String, Arc<Stored<BackupRecord>>)], now: i64) -> Self {
        let mut nearest = HashMap::new();
        for (name, stored) in all.iter().filter(|(_, stored)| stored.value.automated) {
            let record = &stored.value;
            // Of this table, and not of one that had its name before.
            let Some(table) = record.table_incarnation() else { continue };
            let made = record.shown.as_ref().and_then(|shown| shown.start_time.as_ref());
            let distance = made.map_or(u64::MAX, |made| times::micros(made).abs_diff(now));
            let nearest = nearest.entry((names::cluster_of(name), table));
            let nearest = nearest.or_insert(distance);
            *nearest = distance.min(*nearest);
        }
        Self(nearest)
    }

    /// Whether there is one of the table that is not older than this.
    fn is_near(&self, cluster: &str, table: &TableRecord, micros: i64) -> bool {
        is_within(self.0.get(&(cluster, table.incarnation)).copied(), micros)
    }
}

fn is_within(distance: Option<u64>, micros: i64) -> bool {
    distance.is_some_and(|distance| i64::try_from(distance).is_ok_and(|d| d < micros))
}

/// Refuses a table that has a policy, and of which a backup by it may have too long a name: in a cluster whose id is as long as
/// any, since such a one may come.
pub fn check_policy_named(table: &TableRecord) -> Result<()> {
    let Some((instance, _)) = names::split_table(&table.name) else { return Ok(()) };
    if table.backup_policy().is_none() {
        return Ok(());
    }
    let cluster = format!("{instance}/clusters/{}", "c".repeat(CLUSTER_ID_CHARS_MAX));
    let bytes = format!("{cluster}/backups/{}", automated_id(table, 0)).len();
    if bytes > RESOURCE_NAME_CHARS_MAX {
        return Err(Error::invalid_argument(format!(
            "automated_backup_policy: with the name of the table's instance, that of an automated backup may have {bytes} bytes; limit {RESOURCE_NAME_CHARS_MAX}"
        )));
    }
    Ok(())
}

/// The id of an automated backup: tells when it was made, and differs from that of any other table.
fn automated_id(table: &TableRecord, now: i64) -> String {
    let time = times::timestamp(now.div_euclid(1_000_000).saturating_mul(1_000_000)).to_string();
    let digits: String = time.chars().filter(char::is_ascii_alphanumeric).collect();
    format!("auto-{}-{:016x}", digits.to_lowercase(), table.incarnation)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::spelled_out::AutomatedBackupPolicy;

    #[test]
    fn ids_of_automated_backups_tell_the_time_and_the_table() {
        let table = TableRecord { incarnation: 0xAB, ..TableRecord::default() };
        let id = automated_id(&table, 1_767_225_600_123_456);
        assert_eq!(id, "auto-20260101t000000z-00000000000000ab");
        names::new_backup("projects/p/instances/i/clusters/c", &id).unwrap();
    }

    #[test]
    fn a_table_may_have_a_policy_where_its_backups_have_names_in_any_cluster() {
        let cluster = "c".repeat(CLUSTER_ID_CHARS_MAX);
        let (mut named, mut unnamed) = (0, 0);
        for project in RESOURCE_NAME_CHARS_MAX - 200..RESOURCE_NAME_CHARS_MAX - 100 {
            let instance = format!("projects/{}/instances/i", "p".repeat(project));
            let table = TableRecord {
                name: format!("{instance}/tables/t"),
                automated_backup_policy: Some(AutomatedBackupPolicy::default()),
                ..TableRecord::default()
            };
            let parent = format!("{instance}/clusters/{cluster}");
            let name = names::new_backup(&parent, &automated_id(&table, 1_767_225_600_123_456));
            assert_eq!(check_policy_named(&table).is_ok(), name.is_ok(), "{project}");
            let count = if name.is_ok() { &mut named } else { &mut unnamed };
            *count += 1;
        }
        assert!(named > 0 && unnamed > 0, "{named} {unnamed}");
    }
}
