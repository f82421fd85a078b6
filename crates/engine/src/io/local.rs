//! Placeholder.
/// Placeholder.
#[derive(Debug)]
pub struct LocalFiles;
