//! `tepui bench`: measures a server that it starts for the purpose, or the engine in this process.

mod child;
mod engine;
mod flags;
mod load;
mod output;
mod place;
mod server;
mod server_table;

use clap::Subcommand;

/// What to measure.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Load YCSB-shaped rows over MutateRows, then read them back: rows/s, bytes on disk, memory.
    Load(load::Options),
    /// Read and write rows in this process, without a server: latencies, disk reads and CPU per operation
    Engine(Box<engine::Options>),
    /// Load on a server over gRPC with YCSB's workloads: throughput, latencies, refusals. Any Bigtable endpoint.
    Server(Box<server::Options>),
}

/// Runs a benchmark; the error is for the person who reads it.
pub fn run(bench: Bench) -> Result<(), String> {
    match bench {
        Bench::Load(options) => load::run(&options),
        Bench::Server(options) => server::run(&options).map_err(|error| error.to_string()),
        Bench::Engine(options) => engine::run(&options).map_err(|error| error.to_string()),
    }
}
