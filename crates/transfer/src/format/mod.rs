//! The file formats: what a file of rows is, whoever wrote it, and how each is read and written.
//!
//! | format       | as written by                                       | keeps                                   |
//! | ------------ | --------------------------------------------------- | --------------------------------------- |
//! | CSV          | people, and read by `cbt import`                    | one version of each of a set of columns |
//! | Avro         | Google's template "Bigtable to Cloud Storage Avro"  | everything                              |
//! | Parquet      | Google's template "... Parquet"                     | everything                              |
//! | SequenceFile | Google's template "... SequenceFile", HBase's export | everything, timestamps in milliseconds |
//! | rejected     | an import, of the rows that it set aside            | everything, and why                     |
//!
//! A [`Source`] yields *records*, numbered from 0 in the order of the file, so that "the first n records" means the
//! same thing on every reading: that is how an interrupted import finds its place. No source panics on
//! damaged bytes nor, but for [`parquet`], allocates by a length that it only read.

pub mod avro;
pub mod csv;
mod csv_quotes;
#[cfg(test)]
pub mod golden;
pub mod parquet;
mod parquet_footer;
pub mod rejected;
pub mod sequence;
mod unit;

use std::cell::Cell;
use std::fmt;
use std::io::{BufReader, Read as _};
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::path::Path;
use std::sync::Once;

use crate::error::{Error, Result};
use crate::files::{self, Counting, Position};
use crate::row::Row;

/// What is buffered of a file that is read or written.
const BUFFER_BYTES: usize = 256 << 10;

/// Cells of a record at most. A count of more is no row that was written, but damage, which must not take the memory.
const CELLS_MAX: usize = 1 << 24;

/// A file format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Comma-separated values under one or two header rows.
    Csv,
    /// Avro object container files of `BigtableRow`.
    Avro,
    /// Parquet files of `BigtableRow`.
    Parquet,
    /// Hadoop SequenceFiles of HBase's `Result`.
    SequenceFile,
    /// Lines of JSON that an import wrote.
    Rejected,
}

/// One record of a file.
#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    /// A row to write.
    Row(Row),
    /// Nothing to write: a row without cells.
    Empty,
    /// Not a row, and the records behind it can still be read.
    Bad(Bad),
}

/// A record that is no row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bad {
    /// Why not.
    pub reason: String,
    /// What is there, as text, as far as it is of use.
    pub raw: String,
}

impl Bad {
    /// One of which the row's key is known.
    fn of_row(key: &[u8], reason: String) -> Self {
        Self { reason, raw: format!("key {}", key.escape_ascii()) }
    }
}

/// Reads the records of one file.
pub trait Source {
    /// The next record; none at the end. An error means that the rest of the file cannot be read.
    fn next(&mut self) -> Result<Option<Record>>;
}

/// Writes the rows of one file.
pub trait Sink {
    /// Adds a row; how many of its cells the format has a place for. A row without any is left out.
    fn write(&mut self, row: &Row) -> Result<usize>;

    /// Writes what is buffered and ends the file.
    fn finish(self: Box<Self>) -> Result<files::File>;
}

/// How the files of an import are read.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ReadOptions {
    /// The format of all files; none to tell each by its first bytes and its name.
    pub format: Option<Format>,
    /// What CSV leaves open.
    pub csv: csv::Options,
}

impl ReadOptions {
    /// The time of a file's cells that have none of their own, where there are such.
    pub fn given_micros(&self, path: &Path) -> Result<Option<i64>> {
        Ok((self.format_of(path)? == Format::Csv).then(|| self.csv.given_micros()))
    }

    fn format_of(&self, path: &Path) -> Result<Format> {
        match self.format {
            Some(format) => Ok(format),
            None => Format::of(path),
        }
    }
}

impl Format {
    /// Those that an export writes.
    pub const EXPORTED: [Self; 4] = [Self::Csv, Self::Avro, Self::Parquet, Self::SequenceFile];

    /// What follows a file's number: as Google's templates name their files, which leave SequenceFiles without.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Csv => ".csv",
            Self::Avro => ".avro",
            Self::Parquet => ".parquet",
            Self::SequenceFile => "",
            Self::Rejected => ".jsonl",
        }
    }

    /// Tells a file's format by its first bytes, and where these say nothing, by its name.
    pub fn of(path: &Path) -> Result<Self> {
        let mut start = Vec::new();
        let read = files::open(path)?.take(4).read_to_end(&mut start);
        read.map_err(|e| Error::failed(format!("cannot read {}: {e}", path.display())))?;
        if start == b"Obj\x01" {
            return Ok(Self::Avro);
        } else if start == b"PAR1" {
            return Ok(Self::Parquet);
        } else if start.starts_with(b"SEQ") {
            return Ok(Self::SequenceFile);
        }
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("csv") => Ok(Self::Csv),
            Some("jsonl") => Ok(Self::Rejected),
            _ => Err(Error::failed(format!(
                "{}: neither its first bytes nor its name tell the format: give --format",
                path.display()
            ))),
        }
    }
}

/// Looks at a file before anything is read of it: that its format is known, and takes what was asked for.
pub fn check(path: &Path, options: &ReadOptions) -> Result<()> {
    let format = options.format_of(path)?;
    let asked = options.csv.family.is_some() || options.csv.timestamps != csv::Timestamps::Now;
    if asked && format != Format::Csv {
        return Err(Error::failed(format!(
            "{}: a family for all columns and the form of timestamps are chosen for CSV only",
            path.display()
        )));
    }
    Ok(())
}

/// Opens a file to read its records. `position` follows, in bytes of the file.
pub fn open(path: &Path, options: &ReadOptions, position: &Position) -> Result<Box<dyn Source>> {
    let format = options.format_of(path)?;
    let file = files::open(path)?;
    let counted = |file: files::File| {
        Counting::new(BufReader::with_capacity(BUFFER_BYTES, file), position.clone())
    };
    match format {
        Format::Csv => csv::Reader::open(counted(file), &options.csv).map(boxed),
        Format::Avro => avro::Reader::open(counted(file)).map(boxed),
        Format::Parquet => parquet::Reader::open(file, position.clone()).map(boxed),
        Format::SequenceFile => sequence::Results::open(counted(file)).map(boxed),
        Format::Rejected => Ok(boxed(rejected::Reader::new(counted(file)))),
    }
}

thread_local! {
    /// Whether this thread is in a reader whose panics are errors of its file.
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Calls a reader of others, which asserts what a damaged file can break: that is an error of the file, and is told as one
/// only, not as a panic as well.
fn guarded<T, E: fmt::Display>(
    format: &str,
    read: impl FnOnce() -> std::result::Result<T, E>,
) -> Result<T> {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let of_others = take_hook();
        set_hook(Box::new(move |panic| {
            if !GUARDED.try_with(Cell::get).unwrap_or(false) {
                of_others(panic);
            }
        }));
    });
    GUARDED.set(true);
    let read = catch_unwind(AssertUnwindSafe(read));
    GUARDED.set(false);
    match read {
        Ok(result) => result.map_err(|error| Error::failed(format!("{format}: {error}"))),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            let why = text.unwrap_or("its reader gave up");
            Err(Error::failed(format!("{format}: the file is damaged: {why}")))
        }
    }
}

fn boxed(source: impl Source + 'static) -> Box<dyn Source> {
    Box::new(source)
}
