//! `bench-server` as a person meets it who ends it early.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

#[test]
fn ctrl_c_ends_it_soon_and_its_data_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let mut command = Command::new(env!("CARGO_BIN_EXE_bench-server"));
    command.args(["--only=sync", "--rows=100", "--seconds=86400", "--dir"]).arg(&data);
    let mut bench = command.stdout(Stdio::piped()).spawn().unwrap();
    // What it runs on is said when everything is there to run.
    let mut line = String::new();
    let mut lines = BufReader::new(bench.stdout.take().unwrap());
    assert!(lines.read_line(&mut line).unwrap() > 0 && line.starts_with("machine"), "{line}");
    assert!(data.is_dir());
    let pid = Pid::from_raw(i32::try_from(bench.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    assert_eq!(bench.wait().unwrap().code(), Some(2));
    assert!(!data.exists());
}
