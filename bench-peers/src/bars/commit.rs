//! The commit log: how many writes share a sync, how fast synced writes are beside RocksDB's, and what a hot row
//! costs.

use std::path::PathBuf;
use std::time::Duration;

use tepui_bench::tepui::{SyncMode, Tepui, TepuiOptions};
use tepui_bench::{
    Dataset, Distribution, Error, Figure, OpKind, Progress, Result, Run, Store, Workload,
};

use super::{Bench, Entrant, THREADS, nth, per_second};
use crate::report::{Bar, Line};
use crate::rocks::{How, Rocks, Settings, Writing};
use crate::sample::{Sample, Series, Spread, fastest};
use crate::stores::remove;

/// What a sync takes longer where it is to be slow, as on the disk of a cloud.
const SLOW_SYNC: Duration = Duration::from_millis(2);
/// Writers of the bars about groups.
const WRITERS: usize = 256;
/// Writers of a hot row.
const HOT_WRITERS: usize = 64;
/// The least of these that share a sync.
const HOT_WRITERS_A_SYNC: f64 = 60.0;
/// Bytes of Tepui's block cache, and of RocksDB's: nothing is read here but by compactions.
const CACHE_BYTES: usize = 64 << 20;
/// Threads of RocksDB, each with a write of its own: few, for the cores, up to as many as Tepui has writes in flight.
const ROCKS_THREADS: [usize; 4] = [16, 64, 128, 256];

/// A directory for a store that is written anew in each run of the program.
pub(super) fn fresh(bench: &Bench, name: &str) -> Result<PathBuf> {
    let dir = bench.dir.join(name);
    remove(&dir)?;
    Ok(dir)
}

/// Tepui with a sync before each answer, empty.
fn tepui(
    bench: &Bench,
    name: &str,
    dataset: &Dataset,
    slow_sync: Option<Duration>,
) -> Result<(Tepui, PathBuf)> {
    let dir = fresh(bench, name)?;
    let mut options = TepuiOptions::new(&dir, CACHE_BYTES as u64);
    "Tepui".clone_into(&mut options.name);
    options.engine.sync = SyncMode::Always;
    options.slow_sync = slow_sync;
    Ok((Tepui::open(&options, dataset)?, dir))
}

fn figure(sample: &Sample, name: &str) -> f64 {
    sample.figures.get(name).copied().unwrap_or(f64::NAN)
}

/// Acknowledged writes for each sync of the log.
fn writes_per_sync(sample: &Sample) -> f64 {
    figure(sample, "log_batches") / figure(sample, "log_syncs")
}

fn log_bytes_per_mutation(sample: &Sample) -> f64 {
    figure(sample, "log_bytes") / figure(sample, "log_mutations")
}

/// Writes per second beside what one after the other would be, each with a sync of its own.
fn over_the_sync_rate(sample: &Sample) -> f64 {
    let sync_seconds = figure(sample, "log_sync_micros") / figure(sample, "log_syncs") / 1e6;
    sample.per_second * sync_seconds
}

fn sync_note(series: &Series) -> String {
    let sync = |s: &Sample| figure(s, "log_sync_micros") / figure(s, "log_syncs");
    format!(
        "{:.0} writes/s, a sync {:.0} us, {:.1} times the rate of such syncs one after the other, p50 {:.0} us, p99 {:.0} us",
        series.spread(per_second).median,
        series.spread(sync).median,
        series.spread(over_the_sync_rate).median,
        series.spread(|s| s.p50_us).median,
        series.spread(|s| s.p99_us).median,
    )
}

/// Many writers on a disk that syncs slowly.
pub fn run_groups(bench: &mut Bench) -> Result<()> {
    let dataset = bench.sizes.narrow();
    let (store, dir) = tepui(bench, "tepui-groups", &dataset, Some(SLOW_SYNC))?;
    let put = bench.workload("put, slow sync", OpKind::Put, THREADS, WRITERS);
    bench.warm(&store, &dataset, &put)?;
    let all = bench.contest(&dataset, &[Entrant::Store(&store, &put)])?;
    let ours = nth(&all, 0)?;
    let name = "256 writers, 2 ms a sync: acknowledged writes per sync";
    let line = Line::new("group-commit", name, ours.spread(writes_per_sync), Bar::AtLeast(100.0));
    let note = sync_note(ours);
    bench.say(line.note(note));
    let bytes = ours.spread(log_bytes_per_mutation);
    let name = format!(
        "log bytes per acknowledged mutation, {} of key and value",
        dataset.key_bytes + dataset.value_bytes
    );
    bench.say(Line::new("group-commit", name, bytes, Bar::Published).unit("B"));
    store.close()?;
    remove(&dir)
}

/// Synced writes beside RocksDB's group commit.
pub fn run_sync(bench: &mut Bench) -> Result<()> {
    let dataset = bench.sizes.narrow();
    let (store, dir) = tepui(bench, "tepui-sync", &dataset, None)?;
    let mut dirs = vec![dir];
    let mut ways: Vec<(Rocks, Workload)> = Vec::new();
    for (name, writing) in [
        ("pipelined", Writing { pipelined: true, ..Writing::default() }),
        ("unpipelined", Writing { pipelined: false, ..Writing::default() }),
    ] {
        let dir = fresh(bench, &format!("rocksdb-sync-{name}"))?;
        let settings = Settings::for_writes(writing);
        let rocks = Rocks::open(&dir, &settings, CACHE_BYTES)?
            .used(How { sync: true, ..How::default() })
            .named(&format!("RocksDB {name}"));
        for threads in ROCKS_THREADS {
            let way = rocks.named(&format!("RocksDB {name}, {threads} threads"));
            ways.push((way, bench.workload("put, synced", OpKind::Put, THREADS, threads)));
        }
        dirs.push(dir);
    }
    let put = bench.workload("put, synced", OpKind::Put, THREADS, WRITERS);
    bench.warm(&store, &dataset, &put)?;
    for (way, workload) in &ways {
        bench.warm(way, &dataset, workload)?;
    }
    let mut entrants = vec![Entrant::Store(&store, &put)];
    entrants.extend(ways.iter().map(|(way, workload)| Entrant::Store(way, workload)));
    let all = bench.contest(&dataset, &entrants)?;
    let ours = nth(&all, 0)?;
    let best = fastest(all.iter().skip(1)).ok_or_else(|| Error::failed("RocksDB took no part"))?;
    let rate = ours.over(best, per_second);
    let note = format!(
        "{:.0} beside {:.0} writes/s of {}; CPU of a write {:.1} beside {:.1} us; {:.0} writes a sync",
        ours.spread(per_second).median,
        best.spread(per_second).median,
        best.store,
        ours.spread(|s| s.cpu_us).median,
        best.spread(|s| s.cpu_us).median,
        ours.spread(writes_per_sync).median,
    );
    let name = "synced writes, 256 in flight: rate over RocksDB";
    bench.say(Line::new("sync", name, rate, Bar::AtLeast(1.5)).note(note));
    store.close()?;
    drop(ways);
    dirs.iter().try_for_each(|dir| remove(dir))
}

/// A figure of [`Counted`]: the counter of its row.
const COUNTER: &str = "row_counter";

/// Tepui with the counter of a row among its figures, so that every run says by how much it grew.
struct Counted<'a> {
    store: &'a Tepui,
    dataset: &'a Dataset,
    row: u64,
}

impl Store for Counted<'_> {
    fn name(&self) -> &str {
        self.store.name()
    }

    fn load(&self, dataset: &Dataset, progress: &Progress) -> Result<()> {
        self.store.load(dataset, progress)
    }

    fn settle(&self, progress: &Progress) -> Result<()> {
        self.store.settle(progress)
    }

    fn rest(&self, progress: &Progress) -> Result<()> {
        self.store.rest(progress)
    }

    fn run(&self, run: &Run<'_>) -> Result<()> {
        self.store.run(run)
    }

    fn figures(&self) -> Vec<Figure> {
        let mut figures = self.store.figures();
        let count = self.store.counter(self.dataset, self.row).ok();
        let count = count.and_then(|count| u64::try_from(count).ok());
        figures.extend(count.map(|count| Figure::counter(COUNTER, count)));
        figures
    }
}

/// Increments of a run of [`Counted`] that were acknowledged and are not in its counter: overwritten by another that read the same
/// value. Not a number where the counter could not be read.
fn lost(sample: &Sample) -> f64 {
    figure(sample, "log_batches") - figure(sample, COUNTER)
}

/// Read-modify-writes of one row beside those of many, on a disk that syncs slowly.
pub fn run_hot_row(bench: &mut Bench) -> Result<()> {
    let dataset = bench.sizes.narrow();
    let (store, dir) = tepui(bench, "tepui-hot-row", &dataset, Some(SLOW_SYNC))?;
    let many = bench.workload("increment, many rows", OpKind::Increment, THREADS, HOT_WRITERS);
    let mut one = bench.workload("increment, one row", OpKind::Increment, THREADS, HOT_WRITERS);
    one.distribution = Distribution::Single;
    bench.warm(&store, &dataset, &many)?;
    let counted = Counted { store: &store, dataset: &dataset, row: dataset.rows / 2 };
    let entrants = [Entrant::Store(&counted, &one), Entrant::Store(&store, &many)];
    let all = bench.contest(&dataset, &entrants)?;
    let (ours, others) = (nth(&all, 0)?, nth(&all, 1)?);
    let name = "64 incrementers of one row, 2 ms a sync: increments per sync";
    let line =
        Line::new("hot-row", name, ours.spread(writes_per_sync), Bar::AtLeast(HOT_WRITERS_A_SYNC));
    let lost: f64 = ours.samples.iter().map(lost).sum();
    let doubt = (lost.is_nan() || lost > 0.0).then(|| format!("{lost:.0} increments are lost"));
    let note = sync_note(ours);
    bench.say(line.note(note).unless(doubt));
    let name = "64 incrementers of one row: rate over the same of many rows";
    let ratio: Spread = ours.over(others, per_second);
    bench.say(Line::new("hot-row", name, ratio, Bar::AtLeast(0.8)).note(sync_note(others)));
    store.close()?;
    remove(&dir)
}

#[cfg(test)]
mod tests {
    use tepui_bench::Limit;
    use tepui_bench::report::measure;

    use super::*;

    #[test]
    fn every_run_has_the_increments_that_are_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let dataset = Dataset { rows: 100, key_bytes: 50, columns: 1, value_bytes: 10, seed: 1 };
        let options = TepuiOptions::new(dir.path(), CACHE_BYTES as u64);
        let store = Tepui::open(&options, &dataset).unwrap();
        let row = dataset.rows / 2;
        let counted = Counted { store: &store, dataset: &dataset, row };
        let increments = |distribution| Workload {
            distribution,
            in_flight: 8,
            limit: Limit::Ops(200),
            ..Workload::of("increments", OpKind::Increment)
        };
        let one = increments(Distribution::Single);
        // Those of a run that does not count are not missed in the next one.
        for _ in 0..2 {
            let run = measure(&counted, &dataset, &one, None, &Progress::hidden()).unwrap();
            assert_eq!(
                (run.figure("log_batches"), run.figure(COUNTER)),
                (Some(200.0), Some(200.0))
            );
            assert!(lost(&Sample::of(&run)).abs() < 0.5);
        }
        // And what is acknowledged elsewhere is missed.
        let many = increments(Distribution::Uniform);
        let run = measure(&counted, &dataset, &many, None, &Progress::hidden()).unwrap();
        assert!(lost(&Sample::of(&run)) > 100.0, "{:?}", run.figures);
        store.close().unwrap();
    }
}
