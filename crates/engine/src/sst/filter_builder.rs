//! Building filter partitions: where they are cut, and which of them list common columns.
//!
//! ```text
//! rows of the open partition   | row | row | row | row ...      each: its own entries, its families and columns
//!                                                ▲ a row is complete:
//!   all rows have the same few columns       ─► goes on until entries for the *rows* fill a partition
//!   else, and entries for everything fill it ─► cut at rows, as many as fit
//! ```
//!
//! Partitions are cut between rows, so that a row's entries are together, which is also what allows common
//! columns (see `filter.rs`). Only a row that fills a partition by itself is cut, between columns.
//!
//! Whether a partition can list its columns is known when it is full, so its rows are kept apart until then:
//! at most what a partition of row entries covers, some 3,000 rows.

use super::coarse::CoarseBuilder;
use super::filter::{Ask, COMMON_COLUMNS_MAX, FilterEntries, FilterForm, listed};
use super::key::{Change, separator};
use crate::cell::{FamilyId, KeyView};
use crate::codec::common_prefix;

/// Rows must have this part of the listed columns: where fewer are there, a read of a column that its row
/// does not have costs a data block too often.
const COMMON_SHARE: (u64, u64) = (7, 8);

/// Entries that a row adds to a partition with common columns, besides one for a tombstone of each family:
/// its own and its tombstone's.
const ROW_ENTRIES_MAX: usize = 2;

/// A finished partition.
#[derive(Debug)]
pub(super) struct FilterPartition {
    /// Between its last key and the key that follows.
    pub(super) separator: Vec<u8>,
    pub(super) block: Vec<u8>,
}

/// The filter of a file.
#[derive(Debug)]
pub(super) struct FinishedFilter {
    pub(super) partitions: Vec<FilterPartition>,
    /// The rows, for a filter that stays in memory.
    pub(super) coarse: CoarseBuilder,
    /// Entries of all partitions.
    pub(super) entries: u64,
    /// Partitions that list common columns.
    pub(super) common_partitions: u64,
}

/// Something of a row that a list of common columns may stand for.
#[derive(Debug, Clone, Copy)]
enum Part {
    Family(FamilyId),
    Column(u64),
}

/// A row, or the rest of one, of the open partition.
#[derive(Debug, Clone, Copy)]
struct Row {
    entry: u64,
    /// Whether it begins here, and not in the partition before.
    whole: bool,
    /// Where its entries, parts and separator begin.
    own: usize,
    parts: usize,
    separator: usize,
}

/// The families and columns of some rows.
#[derive(Debug, Default)]
struct Common {
    families: Vec<u32>,
    columns: Vec<u32>,
    /// Columns of all rows together.
    cells: u64,
    /// There are more than may be listed.
    many: bool,
}

impl Common {
    fn clear(&mut self) {
        self.families.clear();
        self.columns.clear();
        self.cells = 0;
        self.many = false;
    }

    fn add(&mut self, part: Part) {
        let (list, id) = match part {
            Part::Family(family) => (&mut self.families, family.0),
            Part::Column(column) => {
                self.cells += 1;
                (&mut self.columns, listed(column))
            }
        };
        if let Err(at) = list.binary_search(&id) {
            if list.len() < COMMON_COLUMNS_MAX {
                list.insert(at, id);
            } else {
                self.many = true;
            }
        }
    }

    fn listed(&self) -> usize {
        self.families.len() + self.columns.len()
    }

    /// Whether the lists stand for what `rows` rows have.
    fn covers(&self, rows: usize) -> bool {
        let full = (rows * self.columns.len()) as u64;
        !self.many
            && !self.columns.is_empty()
            && self.cells * COMMON_SHARE.1 >= full * COMMON_SHARE.0
    }
}

/// Collects the keys of an SST into filter partitions.
#[derive(Debug)]
pub(super) struct FilterBuilder {
    form: FilterForm,
    /// Entries of a partition without lists.
    entries_max: usize,
    /// Entries of a partition with as many listed as `common` has, worked out when that changes.
    common_max: (usize, usize),
    entries: FilterEntries,
    coarse: CoarseBuilder,
    /// The entry of the last row.
    row: u64,
    rows: Vec<Row>,
    /// Entries of rows and of tombstones.
    own: Vec<u64>,
    parts: Vec<Part>,
    /// Of every row but the first: between it and the row before.
    separators: Vec<u8>,
    common: Common,
    done: Vec<FilterPartition>,
    done_bytes: u64,
    entries_total: u64,
    common_partitions: u64,
    scratch: Vec<u64>,
}

impl FilterBuilder {
    /// Nothing yet.
    pub(super) fn new(form: FilterForm) -> Self {
        Self {
            form,
            entries_max: form.entries_max(0),
            common_max: (0, form.entries_max(0)),
            entries: FilterEntries::default(),
            coarse: CoarseBuilder::new(),
            row: 0,
            rows: Vec::new(),
            own: Vec::new(),
            parts: Vec::new(),
            separators: Vec::new(),
            common: Common::default(),
            done: Vec::new(),
            done_bytes: 0,
            entries_total: 0,
            common_partitions: 0,
            scratch: Vec::new(),
        }
    }

    /// Adds a key that follows `last`.
    pub(super) fn add(&mut self, change: Change, last: &[u8], key: KeyView<'_>) {
        if change.row {
            self.row_is_complete();
            // The shortest prefix that leads to this row: the same as `separator` gives, as rows differ
            // before their last byte.
            let shared = common_prefix(last, key.bytes());
            self.begin_row(true, key.bytes().get(..=shared).unwrap_or_default());
        } else if change.column && self.open_row_entries() >= self.entries_max {
            self.cut_row(last, key.bytes());
        }
        let mut entries = std::mem::take(&mut self.entries);
        entries.of(change, key, |_, ask| match ask {
            Ask::Row(entry) => {
                self.own.push(entry);
                self.coarse.add(entry);
                self.row = entry;
                if let Some(row) = self.rows.last_mut() {
                    row.entry = entry;
                }
            }
            Ask::Tombstone(entry) => self.own.push(entry),
            Ask::Family { family, .. } => self.add_part(Part::Family(family)),
            Ask::Column { column, .. } => self.add_part(Part::Column(column)),
        });
        self.entries = entries;
    }

    fn add_part(&mut self, part: Part) {
        self.parts.push(part);
        self.common.add(part);
    }

    fn begin_row(&mut self, whole: bool, separator: &[u8]) {
        let separator_at = self.separators.len();
        self.separators.extend_from_slice(separator);
        let (own, parts) = (self.own.len(), self.parts.len());
        self.rows.push(Row { entry: self.row, whole, own, parts, separator: separator_at });
    }

    fn open_row_entries(&self) -> usize {
        let (own, parts) = self.rows.last().map_or((0, 0), |r| (r.own, r.parts));
        self.own.len() - own + self.parts.len() - parts
    }

    /// Where row `at` begins, or the end of all rows: in own entries, parts and separators.
    fn begin_of(&self, at: usize) -> (usize, usize, usize) {
        self.rows.get(at).map_or((self.own.len(), self.parts.len(), self.separators.len()), |r| {
            (r.own, r.parts, r.separator)
        })
    }

    /// Entries for everything of the rows in `range`.
    fn entries_of(&self, from: usize, to: usize) -> usize {
        let (start, end) = (self.begin_of(from), self.begin_of(to));
        end.0 - start.0 + end.1 - start.1
    }

    fn has_common_columns(&self) -> bool {
        self.rows.first().is_some_and(|r| r.whole) && self.common.covers(self.rows.len())
    }

    /// Every row of the open partition is complete: cuts partitions where they are full. The last row
    /// stays, since what separates it from the next is not known yet.
    fn row_is_complete(&mut self) {
        if self.entries_of(0, self.rows.len()) <= self.entries_max {
            return;
        }
        if self.has_common_columns() {
            let listed = self.common.listed();
            if self.common_max.0 != listed {
                self.common_max = (listed, self.form.entries_max(listed));
            }
            // So that the row that comes fits too.
            let next = ROW_ENTRIES_MAX + self.common.families.len();
            if self.own.len() + next <= self.common_max.1 {
                return;
            }
        }
        self.flush_rows(self.rows.len().saturating_sub(1), &[]);
    }

    /// Ends the open partition within a row, between `last` and `next`.
    fn cut_row(&mut self, last: &[u8], next: &[u8]) {
        let before = self.rows.len().saturating_sub(1);
        self.flush_rows(before, &[]);
        let separator = separator(last, Some(next));
        self.emit(0, self.rows.len(), false, separator.clone());
        self.forget(self.rows.len());
        // The row goes on; its separator is only used if nothing lies before it, and then not at all.
        self.begin_row(false, &separator);
    }

    /// Makes partitions of the first `count` rows and forgets them. `last` separates them from what follows
    /// where that is no row of the open partition.
    fn flush_rows(&mut self, count: usize, last: &[u8]) {
        let mut from = 0;
        if count > 0 && count < self.rows.len() {
            // Without the rows that stay; `forget` works it out for those.
            self.common.clear();
            let parts = self.begin_of(count).1;
            for part in self.parts.get(..parts).unwrap_or_default() {
                self.common.add(*part);
            }
        }
        if count > 0 && self.rows.first().is_some_and(|r| r.whole) && self.common.covers(count) {
            self.emit(0, count, true, self.separator_before(count, last));
            from = count;
        }
        while from < count {
            let mut to = from + 1;
            while to < count && self.entries_of(from, to + 1) <= self.entries_max {
                to += 1;
            }
            self.emit(from, to, false, self.separator_before(to, last));
            from = to;
        }
        self.forget(count);
    }

    /// What separates row `at` from the one before.
    fn separator_before(&self, at: usize, last: &[u8]) -> Vec<u8> {
        if at >= self.rows.len() {
            return last.to_vec();
        }
        let (start, end) = (self.begin_of(at).2, self.begin_of(at + 1).2);
        self.separators.get(start..end).unwrap_or_default().to_vec()
    }

    /// Adds a partition of these rows.
    fn emit(&mut self, from: usize, to: usize, common: bool, separator: Vec<u8>) {
        let ((own, ..), (own_end, ..)) = (self.begin_of(from), self.begin_of(to));
        let mut entries = std::mem::take(&mut self.scratch);
        entries.clear();
        entries.extend_from_slice(self.own.get(own..own_end).unwrap_or_default());
        if !common {
            for at in from..to {
                let Some(row) = self.rows.get(at).map(|r| r.entry) else { continue };
                let (start, end) = (self.begin_of(at).1, self.begin_of(at + 1).1);
                let parts = self.parts.get(start..end).unwrap_or_default();
                entries.extend(parts.iter().map(|part| match *part {
                    Part::Family(family) => Ask::Family { row, family }.entry(),
                    Part::Column(column) => Ask::Column { row, column }.entry(),
                }));
            }
        }
        let (families, columns) = if common {
            (self.common.families.as_slice(), self.common.columns.as_slice())
        } else {
            (&[][..], &[][..])
        };
        self.entries_total += entries.len() as u64;
        self.common_partitions += u64::from(common);
        let block = self.form.build(&mut entries, families, columns);
        self.scratch = entries;
        self.done_bytes += (block.len() + separator.len()) as u64;
        self.done.push(FilterPartition { separator, block });
    }

    /// Drops the first `count` rows.
    fn forget(&mut self, count: usize) {
        let (own, parts, separators) = self.begin_of(count);
        self.own.drain(..own);
        self.parts.drain(..parts);
        self.separators.drain(..separators);
        self.rows.drain(..count.min(self.rows.len()));
        for row in &mut self.rows {
            row.own -= own;
            row.parts -= parts;
            row.separator -= separators;
        }
        self.common.clear();
        for part in &self.parts {
            self.common.add(*part);
        }
    }

    /// Bytes of all partitions if they were finished now, roughly.
    pub(super) fn estimated_bytes(&self) -> u64 {
        let entries = if self.has_common_columns() {
            self.own.len()
        } else {
            self.entries_of(0, self.rows.len())
        };
        self.done_bytes + entries as u64 * self.form.bits_per_entry() / 8
    }

    /// Ends the last partition, behind `last_key`.
    pub(super) fn finish(mut self, last_key: &[u8]) -> FinishedFilter {
        if !self.rows.is_empty() {
            self.flush_rows(self.rows.len(), &separator(last_key, None));
        }
        FinishedFilter {
            partitions: self.done,
            coarse: self.coarse,
            entries: self.entries_total,
            common_partitions: self.common_partitions,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::filter::FilterBlock;
    use super::*;
    use crate::cell::{Kind, encode_key};
    use crate::sst::FilterKind;
    use bytes::Bytes;

    /// Partitions of rows, each with its columns: separators, and whether they list columns.
    fn partitions(
        rows: impl Iterator<Item = Vec<String>>,
        partition_bytes: usize,
    ) -> Vec<(Vec<u8>, bool)> {
        let form = FilterForm { kind: FilterKind::Fuse8, bits_per_key: 10, partition_bytes };
        let mut builder = FilterBuilder::new(form);
        let (mut last, mut last_row_len) = (Vec::new(), 0);
        for (row, columns) in rows.enumerate() {
            for column in columns {
                let (row, mut key) = (format!("row-{row:06}"), Vec::new());
                let column = Some(column.as_bytes());
                encode_key(row.as_bytes(), FamilyId(1), column, 5, 9, Kind::Value, &mut key);
                let view = KeyView::parse(&key).unwrap();
                builder.add(Change::between(&last, last_row_len, view), &last, view);
                last_row_len = view.row_len();
                last = key;
            }
        }
        let finished = builder.finish(&last);
        finished
            .partitions
            .into_iter()
            .map(|p| {
                let filter = FilterBlock::parse(Bytes::from(p.block)).unwrap();
                (p.separator, filter.has_common_columns())
            })
            .collect()
    }

    fn same(columns: usize) -> Vec<String> {
        (0..columns).map(|c| format!("c{c}")).collect()
    }

    #[test]
    fn rows_that_fit_are_never_divided() {
        let rows = (0..2_000).map(|row| (0..=row % 7).map(|c| format!("c{row}-{c}")).collect());
        let partitions = partitions(rows, 1024);
        assert!(partitions.len() > 5);
        // A separator behind a row is no longer than one of its neighbour's row.
        let row_len = "row-000000".len() + 2;
        assert!(partitions[..partitions.len() - 1].iter().all(|p| p.0.len() <= row_len && !p.1));
        assert!(partitions.is_sorted_by(|a, b| a.0 < b.0));
    }

    #[test]
    fn rows_of_the_same_columns_share_a_list_until_one_is_different() {
        // Far more entries than one partition has room for, were it not for the lists.
        let equal = partitions((0..2_000).map(|_| same(10)), 4096);
        assert_eq!(equal.iter().map(|p| p.1).collect::<Vec<_>>(), [true]);
        // 600 rows that are alike, one with columns of its own, and 600 that are alike again.
        let rows = (0..1_201).map(|row| match row {
            600 => (0..100).map(|c| format!("other-{c:03}")).collect(),
            _ => same(10),
        });
        let mixed = partitions(rows, 4096);
        assert_eq!(mixed.iter().map(|p| p.1).collect::<Vec<_>>(), [true, false, true]);
    }

    #[test]
    fn a_row_that_fills_partitions_is_divided_between_columns_and_what_follows_is_not() {
        let rows = (0..200).map(|row| match row {
            50 => (0..2_000).map(|c| format!("wide-{c:05}")).collect(),
            _ => same(3),
        });
        let partitions = partitions(rows, 1024);
        let lists: Vec<_> = partitions.iter().map(|p| p.1).collect();
        assert!(lists.len() > 4 && lists[0] && lists[lists.len() - 1], "{lists:?}");
        assert!(lists[1..lists.len() - 1].iter().all(|l| !l), "{lists:?}");
    }
}
