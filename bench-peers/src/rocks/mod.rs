//! RocksDB as a [`tepui_bench::Store`].

mod reader;
mod settings;
mod store;

pub use settings::{Filter, Layout, Settings};
pub use store::{How, Rocks, ScanReadahead, Waiting};
