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
//! seek in the row  SeekInRow, as Seek, but stops before Walk where the row does not go on
//! next             in the block, or Walk; stops before that where the row does not go on
//! seek_row_before  Back ─► Back (one block earlier, at most once) ─► Row: seek to the row found, no filter
//! ```
//!
//! # Read-ahead
//!
//! A block that is missing right after the one before it is the sign of a scan. From the second such miss
//! on, the blocks behind it are asked for too: 32 KiB, then twice as much each time, to 1 MiB, never
//! past the end of the bounds; before it, for a scan that goes back. Past the partition at hand where the next is in memory: else that is
//! asked for with them, so that nobody waits for it by itself. A caller that
//! knows how much it wants gets that with the first miss. A miss anywhere else starts over, unless it is of the block that a row
//! begins with, going back. Where all cursors together [hold too much](crate::cache::Ahead), each asks for no more than 32 KiB. Blocks that were supplied ahead are held until the cursor has passed them, so it does
//! not matter whether the cache keeps them.
//!
//! A cursor that goes back goes forward in each row that it finds. There it reads ahead no further than the row, and keeps what it has
//! read before the row, the block that the row begins with, and what it passed of the row on the way to that:
//!
//! ```text
//!   read ahead, going back │ first block of the row │ passed │ here │ to come ... last block of the row │ passed
//!          held            │          held          │        │      │               held                │
//! ```

use std::cmp::Ordering;
use std::sync::Arc;

use bytes::Bytes;

use super::block::{Block, BlockRequest, Fill};
use super::data::{DataBlock, Fresh, Record};
use super::footer::Handle;
use super::index::IndexBlock;
use super::reader::SstReader;
use super::rows::RowSink;
use super::supplied::Supplied;
use crate::cache::PartitionId;
use crate::cell::{KeyView, RowRange, encode_suffix, row_prefix};
use crate::codec::{Malformed, Parsed};
use crate::cursor::{Cursor, Entry, Step};
use crate::error::Result;

/// Bytes that the first read-ahead asks for: eight blocks of a page.
const AHEAD_BYTES_MIN: u64 = 32 << 10;

/// Bytes that a read-ahead asks for at most. It is also what a cursor holds besides its own block; as much again in a row that spans
/// blocks, if it goes back.
const AHEAD_BYTES_MAX: u64 = 1 << 20;

/// The same for all cursors of a scan: eight levels read ahead as far as one by itself, and what many sublevels hold stays small
/// beside a cache, which has let go of it by then.
const SCAN_AHEAD_BYTES_MAX: u64 = 8 << 20;

/// Blocks that a read-ahead asks for at most: 1 MiB of blocks of a page, and 4 MiB at most of such that
/// compress to less than one.
const AHEAD_BLOCKS_MAX: usize = 256;

/// Index partitions beyond the one at hand that a cursor holds at most: twice as many as a read-ahead of a megabyte goes through, where keys
/// and partitions are as usual. Those that a cursor which has gone elsewhere never came to make place; one that is not held any more is asked for
/// once more.
const PARTITIONS_AHEAD_MAX: usize = 8;

/// Bytes of bounds whose caller wants all of them that are asked for at once: two of the first steps, for one wait in place of two or three.
/// Larger ones are scans, whose caller may stop before.
const AHEAD_OF_ALL_BYTES_MAX: u64 = 128 << 10;

/// How a cursor reads.
#[derive(Debug, Clone)]
pub struct CursorOptions {
    /// Records of other rows are not shown.
    pub bounds: RowRange,
    /// Whether loaded blocks enter the cache, and blocks found there count as used. Not by what reads everything once.
    pub fill_cache: bool,
    /// Bytes that the caller will want from where it goes first, as far as it knows: the first blocks that are
    /// missing are asked for together, up to these. 0 where it does not know.
    pub expected_bytes: u64,
    /// Whether it will want all that is in the bounds, as far as it knows: where that is little, it is asked for together.
    pub wants_all: bool,
    /// Cursors of the same scan, this one among them: together they read ahead so far and no further.
    pub beside: usize,
}

impl Default for CursorOptions {
    fn default() -> Self {
        Self {
            bounds: RowRange::all(),
            fill_cache: true,
            expected_bytes: 0,
            wants_all: false,
            beside: 1,
        }
    }
}

/// A block that the cursor holds.
#[derive(Debug, Clone)]
pub(super) struct Held {
    pub(super) handle: Handle,
    pub(super) block: Arc<Block>,
}

/// The operation under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pending {
    Nothing,
    /// To the first record not less than `target`.
    Seek,
    /// The same in the row that the cursor was on.
    SeekInRow,
    /// The same as `Seek` for a row that was seen in the bounds.
    Row,
    /// To the first record at or after the place.
    Walk,
    /// To the last row before `target`: find the block.
    BackFind,
    /// The same, in the block at the place or the one before.
    Back,
}

/// Where the row lies that a cursor which goes back has found: offsets of blocks.
#[derive(Debug, Clone, Copy)]
struct RowBlocks {
    first: u64,
    last: u64,
}

/// A cursor over one SST.
#[derive(Debug)]
pub struct SstCursor {
    pub(super) reader: Arc<SstReader>,
    /// Row prefix of the bounds' start.
    pub(super) start: Vec<u8>,
    /// Row prefix of the bounds' end; empty for none.
    pub(super) end: Vec<u8>,
    /// The bounds hold no row.
    is_empty: bool,
    fill: Fill,
    pub(super) top_at: usize,
    pub(super) part_at: usize,
    pub(super) partition: Option<Held>,
    /// Those beyond it that were asked for ahead, until it comes to them.
    partitions_ahead: Vec<Held>,
    pub(super) data: Option<Held>,
    pub(super) record: Option<Record>,
    pub(super) key: Vec<u8>,
    pub(super) row_len: usize,
    column_len: usize,
    pending: Pending,
    target: Vec<u8>,
    want: Vec<BlockRequest>,
    supplied: Supplied,
    /// The way of the last operation from outside.
    backward: bool,
    /// The row found last, until the cursor goes on behind it or elsewhere.
    found_back: Option<RowBlocks>,
    /// It stopped at the end of a row, before a block that has nothing of it.
    has_left_row: bool,
    /// Where the data block that is held stands.
    data_place: Option<(usize, usize)>,
    /// See [`CursorOptions::expected_bytes`]; 0 once it was used.
    expected_bytes: u64,
    /// See [`CursorOptions::wants_all`]; false once it was used.
    wants_all: bool,
    ahead_bytes: u64,
    ahead_bytes_max: u64,
}

impl SstCursor {
    pub(super) fn new(reader: Arc<SstReader>, options: CursorOptions) -> Self {
        let CursorOptions { bounds, fill_cache, expected_bytes, wants_all, beside } = options;
        // Short reads come back to their index partitions as point reads do; of a long scan nobody knows.
        let is_short = (1..=AHEAD_BYTES_MAX).contains(&expected_bytes);
        let fill = match (fill_cache, is_short) {
            (false, _) => Fill::Nothing,
            (true, true) => Fill::Keep,
            (true, false) => Fill::Probation,
        };
        let end = if bounds.end.is_empty() { Vec::new() } else { row_prefix(&bounds.end) };
        Self {
            start: row_prefix(&bounds.start),
            end,
            is_empty: bounds.is_empty(),
            fill,
            top_at: 0,
            part_at: 0,
            partition: None,
            partitions_ahead: Vec::new(),
            data: None,
            record: None,
            key: Vec::new(),
            row_len: 0,
            column_len: 0,
            pending: Pending::Nothing,
            target: Vec::new(),
            want: Vec::new(),
            supplied: Supplied::new(reader.cache().ahead()),
            backward: false,
            found_back: None,
            has_left_row: false,
            data_place: None,
            expected_bytes,
            wants_all,
            ahead_bytes_max: (SCAN_AHEAD_BYTES_MAX / beside.max(1) as u64)
                .clamp(AHEAD_BYTES_MIN, AHEAD_BYTES_MAX),
            ahead_bytes: 0,
            reader,
        }
    }

    /// Starts an operation.
    pub(super) fn start(&mut self, pending: Pending) -> Result<Step> {
        self.record = None;
        self.pending = pending;
        self.run()
    }

    /// Runs the operation until it is done or blocked. An error ends it, with the cursor on nothing.
    fn run(&mut self) -> Result<Step> {
        self.want.clear();
        self.has_left_row = false;
        let result = self.run_states();
        match &result {
            Ok(Step::Blocked) => {}
            Ok(Step::Ready) => {
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
                Pending::Seek | Pending::SeekInRow | Pending::Row => self.run_seek()?,
                Pending::Walk => self.run_walk()?,
                Pending::BackFind => self.run_back_find()?,
                Pending::Back => self.run_back()?,
            };
            if done {
                return Ok(Step::Ready);
            }
            if self.has_left_row || !self.want.is_empty() {
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
            self.has_left_row = self.pending == Pending::SeekInRow && !self.goes_on_in_row()?;
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
            let here = self.place_held();
            self.found_back = Some(RowBlocks { first: here, last: here });
            self.target = row;
            self.pending = Pending::Row;
        } else if let Some(part_at) = self.part_at.checked_sub(1) {
            self.part_at = part_at;
            // What separates a block from those behind it says whether it has any row of the bounds.
            let index = self.in_partition(partition.index())?;
            return Ok(self.in_partition(index.compare(part_at, &self.start))? != Ordering::Greater);
        } else if let Some(top_at) = self.top_at.checked_sub(1) {
            self.top_at = top_at;
            self.part_at = usize::MAX;
            let compared = self.reader.top().compare(top_at, &self.start);
            return Ok(self.reader.at_top(compared)? != Ordering::Greater);
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
        let Some(block) = self.find_index(self.top_at, handle) else {
            self.ask(handle, Some(PartitionId::Index(self.top_at)));
            return Ok(None);
        };
        self.supplied.retain(|supplied| supplied != handle);
        self.hold_partition(Held { handle, block: Arc::clone(&block) });
        Ok(Some(block))
    }

    /// Holds the index partition at the place.
    pub(super) fn hold_partition(&mut self, held: Held) {
        self.partitions_ahead.retain(|ahead| ahead.handle != held.handle);
        self.partition = Some(held);
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
        let Some(block) = self.find_data(&partition, self.part_at, handle) else {
            self.ask(handle, None);
            let expected = match std::mem::take(&mut self.expected_bytes) {
                0 if std::mem::take(&mut self.wants_all) => self.bytes_to_bound(index, handle)?,
                expected => expected.min(self.ahead_bytes_max),
            };
            if expected > 0 {
                self.ahead_bytes = expected;
            } else if self.pending == Pending::Row {
                // Where a row begins, the scan that goes back is not over.
                return Ok(None);
            } else if !self.is_beside_last() {
                self.ahead_bytes = 0;
                return Ok(None);
            }
            self.ask_ahead(Arc::clone(&partition), handle)?;
            return Ok(None);
        };
        let before = self.data.take();
        self.hold(Held { handle, block: Arc::clone(&block) });
        if let Some(before) = before.filter(|_| self.found_back.is_some()) {
            self.supplied.push(before);
        }
        Ok(Some(block))
    }

    /// Bytes of the blocks behind the one at the place, to the end of the bounds in the way that the cursor goes; 0 where they are
    /// many, or go beyond the partition.
    fn bytes_to_bound(&self, index: &IndexBlock, here: Handle) -> Result<u64> {
        let bound = if self.backward { &self.start } else { &self.end };
        if bound.is_empty() {
            return Ok(0);
        }
        let at = self.in_partition(index.find(bound, false))?;
        if at >= index.len() || self.backward && at == 0 {
            return Ok(0);
        }
        let last = self.in_partition(index.handle(at, self.reader.blocks_end()))?;
        let bytes = if self.backward {
            here.offset.saturating_sub(last.offset)
        } else {
            last.end().saturating_sub(here.end())
        };
        Ok(if bytes <= AHEAD_OF_ALL_BYTES_MAX { bytes } else { 0 })
    }

    /// Holds the data block at the place.
    pub(super) fn hold(&mut self, held: Held) {
        self.supplied.retain(|supplied| supplied != held.handle);
        self.data_place = Some((self.top_at, self.part_at));
        self.data = Some(held);
    }

    /// Whether the block at the place comes next to the one held, in the way that the cursor goes.
    fn is_beside_last(&self) -> bool {
        let Some((top_at, part_at)) = self.data_place else { return false };
        let (mut from, mut to) = ((top_at, part_at), (self.top_at, self.part_at));
        if self.backward {
            std::mem::swap(&mut from, &mut to);
        }
        // Into another partition: one further. Where in it, does not matter: it is where the one way ends and the
        // other begins.
        to == (from.0, from.1 + 1) || to.0 == from.0 + 1
    }

    /// Asks for blocks beyond the one at the place, which is `last`, in the way that the cursor goes. A block counts with the padding
    /// between it and the one before it in that way, which is read with it.
    fn ask_ahead(&mut self, mut partition: Arc<Block>, mut last: Handle) -> Result<()> {
        let most =
            if self.supplied.are_too_many() { AHEAD_BYTES_MIN } else { self.ahead_bytes_max };
        let mut left = self.ahead_bytes.min(most);
        self.ahead_bytes = (self.ahead_bytes * 2).clamp(AHEAD_BYTES_MIN, most);
        let next = |at: usize, backward| if backward { at.checked_sub(1) } else { Some(at + 1) };
        let (mut top_at, mut place) = (self.top_at, next(self.part_at, self.backward));
        for _ in 0..AHEAD_BLOCKS_MAX {
            let index = self.in_partition(partition.index())?;
            let Some(at) = place.filter(|at| *at < index.len()) else {
                let Some((beyond, block)) = self.partition_beyond(top_at)? else { break };
                let len = self.in_partition(block.index())?.len();
                place = if self.backward { len.checked_sub(1) } else { Some(0) };
                (top_at, partition) = (beyond, block);
                continue;
            };
            place = next(at, self.backward);
            // What separates it from the block at the place says whether any of it is in bounds, or of the row.
            let beyond = if self.backward {
                self.in_partition(index.compare(at, &self.start))? != Ordering::Greater
            } else if self.found_back.is_some() {
                !self.in_partition(index.begins_with(at - 1, self.row()))?
            } else if let Some(before) = at.checked_sub(1)
                && !self.end.is_empty()
            {
                self.in_partition(index.compare(before, &self.end))? != Ordering::Less
            } else {
                false
            };
            if beyond {
                break;
            }
            let handle = self.in_partition(index.handle(at, self.reader.blocks_end()))?;
            let step_bytes = if self.backward {
                last.offset.saturating_sub(handle.offset)
            } else {
                handle.end().saturating_sub(last.end())
            };
            let Some(rest) = left.checked_sub(step_bytes) else { break };
            (left, last) = (rest, handle);
            if self.supplied.get(handle).is_none() && self.reader.peek(None, handle).is_none() {
                self.want.push(self.reader.request_data(handle, self.fill).ahead());
            }
        }
        Ok(())
    }

    /// The index partition beyond one, in the way that the cursor goes, and its place, where it is in memory: else it is asked for. `None`
    /// too where it has nothing of the bounds.
    fn partition_beyond(&mut self, top_at: usize) -> Result<Option<(usize, Arc<Block>)>> {
        let top = self.reader.top();
        let beyond = if self.backward { top_at.checked_sub(1) } else { Some(top_at + 1) };
        // A row that a cursor which goes back has found is read to its end, and not ahead.
        let beyond =
            beyond.filter(|at| *at < top.len() && (self.backward || self.found_back.is_none()));
        let Some(at) = beyond else { return Ok(None) };
        let is_past = if self.backward {
            self.reader.at_top(top.compare(at, &self.start))? != Ordering::Greater
        } else {
            !self.end.is_empty()
                && self.reader.at_top(top.compare(top_at, &self.end))? != Ordering::Less
        };
        if is_past {
            return Ok(None);
        }
        let handle = self.reader.at_top(self.reader.top_entry(at))?.handle;
        let id = PartitionId::Index(at);
        let held = self.ahead(handle).or_else(|| self.reader.peek(Some(id), handle));
        if held.is_none() {
            let request = self.reader.request_partition(id, handle, self.fill);
            self.want.push(request.ahead());
        }
        Ok(held.map(|block| (at, block)))
    }

    /// An index partition that was supplied ahead.
    fn ahead(&self, handle: Handle) -> Option<Arc<Block>> {
        let held = self.partitions_ahead.iter().find(|held| held.handle == handle);
        held.map(|held| Arc::clone(&held.block))
    }

    /// A block among those supplied.
    fn supplied(&self, handle: Handle) -> Option<Arc<Block>> {
        self.supplied.get(handle).cloned()
    }

    /// An index partition among those supplied, or in memory.
    pub(super) fn find_index(&self, at: usize, handle: Handle) -> Option<Arc<Block>> {
        self.supplied(handle).or_else(|| self.ahead(handle)).or_else(|| match self.fill {
            Fill::Nothing => self.reader.peek(Some(PartitionId::Index(at)), handle),
            Fill::Probation | Fill::Keep => self.reader.index_slot(at).map(|r| r.to_arc()),
        })
    }

    /// The data block that entry `at` of a partition names, among those supplied, or in memory.
    pub(super) fn find_data(
        &self,
        partition: &Block,
        at: usize,
        handle: Handle,
    ) -> Option<Arc<Block>> {
        self.supplied(handle).or_else(|| match self.fill {
            Fill::Nothing => self.reader.peek(None, handle),
            Fill::Probation | Fill::Keep => {
                self.reader.data_block(partition, at, handle, partition.in_slot(at))
            }
        })
    }

    fn ask(&mut self, handle: Handle, partition: Option<PartitionId>) {
        let request = match partition {
            None => self.reader.request_data(handle, self.fill),
            Some(id) => self.reader.request_partition(id, handle, self.fill),
        };
        if !self.want.contains(&request) {
            self.want.push(request);
        }
    }

    /// Lets go of supplied blocks that the cursor, going on its way, will not come to again.
    fn drop_passed(&mut self) {
        if self.supplied.is_empty() {
            return;
        }
        let here = self.place_held();
        if self.backward
            && let Some(row) = &mut self.found_back
        {
            row.first = here;
        }
        let row = self.found_back;
        self.supplied.retain(|handle| {
            let at = handle.offset;
            let gap = match row {
                Some(row) if at <= row.first => row.first - at,
                Some(row) if at > row.last => return false,
                _ if at <= here => return false,
                _ => at - here,
            };
            gap <= 2 * AHEAD_BYTES_MAX
        });
    }

    /// Bytes of the blocks that were supplied ahead or are kept.
    #[cfg(test)]
    pub(super) fn bytes_kept(&self) -> u64 {
        self.supplied.stored_bytes()
    }

    /// Where the data block held lies.
    fn place_held(&self) -> u64 {
        self.data.as_ref().map_or(0, |h| h.handle.offset)
    }

    // Records.

    /// Goes on to the next record of the block where the one under the cursor is before `target`; says whether that is where
    /// a seek ends. What is sought in a row is mostly its next column, which has one version here, however many another
    /// cursor of the merge has to pass.
    fn step_to(&mut self, target: &[u8]) -> Result<bool> {
        if self.key.as_slice() >= target {
            return Ok(false);
        }
        let Some((data, record)) = self.held_record() else { return Ok(false) };
        let landed = self.in_data(data.after(record)).and_then(|next| match next {
            Some(next) => self.land(next).map(|()| true),
            None => Ok(false),
        });
        let landed = landed.inspect_err(|_| self.record = None)?;
        self.backward = false;
        Ok(landed && (self.record.is_none() || self.key.as_slice() >= target))
    }

    /// The prefix of the row that the cursor is on, or was on last.
    fn row(&self) -> &[u8] {
        self.key.get(..self.row_len).unwrap_or_default()
    }

    /// Whether that row, of which nothing more is in the block at the place, may go on in the next.
    fn goes_on_in_row(&self) -> Result<bool> {
        self.row_goes_on(self.row())
    }

    /// Goes on behind the last record of the block at the place.
    fn leave_block(&mut self) -> Result<Step> {
        let goes_on = self.goes_on_in_row();
        self.record = None;
        let goes_on = goes_on?;
        self.part_at += 1;
        self.backward = false;
        self.pending = Pending::Walk;
        if goes_on {
            return self.run();
        }
        self.want.clear();
        self.has_left_row = true;
        Ok(Step::Blocked)
    }

    /// Puts the cursor on a record, or on nothing where that lies past the bounds.
    pub(super) fn land(&mut self, record: Record) -> Result<()> {
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
    pub(super) fn in_data<T>(&self, parsed: Parsed<T>) -> Result<T> {
        parsed.map_err(|m| {
            let offset = self.data.as_ref().map_or(0, |h| h.handle.offset);
            self.reader.damaged(offset, m.what)
        })
    }

    /// Damage found in the index partition held.
    pub(super) fn in_partition<T>(&self, parsed: Parsed<T>) -> Result<T> {
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
}

/// Builds the key of `record` in `key`, which holds that of the record before it: only what changed.
pub(super) fn build_key(
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
        if self.step_to(target)? {
            return Ok(Step::Ready);
        }
        self.target.clear();
        self.target.extend_from_slice(target.max(self.start.as_slice()));
        self.backward = false;
        if self.record.is_some() && target.starts_with(self.row()) {
            return self.start(Pending::SeekInRow);
        }
        self.found_back = None;
        self.start(Pending::Seek)
    }

    fn next(&mut self) -> Result<Step> {
        let Some((data, record)) = self.held_record() else { return Ok(Step::Ready) };
        let landed = match data.after(record) {
            Ok(Some(next)) => self.land(next),
            Ok(None) => return self.leave_block(),
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
        self.backward = true;
        self.found_back = None;
        let pending = if self.is_empty { Pending::Nothing } else { Pending::BackFind };
        self.start(pending)
    }

    fn take_rows(&mut self, before: &[u8], sink: &mut dyn RowSink) -> Result<Step> {
        self.found_back = None;
        self.take_rows_forward(before, sink)
    }

    fn show_row(&self, sink: &mut dyn RowSink) -> Result<bool> {
        self.show_row_here(sink)
    }

    fn take_rows_back(&mut self, after: &[u8], sink: &mut dyn RowSink) -> Result<()> {
        self.take_rows_backward(after, sink)
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

    fn has_left_row(&self) -> bool {
        self.has_left_row
    }

    fn wanted(&self, out: &mut Vec<BlockRequest>) {
        out.extend_from_slice(&self.want);
    }

    fn supply(&mut self, request: &BlockRequest, block: &Arc<Block>) {
        // Of a merge, each has the blocks of all offered, which may be thousands.
        if request.reader.id() != self.reader.id() {
            return;
        }
        let Some(at) = self.want.iter().position(|w| w == request) else { return };
        let request = self.want.swap_remove(at);
        let held = Held { handle: request.handle, block: Arc::clone(block) };
        if request.partition.is_some() && request.is_ahead() {
            // The oldest may be of another place.
            if self.partitions_ahead.len() >= PARTITIONS_AHEAD_MAX {
                self.partitions_ahead.remove(0);
            }
            self.partitions_ahead.push(held);
        } else {
            self.supplied.push(held);
        }
    }

    fn resume(&mut self) -> Result<Step> {
        if self.has_left_row {
            self.found_back = None;
        }
        self.run()
    }
}
