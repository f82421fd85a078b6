//! Reading one row.
//!
//! Most rows lie whole in one block of one SST, and most of a read's SSTs are ruled out by their filters; rows that are
//! written often have more in memtables and young SSTs, plain values as a rule. So a point read looks the row up in every
//! place that can hold it and joins what it finds. Only where that takes merging (tombstones, aggregates, values elsewhere, a
//! row over several blocks, dropped rows), or columns are named of which some are in memory, is it read the general way: with
//! cursors over just those places. What is in memory is looked at on the spot, with no await and without a reference
//! counted; the blocks that are missing are asked for together, for all SSTs at once.
//!
//! ```text
//! memtables ──┐
//! SST stages ─┴─ step ──► all over ──► 0 places: no row │ plain values: joined │ else: merge of these places
//!                 ▲  └──► blocks are missing ─► one batch of reads ─┐
//!                 └─────────────────────────────────────────────────┘
//! ```

use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use smallvec::SmallVec;

use crate::cell::{PinnedRow, ReadRow, Row, RowRange, SEQ_MAX, Seq};
use crate::cursor::Cursor;
use crate::error::{ErrorKind, Result};
use crate::limits::ROW_READ_BYTES_MAX;
use crate::memtable::Memtable;
use crate::read::{Assembler, Projection, RowPart};
use crate::schema::TabletSchema;
use crate::sst::{
    Block, BlockRequest, CursorOptions, PointRow, PointStage, RowInBlock, RowProbe, SstReader,
    add_loaded, load_blocks,
};

use crate::values::{FoundRow, ValueSource};

use super::Tablet;
use super::levels::SstPlace;
use super::locked_rows::{LOCKED_ROW_BYTES_MIN, ROOM_RATIO, RowRoom};
use super::looks::LOOKS_PER_LOAD;
use super::newest::NewestOf;
use super::read::{ReadView, ScanOptions, Snapshot};
use super::view::View;

/// Columns that filters are asked for by name; of more, they are asked for the families. They say in vain of one column in a hundred, or of
/// a few in a thousand, that it may be there, and so of some of so many. Lower: more SSTs that have other columns of the row are read in
/// vain. Higher: reads of many columns, with the row locked in some, ask for longer what they hardly learn from.
const FILTER_COLUMNS_MAX: usize = 256;

/// One SST of a read.
#[derive(Debug)]
struct Source {
    place: SstPlace,
    stage: PointStage,
}

/// A point read under way.
#[derive(Debug)]
struct PointRead<'a> {
    probe: RowProbe<'a>,
    /// Set where cells that were found can make older places superfluous.
    newest: Option<NewestOf>,
    /// Those that have records of the row, by their numbers in the view, newest first.
    memtables: Vec<usize>,
    /// Newest first. Most reads have one, after compaction.
    sources: SmallVec<[Source; 1]>,
    loaded: Vec<(BlockRequest, Arc<Block>)>,
}

/// What a look at what is in memory came to.
enum Look<'a> {
    Done(Option<PinnedRow>),
    /// Of the row, values lie elsewhere.
    Values(ValueSource, FoundRow),
    /// Blocks are missing.
    Wait(Snapshot, PointRead<'a>, Vec<BlockRequest>),
    /// The memtables may have all that is wanted.
    Newest(Snapshot, PointRead<'a>, NewestOf),
    /// Several places, or records that take merging.
    Merge(Snapshot, PointRead<'a>),
}

/// What a finished lookup shows.
enum Found {
    Row(Option<PinnedRow>),
    /// Values lie elsewhere.
    Values(FoundRow),
    General,
}

/// What a read asks for.
#[derive(Clone, Copy)]
struct Ask<'a> {
    row: &'a [u8],
    projection: &'a Projection,
    /// A row of more bytes is an error.
    row_bytes_max: u64,
}

impl<'a> Ask<'a> {
    fn at(self, schema: &'a TabletSchema, seq: Seq) -> Want<'a> {
        let Self { row, projection, row_bytes_max } = self;
        Want { row, projection, schema, seq, row_bytes_max }
    }
}

/// The same at one moment.
#[derive(Clone, Copy)]
struct Want<'a> {
    row: &'a [u8],
    projection: &'a Projection,
    schema: &'a TabletSchema,
    seq: Seq,
    row_bytes_max: u64,
}

impl<'a> Want<'a> {
    fn assembler(self) -> Assembler<'a> {
        Assembler::new(self.seq, self.schema, self.projection, self.row_bytes_max)
    }
}

impl Source {
    /// Where the row is, if the SST has it whole in one block.
    fn found(&self) -> Option<&PointRow> {
        if let PointStage::Found(found) = &self.stage { Some(found) } else { None }
    }

    /// The same, to be walked over.
    fn row<'a>(&'a self, view: &'a View) -> Result<Option<RowInBlock<'a>>> {
        let (Some(found), Some(sst)) = (self.found(), view.levels.get(self.place)) else {
            return Ok(None);
        };
        found.row(sst.file.reader()?).map(Some)
    }
}

impl<'a> PointRead<'a> {
    fn new(view: &View, probe: RowProbe<'a>, wanted: Want<'_>) -> Self {
        let Want { row, projection, schema, .. } = wanted;
        let mut sources = SmallVec::new();
        view.levels.for_row(row, |place| {
            sources.push(Source { place, stage: PointStage::Filter });
        });
        let memtables = view.memtables().enumerate();
        let memtables = memtables.filter(|(_, m)| m.has_row(probe.row_prefix()));
        let memtables: Vec<usize> = memtables.map(|(number, _)| number).collect();
        let several = memtables.len() + sources.len() > 1;
        let newest = if several { NewestOf::of(projection, schema) } else { None };
        let mut read = Self { probe, newest, memtables, sources, loaded: Vec::new() };
        if several {
            read.leave_hidden(view, wanted);
        }
        read
    }

    /// Takes every lookup as far as it goes, and collects the blocks that are missing.
    fn step(&mut self, view: &View, wanted: Want<'_>, want: &mut Vec<BlockRequest>) -> Result<()> {
        // Memtables may hold tombstones, under which a younger SST spares no older one.
        let newest = self.newest.filter(|_| self.memtables.is_empty());
        let mut youngest: Option<(&Arc<SstReader>, &PointStage)> = None;
        for source in &mut self.sources {
            let Some(sst) = view.levels.get(source.place) else { continue };
            let reader = sst.file.reader()?;
            let missing = want.len();
            source.stage.step(reader, &self.probe, &self.loaded, want)?;
            if matches!(source.stage, PointStage::Absent) {
                continue;
            }
            let (Some(newest), Some((younger, stage))) = (newest, youngest) else {
                youngest = Some((reader, &source.stage));
                continue;
            };
            match stage {
                PointStage::Found(found) => {
                    let row = wanted.assembler().row(&found.row(younger)?)?;
                    let cells = row.iter().flat_map(|row| &row.cells);
                    let cells = cells.map(|cell| (cell.family, cell.timestamp));
                    if row.is_some() && newest.spares(cells, reader) {
                        source.stage = PointStage::Absent;
                        want.truncate(missing);
                    }
                }
                // The younger one is read first: it seldom fails to spare the other.
                PointStage::Data(_)
                    if NewestOf::may_spare(&self.probe, &self.loaded, younger, reader) =>
                {
                    want.truncate(missing);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The SSTs that may have something of the row and that a merge of level 0 takes along.
    fn merged(&self, view: &View) -> impl Iterator<Item = &Source> {
        self.files().filter(|file| view.levels.is_merged(file.place))
    }

    /// Places with something of the row that such a merge would spare: all but one of those that it makes one of.
    fn spared(&self, view: &View) -> usize {
        (self.memtables.len() + self.merged(view).count()).saturating_sub(1)
    }

    /// Those of them that wait for blocks.
    fn waiting(&self, view: &View) -> usize {
        let is_at_hand =
            |file: &Source| matches!(file.stage, PointStage::Found(_) | PointStage::Wide);
        self.merged(view).filter(|file| !is_at_hand(file)).count().saturating_sub(1)
    }

    /// The row, where it takes no merging.
    fn finish(&self, view: &View, wanted: Want<'_>) -> Result<Found> {
        // Columns that are named are sought in memory, which has many others perhaps.
        if !self.memtables.is_empty() && wanted.projection.names_qualifiers() {
            return Ok(Found::General);
        }
        let mut files = self.files();
        let first = files.next();
        let alone = self.memtables.is_empty() && files.next().is_none();
        if alone && first.is_none() {
            return Ok(Found::Row(None));
        }
        if view.excised().iter().any(|e| e.range.contains(wanted.row)) {
            return Ok(Found::General);
        }
        let mut assembler = wanted.assembler();
        let row = match first {
            Some(only) if alone => {
                let row = only.row(view)?;
                row.map(|row| assembler.row(&row)).transpose()?.flatten()
            }
            _ => self.join(view, wanted)?,
        };
        let Some(row) = row else { return Ok(Found::General) };
        if row.cells.is_empty() {
            return Ok(Found::Row(None));
        }
        let row = PinnedRow { key: Bytes::copy_from_slice(wanted.row), ..row };
        let elsewhere = assembler.take_elsewhere();
        Ok(if elsewhere.is_empty() {
            Found::Row(Some(row))
        } else {
            Found::Values(FoundRow { row: ReadRow::Pinned(row), elsewhere })
        })
    }

    /// What memory and the SSTs have of the row; `None` where that takes merging.
    fn join(&self, view: &View, wanted: Want<'_>) -> Result<Option<PinnedRow>> {
        if self.files().any(|file| file.found().is_none()) {
            return Ok(None);
        }
        let mut assembler = wanted.assembler();
        let mut joined = RowPart::default();
        let mut join = |part: RowPart| {
            joined = std::mem::take(&mut joined).join(part, wanted.projection);
            joined.bytes <= wanted.row_bytes_max
        };
        for mut row in self.of_memory(view).filter_map(|m| m.row(self.probe.row_prefix())) {
            if !assembler.part_in_memory(&mut row).is_some_and(&mut join) {
                return Ok(None);
            }
        }
        for file in self.files() {
            let Some(row) = file.row(view)? else { return Ok(None) };
            if !assembler.part(&row)?.is_some_and(&mut join) {
                return Ok(None);
            }
        }
        Ok(Some(joined.row))
    }

    /// The sequence below which all of the row is hidden, as far as is known by now.
    fn hidden_below(&self, view: &View, wanted: Want<'_>) -> Seq {
        let excised = view.excised().iter().filter(|e| e.range.contains(wanted.row));
        // Also one that is not visible yet hides all that the snapshot sees (see `Tablet::stream`).
        let excised = excised.map(|e| e.seq.min(wanted.seq).saturating_add(1)).max();
        let memory = self.of_memory(view).filter(|memtable| memtable.tombstones() > 0);
        let memory = memory.filter_map(|m| m.row(self.probe.row_prefix())?.tombstone(wanted.seq));
        let files = self.files().filter_map(|file| file.found()?.tombstone(wanted.seq));
        excised.into_iter().chain(memory).chain(files).max().unwrap_or(0)
    }

    /// Leaves out the SSTs in which all of the row is hidden by what is younger.
    fn leave_hidden(&mut self, view: &View, wanted: Want<'_>) {
        let hidden_below = self.hidden_below(view, wanted);
        if hidden_below > 0 {
            // One that cannot be opened is to fail the read only where it is needed; it says so there.
            self.sources.retain(|source| {
                let sst = view.levels.get(source.place);
                let reader = sst.map(|sst| sst.file.reader());
                !matches!(reader, Some(Ok(sst)) if sst.properties().seq_max < hidden_below)
            });
        }
    }

    /// Whether what comes first in the row may hide what is wanted of it: tombstones of the row, or of a family.
    fn may_have_head(&self, view: &View) -> bool {
        self.of_memory(view).any(|memtable| memtable.tombstones() > 0)
            || self.files().any(|file| {
                let reader = view.levels.get(file.place).map(|sst| sst.file.reader());
                let properties = reader.and_then(Result::ok).map(|reader| reader.properties());
                properties.is_none_or(|p| p.row_tombstones + p.family_tombstones > 0)
            })
    }

    /// The SSTs that may have something of the row, newest first.
    fn files(&self) -> impl Iterator<Item = &Source> {
        self.sources.iter().filter(|source| !matches!(source.stage, PointStage::Absent))
    }

    /// The memtables that have something of the row, newest first.
    fn of_memory<'v>(&'v self, view: &'v View) -> impl Iterator<Item = &'v Arc<Memtable>> {
        let all = view.memtables().enumerate();
        all.filter(|(number, _)| self.memtables.contains(number)).map(|(_, memtable)| memtable)
    }

    /// Cursors over the memtables that have something of the row.
    fn memtable_cursors(&self, view: &View, range: &RowRange) -> Vec<Box<dyn Cursor>> {
        let cursor = |m: &Arc<Memtable>| Box::new(m.cursor(range.clone())) as Box<dyn Cursor>;
        self.of_memory(view).map(cursor).collect()
    }

    /// Cursors over the places that have something of the row.
    fn cursors(&self, view: &View, range: &RowRange) -> Result<Vec<Box<dyn Cursor>>> {
        let mut cursors = self.memtable_cursors(view, range);
        for source in self.files() {
            let Some(sst) = view.levels.get(source.place) else { continue };
            let options =
                CursorOptions { bounds: sst.span.intersect(range), ..CursorOptions::default() };
            cursors.push(Box::new(sst.file.reader()?.cursor(options)));
        }
        Ok(cursors)
    }
}

impl Tablet {
    /// Reads one row; `None` where no cell of it matches.
    pub async fn read_row(
        &self,
        row: &[u8],
        projection: &Projection,
        view: ReadView<'_>,
    ) -> Result<Option<Row>> {
        Ok(self.read_row_in_place(row, projection, view).await?.map(Row::from))
    }

    /// The same, where it was found: its cells share no memory by themselves.
    pub fn read_row_in_place<'a>(
        &'a self,
        row: &'a [u8],
        projection: &'a Projection,
        view: ReadView<'a>,
    ) -> impl Future<Output = Result<Option<ReadRow>>> + use<'a> {
        self.read_asked(Ask { row, projection, row_bytes_max: ROW_READ_BYTES_MAX }, view)
    }

    /// The same, of a row that is locked, as it is with what is not durable yet, and with room for it: as long as that is held, large
    /// rows that are read so are within a bound. Small ones count for nothing.
    pub async fn read_locked_row(
        &self,
        row: &[u8],
        projection: &Projection,
    ) -> Result<(Option<ReadRow>, RowRoom)> {
        let ask = Ask { row, projection, row_bytes_max: LOCKED_ROW_BYTES_MIN };
        match self.read_asked(ask, ReadView::Pending).await {
            // Boxed, so that reads of small rows stay small.
            Err(error) if error.kind() == ErrorKind::RowTooLarge => {
                Box::pin(self.read_large_row(ask)).await
            }
            small => Ok((small?, RowRoom::default())),
        }
    }

    /// The same of a row that is larger.
    async fn read_large_row(&self, mut ask: Ask<'_>) -> Result<(Option<ReadRow>, RowRoom)> {
        loop {
            ask.row_bytes_max = (ask.row_bytes_max * ROOM_RATIO).min(ROW_READ_BYTES_MAX);
            let mut room = self.core.locked_rows.room(ask.row_bytes_max).await;
            match self.read_asked(ask, ReadView::Pending).await {
                Err(error)
                    if error.kind() == ErrorKind::RowTooLarge
                        && ask.row_bytes_max < ROW_READ_BYTES_MAX => {}
                found => {
                    let found = found?;
                    room.shrink(found.as_ref().map_or(0, ReadRow::bytes));
                    return Ok((found, room));
                }
            }
        }
    }

    async fn read_asked(&self, ask: Ask<'_>, view: ReadView<'_>) -> Result<Option<ReadRow>> {
        let row = ask.row;
        // The range of the row is made where it is needed: most reads end before.
        let (snapshot, mut read, mut want) = match self.look(ask, view)? {
            Look::Done(row) => return Ok(row.map(ReadRow::Pinned)),
            Look::Values(values, found) => return self.fill(values, found).await,
            Look::Merge(snapshot, read) => (snapshot, read, Vec::new()),
            Look::Wait(snapshot, read, want) => (snapshot, read, want),
            Look::Newest(snapshot, mut read, newest) => {
                let range = RowRange::row(row);
                let cursors = read.memtable_cursors(&snapshot.view, &range);
                let found = self.merged(&snapshot, &range, ask, (cursors, true)).await?;
                let cells = found.as_ref().map_or(&[][..], |row| &row.cells);
                read.sources.retain(|source| {
                    let sst = snapshot.view.levels.get(source.place);
                    let reader = sst.map(|sst| sst.file.reader());
                    // One that cannot be opened is to fail the read only where it is needed; it says so below.
                    let cells = cells.iter().map(|cell| (cell.family, cell.timestamp));
                    !matches!(reader, Some(Ok(older)) if newest.spares(cells, older))
                });
                if read.sources.is_empty() {
                    return Ok(found.map(ReadRow::Merged));
                }
                let schema = self.require_schema()?;
                let wanted = ask.at(&schema, snapshot.seq);
                let mut want = Vec::new();
                read.step(&snapshot.view, wanted, &mut want)?;
                if want.is_empty() {
                    self.count_looks(read.spared(&snapshot.view));
                }
                (snapshot, read, want)
            }
        };
        if !want.is_empty() {
            let schema = self.require_schema()?;
            let wanted = ask.at(&schema, snapshot.seq);
            let waiting = read.waiting(&snapshot.view);
            while !want.is_empty() {
                let blocks = load_blocks(&*self.core.env.io, want.clone()).await;
                add_loaded(&mut read.loaded, want.drain(..), blocks)?;
                read.step(&snapshot.view, wanted, &mut want)?;
            }
            let spared = read.spared(&snapshot.view);
            self.count_looks(spared + waiting.min(spared) * LOOKS_PER_LOAD);
            match read.finish(&snapshot.view, wanted)? {
                Found::Row(row) => return Ok(row.map(ReadRow::Pinned)),
                Found::Values(found) => {
                    return self.fill(self.value_source(&snapshot.view, true), found).await;
                }
                Found::General => {}
            }
        }
        let range = RowRange::row(row);
        let schema = self.require_schema()?;
        let wanted = ask.at(&schema, snapshot.seq);
        read.leave_hidden(&snapshot.view, wanted);
        let cursors = read.cursors(&snapshot.view, &range)?;
        let has_head = read.may_have_head(&snapshot.view);
        drop(read);
        let found = self.merged(&snapshot, &range, ask, (cursors, has_head)).await?;
        Ok(found.map(ReadRow::Merged))
    }

    /// [`Self::merge`], boxed, so that reads that take none stay small.
    fn merged<'a>(
        &'a self,
        snapshot: &'a Snapshot,
        range: &'a RowRange,
        ask: Ask<'a>,
        cursors: (Vec<Box<dyn Cursor>>, bool),
    ) -> BoxFuture<'a, Result<Option<Row>>> {
        Box::pin(self.merge(snapshot, range, ask, cursors))
    }

    /// The row with the values that lie elsewhere.
    async fn fill(&self, values: ValueSource, found: FoundRow) -> Result<Option<ReadRow>> {
        // Boxed, so that reads of rows without such values stay small.
        Box::pin(values.fill_row(&*self.core.env.io, found)).await.map(Some)
    }

    /// The row as `cursors` together have it, which may have a [head](PointRead::may_have_head) of it.
    async fn merge(
        &self,
        snapshot: &Snapshot,
        range: &RowRange,
        ask: Ask<'_>,
        (cursors, has_head): (Vec<Box<dyn Cursor>>, bool),
    ) -> Result<Option<Row>> {
        let options = ScanOptions {
            range: range.clone(),
            projection: ask.projection.clone(),
            reverse: false,
            rows_hint: None,
            snapshot: None,
        };
        let mut stream = self.stream(snapshot, options, (cursors, ask.row_bytes_max))?;
        if !has_head {
            stream = stream.at_first_wanted();
        }
        loop {
            match stream.next().await? {
                Some(row) if row.cells.is_empty() => {}
                found => return Ok(found),
            }
        }
    }

    /// Looks at what is in memory.
    fn look<'a>(&self, ask: Ask<'a>, read_view: ReadView<'_>) -> Result<Look<'a>> {
        let schema = self.schema.load();
        let Some(schema) = schema.as_ref() else { return Err(Self::no_schema()) };
        let guard;
        let (view, seq) = match read_view {
            ReadView::At(snapshot) => (&snapshot.view, snapshot.seq),
            ReadView::Pending => {
                guard = self.view.load();
                (&*guard, SEQ_MAX)
            }
            ReadView::Durable => {
                let (held, seq) = self.durable_view();
                guard = held;
                (&*guard, seq)
            }
        };
        self.check_kept()?;
        let wanted = ask.at(schema, seq);
        let mut read = PointRead::new(view, probe(ask.row, ask.projection), wanted);
        let snapshot = || Snapshot { view: Arc::clone(view), seq };
        if !read.memtables.is_empty()
            && let Some(newest) = read.newest
        {
            return Ok(Look::Newest(snapshot(), read, newest));
        }
        let mut want = Vec::new();
        read.step(view, wanted, &mut want)?;
        if !want.is_empty() {
            return Ok(Look::Wait(snapshot(), read, want));
        }
        self.count_looks(read.spared(view));
        Ok(match read.finish(view, wanted)? {
            Found::Row(row) => Look::Done(row),
            Found::Values(found) => Look::Values(self.value_source(view, true), found),
            Found::General => Look::Merge(snapshot(), read),
        })
    }
}

/// What the filters are asked: the row with as much of its columns as the projection names exactly.
fn probe<'a>(row: &[u8], projection: &'a Projection) -> RowProbe<'a> {
    let Some(families) = &projection.families else { return RowProbe::row(row) };
    let columns: usize = families.iter().map(|family| family.qualifiers.len()).sum();
    if columns <= FILTER_COLUMNS_MAX && projection.names_columns() {
        return RowProbe::columns(row, projection.columns());
    }
    RowProbe::families(row, families.iter().map(|family| family.family))
}
