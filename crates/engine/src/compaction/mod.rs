//! Compaction: merging runs of records into fewer, without what no reader can see any more.
//!
//! `input` reads the runs; [`stream`](CompactionStream) decides record by record what lives on, and [`Beneath`] whether what it hides may be elsewhere; [`gc`] decides which live cells a
//! family's rules collect, and `candidates` which of a tablet whose changes are kept; `filter_policy` which filter the files of a level get; `separate` which values lie outside
//! of the SSTs, and `reclaim` which SST is rewritten to free value files.

pub(crate) mod ages;
pub(crate) mod beneath;
pub(crate) mod candidates;
pub(crate) mod collect;
pub(crate) mod cuts;
mod filter_policy;
pub mod gc;
pub(crate) mod input;
pub(crate) mod job;
mod level_zero;
pub(crate) mod pace;
pub(crate) mod parts;
pub(crate) mod pick;
pub(crate) mod reads;
pub(crate) mod reclaim;
pub(crate) mod rest;
pub(crate) mod separate;
pub(crate) mod shape;
pub(crate) mod space;
pub(crate) mod split;
mod stream;
pub(crate) mod sublevels;

pub use beneath::Beneath;
pub use stream::{CompactionSpec, CompactionStats, CompactionStream};
