//! `tepui bench engine` as a person meets it: a small run from load to report.

use std::path::Path;
use std::process::Output;

use serde_json::Value;

use crate::{REFUSED_BENCHES, closed, refused, tepui, text};

fn bench(dir: &Path, args: &[&str]) -> Output {
    tepui(dir, &["bench", "engine"]).args(args).output().unwrap()
}

const SMALL: [&str; 4] = ["--rows=2000", "--ops=500", "--warm-up=0", "--verify"];

#[test]
fn a_report_that_nobody_reads_is_written_to_its_files_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        let mut command = tepui(dir.path(), &["bench", "engine"]);
        let ended = command.args(SMALL).args(args).stdout(closed()).output().unwrap();
        assert_eq!(ended.status.code(), Some(1), "{}", text(&ended.stderr));
        assert!(text(&ended.stderr).contains("standard output"), "{}", text(&ended.stderr));
    };
    run(&["--workload=get", "--json=r.json", "--plot=r.svg"]);
    for file in ["r.json", "r.svg"] {
        assert!(dir.path().join(file).exists(), "{file}");
    }
    run(&["--workload=list"]);
}

#[test]
fn a_small_run_of_every_workload_reports_as_table_json_and_plot() {
    let dir = tempfile::tempdir().unwrap();
    let mut args = SMALL.to_vec();
    args.extend(["--workload=all", "--cache=1/60", "--json=r.json", "--plot=r.svg"]);
    let output = bench(dir.path(), &args);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    let json = std::fs::read_to_string(dir.path().join("r.json")).unwrap();
    let report: Value = serde_json::from_str(&json).unwrap();
    let runs = report["runs"].as_array().unwrap();
    assert!(runs.len() >= 10);
    for run in runs {
        let name = run["workload"]["name"].as_str().unwrap();
        assert!(table.contains(name), "{name} is missing from {table}");
        assert_eq!(run["ops"], 500, "{name}");
        let positive = ["ops_per_second", "seconds", "cpu_micros_per_op", "rss_bytes"];
        for field in positive {
            assert!(run[field].as_f64().unwrap() > 0.0, "{name} {field}");
        }
        let only_writes = matches!(name, "put" | "multi-put" | "increment" | "increment-single");
        let (latencies, curve) = if only_writes {
            ("write_latency_micros", "write_curve")
        } else {
            ("latency_micros", "curve")
        };
        let latency = &run[latencies];
        let [p50, p90, p99, most] =
            ["p50", "p90", "p99", "max"].map(|field| latency[field].as_f64().unwrap());
        assert!(0.0 < p50 && p50 <= p90 && p90 <= p99 && p99 <= most, "{name}: {latency}");
        assert!(!run[curve].as_array().unwrap().is_empty(), "{name}");
        let writes = only_writes || name == "get-while-writing";
        assert_eq!(run["write_latency_micros"].is_null(), !writes, "{name}");
        for figure in ["cache_hits", "cache_misses", "filter_probes", "sst_bytes", "io_reads"] {
            assert!(run["figures"][figure].is_number(), "{name} {figure}");
        }
    }
    assert_eq!(report["dataset"]["rows"], 2000);
    assert!(report["machine"]["cores"].as_u64().unwrap() > 0);
    assert_eq!(report["settings"]["cache"], "1/60");
    let plot = std::fs::read_to_string(dir.path().join("r.svg")).unwrap();
    assert!(plot.starts_with("<svg") && plot.contains("scan-100-reverse"));
    // The data was not asked to be kept.
    let left: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn kept_data_serves_several_caches_and_is_refused_for_another_shape() {
    let dir = tempfile::tempdir().unwrap();
    let run = |more: &[&str]| {
        let mut args = SMALL.to_vec();
        args.extend(["--data=d", "--json=-"]);
        args.extend(more);
        bench(dir.path(), &args)
    };
    let output = run(&["--cache=64KiB,all", "--repeat=2"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let runs = report["runs"].as_array().unwrap();
    let named: Vec<_> =
        runs.iter().map(|r| (r["store"].as_str().unwrap(), r["round"].as_u64().unwrap())).collect();
    let (small, all) = ("tepui, cache 64KiB", "tepui, cache all");
    assert_eq!(named, [(small, 1), (all, 1), (small, 2), (all, 2)]);
    let misses = |at: usize| runs[at]["figures"]["cache_misses"].as_f64().unwrap();
    assert!(misses(0) > 0.0 && misses(1) < misses(0), "{} {}", misses(0), misses(1));

    let other = run(&["--value-bytes=100"]);
    assert!(!other.status.success());
    assert!(text(&other.stderr).contains("holds other data"), "{}", text(&other.stderr));
    assert!(run(&["--cache=1/2"]).status.success());
}

#[test]
fn without_settling_reads_find_what_the_load_and_the_writes_left_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let run = |settle: &str, more: &[&str]| {
        let args = ["--workload=put,get", "--json=-", settle];
        bench(dir.path(), &[&SMALL[..], &args, more].concat())
    };
    let report = |output: Output| -> Value {
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let memtable = |report: &Value, run: usize| {
        report["runs"][run]["figures"]["memtable_bytes"].as_f64().unwrap()
    };
    let loaded_bytes = 2000.0 * 256.0;
    let settled = report(run("--settle=always", &[]));
    assert!(memtable(&settled, 0) < loaded_bytes && memtable(&settled, 1) < loaded_bytes / 4.0);
    let straight = report(run("--settle=never", &["--repeat=2", "--data=d"]));
    assert_eq!(straight["settings"]["settle"], "never");
    // The second repetition has a load of its own.
    for at in 0..4 {
        assert!(memtable(&straight, at) >= loaded_bytes, "{}", memtable(&straight, at));
    }
    for report in [settled, straight] {
        for (run, kind) in [(0, "writes"), (1, "reads")] {
            for tenth in ["first_tenth", "last_tenth"] {
                let p99 = &report["runs"][run][tenth][kind]["p99"];
                assert!(p99.as_f64().unwrap() > 0.0, "{run} {tenth} {p99}");
            }
        }
    }

    // What is left is not taken for rows that have settled, nor these for what a load leaves.
    let kept = report(run("--settle=always", &["--data=d"]));
    assert!(memtable(&kept, 1) < loaded_bytes / 4.0);
    let refused = run("--settle=never", &["--data=d"]);
    assert!(text(&refused.stderr).contains("have settled"), "{}", text(&refused.stderr));
}

#[test]
fn what_cannot_be_run_is_refused_before_anything_is_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| bench(dir.path(), args);
    refused(dir.path(), run, REFUSED_BENCHES);
    refused(
        dir.path(),
        run,
        &[(&["--workload=gets"], "get-absent"), (&["--cache=much"], "cache size")],
    );
    let listed = bench(dir.path(), &["--workload=list"]);
    assert!(text(&listed.stdout).contains("scan-100-reverse"));
}
