//! Tepui's storage engine.

pub mod cache;
pub mod cell;
pub mod codec;
pub mod compaction;
pub mod cursor;
pub mod db;
pub mod error;
pub mod io;
pub mod limits;
pub mod log;
pub mod manifest;
pub mod memtable;
pub mod read;
pub mod schema;
pub mod sst;
pub mod tablet;

pub use error::{Error, ErrorKind, Result};
