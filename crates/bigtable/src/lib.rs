//! Bigtable semantics.

pub mod error;
pub mod filter;
pub mod gc;
pub mod regex;
