//! Merges of level 0 that reads have paid for.
//!
//! The shape of a tree says what writers and the disk need. By it level 0 may be in order for as long as nobody writes, while
//! every read looks into three files and a memtable. So a tablet counts *looks*: the places that reads look into and a merge
//! of level 0 would spare. Once these took about as long as the merge would, it is made. Whatever comes then, both together take
//! at most about twice as long as if it had been known.
//!
//! ```text
//! looks    ......::::::::::|.                ::::::::|.
//! places   3333333333333333|1111111 22222222222222222|1111
//!                          merge    writes           merge
//! ```

use super::pick::{Busy, Pick, Reason, pick_column};
use super::shape::Shape;
use super::sublevels;
use crate::manifest::Version;
use crate::options::CompactionStyle;

/// Bytes that a merge may read for each look that it spares. As measured, a look takes a cached read 2 us and more (a search in a
/// memtable; filter, index and block of a file; the joining of the row) and a merge 5 ns a byte, and half as much again those
/// reads that find its outputs not cached yet.
const BYTES_PER_LOOK: u64 = 256;

/// What a merge costs whatever its size, in bytes: a flush, files, edits of the manifest, what reads have cached. With 32 MiB a
/// small table is merged for 131,072 looks at the earliest, which is most of a second of nothing but reads on one core.
const MERGE_COST_BYTES: u64 = 32 << 20;

/// Bytes of a merge over those that are new in it, at most; of a memtable as it lies in memory. A level costs ten: what is read all the
/// time is worth more than that, and no table is written over and over for a few new rows.
const REWRITE_MAX: u64 = 16;

/// Looks that pay for a merge of `all` bytes; for what a memtable was flushed for, no more than its bytes: the rest is paid.
pub(crate) fn price(all: u64, is_flushed_for_it: bool) -> u64 {
    let more = if is_flushed_for_it { 0 } else { MERGE_COST_BYTES };
    all.saturating_add(more).div_ceil(BYTES_PER_LOOK)
}

/// Whether reads have looked so often that a merge of `all` bytes pays.
pub(crate) fn are_enough(looks: u64, all: u64) -> bool {
    looks >= price(all, false)
}

/// Whether `new` bytes are worth to be merged with others, `all` together.
pub(crate) fn is_worth(new: u64, all: u64) -> bool {
    new.saturating_mul(REWRITE_MAX) >= all
}

/// The column of level 0 to merge for so many looks; however little of it is new, where a memtable was flushed for it. A tiered
/// tablet has many runs on purpose.
pub(crate) fn pick_for_reads(
    version: &Version,
    shape: &Shape,
    looks: u64,
    is_flushed_for_it: bool,
    busy: &Busy,
) -> Option<Pick> {
    if shape.style == CompactionStyle::Tiered {
        return None;
    }
    let pays = |pick: &Pick| {
        let level_zero: Vec<_> = pick.inputs.iter().filter(|f| f.level == 0).cloned().collect();
        let places = sublevels::arrange(&level_zero).len()
            + usize::from(level_zero.len() < pick.inputs.len());
        let (new, all) = (level_zero.iter().map(|file| file.bytes).sum(), pick.input_bytes());
        let is_paid = looks >= price(all, is_flushed_for_it);
        places > 1 && is_paid && (is_flushed_for_it || is_worth(new, all))
    };
    pick_column(version, shape, Reason::Reads, None, 0, busy, &pays)
}
