//! The core workloads of YCSB (Cooper et al., "Benchmarking cloud serving systems with YCSB", SoCC 2010) by their
//! letters, and what else is asked of a server.
//!
//! An update writes one column, a read takes the newest cell of every column of the family, an operation of F
//! reads and then updates: as YCSB's own client of Bigtable does.

use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::workload::{Distribution, OpKind, Share, Workload, ZIPFIAN_THETA};

/// Rows of a scan of workload E, at most.
const SCAN_ROWS: u32 = 100;
/// Rows of a read of many keys.
const MULTI_GET_ROWS: u32 = 16;
/// Rows of a write of many.
pub const MULTI_PUT_ROWS: u32 = 16;
/// The hot set of YCSB: this share of the rows gets that share of the operations.
pub const HOT_SET: Distribution = Distribution::HotSet { rows: 0.2, ops: 0.8 };
/// Few rows often, as YCSB draws them.
pub const ZIPFIAN: Distribution = Distribution::Zipfian(ZIPFIAN_THETA);

/// A workload by name: what it means, its operations in percent, its rows.
struct Preset {
    name: &'static str,
    about: &'static str,
    mix: &'static [(OpKind, u32)],
    rows: Distribution,
}

const PRESETS: &[Preset] = &[
    Preset {
        name: "a",
        about: "YCSB A: half reads, half updates, zipfian",
        mix: &[(OpKind::GetFamily, 50), (OpKind::Update, 50)],
        rows: ZIPFIAN,
    },
    Preset {
        name: "b",
        about: "YCSB B: 95 % reads, 5 % updates, zipfian",
        mix: &[(OpKind::GetFamily, 95), (OpKind::Update, 5)],
        rows: ZIPFIAN,
    },
    Preset {
        name: "c",
        about: "YCSB C: reads, zipfian",
        mix: &[(OpKind::GetFamily, 100)],
        rows: ZIPFIAN,
    },
    Preset {
        name: "d",
        about: "YCSB D: 95 % reads of the latest rows, 5 % inserts",
        mix: &[(OpKind::GetFamily, 95), (OpKind::Insert, 5)],
        rows: Distribution::Latest,
    },
    Preset {
        name: "e",
        about: "YCSB E: 95 % scans of 1 to 100 rows, 5 % inserts, zipfian",
        mix: &[(OpKind::ScanUpTo(SCAN_ROWS), 95), (OpKind::Insert, 5)],
        rows: ZIPFIAN,
    },
    Preset {
        name: "f",
        about: "YCSB F: half reads, half reads followed by an update, zipfian",
        mix: &[(OpKind::GetFamily, 50), (OpKind::ReadUpdate, 50)],
        rows: ZIPFIAN,
    },
    Preset {
        name: "increment",
        about: "adds one to a counter by ReadModifyWriteRow, all rows alike",
        mix: &[(OpKind::Increment, 100)],
        rows: Distribution::Uniform,
    },
    Preset {
        name: "increment-row",
        about: "the same on one row",
        mix: &[(OpKind::Increment, 100)],
        rows: Distribution::Single,
    },
    Preset {
        name: "read",
        about: "rows by their key alone, all alike",
        mix: &[(OpKind::GetRow, 100)],
        rows: Distribution::Uniform,
    },
    Preset {
        name: "read-many",
        about: "16 rows in one ReadRows, all alike",
        mix: &[(OpKind::MultiGet(MULTI_GET_ROWS), 100)],
        rows: Distribution::Uniform,
    },
    Preset {
        name: "update",
        about: "updates, all rows alike",
        mix: &[(OpKind::Update, 100)],
        rows: Distribution::Uniform,
    },
    Preset {
        name: "put",
        about: "writes of every column of a row, all rows alike",
        mix: &[(OpKind::Put, 100)],
        rows: Distribution::Uniform,
    },
    Preset {
        name: "put-many",
        about: "the same of 16 rows in one MutateRows",
        mix: &[(OpKind::MultiPut(MULTI_PUT_ROWS), 100)],
        rows: Distribution::Uniform,
    },
];

/// Every name with what it means.
pub fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
    PRESETS.iter().map(|preset| (preset.name, preset.about))
}

/// The workload of a name, with the rows of another distribution if that is given.
pub fn by_name(name: &str, rows: Option<Distribution>) -> Result<Workload> {
    let preset = PRESETS.iter().find(|preset| preset.name == name.to_ascii_lowercase());
    let preset = preset.ok_or_else(|| {
        let known: Vec<&str> = PRESETS.iter().map(|preset| preset.name).collect();
        Error::failed(format!("no workload is called {name:?}: there are {}", known.join(", ")))
    })?;
    Ok(Workload {
        mix: preset
            .mix
            .iter()
            .map(|(kind, weight)| Share { kind: *kind, weight: *weight })
            .collect(),
        distribution: rows.unwrap_or(preset.rows),
        ..Workload::of(preset.name, OpKind::GetFamily)
    })
}

/// Reads every row once: fills a cache that holds them all.
pub fn every_row(dataset: &Dataset, like: &Workload) -> Workload {
    Workload {
        name: "warm up".to_owned(),
        mix: vec![Share { kind: OpKind::GetFamily, weight: 1 }],
        distribution: Distribution::Sequential,
        rate: None,
        limit: crate::workload::Limit::Ops(dataset.rows),
        ..like.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_adds_up_and_can_be_run() {
        let dataset = Dataset { rows: 10, key_bytes: 24, columns: 10, value_bytes: 1, seed: 1 };
        for (name, _) in names() {
            let workload = by_name(name, None).unwrap();
            assert_eq!(workload.mix.iter().map(|share| share.weight).sum::<u32>(), 100, "{name}");
            let of_100 = Workload { in_flight: 64, ..workload };
            of_100.validate(&dataset).unwrap();
            every_row(&dataset, &of_100).validate(&dataset).unwrap();
        }
        assert_eq!(by_name("A", Some(HOT_SET)).unwrap().distribution, HOT_SET);
        assert!(by_name("g", None).unwrap_err().to_string().contains("increment-row"));
    }
}
