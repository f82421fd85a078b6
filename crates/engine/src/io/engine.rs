//! Placeholder.
/// Placeholder.
#[derive(Debug)]
pub struct InlineIo;
/// Placeholder.
#[derive(Debug)]
pub struct PreadPool;
