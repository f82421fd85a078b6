//! What a database must offer to be measured.

use crate::dataset::Dataset;
use crate::error::Result;
use crate::progress::Progress;
use crate::run::Run;

/// A database under measurement. It is driven in this order: [`Store::load`], [`Store::settle`], then any
/// number of [`Store::run`] with [`Store::settle`] after those that write.
pub trait Store: Sync {
    /// Its name in reports, with what tells it from others of its kind.
    fn name(&self) -> &str;

    /// Writes every row of the data set, as fast as it can; nothing else is in it.
    fn load(&self, dataset: &Dataset, progress: &Progress) -> Result<()>;

    /// Writes what is in memory to disk and compacts until nothing is due.
    fn settle(&self, progress: &Progress) -> Result<()>;

    /// Waits until the background work that is due is done, without asking for more: what follows a run of writes
    /// does not pay for them.
    fn rest(&self, progress: &Progress) -> Result<()> {
        progress.check()
    }

    /// Carries out the operations of a run, in the way that suits the store best, on at most
    /// `run.workload().threads` threads of its own (blocking stores may need one thread for each operation
    /// in flight, and say so in their name). Every thread takes a [`crate::run::Lane`] and, until
    /// [`crate::run::Lane::begin`] gives no more, carries out what it gives, compares what it reads (see
    /// [`crate::dataset::Dataset::check`]) and reports with [`crate::run::Lane::end`].
    fn run(&self, run: &Run<'_>) -> Result<()>;

    /// What the store says of itself now.
    fn figures(&self) -> Vec<Figure>;
}

/// One figure that a store gives of itself.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// Its name, with the unit last: `cache_hits`, `filter_bytes`.
    pub name: String,
    /// Its value.
    pub value: f64,
    /// How it is reported.
    pub kind: FigureKind,
}

/// How a figure is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FigureKind {
    /// Grows for ever: a report shows by how much it grew during the run.
    Counter,
    /// A state: a report shows it as it was after the run.
    Gauge,
}

impl Figure {
    /// A figure that grows.
    pub fn counter(name: impl Into<String>, value: u64) -> Self {
        Self { name: name.into(), value: value as f64, kind: FigureKind::Counter }
    }

    /// A figure that is what it is.
    pub fn gauge(name: impl Into<String>, value: f64) -> Self {
        Self { name: name.into(), value, kind: FigureKind::Gauge }
    }
}
