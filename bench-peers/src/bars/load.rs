//! Loads and deletes: what it takes until the tree has settled, and what is left in the way of a scan.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tepui_bench::clock::{Timer, cpu_nanos, pause};
use tepui_bench::contest::in_turn;
use tepui_bench::counters::MachineTime;
use tepui_bench::tepui::{CompactionStyle, Tepui, TepuiOptions};
use tepui_bench::{Dataset, Error, Result, Store};

use super::Bench;
use super::commit::fresh;
use crate::report::{Bar, Line};
use crate::rocks::{Rocks, Settings, Writing};
use crate::sample::{Sample, Series, Spread, fastest};
use crate::stores::remove;

/// Bytes of the block caches: nothing is read but by compactions, which use none.
const CACHE_BYTES: usize = 64 << 20;
/// Of the rows, the part that is deleted: all but a tenth.
const LIVE_PART: u64 = 10;
/// How long after the deletes the scan is to be fast.
const AFTER_DELETES_SECONDS: f64 = 60.0;
/// The first live row is found in this many times what the first row of a fresh table takes.
const FAST: f64 = 2.0;
/// A look that takes more, in microseconds, is not repeated: it passes dead rows. Less may be a processor that slept.
const SLOW_LOOK_US: f64 = 1000.0;
/// Between two looks whether it is.
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);
/// How often the first live row is looked for; the median counts.
const LOOKS: usize = 101;

/// Who is loaded.
#[derive(Clone, Copy)]
enum Way {
    Tepui(CompactionStyle),
    Rocks(Writing),
}

impl Way {
    /// Loads it into a directory.
    fn load(self, bench: &Bench, dir: &Path, dataset: &Dataset) -> Result<Loaded> {
        match self {
            Self::Tepui(compaction) => load_tepui(bench, dir, dataset, compaction),
            Self::Rocks(writing) => load_rocks(bench, dir, dataset, writing),
        }
    }
}

/// RocksDB, with a log that is not synced: nothing is gained by files that are written again.
const PLAIN: Writing =
    Writing { pipelined: false, recycled: false, deep_level_zero: false, many_jobs: false };

/// All of them, with their names in the report. Of RocksDB's ways the fastest is compared with.
const WAYS: [(&str, Way); 6] = [
    ("Tepui", Way::Tepui(CompactionStyle::Leveled)),
    ("Tepui tiered", Way::Tepui(CompactionStyle::Tiered)),
    ("RocksDB leveled, pipelined", Way::Rocks(Writing { pipelined: true, ..PLAIN })),
    ("RocksDB leveled, unpipelined", Way::Rocks(PLAIN)),
    (
        "RocksDB leveled, pipelined, with a deep level 0",
        Way::Rocks(Writing { pipelined: true, deep_level_zero: true, ..PLAIN }),
    ),
    (
        "RocksDB leveled, pipelined, with eight jobs",
        Way::Rocks(Writing { pipelined: true, many_jobs: true, ..PLAIN }),
    ),
];

/// What a load came to.
struct Loaded {
    seconds: f64,
    written_bytes: f64,
    space_bytes: f64,
    cpu_nanos: u64,
    stolen_share: f64,
}

impl Loaded {
    fn sample(&self, dataset: &Dataset) -> Sample {
        let mut sample = Sample {
            per_second: dataset.rows as f64 / self.seconds,
            cpu_us: self.cpu_nanos as f64 / 1e3 / dataset.rows as f64,
            stolen_share: self.stolen_share,
            ..Sample::default()
        };
        let data = dataset.bytes() as f64;
        sample.figures.insert("write_amplification".to_owned(), self.written_bytes / data);
        sample.figures.insert("space_amplification".to_owned(), self.space_bytes / data);
        sample
    }
}

fn write_amplification(sample: &Sample) -> f64 {
    sample.figures.get("write_amplification").copied().unwrap_or(f64::NAN)
}

fn space_amplification(sample: &Sample) -> f64 {
    sample.figures.get("space_amplification").copied().unwrap_or(f64::NAN)
}

fn figure(store: &dyn Store, name: &str) -> f64 {
    store.figures().iter().find(|f| f.name == name).map_or(f64::NAN, |f| f.value)
}

/// Loads an empty store until nothing is due. What it wrote is for the caller to say.
fn load(
    bench: &Bench,
    store: &dyn Store,
    dataset: &Dataset,
    flush: &dyn Fn() -> Result<()>,
) -> Result<Loaded> {
    let (clock, cpu, machine) = (Timer::start(), cpu_nanos(), MachineTime::now());
    store.load(dataset, &bench.progress)?;
    flush()?;
    store.rest(&bench.progress)?;
    Ok(Loaded {
        seconds: clock.seconds(),
        written_bytes: f64::NAN,
        space_bytes: figure(store, "sst_bytes"),
        cpu_nanos: cpu_nanos() - cpu,
        stolen_share: MachineTime::now().stolen_share_since(machine),
    })
}

fn load_tepui(
    bench: &Bench,
    dir: &Path,
    dataset: &Dataset,
    compaction: CompactionStyle,
) -> Result<Loaded> {
    let mut options = TepuiOptions::new(dir, CACHE_BYTES as u64);
    options.engine.compaction = compaction;
    let store = Tepui::open(&options, dataset)?;
    let mut loaded = load(bench, &store, dataset, &|| store.flush())?;
    // Of values that lie outside of SSTs too, which both of them write.
    let written = ["flush_bytes", "compaction_write_bytes", "value_write_bytes"];
    loaded.written_bytes = written.iter().map(|name| figure(&store, name)).sum();
    loaded.space_bytes += figure(&store, "value_file_bytes");
    store.close()?;
    Ok(loaded)
}

fn load_rocks(bench: &Bench, dir: &Path, dataset: &Dataset, writing: Writing) -> Result<Loaded> {
    let store = Rocks::open(dir, &Settings::for_writes(writing), CACHE_BYTES)?;
    let mut loaded = load(bench, &store, dataset, &|| store.flush())?;
    loaded.written_bytes = store.close_written_bytes()?;
    Ok(loaded)
}

/// Rows in random order into empty stores, until their trees have settled.
pub fn run(bench: &mut Bench) -> Result<()> {
    let dataset = bench.sizes.narrow();
    let mut all = WAYS.map(|(name, _)| Series {
        store: name.to_owned(),
        workload: "load, settled".to_owned(),
        samples: Vec::new(),
    });
    for round in 0..bench.sizes.rounds {
        for ((_, way), series) in in_turn(WAYS.iter().zip(&mut all), round) {
            let dir = fresh(bench, "load")?;
            series.samples.push(way.load(bench, &dir, &dataset)?.sample(&dataset));
            remove(&dir)?;
            bench.progress.check()?;
        }
    }
    let [ours, tiered, peers @ ..] = &all;
    let theirs = fastest(peers).ok_or_else(|| Error::failed("RocksDB took no part"))?;
    let note = format!(
        "{:.0} beside {:.0} rows/s of {}; CPU of a row {:.1} beside {:.1} us",
        ours.spread(|s| s.per_second).median,
        theirs.spread(|s| s.per_second).median,
        theirs.store,
        ours.spread(|s| s.cpu_us).median,
        theirs.spread(|s| s.cpu_us).median,
    );
    let rate = ours.over(theirs, |s| s.per_second);
    let name = "load in random order, settled: rows per second over RocksDB";
    let mut lines = vec![Line::new("load", name, rate, Bar::AtLeast(1.0)).note(note)];
    let note = format!(
        "{:.2} beside {:.2} bytes written to SSTs for a byte loaded",
        ours.spread(write_amplification).median,
        theirs.spread(write_amplification).median,
    );
    let name = "load in random order: write amplification over RocksDB's";
    let written = ours.over(theirs, write_amplification);
    lines.push(Line::new("load", name, written, Bar::AtMost(1.0)).note(note));
    let note = format!("RocksDB {:.3}", theirs.spread(space_amplification).median);
    let name = "load in random order, settled: space amplification";
    let space = ours.spread(space_amplification);
    lines.push(Line::new("load", name, space, Bar::AtMost(1.15)).note(note));
    let name = "load in random order, a tiered table: write amplification over a leveled one's";
    let note = format!(
        "{:.2} bytes written; {:.0} rows/s; space {:.2}",
        tiered.spread(write_amplification).median,
        tiered.spread(|s| s.per_second).median,
        tiered.spread(space_amplification).median,
    );
    let written = tiered.over(ours, write_amplification);
    lines.push(Line::new("load", name, written, Bar::Published).note(note));
    bench.series.extend(all);
    for line in lines {
        bench.say(line);
    }
    Ok(())
}

/// Microseconds to the first live row, once; and the row.
fn look(store: &Tepui) -> Result<(f64, Vec<u8>)> {
    let clock = Timer::start();
    let row = store.first_row()?.ok_or_else(|| Error::failed("no row is left"))?;
    Ok((clock.nanos() as f64 / 1e3, row))
}

/// Microseconds to the first live row, the median of many looks.
fn look_often(store: &Tepui) -> Result<f64> {
    let looks: Vec<f64> = (0..LOOKS).map(|_| Ok(look(store)?.0)).collect::<Result<_>>()?;
    Ok(Spread::of(looks).median)
}

/// Nine tenths of the rows are deleted one by one, from the first on; then the first live row is looked for.
pub fn run_deletes(bench: &mut Bench) -> Result<()> {
    let dataset = bench.sizes.narrow();
    let dir: PathBuf = fresh(bench, "tepui-deletes")?;
    let options = TepuiOptions::new(&dir, CACHE_BYTES as u64);
    let store = Tepui::open(&options, &dataset)?;
    store.load(&dataset, &bench.progress)?;
    store.settle(&bench.progress)?;
    store.merge()?;
    let before = look_often(&store)?;
    let mut rows: Vec<Vec<u8>> = (0..dataset.rows).map(|row| dataset.key(row)).collect();
    rows.sort_unstable();
    let live = (dataset.rows / LIVE_PART).max(1);
    let first_live = usize::try_from(dataset.rows - live).unwrap_or(usize::MAX);
    let expected = rows.get(first_live).cloned().unwrap_or_default();
    rows.truncate(first_live);
    let clock = Timer::start();
    store.delete_rows(&rows, &bench.progress)?;
    let deleting = clock.seconds();
    drop(rows);
    // When it is first as fast as it should be, and whether it is at the end of the time.
    let clock = Timer::start();
    let (at_once, found) = look(&store)?;
    let mut fast_after = None;
    while fast_after.is_none() && clock.seconds() < AFTER_DELETES_SECONDS {
        bench.progress.check()?;
        // One slow look is enough to know, and takes what many fast ones do.
        if look(&store)?.0 <= SLOW_LOOK_US && look_often(&store)? <= FAST * before {
            fast_after = Some(clock.seconds());
        }
        pause(BETWEEN_LOOKS);
    }
    let after = look_often(&store)?;
    let doubt = match (found == expected, fast_after) {
        (false, _) => Some("another row was found".to_owned()),
        (true, None) => Some("not within a minute".to_owned()),
        (true, Some(_)) => None,
    };
    let note = format!(
        "{after:.1} us; {before:.1} us before, {at_once:.0} us right after {deleting:.0} s of deletes; fast after {}",
        fast_after.map_or_else(|| "more than a minute".to_owned(), |s| format!("{s:.0} s")),
    );
    let name = "90% of the rows deleted: the first live row over that of a fresh table";
    let figure = Spread::exact(after / before);
    bench.say(Line::new("deletes", name, figure, Bar::AtMost(FAST)).note(note).unless(doubt));
    store.close()?;
    remove(&dir)
}
