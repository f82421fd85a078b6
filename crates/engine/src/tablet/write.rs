//! Writing to a tablet: admission, row lock, sequence and log queue, memtable, and the wait for durability.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::cell::{KeyView, RowBatch, Seq, encode_row};
use crate::changes::ChangeLog;
use crate::error::{Error, ErrorKind, Result};
use crate::log::{CommitDone, EncodedBatch, encode_batch};
use crate::memtable::Memtable;
use crate::pressure::{self, Behind, Pressure};

use super::view::View;
use super::{RowLock, Tablet};

impl Tablet {
    /// Applies mutations to one row, in order and atomically; resolves when they are durable and visible.
    /// Takes and releases the row's lock. `Overloaded`, at once and with a hint when to try again, where the
    /// write is among those that are refused because background work is behind ([`crate::pressure`]).
    pub async fn apply(&self, batch: RowBatch) -> Result<Seq> {
        self.admit()?;
        let lock = self.lock_row(&batch.row).await;
        self.apply_locked(lock, batch).await
    }

    /// Waits for and takes the lock of a row.
    pub async fn lock_row(&self, row: &[u8]) -> RowLock {
        self.locks.lock(row).await
    }

    /// Applies to the row whose lock is given, and releases the lock as soon as the order of writes is
    /// fixed; resolves when they are durable and visible. Dropping the future after its first wait for
    /// the disk does not undo the write.
    pub async fn apply_locked(&self, lock: RowLock, batch: RowBatch) -> Result<Seq> {
        if batch.mutations.is_empty() {
            return Err(Error::new(ErrorKind::InvalidArgument, "a batch needs a mutation"));
        }
        if !self.range.contains(&batch.row) {
            return Err(Error::new(ErrorKind::InvalidArgument, "the row is not in this tablet"));
        }
        self.core.check_writable()?;
        let encoded = encode_batch(self.id.0, &batch);
        let permit = self.core.pipeline.admit(encoded.len()).await?;
        let done = self.enqueue(encoded, permit, &batch)?;
        drop(lock);
        done.await
    }

    /// Resolves when everything that a `ReadView::Pending` read has seen so far is durable. For a
    /// check-and-mutate that has nothing to write. Releases the lock first.
    pub async fn wait_durable(&self, lock: RowLock) -> Result<()> {
        let last = self.core.pipeline.last_begun();
        drop(lock);
        self.core.pipeline.wait_visible(last).await
    }

    fn enqueue(
        &self,
        encoded: EncodedBatch,
        permit: crate::log::Permit,
        batch: &RowBatch,
    ) -> Result<CommitDone> {
        let mut writer = self.lock_writer();
        if self.is_dropped() {
            return Err(dropped());
        }
        let view = self.view.load();
        let count = batch.mutations.len() as u32;
        let keeps = self.changes_kept_micros.load(Ordering::Relaxed) > 0;
        let kept = keeps.then(|| ChangeLog::copy(encoded.bytes()));
        let commit = self.core.pipeline.begin(encoded, count, permit)?;
        insert(&view.active, commit.first_seq(), batch, &mut writer.key)?;
        if let Some(kept) = kept {
            self.core.changes.push(self, commit.first_seq(), commit.last_seq(), kept);
        }
        let now = self.core.env.clock.monotonic_micros();
        self.last_write_micros.store(now, Ordering::Relaxed);
        if view.active.allocated_bytes() >= self.core.options.memtable_bytes {
            self.rotate(&view);
        }
        self.core.look_at_memory();
        Ok(commit.applied())
    }

    /// Makes the active memtable wait for its flush. The caller holds the writer lock, so every record
    /// in it is older than every record of the next one.
    pub(super) fn rotate(&self, view: &Arc<View>) {
        if view.active.is_empty() {
            return;
        }
        let mut waiting = view.waiting.clone();
        waiting.push(Arc::clone(&view.active));
        let active = self.core.new_memtable();
        self.view.store(Arc::new(view.with_memtables(active, waiting)));
        self.core.bell.ring();
    }

    /// How far background work is behind the writes of this tablet.
    pub fn pressure(&self) -> Pressure {
        let options = &self.core.options;
        let view = self.view.load();
        let waiting = view.waiting.len() as f64;
        let filled = view.active.allocated_bytes() as f64 / options.memtable_bytes.max(1) as f64;
        let memtables_max = options.memtables_waiting_max.max(1) as f64 + 1.0;
        // A limit below what starts the work that makes room would stop writers for good.
        let level_zero_max =
            options.l0_stop_files.max(2 * options.l0_compaction_files).max(2) as f64;
        self.core
            .pressure()
            .or(Pressure::of(Behind::Memtables, waiting + filled.min(1.0), memtables_max))
            .or(Pressure::of(Behind::LevelZero, level_zero_depth(&view) + waiting, level_zero_max))
    }

    /// Whether a write is let in now; else `Overloaded`, with a hint when to try again. To be asked before the
    /// row is locked: a write that has got as far as its lock is carried out.
    pub fn admit(&self) -> Result<()> {
        self.core.check_writable()?;
        if self.is_dropped() {
            return Err(dropped());
        }
        if !self.core.background.load(Ordering::Acquire) {
            return Ok(());
        }
        let pressure = self.pressure();
        let Some(refusal) = pressure.refuses(|| self.core.env.rng.next_u64()) else {
            return Ok(());
        };
        if pressure.behind == Behind::LevelZero && self.level_zero_is_stuck(&self.view.load()) {
            self.core.refusals.count(Behind::Failing);
            return Err(pressure::failing());
        }
        self.core.refusals.count(pressure.behind);
        Err(refusal)
    }

    /// Applies mutations as [`Self::apply`] does, but waits, without a thread, until it is let in: for programs
    /// that embed the engine and have nobody to send away. Those who wait are the caller's to bound.
    pub async fn apply_when_room(&self, batch: RowBatch) -> Result<Seq> {
        loop {
            let room = self.core.room.notified();
            self.core.check_writable()?;
            let pressure = self.pressure();
            let waits_for_job =
                matches!(pressure.behind, Behind::Memory | Behind::Memtables | Behind::LevelZero);
            if pressure.refused_share() < PATIENCE || !waits_for_job {
                break;
            }
            if !self.core.background.load(Ordering::Acquire) || self.is_dropped() {
                break;
            }
            if self.level_zero_is_stuck(&self.view.load()) {
                return Err(pressure::failing());
            }
            room.await;
        }
        let lock = self.lock_row(&batch.row).await;
        self.apply_locked(lock, batch).await
    }
}

/// The share of refusals at which [`Tablet::apply_when_room`] waits: late enough that flushes always find work, and
/// early enough for what was let in together.
const PATIENCE: f64 = 0.5;

/// How deep level 0 is, as reads and compactions meet it.
fn level_zero_depth(view: &View) -> f64 {
    view.shape.sublevels.len() as f64
}

fn dropped() -> Error {
    Error::new(ErrorKind::NotFound, "the tablet was dropped")
}

/// Puts a batch into a memtable. `key` is a buffer to work in.
pub(super) fn insert(
    memtable: &Memtable,
    first_seq: Seq,
    batch: &RowBatch,
    key: &mut Vec<u8>,
) -> Result<()> {
    key.clear();
    encode_row(&batch.row, key);
    let row_len = key.len();
    for (seq, mutation) in (first_seq..).zip(&batch.mutations) {
        key.truncate(row_len);
        let value = mutation.encode_after_row(seq, key);
        memtable.insert(KeyView::from_parts(key, row_len)?, &value);
    }
    Ok(())
}
