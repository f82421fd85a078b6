//! Since when there may be deletions of single cells that a flush or a compaction does not see, or cells that were collected and buried, though they
//! are newer than what it reads: what it may collect depends on them ([`crate::compaction::gc`]).
//!
//! They lie in files above, in memtables, and in writes that have a sequence and are in no memtable yet. So the clock is asked first, the
//! log second, and the view is taken last: what is in none of these by then comes after the time that the clock has told.

use crate::cell::{FAMILY_NONE, Seq};
use crate::changes::commit_micros;
use crate::compaction::gc::Times;
use crate::manifest::SstRef;
use crate::memtable::Memtable;
use crate::sst::SstProperties;

use super::Tablet;
use super::view::View;

impl Tablet {
    /// What a flush or compaction goes by, before it takes the view that it reads.
    pub(super) fn begin_collecting(&self) -> Times {
        let times = Times::all_in_sight(self.core.expiry_micros());
        let begun = self.core.pipeline.first_begun_micros();
        Times { deletions_micros: begun.unwrap_or(times.deletions_micros), ..times }
    }
}

/// The least sequence of the deletions of single cells in a file, as far as it says; no record of it has less than `min_seq`.
fn first_deletion(properties: Option<&SstProperties>, min_seq: Seq) -> Option<Seq> {
    match properties {
        Some(found) if !found.has_wide_tombstones() => None,
        Some(found) if found.deletion_seq_min > 0 => Some(found.deletion_seq_min),
        _ => Some(min_seq),
    }
}

/// The same with what of a view is newer than what is read: `files`, and `memtables`.
pub(super) fn with_newer<'v>(
    times: Times,
    view: &View,
    files: impl IntoIterator<Item = &'v SstRef>,
    memtables: impl IntoIterator<Item = &'v Memtable>,
) -> Times {
    let (mut deleted, mut buried): (Vec<Seq>, Option<Seq>) = (Vec::new(), None);
    for file in files {
        let properties = view.properties(file);
        deleted.extend(first_deletion(properties, file.min_seq));
        // Which of its records garbage collection has left it does not say.
        if properties.is_none_or(|found| found.cell_tombstones > 0) {
            buried = Some(buried.map_or(file.min_seq, |first| first.min(file.min_seq)));
        }
    }
    // Rows are deleted as a whole, and what is newer than a cell goes with it.
    let deletes = |memtable: &&Memtable| {
        let families = memtable.families();
        families.iter().any(|family| family.family != FAMILY_NONE && family.tombstones > 0)
    };
    let in_memory = memtables.into_iter().filter(deletes);
    let first = in_memory.filter_map(|memtable| memtable.seq_range()).map(|(first, _)| first);
    let since = deleted.into_iter().chain(first).min().map_or(i64::MAX, commit_micros);
    let buried = buried.map_or(i64::MAX, commit_micros);
    Times {
        deletions_micros: since.min(times.deletions_micros),
        burials_micros: buried.min(times.burials_micros),
        ..times
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::SEQ_MAX;

    #[test]
    fn a_file_has_deletions_from_where_it_says_and_what_garbage_collection_leaves_is_none() {
        let first = |cell_tombstones, deletion_seq_min| {
            let properties =
                SstProperties { cell_tombstones, deletion_seq_min, ..SstProperties::default() };
            first_deletion(Some(&properties), 40)
        };
        assert_eq!(first(3, 70), Some(70));
        assert_eq!(first(3, SEQ_MAX), None);
        assert_eq!(first(0, SEQ_MAX), None);
        // From before it was told, and where it cannot be read.
        assert_eq!((first(3, 0), first(0, 0)), (Some(40), None));
        assert_eq!(first_deletion(None, 40), Some(40));
    }
}
