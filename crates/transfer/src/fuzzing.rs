//! Entry points for fuzz targets; not a stable API. Each reads any bytes, as a file of a format, to its end or to its first
//! error, as what a server answers, or as what an interrupted transfer left; it must return.

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

/// What ReadRows answers: chunks of rows; and the status of a call that is to be made again.
pub fn read_chunks(data: &[u8]) {
    crate::scan::fuzz(data);
    crate::client::fuzz(data);
}

/// The state of an import or of an export.
pub fn transfer_state(data: &[u8]) {
    crate::journal::fuzz(data);
    if let Ok(text) = std::str::from_utf8(data) {
        crate::export_state::fuzz(text);
    }
}

fn read(opened: Result<impl Source>) {
    let Ok(mut source) = opened else { return };
    while let Ok(Some(_)) = source.next() {}
}

#[cfg(test)]
mod tests {
    use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
    use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::read_rows_response::CellChunk;
    use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::read_rows_response::cell_chunk::RowStatus;
    use proptest::prelude::*;
    use prost::Message as _;

    /// With which `fuzz.sh` begins, too.
    const STATES: [&[u8]; 2] = [
        include_bytes!("../testdata/state/import.json"),
        include_bytes!("../testdata/state/export.json"),
    ];

    /// A row of a value in two pieces.
    fn answer() -> Vec<u8> {
        let first = CellChunk {
            row_key: "row".into(),
            family_name: Some("f".to_owned()),
            qualifier: Some(b"q".to_vec()),
            timestamp_micros: 1_000,
            value: "val".into(),
            value_size: 5,
            ..CellChunk::default()
        };
        let row_status = Some(RowStatus::CommitRow(true));
        let last = CellChunk { value: "ue".into(), row_status, ..CellChunk::default() };
        v2::ReadRowsResponse { chunks: vec![first, last], ..Default::default() }.encode_to_vec()
    }

    #[test]
    fn the_states_that_are_changed_are_good_before() {
        let [import, export] = STATES;
        assert!(crate::journal::is_good(import));
        assert!(crate::export_state::is_good(std::str::from_utf8(export).unwrap()));
    }

    #[test]
    fn a_state_whose_numbers_could_overflow_is_refused() {
        let changed = |state: &[u8], what: &str, to: &str| {
            let state = std::str::from_utf8(state).unwrap();
            assert!(state.contains(what), "{what}");
            state.replacen(what, to, 1)
        };
        let most = u64::MAX.to_string();
        let [import, export] = STATES;
        for count in ["9", "6", "1", "2", "12", "200"] {
            let (what, to) = (format!(": {count}, "), format!(": {most}, "));
            let state = changed(import, &what, &to);
            assert!(!crate::journal::is_good(state.as_bytes()), "{state}");
        }
        let state = changed(import, "1700000000000000 }", &format!("{} }}", i64::MIN));
        assert!(!crate::journal::is_good(state.as_bytes()));
        for count in ["9,", "12,", "300]"] {
            let (_, end) = count.split_at(count.len() - 1);
            let state = changed(export, count, &format!("{most}{end}"));
            assert!(!crate::export_state::is_good(&state), "{state}");
        }
        let state = changed(export, "\"left_out\": 1", &format!("\"left_out\": {most}"));
        assert!(!crate::export_state::is_good(&state));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn any_bytes_are_read_or_refused(data in prop::collection::vec(any::<u8>(), 0..200)) {
            super::avro(&data);
            super::parquet(&data);
            super::sequence_file(&data);
            super::csv(&data);
            super::rejected(&data);
            super::read_chunks(&data);
            super::transfer_state(&data);
        }

        #[test]
        fn a_damaged_answer_is_taken_or_refused(at: prop::sample::Index, byte: u8) {
            let mut answer = answer();
            let at = at.index(answer.len());
            answer[at] = byte;
            super::read_chunks(&answer);
        }

        #[test]
        fn a_damaged_state_is_taken_or_refused(
            which: prop::sample::Index,
            at: prop::sample::Index,
            text in "[0-9]{1,20}|[-,\"{}e.]",
        ) {
            let mut state = STATES[which.index(STATES.len())].to_vec();
            let at = at.index(state.len());
            drop(state.splice(at..=at, text.bytes()));
            super::transfer_state(&state);
        }
    }
}
