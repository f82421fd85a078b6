//! Rows that lie in as many SSTs as they have columns: what a point read meets when a row was written bit by
//! bit and compaction has not come by.

use std::sync::Arc;

use pollster::block_on;
use tepui_engine::cell::RowRange;
use tepui_engine::db::{Engine, EngineOptions};
use tepui_engine::schema::{FamilyOptions, TabletSchema};

use super::{FAMILY, IoMode, Tepui, TepuiOptions, load, machine};
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::progress::Progress;

/// Bytes of user data in one column of all rows: it must fit a memtable, and be flushed as one SST.
pub const SPREAD_DATA_BYTES_MAX: u64 = 256 << 20;

/// Writes `dataset` so that column n of every row is in SST n, newest last, and opens it with compaction off.
/// `options.dir` must be empty.
pub fn load_spread(
    options: &TepuiOptions,
    dataset: &Dataset,
    progress: &Progress,
) -> Result<Tepui> {
    dataset.validate()?;
    let column_bytes = dataset.bytes() / u64::from(dataset.columns);
    if column_bytes > SPREAD_DATA_BYTES_MAX {
        return Err(Error::failed(format!(
            "a column of {column_bytes} bytes does not fit one SST: at most {SPREAD_DATA_BYTES_MAX}"
        )));
    }
    let (env, _) = machine::env(IoMode::Buffered, None, None)?;
    let still = EngineOptions {
        // Nothing runs but what is asked for, and nothing is flushed before it is.
        background: false,
        memtable_bytes: u64::MAX,
        memtables_total_bytes: u64::MAX,
        // All of a memtable is one file.
        target_file_bytes: u64::MAX,
        ..options.engine.clone()
    };
    let engine = Engine::open(env, &options.dir, still.clone())?;
    if !engine.tablets().is_empty() {
        return Err(Error::failed(format!("{} is not empty", options.dir.display())));
    }
    let tablet = engine.create_tablet(RowRange::all())?;
    let families = [(FAMILY, FamilyOptions::default())].into();
    tablet.set_schema(Arc::new(TabletSchema { families }));
    engine.start()?;
    for column in 0..dataset.columns {
        load::load(&tablet, dataset, 0..dataset.rows, column..column + 1, progress)?;
        block_on(tablet.flush())?;
    }
    let files = tablet.stats().sst_count;
    engine.close()?;
    if files != u64::from(dataset.columns) {
        return Err(Error::failed(format!(
            "{} columns became {files} SSTs: the rows are not spread as asked",
            dataset.columns
        )));
    }
    Tepui::open(&TepuiOptions { engine: still, ..options.clone() }, dataset)
}
