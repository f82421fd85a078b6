//! Twice what the server can take, for long: writes go on without a pause, and what is refused is told when to come back.
//! Once with the processor as the limit, and once, as a group of its own, with a disk that takes little, where flushes and
//! compactions fall behind.

use tepui_bench::bars::{Bar, Line, Spread};
use tepui_bench::{Limit, OpKind, Result, Workload, report};

use crate::bench::Bench;
use crate::host::{Host, Settings};

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
/// What is told apart in the plots and the JSON.
const INTERVAL_SECONDS: f64 = 1.0;

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
    let cache = Settings::with_cache(CACHE_BYTES);
    let settings =
        Settings { background_bytes_per_second, memory_bytes: Some(MEMORY_BYTES), ..cache };
    let host = Host::start(&bench.dir.join(group), settings)?;
    let clients = bench.clients("tepui", host.endpoint()?, TABLE)?;
    clients.ensure_table()?;
    let seconds = bench.sizes.overload_seconds;
    let sustained_seconds = (seconds * SUSTAINED_PART).min(SUSTAINED_SECONDS_MAX);
    let closed = bench.workload(Workload::of("writes, closed loop", OpKind::Put));
    let closed = Workload { limit: Limit::Seconds(sustained_seconds), ..closed };
    let sustained = report::measure(&clients, &dataset, &closed, None, &bench.progress)?;
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
        INTERVAL_SECONDS,
        &bench.progress,
    )?;
    host.stop()?;
    let gap = over.longest_write_gap_ms.unwrap_or(f64::NAN);
    let figure = |name| over.figure(name).unwrap_or(f64::NAN);
    let note = format!(
        "{rate:.0} writes a second in a closed loop; offered {:.0}, acknowledged {:.0} a second over {:.0} s; {:.0} refusals; the process had {:.0} MiB at most; the host took {:.1} % of the processors",
        rate * OVER,
        over.ops_per_second,
        over.seconds,
        figure("refused"),
        over.rss_peak_bytes as f64 / f64::from(1 << 20),
        over.stolen_share * 100.0,
    );
    let doubt = (sustained_seconds < 1.0).then(|| "too short to tell".to_owned());
    let name = format!("twice the rate, {limit}: longest time without an acknowledged write");
    let line = Line::new(group, name, Spread::exact(gap), Bar::AtMost(GAP_MS_MAX));
    bench.say(line.unit("ms").note(note).unless(doubt));
    bench.say(Line::new(
        group,
        format!("twice the rate, {limit}: refusals without RetryInfo"),
        Spread::exact(figure("refused_without_retry_info")),
        Bar::AtMost(0.0),
    ));
    bench.runs.push(over);
    Ok(())
}
