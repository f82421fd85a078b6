//! The rows of the files in `testdata/golden`, which Java's own libraries wrote (`testdata/java/Golden.java`), and
//! that each is read as them.

use std::path::PathBuf;

use bytes::Bytes;

use super::{ReadOptions, Record, Source, csv};
use crate::files::Position;
use crate::row::{Cell, Row};

fn cell(family: &str, qualifier: &[u8], timestamp_micros: i64, value: &[u8]) -> Cell {
    Cell {
        family: family.to_owned(),
        qualifier: Bytes::copy_from_slice(qualifier),
        timestamp_micros,
        value: Bytes::copy_from_slice(value),
    }
}

/// What `Golden.java` calls `rows`.
pub fn golden_rows() -> Vec<Row> {
    let every: Vec<u8> = (0..=255).collect();
    let many = |i: u64| {
        let value = format!("value {}", i * i);
        cell("wide", format!("q{i:04}").as_bytes(), 5000, value.as_bytes())
    };
    vec![
        Row {
            key: Bytes::from_static(b"alpha"),
            cells: vec![
                cell("cf", b"q", 2_000_000, b"newer"),
                cell("cf", b"q", 1_000_000, b"older"),
                cell("cf", b"r", 0, b""),
            ],
        },
        Row {
            key: Bytes::from_static(b"\x00\xff\x7f"),
            cells: vec![
                cell("cf", b"", 1_577_862_000_123_000, &every),
                cell("other-family", "s\u{e9}jour".as_bytes(), 1000, "\u{6c34}".as_bytes()),
            ],
        },
        Row { key: Bytes::from_static(b"zeta"), cells: (0..200).map(many).collect() },
    ]
}

/// A file that Java wrote.
pub fn golden_file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata/golden").join(name)
}

/// All rows of a source.
pub fn rows_of(source: &mut dyn Source) -> Vec<Row> {
    let mut rows = Vec::new();
    while let Some(record) = source.next().unwrap() {
        match record {
            Record::Row(row) => rows.push(row),
            other => panic!("{other:?}"),
        }
    }
    rows
}

#[test]
fn files_that_javas_libraries_wrote_are_read_as_the_rows_that_they_hold() {
    let options = ReadOptions { format: None, csv: csv::Options::default() };
    for name in [
        "rows.avro",
        "rows.parquet",
        "plain.seq",
        "record.seq",
        "block.seq",
        "snappy.seq",
        "lz4.seq",
        "bzip2.seq",
    ] {
        let position = Position::default();
        let mut source = super::open(&golden_file(name), &options, &position).unwrap();
        assert_eq!(rows_of(source.as_mut()), golden_rows(), "{name}");
        let bytes = crate::files::Identity::of(&golden_file(name)).unwrap().bytes;
        assert_eq!(position.get(), bytes, "{name}: the position ends at the file's end");
    }
}

#[test]
fn what_a_delete_marker_hides_is_not_imported() {
    let options = ReadOptions { format: None, csv: csv::Options::default() };
    let path = golden_file("deletes.seq");
    let mut source = super::open(&path, &options, &Position::default()).unwrap();
    let live = vec![
        cell("cf", b"a", 6000, b"lives"),
        cell("cf", b"b", 3000, b"lives"),
        cell("g", b"c", 10_000, b"lives"),
    ];
    assert_eq!(rows_of(source.as_mut()), [Row { key: Bytes::from_static(b"raw"), cells: live }]);
}
