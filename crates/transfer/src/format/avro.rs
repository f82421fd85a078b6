//! Avro object container files of `BigtableRow`, the schema that Google's templates write and read. Blocks are
//! compressed with snappy, as Beam does it; files compressed otherwise are read too.

use std::io::{BufWriter, Read};
use std::sync::LazyLock;

use apache_avro::types::Value;
use apache_avro::{Codec, Schema};

use super::{Bad, Record, Sink, Source};
use crate::error::{Error, Result};
use crate::files::File;
use crate::row::{Cell, Row};

/// The templates' schema: fields and namespace are part of what their readers resolve against.
pub const SCHEMA: &str = r#"{
  "type": "record", "name": "BigtableRow", "namespace": "com.google.cloud.teleport.bigtable",
  "fields": [
    {"name": "key", "type": "bytes"},
    {"name": "cells", "type": {"type": "array", "items": {
      "type": "record", "name": "BigtableCell",
      "fields": [
        {"name": "family", "type": "string"},
        {"name": "qualifier", "type": "bytes"},
        {"name": "timestamp", "type": "long", "logicalType": "timestamp-micros"},
        {"name": "value", "type": "bytes"}
      ]
    }}}
  ]
}"#;

static PARSED: LazyLock<Schema> =
    LazyLock::new(|| Schema::parse_str(SCHEMA).expect("the schema above is valid"));

/// Reads a file.
pub struct Reader<R: Read> {
    reader: apache_avro::Reader<'static, R>,
}

impl<R: Read> Reader<R> {
    /// Reads the header; a file of another record is refused.
    pub fn open(input: R) -> Result<Self> {
        let reader =
            apache_avro::Reader::new(input).map_err(|e| Error::failed(format!("Avro: {e}")))?;
        let Schema::Record(schema) = reader.writer_schema() else {
            return Err(Error::failed("not a file of BigtableRow: its schema is no record"));
        };
        for field in ["key", "cells"] {
            if !schema.lookup.contains_key(field) {
                let name = &schema.name;
                return Err(Error::failed(format!(
                    "not a file of BigtableRow: records of {name} have no field {field:?}"
                )));
            }
        }
        Ok(Self { reader })
    }
}

/// A field of a record.
fn take(record: &mut [(String, Value)], name: &str) -> Result<Value, String> {
    let field = record.iter_mut().find(|(field, _)| field == name);
    let (_, value) = field.ok_or_else(|| format!("no field {name:?}"))?;
    let value = std::mem::replace(value, Value::Null);
    // An optional field of somebody else's schema.
    Ok(if let Value::Union(_, value) = value { *value } else { value })
}

fn bytes(record: &mut [(String, Value)], name: &str) -> Result<Vec<u8>, String> {
    match take(record, name)? {
        Value::Bytes(bytes) | Value::Fixed(_, bytes) => Ok(bytes),
        Value::String(text) => Ok(text.into_bytes()),
        _ => Err(format!("field {name:?} is not bytes")),
    }
}

fn cell(value: Value) -> Result<Cell, String> {
    let Value::Record(mut fields) = value else { return Err("a cell is no record".to_owned()) };
    let family = String::from_utf8(bytes(&mut fields, "family")?)
        .map_err(|_| "a family's name is not UTF-8".to_owned())?;
    let timestamp_micros = match take(&mut fields, "timestamp")? {
        Value::Long(micros) | Value::TimestampMicros(micros) => micros,
        Value::TimestampMillis(millis) => millis.saturating_mul(1000),
        _ => return Err("field \"timestamp\" is not a long".to_owned()),
    };
    Ok(Cell {
        family,
        qualifier: bytes(&mut fields, "qualifier")?.into(),
        timestamp_micros,
        value: bytes(&mut fields, "value")?.into(),
    })
}

fn row(value: Value) -> Result<Row, String> {
    let Value::Record(mut fields) = value else { return Err("not a record".to_owned()) };
    let Value::Array(cells) = take(&mut fields, "cells")? else {
        return Err("field \"cells\" is not an array".to_owned());
    };
    let cells = cells.into_iter().map(cell).collect::<Result<_, _>>()?;
    Ok(Row { key: bytes(&mut fields, "key")?.into(), cells })
}

impl<R: Read> Source for Reader<R> {
    fn next(&mut self) -> Result<Option<Record>> {
        let Some(value) = self.reader.next() else { return Ok(None) };
        let value = value.map_err(|error| Error::failed(format!("Avro: {error}")))?;
        Ok(Some(match row(value) {
            Ok(row) if row.cells.is_empty() => Record::Empty,
            Ok(row) => Record::Row(row),
            Err(reason) => Record::Bad(Bad { reason, raw: String::new() }),
        }))
    }
}

/// Writes a file.
pub struct Writer {
    writer: apache_avro::Writer<'static, BufWriter<File>>,
}

impl Writer {
    /// Begins a file.
    pub fn create(file: File) -> Result<Self> {
        let output = BufWriter::with_capacity(super::BUFFER_BYTES, file);
        let writer = apache_avro::Writer::with_codec(&PARSED, output, Codec::Snappy);
        Ok(Self { writer: writer.map_err(|error| Error::failed(format!("Avro: {error}")))? })
    }
}

impl Sink for Writer {
    fn write(&mut self, row: &Row) -> Result<()> {
        let cell = |cell: &Cell| {
            Value::Record(vec![
                ("family".to_owned(), Value::String(cell.family.clone())),
                ("qualifier".to_owned(), Value::Bytes(cell.qualifier.to_vec())),
                ("timestamp".to_owned(), Value::Long(cell.timestamp_micros)),
                ("value".to_owned(), Value::Bytes(cell.value.to_vec())),
            ])
        };
        let value = Value::Record(vec![
            ("key".to_owned(), Value::Bytes(row.key.to_vec())),
            ("cells".to_owned(), Value::Array(row.cells.iter().map(cell).collect())),
        ]);
        let appended = self.writer.unvalidated_append_value_ref(&value);
        appended.map(drop).map_err(|error| Error::failed(format!("Avro: {error}")))
    }

    fn finish(self: Box<Self>) -> Result<File> {
        let buffer = self.writer.into_inner().map_err(|e| Error::failed(format!("Avro: {e}")))?;
        buffer.into_inner().map_err(|error| Error::failed(format!("write: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::super::golden::{golden_file, golden_rows, rows_of};
    use super::*;

    #[test]
    fn what_is_written_is_read_and_has_the_schema_of_the_templates() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let (unfinished, file) = crate::files::Unfinished::create(&path).unwrap();
        let mut writer = Box::new(Writer::create(file).unwrap());
        for row in golden_rows() {
            writer.write(&row).unwrap();
        }
        unfinished.finish(&writer.finish().unwrap()).unwrap();
        let mut ours = Reader::open(crate::files::open(&path).unwrap()).unwrap();
        let mut theirs =
            Reader::open(crate::files::open(&golden_file("rows.avro")).unwrap()).unwrap();
        assert_eq!(
            ours.reader.writer_schema().canonical_form(),
            theirs.reader.writer_schema().canonical_form()
        );
        assert_eq!(rows_of(&mut ours), rows_of(&mut theirs));
    }

    #[test]
    fn files_of_other_records_are_refused() {
        let schema = Schema::parse_str(
            r#"{"type": "record", "name": "Other", "fields": [{"name": "key", "type": "bytes"}]}"#,
        )
        .unwrap();
        let file = apache_avro::Writer::new(&schema, Vec::new()).unwrap().into_inner().unwrap();
        let error = Reader::open(&file[..]).err().unwrap().to_string();
        assert!(error.contains("Other have no field \"cells\""), "{error}");
        assert!(Reader::open(&b"Obj\x01"[..]).is_err());
    }

    #[test]
    fn a_torn_file_is_an_error_behind_its_whole_blocks() {
        let mut whole = Vec::new();
        crate::files::open(&golden_file("rows.avro")).unwrap().read_to_end(&mut whole).unwrap();
        let torn = whole.get(..whole.len() - 9).unwrap();
        let mut reader = Reader::open(torn).unwrap();
        let mut ended = Ok(None);
        for _ in 0..=golden_rows().len() {
            ended = reader.next();
            if ended.is_err() {
                break;
            }
        }
        assert!(ended.is_err());
    }
}
