//! Dropping a range of rows: one edit of the manifest, whatever the range holds.
//!
//! The drop takes a sequence `s`. Everything in the range with a sequence up to `s` disappears:
//!
//! * SSTs are cut: each reference to an SST that overlaps the range is replaced by references to what is
//!   left of it, as visible row ranges. An SST that lies in the range goes at once.
//! * Memtables cannot be cut, so the version remembers the range as *excised* at `s`; readers hide what
//!   it covers, the flush of those memtables leaves it out, and the last such flush forgets the entry.
//! * A flush or compaction that is running has read rows that are dropped now. It finds the drop in the
//!   tablet's list when it is done and cuts its outputs, all of whose records are older than the drop:
//!   a flush begins by waiting for drops that are under way, so that those with a sequence among its
//!   memtable's are excised ranges by then. A drop stays in the list until every job has ended that began
//!   before it. Jobs that began later read what is cut already: to cut what they write once more would
//!   leave files in ever more pieces for as long as some job runs.

use crate::cell::{RowRange, Seq, row_prefix};
use crate::compaction::job;
use crate::error::Result;
use crate::manifest::{Excised, SstRef, VersionEdit};

use super::Tablet;
use super::view::View;

impl Tablet {
    /// Deletes all rows of a range that were written before now; durable and visible when it resolves.
    /// Rows outside of the tablet are ignored.
    pub async fn drop_rows(&self, range: RowRange) -> Result<()> {
        let range = range.intersect(&self.range);
        if range.is_empty() {
            return Ok(());
        }
        self.core.check_writable()?;
        // A read-modify-write that has read what is dropped now must come before the drop; and no reader
        // may see a write that comes after it while the view still shows what was before.
        let locks = self.locks.lock_all().await;
        let seq = self.excise(range)?;
        drop(locks);
        self.core.pipeline.wait_visible(seq).await
    }

    fn excise(&self, range: RowRange) -> Result<Seq> {
        let mut manifest = self.lock_manifest();
        let (seq, in_memory, view) = {
            // Under the writer lock, what is in memory is older than `seq` and what comes is newer.
            let _writer = self.lock_writer();
            let seq = self.core.pipeline.reserve_seq();
            let view = self.view.load_full();
            let in_memory = view.memtables().any(|m| !m.is_empty());
            (seq, in_memory, view)
        };
        let version = manifest.version();
        let mut edit = VersionEdit { last_seq: Some(seq), ..VersionEdit::default() };
        for file in version.ssts().filter(|f| f.span().overlaps(&range)) {
            let removed = (file.level, file.id);
            if edit.remove.contains(&removed) {
                continue;
            }
            edit.remove.push(removed);
            // Every reference to the file in the level is replaced, since edits name files, not references.
            for twin in version.ssts().filter(|t| (t.level, t.id) == removed) {
                edit.add.extend(cut_sized(&view, twin, &range));
            }
        }
        let excised = Excised { range, seq };
        if in_memory {
            edit.add_excised.push(excised.clone());
        }
        self.install(&mut manifest, &edit, Vec::new(), 0)?;
        let mut jobs = self.jobs();
        if !jobs.running.is_empty() {
            jobs.drops.push_back(excised);
        }
        Ok(seq)
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
    /// The outputs of the job without the rows that were dropped while it ran. The caller holds the
    /// manifest lock and is about to install them.
    pub(super) fn cut_by_drops(&self, outputs: Vec<SstRef>) -> Vec<SstRef> {
        let jobs = self.tablet.jobs();
        let before = usize::try_from(self.began.saturating_sub(jobs.drops_before));
        let mut left = outputs;
        for drop in jobs.drops.iter().skip(before.unwrap_or(usize::MAX)) {
            left = left
                .into_iter()
                .flat_map(|file| {
                    if file.max_seq <= drop.seq && file.span().overlaps(&drop.range) {
                        job::cut(&file, &drop.range)
                    } else {
                        vec![file]
                    }
                })
                .collect();
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

/// What is left of `file`, with the bytes of each part as far as its index tells.
fn cut_sized(view: &View, file: &SstRef, dropped: &RowRange) -> Vec<SstRef> {
    let mut parts =
        if file.span().overlaps(dropped) { job::cut(file, dropped) } else { vec![file.clone()] };
    if let Ok(open) = view.file(file.id)
        && let Ok(reader) = open.reader()
    {
        for part in &mut parts {
            let span = part.span();
            let start = reader.approximate_offset(&row_prefix(&span.start));
            let end = if span.end.is_empty() {
                reader.bytes()
            } else {
                reader.approximate_offset(&row_prefix(&span.end))
            };
            part.bytes = part.bytes.min(end.saturating_sub(start)).max(1);
        }
    }
    parts
}
