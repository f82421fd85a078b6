//! Reads the records of a SequenceFile.

use std::io::{Cursor, Read};

use bytes::Bytes;

use super::codec::Codec;
use super::{MAGIC, SYNC_BYTES, SYNC_ESCAPE, VERSION, vint};
use crate::error::{Error, Result};

/// Longest key or value, and most bytes of a block's buffer, decompressed: some times the largest row that a
/// request of Bigtable takes. A file that claims more is damaged.
pub const RECORD_BYTES_MAX: usize = 1 << 30;
/// Longest name of a class, and longest text of the metadata.
const TEXT_BYTES_MAX: i64 = 1 << 20;
/// Most pairs of metadata.
const PAIRS_MAX: u32 = 1 << 16;

#[derive(Debug, Clone, Copy)]
enum Form {
    Plain,
    Records(Codec),
    Blocks(Codec),
}

/// A block, decompressed, and what of it was handed out.
#[derive(Debug, Default)]
struct Block {
    records: u64,
    key_lengths: Cursor<Vec<u8>>,
    value_lengths: Cursor<Vec<u8>>,
    keys: Bytes,
    values: Bytes,
}

/// Reads a file of any key and value class.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    key_class: String,
    value_class: String,
    form: Form,
    sync: [u8; SYNC_BYTES],
    block: Block,
}

fn damaged(why: impl std::fmt::Display) -> Error {
    Error::failed(format!("SequenceFile: {why}"))
}

impl<R: Read> Reader<R> {
    /// Reads the header.
    pub fn open(mut input: R) -> Result<Self> {
        let mut magic = [0; 4];
        input.read_exact(&mut magic).map_err(damaged)?;
        let [name @ .., version] = magic;
        if &name != MAGIC {
            return Err(damaged("the file is none"));
        }
        if version != VERSION {
            return Err(damaged(format!("version {version}; only {VERSION} is read")));
        }
        let key_class = text(&mut input)?;
        let value_class = text(&mut input)?;
        let [compressed, blocks] = array(&mut input)?;
        let form = match (compressed, blocks) {
            (0, 0) => Form::Plain,
            (1, 0) => Form::Records(Codec::of_class(&text(&mut input)?)?),
            (1, 1) => Form::Blocks(Codec::of_class(&text(&mut input)?)?),
            _ => return Err(damaged("its header contradicts itself")),
        };
        let pairs = u32::from_be_bytes(array(&mut input)?);
        if pairs > PAIRS_MAX {
            return Err(damaged(format!("{pairs} pairs of metadata")));
        }
        for _ in 0..pairs * 2 {
            text(&mut input)?;
        }
        let sync = array(&mut input)?;
        Ok(Self { input, key_class, value_class, form, sync, block: Block::default() })
    }

    /// The keys' class.
    pub fn key_class(&self) -> &str {
        &self.key_class
    }

    /// The values' class.
    pub fn value_class(&self) -> &str {
        &self.value_class
    }

    /// The next record's key and value; none at the end.
    pub fn read_record(&mut self) -> Result<Option<(Bytes, Bytes)>> {
        match self.form {
            Form::Plain => self.record(None),
            Form::Records(codec) => self.record(Some(codec)),
            Form::Blocks(codec) => self.of_block(codec),
        }
    }

    fn record(&mut self, codec: Option<Codec>) -> Result<Option<(Bytes, Bytes)>> {
        let length = loop {
            let Some(number) = number_or_end(&mut self.input)? else { return Ok(None) };
            if number != SYNC_ESCAPE {
                break number as usize;
            }
            self.sync_mark()?;
        };
        let key_length = u32::from_be_bytes(array(&mut self.input)?) as usize;
        let value_length = length.checked_sub(key_length);
        let value_length = value_length.ok_or_else(|| damaged("a key longer than its record"))?;
        let key = bytes(&mut self.input, key_length)?;
        let value = bytes(&mut self.input, value_length)?;
        let value = match codec {
            Some(codec) => codec.decompress(&value, RECORD_BYTES_MAX)?,
            None => value,
        };
        Ok(Some((key.into(), value.into())))
    }

    fn of_block(&mut self, codec: Codec) -> Result<Option<(Bytes, Bytes)>> {
        while self.block.records == 0 {
            self.block.check_used_up()?;
            match number_or_end(&mut self.input)? {
                None => return Ok(None),
                Some(SYNC_ESCAPE) => self.sync_mark()?,
                Some(_) => return Err(damaged("no sync mark where a block begins")),
            }
            let records = vint::read(&mut self.input).map_err(damaged)?;
            // A mark may stand at the end.
            let Some(records) = records else { return Ok(None) };
            let records = u64::try_from(records).map_err(|_| damaged("a negative count"))?;
            let mut buffer = || -> Result<Vec<u8>> {
                let length = vint::expect(&mut self.input).map_err(damaged)?;
                let length = usize::try_from(length).map_err(|_| damaged("a negative length"))?;
                let compressed = bytes(&mut self.input, length)?;
                codec.decompress(&compressed, RECORD_BYTES_MAX)
            };
            let key_lengths = Cursor::new(buffer()?);
            let keys = buffer()?.into();
            let value_lengths = Cursor::new(buffer()?);
            let values = buffer()?.into();
            self.block = Block { records, key_lengths, value_lengths, keys, values };
        }
        let block = &mut self.block;
        block.records -= 1;
        let key = piece(&mut block.key_lengths, &mut block.keys)?;
        let value = piece(&mut block.value_lengths, &mut block.values)?;
        Ok(Some((key, value)))
    }

    fn sync_mark(&mut self) -> Result<()> {
        let found: [u8; SYNC_BYTES] = array(&mut self.input)?;
        if found != self.sync {
            return Err(damaged("a sync mark is not the file's"));
        }
        Ok(())
    }
}

impl Block {
    /// An error where there is more in it than as many records as it says: the count is under no checksum.
    fn check_used_up(&self) -> Result<()> {
        let lengths_left = [&self.key_lengths, &self.value_lengths]
            .iter()
            .any(|lengths| lengths.position() < lengths.get_ref().len() as u64);
        if lengths_left || !self.keys.is_empty() || !self.values.is_empty() {
            return Err(damaged("a block has more records than it says"));
        }
        Ok(())
    }
}

/// The next of a block's keys or values.
fn piece(lengths: &mut Cursor<Vec<u8>>, bytes: &mut Bytes) -> Result<Bytes> {
    let length = vint::expect(lengths).map_err(|_| damaged("a block has too few lengths"))?;
    match usize::try_from(length) {
        Ok(length) if length <= bytes.len() => Ok(bytes.split_to(length)),
        _ => Err(damaged("a block is shorter than its records")),
    }
}

fn array<const N: usize>(input: &mut impl Read) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    input.read_exact(&mut bytes).map_err(damaged)?;
    Ok(bytes)
}

/// A number, or none where the file ends before it.
fn number_or_end(input: &mut impl Read) -> Result<Option<u32>> {
    let mut bytes = Vec::with_capacity(4);
    input.take(4).read_to_end(&mut bytes).map_err(damaged)?;
    match <[u8; 4]>::try_from(bytes.as_slice()) {
        Ok(bytes) => Ok(Some(u32::from_be_bytes(bytes))),
        Err(_) if bytes.is_empty() => Ok(None),
        Err(_) => Err(damaged("it is cut off")),
    }
}

/// So many bytes. What is allocated grows with what is read, not with what a damaged length claims.
fn bytes(input: &mut impl Read, length: usize) -> Result<Vec<u8>> {
    if length > RECORD_BYTES_MAX {
        return Err(damaged(format!("a record of {length} bytes")));
    }
    let mut bytes = Vec::new();
    let read = input.take(length as u64).read_to_end(&mut bytes).map_err(damaged)?;
    if read < length { Err(damaged("it is cut off")) } else { Ok(bytes) }
}

fn text(input: &mut impl Read) -> Result<String> {
    let length = vint::expect(input).map_err(damaged)?;
    if !(0..=TEXT_BYTES_MAX).contains(&length) {
        return Err(damaged(format!("a text of {length} bytes")));
    }
    let text = bytes(input, length as usize)?;
    String::from_utf8(text).map_err(|_| damaged("a text is not UTF-8"))
}
