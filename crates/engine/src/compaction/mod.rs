//! Compaction: merging runs of records into fewer, without what no reader can see any more.
//!
//! [`stream`](CompactionStream) decides record by record what lives on; [`gc`] decides which live cells a
//! family's rules collect; `filter_policy` which filter the files of a level get.

mod filter_policy;
pub mod gc;
pub(crate) mod job;
pub(crate) mod pick;
mod stream;

pub use stream::{CompactionSpec, CompactionStats, CompactionStream};
