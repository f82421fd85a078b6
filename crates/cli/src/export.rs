//! `tepui export`: a table of any Bigtable endpoint into files of rows.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use tepui_transfer::error::{Error, Result};
use tepui_transfer::export::{Export, Selection, export};
use tepui_transfer::format::csv::Column;
use tepui_transfer::scan::Range;

use crate::transfer::{self, Format, TableArgs, Timestamps, bar, human, unescape};

/// The arguments of `tepui export`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Keys and qualifiers take the escapes \\xNN, \\n, \\r, \\t and \\\\.\n\
                  Exit codes: 0 done; 1 failed; 130 interrupted. A failed or interrupted export goes on with --resume; one with \
                  --overwrite that had not begun anew by then is given again as it was.")]
pub struct Args {
    #[command(flatten)]
    table: TableArgs,
    /// What the files' names begin with: backup/part makes backup/part-00000-of-00003.avro
    #[arg(value_name = "DIR/NAME")]
    output: PathBuf,
    /// The files' format
    #[arg(long, value_parser = written(), default_value = "avro")]
    format: Format,
    /// How many files, at most as many as the table has tablets' samples [default: one for each 256 MiB]
    #[arg(long, value_name = "COUNT")]
    files: Option<usize>,
    /// Files that are written at the same time, each over a connection of its own
    #[arg(long, default_value_t = 4, value_name = "COUNT")]
    workers: usize,
    /// Only rows from this key on
    #[arg(long, value_name = "KEY")]
    start: Option<String>,
    /// Only rows before this key
    #[arg(long, value_name = "KEY")]
    end: Option<String>,
    /// Only rows whose keys begin so
    #[arg(long, conflicts_with_all = ["start", "end"], value_name = "KEY")]
    prefix: Option<String>,
    /// Only these families
    #[arg(long, value_delimiter = ',', value_name = "FAMILY,...")]
    families: Vec<String>,
    /// Only the newest so many versions of each column [default: all; CSV has one]
    #[arg(long, value_name = "COUNT")]
    versions: Option<i32>,
    /// CSV: these columns [default: all that the table has, which takes a scan]
    #[arg(long, value_delimiter = ',', value_name = "FAMILY:QUALIFIER,...")]
    columns: Vec<String>,
    /// CSV: where timestamps go
    #[arg(long, value_enum, default_value_t = Timestamps::Now)]
    timestamp: Timestamps,
    /// Go on with an export that was interrupted
    #[arg(long, conflicts_with = "overwrite")]
    resume: bool,
    /// Replace the files of an earlier export of this name, once the new ones are whole
    #[arg(long)]
    overwrite: bool,
}

/// The formats that can be written: one of those that can be read is of imports alone.
fn written() -> impl TypedValueParser<Value = Format> {
    let written = Format::value_variants().iter().filter(|format| **format != Format::Rejected);
    let names = PossibleValuesParser::new(written.filter_map(ValueEnum::to_possible_value));
    names.try_map(|name| Format::from_str(&name, false))
}

/// Runs the command.
pub fn run(args: &Args) -> ExitCode {
    let resume = if args.overwrite {
        "--resume goes on with the files that are missing, unless none was begun; then --overwrite begins anew"
    } else {
        "--resume goes on with the files that are missing"
    };
    transfer::end(done(args), resume)
}

fn column(text: &str) -> Result<Column> {
    let wrong = |why: String| Error::failed(format!("--columns: {why}"));
    let (family, qualifier) = text
        .split_once(':')
        .filter(|(family, _)| !family.is_empty())
        .ok_or_else(|| wrong(format!("{text:?} is not FAMILY:QUALIFIER")))?;
    Ok(Column { family: family.to_owned(), qualifier: unescape(qualifier).map_err(wrong)? })
}

fn range(args: &Args) -> Result<Range> {
    let key = |key: &Option<String>| match key {
        Some(key) => unescape(key).map_err(Error::failed),
        None => Ok(Vec::new()),
    };
    if args.prefix.is_some() {
        return Ok(Range::prefix(&key(&args.prefix)?));
    }
    Ok(Range { start: key(&args.start)?.into(), end: key(&args.end)?.into() })
}

fn done(args: &Args) -> Result<(String, ExitCode)> {
    let options = Export {
        target: args.table.target(),
        selection: Selection {
            range: range(args)?,
            families: args.families.clone(),
            versions: args.versions,
        },
        format: args.format.into(),
        output: args.output.clone(),
        files: args.files,
        workers: args.workers,
        columns: args.columns.iter().map(|text| column(text)).collect::<Result<_>>()?,
        timestamps: args.timestamp.into(),
        resume: args.resume,
        overwrite: args.overwrite,
        retry_for: args.table.retry_for(),
    };
    let stop = transfer::stop_on_signal()?;
    let bar = bar("export", "{msg} [{wide_bar}] {pos} of {len} files, {elapsed}, {eta} left");
    let summary = export(&options, &bar, &stop);
    bar.finish_and_clear();
    let summary = summary?;
    let mut lines = vec![format!(
        "exported {} rows, {} cells into {} files of {}",
        summary.rows,
        summary.cells,
        summary.files,
        human(summary.bytes)
    )];
    if summary.left_out > 0 {
        let count = summary.left_out;
        lines.push(format!(
            "{count} cells were left out: their columns came after the scan for columns; another export has them"
        ));
    }
    Ok((lines.join("\n") + "\n", ExitCode::SUCCESS))
}
