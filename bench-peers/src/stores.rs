//! Opens the stores of a bench, loaded and settled: kept in its directory for the next group and the next run.

use tepui_bench::kept::{Kept, State};
use tepui_bench::tepui::{IoMode, Tepui, TepuiOptions};
use tepui_bench::{Dataset, Result, Store};

use crate::bars::Bench;
use crate::fjall::Fjall;
use crate::rocks::{Rocks, Settings};

/// A store's place for a data set: `tepui-10-columns`.
fn place(bench: &Bench, store: &str, dataset: &Dataset, format: &str) -> Kept {
    let name = format!("{store}-{}-columns", dataset.columns);
    Kept::new(&bench.dir, &name, dataset, format)
}

/// Options of Tepui for the bars.
fn tepui_options(partitions: bool, cache_bytes: u64) -> TepuiOptions {
    let mut options = TepuiOptions::new(std::path::Path::new(""), cache_bytes);
    options.io = IoMode::Direct;
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
    place(bench, store, dataset, &tepui_options(partitions, 0).format())
}

/// Where the rows are kept that [`tepui`] with partitions and [`rocks`] open, for who writes to both.
pub fn places(bench: &Bench, dataset: &Dataset, settings: &Settings) -> [Kept; 2] {
    let rocks = place(bench, rocks_name(settings), dataset, &settings.format());
    [tepui_place(bench, dataset, true), rocks]
}

/// Tepui with a block cache of `cache_bytes`, its index and filters in partitions or whole.
pub fn tepui(
    bench: &Bench,
    dataset: &Dataset,
    partitions: bool,
    cache_bytes: u64,
) -> Result<Tepui> {
    let mut options = tepui_options(partitions, cache_bytes);
    let kept = tepui_place(bench, dataset, partitions);
    kept.data().clone_into(&mut options.dir);
    Tepui::open_kept(&options, dataset, &kept, &bench.progress)
}

/// What Tepui is set to, for the report.
pub fn tepui_settings() -> String {
    let options = tepui_options(true, 0);
    format!("{:?} I/O, {}", options.io, options.format())
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

/// fjall with a block cache of `cache_bytes`, where it takes part.
pub fn fjall(bench: &Bench, dataset: &Dataset, cache_bytes: u64) -> Result<Option<Fjall>> {
    if !bench.fjall {
        return Ok(None);
    }
    let kept = place(bench, "fjall", dataset, &Fjall::settings());
    if kept.prepare()? == State::Empty {
        let loading = Fjall::open(kept.data(), cache_bytes)?;
        loading.load(dataset, &bench.progress)?;
        loading.settle(&bench.progress)?;
        kept.complete()?;
    }
    Fjall::open(kept.data(), cache_bytes).map(Some)
}
