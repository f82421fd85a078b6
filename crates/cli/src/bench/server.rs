//! The server under test, started as a process of its own so that the kernel's figures are its alone.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A server process; told to stop when dropped.
pub struct Server {
    child: Child,
    pub endpoint: String,
    pub data: PathBuf,
}

/// What the kernel says of the process.
#[derive(Debug, Clone, Copy, Default, serde::Serialize)]
pub struct ProcessFigures {
    /// Peak resident memory.
    pub rss_peak_bytes: u64,
    /// Bytes that the process caused to be written to storage.
    pub write_bytes: u64,
    /// Bytes that the process caused to be read from storage.
    pub read_bytes: u64,
    /// Processor time, user and system.
    pub cpu_seconds: f64,
}

impl Server {
    /// Starts this binary's `serve` on a free port over `data`.
    pub fn start(data: &Path, config: Option<&Path>) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|e| format!("own path: {e}"))?;
        let mut command = Command::new(program);
        command.arg("serve").arg("--data").arg(data).arg("--listen").arg("127.0.0.1:0");
        if let Some(config) = config {
            command.arg("--config").arg(config);
        }
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("cannot start the server: {e}"))?;
        let stdout = child.stdout.take().ok_or("the server has no output")?;
        for line in BufReader::new(stdout).lines() {
            let line = line.map_err(|e| format!("server output: {e}"))?;
            if let Some((_, endpoint)) = line.split_once("BIGTABLE_EMULATOR_HOST=") {
                let endpoint = endpoint.trim().to_owned();
                return Ok(Self { child, endpoint, data: data.to_owned() });
            }
        }
        let status = child.wait().map_err(|e| e.to_string())?;
        Err(format!("the server stopped before it listened: {status}"))
    }

    /// The kernel's figures; zero where it does not tell.
    pub fn figures(&self) -> ProcessFigures {
        let read = |name: &str| {
            std::fs::read_to_string(format!("/proc/{}/{name}", self.child.id())).unwrap_or_default()
        };
        let field = |text: &str, name: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(name))
                .and_then(|rest| {
                    rest.trim_start_matches(':').split_whitespace().next()?.parse().ok()
                })
                .unwrap_or(0u64)
        };
        let (status, io, stat) = (read("status"), read("io"), read("stat"));
        // utime and stime are the 14th and 15th fields; the 2nd may hold spaces, in parentheses.
        let ticks: u64 = stat.rsplit_once(')').map_or(0, |(_, rest)| {
            rest.split_whitespace().skip(11).take(2).filter_map(|t| t.parse::<u64>().ok()).sum()
        });
        ProcessFigures {
            rss_peak_bytes: field(&status, "VmHWM") * 1024,
            write_bytes: field(&io, "write_bytes"),
            read_bytes: field(&io, "read_bytes"),
            cpu_seconds: ticks as f64 / 100.0,
        }
    }

    /// Bytes of the data directory.
    pub fn disk_bytes(&self) -> u64 {
        fn under(dir: &Path) -> u64 {
            #[expect(clippy::disallowed_methods, reason = "measures the directory from outside")]
            let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
            entries
                .flatten()
                .map(|entry| match entry.metadata() {
                    Ok(meta) if meta.is_dir() => under(&entry.path()),
                    Ok(meta) => meta.len(),
                    Err(_) => 0,
                })
                .sum()
        }
        under(&self.data)
    }

    /// Asks the server to stop and waits for it.
    pub fn stop(mut self) -> Result<(), String> {
        self.terminate();
        let status = self.child.wait().map_err(|e| e.to_string())?;
        if status.success() { Ok(()) } else { Err(format!("the server ended with {status}")) }
    }

    fn terminate(&self) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.child.id() as i32) {
            // An error means that it has ended already.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.terminate();
            drop(self.child.wait());
        }
    }
}
