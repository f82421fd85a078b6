//! `tepui check`: verifies a data directory and changes nothing.

use std::io::Write as _;
use std::path::PathBuf;

use tepui_bigtable::error::{Error, Result};
use tepui_engine::offline;
use tepui_server::catalog;

use crate::offline_env::{env, progress, tell};

/// The arguments of `tepui check`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The data directory; no server may use it
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// Runs the command. Damage is an error, after all of it was printed.
pub fn run(args: &Args) -> Result<()> {
    let bar = progress("check");
    let report = offline::check(&env(), &args.dir, Some(&catalog::entry_of), &mut |done, total| {
        tell(&bar, done, total);
    });
    bar.finish_and_clear();
    let report = report?;
    let mut out = std::io::stdout().lock();
    let notes = report.notes.iter().map(|note| format!("note: {note}\n"));
    let damage = report.damage.iter().map(|finding| {
        let what = if finding.is_of_newer_version() { "NEWER" } else { "DAMAGE" };
        format!("{what}: {finding}\n")
    });
    let verdict = format!("{}: {report}\n", args.dir.display());
    let text: String = notes.chain(damage).chain([verdict]).collect();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| Error::internal(format!("stdout: {error}")))?;
    if report.is_whole() {
        return Ok(());
    }
    if report.newer_version().is_some() {
        return Err(Error::failed_precondition(format!(
            "{} has files that a newer version of tepui wrote: use that version, which can tell whether it is damaged",
            args.dir.display()
        )));
    }
    Err(Error::internal(format!(
        "{} is damaged; restore it from a backup, or copy it and run `tepui repair {0}`",
        args.dir.display()
    )))
}
