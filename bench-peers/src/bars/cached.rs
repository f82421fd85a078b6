//! Point reads from memory: a core's speed beside RocksDB's, and what more reader threads add.

use tepui_bench::cores::Cores;
use tepui_bench::{Error, OpKind, Result};

use super::{Bench, Entrant, fjall_line, nth, per_second, whole_cache};
use crate::report::{Bar, Line};
use crate::rocks::Settings;
use crate::sample::fastest;
use crate::stores;

/// Threads of the run that is compared with one: more than there are cores, as a server's could be.
const MANY_THREADS: usize = 8;
/// Cores of that run.
const MANY_THREADS_CORES: usize = 2;

pub fn run(bench: &mut Bench) -> Result<()> {
    let dataset = bench.sizes.narrow();
    let cache = whole_cache(&dataset);
    let tepui = stores::tepui(bench, &dataset, true, cache)?;
    let rocks = stores::rocks(bench, &dataset, &Settings::best(), cache)?;
    // A block of index and one of filters that each file holds are the faster way where all of them are in memory.
    let whole = stores::rocks(bench, &dataset, &Settings::with_file(), cache)?;
    let fjall = stores::fjall(bench, &dataset, cache)?;
    bench.warm_whole(&tepui, &dataset)?;
    bench.warm_whole(&rocks, &dataset)?;
    bench.warm_whole(&whole, &dataset)?;
    let one = bench.workload("get-cached", OpKind::Get, 1, 1);
    let mut entrants = vec![
        Entrant::Store(&tepui, &one),
        Entrant::Store(&rocks, &one),
        Entrant::Store(&whole, &one),
    ];
    if let Some(fjall) = &fjall {
        bench.warm_whole(fjall, &dataset)?;
        entrants.push(Entrant::Store(fjall, &one));
    }
    let all = bench.contest(&dataset, &entrants)?;
    let ours = nth(&all, 0)?;
    let theirs =
        fastest(all.iter().skip(1).take(2)).ok_or_else(|| Error::failed("RocksDB took no part"))?;
    let note = format!(
        "{:.2} us beside {:.2} us of processor time of {}",
        ours.spread(|s| s.cpu_us).median,
        theirs.spread(|s| s.cpu_us).median,
        theirs.store
    );
    let figure = ours.over(theirs, per_second);
    let name = "cached get, one core: rate over RocksDB";
    bench.say(Line::new("cached", name, figure, Bar::AtLeast(1.5)).note(note));
    let name = "cached get, one core: rate over fjall".to_owned();
    fjall_line(bench, "cached", name, ours, all.get(3));

    let many = bench.workload("get-cached", OpKind::Get, MANY_THREADS, MANY_THREADS);
    let entrants = [
        Entrant::Store(&tepui, &many),
        Entrant::Store(&tepui, &one),
        Entrant::Store(&rocks, &many),
        Entrant::Store(&rocks, &one),
    ];
    // Of a larger machine no more than the bar is about.
    let cores = Cores::of_this_thread()?;
    cores.choose(0..MANY_THREADS_CORES)?;
    let all = bench.contest(&dataset, &entrants)?;
    drop(cores);
    let figure = nth(&all, 0)?.over(nth(&all, 1)?, per_second);
    let note = format!("RocksDB {:.2}", nth(&all, 2)?.over(nth(&all, 3)?, per_second).median);
    let name = "cached get, two cores: rate of 8 threads over one";
    bench.say(Line::new("cached", name, figure, Bar::AtLeast(1.9)).note(note));
    Ok(())
}
