//! `bench-server`: prints a line for each bar of the server, and exits with 1 when one of them is short.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use tepui_bench::bars::{Bar, Line, Verdicts, exit_code};
use tepui_bench::contest::Report;
use tepui_bench::counters::Machine;
use tepui_bench::files::Files;
use tepui_bench::{Error, Progress, Result, interrupt, output};
use tepui_bench_server::bench::{Bench, CONNECTIONS, IN_FLIGHT, Sizes, THREADS};
use tepui_bench_server::counting::Counting;
use tepui_bench_server::groups::{GROUPS, Group, overload};
use tepui_bench_server::slow_disk;
use tepui_server::allocator;

#[global_allocator]
static ALLOCATOR: Counting = Counting::new();

/// Its settings.
// SAFETY: jemalloc declares this symbol as a pointer to a string that ends with a zero, and reads it only.
#[unsafe(export_name = "_rjem_malloc_conf")]
pub static ALLOCATOR_SETTINGS: &[u8; allocator::SETTINGS_BYTES] = allocator::SETTINGS;

/// The bars of Tepui's server: prints a line for each, and exits with 1 when one of them is short.
#[derive(Debug, Parser)]
#[command(name = "bench-server", version, args_conflicts_with_subcommands = true)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Directory of all data, on the device under test; it must not exist, and is removed at the end
    #[arg(long, env = "BENCH_SERVER_DIR", default_value = "bench-server-data")]
    dir: PathBuf,
    /// Rows of the tables that fit the cache
    #[arg(long, default_value_t = 100_000)]
    rows: u64,
    /// Rows of the table that is four times the cache, and of the overloads', of which fewer than the default do not fill memory
    #[arg(long, default_value_t = 500_000)]
    rows_large: u64,
    /// Rounds of each contest; a figure is the median of its rounds
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Seconds of a run in a round
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Seconds of an overload, after memory was filled and a sustainable rate taken; the published run has 1800
    #[arg(long, default_value_t = 20.0)]
    overload_seconds: f64,
    /// The binary whose `serve` is overloaded, and meets bad clients [default: `tepui` beside this program]
    #[arg(long)]
    tepui: Option<PathBuf>,
    /// Google's emulator (the program of cloud.google.com/go/bigtable/cmd/emulator), to measure beside it
    #[arg(long)]
    emulator: Option<PathBuf>,
    /// Only these groups of bars, separated by commas; `list` lists them
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Not these groups of bars, separated by commas; the last line names them
    #[arg(long, value_delimiter = ',')]
    skip: Vec<String>,
    /// Write everything as JSON to this file
    #[arg(long)]
    json: Option<PathBuf>,
    /// Write the bars, and every contest, as tables of Markdown to this file
    #[arg(long)]
    markdown: Option<PathBuf>,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Serves over a slow disk, for the group `overload-disk`
    #[command(hide = true)]
    Serve(slow_disk::Args),
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(Command::Serve(serve)) = &args.command {
        return exit_code(slow_disk::serve(serve).map(|()| 0));
    }
    let progress = Progress::visible();
    let stopped = progress.clone();
    exit_code(interrupt::on_signal(move || stopped.stop()).and_then(|()| run(&args, &progress)))
}

fn failed(what: &Path, error: &std::io::Error) -> Error {
    Error::failed(format!("{}: {error}", what.display()))
}

/// Runs what was asked for; how many bars are short.
#[expect(clippy::disallowed_methods, reason = "files of a benchmark, not of the engine")]
fn run(args: &Args, progress: &Progress) -> Result<usize> {
    if args.only.iter().any(|name| name == "list") {
        for group in GROUPS {
            output::say(&format!("{:<13} {}", group.name, group.about));
        }
        return Ok(0);
    }
    let mut named = args.only.iter().chain(&args.skip);
    if let Some(unknown) = named.find(|name| GROUPS.iter().all(|g| g.name != **name)) {
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
    let files = Files::new(args.json.as_deref(), args.markdown.as_deref())?;
    std::fs::create_dir(&args.dir).map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => {
            let dir = args.dir.display();
            Error::failed(format!("--dir {dir} exists: it must not, and is removed at the end"))
        }
        _ => failed(&args.dir, &error),
    })?;
    let mut report = report(args);
    output::say(report.verdicts.heading().trim_end());
    let measured = measure(args, progress, &mut report);
    let removed = std::fs::remove_dir_all(&args.dir).map_err(|e| failed(&args.dir, &e));
    let short = report.end(measured, files);
    if let (Err(_), Err(left)) = (&short, &removed) {
        output::complain(&format!("error: {left}"));
    }
    short.and_then(|short| removed.map(|()| short))
}

/// A report in which nothing is measured yet.
fn report(args: &Args) -> Report {
    let shape = format!(
        "{IN_FLIGHT} requests in flight, {THREADS} client threads, {CONNECTIONS} connections, in the server's process; overloads: {}, {} (of bulks {}), {THREADS} and {}, a process of its own on half of the cores, they on the others",
        format_args!("{} in the closed loop", overload::SUSTAINED_IN_FLIGHT),
        format_args!("{} in the open one", overload::IN_FLIGHT),
        overload::BULKS_IN_FLIGHT,
        overload::CONNECTIONS,
    );
    let runs = format!(
        "{} rounds of {} s each, in turns; an overload of {} s",
        args.rounds, args.seconds, args.overload_seconds
    );
    let rows = format!("{} in the cache, {} beyond it", args.rows, args.rows_large);
    let settings = [("clients", shape), ("runs", runs), ("rows", rows)];
    Report {
        verdicts: Verdicts {
            machine: Machine::here(&args.dir),
            settings: settings.map(|(name, value)| (name.to_owned(), value)).into(),
            lines: Vec::new(),
        },
        runs: Vec::new(),
    }
}

/// Runs the groups that were asked for; what they found is in the report, however they ended.
fn measure(args: &Args, progress: &Progress, report: &mut Report) -> Result<()> {
    let sizes = Sizes {
        rows: args.rows,
        rows_large: args.rows_large,
        rounds: args.rounds,
        seconds: args.seconds,
        overload_seconds: args.overload_seconds,
    };
    let own = std::env::current_exe().map_err(|e| failed(Path::new("own path"), &e))?;
    let mut bench = Bench {
        dir: args.dir.clone(),
        sizes,
        // Whether there is one says the group that starts it.
        tepui: args.tepui.clone().unwrap_or_else(|| own.with_file_name("tepui")),
        own,
        emulator: args.emulator.clone(),
        progress: progress.clone(),
        lines: Vec::new(),
        runs: Vec::new(),
    };
    let among = |names: &[String], group: &Group| names.iter().any(|name| name == group.name);
    let mut groups = GROUPS.iter().filter(|group| args.only.is_empty() || among(&args.only, group));
    let measured = groups.try_for_each(|group| {
        if among(&args.skip, group) {
            let why = "left out by --skip".to_owned();
            bench.say(Line::missing(group.name, group.name, Bar::Published, why));
            return Ok(());
        }
        group.run(&mut bench)
    });
    report.verdicts.lines = bench.lines;
    report.runs = bench.runs;
    measured
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
        let error = run(&Args::parse_from(asked), &Progress::hidden()).unwrap_err().to_string();
        assert!(error.contains("needs --emulator"), "{error}");
        assert!(!data.exists(), "nothing was begun");
    }

    #[test]
    fn what_is_not_there_is_short_unless_it_is_left_out() {
        let without = |skip: &[&str]| {
            let dir = tempfile::tempdir().unwrap();
            let data = dir.path().join("data");
            let skip = skip.join(",");
            let asked = ["bench-server", "--dir", data.to_str().unwrap(), "--skip", &skip];
            run(&Args::parse_from(asked), &Progress::hidden())
        };
        let all: Vec<&str> = GROUPS.iter().map(|group| group.name).collect();
        let others: Vec<&str> = all.iter().copied().filter(|name| *name != "emulator").collect();
        assert_eq!(without(&others).unwrap(), 1);
        let error = without(&all).unwrap_err().to_string();
        assert!(error.contains("no bar was judged"), "{error}");
    }

    #[test]
    fn a_directory_that_exists_is_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let asked = ["bench-server", "--only=sync", "--dir", dir.path().to_str().unwrap()];
        let error = run(&Args::parse_from(asked), &Progress::hidden()).unwrap_err().to_string();
        assert!(error.contains("exists: it must not"), "{error}");
        assert!(dir.path().is_dir());
    }

    #[test]
    fn a_report_that_could_not_be_written_is_refused_before_anything_is_measured() {
        let dir = tempfile::tempdir().unwrap();
        let (data, file) = (dir.path().join("data"), dir.path().join("none/report"));
        for option in ["--json", "--markdown"] {
            let (data, file) = (data.to_str().unwrap(), file.to_str().unwrap());
            let asked = ["bench-server", "--only=sync", "--dir", data, option, file];
            let asked = Args::parse_from(asked);
            let progress = Progress::hidden();
            // It does not measure anything where it gets that far.
            progress.stop();
            let error = run(&asked, &progress).unwrap_err().to_string();
            assert!(error.contains("none/report: no such directory"), "{error}");
        }
        assert!(!data.exists(), "nothing was begun");
    }

    #[test]
    fn what_was_measured_before_a_group_failed_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        let mut asked: Vec<String> =
            ["bench-server", "--only=sync,overload", "--seconds=0.1", "--rounds=1"]
                .map(str::to_owned)
                .into();
        for (option, name) in [
            ("--dir", "data"),
            ("--tepui", "no-such-program"),
            ("--json", "r.json"),
            ("--markdown", "r.md"),
        ] {
            asked.extend([option.to_owned(), path(name)]);
        }
        let error = run(&Args::parse_from(asked), &Progress::hidden()).unwrap_err().to_string();
        assert!(error.contains("no-such-program"), "{error}");
        for file in ["r.json", "r.md"] {
            let text = std::fs::read_to_string(path(file)).unwrap();
            assert!(text.contains("64 clients increment one row"), "{text}");
            assert!(text.contains("ended early") && text.contains("no-such-program"), "{text}");
        }
        assert!(!dir.path().join("data").exists());
    }
}
