//! Writes SequenceFiles in blocks compressed with zlib, as Google's template does.

use std::io::{BufWriter, Write as _};

use prost::{Message as _, length_delimiter_len};

use super::codec::{self, ZLIB_CLASS};
use super::read::RECORD_BYTES_MAX;
use super::{KEY_CLASS, MAGIC, SYNC_BYTES, SYNC_ESCAPE, VALUE_CLASS, VERSION, result, vint};
use crate::error::{Error, Result};
use crate::files::File;
use crate::format::{BUFFER_BYTES, Sink};
use crate::row::Row;

/// Bytes of keys and values after which a block is written: Hadoop's default.
const BLOCK_BYTES: usize = 1_000_000;
/// Bytes of a block's values at most: what is read, less what zlib adds to bytes that it cannot make fewer of (0.03 %).
const VALUES_BYTES_MAX: usize = RECORD_BYTES_MAX - (RECORD_BYTES_MAX >> 8);

/// Writes a file.
pub struct Writer {
    output: BufWriter<File>,
    sync: [u8; SYNC_BYTES],
    records: i64,
    key_lengths: Vec<u8>,
    keys: Vec<u8>,
    value_lengths: Vec<u8>,
    values: Vec<u8>,
    /// [`VALUES_BYTES_MAX`].
    values_bytes_max: usize,
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::failed(format!("SequenceFile: {error}"))
}

fn put_text(output: &mut Vec<u8>, text: &str) {
    vint::put(output, text.len() as i64);
    output.extend_from_slice(text.as_bytes());
}

impl Writer {
    /// Begins a file. The sync mark is to be random: readers that start within a file look for it.
    pub fn create(file: File, sync: [u8; SYNC_BYTES]) -> Result<Self> {
        let mut header = MAGIC.to_vec();
        header.push(VERSION);
        put_text(&mut header, KEY_CLASS);
        put_text(&mut header, VALUE_CLASS);
        // Compressed, in blocks.
        header.extend([1, 1]);
        put_text(&mut header, ZLIB_CLASS);
        // No metadata.
        header.extend(0u32.to_be_bytes());
        header.extend(sync);
        let mut output = BufWriter::with_capacity(BUFFER_BYTES, file);
        output.write_all(&header).map_err(failed)?;
        Ok(Self {
            output,
            sync,
            records: 0,
            key_lengths: Vec::new(),
            keys: Vec::new(),
            value_lengths: Vec::new(),
            values: Vec::new(),
            values_bytes_max: VALUES_BYTES_MAX,
        })
    }

    fn flush(&mut self) -> Result<()> {
        if self.records == 0 {
            return Ok(());
        }
        let mut head = SYNC_ESCAPE.to_be_bytes().to_vec();
        head.extend(self.sync);
        vint::put(&mut head, self.records);
        self.output.write_all(&head).map_err(failed)?;
        self.records = 0;
        for buffer in
            [&mut self.key_lengths, &mut self.keys, &mut self.value_lengths, &mut self.values]
        {
            let compressed = codec::zlib(buffer).map_err(failed)?;
            let mut length = Vec::new();
            vint::put(&mut length, compressed.len() as i64);
            self.output.write_all(&length).map_err(failed)?;
            self.output.write_all(&compressed).map_err(failed)?;
            buffer.clear();
        }
        Ok(())
    }
}

impl Sink for Writer {
    fn write(&mut self, row: &Row) -> Result<usize> {
        let result = result::of_row(row);
        let length = result.encoded_len();
        let length = length_delimiter_len(length) + length;
        let most = self.values_bytes_max;
        if length > most {
            // Each cell has the row's key: it may be many times what the table has.
            return Err(failed(format!(
                "row {} takes {length} bytes, and no reader takes more than {most}: choose Avro or Parquet",
                row.key.escape_ascii()
            )));
        }
        if self.values.len() + length > most {
            self.flush()?;
        }
        let keys = self.keys.len();
        self.keys.extend((row.key.len() as u32).to_be_bytes());
        self.keys.extend_from_slice(&row.key);
        vint::put(&mut self.key_lengths, (self.keys.len() - keys) as i64);
        result.encode_length_delimited(&mut self.values).map_err(failed)?;
        vint::put(&mut self.value_lengths, length as i64);
        self.records += 1;
        if self.keys.len() + self.values.len() >= BLOCK_BYTES {
            self.flush()?;
        }
        Ok(row.cells.len())
    }

    fn finish(mut self: Box<Self>) -> Result<File> {
        self.flush()?;
        self.output.into_inner().map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Results;
    use super::*;
    use crate::format::golden::rows_of;
    use crate::row::Cell;

    #[test]
    fn a_row_that_no_reader_would_take_is_named_and_a_block_of_several_is_not_too_large() {
        // A short row of many bytes here, since the key stands in each of its cells.
        let row = |key: &[u8], cells: usize| Row {
            key: key.repeat(100).into(),
            cells: (0..cells as i64)
                .map(|cell| Cell {
                    family: "f".to_owned(),
                    qualifier: "q".into(),
                    timestamp_micros: cell * 1000,
                    value: "v".into(),
                })
                .collect(),
        };
        let rows = [row(b"a", 50), row(b"b", 50), row(b"c", 1)];
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let (unfinished, file) = crate::files::Unfinished::create(&path).unwrap();
        let mut writer = Box::new(Writer::create(file, [7; SYNC_BYTES]).unwrap());
        writer.values_bytes_max = 10_000;
        for row in &rows {
            writer.write(row).unwrap();
            assert!(writer.values.len() <= 10_000);
        }
        assert_eq!(writer.records, 2, "the first row is in a block of its own");
        let error = writer.write(&row(b"d", 100)).unwrap_err().to_string();
        assert!(error.contains("row dddd") && error.contains("choose Avro"), "{error}");
        unfinished.finish(&writer.finish().unwrap()).unwrap();
        let mut reader = Results::open(crate::files::open(&path).unwrap()).unwrap();
        assert_eq!(rows_of(&mut reader), rows);
    }
}
