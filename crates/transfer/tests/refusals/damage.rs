//! Files that are damaged or cut off in the middle: what comes before is imported, the error says where, and the import can
//! go on from there.

use tepui_transfer::files::Unfinished;
use tepui_transfer::format::{Sink, avro, parquet, sequence};
use tepui_transfer::row::{Cell, Row};

use super::*;

/// Several blocks and pages of each format.
const ROWS: usize = 2_500;
const VALUE_BYTES: usize = 2_000;

/// How much of a file is damaged: more than a value, so that it cannot pass for one.
const DAMAGED_BYTES: usize = 64 << 10;

/// Rows whose values do not compress.
fn rows() -> impl Iterator<Item = Row> {
    let mut state = 1u64;
    (0..ROWS).map(move |row| {
        let noise = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        });
        let value: Vec<u8> = noise.take(VALUE_BYTES).collect();
        let cell = Cell {
            family: "f".to_owned(),
            qualifier: "q".into(),
            timestamp_micros: 1_000,
            value: value.into(),
        };
        Row { key: format!("r{row:05}").into_bytes().into(), cells: vec![cell] }
    })
}

fn write(format: Format, path: &Path) {
    let (unfinished, file) = Unfinished::create(path).unwrap();
    let mut sink: Box<dyn Sink> = match format {
        Format::Avro => Box::new(avro::Writer::create(file).unwrap()),
        Format::Parquet => Box::new(parquet::Writer::create(file).unwrap()),
        _ => Box::new(sequence::Writer::create(file, [7; 16]).unwrap()),
    };
    for row in rows() {
        sink.write(&row).unwrap();
    }
    unfinished.finish(&sink.finish().unwrap()).unwrap();
}

#[test]
fn what_comes_before_damage_is_imported_and_the_error_says_where_that_is() {
    for (format, name) in [
        (Format::Avro, "rows.avro"),
        (Format::Parquet, "rows.parquet"),
        (Format::SequenceFile, "rows"),
    ] {
        for torn in [false, true] {
            let place = planned([]);
            let path = place.dir.path().join(name);
            write(format, &path);
            let mut bytes = std::fs::read(&path).unwrap();
            let at = bytes.len() / 4 * 3;
            if torn {
                bytes.truncate(at);
            } else {
                bytes[at..at + DAMAGED_BYTES].fill(0xff);
            }
            std::fs::write(&path, bytes).unwrap();
            let options = |earlier| Import {
                names: vec![path.to_str().unwrap().to_owned()],
                batch_rows: 100,
                ..place.options("", earlier)
            };
            let run = |earlier| {
                let failed = import(&options(earlier), &ProgressBar::hidden(), &Stop::default());
                failed.unwrap_err().to_string()
            };
            let error = run(Earlier::Refuse);
            assert!(error.starts_with(path.to_str().unwrap()), "{error}");
            if torn && format == Format::Parquet {
                // Without its end nothing of it can be read.
                assert!(place.written().is_empty(), "{error}");
                continue;
            }
            let (_, behind) = error.split_once("record ").unwrap();
            let (record, where_it_is) = behind.split_once(", near byte ").unwrap();
            let written = place.written().len();
            assert_eq!(record, written.to_string(), "{error}");
            assert!((1..ROWS).contains(&written), "{format:?}: {written}");
            let byte: usize = where_it_is.split_once(':').unwrap().0.parse().unwrap();
            assert!(byte.abs_diff(at) < 2 << 20, "{error}, damaged at {at}");

            assert_eq!(run(Earlier::Resume), error, "it goes on, and comes no further");
            assert_eq!(place.written().len(), written, "nothing is written twice");
            write(format, &path);
            let other = run(Earlier::Resume);
            assert!(other.contains("changed since"), "{other}");
        }
    }
}

#[test]
fn a_file_that_cannot_be_read_does_not_keep_the_others_from_being_imported() {
    let place = planned([]);
    let torn = place.dir.path().join("a.avro");
    write(Format::Avro, &torn);
    let bytes = std::fs::read(&torn).unwrap();
    std::fs::write(&torn, &bytes[..bytes.len() / 2]).unwrap();
    let empty = place.dir.path().join("b.avro");
    std::fs::write(&empty, "Obj\x01").unwrap();
    let run = |earlier| {
        let csv = place.options(",f\n,a\nz0,v\nz1,v\n", earlier);
        let files = [&torn, &empty].map(|path| path.to_str().unwrap().to_owned());
        let names = files.into_iter().chain(csv.names.clone()).collect();
        let options = Import { names, batch_rows: 100, ..csv };
        import(&options, &ProgressBar::hidden(), &Stop::default()).unwrap_err().to_string()
    };
    let error = run(Earlier::Refuse);
    let [first, second, last] = error.lines().collect::<Vec<_>>()[..] else { panic!("{error}") };
    assert!(first.contains("a.avro: record ") && second.contains("b.avro"), "{error}");
    assert!(last.starts_with("2 of 3 files"), "{error}");
    let written = place.written();
    assert!(written.len() > 2 && written.iter().any(|(row, _)| row == "z1"));
    assert_eq!(run(Earlier::Resume), error);
    assert_eq!(place.written(), written, "nothing is written twice");
}

#[test]
fn a_csv_file_that_is_cut_off_has_its_last_line_set_aside_by_its_number() {
    let place = planned([]);
    let options = place.options(",f\n,a\nr0,v\nr1,v\nr2", Earlier::Refuse);
    let summary = import(&options, &ProgressBar::hidden(), &Stop::default()).unwrap();
    assert_eq!((summary.rows, summary.rejected), (2, 1));
    let rejected = std::fs::read_to_string(&options.rejected).unwrap();
    for word in ["rows.csv", "\"record\":2", "line 5: 1 fields where the header has 2"] {
        assert!(rejected.contains(word), "{rejected}");
    }
}
