//! The commit log.

pub mod record;
