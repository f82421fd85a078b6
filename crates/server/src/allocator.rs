//! How the allocator of a server's program is set, which jemalloc reads before anything else runs. A program has it so:
//!
//! ```ignore
//! #[global_allocator]
//! static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;
//! #[unsafe(export_name = "_rjem_malloc_conf")]
//! pub static SETTINGS: &[u8; SETTINGS_BYTES] = allocator::SETTINGS;
//! ```
//!
//! Huge pages are asked for where the system leaves that to programs: cached reads take some 7 % less with them. `tepui serve`
//! switches them off for itself where memory is little. What is free goes back to the system within ten seconds, also where nothing is
//! allocated any more: a thread of the allocator sees to it.

/// Bytes of the settings, with the zero at their end.
pub const SETTINGS_BYTES: usize = SETTINGS.len();

/// The settings, as jemalloc reads them; those in the environment, `_RJEM_MALLOC_CONF`, go before.
pub const SETTINGS: &[u8; 59] = b"thp:always,background_thread:true,max_background_threads:1\0";
