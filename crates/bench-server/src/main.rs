//! `bench-server`: prints a line for each bar of the server, and exits with 1 when one of them is short.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use tepui_bench::bars::{Verdicts, exit_code};
use tepui_bench::contest::Report;
use tepui_bench::counters::Machine;
use tepui_bench::{Error, Progress, Result};
use tepui_bench_server::bench::{Bench, CONNECTIONS, IN_FLIGHT, Sizes, THREADS};
use tepui_bench_server::counting::Counting;
use tepui_bench_server::groups::{GROUPS, Group};

#[global_allocator]
static ALLOCATOR: Counting = Counting::new();

/// The bars of Tepui's server: prints a line for each, and exits with 1 when one of them is short.
#[derive(Debug, Parser)]
#[command(name = "bench-server", version)]
struct Args {
    /// Directory of all data, on the device under test; it must not exist, and is removed at the end
    #[arg(long, env = "BENCH_SERVER_DIR", default_value = "bench-server-data")]
    dir: PathBuf,
    /// Rows of the tables that fit the cache
    #[arg(long, default_value_t = 100_000)]
    rows: u64,
    /// Rows of the table that is four times the cache
    #[arg(long, default_value_t = 500_000)]
    rows_large: u64,
    /// Rounds of each contest; a figure is the median of its rounds
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Seconds of a run in a round
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Seconds of an overload; the published run has 1800
    #[arg(long, default_value_t = 20.0)]
    overload_seconds: f64,
    /// The binary whose `serve` is overloaded [default: `tepui` beside this program]
    #[arg(long)]
    tepui: Option<PathBuf>,
    /// Google's emulator (the program of cloud.google.com/go/bigtable/cmd/emulator), to measure beside it
    #[arg(long)]
    emulator: Option<PathBuf>,
    /// Only these groups of bars, separated by commas; `list` lists them
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Write everything as JSON to this file
    #[arg(long)]
    json: Option<PathBuf>,
    /// Write the tables of docs/benchmarks.md to this file
    #[arg(long)]
    markdown: Option<PathBuf>,
}

fn main() -> ExitCode {
    exit_code(run(&Args::parse()))
}

fn failed(what: &Path, error: &std::io::Error) -> Error {
    Error::failed(format!("{}: {error}", what.display()))
}

/// Runs what was asked for; how many bars are short.
#[expect(clippy::print_stdout, reason = "the report is what the program is for")]
#[expect(clippy::disallowed_methods, reason = "files of a benchmark, not of the engine")]
fn run(args: &Args) -> Result<usize> {
    if args.only.iter().any(|name| name == "list") {
        for group in GROUPS {
            println!("{:<13} {}", group.name, group.about);
        }
        return Ok(0);
    }
    if let Some(unknown) = args.only.iter().find(|name| GROUPS.iter().all(|g| g.name != **name)) {
        return Err(Error::failed(format!("no group is called {unknown:?}: --only list")));
    }
    let asked = |group: &&Group| args.only.iter().any(|name| name == group.name);
    if args.emulator.is_none()
        && let Some(group) = GROUPS.iter().filter(asked).find(|group| group.needs_emulator())
    {
        return Err(Error::failed(format!("group {:?} needs --emulator", group.name)));
    }
    let positive = |seconds: f64| seconds.is_finite() && seconds > 0.0;
    if args.rounds == 0 || !positive(args.seconds) || !positive(args.overload_seconds) {
        return Err(Error::failed("no rounds, or no seconds: nothing would be measured"));
    }
    std::fs::create_dir(&args.dir).map_err(|e| failed(&args.dir, &e))?;
    let result = measure(args);
    let removed = std::fs::remove_dir_all(&args.dir).map_err(|e| failed(&args.dir, &e));
    let report = result?;
    removed?;
    for (file, text) in [
        (
            &args.json,
            serde_json::to_string_pretty(&report).map_err(|e| Error::failed(e.to_string()))?,
        ),
        (&args.markdown, report.markdown()),
    ] {
        if let Some(file) = file {
            std::fs::write(file, text).map_err(|e| failed(file, &e))?;
        }
    }
    println!("{}", report.summary());
    Ok(report.verdicts.short())
}

/// The binary of the server; whether there is one says the group that starts it.
fn tepui(args: &Args) -> Result<PathBuf> {
    if let Some(program) = &args.tepui {
        return Ok(program.clone());
    }
    let own = std::env::current_exe().map_err(|e| failed(Path::new("own path"), &e))?;
    Ok(own.with_file_name("tepui"))
}

#[expect(clippy::print_stdout, reason = "the report is what the program is for")]
fn measure(args: &Args) -> Result<Report> {
    let sizes = Sizes {
        rows: args.rows,
        rows_large: args.rows_large,
        rounds: args.rounds,
        seconds: args.seconds,
        overload_seconds: args.overload_seconds,
    };
    let mut bench = Bench {
        dir: args.dir.clone(),
        sizes,
        tepui: tepui(args)?,
        emulator: args.emulator.clone(),
        progress: Progress::visible(),
        lines: Vec::new(),
        runs: Vec::new(),
    };
    let shape = format!(
        "{IN_FLIGHT} requests in flight, {THREADS} client threads, {CONNECTIONS} connections, in the server's process but for overloads"
    );
    let runs = format!("{} rounds of {} s each, in turns", args.rounds, args.seconds);
    let rows = format!("{} in the cache, {} beyond it", args.rows, args.rows_large);
    let settings = [("clients", shape), ("runs", runs), ("rows", rows)];
    let mut report = Report {
        verdicts: Verdicts {
            machine: Machine::here(&args.dir),
            settings: settings.map(|(name, value)| (name.to_owned(), value)).into(),
            lines: Vec::new(),
        },
        runs: Vec::new(),
    };
    print!("{}", report.verdicts.heading());
    for group in GROUPS {
        if args.only.is_empty() || args.only.iter().any(|name| name == group.name) {
            group.run(&mut bench)?;
        }
    }
    report.verdicts.lines = bench.lines;
    report.runs = bench.runs;
    Ok(report)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

    use super::*;

    #[test]
    fn a_group_that_is_asked_for_and_cannot_be_measured_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let asked = ["bench-server", "--only=emulator", "--dir", data.to_str().unwrap()];
        let error = run(&Args::parse_from(asked)).unwrap_err().to_string();
        assert!(error.contains("needs --emulator"), "{error}");
        assert!(!data.exists(), "nothing was begun");
    }
}
