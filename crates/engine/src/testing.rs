//! What tests of all modules share.

/// Says what this system lacks of what a test needs, so that the caller may go without. A test fails here unless whoever runs it allows
/// that, by `TEPUI_TESTS_MAY_SKIP=1`: what is tested nowhere is not to go unnoticed.
pub(crate) fn skip(lacks: &str) {
    let may = std::env::var_os("TEPUI_TESTS_MAY_SKIP").is_some_and(|value| !value.is_empty());
    assert!(may, "{lacks}: not tested (TEPUI_TESTS_MAY_SKIP=1 allows that)");
    println!("{lacks}: not tested");
}
