//! Scans of 100 rows beside RocksDB's.

use tepui_bench::{Error, OpKind, Result, Store};

use super::{
    Bench, Entrant, IN_FLIGHT, THREADS, fjall_line, nth, per_second, readahead_ways, whole_cache,
};
use crate::fio::{BLOCK_BYTES, Fio};
use crate::fjall::Fjall;
use crate::report::{Bar, Line};
use crate::rocks::{Rocks, Settings};
use crate::sample::fastest;
use crate::stores;

/// Rows of a scan.
const ROWS: u32 = 100;
/// The cache of uncached scans is this part of the data.
const CACHE_PART: u64 = 60;
/// What a row takes on disk beside its key and value, and a scan reads up to a block more at either end.
const ROW_OVERHEAD_BYTES: u64 = 16;

pub fn run(bench: &mut Bench) -> Result<()> {
    let dataset = bench.sizes.narrow();
    let scan_bytes = u64::from(ROWS) * (dataset.row_bytes() + ROW_OVERHEAD_BYTES);
    let readahead = scan_bytes.next_multiple_of(BLOCK_BYTES);
    for (label, cache) in
        [("cached", whole_cache(&dataset)), ("uncached", dataset.bytes() / CACHE_PART)]
    {
        let whole = label == "cached";
        let tepui = stores::tepui(bench, &dataset, true, cache)?;
        let rocks = stores::rocks(bench, &dataset, &Settings::best(), cache)?;
        let fjall = stores::fjall(bench, &dataset, cache)?;
        // RocksDB reads ahead only forwards, and only what is not cached. What is has a block of index and one of filters that each
        // file holds, too.
        let ways = if whole {
            vec![rocks, stores::rocks(bench, &dataset, &Settings::with_file(), cache)?]
        } else {
            readahead_ways(&rocks, readahead as usize)
        };
        let mut stores: Vec<&dyn Store> = vec![&tepui];
        stores.extend(ways.iter().map(|way| way as &dyn Store));
        stores.extend(fjall.iter().map(|fjall| fjall as &dyn Store));
        for store in stores {
            if whole {
                bench.warm_whole(store, &dataset)?;
            } else {
                let kind = OpKind::Scan { rows: ROWS, reverse: false };
                let workload = bench.workload("warm", kind, THREADS, IN_FLIGHT);
                bench.warm(store, &dataset, &workload)?;
            }
        }
        let device = if whole { None } else { Some(Fio::prepare(&bench.dir, dataset.bytes())?) };
        // A scan begins and ends within blocks.
        let device = device.as_ref().map(|fio| (fio, readahead + BLOCK_BYTES));
        for reverse in [false, true] {
            let ways = if reverse && !whole { ways.get(..1).unwrap_or_default() } else { &ways };
            scan(bench, (label, reverse), &tepui, ways, fjall.as_ref(), device)?;
        }
    }
    Ok(())
}

fn scan(
    bench: &mut Bench,
    (label, reverse): (&str, bool),
    tepui: &dyn Store,
    ways: &[Rocks],
    fjall: Option<&Fjall>,
    device: Option<(&Fio, u64)>,
) -> Result<()> {
    let dataset = bench.sizes.narrow();
    let direction = if reverse { "reverse" } else { "forward" };
    let (threads, in_flight) = if label == "cached" { (1, 1) } else { (THREADS, IN_FLIGHT) };
    let name = format!("scan-100-{direction}-{label}");
    let kind = OpKind::Scan { rows: ROWS, reverse };
    let workload = bench.workload(&name, kind, threads, in_flight);
    let mut entrants = vec![Entrant::Store(tepui, &workload)];
    entrants.extend(ways.iter().map(|way| Entrant::Store(way, &workload)));
    entrants.extend(device.map(|(fio, bytes)| Entrant::Device(fio, &workload, bytes)));
    let before_fjall = entrants.len();
    entrants.extend(fjall.map(|fjall| Entrant::Store(fjall, &workload)));
    let all = bench.contest(&dataset, &entrants)?;
    let best = fastest(all.iter().skip(1).take(ways.len()))
        .ok_or_else(|| Error::failed("RocksDB took no part"))?;
    let ours = nth(&all, 0)?;
    let name = format!("scan of 100 rows, {label}, {direction}: rate over RocksDB");
    let note = format!(
        "{:.0} beside {:.0} of {}",
        ours.spread(per_second).median,
        best.spread(per_second).median,
        best.store
    );
    let figure = ours.over(best, per_second);
    let doubt = device.and_then(|_| super::not_the_device(ours));
    bench.say(Line::new("scans", name, figure, Bar::AtLeast(1.2)).note(note).unless(doubt.clone()));
    if let Some((_, bytes)) = device {
        let name = format!("scan of 100 rows, {label}, {direction}: rate over fio");
        let rate = ours.over(nth(&all, ways.len() + 1)?, per_second);
        let note = format!("of reads of {bytes} bytes");
        bench.say(Line::new("scans", name, rate, Bar::Published).note(note).unless(doubt));
    }
    let from = if label == "cached" { "" } else { " from the page cache" };
    let name = format!("scan of 100 rows, {label}, {direction}: rate over fjall{from}");
    fjall_line(bench, "scans", name, ours, all.get(before_fjall));
    Ok(())
}
