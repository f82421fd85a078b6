//! Sublevels: the files of level 0 arranged so that each *sublevel* is in row order, like a level below 0.
//!
//! A file lies in the lowest sublevel above every older file that it shares rows with:
//!
//! ```text
//! age       newest   [a..........z]            sublevel 2   [a..........z]
//!    |               [a..f]                             1   [a..f]  [m..q]
//!    |                       [m..q]                     0   [a......m][n..z]
//!    v                      [n..z]
//!           oldest   [a......m]                             three to look in, not five
//! ```
//!
//! So what a read pays for is the number of sublevels, not that of files: flushes that are cut into files by
//! rows cost it no more than whole ones. For any row, a higher sublevel is newer.

use std::sync::Arc;

use crate::cell::RowRange;
use crate::manifest::SstRef;

/// Files of a sublevel or level, in row order.
pub(crate) type Run = Vec<Arc<SstRef>>;

/// The sublevels of `l0`, which is newest first; the oldest sublevel comes first.
pub(crate) fn arrange(l0: &[Arc<SstRef>]) -> Vec<Run> {
    let mut sublevels: Vec<Run> = Vec::new();
    for file in l0.iter().rev() {
        let span = file.span();
        let below = sublevels.iter().rposition(|run| overlaps(run, &span));
        let place = below.map_or(0, |below| below + 1);
        if place == sublevels.len() {
            sublevels.push(Run::new());
        }
        if let Some(run) = sublevels.get_mut(place) {
            let at = run.partition_point(|other| other.first_visible() < file.first_visible());
            run.insert(at, Arc::clone(file));
        }
    }
    sublevels
}

/// The files of a run that can show rows of `span`.
pub(crate) fn overlapping<'a>(
    run: &'a [Arc<SstRef>],
    span: &'a RowRange,
) -> impl Iterator<Item = &'a Arc<SstRef>> + 'a {
    let skip = run.partition_point(|file| file.ends_before(&span.start));
    run.iter()
        .skip(skip)
        .take_while(move |file| span.end.is_empty() || *file.first_visible() < span.end)
}

fn overlaps(run: &[Arc<SstRef>], span: &RowRange) -> bool {
    overlapping(run, span).next().is_some()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn file(id: u64, first: u8, last: u8) -> Arc<SstRef> {
        Arc::new(SstRef::of_test(id, 0, (vec![first].into(), vec![last].into()), 1))
    }

    proptest! {
        #[test]
        fn sublevels_are_in_row_order_and_newer_files_lie_above_older_ones(
            spans in prop::collection::vec((0u8..40, 0u8..12), 0..40),
        ) {
            let l0: Vec<_> = spans
                .iter()
                .enumerate()
                .rev()
                .map(|(id, (first, len))| file(id as u64, *first, first + len))
                .collect();
            let sublevels = arrange(&l0);
            prop_assert_eq!(sublevels.iter().map(Vec::len).sum::<usize>(), l0.len());
            for (height, run) in sublevels.iter().enumerate() {
                prop_assert!(!run.is_empty());
                for pair in run.windows(2) {
                    prop_assert!(pair[0].last_row < pair[1].first_row);
                }
                for file in run {
                    let span = file.span();
                    for above in &sublevels[height + 1..] {
                        prop_assert!(overlapping(above, &span).all(|o| o.id > file.id));
                    }
                    // Nor higher than it must.
                    if let Some(below) = height.checked_sub(1) {
                        prop_assert!(overlaps(&sublevels[below], &span));
                    }
                }
            }
        }
    }
}
