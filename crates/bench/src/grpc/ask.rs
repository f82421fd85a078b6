//! The requests of the operations, made once a run where they do not depend on the row.

use bytes::Bytes;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::mutation::{Mutation, SetCell};
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::row_filter::{Chain, Filter};
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::row_range::{EndKey, StartKey};

use crate::dataset::{Dataset, TIMESTAMP_MICROS};

/// The family of the values.
pub const FAMILY: &str = "cf";
/// The family of the counters, apart from the values so that reads of these know what they find.
pub const COUNTERS: &str = "n";
/// The counter of a row.
const COUNTER: &[u8] = b"count";
/// The server's time is the timestamp: a write replaces what is there, as YCSB's does.
const NOW: i64 = -1;

/// What operations ask of a table.
#[derive(Debug)]
pub struct Asks {
    table: String,
    dataset: Dataset,
    /// Newest cells of the family.
    family: v2::RowFilter,
    /// Newest cells of the columns that are there, by name.
    named: v2::RowFilter,
    /// Newest cells of everything.
    row: v2::RowFilter,
}

/// Which filter a read has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// Nothing but the row.
    Row,
    /// The family.
    Family,
    /// Every column.
    Columns,
    /// Some neighbouring columns: the first, and how many.
    Neighbours(u32, u32),
}

fn filter(filter: Filter) -> v2::RowFilter {
    v2::RowFilter { filter: Some(filter) }
}

fn newest(mut of: Vec<Filter>) -> v2::RowFilter {
    of.push(Filter::CellsPerColumnLimitFilter(1));
    match <[Filter; 1]>::try_from(of) {
        Ok([only]) => filter(only),
        Err(several) => {
            let filters = several.into_iter().map(filter).collect();
            filter(Filter::Chain(Chain { filters }))
        }
    }
}

/// The columns by their names, which hold nothing that a regular expression gives a meaning.
fn named(columns: std::ops::Range<u32>) -> v2::RowFilter {
    let names: Vec<Vec<u8>> = columns.map(Dataset::qualifier).collect();
    let pattern = names.join(&b'|');
    newest(vec![
        Filter::FamilyNameRegexFilter(FAMILY.to_owned()),
        Filter::ColumnQualifierRegexFilter(pattern.into()),
    ])
}

impl Asks {
    /// Requests for a table with the rows of a data set.
    pub fn new(table: &str, dataset: &Dataset) -> Self {
        Self {
            table: table.to_owned(),
            dataset: *dataset,
            family: newest(vec![Filter::FamilyNameRegexFilter(FAMILY.to_owned())]),
            named: named(0..dataset.columns),
            row: newest(Vec::new()),
        }
    }

    fn filter(&self, naming: Naming) -> v2::RowFilter {
        match naming {
            Naming::Row => self.row.clone(),
            Naming::Family => self.family.clone(),
            Naming::Columns => self.named.clone(),
            Naming::Neighbours(first, count) => named(first..first.saturating_add(count)),
        }
    }

    fn read(&self, rows: v2::RowSet, naming: Naming) -> v2::ReadRowsRequest {
        v2::ReadRowsRequest {
            table_name: self.table.clone(),
            rows: Some(rows),
            filter: Some(self.filter(naming)),
            ..Default::default()
        }
    }

    /// Reads rows by their numbers.
    pub fn rows(&self, rows: &[u64], naming: Naming) -> v2::ReadRowsRequest {
        let row_keys = rows.iter().map(|row| self.dataset.key(*row).into()).collect();
        self.read(v2::RowSet { row_keys, ..Default::default() }, naming)
    }

    /// Reads so many rows from one on, in either direction.
    pub fn scan(&self, row: u64, rows: u32, reverse: bool) -> v2::ReadRowsRequest {
        let key = Bytes::from(self.dataset.key(row));
        let range = if reverse {
            v2::RowRange { start_key: None, end_key: Some(EndKey::EndKeyClosed(key)) }
        } else {
            v2::RowRange { start_key: Some(StartKey::StartKeyClosed(key)), end_key: None }
        };
        let set = v2::RowSet { row_ranges: vec![range], ..Default::default() };
        v2::ReadRowsRequest {
            rows_limit: i64::from(rows),
            reversed: reverse,
            ..self.read(set, Naming::Family)
        }
    }

    /// Reads the whole table.
    pub fn everything(&self) -> v2::ReadRowsRequest {
        self.read(v2::RowSet::default(), Naming::Family)
    }

    fn set(&self, row: u64, column: u32, timestamp_micros: i64) -> v2::Mutation {
        v2::Mutation {
            mutation: Some(Mutation::SetCell(SetCell {
                family_name: FAMILY.to_owned(),
                column_qualifier: Dataset::qualifier(column).into(),
                timestamp_micros,
                value: self.dataset.value(row, column).into(),
            })),
        }
    }

    /// Writes columns of a row, now.
    pub fn write(&self, row: u64, columns: std::ops::Range<u32>) -> v2::MutateRowRequest {
        v2::MutateRowRequest {
            table_name: self.table.clone(),
            row_key: self.dataset.key(row).into(),
            mutations: columns.map(|column| self.set(row, column, NOW)).collect(),
            ..Default::default()
        }
    }

    /// Loads rows: with a timestamp that every load has, so that rows that are loaded again are not there twice.
    pub fn load(&self, rows: impl Iterator<Item = u64>) -> v2::MutateRowsRequest {
        let entry = |row| v2::mutate_rows_request::Entry {
            row_key: self.dataset.key(row).into(),
            mutations: (0..self.dataset.columns)
                .map(|column| self.set(row, column, TIMESTAMP_MICROS))
                .collect(),
            ..Default::default()
        };
        v2::MutateRowsRequest {
            table_name: self.table.clone(),
            entries: rows.map(entry).collect(),
            ..Default::default()
        }
    }

    /// Adds one to a row's counter.
    pub fn increment(&self, row: u64) -> v2::ReadModifyWriteRowRequest {
        let rule = v2::ReadModifyWriteRule {
            family_name: COUNTERS.to_owned(),
            column_qualifier: COUNTER.into(),
            rule: Some(v2::read_modify_write_rule::Rule::IncrementAmount(1)),
        };
        v2::ReadModifyWriteRowRequest {
            table_name: self.table.clone(),
            row_key: self.dataset.key(row).into(),
            rules: vec![rule],
            ..Default::default()
        }
    }
}
