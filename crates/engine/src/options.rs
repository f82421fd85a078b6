//! Options of an engine, each default with its reason.

use crate::sst::SstOptions;

/// When an acknowledged write is on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncMode {
    /// Before it is acknowledged.
    Always,
    /// At most this many milliseconds after.
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
    /// not outgrow what they may hold.
    pub log_bytes_max: u64,
    /// Bytes of a memtable before it is flushed. Smaller ones make more, smaller L0 files and so more
    /// compaction; larger ones cost memory and replay time.
    pub memtable_bytes: u64,
    /// Memtables of one tablet that may wait for their flush. Beyond, writers wait: the device is
    /// behind, and memory must not grow.
    pub memtables_waiting_max: usize,
    /// Bytes of all memtables together, above which the largest one is flushed. Many small tables
    /// would otherwise hold a memtable each.
    pub memtables_total_bytes: u64,
    /// Bytes of the block cache.
    pub block_cache_bytes: u64,
    /// Block, partition and filter sizes. The filter is chosen per level: see `filters`. The compression is set per level: LZ4 above the last level
    /// and zstd with a dictionary on it, unless `compression` says otherwise.
    pub sst: SstOptions,
    /// How SSTs are compressed.
    pub compression: CompressionPolicy,
    /// How filters are chosen.
    pub filters: FilterPolicy,
    /// L0 files that start a compaction. Each costs a point read a filter probe and a scan a cursor;
    /// fewer mean more write amplification.
    pub l0_compaction_files: usize,
    /// L0 files at which writers wait for compaction.
    pub l0_stop_files: usize,
    /// Bytes of the first level under L0 before the next one is opened; four memtables, so that a
    /// compaction of L0 meets about as much as it brings.
    pub base_level_bytes: u64,
    /// Growth from one level to the next: 10 balances write amplification (about 10 per level) against
    /// space (1.11 of the data).
    pub level_ratio: u64,
    /// Bytes of an SST that compaction writes. Smaller files make finer picks but more of them.
    pub target_file_bytes: u64,
    /// Threads that compact. Flushes have one of their own, which compaction cannot starve.
    pub compaction_threads: usize,
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

/// How filters are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilterPolicy {
    /// By level: `sst.filter_bits_per_key` is the average over the tree, spent so that reads of absent rows
    /// read the least in vain.
    ByLevel,
    /// `sst.filter_kind` and `sst.filter_bits_per_key` everywhere: for comparison.
    Flat,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            sync: SyncMode::Always,
            log_segment_bytes: 64 << 20,
            log_bytes_max: 512 << 20,
            memtable_bytes: 64 << 20,
            memtables_waiting_max: 3,
            memtables_total_bytes: 512 << 20,
            block_cache_bytes: 512 << 20,
            sst: SstOptions::default(),
            compression: CompressionPolicy::Tiered,
            filters: FilterPolicy::ByLevel,
            l0_compaction_files: 4,
            l0_stop_files: 24,
            base_level_bytes: 256 << 20,
            level_ratio: 10,
            target_file_bytes: 64 << 20,
            compaction_threads: 2,
            gc_interval_ms: 5_000,
            gc_idle_ms: 10_000,
            background: true,
        }
    }
}
