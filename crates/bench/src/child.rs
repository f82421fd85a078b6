//! A server as a process of its own: started, waited for, held while another one is measured, and gone when it is dropped
//! or when this program is, however that ends.

use std::io::{Read as _, Seek as _, SeekFrom};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child as Process, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};

use crate::clock::pause;
use crate::counters;
use crate::error::{Error, Result};
use crate::progress::Progress;

/// How often it is looked whether a server does what it is waited for.
pub const LOOK: Duration = Duration::from_millis(100);
/// Bytes of a server's log that an error shows: the last lines.
const LOG_TAIL_BYTES: u64 = 2_000;
/// Seconds that `tepui serve` may take to listen over a new directory on a slow disk.
const TEPUI_START_SECONDS: u32 = 60;

/// A running server.
#[derive(Debug)]
pub struct Child {
    name: String,
    process: Process,
    log: PathBuf,
}

/// So many ports of the loopback that are free. Nobody else takes them within a moment on a machine that measures.
pub fn free_ports<const N: usize>() -> Result<[u16; N]> {
    // All are held at once, so that they differ.
    let mut held = Vec::with_capacity(N);
    let mut ports = [0; N];
    for port in &mut ports {
        let failed = |error| Error::failed(format!("a free port: {error}"));
        let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
        *port = listener.local_addr().map_err(failed)?.port();
        held.push(listener);
    }
    Ok(ports)
}

/// Has the benchmark alone decide when a program ends that it starts: a terminal's Ctrl-C does not reach the program, and
/// whatever ends the benchmark, or the thread that started the program, ends it: also a signal that cannot be handled.
pub fn apart(command: &mut Command) -> &mut Command {
    let die_with_parent =
        || -> std::io::Result<()> { Ok(set_parent_process_death_signal(Some(Signal::KILL))?) };
    // SAFETY: between fork and exec the closure makes a single call of the kernel; it allocates nothing and takes
    // no lock.
    unsafe { command.process_group(0).pre_exec(die_with_parent) }
}

/// Keeps from a server that a program starts what somebody has set in the environment for theirs: it counts more than the file of
/// the configuration, and is not what the benchmark says that it measures.
pub fn without_settings(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"TEPUI_") {
            command.env_remove(name);
        }
    }
    command
}

impl Child {
    /// Starts a program whose output goes to a file. Call it on a thread that lives as long as the server is to.
    #[expect(clippy::disallowed_types, reason = "files of a benchmark, not of the engine")]
    pub fn start(name: &str, command: &mut Command, log: &Path) -> Result<Self> {
        let failed = |what: &Path, error| {
            Error::failed(format!("cannot start {name}: {}: {error}", what.display()))
        };
        let out = std::fs::File::create(log).map_err(|e| failed(log, e))?;
        let errors = out.try_clone().map_err(|e| failed(log, e))?;
        apart(command.stdin(Stdio::null()).stdout(out).stderr(errors));
        let process = command.spawn().map_err(|e| failed(Path::new(command.get_program()), e))?;
        Ok(Self { name: name.to_owned(), process, log: log.to_owned() })
    }

    /// Starts `tepui serve` of this binary with this configuration, and no other, over a directory, which is made; the port that
    /// it listens on.
    #[expect(clippy::disallowed_methods, reason = "files of a benchmark, not of the engine")]
    pub fn tepui(
        program: &Path,
        dir: &Path,
        config: &str,
        progress: &Progress,
    ) -> Result<(Self, u16)> {
        let [port] = free_ports()?;
        let file = dir.join("tepui.toml");
        std::fs::create_dir_all(dir)
            .and_then(|()| std::fs::write(&file, config))
            .map_err(|e| Error::failed(format!("{}: {e}", file.display())))?;
        let mut command = Command::new(program);
        command.arg("serve").arg("--config").arg(file).arg("--data").arg(dir.join("data"));
        command.args(["--listen", &format!("127.0.0.1:{port}")]);
        let command = without_settings(&mut command);
        let mut child = Self::start("Tepui", command, &dir.join("server.log"))?;
        child.wait_for_port(port, TEPUI_START_SECONDS, progress)?;
        Ok((child, port))
    }

    /// Its process, for the kernel's figures.
    pub fn process(&self) -> counters::Process {
        counters::Process(self.process.id())
    }

    /// Waits until `ready` gives something, at most so long; an error where the server has ended or time is up.
    pub fn wait_for<T>(
        &mut self,
        what: &str,
        seconds_max: u32,
        progress: &Progress,
        mut ready: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        let bar = progress.bar(&self.name, what, None);
        let looks = u64::from(seconds_max) * 1000 / LOOK.as_millis() as u64;
        for _ in 0..looks {
            progress.check()?;
            if let Ok(Some(status)) = self.process.try_wait() {
                return Err(self.ended(status));
            }
            if let Some(found) = ready()? {
                return Ok(found);
            }
            pause(LOOK);
            bar.add(1);
        }
        let (name, tail) = (&self.name, self.log_tail());
        Err(Error::failed(format!("{name} does not come up within {seconds_max} s:\n{tail}")))
    }

    /// Waits until it listens.
    pub fn wait_for_port(&mut self, port: u16, seconds: u32, progress: &Progress) -> Result<()> {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        self.wait_for("looks at its port", seconds, progress, || {
            Ok(TcpStream::connect(address).is_ok().then_some(()))
        })
    }

    fn ended(&self, status: ExitStatus) -> Error {
        let (name, tail) = (&self.name, self.log_tail());
        Error::failed(format!("{name} ended with {status}:\n{tail}"))
    }

    /// The last lines that it wrote.
    #[expect(clippy::disallowed_types, reason = "files of a benchmark, not of the engine")]
    fn log_tail(&self) -> String {
        let read = || {
            let mut file = std::fs::File::open(&self.log)?;
            let bytes = file.metadata()?.len();
            file.seek(SeekFrom::Start(bytes.saturating_sub(LOG_TAIL_BYTES)))?;
            let mut tail = Vec::new();
            file.take(LOG_TAIL_BYTES).read_to_end(&mut tail)?;
            Ok::<_, std::io::Error>(String::from_utf8_lossy(&tail).into_owned())
        };
        read().unwrap_or_else(|error| format!("{}: {error}", self.log.display()))
    }

    /// Stops its clock: it runs no more until it is told to [go on](Child::go_on), so that all of the machine is
    /// another's.
    pub fn hold(&mut self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets it run again.
    pub fn go_on(&mut self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&mut self, signal: Signal) -> Result<()> {
        // One that has ended is waited for here, so that its number is nobody else's.
        if let Ok(Some(status)) = self.process.try_wait() {
            return Err(self.ended(status));
        }
        let pid = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| Error::failed(format!("{} has no number", self.name)))?;
        kill_process(pid, signal).map_err(|e| Error::failed(format!("{}: {e}", self.name)))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // What it has not written yet nobody needs. An error means that it has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{WaitOptions, waitpid};

    use super::*;

    fn shell(script: &str, log: &Path) -> Child {
        Child::start("the shell", Command::new("sh").args(["-c", script]), log).unwrap()
    }

    #[test]
    fn a_server_that_ends_instead_of_coming_up_is_an_error_with_what_it_said() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = shell("echo no such disk >&2; exit 3", &dir.path().join("log"));
        let error = child.wait_for_port(1, 10, &Progress::hidden()).unwrap_err().to_string();
        assert!(error.contains("no such disk") && error.contains('3'), "{error}");
    }

    #[test]
    fn a_server_is_held_and_goes_on_and_is_gone_when_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = shell("exec tail -f /dev/null", &dir.path().join("log"));
        let process = child.process();
        let pid = Pid::from_raw(i32::try_from(process.0).unwrap());
        for _ in 0..2 {
            child.hold().unwrap();
            let (_, status) = waitpid(pid, WaitOptions::UNTRACED).unwrap().unwrap();
            assert!(status.stopped());
            child.go_on().unwrap();
            let (_, status) = waitpid(pid, WaitOptions::CONTINUED).unwrap().unwrap();
            assert!(status.continued());
        }
        child.hold().unwrap();
        drop(child);
        assert!(!Path::new(&format!("/proc/{}", process.0)).exists());
    }

    #[test]
    fn free_ports_differ() {
        let [a, b, c] = free_ports::<3>().unwrap();
        assert!(a != b && b != c && a != c && a > 0 && b > 0 && c > 0);
    }
}
