//! YCSB beside Google's emulator: the same clients, the same rows, one server at a time in turns. The emulator keeps
//! everything in memory and syncs nothing; Tepui syncs every write before it answers.

use tepui_bench::bars::{Bar, Line, Spread};
use tepui_bench::{Distribution, Result, Store as _, Workload, ycsb};

use crate::bench::{Bench, Sample};
use crate::emulator::Emulator;
use crate::host::{self, Host, Settings};

const GROUP: &str = "emulator";
const TABLE: &str = "usertable";
const RATE_MIN: f64 = 2.0;
const P99_MAX: f64 = 1.0;

pub fn run(bench: &mut Bench) -> Result<()> {
    let Some(program) = bench.emulator.clone() else { return Ok(()) };
    let dataset = bench.rows_of_ten(bench.sizes.rows);
    let settings = Settings::with_cache(bench.cache_for(&dataset));
    let host = Host::start(&bench.dir.join("emulator"), settings)?;
    let tepui = bench.clients("tepui", host.endpoint()?, TABLE)?;
    let emulator = Emulator::start(&program)?;
    let google = bench.clients("Google's emulator", emulator.endpoint()?, TABLE)?;
    for server in [&tepui, &google] {
        if server.ensure_table()? || !server.holds(&dataset)? {
            server.load(&dataset, &bench.progress)?;
        }
    }
    host.settle(&bench.progress)?;
    let mut workloads = vec![Workload {
        name: "YCSB A on one row".to_owned(),
        ..ycsb::by_name("a", Some(Distribution::Single))?
    }];
    for letter in ["a", "b", "c", "e", "f"] {
        let name = format!("YCSB {}", letter.to_uppercase());
        workloads.push(Workload { name, ..ycsb::by_name(letter, None)? });
    }
    // Inserts of one run are not made again by the next.
    let mut inserted = [0; 2];
    for workload in workloads {
        let mut samples = [Vec::new(), Vec::new()];
        for round in 0..bench.sizes.rounds {
            for (at, server) in [&tepui, &google].into_iter().enumerate() {
                let (Some(inserted), Some(own)) = (inserted.get_mut(at), samples.get_mut(at))
                else {
                    continue;
                };
                let seed = workload.seed.wrapping_add(round as u64);
                let now = Workload { seed, inserted: *inserted, ..workload.clone() };
                let now = bench.workload(now);
                let sample = bench.sample(server, host::THREADS, &dataset, &now)?;
                *inserted = sample.inserted_after;
                own.push(sample);
            }
        }
        say(bench, &workload.name, &samples);
    }
    host.stop()
}

/// The slower tail of reads and writes.
fn p99(sample: &Sample) -> f64 {
    let reads = sample.run.latency_micros.p99;
    sample.run.write_latency_micros.map_or(reads, |writes| writes.p99.max(reads))
}

fn say(bench: &mut Bench, name: &str, samples: &[Vec<Sample>; 2]) {
    let [ours, theirs] = samples;
    let over = |pick: fn(&Sample) -> f64| {
        Spread::of(ours.iter().zip(theirs).map(|(a, b)| pick(a) / pick(b)))
    };
    let middle = |of: &[Sample], pick: fn(&Sample) -> f64| Spread::of(of.iter().map(pick)).median;
    let rates = format!(
        "{:.0} over {:.0} operations a second",
        middle(ours, Sample::rate),
        middle(theirs, Sample::rate)
    );
    let tails = format!("{:.0} over {:.0} us", middle(ours, p99), middle(theirs, p99));
    let rate = format!("{name} over Google's emulator: rate");
    bench.say(Line::new(GROUP, rate, over(Sample::rate), Bar::AtLeast(RATE_MIN)).note(rates));
    let tail = format!("{name} over Google's emulator: p99");
    bench.say(Line::new(GROUP, tail, over(p99), Bar::AtMost(P99_MAX)).note(tails));
}
