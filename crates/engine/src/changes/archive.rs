//! Keeping what change streams need of a segment of the log that is about to be removed.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::file::{ChangeFileWriter, UNFINISHED};
use super::{ARCHIVE_WAIT_MICROS, ChangeLog};
use crate::compaction::pace::{STEP_BYTES, Urgency};
use crate::core::Core;
use crate::error::Result;
use crate::log::record::Tail;
use crate::log::segment::SegmentReader;
use crate::log::{SegmentInfo, batch_head};

impl ChangeLog {
    /// Whether segments are to be [archived](Self::archive) now: one could not be a moment ago.
    pub(crate) fn archives(&self, core: &Core) -> bool {
        core.env.clock.monotonic_micros() >= self.archive_at.load(Ordering::Relaxed)
    }

    /// Copies the batches of these tablets out of a sealed segment, durably. Does nothing where that was done before. Blocks.
    pub(crate) fn archive(
        &self,
        core: &Core,
        segment: &SegmentInfo,
        tablets: &HashSet<u64>,
    ) -> Result<()> {
        self.copy_out(core, segment, tablets).inspect_err(|_| {
            let now = core.env.clock.monotonic_micros();
            self.archive_at.store(now.saturating_add(ARCHIVE_WAIT_MICROS), Ordering::Relaxed);
        })
    }

    fn copy_out(&self, core: &Core, segment: &SegmentInfo, tablets: &HashSet<u64>) -> Result<()> {
        if self.files().iter().any(|file| file.segment == segment.id) {
            return Ok(());
        }
        let files = core.env.files.as_ref();
        let unfinished = self.dir.join(format!("{:016x}{UNFINISHED}", segment.id));
        if files.exists(&unfinished)? {
            files.remove(&unfinished)?;
        }
        let copied = || {
            let mut writer = ChangeFileWriter::create(files, &unfinished, segment.id)?;
            let mut paced = 0;
            let mut reader =
                SegmentReader::open(files, &core.layout.log(), segment.id, Tail::Sealed)?;
            while let Some(record) = reader.next_stored()? {
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
            let Some(file) = writer.finish()? else { return Ok(None) };
            files.rename(&unfinished, &self.dir.join(file.name()))?;
            files.sync_dir(&self.dir)?;
            Ok(Some(file))
        };
        match copied() {
            Ok(Some(file)) => {
                self.written_bytes.fetch_add(file.bytes, Ordering::Relaxed);
                let mut known = self.files();
                let at = known.partition_point(|known| known.segment < file.segment);
                known.insert(at, Arc::new(file));
                Ok(())
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
