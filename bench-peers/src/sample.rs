//! One run of a workload on a store, in figures, and what several such runs say together.

use std::collections::BTreeMap;

use serde::Serialize;
pub use tepui_bench::bars::Spread;
use tepui_bench::report::RunReport;

/// The figures of one run. Disk and processor are per read: what writes beside them cost is in there too, which is
/// what a reader pays. In a run without reads everything is per write.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Sample {
    /// Operations per second.
    pub per_second: f64,
    /// Median latency in microseconds.
    pub p50_us: f64,
    /// 99th percentile of the latency in microseconds.
    pub p99_us: f64,
    /// Reads that the device carried out.
    pub disk_reads: f64,
    /// Bytes that the device read.
    pub disk_bytes: f64,
    /// Processor time of the process, user and kernel, in microseconds.
    pub cpu_us: f64,
    /// The share of the machine's processors that the host of a virtual machine took.
    pub stolen_share: f64,
    /// What the store said of itself.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub figures: BTreeMap<String, f64>,
}

impl Sample {
    /// The figures of a run.
    pub fn of(run: &RunReport) -> Self {
        // Where nothing is read it is writes that pay.
        let per_read = if run.reads == 0 { 1.0 } else { run.ops as f64 / run.reads as f64 };
        // Without counters there is no figure, and a bar that needs one is short.
        let disk = |pick: fn(&tepui_bench::report::DiskFigures) -> f64| {
            run.disk.as_ref().map_or(f64::NAN, |d| pick(d) * per_read)
        };
        Self {
            per_second: run.ops_per_second,
            p50_us: run.latency().p50,
            p99_us: run.latency().p99,
            disk_reads: disk(|d| d.reads_per_op),
            disk_bytes: disk(|d| d.read_bytes_per_op),
            cpu_us: run.cpu_micros_per_op * per_read,
            stolen_share: run.stolen_share,
            figures: run.figures.clone(),
        }
    }
}

/// The runs of one store in a contest, round by round.
#[derive(Debug, Clone, Serialize)]
pub struct Series {
    /// The store.
    pub store: String,
    /// The workload.
    pub workload: String,
    /// One for each round.
    pub samples: Vec<Sample>,
}

/// Picks a figure of a run.
pub type Pick = fn(&Sample) -> f64;

impl Series {
    /// A figure over all rounds.
    pub fn spread(&self, pick: Pick) -> Spread {
        Spread::of(self.samples.iter().map(pick))
    }

    /// This over the other, round by round: what disturbs the machine for longer than a round disturbs both.
    pub fn over(&self, other: &Series, pick: Pick) -> Spread {
        let pairs = self.samples.iter().zip(&other.samples);
        Spread::of(pairs.map(|(a, b)| pick(a) / pick(b)))
    }
}

/// The series with the highest median of operations per second.
pub fn fastest<'a>(series: impl IntoIterator<Item = &'a Series>) -> Option<&'a Series> {
    let rate = |s: &Series| s.spread(|sample| sample.per_second).median;
    series.into_iter().max_by(|a, b| rate(a).total_cmp(&rate(b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(per_second: f64) -> Sample {
        Sample {
            per_second,
            p50_us: 1.0,
            p99_us: 2.0,
            disk_reads: 1.0,
            disk_bytes: 4096.0,
            cpu_us: 3.0,
            stolen_share: 0.0,
            figures: BTreeMap::new(),
        }
    }

    fn series(store: &str, rates: &[f64]) -> Series {
        Series {
            store: store.to_owned(),
            workload: "get".to_owned(),
            samples: rates.iter().map(|r| sample(*r)).collect(),
        }
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        assert_eq!(Spread::of([4.0, 1.0, 2.0]), Spread { median: 2.0, least: 1.0, most: 4.0 });
        assert!((Spread::of([4.0, 1.0, 2.0, 3.0]).median - 2.5).abs() < 1e-9);
        assert!(Spread::of([]).median.is_nan());
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        let (a, b) = (series("a", &[20.0, 10.0, 30.0]), series("b", &[10.0, 5.0, 10.0]));
        assert_eq!(a.over(&b, |s| s.per_second), Spread { median: 2.0, least: 2.0, most: 3.0 });
        assert_eq!(fastest([&a, &b]).unwrap().store, "a");
    }
}
