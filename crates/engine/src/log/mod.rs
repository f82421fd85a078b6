//! The commit log: one for the whole server, shared by all tablets, so that one sync serves every
//! write that is waiting.
//!
//! * [`record`]: the framing of record files, and how a torn tail is told from damage.
//! * [`batch`]: what a record of the log says.
//! * [`hlc`]: the clock that numbers mutations.
//! * [`segment`]: the names and the reading of segments.
//! * [`local`]: the log in files of a directory: opening and replay, group commit in `worker`.
//! * `gather`: how long a group may grow before it is written.
//! * [`pipeline`]: the order of commits, and when they become visible.
//! * `metrics`: bytes, groups and syncs, counted.
//! * [`repair`]: what `tepui repair` does to a damaged log.

pub mod batch;
pub(crate) mod fuzzing;
mod gather;
pub mod hlc;
pub mod local;
mod metrics;
pub mod pipeline;
pub(crate) mod present;
pub mod record;
pub mod repair;
pub mod segment;
mod worker;

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

pub use batch::{
    BatchHead, EncodedBatch, LogRecord, Source, batch_head, decode_batch, decode_record,
    encode_batch, encode_batch_of,
};
pub use hlc::Hlc;
pub use local::{LocalLog, ReplayProgress, ReplaySummary, TornTail};
pub use metrics::{LogFigures, SYNC_BUCKETS_MICROS};
pub use pipeline::{Commit, CommitDone, CommitPipeline, LOG_QUEUE_BYTES_MAX, Permit};

use crate::cell::Seq;
use crate::db::SyncMode;
use crate::error::{Error, ErrorKind, Result};

/// Bytes of a segment before the log goes on to the next. Smaller means more files and more syncs of
/// directories; larger keeps more of the log alive for one tablet that has not flushed, and makes
/// replay after a crash longer.
pub const LOG_SEGMENT_BYTES: u64 = 64 << 20;

/// Zeros that are laid out ahead at a time, for groups that are small. Fewer, and more syncs have a new length to
/// write, which costs the file system a transaction of its journal; more, and the sync that writes the zeros
/// takes longer than the others.
pub const LAY_OUT_BYTES: u64 = 256 << 10;

/// Options of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogOptions {
    /// When what was written is synced.
    pub sync: SyncMode,
    /// Bytes of a segment; one larger batch makes one larger segment.
    pub segment_bytes: u64,
    /// Zeros that are written ahead at a time while groups are small and each is synced; 0 for none.
    pub lay_out_bytes: u64,
    /// The number of a segment that was here once: new ones get greater numbers.
    pub after_segment: u64,
    /// Sequences up to this one were in segments that are gone, and are durable elsewhere: who asks for them to be synced need not wait.
    pub durable_through: Seq,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self {
            sync: SyncMode::Always,
            segment_bytes: LOG_SEGMENT_BYTES,
            lay_out_bytes: LAY_OUT_BYTES,
            after_segment: 0,
            durable_through: 0,
        }
    }
}

/// A batch on its way into the log.
#[derive(Debug)]
pub struct Append {
    /// The batch, with its first sequence.
    pub batch: EncodedBatch,
    /// Mutations in it.
    pub mutations: u32,
    /// The sequence of its last mutation.
    pub last_seq: Seq,
    /// Its share of the queue's bytes, given back when it is published.
    pub permit: Option<Permit>,
}

/// Who wants to know how far the log is. Called by who writes it, its thread or who called [`CommitLog::write_queued`];
/// not to call back into it.
pub trait LogObserver: Send + Sync + Debug {
    /// Every batch up to this sequence is as durable as the log's [`SyncMode`] promises.
    fn published(&self, through: Seq);
    /// The log waits for space on the disk, from now on and until somebody makes some.
    fn lacks_room(&self, error: &Error);
    /// The log failed, for good: nothing that is not published yet will be.
    fn failed(&self, error: &Error);
}

/// A part of the log that is removed as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentInfo {
    /// Its number: later segments have greater ones.
    pub id: u64,
    /// Its bytes.
    pub bytes: u64,
    /// For every tablet with batches in it, the last sequence of those. Complete once it is sealed.
    pub tablets: HashMap<u64, Seq>,
    /// Whether it is complete; only then may it be removed.
    pub sealed: bool,
    /// Where to begin to read for a sequence: a batch about every [`MARK_BYTES`], by ascending sequence.
    pub marks: Vec<Mark>,
}

/// Bytes between two [marks](SegmentInfo::marks): at most that much is read in vain by who looks for a sequence. Fewer
/// would make the list longer that is copied of the segment being written, where its writer finds somebody looking at it.
pub const MARK_BYTES: u64 = 1 << 20;

/// A batch of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// Its first sequence.
    pub first_seq: Seq,
    /// Where its record starts.
    pub offset: u64,
}

impl SegmentInfo {
    /// A segment that is about to be filled.
    fn new(id: u64, bytes: u64) -> Self {
        Self { id, bytes, tablets: HashMap::new(), sealed: false, marks: Vec::new() }
    }

    /// The greatest sequence in it; 0 where there is none.
    pub(crate) fn last_seq(&self) -> Seq {
        self.tablets.values().copied().max().unwrap_or(0)
    }

    /// Where to begin to read what comes after `seq`; `None` for its beginning.
    pub(crate) fn offset_after(&self, seq: Seq) -> Option<u64> {
        let at = self.marks.partition_point(|mark| mark.first_seq <= seq);
        self.marks.get(at.checked_sub(1)?).map(|mark| mark.offset)
    }
}

/// Adds a batch to the marks where it is far enough from the last.
fn add_mark(marks: &mut Vec<Mark>, first_seq: Seq, offset: u64) {
    if marks.last().is_none_or(|last| offset >= last.offset + MARK_BYTES) {
        marks.push(Mark { first_seq, offset });
    }
}

/// What is left to be done by who queued batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owes {
    /// They will be written.
    Nothing,
    /// [`CommitLog::write_queued`], here: nobody could do it sooner.
    Write,
    /// [`CommitLog::write_queued`], not here, soon: best when what else its thread has to queue is queued, so that one group has it all.
    Call,
}

/// A commit log. An implementation is opened with a replay of what it holds (in the order in which it
/// was appended); this is what it does from then on.
pub trait CommitLog: Send + Sync + Debug {
    /// Starts to write. Called once, before the first [`Self::append`].
    fn start(&self, observer: Arc<dyn LogObserver>) -> Result<()>;
    /// Queues batches, next to each other; never blocks for I/O. Batches are written in the order of the calls, and
    /// reported to the observer. Fails, and takes none, when the log has failed or is closed. `alone`: nothing is queued
    /// or being written besides. Until the caller has done what it [`Owes`], they may lie.
    fn append_all(&self, appends: &mut dyn Iterator<Item = Append>, alone: bool) -> Result<Owes>;
    /// Queues one batch, to be written soon.
    fn append(&self, append: Append) -> Result<()> {
        let owes = self.append_all(&mut std::iter::once(append), false)?;
        if owes != Owes::Nothing {
            self.write_queued(false);
        }
        Ok(())
    }
    /// Sees to it that what is queued is written: `here`, before it returns, where that is a matter of microseconds.
    /// Otherwise soon. Called without locks that the observer takes.
    fn write_queued(&self, here: bool);
    /// Seals the segment being written, if it holds a batch, and goes on in a new one. Blocks.
    fn rotate(&self) -> Result<()>;
    /// Makes durable what was published up to a sequence, whatever the [`SyncMode`]; costs nothing where it is. Blocks.
    fn sync(&self, through: Seq) -> Result<()>;
    /// The segments, oldest first; the last is the one being written.
    fn segments(&self) -> Vec<Arc<SegmentInfo>>;
    /// Counters since it was opened.
    fn figures(&self) -> LogFigures;
    /// Bytes of a large group that small writes wait so long for, and two syncs more, as groups were of late; `None` where that is not
    /// known, or nobody has written little yet.
    fn bulk_in(&self, micros: u64) -> Option<u64>;
    /// Removes a sealed segment whose batches nobody needs; [`Self::give_back`] sees to its space. Blocks.
    fn remove_segment(&self, id: u64) -> Result<()>;
    /// Gives back the space of segments that were removed, piece by piece where that is due. How long others wait at most, if there are any.
    /// Blocks.
    fn give_back(&self) -> Option<Duration>;
    /// Why batches wait, where they have for a while and the log goes on by itself once it can.
    fn held(&self) -> Option<String>;
    /// Whether they wait for want of space: until there is some, more would only wait with them.
    fn lacks_room(&self) -> bool;
    /// The log is about to be closed: where it waits for what may never come, it fails instead.
    fn hurry(&self);
    /// Writes and syncs what is queued, seals the log and stops. Blocks. Later appends fail.
    fn close(&self) -> Result<()>;
}

/// What everybody hears after the log has failed with `error`: `ReadOnly`, of a full disk too, since room alone does not help any more.
fn poisoned(error: &Error) -> Error {
    let reason = error.message();
    let text = format!("writes are refused until a restart: the commit log failed: {reason}");
    Error::new(ErrorKind::ReadOnly, text)
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the commit log is closed")
}

/// Locks a mutex. The states under the log's locks are valid at every step, and a log thread that
/// panics poisons the log itself, so a poisoned mutex adds nothing.
pub(crate) fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod testing;
