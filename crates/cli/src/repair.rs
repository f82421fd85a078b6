//! `tepui repair`: keeps what verifies, sets the rest aside, lists what was lost.

use std::path::PathBuf;

use tepui_bench::output;
use tepui_bigtable::error::{Error, Result};
use tepui_engine::offline::{self, RepairOptions, RepairReport};
use tepui_server::catalog;

use crate::offline_env::{env, progress, tell};

/// The arguments of `tepui repair`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The data directory; no server may use it. Copy it first
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Change nothing; say what would be done
    #[arg(long)]
    dry_run: bool,
    /// Go on where tablets side by side have lost their manifests: each is empty then, but for what the log has of it
    #[arg(long)]
    empty_lost_tablets: bool,
}

/// Runs the command. A directory that does not open afterwards is an error.
pub fn run(args: &Args) -> Result<()> {
    let bar = progress("repair");
    let options =
        RepairOptions { dry_run: args.dry_run, empty_lost_tablets: args.empty_lost_tablets };
    let report = offline::repair(
        &env(),
        &args.dir,
        Some(&catalog::entry_of),
        options,
        &mut |done, total| tell(&bar, done, total),
    );
    bar.finish_and_clear();
    let report = report?;
    let text = text(args, &report);
    // It is done all the same, and the next repair would not know what this one lost.
    if let Err(error) = output::show(&text) {
        output::complain(&format!("tepui: {error}\n{}", text.trim_end()));
    }
    if report.opens() {
        return Ok(());
    }
    if let Some(error) = report.stopped {
        return Err(error.into());
    }
    let verb = if args.dry_run { "would not open" } else { "does not open" };
    Err(Error::internal(format!("{} {verb} after this repair", args.dir.display())))
}

/// The report, for people.
fn text(args: &Args, report: &RepairReport) -> String {
    let verdict = match report.stopped {
        None => format!("{}: {}", args.dir.display(), report.after),
        Some(_) => format!("{}: stopped before its end", args.dir.display()),
    };
    if report.before.is_whole() && !report.has_changes() {
        return format!("nothing to repair\n{verdict}\n");
    }
    let mut text = Vec::new();
    let mut section = |title: &str, lines: Vec<String>| {
        if !lines.is_empty() {
            text.push(title.to_owned());
            text.extend(lines.iter().map(|line| format!("  {line}")));
        }
    };
    let would = if args.dry_run {
        "a repair would find and do this; nothing was changed"
    } else {
        "repaired"
    };
    section("found", report.before.damage.iter().map(ToString::to_string).collect());
    section(would, report.actions.clone());
    let aside = |(from, to): &(PathBuf, PathBuf)| format!("{} -> {}", from.display(), to.display());
    section("set aside", report.set_aside.iter().map(aside).collect());
    let rows = report.lost_rows.iter().map(ToString::to_string);
    section("lost", rows.chain(report.lost.iter().cloned()).collect());
    if !report.lost_rows.is_empty() || !report.lost.is_empty() {
        let lines = [
            "Older versions of lost cells may show again, and cells whose deletion was lost are back.",
            "Rows in the ranges above may be there in part.",
        ];
        section("mind", lines.map(str::to_owned).to_vec());
    }
    if !report.before.unnamed.is_empty() {
        let lines = [
            "Nothing names some of the files that were set aside. A crash leaves such files; a catalog that lost",
            "a part, or is older than they are, does too. If a table or a backup is missing, look for it there.",
        ];
        section("mind also", lines.map(str::to_owned).to_vec());
    }
    section("NOT REPAIRED", report.open.clone());
    section("damage that is left", report.after.damage.iter().map(ToString::to_string).collect());
    text.push(verdict);
    text.join("\n") + "\n"
}
