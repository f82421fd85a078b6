//! Ages: the files of level 0 in groups between which the sequences tell what is newer.
//!
//! The files that a flush or a merge is cut into have different rows and sequences that interleave: the greatest sequence
//! of such a file tells its place among the files that it shares rows with, and nothing more. So files whose sequences
//! interleave are one *age*, and merges within level 0 take whole ages that lie next to each other:
//!
//! ```text
//! sequences        1 ............ 49 | 50 ........... 100 | 101 ......... 200
//! rows [a..f]      [1 ......... 49]  |  [51 ........ 100] |  [101 ..... 160]
//! rows [g..l]        [3 ..... 48]    |  [50 ...... 98]    |       [140 ... 200]
//!                     one age               another              the newest
//! ```
//!
//! What comes of such a merge has its sequences between those of the ages beside it, wherever it is cut. Taking one file of an
//! age and leaving another, the merge would put rows of the age into a file whose greatest sequence is that of a row of
//! a newer one; cut again, the piece without that row would sort behind what it is newer than.
//!
//! So this holds: **files of level 0 that share rows have sequences that do not interleave**. Flushes keep to it, as every
//! memtable is newer than the one before it; merges by taking whole ages; what goes down only leaves.

use std::ops::Range;
use std::sync::Arc;

use crate::manifest::SstRef;

/// The ages of `l0`, which is newest first, as ranges of its places; the newest age first.
pub(crate) fn ages(l0: &[Arc<SstRef>]) -> Vec<Range<usize>> {
    let mut ages: Vec<Range<usize>> = Vec::new();
    let mut least = u64::MAX;
    for (at, file) in l0.iter().enumerate() {
        match ages.last_mut() {
            Some(age) if file.max_seq >= least => {
                age.end = at + 1;
                least = least.min(file.min_seq);
            }
            _ => {
                ages.push(at..at + 1);
                least = file.min_seq;
            }
        }
    }
    ages
}

/// Two files of `l0`, which is newest first, that share rows and whose sequences interleave, if there are any: which of
/// them is newer, nothing tells.
pub(crate) fn doubt(l0: &[Arc<SstRef>]) -> Option<(&SstRef, &SstRef)> {
    ages(l0).into_iter().filter_map(|age| l0.get(age)).find_map(|files| {
        files.iter().enumerate().find_map(|(at, file)| {
            let span = file.span();
            let mut older = files.iter().skip(at + 1);
            let other = older.find(|o| o.max_seq >= file.min_seq && o.span().overlaps(&span))?;
            Some((file.as_ref(), other.as_ref()))
        })
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn file(rows: (u8, u8), seqs: (u64, u64)) -> Arc<SstRef> {
        let rows = (vec![rows.0].into(), vec![rows.1].into());
        Arc::new(SstRef { min_seq: seqs.0, ..SstRef::of_test(seqs.1, 0, rows, 1) })
    }

    #[test]
    fn files_that_share_rows_and_sequences_are_found() {
        let l0 = [file((0, 9), (9, 9)), file((3, 5), (4, 8)), file((6, 9), (3, 7))];
        assert_eq!(doubt(&l0), None);
        let l0 = [file((0, 9), (9, 9)), file((3, 6), (4, 8)), file((6, 9), (3, 7))];
        assert_eq!(doubt(&l0).map(|(a, b)| (a.id, b.id)), Some((8, 7)));
    }

    proptest! {
        #[test]
        fn files_of_one_age_hang_together_and_ages_have_no_sequence_in_common(
            seqs in prop::collection::vec((0u64..60, 0u64..12), 0..20),
        ) {
            let mut l0: Vec<_> =
                seqs.iter().map(|(seq, len)| file((0, 0), (*seq, seq + len))).collect();
            l0.sort_by_key(|file| std::cmp::Reverse(file.max_seq));
            let ages = ages(&l0);
            let places: Vec<usize> = ages.iter().cloned().flatten().collect();
            prop_assert_eq!(places, (0..l0.len()).collect::<Vec<_>>());
            for pair in ages.windows(2) {
                let least = l0[pair[0].clone()].iter().map(|f| f.min_seq).min();
                let greatest = l0[pair[1].clone()].iter().map(|f| f.max_seq).max();
                prop_assert!(least > greatest);
            }
            for age in ages {
                for split in age.start + 1..age.end {
                    let least = l0[age.start..split].iter().map(|f| f.min_seq).min().unwrap();
                    prop_assert!(l0[split].max_seq >= least);
                }
            }
        }
    }
}
