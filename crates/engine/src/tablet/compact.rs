//! Compacting a tablet: claiming a pick, running it, installing its result.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;

use crate::cell::{FamilyId, RowRange, SEQ_COUNTER_BITS, SEQ_MAX};
use crate::compaction::beneath::{files_above, files_beneath};
use crate::compaction::collect::{self, COLLECT_EAGER_BYTES, CollectInputs, Freed};
use crate::compaction::cuts::CutRule;
use crate::compaction::job::{self, JobOutput};
use crate::compaction::parts::{Parts, Shared};
use crate::compaction::pick::{self, Busy, Pick, Reason};
use crate::compaction::reads;
use crate::compaction::separate::ValueInputs;
use crate::compaction::shape::LAST_LEVEL;
use crate::compaction::space::Promise;
use crate::compaction::split::{self, FILES_PER_PART, PART_BYTES_MAX, PARTS_PER_THREAD};
use crate::compaction::{Beneath, CompactionSpec};
use crate::core::EngineMetrics;
use crate::error::{Error, Result};
use crate::log::lock;
use crate::manifest::{SstRef, Version, VersionEdit};
use crate::options::{CompactionStyle, CompressionPolicy};
use crate::pressure::Behind;
use crate::schema::TabletSchema;
use crate::setbacks::Work;
use crate::sst::FileId;
use crate::store::Outputs;

use super::Tablet;
use super::deletions::with_newer;
use super::drop_rows::{RunningJob, cut_out};
use super::merge::Merge;
use super::view::{OpenFiles, View};

/// How long cells that rules let go stay in the memtable of a tablet that is written to, in microseconds, beyond the age of
/// the rule: ten minutes. Shorter makes small files of a tablet that is written slowly, one for each time; longer shows
/// expired cells for longer.
const MEMORY_GARBAGE_MICROS: i64 = 600_000_000;

/// How often everything is merged anew that comes to nothing since rules were changed meanwhile, or rows dropped: each time took as long as it all
/// takes, and nobody changes a table as often as that but a loop.
const FULL_TRIES_MAX: u32 = 8;

/// A compaction that is the caller's to run: its files are busy until this is dropped.
pub(crate) struct Claim {
    pub(super) tablet: Arc<Tablet>,
    pub(super) pick: Pick,
    /// Where it may write yet.
    rows: RowRange,
    /// Its threads do more urgent compactions meanwhile.
    lends: bool,
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut jobs = self.tablet.jobs();
        for file in &self.pick.inputs {
            jobs.busy.files.remove(&file.id);
        }
        self.leave(&mut jobs);
    }
}

impl Tablet {
    /// How urgent its most urgent compaction by shape is, running ones included; below 1.0 none is due.
    pub(crate) fn compaction_score(&self) -> f64 {
        if self.is_dropped() || self.schema.load().is_none() {
            return 0.0;
        }
        self.view.load().shape.score()
    }

    /// Whether a compaction by shape is due that could run beside those that do.
    pub(crate) fn awaits_thread(&self) -> bool {
        self.compaction_score() >= 1.0 && self.pick_by_shape(&mut self.picks()).is_some()
    }

    /// Whether a compaction by shape is due that could begin but for a running one.
    pub(super) fn is_kept_waiting_by(&self, running: &Pick) -> bool {
        if self.compaction_score() < 1.0 {
            return false;
        }
        let mut blocked = self.blocked(&self.jobs());
        let view = self.view.load_full();
        for file in &running.inputs {
            blocked.files.remove(&file.id);
        }
        // Of its rows only the last may be left to it: what others write meanwhile ends before.
        let (level, span) = (running.output_level, running.span());
        let is_its_own = |rows: &RowRange| rows.end == span.end && span.contains_range(rows);
        blocked.outputs.retain(|(other, rows)| *other != level || !is_its_own(rows));
        pick::pick_by_shape(&view.version, &view.shape, &self.core.options, &blocked).is_some()
    }

    /// Claims the most urgent compaction by shape that can run beside those that do.
    pub(crate) fn claim_by_shape(self: &Arc<Self>) -> Option<Claim> {
        if self.compaction_score() < 1.0 {
            return None;
        }
        let mut picks = self.picks();
        let pick = self.pick_by_shape(&mut picks)?;
        Some(self.claim(picks, pick))
    }

    fn pick_by_shape(&self, picks: &mut super::Picks) -> Option<Pick> {
        let now = self.core.env.clock.monotonic_micros();
        let mut jobs = self.jobs();
        let view = self.view.load_full();
        jobs.forget_failures(now, &view.files);
        // One that has left level 0 by another way is none any more.
        let level_zero = view.version.level(0);
        jobs.failed_crowd = jobs.failed_crowd.filter(|failed| failed.is_among(level_zero));
        let seen = (Arc::clone(&view.version), jobs.busy_changes);
        let same = |(version, changes): &(Arc<Version>, u64)| {
            Arc::ptr_eq(version, &seen.0) && *changes == seen.1
        };
        if picks.nothing_free.as_ref().is_some_and(same) {
            return None;
        }
        let options = &self.core.options;
        let blocked = self.blocked(&jobs);
        // What failed or was put off comes back with time, and neither the version nor what is busy tells of that.
        let ends_with_time = jobs.failed_until.values().any(|(until, _)| *until > now)
            || jobs.column_too_large.is_some()
            || blocked.no_extras
            || jobs.failed_crowd.is_some();
        drop(jobs);
        let pick = pick::pick_by_shape(&view.version, &view.shape, options, &blocked);
        if pick.is_none() {
            picks.nothing_free = (!ends_with_time).then_some(seen);
        }
        pick
    }

    /// Claims the compaction of level 0 that is due, if it reads no more than so many bytes and can run beside those that do.
    pub(crate) fn claim_level_zero(self: &Arc<Self>, bytes_max: u64) -> Option<Claim> {
        if self.is_dropped() || self.schema.load().is_none() {
            return None;
        }
        let picks = self.picks();
        let mut blocked = self.blocked(&self.jobs());
        let view = self.view.load_full();
        if !view.shape.scores.iter().any(|(_, level)| *level == 0) {
            return None;
        }
        let most = blocked.level_zero_bytes_max.map_or(bytes_max, |most| most.min(bytes_max));
        blocked.level_zero_bytes_max = Some(most);
        let options = &self.core.options;
        let pick = pick::pick_level_zero(&view.version, &view.shape, options, &blocked)?;
        Some(self.claim(picks, pick))
    }

    /// Claims files of which everything has expired, if it is time to look and there are any: an edit gives their space back, and
    /// waits for no compaction. A memtable that has held expired cells for long is sent to be flushed first.
    pub(crate) fn claim_expired(self: &Arc<Self>) -> Option<Claim> {
        let now = self.core.env.clock.monotonic_micros();
        if self.is_dropped() || now < self.picks().expired_at {
            return None;
        }
        let schema = self.schema.load_full()?;
        let now_micros = self.core.expiry_micros();
        if self.memory_keeps_garbage(&schema, now_micros) {
            self.rotate_now();
        }
        let compacts_by = self.for_compactions(&schema);
        let mut picks = self.picks();
        let blocked = self.blocked(&self.jobs());
        let view = self.view.load_full();
        let properties = properties_of(&view);
        match collect::pick_expired(&view.version, &blocked, &compacts_by, now_micros, &properties)
        {
            Some(pick) => Some(self.claim(picks, pick)),
            None => {
                picks.expired_at = now + self.core.options.gc_interval_ms * 1000;
                None
            }
        }
    }

    /// Claims a compaction that collects garbage, if it is time to look and there is one. A memtable
    /// that may hold garbage on an idle tablet is sent to be flushed first.
    pub(crate) fn claim_to_collect(self: &Arc<Self>) -> Option<Claim> {
        let schema = self.schema.load_full()?;
        let now = self.core.env.clock.monotonic_micros();
        let options = &self.core.options;
        let last_write = self.last_write_micros.load(Ordering::Relaxed);
        let idle = now.saturating_sub(last_write) >= options.gc_idle_ms * 1000;
        let mut picks = self.picks();
        if self.is_dropped() || now < picks.collect_at {
            return None;
        }
        let eager = now >= picks.eager_at;
        if idle && self.memory_may_hold_garbage(&schema, self.core.expiry_micros(), eager) {
            self.rotate_now();
        }
        let blocked = self.blocked_for_space(&self.jobs());
        let view = self.view.load_full();
        let (tablet_bytes, tight) = (view.version.total_bytes(), self.core.space.is_tight());
        let rest = collect::rest(&schema, tablet_bytes, tight);
        picks.collected.retain(|_, at| at.saturating_add(rest) > now);
        let resting: HashSet<FileId> = picks.collected.keys().copied().collect();
        let properties = properties_of(&view);
        let freed = |id: FileId| match view.file(id) {
            Ok(file) if !file.is_needed_elsewhere() => {
                let values = file.value_files().iter().filter(|(values, _)| !values.is_kept());
                Freed {
                    data_bytes: file.reader().map_or(0, |reader| reader.data_bytes()),
                    value_bytes: values.map(|(_, bytes)| *bytes).sum(),
                }
            }
            _ => Freed::default(),
        };
        let rewrite_age_micros = options.rewrite_age_ms.saturating_mul(1000);
        let compacts_by = self.for_compactions(&schema);
        let dues = picks.dues.by(&compacts_by);
        dues.retain(|id, _| view.files.contains_key(id));
        let collector = (!Arc::ptr_eq(&compacts_by, &schema)).then_some(schema.as_ref());
        let inputs = CollectInputs {
            schema: &compacts_by,
            collector,
            now_micros: self.core.expiry_micros(),
            idle: idle && view.waiting.is_empty(),
            eager,
            tablet_bytes,
            tight,
            rewrite_age_micros: i64::try_from(rewrite_age_micros).unwrap_or(i64::MAX),
            resting: &resting,
            dues,
            freed: &freed,
            properties: &properties,
        };
        let pick = collect::pick_to_collect(&view.version, &view.shape, &blocked, &inputs);
        let Some(pick) = pick else {
            picks.collect_at = now + options.gc_interval_ms * 1000;
            return None;
        };
        Some(self.claim(picks, pick))
    }

    /// Whether the active memtable has something that a compaction would take away, or take others away by, and none waits for its
    /// flush: flushes that are behind are not to be given a small one for each pause of a writer.
    /// For versions alone only where what is flushed would be merged: `eager`, or worth what it meets.
    fn memory_may_hold_garbage(&self, schema: &TabletSchema, now_micros: i64, eager: bool) -> bool {
        let view = self.view.load();
        if self.active_bytes() == 0 || !view.waiting.is_empty() {
            return false;
        }
        // How many newer ones there are, of these or of older ones in files, nobody knows before they are merged.
        let merges = || {
            let bytes = view.version.total_bytes();
            self.core.space.is_tight()
                || eager && bytes <= COLLECT_EAGER_BYTES
                || reads::is_worth(self.active_bytes(), bytes)
        };
        let may_go = |family: FamilyId, at: i64| {
            let rule = schema.family(family).and_then(|f| f.gc.as_ref());
            rule.is_some_and(|rule| {
                rule.collects(0, at, now_micros) || rule.counts_versions() && merges()
            })
        };
        let families = view.active.families();
        view.active.tombstones() > 0
            || families.iter().any(|f| f.timestamp_min.is_some_and(|at| may_go(f.family, at)))
    }

    /// Whether the active memtable has had cells for long that rules let go. While it is written to, nothing but its size has
    /// it flushed otherwise.
    fn memory_keeps_garbage(&self, schema: &TabletSchema, now_micros: i64) -> bool {
        let view = self.view.load();
        // Nor do flushes that are behind, or fail, get a small one more here.
        if !view.waiting.is_empty() {
            return false;
        }
        let since = now_micros.saturating_sub(MEMORY_GARBAGE_MICROS);
        // Timestamps are the clients'; one that was written just now is not flushed for an old one.
        let first = view.active.seq_range().map_or(SEQ_MAX, |(first, _)| first);
        let begun_micros = i64::try_from((first >> SEQ_COUNTER_BITS).saturating_mul(1000));
        if begun_micros.map_or(true, |begun| begun > since) {
            return false;
        }
        view.active.families().iter().any(|family| {
            let rule = schema.family(family.family).and_then(|f| f.gc.as_ref());
            rule.zip(family.timestamp_min).is_some_and(|(rule, at)| rule.collects(0, at, since))
        })
    }

    /// Merges everything into the last level. Blocks. `Overloaded` where rules were changed, or rows dropped, again and again meanwhile.
    pub(crate) fn compact_fully(self: &Arc<Self>) -> Result<()> {
        let mut awaits = None;
        let mut tries = 0;
        loop {
            let claim = {
                let picks = self.picks();
                let busy = self.jobs().busy.clone();
                let version = self.version();
                if version.ssts().next().is_none() {
                    return Ok(());
                }
                pick::pick_full(&version, &busy).map(|pick| self.claim(picks, pick))
            };
            match claim {
                Some(claim) => {
                    if claim.run()? {
                        return Ok(());
                    }
                    tries += 1;
                    if tries == FULL_TRIES_MAX {
                        let text = "the tablet was changed each time that it was compacted";
                        return Err(Error::overloaded(text, Duration::from_secs(1)));
                    }
                }
                // A running compaction has a file that this one needs.
                None => {
                    let seen = self.core.bell.count();
                    if awaits.is_none() {
                        awaits = Some(Awaits::new(self));
                        self.core.bell.ring();
                    }
                    self.core.bell.wait(seen, Duration::from_millis(50));
                    self.core.check_writable()?;
                }
            }
        }
    }

    /// What a pick leaves alone. To be asked before the version that is picked from: what a job is done with is in no version after that,
    /// and where it is asked too early all that it says is busy is not there.
    pub(super) fn blocked(&self, jobs: &super::Jobs) -> Busy {
        let now = self.core.env.clock.monotonic_micros();
        let failed = jobs.failed_until.iter().filter(|(_, (until, _))| *until > now);
        let mut busy = jobs.busy.clone();
        busy.files.extend(failed.map(|(id, _)| *id));
        let too_large = jobs.column_too_large.filter(|(_, until)| *until > now);
        busy.level_zero_bytes_max = too_large.map(|(bytes, _)| bytes.saturating_sub(1));
        let failed_crowd = jobs.failed_crowd.filter(|failed| failed.until > now);
        busy.crowds_after = failed_crowd.map_or(0, |failed| failed.last_seq);
        busy.no_extras = jobs.extras_at > now;
        busy
    }

    /// The same for what is rewritten for the space that it frees alone.
    pub(super) fn blocked_for_space(&self, jobs: &super::Jobs) -> Busy {
        let now = self.core.env.clock.monotonic_micros();
        let mut busy = self.blocked(jobs);
        let failed = jobs.failed_for_space.iter().filter(|(_, (until, _))| *until > now);
        busy.files.extend(failed.map(|(id, _)| *id));
        busy
    }

    /// The work of this tablet has failed.
    pub(super) fn note_setback(&self, work: Work, error: &Error) {
        self.core.setbacks.failed(work, self.id, error);
        // Whoever drops it marks it first, so that one of the two sees the other.
        if self.is_dropped() {
            self.core.setbacks.forget(self.id);
        }
    }

    /// Why the work fails that is to relieve it of what is behind, if it does. What failed below level 0 stands in its way where nothing
    /// of level 0 is under way.
    pub(super) fn setback(&self, behind: Behind) -> Option<Error> {
        let own = self.core.setbacks.of(self.id, behind);
        if own.is_some() || behind != Behind::LevelZero {
            return own;
        }
        let below = self.core.setbacks.last(Work::Below, self.id)?;
        let view = self.view.load();
        let jobs = self.jobs();
        (!jobs.any_under_way(view.version.level(0))).then_some(below)
    }

    /// Whether compaction of level 0 has failed lately, so that waiting for it makes no room.
    pub(super) fn level_zero_is_stuck(&self, view: &View) -> bool {
        let now = self.core.env.clock.monotonic_micros();
        let jobs = self.jobs();
        let failed = |id| jobs.failed_until.get(&id).is_some_and(|(until, _)| *until > now);
        let level_zero = view.version.level(0);
        // Where its column does not fit on the disk, its files are merged with each other as long as there are some.
        let waits = jobs.column_too_large.is_some_and(|(_, until)| until > now)
            && !jobs.any_under_way(level_zero);
        waits || level_zero.iter().any(|file| failed(file.id))
    }

    /// Ends the turn of whoever has picked: nobody else has claimed a file since.
    pub(super) fn claim(
        self: &Arc<Self>,
        picks: MutexGuard<'_, super::Picks>,
        pick: Pick,
    ) -> Claim {
        let mut jobs = self.jobs();
        jobs.busy.files.extend(pick.inputs.iter().map(|f| f.id));
        let rows = pick.span();
        jobs.busy.outputs.push((pick.output_level, rows.clone()));
        jobs.busy_changes += 1;
        drop((jobs, picks));
        Claim { tablet: Arc::clone(self), pick, rows, lends: true }
    }
}

/// What is the same for all parts of a compaction that are installed.
struct Installs<'a> {
    job: &'a RunningJob<'a>,
    schema: &'a Arc<TabletSchema>,
    /// The inputs that are not done.
    files: &'a Mutex<OpenFiles>,
}

/// While this lives, somebody waits for all files of the tablet.
struct Awaits<'a>(&'a Tablet);

impl<'a> Awaits<'a> {
    fn new(tablet: &'a Tablet) -> Self {
        tablet.jobs().awaited += 1;
        Self(tablet)
    }
}

impl Drop for Awaits<'_> {
    fn drop(&mut self) {
        self.0.jobs().awaited -= 1;
    }
}

/// Asks questions of the properties of a view's files; `false` where they cannot be read.
fn properties_of(view: &View) -> impl Fn(FileId, collect::Question<'_>) -> bool {
    |id, question| {
        let reader = view.file(id).and_then(|file| file.reader().cloned());
        reader.is_ok_and(|reader| question(reader.properties()))
    }
}

impl Claim {
    /// The same as [`Self::run`], by a thread that another compaction has lent, and that is not lent once more.
    pub(crate) fn run_lent(mut self) -> Result<bool> {
        self.lends = false;
        self.run()
    }

    /// Runs the compaction and installs its result, as it goes. Blocks. `false` where that, or some of it, must not be: rules were
    /// changed meanwhile, or rows dropped before it began, and the files that stay are picked again. Damage in an input leaves the rows from
    /// there on as they were and the files alone for a while; so does a full disk.
    pub(crate) fn run(mut self) -> Result<bool> {
        let tablet = Arc::clone(&self.tablet);
        let result = self.merge();
        match &result {
            Ok(true) => self.note_done(),
            Ok(false) => {}
            Err(error) if Tablet::is_stop(error) || tablet.is_dropped() => {}
            Err(error) => self.note_failure(error),
        }
        drop(self);
        tablet.core.room.notify_waiters();
        tablet.core.bell.ring();
        result
    }

    fn merge(&mut self) -> Result<bool> {
        let tablet = Arc::clone(&self.tablet);
        let pick = &self.pick;
        tablet.core.check_healthy()?;
        let schema = tablet.compaction_schema()?;
        if pick.reason == Reason::Expired {
            return self.drop_expired();
        }
        if self.is_move() && !self.has_idle_tombstones() && !self.is_to_be_smaller() {
            return self.move_down().map(|()| true);
        }
        let job = tablet.begin_job();
        let times = tablet.begin_collecting();
        let view = tablet.view.load_full();
        if !self.inputs_unchanged(&view.version) {
            return Ok(false);
        }
        let is_level_zero = matches!(pick.reason, Reason::L0 | Reason::WithinL0);
        let space = &tablet.core.space;
        let rows = self.divide(&view)?;
        let left = space.left_beside(pick.input_bytes(), is_level_zero);
        // Held until the outputs are installed, which may name the same files.
        let values = tablet.value_inputs(&view, pick, rows.len(), left);
        let bytes = pick.input_bytes().saturating_add(values.moved_bytes());
        let room = Arc::new(space.promise(bytes, is_level_zero)?);
        let values = Arc::new(values);
        let above = files_above(&view.version, pick);
        let spec = CompactionSpec {
            schema: Arc::clone(&schema),
            snapshots: Vec::new(),
            beneath: Beneath::of(files_beneath(&view.version, pick), &|sst| view.properties(sst)),
            excised: Arc::default(),
            times: with_newer(times, &view, above, view.memtables().map(AsRef::as_ref)),
        };
        let files = self.open_files(&view)?;
        let parts = self.offer_parts(&view, spec, rows.clone(), &files, &values, room);
        // It has memtables, whose memory counts until nobody has them, and files that others free meanwhile.
        drop(view);
        let mut made = JobOutput::default();
        let installs = Installs { job: &job, schema: &schema, files: &files };
        let merged = self.merge_parts(&parts, &rows, &installs, &mut made);
        let mut failure = None;
        for left in parts.stop() {
            match left {
                Ok(output) => made.add(output),
                // The others were told to stop by the first that failed.
                Err(error) if failure.as_ref().is_none_or(Tablet::is_stop) => failure = Some(error),
                Err(_) => {}
            }
        }
        job::discard(&tablet.job_context(&values), &made);
        let is_done = merged.map_err(|error| {
            if Tablet::is_stop(&error) { failure.unwrap_or(error) } else { error }
        })?;
        if !is_done {
            return Ok(false);
        }
        let metrics = &tablet.core.metrics;
        EngineMetrics::add(&metrics.compactions, 1);
        if self.pick.reason == Reason::Reads {
            EngineMetrics::add(&metrics.compactions_for_reads, 1);
        }
        Ok(true)
    }

    /// The files of the inputs, until what they have is in others.
    fn open_files(&self, view: &View) -> Result<Arc<Mutex<OpenFiles>>> {
        let inputs = self.pick.inputs.iter();
        let open = inputs.map(|input| Ok((input.id, Arc::clone(view.file(input.id)?))));
        Ok(Arc::new(Mutex::new(open.collect::<Result<_>>()?)))
    }

    /// The merge of the inputs, divided by rows among this thread and those that are free.
    fn offer_parts(
        &self,
        view: &View,
        spec: CompactionSpec,
        rows: Vec<RowRange>,
        files: &Arc<Mutex<OpenFiles>>,
        values: &Arc<ValueInputs>,
        room: Arc<Promise>,
    ) -> Arc<Parts<JobOutput>> {
        let core = &self.tablet.core;
        let (options, style) = (&core.options, view.shape.style);
        let count = rows.len();
        let merge = Merge {
            tablet: Arc::clone(&self.tablet),
            files: Arc::clone(files),
            pick: self.pick.clone(),
            spec,
            cuts: CutRule::new(&view.version, options, style, self.pick.output_level),
            rows,
            values: Arc::clone(values),
            room,
            lends: self.lends,
        };
        let parts = Parts::new(count, move |part, stop| merge.run(part, stop));
        if count > 1 {
            let shared: Arc<dyn Shared> = Arc::clone(&parts) as _;
            core.offers.add(&shared);
            core.bell.ring();
        }
        parts
    }

    /// Merges the parts and installs each as soon as those before it are: level 0 becomes less while a large compaction goes on, space
    /// comes back, and what has been done is not done again after a failure or a restart. What `made` has when it returns is in no
    /// version. Within level 0 all comes to it at once: the files of one age are one run there. `false` where one must not be installed.
    fn merge_parts(
        &mut self,
        parts: &Parts<JobOutput>,
        rows: &[RowRange],
        installs: &Installs<'_>,
        made: &mut JobOutput,
    ) -> Result<bool> {
        for rows in rows {
            // One that was not begun is missing since another has failed.
            made.add(parts.next().unwrap_or_else(|| Err(job::stopped()))?);
            let is_last = rows.end.is_empty();
            if !is_last && self.pick.output_level == 0 {
                continue;
            }
            if !self.install(installs, std::mem::take(made), &rows.end)? {
                // The inputs stay, and are picked again.
                return Ok(false);
            }
            if !is_last {
                self.go_on_after(&rows.end, installs.files);
            }
        }
        Ok(true)
    }

    /// Puts what was made of the rows before `end`, and not installed yet, in the place of what the inputs have of them; all
    /// where that is empty. `false` where that must not be.
    fn install(&self, of: &Installs<'_>, output: JobOutput, end: &Bytes) -> Result<bool> {
        let tablet = &self.tablet;
        let metrics = &tablet.core.metrics;
        tablet.count_values(&output.values);
        let written: u64 = output.files.iter().map(|f| f.bytes).sum();
        EngineMetrics::add(&metrics.compaction_write_bytes, written);
        let in_place = self.pick.inputs.iter().all(|f| f.level == self.pick.output_level);
        if self.pick.reason == Reason::Collect {
            let now = tablet.core.env.clock.monotonic_micros();
            let mut picks = tablet.picks();
            if in_place {
                picks.collected.extend(output.files.iter().map(|f| (f.id, now)));
            } else {
                let latest = now.saturating_add(collect::eager_wait(COLLECT_EAGER_BYTES));
                let at = picks.eager_at.max(now).saturating_add(collect::eager_wait(written));
                picks.eager_at = at.min(latest);
            }
        }
        let opened = tablet.open_outputs(&output)?;
        let mut manifest = tablet.lock_manifest();
        // What is read-only stays as it is: the log may have failed since the part before.
        let healthy = tablet.core.check_healthy();
        let lacks = tablet.lacks_what_is_kept(of.schema, &output.stats);
        if lacks || healthy.is_err() {
            opened.discard(&tablet.core.store);
            return healthy.map(|()| false);
        }
        EngineMetrics::add(&metrics.cells_collected, output.stats.collected + output.stats.buried);
        let done = RowRange::new(Bytes::new(), end.clone());
        let add = of.job.cut_by_drops(output.files, &opened.ssts);
        let mut edit = VersionEdit { add, ..VersionEdit::default() };
        // Others may be gone, done already or dropped meanwhile.
        let inputs = self.pick.references();
        let is_input = |file: &SstRef| inputs.have(file);
        // Under the lock it has every file of the version.
        let view = tablet.view.load_full();
        let read = cut_out(&mut edit, &manifest.version(), &view, &done, is_input);
        EngineMetrics::add(&metrics.compaction_read_bytes, read);
        tablet.install(&mut manifest, edit, opened, 0)?;
        // Whoever waits for the manifest does not wait for those who pick, too.
        drop(manifest);
        // By other rules they say nothing.
        if tablet.compaction_schema().is_ok_and(|schema| schema == *of.schema) {
            tablet.picks().dues.by(of.schema).extend(output.dues);
        }
        Ok(true)
    }

    /// All rows before `end` are done: others may write there again, and files of which that was all may go.
    pub(super) fn go_on_after(&mut self, end: &Bytes, files: &Mutex<OpenFiles>) {
        let tablet = Arc::clone(&self.tablet);
        let rest = RowRange::new(end.clone(), Bytes::new());
        let inputs = self.pick.inputs.iter().filter(|file| file.overlaps(&rest));
        let needed: HashSet<FileId> = inputs.map(|file| file.id).collect();
        lock(files).retain(|id, _| needed.contains(id));
        let mut jobs = tablet.jobs();
        self.leave(&mut jobs);
        self.rows = self.rows.intersect(&rest);
        jobs.busy.outputs.push((self.pick.output_level, self.rows.clone()));
        drop(jobs);
        tablet.core.room.notify_waiters();
        tablet.core.bell.ring();
    }

    /// Lets others write where it may.
    fn leave(&self, jobs: &mut super::Jobs) {
        let mine = (self.pick.output_level, self.rows.clone());
        if let Some(at) = jobs.busy.outputs.iter().position(|output| *output == mine) {
            jobs.busy.outputs.swap_remove(at);
        }
        jobs.busy_changes += 1;
    }

    /// Ranges of rows with about as many bytes of the inputs each.
    fn divide(&self, view: &View) -> Result<Vec<RowRange>> {
        let options = &self.tablet.core.options;
        let parts_max = options.compaction_threads.saturating_mul(PARTS_PER_THREAD).max(1);
        let by_bytes = usize::try_from(self.pick.input_bytes() / PART_BYTES_MAX);
        let parts_max = parts_max.max(by_bytes.unwrap_or(usize::MAX));
        let bytes_min = options.target_file_bytes.saturating_mul(FILES_PER_PART);
        // Of a leveled tablet, what is merged within level 0 is a few memtables, or less than the base level may have.
        let small = view.shape.style == CompactionStyle::Leveled && self.pick.output_level == 0;
        if small || self.pick.input_bytes() < bytes_min.saturating_mul(2) {
            return Ok(vec![RowRange::all()]);
        }
        let mut steps = split::Steps::new(self.pick.input_bytes());
        for file in &self.pick.inputs {
            let reader = view.file(file.id)?.reader();
            let added = reader.and_then(|reader| steps.add_file(file, reader, 0));
            added.map_err(|error| error.of_sst(file.id))?;
        }
        Ok(split::divide(steps, parts_max, bytes_min))
    }

    /// Files in which everything is garbage go by an edit alone. Rows that were dropped since the pick only
    /// make them less, or have taken them away.
    fn drop_expired(&self) -> Result<bool> {
        let tablet = &self.tablet;
        let mut manifest = tablet.lock_manifest();
        let remove = self.still_there(&manifest.version());
        // Under the lock, so that every file that is still there is open in it.
        let view = tablet.view.load_full();
        let schema = tablet.compaction_schema()?;
        let now = tablet.core.expiry_micros();
        let mut collected = 0;
        for (_, id) in &remove {
            let properties = view.file(*id)?.reader()?.properties();
            if !collect::is_expired(properties, &schema, now) {
                // Since the pick, a rule was changed, or changes are kept.
                drop(manifest);
                tablet.picks().expired_at = tablet.core.env.clock.monotonic_micros()
                    + tablet.core.options.gc_interval_ms * 1000;
                return Ok(false);
            }
            collected += properties.cells;
        }
        let edit = VersionEdit { remove, ..VersionEdit::default() };
        tablet.install(&mut manifest, edit, Outputs::default(), 0)?;
        EngineMetrics::add(&tablet.core.metrics.cells_collected, collected);
        Ok(true)
    }

    /// Whether the version still has the inputs as they were picked. Rows that are dropped from here on
    /// are in the tablet's list of drops; those dropped between the pick and here show in the version,
    /// and then the pick is made anew.
    pub(super) fn inputs_unchanged(&self, version: &Version) -> bool {
        self.pick.inputs.iter().all(|input| version.has(input))
    }

    /// The inputs that the version still names: rows dropped in the meantime may have removed some.
    fn still_there(&self, version: &Version) -> Vec<(u8, FileId)> {
        let mut there: HashSet<(u8, FileId)> =
            version.ssts().map(|file| (file.level, file.id)).collect();
        let inputs = self.pick.inputs.iter().map(|input| (input.level, input.id));
        // Once each, however many references to the file there are.
        inputs.filter(|input| there.remove(input)).collect()
    }

    fn is_move(&self) -> bool {
        self.pick.is_move(&self.tablet.view.load().version)
    }

    /// Whether there are tombstones among the inputs with nothing below that they hide: rewritten, they go. On the last level
    /// nothing else would see to that until the files are old.
    fn has_idle_tombstones(&self) -> bool {
        let view = self.tablet.view.load_full();
        let tombstones =
            |file: &Arc<SstRef>| view.properties(file).is_some_and(|p| p.tombstones() > 0);
        self.pick.bottommost && self.pick.inputs.iter().any(tombstones)
    }

    /// Whether the input goes to the last level, whose files are compressed more tightly, and has something to compress: what level
    /// 0's compression has left of it, keys and all, is less than its values by a tenth. Moved, it would stay as it is until it is old.
    fn is_to_be_smaller(&self) -> bool {
        let view = self.tablet.view.load_full();
        let compresses = |file: &Arc<SstRef>| {
            let reader = view.file(file.id).and_then(|file| file.reader().cloned());
            reader.is_ok_and(|reader| {
                let properties = reader.properties();
                let left = reader.data_bytes().saturating_sub(properties.padding_bytes);
                left < properties.value_bytes / 10 * 9
            })
        };
        self.tablet.core.options.compression == CompressionPolicy::Tiered
            && self.pick.output_level == LAST_LEVEL
            && self.pick.inputs.iter().any(compresses)
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
        tablet.install(&mut manifest, edit, Outputs::default(), 0)
    }
}
