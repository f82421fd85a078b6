//! Metrics: what a server tells of itself, in the text format of OpenMetrics, which Prometheus reads.
//!
//! Most figures are kept where they arise (the engine, its cache, the budgets of [`crate::admission`]); [`collect`] asks
//! for them when it is scraped. [`rpc`] counts requests. [`endpoint`] answers the scrape. All names are in
//! `docs/operations.md`, which a test compares with what a server says.

pub mod collect;
pub mod endpoint;
pub mod process;
pub mod rpc;
