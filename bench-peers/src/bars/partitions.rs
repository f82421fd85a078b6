//! Partitioned index and filter beside whole ones: with a cache of 1/1500 of the data, where partitions are meant to
//! help, and with everything cached, where they must not harm. RocksDB's own figures stand beside, without a bar.

use tepui_bench::tepui::Tepui;
use tepui_bench::{Dataset, OpKind, Result, Store};

use super::{Bench, Entrant, IN_FLIGHT, THREADS, nth, per_second, whole_cache};
use crate::report::{Bar, Line};
use crate::rocks::Settings;
use crate::sample::Series;
use crate::stores;

/// The small cache is this part of the data: 60 MB for 86 GB, as in RocksDB's own comparison.
const SMALL_CACHE_PART: u64 = 1500;
const GROUP: &str = "partitions";

/// The four stores of a comparison.
struct Four {
    ours: [Tepui; 2],
    theirs: [crate::rocks::Rocks; 2],
}

impl Four {
    fn open(bench: &Bench, dataset: &Dataset, cache: u64) -> Result<Self> {
        let tepui = |partitions| stores::tepui(bench, dataset, partitions, cache);
        let rocks = |settings| stores::rocks(bench, dataset, &settings, cache);
        Ok(Self {
            ours: [tepui(true)?, tepui(false)?],
            theirs: [rocks(Settings::best())?, rocks(Settings::unpartitioned())?],
        })
    }

    fn all(&self) -> [&dyn Store; 4] {
        let ([a, b], [c, d]) = (&self.ours, &self.theirs);
        [a, b, c, d]
    }
}

/// Partitioned over not.
fn rate(partitioned: &Series, whole: &Series) -> crate::sample::Spread {
    partitioned.over(whole, per_second)
}

/// Not partitioned over partitioned. No bytes at all count as one: nothing is infinitely better.
fn bytes(partitioned: &Series, whole: &Series) -> crate::sample::Spread {
    whole.over(partitioned, |s| s.disk_bytes.max(1.0))
}

pub fn run(bench: &mut Bench) -> Result<()> {
    let dataset = bench.sizes.narrow();
    small(bench, &dataset)?;
    whole(bench, &dataset)
}

fn small(bench: &mut Bench, dataset: &Dataset) -> Result<()> {
    let four = Four::open(bench, dataset, dataset.bytes() / SMALL_CACHE_PART)?;
    let asked = [
        ("get-small-cache", OpKind::Get, "present", 8.0),
        ("get-absent-small-cache", OpKind::GetAbsent, "absent", 50.0),
    ];
    for (workload, kind, keys, bar) in asked {
        let workload = bench.workload(workload, kind, THREADS, IN_FLIGHT);
        for store in four.all() {
            bench.warm(store, dataset, &workload)?;
        }
        let entrants = four.all().map(|store| Entrant::Store(store, &workload));
        let all = bench.contest(dataset, &entrants)?;
        let (a, b, c, d) = (nth(&all, 0)?, nth(&all, 1)?, nth(&all, 2)?, nth(&all, 3)?);
        // A present row that is read without the device was in some other cache.
        let doubt = match kind {
            OpKind::Get => super::not_the_device(a),
            _ => None,
        };
        let name = format!("cache of 1/1500, {keys} keys: bytes, whole over partitioned");
        let note = format!(
            "{:.0} over {:.0} bytes a read; RocksDB {:.1}",
            b.spread(|s| s.disk_bytes).median,
            a.spread(|s| s.disk_bytes).median,
            bytes(c, d).median
        );
        bench.say(Line::new(GROUP, name, bytes(a, b), Bar::AtLeast(bar)).note(note).unless(doubt));
        let bar = match kind {
            OpKind::GetAbsent => Bar::AtLeast(9.0),
            _ => Bar::Published,
        };
        let name = format!("cache of 1/1500, {keys} keys: rate, partitioned over whole");
        let note = format!("RocksDB {:.1}", rate(c, d).median);
        bench.say(Line::new(GROUP, name, rate(a, b), bar).note(note));
    }
    Ok(())
}

fn whole(bench: &mut Bench, dataset: &Dataset) -> Result<()> {
    let four = Four::open(bench, dataset, whole_cache(dataset))?;
    for store in four.all() {
        bench.warm_whole(store, dataset)?;
    }
    let asked = [
        ("get-all-cached", OpKind::Get, "present"),
        ("get-absent-all-cached", OpKind::GetAbsent, "absent"),
    ];
    for (workload, kind, keys) in asked {
        let workload = bench.workload(workload, kind, THREADS, THREADS);
        let entrants = four.all().map(|store| Entrant::Store(store, &workload));
        let all = bench.contest(dataset, &entrants)?;
        let name = format!("everything cached, {keys} keys: rate, partitioned over whole");
        let note = format!("RocksDB {:.2}", rate(nth(&all, 2)?, nth(&all, 3)?).median);
        let figure = rate(nth(&all, 0)?, nth(&all, 1)?);
        bench.say(Line::new(GROUP, name, figure, Bar::AtLeast(0.95)).note(note));
    }
    Ok(())
}
