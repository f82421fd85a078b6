//! Placeholder.
/// Placeholder.
#[derive(Debug)]
pub struct ManualClock;
/// Placeholder.
#[derive(Debug)]
pub struct SystemClock;
