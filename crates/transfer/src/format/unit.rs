//! What a timestamp counts in somebody else's Avro or Parquet. Google's templates have microseconds; tools that make the
//! same rows with types of their own often have another unit, and say so in the schema.

use std::collections::HashMap;

use apache_avro::Schema;
use apache_avro::schema::Name;
use parquet::basic::{ConvertedType, LogicalType, TimeUnit, Type};
use parquet::schema::types::SchemaDescriptor;

use crate::error::{Error, Result};

/// What one is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A thousand microseconds.
    Millis,
    /// As Bigtable has it; also where a file does not say.
    Micros,
    /// A thousandth of a microsecond.
    Nanos,
}

/// A unit that is none of these, or two of them.
fn unknown(what: &str) -> Error {
    Error::failed(format!(
        "not a file of BigtableRow: its timestamps are {what}, and not milli-, micro- or nanoseconds since 1970"
    ))
}

impl Unit {
    /// So many as microseconds; else why not.
    pub fn micros(self, count: i64) -> Result<i64, String> {
        match self {
            Self::Millis => count
                .checked_mul(1000)
                .ok_or_else(|| format!("timestamp {count} ms is beyond what Bigtable has")),
            Self::Micros => Ok(count),
            Self::Nanos if count % 1000 == 0 => Ok(count / 1000),
            Self::Nanos => Err(format!("timestamp {count} ns is not a whole microsecond")),
        }
    }

    /// That of `cells.timestamp` in a file of this schema. A field that is no number has any: its records are no rows.
    pub fn of_avro(schema: &Schema) -> Result<Self> {
        let mut named = HashMap::new();
        name(schema, &mut named);
        let variants = |schema| variants(schema, &named);
        let cells = variants(schema).into_iter().filter_map(|row| field(row, "cells"));
        let items = cells.flat_map(variants).filter_map(|cells| match cells {
            Schema::Array(array) => Some(array.items.as_ref()),
            _ => None,
        });
        let timestamps = items.flat_map(variants).filter_map(|cell| field(cell, "timestamp"));
        let mut found = None;
        for timestamp in timestamps.flat_map(variants) {
            let unit = match timestamp {
                Schema::TimestampMillis | Schema::LocalTimestampMillis => Self::Millis,
                Schema::TimestampMicros
                | Schema::LocalTimestampMicros
                | Schema::Long
                | Schema::Int => Self::Micros,
                Schema::TimestampNanos | Schema::LocalTimestampNanos => Self::Nanos,
                Schema::Date => return Err(unknown("dates")),
                Schema::TimeMillis | Schema::TimeMicros => return Err(unknown("times of day")),
                _ => continue,
            };
            if found.is_some_and(|found| found != unit) {
                return Err(unknown("in several units"));
            }
            found = Some(unit);
        }
        Ok(found.unwrap_or(Self::Micros))
    }

    /// That of the column `timestamp` of the list `cells`, as [`Self::of_avro`].
    pub fn of_parquet(schema: &SchemaDescriptor) -> Result<Self> {
        let is_timestamp = |path: &[String]| {
            path.first().is_some_and(|first| first == "cells")
                && path.last().is_some_and(|last| last == "timestamp")
        };
        let columns = schema.columns().iter().filter(|column| is_timestamp(column.path().parts()));
        // One of a deeper path is a part of something else that a cell has.
        let Some(column) = columns.min_by_key(|column| column.path().parts().len()) else {
            return Ok(Self::Micros);
        };
        Ok(match (column.physical_type(), column.logical_type_ref(), column.converted_type()) {
            // As the record reader has them.
            (Type::INT96, ..) => Self::Millis,
            (Type::INT64, Some(LogicalType::Timestamp(of)), _) => match of.unit {
                TimeUnit::MILLIS => Self::Millis,
                TimeUnit::MICROS => Self::Micros,
                TimeUnit::NANOS => Self::Nanos,
            },
            (Type::INT64, Some(LogicalType::Integer(_)), _) => Self::Micros,
            (Type::INT64, Some(other), _) => return Err(unknown(&format!("{other:?}"))),
            (Type::INT64, None, ConvertedType::TIMESTAMP_MILLIS) => Self::Millis,
            (
                Type::INT64,
                None,
                ConvertedType::NONE
                | ConvertedType::INT_64
                | ConvertedType::UINT_64
                | ConvertedType::TIMESTAMP_MICROS,
            ) => Self::Micros,
            (Type::INT64, None, other) => return Err(unknown(&other.to_string())),
            _ => Self::Micros,
        })
    }
}

/// Notes the records of a schema by their names.
fn name<'a>(schema: &'a Schema, named: &mut HashMap<&'a Name, &'a Schema>) {
    match schema {
        Schema::Record(record) => {
            named.insert(&record.name, schema);
            record.fields.iter().for_each(|field| name(&field.schema, named));
        }
        Schema::Array(array) => name(&array.items, named),
        Schema::Map(map) => name(&map.types, named),
        Schema::Union(union) => union.variants().iter().for_each(|variant| name(variant, named)),
        _ => {}
    }
}

/// What a value of a schema may be.
fn variants<'a>(schema: &'a Schema, named: &HashMap<&Name, &'a Schema>) -> Vec<&'a Schema> {
    let meant = |schema: &'a Schema| match schema {
        Schema::Ref { name } => named.get(name).copied(),
        schema => Some(schema),
    };
    match schema {
        Schema::Union(union) => union.variants().iter().filter_map(meant).collect(),
        schema => meant(schema).into_iter().collect(),
    }
}

/// A field of a record.
fn field<'a>(record: &'a Schema, name: &str) -> Option<&'a Schema> {
    let Schema::Record(record) = record else { return None };
    record.fields.iter().find(|field| field.name == name).map(|field| &field.schema)
}

#[cfg(test)]
mod tests {
    use parquet::schema::parser::parse_message_type;
    use std::sync::Arc;

    use super::*;

    /// What is known of a file whose cells have timestamps of a type.
    fn of_avro(timestamp: &str) -> Result<Unit> {
        // The cell is named before the list of them, and other fields have types of their own.
        let schema = format!(
            r#"{{"type": "record", "name": "R", "fields": [
                {{"name": "made", "type": {{"type": "long", "logicalType": "timestamp-millis"}}}},
                {{"name": "first", "type": ["null", {{"type": "record", "name": "C", "fields": [
                    {{"name": "seen", "type": {{"type": "long", "logicalType": "timestamp-millis"}}}},
                    {{"name": "timestamp", "type": {timestamp}}}
                ]}}]}},
                {{"name": "cells", "type": ["null", {{"type": "array", "items": "C"}}]}}
            ]}}"#
        );
        Unit::of_avro(&Schema::parse_str(&schema).unwrap())
    }

    #[test]
    fn the_unit_of_avro_is_that_of_the_timestamps_of_cells() {
        let long = |of: &str| format!(r#"{{"type": "long", "logicalType": "{of}"}}"#);
        for (timestamp, unit) in [
            ("\"long\"".to_owned(), Unit::Micros),
            (long("timestamp-micros"), Unit::Micros),
            (long("timestamp-millis"), Unit::Millis),
            (long("timestamp-nanos"), Unit::Nanos),
            (long("local-timestamp-millis"), Unit::Millis),
            (format!("[\"null\", {}]", long("local-timestamp-nanos")), Unit::Nanos),
            ("\"string\"".to_owned(), Unit::Micros),
        ] {
            assert_eq!(of_avro(&timestamp), Ok(unit), "{timestamp}");
        }
        let two = format!("[{}, \"int\"]", long("timestamp-millis"));
        let date = r#"{"type": "int", "logicalType": "date"}"#;
        for (timestamp, word) in
            [(two.as_str(), "several"), (date, "dates"), (&long("time-micros"), "times of day")]
        {
            let error = of_avro(timestamp).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn the_unit_of_parquet_is_that_of_the_timestamps_of_cells() {
        let of = |timestamp: &str| {
            let message = format!(
                "message R {{ required binary key; required int64 timestamp (TIMESTAMP(MILLIS,true));
                   required group cells (LIST) {{ repeated group list {{ required group element {{
                     required group more {{ required int64 timestamp (TIMESTAMP(MILLIS,true)); }}
                     required {timestamp};
                }} }} }} }}"
            );
            let schema = Arc::new(parse_message_type(&message).unwrap());
            Unit::of_parquet(&SchemaDescriptor::new(schema))
        };
        for (timestamp, unit) in [
            ("int64 timestamp", Unit::Micros),
            ("int64 timestamp (INTEGER(64,true))", Unit::Micros),
            ("int64 timestamp (TIMESTAMP_MILLIS)", Unit::Millis),
            ("int64 timestamp (TIMESTAMP_MICROS)", Unit::Micros),
            ("int64 timestamp (TIMESTAMP(MILLIS,false))", Unit::Millis),
            ("int64 timestamp (TIMESTAMP(MICROS,true))", Unit::Micros),
            ("int64 timestamp (TIMESTAMP(NANOS,true))", Unit::Nanos),
            ("int96 timestamp", Unit::Millis),
            ("binary timestamp", Unit::Micros),
        ] {
            assert_eq!(of(timestamp), Ok(unit), "{timestamp}");
        }
        for timestamp in ["int64 timestamp (TIME(NANOS,true))", "int64 timestamp (TIME_MICROS)"] {
            let error = of(timestamp).unwrap_err().to_string();
            assert!(error.contains("not a file of BigtableRow"), "{error}");
        }
    }

    #[test]
    fn counts_are_microseconds_or_nothing() {
        assert_eq!(Unit::Millis.micros(7), Ok(7000));
        assert_eq!(Unit::Micros.micros(7), Ok(7));
        assert_eq!(Unit::Nanos.micros(-7000), Ok(-7));
        assert!(Unit::Nanos.micros(7001).unwrap_err().contains("7001 ns"));
        assert!(Unit::Millis.micros(i64::MAX).is_err());
    }
}
