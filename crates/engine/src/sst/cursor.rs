//! Moving through an SST without doing I/O (see [`crate::cursor`] for the protocol).
//!
//! A cursor is at a place: (entry of the top index, entry of the partition, record of the block). It holds the
//! partition and the block of that place, and looks for others among the blocks it was supplied with and in
//! the cache. Where a block is missing it names it and stops; `resume` runs the operation again, which finds
//! what it had found and goes on from there. The operations are small machines whose states only go forward,
//! so a cursor that is given what it asks for always ends:
//!
//! ```text
//! seek             Seek ──────────────────► on a record
//!                   └─ nothing here ─► Walk ─► the next block's first record
//! next             in the block, or Walk
//! seek_row_before  Back ─► Back (one block earlier, at most once) ─► Row: seek to the row found, no filter
//! ```
//!
//! # Read-ahead
//!
//! A block that is missing right after the one before it is the sign of a scan. From the second such miss
//! on, the blocks behind it are asked for too: 32 KiB, then twice as much each time, to 1 MiB, never
//! past the partition at hand nor the end of the bounds. A miss anywhere else starts over. Blocks
//! that were supplied ahead are held until the cursor has passed them, so it does not matter whether the
//! cache keeps them.

use std::cmp::Ordering;
use std::sync::Arc;

use bytes::Bytes;

use super::block::{Block, BlockKind, BlockRequest};
use super::checks::Checks;
use super::data::{DataBlock, Fresh, Record};
use super::filter::Ask;
use super::footer::Handle;
use super::index::IndexBlock;
use super::probe::RowProbe;
use super::reader::SstReader;
use crate::cell::{KeyView, RowRange, encode_suffix, row_prefix};
use crate::codec::{Malformed, Parsed};
use crate::cursor::{Cursor, Entry, Step};
use crate::error::Result;

/// Bytes that the first read-ahead asks for: two blocks.
const AHEAD_BYTES_MIN: u64 = 32 << 10;

/// Bytes that a read-ahead asks for at most. It is also what a cursor holds besides its own block.
const AHEAD_BYTES_MAX: u64 = 1 << 20;

/// Blocks that a read-ahead asks for at most: 1 MiB of blocks of a page, and 4 MiB at most of such that
/// compress to less than one.
const AHEAD_BLOCKS_MAX: usize = 256;

/// How a cursor reads.
#[derive(Debug, Clone)]
pub struct CursorOptions {
    /// Records of other rows are not shown.
    pub bounds: RowRange,
    /// What a point read wants; `None` for scans. See [`RowProbe`].
    pub probe: Option<Arc<RowProbe>>,
    /// Whether loaded blocks enter the cache, and blocks found there count as used. Compactions say no.
    pub fill_cache: bool,
}

impl Default for CursorOptions {
    fn default() -> Self {
        Self { bounds: RowRange::all(), probe: None, fill_cache: true }
    }
}

/// A block that the cursor holds.
#[derive(Debug, Clone)]
struct Held {
    handle: Handle,
    block: Arc<Block>,
}

/// The operation under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pending {
    Nothing,
    /// To the first record not less than `target`, through the filter.
    Seek,
    /// The same without the filter: the row was seen.
    Row,
    /// To the first record at or after the place.
    Walk,
    /// To the last row before `target`: find the block.
    BackFind,
    /// The same, in the block at the place or the one before.
    Back,
}

/// What a filter says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Perhaps,
    No,
}

/// A cursor over one SST.
#[derive(Debug)]
pub struct SstCursor {
    reader: Arc<SstReader>,
    /// Row prefix of the bounds' start.
    start: Vec<u8>,
    /// Row prefix of the bounds' end; empty for none.
    end: Vec<u8>,
    probe: Option<Arc<RowProbe>>,
    /// Whether the probe's row is in the bounds and in the file's rows; without a probe, whether the bounds
    /// hold any row.
    possible: bool,
    verdict: Option<Verdict>,
    /// The filter said "perhaps" and no seek was finished since: it will show whether that was right.
    verdict_unproved: bool,
    fill_cache: bool,
    top_at: usize,
    part_at: usize,
    partition: Option<Held>,
    data: Option<Held>,
    record: Option<Record>,
    key: Vec<u8>,
    row_len: usize,
    column_len: usize,
    pending: Pending,
    target: Vec<u8>,
    want: Vec<BlockRequest>,
    supplied: Vec<Held>,
    ahead_bytes: u64,
}

impl SstCursor {
    pub(super) fn new(reader: Arc<SstReader>, options: CursorOptions) -> Self {
        let CursorOptions { bounds, probe, fill_cache } = options;
        let properties = reader.properties();
        let possible = match &probe {
            None => !bounds.is_empty(),
            Some(probe) => {
                bounds.contains(&probe.row)
                    && probe.row >= properties.first_row
                    && probe.row <= properties.last_row
            }
        };
        let end = if bounds.end.is_empty() { Vec::new() } else { row_prefix(&bounds.end) };
        Self {
            start: row_prefix(&bounds.start),
            end,
            probe,
            possible,
            verdict: None,
            verdict_unproved: false,
            fill_cache,
            top_at: 0,
            part_at: 0,
            partition: None,
            data: None,
            record: None,
            key: Vec::new(),
            row_len: 0,
            column_len: 0,
            pending: Pending::Nothing,
            target: Vec::new(),
            want: Vec::new(),
            supplied: Vec::new(),
            ahead_bytes: 0,
            reader,
        }
    }

    /// Starts an operation.
    fn start(&mut self, pending: Pending) -> Result<Step> {
        self.record = None;
        self.pending = pending;
        self.run()
    }

    /// Runs the operation until it is done or blocked. An error ends it, with the cursor on nothing.
    fn run(&mut self) -> Result<Step> {
        self.want.clear();
        let result = self.run_states();
        match &result {
            Ok(Step::Blocked) => {}
            Ok(Step::Ready) => {
                if self.pending == Pending::Seek || self.pending == Pending::Walk {
                    self.prove_verdict();
                }
                self.pending = Pending::Nothing;
                self.drop_passed();
            }
            Err(_) => {
                self.record = None;
                self.pending = Pending::Nothing;
                self.want.clear();
            }
        }
        result
    }

    fn run_states(&mut self) -> Result<Step> {
        loop {
            let state = self.pending;
            let done = match state {
                Pending::Nothing => true,
                Pending::Seek if self.target_is_past_end() => true,
                Pending::Seek => match self.filter_verdict()? {
                    None => return Ok(Step::Blocked),
                    Some(Verdict::No) => true,
                    Some(Verdict::Perhaps) => self.run_seek()?,
                },
                Pending::Row => self.run_seek()?,
                Pending::Walk => self.run_walk()?,
                Pending::BackFind => self.run_back_find()?,
                Pending::Back => self.run_back()?,
            };
            if done {
                return Ok(Step::Ready);
            }
            if !self.want.is_empty() {
                return Ok(Step::Blocked);
            }
        }
    }

    // The states. Each returns true when the operation is done; false when it is blocked (something is
    // wanted) or has moved to another state.

    fn run_seek(&mut self) -> Result<bool> {
        let reader = Arc::clone(&self.reader);
        self.top_at = reader.at_top(reader.top().find(&self.target, false))?;
        if self.top_at >= reader.top().len() {
            return Ok(true);
        }
        let Some(partition) = self.partition_here()? else { return Ok(false) };
        self.part_at =
            self.in_partition(partition.index().and_then(|i| i.find(&self.target, false)))?;
        if self.part_at < self.in_partition(partition.index())?.len() {
            let Some(data) = self.data_here()? else { return Ok(false) };
            let found = data.data().and_then(|d| d.seek(&self.target));
            if let Some(record) = self.in_data(found)? {
                self.land(record)?;
                return Ok(true);
            }
        }
        // The target lies between the last record of the block and the first of the next.
        self.part_at += 1;
        self.pending = Pending::Walk;
        Ok(false)
    }

    fn run_walk(&mut self) -> Result<bool> {
        loop {
            if self.top_at >= self.reader.top().len() || self.place_is_past_end()? {
                return Ok(true);
            }
            let Some(partition) = self.partition_here()? else { return Ok(false) };
            if self.part_at >= self.in_partition(partition.index())?.len() {
                self.top_at += 1;
                self.part_at = 0;
                continue;
            }
            let Some(data) = self.data_here()? else { return Ok(false) };
            let first = self.in_data(data.data().and_then(DataBlock::first))?;
            self.land(first)?;
            return Ok(true);
        }
    }

    fn run_back_find(&mut self) -> Result<bool> {
        let reader = Arc::clone(&self.reader);
        let top = reader.top();
        let Some(last) = top.len().checked_sub(1) else { return Ok(true) };
        self.top_at = if self.target.is_empty() {
            last
        } else {
            reader.at_top(top.find(&self.target, true))?.min(last)
        };
        let Some(partition) = self.partition_here()? else { return Ok(false) };
        let index = self.in_partition(partition.index())?;
        let last = index.len().saturating_sub(1);
        self.part_at = if self.target.is_empty() {
            last
        } else {
            self.in_partition(index.find(&self.target, true))?.min(last)
        };
        self.pending = Pending::Back;
        Ok(false)
    }

    fn run_back(&mut self) -> Result<bool> {
        let Some(partition) = self.partition_here()? else { return Ok(false) };
        let len = self.in_partition(partition.index())?.len();
        self.part_at = self.part_at.min(len.saturating_sub(1));
        let Some(data) = self.data_here()? else { return Ok(false) };
        let mut row = Vec::new();
        let found = data.data().and_then(|d| d.last_row_before(&self.target, &mut row));
        if self.in_data(found)? {
            if row < self.start {
                return Ok(true);
            }
            // The row may have begun in an earlier block.
            self.target = row;
            self.pending = Pending::Row;
        } else if self.part_at > 0 {
            self.part_at -= 1;
        } else if self.top_at > 0 {
            self.top_at -= 1;
            self.part_at = usize::MAX;
        } else {
            return Ok(true);
        }
        Ok(false)
    }

    fn target_is_past_end(&self) -> bool {
        !self.end.is_empty() && self.target >= self.end
    }

    /// Whether every key from the place on lies past the bounds, as far as the separator before it tells.
    fn place_is_past_end(&self) -> Result<bool> {
        if self.end.is_empty() {
            return Ok(false);
        }
        let before = if let Some(at) = self.part_at.checked_sub(1) {
            let Some(partition) = &self.partition else { return Ok(false) };
            if self.reader.at_top(self.reader.top_entry(self.top_at))?.handle != partition.handle {
                return Ok(false);
            }
            let index = self.in_partition(partition.block.index())?;
            if at >= index.len() {
                return Ok(false);
            }
            self.in_partition(index.compare(at, &self.end))?
        } else if let Some(at) = self.top_at.checked_sub(1) {
            self.reader.at_top(self.reader.top().compare(at, &self.end))?
        } else {
            return Ok(false);
        };
        Ok(before != Ordering::Less)
    }

    // Blocks.

    /// The index partition at the place; `None` when it has to be loaded.
    fn partition_here(&mut self) -> Result<Option<Arc<Block>>> {
        let handle = self.reader.at_top(self.reader.top_entry(self.top_at))?.handle;
        if let Some(held) = self.partition.as_ref().filter(|h| h.handle == handle) {
            return Ok(Some(Arc::clone(&held.block)));
        }
        let Some(block) = self.find(handle) else {
            self.ask(handle, BlockKind::Index);
            return Ok(None);
        };
        self.supplied.retain(|h| h.handle != handle);
        self.partition = Some(Held { handle, block: Arc::clone(&block) });
        Ok(Some(block))
    }

    /// The data block at the place, whose partition is held; `None` when it has to be loaded.
    fn data_here(&mut self) -> Result<Option<Arc<Block>>> {
        let Some(partition) = self.partition.as_ref().map(|h| Arc::clone(&h.block)) else {
            return Ok(None);
        };
        let index = self.in_partition(partition.index())?;
        let handle = self.in_partition(self.reader.data_entry(index, self.part_at))?.handle;
        if let Some(held) = self.data.as_ref().filter(|h| h.handle == handle) {
            return Ok(Some(Arc::clone(&held.block)));
        }
        let Some(block) = self.find(handle) else {
            self.ask(handle, BlockKind::Data);
            let follows = self.data.as_ref().is_some_and(|h| handle.follows(h.handle));
            if follows {
                self.ask_ahead(index)?;
            } else {
                self.ahead_bytes = 0;
            }
            return Ok(None);
        };
        self.supplied.retain(|h| h.handle != handle);
        self.data = Some(Held { handle, block: Arc::clone(&block) });
        Ok(Some(block))
    }

    /// Asks for blocks behind the one at the place.
    fn ask_ahead(&mut self, index: &IndexBlock) -> Result<()> {
        let mut left = self.ahead_bytes;
        self.ahead_bytes = (self.ahead_bytes * 2).clamp(AHEAD_BYTES_MIN, AHEAD_BYTES_MAX);
        let last = index.len().min(self.part_at + 1 + AHEAD_BLOCKS_MAX);
        for at in self.part_at + 1..last {
            if !self.end.is_empty()
                && self.in_partition(index.compare(at - 1, &self.end))? != Ordering::Less
            {
                break;
            }
            let handle = self.in_partition(self.reader.data_entry(index, at))?.handle;
            let Some(rest) = left.checked_sub(u64::from(handle.len)) else { break };
            left = rest;
            let supplied = self.supplied.iter().any(|h| h.handle == handle);
            if !supplied && self.reader.cached(handle, false).is_none() {
                self.ask(handle, BlockKind::Data);
            }
        }
        Ok(())
    }

    /// A block among those supplied, or in the cache.
    fn find(&self, handle: Handle) -> Option<Arc<Block>> {
        let supplied = self.supplied.iter().find(|h| h.handle == handle);
        supplied
            .map(|h| Arc::clone(&h.block))
            .or_else(|| self.reader.cached(handle, self.fill_cache))
    }

    fn ask(&mut self, handle: Handle, kind: BlockKind) {
        let request = self.reader.request(handle, kind, self.fill_cache);
        if !self.want.contains(&request) {
            self.want.push(request);
        }
    }

    /// Lets go of supplied blocks that a cursor moving forward will not come to again.
    fn drop_passed(&mut self) {
        if self.supplied.is_empty() {
            return;
        }
        let here = self.data.as_ref().map_or(0, |h| h.handle.offset);
        self.supplied.retain(|h| {
            h.handle.offset > here && h.handle.offset <= here.saturating_add(2 * AHEAD_BYTES_MAX)
        });
    }

    // Records.

    /// Puts the cursor on a record, or on nothing where that lies past the bounds.
    fn land(&mut self, record: Record) -> Result<()> {
        let data = self.data.as_ref().ok_or(Malformed::whole("no block is held"));
        let built = data.and_then(|held| held.block.data()).and_then(|data| {
            build_key(data, &record, &mut self.key, &mut self.row_len, &mut self.column_len)
        });
        self.in_data(built)?;
        if record.fresh == Fresh::Row && !self.end.is_empty() {
            let row = self.key.get(..self.row_len).unwrap_or_default();
            if row >= self.end.as_slice() {
                self.record = None;
                return Ok(());
            }
        }
        self.record = Some(record);
        Ok(())
    }

    /// Damage found in the data block held.
    fn in_data<T>(&self, parsed: Parsed<T>) -> Result<T> {
        parsed.map_err(|m| {
            let offset = self.data.as_ref().map_or(0, |h| h.handle.offset);
            self.reader.damaged(offset, m.what)
        })
    }

    /// Damage found in the index partition held.
    fn in_partition<T>(&self, parsed: Parsed<T>) -> Result<T> {
        parsed.map_err(|m| {
            let offset = self.partition.as_ref().map_or(0, |h| h.handle.offset);
            self.reader.damaged(offset, m.what)
        })
    }

    fn held_record(&self) -> Option<(&DataBlock, &Record)> {
        let record = self.record.as_ref()?;
        let data = self.data.as_ref()?.block.data().ok()?;
        Some((data, record))
    }

    // The filter.

    /// What the filter says of the probe; `None` when filter partitions have to be loaded. Asked once.
    fn filter_verdict(&mut self) -> Result<Option<Verdict>> {
        if let Some(verdict) = self.verdict {
            return Ok(Some(verdict));
        }
        let (Some(probe), true) = (self.probe.clone(), self.possible) else {
            let verdict = if self.possible { Verdict::Perhaps } else { Verdict::No };
            self.verdict = Some(verdict);
            return Ok(Some(verdict));
        };
        let reader = Arc::clone(&self.reader);
        let Some(filters) = reader.filters() else {
            self.verdict = Some(Verdict::Perhaps);
            return Ok(self.verdict);
        };
        let mut checks = Checks::new(&reader, filters);
        reader.at_filters(checks.collect(&probe))?;
        let mut blocks = Vec::with_capacity(checks.partitions.len());
        for partition in &checks.partitions {
            let handle = reader.at_filters(filters.entry(*partition, reader.blocks_end()))?.handle;
            match self.find(handle) {
                Some(block) => blocks.push((*partition, handle, block)),
                None => self.ask(handle, BlockKind::Filter),
            }
        }
        if !self.want.is_empty() {
            // Hold those that are there: the cache may let go of them while the others are read.
            for (_, handle, block) in blocks {
                if !self.supplied.iter().any(|h| h.handle == handle) {
                    self.supplied.push(Held { handle, block });
                }
            }
            return Ok(None);
        }
        let ask = |partition: usize, ask: &Ask| -> Option<Parsed<bool>> {
            let (_, _, block) = blocks.iter().find(|(p, _, _)| *p == partition)?;
            Some(block.filter().map(|f| f.may_contain(ask)))
        };
        let perhaps = reader.at_filters(checks.evaluate(&probe, ask))?;
        let metrics = reader.metrics();
        metrics.filter_probes.increment();
        if !perhaps {
            metrics.filter_negatives.increment();
        }
        self.verdict_unproved = perhaps;
        self.supplied.retain(|h| !blocks.iter().any(|(_, handle, _)| *handle == h.handle));
        self.verdict = Some(if perhaps { Verdict::Perhaps } else { Verdict::No });
        Ok(self.verdict)
    }

    /// After the first seek that followed the filter's "perhaps".
    fn prove_verdict(&mut self) {
        if !std::mem::take(&mut self.verdict_unproved) {
            return;
        }
        let Some(probe) = &self.probe else { return };
        let row = self.record.map(|_| self.key.get(..self.row_len).unwrap_or_default());
        if row != Some(probe.row_prefix.as_slice()) {
            self.reader.metrics().filter_false_positives.increment();
        }
    }
}

/// Builds the key of `record` in `key`, which holds that of the record before it: only what changed.
fn build_key(
    data: &DataBlock,
    record: &Record,
    key: &mut Vec<u8>,
    row_len: &mut usize,
    column_len: &mut usize,
) -> Parsed<()> {
    match record.fresh {
        Fresh::Row => {
            key.clear();
            data.push_row(record, key);
            *row_len = key.len();
        }
        Fresh::Column => key.truncate(*row_len),
        Fresh::Version => key.truncate(*column_len),
    }
    if record.fresh != Fresh::Version {
        data.push_column(record, key)?;
        *column_len = key.len();
    }
    encode_suffix(record.timestamp, record.seq, record.origin, record.kind, key);
    Ok(())
}

impl Cursor for SstCursor {
    fn seek(&mut self, target: &[u8]) -> Result<Step> {
        self.target.clear();
        self.target.extend_from_slice(target.max(self.start.as_slice()));
        self.start(Pending::Seek)
    }

    fn next(&mut self) -> Result<Step> {
        let Some((data, record)) = self.held_record() else { return Ok(Step::Ready) };
        let landed = match data.after(record) {
            Ok(Some(next)) => self.land(next),
            Ok(None) => {
                self.part_at += 1;
                return self.start(Pending::Walk);
            }
            Err(malformed) => self.in_data(Err(malformed)),
        };
        if landed.is_err() {
            self.record = None;
        }
        landed.map(|()| Step::Ready)
    }

    fn seek_row_before(&mut self, bound: &[u8]) -> Result<Step> {
        let bound = match (bound.is_empty(), self.end.is_empty()) {
            (true, _) => self.end.as_slice(),
            (false, true) => bound,
            (false, false) => bound.min(self.end.as_slice()),
        };
        self.target = bound.to_vec();
        let pending = if self.possible { Pending::BackFind } else { Pending::Nothing };
        self.start(pending)
    }

    fn entry(&self) -> Option<Entry<'_>> {
        let (data, record) = self.held_record()?;
        let key = KeyView::from_parts(&self.key, self.row_len).ok()?;
        Some(Entry { key, value: data.value(record) })
    }

    fn value_bytes(&self) -> Bytes {
        self.held_record().map(|(data, record)| data.value_bytes(record)).unwrap_or_default()
    }

    fn qualifier_bytes(&self) -> Bytes {
        self.held_record().map(|(data, record)| data.qualifier_bytes(record)).unwrap_or_default()
    }

    fn wanted(&self, out: &mut Vec<BlockRequest>) {
        out.extend_from_slice(&self.want);
    }

    fn supply(&mut self, request: &BlockRequest, block: &Arc<Block>) {
        let Some(at) = self.want.iter().position(|w| w == request) else { return };
        let request = self.want.swap_remove(at);
        self.supplied.push(Held { handle: request.handle, block: Arc::clone(block) });
    }

    fn resume(&mut self) -> Result<Step> {
        self.run()
    }
}
