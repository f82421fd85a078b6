//! Point reads that the cache does not hold: reads and bytes of the device, the device's own speed, and RocksDB.

use std::cmp::Ordering;

use tepui_bench::tepui::Tepui;
use tepui_bench::{Dataset, Error, OpKind, Result, Share, Store, Workload};

use super::{
    Bench, Entrant, IN_FLIGHT, THREADS, fjall_line, not_the_device, nth, per_second, thread_ways,
    waiting_ways,
};
use crate::figures::{COMPACTION_READ_BYTES, FLUSH_BYTES, Levels};
use crate::fio::{BLOCK_BYTES, Fio};
use crate::fjall::Fjall;
use crate::report::{Bar, Line};
use crate::rocks::{Rocks, Settings};
use crate::sample::{Series, Spread, fastest};
use crate::stores::{self, Copies};

/// The cache is this part of the data.
const CACHE_PART: u64 = 60;
/// Of a hundred operations while writes go on, so many write.
const WRITE_PERCENT: u32 = 10;
/// Disk reads are told for so many reads of absent rows.
const ABSENT_READS: f64 = 1000.0;

/// One column a row.
pub fn run(bench: &mut Bench) -> Result<()> {
    Shape { group: "uncached", label: "", dataset: bench.sizes.narrow() }.run(bench)
}

/// Ten columns a row.
pub fn run_wide(bench: &mut Bench) -> Result<()> {
    Shape { group: "wide", label: ", 10 columns", dataset: bench.sizes.wide() }.run(bench)
}

struct Shape {
    group: &'static str,
    label: &'static str,
    dataset: Dataset,
}

/// Stores of a group, with names for what they are to the bars.
struct Stores {
    /// As a server has it that is written to: what a read costs is told of it.
    at_rest: Tepui,
    /// In one sorted run, as RocksDB is: what is compared with it.
    one_run: Tepui,
    rocks: Rocks,
    fjall: Option<Fjall>,
}

impl Stores {
    fn all(&self) -> Vec<&dyn Store> {
        let mut all: Vec<&dyn Store> = vec![&self.at_rest, &self.one_run, &self.rocks];
        all.extend(self.fjall.as_ref().map(|fjall| fjall as &dyn Store));
        all
    }
}

impl Shape {
    fn run(&self, bench: &mut Bench) -> Result<()> {
        let dataset = self.dataset;
        let cache = dataset.bytes() / CACHE_PART;
        let stores = Stores {
            at_rest: stores::tepui_at_rest(bench, &dataset, cache)?,
            one_run: stores::tepui(bench, &dataset, true, cache)?,
            rocks: stores::rocks(bench, &dataset, &Settings::best(), cache)?,
            fjall: stores::fjall(bench, &dataset, cache)?,
        };
        let fio = Fio::prepare(&bench.dir, dataset.bytes())?;
        let many = bench.workload("get", OpKind::Get, THREADS, IN_FLIGHT);
        self.many(bench, &stores, &fio, &many)?;
        self.few(bench, &stores, &fio)?;
        drop(fio);
        self.absent(bench, &stores)?;
        // Copied when they are closed.
        drop(stores);
        self.while_writing(bench, cache, &many)
    }

    fn many(&self, bench: &mut Bench, stores: &Stores, fio: &Fio, get: &Workload) -> Result<()> {
        let ways = waiting_ways(&stores.rocks, &self.dataset);
        for store in stores.all() {
            bench.warm(store, &self.dataset, get)?;
        }
        let mut entrants = vec![
            Entrant::Store(&stores.at_rest, get),
            Entrant::Store(&stores.one_run, get),
            Entrant::Device(fio, get, BLOCK_BYTES),
        ];
        entrants.extend(ways.iter().map(|way| Entrant::Store(way, get)));
        if let Some(fjall) = &stores.fjall {
            entrants.push(Entrant::Store(fjall, get));
        }
        let all = bench.contest(&self.dataset, &entrants)?;
        let (at_rest, one_run, device) = (nth(&all, 0)?, nth(&all, 1)?, nth(&all, 2)?);
        let best = fastest(all.iter().skip(3).take(ways.len()))
            .ok_or_else(|| Error::failed("RocksDB took no part"))?;
        self.device_lines(bench, at_rest, device);
        self.peer_lines(bench, one_run, best);
        let name = self.name("uncached get, 32 in flight: rate at rest over in one run");
        let line = Line::new(self.group, name, at_rest.over(one_run, per_second), Bar::Published);
        bench.say(line);
        let name = self.name("uncached get, 32 in flight: rate over fjall from the page cache");
        fjall_line(bench, self.group, name, one_run, all.get(3 + ways.len()));
        Ok(())
    }

    fn few(&self, bench: &mut Bench, stores: &Stores, fio: &Fio) -> Result<()> {
        let few = bench.workload("get", OpKind::Get, THREADS, THREADS);
        let ways = thread_ways(&stores.rocks, &self.dataset);
        let mut entrants = vec![
            Entrant::Store(&stores.at_rest, &few),
            Entrant::Store(&stores.one_run, &few),
            Entrant::Device(fio, &few, BLOCK_BYTES),
        ];
        entrants.extend(ways.iter().map(|way| Entrant::Store(way, &few)));
        let all = bench.contest(&self.dataset, &entrants)?;
        let (at_rest, one_run, device) = (nth(&all, 0)?, nth(&all, 1)?, nth(&all, 2)?);
        let best =
            fastest(all.iter().skip(3)).ok_or_else(|| Error::failed("RocksDB took no part"))?;
        let ratio = one_run.over(best, per_second);
        let name = self.name("uncached get, 2 threads: rate over RocksDB");
        let line = Line::new(self.group, name, ratio, Bar::AtLeast(1.3));
        bench.say(line.note(best.store.clone()).unless(not_the_device(one_run)));
        let rate = at_rest.over(device, per_second);
        let name = self.name("uncached get, 2 threads: rate over fio");
        let line = Line::new(self.group, name, rate, Bar::Published);
        bench.say(line.unless(not_the_device(at_rest)));
        Ok(())
    }

    fn name(&self, what: &str) -> String {
        format!("{what}{}", self.label)
    }

    fn device_lines(&self, bench: &mut Bench, ours: &Series, device: &Series) {
        let reads = ours.spread(|s| s.disk_reads);
        let name = self.name("uncached get: disk reads");
        let levels = Levels::of(ours);
        let doubt = not_the_device(ours).or_else(|| levels.doubt());
        let line = Line::new(self.group, name, reads, Bar::AtMost(1.02)).note(levels.to_string());
        bench.say(line.unless(doubt.clone()));
        let bytes = ours.spread(|s| s.disk_bytes / BLOCK_BYTES as f64);
        let name = self.name("uncached get: disk bytes over the block size");
        bench.say(Line::new(self.group, name, bytes, Bar::AtMost(1.1)).unless(doubt.clone()));
        let name = self.name("uncached get, 32 in flight: rate over fio");
        let rate = ours.over(device, per_second);
        let note = format!("fio {:.0} reads/s", device.spread(per_second).median);
        let line = Line::new(self.group, name, rate, Bar::AtLeast(0.85));
        bench.say(line.note(note).unless(doubt));
    }

    fn peer_lines(&self, bench: &mut Bench, ours: &Series, best: &Series) {
        let pairs: [(&str, crate::sample::Pick, Bar); 3] = [
            ("rate", per_second, Bar::AtLeast(1.3)),
            ("CPU of a read", |s| s.cpu_us, Bar::AtMost(0.75)),
            ("p99", |s| s.p99_us, Bar::AtMost(0.8)),
        ];
        for (what, pick, bar) in pairs {
            let name = self.name(&format!("uncached get, 32 in flight: {what} over RocksDB"));
            let note = format!(
                "{:.1} beside {:.1} of {}, the fastest way to use it",
                ours.spread(pick).median,
                best.spread(pick).median,
                best.store
            );
            let line = Line::new(self.group, name, ours.over(best, pick), bar).note(note);
            bench.say(line.unless(not_the_device(ours)));
        }
    }

    fn absent(&self, bench: &mut Bench, stores: &Stores) -> Result<()> {
        let absent = bench.workload("get-absent", OpKind::GetAbsent, THREADS, IN_FLIGHT);
        // Until the filters are in the cache, every read fetches one.
        for store in stores.all() {
            bench.warm(store, &self.dataset, &absent)?;
            bench.warm(store, &self.dataset, &absent)?;
        }
        let entrants: Vec<_> =
            stores.all().into_iter().map(|store| Entrant::Store(store, &absent)).collect();
        let all = bench.contest(&self.dataset, &entrants)?;
        let reads = |at| Ok::<_, Error>(nth(&all, at)?.spread(|s| s.disk_reads * ABSENT_READS));
        let levels = Levels::of(nth(&all, 0)?);
        let note = format!(
            "in one run {:.1}, RocksDB {:.1}; {levels}",
            reads(1)?.median,
            reads(2)?.median
        );
        let name = self.name("absent rows: disk reads per 1,000 reads");
        let line = Line::new(self.group, name, reads(0)?, Bar::AtMost(5.0)).note(note);
        bench.say(line.unless(levels.doubt()));
        let name = self.name("absent rows: rate over fjall from the page cache");
        fjall_line(bench, self.group, name, nth(&all, 1)?, all.get(3));
        Ok(())
    }

    /// On copies, whose memtables are so small that their flushes and compactions fall into every run.
    fn while_writing(&self, bench: &mut Bench, cache: u64, get: &Workload) -> Result<()> {
        let Copies { tepui, rocks, fjall } = stores::copies(bench, &self.dataset, cache)?;
        let mix = vec![
            Share { kind: OpKind::Get, weight: 100 - WRITE_PERCENT },
            Share { kind: OpKind::Put, weight: WRITE_PERCENT },
        ];
        let mixed = Workload { name: "get-while-writing".to_owned(), mix, ..get.clone() };
        let mut stores: Vec<&dyn Store> = vec![&tepui, &rocks];
        stores.extend(fjall.as_ref().map(|fjall| fjall as &dyn Store));
        for store in &stores {
            // Levels are smaller beside their memtables than those that were copied.
            store.rest(&bench.progress)?;
            bench.warm(*store, &self.dataset, &mixed)?;
        }
        let entrants: Vec<_> = stores.iter().map(|store| Entrant::Store(*store, &mixed)).collect();
        let all = bench.contest(&self.dataset, &entrants)?;
        let (ours, theirs) = (nth(&all, 0)?, nth(&all, 1)?);
        let name = self.name("uncached get while 10% write: disk reads");
        let note = format!(
            "reads of compactions included: {:.1} MB flushed, {:.1} MB read by compactions in a run; {}; RocksDB {:.2}",
            megabytes(ours, FLUSH_BYTES),
            megabytes(ours, COMPACTION_READ_BYTES),
            Levels::of(ours),
            theirs.spread(|s| s.disk_reads).median
        );
        let figure = ours.spread(|s| s.disk_reads);
        let line = Line::new(self.group, name, figure, Bar::AtMost(1.10)).note(note);
        bench.say(line.unless(not_the_device(ours).or_else(|| nothing_compacted(ours))));
        let name = self.name("uncached get while 10% write: rate over fjall from the page cache");
        fjall_line(bench, self.group, name, ours, all.get(2));
        tepui.close()?;
        drop((rocks, fjall));
        stores::remove_copies(bench)
    }
}

/// What a counter of the store grew by in a run, in megabytes: the median.
fn megabytes(series: &Series, name: &str) -> f64 {
    let grown = series.samples.iter().map(|s| s.figures.get(name).copied().unwrap_or(f64::NAN));
    Spread::of(grown).median / 1e6
}

/// Reads beside writes say nothing of flushes and compactions where most runs had none.
fn nothing_compacted(series: &Series) -> Option<String> {
    let none = |name| megabytes(series, name).partial_cmp(&0.0) != Some(Ordering::Greater);
    [FLUSH_BYTES, COMPACTION_READ_BYTES]
        .into_iter()
        .find(|name| none(name))
        .map(|name| format!("most runs have no `{name}`: nothing went on beside the reads"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Sample;

    #[test]
    fn a_run_beside_writes_without_a_compaction_is_doubted() {
        let run = |flushed, read| Sample {
            figures: [(FLUSH_BYTES.to_owned(), flushed), (COMPACTION_READ_BYTES.to_owned(), read)]
                .into(),
            ..Sample::default()
        };
        let doubt = |samples| {
            nothing_compacted(&Series { store: String::new(), workload: String::new(), samples })
        };
        assert_eq!(doubt(vec![run(1e6, 4e6), run(1e6, 0.0), run(2e6, 3e6)]), None);
        assert!(doubt(vec![run(1e6, 4e6), run(1e6, 0.0), run(2e6, 0.0)]).is_some());
        assert!(doubt(vec![run(0.0, 0.0)]).unwrap().contains("flush_bytes"));
        assert!(doubt(vec![Sample::default()]).is_some());
    }
}
