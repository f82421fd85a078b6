//! A device that syncs in 2 ms, as those of clouds do: increments of one row queue behind one another in memory,
//! not behind syncs.

use std::time::Duration;

use tepui_bench::bars::{Bar, Line, Spread};
use tepui_bench::{Distribution, OpKind, Result, Workload};

use crate::bench::Bench;
use crate::host::{Host, Settings};

const GROUP: &str = "sync";
const TABLE: &str = "counters";
const SYNC: Duration = Duration::from_millis(2);
/// Rows of the other workload. They need not be there: a counter begins where there is none.
const ROWS: u64 = 1_000_000;
const PER_SYNC_MIN: f64 = 60.0;
const OVER_MANY_MIN: f64 = 0.8;

pub fn run(bench: &mut Bench) -> Result<()> {
    let dataset = bench.rows_of_ten(ROWS);
    let cached = Settings::with_cache(bench.cache_for(&dataset));
    let settings = Settings { sync_delay: Some(SYNC), ..cached };
    let host = Host::start(&bench.dir.join("sync"), settings)?;
    let clients = bench.clients("tepui, 2 ms a sync", host.endpoint()?, TABLE)?;
    clients.ensure_table(&bench.progress)?;
    let increments = |name: &str, distribution| Workload {
        distribution,
        ..Workload::of(name, OpKind::Increment)
    };
    let one = bench.workload(increments("increments of one row", Distribution::Single));
    let many = bench.workload(increments("increments of a million rows", Distribution::Uniform));
    let (mut per_sync, mut ratio, mut rates) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.sizes.rounds {
        let of_many = bench.sample(&clients, &|| host.used(), &dataset, &many)?;
        let of_one = bench.sample(&clients, &|| host.used(), &dataset, &one)?;
        per_sync.push(of_one.per_sync());
        ratio.push(of_one.rate() / of_many.rate());
        rates.push((of_one.rate(), of_many.rate(), of_one.sync_rate()));
    }
    host.stop()?;
    let middle = |pick: fn(&(f64, f64, f64)) -> f64| Spread::of(rates.iter().map(pick)).median;
    let note = format!(
        "{:.0} increments a second of one row, {:.0} of many, {:.0} syncs a second",
        middle(|r| r.0),
        middle(|r| r.1),
        middle(|r| r.2),
    );
    bench.say(
        Line::new(
            GROUP,
            "64 clients increment one row, 2 ms a sync: increments over syncs",
            Spread::of(per_sync),
            Bar::AtLeast(PER_SYNC_MIN),
        )
        .note(note),
    );
    bench.say(Line::new(
        GROUP,
        "64 clients increment one row over a million rows, 2 ms a sync: rate",
        Spread::of(ratio),
        Bar::AtLeast(OVER_MANY_MIN),
    ));
    Ok(())
}
