//! What measures Tepui's engine and its peers: the same rows, the same operations, the same clocks.
//!
//! * [`dataset`]: rows that follow from their number, so that every read can be checked.
//! * [`workload`], [`zipf`]: operations that follow from their number, so that every store does the same.
//! * [`store`]: what a database must offer to be measured.
//! * [`run`]: hands operations to the store's threads and takes their latencies.
//! * [`timeline`]: what was done when.
//! * [`tenths`]: how a run began and how it ended.
//! * [`check`]: compares rows that were read with what was written.
//! * [`network`]: threads, connections and operations under way, for a server of whatever protocol.
//! * [`child`]: a server as a process of its own.
//! * [`contest`]: YCSB on several servers in turns.
//! * [`counters`], [`clock`]: what the kernel says that a run cost.
//! * [`bars`]: figures with what they must be.
//! * [`report`], [`plot`], [`files`]: a run as JSON, in a table, as a curve, and where they go.
//! * [`presets`]: workloads by name.
//! * [`ycsb`]: workloads of a server by name.
//! * [`kept`]: data that the next run finds again.
//! * [`tepui`]: the engine as a store.
//! * `grpc`: a server of the Bigtable API as a store (with the feature of that name).
//! * [`progress`], [`output`], [`interrupt`]: what a person sees meanwhile and at the end, and how they end it.

pub mod bars;
pub mod check;
pub mod child;
pub mod clock;
pub mod contest;
pub mod cores;
pub mod counters;
pub mod dataset;
pub mod error;
pub mod files;
#[cfg(feature = "grpc")]
pub mod grpc;
pub mod interrupt;
pub mod kept;
pub mod network;
pub mod output;
pub mod plot;
pub mod presets;
pub mod progress;
pub mod quiet;
pub mod report;
pub mod run;
pub mod store;
pub mod tables;
pub mod tenths;
pub mod tepui;
pub mod timeline;
pub mod workload;
pub mod ycsb;
pub mod zipf;

pub use dataset::{Dataset, Depth};
pub use error::{Error, ErrorKind, Result};
pub use progress::Progress;
pub use run::{Found, Lane, Measured, Run, Ticket};
pub use store::{Figure, FigureKind, Store};
pub use workload::{Distribution, Inserted, Limit, Op, OpKind, Share, Verify, Workload};
