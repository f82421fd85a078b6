//! What the housekeeper does for the whole engine: it bounds the memory of memtables, gives segments of the log back, and
//! sees to it that change streams lose nothing by that.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::db::Engine;
use crate::log::lock;
use crate::store::REMOVAL_RETRY_MICROS;
use crate::tablet::TabletId;

impl Engine {
    /// Sends the largest memtables to be flushed where those that take writes have grown too much: as many as bring the others
    /// below that, since of thousands of small ones each is next to nothing. What waits for its flush is as good as gone; so a
    /// tablet counts by how much more takes writes there than waits, and is left alone where that is nothing. Else, of
    /// thousands that are equal, the same few would be sent in each round, and refuse writes for how many of theirs wait.
    pub(crate) fn bound_memory(&self) {
        let core = self.core();
        core.looking_at_memory();
        if core.memtables.bytes() <= core.options.flush_from_bytes() {
            return;
        }
        let tablets = self.tablets();
        let mut sizes: Vec<_> =
            tablets.iter().map(|t| (t.active_bytes(), t.waiting_bytes(), t)).collect();
        let mut active: u64 = sizes.iter().map(|(bytes, ..)| bytes).sum();
        let flush_from = core.options.flush_from_bytes();
        if active <= flush_from {
            return;
        }
        sizes.retain(|(bytes, waiting, _)| bytes > waiting);
        sizes.sort_unstable_by_key(|(bytes, waiting, _)| Reverse(bytes - waiting));
        for (bytes, _, tablet) in sizes {
            if active <= flush_from {
                break;
            }
            tablet.rotate_now();
            active -= bytes;
        }
    }

    /// Removes log segments that no tablet needs, and keeps what change streams need of them; where the log is over its
    /// limit, sends the tablets that pin the oldest segment to be flushed. Whether there is more to be done at
    /// once: segments are removed one at a time, since that may take long. One that cannot be is left alone for a while.
    pub(crate) fn trim_log(&self) -> bool {
        let core = self.core();
        let segments = core.pipeline.log().segments();
        let mut bytes: u64 = segments.iter().map(|s| s.bytes).sum();
        let mut oldest_pinned = true;
        // The last positions of streams may be in no other place: a clock that is set back is not to give them again.
        let newest = segments.iter().rfind(|s| !s.tablets.is_empty()).map(|s| s.id);
        let flushed = || self.tablets().iter().map(|t| t.flushed_seq()).max().unwrap_or(0);
        for segment in segments.iter().filter(|s| s.sealed) {
            // One is enough to know that it stays: it may have batches of thousands of tablets.
            let mut pinning = segment.tablets.iter().filter_map(|(id, last)| {
                let tablet = self.tablet(TabletId(*id))?;
                (tablet.flushed_seq() < *last).then_some((tablet, *last))
            });
            let pinned = pinning.next();
            if pinned.is_none() {
                bytes = bytes.saturating_sub(segment.bytes);
                let again_at = lock(&core.unremoved).get(&segment.id).copied().unwrap_or(0);
                let is_newest = newest == Some(segment.id) && segment.last_seq() > flushed();
                if is_newest || core.env.clock.monotonic_micros() < again_at {
                    continue;
                }
                let kept: HashSet<u64> = segment
                    .tablets
                    .keys()
                    .copied()
                    .filter(|id| self.retention_micros(*id) > 0)
                    .collect();
                if !kept.is_empty() {
                    if !core.changes.archives(core, segment.id) {
                        continue;
                    }
                    if let Err(error) = core.changes.archive(core, segment, &kept) {
                        tracing::warn!(
                            segment = segment.id, %error,
                            "cannot keep the changes of a log segment; the segment stays until they are"
                        );
                        continue;
                    }
                }
                let Err(error) = core.pipeline.log().remove_segment(segment.id) else {
                    return true;
                };
                tracing::warn!(segment = segment.id, %error, "cannot remove a log segment");
                let now = core.env.clock.monotonic_micros();
                let mut unremoved = lock(&core.unremoved);
                unremoved.retain(|_, again_at| *again_at > now);
                unremoved.insert(segment.id, now.saturating_add(REMOVAL_RETRY_MICROS));
            } else if oldest_pinned {
                oldest_pinned = false;
                if bytes > core.options.log_bytes_max {
                    for (tablet, last) in pinned.into_iter().chain(pinning) {
                        tablet.rotate_through(last);
                    }
                }
            }
        }
        false
    }

    /// Gives up change files that are not kept any longer, to be removed at this pace (0 for none). How long the next of
    /// them have to wait, if there are more.
    pub(crate) fn expire_changes(&self, bytes_per_second: u64) -> Option<Duration> {
        let core = self.core();
        core.changes.expire(core, bytes_per_second, &|tablet| match tablet {
            Some(tablet) => self.retention_micros(tablet),
            None => {
                let tablets = self.tablets();
                let kept = tablets.iter().map(|t| t.changes_kept_micros().load(Ordering::Acquire));
                kept.max().unwrap_or(0)
            }
        })
    }

    /// For how long the changes of a tablet are kept, in microseconds; 0 where they are not.
    fn retention_micros(&self, tablet: u64) -> u64 {
        self.tablet(TabletId(tablet))
            .map_or(0, |tablet| tablet.changes_kept_micros().load(Ordering::Acquire))
    }
}
