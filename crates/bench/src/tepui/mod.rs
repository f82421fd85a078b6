//! Tepui's engine as a [`Store`], in this process.
//!
//! One table of one tablet and one family, and another for counters. The engine runs its background threads as a server's does; reads
//! run on one single-threaded runtime a thread, as a server's requests do, or on threads that block where each
//! has but one in flight.

mod deletes;
mod drive;
mod increment;
mod load;
mod machine;
mod slow;
mod spread;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tepui_engine::cell::{FamilyId, RowRange};
use tepui_engine::db::{CompressionPolicy, Engine, EngineOptions, Health};
use tepui_engine::io::Env;
use tepui_engine::schema::{FamilyOptions, TabletSchema};
use tepui_engine::sst::PARTITION_UNLIMITED;
use tepui_engine::tablet::{ReadView, Tablet};

use crate::clock;
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::kept::{Kept, State};
use crate::progress::Progress;
use crate::run::Run;
use crate::store::{Figure, Store};

pub use machine::CountedIo;
pub use slow::Slow;
pub use spread::{SPREAD_DATA_BYTES_MAX, load_spread};
pub use tepui_engine::db::CompactionStyle;
pub use tepui_engine::db::SyncMode;
pub use tepui_engine::io::IoMode;

/// The family of every cell.
const FAMILY: FamilyId = FamilyId(1);
/// A family that no row has a cell of.
const LACKED: FamilyId = FamilyId(2);

/// Rows whose filters are asked in a round of [`Tepui::filter_access`]: some ten milliseconds of work.
const FILTER_ACCESS_ROWS: u64 = 20_000;
/// Between two looks at whether the engine has settled.
const SETTLE_LOOK: Duration = Duration::from_millis(50);
/// Looks in a row that must find it settled: a job that was picked and has not begun escapes one.
const SETTLE_LOOKS: u32 = 3;

/// Options of a [`Tepui`].
#[derive(Debug, Clone)]
pub struct TepuiOptions {
    /// Its name in reports.
    pub name: String,
    /// The engine's directory.
    pub dir: PathBuf,
    /// The engine's own options.
    pub engine: EngineOptions,
    /// How blocks are read.
    pub io: IoMode,
    /// Delays its reads.
    pub slow: Option<Slow>,
    /// What each sync of a file takes longer.
    pub slow_sync: Option<Duration>,
}

impl TepuiOptions {
    /// The engine's defaults, but for what a benchmark of reads must choose: the log is not synced (loads
    /// wait for the disk's writes otherwise, and nothing here is worth keeping), and the values are
    /// incompressible, so nothing is compressed. Blocks are read past the page cache: what that holds would
    /// hide the device.
    pub fn new(dir: &Path, cache_bytes: u64) -> Self {
        let engine = EngineOptions {
            sync: SyncMode::Never,
            compression: CompressionPolicy::None,
            block_cache_bytes: cache_bytes,
            ..EngineOptions::default()
        };
        Self {
            name: "tepui".to_owned(),
            dir: dir.to_owned(),
            engine,
            io: IoMode::Direct,
            slow: None,
            slow_sync: None,
        }
    }

    /// Writes the index and the filter of each SST as one block each.
    #[must_use]
    pub fn unpartitioned(mut self) -> Self {
        self.engine.sst.index_partition_bytes = PARTITION_UNLIMITED;
        self.engine.sst.filter_partition_bytes = PARTITION_UNLIMITED;
        self
    }

    /// What of the options is in the files and their levels, for [`Kept`].
    pub fn format(&self) -> String {
        let EngineOptions { compression, sst, separate_values_bytes, .. } = &self.engine;
        let EngineOptions { memtable_bytes, base_level_bytes, target_file_bytes, .. } =
            &self.engine;
        format!(
            "{compression:?} {sst:?} {separate_values_bytes}, memtables {memtable_bytes}, base level {base_level_bytes}, files {target_file_bytes}"
        )
    }
}

/// An open engine.
#[derive(Debug)]
pub struct Tepui {
    name: String,
    engine: Arc<Engine>,
    tablet: Arc<Tablet>,
    /// Counters, apart from the rows: these are compared byte by byte.
    counters: Arc<Tablet>,
    io: Arc<CountedIo>,
    columns: Columns,
}

/// The columns of the data set, in the engine's order.
#[derive(Debug)]
struct Columns {
    /// Qualifier and number, by qualifier.
    sorted: Vec<(bytes::Bytes, u32)>,
}

impl Columns {
    fn new(dataset: &Dataset) -> Self {
        let mut sorted: Vec<_> = (0..dataset.columns)
            .map(|column| (bytes::Bytes::from(Dataset::qualifier(column)), column))
            .collect();
        sorted.sort();
        Self { sorted }
    }
}

impl Tepui {
    /// Opens or creates the engine of a data set.
    pub fn open(options: &TepuiOptions, dataset: &Dataset) -> Result<Self> {
        dataset.validate()?;
        let (env, io): (Env, _) = machine::env(options.io, options.slow, options.slow_sync)?;
        let engine = Engine::open(env, &options.dir, options.engine.clone())?;
        // By number, so in the order in which they were created.
        let mut tablets = engine.tablets().into_iter();
        let mut next = || -> Result<Arc<Tablet>> {
            let tablet = match tablets.next() {
                Some(tablet) => tablet,
                None => engine.create_tablet(RowRange::all())?,
            };
            let families = [FAMILY, LACKED].map(|f| (f, FamilyOptions::default())).into();
            tablet.set_schema(Arc::new(TabletSchema { families }));
            Ok(tablet)
        };
        let (tablet, counters) = (next()?, next()?);
        engine.start()?;
        let (name, columns) = (options.name.clone(), Columns::new(dataset));
        Ok(Self { name, engine, tablet, counters, io, columns })
    }

    /// Opens what `kept` holds with the cache of `options`; loads and settles it first where it is not there.
    /// A load has a cache of its own, so that what is measured starts cold, and syncs nothing, since it is settled
    /// before it counts.
    pub fn open_kept(
        options: &TepuiOptions,
        dataset: &Dataset,
        kept: &Kept,
        progress: &Progress,
    ) -> Result<Self> {
        if kept.prepare()? == State::Empty {
            let mut loading = TepuiOptions { slow_sync: None, ..options.clone() };
            loading.engine.sync = SyncMode::Never;
            let store = Self::open(&loading, dataset)?;
            store.load(dataset, progress)?;
            store.settle(progress)?;
            store.close()?;
            kept.complete()?;
        }
        Self::open(options, dataset)
    }

    /// Opens the rows of `kept` as a load leaves them, with the cache of `options`: loaded anew each time, neither flushed
    /// nor merged, and by the engine that goes on with what is measured. The load is synced as `options` say. It is
    /// never complete, so the next one who asks for `kept` does not find it.
    pub fn open_loaded(
        options: &TepuiOptions,
        dataset: &Dataset,
        kept: &Kept,
        progress: &Progress,
    ) -> Result<Self> {
        kept.prepare_anew()?;
        let store = Self::open(options, dataset)?;
        store.load(dataset, progress)?;
        Ok(store)
    }

    /// Writes some of the rows, every column; again where they are there.
    pub fn load_rows(
        &self,
        dataset: &Dataset,
        rows: Range<u64>,
        progress: &Progress,
    ) -> Result<()> {
        load::load(&self.tablet, dataset, rows, 0..dataset.columns, progress)
    }

    /// Merges everything into one sorted run, as nobody's compactions leave it and some peers read it best. What is in
    /// memory has been flushed by [`Store::settle`].
    pub fn merge(&self) -> Result<()> {
        Ok(self.engine.compact_fully()?)
    }

    /// The engine.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// The counter of a row that [`Op::Increment`](crate::Op::Increment) adds to.
    pub fn counter(&self, dataset: &Dataset, row: u64) -> Result<i64> {
        let (key, ask) = (dataset.key(row), increment::ask());
        pollster::block_on(increment::read(&self.counters, &key, &ask, ReadView::Durable))
    }

    /// Nanoseconds to ask the filters of all SSTs about every column of a row, all of it in memory: as a read
    /// does, and the slow way beside it ([`FilterComparison`](tepui_engine::sst::FilterComparison)). One
    /// pair a round.
    pub fn filter_access(&self, dataset: &Dataset, rounds: usize) -> Result<Vec<(f64, f64)>> {
        let compared = self.tablet.compare_filters()?;
        let columns: Vec<_> =
            self.columns.sorted.iter().map(|(q, _)| (FAMILY, q.to_vec())).collect();
        let rows: Vec<_> = (0..FILTER_ACCESS_ROWS.min(dataset.rows))
            .map(|i| dataset.key(i * (dataset.rows / FILTER_ACCESS_ROWS).max(1)))
            .collect();
        let time = |ask: &dyn Fn(&[u8]) -> Result<usize>| -> Result<f64> {
            let start = clock::cpu_nanos();
            for row in &rows {
                std::hint::black_box(ask(row)?);
            }
            Ok((clock::cpu_nanos() - start) as f64 / rows.len().max(1) as f64)
        };
        let with = |row: &[u8]| Ok(compared.by_directory(row, &columns)?);
        let without = |row: &[u8]| Ok(compared.by_hash(row, &columns)?);
        (0..rounds).map(|_| Ok((time(&with)?, time(&without)?))).collect()
    }

    /// Closes the engine, flushing what is in memory.
    pub fn close(self) -> Result<()> {
        Ok(self.engine.close()?)
    }

    fn check_serving(&self) -> Result<()> {
        match self.engine.health() {
            Health::Serving => Ok(()),
            Health::ReadOnly(reason) | Health::Held { reason, .. } => Err(Error::failed(reason)),
        }
    }
}

impl Drop for Tepui {
    fn drop(&mut self) {
        // Closing twice does nothing; who wants to know of a failure calls it first.
        let _ = self.engine.close();
    }
}

impl Store for Tepui {
    fn name(&self) -> &str {
        &self.name
    }

    fn load(&self, dataset: &Dataset, progress: &Progress) -> Result<()> {
        self.load_rows(dataset, 0..dataset.rows, progress)
    }

    fn settle(&self, progress: &Progress) -> Result<()> {
        pollster::block_on(self.tablet.flush())?;
        pollster::block_on(self.counters.flush())?;
        self.rest(progress)
    }

    fn rest(&self, progress: &Progress) -> Result<()> {
        let bar = progress.bar("flush and compact", "looks", None);
        let mut settled = 0;
        while settled < SETTLE_LOOKS {
            progress.check()?;
            self.check_serving()?;
            settled = if self.engine.is_settled() { settled + 1 } else { 0 };
            bar.add(1);
            clock::pause(SETTLE_LOOK);
        }
        Ok(())
    }

    fn run(&self, run: &Run<'_>) -> Result<()> {
        drive::run(self, run)
    }

    fn figures(&self) -> Vec<Figure> {
        let cache = self.engine.cache().stats();
        let memory = self.engine.index_memory();
        let sst = self.engine.cache().sst_metrics();
        let engine = self.engine.metrics();
        let tablet = self.tablet.stats();
        let log = self.engine.log_figures();
        let (batches, reads, bytes) = self.io.counts();
        let mut figures = vec![
            Figure::counter("io_batches", batches),
            Figure::counter("io_reads", reads),
            Figure::counter("io_bytes", bytes),
            Figure::counter("blocks_read", sst.blocks_read.get()),
            Figure::counter("cache_hits", cache.hits),
            Figure::counter("cache_misses", cache.misses),
            Figure::counter("data_hits", cache.data.hits),
            Figure::counter("data_misses", cache.data.misses),
            Figure::counter("index_hits", cache.index.hits),
            Figure::counter("index_misses", cache.index.misses),
            Figure::counter("filter_hits", cache.filter.hits),
            Figure::counter("filter_misses", cache.filter.misses),
            Figure::counter("filter_lookups", cache.filters.lookups),
            Figure::gauge("index_filter_pinned_bytes", memory.fixed_bytes() as f64),
            Figure::gauge(
                "index_filter_bytes",
                (memory.resident_bytes + memory.partition_bytes_all) as f64,
            ),
            Figure::gauge("cache_bytes", cache.bytes as f64),
            Figure::gauge("cache_capacity_bytes", cache.capacity_bytes as f64),
            Figure::gauge("cache_blocks", cache.blocks as f64),
            Figure::counter("filter_probes", sst.filter_probes.get()),
            Figure::counter("filter_negatives", sst.filter_negatives.get()),
            Figure::counter("filter_false_positives", sst.filter_false_positives.get()),
            Figure::counter("log_groups", log.groups),
            Figure::counter("log_batches", log.batches),
            Figure::counter("log_mutations", log.mutations),
            Figure::counter("log_bytes", log.bytes),
            Figure::counter("log_syncs", log.syncs),
            Figure::counter("log_sync_micros", log.sync_micros),
            Figure::gauge("sublevels", tablet.sublevels as f64),
            Figure::gauge("compaction_debt_bytes", tablet.compaction_debt_bytes as f64),
            Figure::counter("flush_bytes", engine.flush_bytes.load(Ordering::Relaxed)),
            Figure::counter(
                "compaction_read_bytes",
                engine.compaction_read_bytes.load(Ordering::Relaxed),
            ),
            Figure::counter(
                "compaction_write_bytes",
                engine.compaction_write_bytes.load(Ordering::Relaxed),
            ),
            Figure::counter("value_write_bytes", engine.value_write_bytes.load(Ordering::Relaxed)),
            Figure::counter("value_moved_bytes", engine.value_moved_bytes.load(Ordering::Relaxed)),
            Figure::gauge("value_file_bytes", tablet.value_file_bytes as f64),
            Figure::gauge("value_garbage_bytes", tablet.value_garbage_bytes as f64),
            Figure::gauge("sst_bytes", tablet.sst_bytes as f64),
            Figure::gauge("sst_count", tablet.sst_count as f64),
            Figure::gauge("memtable_bytes", tablet.memtable_bytes as f64),
            Figure::gauge("records", tablet.records as f64),
        ];
        if let Some(files) = self.engine.io_figures() {
            figures.extend([
                Figure::counter("file_reads", files.reads),
                Figure::counter("file_read_bytes", files.read_bytes),
                Figure::counter("file_page_cache_reads", files.cached_reads),
                Figure::counter("file_read_retries", files.retries),
                Figure::counter("ring_reads", files.ring_reads),
                Figure::counter("ring_enters", files.ring_enters),
            ]);
        }
        figures.extend(
            tablet
                .level_files
                .iter()
                .enumerate()
                .map(|(level, files)| Figure::gauge(format!("level_{level}_files"), *files as f64)),
        );
        figures
    }
}
