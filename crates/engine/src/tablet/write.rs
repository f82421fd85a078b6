//! Writing to a tablet: admission, row lock, sequence and log queue, memtable, and the wait for durability.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::future::{join, join_all};

use crate::cell::{KeyView, Mutation, RowBatch, Seq, Timestamp, encode_row, row_prefix};
use crate::changes::ChangeLog;
use crate::core::Core;
use crate::db::{Health, HeldBy};
use crate::error::{Error, ErrorKind, Result};
use crate::log::record::RECORD_BYTES_MAX;
use crate::log::{CommitDone, EncodedBatch, Permit, Source, encode_batch_of};
use crate::memtable::{COPIED_VALUE_BYTES_MIN, CopiedValue, MemtableWriter};
use crate::pressure::{self, Behind, Pressure, Priority};
use crate::sst::{BLOCK_BYTES_MAX, fits_a_block};

use super::locks::HeldShares;
use super::view::View;
use super::{RowLock, Tablet};

/// Bytes of the mutations of one row at most, as the log has them: a record of it, or of a change file, with room for what else is in
/// there.
const BATCH_BYTES_MAX: u64 = RECORD_BYTES_MAX - (1 << 20);

/// Bytes of a batch up to which each of its mutations fits a block of an SST, whatever of it is key: that counts twice there, with each of
/// its bytes as two at most.
const SMALL_BATCH_BYTES_MAX: usize = BLOCK_BYTES_MAX / 8;

/// Bytes of row keys in the memtable from which a batch is counted before it waits for anything: each of its mutations has the key there,
/// which the log and the request have once. Less is about what the request has itself.
const KEYS_COUNTED_FROM: u64 = 64 << 10;

/// Bytes of row keys that one batch may bring to the memtable, as a part of the memory of all memtables, and within bounds: large enough for
/// 100,000 mutations of a row whose key has 160 bytes, and no more than the largest request has.
const KEYS_PART: u64 = 4;
const KEYS_BYTES_MIN: u64 = 16 << 20;
const KEYS_BYTES_MAX: u64 = 256 << 20;

impl Tablet {
    /// Applies mutations to one row, in order and atomically; resolves when they are durable and visible, or with an error:
    /// one that is [in doubt](Error::in_doubt) where they may have been applied.
    /// Shares the row's lock with other writes that have read nothing. Cells with [`TIMESTAMP_OF_WRITE`](crate::cell::TIMESTAMP_OF_WRITE) get the time at
    /// which no read-modify-write has it. `Overloaded`, at once and with a hint when to try again, where the
    /// write is among those that are refused because background work is behind ([`crate::pressure`]).
    pub async fn apply(&self, batch: RowBatch) -> Result<Seq> {
        self.admit()?;
        self.apply_admitted(batch).await
    }

    /// The same for a write that was let in.
    async fn apply_admitted(&self, batch: RowBatch) -> Result<Seq> {
        let encoded = self.encode(&batch, Source::User)?;
        let keys = self.hold_keys(std::slice::from_ref(&batch))?;
        self.apply_encoded(batch, encoded, keys).await
    }

    /// The same of one whose keys are counted, here or by the caller.
    async fn apply_encoded(
        &self,
        batch: RowBatch,
        encoded: EncodedBatch,
        keys: Option<HeldKeys>,
    ) -> Result<Seq> {
        let share = self.locks.share(&batch.row).await;
        self.commit((share, keys), batch, encoded).await
    }

    /// Waits for and takes the lock of a row.
    pub async fn lock_row(&self, row: &[u8]) -> RowLock {
        self.locks.lock(row).await
    }

    /// Applies to the row whose lock is given, and releases the lock as soon as the order of writes is
    /// fixed; resolves when they are durable and visible. Dropping the future after its first wait for
    /// the disk does not undo the write.
    pub async fn apply_locked(&self, lock: RowLock, batch: RowBatch) -> Result<Seq> {
        let encoded = self.encode(&batch, Source::User)?;
        let keys = self.hold_keys(std::slice::from_ref(&batch))?;
        self.commit((lock, keys), batch, encoded).await
    }

    async fn commit<L>(&self, lock: L, batch: RowBatch, encoded: EncodedBatch) -> Result<Seq> {
        let permit = self.core.pipeline.admit(encoded.len()).await?;
        let done = self.enqueue([encoded], permit, &mut [batch])?;
        drop(lock);
        done.await
    }

    /// Applies batches of different rows, each atomically and in no order among them; resolves when all are durable and
    /// visible. Costs less than as many [`Self::apply`]: the batches go through the queues as one, and the memtable is
    /// theirs meanwhile, so that the caller has to bound them, to some dozens of small rows. `Overloaded` as there, and then
    /// none was applied; after an error that is [in doubt](Error::in_doubt) each of them may have been.
    pub async fn apply_rows(&self, batches: Vec<RowBatch>) -> Result<()> {
        self.admit()?;
        self.apply_rows_admitted(batches).await
    }

    /// The same for rows that were let in already, as a part of a request ([`Self::admit_part`]).
    pub async fn apply_rows_admitted(&self, batches: Vec<RowBatch>) -> Result<()> {
        let keys = self.hold_keys(&batches)?;
        let mut rows = Vec::with_capacity(batches.len());
        let mut bytes = 0;
        for batch in batches {
            let encoded = self.encode(&batch, Source::User)?;
            bytes += encoded.len();
            rows.push((batch, encoded));
        }
        let permit = self.core.pipeline.admit_all(rows.len(), bytes).await?;
        let mut held = HeldShares::default();
        // Rows in the midst of a read-modify-write are left for later: to wait for their locks would let others wait for ours.
        let busy: Vec<_> = rows
            .extract_if(.., |(batch, _)| !self.locks.try_share_beside(&mut held, &batch.row))
            .collect();
        let (mut batches, encoded): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
        self.fetch_rows(&batches);
        let done = if batches.is_empty() {
            // Whoever has the locks that are waited for may itself wait for this.
            drop(permit);
            None
        } else {
            Some(self.enqueue(encoded, permit, &mut batches)?)
        };
        drop(held);
        let _keys = keys.filter(|_| !busy.is_empty());
        let has_begun = done.is_some();
        let alone =
            busy.into_iter().map(|(batch, encoded)| self.apply_encoded(batch, encoded, None));
        let together = async {
            match done {
                Some(done) => done.await.map(|_| ()),
                None => Ok(()),
            }
        };
        let (together, alone) = join(together, join_all(alone)).await;
        // Of several rows, some may be written where another is refused.
        let may_be =
            |result: &Result<Seq>| result.as_ref().map_or_else(Error::is_in_doubt, |_| true);
        let has_begun = has_begun || alone.iter().any(may_be);
        let refused = together.err().or_else(|| alone.into_iter().find_map(Result::err));
        refused.map_or(Ok(()), |error| Err(if has_begun { error.in_doubt() } else { error }))
    }

    /// Has the places of rows in the memtable fetched from memory, before others have to wait for their insertion.
    fn fetch_rows(&self, batches: &[RowBatch]) {
        let (mut keys, mut ends) = (Vec::new(), Vec::with_capacity(batches.len()));
        for batch in batches {
            encode_row(&batch.row, &mut keys);
            ends.push(keys.len());
        }
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let prefixes = starts.zip(&ends).filter_map(|(start, end)| keys.get(start..*end));
        self.view.load().active.fetch_rows(prefixes);
    }

    /// A batch in the form of the log, once it is sure that this tablet can take it.
    pub(super) fn encode(&self, batch: &RowBatch, source: Source) -> Result<EncodedBatch> {
        if batch.mutations.is_empty() {
            return Err(Error::new(ErrorKind::InvalidArgument, "a batch needs a mutation"));
        }
        if !self.range.contains(&batch.row) {
            return Err(Error::new(ErrorKind::InvalidArgument, "the row is not in this tablet"));
        }
        self.core.check_writable()?;
        let (keys, keys_max) =
            (keys_bytes(batch), self.core.options.memtables_total_bytes / KEYS_PART);
        let keys_max = keys_max.clamp(KEYS_BYTES_MIN, KEYS_BYTES_MAX);
        if keys > keys_max {
            let (mutations, bytes) = (batch.mutations.len(), batch.row.len());
            let text = format!(
                "{mutations} mutations of one row with a key of {bytes} bytes take {keys} bytes of memory for their keys, and may take {keys_max}; write fewer at a time"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let encoded = encode_batch_of(source, self.id.0, batch);
        if encoded.len() as u64 > BATCH_BYTES_MAX {
            let bytes = encoded.len();
            let text = format!(
                "the mutations of one row have {bytes} bytes, and the log takes {BATCH_BYTES_MAX} at once; write fewer at a time"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        if encoded.len() > SMALL_BATCH_BYTES_MAX {
            check_fits_blocks(batch)?;
        }
        Ok(encoded)
    }

    /// Counts what the keys of batches will take in the memtable where that is much, so that writes that were let in at the same time know of each
    /// other. `Overloaded` where memory is full by now.
    fn hold_keys(&self, batches: &[RowBatch]) -> Result<Option<HeldKeys>> {
        let bytes: u64 = batches.iter().map(keys_bytes).filter(|b| *b >= KEYS_COUNTED_FROM).sum();
        if bytes == 0 {
            return Ok(None);
        }
        // Beside what is there and what others hold: one that comes first is let in, however large.
        let others = self.core.keys_held.fetch_add(bytes, Ordering::Relaxed);
        let keys = HeldKeys { core: Arc::clone(&self.core), bytes };
        let pressure = self.core.pressure_of_memory_beside(others);
        let chance = || self.core.env.rng.next_u64();
        match pressure.refuses_all(Priority::High, chance) {
            Some(refusal) if self.core.background.load(Ordering::Acquire) => {
                self.core.refusals.count(Behind::Memory);
                Err(refusal)
            }
            _ => Ok(Some(keys)),
        }
    }

    /// Resolves when everything that a `ReadView::Pending` read has seen so far is durable, or with an error where that is
    /// not known: what it has seen may be a write that failed with the log. For a check-and-mutate that has nothing to write.
    /// Releases the lock first.
    pub async fn wait_durable(&self, lock: RowLock) -> Result<()> {
        let last = self.core.pipeline.last_begun();
        drop(lock);
        self.core.pipeline.wait_visible(last?).await
    }

    /// Gives batches, whose rows are locked or shared, their time and their place in the log, and puts them into the memtable. `encoded` are
    /// `batches`.
    pub(super) fn enqueue<E>(
        &self,
        mut encoded: E,
        permit: Permit,
        batches: &mut [RowBatch],
    ) -> Result<CommitDone>
    where
        E: AsRef<[EncodedBatch]>
            + AsMut<[EncodedBatch]>
            + IntoIterator<Item = EncodedBatch, IntoIter: ExactSizeIterator>,
    {
        self.set_times(encoded.as_mut(), batches);
        // What is long is done before others have to wait for it: a thread that gives way to the cores may be kept from its processor
        // meanwhile for as long as there is something else to do.
        let orders = orders_of(batches);
        let mut values = copy_large_values(encoded.as_ref(), batches, &orders)?.into_iter();
        let keeps = || self.changes_kept_micros.load(Ordering::Relaxed) > 0;
        let copy_all = |encoded: &[EncodedBatch]| -> Vec<_> {
            encoded.iter().map(|batch| ChangeLog::copy(batch.bytes())).collect()
        };
        let mut kept = if keeps() { copy_all(encoded.as_ref()) } else { Vec::new() };
        let mut writer = self.lock_writer();
        self.check_kept()?;
        let view = self.view.load();
        if !keeps() {
            kept.clear();
        } else if kept.is_empty() {
            // Since a moment.
            kept = copy_all(encoded.as_ref());
        }
        let is_users = encoded.as_ref().iter().any(|batch| batch.source() == Source::User);
        let counts = batches.iter().map(|batch| batch.mutations.len() as u32);
        let seqs = counts.clone().sum();
        let commit = self.core.pipeline.begin_all(encoded.into_iter().zip(counts), seqs, permit)?;
        let mut table = view.active.writer();
        let mut kept = kept.into_iter();
        let mut first_seq = commit.first_seq();
        for (batch, order) in batches.iter().zip(each_of(&orders)) {
            insert(&mut table, first_seq, (batch, order), &mut values, &mut writer.key)?;
            let next_seq = first_seq + batch.mutations.len() as u64;
            if let Some(kept) = kept.next() {
                self.core.changes.push(self, first_seq, next_seq - 1, kept);
            }
            first_seq = next_seq;
        }
        drop(table);
        // A tablet that only its collector writes to is idle: what it deletes is to be merged down.
        if is_users {
            let now = self.core.env.clock.monotonic_micros();
            self.last_write_micros.store(now, Ordering::Relaxed);
        }
        if view.active.allocated_bytes() >= self.core.options.memtable_bytes {
            self.rotate(&view);
        }
        self.core.look_at_memory();
        Ok(commit.applied())
    }

    /// The time for a cell that is written now, in microseconds, whole milliseconds. Taken with the row locked or shared, it is not before
    /// that of any cell of a write to the row that was over by then, unless the wall clock went back by more than a minute.
    pub fn time_of_write(&self) -> Timestamp {
        self.core.pipeline.hlc().time_of_write()
    }

    /// Fills in the time of the write where cells are to have it, the same for all.
    fn set_times(&self, encoded: &mut [EncodedBatch], batches: &mut [RowBatch]) {
        let mut time = None;
        for (encoded, batch) in encoded.iter_mut().zip(batches) {
            if encoded.wants_time() {
                let time = *time.get_or_insert_with(|| self.time_of_write());
                encoded.set_time(time);
                batch.set_time(time);
            }
        }
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
        self.view.store(view.with_memtables(active, waiting));
        self.core.bell.ring();
    }

    /// How far background work is behind the writes of this tablet.
    pub fn pressure(&self) -> Pressure {
        let view = self.view.load();
        let memtables = self.memtables(&view);
        let memtables_max = self.core.options.memtables_waiting_max.max(1) as f64 + 1.0;
        self.core
            .pressure()
            .or(Pressure::of(Behind::Memtables, memtables, memtables_max))
            .or(Self::of_level_zero(&view, memtables))
    }

    /// How far compactions of its level 0 are behind the writes of this tablet.
    pub(crate) fn pressure_of_level_zero(&self) -> Pressure {
        let view = self.view.load();
        Self::of_level_zero(&view, self.memtables(&view))
    }

    fn of_level_zero(view: &View, memtables: f64) -> Pressure {
        let sublevels_max = view.shape.sublevels_stop as f64;
        let sublevels = view.shape.sublevels.len() as f64 + memtables;
        let bytes = view.shape.level_zero_bytes.saturating_add(view.memtable_bytes()) as f64;
        let unrefused = view.unrefused_bytes as f64;
        Pressure::of(Behind::LevelZero, sublevels, sublevels_max).or(Pressure::beyond(
            Behind::LevelZero,
            bytes,
            unrefused,
        ))
    }

    /// Memtables that hold something. What is written counts at once, and not when it has become a file: so the share of refusals grows
    /// without steps, and the last of what is let in is too little to get to the limit.
    fn memtables(&self, view: &View) -> f64 {
        let memtable_bytes = self.core.options.memtable_bytes.max(1);
        let filled = view.active.allocated_bytes() as f64 / memtable_bytes as f64;
        view.waiting.len() as f64 + filled.min(1.0)
    }

    /// Whether a write is let in now; else `Overloaded`, with a hint when to try again. To be asked before the
    /// row is locked: a write that has got as far as its lock is carried out, but for one whose keys take much memory where there is none left.
    pub fn admit(&self) -> Result<()> {
        self.admit_as(Priority::High)
    }

    /// Whether a write of this priority is let in. Those of the highest need not ask: carrying them out does.
    pub fn admit_as(&self, priority: Priority) -> Result<()> {
        self.admit_unless(|pressure| pressure.refuses(priority, || self.core.env.rng.next_u64()))
    }

    /// The same for all that one request writes to this tablet, by a random number of the request: where it writes to several
    /// tablets, those that are equally far behind let in, or refuse, their parts of it together.
    pub fn admit_by(&self, priority: Priority, chance: u64) -> Result<()> {
        self.admit_unless(|pressure| pressure.refuses(priority, || chance))
    }

    /// Whether a part of a request that was let in can be carried out now: chance has no say any more, and it is `Overloaded`
    /// only where every write of its priority is refused.
    pub fn admit_part(&self, priority: Priority) -> Result<()> {
        self.admit_unless(|pressure| {
            pressure.refuses_all(priority, || self.core.env.rng.next_u64())
        })
    }

    fn admit_unless(&self, refusal: impl FnOnce(&Pressure) -> Option<Error>) -> Result<()> {
        self.core.check_writable()?;
        self.check_kept()?;
        self.check_room()?;
        if !self.core.background.load(Ordering::Acquire) {
            return Ok(());
        }
        let pressure = self.pressure();
        let Some(refusal) = refusal(&pressure) else { return Ok(()) };
        // Where few writes are refused, they are for a load that is too high, whatever has failed.
        let held_up = pressure.refused_share() >= PATIENCE;
        let setback = if held_up { self.setback(pressure.behind) } else { None };
        if pressure.behind == Behind::LevelZero
            && (setback.is_some() || self.level_zero_is_stuck(&self.view.load()))
        {
            self.core.refusals.count(Behind::Failing);
            return Err(pressure::failing(setback.as_ref()));
        }
        self.core.refusals.count(pressure.behind);
        Err(match setback {
            Some(error) => refusal.context(format_args!("a flush fails ({error})")),
            None => refusal,
        })
    }

    /// The refusal of what would wait with the log for space on the disk.
    pub(super) fn check_room(&self) -> Result<()> {
        if !self.core.lacks_room() {
            return Ok(());
        }
        self.core.refusals.count(Behind::Room);
        let why = self.core.pipeline.log().held();
        Err(pressure::lacks_room(why.as_deref(), self.core.env.rng.next_u64()))
    }

    /// Why writes are refused until the machine has what flushes or compactions of this tablet lack, if it is so. A damaged
    /// file is the trouble of one table: its refusals tell of it, and the others are served.
    pub(crate) fn held(&self) -> Option<Health> {
        let pressure = self.pressure();
        if pressure.refused_share() < PATIENCE {
            return None;
        }
        let error = self.setback(pressure.behind)?;
        if !self.core.setbacks.is_of_machine(&error) {
            return None;
        }
        let (by, what) = if pressure.behind == Behind::LevelZero {
            (HeldBy::Compaction, "writes to a table are refused until its compactions get on")
        } else {
            (HeldBy::Flush, "memory is full, and writes are refused until a flush gets on")
        };
        Some(Health::Held { by, reason: format!("{what}: {error}") })
    }

    /// The failure of the flush that writes are refused for, where it is for want of room on the disk.
    pub(crate) fn lacks_room_to_flush(&self) -> Option<Error> {
        let pressure = self.pressure();
        let for_flush = matches!(pressure.behind, Behind::Memory | Behind::Memtables);
        if !for_flush || pressure.refused_share() < PATIENCE {
            return None;
        }
        self.setback(pressure.behind).filter(|error| error.kind() == ErrorKind::NoSpace)
    }

    /// Applies mutations as [`Self::apply`] does, but waits, without a thread, until it is let in: for programs
    /// that embed the engine and have nobody to send away. Those who wait are the caller's to bound. `Overloaded` where only an operator
    /// can help, as the disk has no room, or a compaction fails; and where its keys take much memory, and others were faster.
    pub async fn apply_when_room(&self, batch: RowBatch) -> Result<Seq> {
        self.wait_for_room().await?;
        self.apply_admitted(batch).await
    }

    /// Applies batches as [`Self::apply_rows`] does, but waits as [`Self::apply_when_room`].
    pub async fn apply_rows_when_room(&self, batches: Vec<RowBatch>) -> Result<()> {
        self.wait_for_room().await?;
        self.apply_rows_admitted(batches).await
    }

    async fn wait_for_room(&self) -> Result<()> {
        loop {
            let room = self.core.room.notified();
            self.core.check_writable()?;
            self.check_room()?;
            let pressure = self.pressure();
            let waits_for_job =
                matches!(pressure.behind, Behind::Memory | Behind::Memtables | Behind::LevelZero);
            if pressure.refused_share() < PATIENCE || !waits_for_job {
                return Ok(());
            }
            if !self.core.background.load(Ordering::Acquire) || self.is_dropped() {
                return Ok(());
            }
            if pressure.behind == Behind::LevelZero && self.level_zero_is_stuck(&self.view.load()) {
                let setback = self.setback(Behind::LevelZero);
                return Err(pressure::failing(setback.as_ref()));
            }
            if let Some(error) = self.lacks_room_to_flush() {
                let why = format!("a flush fails ({error})");
                return Err(pressure::lacks_room(Some(&why), self.core.env.rng.next_u64()));
            }
            room.await;
        }
    }
}

/// Bytes of row keys that a batch brings to the memtable, roughly.
fn keys_bytes(batch: &RowBatch) -> u64 {
    // Each zero byte is two there.
    let bytes_of = |key_bytes: usize| batch.mutations.len().saturating_mul(key_bytes) as u64;
    let at_most = bytes_of(2 * batch.row.len());
    if at_most < KEYS_COUNTED_FROM {
        return at_most;
    }
    bytes_of(row_prefix(&batch.row).len())
}

/// Keys that are about to be in a memtable, counted as if they were.
#[derive(Debug)]
struct HeldKeys {
    core: Arc<Core>,
    bytes: u64,
}

impl Drop for HeldKeys {
    fn drop(&mut self) {
        self.core.keys_held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The share of refusals at which [`Tablet::apply_when_room`] waits, and from which on a tablet whose flushes or compactions
/// fail counts as one that takes no writes: late enough that flushes always find work, and early enough for what was let in
/// together.
const PATIENCE: f64 = 0.5;

/// The refusal of a mutation that no file could take once its memtable is flushed.
fn check_fits_blocks(batch: &RowBatch) -> Result<()> {
    let mut too_large = None;
    for_each_record(0, (batch, &[]), &mut Vec::new(), |key, value| {
        if !fits_a_block(key, value) {
            too_large = Some(key.bytes().len() + value.len());
        }
    })?;
    let Some(bytes) = too_large else { return Ok(()) };
    let text = format!(
        "a cell has {bytes} bytes with its key, and a file takes less than {BLOCK_BYTES_MAX} of one; divide its value among several"
    );
    Err(Error::new(ErrorKind::InvalidArgument, text))
}

/// The places of mutations in their batch, in the order of their keys; none where that is their own.
type Order = [u32];

/// Mutations of a batch from which on they go into the memtable in the order of their keys: each is then found beside the one before it, at a tenth
/// of the time. Everybody's writes wait until all of a batch is in. Of fewer there is little to be had.
const ORDERED_FROM: usize = 64;

/// The orders of batches, as far as one of them has one.
fn orders_of(batches: &[RowBatch]) -> Vec<Vec<u32>> {
    let is_wide = |batch: &RowBatch| batch.mutations.len() >= ORDERED_FROM;
    let Some(last) = batches.iter().rposition(is_wide) else { return Vec::new() };
    let to_last = batches.iter().take(last + 1);
    to_last.map(|batch| if is_wide(batch) { order_of(batch) } else { Vec::new() }).collect()
}

fn order_of(batch: &RowBatch) -> Vec<u32> {
    // Of one row, so what is behind its key tells them apart. Whatever the sequence of the first will be, the others follow it.
    let (mut keys, mut ends) = (Vec::new(), Vec::with_capacity(batch.mutations.len()));
    for (seq, mutation) in (0..).zip(&batch.mutations) {
        mutation.encode_after_row(seq, &mut keys);
        ends.push(keys.len());
    }
    let key = |at: u32| {
        let at = at as usize;
        let start = at.checked_sub(1).and_then(|before| ends.get(before)).copied();
        keys.get(start.unwrap_or(0)..ends.get(at).copied().unwrap_or(0))
    };
    let mut order: Vec<u32> = (0..ends.len() as u32).collect();
    if order.is_sorted_by_key(|at| key(*at)) {
        return Vec::new();
    }
    order.sort_unstable_by_key(|at| key(*at));
    order
}

/// The order of each batch.
fn each_of(orders: &[Vec<u32>]) -> impl Iterator<Item = &Order> {
    orders.iter().map(Vec::as_slice).chain(std::iter::repeat(&[][..]))
}

/// The large values of batches, as they come in their orders, copied for [`insert`].
fn copy_large_values(
    encoded: &[EncodedBatch],
    batches: &[RowBatch],
    orders: &[Vec<u32>],
) -> Result<Vec<CopiedValue>> {
    let mut values = Vec::new();
    for ((encoded, batch), order) in encoded.iter().zip(batches).zip(each_of(orders)) {
        // Most have none, which is seen at a glance.
        if encoded.len() >= COPIED_VALUE_BYTES_MIN {
            for_each_record(0, (batch, order), &mut Vec::new(), |key, value| {
                if value.len() >= COPIED_VALUE_BYTES_MIN {
                    values.push(CopiedValue::new(key.bytes().len(), value));
                }
            })?;
        }
    }
    Ok(values)
}

/// Puts a batch into a memtable in this order. Where `values` has any, they are its large values, as they come; `key` is a buffer to work in.
pub(super) fn insert(
    table: &mut MemtableWriter<'_>,
    first_seq: Seq,
    batch: (&RowBatch, &Order),
    values: &mut impl Iterator<Item = CopiedValue>,
    key: &mut Vec<u8>,
) -> Result<()> {
    for_each_record(first_seq, batch, key, |key, value| {
        let copied = if value.len() >= COPIED_VALUE_BYTES_MIN { values.next() } else { None };
        match copied {
            Some(copied) => table.insert_copied(key, copied),
            None => table.insert(key, value),
        };
    })
}

/// Calls `take` with the key and the value of each mutation, in this order. `key` is a buffer to work in.
fn for_each_record(
    first_seq: Seq,
    (batch, order): (&RowBatch, &Order),
    key: &mut Vec<u8>,
    mut take: impl FnMut(KeyView<'_>, &[u8]),
) -> Result<()> {
    key.clear();
    encode_row(&batch.row, key);
    let row_len = key.len();
    let mut take_one = |at: u64, mutation: &Mutation| -> Result<()> {
        key.truncate(row_len);
        let value = mutation.encode_after_row(first_seq + at, key);
        take(KeyView::from_parts(key, row_len)?, &value);
        Ok(())
    };
    if order.is_empty() {
        return (0..).zip(&batch.mutations).try_for_each(|(at, mutation)| take_one(at, mutation));
    }
    order.iter().try_for_each(|at| match batch.mutations.get(*at as usize) {
        Some(mutation) => take_one(u64::from(*at), mutation),
        None => Ok(()),
    })
}
