//! What flushes and compactions found out of their outputs: from when on garbage collection has something to take away there.
//!
//! The properties of an SST tell less. Of a rule that is an intersection, one column may have the versions and another the age,
//! and no cell both: by its properties the file may hold garbage for ever, and rewriting it would change nothing.
//!
//! Kept in memory alone: after a restart such a file is rewritten once more, and then known again.

use std::collections::HashMap;
use std::sync::Arc;

use crate::cell::FamilyId;
use crate::compaction::gc::Dues;
use crate::schema::{FamilyOptions, TabletSchema};
use crate::sst::FileId;

/// The dues of a tablet's SSTs, as far as they are known, by the rules of one schema.
#[derive(Debug, Default)]
pub(super) struct KnownDues {
    schema: Option<Arc<TabletSchema>>,
    files: HashMap<FileId, Dues>,
}

impl KnownDues {
    /// Those by the rules of `schema`. What was found of a family by other rules says nothing of these, and is forgotten; what was found of the
    /// others stays, so that a change of one family has no file rewritten that has nothing of it.
    pub(super) fn by(&mut self, schema: &Arc<TabletSchema>) -> &mut HashMap<FileId, Dues> {
        if self.schema.as_ref() != Some(schema)
            && let Some(before) = self.schema.replace(Arc::clone(schema))
        {
            let is_other =
                |(id, family): &(&FamilyId, &FamilyOptions)| before.family(**id) != Some(*family);
            let changed = schema.families.iter().filter(is_other);
            let changed: Vec<FamilyId> = changed.map(|(id, _)| *id).collect();
            for dues in self.files.values_mut() {
                dues.forget(&changed, |family| schema.family(family).is_some());
            }
        }
        &mut self.files
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::GcRule;

    #[test]
    fn a_change_of_a_family_says_nothing_of_the_others() {
        let schema = |ages: &[(u32, i64)]| {
            let family = |(id, age): &(u32, i64)| {
                let gc = Some(GcRule::MaxAge(*age));
                (FamilyId(*id), FamilyOptions { gc, ..FamilyOptions::default() })
            };
            Arc::new(TabletSchema { families: ages.iter().map(family).collect() })
        };
        let mut known = KnownDues::default();
        let mut dues = Dues::default();
        for family in 1..=3 {
            dues.note(FamilyId(family), 70);
        }
        known.by(&schema(&[(1, 10), (2, 10), (3, 10), (4, 10)])).insert(9, dues);
        let mut dues_by = |ages: &[(u32, i64)]| {
            let dues = &known.by(&schema(ages))[&9];
            [1, 2, 3, 4, 5].map(|family| dues.of(FamilyId(family)))
        };
        let never = i64::MAX;
        let same = dues_by(&[(1, 10), (2, 10), (3, 10), (4, 10)]);
        assert_eq!(same, [70, 70, 70, never, never]);
        // One more and one less, and other rules of one with a due and of one without.
        let changed = dues_by(&[(1, 10), (2, 20), (4, 20), (5, 10)]);
        assert_eq!(changed, [70, i64::MIN, never, i64::MIN, i64::MIN]);
        assert_eq!(dues_by(&[(1, 10), (2, 10), (4, 20), (5, 10)])[..2], [70, i64::MIN]);
    }
}
