//! Placeholder.
/// Placeholder.
#[derive(Debug)]
pub struct Fault;
/// Placeholder.
#[derive(Debug)]
pub struct FaultFiles;
/// Placeholder.
#[derive(Debug)]
pub struct FaultOp;
