//! Tepui's storage engine.

mod background;
pub mod cache;
pub mod cell;
pub mod codec;
pub mod compaction;
mod core;
pub mod cursor;
pub mod db;
pub mod error;
pub mod fuzzing;
mod identity;
pub mod io;
mod layout;
pub mod limits;
pub mod log;
pub mod manifest;
pub mod memtable;
pub mod offline;
pub mod options;
pub mod read;
pub mod schema;
pub mod sst;
mod store;
pub mod tablet;

pub use error::{Error, ErrorKind, Result};
