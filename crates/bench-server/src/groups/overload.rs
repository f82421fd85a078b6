//! Twice what the server can take, for long: writes go on without a pause, and what is refused is told when to come back.
//! Once with the processor as the limit, and once, as a group of its own, with a disk that takes little, where flushes and
//! compactions fall behind. The server is a process of its own, so that what it takes of memory is its alone.

use tepui_bench::bars::{Bar, Line, Spread};
use tepui_bench::child::Child;
use tepui_bench::grpc::connection::Endpoint;
use tepui_bench::{Limit, OpKind, Result, Workload, report};

use crate::bench::Bench;

const TABLE: &str = "overload";
const GAP_MS_MAX: f64 = 1_000.0;
/// Over the sustainable rate.
const OVER: f64 = 2.0;
/// Operations that may be under way in the open loop: beyond it clients would need more memory than servers.
const IN_FLIGHT: usize = 4096;
/// The sustainable rate is taken over this part of the overload, and over no more seconds than that: by then memory has been
/// filled many times, and what compacts has its pace.
const SUSTAINED_PART: f64 = 0.5;
const SUSTAINED_SECONDS_MAX: f64 = 120.0;
/// What flushes and compactions may write in a second on the slow disk.
const SLOW_DISK_BYTES_PER_SECOND: u64 = 8 << 20;
/// The budget of memory: small, so that its limits are met within the run and not after an hour.
const MEMORY_BYTES: u64 = 512 << 20;
/// The block cache, of which writes need nothing.
const CACHE_BYTES: u64 = 64 << 20;
/// What the process may have over its budget.
const MEMORY_RATIO_MAX: f64 = 1.1;
/// What is told apart in the JSON: a second, or of long runs so many parts.
const INTERVAL_SECONDS_MIN: f64 = 1.0;
const INTERVALS: f64 = 300.0;

/// The processor is the limit.
pub fn processor(bench: &mut Bench) -> Result<()> {
    overload(bench, "overload", "the processor is the limit", 0)
}

/// The disk is the limit.
pub fn disk(bench: &mut Bench) -> Result<()> {
    overload(bench, "overload-disk", "the disk is the limit", SLOW_DISK_BYTES_PER_SECOND)
}

fn overload(
    bench: &mut Bench,
    group: &'static str,
    limit: &str,
    background_bytes_per_second: u64,
) -> Result<()> {
    let dataset = bench.rows_of_one(bench.sizes.rows_large);
    let config = format!(
        "memory = {MEMORY_BYTES}\n[engine]\nblock_cache_bytes = {CACHE_BYTES}\nbackground_bytes_per_second = {background_bytes_per_second}\n"
    );
    let dir = bench.dir.join(group);
    let (server, port) = Child::tepui(&bench.tepui, &dir, &config, &bench.progress)?;
    let endpoint = Endpoint::parse(&format!("127.0.0.1:{port}"))?;
    let clients = bench.clients_of("tepui", endpoint, TABLE, Some(server.process()))?;
    clients.ensure_table()?;
    let seconds = bench.sizes.overload_seconds;
    let sustained_seconds = (seconds * SUSTAINED_PART).min(SUSTAINED_SECONDS_MAX);
    let closed = bench.workload(Workload::of("writes, closed loop", OpKind::Put));
    let closed = Workload { limit: Limit::Seconds(sustained_seconds), ..closed };
    let sustained = report::measure(&clients, &dataset, &closed, None, &bench.progress)?;
    bench.progress.check()?;
    let rate = sustained.ops_per_second;
    let open = Workload {
        name: format!("writes at twice the rate, {limit}"),
        rate: Some(rate * OVER),
        in_flight: IN_FLIGHT,
        limit: Limit::Seconds(seconds),
        ..closed
    };
    let over = report::measure_over_time(
        &clients,
        &dataset,
        &open,
        None,
        (seconds / INTERVALS).max(INTERVAL_SECONDS_MIN),
        &bench.progress,
    )?;
    bench.progress.check()?;
    drop(server);
    let gap = over.longest_write_gap_ms.unwrap_or(f64::NAN);
    let figure = |name| over.figure(name).unwrap_or(f64::NAN);
    let note = format!(
        "{rate:.0} writes a second in a closed loop; offered {:.0}, acknowledged {:.0} a second over {:.0} s; {:.0} refusals; the host took {:.1} % of the processors",
        rate * OVER,
        over.ops_per_second,
        over.seconds,
        figure("refused"),
        over.stolen_share * 100.0,
    );
    // What was never begun is what the overload is for; what was given up is a gap that nobody saw the end of.
    let doubt = (sustained_seconds < 1.0).then(|| "too short to tell".to_owned());
    let doubt = doubt.or_else(|| over.given_up_text());
    let name = format!("twice the rate, {limit}: longest time without an acknowledged write");
    let line = Line::new(group, name, Spread::exact(gap), Bar::AtMost(GAP_MS_MAX));
    bench.say(line.unit("ms").note(note).unless(doubt));
    bench.say(Line::new(
        group,
        format!("twice the rate, {limit}: refusals without RetryInfo"),
        Spread::exact(figure("refused_without_retry_info")),
        Bar::AtMost(0.0),
    ));
    let peak = figure("server_rss_peak_bytes");
    let name = format!("twice the rate, {limit}: memory of the process over its budget");
    let note = format!("{:.0} MiB at most", peak / f64::from(1 << 20));
    let ratio = Spread::exact(peak / MEMORY_BYTES as f64);
    bench.say(Line::new(group, name, ratio, Bar::AtMost(MEMORY_RATIO_MAX)).note(note));
    bench.runs.push(over);
    Ok(())
}
