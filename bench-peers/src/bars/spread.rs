//! A row in eight SSTs on a device that takes a millisecond for a read: all at once, or one after the other.

use std::time::Duration;

use tepui_bench::tepui::{Slow, Tepui, TepuiOptions, load_spread};
use tepui_bench::{Dataset, OpKind, Result};

use super::{Bench, Entrant, nth};
use crate::report::{Bar, Line};
use crate::stores::remove;

/// SSTs that a row lies in, each with one of its columns.
const SSTS: u32 = 8;
/// Rows, fewer where the others are fewer: enough that a cache of a sixtieth does not hold them.
const ROWS_MAX: u64 = 20_000;
/// What a read takes longer.
const DELAY: Duration = Duration::from_millis(1);
/// The cache is this part of the data: index and filters fit, blocks do not.
const CACHE_PART: u64 = 10;

pub fn run(bench: &mut Bench) -> Result<()> {
    let narrow = bench.sizes.narrow();
    let dataset = Dataset { rows: narrow.rows.min(ROWS_MAX), columns: SSTS, ..narrow };
    let dir = bench.dir.join("tepui-spread");
    // Written anew each time: it is small, and must be in these SSTs and no others.
    remove(&dir)?;
    let options = |name: &str, one_by_one| {
        let mut options = TepuiOptions::new(&dir, dataset.bytes() / CACHE_PART);
        options.name = format!("Tepui, reads {name}");
        options.slow = Some(Slow { delay: DELAY, one_by_one });
        // The shape stays as it is.
        options.engine.background = false;
        options
    };
    load_spread(&options("at once", false), &dataset, &bench.progress)?.close()?;
    let workload = bench.workload("get-row-spread", OpKind::GetRow, 1, 1);
    // One engine at a time has the directory.
    let mut all = Vec::new();
    for (name, one_by_one) in [("at once", false), ("one by one", true)] {
        let store = Tepui::open(&options(name, one_by_one), &dataset)?;
        bench.warm(&store, &dataset, &workload)?;
        all.extend(bench.contest(&dataset, &[Entrant::Store(&store, &workload)])?);
        store.close()?;
    }
    let (at_once, one_by_one) = (nth(&all, 0)?, nth(&all, 1)?);
    let figure = at_once.over(one_by_one, |s| s.p50_us);
    let note = format!(
        "{:.0} beside {:.0} us",
        at_once.spread(|s| s.p50_us).median,
        one_by_one.spread(|s| s.p50_us).median
    );
    let name = "row in 8 SSTs, 1 ms a read: p50 with prefetch over without";
    bench.say(Line::new("spread", name, figure, Bar::AtMost(0.2)).note(note));
    remove(&dir)
}
