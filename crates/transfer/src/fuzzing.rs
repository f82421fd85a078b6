//! Entry points for fuzz targets; not a stable API. Each reads any bytes as a file of a format, to its end or to its first
//! error; it must return.

use bytes::Bytes;

use crate::error::Result;
use crate::files::Position;
use crate::format::csv::{Options, Timestamps};
use crate::format::{Source, avro as avro_file, csv as csv_file, parquet as parquet_file};
use crate::format::{rejected as rejected_file, sequence};

/// A file of Avro; and the bytes as a block without a checksum, which a change does not break.
pub fn avro(data: &[u8]) {
    read(avro_file::Reader::open(data));
    read(avro_file::Reader::open(&avro_file::uncompressed(data)[..]));
}

/// A file of Parquet.
pub fn parquet(data: &[u8]) {
    read(parquet_file::Reader::open(Bytes::copy_from_slice(data), Position::default()));
}

/// A SequenceFile.
pub fn sequence_file(data: &[u8]) {
    read(sequence::Results::open(data));
}

/// A file of CSV, with a row of families and without.
pub fn csv(data: &[u8]) {
    for family in [None, Some("f".to_owned())] {
        let options = Options { family, timestamps: Timestamps::ValueEncoded, now_micros: 0 };
        read(csv_file::Reader::open(data, &options));
    }
}

/// What an import set aside.
pub fn rejected(data: &[u8]) {
    read(Ok(rejected_file::Reader::new(data)));
}

fn read(opened: Result<impl Source>) {
    let Ok(mut source) = opened else { return };
    while let Ok(Some(_)) = source.next() {}
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn any_bytes_are_read_or_refused(data in prop::collection::vec(any::<u8>(), 0..200)) {
            super::avro(&data);
            super::parquet(&data);
            super::sequence_file(&data);
            super::csv(&data);
            super::rejected(&data);
        }
    }
}
