//! The flags that `tepui bench engine` and `tepui bench server` have in common, and what they mean.

use std::path::PathBuf;

use tepui_bench::{Dataset, Error, Limit, Result, Verify, Workload};

/// The sizes of rows where nobody says them.
#[derive(Debug, Clone, Copy)]
pub struct Usual {
    pub key_bytes: usize,
    pub columns: u32,
    pub value_bytes: usize,
}

/// What the rows look like.
#[derive(Debug, Clone, clap::Args)]
pub struct Rows {
    /// Rows
    #[arg(long, default_value_t = 1_000_000, value_name = "COUNT")]
    rows: u64,
    /// Bytes of a key [default: 24 for a server, 50 for the engine]
    #[arg(long, value_name = "BYTES")]
    key_bytes: Option<usize>,
    /// Columns of a row [default: 10 for a server, 1 for the engine]
    #[arg(long, value_name = "COUNT")]
    columns: Option<u32>,
    /// Bytes of a value [default: 100 for a server, 256 for the engine]
    #[arg(long, value_name = "BYTES")]
    value_bytes: Option<usize>,
    /// Another number makes other rows, and asks for them in another order; each workload has an order of its own
    #[arg(long, default_value_t = 1, value_name = "NUMBER")]
    seed: u64,
}

impl Rows {
    /// The rows.
    pub fn dataset(&self, usual: Usual) -> Dataset {
        Dataset {
            rows: self.rows,
            key_bytes: self.key_bytes.unwrap_or(usual.key_bytes),
            columns: self.columns.unwrap_or(usual.columns),
            value_bytes: self.value_bytes.unwrap_or(usual.value_bytes),
            seed: self.seed,
        }
    }
}

/// What the seed of a workload is ahead of the one before it: more than there are rounds. With the same, it would ask for the same
/// rows in the same order, and what one wrote last the next would find in one place, or in a cache.
const NEXT_SEED: u64 = 1_000_000;

/// How each workload is run.
#[derive(Debug, Clone, clap::Args)]
pub struct Runs {
    /// Threads that read and write
    #[arg(long, default_value_t = 2, value_name = "COUNT")]
    pub threads: usize,
    /// Seconds of each run
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS")]
    pub seconds: f64,
    /// Operations of each run, however long they take
    #[arg(long, conflicts_with = "seconds", value_name = "COUNT")]
    pub ops: Option<u64>,
    /// How often each run is made, in turn with the others; the table shows medians
    #[arg(long, default_value_t = 1, value_name = "COUNT")]
    pub repeat: usize,
    /// Compare every byte that is read, not only a sample
    #[arg(long)]
    verify: bool,
    /// Write all figures as JSON; `-` is the standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

impl Runs {
    /// Has a workload run so, as number `at` of those that are run over these rows; an error where that makes no sense.
    pub fn apply(&self, workload: &mut Workload, dataset: &Dataset, at: usize) -> Result<()> {
        workload.threads = self.threads;
        workload.seed = dataset.seed.wrapping_add(at as u64 * NEXT_SEED);
        workload.limit = self.ops.map_or(Limit::Seconds(self.seconds), Limit::Ops);
        if self.verify {
            workload.verify = Verify::All;
        }
        workload.validate(dataset)
    }

    /// Refuses what makes no sense whatever the workload.
    pub fn check(&self, warm_up_seconds: Option<f64>) -> Result<()> {
        if self.repeat == 0 {
            return Err(Error::failed("--repeat 0: at least once"));
        }
        if warm_up_seconds.is_some_and(|seconds| !seconds.is_finite() || seconds < 0.0) {
            return Err(Error::failed("--warm-up: a number of seconds"));
        }
        Ok(())
    }
}
