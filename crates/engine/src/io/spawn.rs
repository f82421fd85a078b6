//! Placeholder.
/// Placeholder.
#[derive(Debug)]
pub struct SeededRng;
/// Placeholder.
#[derive(Debug)]
pub struct SystemRng;
/// Placeholder.
#[derive(Debug)]
pub struct ThreadSpawner;
