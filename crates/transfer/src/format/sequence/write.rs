//! Writes SequenceFiles in blocks compressed with zlib, as Google's template does.

use std::io::{BufWriter, Write as _};

use prost::encoding::encode_varint;

use super::codec::{self, ZLIB_CLASS};
use super::{KEY_CLASS, MAGIC, SYNC_BYTES, SYNC_ESCAPE, VALUE_CLASS, VERSION, result, vint};
use crate::error::{Error, Result};
use crate::files::File;
use crate::format::{BUFFER_BYTES, Sink};
use crate::row::Row;

/// Bytes of keys and values after which a block is written: Hadoop's default.
const BLOCK_BYTES: usize = 1_000_000;

/// Writes a file.
pub struct Writer {
    output: BufWriter<File>,
    sync: [u8; SYNC_BYTES],
    records: i64,
    key_lengths: Vec<u8>,
    keys: Vec<u8>,
    value_lengths: Vec<u8>,
    values: Vec<u8>,
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
    fn write(&mut self, row: &Row) -> Result<()> {
        let keys = self.keys.len();
        self.keys.extend((row.key.len() as u32).to_be_bytes());
        self.keys.extend_from_slice(&row.key);
        vint::put(&mut self.key_lengths, (self.keys.len() - keys) as i64);
        let values = self.values.len();
        let result = result::encode(row);
        encode_varint(result.len() as u64, &mut self.values);
        self.values.extend_from_slice(&result);
        vint::put(&mut self.value_lengths, (self.values.len() - values) as i64);
        self.records += 1;
        if self.keys.len() + self.values.len() >= BLOCK_BYTES { self.flush() } else { Ok(()) }
    }

    fn finish(mut self: Box<Self>) -> Result<File> {
        self.flush()?;
        self.output.into_inner().map_err(failed)
    }
}
