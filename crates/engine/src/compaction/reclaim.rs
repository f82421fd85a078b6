//! Which SST to rewrite so that value files with much garbage go away.
//!
//! Ordinary compactions move values out of sparse value files as they come by, within a budget for each
//! ([`MOVE_FILES_MAX`]); so in a table that is written to, most files empty without further ado. What is left is
//! picked here, one SST at a time, once it is worth it: rewriting an SST moves the values of all sparse files that its rows
//! have, so it is not done for a single file, whose rows may be spread over every SST; nor where an SST that holds much else names little
//! of them, and would be rewritten for it.

use std::collections::HashSet;
use std::sync::Arc;

use super::pick::{Busy, Pick, Reason, complete, pieces};
use super::shape::LAST_LEVEL;
use crate::manifest::{SstRef, Version};
use crate::sst::FileId;

/// Values that one job moves, in target sizes of files. With 4 it moves about as much as the flushes brought for
/// which level 0 is compacted; when many files become sparse at once, they are emptied over many jobs, and values
/// that die in the meantime need not be moved.
pub(crate) const MOVE_FILES_MAX: u64 = 4;

/// Percent of all bytes in value files that the garbage of sparse ones must be to be reclaimed for its own sake.
/// Less would rewrite SSTs for little; more would let space go that a tablet, which is no longer written to,
/// never gets back otherwise; see also [`RECLAIM_COST_MAX`].
const RECLAIM_PERCENT: u64 = 10;

/// Bytes of SSTs that are rewritten for a byte of garbage, at most. Less would let much of it lie in tables of which a tenth are large
/// values; more would write a table of small cells for the few large ones that are spread over it.
const RECLAIM_COST_MAX: u64 = 4;

/// What an SST has to do with sparse value files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SparseShare {
    /// Bytes of them that it names.
    pub(crate) named: u64,
    /// Its part of their garbage, by what it names of what is live.
    pub(crate) frees: u64,
}

impl SparseShare {
    /// Adds a file of which the SST names so many bytes.
    pub(crate) fn add(&mut self, named: u64, live: u64, garbage: u64) {
        let frees = u128::from(garbage) * u128::from(named) / u128::from(live.max(named).max(1));
        self.named = self.named.saturating_add(named);
        self.frees = self.frees.saturating_add(u64::try_from(frees).unwrap_or(garbage));
    }
}

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

/// Rewrites the SST that names the most bytes of sparse value files in its level, where that is worth it, or the disk fills (`tight`). `sparse` tells what
/// an SST has to do with those. Level 0 is left alone: with what it names it is light, or goes down, and finds its sparse files there.
pub(crate) fn pick_to_reclaim(
    version: &Version,
    busy: &Busy,
    bytes: ValueBytes,
    sparse: &dyn Fn(FileId) -> SparseShare,
    tight: bool,
) -> Option<Pick> {
    if !bytes.is_due() {
        return None;
    }
    let worth = |frees: u64| if tight { u64::MAX } else { frees.saturating_mul(RECLAIM_COST_MAX) };
    let mut candidates: Vec<(SparseShare, &Arc<SstRef>)> = version
        .ssts()
        .filter(|file| (1..=LAST_LEVEL).contains(&file.level) && !busy.files.contains(&file.id))
        .map(|file| (sparse(file.id), file))
        // What is left of one that is cut is asked of its pick.
        .filter(|(share, file)| {
            share.named > 0 && (file.is_cut() || file.bytes <= worth(share.frees))
        })
        .collect();
    candidates.sort_by_key(|(share, file)| (std::cmp::Reverse(share.named), file.id));
    candidates.into_iter().find_map(|(_, file)| {
        let inputs = pieces(version, file, file.level).to_vec();
        let pick = complete(version, Reason::Reclaim, inputs, file.level, busy)?;
        let files: HashSet<FileId> = pick.inputs.iter().map(|file| file.id).collect();
        let frees = files.into_iter().map(|id| sparse(id).frees).fold(0, u64::saturating_add);
        (pick.file_bytes(version) <= worth(frees)).then_some(pick)
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::cell::RowRange;
    use crate::manifest::VersionEdit;

    #[test]
    fn an_sst_is_not_rewritten_for_less_garbage_than_it_is_worth_but_where_the_disk_fills() {
        let file = |id, (first, last): (&'static [u8], &'static [u8])| {
            let rows = (Bytes::from_static(first), Bytes::from_static(last));
            SstRef::of_test(id, LAST_LEVEL, rows, 4000)
        };
        let add = vec![file(1, (b"a", b"c")), file(2, (b"d", b"f"))];
        let edit = VersionEdit { add, ..VersionEdit::default() };
        let version = Version::empty(RowRange::all()).apply(&edit).unwrap();
        let pick = |garbage: u64, tight| {
            // The first value file has the garbage, and 450 bytes that are live; the other 150 of the two SSTs' 600 are in the second.
            let share = |id| {
                let mut share = SparseShare::default();
                let (named, other) = if id == 1 { (200, 100) } else { (250, 50) };
                share.add(named, 450, garbage);
                share.add(other, 150, 0);
                share
            };
            let bytes = ValueBytes { total: 600 + garbage, sparse_garbage: garbage };
            let pick = pick_to_reclaim(&version, &Busy::default(), bytes, &share, tight)?;
            Some(pick.inputs.iter().map(|file| file.id).collect::<Vec<_>>())
        };
        // 200 of 450 are worth less than 800 then, and 250 of them less than a thousand, of which 4,000 bytes are four times as many.
        assert_eq!(pick(1799, false), None);
        assert_eq!(pick(1800, false), Some(vec![2]));
        assert_eq!(pick(1799, true), Some(vec![1]));
    }
}
