//! Hadoop SequenceFiles of (`ImmutableBytesWritable`, `Result`): what HBase's export and Google's template
//! "Bigtable to Cloud Storage SequenceFile" write.
//!
//! ```text
//! file    = "SEQ" 6, text key-class, text value-class, compressed?, in-blocks?, [text codec],
//!           u32 pairs, (text, text)*, sync[16], body
//! body    = plain:    ( u32 -1, sync | u32 record-length, u32 key-length, key, value )*
//!           records:  the same, each value compressed
//!           blocks:   ( u32 -1, sync, vint records, buffer key-lengths, buffer keys,
//!                       buffer value-lengths, buffer values )*
//! buffer  = vint length, compressed bytes;     text = vint length, UTF-8
//! ```
//!
//! Integers are big endian; a vint is Hadoop's ([`vint`]). The lengths in a block are vints. A key is `u32 length, row
//! key`; a value is HBase's protobuf `Result`, after its length as a protobuf varint ([`result`]).

mod codec;
mod read;
mod result;
mod vint;
mod write;

use std::io::Read;

pub use read::Reader;
pub use write::Writer;

use self::result::Decoder;
use super::{Bad, Record, Source};
use crate::error::{Error, Result};

const MAGIC: &[u8; 3] = b"SEQ";
/// The version since Hadoop 0.20; older files are of before HBase's protobufs.
const VERSION: u8 = 6;
const SYNC_BYTES: usize = 16;
/// Stands where a record's length would, before a sync mark.
const SYNC_ESCAPE: u32 = u32::MAX;
const KEY_CLASS: &str = "org.apache.hadoop.hbase.io.ImmutableBytesWritable";
const VALUE_CLASS: &str = "org.apache.hadoop.hbase.client.Result";

/// Reads the rows of a file.
pub struct Results<R> {
    reader: Reader<R>,
    decoder: Decoder,
}

impl<R: Read> Results<R> {
    /// Reads the header; a file of other classes is refused.
    pub fn open(input: R) -> Result<Self> {
        let reader = Reader::open(input)?;
        if (reader.key_class(), reader.value_class()) != (KEY_CLASS, VALUE_CLASS) {
            return Err(Error::failed(format!(
                "a SequenceFile of ({}, {}); an export of HBase has ({KEY_CLASS}, {VALUE_CLASS})",
                reader.key_class(),
                reader.value_class()
            )));
        }
        Ok(Self { reader, decoder: Decoder::new() })
    }
}

impl<R: Read> Source for Results<R> {
    fn next(&mut self) -> Result<Option<Record>> {
        let Some((key, value)) = self.reader.read_record()? else { return Ok(None) };
        Ok(Some(match self.decoder.decode(&key, value) {
            Ok(row) if row.cells.is_empty() => Record::Empty,
            Ok(row) => Record::Row(row),
            Err(reason) => Record::Bad(Bad::of_row(&key, reason)),
        }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::golden::{golden_file, golden_rows, rows_of};
    use super::*;
    use crate::format::Sink as _;
    use crate::row::{Cell, Row};

    fn written(rows: &[Row]) -> Vec<u8> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let (unfinished, file) = crate::files::Unfinished::create(&path).unwrap();
        let mut writer = Box::new(Writer::create(file, [7; SYNC_BYTES]).unwrap());
        for row in rows {
            writer.write(row).unwrap();
        }
        unfinished.finish(&writer.finish().unwrap()).unwrap();
        file_bytes(&path)
    }

    fn file_bytes(path: &std::path::Path) -> Vec<u8> {
        let mut bytes = Vec::new();
        crate::files::open(path).unwrap().read_to_end(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_count_that_is_less_than_a_block_has_is_damage() {
        let cell = Cell {
            family: "f".to_owned(),
            qualifier: "q".into(),
            timestamp_micros: 1000,
            value: "v".into(),
        };
        let row = |key: u8| Row { key: vec![key].into(), cells: vec![cell.clone()] };
        let whole = written(&[b'a', b'b', b'c'].map(row));
        assert_eq!(records(&whole).len(), 3);
        let block = [&[0xFF; 4][..], &[7; SYNC_BYTES]].concat();
        let count =
            whole.windows(block.len()).position(|found| found == block).unwrap() + block.len();
        assert_eq!(whole[count], 3);
        for fewer in 0..3 {
            let mut bytes = whole.clone();
            bytes[count] = fewer;
            let mut reader = Reader::open(bytes.as_slice()).unwrap();
            let ended =
                std::iter::from_fn(|| reader.read_record().transpose()).find_map(Result::err);
            assert!(ended.unwrap().to_string().contains("more records than it says"), "{fewer}");
        }
    }

    /// The records of a file, raw.
    fn records(bytes: &[u8]) -> Vec<(bytes::Bytes, bytes::Bytes)> {
        let mut reader = Reader::open(bytes).unwrap();
        std::iter::from_fn(|| reader.read_record().unwrap()).collect()
    }

    #[test]
    fn records_are_byte_for_byte_what_hbase_writes() {
        let rows = golden_rows();
        for name in ["plain.seq", "block.seq"] {
            assert_eq!(
                records(&written(&rows)),
                records(&file_bytes(&golden_file(name))),
                "{name}"
            );
        }
    }

    #[test]
    fn the_header_is_byte_for_byte_what_hadoop_writes() {
        let ours = written(&golden_rows());
        let theirs = file_bytes(&golden_file("block.seq"));
        // Up to the sync mark, which is random: "SEQ", version, three texts, two flags, no metadata.
        let header = 4 + 1 + 49 + 1 + 37 + 2 + 1 + 42 + 4;
        assert_eq!(ours.get(..header), theirs.get(..header));
    }

    #[test]
    fn damage_and_tears_are_errors_or_other_rows_but_never_panics() {
        for name in ["plain.seq", "record.seq", "block.seq", "snappy.seq", "lz4.seq", "bzip2.seq"] {
            let whole = file_bytes(&golden_file(name));
            for at in (0..whole.len()).step_by(3) {
                let mut damaged = whole.clone();
                *damaged.get_mut(at).unwrap() ^= 0x41;
                for bytes in [&damaged[..], whole.get(..at).unwrap()] {
                    let Ok(mut reader) = Results::open(bytes) else { continue };
                    while let Ok(Some(_)) = reader.next() {}
                }
            }
            let torn = whole.get(..whole.len() - 1).unwrap();
            let mut reader = Results::open(torn).unwrap();
            let ended =
                std::iter::repeat_with(|| reader.next()).find(|r| !matches!(r, Ok(Some(_))));
            assert!(ended.unwrap().is_err(), "{name}: a torn file does not just end");
        }
    }

    #[test]
    fn lengths_that_are_lies_take_no_memory() {
        let mut bytes = file_bytes(&golden_file("plain.seq"));
        bytes.truncate(4 + 1 + 49 + 1 + 37 + 2 + 4 + SYNC_BYTES);
        for lie in [0x7fff_ffff_u32, 0x1fff_ffff] {
            let mut file = bytes.clone();
            file.extend(lie.to_be_bytes());
            file.extend(9u32.to_be_bytes());
            file.extend([0; 9]);
            assert!(Results::open(&file[..]).unwrap().next().is_err());
        }
    }

    #[test]
    fn files_of_other_classes_are_refused() {
        let mut bytes = file_bytes(&golden_file("plain.seq"));
        *bytes.get_mut(60).unwrap() = b'X';
        let error = Results::open(&bytes[..]).err().unwrap().to_string();
        assert!(error.contains("an export of HBase has"), "{error}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn what_is_written_is_read(
            rows in proptest::collection::vec(
                (proptest::collection::vec(any::<u8>(), 1..40), 1..60usize, 0..40_000usize),
                0..40,
            ),
        ) {
            let rows: Vec<Row> = rows
                .into_iter()
                .map(|(key, cells, bytes)| Row {
                    key: key.into(),
                    cells: (0..cells)
                        .map(|i| Cell {
                            family: format!("f{}", i % 3),
                            qualifier: vec![b'q'; i].into(),
                            timestamp_micros: i as i64 * 1000,
                            value: vec![i as u8; if i == 0 { bytes } else { i }].into(),
                        })
                        .collect(),
                })
                .collect();
            let bytes = written(&rows);
            prop_assert_eq!(rows_of(&mut Results::open(&bytes[..]).unwrap()), rows);
        }

        /// Whatever stands behind a sound header.
        #[test]
        fn any_bytes_are_read_or_refused(
            name in prop_oneof![Just("plain.seq"), Just("record.seq"), Just("block.seq")],
            tail in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let mut bytes = file_bytes(&golden_file(name));
            let header = 4 + 1 + 49 + 1 + 37 + 2 + if name == "plain.seq" { 0 } else { 43 } + 4 + 16;
            bytes.truncate(header);
            bytes.extend(tail);
            let mut reader = Results::open(&bytes[..]).unwrap();
            while let Ok(Some(_)) = reader.next() {}
        }
    }
}
