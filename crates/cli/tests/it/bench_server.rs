//! `tepui bench server` as a person meets it: small runs against a server that it starts, and against one that
//! runs already.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Output, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;

use crate::{REFUSED_BENCHES, Served, closed, refused, tepui, text};

fn bench(dir: &Path, args: &[&str]) -> Output {
    tepui(dir, &["bench", "server"]).args(args).output().unwrap()
}

fn report(output: &Output) -> Value {
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

const SMALL: [&str; 4] = ["--rows=500", "--ops=200", "--warm-up=0", "--verify"];

#[test]
fn every_workload_runs_on_a_server_of_its_own_and_is_reported_in_every_form() {
    let dir = tempfile::tempdir().unwrap();
    let mut args = SMALL.to_vec();
    args.push("--workload=a,b,c,d,e,f,increment,increment-row,read,read-many,update,put,put-many");
    args.extend(["--json=r.json", "--plot=time.svg", "--plot-latency=latency.svg"]);
    let output = bench(dir.path(), &args);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    let json = std::fs::read_to_string(dir.path().join("r.json")).unwrap();
    let report: Value = serde_json::from_str(&json).unwrap();
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 13);
    for run in runs {
        let name = run["workload"]["name"].as_str().unwrap();
        assert!(table.contains(&format!("\n{name} ")), "{name} is missing from {table}");
        assert_eq!(run["ops"], 200, "{name}");
        assert_eq!(run["figures"]["refused"], 0.0, "{name}");
        assert!(run["figures"]["server_rss_bytes"].as_f64().unwrap() > 1e6, "{name}");
        assert_eq!((&run["unsent"], &run["given_up"]), (&0.into(), &0.into()), "{name}");
        let points = run["timeline"].as_array().unwrap();
        assert!(!points.is_empty(), "{name}");
        let writes = run["writes"].as_u64().unwrap();
        let only_reads = matches!(name, "c" | "read" | "read-many");
        let only_writes =
            matches!(name, "increment" | "increment-row" | "update" | "put" | "put-many");
        assert_eq!(writes == 0, only_reads, "{name}");
        assert_eq!(writes == 200, only_writes, "{name}");
        assert_eq!(run["write_latency_micros"].is_null(), only_reads, "{name}");
        assert_eq!(run["longest_write_gap_ms"].is_null(), only_reads, "{name}");
        assert_eq!(run["inserts"].as_u64().unwrap() > 0, matches!(name, "d" | "e"), "{name}");
    }
    for (file, word) in [("time.svg", "operations"), ("latency.svg", "99 %")] {
        let plot = std::fs::read_to_string(dir.path().join(file)).unwrap();
        assert!(plot.starts_with("<svg") && plot.contains(word), "{file}");
    }
    // The data was not asked to be kept.
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3);
}

#[test]
fn a_server_that_a_benchmark_starts_goes_by_the_benchmark_s_settings_alone() {
    let dir = tempfile::tempdir().unwrap();
    for args in [["server", "--rows=100", "--workload=none"], ["load", "--rows=100", "--json"]] {
        let mut command = tepui(dir.path(), &["bench"]);
        command.args(args).env("TEPUI_MEMORY", "64 parsecs").env("TEPUI_CONFIG", "none.toml");
        let ended = command.output().unwrap();
        assert!(ended.status.success(), "{args:?}: {}", text(&ended.stderr));
    }
}

#[test]
fn a_load_alone_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let output = bench(dir.path(), &["--rows=500", "--workload=none", "--json=r.json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    assert!(table.contains("\nload: 500 rows in ") && !table.contains("ops/s"), "{table}");
    let json = std::fs::read_to_string(dir.path().join("r.json")).unwrap();
    let report: Value = serde_json::from_str(&json).unwrap();
    assert!(report["settings"]["load"].as_str().unwrap().starts_with("500 rows"));
    assert_eq!(report["runs"].as_array().unwrap().len(), 0);
}

#[test]
fn a_report_that_nobody_reads_is_written_to_its_files_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = tepui(dir.path(), &["bench", "server", "--workload=c"]);
    command.args(SMALL).args(["--json=r.json", "--plot=time.svg", "--plot-latency=latency.svg"]);
    let ended = command.stdout(closed()).output().unwrap();
    assert_eq!(ended.status.code(), Some(1), "{}", text(&ended.stderr));
    assert!(text(&ended.stderr).contains("standard output"), "{}", text(&ended.stderr));
    for file in ["r.json", "time.svg", "latency.svg"] {
        assert!(dir.path().join(file).exists(), "{file}");
    }
}

#[test]
fn a_load_whose_server_does_not_start_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    // A port that somebody has is found to be so when the data is open.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let config = format!("[metrics]\nlisten = \"{}\"\n", taken.local_addr().unwrap());
    std::fs::write(dir.path().join("c.toml"), config).unwrap();
    let args = ["bench", "load", "--rows=100", "--json", "--config=c.toml", "--data=data"];
    let ended = tepui(dir.path(), &args).output().unwrap();
    assert_eq!(ended.status.code(), Some(1), "{}", text(&ended.stderr));
    assert!(text(&ended.stderr).contains("before it listened"), "{}", text(&ended.stderr));
    assert!(!dir.path().join("data").exists());
}

#[test]
fn an_open_loop_keeps_its_rate_and_its_operations() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--rows=200", "--seconds=1", "--warm-up=0", "--rate=50,100", "--workload=a"];
    let report = report(&bench(dir.path(), &[&args[..], &["--json=-"]].concat()));
    let runs = report["runs"].as_array().unwrap();
    for (run, rate) in runs.iter().zip([50, 100]) {
        assert_eq!(run["workload"]["rate"], f64::from(rate));
        // Whatever the machine does: what was due was done or is counted as not sent.
        let (ops, unsent) = (run["ops"].as_u64().unwrap(), run["unsent"].as_u64().unwrap());
        assert!((rate as u64 - 2..=rate as u64).contains(&(ops + unsent)), "{ops} {unsent}");
    }
}

#[test]
fn a_server_that_runs_is_loaded_once_and_one_with_other_rows_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = Served::start(dir.path());
    let (endpoint, pid) =
        (format!("--endpoint={}", server.endpoint), format!("--pid={}", server.process.id()));
    let run = |more: &[&str]| {
        let known = [endpoint.as_str(), "--json=-", "--workload=c"];
        bench(dir.path(), &[&known[..], &SMALL, more].concat())
    };
    let first = report(&run(&[&pid]));
    assert!(first["settings"]["load"].as_str().unwrap().starts_with("500 rows"));
    assert!(first["runs"][0]["figures"]["server_rss_bytes"].is_number());
    let again = report(&run(&["--distribution=single", "--repeat=2"]));
    assert!(again["settings"]["load"].is_null(), "{}", again["settings"]);
    assert_eq!(again["runs"].as_array().unwrap().len(), 2);
    assert!(again["runs"][0]["figures"]["server_rss_bytes"].is_null());

    let other = run(&["--value-bytes=99"]);
    assert!(!other.status.success());
    assert!(text(&other.stderr).contains("where 99 were written"), "{}", text(&other.stderr));
    let never = run(&["--seed=7", "--load=never"]);
    assert!(text(&never.stderr).contains("found 0 rows"), "{}", text(&never.stderr));

    // Another instance has a table of its own.
    let elsewhere = ["--instance=projects/p/instances/elsewhere", "--value-bytes=99"];
    let elsewhere = report(&run(&elsewhere));
    assert!(elsewhere["settings"]["load"].as_str().unwrap().starts_with("500 rows"));
    let instance = run(&["--instance=elsewhere"]);
    assert!(text(&instance.stderr).contains("projects/"), "{}", text(&instance.stderr));
}

#[test]
fn a_benchmark_that_is_killed_takes_its_server_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--rows=100", "--workload=c", "--seconds=3600", "--json=-"];
    let mut command = tepui(dir.path(), &["bench", "server"]);
    command.args(args).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut bench = command.spawn().unwrap();
    // The server's lines come through the same pipe, whose other end is closed when both are gone.
    let mut errors = BufReader::new(bench.stderr.take().unwrap());
    let address = loop {
        let mut line = String::new();
        assert!(errors.read_line(&mut line).unwrap() > 0, "the server did not come up");
        if let Some((_, rest)) = line.split_once("serving address=") {
            break rest.split_whitespace().next().unwrap().to_owned();
        }
    };
    assert!(TcpStream::connect(&address).is_ok());
    bench.kill().unwrap();
    bench.wait().unwrap();
    let minute = Timespec { tv_sec: 60, tv_nsec: 0 };
    let mut rest = [0; 4096];
    loop {
        let mut pipe = [PollFd::new(errors.get_ref(), PollFlags::IN)];
        let ready = errors.buffer().len() + poll(&mut pipe, Some(&minute)).unwrap();
        assert!(ready > 0, "the server at {address} is still there");
        if errors.read(&mut rest).unwrap() == 0 {
            break;
        }
    }
    assert!(TcpStream::connect(&address).is_err());
}

#[test]
fn what_cannot_be_run_is_refused_before_a_server_is_started() {
    let dir = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| bench(dir.path(), args);
    refused(dir.path(), run, REFUSED_BENCHES);
    refused(
        dir.path(),
        run,
        &[
            (&["--workload=g"], "increment-row"),
            (&["--rate=-3"], "a second"),
            (&["--hot-set=0.1/0.9"], "--distribution hot-set"),
            (&["--endpoint=https://h:1"], "plaintext"),
            (&["--endpoint=127.0.0.1:1"], "cannot connect to 127.0.0.1:1"),
            (&["--endpoint=h:1", "--data=d"], "cannot be used with"),
        ],
    );
    assert!(text(&bench(dir.path(), &["--workload=list"]).stdout).contains("YCSB E"));
}
