//! What tests of all modules share.

#[path = "../tests/support/until.rs"]
mod until;

pub(crate) use until::until;

/// Says what this system lacks of what a test needs, so that the caller may go without. With `TEPUI_TESTS_SKIP_NOTHING=1` the test fails
/// here: where there is all of it, nothing is to go untested unnoticed.
pub(crate) fn skip(lacks: &str) {
    let all = std::env::var_os("TEPUI_TESTS_SKIP_NOTHING").is_some_and(|value| !value.is_empty());
    assert!(!all, "{lacks}: not tested, and TEPUI_TESTS_SKIP_NOTHING is set");
    println!("{lacks}: not tested");
}
