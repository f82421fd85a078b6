//! Mutations of the API, compiled into engine batches.
//!
//! Compiling checks everything that can be known without reading the row: limits, family names,
//! timestamps, and whether a mutation suits its family. A compiled batch can fail only in the engine.
//! Nothing is copied: qualifiers and values share the request's memory.
//!
//! | mutation           | ordinary family | aggregate family             | timestamp                     |
//! |--------------------|-----------------|------------------------------|-------------------------------|
//! | `SetCell`          | a value         | refused                      | -1 = server time, else >= 0   |
//! | `AddToCell`        | refused         | an operand from an input     | >= 0                          |
//! | `MergeToCell`      | refused         | an operand from a state      | >= 0                          |
//! | `DeleteFromColumn` | `[start, end)`  | `[start, end)`               | range; end 0 = no end         |
//! | `DeleteFromFamily` | all its cells   | all its cells                |                               |
//! | `DeleteFromRow`    | all cells       | all cells                    |                               |
//!
//! Timestamps given by the caller are whole milliseconds; the server's own time is cut to them. It is not known here: the
//! engine fills it in when the row is locked ([`TIMESTAMP_OF_WRITE`]).

use bytes::Bytes;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::mutation::{
    AddToCell, DeleteFromColumn, MergeToCell, Mutation as ProtoMutation, SetCell,
};
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::value::Kind as ValueKind;
use tepui_engine::cell::{
    FamilyId, Mutation, RowBatch, TIMESTAMP_MAX, TIMESTAMP_OF_WRITE, Timestamp, TimestampRange,
};

use crate::error::{Error, Result};
use crate::limits;
use crate::schema::TableSchema;
use crate::value_type::AggregateType;

/// The timestamp by which a `SetCell` asks for the server's time.
const SERVER_TIME: Timestamp = -1;

/// Cuts a time to the granularity of timestamps.
pub fn truncate_to_granularity(micros: Timestamp) -> Timestamp {
    micros - micros.rem_euclid(limits::TIMESTAMP_GRANULARITY_MICROS)
}

/// Compiles the mutations of one row, at least one. The batch is empty where every mutation merges NULL,
/// which is allowed and has no effect.
pub fn compile(schema: &TableSchema, row: &Bytes, mutations: &[v2::Mutation]) -> Result<RowBatch> {
    limits::check_row_key(row)?;
    limits::check_mutation_count(mutations.len())?;
    compile_list(schema, row, mutations)
}

/// Compiles a list of mutations that may be empty, of a row whose key was checked.
pub fn compile_list(
    schema: &TableSchema,
    row: &Bytes,
    mutations: &[v2::Mutation],
) -> Result<RowBatch> {
    limits::check_mutation_count_max(mutations.len())?;
    let compiler = Compiler { schema };
    let mut compiled = Vec::with_capacity(mutations.len());
    let mut bytes = 0;
    for (index, mutation) in mutations.iter().enumerate() {
        let mutation = compiler.mutation(mutation).map_err(|e| in_element(index, &e))?;
        if let Some(mutation) = mutation {
            bytes += payload_bytes(&mutation);
            compiled.push(mutation);
        }
    }
    limits::check_request_bytes(bytes)?;
    Ok(RowBatch { row: row.clone(), mutations: compiled })
}

/// Says which of the mutations an error is about, in the service's own form.
fn in_element(index: usize, error: &Error) -> Error {
    Error::new(
        error.kind(),
        format!("Error in Mutation list : Error in element #{index} : {}", error.message()),
    )
}

/// Bytes of what a mutation brings: those that can be many.
pub(crate) fn payload_bytes(mutation: &Mutation) -> usize {
    match mutation {
        Mutation::Put { qualifier, value, .. } => qualifier.len() + value.len(),
        Mutation::Merge { qualifier, operand, .. } => qualifier.len() + operand.len(),
        Mutation::DeleteCells { qualifier, .. } => qualifier.len(),
        Mutation::DeleteFamily { .. } | Mutation::DeleteRow => 0,
    }
}

struct Compiler<'a> {
    schema: &'a TableSchema,
}

impl Compiler<'_> {
    /// The engine's mutation; `None` for one without effect.
    fn mutation(&self, mutation: &v2::Mutation) -> Result<Option<Mutation>> {
        match &mutation.mutation {
            None => Err(Error::invalid_argument("No mutation type set")),
            Some(ProtoMutation::SetCell(set)) => self.set_cell(set).map(Some),
            Some(ProtoMutation::AddToCell(add)) => self.add_to_cell(add).map(Some),
            Some(ProtoMutation::MergeToCell(merge)) => self.merge_to_cell(merge),
            Some(ProtoMutation::DeleteFromColumn(delete)) => {
                self.delete_from_column(delete).map(Some)
            }
            Some(ProtoMutation::DeleteFromFamily(delete)) => {
                let family = self.schema.family(&delete.family_name)?.id;
                Ok(Some(Mutation::DeleteFamily { family }))
            }
            Some(ProtoMutation::DeleteFromRow(_)) => Ok(Some(Mutation::DeleteRow)),
        }
    }

    fn set_cell(&self, set: &SetCell) -> Result<Mutation> {
        let family = self.schema.family(&set.family_name)?;
        if family.aggregate.is_some() {
            return Err(Error::invalid_argument(format!(
                "SetCell is not allowed on aggregate column family {:?}; use AddToCell or MergeToCell",
                set.family_name
            )));
        }
        limits::check_qualifier(&set.column_qualifier)?;
        limits::check_value_bytes(set.value.len())?;
        let timestamp = match set.timestamp_micros {
            SERVER_TIME => TIMESTAMP_OF_WRITE,
            given => check_timestamp(given)?,
        };
        Ok(Mutation::Put {
            family: family.id,
            qualifier: set.column_qualifier.clone(),
            timestamp,
            value: set.value.clone(),
        })
    }

    fn add_to_cell(&self, add: &AddToCell) -> Result<Mutation> {
        let (family, aggregate) = self.aggregate_family("AddToCell", &add.family_name)?;
        let qualifier = raw_qualifier(add.column_qualifier.as_ref())?;
        let timestamp = raw_timestamp(add.timestamp.as_ref())?;
        let operand = aggregate.operand(kind(add.input.as_ref()))?;
        Ok(Mutation::Merge { family, qualifier, timestamp, operand })
    }

    /// `None` where NULL is merged.
    fn merge_to_cell(&self, merge: &MergeToCell) -> Result<Option<Mutation>> {
        let (family, aggregate) = self.aggregate_family("MergeToCell", &merge.family_name)?;
        let qualifier = raw_qualifier(merge.column_qualifier.as_ref())?;
        let timestamp = raw_timestamp(merge.timestamp.as_ref())?;
        let operand = aggregate.merged(kind(merge.input.as_ref()))?;
        Ok(operand.map(|operand| Mutation::Merge { family, qualifier, timestamp, operand }))
    }

    fn delete_from_column(&self, delete: &DeleteFromColumn) -> Result<Mutation> {
        let family = self.schema.family(&delete.family_name)?.id;
        limits::check_qualifier(&delete.column_qualifier)?;
        let timestamps = deleted_range(delete.time_range.as_ref())?;
        Ok(Mutation::DeleteCells { family, qualifier: delete.column_qualifier.clone(), timestamps })
    }

    fn aggregate_family(&self, mutation: &str, name: &str) -> Result<(FamilyId, AggregateType)> {
        let family = self.schema.family(name)?;
        let aggregate = family.aggregate.ok_or_else(|| {
            Error::invalid_argument(format!(
                "{mutation} is not allowed on column family {name:?}, which is not an aggregate"
            ))
        })?;
        Ok((family.id, aggregate))
    }
}

fn kind(value: Option<&v2::Value>) -> Option<&ValueKind> {
    value.and_then(|v| v.kind.as_ref())
}

fn raw_qualifier(value: Option<&v2::Value>) -> Result<Bytes> {
    let Some(ValueKind::RawValue(qualifier)) = kind(value) else {
        return Err(Error::invalid_argument(
            "Error in field 'column_qualifier' : must be a raw_value",
        ));
    };
    limits::check_qualifier(qualifier)?;
    Ok(qualifier.clone())
}

fn raw_timestamp(value: Option<&v2::Value>) -> Result<Timestamp> {
    let Some(ValueKind::RawTimestampMicros(timestamp)) = kind(value) else {
        return Err(Error::invalid_argument(
            "Error in field 'timestamp' : must be a raw_timestamp_micros",
        ));
    };
    check_timestamp(*timestamp)
}

/// A timestamp that a cell can have: not negative and whole milliseconds. That also excludes the
/// engine's `TIMESTAMP_MAX`.
fn check_timestamp(timestamp: Timestamp) -> Result<Timestamp> {
    if timestamp < 0 {
        return Err(Error::invalid_argument(format!(
            "Invalid timestamp: must not be negative, but got {timestamp}"
        )));
    }
    if timestamp % limits::TIMESTAMP_GRANULARITY_MICROS != 0 {
        return Err(Error::invalid_argument(format!(
            "Timestamp granularity mismatch. Expected a multiple of {} (millisecond granularity), \
             but got {timestamp}.",
            limits::TIMESTAMP_GRANULARITY_MICROS
        )));
    }
    Ok(timestamp)
}

/// The timestamps that a `DeleteFromColumn` covers; an end of 0 means no end.
fn deleted_range(range: Option<&v2::TimestampRange>) -> Result<TimestampRange> {
    let Some(range) = range else {
        return Ok(TimestampRange::ALL);
    };
    let start = check_timestamp(range.start_timestamp_micros)?;
    let end = match check_timestamp(range.end_timestamp_micros)? {
        0 => TIMESTAMP_MAX,
        end => end,
    };
    if start >= end {
        return Err(Error::invalid_argument(format!(
            "Error in field 'time_range' : inverted or empty timestamp range [{start}, {end})"
        )));
    }
    Ok(TimestampRange { start, end })
}

#[cfg(test)]
#[path = "mutation_tests.rs"]
mod tests;
