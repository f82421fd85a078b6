//! RocksDB as a [`tepui_bench::Store`].

mod reader;
mod settings;
mod store;

#[cfg(test)]
pub use settings::Layout;
pub use settings::{Filter, Settings};
pub use store::{How, Rocks, ScanReadahead, Waiting};

/// RocksDB calls this, where it is linked, to ask whether it may use io_uring; without it, it does not.
#[cfg(feature = "newest")]
// SAFETY: the name is RocksDB's own for this function, and nothing else defines it.
#[unsafe(no_mangle)]
pub extern "C" fn RocksDbIOUringEnable() -> bool {
    true
}
