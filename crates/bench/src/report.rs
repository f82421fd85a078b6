//! What a run came to, as JSON and as a table.

use std::collections::BTreeMap;

use crate::counters::{Device, Machine, Usage};
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::run::{Latencies, Measured, Run};
use crate::store::{Figure, FigureKind, Store};
use crate::tenths::Tenth;
use crate::timeline::Interval;
use crate::workload::{Inserted, Workload};

/// Quantiles of a latency curve, in nines: 0 is the fastest operation, 1 is 90 %, 2 is 99 %. Steps of an
/// eighth make a smooth line.
const CURVE_STEPS_PER_NINE: u32 = 8;
/// Nines that a curve ends at: five need a hundred thousand operations to mean something.
const CURVE_NINES_MAX: u32 = 5;
/// What the seed of a warm-up is ahead of that of its workload: no round and no repetition comes near.
const WARM_UP_SEED: u64 = u64::MAX / 2;
/// The share of an open loop's operations that may be missing from its latencies: half of what a p99 leaves above itself. The client
/// itself wakes late for those that are due in the last milliseconds.
const UNSENT_SHARE_MAX: f64 = 0.005;

/// Latencies in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct LatencyFigures {
    /// Arithmetic mean.
    pub mean: f64,
    /// Half are faster.
    pub p50: f64,
    /// 90 % are faster.
    pub p90: f64,
    /// 95 % are faster.
    pub p95: f64,
    /// 99 % are faster.
    pub p99: f64,
    /// 99.9 % are faster.
    pub p99_9: f64,
    /// The slowest.
    pub max: f64,
}

/// A point of a latency curve.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct CurvePoint {
    /// Share of the operations that are at least as fast, from 0 to 1.
    pub quantile: f64,
    /// Their latency.
    pub micros: f64,
}

/// An interval of a run.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct TimelinePoint {
    /// When it began, in seconds of the run.
    pub from_seconds: f64,
    /// Operations that ended in it, a second.
    pub ops_per_second: f64,
    /// Latencies of the reads that ended in it.
    pub reads: Option<LatencyFigures>,
    /// Latencies of the writes.
    pub writes: Option<LatencyFigures>,
}

impl TimelinePoint {
    fn of(interval: &Interval) -> Self {
        let ops = interval.reads.len() + interval.writes.len();
        Self {
            from_seconds: interval.from_seconds,
            ops_per_second: ops as f64 / interval.seconds.max(1e-9),
            reads: LatencyFigures::of(&interval.reads),
            writes: LatencyFigures::of(&interval.writes),
        }
    }
}

/// Latencies of a tenth of a run's operations.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct TenthFigures {
    /// Of its reads.
    pub reads: Option<LatencyFigures>,
    /// Of its writes.
    pub writes: Option<LatencyFigures>,
}

impl TenthFigures {
    fn of(tenth: &Tenth) -> Self {
        let of = LatencyFigures::of;
        Self { reads: of(&tenth.reads), writes: of(&tenth.writes) }
    }
}

/// What the device did for an operation, on average over all operations of the run. Counters of the whole
/// machine.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct DiskFigures {
    /// Reads.
    pub reads_per_op: f64,
    /// Bytes read.
    pub read_bytes_per_op: f64,
    /// Bytes written.
    pub write_bytes_per_op: f64,
}

/// One run.
#[derive(Debug, Clone, serde::Serialize)]
pub struct RunReport {
    /// The store's name.
    pub store: String,
    /// What was run.
    pub workload: Workload,
    /// The number of the repetition, from 1.
    pub round: usize,
    /// Operations.
    pub ops: u64,
    /// Of these reads.
    pub reads: u64,
    /// Of these writes.
    pub writes: u64,
    /// How long it took.
    pub seconds: f64,
    /// Operations a second.
    pub ops_per_second: f64,
    /// Rows read a second.
    pub rows_per_second: f64,
    /// Bytes of values read.
    pub value_bytes_read: u64,
    /// Latencies of reads; not numbers, in JSON null, where there were none.
    pub latency_micros: LatencyFigures,
    /// Latencies of writes, where there were any.
    pub write_latency_micros: Option<LatencyFigures>,
    /// Latencies of reads as a curve.
    pub curve: Vec<CurvePoint>,
    /// Latencies of writes as a curve.
    pub write_curve: Vec<CurvePoint>,
    /// Operations of an open loop that were due and never begun.
    pub unsent: u64,
    /// Operations that were begun and had not ended ten seconds after the run's time.
    pub given_up: u64,
    /// Operations that the store refused and that were not made again: they are in no latency.
    pub refused: u64,
    /// Rows that were inserted.
    pub inserts: u64,
    /// The same of all runs until then, for the next one to go on from.
    pub inserted: Inserted,
    /// The first tenth of the operations, where their number was given.
    pub first_tenth: Option<TenthFigures>,
    /// The last tenth; without figures where the run was stopped before it.
    pub last_tenth: Option<TenthFigures>,
    /// What was done when, where that was taken.
    pub timeline: Vec<TimelinePoint>,
    /// The longest time without the end of a write, where a timeline was taken and there were writes.
    pub longest_write_gap_ms: Option<f64>,
    /// The device's counters, where the kernel has them.
    pub disk: Option<DiskFigures>,
    /// Bytes that this process caused to be fetched from storage, for an operation.
    pub process_read_bytes_per_op: f64,
    /// Processor time of the process, background work included, for an operation.
    pub cpu_micros_per_op: f64,
    /// The share of it that was spent in the kernel; coarse for runs of less than a second.
    pub cpu_system_share: f64,
    /// The share of the machine's processors that the host of a virtual machine took.
    pub stolen_share: f64,
    /// Resident memory at the end.
    pub rss_bytes: u64,
    /// The most there was since the process began.
    pub rss_peak_bytes: u64,
    /// Bytes of the machine's page cache at the end: with buffered reads it may have served some.
    pub page_cache_bytes: u64,
    /// It was stopped before its limit.
    pub interrupted: bool,
    /// What the store says of itself: counters by how much they grew, states as they ended.
    pub figures: BTreeMap<String, f64>,
}

/// All runs of a program.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Report {
    /// On which machine.
    pub machine: Machine,
    /// Over which rows.
    pub dataset: Dataset,
    /// Bytes of user data.
    pub data_bytes: u64,
    /// Settings, as text by name.
    pub settings: BTreeMap<String, String>,
    /// The runs, in the order in which they were made.
    pub runs: Vec<RunReport>,
}

/// Runs a workload on a store and takes its figures. The store is warm if the caller warmed it.
pub fn measure(
    store: &dyn Store,
    dataset: &Dataset,
    workload: &Workload,
    device: Option<&Device>,
    progress: &Progress,
) -> Result<RunReport> {
    take(store, workload, device, Run::new(dataset, workload, progress)?)
}

/// The same, with what was done in each interval of so many seconds.
pub fn measure_over_time(
    store: &dyn Store,
    dataset: &Dataset,
    workload: &Workload,
    device: Option<&Device>,
    interval_seconds: f64,
    progress: &Progress,
) -> Result<RunReport> {
    let run = Run::new(dataset, workload, progress)?.over_time(interval_seconds);
    take(store, workload, device, run)
}

fn take(
    store: &dyn Store,
    workload: &Workload,
    device: Option<&Device>,
    run: Run<'_>,
) -> Result<RunReport> {
    let (figures, usage) = (store.figures(), Usage::now(device));
    let result = store.run(&run);
    let used = Usage::now(device).since(usage);
    let measured = run.finish();
    result.map_err(|error| error.context(format_args!("{} on {}", workload.name, store.name())))?;
    if measured.ops + measured.refused == 0 {
        return Err(if measured.interrupted {
            Error::interrupted()
        } else {
            Error::failed(format!("{}: no operation was done", workload.name))
        });
    }
    let figures = grown(&figures, store.figures());
    Ok(RunReport::new(store.name(), workload, &measured, used, figures))
}

/// Runs a workload for its effect on the caches; what it came to is no measurement. It asks for other rows than the workload, which a
/// cache that does not hold all of them would then hold.
pub fn warm_up(
    store: &dyn Store,
    dataset: &Dataset,
    workload: &Workload,
    progress: &Progress,
) -> Result<Measured> {
    let seed = workload.seed.wrapping_add(WARM_UP_SEED);
    let workload = Workload { seed, ..workload.clone() };
    let run = Run::new(dataset, &workload, progress)?;
    store.run(&run).map_err(|error| error.context(format_args!("warming up {}", store.name())))?;
    progress.check()?;
    Ok(run.finish())
}

fn grown(before: &[Figure], after: Vec<Figure>) -> BTreeMap<String, f64> {
    let earlier: BTreeMap<&str, f64> =
        before.iter().map(|figure| (figure.name.as_str(), figure.value)).collect();
    after
        .into_iter()
        .map(|figure| {
            let start = match figure.kind {
                FigureKind::Counter => earlier.get(figure.name.as_str()).copied().unwrap_or(0.0),
                FigureKind::Gauge => 0.0,
            };
            (figure.name, figure.value - start)
        })
        .collect()
}

impl LatencyFigures {
    /// Those of no operations: how fast they would have been nobody knows, and a bar that is judged by them is short.
    pub const NONE: Self = Self {
        mean: f64::NAN,
        p50: f64::NAN,
        p90: f64::NAN,
        p95: f64::NAN,
        p99: f64::NAN,
        p99_9: f64::NAN,
        max: f64::NAN,
    };

    /// The figures of a histogram of nanoseconds; none of an empty one.
    pub fn of(latencies: &Latencies) -> Option<Self> {
        if latencies.is_empty() {
            return None;
        }
        let at = |quantile| latencies.value_at_quantile(quantile) as f64 / 1e3;
        Some(Self {
            mean: latencies.mean() / 1e3,
            p50: at(0.5),
            p90: at(0.9),
            p95: at(0.95),
            p99: at(0.99),
            p99_9: at(0.999),
            max: latencies.max() as f64 / 1e3,
        })
    }
}

/// The curve of a histogram of nanoseconds, as far as its operations carry it.
pub fn curve(latencies: &Latencies) -> Vec<CurvePoint> {
    let count = latencies.len() as f64;
    (0..=CURVE_STEPS_PER_NINE * CURVE_NINES_MAX)
        .map(|step| 1.0 - 10f64.powf(-f64::from(step) / f64::from(CURVE_STEPS_PER_NINE)))
        // Beyond this the slowest operation alone would draw the line.
        .take_while(|quantile| count > 0.0 && (1.0 - quantile) * count >= 1.0)
        .map(|quantile| CurvePoint {
            quantile,
            micros: latencies.value_at_quantile(quantile) as f64 / 1e3,
        })
        .collect()
}

impl RunReport {
    pub(crate) fn new(
        store: &str,
        workload: &Workload,
        measured: &Measured,
        used: Usage,
        figures: BTreeMap<String, f64>,
    ) -> Self {
        let ops = measured.ops as f64;
        let seconds = measured.seconds.max(1e-9);
        let ticks = used.user_seconds + used.system_seconds;
        Self {
            store: store.to_owned(),
            workload: workload.clone(),
            round: 1,
            ops: measured.ops,
            reads: measured.reads.len(),
            writes: measured.writes.len(),
            seconds,
            ops_per_second: ops / seconds,
            rows_per_second: measured.rows_read as f64 / seconds,
            value_bytes_read: measured.value_bytes_read,
            latency_micros: LatencyFigures::of(&measured.reads).unwrap_or(LatencyFigures::NONE),
            write_latency_micros: LatencyFigures::of(&measured.writes),
            curve: curve(&measured.reads),
            write_curve: curve(&measured.writes),
            unsent: measured.unsent,
            given_up: measured.given_up,
            refused: measured.refused,
            inserts: measured.inserts,
            inserted: measured.inserted,
            first_tenth: measured.tenths.as_ref().map(|tenths| TenthFigures::of(&tenths.first)),
            last_tenth: measured.tenths.as_ref().map(|tenths| TenthFigures::of(&tenths.last)),
            timeline: measured.timeline.iter().map(TimelinePoint::of).collect(),
            longest_write_gap_ms: measured.write_gap_nanos.map(|nanos| nanos as f64 / 1e6),
            disk: used.device.map(|device| DiskFigures {
                reads_per_op: device.reads as f64 / ops,
                read_bytes_per_op: device.read_bytes as f64 / ops,
                write_bytes_per_op: device.write_bytes as f64 / ops,
            }),
            process_read_bytes_per_op: used.process_read_bytes as f64 / ops,
            cpu_micros_per_op: used.cpu_nanos as f64 / 1e3 / ops,
            cpu_system_share: if ticks > 0.0 { used.system_seconds / ticks } else { 0.0 },
            stolen_share: used.machine.stolen_share(),
            rss_bytes: used.rss_bytes,
            rss_peak_bytes: used.rss_peak_bytes,
            page_cache_bytes: used.page_cache_bytes,
            interrupted: measured.interrupted,
            figures,
        }
    }

    /// Latencies of reads, or of writes where nothing was read.
    pub fn latency(&self) -> LatencyFigures {
        match self.write_latency_micros {
            Some(writes) if self.reads == 0 => writes,
            _ => self.latency_micros,
        }
    }

    /// Says so where operations were given up: a gap and latencies were longer than what was measured.
    pub fn given_up_text(&self) -> Option<String> {
        (self.given_up > 0).then(|| {
            let name = &self.workload.name;
            format!("{} operations of {name} were given up", self.given_up)
        })
    }

    /// Says so where its latencies are not those of all operations that were due: some were given up, or more than a few never
    /// begun.
    pub fn left_out(&self) -> Option<String> {
        self.given_up_text().or_else(|| {
            let due = self.ops + self.refused + self.given_up + self.unsent;
            (self.unsent as f64 > due as f64 * UNSENT_SHARE_MAX).then(|| {
                let name = &self.workload.name;
                format!("{} of {due} operations of {name} were due and never begun", self.unsent)
            })
        })
    }

    /// A figure of the store by name.
    pub fn figure(&self, name: &str) -> Option<f64> {
        self.figures.get(name).copied()
    }

    /// A figure for each operation.
    pub fn per_op(&self, name: &str) -> Option<f64> {
        self.share(name, self.ops.max(1) as f64)
    }

    /// A figure as a share of `whole`, of which there is some.
    pub fn share(&self, name: &str, whole: f64) -> Option<f64> {
        self.figure(name).filter(|_| whole > 0.0).map(|figure| figure / whole)
    }
}

/// The middle of several numbers, the mean of two; 0 of none.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let at = |i: usize| values.get(i).copied().unwrap_or(0.0);
    if values.len() % 2 == 1 {
        at(middle)
    } else {
        f64::midpoint(at(middle.saturating_sub(1)), at(middle))
    }
}

impl Report {
    /// As JSON, indented.
    pub fn to_json(&self) -> Result<String> {
        serde_json::to_string_pretty(self).map_err(|error| Error::failed(format!("JSON: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Mutex;

    use super::*;
    use crate::bars::{Bar, Line, Spread, Verdict};
    use crate::run::{Found, latencies};
    use crate::workload::{Limit, Op, OpKind};

    /// Keeps the rows of each run.
    #[derive(Default)]
    struct Recorder(Mutex<Vec<BTreeSet<u64>>>);

    impl Store for Recorder {
        fn name(&self) -> &'static str {
            "recorder"
        }

        fn load(&self, _: &Dataset, _: &Progress) -> Result<()> {
            Ok(())
        }

        fn settle(&self, _: &Progress) -> Result<()> {
            Ok(())
        }

        fn run(&self, run: &Run<'_>) -> Result<()> {
            run.on_threads(1, |_, mut lane| {
                let mut rows = BTreeSet::new();
                while let Some(ticket) = lane.begin() {
                    let Op::Get { row } = ticket.op else { panic!("{ticket:?}") };
                    rows.insert(row);
                    lane.end(&ticket, Found { rows: 1, value_bytes: 0 })?;
                }
                self.0.lock().unwrap().push(rows);
                Ok(())
            })
        }

        fn figures(&self) -> Vec<Figure> {
            Vec::new()
        }
    }

    #[test]
    fn a_warm_up_reads_other_rows_than_those_that_are_measured() {
        let dataset =
            Dataset { rows: 1_000_000, key_bytes: 24, columns: 1, value_bytes: 10, seed: 1 };
        let workload = Workload { limit: Limit::Ops(1000), ..Workload::of("w", OpKind::Get) };
        let (store, progress) = (Recorder::default(), Progress::hidden());
        warm_up(&store, &dataset, &workload, &progress).unwrap();
        measure(&store, &dataset, &workload, None, &progress).unwrap();
        let runs = store.0.into_inner().unwrap();
        let [warm, measured] = runs.as_slice() else { panic!("{} runs", runs.len()) };
        let both = warm.intersection(measured).count();
        // One is met by chance, on average.
        assert!(measured.len() > 900 && both < 20, "{both} of {}", measured.len());
    }

    #[test]
    fn percentiles_are_those_of_the_latencies() {
        let mut histogram = latencies();
        for micros in 1..=10_000u64 {
            histogram.record(micros * 1000).unwrap();
        }
        let figures = LatencyFigures::of(&histogram).unwrap();
        let close = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 0.002, "{a} {b}");
        close(figures.p50, 5_000.0);
        close(figures.p90, 9_000.0);
        close(figures.p99, 9_900.0);
        close(figures.p99_9, 9_990.0);
        close(figures.max, 10_000.0);
        close(figures.mean, 5_000.5);
        assert_eq!(LatencyFigures::of(&latencies()), None);
    }

    #[test]
    fn latencies_of_no_reads_are_no_numbers() {
        let measured = Measured { refused: 10, ..Measured::nothing() };
        let like = Workload::of("w", OpKind::Get);
        let run = RunReport::new("s", &like, &measured, Usage::default(), BTreeMap::new());
        assert!(run.latency_micros.p95.is_nan() && run.latency().p50.is_nan());
        let p95 = Spread::exact(run.latency_micros.p95);
        assert_eq!(Line::new("g", "p95", p95, Bar::AtMost(5.0)).verdict, Verdict::Short);
    }

    #[test]
    fn a_curve_rises_and_ends_where_single_operations_would_draw_it() {
        let mut histogram = latencies();
        for i in 0..1000u64 {
            histogram.record(1000 + i).unwrap();
        }
        let points = curve(&histogram);
        assert!(
            points.windows(2).all(|p| p[0].quantile < p[1].quantile && p[0].micros <= p[1].micros)
        );
        let last = points.last().unwrap();
        assert!(last.quantile > 0.99 && last.quantile <= 0.999 + 1e-9, "{last:?}");
        assert!(curve(&latencies()).is_empty());
    }

    #[test]
    fn counters_show_their_growth_and_states_their_end() {
        let before = [Figure::counter("hits", 10), Figure::gauge("bytes", 5.0)];
        let after = vec![
            Figure::counter("hits", 25),
            Figure::gauge("bytes", 7.0),
            Figure::counter("new", 3),
        ];
        let grown = grown(&before, after);
        assert_eq!((grown["hits"], grown["bytes"], grown["new"]), (15.0, 7.0, 3.0));
    }

    #[test]
    fn latencies_that_leave_operations_out_are_doubted() {
        let of = |ops, unsent, given_up| {
            let measured = Measured { ops, unsent, given_up, ..Measured::nothing() };
            let like = Workload::of("w", OpKind::Get);
            let figures = BTreeMap::new();
            RunReport::new("s", &like, &measured, Usage::default(), figures).left_out()
        };
        assert_eq!(of(1000, 0, 0), None);
        assert_eq!(of(1000, 5, 0), None, "what is due in the last milliseconds");
        assert!(of(1000, 10, 0).unwrap().contains("10 of 1010"));
        assert!(of(1000, 0, 1).unwrap().contains("1 operations of w were given up"));
    }

    #[test]
    fn the_median_of_an_even_number_lies_between() {
        assert!((median(vec![4.0, 1.0, 3.0, 2.0]) - 2.5).abs() < 1e-12);
        assert!((median(vec![5.0, 1.0, 3.0]) - 3.0).abs() < 1e-12);
        assert!(median(Vec::new()).abs() < 1e-12);
    }
}
