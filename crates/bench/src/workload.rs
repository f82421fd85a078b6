//! What is asked of a store: kinds of operation, which rows, how many at once, for how long.
//!
//! Operation number `n` of a workload is a pure function of the data set, the workload and `n`, but for workloads
//! that insert (see [`Op::Insert`]). Whoever carries out numbers 0, 1, 2 ... therefore does the same work, whether one thread takes them all or 32
//! threads take every 32nd each; so stores that want different threads are compared on the same operations.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::dataset::{Dataset, scatter};
use crate::error::{Error, Result};
use crate::zipf::Zipf;

/// Threads that a run may have.
pub const THREADS_MAX: usize = 1024;
/// Operations under way at once.
pub const IN_FLIGHT_MAX: usize = 65_536;
/// Rows of one [`Op::MultiGet`] or [`Op::MultiPut`].
pub const MULTI_ROWS_MAX: u32 = 4096;
/// Rows of one [`Op::Scan`].
pub const SCAN_ROWS_MAX: u32 = 1 << 20;
/// Operations a second that can be asked for, at least: one in a quarter of an hour.
pub const RATE_MIN: f64 = 0.001;
/// And at most: more than any machine begins.
pub const RATE_MAX: f64 = 1e9;

/// Tells the toss for the hot set from other random numbers of an operation.
const HOT_SET_PART: u64 = 1 << 63;

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
    /// Reads a row that was never loaded, naming nothing but the row.
    GetAbsentRow {
        /// The row; at least [`Dataset::rows`].
        row: u64,
    },
    /// Reads of a row a family that it lacks, naming no column.
    GetLackedFamily {
        /// The row.
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
    /// Writes several rows again in one call. A row may occur twice.
    MultiPut {
        /// The rows.
        rows: Box<[u64]>,
    },
    /// Writes one column of a row again, with the value that it has.
    Update {
        /// The row.
        row: u64,
        /// The column.
        column: u32,
    },
    /// Writes a row that was not there.
    Insert {
        /// The row; at least [`Dataset::rows`].
        row: u64,
    },
    /// Reads a row as [`Op::GetFamily`] does, then writes one column as [`Op::Update`] does.
    ReadUpdate {
        /// The row.
        row: u64,
        /// The column.
        column: u32,
    },
    /// Adds one to a counter of the row, atomically.
    Increment {
        /// The row.
        row: u64,
    },
}

impl Op {
    /// Whether its latency is one of a write.
    #[inline]
    pub fn writes(&self) -> bool {
        matches!(
            self,
            Self::Put { .. }
                | Self::MultiPut { .. }
                | Self::Update { .. }
                | Self::Insert { .. }
                | Self::ReadUpdate { .. }
                | Self::Increment { .. }
        )
    }

    /// The error of a store that does not serve this operation.
    pub fn unsupported(&self, store: &str) -> Error {
        Error::failed(format!("{store} does not serve {self:?}"))
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
    /// [`Op::GetAbsentRow`].
    GetAbsentRow,
    /// [`Op::GetLackedFamily`].
    GetLackedFamily,
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
    /// [`Op::Scan`] forwards of 1 to so many rows, every number as often as any other.
    ScanUpTo(u32),
    /// [`Op::Put`].
    Put,
    /// [`Op::MultiPut`] of so many rows.
    MultiPut(u32),
    /// [`Op::Update`].
    Update,
    /// [`Op::Insert`].
    Insert,
    /// [`Op::ReadUpdate`].
    ReadUpdate,
    /// [`Op::Increment`].
    Increment,
}

impl OpKind {
    /// Whether it writes.
    pub fn writes(self) -> bool {
        matches!(
            self,
            Self::Put
                | Self::MultiPut(_)
                | Self::Update
                | Self::Insert
                | Self::ReadUpdate
                | Self::Increment
        )
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
    /// The rows that were written first last, Zipfian with YCSB's constant: inserts of the run are among them
    /// as soon as they are acknowledged.
    Latest,
    /// A share of the rows gets a share of the operations, evenly; the other rows get the rest.
    HotSet {
        /// Of the rows, from 0 to 1.
        rows: f64,
        /// Of the operations, from 0 to 1.
        ops: f64,
    },
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

/// The rows behind the data set that runs have inserted, for the next run to go on from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct Inserted {
    /// Rows that were given to inserts: the next insert's comes behind them.
    pub given: u64,
    /// The first so many of them were acknowledged. Of those between, some may not be there: their inserts were refused, or not
    /// waited for.
    pub acknowledged: u64,
}

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
    /// Operations to begin a second, whether or not earlier ones have ended (an open loop); without it one
    /// begins when another ends (a closed loop).
    pub rate: Option<f64>,
    /// When it ends.
    pub limit: Limit,
    /// Another seed asks for other rows.
    pub seed: u64,
    /// What earlier runs have inserted.
    pub inserted: Inserted,
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
            rate: None,
            limit: Limit::Seconds(10.0),
            seed: 1,
            inserted: Inserted::default(),
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
        if let Some(rate) = self.rate {
            check(
                (RATE_MIN..=RATE_MAX).contains(&rate),
                format!("{rate} operations a second: from {RATE_MIN} to {RATE_MAX}"),
            )?;
        }
        match self.distribution {
            Distribution::Zipfian(theta) => {
                check(theta > 0.0 && theta < 1.0, format!("theta {theta}: between 0 and 1"))?;
            }
            Distribution::HotSet { rows, ops } => check(
                rows > 0.0 && rows < 1.0 && ops > 0.0 && ops < 1.0,
                format!("a hot set of {rows} of the rows for {ops}: shares between 0 and 1"),
            )?,
            _ => {}
        }
        for share in &self.mix {
            match share.kind {
                OpKind::GetColumns(count) => check(
                    (1..=dataset.columns).contains(&count),
                    format!("{count} columns of {}", dataset.columns),
                )?,
                OpKind::MultiGet(rows) | OpKind::MultiPut(rows) => check(
                    (1..=MULTI_ROWS_MAX).contains(&rows),
                    format!("{rows} rows at once: from 1 to {MULTI_ROWS_MAX}"),
                )?,
                OpKind::Scan { rows, .. } | OpKind::ScanUpTo(rows) => check(
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
    /// Rows that the hot set has.
    hot_rows: u64,
    seed: u64,
    inserts: Inserts,
}

/// Rows that a run inserts: which number comes next, and up to which all were acknowledged.
///
/// Which operation inserts which row depends on how fast the others are, so operations of workloads that
/// insert are not functions of their number alone: an insert needs a row that no other has, and a reader of the
/// latest rows may only ask for what is there.
///
/// ```text
/// | data set, acknowledged by earlier runs | given by them | acknowledged by this run | given |
/// 0                                       known           first              acknowledged   next
/// ```
#[derive(Debug)]
struct Inserts {
    known: u64,
    first: u64,
    next: AtomicU64,
    acknowledged: AtomicU64,
    /// Acknowledged rows beyond that; at most as many as operations are in flight.
    early: Mutex<BTreeSet<u64>>,
}

impl Inserts {
    fn new(rows: u64, inserted: Inserted) -> Self {
        let first = rows + inserted.given;
        Self {
            known: rows + inserted.acknowledged,
            first,
            next: AtomicU64::new(first),
            acknowledged: AtomicU64::new(first),
            early: Mutex::default(),
        }
    }

    fn take(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn acknowledge(&self, row: u64) {
        let mut early = self.early.lock().unwrap_or_else(PoisonError::into_inner);
        early.insert(row);
        let mut up_to = self.acknowledged.load(Ordering::Relaxed);
        while early.remove(&up_to) {
            up_to += 1;
        }
        // Under the lock, so it never goes back. Who reads it asks over a network for what was answered
        // there, which orders more than this could.
        self.acknowledged.store(up_to, Ordering::Relaxed);
    }

    /// The row of a rank among those that are there, the newest being 0.
    fn latest(&self, rank: u64) -> u64 {
        let acknowledged = self.acknowledged.load(Ordering::Relaxed);
        match rank.checked_sub(acknowledged - self.first) {
            None => acknowledged - 1 - rank,
            Some(rank) => (self.known - 1).saturating_sub(rank),
        }
    }

    /// What was inserted until now, behind a data set of so many rows.
    fn until_now(&self, rows: u64) -> Inserted {
        let given = self.next.load(Ordering::Relaxed) - rows;
        // What an earlier run left open stays so.
        let closed = self.known == self.first;
        let known = if closed { self.acknowledged.load(Ordering::Relaxed) } else { self.known };
        Inserted { given, acknowledged: known - rows }
    }
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
        let hot_rows = match workload.distribution {
            Distribution::HotSet { rows, .. } => {
                ((dataset.rows as f64 * rows) as u64).clamp(1, dataset.rows)
            }
            _ => 0,
        };
        Ok(Self {
            weight: workload.mix.iter().map(|share| u64::from(share.weight)).sum(),
            mix: workload.mix.clone(),
            rows: dataset.rows,
            columns: dataset.columns,
            distribution: workload.distribution,
            zipf,
            hot_rows,
            seed: scatter(workload.seed),
            inserts: Inserts::new(dataset.rows, workload.inserted),
        })
    }

    /// Random number `part` of operation `number`.
    fn random(&self, number: u64, part: u64) -> u64 {
        scatter(scatter(self.seed.wrapping_add(number.wrapping_mul(GOLDEN))).wrapping_add(part))
    }

    fn row(&self, number: u64, part: u64) -> u64 {
        let random = self.random(number, part);
        match (self.distribution, &self.zipf) {
            (Distribution::Zipfian(_), Some(zipf)) => zipf.rank(random),
            (Distribution::Latest, Some(zipf)) => self.inserts.latest(zipf.rank(random)),
            (Distribution::HotSet { ops, .. }, _) => self.hot_or_not(ops, number, part, random),
            (Distribution::Single, _) => self.rows / 2,
            (Distribution::Sequential, _) => number.wrapping_add(part) % self.rows,
            _ => below(random, self.rows),
        }
    }

    /// The rows of an operation on several.
    fn rows_of(&self, number: u64, rows: u32) -> Box<[u64]> {
        (0..u64::from(rows)).map(|part| self.row(number, part)).collect()
    }

    /// A row of the hot set for this share of the operations. Its rows lie scattered, since keys do.
    fn hot_or_not(&self, ops: f64, number: u64, part: u64, random: u64) -> u64 {
        let toss = self.random(number, part ^ HOT_SET_PART) as f64 / u64::MAX as f64;
        let cold_rows = self.rows - self.hot_rows;
        if toss < ops || cold_rows == 0 {
            below(random, self.hot_rows)
        } else {
            self.hot_rows + below(random, cold_rows)
        }
    }

    /// A row that [`Op::Insert`] has written is there from now on.
    #[inline]
    pub fn inserted(&self, row: u64) {
        self.inserts.acknowledge(row);
    }

    /// What was inserted until now, by earlier runs too.
    pub fn inserted_until_now(&self) -> Inserted {
        self.inserts.until_now(self.rows)
    }

    fn column(&self, number: u64) -> u32 {
        below(self.random(number, 1), u64::from(self.columns)) as u32
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
            OpKind::GetAbsentRow => Op::GetAbsentRow { row: row + self.rows },
            OpKind::GetLackedFamily => Op::GetLackedFamily { row },
            OpKind::GetFamily => Op::GetFamily { row },
            OpKind::GetRow => Op::GetRow { row },
            OpKind::GetColumns(count) => {
                let places = u64::from(self.columns.saturating_sub(count)) + 1;
                let first = below(self.random(number, 1), places) as u32;
                Op::GetColumns { row, first, count }
            }
            OpKind::MultiGet(rows) => Op::MultiGet { rows: self.rows_of(number, rows) },
            OpKind::MultiPut(rows) => Op::MultiPut { rows: self.rows_of(number, rows) },
            OpKind::Scan { rows, reverse } => Op::Scan { row, rows, reverse },
            OpKind::ScanUpTo(most) => {
                let rows = 1 + below(self.random(number, 1), u64::from(most)) as u32;
                Op::Scan { row, rows, reverse: false }
            }
            OpKind::Put => Op::Put { row },
            OpKind::Update => Op::Update { row, column: self.column(number) },
            OpKind::Insert => Op::Insert { row: self.inserts.take() },
            OpKind::ReadUpdate => Op::ReadUpdate { row, column: self.column(number) },
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
    fn a_hot_set_gets_its_share_of_the_operations_evenly() {
        let counts = counts(&rows(Distribution::HotSet { rows: 0.2, ops: 0.8 }, 100_000));
        let hot: u64 = counts[..200].iter().sum();
        assert!((79_000..81_000).contains(&hot), "{hot}");
        assert!(counts[..200].iter().all(|c| (280..520).contains(c)), "{counts:?}");
        assert!(counts[200..].iter().all(|c| *c < 70), "{counts:?}");
    }

    #[test]
    fn inserts_take_new_rows_and_latest_reads_only_what_was_acknowledged() {
        let mix = vec![
            Share { kind: OpKind::GetFamily, weight: 1 },
            Share { kind: OpKind::Insert, weight: 1 },
        ];
        let workload = Workload {
            mix,
            distribution: Distribution::Latest,
            inserted: Inserted { given: 7, acknowledged: 7 },
            ..Workload::of("w", OpKind::Get)
        };
        let ops = Ops::new(&dataset(), &workload).unwrap();
        let (mut taken, mut newest) = (Vec::new(), 0);
        for n in 0..1000 {
            match ops.op(n) {
                Op::Insert { row } => taken.push(row),
                Op::GetFamily { row } => newest = newest.max(row),
                op => panic!("{op:?}"),
            }
        }
        assert!(newest < 1007, "{newest} was not acknowledged");
        assert!(taken.iter().copied().eq(1007..1007 + taken.len() as u64));
        // The first is still under way: what came after it does not count yet.
        taken.iter().skip(1).for_each(|row| ops.inserted(*row));
        assert_eq!(ops.inserts.acknowledged.load(Ordering::Relaxed), 1007);
        ops.inserted(1007);
        let up_to = 1007 + taken.len() as u64;
        assert_eq!(ops.inserts.acknowledged.load(Ordering::Relaxed), up_to);
        let newest = (1000..2000).filter_map(|n| match ops.op(n) {
            Op::GetFamily { row } => Some(row),
            _ => None,
        });
        assert_eq!(newest.max(), Some(up_to - 1));
    }

    #[test]
    fn rows_whose_inserts_were_given_up_are_not_asked_for_by_later_runs_nor_inserted_again() {
        let mix = vec![
            Share { kind: OpKind::GetFamily, weight: 1 },
            Share { kind: OpKind::Insert, weight: 1 },
        ];
        let of = |inserted| Workload {
            mix: mix.clone(),
            distribution: Distribution::Latest,
            inserted,
            ..Workload::of("w", OpKind::Get)
        };
        let insert = |ops: &Ops, is_given_up: &dyn Fn(u64) -> bool| {
            for number in 0..100 {
                match ops.op(number) {
                    Op::Insert { row } if !is_given_up(row) => ops.inserted(row),
                    _ => {}
                }
            }
            ops.inserted_until_now()
        };
        let first = Ops::new(&dataset(), &of(Inserted::default())).unwrap();
        let open = insert(&first, &|row| row == 1003 || row == 1005);
        assert_eq!(open.acknowledged, 3);
        assert!(open.given > 30, "{open:?}");
        let second = Ops::new(&dataset(), &of(open)).unwrap();
        let behind = 1000 + open.given;
        let given = insert(&second, &|_| false);
        assert!(given.given > open.given && given.acknowledged == 3, "{given:?}");
        let rows: Vec<u64> = (100..10_000)
            .filter_map(|n| match second.op(n) {
                Op::GetFamily { row } => Some(row),
                _ => None,
            })
            .collect();
        assert!(rows.iter().all(|row| !(1003..behind).contains(row)), "{rows:?}");
        for row in [1002, behind, 999 + given.given] {
            assert!(rows.contains(&row), "{row} is there");
        }
    }

    #[test]
    fn scans_of_up_to_a_number_have_every_length() {
        let ops = Ops::new(&dataset(), &Workload::of("w", OpKind::ScanUpTo(10))).unwrap();
        let lengths: std::collections::BTreeSet<u32> = (0..1000)
            .map(|n| match ops.op(n) {
                Op::Scan { rows, reverse: false, .. } => rows,
                op => panic!("{op:?}"),
            })
            .collect();
        assert!(lengths.into_iter().eq(1..=10));
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
        let many = [OpKind::MultiGet(16), OpKind::MultiPut(16)];
        let kinds = [OpKind::GetAbsent, OpKind::GetColumns(3)].into_iter().chain(many);
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
                    Op::MultiGet { rows } | Op::MultiPut { rows } => {
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
            (
                Workload { distribution: Distribution::HotSet { rows: 0.2, ops: 1.0 }, ..good() },
                "hot set",
            ),
            (Workload { rate: Some(0.0), ..good() }, "a second"),
            (of(OpKind::ScanUpTo(0)), "scans"),
            (of(OpKind::GetColumns(11)), "columns"),
            (of(OpKind::MultiGet(0)), "rows at once"),
            (of(OpKind::MultiPut(MULTI_ROWS_MAX + 1)), "rows at once"),
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
