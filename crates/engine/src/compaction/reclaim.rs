//! Which SST to rewrite so that value files with much garbage go away.
//!
//! Ordinary compactions move values out of sparse value files as they come by, within a budget for each
//! ([`MOVE_FILES_MAX`]); so in a table that is written to, most files empty without further ado. What is left is
//! picked here, one SST at a time, once it is worth it: rewriting an SST moves the values of all sparse files that its rows
//! have, so it is not done for a single file, whose rows may be spread over every SST.

use std::sync::Arc;

use super::pick::{Busy, Pick, Reason, complete, twins};
use super::shape::LAST_LEVEL;
use crate::manifest::{SstRef, Version};
use crate::sst::FileId;

/// Values that one job moves, in target sizes of files. With 4 it moves about as much as the flushes brought for
/// which level 0 is compacted; when many files become sparse at once, they are emptied over many jobs, and values
/// that die in the meantime need not be moved.
pub(crate) const MOVE_FILES_MAX: u64 = 4;

/// Percent of all bytes in value files that the garbage of sparse ones must be to be reclaimed for its own sake.
/// Less would rewrite SSTs for little; more would let space go that a tablet, which is no longer written to,
/// never gets back otherwise.
const RECLAIM_PERCENT: u64 = 10;

/// What is known of value files, in bytes of frames.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ValueBytes {
    /// All.
    pub(crate) total: u64,
    /// Of these, what nothing names, in sparse files.
    pub(crate) sparse_garbage: u64,
}

impl ValueBytes {
    /// Whether sparse files are to be emptied for their own sake.
    pub(crate) fn is_due(&self) -> bool {
        self.sparse_garbage > 0
            && self.sparse_garbage.saturating_mul(100) >= self.total.saturating_mul(RECLAIM_PERCENT)
    }
}

/// Rewrites the SST that names the most bytes of sparse value files in its level. `sparse_bytes` tells how many those
/// are of an SST. Level 0 is left alone: with what it names it is light, or goes down, and finds its sparse files there.
pub(crate) fn pick_to_reclaim(
    version: &Version,
    busy: &Busy,
    bytes: ValueBytes,
    sparse_bytes: &dyn Fn(FileId) -> u64,
) -> Option<Pick> {
    if !bytes.is_due() {
        return None;
    }
    let mut candidates: Vec<(u64, &Arc<SstRef>)> = version
        .ssts()
        .filter(|file| (1..=LAST_LEVEL).contains(&file.level) && !busy.files.contains(&file.id))
        .map(|file| (sparse_bytes(file.id), file))
        .filter(|(bytes, _)| *bytes > 0)
        .collect();
    candidates.sort_by_key(|(bytes, file)| (std::cmp::Reverse(*bytes), file.id));
    candidates.into_iter().find_map(|(_, file)| {
        complete(version, Reason::Reclaim, twins(version, file), file.level, busy)
    })
}
