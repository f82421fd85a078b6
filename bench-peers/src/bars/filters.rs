//! What filters serve, and what it costs to ask them.

use tepui_bench::tepui::Tepui;
use tepui_bench::{Dataset, OpKind, Result};

use super::{Bench, Entrant, THREADS, nth, whole_cache};
use crate::figures::{self, FILTER_LOOKUPS, FILTER_NEGATIVES, FILTER_PROBES, Levels};
use crate::report::{Bar, Line};
use crate::sample::Spread;
use crate::stores;

const GROUP: &str = "filters";
/// Of the lookups of point reads, the part at which a filter is asked.
const SERVED_MIN: f64 = 0.99;
/// Of the lookups where there is nothing, the part that filters keep from the blocks. The weakest form, of 8 bits on the last
/// level, lets one of 256 through; this is twice that.
const KEPT_OUT_MIN: f64 = 1.0 - 2.0 / 256.0;

pub fn run(bench: &mut Bench) -> Result<()> {
    let dataset = bench.sizes.wide();
    let cache = whole_cache(&dataset);
    let tepui = stores::tepui_at_rest(bench, &dataset, cache)?;
    // What there is, and what there is not: a filter that is asked may still let everything through.
    let asked = [
        ("the family", OpKind::GetFamily, FILTER_PROBES, "serve", SERVED_MIN),
        ("the row", OpKind::GetRow, FILTER_PROBES, "serve", SERVED_MIN),
        (
            "a family that it lacks",
            OpKind::GetLackedFamily,
            FILTER_NEGATIVES,
            "keep out",
            KEPT_OUT_MIN,
        ),
        ("an absent row", OpKind::GetAbsentRow, FILTER_NEGATIVES, "keep out", KEPT_OUT_MIN),
    ];
    for (named, kind, figure, does, least) in asked {
        let workload = bench.workload(&format!("get {named}"), kind, THREADS, THREADS);
        bench.warm(&tepui, &dataset, &workload)?;
        let all = bench.contest(&dataset, &[Entrant::Store(&tepui, &workload)])?;
        let ours = nth(&all, 0)?;
        let levels = Levels::of(ours);
        let name = format!("reads that name only {named}: share that filters {does}");
        let bar = Bar::AtLeast(least);
        bench.say(match figures::ratio(ours, figure, FILTER_LOOKUPS) {
            Ok(share) => {
                let line = Line::new(GROUP, name, share, bar).note(levels.to_string());
                line.unless(levels.doubt())
            }
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
