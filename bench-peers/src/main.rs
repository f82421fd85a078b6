//! `bench-peers`: Tepui's read path and its write path beside RocksDB, fjall and the device, a line for each bar.
//!
//! * [`bars`]: the bars, in groups; [`stores`] opens what they compare, [`figures`] names what they ask of Tepui.
//! * [`rocks`], [`fjall`], [`fio`]: the peers; [`loading`] fills them.
//! * [`sample`], [`report`]: figures, their spread, and how they are shown.
//! * [`tune`]: what of RocksDB's settings only a measurement can settle.

mod bars;
mod figures;
mod fio;
mod fjall;
mod loading;
mod report;
mod rocks;
mod sample;
mod stores;
#[cfg(test)]
mod tests;
mod tune;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tepui_bench::bars::{Verdicts, exit_code};
use tepui_bench::counters::Machine;
use tepui_bench::files::Files;
use tepui_bench::{Error, Progress, Result, interrupt};

use crate::bars::{Bench, GROUPS, Group, Sizes, Suite};
use crate::report::Report;
use crate::rocks::{Rocks, Settings, Writing};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Bytes of a value in the read path's bars: a quarter of a kilobyte, so that a block holds a dozen rows.
const READ_VALUE_BYTES: usize = 256;
/// Bytes of a value in the write path's bars: a row of 1 KiB with its key.
const WRITE_VALUE_BYTES: usize = 974;

/// Tepui's read path or its write path beside RocksDB, fjall and the device: prints a line for each bar, and exits
/// with 1 when one of them is short.
#[derive(Debug, Parser)]
#[command(name = "bench-peers", version)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Directory of all data, on the device under test; what is loaded there is kept for the next run
    #[arg(global = true, long, env = "BENCH_READ_DIR", default_value = "bench-read-data")]
    dir: PathBuf,
    /// Rows of one column
    #[arg(global = true, long, default_value_t = 1_000_000)]
    rows: u64,
    /// Rows of ten columns [default: a tenth of --rows]
    #[arg(global = true, long)]
    wide_rows: Option<u64>,
    /// Bytes of a key
    #[arg(global = true, long, default_value_t = 50)]
    key_bytes: usize,
    /// Bytes of a value [default: 256 of rows that are read, 974 of rows that are written, which makes a row of 1 KiB]
    #[arg(global = true, long)]
    value_bytes: Option<usize>,
    /// Rounds of each contest; a figure is the median of its rounds
    #[arg(global = true, long, default_value_t = 3)]
    rounds: usize,
    /// Seconds of a run in a round
    #[arg(global = true, long, default_value_t = 2.0)]
    seconds: f64,
    /// Another seed makes other rows and other reads
    #[arg(global = true, long, default_value_t = 1)]
    seed: u64,
    /// Only these groups of bars, separated by commas
    #[arg(global = true, long, value_delimiter = ',')]
    only: Vec<String>,
    /// Leave fjall out: it has no bars
    #[arg(global = true, long)]
    without_fjall: bool,
    /// Write everything as JSON to this file
    #[arg(global = true, long)]
    json: Option<PathBuf>,
    /// Write the bars, and every contest, as tables of Markdown to this file
    #[arg(global = true, long)]
    markdown: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, Subcommand)]
enum Command {
    /// The read path [default]
    Read,
    /// The write path
    Write,
    /// List the groups of bars
    Groups,
    /// Compare settings of RocksDB with one another, to find its best
    Tune,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let progress = Progress::visible();
    let stopped = progress.clone();
    exit_code(interrupt::on_signal(move || stopped.stop()).and_then(|()| run(&args, progress)))
}

fn failed(what: &std::path::Path, e: &std::io::Error) -> Error {
    Error::failed(format!("{}: {e}", what.display()))
}

/// Runs what was asked for; how many bars are short.
fn run(args: &Args, progress: Progress) -> Result<usize> {
    if matches!(args.command, Some(Command::Groups)) {
        for group in GROUPS {
            let suite = match group.suite {
                Suite::Read => "read",
                Suite::Write => "write",
            };
            println!("{suite:<6} {:<13} {}", group.name, group.about);
        }
        return Ok(0);
    }
    let suite =
        if matches!(args.command, Some(Command::Write)) { Suite::Write } else { Suite::Read };
    let groups: Vec<&Group> = GROUPS.iter().filter(|g| g.suite == suite).collect();
    if let Some(unknown) = args.only.iter().find(|name| groups.iter().all(|g| g.name != **name)) {
        let names: Vec<_> = groups.iter().map(|g| g.name).collect();
        return Err(Error::failed(format!("no group `{unknown}`; there are {}", names.join(", "))));
    }
    if args.rounds == 0 {
        return Err(Error::failed("0 rounds measure nothing"));
    }
    if !(args.seconds.is_finite() && args.seconds > 0.0) {
        return Err(Error::failed(format!("{} seconds measure nothing", args.seconds)));
    }
    let files = Files::new(args.json.as_deref(), args.markdown.as_deref())?;
    std::fs::create_dir_all(&args.dir).map_err(|e| failed(&args.dir, &e))?;
    let dir = args.dir.canonicalize().map_err(|e| failed(&args.dir, &e))?;
    let sizes = Sizes {
        rows: args.rows,
        wide_rows: args.wide_rows.unwrap_or((args.rows / 10).max(1)),
        key_bytes: args.key_bytes,
        value_bytes: args.value_bytes.unwrap_or(match suite {
            Suite::Read => READ_VALUE_BYTES,
            Suite::Write => WRITE_VALUE_BYTES,
        }),
        rounds: args.rounds,
        seconds: args.seconds,
        seed: args.seed,
    };
    sizes.narrow().validate()?;
    sizes.wide().validate()?;
    let mut bench = Bench::new(&dir, sizes, !args.without_fjall, progress)?;
    let mut report = Report {
        verdicts: Verdicts {
            machine: Machine::here(&dir),
            settings: settings(&bench, suite)?,
            lines: Vec::new(),
        },
        series: Vec::new(),
    };
    print!("{}", report.verdicts.heading());
    let measured = measure(args, &groups, &mut bench);
    report.verdicts.lines = bench.lines;
    report.series = bench.series;
    println!("\n{}", report.table());
    match &measured {
        Ok(()) if report.verdicts.lines.is_empty() => {}
        Ok(()) => println!("{}", report.summary()),
        Err(error) => report.verdicts.ended_early(error),
    }
    // A run that measured nothing leaves the files of another one alone.
    let nothing = measured.is_err() && report.verdicts.lines.is_empty() && report.series.is_empty();
    let written = if nothing { Ok(()) } else { files.write(&report, &report.markdown()) };
    measured.and(written).map(|()| report.verdicts.short())
}

/// Runs the groups that were asked for, or compares settings; what they found is in the bench, however they ended.
fn measure(args: &Args, groups: &[&Group], bench: &mut Bench) -> Result<()> {
    if matches!(args.command, Some(Command::Tune)) {
        return tune::run(bench);
    }
    for group in groups {
        if args.only.is_empty() || args.only.iter().any(|name| name == group.name) {
            bench.run(group)?;
            // What Ctrl-C ends of a peer's own programs is an error of the group, not of this program.
            bench.progress.check()?;
        }
    }
    Ok(())
}

/// What is compared, and how it is set.
fn settings(bench: &Bench, suite: Suite) -> Result<Vec<(String, String)>> {
    let (sizes, narrow) = (bench.sizes, bench.sizes.narrow());
    let runs = format!("{} rounds of {} s each, in turns", sizes.rounds, sizes.seconds);
    if suite == Suite::Write {
        let rows = format!(
            "keys of {} and values of {} incompressible bytes, over {} rows where no other number is said",
            sizes.key_bytes, sizes.value_bytes, sizes.rows,
        );
        return Ok(vec![
            ("rows".to_owned(), rows),
            ("runs".to_owned(), runs),
            ("Tepui".to_owned(), stores::tepui_settings()),
            (
                format!("RocksDB {}", Rocks::version_here(&bench.dir)?),
                Settings::for_writes(Writing::default()).to_string(),
            ),
        ]);
    }
    let rows = format!(
        "{} of 1 column and {} of 10, keys of {} and values of {} incompressible bytes: {:.2} and {:.2} GB",
        sizes.rows,
        sizes.wide_rows,
        sizes.key_bytes,
        sizes.value_bytes,
        narrow.bytes() as f64 / 1e9,
        sizes.wide().bytes() as f64 / 1e9
    );
    let mut all = vec![
        ("rows".to_owned(), rows),
        ("runs".to_owned(), runs),
        ("Tepui".to_owned(), stores::tepui_settings()),
        (
            format!("RocksDB {}", Rocks::version_here(&bench.dir)?),
            if cfg!(feature = "newest") {
                format!("{}; hyper-clock instead where everything is cached", Settings::best())
            } else {
                Settings::best().to_string()
            },
        ),
    ];
    if bench.fjall {
        all.push(("fjall".to_owned(), fjall::Fjall::settings()));
    }
    Ok(all)
}
