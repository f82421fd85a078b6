//! Avro object container files of `BigtableRow`, the schema that Google's templates write and read. Blocks are
//! compressed with snappy, as Beam does it; files compressed otherwise are read too.

use std::cell;
use std::collections::HashMap;
use std::fmt;
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::rc::Rc;
use std::sync::LazyLock;

use apache_avro::reader::ReaderDeser;
use apache_avro::schema::{DecimalSchema, FixedSchema, InnerDecimalSchema, Name as TypeName};
use apache_avro::{Codec, Schema};
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, EnumAccess, Error as _, MapAccess, SeqAccess,
    VariantAccess as _, Visitor,
};
use serde::ser::{Serialize, SerializeSeq as _, SerializeStruct as _, Serializer};

use super::unit::Unit;
use super::{Bad, CELLS_MAX, Record, Sink, Source, guarded};
use crate::error::{Error, Result};
use crate::files::File;
use crate::row::{Cell, Row, VALUE_BYTES_MAX};

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

/// Bytes of the mark behind the header and behind each block.
const SYNC_BYTES: usize = 16;

/// How deep a value may be that is passed over: deeper than any schema that means something, and shallow beside a thread's
/// stack.
const LEVELS_MAX: u32 = 64;

static PARSED: LazyLock<Schema> =
    LazyLock::new(|| Schema::parse_str(SCHEMA).expect("the schema above is valid"));

/// Notes whether what was read last is a byte of a number that goes on: the crate takes the end of a file within the count of a
/// block for the end of all blocks. It reads numbers byte by byte; what it reads of other things in one piece is handed on in one
/// piece, so that the last byte of a mark is not taken for one of a number.
struct InWhole<R> {
    input: R,
    within_number: Rc<cell::Cell<bool>>,
}

impl<R: Read> Read for InWhole<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let mut read = 0;
        while let Some(rest) = buffer.get_mut(read..).filter(|rest| !rest.is_empty()) {
            match self.input.read(rest) {
                Ok(0) => break,
                Ok(more) => read += more,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if read > 0 {
            self.within_number.set(matches!(buffer, [byte] if *byte >= 0x80));
        }
        Ok(read)
    }
}

/// Reads a file.
pub struct Reader<R: Read> {
    records: ReaderDeser<'static, InWhole<R>, Written>,
    /// See [`InWhole`].
    within_number: Rc<cell::Cell<bool>>,
    /// Of the file's timestamps.
    unit: Unit,
}

impl<R: Read> Reader<R> {
    /// Reads the header; a file of another record is refused.
    pub fn open(input: R) -> Result<Self> {
        let within_number = Rc::new(cell::Cell::new(false));
        let input = InWhole { input, within_number: within_number.clone() };
        let reader = guarded("Avro", || apache_avro::Reader::new(input))?;
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
        takes_bytes(reader.writer_schema(), &mut HashMap::new())?;
        let unit = Unit::of_avro(reader.writer_schema())?;
        Ok(Self { records: reader.into_deser_iter(), within_number, unit })
    }

    fn row(&self, written: Written) -> Result<Row, Bad> {
        let Written { key, cells } = written;
        let key = key.bytes("key").map_err(|reason| Bad { reason, raw: String::new() })?;
        match self.cells(cells) {
            Ok(cells) => Ok(Row { key: key.into(), cells }),
            Err(reason) => Err(Bad::of_row(&key, reason)),
        }
    }

    fn cells(&self, written: Option<Vec<WrittenCell>>) -> Result<Vec<Cell>, String> {
        let written = written.ok_or("no field \"cells\" that is an array")?;
        let mut cells = Vec::with_capacity(written.len());
        for cell in written {
            let WrittenCell { family, qualifier, timestamp, value } = cell;
            let Scalar::Number(timestamp) = timestamp else {
                return Err("field \"timestamp\" is not a long".to_owned());
            };
            cells.push(Cell {
                family: family.text("family")?,
                qualifier: qualifier.bytes("qualifier")?.into(),
                timestamp_micros: self.unit.micros(timestamp)?,
                value: value.bytes("value")?.into(),
            });
        }
        Ok(cells)
    }
}

/// A file of one block with these bytes, uncompressed, which says that it has as many records: for fuzzing.
pub(crate) fn uncompressed(block: &[u8]) -> Vec<u8> {
    file_with(&PARSED, block.len() as i64, block).unwrap_or_default()
}

fn file_with(schema: &Schema, records: i64, block: &[u8]) -> Result<Vec<u8>, apache_avro::Error> {
    let mut file = apache_avro::Writer::new(schema, Vec::new())?.into_inner()?;
    let header = file.len();
    for number in [records, block.len() as i64] {
        let mut zigzag = (number << 1) as u64;
        while zigzag > 0x7f {
            file.push(zigzag as u8 | 0x80);
            zigzag >>= 7;
        }
        file.push(zigzag as u8);
    }
    file.extend_from_slice(block);
    file.extend_from_within(header.saturating_sub(SYNC_BYTES)..header);
    Ok(file)
}

/// Whether a value of a schema takes any bytes in a file. An error where one could promise what takes none: a list of so
/// many nothings, or a value of a fixed size that no machine has.
fn takes_bytes<'a>(schema: &'a Schema, named: &mut HashMap<&'a TypeName, bool>) -> Result<bool> {
    let fixed = |fixed: &FixedSchema| {
        if fixed.size <= VALUE_BYTES_MAX {
            return Ok(fixed.size > 0);
        }
        let (name, size) = (&fixed.name, fixed.size);
        Err(Error::failed(format!("Avro: type {name} is of {size} bytes; limit {VALUE_BYTES_MAX}")))
    };
    Ok(match schema {
        Schema::Null => false,
        Schema::Fixed(of) => {
            let takes = fixed(of)?;
            named.insert(&of.name, takes);
            takes
        }
        Schema::Duration(of) => fixed(of)?,
        Schema::Decimal(DecimalSchema { inner: InnerDecimalSchema::Fixed(of), .. }) => fixed(of)?,
        Schema::Record(record) => {
            // What names a record within itself does so in a list or a choice, which take bytes.
            named.insert(&record.name, true);
            let mut takes = false;
            for field in &record.fields {
                takes |= takes_bytes(&field.schema, named)?;
            }
            named.insert(&record.name, takes);
            takes
        }
        Schema::Array(array) => {
            if !takes_bytes(&array.items, named)? {
                return Err(Error::failed("Avro: the schema has lists of items without content"));
            }
            true
        }
        Schema::Map(map) => {
            takes_bytes(&map.types, named)?;
            true
        }
        Schema::Union(union) => {
            for variant in union.variants() {
                takes_bytes(variant, named)?;
            }
            true
        }
        Schema::Ref { name } => named.get(name).copied().unwrap_or(true),
        _ => true,
    })
}

impl<R: Read> Source for Reader<R> {
    fn next(&mut self) -> Result<Option<Record>> {
        let next = guarded("Avro", || self.records.next().transpose())?;
        let Some(written) = next else {
            if self.within_number.get() {
                return Err(Error::failed("Avro: the file ends within the count of a block"));
            }
            return Ok(None);
        };
        Ok(Some(match self.row(written) {
            Ok(row) if row.cells.is_empty() => Record::Empty,
            Ok(row) => Record::Row(row),
            Err(bad) => Record::Bad(bad),
        }))
    }
}

/// A record as it is in a file: of fields that somebody else may have given another type.
#[derive(Default)]
struct Written {
    key: Scalar,
    /// None where that is no array.
    cells: Option<Vec<WrittenCell>>,
}

#[derive(Default)]
struct WrittenCell {
    family: Scalar,
    qualifier: Scalar,
    timestamp: Scalar,
    value: Scalar,
}

/// The value of a field.
#[derive(Default)]
enum Scalar {
    Bytes(Vec<u8>),
    Text(String),
    Number(i64),
    #[default]
    Other,
}

impl Scalar {
    fn bytes(self, field: &str) -> Result<Vec<u8>, String> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Text(text) => Ok(text.into_bytes()),
            _ => Err(format!("field {field:?} is not bytes")),
        }
    }

    fn text(self, field: &str) -> Result<String, String> {
        match self {
            Self::Text(text) => Ok(text),
            Self::Bytes(bytes) => {
                String::from_utf8(bytes).map_err(|_| format!("field {field:?} is not UTF-8"))
            }
            _ => Err(format!("field {field:?} is not text")),
        }
    }
}

/// Implements `Deserialize` by what a file has, whatever that is: asked for a type, the crate would refuse the whole file.
macro_rules! by_what_is_there {
    ($type:ty, $($visit:tt)+) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Fields;

                impl<'de> Visitor<'de> for Fields {
                    type Value = $type;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str(stringify!($type))
                    }

                    $($visit)+
                }

                deserializer.deserialize_any(Fields)
            }
        }
    };
}

by_what_is_there! { Written,
    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Written, A::Error> {
        let mut written = Written::default();
        while let Some(field) = fields.next_key::<Name>()? {
            match field {
                Name::Key => written.key = fields.next_value()?,
                Name::Cells => written.cells = fields.next_value::<Cells>()?.0,
                _ => drop(fields.next_value::<Scalar>()?),
            }
        }
        Ok(written)
    }
}

/// An array of cells, or none.
struct Cells(Option<Vec<WrittenCell>>);

by_what_is_there! { Cells,
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Cells, A::Error> {
        let mut cells = Vec::new();
        while let Some(cell) = items.next_element()? {
            if cells.len() == CELLS_MAX {
                return Err(A::Error::custom(format!("a row of more than {CELLS_MAX} cells")));
            }
            cells.push(cell);
        }
        Ok(Cells(Some(cells)))
    }

    fn visit_unit<E>(self) -> Result<Cells, E> {
        Ok(Cells(None))
    }
}

by_what_is_there! { WrittenCell,
    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<WrittenCell, A::Error> {
        let mut cell = WrittenCell::default();
        while let Some(field) = fields.next_key::<Name>()? {
            match field {
                Name::Family => cell.family = fields.next_value()?,
                Name::Qualifier => cell.qualifier = fields.next_value()?,
                Name::Timestamp => cell.timestamp = fields.next_value()?,
                Name::Value => cell.value = fields.next_value()?,
                _ => drop(fields.next_value::<Scalar>()?),
            }
        }
        Ok(cell)
    }
}

/// The name of a field.
enum Name {
    Key,
    Cells,
    Family,
    Qualifier,
    Timestamp,
    Value,
    Other,
}

by_what_is_there! { Name,
    fn visit_str<E>(self, name: &str) -> Result<Name, E> {
        Ok(match name {
            "key" => Name::Key,
            "cells" => Name::Cells,
            "family" => Name::Family,
            "qualifier" => Name::Qualifier,
            "timestamp" => Name::Timestamp,
            "value" => Name::Value,
            _ => Name::Other,
        })
    }
}

by_what_is_there! { Scalar,
    fn visit_byte_buf<E>(self, bytes: Vec<u8>) -> Result<Scalar, E> {
        Ok(Scalar::Bytes(bytes))
    }

    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Scalar, E> {
        Ok(Scalar::Bytes(bytes.to_vec()))
    }

    fn visit_string<E>(self, text: String) -> Result<Scalar, E> {
        Ok(Scalar::Text(text))
    }

    fn visit_str<E>(self, text: &str) -> Result<Scalar, E> {
        Ok(Scalar::Text(text.to_owned()))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Scalar, E> {
        Ok(Scalar::Number(number))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Scalar, E> {
        Ok(Scalar::Other)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Scalar, E> {
        Ok(Scalar::Other)
    }

    fn visit_unit<E>(self) -> Result<Scalar, E> {
        Ok(Scalar::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Scalar, A::Error> {
        Skip { levels: LEVELS_MAX }.visit_seq(items)?;
        Ok(Scalar::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<Scalar, A::Error> {
        Skip { levels: LEVELS_MAX }.visit_map(fields)?;
        Ok(Scalar::Other)
    }

    /// The symbol, as text.
    fn visit_enum<A: EnumAccess<'de>>(self, choice: A) -> Result<Scalar, A::Error> {
        let (symbol, content) = choice.variant()?;
        content.unit_variant()?;
        Ok(symbol)
    }
}

/// Passes over a value. Of a schema that is in itself it could be as deep as a file has bytes.
#[derive(Clone, Copy)]
struct Skip {
    /// How many more there may be within it.
    levels: u32,
}

impl Skip {
    fn within(self) -> Self {
        Self { levels: self.levels - 1 }
    }
}

impl<'de> DeserializeSeed<'de> for Skip {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if self.levels == 0 {
            return Err(D::Error::custom(format!("a value of more than {LEVELS_MAX} levels")));
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Skip {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bytes<E>(self, _: &[u8]) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element_seed(self.within())?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        while fields.next_key::<Name>()?.is_some() {
            fields.next_value_seed(self.within())?;
        }
        Ok(())
    }

    fn visit_enum<A: EnumAccess<'de>>(self, choice: A) -> Result<(), A::Error> {
        choice.variant::<Name>()?.1.unit_variant()
    }
}

/// What the Avro library writes to. It takes a write that was cut short for a whole one, so here each is whole or an error.
struct Whole<W>(W);

impl<W: Write> Write for Whole<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Writes a file.
pub struct Writer<W: Write = File> {
    writer: apache_avro::Writer<'static, Whole<BufWriter<W>>>,
}

impl<W: Write> Writer<W> {
    /// Begins a file.
    pub fn create(file: W) -> Result<Self> {
        let output = Whole(BufWriter::with_capacity(super::BUFFER_BYTES, file));
        let writer = apache_avro::Writer::with_codec(&PARSED, output, Codec::Snappy);
        Ok(Self { writer: writer.map_err(|error| Error::failed(format!("Avro: {error}")))? })
    }

    fn add(&mut self, row: &Row) -> Result<()> {
        let appended = self.writer.append_ser(Fields(row));
        appended.map(drop).map_err(|error| Error::failed(format!("Avro: {error}")))
    }

    fn end(self) -> Result<W> {
        let buffer = self.writer.into_inner().map_err(|e| Error::failed(format!("Avro: {e}")))?;
        buffer.0.into_inner().map_err(|error| Error::failed(format!("write: {}", error.error())))
    }
}

/// Bytes, which are not a list of numbers.
struct Raw<'a>(&'a [u8]);

impl Serialize for Raw<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

/// A row, of fields in the order of the schema.
struct Fields<'a>(&'a Row);

impl Serialize for Fields<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut record = serializer.serialize_struct("BigtableRow", 2)?;
        record.serialize_field("key", &Raw(&self.0.key))?;
        record.serialize_field("cells", &CellFields(&self.0.cells))?;
        record.end()
    }
}

struct CellFields<'a>(&'a [Cell]);

impl Serialize for CellFields<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.0.len()))?;
        for cell in self.0 {
            list.serialize_element(&OneCell(cell))?;
        }
        list.end()
    }
}

struct OneCell<'a>(&'a Cell);

impl Serialize for OneCell<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut record = serializer.serialize_struct("BigtableCell", 4)?;
        record.serialize_field("family", &self.0.family)?;
        record.serialize_field("qualifier", &Raw(&self.0.qualifier))?;
        record.serialize_field("timestamp", &self.0.timestamp_micros)?;
        record.serialize_field("value", &Raw(&self.0.value))?;
        record.end()
    }
}

impl Sink for Writer {
    fn write(&mut self, row: &Row) -> Result<usize> {
        self.add(row)?;
        Ok(row.cells.len())
    }

    fn finish(self: Box<Self>) -> Result<File> {
        self.end()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use apache_avro::types::Value;

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
        let schema = |path: &Path| {
            let reader = apache_avro::Reader::new(crate::files::open(path).unwrap()).unwrap();
            reader.writer_schema().canonical_form()
        };
        assert_eq!(schema(&path), schema(&golden_file("rows.avro")));
        let rows =
            |path: &Path| rows_of(&mut Reader::open(crate::files::open(path).unwrap()).unwrap());
        assert_eq!(rows(&path), rows(&golden_file("rows.avro")));
    }

    /// A file that takes less of a large write than it is given, as one on a disk that is full for a moment.
    #[derive(Default)]
    struct Short(Vec<u8>);

    impl Write for Short {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.get(..bytes.len().min(1000)).unwrap();
            self.0.extend_from_slice(taken);
            Ok(taken.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_write_that_is_cut_short_is_gone_on_with() {
        // Of one block that is larger than the buffer, and that snappy makes no smaller.
        let mut state = 1_u64;
        let noise = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        });
        let value = noise.take(super::super::BUFFER_BYTES * 2).collect();
        let mut rows = golden_rows();
        rows.first_mut().unwrap().cells.first_mut().unwrap().value = value;
        let mut writer = Writer::create(Short::default()).unwrap();
        for row in &rows {
            writer.add(row).unwrap();
        }
        let file = writer.end().unwrap().0;
        let read = rows_of(&mut Reader::open(&file[..]).unwrap());
        assert!(read == rows, "{} of {} rows, or others", read.len(), rows.len());
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

    /// A file of one record of a schema.
    fn file_of(schema: &str, record: Value) -> Vec<u8> {
        let schema = Schema::parse_str(schema).unwrap();
        let mut writer = apache_avro::Writer::new(&schema, Vec::new()).unwrap();
        writer.append_value(record).unwrap();
        writer.into_inner().unwrap()
    }

    #[test]
    fn other_types_that_mean_the_same_are_read_and_those_that_do_not_are_set_aside() {
        let schema = |value: &str| {
            format!(
                r#"{{"type": "record", "name": "Other", "fields": [
                    {{"name": "more", "type": {{"type": "array", "items": "double"}}}},
                    {{"name": "key", "type": ["null", "string"]}},
                    {{"name": "cells", "type": ["null", {{"type": "array", "items": {{
                        "type": "record", "name": "Cell", "fields": [
                            {{"name": "value", "type": {value}}},
                            {{"name": "timestamp", "type": {{"type": "long", "logicalType": "timestamp-millis"}}}},
                            {{"name": "note", "type": ["null", "string"]}},
                            {{"name": "family", "type": "string"}},
                            {{"name": "qualifier", "type": {{"type": "fixed", "name": "Two", "size": 2}}}}
                        ]}}}}]}}
                ]}}"#
            )
        };
        let record = |value: Value, cells: bool| {
            let field = |name: &str, value: Value| (name.to_owned(), value);
            let union = |variant: u32, value: Value| Value::Union(variant, Box::new(value));
            let cell = Value::Record(vec![
                field("value", value),
                field("timestamp", Value::TimestampMillis(7)),
                field("note", union(1, Value::String("n".to_owned()))),
                field("family", Value::String("f".to_owned())),
                field("qualifier", Value::Fixed(2, b"qq".to_vec())),
            ]);
            let cells =
                if cells { union(1, Value::Array(vec![cell])) } else { union(0, Value::Null) };
            Value::Record(vec![
                field("more", Value::Array(vec![Value::Double(1.5)])),
                field("key", union(1, Value::String("k".to_owned()))),
                field("cells", cells),
            ])
        };
        let read = |bytes: &[u8]| Reader::open(bytes).unwrap().next().unwrap().unwrap();
        let text = Value::String("v".to_owned());
        let Record::Row(row) = read(&file_of(&schema("\"string\""), record(text.clone(), true)))
        else {
            panic!("no row")
        };
        assert_eq!((row.key.as_ref(), row.cells.len()), (&b"k"[..], 1));
        let Cell { family, qualifier, timestamp_micros, value } = &row.cells[0];
        assert_eq!(
            (family.as_str(), qualifier.as_ref(), value.as_ref()),
            ("f", &b"qq"[..], &b"v"[..])
        );
        assert_eq!(*timestamp_micros, 7000);
        let bad = |bytes: &[u8]| match read(bytes) {
            Record::Bad(bad) => {
                assert_eq!(bad.raw, "key k");
                bad.reason
            }
            other => panic!("{other:?}"),
        };
        let number = file_of(&schema("\"double\""), record(Value::Double(1.5), true));
        assert_eq!(bad(&number), "field \"value\" is not bytes");
        assert!(bad(&file_of(&schema("\"string\""), record(text, false))).contains("cells"));
    }

    #[test]
    fn a_field_of_an_enum_is_its_symbol_or_passed_over() {
        let schema = r#"{"type": "record", "name": "R", "fields": [
            {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
            {"name": "kinds", "type": {"type": "array", "items": "Kind"}},
            {"name": "key", "type": "bytes"},
            {"name": "cells", "type": {"type": "array", "items": {"type": "record", "name": "C", "fields": [
                {"name": "family", "type": {"type": "enum", "name": "Family", "symbols": ["f", "g"]}},
                {"name": "qualifier", "type": "bytes"},
                {"name": "maybe", "type": ["null", "Kind"]},
                {"name": "timestamp", "type": "long"},
                {"name": "value", "type": ["null", "Kind"]}
            ]}}}]}"#;
        let field = |name: &str, value: Value| (name.to_owned(), value);
        let b = || Value::Enum(1, "B".to_owned());
        let union = |value: Value| Value::Union(1, Box::new(value));
        let cell = Value::Record(vec![
            field("family", Value::Enum(1, "g".to_owned())),
            field("qualifier", Value::Bytes(b"q".to_vec())),
            field("maybe", union(b())),
            field("timestamp", Value::Long(7)),
            field("value", union(b())),
        ]);
        let record = Value::Record(vec![
            field("kind", b()),
            field("kinds", Value::Array(vec![b(), b()])),
            field("key", Value::Bytes(b"k".to_vec())),
            field("cells", Value::Array(vec![cell])),
        ]);
        let file = file_of(schema, record);
        let rows = rows_of(&mut Reader::open(&file[..]).unwrap());
        let cell = Cell {
            family: "g".to_owned(),
            qualifier: "q".into(),
            timestamp_micros: 7,
            value: "B".into(),
        };
        assert_eq!(rows, [Row { key: "k".into(), cells: vec![cell] }]);
    }

    #[test]
    fn damaged_files_are_errors_or_other_rows_but_never_panics() {
        let mut whole = Vec::new();
        crate::files::open(&golden_file("rows.avro")).unwrap().read_to_end(&mut whole).unwrap();
        // A level of compression of no bytes, which the crate takes the first byte of.
        let mut level =
            b"Obj\x01\x06\x14avro.codec\x0abzip2\x38avro.codec.compression_level\x00".to_vec();
        level.extend(b"\x16avro.schema\x0c\"null\"\x00");
        level.extend([7; 16]);
        let flipped = (0..whole.len()).map(|at| {
            let mut damaged = whole.clone();
            *damaged.get_mut(at).unwrap() ^= 0x55;
            damaged
        });
        for bytes in flipped.chain([level]) {
            let Ok(mut reader) = Reader::open(&bytes[..]) else { continue };
            while let Ok(Some(_)) = reader.next() {}
        }
    }

    fn block_of(schema: &str, block: &[u8]) -> Vec<u8> {
        super::file_with(&Schema::parse_str(schema).unwrap(), 1, block).unwrap()
    }

    #[test]
    fn a_schema_that_promises_more_than_bytes_can_hold_is_refused() {
        let list = |items: &str| {
            format!(
                r#"{{"type": "record", "name": "R", "fields": [
                    {{"name": "key", "type": "bytes"}}, {{"name": "more", "type": {items}}},
                    {{"name": "cells", "type": {{"type": "array", "items": "bytes"}}}}]}}"#
            )
        };
        let empty = r#"{"type": "record", "name": "E", "fields": [{"name": "n", "type": "null"}]}"#;
        let fixed = r#"{"type": "fixed", "name": "F", "size": 999999999999}"#;
        for (more, word) in [
            (r#"{"type": "array", "items": "null"}"#.to_owned(), "without content"),
            (format!(r#"{{"type": "array", "items": {empty}}}"#), "without content"),
            (fixed.to_owned(), "limit"),
        ] {
            let file = block_of(&list(&more), b"");
            let error = Reader::open(&file[..]).err().unwrap().to_string();
            assert!(error.contains(word), "{error}");
        }
        // Trees and chains are in order.
        for more in [r#"["null", "R"]"#, r#"{"type": "array", "items": "R"}"#] {
            Reader::open(&block_of(&list(more), b"")[..]).unwrap();
        }
    }

    #[test]
    fn a_value_that_is_deeper_than_the_stack_is_an_error() {
        let schema = r#"{"type": "record", "name": "R", "fields": [
            {"name": "deeper", "type": ["null", "R"]}, {"name": "key", "type": "bytes"},
            {"name": "cells", "type": {"type": "array", "items": "bytes"}}]}"#;
        let file = block_of(schema, &vec![2; 1 << 22]);
        let mut reader = Reader::open(&file[..]).unwrap();
        let error = reader.next().unwrap_err().to_string();
        assert!(error.contains("levels"), "{error}");
    }

    #[test]
    fn a_file_that_is_cut_off_within_the_count_of_a_block_is_an_error_and_one_before_it_ends_there()
    {
        let whole = super::file_with(&PARSED, 200, &[0; 2]).unwrap();
        let header = super::file_with(&PARSED, 0, b"").unwrap().len() - 2 - SYNC_BYTES;
        let ended = |bytes: &[u8]| Reader::open(bytes).unwrap().next();
        assert_eq!(ended(whole.get(..header).unwrap()), Ok(None));
        let error = ended(whole.get(..=header).unwrap()).unwrap_err().to_string();
        assert!(error.contains("count of a block"), "{error}");
    }

    #[test]
    fn the_last_byte_of_a_mark_is_no_number_however_it_is_read() {
        /// Gives a byte at a time, as a buffer does where it ends within a mark.
        struct Trickling<'a>(&'a [u8]);

        impl Read for Trickling<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
                let some = buffer.len().min(1);
                self.0.read(&mut buffer[..some])
            }
        }

        let mut file = super::file_with(&PARSED, 1, &[2, b'k', 0]).unwrap();
        let mark = file.len() - SYNC_BYTES;
        let header = mark - 5 - SYNC_BYTES;
        for start in [header, mark] {
            file[start..start + SYNC_BYTES].fill(0xff);
        }
        let mut reader = Reader::open(Trickling(&file)).unwrap();
        assert_eq!(reader.next(), Ok(Some(Record::Empty)));
        assert_eq!(reader.next(), Ok(None));
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
