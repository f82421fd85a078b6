//! `tepui import`: files of rows into a table of any Bigtable endpoint.

use std::path::PathBuf;
use std::process::ExitCode;

use tepui_engine::io::{Clock as _, SystemClock};
use tepui_transfer::error::Result;
use tepui_transfer::format::{ReadOptions, csv};
use tepui_transfer::import::{Import, import};
use tepui_transfer::journal::Earlier;

use crate::transfer::{self, EXIT_REJECTED, Format, TableArgs, Timestamps, bar, human};

/// The arguments of `tepui import`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit codes: 0 done; 1 failed; 3 done, but for rejected records; 130 interrupted.\n\
                  A failed or interrupted import goes on where it was with --resume; one with \
                  --restart that had not begun anew by then is given again as it was."
)]
pub struct Args {
    #[command(flatten)]
    table: TableArgs,
    /// Files, patterns ('export/part-*'), directories
    #[arg(required = true, value_name = "FILE")]
    files: Vec<String>,
    /// The files' format [default: by their first bytes, or .csv]
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// CSV: the family of all columns; the files have no row of families then
    #[arg(long, value_name = "FAMILY")]
    column_family: Option<String>,
    /// CSV: where timestamps come from
    #[arg(long, value_enum, default_value_t = Timestamps::Now)]
    timestamp: Timestamps,
    /// Rows of a request, at most
    #[arg(long, default_value_t = 500, value_name = "ROWS")]
    batch_size: usize,
    /// Files that are read at the same time, each over a connection of its own
    #[arg(long, default_value_t = 4, value_name = "COUNT")]
    workers: usize,
    /// Requests under way of each worker
    #[arg(long, default_value_t = 8, value_name = "COUNT")]
    in_flight: usize,
    /// Make the table and the families that are missing; new families keep every version, and aggregate nothing
    #[arg(long)]
    create: bool,
    /// Read and check every record, write nothing to the table
    #[arg(long, conflicts_with_all = ["resume", "restart"])]
    dry_run: bool,
    /// Where records that cannot be written go, with the reason; `tepui import` reads this file too
    /// [default: TABLE.rejected.jsonl; of a dry run TABLE.dry-run.jsonl, which the next one replaces]
    #[arg(long, value_name = "FILE")]
    rejected: Option<PathBuf>,
    /// Fail when more records than this are rejected
    #[arg(long, default_value_t = 1000, value_name = "COUNT")]
    max_rejected: u64,
    /// Where the progress is kept until the import is done [default: TABLE.import.json]
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// Go on with an import that was interrupted
    #[arg(long, conflicts_with = "restart")]
    resume: bool,
    /// Begin anew, whatever an interrupted import left
    #[arg(long)]
    restart: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> ExitCode {
    let resume = if args.restart {
        "--resume goes on where this import was, unless it was not begun; then --restart begins anew"
    } else {
        "--resume goes on where this import was"
    };
    transfer::end(done(args), resume)
}

fn done(args: &Args) -> Result<(String, ExitCode)> {
    let named = |given: &Option<PathBuf>, suffix: &str| {
        given.clone().unwrap_or_else(|| PathBuf::from(format!("{}{suffix}", args.table.table())))
    };
    let options = Import {
        target: args.table.target(),
        names: args.files.clone(),
        read: ReadOptions {
            format: args.format.map(Into::into),
            csv: csv::Options {
                family: args.column_family.clone(),
                timestamps: args.timestamp.into(),
                now_micros: SystemClock::new().now_micros(),
            },
        },
        workers: args.workers,
        in_flight: args.in_flight,
        batch_rows: args.batch_size,
        state: named(&args.state, ".import.json"),
        earlier: match (args.resume, args.restart) {
            (true, _) => Earlier::Resume,
            (_, true) => Earlier::Discard,
            _ => Earlier::Refuse,
        },
        rejected: named(&args.rejected, ".rejected.jsonl"),
        rejected_dry: named(&None, ".dry-run.jsonl"),
        rejected_is_named: args.rejected.is_some(),
        rejected_max: args.max_rejected,
        create: args.create,
        dry_run: args.dry_run,
        retry_for: args.table.retry_for(),
    };
    let stop = transfer::stop_on_signal()?;
    let bar = bar(
        if args.dry_run { "check" } else { "import" },
        "{msg} [{wide_bar}] {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left",
    );
    let summary = import(&options, &bar, &stop);
    bar.finish_and_clear();
    let summary = summary?;
    let verb = if args.dry_run { "would import" } else { "imported" };
    let mut lines = vec![format!(
        "{verb} {} rows, {} cells, {} from {} files",
        summary.rows,
        summary.cells,
        human(summary.bytes),
        summary.files
    )];
    if summary.empty > 0 {
        lines.push(format!("{} rows have no cells", summary.empty));
    }
    let mut code = ExitCode::SUCCESS;
    if summary.rejected > 0 {
        let (count, path) = (summary.rejected, summary.rejected_path.display());
        lines.push(format!("{count} records were rejected: {path} has them and why"));
        code = ExitCode::from(EXIT_REJECTED);
    }
    Ok((lines.join("\n") + "\n", code))
}
