//! What filters serve, and what it costs to ask them.

use tepui_bench::{OpKind, Result, Store};

use super::{Bench, Entrant, THREADS, nth, whole_cache};
use crate::figures::{
    self, FILTER_ACCESS_NANOS, FILTER_ACCESS_NANOS_WITHOUT, FILTER_LOOKUPS, FILTER_PROBES,
};
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
        bench.warm(&*tepui, &dataset, &workload)?;
        let all = bench.contest(&dataset, &[Entrant::Store(&*tepui, &workload)])?;
        let name = format!("reads that name only the {named}: share that filters serve");
        let bar = Bar::AtLeast(0.99);
        bench.say(match figures::ratio(nth(&all, 0)?, FILTER_PROBES, FILTER_LOOKUPS) {
            Ok(share) => Line::new(GROUP, name, share, bar),
            Err(why) => Line::missing(GROUP, name, bar, why),
        });
    }
    access(bench, &*tepui);
    Ok(())
}

fn access(bench: &mut Bench, tepui: &dyn Store) {
    let figures = tepui.figures();
    let find = |name: &str| figures.iter().find(|f| f.name == name).map(|f| f.value);
    let name = "CPU of filter access: with directory and memo over without";
    let bar = Bar::AtMost(0.35);
    bench.say(match (find(FILTER_ACCESS_NANOS), find(FILTER_ACCESS_NANOS_WITHOUT)) {
        (Some(with), Some(without)) => {
            let note = format!("{with:.0} beside {without:.0} ns for the filters of a row");
            Line::new(GROUP, name, Spread::exact(with / without), bar).note(note)
        }
        (None, _) => Line::missing(GROUP, name, bar, figures::missing(FILTER_ACCESS_NANOS)),
        (_, None) => Line::missing(GROUP, name, bar, figures::missing(FILTER_ACCESS_NANOS_WITHOUT)),
    });
}
