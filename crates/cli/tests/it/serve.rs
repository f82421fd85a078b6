//! `tepui serve` whose outputs nobody takes.

use std::io::{BufRead as _, BufReader, ErrorKind, PipeReader, Read as _, Write as _};
use std::process::{Child, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::{Served, closed, full, serve, tepui, text};

/// More than a server may take to stop.
const LONG: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };

/// An output that takes nothing more as long as nobody reads it, and who may.
fn stuck() -> (Stdio, PipeReader) {
    let (reader, writer) = std::io::pipe().unwrap();
    let flags = fcntl_getfl(&writer).unwrap();
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
    let mut filling = &writer;
    let full = loop {
        if let Err(error) = filling.write(b"x") {
            break error;
        }
    };
    assert_eq!(full.kind(), ErrorKind::WouldBlock);
    fcntl_setfl(&writer, flags).unwrap();
    (writer.into(), reader)
}

/// The exit code of a process after SIGTERM; it is killed where it has none in time.
fn terminate(process: &mut Child) -> Option<i32> {
    let pid = Pid::from_child(process);
    let end = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    let ended = poll(&mut [PollFd::new(&end, PollFlags::IN)], Some(&LONG)).unwrap();
    if ended == 0 {
        process.kill().unwrap();
    }
    process.wait().unwrap().code()
}

#[test]
fn a_server_whose_log_stands_still_serves_and_stops_at_a_signal() {
    let dir = tempfile::tempdir().unwrap();
    let (log, mut reader) = stuck();
    let mut served = Served::start_with(dir.path(), log);
    let endpoint = format!("--endpoint={}", served.endpoint);
    let load = ["bench", "server", &endpoint, "--workload=put", "--rows=10", "--ops=10"];
    let load = tepui(dir.path(), &load).arg("--warm-up=0").output().unwrap();
    assert!(load.status.success(), "{}", text(&load.stderr));
    assert_eq!(terminate(&mut served.process), Some(0));
    let mut said = String::new();
    reader.read_to_string(&mut said).unwrap();
    assert!(said.ends_with('x'), "it was not stuck: {said}");
}

/// Starts a server with this for its standard output, waits until its log says a word, and stops it: its exit code.
fn serve_until(output: Stdio, says: &str) -> Option<i32> {
    let dir = tempfile::tempdir().unwrap();
    let process = serve(dir.path()).stdout(output).stderr(Stdio::piped()).spawn();
    let mut served = Served { process: process.unwrap(), endpoint: String::new() };
    let log = BufReader::new(served.process.stderr.take().unwrap());
    let mut lines = log.lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains(says)));
    terminate(&mut served.process)
}

#[test]
fn a_server_whose_output_nobody_takes_serves_until_a_signal_and_says_so_in_its_log() {
    for output in [closed(), full()] {
        assert_eq!(serve_until(output, "cannot say on the standard output"), Some(0));
    }
}

#[test]
fn a_server_whose_output_stands_still_stops_at_a_signal() {
    let (output, _reader) = stuck();
    assert_eq!(serve_until(output, "serving"), Some(0));
}

#[test]
fn a_server_that_does_not_start_says_why_behind_what_it_logged() {
    let dir = tempfile::tempdir().unwrap();
    let _served = Served::start(dir.path());
    let refused = serve(dir.path()).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    let said = text(&refused.stderr);
    let why = said.lines().position(|line| line.starts_with("tepui: ") && line.contains("data"));
    let logged = said.lines().position(|line| line.contains("open_files"));
    assert!(logged.is_some() && logged < why, "{said}");
}
