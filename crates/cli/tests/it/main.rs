//! The `tepui` binary as a person meets it.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that panics has failed")]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests that look at the files of a command"
)]

mod bench_engine;
mod bench_server;
mod config;
mod offline;
mod serve;
mod transfer;

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

/// The program, without the configuration that somebody has in the environment.
fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tepui"));
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"TEPUI_") {
            command.env_remove(name);
        }
    }
    command
}

/// `tepui ARGS` in a directory.
fn tepui(dir: &Path, args: &[&str]) -> Command {
    let mut command = program();
    command.args(args).current_dir(dir);
    command
}

/// An output that nobody reads any more.
fn closed() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

/// An output that takes nothing.
fn full() -> Stdio {
    std::fs::File::options().write(true).open("/dev/full").unwrap().into()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Each of these ends in an error that has the word beside it; nothing is left of them.
fn refused(dir: &Path, run: impl Fn(&[&str]) -> Output, cases: &[(&[&str], &str)]) {
    for (args, word) in cases {
        let output = run(args);
        assert!(!output.status.success(), "{args:?}");
        assert!(text(&output.stderr).contains(word), "{args:?}: {}", text(&output.stderr));
    }
    assert_eq!(std::fs::read_dir(dir).unwrap().count(), 0);
}

/// What every benchmark refuses.
const REFUSED_BENCHES: &[(&[&str], &str)] = &[
    (&["--rows=0"], "rows"),
    (&["--columns=0"], "columns"),
    (&["--key-bytes=3"], "key bytes"),
    (&["--threads=8", "--in-flight=2"], "in flight"),
    (&["--seconds=1", "--ops=1"], "cannot be used with"),
    (&["--repeat=0"], "at least once"),
    (&["--warm-up=-1"], "seconds"),
    (&["--json=no/such/r.json"], "cannot write"),
];

/// A server over a directory, on a free port.
fn serve(dir: &Path) -> Command {
    tepui(dir, &["serve", "--data=data", "--listen=127.0.0.1:0"])
}

/// Such a server, killed with the test.
struct Served {
    process: Child,
    endpoint: String,
}

impl Served {
    fn start(dir: &Path) -> Self {
        Self::start_with(dir, Stdio::null())
    }

    /// The same with this for its log.
    fn start_with(dir: &Path, log: Stdio) -> Self {
        let mut process = serve(dir).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut served = Self { process, endpoint: String::new() };
        served.endpoint = lines
            .map_while(Result::ok)
            .find_map(|line| Some(line.split_once("BIGTABLE_EMULATOR_HOST=")?.1.trim().to_owned()))
            .unwrap();
        served
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}
