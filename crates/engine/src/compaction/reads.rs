//! Merges of level 0 that reads have paid for.
//!
//! The shape of a tree says what writers and the disk need. Level 0 may be in order by it for as long as nobody writes, while
//! every read looks into three files and a memtable. So a tablet counts the places in which its reads look beyond one,
//! *looks*: once what they took is as much as a merge would, it is done. Whatever comes then, both
//! together take at most twice as long as if what comes had been known.
//!
//! ```text
//! looks    ......::::::::::|.                     ::::::::|.
//! places   3333333333333333|1111111 2222 (flush)  22222222|1111
//!                          merge                          merge, for there is a tenth of new data again
//! ```

use super::pick::{Busy, Pick, Reason, pick_l0};
use super::shape::Shape;
use crate::manifest::Version;
use crate::options::CompactionStyle;

/// Bytes that a merge may read for each look that it spares. As measured, a look takes a cached read 1.6 us (a search in a memtable;
/// filter, index and block of a file; the joining of the row), a merge 5 ns a byte, and half as much again those reads that find its
/// outputs not cached yet.
const BYTES_PER_LOOK: u64 = 256;

/// What a merge costs whatever its size, in bytes: a flush, files, an edit of the manifest, what reads have cached. With 32 MiB a
/// small table is merged for 131,072 looks at the earliest, which is a second or more of nothing but reads.
const MERGE_COST_BYTES: u64 = 32 << 20;

/// Bytes of a merge over those that are new in it, at most: what a level costs and half as much again, so that no disk is worn more by
/// reads than by writes.
const REWRITE_MAX: u64 = 16;

/// Whether reads have looked so often that a merge of `all` bytes pays.
pub(crate) fn are_enough(looks: u64, all: u64) -> bool {
    looks.saturating_mul(BYTES_PER_LOOK) >= all.saturating_add(MERGE_COST_BYTES)
}

/// Whether `new` bytes are worth to be merged with others, `all` together.
pub(crate) fn is_worth(new: u64, all: u64) -> bool {
    new.saturating_mul(REWRITE_MAX) >= all
}

/// The column of level 0 to merge for so many looks; of any size, where a memtable was flushed for it. A tiered tablet has many
/// runs on purpose.
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
    let pick = pick_l0(version, shape, Reason::Reads, None, busy)?;
    let of_level_zero = pick.inputs.iter().filter(|file| file.level == 0);
    let new = of_level_zero.map(|file| file.bytes).sum();
    let all = pick.input_bytes();
    // One file alone would be as many places afterwards.
    let pays = pick.inputs.len() > 1 && are_enough(looks, all);
    (pays && (is_flushed_for_it || is_worth(new, all))).then_some(pick)
}
