//! The requests of the operations, made once a run where they do not depend on the row.

use bytes::Bytes;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::mutation::{Mutation, SetCell};
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::row_filter::{Chain, Filter};
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::row_range::{EndKey, StartKey};

use super::INSTANCE;
use crate::dataset::{Dataset, TIMESTAMP_MICROS};

/// The family of the values.
pub const FAMILY: &str = "cf";
/// The family of the counters, apart from the values so that reads of these know what they find.
pub const COUNTERS: &str = "n";
/// The counter of a row.
const COUNTER: &[u8] = b"count";
/// The server's time is the timestamp: a write replaces what is there, as YCSB's does.
const NOW: i64 = -1;

/// A table of an instance, and the app profile that requests name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// `projects/P/instances/I`.
    pub instance: String,
    /// Its name within the instance.
    pub id: String,
    /// The app profile; empty for the instance's own choice.
    pub app_profile: String,
}

impl Table {
    /// A table of the benchmarks' own instance.
    pub fn new(id: impl Into<String>) -> Self {
        Self { instance: INSTANCE.to_owned(), id: id.into(), app_profile: String::new() }
    }

    /// Its full name.
    pub fn name(&self) -> String {
        format!("{}/tables/{}", self.instance, self.id)
    }
}

/// What operations ask of a table.
#[derive(Debug)]
pub struct Asks {
    table: String,
    app_profile: String,
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
    pub fn new(table: &Table, dataset: &Dataset) -> Self {
        Self {
            table: table.name(),
            app_profile: table.app_profile.clone(),
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
            app_profile_id: self.app_profile.clone(),
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

    /// Reads the first key, and as little as can be with it.
    pub fn first_key(&self) -> v2::ReadRowsRequest {
        let little = [Filter::CellsPerRowLimitFilter(1), Filter::StripValueTransformer(true)];
        let filters = little.map(filter).into();
        v2::ReadRowsRequest {
            rows_limit: 1,
            filter: Some(filter(Filter::Chain(Chain { filters }))),
            ..self.read(v2::RowSet::default(), Naming::Row)
        }
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
            app_profile_id: self.app_profile.clone(),
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
            app_profile_id: self.app_profile.clone(),
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
            app_profile_id: self.app_profile.clone(),
            row_key: self.dataset.key(row).into(),
            rules: vec![rule],
            ..Default::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_names_the_table_of_the_instance_and_the_app_profile() {
        let dataset = Dataset { rows: 10, key_bytes: 24, columns: 1, value_bytes: 1, seed: 0 };
        let instance = "projects/p/instances/i".to_owned();
        let table = Table { instance, id: "t".to_owned(), app_profile: "batch".to_owned() };
        let asks = Asks::new(&table, &dataset);
        let read = |r: v2::ReadRowsRequest| (r.table_name, r.app_profile_id);
        let (write, load) = (asks.write(1, 0..1), asks.load(0..2));
        let increment = asks.increment(1);
        let named = [
            read(asks.rows(&[1], Naming::Row)),
            read(asks.scan(1, 5, false)),
            read(asks.everything()),
            read(asks.first_key()),
            (write.table_name, write.app_profile_id),
            (load.table_name, load.app_profile_id),
            (increment.table_name, increment.app_profile_id),
        ];
        let expected = ("projects/p/instances/i/tables/t".to_owned(), "batch".to_owned());
        assert!(named.iter().all(|named| *named == expected), "{named:?}");
    }
}
