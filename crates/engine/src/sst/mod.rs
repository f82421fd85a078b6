//! Sorted string tables. Placeholder.

use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::io::IoEngine;

/// A file's number, unique within a server: a reading of its hybrid logical clock.
pub type FileId = u64;
/// Placeholder.
#[derive(Debug)]
pub struct Block;
/// Placeholder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockRequest;

impl BlockRequest {
    /// Placeholder.
    pub fn load_blocking(&self) -> Result<Arc<Block>> {
        Err(Error::new(ErrorKind::Io, "placeholder"))
    }
}

/// Placeholder.
pub fn load_blocks(
    _io: &dyn IoEngine,
    requests: Vec<BlockRequest>,
) -> impl Future<Output = Vec<Result<Arc<Block>>>> + Send {
    std::future::ready(requests.iter().map(BlockRequest::load_blocking).collect())
}
