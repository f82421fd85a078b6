//! Sketches beside those in `testdata/sketches`, which Google's own library wrote (`testdata/java/Sketches.java`), and the
//! other way round: sketches for that library to read.

#![expect(clippy::disallowed_methods, reason = "the files are on a disk")]

use std::path::{Path, PathBuf};

use super::tests::{int64, merged, text};
use super::*;

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/sketches")
}

/// What a file's name says that its sketch has seen, as our sketch.
fn ours(name: &str) -> Sketch {
    let mut parts = name.split('-');
    let is_text = parts.next() == Some("text");
    let mut number = || parts.next().unwrap().parse::<u64>().unwrap();
    let (from, to) = (number(), number());
    let one = |i| if is_text { text(&format!("user-{i}")) } else { int64(i * 7) };
    merged((from..to).map(one))
}

fn bytes_of(name: &str) -> Vec<u8> {
    std::fs::read(directory().join(name)).unwrap()
}

fn theirs(name: &str) -> Sketch {
    let counted = if name.starts_with("text") { ValueType::Bytes } else { ValueType::Int64 };
    Sketch::decode(counted, &bytes_of(name)).unwrap()
}

/// Values of which a sketch is about as large as its registers, where one of the two is sparse and the other dense.
const AT_THE_BOUND: &str = "int64-0-22650-15-20";

/// The names of the files, of those with these precisions.
fn names(precisions: &str) -> Vec<String> {
    let entries = std::fs::read_dir(directory()).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name.ends_with(precisions));
    names.sort();
    assert!(!names.is_empty(), "no file of {precisions}");
    names
}

#[test]
fn sketches_of_the_same_values_have_the_same_bytes() {
    for name in names("-15-20").iter().filter(|name| *name != AT_THE_BOUND) {
        assert!(ours(name).encode() == bytes_of(name), "{name}");
        assert!(theirs(name).encode() == bytes_of(name), "{name}: unchanged when it is merged");
    }
}

#[test]
fn at_the_bound_the_same_values_are_dense_a_little_sooner() {
    let (ours, theirs) = (ours(AT_THE_BOUND), theirs(AT_THE_BOUND));
    assert_eq!(bytes_of(AT_THE_BOUND).len(), 24_603, "sparse");
    assert_eq!(ours.encode().len(), 32_791, "dense");
    assert!(theirs == ours, "what it has seen is the same");
}

#[test]
fn sketches_merge_whoever_made_them() {
    for (a, b, whole) in [
        ("int64-0-1000-15-20", "int64-500-1500-15-20", "int64-0-1500-15-20"),
        ("int64-0-40000-15-20", "int64-30000-60000-15-20", "int64-0-60000-15-20"),
    ] {
        for merged in [
            merged([theirs(a), ours(b)]),
            merged([ours(a), theirs(b)]),
            merged([theirs(b), theirs(a)]),
        ] {
            assert!(merged.num_values > ours(whole).num_values, "some values came twice");
            let as_seen_once = Sketch { num_values: ours(whole).num_values, ..merged };
            assert!(as_seen_once.encode() == bytes_of(whole), "{a} and {b}");
        }
    }
}

#[test]
fn sketches_of_greater_precisions_are_lowered_to_the_same_bytes() {
    for (finer, same) in [
        ("int64-0-1000-16-21", "int64-0-1000-15-20"),
        ("int64-0-1000-18-25", "int64-0-1000-15-20"),
        ("int64-0-40000-16-0", "int64-0-40000-15-20"),
    ] {
        assert!(theirs(finer).encode() == bytes_of(same), "{finer}");
    }
}

#[test]
#[ignore = "it writes files for Sketches.java to read"]
fn sketches_for_others() {
    let directory = PathBuf::from(std::env::var("SKETCHES_DIR").unwrap());
    std::fs::create_dir_all(&directory).unwrap();
    for name in names("-15-20") {
        std::fs::write(directory.join(&name), ours(&name).encode()).unwrap();
    }
}
