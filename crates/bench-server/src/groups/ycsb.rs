//! Rows that are asked for more often than others must not be slower: YCSB A with its distributions.

use tepui_bench::bars::{Bar, Line, Spread};
use tepui_bench::{Distribution, Error, Limit, Result, Store as _, Workload, ycsb};

use crate::bench::{Bench, IN_FLIGHT, Sample};
use crate::host::{Host, Settings};

const GROUP: &str = "ycsb";
const TABLE: &str = "usertable";
/// The data over the cache where it does not fit.
const DATA_OVER_CACHE: u64 = 4;
/// Of the best rate of a closed loop.
const RATE_PART: f64 = 0.7;
const READ_P95_MS_MAX: f64 = 10.0;
/// Operations that may be under way in the open loop.
const IN_FLIGHT_OPEN: usize = 2048;

pub fn run(bench: &mut Bench) -> Result<()> {
    let a = |name: &str, rows| {
        let workload = ycsb::by_name("a", Some(rows))?;
        Ok::<_, Error>(Workload { name: name.to_owned(), ..workload })
    };
    let uniform = bench.workload(a("YCSB A uniform", Distribution::Uniform)?);
    let hot = bench.workload(a("YCSB A on one row", Distribution::Single)?);
    let zipfian = bench.workload(a("YCSB A zipfian", ycsb::ZIPFIAN)?);

    let dataset = bench.rows_of_ten(bench.sizes.rows);
    let settings = Settings::with_cache(bench.cache_for(&dataset));
    let samples = contest(bench, "ycsb-cached", &dataset, settings, &[&hot, &uniform])?;
    say_ratio(bench, "YCSB A on one row over uniform, all cached: rate", &samples);

    let dataset = bench.rows_of_ten(bench.sizes.rows_large);
    let cache_bytes = dataset.bytes() / DATA_OVER_CACHE;
    let settings = Settings::with_cache(cache_bytes);
    let samples = contest(bench, "ycsb-large", &dataset, settings, &[&zipfian, &uniform])?;
    say_ratio(bench, "YCSB A zipfian over uniform, data 4 times the cache: rate", &samples);

    let best = samples
        .first()
        .map_or(f64::NAN, |zipfian| Spread::of(zipfian.iter().map(Sample::rate)).median);
    let paced = Workload {
        name: "YCSB A zipfian at 70 %".to_owned(),
        rate: Some((best * RATE_PART).max(1.0)),
        in_flight: IN_FLIGHT_OPEN,
        ..zipfian
    };
    let samples = contest(bench, "ycsb-large", &dataset, settings, &[&paced])?;
    let runs = samples.first().map_or(&[][..], Vec::as_slice);
    let p95 = Spread::of(runs.iter().map(|s| s.run.latency_micros.p95 / 1e3));
    let reached = Spread::of(runs.iter().map(Sample::rate)).median;
    let line = Line::new(
        GROUP,
        "YCSB A zipfian, data 4 times the cache, 70 % of the best rate: read p95",
        p95,
        Bar::AtMost(READ_P95_MS_MAX),
    );
    let note = format!("{reached:.0} of {:.0} operations a second", best * RATE_PART);
    let doubt = runs.iter().find_map(|sample| sample.run.left_out());
    bench.say(line.unit("ms").note(note).unless(doubt));
    Ok(())
}

/// Every workload once a round on one server; the samples by workload.
fn contest(
    bench: &mut Bench,
    place: &str,
    dataset: &tepui_bench::Dataset,
    settings: Settings,
    workloads: &[&Workload],
) -> Result<Vec<Vec<Sample>>> {
    let host = Host::start(&bench.dir.join(place), settings)?;
    let clients = bench.clients("tepui", host.endpoint()?, TABLE)?;
    if clients.ensure_table(&bench.progress)? || !clients.holds(dataset, &bench.progress)? {
        clients.load(dataset, &bench.progress)?;
    }
    host.settle(&bench.progress)?;
    let whole = settings.cache_bytes >= dataset.bytes();
    if let Some(first) = workloads.first() {
        let before = if whole {
            ycsb::every_row(dataset, first)
        } else {
            // A server that has just started has an empty cache, which is not what is asked here.
            let limit = Limit::Ops(dataset.rows / DATA_OVER_CACHE);
            Workload { limit, rate: None, in_flight: IN_FLIGHT, ..(*first).clone() }
        };
        tepui_bench::report::warm_up(&clients, dataset, &before, &bench.progress)?;
    }
    let mut samples = vec![Vec::new(); workloads.len()];
    for round in 0..bench.sizes.rounds {
        for (at, workload) in workloads.iter().enumerate() {
            let seed = workload.seed.wrapping_add(round as u64);
            let limit = Limit::Seconds(bench.sizes.seconds);
            let now = Workload { seed, limit, ..(*workload).clone() };
            let sample = bench.sample(&clients, &|| host.used(), dataset, &now)?;
            if let Some(own) = samples.get_mut(at) {
                own.push(sample);
            }
            // What one run has left to compact is not for the next one to wait for.
            host.settle(&bench.progress)?;
        }
    }
    host.stop()?;
    Ok(samples)
}

/// The first workload over the second, round by round.
fn say_ratio(bench: &mut Bench, name: &str, samples: &[Vec<Sample>]) {
    let [over, under] = samples else { return };
    let ratio = over.iter().zip(under).map(|(a, b)| a.rate() / b.rate());
    let middle = |of: &[Sample]| Spread::of(of.iter().map(Sample::rate)).median;
    let note = format!("{:.0} over {:.0} operations a second", middle(over), middle(under));
    bench.say(Line::new(GROUP, name, Spread::of(ratio), Bar::AtLeast(1.0)).note(note));
}
