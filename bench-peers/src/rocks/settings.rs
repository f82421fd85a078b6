//! RocksDB at its best for these workloads. Every choice has its reason here; `bench-peers tune` measures those that
//! an argument cannot settle.

use std::fmt;

use rocksdb::{
    BlockBasedIndexType, BlockBasedOptions, Cache, DBCompressionType, DataBlockIndexType, Options,
};
use tepui_bench::{Error, Result};

/// One data block, one page, one read. Larger blocks read bytes that nobody asked for; smaller ones than the page
/// cost more index. Also the size of its partitions.
pub const BLOCK_BYTES: usize = 4096;
/// What Tepui's memtables have.
const WRITE_BUFFER_BYTES: usize = 64 << 20;
/// Memtables that the base level takes: four, as by RocksDB's defaults, and Tepui's.
const BASE_LEVEL_MEMTABLES: u64 = 4;
/// RocksDB's default and large enough that few files, and so few top-level lookups, are left.
const FILE_BYTES: u64 = 64 << 20;
/// RocksDB's default: the 12 rows of a block are one interval, and the hash index leads to it.
const RESTART_INTERVAL: i32 = 16;
/// Entries of the hash index per bucket, RocksDB's default.
const HASH_RATIO: f64 = 0.75;
/// Level 0 files while loading, compacted once at the end: no stall in between.
const LOAD_L0_FILES: i32 = 1 << 20;
/// Memtables before writes wait for a flush, where writes are measured: what Tepui has.
const WRITE_BUFFERS: i32 = 4;
/// Files of level 0 at which writes are slowed down, and stopped: what Tepui has.
const DEEP_LEVEL_ZERO: (i32, i32) = (24, 48);
/// Log files that wait to be written again: one for each memtable.
const RECYCLED_LOGS: usize = 4;
/// Number of processors that compactions may use.
const BACKGROUND_JOBS: i32 = 2;
/// Where writes are measured: a flush, and compactions on both processors, as Tepui has. Of two jobs RocksDB would
/// give compactions one.
const WRITING_JOBS: i32 = 3;
/// Where a job is to go on while another one waits for the disk, which it does for each buffer that it writes.
const MANY_JOBS: i32 = 8;
/// Threads of one compaction then.
const MANY_SUBCOMPACTIONS: u32 = 4;

#[cfg(not(feature = "newest"))]
/// Newest format of RocksDB 7.8.
const FORMAT_VERSION: i32 = 5;
#[cfg(feature = "newest")]
/// Newest format of RocksDB 11.
const FORMAT_VERSION: i32 = 7;

/// The filter of every file, per key.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Filter {
    /// Cache-line-blocked Bloom with this many bits.
    Bloom(f64),
    /// Ribbon with the false positives of Bloom at this many bits: 30% less memory, so that more of it is cached, and
    /// several times the time to build. A probe does more work, and no more time is seen of it.
    Ribbon(f64),
}

/// How the ten columns of a row are laid over keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// A key of its own for each column, row key first: what a layer over RocksDB must do to write one column without
    /// reading the rest, and so the peer of a row in Tepui. Read by one MultiGet of the row's keys.
    KeyPerColumn,
    /// All columns in one value. Reads faster, but a column is then written by reading and writing the row: not what
    /// Tepui offers. Reported, never a peer.
    Packed,
}

/// How a database that is written while it is measured takes its writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Writing {
    /// The next group writes the log while the last one is inserted into the memtable.
    pub pipelined: bool,
    /// Log files are written again in place, so that a sync has no metadata to write.
    pub recycled: bool,
    /// Writes are slowed down, and stopped, where Tepui refuses some of them, and all; else at RocksDB's defaults, which are
    /// less deep.
    pub deep_level_zero: bool,
    /// There are more jobs, and threads of a compaction, than processors.
    pub many_jobs: bool,
}

impl Default for Writing {
    fn default() -> Self {
        Self { pipelined: true, recycled: true, deep_level_zero: false, many_jobs: false }
    }
}

/// What a database is built and opened with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Index and filter in partitions under a pinned top level; else one block of each per file, in the block cache.
    pub partitioned: bool,
    /// Index and filter belong to the open file and are in no cache, as by RocksDB's defaults: nothing is looked up, and their memory
    /// is nobody's to limit.
    pub with_file: bool,
    /// Filter of every level: the last one too, since absent keys are asked for.
    pub filter: Filter,
    /// Blocks do not straddle pages, so that a direct read is one page and not two. Needs the newest wrapper, and
    /// leaves no room for compression, which these values do not admit anyhow.
    pub aligned: bool,
    /// A hash index inside of each data block, for point reads.
    pub hash_index: bool,
    /// Tries LZ4 on every block. The values are incompressible: it is kept raw, at the price of the attempt.
    pub lz4: bool,
    /// Interpolation instead of binary search in index blocks: hashed keys are uniform. No gain in `tune`. Newest only.
    pub interpolation: bool,
    /// The cache without locks, else LRU. Newest only.
    pub hyper_clock: bool,
    /// Reads and writes around the page cache.
    pub direct: bool,
    /// Layout of rows with several columns.
    pub layout: Layout,
    /// Bytes of a memtable; the base level has those of some.
    pub memtable_bytes: usize,
    /// Where writes are what is measured.
    pub writing: Option<Writing>,
}

impl Settings {
    /// The settings of the bars about reads, as `tune` found them.
    pub fn best() -> Self {
        Self {
            partitioned: true,
            with_file: false,
            filter: Filter::Ribbon(10.0),
            aligned: cfg!(feature = "newest"),
            hash_index: true,
            lz4: false,
            interpolation: false,
            hyper_clock: false,
            direct: true,
            layout: Layout::KeyPerColumn,
            memtable_bytes: WRITE_BUFFER_BYTES,
            writing: None,
        }
    }

    /// The same with the cache that suits its size. Where the cache is scarce, LRU keeps the partitions that it is told
    /// to keep: 1.02 to 1.08 disk reads a get with a cache of 1/60, where hyper-clock needs 1.23 to 1.35. Where everything
    /// fits, hyper-clock's hits take no lock.
    pub fn for_cache(self, cache_bytes: u64, data_bytes: u64) -> Self {
        Self { hyper_clock: cfg!(feature = "newest") && cache_bytes >= data_bytes, ..self }
    }

    /// The same with an index block and a filter block per file, as RocksDB's own comparison has it.
    pub fn unpartitioned() -> Self {
        Self { partitioned: false, ..Self::best() }
    }

    /// The same, held by each open file: the fastest way where memory is not what is compared.
    pub fn with_file() -> Self {
        Self { with_file: true, ..Self::unpartitioned() }
    }

    /// The settings of the bars about writes: nothing is paid for reads that nobody makes. Rows of a kilobyte in blocks that end
    /// with a page leave a quarter of it empty, and that is written by every compaction; a ribbon filter takes several
    /// times the time of a Bloom filter to build; a hash index is built for every block.
    pub fn for_writes(writing: Writing) -> Self {
        Self {
            filter: Filter::Bloom(10.0),
            aligned: false,
            hash_index: false,
            writing: Some(writing),
            ..Self::best()
        }
    }

    fn table(&self, cache: &Cache) -> BlockBasedOptions {
        let mut table = BlockBasedOptions::default();
        table.set_block_cache(cache);
        table.set_block_size(BLOCK_BYTES);
        table.set_metadata_block_size(BLOCK_BYTES);
        table.set_format_version(FORMAT_VERSION);
        table.set_block_restart_interval(RESTART_INTERVAL);
        if self.hash_index {
            table.set_data_block_index_type(DataBlockIndexType::BinaryAndHash);
            table.set_data_block_hash_ratio(HASH_RATIO);
        }
        match self.filter {
            Filter::Bloom(bits) => table.set_bloom_filter(bits, false),
            Filter::Ribbon(bits) => table.set_ribbon_filter(bits),
        }
        // Else both shapes are charged to the one cache, at high priority: memory is what is compared.
        table.set_cache_index_and_filter_blocks(!self.with_file);
        table.set_pin_l0_filter_and_index_blocks_in_cache(!self.with_file);
        if self.partitioned {
            table.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
            table.set_partition_filters(true);
            table.set_pin_top_level_index_and_filter(true);
        } else {
            table.set_index_type(BlockBasedIndexType::BinarySearch);
        }
        #[cfg(feature = "newest")]
        {
            table.set_cache_index_and_filter_blocks_with_high_priority(!self.with_file);
            table.set_optimize_filters_for_memory(true);
        }
        table
    }

    /// Options to open a database with, for loading or for reading.
    pub fn options(&self, cache: &Cache, loading: bool) -> Result<Options> {
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_max_open_files(-1);
        options.set_use_direct_reads(self.direct);
        options.set_use_direct_io_for_flush_and_compaction(self.direct);
        options.set_write_buffer_size(self.memtable_bytes);
        options.set_max_bytes_for_level_base(self.memtable_bytes as u64 * BASE_LEVEL_MEMTABLES);
        options.set_target_file_size_base(FILE_BYTES);
        options.set_level_compaction_dynamic_level_bytes(true);
        options.set_max_background_jobs(BACKGROUND_JOBS);
        options.set_max_subcompactions(BACKGROUND_JOBS as u32);
        options.set_compression_type(if self.lz4 {
            DBCompressionType::Lz4
        } else {
            DBCompressionType::None
        });
        // No statistics, and none written to its log.
        options.set_stats_dump_period_sec(0);
        options.set_stats_persist_period_sec(0);
        options.set_skip_stats_update_on_db_open(true);
        if loading {
            options.set_disable_auto_compactions(true);
            options.set_level_zero_slowdown_writes_trigger(LOAD_L0_FILES);
            options.set_level_zero_stop_writes_trigger(LOAD_L0_FILES);
            options.set_level_zero_file_num_compaction_trigger(LOAD_L0_FILES);
            options.set_max_write_buffer_number(4);
        }
        if let Some(writing) = self.writing {
            options.set_enable_pipelined_write(writing.pipelined);
            options.set_allow_concurrent_memtable_write(true);
            options.set_max_write_buffer_number(WRITE_BUFFERS);
            options.set_max_background_jobs(WRITING_JOBS);
            if writing.many_jobs {
                options.set_max_background_jobs(MANY_JOBS);
                options.set_max_subcompactions(MANY_SUBCOMPACTIONS);
            }
            if writing.deep_level_zero {
                let (slowdown, stop) = DEEP_LEVEL_ZERO;
                options.set_level_zero_slowdown_writes_trigger(slowdown);
                options.set_level_zero_stop_writes_trigger(stop);
            }
            if writing.recycled {
                options.set_recycle_log_file_num(RECYCLED_LOGS);
                // RocksDB 7 sets it to 0 again, without a word, beside the default mode of recovery, which only a start after
                // a crash reads. RocksDB 11 has both.
                #[cfg(not(feature = "newest"))]
                options.set_wal_recovery_mode(rocksdb::DBRecoveryMode::SkipAnyCorruptedRecord);
            }
        }
        options.set_block_based_table_factory(&self.table(cache));
        self.extras(options)
    }

    #[cfg(not(feature = "newest"))]
    fn extras(&self, options: Options) -> Result<Options> {
        if self.aligned || self.interpolation {
            return Err(Error::failed("aligned blocks and interpolation need the newest RocksDB"));
        }
        Ok(options)
    }

    /// What the wrapper has no function for, by RocksDB's own option strings.
    #[cfg(feature = "newest")]
    fn extras(&self, mut options: Options) -> Result<Options> {
        let search = if self.interpolation { "kInterpolation" } else { "kBinary" };
        options
            .get_options_from_string(format!(
                "block_based_table_factory={{block_align={};index_block_search_type={search}}}",
                self.aligned
            ))
            .map_err(|e| Error::failed(format!("RocksDB refuses its options: {e}")))
    }
}

impl Settings {
    /// A block cache of `bytes`.
    pub fn cache(&self, bytes: usize) -> Result<Cache> {
        #[cfg(feature = "newest")]
        return Ok(if self.hyper_clock {
            Cache::new_hyper_clock_cache(bytes, 0)
        } else {
            Cache::new_lru_cache(bytes)
        });
        #[cfg(not(feature = "newest"))]
        if self.hyper_clock {
            return Err(Error::failed("the hyper-clock cache needs the newest RocksDB"));
        }
        #[cfg(not(feature = "newest"))]
        Cache::new_lru_cache(bytes).map_err(|e| Error::failed(format!("RocksDB's cache: {e}")))
    }

    /// What of the settings is in the files.
    pub fn format(&self) -> String {
        let of_files = Self { interpolation: false, hyper_clock: false, with_file: false, ..*self };
        Self { writing: None, ..of_files }.to_string()
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cache = if self.hyper_clock { "hyper-clock" } else { "LRU" };
        let index = if self.partitioned { "partitioned" } else { "whole" };
        write!(f, "{BLOCK_BYTES}-byte blocks")?;
        if self.aligned {
            write!(f, " aligned to pages")?;
        }
        match self.filter {
            Filter::Bloom(bits) => write!(f, ", {index} index and Bloom filter of {bits} bits")?,
            Filter::Ribbon(bits) => write!(f, ", {index} index and ribbon filter of {bits} bits")?,
        }
        let place = if self.with_file { "with each file, beside" } else { "in" };
        write!(f, " {place} the {cache} block cache, format {FORMAT_VERSION}")?;
        if self.hash_index {
            write!(f, ", hash index in blocks")?;
        }
        if self.interpolation {
            write!(f, ", interpolation search")?;
        }
        write!(f, ", {}", if self.lz4 { "LZ4" } else { "no compression" })?;
        write!(f, ", {} I/O", if self.direct { "direct" } else { "buffered" })
    }
}
