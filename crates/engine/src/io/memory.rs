//! Placeholder.
/// Placeholder.
#[derive(Debug)]
pub struct MemoryFiles;
