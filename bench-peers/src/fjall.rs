//! fjall as a [`tepui_bench::Store`]: an engine in safe Rust, for orientation. It has no direct I/O: what its own
//! cache does not hold comes from the page cache, so its uncached figures are those of memory, and no bar uses them.

use std::path::Path;

use fjall::config::{
    BlockSizePolicy, BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry,
    HashRatioPolicy, PartitioningPolicy, PinningPolicy,
};
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions};
use tepui_bench::check::ScanCheck;
use tepui_bench::{Dataset, Depth, Error, Figure, Found, Op, Progress, Result, Run, Store, Ticket};

use crate::loading::in_batches;

/// Bytes of a data block, as in all stores here.
const BLOCK_BYTES: u32 = 4096;
/// Bits of its Bloom filter for a key, as RocksDB's; on every level.
const FILTER_BITS: f32 = 10.0;
/// Buckets of the hash index in a block for each key: what its documentation recommends for point reads.
const HASH_RATIO: f32 = 1.33;
/// Threads that flush and compact.
const WORKERS: usize = 2;
/// Rows of a batch while loading.
const LOAD_BATCH_ROWS: u64 = 100;
/// The only keyspace.
const KEYSPACE: &str = "rows";

/// A fjall database.
pub struct Fjall {
    database: Database,
    rows: Keyspace,
}

fn failed(what: &str) -> impl Fn(fjall::Error) -> Error {
    move |e| Error::failed(format!("fjall, {what}: {e}"))
}

fn options() -> KeyspaceCreateOptions {
    KeyspaceCreateOptions::default()
        .data_block_size_policy(BlockSizePolicy::all(BLOCK_BYTES))
        .data_block_hash_ratio_policy(HashRatioPolicy::all(HASH_RATIO))
        .data_block_compression_policy(CompressionPolicy::all(CompressionType::None))
        .filter_policy(FilterPolicy::all(FilterPolicyEntry::Bloom(
            BloomConstructionPolicy::BitsPerKey(FILTER_BITS),
        )))
        // Whole and pinned on the first two levels, partitioned below, as in the others.
        .index_block_pinning_policy(PinningPolicy::new([true, true, false]))
        .filter_block_pinning_policy(PinningPolicy::new([true, true, false]))
        .index_block_partitioning_policy(PartitioningPolicy::new([false, false, true]))
        .filter_block_partitioning_policy(PartitioningPolicy::new([false, false, true]))
        .manual_journal_persist(true)
}

impl Fjall {
    /// Opens or makes the database in `path`, with a block cache of `cache_bytes`.
    pub fn open(path: &Path, cache_bytes: u64) -> Result<Self> {
        let database = Database::builder(path)
            .cache_size(cache_bytes)
            .worker_threads(WORKERS)
            .open()
            .map_err(failed("opening"))?;
        let rows = database.keyspace(KEYSPACE, options).map_err(failed("opening"))?;
        Ok(Self { database, rows })
    }

    /// What it is set to, for the report.
    pub fn settings() -> String {
        format!(
            "{BLOCK_BYTES}-byte blocks, partitioned index and Bloom filter of {FILTER_BITS} bits, hash index in \
             blocks, no compression, buffered I/O"
        )
    }

    fn put(&self, dataset: &Dataset, rows: std::ops::Range<u64>) -> Result<()> {
        let mut batch = self.database.batch();
        let mut key = Vec::with_capacity(dataset.key_bytes + 16);
        for row in rows {
            for column in 0..dataset.columns {
                column_key(dataset, row, column, &mut key);
                batch.insert(&self.rows, key.as_slice(), dataset.value(row, column));
            }
        }
        batch.commit().map_err(failed("writing"))
    }

    fn columns(
        &self,
        dataset: &Dataset,
        row: u64,
        columns: std::ops::Range<u32>,
        depth: Depth,
        key: &mut Vec<u8>,
    ) -> Result<Found> {
        let mut found = Found::default();
        for column in columns {
            column_key(dataset, row, column, key);
            let Some(value) = self.rows.get(&key).map_err(failed("reading"))? else { continue };
            dataset.check(row, column, &value, depth)?;
            found = Found { rows: 1, value_bytes: found.value_bytes + value.len() as u64 };
        }
        Ok(found)
    }

    fn scan(
        &self,
        dataset: &Dataset,
        (row, rows, reverse): (u64, u32, bool),
        depth: Depth,
        start: &[u8],
    ) -> Result<Found> {
        let columns = u64::from(dataset.columns);
        let keys = (u64::from(rows) * columns) as usize;
        let mut check = ScanCheck::new(dataset, row, reverse, depth);
        let mut shown = None;
        let mut found = (0_u64, 0_u64);
        let mut show = |item: fjall::Guard| -> Result<()> {
            let (key, value) = item.into_inner().map_err(failed("scanning"))?;
            let (row_key, qualifier) = key
                .split_at_checked(dataset.key_bytes)
                .ok_or_else(|| Error::mismatch("a scan shows a key that was not written"))?;
            if found.0.is_multiple_of(columns) {
                shown = check.row(row_key)?;
            }
            if let Some(row) = shown {
                let column = (0..dataset.columns)
                    .find(|c| columns == 1 || Dataset::qualifier(*c) == qualifier)
                    .ok_or_else(|| Error::mismatch("a scan shows an unknown column"))?;
                dataset.check(row, column, &value, depth)?;
            } else if value.len() != dataset.value_bytes {
                return Err(Error::mismatch("a scan shows a value of another length"));
            }
            found = (found.0 + 1, found.1 + value.len() as u64);
            Ok(())
        };
        if reverse {
            // Behind the last column of the row.
            let mut end = start.to_vec();
            end.push(u8::MAX);
            self.rows.range(..=end).rev().take(keys).try_for_each(&mut show)?;
        } else {
            self.rows.range(start..).take(keys).try_for_each(&mut show)?;
        }
        Ok(Found { rows: found.0 / columns, value_bytes: found.1 })
    }

    fn whole_row(
        &self,
        dataset: &Dataset,
        row: u64,
        depth: Depth,
        key: &mut Vec<u8>,
    ) -> Result<Found> {
        if dataset.columns == 1 {
            return self.columns(dataset, row, 0..1, depth, key);
        }
        dataset.key_into(row, key);
        let mut found = Found::default();
        for (column, item) in (0..).zip(self.rows.prefix(&key)) {
            let value = item.value().map_err(failed("reading"))?;
            dataset.check(row, column, &value, depth)?;
            found = Found { rows: 1, value_bytes: found.value_bytes + value.len() as u64 };
        }
        Ok(found)
    }

    fn carry_out(&self, dataset: &Dataset, ticket: &Ticket, key: &mut Vec<u8>) -> Result<Found> {
        let (all, depth) = (0..dataset.columns, ticket.depth);
        match &ticket.op {
            Op::Get { row } | Op::GetAbsent { row } => self.columns(dataset, *row, all, depth, key),
            Op::GetFamily { row } | Op::GetRow { row } => self.whole_row(dataset, *row, depth, key),
            Op::GetColumns { row, first, count } => {
                self.columns(dataset, *row, *first..first + count, depth, key)
            }
            Op::MultiGet { rows } => {
                let mut found = Found::default();
                for row in rows {
                    let one = self.columns(dataset, *row, all.clone(), depth, key)?;
                    found.rows += one.rows;
                    found.value_bytes += one.value_bytes;
                }
                Ok(found)
            }
            Op::Scan { row, rows, reverse } => {
                dataset.key_into(*row, key);
                self.scan(dataset, (*row, *rows, *reverse), depth, key)
            }
            Op::Put { row } => {
                self.put(dataset, *row..row + 1)?;
                Ok(Found::default())
            }
            op => Err(op.unsupported("fjall")),
        }
    }
}

/// A key for each column, as in RocksDB.
fn column_key(dataset: &Dataset, row: u64, column: u32, key: &mut Vec<u8>) {
    dataset.key_into(row, key);
    if dataset.columns > 1 {
        key.extend_from_slice(&Dataset::qualifier(column));
    }
}

impl Store for Fjall {
    fn name(&self) -> &'static str {
        "fjall"
    }

    fn load(&self, dataset: &Dataset, progress: &Progress) -> Result<()> {
        in_batches(dataset, "loading fjall", LOAD_BATCH_ROWS, progress, |rows| {
            self.put(dataset, rows)
        })
    }

    fn settle(&self, progress: &Progress) -> Result<()> {
        let _bar = progress.bar("compacting fjall", "", None);
        self.rows.rotate_memtable_and_wait().map_err(failed("flushing"))?;
        self.rows.major_compact().map_err(failed("compacting"))?;
        progress.check()
    }

    fn run(&self, run: &Run<'_>) -> Result<()> {
        run.on_threads(run.workload().in_flight, |_, mut lane| {
            let dataset = *lane.dataset();
            let mut key = Vec::with_capacity(dataset.key_bytes + 16);
            while let Some(ticket) = lane.begin() {
                let found = self.carry_out(&dataset, &ticket, &mut key)?;
                lane.end(&ticket, found)?;
            }
            Ok(())
        })
    }

    fn figures(&self) -> Vec<Figure> {
        vec![
            Figure::gauge("cache_bytes", self.database.cache_size() as f64),
            Figure::gauge("sst_bytes", self.rows.disk_space() as f64),
        ]
    }
}
