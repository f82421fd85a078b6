//! Loading rows: a few threads, each with many writes under way, so that the log writes large groups.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tepui_engine::cell::{Mutation, RowBatch};
use tepui_engine::tablet::Tablet;

use super::FAMILY;
use crate::dataset::{Dataset, TIMESTAMP_MICROS};
use crate::error::{Error, Result};
use crate::progress::Progress;

/// Threads that write. More than two gain little: inserts into one memtable take turns.
const WRITERS: usize = 2;
/// Rows that are written together.
const BATCH_ROWS: u64 = 64;
/// Such batches of a thread under way at once; each waits for its group of the log.
const BATCHES_IN_FLIGHT: usize = 8;
/// Rows that a thread takes at a time.
const CHUNK_ROWS: u64 = 4096;

/// Columns `first..last` of a row, as a batch.
pub(super) fn batch(dataset: &Dataset, row: u64, columns: Range<u32>) -> RowBatch {
    let mutations = columns
        .map(|column| Mutation::Put {
            family: FAMILY,
            qualifier: Dataset::qualifier(column).into(),
            timestamp: TIMESTAMP_MICROS,
            value: dataset.value(row, column).into(),
        })
        .collect();
    RowBatch { row: Bytes::from(dataset.key(row)), mutations }
}

/// Writes some columns of some rows.
pub(super) fn load(
    tablet: &Arc<Tablet>,
    dataset: &Dataset,
    rows: Range<u64>,
    columns: Range<u32>,
    progress: &Progress,
) -> Result<()> {
    let bar = progress.bar("load", "rows", Some(rows.end.saturating_sub(rows.start)));
    let next = AtomicU64::new(rows.start);
    let failed = AtomicBool::new(false);
    let write = || -> Result<()> {
        pollster::block_on(async {
            let mut under_way = FuturesUnordered::new();
            loop {
                let from = next.fetch_add(CHUNK_ROWS, Ordering::Relaxed);
                if from >= rows.end || failed.load(Ordering::Relaxed) {
                    break;
                }
                progress.check()?;
                let to = from.saturating_add(CHUNK_ROWS).min(rows.end);
                for first in (from..to).step_by(BATCH_ROWS as usize) {
                    if under_way.len() >= BATCHES_IN_FLIGHT
                        && let Some(done) = under_way.next().await
                    {
                        done?;
                    }
                    let rows = first..to.min(first + BATCH_ROWS);
                    let rows = rows.map(|row| batch(dataset, row, columns.clone())).collect();
                    under_way.push(tablet.apply_rows_when_room(rows));
                }
                bar.add(to - from);
            }
            while let Some(done) = under_way.next().await {
                done?;
            }
            Ok(())
        })
    };
    let write = || write().inspect_err(|_| failed.store(true, Ordering::Relaxed));
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..WRITERS).map(|_| scope.spawn(write)).collect();
        let first = write();
        others.into_iter().fold(first, |result, thread| {
            let ended = thread.join().unwrap_or_else(|_| Err(Error::failed("a writer panicked")));
            result.and(ended)
        })
    })
}
