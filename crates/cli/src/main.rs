//! `tepui`: a wide-column database that speaks the Bigtable API.

mod bench;
mod check;
mod config;
mod export;
mod import;
mod inspect;
mod offline_env;
mod repair;
mod serve;
mod transfer;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tepui_bigtable::error::Error;
use tepui_server::{allocator, logging, open_files};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Its settings.
// SAFETY: jemalloc declares this symbol as a pointer to a string that ends with a zero, and reads it only.
#[unsafe(export_name = "_rjem_malloc_conf")]
pub static ALLOCATOR_SETTINGS: &[u8; allocator::SETTINGS_BYTES] = allocator::SETTINGS;

/// A wide-column database that speaks the Bigtable API.
#[derive(Debug, Parser)]
#[command(name = "tepui", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs a server until SIGTERM or SIGINT
    Serve(serve::Args),
    /// Measures a server, or the engine by itself
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Looks at the configuration
    #[command(subcommand)]
    Config(config::Command),
    /// Writes files of rows into a table: CSV, Avro, Parquet, SequenceFile; any Bigtable endpoint
    Import(Box<import::Args>),
    /// Writes a table into files of rows: CSV, Avro, Parquet, SequenceFile; any Bigtable endpoint
    Export(Box<export::Args>),
    /// Verifies every byte of a data directory that no server uses; exit code 1 on damage
    Check(check::Args),
    /// Keeps what verifies of a damaged directory, sets the rest aside, lists what was lost
    Repair(repair::Args),
    /// Shows what is in a file
    #[command(subcommand)]
    Inspect(inspect::Command),
}

fn main() -> ExitCode {
    // A data directory may have more files than the usual limit, and each is held open. `serve` says what it came to; where it
    // cannot be raised, others fail only if they need it.
    let _ = open_files::raise();
    let done = match Cli::parse().command {
        Command::Serve(args) => serve::run(&args),
        Command::Bench(command) => bench::run(command).map_err(Error::internal),
        Command::Config(command) => config::run(&command),
        Command::Import(args) => return import::run(&args),
        Command::Export(args) => return export::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Repair(args) => repair::run(&args),
        Command::Inspect(command) => inspect::run(&command),
    };
    if let Err(error) = &done {
        // As the log, which may have lines before it: it ends whether or not somebody takes it.
        logging::say_failed(error.message());
    }
    logging::flush();
    if done.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
