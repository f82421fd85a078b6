//! The history of tablets with a change stream: which batches changed them, in the order of commits.
//!
//! ```text
//!                      ┌──► tail: the newest batches, in memory            read by who keeps up
//! commit ──► log ──────┤
//!                      └──► segment of the log ──► change file ──► gone    read by who is behind
//!                              given back when     after the retention
//!                              every tablet has    period
//!                              flushed it
//! ```
//!
//! Writes do nothing for it but copy a batch into the [tail](tail): the log that makes them durable is the history. When
//! a segment of the log is about to be removed, the batches of tablets that keep their changes are copied out of it into a
//! [change file](file), which is synced before the segment goes ([`archive`]). So the history costs no sync of a write's, and
//! what is kept for days holds nothing of tables that want none.
//!
//! A [`ChangeReader`] reads a tablet's changes after a position, which is a sequence: it survives restarts, and the
//! log, the files and the tail are all ordered by it. It sees what readers of the table see: batches up to the
//! visible sequence. It stands at none that the log does not have: such a one could come again after a crash. Files go when everything in them is older than its tablet's retention period, though older ones stay; or, the oldest first and with a
//! warning, when those that are left have more than [`change_log_bytes_max`](crate::options::EngineOptions) bytes.
//! Whatever goes, by its age too, is remembered first as the [horizon](horizon) of its tablets, in the names of empty files beside them: the
//! wall clock may be wrong, or set right later. A reader whose position is below is told so, and does not miss anything in silence.
//! Nor does it where a file is lost: a [list](present) beside them tells which there are to be.

mod archive;
mod expire;
pub mod file;
pub(crate) mod horizon;
pub(crate) mod present;
mod reader;
mod tail;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{Either, select};

use crate::cell::{Mutation, RowBatch, SEQ_COUNTER_BITS, SEQ_MAX, Seq};
use crate::core::Core;
use crate::error::{ErrorKind, Result};
use crate::io::Files;
use crate::log::{encode_batch, lock};
use crate::tablet::{Tablet, TabletId};
use expire::Expiry;
use file::{ChangeFile, TabletLists};
use horizon::Horizons;
use present::{List, Listed};
use tail::Tail;

pub use crate::log::Source;
pub(crate) use horizon::horizon_name;
pub use reader::ChangeReader;

/// Bytes of the tails of all tablets together. A reader that keeps up is behind by what a sync takes, so a few
/// megabytes are enough; with less, readers go to the disk as soon as one of them is slow.
pub const CHANGE_TAIL_BYTES_MAX: u64 = 8 << 20;

/// How old the last visible sequence of the log may be before a [fence](Tablet::fence_changes) writes a new one, in milliseconds. All
/// readers share it, so an idle server writes a few bytes of log a second at most, for as long as somebody reads changes.
const FENCE_AGE_MS: u64 = 1_000;

/// How long a file stays after the retention period, in microseconds: a reader that was let in at the end of the period finds it.
pub const GRACE_MICROS: u64 = 600 * 1_000_000;

/// How long a segment that could not be read, or any after another failure, is not archived, in microseconds. A damaged one is
/// read up to its damage each time, and a full disk is not empty a second later.
const ARCHIVE_WAIT_MICROS: u64 = 30 * 1_000_000;

/// The tablet that a fence's batch names. No tablet has the number.
const NO_TABLET: u64 = 0;

/// A batch that was committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The sequence of its first mutation.
    pub first_seq: Seq,
    /// The sequence of its last mutation: the position of a reader that has seen it.
    pub last_seq: Seq,
    /// Who asked for it.
    pub source: Source,
    /// What was applied.
    pub batch: RowBatch,
}

impl Change {
    /// A batch that begins at `first_seq`.
    pub(crate) fn new(first_seq: Seq, source: Source, batch: RowBatch) -> Self {
        let count = (batch.mutations.len() as u64).max(1);
        Self { first_seq, last_seq: first_seq.saturating_add(count - 1), source, batch }
    }

    /// Bytes of memory that it takes, roughly: its keys and values, and what holds them.
    pub fn bytes(&self) -> usize {
        let payload = |mutation: &Mutation| match mutation {
            Mutation::Put { qualifier, value: bytes, .. }
            | Mutation::Merge { qualifier, operand: bytes, .. } => qualifier.len() + bytes.len(),
            Mutation::DeleteCells { qualifier, .. } => qualifier.len(),
            Mutation::DeleteFamily { .. } | Mutation::DeleteRow => 0,
        };
        let payload: usize = self.batch.mutations.iter().map(payload).sum();
        self.batch.row.len() + payload + Self::overhead_bytes(self.batch.mutations.len())
    }

    /// What a change of so many mutations takes beside its keys and values.
    fn overhead_bytes(mutations: usize) -> usize {
        size_of::<Self>() + mutations.saturating_mul(size_of::<Mutation>())
    }
}

/// When a sequence was handed out: microseconds since 1970, whole milliseconds.
pub fn commit_micros(seq: Seq) -> i64 {
    i64::try_from((seq >> SEQ_COUNTER_BITS).saturating_mul(1_000)).unwrap_or(i64::MAX)
}

/// The position before everything that was committed in the millisecond of a time, or later.
pub fn position_before(micros: i64) -> Seq {
    let millis = u64::try_from(micros.div_euclid(1_000)).unwrap_or(0);
    (millis.min(SEQ_MAX >> SEQ_COUNTER_BITS) << SEQ_COUNTER_BITS).saturating_sub(1)
}

/// Figures of the history of all tablets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChangeFigures {
    /// Change files.
    pub files: u64,
    /// Their bytes.
    pub file_bytes: u64,
    /// Bytes of the tails.
    pub tail_bytes: u64,
    /// Bytes of change files that were written.
    pub written_bytes: u64,
    /// Bytes of change files that were removed before their time, for want of room.
    pub dropped_bytes: u64,
}

/// The history of all tablets of an engine.
#[derive(Debug)]
pub(crate) struct ChangeLog {
    dir: PathBuf,
    bytes_max: u64,
    tail: Tail,
    /// By ascending segment, and so by ascending sequence.
    files: Mutex<Vec<Arc<ChangeFile>>>,
    lists: TabletLists,
    /// Of positions below, not all changes are here any more.
    horizons: Horizons,
    list: Mutex<List>,
    written_bytes: AtomicU64,
    dropped_bytes: AtomicU64,
    expiry: Mutex<Expiry>,
    /// When to archive again after a failure (monotonic micros).
    archive_at: AtomicU64,
    /// When to try again the segments that could not be read (monotonic micros): the others do not wait for them.
    unreadable: Mutex<HashMap<u64, u64>>,
    fencing: Mutex<()>,
}

impl ChangeLog {
    /// Opens the history in a directory, creating it if needed; removes what was never completed, as far as it can be. `Corruption` where a file is missing,
    /// `InvalidArgument` where a newer version wrote one: nothing is removed then. Blocks.
    pub(crate) fn open(files: &dyn Files, dir: &Path, bytes_max: u64) -> Result<Self> {
        files.create_dir_all(dir)?;
        if let Some(missing) = present::missing(files, dir)?.first() {
            return Err(missing.error());
        }
        let (found, unfinished) = file::list(files, dir)?;
        file::check_versions(files, dir, &found)?;
        for path in unfinished {
            remove_or_tell(files, &path);
        }
        // A process that was killed may have named files whose names are not durable: the segments that they are copies of are about to go.
        files.sync_dir(dir)?;
        Ok(Self {
            dir: dir.to_owned(),
            bytes_max,
            tail: Tail::new(CHANGE_TAIL_BYTES_MAX),
            files: Mutex::new(found.into_iter().map(Arc::new).collect()),
            lists: TabletLists::default(),
            horizons: Horizons::open(files, dir)?,
            list: Mutex::default(),
            written_bytes: AtomicU64::new(0),
            dropped_bytes: AtomicU64::new(0),
            expiry: Mutex::default(),
            archive_at: AtomicU64::new(0),
            unreadable: Mutex::default(),
            fencing: Mutex::new(()),
        })
    }

    /// Lists what there is, so that it is missed where it is not. Blocks.
    pub(crate) fn keep_list(&self, core: &Core) -> Result<()> {
        self.write_list(core, &mut lock(&self.list), &HashSet::new())
    }

    /// Takes the files of these segments out of the list and returns them: they are to be removed. Blocks.
    fn unlist(&self, core: &Core, segments: &HashSet<u64>) -> Result<Vec<Arc<ChangeFile>>> {
        // Locked meanwhile, so that nobody lists them again.
        let mut list = lock(&self.list);
        self.write_list(core, &mut list, segments)?;
        Ok(self.files().extract_if(.., |file| segments.contains(&file.segment)).collect())
    }

    /// Lists what there is but the files of these segments.
    fn write_list(&self, core: &Core, list: &mut List, without: &HashSet<u64>) -> Result<()> {
        let listed = {
            let files = self.files();
            let newest = files.iter().rev().filter(|file| !without.contains(&file.segment));
            let newest = newest.take(present::FILES_MAX);
            let mut files: Vec<_> =
                newest.map(|file| (file.segment, file.first_seq, file.last_seq)).collect();
            files.reverse();
            Listed { files, horizons: self.horizons.all() }
        };
        list.keep(core.env.files.as_ref(), &self.dir, &listed, || core.sync_dir(&self.dir))
    }

    /// The greatest segment and the greatest sequence that a change file has something of; zeros for none.
    pub(crate) fn newest(&self) -> (u64, Seq) {
        let files = self.files();
        let last_seq = files.iter().map(|file| file.last_seq).max().unwrap_or(0);
        (files.last().map_or(0, |file| file.segment), last_seq.max(self.horizons.furthest()))
    }

    pub(crate) fn figures(&self) -> ChangeFigures {
        let files = self.files();
        ChangeFigures {
            files: files.len() as u64,
            file_bytes: files.iter().map(|file| file.bytes).sum(),
            tail_bytes: self.tail.bytes(),
            written_bytes: self.written_bytes.load(Ordering::Relaxed),
            dropped_bytes: self.dropped_bytes.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn tail_bytes(&self) -> u64 {
        self.tail.bytes()
    }

    /// A tablet is gone, its tail with it.
    pub(crate) fn forget(&self, tablet: TabletId) {
        self.tail.end(tablet.0);
    }

    fn files(&self) -> MutexGuard<'_, Vec<Arc<ChangeFile>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tablet {
    /// Keeps this tablet's changes from now on, for `retention`, or not any longer (`None`). Returns the position after
    /// which they are kept; where they were kept before, earlier ones are too.
    pub fn keep_changes(&self, retention: Option<Duration>) -> Seq {
        let micros = retention
            .map_or(0, |retention| u64::try_from(retention.as_micros()).unwrap_or(u64::MAX).max(1));
        let (tail, id) = (&self.core().changes.tail, self.id().0);
        // No flush or compaction takes cells away meanwhile: those that rules let go are named from here on.
        let manifest = self.lock_manifest();
        // No batch takes its sequence meanwhile.
        let writer = self.lock_writer();
        let after = self.core().pipeline.hlc().reserve(1);
        let before = self.changes_kept_micros().swap(micros, Ordering::AcqRel);
        if before == 0 && micros > 0 {
            tail.begin(id, after);
        } else if micros == 0 {
            tail.end(id);
            self.tell_changes_ended();
        }
        drop((writer, manifest));
        if (before == 0) != (micros == 0) {
            // A walk that was in the midst of a row left it as it is.
            self.collect_anew();
        }
        after
    }

    /// For how long its changes are kept; `None` where they are not.
    pub fn changes_kept(&self) -> Option<Duration> {
        let micros = self.changes_kept_micros().load(Ordering::Acquire);
        (micros > 0).then(|| Duration::from_micros(micros))
    }

    /// A position at which everything is visible, in the log, and not older than a second or so: where a reader that has
    /// nothing to read stands, and where one begins that wants what is written from now on. Every change that was acknowledged before the call is at
    /// or below it; all that begins later is above, whichever way the wall clock is set. Where nothing was written for longer, an empty batch is: a position that only memory
    /// knew could come again after a crash. While the log waits for space, or has waited for anything else for long, or has failed, it is an
    /// older one, that of the last write.
    pub async fn fence_changes(&self) -> Result<Seq> {
        let core = self.core();
        let pipeline = &core.pipeline;
        let is_recent = |seq: Seq| {
            let now = core.env.clock.now_micros() / 1_000;
            now.saturating_sub_unsigned(seq >> SEQ_COUNTER_BITS) <= FENCE_AGE_MS as i64
        };
        let recorded = pipeline.recorded();
        // Where the log has failed nothing is written any more, and what there is can be read to its end.
        let is_held = || core.lacks_room() || pipeline.log().held().is_some();
        if is_recent(recorded) || is_held() || pipeline.failed().is_some() {
            return Ok(recorded);
        }
        let batch = encode_batch(NO_TABLET, &RowBatch { row: Bytes::new(), mutations: Vec::new() });
        let permit = pipeline.admit(batch.len()).await?;
        let (begun, fence) = {
            // Of those who come together one begins it. None waits with the lock: its client may not read on.
            let _fencing = lock(&core.changes.fencing);
            match pipeline.last_given()? {
                begun if is_recent(begun) => (begun, None),
                _ => {
                    let fence = pipeline.begin(batch, 1, permit)?;
                    (fence.last_seq(), Some(fence.applied()))
                }
            }
        };
        let mut visible = pin!(pipeline.wait_visible_unless_full(begun));
        let waited = match fence {
            // It is to be polled, and its error is that of a write that had begun.
            Some(fence) => match select(fence, visible.as_mut()).await {
                Either::Left((written, _)) => written.map(drop),
                Either::Right((waited, _)) => waited,
            },
            None => visible.await,
        };
        match waited {
            // The log waits, or did a moment ago, and is not what failed.
            Err(error) if error.kind() == ErrorKind::NoSpace && pipeline.failed().is_none() => {
                Ok(pipeline.recorded())
            }
            waited => waited.map(|()| begun),
        }
    }

    /// A reader of what has changed after `position`.
    pub fn changes_after(self: &Arc<Self>, position: Seq) -> ChangeReader {
        ChangeReader::new(Arc::clone(self), position)
    }
}

/// Removes a file that counts for nothing; one that cannot be is left to the next start, and told.
fn remove_or_tell(files: &dyn Files, path: &Path) {
    if let Err(error) = files.remove(path) {
        tracing::warn!(file = %path.display(), %error, "cannot remove a file that nothing needs");
    }
}

/// A batch of a tablet that keeps its changes, on its way into the log.
pub(crate) struct Kept(Bytes);

impl ChangeLog {
    /// Takes a copy of an encoded batch.
    pub(crate) fn copy(encoded: &[u8]) -> Kept {
        Kept(Bytes::copy_from_slice(encoded))
    }

    /// Adds it to the tail, once its sequences are known.
    pub(crate) fn push(&self, tablet: &Tablet, first_seq: Seq, last_seq: Seq, kept: Kept) {
        self.tail.push(tablet.id().0, first_seq, last_seq, kept.0);
        tablet.changed().notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_and_times_agree_to_the_millisecond() {
        let seq = 1_700_000_000_123_u64 << SEQ_COUNTER_BITS;
        assert_eq!(commit_micros(seq), 1_700_000_000_123_000);
        assert_eq!(commit_micros(seq + 99), 1_700_000_000_123_000);
        for micros in [1_700_000_000_123_000, 1_700_000_000_123_999] {
            assert_eq!(position_before(micros), seq - 1);
        }
        assert_eq!(position_before(-1), 0);
        assert_eq!(commit_micros(SEQ_MAX), (1 << 44) * 1000 - 1000);
        assert!(position_before(i64::MAX) < SEQ_MAX);
    }
}
