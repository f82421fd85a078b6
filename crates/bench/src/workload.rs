//! What is asked of a store: kinds of operation, which rows, how many at once, for how long.
//!
//! Operation number `n` of a workload is a pure function of the data set, the workload and `n`. Whoever
//! carries out numbers 0, 1, 2 ... therefore does the same work, whether one thread takes them all or 32
//! threads take every 32nd each; so stores that want different threads are compared on the same operations.

use crate::dataset::{Dataset, scatter};
use crate::error::{Error, Result};
use crate::zipf::Zipf;

/// Threads that a run may have.
pub const THREADS_MAX: usize = 1024;
/// Operations under way at once.
pub const IN_FLIGHT_MAX: usize = 65_536;
/// Rows of one [`Op::MultiGet`].
pub const MULTI_GET_ROWS_MAX: u32 = 4096;
/// Rows of one [`Op::Scan`].
pub const SCAN_ROWS_MAX: u32 = 1 << 20;

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// One operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Reads a row, naming every one of its columns.
    Get {
        /// The row.
        row: u64,
    },
    /// The same of a row that was never loaded: [`Dataset::key`] of this number.
    GetAbsent {
        /// The row; at least [`Dataset::rows`].
        row: u64,
    },
    /// Reads a row, naming its family and no column.
    GetFamily {
        /// The row.
        row: u64,
    },
    /// Reads a row, naming nothing but the row.
    GetRow {
        /// The row.
        row: u64,
    },
    /// Reads some neighbouring columns of a row by name.
    GetColumns {
        /// The row.
        row: u64,
        /// The first column.
        first: u32,
        /// How many columns.
        count: u32,
    },
    /// Reads several rows in one call, naming every column. A row may occur twice.
    MultiGet {
        /// The rows.
        rows: Box<[u64]>,
    },
    /// Reads rows in key order from this one on, itself included.
    Scan {
        /// The first row.
        row: u64,
        /// Rows to read; fewer where the table ends.
        rows: u32,
        /// Towards smaller keys.
        reverse: bool,
    },
    /// Writes a row again, with the values that it has.
    Put {
        /// The row.
        row: u64,
    },
}

/// A kind of operation, without the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum OpKind {
    /// [`Op::Get`].
    Get,
    /// [`Op::GetAbsent`].
    GetAbsent,
    /// [`Op::GetFamily`].
    GetFamily,
    /// [`Op::GetRow`].
    GetRow,
    /// [`Op::GetColumns`] of so many columns.
    GetColumns(u32),
    /// [`Op::MultiGet`] of so many rows.
    MultiGet(u32),
    /// [`Op::Scan`].
    Scan {
        /// Rows of a scan.
        rows: u32,
        /// Towards smaller keys.
        reverse: bool,
    },
    /// [`Op::Put`].
    Put,
}

/// How often a kind of operation occurs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Share {
    /// The kind.
    pub kind: OpKind,
    /// Its weight among all shares.
    pub weight: u32,
}

/// Which rows are asked for.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Distribution {
    /// Every row as often as any other.
    Uniform,
    /// Few rows often: rank r with a probability proportional to 1 / r^theta, 0 < theta < 1. Ranks are
    /// scattered over the keys.
    Zipfian(f64),
    /// The rows that were loaded last, Zipfian with YCSB's constant.
    Latest,
    /// One row.
    Single,
    /// Operation n asks for row n, so each row once and in random key order: warms a cache.
    Sequential,
}

/// When a run ends.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// After so many operations.
    Ops(u64),
    /// After so many seconds.
    Seconds(f64),
}

/// How much of what is read is compared with what was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verify {
    /// Counts of rows, lengths and first bytes always; every byte of one operation in
    /// [`VERIFY_SAMPLE_OPS`].
    Sample,
    /// Every byte.
    All,
}

/// One operation in so many is compared in full: comparing costs about as much as a tenth of a cached
/// read, and this makes it a fraction of a percent.
pub const VERIFY_SAMPLE_OPS: u64 = 64;

/// A run's worth of operations.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Workload {
    /// Its name in reports.
    pub name: String,
    /// What is done, and how often.
    pub mix: Vec<Share>,
    /// To which rows.
    pub distribution: Distribution,
    /// Threads that a store may use for it.
    pub threads: usize,
    /// Operations under way at once, over all threads; at least one for each.
    pub in_flight: usize,
    /// When it ends.
    pub limit: Limit,
    /// Another seed asks for other rows.
    pub seed: u64,
    /// What is compared.
    pub verify: Verify,
}

impl Workload {
    /// A workload of one kind of operation over uniformly distributed rows.
    pub fn of(name: &str, kind: OpKind) -> Self {
        Self {
            name: name.to_owned(),
            mix: vec![Share { kind, weight: 1 }],
            distribution: Distribution::Uniform,
            threads: 2,
            in_flight: 32,
            limit: Limit::Seconds(10.0),
            seed: 1,
            verify: Verify::Sample,
        }
    }

    /// Whether it writes: the shape of the store is another one afterwards.
    pub fn writes(&self) -> bool {
        self.mix.iter().any(|share| share.kind == OpKind::Put)
    }

    /// An error that says which limit is broken.
    pub fn validate(&self, dataset: &Dataset) -> Result<()> {
        let check = |good: bool, problem: String| {
            if good { Ok(()) } else { Err(Error::failed(format!("{}: {problem}", self.name))) }
        };
        let total: u64 = self.mix.iter().map(|share| u64::from(share.weight)).sum();
        check(total > 0, "no operations".to_owned())?;
        check(
            (1..=THREADS_MAX).contains(&self.threads),
            format!("{} threads: from 1 to {THREADS_MAX}", self.threads),
        )?;
        check(
            (self.threads..=IN_FLIGHT_MAX).contains(&self.in_flight),
            format!(
                "{} in flight on {} threads: at least one each, at most {IN_FLIGHT_MAX}",
                self.in_flight, self.threads
            ),
        )?;
        match self.limit {
            Limit::Ops(ops) => check(ops > 0, "no operations".to_owned())?,
            Limit::Seconds(seconds) => check(
                seconds > 0.0 && seconds.is_finite(),
                format!("{seconds} seconds: a positive number"),
            )?,
        }
        if let Distribution::Zipfian(theta) = self.distribution {
            check(theta > 0.0 && theta < 1.0, format!("theta {theta}: between 0 and 1"))?;
        }
        for share in &self.mix {
            match share.kind {
                OpKind::GetColumns(count) => check(
                    (1..=dataset.columns).contains(&count),
                    format!("{count} columns of {}", dataset.columns),
                )?,
                OpKind::MultiGet(rows) => check(
                    (1..=MULTI_GET_ROWS_MAX).contains(&rows),
                    format!("{rows} rows at once: from 1 to {MULTI_GET_ROWS_MAX}"),
                )?,
                OpKind::Scan { rows, .. } => check(
                    (1..=SCAN_ROWS_MAX).contains(&rows),
                    format!("scans of {rows} rows: from 1 to {SCAN_ROWS_MAX}"),
                )?,
                _ => {}
            }
        }
        Ok(())
    }
}

/// The operations of a workload, by number.
#[derive(Debug)]
pub struct Ops {
    mix: Vec<Share>,
    weight: u64,
    rows: u64,
    columns: u32,
    distribution: Distribution,
    zipf: Option<Zipf>,
    seed: u64,
}

/// `random` mapped to `0..n` evenly: the high word of their product.
fn below(random: u64, n: u64) -> u64 {
    ((u128::from(random) * u128::from(n)) >> 64) as u64
}

/// The constant of YCSB's Zipfian distributions.
pub const ZIPFIAN_THETA: f64 = 0.99;

impl Ops {
    /// The operations of a workload.
    pub fn new(dataset: &Dataset, workload: &Workload) -> Result<Self> {
        dataset.validate()?;
        workload.validate(dataset)?;
        let zipf = match workload.distribution {
            Distribution::Zipfian(theta) => Some(Zipf::new(dataset.rows, theta)),
            Distribution::Latest => Some(Zipf::new(dataset.rows, ZIPFIAN_THETA)),
            _ => None,
        };
        Ok(Self {
            weight: workload.mix.iter().map(|share| u64::from(share.weight)).sum(),
            mix: workload.mix.clone(),
            rows: dataset.rows,
            columns: dataset.columns,
            distribution: workload.distribution,
            zipf,
            seed: scatter(workload.seed),
        })
    }

    /// Random number `part` of operation `number`.
    fn random(&self, number: u64, part: u64) -> u64 {
        scatter(scatter(self.seed.wrapping_add(number.wrapping_mul(GOLDEN))).wrapping_add(part))
    }

    fn row(&self, number: u64, part: u64) -> u64 {
        let random = self.random(number, part);
        let last = self.rows - 1;
        match (self.distribution, &self.zipf) {
            (Distribution::Zipfian(_), Some(zipf)) => zipf.rank(random),
            (Distribution::Latest, Some(zipf)) => last - zipf.rank(random),
            (Distribution::Single, _) => self.rows / 2,
            (Distribution::Sequential, _) => number.wrapping_add(part) % self.rows,
            _ => below(random, self.rows),
        }
    }

    fn kind(&self, number: u64) -> OpKind {
        if let [only] = self.mix.as_slice() {
            return only.kind;
        }
        let mut at = below(self.random(number, u64::MAX), self.weight);
        for share in &self.mix {
            match at.checked_sub(u64::from(share.weight)) {
                Some(rest) => at = rest,
                None => return share.kind,
            }
        }
        // Unreachable while the weights add up; a read is the harmless answer.
        OpKind::Get
    }

    /// Operation `number`.
    pub fn op(&self, number: u64) -> Op {
        let row = self.row(number, 0);
        match self.kind(number) {
            OpKind::Get => Op::Get { row },
            OpKind::GetAbsent => Op::GetAbsent { row: row + self.rows },
            OpKind::GetFamily => Op::GetFamily { row },
            OpKind::GetRow => Op::GetRow { row },
            OpKind::GetColumns(count) => {
                let places = u64::from(self.columns.saturating_sub(count)) + 1;
                let first = below(self.random(number, 1), places) as u32;
                Op::GetColumns { row, first, count }
            }
            OpKind::MultiGet(rows) => Op::MultiGet {
                rows: (0..u64::from(rows)).map(|part| self.row(number, part)).collect(),
            },
            OpKind::Scan { rows, reverse } => Op::Scan { row, rows, reverse },
            OpKind::Put => Op::Put { row },
        }
    }
}
