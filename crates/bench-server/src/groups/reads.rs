//! What a request costs beside what gRPC costs: one cached row, again and again.

use tepui_bench::bars::{Bar, Line, Spread};
use tepui_bench::{Dataset, Distribution, OpKind, Result, Store as _, Workload};

use crate::bench::{Bench, Sample};
use crate::echo::{self, EchoServer};
use crate::host::{Host, Settings};
use crate::threads::used;

const GROUP: &str = "reads";
const TABLE: &str = "reads";
/// Rows of the table: the row that is read lies among others, and its index and filter are real.
const ROWS: u64 = 10_000;
/// Requests that read one row each, all of the same.
const RATE_OVER_ECHO: f64 = 0.6;
const ALLOCATIONS_MAX: f64 = 20.0;

pub fn run(bench: &mut Bench) -> Result<()> {
    let shapes = [
        ("1 column of 1 KB", bench.rows_of_one(ROWS), true),
        ("10 columns of 100 bytes", bench.rows_of_ten(ROWS), false),
    ];
    for (shape, dataset, judged) in shapes {
        let place = bench.dir.join(format!("reads-{}", dataset.columns));
        let settings = Settings::with_cache(bench.cache_for(&dataset));
        let host = Host::start(&place, settings)?;
        let tepui = bench.clients("tepui", host.endpoint()?, TABLE)?;
        if tepui.ensure_table(&bench.progress)? || !tepui.holds(&dataset, &bench.progress)? {
            tepui.load(&dataset, &bench.progress)?;
        }
        host.compact(&bench.progress)?;
        let row = ROWS / 2;
        let server = EchoServer::start(echo::message(&dataset, row), host.cores())?;
        let bare = bench.clients("bare gRPC echo", server.endpoint()?, TABLE)?;
        let single = bench.workload(Workload {
            distribution: Distribution::Single,
            ..Workload::of(&format!("read of one row, {shape}"), OpKind::GetRow)
        });
        let (mut reads, mut echoes) = (Vec::new(), Vec::new());
        for _ in 0..bench.sizes.rounds {
            echoes.push(bench.sample(&bare, &|| used(echo::THREADS), &dataset, &single)?);
            reads.push(bench.sample(&tepui, &|| host.used(), &dataset, &single)?);
        }
        say(bench, shape, &dataset, judged, &reads, &echoes);
        drop(server);
        host.stop()?;
    }
    Ok(())
}

fn say(
    bench: &mut Bench,
    shape: &str,
    dataset: &Dataset,
    judged: bool,
    reads: &[Sample],
    echoes: &[Sample],
) {
    let of = |samples: &[Sample], pick: fn(&Sample) -> f64| Spread::of(samples.iter().map(pick));
    let over = |pick: fn(&Sample) -> f64| {
        Spread::of(reads.iter().zip(echoes).map(|(read, echo)| pick(read) / pick(echo)))
    };
    let bar = |bar| if judged { bar } else { Bar::Published };
    let rates = format!(
        "{:.0} reads and {:.0} echoes a second, {} bytes of values",
        of(reads, Sample::rate).median,
        of(echoes, Sample::rate).median,
        dataset.columns as usize * dataset.value_bytes,
    );
    let lines = [
        Line::new(
            GROUP,
            format!("ReadRows of one cached row over a bare echo, {shape}: rate"),
            over(Sample::rate),
            bar(Bar::AtLeast(RATE_OVER_ECHO)),
        )
        .note(rates),
        Line::new(
            GROUP,
            format!("server CPU of ReadRows of one cached row, {shape}"),
            of(reads, Sample::cpu_micros),
            Bar::Published,
        )
        .unit("us"),
        Line::new(
            GROUP,
            format!("server CPU of a bare echo, {shape}"),
            of(echoes, Sample::cpu_micros),
            Bar::Published,
        )
        .unit("us"),
        Line::new(
            GROUP,
            format!("allocations of ReadRows of one cached row, {shape}"),
            of(reads, Sample::allocations),
            bar(Bar::AtMost(ALLOCATIONS_MAX)),
        )
        .note(format!("a bare echo makes {:.1}", of(echoes, Sample::allocations).median)),
    ];
    for line in lines {
        bench.say(line);
    }
}
