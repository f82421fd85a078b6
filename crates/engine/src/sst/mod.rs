//! Sorted string tables. Placeholder.

/// A file's number, unique within a server: a reading of its hybrid logical clock.
pub type FileId = u64;
/// Placeholder.
#[derive(Debug)]
pub struct Block;
/// Placeholder.
#[derive(Debug)]
pub struct BlockRequest;
