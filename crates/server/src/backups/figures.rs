//! What metrics tell of backups. Counting them takes a look at every list of files, so it is done with each sweep, and told
//! as of then, but for entries, which are counted with each automated backup as well; failures are counted as they happen.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use tepui_bigtable::error::{Code, Error};

use super::record::BackupRecord;
use super::{Backups, times};
use crate::names;

/// What an operation on backups does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Job {
    /// Makes a backup that a client asked for.
    Create,
    /// Makes one that a table's policy asks for.
    Automated,
    /// Restores one.
    Restore,
}

impl Job {
    const ALL: [Self; 3] = [Self::Create, Self::Automated, Self::Restore];

    fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Automated => "automated",
            Self::Restore => "restore",
        }
    }

    /// What makes this backup.
    pub(super) fn of(record: &BackupRecord) -> Self {
        if record.automated { Self::Automated } else { Self::Create }
    }
}

/// Where the figures are kept.
#[derive(Debug, Default)]
pub(super) struct Figures {
    failures: [AtomicU64; Job::ALL.len()],
    ready: AtomicU64,
    creating: AtomicU64,
    held_bytes: AtomicU64,
    /// Held while entries are counted, so that what is kept of them is what the last look saw.
    counting: Mutex<()>,
    /// See [`BackupFigures::automated_age_micros`]: the time of that backup; 0 for none.
    automated_micros: AtomicI64,
}

/// Figures of backups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackupFigures {
    /// Operations that failed since the server started, by what they were to do.
    pub failures: [(&'static str, u64); Job::ALL.len()],
    /// Backups that are made.
    pub ready: u64,
    /// Backups that are being made.
    pub creating: u64,
    /// Bytes of files that backups alone keep.
    pub held_bytes: u64,
    /// How old the newest automated backup of a table is, for the table where it is oldest; a table that has none counts from
    /// its creation. 0 where no table has a policy that is in force.
    pub automated_age_micros: u64,
}

impl Backups {
    /// As of the last sweep, and the last automated backup since.
    pub fn figures(&self) -> BackupFigures {
        let Figures { failures, ready, creating, held_bytes, automated_micros, .. } = &self.figures;
        let get = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        let automated = automated_micros.load(Ordering::Relaxed);
        let age = self.env.clock.now_micros().saturating_sub(automated);
        BackupFigures {
            failures: Job::ALL.map(|job| (job.name(), failures.get(job as usize).map_or(0, get))),
            ready: get(ready),
            creating: get(creating),
            held_bytes: get(held_bytes),
            automated_age_micros: if automated == 0 { 0 } else { u64::try_from(age).unwrap_or(0) },
        }
    }

    /// Counts a [failure](is_failure).
    pub(super) fn count_failure(&self, job: Job, error: &Error) {
        if is_failure(error)
            && let Some(count) = self.figures.failures.get(job as usize)
        {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Looks at all backups for the other figures.
    pub fn count(&self) {
        self.count_entries();
        self.figures.held_bytes.store(self.engine.backup_held_bytes(), Ordering::Relaxed);
    }

    /// The same without a look at their lists of files.
    pub(super) fn count_entries(&self) {
        let counting = self.figures.counting.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.env.clock.now_micros();
        // Whether it is of the past, and when it was made. One that a clock made which was ahead is as old as it is far from now, and counts where
        // there is no other.
        let mut newest: HashMap<u64, (bool, i64)> = HashMap::new();
        let (mut ready, mut creating) = (0, 0);
        for (_, stored) in self.resources.list::<BackupRecord>("", None, usize::MAX) {
            let record = &stored.value;
            if record.engine_id.is_none() {
                creating += 1;
                continue;
            }
            ready += 1;
            if let (true, Some(table), Some(shown)) =
                (record.automated, record.table_incarnation(), &record.shown)
            {
                let made = shown.start_time.as_ref().map_or(0, times::micros);
                let made = (made <= now, made.min(now.saturating_mul(2).saturating_sub(made)));
                let newest = newest.entry(table).or_insert(made);
                *newest = made.max(*newest);
            }
        }
        let tables = self.tables.all();
        let with_policy = tables.iter().map(|entry| &entry.record).filter(|record| {
            record.backup_policy().is_some()
                && self.instances.check(names::instance_of(&record.name)).is_ok()
        });
        let oldest = with_policy
            .map(|record| {
                let newest = newest.get(&record.incarnation).map(|(_, made)| *made);
                newest.unwrap_or(record.created_micros.min(now))
            })
            .min();
        let figures = &self.figures;
        figures.ready.store(ready, Ordering::Relaxed);
        figures.creating.store(creating, Ordering::Relaxed);
        figures.automated_micros.store(oldest.unwrap_or(0), Ordering::Relaxed);
        drop(counting);
    }
}

/// Whether an operation failed, and no client wanted that, who cancelled it, deleted its instance, or dropped a family or replaced the table meanwhile.
pub(super) fn is_failure(error: &Error) -> bool {
    !matches!(error.kind(), Code::Cancelled | Code::Aborted)
}
