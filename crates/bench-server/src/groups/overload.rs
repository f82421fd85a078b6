//! Twice what the server can take, for long: writes go on without a pause, and what is refused is told when to come back.
//! Once with the processor as the limit, and once, as a group of its own, with a disk that takes little of the log, flushes and
//! compactions alike, which fall behind. The server is a process of its own, so that what it takes of memory is its alone.
//!
//! ```text
//! fill       closed loop until memory for writes has been filled: what follows is no burst
//! sustained  closed loop, refusals obeyed: the rate that the server sustains
//! overload   open loop of twice that rate; a refused write is over, and the next one is due all the same
//! ```
//!
//! Server and clients have half of the cores each. Where the processor is the limit, writes come in bulks: a client that sends
//! each row by itself takes as much processor time as a server that answers it, and cannot ask for twice of what that does.

use tepui_bench::bars::{Bar, Line, Spread};
use tepui_bench::child::Child;
use tepui_bench::cores::Cores;
use tepui_bench::grpc::connection::Endpoint;
use tepui_bench::grpc::retry::WhenRefused;
use tepui_bench::grpc::{Grpc, GrpcOptions};
use tepui_bench::ycsb::MULTI_PUT_ROWS;
use tepui_bench::{Limit, OpKind, Result, Workload, report};

use crate::bench::Bench;

const TABLE: &str = "overload";
const GAP_MS_MAX: f64 = 1_000.0;
/// Over the sustainable rate.
const OVER: f64 = 2.0;
/// What must have been asked of the server, over the sustainable rate: less is another load than the bars are about.
const OVER_MIN: f64 = 1.9;
/// Writes that may be under way in the open loop: a quarter of a second of 65,000 a second, which is what twice the rate of two
/// cores is. Fewer, and a server that thinks before it answers is asked for less; more would have clients need more memory
/// than servers.
pub const IN_FLIGHT: usize = 16_384;
/// Bulks, likewise: of 16 rows, a quarter of a second of 260,000 rows a second.
pub const BULKS_IN_FLIGHT: usize = 4_096;
/// Operations under way in the closed loop: the server always has more to do than it does at once, also while some of them wait
/// as long as it asked for.
pub const SUSTAINED_IN_FLIGHT: usize = 1_024;
/// Connections: half of the requests that a server lets one have under way are on each.
pub const CONNECTIONS: usize = 32;
/// The sustainable rate is taken over this part of the overload, and over no more seconds than that.
const SUSTAINED_PART: f64 = 0.5;
const SUSTAINED_SECONDS_MAX: f64 = 120.0;
/// Shorter than this a rate is chance.
const SUSTAINED_SECONDS_MIN: f64 = 1.0;
/// The budget of memory: small, so that its limits are met within the run and not after an hour.
const MEMORY_BYTES: u64 = 512 << 20;
/// The block cache, of which writes need nothing.
const CACHE_BYTES: u64 = 64 << 20;
/// What is written before the rate is taken: more than memtables and the log's queue may have of the budget.
const FILL_BYTES: u64 = MEMORY_BYTES - CACHE_BYTES;
/// What the process may have over its budget.
const MEMORY_RATIO_MAX: f64 = 1.1;
/// What is told apart in the JSON: a second, or of long runs so many parts.
const INTERVAL_SECONDS_MIN: f64 = 1.0;
const INTERVALS: f64 = 300.0;

/// The processor is the limit.
pub fn processor(bench: &mut Bench) -> Result<()> {
    let server = bench.tepui.clone();
    overload(bench, "overload", "the processor is the limit", MULTI_PUT_ROWS, &server)
}

/// The disk is the limit.
pub fn disk(bench: &mut Bench) -> Result<()> {
    let server = bench.own.clone();
    overload(bench, "overload-disk", "the disk is the limit", 1, &server)
}

fn overload(
    bench: &mut Bench,
    group: &'static str,
    limit: &str,
    rows: u32,
    server: &std::path::Path,
) -> Result<()> {
    let dataset = bench.rows_of_one(bench.sizes.rows_large);
    let config = format!("memory = {MEMORY_BYTES}\n[engine]\nblock_cache_bytes = {CACHE_BYTES}\n");
    let dir = bench.dir.join(group);
    let cores = Cores::of_this_thread()?;
    let half = cores.count() / 2;
    cores.choose(0..half.max(1))?;
    let (server, port) = Child::tepui(server, &dir, &config, &bench.progress)?;
    cores.choose(half..cores.count())?;
    let endpoint = Endpoint::parse(&format!("127.0.0.1:{port}"))?;
    let options = Bench::options("tepui", endpoint, TABLE, Some(server.process()));
    let options = GrpcOptions { connections: CONNECTIONS, ..options };
    let obeying = Grpc::new(options.clone())?;
    let insisting = Grpc::new(GrpcOptions { when_refused: WhenRefused::Over, ..options })?;
    obeying.ensure_table(&bench.progress)?;

    let seconds = bench.sizes.overload_seconds;
    let sustained_seconds = (seconds * SUSTAINED_PART).min(SUSTAINED_SECONDS_MAX);
    let kind = if rows == 1 { OpKind::Put } else { OpKind::MultiPut(rows) };
    let closed = bench.workload(Workload::of("writes, closed loop", kind));
    let closed = Workload { in_flight: SUSTAINED_IN_FLIGHT, ..closed };
    let filled = dataset.rows.min(FILL_BYTES.div_ceil(dataset.row_bytes().max(1)));
    let fill = Workload { limit: Limit::Ops(filled.div_ceil(u64::from(rows))), ..closed.clone() };
    report::warm_up(&obeying, &dataset, &fill, &bench.progress)?;
    let closed = Workload { limit: Limit::Seconds(sustained_seconds), ..closed };
    let sustained = report::measure(&obeying, &dataset, &closed, None, &bench.progress)?;
    bench.progress.check()?;
    let rate = sustained.ops_per_second;
    let in_flight = if rows == 1 { IN_FLIGHT } else { BULKS_IN_FLIGHT };
    let open = Workload {
        name: format!("writes at twice the rate, {limit}"),
        rate: Some(rate * OVER),
        in_flight,
        limit: Limit::Seconds(seconds),
        ..closed
    };
    let over = report::measure_over_time(
        &insisting,
        &dataset,
        &open,
        None,
        (seconds / INTERVALS).max(INTERVAL_SECONDS_MIN),
        &bench.progress,
    )?;
    bench.progress.check()?;
    drop((server, cores));

    let each = u64::from(rows);
    let asked = Asked {
        rate: rate * f64::from(rows),
        seconds: over.seconds,
        acknowledged: over.ops * each,
        refused: over.refused * each,
        unsent: over.unsent * each,
        in_flight,
    };
    let small = (filled * dataset.row_bytes() < FILL_BYTES)
        .then(|| format!("{filled} rows do not fill its memory: --rows-large"));
    let short = (sustained_seconds < SUSTAINED_SECONDS_MIN).then(|| "too short to tell".to_owned());
    // What the server was asked for is for all figures to stand on; what was given up is a gap that nobody saw the end of.
    let doubt = short.or(small);
    bench.say(asked.line(group, limit).unless(doubt.clone()));
    let doubt = doubt.or_else(|| asked.too_little()).or_else(|| over.given_up_text());
    let gap = over.longest_write_gap_ms.unwrap_or(f64::NAN);
    let note = format!(
        "the host took {:.1} % of the processors, {:.1} % while the rate was taken",
        over.stolen_share * 100.0,
        sustained.stolen_share * 100.0,
    );
    let name = format!("twice the rate, {limit}: longest time without an acknowledged write");
    let line = Line::new(group, name, Spread::exact(gap), Bar::AtMost(GAP_MS_MAX));
    bench.say(line.unit("ms").note(note).unless(doubt.clone()));
    let silent = over.figure("refused_without_retry_info").unwrap_or(f64::NAN);
    bench.say(asked.silent_line(group, limit, silent).unless(doubt.clone()));
    // A process without memory is one that the kernel did not tell of.
    let peak = over.figure("server_rss_peak_bytes").filter(|bytes| *bytes > 0.0);
    let peak = peak.unwrap_or(f64::NAN);
    let name = format!("twice the rate, {limit}: memory of the process over its budget");
    let note = format!("{:.0} MiB at most", peak / f64::from(1 << 20));
    let ratio = Spread::exact(peak / MEMORY_BYTES as f64);
    let line = Line::new(group, name, ratio, Bar::AtMost(MEMORY_RATIO_MAX));
    bench.say(line.note(note).unless(doubt));
    bench.runs.extend([sustained, over]);
    Ok(())
}

/// What the server was asked for, and what it answered, in rows.
struct Asked {
    /// The sustainable rate.
    rate: f64,
    /// Until the last answer: what waited in the clients until the time was over is no more than came through.
    seconds: f64,
    acknowledged: u64,
    refused: u64,
    /// Was due and never begun.
    unsent: u64,
    /// Operations that could be under way.
    in_flight: usize,
}

impl Asked {
    fn a_second(&self, writes: u64) -> f64 {
        writes as f64 / self.seconds
    }

    /// Over the sustainable rate.
    fn over(&self) -> f64 {
        self.a_second(self.acknowledged + self.refused) / self.rate
    }

    /// Why the load is another one than the bars are about, where it is.
    fn too_little(&self) -> Option<String> {
        (self.over() < OVER_MIN).then(|| {
            format!(
                "the server answered {:.2} times the rate: {} writes were due and never begun, since all {} places were \
                 taken or the clients had no more of the processors, which are the server's too",
                self.over(),
                self.unsent,
                self.in_flight,
            )
        })
    }

    fn line(&self, group: &'static str, limit: &str) -> Line {
        let note = format!(
            "{:.0} writes a second sustained; {:.0} due, {:.0} attempted: {:.0} acknowledged, {:.0} refused, over {:.0} s",
            self.rate,
            self.rate * OVER,
            self.a_second(self.acknowledged + self.refused),
            self.a_second(self.acknowledged),
            self.a_second(self.refused),
            self.seconds,
        );
        let name = format!("twice the rate, {limit}: attempts over the sustainable rate");
        let line = Line::new(group, name, Spread::exact(self.over()), Bar::AtLeast(OVER_MIN));
        line.note(note).unless(self.too_little())
    }

    /// The line of refusals that did not say when to come back.
    fn silent_line(&self, group: &'static str, limit: &str, silent: f64) -> Line {
        let name = format!("twice the rate, {limit}: refusals without RetryInfo");
        let line = Line::new(group, name, Spread::exact(silent), Bar::AtMost(0.0));
        line.unless((self.refused == 0).then(|| "nothing was refused".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use tepui_bench::bars::Verdict;

    use super::*;

    #[test]
    fn a_load_that_never_reached_the_server_is_short_and_says_why() {
        let asked = Asked {
            rate: 100.0,
            seconds: 10.0,
            acknowledged: 900,
            refused: 1_000,
            unsent: 100,
            in_flight: 5,
        };
        let line = asked.line("overload", "a limit");
        assert_eq!((line.verdict, asked.too_little()), (Verdict::Ok, None), "{}", line.text());
        assert!(line.note.contains("190 attempted: 90 acknowledged, 100 refused"), "{}", line.note);
        // Most of what was due has waited for a place.
        let asked = Asked { refused: 400, unsent: 700, ..asked };
        let line = asked.line("overload", "a limit");
        assert_eq!(line.verdict, Verdict::Short, "{}", line.text());
        assert!(line.note.starts_with("the server answered 1.30 times the rate: 700 writes"));
        assert!(asked.too_little().is_some());
    }

    #[test]
    fn refusals_say_when_to_come_back_only_where_there_are_some() {
        let asked = |refused| Asked {
            rate: 100.0,
            seconds: 10.0,
            acknowledged: 2_000,
            refused,
            unsent: 0,
            in_flight: 5,
        };
        for (refused, silent, verdict) in
            [(10, 0.0, Verdict::Ok), (10, 1.0, Verdict::Short), (0, 0.0, Verdict::Short)]
        {
            let line = asked(refused).silent_line("overload", "a limit", silent);
            assert_eq!(line.verdict, verdict, "{}", line.text());
        }
    }
}
