//! `tepui bench`: measures a running server, or one that it starts for the purpose.

mod client;
mod dataset;
mod load;
mod server;

use clap::Subcommand;

/// What to measure.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Load YCSB-shaped rows over MutateRows, then read them back: rows/s, bytes on disk, memory.
    Load(load::Options),
}

/// Runs a benchmark; the error is for the person who reads it.
pub fn run(bench: Bench) -> Result<(), String> {
    match bench {
        Bench::Load(options) => load::run(&options),
    }
}
