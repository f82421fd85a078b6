//! Options of an engine, each default with its reason.

use crate::cache::{COARSE_SHARE_PERCENT, CacheOptions, PARTITION_SHARE_PERCENT};
use crate::error::{Error, ErrorKind, Result};
use crate::log::LOG_QUEUE_BYTES_MAX;
use crate::sst::SstOptions;

/// When an acknowledged write is on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncMode {
    /// Before it is acknowledged.
    Always,
    /// By a sync that begins at most this many milliseconds after.
    IntervalMs(u64),
    /// When the operating system likes.
    Never,
}

/// Options of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineOptions {
    /// When the log is synced. `Always`: an acknowledged write that a power cut can lose is a surprise
    /// that users must ask for.
    pub sync: SyncMode,
    /// Bytes of a commit log segment. Smaller ones are freed sooner but cost a file each; larger ones
    /// keep flushed data on disk for longer.
    pub log_segment_bytes: u64,
    /// Bytes of log above which the tablets that pin the oldest segment are flushed. Bounds both disk
    /// and the time and memory to replay after a crash: the log is replayed into memtables, so it may
    /// not outgrow what they may hold. At least [`LOG_SEGMENTS_MIN`] segments.
    pub log_bytes_max: u64,
    /// Bytes of change files above which the oldest are removed even where their retention period is not over. Less
    /// loses changes that a stream may still want; more can fill the disk, which stops all writes. `None` for
    /// [`CHANGE_LOG_BYTES_MAX`], but no more than a [part](CHANGE_LOG_DISK_PART) of the disk.
    pub change_log_bytes_max: Option<u64>,
    /// Bytes of a memtable before it is flushed. Smaller ones make more, smaller L0 files and so more
    /// compaction; larger ones cost memory and replay time.
    pub memtable_bytes: u64,
    /// Memtables of one tablet that may wait for their flush. The nearer, the more writes are refused
    /// ([`crate::pressure`]): the device is behind, and each memtable is one more place for a read to look in.
    pub memtables_waiting_max: usize,
    /// Bytes of all memtables together, those included that wait for their flush and that reads still hold.
    /// Where those that take writes pass [`FLUSH_FROM_PERCENT`] of it, the largest is flushed: many small
    /// tables would otherwise hold a memtable each. The nearer to all of it, the more writes are refused.
    pub memtables_total_bytes: u64,
    /// Bytes of batches that are queued for the log, being synced, or waiting for either. The queue takes half; for
    /// the rest, more and more writes are refused. Smaller would refuse bulk loads while a slow sync runs (at
    /// 500 MB/s, 64 MiB are an eighth of a second); larger only lets more memory wait.
    pub log_queue_bytes: u64,
    /// Bytes of memory that tablets may take by being there (some 4 KiB and the keys of its range
    /// each), written to or not: with more no new ones are made. By default some sixteen thousand. Fewer, and servers with many small tables are refused
    /// another; more, and what nobody has budgeted takes the process's memory.
    pub tablets_bytes_max: u64,
    /// Bytes of the block cache: data blocks, and partitions of indexes and filters. Any size works, also one
    /// that holds no block at all; a smaller one reads the device more often.
    pub block_cache_bytes: u64,
    /// Percent of the block cache that index and filter partitions may take; see
    /// [`PARTITION_SHARE_PERCENT`].
    pub partition_share_percent: u32,
    /// Percent of the block cache that the coarse filters of open files may take, a bit and a half for each row; see
    /// [`COARSE_SHARE_PERCENT`].
    pub coarse_share_percent: u32,
    /// Levels whose SSTs have their whole index and filter in memory: level 0, then those from the base level on, into
    /// which level 0 goes; never the last. 0 pins none. Level 0 is asked by every read and holds the newest rows, and the
    /// base level is of a size that hardly grows with the data, a tenth of `base_level_bytes` up to all of it, so of the memory. More levels would pin
    /// memory by the terabyte that the clock spends better.
    pub pinned_levels: u32,
    /// Bytes that memtables, block cache and compactions may take together; 0 sets no bound. The engine
    /// refuses to start where its parts do not fit.
    pub memory_bytes: u64,
    /// Block, partition and filter sizes. The filter is chosen per level (`filters`), and so is the
    /// compression: LZ4 above the last level and zstd with a dictionary on it, unless `compression` says
    /// otherwise.
    pub sst: SstOptions,
    /// How SSTs are compressed.
    pub compression: CompressionPolicy,
    /// How filters are chosen.
    pub filters: FilterPolicy,
    /// How tablets are compacted that were not [told](crate::tablet::Tablet::set_compaction) otherwise.
    pub compaction: CompactionStyle,
    /// Sublevels of L0 that start a compaction (files, where each has all of the rows). Each costs a point read
    /// a filter probe and a scan a cursor; fewer mean more write amplification.
    pub l0_compaction_files: usize,
    /// Sublevels of L0, with the memtables that will be some, at which every write is refused; from half of it
    /// on, more and more are. Fewer would refuse writes for what one compaction takes away at once; the more there
    /// are, the less is written in all, since more of them go down at once, and the more a read looks into. Every write is also
    /// refused at twice the bytes of so many memtables and two base levels, 7 GiB (of tiered tables twice what is left in L0 at rest in
    /// place of the base levels), since merges within L0 make one sublevel of many.
    pub l0_stop_files: usize,
    /// Bytes of the first level under L0 before the next one is opened; four memtables, so that a
    /// compaction of L0 meets about as much as it brings.
    pub base_level_bytes: u64,
    /// Growth from one level to the next: 10 balances write amplification (about 10 per level) against
    /// space (1.11 of the data).
    pub level_ratio: u64,
    /// Bytes of an SST that compaction writes. Smaller files make finer picks but more of them.
    pub target_file_bytes: u64,
    /// Bytes from which a value is written to a value file, and not into SSTs; 0 for none. Such a value is not
    /// rewritten by every level's compaction, which divides the writes of a table of large values by several; but a
    /// read of it that the cache does not have is a second read. Below some pages, that costs more than it saves.
    pub separate_values_bytes: u64,
    /// Threads that compact. Flushes have one of their own, which compaction cannot starve. A large compaction is
    /// divided by rows among all that are free.
    pub compaction_threads: usize,
    /// Bytes per second that flushes and compactions may write together; 0 for no limit, the default: what is due
    /// is written sooner or later, and a limit below what writers bring makes them wait. Flushes never wait for
    /// it, compactions of L0 come before others. For disks that are shared, or whose reads suffer from writes.
    pub background_bytes_per_second: u64,
    /// Bytes per second of obsolete SSTs that are removed; 0 for no limit. File systems that tell the device what
    /// is free (`discard`) can stall for as long as a gigabyte takes to trim, reads with them. The default keeps a
    /// compaction's inputs from going all at once, and is far above what compactions write, so that the space does
    /// come back; it is not kept to while obsolete files wait in large numbers, the disk lacks room or the engine closes.
    pub delete_bytes_per_second: u64,
    /// Age at which an SST is written anew, in milliseconds, and up to a quarter more; 0 for never. Garbage that no figure tells of (an old
    /// tombstone over little; dropped rows that are a small part of their file) goes with it at the latest, and all
    /// blocks are read and their checksums proved. More often wears the disk: at 30 days, a terabyte is 400 kB a second.
    pub rewrite_age_ms: u64,
    /// How often the engine looks for cells that its garbage-collection rules let go, in milliseconds.
    /// With the idle time below it must stay well under a minute.
    pub gc_interval_ms: u64,
    /// How long a tablet must have been without writes before garbage collection rewrites files for
    /// versions alone, in milliseconds: while writes go on, ordinary compaction collects.
    pub gc_idle_ms: u64,
    /// Whether the engine runs background threads. Without, `Engine::run_background` does their work
    /// on the caller's thread: deterministic tests and tools use that.
    pub background: bool,
}

/// How SSTs are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompressionPolicy {
    /// LZ4 above the last level, zstd with a dictionary on it.
    Tiered,
    /// LZ4 everywhere.
    Lz4,
    /// None: for data that is compressed already.
    None,
}

/// How the files of a tablet are arranged, and so what is paid by writes, by reads and in space. Every style reads
/// what every other has left behind, so it may change at any time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CompactionStyle {
    /// Levels that grow tenfold, each one run of files: a tenth of garbage, few places to look in, and every byte is
    /// written about ten times in a large table. The default, since most tables are read more than written.
    #[default]
    Leveled,
    /// Runs of like size are merged with each other in level 0, and with the last level only once they are half as
    /// large: where compactions keep up, bytes are written half as often (in a load as fast as it goes about as often as leveled ones), a read looks into up to [`TIERED_RUNS_MAX`] runs beside the last level,
    /// and up to a third of the space is garbage where rows are overwritten. For tables that are mostly written.
    Tiered,
}

/// Runs of a tiered tablet's level 0 at which some are merged. Fewer would be written more often; with more, a read
/// of an absent row would ask more filters, and writers would come near the limit of sublevels.
pub const TIERED_RUNS_MAX: usize = 8;

/// Bytes of a tiered tablet's level 0, in percent of the last level, from which it is merged down. At 50 a byte that goes
/// down rewrites two; more would keep more garbage, less would be written more often.
pub const TIERED_SPACE_PERCENT: u64 = 50;

/// How filters are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilterPolicy {
    /// By level: `sst.filter_bits_per_key` is the average over the tree, spent so that reads of absent rows
    /// read the least in vain.
    ByLevel,
    /// `sst.filter_kind` and `sst.filter_bits_per_key` everywhere: for comparison.
    Flat,
}

/// Bytes from which values are separated by default: two pages, so that of the pages that a cold read of such a
/// value takes anyhow, the one with its pointer is a third at most, and mostly cached.
pub const SEPARATE_VALUES_BYTES: u64 = 8 << 10;

/// Segments that a full log has at least: only those that are written to their end are freed, so the one being written must leave room for
/// another.
pub const LOG_SEGMENTS_MIN: u64 = 2;

/// Bytes of change files by default, at most: most of a day at a megabyte a second, compressed little.
pub const CHANGE_LOG_BYTES_MAX: u64 = 64 << 30;

/// The part of its disk that change files have by default, at most: data, its compactions and the log have the rest.
pub const CHANGE_LOG_DISK_PART: u64 = 4;

impl EngineOptions {
    /// Bytes of change files at most, on a disk of so many.
    pub(crate) fn change_log_bytes_max_on(&self, disk_bytes: Option<u64>) -> u64 {
        let part = disk_bytes.map_or(u64::MAX, |bytes| bytes / CHANGE_LOG_DISK_PART);
        self.change_log_bytes_max.unwrap_or(CHANGE_LOG_BYTES_MAX.min(part))
    }
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            sync: SyncMode::Always,
            log_segment_bytes: 64 << 20,
            log_bytes_max: 512 << 20,
            change_log_bytes_max: None,
            memtable_bytes: 64 << 20,
            memtables_waiting_max: 3,
            memtables_total_bytes: 512 << 20,
            log_queue_bytes: 2 * u64::from(LOG_QUEUE_BYTES_MAX),
            tablets_bytes_max: 64 << 20,
            block_cache_bytes: 512 << 20,
            partition_share_percent: PARTITION_SHARE_PERCENT,
            coarse_share_percent: COARSE_SHARE_PERCENT,
            pinned_levels: 2,
            memory_bytes: 0,
            sst: SstOptions::default(),
            compression: CompressionPolicy::Tiered,
            filters: FilterPolicy::ByLevel,
            compaction: CompactionStyle::Leveled,
            l0_compaction_files: 4,
            l0_stop_files: 48,
            base_level_bytes: 256 << 20,
            level_ratio: 10,
            target_file_bytes: 64 << 20,
            separate_values_bytes: SEPARATE_VALUES_BYTES,
            compaction_threads: 2,
            background_bytes_per_second: 0,
            delete_bytes_per_second: 1 << 30,
            rewrite_age_ms: 30 * 24 * 3_600_000,
            gc_interval_ms: 5_000,
            gc_idle_ms: 10_000,
            background: true,
        }
    }
}

/// Memory of one flush or compaction, in bytes: 24 MiB of windows that its inputs read ahead, those over value files among them, the output's two
/// buffers and the blocks that a dictionary is trained with, the index and filter of the output until it is written, and
/// 4 MiB at most for its rows. A compaction of level 0 that is done in the midst of another, by the same thread, has half the windows, and takes 20
/// MiB more for some seconds: a tenth of `memory` is for such things, and threads are so few by default that these are less.
pub const JOB_BYTES: u64 = 32 << 20;

/// Percent of `memtables_total_bytes` above which the largest memtable is flushed. What is flushed is in memory until
/// it is written, so the memtables that take writes may have less than half; much less would flush small ones.
pub const FLUSH_FROM_PERCENT: u64 = 40;

/// Percent of the block cache that are left to data blocks at least.
const DATA_SHARE_PERCENT_MIN: u32 = 5;

impl EngineOptions {
    /// How the block cache divides its budget.
    pub(crate) fn cache(&self) -> CacheOptions {
        CacheOptions {
            capacity_bytes: self.block_cache_bytes,
            partition_share_percent: self.partition_share_percent,
            coarse_share_percent: self.coarse_share_percent,
        }
    }

    /// `InvalidArgument`, with the minimum that works, where a budget is too small for its parts.
    pub fn validate(&self) -> Result<()> {
        let refuse = |what: String| Err(Error::new(ErrorKind::InvalidArgument, what));
        if self.memtables_total_bytes < self.memtable_bytes {
            return refuse(format!(
                "memtables_total_bytes is {}, but one memtable may have {}: at least {} is needed, or a \
                 smaller memtable_bytes",
                self.memtables_total_bytes, self.memtable_bytes, self.memtable_bytes
            ));
        }
        let log_least = self.log_segment_bytes.saturating_mul(LOG_SEGMENTS_MIN);
        if self.log_bytes_max < log_least {
            return refuse(format!(
                "log_bytes_max is {}, but one segment has {}, and only those that are full are freed: at least \
                 {log_least} is needed, or a smaller log_segment_bytes",
                self.log_bytes_max, self.log_segment_bytes
            ));
        }
        let share_max = 100 - DATA_SHARE_PERCENT_MIN;
        if self.partition_share_percent > share_max {
            return refuse(format!(
                "partition_share_percent is {}: at most {share_max}, since data blocks need some of the cache",
                self.partition_share_percent
            ));
        }
        if self.coarse_share_percent > share_max {
            return refuse(format!(
                "coarse_share_percent is {}: at most {share_max}, since blocks need some of the cache",
                self.coarse_share_percent
            ));
        }
        if self.log_queue_bytes == 0 {
            return refuse("log_queue_bytes is 0: at least 1 is needed".to_owned());
        }
        if self.memory_bytes > 0 && self.memory_bytes < self.memory_bytes_min() {
            return refuse(format!(
                "memory_bytes is {}, but its parts need {}: memtables {}, the log's queue {}, block \
                 cache {}, flush and {} compactions {}; at least {} is needed, or smaller parts",
                self.memory_bytes,
                self.memory_bytes_min(),
                self.memtables_total_bytes,
                self.log_queue_bytes,
                self.block_cache_bytes,
                self.compaction_threads,
                self.job_bytes(),
                self.memory_bytes_min(),
            ));
        }
        Ok(())
    }

    /// Bytes that the log's queue itself takes; see `log_queue_bytes`.
    pub(crate) fn gate_bytes(&self) -> u32 {
        // A semaphore counts no further; more would not be written any sooner.
        (self.log_queue_bytes / 2).clamp(1, u64::from(u32::MAX >> 3)) as u32
    }

    /// Bytes of memtables above which the largest are flushed.
    pub(crate) fn flush_from_bytes(&self) -> u64 {
        self.memtables_total_bytes / 100 * FLUSH_FROM_PERCENT
    }

    /// Bytes of one flush and as many compactions as there are threads for.
    pub fn job_bytes(&self) -> u64 {
        JOB_BYTES.saturating_mul(self.compaction_threads as u64 + 1)
    }

    /// Bytes that memtables, the log's queue, block cache and compactions need together.
    pub fn memory_bytes_min(&self) -> u64 {
        self.memtables_total_bytes
            .saturating_add(self.log_queue_bytes)
            .saturating_add(self.block_cache_bytes)
            .saturating_add(self.job_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(options: &EngineOptions) -> String {
        let error = options.validate().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        error.message().to_owned()
    }

    #[test]
    fn a_budget_too_small_for_its_parts_is_refused_with_the_least_that_works() {
        let mut options = EngineOptions::default();
        options.validate().unwrap();
        options.memory_bytes = 1 << 30;
        let least = options.memory_bytes_min();
        assert!(least > 1 << 30);
        assert!(refused(&options).contains(&format!("at least {least} is needed")));
        options.memory_bytes = least - 1;
        refused(&options);
        options.memory_bytes = least;
        options.validate().unwrap();

        options.memtables_total_bytes = options.memtable_bytes - 1;
        let needed = format!("at least {} is needed", options.memtable_bytes);
        assert!(refused(&options).contains(&needed));
    }

    #[test]
    fn a_log_smaller_than_two_of_its_segments_is_refused() {
        let mut options = EngineOptions::default();
        options.log_segment_bytes = options.log_bytes_max / 2;
        options.validate().unwrap();
        options.log_segment_bytes += 1;
        let told = refused(&options);
        let least = options.log_bytes_max + 2;
        assert!(told.contains(&format!("at least {least} is needed")), "{told}");
        options.log_bytes_max = least;
        options.validate().unwrap();
    }

    #[test]
    fn partitions_may_not_take_the_whole_cache() {
        let mut options = EngineOptions { partition_share_percent: 96, ..EngineOptions::default() };
        assert!(refused(&options).contains("at most 95"));
        options.partition_share_percent = 95;
        options.validate().unwrap();
        options.partition_share_percent = 0;
        options.validate().unwrap();
        options.coarse_share_percent = 96;
        assert!(refused(&options).contains("at most 95"));
    }
}
