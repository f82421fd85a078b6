//! How long tables rest whose automated backup has failed. Each attempt flushes a table's tablets, and what made one fail mostly makes
//! the next one fail a minute later. And when each was begun last: one that somebody deleted, or cancelled, is not made again before the next is due.
//! Kept in memory: a restart may be what helps, and makes no more than one anew.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::limits::BACKUP_SWEEP_INTERVAL;

/// A table's longest rest. Longer, and its backup would come late once it can be made; shorter, and a table that nobody mends would be
/// flushed in vain more often, in files that are smaller.
const REST_MAX: Duration = Duration::from_hours(1);

/// The tables that have failed since their last backup, by name: no more than there are tables.
#[derive(Debug, Default)]
pub(super) struct Rests(Mutex<HashMap<String, Rest>>);

#[derive(Debug, Clone, Copy)]
struct Rest {
    length_micros: u64,
    /// Monotonic micros.
    until_micros: u64,
}

impl Rests {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Rest>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A backup of the table failed. It rests for one sweep, and twice as long as the last time after each further failure; what was
    /// begun together with another one that failed, in another cluster, is the same failure.
    pub(super) fn failed(&self, table: &str, now_micros: u64) {
        let micros = |length: Duration| u64::try_from(length.as_micros()).unwrap_or(u64::MAX);
        let mut rests = self.lock();
        let last = rests.get(table).copied();
        if last.is_some_and(|last| now_micros < last.until_micros) {
            return;
        }
        let length_micros = last.map_or(micros(BACKUP_SWEEP_INTERVAL), |last| {
            last.length_micros.saturating_mul(2).min(micros(REST_MAX))
        });
        let until_micros = now_micros.saturating_add(length_micros);
        rests.insert(table.to_owned(), Rest { length_micros, until_micros });
    }

    /// A backup of the table was made.
    pub(super) fn made(&self, table: &str) {
        self.lock().remove(table);
    }

    /// Whether the table rests.
    pub(super) fn has(&self, table: &str, now_micros: u64) -> bool {
        self.lock().get(table).is_some_and(|rest| now_micros < rest.until_micros)
    }

    /// Forgets tables that nobody asks for backups of any more.
    pub(super) fn retain(&self, is_asked_for: impl Fn(&str) -> bool) {
        self.lock().retain(|table, _| is_asked_for(table));
    }
}

/// When the automated backups of tables were begun last: of each in each cluster, and of which incarnation.
#[derive(Debug, Default)]
pub(super) struct Begun(Mutex<HashMap<(String, String), (u64, i64)>>);

impl Begun {
    fn lock(&self) -> MutexGuard<'_, HashMap<(String, String), (u64, i64)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One was begun, of this incarnation of the table.
    pub(super) fn began(&self, cluster: &str, table: &str, incarnation: u64, now_micros: i64) {
        let key = (cluster.to_owned(), table.to_owned());
        self.lock().insert(key, (incarnation, now_micros));
    }

    /// It failed: the next is due.
    pub(super) fn failed(&self, cluster: &str, table: &str) {
        self.lock().remove(&(cluster.to_owned(), table.to_owned()));
    }

    /// How far from now the last was begun, by a clock that may have been ahead.
    pub(super) fn distance(
        &self,
        cluster: &str,
        table: &str,
        incarnation: u64,
        now_micros: i64,
    ) -> Option<u64> {
        let last = self.lock().get(&(cluster.to_owned(), table.to_owned())).copied();
        let last = last.filter(|(of, _)| *of == incarnation);
        last.map(|(_, began)| began.abs_diff(now_micros))
    }

    /// Forgets tables that nobody asks for backups of any more.
    pub(super) fn retain(&self, is_asked_for: impl Fn(&str) -> bool) {
        self.lock().retain(|(_, table), _| is_asked_for(table));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000_000;

    #[test]
    fn a_table_rests_for_twice_as_long_after_each_failure_up_to_an_hour_until_a_backup_is_made() {
        let rests = Rests::default();
        let mut now = 1_000;
        for minutes in [1, 2, 4, 8, 16, 32, 60, 60] {
            assert!(!rests.has("t", now));
            rests.failed("t", now);
            // In another cluster.
            rests.failed("t", now + 1);
            assert!(rests.has("t", now + minutes * MINUTE - 1), "{minutes}");
            assert!(!rests.has("other", now));
            now += minutes * MINUTE;
        }
        rests.made("t");
        rests.failed("t", now);
        assert!(!rests.has("t", now + MINUTE));
        rests.failed("t", now + MINUTE);
        rests.retain(|table| table != "t");
        assert!(!rests.has("t", now + MINUTE));
    }
}
