//! Dividing a job into parts: disjoint ranges of rows with about as many bytes of the inputs each.

use crate::cell::RowRange;

/// Parts that a job is divided into at most, for each thread that compacts. With one, a thread that becomes free
/// while the others are busy with long parts has nothing to do; each part more cuts a file more.
pub(crate) const PARTS_PER_THREAD: usize = 4;

/// Bytes of the inputs of a part, about, where the job is so large that more parts than those above come of it: 256 MiB, a second
/// or some, after which what it made takes its place. With less, files that are cut short would be a larger share of all.
pub(crate) const PART_BYTES_MAX: u64 = 256 << 20;

/// Files that a part writes at least, by its input: with less, the files that are cut short at its end would be
/// a large share of all.
pub(crate) const FILES_PER_PART: u64 = 2;

/// Divides all rows. `steps` are rows and the bytes of the inputs that lie before each since the one before it in
/// the same input, in any order; at most `parts_max` ranges of at least `bytes_min` come of it.
pub(crate) fn divide(
    mut steps: Vec<(Vec<u8>, u64)>,
    parts_max: usize,
    bytes_min: u64,
) -> Vec<RowRange> {
    let total: u64 = steps.iter().map(|(_, bytes)| bytes).sum();
    let parts = (total / bytes_min.max(1)).min(parts_max as u64).max(1);
    let each = total / parts;
    steps.sort_unstable();
    let mut ranges = Vec::new();
    let mut start = Vec::new();
    let mut bytes = 0;
    for (row, step) in steps {
        bytes += step;
        let more = (ranges.len() as u64) + 1 < parts;
        if more && bytes >= each && row > start {
            ranges.push(RowRange::new(std::mem::take(&mut start), row.clone()));
            start = row;
            bytes = 0;
        }
    }
    ranges.push(RowRange::new(start, Vec::new()));
    ranges
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn parts_have_every_row_once_and_about_the_same_bytes(
            rows in prop::collection::vec((any::<u16>(), 1u64..100), 0..300),
            parts_max in 1usize..9,
            bytes_min in 1u64..5000,
        ) {
            let steps: Vec<(Vec<u8>, u64)> =
                rows.iter().map(|(row, bytes)| (row.to_be_bytes().to_vec(), *bytes)).collect();
            let total: u64 = rows.iter().map(|(_, bytes)| bytes).sum();
            let ranges = divide(steps, parts_max, bytes_min);
            prop_assert!(ranges.len() <= parts_max);
            prop_assert!(ranges.len() as u64 <= (total / bytes_min).max(1));
            prop_assert!(ranges[0].start.is_empty() && ranges[ranges.len() - 1].end.is_empty());
            for pair in ranges.windows(2) {
                prop_assert!(pair[0].end == pair[1].start && !pair[0].is_empty());
            }
            if rows.iter().map(|(row, _)| row).collect::<std::collections::HashSet<_>>().len() == rows.len() {
                let parts = (total / bytes_min).min(parts_max as u64).max(1);
                prop_assert!(ranges.len() as u64 >= parts.min(total / (total / parts + 100)).max(1));
            }
        }
    }
}
