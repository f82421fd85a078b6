//! [`RowStream`]: the rows of a range as a snapshot sees them, forward or backward.
//!
//! The stream is a loop over one position of the merge. Each turn either consumes the record there or
//! moves the merge, and a move that is blocked leaves the loop with its state in place: the caller's
//! future loads what is wanted, supplies it, and enters the loop again.
//!
//! ```text
//!            ┌──────────────────────────────────── behind the row ────────────────────────────────────┐
//! Start ──► Between ── a row of the range ──► Row ── row over, or nothing more wanted ──► Left ──► Leaving (forward)
//!              │                               └───── the same (reverse) ──► Back ──► Between
//!              └── out of the range ──► Done
//! ```
//!
//! A row is returned before anything is asked for that lies behind it: what cannot be read there fails the stream behind the row.
//!
//! Rows whose values lie elsewhere are gathered, as far as that goes without waiting for blocks, until their values are
//! worth a batch of reads.
//!
//! Rows that lie whole in one block, or in a memtable, take a short cut from Between: they are assembled straight
//! from there, a block's worth at a time. One that several sources have is joined from what each has of it.
//!
//! A stream over [`RowRange::row`] ends with its row, without looking for the next.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::aside;
use crate::cell::{Cell, KeyView, ReadRow, Row, RowRange, SEQ_MAX, Seq, row_prefix};
use crate::cursor::{Cursor, Step};
use crate::error::{Error, Result};
use crate::io::IoEngine;
use crate::limits::{
    RECORDS_PER_LOCKED_TURN, RECORDS_PER_TURN, SCAN_PROGRESS_RECORDS, SKIP_BEFORE_SEEK,
};
use crate::read::merge::MergeCursor;
use crate::read::plan::{Plan, target_after};
use crate::read::ready::ReadyRows;
use crate::read::single::{
    Assembler, BYTES_TAKEN_MAX, PartTaker, ROWS_TAKEN_MAX, RowKeys, RowTaker,
};
use crate::read::visible::{Action, VisibleRow};
use crate::read::{EncodedExcised, Excised, Projection};
use crate::schema::TabletSchema;
use crate::sst::RowSink;
use crate::values::{FETCH_BYTES_MAX, FoundRow, ValueSource};

/// Bytes of values elsewhere that the first rows of a stream are gathered for. It doubles with every batch, up to
/// [`FETCH_BYTES_MAX`]: a caller that stops early has had little read in vain.
const FETCH_BYTES_FIRST: u64 = 64 << 10;

/// What a [`RowStream`] reads.
#[derive(Debug, Clone)]
pub struct ReadSpec {
    /// Records with greater sequences are not seen.
    pub snapshot: Seq,
    /// Families that are not in it are not seen.
    pub schema: Arc<TabletSchema>,
    /// Dropped ranges.
    pub excised: Arc<[Excised]>,
    /// Which rows.
    pub range: RowRange,
    /// What of them.
    pub projection: Projection,
    /// From the last row to the first.
    pub reverse: bool,
    /// Rows that the caller will want at most, where it knows: no more than these are read ahead.
    pub rows_hint: Option<usize>,
    /// Bytes in memory that a row may take: its keys, values and cells. A larger one ends the stream
    /// with `RowTooLarge`.
    pub row_bytes_max: u64,
    /// Whether the cursors may meet tombstones over cells of more than one timestamp.
    pub wide_tombstones: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before the first move.
    Start,
    /// On the first record of a row that was not begun, or past the end.
    Between,
    /// On a record of the current row.
    Row,
    /// The current row was returned, or had nothing to show. What comes behind it was not looked at.
    Left,
    /// On a record of a row that was returned, or behind it.
    Leaving { stepped: u32 },
    /// Reverse: the current row was returned and the one before it is to be found.
    Back,
    /// Past the end.
    Done,
}

/// What [`Assembler`] needs.
#[derive(Debug)]
struct SingleSource {
    snapshot: Seq,
    schema: Arc<TabletSchema>,
    projection: Projection,
    row_bytes_max: u64,
}

/// What a turn of the loop came to.
enum Turn {
    /// A row with all its values, and no others wait.
    Row(ReadRow),
    /// Rows wait.
    Ready,
    End,
    Blocked,
    /// Others are to have their turn: much was looked at since the caller was given something.
    Pause,
}

/// The rows of a range, in order. Dropping it, also while it waits for blocks, releases all it holds.
pub struct RowStream {
    merge: MergeCursor,
    visible: VisibleRow,
    io: Arc<dyn IoEngine>,
    /// Prefix of the first row.
    start: Vec<u8>,
    /// Prefix of the first row after the range; empty for none.
    end: Vec<u8>,
    reverse: bool,
    /// The range can hold one row only.
    single: bool,
    state: State,
    /// The merge waits for blocks.
    blocked: bool,
    /// Records looked at since the last row or mark was returned.
    records: u64,
    /// Records that were looked at in this turn, and as many as ways to a row before cost; and how many there are to be.
    in_turn: u64,
    per_turn: u64,
    scratch: Vec<u8>,
    /// What rows that are taken at once are assembled by; `None` where dropped rows are to be hidden, or
    /// the range is one row.
    single_source: Option<SingleSource>,
    keys: RowKeys,
    /// The prefix of the last row that was joined, kept for its memory.
    shared_row: Vec<u8>,
    /// Rows that were taken and not returned yet.
    ready: ReadyRows,
    /// Bytes of those, and of others that were taken since there were none.
    ready_bytes: u64,
    values: ValueSource,
    /// Bytes of values for which rows are gathered.
    fetch_max: u64,
    /// Rows whose values the caller is likely to want still, at least one.
    gather_rows: usize,
    /// What ends the stream once those are returned.
    failure: Option<Error>,
    /// Rows that the caller is likely to want still, at least one.
    rows_hint: usize,
    /// Keeps memtables and versions alive. Last, so that the cursors into them go first.
    _pins: Box<dyn Any + Send>,
}

impl fmt::Debug for RowStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowStream")
            .field("merge", &self.merge)
            .field("state", &self.state)
            .field("reverse", &self.reverse)
            .field("blocked", &self.blocked)
            .finish_non_exhaustive()
    }
}

impl RowStream {
    /// A stream over the records of `cursors`. Does no work before the first [`RowStream::next`]. `pins`
    /// lives as long as the stream.
    pub fn new(
        cursors: Vec<Box<dyn Cursor>>,
        spec: ReadSpec,
        io: Arc<dyn IoEngine>,
        pins: Box<dyn Any + Send>,
    ) -> Self {
        let excised: Vec<_> = spec
            .excised
            .iter()
            .filter(|e| e.seq <= spec.snapshot && e.range.overlaps(&spec.range))
            .map(EncodedExcised::new)
            .collect();
        let RowRange { start, end } = &spec.range;
        let single = spec.range.is_row();
        let single_source = (!single && excised.is_empty()).then(|| SingleSource {
            snapshot: spec.snapshot,
            schema: Arc::clone(&spec.schema),
            projection: spec.projection.clone(),
            row_bytes_max: spec.row_bytes_max,
        });
        let plan = Plan::new(spec.projection, &spec.schema);
        let nothing = spec.range.is_empty() || plan.shows_nothing();
        Self {
            merge: MergeCursor::new(cursors),
            visible: VisibleRow::new(
                spec.snapshot,
                plan,
                excised,
                spec.row_bytes_max,
                spec.wide_tombstones,
            ),
            io,
            start: row_prefix(start),
            end: if end.is_empty() { Vec::new() } else { row_prefix(end) },
            reverse: spec.reverse,
            single,
            state: if nothing { State::Done } else { State::Start },
            blocked: false,
            records: 0,
            in_turn: 0,
            per_turn: if spec.snapshot == SEQ_MAX {
                RECORDS_PER_LOCKED_TURN
            } else {
                RECORDS_PER_TURN
            },
            scratch: Vec::new(),
            single_source,
            keys: RowKeys::default(),
            shared_row: Vec::new(),
            ready: ReadyRows::default(),
            ready_bytes: 0,
            values: ValueSource::none(),
            fetch_max: FETCH_BYTES_FIRST,
            gather_rows: spec.rows_hint.unwrap_or(usize::MAX).max(1),
            failure: None,
            rows_hint: spec.rows_hint.unwrap_or(usize::MAX).max(1),
            _pins: pins,
        }
    }

    /// Begins with the first column that is wanted, and not with the head of the row, which may lie in another block: of one row, where
    /// the cursors meet no tombstone of a row or a family.
    pub(crate) fn at_first_wanted(mut self) -> Self {
        if self.single {
            let row = std::mem::take(&mut self.start);
            self.visible.first_wanted(&row, &mut self.start);
        }
        self
    }

    /// Where values elsewhere are had from.
    pub(crate) fn with_values(mut self, values: ValueSource) -> Self {
        self.values = values;
        self
    }

    /// The next row; `None` at the end and after an error. A row without cells is a mark of progress:
    /// every row up to and including its key has been looked at (sent at most once every
    /// [`SCAN_PROGRESS_RECORDS`] records that showed nothing). Rows come in ascending order, or descending
    /// for a reverse scan; cells within a row always ascend.
    ///
    /// Awaits only where a block or a value must be loaded, a large value unpacked, or where so many records come before there is something
    /// to return that others of the thread are to have their turn. A future that is dropped unfinished loses nothing: the
    /// next call goes on where it stood.
    pub async fn next(&mut self) -> Result<Option<Row>> {
        Ok(self.next_in_place().await?.map(Row::from))
    }

    /// The same, where it was found: its cells share no memory by themselves.
    pub async fn next_in_place(&mut self) -> Result<Option<ReadRow>> {
        // Whoever was given something sees to the turns of others.
        self.in_turn = 0;
        loop {
            if let Some(row) = self.ready.pop() {
                return Ok(Some(row));
            }
            if !self.ready.is_empty() && !self.gathers() {
                self.fetch().await;
                continue;
            }
            if let Some(error) = self.failure.take() {
                return Err(error);
            }
            if self.blocked
                && let Err(error) = self.unblock().await
            {
                self.state = State::Done;
                self.blocked = false;
                return Err(error);
            }
            match self.advance() {
                Ok(Turn::Row(row)) => return Ok(Some(row)),
                Ok(Turn::Ready) => {}
                Ok(Turn::End) if self.ready.is_empty() => return Ok(None),
                Ok(Turn::End) => {}
                Ok(Turn::Blocked) => self.blocked = true,
                Ok(Turn::Pause) => aside::others_first().await,
                // Rows that were taken before it come first.
                Err(error) => {
                    self.state = State::Done;
                    self.failure = Some(error);
                }
            }
        }
    }

    /// Records looked at since the last row or mark was returned. At the end: those behind the last of them, which no mark
    /// tells of any more.
    pub fn looked_at(&self) -> u64 {
        self.records
    }

    /// Whether more rows are looked for before the values of those at hand are fetched.
    fn gathers(&self) -> bool {
        self.state != State::Done
            && !self.blocked
            && self.failure.is_none()
            && self.ready.fetch_bytes() < self.fetch_max
            && !self.ready.ends_in_mark()
            && self.ready_bytes < BYTES_TAKEN_MAX
            && self.ready.len() < ROWS_TAKEN_MAX.min(self.gather_rows)
    }

    /// Fetches values that the first rows lack. A value that cannot be had fails its row: those before it come first.
    async fn fetch(&mut self) {
        let batch = self.ready.next_batch();
        let values = self.values.fetch(&*self.io, &batch).await;
        self.fetch_max = (self.fetch_max * 2).min(FETCH_BYTES_MAX);
        self.gather_rows = match self.gather_rows.saturating_sub(self.ready.len()) {
            0 => usize::MAX,
            left => left,
        };
        if let Err(error) = self.ready.supply(values) {
            self.state = State::Done;
            self.blocked = false;
            self.failure = Some(error);
        }
    }

    /// Loads what the merge wants, all at once, until it has moved.
    async fn unblock(&mut self) -> Result<()> {
        loop {
            let mut wanted = Vec::new();
            self.merge.wanted(&mut wanted);
            if !wanted.is_empty() {
                let loaded = crate::sst::load_blocks(&*self.io, wanted.clone()).await;
                for (request, block) in wanted.iter().zip(loaded) {
                    match block {
                        Ok(block) => self.merge.supply(request, &block),
                        // Damage ahead fails the read when it comes there, if it does.
                        Err(_) if request.is_ahead() => {}
                        Err(error) => return Err(error),
                    }
                }
            }
            if self.merge.resume()? == Step::Ready {
                self.blocked = false;
                return Ok(());
            }
        }
    }

    /// Goes on until there is a row to return, the range is over, or a block is missing.
    fn advance(&mut self) -> Result<Turn> {
        loop {
            let step = match self.state {
                State::Done => return Ok(Turn::End),
                State::Start => {
                    self.state = State::Between;
                    if self.reverse {
                        self.merge.last_row_before(&self.end)?
                    } else {
                        self.merge.seek(&self.start)?
                    }
                }
                // Of many small rows that show nothing none has as many records.
                State::Between | State::Row if self.in_turn >= self.per_turn => {
                    self.in_turn = 0;
                    return Ok(Turn::Pause);
                }
                State::Between => match self.merge.entry() {
                    Some(entry) if self.in_range(entry.key) => {
                        if let Some(turn) = self.take_rows()? {
                            return Ok(turn);
                        }
                        // Enough was looked at, and not a row that takes the general way.
                        if self.in_turn >= self.per_turn {
                            continue;
                        }
                        if let (State::Between, Some(entry)) = (self.state, self.merge.entry())
                            && self.in_range(entry.key)
                        {
                            self.visible.begin(entry.key);
                            self.merge.enter_row();
                            self.state = State::Row;
                        }
                        continue;
                    }
                    _ => {
                        self.state = State::Done;
                        continue;
                    }
                },
                State::Row => {
                    let row = self.visible.row_prefix();
                    let entry = self.merge.entry().filter(|e| e.key.row_prefix() == row);
                    let Some(entry) = entry else {
                        match self.end_row()? {
                            Some(row) => return Ok(self.hand_over(row)),
                            None => continue,
                        }
                    };
                    self.records += 1;
                    self.in_turn += 1;
                    match self.visible.push(entry, &self.merge)? {
                        Action::Next => self.merge.next()?,
                        Action::Seek => self.merge.seek(self.visible.target())?,
                        Action::RowDone => match self.end_row()? {
                            Some(row) => return Ok(self.hand_over(row)),
                            None => continue,
                        },
                    }
                }
                State::Left => {
                    self.state = State::Leaving { stepped: 0 };
                    self.merge.leave_row()?
                }
                State::Leaving { stepped } => {
                    if !self.in_row() {
                        self.state = State::Between;
                        continue;
                    }
                    self.records += 1;
                    self.in_turn += 1;
                    if stepped < SKIP_BEFORE_SEEK {
                        self.state = State::Leaving { stepped: stepped + 1 };
                        self.merge.next()?
                    } else {
                        self.state = State::Between;
                        self.in_turn += u64::from(SKIP_BEFORE_SEEK);
                        target_after(self.visible.row_prefix(), &mut self.scratch);
                        self.merge.seek(&self.scratch)?
                    }
                }
                State::Back => {
                    self.state = State::Between;
                    self.in_turn += u64::from(SKIP_BEFORE_SEEK);
                    self.merge.last_row_before(self.visible.row_prefix())?
                }
            };
            if step == Step::Blocked {
                return Ok(Turn::Blocked);
            }
        }
    }

    /// Takes rows that lie whole in one block or in a memtable, and joins those that several sources have so. `None` where there is nothing to return yet: the
    /// row that the merge is on then, if it is on one, takes the general way.
    fn take_rows(&mut self) -> Result<Option<Turn>> {
        let Some(source) = &self.single_source else { return Ok(None) };
        let (snapshot, row_bytes_max) = (source.snapshot, source.row_bytes_max);
        let before = self.ready.len();
        if before == 0 {
            self.ready_bytes = 0;
        }
        let mut taker = RowTaker {
            assembler: Assembler::new(snapshot, &source.schema, &source.projection, row_bytes_max),
            keys: &mut self.keys,
            rows: &mut self.ready,
            rows_max: ROWS_TAKEN_MAX.min(before.saturating_add(self.rows_hint)),
            fetch_max: self.fetch_max,
            keeps_last: self.reverse,
            last: &mut self.scratch,
            looked_at: 0,
            look_at_max: (SCAN_PROGRESS_RECORDS.saturating_sub(self.records))
                .min(self.per_turn.saturating_sub(self.in_turn)),
            bytes: self.ready_bytes,
        };
        let mut step = Step::Ready;
        if self.reverse {
            self.merge.take_single_back(&mut taker)?;
        } else {
            // A row that several sources have is joined, and what comes after it is one source's again.
            loop {
                step = self.merge.take_single(&self.end, &mut taker)?;
                if step == Step::Blocked || taker.room() == 0 {
                    break;
                }
                let row = self.merge.entry().map_or(&[][..], |entry| entry.key.row_prefix());
                if row.is_empty() || (!self.end.is_empty() && row >= self.end.as_slice()) {
                    break;
                }
                self.shared_row.clear();
                self.shared_row.extend_from_slice(row);
                let mut parts = PartTaker::new(&mut taker.assembler);
                let Some(of_row) = self.merge.show_joined(&mut parts)? else { break };
                let parts = parts.into_joined();
                taker.take_parts(&self.shared_row, parts)?;
                // What fails from here on lies behind the row.
                step = self.merge.pass_row(&of_row)?;
                if step == Step::Blocked || taker.room() == 0 {
                    break;
                }
            }
        }
        let looked_at = taker.looked_at;
        self.ready_bytes = taker.bytes;
        if looked_at > 0 && self.reverse {
            self.merge.passed_back(&self.scratch);
            self.visible.pass(&self.scratch);
            self.state = State::Back;
        }
        self.records += looked_at;
        self.in_turn += looked_at;
        if self.ready.is_empty() && self.records >= SCAN_PROGRESS_RECORDS && looked_at > 0 {
            let mark = Row { key: self.keys.key(&self.scratch), cells: Vec::new() };
            self.ready.push(FoundRow { row: ReadRow::Merged(mark), elsewhere: Vec::new() });
        }
        let taken = self.ready.len() - before;
        if taken > 0 {
            self.records = 0;
        }
        self.rows_hint = match self.rows_hint.saturating_sub(taken) {
            // The caller has what it spoke of. If it goes on, it wants more than it knew.
            0 => usize::MAX,
            left => left,
        };
        if step == Step::Blocked {
            // What was taken is returned before the blocks are waited for.
            return Ok(Some(Turn::Blocked));
        }
        Ok((taken > 0).then_some(Turn::Ready))
    }

    fn in_range(&self, key: KeyView<'_>) -> bool {
        if self.reverse {
            key.row_prefix() >= self.start.as_slice()
        } else {
            self.end.is_empty() || key.row_prefix() < self.end.as_slice()
        }
    }

    /// Whether the merge is on a record of the current row.
    fn in_row(&self) -> bool {
        self.merge.entry().is_some_and(|e| e.key.row_prefix() == self.visible.row_prefix())
    }

    /// Ends the current row, on which the merge may still be; gives it, or a mark of progress, if there is one to return.
    fn end_row(&mut self) -> Result<Option<FoundRow>> {
        self.state = match (self.single, self.reverse) {
            (true, _) => State::Done,
            (_, true) => State::Back,
            _ => State::Left,
        };
        if self.visible.is_empty() && self.records < SCAN_PROGRESS_RECORDS {
            return Ok(None);
        }
        let found = self.visible.finish()?;
        if found.row.is_mark() && self.single {
            return Ok(None);
        }
        self.records = 0;
        Ok(Some(found))
    }

    /// Returns a row, or puts it behind those that wait.
    fn hand_over(&mut self, found: FoundRow) -> Turn {
        if self.ready.is_empty() {
            if found.elsewhere.is_empty() {
                return Turn::Row(found.row);
            }
            self.ready_bytes = 0;
        }
        if let ReadRow::Merged(row) = &found.row {
            let bytes = |cell: &Cell| size_of::<Cell>() + cell.qualifier.len() + cell.value.len();
            self.ready_bytes += row.cells.iter().map(bytes).sum::<usize>() as u64;
        }
        self.ready.push(found);
        Turn::Ready
    }
}

#[cfg(test)]
mod tests;
