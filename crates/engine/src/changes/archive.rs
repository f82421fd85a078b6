//! Keeping what change streams need of a segment of the log that is about to be removed.

use std::cell::Cell;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::file::{ChangeFileWriter, UNFINISHED};
use super::{ARCHIVE_WAIT_MICROS, ChangeLog};
use crate::compaction::pace::{STEP_BYTES, Urgency};
use crate::core::Core;
use crate::error::{ErrorKind, Result};
use crate::log::record::Tail;
use crate::log::segment::SegmentReader;
use crate::log::{SegmentInfo, batch_head, lock};

impl ChangeLog {
    /// Whether a segment is to be [archived](Self::archive) now: a moment ago it, or any, could not be.
    pub(crate) fn archives(&self, core: &Core, segment: u64) -> bool {
        let now = core.env.clock.monotonic_micros();
        let its_own = lock(&self.unreadable).get(&segment).copied().unwrap_or(0);
        now >= self.archive_at.load(Ordering::Relaxed).max(its_own)
    }

    /// Copies the batches of these tablets out of a sealed segment, durably. Does nothing where that was done before. One that
    /// cannot be read is left alone for a while, and all of them after any other failure. Blocks.
    pub(crate) fn archive(
        &self,
        core: &Core,
        segment: &SegmentInfo,
        tablets: &HashSet<u64>,
    ) -> Result<()> {
        let unread = Cell::new(false);
        self.copy_out(core, segment, tablets, &unread).inspect_err(|error| {
            let now = core.env.clock.monotonic_micros();
            let until = now.saturating_add(ARCHIVE_WAIT_MICROS);
            if unread.get() && error.kind() != ErrorKind::Exhausted {
                let mut unreadable = lock(&self.unreadable);
                unreadable.retain(|_, until| *until > now);
                unreadable.insert(segment.id, until);
            } else {
                self.archive_at.store(until, Ordering::Relaxed);
            }
        })
    }

    /// `unread` is set where the error is one of reading the segment.
    fn copy_out(
        &self,
        core: &Core,
        segment: &SegmentInfo,
        tablets: &HashSet<u64>,
        unread: &Cell<bool>,
    ) -> Result<()> {
        if self.files().iter().any(|file| file.segment == segment.id) {
            return self.keep_list(core);
        }
        let files = core.env.files.as_ref();
        let unfinished = self.dir.join(format!("{:016x}{UNFINISHED}", segment.id));
        if files.exists(&unfinished)? {
            files.remove(&unfinished)?;
        }
        let copied = || {
            let mut writer = ChangeFileWriter::create(files, &unfinished, segment.id)?;
            let mut paced = 0;
            let opened = SegmentReader::open(files, &core.layout.log(), segment.id, Tail::Sealed);
            let mut reader = opened.inspect_err(|_| unread.set(true))?;
            while let Some(record) = reader.next_stored().inspect_err(|_| unread.set(true))? {
                if let Some(head) = batch_head(&record.payload)
                    && tablets.contains(&head.tablet)
                {
                    writer.add(head, &record.payload)?;
                }
                if writer.len() >= paced + STEP_BYTES {
                    // The log waits for it: it takes from the others and does not wait itself.
                    core.keep_pace(writer.len() - paced, Urgency::Flush, &|| true);
                    paced = writer.len();
                }
            }
            let Some(file) = writer.finish(&self.lists)? else { return Ok(None) };
            files.rename(&unfinished, &self.dir.join(file.name()))?;
            core.sync_dir(&self.dir)?;
            Ok(Some(file))
        };
        match copied() {
            Ok(Some(file)) => {
                self.written_bytes.fetch_add(file.bytes, Ordering::Relaxed);
                let mut known = self.files();
                let at = known.partition_point(|known| known.segment < file.segment);
                known.insert(at, Arc::new(file));
                drop(known);
                self.keep_list(core)
            }
            Ok(None) => files.remove(&unfinished),
            Err(error) => {
                // Whatever is left of it goes with the next attempt or start.
                let _ = files.remove(&unfinished);
                Err(error)
            }
        }
    }
}
