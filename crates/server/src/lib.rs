//! Tepui's server: Bigtable's gRPC services over the engine, the catalog of tables, configuration.
//!
//! # The life of a request
//!
//! A connection belongs to one core: [`runtime`] runs one single-threaded tokio runtime per core, each
//! accepting on a socket of its own ([`listener`]), and hands connections on so that each has about as many ([`placement`]); what a
//! connection sends is [`gather`]ed into few system calls. [`dispatch`] finds a request's service. `build.rs`
//! generates the services' traits and the calls of their methods from the table in [`rpcs`]. Its bytes are taken
//! from a budget before they are read, and so are those of its answer ([`admission`]); [`metrics`] counts it.
//! [`services`] holds what serves them; what instances, clusters and app profiles may be is in [`instances`],
//! and who may do what in [`iam`]. A data request looks its table up in the [`catalog`], is carried out by `tepui_bigtable`, and an error becomes a gRPC status in [`status`] and nowhere else.
//!
//! Work that blocks is done by [`workers`].
//!
//! [`server`] is the whole: it opens the engine and the catalog, starts the cores and the chores, and
//! shuts everything down in order.

pub mod admission;
pub mod api;
pub mod backups;
pub mod bundles;
pub mod call;
pub mod catalog;
pub mod change_streams;
pub mod chores;
pub mod config;
pub mod dispatch;
pub mod gather;
pub mod health;
pub mod hot_tablets;
pub mod iam;
pub mod instances;
pub mod large;
pub mod limits;
pub mod listener;
pub mod logging;
pub mod metrics;
pub mod names;
pub mod open_files;
pub mod operations;
pub mod placement;
pub mod rpcs;
pub mod runtime;
pub mod server;
pub mod services;
pub mod signals;
pub mod status;
pub mod workers;
