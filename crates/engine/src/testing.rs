//! What tests of all modules share.

#[path = "../tests/support/until.rs"]
mod until;

use std::io::Write as _;

use tempfile::TempDir;
pub(crate) use until::until;

/// Says what this system lacks of what a test needs, so that the caller may go without. With `TEPUI_TESTS_SKIP_NOTHING=1` the test fails
/// here: where there is all of it, nothing is to go untested unnoticed.
pub(crate) fn skip(lacks: &str) {
    let all = std::env::var_os("TEPUI_TESTS_SKIP_NOTHING").is_some_and(|value| !value.is_empty());
    assert!(!all, "{lacks}: not tested, and TEPUI_TESTS_SKIP_NOTHING is set");
    // Past what is shown of tests that fail alone. All of it at once, since other tests write beside it.
    let line = format!("{lacks}: not tested\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// A directory for files that are read and written past the page cache: on a disk, where that for temporary files may be memory.
pub(crate) fn disk_dir() -> TempDir {
    tempfile::tempdir_in("/var/tmp").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Lower-case hexadecimal digits, as bytes of files are kept in tests.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"))
}

/// The bytes of such digits.
pub(crate) fn unhex(digits: &str) -> Vec<u8> {
    let pairs = digits.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}
