//! What everybody else sees of clients that do not read, send too much, or cancel: reads and writes of rows at a modest
//! rate, with nobody else, beside threads that only use the processors, and beside each kind of bad clients. Before and after each of
//! these they are alone: what they see then, the mean of the two, is what the rest is compared with. The server is a process
//! of its own, so that what it takes of memory, which has room for several of the largest requests, is its alone.
//!
//! Server and clients have half of the cores each, and of theirs the bystanders take what they need before the others get any: what is
//! measured is what bad clients do to the server, and not to those who share a machine with them. What the machine itself does where all
//! of its processors are in use, as one that is virtual may lose them for a while then, is seen beside the threads that only use them.

use std::cell::Cell;
use std::net::SocketAddr;

use tepui_bench::bars::{Bar, Line, Spread};
use tepui_bench::child::{Child, free_ports};
use tepui_bench::contest::slower;
use tepui_bench::cores::Cores;
use tepui_bench::grpc::INSTANCE;
use tepui_bench::grpc::connection::Endpoint;
use tepui_bench::{OpKind, Result, Share, Store as _, Workload};

use crate::bad_clients::{BadClients, Kind, LARGEST_BYTES, Spinning, write_large_rows};
use crate::bench::{Bench, Sample};
use crate::priority::First;
use crate::threads::Used;

const GROUP: &str = "bad-clients";
const TABLE: &str = "bystanders";
const P99_MAX: f64 = 2.0;
/// Operations a second of the bystanders: a tenth of what a core does, so that what they see is the others.
const RATE: f64 = 2_000.0;
/// Operations that may be under way in the open loop.
const IN_FLIGHT: usize = 1024;

/// The budget of memory of the server: the least with room for two requests of 256 MiB at once. Requests have an eighth of it, and
/// three quarters of that is for large ones; each takes half as much again for what it is decoded into.
const MEMORY_BYTES: u64 = 8 << 30;
/// What the process may have over its budget.
const MEMORY_RATIO_MAX: f64 = 1.1;

pub fn run(bench: &mut Bench) -> Result<()> {
    let dataset = bench.rows_of_ten(bench.sizes.rows);
    let [metrics] = free_ports()?;
    let metrics = SocketAddr::from(([127, 0, 0, 1], metrics));
    let config = format!("memory = {MEMORY_BYTES}\n[metrics]\nlisten = \"{metrics}\"\n");
    let dir = bench.dir.join(GROUP);
    let cores = Cores::of_this_thread()?;
    let half = cores.count() / 2;
    cores.choose(0..half.max(1))?;
    let (server, port) = Child::tepui(&bench.tepui, &dir, &config, &bench.progress)?;
    cores.choose(half..cores.count())?;
    let endpoint = Endpoint::parse(&format!("127.0.0.1:{port}"))?;
    let process = server.process();
    let clients = bench.clients_of("tepui", endpoint.clone(), TABLE, Some(process))?;
    clients.load(&dataset, &bench.progress)?;
    let table = || format!("{INSTANCE}/tables/{TABLE}");
    write_large_rows(&endpoint, table())?;
    clients.settle(&bench.progress)?;
    let share = |kind| Share { kind, weight: 1 };
    let bystanders = bench.workload(Workload {
        mix: vec![share(OpKind::GetFamily), share(OpKind::Update)],
        rate: Some(RATE),
        ..Workload::of("bystanders", OpKind::GetFamily)
    });
    let bystanders = Workload { in_flight: IN_FLIGHT, ..bystanders };
    let (mut spinning, mut held) = (Vec::new(), 0);
    let mut beside = Kind::ALL.map(|kind| (kind, Vec::new(), Vec::new()));
    let first = Cell::new(true);
    let sample = |bench: &mut Bench, workload: &Workload| {
        let bystander = First::of_this_thread();
        first.set(first.get() && bystander.granted);
        bench.sample(&clients, &Used::default, &dataset, workload)
    };
    for _ in 0..bench.sizes.rounds {
        let mut before = sample(bench, &bystanders)?;
        let mut between = |beside: Sample, after: Sample| {
            let before = std::mem::replace(&mut before, after.clone());
            Between { before, beside, after }
        };
        let spun = spin_on(&cores, half)?;
        let named = Workload { name: "beside spinning threads".to_owned(), ..bystanders.clone() };
        let spun_beside = sample(bench, &named)?;
        drop(spun);
        spinning.push(between(spun_beside, sample(bench, &bystanders)?));
        for (kind, samples, done) in &mut beside {
            let bad = BadClients::start(*kind, endpoint.clone(), table(), metrics)?;
            let named = Workload { name: format!("beside {}", kind.name()), ..bystanders.clone() };
            let bad_beside = sample(bench, &named)?;
            done.push(bad.done());
            held = held.max(bad.held());
            drop(bad);
            clients.settle(&bench.progress)?;
            samples.push(between(bad_beside, sample(bench, &bystanders)?));
        }
    }
    let peak = process.figures().rss_peak_bytes;
    drop((server, cores));
    let name = "bystanders' p99 beside threads that only spin, on all processors, over alone";
    let line = Line::new(GROUP, name, Between::ratios(&spinning), Bar::Published);
    bench.say(line.note(Between::p99s(&spinning)));
    // Behind others' turns they measure those who share a machine with them.
    let behind = (!first.get()).then(|| {
        "bystanders wait for others' turns: to go first takes root or RLIMIT_RTPRIO".to_owned()
    });
    for (kind, samples, done) in &beside {
        let idle = done.contains(&0).then(|| "the bad clients got nothing done".to_owned());
        let left_out = || samples.iter().find_map(|sample| sample.beside.run.left_out());
        let doubt = behind.clone().or(idle).or_else(left_out);
        let done = done.iter().sum::<u64>();
        let note = format!("{}; {done} requests of theirs", Between::p99s(samples));
        let name = format!("bystanders' p99 beside {}, over alone", kind.name());
        bench.say(
            Line::new(GROUP, name, Between::ratios(samples), Bar::AtMost(P99_MAX))
                .note(note)
                .unless(doubt),
        );
    }
    bench.say(memory(peak, held));
    Ok(())
}

/// What bystanders see beside others, and before and after that.
struct Between {
    before: Sample,
    beside: Sample,
    after: Sample,
}

impl Between {
    fn alone(&self, p99: fn(&Sample) -> f64) -> f64 {
        f64::midpoint(p99(&self.before), p99(&self.after))
    }

    /// The p99 beside others over that alone.
    fn ratios(all: &[Self]) -> Spread {
        Spread::of(all.iter().map(|one| p99(&one.beside) / one.alone(p99)))
    }

    fn p99s(all: &[Self]) -> String {
        let beside =
            |p99: fn(&Sample) -> f64| Spread::of(all.iter().map(|one| p99(&one.beside))).median;
        let alone =
            |p99: fn(&Sample) -> f64| Spread::of(all.iter().map(|one| one.alone(p99))).median;
        format!(
            "p99 of reads {:.0} and of writes {:.0} us beside them, {:.0} and {:.0} us alone",
            beside(read_p99),
            beside(write_p99),
            alone(read_p99),
            alone(write_p99)
        )
    }
}

/// Threads that use each core, those of the server and those of the clients: this thread's are the latter.
fn spin_on(cores: &Cores, half: usize) -> Result<[Spinning; 2]> {
    cores.choose(0..half.max(1))?;
    let servers = Spinning::start(half)?;
    cores.choose(half..cores.count())?;
    Ok([servers, Spinning::start(cores.count() - half)?])
}

/// What the process had at most, which says something of large requests where two of them were `held` at once.
fn memory(peak: u64, held: u64) -> Line {
    let mib = |bytes: u64| bytes >> 20;
    let two = 2 * LARGEST_BYTES as u64;
    let doubt =
        (held < two).then(|| "no two requests of 256 MB were in the server at once".to_owned());
    let note = format!(
        "{} MiB at most, of {}, and {} MiB of requests at once",
        mib(peak),
        mib(MEMORY_BYTES),
        mib(held)
    );
    let ratio = Spread::exact(peak as f64 / MEMORY_BYTES as f64);
    let name = "memory of the process beside bad clients over its budget";
    Line::new(GROUP, name, ratio, Bar::AtMost(MEMORY_RATIO_MAX)).note(note).unless(doubt)
}

/// The slower tail of reads and writes.
fn p99(sample: &Sample) -> f64 {
    slower(read_p99(sample), write_p99(sample))
}

fn read_p99(sample: &Sample) -> f64 {
    sample.run.latency_micros.p99
}

fn write_p99(sample: &Sample) -> f64 {
    sample.run.write_latency_micros.map_or(f64::NAN, |writes| writes.p99)
}

#[cfg(test)]
mod tests {
    use tepui_bench::bars::Verdict;

    use super::*;

    #[test]
    fn memory_says_something_only_where_two_of_the_largest_requests_were_there() {
        for (peak, held, verdict) in [
            (2 << 30, 520 << 20, Verdict::Ok),
            (2 << 30, 300 << 20, Verdict::Short),
            (9 << 30, 520 << 20, Verdict::Short),
        ] {
            assert_eq!(memory(peak, held).verdict, verdict, "{peak} {held}");
        }
    }
}
