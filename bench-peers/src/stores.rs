//! Opens the stores of a bench, loaded and settled: kept in its directory for the next group and the next run.

use std::path::Path;

use tepui_bench::kept::{Kept, State};
use tepui_bench::tepui::{IoMode, Tepui, TepuiOptions};
use tepui_bench::{Dataset, Error, Result, Store};

use crate::bars::Bench;
use crate::figures::Levels;
use crate::fjall::Fjall;
use crate::rocks::{Rocks, Settings, Writing};

/// Memtables of data that a tree at rest has: a table of 4 GB with the default settings. Level 0 and the base level are then as
/// large beside the last one as they are there, also where a small run has less data.
const MEMTABLES: u64 = 64;
/// The smallest memtable: below that, flushes and files cost more than what is in them.
const MEMTABLE_BYTES_MIN: u64 = 1 << 20;
/// Memtables of the copies that are written to: with three thousand rows a second, as a slow host writes them beside reads, a
/// run of two seconds has seven flushes, and so a compaction of level 0.
const COPY_MEMTABLE_BYTES: u64 = 256 << 10;
/// Memtables that the base level takes, as by default.
const BASE_LEVEL_MEMTABLES: u64 = 4;
/// How often rows are written again at most until the levels of a tree at rest have files. One or two do it.
const REWRITES_MAX: u64 = 8;

/// A store's place for a data set: `tepui-10-columns`.
fn place(bench: &Bench, store: &str, dataset: &Dataset, format: &str) -> Kept {
    let name = format!("{store}-{}-columns", dataset.columns);
    Kept::new(&bench.dir, &name, dataset, format)
}

/// The same for Tepui, which is built with this program: what an earlier build wrote is not what is measured.
fn place_of_tepui(bench: &Bench, store: &str, dataset: &Dataset, options: &TepuiOptions) -> Kept {
    place(bench, store, dataset, &options.format()).of_build(&bench.build)
}

/// Options of Tepui for the bars.
fn tepui_options(partitions: bool, cache_bytes: u64) -> TepuiOptions {
    let mut options = TepuiOptions::new(std::path::Path::new(""), cache_bytes);
    options.io = IoMode::Direct;
    // Rows are asked for alike, of which so small a cache as some runs have holds next to none.
    options.engine.coarse_share_percent = 95;
    "Tepui".clone_into(&mut options.name);
    if partitions {
        return options;
    }
    options.name.push_str(" unpartitioned");
    options.unpartitioned()
}

/// Where Tepui's rows are kept, its index and filters in partitions or whole.
fn tepui_place(bench: &Bench, dataset: &Dataset, partitions: bool) -> Kept {
    let store = if partitions { "tepui" } else { "tepui-unpartitioned" };
    place_of_tepui(bench, store, dataset, &tepui_options(partitions, 0))
}

/// Tepui with a block cache of `cache_bytes` in one sorted run, as RocksDB is; its index and filters in partitions or whole.
pub fn tepui(
    bench: &Bench,
    dataset: &Dataset,
    partitions: bool,
    cache_bytes: u64,
) -> Result<Tepui> {
    let mut options = tepui_options(partitions, cache_bytes);
    let kept = tepui_place(bench, dataset, partitions);
    kept.data().clone_into(&mut options.dir);
    if kept.prepare()? == State::Empty {
        let loading = Tepui::open(&options, dataset)?;
        loading.load(dataset, &bench.progress)?;
        loading.settle(&bench.progress)?;
        loading.merge()?;
        loading.close()?;
        kept.complete()?;
    }
    Tepui::open(&options, dataset)
}

/// Options of Tepui at rest: the tree that compactions leave by themselves, of as many memtables as a table of 4 GB has.
fn at_rest_options(dataset: &Dataset, cache_bytes: u64) -> TepuiOptions {
    let mut options = tepui_options(true, cache_bytes);
    options.name.push_str(" at rest");
    let defaults = options.engine.memtable_bytes;
    let memtable = (dataset.bytes() / MEMTABLES).clamp(MEMTABLE_BYTES_MIN, defaults);
    options.engine.memtable_bytes = memtable;
    options.engine.base_level_bytes = memtable * BASE_LEVEL_MEMTABLES;
    options.engine.target_file_bytes = memtable;
    options
}

fn at_rest_place(bench: &Bench, dataset: &Dataset) -> Kept {
    place_of_tepui(bench, "tepui-at-rest", dataset, &at_rest_options(dataset, 0))
}

/// Tepui with a block cache of `cache_bytes` as a server has it that is written to: nothing is due, level 0 has files, and
/// so has a level between it and the last.
pub fn tepui_at_rest(bench: &Bench, dataset: &Dataset, cache_bytes: u64) -> Result<Tepui> {
    let mut options = at_rest_options(dataset, cache_bytes);
    let kept = at_rest_place(bench, dataset);
    kept.data().clone_into(&mut options.dir);
    if kept.prepare()? == State::Empty {
        let loading = Tepui::open(&options, dataset)?;
        loading.load(dataset, &bench.progress)?;
        loading.settle(&bench.progress)?;
        // Where the load ended with a compaction, a level may be empty: rows are written again, half a memtable at a time.
        let rows = (options.engine.memtable_bytes / dataset.row_bytes() / 2).max(1);
        let mut first = 0;
        while Levels::now(&loading).doubt().is_some() && first < rows * REWRITES_MAX {
            let some = first.min(dataset.rows)..(first + rows).min(dataset.rows);
            loading.load_rows(dataset, some, &bench.progress)?;
            loading.settle(&bench.progress)?;
            first += rows;
        }
        loading.close()?;
        kept.complete()?;
    }
    Tepui::open(&options, dataset)
}

/// What is written to while the originals stay as they are.
pub struct Copies {
    /// Of [`tepui_at_rest`].
    pub tepui: Tepui,
    /// Of [`rocks`].
    pub rocks: Rocks,
    /// Of [`fjall`], where it takes part.
    pub fjall: Option<Fjall>,
}

/// Names of the copies.
const COPIES: [&str; 3] = ["tepui-copy", "rocksdb-copy", "fjall-copy"];

/// Copies of stores that are closed. Memtables of Tepui and RocksDB are so small that flushes and compactions run all the time.
pub fn copies(bench: &Bench, dataset: &Dataset, cache_bytes: u64) -> Result<Copies> {
    let [to_tepui, to_rocks, to_fjall] = COPIES.map(|name| bench.dir.join(name));
    let mut options = at_rest_options(dataset, cache_bytes);
    options.dir = to_tepui;
    options.engine.memtable_bytes = COPY_MEMTABLE_BYTES;
    options.engine.base_level_bytes = COPY_MEMTABLE_BYTES * BASE_LEVEL_MEMTABLES;
    copy_dir(at_rest_place(bench, dataset).data(), &options.dir)?;
    let settings = Settings {
        memtable_bytes: COPY_MEMTABLE_BYTES as usize,
        writing: Some(Writing::default()),
        ..Settings::best()
    };
    let from = place(bench, rocks_name(&settings), dataset, &settings.format());
    copy_dir(from.data(), &to_rocks)?;
    let cache = usize::try_from(cache_bytes).unwrap_or(usize::MAX);
    let fjall = if bench.fjall {
        copy_dir(fjall_place(bench, dataset).data(), &to_fjall)?;
        Some(Fjall::open(&to_fjall, cache_bytes)?)
    } else {
        None
    };
    let tepui = Tepui::open(&options, dataset)?;
    Ok(Copies { tepui, rocks: Rocks::open(&to_rocks, &settings, cache)?, fjall })
}

/// Removes the copies of [`copies`], which are closed.
pub fn remove_copies(bench: &Bench) -> Result<()> {
    COPIES.iter().try_for_each(|name| remove(&bench.dir.join(name)))
}

/// Copies a directory with all that is in it, instead of what was there. On the device when it returns: what the system would
/// write later it would write while something is measured.
fn copy_dir(from: &Path, to: &Path) -> Result<()> {
    fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
        std::fs::create_dir(to)?;
        for entry in std::fs::read_dir(from)? {
            let entry = entry?;
            let (from, to) = (entry.path(), to.join(entry.file_name()));
            if entry.file_type()?.is_dir() {
                copy(&from, &to)?;
            } else {
                std::fs::copy(&from, &to)?;
                std::fs::File::open(&to)?.sync_all()?;
            }
        }
        Ok(())
    }
    remove(to)?;
    copy(from, to)
        .map_err(|e| Error::failed(format!("copying {} to {}: {e}", from.display(), to.display())))
}

/// Removes a directory, where it is there.
pub fn remove(dir: &Path) -> Result<()> {
    if dir.exists() {
        std::fs::remove_dir_all(dir)
            .map_err(|e| Error::failed(format!("{}: {e}", dir.display())))?;
    }
    Ok(())
}

/// What Tepui is set to, for the report.
pub fn tepui_settings() -> String {
    let options = tepui_options(true, 0);
    let coarse = options.engine.coarse_share_percent;
    format!(
        "{:?} I/O, coarse filters up to {coarse} % of the cache, {}",
        options.io,
        options.format()
    )
}

fn rocks_name(settings: &Settings) -> &'static str {
    match (cfg!(feature = "newest"), settings.partitioned) {
        (false, true) => "rocksdb",
        (false, false) => "rocksdb-unpartitioned",
        (true, true) => "rocksdb-newest",
        (true, false) => "rocksdb-newest-unpartitioned",
    }
}

/// RocksDB with a block cache of `cache_bytes`, of the kind that suits it.
pub fn rocks(
    bench: &Bench,
    dataset: &Dataset,
    settings: &Settings,
    cache_bytes: u64,
) -> Result<Rocks> {
    let settings = settings.for_cache(cache_bytes, dataset.bytes());
    rocks_at(bench, dataset, rocks_name(&settings), &settings, cache_bytes)
}

/// The same with other settings, beside it.
pub fn rocks_variant(
    bench: &Bench,
    dataset: &Dataset,
    name: &str,
    settings: &Settings,
    cache_bytes: u64,
) -> Result<Rocks> {
    rocks_at(bench, dataset, &format!("rocksdb-tune-{name}"), settings, cache_bytes)
}

fn rocks_at(
    bench: &Bench,
    dataset: &Dataset,
    store: &str,
    settings: &Settings,
    cache_bytes: u64,
) -> Result<Rocks> {
    let kept = place(bench, store, dataset, &settings.format());
    if kept.prepare()? == State::Empty {
        let loading = Rocks::create(kept.data(), settings)?;
        loading.load(dataset, &bench.progress)?;
        loading.settle(&bench.progress)?;
        kept.complete()?;
    }
    Rocks::open(kept.data(), settings, usize::try_from(cache_bytes).unwrap_or(usize::MAX))
}

fn fjall_place(bench: &Bench, dataset: &Dataset) -> Kept {
    place(bench, "fjall", dataset, &Fjall::settings())
}

/// fjall with a block cache of `cache_bytes`, where it takes part.
pub fn fjall(bench: &Bench, dataset: &Dataset, cache_bytes: u64) -> Result<Option<Fjall>> {
    if !bench.fjall {
        return Ok(None);
    }
    let kept = fjall_place(bench, dataset);
    if kept.prepare()? == State::Empty {
        let loading = Fjall::open(kept.data(), cache_bytes)?;
        loading.load(dataset, &bench.progress)?;
        loading.settle(&bench.progress)?;
        kept.complete()?;
    }
    Fjall::open(kept.data(), cache_bytes).map(Some)
}
