//! Tables into files and back.

pub mod error;
pub mod files;
pub mod format;
pub mod row;
