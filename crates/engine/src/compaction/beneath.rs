//! What lies beneath a compaction: older data of its rows that it does not read.
//!
//! A record that hides others must stay while something that it hides may be there. Of a file not read that is known
//! without a look into it: each SST says how large the timestamps of a family's cells are at most. Rows that are
//! written again and again get timestamps that grow, so that what a flush collects of them is newer than all that was
//! flushed before, and nothing need be left in its place:
//!
//! ```text
//! memtable  r: a@9 a@8 a@7     one version is kept: a@8 and a@7 go
//! L0        r: a@4             largest 4: no a@7 that would come back
//! L6        r: a@2             largest 3
//! ```

use std::collections::BTreeMap;

use crate::cell::{FAMILY_NONE, FamilyId, Timestamp};
use crate::compaction::pick::Pick;
use crate::manifest::{SstRef, Version};
use crate::sst::SstProperties;

/// Older data of the rows of a compaction that is not among its inputs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Beneath {
    /// There may be anything.
    Anything,
    /// Cells of these families, with timestamps that are no larger.
    Cells(BTreeMap<FamilyId, Timestamp>),
}

impl Beneath {
    /// There is none.
    pub const NOTHING: Self = Self::Cells(BTreeMap::new());

    /// What files have; `properties` gives those of a file, `None` where they are not known.
    pub(crate) fn of<'f, 'p>(
        files: impl IntoIterator<Item = &'f SstRef>,
        properties: &dyn Fn(&SstRef) -> Option<&'p SstProperties>,
    ) -> Self {
        let mut newest: BTreeMap<FamilyId, Timestamp> = BTreeMap::new();
        for file in files {
            let Some(properties) = properties(file) else { return Self::Anything };
            let of_families = properties.families.values().map(|family| family.cells);
            if of_families.fold(0, u64::saturating_add) != properties.cells {
                return Self::Anything;
            }
            let with_cells = properties.families.iter().filter(|(_, family)| family.cells > 0);
            for (id, family) in with_cells {
                let known = newest.entry(*id).or_insert(Timestamp::MIN);
                *known = family.timestamp_max.max(*known);
            }
        }
        Self::Cells(newest)
    }

    /// Whether a cell of `family`, or of any for [`FAMILY_NONE`], with a timestamp from `from` on may be there.
    pub(super) fn may_have(&self, family: FamilyId, from: Timestamp) -> bool {
        match self {
            Self::Anything => true,
            Self::Cells(newest) if family == FAMILY_NONE => !newest.is_empty(),
            Self::Cells(newest) => newest.get(&family).is_some_and(|newest| *newest >= from),
        }
    }
}

/// The files with older data of the rows of `pick` that are not its inputs: below where it writes, and where that is level 0
/// also in it.
pub(crate) fn files_beneath<'v>(version: &'v Version, pick: &Pick) -> Vec<&'v SstRef> {
    if pick.bottommost {
        return Vec::new();
    }
    let newest = pick.inputs.iter().map(|file| file.max_seq).max();
    others_of_rows(version, pick)
        .filter(|file| match pick.output_level {
            0 if file.level == 0 => newest.is_none_or(|newest| file.min_seq <= newest),
            output_level => file.level > output_level,
        })
        .collect()
}

/// The files that may have newer data of the rows of `pick` and are not its inputs: all but those further down. In level 0 that may
/// be older ones, too.
pub(crate) fn files_above<'v>(version: &'v Version, pick: &Pick) -> Vec<&'v SstRef> {
    others_of_rows(version, pick).filter(|file| file.level <= pick.output_level).collect()
}

fn others_of_rows<'v>(version: &'v Version, pick: &Pick) -> impl Iterator<Item = &'v SstRef> {
    let span = pick.span();
    // Of a file that is cut, other pieces may be none.
    let inputs = pick.references();
    let files = version.ssts().map(AsRef::as_ref);
    files.filter(move |file| !inputs.have(file) && file.span().overlaps(&span))
}
