//! CSV as `cbt import` reads it.
//!
//! ```text
//! ,family-1,,family-2,          families: each holds for the columns to its right until the next
//! ,column-1,column-2,column-3   qualifiers
//! row-a,1,,3                    a row key and values; an empty field is no cell
//! ```
//!
//! With a family given beside, the file begins with the qualifiers. Every cell gets the time of the import, or,
//! where values encode their own (`value@microseconds`), that. Bytes are taken as they are; only `"`, `,` and line ends
//! are quoted, and a quote that means nothing, or a carriage return that ends no line, ends the reading
//! ([`csv_quotes`](super::csv_quotes)).

use std::collections::HashMap;
use std::io::{BufWriter, Read};

use bytes::Bytes;
use csv::ByteRecord;

use super::csv_quotes::Quotes;
use super::{Bad, Record, Sink, Source};
use crate::error::{Error, Result};
use crate::files::File;
use crate::row::{Cell, Row};

/// Most columns of a file: a line of each is held in memory.
pub const COLUMNS_MAX: usize = 10_000;

/// Bytes of a record at most: a row of the largest size that a request takes, quoted. A quote that is never closed makes
/// one field of the rest of the file, which would be read into memory.
const RECORD_BYTES_MAX: u64 = 512 << 20;

/// What the reader has of a file beyond the record that it reads: what it reads at a time, its default.
const AHEAD_BYTES: usize = 8 << 10;

/// Bytes of a record that is written, at most: one that is read whatever is read with it.
const WRITTEN_BYTES_MAX: usize = RECORD_BYTES_MAX as usize - AHEAD_BYTES;

/// Where a cell's timestamp comes from, as `cbt import timestamp=` has it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Timestamps {
    /// The time of the import, the same for all.
    #[default]
    Now,
    /// A suffix `@microseconds` of the value; where there is none, the time of the import.
    ValueEncoded,
}

/// What a CSV file does not say itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Options {
    /// The family of all columns; the file has no row of families then.
    pub family: Option<String>,
    /// Where timestamps come from.
    pub timestamps: Timestamps,
    /// The time of the import, in microseconds; cells are given [whole milliseconds](Self::given_micros) of it.
    pub now_micros: i64,
}

impl Options {
    /// The timestamp of cells that have none of their own, in microseconds: as any timestamp of a cell, a whole millisecond.
    pub fn given_micros(&self) -> i64 {
        self.now_micros - self.now_micros.rem_euclid(1000)
    }
}

/// A column of a file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct Column {
    /// The family.
    pub family: String,
    /// The qualifier.
    pub qualifier: Vec<u8>,
}

/// A reader that fails once a record is too long, and where a quote or a carriage return is that may not be there.
struct Bounded<R> {
    inner: R,
    /// What was read and is behind a carriage return that was handed out: before, nothing says what that means.
    ahead: Option<u8>,
    record_bytes_max: u64,
    /// Of the record that is being read.
    left: u64,
    quotes: Quotes,
    /// What is wrong with what is behind the last byte that was read.
    wrong: Option<String>,
}

impl<R: Read> Bounded<R> {
    /// Reads what comes next, and one byte ahead where that ends with a carriage return.
    fn fill(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = match (self.ahead.take(), buffer.first_mut()) {
            (Some(ahead), Some(first)) => {
                *first = ahead;
                1
            }
            (ahead, _) => {
                self.ahead = ahead;
                self.inner.read(buffer)?
            }
        };
        if buffer.get(..count).is_some_and(|read| read.ends_with(b"\r")) {
            let mut ahead = Vec::new();
            self.inner.by_ref().take(1).read_to_end(&mut ahead)?;
            self.ahead = ahead.pop();
        }
        Ok(count)
    }
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if let Some(wrong) = &self.wrong {
            return Err(std::io::Error::other(wrong.clone()));
        }
        let count = self.fill(buffer)?;
        self.left = self.left.checked_sub(count as u64).ok_or_else(|| {
            std::io::Error::other(format!(
                "a record of more than {} bytes: is a quote not closed?",
                self.record_bytes_max
            ))
        })?;
        let looked = match buffer.get(..count) {
            Some(read) if !read.is_empty() => self.quotes.look(read, self.ahead),
            _ if buffer.is_empty() => Ok(()),
            _ => self.quotes.end().map_err(|wrong| (0, wrong)),
        };
        let Err((before, wrong)) = looked else { return Ok(count) };
        self.wrong = Some(wrong.clone());
        // The records before it are read.
        if before > 0 { Ok(before) } else { Err(std::io::Error::other(wrong)) }
    }
}

/// Reads a file.
pub struct Reader<R> {
    reader: csv::Reader<Bounded<R>>,
    /// Those behind the row key.
    columns: Vec<(String, Bytes)>,
    timestamps: Timestamps,
    given_micros: i64,
    line: ByteRecord,
}

impl<R: Read> Reader<R> {
    /// Reads the header.
    pub fn open(input: R, options: &Options) -> Result<Self> {
        Self::open_bounded(input, options, RECORD_BYTES_MAX)
    }

    fn open_bounded(input: R, options: &Options, record_bytes_max: u64) -> Result<Self> {
        let (quotes, wrong) = (Quotes::new(), None);
        let left = record_bytes_max;
        let input = Bounded { inner: input, ahead: None, record_bytes_max, left, quotes, wrong };
        let mut reader = csv::ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .buffer_capacity(AHEAD_BYTES)
            .from_reader(input);
        let mut header = |what: &str| {
            let mut line = ByteRecord::new();
            match reader.read_byte_record(&mut line) {
                Ok(true) => Ok(line),
                Ok(false) => Err(Error::failed(format!("the file ends before its row of {what}"))),
                Err(error) => Err(Error::failed(format!("the row of {what}: {error}"))),
            }
        };
        let families = match &options.family {
            Some(_) => None,
            None => Some(header("families")?),
        };
        let qualifiers = header("column qualifiers")?;
        let columns = columns(families.as_ref(), options.family.as_deref(), &qualifiers)?;
        Ok(Self {
            reader,
            columns,
            timestamps: options.timestamps,
            given_micros: options.given_micros(),
            line: ByteRecord::new(),
        })
    }
}

/// Puts the header rows together.
fn columns(
    families: Option<&ByteRecord>,
    family: Option<&str>,
    qualifiers: &ByteRecord,
) -> Result<Vec<(String, Bytes)>> {
    let wrong = |why: &str| Err(Error::failed(format!("header: {why}")));
    if qualifiers.len() < 2 || families.is_some_and(|families| families.len() < 2) {
        return wrong("it takes two columns at least, the row key and one of data");
    }
    if qualifiers.len() - 1 > COLUMNS_MAX {
        return wrong(&format!("{} columns; limit {COLUMNS_MAX}", qualifiers.len() - 1));
    }
    let first = |record: &ByteRecord| record.get(0).is_some_and(|field| !field.is_empty());
    if families.is_some_and(first) || first(qualifiers) {
        return wrong("the first column is the row key's: leave it empty in the header rows");
    }
    let mut named = family.unwrap_or_default().to_owned();
    let mut columns = Vec::with_capacity(qualifiers.len() - 1);
    for (index, qualifier) in qualifiers.iter().enumerate().skip(1) {
        let field = families.and_then(|families| families.get(index)).unwrap_or_default();
        if !field.is_empty() {
            named = String::from_utf8(field.to_vec())
                .map_err(|_| Error::failed("header: a family's name is not UTF-8"))?;
        }
        if named.is_empty() {
            return wrong(
                "the second column of the families' row is empty; a file without that row takes \
                 --column-family",
            );
        }
        if index == 1 && qualifier.is_empty() && families.is_none() {
            return wrong("the second column of the qualifiers' row is empty");
        }
        columns.push((named.clone(), Bytes::copy_from_slice(qualifier)));
    }
    Ok(columns)
}

/// A value's own timestamp, cut to milliseconds as `cbt` sends it, and the value before it. What does not parse
/// is part of the value.
fn encoded(value: &[u8]) -> Option<(&[u8], i64)> {
    let at = value.iter().rposition(|byte| *byte == b'@')?;
    let (value, digits) = value.split_at_checked(at)?;
    let digits = std::str::from_utf8(digits.get(1..)?).ok()?;
    let micros: i64 = digits.parse().ok().filter(|micros| *micros >= 0)?;
    Some((value, micros - micros % 1000))
}

fn raw(line: &ByteRecord) -> String {
    let mut writer = csv::WriterBuilder::new().flexible(true).from_writer(Vec::new());
    let written = writer.write_byte_record(line).ok().and_then(|()| writer.into_inner().ok());
    String::from_utf8_lossy(&written.unwrap_or_default()).trim_end_matches('\n').to_owned()
}

impl<R: Read> Source for Reader<R> {
    fn next(&mut self) -> Result<Option<Record>> {
        let begins = self.reader.position().line();
        let input = self.reader.get_mut();
        input.left = input.record_bytes_max;
        match self.reader.read_byte_record(&mut self.line) {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(error) => {
                let wrong = self.reader.get_ref().wrong.clone();
                let why = wrong.unwrap_or_else(|| format!("line {begins}: {error}"));
                return Err(Error::failed(why));
            }
        }
        let bad = |reason: String| Ok(Some(Record::Bad(Bad { reason, raw: raw(&self.line) })));
        let at = self.line.position().map_or(0, csv::Position::line);
        if self.line.len() != self.columns.len() + 1 {
            let (found, named) = (self.line.len(), self.columns.len() + 1);
            return bad(format!("line {at}: {found} fields where the header has {named}"));
        }
        let mut cells = Vec::new();
        for ((family, qualifier), value) in self.columns.iter().zip(self.line.iter().skip(1)) {
            if value.is_empty() {
                continue;
            }
            let own = match self.timestamps {
                Timestamps::Now => None,
                Timestamps::ValueEncoded => encoded(value),
            };
            let (value, timestamp_micros) = own.unwrap_or((value, self.given_micros));
            cells.push(Cell {
                family: family.clone(),
                qualifier: qualifier.clone(),
                timestamp_micros,
                value: Bytes::copy_from_slice(value),
            });
        }
        let key = self.line.get(0).unwrap_or_default();
        if cells.is_empty() {
            return Ok(Some(Record::Empty));
        }
        if key.is_empty() {
            return bad(format!("line {at}: no row key"));
        }
        Ok(Some(Record::Row(Row { key: Bytes::copy_from_slice(key), cells })))
    }
}

/// Writes a file: the newest version of the columns that it was given.
pub struct Writer {
    writer: csv::Writer<BufWriter<File>>,
    places: HashMap<String, HashMap<Vec<u8>, usize>>,
    fields: Vec<Option<Vec<u8>>>,
    timestamps: Timestamps,
    /// [`WRITTEN_BYTES_MAX`].
    record_bytes_max: usize,
}

impl Writer {
    /// Writes the header.
    pub fn create(file: File, columns: &[Column], timestamps: Timestamps) -> Result<Self> {
        if columns.is_empty() || columns.len() > COLUMNS_MAX {
            let count = columns.len();
            return Err(Error::failed(format!("{count} columns: from 1 to {COLUMNS_MAX} fit")));
        }
        let output = BufWriter::with_capacity(super::BUFFER_BYTES, file);
        let mut writer = csv::WriterBuilder::new().has_headers(false).from_writer(output);
        let mut families = ByteRecord::new();
        let mut qualifiers = ByteRecord::new();
        families.push_field(b"");
        qualifiers.push_field(b"");
        let mut places: HashMap<String, HashMap<Vec<u8>, usize>> = HashMap::new();
        let mut last = None;
        for (index, column) in columns.iter().enumerate() {
            let family = if last == Some(&column.family) { "" } else { &column.family };
            last = Some(&column.family);
            families.push_field(family.as_bytes());
            qualifiers.push_field(&column.qualifier);
            places
                .entry(column.family.clone())
                .or_default()
                .insert(column.qualifier.clone(), index);
        }
        for header in [&families, &qualifiers] {
            writer.write_byte_record(header).map_err(|e| Error::failed(e.to_string()))?;
        }
        let fields = vec![None; columns.len()];
        Ok(Self { writer, places, fields, timestamps, record_bytes_max: WRITTEN_BYTES_MAX })
    }

    /// Refuses a record that no reader takes.
    fn check(&self, key: &[u8]) -> Result<()> {
        let fields = self.fields.iter().map(|field| field.as_deref().unwrap_or_default());
        let bytes = std::iter::once(key).chain(fields).map(field_bytes_max).sum::<usize>();
        let most = self.record_bytes_max;
        if bytes <= most {
            return Ok(());
        }
        // Each quote is two: it may be twice what the table has.
        Err(Error::failed(format!(
            "CSV: row {} takes up to {bytes} bytes, and no reader takes more than {most}: choose Avro or Parquet",
            key.escape_ascii()
        )))
    }
}

/// Bytes of a field in a file, at most: in quotes, with those in it doubled, and what ends it.
fn field_bytes_max(field: &[u8]) -> usize {
    let bytes = field.iter().map(|byte| 1 + usize::from(*byte == b'"'));
    bytes.sum::<usize>() + "\"\",".len()
}

impl Sink for Writer {
    fn write(&mut self, row: &Row) -> Result<usize> {
        self.fields.fill(None);
        let mut cells = 0;
        for cell in &row.cells {
            let columns = self.places.get(&cell.family);
            let place = columns.and_then(|columns| columns.get(cell.qualifier.as_ref()));
            // The newest version comes first.
            if let Some(field @ None) = place.and_then(|place| self.fields.get_mut(*place)) {
                let mut value = cell.value.to_vec();
                if self.timestamps == Timestamps::ValueEncoded {
                    value.extend_from_slice(format!("@{}", cell.timestamp_micros).as_bytes());
                }
                *field = Some(value);
                cells += 1;
            }
        }
        if cells == 0 {
            return Ok(0);
        }
        self.check(&row.key)?;
        let mut line = ByteRecord::new();
        line.push_field(&row.key);
        for field in &self.fields {
            line.push_field(field.as_deref().unwrap_or_default());
        }
        self.writer.write_byte_record(&line).map_err(|e| Error::failed(e.to_string()))?;
        Ok(cells)
    }

    fn finish(self: Box<Self>) -> Result<File> {
        let buffer = self.writer.into_inner().map_err(|e| Error::failed(e.to_string()))?;
        buffer.into_inner().map_err(|e| Error::failed(e.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: i64 = 1_700_000_000_123_456;

    fn options(family: Option<&str>, timestamps: Timestamps) -> Options {
        Options { family: family.map(str::to_owned), timestamps, now_micros: NOW }
    }

    fn read(text: &[u8], options: &Options) -> Vec<Record> {
        let mut reader = Reader::open(text, options).unwrap();
        std::iter::from_fn(|| reader.next().unwrap()).collect()
    }

    fn row(key: &str, cells: &[(&str, &str, i64, &str)]) -> Record {
        let cell = |(family, qualifier, timestamp_micros, value): &(&str, &str, i64, &str)| Cell {
            family: (*family).to_owned(),
            qualifier: Bytes::copy_from_slice(qualifier.as_bytes()),
            timestamp_micros: *timestamp_micros,
            value: Bytes::copy_from_slice(value.as_bytes()),
        };
        let key = Bytes::copy_from_slice(key.as_bytes());
        Record::Row(Row { key, cells: cells.iter().map(cell).collect() })
    }

    #[test]
    fn a_family_holds_until_the_next_and_empty_fields_are_no_cells() {
        let text = b",f1,,f2,\n,c1,c2,c3,c4\na,TRUE,,,FALSE\nb,,,,\nc,\"x,\"\"y\",2,\"l\n2\",\n";
        let now = NOW / 1000 * 1000;
        assert_eq!(
            read(text, &options(None, Timestamps::Now)),
            [
                row("a", &[("f1", "c1", now, "TRUE"), ("f2", "c4", now, "FALSE")]),
                Record::Empty,
                row(
                    "c",
                    &[
                        ("f1", "c1", now, "x,\"y"),
                        ("f1", "c2", now, "2"),
                        ("f2", "c3", now, "l\n2")
                    ]
                ),
            ]
        );
    }

    #[test]
    fn a_given_family_replaces_the_row_of_families() {
        let records = read(b",c1\nk,v@7\n", &options(Some("f"), Timestamps::Now));
        assert_eq!(records, [row("k", &[("f", "c1", NOW / 1000 * 1000, "v@7")])]);
    }

    #[test]
    fn values_may_say_when() {
        let text = b",f,\n,a,b\nk,v@1577862000000000,no@when\nl,@2000,x@y@3999\nm,a@-5,b@\n";
        let now = NOW / 1000 * 1000;
        assert_eq!(
            read(text, &options(None, Timestamps::ValueEncoded)),
            [
                row("k", &[("f", "a", 1_577_862_000_000_000, "v"), ("f", "b", now, "no@when")]),
                row("l", &[("f", "a", 2000, ""), ("f", "b", 3000, "x@y")]),
                row("m", &[("f", "a", now, "a@-5"), ("f", "b", now, "b@")]),
            ]
        );
    }

    #[test]
    fn lines_that_are_no_rows_are_named_and_what_follows_is_read() {
        let records = read(b",f,\n,a,b\nk,1\n,1,2\nl,1,2\n", &options(None, Timestamps::Now));
        let [Record::Bad(short), Record::Bad(keyless), Record::Row(_)] = &records[..] else {
            panic!("{records:?}")
        };
        assert_eq!(short.reason, "line 3: 2 fields where the header has 3");
        assert_eq!(short.raw, "k,1");
        assert_eq!(keyless.reason, "line 4: no row key");
    }

    #[test]
    fn a_quote_that_is_never_closed_does_not_take_the_rest_of_the_file_into_memory() {
        // More than the reader's own buffer.
        let lines = "k,v\n".repeat(10_000);
        let text = format!(",f\n,a\nk,v\nl,\"w\n{lines}");
        let mut reader =
            Reader::open_bounded(text.as_bytes(), &options(None, Timestamps::Now), 20_000).unwrap();
        assert!(matches!(reader.next().unwrap(), Some(Record::Row(_))));
        let error = reader.next().unwrap_err().to_string();
        assert!(error.contains("line 4") && error.contains("quote not closed"), "{error}");
        // As many bytes in shorter records are in order.
        let text = format!(",f\n,a\n{lines}");
        let mut reader =
            Reader::open_bounded(text.as_bytes(), &options(None, Timestamps::Now), 20_000).unwrap();
        assert_eq!(std::iter::from_fn(|| reader.next().unwrap()).count(), 10_000);
    }

    #[test]
    fn a_stray_quote_ends_the_reading_behind_the_records_before_it() {
        for (text, why) in [
            ("k,v\nk1,\"5 inch\nk2,v2\nk3,v3\n", "line 4: a quote that is not closed"),
            ("k,v\nk1,\"5 inch\nk2,\"v2\"\n", "line 4: a field goes on behind its closing quote"),
            ("k,v\nk1,\"abc\"def\n", "line 4: a field goes on behind its closing quote"),
            ("k,v\nk1,5\" pipe\nk2,v\n", "line 4: a quote in a field that does not begin with one"),
        ] {
            let text = format!(",f\n,a\n{text}");
            let mut reader =
                Reader::open(text.as_bytes(), &options(None, Timestamps::Now)).unwrap();
            assert!(matches!(reader.next().unwrap(), Some(Record::Row(_))), "{text}");
            assert_eq!(reader.next().unwrap_err().to_string(), why);
        }
        let opened = Reader::open(&b",f\n,\"a\n"[..], &options(None, Timestamps::Now));
        let error = opened.err().unwrap().to_string();
        assert!(error.contains("qualifiers: line 2: a quote that is not closed"), "{error}");
    }

    #[test]
    fn a_carriage_return_that_ends_no_line_cuts_no_row_short() {
        // One byte a read, too: what is behind the carriage return comes with the next one.
        struct Slow<'a>(&'a [u8]);
        impl Read for Slow<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
                let one = buffer.len().min(1);
                self.0.read(buffer.get_mut(..one).unwrap())
            }
        }
        fn keys_and_end(input: impl Read) -> (Vec<String>, Option<String>) {
            let mut keys = Vec::new();
            let mut reader = match Reader::open(input, &options(None, Timestamps::Now)) {
                Ok(reader) => reader,
                Err(error) => return (keys, Some(error.to_string())),
            };
            loop {
                match reader.next() {
                    Ok(Some(Record::Row(row))) => keys.push(format!("{row:?}")),
                    Ok(Some(other)) => panic!("{other:?}"),
                    Ok(None) => return (keys, None),
                    Err(error) => return (keys, Some(error.to_string())),
                }
            }
        }
        for (text, rows, line) in [
            (",f\n,a\nj,v\nk,abc\rdef\nl,v\n", 1, Some("line 4")),
            (",f\n,a\r\nj,v\r\r\nk,v\r\n", 0, Some("line 3")),
            (",f\n,a\nj,\"v\"\rk,v\n", 0, Some("line 3")),
            (",f\r,a\rk,v\r", 0, Some("row of families: line 1")),
            (",f\r\n,a\r\n\r\nj,\"a\rb\r\n\"\r\nk,v\r", 2, None),
        ] {
            let (keys, end) = keys_and_end(text.as_bytes());
            assert_eq!(keys.len(), rows, "{text:?}: {end:?}");
            assert_eq!(end.is_some(), line.is_some(), "{text:?}: {end:?}");
            if let (Some(end), Some(line)) = (&end, line) {
                assert!(end.contains(line) && end.contains("a carriage return"), "{end}");
            }
            assert_eq!(keys_and_end(Slow(text.as_bytes())), (keys, end), "{text:?}");
        }
        // Where the reader's own buffer ends.
        for before in 8180..8200 {
            let text = format!(",f\n,a\nj,{}\r\nk,v\rw\n", "v".repeat(before));
            let (keys, end) = keys_and_end(text.as_bytes());
            assert!(keys.len() == 1 && end.is_some(), "{before}: {end:?}");
        }
    }

    #[test]
    fn headers_that_cbt_refuses_are_refused() {
        for (text, family, word) in [
            ("", None, "ends before its row of families"),
            (",f\n", None, "ends before its row of column qualifiers"),
            ("x,f\n,a\n", None, "first column"),
            (",f\nkey,a\n", None, "first column"),
            (",,f\n,a,b\n", None, "--column-family"),
            ("\"\"\n,a\n", None, "two columns"),
            (",\n1,\n", Some("f"), "second column"),
        ] {
            let opened = Reader::open(text.as_bytes(), &options(family, Timestamps::Now));
            let error = opened.err().unwrap().to_string();
            assert!(error.contains(word), "{text:?}: {error}");
        }
    }

    fn written(columns: &[Column], rows: &[Row], timestamps: Timestamps) -> Vec<u8> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.csv");
        let (unfinished, file) = crate::files::Unfinished::create(&path).unwrap();
        let mut writer = Box::new(Writer::create(file, columns, timestamps).unwrap());
        for row in rows {
            writer.write(row).unwrap();
        }
        unfinished.finish(&writer.finish().unwrap()).unwrap();
        let mut bytes = Vec::new();
        crate::files::open(&path).unwrap().read_to_end(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_row_that_no_reader_would_take_is_named_and_one_that_is_as_large_as_may_be_is_read() {
        let most = 20_000;
        let columns = [Column { family: "f".to_owned(), qualifier: b"a".to_vec() }];
        let row = |key: &str, quotes: usize, rest: usize| {
            let value = "\"".repeat(quotes) + &"v".repeat(rest);
            let Record::Row(row) = row(key, &[("f", "a", NOW / 1000 * 1000, &value)]) else {
                unreachable!()
            };
            row
        };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.csv");
        let (unfinished, file) = crate::files::Unfinished::create(&path).unwrap();
        let mut writer = Box::new(Writer::create(file, &columns, Timestamps::Now).unwrap());
        writer.record_bytes_max = most - AHEAD_BYTES;
        // A key of one byte, and two commas and pairs of quotes beside the value.
        let room = writer.record_bytes_max - 1 - 2 * 3;
        let mut written = Vec::new();
        for at in 0..200 {
            // They end wherever a buffer does.
            written.extend([
                row("s", 0, 41 * at + 1),
                row("k", room / 2, room % 2),
                row("l", 0, room),
            ]);
        }
        for row in &written {
            writer.write(row).unwrap();
        }
        for (quotes, rest) in [(room / 2, room % 2 + 1), (room / 2 + 1, 0), (0, room + 1)] {
            let error = writer.write(&row("d", quotes, rest)).unwrap_err().to_string();
            assert!(error.contains("row d takes") && error.contains("choose Avro"), "{error}");
        }
        unfinished.finish(&writer.finish().unwrap()).unwrap();
        let file = crate::files::open(&path).unwrap();
        let options = options(None, Timestamps::Now);
        let mut reader = Reader::open_bounded(file, &options, most as u64).unwrap();
        for row in written {
            assert!(reader.next().unwrap() == Some(Record::Row(row)));
        }
        assert!(reader.next().unwrap().is_none());
    }

    #[test]
    fn the_newest_version_of_the_named_columns_is_written() {
        let Record::Row(row) =
            row("k", &[("f", "a", 2000, "new"), ("f", "a", 1000, "old"), ("g", "z", 1000, "-")])
        else {
            unreachable!()
        };
        let column = |family: &str, qualifier: &str| Column {
            family: family.to_owned(),
            qualifier: qualifier.as_bytes().to_vec(),
        };
        let columns = [column("f", "a"), column("f", "b"), column("h", "a")];
        let only_z = Row { key: "z".into(), cells: vec![row.cells[2].clone()] };
        assert_eq!(
            written(&columns, &[row, only_z], Timestamps::ValueEncoded),
            b",f,,h\n,a,b,a\nk,new@2000,,\n"
        );
    }

    proptest! {
        /// Whatever is in keys and values comes back, timestamps included.
        #[test]
        fn what_is_written_is_read(
            rows in proptest::collection::vec(
                (
                    proptest::collection::vec(any::<u8>(), 1..9),
                    proptest::collection::vec(any::<u8>(), 0..9),
                    0i64..2_000_000,
                ),
                1..9,
            ),
        ) {
            let columns = [Column { family: "f".to_owned(), qualifier: b"q,\n\"\xff".to_vec() }];
            let rows: Vec<Row> = rows
                .into_iter()
                .map(|(key, value, millis)| Row {
                    key: key.into(),
                    cells: vec![Cell {
                        family: "f".to_owned(),
                        qualifier: columns[0].qualifier.clone().into(),
                        timestamp_micros: millis * 1000,
                        value: value.into(),
                    }],
                })
                .collect();
            let bytes = written(&columns, &rows, Timestamps::ValueEncoded);
            let records = read(&bytes, &options(None, Timestamps::ValueEncoded));
            prop_assert_eq!(records, rows.into_iter().map(Record::Row).collect::<Vec<_>>());
        }

        /// No bytes make it panic, and each record is numbered the same on every reading.
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            for text in [bytes.clone(), [b",f\n,a\n", &bytes[..]].concat()] {
                let all = || {
                    let options = options(None, Timestamps::ValueEncoded);
                    let mut reader = Reader::open(&text[..], &options).ok()?;
                    let mut records = Vec::new();
                    while let Ok(Some(record)) = reader.next() {
                        records.push(record);
                    }
                    Some(records)
                };
                prop_assert_eq!(all(), all());
            }
        }
    }
}
