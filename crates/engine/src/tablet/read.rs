//! Reading from a tablet: which memtables and SSTs take part, and at which sequence. `point.rs` reads
//! single rows.

use std::sync::Arc;

use arc_swap::Guard;
use bytes::Bytes;

use crate::aside::Aside;
use crate::cell::{RowRange, Seq};
use crate::compaction::split::Steps;
use crate::cursor::Cursor;
use crate::error::Result;
use crate::limits;
use crate::manifest::Excised;
use crate::read::{LevelCursor, LevelOptions, Projection, ReadSpec, RowStream};
use crate::sst::{CursorOptions, PAGE_BYTES, SstReader};
use crate::values::ValueSource;

use super::Tablet;
use super::view::View;

/// What a point read sees.
#[derive(Debug, Clone, Copy)]
pub enum ReadView<'a> {
    /// What is durable: every acknowledged write, nothing else.
    Durable,
    /// Also writes that wait for their sync: for read-modify-writes, which hold the row's lock. Their
    /// answer must wait for [`Tablet::apply_locked`] or [`Tablet::wait_durable`].
    Pending,
    /// What was durable when the snapshot was taken.
    At(&'a Snapshot),
}

/// What a scan asks for.
#[derive(Debug, Clone)]
pub struct ScanOptions {
    /// Rows; cut to the tablet's own range.
    pub range: RowRange,
    /// Columns and versions.
    pub projection: Projection,
    /// From the last row to the first.
    pub reverse: bool,
    /// Rows that the caller will take at most, where it knows: it is read ahead for no more.
    pub rows_hint: Option<usize>,
    /// What to see; `None` for what is durable when the scan starts.
    pub snapshot: Option<Snapshot>,
}

/// A moment of a tablet. It keeps the memtables and SSTs of that moment alive, so compaction need not
/// know of it; hold it no longer than the read needs.
#[derive(Debug, Clone)]
pub struct Snapshot {
    pub(super) view: Arc<View>,
    pub(super) seq: Seq,
}

impl Snapshot {
    /// The last sequence that it sees.
    pub fn seq(&self) -> Seq {
        self.seq
    }
}

impl Tablet {
    /// Fixes what is durable now for any number of reads.
    pub fn snapshot(&self) -> Snapshot {
        let (view, seq) = self.durable_view();
        Snapshot { view: Guard::into_inner(view), seq }
    }

    /// The view of now and the sequence up to which it shows what is durable.
    pub(super) fn durable_view(&self) -> (Guard<Arc<View>>, Seq) {
        // A view that was replaced in between may lack rows up to the sequence, or still show dropped
        // rows beside what was written to them since.
        self.view.load_with(|| self.core.pipeline.visible())
    }

    /// Reads rows in order.
    pub fn scan(&self, mut options: ScanOptions) -> Result<RowStream> {
        let snapshot = options.snapshot.take().unwrap_or_else(|| self.snapshot());
        options.range = options.range.intersect(&self.range);
        let range = &options.range;
        let rows_hint = options.rows_hint;
        let cursors =
            if range.is_empty() { Vec::new() } else { cursors(&snapshot.view, range, rows_hint)? };
        self.stream(&snapshot, options, (cursors, limits::ROW_READ_BYTES_MAX))
    }

    /// The rows that `cursors` have, each of so many bytes at most.
    pub(super) fn stream(
        &self,
        snapshot: &Snapshot,
        options: ScanOptions,
        (cursors, row_bytes_max): (Vec<Box<dyn Cursor>>, u64),
    ) -> Result<RowStream> {
        let ScanOptions { range, projection, reverse, rows_hint, snapshot: _ } = options;
        let single = range.is_row();
        self.check_kept()?;
        let schema = self.require_schema()?;
        let view = &snapshot.view;
        let excised = view
            .excised()
            .iter()
            .filter(|e| e.range.overlaps(&range))
            // Also one that is not visible yet hides all that the snapshot sees: the SSTs of the view are
            // cut already, and of a row that is half in them and half in memory neither half may be seen.
            .map(|e| Excised { range: e.range.clone(), seq: e.seq.min(snapshot.seq) })
            .collect();
        let spec = ReadSpec {
            snapshot: snapshot.seq,
            schema,
            excised,
            range,
            projection,
            reverse,
            rows_hint,
            row_bytes_max,
            wide_tombstones: view.may_have_wide_tombstones(),
        };
        let io = Arc::clone(&self.core.env.io);
        // A point read comes here too, and what it reads is worth keeping.
        let values = self.value_source(view, single);
        Ok(RowStream::new(cursors, spec, io, Box::new(Arc::clone(view))).with_values(values))
    }

    /// Where values elsewhere are had from; `fill`: what is read enters the cache.
    pub(super) fn value_source(&self, view: &View, fill: bool) -> ValueSource {
        let files = Arc::clone(&view.values.files);
        let cache = Some(Arc::clone(self.core.store.cache()));
        ValueSource { files, cache, fill, tablet: Some(self.id), aside: Aside::default() }
    }

    /// Rows that divide the tablet's files into parts of roughly `part_bytes`, each with the bytes of
    /// the tablet up to it, without the tablet's end. Taken from the resident part of the indexes of larger
    /// files, and from the whole index of small ones; of as much of it as a bounded number of steps needs.
    pub fn sample_rows(&self, part_bytes: u64) -> Result<Vec<(Bytes, u64)>> {
        let view = self.view.load_full();
        self.check_kept()?;
        let elsewhere = |reader: &Arc<SstReader>| reader.value_file_bytes();
        let mut total = view.memtable_bytes();
        for file in view.version.ssts() {
            let reader = view.file(file.id)?.reader();
            total += file.bytes.saturating_add(reader.map_or(0, elsewhere));
        }
        let mut steps = Steps::new(total);
        for file in view.version.ssts() {
            // Whoever reads the rows of one that cannot be opened is told.
            if let Ok(reader) = view.file(file.id)?.reader() {
                steps.add_file(file, reader, elsewhere(reader))?;
            }
        }
        let mut samples = Vec::new();
        let mut bytes = 0;
        let mut next = part_bytes;
        for (row, step) in steps.sorted() {
            bytes += step;
            let inside = row.as_slice() > self.range.start.as_ref() && self.range.contains(&row);
            if bytes >= next && bytes < total && inside {
                samples.push((Bytes::from(row), bytes));
                next = bytes + part_bytes;
            }
        }
        Ok(samples)
    }
}

/// Cursors over all that can hold rows of `range`, of which the caller wants `rows_hint` where it knows.
fn cursors(
    view: &View,
    range: &RowRange,
    rows_hint: Option<usize>,
) -> Result<Vec<Box<dyn Cursor>>> {
    // Of the rows that are wanted, a level has its share, and they take what its rows take on average.
    let rows_all: u64 = view.levels.iter().map(|level| level.rows).sum();
    let expected_bytes = |level_bytes: u64| {
        let wanted = rows_hint.unwrap_or(0) as u128 * u128::from(level_bytes);
        let expected = wanted.checked_div(u128::from(rows_all)).unwrap_or(0);
        // A page more: the first row may be the last of its block, and so may the last row be the first.
        let slack = if expected > 0 { PAGE_BYTES as u64 } else { 0 };
        u64::try_from(expected).unwrap_or(u64::MAX).saturating_add(slack)
    };
    let mut cursors: Vec<Box<dyn Cursor>> = Vec::new();
    for memtable in view.memtables().filter(|m| !m.is_empty()) {
        cursors.push(Box::new(memtable.cursor(range.clone())));
    }
    for level in view.levels.iter() {
        let files = level.overlapping(range);
        let options = CursorOptions {
            bounds: range.clone(),
            fill_cache: true,
            expected_bytes: expected_bytes(level.bytes),
            wants_all: rows_hint.is_none() && !range.is_row(),
            beside: view.levels.iter().count(),
        };
        if !files.is_empty() {
            let options = LevelOptions { files, cursor: options };
            cursors.push(Box::new(LevelCursor::new(Arc::clone(level.files()), options)));
        }
    }
    Ok(cursors)
}
