//! [`CompactionStream`]: the records of the inputs that must live on, in key order.
//!
//! # Stripes
//!
//! Open snapshots cut the sequences into *stripes*; a view (a snapshot, or the latest) sees whole stripes:
//!
//! ```text
//!   sequences   1 ............ s1 | s1+1 ......... s2 | s2+1 ...............
//!   stripe             0          |        1          |         2
//!   seen by       s1, s2, latest  |    s2, latest     |       latest
//! ```
//!
//! Two records of one stripe are seen by exactly the same views. So a record may go if and only if
//! something newer that hides it is *in its own stripe*: then every view that sees the record sees also
//! what hides it, and where the hider is of a later stripe, some view sees the record and not the hider.
//! What hides: a newer value of the same (column, timestamp), a tombstone in whose scope the record is, an
//! excised range. A hider that is dropped itself was hidden by one whose scope is at least as wide, in the
//! same stripe, so the rule holds along chains.
//!
//! # Tombstones
//!
//! A tombstone must outlive everything older in its scope. So it is dropped only where nothing in its scope can be
//! *beneath*, out of sight ([`Beneath`]), and only in stripe 0: older records in sight are then of stripe 0 too,
//! and dropped as hidden.
//!
//! # Operands
//!
//! Operands of one cell within one stripe combine into one, with the newest sequence; a value below
//! them in the same stripe becomes a value with that sequence. Between two operands in sight there is no
//! tombstone out of sight, since the inputs are contiguous in age. Operands that cannot be combined
//! (malformed, or no aggregate in the schema) pass through as they are: a read reports them; a
//! compaction that refused them would stop the tablet.
//!
//! # What the caller must hold to
//!
//! * The inputs are a contiguous range of the ages of the data of their rows, each row whole.
//! * The schema was taken after the inputs were chosen, so that no family in them is yet to be created.
//! * `snapshots` has every sequence below the newest of the inputs at which the outputs may be read.

use crate::sst::load_blocks_blocking;
use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use crate::cell::{FAMILY_NONE, FamilyId, KeyView, Kind, SUFFIX_LEN, Seq, Timestamp};
use crate::compaction::Beneath;
use crate::compaction::gc::{ColumnGc, Times, Verdict};
use crate::compaction::job::stopped;
use crate::cursor::{Cursor, Entry, Step};
use crate::error::Result;
use crate::manifest::Excised;
use crate::read::{EncodedExcised, MergeCursor, RangeTombstones, aggregate};
use crate::schema::TabletSchema;

/// Records that are taken in without one that lives on, until it is asked whether that is still wanted: a millisecond or so.
const TAKEN_TOGETHER: u64 = 8192;

/// What a compaction goes by.
#[derive(Debug, Clone)]
pub struct CompactionSpec {
    /// Families, their rules and aggregates. Records of other families are dropped.
    pub schema: Arc<TabletSchema>,
    /// Open snapshots, ascending.
    pub snapshots: Vec<Seq>,
    /// Older data of these rows outside the inputs.
    pub beneath: Beneath,
    /// Dropped ranges.
    pub excised: Arc<[Excised]>,
    /// What rules go by.
    pub times: Times,
}

/// What a compaction did, in records. `records_in` is the sum of `records_out` and the counts of dropped
/// records, which are all the others but `buried`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CompactionStats {
    /// Read from the inputs.
    pub records_in: u64,
    /// Handed out.
    pub records_out: u64,
    /// Hidden by a tombstone, tombstones among them.
    pub hidden: u64,
    /// Overwritten by a newer value, or combined into a newer operand.
    pub overwritten: u64,
    /// Collected by a rule.
    pub collected: u64,
    /// Of families that the schema does not have.
    pub family_dropped: u64,
    /// In a dropped range.
    pub excised: u64,
    /// Tombstones with nothing left to hide.
    pub tombstones_dropped: u64,
    /// Collected by a rule and handed out as a tombstone (counted in `records_out`).
    pub buried: u64,
}

impl CompactionStats {
    /// Counts what another part of the same compaction did.
    pub fn add(&mut self, other: &Self) {
        self.records_in += other.records_in;
        self.records_out += other.records_out;
        self.hidden += other.hidden;
        self.overwritten += other.overwritten;
        self.collected += other.collected;
        self.family_dropped += other.family_dropped;
        self.excised += other.excised;
        self.tombstones_dropped += other.tombstones_dropped;
        self.buried += other.buried;
    }
}

/// The newest hider of each stripe within a scope, as "hides what is below this sequence".
#[derive(Debug, Default, Clone)]
struct Hiders(Vec<Seq>);

impl Hiders {
    fn reset(&mut self, stripes: usize) {
        self.0.clear();
        self.0.resize(stripes, 0);
    }

    fn copy_from(&mut self, wider: &Self) {
        self.0.clone_from(&wider.0);
    }

    fn add(&mut self, stripe: usize, below: Seq) {
        if let Some(newest) = self.0.get_mut(stripe) {
            *newest = below.max(*newest);
        }
    }

    /// Whether a hider of the record's own stripe hides it.
    fn hide(&self, stripe: usize, seq: Seq) -> bool {
        self.0.get(stripe).is_some_and(|below| seq < *below)
    }

    /// Whether a hider of any stripe hides it: from the latest view.
    fn hide_latest(&self, seq: Seq) -> bool {
        self.0.iter().any(|below| seq < *below)
    }
}

/// A record on its way out.
#[derive(Debug, Default)]
struct Record {
    key: Vec<u8>,
    row_len: usize,
    value: Bytes,
    /// From when on time alone lets its cell go.
    due_micros: Option<i64>,
}

/// A record of the current cell that waits for what follows.
#[derive(Debug)]
enum Held {
    /// An operand, to be combined with older ones of its stripe. One that met none stays as it came, which may be smaller.
    Operand { state: aggregate::State, stripe: usize, is_combined: bool },
    /// A collected cell's tombstone, needed only if an older record of the cell is kept.
    Burial,
}

/// The current (column, timestamp).
#[derive(Debug, Default)]
struct CellState {
    /// Its newest value or operand was seen.
    judged: bool,
    /// The stripe of the last value seen, or of the collected record: older records of the stripe go.
    ended: Option<usize>,
    /// What ended it was a rule.
    collected: bool,
    held: Option<Held>,
}

/// Merges runs and yields the records that must live on. Loads blocks by blocking reads.
pub struct CompactionStream {
    merge: MergeCursor,
    spec: CompactionSpec,
    excised: Vec<EncodedExcised>,
    stats: CompactionStats,
    start: Option<Vec<u8>>,
    /// The merge is on a record that was taken in.
    taken: bool,
    failed: bool,

    /// Decided records; at most two, since a cell holds back one.
    ready: VecDeque<Record>,
    current: Record,
    held: Record,
    /// Keys to write into.
    spare: Vec<Vec<u8>>,

    row: Vec<u8>,
    row_excised: Hiders,
    row_hiders: Hiders,
    family: FamilyId,
    /// It is in the schema.
    family_known: bool,
    family_hiders: Hiders,
    column: Vec<u8>,
    column_hiders: Hiders,
    /// Cell tombstones of the current column, by stripe.
    ranges: Vec<RangeTombstones>,
    gc: ColumnGc,
    timestamp: Timestamp,
    cell: CellState,
}

impl std::fmt::Debug for CompactionStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompactionStream")
            .field("merge", &self.merge)
            .field("spec", &self.spec)
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}

impl CompactionStream {
    /// A stream over `cursors` from the first record not less than `start`, which must be a row prefix
    /// (or empty): tombstones of a row that is begun in its middle would be missed.
    pub fn new(cursors: Vec<Box<dyn Cursor>>, spec: CompactionSpec, start: &[u8]) -> Self {
        let excised = spec.excised.iter().map(EncodedExcised::new).collect();
        debug_assert!(spec.snapshots.is_sorted(), "snapshots ascend");
        Self {
            merge: MergeCursor::new(cursors),
            ranges: (0..=spec.snapshots.len()).map(|_| RangeTombstones::default()).collect(),
            spec,
            excised,
            stats: CompactionStats::default(),
            start: Some(start.to_vec()),
            taken: false,
            failed: false,
            ready: VecDeque::with_capacity(2),
            current: Record::default(),
            held: Record::default(),
            spare: Vec::new(),
            row: Vec::new(),
            row_excised: Hiders::default(),
            row_hiders: Hiders::default(),
            family: FAMILY_NONE,
            family_known: false,
            family_hiders: Hiders::default(),
            column: Vec::new(),
            column_hiders: Hiders::default(),
            gc: ColumnGc::default(),
            timestamp: 0,
            cell: CellState::default(),
        }
    }

    /// What was done so far.
    pub fn stats(&self) -> CompactionStats {
        self.stats
    }

    /// The next record that lives on; `None` at the end and after an error. Blocks on reads.
    // Not an `Iterator`: the record borrows from the stream.
    #[expect(clippy::should_implement_trait, reason = "it lends its records")]
    pub fn next(&mut self) -> Result<Option<Entry<'_>>> {
        self.next_while(&|| true)
    }

    /// The same for as long as it is wanted, which is asked now and then where records do not live on.
    pub(crate) fn next_while(&mut self, wanted: &dyn Fn() -> bool) -> Result<Option<Entry<'_>>> {
        let more = !self.failed
            && self.fill(wanted).inspect_err(|_| {
                self.failed = true;
                self.ready.clear();
            })?;
        if !more {
            return Ok(None);
        }
        let Some(record) = self.ready.pop_front() else { return Ok(None) };
        let old = std::mem::replace(&mut self.current, record);
        self.spare.push(old.key);
        self.stats.records_out += 1;
        let key = KeyView::from_parts(&self.current.key, self.current.row_len)?;
        Ok(Some(Entry { key, value: &self.current.value }))
    }

    /// The value of the record that [`CompactionStream::next`] gave last, sharing its memory.
    pub fn value_bytes(&self) -> Bytes {
        self.current.value.clone()
    }

    /// The family of that record and from when on time alone lets its cell go, in microseconds since 1970, if it ever does.
    pub(crate) fn due(&self) -> Option<(FamilyId, i64)> {
        let due_micros = self.current.due_micros?;
        let key = KeyView::from_parts(&self.current.key, self.current.row_len).ok()?;
        Some((key.family(), due_micros))
    }

    /// Takes in records until one is decided; false at the end.
    fn fill(&mut self, wanted: &dyn Fn() -> bool) -> Result<bool> {
        let mut taken: u64 = 0;
        while self.ready.is_empty() {
            taken += 1;
            if taken.is_multiple_of(TAKEN_TOGETHER) && !wanted() {
                return Err(stopped());
            }
            let step = if let Some(start) = self.start.take() {
                self.merge.seek(&start)?
            } else if self.taken {
                self.taken = false;
                self.merge.next()?
            } else {
                Step::Ready
            };
            if step == Step::Blocked {
                self.load()?;
            }
            if !self.take()? {
                self.close_cell();
                return Ok(!self.ready.is_empty());
            }
        }
        Ok(true)
    }

    fn load(&mut self) -> Result<()> {
        let mut wanted = Vec::new();
        loop {
            self.merge.wanted(&mut wanted);
            let blocks = load_blocks_blocking(wanted.clone());
            for (request, block) in wanted.drain(..).zip(blocks) {
                self.merge.supply(&request, &block?);
            }
            if self.merge.resume()? == Step::Ready {
                return Ok(());
            }
        }
    }

    fn stripe(&self, seq: Seq) -> usize {
        self.spec.snapshots.partition_point(|snapshot| *snapshot < seq)
    }

    fn latest_stripe(&self) -> usize {
        self.spec.snapshots.len()
    }

    /// Takes in the record under the merge; false past the end.
    fn take(&mut self) -> Result<bool> {
        // Copied out of the merge's borrow: keys are short, and all state below is `self`'s.
        let mut key = self.spare.pop().unwrap_or_default();
        key.clear();
        let (row_len, value) = match self.merge.entry() {
            Some(entry) => {
                key.extend_from_slice(entry.key.bytes());
                (entry.key.row_len(), self.merge.value_bytes())
            }
            None => return Ok(false),
        };
        self.taken = true;
        self.stats.records_in += 1;
        self.decide(Record { key, row_len, value, due_micros: None })?;
        Ok(true)
    }

    fn decide(&mut self, mut record: Record) -> Result<()> {
        let key = KeyView::from_parts(&record.key, record.row_len)?;
        let (family, seq, timestamp, kind) = (key.family(), key.seq(), key.timestamp(), key.kind());
        if key.row_prefix() != self.row.as_slice() {
            self.close_cell();
            self.enter_row(key);
        }
        if family != self.family {
            self.close_cell();
            self.enter_family(family);
        }
        if family != FAMILY_NONE && !self.family_known {
            self.stats.family_dropped += 1;
            self.recycle(record);
            return Ok(());
        }
        if key.column_prefix() != self.column.as_slice() {
            self.close_cell();
            self.enter_column(key);
        } else if timestamp != self.timestamp {
            self.close_cell();
        }
        self.timestamp = timestamp;

        let stripe = self.stripe(seq);
        let is_cell = matches!(kind, Kind::Value | Kind::ValueElsewhere | Kind::Merge);
        let verdict = if is_cell { self.judge(seq, stripe) } else { Verdict::Keep };
        let collect = verdict == Verdict::Collect;
        if let Verdict::KeepUntil(due_micros) = verdict {
            record.due_micros = Some(due_micros);
        }

        if self.row_excised.hide(stripe, seq) {
            self.stats.excised += 1;
            self.recycle(record);
            return Ok(());
        }
        // A cell tombstone reaches over a tombstone's key, not over all of its scope.
        let at = self.timestamp;
        let ranges = self.ranges.get_mut(stripe).filter(|_| is_cell);
        let in_range = ranges.is_some_and(|ranges| seq < ranges.hidden_below(at));
        if in_range || self.column_hiders.hide(stripe, seq) {
            self.stats.hidden += 1;
            self.recycle(record);
            return Ok(());
        }
        match kind {
            Kind::Value | Kind::ValueElsewhere | Kind::Merge => {
                self.decide_cell(record, kind, stripe, collect);
            }
            Kind::RowTombstone => {
                self.row_hiders.add(stripe, seq);
                // The pseudo-family and its one column are entered already.
                self.family_hiders.add(stripe, seq);
                self.column_hiders.add(stripe, seq);
                self.decide_tombstone(record, stripe, Timestamp::MIN);
            }
            Kind::FamilyTombstone => {
                self.family_hiders.add(stripe, seq);
                self.column_hiders.add(stripe, seq);
                self.decide_tombstone(record, stripe, Timestamp::MIN);
            }
            Kind::ColumnTombstone => {
                self.column_hiders.add(stripe, seq);
                self.decide_tombstone(record, stripe, Timestamp::MIN);
            }
            Kind::CellTombstone => match aggregate::decode(&record.value) {
                Some(start) => {
                    let ranges = self.ranges.get_mut(stripe);
                    let wider = ranges.and_then(|ranges| ranges.add(start, timestamp, seq));
                    if wider.is_some_and(|wider| seq < wider) {
                        self.stats.hidden += 1;
                        self.recycle(record);
                    } else {
                        self.decide_tombstone(record, stripe, start);
                    }
                }
                // Malformed: kept, so that a read reports it.
                None => self.emit(record),
            },
        }
        Ok(())
    }

    /// Judges the cell at its newest value or operand; `Keep` for all others.
    fn judge(&mut self, seq: Seq, stripe: usize) -> Verdict {
        if self.cell.judged {
            return Verdict::Keep;
        }
        self.cell.judged = true;
        let at = self.timestamp;
        let live = !self.row_excised.hide_latest(seq)
            && !self.column_hiders.hide_latest(seq)
            && !self.ranges.iter_mut().any(|ranges| seq < ranges.hidden_below(at));
        let in_snapshot = stripe < self.latest_stripe();
        let family = self.spec.schema.family(self.family);
        self.gc.judge(family, self.timestamp, live, in_snapshot, self.spec.times)
    }

    /// A tombstone of the current family (of the row, where that is none), which hides timestamps from `from` on.
    fn decide_tombstone(&mut self, record: Record, stripe: usize, from: Timestamp) {
        if stripe == 0 && !self.spec.beneath.may_have(self.family, from) {
            self.stats.tombstones_dropped += 1;
            self.recycle(record);
        } else {
            self.emit(record);
        }
    }

    /// A value or operand that no tombstone hides in its stripe.
    fn decide_cell(&mut self, record: Record, kind: Kind, stripe: usize, collect: bool) {
        if collect {
            self.cell.ended = Some(stripe);
            self.cell.collected = true;
            self.bury(record);
            return;
        }
        if self.cell.ended == Some(stripe) {
            if self.cell.collected {
                self.stats.collected += 1;
            } else {
                self.stats.overwritten += 1;
            }
            self.recycle(record);
            return;
        }
        let how = self.spec.schema.family(self.family).and_then(|f| f.aggregate);
        if kind != Kind::Merge {
            self.cell.ended = Some(stripe);
            self.cell.collected = false;
        }
        let Some(how) = how else { return self.emit(record) };
        if let Some(Held::Operand { state, stripe: held, is_combined }) = &mut self.cell.held
            && *held == stripe
            && kind != Kind::ValueElsewhere
            && state.add(how, &record.value)
        {
            *is_combined = true;
            self.stats.overwritten += 1;
            self.recycle(record);
            if kind == Kind::Value {
                self.release_held_as(Kind::Value);
            }
            return;
        }
        let state = (kind == Kind::Merge).then(|| aggregate::State::begin(how, &record.value));
        match state.flatten() {
            Some(state) => {
                self.release_held();
                self.held = record;
                self.cell.held = Some(Held::Operand { state, stripe, is_combined: false });
            }
            None => self.emit(record),
        }
    }

    /// Turns a collected cell's newest record into a tombstone over its timestamp. See [`super::gc`].
    fn bury(&mut self, mut record: Record) {
        if let Some(kind) = record.key.last_mut() {
            *kind = Kind::CellTombstone as u8;
        }
        record.value = Bytes::copy_from_slice(&self.timestamp.to_be_bytes());
        if self.spec.beneath.may_have(self.family, self.timestamp) {
            self.stats.buried += 1;
            self.emit(record);
        } else {
            self.held = record;
            self.cell.held = Some(Held::Burial);
        }
    }

    /// Hands out `record` after what is held.
    fn emit(&mut self, record: Record) {
        self.release_held();
        self.ready.push_back(record);
    }

    /// Hands out what is held: an older record of the cell is kept.
    fn release_held(&mut self) {
        self.release_held_as(Kind::Merge);
    }

    /// The same; combined operands become a record of `kind`.
    fn release_held_as(&mut self, kind: Kind) {
        let Some(held) = self.cell.held.take() else { return };
        let mut record = std::mem::take(&mut self.held);
        match held {
            Held::Operand { is_combined: false, .. } => {}
            Held::Operand { state, .. } => {
                if let Some(last) = record.key.last_mut() {
                    *last = kind as u8;
                }
                record.value = state.encode();
            }
            Held::Burial => self.stats.buried += 1,
        }
        self.ready.push_back(record);
    }

    /// Ends the current cell.
    fn close_cell(&mut self) {
        if let Some(Held::Burial) = self.cell.held {
            // Nothing of the cell is left that the tombstone would hide.
            self.stats.collected += 1;
            let record = std::mem::take(&mut self.held);
            self.recycle(record);
        } else {
            self.release_held();
        }
        self.cell = CellState::default();
    }

    fn recycle(&mut self, record: Record) {
        self.spare.push(record.key);
    }

    fn enter_row(&mut self, key: KeyView<'_>) {
        self.row.clear();
        self.row.extend_from_slice(key.row_prefix());
        let stripes = self.latest_stripe() + 1;
        self.row_hiders.reset(stripes);
        self.row_excised.reset(stripes);
        for excised in self.excised.iter().filter(|e| e.covers(&self.row)) {
            // It hides what is not newer than itself, from the views that are not older than itself.
            let stripe = self.spec.snapshots.partition_point(|s| *s < excised.seq());
            self.row_excised.add(stripe, excised.seq().saturating_add(1));
        }
        self.enter_family(FAMILY_NONE);
    }

    fn enter_family(&mut self, family: FamilyId) {
        self.family = family;
        self.family_known = self.spec.schema.family(family).is_some();
        self.family_hiders.copy_from(&self.row_hiders);
        self.column.clear();
    }

    fn enter_column(&mut self, key: KeyView<'_>) {
        self.column.clear();
        self.column.extend_from_slice(key.column_prefix());
        debug_assert!(self.column.len() + SUFFIX_LEN == key.bytes().len(), "a prefix and a suffix");
        self.column_hiders.copy_from(&self.family_hiders);
        self.ranges.iter_mut().for_each(RangeTombstones::clear);
        self.gc = ColumnGc::default();
    }
}

#[cfg(test)]
mod tests;
