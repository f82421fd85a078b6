//! The commit log in files of a local directory.
//!
//! Opening replays every segment in order, cuts a torn tail off the last one, and starts a new
//! segment: no file is ever appended to after the process that created it. What can be cut is only what
//! was never acknowledged (see [`super::record`]); anything else that does not read is `Corruption`, and
//! the log does not open. Nor does it without a segment that it has had ([`super::present`]).
//!
//! Guarantees after opening: batches are written in the order of [`CommitLog::append`]; none is
//! reported as published before it is as durable as the [`crate::db::SyncMode`] promises; after a failed
//! write or sync none is, ever. (A segment that cannot be begun for now, and space, are waited for.)

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use super::batch::LogRecord;
use super::metrics::{LogFigures, LogMetrics};
use super::present::{self, Present};
use super::record::{ADVICE, Tail};
use super::segment::{
    Predecessor, SegmentReader, create_segment, list_segments, segment_name, was_never_begun,
};
use super::worker::{self, Queue, Shared, Worker};
use super::{
    Append, CommitLog, LogObserver, LogOptions, Owes, SegmentInfo, add_mark, closed, lock,
    poisoned, repair,
};
use crate::cell::{RowBatch, Seq};
use crate::db::SyncMode;
use crate::error::{Error, ErrorKind, Result};
use crate::io::{Env, Files, JoinHandle, Removed, Spawner};

/// Bytes replayed between two reports of progress: some ten reports a second on a slow disk.
const PROGRESS_BYTES: u64 = 8 << 20;

/// How far a replay is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplayProgress {
    /// Bytes of segments read.
    pub bytes_done: u64,
    /// Bytes of all segments.
    pub bytes_total: u64,
}

/// A torn tail that was cut off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TornTail {
    /// The segment's file.
    pub file: PathBuf,
    /// Where it was cut.
    pub offset: u64,
    /// Bytes that were cut.
    pub bytes: u64,
}

/// What a replay found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplaySummary {
    /// Batches.
    pub records: u64,
    /// Bytes of segments.
    pub bytes: u64,
    /// The greatest sequence in them; 0 for none.
    pub max_seq: Seq,
    /// The torn tail of the last segment, if it had one.
    pub torn: Option<TornTail>,
}

/// Segments whose names are gone and whose space waits to be given back, at most; more go as a whole. Each is an open file.
const GONE_MAX: usize = 16;
/// How long they wait at most: where little is written, the disk has time for a whole one.
const GONE_MICROS: u64 = 10_000_000;

/// A large segment whose name is gone.
struct Gone {
    /// What was being written then.
    written: u64,
    until_micros: u64,
    removed: Removed,
}

impl Gone {
    /// Whether its name does not come back: who begins a segment syncs the directory, and the second since then began later.
    fn is_durable(&self, written: u64) -> bool {
        written >= self.written + 2
    }
}

/// The log.
pub struct LocalLog {
    shared: Arc<Shared>,
    spawner: Arc<dyn Spawner>,
    worker: Arc<Mutex<Worker>>,
    /// Once the log is started.
    observer: OnceLock<Arc<dyn LogObserver>>,
    /// While it runs.
    thread: Mutex<Option<Box<dyn JoinHandle>>>,
    gone: Mutex<Vec<Gone>>,
}

impl LocalLog {
    /// Opens the log of a directory, creating it if needed. `on_record` gets (tablet, first sequence,
    /// batch) of every batch in the order of writing; its error ends the opening. Blocks.
    pub fn open(
        env: &Env,
        dir: &Path,
        options: LogOptions,
        on_record: &mut dyn FnMut(u64, Seq, RowBatch) -> Result<()>,
        on_progress: &mut dyn FnMut(ReplayProgress),
    ) -> Result<(Self, ReplaySummary)> {
        let files = env.files.as_ref();
        files.create_dir_all(dir)?;
        if let Some(parent) = dir.parent() {
            files.sync_dir(parent)?;
        }
        if let Some(id) = repair::interrupted(files, dir)? {
            return Err(Error::corruption(
                dir.join(segment_name(id)).display(),
                0,
                "a repair of this file was interrupted: run `tepui repair DIR` again",
            ));
        }
        if let Some((_, path)) = present::missing(files, dir)?.first() {
            return Err(present::is_missing(path));
        }
        let mut replay = Replay {
            files,
            dir,
            listed: present::listed(files, dir)?.unwrap_or_default(),
            summary: ReplaySummary::default(),
            segments: Vec::new(),
            previous: None,
            bytes_total: 0,
            bytes_reported: 0,
        };
        let found = replay.run(on_record, on_progress)?;
        let id = found.max(options.after_segment).checked_add(1).ok_or_else(|| {
            Error::corruption(
                dir.display(),
                0,
                "the last segment's number leaves none for the next",
            )
        })?;
        let writer = create_segment(files, dir, id, replay.previous, options.segment_bytes)?;
        let (summary, mut segments) = (replay.summary, replay.segments);
        let bytes = writer.len();
        segments.push(Arc::new(SegmentInfo::new(id, bytes)));
        let present = segments.iter().map(|segment| segment.id).collect();
        let present = Mutex::new(Present::begin(files, dir, present)?);
        let shared = Shared {
            files: Arc::clone(&env.files),
            clock: Arc::clone(&env.clock),
            dir: dir.to_owned(),
            options,
            queue: Mutex::new(Queue::default()),
            wake: Condvar::new(),
            turned: Condvar::new(),
            // What is left of an earlier process was synced when it was cut.
            synced: AtomicU64::new(summary.max_seq.max(options.durable_through)),
            segments: Mutex::new(segments),
            present,
            busy_since: AtomicU64::new(0),
            lacks_room: AtomicBool::new(false),
            metrics: LogMetrics::default(),
        };
        shared.metrics.segment();
        let shared = Arc::new(shared);
        let log = Self {
            worker: Arc::new(Mutex::new(Worker::new(Arc::clone(&shared), writer))),
            shared,
            spawner: Arc::clone(&env.spawner),
            observer: OnceLock::new(),
            thread: Mutex::new(None),
            gone: Mutex::default(),
        };
        Ok((log, summary))
    }

    /// The queue of a log that can do what is asked of it.
    fn lock_started(&self) -> Result<MutexGuard<'_, Queue>> {
        if self.observer.get().is_none() {
            return Err(Error::new(ErrorKind::InvalidArgument, "the log was not started"));
        }
        let queue = lock(&self.shared.queue);
        queue.check()?;
        Ok(queue)
    }

    /// Has the thread look at what was asked of it, and waits until that is done.
    fn wait_turned(
        &self,
        mut queue: MutexGuard<'_, Queue>,
        is_done: impl Fn(&Queue) -> bool,
    ) -> Result<()> {
        self.shared.wake.notify_one();
        while !is_done(&queue) {
            if let Some(error) = &queue.failed {
                return Err(poisoned(error));
            }
            queue = self.shared.turned.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }

    /// Makes the thread look at the clock again, for tests that move it by hand.
    #[cfg(test)]
    pub(super) fn poke(&self) {
        let _queue = lock(&self.shared.queue);
        self.shared.wake.notify_all();
    }
}

struct Replay<'a> {
    files: &'a dyn Files,
    dir: &'a Path,
    /// Segments that had an opening, durably.
    listed: BTreeSet<u64>,
    summary: ReplaySummary,
    segments: Vec<Arc<SegmentInfo>>,
    /// The last segment read, and its valid length.
    previous: Option<Predecessor>,
    bytes_total: u64,
    bytes_reported: u64,
}

impl Replay<'_> {
    /// Replays all segments and returns the greatest number among them; 0 for none.
    fn run(
        &mut self,
        on_record: &mut dyn FnMut(u64, Seq, RowBatch) -> Result<()>,
        on_progress: &mut dyn FnMut(ReplayProgress),
    ) -> Result<u64> {
        let found = list_segments(self.files, self.dir)?;
        self.bytes_total = found.iter().map(|(_, bytes)| bytes).sum();
        let last = found.last().map_or(0, |(id, _)| *id);
        for (id, _) in found {
            let tail = if id == last { Tail::MayBeTorn } else { Tail::Sealed };
            self.segment(id, tail, on_record, on_progress)?;
        }
        let (bytes_done, bytes_total) = (self.summary.bytes, self.bytes_total);
        on_progress(ReplayProgress { bytes_done, bytes_total });
        Ok(last)
    }

    fn segment(
        &mut self,
        id: u64,
        tail: Tail,
        on_record: &mut dyn FnMut(u64, Seq, RowBatch) -> Result<()>,
        on_progress: &mut dyn FnMut(ReplayProgress),
    ) -> Result<()> {
        let mut reader = SegmentReader::open(self.files, self.dir, id, tail)?;
        let start = self.summary.bytes;
        let mut tablets: HashMap<u64, Seq> = HashMap::new();
        let mut marks = Vec::new();
        let mut opened = false;
        while let Some(record) = reader.next_record()? {
            match record.record {
                LogRecord::Opening { previous, previous_bytes } if !opened => {
                    self.check_previous(previous, previous_bytes)?;
                    opened = true;
                }
                LogRecord::Batch { tablet, first_seq, batch, .. } if opened => {
                    let count = (batch.mutations.len() as u64).max(1);
                    let last_seq = first_seq.saturating_add(count - 1);
                    self.summary.records += 1;
                    self.summary.max_seq = self.summary.max_seq.max(last_seq);
                    let last = tablets.entry(tablet).or_default();
                    *last = last_seq.max(*last);
                    add_mark(&mut marks, first_seq, record.offset);
                    on_record(tablet, first_seq, batch)?;
                }
                LogRecord::Marker if opened => {}
                _ => {
                    let what = format!("a segment has one opening, and it comes first; {ADVICE}");
                    return Err(Error::corruption(reader.path().display(), record.offset, what));
                }
            }
            self.summary.bytes = start + reader.position();
            if self.summary.bytes - self.bytes_reported >= PROGRESS_BYTES {
                self.bytes_reported = self.summary.bytes;
                let bytes_total = self.bytes_total;
                on_progress(ReplayProgress { bytes_done: self.summary.bytes, bytes_total });
            }
        }
        let end = reader.end().expect("the reader has returned None");
        self.summary.bytes = start + reader.file_len();
        let was_begun = self.listed.contains(&id) || !was_never_begun(reader.file_len());
        if !opened && (tail == Tail::Sealed || was_begun) {
            let what =
                format!("the segment has no opening, which was durable before the rest; {ADVICE}");
            return Err(Error::corruption(reader.path().display(), end.valid_len, what));
        }
        if tail == Tail::MayBeTorn {
            if end.torn_bytes > 0 {
                self.summary.torn = Some(TornTail {
                    file: reader.path().to_owned(),
                    offset: end.valid_len,
                    bytes: end.torn_bytes,
                });
            }
            if opened {
                // Also where nothing is torn: this gives back the space that was reserved.
                self.files.truncate(reader.path(), end.valid_len)?;
            } else {
                // The crash came while it was created: nothing was ever acknowledged from it.
                self.files.remove(reader.path())?;
                return self.files.sync_dir(self.dir);
            }
        }
        let bytes = end.valid_len;
        self.previous = Some(Predecessor { id, bytes });
        self.segments.push(Arc::new(SegmentInfo { id, bytes, tablets, sealed: true, marks }));
        Ok(())
    }

    /// A segment that is still there must be as long as its successor says.
    fn check_previous(&self, id: u64, bytes: u64) -> Result<()> {
        match self.previous {
            Some(previous) if previous.id == id && previous.bytes != bytes => {
                Err(Error::corruption(
                    self.dir.join(segment_name(id)).display(),
                    previous.bytes,
                    format_args!(
                        "the file ends here, but had {bytes} bytes when it was sealed; {ADVICE}"
                    ),
                ))
            }
            _ => Ok(()),
        }
    }
}

impl LocalLog {
    /// The segment that is being written.
    fn written_segment(&self) -> u64 {
        lock(&self.shared.segments).last().map_or(0, |segment| segment.id)
    }
}

impl CommitLog for LocalLog {
    fn start(&self, observer: Arc<dyn LogObserver>) -> Result<()> {
        lock(&self.shared.queue).check()?;
        self.observer.set(Arc::clone(&observer)).map_err(|_| closed())?;
        let (worker, shared) = (Arc::clone(&self.worker), Arc::clone(&self.shared));
        let work = move || worker::run(&worker, &shared, observer.as_ref());
        let thread = self.spawner.spawn("tepui-log", Box::new(work))?;
        *lock(&self.thread) = Some(thread);
        Ok(())
    }

    fn append_all(&self, appends: &mut dyn Iterator<Item = Append>, alone: bool) -> Result<Owes> {
        let mut queue = lock(&self.shared.queue);
        queue.check()?;
        queue.entries.extend(appends);
        if alone && self.shared.options.sync != SyncMode::Always {
            return Ok(Owes::Write);
        }
        Ok(if queue.is_awaited() { Owes::Call } else { Owes::Nothing })
    }

    fn write_queued(&self, here: bool) {
        match self.observer.get() {
            Some(observer) if here => {
                worker::write_here(&self.worker, &self.shared, observer.as_ref());
            }
            _ => lock(&self.shared.queue).call(&self.shared.wake),
        }
    }

    fn rotate(&self) -> Result<()> {
        let mut queue = self.lock_started()?;
        queue.rotations_asked += 1;
        let mine = queue.rotations_asked;
        self.wait_turned(queue, |queue| queue.rotations_done >= mine)
    }

    fn sync(&self, through: Seq) -> Result<()> {
        let is_synced = || self.shared.synced.load(Ordering::Acquire) >= through;
        if is_synced() {
            return Ok(());
        }
        let mut queue = self.lock_started()?;
        // Who asks after the store of a sync is not told by it any more.
        if !is_synced() {
            queue.sync_asked = queue.sync_asked.max(through);
        }
        self.wait_turned(queue, |_| is_synced())
    }

    fn segments(&self) -> Vec<Arc<SegmentInfo>> {
        lock(&self.shared.segments).clone()
    }

    fn figures(&self) -> LogFigures {
        self.shared.metrics.figures()
    }

    fn bulk_in(&self, micros: u64) -> Option<u64> {
        self.shared.metrics.bulk_in(micros)
    }

    fn remove_segment(&self, id: u64) -> Result<()> {
        let find = |segments: &[Arc<SegmentInfo>]| segments.iter().position(|s| s.id == id);
        let path = self.shared.dir.join(segment_name(id));
        let find_sealed = |segments: &[Arc<SegmentInfo>]| {
            let at = find(segments).ok_or_else(|| {
                Error::new(ErrorKind::NotFound, format!("{}: no such segment", path.display()))
            })?;
            if !segments.get(at).is_some_and(|s| s.sealed) {
                let text = format!("{}: the segment is being written", path.display());
                return Err(Error::new(ErrorKind::InvalidArgument, text));
            }
            Ok(at)
        };
        find_sealed(&lock(&self.shared.segments))?;
        let Shared { files, dir, .. } = self.shared.as_ref();
        lock(&self.shared.present).remove(files.as_ref(), dir, id)?;
        let info = {
            let mut segments = lock(&self.shared.segments);
            let at = find_sealed(&segments)?;
            segments.remove(at)
        };
        // The name's removal is not synced here: where a crash brings the segment back, its batches are replayed, found to be flushed, and
        // it is removed again.
        let removed = files.remove_large(&path).inspect_err(|_| {
            let mut segments = lock(&self.shared.segments);
            segments.push(info);
            segments.sort_unstable_by_key(|s| s.id);
        })?;
        if removed.is_large() {
            let mut gone = lock(&self.gone);
            if gone.len() < GONE_MAX {
                // Where it was the last of the list, the next is not in it yet.
                let written = self.written_segment().max(id);
                let until_micros = self.shared.clock.monotonic_micros() + GONE_MICROS;
                gone.push(Gone { written, until_micros, removed });
            }
        }
        Ok(())
    }

    fn give_back(&self) -> Option<Duration> {
        let now = self.shared.clock.monotonic_micros();
        let written = self.written_segment();
        // While the log waits for space it begins no segment, by which their going would become durable, and they are the space.
        let at_once = self.lacks_room();
        let mut gone = lock(&self.gone);
        let over: Vec<_> = gone
            .extract_if(.., |gone| at_once || gone.is_durable(written) || gone.until_micros <= now)
            .collect();
        let next = gone.iter().map(|gone| gone.until_micros - now).min();
        drop(gone);
        for gone in over {
            // The others are closed uncut: a crash may bring them back, and then they are to be whole.
            if gone.is_durable(written) {
                gone.removed.give_back();
            }
        }
        next.map(Duration::from_micros)
    }

    fn held(&self) -> Option<String> {
        self.shared.held()
    }

    fn lacks_room(&self) -> bool {
        self.shared.lacks_room.load(Ordering::Relaxed)
    }

    fn hurry(&self) {
        lock(&self.shared.queue).hurried = true;
        self.shared.wake.notify_all();
    }

    fn close(&self) -> Result<()> {
        lock(&self.shared.queue).closing = true;
        self.shared.wake.notify_all();
        // A log that was never started has an empty segment, which is sealed as it is.
        if self.observer.get().is_none() {
            return lock(&self.worker).finish();
        }
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            thread.join();
        }
        match &lock(&self.shared.queue).failed {
            Some(error) => Err(poisoned(error)),
            None => Ok(()),
        }
    }
}

impl Drop for LocalLog {
    fn drop(&mut self) {
        // The error, if any, was logged and reported when it happened.
        let _ = self.close();
    }
}

impl fmt::Debug for LocalLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalLog").field("dir", &self.shared.dir).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
