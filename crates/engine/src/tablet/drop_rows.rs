//! Dropping a range of rows: one edit of the manifest, whatever the range holds.
//!
//! The drop takes a sequence `s`. Everything in the range with a sequence up to `s` disappears:
//!
//! * SSTs are cut: each reference to an SST that overlaps the range is replaced by references to what is
//!   left of it, as visible row ranges. An SST that lies in the range goes at once; one of which little is
//!   left is rewritten [in the background](crate::compaction::collect).
//! * Memtables cannot be cut, so the version remembers the range as *excised* at `s`; readers hide what
//!   it covers, and the flush of those memtables leaves it out. The first edit of any kind forgets it after which nothing
//!   in memory is as old. So does a later drop of rows around it; and where there are many, the memtables are sent to be flushed.
//! * Where nothing is in memory the edit says the range all the same: a repair of a manifest that has lost an earlier edit takes it
//!   out of the files that come back with that. Readers do not look at it, and the next edit forgets it.
//! * A flush or compaction that is running has read rows that are dropped now. It finds the drop in the
//!   tablet's list when it, or a part of it, is done and cuts its outputs, all of whose records are older than the drop:
//!   a flush begins by waiting for drops that are under way, so that those with a sequence among its
//!   memtable's are excised ranges by then. A drop stays in the list until every job has ended that began
//!   before it. Jobs that began later read what is cut already: to cut what they write once more would
//!   leave files in ever more pieces for as long as some job runs.

use std::collections::HashMap;
use std::sync::Arc;

use std::time::Duration;

use bytes::Bytes;

use crate::cell::{RowRange, Seq, row_prefix};
use crate::compaction::job;
use crate::error::{Error, ErrorKind, Result};
use crate::manifest::{Excised, SstRef, Version, VersionEdit};
use crate::sst::{FileId, SstReader};
use crate::store::{Outputs, SstFile};

use super::Tablet;
use super::view::{View, hides_in};

/// Dropped ranges that hide something in memory before the memtables are sent to be flushed. Each edit copies
/// them, and each read of memory goes through them: more make both slow for a tablet that drops row by row, fewer make an SST
/// of a few drops.
const EXCISED_MAX: usize = 64;

/// Such ranges beyond which others are refused until a flush has gone through, as where flushes fail for long: each edit would copy them, and
/// each read go through them. Far more than come while a memtable is flushed.
const EXCISED_WAITING_MAX: usize = 1024;

/// When to drop rows again after that: flushes that fail are tried again about as often.
const EXCISED_RETRY: Duration = Duration::from_secs(5);

impl Tablet {
    /// Deletes all rows of a range that were written before now; durable and visible when it resolves.
    /// Rows outside of the tablet are ignored. `false` where nothing was done since the tablet keeps its changes: a history does not
    /// have the rows that a drop takes. After an error that is [in doubt](Error::in_doubt) they may be gone, all or none,
    /// from the next start on. It is refused where the log waits for space, as writes are.
    pub async fn drop_rows(&self, range: RowRange) -> Result<bool> {
        self.drop_rows_while(range, || true).await
    }

    /// The same, of rows that were written before it is asked for the last time whether the drop is still `wanted`: it waits for others, and who
    /// has given up meanwhile may have written anew what would go.
    pub async fn drop_rows_while(
        &self,
        range: RowRange,
        wanted: impl Fn() -> bool,
    ) -> Result<bool> {
        let range = range.intersect(&self.range);
        if range.is_empty() {
            return Ok(true);
        }
        self.core.check_writable()?;
        self.check_room()?;
        let stays = |older: &&Excised| !range.contains_range(&older.range);
        let view = self.view.load_full();
        if view.excised().iter().filter(stays).count() >= EXCISED_WAITING_MAX {
            if view.waiting.is_empty() {
                // Nothing else may come that has them looked at.
                self.rotate_now();
            }
            let text = format!(
                "{EXCISED_WAITING_MAX} ranges of rows were dropped since memtables were flushed last; flushes are behind, or fail: the log tells why"
            );
            return Err(Error::overloaded(text, EXCISED_RETRY));
        }
        drop(view);
        // A read-modify-write that has read what is dropped now must come before the drop; and no reader
        // may see a write that comes after it while the view still shows what was before.
        let locks = self.locks.lock_all().await;
        let excised = self.excise(range, wanted)?;
        drop(locks);
        let Some(seq) = excised else { return Ok(false) };
        self.core.pipeline.wait_visible(seq).await.map(|()| true).map_err(Error::in_doubt)
    }

    fn excise(&self, range: RowRange, wanted: impl Fn() -> bool) -> Result<Option<Seq>> {
        let mut manifest = self.lock_manifest();
        // It may have begun while locks were waited for; with this one it cannot.
        if self.changes_kept().is_some() {
            return Ok(None);
        }
        if !wanted() {
            let text = "the rows are as they were: nobody waits for the drop any more";
            return Err(Error::new(ErrorKind::Cancelled, text));
        }
        let (seq, view) = {
            // Under the writer lock, what is in memory is older than `seq` and what comes is newer.
            let _writer = self.lock_writer();
            (self.core.pipeline.reserve_seq(), self.view.load_full())
        };
        let version = manifest.version();
        let mut edit = VersionEdit { last_seq: Some(seq), ..VersionEdit::default() };
        cut_out(&mut edit, &version, &view, &range, |_| true);
        // Older ones within this one hide nothing that it does not. Who reads by an older version has them there.
        let within = version.excised().iter().filter(|older| range.contains_range(&older.range));
        edit.remove_excised = within.cloned().collect();
        let excised = Excised { range, seq };
        edit.add_excised.push(excised.clone());
        // What is read-only stays as it is: the log may have failed while locks were waited for.
        self.core.check_healthy()?;
        // What a crash loses is the end of history: no write that came before the drop, in whichever tablet, may go where the drop stays.
        let pipeline = &self.core.pipeline;
        pipeline.log().sync(pipeline.recorded())?;
        self.install(&mut manifest, edit, Outputs::default(), 0).map_err(|error| {
            match self.core.failed() {
                Some(failure) if error.is_in_doubt() => failure.in_doubt(),
                _ => error,
            }
        })?;
        let mut jobs = self.jobs();
        if !jobs.running.is_empty() {
            jobs.drops.push_back(excised);
        }
        drop(jobs);
        let view = self.view.load_full();
        // Where a flush is to come already, what it leaves is looked at by the next drop.
        if view.excised().len() > EXCISED_MAX && view.waiting.is_empty() {
            self.rotate_now();
        }
        Ok(Some(seq))
    }

    /// Has an edit of the version remove the dropped ranges that hide nothing in memory once so many of the memtables that wait are
    /// flushed. The caller holds the manifest's lock: what is written from here on is newer than all of them.
    pub(super) fn forget_drops(&self, edit: &mut VersionEdit, version: &Version, flushed: usize) {
        let view = self.view.load();
        let hides = hides_in(view.waiting.iter().skip(flushed).chain([&view.active]));
        let idle = version.excised().iter().filter(|excised| !hides(excised));
        let more: Vec<_> = idle.filter(|e| !edit.remove_excised.contains(e)).cloned().collect();
        edit.remove_excised.extend(more);
    }

    /// Announces a job whose outputs must respect drops from now on.
    pub(super) fn begin_job(&self) -> RunningJob<'_> {
        let mut jobs = self.jobs();
        let began = jobs.drops_before + jobs.drops.len() as u64;
        jobs.running.push(began);
        drop(jobs);
        RunningJob { tablet: self, began }
    }
}

/// Ends the job when dropped.
pub(super) struct RunningJob<'a> {
    tablet: &'a Tablet,
    /// The drops before it.
    began: u64,
}

impl RunningJob<'_> {
    /// The outputs of the job, which are open, without the rows that were dropped while it ran. The caller holds
    /// the manifest lock and is about to install them.
    pub(super) fn cut_by_drops(
        &self,
        outputs: Vec<SstRef>,
        opened: &[Arc<SstFile>],
    ) -> Vec<SstRef> {
        let drops: Vec<Excised> = {
            let jobs = self.tablet.jobs();
            let before = usize::try_from(self.began.saturating_sub(jobs.drops_before));
            jobs.drops.iter().skip(before.unwrap_or(usize::MAX)).cloned().collect()
        };
        if drops.is_empty() {
            return outputs;
        }
        let opened: HashMap<FileId, _> = opened.iter().map(|open| (open.id(), open)).collect();
        let mut left = outputs;
        for drop in &drops {
            let mut cut = Vec::with_capacity(left.len());
            for file in left {
                if file.max_seq <= drop.seq && file.overlaps(&drop.range) {
                    let open = opened.get(&file.id).copied();
                    cut.extend(cut_sized(open, &file, &drop.range));
                } else {
                    cut.push(file);
                }
            }
            left = cut;
        }
        left
    }
}

impl Drop for RunningJob<'_> {
    fn drop(&mut self) {
        let mut jobs = self.tablet.jobs();
        if let Some(at) = jobs.running.iter().position(|began| *began == self.began) {
            jobs.running.swap_remove(at);
        }
        // What every job that is left began after, nobody asks for any more.
        let oldest = jobs.running.iter().min().copied().unwrap_or(u64::MAX);
        while jobs.drops_before < oldest && jobs.drops.pop_front().is_some() {
            jobs.drops_before += 1;
        }
    }
}

/// [`job::cut_out`] with the bytes that are left of each reference; `view` has them open.
pub(super) fn cut_out(
    edit: &mut VersionEdit,
    version: &Version,
    view: &View,
    rows: &RowRange,
    of: impl Fn(&SstRef) -> bool,
) -> u64 {
    let sized = |file: &SstRef| cut_sized(view.file(file.id).ok(), file, rows);
    job::cut_out(edit, version, rows, of, sized)
}

/// What is left of `file`, which is `open`, each part with its bytes.
fn cut_sized(open: Option<&Arc<SstFile>>, file: &SstRef, dropped: &RowRange) -> Vec<SstRef> {
    if !file.overlaps(dropped) {
        return vec![file.clone()];
    }
    let mut parts = job::cut(file, dropped);
    if let Some(reader) = open.and_then(|open| open.reader().ok()) {
        for part in &mut parts {
            part.bytes = part.bytes.min(whole_block_bytes(reader, part)).max(1);
        }
    }
    parts
}

/// The bytes of the data blocks that lie as a whole in what a file shows. A block that is cut counts for nothing, so that what a drop
/// hides is never overlooked.
pub(crate) fn whole_block_bytes(reader: &Arc<SstReader>, part: &SstRef) -> u64 {
    let around = |row: &Bytes| {
        let key = row_prefix(row);
        reader.block_around(&key).unwrap_or_else(|_| {
            // Whoever reads the rows is told of the damage.
            let offset = reader.approximate_offset(&key);
            offset..offset
        })
    };
    let RowRange { start, end } = &part.visible;
    let start = if *start <= part.first_row { 0 } else { around(start).end };
    let end = if end.is_empty() || *end > part.last_row {
        reader.data_bytes()
    } else {
        around(end).start
    };
    end.saturating_sub(start)
}
