//! The server under test, started as a process of its own so that the kernel's figures are its alone.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tepui_bench::child::{apart, without_settings};
use tepui_bench::counters::Process;

/// A server process; told to stop when dropped, and gone when this process is, however that ends.
pub struct Server {
    child: Child,
    pub endpoint: String,
    pub data: PathBuf,
}

impl Server {
    /// Starts this binary's `serve` on a free port over `data`, configured by that file alone. Call it on a thread that lives as
    /// long as the server is to.
    pub fn start(data: &Path, config: Option<&Path>) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|e| format!("own path: {e}"))?;
        let mut command = Command::new(program);
        command.arg("serve").arg("--data").arg(data).arg("--listen").arg("127.0.0.1:0");
        if let Some(config) = config {
            command.arg("--config").arg(config);
        }
        // Ctrl-C is for the benchmark, which stops the server when it has said what it measured.
        let mut child = apart(without_settings(&mut command))
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("cannot start the server: {e}"))?;
        let stdout = child.stdout.take().ok_or("the server has no output")?;
        // From here on it is told to stop whatever comes.
        let mut server = Self { child, endpoint: String::new(), data: data.to_owned() };
        for line in BufReader::new(stdout).lines() {
            let line = line.map_err(|e| format!("server output: {e}"))?;
            if let Some((_, endpoint)) = line.split_once("BIGTABLE_EMULATOR_HOST=") {
                endpoint.trim().clone_into(&mut server.endpoint);
                return Ok(server);
            }
        }
        let status = server.child.wait().map_err(|e| e.to_string())?;
        Err(format!("the server stopped before it listened: {status}"))
    }

    /// The process, for the kernel's figures.
    pub fn process(&self) -> Process {
        Process(self.child.id())
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
