//! Writing to a tablet: row lock, sequence and log queue, memtable, and the wait for durability.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::cell::{KeyView, RowBatch, Seq, encode_row};
use crate::error::{Error, ErrorKind, Result};
use crate::log::{CommitDone, EncodedBatch, encode_batch};
use crate::memtable::Memtable;

use super::view::View;
use super::{RowLock, Tablet};

impl Tablet {
    /// Applies mutations to one row, in order and atomically; resolves when they are durable and visible.
    /// Takes and releases the row's lock.
    pub async fn apply(&self, batch: RowBatch) -> Result<Seq> {
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
        self.wait_for_room().await?;
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
            return Err(Error::new(ErrorKind::NotFound, "the tablet was dropped"));
        }
        let view = self.view.load();
        let count = batch.mutations.len() as u32;
        let commit = self.core.pipeline.begin(encoded, count, permit)?;
        insert(&view.active, commit.first_seq(), batch, &mut writer.key)?;
        let now = self.core.env.clock.monotonic_micros();
        self.last_write_micros.store(now, Ordering::Relaxed);
        if view.active.allocated_bytes() >= self.core.options.memtable_bytes {
            self.rotate(&view);
        }
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
        let active = Memtable::new(self.core.env.rng.next_u64());
        self.view.store(Arc::new(view.with_memtables(active, waiting)));
        self.core.bell.ring();
    }

    /// Waits while the tablet's memtables or L0 are at their limit: the device is behind, and a write
    /// that were let in would only grow memory. Requests that wait are bounded by the connection's
    /// streams.
    async fn wait_for_room(&self) -> Result<()> {
        loop {
            let room = self.core.room.notified();
            self.core.check_writable()?;
            if self.is_dropped() {
                return Err(Error::new(ErrorKind::NotFound, "the tablet was dropped"));
            }
            let options = &self.core.options;
            let view = self.view.load();
            // Limits below what starts the work that makes room would stop writers for good.
            let behind = view.waiting.len() >= options.memtables_waiting_max.max(1);
            let deep = view.shape.sublevels.len()
                >= options.l0_stop_files.max(options.l0_compaction_files).max(1);
            if !(behind || deep) || !self.core.background.load(Ordering::Acquire) {
                return Ok(());
            }
            if deep && self.level_zero_is_stuck(&view) {
                return Err(Error::new(
                    ErrorKind::Overloaded,
                    "the tablet takes no writes while its compaction fails; the server's log says why",
                ));
            }
            drop(view);
            room.await;
        }
    }
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
