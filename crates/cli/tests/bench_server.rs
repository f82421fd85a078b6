//! `tepui bench server` as a person meets it: small runs against a server that it starts, and against one that
//! runs already.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that panics has failed")]
#![allow(clippy::disallowed_methods, reason = "a test that looks at the files of a command")]

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

fn tepui(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tepui"));
    command.args(args).current_dir(dir);
    command
}

fn bench(dir: &Path, args: &[&str]) -> Output {
    tepui(dir, &["bench", "server"]).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
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
    args.push("--workload=a,b,c,d,e,f,increment,increment-row,read,read-many,update,put");
    args.extend(["--json=r.json", "--plot=time.svg", "--plot-latency=latency.svg"]);
    let output = bench(dir.path(), &args);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    let json = std::fs::read_to_string(dir.path().join("r.json")).unwrap();
    let report: Value = serde_json::from_str(&json).unwrap();
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 12);
    for run in runs {
        let name = run["workload"]["name"].as_str().unwrap();
        assert!(table.contains(&format!("\n{name} ")), "{name} is missing from {table}");
        assert_eq!(run["ops"], 200, "{name}");
        assert_eq!(run["figures"]["refused"], 0.0, "{name}");
        assert!(run["figures"]["server_rss_bytes"].as_f64().unwrap() > 1e6, "{name}");
        assert_eq!(run["unsent"], 0, "{name}");
        let points = run["timeline"].as_array().unwrap();
        assert!(!points.is_empty(), "{name}");
        let writes = run["writes"].as_u64().unwrap();
        let only_reads = matches!(name, "c" | "read" | "read-many");
        let only_writes = matches!(name, "increment" | "increment-row" | "update" | "put");
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

/// A server that is killed with the test.
struct Served(Child, String);

impl Served {
    fn start(dir: &Path) -> Self {
        let mut command = tepui(dir, &["serve", "--data=d", "--listen=127.0.0.1:0"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let endpoint = lines
            .map_while(Result::ok)
            .find_map(|line| Some(line.split_once("BIGTABLE_EMULATOR_HOST=")?.1.to_owned()));
        Self(child, endpoint.unwrap())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_server_that_runs_is_loaded_once_and_one_with_other_rows_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = Served::start(dir.path());
    let (endpoint, pid) = (format!("--endpoint={}", server.1), format!("--pid={}", server.0.id()));
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
}

#[test]
fn what_cannot_be_run_is_refused_before_a_server_is_started() {
    let dir = tempfile::tempdir().unwrap();
    for (args, word) in [
        (vec!["--workload=g"], "increment-row"),
        (vec!["--rows=0"], "rows"),
        (vec!["--columns=0"], "columns"),
        (vec!["--threads=8", "--in-flight=2"], "in flight"),
        (vec!["--rate=-3"], "a second"),
        (vec!["--json=no/such/r.json"], "cannot write"),
        (vec!["--endpoint=https://h:1"], "plaintext"),
        (vec!["--endpoint=127.0.0.1:1"], "cannot connect to 127.0.0.1:1"),
        (vec!["--endpoint=h:1", "--data=d"], "cannot be used with"),
    ] {
        let output = bench(dir.path(), &args);
        assert!(!output.status.success(), "{args:?}");
        assert!(text(&output.stderr).contains(word), "{args:?}: {}", text(&output.stderr));
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    assert!(text(&bench(dir.path(), &["--workload=list"]).stdout).contains("YCSB E"));
}
