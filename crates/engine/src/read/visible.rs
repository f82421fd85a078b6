//! What a snapshot sees of a row: a state machine fed with the row's records in key order.
//!
//! A forward pass suffices because everything that hides sorts before what it hides:
//!
//! ```text
//! row tombstones | family 1: family tombstones | column a: column and cell tombstones, cells by time ...
//!      │                        │                               │
//!      ▼                        ▼                               ▼
//!   row_hide ──── max ───► family_hide ──────── max ───────► column_hide, ranges     ("below this sequence")
//! ```
//!
//! A cell is a (column, timestamp); its records come newest first. Reading them in that order:
//!
//! * a record newer than the snapshot is passed over;
//! * a record below the sequence of a tombstone in whose scope it is ends the cell, with all after it;
//! * a value ends the cell: alone it is what the cell shows, and under operands it is their base;
//! * an operand of an aggregate is added to those before it; those of a memtable that others have added up before are taken at once
//!   ([`Totals`]).
//!
//! What the projection leaves out is first stepped over, and after [`SKIP_BEFORE_SEEK`] records sought
//! past. So are tombstones of a row, family or column that follow a visible one of the same: they are older. Older records of a cell,
//! and cells with timestamps above the projection's range, are only where there are no tombstones of cells:
//! those lie among them, and may reach further.

use std::sync::Arc;

use bytes::Bytes;

use crate::cell::{
    Cell, FAMILY_NONE, FamilyId, KeyView, Kind, ReadRow, Row, SEQ_MAX, Seq, TIMESTAMP_MAX,
    Timestamp, TimestampRange, unescape_into,
};
use crate::cursor::{Cursor, Entry};
use crate::error::{Error, ErrorKind, Result};
use crate::limits::{SKIP_BEFORE_SEEK, SKIP_BEFORE_SEEK_AGAIN};
use crate::memtable::{SHARED_VALUE_BYTES_MIN, Total, Totals};
use crate::read::plan::{FamilyPlan, Place, Plan, target_after, target_cell, target_family};
use crate::read::range_tombstones::RangeTombstones;
use crate::read::{EncodedExcised, aggregate};
use crate::schema::Aggregate;
use crate::values::{Elsewhere, FoundRow, ValuePointer};

/// Bytes of a row key that an error message shows.
const ROW_SHOWN_BYTES_MAX: usize = 128;

/// Cells of a row that may each keep a block, in which they lie: beyond, small values and qualifiers are copied. More, and a row takes many
/// times what it counts as; fewer, and rows of some hundred cells pay for copies.
const CELLS_IN_BLOCKS_MAX: usize = 256;

/// Operands of a cell in a memtable from which what they come to is kept for others: some ten microseconds of work, where to keep it
/// takes less than one. Few in tests, so that histories of some dozen writes have such.
const TOTAL_MIN: u32 = if cfg!(test) { 3 } else { 512 };

/// What the driver does after a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// Moves to the next record.
    Next,
    /// Seeks to [`VisibleRow::target`].
    Seek,
    /// Nothing more of this row can be shown.
    RowDone,
}

/// How far the limits of the projection let a row go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    Open,
    ColumnFull,
    RowFull,
}

/// The cell that the last records belonged to.
#[derive(Debug)]
enum State {
    /// Nothing of it was visible yet.
    Empty,
    /// Operands so far, combined.
    Operands(aggregate::State),
    /// Decided; what follows of it is older.
    Decided,
}

/// Operands of one cell that lie in one memtable, one after the other.
#[derive(Debug)]
struct Run {
    totals: Arc<Totals>,
    newest: Seq,
    oldest: Seq,
    /// What they come to; `None` before the first.
    state: Option<aggregate::State>,
    /// How many were looked at.
    added: u32,
    /// What the last of them come to, until that is added.
    known: Option<Total>,
}

/// Assembles one row at a time. See the module.
#[derive(Debug)]
pub(super) struct VisibleRow {
    snapshot: Seq,
    plan: Plan,
    excised: Vec<EncodedExcised>,
    row_bytes_max: u64,
    /// Whether there may be tombstones over cells of more than one timestamp.
    wide_tombstones: bool,

    row: Vec<u8>,
    row_hide: Seq,
    cells: Vec<Cell>,
    /// Which of their values are to be fetched.
    elsewhere: Vec<Elsewhere>,
    bytes: u64,

    /// The first family of the plan that is not before the current one.
    family_at: usize,
    family: FamilyId,
    family_hide: Seq,

    /// The current column's prefix; empty before the family's first.
    column: Vec<u8>,
    column_hide: Seq,
    ranges: RangeTombstones,
    qualifier: Option<Bytes>,
    /// It was copied.
    qualifier_is_own: bool,
    versions: u32,

    timestamp: Timestamp,
    state: State,
    /// Operands that are not in `state` yet.
    run: Option<Run>,

    /// Records below `target` are passed over.
    skipping: bool,
    target: Vec<u8>,
    /// Records passed over since something was last looked at.
    stepped: u32,
    /// Records that are passed over before the rest is sought past.
    patience: u32,
}

/// The same in memory of its own, where it is small.
fn own(bytes: Bytes) -> Bytes {
    if bytes.len() >= SHARED_VALUE_BYTES_MIN || bytes.is_unique() {
        return bytes;
    }
    Bytes::copy_from_slice(&bytes)
}

impl VisibleRow {
    pub(super) fn new(
        snapshot: Seq,
        plan: Plan,
        excised: Vec<EncodedExcised>,
        row_bytes_max: u64,
        wide_tombstones: bool,
    ) -> Self {
        Self {
            snapshot,
            plan,
            excised,
            row_bytes_max,
            wide_tombstones,
            row: Vec::new(),
            row_hide: 0,
            cells: Vec::new(),
            elsewhere: Vec::new(),
            bytes: 0,
            family_at: 0,
            family: FAMILY_NONE,
            family_hide: 0,
            column: Vec::new(),
            column_hide: 0,
            ranges: RangeTombstones::default(),
            qualifier: None,
            qualifier_is_own: false,
            versions: 0,
            timestamp: 0,
            state: State::Empty,
            run: None,
            skipping: false,
            target: Vec::new(),
            stepped: 0,
            patience: SKIP_BEFORE_SEEK,
        }
    }

    /// Begins the row of `key`.
    pub(super) fn begin(&mut self, key: KeyView<'_>) {
        self.row.clear();
        self.row.extend_from_slice(key.row_prefix());
        // An excised range hides what is not newer than itself: what is below the next sequence.
        let hiding = |e: &&EncodedExcised| e.seq() <= self.snapshot && e.covers(&self.row);
        let excised = self.excised.iter().filter(hiding).map(|e| e.seq().saturating_add(1)).max();
        self.row_hide = excised.unwrap_or(0);
        self.cells.clear();
        self.elsewhere.clear();
        self.bytes = 0;
        self.family_at = 0;
        self.family = FAMILY_NONE;
        self.column.clear();
        self.state = State::Empty;
        self.run = None;
        self.skipping = false;
        self.stepped = 0;
        self.patience = SKIP_BEFORE_SEEK;
    }

    /// Writes the first possible key of what is wanted of the row of this prefix.
    pub(super) fn first_wanted(&self, row_prefix: &[u8], out: &mut Vec<u8>) {
        if let Some(family) = self.plan.families.first() {
            family.target_range(row_prefix, 0, out);
        }
    }

    /// Makes the row with this prefix the current one, of which nothing is to be shown.
    pub(super) fn pass(&mut self, row_prefix: &[u8]) {
        self.row.clear();
        self.row.extend_from_slice(row_prefix);
    }

    /// The prefix of the current row.
    pub(super) fn row_prefix(&self) -> &[u8] {
        &self.row
    }

    /// Where to go after [`Action::Seek`].
    pub(super) fn target(&self) -> &[u8] {
        &self.target
    }

    /// Ends the row and gives its visible cells, perhaps none.
    pub(super) fn finish(&mut self) -> Result<FoundRow> {
        self.close_cell().map_err(|e| self.in_row(e))?;
        let row = Row { key: Bytes::from(self.row_key()), cells: std::mem::take(&mut self.cells) };
        Ok(FoundRow { row: ReadRow::Merged(row), elsewhere: std::mem::take(&mut self.elsewhere) })
    }

    /// Whether the row has nothing to show so far, open operands included.
    pub(super) fn is_empty(&self) -> bool {
        self.cells.is_empty() && self.run.is_none() && !matches!(self.state, State::Operands(_))
    }

    fn row_key(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.row.len());
        let escaped = self.row.len().saturating_sub(2);
        unescape_into(self.row.get(..escaped).unwrap_or_default(), &mut out);
        out
    }

    fn in_row(&self, error: Error) -> Error {
        let row = self.row_key();
        let shown = row.get(..ROW_SHOWN_BYTES_MAX).unwrap_or(&row);
        let error = error.context(format_args!("row \"{}\"", shown.escape_ascii()));
        if error.kind() == ErrorKind::RowTooLarge { error.of_large_row(row) } else { error }
    }

    /// Takes in the record `entry` under `cursor`, which belongs to the current row.
    pub(super) fn push(&mut self, entry: Entry<'_>, cursor: &impl Cursor) -> Result<Action> {
        self.take(cursor, entry.key, entry.value).map_err(|e| self.in_row(e))
    }

    fn take(&mut self, cursor: &impl Cursor, key: KeyView<'_>, value: &[u8]) -> Result<Action> {
        if self.skipping {
            if key.bytes() < self.target.as_slice() {
                return Ok(self.step_over());
            }
            self.skipping = false;
            self.stepped = 0;
        }
        if key.seq() > self.snapshot {
            if self.stepped >= self.patience {
                let target = &mut self.target;
                target_cell(key.column_prefix(), key.timestamp(), self.snapshot, target);
                self.skipping = true;
            }
            return Ok(self.step_over());
        }
        let family = key.family();
        if family == FAMILY_NONE {
            if key.kind() != Kind::RowTombstone {
                return Err(unexpected(key));
            }
            self.row_hide = self.row_hide.max(key.seq());
            return Ok(self.skip_to_family_at());
        }
        if family != self.family {
            if self.close_cell()? == Room::RowFull {
                return Ok(Action::RowDone);
            }
            if let Some(action) = self.enter_family(family) {
                return Ok(action);
            }
        }
        if !key.has_qualifier() {
            if key.kind() != Kind::FamilyTombstone {
                return Err(unexpected(key));
            }
            self.family_hide = self.family_hide.max(key.seq());
            return Ok(self.skip_to_columns());
        }
        if key.column_prefix() != self.column.as_slice() {
            if self.close_cell()? == Room::RowFull {
                return Ok(Action::RowDone);
            }
            if let Some(action) = self.enter_column(key, cursor) {
                return Ok(action);
            }
        }
        match key.kind() {
            Kind::Value | Kind::Merge | Kind::ValueElsewhere => self.take_cell(cursor, key, value),
            Kind::ColumnTombstone => {
                self.column_hide = self.column_hide.max(key.seq());
                Ok(self.skip_to_cells())
            }
            Kind::CellTombstone => {
                self.add_range(key, value)?;
                Ok(Action::Next)
            }
            Kind::RowTombstone | Kind::FamilyTombstone => Err(unexpected(key)),
        }
    }

    fn take_cell(
        &mut self,
        cursor: &impl Cursor,
        key: KeyView<'_>,
        value: &[u8],
    ) -> Result<Action> {
        let timestamp = key.timestamp();
        if timestamp != self.timestamp {
            match self.close_cell()? {
                Room::RowFull => return Ok(Action::RowDone),
                Room::ColumnFull => return Ok(self.leave_column()),
                Room::Open => {}
            }
            self.timestamp = timestamp;
        }
        if matches!(self.state, State::Decided) {
            return Ok(self.step_within_cell());
        }
        let TimestampRange { start, .. } = self.plan.timestamps;
        if timestamp < start {
            return Ok(self.leave_column());
        }
        if !self.plan.timestamps.contains(timestamp) {
            return Ok(self.step_above_range());
        }
        if key.seq() < self.hidden_below(timestamp) {
            return Ok(Action::Next);
        }
        self.stepped = 0;
        if self.qualifier.is_none() {
            (self.qualifier, self.qualifier_is_own) = (Some(cursor.qualifier_bytes()), false);
        }
        if key.kind() == Kind::Merge {
            return self.take_operand(cursor, key, value);
        }
        self.close_run()?;
        let pointer = match key.kind() {
            Kind::ValueElsewhere => Some(pointer(value)?),
            _ => None,
        };
        let how = self.aggregate();
        let value = match (std::mem::replace(&mut self.state, State::Decided), how) {
            // Values of aggregates stay with their cells: a pointer is no state.
            (State::Operands(mut state), Some(how)) => {
                if !state.add(how, value) {
                    return Err(malformed(value, "base"));
                }
                state.encode()
            }
            _ if pointer.is_some() || !self.plan.values => Bytes::new(),
            _ => cursor.value_bytes(),
        };
        if let Some(pointer) = pointer.filter(|_| self.plan.values) {
            self.bytes = self.bytes.saturating_add(u64::from(pointer.value_len));
            self.elsewhere.push(Elsewhere { cell: self.cells.len(), pointer });
        }
        Ok(match self.show(value)? {
            Room::Open => Action::Next,
            Room::ColumnFull => self.leave_column(),
            Room::RowFull => Action::RowDone,
        })
    }

    fn take_operand(
        &mut self,
        cursor: &impl Cursor,
        key: KeyView<'_>,
        value: &[u8],
    ) -> Result<Action> {
        let Some(how) = self.aggregate() else {
            let what = "an operand in a family without an aggregate";
            return Err(Error::new(ErrorKind::Corruption, what));
        };
        let totals = cursor.totals();
        let goes_on = |run: &Run| totals.is_some_and(|totals| Arc::ptr_eq(totals, &run.totals));
        if !self.run.as_ref().is_some_and(goes_on) {
            self.close_run()?;
        }
        let seq = key.seq();
        if self.run.is_none() {
            let Some(totals) = totals else {
                self.add(how, value)?;
                return Ok(Action::Next);
            };
            // Whoever added them up may not have known of what hides a part of them.
            let hidden_below = self.hidden_below(key.timestamp());
            let known = totals.of(key.cell_prefix(), seq).filter(|t| t.oldest >= hidden_below);
            let totals = Arc::clone(totals);
            self.run = Some(Run { totals, newest: seq, oldest: seq, state: None, added: 0, known });
        }
        let Some(run) = &mut self.run else { return Ok(Action::Next) };
        let known = run.known.take_if(|total| total.newest == seq);
        let (operand, oldest) =
            known.as_ref().map_or((value, seq), |total| (&*total.state, total.oldest));
        add_to(&mut run.state, how, operand)?;
        run.added += 1;
        run.oldest = oldest;
        Ok(if known.is_some() { self.leave_known(oldest) } else { Action::Next })
    }

    /// Passes over the operands of the cell down to this one.
    fn leave_known(&mut self, oldest: Seq) -> Action {
        let before = oldest.saturating_sub(1);
        target_cell(&self.column, self.timestamp, before, &mut self.target);
        self.skipping = true;
        self.seek()
    }

    /// Adds an operand, or what several come to.
    fn add(&mut self, how: Aggregate, operand: &[u8]) -> Result<()> {
        let mut state = match std::mem::replace(&mut self.state, State::Empty) {
            State::Operands(state) => Some(state),
            State::Empty | State::Decided => None,
        };
        add_to(&mut state, how, operand)?;
        self.state = state.map_or(State::Empty, State::Operands);
        Ok(())
    }

    /// Adds the operands that came one after the other, and keeps for others what they come to where they are many.
    fn close_run(&mut self) -> Result<()> {
        let (Some(run), Some(how)) = (self.run.take(), self.aggregate()) else { return Ok(()) };
        let Run { totals, newest, oldest, state: Some(state), added, .. } = run else {
            return Ok(());
        };
        if added >= TOTAL_MIN {
            let mut cell = Vec::new();
            target_cell(&self.column, self.timestamp, newest, &mut cell);
            if let Ok(key) = KeyView::from_parts(&cell, self.row.len()) {
                totals.put(key.cell_prefix(), Total { newest, oldest, state: state.encode() });
            }
        }
        if matches!(self.state, State::Operands(_)) {
            return self.add(how, &state.encode());
        }
        self.state = State::Operands(state);
        Ok(())
    }

    fn family_plan(&self) -> Option<&FamilyPlan> {
        self.plan.families.get(self.family_at)
    }

    fn aggregate(&self) -> Option<Aggregate> {
        self.family_plan().and_then(|f| f.aggregate)
    }

    /// Shows operands that no value or tombstone ended, and forgets the cell.
    fn close_cell(&mut self) -> Result<Room> {
        self.close_run()?;
        let state = std::mem::replace(&mut self.state, State::Empty);
        match state {
            State::Operands(state) => self.show(state.encode()),
            State::Empty | State::Decided => Ok(Room::Open),
        }
    }

    fn show(&mut self, value: Bytes) -> Result<Room> {
        let value = if self.plan.values { value } else { Bytes::new() };
        let qualifier_bytes = self.qualifier.as_ref().map_or(0, Bytes::len);
        let bytes = qualifier_bytes + value.len() + size_of::<Cell>();
        self.bytes = self.bytes.saturating_add(bytes as u64);
        if self.bytes > self.row_bytes_max {
            let what = format!(
                "larger than the {} bytes that a read returns of one row, of which each cell takes {} beside its qualifier and value; \
                 narrow the read with a filter",
                self.row_bytes_max,
                size_of::<Cell>()
            );
            return Err(Error::new(ErrorKind::RowTooLarge, what));
        }
        let (value, qualifier) = if self.cells.len() < CELLS_IN_BLOCKS_MAX {
            (value, self.qualifier.clone().unwrap_or_default())
        } else {
            (own(value), self.own_qualifier())
        };
        let (family, timestamp) = (self.family, self.timestamp);
        self.cells.push(Cell { family, qualifier, timestamp, value });
        self.versions += 1;
        Ok(if self.cells.len() as u64 >= u64::from(self.plan.cells_per_row_max) {
            Room::RowFull
        } else if self.versions >= self.plan.versions_max {
            Room::ColumnFull
        } else {
            Room::Open
        })
    }

    /// The column's qualifier in memory of its own.
    fn own_qualifier(&mut self) -> Bytes {
        let qualifier = self.qualifier.take().unwrap_or_default();
        let qualifier = if self.qualifier_is_own { qualifier } else { own(qualifier) };
        self.qualifier_is_own = true;
        self.qualifier.insert(qualifier).clone()
    }

    /// The sequence below which the column's records at `timestamp` are hidden.
    fn hidden_below(&mut self, timestamp: Timestamp) -> Seq {
        self.ranges.hidden_below(timestamp).max(self.column_hide)
    }

    fn add_range(&mut self, key: KeyView<'_>, value: &[u8]) -> Result<()> {
        let start = aggregate::decode(value).ok_or_else(|| malformed(value, "cell tombstone"))?;
        if key.seq() > self.column_hide {
            self.ranges.add(start, key.timestamp(), key.seq());
        }
        Ok(())
    }

    /// `Some` where the family is not wanted.
    fn enter_family(&mut self, family: FamilyId) -> Option<Action> {
        self.family = family;
        self.family_hide = self.row_hide;
        self.column.clear();
        while self.family_plan().is_some_and(|f| f.id < family) {
            self.family_at += 1;
        }
        match self.family_plan() {
            Some(plan) if plan.id == family => None,
            _ => Some(self.skip_to_family_at()),
        }
    }

    /// Skips to the plan's family at `family_at`.
    fn skip_to_family_at(&mut self) -> Action {
        match self.plan.families.get(self.family_at) {
            Some(next) => {
                target_family(&self.row, next.id, &mut self.target);
                self.start_skip()
            }
            None => Action::RowDone,
        }
    }

    /// Skips to the first column that is wanted of the current family, past its tombstones.
    fn skip_to_columns(&mut self) -> Action {
        if let Some(plan) = self.plan.families.get(self.family_at) {
            plan.target_columns(&self.row, &mut self.target);
        }
        self.start_skip()
    }

    /// Skips to the cells of the current column, past its tombstones: what is of their timestamp and older than one of them is hidden.
    fn skip_to_cells(&mut self) -> Action {
        target_cell(&self.column, TIMESTAMP_MAX - 1, SEQ_MAX, &mut self.target);
        self.start_skip()
    }

    /// `Some` where the column is not wanted.
    fn enter_column(&mut self, key: KeyView<'_>, cursor: &impl Cursor) -> Option<Action> {
        self.column.clear();
        self.column.extend_from_slice(key.column_prefix());
        self.column_hide = self.family_hide;
        self.ranges.clear();
        self.versions = 0;
        self.stepped = 0;
        self.qualifier = None;
        self.patience = (2 * self.patience).min(SKIP_BEFORE_SEEK);
        let plan = self.plan.families.get(self.family_at)?;
        if plan.wants_all() {
            return None;
        }
        let qualifier = cursor.qualifier_bytes();
        let place = plan.place(&qualifier);
        (self.qualifier, self.qualifier_is_own) = (Some(qualifier), false);
        (place != Place::Inside).then(|| self.skip_to_place(place))
    }

    /// Nothing more of the current column is wanted.
    fn leave_column(&mut self) -> Action {
        let place = match (self.family_plan(), &self.qualifier) {
            (Some(plan), Some(qualifier)) if !plan.wants_all() => plan.place_after(qualifier),
            _ => Place::Inside,
        };
        self.skip_to_place(place)
    }

    /// Skips to the next column, to a range of the family or to the next family of the plan.
    fn skip_to_place(&mut self, place: Place) -> Action {
        match place {
            Place::Inside => {
                target_after(&self.column, &mut self.target);
                self.start_skip()
            }
            Place::Before(at) => {
                if let Some(plan) = self.plan.families.get(self.family_at) {
                    plan.target_range(&self.row, at, &mut self.target);
                }
                self.start_skip()
            }
            Place::After => {
                self.family_at += 1;
                self.skip_to_family_at()
            }
        }
    }

    fn start_skip(&mut self) -> Action {
        self.skipping = true;
        self.stepped = 0;
        Action::Next
    }

    /// Passes over a record that is skipped or not visible.
    fn step_over(&mut self) -> Action {
        self.stepped += 1;
        if self.skipping && self.stepped > self.patience { self.seek() } else { Action::Next }
    }

    /// Passes over an older record of a decided cell.
    fn step_within_cell(&mut self) -> Action {
        self.step_or_seek_before(self.timestamp)
    }

    /// Passes over a cell that is newer than the projection's range.
    fn step_above_range(&mut self) -> Action {
        self.step_or_seek_before(self.plan.timestamps.end)
    }

    /// Passes over a record of the column, of which nothing from `timestamp` on is wanted.
    fn step_or_seek_before(&mut self, timestamp: Timestamp) -> Action {
        self.stepped += 1;
        // Tombstones of cells lie among the records, and may reach further than these; those over one timestamp, which garbage collection leaves,
        // do not.
        if self.wide_tombstones || self.stepped <= self.patience {
            return Action::Next;
        }
        match timestamp.checked_sub(1) {
            Some(earlier) => target_cell(&self.column, earlier, SEQ_MAX, &mut self.target),
            None => target_after(&self.column, &mut self.target),
        }
        self.skipping = true;
        self.seek()
    }

    /// Seeks past what is skipped.
    fn seek(&mut self) -> Action {
        self.stepped = 0;
        self.patience = SKIP_BEFORE_SEEK_AGAIN;
        Action::Seek
    }
}

/// Adds an operand to what others before it come to, if there are any.
fn add_to(state: &mut Option<aggregate::State>, how: Aggregate, operand: &[u8]) -> Result<()> {
    let is_added = match state {
        Some(state) => state.add(how, operand),
        None => {
            *state = aggregate::State::begin(how, operand);
            state.is_some()
        }
    };
    is_added.then_some(()).ok_or_else(|| malformed(operand, "operand"))
}

fn malformed(value: &[u8], what: &str) -> Error {
    Error::new(ErrorKind::Corruption, format!("a malformed {what} of {} bytes", value.len()))
}

fn pointer(value: &[u8]) -> Result<ValuePointer> {
    ValuePointer::decode(value).map_err(|m| Error::new(ErrorKind::Corruption, m.what))
}

fn unexpected(key: KeyView<'_>) -> Error {
    let what = format!("a record of kind {:?} in a place that it cannot have", key.kind());
    Error::new(ErrorKind::Corruption, what)
}
