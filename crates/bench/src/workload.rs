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
    /// Adds one to a counter in a row: reads it and writes it, with nobody in between.
    Increment {
        /// The row.
        row: u64,
    },
}

impl Op {
    /// Whether it writes.
    pub fn writes(&self) -> bool {
        matches!(self, Self::Put { .. } | Self::Increment { .. })
    }
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
    /// [`Op::Increment`].
    Increment,
}

impl OpKind {
    /// Whether it writes.
    pub fn writes(self) -> bool {
        matches!(self, Self::Put | Self::Increment)
    }
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
        self.mix.iter().any(|share| share.kind.writes())
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
            OpKind::Increment => Op::Increment { row },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dataset() -> Dataset {
        Dataset { rows: 1000, key_bytes: 50, columns: 10, value_bytes: 10, seed: 1 }
    }

    fn rows(distribution: Distribution, count: u64) -> Vec<u64> {
        let workload = Workload { distribution, ..Workload::of("w", OpKind::Get) };
        let ops = Ops::new(&dataset(), &workload).unwrap();
        let row = |n| match ops.op(n) {
            Op::Get { row } => row,
            op => panic!("{op:?}"),
        };
        (0..count).map(row).collect()
    }

    fn counts(rows: &[u64]) -> Vec<u64> {
        let mut counts = vec![0; 1000];
        for row in rows {
            counts[*row as usize] += 1;
        }
        counts
    }

    #[test]
    fn uniform_rows_come_about_equally_often() {
        let counts = counts(&rows(Distribution::Uniform, 100_000));
        // 100 each on average, with a standard deviation of 10: six of those are never met.
        assert!(counts.iter().all(|c| (40..=160).contains(c)));
        let chi: f64 = counts.iter().map(|c| (*c as f64 - 100.0).powi(2) / 100.0).sum();
        assert!((800.0..1200.0).contains(&chi), "{chi}");
    }

    #[test]
    fn zipfian_rows_favour_few_and_latest_ones_the_end() {
        let zipfian = counts(&rows(Distribution::Zipfian(0.99), 100_000));
        assert!(zipfian[0] > 10_000 && zipfian[0] > 5 * zipfian[9] && zipfian[500] < 200);
        let latest = counts(&rows(Distribution::Latest, 100_000));
        assert!(latest[999] > 10_000 && latest[0] < 200);
    }

    #[test]
    fn single_is_one_row_and_sequential_every_row_once() {
        assert!(rows(Distribution::Single, 100).iter().all(|row| *row == 500));
        assert!(counts(&rows(Distribution::Sequential, 1000)).iter().all(|c| *c == 1));
    }

    #[test]
    fn shares_are_kept_and_every_reader_sees_the_same_operations() {
        let mix =
            vec![Share { kind: OpKind::Get, weight: 9 }, Share { kind: OpKind::Put, weight: 1 }];
        let workload = Workload { mix, ..Workload::of("w", OpKind::Get) };
        let ops = Ops::new(&dataset(), &workload).unwrap();
        let puts = (0..100_000).filter(|n| matches!(ops.op(*n), Op::Put { .. })).count();
        assert!((9_500..10_500).contains(&puts), "{puts}");
        let again = Ops::new(&dataset(), &workload).unwrap();
        assert!((0..1000).all(|n| ops.op(n) == again.op(n)));
        let other = Ops::new(&dataset(), &Workload { seed: 2, ..workload }).unwrap();
        assert!((0..1000).any(|n| ops.op(n) != other.op(n)));
    }

    #[test]
    fn operations_stay_within_the_data() {
        let kinds = [OpKind::GetAbsent, OpKind::GetColumns(3), OpKind::MultiGet(16)];
        for kind in kinds {
            let ops = Ops::new(&dataset(), &Workload::of("w", kind)).unwrap();
            let mut firsts = std::collections::BTreeSet::new();
            for n in 0..10_000 {
                match ops.op(n) {
                    Op::GetAbsent { row } => assert!((1000..2000).contains(&row)),
                    Op::GetColumns { row, first, count: 3 } => {
                        firsts.insert(first);
                        assert!(row < 1000 && first <= 7);
                    }
                    Op::MultiGet { rows } => {
                        assert!(rows.len() == 16 && rows.iter().all(|row| *row < 1000));
                        let distinct: std::collections::BTreeSet<_> = rows.iter().collect();
                        assert!(distinct.len() > 8, "{rows:?}");
                    }
                    op => panic!("{op:?}"),
                }
            }
            assert!(firsts.len() == if matches!(kind, OpKind::GetColumns(_)) { 8 } else { 0 });
        }
    }

    #[test]
    fn a_workload_beyond_its_limits_is_refused_with_the_limit() {
        let good = || Workload::of("w", OpKind::Get);
        let of = |kind| Workload::of("w", kind);
        let bad = [
            (Workload { threads: 0, ..good() }, "threads"),
            (Workload { threads: 4, in_flight: 3, ..good() }, "in flight"),
            (Workload { limit: Limit::Ops(0), ..good() }, "no operations"),
            (Workload { limit: Limit::Seconds(f64::NAN), ..good() }, "seconds"),
            (Workload { mix: Vec::new(), ..good() }, "no operations"),
            (Workload { distribution: Distribution::Zipfian(1.0), ..good() }, "theta"),
            (of(OpKind::GetColumns(11)), "columns"),
            (of(OpKind::MultiGet(0)), "rows at once"),
            (of(OpKind::Scan { rows: 0, reverse: false }), "scans"),
        ];
        for (workload, word) in bad {
            let error = Ops::new(&dataset(), &workload).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        assert!(Ops::new(&Dataset { rows: 0, ..dataset() }, &good()).is_err());
        assert!(Ops::new(&Dataset { key_bytes: 3, ..dataset() }, &good()).is_err());
    }
}
