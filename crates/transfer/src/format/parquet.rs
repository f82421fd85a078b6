//! Parquet files of `BigtableRow`, as Beam's ParquetIO writes them for Google's templates: the Avro schema in
//! the file's metadata, and lists in parquet-avro's older form:
//!
//! ```text
//! message com.google.cloud.teleport.bigtable.BigtableRow {
//!   required binary key;
//!   required group cells (LIST) {
//!     repeated group array { family, qualifier, timestamp, value }
//!   }
//! }
//! ```
//!
//! Files with lists in the newer form (`list`, `element`) are read too. A row group is in memory while it is written,
//! so it is small ([`ROW_GROUP_BYTES`]); one is read some rows at a time ([`READ_BATCH_BYTES`]), with the pages that they lie in. How many cells a
//! row has is for its levels to say, of which a run of any length takes some bytes: a file that lies there is not found out
//! before they take the memory.

use std::io::{BufWriter, Read};
use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::file::metadata::{KeyValue, ParquetMetaData};
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{ChunkReader, FileReader as _, Length, SerializedFileReader};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::record::Field;
use parquet::record::reader::RowIter;
use parquet::schema::parser::parse_message_type;

use super::avro::SCHEMA;
use super::unit::Unit;
use super::{Bad, Record, Sink, Source, guarded, parquet_footer};
use crate::error::{Error, Result};
use crate::files::{File, Position};
use crate::row::{Cell, Row};

/// Cells of a row group until it is written, in bytes. More of them compress a little better and take more memory,
/// for each file that is written at the same time.
const ROW_GROUP_BYTES: usize = 32 << 20;
/// Rows that are decoded at once, at most: what a call costs is little beside these.
const READ_BATCH_ROWS: usize = 64;
/// Bytes of rows that are decoded at once, by what a row of the file has on average; one row at least.
const READ_BATCH_BYTES: u64 = 8 << 20;

const MESSAGE: &str = "message com.google.cloud.teleport.bigtable.BigtableRow {
  required binary key;
  required group cells (LIST) {
    repeated group array {
      required binary family (STRING);
      required binary qualifier;
      required int64 timestamp;
      required binary value;
    }
  }
}";

fn failed(error: impl std::fmt::Display) -> Error {
    Error::failed(format!("Parquet: {error}"))
}

/// A file, or a reader of it, whose end is an error for who reads there: what a damaged page header has passed over goes on
/// behind the end otherwise, for as many bytes as it says.
struct Ending<R>(R);

impl<R: Length> Length for Ending<R> {
    fn len(&self) -> u64 {
        self.0.len()
    }
}

impl<R: ChunkReader> ChunkReader for Ending<R> {
    type T = Ending<R::T>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        self.0.get_read(start).map(Ending)
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        self.0.get_bytes(start, length)
    }
}

impl<R: Read> Read for Ending<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self.0.read(buffer)? {
            0 if !buffer.is_empty() => Err(std::io::ErrorKind::UnexpectedEof.into()),
            count => Ok(count),
        }
    }
}

/// Reads a file.
pub struct Reader {
    rows: RowIter<'static>,
    /// Of the file's timestamps.
    unit: Unit,
    position: Position,
    file_bytes: u64,
    rows_all: u64,
    rows_read: u64,
}

impl Reader {
    /// Reads the footer; a file of other columns is refused.
    pub fn open(file: impl ChunkReader + 'static, position: Position) -> Result<Self> {
        let file_bytes = file.len();
        parquet_footer::check(&file).map_err(failed)?;
        let reader = guarded("Parquet", || SerializedFileReader::new(Ending(file)))?;
        let meta = reader.metadata().file_metadata();
        let root = meta.schema_descr().root_schema();
        for field in ["key", "cells"] {
            if !root.get_fields().iter().any(|column| column.name() == field) {
                return Err(failed(format!("not a file of BigtableRow: no column {field:?}")));
            }
        }
        let unit = Unit::of_parquet(meta.schema_descr())?;
        let rows_all = u64::try_from(meta.num_rows()).unwrap_or(0);
        let batch = batch_rows(reader.metadata());
        let rows = RowIter::from_file_into(Box::new(reader)).with_batch_size(batch);
        Ok(Self { rows, unit, position, file_bytes, rows_all, rows_read: 0 })
    }
}

/// Rows of a file that are decoded at once: as many as the rows of its row groups let, by the largest of these.
fn batch_rows(meta: &ParquetMetaData) -> usize {
    let of_row = meta.row_groups().iter().map(|group| {
        // What its footer claims may be anything.
        let columns = group.columns().iter().map(|column| column.uncompressed_size());
        let bytes =
            columns.fold(0u64, |sum, bytes| sum.saturating_add(u64::try_from(bytes).unwrap_or(0)));
        bytes / u64::try_from(group.num_rows()).unwrap_or(0).max(1)
    });
    let rows = READ_BATCH_BYTES / of_row.max().unwrap_or(0).max(1);
    usize::try_from(rows).unwrap_or(usize::MAX).clamp(1, READ_BATCH_ROWS)
}

/// A timestamp, which is an integer of 64 bits.
fn count(field: &Field) -> Result<i64, String> {
    match field {
        Field::Long(count) | Field::TimestampMicros(count) | Field::TimestampMillis(count) => {
            Ok(*count)
        }
        Field::ULong(count) => i64::try_from(*count)
            .map_err(|_| format!("timestamp {count} is beyond what Bigtable has")),
        // Of a time of these days neither milli-, micro- nor nanoseconds fit, and seconds are no unit that is known here.
        Field::Int(_) | Field::UInt(_) => {
            Err("column \"timestamp\" has 32 bits, too few for microseconds".to_owned())
        }
        _ => Err("column \"timestamp\" is not an integer".to_owned()),
    }
}

fn bytes(name: &str, field: &Field) -> Result<Bytes, String> {
    match field {
        Field::Bytes(bytes) => Ok(Bytes::copy_from_slice(bytes.data())),
        Field::Str(text) => Ok(Bytes::copy_from_slice(text.as_bytes())),
        _ => Err(format!("column {name:?} is not binary")),
    }
}

/// A cell: a group of four columns.
fn cell(field: &Field, unit: Unit) -> Result<Cell, String> {
    let Field::Group(group) = field else { return Err("a cell is no group".to_owned()) };
    let mut cell = Cell {
        family: String::new(),
        qualifier: Bytes::new(),
        timestamp_micros: 0,
        value: Bytes::new(),
    };
    let mut seen = 0;
    for (name, field) in group.get_column_iter() {
        match name.as_str() {
            "family" => {
                cell.family = String::from_utf8(bytes(name, field)?.to_vec())
                    .map_err(|_| "a family's name is not UTF-8".to_owned())?;
            }
            "qualifier" => cell.qualifier = bytes(name, field)?,
            "timestamp" => {
                cell.timestamp_micros = unit.micros(count(field)?)?;
            }
            "value" => cell.value = bytes(name, field)?,
            _ => continue,
        }
        seen += 1;
    }
    if seen == 4 { Ok(cell) } else { Err("a cell lacks some of its columns".to_owned()) }
}

fn row(record: &parquet::record::Row, unit: Unit) -> Result<Row, Bad> {
    cells_of(record, unit).map_err(|reason| {
        let mut key = record.get_column_iter().filter(|(name, _)| *name == "key");
        match key.find_map(|(name, field)| bytes(name, field).ok()) {
            Some(key) => Bad::of_row(&key, reason),
            None => Bad { reason, raw: String::new() },
        }
    })
}

fn cells_of(record: &parquet::record::Row, unit: Unit) -> Result<Row, String> {
    let mut row = Row::default();
    for (name, field) in record.get_column_iter() {
        match (name.as_str(), field) {
            ("key", field) => row.key = bytes(name, field)?,
            ("cells", Field::ListInternal(list)) => {
                for element in list.elements() {
                    match element {
                        // Of the older form of lists, the record reader makes a list of one list.
                        Field::ListInternal(cells) => {
                            for field in cells.elements() {
                                row.cells.push(cell(field, unit)?);
                            }
                        }
                        field => row.cells.push(cell(field, unit)?),
                    }
                }
            }
            ("cells", Field::Null) => {}
            ("cells", _) => return Err("column \"cells\" is not a list".to_owned()),
            _ => {}
        }
    }
    Ok(row)
}

impl Source for Reader {
    fn next(&mut self) -> Result<Option<Record>> {
        let Some(record) = guarded("Parquet", || self.rows.next().transpose())? else {
            self.position.set(self.file_bytes);
            return Ok(None);
        };
        self.rows_read += 1;
        let share = self.rows_read as f64 / self.rows_all.max(1) as f64;
        self.position.set((self.file_bytes as f64 * share.min(1.0)) as u64);
        Ok(Some(match row(&record, self.unit) {
            Ok(row) if row.cells.is_empty() => Record::Empty,
            Ok(row) => Record::Row(row),
            Err(bad) => Record::Bad(bad),
        }))
    }
}

/// Writes a file.
pub struct Writer {
    writer: SerializedFileWriter<BufWriter<File>>,
    group: Group,
}

/// The columns of a row group, and where each row's list begins.
#[derive(Default)]
struct Group {
    bytes: usize,
    keys: Vec<ByteArray>,
    families: Vec<ByteArray>,
    qualifiers: Vec<ByteArray>,
    timestamps: Vec<i64>,
    values: Vec<ByteArray>,
    /// Of each entry of a list column: 0 for "this list is empty", 1 for a value; and 0 where a row begins.
    definition: Vec<i16>,
    repetition: Vec<i16>,
}

impl Writer {
    /// Begins a file.
    pub fn create(file: File) -> Result<Self> {
        let schema = parse_message_type(MESSAGE).map_err(failed)?;
        // One line, as Avro's own writer has it.
        let avro: serde_json::Value = serde_json::from_str(SCHEMA).map_err(failed)?;
        let metadata = vec![
            KeyValue::new("parquet.avro.schema".to_owned(), avro.to_string()),
            KeyValue::new("writer.model.name".to_owned(), "avro".to_owned()),
        ];
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_key_value_metadata(Some(metadata))
            .build();
        let output = BufWriter::with_capacity(super::BUFFER_BYTES, file);
        let writer = SerializedFileWriter::new(output, Arc::new(schema), Arc::new(properties));
        Ok(Self { writer: writer.map_err(failed)?, group: Group::default() })
    }

    fn flush(&mut self) -> Result<()> {
        let group = std::mem::take(&mut self.group);
        if group.keys.is_empty() {
            return Ok(());
        }
        let mut writer = self.writer.next_row_group().map_err(failed)?;
        let lists = Some((group.definition.as_slice(), group.repetition.as_slice()));
        binary(&mut writer, &group.keys, None)?;
        binary(&mut writer, &group.families, lists)?;
        binary(&mut writer, &group.qualifiers, lists)?;
        let mut column = writer.next_column().map_err(failed)?.ok_or_else(no_column)?;
        let typed = column.typed::<Int64Type>();
        let levels = (Some(group.definition.as_slice()), Some(group.repetition.as_slice()));
        typed.write_batch(&group.timestamps, levels.0, levels.1).map_err(failed)?;
        column.close().map_err(failed)?;
        binary(&mut writer, &group.values, lists)?;
        writer.close().map(drop).map_err(failed)
    }
}

fn no_column() -> Error {
    failed("the schema has fewer columns than are written")
}

/// Writes the next column.
fn binary(
    writer: &mut SerializedRowGroupWriter<'_, BufWriter<File>>,
    values: &[ByteArray],
    levels: Option<(&[i16], &[i16])>,
) -> Result<()> {
    let mut column = writer.next_column().map_err(failed)?.ok_or_else(no_column)?;
    let typed = column.typed::<ByteArrayType>();
    let (definition, repetition) = levels.unzip();
    typed.write_batch(values, definition, repetition).map_err(failed)?;
    column.close().map_err(failed)
}

impl Sink for Writer {
    fn write(&mut self, row: &Row) -> Result<usize> {
        let group = &mut self.group;
        group.bytes += row.wire_bytes();
        group.keys.push(row.key.clone().into());
        if row.cells.is_empty() {
            group.definition.push(0);
            group.repetition.push(0);
        }
        for (index, cell) in row.cells.iter().enumerate() {
            group.families.push(cell.family.as_str().into());
            group.qualifiers.push(cell.qualifier.clone().into());
            group.timestamps.push(cell.timestamp_micros);
            group.values.push(cell.value.clone().into());
            group.definition.push(1);
            group.repetition.push(i16::from(index > 0));
        }
        if group.bytes >= ROW_GROUP_BYTES {
            self.flush()?;
        }
        Ok(row.cells.len())
    }

    fn finish(mut self: Box<Self>) -> Result<File> {
        self.flush()?;
        let buffer = self.writer.into_inner().map_err(failed)?;
        buffer.into_inner().map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::golden::{golden_file, golden_rows, rows_of};
    use super::*;

    fn written(rows: &[Row], flushes: bool) -> (tempfile::TempDir, File) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let (unfinished, file) = crate::files::Unfinished::create(&path).unwrap();
        let mut writer = Box::new(Writer::create(file).unwrap());
        for row in rows {
            writer.write(row).unwrap();
            if flushes {
                writer.flush().unwrap();
            }
        }
        unfinished.finish(&writer.finish().unwrap()).unwrap();
        let file = crate::files::open(&path).unwrap();
        (dir, file)
    }

    #[test]
    fn what_is_written_has_the_columns_and_metadata_of_parquet_avro() {
        let (_dir, file) = written(&golden_rows(), false);
        let ours = SerializedFileReader::new(file).unwrap();
        let theirs =
            SerializedFileReader::new(crate::files::open(&golden_file("rows.parquet")).unwrap())
                .unwrap();
        let meta = |reader: &SerializedFileReader<File>| {
            let meta = reader.metadata().file_metadata();
            let schema: serde_json::Value = meta
                .key_value_metadata()
                .into_iter()
                .flatten()
                .filter(|pair| pair.key == "parquet.avro.schema")
                .find_map(|pair| serde_json::from_str(pair.value.as_deref()?).ok())
                .unwrap();
            let mut text = Vec::new();
            parquet::schema::printer::print_schema(&mut text, meta.schema_descr().root_schema());
            (String::from_utf8(text).unwrap(), schema)
        };
        assert_eq!(meta(&ours), meta(&theirs));
    }

    /// A reader of a file of two rows, `a` and `b`, whose timestamps are these, of 64 bits and a type.
    fn reader_of(timestamp_type: &str, timestamps: [i64; 2]) -> (tempfile::TempDir, Reader) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let (unfinished, file) = crate::files::Unfinished::create(&path).unwrap();
        let message = MESSAGE.replace("timestamp;", &format!("timestamp ({timestamp_type});"));
        let schema = Arc::new(parse_message_type(&message).unwrap());
        let properties = Arc::new(WriterProperties::default());
        let writer = SerializedFileWriter::new(BufWriter::new(file), schema, properties).unwrap();
        let mut writer = Box::new(Writer { writer, group: Group::default() });
        for (key, timestamp_micros) in ["a", "b"].into_iter().zip(timestamps) {
            let cell = Cell {
                family: "f".to_owned(),
                qualifier: "q".into(),
                timestamp_micros,
                value: "v".into(),
            };
            writer.write(&Row { key: key.into(), cells: vec![cell] }).unwrap();
        }
        unfinished.finish(&writer.finish().unwrap()).unwrap();
        let file = crate::files::open(&path).unwrap();
        let reader = Reader::open(file, Position::default()).unwrap();
        (dir, reader)
    }

    #[test]
    fn unsigned_timestamps_are_read_and_what_no_table_has_is_set_aside() {
        // That of `b` is 2^64 - 1 to who reads it without a sign.
        let (_dir, mut reader) = reader_of("INTEGER(64,false)", [7_000, -1]);
        let Some(Record::Row(row)) = reader.next().unwrap() else { panic!("no row") };
        assert_eq!(row.cells[0].timestamp_micros, 7_000);
        let Some(Record::Bad(bad)) = reader.next().unwrap() else { panic!("a row") };
        assert!(bad.reason.contains("timestamp 18446744073709551615"), "{}", bad.reason);
        for seconds in [Field::Int(1_700_000_000), Field::UInt(u32::MAX)] {
            assert!(count(&seconds).unwrap_err().contains("32 bits"));
        }
        assert!(count(&Field::Double(7.0)).unwrap_err().contains("not an integer"));
    }

    #[test]
    fn large_rows_are_read_few_at_a_time() {
        let mut rows = golden_rows();
        let batch = |rows: &[Row], flushes| {
            let (_dir, file) = written(rows, flushes);
            let batch = batch_rows(
                SerializedFileReader::new(file.try_clone().unwrap()).unwrap().metadata(),
            );
            assert_eq!(rows_of(&mut Reader::open(file, Position::default()).unwrap()), rows);
            batch
        };
        assert_eq!(batch(&rows, false), READ_BATCH_ROWS);
        let mut large = rows[0].clone();
        large.cells[0].value = vec![7; 10 << 20].into();
        rows.push(large);
        assert_eq!(batch(&rows, false), 3, "of a quarter of 10 MiB each");
        assert_eq!(batch(&rows, true), 1, "of a row group that is one row of 10 MiB");
    }

    #[test]
    fn timestamps_of_other_units_are_read_and_what_is_no_microsecond_is_set_aside() {
        let (_dir, mut reader) = reader_of("TIMESTAMP(NANOS,true)", [7_000_000, 7_000_001]);
        let Some(Record::Row(row)) = reader.next().unwrap() else { panic!("no row") };
        assert_eq!(row.cells[0].timestamp_micros, 7_000);
        let Some(Record::Bad(bad)) = reader.next().unwrap() else { panic!("a row") };
        assert!(bad.reason.contains("7000001 ns"), "{}", bad.reason);
        assert_eq!(bad.raw, "key b");
    }

    #[test]
    fn what_is_written_is_read_across_row_groups() {
        let mut rows = golden_rows();
        rows.extend(golden_rows());
        for flushes in [false, true] {
            let (_dir, file) = written(&rows, flushes);
            let mut reader = Reader::open(file, Position::default()).unwrap();
            assert_eq!(rows_of(&mut reader), rows);
        }
        let (_dir, file) = written(&[], false);
        assert_eq!(rows_of(&mut Reader::open(file, Position::default()).unwrap()), []);
    }

    #[test]
    fn a_page_header_that_goes_on_behind_the_end_of_its_file_is_an_error() {
        let path = golden_file("../damaged/endless-header.parquet");
        let file = crate::files::open(&path).unwrap();
        let mut reader = Reader::open(file, Position::default()).unwrap();
        assert!(reader.next().is_err());
    }

    #[test]
    fn damaged_files_are_errors() {
        use std::io::Read as _;
        let mut whole = Vec::new();
        let mut file = crate::files::open(&golden_file("rows.parquet")).unwrap();
        file.read_to_end(&mut whole).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("damaged");
        let mut refused = 0;
        for at in (0..whole.len()).step_by(7) {
            let mut damaged = whole.clone();
            *damaged.get_mut(at).unwrap() ^= 0x55;
            crate::files::replace(&path, &damaged).unwrap();
            let file = crate::files::open(&path).unwrap();
            let Ok(mut reader) = Reader::open(file, Position::default()) else {
                refused += 1;
                continue;
            };
            while let Ok(Some(_)) = reader.next() {}
        }
        assert!(refused > 0);
    }
}
