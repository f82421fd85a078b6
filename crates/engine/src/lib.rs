//! Tepui's storage engine: tablets of rows, families, qualifiers and timestamps, on files. It knows no network, no
//! protobuf and no regular expression.
//!
//! A [`db::Engine`] owns a directory. A [`tablet::Tablet`] is a contiguous range of one table's rows and one LSM
//! tree; everything that is asked of the data is asked of a tablet. Whatever touches a file, a clock, chance or a
//! thread goes through the seams of [`io`].
//!
//! # The map
//!
//! | Folder or file | What it is |
//! |---|---|
//! | [`cell`] | rows, cells, and the one encoding of keys |
//! | [`db`], [`options`](db::EngineOptions) | opening and closing a directory; every default with its reason |
//! | [`pressure`] | how far flushes, compactions and the log are behind, and which writes are refused for it |
//! | [`tablet`] | applying, reading, flushing, compacting one tablet; collecting garbage where changes are kept |
//! | [`log`] | the commit log of the server: order, durability, visibility |
//! | [`relay`] | waking those who wait for the log, a thread at a time |
//! | [`changes`] | what changed tablets with a change stream, in the order of commits, for as long as it is kept |
//! | [`memtable`] | the newest writes, sorted, in memory |
//! | [`sst`] | immutable files of sorted records: writing, looking up, walking |
//! | [`values`] | large values outside of SSTs: pointers, value files, what of them lives |
//! | [`cache`] | memory for blocks: data blocks, and partitions of indexes and filters |
//! | [`read`] | what a snapshot sees of many sources: merge, tombstones, projection |
//! | [`cursor`] | the shape that memtables, SSTs and merges share |
//! | [`compaction`] | which SSTs to merge, what to drop, which filter a level gets |
//! | [`manifest`] | which SSTs make up a tablet, by edits |
//! | [`backup`] | what a table was at a moment, as references to its files |
//! | [`figures`] | what the files of all tablets come to, each counted once |
//! | [`io`] | files, reads past the page cache, rings, clocks, chance, threads |
//! | [`offline`] | check, repair and inspect a directory that no engine uses |
//!
//! # The life of a write
//!
//! 1. [`Tablet::apply`](tablet::Tablet::apply) is let in, or refused with a hint when to try again where
//!    memtables, level 0 or the log's queue come near their limits ([`pressure`]); then it takes the row's lock
//!    and, without a thread, its share of the log's queue (`tablet/write.rs`).
//! 2. One critical section takes a sequence and queues the encoded batch, so that the order of the log is the
//!    order of sequences ([`log::pipeline`]).
//! 3. The records enter the memtable, above the visible sequence; the row's lock is released
//!    (`memtable/skiplist.rs`).
//! 4. The log's thread writes all that has queued and syncs once (`log/worker.rs`); where syncs are slow it lets the
//!    writers that it has just answered return first (`log/gather.rs`).
//! 5. The visible sequence moves over what is durable and in its memtable, and the callers are answered.
//! 6. A full memtable is frozen, flushed into an SST of level 0 (`tablet/flush.rs`), and merged downwards by
//!    compactions (`compaction/`, `tablet/compact.rs`), installed by edits of the manifest. Large values
//!    go into value files beside the SSTs, and stay where they are when pointers to them are merged
//!    (`compaction/separate.rs`, [`values`]).
//!
//! # The life of a read
//!
//! ```text
//!                      memtables ┐                         ┌ none                 ─► no row
//! row ─► view, seq ─►            ├─► which have the row? ──┼ one SST, one block   ─► its cells, from the block
//!                  SSTs by level ┘     ▲            │      └ several, or to merge ─► cursors over just these
//!                                      │   blocks that are missing,
//!                                      └── of all SSTs, in one batch
//! ```
//!
//! One row, [`Tablet::read_row`](tablet::Tablet::read_row) (`tablet/point.rs`):
//!
//! 1. *View.* The memtables and SSTs of now and the visible sequence, without a lock and without counting a
//!    reference (`tablet/read.rs`, `tablet/view.rs`).
//! 2. *Which files.* Every file of level 0 whose rows reach around the row; below, at most one of each level,
//!    found in an array of their ends (`tablet/levels.rs`).
//! 3. *Filter.* Each SST is asked whether it has the row, or the families or columns that the projection names, or a
//!    tombstone above them. The row is hashed once for all SSTs ([`sst::RowProbe`]). The resident filter index
//!    gives the partition's position, and that its slot in memory: no hash, no lock (`sst/checks.rs`,
//!    `cache/directory.rs`).
//! 4. *Index, block, record.* The same way from the resident top-level index to the index partition; from that to
//!    the data block, which has a slot beside the partition once it was asked for again (`cache/slots.rs`), else by
//!    the cache's hash table; and by binary search to the row's first record (`sst/point.rs`).
//! 5. *What is missing.* A lookup that lacks a block says which. The blocks that all SSTs of the read lack are
//!    loaded together, each only once however many reads want it (`sst/block.rs`, `cache/flights.rs`), by
//!    direct reads over the thread's own ring, by a pool of threads, or on the spot where a thread blocks for its
//!    reads (`io/uring/`, `io/engine.rs`); then every lookup goes on. A read that lacks nothing never awaits and
//!    never leaves its thread.
//!    Where the newest cell of named columns is wanted, a younger SST is read before an older one whose cells must all
//!    be older, and memtables before any (`tablet/newest.rs`).
//! 6. *Cells.* A row that lies whole in one block of one SST, and is made of plain values, is assembled straight
//!    from that block; qualifiers and values share its memory (`sst/rows.rs`, `read/single.rs`). Anything
//!    else takes the general way of a scan, over the places that have something of the row.
//!
//! 7. *Values elsewhere.* A cell may come with a pointer for its value: all that the row has are then read together,
//!    unless the projection does not look at values (`values/fetch.rs`). Large ones are unpacked by the thread's helper, if
//!    it has one ([`aside`]).
//!
//! A range of rows, [`Tablet::scan`](tablet::Tablet::scan):
//!
//! 1. A cursor for each memtable, each file of level 0 and each deeper level (`read/level.rs`, `sst/cursor.rs`)
//!    under one merge ([`read::merge`]). Filters are not asked: a range has no key.
//! 2. Cursors do no I/O. One that needs a block is *blocked*; [`read::RowStream`] loads what all of them want in one
//!    batch, their read-ahead included, and resumes them. Read-ahead doubles, forward and backward, and starts as
//!    large as the caller's limit of rows calls for.
//! 3. While the next rows lie whole in one block of one source, they are handed over as they are, a block's worth at
//!    a time, while the next block is on its way into the processor's cache (`sst/rows.rs`, `read/single.rs`). Otherwise record by record: tombstones, snapshot and projection
//!    decide what shows (`read/visible.rs`, `read/plan.rs`).
//!
//! 4. Rows whose values lie elsewhere are gathered until they are worth one batch of reads, at most a megabyte.
//!
//! What a scan reads enters the cache on probation and what a compaction reads enters nowhere, so neither drives
//! out what point reads come back to ([`cache`]).

pub mod aside;
mod background;
pub mod backup;
pub mod cache;
mod catalog_store;
pub mod cell;
pub mod changes;
pub mod codec;
pub mod compaction;
mod core;
pub mod cursor;
pub mod db;
mod dir_syncs;
pub mod error;
pub mod figures;
pub mod fuzzing;
mod holdings;
mod house;
mod identity;
pub mod io;
mod layout;
mod leftovers;
pub mod limits;
pub mod log;
pub mod manifest;
pub mod memtable;
pub mod offline;
pub mod options;
pub mod pressure;
mod random;
pub mod read;
pub mod relay;
pub mod schema;
mod setbacks;
pub mod sst;
mod store;
pub mod tablet;
#[cfg(test)]
mod testing;
mod touch;
pub mod values;
mod wall_clock;

pub use error::{Error, ErrorKind, Result};
