//! What the tests share: an engine over a file system in memory, small enough that every structure is
//! exercised by a few dozen rows, and the naive model that it must agree with.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use futures::executor::block_on;

use tepui_engine::cell::{Cell, FamilyId, Mutation, Row, RowBatch, RowRange};
use tepui_engine::db::{Engine, EngineOptions};
use tepui_engine::io::{Env, Files, InlineIo, ManualClock, MemoryFiles, SeededRng, ThreadSpawner};
use tepui_engine::read::Projection;
use tepui_engine::schema::{Aggregate, FamilyOptions, TabletSchema};
use tepui_engine::tablet::{ReadView, ScanOptions, Snapshot, Tablet, TabletId};

/// The wall clock of tests starts here: 2026-01-01.
pub const START_MICROS: i64 = 1_767_225_600_000_000;

/// An engine under test with one tablet.
pub struct Rig {
    pub files: Arc<MemoryFiles>,
    pub clock: Arc<ManualClock>,
    pub options: EngineOptions,
    pub schema: TabletSchema,
    pub engine: Arc<Engine>,
    pub tablet: Arc<Tablet>,
    pub seed: u64,
}

/// Options under which a few dozen rows make many blocks, files and levels.
pub fn tiny_options() -> EngineOptions {
    let mut options = EngineOptions {
        background: false,
        memtable_bytes: 256 << 10,
        log_segment_bytes: 16 << 10,
        base_level_bytes: 4 << 10,
        target_file_bytes: 2 << 10,
        l0_compaction_files: 2,
        block_cache_bytes: 256 << 10,
        // Most values of tests are separated.
        separate_values_bytes: 12,
        ..EngineOptions::default()
    };
    options.sst.block_bytes = 256;
    options.sst.index_partition_bytes = 128;
    options.sst.filter_partition_bytes = 64;
    options
}

/// An engine at `/data` with its tablet, which is made where there is none, in the schema of [`plain_schema`], started.
pub fn open_started(environment: Env, options: EngineOptions) -> (Arc<Engine>, Arc<Tablet>) {
    let engine = Engine::open(environment, Path::new("/data"), options).unwrap();
    let tablet = match engine.tablets().first() {
        Some(tablet) => Arc::clone(tablet),
        None => engine.create_tablet(RowRange::all()).unwrap(),
    };
    tablet.set_schema(Arc::new(plain_schema()));
    engine.start().unwrap();
    (engine, tablet)
}

/// Families 1 to 3, without rules.
pub fn plain_schema() -> TabletSchema {
    let families = (1..=3).map(|id| (FamilyId(id), FamilyOptions::default())).collect();
    TabletSchema { families }
}

/// The family of sums in [`schema_with_sums`].
pub const SUMS: FamilyId = FamilyId(4);

/// The families of [`plain_schema`], and one of sums.
pub fn schema_with_sums() -> TabletSchema {
    let mut schema = plain_schema();
    let sums = FamilyOptions { aggregate: Some(Aggregate::Sum), ..FamilyOptions::default() };
    schema.families.insert(SUMS, sums);
    schema
}

pub fn env(files: Arc<dyn Files>, clock: Arc<ManualClock>, seed: u64) -> Env {
    Env {
        files,
        io: Arc::new(InlineIo),
        clock,
        rng: Arc::new(SeededRng::new(seed)),
        spawner: Arc::new(ThreadSpawner),
    }
}

impl Rig {
    pub fn new(options: EngineOptions, schema: TabletSchema, seed: u64) -> Self {
        let files = Arc::new(MemoryFiles::new());
        let clock = Arc::new(ManualClock::new(START_MICROS));
        let env = env(Arc::clone(&files) as Arc<dyn Files>, Arc::clone(&clock), seed);
        let engine = Engine::open(env, Path::new("/data"), options.clone()).unwrap();
        let tablet = engine.create_tablet(RowRange::all()).unwrap();
        tablet.set_schema(Arc::new(schema.clone()));
        engine.start().unwrap();
        Self { files, clock, options, schema, engine, tablet, seed }
    }

    /// Opens what is on `files`, as a new process would.
    pub fn reopen_on(self, files: Arc<MemoryFiles>) -> Self {
        let Self { clock, options, schema, engine, tablet, seed, .. } = self;
        let id: TabletId = tablet.id();
        drop(tablet);
        drop(engine);
        let env = env(Arc::clone(&files) as Arc<dyn Files>, Arc::clone(&clock), seed + 1);
        let engine = Engine::open(env, Path::new("/data"), options.clone()).unwrap();
        let tablet = engine.tablet(id).expect("the tablet is durable");
        tablet.set_schema(Arc::new(schema.clone()));
        engine.start().unwrap();
        Self { files, clock, options, schema, engine, tablet, seed: seed + 1 }
    }

    pub fn apply(&self, row: &[u8], mutations: Vec<Mutation>) {
        let batch = RowBatch { row: Bytes::copy_from_slice(row), mutations };
        block_on(self.tablet.apply_when_room(batch)).unwrap();
    }

    pub fn scan(&self, range: RowRange, reverse: bool, snapshot: Option<Snapshot>) -> Vec<Row> {
        scan(&self.tablet, range, Projection::all(), reverse, snapshot).unwrap()
    }

    pub fn get(&self, row: &[u8]) -> Vec<Cell> {
        let projection = Projection::all();
        let read = self.tablet.read_row(row, &projection, ReadView::Durable);
        block_on(read).unwrap().map_or_else(Vec::new, |row| row.cells)
    }
}

/// All rows of a scan, without marks of progress.
pub fn scan(
    tablet: &Tablet,
    range: RowRange,
    projection: Projection,
    reverse: bool,
    snapshot: Option<Snapshot>,
) -> tepui_engine::Result<Vec<Row>> {
    // A hint changes no result.
    let rows_hint = snapshot.is_some().then_some(2);
    let mut stream =
        tablet.scan(ScanOptions { range, projection, reverse, rows_hint, snapshot })?;
    let mut rows = Vec::new();
    while let Some(row) = block_on(stream.next())? {
        if !row.cells.is_empty() {
            rows.push(row);
        }
    }
    Ok(rows)
}

/// Row, family, qualifier, negated timestamp.
pub type CellKey = (Vec<u8>, u32, Vec<u8>, i64);

/// The naive model: every visible cell in one map; newest timestamps first by a negated key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Model {
    pub cells: BTreeMap<CellKey, Vec<u8>>,
}

impl Model {
    pub fn apply(&mut self, row: &[u8], mutations: &[Mutation]) {
        for mutation in mutations {
            match mutation {
                Mutation::Put { family, qualifier, timestamp, value } => {
                    let key = (row.to_vec(), family.0, qualifier.to_vec(), -timestamp);
                    self.cells.insert(key, value.to_vec());
                }
                Mutation::Merge { family, qualifier, timestamp, operand } => {
                    assert_eq!(*family, SUMS);
                    let number = |bytes: &[u8]| i64::from_be_bytes(bytes.try_into().unwrap());
                    let key = (row.to_vec(), family.0, qualifier.to_vec(), -timestamp);
                    let sum = self.cells.entry(key).or_insert_with(|| vec![0; 8]);
                    *sum = number(sum).wrapping_add(number(operand)).to_be_bytes().to_vec();
                }
                Mutation::DeleteCells { family, qualifier, timestamps } => {
                    self.cells.retain(|(r, f, q, t), _| {
                        r != row
                            || *f != family.0
                            || q.as_slice() != qualifier.as_ref()
                            || !timestamps.contains(-t)
                    });
                }
                Mutation::DeleteFamily { family } => {
                    self.cells.retain(|(r, f, _, _), _| r != row || *f != family.0);
                }
                Mutation::DeleteRow => self.cells.retain(|(r, ..), _| r != row),
            }
        }
    }

    pub fn drop_rows(&mut self, range: &RowRange) {
        self.cells.retain(|(row, ..), _| !range.contains(row));
    }

    pub fn rows(&self, range: &RowRange) -> Vec<Row> {
        let mut rows: Vec<Row> = Vec::new();
        for ((row, family, qualifier, timestamp), value) in &self.cells {
            if !range.contains(row) {
                continue;
            }
            let cell = Cell {
                family: FamilyId(*family),
                qualifier: Bytes::from(qualifier.clone()),
                timestamp: -timestamp,
                value: Bytes::from(value.clone()),
            };
            match rows.last_mut() {
                Some(last) if last.key.as_ref() == row.as_slice() => last.cells.push(cell),
                _ => rows.push(Row { key: Bytes::from(row.clone()), cells: vec![cell] }),
            }
        }
        rows
    }
}

pub fn put(family: u32, qualifier: &str, timestamp: i64, value: &str) -> Mutation {
    Mutation::Put {
        family: FamilyId(family),
        qualifier: Bytes::copy_from_slice(qualifier.as_bytes()),
        timestamp,
        value: Bytes::copy_from_slice(value.as_bytes()),
    }
}
