//! Tests of the engine as a whole, over a file system in memory.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that panics has failed")]

mod backups;
mod bad_days;
mod changes;
mod changes_kept;
mod collector;
mod compactions;
mod concurrent;
mod drops;
mod faults;
mod gc;
mod harness;
mod jobs;
mod leftovers;
mod metamorphic;
mod model;
mod moved;
mod newer;
mod newest;
mod offline;
mod salvage;
mod shortages;
mod slow_disk;
#[path = "../support/until.rs"]
mod until;
mod values;
mod versions;
mod widths;
