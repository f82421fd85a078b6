//! What measures Tepui's engine and its peers: the same rows, the same operations, the same clocks.
//!
//! * [`dataset`]: rows that follow from their number, so that every read can be checked.
//! * [`workload`], [`zipf`]: operations that follow from their number, so that every store does the same.
//! * [`store`]: what a database must offer to be measured.
//! * [`run`]: hands operations to the store's threads and takes their latencies.

pub mod check;
pub mod clock;
pub mod counters;
pub mod dataset;
pub mod error;
pub mod kept;
pub mod plot;
pub mod presets;
pub mod progress;
pub mod report;
pub mod run;
pub mod store;
pub mod tepui;
pub mod workload;
pub mod zipf;

pub use dataset::{Dataset, Depth};
pub use error::{Error, ErrorKind, Result};
pub use progress::Progress;
pub use run::{Found, Lane, Measured, Run, Ticket};
pub use store::{Figure, FigureKind, Store};
pub use workload::{Distribution, Limit, Op, OpKind, Share, Verify, Workload};
