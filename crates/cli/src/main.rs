//! The `tepui` binary.
fn main() {}
