//! Dividing files by rows: a job into parts, disjoint ranges of rows with about as many bytes of the inputs each; a table into what clients read
//! side by side. Both go by *steps*: rows, and the bytes that lie before each since the one before it in the same file.

use std::sync::Arc;

use crate::cell::RowRange;
use crate::error::Result;
use crate::manifest::SstRef;
use crate::sst::SstReader;

/// Parts that a job is divided into at most, for each thread that compacts. With one, a thread that becomes free
/// while the others are busy with long parts has nothing to do; each part more cuts a file more.
pub(crate) const PARTS_PER_THREAD: usize = 4;

/// Bytes of the inputs of a part, about, where the job is so large that more parts than those above come of it: 256 MiB, a second
/// or some, after which what it made takes its place. With less, files that are cut short would be a larger share of all.
pub(crate) const PART_BYTES_MAX: u64 = 256 << 20;

/// Files that a part writes at least, by its input: with less, the files that are cut short at its end would be
/// a large share of all.
pub(crate) const FILES_PER_PART: u64 = 2;

/// Steps of all files together, beside the last of each: some megabytes in memory however large these are, where the rows between all index
/// partitions of a terabyte would have a hundred. So a step of that is 16 MiB. With fewer, parts would be less even.
const STEPS_MAX: u64 = 1 << 16;

/// Rows of files, with the bytes before each.
#[derive(Debug)]
pub(crate) struct Steps {
    steps: Vec<(Vec<u8>, u64)>,
    /// Bytes of a step, at least, but for the last of a file.
    step_bytes: u64,
    total: u64,
}

impl Steps {
    /// Of files that have about `total` bytes.
    pub(crate) fn new(total: u64) -> Self {
        Self { steps: Vec::new(), step_bytes: total / STEPS_MAX, total: 0 }
    }

    /// Adds a file, whose rows have so many bytes elsewhere, as if these were spread evenly over it.
    pub(crate) fn add_file(
        &mut self,
        file: &SstRef,
        reader: &Arc<SstReader>,
        elsewhere: u64,
    ) -> Result<()> {
        let rows = reader.index_rows()?;
        let data_bytes = rows.last().map_or(1, |(_, offset)| *offset).max(1);
        let with_elsewhere = |bytes: u64| {
            let more = u128::from(bytes) * u128::from(elsewhere) / u128::from(data_bytes);
            bytes.saturating_add(u64::try_from(more).unwrap_or(u64::MAX))
        };
        let span = file.span();
        let mut before = 0;
        self.add(rows.into_iter().filter_map(|(row, offset)| {
            let bytes = offset.saturating_sub(before);
            before = offset;
            span.contains(&row).then(|| (row, with_elsewhere(bytes)))
        }));
        Ok(())
    }

    /// Adds the steps of a file, ascending: as many together as are worth one.
    fn add(&mut self, steps: impl Iterator<Item = (Vec<u8>, u64)>) {
        let mut left = None;
        let mut since = 0_u64;
        for (row, bytes) in steps {
            since = since.saturating_add(bytes);
            if since < self.step_bytes {
                left = Some(row);
            } else {
                self.push(row, since);
                (left, since) = (None, 0);
            }
        }
        if let Some(last) = left {
            self.push(last, since);
        }
    }

    fn push(&mut self, row: Vec<u8>, bytes: u64) {
        self.total = self.total.saturating_add(bytes);
        self.steps.push((row, bytes));
    }

    /// All of them, by row.
    pub(crate) fn sorted(mut self) -> Vec<(Vec<u8>, u64)> {
        self.steps.sort_unstable();
        self.steps
    }
}

/// Divides all rows: at most `parts_max` ranges of at least `bytes_min` come of it.
pub(crate) fn divide(steps: Steps, parts_max: usize, bytes_min: u64) -> Vec<RowRange> {
    let total = steps.total;
    let parts = (total / bytes_min.max(1)).min(parts_max as u64).max(1);
    let each = total / parts;
    let mut ranges = Vec::new();
    let mut start = Vec::new();
    let mut bytes = 0;
    for (row, step) in steps.sorted() {
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

    const MIB: u64 = 1 << 20;

    fn key(at: u64) -> Vec<u8> {
        format!("{at:016}").into_bytes()
    }

    #[test]
    fn the_rows_of_a_large_table_are_thinned_out_and_divide_it_as_evenly() {
        // 20 files over the same rows and 200 beside each other, of 256 KiB between two rows of the index.
        let (across, beside, rows, part) = (20, 200, 4_000_u64, 1 << 30);
        let total = (across + beside) * rows * MIB / 4;
        let mut steps = Steps::new(total);
        for file in 0..across {
            let apart = rows * beside / rows;
            steps.add((0..rows).map(|at| (key(at * apart + file), MIB / 4)));
        }
        for file in 0..beside {
            steps.add((0..rows).map(|at| (key(file * rows + at), MIB / 4)));
        }
        assert_eq!(steps.total, total);
        let all = (across + beside) * rows;
        let kept = steps.steps.len() as u64;
        assert!(kept <= STEPS_MAX + across + beside && kept < all / 10, "{kept} of {all}");
        let ranges = divide(steps, 1_000, part);
        assert_eq!(ranges.len() as u64, total / part);
        // Of a row so much lies before it, evenly.
        let bytes_before = |row: &[u8]| {
            let at: u64 = std::str::from_utf8(row).unwrap().parse().unwrap();
            total / (rows * beside) * at
        };
        for range in ranges.iter().filter(|range| !range.end.is_empty()) {
            let start = if range.start.is_empty() { 0 } else { bytes_before(&range.start) };
            let bytes = bytes_before(&range.end) - start;
            assert!(bytes.abs_diff(part) < part / 4, "{bytes} in {range:?}");
        }
    }

    #[test]
    fn files_have_as_many_steps_together_as_all_may_have_and_the_last_of_each() {
        let mut steps = Steps::new(STEPS_MAX * MIB);
        for file in 0..8_u64 {
            steps.add((0..100_000).map(|at| (key(at * 8 + file), STEPS_MAX * MIB / 800_000)));
        }
        assert!(steps.steps.len() as u64 <= STEPS_MAX + 8, "{}", steps.steps.len());
        assert_eq!(steps.sorted().pop().unwrap().0, key(799_999));
    }

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
            let mut all = Steps::new(total);
            for step in steps {
                all.add(std::iter::once(step));
            }
            prop_assert_eq!(all.total, total);
            let ranges = divide(all, parts_max, bytes_min);
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
