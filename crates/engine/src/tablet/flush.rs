//! Flushing: waiting memtables become one L0 SST.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError, TryLockError};

use crate::background::SMALL_FLUSH_BYTES;
use crate::cell::{RowRange, Seq};
use crate::compaction::cuts::CutRule;
use crate::compaction::job::{self, JobContext, JobOutput};
use crate::compaction::pace::Urgency;
use crate::compaction::separate::ValueInputs;
use crate::compaction::{Beneath, CompactionSpec};
use crate::core::{Core, EngineMetrics};
use crate::cursor::Cursor;
use crate::db::Health;
use crate::error::{Error, ErrorKind, Result};
use crate::manifest::VersionEdit;
use crate::memtable::Memtable;
use crate::setbacks::Work;
use crate::store::Outputs;

use super::Tablet;
use super::deletions::with_newer;

/// How long the background leaves a flush alone that failed for want of room, of open files or of memory: at first, and at
/// most after twice as long each time, in microseconds. A try may write a memtable before it fails; a longer pause keeps
/// writers waiting that are refused for memory.
const RETRY_MICROS: u64 = 1_000_000;
const RETRY_MICROS_MAX: u64 = 30_000_000;

/// How often in a row a flush may find what it has written not to be there as it was written, until the engine is read-only. One bad
/// spot is not met again, since each try writes new files; of a disk that forgets three of three, writes are better refused than
/// acknowledged.
const UNREAD_MAX: u32 = 3;

/// When to try again a flush that failed.
#[derive(Debug, Default)]
pub(super) struct Retry {
    /// The pause after the last failure, in microseconds; 0 where the last flush was done.
    pause_micros: u64,
    /// Monotonic micros.
    at_micros: u64,
    /// Free bytes of the disk after a failure for want of room.
    free_bytes: Option<u64>,
    /// How often its new files did not read back since the last one that was done.
    unread: u32,
}

/// More free bytes than after the last failure for want of room with which a flush is tried again at once: who waits for one that an operator
/// has made room for is refused meanwhile. What others free by the by is less, or costs a try.
const MORE_ROOM_BYTES: u64 = 1 << 20;

/// While this lives, a thread is in the middle of a merge and has its buffers.
pub(super) struct Merging<'a>(&'a Core);

impl<'a> Merging<'a> {
    pub(super) fn begin(core: &'a Core) -> Self {
        core.merges.fetch_add(1, Ordering::Relaxed);
        Self(core)
    }
}

impl Drop for Merging<'_> {
    fn drop(&mut self) {
        self.0.merges.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Tablet {
    /// Moves everything that was written before the call from memory to SSTs, and waits for it.
    pub async fn flush(&self) -> Result<()> {
        let target = self.rotate_now();
        self.core.bell.ring();
        let is_done = || {
            let view = self.view.load();
            target
                .as_ref()
                .is_none_or(|target| !view.waiting.iter().any(|m| Arc::ptr_eq(m, target)))
        };
        self.until_flushed(is_done).await
    }

    /// Waits until a memtable is in SSTs that was sent to be, and all before it; or the tablet is dropped.
    pub(super) async fn until_flushed(&self, is_done: impl Fn() -> bool) -> Result<()> {
        // Nobody flushes it.
        if !is_done() && self.schema.load().is_none() {
            return Err(Self::no_schema());
        }
        if !self.core.background.load(Ordering::Acquire) {
            return self.flush_waiting();
        }
        loop {
            // Room is made by every flush, and rung for when the engine fails or closes.
            let room = self.core.room.notified();
            if self.is_dropped() || is_done() {
                return Ok(());
            }
            self.core.check_writable()?;
            room.await;
        }
    }

    /// Makes the active memtable wait for its flush; returns the newest one that waits.
    pub(crate) fn rotate_now(&self) -> Option<Arc<Memtable>> {
        let _writer = self.lock_writer();
        self.rotate(&self.view.load());
        self.view.load().waiting.last().cloned()
    }

    /// Makes the active memtable wait for its flush if it has a record up to `seq`. Asked again while the
    /// flush is under way, it does not send what was written since.
    pub(crate) fn rotate_through(&self, seq: Seq) {
        let _writer = self.lock_writer();
        let view = self.view.load();
        if view.active.seq_range().is_some_and(|(first, _)| first <= seq) {
            self.rotate(&view);
        }
    }

    /// Whether there is something to flush. A tablet without a schema is not flushed: what its families
    /// are is not known yet.
    pub(crate) fn has_waiting(&self) -> bool {
        self.schema.load().is_some() && !self.is_sealed() && !self.view.load().waiting.is_empty()
    }

    /// Bytes of the memtable that takes writes.
    pub(crate) fn active_bytes(&self) -> u64 {
        let view = self.view.load();
        if view.active.is_empty() { 0 } else { view.active.held_bytes() }
    }

    /// Bytes of the memtables that wait for their flush.
    pub(crate) fn waiting_bytes(&self) -> u64 {
        self.view.load().waiting.iter().map(|memtable| memtable.held_bytes()).sum()
    }

    /// The first sequence that waits for its flush.
    pub(crate) fn waiting_since(&self) -> Option<Seq> {
        self.view.load().waiting.first()?.seq_range().map(|(first, _)| first)
    }

    /// Flushes the memtables that wait. Blocks. A failure makes the engine read-only, since memory can
    /// no longer be given back; but for one that may pass (no room on the disk, too many open files, new files that do not read
    /// back), after which the memtable waits on and nothing is left of the flush.
    pub(crate) fn flush_waiting(&self) -> Result<()> {
        while self.flush_one(&mut self.lock_flushing())? {}
        Ok(())
    }

    fn lock_flushing(&self) -> MutexGuard<'_, Retry> {
        self.flushing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same for one memtable of so many bytes at most, in the background: what failed and may pass is left alone for a while, and what another
    /// thread flushes altogether: `None`. Whether one was flushed.
    pub(crate) fn flush_when_due(&self, bytes_max: u64) -> Result<Option<bool>> {
        let is_larger =
            || self.view.load().waiting.first().is_some_and(|it| it.held_bytes() > bytes_max);
        if is_larger() {
            return Ok(Some(false));
        }
        let mut retry = match self.flushing.try_lock() {
            Ok(retry) => retry,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(None),
        };
        let is_early =
            self.core.env.clock.monotonic_micros() < retry.at_micros && !self.has_more_room(&retry);
        if is_early || is_larger() || self.waits_with_log() {
            return Ok(Some(false));
        }
        match self.flush_one(&mut retry) {
            Err(_) if self.core.check_healthy().is_ok() => Ok(Some(false)),
            result => result.map(Some),
        }
    }

    /// Whether there is room for a flush by now which lacked it.
    fn has_more_room(&self, retry: &Retry) -> bool {
        let before = retry.free_bytes;
        before
            .is_some_and(|before| self.free_bytes() >= Some(before.saturating_add(MORE_ROOM_BYTES)))
    }

    /// Free bytes of the disk, where somebody counts them.
    fn free_bytes(&self) -> Option<u64> {
        let space = self.core.env.files.disk_space(&self.core.layout.ssts());
        space.ok().flatten().map(|space| space.free)
    }

    /// Whether its oldest memtable has a write for which the log waits for room.
    fn waits_with_log(&self) -> bool {
        let visible = self.core.pipeline.visible();
        let is_beyond =
            |memtable: &Arc<Memtable>| memtable.seq_range().is_some_and(|(_, last)| last > visible);
        self.core.lacks_room() && self.view.load().waiting.first().is_some_and(is_beyond)
    }

    /// Flushes the oldest memtable that waits; false where there is none.
    fn flush_one(&self, retry: &mut Retry) -> Result<bool> {
        if !self.has_waiting() || self.is_dropped() {
            return Ok(false);
        }
        self.core.check_healthy()?;
        let unread = retry.unread;
        let result = self.flush_oldest(retry);
        self.core.room.notify_waiters();
        match result {
            Ok(()) => {
                *retry = Retry::default();
                self.core.setbacks.done(Work::Flush, self.id);
                self.core.bell.ring();
                Ok(true)
            }
            Err(_) if self.is_dropped() => Ok(false),
            Err(error) => {
                let is_unread = retry.unread > unread && retry.unread < UNREAD_MAX;
                if is_unread || self.may_pass(&error) {
                    self.flush_again(retry, &error);
                } else {
                    self.core.fail(&error);
                }
                Err(error)
            }
        }
    }

    /// Whether a flush that failed so has left nothing, and may be done later: what it writes before its edit are new files,
    /// an edit for which there is no room is not begun, and one that failed with an outcome that is not known has made the
    /// engine read-only.
    fn may_pass(&self, error: &Error) -> bool {
        error.is_shortage() && !matches!(self.core.health(), Health::ReadOnly(_))
    }

    fn flush_again(&self, retry: &mut Retry, error: &Error) {
        retry.pause_micros = (retry.pause_micros * 2).clamp(RETRY_MICROS, RETRY_MICROS_MAX);
        retry.at_micros = self.core.env.clock.monotonic_micros() + retry.pause_micros;
        let lacks_room = error.kind() == ErrorKind::NoSpace;
        retry.free_bytes = lacks_room.then(|| self.free_bytes()).flatten();
        EngineMetrics::add(&self.core.metrics.flush_retries, 1);
        self.flush_retries.fetch_add(1, Ordering::Relaxed);
        self.note_setback(Work::Flush, error);
        let now = self.core.env.clock.monotonic_micros();
        if let Some(left_out) = self.core.said_of_flushes.of(error, now) {
            tracing::error!(
                tablet = self.id.0,
                %error,
                left_out,
                "a flush failed and is tried again; writes go on until memory is full"
            );
        }
        // Who waits for the room that it makes is told why there is none.
        self.core.room.notify_waiters();
    }

    fn flush_oldest(&self, retry: &mut Retry) -> Result<()> {
        let view = self.view.load_full();
        let Some(memtable) = view.waiting.first() else { return Ok(()) };
        let last_seq = memtable.seq_range().map_or(0, |(_, last)| last);
        // Only what is visible goes into files: then a compaction may let the newest record of a cell hide the others, since
        // every reader sees it. Where the log waits for space, it may be other flushes that make some.
        pollster::block_on(self.core.pipeline.wait_visible_unless_full(last_seq))?;
        // And only what is durable in the log, whenever that is synced: else a crash could lose of the log what a file has, and
        // change streams read the log. So what it loses is the end of history, the same of all tablets.
        self.core.pipeline.log().sync(last_seq)?;
        let job = self.begin_job();
        // Through the lock: a drop of rows that took its sequence while this memtable took writes may be
        // making its edit still, and afterwards nothing would tell what it covers from what came later.
        // The drops that begin from here on are newer than the whole memtable and cut the output.
        let version = self.lock_manifest().version();
        let schema = self.compaction_schema()?;
        let times = self.begin_collecting();
        let newer = self.view.load_full();
        let memtables = newer.memtables().filter(|other| !Arc::ptr_eq(other, memtable));
        let times = with_newer(times, &newer, [], memtables.map(AsRef::as_ref));
        drop(newer);
        let spec = CompactionSpec {
            schema: Arc::clone(&schema),
            snapshots: Vec::new(),
            beneath: Beneath::of(version.ssts().map(AsRef::as_ref), &|sst| view.properties(sst)),
            excised: version.excised().into(),
            times,
        };
        let cursors: Vec<Box<dyn Cursor>> = vec![Box::new(memtable.cursor(RowRange::all()))];
        let pace =
            |bytes, _: &mut dyn FnMut()| self.core.keep_pace(bytes, Urgency::Flush, &|| true);
        let values = ValueInputs::none();
        let context = JobContext { pace: &pace, ..self.job_context(&values) };
        let cuts = CutRule::new(&version, &self.core.options, view.shape.style, 0);
        let is_small = memtable.held_bytes() <= SMALL_FLUSH_BYTES;
        let merging = (!is_small).then(|| Merging::begin(&self.core));
        let output = self.run_job(&context, cursors, spec, 0, &cuts)?;
        drop(merging);
        self.count_values(&output.values);
        let written: u64 = output.files.iter().map(|f| f.bytes).sum();
        EngineMetrics::add(&self.core.metrics.flush_bytes, written);
        // They are synced, and no edit was begun: nothing that counts was touched.
        let opened = self.open_outputs(&output).inspect_err(|error| {
            retry.unread += u32::from(!error.is_shortage());
        })?;
        let mut manifest = self.lock_manifest();
        if self.lacks_what_is_kept(&schema, &output.stats) {
            // The memtable waits still, and is flushed again.
            opened.discard(&self.core.store);
            return Ok(());
        }
        let edit = VersionEdit {
            add: job.cut_by_drops(output.files, &opened.ssts),
            flushed_seq: Some(last_seq),
            last_seq: Some(last_seq),
            ..VersionEdit::default()
        };
        self.install(&mut manifest, edit, opened, 1)?;
        self.moments.flushed(memtable, &self.view.load());
        EngineMetrics::add(&self.core.metrics.flushes, 1);
        let collected = output.stats.collected + output.stats.buried;
        EngineMetrics::add(&self.core.metrics.cells_collected, collected);
        // Whoever waits for the manifest does not wait for those who pick, too.
        drop(manifest);
        // By other rules they say nothing.
        if self.compaction_schema().is_ok_and(|now| now == schema) {
            self.picks().dues.by(&schema).extend(output.dues);
        }
        Ok(())
    }

    /// Runs a job and makes the names of what it made durable. Of a failure nothing is left.
    pub(super) fn run_job(
        &self,
        context: &JobContext<'_>,
        cursors: Vec<Box<dyn Cursor>>,
        spec: CompactionSpec,
        output_level: u8,
        cuts: &CutRule,
    ) -> Result<JobOutput> {
        let output = job::run(context, cursors, spec, output_level, cuts)?;
        let has_ssts = !output.files.is_empty();
        let has_values = !output.values.files.is_empty();
        let layout = &self.core.layout;
        let dirs = [(has_ssts, layout.ssts()), (has_values, layout.values())];
        for (_, dir) in dirs.iter().filter(|(is_written, _)| *is_written) {
            self.core.sync_dir(dir).inspect_err(|_| job::discard(context, &output))?;
        }
        Ok(output)
    }

    pub(super) fn job_context<'a>(&'a self, values: &'a ValueInputs) -> JobContext<'a> {
        JobContext {
            env: &self.core.env,
            layout: &self.core.layout,
            store: &self.core.store,
            options: &self.core.options,
            hlc: self.core.pipeline.hlc(),
            values,
            stop: &|| false,
            pace: &|_, _| (),
        }
    }

    /// Opens what a job has written, and reads the indexes and filters that are to be pinned, before locks are taken to install
    /// it.
    pub(super) fn open_outputs(&self, output: &JobOutput) -> Result<Outputs> {
        let shape = Arc::clone(&self.view.load().shape);
        let pins = |level| shape.at_rest.pins(level, self.core.options.pinned_levels);
        self.core.store.open_outputs(&output.files, &output.values.files, pins)
    }

    /// The error of a job that was told to stop.
    pub(super) fn is_stop(error: &Error) -> bool {
        error.kind() == ErrorKind::Closed
    }
}
