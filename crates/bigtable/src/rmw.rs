//! Read-modify-write: rules that turn the newest cells of a row into new ones.
//!
//! The functions here are pure. The table takes the row's lock, reads the [projection](Rules::projection)
//! of the row, [applies](Rules::apply) the rules and writes the result as one batch.
//!
//! Rules are applied in order, and a rule sees what the rules before it made of its column. Whatever
//! their number, a column gets one new cell, whose timestamp is the server's time or, where the cell
//! that was read is from the future, that cell's: the new cell is always the newest of its column.
//!
//! ```text
//! f:n = 41 @ 1000     increment f:n 1     f:n = 42 @ now
//!                     append f:s "a"
//!                     append f:s "b"      f:s = "ab" @ now
//! ```

use std::collections::BTreeMap;

use bytes::Bytes;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::read_modify_write_rule::Rule as ProtoRule;
use tepui_engine::cell::{Cell, FamilyId, Mutation, Row, RowBatch, Timestamp};
use tepui_engine::read::Projection;

use crate::error::{Error, Result};
use crate::limits;
use crate::mutation::truncate_to_granularity;
use crate::schema::{FamilyNames, TableSchema};

/// Rules that were checked against a schema.
#[derive(Debug)]
pub struct Rules {
    rules: Vec<Rule>,
}

#[derive(Debug)]
struct Rule {
    family: FamilyId,
    qualifier: Bytes,
    action: Action,
}

#[derive(Debug)]
enum Action {
    /// Appends to the value; no cell counts as an empty value.
    Append(Bytes),
    /// Adds to a value of 8 bytes, an i64, big-endian, and wraps; no cell counts as zero.
    Increment(i64),
}

/// The newest cell of a column while rules are applied.
#[derive(Debug)]
struct Column {
    /// Of the newest cell so far; `None` without one.
    value: Option<Bytes>,
    /// What is appended to it, which may be large: so it is copied once.
    appended: Vec<u8>,
    timestamp: Timestamp,
}

impl Rules {
    /// Checks rules: at least one, known families that are not aggregates, limits.
    pub fn compile(schema: &TableSchema, rules: &[v2::ReadModifyWriteRule]) -> Result<Self> {
        limits::check_rule_count(rules.len())?;
        let rules = rules
            .iter()
            .enumerate()
            .map(|(index, rule)| compile_rule(schema, rule).map_err(|e| in_element(index, &e)))
            .collect::<Result<_>>()?;
        Ok(Self { rules })
    }

    /// What must be read of the row: the newest cell of each column that a rule names.
    pub fn projection(&self) -> Projection {
        Projection::newest_of(self.rules.iter().map(|rule| (rule.family, rule.qualifier.clone())))
    }

    /// The new cells, by family and qualifier, that the rules make of the row at server time `now`
    /// (microseconds).
    pub fn apply(&self, row: Option<&Row>, now: Timestamp) -> Result<Vec<Cell>> {
        let now = truncate_to_granularity(now);
        let mut columns: BTreeMap<(FamilyId, &Bytes), Column> = BTreeMap::new();
        for (index, rule) in self.rules.iter().enumerate() {
            let column = columns
                .entry((rule.family, &rule.qualifier))
                .or_insert_with(|| Column::read(row, rule.family, &rule.qualifier, now));
            column.apply(&rule.action).map_err(|e| in_element(index, &e))?;
        }
        let cells: Vec<Cell> = columns
            .into_iter()
            .map(|((family, qualifier), mut column)| {
                column.join();
                Cell {
                    family,
                    qualifier: qualifier.clone(),
                    timestamp: column.timestamp,
                    value: column.value.unwrap_or_default(),
                }
            })
            .collect();
        limits::check_request_bytes(cells.iter().map(|c| c.qualifier.len() + c.value.len()).sum())?;
        Ok(cells)
    }
}

impl Column {
    /// The column's newest cell in the row, made as new as `now` at least.
    fn read(row: Option<&Row>, family: FamilyId, qualifier: &Bytes, now: Timestamp) -> Self {
        let cells = row.map_or(&[][..], |row| &row.cells);
        let at = cells.partition_point(|c| (c.family, &c.qualifier) < (family, qualifier));
        let newest = cells.get(at).filter(|c| c.family == family && c.qualifier == *qualifier);
        Self {
            value: newest.map(|cell| cell.value.clone()),
            appended: Vec::new(),
            timestamp: newest.map_or(now, |cell| now.max(cell.timestamp)),
        }
    }

    /// Makes one value of its own and what was appended.
    fn join(&mut self) {
        if !self.appended.is_empty() {
            let value = self.value.take().unwrap_or_default();
            self.value = Some([&*value, &self.appended].concat().into());
            self.appended.clear();
        }
    }

    fn apply(&mut self, action: &Action) -> Result<()> {
        match action {
            Action::Append(suffix) => {
                let value = self.value.get_or_insert_default();
                limits::check_value_bytes(value.len() + self.appended.len() + suffix.len())?;
                self.appended.extend_from_slice(suffix);
            }
            Action::Increment(amount) => {
                self.join();
                let old = match &self.value {
                    None => 0,
                    Some(value) => i64::from_be_bytes((&**value).try_into().map_err(|_| {
                        Error::failed_precondition(format!(
                            "Cannot increment: the value is not a 64-bit big-endian signed integer, \
                             it has {} bytes",
                            value.len()
                        ))
                    })?),
                };
                let new = old.wrapping_add(*amount).to_be_bytes();
                self.value = Some(Bytes::copy_from_slice(&new));
            }
        }
        Ok(())
    }
}

fn compile_rule(schema: &TableSchema, rule: &v2::ReadModifyWriteRule) -> Result<Rule> {
    let family = schema.family(&rule.family_name)?;
    if family.aggregate.is_some() {
        return Err(Error::invalid_argument(format!(
            "ReadModifyWriteRow is not allowed on aggregate column family {:?}; use AddToCell",
            rule.family_name
        )));
    }
    limits::check_qualifier(&rule.column_qualifier)?;
    let action = match &rule.rule {
        Some(ProtoRule::AppendValue(suffix)) => Action::Append(suffix.clone()),
        Some(ProtoRule::IncrementAmount(amount)) => Action::Increment(*amount),
        None => return Err(Error::invalid_argument("No rule type set")),
    };
    Ok(Rule { family: family.id, qualifier: rule.column_qualifier.clone(), action })
}

/// Says which of the rules an error is about.
fn in_element(index: usize, error: &Error) -> Error {
    Error::new(
        error.kind(),
        format!("Error in field 'rules' list : Error in element #{index} : {}", error.message()),
    )
}

/// The batch that writes the new cells.
pub fn batch(row: &Bytes, cells: &[Cell]) -> RowBatch {
    let mutations = cells
        .iter()
        .cloned()
        .map(|Cell { family, qualifier, timestamp, value }| Mutation::Put {
            family,
            qualifier,
            timestamp,
            value,
        })
        .collect();
    RowBatch { row: row.clone(), mutations }
}

/// The new cells, ordered by family and qualifier, as the API shows a row.
pub fn response(row: &Bytes, cells: Vec<Cell>, names: &FamilyNames) -> v2::Row {
    let mut families: Vec<(FamilyId, v2::Family)> = Vec::new();
    for cell in cells {
        let column = v2::Column {
            qualifier: cell.qualifier,
            cells: vec![v2::Cell {
                timestamp_micros: cell.timestamp,
                value: cell.value,
                labels: Vec::new(),
            }],
        };
        match families.last_mut() {
            Some((family, shown)) if *family == cell.family => shown.columns.push(column),
            _ => {
                let name =
                    names.get(cell.family).map(|n| n.as_ref().to_owned()).unwrap_or_default();
                families.push((cell.family, v2::Family { name, columns: vec![column] }));
            }
        }
    }
    let families = families.into_iter().map(|(_, family)| family).collect();
    v2::Row { key: row.clone(), families }
}

#[cfg(test)]
#[path = "rmw_tests.rs"]
mod tests;
