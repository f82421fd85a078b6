//! Compacting a tablet: claiming a pick, running it, installing its result.

use std::collections::HashSet;
use std::sync::Arc;

use crate::compaction::CompactionSpec;
use crate::compaction::job;
use crate::compaction::pick::{self, Busy, CollectInputs, Pick, Reason};
use crate::core::EngineMetrics;
use crate::cursor::Cursor;
use crate::error::{Error, ErrorKind, Result};
use crate::manifest::{SstRef, VersionEdit};
use crate::read::{LevelCursor, LevelFile, LevelOptions};
use crate::sst::{CursorOptions, FileId};

use super::Tablet;
use super::view::View;

/// How long a file is left alone after garbage collection found nothing to drop in it although its
/// properties allowed it (rules that are intersections), in microseconds.
const FUTILE_WAIT_MICROS: u64 = 60_000_000;

/// How long the outputs of a collection are left alone, in microseconds. Where cells expire all the time
/// there is always one more; a small tablet would be rewritten without a pause. Shorter wears the disk,
/// longer keeps garbage: with the interval of looking it must stay well under a minute.
const COLLECTED_WAIT_MICROS: u64 = 30_000_000;

/// How long files are left alone whose compaction failed (damage, full disk), in microseconds.
const FAILED_WAIT_MICROS: u64 = 30_000_000;

/// A compaction that is the caller's to run: its files are busy until this is dropped.
pub(crate) struct Claim {
    tablet: Arc<Tablet>,
    pick: Pick,
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut jobs = self.tablet.jobs();
        for file in &self.pick.inputs {
            jobs.busy.files.remove(&file.id);
        }
        let mine = (self.pick.output_level, self.pick.span());
        if let Some(at) = jobs.busy.outputs.iter().position(|output| *output == mine) {
            jobs.busy.outputs.swap_remove(at);
        }
    }
}

impl Tablet {
    /// The score of the most urgent compaction by size; 0 where there is none.
    pub(crate) fn compaction_score(&self) -> f64 {
        if self.is_dropped() || self.schema.load().is_none() {
            return 0.0;
        }
        let jobs = self.jobs();
        pick::pick_by_size(&self.version(), &self.core.options, &self.blocked(&jobs))
            .map_or(0.0, |(score, _)| score)
    }

    /// Claims the most urgent compaction by size.
    pub(crate) fn claim_by_size(self: &Arc<Self>) -> Option<Claim> {
        if self.is_dropped() || self.schema.load().is_none() {
            return None;
        }
        let mut jobs = self.jobs();
        let blocked = self.blocked(&jobs);
        let (_, pick) = pick::pick_by_size(&self.version(), &self.core.options, &blocked)?;
        Some(self.claim(&mut jobs, pick))
    }

    /// Claims a compaction that collects garbage, if it is time to look and there is one. A memtable
    /// that may hold garbage on an idle tablet is sent to be flushed first.
    pub(crate) fn claim_to_collect(self: &Arc<Self>) -> Option<Claim> {
        let schema = self.schema.load_full()?;
        let now = self.core.env.clock.monotonic_micros();
        let idle_micros = self.core.options.gc_idle_ms * 1000;
        let last_write = self.last_write_micros.load(std::sync::atomic::Ordering::Relaxed);
        let idle = now.saturating_sub(last_write) >= idle_micros;
        let mut jobs = self.jobs();
        if self.is_dropped() || now < jobs.collect_at {
            return None;
        }
        if idle && schema.families.values().any(|f| f.gc.is_some()) && self.active_bytes() > 0 {
            self.rotate_now();
        }
        jobs.futile_until.retain(|_, until| *until > now);
        let futile: HashSet<FileId> = jobs.futile_until.keys().copied().collect();
        let view = self.view.load_full();
        let properties = |id: FileId, question: pick::Question<'_>| {
            let reader = view.file(id).and_then(|file| file.reader().cloned());
            reader.is_ok_and(|reader| question(reader.properties()))
        };
        let inputs = CollectInputs {
            schema: &schema,
            now_micros: self.core.env.clock.now_micros(),
            idle: idle && view.waiting.is_empty(),
            tablet_bytes: view.version.ssts().map(|f| f.bytes).sum(),
            futile: &futile,
            properties: &properties,
        };
        let blocked = self.blocked(&jobs);
        let pick = pick::pick_to_collect(&view.version, &self.core.options, &blocked, &inputs);
        let Some(pick) = pick else {
            jobs.collect_at = now + self.core.options.gc_interval_ms * 1000;
            return None;
        };
        Some(self.claim(&mut jobs, pick))
    }

    /// Merges everything into the last level. Blocks.
    pub(crate) fn compact_fully(self: &Arc<Self>) -> Result<()> {
        loop {
            let claim = {
                let mut jobs = self.jobs();
                if self.version().ssts().next().is_none() {
                    return Ok(());
                }
                pick::pick_full(&self.version(), &jobs.busy).map(|pick| self.claim(&mut jobs, pick))
            };
            match claim {
                Some(claim) => return claim.run(),
                // A running compaction has a file that this one needs.
                None => {
                    let seen = self.core.bell.count();
                    self.core.bell.wait(seen, std::time::Duration::from_millis(50));
                    self.core.check_writable()?;
                }
            }
        }
    }

    fn blocked(&self, jobs: &super::Jobs) -> Busy {
        let now = self.core.env.clock.monotonic_micros();
        let failed = jobs.failed_until.iter().filter(|(_, until)| **until > now);
        let mut busy = jobs.busy.clone();
        busy.files.extend(failed.map(|(id, _)| *id));
        busy
    }

    /// Whether compaction of level 0 has failed lately, so that waiting for it makes no room.
    pub(super) fn level_zero_is_stuck(&self, view: &View) -> bool {
        let now = self.core.env.clock.monotonic_micros();
        let jobs = self.jobs();
        let failed = |id| jobs.failed_until.get(&id).is_some_and(|until| *until > now);
        view.version.level(0).iter().any(|file| failed(file.id))
    }

    pub(super) fn claim(self: &Arc<Self>, jobs: &mut super::Jobs, pick: Pick) -> Claim {
        jobs.busy.files.extend(pick.inputs.iter().map(|f| f.id));
        jobs.busy.outputs.push((pick.output_level, pick.span()));
        Claim { tablet: Arc::clone(self), pick }
    }
}

impl Claim {
    /// Runs the compaction and installs its result. Blocks. Damage in an input leaves the tablet as it
    /// was and its files alone for a while; so does a full disk.
    pub(crate) fn run(self) -> Result<()> {
        let tablet = Arc::clone(&self.tablet);
        let result = self.merge();
        if let Err(error) = &result
            && !Tablet::is_stop(error)
            && !tablet.is_dropped()
        {
            tracing::error!(tablet = tablet.id.0, %error, "compaction failed; its files are left as they are");
            let now = tablet.core.env.clock.monotonic_micros();
            let until = now + FAILED_WAIT_MICROS;
            let mut jobs = tablet.jobs();
            jobs.failed_until.retain(|_, until| *until > now);
            jobs.failed_until.extend(self.pick.inputs.iter().map(|f| (f.id, until)));
        }
        drop(self);
        tablet.core.room.notify_waiters();
        tablet.core.bell.ring();
        result
    }

    fn merge(&self) -> Result<()> {
        let tablet = &self.tablet;
        let pick = &self.pick;
        let schema = tablet.require_schema()?;
        if pick.is_move() {
            return self.move_down();
        }
        let _job = tablet.begin_job();
        let view = tablet.view.load_full();
        if !self.inputs_unchanged(&view) {
            return Ok(());
        }
        let cursors = self.cursors(&view)?;
        drop(view);
        let spec = CompactionSpec {
            schema,
            snapshots: Vec::new(),
            bottommost: pick.bottommost,
            excised: Arc::default(),
            now_micros: tablet.core.env.clock.now_micros(),
        };
        let stop = || tablet.core.stopping() || tablet.is_dropped();
        let context = job::JobContext { stop: &stop, ..tablet.job_context() };
        let output = job::run(&context, cursors, spec, pick.output_level)?;
        let written: u64 = output.files.iter().map(|f| f.bytes).sum();
        let metrics = &tablet.core.metrics;
        EngineMetrics::add(&metrics.compactions, 1);
        EngineMetrics::add(&metrics.compaction_read_bytes, pick.input_bytes());
        EngineMetrics::add(&metrics.compaction_write_bytes, written);
        EngineMetrics::add(&metrics.cells_collected, output.stats.collected + output.stats.buried);
        let in_place = pick.inputs.iter().all(|f| f.level == pick.output_level);
        if pick.reason == Reason::Collect && in_place {
            let futile = output.stats.records_in == output.stats.records_out;
            let wait = if futile { FUTILE_WAIT_MICROS } else { COLLECTED_WAIT_MICROS };
            let until = tablet.core.env.clock.monotonic_micros() + wait;
            let mut jobs = tablet.jobs();
            jobs.futile_until.extend(output.files.iter().map(|f| (f.id, until)));
        }
        let opened = tablet.core.store.open_outputs(&output.files)?;
        let mut manifest = tablet.lock_manifest();
        let edit = VersionEdit {
            add: tablet.cut_by_drops(output.files),
            remove: self.still_there(&manifest.version()),
            ..VersionEdit::default()
        };
        tablet.install(&mut manifest, &edit, opened, 0)
    }

    /// Whether the version still has the inputs as they were picked. Rows that are dropped from here on
    /// are in the tablet's list of drops; those dropped between the pick and here show in the version,
    /// and then the pick is made anew.
    fn inputs_unchanged(&self, view: &View) -> bool {
        self.pick.inputs.iter().all(|input| view.version.ssts().any(|file| file == input))
    }

    /// The inputs that the version still names: rows dropped in the meantime may have removed some.
    fn still_there(&self, version: &crate::manifest::Version) -> Vec<(u8, FileId)> {
        let mut remove: Vec<(u8, FileId)> = Vec::new();
        for input in &self.pick.inputs {
            let key = (input.level, input.id);
            let there = version.ssts().any(|f| (f.level, f.id) == key);
            if there && !remove.contains(&key) {
                remove.push(key);
            }
        }
        remove
    }

    /// A file that overlaps nothing in the next level changes its level by an edit alone.
    fn move_down(&self) -> Result<()> {
        let tablet = &self.tablet;
        let mut manifest = tablet.lock_manifest();
        let version = manifest.version();
        let remove = self.still_there(&version);
        let add = version
            .ssts()
            .filter(|f| remove.contains(&(f.level, f.id)))
            .map(|f| SstRef { level: self.pick.output_level, ..f.as_ref().clone() })
            .collect();
        let edit = VersionEdit { add, remove, ..VersionEdit::default() };
        tablet.install(&mut manifest, &edit, Vec::new(), 0)
    }

    /// One cursor per L0 file and one per deeper level. They bypass the block cache.
    fn cursors(&self, view: &View) -> Result<Vec<Box<dyn Cursor>>> {
        let mut cursors: Vec<Box<dyn Cursor>> = Vec::new();
        for level in 0..=pick::LAST_LEVEL {
            let files = self.pick.inputs.iter().filter(|f| f.level == level);
            if level == 0 {
                for file in files {
                    let options =
                        CursorOptions { bounds: file.span(), ..CursorOptions::without_cache() };
                    cursors.push(Box::new(view.file(file.id)?.reader()?.cursor(options)));
                }
                continue;
            }
            let mut level_files = Vec::new();
            for file in files {
                level_files.push(LevelFile::new(Arc::clone(view.file(file.id)?), file));
            }
            level_files.sort_by(|a, b| a.span.start.cmp(&b.span.start));
            if !level_files.is_empty() {
                let options = LevelOptions {
                    files: 0..level_files.len(),
                    cursor: CursorOptions::without_cache(),
                };
                cursors.push(Box::new(LevelCursor::new(level_files.into(), options)));
            }
        }
        if cursors.is_empty() {
            return Err(Error::new(ErrorKind::NotFound, "a compaction without inputs"));
        }
        Ok(cursors)
    }
}
