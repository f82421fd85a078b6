//! Where reports go: the standard output, JSON, plots.

use std::path::{Path, PathBuf};

use tepui_bench::Result;
use tepui_bench::files::{self, write};
use tepui_bench::output::show;
use tepui_bench::plot::Series;
use tepui_bench::report::{Report, RunReport};

/// Whether JSON goes to the standard output.
fn is_shown(json: &Path) -> bool {
    json.as_os_str() == "-"
}

/// Refuses files that cannot be written.
pub fn check_writable<'a>(
    json: Option<&'a PathBuf>,
    plots: impl IntoIterator<Item = &'a PathBuf>,
) -> Result<()> {
    let json = json.filter(|file| !is_shown(file));
    json.into_iter().chain(plots).try_for_each(|file| files::check_writable(file))
}

/// Writes the report as JSON where that is asked for, and shows `text` unless JSON took its place. What becomes of one is nothing
/// to the other.
pub fn publish(report: &Report, json: Option<&Path>, text: &str) -> Result<()> {
    match json {
        Some(file) if is_shown(file) => show(&format!("{}\n", report.to_json()?)),
        Some(file) => {
            let shown = show(text);
            report.to_json().and_then(|json| write(file, &json)).and(shown)
        }
        None => show(text),
    }
}

/// One line for each workload and store: the round in the middle; of reads, and of writes where there are no
/// reads.
pub fn curves(runs: &[RunReport]) -> Vec<Series> {
    let mut groups: Vec<Vec<&RunReport>> = Vec::new();
    for run in runs {
        let same = |group: &&mut Vec<&RunReport>| {
            group.first().is_some_and(|r| r.store == run.store && r.workload == run.workload)
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(run),
            None => groups.push(vec![run]),
        }
    }
    groups
        .into_iter()
        .filter_map(|mut group| {
            group.sort_by(|a, b| a.latency().p50.total_cmp(&b.latency().p50));
            let run = group.get(group.len() / 2)?;
            let label = format!("{}: {}", run.store, run.workload.name);
            let points = if run.reads > 0 { &run.curve } else { &run.write_curve };
            Some(Series { label, points: points.clone() })
        })
        .collect()
}
