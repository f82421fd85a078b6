//! Point reads that the cache does not hold: reads and bytes of the device, the device's own speed, and RocksDB.

use tepui_bench::kept::Kept;
use tepui_bench::{Dataset, Error, OpKind, Result, Share, Store, Workload};

use super::{Bench, Entrant, IN_FLIGHT, THREADS, not_the_device, nth, per_second, waiting_ways};
use crate::fio::{BLOCK_BYTES, Fio};
use crate::report::{Bar, Line};
use crate::rocks::Settings;
use crate::sample::{Series, fastest};
use crate::stores;

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

impl Shape {
    fn run(&self, bench: &mut Bench) -> Result<()> {
        let dataset = self.dataset;
        let cache = dataset.bytes() / CACHE_PART;
        let fio = Fio::prepare(&bench.dir, dataset.bytes())?;
        let tepui = stores::tepui(bench, &dataset, true, cache)?;
        let rocks = stores::rocks(bench, &dataset, &Settings::best(), cache)?;
        let ways = waiting_ways(&rocks);
        let fjall = stores::fjall(bench, &dataset, cache)?;

        let many = bench.workload("get", OpKind::Get, THREADS, IN_FLIGHT);
        bench.warm(&tepui, &dataset, &many)?;
        bench.warm(&rocks, &dataset, &many)?;
        let mut entrants =
            vec![Entrant::Store(&tepui, &many), Entrant::Device(&fio, &many, BLOCK_BYTES)];
        entrants.extend(ways.iter().map(|way| Entrant::Store(way, &many)));
        if let Some(fjall) = &fjall {
            entrants.push(Entrant::Store(fjall, &many));
        }
        let all = bench.contest(&dataset, &entrants)?;
        let (ours, device) = (nth(&all, 0)?, nth(&all, 1)?);
        let best = fastest(all.iter().skip(2).take(ways.len()))
            .ok_or_else(|| Error::failed("RocksDB took no part"))?;
        self.device_lines(bench, ours, device);
        self.peer_lines(bench, ours, best);

        let few = bench.workload("get", OpKind::Get, THREADS, THREADS);
        let entrants = [
            Entrant::Store(&tepui, &few),
            Entrant::Store(&rocks, &few),
            Entrant::Device(&fio, &few, BLOCK_BYTES),
        ];
        let all = bench.contest(&dataset, &entrants)?;
        let ours = nth(&all, 0)?;
        let ratio = ours.over(nth(&all, 1)?, per_second);
        let name = self.name("uncached get, 2 threads: rate over RocksDB");
        let line = Line::new(self.group, name, ratio, Bar::AtLeast(1.3));
        bench.say(line.unless(not_the_device(ours)));
        let rate = ours.over(nth(&all, 2)?, per_second);
        let name = self.name("uncached get, 2 threads: rate over fio");
        bench.say(Line::new(self.group, name, rate, Bar::Published).unless(not_the_device(ours)));

        self.absent(bench, &tepui, &rocks)?;
        let kept = stores::places(bench, &dataset, &Settings::best());
        kept.iter().try_for_each(Kept::changing)?;
        self.while_writing(bench, &tepui, &rocks, &many)?;
        tepui.settle(&bench.progress)?;
        rocks.settle(&bench.progress)?;
        kept.iter().try_for_each(Kept::complete)
    }

    fn name(&self, what: &str) -> String {
        format!("{what}{}", self.label)
    }

    fn device_lines(&self, bench: &mut Bench, ours: &Series, device: &Series) {
        let reads = ours.spread(|s| s.disk_reads);
        let name = self.name("uncached get: disk reads");
        let doubt = not_the_device(ours);
        bench.say(Line::new(self.group, name, reads, Bar::AtMost(1.02)).unless(doubt.clone()));
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

    fn absent(&self, bench: &mut Bench, tepui: &dyn Store, rocks: &dyn Store) -> Result<()> {
        let absent = bench.workload("get-absent", OpKind::GetAbsent, THREADS, IN_FLIGHT);
        // Until the filters are in the cache, every read fetches one.
        for store in [tepui, rocks] {
            bench.warm(store, &self.dataset, &absent)?;
            bench.warm(store, &self.dataset, &absent)?;
        }
        let entrants = [Entrant::Store(tepui, &absent), Entrant::Store(rocks, &absent)];
        let all = bench.contest(&self.dataset, &entrants)?;
        let (ours, theirs) = (nth(&all, 0)?, nth(&all, 1)?);
        let figure = ours.spread(|s| s.disk_reads * ABSENT_READS);
        let note = format!("RocksDB {:.1}", theirs.spread(|s| s.disk_reads * ABSENT_READS).median);
        let name = self.name("absent rows: disk reads per 1,000 reads");
        bench.say(Line::new(self.group, name, figure, Bar::AtMost(5.0)).note(note));
        Ok(())
    }

    /// Last, for it changes the shape of the trees, which have to settle again afterwards.
    fn while_writing(
        &self,
        bench: &mut Bench,
        tepui: &dyn Store,
        rocks: &dyn Store,
        get: &Workload,
    ) -> Result<()> {
        let mix = vec![
            Share { kind: OpKind::Get, weight: 100 - WRITE_PERCENT },
            Share { kind: OpKind::Put, weight: WRITE_PERCENT },
        ];
        let mixed = Workload { name: "get-while-writing".to_owned(), mix, ..get.clone() };
        let entrants = [Entrant::Store(tepui, &mixed), Entrant::Store(rocks, &mixed)];
        let all = bench.contest(&self.dataset, &entrants)?;
        let (ours, theirs) = (nth(&all, 0)?, nth(&all, 1)?);
        let name = self.name("uncached get while 10% write: disk reads");
        let note = format!(
            "reads of compactions included; RocksDB {:.2}",
            theirs.spread(|s| s.disk_reads).median
        );
        let figure = ours.spread(|s| s.disk_reads);
        let line = Line::new(self.group, name, figure, Bar::AtMost(1.10)).note(note);
        bench.say(line.unless(not_the_device(ours)));
        Ok(())
    }
}
