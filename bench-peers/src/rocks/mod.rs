//! RocksDB as a [`tepui_bench::Store`].

mod reader;
mod settings;
mod store;

#[cfg(test)]
pub use settings::Layout;
pub use settings::{Filter, Settings, Writing};
pub use store::{Columns, How, Rocks, ScanReadahead, Waiting};
