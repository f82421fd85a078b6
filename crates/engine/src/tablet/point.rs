//! Reading one row.
//!
//! Most rows lie whole in one block of one SST, and most of a read's SSTs are ruled out by their filters. So
//! a point read looks the row up in every SST that can hold it, and only where more than one place has
//! something of it, or what it finds takes merging, reads it the general way: with cursors over just those
//! places. What is in memory is looked at on the spot, with no await and without a reference counted; the
//! blocks that are missing are asked for together, for all SSTs at once.
//!
//! ```text
//! memtables ──┐
//! SST stages ─┴─ step ──► all over ──► 0 places: no row │ 1 SST: its cells │ else: merge of these places
//!                 ▲  └──► blocks are missing ─► one batch of reads ─┐
//!                 └─────────────────────────────────────────────────┘
//! ```

use std::sync::Arc;

use bytes::Bytes;

use crate::cell::{Row, RowRange, SEQ_MAX, Seq};
use crate::cursor::Cursor;
use crate::error::{Error, ErrorKind, Result};
use crate::limits::ROW_READ_BYTES_MAX;
use crate::memtable::Memtable;
use crate::read::{Assembler, Projection};
use crate::schema::TabletSchema;
use crate::sst::{Block, BlockRequest, CursorOptions, PointStage, RowProbe, load_blocks};

use super::Tablet;
use super::levels::SstPlace;
use super::read::{ReadView, ScanOptions, Snapshot};
use super::view::View;

/// One SST of a read.
#[derive(Debug)]
struct Source {
    place: SstPlace,
    stage: PointStage,
}

/// A point read under way.
#[derive(Debug)]
struct PointRead {
    probe: RowProbe,
    /// Those that have records of the row, newest first.
    memtables: Vec<Arc<Memtable>>,
    sources: Vec<Source>,
    loaded: Vec<(BlockRequest, Arc<Block>)>,
}

/// What a look at what is in memory came to.
enum Look {
    Done(Option<Row>),
    /// Blocks are missing.
    Wait(Snapshot, PointRead, Vec<BlockRequest>),
    /// Several places, or records that take merging.
    Merge(Snapshot, PointRead),
}

/// What a finished lookup shows.
enum Found {
    Row(Option<Row>),
    General,
}

impl PointRead {
    fn new(view: &View, row: &[u8], probe: RowProbe) -> Self {
        let memtables =
            view.memtables().filter(|m| m.has_row(probe.row_prefix())).map(Arc::clone).collect();
        let mut sources = Vec::new();
        view.levels.for_row(row, |place| {
            sources.push(Source { place, stage: PointStage::Filter });
        });
        Self { probe, memtables, sources, loaded: Vec::new() }
    }

    /// Takes every lookup as far as it goes, and collects the blocks that are missing.
    fn step(&mut self, view: &View, want: &mut Vec<BlockRequest>) -> Result<()> {
        for source in &mut self.sources {
            if let Some(sst) = view.levels.get(source.place) {
                source.stage.step(sst.file.reader()?, &self.probe, &self.loaded, want)?;
            }
        }
        Ok(())
    }

    /// The row, where one place has all of it.
    fn finish(
        &self,
        schema: &TabletSchema,
        view: &View,
        seq: Seq,
        row: &[u8],
        projection: &Projection,
    ) -> Result<Found> {
        if !self.memtables.is_empty() {
            return Ok(Found::General);
        }
        let mut here = self.sources.iter().filter(|s| !matches!(s.stage, PointStage::Absent));
        let Some(source) = here.next() else { return Ok(Found::Row(None)) };
        let (PointStage::Found(found), None) = (&source.stage, here.next()) else {
            return Ok(Found::General);
        };
        if view.version.excised().iter().any(|e| e.range.contains(row)) {
            return Ok(Found::General);
        }
        let Some(sst) = view.levels.get(source.place) else { return Ok(Found::General) };
        let found = found.row(sst.file.reader()?)?;
        let mut assembler = Assembler::new(seq, schema, projection, ROW_READ_BYTES_MAX);
        Ok(match assembler.cells(&found)? {
            Some(cells) if cells.is_empty() => Found::Row(None),
            Some(cells) => Found::Row(Some(Row { key: Bytes::copy_from_slice(row), cells })),
            None => Found::General,
        })
    }

    /// Cursors over the places that have something of the row.
    fn cursors(&self, view: &View, range: &RowRange) -> Result<Vec<Box<dyn Cursor>>> {
        let mut cursors: Vec<Box<dyn Cursor>> = Vec::new();
        for memtable in &self.memtables {
            cursors.push(Box::new(memtable.cursor(range.clone())));
        }
        for source in self.sources.iter().filter(|s| !matches!(s.stage, PointStage::Absent)) {
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
        let (snapshot, read) = match self.look(row, projection, view)? {
            Look::Done(row) => return Ok(row),
            Look::Merge(snapshot, read) => (snapshot, read),
            Look::Wait(snapshot, mut read, mut want) => {
                while !want.is_empty() {
                    let blocks = load_blocks(&*self.core.env.io, want.clone()).await;
                    for (request, block) in want.drain(..).zip(blocks) {
                        read.loaded.push((request, block?));
                    }
                    read.step(&snapshot.view, &mut want)?;
                }
                let schema = self.require_schema()?;
                match read.finish(&schema, &snapshot.view, snapshot.seq, row, projection)? {
                    Found::Row(row) => return Ok(row),
                    Found::General => (snapshot, read),
                }
            }
        };
        let range = RowRange::row(row);
        let cursors = read.cursors(&snapshot.view, &range)?;
        drop(read);
        let options = ScanOptions {
            range,
            projection: projection.clone(),
            reverse: false,
            rows_hint: None,
            snapshot: None,
        };
        let mut stream = self.stream(&snapshot, options, cursors)?;
        loop {
            match stream.next().await? {
                Some(row) if row.cells.is_empty() => {}
                found => return Ok(found),
            }
        }
    }

    /// Looks at what is in memory.
    fn look(&self, row: &[u8], projection: &Projection, read_view: ReadView<'_>) -> Result<Look> {
        if self.is_dropped() {
            return Err(Error::new(ErrorKind::NotFound, "the tablet was dropped"));
        }
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
        let mut read = PointRead::new(view, row, probe(row, projection));
        let mut want = Vec::new();
        read.step(view, &mut want)?;
        let snapshot = || Snapshot { view: Arc::clone(view), seq };
        if !want.is_empty() {
            return Ok(Look::Wait(snapshot(), read, want));
        }
        Ok(match read.finish(schema, view, seq, row, projection)? {
            Found::Row(row) => Look::Done(row),
            Found::General => Look::Merge(snapshot(), read),
        })
    }
}

/// What the filters are asked: the row with as much of its columns as the projection names exactly.
fn probe(row: &[u8], projection: &Projection) -> RowProbe {
    let Some(families) = &projection.families else { return RowProbe::row(row) };
    let mut columns = Vec::new();
    for family in families {
        if family.qualifiers.is_empty() {
            let ids: Vec<_> = families.iter().map(|f| f.family).collect();
            return RowProbe::families(row, &ids);
        }
        for range in &family.qualifiers {
            match range {
                (std::ops::Bound::Included(a), std::ops::Bound::Included(b)) if a == b => {
                    columns.push((family.family, a.to_vec()));
                }
                _ => {
                    let ids: Vec<_> = families.iter().map(|f| f.family).collect();
                    return RowProbe::families(row, &ids);
                }
            }
        }
    }
    RowProbe::columns(row, columns)
}
