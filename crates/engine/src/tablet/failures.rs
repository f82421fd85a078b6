//! What a tablet does with compactions that fail: their files are left alone for a while, the longer the less it is likely to pass.

use std::collections::HashSet;
use std::sync::Arc;

use crate::cell::Seq;
use crate::compaction::pick::Reason;
use crate::core::EngineMetrics;
use crate::error::{Error, ErrorKind};
use crate::manifest::SstRef;
use crate::setbacks::Work;

use super::compact::Claim;
use super::{Jobs, view};

/// How long files are left alone whose compaction failed (damage, full disk), in microseconds.
pub(super) const FAILED_WAIT_MICROS: u64 = 30_000_000;

/// How long small flushes are left alone whose merge has failed again and again, and what is rewritten for its garbage: nobody waits for that.
/// So are damaged files below level 0: damage does not heal while the engine is open, and each try writes what lies before it, a quarter
/// of a gigabyte perhaps, which comes to nothing.
pub(super) const ALONE_WAIT_MICROS_MAX: u64 = 3_600_000_000;

/// The same of damaged files of level 0, without which their rows cannot go down, and of files that cannot be read, which a device that
/// comes back may be able to: ten minutes. Half a minute, and what tries write for good is megabytes a second; an hour, and writers
/// are refused for so long after what passed.
const AWAITED_WAIT_MICROS_MAX: u64 = 600_000_000;

/// Small flushes whose merge has failed: they would be read again and again for a file among them that is damaged, and keep newer
/// ones from being merged.
#[derive(Debug, Clone, Copy)]
pub(super) struct FailedCrowd {
    /// The newest sequence in them.
    pub(super) last_seq: Seq,
    /// When to try again (monotonic micros), and how long that is after the last time.
    pub(super) until: u64,
    wait: u64,
}

impl FailedCrowd {
    /// Whether some of it is among these files of level 0.
    pub(super) fn is_among(&self, files: &[Arc<SstRef>]) -> bool {
        files.iter().any(|file| file.min_seq <= self.last_seq)
    }
}

/// How long what nobody waits for is left alone after another failure, by the last time.
pub(super) fn longer_wait(last: u64) -> u64 {
    last.saturating_mul(2).clamp(FAILED_WAIT_MICROS, ALONE_WAIT_MICROS_MAX)
}

impl Jobs {
    /// When the first of the files that failed may be tried again after `now` (monotonic micros).
    pub(super) fn next_after_failures(&self, now: u64) -> u64 {
        let failed = self.failed_until.values().chain(self.failed_for_space.values());
        let untils = failed.map(|(until, _)| *until);
        untils.filter(|until| *until > now).min().unwrap_or(u64::MAX)
    }

    /// Forgets failures of files that are gone, and those that were so long ago that they say nothing of the next.
    pub(super) fn forget_failures(&mut self, now: u64, files: &view::OpenFiles) {
        for failed in [&mut self.failed_until, &mut self.failed_for_space] {
            failed.retain(|id, (until, _)| {
                files.contains_key(id) && until.saturating_add(ALONE_WAIT_MICROS_MAX) > now
            });
        }
        self.column_too_large = self.column_too_large.filter(|(_, until)| *until > now);
    }
}

impl Claim {
    /// It has failed, of itself: its files are left alone for a while.
    pub(super) fn note_failure(&self, error: &Error) {
        let tablet = &self.tablet;
        let of_level_zero = self.is_of_level_zero();
        let put_off = error.is_put_off();
        if put_off {
            // Said once, where it was found out.
            EngineMetrics::add(&tablet.core.metrics.compactions_put_off, 1);
            tracing::debug!(tablet = tablet.id.0, %error, "compaction put off");
        } else if !error.is_shortage() {
            let metrics = &tablet.core.metrics;
            let is_damage = error.kind() == ErrorKind::Corruption;
            let of_it =
                if is_damage { &metrics.compactions_damaged } else { &metrics.compactions_failed };
            EngineMetrics::add(of_it, 1);
        }
        let now = tablet.core.env.clock.monotonic_micros();
        if !put_off && let Some(left_out) = tablet.core.said_of_compactions.of(error, now) {
            tracing::error!(tablet = tablet.id.0, %error, left_out, "compaction failed; its files are left as they are");
        }
        let until = now + FAILED_WAIT_MICROS;
        // A damaged file below keeps nobody from writing.
        let concerns_writers = of_level_zero || error.kind() != ErrorKind::Corruption;
        // The files of level 0 that these would take with them may have room without what they were picked for.
        let extra_put_off = put_off
            && of_level_zero
            && matches!(
                self.pick.reason,
                Reason::Tattered | Reason::Hollow | Reason::Dense | Reason::Collect | Reason::Old
            );
        // Nobody waits for them.
        let is_extra = extra_put_off
            || matches!(self.pick.reason, Reason::Reads | Reason::Crowd | Reason::Expired);
        if concerns_writers && !is_extra && !(put_off && self.pick.reason == Reason::Full) {
            let work = if of_level_zero { Work::LevelZero } else { Work::Below };
            tablet.note_setback(work, error);
        }
        let mut jobs = tablet.jobs();
        match self.pick.reason {
            // Nobody takes it up again but the operator; and what is smaller may go on.
            Reason::Full if put_off => {}
            // Reads have to pay for it again, and writers may need the files meanwhile.
            Reason::Reads => {
                drop(jobs);
                tablet.forget_looks(until);
            }
            Reason::Crowd => jobs.failed_crowd = Some(self.failed_crowd(&jobs, now)),
            _ if extra_put_off => jobs.extras_at = until,
            Reason::Reclaim | Reason::Collect | Reason::Hollow | Reason::Old if !of_level_zero => {
                self.note_failed_for_space(&mut jobs, now, put_off);
            }
            Reason::L0 if put_off => {
                jobs.column_too_large = Some((self.pick.input_bytes(), until));
            }
            _ => self.note_failed(&mut jobs, now, error),
        }
    }

    /// It is done: what failed before may pass now.
    pub(super) fn note_done(&self) {
        let tablet = &self.tablet;
        let of_level_zero = self.is_of_level_zero();
        match self.pick.reason {
            // It has written nothing, so others may fail as before.
            Reason::Expired => {
                if of_level_zero {
                    tablet.forget_looks(0);
                }
            }
            // Nobody waits for it: it says nothing of what somebody does.
            Reason::Crowd => {
                let mut jobs = tablet.jobs();
                jobs.failed_crowd =
                    jobs.failed_crowd.filter(|failed| !failed.is_among(&self.pick.inputs));
                drop(jobs);
                tablet.has_merged_for_reads();
            }
            reason => {
                tablet.core.setbacks.done(Work::Below, tablet.id);
                if of_level_zero {
                    // What is merged within level 0 is still there to be merged for reads.
                    if matches!(reason, Reason::Reads | Reason::WithinL0) {
                        tablet.has_merged_for_reads();
                    } else {
                        tablet.forget_looks(0);
                    }
                    tablet.core.setbacks.done(Work::LevelZero, tablet.id);
                }
            }
        }
    }

    fn is_of_level_zero(&self) -> bool {
        self.pick.inputs.iter().any(|file| file.level == 0)
    }

    /// Its files are left alone for a while; what is at fault, by its damage or since it cannot be read, for twice as long as the last
    /// time. Where the error does not say which of them is damaged, all are.
    fn note_failed(&self, jobs: &mut super::Jobs, now: u64, error: &Error) {
        let view = self.tablet.view.load();
        jobs.forget_failures(now, &view.files);
        let is_at_fault = |file: &SstRef| match error.sst() {
            Some(id) => file.id == id && !error.is_shortage(),
            None => error.kind() == ErrorKind::Corruption,
        };
        let given_up = self.pick.gives_up(&view.version, &view.shape);
        let at_fault = self.pick.inputs.iter().filter(|file| is_at_fault(file));
        let files = given_up.filter(|file| !is_at_fault(file)).chain(at_fault);
        // One that was cut is there several times.
        let mut noted = HashSet::new();
        for file in files.filter(|file| noted.insert(file.id)) {
            let last = jobs.failed_until.get(&file.id).map_or(0, |(_, wait)| *wait);
            let is_awaited = file.level == 0 || error.kind() != ErrorKind::Corruption;
            let max = if is_awaited { AWAITED_WAIT_MICROS_MAX } else { ALONE_WAIT_MICROS_MAX };
            let (wait, kept) = match longer_wait(last).min(max) {
                wait if is_at_fault(file) => (wait, wait),
                _ => (FAILED_WAIT_MICROS, last),
            };
            jobs.failed_until.insert(file.id, (now.saturating_add(wait), kept));
        }
    }

    /// Its files wait twice as long as the last time before they are rewritten for what that frees, but where room was all that it lacked.
    fn note_failed_for_space(&self, jobs: &mut super::Jobs, now: u64, put_off: bool) {
        let view = self.tablet.view.load();
        jobs.forget_failures(now, &view.files);
        let failed = &mut jobs.failed_for_space;
        let mut noted = HashSet::new();
        for file in self.pick.inputs.iter().filter(|file| noted.insert(file.id)) {
            let last = failed.get(&file.id).filter(|_| !put_off).map_or(0, |(_, wait)| *wait);
            let wait = longer_wait(last);
            failed.insert(file.id, (now.saturating_add(wait), wait));
        }
    }

    /// Now that its merge has failed: it waits twice as long as the last time. Newer flushes that failed with those that had failed
    /// before are not to blame.
    fn failed_crowd(&self, jobs: &super::Jobs, now: u64) -> FailedCrowd {
        let wait = longer_wait(jobs.failed_crowd.map_or(0, |failed| failed.wait));
        let again = jobs.failed_crowd.filter(|failed| failed.is_among(&self.pick.inputs));
        let newest = self.pick.inputs.iter().map(|file| file.max_seq).max().unwrap_or(0);
        let last_seq = again.map_or(newest, |failed| failed.last_seq);
        FailedCrowd { last_seq, until: now.saturating_add(wait), wait }
    }
}
