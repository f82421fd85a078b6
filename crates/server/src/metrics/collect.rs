//! All figures of a server, asked for when it is scraped.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use tepui_engine::cache::KindStats;
use tepui_engine::db::{Engine, Health, HeldBy};
use tepui_engine::figures::FileFigures;
use tepui_engine::log::SYNC_BUCKETS_MICROS;
use tepui_engine::pressure::Behind;
use tepui_engine::tablet::TabletStats;

use super::process;
use super::rpc::{self, BUCKETS_MICROS, CODES, CoreRpcs};
use crate::admission::{Gate, Streams};
use crate::backups::Backups;
use crate::open_files;
use crate::placement::Connections;
use crate::rpcs::SERVICES;

/// Before every name.
const PREFIX: &str = "tepui";

/// Where the figures are.
#[derive(Debug, Clone)]
pub struct Sources {
    /// The engine, with its cache and files.
    pub engine: Arc<Engine>,
    /// What each core counts.
    pub cores: Vec<Arc<CoreRpcs>>,
    /// The budget of requests.
    pub gate: Arc<Gate>,
    /// The budget of answers.
    pub streams: Arc<Streams>,
    /// The connections of all cores.
    pub connections: Arc<Connections>,
    /// The backups of tables.
    pub backups: Arc<Backups>,
    /// Bytes that the process is to stay within; 0 where there is no bound.
    pub memory_bytes: u64,
}

/// The figures of a server as a scrape gets them.
pub fn text(sources: &Sources) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register_collector(Box::new(sources.clone()));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

impl Collector for Sources {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut out = Out(encoder);
        self.server(&mut out)?;
        self.rpcs(&mut out)?;
        self.admission(&mut out)?;
        self.descriptors(&mut out)?;
        self.memory(&mut out)?;
        self.cache(&mut out)?;
        let tablets: Vec<_> = self.engine.tablets().iter().map(|tablet| tablet.stats()).collect();
        let files = self.engine.file_figures();
        tell_tablets(&tablets, &files, &mut out)?;
        let (bytes, bytes_max) = self.engine.tablet_bytes();
        let help = "bytes of memory that tablets take by being there, those of deleted tables included, roughly";
        out.gauge("tablet_bytes", help, bytes as f64)?;
        let help = "bytes of these from which on no tables are made";
        out.gauge("tablet_bytes_max", help, bytes_max as f64)?;
        self.background(&mut out)?;
        self.log(&mut out)?;
        self.values(&files, &mut out)?;
        self.backups(&mut out)?;
        self.device(&mut out)
    }
}

type Labels<const N: usize> = [(&'static str, String); N];

/// Writes figures.
struct Out<'a>(DescriptorEncoder<'a>);

impl Out<'_> {
    fn family<const N: usize>(
        &mut self,
        (name, help): (&str, &str),
        kind: MetricType,
        items: impl IntoIterator<Item = (Labels<N>, f64)>,
    ) -> Result<(), fmt::Error> {
        let counts = matches!(kind, MetricType::Counter);
        let mut metric = self.0.encode_descriptor(name, help, None, kind)?;
        for (labels, value) in items {
            let mut labelled = metric.encode_family(&labels)?;
            write_number(&mut labelled, value, counts)?;
        }
        Ok(())
    }

    fn counters<const N: usize>(
        &mut self,
        name: (&str, &str),
        items: impl IntoIterator<Item = (Labels<N>, u64)>,
    ) -> Result<(), fmt::Error> {
        let items = items.into_iter().map(|(labels, value)| (labels, value as f64));
        self.family(name, MetricType::Counter, items)
    }

    fn gauges<const N: usize>(
        &mut self,
        name: (&str, &str),
        items: impl IntoIterator<Item = (Labels<N>, f64)>,
    ) -> Result<(), fmt::Error> {
        self.family(name, MetricType::Gauge, items)
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> Result<(), fmt::Error> {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        write_number(&mut metric, value as f64, true)
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) -> Result<(), fmt::Error> {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        write_number(&mut metric, value, false)
    }
}

/// Whole numbers are written as such.
fn write_number(
    metric: &mut MetricEncoder<'_>,
    value: f64,
    counts: bool,
) -> Result<(), fmt::Error> {
    if counts {
        metric.encode_counter::<NoLabelSet, u64, f64>(&(value as u64), None)
    } else if value.fract() == 0.0 {
        metric.encode_gauge(&(value as i64))
    } else {
        metric.encode_gauge(&value)
    }
}

fn label(name: &'static str, value: impl Into<String>) -> Labels<1> {
    [(name, value.into())]
}

/// The buckets of a histogram of seconds; the last has no upper end.
fn buckets(ends_micros: &[u64], counts: &[u64]) -> Vec<(f64, u64)> {
    let ends = ends_micros.iter().map(|micros| *micros as f64 / 1e6);
    ends.chain([f64::INFINITY]).zip(counts.iter().copied()).collect()
}

impl Sources {
    fn server(&self, out: &mut Out<'_>) -> Result<(), fmt::Error> {
        let version = label("version", env!("CARGO_PKG_VERSION"));
        out.gauges(("build", "1, with the server's version"), [(version, 1.0)])?;
        let (held, read_only, reason) = match self.engine.health() {
            Health::Serving => (None, 0.0, String::new()),
            Health::Held { by, .. } => (Some(by), 0.0, String::new()),
            Health::ReadOnly(reason) => (None, 1.0, reason),
        };
        let help = "1 where writes wait or are refused until the system has what they take, by what lacks it";
        let is_held = |by| if held == Some(by) { 1.0 } else { 0.0 };
        let holds = HeldBy::ALL.map(|by| (label("reason", by.name()), is_held(by)));
        out.gauges(("writes_held", help), holds)?;
        out.gauges(
            ("read_only", "1 where a failed write has made the server read-only, with the reason"),
            [(label("reason", reason), read_only)],
        )?;
        let (bytes, bytes_max) = self.engine.catalog_bytes();
        out.gauge("catalog_bytes", "bytes of the catalog's entries", bytes as f64)?;
        let help = "bytes of the catalog from which on what creates something there is refused";
        out.gauge("catalog_bytes_max", help, bytes_max as f64)
    }

    fn rpcs(&self, out: &mut Out<'_>) -> Result<(), fmt::Error> {
        let names = SERVICES.iter().flat_map(|s| s.rpcs.iter().map(move |r| (s.name, r.name)));
        let all: Vec<_> = names
            .enumerate()
            .map(|(number, (service, rpc))| (service, rpc, rpc::sum(&self.cores, number)))
            .filter(|(.., figures)| figures.under_way + figures.ended.iter().sum::<u64>() > 0)
            .collect();
        let of = |service: &str, rpc: &str| {
            [("service", service.to_owned()), ("method", rpc.to_owned())]
        };
        let ended = all.iter().flat_map(|(service, rpc, figures)| {
            let [service, rpc] = of(service, rpc);
            let by_code = figures.ended.iter().zip(CODES).filter(|(count, _)| **count > 0);
            by_code.map(move |(count, code)| {
                ([service.clone(), rpc.clone(), ("code", format!("{code:?}"))], *count)
            })
        });
        out.counters(("requests", "requests that ended, by method and gRPC code"), ended)?;
        let under_way = all.iter().map(|(s, r, figures)| (of(s, r), figures.under_way as f64));
        out.gauges(("requests_in_flight", "requests under way"), under_way)?;
        let help = "time of requests from their decoding to the end of their answer";
        let name = "request_duration_seconds";
        let mut metric = out.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (service, rpc, figures) in &all {
            let buckets = buckets(&BUCKETS_MICROS, &figures.took);
            let labels = of(service, rpc);
            metric.encode_family(&labels)?.encode_histogram::<NoLabelSet>(
                figures.took_micros as f64 / 1e6,
                figures.took.iter().sum(),
                &buckets,
                None,
            )?;
        }
        Ok(())
    }

    fn admission(&self, out: &mut Out<'_>) -> Result<(), fmt::Error> {
        let (gate, streams) = (self.gate.figures(), self.streams.figures());
        let refusals = self.engine.refusals();
        let by_engine = Behind::ALL.map(|b| (label("reason", b.name()), refusals.get(b)));
        let by_server = [
            (label("reason", "request_memory"), gate.refused),
            (label("reason", "request_too_large"), gate.too_large),
            (label("reason", "request_stalled"), gate.paused),
            (label("reason", "answer_memory"), streams.refused),
        ];
        out.counters(
            ("refused", "writes and requests that were refused because of load or size, by reason"),
            by_engine.into_iter().chain(by_server),
        )?;
        let tablets = self.engine.tablets();
        let pressure = tablets.iter().map(|t| t.pressure().level).fold(0.0, f64::max);
        out.gauge(
            "write_pressure_ratio",
            "how near the busiest tablet is to its limits; refusals begin at 0.5, at 1 every write is refused",
            pressure.max(self.engine.pressure().level),
        )?;
        out.gauge("requests_waiting", "requests that wait for memory", gate.waiting as f64)?;
        out.gauge("answers_waiting", "answers that wait for memory", streams.waiting as f64)?;
        out.gauge("reads_parked", "reads that wait for their clients", streams.parked as f64)?;
        let help = "reads that let go of what they held since they could not go on";
        out.counter("reads_suspended", help, streams.suspended)?;
        let help = "connections closed because their clients did not read their answers";
        out.counter("connections_closed", help, streams.closed)
    }

    fn descriptors(&self, out: &mut Out<'_>) -> Result<(), fmt::Error> {
        let figures = self.connections.figures();
        out.gauge("connections", "connections of clients", figures.open as f64)?;
        let help = "connections that clients may have";
        out.gauge("connections_max", help, self.connections.max() as f64)?;
        let help = "connections closed as they came in, since there were too many";
        out.counter("connections_refused", help, figures.refused)?;
        let help = "connections closed to make room for others, since nothing was asked on them";
        out.counter("connections_gave_way", help, figures.gave_way)?;
        let help =
            "attempts to accept a connection for which the system had no descriptor or memory";
        out.counter("connections_not_accepted", help, figures.not_accepted)?;
        let help = "connections closed since nobody began to speak HTTP/2 on them";
        out.counter("connections_silent", help, figures.silent)?;
        if let Some(open) = process::open_files() {
            out.gauge("open_files", "descriptors in use: files and connections", open as f64)?;
        }
        let max = open_files::max().unwrap_or(0) as f64;
        out.gauge("open_files_max", "descriptors that may be; 0 without a limit", max)
    }

    fn memory(&self, out: &mut Out<'_>) -> Result<(), fmt::Error> {
        let engine = self.engine.memory();
        let parts = [
            ("memtables", engine.memtables),
            ("block_cache", self.engine.cache().stats().bytes),
            ("top_indexes", self.engine.resident_index_bytes()),
            ("background", engine.jobs),
            ("log_queue", engine.log_queue),
            ("changes", engine.changes),
            ("requests", self.gate.figures().bytes),
            ("answers", self.streams.figures().bytes),
        ];
        let counted: u64 = parts.iter().map(|(_, bytes)| bytes).sum();
        // Left out where the system does not say: 0 would be taken for a process without memory.
        let process = process::memory();
        let whole = process.iter().flat_map(|process| {
            let other = process.anonymous_bytes.saturating_sub(counted);
            [("program", process.mapped_bytes), ("other", other)]
        });
        out.gauges(
            ("memory_bytes", "memory by what it is for"),
            parts.into_iter().chain(whole).map(|(part, bytes)| (label("part", part), bytes as f64)),
        )?;
        let budget = self.memory_bytes as f64;
        out.gauge("memory_budget_bytes", "the configured budget; 0 without one", budget)?;
        if let Some(process) = process {
            let help = "memory of the process, as the system counts it";
            out.gauge("resident_memory_bytes", help, process.resident_bytes() as f64)?;
        }
        let buffers = tepui_engine::io::buffer_bytes() as f64;
        let help = "memory for reads and writes past the page cache";
        out.gauge("io_buffer_bytes", help, buffers)
    }

    fn cache(&self, out: &mut Out<'_>) -> Result<(), fmt::Error> {
        let stats = self.engine.cache().stats();
        let kinds = [("data", stats.data), ("index", stats.index), ("filter", stats.filter)];
        let by_kind = |get: fn(&KindStats) -> u64| kinds.map(|(k, s)| (label("kind", k), get(&s)));
        out.counters(("cache_hits", "blocks found in memory"), by_kind(|s| s.hits))?;
        out.counters(("cache_misses", "blocks not found in memory"), by_kind(|s| s.misses))?;
        out.counters(("cache_evictions", "blocks that left for others"), by_kind(|s| s.evictions))?;
        let bytes = by_kind(|s| s.bytes).map(|(kind, bytes)| (kind, bytes as f64));
        out.gauges(("cache_bytes", "bytes of blocks in memory"), bytes)?;
        let pinned = stats.pinned_bytes as f64;
        out.gauge("cache_pinned_bytes", "of these: indexes and filters that stay", pinned)?;
        let capacity = stats.capacity_bytes as f64;
        out.gauge("cache_capacity_bytes", "bytes that the cache may hold", capacity)?;
        let help = "blocks had from a load that another read had under way";
        out.counter("cache_loads_shared", help, stats.loads_shared)?;
        let filters = stats.filters;
        let help = "files that point reads met with the row between their first and last";
        out.counter("filter_lookups", help, filters.lookups)?;
        out.counter("filter_probes", "of these: a filter was asked", filters.probes)?;
        let help = "of the probes: the filter said no, and spared the file";
        out.counter("filter_negatives", help, filters.negatives)?;
        let help = "of the negatives: the part of the filter that is always in memory said no";
        out.counter("filter_coarse_negatives", help, filters.coarse_negatives)?;
        let help = "of the probes: the filter said perhaps, and the row was not there";
        out.counter("filter_false_positives", help, filters.false_positives)?;
        let help = "share of the lookups that a filter served";
        out.gauge("filter_utilisation_ratio", help, filters.utilisation())?;
        let damaged = self.engine.cache().sst_metrics().filter_damaged.get();
        out.counter("filters_damaged", "filters that are damaged or could not be read", damaged)
    }

    fn background(&self, out: &mut Out<'_>) -> Result<(), fmt::Error> {
        let metrics = self.engine.metrics();
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        out.counter("flushes", "memtables written to files", get(&metrics.flushes))?;
        let help = "flushes that failed and are tried again: for want of room, open files or memory, or since a new file did not read back";
        out.counter("flush_retries", help, get(&metrics.flush_retries))?;
        out.counter("flush_written_bytes", "bytes that flushes wrote", get(&metrics.flush_bytes))?;
        out.counter("compactions", "compactions done", get(&metrics.compactions))?;
        let help =
            "places that reads looked into and a merge of level 0 would have spared them, roughly";
        out.counter("looks", help, get(&metrics.looks))?;
        let help = "compactions that reads had paid for by looking into several places";
        out.counter("compactions_for_reads", help, get(&metrics.compactions_for_reads))?;
        let read = get(&metrics.compaction_read_bytes);
        out.counter("compaction_read_bytes", "bytes that compactions read", read)?;
        let written = get(&metrics.compaction_write_bytes);
        out.counter("compaction_written_bytes", "bytes that compactions wrote", written)?;
        let help = "compactions that were put off, since the disk had no room for them";
        out.counter("compactions_put_off", help, get(&metrics.compactions_put_off))?;
        let failed = [
            (label("reason", "damage"), get(&metrics.compactions_damaged)),
            (label("reason", "other"), get(&metrics.compactions_failed)),
        ];
        let help = "compactions that failed, by reason, and are tried again now and then";
        out.counters(("compaction_failures", help), failed)?;
        let help = "microseconds for which compactions that free value files rested beside reads of the device";
        let rested = get(&metrics.compaction_rested_micros);
        out.counter("compaction_rested_microseconds", help, rested)?;
        let help = "cells that garbage collection dropped";
        out.counter("cells_collected", help, get(&metrics.cells_collected))?;
        let help = "rows of tables with a change stream that were locked and read for such cells";
        out.counter("collector_rows", help, get(&metrics.collector_rows))
    }

    fn log(&self, out: &mut Out<'_>) -> Result<(), fmt::Error> {
        let (segments, bytes) = self.engine.log_size();
        out.gauge("log_segments", "segments of the commit log", segments as f64)?;
        out.gauge("log_bytes", "bytes of the commit log on disk", bytes as f64)?;
        let changes = self.engine.change_figures();
        let help = "files of changes that are kept for change streams";
        out.gauge("change_files", help, changes.files as f64)?;
        out.gauge("change_bytes", "bytes of these files", changes.file_bytes as f64)?;
        let help = "bytes of changes that were copied out of the log into files";
        out.counter("change_written_bytes", help, changes.written_bytes)?;
        let help =
            "bytes of changes that were removed before their time, over log.changes_bytes_max";
        out.counter("change_dropped_bytes", help, changes.dropped_bytes)?;
        let figures = self.engine.log_figures();
        out.counter("log_groups", "groups of writes that the log wrote at once", figures.groups)?;
        out.counter("log_writes", "writes of a row in these groups", figures.batches)?;
        out.counter("log_mutations", "mutations in these writes", figures.mutations)?;
        let help = "bytes that these writes took in the log, their framing included";
        out.counter("log_written_bytes", help, figures.bytes)?;
        let help = "tries to begin a segment of the log, or to reserve room in one, that met too many open files, no memory or a full disk";
        out.counter("log_segment_retries", help, figures.segment_retries)?;
        let help = "zeros that the log wrote ahead for small groups";
        out.counter("log_laid_out_bytes", help, figures.laid_out_bytes)?;
        let help = "time of syncs of the log";
        let kind = MetricType::Histogram;
        let mut metric = out.0.encode_descriptor("log_sync_duration_seconds", help, None, kind)?;
        let buckets = buckets(&SYNC_BUCKETS_MICROS, &figures.sync_took);
        let seconds = figures.sync_micros as f64 / 1e6;
        metric.encode_histogram::<NoLabelSet>(seconds, figures.syncs, &buckets, None)
    }

    fn values(&self, files: &FileFigures, out: &mut Out<'_>) -> Result<(), fmt::Error> {
        let count = files.value_files as f64;
        out.gauge("value_files", "files of values outside of SSTs", count)?;
        let (bytes, garbage) = (files.value_file_bytes, files.value_garbage_bytes);
        let states = [("live", bytes.saturating_sub(garbage)), ("garbage", garbage)];
        out.gauges(
            ("value_bytes", "bytes of these files by whether a record leads to them"),
            states.map(|(state, bytes)| (label("state", state), bytes as f64)),
        )?;
        let metrics = self.engine.metrics();
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let help = "bytes of value files that flushes and compactions wrote, moved values included";
        out.counter("value_written_bytes", help, get(&metrics.value_write_bytes))?;
        let help = "bytes of values that compactions moved, to free files with much garbage, and out of small ones";
        out.counter("value_moved_bytes", help, get(&metrics.value_moved_bytes))
    }

    fn backups(&self, out: &mut Out<'_>) -> Result<(), fmt::Error> {
        let figures = self.backups.figures();
        let states = [("ready", figures.ready), ("creating", figures.creating)];
        out.gauges(
            ("backups", "backups of tables, by state"),
            states.map(|(state, count)| (label("state", state), count as f64)),
        )?;
        let help = "bytes of files that backups alone keep";
        out.gauge("backup_held_bytes", help, figures.held_bytes as f64)?;
        let help = "age of the newest automated backup of the table where it is oldest; 0 where no table has a policy";
        let seconds = figures.automated_age_micros / 1_000_000;
        out.gauge("automated_backup_age_seconds", help, seconds as f64)?;
        out.counters(
            ("backup_failures", "operations on backups that failed, by what they were to do"),
            figures.failures.map(|(operation, count)| (label("operation", operation), count)),
        )
    }

    fn device(&self, out: &mut Out<'_>) -> Result<(), fmt::Error> {
        let Some(io) = self.engine.io_figures() else { return Ok(()) };
        out.counter("device_reads", "reads of data files that went to the device", io.reads)?;
        out.counter("device_read_bytes", "bytes that these brought", io.read_bytes)?;
        let help = "reads of data files that the page cache answered";
        out.counter("device_cached_reads", help, io.cached_reads)?;
        let help = "reads tried a second time after an error or a short answer";
        out.counter("device_read_retries", help, io.retries)?;
        out.counter("device_read_failures", "reads reported as failed", io.failures)?;
        out.counter("device_ring_reads", "of the reads: over io_uring", io.ring_reads)?;
        out.counter("device_ring_enters", "system calls of rings", io.ring_enters)
    }
}

fn tell_tablets(
    tablets: &[TabletStats],
    files: &FileFigures,
    out: &mut Out<'_>,
) -> Result<(), fmt::Error> {
    fn by_level(figures: &[u64]) -> impl Iterator<Item = (Labels<1>, f64)> + '_ {
        let figures = figures.iter().enumerate();
        figures.map(|(level, figure)| (label("level", level.to_string()), *figure as f64))
    }
    out.gauge("tablets", "tablets", tablets.len() as f64)?;
    let help = "records in files and memtables, those hidden by others included";
    out.gauge("records", help, tablets.iter().map(|t| t.records).sum::<u64>() as f64)?;
    out.gauges(("level_files", "files by level"), by_level(&files.level_files))?;
    out.gauges(("level_bytes", "bytes of files by level"), by_level(&files.level_bytes))?;
    let sublevels = tablets.iter().map(|t| t.sublevels).max().unwrap_or(0);
    let help = "sublevels of level 0 in the tablet that has most of them";
    out.gauge("sublevels_max", help, sublevels as f64)?;
    let debt: u64 = tablets.iter().map(|t| t.compaction_debt_bytes).sum();
    let help = "bytes that compactions have yet to read and write, roughly";
    out.gauge("compaction_debt_bytes", help, debt as f64)
}
