//! The workloads by the names that the command line has for them.

use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::workload::{Distribution, Limit, OpKind, Share, Workload, ZIPFIAN_THETA};

/// Rows of a scan.
const SCAN_ROWS: u32 = 100;
/// Rows of a read of many keys.
const MULTI_ROWS: u32 = 16;

/// A name, what it means, and its workload.
type Preset = (&'static str, &'static str, fn(&str, &Dataset) -> Workload);

const PRESETS: &[Preset] = &[
    ("get", "rows at random, every column by name", |name, _| Workload::of(name, OpKind::Get)),
    ("get-absent", "rows that are not there", |name, _| Workload::of(name, OpKind::GetAbsent)),
    ("get-family", "rows at random, naming the family only", |name, _| {
        Workload::of(name, OpKind::GetFamily)
    }),
    ("get-row", "rows at random, naming the row only", |name, _| {
        Workload::of(name, OpKind::GetRow)
    }),
    ("get-columns", "half of the columns of rows at random, by name", |name, dataset| {
        Workload::of(name, OpKind::GetColumns(dataset.columns.div_ceil(2)))
    }),
    ("get-while-writing", "rows at random; one operation in ten overwrites a row", |name, _| {
        Workload {
            mix: vec![
                Share { kind: OpKind::Get, weight: 9 },
                Share { kind: OpKind::Put, weight: 1 },
            ],
            ..Workload::of(name, OpKind::Get)
        }
    }),
    ("multi-get", "16 rows at random in one read", |name, _| {
        Workload::of(name, OpKind::MultiGet(MULTI_ROWS))
    }),
    ("scan-100", "100 rows in order from a random one", |name, _| {
        Workload::of(name, OpKind::Scan { rows: SCAN_ROWS, reverse: false })
    }),
    ("scan-100-reverse", "the same backwards", |name, _| {
        Workload::of(name, OpKind::Scan { rows: SCAN_ROWS, reverse: true })
    }),
    ("zipfian", "few rows often, as YCSB draws them", |name, _| Workload {
        distribution: Distribution::Zipfian(ZIPFIAN_THETA),
        ..Workload::of(name, OpKind::Get)
    }),
    ("latest", "mostly the rows that were written last", |name, _| Workload {
        distribution: Distribution::Latest,
        ..Workload::of(name, OpKind::Get)
    }),
    ("put", "overwrites rows at random", |name, _| Workload::of(name, OpKind::Put)),
    ("multi-put", "overwrites 16 rows at random in one write", |name, _| {
        Workload::of(name, OpKind::MultiPut(MULTI_ROWS))
    }),
    ("increment", "adds one to a counter in rows at random", |name, _| {
        Workload::of(name, OpKind::Increment)
    }),
    ("increment-single", "adds one to a counter in one row", |name, _| Workload {
        distribution: Distribution::Single,
        ..Workload::of(name, OpKind::Increment)
    }),
    ("single-row", "one row, again and again", |name, _| Workload {
        distribution: Distribution::Single,
        ..Workload::of(name, OpKind::Get)
    }),
];

/// Every name with what it means.
pub fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
    PRESETS.iter().map(|(name, meaning, _)| (*name, *meaning))
}

/// The workloads of a list of names; `all` is every one.
pub fn by_names(names: &[String], dataset: &Dataset) -> Result<Vec<Workload>> {
    let mut workloads = Vec::new();
    for name in names {
        let before = workloads.len();
        workloads.extend(
            PRESETS
                .iter()
                .filter(|(preset, ..)| name == "all" || name == preset)
                .map(|(preset, _, make)| make(preset, dataset)),
        );
        if workloads.len() == before {
            let known: Vec<&str> = PRESETS.iter().map(|(name, ..)| *name).collect();
            return Err(Error::failed(format!(
                "no workload is called {name:?}: there are {} and all",
                known.join(", ")
            )));
        }
    }
    Ok(workloads)
}

/// Reads every row once, in random key order: fills a cache that holds them all.
pub fn every_row(dataset: &Dataset, threads: usize, in_flight: usize) -> Workload {
    Workload {
        distribution: Distribution::Sequential,
        limit: Limit::Ops(dataset.rows),
        threads,
        in_flight,
        ..Workload::of("warm up", OpKind::GetRow)
    }
}
