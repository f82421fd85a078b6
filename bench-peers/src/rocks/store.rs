//! Opening, loading and driving a RocksDB database.
//!
//! A [`Rocks`] is a database and a way to use it ([`How`]); [`Rocks::used`] gives the same database with another
//! way, so that a bar compares with whichever serves RocksDB best.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rocksdb::{BottommostLevelCompaction, Cache, CompactOptions, DB, WriteBatch, WriteOptions};
use tepui_bench::clock;
use tepui_bench::cores::Cores;
use tepui_bench::{Dataset, Error, Figure, Progress, Result, Run, Store};

use super::reader::Reader;
use super::settings::{Layout, Settings};
use crate::loading::in_batches;

/// Rows of a write batch while loading: large enough that its cost is the memtable's.
const LOAD_BATCH_ROWS: u64 = 500;
/// Cache while loading; nothing is read.
const LOAD_CACHE_BYTES: usize = 32 << 20;
/// Between two looks at whether background work is done.
const SETTLE_LOOK: Duration = Duration::from_millis(50);
/// Looks in a row that must find it done.
const SETTLE_LOOKS: u32 = 3;
/// What is under way or due in the background, by RocksDB's names.
const BUSY: [&str; 5] = [
    "rocksdb.mem-table-flush-pending",
    "rocksdb.num-running-flushes",
    "rocksdb.compaction-pending",
    "rocksdb.num-running-compactions",
    "rocksdb.num-immutable-mem-table",
];
/// What RocksDB writes to its log of events when a flush or a compaction has made a file.
const FILE_MADE: &str = "\"event\": \"table_file_creation\"";
/// The field of such an event with the bytes of the file.
const FILE_BYTES: &str = "\"file_size\": ";
/// The only column family.
const FAMILY: &str = "default";

/// How several reads are under way at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// A thread for each read, which blocks.
    Threads,
    /// The workload's threads, each with a MultiGet of its share: sent to the device as one batch where RocksDB was
    /// built with io_uring and the keys share a file, else read one after the other.
    MultiGet,
    /// The same with `async_io`.
    MultiGetAsync,
}

/// How far a scan reads ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanReadahead {
    /// RocksDB's own: from the third block of a file on, doubling from 8 KiB.
    Auto,
    /// So many bytes from the first block on.
    Bytes(usize),
    /// RocksDB's own, and asynchronous.
    Async,
}

/// How the columns of a row are read, each of which is a key of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Columns {
    /// By one MultiGet of their keys.
    MultiGet,
    /// By an iterator from the first of them on, which finds its place once.
    Iterator,
}

/// How a database is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct How {
    /// Reads under way at once.
    pub waiting: Waiting,
    /// How a row of several columns is read.
    pub columns: Columns,
    /// Read-ahead of scans.
    pub readahead: ScanReadahead,
    /// Writes are synced before they are answered.
    pub sync: bool,
}

impl Default for How {
    fn default() -> Self {
        Self {
            waiting: Waiting::Threads,
            columns: Columns::MultiGet,
            readahead: ScanReadahead::Auto,
            sync: false,
        }
    }
}

pub(super) struct Shared {
    pub(super) db: DB,
    pub(super) layout: Layout,
    cache: Cache,
    path: PathBuf,
    /// Written while it is measured: a load then has a log, and compactions do not wait for its end.
    writing: bool,
}

/// A RocksDB database and a way to use it.
pub struct Rocks {
    name: String,
    shared: Arc<Shared>,
    how: How,
}

pub(super) fn failed(what: &str) -> impl Fn(rocksdb::Error) -> Error {
    move |e| Error::failed(format!("RocksDB, {what}: {e}"))
}

impl Rocks {
    /// Opens the database in `path` for reading and writing, with a block cache of `cache_bytes`.
    pub fn open(path: &Path, settings: &Settings, cache_bytes: usize) -> Result<Self> {
        Self::open_as(path, settings, cache_bytes, false)
    }

    /// Opens a database in `path` to load it: compactions wait for [`Store::settle`].
    pub fn create(path: &Path, settings: &Settings) -> Result<Self> {
        Self::open_as(path, settings, LOAD_CACHE_BYTES, true)
    }

    fn open_as(
        path: &Path,
        settings: &Settings,
        cache_bytes: usize,
        loading: bool,
    ) -> Result<Self> {
        let cache = settings.cache(cache_bytes)?;
        let options = settings.options(&cache, loading)?;
        let db = DB::open_cf_with_opts(&options, path, [(FAMILY, options.clone())])
            .map_err(failed("opening"))?;
        let shared = Shared {
            db,
            layout: settings.layout,
            cache,
            path: path.to_owned(),
            writing: settings.writing.is_some(),
        };
        let name = match (settings.partitioned, settings.with_file) {
            (true, _) => "RocksDB",
            (false, false) => "RocksDB unpartitioned",
            (false, true) => "RocksDB unpartitioned, index and filters with each file",
        };
        Ok(Self { name: name.to_owned(), shared: Arc::new(shared), how: How::default() })
    }

    /// The same database, used in another way.
    pub fn used(&self, how: How) -> Self {
        let waiting = match how.waiting {
            Waiting::Threads => "",
            Waiting::MultiGet => " MultiGet",
            Waiting::MultiGetAsync => " MultiGet async_io",
        };
        let columns = match how.columns {
            Columns::MultiGet => "",
            Columns::Iterator => " iterator",
        };
        let readahead = match how.readahead {
            ScanReadahead::Auto => String::new(),
            ScanReadahead::Bytes(bytes) => format!(" readahead {bytes}"),
            ScanReadahead::Async => " async readahead".to_owned(),
        };
        let base = self.name.split(" with").next().unwrap_or("RocksDB");
        let how_used = format!("{waiting}{columns}{readahead}");
        let with = if how_used.is_empty() { "" } else { " with" };
        let name = format!("{base}{with}{how_used}");
        Self { name, shared: Arc::clone(&self.shared), how }
    }

    /// The same under another name.
    pub fn named(&self, name: &str) -> Self {
        Self { name: name.to_owned(), shared: Arc::clone(&self.shared), how: self.how }
    }

    /// The version of the library, asked of a database in `dir` that lives for a moment.
    pub fn version_here(dir: &Path) -> Result<String> {
        let path = dir.join("rocksdb-version");
        let version = Self::create(&path, &Settings::best())?.version();
        std::fs::remove_dir_all(&path)
            .map_err(|e| Error::failed(format!("{}: {e}", path.display())))?;
        Ok(version)
    }

    /// Its version, from its own log: the library that runs, not the headers that were compiled.
    pub fn version(&self) -> String {
        std::fs::read_to_string(self.shared.path.join("LOG"))
            .ok()
            .and_then(|log| {
                let line = log.lines().find_map(|l| l.split_once("RocksDB version: "))?.1;
                Some(line.trim().to_owned())
            })
            .unwrap_or_else(|| "of unknown version".to_owned())
    }

    /// Writes what is in memory to files.
    pub fn flush(&self) -> Result<()> {
        self.shared.db.flush().map_err(failed("flushing"))
    }

    /// Closes it; bytes of all files that flushes and compactions made, by its own log, which is complete then. Its
    /// statistics would count them too, and every write would pay for that.
    pub fn close_written_bytes(self) -> Result<f64> {
        let path = self.shared.path.join("LOG");
        if Arc::into_inner(self.shared).is_none() {
            return Err(Error::failed("RocksDB is used elsewhere and cannot be closed"));
        }
        let log = std::fs::read_to_string(&path)
            .map_err(|e| Error::failed(format!("{}: {e}", path.display())))?;
        Ok(files_made_bytes(&log))
    }

    fn property(&self, name: &str) -> Result<f64> {
        let value = self.shared.db.property_int_value(name).map_err(failed("telling of itself"))?;
        let value = value.ok_or_else(|| Error::failed(format!("RocksDB does not tell {name}")))?;
        Ok(value as f64)
    }

    /// Index and filter bytes of all files, from their properties.
    fn table_bytes(&self) -> (f64, f64) {
        let text = self
            .shared
            .db
            .property_value("rocksdb.aggregated-table-properties")
            .ok()
            .flatten()
            .unwrap_or_default();
        (number_after(&text, "index block size"), number_after(&text, "filter block size"))
    }

    /// Rows in one batch.
    fn write(
        &self,
        dataset: &Dataset,
        rows: std::ops::Range<u64>,
        options: &WriteOptions,
    ) -> Result<()> {
        let mut batch = WriteBatch::default();
        let mut key = Vec::with_capacity(dataset.key_bytes + 16);
        for row in rows {
            put(&mut batch, dataset, self.shared.layout, row, &mut key);
        }
        self.shared.db.write_opt(batch, options).map_err(failed("writing"))
    }
}

/// Bytes of the files that a log of events says were made.
fn files_made_bytes(log: &str) -> f64 {
    let made = log.lines().filter(|line| line.contains(FILE_MADE));
    let bytes = made.filter_map(|line| {
        let (_, rest) = line.split_once(FILE_BYTES)?;
        rest.split(|c: char| !c.is_ascii_digit()).next()?.parse::<f64>().ok()
    });
    bytes.sum()
}

/// The number after `name` and `=`, with or without text such as `(estimated)` between them.
fn number_after(text: &str, name: &str) -> f64 {
    text.split(';')
        .filter_map(|part| part.split_once('='))
        .find(|(key, _)| key.trim().starts_with(name))
        .and_then(|(_, value)| value.trim().parse().ok())
        .unwrap_or(0.0)
}

/// The key of a column: that of the row where it has only one.
pub(super) fn push_column(key: &mut Vec<u8>, column: u32) {
    key.extend_from_slice(&Dataset::qualifier(column));
}

fn put(batch: &mut WriteBatch, dataset: &Dataset, layout: Layout, row: u64, key: &mut Vec<u8>) {
    dataset.key_into(row, key);
    if dataset.columns == 1 {
        batch.put(&key, dataset.value(row, 0));
        return;
    }
    match layout {
        Layout::KeyPerColumn => {
            let row_bytes = key.len();
            for column in 0..dataset.columns {
                key.truncate(row_bytes);
                push_column(key, column);
                batch.put(&key, dataset.value(row, column));
            }
        }
        Layout::Packed => {
            let value: Vec<u8> =
                (0..dataset.columns).flat_map(|column| dataset.value(row, column)).collect();
            batch.put(&key, value);
        }
    }
}

/// Writes without a log: the load is settled to files before it counts.
fn without_log() -> WriteOptions {
    let mut options = WriteOptions::default();
    options.disable_wal(true);
    options
}

impl Store for Rocks {
    fn name(&self) -> &str {
        &self.name
    }

    fn load(&self, dataset: &Dataset, progress: &Progress) -> Result<()> {
        in_batches(dataset, "loading RocksDB", LOAD_BATCH_ROWS, progress, |rows| {
            let options = if self.shared.writing { WriteOptions::default() } else { without_log() };
            self.write(dataset, rows, &options)
        })
    }

    fn settle(&self, progress: &Progress) -> Result<()> {
        let _bar = progress.bar("compacting RocksDB", "", None);
        let db = &self.shared.db;
        self.flush()?;
        // Everything into one sorted run, the shape in which it reads best.
        let mut options = CompactOptions::default();
        options.set_bottommost_level_compaction(BottommostLevelCompaction::ForceOptimized);
        db.compact_range_opt(None::<&[u8]>, None::<&[u8]>, &options);
        progress.check()
    }

    fn rest(&self, progress: &Progress) -> Result<()> {
        let mut settled = 0;
        while settled < SETTLE_LOOKS {
            progress.check()?;
            let due: f64 = BUSY.iter().map(|name| self.property(name)).sum::<Result<_>>()?;
            settled = if due > 0.0 { 0 } else { settled + 1 };
            clock::pause(SETTLE_LOOK);
        }
        Ok(())
    }

    fn run(&self, run: &Run<'_>) -> Result<()> {
        let workload = run.workload();
        let threads = match self.how.waiting {
            Waiting::Threads => workload.in_flight,
            Waiting::MultiGet | Waiting::MultiGetAsync => workload.threads,
        };
        let batch = workload.in_flight.div_ceil(threads.max(1));
        run.on_threads(threads, |index, mut lane| {
            let _core = Cores::of_worker(index, workload)?;
            let mut reader = Reader::new(&self.shared, self.how, *lane.dataset())?;
            if batch > 1 {
                return reader.run_batches(&mut lane, batch);
            }
            while let Some(ticket) = lane.begin() {
                let found = reader.carry_out(&ticket)?;
                lane.end(&ticket, found)?;
            }
            Ok(())
        })
    }

    fn figures(&self) -> Vec<Figure> {
        let (index, filter) = self.table_bytes();
        let sst_bytes = self.property("rocksdb.total-sst-files-size");
        vec![
            Figure::gauge("cache_bytes", self.shared.cache.get_usage() as f64),
            Figure::gauge("cache_pinned_bytes", self.shared.cache.get_pinned_usage() as f64),
            Figure::gauge("sst_bytes", sst_bytes.unwrap_or(f64::NAN)),
            Figure::gauge("index_bytes", index),
            Figure::gauge("filter_bytes", filter),
        ]
    }
}

impl Shared {
    /// One row again, with the log that a server would keep, synced or not.
    pub(super) fn put(
        &self,
        dataset: &Dataset,
        row: u64,
        key: &mut Vec<u8>,
        options: &WriteOptions,
    ) -> Result<()> {
        let mut batch = WriteBatch::default();
        put(&mut batch, dataset, self.layout, row, key);
        self.db.write_opt(batch, options).map_err(failed("writing"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_from_the_aggregated_properties() {
        let text = "# data blocks=3; index block size (user-key? 1, delta-value? 1)=450; filter block size=77; x=1";
        assert!((number_after(text, "index block size") - 450.0).abs() < 0.1);
        assert!((number_after(text, "filter block size") - 77.0).abs() < 0.1);
        assert!(number_after(text, "absent").abs() < 0.1);
    }
}
