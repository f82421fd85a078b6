//! Collecting garbage where changes are kept: cells that rules let go are deleted, row by row, by batches in the log.
//!
//! Elsewhere compactions drop such cells, at no moment that history knows. Readers of [changes](crate::changes) are to see what
//! garbage collection takes, each cell once and in the order of commits. So flushes and compactions of a tablet whose changes are kept drop
//! none, and the collector deletes them as a client would, but by batches of [their own source](crate::log::Source):
//!
//! ```text
//!  file that may hold garbage, by its properties
//!      │ walked alone, past the cache: rows with cells that the rules let go as far as it tells
//!      ▼
//!  row lock ─► read, what is pending included ─► the rules, now ─► deletions into log and memtable ─► unlock
//!      │                                                                        │
//!      ▼                                                                        ▼
//!  when all of the file was walked: left alone until its next cell expires      flushed, and merged down to what they delete
//! ```
//!
//! Guarantees:
//!
//! * What a batch deletes is what the rules, at its moment, let go of what the row has then: a cell that was written or deleted since
//!   the file was walked is judged as it is under the lock.
//! * Replaying all changes of a tablet on what it had when they began to be kept gives what reads see. Nothing is deleted twice: what was
//!   deleted is not read again. What a crash or a stop left over is found again.
//! * Memory: [`SLICE_CELLS_MAX`] cells of a row, and [`COLUMN_SLICES`] times as many of one column, without their values, however large it is, and the deletions of [`UNSYNCED_ROWS_MAX`] that wait for their sync. No list of rows.
//! * It gives way: a piece of a file at a time, so that tablets take turns; no row while writes are refused; and what it writes is
//!   paced as compactions are.
//!
//! Why no versions are missed that lie in different files: compactions lay them side by side in one where that is worth what they meet, as they do elsewhere
//! ([`collect`]), and then it is the new file that may hold garbage.

use std::collections::HashMap;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;

use crate::cell::{Cell, FamilyId, Mutation, Row, RowBatch, RowRange, Seq, TimestampRange};
use crate::compaction::candidates::{Candidates, Newer, garbage_of};
use crate::compaction::collect;
use crate::compaction::input::RunCursor;
use crate::compaction::pace::Urgency;
use crate::core::EngineMetrics;
use crate::cursor::{Cursor, Step};
use crate::error::{Error, ErrorKind, Result};
use crate::log::Source;
use crate::manifest::SstRef;
use crate::read::{FamilyProjection, Projection, Qualifiers};
use crate::schema::TabletSchema;
use crate::sst::{FileId, WINDOWS_BYTES, window_bytes};
use crate::store::SstFile;

use super::failures::longer_wait;
use super::{ReadView, Tablet};

/// Bytes of a file that are walked before the next tablet has its turn, and within a large row before it is asked whether the walk is to end:
/// some milliseconds of work.
const PIECE_BYTES_MAX: u64 = 4 << 20;

/// Rows that are locked and read before the next tablet has its turn: where each is read from the disk, as long again.
const PIECE_ROWS_MAX: u64 = 256;

/// Mutations of one batch. A row may have a million columns with garbage, and readers of changes take whole batches.
const BATCH_MUTATIONS_MAX: usize = 1_000;

/// Cells of a row that are read at a time. A row may have more than a read returns; this many, each with the longest
/// qualifier, are less. More would lock the row for longer, fewer would read large rows in more pieces.
pub(super) const SLICE_CELLS_MAX: u32 = 10_000;

/// Slices' worth of cells that are read at a time where a column goes on behind a slice all of which stays: they have its qualifier in
/// common, and are 12 MiB. Where a column has tombstones a read passes all that is newer, with the row locked: fewer at a time would take
/// longer for columns of a million versions.
const COLUMN_SLICES: u32 = 16;

/// Bytes of a qualifier up to which that is so: a read counts it with each cell, and returns no more than 256 MiB.
const COLUMN_QUALIFIER_BYTES_MAX: usize = 1 << 10;

/// Rows whose deletions wait for their sync while more are made. Fewer would wait for a sync for each row; more only let
/// more wait.
const UNSYNCED_ROWS_MAX: usize = 64;

/// How long nothing is deleted after writes were refused, in microseconds. What is behind takes about as long to catch up.
const PRESSED_WAIT_MICROS: u64 = 1_000_000;

/// How far the wall clock may go back for what was walked to count still. Less is how clocks are kept right, and makes nothing wait for longer.
const SET_BACK_MICROS: i64 = 60 * 1_000_000;

/// What the collector of a tablet knows of its files.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// A file is being walked.
    walking: bool,
    /// Where to go on.
    place: Option<Place>,
    /// Files that were walked. No more than the version has.
    walked: HashMap<FileId, Walk>,
    /// When to look for a file next (monotonic micros).
    look_at: u64,
    /// When a piece was claimed last (monotonic micros).
    claimed_at: u64,
    /// How often the rules have changed.
    changes: u64,
    /// The latest time by which a file was walked, in microseconds since 1970.
    latest_micros: i64,
}

impl Progress {
    /// The rules have changed: what was walked was walked by others.
    pub(super) fn begin_anew(&mut self) {
        self.place = None;
        self.walked.clear();
        self.look_at = 0;
        self.changes += 1;
    }

    /// It is `now_micros` by the wall clock. Where that was ahead, what was walked by it was not walked for what it said had expired, and would
    /// be left alone until it says so again.
    fn look_at_clock(&mut self, now_micros: i64) {
        if now_micros < self.latest_micros.saturating_sub(SET_BACK_MICROS) {
            self.place = None;
            self.walked.clear();
            self.latest_micros = i64::MIN;
        }
        self.latest_micros = self.latest_micros.max(now_micros);
    }
}

/// When a file was walked, in microseconds since 1970.
#[derive(Debug, Clone, Copy)]
struct Walk {
    /// What rules let go of it by then was deleted; `None` where that is not known.
    deleted_micros: Option<i64>,
    /// It is to be left alone until then.
    until_micros: i64,
    /// How long that was after the last failure; 0 where the last walk did not fail.
    failed_wait_micros: u64,
}

impl Walk {
    fn done(began_micros: i64, until_micros: i64) -> Self {
        Self { deleted_micros: Some(began_micros), until_micros, failed_wait_micros: 0 }
    }
}

/// A place in a file.
#[derive(Debug)]
struct Place {
    file: FileId,
    /// When the file was walked before, and when this walk began.
    deleted_micros: Option<i64>,
    began_micros: i64,
    /// The prefix of the row to go on with; empty for the first.
    from: Vec<u8>,
    /// When the next of the cells before it may go.
    due_micros: i64,
    /// A row before it could not be read.
    has_unread: bool,
}

/// What came of walking a piece of a file.
enum Walked {
    /// There is more of it.
    Piece(Place),
    /// There is more of it, but writes are refused.
    Pressed(Place),
    /// All of it: when to do so again, in microseconds since 1970.
    Whole(i64),
    /// All of it, but for rows that could not be read.
    AllButUnread,
    /// A compaction has taken it away.
    Gone,
}

/// A piece of a file to walk, the caller's to do: nobody else walks the tablet's files until this is dropped.
pub(crate) struct Look {
    tablet: Arc<Tablet>,
    place: Place,
    changes: u64,
}

impl Drop for Look {
    fn drop(&mut self) {
        self.tablet.picks().collector.walking = false;
    }
}

impl Tablet {
    /// Claims a piece of a file that may hold cells to delete, if changes are kept and it is time to look. Of the cells that a
    /// walk judges, one that rules let go later, without any other being written, is so by its age, which the file tells: so
    /// what was deleted when the file was walked before need not be read again, until it comes to an age at which it may go with fewer newer cells
    /// than the file counts, of which some may be deleted.
    pub(crate) fn claim_to_look(self: &Arc<Self>) -> Option<Look> {
        self.changes_kept()?;
        let schema = self.schema.load_full().filter(|schema| schema.has_user_rules())?;
        let clock = &self.core.env.clock;
        let now = clock.monotonic_micros();
        let mut picks = self.picks();
        if self.is_dropped() || picks.collector.walking || now < picks.collector.look_at {
            return None;
        }
        if self.core.check_writable().is_err() || self.is_pressed() {
            picks.collector.look_at = now + PRESSED_WAIT_MICROS;
            return None;
        }
        let blocked = self.blocked(&self.jobs());
        let view = self.view.load_full();
        let has = |id: FileId| view.files.contains_key(&id);
        let now_micros = self.core.expiry_micros();
        picks.collector.look_at_clock(now_micros);
        let place = match picks.collector.place.take().filter(|place| has(place.file)) {
            Some(place) => Some(place),
            None => {
                picks.collector.walked.retain(|id, _| has(*id));
                let bytes = view.version.total_bytes();
                let walked = &picks.collector.walked;
                let is_wanted = |id: FileId| {
                    let reader = view.file(id).and_then(|file| file.reader().cloned());
                    // What a compaction reads is about to be another file.
                    !blocked.files.contains(&id)
                        && walked.get(&id).is_none_or(|walk| walk.until_micros <= now_micros)
                        && reader.is_ok_and(|reader| {
                            collect::may_delete(reader.properties(), &schema, bytes, now_micros)
                        })
                };
                let file = view.version.ssts().map(|file| file.id).find(|id| is_wanted(*id));
                file.map(|file| Place {
                    file,
                    deleted_micros: walked.get(&file).and_then(|walk| walk.deleted_micros),
                    began_micros: now_micros,
                    from: Vec::new(),
                    due_micros: i64::MAX,
                    has_unread: false,
                })
            }
        };
        let Some(place) = place else {
            picks.collector.look_at = now + self.core.options.gc_interval_ms * 1000;
            return None;
        };
        picks.collector.walking = true;
        picks.collector.claimed_at = now;
        let changes = picks.collector.changes;
        drop(picks);
        Some(Look { tablet: Arc::clone(self), place, changes })
    }

    /// When [`Self::claim_to_look`] had something last (monotonic micros), so that tablets take turns.
    pub(crate) fn looked_at(&self) -> u64 {
        self.picks().collector.claimed_at
    }

    /// Whether clients' writes are refused for what background work has to do first.
    fn is_pressed(&self) -> bool {
        self.core.lacks_room() || self.pressure().refused_share() > 0.0
    }

    /// Deletes the cells of a row that the rules let go now. Returns the sequence up to which all has to be visible until that
    /// is durable, and the bytes of log that it takes; `None` where there is nothing to delete.
    pub(super) async fn collect_row(&self, row: Bytes) -> Result<Option<(Seq, u64)>> {
        EngineMetrics::add(&self.core.metrics.collector_rows, 1);
        let mut collected: Option<(Seq, u64)> = None;
        let mut slice = Some(Slice { from: None, cells_max: SLICE_CELLS_MAX });
        while let Some(at) = slice {
            let (deleted, next) = self.collect_slice(&row, at).await?;
            if let Some((last, bytes)) = deleted {
                let before = collected.map_or(0, |(_, bytes)| bytes);
                collected = Some((last, before + bytes));
            }
            slice = next.filter(|_| !self.core.stopping() && !self.is_dropped());
        }
        Ok(collected)
    }

    /// The same of a part of a row, and which part comes next. The row is locked meanwhile: a column is judged as a whole, or the newest
    /// cells of it, by which nothing is said of older ones; where all of those stay, the older ones are judged after them, piece by piece.
    pub(super) async fn collect_slice(
        &self,
        row: &Bytes,
        slice: Slice,
    ) -> Result<(Option<(Seq, u64)>, Option<Slice>)> {
        let lock = self.lock_row(row).await;
        let schema = self.require_schema()?;
        let begun = slice.clone();
        let mut part = Part { slice, column: None };
        let (deletions, cells, mut next) = loop {
            let projection = part.projection(&schema);
            let found = self.read_row(row, &projection, ReadView::Pending).await?;
            let is_over = self.core.stopping() || self.is_dropped();
            if self.changes_kept().is_none() || is_over {
                return Ok((None, None));
            }
            // Pieces may take long: what was judged by the rules of before is judged anew.
            if !Arc::ptr_eq(&schema, &self.require_schema()?) {
                return Ok((None, Some(part.slice)));
            }
            let mut found = found.unwrap_or_else(|| Row { key: row.clone(), cells: Vec::new() });
            let cut = part.cut(&mut found);
            let (mut deletions, cells) =
                garbage_of(&found, part.newer(), &schema, self.core.expiry_micros());
            match (cut, deletions.as_mut_slice()) {
                (Some(Cut::SameColumn(column)), []) => part.go_on(column, &found),
                // What a rule says of a cell it says of the older ones of its column too: they need not be read, slice by slice and each
                // behind all that those before it have deleted.
                (Some(Cut::SameColumn(column)), [Mutation::DeleteCells { timestamps, .. }]) => {
                    timestamps.start = 0;
                    break (deletions, cells, Some(part.slice.after(column)));
                }
                (cut, _) => break (deletions, cells, part.next(cut)),
            }
        };
        if deletions.is_empty() {
            return Ok((None, next));
        }
        let mut bytes = 0;
        for mutations in deletions.chunks(BATCH_MUTATIONS_MAX) {
            let batch = RowBatch { row: row.clone(), mutations: mutations.to_vec() };
            let encoded = self.encode(&batch, Source::GarbageCollection)?;
            bytes += encoded.len() as u64;
            let permit = self.core.pipeline.admit(encoded.len()).await?;
            // Writers may have been before it for long.
            if !Arc::ptr_eq(&schema, &self.require_schema()?) {
                next = Some(begun);
                break;
            }
            // Nobody waits for each of them: the log's thread writes it.
            drop(self.enqueue([encoded], permit, &mut [batch])?);
        }
        let last = self.core.pipeline.last_begun()?;
        drop(lock);
        EngineMetrics::add(&self.core.metrics.cells_collected, cells);
        Ok((Some((last, bytes)), next))
    }
}

/// A column of a family.
type Column = (FamilyId, Bytes);

/// A part of a row that is judged at a time: so many of its cells, from a column on.
#[derive(Debug, Clone)]
pub(super) struct Slice {
    /// `None` for the first column of the row.
    pub(super) from: Option<Column>,
    pub(super) cells_max: u32,
}

impl Slice {
    /// What comes after all of a column.
    fn after(&self, (family, qualifier): Column) -> Self {
        // The next that there can be.
        let from = (family, [qualifier.as_ref(), &[0]].concat().into());
        Self { from: Some(from), ..*self }
    }
}

/// What of a slice is read at a time: all of it, or more of its only column.
struct Part {
    slice: Slice,
    /// The column, and what was read of it, all of which stays.
    column: Option<(Column, Newer)>,
}

/// What follows cells that are as many as a part may have.
enum Cut {
    /// Another column; or more of the one that was left out, since it may not be whole.
    Column(Column),
    /// More of the only column.
    SameColumn(Column),
}

impl Part {
    /// What is newer in its column than what is read.
    fn newer(&self) -> Newer {
        self.column.as_ref().map_or(Newer::NONE, |(_, newer)| *newer)
    }

    fn cells_max(&self) -> u32 {
        match &self.column {
            Some(((_, qualifier), _)) if qualifier.len() <= COLUMN_QUALIFIER_BYTES_MAX => {
                self.slice.cells_max.saturating_mul(COLUMN_SLICES)
            }
            _ => self.slice.cells_max,
        }
    }

    /// The families of the table that have rules, without values, from the slice's column on; or what is older of the column.
    fn projection(&self, schema: &TabletSchema) -> Projection {
        let cells_per_row_max = self.cells_max();
        let of = |families, timestamps| Projection {
            families: Some(families),
            timestamps,
            cells_per_row_max,
            values: false,
            ..Projection::all()
        };
        if let Some(((family, qualifier), newer)) = &self.column {
            let only = (Bound::Included(qualifier.clone()), Bound::Included(qualifier.clone()));
            let family =
                FamilyProjection { family: *family, qualifiers: [only].into_iter().collect() };
            return of(vec![family], TimestampRange { end: newer.last, ..TimestampRange::ALL });
        }
        let from = &self.slice.from;
        let ruled = schema.families.keys().filter(|id| schema.user_rule(**id).is_some());
        let ruled = ruled.filter(|id| from.as_ref().is_none_or(|(from, _)| **id >= *from));
        let families = ruled.map(|id| {
            let qualifiers = match from {
                Some((family, qualifier)) if family == id => {
                    let rest = (Bound::Included(qualifier.clone()), Bound::Unbounded);
                    [rest].into_iter().collect()
                }
                _ => Qualifiers::ALL,
            };
            FamilyProjection { family: *id, qualifiers }
        });
        of(families.collect(), TimestampRange::ALL)
    }

    /// Where there may be more of the row, what: takes the last column out, unless it is the only one.
    fn cut(&self, found: &mut Row) -> Option<Cut> {
        if (found.cells.len() as u64) < u64::from(self.cells_max()) {
            return None;
        }
        let last = found.cells.last()?;
        let (family, qualifier) = (last.family, last.qualifier.clone());
        let begins = |cell: &Cell| cell.family == family && cell.qualifier == qualifier;
        match found.cells.iter().position(begins)? {
            0 => Some(Cut::SameColumn((family, qualifier))),
            whole => {
                found.cells.truncate(whole);
                Some(Cut::Column((family, qualifier)))
            }
        }
    }

    /// All of `found` stays: what is older in its only column is read next.
    fn go_on(&mut self, column: Column, found: &Row) {
        let Newer { cells, last } = self.newer();
        let read = u32::try_from(found.cells.len()).unwrap_or(u32::MAX);
        let last = found.cells.last().map_or(last, |cell| cell.timestamp);
        self.column = Some((column, Newer { cells: cells.saturating_add(read), last }));
    }

    /// The slice after this one, where there may be more of the row.
    fn next(self, cut: Option<Cut>) -> Option<Slice> {
        match (self.column, cut) {
            (Some((column, _)), _) => Some(self.slice.after(column)),
            (None, Some(Cut::Column(column) | Cut::SameColumn(column))) => {
                Some(Slice { from: Some(column), ..self.slice })
            }
            (None, None) => None,
        }
    }
}

impl Look {
    /// Walks the piece and deletes what it finds. Blocks. After a failure the file is left alone for a while, twice as long after each
    /// further one: it is walked from its beginning again, and damage in it stays. So it is after a walk that had to leave rows out.
    pub(crate) fn run(self) -> Result<()> {
        let tablet = Arc::clone(&self.tablet);
        let walked = self.walk();
        let clock = &tablet.core.env.clock;
        let mut picks = tablet.picks();
        let progress = &mut picks.collector;
        // By rules that are not in force any more; it begins anew.
        let outdated = progress.changes != self.changes;
        let result = match walked {
            Ok(_) if outdated => Ok(()),
            Ok(Walked::Gone) => Ok(()),
            Ok(Walked::Piece(place)) => {
                progress.place = Some(place);
                Ok(())
            }
            Ok(Walked::Pressed(place)) => {
                progress.place = Some(place);
                progress.look_at = clock.monotonic_micros() + PRESSED_WAIT_MICROS;
                Ok(())
            }
            Ok(Walked::Whole(until_micros)) => {
                let walk = Walk::done(self.place.began_micros, until_micros);
                progress.walked.insert(self.place.file, walk);
                Ok(())
            }
            Ok(Walked::AllButUnread) => {
                let last = progress.walked.get(&self.place.file);
                let walk = self.after_failure(last, self.place.deleted_micros);
                progress.walked.insert(self.place.file, walk);
                Ok(())
            }
            Err(error) => {
                let last = progress.walked.get(&self.place.file);
                let last = last.filter(|_| !error.is_shortage());
                // By other rules it says nothing.
                let walk =
                    self.after_failure(last, self.place.deleted_micros.filter(|_| !outdated));
                progress.walked.insert(self.place.file, walk);
                if Tablet::is_stop(&error) || tablet.is_dropped() { Ok(()) } else { Err(error) }
            }
        };
        drop(picks);
        result.inspect_err(|error| {
            tracing::error!(tablet = tablet.id.0, %error, "cannot collect garbage; it is tried again");
        })
    }

    /// What is known of the file after a walk that did not delete all, by what was of the last one.
    fn after_failure(&self, last: Option<&Walk>, deleted_micros: Option<i64>) -> Walk {
        let failed_wait_micros = longer_wait(last.map_or(0, |walk| walk.failed_wait_micros));
        let wait = i64::try_from(failed_wait_micros).unwrap_or(i64::MAX);
        let until_micros = self.tablet.core.expiry_micros().saturating_add(wait);
        Walk { deleted_micros, until_micros, failed_wait_micros }
    }

    /// The file; `None` where it is gone.
    fn file(&self) -> Result<Option<Walking>> {
        let (id, view) = (self.place.file, self.tablet.hold());
        // A file that is cut has several references.
        let mut parts: Vec<_> = view.version.ssts().filter(|file| file.id == id).cloned().collect();
        if parts.is_empty() {
            return Ok(None);
        }
        parts.sort_by(|a, b| a.first_visible().cmp(b.first_visible()));
        let open = Arc::clone(view.file(id)?);
        Ok(Some(Walking { open, parts, tablet_bytes: view.version.total_bytes() }))
    }

    fn walk(&self) -> Result<Walked> {
        let tablet = self.tablet.as_ref();
        let core = &tablet.core;
        let schema = tablet.require_schema()?;
        let Some(file) = self.file()? else { return Ok(Walked::Gone) };
        let Walking { open, parts, tablet_bytes } = file;
        let parts = parts.into_iter().map(|part| (Arc::clone(&open), part));
        let mut cursor =
            RunCursor::new(parts, &core.env.io, &RowRange::all(), window_bytes(1, WINDOWS_BYTES));
        let step = cursor.seek(&self.place.from)?;
        debug_assert!(step == Step::Ready, "a run is never blocked");
        let now_micros = core.expiry_micros();
        let mut candidates = Candidates::new(&schema, now_micros, self.place.deleted_micros);
        let has_unread = self.place.has_unread;
        let mut deletions = Deletions { tablet, unsynced: None, rows: 0, has_unread };
        let moved = |from, due_micros, so_far: &Deletions<'_>| Place {
            from,
            due_micros,
            has_unread: so_far.has_unread,
            ..self.place
        };
        let (mut row, mut found) = (Vec::new(), false);
        let (mut bytes, mut rows) = (0, 0);
        let is_over = || core.stopping() || tablet.is_dropped() || tablet.changes_kept().is_none();
        let mut asked_at = 0;
        let walked = loop {
            let entry = cursor.entry();
            if entry.is_none_or(|entry| entry.key.row_prefix() != row.as_slice()) {
                let due_micros = self.place.due_micros.min(candidates.due_micros());
                if std::mem::take(&mut found) {
                    if tablet.is_pressed() {
                        break Walked::Pressed(moved(row, due_micros, &deletions));
                    }
                    rows += 1;
                    deletions.collect(&row)?;
                }
                let Some(entry) = entry else { break Walked::Whole(due_micros) };
                row.clear();
                row.extend_from_slice(entry.key.row_prefix());
                if is_over() || bytes >= PIECE_BYTES_MAX || rows >= PIECE_ROWS_MAX {
                    break Walked::Piece(moved(row, due_micros, &deletions));
                }
            } else if bytes >= asked_at + PIECE_BYTES_MAX {
                // What was found of the row is found again where it goes on.
                if is_over() {
                    let due_micros = self.place.due_micros.min(candidates.due_micros());
                    break Walked::Piece(moved(row, due_micros, &deletions));
                }
                asked_at = bytes;
            }
            if let Some(entry) = entry {
                found |= candidates.take(entry.key);
                bytes += (entry.key.bytes().len() + entry.value.len()) as u64;
            }
            let step = cursor.next()?;
            debug_assert!(step == Step::Ready, "a run is never blocked");
        };
        deletions.sync()?;
        Ok(match walked {
            Walked::Whole(_) if deletions.has_unread => Walked::AllButUnread,
            Walked::Whole(due_micros) => {
                let properties = open.reader()?.properties();
                let patience = properties.families.iter().filter_map(|(id, family)| {
                    Some(collect::patience(schema.user_rule(*id)?, family, tablet_bytes))
                });
                let due = due_micros.saturating_add(patience.max().unwrap_or(0));
                let wait = collect::rest(&schema, tablet_bytes, core.space.is_tight());
                let wait = i64::try_from(wait).unwrap_or(i64::MAX);
                Walked::Whole(due.max(core.expiry_micros().saturating_add(wait)))
            }
            other => other,
        })
    }
}

/// What is held of the tablet while a file of it is walked, at its pace: not its view, whose memtables would be there for as long.
struct Walking {
    open: Arc<SstFile>,
    /// The parts of it that are shown, in their order.
    parts: Vec<Arc<SstRef>>,
    /// Bytes of all files of the tablet.
    tablet_bytes: u64,
}

/// Deletions on their way.
struct Deletions<'a> {
    tablet: &'a Tablet,
    /// Up to where all has to be visible until they are durable.
    unsynced: Option<Seq>,
    /// Rows since the last that is.
    rows: usize,
    /// A row could not be read.
    has_unread: bool,
}

impl Deletions<'_> {
    /// Collects the row with this prefix; leaves it as it is where it cannot be read, and those behind it have their turn.
    fn collect(&mut self, prefix: &[u8]) -> Result<()> {
        let mut row = Vec::with_capacity(prefix.len());
        crate::cell::row_of_prefix(prefix, &mut row);
        let collected = match pollster::block_on(self.tablet.collect_row(Bytes::from(row))) {
            Err(error) if error.kind() == ErrorKind::RowTooLarge || self.is_unread(&error) => {
                self.has_unread |= error.kind() != ErrorKind::RowTooLarge;
                let core = &self.tablet.core;
                if let Some(left_out) = core.said_of_rows.of_many(core.env.clock.monotonic_micros())
                {
                    tracing::warn!(tablet = self.tablet.id.0, %error, left_out, "cannot collect the garbage of a row");
                }
                return Ok(());
            }
            collected => collected?,
        };
        let Some((last, bytes)) = collected else { return Ok(()) };
        self.unsynced = Some(last);
        self.rows += 1;
        if self.rows >= UNSYNCED_ROWS_MAX {
            self.sync()?;
        }
        let core = &self.tablet.core;
        core.keep_pace(bytes, Urgency::Rest, &|| core.stopping() || self.tablet.is_dropped());
        Ok(())
    }

    /// Whether an error is one of reading the row: what fails to be written makes the engine read-only.
    fn is_unread(&self, error: &Error) -> bool {
        matches!(error.kind(), ErrorKind::Corruption | ErrorKind::Io)
            && self.tablet.core.check_healthy().is_ok()
    }

    /// Waits until all are durable.
    fn sync(&mut self) -> Result<()> {
        self.rows = 0;
        let Some(last) = self.unsynced.take() else { return Ok(()) };
        pollster::block_on(self.tablet.core.pipeline.wait_visible_unless_full(last))
    }
}
