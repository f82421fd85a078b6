//! What filters serve, and what it costs to ask them.

use tepui_bench::tepui::Tepui;
use tepui_bench::{Dataset, OpKind, Result};

use super::{Bench, Entrant, THREADS, nth, whole_cache};
use crate::figures::{self, FILTER_LOOKUPS, FILTER_PROBES};
use crate::report::{Bar, Line};
use crate::sample::Spread;
use crate::stores;

const GROUP: &str = "filters";

pub fn run(bench: &mut Bench) -> Result<()> {
    let dataset = bench.sizes.wide();
    let cache = whole_cache(&dataset);
    let tepui = stores::tepui(bench, &dataset, true, cache)?;
    let asked = [("family", OpKind::GetFamily), ("row", OpKind::GetRow)];
    for (named, kind) in asked {
        let workload = bench.workload(&format!("get-{named}"), kind, THREADS, THREADS);
        bench.warm(&tepui, &dataset, &workload)?;
        let all = bench.contest(&dataset, &[Entrant::Store(&tepui, &workload)])?;
        let name = format!("reads that name only the {named}: share that filters serve");
        let bar = Bar::AtLeast(0.99);
        bench.say(match figures::ratio(nth(&all, 0)?, FILTER_PROBES, FILTER_LOOKUPS) {
            Ok(share) => Line::new(GROUP, name, share, bar),
            Err(why) => Line::missing(GROUP, name, bar, why),
        });
    }
    access(bench, &tepui, &dataset)
}

fn access(bench: &mut Bench, tepui: &Tepui, dataset: &Dataset) -> Result<()> {
    let rounds = tepui.filter_access(dataset, bench.sizes.rounds)?;
    let ratio = Spread::of(rounds.iter().map(|(with, without)| with / without));
    let with = Spread::of(rounds.iter().map(|(with, _)| *with)).median;
    let without = Spread::of(rounds.iter().map(|(_, without)| *without)).median;
    let name = "CPU of filter access: with directory and memo over without";
    let note = format!("{with:.0} beside {without:.0} ns for the filters of a row");
    bench.say(Line::new(GROUP, name, ratio, Bar::AtMost(0.35)).note(note));
    Ok(())
}
