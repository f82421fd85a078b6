//! Where reports go: the standard output, JSON, plots.

use std::path::Path;

use tepui_bench::Result;
use tepui_bench::files::write;
use tepui_bench::plot::Series;
use tepui_bench::report::{Report, RunReport};

/// Writes the report as JSON where that is asked for, and shows `text` unless JSON took its place.
#[expect(clippy::print_stdout, reason = "the report is what the command is for")]
pub fn publish(report: &Report, json: Option<&Path>, text: String) -> Result<()> {
    match json {
        Some(file) if file.as_os_str() == "-" => println!("{}", report.to_json()?),
        // Shown first: a file that cannot be written takes nothing with it.
        Some(file) => {
            print!("{text}");
            write(file, &report.to_json()?)?;
        }
        None => print!("{text}"),
    }
    Ok(())
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
