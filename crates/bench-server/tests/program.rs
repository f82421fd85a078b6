//! `bench-server` as a person meets it: one who ends it early, and one who has settings in the environment.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]
#![allow(clippy::disallowed_methods, reason = "a test that writes a file for a program")]

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

#[test]
fn a_server_that_it_starts_does_not_see_settings_of_the_environment() {
    let dir = tempfile::tempdir().unwrap();
    // `sh serve ...` runs this; what it says is in the error.
    std::fs::write(dir.path().join("serve"), "env; exit 3\n").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_bench-server"));
    command.args(["--only=overload", "--tepui=/bin/sh", "--dir=data"]).current_dir(dir.path());
    let vars = [("TEPUI_MEMORY", "1GiB"), ("TEPUI_CONFIG", "none.toml"), ("LOOKED_FOR", "here")];
    let ended = command.env_clear().envs(vars).output().unwrap();
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(errors.contains("LOOKED_FOR=here"), "{errors}");
    assert!(!errors.contains("TEPUI_"), "{errors}");
}
