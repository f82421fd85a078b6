//! `ReadRows`: rows out of the tablets, through the filter, into messages.
//!
//! ```text
//! pieces (rows and ranges, in order) ─► RowReader ─► Responder ─► messages, pulled by the caller
//!                                       engine reads  filter, limit, chunks, progress
//! ```
//!
//! Nothing runs unless it is pulled, so a slow client slows the read down and no more than the rows that the engine takes at
//! once and one message wait for it. Runs of single rows are the exception: a few are read at once, so that
//! their disk reads overlap.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesOrdered;
use tepui_engine::aside::Aside;
use tepui_engine::cell::{PinnedRow, ReadRow, Row, RowRange};
use tepui_engine::error::ErrorKind;
use tepui_engine::io::{Clock, Rng};
use tepui_engine::memtable::SHARED_VALUE_BYTES_MIN;
use tepui_engine::read::{Projection, RowStream};
use tepui_engine::tablet::{ReadView, ScanOptions, Tablet, TabletId};

use crate::activity;
use crate::chunk::{Chunker, LargeRows, MESSAGE_BYTES_TARGET};
use crate::error::{Error, Result};
use crate::filter::{Passed, RowCell};
use crate::limits;
use crate::read_stats::ReadStats;
use crate::response::ReadRowsMessage;
use crate::schema::FamilyNames;
use crate::selection::{Pace, Selection};
use crate::tablets::{Piece, Pieces};
use crate::turn::{Turn, others_first};

/// Single rows that are read at once, at most. Enough to keep a disk's queue filled; more would only
/// hold memory for a client that may not want it.
const POINT_READS_MAX: usize = 16;

/// Single rows that are read at once at the beginning, while it is not known how large they are. Each that was read lets
/// twice as many be under way, up to [`POINT_READS_MAX`], as far as [`POINT_READS_BYTES_MAX`] allows. Sixteen at once would take
/// 4 GiB where all are as large as rows may be, and what a table's rows have on average says nothing of those that
/// are asked for. With two, sixteen small rows would wait for the device three times, with four twice: these let sixteen
/// be under way, and so the other twelve.
const POINT_READS_FIRST: usize = 4;

/// Bytes of rows that are read ahead, roughly, at most: rows as large as the largest so far are read ahead only
/// as far as this, or as the caller has room for.
const POINT_READS_BYTES_MAX: usize = 16 << 20;

/// The same, at least, however little room the caller has: sixteen rows of 4 KiB.
const POINT_READS_BYTES_MIN: usize = 64 << 10;

/// Rows are taken to be as large as the largest of late, which each row makes smaller by this part: behind one of a megabyte, rows of a
/// kilobyte are read one by one twenty times, and not to the end. Lower: a table of which every tenth row is large reads too much ahead.
const LARGEST_FADES: usize = 8;

/// Where there was no room for what was read ahead, each row that is read makes what may be by this part larger: twice as much after 45.
const AHEAD_GROWS: usize = 64;

/// Rows looked at between two messages, at most. A filter that lets nothing pass thus still tells the
/// client where a retry may start, and gives the thread back to others.
const LOOKED_AT_ROWS_MAX: u64 = 10_000;

/// Cells looked at between two messages, at most: the same for wide rows.
const LOOKED_AT_CELLS_MAX: u64 = 100_000;

/// Bytes of values looked at between two messages, at most: the same for rows of large values, which a slow disk reads in a second or
/// so. Between messages a client learns where a retry may start, and the engine is let go of where memory or disk is short.
const LOOKED_AT_BYTES_MAX: usize = 64 << 20;

/// Cells from which on a row is filtered and made into messages by this thread's helper, where it has one: some hundred nanoseconds each,
/// so that others would wait for half a millisecond. With fewer, rows would wait for the way there and back for little.
const WIDE_ROW_CELLS: usize = 4096;

/// Bytes of a row's cells that are copied into messages from which on the row is the helper's, too, whatever its cells: as many take half a
/// millisecond where memory is slow, and values that are left where they are none of that. With fewer, rows would wait for the way there and
/// back for little.
const COPIED_ROW_BYTES: usize = 512 << 10;

/// Bytes of values that a filter may drop before those that it let pass are copied. A value in a message is a slice of the
/// memory that it was read into, with a hundred others perhaps: where one in a hundred passes, a message of a megabyte would
/// hold a hundred, and nobody counts those. More holds more beside each message; with less, values would be copied although
/// a third of what they hold is sent.
const DROPPED_BYTES_MAX: usize = 2 << 20;

/// What the engine has to say about rows, in the order of the read.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Seen {
    /// A row with cells.
    Row(Row),
    /// The same, in the memory that it was read from.
    Pinned(PinnedRow),
    /// A row that was asked for and has no cells.
    Nothing(Bytes),
    /// Every row up to this one was looked at, and that took long.
    Mark(Bytes),
    /// A range was read to its end, and more follows.
    RangeEnd {
        /// Where nothing was seen in it: a key of it, which lies behind all that was seen before.
        key: Option<Bytes>,
        /// Records that were looked at behind the last row that was seen.
        records: u64,
    },
}

impl Seen {
    /// A row of a scan, or the mark of progress that one without cells is.
    fn of(row: ReadRow) -> Self {
        match row {
            row if row.is_mark() => Self::Mark(row.key().clone()),
            ReadRow::Merged(row) => Self::Row(row),
            ReadRow::Pinned(row) => Self::Pinned(row),
        }
    }

    /// How many cells it has.
    fn cells(&self) -> usize {
        match self {
            Self::Row(row) => row.cells.len(),
            Self::Pinned(row) => row.cells.len(),
            Self::Nothing(_) | Self::Mark(_) | Self::RangeEnd { .. } => 0,
        }
    }

    /// Bytes of its key, where it has cells.
    fn key_bytes(&self) -> usize {
        match self {
            Self::Row(row) => row.key.len(),
            Self::Pinned(row) => row.key.len(),
            Self::Nothing(_) | Self::Mark(_) | Self::RangeEnd { .. } => 0,
        }
    }

    /// Bytes of its cells that a message has for itself.
    fn copied_bytes(&self) -> usize {
        match self {
            Self::Row(row) => copied_bytes(&row.cells),
            Self::Pinned(row) => copied_bytes(&row.cells),
            Self::Nothing(_) | Self::Mark(_) | Self::RangeEnd { .. } => 0,
        }
    }

    /// Bytes of the cells.
    fn row_bytes(&self) -> usize {
        match self {
            Self::Row(row) => row_bytes(&row.cells),
            Self::Pinned(row) => row_bytes(&row.cells),
            Self::Nothing(_) | Self::Mark(_) | Self::RangeEnd { .. } => 0,
        }
    }
}

/// What to read, and how.
pub(crate) struct Plan {
    /// What of which tablet.
    pub pieces: Pieces<Arc<Tablet>>,
    /// How many rows and ranges the request has, whose pieces are counted with it.
    pub asked: usize,
    /// The cells that are wanted.
    pub selection: Selection,
    /// The names of the table's families.
    pub families: FamilyNames,
    /// For filters that leave rows to chance.
    pub rng: Arc<dyn Rng>,
    /// From the last row to the first.
    pub reverse: bool,
    /// Rows to send, at most.
    pub rows_limit: Option<u64>,
    /// What becomes of rows that are larger than a message.
    pub large_rows: LargeRows,
    /// Times the read where its figures are asked for.
    pub stats_clock: Option<Arc<dyn Clock>>,
}

/// A read under way.
pub struct ReadRows {
    /// `None` once everything was read, or nothing more is wanted.
    reader: Option<RowReader>,
    responder: Responder,
    failure: Option<Error>,
    /// Where figures are asked for and not sent yet: the clock, and its monotonic time at the start.
    stats: Option<(Arc<dyn Clock>, u64)>,
    turn: Turn,
    /// The tablet that the last row came from.
    tablet: Option<TabletId>,
    /// Where large messages are put together.
    aside: Aside,
    /// Bytes of the pieces beyond those that the request has: by its view, its filter and its table's tablets it may be of many more.
    more_pieces_bytes: usize,
}

impl ReadRows {
    pub(crate) fn new(plan: Plan) -> Self {
        let more_pieces = plan.pieces.capacity().saturating_sub(plan.asked.max(1));
        let Plan { pieces, selection, families, rng, reverse, .. } = plan;
        let reader = RowReader::new(pieces, reverse, selection.projection());
        let chunker = Chunker::new(families, plan.large_rows);
        let responder = Responder::new(selection, chunker, rng, plan.rows_limit);
        let stats = plan.stats_clock.map(|clock| {
            let start = clock.monotonic_micros();
            (clock, start)
        });
        Self {
            reader: Some(reader),
            responder,
            failure: None,
            stats,
            turn: Turn::default(),
            tablet: None,
            aside: Aside::default(),
            more_pieces_bytes: more_pieces * size_of::<Piece<Arc<Tablet>>>(),
        }
    }

    /// Whether the next message is known to be `None`: so it is as soon as the last one was taken, unless
    /// that left something to be said.
    pub fn has_ended(&self) -> bool {
        self.reader.is_none()
            && self.failure.is_none()
            && self.stats.is_none()
            && self.responder.is_empty()
    }

    /// The next message; `None` at the end. After an error comes the end. A caller that drops the
    /// returned future before it resolves must drop the read with it: rows may be lost between.
    ///
    /// Long work gives the thread to others now and then, also where everything is in memory.
    pub async fn next(&mut self) -> Option<Result<ReadRowsMessage>> {
        self.turn_to_scan();
        loop {
            if let Some(message) = self.responder.pop() {
                let gathered = self.gathered(message).await;
                if gathered.is_err() {
                    self.end();
                }
                return Some(gathered);
            }
            let Some(reader) = &mut self.reader else {
                let stats = self.stats.take();
                return match self.failure.take() {
                    Some(failure) => Some(Err(failure)),
                    None => stats.map(|(clock, start)| {
                        let micros = clock.monotonic_micros().saturating_sub(start);
                        Ok(ReadRowsMessage::of(&self.responder.stats.message(micros)))
                    }),
                };
            };
            if self.turn.is_over() {
                others_first().await;
                reader.turn_to_scan();
            }
            let (wanted, selection) = (self.responder.rows_left(), &self.responder.selection);
            let seen = reader.next(wanted, selection).await.map_err(Error::from);
            self.tablet = reader.tablet;
            let row_bytes = match &seen {
                Ok(Some(Seen::RangeEnd { records, .. })) => {
                    self.turn.range(reader.scan_start_bytes);
                    self.turn.steps(*records);
                    0
                }
                Ok(Some(seen)) => {
                    let bytes = seen.row_bytes();
                    self.turn.row(bytes);
                    bytes
                }
                Ok(None) | Err(_) => 0,
            };
            let more = match seen {
                Ok(Some(seen)) => match self.responder.pace(&seen, row_bytes) {
                    Pace::Short => self.responder.push(seen),
                    pace => self.push_aside(seen, pace).await,
                },
                Ok(None) => Ok(false),
                Err(error) => Err(error),
            };
            let more = more.unwrap_or_else(|error| {
                self.failure = Some(error);
                false
            });
            self.turn.steps(std::mem::take(&mut self.responder.filter_steps));
            if !more {
                // Releases what the engine holds for this read while the client takes the rest.
                self.reader = None;
                self.responder.finish();
            }
        }
    }
}

impl ReadRows {
    /// Takes a row that takes long, on this thread's helper; returns whether more is wanted.
    async fn push_aside(&mut self, seen: Seen, pace: Pace) -> Result<bool> {
        let mut responder = self.responder.take();
        let push = move || {
            let more = responder.push(seen);
            (responder, more)
        };
        // Boxed, so that reads of other rows stay small.
        let (responder, more) = Box::pin(pace.carry_out(self.tablet, push)).await?;
        self.responder = responder;
        more
    }

    /// The message; one that is larger than a message of several rows is gathered already, by this thread's helper.
    async fn gathered(&mut self, mut message: ReadRowsMessage) -> Result<ReadRowsMessage> {
        if message.shared_bytes() <= MESSAGE_BYTES_TARGET {
            return Ok(message);
        }
        let gather = move || {
            message.gather();
            message
        };
        // Boxed, so that reads of small messages stay small.
        Ok(Box::pin(self.aside.carry_out(self.tablet, gather)).await?)
    }

    /// Nothing comes any more.
    fn end(&mut self) {
        self.reader = None;
        self.stats = None;
        self.failure = None;
        self.responder.finish();
        while self.responder.pop().is_some() {}
    }

    fn turn_to_scan(&self) {
        if let Some(reader) = &self.reader {
            reader.turn_to_scan();
        }
    }

    /// Bytes of the messages behind the last one that are made already, the one that is begun included.
    pub fn ready_bytes(&self) -> usize {
        self.responder.chunker.held_bytes()
    }

    /// Whether the next message is among them, whole.
    pub fn has_ready(&self) -> bool {
        self.responder.chunker.has_ready()
    }

    /// Bytes of the rows that were read ahead, and of those that are being read, as if these were as large as the largest so far.
    pub fn ahead_bytes(&self) -> usize {
        self.reader.as_ref().map_or(0, RowReader::ahead_bytes)
    }

    /// Reads no more ahead than so many bytes, roughly, but for rows that are small.
    pub fn read_ahead_at_most(&mut self, bytes: usize) {
        if let Some(reader) = &mut self.reader {
            let bytes = bytes.clamp(POINT_READS_BYTES_MIN, POINT_READS_BYTES_MAX);
            (reader.ahead_bytes_max, reader.room_bytes) = (bytes, bytes);
        }
    }

    /// Lets go of the rows that were read ahead, for which there is no room, and reads half as far ahead, which grows again with what is
    /// read. They are read again.
    pub fn drop_ahead(&mut self) {
        if let Some(reader) = &mut self.reader
            && reader.drop_ahead()
        {
            reader.ahead_bytes_max = (reader.ahead_bytes_max / 2).max(POINT_READS_BYTES_MIN);
        }
    }

    /// Bytes of what its filter was compiled to, and may build while it runs, and of what its view and its filter make of its rows and columns: it has
    /// them until it is dropped, but for what is built, which goes where it is suspended.
    pub fn filter_bytes(&self) -> usize {
        self.responder.selection.filter_bytes() + self.more_pieces_bytes
    }

    /// Lets go of what the engine holds for this read: memtables and files of the moment at which it began, blocks,
    /// rows read ahead; and of what its filter has built. The next message finds the place again. For a client that does not read on.
    ///
    /// What was made into messages stays, as many bytes as before, in memory of its own.
    pub fn suspend(&mut self) {
        self.let_go();
        self.responder.chunker.gather();
    }

    /// The same for a thread that others wait for: what was made into more than a message of several rows is copied by its helper, a message
    /// after the other. After an error comes the end. A caller that drops the returned future before it resolves must drop the read with it.
    pub async fn suspend_aside(&mut self) -> Result<()> {
        self.let_go();
        let shared_bytes: usize =
            self.responder.chunker.sharing().map(|message| message.shared_bytes()).sum();
        if shared_bytes <= MESSAGE_BYTES_TARGET {
            self.responder.chunker.gather();
            return Ok(());
        }
        // Boxed, so that reads with nothing to copy stay small.
        let gathered = Box::pin(self.gather_aside()).await;
        if gathered.is_err() {
            self.end();
        }
        gathered
    }

    async fn gather_aside(&mut self) -> Result<()> {
        for message in self.responder.chunker.sharing() {
            // The helper may leave them all to this thread.
            others_first().await;
            let mut taken = std::mem::take(message);
            let gather = move || {
                taken.gather();
                taken
            };
            *message = self.aside.carry_out(self.tablet, gather).await?;
        }
        Ok(())
    }

    fn let_go(&mut self) {
        if let Some(reader) = &mut self.reader {
            reader.suspend();
        }
        self.responder.selection.forget();
    }
}

impl fmt::Debug for ReadRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadRows").field("ended", &self.reader.is_none()).finish_non_exhaustive()
    }
}

/// With the bytes of the row.
type PointRead = BoxFuture<'static, tepui_engine::Result<(Seen, usize)>>;

/// What reads of single rows share.
struct Points {
    /// What the engine is asked for.
    projection: Projection,
    /// The same of rows that are too large for that.
    needed: Option<Projection>,
    /// Reads that were begun and are not done.
    under_way: AtomicUsize,
    /// Bytes of the rows that were read and not taken.
    read_bytes: AtomicUsize,
}

impl Points {
    async fn read(
        self: Arc<Self>,
        tablet: Arc<Tablet>,
        row: Bytes,
    ) -> tepui_engine::Result<(Seen, usize)> {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        let seen = read_point(tablet, row, (&self.projection, self.needed.as_ref())).await;
        let bytes = seen.as_ref().map_or(0, Seen::row_bytes);
        self.read_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.under_way.fetch_sub(1, Ordering::Relaxed);
        seen.map(|seen| (seen, bytes))
    }

    /// All of them were let go of.
    fn forget(&self) {
        self.under_way.store(0, Ordering::Relaxed);
        self.read_bytes.store(0, Ordering::Relaxed);
    }
}

/// Rows out of the engine, piece by piece.
struct RowReader {
    pieces: Pieces<Arc<Tablet>>,
    /// What `points` share.
    shared: Option<Arc<Points>>,
    reverse: bool,
    /// Single rows being read, in order; made for the first run of them. Empty while `scan` is some.
    points: Option<FuturesOrdered<PointRead>>,
    /// What `points` read, in their order.
    asked: VecDeque<Piece<Arc<Tablet>>>,
    /// Boxed, so that reads of single rows stay small.
    scan: Option<Box<Scan>>,
    /// Single rows to read at once, at most, as far as those that were read have shown.
    point_reads_max: usize,
    /// Bytes of the largest single row of late.
    largest_row_bytes: usize,
    /// Bytes of rows to read ahead, at most: what the caller has room for, and less after there was none.
    ahead_bytes_max: usize,
    room_bytes: usize,
    /// Bytes that the start of a scan copies.
    scan_start_bytes: usize,
    /// The tablet that was read last.
    tablet: Option<TabletId>,
}

/// A range under way.
struct Scan {
    rows: RowStream,
    tablet: Arc<Tablet>,
    /// What was to be read, without the rows before `last` once there is one.
    range: RowRange,
    /// The last row that was seen.
    last: Option<Bytes>,
}

impl Scan {
    /// What is left of it.
    fn rest(self, reverse: bool) -> Option<Piece<Arc<Tablet>>> {
        let mut range = self.range;
        match self.last {
            None => {}
            Some(last) if reverse => range.end = last,
            // The least key after this one is this one with a zero byte.
            Some(last) => range.start = [&last, [0_u8].as_slice()].concat().into(),
        }
        (!range.is_empty()).then_some(Piece::Range(self.tablet, range))
    }

    /// What there is to say of it once it was read to its end.
    fn end(self) -> Seen {
        // Its start, which belongs to it. No row can have the one that follows upon a row as long as rows may be.
        let nameable = |key: &Bytes| !key.is_empty() && key.len() <= limits::ROW_KEY_BYTES_MAX;
        let key = self.last.is_none().then_some(self.range.start).filter(nameable);
        Seen::RangeEnd { key, records: self.rows.looked_at() }
    }
}

impl RowReader {
    fn new(pieces: Pieces<Arc<Tablet>>, reverse: bool, projection: &Projection) -> Self {
        Self {
            pieces,
            shared: None,
            reverse,
            points: None,
            asked: VecDeque::new(),
            scan: None,
            point_reads_max: POINT_READS_FIRST,
            largest_row_bytes: 1,
            ahead_bytes_max: POINT_READS_BYTES_MAX,
            room_bytes: POINT_READS_BYTES_MAX,
            scan_start_bytes: projection_bytes(projection),
            tablet: None,
        }
    }

    /// Others have had the thread: it works for the tablet of this scan again.
    fn turn_to_scan(&self) {
        if let Some(scan) = &self.scan {
            activity::turn_to(scan.tablet.id());
        }
    }

    /// Puts everything that is under way back among the pieces.
    fn suspend(&mut self) {
        if let Some(rest) = self.scan.take().and_then(|scan| scan.rest(self.reverse)) {
            self.pieces.push(rest);
        }
        self.drop_ahead();
    }

    /// Puts the single rows that are under way back among the pieces; returns whether there were any.
    fn drop_ahead(&mut self) -> bool {
        self.points = None;
        if let Some(shared) = &self.shared {
            shared.forget();
        }
        let were_any = !self.asked.is_empty();
        self.pieces.extend(self.asked.drain(..).rev());
        were_any
    }

    fn ahead_bytes(&self) -> usize {
        let Some(shared) = &self.shared else { return 0 };
        let under_way = shared.under_way.load(Ordering::Relaxed);
        let read_bytes = shared.read_bytes.load(Ordering::Relaxed);
        under_way.saturating_mul(self.largest_row_bytes).saturating_add(read_bytes)
    }

    /// Single rows to read at once, where the caller will take `wanted` more at most.
    fn window(&self, wanted: Option<u64>) -> usize {
        let fitting = self.ahead_bytes_max / self.largest_row_bytes.max(1);
        let wanted = wanted.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
        self.point_reads_max.min(fitting).min(wanted)
    }

    /// What comes next; `None` at the end. `wanted` is the number of rows that the caller may still
    /// take. The engine is asked for the same in all calls.
    async fn next(
        &mut self,
        wanted: Option<u64>,
        selection: &Selection,
    ) -> tepui_engine::Result<Option<Seen>> {
        let projection = selection.projection();
        loop {
            if let Some(scan) = &mut self.scan {
                let row = match scan.rows.next_in_place().await {
                    Err(error) => {
                        return Box::pin(self.pass_large_row(error, selection)).await.map(Some);
                    }
                    Ok(row) => row,
                };
                if let Some(row) = row {
                    scan.last = Some(row.key().clone());
                    return Ok(Some(Seen::of(row)));
                }
                // What comes behind the last range is the end of the read.
                if let Some(scan) = self.scan.take().filter(|_| !self.pieces.is_empty()) {
                    return Ok(Some(scan.end()));
                }
            }
            self.read_ahead(self.window(wanted), selection);
            if let Some(points) = &mut self.points
                && let Some(seen) = points.next().await
            {
                if let Some(Piece::Row(tablet, _)) = self.asked.pop_front() {
                    self.tablet = Some(tablet.id());
                }
                self.point_reads_max = (self.point_reads_max * 2).min(POINT_READS_MAX);
                let (seen, bytes) = seen?;
                if let Some(shared) = &self.shared {
                    shared.read_bytes.fetch_sub(bytes, Ordering::Relaxed);
                }
                self.learn(bytes);
                return Ok(Some(seen));
            }
            match self.pieces.pop() {
                None => return Ok(None),
                // The only single row of its run, or the only one that there is room for: read without a box around the future.
                Some(Piece::Row(tablet, row)) => {
                    self.tablet = Some(tablet.id());
                    let seen = read_point(tablet, row, (projection, selection.needed())).await?;
                    if !self.pieces.is_empty() {
                        self.learn(seen.row_bytes());
                    }
                    return Ok(Some(seen));
                }
                Some(Piece::Range(tablet, range)) => {
                    let options = ScanOptions {
                        range: range.clone(),
                        projection: projection.clone(),
                        reverse: self.reverse,
                        rows_hint: wanted.and_then(|n| usize::try_from(n).ok()),
                        snapshot: None,
                    };
                    self.tablet = Some(tablet.id());
                    activity::turn_to(tablet.id());
                    let rows = tablet.scan(options)?;
                    self.scan = Some(Box::new(Scan { rows, tablet, range, last: None }));
                }
            }
        }
    }

    /// What there is to say of a row that ended the scan by being too large, where that is not all: one that the filter refuses by its key need not be
    /// read, and of one that is read for more than is wanted, what is wanted may fit. The scan goes on behind it.
    async fn pass_large_row(
        &mut self,
        error: tepui_engine::Error,
        selection: &Selection,
    ) -> tepui_engine::Result<Seen> {
        let Some(row) = error.large_row().map(Bytes::copy_from_slice) else { return Err(error) };
        let wanted = selection.may_want(&row).then(|| selection.needed());
        if wanted == Some(None) {
            return Err(error);
        }
        let Some(mut scan) = self.scan.take() else { return Err(error) };
        let tablet = Arc::clone(&scan.tablet);
        scan.last = Some(row.clone());
        self.pieces.extend(scan.rest(self.reverse));
        match wanted.flatten() {
            Some(needed) => Box::pin(read_point(tablet, row, (needed, None))).await,
            None => Ok(Seen::Nothing(row)),
        }
    }

    /// A single row of so many bytes was read: what it was before says ever less of those that come.
    fn learn(&mut self, row_bytes: usize) {
        let before = self.largest_row_bytes;
        self.largest_row_bytes = row_bytes.max(before - before / LARGEST_FADES);
        let more = self.ahead_bytes_max / AHEAD_GROWS;
        self.ahead_bytes_max = self.ahead_bytes_max.saturating_add(more).min(self.room_bytes);
    }

    /// Starts reads of the single rows at the head of the pieces, where there is more than one of them,
    /// until `window` are under way.
    fn read_ahead(&mut self, window: usize, selection: &Selection) {
        let is_run = self.points.as_ref().is_some_and(|points| !points.is_empty())
            || matches!(&self.pieces[..], [.., Piece::Row(..), Piece::Row(..)]);
        if !is_run || window < 2 {
            return;
        }
        let points = self.points.get_or_insert_default();
        while points.len() < window {
            if !matches!(self.pieces.last(), Some(Piece::Row(..))) {
                return;
            }
            let Some(Piece::Row(tablet, row)) = self.pieces.pop() else { return };
            self.asked.push_back(Piece::Row(Arc::clone(&tablet), row.clone()));
            let shared = self.shared.get_or_insert_with(|| {
                Arc::new(Points {
                    projection: selection.projection().clone(),
                    needed: selection.needed().cloned(),
                    under_way: AtomicUsize::new(0),
                    read_bytes: AtomicUsize::new(0),
                })
            });
            points.push_back(Box::pin(Arc::clone(shared).read(tablet, row)));
        }
    }
}

/// Reads a row: where it is too large for a projection, by the one that is needed.
async fn read_point(
    tablet: Arc<Tablet>,
    row: Bytes,
    (projection, needed): (&Projection, Option<&Projection>),
) -> tepui_engine::Result<Seen> {
    activity::turn_to(tablet.id());
    let mut found = tablet.read_row_in_place(&row, projection, ReadView::Durable).await;
    if let (Err(error), Some(needed)) = (&found, needed)
        && error.kind() == ErrorKind::RowTooLarge
    {
        found = tablet.read_row_in_place(&row, needed, ReadView::Durable).await;
    }
    let found = found?;
    Ok(match found.map(Seen::of) {
        Some(Seen::Mark(_)) | None => Seen::Nothing(row),
        Some(seen) => seen,
    })
}

/// Bytes of it that a copy has for itself.
fn projection_bytes(projection: &Projection) -> usize {
    projection.families.as_deref().map_or(0, size_of_val)
}

fn value_bytes<C: RowCell>(cells: &[C]) -> usize {
    cells.iter().map(C::value_len).sum()
}

fn copied_bytes<C: RowCell>(cells: &[C]) -> usize {
    let shared = |cell: &C| Some(cell.value_len()).filter(|len| *len >= SHARED_VALUE_BYTES_MIN);
    cells.iter().map(|cell| cell.bytes() as usize - shared(cell).unwrap_or(0)).sum()
}

fn row_bytes<C: RowCell>(cells: &[C]) -> usize {
    cells.iter().map(|cell| cell.bytes() as usize).sum()
}

/// Rows into messages: filters, counts against the limit, chunks, and reports progress.
struct Responder {
    selection: Selection,
    chunker: Chunker,
    rng: Arc<dyn Rng>,
    /// Rows that may still be sent; `None` without a limit.
    rows_left: Option<u64>,
    /// Rows, cells or records without any, and bytes of values, since a message was ready.
    rows_looked_at: u64,
    cells_looked_at: u64,
    bytes_looked_at: usize,
    /// The last key that was looked at, where no message says so.
    passed: Option<Bytes>,
    /// Bytes that the filter has dropped and whose memory messages may hold.
    dropped_bytes: usize,
    /// Cells that the steps of the filter went through, until somebody counts them.
    filter_steps: u64,
    stats: ReadStats,
}

impl Responder {
    fn new(
        selection: Selection,
        chunker: Chunker,
        rng: Arc<dyn Rng>,
        rows_limit: Option<u64>,
    ) -> Self {
        Self {
            selection,
            chunker,
            rng,
            rows_left: rows_limit,
            rows_looked_at: 0,
            cells_looked_at: 0,
            bytes_looked_at: 0,
            passed: None,
            dropped_bytes: 0,
            filter_steps: 0,
            stats: ReadStats::default(),
        }
    }

    /// All of it. One is left that lets no row through, of no family, and has nothing to say.
    fn take(&mut self) -> Self {
        let chunker = Chunker::new(FamilyNames::default(), LargeRows::default());
        let rng = Arc::clone(&self.rng);
        std::mem::replace(self, Self::new(Selection::everything(), chunker, rng, Some(0)))
    }

    fn rows_left(&self) -> Option<u64> {
        self.rows_left
    }

    /// Adds what passed the filter of a row whose values had so many bytes; returns how many cells are sent.
    fn push_passed<C: RowCell>(
        &mut self,
        key: &Bytes,
        cells: Vec<C>,
        memory: &C::Memory,
        seen_bytes: usize,
    ) -> usize {
        let passed_bytes = value_bytes(&cells);
        self.dropped_bytes += seen_bytes.saturating_sub(passed_bytes);
        self.chunker.push_row(key, cells, memory)
    }

    /// Adds what passes the filter of a row; returns how many cells are sent.
    fn push_row<C: RowCell>(
        &mut self,
        key: &Bytes,
        cells: Vec<C>,
        memory: &C::Memory,
    ) -> Result<usize> {
        let seen = cells.len();
        let seen_bytes = value_bytes(&cells);
        self.cells_looked_at += seen as u64;
        self.bytes_looked_at += seen_bytes;
        let families = self.chunker.families();
        let (cells, steps) =
            self.selection.apply(key, cells, memory, families, self.rng.as_ref())?;
        self.filter_steps += steps;
        let sent = match cells {
            Passed::Plain(cells) => self.push_passed(key, cells, memory, seen_bytes),
            Passed::Labelled(cells) => self.push_passed(key, cells, memory, seen_bytes),
        };
        self.stats.count_row(seen, sent);
        if self.dropped_bytes >= DROPPED_BYTES_MAX {
            self.chunker.gather();
            self.dropped_bytes = 0;
        }
        Ok(sent)
    }

    /// How long others would wait while what was seen, with so many bytes of cells, is taken.
    fn pace(&self, seen: &Seen, row_bytes: usize) -> Pace {
        let cells = seen.cells();
        match self.selection.pace(cells, seen.key_bytes(), row_bytes) {
            Pace::Short if cells >= WIDE_ROW_CELLS => Pace::Long,
            // The cells of other rows need not be looked at.
            Pace::Short
                if row_bytes >= COPIED_ROW_BYTES && seen.copied_bytes() >= COPIED_ROW_BYTES =>
            {
                Pace::Long
            }
            pace => pace,
        }
    }

    /// Takes what was seen; returns whether more is wanted.
    fn push(&mut self, seen: Seen) -> Result<bool> {
        self.rows_looked_at += 1;
        let (key, sent, report) = match seen {
            Seen::RangeEnd { key, records } => {
                self.cells_looked_at += records;
                (key.or_else(|| self.passed.take()), false, false)
            }
            Seen::Row(Row { key, cells }) => {
                let sent = self.push_row(&key, cells, &())?;
                ((sent == 0).then_some(key), sent > 0, false)
            }
            Seen::Pinned(PinnedRow { key, memories, cells }) => {
                let sent = self.push_row(&key, cells, &memories)?;
                ((sent == 0).then_some(key), sent > 0, false)
            }
            Seen::Nothing(key) => (Some(key), false, false),
            Seen::Mark(key) => (Some(key), false, true),
        };
        self.passed = key;
        if sent && let Some(left) = &mut self.rows_left {
            *left = left.saturating_sub(1);
        }
        let is_due = report
            || self.rows_looked_at >= LOOKED_AT_ROWS_MAX
            || self.cells_looked_at >= LOOKED_AT_CELLS_MAX
            || self.bytes_looked_at >= LOOKED_AT_BYTES_MAX;
        if is_due {
            // A row that was sent says itself how far the read has come.
            match self.passed.take() {
                Some(key) => self.chunker.push_scanned(key),
                None => self.chunker.flush(),
            }
        }
        Ok(self.rows_left != Some(0))
    }

    fn finish(&mut self) {
        self.chunker.flush();
    }

    fn is_empty(&self) -> bool {
        self.chunker.is_empty()
    }

    fn pop(&mut self) -> Option<ReadRowsMessage> {
        let message = self.chunker.pop()?;
        self.rows_looked_at = 0;
        self.cells_looked_at = 0;
        self.bytes_looked_at = 0;
        self.dropped_bytes = 0;
        Some(message)
    }
}

#[cfg(test)]
#[path = "read_rows_tests.rs"]
mod tests;
