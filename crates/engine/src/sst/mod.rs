//! Sorted string tables: immutable, sorted files of cell records.
//!
//! ```text
//! data block ... | index partition ... | filter partition ... | coarse filter | dictionary | top index | filter index | properties | footer
//! |------------ in this order from byte 0, each a frame with a checksum; between them zeros up to a page, or nothing ------------|  96 B
//!
//! footer ─► properties ─► coarse filter       read at open, resident
//!        ─► top index ─► index partitions ─► data blocks
//!        |  resident     a page, cached       a page, cached
//!        ─► filter index ─► filter partitions
//!        |  resident        a page, cached
//!        ─► dictionary                        resident
//! ```
//!
//! | Noun | File |
//! |---|---|
//! | The frame of a block: compression, checksum | `frame.rs` |
//! | Data blocks | `data.rs`, `data_builder.rs`, `row_note.rs` |
//! | Index partitions, the top-level index | `index.rs`, `index_builder.rs` |
//! | Filter partitions and their entries | `filter.rs`, `filter_builder.rs` |
//! | Binary fuse filters | `fuse.rs` |
//! | The small filter of rows that stays in memory | `coarse.rs` |
//! | What a point read asks of a filter | `probe.rs`, `checks.rs` |
//! | Properties, footer | `properties.rs`, `footer.rs` |
//! | Writing a file | `writer.rs` |
//! | An open file | `reader.rs` |
//! | How much of its index and filter is in memory | `residence.rs` |
//! | Blocks in memory, and loading them | `block.rs` |
//! | Looking up one row | `point.rs` |
//! | Rows that lie whole in one block | `rows.rs` |
//! | Moving through a file; from its beginning to its end | `cursor.rs`; `walk.rs` |
//! | What the directory of partitions is worth | `compare.rs` |
//! | Checking a whole file | `verify.rs` |
//!
//! The life of a point read (`point.rs`): the coarse filter, where the cache has room for it, rules out half of the rows that are not there. Else the resident filter index names the partition, which is asked for the
//! row (and families, and columns), and when that says no, the lookup is over. Else the resident top-level
//! index gives the index partition, that the data block, and that the record. Partitions in memory are found by
//! their position alone (`crate::cache`), and stay there before any data block; so an uncached row costs one
//! read. Ranges of rows are read by an [`SstCursor`], which asks no filter.

mod block;
mod checks;
mod coarse;
mod compare;
mod cursor;
mod data;
mod data_builder;
mod filter;
mod filter_builder;
mod footer;
pub(crate) mod frame;
mod fuse;
pub(crate) mod fuzzing;
mod index;
mod index_builder;
mod key;
#[cfg(test)]
mod measure;
mod metrics;
mod point;
mod probe;
mod properties;
mod reader;
mod residence;
mod row_note;
mod rows;
mod salvage;
mod supplied;
mod tail;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod verify;
mod walk;
mod writer;

pub(crate) use block::Departure;
pub use block::{Block, BlockKind, BlockRequest, load_blocks, load_blocks_blocking};
pub use compare::FilterComparison;
pub use cursor::{CursorOptions, SstCursor};
pub(crate) use fuse::fetch_spotted;
pub use metrics::{Counter, KindMetrics, SstMetrics};
pub(crate) use point::{Loaded, PointRow, PointStage, add_loaded};
pub use probe::RowProbe;
pub use properties::{FamilyProperties, FilterFigures, SstProperties};
pub use reader::SstReader;
pub use residence::IndexMemory;
pub use rows::{RowInBlock, RowSink};
pub use salvage::{BlockInfo, Lost, PartitionInfo, Piece, SstPlaces};
pub(crate) use walk::{SstWalk, WINDOWS_BYTES, window_bytes};
pub(crate) use writer::fits_a_block;
pub use writer::{SstSummary, SstWriter};

/// A file's number, unique within a server: a reading of its hybrid logical clock. Never reused, so what a
/// cache holds of a file that is gone is never mistaken for another's.
pub type FileId = u64;

/// Bytes of the largest block before compression. Values are limited to 100 MiB by the API; a block holds
/// at least one record, its key and its tables.
pub const BLOCK_BYTES_MAX: usize = 128 << 20;

/// The version of the format that is written and read.
pub const FORMAT_VERSION: u32 = 2;

/// Bytes of a page: what a device reads at least, and what a read of a byte more than it costs another of.
/// Frames are placed so that they touch few of them.
pub const PAGE_BYTES: usize = 4096;

/// As the size of index or filter partitions: one partition per file, as other engines have by default. To
/// measure what partitions are good for.
pub const PARTITION_UNLIMITED: usize = usize::MAX;

/// The kind of filter partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilterKind {
    /// Cache-line-blocked Bloom, with as many bits per key as asked for: the fastest to build.
    Bloom,
    /// Binary fuse with fingerprints of 8 bits: about 10 bits per key, 0.4 % false positives.
    Fuse8,
    /// Binary fuse with fingerprints of 16 bits: about 20 bits per key, 0.002 % false positives.
    Fuse16,
}

/// How data blocks are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// LZ4: several GB/s to undo. For flushes and upper levels, which are rewritten soon.
    Lz4,
    /// zstd with a level, 1 to 22.
    Zstd(i32),
    /// zstd with a level and a dictionary trained from the SST's first blocks. For the last level, where
    /// most bytes live and stay.
    ZstdDict(i32),
}

/// How an SST is written. Nothing here is needed to read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SstOptions {
    /// Bytes of a data block before compression, at most. A larger record gets a block to itself.
    pub block_bytes: usize,
    /// Bytes that a data block should take in the file: its frame, checksum included.
    pub read_bytes: usize,
    /// Bytes of an index partition in the file, at most, unless keys have hundreds of bytes alike; or [`PARTITION_UNLIMITED`].
    pub index_partition_bytes: usize,
    /// Bytes of a filter partition in the file, at most; or [`PARTITION_UNLIMITED`].
    pub filter_partition_bytes: usize,
    /// The kind of filter.
    pub filter_kind: FilterKind,
    /// Bits per entry of a Bloom filter, also of one that stands in for a fuse filter that cannot be built;
    /// 0 writes no filter of any kind.
    pub filter_bits_per_key: u32,
    /// Compression of data blocks.
    pub compression: Compression,
}

impl Default for SstOptions {
    fn default() -> Self {
        Self {
            // Four pages: data that compresses better than that would fill its page only with blocks that
            // take longer to decompress than the device takes to read them.
            block_bytes: 16 << 10,
            // One page: what the device reads at least. Smaller: more index for the same read. Larger: a
            // point read reads, checks and decompresses more that it does not need.
            read_bytes: PAGE_BYTES,
            // One page too: 250 to 300 blocks, a megabyte of data. Smaller: a larger resident top level (0.003 %
            // of the data as it is). Larger: a cold read moves more index than data.
            index_partition_bytes: PAGE_BYTES,
            // About 3,000 entries; the same reasons.
            filter_partition_bytes: PAGE_BYTES,
            filter_kind: FilterKind::Bloom,
            // On average over the tree: fuse filters of 10 bits on the last level and of 20 on the one above,
            // Bloom of 20 in L0: 0.8 reads in vain per 100 of absent rows. With 11 the level above gets 10
            // too (1.2 in vain), with 10 the last level Bloom (4); more than 12 gains nothing up to 20.
            filter_bits_per_key: 12,
            compression: Compression::Lz4,
        }
    }
}
