//! What everybody else sees of clients that do not read, send too much, or cancel: reads and writes of rows at a modest
//! rate, with nobody else, beside threads that only use the processors, and beside each kind of bad clients.

use tepui_bench::bars::{Bar, Line, Spread};
use tepui_bench::grpc::INSTANCE;
use tepui_bench::{OpKind, Result, Share, Store as _, Workload};

use crate::bad_clients::{BadClients, Kind, Spinning};
use crate::bench::{Bench, Sample};
use crate::host::{Host, Settings};

const GROUP: &str = "bad-clients";
const TABLE: &str = "bystanders";
const P99_MAX: f64 = 2.0;
/// Threads that only spin: the least processors that a benchmark of this kind runs on.
const PROCESSORS: usize = 2;
/// Operations a second of the bystanders: a tenth of what two cores do, so that what they see is the others.
const RATE: f64 = 2_000.0;
/// Operations that may be under way in the open loop.
const IN_FLIGHT: usize = 1024;

pub fn run(bench: &mut Bench) -> Result<()> {
    let dataset = bench.rows_of_ten(bench.sizes.rows);
    let settings = Settings::with_cache(bench.cache_for(&dataset));
    let host = Host::start(&bench.dir.join("bad-clients"), settings)?;
    let clients = bench.clients("tepui", host.endpoint()?, TABLE)?;
    if clients.ensure_table()? || !clients.holds(&dataset)? {
        clients.load(&dataset, &bench.progress)?;
    }
    host.settle(&bench.progress)?;
    let share = |kind| Share { kind, weight: 1 };
    let bystanders = bench.workload(Workload {
        mix: vec![share(OpKind::GetFamily), share(OpKind::Update)],
        rate: Some(RATE),
        ..Workload::of("bystanders", OpKind::GetFamily)
    });
    let bystanders = Workload { in_flight: IN_FLIGHT, ..bystanders };
    let (mut calm, mut spinning) = (Vec::new(), Vec::new());
    let mut beside = Kind::ALL.map(|kind| (kind, Vec::new(), 0));
    for _ in 0..bench.sizes.rounds {
        calm.push(bench.sample(&clients, &|| host.used(), &dataset, &bystanders)?);
        let spinners = Spinning::start(PROCESSORS)?;
        let named = Workload { name: "beside spinning threads".to_owned(), ..bystanders.clone() };
        spinning.push(bench.sample(&clients, &|| host.used(), &dataset, &named)?);
        drop(spinners);
        for (kind, samples, done) in &mut beside {
            let table = format!("{INSTANCE}/tables/{TABLE}");
            let bad = BadClients::start(*kind, host.endpoint()?, table)?;
            let named = Workload { name: format!("beside {}", kind.name()), ..bystanders.clone() };
            samples.push(bench.sample(&clients, &|| host.used(), &dataset, &named)?);
            *done += bad.done();
            drop(bad);
            host.settle(&bench.progress)?;
        }
    }
    host.stop()?;
    let ratio = spinning.iter().zip(&calm).map(|(beside, alone)| p99(beside) / p99(alone));
    let name = format!("bystanders' p99 beside {PROCESSORS} threads that only spin, over alone");
    bench.say(Line::new(GROUP, name, Spread::of(ratio), Bar::Published));
    for (kind, samples, done) in &beside {
        let ratio = samples.iter().zip(&calm).map(|(beside, alone)| p99(beside) / p99(alone));
        let middle = |of: &[Sample]| Spread::of(of.iter().map(p99)).median;
        let doubt = (*done == 0).then(|| "the bad clients got nothing done".to_owned());
        let left_out = || samples.iter().find_map(|sample| sample.run.left_out());
        let doubt = doubt.or_else(left_out);
        let note = format!(
            "p99 {:.0} us beside them, {:.0} us alone; {done} requests of theirs",
            middle(samples),
            middle(&calm)
        );
        let name = format!("bystanders' p99 beside {}, over alone", kind.name());
        bench.say(
            Line::new(GROUP, name, Spread::of(ratio), Bar::AtMost(P99_MAX))
                .note(note)
                .unless(doubt),
        );
    }
    Ok(())
}

/// The slower tail of reads and writes.
fn p99(sample: &Sample) -> f64 {
    let reads = sample.run.latency_micros.p99;
    sample.run.write_latency_micros.map_or(reads, |writes| writes.p99.max(reads))
}
